//! What stands between the hosts of a test and a device that they reach over IPv6.
//!
//! The tester and the probe write and read IPv4 packets, whatever the family. On the inside link an
//! edge makes of them what leaves a customer's network, and gives back what comes to it:
//!
//! ```text
//!   Initiator ── IPv4 ── edge ══ inside link, IPv6 ══► device ── outside link, IPv4 ── Responder
//!
//!   nat64   a CLAT (RFC 6877): headers are translated (RFC 7915), the device translates back
//!   dslite  a B4 (RFC 6333): packets are put into a softwire, from a B4 for each inside address
//! ```
//!
//! So the Initiator is on IPv6 (RFC 9693 §4.1), and every test and finding exists for each family.
//! The edge counts no hop, and it solicits and advertises neighbours where the tester speaks ARP.

use core::net::Ipv6Addr;

use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use serde::Serialize;
use translate::Halves;
use translate::Limits;
use translate::PLAIN;
use translate::Prefix;
use translate::Tuple4;
use translate::Tuple6;
use translate::icmp::Meaning;
use wire::arp;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::ETHER_TYPE_OFFSET;
use wire::ethernet::FRAME_LENGTH_MIN;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ethernet::SOURCE_OFFSET;
use wire::field;
use wire::ipv4;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::neighbour;

use crate::frame::CHECK_SEQUENCE;
use crate::frame::FRAME_BYTES_MAX;
use crate::topology::DEVICE_INSIDE;
use crate::topology::TESTER_INSIDE;

/// What the device's subscribers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4 hosts.
    #[default]
    Nat44,
    /// IPv6 hosts, by stateful NAT64.
    Nat64,
    /// IPv4 hosts behind B4s, in softwires.
    Dslite,
}

impl Family {
    /// What its packets are longer by on the inside link, bytes.
    pub const fn growth(self) -> usize {
        match self {
            Family::Nat44 => 0,
            Family::Nat64 => GROWTH,
            Family::Dslite => ipv6::HEADER_LENGTH,
        }
    }
}

/// MTU of both links: packets of the largest frame fit, also on the inside, and also if they are
/// fragments.
pub const fn mtu(family: Family) -> u16 {
    let fragment_header = match family {
        Family::Nat64 => ipv6::FRAGMENT_HEADER_LENGTH,
        Family::Nat44 | Family::Dslite => 0,
    };
    (FRAME_BYTES_MAX - CHECK_SEQUENCE - HEADER_LENGTH + family.growth() + fragment_header) as u16
}

/// The device's address on the inside link.
pub const DEVICE_INSIDE6: Ipv6Addr = Ipv6Addr::from_bits(LINK | 1);
/// The tester's address on the inside link: a router in front of all hosts.
pub const TESTER_INSIDE6: Ipv6Addr = Ipv6Addr::from_bits(LINK | 2);
/// Length of the prefix of the inside link.
pub const LINK_PREFIX6_LENGTH: u8 = 64;
/// Where all inside hosts are: each has a /56 of its own, as a customer has.
pub const INSIDE_PREFIX6: &str = "2001:db8:6400::/40";
/// Length of a customer's prefix.
pub const CUSTOMER_PREFIX_LENGTH: u8 = 56;
/// The prefix of NAT64. The well-known one is not for 198.18.0.0/15 (RFC 6052 §3.1).
pub const NAT64_PREFIX: &str = "2001:db8:64:ff9b::/96";
/// Where softwires end.
pub const AFTR: Ipv6Addr = Ipv6Addr::from_bits(0x2001_0db8_00af << 80 | 1);

const LINK: u128 = 0x2001_0db8_ffff << 80;
const HOSTS: u128 = 0x20_010d_b864 << HOSTS_SHIFT;
const HOSTS_SHIFT: u32 = 88;
/// Where the last 16 bits of an inside address are in that of its host.
const HOST_SHIFT: u32 = 72;
const EMBEDDED: Prefix = match Prefix::new(0x2001_0db8_0064_ff9b << 64, 96) {
    Ok(prefix) => prefix,
    Err(_) => panic!("the prefix has a length of RFC 6052"),
};
/// All inside addresses begin with these 16 bits.
const INSIDE: u32 = 0x0a00;
/// What an IPv6 header is longer than one of IPv4.
const GROWTH: usize = ipv6::HEADER_LENGTH - ipv4::HEADER_LENGTH_MIN;
/// IPv4 in IPv6 (RFC 2473).
const PROTOCOL_IPV4: u8 = 4;
const HOP_LIMIT: u8 = 64;
/// Links of a test carry what the tester sends: nothing is cut at the edge.
const LIMITS: Limits =
    Limits { mtu4: 9_000, mtu6: 9_000, lowest_mtu6: 9_000, copies_traffic_class: true, is_hop: false };

/// Customer prefix of the host with an inside address: its first address, of which
/// [`CUSTOMER_PREFIX_LENGTH`] bits count.
pub const fn customer_of(inside: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(host(inside) & !1)
}

/// The host, or the B4, with an inside address.
const fn host(inside: u32) -> u128 {
    HOSTS | ((inside & 0xffff) as u128) << HOST_SHIFT | 1
}

/// What an IPv4 address is on the inside link of NAT64.
fn address6(address: u32) -> u128 {
    match address {
        _ if address >> 16 == INSIDE => host(address),
        _ if address == DEVICE_INSIDE.to_bits() => DEVICE_INSIDE6.to_bits(),
        _ if address == TESTER_INSIDE.to_bits() => TESTER_INSIDE6.to_bits(),
        _ => EMBEDDED.embed(address),
    }
}

/// The opposite; None for an address that none of the tester's packets has.
fn address4(address: u128) -> Option<u32> {
    if address >> HOSTS_SHIFT == HOSTS >> HOSTS_SHIFT {
        let inside = INSIDE << 16 | (address >> HOST_SHIFT) as u32 & 0xffff;
        return (host(inside) == address).then_some(inside);
    }
    match address {
        _ if EMBEDDED.contains(address) => Some(EMBEDDED.extract(address)),
        _ if address == DEVICE_INSIDE6.to_bits() => Some(DEVICE_INSIDE.to_bits()),
        _ if address == TESTER_INSIDE6.to_bits() => Some(TESTER_INSIDE.to_bits()),
        _ => None,
    }
}

/// What an ICMP error from outside is when it comes out of an edge: IPv6 has fewer codes, and where
/// the error is translated twice some become others (RFC 7915 §4.2, §5.2). None where it has no
/// meaning there.
pub fn arrives_as(family: Family, (icmp_type, code): (u8, u8)) -> Option<(u8, u8)> {
    if family != Family::Nat64 {
        return Some((icmp_type, code));
    }
    let error = Meaning { icmp_type, code, parameter: u32::from(ipv6::MTU_MIN) };
    let on_link = translate::icmp::error_to_6(error, ipv6::MTU_MIN, &LIMITS).ok()?;
    let seen = translate::icmp::error_to_4(on_link, false, &LIMITS).ok()?;
    Some((seen.icmp_type, seen.code))
}

/// Which ports of the tester have an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// The inside port, the first: the device is behind it.
    Inside,
    /// Both: only a wire is between them, and what leaves one edge has to pass the other.
    Both,
}

/// Ports of the tester of which some lead to the device over IPv6.
pub struct CustomerEdge<I: Io> {
    io: I,
    family: Family,
    edges: Edges,
}

impl<I: Io> CustomerEdge<I> {
    /// On these ports. With [`Family::Nat44`] all frames pass as they are.
    pub const fn new(io: I, family: Family, edges: Edges) -> CustomerEdge<I> {
        CustomerEdge { io, family, edges }
    }

    const fn has_edge(&self, port: PortIndex) -> bool {
        match (self.family, self.edges) {
            (Family::Nat44, _) => false,
            (_, Edges::Inside) => port.0 == 0,
            (_, Edges::Both) => true,
        }
    }

    /// Makes of an ARP request for the device a solicitation of a neighbour.
    fn solicit(buffer: &mut I::Buffer) {
        let Some(request) = arp_of(buffer.bytes()) else { return };
        if request.operation == arp::Operation::Request && request.target_address == DEVICE_INSIDE.to_bits() {
            let (own, device) = (TESTER_INSIDE6.to_bits(), DEVICE_INSIDE6.to_bits());
            let message = neighbour::Message::solicitation(own, request.sender_mac, device);
            let group = MacAddress(ipv6::station_of_group(message.destination));
            // It is longer than what was there, and buffers have room for whole packets.
            let _ = fill(buffer, [request.sender_mac, group], &message);
        }
    }

    /// Answers a solicitation for the tester, and makes of the device's advertisement an answer of
    /// ARP. Whether the frame was either.
    fn take_neighbour(&mut self, port: PortIndex, buffer: &mut I::Buffer) -> bool {
        let Ok(message) = neighbour::Message::parse(&buffer.bytes()[HEADER_LENGTH..]) else { return false };
        let own = MacAddress(self.io.mac(port));
        match (message.kind, message.station) {
            (neighbour::Kind::Solicitation, _) if message.target == TESTER_INSIDE6.to_bits() => {
                let asker = MacAddress::at(buffer.bytes(), SOURCE_OFFSET);
                // The device asks again if there is no room.
                if let Some(mut answer) = self.io.allocate()
                    && fill(&mut answer, [own, asker], &message.reply(own))
                {
                    let mut burst = Burst::new();
                    // An empty burst has room.
                    let _ = burst.push(answer);
                    self.io.transmit(port, &mut burst);
                }
            }
            (neighbour::Kind::Advertisement { .. }, Some(station)) if message.target == DEVICE_INSIDE6.to_bits() => {
                let request = arp::Message::request(own, TESTER_INSIDE.to_bits(), DEVICE_INSIDE.to_bits());
                let link = LinkHeader { destination: own, source: station, vlan: None, ether_type: ETHER_TYPE_ARP };
                let mut frame = [0; FRAME_LENGTH_MIN];
                // There is room for the header.
                let _ = link.write(&mut frame);
                frame[HEADER_LENGTH..HEADER_LENGTH + arp::LENGTH].copy_from_slice(&request.reply(station).to_bytes());
                // It is shorter than what was there.
                let _ = buffer.fill(&[&frame]);
            }
            _ => {}
        }
        true
    }
}

fn ether_type(frame: &[u8]) -> u16 {
    if frame.len() < HEADER_LENGTH { 0 } else { u16::from_be_bytes([frame[12], frame[13]]) }
}

fn arp_of(frame: &[u8]) -> Option<arp::Message> {
    let header = LinkHeader::parse(frame).ok().filter(|header| header.ether_type == ETHER_TYPE_ARP)?;
    arp::Message::parse(&frame[header.payload_offset()..]).ok()
}

/// Writes a message of a neighbour over a buffer, from one station to another.
fn fill<B: Buffer>(buffer: &mut B, [source, destination]: [MacAddress; 2], message: &neighbour::Message) -> bool {
    let mut link = [0; HEADER_LENGTH];
    // The room is exactly the header's.
    let _ = LinkHeader { destination, source, vlan: None, ether_type: ETHER_TYPE_IPV6 }.write(&mut link);
    let mut packet = [0; neighbour::LENGTH_MAX];
    let length = message.write(&mut packet);
    buffer.fill(&[&link, &packet[..length]])
}

/// Both stations of a frame: a header that grows is written over them.
type Stations = [u8; ETHER_TYPE_OFFSET];

/// Gives a frame its new packet, which begins `start` bytes into the buffer and ends where the old
/// one did.
#[inline(always)]
fn reframe<B: Buffer>(buffer: &mut B, start: usize, stations: &Stations, ether_type: u16) {
    let (bytes, _) = buffer.frame_mut();
    let (frame, end) = (start - HEADER_LENGTH, bytes.len());
    bytes[frame..start - 2].copy_from_slice(stations);
    bytes[start - 2..start].copy_from_slice(&ether_type.to_be_bytes());
    // It ends where it ended.
    let _ = buffer.set_frame(frame as u16, (end - frame) as u16);
}

/// A whole IPv4 packet of UDP or TCP on its way to NAT64. Where it begins now.
#[inline(always)]
fn plain_to_ipv6(bytes: &mut [u8], packet: usize) -> Option<usize> {
    let start = packet.checked_sub(GROWTH)?;
    let length = usize::from(field::u16_at(&bytes[packet..], ipv4::TOTAL_LENGTH_OFFSET));
    let is_whole = length <= bytes.len() - packet;
    let chunk = bytes[start..].first_chunk_mut::<PLAIN>()?;
    if !is_whole || !translate::is_plain4(chunk, length) {
        return None;
    }
    let [source, destination] =
        [ipv4::SOURCE_OFFSET, ipv4::DESTINATION_OFFSET].map(|offset| field::u32_at(&chunk[GROWTH..], offset));
    let [source, destination] = [source, destination].map(|address| Halves::of(address6(address)));
    translate::plain_to_ipv6(chunk, source, destination, None);
    Some(start)
}

/// Any other. None where it cannot be translated: nothing has changed then.
fn any_to_ipv6(bytes: &mut [u8], packet: usize) -> Option<usize> {
    let headers = translate::read4(&bytes[packet..]).ok()?;
    let tuple = |headers: &translate::Headers4| Tuple6 {
        source: address6(headers.source),
        destination: address6(headers.destination),
        ports: None,
    };
    let quoted = translate::quoted4(&bytes[packet..], &headers).ok().map(|quoted| tuple(&quoted));
    translate::to_ipv6(bytes, packet, &headers, &tuple(&headers), quoted.as_ref(), &LIMITS).ok().map(|done| done.start)
}

/// Puts an IPv4 packet of a host into a softwire. None for that of somebody else.
fn into_softwire(bytes: &mut [u8], packet: usize) -> Option<usize> {
    let start = packet.checked_sub(ipv6::HEADER_LENGTH)?;
    let (source, length) = {
        let inner = bytes.get(packet..).filter(|inner| inner.len() >= ipv4::HEADER_LENGTH_MIN)?;
        (field::u32_at(inner, ipv4::SOURCE_OFFSET), field::u16_at(inner, ipv4::TOTAL_LENGTH_OFFSET))
    };
    if source >> 16 != INSIDE {
        return None;
    }
    let mut outer = Ipv6::new_unchecked(&mut bytes[start..]);
    outer.set_class_and_label(0, 0);
    outer.set_payload_length(length);
    outer.set_next_header(PROTOCOL_IPV4);
    outer.set_hop_limit(HOP_LIMIT);
    outer.set_source(host(source));
    outer.set_destination(AFTR.to_bits());
    Some(start)
}

/// The opposite of [`plain_to_ipv6`].
#[inline(always)]
fn plain_to_ipv4(bytes: &mut [u8], packet: usize) -> Option<usize> {
    let room = bytes[packet..].len();
    let chunk = bytes[packet..].first_chunk_mut::<PLAIN>()?;
    if !translate::is_plain6(chunk, room) {
        return None;
    }
    let [source, destination] =
        [ipv6::SOURCE_OFFSET, ipv6::DESTINATION_OFFSET].map(|offset| field::u128_at(chunk.as_slice(), offset));
    translate::plain_to_ipv4(chunk, address4(source)?, address4(destination)?, None);
    Some(packet + GROWTH)
}

/// The opposite of [`any_to_ipv6`].
fn any_to_ipv4(bytes: &mut [u8], packet: usize) -> Option<usize> {
    let headers = translate::read6(&bytes[packet..]).ok()?;
    let tuple = |headers: &translate::Headers6| {
        let (source, destination) = (address4(headers.source)?, address4(headers.destination)?);
        Some(Tuple4 { source, destination, ports: None })
    };
    let new = tuple(&headers)?;
    let quoted = translate::quoted6(&bytes[packet..], &headers).ok().and_then(|quoted| tuple(&quoted));
    translate::to_ipv4(bytes, packet, &headers, &new, quoted.as_ref(), 0, &LIMITS).ok().map(|done| done.start)
}

/// Takes an IPv4 packet out of the softwire of its host. `edges` says which end is the host's.
fn out_of_softwire(bytes: &[u8], packet: usize, edges: Edges) -> Option<usize> {
    let outer = Ipv6::new_checked(&bytes[packet..]).ok().filter(|outer| outer.next_header() == PROTOCOL_IPV4)?;
    let inner = outer.payload();
    if inner.len() < ipv4::HEADER_LENGTH_MIN {
        return None;
    }
    let is_down =
        outer.source() == AFTR.to_bits() && outer.destination() == host(field::u32_at(inner, ipv4::DESTINATION_OFFSET));
    // On a wire the other end is an edge, too.
    let is_up = edges == Edges::Both && outer.destination() == AFTR.to_bits();
    (is_down || is_up).then_some(packet + ipv6::HEADER_LENGTH)
}

impl<I: Io> CustomerEdge<I> {
    /// What leaves the tester.
    #[inline(always)]
    fn leave(&self, buffer: &mut I::Buffer) {
        match ether_type(buffer.bytes()) {
            ETHER_TYPE_IPV4 => {}
            ETHER_TYPE_ARP => return Self::solicit(buffer),
            // It found no room in the ring before.
            _ => return,
        }
        let Some(stations) = buffer.bytes().first_chunk().copied() else { return };
        let (bytes, frame) = buffer.frame_mut();
        let packet = usize::from(frame) + HEADER_LENGTH;
        let is_to_device = bytes.len() >= packet + ipv4::HEADER_LENGTH_MIN
            && field::u32_at(&bytes[packet..], ipv4::DESTINATION_OFFSET) == DEVICE_INSIDE.to_bits();
        let start = match self.family {
            Family::Dslite if !is_to_device => into_softwire(bytes, packet),
            _ => plain_to_ipv6(bytes, packet).or_else(|| any_to_ipv6(bytes, packet)),
        };
        if let Some(start) = start {
            reframe(buffer, start, &stations, ETHER_TYPE_IPV6);
        }
    }

    /// What comes to the tester.
    #[inline(always)]
    fn arrive(&mut self, port: PortIndex, buffer: &mut I::Buffer) {
        if ether_type(buffer.bytes()) != ETHER_TYPE_IPV6 {
            return;
        }
        let Some(stations) = buffer.bytes().first_chunk().copied() else { return };
        let (bytes, frame) = buffer.frame_mut();
        let packet = usize::from(frame) + HEADER_LENGTH;
        let start = match self.family {
            Family::Dslite => out_of_softwire(bytes, packet, self.edges),
            _ => plain_to_ipv4(bytes, packet),
        };
        if let Some(start) = start {
            return reframe(buffer, start, &stations, ETHER_TYPE_IPV4);
        }
        if !self.take_neighbour(port, buffer) {
            let (bytes, _) = buffer.frame_mut();
            if let Some(start) = any_to_ipv4(bytes, packet) {
                reframe(buffer, start, &stations, ETHER_TYPE_IPV4);
            }
        }
    }
}

impl<I: Io> Io for CustomerEdge<I> {
    type Buffer = I::Buffer;

    fn port_count(&self) -> usize {
        self.io.port_count()
    }

    #[inline(always)]
    fn receive(&mut self, port: PortIndex, burst: &mut Burst<I::Buffer>) {
        let before = burst.len();
        self.io.receive(port, burst);
        if self.has_edge(port) {
            for buffer in &mut burst[before..] {
                self.arrive(port, buffer);
            }
        }
    }

    #[inline(always)]
    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<I::Buffer>) {
        if self.has_edge(port) {
            for buffer in burst.iter_mut() {
                self.leave(buffer);
            }
        }
        self.io.transmit(port, burst);
    }

    #[inline(always)]
    fn allocate(&mut self) -> Option<I::Buffer> {
        self.io.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.io.mac(port)
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        self.io.can_receive(port)
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        self.io.can_transmit(port)
    }

    fn link_up(&self, port: PortIndex) -> bool {
        self.io.link_up(port)
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.io.statistics(port)
    }
}

#[cfg(test)]
mod tests;
