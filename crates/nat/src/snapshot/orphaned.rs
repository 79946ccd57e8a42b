//! Orphaned mappings: the configuration no longer allows them, although their address stays.
//!
//! ```text
//!   the port now belongs to another endpoint   by a forward, or by a one-to-one address
//!   the forward of the mapping was removed, or leads elsewhere
//!   the internal endpoint has another place    a forward, or a one-to-one address
//!   the port is no longer given out            reserved, outside the range, or in another slice
//! ```
//!
//! They drain like those of a removed address, with a deadline counted from the change. The first
//! two cases accept no new remote endpoints: the new owner did not mean the port to be open.

use std::collections::HashMap;
use std::collections::HashSet;

use crate::external::address_slots::ends;
use crate::external::load_balancing::Group;
use crate::external::static_mapping::Kind;
use crate::external::static_mapping::Run;
use crate::external::static_mapping::Runs;
use crate::external::static_mapping::StaticKey;
use crate::external::static_mapping::external_key;
use crate::settings::Forward;
use crate::settings::Pool;
use crate::settings::Settings;
use crate::snapshot::shared::Shared;
use crate::state::flow::Flow;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::InsideHost;
use crate::types::Protocol;
use crate::types::RealmId;

/// Changes are remembered after their deadline: workers need a while to end all mappings.
const AFTERWARDS: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphaned {
    /// The mapping accepts no new remote endpoints from outside.
    pub(crate) is_shut: bool,
    /// Whatever its timers say; `None` if by itself.
    pub(crate) ends: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Gone {
    realm: RealmId,
    inside: InsideHost,
    inside_port: u16,
    since: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// Removed forwards by change, the latest last.
    gone: Vec<Runs<Gone>>,
    /// For each static entry: the time since which it exists; `None` if no older mapping can be
    /// left.
    static_mappings: Vec<Option<Instant>>,
    /// For each place: the time since which it offers its present ports.
    shapes: Vec<Option<Instant>>,
}

impl Orphans {
    pub(crate) fn successor(before: &Shared, next: &Shared, now: Instant) -> Orphans {
        let (old, new) = (before.settings(), next.settings());
        let known = &before.orphans;
        // By the old settings, because these have been in use.
        let matters =
            |since: &Instant, is_static: bool| ends(old, is_static, *since).is_none_or(|ends| ends + AFTERWARDS > now);
        let mut numbers: HashMap<ForwardKey, usize> = HashMap::new();
        numbers.extend(old.forwards.iter().map(forward_key).zip(0..));
        let since_of = |number: Option<usize>| match number {
            Some(number) => known.static_mappings.get(number).copied().flatten().filter(|since| matters(since, true)),
            None => Some(now),
        };
        let mut static_mappings: Vec<Option<Instant>> =
            new.forwards.iter().map(|forward| since_of(numbers.get(&forward_key(forward)).copied())).collect();
        let whole =
            |settings: &Settings| settings.pools.iter().filter(|pool| pool.one_to_one).cloned().collect::<Vec<Pool>>();
        let old_whole = whole(old);
        static_mappings.extend(whole(new).iter().map(|pool| {
            let same = |other: &Pool| {
                other.addresses == pool.addresses
                    && other.subscribers == pool.subscribers
                    && other.realm() == pool.realm()
            };
            since_of(old_whole.iter().position(same).map(|position| old.forwards.len() + position))
        }));

        let still: HashSet<ForwardKey> = new.forwards.iter().map(forward_key).collect();
        let leaves = old.forwards.iter().filter(|forward| !still.contains(&forward_key(forward)));
        let latest = leaves.map(|forward| {
            let (first, span) = (external_key_of(forward), u64::from(forward.ports.1 - forward.ports.0));
            let to =
                Gone { realm: forward.realm, inside: forward.inside, inside_port: forward.inside_port, since: now };
            Run { first, last: first + span, to }
        });
        let latest: Vec<Run<Gone>> = latest.collect();
        let mut gone: Vec<Runs<Gone>> = Vec::new();
        for runs in &known.gone {
            let left = runs.iter().filter(|run| matters(&run.to.since, true) && before.is_any_in_use(run)).copied();
            let left: Vec<_> = left.collect();
            gone.extend((!left.is_empty()).then(|| Runs::new(left)));
        }
        gone.extend((!latest.is_empty()).then(|| Runs::new(latest)));

        let shapes = (0..next.address_count() as u32).map(AddressIndex).map(|place| {
            let (was, is) = (before.slot(place)?, next.slot(place)?);
            if was.address != is.address {
                return None;
            }
            let (Some(one), Some(other)) = (before.pool(was.pool), next.pool(is.pool)) else { return None };
            if has_shape_of(one, other) {
                return known.shapes.get(place.index()).copied().flatten().filter(|since| matters(since, false));
            }
            Some(now)
        });
        let shapes = shapes.collect();
        Orphans { gone, static_mappings, shapes }
    }

    pub(crate) fn have_deadlines(&self, settings: &Settings) -> bool {
        let mut static_mappings =
            self.static_mappings.iter().flatten().chain(self.gone.iter().flat_map(Runs::iter).map(|run| &run.to.since));
        static_mappings.any(|since| ends(settings, true, *since).is_some())
            || self.shapes.iter().flatten().any(|since| ends(settings, false, *since).is_some())
    }
}

type ForwardKey = (u64, u16, RealmId, InsideHost, u16);

fn forward_key(forward: &Forward) -> ForwardKey {
    (external_key_of(forward), forward.ports.1, forward.realm, forward.inside, forward.inside_port)
}

fn external_key_of(forward: &Forward) -> u64 {
    external_key(forward.protocol, forward.external.to_bits(), forward.ports.0)
}

fn has_shape_of(one: &Pool, other: &Pool) -> bool {
    one.port_min == other.port_min
        && one.port_max == other.port_max
        && one.reserved_ports == other.reserved_ports
        && one.allocation == other.allocation
        && one.one_to_one == other.one_to_one
        && (one.allocation == crate::settings::Allocation::Ports
            || one.addresses == other.addresses && one.subscribers == other.subscribers && one.realms == other.realms)
}

fn is_by(created_s: u32, time: Instant) -> bool {
    u64::from(created_s) <= time.as_micros() / 1_000_000
}

fn in_the_way_since(group: &Group, created_s: u32) -> Option<Instant> {
    let was_there = group.since.is_some_and(|since| is_by(created_s, since));
    // A mapping created later got the port while that was free.
    if was_there { group.since } else { group.again.or(group.since) }
}

impl Shared {
    fn is_any_in_use(&self, run: &Run<Gone>) -> bool {
        let Some(protocol) = Protocol::ALL.into_iter().find(|protocol| *protocol as u64 == run.first >> 48) else {
            return false;
        };
        let Some(address) = self.address_index(((run.first >> 16) as u32).into()) else { return false };
        (run.first as u16..=run.last as u16).any(|port| self.ports.lookup(address, protocol, port).is_some())
    }

    pub(crate) fn orphaned(&self, key: &StaticKey, external: Endpoint, created_s: u32) -> Option<Orphaned> {
        let known = &self.orphans;
        let (address, protocol) = (external.address.to_bits(), key.protocol);
        let of_static = |number: u32| known.static_mappings.get(number as usize).copied().flatten();
        let made_before = |since: &Instant| is_by(created_s, *since);
        let of = |is_shut, is_static, since: Option<Instant>| {
            let ends = since.and_then(|since| ends(self.settings(), is_static, since));
            Some(Orphaned { is_shut, ends })
        };
        if let Some(group) = self.balance.find(address, protocol, external.port) {
            return of(true, true, in_the_way_since(group, created_s));
        }
        if let Some(owner) = self.static_mappings.by_external(address, protocol, external.port) {
            let is_his = owner.key(protocol) == *key;
            return if is_his { None } else { of(true, true, of_static(owner.number)) };
        }
        let was = known.gone.iter().rev().filter_map(|runs| {
            let (to, offset) = runs.find(external_key(protocol, address, external.port))?;
            let inside_port = to.inside_port.wrapping_add(offset as u16);
            let is_this = (to.realm, to.inside, inside_port) == (key.realm, key.host, key.port);
            (is_this && made_before(&to.since)).then_some(to.since)
        });
        if let Some(since) = was.min() {
            return of(true, true, Some(since));
        }
        if let Some((elsewhere, _)) = self.static_mappings.by_internal(key) {
            let owner = self.static_mappings.by_external(elsewhere.address.to_bits(), protocol, elsewhere.port);
            return of(false, true, owner.and_then(|owner| of_static(owner.number)));
        }
        let place = self.address_index(external.address)?;
        let since = known.shapes.get(place.index()).copied().flatten().filter(made_before)?;
        let stays = self.slot(place).is_some_and(|slot| slot.closed.is_some())
            || self.offers(place, protocol, external.port) && self.may_have(place, protocol, external.port, key);
        if stays { None } else { of(false, false, Some(since)) }
    }

    /// True for a forward's mapping, which a draining address's deadline does not end.
    pub(crate) fn is_at_home(&self, key: &StaticKey, external: Endpoint) -> bool {
        let owner = self.static_mappings.by_external(external.address.to_bits(), key.protocol, external.port);
        owner.is_some_and(|owner| owner.kind == Kind::Forward && owner.key(key.protocol) == *key)
    }

    /// `host` is internal.
    pub(crate) fn is_flow_at_home(&self, flow: &Flow, host: &InsideHost) -> bool {
        let (protocol, external) = (flow.protocol(), Endpoint::from(flow.external()));
        if let Some(group) = self.balance.find(external.address.to_bits(), protocol, external.port) {
            return flow.generation().is_some() && group.leads_to(external.port, flow.realm(), flow.internal());
        }
        let owner = self.static_mappings.by_external(external.address.to_bits(), protocol, external.port);
        owner.is_some_and(|owner| owner.kind == Kind::Forward && (owner.realm, owner.host) == (flow.realm(), *host))
    }

    /// True if another endpoint's forward has the port. It takes no new sessions until the mapping
    /// ends.
    pub(crate) fn is_in_the_way_of_forward(&self, key: &StaticKey, external: Endpoint) -> bool {
        let (address, protocol) = (external.address.to_bits(), key.protocol);
        self.balance.find(address, protocol, external.port).is_some()
            || self
                .static_mappings
                .by_external(address, protocol, external.port)
                .is_some_and(|owner| owner.kind == Kind::Forward && owner.key(protocol) != *key)
    }

    /// Like [`Shared::orphaned`]; a flow has no place on a port of one endpoint.
    pub(crate) fn orphaned_flow(&self, flow: &Flow, host: &InsideHost) -> Option<Orphaned> {
        let known = &self.orphans;
        let (protocol, external) = (flow.protocol(), Endpoint::from(flow.external()));
        if let Some(group) = self.balance.find(external.address.to_bits(), protocol, external.port) {
            let since = if flow.generation().is_some() {
                if group.leads_to(external.port, flow.realm(), flow.internal()) {
                    return None;
                }
                group.left(external.port, flow.realm(), flow.internal())
            } else {
                in_the_way_since(group, flow.created_s())
            };
            return Some(Orphaned { is_shut: true, ends: since.and_then(|since| ends(self.settings(), true, since)) });
        }
        let place = self.address_index(external.address)?;
        let owner = self.static_mappings.by_external(external.address.to_bits(), protocol, external.port);
        let (is_static, since) = match owner {
            // A one-to-one address also carries its subscriber's flows.
            Some(owner) if (owner.realm, owner.host) == (flow.realm(), *host) => return None,
            Some(owner) => (true, known.static_mappings.get(owner.number as usize).copied().flatten()),
            None => {
                let is_closed = self.slot(place).is_some_and(|slot| slot.closed.is_some());
                if is_closed || self.offers(place, protocol, external.port) {
                    return None;
                }
                let since = known.shapes.get(place.index()).copied().flatten();
                (false, since.filter(|since| is_by(flow.created_s(), *since)))
            }
        };
        Some(Orphaned { is_shut: true, ends: since.and_then(|since| ends(self.settings(), is_static, since)) })
    }
}
