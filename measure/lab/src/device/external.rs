//! A device that somebody else has started: the tester speaks to it, and a command the user gives
//! empties its table.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;

use rustix::process::setpriority_process;
use rustix::thread::CpuSet;
use rustix::thread::sched_getaffinity;
use rustix::thread::sched_setaffinity;

use super::Device;
use super::DeviceError;
use crate::process::Ended;
use crate::process::Watched;
use crate::result::Settings;

/// A command that takes longer than this to empty a table hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device the lab knows nothing of.
#[derive(Debug)]
pub struct External {
    empty_command: String,
    described: String,
    stop: Arc<AtomicBool>,
    patience: Duration,
    place: Place,
}

/// Where programs run that are not of the lab, and how soon: the tester has a CPU of its own, and
/// is before them.
#[derive(Clone, Copy, Debug)]
struct Place {
    cpus: Option<CpuSet>,
    nice: i32,
}

impl Place {
    /// Puts the calling thread, and all that it starts from now on, there. Who may have less stays
    /// where it is, which is no worse for it.
    fn enter(self) {
        if let Some(cpus) = &self.cpus {
            let _ = sched_setaffinity(None, cpus);
        }
        let _ = setpriority_process(None, self.nice);
    }
}

impl External {
    /// `empty_command` is for the shell; `described` is what the user says of the device. The
    /// command is ended once `stop` is set, or when it hangs. It runs, with all that it starts,
    /// where the calling thread may run now, and with this niceness.
    pub fn new(empty_command: &str, described: &str, nice: i32, stop: Arc<AtomicBool>) -> External {
        let (empty_command, described) = (empty_command.to_owned(), described.to_owned());
        let place = Place { cpus: sched_getaffinity(None).ok(), nice };
        External { empty_command, described, stop, patience: PATIENCE, place }
    }
}

impl Device for External {
    fn name(&self) -> &'static str {
        "external"
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.empty().map(drop)
    }

    fn empty(&mut self) -> Result<Duration, DeviceError> {
        let mut command = Command::new("sh");
        // A group of its own: a signal for the lab is the lab's, and what the command has started
        // ends with it.
        command.args(["-c", &self.empty_command]).stdin(Stdio::null()).process_group(0);
        let started = thread::scope(|scope| {
            let start = || {
                // A device that it starts anew has the tester's CPU else, with which it would share
                // it.
                self.place.enter();
                Watched::start(&mut command)
            };
            scope.spawn(start).join().unwrap_or_else(|_| Err(io::Error::other("its thread ended")))
        });
        let message = match started.map(|watched| watched.wait(&self.stop, self.patience)) {
            Ok(Ended::Itself { status, took, .. }) if status.success() => return Ok(took),
            Ok(Ended::Itself { status, message, .. }) => {
                format!("{status}; {}", message.lines().next().unwrap_or("no message").trim())
            }
            Ok(Ended::Stopped) if self.stop.load(Ordering::Relaxed) => return Err(DeviceError::Interrupted),
            Ok(Ended::Stopped) => format!("not over after {} s, and ended", self.patience.as_secs()),
            Err(error) => error.to_string(),
        };
        Err(DeviceError::EmptyCommand { command: self.empty_command.clone(), message })
    }

    /// The tester finds out whether the table is empty, by frames to old endpoints.
    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    fn settings(&self) -> Settings {
        Settings(vec![("described", self.described.clone()), ("empty_command", self.empty_command.clone())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(command: &str) -> External {
        External::new(command, "", 0, Arc::default())
    }

    #[test]
    fn the_command_that_empties_is_run_and_its_failure_is_reported() {
        device("true").empty().unwrap();
        let shown = device("echo no such table >&2; exit 3").empty().unwrap_err().to_string();
        assert!(shown.contains("exit status: 3; no such table") && shown.contains("--empty-command"), "{shown}");
        // What it left running in the background is not waited for.
        let number = std::env::temp_dir().join(format!("natrix-empty-{}", std::process::id()));
        device(&format!("sleep 600 & echo $! >{}", number.display())).empty().unwrap();
        let left = std::fs::read_to_string(&number).unwrap();
        std::fs::remove_file(&number).unwrap();
        assert!(Command::new("kill").arg(left.trim()).status().unwrap().success(), "it still runs");
    }

    #[test]
    fn what_empties_runs_where_it_would_without_the_tester() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let allowed =
            |status: &str| status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).map(str::to_owned);
        let before = allowed(&status).unwrap();
        let (_, cpus) = before.split_once('\t').unwrap();
        let command =
            format!("[ \"$(grep Cpus_allowed_list: /proc/self/status | cut -f2)\" = {cpus} ] && [ $(nice) = 7 ]");
        let mut external = External::new(&command, "", 7, Arc::default());
        // As the tester does: it has one CPU from then on.
        let first = (0..CpuSet::MAX_CPU).find(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).unwrap();
        external.empty().unwrap();
    }

    #[test]
    fn a_hanging_command_ends_on_a_signal_and_after_its_time() {
        let mut hangs = device("trap '' TERM; sleep 600; true");
        hangs.stop.store(true, Ordering::Relaxed);
        assert!(matches!(hangs.empty(), Err(DeviceError::Interrupted)));
        let mut hangs = External { patience: Duration::from_millis(20), ..device("sleep 600; true") };
        let shown = hangs.empty().unwrap_err().to_string();
        assert!(shown.contains("failed (not over after 0 s, and ended); give one that empties"), "{shown}");
    }
}
