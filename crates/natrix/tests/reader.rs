//! Long-running commands end when the reader of their output is gone, and on a signal.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail like tests")]

mod terminal;

use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::Pid;
use rustix::process::Signal;
use terminal::ended;
use terminal::terminal;

/// A folder for this test, with a control socket that never answers and a capture that never
/// begins.
struct Silence {
    folder: PathBuf,
    _socket: UnixListener,
}

impl Silence {
    fn new(name: &str) -> Silence {
        let folder = std::env::temp_dir().join(format!("natrix-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = UnixListener::bind(folder.join("control.sock")).unwrap();
        let made = Command::new("mkfifo").arg(folder.join("endless.pcap")).status().unwrap();
        assert!(made.success());
        Silence { folder, _socket: socket }
    }

    /// Nothing is there that could be taken for whole.
    fn assert_nothing_whole(&self, command: &[String]) {
        for name in ["store", "generated", "out/inside.pcap"] {
            assert!(!self.folder.join(name).exists(), "{command:?} leaves {name}");
        }
        let _ = std::fs::remove_dir_all(self.folder.join("generated.part"));
    }

    /// Commands that wait or work for a long time without output.
    fn commands(&self) -> Vec<Vec<String>> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let (socket, capture) = (path("control.sock"), path("endless.pcap"));
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/veth-two-workers.toml");
        let example = example.display().to_string();
        let lines = [
            format!("trace --socket {socket}"),
            format!("show mappings --socket {socket}"),
            format!("show counters --json --socket {socket}"),
            format!("find 203.0.113.7:41233 --socket {socket}"),
            format!("why udp 100.64.0.1:5000 198.51.100.1:53 --socket {socket}"),
            format!("plan -c {example} --socket {socket}"),
            format!("reload -c {example} --socket {socket}"),
            "bench rules --rules 1000 --seconds 60".to_owned(),
            "bench routes --routes 1000 --seconds 60".to_owned(),
            "bench engine --sessions 1000 --mode established --seconds 60".to_owned(),
            "bench scaling --sessions 1000 --seconds 60".to_owned(),
            "bench stalls --sessions 1000 --event reload --seconds 60".to_owned(),
            "bench tables --sessions 1000 --seconds 60".to_owned(),
            format!("bench log --mappings 1000000000 --dir {}", path("store")),
            format!("log generate --mappings 1000000000 --dir {}", path("generated")),
            format!("replay -c {example} --inside {capture} --outside {capture} --out-dir {}", path("out")),
        ];
        lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// `env` starts it with its own process id and with all signals as usual: a shell lets what it
/// starts in the background ignore some of them, the tests too.
fn start(command: &[String], output: Stdio) -> Child {
    let mut natrix = Command::new("env");
    natrix
        .args(["--default-signal", env!("CARGO_BIN_EXE_natrix")])
        .args(command)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Lets the command reach its wait. A command that has ended early would prove nothing.
fn is_under_way(child: &mut Child) -> bool {
    thread::sleep(Duration::from_millis(300));
    child.try_wait().unwrap().is_none()
}

#[test]
fn a_closed_pipe_ends_each_command_with_a_status_that_says_so() {
    let silence = Silence::new("pipe");
    for command in silence.commands() {
        let mut child = start(&command, Stdio::piped());
        assert!(is_under_way(&mut child), "{command:?} is running");
        drop(child.stdout.take());
        let status = ended(&mut child).unwrap_or_else(|| panic!("{command:?} runs on without a reader"));
        let shows_only = ["show", "find", "why", "trace"].contains(&command[0].as_str());
        let as_by_sigpipe = (if shows_only { Some(0) } else { Some(141) }, None);
        let by_sigpipe = (None, Some(Signal::PIPE.as_raw()));
        let is_log = command[..2] == ["bench", "log"];
        let expected = if is_log { by_sigpipe } else { as_by_sigpipe };
        assert_eq!((status.code(), status.signal()), expected, "{command:?}: what it began is not done");
        silence.assert_nothing_whole(&command);
    }
}

#[test]
fn a_closed_terminal_ends_each_command() {
    let silence = Silence::new("terminal");
    for command in silence.commands() {
        let (ours, device) = terminal();
        let mut child = start(&command, Stdio::from(device));
        assert!(is_under_way(&mut child), "{command:?} is running");
        drop(ours);
        assert!(ended(&mut child).is_some(), "{command:?} runs on without its terminal");
        silence.assert_nothing_whole(&command);
    }
}

#[test]
fn a_signal_ends_each_command() {
    let silence = Silence::new("signal");
    for command in silence.commands() {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut child = start(&command, Stdio::piped());
            assert!(is_under_way(&mut child), "{command:?} is running");
            rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
            let status = ended(&mut child).unwrap_or_else(|| panic!("{command:?} runs on after {signal:?}"));
            assert_eq!(status.signal(), Some(signal.as_raw()), "{command:?}");
            silence.assert_nothing_whole(&command);
        }
    }
}
