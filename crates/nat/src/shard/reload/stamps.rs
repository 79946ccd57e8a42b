//! Stamps sessions that the present filters permit in both directions.
//!
//! Records have few bits, so stamps are reused: after each change a limited walk removes outdated
//! ones. If changes outrun walks, no record is stamped, and filters are asked about every packet.

use crate::policy::rules::GENERATIONS;
use crate::policy::rules::Permits;
use crate::shard::Ledger;
use crate::upkeep::walk::Pass;

/// About 2 µs, because they lie side by side.
const RECORDS_PER_CALL_MAX: u32 = 256;
/// No record ever has it.
const UNUSED: u8 = GENERATIONS + 1;

#[derive(Debug)]
pub(in crate::shard) struct Stamps {
    latest: u8,
    /// `latest`, or [`UNUSED`] while records may still have `latest` from its last use.
    current: u8,
    /// Numbers used since the last complete walk, including the one in use then.
    used: u8,
    /// Walks that remove older stamps.
    mappings: Pass,
    flows: Pass,
}

impl Stamps {
    pub(in crate::shard) fn new(stamp: u8) -> Stamps {
        Stamps { latest: stamp, current: stamp, used: 1, mappings: Pass::default(), flows: Pass::default() }
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

    /// `stamp` differs if the filters do.
    pub(in crate::shard) fn change(&mut self, stamp: u8) {
        if stamp == self.latest {
            return;
        }
        self.latest = stamp;
        self.used = self.used.saturating_add(1);
        self.current = if self.used <= GENERATIONS { stamp } else { UNUSED };
        self.mappings.begin();
        self.flows.begin();
    }
}

impl Ledger {
    #[inline]
    pub(in crate::shard) fn sweep_stamps(&mut self) {
        if self.policy.stamps.flows.is_under_way() {
            self.walk_stamps();
        }
    }

    #[cold]
    fn walk_stamps(&mut self) {
        let stamps = &mut self.policy.stamps;
        let current = stamps.current;
        if stamps.mappings.is_under_way() {
            for index in stamps.mappings.next(RECORDS_PER_CALL_MAX, self.state.mappings.walk_end()) {
                let mapping = self.state.mappings.get_mut(index);
                if mapping.is_in_use() && mapping.session_generation() != current {
                    mapping.set_session_generation(0);
                }
            }
            return;
        }
        for index in stamps.flows.next(RECORDS_PER_CALL_MAX, self.state.flows.walk_end()) {
            let flow = self.state.flows.get_mut(index);
            if flow.is_in_use() && flow.filter_generation() != current {
                flow.set_filter_generation(0);
            }
        }
        if !stamps.flows.is_under_way() {
            (stamps.current, stamps.used) = (stamps.latest, 1);
        }
    }
}
