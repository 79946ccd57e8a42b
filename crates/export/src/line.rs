//! One event as one line of JSON. Written by hand: a busy NAT has a million events a second, and
//! the text has few shapes.
//!
//! Field names are a contract (docs/operations.md, section "Logs"); `lookup::log` reads them back.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::sync::Arc;

use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::origin::Origin;
use nat::types::PoolName;
use nat::types::RealmId;
use nat::types::WorkerId;

use crate::pools::PoolRanges;
use crate::subscriber::Subscriber;
use crate::utc::UtcText;

/// Names for the numbers in events, in the current configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Current and earlier pools, by the number of their name.
    pub pools: Vec<String>,
    /// Inside realms by number. A realm without a name here is written as its number.
    pub realms: Vec<String>,
    /// Filters, by the lower bits of the number of their configuration, the latest last. A waiting
    /// record may be about filters that have since changed or moved.
    pub filters: Vec<(u16, Arc<FilterNames>)>,
    /// Checksums of the formulas of deterministic pools by number of the configuration; 0 without
    /// formulas.
    pub formulas: BTreeMap<u32, u32>,
    /// External addresses of the pools.
    pub addresses: Arc<PoolRanges>,
}

/// Names of the filters of one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterNames {
    /// Names by position, of filters that have one.
    pub names: BTreeMap<u32, String>,
    /// Places in the configuration by position, so that lines name filters as `natrix show rules`
    /// does.
    pub places: Vec<Origin>,
    /// Files of these places, by number.
    pub files: Vec<String>,
}

impl Names {
    /// The filters that an event is about.
    fn filters_of(&self, event: &Event) -> Option<&FilterNames> {
        let found = self.filters.iter().rev().find(|(number, _)| *number == event.last_port);
        found.map(|(_, filters)| filters.as_ref())
    }
}

/// Appends one line, with its end of line. `unix_us` is the time of the event. Its subscriber comes
/// from [`crate::HostNames`].
pub fn write_line(out: &mut Vec<u8>, worker: WorkerId, event: &Event, who: Subscriber, unix_us: u64, names: &Names) {
    write_with(out, &mut UtcText::default(), worker, (event, who), unix_us, names);
}

/// [`write_line`] for many lines in the order of time.
pub(crate) fn write_with(
    out: &mut Vec<u8>,
    utc: &mut UtcText,
    worker: WorkerId,
    (event, who): (&Event, Subscriber),
    unix_us: u64,
    names: &Names,
) {
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(utc.of(unix_us));
    out.extend_from_slice(b"\",\"worker\":");
    number(out, u64::from(worker.0));
    out.extend_from_slice(b",\"sequence\":");
    number(out, event.sequence);
    out.extend_from_slice(b",\"event\":\"");
    out.extend_from_slice(event.kind.name().as_bytes());
    out.push(b'"');
    match event.kind {
        EventKind::MappingCreated | EventKind::MappingEnded => mapping(out, event, who, names),
        EventKind::FlowCreated | EventKind::FlowEnded => {
            mapping(out, event, who, names);
            address_field(out, b",\"remote_address\":\"", event.remote);
            number_field(out, b",\"remote_port\":", u64::from(event.remote_port));
        }
        EventKind::BlockLeased | EventKind::BlockReturned | EventKind::StaticCreated | EventKind::StaticEnded => {
            range(out, event, who, names);
        }
        EventKind::Refused => {
            // Fragments belong to no pool, and those from outside to no subscriber.
            if event.subscriber != Ipv4Addr::UNSPECIFIED {
                subscriber(out, event, who, names);
            }
            protocol(out, event);
            name_field(out, b",\"pool\":\"", pool_name(names, event.pool));
            if event.external != Ipv4Addr::UNSPECIFIED {
                address_field(out, b",\"external_address\":\"", event.external);
            }
            number_field(out, b",\"packets\":", u64::from(event.amount));
        }
        EventKind::PoolExhausted => {
            name_field(out, b",\"pool\":\"", pool_name(names, event.pool));
            if event.external != Ipv4Addr::UNSPECIFIED {
                address_field(out, b",\"external_address\":\"", event.external);
            }
            protocol(out, event);
            number_field(out, b",\"packets\":", u64::from(event.amount));
        }
        EventKind::ThresholdReached | EventKind::ThresholdCleared => {
            if event.subscriber != Ipv4Addr::UNSPECIFIED {
                subscriber(out, event, who, names);
            }
            name_field(out, b",\"pool\":\"", pool_name(names, event.pool));
            protocol(out, event);
            number_field(out, b",\"use_percent\":", u64::from(event.amount));
        }
        EventKind::PenaltyBegun | EventKind::PenaltyEnded => {
            subscriber(out, event, who, names);
            name_field(out, b",\"pool\":\"", pool_name(names, event.pool));
            let field: &[u8] = if event.kind == EventKind::PenaltyBegun { b",\"packets\":" } else { b",\"held_s\":" };
            number_field(out, field, u64::from(event.amount));
        }
        EventKind::ConfigurationAdopted => {
            number_field(out, b",\"generation\":", u64::from(event.amount));
            formulas(out, names.formulas.get(&event.amount).copied());
        }
        EventKind::ConfigurationRecorded => number_field(out, b",\"generation\":", u64::from(event.amount)),
        EventKind::FilterPermitted | EventKind::FilterDenied => {
            subscriber(out, event, who, names);
            number_field(out, b",\"ip_protocol\":", u64::from(event.first_port));
            number_field(out, b",\"internal_port\":", u64::from(event.internal_port));
            address_field(out, b",\"remote_address\":\"", event.remote);
            number_field(out, b",\"remote_port\":", u64::from(event.remote_port));
            let filters = names.filters_of(event);
            filter_place(out, event.amount, filters);
            let name = filters.and_then(|filters| filters.names.get(&event.amount));
            name_field(out, b",\"filter_name\":\"", name.map(String::as_str));
        }
        EventKind::HostNamed => subscriber(out, event, who, names),
        EventKind::SnapshotComplete => number_field(out, b",\"records\":", u64::from(event.amount)),
        EventKind::FilterSuppressed => number_field(out, b",\"packets\":", u64::from(event.amount)),
        EventKind::Gap => number_field(out, b",\"lost\":", u64::from(event.amount)),
    }
    if event.cause != Cause::None {
        name_field(out, b",\"cause\":\"", Some(event.cause.name()));
    }
    out.extend_from_slice(b"}\n");
}

/// A line about the log itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own<'a> {
    /// `started`, `opened`, `covered`, `clock_set` or `stopped`.
    pub event: &'a str,
    /// Release of the daemon; empty in lines that do not have it.
    pub version: &'a str,
    /// Checksum of the formulas in use from here on.
    pub formulas: Option<u32>,
    /// Path of this log.
    pub file: Option<&'a str>,
    /// The log with the records until now.
    pub earlier: Option<&'a str>,
    /// What another program did to that log.
    pub cause: Option<&'a str>,
    /// Number of workers that report all current state.
    pub workers: Option<usize>,
    /// The last number of each worker, if the log has all records before this line's time.
    pub sequences: Option<&'a [u64]>,
    /// By how much the clock was set.
    pub by_us: Option<i64>,
    /// How long before this line that may have been: the reading before was without it.
    pub unclear_us: Option<u64>,
}

/// Appends such a line.
pub fn write_own(out: &mut Vec<u8>, unix_us: u64, own: &Own<'_>) {
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(UtcText::default().of(unix_us));
    name_field(out, b"\",\"event\":\"", Some(own.event));
    name_field(out, b",\"version\":\"", Some(own.version).filter(|version| !version.is_empty()));
    formulas(out, own.formulas);
    name_field(out, b",\"file\":\"", own.file);
    name_field(out, b",\"earlier\":\"", own.earlier);
    name_field(out, b",\"cause\":\"", own.cause);
    if let Some(workers) = own.workers {
        number_field(out, b",\"workers\":", workers as u64);
    }
    if let Some(by_us) = own.by_us {
        out.extend_from_slice(if by_us < 0 { b",\"by_us\":-" } else { b",\"by_us\":" });
        number(out, by_us.unsigned_abs());
    }
    if let Some(unclear_us) = own.unclear_us {
        number_field(out, b",\"unclear_us\":", unclear_us);
    }
    if let Some(sequences) = own.sequences {
        out.extend_from_slice(b",\"sequences\":[");
        for (place, sequence) in sequences.iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            number(out, *sequence);
        }
        out.push(b']');
    }
    out.extend_from_slice(b"}\n");
}

/// The formulas of deterministic pools in use from here on.
fn formulas(out: &mut Vec<u8>, checksum: Option<u32>) {
    match checksum {
        None => {}
        Some(0) => name_field(out, b",\"formulas\":\"", Some(NO_FORMULAS)),
        Some(checksum) => name_field(out, b",\"formulas\":\"", Some(&format!("{checksum:08x}"))),
    }
}

/// For a configuration without deterministic pools.
pub const NO_FORMULAS: &str = "none";

/// True of the record of an allocation that began earlier: its amount is the age in seconds.
pub(crate) fn is_late(event: &Event) -> bool {
    match event.cause {
        Cause::LogOpened => event.kind.is_allocation(),
        // It kept its port when the configuration changed.
        Cause::Configuration => event.kind == EventKind::MappingCreated,
        _ => false,
    }
}

fn mapping(out: &mut Vec<u8>, event: &Event, who: Subscriber, names: &Names) {
    subscriber(out, event, who, names);
    protocol(out, event);
    number_field(out, b",\"internal_port\":", u64::from(event.internal_port));
    address_field(out, b",\"external_address\":\"", event.external);
    number_field(out, b",\"external_port\":", u64::from(event.first_port));
    if matches!(event.kind, EventKind::MappingEnded | EventKind::FlowEnded) || is_late(event) {
        number_field(out, b",\"held_s\":", u64::from(event.amount));
    }
}

fn range(out: &mut Vec<u8>, event: &Event, who: Subscriber, names: &Names) {
    subscriber(out, event, who, names);
    protocol(out, event);
    if event.internal_port != 0 {
        number_field(out, b",\"internal_port\":", u64::from(event.internal_port));
    }
    address_field(out, b",\"external_address\":\"", event.external);
    number_field(out, b",\"first_port\":", u64::from(event.first_port));
    number_field(out, b",\"last_port\":", u64::from(event.last_port));
    if matches!(event.kind, EventKind::BlockReturned | EventKind::StaticEnded) || is_late(event) {
        number_field(out, b",\"held_s\":", u64::from(event.amount));
    }
}

fn subscriber(out: &mut Vec<u8>, event: &Event, who: Subscriber, names: &Names) {
    let RealmId(realm) = event.realm;
    match names.realms.get(usize::from(realm)) {
        Some(name) => name_field(out, b",\"realm\":\"", Some(name)),
        None => number_field(out, b",\"realm\":", u64::from(realm)),
    }
    match who {
        Subscriber::Ipv4(address) => address_field(out, b",\"subscriber\":\"", address),
        Subscriber::Host(_) | Subscriber::Unknown => {
            match who.address_text() {
                Some(address) => name_field(out, b",\"subscriber\":\"", Some(&address)),
                None => out.extend_from_slice(b",\"subscriber\":null"),
            }
            if let Some(inner) = who.inner() {
                address_field(out, b",\"inner_address\":\"", inner);
            }
        }
    }
}

fn protocol(out: &mut Vec<u8>, event: &Event) {
    name_field(out, b",\"protocol\":\"", event.protocol.map(|protocol| protocol.name()));
}

/// `"3"` for the fourth table, `"web.csv:17"` for a line of a file.
fn filter_place(out: &mut Vec<u8>, position: u32, filters: Option<&FilterNames>) {
    out.extend_from_slice(b",\"filter\":\"");
    let (places, files) = filters.map_or_else(Default::default, |filters| (&filters.places[..], &filters.files[..]));
    match places.get(position as usize) {
        Some(Origin::Line(file, line)) => {
            text(out, files.get(usize::from(*file)).map_or("", String::as_str));
            out.push(b':');
            number(out, u64::from(*line));
        }
        Some(Origin::Table(table)) => number(out, u64::from(*table)),
        None => number(out, u64::from(position)),
    }
    out.push(b'"');
}

fn pool_name(names: &Names, pool: PoolName) -> Option<&str> {
    names.pools.get(usize::from(pool.0)).map(String::as_str)
}

/// `start` ends with the opening quote. Without a name the field is omitted.
fn name_field(out: &mut Vec<u8>, start: &[u8], name: Option<&str>) {
    let Some(name) = name else { return };
    out.extend_from_slice(start);
    text(out, name);
    out.push(b'"');
}

/// Appends text between quotes.
fn text(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(DIGITS[usize::from(byte >> 4)]);
                out.push(DIGITS[usize::from(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
}

fn number_field(out: &mut Vec<u8>, start: &[u8], value: u64) {
    out.extend_from_slice(start);
    number(out, value);
}

fn address_field(out: &mut Vec<u8>, start: &[u8], address: Ipv4Addr) {
    out.extend_from_slice(start);
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            out.push(b'.');
        }
        number(out, u64::from(octet));
    }
    out.push(b'"');
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    // The longest number has 20 digits.
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use nat::Instant;
    use nat::Protocol;
    use nat::Verdict;
    use nat::types::Endpoint;
    use serde_json::Value;
    use serde_json::json;

    use super::*;

    fn line_of(event: &Event) -> (String, Value) {
        let names = Names { pools: vec!["a \"b\"\n".to_owned()], realms: vec!["blue".to_owned()], ..Names::default() };
        let mut out = Vec::new();
        write_line(&mut out, WorkerId(3), event, Subscriber::Ipv4(event.subscriber), 1_795_289_400_000_007, &names);
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("}\n") && text.matches('\n').count() == 1, "{text}");
        let value = serde_json::from_str(&text).unwrap();
        (text, value)
    }

    fn of_mapping(kind: EventKind) -> Event {
        let internal = Endpoint::new([100, 64, 0, 10].into(), 5_000);
        let external = Endpoint::new([203, 0, 113, 1].into(), 15_007);
        let event = Event::of_mapping(kind, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external);
        Event { sequence: u64::MAX, ..event }
    }

    #[test]
    fn a_mapping_line_names_both_endpoints_but_not_the_remote() {
        let (text, value) = line_of(&of_mapping(EventKind::MappingCreated).because(Cause::Outbound));
        assert_eq!(
            value,
            json!({
                "time": "2026-11-21T19:30:00.000007Z", "worker": 3, "sequence": u64::MAX, "event": "mapping_created",
                "realm": "blue", "subscriber": "100.64.0.10", "protocol": "udp", "internal_port": 5000,
                "external_address": "203.0.113.1", "external_port": 15007, "cause": "outbound",
            })
        );
        assert!(!text.contains("remote"));
        // One that kept its port at a change says since when it has it.
        let (_, kept) =
            line_of(&Event { amount: 95, ..of_mapping(EventKind::MappingCreated).because(Cause::Configuration) });
        assert_eq!((&kept["held_s"], &kept["cause"]), (&json!(95), &json!("configuration")));
        let (_, ended) = line_of(&Event { amount: 61, ..of_mapping(EventKind::MappingEnded).because(Cause::Idle) });
        assert_eq!((&ended["held_s"], &ended["cause"]), (&json!(61), &json!("idle")));
    }

    #[test]
    fn a_block_line_names_its_ports_and_no_transport() {
        let block = Event {
            first_port: 4_096,
            last_port: 4_607,
            internal_port: 0,
            protocol: None,
            realm: RealmId(7),
            ..of_mapping(EventKind::BlockLeased)
        };
        let (_, value) = line_of(&block);
        assert_eq!(
            (&value["first_port"], &value["last_port"], &value["realm"]),
            (&json!(4096), &json!(4607), &json!(7))
        );
        assert!(value.get("protocol").is_none() && value.get("internal_port").is_none());
    }

    #[test]
    fn a_refusal_says_why_and_how_often_and_names_are_escaped() {
        let event = Event {
            amount: 12,
            protocol: Some(Protocol::Tcp),
            ..Event::new(EventKind::Refused, Instant::ORIGIN).because(Cause::Verdict(Verdict::PortsExhausted))
        };
        let (_, value) = line_of(&event);
        assert_eq!((&value["cause"], &value["packets"]), (&json!("ports_exhausted"), &json!(12)));
        assert_eq!(value["pool"], json!("a \"b\"\n"));
    }

    /// The lines of docs/operations.md.
    #[test]
    fn lines_are_as_long_as_the_page_for_operators_says() {
        let names = Names { pools: vec!["public".to_owned()], realms: vec!["default".to_owned()], ..Names::default() };
        let internal = Endpoint::new([100, 64, 10, 10].into(), 50_000);
        let external = Endpoint::new([203, 0, 113, 10].into(), 15_007);
        let length = |event: Event| {
            let mut out = Vec::new();
            let event = Event { sequence: 123_456_789, last_port: 15_871, ..event };
            write_line(
                &mut out,
                WorkerId(3),
                &event,
                Subscriber::Ipv4(event.subscriber),
                1_795_289_400_000_007,
                &names,
            );
            out.len()
        };
        let of_mapping = |kind| Event::of_mapping(kind, Instant::ORIGIN, RealmId(0), Protocol::Udp, internal, external);
        let of_block = |kind| Event { internal_port: 0, protocol: None, ..of_mapping(kind) };
        let of_flow = |kind| Event { remote: [198, 51, 100, 7].into(), remote_port: 443, ..of_mapping(kind) };
        let ended = |event: Event| Event { amount: 310, ..event.because(Cause::Idle) };
        let refused = Event {
            amount: 12,
            pool: PoolName(0),
            ..of_mapping(EventKind::Refused).because(Cause::Verdict(Verdict::PortsExhausted))
        };
        let lengths = [
            length(of_mapping(EventKind::MappingCreated).because(Cause::Outbound)),
            length(ended(of_mapping(EventKind::MappingEnded))),
            length(of_block(EventKind::BlockLeased).because(Cause::Outbound)),
            length(ended(of_block(EventKind::BlockReturned))),
            length(of_flow(EventKind::FlowCreated).because(Cause::Outbound)),
            length(ended(of_flow(EventKind::FlowEnded))),
            length(refused),
        ];
        assert_eq!(lengths, [257, 264, 230, 241, 304, 311, 241]);
    }

    #[test]
    fn a_filter_record_has_the_five_tuple_and_the_rule_name() {
        let filters = FilterNames { names: [(7, "smtp".to_owned())].into(), ..FilterNames::default() };
        let names = Names { filters: vec![(3, Arc::new(filters))], ..Names::default() };
        let event = Event {
            remote: [198, 51, 100, 25].into(),
            remote_port: 25,
            first_port: 6,
            last_port: 3,
            amount: 7,
            ..of_mapping(EventKind::FilterDenied).because(Cause::Outbound)
        };
        let mut out = Vec::new();
        write_line(&mut out, WorkerId(0), &event, Subscriber::Ipv4(event.subscriber), 1_795_289_400_000_007, &names);
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["event"], json!("filter_denied"));
        assert_eq!((&value["ip_protocol"], &value["internal_port"]), (&json!(6), &json!(5_000)));
        assert_eq!((&value["remote_address"], &value["remote_port"]), (&json!("198.51.100.25"), &json!(25)));
        assert_eq!(
            (&value["filter"], &value["filter_name"], &value["cause"]),
            (&json!("7"), &json!("smtp"), &json!("outbound"))
        );
    }

    #[test]
    fn a_filter_has_the_number_people_know_it_by() {
        let places = vec![Origin::Line(1, 17), Origin::Table(3)];
        let files = vec!["rules.csv".to_owned(), "odd \"name\".csv".to_owned()];
        let filters = Arc::new(FilterNames { places, files, ..FilterNames::default() });
        let names = Names { filters: vec![(3, filters), (4, Arc::default())], ..Names::default() };
        // Unknown configurations are represented by the position.
        for (configuration, position, place) in [(3, 0, "odd \"name\".csv:17"), (3, 1, "3"), (4, 1, "1"), (2, 1, "1")] {
            let mut out = Vec::new();
            let event = Event { amount: position, last_port: configuration, ..of_mapping(EventKind::FilterPermitted) };
            write_line(
                &mut out,
                WorkerId(0),
                &event,
                Subscriber::Ipv4(event.subscriber),
                1_795_289_400_000_007,
                &names,
            );
            let value: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(value["filter"], json!(place));
        }
    }

    #[test]
    fn every_kind_is_a_line_of_json_that_names_it() {
        for kind in EventKind::ALL {
            let (_, value) = line_of(&of_mapping(kind));
            assert_eq!(value["event"], json!(kind.name()));
        }
    }
}
