//! A device that somebody else has started: the tester speaks to it, and a command the user gives empties its table.

use core::time::Duration;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::process::Stdio;
use std::time::Instant;

use super::Device;
use super::DeviceError;
use crate::result::Settings;

/// A device the lab knows nothing of.
#[derive(Debug)]
pub struct External {
    empty_command: String,
    described: String,
}

impl External {
    /// `empty_command` is for the shell; `described` is what the user says of the device.
    pub fn new(empty_command: &str, described: &str) -> External {
        External { empty_command: empty_command.to_owned(), described: described.to_owned() }
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
        let begin = Instant::now();
        let output =
            Command::new("sh").args(["-c", &self.empty_command]).stdin(Stdio::null()).process_group(0).output();
        let told = match output {
            Ok(output) if output.status.success() => return Ok(begin.elapsed()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                format!("{}; {}", output.status, text.lines().next().unwrap_or("no message").trim())
            }
            Err(error) => error.to_string(),
        };
        Err(DeviceError::EmptyCommand { command: self.empty_command.clone(), told })
    }

    /// Whether the table is empty is found by the tester, by frames to endpoints of before.
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

    #[test]
    fn the_command_that_empties_is_run_and_its_failure_is_told_with_its_words() {
        External::new("true", "").empty().unwrap();
        let told = External::new("echo no such table >&2; exit 3", "").empty().unwrap_err().to_string();
        assert!(told.contains("exit status: 3; no such table") && told.contains("--empty-command"), "{told}");
    }
}
