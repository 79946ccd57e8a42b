//! Bounded walks over the records of a table.
//!
//! Records are numbered from 1; `end` is one past the last. The table may grow and shrink
//! meanwhile.

use core::ops::Range;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The time of one round, if calls come often enough.
    pub(crate) round_micros: u64,
    /// An upper bound, which makes rounds over large tables longer.
    pub(crate) per_micro_max: u64,
    pub(crate) per_call_min: u64,
    pub(crate) per_call_max: u64,
}

impl Pace {
    /// For steps that read a record or two: a call takes about 2 µs. More would cost established
    /// packets too much.
    pub(crate) const RECORDS: Pace =
        Pace { round_micros: 4_000_000, per_micro_max: 2, per_call_min: 16, per_call_max: 256 };
    /// For steps that wait for memory: a round a second.
    pub(crate) const SLOW: Pace =
        Pace { round_micros: 1_000_000, per_micro_max: u64::MAX, per_call_min: 4, per_call_max: 32 };

    pub(crate) fn due(&self, records: u32, elapsed_micros: u64) -> u32 {
        // At most a round, so that the product is below 2^64.
        let round = u64::from(records) * elapsed_micros.min(self.round_micros) / self.round_micros;
        let due = round.min(elapsed_micros.saturating_mul(self.per_micro_max));
        due.clamp(self.per_call_min, self.per_call_max).min(u64::from(records)) as u32
    }
}

/// Saves time until a few records are due, so that most calls of a slow walk cost nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Savings {
    micros: u64,
}

impl Savings {
    /// A call looks at this many records or more, or at none.
    const FEW: u32 = 4;

    /// Records due since the last call that returned more than 0.
    #[inline]
    pub(crate) fn due(&mut self, pace: &Pace, records: u32, elapsed_micros: u64) -> u32 {
        self.micros = self.micros.saturating_add(elapsed_micros);
        let due = pace.due(records, self.micros);
        if due < Savings::FEW.min(records) {
            return 0;
        }
        self.micros = 0;
        due
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    cursor: u32,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk { cursor: 1 }
    }
}

impl Walk {
    /// Goes round, each record at most once.
    pub(crate) fn next(&mut self, count: u32, end: u32) -> impl Iterator<Item = u32> + use<> {
        let first = if self.cursor >= end { 1 } else { self.cursor };
        let count = count.min(end.saturating_sub(1));
        let until_end = first..first.saturating_add(count).min(end.max(first));
        let from_start = 1..1 + (count - (until_end.end - until_end.start));
        self.cursor = if from_start.is_empty() { until_end.end } else { from_start.end };
        until_end.chain(from_start)
    }

    /// Where the next call probably starts.
    pub(crate) fn ahead(&self, count: u32) -> Range<u32> {
        self.cursor..self.cursor.saturating_add(count)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    cursor: u32,
}

impl Pass {
    pub(crate) fn begin(&mut self) {
        self.cursor = 1;
    }

    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.cursor != 0
    }

    /// The next records of a pass, which ends with the record before `end`.
    pub(crate) fn next(&mut self, count: u32, end: u32) -> Range<u32> {
        if self.cursor == 0 {
            return 0..0;
        }
        let stretch = self.cursor..self.cursor.saturating_add(count).min(end.max(self.cursor));
        self.cursor = if stretch.end >= end { 0 } else { stretch.end };
        stretch
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use super::Pass;
    use super::Savings;
    use super::Walk;

    #[test]
    fn a_walk_visits_each_record_once_a_round() {
        for end in 0..12_u32 {
            for count in 1..5_u32 {
                let mut walk = Walk::default();
                let visited: Vec<u32> = (0..30).flat_map(|_| walk.next(count, end).collect::<Vec<u32>>()).collect();
                let expected: Vec<u32> = (1..end).cycle().take(visited.len()).collect();
                assert_eq!(visited, expected, "{count} a call of records before {end}");
                assert_eq!(visited.is_empty(), end < 2);
            }
        }
    }

    #[test]
    fn one_call_visits_no_record_twice() {
        let mut walk = Walk::default();
        assert_eq!(walk.next(3, 6).collect::<Vec<u32>>(), [1, 2, 3]);
        assert_eq!(walk.next(100, 6).collect::<Vec<u32>>(), [4, 5, 1, 2, 3]);
    }

    #[test]
    fn a_walk_starts_again_when_the_table_shrank() {
        let mut walk = Walk::default();
        assert_eq!(walk.next(8, 100).last(), Some(8));
        assert_eq!(walk.next(2, 5).collect::<Vec<u32>>(), [1, 2]);
    }

    #[test]
    fn a_pass_visits_each_record_once_and_ends() {
        let mut pass = Pass::default();
        assert!(!pass.is_under_way());
        assert!(pass.next(5, 10).is_empty());
        pass.begin();
        assert_eq!(pass.next(4, 10), 1..5);
        assert_eq!(pass.next(4, 10), 5..9);
        assert!(pass.is_under_way());
        assert_eq!(pass.next(4, 10), 9..10);
        assert!(!pass.is_under_way());
        // An empty table ends it at once.
        pass.begin();
        assert!(pass.next(4, 1).is_empty());
        assert!(!pass.is_under_way());
    }

    #[test]
    fn the_pace_follows_the_time_within_its_bounds() {
        let pace = Pace::RECORDS;
        assert_eq!(pace.due(0, 1_000), 0);
        assert_eq!(pace.due(10, 0), 10);
        assert_eq!(pace.due(1_000, 0), 16);
        assert_eq!(pace.due(10_000_000, 20), 40);
        assert_eq!(pace.due(10_000_000, 1_000_000), 256);
        assert_eq!(Pace::SLOW.due(1_000_000, u64::MAX), 32);
    }

    #[test]
    fn saved_time_is_spent_on_a_few_records_at_once() {
        let pace = Pace { per_call_min: 0, ..Pace::RECORDS };
        for (records, elapsed) in [(1, 1_000), (3, 70), (1_000, 7), (80_000, 7), (10_000_000, 7)] {
            let mut savings = Savings::default();
            let mut spent = 0;
            let calls = pace.round_micros / elapsed + 1;
            for _ in 0..calls {
                let due = savings.due(&pace, records, elapsed);
                assert!(due == 0 || due >= records.min(Savings::FEW), "{due} of {records}");
                spent += u64::from(due);
            }
            let least = u64::from(records).min(calls * elapsed * pace.per_micro_max);
            assert!(spent >= least - least / 4 && spent <= least + 4, "{spent} of {records} records in a round");
        }
        let mut savings = Savings::default();
        assert_eq!((savings.due(&pace, 0, 5), savings.due(&pace, 1_000_000, u64::MAX)), (0, 256));
        assert_eq!(savings.due(&pace, 1_000_000, 1), 0);
    }
}
