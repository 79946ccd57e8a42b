//! Routes against interfaces.

use core::net::Ipv4Addr;
use std::collections::HashMap;

use nat::types::Prefix;
use nat::types::Side;

use crate::draft::Draft;
use crate::draft::interface::InterfaceDraft;
use crate::draft::interface::NO_HOST;
use crate::draft::interface::end_of_prefix;
use crate::draft::interface::is_of_no_host;
use crate::draft::route::RouteDraft;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;

/// A route whose interface is known.
pub(crate) struct ResolvedRoute {
    pub(crate) prefix: Prefix,
    pub(crate) next_hop: Ipv4Addr,
    pub(crate) interface: usize,
    pub(crate) place: Place,
    pub(crate) via_place: Place,
}

/// Finds the interface of each route; faulty routes are left out.
pub(crate) fn check(draft: &Draft, report: &mut Report) -> Vec<ResolvedRoute> {
    let mut resolved: Vec<ResolvedRoute> = Vec::new();
    let mut taken = HashMap::new();
    for route in draft.routes.iter().filter(|route| route.via6.is_none()) {
        let named = named_interface(&draft.interfaces, route, report);
        let Some(interface) = next_hop_interface(&draft.interfaces, route, named, report) else { continue };
        let (Some(prefix), Some(via)) = (&route.prefix, &route.via) else { continue };
        if is_of_no_host(prefix.value) {
            report.fault(&prefix.place, NO_HOST, prefix.value.to_string(), "remove the route: no packet takes it");
            continue;
        }
        let leads = draft.interfaces.get(interface);
        let facing = leads.and_then(InterfaceDraft::facing).map(|(side, vrf)| (side.index(), vrf));
        if let Some(first) = taken.get(&(facing, prefix.value)) {
            let first: &&Place = first;
            let problem = format!("is the prefix of another route {}", first.on_line());
            report.fault(
                &prefix.place,
                problem,
                prefix.value.to_string(),
                "keep one: there is one next hop per prefix",
            );
            continue;
        }
        taken.insert((facing, prefix.value), &prefix.place);
        let same = |other: &&InterfaceDraft| {
            other.facing().map(|(side, vrf)| (side.index(), vrf)) == facing
                && other.connected().any(|(connected, _)| connected == prefix.value)
        };
        if let Some(other) = draft.interfaces.iter().find(same) {
            let problem = format!("is the connected prefix of interface \"{}\"", other.label());
            report.fault(&prefix.place, problem, prefix.value.to_string(), "remove the route: the subnet needs none");
            continue;
        }
        resolved.push(ResolvedRoute {
            prefix: prefix.value,
            next_hop: via.value,
            interface,
            place: route.place.clone(),
            via_place: via.place.clone(),
        });
    }
    resolved
}

/// Warns if no route leads to the Internet, and none may come from the kernel. Two routes with half
/// of the addresses each are a default route, too.
pub(crate) fn no_default(draft: &Draft, routes: &[ResolvedRoute], report: &Report) -> Option<Warning> {
    let is_outside = |route: &ResolvedRoute| {
        draft.interfaces.get(route.interface).is_some_and(|interface| interface.side == Some(Side::Outside))
    };
    let has_default = routes.iter().any(|route| route.prefix.length() <= 1 && is_outside(route));
    if has_default || draft.learns(Side::Outside) {
        return None;
    }
    let place = Place { path: "route".into(), line: None };
    let problem = "there is no default route outside, so only destinations of other routes and of subnets of outside \
                   interfaces can be reached";
    let remedy = "write a [[route]] with prefix = \"0.0.0.0/0\" and the router outside as via";
    Some(report.warning(None, &place, problem.to_owned(), remedy))
}

/// The interface the route names; an error inside is for a name that is unknown.
pub(crate) fn named_interface(interfaces: &[InterfaceDraft], route: &RouteDraft, report: &mut Report) -> Option<usize> {
    let name = route.interface.as_ref()?;
    let is_meant = |other: &InterfaceDraft| other.name.as_ref().is_some_and(|other| other.value == name.value);
    let found = interfaces.iter().position(is_meant);
    if found.is_none() {
        let names = interfaces.iter().filter_map(|interface| interface.name.as_ref().map(|name| name.value.as_str()));
        let remedy = match nearest(&name.value, names.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write {}, or nothing", one_of(names.take(4))),
        };
        let seen = format!("\"{}\"", name.value.escape_debug());
        report.fault(&name.place, "is not the name of an interface", seen, remedy);
    }
    found
}

/// The interface on whose subnet the next hop is.
fn next_hop_interface(
    interfaces: &[InterfaceDraft],
    route: &RouteDraft,
    named: Option<usize>,
    report: &mut Report,
) -> Option<usize> {
    let via = route.via.as_ref()?;
    let seen = via.value.to_string();
    let connected = |interface: &InterfaceDraft| {
        // The most specific, for its network and broadcast address.
        let holding = interface.connected().filter(|(prefix, _)| prefix.contains(via.value));
        holding.map(|(prefix, _)| prefix).max_by_key(|prefix| prefix.length())
    };
    // Inside, VRFs may share subnets: the named one counts then.
    let holding: Vec<(usize, Prefix)> =
        interfaces.iter().enumerate().filter_map(|(index, it)| Some((index, connected(it)?))).collect();
    let found = holding.iter().find(|(index, _)| named == Some(*index)).or(holding.first()).copied();
    if let (None, [(one, _), (other, _), ..]) = (named, holding.as_slice()) {
        let label = |index: usize| interfaces.get(index).map_or("?", InterfaceDraft::label);
        let problem = format!("is on subnets of interfaces \"{}\" and \"{}\"", label(*one), label(*other));
        report.fault(&via.place, problem, seen, "set interface to the name of one of them");
        return None;
    }
    let Some((interface, prefix)) = found else {
        let subnets: Vec<String> = interfaces
            .iter()
            .flat_map(|interface| interface.connected().map(|(prefix, _)| prefix.to_string()))
            .take(4)
            .collect();
        if interfaces.iter().all(|interface| !interface.addresses.is_empty()) && !subnets.is_empty() {
            let remedy = format!("write a router on a subnet of Natrix, such as {}", subnets.join(", "));
            report.fault(&via.place, "is not on a connected prefix", seen, remedy);
        }
        return None;
    };
    if let Some(named) = named.filter(|named| *named != interface) {
        let label = |index: usize| interfaces.get(index).map_or("?", InterfaceDraft::label);
        let problem = format!("is on {prefix} of interface \"{}\", not of \"{}\"", label(interface), label(named));
        report.fault(&via.place, problem, seen, "remove interface from the route, or write another next hop");
        return None;
    }
    let leads = interfaces.get(interface)?;
    let own = interfaces.iter().filter(|other| leads.shares_addresses_with(other));
    let own = own.into_iter().find(|other| other.addresses.iter().any(|own| own.value.address == via.value));
    if let Some(own) = own {
        let problem = format!("is Natrix's own address on interface \"{}\"", own.label());
        report.fault(&via.place, problem, seen, "write the address of the router behind it");
        return None;
    }
    if let Some(kind) = end_of_prefix(via.value, prefix.length()) {
        report.fault(&via.place, format!("is the {kind} address of {prefix}"), seen, "write the address of a router");
        return None;
    }
    Some(interface)
}
