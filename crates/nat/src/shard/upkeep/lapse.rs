//! Forgets subscribers without state once buckets are full again and no offence counts.

use crate::shard::Ledger;
use crate::time::Instant;
use crate::upkeep::walk::Pace;

impl Ledger {
    pub(in crate::shard) fn forget_if_past(&mut self, now: Instant, slot: u32) {
        let record = self.state.subscribers.get(slot);
        if !record.is_lapsed() {
            return;
        }
        let compiled = self.shared.classes.compiled(self.view().class_now(slot));
        if compiled.has_no_past(record, self.state.subscribers.account(slot), now) {
            self.state.subscribers.forget_lapsed(slot);
        }
    }

    pub(in crate::shard) fn sweep_lapsed(&mut self, now: Instant, elapsed: u64) {
        let count = self.state.subscribers.lapsed_len();
        if count == 0 {
            return;
        }
        for _ in 0..Pace::SLOW.due(count, elapsed) {
            let Some(slot) = self.state.subscribers.next_lapsed() else { return };
            self.forget_if_past(now, slot);
        }
    }
}
