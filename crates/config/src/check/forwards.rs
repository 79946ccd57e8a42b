//! Static forwards and one-to-one pools: each external and each internal endpoint has one other
//! side.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::ops::RangeInclusive;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Protocol;
use nat::settings::Allocation;
use nat::stand_in::Prefix6;
use nat::types::InsideHost;
use nat::types::Prefix;
use nat::types::Side;

use crate::check::Reach;
use crate::check::interfaces::vrf_names;
use crate::draft::Draft;
use crate::draft::forward::End;
use crate::draft::forward::ForwardDraft;
use crate::draft::interface::VRF_DEFAULT;
use crate::draft::interface::not_a_host6;
use crate::draft::pool::PoolDraft;
use crate::draft::transition::Served;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::quoted;

/// The AFTR inside its softwires (RFC 6333 §5.7).
const AFTR_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);

/// The ports of an address that are already forwarded, each with its forward.
type Taken<'d> = HashMap<(Protocol, String, InsideHost), Vec<(RangeInclusive<u16>, &'d ForwardDraft)>>;

/// Checks one-to-one pools and forwards; `addresses` are those of the pools.
pub(crate) fn check(
    draft: &Draft,
    addresses: &[Vec<Ipv4Addr>],
    reaches: &[Reach],
    is_network_clean: bool,
    report: &mut Report,
) {
    for (pool, addresses) in draft.pools.iter().zip(addresses) {
        if let Some(line) = &pool.one_to_one {
            one_to_one(draft, pool, addresses.len() as u64, line, report);
        }
    }
    let mut pool_of: HashMap<Ipv4Addr, &PoolDraft> = HashMap::new();
    for (pool, addresses) in draft.pools.iter().zip(addresses) {
        pool_of.extend(addresses.iter().map(|address| (*address, pool)));
    }
    let several = draft.forwards.iter().find(|forward| forward.targets.is_some());
    if let Some(forward) = several.filter(|_| draft.singles.limits.flows_max == 0) {
        let remedy = "write tables.flows, such as 500000: how many connections the targets may have at the same time";
        report.fault(&forward.place, "needs flows, and there is no room for them", "tables.flows = 0", remedy);
    }
    let (mut outside, mut inside): (Taken<'_>, Taken<'_>) = (HashMap::new(), HashMap::new());
    for forward in &draft.forwards {
        external(forward, draft, &pool_of, report);
        internal(forward, draft, reaches, is_network_clean, report);
        once(forward, &mut outside, &mut inside, report);
    }
}

/// As many addresses as subscribers, of one VRF, and of no other.
fn one_to_one(draft: &Draft, pool: &PoolDraft, addresses: u64, place: &Place, report: &mut Report) {
    let subscribers: u64 = pool.subscribers.iter().map(|prefix| 1_u64 << (32 - prefix.value.length())).sum();
    let is_reported = twice(pool, report);
    // Faulty addresses are already reported.
    if addresses > 0 && addresses != subscribers && !is_reported {
        let problem = format!("pairs {addresses} addresses with {subscribers} subscribers");
        let remedy = "write as many addresses as the prefixes in subscribers have";
        report.fault(place, problem, "one_to_one = true", remedy);
    }
    if !matches!(pool.allocation.value, None | Some(Allocation::Ports)) {
        let problem = "gives whole addresses, not ports";
        report.fault(&pool.allocation.place, problem, "one_to_one = true", "remove allocation");
    }
    let vrfs = vrf_names(&draft.interfaces);
    let served = vrfs.iter().filter(|vrf| pool.serves(vrf)).count();
    if served > 1 {
        let problem = "gives each address to one subscriber, but serves several VRFs";
        report.fault(place, problem, format!("VRFs: {served}"), "write vrfs = [\"NAME\"]");
    }
    for own in &pool.subscribers {
        let others = draft.pools.iter().filter(|other| other.place != pool.place && other.shares_vrf_with(pool));
        for other in others.flat_map(|other| &other.subscribers) {
            if other.value.length() > own.value.length() && other.value.overlaps(own.value) {
                let problem = format!("takes subscribers from the one-to-one pool \"{}\"", pool.label());
                let remedy = "serve them from one of the two pools";
                report.fault(&other.place, problem, other.value.to_string(), remedy);
            }
        }
    }
}

/// Reports prefixes of a one-to-one pool that overlap: a subscriber in both would be paired twice.
/// Duplicates are reported elsewhere.
fn twice(pool: &PoolDraft, report: &mut Report) -> bool {
    let mut sorted: Vec<&Placed<Prefix>> = pool.subscribers.iter().collect();
    // Shorter ones first, so that each one's container stands before it.
    sorted.sort_by_key(|prefix| (prefix.value.address(), prefix.value.length()));
    let mut is_reported = false;
    let mut outer: Option<&Placed<Prefix>> = None;
    for prefix in sorted {
        let Some(container) = outer.filter(|outer| outer.value.overlaps(prefix.value)) else {
            outer = Some(prefix);
            continue;
        };
        if container.value != prefix.value {
            let problem = format!(
                "is already in {} {}, so subscribers would be paired twice",
                container.value,
                container.place.on_line()
            );
            report.fault(&prefix.place, problem, prefix.value.to_string(), "write each subscriber in one prefix");
        }
        is_reported = true;
    }
    is_reported
}

fn external(forward: &ForwardDraft, draft: &Draft, pool_of: &HashMap<Ipv4Addr, &PoolDraft>, report: &mut Report) {
    let Some(external) = &forward.external else { return };
    match pool_of.get(&external.value) {
        None if pool_of.is_empty() => {}
        None => {
            let remedy = "write an address of a pool";
            report.fault(&external.place, "is not an address of any pool", external.value.to_string(), remedy);
        }
        Some(pool) if pool.one_to_one.is_some() => {
            let problem =
                format!("is an address of the one-to-one pool \"{}\", all of whose ports are forwarded", pool.label());
            report.fault(
                &external.place,
                problem,
                external.value.to_string(),
                "remove the forward, or use another address",
            );
        }
        Some(pool) => {
            let vrf = vrf_of(forward);
            if !pool.serves(vrf) && vrf_names(&draft.interfaces).iter().any(|known| known == vrf) {
                let problem = format!("is an address of pool \"{}\", which does not serve VRF \"{vrf}\"", pool.label());
                let remedy =
                    "write an address of a pool that serves the VRF of the forward, or add it to vrfs of the pool";
                report.fault(&external.place, problem, external.value.to_string(), remedy);
            }
            outside_blocks(forward, pool, report);
        }
    }
}

/// The VRF of what a forward leads to.
fn vrf_of(forward: &ForwardDraft) -> &str {
    forward.vrf.as_ref().map_or(VRF_DEFAULT, |vrf| vrf.value.as_str())
}

/// A port inside a leased block would have two owners, and logs of blocks could not show which.
fn outside_blocks(forward: &ForwardDraft, pool: &PoolDraft, report: &mut Report) {
    let (Some(ports), Some(range)) = (&forward.ports, &pool.ports) else { return };
    let is_single = matches!(pool.allocation.value, None | Some(Allocation::Ports));
    let (first, last) = (*range.value.start(), *range.value.end());
    if !is_single && ports.value.start() <= &last && ports.value.end() >= &first {
        let problem = format!("are among the ports {first}-{last} that pool \"{}\" gives out in blocks", pool.label());
        let seen = format!("{}-{}", ports.value.start(), ports.value.end());
        report.fault(&ports.place, problem, seen, "forward ports outside of them, or narrow ports of the pool");
    }
}

fn internal(forward: &ForwardDraft, draft: &Draft, reaches: &[Reach], is_network_clean: bool, report: &mut Report) {
    let vrf = vrf_of(forward);
    let known = vrf_names(&draft.interfaces);
    if let Some(written) = forward.vrf.as_ref().filter(|vrf| vrf.given && !known.contains(&vrf.value)) {
        let names = known.iter().map(String::as_str);
        let remedy = match nearest(&written.value, names.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write the vrf of an inside interface: {}", one_of(names.take(4))),
        };
        report.fault(&written.place, "is not the VRF of any interface", quoted(&written.value), remedy);
        return;
    }
    let ends = forward.ends();
    let is_inside = forward.targets.is_none();
    if let (true, true, Some(ports), None) = (is_inside, ends.is_empty(), &forward.ports, forward.inside_ports()) {
        // The address is faulty and already reported.
        let place = forward.inside_port.as_ref().map_or(&ports.place, |first| &first.place);
        too_many_ports(&ports.value, forward.inside_port.as_ref().map_or(0, |first| first.value), place, report);
    }
    let mut seen = HashSet::new();
    for end in &ends {
        if !seen.insert((end.host, end.first)) {
            let remedy = "write it once, with a higher weight if it should get more";
            report.fault(&end.place, "is listed twice", shown(end), remedy);
            continue;
        }
        if let (Some(ports), None) = (&forward.ports, &end.ports) {
            let place = if end.first.is_some() { &end.port_place } else { &ports.place };
            too_many_ports(&ports.value, u64::from(end.first.unwrap_or(0)), place, report);
        }
        match end.host {
            InsideHost::Ipv4(address) => {
                one_end((address, end), vrf, draft, reaches, is_network_clean, report);
            }
            InsideHost::Ipv6(address) => ipv6_end(address, end, (vrf, draft), is_network_clean, report),
            InsideHost::BehindB4 { b4, inner } => softwire_end((b4, inner), end, vrf, draft, report),
        }
    }
}

fn shown(end: &End) -> String {
    match end.first {
        Some(port) => end.host.with_port(port),
        None => end.host.to_string(),
    }
}

fn too_many_ports(ports: &RangeInclusive<u16>, first: u64, place: &Place, report: &mut Report) {
    let count = ports.end() - ports.start();
    let problem = format!("makes {} ports end beyond 65535", u64::from(count) + 1);
    let remedy = format!("write {} or less", 65_535 - count);
    report.fault(place, problem, first.to_string(), remedy);
}

/// An inside address that a forward leads to: a subscriber that can be reached.
fn one_end(
    (address, end): (Ipv4Addr, &End),
    vrf: &str,
    draft: &Draft,
    reaches: &[Reach],
    is_network_clean: bool,
    report: &mut Report,
) {
    let own = draft.interfaces.iter().filter(|interface| interface.side == Some(Side::Inside));
    if own.flat_map(|interface| &interface.addresses).any(|own| own.value.address == address) {
        report.fault(&end.place, "is Natrix's own address", address.to_string(), "write the address of a subscriber");
        return;
    }
    // A faulty prefix may be the one that serves it.
    if draft.pools.iter().any(|pool| pool.lacks_subscribers && pool.serves(vrf)) {
        return;
    }
    // As the engine finds it: the longest prefix.
    let serving = draft.pools.iter().filter(|pool| pool.serves(vrf)).flat_map(|pool| {
        pool.subscribers.iter().filter(|prefix| prefix.value.contains(address)).map(move |prefix| (prefix.value, pool))
    });
    match serving.max_by_key(|(prefix, _)| prefix.length()) {
        None if draft.pools.is_empty() => {}
        None => {
            let remedy = "add its prefix to the subscribers of a pool";
            report.fault(&end.place, "is not served by any pool", address.to_string(), remedy);
        }
        Some((_, pool)) if pool.one_to_one.is_some() => {
            let problem = format!("has an address of its own in the one-to-one pool \"{}\"", pool.label());
            report.fault(&end.place, problem, address.to_string(), "remove the forward");
        }
        Some((prefix, pool)) if is_boundary(prefix, address) && has_formula(pool) => {
            let problem = format!(
                "is the network or broadcast address of {prefix}, which gets no ports from the deterministic pool \"{}\"",
                pool.label()
            );
            report.fault(&end.place, problem, address.to_string(), "write the address of a subscriber");
        }
        Some(_) => {
            let is_there = |reach: &Reach| reach.side == Side::Inside && reach.prefix.contains(address);
            if is_network_clean && !draft.learns_inside(|own| own == vrf) && !reaches.iter().any(is_there) {
                let remedy = "add an inside [[route]] or interface that leads there";
                let problem = "cannot be reached by any inside interface or route";
                report.fault(&end.place, problem, address.to_string(), remedy);
            }
        }
    }
}

/// A host of NAT64.
fn ipv6_end(address: Ipv6Addr, end: &End, (vrf, draft): (&str, &Draft), is_network_clean: bool, report: &mut Report) {
    let seen = address.to_string();
    if let Some(kind) = not_a_host6(address) {
        report.fault(&end.place, format!("is {kind}"), seen, "write the address of an IPv6 host");
        return;
    }
    if is_own6(draft, address) {
        report.fault(&end.place, "is Natrix's own address", seen, "write the address of an IPv6 host");
        return;
    }
    let of_vrf = |served: &Served| served.vrf.as_ref().is_some_and(|written| written.value == vrf);
    let prefixes = draft.nat64.iter().filter(|one| of_vrf(&one.served));
    let prefixes: Vec<(Ipv6Addr, u8)> = prefixes.filter_map(|one| Some(one.prefix.as_ref()?.value)).collect();
    if prefixes.is_empty() {
        let problem = format!("is an IPv6 host, and VRF \"{vrf}\" has no NAT64 to reach it through");
        report.fault(&end.place, problem, seen, "add a [[nat64]] table with this vrf, or write an IPv4 address");
        return;
    }
    if let Some((prefix, length)) = prefixes.into_iter().find(|prefix| contains(*prefix, address)) {
        let problem = format!("is in the prefix of NAT64 {prefix}/{length}, which stands for IPv4 addresses");
        report.fault(&end.place, problem, seen, "write the address of an IPv6 host");
        return;
    }
    let connected = draft.interfaces.iter().filter(|interface| interface.side == Some(Side::Inside));
    let connected = connected.flat_map(|interface| &interface.addresses6).map(|own| own.value);
    let routed = draft.routes.iter().filter_map(|route| Some(route.prefix6.as_ref()?.value));
    let may_learn = draft.learns_inside(|own| own == vrf);
    if is_network_clean && !may_learn && !connected.chain(routed).any(|it| contains(it, address)) {
        let remedy = "add an inside [[route]] or interface that leads there";
        report.fault(&end.place, "cannot be reached by any inside interface or route", seen, remedy);
    }
}

/// Whether an IPv6 address is one of Natrix: of an interface, or an AFTR's.
fn is_own6(draft: &Draft, address: Ipv6Addr) -> bool {
    draft.interfaces.iter().flat_map(|interface| &interface.addresses6).any(|own| own.value.0 == address)
        || draft.softwires.iter().any(|one| one.aftr.as_ref().is_some_and(|aftr| aftr.value == address))
}

fn contains((prefix, length): (Ipv6Addr, u8), address: Ipv6Addr) -> bool {
    Prefix6::new(prefix.to_bits(), length).is_some_and(|prefix| prefix.contains(address.to_bits()))
}

/// A host behind a B4. The engine takes the first softwire that permits its inner address.
fn softwire_end((b4, inner): (Ipv6Addr, Ipv4Addr), end: &End, vrf: &str, draft: &Draft, report: &mut Report) {
    if let Some(kind) = not_a_host6(b4) {
        report.fault(&end.place, format!("is behind a B4 that is {kind}"), b4.to_string(), "write the address of a B4");
        return;
    }
    let prefixes = draft.nat64.iter().filter_map(|one| Some(one.prefix.as_ref()?.value));
    if is_own6(draft, b4) || prefixes.into_iter().any(|prefix| contains(prefix, b4)) {
        let problem = "is behind a B4 whose address is Natrix's own, or stands for an IPv4 address";
        report.fault(&end.place, problem, b4.to_string(), "write the address of a B4");
        return;
    }
    if inner == AFTR_INSIDE {
        let problem = "is the address of the AFTR inside its softwires, by RFC 6333 section 5.7";
        report.fault(&end.place, problem, inner.to_string(), "write the address of a host behind the B4");
        return;
    }
    let of_vrf = |served: &Served| served.vrf.as_ref().is_some_and(|written| written.value == vrf);
    let mut softwires = draft.softwires.iter().filter(|one| of_vrf(&one.served)).peekable();
    if softwires.peek().is_none() {
        let problem = format!("is behind a B4, and VRF \"{vrf}\" has no softwire to reach it through");
        report.fault(&end.place, problem, end.host.to_string(), "add a [[softwire]] table with this vrf, or remove b4");
        return;
    }
    let Some(softwire) = softwires.find(|one| one.inner.iter().any(|prefix| prefix.value.contains(inner))) else {
        let remedy = "add its prefix to inner of the softwire";
        report.fault(&end.place, "is not permitted inside any softwire", inner.to_string(), remedy);
        return;
    };
    let subscribers = &softwire.subscribers;
    if !subscribers.is_empty() && !subscribers.iter().any(|prefix| prefix.value.contains(b4.to_bits())) {
        let remedy = "add its prefix to subscribers of the softwire";
        report.fault(&end.place, "is behind a B4 that is not in softwire.subscribers", b4.to_string(), remedy);
    }
}

/// Whether a formula leaves this address of a prefix out.
fn is_boundary(prefix: Prefix, address: Ipv4Addr) -> bool {
    prefix.length() < 31 && (address == prefix.address() || address == prefix.last())
}

fn has_formula(pool: &PoolDraft) -> bool {
    matches!(pool.allocation.value, Some(Allocation::Deterministic { .. }))
}

/// No endpoint of either side twice.
fn once<'d>(forward: &'d ForwardDraft, outside: &mut Taken<'d>, inside: &mut Taken<'d>, report: &mut Report) {
    let vrf = vrf_of(forward);
    let ports = forward.ports.as_ref().map(|ports| ports.value.clone());
    let external = forward.external.as_ref().map(|external| external.value.into()).zip(ports);
    let mut seen = HashSet::new();
    let ends = forward.ends().into_iter().filter(|end| seen.insert((end.host, end.first)));
    let internal: Vec<_> = ends.filter_map(|end| Some((end.host, end.ports?))).collect();
    claim(forward, external.as_slice(), outside, "", "external", report);
    claim(forward, &internal, inside, vrf, "internal", report);
}

/// Takes ports of addresses for a forward, which no other one may have.
fn claim<'d>(
    forward: &'d ForwardDraft,
    ends: &[(InsideHost, RangeInclusive<u16>)],
    taken: &mut Taken<'d>,
    vrf: &str,
    side: &str,
    report: &mut Report,
) {
    for (host, ports) in ends {
        for protocol in forward.protocols {
            let known = taken.entry((*protocol, vrf.to_owned(), *host)).or_default();
            let overlap = known.iter().find_map(|(other, by)| {
                let (first, last) = ((*other.start()).max(*ports.start()), (*other.end()).min(*ports.end()));
                (first <= last).then_some((first, last, *by))
            });
            if let Some((first, last, by)) = overlap {
                let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
                let problem = if by.place == forward.place {
                    format!("has two targets with the same {side} ports")
                } else {
                    format!("repeats {side} ports of the forward {}", by.place.on_line())
                };
                let seen = format!("{protocol} {}", host.with_port(range));
                report.fault(&forward.place, problem, seen, "forward each port once");
                break;
            }
            known.push((ports.clone(), forward));
        }
    }
}
