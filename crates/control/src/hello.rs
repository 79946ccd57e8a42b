//! The first line of each side: which protocol it speaks.

use serde::Deserialize;
use serde::Serialize;

/// Version of the protocol this crate speaks. It grows when an old peer would misunderstand; new fields do not change it.
pub const PROTOCOL_VERSION: u32 = 1;

/// The first line each side sends, before anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol version of the sender. The field's name tells a stray program what it has connected to.
    pub natrix_control: u32,
    /// Release of the sender, for people.
    pub version: String,
}

impl Hello {
    /// The hello of this build; `version` is the release of the program that speaks.
    pub fn new(version: &str) -> Hello {
        Hello { natrix_control: PROTOCOL_VERSION, version: version.to_owned() }
    }

    /// Whether the two sides understand each other.
    pub fn speaks_our_version(&self) -> bool {
        self.natrix_control == PROTOCOL_VERSION
    }
}
