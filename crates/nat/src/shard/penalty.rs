//! Offenders: subscribers that run against their limits again and again get new mappings from another pool for a while.
//!
//! Who had so many packets from inside refused within a time is one, until it has been quiet for long enough: no refusal. Its
//! mappings stay where they are; with its next one it is paired anew, with an address of the penalty pool, and with the first
//! one afterwards with an address of its own pool again. What others send to a subscriber makes it no offender.
//!
//! The short way of new mappings leaves offenders to the long one, so that nobody else pays.

use super::Shard;
use super::port_choice::UNPAIRED;
use super::sweep::budget;
use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::mapping::InternalKey;
use crate::shared::Shared;
use crate::subscriber::Subscriber;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::RealmId;
use crate::verdict::Verdict;

/// What makes an offender: limits of its own. That a pool has run out is nobody's fault.
const OFFENCES: [Verdict; 5] = [
    Verdict::SubscriberPortQuota,
    Verdict::SubscriberSessionQuota,
    Verdict::SubscriberMemoryQuota,
    Verdict::SubscriberRateLimit,
    Verdict::BlockLimit,
];

/// Where the walk over offenders is.
#[derive(Debug)]
pub(super) struct Offenders {
    /// How many there are; without any nothing is walked.
    count: u32,
    hand: u32,
}

impl Default for Offenders {
    fn default() -> Offenders {
        Offenders { count: 0, hand: 1 }
    }
}

impl Shard {
    /// A packet from inside was refused: it may have been one too many.
    #[cold]
    pub(super) fn note_offence(&mut self, now: Instant, key: &InternalKey, verdict: Verdict) {
        if !OFFENCES.contains(&verdict) {
            return;
        }
        // Who has nothing any more is still the one whose mappings just ended.
        let known = self.subscribers.find(key.realm, key.address);
        let Some(slot) = known.or_else(|| self.subscribers.find_lapsed(key.realm, key.address)) else { return };
        let Some(penalty) = self.shared.classes.facts(self.class_now(slot)).penalty else { return };
        let is_offender = self.subscribers.get(slot).is_offender();
        let account = self.subscribers.account_mut(slot);
        account.note_offence(now, penalty.window);
        if is_offender || account.offences() < penalty.refusals {
            return;
        }
        let amount = account.offences();
        let pool = self.shared.name_of_pool(penalty.pool);
        account.begin_penalty(now, pool);
        if known.is_none() {
            self.subscribers.revive(slot, self.shared.stamp());
        }
        self.subscribers.set_offender(slot, true);
        self.offenders.count += 1;
        self.counters.penalties_begun += 1;
        self.note_penalty(EventKind::PenaltyBegun, now, slot, pool, amount, Cause::Verdict(verdict));
    }

    /// Before a new mapping of a subscriber: an offender may have been quiet for long enough.
    #[inline]
    pub(super) fn settle_penalty(&mut self, now: Instant, slot: u32) {
        if self.subscribers.get(slot).is_offender() {
            self.release_if_quiet(now, slot);
        }
    }

    #[cold]
    fn release_if_quiet(&mut self, now: Instant, slot: u32) {
        let penalty = self.shared.classes.facts(self.class_now(slot)).penalty;
        let cause = match penalty {
            Some(penalty) if !self.subscribers.account(slot).is_quiet(now, penalty.release) => return,
            Some(_) => Cause::Idle,
            // The settings know no penalty for it any more.
            None => Cause::Configuration,
        };
        // Told of the pool that its beginning was told of, whatever the settings say by now.
        let account = self.subscribers.account(slot);
        let (pool, held_s) = (account.penalty_pool(), account.penalty_s(now));
        self.note_penalty(EventKind::PenaltyEnded, now, slot, pool, held_s, cause);
        self.subscribers.set_offender(slot, false);
        self.offenders.count -= 1;
        self.counters.penalties_ended += 1;
    }

    /// The pool of an offender; None of anybody else.
    #[inline]
    pub(super) fn penalty_pool(&self, slot: u32) -> Option<PoolId> {
        if self.subscribers.get(slot).is_offender() { self.pool_of_offender(slot) } else { None }
    }

    #[cold]
    fn pool_of_offender(&self, slot: u32) -> Option<PoolId> {
        self.shared.classes.facts(self.class_now(slot)).penalty.map(|penalty| penalty.pool)
    }

    /// [`Shard::penalty_pool`] as the next mapping will find it.
    pub(super) fn penalty_now(&self, now: Instant, slot: u32) -> Option<PoolId> {
        let penalty = self.shared.classes.facts(self.class_now(slot)).penalty;
        let penalty = penalty.filter(|penalty| !self.subscribers.account(slot).is_quiet(now, penalty.release));
        penalty.filter(|_| self.subscribers.get(slot).is_offender()).map(|penalty| penalty.pool)
    }

    /// The pool that the record of a subscriber says it is of. None where it was settled last under other settings, which may have
    /// given that number to another pool.
    #[inline]
    pub(super) fn pool_of_record(&self, slot: u32) -> Option<PoolId> {
        let subscriber = self.subscribers.get(slot);
        (subscriber.generation == self.shared.stamp()).then_some(PoolId(subscriber.pool))
    }

    /// The pool that what a subscriber has now is of, as far as one can be named: until its record is settled anew that of its address or
    /// its block, which are at the same place under all settings.
    pub(super) fn pool_in_use(&self, slot: u32) -> Option<PoolId> {
        let subscriber = self.subscribers.get(slot);
        let of_place = |place: AddressIndex| self.shared.slot(place).map(|place| place.pool);
        let paired = AddressIndex(subscriber.paired);
        let by_pairing = || Some(paired).filter(|paired| *paired != UNPAIRED).and_then(of_place);
        let by_block = || subscriber.latest_block().and_then(|block| of_place(block.address()));
        let found = self.pool_of_record(slot).or_else(by_pairing).or_else(|| self.pool_of_subscriber(slot));
        found.or_else(by_block)
    }

    /// The pool that serves a subscriber now, which its record may not know yet.
    pub(super) fn pool_of_subscriber(&self, slot: u32) -> Option<PoolId> {
        let subscriber = self.subscribers.get(slot);
        let own = || self.shared.pool_for(subscriber.realm(), subscriber.address.into());
        self.penalty_pool(slot).or_else(own)
    }

    /// Releases offenders that have been quiet for long enough, also those that never send again.
    pub(super) fn sweep_offenders(&mut self, now: Instant, elapsed: u64) {
        if self.offenders.count == 0 {
            return;
        }
        let end = self.subscribers.walk_end();
        for _ in 0..budget(end, elapsed, 0) {
            let slot = self.offenders.hand;
            self.offenders.hand = if slot + 1 >= end { 1 } else { slot + 1 };
            if slot >= end || !self.subscribers.get(slot).is_offender() {
                continue;
            }
            self.release_if_quiet(now, slot);
            // One that has nothing left stayed only because of its penalty.
            if let Some(paired) = self.subscribers.remove_if_idle(slot) {
                self.part_with(now, slot, paired);
            }
        }
    }

    #[cold]
    fn note_penalty(&mut self, kind: EventKind, now: Instant, slot: u32, pool: PoolName, amount: u32, cause: Cause) {
        if !self.events.is_on() {
            return;
        }
        let record = self.subscribers.get(slot);
        let event = Event {
            realm: RealmId(record.realm),
            subscriber: record.address.into(),
            pool,
            amount,
            ..Event::new(kind, now).because(cause)
        };
        self.events.record_minor(event);
    }
}

/// The pool of an offender under other settings; None of anybody else.
pub(super) fn penalty_under(shared: &Shared, subscriber: &Subscriber) -> Option<PoolId> {
    if !subscriber.is_offender() {
        return None;
    }
    let class = shared.classes.of(subscriber.realm(), subscriber.address);
    shared.classes.facts(class).penalty.map(|penalty| penalty.pool)
}

/// The pool that serves a subscriber under other settings.
pub(super) fn pool_under(shared: &Shared, subscriber: &Subscriber) -> Option<PoolId> {
    penalty_under(shared, subscriber).or_else(|| shared.pool_for(subscriber.realm(), subscriber.address.into()))
}
