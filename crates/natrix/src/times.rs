//! Times of the command line: with an offset, in the zone of this machine, or relative to now.

use control::Fault;
use export::parse_utc;
use export::utc_text;
use jiff::Span;
use jiff::Zoned;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// A time: a moment, or the span that a time with fewer digits means. `21:04:17` is that whole
/// second and `21:04:17.4` that tenth, for most programs cut the digits they do not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    /// The first moment, µs since 1970.
    pub(crate) from_us: u64,
    /// The last one.
    pub(crate) to_us: u64,
}

/// Digits of a fraction that names a microsecond.
const DIGITS_MAX: usize = 6;

/// Microseconds of a time with so many digits of a fraction.
fn width_us(digits: usize) -> u64 {
    10_u64.pow(DIGITS_MAX.saturating_sub(digits) as u32)
}

impl Time {
    fn moment(unix_us: u64) -> Time {
        Time { from_us: unix_us, to_us: unix_us }
    }

    /// The time in words: at a moment or in a second, or from one moment to another.
    pub(crate) fn when(self) -> String {
        match self.at() {
            Some(at) => format!("at {at}"),
            None => format!("from {} to {}", utc_text(self.from_us), utc_text(self.to_us)),
        }
    }

    /// The shortest text that [`read`] reads as this time; None if there is none.
    pub(crate) fn at(self) -> Option<String> {
        let width = self.to_us.checked_sub(self.from_us)? + 1;
        let digits = (0..=DIGITS_MAX).find(|&digits| width_us(digits) == width)?;
        if !self.from_us.is_multiple_of(width) {
            return None;
        }
        let mut text = utc_text(self.from_us);
        // The second, a point and the digits.
        text.truncate(SECOND_LENGTH + if digits == 0 { 0 } else { 1 + digits });
        text.push('Z');
        Some(text)
    }
}

/// Reads a time. `object` is the argument it was given as.
pub(crate) fn read(object: &str, text: &str) -> Result<Time, Fault> {
    let mut now = Zoned::now();
    // Without a zone at all, a machine keeps UTC. One that is named and not known is a mistake.
    if now.time_zone().is_unknown() && std::env::var_os("TZ").is_none_or(|zone| zone.is_empty()) {
        now = now.with_time_zone(TimeZone::UTC);
    }
    parse_at(text, &now).map_err(|problem| {
        let remedy = "use 2026-11-21T19:30:00Z, an offset such as +01:00, 2026-11-21 19:30:00 for this machine's zone, \
                      or \"2 min ago\"";
        Fault::new(object, problem, remedy).seen(format!("\"{text}\""))
    })
}

/// True of words that mean another time when they are read again.
pub(crate) fn is_relative(text: &str) -> bool {
    text == "now" || text.ends_with("ago")
}

/// The same at a moment and in its zone.
fn parse_at(text: &str, now: &Zoned) -> Result<Time, &'static str> {
    const NOT_A_TIME: &str = "not a time";
    let unix_us = |zoned: &Zoned| u64::try_from(zoned.timestamp().as_microsecond()).map_err(|_| "a time before 1970");
    if is_relative(text) {
        let span: Span = if text == "now" { Ok(Span::new()) } else { text.parse() }.map_err(|_| NOT_A_TIME)?;
        return unix_us(&now.checked_add(span).map_err(|_| NOT_A_TIME)?).map(Time::moment);
    }
    let (day, of_day) = text.split_at_checked(10).ok_or(NOT_A_TIME)?;
    if of_day.is_empty() && day.bytes().filter(u8::is_ascii_digit).count() == 8 {
        return Err("a date without a time of day");
    }
    let from_us = match parse_utc(text) {
        Ok(unix_us) => unix_us,
        Err(_) => {
            // Only what has no offset: the others were understood above.
            let of_day = of_day.strip_prefix(['T', 't', ' ']).ok_or(NOT_A_TIME)?;
            if !of_day.bytes().all(|byte| byte.is_ascii_digit() || b":.".contains(&byte)) {
                return Err(NOT_A_TIME);
            }
            if of_day.len() == 5 && of_day.contains(':') {
                return Err("a time without seconds");
            }
            // Not the short forms of ISO 8601.
            if of_day.get(2..3) != Some(":") || of_day.get(5..6) != Some(":") {
                return Err(NOT_A_TIME);
            }
            let local: DateTime = format!("{day}T{of_day}").parse().map_err(|_| NOT_A_TIME)?;
            unix_us(&local_time(local, now.time_zone())?)?
        }
    };
    if text.get(SECOND_LENGTH - 2..SECOND_LENGTH) == Some("60") {
        return Err("a leap second, which the clock of a log never shows; ask about the second before or after it");
    }
    let fraction = text.get(SECOND_LENGTH..).and_then(|rest| rest.strip_prefix('.'));
    let digits = fraction.map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    Ok(Time { from_us, to_us: from_us.saturating_add(width_us(digits) - 1) })
}

/// Length of a time without a fraction or a zone.
const SECOND_LENGTH: usize = "2026-11-21T19:30:00".len();

/// A time of a zone, unless its clocks showed it twice or never.
fn local_time(local: DateTime, zone: &TimeZone) -> Result<Zoned, &'static str> {
    if zone.is_unknown() {
        return Err("a time of this machine's zone, and the zone in the variable TZ is not known");
    }
    let found = zone.to_ambiguous_zoned(local);
    found.unambiguous().map_err(|_| "a time that the clocks of this zone showed twice, or never")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Time, &'static str> {
        // A zone of its own, without the system's database: Central European Time.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let now: jiff::Timestamp = "2026-05-03T19:04:17Z".parse().unwrap();
        parse_at(text, &now.to_zoned(zone))
    }

    #[test]
    fn each_way_to_write_a_time_is_the_same_time() {
        let moment = parse_utc("2026-05-03T19:04:17Z").unwrap();
        let second = Time { from_us: moment, to_us: moment + 999_999 };
        for text in [
            "2026-05-03T21:04:17+02:00",
            "2026-05-03 17:04:17-02:00",
            "2026-05-03 21:04:17",
            "2026-05-03T21:04:17",
            "2026-05-03T19:04:17Z",
        ] {
            assert_eq!(of(text), Ok(second), "{text}");
        }
        for (text, from_us, width_us) in [
            ("2026-05-03 21:04:17.0", moment, 100_000),
            ("2026-05-03T19:04:17.000Z", moment, 1_000),
            ("2026-05-03T19:04:17.441Z", moment + 441_000, 1_000),
            ("2026-05-03T21:04:17.25+02:00", moment + 250_000, 10_000),
            ("2026-05-03 21:04:17.25", moment + 250_000, 10_000),
            ("2026-05-03T19:04:17.44176Z", moment + 441_760, 10),
        ] {
            assert_eq!(of(text), Ok(Time { from_us, to_us: from_us + width_us - 1 }), "{text}");
        }
        for (text, unix_us) in [
            ("now", moment),
            ("2026-05-03T19:04:17.000000Z", moment),
            ("2026-05-03T19:04:17.441760Z", moment + 441_760),
            // What is finer than a microsecond.
            ("2026-05-03 21:04:17.441760123", moment + 441_760),
            ("2 min ago", moment - 120_000_000),
            ("90 s ago", moment - 90_000_000),
            ("1 day 2 h ago", moment - 93_600_000_000),
        ] {
            assert_eq!(of(text), Ok(Time::moment(unix_us)), "{text}");
        }
        let millisecond = Time { from_us: moment + 441_000, to_us: moment + 441_999 };
        assert_eq!(millisecond.at().unwrap(), "2026-05-03T19:04:17.441Z");
        for time in [second, millisecond, Time::moment(moment), Time::moment(moment + 7)] {
            assert_eq!(of(&time.at().unwrap()), Ok(time));
        }
        assert_eq!(Time { from_us: 1, to_us: 1_000_000 }.at(), None);
        assert_eq!(
            Time { from_us: 0, to_us: 1 }.when(),
            "from 1970-01-01T00:00:00.000000Z to 1970-01-01T00:00:00.000001Z"
        );
    }

    #[test]
    fn what_is_no_time_or_two_is_refused() {
        // The clocks went from 3:00 to 2:00, and on another day from 2:00 to 3:00.
        assert!(of("2026-10-25 02:30:00").unwrap_err().contains("twice"));
        assert!(of("2026-03-29 02:30:00").unwrap_err().contains("never"));
        assert_eq!(of("2026-05-03"), Err("a date without a time of day"));
        assert_eq!(of("2026-05-03 21:04"), Err("a time without seconds"));
        assert!(of("2026-05-03T19:04:60Z").unwrap_err().starts_with("a leap second"));
        // A zone that is not known hinders only what needs one.
        let now: jiff::Timestamp = "2026-05-03T19:04:17Z".parse().unwrap();
        let nowhere = now.to_zoned(TimeZone::unknown());
        assert!(parse_at("2026-05-03 21:04:17", &nowhere).unwrap_err().contains("TZ"));
        for text in ["2026-05-03T19:04:17Z", "2026-05-03 21:04:17+02:00", "2 min ago"] {
            assert!(parse_at(text, &nowhere).is_ok(), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "20260503T210417",
            "2026-05-03T210417.25",
            "2026-05-03T21",
            "2026-05-03Z",
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
