//! `[[rule]]`.

use nat::Protocol;
use nat::types::Prefix;
use toml_edit::Item;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::section::Section;
use crate::section::quoted;
use crate::values;

/// One `[[rule]]`; what is faulty is missing.
pub(crate) struct RuleDraft {
    pub(crate) place: Place,
    pub(crate) protocol: Option<u8>,
    pub(crate) inside: Option<Placed<Prefix>>,
    pub(crate) outside: Option<Placed<Prefix>>,
}

impl RuleDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> RuleDraft {
        // There is one action, so that only its being there and right matters.
        let _ = section.choice("action", report);
        RuleDraft {
            place: section.place.clone(),
            protocol: protocol(section, report),
            inside: section.parsed("inside", values::prefix, report),
            outside: section.parsed("outside", values::prefix, report),
        }
    }
}

/// Names of the IANA registry that one meets, and those that a rule may not have.
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

fn protocol(section: &Section, report: &mut Report) -> Option<u8> {
    const REMEDY: &str = "write a number from 0 to 255 or a name such as \"gre\"";
    let place = section.place_of("protocol", report);
    let number = match section.item("protocol").and_then(Item::as_integer) {
        Some(number) => match u8::try_from(number) {
            Ok(number) => number,
            Err(_) => {
                report.fault(&place, "is not an IP protocol number", number.to_string(), REMEDY);
                return None;
            }
        },
        None => {
            let name = section.text("protocol", report)?;
            match PROTOCOLS.iter().find(|(known, _)| *known == name.value) {
                Some((_, number)) => *number,
                None => {
                    let meant = nearest(&name.value, PROTOCOLS.iter().map(|(known, _)| *known));
                    let remedy = meant.map_or_else(|| REMEDY.to_owned(), |meant| format!("did you mean \"{meant}\"?"));
                    report.fault(&place, "is not a known protocol", quoted(&name.value), remedy);
                    return None;
                }
            }
        }
    };
    if let Some(protocol) = Protocol::from_number(number) {
        let remedy = "remove the rule: Natrix translates it, and an inside source must not leave untranslated";
        report.fault(&place, "is translated and can not be passed", quoted(protocol.name()), remedy);
        return None;
    }
    Some(number)
}
