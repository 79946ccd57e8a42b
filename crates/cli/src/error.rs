//! What can go wrong in a command.

use std::io;

use control::ClientError;
use control::Fault;

/// Why a command failed; `Display` gives `<object>: <what is wrong> (<value seen>); <what to do>`.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The daemon did not answer, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Standard output can not be written.
    #[error("standard output: can not be written ({0}); look at where it goes")]
    Output(#[from] io::Error),
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl CliError {
    /// Whether the reader of the output has gone (`natrix show ... | head`), which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
