//! `natrix drain`.

use std::io::Write;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use control::Announcement;
use control::ClientError;
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
/// Looks in a row without a packet: two seconds.
const QUIET_LOOKS: u32 = 4;

/// Runs `drain`.
pub(crate) fn drain(arguments: &Drain, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let mut client = connect(&arguments.output.socket)?;
    let request = Request::Drain(control::Drain { undo: arguments.undo });
    let mut drained: Drained = client.request_one(&request)?;
    let seconds = arguments.wait.unwrap_or_default();
    let wait = Duration::from_secs(seconds.into());
    let begun = Instant::now();
    let (mut quiet, mut is_told) = (0, false);
    let mut forwarded = None;
    // Flows may pause for longer than seems quiet.
    let is_done = |quiet: u32, sessions: Option<u64>| match arguments.until {
        DrainUntil::Quiet => quiet >= QUIET_LOOKS,
        DrainUntil::Empty => quiet >= QUIET_LOOKS && sessions == Some(0),
    };
    while begun.elapsed() < wait && !is_done(quiet, drained.sessions) {
        if !arguments.output.json && !is_told {
            let what = match arguments.until {
                DrainUntil::Quiet => "the traffic to leave",
                DrainUntil::Empty => "all sessions to end",
            };
            writeln!(notes, "{}; waiting up to {} s for {what}", state(&drained), seconds)?;
            is_told = true;
        }
        // A worker may be silent for a while.
        let status: Result<Status, String> = match client.request_one(&Request::Status) {
            Ok(status) => Ok(status),
            Err(ClientError::Refused(silent)) => Err(format!("{} {}", silent.object, silent.problem)),
            Err(error) => return Err(error.into()),
        };
        note(&mut drained, status.as_ref());
        // The rate is cut down to whole packets a second, so single packets are missing from it.
        let before = core::mem::replace(&mut forwarded, status.as_ref().ok().map(|status| status.packets_forwarded));
        let is_quiet = drained.packets_per_second == Some(0) && forwarded.is_some() && forwarded == before;
        quiet = if is_quiet { quiet + 1 } else { 0 };
        if let Some(announcement) = status.ok().and_then(|status| status.announcement) {
            if announcement.drained_us.is_none() {
                let remedy = "run natrix audit to see which user did it";
                return Err(Fault::new("drain", "was undone while it waited", remedy).into());
            }
            drained.announcement = announcement;
        }
        if !is_done(quiet, drained.sessions) {
            thread::sleep(LOOK_INTERVAL.min(wait.saturating_sub(begun.elapsed())));
        }
    }
    if arguments.output.json {
        json_line(&drained, out)?;
    } else {
        writeln!(out, "{}", state(&drained))?;
        writeln!(out, "{}: {}", if drained.drained { "left" } else { "now" }, left(&drained))?;
    }
    if wait.is_zero() {
        return Ok(());
    }
    if let Some(unknown) = drained.unknown {
        let remedy = "wait again, or see the log of natrix run";
        return Err(Fault::new("drain", "what is left is not known", remedy).seen(unknown).into());
    }
    if quiet < QUIET_LOOKS {
        let seen = match drained.packets_per_second.unwrap_or_default() {
            0 => format!("a packet in the last 2 s of {} s", seconds),
            packets => format!("{} a second after {} s", human::counted(packets, "packet"), seconds),
        };
        let remedy = "wait longer: established flows still come by a shorter prefix; without one, check that the \
                      neighbours have withdrawn the pools";
        return Err(Fault::new("drain", "traffic has not left", remedy).seen(seen).into());
    }
    let sessions = drained.sessions.unwrap_or_default();
    if arguments.until == DrainUntil::Empty && sessions > 0 {
        let seen = format!("{} after {} s", human::counted(sessions, "session"), begun.elapsed().as_secs());
        let remedy = "wait longer; natrix show sessions lists them; a stop of Natrix ends them";
        return Err(Fault::new("drain", "sessions are left", remedy).seen(seen).into());
    }
    Ok(())
}

/// Takes over what is left, or why that is not known.
fn note(drained: &mut Drained, status: Result<&Status, &String>) {
    let count = |of: fn(&Status) -> u64| status.ok().map(of);
    drained.subscribers = count(|status| status.subscribers);
    drained.mappings = count(|status| status.mappings);
    drained.sessions = count(|status| status.sessions);
    drained.packets_per_second = count(|status| status.packets_per_second);
    drained.unknown = status.err().cloned();
}

fn left(drained: &Drained) -> String {
    if let Some(unknown) = &drained.unknown {
        return format!("not known, because {unknown}");
    }
    let count = |count: Option<u64>, what: &str| human::counted(count.unwrap_or_default(), what);
    format!(
        "{} a second, {}, {}, {}",
        count(drained.packets_per_second, "packet"),
        count(drained.subscribers, "subscriber"),
        count(drained.mappings, "mapping"),
        count(drained.sessions, "session"),
    )
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
        (None, _) => {
            let plural = if *prefixes == 1 { "" } else { "es" };
            format!("pools: {prefixes} prefix{plural} announced")
        }
        (Some(Withheld::Drained), Some(micros)) => {
            format!("pools: not announced, drained for {}", human::duration(*micros))
        }
        (Some(why), _) => format!("pools: not announced, {}", why.reason()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_worker_leaves_unknown_what_is_left() {
        let announcement = Announcement { prefixes: 0, withheld: Some(Withheld::Drained), drained_us: Some(1_000) };
        let mut drained = Drained {
            drained: true,
            changed: true,
            announcement,
            subscribers: Some(2),
            mappings: Some(3),
            sessions: Some(4),
            packets_per_second: Some(0),
            unknown: None,
        };
        assert_eq!(left(&drained), "0 packets a second, 2 subscribers, 3 mappings, 4 sessions");
        let of_one = Drained { packets_per_second: Some(1), sessions: Some(1), ..drained.clone() };
        assert_eq!(left(&of_one), "1 packet a second, 2 subscribers, 3 mappings, 1 session");
        note(&mut drained, Err(&"worker 1 does not answer".to_owned()));
        assert_eq!(left(&drained), "not known, because worker 1 does not answer");
        assert_eq!((drained.sessions, drained.packets_per_second), (None, None), "no number that means nothing");
    }
}
