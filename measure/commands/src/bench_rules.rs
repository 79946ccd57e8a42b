//! `natrix bench rules`.

use std::io;
use std::io::Write;

use bench::rules::Options;
use bench::rules::Report;
use cli::BenchRules;

use crate::failure::Failure;

/// Measures, and prints one report.
pub(crate) fn run(arguments: &BenchRules, out: &mut dyn Write) -> Result<(), Failure> {
    let report =
        bench::rules::run(&Options { rules: arguments.rules, seconds: arguments.seconds, seed: arguments.seed })?;
    let printed = if arguments.json { print_json(&report, out) } else { print(&report, out) };
    Ok(printed?)
}

fn print_json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} rules in {} tables, {:.0} bytes a rule", report.rules, report.tables, report.bytes_per_rule)?;
    writeln!(
        out,
        "  lookup         {:.1} ns ({:.0} cycles), {:.1} ns with the rules in random order",
        report.ns_per_lookup, report.tsc_cycles_per_lookup, report.shuffled_ns_per_lookup
    )?;
    writeln!(out, "  linear search  {:.1} ns", report.linear_ns_per_lookup)?;
    writeln!(out, "  memory alone   {:.1} ns a random line, as much memory", report.memory_ns_per_line)?;
    writeln!(out, "  load           {:.3} s", report.load_seconds)?;
    writeln!(
        out,
        "  one change     {:.2} ms median, {:.2} ms at most of {}",
        report.change_ms_p50, report.change_ms_max, report.changes
    )
}
