//! Processes one packet: asks [`crate::steps`], commits, rewrites.

pub(in crate::shard) mod activation;
pub(in crate::shard) mod endpoint_dependent;
pub(in crate::shard) mod errors;
pub(in crate::shard) mod fragments;
pub(in crate::shard) mod gateways;
pub(in crate::shard) mod hairpin;
mod held_syns;
pub(in crate::shard) mod inbound;
pub(in crate::shard) mod local;
pub(in crate::shard) mod outbound;
pub(in crate::shard) mod port_control;
pub(in crate::shard) mod portless;
pub(in crate::shard) mod targets;
pub(in crate::shard) mod undelivered;

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
use crate::headers::parse::be16;
use crate::headers::parse::parse;
use crate::headers::rewrite::End;
use crate::headers::rewrite::rewrite_headers;
use crate::policy::rate_limit::RateLimit;
use crate::policy::rate_limit::Rates;
use crate::policy::steady_timers::SteadyClock;
use crate::shard::burst::established::Kind;
use crate::shard::burst::established::Scratch;
use crate::shard::burst::established::Tally;
use crate::state::fragments::FragmentTracker;
use crate::steps::opening::Hints;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Forwarded;
use crate::verdict::Verdict;

use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::PACKET_BUFFER_BYTES;
use crate::shard::control_session::Changed;
use crate::shard::edge::Edge;
use crate::shard::edge::Sent;
use crate::shard::edge::usual::write_pending;
use crate::shard::edge::usual::write_unsettled;
use crate::shard::ledger::Keys;
use crate::shard::ledger::Ledger;
use crate::snapshot::shared::BuildError;

const DATAGRAMS_PER_CALL_MAX: usize = 16;

/// Port-control requests. A client's burst is a quarter of its rate: more than a restarted client
/// with many mappings asks for.
const REQUESTS: Rates = Rates { total: 20_000, each: 400 };

/// True for a request without options, which is limited before it takes room in a ring.
fn may_be_request(packet: &Packet<'_>) -> bool {
    packet.chunk::<HEADERS>(0).is_some_and(|header| header[9] == 17 && be16::<22>(header) == pcp::SERVER_PORT)
}

pub(in crate::shard) struct PacketPath {
    pub(in crate::shard) ledger: Ledger,
    pub(in crate::shard) fragments: FragmentTracker,
    pub(in crate::shard) identifications: IdentificationSource,
    /// `None` while in use, and until a gateway is enabled.
    pub(in crate::shard) changed: Option<Box<Changed>>,
    /// Limits requests to the port-control server.
    pub(in crate::shard) requests: RateLimit,
    pub(in crate::shard) unasked: port_control::Unasked,
    pub(in crate::shard) edge: Edge,
    /// `None` while in use.
    packet_buffer: Option<Box<[u8; PACKET_BUFFER_BYTES]>>,
    #[cfg(test)]
    pub(in crate::shard) long_way_only: bool,
    #[cfg(test)]
    pub(in crate::shard) short_ways: u64,
}

impl PacketPath {
    pub(in crate::shard) fn new(ledger: Ledger, keys: &Keys) -> Result<PacketPath, BuildError> {
        let settings = ledger.shared.settings();
        let memory = |source| BuildError::Memory { table: "buffers of gateways", source };
        let changed = if settings.gateways.is_empty() { None } else { Some(Changed::new().map_err(memory)?) };
        let mtu_max = settings.interfaces.iter().map(|interface| usize::from(interface.mtu)).max().unwrap_or(0);
        let timeout = settings.timeouts.fragment;
        Ok(PacketPath {
            fragments: FragmentTracker::new(&settings.limits, timeout, mtu_max, keys.hash_for(1)),
            identifications: IdentificationSource::new(ledger.worker, ledger.shared.workers(), keys.hash_for(4)),
            requests: RateLimit::with_rates(REQUESTS, keys.hash_for(13)),
            unasked: port_control::Unasked::default(),
            changed,
            edge: Edge::new([15, 16].map(|purpose| keys.hash_for(purpose)), settings),
            packet_buffer: Some(Box::new([0; PACKET_BUFFER_BYTES])),
            #[cfg(test)]
            long_way_only: false,
            #[cfg(test)]
            short_ways: 0,
            ledger,
        })
    }

    #[inline(always)]
    pub(in crate::shard) fn view(&self) -> View<'_> {
        self.ledger.view()
    }

    /// Drops fragments and answers SYNs held too long.
    pub(in crate::shard) fn maintain(&mut self, now: Instant, sink: &mut dyn Sink) {
        let counters = &mut self.ledger.counters;
        self.fragments.expire(now, DATAGRAMS_PER_CALL_MAX, |held| {
            counters.verdicts[Verdict::FragmentTimeout.index()] += u64::from(held);
        });
        self.maintain_edge(now, sink);
        self.ledger.counters.fragments_held = u64::from(self.fragments.held() + self.edge.held());
        self.answer_syns(now, sink);
        self.send_unasked(now, sink);
    }

    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "the loop's own values; a struct of references would be stored and read back"
    )]
    fn act<const HOSTS: bool>(
        &mut self,
        now: Instant,
        clock: &SteadyClock,
        scratch: &mut Scratch,
        i: usize,
        packet: &mut Packet<'_>,
        tally: &mut Tally,
        sink: &mut dyn Sink,
    ) {
        let kind = scratch.kind[i];
        let is_unsettled = scratch.unsettled >> i & 1 != 0;
        let (ingress, start) = (packet.meta.ingress, packet.start());
        if (kind.is_steady() | is_unsettled)
            && !self.is_long_way_only()
            && let Some(header) = packet.header_mut::<HEADERS>()
        {
            let is_pending = HOSTS && scratch.hosts.is_pending(i);
            let length = if is_pending { scratch.hosts.length(i) } else { be16::<2>(header) };
            let (egress, verdict) = if is_pending {
                (self.steady_pending(clock, header, i, scratch), Verdict::Outbound)
            } else if scratch.flows >> i & 1 != 0 {
                let flow = scratch.flow[i];
                if kind.is_out() {
                    let realm = self.ledger.shared.realm_of(ingress);
                    (self.steady_flow_out(clock, header, kind, flow, realm), Verdict::Outbound)
                } else {
                    let egress = self.steady_flow_in(clock, header, kind, flow);
                    if HOSTS && egress.is_some_and(|egress| self.leads_to_host(egress)) {
                        scratch.hosts.add_further(i);
                    }
                    (egress, Verdict::Inbound)
                }
            } else if is_unsettled {
                (self.open_first_packet(now, header, scratch, i), Verdict::Outbound)
            } else if kind.is_out() {
                (
                    self.steady_out(clock, header, kind, scratch.record[i], self.ledger.shared.realm_of(ingress)),
                    Verdict::Outbound,
                )
            } else if HOSTS {
                (self.steady_in_or_to_host(clock, header, kind, i, scratch), Verdict::Inbound)
            } else {
                (self.steady_in(clock, header, kind, scratch.record[i]), Verdict::Inbound)
            };
            if let Some(egress) = egress {
                #[cfg(test)]
                {
                    self.short_ways += 1;
                }
                tally.packets[kind.tally()] += 1;
                tally.bytes[kind.tally()] += u64::from(length);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Transmit { egress, start, length };
                return;
            }
            if is_pending {
                write_pending(&mut scratch.hosts, packet, i);
            }
        }
        if kind.is_foreign() && !(kind.is_out() && may_be_request(packet)) {
            // Only fragments are handed off with more than their headers.
            let (worker, record) = scratch.abroad(i);
            packet.verdict = None;
            packet.outcome =
                Outcome::HandOff { worker, meta: PacketMeta { record, stage: Stage::Steered, ..packet.meta } };
            return;
        }
        self.process_long(now, packet, &scratch.hints(i), sink);
        if HOSTS
            && let Outcome::Transmit { egress, .. } = packet.outcome
            && self.leads_to_host(egress)
        {
            scratch.hosts.add_further(i);
        }
    }

    /// [`PacketPath::steady_in`], but leaves an IPv6 host's header as it is.
    #[inline(always)]
    fn steady_in_or_to_host(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        i: usize,
        scratch: &mut Scratch,
    ) -> Option<Egress> {
        let (egress, (address, port)) = self.refresh_in(clock, header, kind, scratch.record[i])?;
        if self.leads_to_host(egress) {
            scratch.hosts.postpone(i, (address, port));
        } else {
            rewrite_headers(header, kind.is_tcp(), End::Destination, address, port, None);
        }
        Some(egress)
    }

    #[inline(always)]
    pub(in crate::shard) fn is_long_way_only(&self) -> bool {
        #[cfg(test)]
        return self.long_way_only;
        #[cfg(not(test))]
        false
    }

    #[inline(never)]
    pub(in crate::shard) fn process_long(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        hints: &Hints,
        sink: &mut dyn Sink,
    ) {
        let fate = match &parse(packet.bytes()) {
            Ok(parsed) => {
                let at = Arrival { now, meta: packet.meta, parsed };
                self.dispatch(at, packet.bytes_mut(), hints, sink)
            }
            Err(verdict) => self.refuse_unread(now, packet.meta, packet.bytes(), *verdict, sink),
        };
        // A packet made by Natrix has no verdict.
        let is_own = packet.meta.stage.is_own();
        match fate {
            Fate::Forward { verdict, egress, length } if is_own => {
                self.uncount_unsent(verdict, packet.bytes().get(..usize::from(length)).unwrap_or_default());
                packet.verdict = None;
                packet.outcome = Outcome::Transmit { egress, start: packet.start(), length };
            }
            // No sender waits for it: its endpoint has a new owner.
            Fate::Done(_) | Fate::HandOff { .. } if is_own => {
                if let Fate::Done(verdict) = fate {
                    // Sent in fragments, or not at all.
                    self.uncount_unsent(verdict, packet.bytes());
                }
                packet.verdict = None;
                packet.outcome = Outcome::Done;
            }
            Fate::Forward { verdict, egress, length } => {
                self.ledger.counters.count(verdict);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Transmit { egress, start: packet.start(), length };
            }
            Fate::Done(verdict) => {
                self.ledger.counters.count(verdict);
                packet.verdict = Some(verdict);
                packet.outcome = Outcome::Done;
            }
            Fate::HandOff { worker, meta } => {
                packet.verdict = None;
                // A record is valid on one worker only, but what was created for a hairpin is
                // passed along.
                let is_hairpin = matches!(meta.stage, Stage::Hairpin | Stage::HairpinFragment | Stage::LogFull);
                let record = if is_hairpin || meta.stage == Stage::Vacate { meta.record } else { 0 };
                packet.outcome = Outcome::HandOff { worker, meta: PacketMeta { record, ..meta } };
            }
            Fate::Held => {
                packet.verdict = None;
                packet.outcome = Outcome::Done;
            }
        }
    }

    #[inline]
    fn dispatch(&mut self, at: Arrival<'_>, bytes: &mut [u8], hints: &Hints, sink: &mut dyn Sink) -> Fate {
        let Arrival { meta, parsed, .. } = at;
        match meta.stage {
            Stage::Received | Stage::Steered | Stage::Balanced => match self.ledger.shared.side(meta.ingress) {
                Side::Inside => self.leaving(at, bytes, hints, sink),
                Side::Outside => self.entering(at, bytes, sink),
            },
            Stage::PortControl => self.serve_port_control(at, bytes, sink),
            Stage::HeldSyn => self.answer_held_syn(at, bytes, sink),
            Stage::Vacate => self.vacate_for(at),
            Stage::Vacated => self.outbound_flow(at, bytes, hints, None, sink),
            Stage::LogFull => {
                let fate = self.refuse_for_log(at);
                self.after_hairpin(at, bytes, fate, sink)
            }
            Stage::TakeBack => {
                self.take_back(at.now, meta.record, parsed);
                Fate::Done(Verdict::HairpinRefused)
            }
            Stage::OwnError => self.inbound_error(at, bytes, inbound::Via::Hairpin, sink),
            Stage::Undelivered => self.continue_undelivered(at, bytes, sink),
            Stage::Hairpin => match parsed.class {
                Class::IcmpError => self.inbound_error(at, bytes, inbound::Via::Hairpin, sink),
                _ => {
                    let fate = self.inbound_flow(at, bytes, inbound::Via::Hairpin, sink);
                    self.after_hairpin(at, bytes, fate, sink)
                }
            },
            Stage::FragmentResolved | Stage::HairpinFragment => {
                let resolved = fragments::with_ports(parsed, meta.ports);
                let via =
                    if meta.stage == Stage::HairpinFragment { inbound::Via::Hairpin } else { inbound::Via::Outside };
                let at = Arrival { parsed: &resolved, ..at };
                let fate = self.inbound_flow(at, bytes, via, sink);
                if via == inbound::Via::Hairpin { self.after_hairpin(at, bytes, fate, sink) } else { fate }
            }
        }
    }

    /// Takes back what a packet has counted, except its verdict: it cannot be sent, or Natrix made
    /// it.
    #[cold]
    pub(in crate::shard) fn uncount_unsent(&mut self, verdict: Verdict, packet: &[u8]) {
        if let Some(forwarded) = Forwarded::of(verdict, packet) {
            self.ledger.counters.uncount_forwarded(&forwarded);
        }
    }

    pub(in crate::shard) fn deliver(&mut self, fate: Fate, bytes: &[u8], sink: &mut dyn Sink) {
        match fate {
            Fate::Forward { verdict, egress, length } => {
                let packet = bytes.get(..usize::from(length)).unwrap_or(bytes);
                match self.emit(egress, &[packet], sink) {
                    Ok(Sent::Left) => {
                        self.count_grown(egress, verdict);
                        self.ledger.counters.count(verdict);
                    }
                    Ok(Sent::Kept) => {}
                    Err(refused) => {
                        self.uncount_unsent(verdict, packet);
                        self.ledger.counters.count(refused);
                    }
                }
            }
            Fate::HandOff { worker, meta } => {
                if sink.hand_off(worker, meta, &[bytes]) {
                    self.ledger.counters.handed_off += 1;
                } else {
                    self.ledger.counters.count(Verdict::HandOffRingFull);
                }
            }
            Fate::Done(verdict) => self.ledger.counters.count(verdict),
            Fate::Held => {}
        }
    }

    /// `burst`: at most [`BURST_MAX`] packets.
    pub(in crate::shard) fn process(
        &mut self,
        now: Instant,
        burst: &mut [Packet<'_>],
        scratch: &mut Scratch,
        sink: &mut dyn Sink,
    ) {
        self.ledger.follow_routes();
        if self.ledger.shared.transition.is_off() {
            self.pass::<false>(now, burst, scratch, sink);
        } else {
            self.pass::<true>(now, burst, scratch, sink);
        }
    }

    /// `HOSTS`: there may be IPv6 hosts.
    #[inline(always)]
    fn pass<const HOSTS: bool>(
        &mut self,
        now: Instant,
        burst: &mut [Packet<'_>],
        scratch: &mut Scratch,
        sink: &mut dyn Sink,
    ) {
        let finished = if HOSTS { self.arrive(now, burst, scratch, sink) } else { 0 };
        let mut tally = Tally::default();
        let clock = self.ledger.policy.timers.at(now);
        self.look_at::<HOSTS>(scratch, burst);
        self.aim(scratch, burst.len());
        if HOSTS && scratch.unsettled != 0 {
            write_unsettled(scratch, burst);
        }
        if scratch.unsettled | scratch.shared != 0 && !self.ledger.state.flows.is_empty() {
            self.find_flows(scratch, burst);
        }
        if scratch.further != 0 && scratch.further == scratch.unsettled {
            self.find_further(scratch);
        }
        if scratch.unsettled != 0 {
            self.ledger.created.clear();
            self.find_subscribers(scratch, burst);
            self.ask_rules(scratch, burst);
            self.aim_ports(scratch, burst);
        }
        for (i, packet) in burst.iter_mut().take(BURST_MAX).enumerate() {
            if finished >> i & 1 == 0 {
                self.act::<HOSTS>(now, &clock, scratch, i, packet, &mut tally, sink);
            }
        }
        let counters = &mut self.ledger.counters;
        for (way, verdict) in [Verdict::Outbound, Verdict::Inbound].into_iter().enumerate() {
            let (udp, tcp) = (way, way + 2);
            counters.verdicts[verdict.index()] += tally.packets[udp] + tally.packets[tcp];
            counters.bytes_forwarded[way] += tally.bytes[udp] + tally.bytes[tcp];
            counters.translated[Protocol::Udp.index()] += tally.packets[udp];
            counters.translated[Protocol::Tcp.index()] += tally.packets[tcp];
        }
        if HOSTS {
            self.depart(burst, scratch, sink);
            self.ledger.state.subscribers.hosts.settle(now);
        }
        self.ledger.counters.fragments_held = u64::from(self.fragments.held() + self.edge.held());
        self.ledger.events.publish();
    }
}
