//! An error in the form that all Natrix errors have.

use core::fmt;

use serde::Deserialize;
use serde::Serialize;

use crate::text::escaped;

/// One error: `<object>: <what is wrong> (<value seen>); <what to do>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fault {
    /// The subject: `pool "a"`, `request`, a path.
    pub object: String,
    /// The problem.
    pub problem: String,
    /// The wrong value, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// The remedy.
    pub remedy: String,
}

impl Fault {
    /// A fault without a value.
    pub fn new(object: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Fault {
        Fault { object: object.into(), problem: problem.into(), seen: None, remedy: remedy.into() }
    }

    /// Adds the value that was seen.
    #[must_use]
    pub fn seen(mut self, value: impl Into<String>) -> Fault {
        self.seen = Some(value.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names of clients and files are in all of them; a newline would begin a line of its own.
        write!(f, "{}: {}", escaped(&self.object), escaped(&self.problem))?;
        if let Some(seen) = &self.seen {
            write!(f, " ({})", escaped(seen))?;
        }
        write!(f, "; {}", escaped(&self.remedy))
    }
}

impl core::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_one_line_whatever_its_names_are() {
        let fault = Fault::new("pool \"a\nforged\"", "is\rwrong", "write\u{1b}[2J another").seen("b\u{2028}c");
        let text = fault.to_string();
        assert_eq!(text, "pool \"a\\nforged\": is\\rwrong (b\\u{2028}c); write\\u{1b}[2J another");
        // A part of another fault is not escaped twice.
        assert!(Fault::new("x", text.as_str(), "y").to_string().contains(&text));
    }
}
