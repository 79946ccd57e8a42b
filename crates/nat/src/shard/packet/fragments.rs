//! Tracks fragments until their ports are known (RFC 4787 §11 REQ-14).

use crate::headers::packet::Egress;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Parsed;
use crate::headers::parse::parse;
use crate::headers::split::split;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::edge::Sent;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::state::fragments::DatagramIndex;
use crate::state::fragments::FragmentInfo;
use crate::state::fragments::FragmentKey;
use crate::state::fragments::FragmentOutcome;
use crate::state::mapping::InternalKey;
use crate::steps::opening::Hints;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;
use crate::verdict::VerdictKind;

pub(in crate::shard) fn with_ports(parsed: &Parsed, ports: (u16, u16)) -> Parsed {
    Parsed { source_port: ports.0, destination_port: ports.1, ..*parsed }
}

/// A datagram whose ports are known.
#[derive(Clone, Copy)]
struct Known {
    now: Instant,
    side: Side,
    datagram: DatagramIndex,
    ports: (u16, u16),
}

impl PacketPath {
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn outbound_fragment(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { parsed, .. } = at;
        if let Some(verdict) = self.view().check_source(self.ledger.shared.facing(at.meta.ingress), parsed.source) {
            return Fate::Done(verdict);
        }
        if parsed.protocol().is_none() {
            let fate = self.leave_portless(at, bytes, sink);
            return self.fragment_of_call(parsed, fate);
        }
        self.track(at, Side::Inside, bytes, sink)
    }

    /// A datagram's fragments meet on one worker, not always the mapping's.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn inbound_fragment(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { meta, parsed, .. } = at;
        if parsed.protocol().is_none() {
            let fate = self.inbound_flow(at, bytes, Via::Outside, sink);
            return self.fragment_of_call(parsed, fate);
        }
        let local = self.ledger.local.lookup(parsed.destination);
        let may_pass = local.is_none() && self.ledger.shared.rules.passes();
        if !may_pass && local.and_then(|local| local.pool_address()).is_none() {
            // Natrix does not reassemble packets to itself.
            return self.inbound_flow(at, bytes, Via::Outside, sink);
        }
        let rest = u32::from(parsed.identification) << 8 | u32::from(parsed.protocol_number);
        let tracker = self.ledger.shared.worker_of_stray(parsed.source, parsed.destination, rest);
        if tracker != self.ledger.worker {
            return Fate::HandOff { worker: tracker, meta: PacketMeta { stage: Stage::Steered, ..meta } };
        }
        self.track(at, Side::Outside, bytes, sink)
    }

    fn track(&mut self, at: Arrival<'_>, side: Side, bytes: &mut [u8], sink: &mut dyn Sink) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let key = FragmentKey::new(
            side,
            parsed.source.into(),
            parsed.destination.into(),
            parsed.protocol_number,
            parsed.identification,
        )
        .in_realm(self.ledger.shared.realm_of(meta.ingress))
        .of_ipv6(if HostNumber(parsed.source).is_ipv6() { meta.record } else { 0 });
        let is_first = parsed.fragment_offset == 0;
        let info = FragmentInfo {
            offset: u32::from(parsed.fragment_offset),
            length: u32::from(parsed.payload_length()),
            more: parsed.more_fragments,
            first_ports: is_first.then_some((parsed.source_port, parsed.destination_port)),
            owner: self.ledger.state.subscribers.hosts.subscriber_of(HostNumber(parsed.source)),
        };
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        let outcome = self.fragments.accept(now, key, info, packet, meta);
        if !matches!(outcome, FragmentOutcome::Dropped { .. }) {
            self.ledger.state.subscribers.hosts.keep(HostNumber(parsed.source));
        }
        match outcome {
            FragmentOutcome::Held => Fate::Held,
            FragmentOutcome::Dropped { verdict, held_discarded } => {
                self.count_held(verdict, held_discarded);
                if matches!(verdict, Verdict::FragmentTableFull | Verdict::FragmentBuffersFull) {
                    self.note_no_room_for_fragment(at, side, verdict);
                }
                Fate::Done(verdict)
            }
            FragmentOutcome::Resolved { datagram, ports } => {
                let resolved = with_ports(parsed, ports);
                let fate = self.resolved(Arrival { parsed: &resolved, ..at }, side, packet, datagram, sink);
                if is_first { self.after_first(fate, Known { now, side, datagram, ports }, packet, sink) } else { fate }
            }
        }
    }

    fn note_no_room_for_fragment(&mut self, at: Arrival<'_>, side: Side, verdict: Verdict) {
        let realm = self.ledger.shared.realm_of(at.meta.ingress);
        // A source that no pool serves may be forged.
        let source = at.parsed.source.into();
        let is_served = HostNumber(at.parsed.source).is_ipv6() || self.ledger.shared.pool_for(realm, source).is_some();
        let subscriber = (side == Side::Inside && is_served).then_some(source);
        self.ledger.note_no_room(at.now, (realm, subscriber), verdict);
    }

    /// The first fragment leaves before those that waited. They are useless without it.
    fn after_first(&mut self, fate: Fate, known: Known, packet: &mut [u8], sink: &mut dyn Sink) -> Fate {
        match fate {
            Fate::Done(verdict) if verdict.kind() == VerdictKind::Dropped => {
                self.refuse_held(known.datagram);
                fate
            }
            Fate::Forward { verdict, egress, length } => {
                let mut sent = Fate::Done(verdict);
                let first = packet.get(..usize::from(length)).unwrap_or(packet);
                match self.emit(egress, &[first], sink) {
                    Ok(Sent::Left) => self.count_grown(egress, verdict),
                    Ok(Sent::Kept) => sent = Fate::Held,
                    Err(Verdict::NoBuffer) => {
                        self.uncount_unsent(verdict, first);
                        sent = Fate::Done(Verdict::NoBuffer);
                    }
                    // An IPv6 host cannot receive it.
                    Err(refused) => {
                        self.uncount_unsent(verdict, first);
                        self.refuse_held(known.datagram);
                        return Fate::Done(refused);
                    }
                }
                self.release_held(known, sink);
                sent
            }
            Fate::HandOff { worker, meta } => {
                // Through the sink, to enter the ring before the fragments released now.
                let sent = sink.hand_off(worker, meta, &[packet]);
                self.release_held(known, sink);
                if sent {
                    self.ledger.counters.handed_off += 1;
                    Fate::Held
                } else {
                    Fate::Done(Verdict::HandOffRingFull)
                }
            }
            other => {
                self.release_held(known, sink);
                other
            }
        }
    }

    fn refuse_held(&mut self, datagram: DatagramIndex) {
        let discarded = self.fragments.refuse(datagram);
        self.count_held(Verdict::FragmentRefused, discarded);
    }

    fn count_held(&mut self, verdict: Verdict, fragments: u32) {
        self.ledger.counters.verdicts[verdict.index()] += u64::from(fragments);
    }

    fn resolved(
        &mut self,
        at: Arrival<'_>,
        side: Side,
        bytes: &mut [u8],
        datagram: DatagramIndex,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { parsed, .. } = at;
        match side {
            Side::Outside => self.inbound_flow(at, bytes, Via::Outside, sink),
            Side::Inside => {
                let Some(protocol) = Protocol::from_number(parsed.protocol_number) else {
                    return Fate::Done(Verdict::ProtocolUnsupported);
                };
                let key = InternalKey {
                    realm: self.ledger.shared.realm_of(at.meta.ingress),
                    protocol,
                    address: HostNumber(parsed.source),
                    port: parsed.source_port,
                };
                let hash = self.ledger.state.hash_of(&key);
                self.outbound_flow(at, bytes, &Hints::of(hash), Some(datagram), sink)
            }
        }
    }

    fn release_held(&mut self, known: Known, sink: &mut dyn Sink) {
        let Known { now, side, datagram, ports } = known;
        let Some(mut scratch) = self.packet_buffer.take() else { return };
        while let Some((length, meta)) = self.fragments.next_held(datagram, &mut scratch[..]) {
            let packet = &mut scratch[..length];
            let fate = match parse(packet) {
                Ok(parsed) => {
                    let at = Arrival { now, meta, parsed: &with_ports(&parsed, ports) };
                    self.resolved(at, side, packet, datagram, sink)
                }
                Err(verdict) => Fate::Done(verdict),
            };
            self.deliver(fate, packet, sink);
        }
        self.packet_buffer = Some(scratch);
    }

    /// RFC 4787 §11 REQ-13a.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn send_in_fragments(
        &mut self,
        bytes: &[u8],
        parsed: &Parsed,
        mtu: u16,
        egress: Egress,
        verdict: Verdict,
        sink: &mut dyn Sink,
    ) -> Fate {
        if self.leads_to_host(egress) {
            // It is cut once it is IPv6.
            return Fate::Forward { verdict, egress, length: parsed.total_length };
        }
        let packet = bytes.get(..usize::from(parsed.total_length)).unwrap_or(bytes);
        let Ok(pieces) = split(packet, mtu) else {
            self.uncount_unsent(verdict, packet);
            return Fate::Done(Verdict::TooBig);
        };
        for piece in pieces {
            let payload = packet.get(piece.payload.clone()).unwrap_or(&[]);
            if let Err(refused) = self.emit(egress, &[piece.header.as_bytes(), payload], sink) {
                self.uncount_unsent(verdict, packet);
                return Fate::Done(refused);
            }
        }
        self.ledger.counters.fragmented += 1;
        Fate::Done(verdict)
    }
}
