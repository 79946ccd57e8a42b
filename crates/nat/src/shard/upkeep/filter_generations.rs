//! Removes outdated generations of the filters from records.

use crate::shard::Ledger;
use crate::upkeep::walk::Pace;

/// Records lie side by side, so each takes about 3 ns: a fortieth of the time at most.
const PACE: Pace = Pace { round_micros: 1_000_000, per_micro_max: 8, per_call_min: 16, per_call_max: 256 };

impl Ledger {
    #[inline]
    pub(in crate::shard) fn sweep_filter_generations(&mut self, elapsed: u64) {
        if self.policy.generations.is_walking() {
            self.walk_filter_generations(elapsed);
        }
    }

    #[cold]
    fn walk_filter_generations(&mut self, elapsed: u64) {
        let generations = &mut self.policy.generations;
        let current = generations.current();
        let end = self.state.mappings.walk_end();
        let mappings = generations.next_mappings(PACE.due(end, elapsed), end);
        if !mappings.is_empty() {
            // For the next call: waiting for memory was three quarters of the time.
            self.state.mappings.prefetch_range(mappings.end..mappings.end.saturating_add(mappings.len() as u32));
            for index in mappings {
                let mapping = self.state.mappings.get_mut(index);
                if mapping.is_in_use() && mapping.session_generation() != current {
                    mapping.set_session_generation(0);
                }
            }
            return;
        }
        let end = self.state.sessions.walk_end();
        let sessions = generations.next_sessions(PACE.due(end, elapsed), end);
        if !sessions.is_empty() {
            for slot in sessions {
                let session = self.state.sessions.get_mut(slot);
                if session.filter_generation() != current {
                    session.set_filter_generation(0);
                }
            }
            return;
        }
        let end = self.state.flows.walk_end();
        for index in generations.next_flows(PACE.due(end, elapsed), end) {
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
