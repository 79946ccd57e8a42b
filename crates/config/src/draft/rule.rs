//! `[[rule]]` and `[[filter]]`, and lines of files that say the same.

use core::ops::RangeInclusive;
use std::borrow::Cow;

use nat::Protocol;
use nat::redirection::Target;
use nat::settings::MappingKind;
use nat::stand_in::Prefix6;
use nat::types::Prefix;

use crate::draft::as_name;
use crate::draft::rule_keys::RuleKey;
use crate::draft::rule_keys::RuleKeys;
use crate::draft::rule_keys::Scalar;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::ports_text;
use crate::section::quoted;
use crate::values;
use crate::values::Either;

/// Which packets a rule or filter is about; what is not given is any.
pub(crate) struct MatchDraft {
    pub(crate) place: Place,
    pub(crate) protocol: Option<u8>,
    pub(crate) inside: Option<Placed<Prefix>>,
    /// IPv6 hosts instead.
    pub(crate) inside6: Option<Placed<Prefix6>>,
    pub(crate) outside: Option<Placed<Prefix>>,
    pub(crate) inside_ports: Option<Placed<RangeInclusive<u16>>>,
    pub(crate) outside_ports: Option<Placed<RangeInclusive<u16>>>,
    pub(crate) vrf: Option<Placed<String>>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleWord {
    Pass,
    Translate,
    NoTranslation,
    Redirect,
    Drop,
}

/// One `[[rule]]`; what is faulty is missing.
pub(crate) struct RuleDraft {
    pub(crate) action: Option<RuleWord>,
    pub(crate) matches: MatchDraft,
    pub(crate) pool: Option<Placed<String>>,
    pub(crate) mapping: MappingKind,
    /// Where packets are redirected to: targets, or a prefix.
    pub(crate) targets: Vec<Placed<Target>>,
    pub(crate) to: Option<Placed<Prefix>>,
    /// Something in it was at fault, so that it is not to be compiled.
    pub(crate) is_faulty: bool,
}

/// One `[[filter]]`.
pub(crate) struct FilterDraft {
    pub(crate) matches: MatchDraft,
    pub(crate) permits: Option<bool>,
    pub(crate) out: bool,
    pub(crate) back: bool,
    pub(crate) log: bool,
    pub(crate) name: Option<String>,
    pub(crate) is_faulty: bool,
}

impl RuleDraft {
    pub(crate) fn read(section: &impl RuleKeys, report: &mut Report) -> RuleDraft {
        let faults = report.fault_count();
        let action = match section.choice(RuleKey::Action, report) {
            Some("pass") => Some(RuleWord::Pass),
            Some("translate") => Some(RuleWord::Translate),
            Some("no-translation") => Some(RuleWord::NoTranslation),
            Some("redirect") => Some(RuleWord::Redirect),
            Some("drop") => Some(RuleWord::Drop),
            _ => None,
        };
        if action == Some(RuleWord::Pass) {
            for (key, example) in [(RuleKey::Protocol, "\"gre\""), (RuleKey::Inside, "\"192.0.2.0/24\"")] {
                if !section.has(key) {
                    let remedy = format!("write {} = {example}", key.name());
                    report.fault(&section.place_of(key, report), "is missing", "", remedy);
                }
            }
        }
        let of = |keys: [RuleKey; 2], wanted: RuleWord, why: &str, report: &mut Report| {
            for key in keys.into_iter().filter(|key| section.has(*key) && action.is_some_and(|action| action != wanted))
            {
                report.fault(&section.place_of(key, report), format!("applies only {why}"), "", "remove it");
            }
        };
        of([RuleKey::Pool, RuleKey::Mapping], RuleWord::Translate, "to action = \"translate\"", report);
        of([RuleKey::Targets, RuleKey::To], RuleWord::Redirect, "to action = \"redirect\"", report);
        if action == Some(RuleWord::Pass) {
            for key in [RuleKey::InsidePorts, RuleKey::OutsidePorts].into_iter().filter(|key| section.has(*key)) {
                let problem = "does not go with action = \"pass\"";
                report.fault(&section.place_of(key, report), problem, "", "remove it");
            }
        }
        let matches = MatchDraft::read(section, report);
        let place = section.place_of(RuleKey::Protocol, report);
        match (action, matches.protocol) {
            (Some(RuleWord::Pass), Some(number)) => {
                if let Some(protocol) = Protocol::from_number(number) {
                    let remedy = "remove the rule, or write action = \"no-translation\" to send these packets with their inside \
                                  source";
                    report.fault(&place, "is always translated and cannot be passed", quoted(protocol.name()), remedy);
                }
            }
            (Some(_), Some(number)) if Protocol::from_number(number).is_none() => {
                let remedy = "write \"tcp\", \"udp\" or \"icmp\", or action = \"pass\"";
                report.fault(&place, "is never translated, only passed or dropped", number.to_string(), remedy);
            }
            _ => {}
        }
        if let (Some(RuleWord::Pass | RuleWord::NoTranslation), Some(inside)) = (action, &matches.inside6) {
            let problem = "is an IPv6 prefix, and IPv6 hosts have no IPv4 address to leave with";
            let remedy = "write an IPv4 prefix, or another action";
            report.fault(&inside.place, problem, inside.value.to_string(), remedy);
        }
        let mapping = match section.choice(RuleKey::Mapping, report) {
            Some("endpoint-dependent") => MappingKind::EndpointDependent,
            _ => MappingKind::EndpointIndependent,
        };
        let pool = if section.has(RuleKey::Pool) { section.text(RuleKey::Pool, report) } else { None };
        let targets = section.parsed_list(RuleKey::Targets, values::target, "\"192.0.2.53:53 weight 2\"", report);
        let to = section.parsed(RuleKey::To, values::prefix, report);
        if action == Some(RuleWord::Redirect) && targets.is_empty() == to.is_none() && report.fault_count() == faults {
            let remedy =
                "write targets = [\"192.0.2.53:53\"], or to = \"198.51.100.0/24\" for the same hosts of another prefix";
            let problem = if to.is_none() { "has no destination" } else { "has targets and a prefix" };
            report.fault(&section.place(), problem, "", remedy);
        }
        RuleDraft { action, matches, pool, mapping, targets, to, is_faulty: report.fault_count() > faults }
    }
}

impl FilterDraft {
    pub(crate) fn read(section: &impl RuleKeys, report: &mut Report) -> FilterDraft {
        let faults = report.fault_count();
        let permits = section.choice(RuleKey::Action, report).map(|word| word == "permit");
        let direction = section.choice(RuleKey::Direction, report);
        let matches = MatchDraft::read(section, report);
        FilterDraft {
            matches,
            permits,
            out: direction != Some("in"),
            back: direction != Some("out"),
            log: section.boolean(RuleKey::Log, report).unwrap_or_default(),
            name: section.text(RuleKey::Name, report).and_then(|name| as_name(name, report)).map(|name| name.value),
            is_faulty: report.fault_count() > faults,
        }
    }
}

impl MatchDraft {
    fn read(section: &impl RuleKeys, report: &mut Report) -> MatchDraft {
        let has = |key| section.has(key);
        let (inside, inside6) = match section.parsed(RuleKey::Inside, values::hosts, report) {
            None => (None, None),
            Some(Placed { value: Either::V4(value), place, given }) => (Some(Placed { value, place, given }), None),
            Some(Placed { value: Either::V6(value), place, given }) => (None, Some(Placed { value, place, given })),
        };
        let matches = MatchDraft {
            place: section.place(),
            protocol: if has(RuleKey::Protocol) { protocol(section, report) } else { None },
            inside,
            inside6,
            outside: section.parsed(RuleKey::Outside, values::prefix, report),
            inside_ports: if has(RuleKey::InsidePorts) { ports(section, RuleKey::InsidePorts, report) } else { None },
            outside_ports: if has(RuleKey::OutsidePorts) {
                ports(section, RuleKey::OutsidePorts, report)
            } else {
                None
            },
            vrf: if has(RuleKey::Vrf) { section.text(RuleKey::Vrf, report) } else { None },
        };
        for ports in [&matches.inside_ports, &matches.outside_ports].into_iter().flatten() {
            let is_known = matches.protocol.is_some_and(|number| matches!(number, 6 | 17));
            if !is_known && (!has(RuleKey::Protocol) || matches.protocol.is_some()) {
                let seen = ports_text(*ports.value.start(), *ports.value.end());
                let remedy = "write protocol = \"tcp\" or \"udp\"; for both, write one for each";
                report.fault(&ports.place, "needs a protocol with ports", seen, remedy);
            }
        }
        matches
    }
}

/// `443` or `"1024-65535"`.
fn ports(section: &impl RuleKeys, key: RuleKey, report: &mut Report) -> Option<Placed<RangeInclusive<u16>>> {
    let place = section.place_of(key, report);
    let text = match section.scalar(key)? {
        Scalar::Number(number) => match u16::try_from(number) {
            Ok(port @ 1..) => return Some(Placed { value: port..=port, place, given: true }),
            _ => Cow::Owned(number.to_string()),
        },
        Scalar::Text(text) => text,
        Scalar::Other(shown) => {
            report.fault(&place, "is not a port or range", shown.trim(), "write 443 or \"1024-65535\"");
            return None;
        }
    };
    match values::ports(&text) {
        Ok(value) => Some(Placed { value, place, given: true }),
        Err(error) => {
            report.fault(&place, error.to_string(), text, "write 443 or \"1024-65535\", within 1-65535");
            None
        }
    }
}

/// Common names of the IANA registry, and names that a rule may not use.
const PROTOCOLS: [(&str, u8); 21] = [
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("igmp", 2),
    ("ipip", 4),
    ("egp", 8),
    ("igp", 9),
    ("dccp", 33),
    ("ipv6", 41),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("eigrp", 88),
    ("ospf", 89),
    ("etherip", 97),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

fn number_of(name: &str) -> Option<u8> {
    PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

fn protocol(section: &impl RuleKeys, report: &mut Report) -> Option<u8> {
    const REMEDY: &str = "write a number from 0 to 255 or a name such as \"gre\"";
    let place = section.place_of(RuleKey::Protocol, report);
    let number = match section.scalar(RuleKey::Protocol) {
        Some(Scalar::Number(number)) => match u8::try_from(number) {
            Ok(number) => number,
            Err(_) => {
                report.fault(&place, "is not an IP protocol number", number.to_string(), REMEDY);
                return None;
            }
        },
        Some(Scalar::Text(name)) if number_of(&name).is_some() => number_of(&name)?,
        _ => {
            let name = section.text(RuleKey::Protocol, report)?;
            match number_of(&name.value) {
                Some(number) => number,
                None => {
                    let meant = nearest(&name.value, PROTOCOLS.iter().map(|(known, _)| *known));
                    let remedy = meant.map_or_else(|| REMEDY.to_owned(), |meant| format!("did you mean \"{meant}\"?"));
                    report.fault(&place, "is not a known protocol", quoted(&name.value), remedy);
                    return None;
                }
            }
        }
    };
    Some(number)
}
