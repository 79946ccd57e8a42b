//! What lives is told to a log that was opened: it knows nothing of it, and has to say whose an endpoint is without the log before.
//!
//! A walk over mappings, flows and blocks, a bounded piece a call, and only while there is room in the ring beside what begins and ends
//! meanwhile. What begins is told by itself; what ends before the walk is there is in its end, which says how long it was. What is told twice,
//! as it began after the log was opened, is the same both times. At the end [`EventKind::AllTold`] says that nothing is missing.

use super::Shard;
use crate::blocks::Lease;
use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::time::Instant;
use crate::types::AddressIndex;

/// Records looked at for each microsecond since the last call: where calls come often, a call is short.
const VISITS_PER_MICRO: u64 = 2;
/// Records looked at in one call at least.
const VISITS_PER_CALL_MIN: u64 = 4;
/// And at most: a few microseconds, as they follow each other in memory.
const VISITS_PER_CALL_MAX: u64 = 256;
/// Records made in one call at most.
const TOLD_PER_CALL_MAX: u32 = 64;

/// Where the walk is. What was made after its begin was told by itself.
#[derive(Debug, Default)]
pub(super) struct Retelling {
    is_due: bool,
    /// Mappings still to be looked at: those below this number.
    mappings: u32,
    /// Flows, likewise.
    flows: u32,
    /// Grains of ports on external addresses, likewise.
    grains: u64,
    /// Records made so far.
    told: u32,
}

/// Grains of ports on one address.
const GRAINS: u64 = 1 << (16 - GRAIN_SHIFT);
/// A grain has 64 ports.
const GRAIN_SHIFT: u32 = 6;

impl Shard {
    /// Tells a new log some more of what lives, if one was opened. It looks at so much, whatever there is.
    #[inline]
    pub(super) fn retell(&mut self, now: Instant, elapsed: u64) {
        if self.events.is_log_new() {
            let leases = if self.shared.ports.blocks.is_ready() { self.shared.address_count() as u64 } else { 0 };
            self.retelling = Retelling {
                is_due: true,
                mappings: self.mappings.walk_end(),
                flows: self.flows.walk_end(),
                grains: leases * GRAINS,
                told: 0,
            };
        }
        if self.retelling.is_due {
            self.retell_some(now, elapsed);
        }
    }

    #[cold]
    fn retell_some(&mut self, now: Instant, elapsed: u64) {
        let visits = elapsed.saturating_mul(VISITS_PER_MICRO).clamp(VISITS_PER_CALL_MIN, VISITS_PER_CALL_MAX);
        let told_before = self.retelling.told;
        for _ in 0..visits {
            if self.retelling.told - told_before >= TOLD_PER_CALL_MAX || !self.events.may_retell() {
                return;
            }
            let event = if self.retelling.mappings > 1 {
                self.retelling.mappings -= 1;
                self.living_mapping(now, self.retelling.mappings)
            } else if self.retelling.flows > 1 {
                self.retelling.flows -= 1;
                self.living_flow(now, self.retelling.flows)
            } else if self.retelling.grains > 0 {
                self.next_lease(now)
            } else {
                self.tell_all_told(now);
                return;
            };
            if let Some(event) = event {
                self.retelling.told += 1;
                self.events.record(event.because(Cause::LogOpened));
            }
        }
    }

    /// Mappings that a change of settings gave a record to come first: see `notes`.
    fn tell_all_told(&mut self, now: Instant) {
        if self.unrecorded == 0 {
            self.retelling.is_due = false;
            let event = Event::new(EventKind::AllTold, now).because(Cause::LogOpened);
            self.events.record(Event { amount: self.retelling.told, ..event });
        }
    }

    /// Of a mapping the record that it has in the log. One that is out of date has its end still to come.
    fn living_mapping(&self, now: Instant, index: u32) -> Option<Event> {
        let mapping = self.mappings.get(index);
        if !mapping.is_in_use() || !mapping.is_recorded() {
            return None;
        }
        let is_static = mapping.is_recorded_static();
        let kind = if is_static { EventKind::StaticMade } else { EventKind::MappingCreated };
        Some(Event { amount: held_s(now, mapping.created_s()), ..self.event_of(kind, now, index) })
    }

    fn living_flow(&self, now: Instant, index: u32) -> Option<Event> {
        let flow = self.flows.get(index);
        let amount = held_s(now, flow.created_s());
        flow.is_in_use().then(|| Event { amount, ..self.event_of_flow(EventKind::FlowCreated, now, index) })
    }

    /// Goes on from the highest grain to lower ones: a block is met at its last grain, and left before its first.
    fn next_lease(&mut self, now: Instant) -> Option<Event> {
        self.retelling.grains -= 1;
        let grain = self.retelling.grains;
        let (address, within) = (AddressIndex((grain / GRAINS) as u32), grain % GRAINS);
        // Of many a lease is known by one word that there is none.
        if within % 64 == 63 && self.shared.ports.blocks.leased(address.index(), (within / 64) as usize) == 0 {
            self.retelling.grains = grain - 63;
            return None;
        }
        let Lease { block, holder, since_s } = self.shared.lease_of(address, (within << GRAIN_SHIFT) as u16)?;
        self.retelling.grains = grain / GRAINS * GRAINS + u64::from(block.first_port() >> GRAIN_SHIFT);
        // Whoever leased it tells of it.
        if holder.worker != self.worker {
            return None;
        }
        let event = self.event_of_lease(EventKind::BlockLeased, now, (holder.realm, holder.address), block);
        Some(Event { amount: held_s(now, since_s), ..event })
    }
}

fn held_s(now: Instant, since_s: u32) -> u32 {
    ((now.as_micros() / 1_000_000) as u32).saturating_sub(since_s)
}
