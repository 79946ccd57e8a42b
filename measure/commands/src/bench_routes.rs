//! `natrix bench routes`.

use std::io;
use std::io::Write;

use bench::routes::LPM_ROUTES_MAX;
use bench::routes::Notice;
use bench::routes::Options;
use bench::routes::Structure;
use bench::routes::TableReport;
use bench::routes::TrafficReport;
use bench::routes::longest_ns;
use bench::stalls::Times;
use cli::BenchRoutes;

use crate::failure::Failure;

/// Measures, and prints the figures of each table as they come; JSON only at the end.
pub(crate) fn run(arguments: &BenchRoutes, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failure> {
    let BenchRoutes { routes, changes, sessions, seconds, seed, json } = *arguments;
    let mut printed = if json { Ok(()) } else { print_heading(out) };
    let mut note = |notice| {
        let text = match notice {
            Notice::NoDpdk => "this build has no DPDK, so rte_fib and rte_lpm are left out".to_owned(),
            Notice::DpdkOnPlainPages => {
                "not enough hugepages: DPDK's tables are on ordinary pages, like all others".to_owned()
            }
            Notice::FewerLpmRoutes(routes) => {
                format!("rte_lpm gets the first {routes} routes: it takes minutes to fill with more")
            }
        };
        // A note that cannot be written has no reader.
        let _ = writeln!(notes, "note: {text}");
    };
    let mut print = |table: &TableReport, hz: f64| {
        if printed.is_ok() && !json {
            printed = print_table(table, hz, out);
        }
    };
    let options = Options { routes, lpm_routes_max: LPM_ROUTES_MAX, changes, sessions, seconds, seed };
    let report = bench::routes::run(&options, &mut note, &mut print)?;
    printed?;
    if json {
        serde_json::to_writer(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        print_traffic(&report.traffic, out)?;
    }
    Ok(())
}

fn name(structure: Structure) -> &'static str {
    match structure {
        Structure::PrefixTrie => "prefix-trie",
        Structure::Natrix => "natrix",
        Structure::RteLpm => "rte_lpm",
        Structure::RteFib => "rte_fib",
    }
}

fn print_heading(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<12} {:>9} {:>8} {:>8} {:>17} {:>17} {:>10} {:>10}",
        "table", "routes", "load, s", "MB", "random, ns (cyc)", "popular, ns (cyc)", "adds/s", "removes/s"
    )?;
    out.flush()
}

fn print_table(table: &TableReport, hz: f64, out: &mut dyn Write) -> io::Result<()> {
    let time = |cycles: f64| format!("{:.1} ({cycles:.0})", cycles / hz * 1e9);
    writeln!(
        out,
        "{:<12} {:>9} {:>8.2} {:>8.1} {:>17} {:>17} {:>10.0} {:>10.0}",
        name(table.structure),
        table.routes,
        table.load_seconds,
        table.bytes as f64 / 1e6,
        time(table.random_cycles),
        time(table.popular_cycles),
        table.adds_per_second,
        table.removes_per_second
    )?;
    if table.structure == Structure::Natrix {
        writeln!(
            out,
            "{:<12} of these MB, {:.1} are the table that workers read",
            "",
            table.lookup_bytes as f64 / 1e6
        )?;
    }
    out.flush()
}

fn print_traffic(traffic: &TrafficReport, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\nestablished packets of {} sessions to 1,024 servers, median burst, cycles a packet",
        traffic.sessions
    )?;
    writeln!(
        out,
        "  {:.1} with 2 routes of the configuration, {:.1} with those in the live table, {:.1} with all routes in it",
        traffic.static_cycles, traffic.followed_cycles, traffic.full_cycles
    )?;
    writeln!(
        out,
        "  {:.0} changes of routes a second were made, {} asked for; {} reloads",
        traffic.changes_made, traffic.changes_asked, traffic.reloads
    )?;
    writeln!(out, "\nbursts of 64, ns          median      p99    p99.9  longest   bursts (interrupted)")?;
    for (what, times) in [
        ("undisturbed", &traffic.undisturbed),
        ("while routes change", &traffic.changing),
        ("while settings change", &traffic.reloading),
    ] {
        print_times(what, times, traffic.tsc_hz, out)?;
    }
    Ok(())
}

fn print_times(what: &str, times: &Times, hz: f64, out: &mut dyn Write) -> io::Result<()> {
    let ns = |cycles: u64| cycles as f64 / hz * 1e9;
    writeln!(
        out,
        "  {what:<22} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>8} ({})",
        ns(times.p50_cycles),
        ns(times.p99_cycles),
        ns(times.p999_cycles),
        longest_ns(times, hz),
        times.bursts,
        times.interrupted_bursts
    )
}
