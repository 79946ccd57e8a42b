//! Removes outdated generations of the filters from records.

use crate::shard::Ledger;

/// About 2 µs, because they lie side by side.
const RECORDS_PER_CALL_MAX: u32 = 256;

impl Ledger {
    #[inline]
    pub(in crate::shard) fn sweep_filter_generations(&mut self) {
        if self.policy.generations.is_walking() {
            self.walk_filter_generations();
        }
    }

    #[cold]
    fn walk_filter_generations(&mut self) {
        let generations = &mut self.policy.generations;
        let current = generations.current();
        let mappings = generations.next_mappings(RECORDS_PER_CALL_MAX, self.state.mappings.walk_end());
        if !mappings.is_empty() {
            for index in mappings {
                let mapping = self.state.mappings.get_mut(index);
                if mapping.is_in_use() && mapping.session_generation() != current {
                    mapping.set_session_generation(0);
                }
            }
            return;
        }
        let sessions = generations.next_sessions(RECORDS_PER_CALL_MAX, self.state.sessions.walk_end());
        if !sessions.is_empty() {
            for slot in sessions {
                let session = self.state.sessions.get_mut(slot);
                if session.filter_generation() != current {
                    session.set_filter_generation(0);
                }
            }
            return;
        }
        for index in generations.next_flows(RECORDS_PER_CALL_MAX, self.state.flows.walk_end()) {
            let flow = self.state.flows.get_mut(index);
            if flow.is_in_use() && flow.filter_generation() != current {
                flow.set_filter_generation(0);
            }
        }
        if !generations.is_walking() {
            generations.finish();
        }
    }
}
