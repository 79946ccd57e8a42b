//! Tracks whether the sweep has visited every record that existed when the settings changed.
//!
//! It may start anywhere and reach new records at the end before older ones at the beginning, so
//! only those that existed count.

use core::ops::Range;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookedOver {
    /// Records from 1 up to here existed.
    end: u32,
    left: u32,
}

impl LookedOver {
    /// Number 0 does not exist.
    pub(crate) fn all_before(end: u32) -> LookedOver {
        LookedOver { end, left: end.saturating_sub(1) }
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.left > 0
    }

    /// They follow the previous ones.
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
    fn every_existing_record_is_visited_however_the_table_grows() {
        for (old, grown) in [(1, 1), (1, 9), (2, 2), (10, 10), (10, 11), (10, 40)] {
            for first in 1..old.max(2) {
                let mut looked = LookedOver::all_before(old);
                let (mut cursor, mut seen) = (first, vec![false; grown as usize]);
                while looked.is_due() {
                    seen[cursor as usize] = true;
                    looked.passed(cursor..cursor + 1);
                    cursor = if cursor + 1 >= grown { 1 } else { cursor + 1 };
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
