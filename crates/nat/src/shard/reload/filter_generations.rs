//! Gives sessions that the present filters permit in both directions the generation of the filters.
//!
//! Records have few bits, so generations are reused: after each change a limited walk removes
//! outdated ones. If changes outrun walks, no record gets one, and filters are asked about every
//! packet.

use crate::policy::rules::GENERATIONS;
use crate::policy::rules::Permits;
use crate::shard::Ledger;
use crate::upkeep::walk::Pass;

/// About 2 µs, because they lie side by side.
const RECORDS_PER_CALL_MAX: u32 = 256;
/// No record ever has it.
const UNUSED: u8 = GENERATIONS + 1;

#[derive(Debug)]
pub(in crate::shard) struct FilterGenerations {
    latest: u8,
    /// `latest`, or [`UNUSED`] while records may still have `latest` from its last use.
    current: u8,
    /// Numbers used since the last complete walk, including the one in use then.
    used: u8,
    /// Walks that remove older generations.
    mappings: Pass,
    flows: Pass,
}

impl FilterGenerations {
    pub(in crate::shard) fn new(generation: u8) -> FilterGenerations {
        FilterGenerations {
            latest: generation,
            current: generation,
            used: 1,
            mappings: Pass::default(),
            flows: Pass::default(),
        }
    }

    /// Filters are not asked about records with it.
    #[inline(always)]
    pub(in crate::shard) fn current(&self) -> u8 {
        self.current
    }

    #[inline(always)]
    pub(in crate::shard) fn to_give(&self, permits: Permits) -> Option<u8> {
        (permits.out & permits.back & (self.current != UNUSED)).then_some(self.current)
    }

    /// `generation` differs if the filters do, or if Natrix has other addresses.
    pub(in crate::shard) fn change(&mut self, generation: u8) {
        if generation == self.latest {
            return;
        }
        self.latest = generation;
        self.used = self.used.saturating_add(1);
        self.current = if self.used <= GENERATIONS { generation } else { UNUSED };
        self.mappings.begin();
        self.flows.begin();
    }
}

impl Ledger {
    #[inline]
    pub(in crate::shard) fn sweep_filter_generations(&mut self) {
        if self.policy.generations.flows.is_under_way() {
            self.walk_filter_generations();
        }
    }

    #[cold]
    fn walk_filter_generations(&mut self) {
        let generations = &mut self.policy.generations;
        let current = generations.current;
        if generations.mappings.is_under_way() {
            for index in generations.mappings.next(RECORDS_PER_CALL_MAX, self.state.mappings.walk_end()) {
                let mapping = self.state.mappings.get_mut(index);
                if mapping.is_in_use() && mapping.session_generation() != current {
                    mapping.set_session_generation(0);
                }
            }
            return;
        }
        for index in generations.flows.next(RECORDS_PER_CALL_MAX, self.state.flows.walk_end()) {
            let flow = self.state.flows.get_mut(index);
            if flow.is_in_use() && flow.filter_generation() != current {
                flow.set_filter_generation(0);
            }
        }
        if !generations.flows.is_under_way() {
            (generations.current, generations.used) = (generations.latest, 1);
        }
    }
}
