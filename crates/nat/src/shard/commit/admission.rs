//! Counts subscribers' mappings and sessions.
//!
//! A subscriber belongs to one worker, so counts are exact and share no cache line. A limit lowered
//! below present use refuses new state and ends nothing (RFC 6888 REQ-4a, REQ-11d).

use crate::shard::Ledger;
use crate::shard::notes::Unmade;
use crate::snapshot::pool_counts::PoolCount;
use crate::time::Instant;
use crate::types::PoolId;
use crate::types::Protocol;

impl Ledger {
    #[inline(always)]
    pub(in crate::shard) fn count_mapping(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        self.state.subscribers.count_mapping(subscriber, protocol);
        let record = self.state.subscribers.get_mut(subscriber);
        let compiled = self.shared.classes.compiled(record.class);
        if compiled.counts_mappings() || record.is_above_any() {
            record.mapping_bucket = compiled.charge_mapping(record.mapping_bucket, now);
            self.watch_subscriber(now, subscriber, protocol);
        }
    }

    /// Does not count the session.
    pub(in crate::shard) fn charge_flow(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        let record = self.state.subscribers.get_mut(subscriber);
        record.mapping_bucket = self.shared.classes.compiled(record.class).charge_mapping(record.mapping_bucket, now);
        self.watch_subscriber(now, subscriber, protocol);
    }

    pub(in crate::shard) fn count_session(&mut self, now: Instant, index: u32, takes_record: bool) {
        let subscriber = self.state.mappings.get(index).subscriber;
        let record = self.state.subscribers.get_mut(subscriber);
        record.extra_sessions += u32::from(takes_record);
        let compiled = self.shared.classes.compiled(record.class);
        let before = self.state.subscribers.account(subscriber).session_bucket;
        let charged = compiled.charge_session(before, now);
        if charged != before {
            self.state.subscribers.account_mut(subscriber).session_bucket = charged;
        }
        self.watch_subscriber(now, subscriber, self.state.mappings.get(index).protocol());
    }

    pub(in crate::shard) fn uncount_sessions(&mut self, now: Instant, index: u32, count: u32) {
        let (subscriber, protocol) =
            (self.state.mappings.get(index).subscriber, self.state.mappings.get(index).protocol());
        let record = self.state.subscribers.get_mut(subscriber);
        debug_assert!(record.extra_sessions >= count, "every further session was counted");
        record.extra_sessions = record.extra_sessions.saturating_sub(count);
        self.watch_subscriber(now, subscriber, protocol);
    }

    #[cold]
    pub(in crate::shard) fn count_refusal(&mut self, now: Instant, unmade: Unmade<'_>) {
        let Unmade { key, verdict, .. } = unmade;
        if let Some(what) = PoolCount::of_refusal(verdict) {
            self.counters.ports_refused[key.protocol.index()] += u64::from(what == PoolCount::NoPort);
            if let Some(pool) = self.pool_of_unmade(unmade) {
                self.shared.count_in_pool(self.worker, pool, what);
            }
        }
        match self.state.subscribers.find(key.realm, key.address) {
            Some(subscriber) => self.state.subscribers.account_mut(subscriber).count(verdict),
            None => {
                let who = self.view().lasting_address(key.address);
                let pushed_out = self.policy.refused_subscribers.count(now, key.realm, who, verdict);
                self.counters.refusals_unlisted += pushed_out;
            }
        }
    }

    /// The pool that would have served a refused request.
    pub(in crate::shard) fn pool_of_unmade(&self, unmade: Unmade<'_>) -> Option<PoolId> {
        let Unmade { key, wanted, .. } = unmade;
        let known = self.state.subscribers.find(key.realm, key.address);
        let own = || self.shared.pool_for(key.realm, key.address.into());
        known.and_then(|slot| self.view().penalty_pool(slot)).or(wanted).or_else(own)
    }

    #[inline(always)]
    pub(in crate::shard) fn update_class(&mut self, subscriber: u32) {
        if self.state.subscribers.get(subscriber).class_generation != self.policy.class_generation {
            self.find_class(subscriber);
        }
    }

    #[cold]
    fn find_class(&mut self, subscriber: u32) {
        let record = self.state.subscribers.get(subscriber);
        let class = self.view().class_of(record.realm(), record.address);
        let record = self.state.subscribers.get_mut(subscriber);
        record.class = class;
        record.class_generation = self.policy.class_generation;
    }

    pub(in crate::shard) fn forget_classes(&mut self) {
        self.policy.class_generation = self.policy.class_generation.wrapping_add(1).max(FIRST_GENERATION);
    }
}

#[cfg(test)]
mod tests;

pub(in crate::shard) const NO_GENERATION: u16 = 0;
pub(in crate::shard) const FIRST_GENERATION: u16 = 1;
