//! ICMP messages that Natrix originates (RFC 1812 §4.3, RFC 5508 §6, §7).

use core::net::Ipv4Addr;

use wire::checksum;
use wire::checksum::Delta;
use wire::field;
use wire::icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::ipv6;

use crate::types::HostNumber;

#[cfg(test)]
mod tests;

/// Largest ICMP error; it quotes as much as fits (RFC 1812 §4.3.2.3).
pub const ERROR_MAX: usize = 576;

/// Largest ICMP error to a host of NAT64: translated, it has 1,280 bytes (RFC 4443 §2.4c).
pub(crate) const HOST_ERROR_MAX: usize = ipv6::MTU_MIN as usize - 2 * GROWTH;

/// Bytes that the packet's header and the quoted header gain in translation.
const GROWTH: usize = ipv6::HEADER_LENGTH - ipv4::HEADER_LENGTH_MIN;

const TTL: u8 = 64;

const HEADERS_LENGTH: usize = ipv4::HEADER_LENGTH_MIN + icmp::HEADER_LENGTH;

/// Why a packet cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Type 3. Codes: 0 no route, 1 no resources (RFC 6888 REQ-11b), 3 port unreachable (RFC 5382
    /// REQ-4), 13 prohibited (RFC 5508 REQ-8).
    Unreachable(u8),
    /// Type 3 code 4 (RFC 4787 REQ-13, RFC 1191 §4).
    TooBig {
        /// MTU of the next link.
        next_hop_mtu: u16,
    },
    /// Type 11 code 0 (RFC 5508 §7.2 REQ-10a2).
    TtlExceeded,
}

/// True if an error may be sent (RFC 1812 §4.3.2.7). The caller excludes link-layer and directed
/// broadcasts.
pub fn may_answer(packet: &[u8]) -> bool {
    may_answer_source(packet, is_single_host)
}

/// As [`may_answer`], for a translated packet, whose source is the number of an IPv6 host.
pub(crate) fn may_answer_host(packet: &[u8]) -> bool {
    may_answer_source(packet, |source| HostNumber(source).is_ipv6())
}

fn may_answer_source(packet: &[u8], is_source: fn(u32) -> bool) -> bool {
    if packet.len() < ipv4::HEADER_LENGTH_MIN {
        return false;
    }
    let header = Ipv4::new_unchecked(packet);
    if header.fragment_offset_bytes() != 0 {
        return false;
    }
    if !is_source(header.source()) || is_many_hosts(header.destination()) {
        return false;
    }
    if header.protocol() != ipv4::PROTOCOL_ICMP {
        return true;
    }
    // No error may answer an error, so only queries are answered.
    match packet.get(header.header_length()) {
        Some(icmp_type) => header.header_length() >= ipv4::HEADER_LENGTH_MIN && icmp::is_query(*icmp_type),
        None => false,
    }
}

/// False for 0/8, 127/8, multicast, class E and broadcast.
fn is_single_host(address: u32) -> bool {
    let first = address >> 24;
    first != 0 && first != 127 && first < 224
}

fn is_many_hosts(address: u32) -> bool {
    let address = Ipv4Addr::from_bits(address);
    address.is_multicast() || address.is_broadcast()
}

/// Writes an ICMP error about `offending`, the packet as its sender knows it, and returns its
/// length: at most that of the buffer. First ask [`may_answer`] and [`crate::policy::rate_limit`].
pub fn write_error<const MAX: usize>(
    buffer: &mut [u8; MAX],
    error: IcmpError,
    source: Ipv4Addr,
    identification: u16,
    offending: &[u8],
) -> usize {
    let header = Ipv4::new_unchecked(offending);
    // Bytes behind the total length are link padding and must not be disclosed.
    let quoted = offending.len().min(usize::from(header.total_length())).min(MAX.saturating_sub(HEADERS_LENGTH));
    let length = HEADERS_LENGTH + quoted;

    buffer.fill(0);
    let (ip, message) = buffer.split_at_mut(ipv4::HEADER_LENGTH_MIN);
    let (icmp_type, code) = match error {
        IcmpError::Unreachable(code) => (icmp::TYPE_DESTINATION_UNREACHABLE, code),
        IcmpError::TooBig { next_hop_mtu } => {
            field::set_u16(message, icmp::NEXT_HOP_MTU_OFFSET, next_hop_mtu);
            (icmp::TYPE_DESTINATION_UNREACHABLE, icmp::CODE_FRAGMENTATION_NEEDED)
        }
        IcmpError::TtlExceeded => (icmp::TYPE_TIME_EXCEEDED, icmp::CODE_TTL_EXCEEDED),
    };
    field::set_u8(message, icmp::TYPE_OFFSET, icmp_type);
    field::set_u8(message, icmp::CODE_OFFSET, code);
    for (to, from) in message.iter_mut().skip(icmp::HEADER_LENGTH).zip(offending.iter().take(quoted)) {
        *to = *from;
    }
    // Zeros behind the quote leave the checksum unchanged.
    let checksum = checksum::of_bytes(message);
    field::set_u16(message, icmp::CHECKSUM_OFFSET, checksum);

    let mut ip = Ipv4::new_unchecked(ip);
    ip.set_header_length(ipv4::HEADER_LENGTH_MIN);
    // RFC 5508 §7.7 REQ-10d: the same DSCP, without the ECN bits.
    ip.set_ds_field(header.ds_field() & 0xfc);
    ip.set_total_length(length as u16);
    ip.set_identification(identification);
    ip.set_ttl(TTL);
    ip.set_protocol(ipv4::PROTOCOL_ICMP);
    ip.set_source(source.to_bits());
    ip.set_destination(header.source());
    ip.fill_checksum();
    length
}

/// As [`write_error`], to a host of NAT64.
pub(crate) fn write_error_to_host(
    buffer: &mut [u8; HOST_ERROR_MAX],
    error: IcmpError,
    source: Ipv4Addr,
    offending: &[u8],
) -> usize {
    // The quote of a fragment also gets a Fragment Header.
    let is_fragment = Ipv4::new_unchecked(offending).is_fragment();
    let more = if is_fragment { ipv6::FRAGMENT_HEADER_LENGTH } else { 0 };
    let quoted = offending.len().min(HOST_ERROR_MAX - HEADERS_LENGTH - more);
    write_error(buffer, error, source, 0, offending.get(..quoted).unwrap_or(offending))
}

/// Turns an echo request to Natrix into its reply with all data (RFC 1122 §3.2.2.6), and returns
/// its length. `None` unless whole, valid and from a single host. Options become "no operation".
pub fn echo_reply(packet: &mut [u8], identification: u16) -> Option<usize> {
    echo_reply_to(packet, identification, is_single_host)
}

/// As [`echo_reply`], for a translated request, whose source is the number of an IPv6 host.
pub(crate) fn echo_reply_to_host(packet: &mut [u8], identification: u16) -> Option<usize> {
    echo_reply_to(packet, identification, |source| HostNumber(source).is_ipv6())
}

fn echo_reply_to(packet: &mut [u8], identification: u16, is_source: fn(u32) -> bool) -> Option<usize> {
    let request = Ipv4::new_checked(&*packet).ok()?;
    if request.is_fragment() || request.protocol() != ipv4::PROTOCOL_ICMP || !is_source(request.source()) {
        return None;
    }
    let message = icmp::Icmp::new_checked(request.payload()).ok()?;
    if message.icmp_type() != icmp::TYPE_ECHO_REQUEST || !message.is_checksum_valid() {
        return None;
    }
    let (header_length, length) = (request.header_length(), usize::from(request.total_length()));
    let (source, destination) = (request.source(), request.destination());
    let type_and_code = field::u16_at(packet, header_length);

    let (header, rest) = packet.split_at_mut_checked(header_length)?;
    let message = rest.get_mut(..length - header_length)?;
    field::set_u8(message, icmp::TYPE_OFFSET, icmp::TYPE_ECHO_REPLY);
    let change = Delta::of_u16(type_and_code, type_and_code & 0x00ff);
    let checksum = change.apply_icmp(field::u16_at(message, icmp::CHECKSUM_OFFSET), message);
    field::set_u16(message, icmp::CHECKSUM_OFFSET, checksum);

    for option in header.iter_mut().skip(ipv4::HEADER_LENGTH_MIN) {
        *option = ipv4::OPTION_NOP;
    }
    let mut reply = Ipv4::new_unchecked(header);
    reply.set_source(destination);
    reply.set_destination(source);
    reply.set_ttl(TTL);
    reply.set_identification(identification);
    reply.fill_checksum();
    Some(length)
}
