//! Shell completions.

use std::io;
use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;

/// Writes the completion script of `shell`.
///
/// # Errors
/// Writing to `out` failed.
pub fn completions(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "natrix", &mut script);
    out.write_all(&script)
}
