//! IPv6 to IPv4 (RFC 7915 §5).

use wire::field;
use wire::icmp6;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::udp;

use crate::DONT_FRAGMENT_ABOVE;
use crate::Limits;
use crate::Tuple4;
use crate::Written;
use crate::headers::Headers6;
use crate::headers::Kind;
use crate::quote;
use crate::reason::Reason;
use crate::reason::Refused;
use crate::transport;

/// Rewrites the IPv6 packet at `start` of `frame` as IPv4. `headers` are those that
/// [`crate::read6`] read there. `quoted` is the tuple of the quoted packet and has an effect on
/// ICMP errors only; without it they are refused. `identification` is for packets without Fragment
/// header; it should not repeat soon for packets of at most 1,260 bytes (RFC 7915 §5.1).
///
/// # Errors
/// Why not; the frame is unchanged then.
pub fn to_ipv4(
    frame: &mut [u8],
    start: usize,
    headers: &Headers6,
    new: &Tuple4,
    quoted: Option<&Tuple4>,
    identification: u16,
    limits: &Limits,
) -> Result<Written, Refused> {
    if limits.has_expired(headers.hop_limit) {
        if headers.kind == Kind::Error {
            return Err(Reason::HopLimitExpired.into());
        }
        let exceeded = icmp6::TYPE_TIME_EXCEEDED;
        return Err(Refused::with(Reason::HopLimitExpired, exceeded, icmp6::CODE_HOP_LIMIT_EXCEEDED, 0));
    }
    if headers.kind == Kind::Error {
        let quoted = quoted.ok_or(Reason::QuoteMalformed)?;
        return quote::error_to_4(frame, start, headers, new, quoted, identification, limits).map_err(Refused::from);
    }
    let length = ipv4::HEADER_LENGTH_MIN + headers.transport_length();
    if length > usize::from(u16::MAX) {
        return Err(Reason::TransportMalformed.into());
    }
    let dont_fragment = headers.fragment.is_none() && length > DONT_FRAGMENT_ABOVE;
    if dont_fragment && length > usize::from(limits.mtu4) {
        // A smaller MTU would make the sender no smaller packets: up to 1,280 bytes, Don't Fragment
        // is clear.
        let mtu = (u32::from(limits.mtu4) + 20).max(ipv6::MTU_MIN.into());
        return Err(Refused::with(Reason::TooBigForIpv4, icmp6::TYPE_PACKET_TOO_BIG, 0, mtu));
    }
    let transport_start = start + headers.transport;
    let new_start = transport_start.checked_sub(ipv4::HEADER_LENGTH_MIN).ok_or(Reason::NoRoom)?;
    let bytes = frame.get_mut(transport_start..start + headers.length).ok_or(Reason::NoRoom)?;
    if headers.kind == Kind::Udp && field::u16_at(bytes, udp::CHECKSUM_OFFSET) == 0 {
        return Err(Reason::Ipv6WithoutChecksum.into());
    }
    transport::rewrite(bytes, headers, new);
    let hop_limit = limits.after(headers.hop_limit);
    write_header(frame.get_mut(new_start..).unwrap_or_default(), headers, new, hop_limit, identification, limits);
    let split = (length > usize::from(limits.mtu4)).then_some(limits.mtu4);
    Ok(Written { start: new_start, length, split })
}

/// Writes the header of a packet as long as that of `headers`.
pub(crate) fn write_header(
    out: &mut [u8],
    headers: &Headers6,
    new: &Tuple4,
    hop_limit: u8,
    identification: u16,
    limits: &Limits,
) {
    let length = ipv4::HEADER_LENGTH_MIN + headers.transport_length();
    let (identification, bits) = match headers.fragment {
        Some(fragment) => {
            let more = if fragment.more { ipv4::FLAG_MORE_FRAGMENTS } else { 0 };
            (fragment.identification as u16, (fragment.offset / 8) | more)
        }
        None if length > DONT_FRAGMENT_ABOVE => (identification, ipv4::FLAG_DONT_FRAGMENT),
        None => (identification, 0),
    };
    let mut ip = Ipv4::new_unchecked(out);
    ip.set_header_length(ipv4::HEADER_LENGTH_MIN);
    ip.set_ds_field(if limits.copies_traffic_class { headers.traffic_class } else { 0 });
    ip.set_total_length(length as u16);
    ip.set_identification(identification);
    ip.set_fragment_bits(bits);
    ip.set_ttl(hop_limit);
    ip.set_protocol(if headers.protocol == ipv6::PROTOCOL_ICMP6 { ipv4::PROTOCOL_ICMP } else { headers.protocol });
    ip.set_source(new.source);
    ip.set_destination(new.destination);
    ip.fill_checksum();
}
