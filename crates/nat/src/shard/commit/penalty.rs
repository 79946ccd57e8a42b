//! Offenders: subscribers that exceed limits too often get new mappings from another pool.
//!
//! A number of refused outbound packets within a time makes an offender; the release time without a
//! refusal ends the penalty. Mappings stay: the next one pairs the subscriber with the penalty
//! pool, and the first after the penalty with its own. Only offenders pay for these checks: their
//! first packets take the general way.

use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::shard::Ledger;
use crate::shard::commit::port_of_ended::UNPAIRED;
use crate::state::mapping::InternalKey;
use crate::state::subscriber::Subscriber;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::RealmId;
use crate::upkeep::walk::Pace;
use crate::upkeep::walk::Walk;
use crate::verdict::Verdict;

/// A subscriber is not to blame for an exhausted pool.
const OFFENCES: [Verdict; 5] = [
    Verdict::SubscriberPortQuota,
    Verdict::SubscriberSessionQuota,
    Verdict::SubscriberMemoryQuota,
    Verdict::SubscriberRateLimit,
    Verdict::BlockLimit,
];

#[derive(Debug, Default)]
pub(in crate::shard) struct Offenders {
    count: u32,
    walk: Walk,
}

impl View<'_> {
    #[inline]
    pub(in crate::shard) fn penalty_pool(&self, slot: u32) -> Option<PoolId> {
        if self.state.subscribers.get(slot).is_offender() { self.pool_of_offender(slot) } else { None }
    }

    #[cold]
    fn pool_of_offender(&self, slot: u32) -> Option<PoolId> {
        self.snapshot.classes.compiled(self.class_now(slot)).penalty.map(|penalty| penalty.pool)
    }

    /// The pool of a subscriber; None if it was settled under other settings, whose pool numbers
    /// may differ.
    #[inline]
    pub(in crate::shard) fn pool_of_record(&self, slot: u32) -> Option<PoolId> {
        let subscriber = self.state.subscribers.get(slot);
        (subscriber.generation == self.snapshot.short_generation()).then_some(PoolId(subscriber.pool))
    }

    /// The pool of a record that is not settled yet, by its address or block, whose places are the
    /// same under all settings.
    pub(in crate::shard) fn pool_in_use(&self, slot: u32) -> Option<PoolId> {
        let subscriber = self.state.subscribers.get(slot);
        let of_place = |place: AddressIndex| self.snapshot.slot(place).map(|place| place.pool);
        let paired = AddressIndex(subscriber.paired);
        let by_pairing = || Some(paired).filter(|paired| *paired != UNPAIRED).and_then(of_place);
        let by_block = || subscriber.latest_block().and_then(|block| of_place(block.address()));
        let found = self.pool_of_record(slot).or_else(by_pairing).or_else(|| self.pool_of_subscriber(slot));
        found.or_else(by_block)
    }

    /// The record may still show another.
    pub(in crate::shard) fn pool_of_subscriber(&self, slot: u32) -> Option<PoolId> {
        let subscriber = self.state.subscribers.get(slot);
        let own = || self.snapshot.pool_for(subscriber.realm(), subscriber.address.into());
        self.penalty_pool(slot).or_else(own)
    }
}

impl Ledger {
    #[cold]
    pub(in crate::shard) fn note_offence(&mut self, now: Instant, key: &InternalKey, verdict: Verdict) {
        if !OFFENCES.contains(&verdict) {
            return;
        }
        let known = self.state.subscribers.find(key.realm, key.address);
        let Some(slot) = known.or_else(|| self.state.subscribers.find_lapsed(key.realm, key.address)) else { return };
        let Some(penalty) = self.shared.classes.compiled(self.view().class_now(slot)).penalty else { return };
        let is_offender = self.state.subscribers.get(slot).is_offender();
        let account = self.state.subscribers.account_mut(slot);
        account.note_offence(now, penalty.window);
        if is_offender || account.offences() < penalty.refusals {
            return;
        }
        let amount = account.offences();
        let pool = self.shared.name_of_pool(penalty.pool);
        account.begin_penalty(now, pool);
        if known.is_none() {
            self.state.subscribers.revive(slot, self.shared.short_generation());
        }
        self.state.subscribers.set_offender(slot, true);
        self.upkeep.offenders.count += 1;
        self.counters.penalties_begun += 1;
        self.note_penalty(EventKind::PenaltyBegun, now, slot, pool, amount, Cause::Verdict(verdict));
    }

    #[inline]
    pub(in crate::shard) fn settle_penalty(&mut self, now: Instant, slot: u32) {
        if self.state.subscribers.get(slot).is_offender() {
            self.release_if_quiet(now, slot);
        }
    }

    /// Call it before a refusal counts as an offence.
    pub(in crate::shard) fn end_quiet_penalty(&mut self, now: Instant, key: &InternalKey) {
        if let Some(slot) = self.state.subscribers.find(key.realm, key.address) {
            self.settle_penalty(now, slot);
        }
    }

    #[cold]
    fn release_if_quiet(&mut self, now: Instant, slot: u32) {
        if let (_, Some(cause)) = self.view().penalty_now(now, slot) {
            self.release(now, slot, cause);
        }
    }

    #[cold]
    pub(in crate::shard) fn release(&mut self, now: Instant, slot: u32, cause: Cause) {
        // Reports the pool in which the penalty began.
        let account = self.state.subscribers.account(slot);
        let (pool, held_s) = (account.penalty_pool(), account.penalty_s(now));
        self.note_penalty(EventKind::PenaltyEnded, now, slot, pool, held_s, cause);
        self.state.subscribers.set_offender(slot, false);
        self.upkeep.offenders.count -= 1;
        self.counters.penalties_ended += 1;
    }

    /// Also releases offenders that never send again.
    pub(in crate::shard) fn sweep_offenders(&mut self, now: Instant, elapsed: u64) {
        if self.upkeep.offenders.count == 0 {
            return;
        }
        let end = self.state.subscribers.walk_end();
        for slot in self.upkeep.offenders.walk.next(Pace::RECORDS.due(end, elapsed), end) {
            if !self.state.subscribers.get(slot).is_offender() {
                continue;
            }
            self.release_if_quiet(now, slot);
            if let Some(paired) = self.state.subscribers.remove_if_idle(slot) {
                self.part_with(now, slot, paired);
            }
        }
    }

    #[cold]
    fn note_penalty(&mut self, kind: EventKind, now: Instant, slot: u32, pool: PoolName, amount: u32, cause: Cause) {
        if !self.events.is_on() {
            return;
        }
        let record = self.state.subscribers.get(slot);
        let realm = RealmId(record.realm);
        let subscriber = self.named(now, realm, record.address.into());
        let event = Event { realm, subscriber, pool, amount, ..Event::new(kind, now).because(cause) };
        self.events.record_minor(event);
    }
}

impl View<'_> {
    fn penalty_under(&self, subscriber: &Subscriber) -> Option<PoolId> {
        if !subscriber.is_offender() {
            return None;
        }
        let class = self.class_of(subscriber.realm(), subscriber.address);
        self.snapshot.classes.compiled(class).penalty.map(|penalty| penalty.pool)
    }

    pub(in crate::shard) fn pool_under(&self, subscriber: &Subscriber) -> Option<PoolId> {
        let own = || self.snapshot.pool_for(subscriber.realm(), subscriber.address.into());
        self.penalty_under(subscriber).or_else(own)
    }
}
