//! Times of day in UTC in the format of RFC 3339: `2026-11-21T19:30:00.123456Z`.
//!
//! Days of the Gregorian calendar are counted in cycles of 400 years. Years start in March, so that
//! the leap day is the last day of its year. There are no leap seconds, as in the clock of the
//! system.

const DAY_SECONDS: u64 = 86_400;
/// Days of 400 years.
const ERA_DAYS: i64 = 146_097;
/// Days from 1 March of the year 0 to 1 January 1970.
const EPOCH_DAYS: i64 = 719_468;

/// The text of successive times. It keeps the part that is the same for a second.
#[derive(Clone, Debug)]
pub(crate) struct UtcText {
    second: u64,
    text: [u8; 27],
}

impl Default for UtcText {
    fn default() -> UtcText {
        let mut text = UtcText { second: 0, text: *b"1970-01-01T00:00:00.000000Z" };
        text.set_second(0);
        text
    }
}

impl UtcText {
    /// The text of `unix_us` µs since 1970.
    pub(crate) fn of(&mut self, unix_us: u64) -> &[u8; 27] {
        let second = unix_us / 1_000_000;
        if second != self.second {
            self.set_second(second);
        }
        let mut micros = unix_us % 1_000_000;
        for digit in self.text[20..26].iter_mut().rev() {
            *digit = b'0' + (micros % 10) as u8;
            micros /= 10;
        }
        &self.text
    }

    fn set_second(&mut self, second: u64) {
        self.second = second;
        let (year, month, day) = date_of_day((second / DAY_SECONDS) as i64);
        let of_day = second % DAY_SECONDS;
        let mut put = |place: usize, width: usize, mut value: u64| {
            for digit in self.text[place..place + width].iter_mut().rev() {
                *digit = b'0' + (value % 10) as u8;
                value /= 10;
            }
        };
        put(0, 4, year as u64);
        put(5, 2, month);
        put(8, 2, day);
        put(11, 2, of_day / 3_600);
        put(14, 2, of_day / 60 % 60);
        put(17, 2, of_day % 60);
    }
}

/// `unix_us` µs since 1970 as `2026-11-21T19:30:00.123456Z`.
pub fn utc_text(unix_us: u64) -> String {
    UtcText::default().of(unix_us).iter().map(|byte| char::from(*byte)).collect()
}

/// Year, month and day, from days after 1 January 1970.
fn date_of_day(day: i64) -> (i64, u64, u64) {
    let day = day + EPOCH_DAYS;
    let (era, of_era) = (day.div_euclid(ERA_DAYS), day.rem_euclid(ERA_DAYS));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Five months from March on have 153 days.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + carry, month as u64, day as u64)
}

/// Days from 1 January 1970 to this date.
fn day_of_date(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH_DAYS
}

/// A text that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a time (\"{0}\"); write it as 2026-11-21T19:30:00Z, with a fraction of a second or another offset such as +01:00 where there is one"
)]
pub struct UtcParseError(pub String);

/// Parses a time in the format of RFC 3339, with `Z` or an offset, to µs since 1970. A blank may
/// replace the `T`. Digits of a fraction beyond the sixth are dropped.
///
/// # Errors
/// [`UtcParseError`] if it is not a time, or before 1970.
pub fn parse_utc(text: &str) -> Result<u64, UtcParseError> {
    parse(text.as_bytes()).ok_or_else(|| UtcParseError(text.to_owned()))
}

fn parse(text: &[u8]) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, digit| n * 10 + i64::from(digit - b'0')))
    };
    let is = |place: usize, allowed: &[u8]| text.get(place).is_some_and(|byte| allowed.contains(byte));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let date = day_of_date(year, month, day);
    // A date that does not exist converts to another one.
    if date_of_day(date) != (year, month as u64, day as u64) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = 19;
    let mut micros = 0;
    if is(rest, b".") {
        let digits = text.get(rest + 1..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        let kept = digits.min(6);
        micros = number(rest + 1, rest + 1 + kept)? * 10_i64.pow(6 - kept as u32);
        rest += 1 + digits;
    }
    let offset_minutes = match text.get(rest)? {
        b'Z' | b'z' if text.len() == rest + 1 => 0,
        sign @ (b'+' | b'-') if text.len() == rest + 6 && is(rest + 3, b":") => {
            let (hours, minutes) = (number(rest + 1, rest + 3)?, number(rest + 4, rest + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let seconds = date * DAY_SECONDS as i64 + hour * 3_600 + (minute - offset_minutes) * 60 + second;
    u64::try_from(seconds * 1_000_000 + micros).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_have_their_known_text() {
        for (unix_us, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (951_868_800_000_001, "2000-03-01T00:00:00.000001Z"),
            (1_795_289_400_123_456, "2026-11-21T19:30:00.123456Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(utc_text(unix_us), text);
            assert_eq!(parse_utc(text), Ok(unix_us));
        }
    }

    #[test]
    fn every_day_of_five_hundred_years_comes_back() {
        let mut text = UtcText::default();
        for day in 0..500 * 365 {
            let unix_us = day * DAY_SECONDS * 1_000_000 + 86_399_000_007;
            let written = String::from_utf8(text.of(unix_us).to_vec()).unwrap();
            assert_eq!(parse_utc(&written), Ok(unix_us), "{written}");
        }
    }

    #[test]
    fn offsets_fractions_and_blanks_are_understood() {
        let expected = Ok(1_795_289_400_500_000);
        for text in ["2026-11-21T19:30:00.5Z", "2026-11-21 20:30:00.5+01:00", "2026-11-21t14:00:00.5000009-05:30"] {
            assert_eq!(parse_utc(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_an_example() {
        for text in [
            "",
            "now",
            "2026-11-21",
            "2026-11-21T19:30:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T19:30:00.Z",
            "2026-11-21T19:30:00Zx",
            "2026-11-21T19:30:00+1:00",
            "1969-12-31T23:59:59Z",
        ] {
            let error = parse_utc(text).unwrap_err();
            assert!(error.to_string().contains("2026-11-21T19:30:00Z"), "{text}");
        }
    }
}
