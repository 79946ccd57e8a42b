//! One worker's share of the engine: its mappings, sessions and subscribers, and the way of a packet through them.
//!
//! A burst is processed in passes, so that memory is waited for while other packets are worked on: read the headers
//! and prefetch the table line; read the table line and prefetch the mapping record; for first packets of a flow
//! prefetch what a new mapping needs; decide, rewrite, count. All but the last only prefetch; the last alone decides.
//!
//! The paths by frequency: packets of established sessions (`steady`) touch two cold lines; first packets of
//! a flow (`outbound`, `inbound`, `state`) add the port table, the subscriber and the free list; all else
//! (fragments, ICMP errors, packets to Natrix) is rare and kept out of line.

use std::sync::Arc;

use mem::ring::Producer;

use crate::addresses::Local;
use crate::addresses::LocalAddresses;
use crate::event::Event;
use crate::event::EventCounters;
use crate::event::EventLog;
use crate::event::LogsOpened;
use crate::flow::FlowStore;
use crate::fragments::FragmentTracker;
use crate::held_ports::HeldPorts;
use crate::identification::IdentificationSource;
use crate::mapping::InternalKey;
use crate::mapping::MappingStore;
use crate::packet::BURST_MAX;
use crate::packet::Egress;
use crate::packet::Outcome;
use crate::packet::Packet;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Class;
use crate::parse::HEADERS;
use crate::parse::Parsed;
use crate::parse::be16;
use crate::parse::parse;
use crate::ports::PortAim;
use crate::random::KeyedHash;
use crate::random::Random;
use crate::rate_limit::RateLimit;
use crate::session::SessionStore;
use crate::shared::BuildError;
use crate::shared::Shared;
use crate::shared_ports::SharedPorts;
use crate::subscriber::SubscriberStore;
use crate::table::BucketTable;
use crate::time::Instant;
use crate::timers::Timers;
use crate::turned_away::TurnedAway;
use crate::types::Facing;
use crate::types::Side;
use crate::types::WorkerId;
use crate::unsolicited_syn::SynStore;
use crate::verdict::Counters;
use crate::verdict::Verdict;
use steady::Looks;
use steady::SteadyClock;
use steady::SteadyTimers;
use steady::Tally;

mod address_choice;
mod admission;
mod adopt;
mod balanced;
mod block_sweep;
pub(crate) mod census;
mod dependent;
mod dormant;
mod entitled;
mod errors;
mod explain;
mod flow_steady;
mod fragment_path;
mod guarantee;
mod hairpin;
mod inbound;
mod lapse;
mod local;
mod next_mapping;
mod notes;
mod opening;
mod outbound;
mod own_ports;
mod penalty;
mod port_choice;
mod port_rest;
mod port_sharing;
mod retell;
mod rules;
mod shorten;
mod show;
mod stamps;
mod state;
mod steady;
mod sweep;
#[cfg(test)]
mod tests;
mod watch;

pub use adopt::Successor;
pub use census::Affected;
pub use census::Census;
pub use census::Fates;
pub use census::Held;
pub use census::Named;
pub use census::Onward;
pub use census::PoolCensus;
pub use census::Prospect;
pub use next_mapping::Denial;

/// Largest IP packet the shard can hold a copy of (held fragments, errors on their way through a hairpin).
const SCRATCH_BYTES: usize = crate::fragments::SLOT_BYTES_MAX;

/// One worker's share of the engine. Not shared between threads; hand packets over instead.
pub struct Shard {
    shared: Arc<Shared>,
    /// Natrix's own addresses: those of `shared`, and those of the configuration that is about to follow.
    local: Arc<LocalAddresses>,
    worker: WorkerId,
    mappings: MappingStore,
    /// Internal endpoint → mapping.
    outbound: BucketTable,
    hash: KeyedHash,
    sessions: SessionStore,
    /// Endpoint-dependent translations.
    flows: FlowStore,
    /// The external ports they share.
    shared_ports: SharedPorts,
    subscribers: SubscriberStore,
    /// Those that were refused and have no record.
    turned_away: TurnedAway,
    fragments: FragmentTracker,
    syns: SynStore,
    held_ports: HeldPorts,
    icmp_limit: RateLimit,
    identifications: IdentificationSource,
    random: Random,
    events: EventLog,
    counters: Counters,
    sweep: sweep::Sweep,
    shortening: shorten::Shortening,
    block_sweep: block_sweep::BlockSweep,
    offenders: penalty::Offenders,
    /// Where the walk over what subscribers are guaranteed is.
    guarantee_hand: u32,
    entitled_walk: entitled::EntitledWalk,
    /// Where the walk over ports of forwards that are gone is.
    leftovers_hand: usize,
    /// The idle times in force.
    lifetimes: Timers,
    /// Those before the last change of settings, to tell since when a session is idle.
    former: shorten::Former,
    watch: watch::Watch,
    timers: SteadyTimers,
    stamps: stamps::Stamps,
    /// Of the settings, as far as classes of subscribers go: see `admission`.
    class_epoch: u16,
    /// The next subscriber that a change of the settings looks at: see `adopt`.
    settled_hand: u32,
    /// Mappings that are still to be looked at since the settings changed: see `notes`.
    unrecorded: u32,
    /// What is still to be told to a log that was opened: see `retell`.
    retelling: retell::Retelling,
    /// Never take the short way.
    #[cfg(test)]
    long_way_only: bool,
    /// Packets that took the short way.
    #[cfg(test)]
    short_ways: u64,
    /// Room for what the passes find out. None while a burst is being processed.
    looks: Option<Box<Looks>>,
    /// Room for one packet that is processed away from its buffer. None while it is in use.
    scratch: Option<Box<[u8; SCRATCH_BYTES]>>,
}

/// A packet in pass 3: when it came, where it is on its way, and what its headers say.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    now: Instant,
    meta: PacketMeta,
    parsed: &'a Parsed,
}

/// How the processing of one packet ended.
enum Fate {
    /// The packet leaves in its own buffer.
    Forward { verdict: Verdict, egress: Egress, length: u16 },
    /// It belongs to another worker.
    HandOff { worker: WorkerId, meta: PacketMeta },
    /// It ended here, or has left by the sink already.
    Done(Verdict),
    /// A copy waits for the first fragment of its datagram.
    Held,
}

/// What the earlier passes found out for a packet from inside, if it opens a mapping. All of it is checked again.
#[derive(Clone, Copy)]
struct Foresight {
    /// Hash of the internal endpoint.
    hash: u64,
    /// Record of the subscriber; 0 when it is not known.
    subscriber: u32,
    /// Where to look for a port of the subscriber's address.
    aim: Option<PortAim>,
}

impl Foresight {
    /// Nothing but the hash.
    const fn of(hash: u64) -> Foresight {
        Foresight { hash, subscriber: 0, aim: None }
    }
}

impl Shard {
    /// Builds the shard of `worker` and takes the memory of its tables.
    ///
    /// `secret` seeds hashing and port choice: 256 random bits that outsiders must not know, different
    /// for each worker and each start (RFC 6056 §3.4).
    ///
    /// # Errors
    /// [`BuildError`] when memory is short; nothing is kept then.
    pub fn new(shared: Arc<Shared>, worker: WorkerId, secret: [u64; 4]) -> Result<Shard, BuildError> {
        let limits = shared.settings().limits;
        let memory = |table| move |source| BuildError::Memory { table, source };
        let timeouts = shared.settings().timeouts;
        let policy = shared.settings().icmp;
        let mtu_max = shared.settings().interfaces.iter().map(|interface| interface.mtu).max().unwrap_or(0);
        let hash = KeyedHash::new(secret);
        // Each user of randomness gets a key of its own from the one secret.
        let key = |purpose: u64| hash.hash(purpose, u64::from(worker.0));
        let hash_for = |purpose: u64| KeyedHash::new([0, 1, 2, 3].map(|word| key(purpose << 8 | word)));
        if let Some(commons) = &shared.commons {
            commons.claims.seed(hash_for(11));
        }
        Ok(Shard {
            mappings: MappingStore::new(limits.mappings_max).map_err(memory("mappings"))?,
            outbound: BucketTable::with_capacity(limits.mappings_max as usize).map_err(memory("outbound"))?,
            sessions: SessionStore::new(limits.extra_sessions_max, hash).map_err(memory("sessions"))?,
            flows: FlowStore::new(limits.flows_max, hash).map_err(memory("flows"))?,
            shared_ports: SharedPorts::new(limits.flows_max, shared.ports.places(), shared.workers(), hash)
                .map_err(memory("shared ports"))?,
            subscribers: SubscriberStore::new(limits.subscribers_max, hash).map_err(memory("subscribers"))?,
            turned_away: TurnedAway::new(hash_for(10)),
            fragments: FragmentTracker::new(&limits, timeouts.fragment, usize::from(mtu_max), hash_for(1)),
            syns: SynStore::new(limits.unsolicited_syns_max, timeouts.unsolicited_syn, hash_for(2)),
            held_ports: HeldPorts::new(limits.held_ports_max).map_err(memory("held ports"))?,
            icmp_limit: RateLimit::new(&policy, hash_for(3)),
            identifications: IdentificationSource::new(worker, shared.workers(), hash_for(4)),
            random: Random::new([key(5), key(6), key(7), key(8)]),
            events: EventLog::new(&shared.settings().events, hash_for(9)),
            hash,
            counters: Counters::default(),
            sweep: sweep::Sweep::default(),
            shortening: shorten::Shortening::default(),
            block_sweep: block_sweep::BlockSweep::default(),
            offenders: penalty::Offenders::default(),
            guarantee_hand: 1,
            entitled_walk: entitled::EntitledWalk::default(),
            leftovers_hand: 0,
            lifetimes: Timers::new(shared.settings()),
            former: shorten::Former::new(Timers::new(shared.settings())),
            watch: watch::Watch::new(shared.settings()),
            class_epoch: admission::FIRST_EPOCH,
            stamps: stamps::Stamps::new(shared.filters.stamp()),
            settled_hand: 1,
            unrecorded: 0,
            retelling: retell::Retelling::default(),
            timers: SteadyTimers::new(&timeouts, shared.settings().inbound_refresh),
            #[cfg(test)]
            long_way_only: false,
            #[cfg(test)]
            short_ways: 0,
            looks: Some(Box::default()),
            scratch: Some(Box::new([0; SCRATCH_BYTES])),
            local: Arc::clone(&shared.local),
            shared,
            worker,
        })
    }

    /// What all shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whose shard this is.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Counters of this worker.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counters of this worker, for what its caller counts (packets received, link-layer verdicts).
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Leaves records of what happens in `ring` from now on.
    pub fn set_events(&mut self, ring: Producer<Event>) {
        self.events.set_ring(ring);
    }

    /// Tells each further log that is counted there all that lives.
    pub fn follow_logs(&mut self, opened: Arc<LogsOpened>) {
        self.events.follow(opened);
    }

    /// What became of the events so far.
    pub fn event_counters(&self) -> EventCounters {
        self.events.counters()
    }

    /// Records what is held back (refusals that are told together, gaps), as no packet follows.
    pub fn finish_events(&mut self, now: Instant) {
        self.events.finish(now);
    }

    /// The idle times in force, without those of ports that have their own: what the settings say, or less under pressure.
    pub fn timeouts(&self) -> crate::settings::Timeouts {
        *self.lifetimes.in_force()
    }

    /// Bytes of all tables of this shard.
    pub fn bytes(&self) -> usize {
        self.mappings.bytes()
            + self.outbound.bytes()
            + self.sessions.bytes()
            + self.subscribers.bytes()
            + self.held_ports.bytes()
            + self.flows.bytes()
            + self.shared_ports.bytes()
    }

    /// Processes up to [`BURST_MAX`] packets in order; each packet's `outcome` and `verdict` say what became of it.
    ///
    /// Allocates nothing. Costs two cold cache lines for an established packet.
    ///
    /// Packets beyond [`BURST_MAX`] are processed in further rounds.
    pub fn process<S: Sink>(&mut self, now: Instant, burst: &mut [Packet<'_>], sink: &mut S) {
        for round in burst.chunks_mut(BURST_MAX) {
            self.process_round(now, round, sink);
        }
    }

    fn process_round<S: Sink>(&mut self, now: Instant, burst: &mut [Packet<'_>], sink: &mut S) {
        let mut looks = self.looks.take().unwrap_or_default();
        let mut tally = Tally::default();
        let clock = self.timers.at(now);
        self.look_at(&mut looks, burst);
        self.aim(&mut looks, burst.len());
        if looks.unsettled | looks.shared != 0 && !self.flows.is_empty() {
            self.find_flows(&mut looks, burst);
        }
        if looks.further != 0 && looks.further == looks.unsettled {
            // Most of them have a mapping, only not in its home bucket.
            self.find_further(&mut looks);
        }
        if looks.unsettled != 0 {
            self.find_subscribers(&mut looks, burst);
            self.ask_rules(&mut looks, burst);
            self.aim_ports(&mut looks, burst);
        }
        for (i, packet) in burst.iter_mut().take(BURST_MAX).enumerate() {
            self.act(now, &clock, &looks, i, packet, &mut tally, sink);
        }
        self.looks = Some(looks);
        for (way, verdict) in [Verdict::Outbound, Verdict::Inbound].into_iter().enumerate() {
            self.counters.verdicts[verdict.index()] += tally.packets[way];
            self.counters.bytes_forwarded[way] += tally.bytes[way];
        }
        self.counters.fragments_held = u64::from(self.fragments.held());
        self.events.publish();
    }

    /// The last pass: decides, rewrites, counts.
    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "the loop's own values; a struct of references would be stored and read back"
    )]
    fn act<S: Sink>(
        &mut self,
        now: Instant,
        clock: &SteadyClock,
        looks: &Looks,
        i: usize,
        packet: &mut Packet<'_>,
        tally: &mut Tally,
        sink: &mut S,
    ) {
        let kind = looks.kind[i];
        let is_unsettled = looks.unsettled >> i & 1 != 0;
        if (kind.is_steady() | is_unsettled)
            && !self.is_long_way_only()
            && let Some(header) = packet.bytes.first_chunk_mut::<HEADERS>()
        {
            let length = be16::<2>(header);
            let (egress, verdict) = if looks.flows >> i & 1 != 0 {
                let flow = looks.flow[i];
                if kind.is_out() {
                    let realm = self.shared.realm_of(packet.meta.ingress);
                    (self.steady_flow_out(clock, header, kind, flow, realm), Verdict::Outbound)
                } else {
                    (self.steady_flow_in(clock, header, kind, flow), Verdict::Inbound)
                }
            } else if is_unsettled {
                (self.open_usual(now, header, looks, i), Verdict::Outbound)
            } else if kind.is_out() {
                (
                    self.steady_out(clock, header, kind, looks.record[i], self.shared.realm_of(packet.meta.ingress)),
                    Verdict::Outbound,
                )
            } else {
                (self.steady_in(clock, header, kind, looks.record[i]), Verdict::Inbound)
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
                packet.outcome = Outcome::Transmit { egress, length };
                return;
            }
        }
        if kind.is_foreign() {
            // What hand-off needs to know beyond its headers only fragments carry.
            let (worker, record) = looks.abroad(i);
            packet.verdict = None;
            packet.outcome =
                Outcome::HandOff { worker, meta: PacketMeta { record, stage: Stage::Steered, ..packet.meta } };
            return;
        }
        self.process_long(now, packet, &looks.foresight(i), sink);
    }

    /// For the test that compares both ways.
    #[inline(always)]
    fn is_long_way_only(&self) -> bool {
        #[cfg(test)]
        return self.long_way_only;
        #[cfg(not(test))]
        false
    }

    /// The last pass of a packet that is not as usual.
    #[inline(never)]
    fn process_long<S: Sink>(&mut self, now: Instant, packet: &mut Packet<'_>, foresight: &Foresight, sink: &mut S) {
        let fate = match &parse(packet.bytes) {
            Ok(parsed) => {
                let at = Arrival { now, meta: packet.meta, parsed };
                self.decide(at, packet.bytes, foresight, sink)
            }
            Err(verdict) => Fate::Done(*verdict),
        };
        // What Natrix itself made is no packet received, and has no verdict.
        let is_own = packet.meta.stage.is_own();
        match fate {
            Fate::Forward { egress, length, .. } if is_own => {
                packet.verdict = None;
                packet.outcome = Outcome::Transmit { egress, length };
            }
            // Handed off once more: the endpoint it is about has another owner since, so nobody waits for it.
            Fate::Done(_) | Fate::HandOff { .. } if is_own => {
                packet.verdict = None;
                packet.outcome = Outcome::Done;
            }
            Fate::Forward { verdict, egress, length } => {
                self.counters.count(verdict);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Transmit { egress, length };
            }
            Fate::Done(verdict) => {
                self.counters.count(verdict);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Done;
            }
            Fate::HandOff { worker, meta } => {
                packet.verdict = None;
                // A record this worker was told of is not the next one's; what was made for a hairpinned packet goes along.
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

    /// What becomes of one packet, by where it is on its way.
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
            Stage::OwnError => self.inbound_error(at, bytes, inbound::Via::Hairpin, sink),
            Stage::Hairpin => match parsed.class {
                Class::IcmpError => self.inbound_error(at, bytes, inbound::Via::Hairpin, sink),
                _ => {
                    let fate = self.inbound_flow(at, bytes, inbound::Via::Hairpin, sink);
                    self.after_hairpin(at, bytes, fate, sink)
                }
            },
            Stage::FragmentResolved | Stage::HairpinFragment => {
                let resolved = fragment_path::with_ports(parsed, meta.ports);
                let via =
                    if meta.stage == Stage::HairpinFragment { inbound::Via::Hairpin } else { inbound::Via::Outside };
                let at = Arrival { parsed: &resolved, ..at };
                let fate = self.inbound_flow(at, bytes, via, sink);
                if via == inbound::Via::Hairpin { self.after_hairpin(at, bytes, fate, sink) } else { fate }
            }
        }
    }

    /// What an address is to Natrix as a packet from `from` sees it.
    #[inline]
    fn local_to(&self, from: Facing, address: u32) -> Option<Local> {
        self.shared.as_seen(from, address, self.local.lookup(address)?)
    }

    #[inline]
    fn hash_of(&self, key: &InternalKey) -> u64 {
        self.hash
            .hash(u64::from(key.address) << 16 | u64::from(key.port), u64::from(key.realm.0) << 8 | key.protocol as u64)
    }

    /// Carries out the fate of a packet that is not in a buffer of the burst but in `bytes`.
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

    /// The worker that looks after things that no mapping owns (fragments without ports, unsolicited
    /// SYNs): any will do, as long as all packets of one thing go to the same.
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
        // Finaliser of a 64-bit mixer: neighbouring addresses spread over all workers.
        let mixed = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        WorkerId(((u128::from(mixed) * u128::from(workers)) >> 64) as u8)
    }
}
