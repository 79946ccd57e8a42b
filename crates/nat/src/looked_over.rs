//! How far the sweep is in looking once at every record that a table had when the settings changed.
//!
//! The sweep goes round and round a table, and each change finds it somewhere in between. Meanwhile the table may grow, and what is
//! new at its end, made under the settings in force, comes under the hand before the older records at the beginning do. So only
//! records that were there are counted.

use core::ops::Range;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookedOver {
    /// Records from 1 up to here were there.
    end: u32,
    /// Of these, how many are still to be looked at.
    left: u32,
}

impl LookedOver {
    /// All records before `end` are to be looked at; there is none with the number 0.
    pub(crate) fn all_before(end: u32) -> LookedOver {
        LookedOver { end, left: end.saturating_sub(1) }
    }

    /// Whether some are still to be looked at.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.left > 0
    }

    /// The sweep was at these records, which follow those it was at before.
    #[inline]
    pub(crate) fn passed(&mut self, records: Range<u32>) {
        let old = records.end.min(self.end).saturating_sub(records.start.max(1));
        self.left = self.left.saturating_sub(old);
    }
}

#[cfg(test)]
mod tests {
    use super::LookedOver;

    #[test]
    fn every_record_that_was_there_is_passed_whatever_the_table_grows_by() {
        for (old, grown) in [(1, 1), (1, 9), (2, 2), (10, 10), (10, 11), (10, 40)] {
            for first in 1..old.max(2) {
                let mut looked = LookedOver::all_before(old);
                let (mut hand, mut seen) = (first, vec![false; grown as usize]);
                while looked.is_due() {
                    seen[hand as usize] = true;
                    looked.passed(hand..hand + 1);
                    hand = if hand + 1 >= grown { 1 } else { hand + 1 };
                }
                assert!(seen[1..old as usize].iter().all(|seen| *seen), "{old} grown to {grown}, from {first}");
            }
        }
    }

    #[test]
    fn records_are_passed_many_at_a_time() {
        let mut looked = LookedOver::all_before(10);
        looked.passed(5..20);
        assert!(looked.is_due());
        looked.passed(1..4);
        assert!(looked.is_due());
        looked.passed(4..5);
        assert!(!looked.is_due());
    }
}
