//! Prints the answer of `natrix find --at`: a table of the holders, or a JSON object for each, then
//! whether the records of that time are complete.

use std::io;
use std::io::Write;

use cli::Align::Left;
use cli::Align::Right;
use cli::Table;
use control::escaped;
use export::store::Found;
use export::store::Holder;
use export::store::Question;
use export::store::Until;
use export::utc_text;
use lookup::past::Slice;
use lookup::stored;
use serde_json::Value;
use serde_json::json;

/// Prints the holders by formula and those in the log. What limits the answer goes to `notes`, but
/// with `json` to the last object.
///
/// # Errors
/// Writing failed.
pub(crate) fn print(
    question: &Question,
    (slices, found): (&[Slice], &Found),
    json: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> io::Result<()> {
    if json {
        return print_objects(slices, found, out);
    }
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
    let port = question.port.map(|port| format!(":{port}")).unwrap_or_default();
    let (asked, from) = (format!("{}{port}", address_of(question)), utc_text(question.from_us));
    let is_moment = question.to_us <= question.from_us;
    let at = if is_moment { format!("at {from}") } else { format!("from {from} to {}", utc_text(question.to_us)) };
    match (is_empty, found.is_complete) {
        (true, true) => writeln!(out, "nobody held {asked} {at}; the records of that time are complete")?,
        (true, false) => writeln!(out, "no holder of {asked} {at} found, but the records are not complete")?,
        (false, true) => writeln!(out, "the records of that time are complete")?,
        (false, false) => writeln!(out, "the records of that time are not complete: others may have held {asked}")?,
    }
    found.notes.iter().try_for_each(|note| writeln!(notes, "note: {}", escaped(note)))
}

fn print_objects(slices: &[Slice], found: &Found, out: &mut dyn Write) -> io::Result<()> {
    slices.iter().try_for_each(|slice| writeln!(out, "{}", slice.object()))?;
    for holder in &found.holders {
        let mut holder = stored::object(holder);
        holder["by_formula_alone"] = Value::Bool(false);
        writeln!(out, "{holder}")?;
    }
    let complete = json!({ "complete": found.is_complete, "notes": found.notes, "reads": found.reads });
    writeln!(out, "{complete}")
}

/// What was asked about, as text.
fn address_of(question: &Question) -> String {
    match question.host {
        None => question.address.to_string(),
        Some(host) if question.port.is_some() => format!("[{host}]"),
        Some(host) => host.to_string(),
    }
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
