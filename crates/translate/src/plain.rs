//! The short way of whole TCP segments and UDP datagrams in packets without options and extension
//! headers: one look, one rewrite. The result is that of [`crate::to_ipv4`] and [`crate::to_ipv6`]
//! where the packet fits the MTU and nothing counts its hops.

use wire::checksum::Delta;
use wire::checksum::Sum;
use wire::ipv4;
use wire::ipv6;
use wire::tcp;
use wire::udp;

use crate::DONT_FRAGMENT_ABOVE;

/// An IPv6 header and 20 bytes behind it, or an IPv4 header and as much, with room in front.
pub const PLAIN: usize = ipv6::HEADER_LENGTH + TRANSPORT;

const TRANSPORT: usize = 20;
const IPV4: usize = ipv4::HEADER_LENGTH_MIN;
/// What an IPv6 header is longer.
const GROWTH: usize = ipv6::HEADER_LENGTH - IPV4;
/// Offset and More Fragments.
const PART: u16 = 0x3fff;

#[inline(always)]
const fn be16(bytes: &[u8; PLAIN], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// True if the transport header is one of which nothing but its checksum changes. `length` is that
/// of everything behind the IP header.
#[inline(always)]
const fn is_plain_transport(bytes: &[u8; PLAIN], protocol: u8, length: usize) -> bool {
    if length < TRANSPORT {
        return false;
    }
    let udp_length = be16(bytes, ipv6::HEADER_LENGTH + udp::LENGTH_OFFSET) as usize;
    let udp_checksum = be16(bytes, ipv6::HEADER_LENGTH + udp::CHECKSUM_OFFSET);
    match protocol {
        ipv4::PROTOCOL_TCP => true,
        ipv4::PROTOCOL_UDP => udp_length >= udp::HEADER_LENGTH && udp_length <= length && udp_checksum != 0,
        _ => false,
    }
}

/// True if an IPv6 packet, of which padding may follow, can take the short way.
#[inline(always)]
#[must_use]
pub fn is_plain6(packet: &[u8]) -> bool {
    let Some(bytes) = packet.first_chunk::<PLAIN>() else { return false };
    let length = usize::from(be16(bytes, ipv6::PAYLOAD_LENGTH_OFFSET));
    bytes[0] >> 4 == 6
        && ipv6::HEADER_LENGTH + length <= packet.len()
        && IPV4 + length <= usize::from(u16::MAX)
        && is_plain_transport(bytes, bytes[ipv6::NEXT_HEADER_OFFSET], length)
}

/// True if an IPv4 packet of `length` bytes can take the short way. The packet begins 20 bytes
/// behind the start of `bytes`. Its checksum is not looked at.
#[inline(always)]
#[must_use]
pub fn is_plain4(bytes: &[u8; PLAIN], length: usize) -> bool {
    bytes[GROWTH] == 0x45
        && usize::from(be16(bytes, GROWTH + 2)) == length
        && be16(bytes, GROWTH + 6) & PART == 0
        && is_plain_transport(bytes, bytes[GROWTH + 9], length.saturating_sub(IPV4))
}

/// The transport checksum follows the addresses (RFC 1624).
#[inline(always)]
fn settle(bytes: &mut [u8; PLAIN], protocol: u8, before: Sum, after: Sum) {
    let delta = Delta::of_u16(before.fold(), after.fold());
    let is_tcp = protocol == ipv4::PROTOCOL_TCP;
    let at = ipv6::HEADER_LENGTH + if is_tcp { tcp::CHECKSUM_OFFSET } else { udp::CHECKSUM_OFFSET };
    let old = be16(bytes, at);
    let new = if is_tcp { delta.apply(old) } else { delta.apply_udp(old) };
    [bytes[at], bytes[at + 1]] = new.to_be_bytes();
}

/// Makes an IPv6 packet for which [`is_plain6`] is true an IPv4 packet with identification 0, which
/// begins 20 bytes later.
#[inline(always)]
pub fn plain_to_ipv4(bytes: &mut [u8; PLAIN], source: u32, destination: u32) {
    let protocol = bytes[ipv6::NEXT_HEADER_OFFSET];
    let mut before = Sum::ZERO;
    for word in bytes[ipv6::SOURCE_OFFSET..ipv6::HEADER_LENGTH].as_chunks::<8>().0 {
        before = before.add_bytes(word);
    }
    settle(bytes, protocol, before, Sum::ZERO.add_u32(source).add_u32(destination));
    let length = be16(bytes, ipv6::PAYLOAD_LENGTH_OFFSET).saturating_add(IPV4 as u16);
    let traffic_class = (be16(bytes, 0) >> 4) as u8;
    let fragment = if usize::from(length) > DONT_FRAGMENT_ABOVE { ipv4::FLAG_DONT_FRAGMENT } else { 0 };
    let first = u32::from_be_bytes([0x45, traffic_class, 0, 0]) | u32::from(length);
    let third = u32::from_be_bytes([bytes[ipv6::HOP_LIMIT_OFFSET], protocol, 0, 0]);
    let sum = Sum::ZERO.add_u32(first).add_u16(fragment).add_u32(third).add_u32(source).add_u32(destination);
    let words = [first, u32::from(fragment), third | u32::from(sum.checksum()), source, destination];
    for (to, word) in bytes[GROWTH..ipv6::HEADER_LENGTH].as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_be_bytes();
    }
}

/// Makes an IPv4 packet for which [`is_plain4`] is true an IPv6 packet, which begins where `bytes`
/// do.
#[inline(always)]
pub fn plain_to_ipv6(bytes: &mut [u8; PLAIN], source: u128, destination: u128) {
    let protocol = bytes[GROWTH + 9];
    let length = be16(bytes, GROWTH + 2).saturating_sub(IPV4 as u16);
    let (traffic_class, hop_limit) = (bytes[GROWTH + 1], bytes[GROWTH + 8]);
    let mut before = Sum::ZERO;
    for word in bytes[GROWTH + 12..ipv6::HEADER_LENGTH].as_chunks::<4>().0 {
        before = before.add_u32(u32::from_be_bytes(*word));
    }
    settle(bytes, protocol, before, Sum::ZERO.add_u128(source).add_u128(destination));
    let first = 6 << 28 | u32::from(traffic_class) << 20;
    bytes[..4].copy_from_slice(&first.to_be_bytes());
    bytes[4..6].copy_from_slice(&length.to_be_bytes());
    [bytes[6], bytes[7]] = [protocol, hop_limit];
    bytes[8..24].copy_from_slice(&source.to_be_bytes());
    bytes[24..40].copy_from_slice(&destination.to_be_bytes());
}
