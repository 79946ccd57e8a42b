//! Programs in a namespace: they end with the experiment, and with the process that made it.

use std::fs;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Stdio;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process_group;

use super::SharingError;
use crate::process::not_outliving;

/// A program with its log. It is killed, with all of its group, when this is dropped.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Program {
    /// Starts it in a namespace; what it prints goes to `folder/NAMESPACE-NAME.log`.
    pub(super) fn start(namespace: &str, name: &str, words: &[String], folder: &Path) -> Result<Program, SharingError> {
        let log = folder.join(format!("{namespace}-{name}.log"));
        let failed = |source| SharingError::System { what: "a program of the network", source };
        let file = File::create(&log).map_err(failed)?;
        let errors = file.try_clone().map_err(failed)?;
        let child = not_outliving("ip")
            .args(["netns", "exec", namespace])
            .args(words)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            // A signal for the lab is the lab's: it ends all of them itself.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(Program { name: name.to_owned(), log, child })
    }

    /// What it printed so far.
    pub(super) fn printed(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails if it has ended.
    pub(super) fn alive(&mut self) -> Result<(), SharingError> {
        if matches!(self.child.try_wait(), Ok(None)) {
            return Ok(());
        }
        let printed = self.printed();
        let message = printed.lines().next_back().unwrap_or("it said nothing").to_owned();
        Err(SharingError::Program { program: self.name.clone(), message, log: self.log.clone() })
    }

    /// Ends it at once, without a word to anybody, and waits for nothing.
    pub(super) fn kill(&self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended a moment ago.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}
