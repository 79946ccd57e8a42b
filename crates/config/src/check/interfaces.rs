//! Interfaces against each other: names, devices, VLANs, addresses.

use core::net::Ipv4Addr;
use std::collections::HashMap;

use nat::types::RealmId;
use nat::types::Side;

use crate::check::unique_names;
use crate::draft::interface::Attachment;
use crate::draft::interface::InterfaceDraft;
use crate::draft::interface::VRF_DEFAULT;
use crate::model::InterfaceLink;
use crate::report::Place;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;

/// MTU of an Ethernet, unless it is configured.
const MTU_DEFAULT: u16 = 1_500;
/// RFC 8200 §5.
const IPV6_MTU_MIN: u16 = 1_280;

/// Where each interface is, as far as it is known.
pub(crate) struct Links {
    /// Index of the interface that each port belongs to.
    pub(crate) ports: Vec<usize>,
    pub(crate) links: Vec<Option<InterfaceLink>>,
    pub(crate) mtus: Vec<u16>,
}

/// Checks the interfaces and finds their ports.
pub(crate) fn check(interfaces: &[InterfaceDraft], report: &mut Report) -> Links {
    unique_names("interface", interfaces.iter().filter_map(|interface| interface.name.as_ref()), report);
    unique_devices(interfaces, report);
    both_sides(interfaces, report);
    vrfs_max(interfaces, report);
    unique_addresses(interfaces, report);
    let links = links(interfaces, report);
    unique_vlans(interfaces, &links, report);
    ports_max(interfaces, &links, report);
    links
}

/// Ports that DPDK, as the distributions build it, can have (`RTE_MAX_ETHPORTS`).
const PORTS_MAX: usize = 32;

fn ports_max(interfaces: &[InterfaceDraft], links: &Links, report: &mut Report) {
    let beyond = links.ports.get(PORTS_MAX).and_then(|index| interfaces.get(*index));
    if let Some(beyond) = beyond {
        let problem = format!("is one port more than the {PORTS_MAX} that DPDK can have");
        let remedy = "share ports by 802.1Q with parent and vlan";
        report.fault(&beyond.place, problem, format!("ports: {}", links.ports.len()), remedy);
    }
}

fn vrfs_max(interfaces: &[InterfaceDraft], report: &mut Report) {
    let names = vrf_names(interfaces);
    if names.len() > RealmId::COUNT_MAX {
        let nowhere = Place { path: "interface".into(), line: None };
        let problem = format!("all together name more than {} VRFs", RealmId::COUNT_MAX);
        let remedy = "share VRFs, or run a further instance";
        report.fault(&nowhere, problem, format!("VRFs: {}", names.len()), remedy);
    }
}

/// The names of all VRFs; the position is the number of the realm. The first is that of interfaces
/// that name none.
pub(crate) fn vrf_names(interfaces: &[InterfaceDraft]) -> Vec<String> {
    let mut names = vec![VRF_DEFAULT.to_owned()];
    for (_, vrf) in interfaces.iter().filter_map(InterfaceDraft::facing).filter(|(side, _)| *side == Side::Inside) {
        if !names.iter().any(|name| name == vrf) {
            names.push(vrf.to_owned());
        }
    }
    names
}

fn unique_devices(interfaces: &[InterfaceDraft], report: &mut Report) {
    let mut taken: HashMap<&str, &Place> = HashMap::new();
    for interface in interfaces {
        let Attachment::Port { driver, .. } = &interface.attachment else { continue };
        let names = [Some(driver.value.device.as_str()), driver.value.kernel_interface.as_deref()];
        for name in names.into_iter().flatten() {
            if let Some(first) = taken.get(name) {
                let problem = format!("takes a device that is in use {}", first.on_line());
                let remedy = "give each port a device of its own, or share it by 802.1Q with parent and vlan";
                report.fault(&driver.place, problem, format!("\"{name}\""), remedy);
                break;
            }
        }
        for name in names.into_iter().flatten() {
            taken.entry(name).or_insert(&driver.place);
        }
    }
}

fn both_sides(interfaces: &[InterfaceDraft], report: &mut Report) {
    let nowhere = Place { path: "interface".into(), line: None };
    if interfaces.iter().any(|interface| interface.side.is_none()) {
        // Its realm may be the one that is missing.
        return;
    }
    for side in [Side::Inside, Side::Outside] {
        if !interfaces.iter().any(|interface| interface.side == Some(side)) {
            let problem = format!("no interface has realm = \"{}\"", side.name());
            let count = format!("interfaces: {}", interfaces.len());
            report.fault(&nowhere, problem, count, "add one: traffic passes between the two realms");
        }
    }
}

/// No address twice, and no two interfaces on one subnet.
fn unique_addresses(interfaces: &[InterfaceDraft], report: &mut Report) {
    let mut taken: HashMap<Ipv4Addr, Vec<(&InterfaceDraft, &Place)>> = HashMap::new();
    let mut connected: Vec<(nat::types::Prefix, usize, &Place)> = Vec::new();
    for (index, interface) in interfaces.iter().enumerate() {
        for own in &interface.addresses {
            let holders = taken.entry(own.value.address).or_default();
            if let Some((_, first)) = holders.iter().find(|(other, _)| interface.shares_addresses_with(other)) {
                let problem = format!("appears in the file twice, first {}", first.on_line());
                report.fault(&own.place, problem, own.value.address.to_string(), "write each address once");
            }
            holders.push((interface, &own.place));
        }
        for (prefix, place) in interface.connected() {
            let is_other = |owner: usize| {
                owner != index && interfaces.get(owner).is_some_and(|other| interface.shares_addresses_with(other))
            };
            let other = connected.iter().find(|(other, owner, _)| is_other(*owner) && other.overlaps(prefix));
            if let Some((other, owner, _)) = other {
                let label = interfaces.get(*owner).map_or("?", InterfaceDraft::label);
                let problem = format!("is on a subnet that overlaps {other} of interface \"{label}\"");
                report.fault(place, problem, prefix.to_string(), "give each interface a subnet of its own");
            }
            connected.push((prefix, index, place));
        }
    }
}

fn links(interfaces: &[InterfaceDraft], report: &mut Report) -> Links {
    let mut ports = Vec::new();
    let mut port_of = HashMap::new();
    for (index, interface) in interfaces.iter().enumerate() {
        if matches!(interface.attachment, Attachment::Port { .. }) {
            port_of.insert(index, ports.len());
            ports.push(index);
        }
    }
    let mut links = Vec::new();
    let mut mtus = Vec::new();
    for (index, interface) in interfaces.iter().enumerate() {
        let vlan = interface.vlan.as_ref().map(|vlan| vlan.value);
        let mtu = interface.mtu.as_ref().map(|mtu| mtu.value);
        let carrier = match &interface.attachment {
            Attachment::Port { .. } => Some(index),
            Attachment::Parent(_) => parent(interfaces, index, report),
            Attachment::Faulty => None,
        };
        let carrier_mtu = carrier.and_then(|carrier| interfaces.get(carrier)?.mtu.as_ref());
        let carrier_mtu = carrier_mtu.map_or(MTU_DEFAULT, |mtu| mtu.value);
        if let (Some(carrier), Some(own)) = (carrier, &interface.mtu)
            && own.value > carrier_mtu
        {
            let label = interfaces.get(carrier).map_or("?", InterfaceDraft::label);
            let problem = format!("is over the {carrier_mtu} bytes of its parent \"{label}\"");
            report.fault(&own.place, problem, own.value.to_string(), "raise the parent's mtu, or lower this one");
        }
        let mtu = mtu.unwrap_or(carrier_mtu);
        if !interface.addresses6.is_empty() && mtu < IPV6_MTU_MIN {
            let inherited =
                || Place { path: format!("{}.mtu", interface.place.path).into(), ..interface.place.clone() };
            let place = interface.mtu.as_ref().map_or_else(inherited, |own| own.place.clone());
            let problem = format!("is less than the {IPV6_MTU_MIN} bytes that RFC 8200 section 5 requires for IPv6");
            let remedy = format!("write {IPV6_MTU_MIN} or more, or remove the IPv6 addresses of the interface");
            report.fault(&place, problem, mtu.to_string(), remedy);
        }
        mtus.push(mtu);
        let port = carrier.and_then(|carrier| port_of.get(&carrier));
        links.push(port.map(|port| InterfaceLink { port: *port, vlan }));
    }
    Links { ports, links, mtus }
}

/// The interface whose port this one shares.
fn parent(interfaces: &[InterfaceDraft], child: usize, report: &mut Report) -> Option<usize> {
    let Attachment::Parent(parent) = &interfaces.get(child)?.attachment else { return None };
    let is_meant = |interface: &InterfaceDraft| interface.name.as_ref().is_some_and(|name| name.value == parent.value);
    let seen = format!("\"{}\"", parent.value.escape_debug());
    let Some(found) = interfaces.iter().position(is_meant) else {
        let ports = interfaces.iter().filter(|interface| matches!(interface.attachment, Attachment::Port { .. }));
        let names = ports.filter_map(|interface| interface.name.as_ref().map(|name| name.value.as_str()));
        let remedy = match nearest(&parent.value, names.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write the name of an interface with a driver: {}", one_of(names.take(4))),
        };
        report.fault(&parent.place, "is not the name of an interface", seen, remedy);
        return None;
    };
    match &interfaces.get(found)?.attachment {
        Attachment::Port { .. } => Some(found),
        Attachment::Parent(grand) => {
            let remedy = if found == child {
                "write the name of an interface with a driver".to_owned()
            } else {
                format!("write its parent, \"{}\"", grand.value.escape_debug())
            };
            report.fault(&parent.place, "is a sub-interface itself", seen, remedy);
            None
        }
        Attachment::Faulty => None,
    }
}

fn unique_vlans(interfaces: &[InterfaceDraft], links: &Links, report: &mut Report) {
    let mut taken: HashMap<(usize, Option<u16>), &InterfaceDraft> = HashMap::new();
    for (interface, link) in interfaces.iter().zip(&links.links) {
        let Some(link) = link else { continue };
        if link.vlan.is_none() && matches!(interface.attachment, Attachment::Parent(_)) {
            // Reported where the key is missing.
            continue;
        }
        if let Some(first) = taken.get(&(link.port, link.vlan)) {
            let place = interface.vlan.as_ref().map_or(&interface.place, |vlan| &vlan.place);
            let seen = link.vlan.map_or_else(|| "untagged".to_owned(), |vlan| vlan.to_string());
            let problem = format!("is in use on this port, by interface \"{}\"", first.label());
            report.fault(place, problem, seen, "give each interface of a port a VLAN of its own");
            continue;
        }
        taken.insert((link.port, link.vlan), interface);
    }
}
