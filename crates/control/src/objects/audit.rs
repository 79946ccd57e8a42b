//! Who changed or looked up what.

use serde::Deserialize;
use serde::Serialize;

/// One change or lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRecord {
    /// When, RFC 3339 in UTC.
    pub time: String,
    /// The user: a name of the API, or `uid 0`.
    pub who: String,
    /// Where the user came from: `control socket`, or `http` and an address.
    pub from: String,
    /// `find`, `trace`, `reload` or `rollback`.
    pub action: String,
    /// What was looked up, or the configuration.
    pub subject: String,
    /// What it was for.
    #[serde(default)]
    pub case: Option<String>,
    /// What came of it. Lookups are recorded before they are answered: `found N`, `none`,
    /// `answered`, `refused: …`, `failed: …`, and for those that last, `started` and `ended: …`.
    /// Changes: `done`, `done: not saved: …` or `failed: …`. What a manager is about to set by
    /// SNMP: `asked`.
    pub result: String,
}
