//! Headers of a packet, read once.

use crate::headers::gre;
use crate::types::DUMMY;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::verdict::Verdict;

/// Offsets and lengths of the IPv4 header (RFC 791 §3.1).
pub(crate) mod ip {
    pub(crate) const IDENTIFICATION: usize = 4;
    pub(crate) const FRAGMENT: usize = 6;
    pub(crate) const TTL: usize = 8;
    pub(crate) const PROTOCOL: usize = 9;
    pub(crate) const CHECKSUM: usize = 10;
    pub(crate) const SOURCE: usize = 12;
    pub(crate) const DESTINATION: usize = 16;
    pub(crate) const HEADER_MIN: usize = 20;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Udp,
    Tcp,
    IcmpRequest,
    IcmpReply,
    /// An ICMP error that is translated: unreachable, time exceeded, parameter problem.
    IcmpError,
    LaterFragment,
    /// A packet of a PPTP call, with its identifier as destination port ([`crate::headers::gre`]).
    Call,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) total_length: u16,
    pub(crate) identification: u16,
    pub(crate) fragment_offset: u16,
    pub(crate) header_length: u8,
    pub(crate) protocol_number: u8,
    pub(crate) ttl: u8,
    pub(crate) tcp_flags: u8,
    pub(crate) class: Class,
    pub(crate) dont_fragment: bool,
    pub(crate) more_fragments: bool,
}

impl Parsed {
    #[inline]
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        Protocol::from_number(self.protocol_number)
    }

    #[inline]
    pub(crate) fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    pub(crate) fn payload_length(&self) -> u16 {
        self.total_length - u16::from(self.header_length)
    }
}

/// Option-free IPv4 and TCP. Shorter packets take the long way.
pub(crate) const HEADERS: usize = 40;

/// Compiles without a bounds check.
#[inline(always)]
pub(crate) fn be16<const AT: usize>(header: &[u8; HEADERS]) -> u16 {
    u16::from_be_bytes([header[AT], header[AT + 1]])
}

#[inline(always)]
pub(crate) fn be32<const AT: usize>(header: &[u8; HEADERS]) -> u32 {
    u32::from_be_bytes([header[AT], header[AT + 1], header[AT + 2], header[AT + 3]])
}

#[inline]
pub(crate) fn get_u16(bytes: &[u8], offset: usize) -> u16 {
    match bytes.get(offset..offset + 2) {
        Some(&[a, b]) => u16::from_be_bytes([a, b]),
        _ => 0,
    }
}

#[inline]
pub(crate) fn get_u32(bytes: &[u8], offset: usize) -> u32 {
    match bytes.get(offset..offset + 4) {
        Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
        _ => 0,
    }
}

#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    if let Some(field) = bytes.get_mut(offset..offset + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    if let Some(field) = bytes.get_mut(offset..offset + 4) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// 0xffff if the checksum of an option-free header is right.
#[inline]
fn fold20(header: &[u8; 20]) -> u16 {
    // The sum is the same in either byte order (RFC 1071 §2).
    let word = |i: usize| u64::from(u32::from_ne_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]));
    let sum = word(0) + word(4) + word(8) + word(12) + word(16);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Reads and checks headers. Padding may follow. Never panics.
#[inline]
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, Verdict> {
    let Some(header) = bytes.first_chunk::<20>() else {
        return Err(Verdict::IpMalformed);
    };
    let header_length = usize::from(header[0] & 0x0f) * 4;
    let total_length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4
        || header_length < ip::HEADER_MIN
        || total_length < header_length
        || total_length > bytes.len()
    {
        return Err(Verdict::IpMalformed);
    }
    if header_length == ip::HEADER_MIN {
        if fold20(header) != 0xffff {
            return Err(Verdict::IpBadChecksum);
        }
    } else {
        check_options(&bytes[..header_length])?;
    }
    let fragment_field = u16::from_be_bytes([header[6], header[7]]);
    let mut parsed = Parsed {
        source: get_u32(header, ip::SOURCE),
        destination: get_u32(header, ip::DESTINATION),
        source_port: 0,
        destination_port: 0,
        total_length: total_length as u16,
        identification: get_u16(header, ip::IDENTIFICATION),
        fragment_offset: (fragment_field & 0x1fff) << 3,
        header_length: header_length as u8,
        protocol_number: header[ip::PROTOCOL],
        ttl: header[ip::TTL],
        tcp_flags: 0,
        class: Class::Other,
        dont_fragment: fragment_field & 0x4000 != 0,
        more_fragments: fragment_field & 0x2000 != 0,
    };
    if parsed.fragment_offset != 0 {
        parsed.class = Class::LaterFragment;
        return Ok(parsed);
    }
    parse_transport(&bytes[header_length..total_length], &mut parsed)?;
    Ok(parsed)
}

#[inline]
fn parse_transport(transport: &[u8], parsed: &mut Parsed) -> Result<(), Verdict> {
    // A first fragment must hold all that is translated and filtered on (RFC 1858 §3, RFC 3128).
    let short = if parsed.more_fragments { Verdict::FragmentTiny } else { Verdict::TransportMalformed };
    match parsed.protocol_number {
        17 => {
            let Some(udp) = transport.first_chunk::<8>() else { return Err(short) };
            let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
            if length < 8 || (length > transport.len() && !parsed.more_fragments) {
                return Err(Verdict::TransportMalformed);
            }
            parsed.source_port = u16::from_be_bytes([udp[0], udp[1]]);
            parsed.destination_port = u16::from_be_bytes([udp[2], udp[3]]);
            parsed.class = Class::Udp;
        }
        6 => {
            let Some(tcp) = transport.first_chunk::<20>() else { return Err(short) };
            let data_offset = usize::from(tcp[12] >> 4) * 4;
            if data_offset < 20 || (data_offset > transport.len() && !parsed.more_fragments) {
                return Err(Verdict::TransportMalformed);
            }
            parsed.source_port = u16::from_be_bytes([tcp[0], tcp[1]]);
            parsed.destination_port = u16::from_be_bytes([tcp[2], tcp[3]]);
            parsed.tcp_flags = tcp[13];
            parsed.class = Class::Tcp;
        }
        1 => {
            let Some(icmp) = transport.first_chunk::<8>() else { return Err(short) };
            let identifier = u16::from_be_bytes([icmp[4], icmp[5]]);
            parsed.class = match icmp[0] {
                // Echo and timestamp share a host's identifiers (RFC 5508 §3.1).
                8 | 13 => Class::IcmpRequest,
                0 | 14 => Class::IcmpReply,
                3 | 11 | 12 => Class::IcmpError,
                // RFC 5508 §7 REQ-10c, REQ-11.
                _ => return Err(Verdict::IcmpTypeUnsupported),
            };
            if parsed.class == Class::IcmpError {
                return if parsed.more_fragments { Err(Verdict::IcmpQuoteMalformed) } else { Ok(()) };
            }
            parsed.source_port = identifier;
            parsed.destination_port = identifier;
        }
        gre::PROTOCOL => {
            if let Some(call) = gre::call(transport).filter(|_| !parsed.more_fragments) {
                parsed.destination_port = call;
                parsed.class = Class::Call;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cold]
fn check_options(header: &[u8]) -> Result<(), Verdict> {
    if !wire::checksum::is_ipv4_header_valid(header) {
        return Err(Verdict::IpBadChecksum);
    }
    // Source routes reveal inside addresses and bypass filters (RFC 5508 §7 REQ-10b3).
    if wire::ipv4::has_source_route(&header[ip::HEADER_MIN..]) {
        return Err(Verdict::SourceRoute);
    }
    Ok(())
}

/// True if packets with this source may be forwarded (RFC 1812 §5.3.7).
#[inline]
pub(crate) fn source_is_valid(address: u32) -> bool {
    let first = address >> 24;
    first != 0 && first != 127 && first < 224
}

/// True if unicast packets to this destination may be forwarded (RFC 1812 §5.3.7).
#[inline]
pub(crate) fn destination_is_valid(address: u32) -> bool {
    source_is_valid(address) && address != DUMMY
}

/// 169.254/16.
#[inline]
pub(crate) const fn is_link_local(address: u32) -> bool {
    address >> 16 == 0xa9fe
}

/// As [`destination_is_valid`], for a packet of this inside address. A link-local address belongs
/// to the link of an IPv6 host, and no router forwards packets to it (RFC 3927 §2.7).
#[inline]
pub(crate) fn may_reach(inside: HostNumber, destination: u32) -> bool {
    destination_is_valid(destination) && !(inside.is_ipv6() && is_link_local(destination))
}
