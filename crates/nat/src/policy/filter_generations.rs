//! Generations of the filters, which sessions get that the present filters permit both ways.
//!
//! Records have few bits, so generations are reused: after each change a limited walk removes
//! outdated ones. If changes outrun the walks, no record gets one, and filters are asked about
//! every packet. An undone change keeps its number: what undoes it has the next
//! ([`FilterBook::note_adoption`](crate::policy::rules::FilterBook::note_adoption)).

use core::ops::Range;

use crate::policy::rules::GENERATIONS;
use crate::policy::rules::Permits;
use crate::upkeep::walk::Pass;

/// No record ever has it.
const UNUSED: u8 = GENERATIONS + 1;

#[derive(Debug)]
pub(crate) struct FilterGenerations {
    latest: u8,
    /// `latest`, or [`UNUSED`] while records may still have `latest` from its last use.
    current: u8,
    /// A bit for each number that records may have.
    used: u32,
    /// Walks that remove older generations.
    mappings: Pass,
    sessions: Pass,
    flows: Pass,
}

const _: () = assert!((UNUSED as u32) < u32::BITS, "`used` has a bit for each");

impl FilterGenerations {
    pub(crate) fn new(generation: u8) -> FilterGenerations {
        FilterGenerations {
            latest: generation,
            current: generation,
            used: 1 << generation,
            mappings: Pass::default(),
            sessions: Pass::default(),
            flows: Pass::default(),
        }
    }

    /// Filters are not asked about records with it.
    #[inline(always)]
    pub(crate) fn current(&self) -> u8 {
        self.current
    }

    #[inline(always)]
    pub(crate) fn to_give(&self, permits: Permits) -> Option<u8> {
        (permits.out & permits.back & (self.current != UNUSED)).then_some(self.current)
    }

    /// `generation` differs if the filters do, or if Natrix has other addresses.
    pub(crate) fn change(&mut self, generation: u8) {
        if generation == self.latest {
            return;
        }
        self.latest = generation;
        let is_free = self.used >> generation & 1 == 0;
        self.current = if is_free { generation } else { UNUSED };
        self.used |= 1 << generation;
        self.mappings.begin();
        self.sessions.begin();
        self.flows.begin();
    }

    #[inline]
    pub(crate) fn is_walking(&self) -> bool {
        self.flows.is_under_way()
    }

    /// The next `count` mappings of the walk, none when all were looked at.
    pub(crate) fn next_mappings(&mut self, count: u32, end: u32) -> Range<u32> {
        self.mappings.next(count, end)
    }

    /// The next `count` further sessions, after all mappings.
    pub(crate) fn next_sessions(&mut self, count: u32, end: u32) -> Range<u32> {
        self.sessions.next(count, end)
    }

    /// The next `count` flows, after all sessions. The last ones end the walk.
    pub(crate) fn next_flows(&mut self, count: u32, end: u32) -> Range<u32> {
        self.flows.next(count, end)
    }

    /// All records were looked at: only those judged under the present filters have a generation.
    pub(crate) fn finish(&mut self) {
        (self.current, self.used) = (self.latest, 1 << self.latest);
    }
}

#[cfg(test)]
mod tests {
    use super::FilterGenerations;
    use super::GENERATIONS;
    use super::Permits;
    use super::UNUSED;

    const BOTH: Permits = Permits::ALL;

    fn walk(generations: &mut FilterGenerations) {
        assert!(generations.is_walking());
        while !generations.next_mappings(4, 10).is_empty() {}
        while !generations.next_sessions(4, 10).is_empty() {}
        while !generations.next_flows(4, 10).is_empty() {}
        assert!(!generations.is_walking());
        generations.finish();
    }

    #[test]
    fn a_change_gives_its_own_number_at_once() {
        let mut generations = FilterGenerations::new(1);
        generations.change(2);
        assert_eq!(generations.to_give(BOTH), Some(2));
        walk(&mut generations);
        assert_eq!(generations.to_give(BOTH), Some(2));
    }

    #[test]
    fn an_undone_change_keeps_its_number() {
        let mut generations = FilterGenerations::new(1);
        generations.change(2);
        // Undone by a successor, before the walk ends. What 2 permitted still has 2.
        generations.change(3);
        assert_eq!((generations.current(), generations.to_give(BOTH)), (3, Some(3)));
        generations.change(4);
        assert_eq!((generations.current(), generations.to_give(BOTH)), (4, Some(4)));
    }

    #[test]
    fn filters_that_come_again_wait_for_the_walk() {
        let mut generations = FilterGenerations::new(1);
        generations.change(2);
        // Nothing undid the change; the next one has the old filters again.
        generations.change(1);
        assert_eq!((generations.current(), generations.to_give(BOTH)), (UNUSED, None));
        walk(&mut generations);
        assert_eq!(generations.to_give(BOTH), Some(1));
    }

    #[test]
    fn changes_that_outrun_the_walk_reuse_no_number() {
        let mut generations = FilterGenerations::new(1);
        for number in 2..=GENERATIONS {
            generations.change(number);
            assert_eq!(generations.to_give(BOTH), Some(number));
        }
        generations.change(1);
        assert_eq!(generations.to_give(BOTH), None);
        walk(&mut generations);
        assert_eq!(generations.to_give(BOTH), Some(1));
        generations.change(2);
        assert_eq!(generations.to_give(BOTH), Some(2));
    }
}
