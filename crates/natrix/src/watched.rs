//! A process beside the daemon: starts it and watches it, so that a failure there does not touch
//! packets.

use std::io;
use std::io::Write;
use std::process::Child;
use std::process::Command as Process;
use std::process::Stdio;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use config::LogFormat;
use config::LogLevel;
use daemon::log::Log;
use serde::Serialize;

use crate::beside::Handed;

/// How often to look whether the process still runs.
const LOOKS_EVERY: Duration = Duration::from_millis(200);
/// Pause before it is started again.
const RESTARTS_AFTER: Duration = Duration::from_secs(5);
/// Time for it to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// What it keeps of the environment. Its standard error is that of the daemon, and so is the
/// journal that reads it.
const KEPT: [&str; 3] = ["TZ", "PATH", "JOURNAL_STREAM"];

/// Which process: the hidden command of this binary that it runs, and the table of the
/// configuration that it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    pub(crate) command: &'static str,
    pub(crate) table: &'static str,
    pub(crate) log: Log,
}

/// The watched process; ends when dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its message.
            let _ = thread.join();
        }
    }
}

impl Watched {
    /// Starts a process with these settings and a log in this format, and a thread that watches it.
    pub(crate) fn start(
        beside: Beside,
        (level, format): (LogLevel, LogFormat),
        settings: impl Serialize,
    ) -> io::Result<Watched> {
        let settings = serde_json::to_string(&Handed { level, format, settings })?;
        let (end, ended) = mpsc::channel();
        let watch = move || watch(beside, &settings, &ended);
        let thread = thread::Builder::new().name(beside.command.to_owned()).spawn(watch)?;
        Ok(Watched { end: Some(end), thread: Some(thread) })
    }
}

/// Starts the process, and starts it again when it ends, until the sender of `ended` is gone.
fn watch(beside: Beside, settings: &str, ended: &mpsc::Receiver<()>) {
    loop {
        let outcome = spawn(beside, settings).and_then(|mut child| wait(&mut child, ended));
        match outcome {
            Ok(true) => return,
            // It has written why.
            Ok(false) => {}
            Err(error) => beside.log.error(&format_args!("{}: {error}; see the system's log", beside.table)),
        }
        match ended.recv_timeout(RESTARTS_AFTER) {
            Err(RecvTimeoutError::Timeout) => {
                let Beside { table, command, log } = beside;
                log.warn(&format_args!("{table}: the process natrix {command} ended; starting it again"));
            }
            _ => return,
        }
    }
}

/// The settings go to its standard input, where no other user sees them. It ends when its input
/// ends, so also when this process is killed.
fn spawn(beside: Beside, settings: &str) -> io::Result<Child> {
    let mut child = Process::new("/proc/self/exe")
        .arg(beside.command)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| KEPT.iter().any(|kept| name == kept)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    if let Some(input) = &mut child.stdin {
        writeln!(input, "{settings}")?;
    }
    Ok(child)
}

/// Waits until the process ends (false), or until it is no longer wanted (true).
fn wait(child: &mut Child, ended: &mpsc::Receiver<()>) -> io::Result<bool> {
    loop {
        if child.try_wait()?.is_some() {
            return Ok(false);
        }
        if ended.recv_timeout(LOOKS_EVERY) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    drop(child.stdin.take());
    for _ in 0..ENDS_WITHIN.as_millis() / LOOKS_EVERY.as_millis() {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        thread::sleep(LOOKS_EVERY);
    }
    child.kill()?;
    child.wait()?;
    Ok(true)
}
