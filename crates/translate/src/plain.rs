//! The short way of whole TCP segments and UDP datagrams in packets without options and extension
//! headers: one look, one rewrite. The result is that of [`crate::to_ipv4`] and [`crate::to_ipv6`]
//! where the packet fits the MTU and nothing counts its hops.
//!
//! Headers are read and written eight bytes at a time, and checksums change by one difference of
//! all addresses, old and new, that is folded once (RFC 1624). Nothing branches on the protocol:
//! that of the next packet cannot be predicted.

use core::hint::select_unpredictable;

use wire::checksum::end_around;
use wire::checksum::end_around_sum;
use wire::ipv4;
use wire::ipv6;
use wire::tcp;
use wire::udp;

use crate::DONT_FRAGMENT_ABOVE;
use crate::address::Halves;
use crate::address::word;

/// An IPv6 header and 20 bytes behind it, or an IPv4 header and as much, with room in front.
pub const PLAIN: usize = ipv6::HEADER_LENGTH + TRANSPORT;

const TRANSPORT: usize = 20;
const IPV4: usize = ipv4::HEADER_LENGTH_MIN;
/// What an IPv6 header is longer.
const GROWTH: usize = ipv6::HEADER_LENGTH - IPV4;
/// Of the first eight bytes of an IPv4 header: version and length of the header, length of the
/// packet, fragment offset and More Fragments.
const FIXED: u64 = 0xff00_ffff_0000_3fff;

#[inline(always)]
fn put_word(bytes: &mut [u8; PLAIN], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

#[inline(always)]
const fn be16(bytes: &[u8; PLAIN], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// True if the transport header is one of which nothing but its checksum changes. `length` is that
/// of everything behind the IP header.
#[inline(always)]
fn is_plain_transport(bytes: &[u8; PLAIN], protocol: u8, length: usize) -> bool {
    let is_tcp = protocol == ipv4::PROTOCOL_TCP;
    // TCP has other fields there, and gets values that pass.
    let of_udp =
        |offset: usize, passes: u16| select_unpredictable(is_tcp, passes, be16(bytes, ipv6::HEADER_LENGTH + offset));
    let udp_length = usize::from(of_udp(udp::LENGTH_OFFSET, udp::HEADER_LENGTH as u16));
    let udp_checksum = of_udp(udp::CHECKSUM_OFFSET, 1);
    length >= TRANSPORT
        && ipv4::is_tcp_or_udp(protocol)
        && udp_length >= udp::HEADER_LENGTH
        && udp_length <= length
        && udp_checksum != 0
}

/// Of a packet for which [`plain_headers6`] has an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHeaders {
    /// As IPv4.
    pub length: usize,
    /// Not UDP.
    pub is_tcp: bool,
    /// It may not go another hop.
    pub is_at_last_hop: bool,
}

/// True if an IPv6 packet, of which padding may follow, can take the short way. It begins with
/// `bytes`, and `room` bytes are there from its start on.
#[inline(always)]
#[must_use]
pub fn is_plain6(bytes: &[u8; PLAIN], room: usize) -> bool {
    let (length, protocol) = (usize::from(be16(bytes, ipv6::PAYLOAD_LENGTH_OFFSET)), bytes[ipv6::NEXT_HEADER_OFFSET]);
    plain_headers6(bytes, room).is_some() && is_plain_transport(bytes, protocol, length)
}

/// `None` unless [`is_plain6`], of a packet whose TCP or UDP header is known to have a right
/// length.
#[inline(always)]
#[must_use]
pub fn plain_headers6(bytes: &[u8; PLAIN], room: usize) -> Option<PlainHeaders> {
    let first = u64::from_be(word(bytes, 0));
    let length = usize::from((first >> 16) as u16);
    let protocol = (first >> 8) as u8;
    let is_tcp = protocol == ipv4::PROTOCOL_TCP;
    let has_checksum = is_tcp | (be16(bytes, ipv6::HEADER_LENGTH + udp::CHECKSUM_OFFSET) != 0);
    let is_plain = first >> 60 == 6
        && ipv6::HEADER_LENGTH + length <= room
        && IPV4 + length <= usize::from(u16::MAX)
        && length >= TRANSPORT
        && ipv4::is_tcp_or_udp(protocol)
        && has_checksum;
    if !is_plain {
        return None;
    }
    Some(PlainHeaders { length: IPV4 + length, is_tcp, is_at_last_hop: first as u8 <= 1 })
}

/// True if an IPv4 packet of `length` bytes can take the short way. The packet begins 20 bytes
/// behind the start of `bytes`. Its checksum is not looked at.
#[inline(always)]
#[must_use]
pub fn is_plain4(bytes: &[u8; PLAIN], length: usize) -> bool {
    let first = u64::from_be(word(bytes, GROWTH));
    first & FIXED == 0x45 << 56 | (length as u64) << 32
        && is_plain_transport(bytes, bytes[GROWTH + 9], length.saturating_sub(IPV4))
}

/// [`is_plain4`] of a packet that is known to have a usual IPv4 header of this length, and a TCP or
/// UDP header with a right length.
#[inline(always)]
#[must_use]
pub fn is_steady4(bytes: &[u8; PLAIN], length: usize) -> bool {
    let is_tcp = bytes[GROWTH + 9] == ipv4::PROTOCOL_TCP;
    let has_checksum = be16(bytes, ipv6::HEADER_LENGTH + udp::CHECKSUM_OFFSET) != 0;
    (length >= IPV4 + TRANSPORT) & (is_tcp | has_checksum)
}

/// Gives the transport header a new port, if there is one, at this offset. Returns what that adds
/// to the sum of changes.
#[inline(always)]
fn replace_port(bytes: &mut [u8; PLAIN], offset: usize, port: Option<u16>) -> u64 {
    let Some(port) = port else { return 0 };
    let at = ipv6::HEADER_LENGTH + offset;
    let (old, new) = ([bytes[at], bytes[at + 1]], port.to_be_bytes());
    [bytes[at], bytes[at + 1]] = new;
    u64::from(!u16::from_ne_bytes(old)) + u64::from(u16::from_ne_bytes(new))
}

/// The transport checksum follows the addresses and the port (RFC 1624). `change` is the sum of
/// them, less the old addresses.
#[inline(always)]
fn settle(bytes: &mut [u8; PLAIN], is_tcp: bool, change: u64, ports: u64) {
    let at = ipv6::HEADER_LENGTH + select_unpredictable(is_tcp, tcp::CHECKSUM_OFFSET, udp::CHECKSUM_OFFSET);
    let old = u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let checksum = !end_around(end_around_sum([change, ports + u64::from(!old)]));
    [bytes[at], bytes[at + 1]] = checksum.to_ne_bytes();
    // Unlike a branch on the protocol, this one is predictable.
    if checksum == 0 {
        avoid_zero(bytes, is_tcp);
    }
}

/// Zero would mean none (RFC 768).
#[cold]
#[inline(never)]
fn avoid_zero(bytes: &mut [u8; PLAIN], is_tcp: bool) {
    if !is_tcp {
        let at = ipv6::HEADER_LENGTH + udp::CHECKSUM_OFFSET;
        [bytes[at], bytes[at + 1]] = [0xff; 2];
    }
}

/// What a NAT changes besides addresses, and counts one hop for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Further {
    /// The new source port of a packet to IPv4, or destination port of one to IPv6.
    pub port: u16,
    /// Of a packet to IPv4 without Don't Fragment.
    pub identification: u16,
}

/// True if the IPv4 packet that an IPv6 packet for which [`is_plain6`] is true becomes may be
/// fragmented, so that it needs an identification. `length` is that of the IPv4 packet.
#[inline(always)]
#[must_use]
pub const fn may_be_fragmented(length: u16) -> bool {
    length as usize <= DONT_FRAGMENT_ABOVE
}

/// Makes an IPv6 packet for which [`is_plain6`] is true an IPv4 packet, which begins 20 bytes
/// later. Without further changes its identification is 0.
#[inline(always)]
pub fn plain_to_ipv4(bytes: &mut [u8; PLAIN], source: u32, destination: u32, further: Option<Further>) {
    let first = u64::from_be(word(bytes, 0));
    let protocol = (first >> 8) as u8;
    let new = u64::from(source) << 32 | u64::from(destination);
    let old = [word(bytes, 8), word(bytes, 16), word(bytes, 24), word(bytes, 32)];
    let change = end_around_sum([!end_around_sum(old), new.to_be()]);
    let length = (first >> 16 & 0xffff) + IPV4 as u64;
    let traffic_class = first >> 52 & 0xff;
    let may_be_fragmented = length <= DONT_FRAGMENT_ABOVE as u64;
    let fragment = u64::from(!may_be_fragmented) * u64::from(ipv4::FLAG_DONT_FRAGMENT);
    let identification = further.map_or(0, |further| u64::from(further.identification) * u64::from(may_be_fragmented));
    let fragment = identification << 16 | fragment;
    let head = 0x45 << 56 | traffic_class << 48 | length << 32 | fragment;
    // Protocol and hop limit change places.
    let tail = u64::from((first as u16).rotate_left(8)) - if further.is_some() { 0x100 } else { 0 };
    let halves = (head >> 32) + fragment + (tail << 16) + u64::from(source) + u64::from(destination);
    let checksum = !end_around(halves);
    put_word(bytes, GROWTH, head.to_be());
    put_word(bytes, GROWTH + 8, (tail << 48 | u64::from(checksum) << 32 | u64::from(source)).to_be());
    bytes[GROWTH + 16..ipv6::HEADER_LENGTH].copy_from_slice(&destination.to_be_bytes());
    let ports = replace_port(bytes, udp::SOURCE_PORT_OFFSET, further.map(|further| further.port));
    settle(bytes, protocol == ipv4::PROTOCOL_TCP, change, ports);
}

/// Makes an IPv4 packet for which [`is_plain4`] is true an IPv6 packet, which begins where `bytes`
/// do. With a new destination port one hop is counted, of at least one.
#[inline(always)]
pub fn plain_to_ipv6(bytes: &mut [u8; PLAIN], Halves(source): Halves, Halves(destination): Halves, port: Option<u16>) {
    let first = u64::from_be(word(bytes, GROWTH));
    // They change places.
    let hops_and_protocol = u16::from_le_bytes([bytes[GROWTH + 8], bytes[GROWTH + 9]]);
    let is_tcp = bytes[GROWTH + 9] == ipv4::PROTOCOL_TCP;
    let old = word(bytes, GROWTH + 12);
    let new = [source[0], source[1], destination[0], destination[1]];
    // At once, so that they need no registers for long.
    for (to, word) in bytes[8..ipv6::HEADER_LENGTH].as_chunks_mut::<8>().0.iter_mut().zip(new) {
        *to = word.to_ne_bytes();
    }
    let change = end_around_sum([!old, end_around_sum(new)]);
    let hops_and_protocol = hops_and_protocol.wrapping_sub(u16::from(port.is_some()));
    let length = u64::from((first >> 32) as u16).wrapping_sub(IPV4 as u64) & 0xffff;
    let head = 6 << 60 | (first >> 48 & 0xff) << 52 | length << 16 | u64::from(hops_and_protocol);
    put_word(bytes, 0, head.to_be());
    let ports = replace_port(bytes, udp::DESTINATION_PORT_OFFSET, port);
    settle(bytes, is_tcp, change, ports);
}
