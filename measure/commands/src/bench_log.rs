//! `natrix bench log`.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use bench::log::LogError;
use bench::log::Options;
use bench::log::Report;
use cli::BenchLog;
use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGPIPE;
use signal_hook::consts::SIGTERM;

use crate::failure::Failure;

/// Measures, and prints one report.
pub(crate) fn run(arguments: &BenchLog, out: &mut dyn Write) -> Result<(), Failure> {
    let options = Options { mappings: arguments.mappings, folder: arguments.dir.clone(), seed: arguments.seed };
    let (stop, signal) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for one in [SIGINT, SIGTERM, SIGHUP, SIGPIPE] {
        // Which one is known before it counts. Without these the signal ends the command at once,
        // and the store stays.
        let _ = signal_hook::flag::register_usize(one, Arc::clone(&signal), one as usize);
        let _ = signal_hook::flag::register(one, Arc::clone(&stop));
    }
    let result = bench::log::run(&options, &stop);
    if let Err(LogError::Stopped) = result {
        // The store is gone, so the command ends as the signal would have ended it.
        let _ = signal_hook::low_level::emulate_default_handler(signal.load(Ordering::Relaxed) as i32);
    }
    let report = result?;
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
