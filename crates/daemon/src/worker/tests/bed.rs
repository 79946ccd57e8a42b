//! Two ports, three interfaces, and hosts that answer ARP on request.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::sync::Arc;

use nat::Counters;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::redirection::Target;
use nat::settings::Admission;
use nat::settings::BalancedForward;
use nat::settings::Forward;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::PortTimeout;
use nat::settings::Route;
use nat::types::InterfaceId;
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
use wire::ethernet::VlanTag;

use crate::links::InterfaceLink;
use crate::worker::LinkMode;
use crate::worker::Worker;
use crate::worker::WorkerOptions;
use crate::worker::build_workers;

pub(crate) const INSIDE: PortIndex = PortIndex(0);
pub(crate) const OUTSIDE: PortIndex = PortIndex(1);
/// The VLAN of the second inside interface.
pub(crate) const VLAN: u16 = 100;
pub(crate) const INSIDE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const VLAN_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
pub(crate) const OUTSIDE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// A pool address on the outside subnet, and one that is not.
pub(crate) const POOL_ON_LINK: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
pub(crate) const POOL_OFF_LINK: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
/// An external address that belongs to one subscriber, and that subscriber.
pub(crate) const WHOLE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 200);
pub(crate) const WHOLE_INSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 222);
/// Who has forwarded ports.
pub(crate) const FORWARDED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 221);
/// The targets of one forwarded port; each remote endpoint keeps to one target.
pub(crate) const TARGETS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 223), Ipv4Addr::new(10, 0, 0, 224)];
pub(crate) const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 100), 53);

/// A router on the outside link, and a server behind it.
pub(crate) const ROUTER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 254);
pub(crate) const FAR_SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 88, 99, 7), 53);

/// Subscriber number `n` on the untagged inside link.
pub(crate) const fn subscriber(n: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, n), 4_000 + n as u16)
}

/// The station of the host with this address.
pub(crate) fn station_of(address: Ipv4Addr) -> MacAddress {
    let [a, b, c, d] = address.octets();
    MacAddress([0x06, 0, a, b, c, d])
}

/// A frame as it came out.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) worker: usize,
    pub(crate) header: LinkHeader,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    pub(crate) fn arp(&self) -> Option<Message> {
        if self.header.ether_type != ETHER_TYPE_ARP {
            return None;
        }
        Message::parse(&self.payload).ok()
    }

    /// Source, destination and transport payload of a UDP packet.
    pub(crate) fn udp(&self) -> Option<(SocketAddrV4, SocketAddrV4, &[u8])> {
        let packet = &self.payload;
        if self.header.ether_type != ETHER_TYPE_IPV4 || packet[9] != 17 {
            return None;
        }
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        let source = SocketAddrV4::new(address(12), word(20));
        let destination = SocketAddrV4::new(address(16), word(22));
        Some((source, destination, &packet[28..]))
    }

    /// Type and code of an ICMP message, and the packet that it quotes if it is an error.
    pub(crate) fn icmp(&self) -> Option<(u8, u8, &[u8])> {
        let packet = &self.payload;
        let is_icmp = self.header.ether_type == ETHER_TYPE_IPV4 && packet[9] == 1;
        is_icmp.then(|| (packet[20], packet[21], &packet[28..]))
    }
}

pub(crate) fn settings() -> Settings {
    let interface = |name: &str, side, address, mtu| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address, prefix_length: 24 }],
        mtu,
    };
    Settings {
        interfaces: vec![
            interface("lan", Side::Inside, INSIDE_ADDRESS, 1_500),
            interface("wan", Side::Outside, OUTSIDE_ADDRESS, 1_500),
            interface("lan.100", Side::Inside, VLAN_ADDRESS, 1_500),
        ],
        routes: vec![Route {
            prefix: Prefix::new(Ipv4Addr::new(192, 88, 99, 0), 24).expect("a prefix"),
            next_hop: ROUTER,
            interface: InterfaceId(1),
        }],
        pools: vec![
            Pool {
                name: "a".to_owned(),
                addresses: vec![POOL_ON_LINK, POOL_OFF_LINK],
                subscribers: vec![Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8).expect("a prefix")],
                ..Pool::default()
            },
            Pool {
                name: "servers".to_owned(),
                addresses: vec![WHOLE],
                subscribers: vec![Prefix::host(WHOLE_INSIDE)],
                one_to_one: true,
                ..Pool::default()
            },
        ],
        forwards: vec![Forward {
            realm: RealmId::default(),
            protocol: Protocol::Tcp,
            external: POOL_OFF_LINK,
            ports: (443, 445),
            inside: FORWARDED.into(),
            inside_port: 8_443,
            admission: Admission::Anyone,
        }],
        port_timeouts: vec![PortTimeout { protocol: Protocol::Udp, ports: 123..=123, idle: Duration::from_secs(20) }],
        balanced_forwards: vec![BalancedForward {
            realm: RealmId::default(),
            protocol: Protocol::Udp,
            external: POOL_OFF_LINK,
            ports: (7_000, 7_000),
            targets: TARGETS
                .map(|address| Target { address: address.to_bits(), port: Some(7_001), weight: 1 })
                .to_vec(),
            admission: Admission::Anyone,
            is_sticky: false,
        }],
        limits: Limits {
            flows_max: 1_000,
            mappings_max: 10_000,
            extra_sessions_max: 1_000,
            subscribers_max: 1_000,
            ..Limits::default()
        },
        ..Settings::default()
    }
}

pub(crate) struct Bed<I: Io = MemoryIo> {
    pub(crate) ports: MemoryBed,
    pub(crate) workers: Vec<Worker<I>>,
    pub(crate) now: Instant,
}

impl Bed<MemoryIo> {
    pub(crate) fn new(workers: usize) -> Bed {
        Bed::with_io(workers, &MemorySettings::default(), |_, io| io)
    }

    /// With other settings.
    pub(crate) fn of(settings: Settings, workers: usize) -> Bed {
        let (sizes, options) = (MemorySettings::default(), WorkerOptions::default());
        Bed::with_settings(settings, workers, &sizes, &options, |_, io| io)
    }

    /// Links without stations.
    pub(crate) fn offline() -> Bed {
        let options = WorkerOptions { mode: LinkMode::Offline, ..WorkerOptions::default() };
        Bed::with_options(1, &MemorySettings::default(), &options, |_, io| io)
    }
}

impl<I: Io> Bed<I> {
    pub(crate) fn with_io(workers: usize, sizes: &MemorySettings, wrap: impl Fn(usize, MemoryIo) -> I) -> Bed<I> {
        Bed::with_options(workers, sizes, &WorkerOptions::default(), wrap)
    }

    fn with_options(
        workers: usize,
        sizes: &MemorySettings,
        options: &WorkerOptions,
        wrap: impl Fn(usize, MemoryIo) -> I,
    ) -> Bed<I> {
        Bed::with_settings(settings(), workers, sizes, options, wrap)
    }

    pub(crate) fn with_settings(
        settings: Settings,
        workers: usize,
        sizes: &MemorySettings,
        options: &WorkerOptions,
        wrap: impl Fn(usize, MemoryIo) -> I,
    ) -> Bed<I> {
        let ports = MemoryBed::new(&MemorySettings { workers, ..sizes.clone() });
        let links = [
            InterfaceLink { port: INSIDE, vlan: None },
            InterfaceLink { port: OUTSIDE, vlan: None },
            InterfaceLink { port: INSIDE, vlan: Some(VLAN) },
        ];
        let shared = Arc::new(Shared::new(settings, workers).expect("the settings are valid"));
        let ios = (0..workers).map(|worker| wrap(worker, ports.io(worker))).collect();
        let now = Instant::from_micros(1_000_000);
        let workers = build_workers(&shared, &links, ios, options, [1, 2, 3, 4], now).expect("there is memory");
        Bed { ports, workers, now }
    }

    /// Past the announcements at start.
    pub(crate) fn after_start(mut self) -> Bed<I> {
        self.run_for(Duration::from_secs(10), Duration::from_millis(10));
        let _ = (self.sent(INSIDE), self.sent(OUTSIDE));
        self
    }

    /// Every worker polls a few times, so that hand-offs and what follows them are through; then
    /// checks the balance.
    pub(crate) fn settle(&mut self) {
        for _ in 0..6 {
            self.poll_all();
        }
    }

    pub(crate) fn poll_all(&mut self) {
        self.now = self.now + Duration::from_micros(10);
        for worker in &mut self.workers {
            worker.poll(self.now);
        }
        self.assert_balance();
    }

    pub(crate) fn run_for(&mut self, time: Duration, step: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + step;
            self.poll_all();
        }
    }

    pub(crate) fn total(&self) -> Counters {
        let mut total = Counters::default();
        for counters in self.workers.iter().map(Worker::counters) {
            total.received += counters.received;
            total.handed_off += counters.handed_off;
            total.taken_over += counters.taken_over;
            total.fragments_held += counters.fragments_held;
            total.neighbour_pending += counters.neighbour_pending;
            let sums = total.verdicts.iter_mut().chain(&mut total.bytes_forwarded).chain(&mut total.translated);
            let values = counters.verdicts.into_iter().chain(counters.bytes_forwarded).chain(counters.translated);
            for (sum, value) in sums.zip(values) {
                *sum += value;
            }
        }
        total
    }

    /// Every packet received is somewhere, once. Bytes and protocols are of packets that left.
    pub(crate) fn assert_balance(&self) {
        let total = self.total();
        let [out, back, turned] = [Verdict::Outbound, Verdict::Inbound, Verdict::Hairpin].map(|one| total.of(one));
        assert_eq!(total.translated.iter().sum::<u64>(), out + back + turned, "{total:?}");
        for (bytes, packets) in total.bytes_forwarded.into_iter().zip([out, back, turned]) {
            assert!(
                (28 * packets..=1_500 * packets).contains(&bytes),
                "{packets} packets have {bytes} bytes: {total:?}"
            );
        }
        let on_the_way = total.fragments_held + total.neighbour_pending + total.handed_off - total.taken_over;
        assert_eq!(total.received, total.verdicts_total() + on_the_way, "{total:?}");
        for worker in &self.workers {
            let counters = worker.counters();
            let gone = counters.handed_off + counters.fragments_held + counters.neighbour_pending;
            assert_eq!(counters.received + counters.taken_over, counters.verdicts_total() + gone);
        }
    }

    pub(crate) fn push(&self, worker: usize, port: PortIndex, frame: &[u8]) {
        assert!(self.ports.push(worker, port, frame), "the receive queue has room");
    }

    /// An IP packet from the host that has its source address, to Natrix.
    pub(crate) fn push_ip(&self, worker: usize, port: PortIndex, source: Ipv4Addr, packet: &[u8]) {
        let to = MacAddress(self.ports.io(0).mac(port));
        self.push(worker, port, &build::frame(station_of(source), to, ETHER_TYPE_IPV4, packet));
    }

    pub(crate) fn push_udp(&self, worker: usize, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
        let port = if from.ip().octets()[0] == 10 { INSIDE } else { OUTSIDE };
        self.push_ip(worker, port, *from.ip(), &build::udp(from, to).payload(payload).build());
    }

    pub(crate) fn push_arp(&self, worker: usize, port: PortIndex, tag: Option<u16>, to: MacAddress, arp: &Message) {
        let header = LinkHeader {
            destination: to,
            source: arp.sender_mac,
            vlan: tag.map(VlanTag::new),
            ether_type: ETHER_TYPE_ARP,
        };
        let mut frame = [0; 60];
        let length = header.write(&mut frame).expect("there is room");
        frame[length..length + 28].copy_from_slice(&arp.to_bytes());
        self.push(worker, port, &frame);
    }

    /// What was sent on a port since the last call.
    pub(crate) fn sent(&self, port: PortIndex) -> Vec<Sent> {
        let mut sent = Vec::new();
        while let Some((worker, buffer)) = self.ports.pull(port) {
            let header = LinkHeader::parse(buffer.bytes()).expect("a frame");
            sent.push(Sent { worker, header, payload: buffer.bytes()[header.payload_offset()..].to_vec() });
        }
        sent
    }

    /// Answers every ARP request among `sent` as the host asked for would; the answer arrives at
    /// `worker`.
    pub(crate) fn answer_arp(&self, worker: usize, port: PortIndex, sent: &[Sent]) -> usize {
        let requests = sent.iter().filter_map(|frame| frame.arp().map(|arp| (frame.header, arp)));
        let requests = requests.filter(|(_, arp)| arp.operation == Operation::Request && !arp.is_gratuitous());
        let mut count = 0;
        for (header, request) in requests.filter(|(_, arp)| arp.sender_address != 0) {
            let reply = request.reply(station_of(Ipv4Addr::from_bits(request.target_address)));
            self.push_arp(worker, port, header.vlan.map(|tag| tag.id), request.sender_mac, &reply);
            count += 1;
        }
        count
    }

    /// Makes Natrix know the hosts it has asked for so far; returns what else was sent.
    pub(crate) fn settle_with_arp(&mut self, port: PortIndex) -> Vec<Sent> {
        self.settle();
        let mut sent = self.sent(port);
        self.answer_arp(0, port, &sent);
        self.settle();
        sent.extend(self.sent(port));
        sent.retain(|frame| frame.header.ether_type == ETHER_TYPE_IPV4);
        sent
    }
}
