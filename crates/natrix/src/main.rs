//! Joins the commands, the data plane, replay and the benchmarks.

use std::io;
use std::io::Write;
use std::process::ExitCode;

use cli::CliError;
use cli::Command;

fn main() -> ExitCode {
    let mut out = io::stdout();
    let outcome = match cli::parse() {
        Command::Client(command) => cli::execute(&command, &mut out, &mut io::stderr()),
        Command::Completions { shell } => cli::completions(shell, &mut out).map_err(CliError::from),
        Command::Check(_) | Command::Run(_) | Command::Replay(_) | Command::Bench(_) => {
            Err(control::Fault::new("command", "this build has no engine", "use a build of a later revision").into())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // Where errors can not be written nobody reads them.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
