//! The packet path neither allocates nor frees memory: established flows, new ones, hairpins,
//! hand-offs, ARP and drops.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(unsafe_code, reason = "an allocator that counts can only be written this way")]

use core::cell::Cell;
use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;
use std::sync::Arc;

use daemon::InterfaceLink;
use daemon::Worker;
use daemon::WorkerOptions;
use daemon::build_workers;
use mem::ring;
use mem::ring::Consumer;
use nat::Duration;
use nat::Instant;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::event::EventKind;
use nat::event::LogsOpened;
use nat::event::Record;
use nat::settings::Gateway;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use packet_io::Buffer;
use packet_io::Io;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use wire::arp::Message;
use wire::arp::Operation;
use wire::build;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::tcp::Flags;

struct Counting;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    if COUNTING.get() {
        CALLS.set(CALLS.get() + 1);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the pointer came from `System`, because every allocation is passed on to it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const INSIDE: PortIndex = PortIndex(0);
const OUTSIDE: PortIndex = PortIndex(1);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 100), 80);
const POOL: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);

fn settings() -> Settings {
    let interface = |name: &str, side, address, mtu| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address, prefix_length: 24 }],
        mtu,
    };
    Settings {
        interfaces: vec![
            interface("lan", Side::Inside, Ipv4Addr::new(10, 0, 0, 1), 1_500),
            interface("wan", Side::Outside, Ipv4Addr::new(198, 51, 100, 1), 1_000),
        ],
        pools: vec![Pool {
            name: "a".to_owned(),
            addresses: vec![POOL],
            subscribers: vec![Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8).expect("a prefix")],
            ..Pool::default()
        }],
        limits: Limits { mappings_max: 4_096, extra_sessions_max: 4_096, subscribers_max: 512, ..Limits::default() },
        ..Settings::default()
    }
}

struct Bed {
    ports: MemoryBed,
    workers: Vec<Worker<MemoryIo>>,
    now: Instant,
    calls: u64,
    /// The records of the workers, which are not written here.
    events: Vec<Consumer<Record>>,
    logs_opened: Arc<LogsOpened>,
}

impl Bed {
    fn new(settings: Settings) -> Bed {
        let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
        let links = [INSIDE, OUTSIDE].map(|port| InterfaceLink { port, vlan: None });
        let shared = Arc::new(Shared::new(settings, 2).expect("the settings are valid"));
        let now = Instant::from_micros(1_000_000);
        let ios = (0..2).map(|worker| ports.io(worker)).collect();
        let workers = build_workers(&shared, &links, ios, &WorkerOptions::default(), [1, 2, 3, 4], now);
        let mut workers = workers.expect("there is memory");
        let (mut events, logs_opened) = (Vec::new(), Arc::new(LogsOpened::default()));
        for worker in &mut workers {
            let (producer, consumer) = ring::channel(1 << 14);
            worker.set_events(producer, Arc::clone(&logs_opened));
            events.push(consumer);
        }
        Bed { ports, workers, now, calls: 0, events, logs_opened }
    }

    /// Polls while the allocator counts.
    fn poll(&mut self) {
        self.now = self.now + Duration::from_micros(50);
        CALLS.set(0);
        COUNTING.set(true);
        for worker in &mut self.workers {
            worker.poll(self.now);
        }
        COUNTING.set(false);
        self.calls += CALLS.get();
    }

    fn push(&self, worker: usize, port: PortIndex, packet: &[u8]) {
        let to = MacAddress(self.ports.io(0).mac(port));
        let frame = build::frame(MacAddress([6, 0, 0, 0, 0, 9]), to, ETHER_TYPE_IPV4, packet);
        assert!(self.ports.push(worker, port, &frame), "the queue has room");
    }

    /// Polls until no packet moves, and answers ARP. Returns the IP packets that left.
    fn settle(&mut self, port: PortIndex) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for _ in 0..8 {
            self.poll();
            for side in [INSIDE, OUTSIDE] {
                while let Some((_, buffer)) = self.ports.pull(side) {
                    let header = LinkHeader::parse(buffer.bytes()).expect("a frame");
                    let payload = &buffer.bytes()[header.payload_offset()..];
                    if header.ether_type != ETHER_TYPE_ARP {
                        if side == port {
                            out.push(payload.to_vec());
                        }
                        continue;
                    }
                    let request = Message::parse(payload).expect("ARP");
                    let asks = request.operation == Operation::Request && !request.is_gratuitous();
                    if asks && request.sender_address != 0 {
                        let station = MacAddress([6, 0, 0, 0, 0, 7]);
                        let reply = request.reply(station).to_bytes();
                        let frame = build::frame(station, request.sender_mac, ETHER_TYPE_ARP, &reply);
                        assert!(self.ports.push(0, side, &frame), "the queue has room");
                    }
                }
            }
        }
        out
    }
}

fn subscriber(n: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, n), port)
}

fn source_port(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[20], packet[21]])
}

#[test]
fn the_packet_path_allocates_nothing() {
    let mut bed = Bed::new(settings());
    bed.settle(OUTSIDE);
    for round in 0..40_u16 {
        for n in 2..12_u8 {
            let queue = usize::from(n) % 2;
            bed.push(queue, INSIDE, &build::udp(subscriber(n, 4_000 + round), SERVER).payload(b"x").build());
            bed.push(queue, INSIDE, &build::tcp(subscriber(n, 5_000 + round), SERVER, Flags::SYN).build());
            let big = build::udp(subscriber(n, 6_000), SERVER).payload_length(1_300).build();
            bed.push(queue, INSIDE, &big);
            for fragment in build::fragment(&big, 700).iter().rev() {
                bed.push(queue, INSIDE, fragment);
            }
            let to_self = Ipv4Addr::new(10, 0, 0, 1);
            bed.push(queue, INSIDE, &build::echo_request(*subscriber(n, 0).ip(), to_self, 7).build());
            let short_lived = build::udp(subscriber(n, 7_000), SERVER).ttl(1).build();
            bed.push(queue, INSIDE, &short_lived);
        }
        let out = bed.settle(OUTSIDE);
        let first = out.iter().find(|packet| packet[9] == 17).expect("UDP leaves");
        let external = SocketAddrV4::new(POOL, source_port(first));
        // A reply, an unsolicited packet, a hairpin, an ICMP error about a packet that left,
        // garbage.
        bed.push(1, OUTSIDE, &build::udp(SERVER, external).payload(b"y").build());
        bed.push(0, OUTSIDE, &build::udp(SERVER, SocketAddrV4::new(POOL, 1_024)).build());
        bed.push(0, OUTSIDE, &build::tcp(SERVER, SocketAddrV4::new(POOL, 1_025), Flags::SYN).build());
        bed.push(0, INSIDE, &build::udp(subscriber(3, 8_000), external).build());
        bed.push(0, OUTSIDE, &build::icmp_error(*SERVER.ip(), POOL, 3, 3, first).build());
        bed.push(0, OUTSIDE, &[0x45; 30]);
        bed.settle(INSIDE);
        if round == 20 {
            bed.logs_opened.count_one();
        }
        // All kinds of timers expire.
        bed.now = bed.now + Duration::from_secs(u64::from(round) % 7);
    }
    let of = |verdict| bed.workers.iter().map(|worker| worker.counters().of(verdict)).sum::<u64>();
    for verdict in [Verdict::Outbound, Verdict::Inbound, Verdict::Hairpin, Verdict::Local, Verdict::TtlExpired] {
        assert!(of(verdict) > 0, "{} was exercised", verdict.name());
    }
    let handed_off: u64 = bed.workers.iter().map(|worker| worker.counters().handed_off).sum();
    assert!(handed_off > 0, "packets crossed between workers");
    let recorded: usize = bed.events.iter().map(Consumer::len).sum();
    assert!(recorded > 400, "events were recorded: {recorded}");
    let mut reports = 0;
    for ring in &mut bed.events {
        ring.pop_burst(usize::MAX, |record| {
            let is_report = record.event().is_some_and(|event| event.kind == EventKind::SnapshotComplete);
            reports += usize::from(is_report);
        });
    }
    assert_eq!(reports, 2, "each worker reports another log what lived");
    assert_eq!(bed.calls, 0, "calls of the allocator inside Worker::poll");
}

/// One message, and whether the inside says it.
type Line = (bool, &'static [u8]);

/// What an inside host says in a control session of each gateway, and what the outside says.
const SAID: [(u16, &[Line]); 3] = [
    (
        21,
        &[
            (false, b"220 ready\r\n"),
            (true, b"USER a\r\n"),
            (true, b"PORT 10,0,0,2,18,52\r\n"),
            (true, b"EPRT |1|10.0.0.2|4661|\r\nRE"),
            (true, b"TR f\r\n"),
            (false, b"150 go\r\n"),
        ],
    ),
    (
        5060,
        &[
            (true, b"INVITE sip:b@x SIP/2.0\r\nVia: SIP/2.0/TCP 10.0.0.2:5060;branch=z\r\nContact: <sip:a@10.0.0.2:5062>\r\nContent-Type: application/sdp\r\nContent-Length: 50\r\n\r\nv=0\r\nc=IN IP4 10.0.0.2\r\nm=audio 6000 RTP/AVP 0 8\r\n"),
            (false, b"SIP/2.0 200 OK\r\nVia: SIP/2.0/TCP 198.51.100.10:5060;branch=z\r\nContent-Length: 0\r\n\r\n"),
        ],
    ),
    (554, &[(true, b"SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5004-5005\r\n\r\n")]),
];

/// A TCP connection from 10.0.0.2, word for word. Returns its external endpoint.
fn converse(bed: &mut Bed, inside_port: u16, server_port: u16, said: &[Line]) -> SocketAddrV4 {
    let (inside, server) = (subscriber(2, inside_port), SocketAddrV4::new(*SERVER.ip(), server_port));
    bed.push(0, INSIDE, &build::tcp(inside, server, Flags::SYN).sequence(1_000).build());
    let out = bed.settle(OUTSIDE);
    let external = SocketAddrV4::new(POOL, source_port(out.first().expect("a SYN leaves")));
    // Next to send and next expected, of the inside and of the outside.
    let (mut inner, mut outer) = ((1_001, 5_001), (5_001, 1_001));
    bed.push(
        1,
        OUTSIDE,
        &build::tcp(server, external, Flags::SYN | Flags::ACK).sequence(5_000).acknowledgment(1_001).build(),
    );
    bed.settle(INSIDE);
    for (from_inside, text) in said {
        let (own, from, to) = if *from_inside { (&mut inner, inside, server) } else { (&mut outer, server, external) };
        let segment = build::tcp(from, to, Flags::ACK).sequence(own.0).acknowledgment(own.1).payload(text).build();
        own.0 += text.len() as u32;
        let (port, other) = if *from_inside { (INSIDE, OUTSIDE) } else { (OUTSIDE, INSIDE) };
        bed.push(usize::from(inside_port) % 2, port, &segment);
        for packet in bed.settle(other) {
            let sequence = u32::from_be_bytes([packet[24], packet[25], packet[26], packet[27]]);
            let length = packet.len() as u32 - 20 - u32::from(packet[32] >> 4) * 4;
            let got = if *from_inside { &mut outer.1 } else { &mut inner.1 };
            *got = sequence + length;
        }
    }
    external
}

#[test]
fn gateways_and_port_control_allocate_nothing() {
    let mut settings = settings();
    settings.gateways = (0..alg::ALGS.len() as u8).map(|number| Gateway::new(alg::AlgId(number))).collect();
    (settings.port_control.pcp, settings.port_control.nat_pmp) = (true, true);
    let mut bed = Bed::new(settings);
    bed.settle(OUTSIDE);
    for round in 0..20_u16 {
        for (server_port, said) in SAID {
            converse(&mut bed, 20_000 + round, server_port, said);
        }
        // SIP and TFTP over UDP, fragmented on the narrow link.
        let long = [SAID[1].1[0].1, &[b'x'; 700]].concat();
        for (from, to, payload) in [(5_060, 5_060, &long[..]), (3_000, 69, b"\0\x01file\0octet\0")] {
            let server = SocketAddrV4::new(*SERVER.ip(), to);
            bed.push(0, INSIDE, &build::udp(subscriber(2, from + round), server).payload(payload).build());
        }
        // Requests of all kinds, one of them for a set of ports, and packets to what was granted.
        for n in 2..12_u8 {
            for message in requests(n, 7_000 + round) {
                let server = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), pcp::SERVER_PORT);
                bed.push(
                    usize::from(n) % 2,
                    INSIDE,
                    &build::udp(subscriber(n, 4_000), server).payload(&message).build(),
                );
            }
        }
        let replies = bed.settle(INSIDE);
        for reply in replies.iter().filter(|reply| reply.len() >= 88 && reply[28] == 2) {
            let granted = SocketAddrV4::new(POOL, u16::from_be_bytes([reply[70], reply[71]]));
            bed.push(1, OUTSIDE, &build::udp(SERVER, granted).build());
        }
        bed.settle(INSIDE);
        bed.now = bed.now + Duration::from_secs(u64::from(round) % 7 * 20);
    }
    let counter = |of: fn(&nat::Counters) -> u64| bed.workers.iter().map(|worker| of(worker.counters())).sum::<u64>();
    assert!(counter(|counters| counters.expectations_created) > 60, "payloads were read");
    assert!(counter(|counters| counters.messages_changed.iter().sum()) > 60, "and changed");
    let answered: u64 = bed.workers.iter().map(|worker| worker.counters().of(Verdict::Local)).sum();
    assert!(answered > 400, "requests were answered: {answered}");
    assert_eq!(bed.calls, 0, "calls of the allocator inside Worker::poll");
}

/// MAP, PEER, a set of ports, a deletion, ANNOUNCE, NAT-PMP, and garbage.
fn requests(n: u8, port: u16) -> Vec<Vec<u8>> {
    let head = |opcode: u8, lifetime: u32| {
        let mut message = vec![2, opcode, 0, 0];
        message.extend(lifetime.to_be_bytes());
        message.extend(pcp::mapped(subscriber(n, 0).ip().to_bits()));
        message
    };
    let map = |opcode: u8, lifetime: u32, port: u16, rest: &[u8]| {
        let [high, low] = port.to_be_bytes();
        let mut message = head(opcode, lifetime);
        message.extend(*b"twelve bytes");
        message.extend([17, 0, 0, 0, high, low, 0, 0]);
        message.extend(pcp::mapped(0));
        message.extend(rest);
        message
    };
    let peer = [&[0, 80, 0, 0][..], &pcp::mapped(SERVER.ip().to_bits())].concat();
    let [high, low] = (port + 100).to_be_bytes();
    vec![
        map(1, 120, port, &[]),
        map(2, 120, port + 40, &peer),
        map(1, 120, port + 100, &[130, 0, 0, 5, 0, 4, high, low, 0, 0, 0, 0]),
        map(1, 0, port - 1, &[]),
        head(0, 0),
        vec![0, 0],
        vec![0, 1, 0, 0, high, low, 0, 0, 0, 0, 1, 0],
        vec![2, 9, 0, 0],
    ]
}
