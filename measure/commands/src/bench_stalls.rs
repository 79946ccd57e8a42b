//! `natrix bench stalls`.

use std::io;
use std::io::Write;

use bench::stalls::Event;
use bench::stalls::Options;
use bench::stalls::Report;
use bench::stalls::Times;
use cli::BenchEvent;
use cli::BenchStalls;

use crate::bench_engine::warn;
use crate::failure::Failure;

/// Measures each event, and prints its report as soon as it is over.
pub(crate) fn run(arguments: &BenchStalls, out: &mut dyn Write) -> Result<(), Failure> {
    let wanted = |event| match event {
        BenchEvent::Reload => vec![Event::Reload],
        BenchEvent::Dump => vec![Event::Dump],
        BenchEvent::PoolFull => vec![Event::PoolFull],
        BenchEvent::Expiry => vec![Event::Expiry],
        BenchEvent::All => Event::ALL.to_vec(),
    };
    let mut events: Vec<Event> = arguments.events.iter().copied().flat_map(wanted).collect();
    if events.is_empty() {
        events.extend(Event::ALL);
    }
    let options =
        Options { sessions: arguments.sessions, ending: arguments.ending, events, seconds: arguments.seconds };
    let mut printed = Ok(());
    bench::stalls::run(&options, &warn, &mut |report| {
        if printed.is_ok() {
            printed = if arguments.json { print_json(&report, out) } else { print(&report, out) };
        }
    })?;
    Ok(printed?)
}

fn print_json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

/// The report for people: the same figures in sentences.
fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Report { sessions, records, refused, event_seconds, .. } = report;
    match report.event {
        Event::Reload => {
            writeln!(out, "reload: {records} changes adopted, traffic of {sessions}, {event_seconds:.1} s")?;
        }
        Event::Dump => writeln!(out, "dump: {records} sessions listed, traffic of {sessions}, {event_seconds:.1} s")?,
        Event::PoolFull => writeln!(
            out,
            "pool_full: {records} flows took the last ports, {refused} more were refused, traffic of {sessions}, \
             {event_seconds:.1} s"
        )?,
        Event::Expiry => {
            writeln!(out, "expiry: {records} sessions ended, traffic of {sessions}, {event_seconds:.1} s until swept")?;
        }
    }
    let line = |out: &mut dyn Write, name: &str, times: &Times| {
        let ns = |cycles: u64| cycles as f64 / report.tsc_hz * 1e9;
        writeln!(
            out,
            "  {name} {:.0} ns median, {:.0} ns p99, {:.0} ns p99.9, {:.0} ns at most; {} bursts, {} interrupted",
            ns(times.p50_cycles),
            ns(times.p99_cycles),
            ns(times.p999_cycles),
            ns(times.max_cycles),
            times.bursts,
            times.interrupted_bursts
        )
    };
    line(out, "undisturbed  ", &report.undisturbed)?;
    line(out, "machine alone", &report.machine)?;
    line(out, "disturbed    ", &report.disturbed)?;
    line(out, "machine alone", &report.machine_disturbed)?;
    writeln!(
        out,
        "  ratios        {:.2} median, {:.2} p99, {:.2} p99.9; p99.9 to median {:.2} undisturbed, {:.2} machine alone",
        report.p50_ratio,
        report.p99_ratio,
        report.p999_ratio,
        report.undisturbed_p999_to_p50,
        report.machine_p999_to_p50
    )
}
