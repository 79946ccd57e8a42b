//! Text for people: what clients and configurations choose (which is refused, and how to print the
//! rest), and counts.

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
