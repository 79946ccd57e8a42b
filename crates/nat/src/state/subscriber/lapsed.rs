//! Former subscribers whose rates and offences still count: ending all mappings must not refill
//! buckets (RFC 6888 REQ-4).
//!
//! A lapsed record has no external address or guarantee, and is in no count. A new subscriber with
//! the address inherits it. It is freed with full buckets and no offence, or when its room is
//! needed, oldest first.

use super::Account;
use super::IN_USE;
use super::LAPSED;
use super::Subscriber;
use super::SubscriberStore;
use crate::state::bucket::Bucket;
use crate::types::HostNumber;
use crate::types::RealmId;

/// A list of lapsed records in order of time; 0 for none.
#[derive(Debug, Default)]
pub(super) struct Lapsed {
    oldest: u32,
    latest: u32,
    count: u32,
    cursor: u32,
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
    pub(crate) fn is_lapsed(&self) -> bool {
        self.flags & LAPSED != 0
    }

    /// Reuses a field: a lapsed record is not paired.
    fn later(&mut self) -> &mut u32 {
        &mut self.paired
    }

    /// Reuses a field: a lapsed record has no block.
    fn earlier(&mut self) -> &mut u32 {
        &mut self.active[0]
    }
}

impl SubscriberStore {
    pub(super) fn has_past(&self, slot: u32) -> bool {
        let (record, account) = (&self.records[slot as usize], self.account(slot));
        let buckets = [record.mapping_bucket, account.session_bucket];
        account.offences > 0 || buckets.iter().any(|bucket| *bucket != Bucket::default())
    }

    pub(crate) fn lapsed_len(&self) -> u32 {
        self.lapsed.count
    }

    pub(crate) fn find_lapsed(&self, realm: RealmId, address: HostNumber) -> Option<u32> {
        if self.lapsed.count == 0 {
            return None;
        }
        let subscriber = self.hosts.subscriber_of(address);
        self.table.find(self.hash_of(realm, address), |index| {
            let record = &self.records[index as usize];
            record.address == subscriber && record.realm == realm.0 && record.is_lapsed()
        })
    }

    pub(crate) fn next_lapsed(&mut self) -> Option<u32> {
        let slot = if self.lapsed.cursor == 0 { self.lapsed.oldest } else { self.lapsed.cursor };
        if slot == 0 {
            return None;
        }
        let next = *self.records[slot as usize].later();
        self.lapsed.cursor = next;
        self.records.prefetch_write(next as usize);
        Some(slot)
    }

    pub(super) fn lapse(&mut self, slot: u32) {
        let latest = self.lapsed.latest;
        self.set_elsewhere(slot, None);
        if self.records[slot as usize].paired != u32::MAX {
            self.account_mut(slot).addresses_before += 1;
        }
        let record = &mut self.records[slot as usize];
        record.flags = LAPSED;
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

    /// Leaves its links undefined.
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
        if self.lapsed.cursor == slot {
            self.lapsed.cursor = later;
        }
        self.lapsed.count -= 1;
    }

    pub(crate) fn forget_lapsed(&mut self, slot: u32) {
        self.unlink(slot);
        self.erase(slot);
    }

    /// Turns a lapsed record into a subscriber that is not paired; its next mapping finds the pool.
    pub(crate) fn revive(&mut self, slot: u32, generation: u16) {
        self.unlink(slot);
        let record = &mut self.records[slot as usize];
        record.flags = IN_USE;
        record.paired = u32::MAX;
        record.generation = generation.wrapping_sub(1);
    }

    pub(super) fn renew(&mut self, slot: u32, fresh: Subscriber) {
        self.unlink(slot);
        let record = &mut self.records[slot as usize];
        let Subscriber { has_account, mapping_bucket, .. } = *record;
        *record = Subscriber { has_account, mapping_bucket, ..fresh };
        if has_account != 0 {
            let account = &mut self.accounts[slot as usize];
            let Account { offences, first_offence, last_offence, session_bucket, .. } = *account;
            *account = Account { offences, first_offence, last_offence, session_bucket, ..Account::NONE };
        }
    }
}

#[cfg(test)]
mod tests;
