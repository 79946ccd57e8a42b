//! Packets of IPv6 hosts become IPv4, from the host's number: the long way.

use core::net::Ipv4Addr;

use translate::Headers6;
use translate::Kind;
use translate::Limits;
use translate::Tuple4;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::Fragment;
use wire::ipv6::Ipv6;

use crate::headers::icmp_quote;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::Sink;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::parse;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::rewrite;
use crate::shard::edge::Sent;
use crate::shard::edge::refuse::Refusal;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::state::host::HostKey;
use crate::state::host::HostStore;
use crate::state::host::Way;
use crate::state::host::subscriber_prefix;
use crate::state::reassembly;
use crate::state::reassembly::Outcome as Reassembled;
use crate::state::reassembly::Part;
use crate::steps::opening::Hints;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::verdict::Verdict;

/// Takes over the traffic class of the outer header.
pub(super) fn parse_in_softwire(packet: &mut Packet<'_>, offset: u16) -> Result<Parsed, Verdict> {
    // A reassembled packet has its class already, and its outer headers are gone.
    let outer = (offset != 0).then(|| Ipv6::new_unchecked(packet.bytes()).traffic_class());
    let inner = packet.bytes_mut().get_mut(usize::from(offset)..).unwrap_or_default();
    let parsed = parse(inner)?;
    if let Some(outer) = outer {
        take_class(inner, outer)?;
    }
    Ok(parsed)
}

fn take_class(inner: &mut [u8], outer: u8) -> Result<(), Verdict> {
    let Ok(mut view) = Ipv4::new_checked(inner) else { return Err(Verdict::IpMalformed) };
    let class = class_inside(outer, view.ds_field()).ok_or(Verdict::SoftwireMalformed)?;
    if class != view.ds_field() {
        view.set_ds_field(class);
        view.fill_checksum();
    }
    Ok(())
}

/// An error may be about another host of the same softwire.
pub(super) fn take_from_softwire(
    packet: &mut Packet<'_>,
    offset: u16,
    parsed: &Parsed,
    (number, key): (HostNumber, &HostKey),
    hosts: &HostStore,
) -> Result<(), Verdict> {
    let inner = packet.bytes_mut().get_mut(usize::from(offset)..).unwrap_or_default();
    if parsed.class == Class::IcmpError {
        let inner = inner.get_mut(..usize::from(parsed.total_length)).ok_or(Verdict::IpMalformed)?;
        let quote = icmp_quote::parse(inner)?;
        let host = Ipv4Addr::from(number);
        let mut change = quote.unchanged();
        change.outer_source = host;
        let about = HostKey { inner: quote.destination.address.to_bits(), ..*key };
        let about = match about.inner == key.inner {
            true => number,
            false => hosts.find(hosts.hash_of(&about), &about).ok_or(Verdict::IcmpQuoteNoMapping)?,
        };
        change.destination = Endpoint { address: about.into(), ..quote.destination };
        icmp_quote::rewrite(inner, &quote, &change);
    } else {
        let change = Rewrite {
            end: End::Source,
            address: number.0,
            port: parsed.source_port,
            identification: None,
            decrement_ttl: false,
        };
        rewrite(inner, parsed, &change);
    }
    packet.meta.record = 0;
    if packet.shrink_front(offset) { Ok(()) } else { Err(Verdict::SoftwireMalformed) }
}

/// Bits of a traffic class.
pub(super) const DSCP: u8 = 0xfc;
const ECN: u8 = 3;

/// The class of a packet from a softwire: that of the outer header (RFC 6333 §7.1), with the
/// congestion mark of either (RFC 6040 §4.2). `None`: the packet must be dropped, because it cannot
/// be marked.
#[inline(always)]
pub(super) const fn class_inside(outer: u8, inner: u8) -> Option<u8> {
    let mark = match (outer & ECN, inner & ECN) {
        (3, 0) => return None,
        (3, _) => 3,
        (1, 2) => 1,
        (_, mark) => mark,
    };
    Some(outer & DSCP | mark)
}

impl PacketPath {
    #[cold]
    pub(super) fn note_path_mtu(
        &mut self,
        now: Instant,
        mtu: u32,
        (key, hash): (&HostKey, u64),
    ) -> Result<(), Verdict> {
        self.quoted_host(key, hash)?;
        if let Ok(mtu) = u16::try_from(mtu) {
            let realm = self.ledger.shared.transition.realm_of(key.way);
            self.edge.path_mtus.note(now, (realm, key.address), mtu);
        }
        Err(Verdict::Local)
    }

    #[inline(always)]
    pub(super) fn enter_by_nat64(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        headers: &Headers6,
        destination: u32,
        (key, hash): (HostKey, u64),
    ) -> Result<(), Refusal> {
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let number = match headers.kind {
            Kind::Error => self.quoted_host(&key, hash)?,
            _ => self.ledger.enter_host(now, hash, &key, realm)?,
        };
        self.translate_from(packet, headers, (number, destination), key.way)
    }

    /// The number of the host that an error is about. An error makes no record.
    #[inline(always)]
    pub(super) fn quoted_host(&self, key: &HostKey, hash: u64) -> Result<HostNumber, Verdict> {
        self.ledger.state.subscribers.hosts.find(hash, key).ok_or(Verdict::IcmpQuoteNoMapping)
    }

    #[inline(always)]
    pub(super) fn translate_from(
        &self,
        packet: &mut Packet<'_>,
        headers: &Headers6,
        (number, destination): (HostNumber, u32),
        way: Way,
    ) -> Result<(), Refusal> {
        let Way::Nat64(position) = way else { return Err(Verdict::Ipv6NotForwarded.into()) };
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let transition = &self.ledger.shared.transition;
        let quoted = match (headers.kind, transition.prefix(position)) {
            (Kind::Error, Some(prefix)) => {
                let quoted = translate::quoted6(packet.bytes(), headers)?;
                Some(Tuple4 { source: prefix.extract(quoted.source), destination: number.0, ports: None })
            }
            _ => None,
        };
        let mtu6 = transition.realm(realm).map_or(ipv6::MTU_MIN, |edge| edge.mtu);
        let limits = match headers.kind {
            Kind::Error => Limits { mtu4: transition.mtu4, mtu6, is_hop: false, ..Limits::default() },
            // The engine knows the way out, and its MTU.
            _ => Limits { mtu4: u16::MAX, mtu6, is_hop: false, ..Limits::default() },
        };
        let new = Tuple4 { source: number.0, destination, ports: None };
        let start = usize::from(packet.start());
        // The engine sets the identification.
        let written = translate::to_ipv4(packet.frame_mut(), start, headers, &new, quoted.as_ref(), 0, &limits)?;
        packet.set_start(written.start);
        // All 32 bits distinguish datagrams.
        packet.meta.record = match headers.fragment {
            Some(fragment) if !fragment.is_atomic() => fragment.identification,
            _ => 0,
        };
        Ok(())
    }

    pub(super) fn enter_from_softwire(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        offset: u16,
        (key, hash): (HostKey, u64),
        sink: &mut dyn Sink,
    ) -> Result<(), Refusal> {
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let parsed = parse_in_softwire(packet, offset)?;
        if parsed.destination == AFTR_INSIDE {
            return self.answer_in_softwire(now, packet, usize::from(offset), &key, sink).map_err(Refusal::from);
        }
        let entered = self.ledger.enter_host(now, hash, &key, realm);
        if entered.is_err() {
            self.refuse_in_softwire(now, packet, usize::from(offset), &key, sink);
        }
        let number = entered?;
        let hosts = &self.ledger.state.subscribers.hosts;
        take_from_softwire(packet, offset, &parsed, (number, &key), hosts).map_err(Refusal::from)
    }

    /// Reassembles before decapsulation (RFC 6333 §5.3).
    #[cold]
    #[inline(never)]
    pub(super) fn reassemble(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        (source, way): (u128, Way),
        fragment: &Fragment,
        bytes: core::ops::Range<usize>,
        sink: &mut dyn Sink,
    ) -> Result<(), Refusal> {
        let timeout = self.ledger.shared.settings().timeouts.fragment;
        let Way::Softwire(position) = way else { return Err(Verdict::SoftwireMalformed.into()) };
        let Some(mut reassembly) = self.edge.reassembly.take() else {
            return Err(Verdict::ReassemblyFull.into());
        };
        let part = Part {
            source,
            subscriber: subscriber_prefix(source, self.ledger.shared.transition.prefix_length),
            realm: self.ledger.shared.transition.realm_of(way),
            way: position,
            identification: fragment.identification,
            class: Ipv6::new_unchecked(packet.bytes()).traffic_class(),
            offset: usize::from(fragment.offset),
            more: fragment.more,
            bytes: packet.bytes().get(bytes).unwrap_or_default(),
        };
        let outcome = reassembly.accept(now, timeout, &part);
        self.count_evicted_fragments(now, &mut reassembly);
        packet.outcome = Outcome::Done;
        let result = match outcome {
            Reassembled::Held => Ok(()),
            Reassembled::Dropped { verdict, held } => {
                self.count_dropped_fragments(now, verdict, held);
                Err(verdict.into())
            }
            Reassembled::Whole { slot, length, held, class } => {
                self.ledger.counters.verdicts[Verdict::Reassembled.index()] += u64::from(held);
                let frame = reassembly.frame(slot, length);
                let mut whole = Packet::in_frame(frame, reassembly::ROOM as u16, packet.meta);
                let classed = take_class(whole.bytes_mut(), class).map_err(Refusal::from);
                let result = classed.and_then(|()| self.enter_whole(now, &mut whole, (source, way), sink));
                packet.verdict = whole.verdict;
                result
            }
        };
        self.edge.reassembly = Some(reassembly);
        self.watch_reassembly(now);
        result
    }

    fn enter_whole(
        &mut self,
        now: Instant,
        whole: &mut Packet<'_>,
        (source, way): (u128, Way),
        sink: &mut dyn Sink,
    ) -> Result<(), Refusal> {
        let (key, hash) = self.look_inside(whole.bytes(), source, way)?;
        self.enter_from_softwire(now, whole, 0, (key, hash), sink)?;
        let (kind, hash) = self.look(whole);
        let hints = Hints::of(if kind.is_out() { hash } else { 0 });
        self.process_long(now, whole, &hints, sink);
        let bytes = whole.bytes();
        let lost = match whole.outcome {
            Outcome::Done => None,
            Outcome::Transmit { egress, length, .. } => {
                let sent = self.emit(egress, &[bytes.get(..usize::from(length)).unwrap_or(bytes)], sink);
                if let (Ok(Sent::Left), Some(counted)) = (&sent, whole.verdict) {
                    self.count_grown(egress, counted);
                }
                sent.err()
            }
            Outcome::HandOff { worker, meta } => {
                if sink.hand_off(worker, meta, &[bytes]) {
                    self.ledger.counters.handed_off += 1;
                    None
                } else {
                    self.ledger.counters.count(Verdict::HandOffRingFull);
                    whole.verdict = Some(Verdict::HandOffRingFull);
                    None
                }
            }
        };
        if let Some(verdict) = lost {
            if let Some(counted) = whole.verdict.replace(verdict) {
                self.ledger.counters.uncount(counted);
                self.uncount_unsent(counted, whole.bytes());
            }
            self.ledger.counters.count(verdict);
        }
        Ok(())
    }
}
