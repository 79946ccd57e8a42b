//! `[[pool]]`.

use core::ops::RangeInclusive;

use nat::Protocol;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::settings::ReuseAtOnce;
use nat::settings::Threshold;
use nat::types::Prefix;
use toml_edit::Item;

use crate::draft::allocation::AllocationDraft;
use crate::draft::allocation::says_something;
use crate::draft::limits::threshold;
use crate::draft::name;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::choose;
use crate::section::shown;
use crate::section::unknown_key;
use crate::values;

/// One `[[pool]]`; what is faulty is missing.
pub(crate) struct PoolDraft {
    pub(crate) place: Place,
    pub(crate) name: Option<Placed<String>>,
    pub(crate) addresses: Vec<Placed<RangeInclusive<u32>>>,
    /// The file says `addresses = []`.
    pub(crate) is_empty_list: bool,
    pub(crate) exclude: Vec<Placed<RangeInclusive<u32>>>,
    pub(crate) ports: Option<Placed<RangeInclusive<u16>>>,
    pub(crate) reserved_ports: Vec<Placed<RangeInclusive<u16>>>,
    pub(crate) subscribers: Vec<Placed<Prefix>>,
    /// Some of them are faulty, and so not among `subscribers`.
    pub(crate) lacks_subscribers: bool,
    /// The file says `subscribers = []`, here.
    pub(crate) serves_nobody: Option<Place>,
    /// None named means all.
    pub(crate) vrfs: Vec<Placed<String>>,
    pub(crate) draining: bool,
    pub(crate) drain: Vec<Placed<RangeInclusive<u32>>>,
    pub(crate) pooling: Pooling,
    pub(crate) allocation: AllocationDraft,
    pub(crate) filtering: [Filtering; Protocol::COUNT],
    pub(crate) parity: bool,
    pub(crate) threshold: Option<Threshold>,
    /// Where the file says so.
    pub(crate) threshold_place: Place,
    /// Where the file says so.
    pub(crate) one_to_one: Option<Place>,
    pub(crate) reuse_delay: nat::Duration,
    pub(crate) reuse_at_once: ReuseAtOnce,
    pub(crate) shared_ports: u16,
    /// Where the file says something that does not apply, as the pool is one-to-one.
    pub(crate) no_effect: Vec<Place>,
}

/// Keys about port allocation, which have no effect in a one-to-one pool.
const OF_GIVEN_PORTS: [&str; 7] =
    ["ports", "reserved_ports", "pooling", "selection", "parity", "reuse_delay", "reuse_at_once"];

impl PoolDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> PoolDraft {
        const ADDRESSES: &str = "\"203.0.113.1\", \"203.0.113.1-203.0.113.9\" or \"203.0.113.0/28\"";
        let faults = report.fault_count();
        let subscribers = section.parsed_list("subscribers", values::prefix, "\"100.64.0.0/10\"", report);
        let lacks_subscribers = report.fault_count() > faults;
        PoolDraft {
            place: section.place.clone(),
            name: name(section, report),
            addresses: section.parsed_list("addresses", values::addresses, ADDRESSES, report),
            is_empty_list: is_empty_array(section, "addresses"),
            exclude: section.parsed_list("exclude", values::addresses, ADDRESSES, report),
            ports: section.parsed("ports", values::ports, report),
            reserved_ports: reserved_ports(section, report),
            subscribers,
            lacks_subscribers,
            serves_nobody: is_empty_array(section, "subscribers").then(|| section.place_of("subscribers", report)),
            vrfs: vrfs(section, report),
            draining: section.boolean("draining", report).unwrap_or_default(),
            drain: section.parsed_list("drain", values::addresses, ADDRESSES, report),
            pooling: match section.choice("pooling", report) {
                Some("arbitrary") => Pooling::Arbitrary,
                _ => Pooling::Paired,
            },
            allocation: AllocationDraft::read(section, report),
            filtering: filtering(section, report),
            parity: section.boolean("parity", report).unwrap_or_default(),
            threshold: threshold(section, report),
            threshold_place: section.place_of("threshold", report),
            one_to_one: section
                .boolean("one_to_one", report)
                .unwrap_or_default()
                .then(|| section.place_of("one_to_one", report)),
            reuse_delay: section.duration("reuse_delay", report).map_or(nat::Duration::ZERO, |delay| delay.value),
            reuse_at_once: reuse_at_once(section, report),
            // The key table's range keeps it below 2^16.
            shared_ports: section
                .integer("shared_ports", report)
                .map_or(0, |found| u16::try_from(found.value).unwrap_or(u16::MAX)),
            no_effect: no_effect(section, report),
        }
    }

    /// Whether it serves subscribers of this VRF.
    pub(crate) fn serves(&self, vrf: &str) -> bool {
        self.vrfs.is_empty() || self.vrfs.iter().any(|served| served.value == vrf)
    }

    /// Whether some VRF could be served by both.
    pub(crate) fn shares_vrf_with(&self, other: &PoolDraft) -> bool {
        self.vrfs.is_empty() || other.vrfs.is_empty() || self.vrfs.iter().any(|vrf| other.serves(&vrf.value))
    }

    /// Whether no subscriber gets anything new from it: it drains as a whole, or each of its
    /// addresses does.
    pub(crate) fn drains(&self) -> bool {
        self.draining || (!self.drain.is_empty() && !self.addresses.is_empty() && self.all_drain())
    }

    fn all_drain(&self) -> bool {
        let closed = self.exclude.iter().chain(&self.drain);
        let mut closed: Vec<(u64, u64)> =
            closed.map(|range| (u64::from(*range.value.start()), u64::from(*range.value.end()))).collect();
        closed.sort_unstable();
        self.addresses.iter().all(|range| {
            // The first address not yet found among those that are closed.
            let mut next = u64::from(*range.value.start());
            for (first, last) in &closed {
                if *first > next {
                    break;
                }
                next = next.max(last + 1);
            }
            next > u64::from(*range.value.end())
        })
    }

    /// Its name, for messages.
    pub(crate) fn label(&self) -> &str {
        self.name.as_ref().map_or("?", |name| name.value.as_str())
    }
}

fn no_effect(section: &Section, report: &mut Report) -> Vec<Place> {
    let is_one_to_one = section.item("one_to_one").and_then(Item::as_bool).unwrap_or_default();
    let keys = OF_GIVEN_PORTS.into_iter().filter(|key| is_one_to_one && says_something(section, key));
    keys.map(|key| section.place_of(key, report)).collect()
}

fn is_empty_array(section: &Section, key: &str) -> bool {
    section.item(key).and_then(Item::as_array).is_some_and(toml_edit::Array::is_empty)
}

pub(crate) fn vrfs(section: &Section, report: &mut Report) -> Vec<Placed<String>> {
    if is_empty_array(section, "vrfs") {
        let remedy = "remove it to serve every VRF, or write the names of those to serve";
        report.fault(&section.place_of("vrfs", report), "is empty, so no subscriber is served", "[]", remedy);
    }
    section.parsed_list("vrfs", |text| Ok(text.to_owned()), "the name of a VRF", report)
}

/// Numbers or strings, mixed as you like.
fn reserved_ports(section: &Section, report: &mut Report) -> Vec<Placed<RangeInclusive<u16>>> {
    let mut ports = Vec::new();
    for element in section.list("reserved_ports", report) {
        let text = match (element.value.as_integer(), element.value.as_str()) {
            (Some(number), _) => number.to_string(),
            (None, Some(text)) => text.to_owned(),
            (None, None) => {
                report.fault(&element.place, "is not a port", shown(&element.value), "write 53 or \"5060-5061\"");
                continue;
            }
        };
        match values::ports(&text) {
            Ok(value) => ports.push(Placed { value, place: element.place, given: element.given }),
            Err(error) => {
                let remedy = "write 53 or \"5060-5061\", within 1-65535";
                report.fault(&element.place, error.to_string(), shown(&element.value), remedy);
            }
        }
    }
    ports
}

/// Which of the exceptions hold.
fn reuse_at_once(section: &Section, report: &mut Report) -> ReuseAtOnce {
    let mut found = ReuseAtOnce { tcp_closed: false, filtered: false };
    for element in section.list("reuse_at_once", report) {
        let remedy = "write \"tcp-closed\" or \"filtered\"";
        let Some(text) = element.value.as_str() else {
            report.fault(&element.place, "is not a string", shown(&element.value), remedy);
            continue;
        };
        let text = Placed { value: text.to_owned(), place: element.place.clone(), given: element.given };
        match choose(&text, &["tcp-closed", "filtered"], report) {
            Some("tcp-closed") => found.tcp_closed = true,
            Some(_) => found.filtered = true,
            None => {}
        }
    }
    found
}

const FILTERINGS: &[&str] = &["endpoint-independent", "address-dependent", "address-and-port-dependent"];

fn filtering_named(word: &str) -> Filtering {
    match word {
        "address-dependent" => Filtering::AddressDependent,
        "address-and-port-dependent" => Filtering::AddressAndPortDependent,
        _ => Filtering::EndpointIndependent,
    }
}

/// One word for all protocols, or a table with a word for each.
fn filtering(section: &Section, report: &mut Report) -> [Filtering; Protocol::COUNT] {
    let table = section.item("filtering").and_then(Item::as_table_like);
    let Some(table) = table else {
        let word = section.text("filtering", report).and_then(|text| choose(&text, FILTERINGS, report));
        return [word.map_or(Filtering::default(), filtering_named); Protocol::COUNT];
    };
    let mut filtering = [Filtering::default(); Protocol::COUNT];
    let whole = section.place_of("filtering", report);
    for (key, item) in table.iter() {
        let line = table.get_key_value(key).and_then(|(key, _)| report.line(key.span())).or(whole.line);
        let place = Place { path: format!("{}.{key}", whole.path).into(), line };
        let Some(protocol) = Protocol::ALL.into_iter().find(|protocol| protocol.name() == key) else {
            unknown_key(&place, key, Protocol::ALL.iter().map(|protocol| protocol.name()), report);
            continue;
        };
        let Some(text) = item.as_str() else {
            let remedy = format!("write {key} = \"endpoint-independent\"");
            report.fault(&place, "is not a string", item.to_string(), remedy);
            continue;
        };
        let text = Placed { value: text.to_owned(), place, given: true };
        if let Some(word) = choose(&text, FILTERINGS, report) {
            filtering[protocol.index()] = filtering_named(word);
        }
    }
    filtering
}
