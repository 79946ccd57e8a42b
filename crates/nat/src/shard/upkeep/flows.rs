//! The sweep of endpoint-dependent sessions.

use crate::shard::Ledger;
use crate::time::Instant;
use crate::upkeep::walk::Pace;

/// Keeps expired ones from filling the table.
const RECORDS_PER_CREATED: u64 = 4;

impl Ledger {
    pub(in crate::shard) fn sweep_flows(&mut self, now: Instant, elapsed: u64) {
        let created = self.counters.flows_created - self.upkeep.sweep.flows_created;
        self.upkeep.sweep.flows_created = self.counters.flows_created;
        if self.state.flows.has_no_records() && self.state.shared_ports.len() == 0 {
            return;
        }
        let end = self.state.flows.walk_end();
        let visits = Pace::RECORDS.due(end, elapsed).saturating_add((created * RECORDS_PER_CREATED) as u32);
        for index in self.upkeep.sweep.flows.next(visits, end) {
            self.shorten_flow(now, index);
            let is_over = self.state.flows.get(index).is_in_use() && {
                let flow = self.state.flows.get(index);
                !flow.is_alive(now) || self.view().is_flow_overdue(index, now)
            };
            if is_over && self.may_end_mapping() {
                self.end_flow(now, index);
            }
            let is_hold_down_over = {
                let flow = self.state.flows.get(index);
                flow.is_held_down() && now >= flow.expires()
            };
            if is_hold_down_over {
                self.end_hold_down(index);
            }
        }
        self.sweep_shared_ports(now, elapsed);
    }
}
