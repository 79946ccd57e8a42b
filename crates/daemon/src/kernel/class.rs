//! Classes of frames for the kernel, each with a rate of its own, so that none crowds out another.
//!
//! Within a class, sources share the rate: each is in one of a few slots by a secret hash, and a
//! slot gets a part of the rate. A flood from one source leaves the others what they need.
//!
//! A flood from many sources, as a station on the link can forge them, fills all slots. So sources
//! that were there before keep a small rate of their own: enough for the hellos of their sessions.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use nat::Instant;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ipv6;

/// What a frame is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// BFD that a neighbour on the link has sent: the loss of a few frames ends all sessions over
    /// it.
    Bfd,
    /// Echoes of BFD that come back with a TTL of 254. A forger one router away can send these, and
    /// nothing in them identifies the sender, so they take nothing from what only the link can
    /// send.
    BfdEcho,
    /// OSPF, IS-IS and other routing protocols of neighbours without connections.
    Routing,
    /// Sessions of BGP and LDP with a neighbour on the link, which repeat what is lost.
    Bgp,
    /// ARP and Neighbor Discovery.
    Neighbour,
    /// Segments of a TCP connection in which the kernel has sent data: SSH, HTTP, and all else that
    /// moves much data. A frame alone does not show it: see `kernel/connections.rs`.
    Connection,
    /// Everything else: LLDP, ping, routing protocols from afar, and what opens a connection.
    Other,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 7] =
        [Class::Bfd, Class::BfdEcho, Class::Routing, Class::Bgp, Class::Neighbour, Class::Connection, Class::Other];

    /// Name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Bfd => "bfd",
            Class::BfdEcho => "bfd_echo",
            Class::Routing => "routing",
            Class::Bgp => "bgp",
            Class::Neighbour => "neighbour",
            Class::Connection => "connection",
            Class::Other => "other",
        }
    }

    /// Frames a second from one worker to the kernel.
    pub const fn rate(self) -> u64 {
        match self {
            Class::Bfd | Class::BfdEcho | Class::Routing | Class::Bgp => 20_000,
            Class::Neighbour => 2_000,
            // 58 MB/s in segments of 1,448 bytes.
            Class::Connection => 40_000,
            Class::Other => 10_000,
        }
    }

    /// A slot of sources gets this part of the rate.
    const fn share(self) -> u64 {
        match self {
            // Few move much data at a time.
            Class::Connection => 2,
            _ => 8,
        }
    }
}

/// IP protocols of routing: IGMP, IGRP, RSVP, EIGRP, OSPF, PIM, VRRP, IS-IS, L2TP excluded.
const PROTOCOLS: [u8; 7] = [2, 9, 46, 88, 89, 103, 112];
const UDP: u8 = 17;
const TCP: u8 = 6;
const ICMP6: u8 = 58;
/// The next header of IPv6 fragments.
const FRAGMENT: u8 = 44;
/// Ports of sessions over TCP: BGP and LDP.
const BGP_PORTS: [u16; 2] = [179, 646];
/// Destination ports of BFD of a neighbour (RFC 5881 §4): control packets, echoes.
const BFD_PORTS: [u16; 2] = [3_784, BFD_ECHO_PORT];
const BFD_ECHO_PORT: u16 = 3_785;
/// The TTL or hop limit of what no router has forwarded (RFC 5881 §5, RFC 5082 §3): control
/// packets, and echoes that the neighbour has begun.
const FROM_THE_LINK: u8 = 255;
/// BFD over several hops (RFC 5883 §5). Some daemons use it with BGP neighbours on the link, too.
const BFD_MULTIHOP_PORT: u16 = 4_784;
/// Ports of other routing over UDP: RIP, RIPng, LDP (discovery), Babel.
const UDP_PORTS: [u16; 4] = [520, 521, 646, 6_696];

/// The class of a frame, but for [`Class::Connection`], and its source in a word. `is_on_link` says
/// whether a source is on a connected prefix of the interface; link-local ones always are.
pub fn classify(frame: &[u8], is_on_link: impl Fn(IpAddr) -> bool) -> (Class, u64) {
    let Ok(header) = LinkHeader::parse(frame) else { return (Class::Other, 0) };
    let packet = frame.get(header.payload_offset()..).unwrap_or_default();
    let by_station = station_word(header.source);
    match header.ether_type {
        ETHER_TYPE_ARP => (Class::Neighbour, by_station),
        ETHER_TYPE_IPV4 => {
            let word = |at: usize| {
                packet.get(at..at + 4).and_then(<[u8]>::first_chunk).map_or(0, |at| u32::from_be_bytes(*at))
            };
            let (source, destination) = (word(12), word(16));
            let protocol = packet.get(9).copied().unwrap_or(0);
            let hop_limit = packet.get(8).copied().unwrap_or(0);
            let header_length = usize::from(packet.first().copied().unwrap_or(0) & 0xf) * 4;
            let is_later_fragment = word(4) & 0x1fff > 0;
            let segment = packet.get(header_length..).filter(|_| !is_later_fragment);
            let is_on_link = is_on_link(Ipv4Addr::from_bits(source).into());
            let class = routing_class(protocol, hop_limit, segment.unwrap_or_default()).filter(|_| is_on_link);
            // No router forwards these, so the source is on the link, whatever its address.
            let is_for_link = destination >> 8 == 0xe0_0000;
            let class = class.or(is_for_link.then_some(Class::Routing));
            (class.unwrap_or(Class::Other), u64::from(source))
        }
        ETHER_TYPE_IPV6 => {
            let hop_limit = packet.get(7).copied().unwrap_or(0);
            let source = packet.get(8..).and_then(<[u8]>::first_chunk).map_or(0, |at| u128::from_be_bytes(*at));
            let is_on_link = ipv6::is_link_local(source) || is_on_link(Ipv6Addr::from_bits(source).into());
            let payload = packet.get(40..).unwrap_or_default();
            let (protocol, segment) = match packet.get(6) {
                Some(&FRAGMENT) => unfragmented(payload),
                next_header => (next_header.copied().unwrap_or(0), payload),
            };
            let class = match (packet.get(6), payload.first()) {
                // They are not read in fragments (RFC 6980 §5).
                (Some(&ICMP6), Some(133..=137)) => Class::Neighbour,
                _ => routing_class(protocol, hop_limit, segment).filter(|_| is_on_link).unwrap_or(Class::Other),
            };
            (class, by_station)
        }
        // IS-IS and other protocols of IEEE 802.3 have a length here.
        0..=1_500 => (Class::Routing, by_station),
        _ => (Class::Other, by_station),
    }
}

/// The protocol behind an IPv6 fragment header, and its segment, which later fragments do not begin
/// with (RFC 8200 §4.5).
fn unfragmented(payload: &[u8]) -> (u8, &[u8]) {
    let Some((&[protocol, _, high, low, ..], segment)) = payload.split_first_chunk::<8>() else { return (0, &[]) };
    let is_first = u16::from_be_bytes([high, low]) >> 3 == 0;
    (protocol, if is_first { segment } else { &[] })
}

/// The class of a routing protocol. `segment` is empty in a later fragment.
fn routing_class(protocol: u8, hop_limit: u8, segment: &[u8]) -> Option<Class> {
    let port =
        |at: usize| segment.get(at..at + 2).and_then(<[u8]>::first_chunk).map_or(0, |at| u16::from_be_bytes(*at));
    let (source, destination) = (port(0), port(2));
    let has_port = |ports: &[u16]| ports.contains(&source) || ports.contains(&destination);
    match protocol {
        UDP if BFD_PORTS.contains(&destination) && hop_limit == FROM_THE_LINK => Some(Class::Bfd),
        // The neighbour has sent our echo back.
        UDP if destination == BFD_ECHO_PORT && hop_limit == FROM_THE_LINK - 1 => Some(Class::BfdEcho),
        UDP if destination == BFD_MULTIHOP_PORT => Some(Class::Bgp),
        UDP => has_port(&UDP_PORTS).then_some(Class::Routing),
        TCP => has_port(&BGP_PORTS).then_some(Class::Bgp),
        _ => PROTOCOLS.contains(&protocol).then_some(Class::Routing),
    }
}

fn station_word(station: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = station.0;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

const SLOTS: usize = 64;
/// Frames that may come at once, as the time in which the rate allows them.
const BURST_US: u64 = 50_000;

/// Sources that keep a rate of their own, by hash in sets of [`WAYS`].
const REGULARS: usize = 256;
const WAYS: usize = 4;
/// All of them together get half of the rate of their class.
const REGULAR_SHARE: u64 = 2 * REGULARS as u64;
/// A source is no longer a regular one after so long: the default hold time of BGP in FRR.
const REGULAR_FOR_US: u64 = 180_000_000;

/// A source that was there before, with the rate that it keeps.
#[derive(Clone, Copy, Debug, Default)]
struct Regular {
    source: u64,
    /// When it was seen last; 0: no sender is here.
    seen_at: u64,
    own: Bucket,
}

/// One token bucket, in microseconds of its rate.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at: u64,
}

impl Bucket {
    fn allows(&self, now: u64, cost: u64) -> bool {
        self.full_at.max(now) + cost <= now + BURST_US.max(cost)
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.full_at = self.full_at.max(now) + cost;
    }
}

/// The rates of one worker.
#[derive(Debug)]
pub struct Limiter {
    secret: u64,
    classes: [Bucket; Class::ALL.len()],
    slots: [[Bucket; SLOTS]; Class::ALL.len()],
    regulars: [Box<[Regular; REGULARS]>; Class::ALL.len()],
}

impl Limiter {
    /// `secret` keeps others from choosing sources that share a slot with a neighbour.
    pub fn new(secret: u64) -> Limiter {
        let none = Bucket::default();
        Limiter {
            secret: secret | 1,
            classes: [none; Class::ALL.len()],
            slots: [[none; SLOTS]; Class::ALL.len()],
            regulars: core::array::from_fn(|_| Box::new([Regular::default(); REGULARS])),
        }
    }

    /// Whether the kernel gets a frame of this class and source now.
    pub fn allows(&mut self, now: Instant, class: Class, source: u64) -> bool {
        let now = now.as_micros();
        let mixed = (source ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (mixed ^ mixed >> 29).wrapping_mul(self.secret);
        let slot = (hash >> 58) as usize % SLOTS;
        let cost = 1_000_000_u64.div_ceil(class.rate());
        let (Some(all), Some(slots), Some(regulars)) = (
            self.classes.get_mut(class as usize),
            self.slots.get_mut(class as usize),
            self.regulars.get_mut(class as usize),
        ) else {
            return false;
        };
        let Some(own) = slots.get_mut(slot) else { return false };
        let Some(set) = regulars.as_chunks_mut::<WAYS>().0.get_mut((hash >> 40) as usize % (REGULARS / WAYS)) else {
            return false;
        };
        let is_allowed = all.allows(now, cost) && own.allows(now, cost * class.share());
        let is_there = |regular: &Regular| regular.seen_at > 0 && now < regular.seen_at + REGULAR_FOR_US;
        let regular = match set.iter().position(|regular| is_there(regular) && regular.source == source) {
            Some(place) => set.get_mut(place),
            // A newcomer takes no place from those that are there, and none while it is refused.
            None if is_allowed => set.iter_mut().find(|regular| !is_there(regular)).map(|free| {
                *free = Regular { source, ..Regular::default() };
                free
            }),
            None => None,
        };
        let keeps = regular.is_some_and(|regular| {
            regular.seen_at = now.max(1);
            let allows = !is_allowed && regular.own.allows(now, cost * REGULAR_SHARE);
            if allows {
                regular.own.take(now, cost * REGULAR_SHARE);
            }
            allows
        });
        if is_allowed || keeps {
            // What regular sources keep is taken from the others.
            all.take(now, cost);
            own.take(now, cost * class.share());
        }
        is_allowed || keeps
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// With a TTL of 255.
    fn ipv4(protocol: u8, source: [u8; 4], destination: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 24, 0, 0, 0, 0, 255, protocol, 0, 0];
        frame.extend_from_slice(&source);
        frame.extend_from_slice(&destination);
        frame.extend_from_slice(&ports.0.to_be_bytes());
        frame.extend_from_slice(&ports.1.to_be_bytes());
        frame
    }

    #[test]
    fn routing_protocols_of_neighbours_have_their_own_class() {
        let on_link = |source: IpAddr| match source {
            IpAddr::V4(source) => source.to_bits() >> 8 == 0xc0_0002,
            IpAddr::V6(source) => source.to_bits() >> 64 == 0x2001_0db8_0000_0001,
        };
        let class = |frame: &[u8]| classify(frame, on_link).0;
        let (own, neighbour, remote) = ([192, 0, 2, 1], [192, 0, 2, 254], [198, 51, 100, 7]);
        assert_eq!(class(&ipv4(89, neighbour, own, (0, 0))), Class::Routing);
        assert_eq!(class(&ipv4(89, remote, [224, 0, 0, 5], (0, 0))), Class::Routing);
        assert_eq!(class(&ipv4(6, neighbour, own, (40_000, 179))), Class::Bgp);
        assert_eq!(class(&ipv4(6, neighbour, own, (179, 40_000))), Class::Bgp);
        assert_eq!(class(&ipv4(17, neighbour, own, (49_152, 3_784))), Class::Bfd);
        assert_eq!(class(&ipv4(17, remote, own, (49_152, 3_784))), Class::Other, "no neighbour");
        assert_eq!(class(&ipv4(6, neighbour, own, (49_152, 3_784))), Class::Other, "BFD is UDP");
        assert_eq!(class(&ipv4(17, neighbour, own, (40_000, 179))), Class::Other, "BGP is TCP");
        assert_eq!(class(&ipv4(17, neighbour, [224, 0, 0, 2], (646, 646))), Class::Routing, "LDP discovery");
        assert_eq!(class(&ipv4(6, remote, own, (40_000, 179))), Class::Other, "no neighbour");
        assert_eq!(class(&ipv4(6, neighbour, own, (40_000, 22))), Class::Other);
        assert_eq!(class(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6]), Class::Neighbour);
        assert_eq!(class(&[1, 0x80, 0xc2, 0, 0, 0xe, 2, 0, 0, 0, 0, 2, 0x88, 0xcc]), Class::Other, "LLDP");
    }

    fn ipv6(next_header: u8, hop_limit: u8, source: &str, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20];
        frame.extend_from_slice(&[next_header, hop_limit]);
        frame.extend_from_slice(&source.parse::<Ipv6Addr>().unwrap().octets());
        frame.extend_from_slice(&[0x20; 16]);
        frame.extend_from_slice(payload);
        frame
    }

    fn ports(source: u16, destination: u16) -> [u8; 4] {
        let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
        [a, b, c, d]
    }

    #[test]
    fn bfd_from_more_than_one_hop_away_is_not_of_a_neighbour() {
        let neighbour = [192, 0, 2, 254];
        for (port, ttl, class) in [
            (3_784, 255, Class::Bfd),
            (3_784, 254, Class::Other),
            (3_785, 255, Class::Bfd),
            (3_785, 254, Class::BfdEcho),
            (3_785, 253, Class::Other),
            (4_784, 255, Class::Bgp),
        ] {
            let mut frame = ipv4(17, neighbour, [192, 0, 2, 1], (49_152, port));
            frame[22] = ttl;
            assert_eq!(classify(&frame, |_| true).0, class, "port {port}, TTL {ttl}");
            let frame = ipv6(17, ttl, "fe80::9", &ports(49_152, port));
            assert_eq!(classify(&frame, |_| false).0, class, "port {port}, hop limit {ttl}");
        }
    }

    #[test]
    fn bgp_and_bfd_to_a_group_from_off_link_are_routing() {
        let off_link =
            |protocol, ports| classify(&ipv4(protocol, [198, 51, 100, 7], [224, 0, 0, 5], ports), |_| false).0;
        assert_eq!(off_link(17, (49_152, 3_784)), Class::Routing);
        assert_eq!(off_link(6, (40_000, 179)), Class::Routing);
    }

    #[test]
    fn later_fragments_have_a_protocol_and_no_ports() {
        let on_link = |frame: &[u8]| classify(frame, |_| true).0;
        for (protocol, ports_of, first, later) in [
            (17, (49_152, 3_784), Class::Bfd, Class::Other),
            (6, (40_000, 179), Class::Bgp, Class::Other),
            (89, (0, 0), Class::Routing, Class::Routing),
        ] {
            let mut frame = ipv4(protocol, [192, 0, 2, 254], [192, 0, 2, 1], ports_of);
            frame[20] = 0x20;
            assert_eq!(on_link(&frame), first, "protocol {protocol}, the first fragment");
            frame[21] = 1;
            assert_eq!(on_link(&frame), later, "protocol {protocol}, a later fragment");
            let fragment =
                |offset| [&[protocol, 0, 0, offset, 0, 0, 0, 1][..], &ports(ports_of.0, ports_of.1)].concat();
            assert_eq!(
                on_link(&ipv6(44, 255, "fe80::9", &fragment(1))),
                first,
                "protocol {protocol} of IPv6, the first"
            );
            assert_eq!(
                on_link(&ipv6(44, 255, "fe80::9", &fragment(8))),
                later,
                "protocol {protocol} of IPv6, a later one"
            );
        }
        let solicitation = [135, 0, 0, 0];
        assert_eq!(on_link(&ipv6(58, 255, "fe80::9", &solicitation)), Class::Neighbour);
        let fragment = [&[58, 0, 0, 1, 0, 0, 0, 1][..], &solicitation].concat();
        assert_eq!(on_link(&ipv6(44, 255, "fe80::9", &fragment)), Class::Other);
    }

    #[test]
    fn bgp_of_ipv6_neighbours_has_a_class_of_its_own() {
        let class = |source: &str| {
            let frame = ipv6(6, 64, source, &ports(40_000, 179));
            classify(&frame, |source| matches!(source, IpAddr::V6(source) if source.segments()[3] == 1)).0
        };
        assert_eq!(class("2001:db8:0:1::9"), Class::Bgp);
        assert_eq!(class("fe80::9"), Class::Bgp);
        assert_eq!(class("2001:db8:0:2::9"), Class::Other);
        assert_eq!(class("fec0::9"), Class::Other, "not link-local");
    }

    #[test]
    fn any_bytes_have_a_class() {
        let frame = ipv4(6, [192, 0, 2, 254], [192, 0, 2, 1], (40_000, 179));
        for length in 0..=frame.len() {
            let _ = classify(&frame[..length], |_| true);
        }
    }

    #[test]
    fn a_flood_from_one_source_leaves_room_for_others() {
        let mut limiter = Limiter::new(7);
        let mut passed = [0_u32; 2];
        for step in 0..1_000_000_u64 {
            let now = Instant::from_micros(step);
            passed[0] += u32::from(limiter.allows(now, Class::Routing, 1));
            if step % 10_000 == 0 {
                passed[1] += u32::from(limiter.allows(now, Class::Routing, 2));
            }
        }
        assert_eq!(passed[1], 100, "the neighbour loses nothing");
        assert!((2_400..2_700).contains(&passed[0]), "{} of a million in a second", passed[0]);
    }

    #[test]
    fn echoes_forged_one_router_away_take_nothing_from_bfd() {
        let mut limiter = Limiter::new(7);
        let echo = |last: u8| {
            let mut frame = ipv4(17, [192, 0, 2, last], [192, 0, 2, 1], (49_152, 3_785));
            frame[22] = 254;
            classify(&frame, |_| true)
        };
        let control = classify(&ipv4(17, [192, 0, 2, 254], [192, 0, 2, 1], (49_152, 3_784)), |_| true);
        let mut passed = [0_u32; 2];
        for step in 0..1_000_000_u64 {
            let now = Instant::from_micros(step);
            // The address of the neighbour in every second one, and all others of the link.
            let (class, source) = echo(if step % 2 == 0 { 254 } else { (step / 2 % 254) as u8 });
            passed[0] += u32::from(limiter.allows(now, class, source));
            // More than a source that was there before keeps in any case.
            if step % 5_000 == 0 {
                passed[1] += u32::from(limiter.allows(now, control.0, control.1));
            }
        }
        assert_eq!(passed[1], 200, "the neighbour loses nothing");
        assert!(passed[0] < 23_000, "{} of a million in a second", passed[0]);
    }

    #[test]
    fn forged_bgp_takes_nothing_from_bfd_and_ospf() {
        let mut limiter = Limiter::new(7);
        let neighbour = 0xc000_02fe;
        let mut passed = [0_u32; Class::ALL.len()];
        for step in 0..1_000_000_u64 {
            let now = Instant::from_micros(step);
            let mut send = |class: Class| passed[class as usize] += u32::from(limiter.allows(now, class, neighbour));
            send(Class::Bgp);
            if step % 10_000 == 0 {
                send(Class::Bfd);
                send(Class::Routing);
            }
        }
        assert_eq!([Class::Bfd, Class::Routing].map(|class| passed[class as usize]), [100, 100]);
        assert!(passed[Class::Bgp as usize] < 2_700, "{passed:?}");
    }

    #[test]
    fn forged_sources_in_all_slots_leave_a_neighbour_its_hellos() {
        let mut limiter = Limiter::new(7);
        // BFD of one neighbour, 20 frames a second, for a second before the flood.
        let neighbour = 0xc000_02fe;
        for step in 0..20 {
            assert!(limiter.allows(Instant::from_micros(step * 50_000), Class::Routing, neighbour));
        }
        let (mut of_flood, mut of_neighbour, mut of_new_sender) = (0_u64, 0, 0);
        for step in 1_000_000..3_000_000_u64 {
            let now = Instant::from_micros(step);
            of_flood += u64::from(limiter.allows(now, Class::Routing, 0xc0a8_0000 + step % 4_096));
            if step % 50_000 == 0 {
                of_neighbour += u32::from(limiter.allows(now, Class::Routing, neighbour));
            }
            // Once the flood has taken all places.
            if step > 2_000_000 && step % 50_000 == 25_017 {
                of_new_sender += u32::from(limiter.allows(now, Class::Routing, 0xc633_6401));
            }
        }
        assert_eq!(of_neighbour, 40, "it loses nothing in two seconds");
        assert!(of_new_sender < 10, "{of_new_sender} of 20: all slots are full");
        let most = 2 * Class::Routing.rate() + 1_000 + REGULARS as u64 * 3;
        assert!(of_flood < most, "{of_flood} of two million, at most {most}");
    }

    #[test]
    fn all_sources_together_stay_below_the_rate() {
        let mut limiter = Limiter::new(7);
        let passed = (0..1_000_000_u64)
            .filter(|step| limiter.allows(Instant::from_micros(*step), Class::Neighbour, *step))
            .count();
        assert!((1_900..2_200).contains(&passed), "{passed}");
    }
}
