//! TCP connections of the kernel, whose segments have a rate that is enough for much data.
//!
//! A segment says only itself which connection it is of, and everybody can forge that. So a
//! connection counts once the kernel has sent data in it: the other end has then shown by the
//! handshake that it gets what is sent to its address (RFC 9293 §3.5). An acknowledgment is not
//! enough: the kernel answers some forged segments with one (RFC 5961 §3).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::LinkHeader;
use wire::tcp;
use wire::tcp::Flags;

/// Connections that are remembered, by hash in sets of [`WAYS`]. In each set, the one in which the
/// kernel has sent nothing for longest gives way.
const PLACES: usize = 1_024;
const WAYS: usize = 4;
const TCP: u8 = 6;
const IPV4_HEADER_MIN: usize = 20;
const IPV6_HEADER: usize = 40;

/// The connections. The kernel's thread notes them, and workers look them up.
#[derive(Debug)]
pub(super) struct Connections {
    places: Box<[Place]>,
    /// Segments noted.
    noted: AtomicU64,
    secret: u64,
}

#[derive(Debug, Default)]
struct Place {
    /// 0: none.
    key: AtomicU64,
    /// The number of the last segment.
    at: AtomicU64,
}

/// A segment of TCP over IP that is no fragment.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    source: (u128, u16),
    destination: (u128, u16),
    flags: Flags,
    has_data: bool,
}

impl Connections {
    /// None. `secret` keeps others from choosing addresses and ports that displace each other.
    pub(super) fn new(secret: u64) -> Connections {
        Connections {
            places: (0..PLACES).map(|_| Place::default()).collect(),
            noted: AtomicU64::new(0),
            secret: secret | 1,
        }
    }

    /// The kernel sends a frame. Only one thread may call it.
    pub(super) fn note(&self, frame: &[u8]) {
        let Some(segment) = read(frame) else { return };
        let key = self.key(segment.source, segment.destination);
        let set = self.set(key);
        let known = set.iter().find(|place| place.key.load(Ordering::Relaxed) == key);
        let has_ended = segment.flags.intersects(Flags::SYN | Flags::RST);
        let place = match known {
            Some(place) if has_ended => {
                // A new one with the same ports has to show the same again.
                place.key.store(0, Ordering::Relaxed);
                place.at.store(0, Ordering::Relaxed);
                return;
            }
            Some(place) => Some(place),
            None if segment.has_data && !has_ended => set.iter().min_by_key(|place| place.at.load(Ordering::Relaxed)),
            None => None,
        };
        if let Some(place) = place {
            place.at.store(self.noted.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            place.key.store(key, Ordering::Relaxed);
        }
    }

    /// The connection that a frame for the kernel says it is of, if there is one.
    pub(super) fn of(&self, frame: &[u8]) -> Option<u64> {
        let segment = read(frame).filter(|segment| !segment.flags.contains(Flags::SYN))?;
        let key = self.key(segment.destination, segment.source);
        self.set(key).iter().any(|place| place.key.load(Ordering::Relaxed) == key).then_some(key)
    }

    fn set(&self, key: u64) -> &[Place] {
        let at = (key >> 52) as usize % (PLACES / WAYS) * WAYS;
        self.places.get(at..at + WAYS).unwrap_or_default()
    }

    /// Of an end of the kernel and another one. Ports of Natrix do not matter: answers may leave by
    /// another one.
    fn key(&self, own: (u128, u16), other: (u128, u16)) -> u64 {
        let mix = |word: u64| {
            let mixed = (word ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(self.secret)
        };
        let ports = u64::from(own.1) << 16 | u64::from(other.1);
        let words = [(own.0 >> 64) as u64, own.0 as u64, (other.0 >> 64) as u64, other.0 as u64, ports];
        words.into_iter().fold(0, |key, word| mix(key ^ word)) | 1
    }
}

fn read(frame: &[u8]) -> Option<Segment> {
    let header = LinkHeader::parse(frame).ok()?;
    let packet = frame.get(header.payload_offset()..)?;
    let half = |at: usize| packet.get(at..at + 2).and_then(<[u8]>::first_chunk).map(|two| u16::from_be_bytes(*two));
    let (source, destination, segment_at, end) = match header.ether_type {
        ETHER_TYPE_IPV4 => {
            let address = |at: usize| packet.get(at..)?.first_chunk().map(|four| u32::from_be_bytes(*four).into());
            // More fragments, or an offset.
            let is_fragment = half(6)? & 0x3fff != 0;
            let length = usize::from(packet.first()? & 0xf) * 4;
            if packet.get(9) != Some(&TCP) || is_fragment || length < IPV4_HEADER_MIN {
                return None;
            }
            (address(12)?, address(16)?, length, usize::from(half(2)?))
        }
        ETHER_TYPE_IPV6 => {
            let address = |at: usize| packet.get(at..)?.first_chunk().map(|sixteen| u128::from_be_bytes(*sixteen));
            if packet.get(6) != Some(&TCP) {
                return None;
            }
            (address(8)?, address(24)?, IPV6_HEADER, IPV6_HEADER + usize::from(half(4)?))
        }
        _ => return None,
    };
    let header = packet.get(segment_at..)?.first_chunk::<{ tcp::HEADER_LENGTH_MIN }>()?;
    let [a, b, c, d, ..] = *header;
    let data_at = segment_at + usize::from(header[tcp::DATA_OFFSET_OFFSET] >> 4) * 4;
    Some(Segment {
        source: (source, u16::from_be_bytes([a, b])),
        destination: (destination, u16::from_be_bytes([c, d])),
        flags: Flags(header[tcp::FLAGS_OFFSET]),
        // The frame may be padded.
        has_data: end > data_at,
    })
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use core::net::SocketAddrV4;

    use wire::build;
    use wire::ethernet::MacAddress;

    use super::*;

    const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 22);
    const OTHER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 9), 40_000);
    const STATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    fn segment(source: SocketAddrV4, destination: SocketAddrV4, flags: Flags, data: &[u8]) -> Vec<u8> {
        build::frame(STATION, STATION, ETHER_TYPE_IPV4, &build::tcp(source, destination, flags).payload(data).build())
    }

    fn segment6(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20 + data.len() as u8, TCP, 64];
        for address in [source, destination] {
            packet.extend((0x2001_0db8_u128 << 96 | u128::from(address)).to_be_bytes());
        }
        packet.extend([source.to_be_bytes(), destination.to_be_bytes()].concat());
        packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, Flags::ACK.0, 0, 0, 0, 0, 0, 0]);
        packet.extend(data);
        build::frame(STATION, STATION, ETHER_TYPE_IPV6, &packet)
    }

    #[test]
    fn a_connection_counts_once_the_kernel_has_sent_data() {
        let connections = Connections::new(7);
        let upload = segment(OTHER, OWN, Flags::ACK, b"data");
        for (flags, data) in [(Flags::SYN | Flags::ACK, &b""[..]), (Flags::ACK, b""), (Flags::SYN, b"early")] {
            connections.note(&segment(OWN, OTHER, flags, data));
            assert_eq!(connections.of(&upload), None, "anybody can make the kernel send {flags}");
        }
        connections.note(&segment(OWN, OTHER, Flags::ACK | Flags::PSH, b"SSH-2.0"));
        let key = connections.of(&upload);
        assert!(key.is_some());
        assert_eq!(connections.of(&segment(OTHER, OWN, Flags::ACK | Flags::FIN, b"")), key);
        assert_eq!(connections.of(&segment(OTHER, OWN, Flags::SYN, b"")), None, "a new connection");
        let port = |address: SocketAddrV4| SocketAddrV4::new(*address.ip(), address.port() + 1);
        assert_eq!(connections.of(&segment(port(OTHER), OWN, Flags::ACK, b"")), None, "another port");
        assert_eq!(connections.of(&segment(OTHER, port(OWN), Flags::ACK, b"")), None, "another port");
        assert_eq!(connections.of(&segment(OWN, OTHER, Flags::ACK, b"")), None, "the reverse");
        connections.note(&segment(OWN, OTHER, Flags::ACK, b""));
        assert_eq!(connections.of(&upload), key, "an upload, which the kernel only acknowledges");
        connections.note(&segment(OWN, OTHER, Flags::RST, b""));
        assert_eq!(connections.of(&upload), None, "the kernel has no such connection");
    }

    #[test]
    fn connections_of_ipv6_count_as_well() {
        let connections = Connections::new(7);
        let padded = [segment6(22, 9, b""), vec![0; 6]].concat();
        connections.note(&padded);
        assert_eq!(connections.of(&segment6(9, 22, b"data")), None, "padding is no data");
        connections.note(&segment6(22, 9, b"SSH-2.0"));
        assert!(connections.of(&segment6(9, 22, b"data")).is_some());
        assert_eq!(connections.of(&segment6(8, 22, b"data")), None);
    }

    #[test]
    fn a_busy_connection_keeps_its_place() {
        let connections = Connections::new(7);
        let of = |last: u16| SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 7), last);
        connections.note(&segment(OWN, OTHER, Flags::ACK, b"data"));
        for other in 0..20_000 {
            connections.note(&segment(OWN, of(other), Flags::ACK, b"data"));
            connections.note(&segment(OWN, OTHER, Flags::ACK, b""));
        }
        assert!(connections.of(&segment(OTHER, OWN, Flags::ACK, b"")).is_some());
        let kept = (0..20_000).filter(|other| connections.of(&segment(of(*other), OWN, Flags::ACK, b"")).is_some());
        assert!((900..PLACES).contains(&kept.count()), "the newest ones");
    }

    #[test]
    fn fragments_and_what_is_cut_off_are_of_no_connection() {
        let connections = Connections::new(7);
        connections.note(&segment(OWN, OTHER, Flags::ACK, b"data"));
        let whole = segment(OTHER, OWN, Flags::ACK, b"");
        // Behind these it is padded.
        for length in 0..14 + IPV4_HEADER_MIN + tcp::HEADER_LENGTH_MIN {
            assert_eq!(connections.of(&whole[..length]), None, "{length} bytes");
        }
        for (at, value) in [(14 + 6, 0x20), (14 + 7, 1), (14 + 9, 17), (14, 0x44)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(connections.of(&other), None, "byte {at}");
        }
    }
}
