//! Multicast listener discovery, version 2: queries are read, reports are written (RFC 3810).

use crate::icmp6;
use crate::icmp6::Icmp6;
use crate::ipv6;
use crate::ipv6::Ipv6;

/// ff02::16, to which reports go (RFC 3810 §5.2.14).
pub const ALL_LISTENER_ROUTERS: u128 = 0xff02 << 112 | 0x16;
/// Groups in a report at most, so that every link carries it whole.
pub const RECORDS_MAX: usize = 60;
/// Longest report, IPv6 header included.
pub const REPORT_MAX: usize = ipv6::HEADER_LENGTH + HOP_BY_HOP.len() + icmp6::HEADER_LENGTH + RECORDS_MAX * RECORD;

/// Next header ICMPv6, length, Router Alert of value 0 (RFC 2711 §2.1), two bytes of padding.
const HOP_BY_HOP: [u8; 8] = [ipv6::PROTOCOL_ICMP6, 0, OPTION_ROUTER_ALERT, 2, 0, 0, 1, 0];
const OPTION_ROUTER_ALERT: u8 = 5;
/// Type, two lengths and group of a record without sources (RFC 3810 §5.2).
const RECORD: usize = 20;
/// Shortest query: that of version 1 (RFC 3810 §8.1).
const QUERY_MIN: usize = 24;
/// From this code on, a delay is a floating-point number (RFC 3810 §5.1.3).
const CODE_FLOATING: u16 = 0x8000;

/// What a report says of its groups: all sources are welcome (RFC 3810 §5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// As an answer: MODE_IS_EXCLUDE.
    Current,
    /// Unasked, after joining: CHANGE_TO_EXCLUDE_MODE.
    Joined,
}

/// Writes the report of a host from `source`, which is link-local or unspecified (RFC 3810
/// §5.2.13). Returns its length. Of the groups, the first [`RECORDS_MAX`] count.
pub fn write_report(bytes: &mut [u8; REPORT_MAX], source: u128, record: Record, groups: &[u128]) -> usize {
    let groups = groups.get(..RECORDS_MAX).unwrap_or(groups);
    let message = ipv6::HEADER_LENGTH + HOP_BY_HOP.len();
    let length = message + icmp6::HEADER_LENGTH + groups.len() * RECORD;
    bytes.fill(0);
    let mut header = Ipv6::new_unchecked(bytes.as_mut_slice());
    header.set_class_and_label(0, 0);
    header.set_payload_length((length - ipv6::HEADER_LENGTH) as u16);
    header.set_next_header(ipv6::HEADER_HOP_BY_HOP);
    header.set_hop_limit(1);
    header.set_source(source);
    header.set_destination(ALL_LISTENER_ROUTERS);
    bytes[ipv6::HEADER_LENGTH..message].copy_from_slice(&HOP_BY_HOP);
    let (records, _) = bytes[message + icmp6::HEADER_LENGTH..length].as_chunks_mut::<RECORD>();
    for (place, group) in records.iter_mut().zip(groups) {
        place[0] = match record {
            Record::Current => 2,
            Record::Joined => 4,
        };
        place[4..].copy_from_slice(&group.to_be_bytes());
    }
    let mut icmp = Icmp6::new_unchecked(&mut bytes[message..length]);
    icmp.set_type_and_code(icmp6::TYPE_LISTENER_REPORT, 0);
    icmp.set_parameter(groups.len() as u32);
    icmp.fill_checksum(source, ALL_LISTENER_ROUTERS);
    length
}

/// The longest time, in milliseconds, that an answer to this query may take. `None` for what is no
/// query or has to be ignored: not from the link, or without a Router Alert (RFC 3810 §6.2).
#[must_use]
pub fn query_delay_ms(packet: &[u8]) -> Option<u32> {
    let view = Ipv6::new_checked(packet).ok()?;
    let chain = ipv6::chain(view.packet()).ok()?;
    let message = view.packet().get(chain.offset..).filter(|message| message.len() >= QUERY_MIN)?;
    let icmp = Icmp6::new_unchecked(message);
    let is_query = chain.protocol == ipv6::PROTOCOL_ICMP6
        && chain.fragment.is_none()
        && icmp.icmp_type() == icmp6::TYPE_LISTENER_QUERY
        && icmp.is_checksum_valid(view.source(), view.destination());
    let is_near = view.hop_limit() == 1 && ipv6::is_link_local(view.source());
    let has_alert = view.next_header() == ipv6::HEADER_HOP_BY_HOP
        && has_router_alert(view.packet().get(ipv6::HEADER_LENGTH + 2..chain.offset)?);
    if !(is_query && is_near && has_alert) {
        return None;
    }
    let code = (icmp.parameter() >> 16) as u16;
    Some(match code {
        CODE_FLOATING.. => (u32::from(code & 0xfff) | 0x1000) << ((code >> 12 & 7) + 3),
        _ => code.into(),
    })
}

/// `options`: those of the Hop-by-Hop Options header, which comes first.
fn has_router_alert(mut options: &[u8]) -> bool {
    while let Some((kind, rest)) = options.split_first() {
        options = match kind {
            0 => rest,
            &OPTION_ROUTER_ALERT => return true,
            _ => rest.split_first().and_then(|(length, data)| data.get(usize::from(*length)..)).unwrap_or_default(),
        };
    }
    false
}

#[cfg(test)]
mod tests;
