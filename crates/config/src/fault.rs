//! A fault of a configuration file: where, what, and what to do about it.

use std::fmt;

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

impl fmt::Display for Fault {
    /// `error: FILE:LINE: OBJECT: PROBLEM (SEEN); REMEDY`: the form of all errors of the command
    /// line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.object.is_empty() {
            write!(f, ": {}", self.object)?;
        }
        write!(f, ": {}", self.problem)?;
        if !self.seen.is_empty() {
            write!(f, " ({})", self.seen)?;
        }
        write!(f, "; {}", self.remedy)
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
