//! The frames of the benchmark: writing one, and judging whether one that left was translated.
//!
//! 60 bytes, which are 64 with the check sequence. Behind the transport header each frame carries
//! the number of its flow. So the far end knows what a frame that leaves must hold, whatever its
//! addresses are now.
//!
//! ```text
//!   0        14                34               54  58   60
//!   | Ethernet | IPv4, no options | UDP or TCP ... | flow | 0 |
//! ```

use core::net::Ipv4Addr;

use wire::checksum;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;

/// Bytes of a frame without its check sequence.
pub(super) const FRAME_BYTES: usize = 60;
const PACKET_BYTES: usize = FRAME_BYTES - HEADER_LENGTH;
/// Where the number of the flow is, from the IPv4 header on.
const FLOW_OFFSET: usize = 40;
const TTL: u8 = 64;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// The port every server listens on.
const SERVER_PORT: u16 = 443;

/// TCP flags: the first segment of a flow.
pub(super) const SYN: u8 = 0x02;
/// TCP flags: every later segment.
pub(super) const ACK: u8 = 0x10;

/// Top bit of [`Flow::server`]: the flow is TCP.
pub(super) const TCP: u16 = 0x8000;

/// The address of server 0; the others follow.
const FIRST_SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// One session: what is needed to write its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) internal_address: u32,
    /// Read from the first translated packet; 0 before.
    pub(super) external_address: u32,
    pub(super) internal_port: u16,
    pub(super) external_port: u16,
    /// Number of the remote server, with [`TCP`].
    pub(super) server: u16,
    /// Whether the server's first answer has reached the subscriber.
    pub(super) is_answered: bool,
}

impl Flow {
    fn is_tcp(&self) -> bool {
        self.server & TCP != 0
    }

    fn server_address(&self) -> u32 {
        FIRST_SERVER.to_bits() + u32::from(self.server & !TCP)
    }

    /// Whether its translation is known.
    pub(super) fn is_open(&self) -> bool {
        self.external_address != 0
    }
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Subscriber to server.
    Outbound,
    /// Server to subscriber.
    Inbound,
}

/// An address and a port.
type Endpoint = (u32, u16);

/// Writes a frame as it arrives at Natrix, all checksums right.
pub(super) fn write(
    frame: &mut [u8; FRAME_BYTES],
    way: Way,
    flow: &Flow,
    number: u32,
    flags: u8,
    station: MacAddress,
    host: MacAddress,
) {
    let server = (flow.server_address(), SERVER_PORT);
    let (source, destination) = match way {
        Way::Outbound => ((flow.internal_address, flow.internal_port), server),
        Way::Inbound => (server, (flow.external_address, flow.external_port)),
    };
    let header = LinkHeader { destination: station, source: host, vlan: None, ether_type: ETHER_TYPE_IPV4 };
    // The frame is longer than the header.
    let _ = header.write(frame);
    let packet = &mut frame[HEADER_LENGTH..];
    packet.fill(0);
    packet[..4].copy_from_slice(&[0x45, 0, 0, PACKET_BYTES as u8]);
    // Don't fragment, as most of what is sent today.
    packet[6] = 0x40;
    packet[8] = TTL;
    packet[9] = if flow.is_tcp() { PROTOCOL_TCP } else { PROTOCOL_UDP };
    packet[12..16].copy_from_slice(&source.0.to_be_bytes());
    packet[16..20].copy_from_slice(&destination.0.to_be_bytes());
    let sum = checksum::ipv4_header_checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..22].copy_from_slice(&source.1.to_be_bytes());
    packet[22..24].copy_from_slice(&destination.1.to_be_bytes());
    packet[FLOW_OFFSET..FLOW_OFFSET + 4].copy_from_slice(&number.to_be_bytes());
    let length = (PACKET_BYTES - 20) as u16;
    let pseudo = checksum::pseudo_header(source.0, destination.0, packet[9], length);
    if flow.is_tcp() {
        packet[24..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        packet[32..36].copy_from_slice(&[0x50, flags, 0xff, 0xff]);
        let sum = pseudo.add_bytes(&packet[20..]).checksum();
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[24..26].copy_from_slice(&length.to_be_bytes());
        let sum = pseudo.add_bytes(&packet[20..]).udp_checksum();
        packet[26..28].copy_from_slice(&sum.to_be_bytes());
    }
}

/// What is wrong with a frame that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Not of the length that was sent.
    #[error("its length is another one")]
    Length,
    /// Not IPv4, or not as it was sent.
    #[error("it is no IPv4 packet of the benchmark")]
    Kind,
    /// The number of the flow is none.
    #[error("it belongs to no flow")]
    Flow,
    /// Stations of the Ethernet header.
    #[error("its Ethernet addresses are not those of this link")]
    Stations,
    /// The TTL is not one less.
    #[error("its TTL is not one less")]
    TimeToLive,
    /// Source and destination are not those of the flow's translation.
    #[error("its addresses or ports are not translated as they should be")]
    Endpoints,
    /// The checksum of the IPv4 header is wrong.
    #[error("its IPv4 header checksum is wrong")]
    HeaderChecksum,
    /// The checksum of UDP or TCP is wrong.
    #[error("its transport checksum is wrong")]
    TransportChecksum,
}

/// A frame that left, as far as every frame has to be right: link, lengths, TTL, checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    /// The number of its flow.
    pub(super) number: u32,
    pub(super) source: Endpoint,
    pub(super) destination: Endpoint,
    pub(super) is_tcp: bool,
}

/// Reads a frame that Natrix sent from `station` to `host`.
pub(super) fn read(frame: &[u8], station: MacAddress, host: MacAddress) -> Result<Leaving, FrameFault> {
    if frame.len() != FRAME_BYTES {
        return Err(FrameFault::Length);
    }
    let header = LinkHeader::parse(frame).map_err(|_| FrameFault::Kind)?;
    let packet = &frame[HEADER_LENGTH..];
    if header.ether_type != ETHER_TYPE_IPV4 || packet[..4] != [0x45, 0, 0, PACKET_BYTES as u8] {
        return Err(FrameFault::Kind);
    }
    if header.source != station || header.destination != host {
        return Err(FrameFault::Stations);
    }
    if packet[8] != TTL - 1 {
        return Err(FrameFault::TimeToLive);
    }
    if !checksum::is_ipv4_header_valid(&packet[..20]) {
        return Err(FrameFault::HeaderChecksum);
    }
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let address = |at: usize| u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
    let (source, destination) = ((address(12), word(20)), (address(16), word(22)));
    let is_tcp = packet[9] == PROTOCOL_TCP;
    let is_valid = match packet[9] {
        PROTOCOL_TCP => checksum::is_tcp_valid(source.0, destination.0, &packet[20..]),
        // A datagram without checksum would count as right, but all were sent with one.
        PROTOCOL_UDP => word(26) != 0 && checksum::is_udp_valid(source.0, destination.0, &packet[20..]),
        _ => return Err(FrameFault::Kind),
    };
    if !is_valid {
        return Err(FrameFault::TransportChecksum);
    }
    Ok(Leaving { number: address(FLOW_OFFSET), source, destination, is_tcp })
}

impl Leaving {
    /// Whether it is the packet of `flow` in this direction, translated as the flow's first one
    /// was.
    pub(super) fn fits(&self, way: Way, flow: &Flow) -> Result<(), FrameFault> {
        let server = (flow.server_address(), SERVER_PORT);
        let (source, destination) = match way {
            Way::Outbound => ((flow.external_address, flow.external_port), server),
            Way::Inbound => (server, (flow.internal_address, flow.internal_port)),
        };
        if self.is_tcp == flow.is_tcp() && (self.source, self.destination) == (source, destination) {
            Ok(())
        } else {
            Err(FrameFault::Endpoints)
        }
    }
}

/// The number in a frame of the benchmark, translated or not; None when it is something else.
pub(super) fn number_of(frame: &[u8]) -> Option<u32> {
    let header = LinkHeader::parse(frame).ok()?;
    if frame.len() != FRAME_BYTES || header.ether_type != ETHER_TYPE_IPV4 {
        return None;
    }
    let at = HEADER_LENGTH + FLOW_OFFSET;
    Some(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const HOST: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
    const FLOWS: [Flow; 2] = [
        Flow {
            internal_address: 0x0a00_0001,
            external_address: 0xcb00_0001,
            internal_port: 20_000,
            external_port: 5_000,
            server: 7,
            is_answered: false,
        },
        Flow {
            internal_address: 0x0a00_0001,
            external_address: 0xcb00_0001,
            internal_port: 20_000,
            external_port: 5_001,
            server: 9 | TCP,
            is_answered: false,
        },
    ];

    /// What Natrix would send for the packet of a flow, written with the same hand: the far end's
    /// view of it.
    fn translated(way: Way, flow: &Flow, number: u32) -> [u8; FRAME_BYTES] {
        let seen = Flow {
            internal_address: flow.external_address,
            internal_port: flow.external_port,
            external_address: flow.internal_address,
            external_port: flow.internal_port,
            ..*flow
        };
        let mut frame = [0; FRAME_BYTES];
        write(&mut frame, way, &seen, number, ACK, HOST, STATION);
        frame[HEADER_LENGTH + 8] = TTL - 1;
        fix_header(&mut frame);
        frame
    }

    fn fix_header(frame: &mut [u8; FRAME_BYTES]) {
        let header = &mut frame[HEADER_LENGTH..HEADER_LENGTH + 20];
        let sum = checksum::ipv4_header_checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    fn judge(frame: &[u8], way: Way, flow: &Flow) -> Result<u32, FrameFault> {
        let leaving = read(frame, STATION, HOST)?;
        leaving.fits(way, flow).map(|()| leaving.number)
    }

    #[test]
    fn a_translated_frame_is_taken_and_names_its_flow() {
        for (number, flow) in FLOWS.iter().enumerate() {
            for way in [Way::Outbound, Way::Inbound] {
                let frame = translated(way, flow, number as u32);
                assert_eq!(judge(&frame, way, flow), Ok(number as u32));
                assert_eq!(number_of(&frame), Some(number as u32));
            }
        }
    }

    #[test]
    fn a_frame_that_was_only_forwarded_is_refused() {
        for flow in &FLOWS {
            for way in [Way::Outbound, Way::Inbound] {
                let mut frame = [0; FRAME_BYTES];
                write(&mut frame, way, flow, 0, ACK, HOST, STATION);
                assert_eq!(judge(&frame, way, flow), Err(FrameFault::TimeToLive));
                frame[HEADER_LENGTH + 8] = TTL - 1;
                assert_eq!(judge(&frame, way, flow), Err(FrameFault::HeaderChecksum));
                fix_header(&mut frame);
                assert_eq!(judge(&frame, way, flow), Err(FrameFault::Endpoints));
            }
        }
    }

    #[test]
    fn every_damage_is_seen() {
        for flow in &FLOWS {
            let good = translated(Way::Outbound, flow, 3);
            for at in 0..FRAME_BYTES {
                let mut frame = good;
                frame[at] ^= 0x55;
                assert!(judge(&frame, Way::Outbound, flow).is_err(), "byte {at}");
            }
            assert_eq!(judge(&good[..FRAME_BYTES - 1], Way::Outbound, flow), Err(FrameFault::Length));
            let other = Flow { external_port: flow.external_port + 1, ..*flow };
            assert_eq!(judge(&good, Way::Outbound, &other), Err(FrameFault::Endpoints));
        }
    }

    #[test]
    fn a_datagram_whose_checksum_was_dropped_is_refused() {
        let mut frame = translated(Way::Outbound, &FLOWS[0], 0);
        frame[HEADER_LENGTH + 26..HEADER_LENGTH + 28].fill(0);
        assert_eq!(judge(&frame, Way::Outbound, &FLOWS[0]), Err(FrameFault::TransportChecksum));
    }
}
