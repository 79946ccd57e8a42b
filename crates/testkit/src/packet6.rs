//! IPv6 packets to send, and what tests ask of those that came out.

use wire::checksum::pseudo_header6;
use wire::icmp6;
use wire::icmp6::Icmp6;
use wire::ipv6;
use wire::ipv6::Fragment;
use wire::ipv6::Ipv6;

/// An endpoint.
pub type At6 = (u128, u16);

/// A packet with this next header and payload, and a hop limit of 64.
pub fn packet6(source: u128, destination: u128, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = [&[0; ipv6::HEADER_LENGTH], payload].concat();
    let mut ip = Ipv6::new_unchecked(packet.as_mut_slice());
    ip.set_class_and_label(0, 0);
    ip.set_payload_length(payload.len() as u16);
    ip.set_next_header(next_header);
    ip.set_hop_limit(64);
    ip.set_source(source);
    ip.set_destination(destination);
    packet
}

/// A UDP datagram.
pub fn udp6(from: At6, to: At6, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut datagram =
        [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat();
    let sum = pseudo_header6(from.0, to.0, 17, length.into()).add_bytes(&datagram);
    datagram[6..8].copy_from_slice(&sum.udp_checksum().to_be_bytes());
    packet6(from.0, to.0, 17, &datagram)
}

/// A TCP segment without options.
pub fn tcp6(from: At6, to: At6, flags: u8, (sequence, ack): (u32, u32), payload: &[u8]) -> Vec<u8> {
    let mut segment = [
        &from.1.to_be_bytes()[..],
        &to.1.to_be_bytes(),
        &sequence.to_be_bytes(),
        &ack.to_be_bytes(),
        &[0x50, flags, 0x20, 0, 0, 0, 0, 0],
        payload,
    ]
    .concat();
    let sum = pseudo_header6(from.0, to.0, 6, segment.len() as u32).add_bytes(&segment);
    segment[16..18].copy_from_slice(&sum.checksum().to_be_bytes());
    packet6(from.0, to.0, 6, &segment)
}

/// An ICMPv6 message with four bytes of parameter.
pub fn icmp6_message(
    source: u128,
    destination: u128,
    (icmp_type, code): (u8, u8),
    parameter: u32,
    rest: &[u8],
) -> Vec<u8> {
    let mut packet = packet6(source, destination, ipv6::PROTOCOL_ICMP6, &[&[0; 8][..], rest].concat());
    let mut icmp = Icmp6::new_unchecked(&mut packet[ipv6::HEADER_LENGTH..]);
    icmp.set_type_and_code(icmp_type, code);
    icmp.set_parameter(parameter);
    icmp.fill_checksum(source, destination);
    packet
}

/// An echo request.
pub fn ping6(source: u128, destination: u128, identifier: u16) -> Vec<u8> {
    icmp6_message(source, destination, (icmp6::TYPE_ECHO_REQUEST, 0), u32::from(identifier) << 16 | 1, b"natrix")
}

/// Cuts a packet into fragments with payloads of these lengths; the last one is the rest.
pub fn fragments6(packet: &[u8], lengths: &[usize], identification: u32) -> Vec<Vec<u8>> {
    let view = Ipv6::new_unchecked(packet);
    let (next, source, destination) = (view.next_header(), view.source(), view.destination());
    let mut rest = &packet[ipv6::HEADER_LENGTH..];
    let mut offset = 0;
    let mut fragments = Vec::new();
    for length in lengths.iter().copied().chain([usize::MAX]) {
        let (part, after) = rest.split_at(length.min(rest.len()));
        if part.is_empty() {
            break;
        }
        rest = after;
        let mut fragment = packet6(source, destination, ipv6::HEADER_FRAGMENT, &[&[0; 8][..], part].concat());
        let header = Fragment { offset, more: !rest.is_empty(), identification };
        header.write(&mut fragment, ipv6::HEADER_LENGTH, next);
        offset += part.len() as u16;
        fragments.push(fragment);
    }
    fragments
}

/// Puts an IPv4 packet into a softwire, whose traffic class is that of the packet (RFC 6333 §7.1).
pub fn softwire(source: u128, aftr: u128, inner: &[u8]) -> Vec<u8> {
    let mut outer = packet6(source, aftr, 4, inner);
    let class = inner.get(1).copied().unwrap_or_default();
    Ipv6::new_unchecked(outer.as_mut_slice()).set_class_and_label(class, 0);
    outer
}

/// The view of a packet.
pub fn view6(packet: &[u8]) -> Ipv6<&[u8]> {
    Ipv6::new_unchecked(packet)
}

/// Source and destination port behind the IPv6 header.
pub fn ports6(packet: &[u8]) -> (u16, u16) {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    (word(ipv6::HEADER_LENGTH), word(ipv6::HEADER_LENGTH + 2))
}

/// Source endpoint of a UDP or TCP packet without extension headers.
pub fn source6(packet: &[u8]) -> At6 {
    (view6(packet).source(), ports6(packet).0)
}

/// Destination endpoint of a UDP or TCP packet without extension headers.
pub fn destination6(packet: &[u8]) -> At6 {
    (view6(packet).destination(), ports6(packet).1)
}

/// Type, code and parameter of an ICMPv6 message without extension headers.
pub fn icmp6_of(packet: &[u8]) -> (u8, u8, u32) {
    let icmp = Icmp6::new_unchecked(&packet[ipv6::HEADER_LENGTH..]);
    (icmp.icmp_type(), icmp.code(), icmp.parameter())
}
