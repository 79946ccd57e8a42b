//! When the first mapping of each 64 records may end: the sweep passes over records that live on.

use core::ops::Range;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::time::Duration;
use crate::time::Instant;

/// Records of a group.
pub(crate) const GROUP: u32 = 64;
/// An end is rounded down to a multiple of 2^16 µs.
const UNIT_BITS: u32 = 16;
/// A record whose end is not certain is looked at again after this.
const UNCERTAIN: Duration = Duration::from_micros(1_000_000);

/// A lower bound for each group. Only a mapping that ends earlier than it was to end, unnoticed by
/// [`EarliestEnds::note`], may break it; the sweep's walk by time finds it.
pub(crate) struct EarliestEnds(Arena<u32>);

#[inline(always)]
fn units(at: Instant) -> u32 {
    u32::try_from(at.as_micros() >> UNIT_BITS).unwrap_or(u32::MAX)
}

impl EarliestEnds {
    /// All groups are due.
    pub(super) fn new(records: usize) -> Result<EarliestEnds, ArenaError> {
        Ok(EarliestEnds(Arena::zeroed(EarliestEnds::groups(records))?))
    }

    pub(super) fn need(records: usize) -> Need {
        Arena::<u32>::need(EarliestEnds::groups(records))
    }

    fn groups(records: usize) -> usize {
        records.div_ceil(GROUP as usize)
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len() * size_of::<u32>()
    }

    /// The records of a group, up to `end`.
    pub(crate) fn records(group: u32, end: u32) -> Range<u32> {
        let first = group.saturating_mul(GROUP);
        first.max(1)..first.saturating_add(GROUP).min(end)
    }

    /// A mapping that may end at this time.
    #[inline(always)]
    pub(super) fn note(&mut self, index: u32, end: Instant) {
        if let Some(earliest) = self.0.get_mut((index / GROUP) as usize) {
            *earliest = units(end).min(*earliest);
        }
    }

    /// A record that was never used: if it is the first of its group, the group has no mapping.
    #[inline(always)]
    pub(super) fn note_untouched(&mut self, index: u32) {
        if index.is_multiple_of(GROUP)
            && let Some(earliest) = self.0.get_mut((index / GROUP) as usize)
        {
            *earliest = u32::MAX;
        }
    }

    #[inline]
    pub(super) fn is_due(&self, group: u32, now: Instant) -> bool {
        self.0.get(group as usize).is_some_and(|earliest| *earliest <= units(now))
    }

    /// After all records of the group were looked at: the ends of those that live on; None if one
    /// is not certain.
    pub(super) fn set(&mut self, group: u32, now: Instant, ends: impl Iterator<Item = Option<Instant>>) {
        let ends = ends.map(|end| units(end.unwrap_or(now + UNCERTAIN)));
        let earliest = ends.min().unwrap_or(u32::MAX);
        if let Some(cell) = self.0.get_mut(group as usize) {
            *cell = earliest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_group_is_due_when_its_first_mapping_may_end() {
        let mut earliest = EarliestEnds::new(200).unwrap();
        assert!((0..4).all(|group| earliest.is_due(group, Instant::ORIGIN)), "nothing is known");
        assert!(!earliest.is_due(4, at(1_000_000)), "there is no such group");
        earliest.note_untouched(64);
        earliest.note_untouched(65);
        assert!(!earliest.is_due(1, at(1_000_000)));
        earliest.note(64, at(300));
        earliest.note(127, at(120));
        earliest.note(100, at(7_200));
        assert!(!earliest.is_due(1, at(119)) && earliest.is_due(1, at(120)));
        assert!(earliest.is_due(2, at(0)), "another group");
        earliest.set(1, at(120), [Some(at(300)), Some(at(7_200))].into_iter());
        assert!(!earliest.is_due(1, at(299)) && earliest.is_due(1, at(300)));
        earliest.set(1, at(300), [Some(at(7_200)), None].into_iter());
        assert!(!earliest.is_due(1, at(300)) && earliest.is_due(1, at(302)));
        earliest.set(1, at(302), core::iter::empty());
        assert!(!earliest.is_due(1, at(1_000_000)));
    }

    #[test]
    fn groups_cover_all_records_once() {
        for end in [1_u32, 2, 63, 64, 65, 128, 200] {
            let groups = 0..end.div_ceil(GROUP);
            let records: Vec<u32> = groups.flat_map(|group| EarliestEnds::records(group, end)).collect();
            assert_eq!(records, (1..end).collect::<Vec<u32>>(), "{end}");
        }
    }
}
