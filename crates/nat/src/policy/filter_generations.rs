//! Generations of the filters, which sessions get that the present filters permit both ways.
//!
//! Records have few bits, so generations are reused: limited walks remove outdated ones. A change
//! does not disturb a walk; the next one follows it. If changes outrun the walks, no record gets a
//! generation, and filters are asked about every packet. An undone change keeps its number: what
//! undoes it has the next
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
    /// Those that records may have got since the walk began.
    recent: u32,
    /// Passes of a walk, which removes all but the current generation of its time.
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
            recent: 1 << generation,
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
        let bit = 1 << generation;
        let is_free = self.used & bit == 0;
        self.current = if is_free { generation } else { UNUSED };
        self.used |= bit;
        if is_free && self.is_walking() {
            self.recent |= bit;
        } else {
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.recent = 1 << self.latest;
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

    /// All records were looked at.
    pub(crate) fn finish(&mut self) {
        (self.current, self.used) = (self.latest, self.recent);
        if self.recent != 1 << self.latest {
            self.begin();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FilterGenerations;
    use super::GENERATIONS;
    use super::Permits;
    use super::UNUSED;
    use proptest::prelude::*;

    const BOTH: Permits = Permits::ALL;

    fn walk(generations: &mut FilterGenerations) {
        assert!(generations.is_walking());
        while !generations.next_mappings(4, 10).is_empty() {}
        while !generations.next_sessions(4, 10).is_empty() {}
        while !generations.next_flows(4, 10).is_empty() {}
        assert!(!generations.is_walking());
        generations.finish();
    }

    /// Records as a shard keeps them. A generation stands for the filters of one change.
    struct Records {
        generations: FilterGenerations,
        number: u8,
        filters: u32,
        /// Generation and the filters that permitted it.
        records: Vec<(u8, u32)>,
    }

    impl Records {
        fn change(&mut self, undone: u8) {
            self.filters += 1;
            self.number = (self.number + undone) % GENERATIONS + 1;
            self.generations.change(self.number);
        }

        fn visit(&mut self, count: u32) {
            if !self.generations.is_walking() {
                return;
            }
            let end = self.records.len() as u32;
            let current = self.generations.current();
            let visited = self.generations.next_mappings(count, end);
            if !visited.is_empty() {
                for record in &mut self.records[visited.start as usize..visited.end as usize] {
                    record.0 = if record.0 == current { current } else { 0 };
                }
                return;
            }
            assert!(self.generations.next_sessions(1, 1).is_empty() && self.generations.next_flows(1, 1).is_empty());
            self.generations.finish();
        }

        fn packet(&mut self, record: usize) {
            let (generation, filters) = self.records[record];
            if generation == self.generations.current() {
                assert_eq!(filters, self.filters, "generation {generation} was given under other filters");
            } else if let Some(generation) = self.generations.to_give(BOTH) {
                self.records[record] = (generation, self.filters);
            }
        }
    }

    proptest! {
        #[test]
        fn no_record_passes_by_filters_of_another_change(
            actions in prop::collection::vec((0_u8..8, 1_usize..40, 0_u8..3), 1..600),
            pace in 1_u32..50,
        ) {
            let mut records =
                Records { generations: FilterGenerations::new(1), number: 1, filters: 1, records: vec![(1, 1); 40] };
            for (action, record, undone) in actions {
                match action {
                    0 | 1 => records.change(undone),
                    2 => records.visit(pace),
                    _ => records.packet(record),
                }
            }
            // Once the changes cease, two walks at most are left.
            for _ in 0..2 * (40 + 1) {
                records.visit(pace);
            }
            prop_assert!(!records.generations.is_walking());
            prop_assert_eq!(records.generations.to_give(BOTH), Some(records.number));
        }
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
    fn changes_do_not_hold_up_a_walk() {
        let mut generations = FilterGenerations::new(1);
        generations.change(2);
        for number in (3..=GENERATIONS).chain(1..=GENERATIONS) {
            // A walk over 36 records takes nine calls; the change comes after four.
            for _ in 0..4 {
                let _ = generations.next_mappings(4, 37);
            }
            generations.change(number);
            assert_eq!(generations.to_give(BOTH), Some(number));
            for _ in 0..5 {
                let _ = generations.next_mappings(4, 37);
            }
            if generations.next_mappings(4, 37).is_empty() {
                while generations.is_walking() {
                    let _ = (generations.next_sessions(4, 10), generations.next_flows(4, 10));
                }
                generations.finish();
            }
        }
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
