//! IPv6 addresses and routes against each other.

use core::net::Ipv6Addr;
use std::collections::HashMap;

use nat::settings::Address6;
use nat::settings::Ipv6;
use nat::settings::Route6;
use nat::types::InterfaceId;

use crate::check::routes::named_interface;
use crate::draft::Draft;
use crate::draft::interface::InterfaceDraft;
use crate::draft::interface::not_a_host6;
use crate::draft::route::RouteDraft;
use crate::report::Place;
use crate::report::Report;

/// The addresses and routes of IPv6; faulty ones are left out.
pub(crate) fn check(draft: &Draft, report: &mut Report) -> Ipv6 {
    let addresses = addresses(&draft.interfaces, report);
    let mut routes = Vec::new();
    let mut taken: HashMap<_, &Place> = HashMap::new();
    for route in &draft.routes {
        let Some(interface) = interface_of(&draft.interfaces, route, report) else { continue };
        let (Some(prefix), Some(via)) = (&route.prefix6, &route.via6) else { continue };
        let facing = draft.interfaces.get(interface).and_then(InterfaceDraft::facing);
        let facing = facing.map(|(side, vrf)| (side.index(), vrf));
        if let Some(first) = taken.insert((facing, prefix.value), &prefix.place) {
            let problem = format!("is the prefix of another route {}", first.on_line());
            let seen = shown(prefix.value);
            report.fault(&prefix.place, problem, seen, "keep one: there is one next hop per prefix");
            continue;
        }
        let (prefix, prefix_length) = prefix.value;
        routes.push(Route6 { prefix, prefix_length, next_hop: via.value, interface: id(interface) });
    }
    Ipv6 { addresses, routes }
}

fn id(index: usize) -> InterfaceId {
    InterfaceId(u16::try_from(index).unwrap_or(u16::MAX))
}

fn shown((address, length): (Ipv6Addr, u8)) -> String {
    format!("{address}/{length}")
}

fn shares_prefix(a: Ipv6Addr, b: Ipv6Addr, length: u8) -> bool {
    (a.to_bits() ^ b.to_bits()).checked_shr(128 - u32::from(length)).unwrap_or(0) == 0
}

/// No address twice in a realm, and no two interfaces of a realm on one subnet.
fn addresses(interfaces: &[InterfaceDraft], report: &mut Report) -> Vec<Address6> {
    let mut checked: Vec<(usize, Ipv6Addr, u8, &Place)> = Vec::new();
    for (index, interface) in interfaces.iter().enumerate() {
        for own in &interface.addresses6 {
            let (address, length) = own.value;
            let clash = checked.iter().find(|(other, known, known_length, _)| {
                let shares_addresses =
                    interfaces.get(*other).is_some_and(|other| interface.shares_addresses_with(other));
                shares_addresses
                    && (*known == address
                        || *other != index && shares_prefix(*known, address, length.min(*known_length)))
            });
            if let Some((_, _, _, first)) = clash {
                let problem = format!("is on the subnet of another address {}", first.on_line());
                report.fault(&own.place, problem, shown(own.value), "write each address once, on one interface");
                continue;
            }
            checked.push((index, address, length, &own.place));
        }
    }
    let settings = |&(index, address, prefix_length, _): &(usize, Ipv6Addr, u8, &Place)| Address6 {
        interface: id(index),
        address,
        prefix_length,
    };
    checked.iter().map(settings).collect()
}

/// The interface on whose subnet the router is; for a link-local router the one that is named.
fn interface_of(interfaces: &[InterfaceDraft], route: &RouteDraft, report: &mut Report) -> Option<usize> {
    let via = route.via6.as_ref()?;
    let seen = via.value.to_string();
    let named = named_interface(interfaces, route, report);
    if via.value.is_unicast_link_local() {
        let has_ipv6 = |index: &usize| interfaces.get(*index).is_some_and(|it| !it.addresses6.is_empty());
        if named.filter(has_ipv6).is_none() && (named.is_some() || route.interface.is_none()) {
            let remedy = "set interface to the name of an interface that has an IPv6 address";
            report.fault(&via.place, "is link-local, on no known interface", seen, remedy);
        }
        return named.filter(has_ipv6);
    }
    if let Some(kind) = not_a_host6(via.value) {
        report.fault(&via.place, format!("is {kind}"), seen, "write the address of a router");
        return None;
    }
    let holds = |interface: &InterfaceDraft| {
        interface.addresses6.iter().any(|own| shares_prefix(own.value.0, via.value, own.value.1))
    };
    let holding: Vec<usize> = (0..interfaces.len()).filter(|index| interfaces.get(*index).is_some_and(holds)).collect();
    let found = match named {
        Some(named) => holding.contains(&named).then_some(named),
        None => holding.first().copied(),
    };
    let Some(found) = found else {
        let remedy = "write a router on a subnet of Natrix, and of the interface if one is named";
        report.fault(&via.place, "is not on a connected prefix", seen, remedy);
        return None;
    };
    if named.is_none() && holding.len() > 1 {
        let remedy = "set interface to the name of one of them";
        report.fault(&via.place, "is on subnets of several interfaces", seen, remedy);
        return None;
    }
    let is_own = |other: &InterfaceDraft| other.addresses6.iter().any(|own| own.value.0 == via.value);
    if interfaces.get(found).is_some_and(is_own) {
        report.fault(&via.place, "is Natrix's own address", seen, "write the address of the router");
        return None;
    }
    Some(found)
}
