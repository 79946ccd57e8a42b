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
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Side;

use super::convert;
use super::lists::engine_filter;
use super::lists::for_each;
use super::lists::page_of;
use crate::instance::Instance;
use crate::ipv6::node::subscriber_word;
use crate::neighbour::AnyView;
use crate::routing::announcement::Served;
use crate::routing::announcement::UNREACHABLE;
use crate::routing::family::Family;
use crate::routing::rib::Candidate;
use crate::routing::rib::Hop;
use crate::routing::rib::HopState;
use crate::routing::rib::Rib;
use crate::routing::rib::Rib6;
use crate::routing::rib::RibOf;
use crate::routing::rib::Source;
use crate::routing::rib::Table;

/// Parts of a cursor for each table: the lengths of prefixes.
const PARTS: usize = 256;
/// Prefixes examined for one page, so that a filter without a match does not walk all routes at
/// once.
const EXAMINED_MAX: usize = 200_000;

pub(crate) fn routes(instance: &Instance, list: &List) -> Result<Page<Route>, Fault> {
    let shared = instance.shared();
    let settings = shared.settings();
    known_names(settings, list)?;
    let Some(address) = list.filter.address else { return walk_all(instance, settings, list) };
    let mut objects = match address {
        IpAddr::V4(address) => instance.with_routes(|rib: &Rib| covering(rib, settings, list, address.to_bits())),
        IpAddr::V6(address) => instance.with_routes(|rib: &Rib6| covering(rib, settings, list, address.to_bits())),
    };
    objects.extend(announced(instance, settings, list, |served| match (served, address) {
        (Served::Pool(prefix), IpAddr::V4(address)) => prefix.contains(address),
        (Served::Nat64(_, prefix) | Served::Softwire(_, prefix), IpAddr::V6(address)) => {
            prefix.contains(address.to_bits())
        }
        _ => false,
    }));
    Ok(Page::whole(objects))
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

/// The routes of both families by table, then what is announced.
fn walk_all(instance: &Instance, settings: &Settings, list: &List) -> Result<Page<Route>, Fault> {
    let start = list.start()?;
    let parts = (1 + settings.realms()) * PARTS;
    let mut page = Walk { list, limit: list.limit_effective() as usize, objects: Vec::new(), examined: 0 };
    let next = instance.with_routes(|rib: &Rib| page.walk(rib, settings, start, 0));
    let next = next.or_else(|| instance.with_routes(|rib: &Rib6| page.walk(rib, settings, start, parts)));
    let Walk { limit, mut objects, .. } = page;
    if let Some(cursor) = next {
        return Ok(Page { objects, cursor: Some(cursor.to_string()) });
    }
    let place = if start.part == 2 * parts { start.place as usize } else { 0 };
    let all = announced(instance, settings, list, |_| true);
    let mut rest = all.into_iter().skip(place);
    let taken: Vec<Route> = rest.by_ref().take(limit.saturating_sub(objects.len())).collect();
    let cursor = Cursor { part: 2 * parts, place: (place + taken.len()) as u128 };
    objects.extend(taken);
    let cursor = rest.next().is_some().then(|| cursor.to_string());
    Ok(Page { objects, cursor })
}

/// A page that is being filled.
struct Walk<'a> {
    list: &'a List,
    limit: usize,
    objects: Vec<Route>,
    examined: usize,
}

impl Walk<'_> {
    /// Goes on with the tables of a family, whose parts begin at `first`. Returns where the next
    /// page begins, if this one is full.
    fn walk<P: Family>(&mut self, rib: &RibOf<P>, settings: &Settings, start: Cursor, first: usize) -> Option<Cursor> {
        for table in Table::all(settings.realms()) {
            let part = first + table.index() * PARTS;
            if part + PARTS <= start.part || !is_wanted_table(settings, self.list, facing(table)) {
                continue;
            }
            let begins_here = start.part.checked_sub(part).and_then(|length| u8::try_from(length).ok());
            let address = P::address_of(start.place);
            let at = begins_here.and_then(|length| P::of(address, length));
            let mut next = rib.next_prefix(table, at.map_or(Bound::Unbounded, Bound::Included));
            while let Some(prefix) = next {
                if self.objects.len() >= self.limit || self.examined >= EXAMINED_MAX {
                    let part = part + usize::from(prefix.bits());
                    return Some(Cursor { part, place: P::number(prefix.first()) });
                }
                self.examined += 1;
                let found = described(rib, settings, table, prefix, None);
                let list = self.list;
                self.objects.extend(found.into_iter().filter(|route| is_wanted(list, route)));
                next = rib.next_prefix(table, Bound::Excluded(prefix));
            }
        }
        None
    }
}

/// What is announced to the routers outside or of a realm, and what keeps it away.
fn announced(instance: &Instance, settings: &Settings, list: &List, is_meant: impl Fn(&Served) -> bool) -> Vec<Route> {
    let Some(routing) = instance.routing() else { return Vec::new() };
    let pools = routing.pools();
    let route = |served: &Served| {
        let used = pools.announced.contains(served);
        let reason = match pools.withheld {
            _ if used => "announced: a route of protocol 110 in the kernel".to_owned(),
            Some(why) => format!("not announced: {}", why.reason()),
            None if pools.unreachable.contains(served) => format!("not announced: {UNREACHABLE}"),
            None => "not announced: the kernel refuses the route, or has no interface of this VRF".to_owned(),
        };
        let (towards, source) = match served {
            Served::Pool(_) => (Facing::OUTSIDE, RouteSource::Pool),
            Served::Nat64(realm, _) => (Facing::inside(*realm), RouteSource::Nat64),
            Served::Softwire(realm, _) => (Facing::inside(*realm), RouteSource::Softwire),
        };
        let route = Route {
            side: convert::side(towards.side),
            vrf: (towards.side == Side::Inside).then(|| lookup::convert::vrf_name(settings, towards.realm)),
            prefix: served.to_string(),
            source,
            next_hops: Vec::new(),
            drops: false,
            protocol: None,
            metric: None,
            used,
            reason,
        };
        (towards, route)
    };
    let meant = pools.served.iter().filter(|served| is_meant(served)).map(route);
    let meant = meant.filter(|(towards, route)| is_wanted_table(settings, list, *towards) && is_wanted(list, route));
    meant.map(|(_, route)| route).collect()
}

/// All routes that cover an address; in each table one is used.
fn covering<P: Family>(rib: &RibOf<P>, settings: &Settings, list: &List, address: P::Address) -> Vec<Route> {
    let mut objects = Vec::new();
    for table in Table::all(settings.realms()) {
        if !is_wanted_table(settings, list, facing(table)) {
            continue;
        }
        let longest = rib.longest(table, address);
        for prefix in (0..=P::LENGTH_MAX).rev().filter_map(|length| P::of(address, length)) {
            let found = described(rib, settings, table, prefix, longest);
            objects.extend(found.into_iter().filter(|route| is_wanted(list, route)));
        }
    }
    objects
}

/// The routes for a prefix, in the order of preference. `longest`: the prefix that counts for the
/// address in question.
fn described<P: Family>(
    rib: &RibOf<P>,
    settings: &Settings,
    table: Table,
    prefix: P,
    longest: Option<P>,
) -> Vec<Route> {
    let candidates = rib.candidates(table, prefix);
    let best = rib.used(table, prefix);
    let best_source = candidates.get(best).map(|candidate| candidate.source);
    let is_shadowed = longest.is_some_and(|longest| longest != prefix);
    // What keeps all its next hops from being used.
    let dead = |candidate: &Candidate<P::Address>| {
        let states: Vec<HopState> = candidate.hops.iter().map(|hop| rib.state(hop)).collect();
        let is_dead = !states.is_empty() && !states.contains(&HopState::Usable);
        is_dead.then(|| match states.contains(&HopState::DeviceFault) {
            true => "the kernel device of its interface has a fault (see the log)",
            false => "its interface has no link",
        })
    };
    let route = |(place, candidate): (usize, &Candidate<P::Address>)| {
        let is_best = place == best;
        let used = is_best && !is_shadowed && !rib.is_refused(table, prefix);
        let reason = match best_source {
            _ if is_best && is_shadowed => "a longer prefix covers the address".to_owned(),
            _ if is_best && rib.is_refused(table, prefix) => NO_ROOM.to_owned(),
            _ if let Some(why) = dead(candidate) => match is_best {
                true => format!("{why}, and there is no other route"),
                false => why.to_owned(),
            },
            _ if is_best && candidate.source == Source::Excluded => preferred(candidate.source).to_owned(),
            _ if is_best && candidates.len() == 1 && longest.is_some() => {
                "the longest prefix of the address".to_owned()
            }
            _ if is_best && candidates.len() == 1 => "the only route of this prefix".to_owned(),
            _ if is_best && place > 0 => "the preferred routes cannot be used".to_owned(),
            _ if is_best => preferred(candidate.source).to_owned(),
            Some(best) => beaten(best, candidate.source).to_owned(),
            None => String::new(),
        };
        Route { used, reason, ..route_of(rib, settings, (table, prefix), candidate) }
    };
    candidates.iter().enumerate().map(route).collect()
}

/// Why the best route of a prefix is not used.
const NO_ROOM: &str = "the workers could not take it over, see routes_refused; it is tried again";

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

fn route_of<P: Family>(
    rib: &RibOf<P>,
    settings: &Settings,
    (table, prefix): (Table, P),
    candidate: &Candidate<P::Address>,
) -> Route {
    let Facing { side, realm } = facing(table);
    let next_hop = |hop: &Hop<P::Address>| RouteNextHop {
        interface: interface_name(settings, hop.interface),
        via: (hop.gateway != P::Address::default()).then(|| P::ip(hop.gateway).to_string()),
        weight: hop.weight,
        link_up: !matches!(rib.state(hop), HopState::NoLink),
        device_up: !matches!(rib.state(hop), HopState::DeviceFault),
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
        drops: candidate.hops.is_empty(),
        protocol,
        metric,
        used: true,
        reason: String::new(),
    }
}

/// The route that drops what goes to an address, and why it does; none if it has changed since.
pub(super) fn dropping(instance: &Instance, towards: Facing, address: Ipv4Addr) -> Option<String> {
    let table = Table::of(towards);
    instance.with_routes(|rib: &Rib| {
        let prefix = rib.longest(table, address.to_bits())?;
        let candidates = rib.candidates(table, prefix);
        let candidate = candidates.get(rib.used(table, prefix)).filter(|candidate| candidate.hops.is_empty())?;
        let reason = match candidate.source {
            Source::Kernel { protocol, metric } => {
                let protocol = protocol_name(protocol);
                format!("blackhole, unreachable or prohibit in the kernel (protocol {protocol}, metric {metric})")
            }
            source => preferred(source).to_owned(),
        };
        Some(format!("{prefix}: {reason}"))
    })
}

/// Where IPv6 routes lead a packet to a host.
pub(super) enum ToHost {
    /// By this interface, to a router or to the host itself.
    By { interface: InterfaceId, neighbour: Ipv6Addr, prefix: String },
    /// The route of this prefix drops it.
    Dropped { prefix: String },
    /// No route.
    Nowhere,
}

/// The route of a realm that counts for an IPv6 host.
pub(super) fn to_host(instance: &Instance, towards: Facing, host: Ipv6Addr) -> ToHost {
    let (table, address) = (Table::of(towards), host.to_bits());
    let shared = instance.shared();
    // Of several next hops, a subscriber keeps one.
    let chosen = shared.live_routes().filter(|live| live.has_ipv6()).and_then(|live| {
        let subscriber = subscriber_word(address, shared.settings().transition.prefix_length);
        live.lookup6(table.index(), address, subscriber)
    });
    instance.with_routes(|rib: &Rib6| {
        let Some(prefix) = rib.longest(table, address) else { return ToHost::Nowhere };
        let first = || rib.best(table, prefix)?.first().map(|hop| (hop.interface, hop.gateway));
        match chosen.map(|hop| (hop.interface, hop.gateway)).or_else(first) {
            Some((interface, gateway)) => {
                let neighbour = if gateway == 0 { host } else { Ipv6Addr::from_bits(gateway) };
                ToHost::By { interface, neighbour, prefix: prefix.to_string() }
            }
            None => ToHost::Dropped { prefix: prefix.to_string() },
        }
    })
}

pub(super) fn interface_name(settings: &Settings, id: InterfaceId) -> String {
    settings.interfaces.get(id.index()).map_or_else(String::new, |interface| interface.name.clone())
}

/// The name that iproute2 gives to the number of a routing protocol (`rt_protos`, and `frr.conf` of
/// FRR beside it).
fn protocol_name(number: u8) -> String {
    let known = match number {
        1 => "redirect",
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
        190 => "ripng",
        191 => "nhrp",
        192 => "eigrp",
        193 => "ldp",
        194 => "sharp",
        195 => "pbr",
        // That of FRR; 4 is what people set by hand.
        196 => "static",
        197 => "openfabric",
        _ => return number.to_string(),
    };
    known.to_owned()
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
