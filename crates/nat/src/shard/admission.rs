//! Whether a subscriber may have one more mapping or session: asked before anything is taken for it, and the books that
//! the answer comes from.
//!
//! A subscriber belongs to one worker, so that what it uses is counted in its own record, exactly, without a shared line.
//! Asking and counting are two steps, because between them the rest may fail: a bucket is charged only for what was made.
//! A limit that a new configuration lowers below what is in use refuses what is new and touches nothing else (RFC 6888
//! REQ-4a, REQ-11d).

use zerocopy::FromZeros;

use super::Shard;
use crate::mapping::InternalKey;
use crate::subscriber::Subscriber;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

impl Shard {
    /// Whether the subscriber with this record may have one more mapping of this protocol now, and its first session.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it; nothing is changed then.
    #[inline(always)]
    pub(super) fn admit_mapping(&mut self, now: Instant, subscriber: u32, protocol: Protocol) -> Result<(), Verdict> {
        self.update_class(subscriber);
        let record = self.subscribers.get(subscriber);
        let facts = self.shared.classes.facts(record.class);
        if !facts.counts_mappings() {
            return Ok(());
        }
        facts.admits_mapping(record, self.subscribers.shared_ports(subscriber)[protocol.index()], protocol, now)
    }

    /// Enters a mapping that was admitted and made.
    #[inline(always)]
    pub(super) fn count_mapping(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        let record = self.subscribers.get_mut(subscriber);
        record.mappings[protocol.index()] += 1;
        let facts = self.shared.classes.facts(record.class);
        if facts.counts_mappings() || record.is_above_any() {
            record.mapping_bucket = facts.charge_mapping(record.mapping_bucket, now);
            self.watch_subscriber(now, subscriber, protocol);
        }
    }

    /// Whether the subscriber with this record may have one more flow, a session with a share of a port.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it; nothing is changed then.
    pub(super) fn admit_flow(&mut self, now: Instant, subscriber: u32) -> Result<(), Verdict> {
        self.update_class(subscriber);
        let record = self.subscribers.get(subscriber);
        self.shared.classes.facts(record.class).admits_flow(record, now)
    }

    /// Whether a port may be taken for a flow of the subscriber with this record, whose class was found by [`Shard::admit_flow`].
    pub(super) fn admits_port(&self, subscriber: u32, protocol: Protocol) -> bool {
        let record = self.subscribers.get(subscriber);
        let shared = self.subscribers.shared_ports(subscriber)[protocol.index()];
        self.shared.classes.facts(record.class).admits_port(record, shared, protocol)
    }

    /// Charges a flow that was admitted and made; how many there are is counted where it was made.
    pub(super) fn charge_flow(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        let record = self.subscribers.get_mut(subscriber);
        record.mapping_bucket = self.shared.classes.facts(record.class).charge_mapping(record.mapping_bucket, now);
        self.watch_subscriber(now, subscriber, protocol);
    }

    /// Whether the owner of an existing mapping may have one more session in it. `takes_record`: it needs a record of its
    /// own, and does not go where the mapping's first one was.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it; nothing is changed then.
    pub(super) fn admit_session(&mut self, now: Instant, index: u32, takes_record: bool) -> Result<(), Verdict> {
        let subscriber = self.mappings.get(index).subscriber;
        self.update_class(subscriber);
        let (record, account) = (self.subscribers.get(subscriber), self.subscribers.account(subscriber));
        self.shared.classes.facts(record.class).admits_session((record, account), takes_record, now)
    }

    /// Enters a session that was admitted and made.
    pub(super) fn count_session(&mut self, now: Instant, index: u32, takes_record: bool) {
        let subscriber = self.mappings.get(index).subscriber;
        let record = self.subscribers.get_mut(subscriber);
        record.extra_sessions += u32::from(takes_record);
        let facts = self.shared.classes.facts(record.class);
        let account = self.subscribers.account_mut(subscriber);
        account.session_bucket = facts.charge_session(account.session_bucket, now);
        self.watch_subscriber(now, subscriber, self.mappings.get(index).protocol());
    }

    /// Takes so many further sessions of a mapping off the books of its owner.
    pub(super) fn uncount_sessions(&mut self, now: Instant, index: u32, count: u32) {
        let (subscriber, protocol) = (self.mappings.get(index).subscriber, self.mappings.get(index).protocol());
        let record = self.subscribers.get_mut(subscriber);
        debug_assert!(record.extra_sessions >= count, "every further session was counted");
        record.extra_sessions = record.extra_sessions.saturating_sub(count);
        self.watch_subscriber(now, subscriber, protocol);
    }

    /// A packet of this internal endpoint ended with `verdict` because something could not be made for it.
    #[cold]
    pub(super) fn count_refusal(&mut self, now: Instant, key: &InternalKey, verdict: Verdict) {
        match self.subscribers.find(key.realm, key.address) {
            Some(subscriber) => self.subscribers.account_mut(subscriber).count(verdict),
            None => {
                let pushed_out = self.turned_away.count(now, key.realm, key.address, verdict);
                self.counters.refusals_unlisted += pushed_out;
            }
        }
    }

    /// Finds the class anew if the settings are others than when it was found.
    #[inline]
    pub(super) fn update_class(&mut self, subscriber: u32) {
        if self.subscribers.get(subscriber).class_epoch != self.class_epoch {
            self.find_class(subscriber);
        }
    }

    #[cold]
    fn find_class(&mut self, subscriber: u32) {
        let record = self.subscribers.get_mut(subscriber);
        record.class = self.shared.classes.of(RealmId(record.realm), record.address);
        record.class_epoch = self.class_epoch;
    }

    /// The class of a subscriber, as the next packet of it will find it.
    pub(super) fn class_now(&self, subscriber: u32) -> u16 {
        let record = self.subscribers.get(subscriber);
        if record.class_epoch == self.class_epoch {
            return record.class;
        }
        self.shared.classes.of(RealmId(record.realm), record.address)
    }

    /// [`Shard::admit_mapping`] for who only asks; a subscriber that is not known yet uses nothing. Of one that has nothing any more
    /// `subscriber` is what is known still.
    pub(super) fn would_admit_mapping(
        &self,
        now: Instant,
        class: u16,
        subscriber: Option<u32>,
        protocol: Protocol,
    ) -> Result<(), Verdict> {
        let nobody = Subscriber::new_zeroed();
        let record = subscriber.map_or(&nobody, |slot| self.subscribers.get(slot));
        let shared = subscriber.map_or(0, |slot| self.subscribers.shared_ports(slot)[protocol.index()]);
        self.shared.classes.facts(class).admits_mapping(record, shared, protocol, now)
    }

    /// [`Shard::admit_flow`] for who only asks.
    pub(super) fn would_admit_flow(&self, now: Instant, realm: RealmId, address: u32) -> Result<(), Verdict> {
        let nobody = Subscriber::new_zeroed();
        let (class, record) = match self.subscribers.find(realm, address) {
            Some(slot) => (self.class_now(slot), self.subscribers.get(slot)),
            None => {
                let before = self.subscribers.find_lapsed(realm, address);
                (self.shared.classes.of(realm, address), before.map_or(&nobody, |slot| self.subscribers.get(slot)))
            }
        };
        self.shared.classes.facts(class).admits_flow(record, now)
    }

    /// [`Shard::admits_port`] for who only asks, when so many ports that flows share do not count for it any more.
    pub(super) fn would_admit_port(&self, key: &InternalKey, less: u32) -> bool {
        let nobody = Subscriber::new_zeroed();
        let p = key.protocol;
        let (class, record, shared) = match self.subscribers.find(key.realm, key.address) {
            Some(slot) => {
                (self.class_now(slot), self.subscribers.get(slot), self.subscribers.shared_ports(slot)[p.index()])
            }
            None => (self.shared.classes.of(key.realm, key.address), &nobody, 0),
        };
        self.shared.classes.facts(class).admits_port(record, shared.saturating_sub(less), p)
    }

    /// [`Shard::admit_session`] for who only asks.
    pub(super) fn would_admit_session(&self, now: Instant, index: u32) -> Result<(), Verdict> {
        let mapping = self.mappings.get(index);
        let takes_record = mapping.has_live_session(now);
        if !takes_record && !mapping.has_session() {
            return Ok(());
        }
        let facts = self.shared.classes.facts(self.class_now(mapping.subscriber));
        let record = self.subscribers.get(mapping.subscriber);
        facts.admits_session((record, self.subscribers.account(mapping.subscriber)), takes_record, now)
    }

    /// The settings have changed: every class is to be found anew. Subscribers find theirs when they need it next, so that
    /// this costs nothing.
    pub(super) fn forget_classes(&mut self) {
        self.class_epoch = self.class_epoch.wrapping_add(1).max(FIRST_EPOCH);
    }
}

#[cfg(test)]
mod tests;

/// In a record: its class is still to be found.
pub(super) const NO_EPOCH: u16 = 0;
/// What a shard begins with.
pub(super) const FIRST_EPOCH: u16 = 1;
