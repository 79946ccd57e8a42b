//! `[[forward]]`.

use core::net::Ipv4Addr;
use core::ops::RangeInclusive;

use nat::Protocol;
use nat::settings::Admission;
use toml_edit::Item;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::shown;
use crate::values;

/// One `[[forward]]`; what is faulty is missing.
pub(crate) struct ForwardDraft {
    pub(crate) place: Place,
    pub(crate) protocols: &'static [Protocol],
    pub(crate) external: Option<Placed<Ipv4Addr>>,
    pub(crate) ports: Option<Placed<RangeInclusive<u16>>>,
    pub(crate) inside: Option<Placed<Ipv4Addr>>,
    pub(crate) inside_port: Option<Placed<u64>>,
    pub(crate) vrf: Option<Placed<String>>,
    pub(crate) admission: Admission,
}

impl ForwardDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> ForwardDraft {
        ForwardDraft {
            place: section.place.clone(),
            protocols: match section.choice("protocol", report) {
                Some("tcp") => &[Protocol::Tcp],
                Some("udp") => &[Protocol::Udp],
                Some(_) => &[Protocol::Tcp, Protocol::Udp],
                None => &[],
            },
            external: section.parsed("external", values::address, report),
            ports: ports(section, report),
            inside: section.parsed("inside", values::address, report),
            inside_port: section.integer("inside_port", report),
            vrf: section.text("vrf", report),
            admission: match section.choice("filtering", report) {
                Some("as-pool") => Admission::AsPool,
                _ => Admission::Anyone,
            },
        }
    }

    /// The internal ports, as many as external ones. None when something is missing or there are not so many.
    pub(crate) fn inside_ports(&self) -> Option<RangeInclusive<u16>> {
        let ports = &self.ports.as_ref()?.value;
        let first = match &self.inside_port {
            Some(first) => u16::try_from(first.value).ok()?,
            None => *ports.start(),
        };
        Some(first..=first.checked_add(ports.end() - ports.start())?)
    }
}

/// A number or a string.
fn ports(section: &Section, report: &mut Report) -> Option<Placed<RangeInclusive<u16>>> {
    if let Some(number) = section.item("ports").and_then(Item::as_integer) {
        let place = section.place_of("ports", report);
        return match values::ports(&number.to_string()) {
            Ok(value) => Some(Placed { value, place, given: true }),
            Err(error) => {
                let remedy = "write 443 or \"8000-8009\", within 1-65535";
                report.fault(&place, error.to_string(), number.to_string(), remedy);
                None
            }
        };
    }
    if let Some(value) = section.item("ports").and_then(Item::as_value).filter(|value| !value.is_str()) {
        let place = section.place_of("ports", report);
        report.fault(&place, "is not a port", shown(value), "write 443 or \"8000-8009\"");
        return None;
    }
    section.parsed("ports", values::ports, report)
}
