//! `natrix bench engine`.

use std::io;
use std::io::Write;

use bench::EventsTo;
use bench::Family;
use bench::Mode;
use bench::Options;
use bench::Report;
use cli::BenchAllocation;
use cli::BenchEngine;
use cli::BenchEvents;
use cli::BenchFamily;
use cli::BenchMode;

use crate::failure::Failure;

/// Measures the engine, and prints the report.
pub(crate) fn run(arguments: &BenchEngine, out: &mut dyn Write) -> Result<(), Failure> {
    let options = Options {
        family: match arguments.family {
            BenchFamily::Nat44 => Family::Nat44,
            BenchFamily::Nat64 => Family::Nat64,
            BenchFamily::Dslite => Family::Dslite,
            BenchFamily::Mixed => Family::Mixed,
        },
        allocation: match arguments.allocation {
            BenchAllocation::Ports => bench::engine::Ports::Ports,
            BenchAllocation::Blocks => bench::engine::Ports::Blocks,
        },
        sessions: arguments.sessions,
        mode: match arguments.mode {
            BenchMode::Established => Mode::Established,
            BenchMode::New => Mode::New,
            BenchMode::Mixed => Mode::Mixed,
        },
        workers: usize::from(arguments.workers),
        seconds: arguments.seconds,
        events: match arguments.events {
            BenchEvents::Nowhere => EventsTo::Nowhere,
            BenchEvents::Discarded => EventsTo::Discarded,
            BenchEvents::Written => EventsTo::Written,
            BenchEvents::Stored => EventsTo::Stored,
        },
        filters: arguments.filters,
        gateways: arguments.gateways,
    };
    let report = bench::engine::run(&options, &warn)?;
    if arguments.json {
        serde_json::to_writer(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        print(&report, arguments, out)?;
    }
    Ok(())
}

/// To standard error, so that standard output stays one object.
pub(crate) fn warn(message: &str) {
    // A warning that cannot be written has no reader.
    let _ = writeln!(io::stderr().lock(), "warning: {message}");
}

/// The report for people: the same figures in sentences.
fn print(report: &Report, arguments: &BenchEngine, out: &mut dyn Write) -> io::Result<()> {
    let mebibytes = report.resident_bytes as f64 / f64::from(1 << 20);
    let workers = if report.workers == 1 { "worker" } else { "workers" };
    let (mode, family) = (arguments.mode.name(), arguments.family.name());
    writeln!(out, "{mode}, {family}: {} sessions on {} {workers}", report.sessions, report.workers)?;
    writeln!(out, "  throughput    {:.2} Mpps, {:.2} Mpps a worker", report.mpps, report.mpps_per_worker)?;
    writeln!(out, "  cost          {:.1} TSC cycles a packet", report.tsc_cycles_per_packet)?;
    writeln!(
        out,
        "  new sessions  {:.0} a second, {:.0} ended",
        report.new_sessions_per_second, report.ended_sessions_per_second
    )?;
    writeln!(out, "  memory        {:.1} bytes a session, {mebibytes:.0} MiB resident", report.bytes_per_session)?;
    let bound = 100.0 * report.fraction_of_memory_bound;
    writeln!(out, "  memory bound  {:.2} Mpps a worker; {bound:.0} % of it reached", report.memory_bound_mpps)?;
    let Report { p50_ns, p99_ns, p999_ns, max_ns, .. } = report;
    writeln!(
        out,
        "  burst time    {p50_ns:.0} ns median, {p99_ns:.0} ns p99, {p999_ns:.0} ns p99.9, {max_ns:.0} ns at most"
    )?;
    if let (Some(recorded), Some(lost)) = (report.events_recorded, report.events_lost) {
        writeln!(out, "  events        {recorded} recorded, {lost} lost as nobody took them in time")?;
    }
    let Some(fill) = &report.fill else { return Ok(()) };
    writeln!(
        out,
        "  slowest       tenth {:.2}, hundredth {:.2} of the average; last per cent of {} ports {:.2}",
        fill.slowest_tenth_to_average,
        fill.slowest_hundredth_to_average,
        fill.pool_ports,
        fill.last_percent_of_pool_to_average
    )
}
