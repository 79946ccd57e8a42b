//! Going on under other settings, between two bursts.
//!
//! Nothing is looked through and nothing is allocated. What a record knows of the old settings is brought up to date when
//! the record is next needed: a subscriber carries the number of the settings it was last looked at under.

use std::sync::Arc;

use super::Shard;
use super::port_choice::UNPAIRED;
use super::steady::SteadyTimers;
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

impl Shard {
    /// Goes on under `shared`, a successor of the present one; the present one comes back, so that it is dropped elsewhere.
    ///
    /// Mappings, sessions and subscribers stay as they are. New timers apply from the next packet of a session on.
    pub fn adopt(&mut self, shared: Arc<Shared>) -> Arc<Shared> {
        debug_assert!(Arc::ptr_eq(&shared.ports, &self.shared.ports), "all snapshots of an instance share its ports");
        let settings = shared.settings();
        self.timers = SteadyTimers::new(&settings.timeouts, settings.inbound_refresh);
        self.lifetimes = Timers::new(settings);
        // Pools may be others: one that is above its threshold is told again.
        self.watch = super::watch::Watch::new(settings);
        self.forget_classes();
        self.fragments.set_timeout(settings.timeouts.fragment);
        self.syns.set_delay(settings.timeouts.unsolicited_syn);
        self.icmp_limit.set_policy(&settings.icmp);
        if shared.rehashes_sessions() {
            self.sessions.hash_anew();
        }
        self.stamps.change(shared.filters.stamp());
        self.events.adopt();
        core::mem::replace(&mut self.shared, shared)
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
        let shared = &self.shared;
        let old = AddressIndex(self.subscribers.get(slot).paired);
        let fits = old != UNPAIRED && shared.pool_of(old) == pool && !shared.facts(old).is_closed;
        let new = match facts.pooling {
            Pooling::Paired if fits && shared.formula(pool).is_none() => old,
            _ => self.address_for(key, pool, facts, class)?,
        };
        self.pair_with(slot, pool, new);
        Ok(new)
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

    /// Whether a mapping has to end whatever its timers say, because its external address is closed and time is up.
    #[inline]
    pub(super) fn is_overdue(&self, index: u32, now: Instant) -> bool {
        self.shared.has_deadlines() && self.is_address_overdue(self.mappings.get(index).external_address, now)
    }

    /// The same for all that is on an external address.
    pub(super) fn is_address_overdue(&self, address: u32, now: Instant) -> bool {
        self.shared.has_deadlines() && self.shared.deadline(address).is_some_and(|ends| ends <= now)
    }
}
