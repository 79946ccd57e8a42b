//! Limits the records of logging filters, which see each packet: a bucket, as in
//! [`rate_limit`](crate::policy::rate_limit), for the records of one second.

use crate::time::Instant;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FilterLimit {
    /// When the bucket is full again.
    full_again_us: u64,
    suppressed: u32,
}

impl FilterLimit {
    pub(super) fn take(&mut self, now: Instant, per_second: u32) -> bool {
        let is_room = self.has_room(now, per_second);
        if is_room {
            let from = self.full_again_us.max(now.as_micros());
            self.full_again_us = from + 1_000_000_u64.div_ceil(u64::from(per_second.max(1)));
        } else {
            self.suppressed = self.suppressed.saturating_add(1);
        }
        is_room
    }

    fn has_room(&self, now: Instant, per_second: u32) -> bool {
        let interval = 1_000_000_u64.div_ceil(u64::from(per_second.max(1)));
        per_second != 0 && self.full_again_us.saturating_sub(now.as_micros()) + interval <= 1_000_000
    }

    /// Returns and resets the number of decisions without a record, if it may be reported now.
    pub(super) fn suppressed(&mut self, now: Instant, per_second: u32, is_last: bool) -> Option<u32> {
        let is_due = self.suppressed != 0 && (is_last || self.has_room(now, per_second));
        is_due.then(|| core::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_records_are_limited_per_second_and_all_are_counted() {
        let mut limit = FilterLimit::default();
        let at = |millis: u64| Instant::from_micros(5_000_000 + millis * 1_000);
        // A burst of one second's worth, then at the rate.
        let first: Vec<bool> = (0..30).map(|_| limit.take(at(0), 10)).collect();
        assert_eq!(first.iter().filter(|reported| **reported).count(), 10);
        let later = (0..2_000).filter(|millis| limit.take(at(*millis), 10)).count();
        assert_eq!(later, 19, "one in a tenth of a second");
        assert_eq!(limit.suppressed(at(1_999), 10, false), None, "not while there is no room");
        assert_eq!(limit.suppressed(at(3_000), 10, false), Some(20 + 2_000 - 19));
        assert_eq!(limit.suppressed(at(9_000), 10, true), None);
        assert!(!limit.take(at(9_000), 0), "a rate of nothing");
        assert_eq!(limit.suppressed(at(9_000), 0, true), Some(1));
    }
}
