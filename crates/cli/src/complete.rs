//! Shell completions and manual pages.

use std::io;
use std::io::Write;
use std::path::Path;

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

/// Writes a manual page for each command into `folder`, `natrix-show-status.1` and so on.
///
/// # Errors
/// The folder or a page cannot be written.
pub fn manual(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let command = Arguments::command().disable_help_subcommand(true).version(env!("CARGO_PKG_VERSION"));
    clap_mangen::generate_to(command, folder)
}
