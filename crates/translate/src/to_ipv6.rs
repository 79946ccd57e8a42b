//! IPv4 to IPv6 (RFC 7915 §4).

use wire::field;
use wire::icmp as icmp4;
use wire::ipv6;
use wire::ipv6::Fragment;
use wire::ipv6::Ipv6;
use wire::udp;

use crate::Limits;
use crate::Tuple6;
use crate::Written;
use crate::headers::Headers4;
use crate::headers::Kind;
use crate::quote;
use crate::reason::Reason;
use crate::reason::Refused;
use crate::transport;

/// Rewrites the IPv4 packet at `start` of `frame` as IPv6. `headers` are those that
/// [`crate::read4`] read there. `quoted` is the tuple of the quoted packet and has an effect on
/// ICMP errors only; without it they are refused.
///
/// Needs [`crate::ROOM`] bytes in front of the packet, or fewer; bytes behind it stay.
///
/// # Errors
/// Why not; the frame is unchanged then.
pub fn to_ipv6(
    frame: &mut [u8],
    start: usize,
    headers: &Headers4,
    new: &Tuple6,
    quoted: Option<&Tuple6>,
    limits: &Limits,
) -> Result<Written, Refused> {
    if limits.has_expired(headers.hop_limit) {
        if headers.kind == Kind::Error {
            return Err(Reason::TtlExpired.into());
        }
        let exceeded = icmp4::TYPE_TIME_EXCEEDED;
        return Err(Refused::with(Reason::TtlExpired, exceeded, icmp4::CODE_TTL_EXCEEDED, 0));
    }
    if headers.kind == Kind::Error {
        let quoted = quoted.ok_or(Reason::QuoteMalformed)?;
        return quote::error_to_6(frame, start, headers, new, quoted, limits).map_err(Refused::from);
    }
    let header_length = header_length(headers.fragment);
    let length = header_length + headers.transport_length();
    if headers.dont_fragment && length > usize::from(limits.mtu6) {
        let mtu = u32::from(limits.mtu6).saturating_sub((header_length - 20) as u32);
        let unreachable = icmp4::TYPE_DESTINATION_UNREACHABLE;
        return Err(Refused::with(Reason::TooBigForIpv6, unreachable, icmp4::CODE_FRAGMENTATION_NEEDED, mtu));
    }
    let transport_start = start + headers.transport;
    let new_start = transport_start.checked_sub(header_length).ok_or(Reason::NoRoom)?;
    let end = start + headers.length;
    let bytes = frame.get_mut(transport_start..end).ok_or(Reason::NoRoom)?;
    let has_no_checksum = headers.kind == Kind::Udp && field::u16_at(bytes, udp::CHECKSUM_OFFSET) == 0;
    if has_no_checksum && headers.is_part() {
        return Err(Reason::FragmentWithoutChecksum.into());
    }
    transport::rewrite(bytes, headers, new);
    if has_no_checksum {
        transport::fill_udp6(bytes, new.source, new.destination);
    }
    let hop_limit = limits.after(headers.hop_limit);
    write_header(frame.get_mut(new_start..).unwrap_or_default(), headers, new, hop_limit, limits, length);
    let fitting = limits.lowest_mtu6.min(limits.mtu6);
    let split = (!headers.dont_fragment && length > usize::from(fitting)).then_some(fitting);
    Ok(Written { start: new_start, length, split })
}

/// Length of the headers of a packet or a fragment. RFC 8021: a whole packet gets no Fragment
/// header.
pub(crate) const fn header_length(fragment: Option<Fragment>) -> usize {
    ipv6::HEADER_LENGTH + if fragment.is_some() { ipv6::FRAGMENT_HEADER_LENGTH } else { 0 }
}

/// Writes the headers of a packet of this length.
pub(crate) fn write_header(
    out: &mut [u8],
    headers: &Headers4,
    new: &Tuple6,
    hop_limit: u8,
    limits: &Limits,
    length: usize,
) {
    let protocol = match headers.protocol {
        wire::ipv4::PROTOCOL_ICMP => ipv6::PROTOCOL_ICMP6,
        other => other,
    };
    let mut ip = Ipv6::new_unchecked(&mut *out);
    ip.set_class_and_label(if limits.copies_traffic_class { headers.traffic_class } else { 0 }, 0);
    ip.set_payload_length((length - ipv6::HEADER_LENGTH) as u16);
    ip.set_next_header(if headers.fragment.is_some() { ipv6::HEADER_FRAGMENT } else { protocol });
    ip.set_hop_limit(hop_limit);
    ip.set_source(new.source);
    ip.set_destination(new.destination);
    if let Some(fragment) = headers.fragment {
        fragment.write(out, ipv6::HEADER_LENGTH, protocol);
    }
}
