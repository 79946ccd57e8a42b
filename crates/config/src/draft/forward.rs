//! `[[forward]]`.

use core::net::Ipv4Addr;
use core::ops::RangeInclusive;

use nat::Protocol;
use nat::redirection::Target;
use nat::settings::Admission;
use nat::types::InsideHost;
use toml_edit::Item;

use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::shown;
use crate::values;
use crate::values::Either;

/// One `[[forward]]`; what is faulty is missing.
pub(crate) struct ForwardDraft {
    pub(crate) place: Place,
    pub(crate) protocols: &'static [Protocol],
    pub(crate) external: Option<Placed<Ipv4Addr>>,
    pub(crate) ports: Option<Placed<RangeInclusive<u16>>>,
    pub(crate) inside: Option<Placed<InsideHost>>,
    pub(crate) inside_port: Option<Placed<u64>>,
    /// Where they lead instead, if it says so.
    pub(crate) targets: Option<Vec<Placed<Target>>>,
    pub(crate) is_sticky: bool,
    pub(crate) vrf: Option<Placed<String>>,
    pub(crate) admission: Admission,
}

impl ForwardDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> ForwardDraft {
        where_to(section, report);
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
            inside: inside(section, report),
            inside_port: section.integer("inside_port", report),
            targets: section
                .has("targets")
                .then(|| section.parsed_list("targets", values::target, "\"10.0.0.80:8080 weight 2\"", report)),
            is_sticky: section.boolean("sticky", report).unwrap_or(false),
            vrf: section.text("vrf", report),
            admission: match section.choice("filtering", report) {
                Some("as-pool") => Admission::AsPool,
                _ => Admission::Anyone,
            },
        }
    }

    /// The internal ports, as many as external ones. None when something is missing or there are
    /// not so many.
    pub(crate) fn inside_ports(&self) -> Option<RangeInclusive<u16>> {
        let first = self.inside_port.as_ref().map(|first| u16::try_from(first.value));
        self.ports_from(first.transpose().ok()?)
    }

    /// Internal ports that begin with this one, or are the external ones.
    fn ports_from(&self, first: Option<u16>) -> Option<RangeInclusive<u16>> {
        let ports = &self.ports.as_ref()?.value;
        let first = first.unwrap_or(*ports.start());
        Some(first..=first.checked_add(ports.end() - ports.start())?)
    }

    /// Each place it leads to.
    pub(crate) fn ends(&self) -> Vec<End> {
        let target = |target: &Placed<Target>| End {
            host: Ipv4Addr::from_bits(target.value.address).into(),
            first: target.value.port,
            ports: self.ports_from(target.value.port),
            place: target.place.clone(),
            port_place: target.place.clone(),
        };
        let inside = |inside: &Placed<InsideHost>| End {
            host: inside.value,
            first: self.inside_port.as_ref().and_then(|first| u16::try_from(first.value).ok()),
            ports: self.inside_ports(),
            place: inside.place.clone(),
            port_place: self.inside_port.as_ref().map_or(&self.place, |first| &first.place).clone(),
        };
        match &self.targets {
            Some(targets) => targets.iter().map(target).collect(),
            None => self.inside.iter().map(inside).collect(),
        }
    }
}

/// An inside host that a forward leads to.
pub(crate) struct End {
    pub(crate) host: InsideHost,
    /// The port of the first external one, if it is another.
    pub(crate) first: Option<u16>,
    /// None when there are not so many.
    pub(crate) ports: Option<RangeInclusive<u16>>,
    pub(crate) place: Place,
    pub(crate) port_place: Place,
}

/// An address, or an inner address and its B4.
fn inside(section: &Section, report: &mut Report) -> Option<Placed<InsideHost>> {
    let inside = section.parsed("inside", values::any_address, report);
    let b4 = section.parsed("b4", values::address6, report);
    if let Some(b4) = b4.as_ref().filter(|_| !section.has("inside")) {
        let remedy = "write inside = \"192.168.1.2\", the address of the host behind the B4";
        report.fault(&b4.place, "has no effect without inside", b4.value.to_string(), remedy);
    }
    let Placed { value, place, given } = inside?;
    let value = match (value, b4) {
        (Either::V4(inner), Some(b4)) => InsideHost::BehindB4 { b4: b4.value, inner },
        // A faulty one is already reported.
        (Either::V4(_), None) if section.has("b4") => return None,
        (Either::V4(address), None) => InsideHost::Ipv4(address),
        (Either::V6(address), None) => InsideHost::Ipv6(address),
        (Either::V6(address), Some(b4)) => {
            let remedy = "write the IPv4 address of the host behind the B4, or remove b4";
            report.fault(&place, "is not behind a B4, which has only IPv4 hosts", address.to_string(), remedy);
            drop(b4);
            return None;
        }
    };
    Some(Placed { value, place, given })
}

/// To one address, or to several: one of the two, with its own keys.
fn where_to(section: &Section, report: &mut Report) {
    let has_targets = section.has("targets");
    match (section.has("inside"), has_targets) {
        (false, false) => {
            let remedy = "write inside = \"10.0.0.80\", or targets = [\"10.0.0.80\", \"10.0.0.81\"]";
            report.fault(&section.place, "has no destination", "", remedy);
        }
        (true, true) => {
            let problem = "cannot be combined with targets";
            report.fault(&section.place_of("inside", report), problem, "", "write one of the two");
        }
        _ => {}
    }
    if has_targets && section.has("inside_port") {
        let remedy = "write the port with each target: \"10.0.0.80:8080\"";
        report.fault(&section.place_of("inside_port", report), "goes with inside, not with targets", "", remedy);
    }
    if section.has("sticky") && !has_targets {
        let remedy = "remove it";
        report.fault(&section.place_of("sticky", report), "has no effect without targets", "", remedy);
    }
    let is_empty = section.item("targets").and_then(Item::as_array).is_some_and(toml_edit::Array::is_empty);
    if is_empty {
        let remedy = "write targets = [\"10.0.0.80\", \"10.0.0.81\"]";
        report.fault(&section.place_of("targets", report), "is empty, so no server would answer", "[]", remedy);
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
