//! `natrix bench log`.

use std::io;
use std::io::Write;

use bench::log::Options;
use bench::log::Report;
use cli::BenchLog;

use crate::failure::Failure;

/// Measures, and prints one report.
pub(crate) fn run(arguments: &BenchLog, out: &mut dyn Write) -> Result<(), Failure> {
    let options = Options { mappings: arguments.mappings, folder: arguments.dir.clone(), seed: arguments.seed };
    let report = bench::log::run(&options)?;
    let printed = if arguments.json { print_json(&report, out) } else { print(&report, out) };
    Ok(printed?)
}

fn print_json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} mappings, {} events", report.mappings, report.events)?;
    writeln!(
        out,
        "  writer   {:.2} M events/s on one core, {:.0} ns an event",
        report.events_per_second / 1e6,
        report.cpu_ns_per_event
    )?;
    writeln!(out, "  store    {:.2} bytes a mapping", report.bytes_per_mapping)?;
    writeln!(out, "  longest  {:.2} s for one batch of 65,536 events", report.longest_batch_seconds)
}
