//! Changes and lookups, with their users.

use serde::Deserialize;
use serde::Serialize;

/// One change or lookup. What lasts has two records in the file, which `id` joins; lists have one
/// of them, the record of its end once there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRecord {
    /// When, RFC 3339 in UTC: when it ended, if it lasted and has ended.
    pub time: String,
    /// The user: a name of the API, or `uid 0`.
    pub who: String,
    /// Where the user came from: `control socket`, or `http` and an address.
    pub from: String,
    /// `find`, `trace`, `reload`, `rollback` or another one.
    pub action: String,
    /// What was looked up, or the configuration.
    pub subject: String,
    /// What it was for.
    #[serde(default)]
    pub case: Option<String>,
    /// What came of it. Lookups are recorded before they are answered: `found N`, `none`,
    /// `answered`, `refused: …`, `failed: …`, and for those that last, `started`, then `ended: …`.
    /// Changes: `started`, then `done`, `done: not saved: …` or `failed: …`. `not known: …`, if it
    /// is over without a record of its end. What a manager is about to set by SNMP: `asked`.
    pub result: String,
    /// Of what lasts: the same in the record of its beginning and in that of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// In the record of an end: the time of the record of its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<String>,
}
