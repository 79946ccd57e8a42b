//! Prints the answer of `natrix find --at`: a table of the holders, or a JSON object for each, then
//! whether the records of that time are complete.

use std::io;
use std::io::Write;

use cli::Align::Left;
use cli::Align::Right;
use cli::Remote;
use cli::Table;
use control::escaped;
use export::store::Found;
use export::store::Holder;
use export::store::Until;
use export::utc_text;
use lookup::past::Slice;
use lookup::stored;
use serde_json::Value;
use serde_json::json;

use crate::find_at::Sifted;
use crate::times::Time;

/// What was asked.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The endpoint, and which of its holders.
    pub(crate) what: String,
    /// The remote endpoint.
    pub(crate) remote: Option<Remote>,
    /// What that decided.
    pub(crate) sifted: Sifted,
    /// The time.
    pub(crate) time: Time,
}

/// What is shown of the answer.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    /// Holders by formula.
    pub(crate) slices: &'a [Slice],
    /// Holders in the log, and what limits the answer.
    pub(crate) found: &'a Found,
    /// All holders, also those of other pages.
    pub(crate) count: usize,
    /// There is another page.
    pub(crate) has_more: bool,
}

/// Prints a page. What limits the answer goes to `notes`, but with `json` to the last object.
///
/// # Errors
/// Writing failed.
pub(crate) fn print(
    asked: &Asked,
    page: &Page<'_>,
    json: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> io::Result<()> {
    if json {
        return print_objects(asked, page, out);
    }
    let Page { slices, found, count, .. } = *page;
    let is_empty = slices.is_empty() && found.holders.is_empty();
    if !is_empty {
        let mut table = Table::new(&[
            ("HOLDER", Left),
            ("PROTO", Left),
            ("INTERNAL PORT", Right),
            ("EXTERNAL", Left),
            ("TOWARDS", Left),
            ("BY", Left),
            ("POOL", Left),
            ("SINCE", Left),
            ("UNTIL", Left),
            ("CERTAIN", Left),
        ]);
        slices.iter().map(cells_of_slice).chain(found.holders.iter().map(cells)).for_each(|cells| table.row(cells));
        table.flush(out)?;
    }
    let (asked, at) = (&asked.what, asked.time.when());
    let counted = if count == 1 { "1 holding".to_owned() } else { format!("{count} holdings") };
    match (count == 0, found.is_complete) {
        (true, true) => writeln!(out, "nobody held {asked} {at}; the records of that time are complete")?,
        (true, false) => writeln!(out, "no holder of {asked} {at} found, but the records are not complete")?,
        (false, true) => writeln!(out, "{asked} {at}: {counted}; the records of that time are complete")?,
        (false, false) => writeln!(
            out,
            "{asked} {at}: {counted}; the records of that time are not complete: others may have held it"
        )?,
    }
    found.notes.iter().try_for_each(|note| writeln!(notes, "note: {}", escaped(note)))
}

fn print_objects(asked: &Asked, page: &Page<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Page { slices, found, has_more, .. } = *page;
    let Time { from_us, to_us } = asked.time;
    for slice in slices {
        let mut slice = slice.object();
        slice["throughout"] = Value::Null;
        writeln!(out, "{slice}")?;
    }
    for holder in &found.holders {
        let mut object = stored::object(holder);
        object["by_formula_alone"] = Value::Bool(false);
        object["throughout"] = found.is_throughout(holder, from_us, to_us).into();
        writeln!(out, "{object}")?;
    }
    let last = json!({
        "complete": found.is_complete,
        "notes": found.notes,
        "reads": found.reads,
        "asked": asked.what,
        "remote_address": asked.remote.map(|remote| remote.address),
        "remote_port": asked.remote.and_then(|remote| remote.port),
        "other_remotes": asked.sifted.others,
        "unrecorded_remotes": asked.sifted.unrecorded,
        "from": utc_text(from_us),
        "to": utc_text(to_us),
        "shown": slices.len() + found.holders.len(),
        "more": has_more,
    });
    writeln!(out, "{last}")
}

fn cells(holder: &Holder) -> Vec<String> {
    let until = match holder.until {
        Until::Open => "open".to_owned(),
        Until::Ended(until) => utc_text(until),
        Until::Restart(until) => format!("{} at most (restart)", utc_text(until)),
        Until::Lost(until) => format!("{} at most (end lost)", utc_text(until)),
    };
    vec![
        in_realm(&stored::realm_of(holder), &holder.subscriber),
        or_dash(holder.protocol.map(|protocol| protocol.name())),
        or_dash(holder.internal_port),
        ports(holder.external, holder.first_port, holder.last_port),
        or_dash(holder.remote.map(|(address, port)| format!("{address}:{port}"))),
        holder.what.name().to_owned(),
        or_dash(holder.pool_name.as_ref()),
        utc_text(holder.since_us),
        until,
        yes_or_no(holder.is_certain),
    ]
}

fn cells_of_slice(slice: &Slice) -> Vec<String> {
    let dash = || "-".to_owned();
    vec![
        in_realm(&slice.realm, &slice.subscriber),
        dash(),
        dash(),
        ports(slice.external, slice.first_port, slice.last_port),
        dash(),
        "formula".to_owned(),
        dash(),
        dash(),
        dash(),
        yes_or_no(slice.is_certain()),
    ]
}

/// As in all tables: the default realm has no name.
fn in_realm(realm: &str, subscriber: &dyn core::fmt::Display) -> String {
    if realm.is_empty() || realm == "default" { subscriber.to_string() } else { format!("{realm}/{subscriber}") }
}

fn ports(external: core::net::Ipv4Addr, first: u16, last: u16) -> String {
    if first == last { format!("{external}:{first}") } else { format!("{external}:{first}-{last}") }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn yes_or_no(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}
