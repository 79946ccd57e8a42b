//! `natrix find`, `natrix why` and `natrix audit`.

use std::io;
use std::io::Write;

use control::AuditRecord;
use control::Direction;
use control::FindAnswer;
use control::List;
use control::Page;
use control::Place;
use control::Request;
use control::WhyAnswer;

use crate::arguments::Audit;
use crate::arguments::Find;
use crate::arguments::Why;
use crate::error::CliError;
use crate::execute::connect;
use crate::execute::connect_for;
use crate::human;
use crate::output::Row;
use crate::output::json_line;
use crate::output::print_all;
use crate::output::print_fetched;
use crate::output::print_pages;
use crate::show::rows::internal;
use crate::table::Align;
use crate::table::Align::Left;
use crate::table::Align::Right;
use crate::table::Table;
use crate::table::write_plain;

impl Row for FindAnswer {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("ASKED", Left),
        ("IS", Left),
        ("HOLDER", Left),
        ("PROTO", Left),
        ("INTERNAL", Left),
        ("EXTERNAL", Left),
        ("IDLE", Right),
        ("ENDS IN", Right),
        ("ANSWER", Left),
    ];

    fn cells(&self) -> Vec<String> {
        let mapping = self.mapping.as_ref();
        let external = mapping.map(|mapping| mapping.external.to_string());
        let in_vrf = |inside: String| human::in_vrf(self.vrf.as_deref().unwrap_or("default"), inside);
        let external = external.or_else(|| self.external_address.map(|address| address.to_string()));
        let host = self.host.as_ref().map(ToString::to_string);
        let holder = host.or_else(|| self.holder.map(|holder| holder.to_string()));
        vec![
            self.queried.clone(),
            match self.place {
                Place::Nowhere => "unknown".to_owned(),
                place => place.to_string(),
            },
            human::or_dash(holder.map(in_vrf)),
            human::or_dash(mapping.map(|mapping| mapping.protocol)),
            human::or_dash(mapping.map(|mapping| in_vrf(internal(mapping.internal, mapping.host.as_ref())))),
            human::or_dash(external),
            human::duration_or_dash(mapping.map(|mapping| mapping.idle_us)),
            human::duration_or_dash(mapping.map(|mapping| mapping.expires_in_us)),
            match mapping.and_then(|mapping| mapping.origin.as_ref()) {
                Some(origin) => format!("{} (asked for by {origin})", self.detail),
                None => self.detail.clone(),
            },
        ]
    }
}

impl Row for AuditRecord {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("TIME", Left),
        ("WHO", Left),
        ("FROM", Left),
        ("WHAT", Left),
        ("ABOUT", Left),
        ("CASE", Left),
        ("RESULT", Left),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            to_the_second(&self.time),
            self.who.clone(),
            self.from.clone(),
            self.action.clone(),
            self.subject.clone(),
            human::or_dash(self.case.clone()),
            self.result.clone(),
        ]
    }
}

/// `2026-05-03T21:04:17Z` of a time with a fraction, which JSON has.
fn to_the_second(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}

/// Runs `audit`.
pub(crate) fn audit(arguments: &Audit, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let mut client = connect(&arguments.output.socket)?;
    let page = |limit, cursor| Request::Audit(List { limit, cursor, ..List::default() });
    print_pages::<AuditRecord>(&mut client, &arguments.paging, page, arguments.output.json, out, notes)
}

/// Prints records that do not come from a running instance, a page at a time.
///
/// # Errors
/// Those of `page`, or writing to `out` failed.
pub fn print_audit(
    arguments: &Audit,
    page: impl Fn(&List) -> Result<Page<AuditRecord>, CliError>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), CliError> {
    let fetch = |limit, cursor| {
        let Page { objects, cursor } = page(&List { limit, cursor, ..List::default() })?;
        Ok((objects, cursor))
    };
    print_fetched::<AuditRecord>(fetch, &arguments.paging, arguments.output.json, out, notes)
}

/// Runs `find`.
pub(crate) fn find(arguments: &Find, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), CliError> {
    let mut client = connect_for(&arguments.output.socket, arguments.case.clone())?;
    let json = arguments.output.json;
    let request = arguments.question();
    print_pages::<FindAnswer>(
        &mut client,
        &arguments.paging,
        |limit, cursor| Request::Find(control::Find { limit, cursor, ..request.clone() }),
        json,
        out,
        notes,
    )
}

/// Prints answers of `find` that do not come from a running instance.
///
/// # Errors
/// Writing to `out` failed.
pub fn print_found(answers: &[FindAnswer], json: bool, out: &mut dyn Write) -> io::Result<()> {
    print_all(answers, json, out)
}

/// Runs `why`.
pub(crate) fn why(arguments: &Why, out: &mut dyn Write) -> Result<(), CliError> {
    let request = Request::Why(control::Why {
        protocol: arguments.protocol,
        source: arguments.source,
        destination: arguments.destination,
        b4: arguments.b4,
        inbound: arguments.inbound,
        tcp_segment: arguments.segment,
        length_bytes: arguments.length,
        dont_fragment: arguments.dont_fragment,
        interface: arguments.interface.clone(),
        vrf: arguments.vrf.clone(),
    });
    let mut client = connect_for(&arguments.output.socket, arguments.case.case.clone())?;
    let answer: WhyAnswer = client.request_one(&request)?;
    if arguments.output.json {
        json_line(&answer, out)?;
    } else {
        print_why(&answer, out)?;
    }
    Ok(())
}

fn print_why(answer: &WhyAnswer, out: &mut dyn Write) -> io::Result<()> {
    let WhyAnswer { protocol, source, destination, worker, verdict, kind, description, .. } = answer;
    let from = match answer.direction {
        Direction::Outbound => "inside",
        Direction::Inbound => "outside",
    };
    let through = match (answer.direction, &answer.host) {
        (Direction::Outbound, Some(host)) if host.inner.is_some() => format!(", in the softwire of {}", host.address),
        _ => String::new(),
    };
    let vrf =
        answer.vrf.as_ref().filter(|vrf| *vrf != "default").map(|vrf| format!(" (VRF {vrf})")).unwrap_or_default();
    let vrf = match answer.direction {
        Direction::Outbound => [vrf.as_str(), ""],
        Direction::Inbound => ["", vrf.as_str()],
    };
    let [of_source, of_destination] = vrf;
    write_plain(
        out,
        &format!(
            "{protocol} {source}{of_source} > {destination}{of_destination}{through}, from {from}, on worker {worker}"
        ),
    )?;
    writeln!(out)?;
    let mut steps = Table::new(&[("", Right), ("STEP", Left), ("DECISION", Left), ("REASON", Left)]);
    for (position, step) in answer.steps.iter().enumerate() {
        let number = (position + 1).to_string();
        steps.row(vec![number, step.step.clone(), step.decision.clone(), step.detail.clone()]);
    }
    steps.flush(out)?;
    writeln!(out)?;
    write_plain(out, &format!("verdict: {verdict} ({kind}): {description}"))?;
    if let (Some(source), Some(destination)) = (answer.translated_source, answer.translated_destination) {
        let through = match (answer.direction, &answer.host) {
            (Direction::Inbound, Some(host)) if host.inner.is_some() => {
                format!(", in the softwire of {}", host.address)
            }
            _ => String::new(),
        };
        writeln!(out, "leaves as: {protocol} {source} > {destination}{through}")?;
    }
    if answer.state_changed {
        writeln!(out, "warning: the daemon reports that this question changed its state")
    } else {
        writeln!(out, "nothing was changed")
    }
}
