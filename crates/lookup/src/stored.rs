//! What the log says about a time, from its store or its lines.

use core::fmt;

use export::store::Holder;
use export::store::Until;
use export::utc_text;
use serde_json::Value;
use serde_json::json;

/// Result of a lookup of an earlier time, as in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of holders.
    pub holders: usize,
    /// No records of that time are missing.
    pub is_complete: bool,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holders {
            0 => f.write_str("none")?,
            count => write!(f, "found {count}")?,
        }
        f.write_str(if self.is_complete { "" } else { "; the records are not complete" })
    }
}

/// The name of a holder's realm, or its number.
pub fn realm_of(holder: &Holder) -> String {
    holder.vrf.clone().unwrap_or_else(|| holder.realm.to_string())
}

/// With the fields of the answers from lines.
pub fn object(holder: &Holder) -> Value {
    let (until, ended_by_restart) = match holder.until {
        Until::Open => (None, false),
        Until::Ended(until) | Until::Lost(until) => (Some(utc_text(until)), false),
        Until::Restart(until) => (Some(utc_text(until)), true),
    };
    json!({
        "what": holder.what.name(),
        "realm": realm_of(holder),
        "pool": holder.pool_name,
        "subscriber": holder.subscriber.address_text(),
        "inner_address": holder.subscriber.inner(),
        "protocol": holder.protocol.map(|protocol| protocol.name()),
        "internal_port": holder.internal_port,
        "external_address": holder.external,
        "first_port": holder.first_port,
        "last_port": holder.last_port,
        "remote_address": holder.remote.map(|(address, _)| address),
        "remote_port": holder.remote.map(|(_, port)| port),
        "since": utc_text(holder.since_us),
        "since_exact": holder.is_since_exact,
        "until": until,
        "until_exact": matches!(holder.until, Until::Ended(_)),
        "ended_by_restart": ended_by_restart,
        "certain": holder.is_certain,
    })
}
