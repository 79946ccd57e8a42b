//! A fault of a configuration file: where, what, and what to do about it.

use std::fmt;
use std::fmt::Write as _;

use serde::Serialize;

/// One thing wrong with a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The file, as the caller named it.
    pub file: String,
    /// Line of the file, counted from 1; none when the fault is something missing from the file as
    /// a whole.
    pub line: Option<u32>,
    /// What is at fault, as a path into the file: `pool "a".addresses[2]`. Empty when it is the
    /// file itself.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// The value seen; empty when there is none.
    pub seen: String,
    /// What to do.
    pub remedy: String,
}

impl Fault {
    /// `FILE:LINE: OBJECT: PROBLEM (SEEN); REMEDY`, on one line.
    pub fn sentence(&self) -> String {
        self.to_string().split_off(ERROR.len())
    }
}

const ERROR: &str = "error: ";

impl fmt::Display for Fault {
    /// `error: FILE:LINE: OBJECT: PROBLEM (SEEN); REMEDY`: the form of all errors of the command
    /// line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ERROR}{}", OneLine(&self.file))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.object.is_empty() {
            write!(f, ": {}", OneLine(&self.object))?;
        }
        write!(f, ": {}", OneLine(&self.problem))?;
        if !self.seen.is_empty() {
            write!(f, " ({})", OneLine(&self.seen))?;
        }
        write!(f, "; {}", OneLine(&self.remedy))
    }
}

/// A text in which what would change the terminal, end the line, or show letters in another order
/// is written as in Rust (`\u{1b}`).
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_unsafe = |c: char| {
            c.is_control()
                || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        self.0.chars().try_for_each(|c| match is_unsafe(c) {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

impl std::error::Error for Fault {}

/// Something that works, but perhaps not as meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Warning(pub Fault);

impl fmt::Display for Warning {
    /// As a fault, with another first word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        write!(f, "warning{}", text.strip_prefix("error").unwrap_or(&text))
    }
}
