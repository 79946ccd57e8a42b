//! Ends a command when the reader of its output is gone.
//!
//! A command that waits for packets or for a daemon does not write and so gets no SIGPIPE. The end
//! of a terminal sends SIGHUP only to the session that the terminal controls. So a thread waits for
//! the end of standard output.

use std::io;
use std::process;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use cli::BenchCommand;
use cli::ClientCommand;
use cli::Command;
use cli::LogCommand;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::poll;
use rustix::io::Errno;
use rustix::process::Signal;

/// Time for a command that is writing to notice by itself.
const GRACE: Duration = Duration::from_millis(200);
/// What a shell reports of a program that SIGPIPE ended.
const UNFINISHED: u8 = 141;

/// How to end a command without a reader.
#[derive(Clone, Copy)]
enum Then {
    /// Exit with this status: it has nothing to undo.
    Exit(u8),
    /// Signal it, so that it removes what it has set up.
    Signal(Signal),
}

/// The exit status of a command whose reader has gone. 0 for one that only shows something: its
/// output has ended, because no reader wants more. All others have not finished their work, or how
/// it ended is unknown.
fn status_of(command: &Command) -> u8 {
    match command {
        Command::Client(
            ClientCommand::Show(_)
            | ClientCommand::Find(_)
            | ClientCommand::Why(_)
            | ClientCommand::Trace(_)
            | ClientCommand::Audit(_),
        )
        | Command::Log(LogCommand::Stat(_) | LogCommand::Size(_))
        | Command::Completions { .. } => 0,
        _ => UNFINISHED,
    }
}

/// The exit status of a command that could not write its output, because the reader has gone.
pub(crate) fn status_without(command: &Command) -> ExitCode {
    ExitCode::from(status_of(command))
}

/// Ends this command when the reader of its output goes away, unless it does so itself.
pub(crate) fn end_with(command: &Command) {
    let then = match command {
        // The data plane runs with or without a reader of its log. The dashboard watches its
        // terminal itself.
        Command::Run(_) | Command::Api | Command::Snmp | Command::Client(ClientCommand::Top(_)) => return,
        Command::Lab(_) => Then::Signal(Signal::TERM),
        Command::Bench(BenchCommand::Log(_)) => Then::Signal(Signal::PIPE),
        command => Then::Exit(status_of(command)),
    };
    let watch = move || {
        if !wait_for_end() {
            return;
        }
        match then {
            Then::Exit(status) => {
                thread::sleep(GRACE);
                process::exit(status.into());
            }
            Then::Signal(signal) => {
                // A process can always signal itself.
                let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
            }
        }
    };
    // Without the thread the command ends at its next write, as other programs do.
    let _ = thread::Builder::new().name("reader".to_owned()).spawn(watch);
}

/// Waits until standard output has no reader. False if the system cannot report that.
fn wait_for_end() -> bool {
    let stdout = io::stdout();
    let mut output = [PollFd::new(&stdout, PollFlags::empty())];
    loop {
        match poll(&mut output, None) {
            Ok(_) if output[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) => return true,
            // Standard output was closed from the start.
            Ok(_) => return false,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
