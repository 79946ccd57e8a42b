//! `natrix drain`.

use std::io::Write;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use control::Announcement;
use control::Drained;
use control::Fault;
use control::Request;
use control::Status;
use control::Withheld;

use crate::arguments::Drain;
use crate::arguments::DrainUntil;
use crate::error::CliError;
use crate::execute::connect;
use crate::human;
use crate::output::json_line;

/// Time between two looks at the traffic.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Looks in a row without a packet. The rate is that of the last second, so one look may be too
/// early.
const QUIET_LOOKS: u32 = 4;

/// Runs `drain`.
pub(crate) fn drain(arguments: &Drain, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let mut client = connect(&arguments.output.socket)?;
    let request = Request::Drain(control::Drain { undo: arguments.undo });
    let mut drained: Drained = client.request_one(&request)?;
    let wait = Duration::from_secs(arguments.wait.into());
    let begun = Instant::now();
    let (mut quiet, mut is_told) = (0, false);
    // Flows may pause for longer than anybody would call quiet.
    let is_done = |quiet: u32, sessions: u64| match arguments.until {
        DrainUntil::Quiet => quiet >= QUIET_LOOKS,
        DrainUntil::Empty => quiet >= QUIET_LOOKS && sessions == 0,
    };
    while begun.elapsed() < wait && !is_done(quiet, drained.sessions) {
        if !arguments.output.json && !is_told {
            let what = match arguments.until {
                DrainUntil::Quiet => "the traffic to leave",
                DrainUntil::Empty => "all sessions to end",
            };
            writeln!(notes, "{}; waiting up to {} s for {what}", state(&drained), arguments.wait)?;
            is_told = true;
        }
        thread::sleep(LOOK_INTERVAL.min(wait.saturating_sub(begun.elapsed())));
        let status: Status = client.request_one(&Request::Status)?;
        quiet = if status.packets_per_second == 0 { quiet + 1 } else { 0 };
        drained.subscribers = status.subscribers;
        drained.mappings = status.mappings;
        drained.sessions = status.sessions;
        drained.packets_per_second = status.packets_per_second;
        if let Some(announcement) = status.announcement {
            if announcement.drained_us.is_none() {
                let remedy = "run natrix audit to see which user did it";
                return Err(Fault::new("drain", "was undone while it waited", remedy).into());
            }
            drained.announcement = announcement;
        }
    }
    if arguments.output.json {
        json_line(&drained, out)?;
    } else {
        writeln!(out, "{}", state(&drained))?;
        writeln!(
            out,
            "{}: {} packets a second, {} subscribers, {} mappings, {} sessions",
            if drained.drained { "left" } else { "now" },
            human::count(drained.packets_per_second),
            human::count(drained.subscribers),
            human::count(drained.mappings),
            human::count(drained.sessions),
        )?;
    }
    // A wait shorter than the quiet looks fails only if the last look saw packets.
    if !wait.is_zero() && quiet == 0 {
        let seen = format!("{} packets a second after {} s", drained.packets_per_second, arguments.wait);
        let remedy = "wait longer, or check that the neighbours have withdrawn the pools";
        return Err(Fault::new("drain", "traffic has not left", remedy).seen(seen).into());
    }
    if !wait.is_zero() && arguments.until == DrainUntil::Empty && drained.sessions > 0 {
        let seen = format!("{} sessions after {} s", human::count(drained.sessions), begun.elapsed().as_secs());
        let remedy = "wait longer; natrix show sessions lists them; a stop of Natrix ends them";
        return Err(Fault::new("drain", "sessions are left", remedy).seen(seen).into());
    }
    Ok(())
}

fn state(drained: &Drained) -> String {
    let before = match (drained.drained, drained.changed) {
        (true, true) => "drained",
        (true, false) => "already drained",
        (false, true) => "drain undone",
        (false, false) => "not drained before",
    };
    format!("{before}; {}", announcement(&drained.announcement))
}

/// Whether the pools are announced, in a few words.
pub(crate) fn announcement(announcement: &Announcement) -> String {
    let Announcement { prefixes, withheld, drained_us } = announcement;
    match (withheld, drained_us) {
        (None, _) => format!("pools: {prefixes} prefixes announced"),
        (Some(Withheld::Drained), Some(micros)) => {
            format!("pools: not announced, drained for {}", human::duration(*micros))
        }
        (Some(why), _) => format!("pools: not announced, {}", why.reason()),
    }
}
