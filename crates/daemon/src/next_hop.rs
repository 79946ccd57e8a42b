//! The next hops of the snapshot in use, each with the Ethernet header of the frames to it.
//!
//! Most packets leave by a few routers. A router's header is made once and copied in front of each
//! packet, until the neighbour cache changes: the header has the generation of the cache that it
//! was made from.

use nat::NextHopView;
use nat::Shared;
use nat::types::InterfaceId;
use packet_io::Buffer;
use packet_io::PortIndex;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::MacAddress;
use wire::ethernet::TAGGED_HEADER_LENGTH;

use crate::links::Links;

/// Offset of the destination address in an IPv4 header.
const IPV4_DESTINATION: usize = 16;

/// The Ethernet header in front of IP packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHeader {
    bytes: [u8; TAGGED_HEADER_LENGTH],
    is_tagged: bool,
}

impl FrameHeader {
    /// The header of IPv4 packets that leave by this interface, without a destination; None for an
    /// interface without a port.
    pub(crate) fn of(links: &Links, interface: InterfaceId) -> Option<FrameHeader> {
        FrameHeader::with_type(links, interface, ETHER_TYPE_IPV4)
    }

    /// As [`FrameHeader::of`], for packets of this EtherType.
    pub(crate) fn with_type(links: &Links, interface: InterfaceId, ether_type: u16) -> Option<FrameHeader> {
        let link = links.link(interface)?;
        let mut header = FrameHeader { bytes: [0; TAGGED_HEADER_LENGTH], is_tagged: link.vlan.is_some() };
        links.header(link, MacAddress::ZERO, ether_type).write(&mut header.bytes)?;
        Some(header)
    }

    #[inline(always)]
    pub(crate) fn to(mut self, station: MacAddress) -> FrameHeader {
        station.write(&mut self.bytes, 0);
        self
    }

    /// Makes a frame of the packet that begins at `start` of `buffer`, with this header in front.
    /// Returns the length of the frame; without space, changes nothing and returns None.
    #[inline(always)]
    pub(crate) fn write<B: Buffer>(&self, buffer: &mut B, start: u16, length: u16) -> Option<u16> {
        let header = if self.is_tagged { TAGGED_HEADER_LENGTH } else { HEADER_LENGTH } as u16;
        let length = length.checked_add(header)?;
        let frame = buffer.set_frame(start.checked_sub(header)?, length)?;
        // Of constant lengths, so that each is a few moves.
        if self.is_tagged {
            *frame.first_chunk_mut::<TAGGED_HEADER_LENGTH>()? = self.bytes;
        } else {
            *frame.first_chunk_mut::<HEADER_LENGTH>()? = *self.bytes.first_chunk()?;
        }
        Some(length)
    }
}

/// A next hop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHop {
    /// The interface that leads to it.
    pub(crate) interface: InterfaceId,
    /// Its port.
    pub(crate) port: PortIndex,
    /// The router, in host bit order; 0 if the neighbour is the packet's own destination.
    gateway: u32,
    /// IPv6 routes lead its packets on; there is no header for all of them.
    pub(crate) is_ipv6: bool,
    /// Generation of the neighbour cache in which the destination was looked up; 0 for none.
    ready_at: u64,
    /// None for an interface without a port.
    header: Option<FrameHeader>,
}

impl NextHop {
    /// All next hops of a snapshot, in its order, before [`NextHop::place`].
    pub(crate) fn all_of(shared: &Shared) -> Vec<NextHop> {
        shared.next_hops().map(|hop| NextHop::new(&hop)).collect()
    }

    /// Whether it is the same next hop.
    pub(crate) fn is(&self, hop: &NextHopView) -> bool {
        self.interface == hop.interface && self.gateway == hop.gateway.map_or(0, |gateway| gateway.to_bits())
    }

    pub(crate) fn new(hop: &NextHopView) -> NextHop {
        NextHop {
            interface: hop.interface,
            port: PortIndex::default(),
            gateway: hop.gateway.map_or(0, |gateway| gateway.to_bits()),
            is_ipv6: hop.is_ipv6,
            ready_at: 0,
            header: None,
        }
    }

    /// Finds its port.
    pub(crate) fn place(&mut self, links: &Links) {
        self.port = links.link(self.interface).map_or_else(PortIndex::default, |link| link.port);
        self.header = FrameHeader::of(links, self.interface);
    }

    /// The header of frames to it, if it is from this generation of the neighbour cache.
    #[inline(always)]
    pub(crate) fn ready(&self, generation: u64) -> Option<&FrameHeader> {
        if self.ready_at == generation { self.header.as_ref() } else { None }
    }

    /// The header of frames on its link, without a destination; None for a router.
    #[inline(always)]
    pub(crate) fn on_link(&self) -> Option<&FrameHeader> {
        if self.gateway == 0 { self.header.as_ref() } else { None }
    }

    /// The neighbour of a packet, in host bit order.
    #[inline(always)]
    pub(crate) fn neighbour(&self, packet: &[u8]) -> Option<u32> {
        if self.gateway != 0 {
            return Some(self.gateway);
        }
        packet.get(IPV4_DESTINATION..).and_then(<[u8]>::first_chunk).map(|address| u32::from_be_bytes(*address))
    }

    /// Sets the station of the router, from this generation of the neighbour cache.
    pub(crate) fn learn(&mut self, station: MacAddress, generation: u64) {
        if self.gateway != 0 {
            self.header = self.header.map(|header| header.to(station));
            self.ready_at = generation;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use packet_io::memory::MemoryPool;

    use super::*;
    use crate::links::InterfaceLink;

    const STATION: MacAddress = MacAddress([6, 1, 2, 3, 4, 5]);

    fn links(vlan: Option<u16>) -> Links {
        Links::new(vec![InterfaceLink { port: PortIndex(0), vlan }], vec![MacAddress([2, 0, 0, 0, 0, 9])])
    }

    fn hop(gateway: Option<Ipv4Addr>, vlan: Option<u16>) -> NextHop {
        let mut hop = NextHop::new(&NextHopView { interface: InterfaceId(0), gateway, is_ipv6: false });
        hop.place(&links(vlan));
        hop
    }

    #[test]
    fn a_packet_that_grew_at_the_front_leaves_whole() {
        let pool = MemoryPool::new(1, 200);
        for (vlan, header_length) in [(None, 14), (Some(7), 18)] {
            let header = FrameHeader::of(&links(vlan), InterfaceId(0)).expect("the interface has a port").to(STATION);
            for grown in [-20_i16, 0, 20, 40] {
                let mut buffer = pool.allocate().expect("a free buffer");
                assert!(buffer.fill(&[&[0; 14], &[0x45; 60]]));
                let start = buffer.frame_mut().1.wrapping_add(14).wrapping_add_signed(-grown);
                let length = 60_u16.wrapping_add_signed(grown);
                buffer.set_frame(start, length).expect("inside the buffer").fill(0x60);
                assert_eq!(header.write(&mut buffer, start, length), Some(length + header_length));
                let frame = buffer.bytes();
                assert_eq!(&frame[..6], &STATION.0);
                assert_eq!(frame.len(), usize::from(length + header_length));
                assert!(frame[usize::from(header_length)..].iter().all(|byte| *byte == 0x60), "all of the packet");
            }
        }
    }

    #[test]
    fn a_packet_without_room_for_its_header_is_left_as_it_is() {
        let pool = MemoryPool::new(1, 200);
        let header = FrameHeader::of(&links(None), InterfaceId(0)).expect("the interface has a port");
        let mut buffer = pool.allocate().expect("a free buffer");
        assert!(buffer.fill(&[b"packet"]));
        assert_eq!(header.write(&mut buffer, 13, 20), None);
        assert_eq!(header.write(&mut buffer, 14, u16::MAX), None);
        assert_eq!(buffer.bytes(), b"packet");
    }

    #[test]
    fn a_header_is_ready_for_one_generation_of_the_neighbours() {
        let mut hop = hop(Some(Ipv4Addr::new(10, 0, 0, 1)), None);
        assert!(hop.ready(1).is_none() && hop.on_link().is_none());
        hop.learn(STATION, 1);
        assert!(hop.ready(1).is_some() && hop.ready(2).is_none());
        assert_eq!(hop.neighbour(&[0x45; 20]), Some(0x0a00_0001));
    }

    #[test]
    fn on_a_link_the_neighbour_is_the_destination() {
        let mut hop = hop(None, None);
        let mut packet = [0; 20];
        packet[16..].copy_from_slice(&[10, 0, 0, 7]);
        assert_eq!(hop.neighbour(&packet), Some(0x0a00_0007));
        assert_eq!(hop.neighbour(&packet[..19]), None);
        hop.learn(STATION, 1);
        assert!(hop.ready(1).is_none(), "each destination has a station of its own");
    }
}
