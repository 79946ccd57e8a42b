//! The tester's TCP segments: numbers that are right for the devices on the way, and that nobody
//! else can have chosen.
//!
//! ```text
//!                0        14                34                       54        58
//!   opening      | Ethernet | IPv4, no options | TCP                    | options of a SYN
//!   and closing                                  sequence: connection, keyed; window: 15-bit tag
//!   data         | Ethernet | IPv4, no options | TCP                    | frame | tag | zeros ...
//!                                                window: 15-bit tag over both numbers
//! ```
//!
//! A frame of 64 bytes has room for 6 bytes of data, and a SYN for none. So the stamp is where TCP
//! leaves a choice. The initial sequence number of either end is the number of the connection,
//! encrypted under the key of the trial, like a SYN cookie: the tester reads the connection from
//! it. The window is between 2¹⁵ and 2¹⁶, and all but its highest bit are a tag. The number of a
//! frame of data is in its first bytes, masked by the key, with 16 bits of tag behind it. So a
//! device that changes a number is found, whether it corrects checksums or not.

use core::hash::Hasher;

use siphasher::sip::SipHasher13;
use wire::checksum;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ipv4::PROTOCOL_TCP;
use wire::tcp;
use wire::tcp::Flags;

use crate::frame::CHECK_SEQUENCE;
use crate::frame::FRAME_BYTES_MIN;
use crate::frame::Stations;
use crate::frame::Stranger;
use crate::frame::TTL;
use crate::frame::Way;
use crate::tuples::Endpoint;
use crate::tuples::mixed;

const IP: usize = HEADER_LENGTH;
const TCP: usize = IP + 20;
/// Where the data of a segment without options begins.
const DATA: usize = TCP + tcp::HEADER_LENGTH_MIN;
/// Bytes of data that say which frame this is.
const STAMP_BYTES: usize = 6;
/// Maximum segment size 1460, no operation, window scale.
const SYN_OPTIONS: [u8; 8] =
    [tcp::OPTION_MSS, 4, 0x05, 0xb4, tcp::OPTION_NOP, tcp::OPTION_WINDOW_SCALE, 3, WINDOW_SCALE];
/// The largest window scale (RFC 7323 §2.3).
const WINDOW_SCALE: u8 = 14;
/// The highest bit of a window is always set, the others are a tag.
const WINDOW_MIN: u16 = 0x8000;
/// Bytes that either end lets the other send without an acknowledgement, at least.
pub const WINDOW_BYTES: u32 = (WINDOW_MIN as u32) << WINDOW_SCALE;
/// Bytes of a frame with a SYN, check sequence included.
pub const SYN_FRAME_BYTES: usize = DATA + SYN_OPTIONS.len() + CHECK_SEQUENCE;
const DATA_FLAGS: Flags = Flags(Flags::PSH.0 | Flags::ACK.0);
const FIN_ACK: Flags = Flags(Flags::FIN.0 | Flags::ACK.0);
const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);

/// Bytes of data in a frame of so many bytes without check sequence.
#[inline]
pub const fn data_bytes(frame_bytes: usize) -> u32 {
    (frame_bytes - DATA) as u32
}

/// A segment that opens or closes a connection. The Initiator begins with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The Initiator's SYN.
    Syn,
    /// The Responder's answer.
    SynAck,
    /// The Initiator's acknowledgement of that: the connection is established.
    Ack,
    /// The Initiator's FIN.
    Fin,
    /// The Responder's acknowledgement of that.
    FinAcked,
    /// The Responder's own FIN.
    FinBack,
    /// The Initiator's acknowledgement of that: the connection is closed.
    LastAck,
}

impl Kind {
    /// All of them in their order.
    pub const ALL: [Kind; 7] =
        [Kind::Syn, Kind::SynAck, Kind::Ack, Kind::Fin, Kind::FinAcked, Kind::FinBack, Kind::LastAck];

    /// Which way it goes.
    #[inline]
    pub const fn way(self) -> Way {
        match self {
            Kind::Syn | Kind::Ack | Kind::Fin | Kind::LastAck => Way::Outbound,
            Kind::SynAck | Kind::FinAcked | Kind::FinBack => Way::Inbound,
        }
    }

    const fn flags(self) -> Flags {
        match self {
            Kind::Syn => Flags::SYN,
            Kind::SynAck => SYN_ACK,
            Kind::Ack | Kind::FinAcked | Kind::LastAck => Flags::ACK,
            Kind::Fin | Kind::FinBack => FIN_ACK,
        }
    }

    /// Those that have these flags.
    const fn of_flags(flags: Flags) -> &'static [Kind] {
        match flags {
            Flags::SYN => &[Kind::Syn],
            SYN_ACK => &[Kind::SynAck],
            Flags::ACK => &[Kind::Ack, Kind::FinAcked, Kind::LastAck],
            FIN_ACK => &[Kind::Fin, Kind::FinBack],
            _ => &[],
        }
    }

    /// How far its sequence number is beyond its end's initial one, and its acknowledgement number
    /// beyond that of the other.
    const fn beyond(self) -> (u32, u32) {
        match self {
            Kind::Syn => (0, 0),
            Kind::SynAck => (0, 1),
            Kind::Ack | Kind::Fin => (1, 1),
            Kind::FinAcked | Kind::FinBack => (1, 2),
            Kind::LastAck => (2, 2),
        }
    }

    /// Bytes of its frame, without check sequence.
    pub const fn frame_bytes(self) -> usize {
        match self {
            Kind::Syn | Kind::SynAck => SYN_FRAME_BYTES - CHECK_SEQUENCE,
            _ => FRAME_BYTES_MIN - CHECK_SEQUENCE,
        }
    }
}

const fn other(way: Way) -> Way {
    match way {
        Way::Outbound => Way::Inbound,
        Way::Inbound => Way::Outbound,
    }
}

/// Sequence and acknowledgement number of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Of its first byte.
    pub sequence: u32,
    /// Of the next byte that is expected from the other end.
    pub acknowledgement: u32,
}

/// What the segments of a trial are stamped with.
#[derive(Clone, Copy, Debug)]
pub struct SegmentKey {
    hash: SipHasher13,
    /// Of the initial sequence numbers of either end.
    rounds: [[u64; 4]; 2],
    mask: u32,
}

impl SegmentKey {
    /// The key of a trial whose frames are tagged by `hash`.
    pub(crate) fn new(hash: SipHasher13) -> SegmentKey {
        let drawn = |number: u8| {
            let mut hash = hash;
            hash.write_u8(number);
            hash.finish()
        };
        let rounds = [0, 4].map(|first| core::array::from_fn(|round| drawn(first + round as u8)));
        SegmentKey { hash, rounds, mask: drawn(8) as u32 }
    }

    /// The initial sequence number that the sender of a way has for a connection: a permutation of
    /// 32 bits.
    #[inline]
    pub fn initial(&self, way: Way, tuple: u32) -> u32 {
        let (mut left, mut right) = (u64::from(tuple >> 16), u64::from(tuple & 0xffff));
        for key in self.rounds[way.index()] {
            (left, right) = (right, left ^ (mixed(right ^ key) & 0xffff));
        }
        (left << 16 | right) as u32
    }

    /// The connection that has this initial sequence number.
    #[inline]
    fn tuple_of(&self, way: Way, initial: u32) -> u32 {
        let (mut left, mut right) = (u64::from(initial >> 16), u64::from(initial & 0xffff));
        for key in self.rounds[way.index()].iter().rev() {
            (left, right) = (right ^ (mixed(left ^ key) & 0xffff), left);
        }
        (left << 16 | right) as u32
    }

    /// Numbers of a segment that opens or closes.
    fn numbers(&self, kind: Kind, tuple: u32) -> Numbers {
        let (sent, acknowledged) = kind.beyond();
        let acknowledgement = match kind {
            Kind::Syn => 0,
            _ => self.initial(other(kind.way()), tuple).wrapping_add(acknowledged),
        };
        Numbers { sequence: self.initial(kind.way(), tuple).wrapping_add(sent), acknowledgement }
    }

    #[inline]
    fn window_of(&self, kind: Kind, tuple: u32) -> u16 {
        let mut hash = self.hash;
        hash.write_u64(u64::from(tuple) << 8 | kind as u64);
        hash.finish() as u16 | WINDOW_MIN
    }

    /// Writes a segment that opens or closes connection `tuple` over all of `frame`, which has
    /// [`Kind::frame_bytes`].
    #[inline]
    pub fn write(
        &self,
        frame: &mut [u8],
        stations: Stations,
        source: Endpoint,
        destination: Endpoint,
        (kind, tuple): (Kind, u32),
    ) {
        let options: &[u8] = if kind.flags().contains(Flags::SYN) { &SYN_OPTIONS } else { &[] };
        frame[DATA..].fill(0);
        frame[DATA..DATA + options.len()].copy_from_slice(options);
        let header = Header {
            flags: kind.flags(),
            window: self.window_of(kind, tuple),
            numbers: self.numbers(kind, tuple),
            options_bytes: options.len(),
        };
        write_headers(frame, stations, source, destination, header, 0);
    }

    /// Reads a segment that opens or closes one of so many connections, padding allowed.
    ///
    /// # Errors
    /// Why it is none that was sent in this trial.
    #[inline]
    pub fn read(&self, frame: &[u8], connections: u64) -> Result<Opening, Stranger> {
        let segment = Segment::read(frame).ok_or(Stranger::Other)?;
        if segment.flags.contains(Flags::RST) {
            // The device's own.
            return Err(Stranger::Other);
        }
        for kind in Kind::of_flags(segment.flags) {
            let tuple = self.tuple_of(kind.way(), segment.numbers.sequence.wrapping_sub(kind.beyond().0));
            if u64::from(tuple) >= connections || segment.window != self.window_of(*kind, tuple) {
                continue;
            }
            if segment.data_bytes() != 0 {
                return Err(Stranger::Forged);
            }
            if !segment.is_intact(frame) {
                return Err(Stranger::Damaged);
            }
            let is_misnumbered = segment.numbers != self.numbers(*kind, tuple);
            return Ok(Opening { kind: *kind, tuple, is_misnumbered, segment });
        }
        Err(Stranger::Forged)
    }

    #[inline]
    fn tag(&self, way: Way, sequence: u32) -> u64 {
        let mut hash = self.hash;
        hash.write_u64(1 << 63 | u64::from(sequence) << 8 | way as u64);
        hash.finish()
    }

    /// Writes frame `sequence` of a way, with data to its end, over all of `frame`: at least 60
    /// bytes.
    #[inline]
    pub fn write_data(
        &self,
        frame: &mut [u8],
        stations: Stations,
        source: Endpoint,
        destination: Endpoint,
        (way, sequence, numbers): (Way, u32, Numbers),
    ) {
        let tag = self.tag(way, sequence);
        let header = Header { flags: DATA_FLAGS, window: data_window(tag, numbers), numbers, options_bytes: 0 };
        frame[DATA..DATA + 4].copy_from_slice(&(sequence ^ self.mask).to_be_bytes());
        frame[DATA + 4..DATA + STAMP_BYTES].copy_from_slice(&(tag as u16).to_be_bytes());
        frame[DATA + STAMP_BYTES..].fill(0);
        let data_bytes = frame.len() - DATA;
        write_headers(frame, stations, source, destination, header, data_bytes);
    }

    /// Reads a segment with data of one of so many frames each way, which arrived where `way` ends.
    ///
    /// # Errors
    /// Why it is none that was sent in this trial.
    #[inline]
    pub fn read_data(&self, frame: &[u8], way: Way, frames: [u64; 2]) -> Result<Data, Stranger> {
        let segment = Segment::read(frame).ok_or(Stranger::Other)?;
        if segment.flags != DATA_FLAGS {
            return Err(if segment.flags.contains(Flags::RST) { Stranger::Other } else { Stranger::Forged });
        }
        let Some(stamp) = segment.data(frame).first_chunk::<STAMP_BYTES>() else { return Err(Stranger::Forged) };
        let sequence = u32::from_be_bytes([stamp[0], stamp[1], stamp[2], stamp[3]]) ^ self.mask;
        let tagged = u16::from_be_bytes([stamp[4], stamp[5]]);
        for way in [way, other(way)] {
            let tag = self.tag(way, sequence);
            if tag as u16 != tagged || u64::from(sequence) >= frames[way.index()] {
                continue;
            }
            if !segment.is_intact(frame) {
                return Err(Stranger::Damaged);
            }
            let is_misnumbered = segment.window != data_window(tag, segment.numbers);
            return Ok(Data { way, sequence, is_misnumbered, segment });
        }
        Err(Stranger::Forged)
    }
}

/// The window of a frame of data: a tag over its numbers and that of the frame.
#[inline]
const fn data_window(tag: u64, numbers: Numbers) -> u16 {
    mixed(tag ^ ((numbers.sequence as u64) << 32 | numbers.acknowledgement as u64)) as u16 | WINDOW_MIN
}

/// A segment of a trial that opens or closes, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// What it is.
    pub kind: Kind,
    /// Number of its connection.
    pub tuple: u32,
    /// Its acknowledgement number is not that of this connection.
    pub is_misnumbered: bool,
    /// The rest.
    pub segment: Segment,
}

/// A segment with data of a trial, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Which way it was sent.
    pub way: Way,
    /// Number of the frame on its way, from 0.
    pub sequence: u32,
    /// One of its numbers, or its window, is not what was sent.
    pub is_misnumbered: bool,
    /// The rest.
    pub segment: Segment,
}

/// What a TCP segment over IPv4 without options says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its source now.
    pub source: Endpoint,
    /// Its destination now.
    pub destination: Endpoint,
    /// Its time to live now.
    pub ttl: u8,
    /// Its numbers.
    pub numbers: Numbers,
    flags: Flags,
    window: u16,
    data_from: u16,
    end: u16,
}

impl Segment {
    #[inline]
    fn read(frame: &[u8]) -> Option<Segment> {
        if frame.len() < DATA || frame[12..14] != ETHER_TYPE_IPV4.to_be_bytes() {
            return None;
        }
        if frame[IP] != 0x45 || frame[IP + 9] != PROTOCOL_TCP {
            return None;
        }
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let long = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
        let end = IP + usize::from(word(IP + 2));
        let header_bytes = usize::from(frame[TCP + tcp::DATA_OFFSET_OFFSET] >> 4) * 4;
        if end > frame.len() || header_bytes < tcp::HEADER_LENGTH_MIN || TCP + header_bytes > end {
            return None;
        }
        Some(Segment {
            source: Endpoint { address: long(IP + 12), port: word(TCP) },
            destination: Endpoint { address: long(IP + 16), port: word(TCP + 2) },
            ttl: frame[IP + 8],
            numbers: Numbers {
                sequence: long(TCP + tcp::SEQUENCE_OFFSET),
                acknowledgement: long(TCP + tcp::ACKNOWLEDGMENT_OFFSET),
            },
            flags: Flags(frame[TCP + tcp::FLAGS_OFFSET]),
            window: word(TCP + tcp::WINDOW_OFFSET),
            data_from: (TCP + header_bytes) as u16,
            end: end as u16,
        })
    }

    /// Bytes of data.
    #[inline]
    pub const fn data_bytes(&self) -> u32 {
        (self.end - self.data_from) as u32
    }

    #[inline]
    fn data<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[usize::from(self.data_from)..usize::from(self.end)]
    }

    #[inline]
    fn is_intact(&self, frame: &[u8]) -> bool {
        checksum::is_ipv4_header_valid(&frame[IP..TCP])
            && checksum::is_tcp_valid(self.source.address, self.destination.address, &frame[TCP..usize::from(self.end)])
    }
}

#[derive(Clone, Copy)]
struct Header {
    flags: Flags,
    window: u16,
    numbers: Numbers,
    options_bytes: usize,
}

/// Writes all headers but options, which are there already as the data is. Of the data no more than
/// the stamp counts: the rest is zero.
#[inline]
fn write_headers(
    frame: &mut [u8],
    stations: Stations,
    source: Endpoint,
    destination: Endpoint,
    header: Header,
    data_bytes: usize,
) {
    let link =
        LinkHeader { destination: stations.device, source: stations.own, vlan: None, ether_type: ETHER_TYPE_IPV4 };
    // The frame is longer than the header.
    let _ = link.write(frame);
    let header_bytes = tcp::HEADER_LENGTH_MIN + header.options_bytes;
    let segment_bytes = (header_bytes + data_bytes) as u16;
    let packet = &mut frame[IP..];
    packet[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, TTL, PROTOCOL_TCP, 0, 0]);
    packet[2..4].copy_from_slice(&(segment_bytes + 20).to_be_bytes());
    packet[12..16].copy_from_slice(&source.address.to_be_bytes());
    packet[16..20].copy_from_slice(&destination.address.to_be_bytes());
    let sum = checksum::ipv4_header_checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let segment = &mut frame[TCP..];
    segment[..2].copy_from_slice(&source.port.to_be_bytes());
    segment[2..4].copy_from_slice(&destination.port.to_be_bytes());
    segment[4..8].copy_from_slice(&header.numbers.sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&header.numbers.acknowledgement.to_be_bytes());
    segment[12] = (header_bytes as u8 / 4) << 4;
    segment[13] = header.flags.0;
    segment[14..16].copy_from_slice(&header.window.to_be_bytes());
    segment[16..20].fill(0);
    let pseudo = checksum::pseudo_header(source.address, destination.address, PROTOCOL_TCP, segment_bytes);
    let sum = pseudo.add_bytes(&segment[..header_bytes + data_bytes.min(STAMP_BYTES)]).checksum();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests;
