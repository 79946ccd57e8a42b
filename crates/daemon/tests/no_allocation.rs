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
    fn new() -> Bed {
        let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
        let links = [INSIDE, OUTSIDE].map(|port| InterfaceLink { port, vlan: None });
        let shared = Arc::new(Shared::new(settings(), 2).expect("the settings are valid"));
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
    let mut bed = Bed::new();
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
