//! Filters that log are asked about each packet: how many of their decisions become records.
//!
//! A bucket is the time at which it will be full again, as in [`rate_limit`](crate::rate_limit). It holds a second's worth.

use crate::time::Instant;

/// The limit of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FilterLimit {
    /// When the bucket is full again, microseconds.
    full_again_us: u64,
    /// Decisions that are in no record.
    untold: u32,
}

impl FilterLimit {
    /// Whether a decision may become a record, at so many a second. One that may not is counted.
    pub(super) fn take(&mut self, now: Instant, per_second: u32) -> bool {
        let is_room = self.has_room(now, per_second);
        if is_room {
            let from = self.full_again_us.max(now.as_micros());
            self.full_again_us = from + 1_000_000_u64.div_ceil(u64::from(per_second.max(1)));
        } else {
            self.untold = self.untold.saturating_add(1);
        }
        is_room
    }

    fn has_room(&self, now: Instant, per_second: u32) -> bool {
        let interval = 1_000_000_u64.div_ceil(u64::from(per_second.max(1)));
        per_second != 0 && self.full_again_us.saturating_sub(now.as_micros()) + interval <= 1_000_000
    }

    /// How many are in no record, if that may be told now; from here on it is.
    pub(super) fn untold(&mut self, now: Instant, per_second: u32, is_last: bool) -> Option<u32> {
        let is_due = self.untold != 0 && (is_last || self.has_room(now, per_second));
        is_due.then(|| core::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_and_none_goes_uncounted() {
        let mut limit = FilterLimit::default();
        let at = |millis: u64| Instant::from_micros(5_000_000 + millis * 1_000);
        // A burst of a second's worth, then at the rate.
        let first: Vec<bool> = (0..30).map(|_| limit.take(at(0), 10)).collect();
        assert_eq!(first.iter().filter(|told| **told).count(), 10);
        let later = (0..2_000).filter(|millis| limit.take(at(*millis), 10)).count();
        assert_eq!(later, 19, "one in a tenth of a second");
        assert_eq!(limit.untold(at(1_999), 10, false), None, "not while there is no room");
        assert_eq!(limit.untold(at(3_000), 10, false), Some(20 + 2_000 - 19));
        assert_eq!(limit.untold(at(9_000), 10, true), None);
        assert!(!limit.take(at(9_000), 0), "a rate of nothing");
        assert_eq!(limit.untold(at(9_000), 0, true), Some(1));
    }
}
