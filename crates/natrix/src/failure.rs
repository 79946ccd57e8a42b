//! What can make a command fail.

use std::io;

use bench::BenchError;
use cli::CliError;

/// Why the command failed; `Display` is what follows `error: `.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A command that asks a running instance, or standard output.
    #[error(transparent)]
    Command(#[from] CliError),
    /// A benchmark.
    #[error(transparent)]
    Bench(#[from] BenchError),
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
