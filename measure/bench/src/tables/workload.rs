//! The packets of the study: a set of more than 99 % unique flows, all new, then all answered.
//!
//! As in the paper, subscribers are the nodes of a class B network and each flow has a random node
//! and a random port, so that two packets of ten million are of one flow about once in 860. The set
//! lies in memory, in one array, and is written before anything is timed. A packet is an IPv4 and a
//! UDP header of 32 bytes with its padding: two a cache line.

use mem::Arena;
use mem::ArenaError;
use mem::FromZeros;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use wire::checksum;
use wire::checksum::Delta;

/// The first node: 10.0.0.0.
const SUBSCRIBERS: u32 = 0x0a00_0000;
/// The first server: 198.18.0.0.
const SERVERS: u32 = 0xc612_0000;
/// Servers, a few of which get most of the traffic in life; no structure here looks at them.
const SERVER_COUNT: u32 = 1_024;
/// Port of the servers.
const SERVER_PORT: u16 = 443;
/// UDP over IPv4.
const UDP: u8 = 17;
/// Bytes of both headers.
const HEADERS: u16 = 28;

/// An IP address and a port, in host order.
pub(super) type Endpoint = (u32, u16);

/// An IPv4 and a UDP header, as they are on the wire.
#[derive(Clone, Copy, Debug, FromZeros, PartialEq, Eq)]
#[repr(C, align(32))]
pub(super) struct Packet([u8; 32]);

impl Packet {
    /// A packet from a node to a server, its checksums right.
    pub(super) fn new(source: Endpoint, destination: Endpoint) -> Packet {
        let mut packet = Packet([0; 32]);
        packet.0[0] = 0x45;
        packet.put_u16(2, HEADERS);
        packet.0[8] = 64;
        packet.0[9] = UDP;
        packet.put_u32(12, source.0);
        packet.put_u32(16, destination.0);
        packet.put_u16(20, source.1);
        packet.put_u16(22, destination.1);
        packet.put_u16(24, HEADERS - 20);
        packet.put_u16(10, checksum::ipv4_header_checksum(&packet.0[..20]));
        let sum = checksum::pseudo_header(source.0, destination.0, UDP, HEADERS - 20).add_bytes(&packet.0[20..28]);
        packet.put_u16(26, sum.udp_checksum());
        packet
    }

    #[inline(always)]
    fn u16_at(&self, offset: usize) -> u16 {
        u16::from_be_bytes([self.0[offset], self.0[offset + 1]])
    }

    #[inline(always)]
    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_be_bytes([self.0[offset], self.0[offset + 1], self.0[offset + 2], self.0[offset + 3]])
    }

    #[inline(always)]
    fn put_u16(&mut self, offset: usize, value: u16) {
        self.0[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
    }

    #[inline(always)]
    fn put_u32(&mut self, offset: usize, value: u32) {
        self.0[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Where it comes from.
    #[inline(always)]
    pub(super) fn source(&self) -> Endpoint {
        (self.u32_at(12), self.u16_at(20))
    }

    /// Where it goes to.
    #[inline(always)]
    pub(super) fn destination(&self) -> Endpoint {
        (self.u32_at(16), self.u16_at(22))
    }

    /// Translates the source: address, port and both checksums.
    #[inline(always)]
    pub(super) fn set_source(&mut self, new: Endpoint) {
        self.rewrite(12, 20, new);
    }

    /// Translates the destination: address, port and both checksums.
    #[inline(always)]
    pub(super) fn set_destination(&mut self, new: Endpoint) {
        self.rewrite(16, 22, new);
    }

    /// The header's checksum is computed anew, as the paper does with `ip_fast_csum`; the
    /// transport's, whose payload is not at hand, by what has changed.
    #[inline(always)]
    fn rewrite(&mut self, address_at: usize, port_at: usize, new: Endpoint) {
        let delta = Delta::of_u32(self.u32_at(address_at), new.0).combine(Delta::of_u16(self.u16_at(port_at), new.1));
        self.put_u32(address_at, new.0);
        self.put_u16(port_at, new.1);
        self.put_u16(10, 0);
        self.put_u16(10, checksum::ipv4_header_checksum(&self.0[..20]));
        self.put_u16(26, delta.apply_udp(self.u16_at(26)));
    }

    /// Makes it the other end's answer: both ends change places, which changes no checksum.
    pub(super) fn answer(&mut self) {
        let (source, destination) = (self.source(), self.destination());
        self.put_u32(12, destination.0);
        self.put_u32(16, source.0);
        self.put_u16(20, destination.1);
        self.put_u16(22, source.1);
    }

    /// Whether both checksums are right.
    pub(super) fn is_valid(&self) -> bool {
        let (source, destination) = (self.source(), self.destination());
        checksum::is_ipv4_header_valid(&self.0[..20])
            && checksum::is_udp_valid(source.0, destination.0, &self.0[20..usize::from(HEADERS)])
    }
}

/// The flows of one thread: the same seed, the same flows.
pub(super) struct Flows {
    random: SmallRng,
}

impl Flows {
    /// From the first one on.
    pub(super) fn new(seed: u64) -> Flows {
        Flows { random: SmallRng::seed_from_u64(seed) }
    }
}

impl Iterator for Flows {
    /// The node's endpoint, and the server's.
    type Item = (Endpoint, Endpoint);

    fn next(&mut self) -> Option<(Endpoint, Endpoint)> {
        let number: u64 = self.random.random();
        let node = SUBSCRIBERS + (number as u16 as u32);
        let server = SERVERS + ((number >> 32) as u32 % SERVER_COUNT);
        // All 16 bits of the port are drawn: port 0 is as good as any for the tables.
        Some(((node, (number >> 16) as u16), (server, SERVER_PORT)))
    }
}

/// The packet set of one thread.
pub(super) struct PacketSet {
    packets: Arena<Packet>,
    seed: u64,
}

/// The first packet that is not what the workload says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Its place in the set.
    pub(super) position: u64,
}

impl PacketSet {
    /// Room for `count` packets.
    ///
    /// # Errors
    /// When memory is short.
    pub(super) fn new(count: usize, seed: u64) -> Result<PacketSet, ArenaError> {
        Ok(PacketSet { packets: Arena::zeroed(count)?, seed })
    }

    /// All of them, to be translated.
    pub(super) fn packets(&mut self) -> &mut [Packet] {
        &mut self.packets
    }

    /// Writes the first packet of each flow, as it comes from its node.
    pub(super) fn write(&mut self) {
        for (packet, (node, server)) in self.packets.iter_mut().zip(Flows::new(self.seed)) {
            *packet = Packet::new(node, server);
        }
    }

    /// Has the servers answer every packet.
    ///
    /// # Errors
    /// When a packet left with an inside source, another destination or a wrong checksum.
    pub(super) fn answer(&mut self) -> Result<(), Wrong> {
        let flows = Flows::new(self.seed).zip(0..);
        for (packet, ((_, server), position)) in self.packets.iter_mut().zip(flows) {
            let inside = packet.source().0 >> 16 == SUBSCRIBERS >> 16;
            if inside || packet.destination() != server || !packet.is_valid() {
                return Err(Wrong { position });
            }
            packet.answer();
        }
        Ok(())
    }

    /// Checks that every answer has come to the node that asked.
    ///
    /// # Errors
    /// The first one that has not, or has a wrong checksum.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let flows = Flows::new(self.seed).zip(0..);
        for (packet, ((node, server), position)) in self.packets.iter().zip(flows) {
            if packet.source() != server || packet.destination() != node || !packet.is_valid() {
                return Err(Wrong { position });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn more_than_99_per_cent_of_a_million_flows_are_unique() {
        let unique: HashSet<Endpoint> = Flows::new(1).take(1_000_000).map(|(node, _)| node).collect();
        assert!(unique.len() > 990_000 && unique.len() < 1_000_000, "{}", unique.len());
    }

    #[test]
    fn translation_there_and_back_keeps_checksums_right() {
        for (node, server) in Flows::new(2).take(10_000) {
            let mut packet = Packet::new(node, server);
            assert!(packet.is_valid());
            packet.set_source((0xcb00_7101, node.1 ^ 0x5555));
            assert!(packet.is_valid());
            packet.answer();
            assert!(packet.is_valid());
            packet.set_destination(node);
            assert!(packet.is_valid());
            assert_eq!((packet.source(), packet.destination()), (server, node));
        }
    }

    #[test]
    fn an_answer_that_went_astray_is_noticed() {
        let mut set = PacketSet::new(3, 7).unwrap();
        set.write();
        assert_eq!(set.answer(), Err(Wrong { position: 0 }), "it left with its inside source");
        set.write();
        for packet in set.packets() {
            packet.set_source((0xcb00_7101, 1));
        }
        set.answer().unwrap();
        let nodes: Vec<Endpoint> = Flows::new(7).take(3).map(|(node, _)| node).collect();
        for (packet, node) in set.packets().iter_mut().zip([nodes[0], nodes[2], nodes[2]]) {
            packet.set_destination(node);
        }
        assert_eq!(set.check(), Err(Wrong { position: 1 }));
    }
}
