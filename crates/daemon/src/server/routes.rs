//! Routes and neighbours for `show`.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::ops::Bound;

use control::Cursor;
use control::Fault;
use control::List;
use control::Neighbour;
use control::Page;
use control::Route;
use control::RouteNextHop;
use control::RouteSource;
use nat::Settings;
use nat::settings::Route6;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;

use super::convert;
use super::lists::engine_filter;
use super::lists::for_each;
use super::lists::page_of;
use crate::instance::Instance;
use crate::neighbour::AnyView;
use crate::routing::rib::Candidate;
use crate::routing::rib::Rib;
use crate::routing::rib::Source;
use crate::routing::rib::Table;

/// Parts of a cursor for each table: the lengths of prefixes.
const PARTS: usize = 64;
/// Prefixes examined for one page, so that a filter without a match does not walk all routes at
/// once.
const EXAMINED_MAX: usize = 200_000;

pub(crate) fn routes(instance: &Instance, list: &List) -> Result<Page<Route>, Fault> {
    let shared = instance.shared();
    let settings = shared.settings();
    known_names(settings, list)?;
    match list.filter.address {
        Some(IpAddr::V4(address)) => {
            let mut objects = instance.with_routes(|rib| covering(rib, settings, list, address));
            objects.extend(pools(instance, settings, list, |prefix| prefix.contains(address)));
            Ok(Page::whole(objects))
        }
        Some(IpAddr::V6(address)) => Ok(Page::whole(covering6(settings, list, address))),
        None => {
            let pools = pools(instance, settings, list, |_| true);
            instance.with_routes(|rib| walk(rib, settings, list, pools))
        }
    }
}

/// An unknown VRF or interface is an error and not an empty list.
fn known_names(settings: &Settings, list: &List) -> Result<(), Fault> {
    let known = |what: &str, name: &str, all: Vec<&str>| {
        if all.contains(&name) {
            return Ok(());
        }
        Err(Fault::new(format!("{what} \"{name}\""), "does not exist", format!("use one of: {}", all.join(", "))))
    };
    if let Some(name) = &list.filter.interface {
        known("interface", name, settings.interfaces.iter().map(|interface| interface.name.as_str()).collect())?;
    }
    match &list.filter.vrf {
        Some(name) => known("VRF", name, settings.realm_names.iter().map(String::as_str).collect()),
        None => Ok(()),
    }
}

fn is_wanted_table(settings: &Settings, list: &List, table: Facing) -> bool {
    let vrf = || settings.realm_names.get(table.realm.index());
    list.filter.side.is_none_or(|side| side == convert::side(table.side))
        && list.filter.vrf.as_ref().is_none_or(|wanted| table.side == Side::Inside && vrf() == Some(wanted))
}

fn is_wanted(list: &List, route: &Route) -> bool {
    let by = |name: &String| route.next_hops.iter().any(|hop| hop.interface == *name);
    list.filter.interface.as_ref().is_none_or(by) && list.filter.source.is_none_or(|source| source == route.source)
}

fn facing(table: Table) -> Facing {
    match table {
        Table::Outside => Facing::OUTSIDE,
        Table::Inside(realm) => Facing::inside(realm),
    }
}

fn walk(rib: &Rib, settings: &Settings, list: &List, pools: Vec<Route>) -> Result<Page<Route>, Fault> {
    let limit = list.limit_effective() as usize;
    let start = list.start()?;
    let mut objects = Vec::new();
    let mut examined = 0;
    for table in Table::all(settings.realms()) {
        if table.index() < start.part / PARTS || !is_wanted_table(settings, list, facing(table)) {
            continue;
        }
        let begins_here = table.index() == start.part / PARTS;
        let at = Prefix::new(Ipv4Addr::from_bits(start.place), (start.part % PARTS) as u8).filter(|_| begins_here);
        let mut next = rib.next_prefix(table, Bound::Included(at.unwrap_or(Prefix::ALL)));
        while let Some(prefix) = next {
            if objects.len() >= limit || examined >= EXAMINED_MAX {
                let part = table.index() * PARTS + usize::from(prefix.length());
                let cursor = Cursor { part, place: prefix.address().to_bits() };
                return Ok(Page { objects, cursor: Some(cursor.to_string()) });
            }
            examined += 1;
            let found = described(rib, settings, table, prefix, None);
            objects.extend(found.into_iter().filter(|route| is_wanted(list, route)));
            next = rib.next_prefix(table, Bound::Excluded(prefix));
        }
    }
    let last = rib.tables() * PARTS;
    let place = if start.part == last { start.place as usize } else { 0 };
    let mut rest = all6(settings, list).into_iter().chain(pools).skip(place);
    let room = limit.saturating_sub(objects.len());
    let taken: Vec<Route> = rest.by_ref().take(room).collect();
    let cursor = Cursor { part: last, place: (place + taken.len()) as u32 };
    objects.extend(taken);
    let cursor = rest.next().is_some().then(|| cursor.to_string());
    Ok(Page { objects, cursor })
}

/// The pools, each with whether it is announced.
fn pools(instance: &Instance, settings: &Settings, list: &List, is_meant: impl Fn(&Prefix) -> bool) -> Vec<Route> {
    let Some(routing) = instance.routing() else { return Vec::new() };
    let pools = routing.pools();
    let meant =
        pools.prefixes.iter().filter(|prefix| is_meant(prefix) && is_wanted_table(settings, list, Facing::OUTSIDE));
    let route = |prefix: &Prefix| {
        let used = pools.announced.contains(prefix);
        let reason = match pools.withheld {
            _ if used => "announced: a route of protocol 110 in the kernel".to_owned(),
            Some(why) => format!("not announced: {}", why.reason()),
            None => "not announced: the kernel refuses the route".to_owned(),
        };
        Route {
            side: convert::side(Side::Outside),
            vrf: None,
            prefix: prefix.to_string(),
            source: RouteSource::Pool,
            next_hops: Vec::new(),
            protocol: None,
            metric: None,
            used,
            reason,
        }
    };
    meant.map(route).filter(|route| is_wanted(list, route)).collect()
}

/// All routes that cover an address; in each table one is used.
fn covering(rib: &Rib, settings: &Settings, list: &List, address: Ipv4Addr) -> Vec<Route> {
    let mut objects = Vec::new();
    for table in Table::all(settings.realms()) {
        if !is_wanted_table(settings, list, facing(table)) {
            continue;
        }
        let longest = rib.longest(table, address);
        for prefix in (0..=32).rev().filter_map(|length| Prefix::new(address, length)) {
            let found = described(rib, settings, table, prefix, longest);
            objects.extend(found.into_iter().filter(|route| is_wanted(list, route)));
        }
    }
    objects
}

/// The routes for a prefix, the one in use first. `longest`: the prefix that counts for the address
/// in question.
fn described(rib: &Rib, settings: &Settings, table: Table, prefix: Prefix, longest: Option<Prefix>) -> Vec<Route> {
    let candidates = rib.candidates(table, prefix);
    let best = candidates.first().map(|candidate| candidate.source);
    let is_shadowed = longest.is_some_and(|longest| longest != prefix);
    let route = |(place, candidate): (usize, &Candidate)| {
        let used = place == 0 && !is_shadowed;
        let reason = match (place, best) {
            (0, _) if is_shadowed => "a longer prefix covers the address".to_owned(),
            (0, _) if candidate.source == Source::Excluded => "leads inside: never sent outside (RFC 6598)".to_owned(),
            (0, _) if candidates.len() == 1 && longest.is_some() => "the longest prefix of the address".to_owned(),
            (0, _) if candidates.len() == 1 => "the only route of this prefix".to_owned(),
            (0, _) => preferred(candidate.source).to_owned(),
            (_, Some(best)) => beaten(best, candidate.source).to_owned(),
            (_, None) => String::new(),
        };
        Route { used, reason, ..route_of(settings, table, prefix, candidate) }
    };
    candidates.iter().enumerate().map(route).collect()
}

fn preferred(source: Source) -> &'static str {
    match source {
        Source::Connected => "connected routes are preferred to all others",
        Source::Static => "static routes are preferred to routes of the kernel",
        Source::Kernel { .. } => "the lowest metric in the kernel",
        Source::Excluded => "leads inside: never sent outside (RFC 6598)",
    }
}

fn beaten(by: Source, source: Source) -> &'static str {
    match (by, source) {
        (Source::Connected, _) => "a connected route has the same prefix",
        (Source::Static, _) => "a static route has the same prefix",
        (_, Source::Excluded) => "a route outside has the same prefix",
        _ => "another route of the kernel has a lower metric",
    }
}

fn route_of(settings: &Settings, table: Table, prefix: Prefix, candidate: &Candidate) -> Route {
    let Facing { side, realm } = facing(table);
    let next_hop = |hop: &crate::routing::rib::Hop| RouteNextHop {
        interface: interface_name(settings, hop.interface),
        via: (hop.gateway != 0).then(|| Ipv4Addr::from_bits(hop.gateway).to_string()),
        weight: hop.weight,
    };
    let (source, protocol, metric) = match candidate.source {
        Source::Connected => (RouteSource::Connected, None, None),
        Source::Static => (RouteSource::Static, None, None),
        Source::Kernel { protocol, metric } => (RouteSource::Kernel, Some(protocol_name(protocol)), Some(metric)),
        Source::Excluded => (RouteSource::Excluded, None, None),
    };
    Route {
        side: convert::side(side),
        vrf: (side == Side::Inside).then(|| lookup::convert::vrf_name(settings, realm)),
        prefix: prefix.to_string(),
        source,
        next_hops: candidate.hops.iter().map(next_hop).collect(),
        protocol,
        metric,
        used: true,
        reason: String::new(),
    }
}

fn interface_name(settings: &Settings, id: InterfaceId) -> String {
    settings.interfaces.get(id.index()).map_or_else(String::new, |interface| interface.name.clone())
}

/// The name that iproute2 gives to the number of a routing protocol (`rt_protos`).
fn protocol_name(number: u8) -> String {
    let known = match number {
        2 => "kernel",
        3 => "boot",
        4 => "static",
        9 => "ra",
        11 => "zebra",
        12 => "bird",
        16 => "dhcp",
        18 => "keepalived",
        42 => "babel",
        186 => "bgp",
        187 => "isis",
        188 => "ospf",
        189 => "rip",
        192 => "eigrp",
        _ => return number.to_string(),
    };
    known.to_owned()
}

/// Routes of IPv6: those of the configuration.
fn all6(settings: &Settings, list: &List) -> Vec<Route> {
    let mut routes: Vec<(Facing, Ipv6Addr, u8, Route)> = Vec::new();
    let mut add = |interface: InterfaceId, prefix: Ipv6Addr, length: u8, via: Option<Ipv6Addr>| {
        let Some(towards) = settings.interfaces.get(interface.index()).map(nat::settings::Interface::facing) else {
            return;
        };
        let route = Route {
            side: convert::side(towards.side),
            vrf: (towards.side == Side::Inside).then(|| lookup::convert::vrf_name(settings, towards.realm)),
            prefix: format!("{prefix}/{length}"),
            source: if via.is_some() { RouteSource::Static } else { RouteSource::Connected },
            next_hops: vec![RouteNextHop {
                interface: interface_name(settings, interface),
                via: via.map(|via| via.to_string()),
                weight: 1,
            }],
            protocol: None,
            metric: None,
            used: true,
            reason: "the only route of this prefix".to_owned(),
        };
        routes.push((towards, prefix, length, route));
    };
    for own in &settings.ipv6.addresses {
        let prefix = Ipv6Addr::from_bits(own.address.to_bits() & mask6(own.prefix_length));
        add(own.interface, prefix, own.prefix_length, None);
    }
    for Route6 { prefix, prefix_length, next_hop, interface } in &settings.ipv6.routes {
        add(*interface, *prefix, *prefix_length, Some(*next_hop));
    }
    routes.sort_by_key(|(towards, prefix, length, _)| (towards.side.index(), towards.realm.index(), *prefix, *length));
    routes.retain(|(towards, _, _, route)| is_wanted_table(settings, list, *towards) && is_wanted(list, route));
    routes.into_iter().map(|(.., route)| route).collect()
}

fn covering6(settings: &Settings, list: &List, address: Ipv6Addr) -> Vec<Route> {
    let covers = |route: &Route| {
        let (prefix, length) = route.prefix.split_once('/')?;
        let (prefix, length) = (prefix.parse::<Ipv6Addr>().ok()?, length.parse::<u8>().ok()?);
        ((prefix.to_bits() ^ address.to_bits()) & mask6(length) == 0).then_some(length)
    };
    let mut found: Vec<(u8, Route)> =
        all6(settings, list).into_iter().filter_map(|route| Some((covers(&route)?, route))).collect();
    found.sort_by_key(|(length, _)| core::cmp::Reverse(*length));
    let mut seen = Vec::new();
    for (_, route) in &mut found {
        let table = (route.side, route.vrf.clone());
        route.used = !seen.contains(&table);
        let reason =
            if route.used { "the longest prefix of the address" } else { "a longer prefix covers the address" };
        reason.clone_into(&mut route.reason);
        seen.push(table);
    }
    found.into_iter().map(|(_, route)| route).collect()
}

fn mask6(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0)
}

pub(crate) fn neighbours(instance: &Instance, list: &List) -> Result<Page<Neighbour>, Fault> {
    let shared = instance.shared();
    let settings = shared.settings();
    known_names(settings, list)?;
    let filter = engine_filter(instance, list)?;
    let mut all = Vec::new();
    for worker in 0..instance.worker_count() {
        if list.filter.worker.is_some_and(|wanted| usize::from(wanted) != worker) {
            continue;
        }
        for_each::<AnyView>(instance, worker, super::lists::ALL, filter, |view| {
            let neighbour = Neighbour {
                interface: interface_name(settings, view.interface),
                address: view.address.to_string(),
                mac: view.station.map(|station| station.to_string()),
                state: view.state.to_owned(),
                waiting: view.waiting,
                owner: if view.is_kernel { "kernel" } else { "natrix" }.to_owned(),
                worker: worker as u8,
            };
            let is_wanted = list.filter.address.is_none_or(|wanted| wanted == view.address)
                && list.filter.interface.as_ref().is_none_or(|wanted| *wanted == neighbour.interface);
            if is_wanted {
                all.push((view.interface, view.address, neighbour));
            }
        })?;
    }
    all.sort_by_key(|(interface, address, neighbour)| (interface.0, *address, neighbour.worker));
    page_of(list, all.into_iter().map(|(.., neighbour)| neighbour))
}
