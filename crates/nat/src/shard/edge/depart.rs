//! IPv4 packets to IPv6 hosts: translated (RFC 7915 §4), or put in a softwire (RFC 6333 §6.3).

use core::net::Ipv4Addr;

use translate::Kind;
use translate::Limits;
use translate::Tuple6;
use wire::icmp;
use wire::icmp6;
use wire::icmp6::Icmp6;
use wire::ipv6;
use wire::ipv6::Ipv6;

use crate::headers::icmp_quote;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::Sink;
use crate::headers::parse::Class;
use crate::headers::parse::HEADERS;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::replace_address;
use crate::headers::rewrite::rewrite;
use crate::shard::edge::ROOM;
use crate::shard::edge::is_plain;
use crate::shard::edge::verdict_of;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::DUMMY;
use crate::state::host::Host;
use crate::state::host::Way;
use crate::types::Endpoint;
use crate::verdict::Verdict;

/// IPv4 in IPv6 (RFC 2473).
const PROTOCOL_IPV4: u8 = 4;
/// Hop limit of softwires.
const HOP_LIMIT: u8 = 64;

/// A packet in its frame, ready to leave.
pub(super) struct Ready {
    pub(super) start: usize,
    pub(super) length: usize,
    /// Larger than may be sent: fragments of this size, with this identification.
    pub(super) split: Option<(u16, u32)>,
}

impl PacketPath {
    /// Turns the packets of a burst that lead to IPv6 hosts into IPv6.
    #[inline(never)]
    pub(in crate::shard) fn depart<S: Sink>(&mut self, burst: &mut [Packet<'_>], sink: &mut S) {
        for packet in burst.iter().take(BURST_MAX) {
            if let Outcome::Transmit { egress, .. } = packet.outcome
                && self.leads_to_host(egress)
            {
                self.ledger.state.subscribers.hosts.prefetch_number(get_u32(packet.bytes(), ip::DESTINATION));
            }
        }
        for packet in burst.iter_mut().take(BURST_MAX) {
            let Outcome::Transmit { egress, start, length } = packet.outcome else { continue };
            if !self.leads_to_host(egress) {
                continue;
            }
            let result = self.prepare_for_host(packet.frame_mut(), usize::from(start), usize::from(length));
            let sent = match result {
                Ok(Ready { start, length, split: None }) => {
                    packet.set_start(start);
                    packet.outcome = Outcome::Transmit { egress, start: start as u16, length: length as u16 };
                    continue;
                }
                Ok(ready) => {
                    packet.outcome = Outcome::Done;
                    self.send_pieces(egress, packet.frame_mut(), &ready, sink)
                }
                Err(verdict) => Err(verdict),
            };
            if let Err(verdict) = sent {
                packet.outcome = Outcome::Done;
                if let Some(counted) = packet.verdict.replace(verdict) {
                    self.ledger.counters.uncount(counted);
                    self.ledger.counters.count(verdict);
                } else {
                    packet.verdict = None;
                }
            }
        }
    }

    fn send_pieces<S: Sink>(
        &mut self,
        egress: Egress,
        frame: &[u8],
        ready: &Ready,
        sink: &mut S,
    ) -> Result<(), Verdict> {
        let packet = frame.get(ready.start..ready.start + ready.length).unwrap_or_default();
        let Some((mtu, identification)) = ready.split else {
            return if sink.transmit(egress, &[packet]) { Ok(()) } else { Err(Verdict::NoBuffer) };
        };
        for piece in translate::pieces(packet, mtu, identification) {
            if !sink.transmit(egress, &[&piece.headers, piece.payload]) {
                return Err(Verdict::NoBuffer);
            }
        }
        self.edge.identification = self.edge.identification.wrapping_add(1);
        self.ledger.counters.fragmented += 1;
        Ok(())
    }

    /// As [`PacketPath::emit`], to an IPv6 host.
    #[cold]
    #[inline(never)]
    pub(super) fn emit_to_host<S: Sink>(
        &mut self,
        egress: Egress,
        parts: &[&[u8]],
        sink: &mut S,
    ) -> Result<(), Verdict> {
        let Some(mut buffer) = self.edge.buffer.take() else { return Err(Verdict::NoBuffer) };
        let mut end = ROOM;
        let mut fits = true;
        for part in parts {
            match buffer.get_mut(end..end + part.len()) {
                Some(place) => place.copy_from_slice(part),
                None => fits = false,
            }
            end += part.len();
        }
        let sent = match fits {
            true => self
                .prepare_for_host(&mut buffer[..end], ROOM, end - ROOM)
                .and_then(|ready| self.send_pieces(egress, &buffer[..end], &ready, sink)),
            false => Err(Verdict::TooBig),
        };
        self.edge.buffer = Some(buffer);
        sent
    }

    /// Puts an IPv4 packet that needs no other change into a softwire.
    pub(super) fn put_in_softwire<S: Sink>(
        &mut self,
        egress: Egress,
        (aftr, to): (u128, u128),
        inner: &[u8],
        sink: &mut S,
    ) -> Result<(), Verdict> {
        let Some(mut buffer) = self.edge.buffer.take() else { return Err(Verdict::NoBuffer) };
        let end = ROOM + inner.len();
        let sent = match buffer.get_mut(ROOM..end) {
            Some(place) => {
                place.copy_from_slice(inner);
                let mtu = self.mtu_towards(egress);
                self.encapsulate(&mut buffer[..end], ROOM, inner.len(), (aftr, to), mtu)
                    .and_then(|ready| self.send_pieces(egress, &buffer[..end], &ready, sink))
            }
            None => Err(Verdict::TooBig),
        };
        self.edge.buffer = Some(buffer);
        sent
    }

    fn mtu_towards(&self, egress: Egress) -> u16 {
        let shared = &self.ledger.shared;
        let interface = shared.next_hops().nth(egress.next_hop.index()).map(|hop| hop.interface);
        let realm = interface.map(|interface| shared.realm_of(interface)).unwrap_or_default();
        shared.transition.realm(realm).map_or(ipv6::MTU_MIN, |edge| edge.mtu)
    }

    /// The packet goes to the number of a host.
    #[inline(always)]
    pub(super) fn prepare_for_host(&self, frame: &mut [u8], start: usize, length: usize) -> Result<Ready, Verdict> {
        let bytes = frame.get_mut(start..start + length).ok_or(Verdict::IpMalformed)?;
        let number = get_u32(bytes, ip::DESTINATION);
        let host = *self.ledger.state.subscribers.hosts.get(number).ok_or(Verdict::NoMapping)?;
        if let Some(ready) = self.prepare_plain(frame, (start, length), &host) {
            return Ok(ready);
        }
        match host.way() {
            Way::Nat64(position) => self.translate_to(frame, start, length, (number, &host), position),
            Way::Softwire(position) => self.wrap_in_softwire(frame, start, length, (number, &host), position),
        }
    }

    /// A usual packet of TCP or UDP that fits the link; the engine has checked its header. `None`
    /// for others, which are unchanged.
    #[inline(always)]
    pub(super) fn prepare_plain(
        &self,
        frame: &mut [u8],
        (start, length): (usize, usize),
        host: &Host,
    ) -> Option<Ready> {
        let transition = &self.ledger.shared.transition;
        let edge = transition.realm(transition.realm_of(host.way()))?;
        match host.way() {
            Way::Nat64(position) => {
                let prefix = transition.prefix(position)?;
                let new_start = start.checked_sub(ipv6::HEADER_LENGTH - ip::HEADER_MIN)?;
                let new_length = length + ipv6::HEADER_LENGTH - ip::HEADER_MIN;
                let bytes = frame.get_mut(new_start..)?.first_chunk_mut()?;
                let from = get_u32(bytes, ipv6::HEADER_LENGTH - ip::HEADER_MIN + ip::SOURCE);
                let fits = new_length <= usize::from(transition.lowest_mtu6.min(edge.mtu));
                if !fits || from == DUMMY || !translate::is_plain4(bytes, length) {
                    return None;
                }
                translate::plain_to_ipv6(bytes, prefix.embed(from), host.address());
                Some(Ready { start: new_start, length: new_length, split: None })
            }
            Way::Softwire(position) => {
                let end = transition.softwire(position)?;
                let new_start = start.checked_sub(ipv6::HEADER_LENGTH)?;
                let new_length = length + ipv6::HEADER_LENGTH;
                let inner = frame.get_mut(start..)?.first_chunk_mut::<HEADERS>()?;
                if new_length > usize::from(edge.mtu) || !is_plain(inner, length) {
                    return None;
                }
                replace_address(inner, End::Destination, host.inner());
                let traffic_class = inner[1];
                let outer = frame.get_mut(new_start..)?.first_chunk_mut()?;
                write_outer(outer, traffic_class, length as u16, (end.aftr, host.address()));
                Some(Ready { start: new_start, length: new_length, split: None })
            }
        }
    }

    #[inline(always)]
    fn translate_to(
        &self,
        frame: &mut [u8],
        start: usize,
        length: usize,
        (number, host): (u32, &Host),
        position: u8,
    ) -> Result<Ready, Verdict> {
        let transition = &self.ledger.shared.transition;
        let prefix = transition.prefix(position).ok_or(Verdict::NoRoute)?;
        let edge = transition.realm(transition.realm_of(host.way())).ok_or(Verdict::NoRoute)?;
        let bytes = frame.get(start..start + length).ok_or(Verdict::IpMalformed)?;
        let headers = translate::read4(bytes).map_err(|refused| verdict_of(refused.reason))?;
        let is_own = headers.source == DUMMY;
        let source = if is_own { edge.own } else { prefix.embed(headers.source) };
        let new = Tuple6 { source, destination: host.address(), ports: None };
        let mut is_unreachable = false;
        let quoted = match headers.kind {
            Kind::Error => {
                let quoted = translate::quoted4(bytes, &headers).map_err(verdict_of)?;
                let message = bytes.get(headers.transport..).unwrap_or_default();
                is_unreachable =
                    is_own && message.starts_with(&[icmp::TYPE_DESTINATION_UNREACHABLE, icmp::CODE_HOST_UNREACHABLE]);
                if quoted.source != number {
                    return Err(Verdict::IcmpQuoteNoMapping);
                }
                let destination = prefix.embed(quoted.destination);
                Some(Tuple6 { source: host.address(), destination, ports: None })
            }
            _ => None,
        };
        let limits = Limits {
            mtu4: transition.mtu4,
            mtu6: edge.mtu,
            lowest_mtu6: transition.lowest_mtu6,
            is_hop: false,
            ..Limits::default()
        };
        let written = translate::to_ipv6(frame, start, &headers, &new, quoted.as_ref(), &limits)
            .map_err(|refused| verdict_of(refused.reason))?;
        if is_unreachable {
            // RFC 6146 §3.5.1.1: without resources, address unreachable.
            let message = frame.get_mut(written.start + ipv6::HEADER_LENGTH..written.start + written.length);
            let mut icmp = Icmp6::new_unchecked(message.unwrap_or_default());
            icmp.set_type_and_code(icmp6::TYPE_DESTINATION_UNREACHABLE, icmp6::CODE_ADDRESS_UNREACHABLE);
            icmp.fill_checksum(source, host.address());
        }
        let split = written.split.map(|mtu| (mtu, headers.identification));
        Ok(Ready { start: written.start, length: written.length, split })
    }

    pub(super) fn wrap_in_softwire(
        &self,
        frame: &mut [u8],
        start: usize,
        length: usize,
        (number, host): (u32, &Host),
        position: u8,
    ) -> Result<Ready, Verdict> {
        let transition = &self.ledger.shared.transition;
        let end = transition.softwire(position).ok_or(Verdict::NoRoute)?;
        let (aftr, mtu) = (end.aftr, transition.realm(end.realm).ok_or(Verdict::NoRoute)?.mtu);
        let bytes = frame.get_mut(start..start + length).ok_or(Verdict::IpMalformed)?;
        let parsed = parse(bytes)?;
        if parsed.class == Class::IcmpError {
            let quote = icmp_quote::parse(bytes)?;
            let inner = Ipv4Addr::from_bits(host.inner());
            let mut change = quote.unchanged();
            change.outer_destination = inner;
            if quote.source.address.to_bits() == number {
                change.source = Endpoint { address: inner, ..quote.source };
            }
            icmp_quote::rewrite(bytes, &quote, &change);
        } else {
            let change = Rewrite {
                end: End::Destination,
                address: host.inner(),
                port: parsed.destination_port,
                identification: None,
                decrement_ttl: false,
            };
            rewrite(bytes, &parsed, &change);
        }
        self.encapsulate(frame, start, length, (aftr, host.address()), mtu)
    }

    /// RFC 2473 §6, RFC 6333 §7.1: the traffic class is copied, the hop limit is that of the
    /// softwire.
    fn encapsulate(
        &self,
        frame: &mut [u8],
        start: usize,
        length: usize,
        (source, destination): (u128, u128),
        mtu: u16,
    ) -> Result<Ready, Verdict> {
        let traffic_class = frame.get(start + 1).copied().unwrap_or(0);
        let start = start.checked_sub(ipv6::HEADER_LENGTH).ok_or(Verdict::NoBuffer)?;
        let payload_length = u16::try_from(length).map_err(|_| Verdict::TooBig)?;
        let outer = frame.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut()).ok_or(Verdict::NoBuffer)?;
        write_outer(outer, traffic_class, payload_length, (source, destination));
        let length = length + ipv6::HEADER_LENGTH;
        let split = (length > usize::from(mtu)).then_some((mtu, self.edge.identification));
        Ok(Ready { start, length, split })
    }
}

/// RFC 2473 §6.
#[inline(always)]
fn write_outer(
    bytes: &mut [u8; ipv6::HEADER_LENGTH],
    traffic_class: u8,
    payload_length: u16,
    (source, destination): (u128, u128),
) {
    let mut outer = Ipv6::new_unchecked(bytes);
    outer.set_class_and_label(traffic_class, 0);
    outer.set_payload_length(payload_length);
    outer.set_next_header(PROTOCOL_IPV4);
    outer.set_hop_limit(HOP_LIMIT);
    outer.set_source(source);
    outer.set_destination(destination);
}
