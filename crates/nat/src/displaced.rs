//! Mappings that the configuration has no place for any more, on addresses that go on.
//!
//! ```text
//!   the port is by now another's      a forward was put on it, or its address is one subscriber's whole
//!   the forward it was made by is gone, or leads elsewhere
//!   the internal endpoint has another place   a forward of its own, or an address of its own
//!   the port is not given out any more: reserved, outside the pool's range, another's by a formula
//! ```
//!
//! Such a mapping drains like those of an address that is removed, and has the same deadline: counted from the change that took
//! its place away, which is remembered here for as long as it may matter. The first two take in nobody new meanwhile: who had the
//! port meant it to be open, and who has it now does not.
//!
//! Asked for strangers, in the sweep while there are deadlines, and by a plan.

use std::collections::HashMap;
use std::collections::HashSet;

use crate::balance::Group;
use crate::flow::Flow;
use crate::flow::endpoint;
use crate::mapping::InternalKey;
use crate::settings::Forward;
use crate::settings::Pool;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::slots::ends;
use crate::statics::Kind;
use crate::statics::Run;
use crate::statics::Runs;
use crate::statics::external_key;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;

/// After its deadline what is left of a change is remembered for this long: workers need a while to end all.
const AFTERWARDS: Duration = Duration::from_secs(600);

/// What takes a mapping its place away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Displaced {
    /// Nobody new may speak to it from outside.
    pub(crate) is_shut: bool,
    /// When it ends, whatever its timers say; None: by itself.
    pub(crate) ends: Option<Instant>,
}

/// Where a forward led that is gone.
#[derive(Clone, Copy, Debug)]
struct Gone {
    realm: RealmId,
    inside: u32,
    inside_port: u16,
    since: Instant,
}

/// When changes took places away; see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Displacements {
    /// Forwards that are gone, by the change they went with, the latest last.
    gone: Vec<Runs<Gone>>,
    /// By static, since when it is there; None: for so long that nobody else is left.
    statics: Vec<Option<Instant>>,
    /// By place, since when it gives out what it does.
    shapes: Vec<Option<Instant>>,
}

impl Displacements {
    /// Of `next`, which follows `before` at this time.
    pub(crate) fn successor(before: &Shared, next: &Shared, now: Instant) -> Displacements {
        let (old, new) = (before.settings(), next.settings());
        let known = &before.displacements;
        // By the settings before, as it is those that have been in force.
        let matters =
            |since: &Instant, is_static: bool| ends(old, is_static, *since).is_none_or(|ends| ends + AFTERWARDS > now);
        let mut numbers: HashMap<ForwardKey, usize> = HashMap::new();
        numbers.extend(old.forwards.iter().map(forward_key).zip(0..));
        let since_of = |number: Option<usize>| match number {
            Some(number) => known.statics.get(number).copied().flatten().filter(|since| matters(since, true)),
            None => Some(now),
        };
        let mut statics: Vec<Option<Instant>> =
            new.forwards.iter().map(|forward| since_of(numbers.get(&forward_key(forward)).copied())).collect();
        let whole =
            |settings: &Settings| settings.pools.iter().filter(|pool| pool.one_to_one).cloned().collect::<Vec<Pool>>();
        let old_whole = whole(old);
        statics.extend(whole(new).iter().map(|pool| {
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
            let to = Gone {
                realm: forward.realm,
                inside: forward.inside.to_bits(),
                inside_port: forward.inside_port,
                since: now,
            };
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
        Displacements { gone, statics, shapes }
    }

    /// Whether anything is to end at a given time under these settings.
    pub(crate) fn have_deadlines(&self, settings: &Settings) -> bool {
        let mut statics =
            self.statics.iter().flatten().chain(self.gone.iter().flat_map(Runs::iter).map(|run| &run.to.since));
        statics.any(|since| ends(settings, true, *since).is_some())
            || self.shapes.iter().flatten().any(|since| ends(settings, false, *since).is_some())
    }
}

/// What of a forward says whose which endpoint is.
type ForwardKey = (u64, u16, RealmId, u32, u16);

fn forward_key(forward: &Forward) -> ForwardKey {
    (external_key_of(forward), forward.ports.1, forward.realm, forward.inside.to_bits(), forward.inside_port)
}

fn external_key_of(forward: &Forward) -> u64 {
    external_key(forward.protocol, forward.external.to_bits(), forward.ports.0)
}

/// Whether a pool gives out the same ports as another.
fn has_shape_of(one: &Pool, other: &Pool) -> bool {
    one.port_min == other.port_min
        && one.port_max == other.port_max
        && one.reserved_ports == other.reserved_ports
        && one.allocation == other.allocation
        && one.one_to_one == other.one_to_one
        && (one.allocation == crate::settings::Allocation::Ports
            || one.addresses == other.addresses && one.subscribers == other.subscribers && one.realms == other.realms)
}

/// Whether a second is not after a time.
fn is_by(created_s: u32, time: Instant) -> bool {
    u64::from(created_s) <= time.as_micros() / 1_000_000
}

/// Since when what was made at this second is in the way of a list of targets.
fn in_the_way_since(group: &Group, created_s: u32) -> Option<Instant> {
    let was_there = group.since.is_some_and(|since| is_by(created_s, since));
    // Who came later had the port while it was free.
    if was_there { group.since } else { group.again.or(group.since) }
}

impl Shared {
    /// Whether somebody has one of these ports.
    fn is_any_in_use(&self, run: &Run<Gone>) -> bool {
        let Some(protocol) = Protocol::ALL.into_iter().find(|protocol| *protocol as u64 == run.first >> 48) else {
            return false;
        };
        let Some(address) = self.address_index(((run.first >> 16) as u32).into()) else { return false };
        (run.first as u16..=run.last as u16).any(|port| self.ports.lookup(address, protocol, port).is_some())
    }

    /// What the configuration says of a mapping, made at this second, that has no place in it any more; None: it has one, or
    /// its address says what becomes of it.
    pub(crate) fn displaced(&self, key: &InternalKey, external: Endpoint, created_s: u32) -> Option<Displaced> {
        let known = &self.displacements;
        let (address, protocol) = (external.address.to_bits(), key.protocol);
        let of_static = |number: u32| known.statics.get(number as usize).copied().flatten();
        let made_before = |since: &Instant| is_by(created_s, *since);
        let of = |is_shut, is_static, since: Option<Instant>| {
            let ends = since.and_then(|since| ends(self.settings(), is_static, since));
            Some(Displaced { is_shut, ends })
        };
        if let Some(group) = self.balance.find(address, protocol, external.port) {
            return of(true, true, in_the_way_since(group, created_s));
        }
        if let Some(owner) = self.statics.by_external(address, protocol, external.port) {
            let is_his = owner.key(protocol) == *key;
            return if is_his { None } else { of(true, true, of_static(owner.number)) };
        }
        let was = known.gone.iter().rev().filter_map(|runs| {
            let (to, offset) = runs.find(external_key(protocol, address, external.port))?;
            let inside_port = to.inside_port.wrapping_add(offset as u16);
            let is_this = (to.realm, to.inside, inside_port) == (key.realm, key.address, key.port);
            (is_this && made_before(&to.since)).then_some(to.since)
        });
        if let Some(since) = was.min() {
            return of(true, true, Some(since));
        }
        if let Some((elsewhere, _)) = self.statics.by_internal(key) {
            let owner = self.statics.by_external(elsewhere.address.to_bits(), protocol, elsewhere.port);
            return of(false, true, owner.and_then(|owner| of_static(owner.number)));
        }
        let place = self.address_index(external.address)?;
        let since = known.shapes.get(place.index()).copied().flatten().filter(made_before)?;
        let stays = self.slot(place).is_some_and(|slot| slot.closed.is_some())
            || self.offers(place, protocol, external.port)
                && self.may_have(
                    place,
                    protocol,
                    external.port,
                    key.realm,
                    Endpoint::new(key.address.into(), key.port),
                );
        if stays { None } else { of(false, false, Some(since)) }
    }

    /// Whether a mapping goes by a forward. That is made on an address that drains, too, so that the deadline of that address does not
    /// end it.
    pub(crate) fn is_at_home(&self, key: &InternalKey, external: Endpoint) -> bool {
        let owner = self.statics.by_external(external.address.to_bits(), key.protocol, external.port);
        owner.is_some_and(|owner| owner.kind == Kind::Forward && owner.key(key.protocol) == *key)
    }

    /// The same for a flow: its target is one still.
    pub(crate) fn is_flow_at_home(&self, flow: &Flow) -> bool {
        let (protocol, external) = (flow.protocol(), endpoint(flow.external()));
        if let Some(group) = self.balance.find(external.address.to_bits(), protocol, external.port) {
            return flow.era().is_some() && group.leads_to(external.port, flow.realm(), flow.internal());
        }
        let owner = self.statics.by_external(external.address.to_bits(), protocol, external.port);
        owner.is_some_and(|owner| {
            owner.kind == Kind::Forward && (owner.realm, owner.address) == (flow.realm(), flow.internal().0)
        })
    }

    /// As [`Shared::displaced`] for a flow, which shares its port with others: it has no place on one that is somebody's by now, or not given
    /// out.
    pub(crate) fn displaced_flow(&self, flow: &Flow) -> Option<Displaced> {
        let known = &self.displacements;
        let (protocol, external) = (flow.protocol(), endpoint(flow.external()));
        if let Some(group) = self.balance.find(external.address.to_bits(), protocol, external.port) {
            let since = if flow.era().is_some() {
                if group.leads_to(external.port, flow.realm(), flow.internal()) {
                    return None;
                }
                group.left(external.port, flow.realm(), flow.internal())
            } else {
                in_the_way_since(group, flow.created_s())
            };
            return Some(Displaced { is_shut: true, ends: since.and_then(|since| ends(self.settings(), true, since)) });
        }
        let place = self.address_index(external.address)?;
        let owner = self.statics.by_external(external.address.to_bits(), protocol, external.port);
        let (is_static, since) = match owner {
            // Somebody's own address is for his flows, too.
            Some(owner) if (owner.realm, owner.address) == (flow.realm(), flow.internal().0) => return None,
            Some(owner) => (true, known.statics.get(owner.number as usize).copied().flatten()),
            None => {
                let is_closed = self.slot(place).is_some_and(|slot| slot.closed.is_some());
                if is_closed || self.offers(place, protocol, external.port) {
                    return None;
                }
                let since = known.shapes.get(place.index()).copied().flatten();
                (false, since.filter(|since| is_by(flow.created_s(), *since)))
            }
        };
        Some(Displaced { is_shut: true, ends: since.and_then(|since| ends(self.settings(), is_static, since)) })
    }
}
