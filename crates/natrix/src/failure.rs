//! Failures of commands.

use std::io;

use cli::CliError;

/// Why the command failed. `Display` prints the text after `error: `.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A command for a running instance, or standard output.
    #[error(transparent)]
    Command(#[from] CliError),
    /// All faults of a configuration file, each a whole line.
    #[error("the configuration has {} faults", .0.len())]
    Configuration(Vec<config::Fault>),
    /// The output has reported the failure.
    #[error("reported in the output")]
    Reported,
    /// The event log cannot be read.
    #[error(transparent)]
    History(#[from] lookup::log::HistoryError),
    /// The store of the log cannot be read or written.
    #[error(transparent)]
    Store(#[from] export::store::StoreError),
    /// The data plane did not start.
    #[error(transparent)]
    Run(#[from] daemon::run::RunError),
    /// A question to a configuration.
    #[error(transparent)]
    Formula(#[from] lookup::formula::NoAnswer),
    /// The API.
    #[error(transparent)]
    Api(#[from] api::ServeError),
    /// A replay.
    #[error(transparent)]
    Replay(#[from] daemon::replay::ReplayError),
    /// A benchmark, or a command of the lab.
    #[error(transparent)]
    Measure(measure::Failure),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Command(CliError::Output(error))
    }
}

impl From<measure::Failure> for Failure {
    fn from(failure: measure::Failure) -> Failure {
        match failure {
            measure::Failure::Output(error) => error.into(),
            failure => Failure::Measure(failure),
        }
    }
}

impl Failure {
    /// True if the reader of the output has gone, which is not reported.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Command(error) if error.is_broken_pipe())
    }
}
