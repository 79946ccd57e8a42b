//! Errors of commands.

use std::io;

use control::ClientError;
use control::Fault;

/// Why a command failed. `Display` prints `<object>: <what is wrong> (<value seen>); <what to do>`.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The daemon did not answer, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Writing to standard output failed.
    #[error("standard output: cannot write ({0}); check its destination")]
    Output(#[from] io::Error),
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl CliError {
    /// True if the reader of the output has gone (`natrix show ... | head`), which is not
    /// reported.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
