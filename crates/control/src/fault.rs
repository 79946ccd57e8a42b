//! An error in the form that all Natrix errors have.

use core::fmt;

use serde::Deserialize;
use serde::Serialize;

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
        write!(f, "{}: {}", self.object, self.problem)?;
        if let Some(seen) = &self.seen {
            write!(f, " ({seen})")?;
        }
        write!(f, "; {}", self.remedy)
    }
}

impl core::error::Error for Fault {}
