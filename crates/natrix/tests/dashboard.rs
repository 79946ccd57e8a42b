//! The dashboard on a terminal: whatever ends it, the terminal is as it was.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::fs::File;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::process::Command;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use rustix::termios::LocalModes;
use rustix::termios::Termios;

/// What switches to the screen of the dashboard, and back.
const ENTER: &[u8] = b"\x1b[?1049h";
const LEAVE: &[u8] = b"\x1b[?1049l";

/// A terminal, from the side of whoever looks at it, and the device a program has.
fn terminal() -> (File, File) {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
    let device = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(ours), device)
}

fn modes(device: &File) -> Termios {
    rustix::termios::tcgetattr(device).unwrap()
}

/// Reads until `wanted` has come; all that came.
fn read_until(ours: &mut File, wanted: &[u8]) -> Vec<u8> {
    let mut came = Vec::new();
    let mut piece = [0; 4_096];
    while !came.windows(wanted.len()).any(|some| some == wanted) {
        let length = ours.read(&mut piece).expect("the terminal is there");
        assert!(length > 0, "nothing more comes: {:?}", String::from_utf8_lossy(&came));
        came.extend(&piece[..length]);
    }
    came
}

fn start(device: &File) -> Child {
    let end = || device.try_clone().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    command.args(["top", "--socket", "/nonexistent/control.sock"]).env("TERM", "xterm");
    command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let (mut ours, device) = terminal();
        rustix::termios::tcsetwinsize(
            &device,
            rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 },
        )
        .unwrap();
        let before = modes(&device);
        let mut dashboard = start(&device);
        read_until(&mut ours, ENTER);
        assert!(!modes(&device).local_modes.contains(LocalModes::ICANON), "keys are read one by one");
        rustix::process::kill_process(Pid::from_child(&dashboard), signal).unwrap();
        read_until(&mut ours, LEAVE);
        let status = dashboard.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()), "whoever waits sees what ended it");
        let after = modes(&device);
        assert_eq!(
            (after.local_modes, after.input_modes, after.output_modes),
            (before.local_modes, before.input_modes, before.output_modes)
        );
    }
}
