//! `natrix bench forward`.

use std::io::Write;

use cli::BenchForward;

use crate::failure::Failure;

/// It needs drivers, and this build has none.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn run(_: &BenchForward, _: &mut dyn Write) -> Result<(), Failure> {
    let remedy = "build it with: cargo build --release --package natrix --features dpdk";
    Err(Failure::NoDpdk { command: "bench forward", remedy })
}

/// Measures the whole path on each driver, and prints a report for each.
#[cfg(feature = "dpdk")]
pub(crate) fn run(arguments: &BenchForward, out: &mut dyn Write) -> Result<(), Failure> {
    let driver = |driver: &cli::BenchDriver| match driver {
        cli::BenchDriver::Ring => bench::forward::Driver::Ring,
        cli::BenchDriver::Memif => bench::forward::Driver::Memif,
        cli::BenchDriver::Null => bench::forward::Driver::Null,
    };
    let mut drivers: Vec<_> = arguments.drivers.iter().map(driver).collect();
    if drivers.is_empty() {
        drivers.extend(bench::forward::Driver::ALL);
    }
    let options = bench::forward::Options {
        drivers,
        sessions: arguments.sessions,
        seconds: arguments.seconds,
        testpmd: (!arguments.no_testpmd).then(|| "dpdk-testpmd".to_owned()),
        apart: arguments.apart,
    };
    for report in bench::forward::run(&options, crate::bench_engine::warn)? {
        if arguments.json {
            serde_json::to_writer(&mut *out, &report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else {
            print(&report, out)?;
        }
    }
    Ok(())
}

/// The report for people.
#[cfg(feature = "dpdk")]
fn print(report: &bench::forward::Report, out: &mut dyn Write) -> std::io::Result<()> {
    let bench::forward::Report { driver, sessions, seconds, rounds, .. } = report;
    writeln!(
        out,
        "{driver}: {sessions} sessions, {seconds} s each in {rounds} turns, {:.0} % of the CPU",
        100.0 * report.cpu_share
    )?;
    let natrix = [
        report.natrix_mpps,
        report.natrix_cycles_per_packet,
        report.natrix_p50_cycles_per_packet,
        report.natrix_wall_mpps,
    ];
    let plain =
        [report.plain_mpps, report.plain_cycles_per_packet, report.plain_p50_cycles_per_packet, report.plain_wall_mpps];
    for (name, [mpps, cycles, p50, wall]) in [("natrix", natrix), ("plain forwarding", plain)] {
        writeln!(
            out,
            "  {name:<17} {mpps:8.2} Mpps, {cycles:.1} TSC cycles a packet ({p50:.1} in the median poll); {wall:.2} Mpps with \
             its far ends"
        )?;
    }
    match (report.testpmd_mpps, &report.testpmd_reason) {
        (Some(mpps), _) => writeln!(out, "  dpdk-testpmd      {mpps:8.2} Mpps")?,
        (None, reason) => {
            writeln!(out, "  dpdk-testpmd      not run: {}", reason.as_deref().unwrap_or("no reason given"))?
        }
    }
    write!(out, "  natrix reaches    {:8.3} of plain forwarding", report.natrix_to_plain)?;
    if let Some(ratio) = report.natrix_to_testpmd {
        write!(out, ", {ratio:.3} of dpdk-testpmd")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "  packets           {} translated, {} dropped, {} checked byte by byte; plain {} sent, {} dropped",
        report.natrix_packets, report.natrix_dropped, report.frames_checked, report.plain_packets, report.plain_dropped
    )
}
