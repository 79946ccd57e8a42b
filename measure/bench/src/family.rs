//! The families of subscribers of `natrix bench engine`, and their packets: IPv4, or IPv6 by NAT64
//! or in a softwire (DS-Lite). On the outside all look alike.
//!
//! A subscriber of IPv6 is a /56 with four hosts, or a B4 with four hosts behind it, so a host has
//! as many flows as a device at home. Its prefix follows from the address that it has in a
//! [`Flow`].

use core::net::Ipv6Addr;

use nat::Packet;
use nat::Settings;
use nat::Shared;
use nat::packet::PacketMeta;
use nat::settings::Address6;
use nat::settings::Nat64;
use nat::settings::Softwire;
use nat::settings::Transition;
use nat::types::HostNumber;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::types::WorkerId;
use serde::Serialize;
use wire::ipv6;
use wire::ipv6::Ipv6;

use crate::traffic;
use crate::traffic::BURST;
use crate::traffic::Flow;
use crate::traffic::MAPPINGS_PER_SUBSCRIBER;
use crate::traffic::PACKET_BYTES;

/// Hosts of a subscriber of IPv6.
pub(crate) const HOSTS_PER_SUBSCRIBER: u64 = 4;
/// Bytes in front of each packet, as a driver's buffer has them.
const ROOM: usize = 64;
const FRAME_BYTES: usize = 192;
/// IPv4 in IPv6 (RFC 2473).
const PROTOCOL_IPV4: u8 = 4;
/// Subscribers' prefixes, 2001:db8::/32, by the last 24 bits of the address in a flow.
const SUBSCRIBERS: u128 = 0x2001_0db8 << 96;
const SUBSCRIBER_LENGTH: u8 = 56;
const OWN: u128 = 0xfd00 << 112 | 1;
const AFTR: u128 = 0xfd00 << 112 | 0xaf << 64 | 1;

const _: () = assert!(FRAME_BYTES >= ROOM + ipv6::HEADER_LENGTH + 64, "each packet has room");

/// What the subscribers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    #[default]
    Nat44,
    /// IPv6, translated.
    Nat64,
    /// IPv4 in softwires.
    Dslite,
    /// A third of each.
    Mixed,
}

impl Family {
    /// That of one subscriber.
    pub(crate) const fn of_subscriber(self, address: u32) -> Family {
        match self {
            Family::Mixed => [Family::Nat44, Family::Nat64, Family::Dslite][(address % 3) as usize],
            family => family,
        }
    }

    /// The worker of a subscriber.
    pub(crate) fn worker_of(self, shared: &Shared, address: u32) -> WorkerId {
        match self.of_subscriber(address) {
            Family::Nat44 => shared.worker_of_subscriber(HostNumber(address)),
            _ => shared.worker_of_host(prefix_of(address)),
        }
    }

    /// Adds to the settings of an engine of IPv4 what its subscribers need.
    pub(crate) fn extend(self, settings: &mut Settings) {
        if self == Family::Nat44 {
            return;
        }
        let realm = RealmId::default();
        settings.ipv6.addresses =
            vec![Address6 { interface: InterfaceId(0), address: Ipv6Addr::from_bits(OWN), prefix_length: 64 }];
        let nat64 = Nat64 { prefix: translate::Prefix::WELL_KNOWN, realm, lowest_mtu6: 1_280 };
        let inner = vec![Prefix::new([192, 168, 0, 0].into(), 16).unwrap_or(Prefix::ALL)];
        let softwire = Softwire { aftr: Ipv6Addr::from_bits(AFTR), realm, inner, subscribers: Vec::new() };
        // A record for each host and one for their subscriber.
        let records = u64::from(settings.limits.subscribers_max) * (HOSTS_PER_SUBSCRIBER + 1);
        settings.transition = Transition {
            nat64: if self == Family::Dslite { vec![] } else { vec![nat64] },
            softwires: if self == Family::Nat64 { vec![] } else { vec![softwire] },
            prefix_length: SUBSCRIBER_LENGTH,
            hosts_max: u32::try_from(records).unwrap_or(u32::MAX),
            ..Transition::default()
        };
        for pool in &mut settings.pools {
            pool.subscribers.push(Transition::HOSTS);
        }
    }

    /// The flow's packet as its subscriber sends it.
    fn write_outbound(self, frame: &mut Frame, flow: &Flow, flags: u8) {
        let payload = match self.of_subscriber(flow.internal_address) {
            Family::Nat64 => {
                traffic::write_outbound(frame.at(ROOM + 20), flow, flags);
                PACKET_BYTES - 20
            }
            Family::Dslite => {
                // The address that the host has behind its B4.
                let mut inner = *flow;
                inner.internal_address = 0xc0a8_0101 + host_of(flow) as u32;
                traffic::write_outbound(frame.at(ROOM + ipv6::HEADER_LENGTH), &inner, flags);
                PACKET_BYTES
            }
            _ => {
                traffic::write_outbound(frame.at(ROOM), flow, flags);
                frame.length = PACKET_BYTES;
                return;
            }
        };
        let source = prefix_of(flow.internal_address) | 0x0200_5eff_fe00_0000;
        let (next_header, source, destination) = match payload {
            PACKET_BYTES => (PROTOCOL_IPV4, source, AFTR),
            _ => {
                let server = translate::Prefix::WELL_KNOWN.embed(flow.remote_address());
                (if flow.is_tcp() { 6 } else { 17 }, source | u128::from(host_of(flow)), server)
            }
        };
        frame.length = ipv6::HEADER_LENGTH + payload;
        let mut header = Ipv6::new_unchecked(&mut frame.bytes[ROOM..ROOM + frame.length]);
        header.set_class_and_label(0, 0);
        header.set_payload_length(payload as u16);
        header.set_next_header(next_header);
        header.set_hop_limit(64);
        header.set_source(source);
        header.set_destination(destination);
    }

    /// The start of the flow's first packet in its frame, once it is on its way out.
    const fn start_outside(self, flow: &Flow) -> usize {
        match self.of_subscriber(flow.internal_address) {
            Family::Nat64 => ROOM + 20,
            Family::Dslite => ROOM + ipv6::HEADER_LENGTH,
            _ => ROOM,
        }
    }
}

const fn prefix_of(address: u32) -> u128 {
    SUBSCRIBERS | ((address & 0xff_ffff) as u128) << 72
}

/// Which of its subscriber's hosts has this flow: each has the same number of flows.
const fn host_of(flow: &Flow) -> u64 {
    let position = traffic::position_of(flow.internal_port);
    position / (MAPPINGS_PER_SUBSCRIBER / 2 / HOSTS_PER_SUBSCRIBER) % HOSTS_PER_SUBSCRIBER
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Bytes([u8; FRAME_BYTES]);

/// A packet in its buffer.
struct Frame<'a> {
    bytes: &'a mut [u8; FRAME_BYTES],
    length: usize,
}

impl Frame<'_> {
    fn at(&mut self, start: usize) -> &mut [u8; 64] {
        self.bytes[start..].first_chunk_mut().unwrap_or_else(|| unreachable!("each packet has room"))
    }
}

/// A burst of packets of one family.
pub(crate) struct Frames {
    family: Family,
    bytes: Box<[Bytes; BURST]>,
    lengths: [u16; BURST],
}

impl Frames {
    pub(crate) fn new(family: Family) -> Frames {
        Frames { family, bytes: Box::new([Bytes([0; FRAME_BYTES]); BURST]), lengths: [0; BURST] }
    }

    #[inline]
    pub(crate) fn write_outbound(&mut self, slot: usize, flow: &Flow, flags: u8) {
        let mut frame = Frame { bytes: &mut self.bytes[slot].0, length: 0 };
        self.family.write_outbound(&mut frame, flow, flags);
        self.lengths[slot] = frame.length as u16;
    }

    #[inline]
    pub(crate) fn write_inbound(&mut self, slot: usize, flow: &Flow, flags: u8) {
        let mut frame = Frame { bytes: &mut self.bytes[slot].0, length: PACKET_BYTES };
        traffic::write_inbound(frame.at(ROOM), flow, flags);
        self.lengths[slot] = PACKET_BYTES as u16;
    }

    /// The external endpoint is that of the translated first packet in this slot.
    pub(crate) fn teach(&mut self, slot: usize, flow: &mut Flow) {
        let start = self.family.start_outside(flow);
        flow.learn(Frame { bytes: &mut self.bytes[slot].0, length: 0 }.at(start));
    }

    /// As packets just received on the interface of each one's side.
    #[inline(always)]
    pub(crate) fn packets(&mut self, side: impl Fn(usize) -> Side) -> [Packet<'_>; BURST] {
        let mut slot = 0;
        let lengths = &self.lengths;
        self.bytes.each_mut().map(|bytes| {
            let meta = PacketMeta { ingress: InterfaceId(side(slot) as u16), ..PacketMeta::default() };
            let end = ROOM + usize::from(lengths[slot]);
            slot += 1;
            Packet::in_frame(&mut bytes.0[..end], ROOM as u16, meta)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(family: Family, flow: &Flow) -> Vec<u8> {
        let mut frames = Frames::new(family);
        frames.write_outbound(0, flow, traffic::SYN);
        frames.packets(|_| Side::Inside)[0].bytes().to_vec()
    }

    #[test]
    fn packets_of_each_family_are_whole() {
        for is_tcp in [false, true] {
            let flow = Flow::new(is_tcp, 0x0a00_0001, traffic::internal_port(31));
            let protocol = if is_tcp { 6 } else { 17 };
            let nat44 = written(Family::Nat44, &flow);
            assert_eq!((nat44.len(), nat44[9]), (PACKET_BYTES, protocol));
            let nat64 = written(Family::Nat64, &flow);
            let view = Ipv6::new_checked(nat64.as_slice()).unwrap();
            assert_eq!((view.packet().len(), view.next_header()), (PACKET_BYTES + 20, protocol));
            assert_eq!(nat64[40..], nat44[20..]);
            let dslite = written(Family::Dslite, &flow);
            let view = Ipv6::new_checked(dslite.as_slice()).unwrap();
            assert_eq!((view.packet().len(), view.next_header()), (PACKET_BYTES + 40, 4));
            assert_eq!((&dslite[52..56], &dslite[60..]), (&[192, 168, 1, 4][..], &nat44[20..]));
        }
    }

    #[test]
    fn a_subscriber_has_four_hosts_with_as_many_flows_each() {
        let mut flows = [0; 4];
        for position in 0..MAPPINGS_PER_SUBSCRIBER / 2 {
            flows[host_of(&Flow::new(true, 0x0a00_0001, traffic::internal_port(position))) as usize] += 1;
        }
        assert_eq!(flows, [8; 4]);
    }

    #[test]
    fn a_mixed_burst_has_packets_of_all_families() {
        let of = |address| written(Family::Mixed, &Flow::new(false, address, traffic::internal_port(0)));
        let mut lengths = [0x0a00_0001, 0x0a00_0002, 0x0a00_0003].map(|address| of(address).len());
        lengths.sort_unstable();
        assert_eq!(lengths, [PACKET_BYTES, PACKET_BYTES + 20, PACKET_BYTES + 40]);
    }
}
