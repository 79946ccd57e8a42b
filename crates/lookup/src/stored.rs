//! Prints what the log says about a time, its store or its lines.

use core::fmt;
use std::io;
use std::io::Write;

use control::escaped;
use export::store::Found;
use export::store::Holder;
use export::store::Question;
use export::store::Until;
use export::utc_text;
use serde_json::Value;
use serde_json::json;

/// Prints an answer: with `json` an object for each holder, then one that says whether the records
/// of the time are complete; else sentences, with the limits of the answer to `notes`. `others` are
/// holders that were printed before.
///
/// # Errors
/// Writing failed.
pub fn print(
    question: &Question,
    found: &Found,
    others: usize,
    json: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> io::Result<Outcome> {
    let outcome = Outcome { holders: found.holders.len() + others, is_complete: found.is_complete };
    if json {
        for holder in &found.holders {
            let mut holder = object(holder);
            holder["by_formula_alone"] = Value::Bool(false);
            writeln!(out, "{holder}")?;
        }
        let complete = json!({ "complete": found.is_complete, "notes": found.notes, "reads": found.reads });
        writeln!(out, "{complete}")?;
        return Ok(outcome);
    }
    for holder in &found.holders {
        writeln!(out, "{}", escaped(&sentence(holder)))?;
    }
    let port = question.port.map(|port| format!(":{port}")).unwrap_or_default();
    let (asked, from) = (format!("{}{port}", address_of(question)), utc_text(question.from_us));
    let is_moment = question.to_us <= question.from_us;
    let at = if is_moment { format!("at {from}") } else { format!("from {from} to {}", utc_text(question.to_us)) };
    match (found.holders.is_empty() && others == 0, found.is_complete) {
        (true, true) => writeln!(out, "nobody held {asked} {at}; the records of that time are complete")?,
        (true, false) => writeln!(out, "no holder of {asked} {at} found, but the records are not complete")?,
        (false, true) => writeln!(out, "the records of that time are complete")?,
        (false, false) => writeln!(out, "the records of that time are not complete: others may have held {asked}")?,
    }
    found.notes.iter().try_for_each(|note| writeln!(notes, "note: {}", escaped(note)))?;
    Ok(outcome)
}

/// What came of a lookup of an earlier time, in the words of the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Those who had the endpoint.
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

/// What was asked about, as text.
fn address_of(question: &Question) -> String {
    match question.host {
        None => question.address.to_string(),
        Some(host) if question.port.is_some() => format!("[{host}]"),
        Some(host) => host.to_string(),
    }
}

fn sentence(holder: &Holder) -> String {
    let Holder { what, subscriber, protocol, external, first_port, last_port, .. } = holder;
    let had = if holder.is_certain { "had" } else { "may have had" };
    let protocol = protocol.map(|protocol| format!("{} ", protocol.name())).unwrap_or_default();
    let ports = if first_port == last_port { first_port.to_string() } else { format!("{first_port}-{last_port}") };
    let internal = holder.internal_port.map(|port| format!(", internal port {port}")).unwrap_or_default();
    let remote = holder.remote.map(|(address, port)| format!(", towards {address}:{port}")).unwrap_or_default();
    let pool = holder.pool_name.as_ref().map(|pool| format!(", pool {pool}")).unwrap_or_default();
    let until = match holder.until {
        Until::Open => "until after the last record".to_owned(),
        Until::Ended(until) => format!("until {}", utc_text(until)),
        Until::Restart(until) => format!("at most until the restart at {}", utc_text(until)),
        Until::Lost(until) => format!("at most until {} (the record of its end was lost)", utc_text(until)),
    };
    let (what, since, realm) = (what.name(), utc_text(holder.since_us), realm_of(holder));
    format!(
        "subscriber {subscriber} of realm {realm} {had} {protocol}{external}:{ports} ({what}{internal}{remote}{pool}) since \
         {since} {until}"
    )
}

/// The name of a holder's realm, or its number.
pub fn realm_of(holder: &Holder) -> String {
    holder.vrf.clone().unwrap_or_else(|| holder.realm.to_string())
}

/// A holder as JSON, with the fields of the answers from lines.
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
