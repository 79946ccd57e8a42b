//! Work between bursts, limited per call.

pub(in crate::shard) mod blocks;
pub(in crate::shard) mod filter_generations;
pub(in crate::shard) mod flows;
pub(in crate::shard) mod gateways;
pub(in crate::shard) mod grants;
pub(in crate::shard) mod hold_down;
pub(in crate::shard) mod lapse;
pub(in crate::shard) mod shared_ports;
pub(in crate::shard) mod shorten;
pub(in crate::shard) mod sweep;
pub(in crate::shard) mod watch;

use crate::shard::Ledger;
use crate::time::Instant;
use crate::types::WorkerId;
use crate::upkeep::walk::Pace;

/// Host records linger for many seconds, so no round has to be fast.
const HOSTS: Pace = Pace { round_micros: 4_000_000, per_micro_max: 2, per_call_min: 0, per_call_max: 32 };

impl Ledger {
    pub(in crate::shard) fn maintain(&mut self, now: Instant) {
        let elapsed = now.saturating_since(self.upkeep.sweep.last).as_micros();
        self.upkeep.sweep.last = now;
        self.policy.former.note_time(now);
        let ended = self.sweep_mappings(now, elapsed);
        self.release_ports(now, elapsed, ended);
        self.sweep_sessions(now, elapsed);
        self.sweep_flows(now, elapsed);
        self.sweep_blocks(now, elapsed);
        self.sweep_offenders(now, elapsed);
        self.sweep_lapsed(now, elapsed);
        let hosts = &mut self.state.subscribers.hosts;
        let due = self.upkeep.hosts.due(&HOSTS, hosts.walk_end(), elapsed);
        if due != 0 {
            hosts.sweep(now, due);
        }
        self.sweep_guarantees(now, elapsed);
        self.sweep_grants(now, elapsed);
        self.sweep_gateways(now, elapsed);
        if self.worker == WorkerId(0) {
            self.shared.free_removed_forwards(now, &mut self.upkeep.removed_forwards);
        }
        self.sweep_filter_generations(elapsed);
        self.watch(now);
        self.log_existing_state(now, elapsed);
    }

    pub(in crate::shard) fn maintain_events(&mut self, now: Instant) {
        let settings = self.shared.settings().events;
        self.events.maintain(now, &settings);
    }
}
