//! Joins the commands, the data plane, replay and the benchmarks.

mod bench_engine;
mod bench_forward;
mod bench_rules;
mod bench_scaling;
mod bench_stalls;
mod bench_tables;
mod data_plane;
mod failure;
mod find_at;
mod lab;
mod lab_study;

use std::io;
use std::io::Write;
use std::process::ExitCode;

use cli::BenchCommand;
use cli::ClientCommand;
use cli::Command;
use cli::Find;
use cli::LabCommand;

use crate::failure::Failure;

fn main() -> ExitCode {
    match run(&cli::parse(), &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Where errors can not be written nobody reads them.
            let _ = report(&failure, &mut io::stderr());
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    match command {
        Command::Client(ClientCommand::Find(arguments)) if arguments.at.is_some() => {
            find_at::run(arguments, out, &mut io::stderr())
        }
        Command::Client(ClientCommand::Find(arguments @ Find { config: Some(file), .. })) => {
            data_plane::find(arguments, file, out)
        }
        Command::Client(command) => Ok(cli::execute(command, out, &mut io::stderr())?),
        Command::Completions { shell } => Ok(cli::completions(*shell, out)?),
        Command::Bench(BenchCommand::Engine(arguments)) => bench_engine::run(arguments, out),
        Command::Bench(BenchCommand::Forward(arguments)) => bench_forward::run(arguments, out),
        Command::Bench(BenchCommand::Tables(arguments)) => bench_tables::run(arguments, out, &mut io::stderr()),
        Command::Bench(BenchCommand::Rules(arguments)) => bench_rules::run(arguments, out),
        Command::Bench(BenchCommand::Stalls(arguments)) => bench_stalls::run(arguments, out),
        Command::Bench(BenchCommand::Scaling(arguments)) => bench_scaling::run(arguments, out),
        Command::Lab(LabCommand::Study(arguments)) => lab_study::study(arguments, out),
        Command::Lab(LabCommand::Report(arguments)) => lab_study::report(arguments, out),
        Command::Lab(command) => lab::run(command, out),
        Command::Check(arguments) => data_plane::check(arguments, out),
        Command::Run(arguments) => data_plane::run(arguments),
        Command::Replay(arguments) => data_plane::replay(arguments, out),
    }
}

/// Each fault on a line of its own.
fn report(failure: &Failure, to: &mut impl Write) -> io::Result<()> {
    match failure {
        Failure::Reported => Ok(()),
        Failure::Configuration(faults) => faults.iter().try_for_each(|fault| writeln!(to, "{fault}")),
        failure => writeln!(to, "error: {failure}"),
    }
}
