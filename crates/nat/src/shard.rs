//! One worker's share of the engine.
//!
//! A burst is processed in passes, so that waits for memory overlap (`burst/established.rs`); only
//! the last pass decides. First packets (`packet`, `commit`) also touch the port table, the
//! subscriber and the free list.

use std::sync::Arc;

use mem::ring::Producer;

use crate::event::EventCounters;
use crate::event::LogsOpened;
use crate::event::Record;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::parse::Parsed;
use crate::snapshot::shared::BuildError;
use crate::snapshot::shared::Shared;
use crate::state::delta::Delta;
use crate::state::delta::GrantDelta;
use crate::state::grant_record::GrantRecord;
use crate::state::host::worker_of_number;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::AddressUse;
use crate::types::HostNumber;
use crate::types::InterfaceId;
use crate::types::WorkerId;
use crate::verdict::Counters;
use crate::verdict::Verdict;
use burst::established::Scratch;

mod burst;
mod commit;
mod control_session;
mod deltas;
mod edge;
mod ledger;
mod notes;
mod packet;
mod port_control;
pub(crate) mod reload;
mod show;
mod state;
#[cfg(test)]
mod tests;
mod upkeep;

use ledger::Keys;
pub(in crate::shard) use ledger::Ledger;
use packet::PacketPath;
pub use reload::adopt::Successor;
pub use reload::census::Affected;
pub use reload::census::Census;
pub use reload::census::Fates;
pub use reload::census::Held;
pub use reload::census::Named;
pub use reload::census::Onward;
pub use reload::census::PoolCensus;
pub use reload::next_mapping::Denial;

/// Largest packet to copy: a held fragment, or a hairpinned packet that gets an error.
const PACKET_BUFFER_BYTES: usize = crate::state::fragments::SLOT_BYTES_MAX;

/// One worker's ledger and packet path, never shared between threads.
pub struct Shard {
    path: PacketPath,
    scratch: Box<Scratch>,
}

#[derive(Clone, Copy)]
struct Arrival<'a> {
    now: Instant,
    meta: PacketMeta,
    parsed: &'a Parsed,
}

enum Fate {
    Forward { verdict: Verdict, egress: Egress, length: u16 },
    HandOff { worker: WorkerId, meta: PacketMeta },
    Done(Verdict),
    Held,
}

impl Shard {
    /// Allocates all tables. `secret`: 256 random bits unknown to outsiders, different for each
    /// worker and start (RFC 6056 §3.4).
    pub fn new(shared: Arc<Shared>, worker: WorkerId, secret: [u64; 4]) -> Result<Shard, BuildError> {
        let keys = Keys::new(worker, secret);
        Ok(Shard { path: PacketPath::new(Ledger::new(shared, worker, &keys)?, &keys)?, scratch: Box::default() })
    }

    /// Read-only access.
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        self.path.ledger.view()
    }

    /// See [`crate::pieces::first_pass`].
    pub(crate) fn first_pass(&self, packet: &Packet<'_>) -> u64 {
        self.path.first_pass(packet)
    }

    /// State shared by all workers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.path.ledger.shared
    }

    /// This shard's worker.
    pub fn worker(&self) -> WorkerId {
        self.path.ledger.worker
    }

    /// This worker's counters.
    pub fn counters(&self) -> &Counters {
        &self.path.ledger.counters
    }

    /// For what the caller counts.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.path.ledger.counters
    }

    /// Writes event records into `ring`.
    pub fn set_events(&mut self, ring: Producer<Record>) {
        self.path.ledger.events.set_ring(ring);
    }

    /// Reports all live state to each log that opens.
    pub fn follow_logs(&mut self, opened: Arc<LogsOpened>) {
        self.path.ledger.events.follow(opened);
    }

    /// Whether this IPv6 address of an interface may be used from now on. Until the first call it
    /// may.
    pub fn set_address_use(&mut self, interface: InterfaceId, address: u128, now: AddressUse) {
        self.path.set_address_use(interface, address, now);
    }

    /// Writes each change into `ring`.
    pub fn set_deltas(&mut self, ring: Producer<Delta>) {
        self.path.ledger.set_deltas(ring);
    }

    /// Changes that did not fit into the ring; the peer needs a walk.
    pub fn deltas_lost(&self) -> u64 {
        self.path.ledger.deltas_lost()
    }

    /// Applies a change of another instance with the same settings, where quotas, rules and filters
    /// were checked. Call it on the shard of [`Shared::worker_of_delta`].
    ///
    /// # Errors
    /// A table is full, or the external endpoint is in use or in no pool.
    pub fn install(&mut self, now: Instant, delta: &Delta) -> Result<(), Verdict> {
        self.path.ledger.install(now, delta)
    }

    /// Writes each change of a grant into `ring`.
    pub fn set_grant_deltas(&mut self, ring: Producer<GrantRecord>) {
        self.path.ledger.set_grant_deltas(ring);
    }

    /// Changes of grants that did not fit; readers need a walk ([`View::grant_deltas_page`]).
    pub fn grant_deltas_lost(&self) -> u64 {
        self.path.ledger.grant_deltas_lost()
    }

    /// Installs a grant that a file or another instance has kept. Call it on the shard of
    /// [`Shared::worker_of_grant`].
    ///
    /// # Errors
    /// As [`Shard::install`].
    pub fn install_grant(&mut self, now: Instant, delta: &GrantDelta) -> Result<(), Verdict> {
        self.path.ledger.install_grant(now, delta)
    }

    /// Continues the epoch time of clients without a grant of their own.
    pub fn continue_epoch(&mut self, now: Instant, epoch_s: u32) {
        self.path.ledger.state.grants.continue_epoch(now, epoch_s);
    }

    /// Continues all clients' epoch time from `epoch_s` (RFC 6887 §8.5).
    pub fn set_epoch(&mut self, now: Instant, epoch_s: u32) {
        self.path.ledger.state.grants.set_epoch(now, epoch_s);
    }

    /// Announces to port control clients that state was lost (RFC 6887 §14.1.3).
    pub fn announce_loss(&mut self, now: Instant) {
        self.path.announce_from(now);
    }

    /// Event counters.
    pub fn event_counters(&self) -> EventCounters {
        self.path.ledger.events.counters()
    }

    /// Records the exporter has not taken. Reads a line of its core.
    pub fn events_waiting(&self) -> usize {
        self.path.ledger.events.waiting()
    }

    /// Records what is held back (suppressed refusals, gaps), because no packet follows.
    pub fn finish_events(&mut self, now: Instant) {
        self.path.ledger.events.finish(now);
    }

    /// The idle times in use. Port pressure may shorten them, except for ports with their own.
    pub fn timeouts(&self) -> crate::settings::Timeouts {
        *self.path.ledger.policy.lifetimes.current()
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.path.ledger.state.mappings.bytes()
            + self.path.ledger.state.outbound.bytes()
            + self.path.ledger.state.sessions.bytes()
            + self.path.ledger.state.subscribers.bytes()
            + self.path.ledger.state.held_ports.bytes()
            + self.path.ledger.state.grants.bytes()
            + self.path.ledger.state.flows.bytes()
            + self.path.ledger.state.shared_ports.bytes()
    }

    /// Processes packets in order. Allocates nothing. An established packet costs two cold cache
    /// lines.
    pub fn process(&mut self, now: Instant, burst: &mut [Packet<'_>], sink: &mut dyn Sink) {
        for round in burst.chunks_mut(BURST_MAX) {
            self.path.process(now, round, &mut self.scratch, sink);
        }
    }

    /// Reports to its sender that a forwarded packet did not leave, because its neighbour does not
    /// answer. `packet` is as it was to leave by `interface`.
    pub fn report_undelivered(&mut self, now: Instant, interface: InterfaceId, packet: &[u8], sink: &mut dyn Sink) {
        self.path.report_undelivered(now, interface, packet, sink);
    }

    /// At most 20 µs of housekeeping, usually far less. Call it once per poll.
    pub fn maintain(&mut self, now: Instant, sink: &mut dyn Sink) {
        self.path.ledger.maintain(now);
        self.path.maintain(now, sink);
        self.path.ledger.maintain_events(now);
    }

    /// Whether no state is left, not even a held-down port.
    pub fn is_empty(&self) -> bool {
        self.path.ledger.state.mappings.len() == 0
            && self.path.ledger.state.sessions.len() == 0
            && self.path.ledger.state.flows.has_no_records()
            && self.path.ledger.state.shared_ports.len() == 0
            && self.path.ledger.state.subscribers.len() == 0
            && self.path.fragments.is_empty()
            && self.path.ledger.syns.is_empty()
            && self.path.ledger.state.outbound.is_empty()
            && self.path.ledger.state.held_ports.len() == 0
            && self.path.ledger.state.grants.is_empty()
    }

    /// Sessions, including expired ones.
    pub fn sessions_len(&self) -> u64 {
        self.path.ledger.counters.sessions_created - self.path.ledger.counters.sessions_removed
    }
}

impl Shared {
    /// The same on every shard, in every run.
    #[inline]
    pub fn worker_of_subscriber(&self, number: HostNumber) -> WorkerId {
        if number.is_ipv6() {
            return worker_of_number(number, self.workers());
        }
        self.spread(u64::from(number.0))
    }

    /// A fixed worker for packets without a mapping (fragments without ports, unsolicited SYNs).
    #[inline]
    pub(crate) fn worker_of_stray(&self, a: u32, b: u32, c: u32) -> WorkerId {
        self.spread((u64::from(a) << 32 | u64::from(b)) ^ u64::from(c).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[inline]
    pub(crate) fn spread(&self, key: u64) -> WorkerId {
        let workers = self.workers() as u64;
        if workers == 1 {
            return WorkerId(0);
        }
        // Finaliser of a 64-bit mixer.
        let mixed = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        WorkerId(((u128::from(mixed) * u128::from(workers)) >> 64) as u8)
    }
}
