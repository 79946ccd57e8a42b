//! `natrix trace`.

use std::io;
use std::io::Write;

use control::Fault;
use control::Request;
use control::TraceRecord;
use control::VerdictKind;
use control::client::Next;

use crate::arguments::Trace;
use crate::error::CliError;
use crate::execute::connect_for;
use crate::human;
use crate::output::json_line;
use crate::pcap;
use crate::pcap::PcapWriter;
use crate::table::write_plain;

/// Prints packets as they pass, until the count is reached, the daemon ends, or the reader goes
/// away. The usual end is an interrupt, so each record is flushed before the next is read.
pub(crate) fn run(arguments: &Trace, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let mut client = connect_for(&arguments.output.socket, arguments.case.case.clone())?;
    let mut capture = match &arguments.pcap {
        None => None,
        Some(path) => Some(PcapWriter::create(path).map_err(|error| {
            Fault::new(path.display().to_string(), "cannot be written", "name another file").seen(error.to_string())
        })?),
    };
    client.send(&Request::Trace(control::Trace {
        protocol: arguments.protocol,
        address: arguments.address,
        port: arguments.port,
        interface: arguments.interface.clone(),
        verdict: arguments.verdict.clone(),
        dropped_only: arguments.dropped,
        count: arguments.count,
        snap_bytes: if capture.is_some() { pcap::SNAP_BYTES } else { 0 },
    }))?;
    // The next packet may come after any time.
    client.set_read_timeout(None)?;
    loop {
        let record = match client.next_object::<TraceRecord>()? {
            Next::Object(record) => record,
            Next::End(_) => return Ok(()),
        };
        if let Some(capture) = &mut capture {
            save(&record, capture)?;
        }
        if record.lost_before > 0 && !arguments.output.json {
            out.flush()?;
            let lost = human::count(record.lost_before);
            // A failure to write notes has no reader to report to.
            let _ = writeln!(notes, "lost: {lost} packets came faster than they could be shown; use narrower filters");
        }
        if arguments.output.json {
            json_line(&record, out)?;
        } else {
            print(&record, arguments.steps, out)?;
        }
        out.flush()?;
    }
}

/// Writes the frame as received and as sent, with the same time.
fn save(record: &TraceRecord, capture: &mut PcapWriter<impl Write>) -> io::Result<()> {
    if let Some(frame) = &record.frame {
        capture.frame(record.time_us, &frame.0, record.length_bytes)?;
    }
    if let Some(frame) = &record.frame_out {
        capture.frame(record.time_us, &frame.0, 0)?;
    }
    Ok(())
}

fn print(record: &TraceRecord, steps: bool, out: &mut dyn Write) -> io::Result<()> {
    let time = human::time_of_day(record.time_us);
    let TraceRecord { worker, interface, verdict, before, .. } = record;
    let way = match &record.interface_out {
        Some(interface_out) => format!("{interface} > {interface_out}"),
        None => interface.clone(),
    };
    let mark = if record.kind == VerdictKind::Dropped { "dropped: " } else { "" };
    let mut line = format!("{time} w{worker} {way} [{mark}{verdict}] {before}");
    if let Some(after) = &record.after {
        line.push_str(" => ");
        line.push_str(after);
    }
    if let Some(origin) = &record.origin {
        line.push_str(&format!(" (asked for by {origin})"));
    }
    write_plain(out, &line)?;
    let steps = record.steps.iter().filter(|_| steps);
    steps
        .map(|step| format!("    {}: {} ({})", step.step, step.decision, step.detail))
        .try_for_each(|line| write_plain(out, &line))
}
