//! Messages of netlink as bytes: where each ends, its attributes, and which of them the library
//! reads.

use netlink_packet_core::NetlinkMessage;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;

/// Bytes of the header of a message.
pub(crate) const HEADER: usize = 16;
/// Kinds of messages about routes (`linux/rtnetlink.h`).
pub(super) const NEW_ROUTE: u16 = 24;
pub(super) const DELETED_ROUTE: u16 = 25;

/// The messages of a datagram with their headers, up to one that is cut off.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let length = bytes.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize)?;
        let message = bytes.get(..length).filter(|_| length >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Reads the messages of a datagram. One that cannot be read is left out.
pub fn read_messages(bytes: &[u8], mut each: impl FnMut(u16, NetlinkPayload<RouteNetlinkMessage>)) {
    for message in messages(bytes) {
        let read = without_unread(message);
        if let Some(Ok(message)) = read.map(|read| NetlinkMessage::<RouteNetlinkMessage>::deserialize(&read)) {
            let (header, payload) = message.into_parts();
            each(header.flags, payload);
        }
    }
}

/// Two bytes of a message in the machine's order; 0 where it ends before.
pub(crate) fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |half| u16::from_ne_bytes(*half))
}

/// The same of four bytes.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Attributes (`struct rtattr`): kind without its flags, and value. Ends at one that is cut off.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let [low, high, kind @ ..] = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes(*kind) & 0x3fff, value))
    })
}

/// A message without the attributes that are not read here; None if it is not read at all. The
/// library panics at some attributes that are shorter than they should be.
fn without_unread(message: &[u8]) -> Option<Vec<u8>> {
    let kind = message.get(4..6).and_then(<[u8]>::first_chunk).map_or(0, |kind| u16::from_ne_bytes(*kind));
    // Length of what stands before the attributes, and which of them are read
    // (`linux/rtnetlink.h`, `linux/if_link.h`, `linux/if_addr.h`, `linux/neighbour.h`).
    let (fixed, read): (usize, &[u16]) = match kind {
        // Station, name, MTU, device below and its network namespace, controller, what it is, and
        // its alias.
        16 | 17 => (16, &[1, 3, 4, 5, 10, 18, 20, 37]),
        // Address of the other end, own address, and what set it.
        20 | 21 => (8, &[1, 2, 11]),
        // Destination, device, gateway, metric, several next hops, table.
        NEW_ROUTE | DELETED_ROUTE => (12, &[1, 4, 5, 6, 9, 15]),
        // Destination and station.
        28 | 29 => (12, &[1, 2]),
        // Ends and errors.
        0..=15 => return Some(message.to_vec()),
        // Requests, too: the kernel receives them, but for RTM_GETNEIGH, with which it asks daemons
        // for a station if `app_solicit` is above 0. Natrix leaves neighbours to the kernel.
        _ => return None,
    };
    let (head, attributes) = message.split_at(message.len().min(HEADER + fixed));
    let mut kept = head.to_vec();
    keep_attributes(attributes, read, matches!(kind, NEW_ROUTE | DELETED_ROUTE), &mut kept);
    let length = kept.len() as u32;
    if let Some(field) = kept.first_chunk_mut() {
        *field = length.to_ne_bytes();
    }
    Some(kept)
}

/// Appends these kinds of attributes; of several next hops of a route (9) only their gateways.
fn keep_attributes(mut attributes: &[u8], read: &[u16], is_route: bool, kept: &mut Vec<u8>) {
    while let Some([low, high, kind @ ..]) = attributes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let Some(attribute) = attributes.get(..length).filter(|_| length >= 4) else { break };
        // Two bits are flags: nested, and byte order.
        let kind = u16::from_ne_bytes(*kind) & 0x3fff;
        if kind == 9 && is_route {
            let start = kept.len();
            kept.extend_from_slice(attribute.get(..4).unwrap_or_default());
            keep_hops(attribute.get(4..).unwrap_or_default(), kept);
            set_length(kept, start);
        } else if read.contains(&kind) {
            kept.extend_from_slice(attribute);
            kept.resize(kept.len().next_multiple_of(4), 0);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Appends next hops (`struct rtnexthop`) with their gateways (5) only.
fn keep_hops(mut hops: &[u8], kept: &mut Vec<u8>) {
    while let Some(length) = hops.first_chunk().map(|length| usize::from(u16::from_ne_bytes(*length))) {
        let Some(hop) = hops.get(..length).filter(|_| length >= 8) else { break };
        let start = kept.len();
        let (head, attributes) = hop.split_at(8);
        kept.extend_from_slice(head);
        keep_attributes(attributes, &[5], false, kept);
        set_length(kept, start);
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Writes the length of what begins at `start` into its first two bytes.
fn set_length(kept: &mut [u8], start: usize) {
    let length = (kept.len() - start) as u16;
    if let Some(field) = kept.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        *field = length.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteAttribute;
    use netlink_packet_route::route::RouteType;

    use super::*;
    use crate::kernel::netlink::tests::bytes_of;
    use crate::kernel::netlink::tests::gateway;
    use crate::kernel::netlink::tests::route;

    #[test]
    fn a_message_comes_back_from_its_bytes() {
        let bytes = bytes_of(route(RouteType::Unicast, vec![RouteAttribute::Oif(7), gateway(1)]));
        let both = [bytes.as_slice(), bytes.as_slice()].concat();
        let mut found = 0;
        for length in 0..=both.len() {
            found = 0;
            read_messages(&both[..length], |_, payload| {
                found += usize::from(matches!(payload, NetlinkPayload::InnerMessage(_)));
            });
        }
        assert_eq!(found, 2);
    }
}
