//! Reports all existing state to a newly opened log, so that it can be searched alone.
//!
//! A limited walk while the ring has room beside current events. State that ends first is in its
//! end record, with its duration; state reported twice has the same record.
//! [`EventKind::SnapshotComplete`] says that nothing is missing.

use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::external::blocks::Lease;
use crate::shard::Ledger;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::AddressIndex;

const VISITS_PER_MICRO: u64 = 2;
const VISITS_PER_CALL_MIN: u64 = 4;
/// A few microseconds, because records lie side by side.
const VISITS_PER_CALL_MAX: u64 = 256;
const REPORTS_PER_CALL_MAX: u32 = 64;

/// Progress of the walk, from high indices to low ones.
#[derive(Debug, Default)]
pub(in crate::shard) struct SnapshotReport {
    is_due: bool,
    /// Mappings below this index are still to be visited.
    mappings: u32,
    flows: u32,
    /// Over all external addresses.
    grains: u64,
    reported: u32,
}

const GRAINS: u64 = 1 << (16 - GRAIN_SHIFT);
/// A grain has 64 ports.
const GRAIN_SHIFT: u32 = 6;

impl View<'_> {
    /// The event of a live mapping. Of an expired one, the end is still to be recorded.
    fn living_mapping(&self, now: Instant, index: u32) -> Option<Event> {
        let mapping = self.state.mappings.get(index);
        if !mapping.is_in_use() || !mapping.is_recorded() {
            return None;
        }
        let is_static = mapping.is_recorded_static();
        let kind = if is_static { EventKind::StaticCreated } else { EventKind::MappingCreated };
        Some(Event { amount: held_s(now, mapping.created_s()), ..self.event_of(kind, now, index) })
    }

    fn living_flow(&self, now: Instant, index: u32) -> Option<Event> {
        let flow = self.state.flows.get(index);
        let amount = held_s(now, flow.created_s());
        flow.is_in_use().then(|| Event { amount, ..self.event_of_flow(EventKind::FlowCreated, now, index) })
    }
}

impl Ledger {
    #[inline]
    pub(in crate::shard) fn log_existing_state(&mut self, now: Instant, elapsed: u64) {
        if self.events.is_log_new() {
            self.state.subscribers.hosts.forget_names();
            let leases = if self.shared.ports.blocks.is_ready() { self.shared.address_count() as u64 } else { 0 };
            self.upkeep.snapshot_report = SnapshotReport {
                is_due: true,
                mappings: self.state.mappings.walk_end(),
                flows: self.state.flows.walk_end(),
                grains: leases * GRAINS,
                reported: 0,
            };
        }
        if self.upkeep.snapshot_report.is_due {
            self.log_some_existing_state(now, elapsed);
        }
    }

    #[cold]
    fn log_some_existing_state(&mut self, now: Instant, elapsed: u64) {
        let visits = elapsed.saturating_mul(VISITS_PER_MICRO).clamp(VISITS_PER_CALL_MIN, VISITS_PER_CALL_MAX);
        let reported_before = self.upkeep.snapshot_report.reported;
        for _ in 0..visits {
            if self.upkeep.snapshot_report.reported - reported_before >= REPORTS_PER_CALL_MAX
                || !self.events.may_log_existing_state()
            {
                return;
            }
            let event = if self.upkeep.snapshot_report.mappings > 1 {
                self.upkeep.snapshot_report.mappings -= 1;
                self.view().living_mapping(now, self.upkeep.snapshot_report.mappings)
            } else if self.upkeep.snapshot_report.flows > 1 {
                self.upkeep.snapshot_report.flows -= 1;
                self.view().living_flow(now, self.upkeep.snapshot_report.flows)
            } else if self.upkeep.snapshot_report.grains > 0 {
                self.next_lease(now)
            } else {
                self.report_snapshot_complete(now);
                return;
            };
            if let Some(event) = event {
                self.upkeep.snapshot_report.reported += 1;
                self.record(event.because(Cause::LogOpened));
            }
        }
    }

    /// Waits for mappings that need a record under changed settings (`notes`).
    fn report_snapshot_complete(&mut self, now: Instant) {
        if self.upkeep.unrecorded.is_none() {
            self.upkeep.snapshot_report.is_due = false;
            let event = Event::new(EventKind::SnapshotComplete, now).because(Cause::LogOpened);
            self.events.record(Event { amount: self.upkeep.snapshot_report.reported, ..event });
        }
    }

    /// Finds a block at its last grain, and skips to its first.
    fn next_lease(&mut self, now: Instant) -> Option<Event> {
        self.upkeep.snapshot_report.grains -= 1;
        let grain = self.upkeep.snapshot_report.grains;
        let (address, within) = (AddressIndex((grain / GRAINS) as u32), grain % GRAINS);
        if within % 64 == 63 && self.shared.ports.blocks.leased(address.index(), (within / 64) as usize) == 0 {
            self.upkeep.snapshot_report.grains = grain - 63;
            return None;
        }
        let Lease { block, holder, since_s } = self.shared.lease_of(address, (within << GRAIN_SHIFT) as u16)?;
        self.upkeep.snapshot_report.grains = grain / GRAINS * GRAINS + u64::from(block.first_port() >> GRAIN_SHIFT);
        // The worker that leased the block reports it.
        if holder.worker != self.worker {
            return None;
        }
        let event = self.view().event_of_lease(EventKind::BlockLeased, now, (holder.realm, holder.address), block);
        Some(Event { amount: held_s(now, since_s), ..event })
    }
}

fn held_s(now: Instant, since_s: u32) -> u32 {
    ((now.as_micros() / 1_000_000) as u32).saturating_sub(since_s)
}
