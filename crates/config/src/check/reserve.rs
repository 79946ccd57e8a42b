//! Whether pools can hold what classes guarantee to their subscribers.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Protocol;
use nat::Settings;
use nat::deterministic::Formula;
use nat::guaranteed_ports::Reservation;
use nat::guaranteed_ports::reservations;
use nat::settings::Allocation;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::Pooling;

use crate::draft::class::ClassDraft;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;
use crate::report::many;

/// Ports of an external address that forwards have, by [`Protocol::index`].
type Forwarded = HashMap<Ipv4Addr, [Vec<(u16, u16)>; Protocol::COUNT]>;

/// Checks a configuration that is sound otherwise; `tables` are those of all workers together.
pub(crate) fn check(settings: &Settings, classes: &[ClassDraft], tables: &Limits, report: &mut Report) -> Vec<Warning> {
    let guarantees = |class: &&ClassDraft| class.limits.reserved_ports != [0; Protocol::COUNT];
    let Some(place) = classes.iter().find(guarantees).map(|class| &class.reserved_ports) else {
        return Vec::new();
    };
    // Settings that cannot be compiled are reported when the instance is built.
    let Ok(found) = reservations(settings) else { return Vec::new() };
    let mut warnings = Vec::new();
    let forwarded = forwarded(settings);
    for (pool, reservation) in settings.pools.iter().zip(&found) {
        if reservation.subscribers > 0 {
            warnings.extend(of_pool(pool, reservation, &forwarded, place, report));
        }
    }
    of_tables(&found, tables, place, report);
    warnings
}

/// Each port that is guaranteed takes a mapping when it is used, and each subscriber a record.
fn of_tables(found: &[Reservation], tables: &Limits, place: &Place, report: &mut Report) {
    let subscribers: u64 = found.iter().map(|reservation| reservation.subscribers).sum();
    let ports: u64 = found.iter().flat_map(|reservation| reservation.ports).sum();
    let fewer_ports = "guarantee fewer ports";
    let needs = [
        (
            ports,
            tables.mappings_max,
            "mappings",
            format!("{} {ports} ports together", many(subscribers, "subscriber")),
            fewer_ports,
        ),
        (
            subscribers,
            tables.subscribers_max,
            "subscribers",
            format!("ports to {}", many(subscribers, "subscriber")),
            "name fewer subscribers",
        ),
    ];
    for (needed, there, table, guaranteed, fewer) in needs {
        if needed > u64::from(there) {
            let problem = format!("guarantees {guaranteed}, and the tables have room for no more than {there} {table}");
            let remedy = format!("write tables.{table} = {needed} or more, or {fewer}");
            report.fault(place, problem, format!("tables.{table} = {there}"), remedy);
        }
    }
}

/// What is wrong, what was seen, a remedy.
type Finding = (String, String, String);

/// A guarantee that the pool can never keep is a fault. One that fails only while addresses drain
/// is a warning: an operator must always be able to drain an attacked address.
fn of_pool(
    pool: &Pool,
    reservation: &Reservation,
    forwarded: &Forwarded,
    place: &Place,
    report: &mut Report,
) -> Vec<Warning> {
    let always = findings(pool, reservation, forwarded, &pool.addresses);
    let is_sound = always.is_empty();
    for (problem, seen, remedy) in always {
        report.fault(place, problem, seen, remedy);
    }
    let open = open_addresses(pool);
    if !is_sound || open.len() == pool.addresses.len() {
        return Vec::new();
    }
    let reported = findings(pool, reservation, forwarded, &open).into_iter();
    reported
        .map(|(problem, seen, remedy)| report.warning(None, place, format!("{problem} ({seen})"), &remedy))
        .collect()
}

fn forwarded(settings: &Settings) -> Forwarded {
    let single = settings.forwards.iter().map(|it| (it.external, it.protocol, it.ports));
    let balanced = settings.balanced_forwards.iter().map(|it| (it.external, it.protocol, it.ports));
    let mut forwarded = Forwarded::new();
    for (external, protocol, ports) in single.chain(balanced) {
        forwarded.entry(external).or_default()[protocol.index()].push(ports);
    }
    forwarded
}

/// What keeps a pool from holding what is guaranteed, with these of its addresses.
fn findings(pool: &Pool, reservation: &Reservation, forwarded: &Forwarded, open: &[Ipv4Addr]) -> Vec<Finding> {
    let of_pool = format!("pool \"{}\"", pool.name);
    let name = &pool.name;
    let drain = pool.addresses.len() - open.len();
    let mut found = Vec::new();
    let mut fault = |problem: String, seen: String, remedy: String| found.push((problem, seen, remedy));
    match pool.allocation {
        // Its address is all its own.
        _ if pool.one_to_one => {}
        Allocation::Blocks(blocks) => fault(
            format!("has no effect in {of_pool}, whose subscribers get ports in blocks"),
            format!("block_size = {}", blocks.size.ports()),
            format!("remove it, or write allocation = \"ports\" in pool \"{name}\""),
        ),
        _ if open.is_empty() => fault(
            format!("has no effect in {of_pool}, which is draining and gives out no ports"),
            format!("{} draining", many(drain as u64, "address")),
            "serve these subscribers from another pool, stop draining this one, or remove the guarantee".to_owned(),
        ),
        Allocation::Deterministic { .. } => {
            let slice = Formula::of(pool).ok().flatten().map_or(0, |formula| formula.slice_ports());
            let largest = reservation.largest.into_iter().max().unwrap_or_default();
            if largest > slice {
                fault(
                    format!("is more than the {slice} ports of a slice of {of_pool}"),
                    largest.to_string(),
                    format!("write at most {slice}, or give pool \"{name}\" more addresses"),
                );
            }
            if drain > 0 {
                fault(
                    format!("cannot be kept in {of_pool}, where slices on draining addresses give out no new ports"),
                    format!("{drain} of {} addresses are draining", pool.addresses.len()),
                    "stop the draining, or remove the guarantee until it ends".to_owned(),
                );
            }
        }
        Allocation::Ports if pool.pooling == Pooling::Arbitrary => fault(
            format!("needs paired pooling, because ports are reserved by address, and {of_pool} has none"),
            "pooling = \"arbitrary\"".to_owned(),
            format!("write pooling = \"paired\" in pool \"{name}\""),
        ),
        Allocation::Ports if pool.port_min < 1_024 => fault(
            format!(
                "cannot be kept in {of_pool}: by RFC 4787 REQ-3a its ports below 1024 are only for internal ports below 1024"
            ),
            format!("ports = \"{}-{}\"", pool.port_min, pool.port_max),
            format!("write ports = \"1024-{}\" in pool \"{name}\"", pool.port_max.max(1_024)),
        ),
        Allocation::Ports => {
            let by_protocol =
                Protocol::ALL.map(|protocol| SinglePorts::new(pool, reservation, open, forwarded, protocol));
            let mut is_sound = true;
            for ports in by_protocol.iter().filter(|ports| !ports.can_hold(ports.largest)) {
                let (problem, seen, remedy) = ports.reported(&of_pool, drain);
                fault(problem, seen, remedy);
                is_sound = false;
            }
            let together = held_together(&by_protocol, open.len());
            if is_sound && !reservation.is_mixed && together < reservation.subscribers {
                fault(
                    format!(
                        "guarantees more ports to {} than {of_pool} has of all protocols on the same addresses, beside its \
                         forwards",
                        many(reservation.subscribers, "subscriber")
                    ),
                    format!("room for {together}"),
                    "add addresses, or forward ports of fewer of them".to_owned(),
                );
            }
        }
    }
    found
}

/// Those that subscribers get ports of.
fn open_addresses(pool: &Pool) -> Vec<Ipv4Addr> {
    let draining: HashSet<&Ipv4Addr> = pool.draining_addresses.iter().collect();
    let drains = |address: &Ipv4Addr| pool.draining || draining.contains(address);
    pool.addresses.iter().copied().filter(|address| !drains(address)).collect()
}

/// What a pool with single ports has of one protocol, and what is guaranteed of it.
struct SinglePorts {
    protocol: Protocol,
    reservation: Reservation,
    /// The most guaranteed to one subscriber.
    largest: u64,
    /// Ports of an address that nothing is forwarded from.
    whole: u64,
    /// By open address.
    there: Vec<(Ipv4Addr, u64)>,
}

impl SinglePorts {
    fn new(
        pool: &Pool,
        reservation: &Reservation,
        open: &[Ipv4Addr],
        forwarded: &Forwarded,
        protocol: Protocol,
    ) -> SinglePorts {
        let offered = |first: u16, last: u16| {
            let (first, last) = (first.max(pool.port_min), last.min(pool.port_max));
            if first > last {
                return 0;
            }
            let reserved = pool.reserved_ports.iter().filter(|port| (first..=last).contains(*port)).count();
            u64::from(last - first) + 1 - reserved as u64
        };
        let whole = if protocol == Protocol::Icmp { 65_535 } else { offered(pool.port_min, pool.port_max) };
        let taken = |address: &Ipv4Addr| {
            let ranges = forwarded.get(address).map_or(&[][..], |by_protocol| &by_protocol[protocol.index()]);
            ranges.iter().map(|(first, last)| offered(*first, *last)).sum()
        };
        SinglePorts {
            protocol,
            reservation: *reservation,
            largest: u64::from(reservation.largest[protocol.index()]),
            whole,
            there: open.iter().map(|address| (*address, whole.saturating_sub(taken(address)))).collect(),
        }
    }

    /// The ports that each address reserves.
    fn wanted(&self) -> u64 {
        self.reservation.of_each_address(self.there.len() as u64)[self.protocol.index()]
    }

    /// The address with the fewest.
    fn scarcest(&self) -> (Ipv4Addr, u64) {
        self.there.iter().copied().min_by_key(|(_, there)| *there).unwrap_or((Ipv4Addr::UNSPECIFIED, 0))
    }

    /// Whether there is room for a guarantee of so many ports; where not all have the same, for the
    /// one there is.
    fn can_hold(&self, each: u64) -> bool {
        if self.reservation.is_mixed { self.wanted() <= self.scarcest().1 } else { self.can_hold_with(each, 0) }
    }

    /// True if every subscriber finds an address with room after so many addresses were added. An
    /// address reserves no more than the share of its subscribers, so spare ports on one address
    /// do not make up for a shortage on another.
    fn can_hold_with(&self, each: u64, added: u64) -> bool {
        let subscribers = self.reservation.subscribers;
        if each == 0 {
            return true;
        }
        let share = subscribers.div_ceil(self.there.len() as u64 + added);
        let held: u64 = self.there.iter().map(|(_, there)| share.min(there / each)).sum();
        held + added * share.min(self.whole / each) >= subscribers
    }

    /// How many subscribers find what is guaranteed to them on the address at this position.
    fn held_on(&self, at: usize) -> u64 {
        let share = self.reservation.subscribers.div_ceil((self.there.len() as u64).max(1));
        let there = self.there.get(at).map_or(0, |(_, there)| *there);
        there.checked_div(self.largest).map_or(share, |room| room.min(share))
    }

    /// The most that could be guaranteed to each.
    fn at_most(&self) -> u64 {
        if self.reservation.is_mixed {
            let share = self.reservation.subscribers.div_ceil(self.there.len() as u64);
            // Beside the shares there is room for the largest.
            return (self.scarcest().1 / (share + 1)).min(self.largest.saturating_sub(1));
        }
        least_above(self.largest, |fewer| self.can_hold_with(self.largest - fewer, 0))
            .map_or(0, |fewer| self.largest - fewer)
    }

    /// How many addresses would be enough, if any number is.
    fn addresses_needed(&self) -> Option<u64> {
        if self.reservation.is_mixed {
            let beside = self.scarcest().1.checked_sub(self.largest).filter(|beside| *beside > 0)?;
            return Some(self.reservation.ports[self.protocol.index()].div_ceil(beside));
        }
        let added = least_above(self.reservation.subscribers, |added| self.can_hold_with(self.largest, added))?;
        Some(self.there.len() as u64 + added)
    }

    /// What is wrong, the numbers seen, and a remedy with numbers.
    fn reported(&self, of_pool: &str, drain: usize) -> (String, String, String) {
        let (protocol, subscribers, addresses) = (self.protocol, self.reservation.subscribers, self.there.len());
        let (scarcest, there) = self.scarcest();
        let on = if there == self.whole {
            "on each address".to_owned()
        } else {
            format!("on {scarcest}, beside its forwards")
        };
        let problem = format!(
            "guarantees more {} ports to {} than {of_pool} has: {} of {there} {on}",
            protocol.name().to_uppercase(),
            many(subscribers, "subscriber"),
            self.wanted()
        );
        let mut seen = format!("{} each, {}", many(self.largest, "port"), many(addresses as u64, "address"));
        if drain > 0 {
            seen.push_str(&format!(" not draining, {drain} draining"));
        }
        let mut remedies = Vec::new();
        remedies.extend(Some(self.at_most()).filter(|most| *most > 0).map(|most| format!("write at most {most}")));
        // Fewer subscribers do not help where no address has the ports of even one.
        if subscribers > 1 && self.there.iter().any(|(_, there)| *there >= self.largest) {
            remedies.push("name fewer subscribers".to_owned());
        }
        let open = if drain > 0 { "open " } else { "" };
        remedies.extend(self.addresses_needed().map(|needed| format!("give the pool {needed} {open}addresses")));
        let remedy = match remedies.as_slice() {
            [] => "remove it".to_owned(),
            [one] => one.clone(),
            [before @ .., last] if before.len() > 1 => format!("{}, or {last}", before.join(", ")),
            [first, last, ..] => format!("{first}, or {last}"),
        };
        (problem, seen, remedy)
    }
}

/// How many subscribers find an address that has all that is guaranteed to them: paired pooling
/// gives each only one.
fn held_together(by_protocol: &[SinglePorts], addresses: usize) -> u64 {
    let on = |at: usize| by_protocol.iter().map(|ports| ports.held_on(at)).min().unwrap_or(0);
    (0..addresses).map(on).sum()
}

/// The lowest number from 1 to `most` that will do, where those above one that does do too.
fn least_above(most: u64, will_do: impl Fn(u64) -> bool) -> Option<u64> {
    if most == 0 || !will_do(most) {
        return None;
    }
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = low.midpoint(high);
        if will_do(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(high)
}
