//! The first line of each side, with its protocol version.

use serde::Deserialize;
use serde::Serialize;

use crate::fault::Fault;
use crate::text::check_case;

/// The protocol version of this crate. It increases if an older peer would misunderstand a message;
/// new fields do not change it.
pub const PROTOCOL_VERSION: u32 = 1;

/// The first line that each side sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol version of the sender. The name of the field identifies Natrix to a stray program.
    pub natrix_control: u32,
    /// Release of the sender, for display.
    pub version: String,
    /// The person a client asks for, such as a user of the API. The daemon believes it only of its
    /// own user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
}

/// The user that asks, for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Name of the user.
    pub who: String,
    /// Where the user comes from.
    pub from: String,
    /// What the request is for, such as the number of a case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<String>,
}

impl Actor {
    /// Checks the case, which is one line of plain text. The record of the audit log has all of it.
    ///
    /// # Errors
    /// It has control characters or is too long.
    pub fn check_case(&self) -> Result<(), Fault> {
        self.case.as_deref().map_or(Ok(()), check_case)
    }
}

impl Hello {
    /// The hello of this build; `version` is the release of the program.
    pub fn new(version: &str) -> Hello {
        Hello { natrix_control: PROTOCOL_VERSION, version: version.to_owned(), actor: None }
    }

    /// True if the sender speaks the version of this build.
    pub fn speaks_our_version(&self) -> bool {
        self.natrix_control == PROTOCOL_VERSION
    }
}
