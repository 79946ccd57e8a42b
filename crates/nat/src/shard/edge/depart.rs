//! IPv4 packets to IPv6 hosts: translated (RFC 7915 §4), or put in a softwire (RFC 6333 §6.3).

use core::net::Ipv4Addr;

use translate::Halves;
use translate::Kind;
use translate::Limits;
use translate::Tuple6;
use wire::icmp;
use wire::icmp6;
use wire::icmp6::Icmp6;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::ipv4::PROTOCOL_TCP;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::udp;

use crate::headers::icmp_quote;
use crate::headers::packet::Egress;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::Sink;
use crate::headers::parse::Class;
use crate::headers::parse::HEADERS;
use crate::headers::parse::get_u16;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::is_link_local;
use crate::headers::parse::parse;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::replace_address;
use crate::headers::rewrite::rewrite;
use crate::headers::rewrite::rewrite_headers;
use crate::shard::burst::established::Scratch;
use crate::shard::edge::ROOM;
use crate::shard::edge::Sent;
use crate::shard::edge::arrive::each;
use crate::shard::edge::is_plain;
use crate::shard::edge::verdict_of;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::Nat64Prefix;
use crate::snapshot::transition::check_embeddable;
use crate::state::host::Host;
use crate::state::host::Way;
use crate::state::reassembly;
use crate::state::reassembly::Outcome as Reassembled;
use crate::state::reassembly::Part;
use crate::types::DUMMY;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::SOFTWIRE_HOSTS_FIRST;
use crate::verdict::Forwarded;
use crate::verdict::Verdict;

const HOP_LIMIT: u8 = 64;
/// How much longer an IPv6 header is than an IPv4 header.
const GROWTH: usize = ipv6::HEADER_LENGTH - ip::HEADER_MIN;

pub(super) struct Ready {
    pub(super) start: usize,
    pub(super) length: usize,
    /// Size and identification of the fragments, if it is too large.
    pub(super) split: Option<(u16, u32)>,
}

pub(super) enum Prepared {
    Ready(Ready),
    /// A fragment of a datagram without checksum, for [`PacketPath::complete`].
    Part,
}

fn datagram_of<T: AsRef<[u8]>>(view: &Ipv4<T>) -> (u128, u32) {
    (u128::from(view.source()) << 64 | u128::from(view.destination()), view.identification().into())
}

impl PacketPath {
    #[inline(never)]
    pub(in crate::shard) fn depart(&mut self, burst: &mut [Packet<'_>], scratch: &mut Scratch, sink: &mut dyn Sink) {
        let hosts = &mut scratch.hosts;
        let mut softwires = 0;
        for i in each(hosts.pending_in) {
            let number = hosts.ends[i].0;
            softwires |= u64::from(number >= SOFTWIRE_HOSTS_FIRST) << i;
            hosts.departing[i] = self.ledger.state.subscribers.hosts.aim_at_number(HostNumber(number));
        }
        for i in each(hosts.further) {
            let number = burst.get(i).and_then(|packet| packet.chunk(ip::DESTINATION));
            self.ledger
                .state
                .subscribers
                .hosts
                .aim_at_number(HostNumber(number.map_or(0, |number| u32::from_be_bytes(*number))));
        }
        self.write_sources(scratch, burst);
        let hosts = &mut scratch.hosts;
        // In loops of their own, which keep their values in registers.
        for i in each(hosts.pending_in & !softwires) {
            let Some(packet) = burst.get_mut(i) else { break };
            if self.translate_plain(packet, hosts.departing[i], hosts.ends[i].1).is_none() {
                write_destination(packet, hosts.ends[i]);
                hosts.add_further(i);
            }
        }
        for i in each(hosts.pending_in & softwires) {
            let Some(packet) = burst.get_mut(i) else { break };
            if self.wrap_plain(packet, hosts.departing[i], hosts.ends[i].1).is_none() {
                write_destination(packet, hosts.ends[i]);
                hosts.add_further(i);
            }
        }
        let translated = u64::from((hosts.pending_in & !softwires & !hosts.further).count_ones());
        let wrapped = u64::from((hosts.pending_in & softwires & !hosts.further).count_ones());
        let grown = translated * (ipv6::HEADER_LENGTH - ip::HEADER_MIN) as u64 + wrapped * ipv6::HEADER_LENGTH as u64;
        // The passes counted them as IPv4.
        self.ledger.counters.bytes_forwarded[1] += grown;
        for i in each(hosts.further) {
            let Some(packet) = burst.get_mut(i) else { break };
            let Outcome::Transmit { egress, start, length } = packet.outcome else { continue };
            self.depart_further(burst, i, egress, (usize::from(start), usize::from(length)), sink);
        }
    }

    #[inline(never)]
    fn depart_further(
        &mut self,
        burst: &mut [Packet<'_>],
        i: usize,
        egress: Egress,
        (start, length): (usize, usize),
        sink: &mut dyn Sink,
    ) {
        let Some((packet, before)) = burst.get_mut(..=i).and_then(<[_]>::split_last_mut) else { return };
        let verdict = packet.verdict;
        let as_ipv4 = packet.frame_mut().get(start..start + length).unwrap_or_default();
        let forwarded = verdict.and_then(|verdict| Forwarded::of(verdict, as_ipv4));
        let sent = match self.prepare_for_host(packet.frame_mut(), start, length) {
            Ok(Prepared::Ready(Ready { start, length: longer, split: None })) => {
                if let Some(forwarded) = forwarded {
                    let bytes = &mut self.ledger.counters.bytes_forwarded[forwarded.way];
                    *bytes = bytes.wrapping_add_signed(longer as i64 - length as i64);
                }
                let length = longer;
                packet.set_start(start);
                packet.outcome = Outcome::Transmit { egress, start: start as u16, length: length as u16 };
                return;
            }
            Ok(Prepared::Ready(ready)) => {
                self.send_earlier(before, sink);
                self.send_pieces(egress, packet.frame_mut(), &ready, sink).map(|()| Sent::Left)
            }
            Ok(Prepared::Part) => {
                self.send_earlier(before, sink);
                let part = packet.frame_mut().get(start..start + length).unwrap_or_default();
                self.complete(egress, part, sink)
            }
            Err(verdict) => Err(verdict),
        };
        packet.outcome = Outcome::Done;
        match sent {
            Ok(Sent::Left) => {}
            Ok(Sent::Kept) => {
                if let Some(counted) = packet.verdict.take() {
                    self.ledger.counters.uncount(counted);
                }
            }
            Err(verdict) => self.replace_verdict(packet, forwarded, verdict),
        }
    }

    /// A packet made by Natrix has no verdict. `forwarded`: what it counted.
    fn replace_verdict(&mut self, packet: &mut Packet<'_>, forwarded: Option<Forwarded>, verdict: Verdict) {
        if let Some(counted) = packet.verdict {
            self.ledger.counters.uncount(counted);
            if let Some(forwarded) = forwarded {
                self.ledger.counters.uncount_forwarded(&forwarded);
            }
            self.ledger.counters.count(verdict);
            packet.verdict = Some(verdict);
        }
    }

    /// Fragments leave at once, so the packets before them must leave first (RFC 7915 §4).
    #[cold]
    #[inline(never)]
    fn send_earlier(&mut self, before: &mut [Packet<'_>], sink: &mut dyn Sink) {
        for packet in before {
            let Outcome::Transmit { egress, start, length } = packet.outcome else { continue };
            if !self.leads_to_host(egress) {
                continue;
            }
            packet.outcome = Outcome::Done;
            let (start, end) = (usize::from(start), usize::from(start) + usize::from(length));
            let verdict = packet.verdict;
            let bytes = packet.frame_mut().get(start..end).unwrap_or_default();
            if !sink.transmit(egress, &[bytes]) {
                let forwarded = verdict.and_then(|verdict| Forwarded::of(verdict, bytes));
                self.replace_verdict(packet, forwarded, Verdict::NoBuffer);
            }
        }
    }

    fn send_pieces(&mut self, egress: Egress, frame: &[u8], ready: &Ready, sink: &mut dyn Sink) -> Result<(), Verdict> {
        let packet = frame.get(ready.start..ready.start + ready.length).unwrap_or_default();
        let Some((mtu, identification)) = ready.split else {
            return if sink.transmit(egress, &[packet]) { Ok(()) } else { Err(Verdict::NoBuffer) };
        };
        for piece in translate::pieces(packet, mtu, identification) {
            if !sink.transmit(egress, &[&piece.headers, piece.payload]) {
                return Err(Verdict::NoBuffer);
            }
        }
        let to = Ipv6::new_unchecked(packet).destination();
        self.edge.identifications.advance(self.realm_towards(egress), to);
        self.ledger.counters.fragmented += 1;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    pub(super) fn emit_to_host(
        &mut self,
        egress: Egress,
        parts: &[&[u8]],
        sink: &mut dyn Sink,
    ) -> Result<Sent, Verdict> {
        self.edge.grown = 0;
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
            true => self.prepare_for_host(&mut buffer[..end], ROOM, end - ROOM).and_then(|prepared| match prepared {
                Prepared::Ready(ready) => {
                    if ready.split.is_none() {
                        self.edge.grown = ready.length as i64 - (end - ROOM) as i64;
                    }
                    self.send_pieces(egress, &buffer[..end], &ready, sink).map(|()| Sent::Left)
                }
                Prepared::Part => self.complete(egress, &buffer[ROOM..end], sink),
            }),
            false => Err(Verdict::TooBig),
        };
        self.edge.buffer = Some(buffer);
        sent
    }

    /// Puts an IPv4 packet that needs no other change into a softwire.
    pub(super) fn put_in_softwire(
        &mut self,
        egress: Egress,
        (aftr, to): (u128, u128),
        inner: &[u8],
        sink: &mut dyn Sink,
    ) -> Result<(), Verdict> {
        let Some(mut buffer) = self.edge.buffer.take() else { return Err(Verdict::NoBuffer) };
        let end = ROOM + inner.len();
        let sent = match buffer.get_mut(ROOM..end) {
            Some(place) => {
                place.copy_from_slice(inner);
                let realm = self.realm_towards(egress);
                let link = self.ledger.shared.transition.realm(realm).map_or(ipv6::MTU_MIN, |edge| edge.mtu);
                let mtu = self.edge.path_mtus.of(self.edge.now, (realm, to), link);
                self.encapsulate(&mut buffer[..end], ROOM, inner.len(), (aftr, to), (realm, mtu))
                    .and_then(|ready| self.send_pieces(egress, &buffer[..end], &ready, sink))
            }
            None => Err(Verdict::TooBig),
        };
        self.edge.buffer = Some(buffer);
        sent
    }

    fn realm_towards(&self, egress: Egress) -> RealmId {
        let shared = &self.ledger.shared;
        let interface = shared.interface_of(egress.next_hop);
        interface.map(|interface| shared.realm_of(interface)).unwrap_or_default()
    }

    #[inline(always)]
    pub(super) fn prepare_for_host(&self, frame: &mut [u8], start: usize, length: usize) -> Result<Prepared, Verdict> {
        let bytes = frame.get_mut(start..start + length).ok_or(Verdict::IpMalformed)?;
        let number = HostNumber(get_u32(bytes, ip::DESTINATION));
        let host = *self.ledger.state.subscribers.hosts.get(number).ok_or(Verdict::NoMapping)?;
        self.prepare_for(frame, (start, length), &host)
    }

    #[inline(always)]
    pub(super) fn prepare_for(
        &self,
        frame: &mut [u8],
        (start, length): (usize, usize),
        host: &Host,
    ) -> Result<Prepared, Verdict> {
        if let Some(ready) = self.prepare_plain(frame, (start, length), host) {
            return Ok(Prepared::Ready(ready));
        }
        let number = get_u32(frame.get(start..start + length).ok_or(Verdict::IpMalformed)?, ip::DESTINATION);
        let ready = match host.way() {
            Way::Nat64(_) if self.is_without_checksum(frame.get(start..start + length).unwrap_or_default()) => {
                return Ok(Prepared::Part);
            }
            Way::Nat64(position) => self.translate_to(frame, start, length, (HostNumber(number), host), position),
            Way::Softwire(position) => {
                self.wrap_in_softwire(frame, start, length, (HostNumber(number), host), position)
            }
        };
        ready.map(Prepared::Ready)
    }

    /// True for a fragment of a UDP datagram without checksum, which only the first fragment shows.
    /// The engine sends the others after it.
    fn is_without_checksum(&self, packet: &[u8]) -> bool {
        let view = Ipv4::new_unchecked(packet);
        if !view.is_fragment() || view.protocol() != ipv4::PROTOCOL_UDP {
            return false;
        }
        if view.fragment_offset_bytes() == 0 {
            return get_u16(packet, view.header_length() + udp::CHECKSUM_OFFSET) == 0;
        }
        let timeout = self.ledger.shared.settings().timeouts.fragment;
        let (source, identification) = datagram_of(&view);
        self.edge.reassembly.as_ref().is_some_and(|reassembly| {
            reassembly.has(self.edge.now, timeout, source, reassembly::WITHOUT_CHECKSUM, identification)
        })
    }

    /// RFC 6146 §3.4: reassembles the datagram, because IPv6 requires a checksum.
    #[cold]
    #[inline(never)]
    fn complete(&mut self, egress: Egress, fragment: &[u8], sink: &mut dyn Sink) -> Result<Sent, Verdict> {
        let Some(mut reassembly) = self.edge.reassembly.take() else { return Err(Verdict::ReassemblyFull) };
        let view = Ipv4::new_unchecked(fragment);
        let (source, identification) = datagram_of(&view);
        let subscriber = self.ledger.state.subscribers.hosts.subscriber_of(HostNumber(view.destination()));
        let part = Part {
            source,
            subscriber: subscriber.0.into(),
            realm: RealmId::default(),
            way: reassembly::WITHOUT_CHECKSUM,
            identification,
            class: view.ds_field(),
            offset: view.fragment_offset_bytes(),
            more: view.more_fragments(),
            bytes: view.payload(),
        };
        let timeout = self.ledger.shared.settings().timeouts.fragment;
        let outcome = reassembly.accept(self.edge.now, timeout, &part);
        self.count_evicted_fragments(self.edge.now, &mut reassembly);
        let sent = match outcome {
            Reassembled::Held => Ok(Sent::Kept),
            Reassembled::Dropped { verdict, held } => {
                self.count_dropped_fragments(self.edge.now, verdict, held);
                Err(verdict)
            }
            Reassembled::Whole { slot, length, held, class } => {
                self.ledger.counters.verdicts[Verdict::Reassembled.index()] += u64::from(held);
                self.send_whole(egress, (fragment, class), reassembly.frame(slot, length), sink)
            }
        };
        self.edge.reassembly = Some(reassembly);
        self.watch_reassembly(self.edge.now);
        sent
    }

    /// `frame`: the datagram behind its room; `last`: the last fragment's header.
    fn send_whole(
        &mut self,
        egress: Egress,
        (last, class): (&[u8], u8),
        frame: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Result<Sent, Verdict> {
        let start = reassembly::ROOM - ip::HEADER_MIN;
        let length = frame.len().saturating_sub(start);
        let number = HostNumber(get_u32(last, ip::DESTINATION));
        let host = *self.ledger.state.subscribers.hosts.get(number).ok_or(Verdict::NoMapping)?;
        let Way::Nat64(position) = host.way() else { return Err(Verdict::NoMapping) };
        let header = frame.get_mut(start..start + ip::HEADER_MIN).ok_or(Verdict::NoBuffer)?;
        header.copy_from_slice(last.get(..ip::HEADER_MIN).ok_or(Verdict::IpMalformed)?);
        let mut view = Ipv4::new_unchecked(header);
        view.set_header_length(ip::HEADER_MIN);
        view.set_total_length(u16::try_from(length).map_err(|_| Verdict::TooBig)?);
        view.set_fragment_bits(0);
        view.set_ds_field(class);
        view.fill_checksum();
        let ready = self.translate_to(frame, start, length, (number, &host), position)?;
        self.send_pieces(egress, frame, &ready, sink).map(|()| Sent::Left)
    }

    /// [`PacketPath::prepare_plain`] for a packet to a host of NAT64 as it came from outside: it
    /// gets its internal port and is counted a hop.
    #[inline(always)]
    fn translate_plain(&self, packet: &mut Packet<'_>, place: u32, port: u16) -> Option<()> {
        let (frame, outcome) = packet.frame_and_outcome_mut();
        let Outcome::Transmit { start, length, .. } = outcome else { return None };
        let (host, position) = self.ledger.state.subscribers.hosts.nat64_at_place(place)?;
        let nat64 = self.ledger.shared.transition.nat64(position)?;
        let new_start = usize::from(*start).checked_sub(GROWTH)?;
        let bytes = frame.get_mut(new_start..new_start + translate::PLAIN)?.first_chunk_mut()?;
        let from = source_in(bytes)?;
        let fits = usize::from(*length) + GROWTH <= usize::from(nat64.whole_max);
        if !fits || from == DUMMY.to_be_bytes() || !translate::is_steady4(bytes, usize::from(*length)) {
            return None;
        }
        translate::plain_to_ipv6(bytes, nat64.prefix.embed_octets(from), host.halves(), Some(port));
        (*start, *length) = (new_start as u16, *length + GROWTH as u16);
        packet.set_start(new_start);
        Some(())
    }

    /// As [`PacketPath::translate_plain`], for one behind a softwire.
    #[inline(always)]
    fn wrap_plain(&self, packet: &mut Packet<'_>, place: u32, port: u16) -> Option<()> {
        let Outcome::Transmit { start, length, .. } = packet.outcome else { return None };
        let host = self.ledger.state.subscribers.hosts.at_place(place)?;
        let Way::Softwire(position) = host.way() else { return None };
        let (start, length) = (usize::from(start), usize::from(length));
        let ready = self.wrap_usual(packet.frame_mut(), (start, length), (host, position), Some(port))?;
        packet.set_start(ready.start);
        if let Outcome::Transmit { start, length, .. } = &mut packet.outcome {
            (*start, *length) = (ready.start as u16, ready.length as u16);
        }
        Some(())
    }

    /// `None`, and the packet is unchanged, unless it is a usual TCP or UDP packet that fits the
    /// link. The engine has checked its header.
    #[inline(always)]
    pub(super) fn prepare_plain(
        &self,
        frame: &mut [u8],
        (start, length): (usize, usize),
        host: &Host,
    ) -> Option<Ready> {
        match host.way() {
            Way::Nat64(position) => {
                let nat64 = self.ledger.shared.transition.nat64(position)?;
                let new_start = start.checked_sub(GROWTH)?;
                let new_length = length + GROWTH;
                let bytes = frame.get_mut(new_start..new_start + translate::PLAIN)?.first_chunk_mut()?;
                let from = source_in(bytes)?;
                let fits = new_length <= usize::from(nat64.whole_max);
                if !fits || from == DUMMY.to_be_bytes() || !translate::is_plain4(bytes, length) {
                    return None;
                }
                translate::plain_to_ipv6(bytes, nat64.prefix.embed_octets(from), host.halves(), None);
                Some(Ready { start: new_start, length: new_length, split: None })
            }
            Way::Softwire(position) => self.wrap_usual(frame, (start, length), (host, position), None),
        }
    }

    /// `port`: the packet is as it came from outside.
    #[inline(always)]
    fn wrap_usual(
        &self,
        frame: &mut [u8],
        (start, length): (usize, usize),
        (host, position): (&Host, u8),
        port: Option<u16>,
    ) -> Option<Ready> {
        let end = self.ledger.shared.transition.softwire(position)?;
        let new_start = start.checked_sub(ipv6::HEADER_LENGTH)?;
        let new_length = length + ipv6::HEADER_LENGTH;
        let frame = frame.get_mut(new_start..new_start + ipv6::HEADER_LENGTH + HEADERS)?;
        let (outer, inner) = frame.split_first_chunk_mut()?;
        let inner = inner.first_chunk_mut::<HEADERS>()?;
        let mtu = self.edge.path_mtus.of(self.edge.now, (end.realm, host.address()), end.link_mtu);
        if new_length > usize::from(mtu) || self.is_unused(end.realm, end.aftr) {
            return None;
        }
        match port {
            Some(port) => {
                let is_tcp = inner[ip::PROTOCOL] == PROTOCOL_TCP;
                rewrite_headers(inner, is_tcp, End::Destination, host.inner(), port, None);
            }
            None if is_plain(inner, length) => replace_address(inner, End::Destination, host.inner()),
            None => return None,
        }
        write_outer(outer, inner[1], length as u16, (end.aftr_halves, host.halves()));
        Some(Ready { start: new_start, length: new_length, split: None })
    }

    #[inline(always)]
    fn translate_to(
        &self,
        frame: &mut [u8],
        start: usize,
        length: usize,
        (number, host): (HostNumber, &Host),
        position: u8,
    ) -> Result<Ready, Verdict> {
        let transition = &self.ledger.shared.transition;
        let &Nat64Prefix { prefix, lowest_mtu6, .. } = transition.nat64(position).ok_or(Verdict::NoRoute)?;
        let edge = transition.realm(transition.realm_of(host.way())).ok_or(Verdict::NoRoute)?;
        let bytes = frame.get(start..start + length).ok_or(Verdict::IpMalformed)?;
        let headers = translate::read4(bytes).map_err(|refused| verdict_of(refused.reason))?;
        let is_own = headers.source == DUMMY;
        let own = || self.own_address6(transition.realm_of(host.way())).ok_or(Verdict::AddressNotUsed);
        let source = match check_embeddable(headers.source, prefix) {
            _ if is_own => own()?,
            // RFC 6052 §3.1 leaves private routers without an IPv6 address. Their errors come from
            // Natrix, so that hosts learn MTUs (RFC 6791 does so for routers of the other family).
            Err(Verdict::EmbeddedPrivate) if headers.kind == Kind::Error => own()?,
            checked => checked.map(|()| prefix.embed(headers.source))?,
        };
        let new = Tuple6 { source, destination: host.address(), ports: None };
        let mut is_unreachable = false;
        let quoted = match headers.kind {
            Kind::Error => {
                let quoted = translate::quoted4(bytes, &headers).map_err(verdict_of)?;
                let message = bytes.get(headers.transport..).unwrap_or_default();
                is_unreachable =
                    is_own && message.starts_with(&[icmp::TYPE_DESTINATION_UNREACHABLE, icmp::CODE_HOST_UNREACHABLE]);
                if quoted.source != number.0 {
                    return Err(Verdict::IcmpQuoteNoMapping);
                }
                let destination = prefix.embed(quoted.destination);
                Some(Tuple6 { source: host.address(), destination, ports: None })
            }
            _ => None,
        };
        let limits = Limits { mtu4: transition.mtu4, mtu6: edge.mtu, lowest_mtu6, is_hop: false, ..Limits::default() };
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
        (number, host): (HostNumber, &Host),
        position: u8,
    ) -> Result<Ready, Verdict> {
        let transition = &self.ledger.shared.transition;
        let end = transition.softwire(position).ok_or(Verdict::NoRoute)?;
        let (aftr, link) = (end.aftr, transition.realm(end.realm).ok_or(Verdict::NoRoute)?.mtu);
        let mtu = self.edge.path_mtus.of(self.edge.now, (end.realm, host.address()), link);
        let bytes = frame.get_mut(start..start + length).ok_or(Verdict::IpMalformed)?;
        let parsed = parse(bytes)?;
        if is_link_local(parsed.source) {
            return Err(Verdict::SourceInvalid);
        }
        if parsed.class == Class::IcmpError {
            let quote = icmp_quote::parse(bytes)?;
            let inner = Ipv4Addr::from_bits(host.inner());
            let mut change = quote.unchanged();
            change.outer_destination = inner;
            if quote.source.address.to_bits() == number.0 {
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
        self.encapsulate(frame, start, length, (aftr, host.address()), (end.realm, mtu))
    }

    /// RFC 2473 §6, RFC 6333 §7.1: copies the traffic class, but not the hop limit.
    fn encapsulate(
        &self,
        frame: &mut [u8],
        start: usize,
        length: usize,
        (source, destination): (u128, u128),
        (realm, mtu): (RealmId, u16),
    ) -> Result<Ready, Verdict> {
        if self.is_unused(realm, source) {
            return Err(Verdict::AddressNotUsed);
        }
        let traffic_class = frame.get(start + 1).copied().unwrap_or(0);
        let start = start.checked_sub(ipv6::HEADER_LENGTH).ok_or(Verdict::NoBuffer)?;
        let payload_length = u16::try_from(length).map_err(|_| Verdict::TooBig)?;
        let outer = frame.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut()).ok_or(Verdict::NoBuffer)?;
        write_outer(outer, traffic_class, payload_length, (Halves::of(source), Halves::of(destination)));
        let length = length + ipv6::HEADER_LENGTH;
        let split = (length > usize::from(mtu)).then(|| (mtu, self.edge.identifications.next(realm, destination)));
        Ok(Ready { start, length, split })
    }
}

/// The source in the IPv4 header, which ends where the transport header will begin.
#[inline(always)]
fn source_in(bytes: &[u8; translate::PLAIN]) -> Option<[u8; 4]> {
    bytes[GROWTH + ip::SOURCE..].first_chunk().copied()
}

#[inline(never)]
fn write_destination(packet: &mut Packet<'_>, (number, port): (u32, u16)) {
    if let Some(header) = packet.header_mut::<HEADERS>() {
        rewrite_headers(header, header[ip::PROTOCOL] == PROTOCOL_TCP, End::Destination, number, port, None);
    }
}

/// RFC 2473 §6.
#[inline(always)]
fn write_outer(
    bytes: &mut [u8; ipv6::HEADER_LENGTH],
    traffic_class: u8,
    payload_length: u16,
    (Halves(source), Halves(destination)): (Halves, Halves),
) {
    let first = 6 << 60
        | u64::from(traffic_class) << 52
        | u64::from(payload_length) << 16
        | u64::from(ipv6::PROTOCOL_IPV4) << 8
        | u64::from(HOP_LIMIT);
    bytes[..ipv6::SOURCE_OFFSET].copy_from_slice(&first.to_be_bytes());
    let words = [source[0], source[1], destination[0], destination[1]];
    for (to, word) in bytes[ipv6::SOURCE_OFFSET..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
}
