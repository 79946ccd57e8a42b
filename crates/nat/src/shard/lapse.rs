//! Forgets subscribers that have nothing any more, when their buckets are full again and no offence counts: so many a call.

use super::Shard;
use crate::time::Instant;

/// A whole round takes about this long, if calls come often enough.
const ROUND_MICROS: u64 = 1_000_000;
/// Records looked at in one call at most: each is waited for.
const RECORDS_PER_CALL_MAX: u64 = 32;

impl Shard {
    /// Forgets a subscriber that has nothing, if nothing it did counts any more.
    pub(super) fn forget_if_past(&mut self, now: Instant, slot: u32) {
        let record = self.subscribers.get(slot);
        if !record.is_lapsed() {
            return;
        }
        let facts = self.shared.classes.facts(self.class_now(slot));
        if facts.has_no_past(record, self.subscribers.account(slot), now) {
            self.subscribers.forget_lapsed(slot);
        }
    }

    /// Looks at some of those that wait, all of them in turn.
    pub(super) fn sweep_lapsed(&mut self, now: Instant, elapsed: u64) {
        let count = self.subscribers.lapsed_len();
        if count == 0 {
            return;
        }
        let due = u64::from(count) * elapsed.min(ROUND_MICROS) / ROUND_MICROS;
        for _ in 0..due.clamp(1, RECORDS_PER_CALL_MAX) {
            let Some(slot) = self.subscribers.next_lapsed() else { return };
            self.forget_if_past(now, slot);
        }
    }
}
