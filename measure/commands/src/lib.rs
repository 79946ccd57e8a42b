//! The commands that measure, `natrix bench` and `natrix lab`: each reads its arguments, runs what
//! `bench` or `lab` has for it and prints the result.

mod bench_engine;
mod bench_forward;
mod bench_log;
mod bench_routes;
mod bench_rules;
mod bench_scaling;
mod bench_stalls;
mod bench_tables;
mod failure;
mod lab;
mod lab_study;

use std::io;
use std::io::Write;

use cli::BenchCommand;
use cli::LabCommand;

pub use crate::failure::Failure;

/// Runs `natrix bench …`; the result goes to `out`.
///
/// # Errors
/// Why the benchmark could not run or its result could not be written.
pub fn bench(command: &BenchCommand, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    match command {
        BenchCommand::Engine(arguments) => bench_engine::run(arguments, out),
        BenchCommand::Forward(arguments) => bench_forward::run(arguments, out),
        BenchCommand::Tables(arguments) => bench_tables::run(arguments, out, &mut io::stderr()),
        BenchCommand::Rules(arguments) => bench_rules::run(arguments, out),
        BenchCommand::Routes(arguments) => bench_routes::run(arguments, out, &mut io::stderr()),
        BenchCommand::Stalls(arguments) => bench_stalls::run(arguments, out),
        BenchCommand::Scaling(arguments) => bench_scaling::run(arguments, out),
        BenchCommand::Log(arguments) => bench_log::run(arguments, out),
    }
}

/// Runs `natrix lab …`; the result goes to `out`.
///
/// # Errors
/// Why the lab could not run or its result could not be written.
pub fn lab(command: &LabCommand, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    match command {
        LabCommand::Study(arguments) => lab_study::study(arguments, out),
        LabCommand::Report(arguments) => lab_study::report(arguments, out),
        command => lab::run(command, out),
    }
}
