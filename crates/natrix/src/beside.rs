//! A process beside the one that forwards packets: what it is handed, and how it begins.

use std::io;
use std::io::BufRead;

use cli::CliError;
use config::LogFormat;
use config::LogLevel;
use control::Fault;
use daemon::log::Log;
use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// How much it gives way, see nice(2).
const NICE: i32 = 10;

/// How readily the kernel ends it when memory is short, see proc_pid_oom_score_adj(5): before other
/// programs, while the unit has the daemon ended last.
const OOM_SCORE_ADJUST: &str = "500";

/// What the process gets on its standard input, as one line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handed<T> {
    pub(crate) level: LogLevel,
    pub(crate) format: LogFormat,
    pub(crate) settings: T,
}

/// Runs as the process: reads its settings, and logs as the daemon does from here on. A failure is
/// in the log.
///
/// # Errors
/// There are no settings, or `serve` failed.
pub(crate) fn run_beside<T: DeserializeOwned, E: core::fmt::Display>(
    command: &str,
    serve: impl FnOnce(T) -> Result<(), E>,
) -> Result<(), Failure> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let handed: Handed<T> = serde_json::from_str(&line).map_err(|error| {
        let fault = Fault::new(command, "has no settings", "do not start it; natrix run does");
        CliError::from(fault.seen(error.to_string()))
    })?;
    let log = Log::start_for_all(handed.level, handed.format);
    // Packets first: a worker that shares a CPU with this process gets nine tenths of it.
    if let Err(error) = rustix::process::nice(NICE) {
        log.warn(&format_args!("{command}: {error}; it runs with the priority of the workers"));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJUST) {
        log.warn(&format_args!("{command}: oom_score_adj: {error}; out of memory, the daemon may end with it"));
    }
    serve(handed.settings).map_err(|error| {
        log.error(&error);
        Failure::Reported
    })
}
