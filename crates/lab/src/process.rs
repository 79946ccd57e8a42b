//! Programs that the lab starts and can ask to end.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::thread;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

/// How often it is looked whether a program has ended.
const TICK: Duration = Duration::from_millis(50);

/// What a command printed until it ended. It is asked to end once `stop` is set.
///
/// # Errors
/// It can not be started, or what it prints can not be read.
pub fn output_of(command: &mut Command, stop: &AtomicBool) -> io::Result<Output> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let id = child.id();
    // Both pipes are read while it runs, so that it never waits for us.
    let waiter = thread::spawn(move || child.wait_with_output());
    let mut was_asked = false;
    while !waiter.is_finished() {
        if stop.load(Ordering::Relaxed) && !was_asked {
            was_asked = true;
            ask_to_end(id);
        }
        thread::sleep(TICK);
    }
    waiter.join().unwrap_or_else(|_| Err(io::Error::other("its output can not be read")))
}

/// Asks a process of ours to end (SIGTERM): it removes what it built and prints what it has.
pub fn ask_to_end(process: u32) {
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        // It may have ended a moment ago.
        let _ = kill_process(pid, Signal::TERM);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn what_a_program_printed_is_read_to_its_end() {
        let script = "seq 100000; echo why >&2; exit 3";
        let output = output_of(Command::new("/bin/sh").args(["-c", script]), &AtomicBool::new(false)).unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(3), b"why\n".as_slice()));
        assert!(output.stdout.ends_with(b"100000\n"));
    }

    #[test]
    fn who_is_to_stop_asks_the_program_to_end() {
        let stop = AtomicBool::new(true);
        let output = output_of(Command::new("/bin/sleep").arg("600"), &stop).unwrap();
        assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()));
    }
}
