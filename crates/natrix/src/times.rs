//! Times of the command line: with an offset, in the zone of this machine, or relative to now.

use cli::CliError;
use control::Fault;
use export::parse_utc;
use jiff::Span;
use jiff::Zoned;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::failure::Failure;

/// A time, µs since 1970. `object` is the argument it was given as.
pub(crate) fn parse(object: &str, text: &str) -> Result<u64, Failure> {
    read(object, text).map_err(|fault| CliError::from(fault).into())
}

/// As [`parse`].
pub(crate) fn read(object: &str, text: &str) -> Result<u64, Fault> {
    parse_at(text, &Zoned::now()).map_err(|problem| {
        let remedy = "use 2026-11-21T19:30:00Z, an offset such as +01:00, 2026-11-21 19:30:00 for this machine's zone, \
                      or \"2 min ago\"";
        Fault::new(object, problem, remedy).seen(text)
    })
}

/// The same at a moment and in its zone.
fn parse_at(text: &str, now: &Zoned) -> Result<u64, &'static str> {
    const NOT_A_TIME: &str = "not a time";
    if let Ok(unix_us) = parse_utc(text).or_else(|_| parse_utc(&text.replacen(' ', "T", 1))) {
        return Ok(unix_us);
    }
    let zoned = if text == "now" {
        now.clone()
    } else if text.ends_with("ago") {
        let span: Span = text.parse().map_err(|_| NOT_A_TIME)?;
        now.checked_add(span).map_err(|_| NOT_A_TIME)?
    } else {
        // Only what has no offset: the others were understood above.
        if text.get(10..).is_none_or(|of_day| of_day.contains(['Z', 'z', '[', '+', '-'])) {
            return Err(NOT_A_TIME);
        }
        let local: DateTime = text.parse().map_err(|_| NOT_A_TIME)?;
        local_time(local, now.time_zone())?
    };
    u64::try_from(zoned.timestamp().as_microsecond()).map_err(|_| "a time before 1970")
}

/// A time of a zone, unless its clocks showed it twice or never.
fn local_time(local: DateTime, zone: &TimeZone) -> Result<Zoned, &'static str> {
    let found = zone.to_ambiguous_zoned(local);
    found.unambiguous().map_err(|_| "a time that the clocks of this zone showed twice, or never")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<u64, &'static str> {
        // A zone of its own, without the system's database: Central European Time.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let now: jiff::Timestamp = "2026-05-03T19:04:17Z".parse().unwrap();
        parse_at(text, &now.to_zoned(zone))
    }

    #[test]
    fn each_way_to_write_a_time_is_the_same_moment() {
        let moment = parse_utc("2026-05-03T19:04:17Z").unwrap();
        for text in [
            "2026-05-03T21:04:17+02:00",
            "2026-05-03 17:04:17-02:00",
            "2026-05-03 21:04:17",
            "2026-05-03T21:04:17",
            "now",
        ] {
            assert_eq!(of(text), Ok(moment), "{text}");
        }
        assert_eq!(of("2026-05-03 21:04:17.25"), Ok(moment + 250_000));
        assert_eq!(of("2 min ago"), Ok(moment - 120_000_000));
        assert_eq!(of("90 s ago"), Ok(moment - 90_000_000));
        assert_eq!(of("1 day 2 h ago"), Ok(moment - 93_600_000_000));
    }

    #[test]
    fn what_is_no_time_or_two_is_refused() {
        // The clocks went from 3:00 to 2:00, and on another day from 2:00 to 3:00.
        assert!(of("2026-10-25 02:30:00").unwrap_err().contains("twice"));
        assert!(of("2026-03-29 02:30:00").unwrap_err().contains("never"));
        for text in [
            "",
            "yesterday",
            "2 ago",
            "ago",
            "2 min",
            "2026-13-01 00:00:00",
            "1960-01-01 00:00:00",
            "21:04:17",
            "2026-05-03 21:04:17-99:00",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
