//! `[[interface]]`.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use nat::settings::InterfaceAddress;
use nat::types::Prefix;
use nat::types::Side;

use crate::draft::as_name;
use crate::draft::name;
use crate::driver;
use crate::driver::Driver;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::quoted;
use crate::values;
use crate::values::Either;

/// One `[[interface]]`; what is faulty is missing.
pub(crate) struct InterfaceDraft {
    pub(crate) place: Place,
    pub(crate) name: Option<Placed<String>>,
    pub(crate) side: Option<Side>,
    /// The inside realm; of an outside interface the preset one.
    pub(crate) vrf: Option<Placed<String>>,
    pub(crate) attachment: Attachment,
    pub(crate) vlan: Option<Placed<u16>>,
    pub(crate) addresses: Vec<Placed<InterfaceAddress>>,
    /// IPv6 addresses with the length of their connected prefixes.
    pub(crate) addresses6: Vec<Placed<(Ipv6Addr, u8)>>,
    pub(crate) mtu: Option<Placed<u16>>,
    /// Name of its device in the kernel.
    pub(crate) kernel: Option<Placed<String>>,
    /// The kernel's table of its routes.
    pub(crate) kernel_table: Option<Placed<u32>>,
}

/// The VRF of interfaces that name none.
pub(crate) const VRF_DEFAULT: &str = "default";

/// Where its packets are.
pub(crate) enum Attachment {
    /// On a device of its own.
    Port { driver: Placed<Driver>, rx_descriptors: u16, tx_descriptors: u16 },
    /// On the port of another interface.
    Parent(Placed<String>),
    /// Unknown; reported already.
    Faulty,
}

impl InterfaceDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> InterfaceDraft {
        let attachment = attachment(section, report);
        let vlan = section.integer("vlan", report).map(narrow);
        if section.has("parent") && !section.has("vlan") {
            let remedy = "set vlan to the number of its VLAN";
            report.fault(&section.place, "has a parent and no vlan", "", remedy);
        }
        let name = name(section, report);
        let side = section.choice("realm", report);
        let side = side.map(|realm| if realm == "inside" { Side::Inside } else { Side::Outside });
        let vrf = section.text("vrf", report).and_then(|text| as_name(text, report));
        if let Some(vrf) = vrf.as_ref().filter(|vrf| vrf.value != VRF_DEFAULT && side == Some(Side::Outside)) {
            let remedy = "remove it, or write realm = \"inside\"";
            report.fault(&vrf.place, "is for inside interfaces; the outside is one realm", quoted(&vrf.value), remedy);
        }
        let (addresses, addresses6) = addresses(section, side, report);
        InterfaceDraft {
            name,
            side,
            vrf,
            attachment,
            vlan,
            addresses,
            addresses6,
            mtu: section.integer("mtu", report).map(narrow),
            kernel: section.text("kernel", report).and_then(|text| device_name(text, report)),
            kernel_table: section.integer("kernel_table", report).map(|table| Placed {
                value: u32::try_from(table.value).unwrap_or(u32::MAX),
                place: table.place,
                given: table.given,
            }),
            place: section.place.clone(),
        }
    }

    /// Its name, for messages.
    pub(crate) fn label(&self) -> &str {
        self.name.as_ref().map_or("?", |name| name.value.as_str())
    }

    /// Which addresses it may not share: those of the outside, or of its VRF. None while that is
    /// not known.
    pub(crate) fn facing(&self) -> Option<(Side, &str)> {
        let vrf = self.vrf.as_ref()?.value.as_str();
        Some(match self.side? {
            Side::Inside => (Side::Inside, vrf),
            Side::Outside => (Side::Outside, ""),
        })
    }

    /// Whether inside addresses of the two mean the same.
    pub(crate) fn shares_addresses_with(&self, other: &InterfaceDraft) -> bool {
        match (self.facing(), other.facing()) {
            (Some((Side::Inside, vrf)), Some((Side::Inside, other))) => vrf == other,
            // A faulty VRF is not this one.
            _ => self.vrf.is_some() && other.vrf.is_some(),
        }
    }

    /// Its connected prefixes; those of one address only connect nothing.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (Prefix, &Place)> {
        self.addresses.iter().filter_map(|own| {
            let prefix = Prefix::new(own.value.address, own.value.prefix_length)?;
            (prefix.length() < 32).then_some((prefix, &own.place))
        })
    }
}

/// What the kernel takes as the name of a device (IFNAMSIZ), less what shells and files take amiss.
fn device_name(text: Placed<String>, report: &mut Report) -> Option<Placed<String>> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let reserved = ["lo", ".", "..", "all", "default"];
    if (1..=15).contains(&text.value.len())
        && text.value.bytes().all(is_fine)
        && !reserved.contains(&text.value.as_str())
    {
        return Some(text);
    }
    let remedy = "write 1 to 15 letters, digits, - _ or ., such as \"nx-wan\"";
    report.fault(&text.place, "is no name for a device of the kernel", quoted(&text.value), remedy);
    None
}

/// The key table's ranges keep these below 65536.
fn narrow(number: Placed<u64>) -> Placed<u16> {
    let value = u16::try_from(number.value).unwrap_or(u16::MAX);
    Placed { value, place: number.place, given: number.given }
}

fn attachment(section: &Section, report: &mut Report) -> Attachment {
    let driver = section.text("driver", report);
    let parent = section.text("parent", report);
    let rx_descriptors = descriptors(section, "rx_descriptors", report);
    let tx_descriptors = descriptors(section, "tx_descriptors", report);
    if section.has("driver") && section.has("parent") {
        let remedy = "keep driver for a port, parent for a sub-interface";
        report.fault(&section.place, "has both a driver and a parent", "", remedy);
        return Attachment::Faulty;
    }
    if !section.has("driver") && !section.has("parent") {
        let remedy = "set driver to its device, or set parent and vlan for a sub-interface";
        report.fault(&section.place, "has neither a driver nor a parent", "", remedy);
        return Attachment::Faulty;
    }
    if let Some(parent) = parent {
        for key in ["rx_descriptors", "tx_descriptors"] {
            if section.has(key) {
                let remedy = format!("set it on interface \"{}\"", parent.value.escape_debug());
                report.fault(&section.place_of(key, report), "belongs to the port, not to a sub-interface", "", remedy);
            }
        }
        return Attachment::Parent(parent);
    }
    let Some(text) = driver else { return Attachment::Faulty };
    match driver::parse(&text.value) {
        Ok(driver) => {
            let driver = Placed { value: driver, place: text.place, given: true };
            match (rx_descriptors, tx_descriptors) {
                (Some(rx_descriptors), Some(tx_descriptors)) => {
                    Attachment::Port { driver, rx_descriptors, tx_descriptors }
                }
                _ => Attachment::Faulty,
            }
        }
        Err(fault) => {
            report.fault(&text.place, fault.problem, quoted(&text.value), fault.remedy);
            Attachment::Faulty
        }
    }
}

/// Rings of devices are powers of two.
fn descriptors(section: &Section, key: &str, report: &mut Report) -> Option<u16> {
    let number = narrow(section.integer(key, report)?);
    if number.value.is_power_of_two() {
        return Some(number.value);
    }
    let remedy = format!("write {}", number.value.next_power_of_two());
    report.fault(&number.place, "is not a power of two", number.value.to_string(), remedy);
    None
}

type Addresses = (Vec<Placed<InterfaceAddress>>, Vec<Placed<(Ipv6Addr, u8)>>);

fn addresses(section: &Section, side: Option<Side>, report: &mut Report) -> Addresses {
    let written = section.parsed_list("addresses", values::any_address_in_prefix, "\"10.0.0.1/24\"", report);
    let is_empty = section.item("addresses").and_then(|item| item.as_array()).is_some_and(|array| array.is_empty());
    if is_empty {
        let remedy = "write the address and prefix length Natrix has there";
        report.fault(&section.place_of("addresses", report), "is empty", "[]", remedy);
    }
    let mut addresses = Vec::new();
    let mut addresses6 = Vec::new();
    let has_any = !written.is_empty();
    let mut has_ipv4 = false;
    for own in written {
        let (address, prefix_length) = match own.value {
            Either::V4(value) => value,
            Either::V6(value) => {
                addresses6.extend(address6(Placed { value, place: own.place, given: own.given }, report));
                continue;
            }
        };
        has_ipv4 = true;
        let text = format!("\"{address}/{prefix_length}\"");
        if prefix_length == 0 {
            report.fault(&own.place, "connects every address", text, "write the length of its subnet, 1 to 32");
        } else if let Some(kind) = not_a_host(address) {
            report.fault(&own.place, format!("is {kind}, which no host can have"), text, "write a unicast address");
        } else if let Some(kind) = end_of_prefix(address, prefix_length) {
            report.fault(&own.place, format!("is the {kind} address of its prefix"), text, "write a host's address");
        } else {
            let value = InterfaceAddress { address, prefix_length };
            addresses.push(Placed { value, place: own.place, given: own.given });
        }
    }
    if !addresses.is_empty() && !is_empty && addresses.iter().all(|own| own.value.prefix_length == 32) {
        let remedy = "write at least one with the length of the subnet, such as /24";
        report.fault(&section.place_of("addresses", report), "have no neighbours, all are /32", "", remedy);
    }
    // Inside, hosts of NAT64 and B4s need no IPv4 on their links.
    if has_any && !has_ipv4 && side == Some(Side::Outside) {
        let remedy = "write an IPv4 address too: what leaves here is IPv4";
        report.fault(&section.place_of("addresses", report), "have no IPv4 address", "", remedy);
    }
    (addresses, addresses6)
}

/// An IPv6 address that Natrix can have.
fn address6(own: Placed<(Ipv6Addr, u8)>, report: &mut Report) -> Option<Placed<(Ipv6Addr, u8)>> {
    let (address, prefix_length) = own.value;
    let text = format!("\"{address}/{prefix_length}\"");
    if prefix_length == 0 {
        report.fault(&own.place, "connects every address", text, "write the length of its subnet, 1 to 128");
        return None;
    }
    if let Some(kind) = not_a_host6(address) {
        report.fault(&own.place, format!("is {kind}"), text, "write a global or unique local unicast address");
        return None;
    }
    Some(own)
}

/// What an IPv6 address is when Natrix cannot be given it.
pub(crate) fn not_a_host6(address: Ipv6Addr) -> Option<&'static str> {
    match address {
        Ipv6Addr::UNSPECIFIED => Some("the unspecified address"),
        Ipv6Addr::LOCALHOST => Some("the loopback address"),
        _ if address.is_multicast() => Some("a multicast address in ff00::/8"),
        _ if address.is_unicast_link_local() => Some("in fe80::/10 (link-local), where Natrix has one of its own"),
        _ if matches!(address.to_bits() >> 32, 0 | 0xffff) => Some("an IPv4 address inside IPv6"),
        _ => None,
    }
}

/// What an address is when no host can have it.
pub(crate) fn not_a_host(address: Ipv4Addr) -> Option<&'static str> {
    match address.octets()[0] {
        0 => Some("in 0.0.0.0/8 (this network)"),
        127 => Some("in 127.0.0.0/8 (loopback)"),
        224..=239 => Some("in 224.0.0.0/4 (multicast)"),
        240..=255 => Some("in 240.0.0.0/4 (reserved)"),
        _ => None,
    }
}

/// What a prefix of [`Prefix::HOSTS`] is: no IPv4 host has such an address. Inside Natrix they
/// stand for IPv6 hosts, so it is never what was meant.
pub(crate) const NO_HOST: &str = "has multicast or reserved addresses only";

/// Whether no IPv4 host can have an address of this prefix.
pub(crate) fn is_of_no_host(prefix: Prefix) -> bool {
    Prefix::HOSTS.contains(prefix.address())
}

/// Whether it is the network's or the broadcast address of its prefix. A /31 has neither (RFC
/// 3021).
pub(crate) fn end_of_prefix(address: Ipv4Addr, length: u8) -> Option<&'static str> {
    let prefix = Prefix::new(address, length)?;
    match length {
        31.. => None,
        _ if address == prefix.address() => Some("network"),
        _ if address == prefix.last() => Some("broadcast"),
        _ => None,
    }
}
