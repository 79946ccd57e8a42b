//! Frames with room, addresses, and a check of checksums that adds word by word.

use std::net::Ipv4Addr;
use std::net::Ipv6Addr;

use translate::Headers4;
use translate::Headers6;
use translate::Limits;
use translate::Prefix;
use translate::ROOM;
use translate::Reason;
use translate::Refused;
use translate::Tuple;
use translate::Tuple4;
use translate::Tuple6;
use translate::Written;

/// Behind each packet, and never to be touched.
const BEHIND: [u8; 5] = [0xa5; 5];

/// Network and host part of the IPv6 host behind 192.0.2.1.
pub(crate) const HOST6: &str = "2001:db8::7";

pub(crate) fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an IPv6 address")
}

pub(crate) fn bits(text: &str) -> u128 {
    v6(text).to_bits()
}

pub(crate) fn v4(text: &str) -> Ipv4Addr {
    text.parse().expect("an IPv4 address")
}

/// 192.0.2.1 is the host, every other address is behind the well-known prefix.
pub(crate) fn to_6(address: u32) -> u128 {
    if address == v4("192.0.2.1").to_bits() { bits(HOST6) } else { Prefix::WELL_KNOWN.embed(address) }
}

/// The reverse of [`to_6`]. A router of the IPv6 network is 192.0.2.1, too.
pub(crate) fn to_4(address: u128) -> u32 {
    if Prefix::WELL_KNOWN.contains(address) { Prefix::WELL_KNOWN.extract(address) } else { v4("192.0.2.1").to_bits() }
}

pub(crate) fn tuple6(headers: &Headers4) -> Tuple6 {
    Tuple { source: to_6(headers.source), destination: to_6(headers.destination), ports: None }
}

pub(crate) fn tuple4(headers: &Headers6) -> Tuple4 {
    Tuple { source: to_4(headers.source), destination: to_4(headers.destination), ports: None }
}

fn cut(frame: &[u8], written: &Written) -> Vec<u8> {
    let end = frame.len() - BEHIND.len();
    assert!(written.start + written.length <= end, "inside the frame");
    assert_eq!(frame[end..], BEHIND, "what is behind a packet is not touched");
    frame[written.start..written.start + written.length].to_vec()
}

/// Translates a packet, its quoted packet included, with room in front.
pub(crate) fn ipv6_of(packet: &[u8], limits: &Limits) -> Result<(Vec<u8>, Written), Refused> {
    let headers = translate::read4(packet)?;
    let quoted = translate::quoted4(packet, &headers).ok().map(|inner| tuple6(&inner));
    let mut frame = [vec![0xee; ROOM].as_slice(), packet, &BEHIND].concat();
    let before = frame.clone();
    let result = translate::to_ipv6(&mut frame, ROOM, &headers, &tuple6(&headers), quoted.as_ref(), limits);
    if result.is_err() {
        assert_eq!(frame, before, "a refused packet is unchanged");
    }
    result.map(|written| (cut(&frame, &written), written))
}

/// Translates a packet, its quoted packet included, without room in front.
pub(crate) fn ipv4_of(packet: &[u8], limits: &Limits) -> Result<(Vec<u8>, Written), Refused> {
    let headers = translate::read6(packet)?;
    let quoted = translate::quoted6(packet, &headers).ok().map(|inner| tuple4(&inner));
    let mut frame = [packet, &BEHIND].concat();
    let before = frame.clone();
    let result = translate::to_ipv4(&mut frame, 0, &headers, &tuple4(&headers), quoted.as_ref(), 0x4321, limits);
    if result.is_err() {
        assert_eq!(frame, before, "a refused packet is unchanged");
    }
    result.map(|written| (cut(&frame, &written), written))
}

pub(crate) fn to_ipv6(packet: &[u8]) -> Vec<u8> {
    ipv6_of(packet, &Limits::default()).expect("a packet that is translated").0
}

pub(crate) fn to_ipv4(packet: &[u8]) -> Vec<u8> {
    ipv4_of(packet, &Limits::default()).expect("a packet that is translated").0
}

pub(crate) fn refused4(packet: &[u8]) -> Reason {
    ipv6_of(packet, &Limits::default()).expect_err("a packet that is refused").reason
}

pub(crate) fn refused6(packet: &[u8]) -> Reason {
    ipv4_of(packet, &Limits::default()).expect_err("a packet that is refused").reason
}

/// Ones-complement sum, word by word.
fn naive_sum(parts: &[&[u8]]) -> u32 {
    let mut sum = 0;
    for pair in parts.concat().chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |byte| u32::from(*byte));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Panics unless the transport checksum of an unfragmented IPv6 packet without extension headers
/// is right.
pub(crate) fn assert_right6(packet: &[u8]) {
    assert_eq!(wire::verify6::faults(packet), []);
    if matches!(packet[6], 6 | 17 | 58) {
        let length = (packet.len() - 40) as u32;
        let pseudo = [&packet[8..40], &length.to_be_bytes(), &[0, 0, 0, packet[6]]].concat();
        assert_eq!(naive_sum(&[&pseudo, &packet[40..]]), 0xffff);
    }
}

/// Panics unless header and transport checksum of an IPv4 packet without options are right.
pub(crate) fn assert_right4(packet: &[u8]) {
    assert_eq!(wire::verify::faults(packet), []);
    assert_eq!(packet[0], 0x45);
    assert_eq!(naive_sum(&[&packet[..20]]), 0xffff);
    if packet[6] & 0x3f != 0 || packet[7] != 0 {
        return;
    }
    let length = (packet.len() - 20) as u16;
    let pseudo = [&packet[12..20], &[0, packet[9]], &length.to_be_bytes()].concat();
    match packet[9] {
        1 => assert_eq!(naive_sum(&[&packet[20..]]), 0xffff),
        6 => assert_eq!(naive_sum(&[&pseudo, &packet[20..]]), 0xffff),
        17 if packet[26..28] != [0, 0] => assert_eq!(naive_sum(&[&pseudo, &packet[20..]]), 0xffff),
        _ => {}
    }
}
