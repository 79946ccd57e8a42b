//! Going on under other settings, between two bursts.
//!
//! Nothing is looked through but a few records, and nothing is allocated. What a record knows of the old settings is brought up to date when
//! the record is next needed: a subscriber carries the number of the settings it was last looked at under.

use std::collections::HashMap;
use std::sync::Arc;

use super::Shard;
use super::admission::NO_EPOCH;
use super::port_choice::UNPAIRED;
use super::shorten::has_shorter;
use super::steady::SteadyTimers;
use super::watch::Watch;
use crate::addresses::LocalAddresses;
use crate::displaced::Displaced;
use crate::mapping::InternalKey;
use crate::ports::PortClass;
use crate::settings::Pooling;
use crate::shared::PoolFacts;
use crate::shared::Shared;
use crate::time::Instant;
use crate::timers::Timers;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::verdict::Verdict;

/// Subscribers that a change looks at, at least: so few that it takes no time, and so many that each is looked at before the
/// numbers of settings in records begin anew.
const SETTLED_MIN: u32 = 64;
/// Changes in which each subscriber is looked at once: fewer than the numbers in records tell apart.
const SETTLED_WITHIN: u32 = 1 << 14;

/// Everything a shard needs to go on under other settings, made ready elsewhere, so that it neither allocates nor frees: what
/// it had before is in here afterwards.
#[derive(Debug)]
pub struct Successor {
    shared: Arc<Shared>,
    local: Arc<LocalAddresses>,
    lifetimes: Timers,
    watch: Watch,
    /// By pool, the number it had before.
    pools_before: Vec<Option<PoolId>>,
}

impl Successor {
    /// For one shard that goes from `before` to `shared`, its successor.
    pub fn new(before: &Shared, shared: &Arc<Shared>) -> Successor {
        let settings = shared.settings();
        let known: HashMap<&str, PoolId> = before.pools().map(|(id, pool)| (pool.name.as_str(), id)).collect();
        Successor {
            lifetimes: Timers::new(settings),
            watch: Watch::new(settings),
            pools_before: settings.pools.iter().map(|pool| known.get(pool.name.as_str()).copied()).collect(),
            local: Arc::clone(&shared.local),
            shared: Arc::clone(shared),
        }
    }

    /// The settings it is about; after that, those before.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shard {
    /// Goes on under `next`; what was there before is in it then, to be dropped elsewhere. Allocates nothing, frees nothing,
    /// and looks at so many records whatever there are: some microseconds.
    ///
    /// Mappings, sessions and subscribers stay as they are. Timers that are longer apply from the next packet of a session on; of those
    /// that are shorter `shard/shorten.rs` knows.
    pub fn adopt(&mut self, next: &mut Successor) {
        debug_assert!(
            Arc::ptr_eq(&next.shared.ports, &self.shared.ports),
            "all snapshots of an instance share its ports"
        );
        let settings = next.shared.settings();
        self.timers = SteadyTimers::new(&settings.timeouts, settings.inbound_refresh);
        // A pool that is above its threshold stays so, and is not told again.
        next.watch.follow(&self.watch, &next.pools_before);
        self.forget_classes();
        self.fragments.set_timeout(settings.timeouts.fragment);
        self.syns.set_delay(settings.timeouts.unsolicited_syn);
        self.icmp_limit.set_policy(&settings.icmp);
        if next.shared.rehashes_sessions() {
            self.sessions.hash_anew();
        }
        self.stamps.change(next.shared.filters.stamp());
        self.events.adopt();
        self.unrecorded = if self.events.is_on() { self.mappings.walk_end() } else { 0 };
        core::mem::swap(&mut self.lifetimes, &mut next.lifetimes);
        if has_shorter(next.lifetimes.in_force(), self.lifetimes.in_force())
            || self.lifetimes.has_other_ports(&next.lifetimes)
        {
            self.shorten_lives();
        }
        // Those before go on to tell what was done under them; those before these go back.
        self.former.follow(&mut next.lifetimes);
        core::mem::swap(&mut self.watch, &mut next.watch);
        core::mem::swap(&mut self.shared, &mut next.shared);
        core::mem::swap(&mut self.local, &mut next.local);
        self.unsettle_some();
    }

    /// Takes notice of the addresses of a configuration that other workers may go by before this one does ([`Shared::expected`]): packets
    /// to them are for whoever has the endpoint. What was known before is in `expected` then, to be dropped elsewhere.
    pub fn expect(&mut self, expected: &mut Arc<LocalAddresses>) {
        core::mem::swap(&mut self.local, expected);
    }

    /// Numbers of settings in records are short. Before they begin anew each record that was not looked at meanwhile has one
    /// that is old whatever the present one is.
    fn unsettle_some(&mut self) {
        let end = self.subscribers.walk_end();
        let (stamp, epoch) = (self.shared.stamp(), self.class_epoch);
        for _ in 0..SETTLED_MIN.max(end / SETTLED_WITHIN + 1).min(end) {
            if self.settled_hand >= end {
                self.settled_hand = 1;
            }
            if self.settled_hand < end {
                let record = self.subscribers.get_mut(self.settled_hand);
                if record.generation != stamp {
                    record.generation = stamp.wrapping_sub(1);
                }
                if record.class_epoch != epoch {
                    record.class_epoch = NO_EPOCH;
                }
            }
            self.settled_hand += 1;
        }
    }

    /// The external address a subscriber is paired with, for a new mapping. One who is paired with an address that is closed,
    /// or is another pool's by now, gets another one; mappings that exist keep theirs.
    ///
    /// # Errors
    /// When the pool has no port for him; nothing is changed then.
    #[inline]
    pub(super) fn settle_pairing(
        &mut self,
        slot: u32,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Result<AddressIndex, Verdict> {
        let subscriber = self.subscribers.get(slot);
        let paired = AddressIndex(subscriber.paired);
        if subscriber.generation == self.shared.stamp() {
            return Ok(paired);
        }
        self.pair_anew(slot, key, pool, facts, class)
    }

    #[cold]
    fn pair_anew(
        &mut self,
        slot: u32,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Result<AddressIndex, Verdict> {
        let penalty = self.penalty_pool(slot);
        let old = AddressIndex(self.subscribers.get(slot).paired);
        if let Some(own) = self.stays_in(old, key, pool, penalty) {
            self.pair_with(slot, own, old);
            return Ok(old);
        }
        if penalty == Some(pool) && old != UNPAIRED && self.shared.pool_of(old) != pool {
            self.subscribers.account_mut(slot).set_home(Some(old));
        }
        let shared = &self.shared;
        let fits = self.fits(old, key, pool, facts);
        let there = self.place_in(&self.shared, slot, pool);
        let new = match facts.pooling {
            Pooling::Paired if fits && shared.formula(pool).is_none() => old,
            Pooling::Paired if penalty.is_none() => match self.way_home(slot, key, pool, facts, class).or(there) {
                Some(home) => home,
                None => self.address_for(key, pool, facts, class)?,
            },
            _ => self.address_for(key, pool, facts, class)?,
        };
        self.pair_with(slot, pool, new);
        if old != UNPAIRED && new != old && penalty.is_none() {
            self.stay_elsewhere(slot, old, pool, there == Some(new));
        }
        Ok(new)
    }

    /// Whether the address that a subscriber is paired with is one for him in this pool still: open, and, where each has one of his own, his.
    pub(super) fn fits(&self, paired: AddressIndex, key: &InternalKey, pool: PoolId, facts: &PoolFacts) -> bool {
        paired != UNPAIRED
            && self.shared.pool_of(paired) == pool
            && !self.shared.facts(paired).is_closed
            && (!facts.one_to_one || self.static_home(key, pool) == Some(paired))
    }

    /// The pool in which a subscriber stays who is paired with `paired` and has a mapping of `pool` now: a rule that sends some of his flows to
    /// another pool leaves him what he has in his own. None: he is of `pool` then.
    pub(super) fn stays_in(
        &self,
        paired: AddressIndex,
        key: &InternalKey,
        pool: PoolId,
        penalty: Option<PoolId>,
    ) -> Option<PoolId> {
        let shared = &self.shared;
        let own = penalty.or_else(|| shared.pool_for(key.realm, key.address.into()))?;
        if own == pool || shared.formula(own).is_some() {
            return None;
        }
        let stays = if paired == UNPAIRED {
            shared.pools[own.index()].pooling == Pooling::Arbitrary
        } else {
            self.fits(paired, key, own, &shared.pools[own.index()])
        };
        stays.then_some(own)
    }

    /// Whom a rule paired in another pool before he had something in his own stays paired there, too. `is_free`: his place elsewhere is
    /// the one he is paired with now. That he was an offender gave him no place.
    fn stay_elsewhere(&mut self, slot: u32, old: AddressIndex, pool: PoolId, is_free: bool) {
        let (before, penalty) = (self.shared.pool_of(old), self.shared.classes.facts(self.class_now(slot)).penalty);
        let is_by_rule = before != pool && penalty.is_none_or(|penalty| penalty.pool != before);
        if is_by_rule && (is_free || self.subscribers.get(slot).elsewhere().is_none()) {
            self.subscribers.get_mut(slot).set_elsewhere(Some(old));
        }
    }

    /// The address that one who was an offender had in this pool, and may have sessions and blocks on still: all of his have one address
    /// again (RFC 6888 §4 REQ-2). None where it is closed, or has no room for him.
    fn way_home(
        &mut self,
        slot: u32,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Option<AddressIndex> {
        let account = self.subscribers.account_mut(slot);
        let home = account.home()?;
        account.set_home(None);
        let is_open = self.shared.pool_of(home) == pool && !self.shared.facts(home).is_closed;
        // Whom a formula gives an address has that one.
        let is_free = self.shared.formula(pool).is_none() && !facts.one_to_one;
        let has_block = || self.blocks_of(slot).any(|block| block.address() == home);
        (is_open && is_free && (has_block() || self.has_room(facts, home, key, class))).then_some(home)
    }

    /// Pairs a subscriber of this pool with this address, under the present settings.
    pub(super) fn pair_with(&mut self, slot: u32, pool: PoolId, new: AddressIndex) {
        let (old, shared) = (AddressIndex(self.subscribers.get(slot).paired), &self.shared);
        if new != old {
            if new != UNPAIRED {
                shared.ports.pair(new);
            }
            if old != UNPAIRED {
                shared.ports.unpair(old);
            }
        }
        self.subscribers.settle(slot, pool, new, shared.stamp());
    }

    /// Whether a mapping has to end whatever its timers say, because its external address is closed, or the configuration has
    /// no place for it any more, and time is up.
    #[inline]
    pub(super) fn is_overdue(&self, index: u32, now: Instant) -> bool {
        self.granted_until(index).is_some_and(|ends| ends <= now)
    }

    /// When a mapping ends whatever its timers say; None where nothing but them ends it.
    #[inline]
    pub(super) fn granted_until(&self, index: u32) -> Option<Instant> {
        if !self.shared.has_deadlines() {
            return None;
        }
        let of_address = self.shared.deadline(self.mappings.get(index).external_address);
        let of_address = of_address.filter(|_| !self.is_at_home(index));
        let of_place = self.displaced(index).and_then(|found| found.ends);
        of_address.into_iter().chain(of_place).min()
    }

    /// The same of a flow.
    #[inline]
    pub(super) fn flow_granted_until(&self, index: u32) -> Option<Instant> {
        if !self.shared.has_deadlines() {
            return None;
        }
        let flow = self.flows.get(index);
        let of_address = self.shared.deadline(flow.external().0).filter(|_| !self.shared.is_flow_at_home(flow));
        let of_place = self.shared.displaced_flow(flow).and_then(|found| found.ends);
        of_address.into_iter().chain(of_place).min()
    }

    /// The same for a flow.
    pub(super) fn is_flow_overdue(&self, index: u32, now: Instant) -> bool {
        self.flow_granted_until(index).is_some_and(|ends| ends <= now)
    }

    /// Whether the configuration has no place for a mapping any more.
    pub(super) fn displaced(&self, index: u32) -> Option<Displaced> {
        let mapping = self.mappings.get(index);
        self.shared.displaced(&mapping.key(), mapping.external(), mapping.created_s())
    }

    /// Whether the configuration says that a mapping is where it is, also on an address that drains.
    fn is_at_home(&self, index: u32) -> bool {
        let mapping = self.mappings.get(index);
        self.shared.is_at_home(&mapping.key(), mapping.external())
    }
}
