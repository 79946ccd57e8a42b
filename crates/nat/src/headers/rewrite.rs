//! Rewrites headers in place, with incremental checksums (RFC 1624).

use core::hint::select_unpredictable;

use wire::checksum::Delta;
use wire::checksum::WideDelta;

use crate::headers::gre;
use crate::headers::parse::Class;
use crate::headers::parse::HEADERS;
use crate::headers::parse::Parsed;
use crate::headers::parse::get_u16;
use crate::headers::parse::ip;
use crate::headers::parse::put_u16;
use crate::headers::parse::put_u32;
use crate::types::Protocol;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rewrite {
    pub(crate) end: End,
    pub(crate) address: u32,
    pub(crate) port: u16,
    /// The new identification of a datagram that is not atomic (RFC 6864 §5.3.1).
    pub(crate) identification: Option<u16>,
    /// The TTL decreases once for each packet, even if it is hairpinned.
    pub(crate) decrement_ttl: bool,
}

/// A later fragment has no transport header; the checksum is in the first.
#[inline]
pub(crate) fn rewrite(bytes: &mut [u8], parsed: &Parsed, change: &Rewrite) {
    let (old_address, old_port, address_offset, port_offset) = match change.end {
        End::Source => (parsed.source, parsed.source_port, ip::SOURCE, 0),
        End::Destination => (parsed.destination, parsed.destination_port, ip::DESTINATION, 2),
    };
    let address_delta = Delta::of_u32(old_address, change.address);
    put_u32(bytes, address_offset, change.address);
    let mut ip_delta = address_delta;
    if let Some(identification) = change.identification {
        ip_delta = ip_delta.combine(Delta::of_u16(parsed.identification, identification));
        put_u16(bytes, ip::IDENTIFICATION, identification);
    }
    if change.decrement_ttl {
        ip_delta = ip_delta.combine(decrement_ttl_field(bytes));
    }
    put_u16(bytes, ip::CHECKSUM, ip_delta.apply(get_u16(bytes, ip::CHECKSUM)));

    if parsed.fragment_offset != 0 {
        return;
    }
    let transport = usize::from(parsed.header_length);
    let port_delta = Delta::of_u16(old_port, change.port);
    match parsed.class {
        Class::Udp => {
            put_u16(bytes, transport + port_offset, change.port);
            let checksum = get_u16(bytes, transport + 6);
            // Zero stays (RFC 3022 §4.1).
            put_u16(bytes, transport + 6, address_delta.combine(port_delta).apply_udp(checksum));
        }
        Class::Tcp => {
            put_u16(bytes, transport + port_offset, change.port);
            let checksum = get_u16(bytes, transport + 16);
            put_u16(bytes, transport + 16, address_delta.combine(port_delta).apply(checksum));
        }
        Class::IcmpRequest | Class::IcmpReply => {
            put_u16(bytes, transport + 4, change.port);
            let checksum = get_u16(bytes, transport + 2);
            // ICMP has no pseudo-header, so a message can sum to zero.
            let end = usize::from(parsed.total_length);
            let checksum = port_delta.apply_icmp(checksum, bytes.get(transport..end).unwrap_or(&[]));
            put_u16(bytes, transport + 2, checksum);
        }
        // No checksum covers it, and it has only the receiver's identifier.
        Class::Call if change.end == End::Destination => put_u16(bytes, transport + gre::CALL, change.port),
        Class::IcmpError | Class::LaterFragment | Class::Call | Class::Other => {}
    }
}

/// [`rewrite`] with a TTL decrement, for whole UDP and TCP packets without IP options and with TTL
/// above 1. Never branches on the protocol.
#[inline(always)]
pub(crate) fn rewrite_headers(
    header: &mut [u8; HEADERS],
    is_tcp: bool,
    end: End,
    address: u32,
    port: u16,
    identification: Option<u16>,
) {
    let new = (address, port);
    let (address_change, port_change) = match end {
        End::Source => (set_address(header, ip::SOURCE, new), set_port(header, 20, new)),
        End::Destination => (set_address(header, ip::DESTINATION, new), set_port(header, 22, new)),
    };
    settle_checksums(header, is_tcp, address_change, port_change, identification);
}

#[inline(always)]
pub(crate) fn rewrite_both_ends(
    header: &mut [u8; HEADERS],
    is_tcp: bool,
    source: (u32, u16),
    destination: (u32, u16),
    identification: Option<u16>,
) {
    let addresses = set_address(header, ip::SOURCE, source).and(set_address(header, ip::DESTINATION, destination));
    let ports = set_port(header, 20, source).and(set_port(header, 22, destination));
    settle_checksums(header, is_tcp, addresses, ports, identification);
}

/// For whole UDP and TCP packets without IP options. The TTL stays.
#[inline(always)]
pub(crate) fn replace_address(header: &mut [u8; HEADERS], end: End, address: u32) {
    let half = |header: &[u8; HEADERS], at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let at = match end {
        End::Source => ip::SOURCE,
        End::Destination => ip::DESTINATION,
    };
    let change = set_address(header, at, (address, 0));
    let checksum = change.apply(half(header, ip::CHECKSUM));
    header[ip::CHECKSUM..ip::CHECKSUM + 2].copy_from_slice(&checksum.to_ne_bytes());
    let protocol = header[ip::PROTOCOL];
    // 6 and 17 differ in this bit. A comparison would become a branch.
    let is_udp = usize::from(protocol >> 4 & 1);
    settle_transport(header, protocol == Protocol::Tcp.number(), 36 - 10 * is_udp, change);
}

#[inline(always)]
fn set_address(header: &mut [u8; HEADERS], at: usize, (address, _): (u32, u16)) -> WideDelta {
    let old = [header[at], header[at + 1], header[at + 2], header[at + 3]];
    let new = address.to_be_bytes();
    header[at..at + 4].copy_from_slice(&new);
    WideDelta::of_u32(old, new)
}

#[inline(always)]
fn set_port(header: &mut [u8; HEADERS], at: usize, (_, port): (u32, u16)) -> WideDelta {
    let old = [header[at], header[at + 1]];
    let new = port.to_be_bytes();
    header[at..at + 2].copy_from_slice(&new);
    WideDelta::of_u16(old, new)
}

#[inline(always)]
fn settle_checksums(
    header: &mut [u8; HEADERS],
    is_tcp: bool,
    addresses: WideDelta,
    ports: WideDelta,
    identification: Option<u16>,
) {
    let half = |header: &[u8; HEADERS], at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    header[ip::TTL] = header[ip::TTL].wrapping_sub(1);
    let mut ip_change = addresses.and(WideDelta::DECREMENT);
    if let Some(identification) = identification {
        let old = [header[ip::IDENTIFICATION], header[ip::IDENTIFICATION + 1]];
        let new = identification.to_be_bytes();
        header[ip::IDENTIFICATION..ip::IDENTIFICATION + 2].copy_from_slice(&new);
        ip_change = ip_change.and(WideDelta::of_u16(old, new));
    }
    let checksum = ip_change.apply(half(header, ip::CHECKSUM));
    header[ip::CHECKSUM..ip::CHECKSUM + 2].copy_from_slice(&checksum.to_ne_bytes());

    settle_transport(header, is_tcp, select_unpredictable(is_tcp, 36, 26), addresses.and(ports));
}

#[inline(always)]
fn settle_transport(header: &mut [u8; HEADERS], is_tcp: bool, checksum_at: usize, change: WideDelta) {
    let old = u16::from_ne_bytes([header[checksum_at], header[checksum_at + 1]]);
    let new = change.apply(old);
    header[checksum_at..checksum_at + 2].copy_from_slice(&new.to_ne_bytes());
    // Unlike a branch on the protocol, this one is predictable.
    if (old == 0) | (new == 0) {
        zero_checksum(header, is_tcp, old);
    }
}

/// A UDP checksum of zero was not computed, and stays (RFC 3022 §4.1); a computed zero is sent as
/// 0xffff (RFC 768).
#[cold]
#[inline(never)]
fn zero_checksum(header: &mut [u8; HEADERS], is_tcp: bool, old: u16) {
    if !is_tcp {
        let sent: u16 = if old == 0 { 0 } else { 0xffff };
        header[26..28].copy_from_slice(&sent.to_ne_bytes());
    }
}

pub(crate) fn decrement_ttl(bytes: &mut [u8]) {
    let delta = decrement_ttl_field(bytes);
    put_u16(bytes, ip::CHECKSUM, delta.apply(get_u16(bytes, ip::CHECKSUM)));
}

pub(crate) fn set_identification(bytes: &mut [u8], identification: u16) {
    let delta = Delta::of_u16(get_u16(bytes, ip::IDENTIFICATION), identification);
    put_u16(bytes, ip::IDENTIFICATION, identification);
    put_u16(bytes, ip::CHECKSUM, delta.apply(get_u16(bytes, ip::CHECKSUM)));
}

#[inline]
fn decrement_ttl_field(bytes: &mut [u8]) -> Delta {
    let old = get_u16(bytes, ip::TTL);
    let new = old.wrapping_sub(0x0100);
    put_u16(bytes, ip::TTL, new);
    Delta::of_u16(old, new)
}
