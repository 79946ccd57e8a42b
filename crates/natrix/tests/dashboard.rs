//! The dashboard on a terminal: however it ends, it restores the terminal.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail like tests")]

mod terminal;

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::process::Command;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::termios::LocalModes;
use rustix::termios::Termios;

use terminal::ended;
use terminal::terminal;

/// Sequences that switch to the screen of the dashboard and back.
const ENTER: &[u8] = b"\x1b[?1049h";
const LEAVE: &[u8] = b"\x1b[?1049l";

fn modes(device: &File) -> Termios {
    rustix::termios::tcgetattr(device).unwrap()
}

/// Reads until `wanted` and returns everything read.
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
fn a_signal_restores_the_terminal() {
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
        assert_eq!(status.signal(), Some(signal.as_raw()), "the parent process sees the signal");
        let after = modes(&device);
        assert_eq!(
            (after.local_modes, after.input_modes, after.output_modes),
            (before.local_modes, before.input_modes, before.output_modes)
        );
    }
}

#[test]
fn a_closed_terminal_ends_the_dashboard() {
    // Without a session of its own the dashboard gets no SIGHUP and must watch the terminal.
    let (mut ours, device) = terminal();
    let mut dashboard = start(&device);
    read_until(&mut ours, ENTER);
    drop(device);
    drop(ours);
    let status = ended(&mut dashboard).expect("the dashboard ends when its terminal is gone");
    assert_eq!(status.signal(), Some(Signal::HUP.as_raw()));
}

#[test]
fn a_signal_ends_a_dashboard_without_a_terminal() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (mut ours, device) = terminal();
        let mut dashboard = start(&device);
        read_until(&mut ours, ENTER);
        drop(device);
        drop(ours);
        // It may have ended already.
        let _ = rustix::process::kill_process(Pid::from_child(&dashboard), signal);
        assert!(ended(&mut dashboard).is_some(), "{signal:?} ends it");
    }
}
