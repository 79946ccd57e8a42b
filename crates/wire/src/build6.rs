//! Builds whole, valid IPv6 packets for tests and tools; see [`crate::build`] for IPv4.

use std::net::Ipv6Addr;
use std::net::SocketAddrV6;

use crate::checksum;
use crate::field;
use crate::icmp6;
use crate::icmp6::Icmp6;
use crate::ipv4;
use crate::ipv6;
use crate::ipv6::Fragment;
use crate::ipv6::Ipv6;
use crate::tcp;
use crate::tcp::Flags;
use crate::tcp::Tcp;
use crate::udp;
use crate::udp::Udp;

/// Address and port from text.
///
/// # Panics
/// If the text is no address.
#[must_use]
#[allow(clippy::expect_used, reason = "for literals of tests")]
pub fn endpoint(address: &str, port: u16) -> SocketAddrV6 {
    SocketAddrV6::new(address.parse().expect("an IPv6 address"), port, 0, 0)
}

/// A packet of any protocol, with hop limit 64; `payload` is everything behind the IPv6 header.
#[must_use]
pub fn raw(source: Ipv6Addr, destination: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; ipv6::HEADER_LENGTH];
    let mut view = Ipv6::new_unchecked(packet.as_mut_slice());
    view.set_class_and_label(0, 0);
    view.set_payload_length(payload.len() as u16);
    view.set_next_header(next_header);
    view.set_hop_limit(64);
    view.set_source(source.to_bits());
    view.set_destination(destination.to_bits());
    packet.extend_from_slice(payload);
    packet
}

/// A UDP datagram.
#[must_use]
pub fn udp(source: SocketAddrV6, destination: SocketAddrV6, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; udp::HEADER_LENGTH];
    datagram.extend_from_slice(payload);
    let length = datagram.len() as u16;
    let mut view = Udp::new_unchecked(datagram.as_mut_slice());
    view.set_source_port(source.port());
    view.set_destination_port(destination.port());
    view.set_length(length);
    let mut packet = raw(*source.ip(), *destination.ip(), ipv4::PROTOCOL_UDP, &datagram);
    fill_checksum(&mut packet);
    packet
}

/// A TCP segment without options, with the largest window.
#[must_use]
pub fn tcp(source: SocketAddrV6, destination: SocketAddrV6, flags: Flags, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; tcp::HEADER_LENGTH_MIN];
    segment.extend_from_slice(payload);
    let mut view = Tcp::new_unchecked(segment.as_mut_slice());
    view.set_source_port(source.port());
    view.set_destination_port(destination.port());
    view.set_header_length(tcp::HEADER_LENGTH_MIN);
    view.set_flags(flags);
    view.set_window(u16::MAX);
    let mut packet = raw(*source.ip(), *destination.ip(), ipv4::PROTOCOL_TCP, &segment);
    fill_checksum(&mut packet);
    packet
}

/// An ICMPv6 message: type, code, the four bytes behind the checksum, and all that follows.
#[must_use]
pub fn icmp(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    (icmp_type, code): (u8, u8),
    rest: [u8; 4],
    payload: &[u8],
) -> Vec<u8> {
    let message = [&[icmp_type, code, 0, 0], rest.as_slice(), payload].concat();
    let mut packet = raw(source, destination, ipv6::PROTOCOL_ICMP6, &message);
    fill_checksum(&mut packet);
    packet
}

/// An Echo Request with sequence number 1.
#[must_use]
pub fn echo_request(source: Ipv6Addr, destination: Ipv6Addr, identifier: u16, payload: &[u8]) -> Vec<u8> {
    let [a, b] = identifier.to_be_bytes();
    icmp(source, destination, (icmp6::TYPE_ECHO_REQUEST, 0), [a, b, 0, 1], payload)
}

/// Puts an extension header in front of what follows the IPv6 header. `body` is everything behind
/// its next header byte, with its length byte where it has one.
#[must_use]
pub fn with_extension(packet: &[u8], header: u8, body: &[u8]) -> Vec<u8> {
    let view = Ipv6::new_unchecked(packet);
    let mut extended = field::clamped(packet, 0, ipv6::HEADER_LENGTH).to_vec();
    extended.push(view.next_header());
    extended.extend_from_slice(body);
    extended.extend_from_slice(view.payload());
    let length = (extended.len() - ipv6::HEADER_LENGTH) as u16;
    let mut view = Ipv6::new_unchecked(extended.as_mut_slice());
    view.set_next_header(header);
    view.set_payload_length(length);
    extended
}

/// Cuts a packet without extension headers into fragments of at most `mtu` bytes (RFC 8200 §4.5).
/// A packet that fits is one fragment.
#[must_use]
pub fn fragment(packet: &[u8], mtu: usize, identification: u32) -> Vec<Vec<u8>> {
    let view = Ipv6::new_unchecked(packet);
    let payload = view.payload();
    let room = (mtu.saturating_sub(ipv6::HEADER_LENGTH + ipv6::FRAGMENT_HEADER_LENGTH) & !7).max(8);
    let mut fragments = Vec::new();
    for (i, piece) in payload.chunks(room).enumerate() {
        let offset = i * room;
        let header = Fragment { offset: offset as u16, more: offset + piece.len() < payload.len(), identification };
        let mut body = [0; ipv6::FRAGMENT_HEADER_LENGTH];
        header.write(&mut body, 0, view.next_header());
        let mut whole = [field::clamped(packet, 0, ipv6::HEADER_LENGTH), body.as_slice(), piece].concat();
        let mut written = Ipv6::new_unchecked(whole.as_mut_slice());
        written.set_next_header(ipv6::HEADER_FRAGMENT);
        written.set_payload_length((body.len() + piece.len()) as u16);
        fragments.push(whole);
    }
    fragments
}

/// Reassembles fragments of one packet, of which each begins with an IPv6 and a Fragment header.
/// Returns None if one is missing, or if two overlap.
#[must_use]
pub fn reassemble(fragments: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut pieces = Vec::new();
    for bytes in fragments {
        let view = Ipv6::new_checked(bytes.as_slice()).ok()?;
        let chain = ipv6::chain(view.packet()).ok()?;
        pieces.push((chain.fragment?, chain.protocol, bytes.get(chain.offset..view.length())?));
    }
    pieces.sort_by_key(|(fragment, ..)| fragment.offset);
    let (first, protocol, _) = pieces.first()?;
    let mut payload: Vec<u8> = Vec::new();
    let mut more = true;
    for (fragment, _, piece) in &pieces {
        if fragment.identification != first.identification || usize::from(fragment.offset) != payload.len() || !more {
            return None;
        }
        payload.extend_from_slice(piece);
        more = fragment.more;
    }
    let mut packet = fragments.first()?.get(..ipv6::HEADER_LENGTH)?.to_vec();
    let length = u16::try_from(payload.len()).ok()?;
    packet.extend_from_slice(&payload);
    let mut view = Ipv6::new_unchecked(packet.as_mut_slice());
    view.set_next_header(*protocol);
    view.set_payload_length(length);
    (!more).then_some(packet)
}

/// Computes the checksum of a UDP, TCP or ICMPv6 payload, also behind extension headers, and writes
/// it.
pub fn fill_checksum(packet: &mut [u8]) {
    let view = Ipv6::new_unchecked(&*packet);
    let (source, destination, end) = (view.source(), view.destination(), view.length().min(view.packet().len()));
    let Ok(chain) = ipv6::chain(view.packet()) else { return };
    let at = match chain.protocol {
        ipv4::PROTOCOL_UDP => udp::CHECKSUM_OFFSET,
        ipv4::PROTOCOL_TCP => tcp::CHECKSUM_OFFSET,
        ipv6::PROTOCOL_ICMP6 => icmp6::CHECKSUM_OFFSET,
        _ => return,
    };
    let transport = field::clamped_mut(packet, chain.offset, end);
    if chain.protocol == ipv6::PROTOCOL_ICMP6 {
        return Icmp6::new_unchecked(transport).fill_checksum(source, destination);
    }
    field::set_u16(transport, at, 0);
    let sum = checksum::pseudo_header6(source, destination, chain.protocol, transport.len() as u32);
    let sum = sum.add_bytes(transport);
    let is_udp = chain.protocol == ipv4::PROTOCOL_UDP;
    field::set_u16(transport, at, if is_udp { sum.udp_checksum() } else { sum.checksum() });
}
