//! Text for people: what clients and configurations choose (which is refused, and how to print the
//! rest), and numbers.

use std::borrow::Cow;

use crate::fault::Fault;

/// Longest case of a request, in bytes.
pub const CASE_BYTES_MAX: usize = 1_024;

/// Checks a case, which is one line of plain text. The audit log has all of it.
///
/// # Errors
/// It has control characters or is longer than [`CASE_BYTES_MAX`].
pub fn check_case(case: &str) -> Result<(), Fault> {
    if case.contains(is_unsafe) {
        return Err(Fault::new("case", "has control characters", "write one line of plain text"));
    }
    if case.len() > CASE_BYTES_MAX {
        let remedy = format!("write at most {CASE_BYTES_MAX} bytes");
        return Err(Fault::new("case", "is too long", remedy).seen(format!("{} bytes", case.len())));
    }
    Ok(())
}

/// A text without what would change the terminal, end the row, or show letters in another order:
/// such characters, and the backslash that escapes them, are written as in Rust (`\n`, `\u{1b}`).
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_unsafe(letter) || letter == '\\' {
            result.extend(letter.escape_default());
        } else {
            result.push(letter);
        }
    }
    Cow::Owned(result)
}

/// A count with separators: `1,234,567`. Ports, MTUs and other numbers that are looked up or typed
/// are written without.
pub fn count_text(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count and a noun: `1 session`, `1,234 sessions`, `2 addresses`.
pub fn counted(number: u64, what: &str) -> String {
    let ending = if what.ends_with('s') { "es" } else { "s" };
    format!("{} {what}{}", count_text(number), if number == 1 { "" } else { ending })
}

/// A length of time in two units at most: `250us`, `1.5s`, `4m58s`, `2h04m`, `3d04h`.
pub fn duration_text(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match micros {
        0 => "0s".to_owned(),
        1..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{}ms", micros / 1_000),
        1_000_000..60_000_000 => format!("{seconds}.{}s", micros / 100_000 % 10),
        _ if hours == 0 => format!("{minutes}m{:02}s", seconds % 60),
        _ if days == 0 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Three digits and a decimal prefix: `612.3 M`, `81.2 k`, `950`.
pub fn scaled_text(number: f64) -> String {
    let number = if number.is_finite() { number.max(0.0) } else { 0.0 };
    let (scale, prefix) = match number {
        n if n >= 999_950_000_000.0 => (1e12, " T"),
        n if n >= 999_950_000.0 => (1e9, " G"),
        n if n >= 999_950.0 => (1e6, " M"),
        n if n >= 9_999.5 => (1e3, " k"),
        n => return format!("{n:.0}"),
    };
    format!("{:.1}{prefix}", number / scale)
}

/// A scaled number and its unit: `612.3 Mbit/s`, `950 bit/s`, `950/s`.
pub fn with_unit(number: f64, unit: &str) -> String {
    let number = scaled_text(number);
    let joins = unit.starts_with('/') || number.contains(' ');
    format!("{number}{}{unit}", if joins { "" } else { " " })
}

/// True for control characters, the ends of lines and paragraphs, and the marks that turn the
/// direction of letters (Unicode Standard Annex #9 §2).
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_show_two_units_at_most() {
        let second = 1_000_000;
        for (micros, text) in [
            (0, "0s"),
            (250, "250us"),
            (999_999, "999ms"),
            (1_500_000, "1.5s"),
            (59_999_999, "59.9s"),
            (298 * second, "4m58s"),
            (3_599 * second, "59m59s"),
            (7_440 * second, "2h04m"),
            (93_784 * second, "1d02h"),
        ] {
            assert_eq!(duration_text(micros), text);
        }
    }

    #[test]
    fn scaled_numbers_never_show_a_thousand_of_a_unit() {
        for (number, text) in [
            (0.0, "0"),
            (9_999.0, "9999"),
            (81_234.0, "81.2 k"),
            (999_949.0, "999.9 k"),
            (999_999.0, "1.0 M"),
            (612_345_678.0, "612.3 M"),
            (40e9, "40.0 G"),
            (f64::NAN, "0"),
        ] {
            assert_eq!(scaled_text(number), text);
        }
    }

    #[test]
    fn counts_have_a_separator_every_three_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(count_text(number), text);
        }
    }
}
