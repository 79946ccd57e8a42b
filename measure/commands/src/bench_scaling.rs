//! `natrix bench scaling`.

use std::io;
use std::io::Write;

use bench::scaling::Arrival;
use bench::scaling::Options;
use bench::scaling::Report;
use cli::BenchArrival;
use cli::BenchScaling;

use crate::bench_engine::warn;
use crate::failure::Failure;

/// Measures all arrivals, and prints their reports.
pub(crate) fn run(arguments: &BenchScaling, out: &mut dyn Write) -> Result<(), Failure> {
    let mut arrivals: Vec<Arrival> = arguments
        .arrivals
        .iter()
        .map(|arrival| match arrival {
            BenchArrival::Steered => Arrival::Steered,
            BenchArrival::Handoff => Arrival::Handoff,
        })
        .collect();
    if arrivals.is_empty() {
        arrivals.extend(Arrival::ALL);
    }
    let options = Options {
        sessions: arguments.sessions,
        workers: usize::from(arguments.workers),
        arrivals,
        seconds: arguments.seconds,
        seed: arguments.seed,
    };
    for report in bench::scaling::run(&options, &warn)? {
        if arguments.json {
            serde_json::to_writer(&mut *out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            print(&report, out)?;
        }
    }
    Ok(())
}

/// The report for people: the same figures in sentences.
fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let arrival = match report.arrival {
        Arrival::Steered => "steered",
        Arrival::Handoff => "handoff",
    };
    let Report { sessions, workers, ratio, ratio_min, ratio_max, .. } = report;
    writeln!(
        out,
        "{arrival}: {sessions} sessions, {workers} workers: {ratio:.2} times one worker ({ratio_min:.2} to {ratio_max:.2} in {} turns)",
        report.rounds
    )?;
    for (name, mpps, cycles, wall) in [
        ("one worker ", report.one_worker_mpps, report.one_worker_cycles_per_packet, report.one_worker_wall_mpps),
        ("all workers", report.mpps, report.cycles_per_packet, report.wall_mpps),
    ] {
        writeln!(
            out,
            "  {name}  {mpps:.2} Mpps in their own time, {cycles:.1} TSC cycles a packet, {wall:.2} Mpps in wall-clock time"
        )?;
    }
    writeln!(out, "  handed off   {:.1} % of all packets", 100.0 * report.handed_off_share)
}
