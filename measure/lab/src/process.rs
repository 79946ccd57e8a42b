//! Programs that the lab starts and can ask to end.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::ffi::OsStr;
use std::io;
use std::io::Read as _;
use std::process::Child;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Output;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use rustix::process::kill_process_group;

/// How often it is looked whether a program has ended.
const TICK: Duration = Duration::from_millis(50);
/// So often, every 5 ms, it is looked whether a program that failed has said why.
const LAST_WORDS_TRIES: usize = 20;

/// So long has a group of programs that was asked to end.
const GRACE: Duration = Duration::from_millis(300);
/// So long has a device that was asked to end, and one that a signal to the lab ends.
const GRACE_OF_DEVICE: Duration = Duration::from_secs(60);
const GRACE_OF_SIGNAL: Duration = Duration::from_millis(300);
/// How often it is looked whether a device has ended.
const END_TICK: Duration = Duration::from_millis(5);

/// A command that runs a program which is asked to end (SIGTERM) when this one is gone, however it
/// went: killed, or with its terminal.
pub fn not_outliving(program: impl AsRef<OsStr>) -> Command {
    // It puts itself in the program's place, so that the process is the program's.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(program);
    command
}

/// How a program came to its end.
#[derive(Debug)]
pub enum Ended {
    /// By itself.
    Itself {
        /// With this status.
        status: ExitStatus,
        /// So long it ran.
        took: Duration,
        /// What it wrote to its standard error, as far as that has come.
        message: String,
    },
    /// It was ended, with all of its group.
    Stopped,
}

/// A program in a group of its own that runs until it ends or is ended.
#[derive(Debug)]
pub struct Watched {
    group: u32,
    ended: Receiver<(io::Result<ExitStatus>, Duration)>,
    message: Arc<Mutex<Vec<u8>>>,
}

impl Watched {
    /// Starts it: `command` has to make a group of it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Watched> {
        let begin = Instant::now();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let (group, errors) = (child.id(), child.stderr.take());
        let message = Arc::new(Mutex::new(Vec::new()));
        let reads = Arc::clone(&message);
        // Who holds the pipe may live on: nobody waits for this.
        thread::spawn(move || {
            let (mut errors, mut bytes) = (errors, [0; 4096]);
            while let Some(count) = errors.as_mut().and_then(|pipe| pipe.read(&mut bytes).ok()).filter(|read| *read > 0)
            {
                if let Ok(mut message) = reads.lock() {
                    message.extend_from_slice(&bytes[..count]);
                }
            }
        });
        let (over, ended) = mpsc::channel();
        thread::spawn(move || {
            let status = child.wait();
            // Nobody listens any more where it was ended.
            let _ = over.send((status, begin.elapsed()));
        });
        Ok(Watched { group, ended, message })
    }

    /// Until it ends; it is asked to end, and then killed, once `stop` is set or `patience` is
    /// over.
    pub fn wait(self, stop: &AtomicBool, patience: Duration) -> Ended {
        let begin = Instant::now();
        loop {
            match self.ended.recv_timeout(TICK) {
                Ok((Ok(status), took)) => {
                    let message = || Some(String::from_utf8_lossy(&self.message.lock().ok()?).into_owned());
                    // Its last words may be under way still.
                    let tries = core::iter::repeat_with(|| message().unwrap_or_default()).take(LAST_WORDS_TRIES);
                    let mut last = String::new();
                    for words in tries {
                        let is_whole = status.success() || (!words.is_empty() && words == last);
                        last = words;
                        if is_whole {
                            break;
                        }
                        thread::sleep(Duration::from_millis(5));
                    }
                    return Ended::Itself { status, took, message: last };
                }
                Ok((Err(_), _)) | Err(RecvTimeoutError::Disconnected) => return Ended::Stopped,
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) || begin.elapsed() > patience => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.signal(Signal::TERM);
        if self.ended.recv_timeout(GRACE).is_err() {
            self.signal(Signal::KILL);
        }
        Ended::Stopped
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.group).ok().and_then(Pid::from_raw) {
            // It may have ended a moment ago.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// What a command printed until it ended. It is asked to end once `stop` is set.
///
/// # Errors
/// It cannot be started, or what it prints cannot be read.
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
    waiter.join().unwrap_or_else(|_| Err(io::Error::other("its output cannot be read")))
}

/// Ends a program of ours: asks it to (SIGTERM), and kills it if it does not end within its time,
/// which is short once `stop` is set: the sender of the signal waits.
pub(crate) fn end(mut child: Child, stop: &AtomicBool) {
    ask_to_end(child.id());
    let begin = Instant::now();
    let patience = || if stop.load(Ordering::Relaxed) { GRACE_OF_SIGNAL } else { GRACE_OF_DEVICE };
    while begin.elapsed() < patience() {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(END_TICK);
    }
    // It may have ended a moment ago.
    let _ = child.kill();
    let _ = child.wait();
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
    fn a_program_does_not_outlive_its_parent() {
        // A shell that starts one as we do, says its number, and is killed.
        let mut sleep = not_outliving("/bin/sleep");
        sleep.arg("600");
        let words: Vec<_> = std::iter::once(sleep.get_program()).chain(sleep.get_args()).collect();
        let words = words.join(OsStr::new(" "));
        let script = format!("{} & echo $!; wait", words.to_string_lossy());
        let mut shell = Command::new("/bin/sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let name = format!("/proc/{}/comm", line.trim());
        let is_sleep = || std::fs::read_to_string(&name).is_ok_and(|comm| comm.trim() == "sleep");
        // Until it has put itself in its place.
        while !is_sleep() {
            thread::yield_now();
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
        while is_sleep() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_device_that_does_not_end_is_killed_soon_after_a_signal() {
        let deaf = Command::new("/bin/sh").args(["-c", "trap '' TERM; while :; do sleep 1; done"]).spawn().unwrap();
        let process = deaf.id();
        end(deaf, &AtomicBool::new(true));
        assert!(!std::path::Path::new("/proc").join(process.to_string()).exists());
    }

    #[test]
    fn a_stop_request_asks_the_program_to_end() {
        let stop = AtomicBool::new(true);
        let output = output_of(Command::new("/bin/sleep").arg("600"), &stop).unwrap();
        assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()));
    }
}
