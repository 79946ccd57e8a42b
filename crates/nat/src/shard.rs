//! One worker's share of the engine.
//!
//! A burst is processed in passes, so that waiting for memory overlaps with work (see
//! `burst/established.rs`). Only the last pass decides. Packets of established sessions (`burst`)
//! touch two cold lines; first packets of a flow (`packet`, `commit`) also the port table, the
//! subscriber and the free list. All others are rare.

use std::sync::Arc;

use mem::ring::Producer;

use crate::event::Event;
use crate::event::EventCounters;
use crate::event::EventLog;
use crate::event::LogsOpened;
use crate::headers::identification::IdentificationSource;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Class;
use crate::headers::parse::HEADERS;
use crate::headers::parse::Parsed;
use crate::headers::parse::be16;
use crate::headers::parse::parse;
use crate::policy::rate_limit::RateLimit;
use crate::policy::refused::RefusedSubscribers;
use crate::random::KeyedHash;
use crate::random::Random;
use crate::snapshot::addresses::LocalAddresses;
use crate::snapshot::shared::BuildError;
use crate::snapshot::shared::Shared;
use crate::state::State;
use crate::state::flow::FlowStore;
use crate::state::fragments::FragmentTracker;
use crate::state::held_ports::HeldPorts;
use crate::state::held_syn::SynStore;
use crate::state::mapping::MappingStore;
use crate::state::session::SessionStore;
use crate::state::shared_ports::SharedPorts;
use crate::state::subscriber::SubscriberStore;
use crate::state::table::BucketTable;
use crate::state::timers::Timers;
use crate::steps::opening::Foresight;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::Side;
use crate::types::WorkerId;
use crate::upkeep::walk::Walk;
use crate::verdict::Counters;
use crate::verdict::Verdict;
use burst::created::Created;
use burst::established::Scratch;
use burst::established::SteadyClock;
use burst::established::SteadyTimers;
use burst::established::Tally;

mod burst;
mod commit;
mod deltas;
mod notes;
mod packet;
pub(crate) mod reload;
mod show;
mod state;
#[cfg(test)]
mod tests;
mod upkeep;

pub use reload::adopt::Successor;
pub use reload::census::Affected;
pub use reload::census::Census;
pub use reload::census::Fates;
pub use reload::census::Held;
pub use reload::census::Named;
pub use reload::census::Onward;
pub use reload::census::PoolCensus;
pub use reload::census::Prospect;
pub use reload::next_mapping::Denial;

/// Largest IP packet the shard can copy (held fragments, errors about hairpinned packets).
const PACKET_BUFFER_BYTES: usize = crate::state::fragments::SLOT_BYTES_MAX;

/// One worker's mappings, sessions and subscribers, never shared between threads.
pub struct Shard {
    shared: Arc<Shared>,
    /// Of `shared`, and of a configuration that is about to follow.
    local: Arc<LocalAddresses>,
    worker: WorkerId,
    state: State,
    policy: Policy,
    upkeep: Upkeep,
    fragments: FragmentTracker,
    syns: SynStore,
    identifications: IdentificationSource,
    random: Random,
    events: EventLog,
    counters: Counters,
    deltas: deltas::Deltas,
    created: Created,
    #[cfg(test)]
    long_way_only: bool,
    #[cfg(test)]
    short_ways: u64,
    /// `None` while a burst is being processed.
    scratch: Option<Box<Scratch>>,
    /// `None` while in use.
    packet_buffer: Option<Box<[u8; PACKET_BUFFER_BYTES]>>,
}

pub(crate) struct Policy {
    refused_subscribers: RefusedSubscribers,
    icmp_limit: RateLimit,
    offenders: commit::penalty::Offenders,
    pub(crate) lifetimes: Timers,
    /// Shows since when a session is idle after a reload.
    former: upkeep::shorten::Former,
    watch: upkeep::watch::Watch,
    timers: SteadyTimers,
    stamps: reload::stamps::Stamps,
    pub(crate) class_generation: u16,
}

impl Policy {
    /// The generation of records whose packets the filters permit in both directions.
    #[inline(always)]
    pub(crate) fn filter_generation(&self) -> u8 {
        self.stamps.current()
    }
}

struct Upkeep {
    sweep: upkeep::sweep::Sweep,
    shortening: upkeep::shorten::Shortening,
    block_sweep: upkeep::blocks::BlockSweep,
    guarantees: Walk,
    coverage_walk: commit::coverage::CoverageWalk,
    removed_forwards: Walk,
    settled: Walk,
    unrecorded: u32,
    retelling: reload::retell::Retelling,
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
    /// Builds the shard of `worker` and allocates its tables.
    ///
    /// `secret`: 256 random bits that outsiders must not know, different for each worker and each
    /// start (RFC 6056 §3.4).
    pub fn new(shared: Arc<Shared>, worker: WorkerId, secret: [u64; 4]) -> Result<Shard, BuildError> {
        let limits = shared.settings().limits;
        let memory = |table| move |source| BuildError::Memory { table, source };
        let timeouts = shared.settings().timeouts;
        let icmp = shared.settings().icmp;
        let mtu_max = shared.settings().interfaces.iter().map(|interface| interface.mtu).max().unwrap_or(0);
        let hash = KeyedHash::new(secret);
        // Each use of randomness gets its own key from the one secret.
        let key = |purpose: u64| hash.hash(purpose, u64::from(worker.0));
        let hash_for = |purpose: u64| KeyedHash::new([0, 1, 2, 3].map(|word| key(purpose << 8 | word)));
        if let Some(between_workers) = &shared.between_workers {
            between_workers.claims.seed(hash_for(11));
        }
        let state = State {
            mappings: MappingStore::new(limits.mappings_max).map_err(memory("mappings"))?,
            outbound: BucketTable::with_capacity(limits.mappings_max as usize).map_err(memory("outbound"))?,
            sessions: SessionStore::new(limits.extra_sessions_max, hash).map_err(memory("sessions"))?,
            flows: FlowStore::new(limits.flows_max, hash).map_err(memory("flows"))?,
            shared_ports: SharedPorts::new(limits.flows_max, shared.ports.places(), shared.workers(), hash)
                .map_err(memory("shared ports"))?,
            subscribers: SubscriberStore::new(limits.subscribers_max, hash).map_err(memory("subscribers"))?,
            held_ports: HeldPorts::new(limits.held_ports_max).map_err(memory("held ports"))?,
            hash,
        };
        let policy = Policy {
            refused_subscribers: RefusedSubscribers::new(hash_for(10)),
            icmp_limit: RateLimit::new(&icmp, hash_for(3)),
            offenders: commit::penalty::Offenders::default(),
            lifetimes: Timers::new(shared.settings()),
            former: upkeep::shorten::Former::new(Timers::new(shared.settings())),
            watch: upkeep::watch::Watch::new(shared.settings()),
            class_generation: commit::admission::FIRST_GENERATION,
            stamps: reload::stamps::Stamps::new(shared.filters.generation()),
            timers: SteadyTimers::new(&timeouts, shared.settings().inbound_refresh),
        };
        let upkeep = Upkeep {
            sweep: upkeep::sweep::Sweep::default(),
            shortening: upkeep::shorten::Shortening::default(),
            block_sweep: upkeep::blocks::BlockSweep::default(),
            guarantees: Walk::default(),
            coverage_walk: commit::coverage::CoverageWalk::default(),
            removed_forwards: Walk::default(),
            settled: Walk::default(),
            unrecorded: 0,
            retelling: reload::retell::Retelling::default(),
        };
        Ok(Shard {
            state,
            policy,
            upkeep,
            fragments: FragmentTracker::new(&limits, timeouts.fragment, usize::from(mtu_max), hash_for(1)),
            syns: SynStore::new(limits.unsolicited_syns_max, timeouts.unsolicited_syn, hash_for(2)),
            identifications: IdentificationSource::new(worker, shared.workers(), hash_for(4)),
            random: Random::new([key(5), key(6), key(7), key(8)]),
            events: EventLog::new(&shared.settings().events, hash_for(9)),
            counters: Counters::default(),
            deltas: deltas::Deltas::default(),
            created: Created::default(),
            #[cfg(test)]
            long_way_only: false,
            #[cfg(test)]
            short_ways: 0,
            scratch: Some(Box::default()),
            packet_buffer: Some(Box::new([0; PACKET_BUFFER_BYTES])),
            local: Arc::clone(&shared.local),
            shared,
            worker,
        })
    }

    /// What can be read of it: pages of records, explanations, decisions.
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        View {
            state: &self.state,
            policy: &self.policy,
            snapshot: &self.shared,
            local: &self.local,
            events: &self.events,
            worker: self.worker,
            is_in_effect: true,
        }
    }

    #[inline(always)]
    fn deciding(&mut self) -> (View<'_>, &mut Random) {
        let Shard { state, policy, shared, local, events, worker, random, .. } = self;
        (View { state, policy, snapshot: shared, local, events, worker: *worker, is_in_effect: true }, random)
    }

    /// What all shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The worker of this shard.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Counters of this worker.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// For what the caller counts (packets received, link-layer verdicts).
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Writes event records into `ring` from now on.
    pub fn set_events(&mut self, ring: Producer<Event>) {
        self.events.set_ring(ring);
    }

    /// Reports all live state to each further log that `opened` counts.
    pub fn follow_logs(&mut self, opened: Arc<LogsOpened>) {
        self.events.follow(opened);
    }

    /// Counters of the events.
    pub fn event_counters(&self) -> EventCounters {
        self.events.counters()
    }

    /// Records what is held back (suppressed refusals, gaps), because no packet follows.
    pub fn finish_events(&mut self, now: Instant) {
        self.events.finish(now);
    }

    /// The idle times in use, which port pressure may shorten, except for ports with their own.
    pub fn timeouts(&self) -> crate::settings::Timeouts {
        *self.policy.lifetimes.in_force()
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.state.mappings.bytes()
            + self.state.outbound.bytes()
            + self.state.sessions.bytes()
            + self.state.subscribers.bytes()
            + self.state.held_ports.bytes()
            + self.state.flows.bytes()
            + self.state.shared_ports.bytes()
    }

    /// Processes packets in order, in rounds of up to [`BURST_MAX`], and sets their `outcome` and
    /// `verdict`. Allocates nothing. Costs two cold cache lines for an established packet.
    pub fn process<S: Sink>(&mut self, now: Instant, burst: &mut [Packet<'_>], sink: &mut S) {
        for round in burst.chunks_mut(BURST_MAX) {
            self.process_round(now, round, sink);
        }
    }

    fn process_round<S: Sink>(&mut self, now: Instant, burst: &mut [Packet<'_>], sink: &mut S) {
        let mut scratch = self.scratch.take().unwrap_or_default();
        let mut tally = Tally::default();
        let clock = self.policy.timers.at(now);
        self.look_at(&mut scratch, burst);
        self.aim(&mut scratch, burst.len());
        if scratch.unsettled | scratch.shared != 0 && !self.state.flows.is_empty() {
            self.find_flows(&mut scratch, burst);
        }
        if scratch.further != 0 && scratch.further == scratch.unsettled {
            self.find_further(&mut scratch);
        }
        if scratch.unsettled != 0 {
            self.created.clear();
            self.find_subscribers(&mut scratch, burst);
            self.ask_rules(&mut scratch, burst);
            self.aim_ports(&mut scratch, burst);
        }
        for (i, packet) in burst.iter_mut().take(BURST_MAX).enumerate() {
            self.act(now, &clock, &scratch, i, packet, &mut tally, sink);
        }
        self.scratch = Some(scratch);
        for (way, verdict) in [Verdict::Outbound, Verdict::Inbound].into_iter().enumerate() {
            self.counters.verdicts[verdict.index()] += tally.packets[way];
            self.counters.bytes_forwarded[way] += tally.bytes[way];
        }
        self.counters.fragments_held = u64::from(self.fragments.held());
        self.events.publish();
    }

    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "the loop's own values; a struct of references would be stored and read back"
    )]
    fn act<S: Sink>(
        &mut self,
        now: Instant,
        clock: &SteadyClock,
        scratch: &Scratch,
        i: usize,
        packet: &mut Packet<'_>,
        tally: &mut Tally,
        sink: &mut S,
    ) {
        let kind = scratch.kind[i];
        let is_unsettled = scratch.unsettled >> i & 1 != 0;
        let (ingress, start) = (packet.meta.ingress, packet.start());
        if (kind.is_steady() | is_unsettled)
            && !self.is_long_way_only()
            && let Some(header) = packet.header_mut::<HEADERS>()
        {
            let length = be16::<2>(header);
            let (egress, verdict) = if scratch.flows >> i & 1 != 0 {
                let flow = scratch.flow[i];
                if kind.is_out() {
                    let realm = self.shared.realm_of(ingress);
                    (self.steady_flow_out(clock, header, kind, flow, realm), Verdict::Outbound)
                } else {
                    (self.steady_flow_in(clock, header, kind, flow), Verdict::Inbound)
                }
            } else if is_unsettled {
                (self.open_first_packet(now, header, scratch, i), Verdict::Outbound)
            } else if kind.is_out() {
                (
                    self.steady_out(clock, header, kind, scratch.record[i], self.shared.realm_of(ingress)),
                    Verdict::Outbound,
                )
            } else {
                (self.steady_in(clock, header, kind, scratch.record[i]), Verdict::Inbound)
            };
            if let Some(egress) = egress {
                #[cfg(test)]
                {
                    self.short_ways += 1;
                }
                let way = usize::from(!kind.is_out());
                tally.packets[way] += 1;
                tally.bytes[way] += u64::from(length);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Transmit { egress, start, length };
                return;
            }
        }
        if kind.is_foreign() {
            // Only fragments carry more than their headers to a hand-off.
            let (worker, record) = scratch.abroad(i);
            packet.verdict = None;
            packet.outcome =
                Outcome::HandOff { worker, meta: PacketMeta { record, stage: Stage::Steered, ..packet.meta } };
            return;
        }
        self.process_long(now, packet, &scratch.foresight(i), sink);
    }

    #[inline(always)]
    fn is_long_way_only(&self) -> bool {
        #[cfg(test)]
        return self.long_way_only;
        #[cfg(not(test))]
        false
    }

    #[inline(never)]
    fn process_long<S: Sink>(&mut self, now: Instant, packet: &mut Packet<'_>, foresight: &Foresight, sink: &mut S) {
        let fate = match &parse(packet.bytes()) {
            Ok(parsed) => {
                let at = Arrival { now, meta: packet.meta, parsed };
                self.decide(at, packet.bytes_mut(), foresight, sink)
            }
            Err(verdict) => Fate::Done(*verdict),
        };
        // A packet made by Natrix has no verdict.
        let is_own = packet.meta.stage.is_own();
        match fate {
            Fate::Forward { egress, length, .. } if is_own => {
                packet.verdict = None;
                packet.outcome = Outcome::Transmit { egress, start: packet.start(), length };
            }
            // To be handed off once more: its endpoint has a new owner, so nobody waits for it.
            Fate::Done(_) | Fate::HandOff { .. } if is_own => {
                packet.verdict = None;
                packet.outcome = Outcome::Done;
            }
            Fate::Forward { verdict, egress, length } => {
                self.counters.count(verdict);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Transmit { egress, start: packet.start(), length };
            }
            Fate::Done(verdict) => {
                self.counters.count(verdict);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Done;
            }
            Fate::HandOff { worker, meta } => {
                packet.verdict = None;
                // The record is only valid on this worker; what was made for a hairpin goes along.
                let is_hairpin = matches!(meta.stage, Stage::Hairpin | Stage::HairpinFragment | Stage::LogFull);
                let record = if is_hairpin { meta.record } else { 0 };
                packet.outcome = Outcome::HandOff { worker, meta: PacketMeta { record, ..meta } };
            }
            Fate::Held => {
                packet.verdict = None;
                packet.outcome = Outcome::Done;
            }
        }
    }

    #[inline]
    fn decide<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], foresight: &Foresight, sink: &mut S) -> Fate {
        let Arrival { meta, parsed, .. } = at;
        match meta.stage {
            Stage::Received | Stage::Steered | Stage::Balanced => match self.shared.side(meta.ingress) {
                Side::Inside => self.leaving(at, bytes, foresight, sink),
                Side::Outside => self.entering(at, bytes, sink),
            },
            Stage::HeldSyn => self.answer_held_syn(at, bytes, sink),
            Stage::LogFull => {
                let fate = self.refuse_for_log(at);
                self.after_hairpin(at, bytes, fate, sink)
            }
            Stage::TakeBack => {
                self.take_back(at.now, meta.record, parsed);
                Fate::Done(Verdict::HairpinRefused)
            }
            Stage::OwnError => self.inbound_error(at, bytes, packet::inbound::Via::Hairpin, sink),
            Stage::Hairpin => match parsed.class {
                Class::IcmpError => self.inbound_error(at, bytes, packet::inbound::Via::Hairpin, sink),
                _ => {
                    let fate = self.inbound_flow(at, bytes, packet::inbound::Via::Hairpin, sink);
                    self.after_hairpin(at, bytes, fate, sink)
                }
            },
            Stage::FragmentResolved | Stage::HairpinFragment => {
                let resolved = packet::fragments::with_ports(parsed, meta.ports);
                let via = if meta.stage == Stage::HairpinFragment {
                    packet::inbound::Via::Hairpin
                } else {
                    packet::inbound::Via::Outside
                };
                let at = Arrival { parsed: &resolved, ..at };
                let fate = self.inbound_flow(at, bytes, via, sink);
                if via == packet::inbound::Via::Hairpin { self.after_hairpin(at, bytes, fate, sink) } else { fate }
            }
        }
    }

    fn deliver<S: Sink>(&mut self, fate: Fate, bytes: &[u8], sink: &mut S) {
        match fate {
            Fate::Forward { verdict, egress, length } => {
                let sent = sink.transmit(egress, &[bytes.get(..usize::from(length)).unwrap_or(bytes)]);
                self.counters.count(if sent { verdict } else { Verdict::NoBuffer });
            }
            Fate::HandOff { worker, meta } => {
                if sink.hand_off(worker, meta, &[bytes]) {
                    self.counters.handed_off += 1;
                } else {
                    self.counters.count(Verdict::HandOffRingFull);
                }
            }
            Fate::Done(verdict) => self.counters.count(verdict),
            Fate::Held => {}
        }
    }
}

impl Shared {
    /// The worker a subscriber belongs to. The same on every shard, in every run.
    #[inline]
    pub fn worker_of_subscriber(&self, address: u32) -> WorkerId {
        self.spread(u64::from(address))
    }

    /// The worker for what no mapping owns (fragments without ports, unsolicited SYNs): any, if
    /// always the same.
    #[inline]
    pub(crate) fn worker_of_stray(&self, a: u32, b: u32, c: u32) -> WorkerId {
        self.spread((u64::from(a) << 32 | u64::from(b)) ^ u64::from(c).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[inline]
    fn spread(&self, key: u64) -> WorkerId {
        let workers = self.workers() as u64;
        if workers == 1 {
            return WorkerId(0);
        }
        // Finaliser of a 64-bit mixer: spreads neighbouring addresses over all workers.
        let mixed = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        WorkerId(((u128::from(mixed) * u128::from(workers)) >> 64) as u8)
    }
}
