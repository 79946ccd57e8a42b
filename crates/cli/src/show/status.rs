//! `natrix show status`.

use std::io;
use std::io::Write;

use control::EventLog;
use control::LogSink;
use control::LogStore;
use control::Request;
use control::Status;
use control::SystemClock;
use control::UserWithoutGroup;

use crate::drain;
use crate::error::CliError;
use crate::execute::connect;
use crate::human;
use crate::output::json_line;
use crate::show_arguments::ShowStatus;
use crate::table::Align::Left;
use crate::table::Align::Right;
use crate::table::Table;
use crate::table::write_plain;

pub(super) fn show(arguments: &ShowStatus, out: &mut dyn Write) -> Result<(), CliError> {
    let mut status: Status = connect(&arguments.output.socket)?.request_one(&Request::Status)?;
    status.workers.truncate(arguments.limit.unwrap_or(usize::MAX));
    if arguments.output.json {
        json_line(&status, out)?;
    } else {
        print(&status, out)?;
    }
    Ok(())
}

fn print(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let uptime = human::duration(status.uptime_us);
    let Status { version, state, config, pid, .. } = status;
    write_plain(out, &format!("natrix {version}: {state} for {uptime}, process {pid}, configuration {config}"))?;
    writeln!(out)?;

    let mut tables = Table::new(&[("TABLE", Left), ("NOW", Right), ("LIMIT", Right), ("USED", Right)]);
    for (name, now, max) in [
        ("subscribers", status.subscribers, status.subscribers_max),
        ("mappings", status.mappings, status.mappings_max),
        ("sessions", status.sessions, status.sessions_max),
        ("held ports", status.held_ports, status.held_ports_max),
    ] {
        let used = human::percent(control::ratio(now, max));
        tables.row(vec![name.to_owned(), human::count(now), human::count(max), used]);
    }
    tables.flush(out)?;
    writeln!(out)?;

    let mut traffic = Table::new(&[("TRAFFIC", Left), ("PER SECOND", Right), ("SINCE START", Right)]);
    let bits = human::with_unit(status.bits_per_second as f64, "bit/s");
    let rate = human::count;
    for (name, per_second, total) in [
        ("packets received", String::new(), human::count(status.packets_received)),
        ("packets forwarded", rate(status.packets_per_second), human::count(status.packets_forwarded)),
        ("packets dropped", rate(status.drops_per_second), human::count(status.packets_dropped)),
        ("traffic forwarded", bits, human::with_unit(status.bytes_forwarded as f64, "B")),
        ("mappings created", rate(status.mappings_created_per_second), human::count(status.mappings_created)),
        ("sessions created", String::new(), human::count(status.sessions_created)),
    ] {
        traffic.row(vec![name.to_owned(), per_second, total]);
    }
    traffic.flush(out)?;
    writeln!(out)?;

    let mut timers = Table::new(&[("IDLE TIMEOUT", Left), ("", Right)]);
    let timeouts = &status.timeouts;
    for (name, micros) in [
        ("UDP", timeouts.udp_us),
        ("UDP, unanswered", timeouts.udp_unanswered_us),
        ("TCP, opening", timeouts.tcp_opening_us),
        ("TCP, established", timeouts.tcp_established_us),
        ("TCP, closing", timeouts.tcp_closing_us),
        ("ICMP", timeouts.icmp_us),
    ] {
        timers.row(vec![name.to_owned(), human::duration(micros)]);
    }
    for own in &status.port_timeouts {
        let ports = match (own.first_port, own.last_port) {
            (first, last) if first == last => format!("port {first}"),
            (first, last) => format!("ports {first}-{last}"),
        };
        let name = format!("{} to {ports}", own.protocol.name().to_uppercase());
        timers.row(vec![name, human::duration(own.idle_us)]);
    }
    timers.flush(out)?;
    writeln!(out)?;

    if let Some(announcement) = &status.announcement {
        writeln!(out, "{}\n", drain::announcement(announcement))?;
    }

    for missing in &status.users_without_group {
        let UserWithoutGroup { user, group } = missing;
        let problem = "does not exist, so no member of it can log in; add it and restart the instance";
        let line = format!("http.user \"{user}\": group {group} {problem}");
        write_plain(out, &line)?;
        writeln!(out)?;
    }

    if let Some(log) = &status.event_log {
        print_log(log, out)?;
        writeln!(out)?;
    }

    if let Some(clock) = &status.clock {
        print_clock(clock, out)?;
    }

    let mut workers = Table::new(&[
        ("WORKER", Right),
        ("CPU", Right),
        ("BUSY", Right),
        ("RECEIVED", Right),
        ("FORWARDED", Right),
        ("DROPPED", Right),
        ("HANDED OFF", Right),
        ("TAKEN OVER", Right),
        ("SUBSCRIBERS", Right),
        ("MAPPINGS", Right),
        ("SESSIONS", Right),
    ]);
    for worker in &status.workers {
        let counts = [
            worker.packets_received,
            worker.packets_forwarded,
            worker.packets_dropped,
            worker.handed_off,
            worker.taken_over,
            worker.subscribers,
            worker.mappings,
            worker.sessions,
        ];
        let mut cells = vec![worker.worker.to_string(), human::or_dash(worker.cpu), human::percent(worker.busy_ratio)];
        cells.extend(counts.map(human::count));
        workers.row(cells);
    }
    workers.flush(out)
}

fn print_clock(clock: &SystemClock, out: &mut dyn Write) -> io::Result<()> {
    let SystemClock { synchronised, estimated_error_us, maximum_error_us } = clock;
    if !synchronised {
        return writeln!(
            out,
            "clock: not synchronised, so times in the log may be wrong; run a time service, such as chrony\n"
        );
    }
    let (estimated, most) = (human::duration(*estimated_error_us), human::duration(*maximum_error_us));
    writeln!(out, "clock: synchronised, off by some {estimated}, at most {most}\n")
}

fn print_log(log: &EventLog, out: &mut dyn Write) -> io::Result<()> {
    if !log.destination.is_empty() {
        print_lines(log, out)?;
    }
    log.store.as_ref().map_or(Ok(()), |store| print_store(log, store, out))?;
    if log.sinks.is_empty() { Ok(()) } else { print_sinks(&log.sinks, out) }
}

fn print_sinks(sinks: &[LogSink], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("LOG SINK", Left),
        ("FORMAT", Left),
        ("ADDRESS", Left),
        ("CONNECTED", Left),
        ("SENT", Right),
        ("BYTES", Right),
        ("BEHIND", Right),
        ("LOST", Right),
        ("ERRORS", Right),
    ]);
    for sink in sinks {
        let connected = if sink.connected { "yes" } else { "no" };
        let mut cells = vec![sink.name.clone(), sink.kind.to_string(), sink.address.clone(), connected.to_owned()];
        cells.extend([sink.records_sent, sink.bytes_sent].map(human::count));
        cells.push(human::duration(sink.lag_us));
        cells.extend([sink.records_lost, sink.errors].map(human::count));
        table.row(cells);
    }
    table.flush(out)?;
    let failing = sinks.iter().filter(|sink| !sink.connected);
    for (sink, error) in failing.filter_map(|sink| Some((sink, sink.last_error.as_ref()?))) {
        write_plain(out, &format!("log sink {}: not connected: {error}", sink.name))?;
    }
    Ok(())
}

fn print_store(log: &EventLog, store: &LogStore, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("LOG STORE", Left),
        ("WHEN FULL", Left),
        ("WRITTEN", Right),
        ("BYTES", Right),
        ("SEGMENTS", Right),
        ("WAITING", Right),
        ("BEHIND", Right),
        ("GAPS", Right),
        ("LOST", Right),
        ("ERRORS", Right),
    ]);
    let mut cells = vec![store.path.clone(), log.back_pressure.to_string()];
    cells.extend([store.records_written, store.bytes, store.segments, store.records_waiting].map(human::count));
    cells.push(human::duration(store.lag_us));
    cells.extend([store.gaps, store.records_lost, store.errors].map(human::count));
    table.row(cells);
    table.flush(out)?;
    if store.cuts > 0 {
        write_plain(
            out,
            &format!(
                "log store: {} a start found the log damaged or cut: see natrix log verify",
                control::counted(store.cuts, "time")
            ),
        )?;
    }
    if let Some(error) = &store.last_error {
        let now = if store.failing { "nothing is being written" } else { "the last error" };
        write_plain(out, &format!("log store: {now}: {error}"))?;
    }
    Ok(())
}

fn print_lines(log: &EventLog, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("EVENT LOG", Left),
        ("WHEN FULL", Left),
        ("WRITTEN", Right),
        ("BYTES", Right),
        ("WAITING", Right),
        ("BEHIND", Right),
        ("LOST", Right),
        ("FILES", Right),
        ("ERRORS", Right),
    ]);
    let mut cells = vec![log.destination.clone(), log.back_pressure.to_string()];
    cells.extend([log.records_written, log.bytes_written, log.records_waiting].map(human::count));
    cells.push(human::duration(log.lag_us));
    cells.extend([log.records_lost, log.files_rotated, log.errors].map(human::count));
    table.row(cells);
    table.flush(out)?;
    if log.files_taken > 0 {
        let times = control::counted(log.files_taken, "time");
        write_plain(
            out,
            &format!(
                "event log: another program renamed, deleted or cut the file ({times}): see the log of the daemon"
            ),
        )?;
    }
    if let Some(error) = &log.last_error {
        let now = if log.failing { "nothing is being written" } else { "the last error" };
        write_plain(out, &format!("event log: {now}: {error}"))?;
    }
    Ok(())
}
