//! Pools against each other and against the network.

use core::net::Ipv4Addr;
use std::collections::HashMap;

use nat::types::Prefix;
use nat::types::Side;

use crate::check::Reach;
use crate::check::allocation;
use crate::check::interfaces::vrf_names;
use crate::check::range_text;
use crate::check::routes::ResolvedRoute;
use crate::check::unique_names;
use crate::draft::Draft;
use crate::draft::interface::NO_HOST;
use crate::draft::interface::is_of_no_host;
use crate::draft::interface::not_a_host;
use crate::draft::pool::PoolDraft;
use crate::draft::rule::RuleWord;
use crate::fault::Warning;
use crate::keys::POOL_ADDRESSES_MAX;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::quoted;

/// Consecutive addresses of one pool, after its exclusions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    first: u32,
    last: u32,
    pool: usize,
    element: usize,
}

/// Checks the pools; the addresses of each, in the order of the file. They are good for nothing
/// when there are faults.
pub(crate) fn check(
    draft: &Draft,
    routes: &[ResolvedRoute],
    reaches: &[Reach],
    is_network_clean: bool,
    report: &mut Report,
) -> Vec<Vec<Ipv4Addr>> {
    let pools = &draft.pools;
    if pools.is_empty() {
        let nowhere = Place { path: "pool".into(), line: None };
        let remedy = "write a [[pool]] with the addresses subscribers share";
        report.fault(&nowhere, "there is none", "pools: 0", remedy);
    }
    unique_names("pool", pools.iter().filter_map(|pool| pool.name.as_ref()), report);
    let mut runs = Vec::new();
    for (index, pool) in pools.iter().enumerate() {
        runs.extend(own_runs(index, pool, report));
        ports_left(pool, report);
    }
    known_vrfs(draft, report);
    subscribers(draft, reaches, is_network_clean, report);
    if is_network_clean {
        everyone_served(draft, reaches, report);
    }
    let is_small_enough = total_addresses(&runs, report);
    let vrfs = vrf_names(&draft.interfaces).len();
    let place = |run: &Run| pools.get(run.pool).and_then(|pool| pool.addresses.get(run.element)).map(|it| &it.place);
    for run in &runs {
        if let Some(place) = place(run) {
            against_network(run, place, draft, routes, reaches, report);
        }
    }
    once_each(pools, &runs, report);
    let mut addresses = vec![Vec::new(); pools.len()];
    if is_small_enough {
        for run in &runs {
            if let Some(list) = addresses.get_mut(run.pool) {
                list.extend((run.first..=run.last).map(Ipv4Addr::from_bits));
            }
        }
    }
    for (pool, addresses) in pools.iter().zip(&addresses) {
        allocation::check(pool, addresses, vrfs, report);
    }
    addresses
}

/// Warns of pools that serve subscribers and drain all their addresses: such a pool runs empty, and
/// its subscribers have no other pool.
pub(crate) fn drained(draft: &Draft, report: &Report) -> Vec<Warning> {
    let is_all = |prefix: &Option<Placed<Prefix>>| prefix.as_ref().is_none_or(|prefix| prefix.value == Prefix::ALL);
    let taken: Vec<Prefix> = draft
        .rules
        .iter()
        .filter(|rule| rule.action == Some(RuleWord::Translate) && rule.pool.is_some())
        .map(|rule| &rule.matches)
        .filter(|it| it.vrf.is_none() && it.protocol.is_none() && is_all(&it.outside) && it.inside6.is_none())
        .map(|it| it.inside.as_ref().map_or(Prefix::ALL, |inside| inside.value))
        .collect();
    let has_another = |prefix: Prefix| taken.iter().any(|it| it.length() <= prefix.length() && it.overlaps(prefix));
    let mut warnings = Vec::new();
    for pool in draft.pools.iter().filter(|pool| pool.drains()) {
        let Some(prefix) = pool.subscribers.iter().find(|prefix| !has_another(prefix.value)) else { continue };
        let place = pool.drain.first().filter(|_| !pool.draining).map_or(&pool.place, |first| &first.place);
        let whole = if pool.draining { "is draining" } else { "is draining with all other addresses of the pool" };
        let problem = format!("{whole}: its subscribers ({}) get no new mappings", prefix.value);
        warnings.push(report.warning(
            None,
            place,
            problem,
            "serve them from another pool: write their prefixes there, and subscribers = [] here",
        ));
    }
    warnings
}

/// What a pool has after its exclusions.
fn own_runs(index: usize, pool: &PoolDraft, report: &mut Report) -> Vec<Run> {
    let as_run = |(element, range): (usize, &Placed<core::ops::RangeInclusive<u32>>)| Run {
        first: *range.value.start(),
        last: *range.value.end(),
        pool: index,
        element,
    };
    let mut runs: Vec<Run> = pool.addresses.iter().enumerate().map(as_run).collect();
    let before = runs.len();
    for exclusion in &pool.exclude {
        let (first, last) = (*exclusion.value.start(), *exclusion.value.end());
        let mut left = Vec::new();
        let mut is_used = false;
        for run in runs {
            if last < run.first || first > run.last {
                left.push(run);
                continue;
            }
            is_used = true;
            if let Some(end) = first.checked_sub(1).filter(|end| *end >= run.first) {
                left.push(Run { last: end, ..run });
            }
            if let Some(start) = last.checked_add(1).filter(|start| *start <= run.last) {
                left.push(Run { first: start, ..run });
            }
        }
        runs = left;
        if !is_used && !pool.addresses.is_empty() {
            let remedy = "remove it, or correct the address";
            report.fault(&exclusion.place, "excludes no address of the pool", range_text(first, last), remedy);
        }
    }
    for drained in &pool.drain {
        let (first, last) = (*drained.value.start(), *drained.value.end());
        if !runs.is_empty() && !runs.iter().any(|run| first <= run.last && last >= run.first) {
            let remedy = "remove it, or correct the address";
            report.fault(&drained.place, "drains no address of the pool", range_text(first, last), remedy);
        }
    }
    if runs.is_empty() {
        let line = pool.addresses.first().and_then(|element| element.place.line).or(pool.place.line);
        let place = Place { path: format!("{}.addresses", pool.place.path).into(), line };
        if before > 0 {
            report.fault(&place, "are all excluded", format!("elements: {before}"), "add addresses, or exclude fewer");
        } else if pool.is_empty_list {
            report.fault(&place, "is empty", "[]", "write at least one external address");
        }
    }
    runs
}

fn ports_left(pool: &PoolDraft, report: &mut Report) {
    let Some(ports) = &pool.ports else { return };
    let is_reserved = |port: u16| pool.reserved_ports.iter().any(|range| range.value.contains(&port));
    if ports.value.clone().all(is_reserved) {
        let place = Place { path: format!("{}.reserved_ports", pool.place.path).into(), line: ports.place.line };
        let line = pool.reserved_ports.first().and_then(|range| range.place.line);
        let place = Place { line: line.or(place.line), ..place };
        let count = u32::from(*ports.value.end()) - u32::from(*ports.value.start()) + 1;
        let seen = format!("{count} of {count} ports");
        report.fault(&place, "leave no port to give out", seen, "reserve fewer, or widen ports");
    }
}

/// Each VRF a pool or a class names is that of an interface.
fn known_vrfs(draft: &Draft, report: &mut Report) {
    let known = vrf_names(&draft.interfaces);
    let of_classes = draft.classes.iter().flat_map(|class| &class.vrfs);
    for vrf in draft.pools.iter().flat_map(|pool| &pool.vrfs).chain(of_classes) {
        if known.contains(&vrf.value) {
            continue;
        }
        let names = known.iter().map(String::as_str);
        let remedy = match nearest(&vrf.value, names.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write the vrf of an inside interface: {}", one_of(names.take(4))),
        };
        report.fault(&vrf.place, "is not the VRF of any interface", quoted(&vrf.value), remedy);
    }
}

/// Each prefix of subscribers has one pool, and a way to it.
fn subscribers(draft: &Draft, reaches: &[Reach], is_network_clean: bool, report: &mut Report) {
    let pools = &draft.pools;
    let mut taken: HashMap<Prefix, Vec<usize>> = HashMap::new();
    for (index, pool) in pools.iter().enumerate() {
        for subscribers in &pool.subscribers {
            let prefix = subscribers.value;
            let place = match subscribers.place.line {
                Some(_) => subscribers.place.clone(),
                None => Place { path: format!("{}.subscribers", pool.place.path).into(), line: pool.place.line },
            };
            if is_of_no_host(prefix) {
                report.fault(&place, NO_HOST, prefix.to_string(), "write a prefix of inside hosts");
                continue;
            }
            let owners = taken.entry(prefix).or_default();
            let is_shared = |owner: &&usize| pools.get(**owner).is_some_and(|other| other.shares_vrf_with(pool));
            if let Some(owner) = owners.iter().find(is_shared) {
                let label = pools.get(*owner).map_or("?", PoolDraft::label);
                let problem = if *owner == index {
                    "is listed twice".to_owned()
                } else {
                    format!("is served by pool \"{label}\" too")
                };
                let remedy = "write each prefix in one pool, and give each pool subscribers of its own";
                report.fault(&place, problem, prefix.to_string(), remedy);
                continue;
            }
            owners.push(index);
            let is_inside =
                |reach: &Reach| reach.side == Side::Inside && pool.serves(&reach.vrf) && reach.prefix.overlaps(prefix);
            // Where all subscribers are IPv6 hosts, these are not written in the file.
            let is_for_hosts = subscribers.place.line.is_none() && draft.host_pools().any(|name| name == pool.label());
            let may_learn = draft.learns_inside(|vrf| pool.serves(vrf));
            if is_network_clean && !is_for_hosts && !may_learn && !reaches.iter().any(is_inside) {
                let remedy = "add an inside [[route]] or interface that leads there";
                report.fault(&place, "cannot be reached by any inside interface or route", prefix.to_string(), remedy);
            }
        }
    }
}

/// Behind each inside interface there is a subscriber that a pool serves or a rule passes.
fn everyone_served(draft: &Draft, reaches: &[Reach], report: &mut Report) {
    // Faulty subscribers would leave interfaces unserved that are not meant to be. A pool for
    // offenders or for rules has none.
    let vrfs = vrf_names(&draft.interfaces);
    let is_known = |pool: &PoolDraft| {
        let has_all = !pool.subscribers.is_empty() || pool.serves_nobody.is_some();
        has_all && !pool.lacks_subscribers && pool.vrfs.iter().all(|vrf| vrfs.contains(&vrf.value))
    };
    let serves_some = draft.pools.iter().any(|pool| !pool.subscribers.is_empty());
    if !serves_some || !draft.pools.iter().all(is_known) {
        return;
    }
    // Routes of the kernel may lead to subscribers behind any interface with a device there.
    for (index, interface) in draft.interfaces.iter().enumerate().filter(|(_, it)| !draft.learns_by(it)) {
        let mut behind =
            reaches.iter().filter(|reach| reach.side == Side::Inside && reach.interface == index).peekable();
        let Some(first) = behind.peek().map(|reach| reach.prefix) else { continue };
        let is_served = behind.any(|reach| {
            let pools = draft.pools.iter().filter(|pool| pool.serves(&reach.vrf));
            let pools = pools.flat_map(|pool| &pool.subscribers);
            let rules = draft.rules.iter().filter_map(|rule| rule.matches.inside.as_ref());
            pools.chain(rules).any(|served| served.value.overlaps(reach.prefix)) || passes_all(draft, &reach.vrf)
        });
        if !is_served {
            let remedy = "add its prefix to the subscribers of a pool";
            report.fault(&interface.place, "leads to no subscriber that a pool serves", first.to_string(), remedy);
        }
    }
}

/// True if a rule takes in all of a VRF, so that no pool has to serve it.
fn passes_all(draft: &Draft, vrf: &str) -> bool {
    let serves = |name: &str| {
        let named = |pool: &&PoolDraft| pool.name.as_ref().is_some_and(|own| own.value == name);
        draft.pools.iter().find(named).is_none_or(|pool| pool.serves(vrf))
    };
    draft.rules.iter().any(|rule| {
        let is_any = rule.matches.inside.is_none() && rule.matches.inside6.is_none();
        let is_meant = is_any && rule.matches.vrf.as_ref().is_none_or(|own| own.value == vrf);
        is_meant
            && match rule.action {
                Some(RuleWord::Translate) => rule.pool.as_ref().is_some_and(|pool| serves(&pool.value)),
                Some(RuleWord::Pass | RuleWord::NoTranslation) => true,
                _ => false,
            }
    })
}

/// Whether all pools together are small enough to be written out.
fn total_addresses(runs: &[Run], report: &mut Report) -> bool {
    let total: u64 = runs.iter().map(|run| u64::from(run.last - run.first) + 1).sum();
    if total > POOL_ADDRESSES_MAX {
        let place = Place { path: "pool".into(), line: None };
        let problem = format!("all pools together have more than {POOL_ADDRESSES_MAX} addresses");
        report.fault(&place, problem, total.to_string(), "write shorter ranges, because each address takes 0.8 MiB");
    }
    total <= POOL_ADDRESSES_MAX
}

/// No other part of the network has these addresses; only the first conflict is reported.
fn against_network(
    run: &Run,
    place: &Place,
    draft: &Draft,
    routes: &[ResolvedRoute],
    reaches: &[Reach],
    report: &mut Report,
) {
    let overlap = |prefix: Prefix| {
        let first = run.first.max(prefix.address().to_bits());
        let last = run.last.min(prefix.last().to_bits());
        (first <= last).then(|| range_text(first, last))
    };
    let ends = [run.first, run.last].map(Ipv4Addr::from_bits);
    if let Some(kind) = ends.into_iter().find_map(not_a_host) {
        let seen = range_text(run.first, run.last);
        report.fault(place, format!("is {kind}, which no host can have"), seen, "write unicast addresses");
        return;
    }
    for reach in reaches.iter().filter(|reach| reach.side == Side::Inside && reach.prefix.length() > 0) {
        if let Some(seen) = overlap(reach.prefix) {
            let problem = format!("overlaps the inside, against RFC 3022 §5.1: {} leads to {}", reach.by, reach.prefix);
            report.fault(place, problem, seen, "use addresses that are not inside");
            return;
        }
    }
    for pool in &draft.pools {
        for subscribers in pool.subscribers.iter().filter(|subscribers| subscribers.value.length() > 0) {
            if let Some(seen) = overlap(subscribers.value) {
                let label = pool.label();
                let problem = format!(
                    "overlaps the inside, against RFC 3022 §5.1: pool \"{label}\" serves {}",
                    subscribers.value
                );
                report.fault(place, problem, seen, "use addresses that are not inside");
                return;
            }
        }
    }
    let contains = |address: Ipv4Addr| (run.first..=run.last).contains(&address.to_bits());
    for interface in draft.interfaces.iter().filter(|interface| interface.side == Some(Side::Outside)) {
        for (prefix, _) in interface.connected().filter(|(prefix, _)| prefix.length() < 31) {
            for (address, kind) in [(prefix.address(), "network"), (prefix.last(), "broadcast")] {
                if contains(address) {
                    let label = interface.label();
                    let problem = format!("contains the {kind} address of {prefix} on interface \"{label}\"");
                    report.fault(place, problem, address.to_string(), format!("write exclude = [\"{address}\"]"));
                }
            }
        }
    }
    if let Some(route) = routes.iter().find(|route| contains(route.next_hop)) {
        let problem = format!("contains the next hop of the route {}", route.via_place.on_line());
        let address = route.next_hop;
        report.fault(place, problem, address.to_string(), format!("write exclude = [\"{address}\"]"));
    }
}

/// No address twice. Sorted, so that the cost does not grow with the square of the file.
fn once_each(pools: &[PoolDraft], runs: &[Run], report: &mut Report) {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable();
    let mut furthest: Option<Run> = None;
    for run in sorted {
        if let Some(other) = furthest.filter(|other| other.last >= run.first) {
            let seen = range_text(run.first, run.last.min(other.last));
            // The one further down in the file is at fault.
            let (first, second) =
                if (other.pool, other.element) < (run.pool, run.element) { (other, run) } else { (run, other) };
            let element = |run: Run| pools.get(run.pool).and_then(|pool| pool.addresses.get(run.element));
            if let (Some(first), Some(second)) = (element(first), element(second)) {
                let problem = format!("overlaps {} {}", first.place.path, first.place.on_line());
                report.fault(&second.place, problem, seen, "write each address once");
            }
        }
        if furthest.is_none_or(|other| other.last < run.last) {
            furthest = Some(run);
        }
    }
}
