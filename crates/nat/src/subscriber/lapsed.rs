//! Subscribers that have nothing any more, but whose rates and offences count still: limits are of the subscriber, not of its latest
//! mapping (RFC 6888 REQ-4), so that ending all mappings must not fill its buckets.
//!
//! Such a record holds no external address, no pledge, and counts nowhere. Nobody finds it as a subscriber; who becomes one again
//! goes on with what its record knows. One is forgotten when its buckets are full and no offence counts any more, or when its room
//! is needed: then the one that has waited longest.

use super::Account;
use super::IN_USE;
use super::LAPSED;
use super::Subscriber;
use super::SubscriberStore;
use crate::class::Bucket;
use crate::types::RealmId;
use zerocopy::FromZeros;

/// The records that wait, a list in order of time, linked both ways by their numbers. 0: none.
#[derive(Debug, Default)]
pub(super) struct Lapsed {
    oldest: u32,
    latest: u32,
    count: u32,
    /// The one that the sweep looks at next.
    hand: u32,
}

impl Lapsed {
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != 0).then_some(self.oldest)
    }
}

impl Subscriber {
    /// Whether it has nothing any more and only its rates and offences are known.
    pub(crate) fn is_lapsed(&self) -> bool {
        self.flags & LAPSED != 0
    }

    /// Of a lapsed one, the one that lapsed after it. It is paired with nothing.
    fn later(&mut self) -> &mut u32 {
        &mut self.paired
    }

    /// Of a lapsed one, the one that lapsed before it. It takes ports from no block.
    fn earlier(&mut self) -> &mut u32 {
        &mut self.active[0]
    }
}

impl SubscriberStore {
    /// Whether there may be something to remember of who has nothing any more.
    pub(super) fn has_past(&self, slot: u32) -> bool {
        let (record, account) = (&self.records[slot as usize], &self.accounts[slot as usize]);
        let buckets = [record.mapping_bucket, account.session_bucket];
        account.offences > 0 || buckets.iter().any(|bucket| *bucket != Bucket::default())
    }

    /// Records that only wait to be forgotten.
    pub(crate) fn lapsed_len(&self) -> u32 {
        self.lapsed.count
    }

    /// The record of who is no subscriber any more, but was one.
    pub(crate) fn find_lapsed(&self, realm: RealmId, address: u32) -> Option<u32> {
        if self.lapsed.count == 0 {
            return None;
        }
        self.table.find(self.hash_of(realm, address), |index| {
            let record = &self.records[index as usize];
            record.address == address && record.realm == realm.0 && record.is_lapsed()
        })
    }

    /// The record that the sweep looks at next; all of them in turn.
    pub(crate) fn next_lapsed(&mut self) -> Option<u32> {
        let slot = if self.lapsed.hand == 0 { self.lapsed.oldest } else { self.lapsed.hand };
        if slot == 0 {
            return None;
        }
        let next = *self.records[slot as usize].later();
        self.lapsed.hand = next;
        self.records.prefetch_write(next as usize);
        Some(slot)
    }

    /// A record that is in the table, and has nothing, waits from now on.
    pub(super) fn lapse(&mut self, slot: u32) {
        let latest = self.lapsed.latest;
        let record = &mut self.records[slot as usize];
        record.flags = LAPSED;
        record.set_elsewhere(None);
        *record.later() = 0;
        *record.earlier() = latest;
        if latest == 0 {
            self.lapsed.oldest = slot;
        } else {
            *self.records[latest as usize].later() = slot;
        }
        self.lapsed.latest = slot;
        self.lapsed.count += 1;
    }

    /// Takes a record out of the list. Its links mean nothing afterwards.
    fn unlink(&mut self, slot: u32) {
        let record = &mut self.records[slot as usize];
        let (earlier, later) = (core::mem::take(record.earlier()), core::mem::take(record.later()));
        if earlier == 0 {
            self.lapsed.oldest = later;
        } else {
            *self.records[earlier as usize].later() = later;
        }
        if later == 0 {
            self.lapsed.latest = earlier;
        } else {
            *self.records[later as usize].earlier() = earlier;
        }
        if self.lapsed.hand == slot {
            self.lapsed.hand = later;
        }
        self.lapsed.count -= 1;
    }

    /// Forgets a record that waits.
    pub(crate) fn forget_lapsed(&mut self, slot: u32) {
        self.unlink(slot);
        self.erase(slot);
    }

    /// One that waits is a subscriber again, paired with nothing, whose pool is to be found with its next mapping.
    pub(crate) fn revive(&mut self, slot: u32, generation: u16) {
        self.unlink(slot);
        let record = &mut self.records[slot as usize];
        record.flags = IN_USE;
        record.paired = u32::MAX;
        record.generation = generation.wrapping_sub(1);
    }

    /// One that waits becomes a subscriber of this pool, as a new one would; only what counts of its past stays.
    pub(super) fn renew(&mut self, slot: u32, fresh: Subscriber) {
        self.unlink(slot);
        let record = &mut self.records[slot as usize];
        *record = Subscriber { mapping_bucket: record.mapping_bucket, ..fresh };
        let account = &mut self.accounts[slot as usize];
        let Account { offences, first_offence, last_offence, session_bucket, .. } = *account;
        *account = Account { offences, first_offence, last_offence, session_bucket, ..Account::new_zeroed() };
    }
}

#[cfg(test)]
mod tests;
