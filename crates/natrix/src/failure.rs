//! What can make a command fail.

use std::io;

use bench::BenchError;
use cli::CliError;

use crate::bench_tables::BenchTablesFailure;

/// Why the command failed; `Display` is what follows `error: `.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A command that asks a running instance, or standard output.
    #[error(transparent)]
    Command(#[from] CliError),
    /// A configuration file: all its faults, each a whole line.
    #[error("the configuration has {} faults", .0.len())]
    Configuration(Vec<config::Fault>),
    /// Something that the output says already.
    #[error("the output says what is wrong")]
    Reported,
    /// The event log can not be read.
    #[error(transparent)]
    History(#[from] export::history::HistoryError),
    /// The data plane did not come up.
    #[error(transparent)]
    Run(#[from] daemon::run::RunError),
    /// A question to a configuration.
    #[error(transparent)]
    Offline(#[from] daemon::offline::OfflineError),
    /// The lab.
    #[error(transparent)]
    Lab(#[from] crate::lab::LabFailure),
    /// A study or a report of the lab.
    #[error(transparent)]
    LabStudy(#[from] crate::lab_study::StudyFailure),
    /// A replay.
    #[error(transparent)]
    Replay(#[from] daemon::replay::ReplayError),
    /// A benchmark.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The benchmark of the rule search.
    #[error(transparent)]
    BenchRules(#[from] bench::rules::RulesError),
    /// The benchmark of what must not delay packets.
    #[error(transparent)]
    BenchStalls(#[from] bench::stalls::StallsError),
    /// The benchmark of several workers.
    #[error(transparent)]
    BenchScaling(#[from] bench::scaling::ScalingError),
    /// The benchmark of the whole path.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    BenchForward(#[from] bench::forward::ForwardError),
    /// The study of tables.
    #[error(transparent)]
    BenchTables(#[from] BenchTablesFailure),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Command(CliError::Output(error))
    }
}

impl Failure {
    /// Whether the reader of the output has gone, which is no failure.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Command(error) if error.is_broken_pipe())
    }
}
