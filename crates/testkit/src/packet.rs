//! What tests ask of a packet that came out, or of the beginning of one that an error quotes.
//! Endpoints of ICMP queries have the identifier as their port.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use wire::icmp;
use wire::icmp::Icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::tcp::Tcp;

fn view(packet: &[u8]) -> Ipv4<&[u8]> {
    Ipv4::new_unchecked(packet)
}

/// What follows the IP header, as far as it is there.
fn transport(packet: &[u8]) -> &[u8] {
    let end = usize::from(view(packet).total_length()).min(packet.len());
    packet.get(view(packet).header_length()..end).unwrap_or_default()
}

fn word(bytes: &[u8], offset: usize) -> u16 {
    match bytes.get(offset..offset + 2) {
        Some(&[high, low]) => u16::from_be_bytes([high, low]),
        _ => 0,
    }
}

/// Source and destination port; the identifier twice for ICMP; zeros for a later fragment.
fn ports(packet: &[u8]) -> (u16, u16) {
    let view = view(packet);
    if view.fragment_offset_bytes() != 0 {
        return (0, 0);
    }
    match view.protocol() {
        ipv4::PROTOCOL_ICMP => {
            let identifier = word(view.payload(), icmp::IDENTIFIER_OFFSET);
            (identifier, identifier)
        }
        ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP => (word(view.payload(), 0), word(view.payload(), 2)),
        _ => (0, 0),
    }
}

/// Source endpoint.
pub fn source(packet: &[u8]) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(view(packet).source()), ports(packet).0)
}

/// Destination endpoint.
pub fn destination(packet: &[u8]) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(view(packet).destination()), ports(packet).1)
}

/// Query identifier of an ICMP message.
pub fn identifier(packet: &[u8]) -> u16 {
    ports(packet).0
}

/// Time to live.
pub fn ttl(packet: &[u8]) -> u8 {
    view(packet).ttl()
}

/// IPv4 header view.
pub fn header(packet: &[u8]) -> Ipv4<&[u8]> {
    view(packet)
}

/// TCP view.
///
/// # Panics
/// When it is none.
pub fn tcp(packet: &[u8]) -> Tcp<&[u8]> {
    assert_eq!(view(packet).protocol(), ipv4::PROTOCOL_TCP, "not TCP");
    Tcp::new_checked(transport(packet)).expect("TCP header is whole")
}

/// Bytes behind the transport header (behind the IP header for a later fragment, and for other
/// protocols).
pub fn payload(packet: &[u8]) -> &[u8] {
    let transport = transport(packet);
    let header = match view(packet).protocol() {
        _ if view(packet).fragment_offset_bytes() != 0 => 0,
        ipv4::PROTOCOL_UDP | ipv4::PROTOCOL_ICMP => 8,
        ipv4::PROTOCOL_TCP => transport.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4),
        _ => 0,
    };
    transport.get(header..).unwrap_or_default()
}

/// Whether it is an ICMP message of this type and code.
pub fn is_icmp(packet: &[u8], icmp_type: u8, code: u8) -> bool {
    let view = view(packet);
    view.protocol() == ipv4::PROTOCOL_ICMP && view.payload().starts_with(&[icmp_type, code])
}

/// ICMP message view.
///
/// # Panics
/// When it is none.
pub fn icmp(packet: &[u8]) -> Icmp<&[u8]> {
    assert_eq!(view(packet).protocol(), ipv4::PROTOCOL_ICMP, "not ICMP");
    Icmp::new_checked(transport(packet)).expect("ICMP header is whole")
}

/// What an ICMP error quotes, extensions cut off.
pub fn quote(packet: &[u8]) -> &[u8] {
    let view = icmp(packet);
    let length = view.quote().len();
    payload(packet).get(..length).unwrap_or_default()
}
