//! Joins the commands, the data plane, replay and the benchmarks.

mod bench_engine;
mod failure;

use std::io;
use std::io::Write;
use std::process::ExitCode;

use cli::BenchCommand;
use cli::Command;

use crate::failure::Failure;

fn main() -> ExitCode {
    match run(&cli::parse(), &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Where errors can not be written nobody reads them.
            let _ = writeln!(io::stderr(), "error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    match command {
        Command::Client(command) => Ok(cli::execute(command, out, &mut io::stderr())?),
        Command::Completions { shell } => Ok(cli::completions(*shell, out)?),
        Command::Bench(BenchCommand::Engine(arguments)) => bench_engine::run(arguments, out),
        Command::Check(_) | Command::Run(_) | Command::Replay(_) => {
            let fault =
                control::Fault::new("command", "this build has no data plane", "use a build of a later revision");
            Err(cli::CliError::from(fault).into())
        }
    }
}
