//! The tester's frames: UDP over IPv4 with a stamp that nobody else can write.
//!
//! ```text
//!   0        14                34     42      46         50     58   60 ... length
//!   | Ethernet | IPv4, no options | UDP | tuple | sequence | tag  | way | zeros |
//! ```
//!
//! The tag is a SipHash of all other fields, under a key of the trial. So the tester can separate
//! frames that it sent from frames of an earlier trial, changed frames and forged ones.

use core::hash::Hasher;

use serde::Serialize;
use serde::Serializer;
use siphasher::sip::SipHasher13;
use wire::checksum;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;

use crate::segment::SegmentKey;
use crate::tuples::Endpoint;

/// The Ethernet check sequence, which is part of a frame's size and never seen here.
pub const CHECK_SEQUENCE: usize = 4;
/// The smallest frame, with its check sequence.
pub const FRAME_BYTES_MIN: usize = 64;
/// The largest frame, with its check sequence.
pub const FRAME_BYTES_MAX: usize = 1518;

/// Sizes of the frames of a stream, check sequence included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSizes {
    /// All the same.
    Fixed(usize),
    /// The simple Internet mix: of twelve frames seven of 64 bytes, four of 594 and one of 1518.
    Imix,
}

impl FrameSizes {
    /// The mix, in an order that spreads the sizes.
    const IMIX: [usize; 12] = [64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 64, 594];

    /// Bytes of frame `sequence` of a stream.
    #[inline]
    pub const fn at(self, sequence: u64) -> usize {
        match self {
            FrameSizes::Fixed(bytes) => bytes,
            FrameSizes::Imix => Self::IMIX[(sequence % 12) as usize],
        }
    }
}

impl Serialize for FrameSizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            FrameSizes::Fixed(bytes) => serializer.serialize_u64(*bytes as u64),
            FrameSizes::Imix => serializer.serialize_str("imix"),
        }
    }
}

impl core::fmt::Display for FrameSizes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FrameSizes::Fixed(bytes) => write!(f, "{bytes} bytes"),
            FrameSizes::Imix => f.write_str("the Internet mix (7 of 64 bytes, 4 of 594, 1 of 1518)"),
        }
    }
}

const IP: usize = HEADER_LENGTH;
const UDP: usize = IP + 20;
const STAMP: usize = UDP + 8;
const STAMP_BYTES: usize = 17;
const PROTOCOL_UDP: u8 = 17;
/// What the tester's frames set out with.
pub const TTL: u8 = 64;

/// What the connections of a test are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A datagram makes one.
    Udp,
    /// A handshake makes one.
    Tcp,
}

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Initiator to Responder.
    Outbound = 0,
    /// Responder to Initiator.
    Inbound = 1,
}

impl Way {
    /// Both.
    pub const BOTH: [Way; 2] = [Way::Outbound, Way::Inbound];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Outbound => "outbound",
            Way::Inbound => "inbound",
        }
    }

    /// Index into arrays of two.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Place of its four-tuple in the order of the test.
    pub tuple: u32,
    /// Number of the frame on its way, from 0.
    pub sequence: u32,
    /// Which way it was sent.
    pub way: Way,
}

/// Ethernet addresses at one end of the tester: its own, and the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stations {
    /// The tester's.
    pub own: MacAddress,
    /// The device's.
    pub device: MacAddress,
}

/// A key of one trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialKey {
    hash: SipHasher13,
    segments: SegmentKey,
}

impl TrialKey {
    /// The key of trial `trial` of a run.
    pub fn new(seed: u64, trial: u64) -> TrialKey {
        let hash = SipHasher13::new_with_keys(seed, trial);
        TrialKey { segments: SegmentKey::new(hash), hash }
    }

    /// The same for segments of TCP.
    #[inline]
    pub fn segments(&self) -> &SegmentKey {
        &self.segments
    }

    #[inline(always)]
    fn tag(&self, stamp: Stamp) -> u64 {
        let mut hash = self.hash;
        hash.write_u64(u64::from(stamp.tuple) << 32 | u64::from(stamp.sequence));
        hash.write_u8(stamp.way as u8);
        hash.finish()
    }

    /// Writes a frame over all of `frame`, which has its length without check sequence: at least 60
    /// bytes. All checksums are right.
    #[inline(always)]
    pub fn write(&self, frame: &mut [u8], stations: Stations, source: Endpoint, destination: Endpoint, stamp: Stamp) {
        debug_assert!(frame.len() >= FRAME_BYTES_MIN - CHECK_SEQUENCE);
        let header =
            LinkHeader { destination: stations.device, source: stations.own, vlan: None, ether_type: ETHER_TYPE_IPV4 };
        // The frame is longer than the header.
        let _ = header.write(frame);
        let packet_bytes = (frame.len() - IP) as u16;
        let udp_bytes = packet_bytes - 20;
        let packet = &mut frame[IP..];
        packet[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, TTL, PROTOCOL_UDP, 0, 0]);
        packet[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
        packet[12..16].copy_from_slice(&source.address.to_be_bytes());
        packet[16..20].copy_from_slice(&destination.address.to_be_bytes());
        let sum = checksum::ipv4_header_checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let datagram = &mut frame[UDP..];
        datagram[..2].copy_from_slice(&source.port.to_be_bytes());
        datagram[2..4].copy_from_slice(&destination.port.to_be_bytes());
        datagram[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
        datagram[6..8].fill(0);
        datagram[8..12].copy_from_slice(&stamp.tuple.to_be_bytes());
        datagram[12..16].copy_from_slice(&stamp.sequence.to_be_bytes());
        datagram[16..24].copy_from_slice(&self.tag(stamp).to_be_bytes());
        datagram[24] = stamp.way as u8;
        datagram[25..].fill(0);
        // What follows the stamp is zero and adds nothing.
        let pseudo = checksum::pseudo_header(source.address, destination.address, PROTOCOL_UDP, udp_bytes);
        let sum = pseudo.add_bytes(&datagram[..26]).udp_checksum();
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    }

    /// Reads a frame that arrived, padding allowed.
    ///
    /// # Errors
    /// Why it is none that was sent in this trial.
    #[inline(always)]
    pub fn read(&self, frame: &[u8]) -> Result<Seen, Stranger> {
        if frame.len() < STAMP + STAMP_BYTES || frame[12..14] != ETHER_TYPE_IPV4.to_be_bytes() {
            return Err(Stranger::Other);
        }
        let packet = &frame[IP..];
        if packet[0] != 0x45 || packet[9] != PROTOCOL_UDP {
            return Err(Stranger::Other);
        }
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let long = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
        let length = usize::from(word(IP + 2));
        if length < STAMP + STAMP_BYTES - IP || length > packet.len() {
            return Err(Stranger::Other);
        }
        let way = match frame[STAMP + 16] {
            0 => Way::Outbound,
            1 => Way::Inbound,
            _ => return Err(Stranger::Other),
        };
        let stamp = Stamp { tuple: long(STAMP), sequence: long(STAMP + 4), way };
        let tag = u64::from(long(STAMP + 8)) << 32 | u64::from(long(STAMP + 12));
        if tag != self.tag(stamp) {
            return Err(Stranger::Forged);
        }
        let source = Endpoint { address: long(IP + 12), port: word(UDP) };
        let destination = Endpoint { address: long(IP + 16), port: word(UDP + 2) };
        if !checksum::is_ipv4_header_valid(&packet[..20])
            || word(UDP + 6) == 0
            || !checksum::is_udp_valid(source.address, destination.address, &packet[20..length])
        {
            return Err(Stranger::Damaged);
        }
        Ok(Seen { stamp, source, destination, ttl: packet[8] })
    }
}

/// A frame of this trial, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it said when it was sent.
    pub stamp: Stamp,
    /// Its source now.
    pub source: Endpoint,
    /// Its destination now.
    pub destination: Endpoint,
    /// Its time to live now.
    pub ttl: u8,
}

/// A frame that does not belong to this trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stranger {
    /// Not the tester's kind: ARP, another protocol, too short.
    Other,
    /// The tester's kind with a wrong tag: from another trial, changed on the way, or forged.
    Forged,
    /// The tag is right, a checksum is wrong.
    Damaged,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATIONS: Stations = Stations { own: MacAddress([2, 0, 0, 0, 0, 1]), device: MacAddress([2, 0, 0, 0, 0, 2]) };
    const FROM: Endpoint = Endpoint { address: 0x0a00_0002, port: 40_000 };
    const TO: Endpoint = Endpoint { address: 0xc613_0001, port: 80 };
    const STAMPED: Stamp = Stamp { tuple: 77, sequence: 123_456, way: Way::Outbound };

    fn written(length: usize) -> (TrialKey, Vec<u8>) {
        let key = TrialKey::new(1, 2);
        let mut frame = vec![0xff; length - CHECK_SEQUENCE];
        key.write(&mut frame, STATIONS, FROM, TO, STAMPED);
        (key, frame)
    }

    #[test]
    fn what_is_written_is_read_at_every_size() {
        for length in [64, 65, 128, 777, 1518] {
            let (key, frame) = written(length);
            assert_eq!(key.read(&frame), Ok(Seen { stamp: STAMPED, source: FROM, destination: TO, ttl: TTL }));
        }
    }

    #[test]
    fn the_mix_has_seven_small_four_middle_and_one_large_of_twelve() {
        let count = |bytes| (0..12).filter(|frame| FrameSizes::Imix.at(*frame) == bytes).count();
        assert_eq!((count(64), count(594), count(1518)), (7, 4, 1));
        assert_eq!(FrameSizes::Imix.at(12), FrameSizes::Imix.at(0));
        assert_eq!(FrameSizes::Fixed(128).at(7), 128);
    }

    #[test]
    fn padding_behind_the_packet_does_not_matter() {
        let (key, mut frame) = written(64);
        frame.extend([1, 2, 3]);
        assert!(key.read(&frame).is_ok());
    }

    #[test]
    fn every_changed_bit_of_the_packet_is_noticed() {
        let (key, frame) = written(64);
        for bit in IP * 8..frame.len() * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(key.read(&changed).is_err(), "bit {bit} may be changed unseen");
        }
    }

    #[test]
    fn a_frame_of_another_trial_is_a_stranger() {
        let (_, frame) = written(64);
        assert_eq!(TrialKey::new(1, 3).read(&frame), Err(Stranger::Forged));
    }

    #[test]
    fn no_length_of_a_frame_is_a_panic() {
        let (key, frame) = written(128);
        for length in 0..frame.len() {
            assert!(key.read(&frame[..length]).is_err());
        }
    }
}
