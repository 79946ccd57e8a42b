//! A worker between a flood and the kernel, with a virtual clock.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::sync::Arc;

use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Duration;
use nat::Instant;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use packet_io::Buffer;
use packet_io::Io as _;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use wire::arp;
use wire::build;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::tcp::Flags;

use crate::InterfaceLink;
use crate::Worker;
use crate::WorkerOptions;
use crate::build_workers;
use crate::kernel::KernelEnd;
use crate::kernel::class::Class;
use crate::kernel::end::Ask;
use crate::kernel::end::KernelNeighbour;
use crate::kernel::end::NEWS;
use crate::kernel::end::UP_FRAMES;
use crate::kernel::end::Up;
use crate::kernel::sent::Sent;

const INSIDE: PortIndex = PortIndex(0);
const OUTSIDE: PortIndex = PortIndex(1);
const OWN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The neighbour that BGP and BFD are spoken with.
const ROUTER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const SERVER: SocketAddrV4 = SocketAddrV4::new(ROUTER, 80);
const SUBSCRIBER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 4_000);
/// Ends of a connection in which the kernel has sent data.
const OWN_SSH: SocketAddrV4 = SocketAddrV4::new(OWN, 22);
const OPERATOR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 7), 40_000);
const STATION: MacAddress = MacAddress([6, 0, 0, 0, 0, 7]);
const BGP: u16 = 179;
const BFD: u16 = 3_784;
const BFD_ECHO: u16 = 3_785;
const OSPF: u8 = 89;

fn settings() -> Settings {
    let interface = |name: &str, side, address| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address, prefix_length: 24 }],
        mtu: 1_500,
    };
    Settings {
        interfaces: vec![
            interface("lan", Side::Inside, Ipv4Addr::new(10, 0, 0, 1)),
            interface("wan", Side::Outside, OWN),
        ],
        kernel_interfaces: vec![InterfaceId(0), InterfaceId(1)],
        pools: vec![Pool {
            name: "a".to_owned(),
            addresses: vec![Ipv4Addr::new(203, 0, 113, 1)],
            subscribers: vec![Prefix::ALL],
            ..Pool::default()
        }],
        limits: Limits { mappings_max: 64, extra_sessions_max: 64, subscribers_max: 64, ..Limits::default() },
        ..Settings::default()
    }
}

/// What the kernel got: of the sessions with the neighbour, in the order of [`SESSIONS`], and
/// everything else.
#[derive(Debug, Default)]
struct Got {
    sessions: [u32; SESSIONS.len()],
    others: u32,
    /// The part of these that is of the operator's connection.
    of_operator: u32,
}

/// Classes of the sessions with the neighbour: BFD, OSPF and BGP.
const SESSIONS: [Class; 3] = [Class::Bfd, Class::Routing, Class::Bgp];

struct Bed {
    ports: MemoryBed,
    worker: Worker<MemoryIo>,
    now: Instant,
    up: Consumer<Up<<MemoryIo as packet_io::Io>::Buffer>>,
    asks: Consumer<Ask>,
    neighbours: Producer<KernelNeighbour>,
    sent: Arc<Sent>,
    got: Got,
}

impl Bed {
    fn new() -> Bed {
        let settings = settings();
        let ports = MemoryBed::new(&MemorySettings::default());
        let links = [INSIDE, OUTSIDE].map(|port| InterfaceLink { port, vlan: None });
        let shared = Arc::new(Shared::new(settings.clone(), 1).unwrap());
        let now = Instant::from_micros(1_000_000);
        let options = WorkerOptions::default();
        let mut workers = build_workers(&shared, &links, vec![ports.io(0)], &options, [1, 2, 3, 4], now).unwrap();
        let mut worker = workers.remove(0);
        let (up, up_consumer) = ring::channel(UP_FRAMES);
        let ((_, down), (back, _)) = (ring::channel(8), ring::channel(16));
        let (asks, asks_consumer) = ring::channel(NEWS);
        let (neighbours, neighbours_consumer) = ring::channel(NEWS);
        let sent = Arc::new(Sent::new(9));
        let opened = build::tcp(OWN_SSH, OPERATOR, Flags::ACK).payload(b"SSH-2.0").build();
        sent.note(OUTSIDE, &build::frame(STATION, STATION, ETHER_TYPE_IPV4, &opened));
        let of_worker = Arc::clone(&sent);
        worker.set_kernel(KernelEnd::new(up, down, back, asks, neighbours_consumer, &settings, of_worker, 7));
        Bed { ports, worker, now, up: up_consumer, asks: asks_consumer, neighbours, sent, got: Got::default() }
    }

    fn push(&self, port: PortIndex, from: MacAddress, ether_type: u16, payload: &[u8]) {
        let to = MacAddress(self.ports.io(0).mac(port));
        assert!(self.ports.push(0, port, &build::frame(from, to, ether_type, payload)), "the queue has room");
    }

    /// One poll, so long after the one before; the kernel takes what is for it and resolves
    /// neighbours. Returns the IP packets that left by a port.
    fn poll(&mut self, after: Duration, port: PortIndex) -> Vec<Vec<u8>> {
        self.now = self.now + after;
        self.worker.poll(self.now);
        while let Some(up) = self.up.try_pop() {
            let frame = up.buffer.bytes();
            let session = [17, OSPF, 6].iter().position(|protocol| frame[23] == *protocol);
            self.got.of_operator += u32::from(frame[26..30] == OPERATOR.ip().octets());
            match session.filter(|_| frame[26..30] == ROUTER.octets()) {
                Some(session) => self.got.sessions[session] += 1,
                None => self.got.others += 1,
            }
        }
        while let Some(Ask { interface, address }) = self.asks.try_pop() {
            assert!(self.neighbours.try_push(KernelNeighbour { interface, address, station: Some(STATION) }).is_ok());
        }
        let mut left = Vec::new();
        for side in [INSIDE, OUTSIDE] {
            while let Some((_, buffer)) = self.ports.pull(side) {
                let header = LinkHeader::parse(buffer.bytes()).unwrap();
                if side == port && header.ether_type == ETHER_TYPE_IPV4 {
                    left.push(buffer.bytes()[header.payload_offset()..].to_vec());
                }
            }
        }
        left
    }
}

/// A frame of the flood: its station, type and contents.
fn flood(kind: Class, random: &mut SmallRng) -> (MacAddress, u16, Vec<u8>) {
    let [a, b, c, d] = random.random::<[u8; 4]>();
    let station = MacAddress([2, 0x66, a, b, c, d]);
    let neighbour = Ipv4Addr::new(198, 51, 100, 100 + a % 150);
    let segment =
        |source| build::tcp(SocketAddrV4::new(source, 1_024 + u16::from(b)), SocketAddrV4::new(OWN, BGP), Flags::SYN);
    match kind {
        Class::Bfd => {
            let (source, destination) = (SocketAddrV4::new(neighbour, 49_152), SocketAddrV4::new(OWN, BFD));
            (station, ETHER_TYPE_IPV4, build::udp(source, destination).ttl(255).payload(&[0x20; 24]).build())
        }
        Class::BfdEcho => {
            let (source, destination) = (SocketAddrV4::new(neighbour, 49_152), SocketAddrV4::new(OWN, BFD_ECHO));
            (station, ETHER_TYPE_IPV4, build::udp(source, destination).ttl(254).payload(&[0x20; 24]).build())
        }
        Class::Bgp => (station, ETHER_TYPE_IPV4, segment(neighbour).build()),
        Class::Routing => (station, ETHER_TYPE_IPV4, build::raw(neighbour, OWN, OSPF).payload(&[2; 44]).build()),
        Class::Connection => {
            (station, ETHER_TYPE_IPV4, build::tcp(OPERATOR, OWN_SSH, Flags::ACK).payload(&[0; 24]).build())
        }
        Class::Other => (station, ETHER_TYPE_IPV4, segment(Ipv4Addr::new(203, 1, c, d)).build()),
        Class::Neighbour => {
            let request = arp::Message {
                operation: arp::Operation::Request,
                sender_mac: station,
                sender_address: neighbour.to_bits(),
                target_mac: MacAddress::default(),
                target_address: Ipv4Addr::new(198, 51, 100, 100 + d % 150).to_bits(),
            };
            (station, ETHER_TYPE_ARP, request.to_bytes().to_vec())
        }
    }
}

/// BFD, OSPF and BGP of a neighbour for two seconds, beside them a flow in both directions, and for
/// one of the seconds a million frames of a kind.
fn survives_a_flood_of(kind: Class) {
    // As many frames as there are in so long, so that each poll finds a usual burst.
    const STEP: Duration = Duration::from_micros(32);
    const FRAMES: u64 = 32;
    let mut bed = Bed::new();
    let mut random = SmallRng::seed_from_u64(3);
    let outbound = build::udp(SUBSCRIBER, SERVER).payload(b"there").build();
    // The first packet opens the mapping and waits for the kernel to resolve the neighbour.
    bed.push(INSIDE, STATION, ETHER_TYPE_IPV4, &outbound);
    let first: Vec<Vec<u8>> = (0..4).flat_map(|_| bed.poll(STEP, OUTSIDE)).collect();
    let [a, b, c, d, port @ ..] = <[u8; 10]>::try_from(&first[0][12..22]).unwrap();
    let external = SocketAddrV4::new([a, b, c, d].into(), u16::from_be_bytes([port[4], port[5]]));
    let inbound = build::udp(SERVER, external).payload(b"back").build();
    bed.push(OUTSIDE, STATION, ETHER_TYPE_IPV4, &inbound);
    (0..4).for_each(|_| drop(bed.poll(STEP, INSIDE)));
    bed.got = Got::default();

    let sessions = [
        build::udp(SocketAddrV4::new(ROUTER, 49_152), SocketAddrV4::new(OWN, BFD)).ttl(255).payload(&[0x20; 24]),
        build::raw(ROUTER, OWN, OSPF).payload(&[2; 44]),
        build::tcp(SocketAddrV4::new(ROUTER, 40_000), SocketAddrV4::new(OWN, BGP), Flags::ACK).payload(&[0xff; 19]),
    ];
    let sessions = sessions.map(|packet| packet.build());
    let before = bed.worker.counters().clone();
    let (mut flooded, mut sent, mut left) = (0, [0_u32; 2], [0_u32; 2]);
    let mut of_sessions = [0; SESSIONS.len()];
    let steps = 2_000_000 / STEP.as_micros();
    for step in 0..steps {
        if step >= steps / 2 {
            for _ in 0..FRAMES {
                let (station, ether_type, payload) = flood(kind, &mut random);
                bed.push(OUTSIDE, station, ether_type, &payload);
                flooded += 1;
            }
        }
        for (session, packet) in sessions.iter().enumerate() {
            // A known neighbour keeps 39 a second beside a flood of the same class, and loses none
            // of more beside others.
            let per_second = if SESSIONS[session] == kind { 20 } else { 200 };
            let every = steps / 2 / per_second;
            // Not at the same time.
            if step % every == 5 + session as u64 * every / 4 {
                bed.push(OUTSIDE, STATION, ETHER_TYPE_IPV4, packet);
                of_sessions[session] += 1;
            }
        }
        // The flow, which speaks in turns, 15,600 packets a second each way.
        let way = (step % 2) as usize;
        let (port, packet, other) = [(INSIDE, &outbound, OUTSIDE), (OUTSIDE, &inbound, INSIDE)][way];
        bed.push(port, STATION, ETHER_TYPE_IPV4, packet);
        sent[way] += 1;
        let protocol_of_flow = 17;
        let of_flow = |packet: &Vec<u8>| packet[9] == protocol_of_flow && packet.len() == [33, 32][way];
        left[way] += bed.poll(STEP, other).iter().filter(|packet| of_flow(packet)).count() as u32;
    }
    assert!(flooded >= 999_000, "{flooded} frames in a second");
    assert_eq!(left, sent, "the flow loses nothing: {kind:?}");
    let after = bed.worker.counters();
    let of = |verdict| after.of(verdict) - before.of(verdict);
    assert_eq!((of(Verdict::Outbound), of(Verdict::Inbound)), (u64::from(sent[0]), u64::from(sent[1])));
    assert!(of_sessions.iter().all(|sent| *sent >= 40), "{of_sessions:?}");
    assert_eq!(bed.got.sessions, of_sessions, "all of the sessions reach the kernel: {kind:?}");
    // Two thousand waiting at the beginning, and the rate for a second.
    assert!(u64::from(bed.got.others) < kind.rate() * 5 / 4, "{:?} reached the kernel: {kind:?}", bed.got);
    let refused = after.of(Verdict::KernelLimited) - before.of(Verdict::KernelLimited);
    assert!(refused > flooded - kind.rate() * 5 / 4, "{refused} of {flooded} refused and counted: {kind:?}");
}

#[test]
fn a_million_segments_a_second_from_afar_disturb_nothing() {
    survives_a_flood_of(Class::Other);
}

#[test]
fn a_million_segments_a_second_of_a_connection_disturb_nothing() {
    survives_a_flood_of(Class::Connection);
}

#[test]
fn a_connection_moves_much_data_beside_a_flood_from_afar() {
    let mut bed = Bed::new();
    let mut random = SmallRng::seed_from_u64(3);
    let packet = build::tcp(OPERATOR, OWN_SSH, Flags::ACK).payload(&[7; 1_400]).build();
    // The share of one connection, each segment beside 50 of the flood.
    for sent in 1..=20_000 {
        bed.push(OUTSIDE, STATION, ETHER_TYPE_IPV4, &packet);
        for _ in 0..50 {
            let (station, ether_type, payload) = flood(Class::Other, &mut random);
            bed.push(OUTSIDE, station, ether_type, &payload);
        }
        bed.poll(Duration::from_micros(1_000_000 / 20_000), INSIDE);
        assert_eq!(bed.got.of_operator, sent, "segments that the kernel got");
    }
}

#[test]
fn a_million_segments_a_second_of_the_link_disturb_nothing() {
    survives_a_flood_of(Class::Bgp);
}

#[test]
fn a_million_hellos_a_second_of_the_link_disturb_nothing() {
    survives_a_flood_of(Class::Routing);
}

#[test]
fn a_million_bfd_packets_a_second_of_the_link_disturb_nothing() {
    survives_a_flood_of(Class::Bfd);
}

#[test]
fn a_million_echoes_a_second_from_afar_disturb_nothing() {
    survives_a_flood_of(Class::BfdEcho);
}

/// Classes, the most important one first: each has room beside a flood of those behind it.
const BY_IMPORTANCE: [Class; 7] =
    [Class::Bfd, Class::Routing, Class::Neighbour, Class::Bgp, Class::BfdEcho, Class::Connection, Class::Other];

#[test]
fn important_classes_have_room_when_the_kernel_is_behind() {
    for (place, of_flood) in BY_IMPORTANCE.into_iter().enumerate() {
        let mut bed = Bed::new();
        let mut random = SmallRng::seed_from_u64(3);
        let mut push = |bed: &mut Bed, class| {
            let (station, ether_type, payload) = flood(class, &mut random);
            bed.push(OUTSIDE, station, ether_type, &payload);
            bed.now = bed.now + Duration::from_millis(1);
            bed.worker.poll(bed.now);
        };
        // Below the rate of the class, and nobody takes anything out of the ring.
        (0..2 * UP_FRAMES).for_each(|_| push(&mut bed, of_flood));
        let refused = |bed: &Bed| {
            let counters = bed.worker.counters();
            (counters.of(Verdict::KernelRingFull), counters.of(Verdict::KernelLimited))
        };
        assert!(refused(&bed).0 > 0, "{of_flood:?} fills its part");
        for (other, class) in BY_IMPORTANCE.into_iter().enumerate().rev() {
            let (full, limited) = refused(&bed);
            push(&mut bed, class);
            let expected = (full + u64::from(other >= place), limited);
            assert_eq!(refused(&bed), expected, "{class:?} while {of_flood:?} fills the ring");
        }
    }
}

#[test]
fn a_million_arp_requests_a_second_disturb_nothing() {
    survives_a_flood_of(Class::Neighbour);
}

#[test]
fn answers_that_the_kernel_waits_for_pass_a_flood_of_arp() {
    const RATE_AT_ONCE: u32 = 40;
    let mut bed = Bed::new();
    let mut random = SmallRng::seed_from_u64(3);
    let flood = |bed: &Bed, random: &mut SmallRng| {
        let (station, ether_type, payload) = flood(Class::Neighbour, random);
        bed.push(OUTSIDE, station, ether_type, &payload);
    };
    for _ in 0..40_000 / 32 {
        (0..32).for_each(|_| flood(&bed, &mut random));
        bed.poll(Duration::from_micros(32), OUTSIDE);
    }
    let begun = bed.got.others;
    // Subscribers behind a router that answers for them, so that they share its station.
    for last in 0..250_u32 {
        let address = u32::from_be_bytes([198, 51, 100, 0]) | last;
        let request = arp::Message::request(MacAddress([2, 0, 0, 0, 0, 1]), OWN.to_bits(), address);
        let asked = build::frame(MacAddress([0xff; 6]), request.sender_mac, ETHER_TYPE_ARP, &request.to_bytes());
        bed.sent.note(OUTSIDE, &asked);
        let answer = arp::Message {
            operation: arp::Operation::Reply,
            sender_mac: STATION,
            sender_address: address,
            target_mac: request.sender_mac,
            target_address: OWN.to_bits(),
        };
        (0..16).for_each(|_| flood(&bed, &mut random));
        // The second one was not asked for.
        (0..2).for_each(|_| bed.push(OUTSIDE, STATION, ETHER_TYPE_ARP, &answer.to_bytes()));
        (0..16).for_each(|_| flood(&bed, &mut random));
        bed.poll(Duration::from_micros(32), OUTSIDE);
    }
    let came = bed.got.others - begun;
    assert!((250..250 + RATE_AT_ONCE).contains(&came), "{came} frames came, 250 of them answers");
}
