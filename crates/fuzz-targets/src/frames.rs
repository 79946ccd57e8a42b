//! Claims about the whole path of Ethernet frames through the workers: link layer, ARP, engine,
//! rings, queues, time.

use core::net::Ipv4Addr;
use std::sync::Arc;

use daemon::InterfaceLink;
use daemon::Worker;
use daemon::WorkerOptions;
use daemon::build_workers;
use daemon::neighbour::NeighbourLimits;
use nat::Duration;
use nat::Instant;
use nat::Shard;
use nat::Shared;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::types::RealmId;
use nat::types::Side;
use packet_io::Buffer;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use testkit::INSIDE_ROUTER;
use testkit::OUTSIDE_ROUTER;
use testkit::OWN_INSIDE;
use testkit::OWN_OUTSIDE;
use testkit::POOL;
use testkit::bed::audit::Audit;
use wire::arp::Message;
use wire::arp::Operation;
use wire::build;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ethernet::VlanTag;

use crate::dice::Dice;
use crate::traffic::Setup;
use crate::traffic::Traffic;
use crate::traffic::setup;

const STEPS_MAX: usize = 300;
/// Workers that still have work after this many polls are stuck.
const POLLS_MAX: usize = 10_000;
/// VLAN of the third interface, an inside interface.
const VLAN: u16 = 100;
/// Steps of time in milliseconds, around the timers of ARP and of the engine.
const PAUSES: [u64; 12] = [0, 1, 200, 999, 1_000, 1_001, 3_000, 6_000, 60_000, 61_000, 300_000, 7_680_000];

const INSIDE_PORT: PortIndex = PortIndex(0);
const OUTSIDE_PORT: PortIndex = PortIndex(1);

/// Frames may arrive at any worker at any time. The counters of each worker balance, each frame
/// that leaves has a right header and a right packet, no buffer is lost, and in the end nothing is
/// left.
///
/// Eight bytes choose the settings as for `engine_path`; then each step is an operation and its
/// arguments.
pub fn path(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let mut run = Run::new(setup(&mut dice));
    for _ in 0..STEPS_MAX {
        if dice.is_empty() {
            break;
        }
        run.step(&mut dice);
        run.check_books();
    }
    run.end();
}

struct Run {
    bed: MemoryBed,
    workers: Vec<Worker<MemoryIo>>,
    buffers: usize,
    audit: Audit,
    traffic: Traffic,
    now: Instant,
    /// Unanswered requests of Natrix: port, VLAN, target.
    asked: Vec<(PortIndex, Option<VlanTag>, Message)>,
}

impl Run {
    fn new(setup: Setup) -> Run {
        testkit::provide_on_demand();
        let Setup { mut settings, workers, ring_packets, seed, rest } = setup;
        settings.interfaces.push(Interface {
            name: "vlan".to_owned(),
            side: Side::Inside,
            realm: RealmId::default(),
            addresses: vec![InterfaceAddress { address: Ipv4Addr::new(100, 65, 0, 1), prefix_length: 16 }],
            mtu: 1_500,
        });
        let links = [
            InterfaceLink { port: INSIDE_PORT, vlan: None },
            InterfaceLink { port: OUTSIDE_PORT, vlan: None },
            InterfaceLink { port: INSIDE_PORT, vlan: Some(VLAN) },
        ];
        let buffers = if rest & 4 == 0 { 512 } else { 20 };
        let queue_frames = if rest & 8 == 0 { 256 } else { 3 };
        // The device, not the worker, refuses frames that do not fit a buffer.
        let memory = MemorySettings { ports: 2, workers, queue_frames, buffers, frame_bytes: 2_100 };
        let bed = MemoryBed::new(&memory);
        let neighbours = if rest & 16 == 0 {
            NeighbourLimits::default()
        } else {
            NeighbourLimits { neighbours_max: 3, unresolved_max: 2, waiting_per_neighbour_max: 2, waiting_max: 3 }
        };
        let options =
            WorkerOptions { ring_packets: ring_packets.next_power_of_two(), neighbours, ..Default::default() };
        let audit = Audit::new(&settings);
        let now = Instant::from_micros(3_600_000_000);
        let Ok(shared) = Shared::new(settings, workers) else { unreachable!("all variants are in range") };
        let ios = (0..workers).map(|worker| bed.io(worker)).collect();
        let secret = [seed, seed + 1, seed + 2, seed + 3];
        let Ok(workers) = build_workers(&Arc::new(shared), &links, ios, &options, secret, now) else {
            unreachable!("the tables are small")
        };
        Run { bed, workers, buffers, audit, traffic: Traffic::default(), now, asked: Vec::new() }
    }

    fn step(&mut self, dice: &mut Dice<'_>) {
        match dice.byte() % 16 {
            0..=6 => self.packets(dice, true),
            7 => self.packets(dice, false),
            8 => self.arp(dice),
            9 | 10 => self.answer(dice),
            11 => {
                let length = usize::from(dice.byte());
                let (worker, port) = (dice.byte(), PortIndex(u16::from(dice.byte() & 1)));
                self.push(usize::from(worker), port, dice.bytes(length));
            }
            12 => {
                self.poll(usize::from(dice.byte()));
            }
            13 | 14 => self.now = self.now + Duration::from_millis(dice.pick(&PAUSES)),
            _ => self.collect(),
        }
    }

    /// IP packets in frames with a right or a faulty link header.
    fn packets(&mut self, dice: &mut Dice<'_>, at_once: bool) {
        let (side, packets) = self.traffic.next(dice);
        let how = dice.byte();
        let port = if side == Side::Inside { INSIDE_PORT } else { OUTSIDE_PORT };
        let vlan = match how & 3 {
            1 => Some(VlanTag::new(VLAN)),
            2 => Some(VlanTag { id: 0, priority_bits: 5 }),
            3 => Some(VlanTag::new(u16::from(dice.byte()))),
            _ => None,
        };
        let destination = match how >> 2 & 7 {
            1 => MacAddress::BROADCAST,
            2 => MacAddress([1, 0, 0x5e, 0, 0, 1]),
            3 => MacAddress([2, 9, 9, 9, 9, 9]),
            _ => MacAddress([2, 0, 0, 0, 0, port.index() as u8]),
        };
        let ether_type = if how & 32 == 0 { ETHER_TYPE_IPV4 } else { dice.word() };
        let header = LinkHeader { destination, source: station_of(0), vlan, ether_type };
        for packet in packets {
            let frame = build::frame_of(&header, &packet);
            // The padding of a short frame completes a truncated packet.
            self.audit.goes_in(frame.get(header.payload_offset()..).unwrap_or_default());
            self.push(usize::from(how >> 6), port, &frame);
            if at_once {
                self.settle();
            }
        }
    }

    /// Any ARP message from any sender about any address.
    fn arp(&mut self, dice: &mut Dice<'_>) {
        let addresses = [
            INSIDE_ROUTER,
            OUTSIDE_ROUTER,
            OWN_INSIDE,
            OWN_OUTSIDE,
            POOL[0],
            testkit::I1,
            testkit::I2,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::new(192, 0, 2, 77),
        ];
        let how = dice.byte();
        let (sender, target) = (dice.pick(&addresses), dice.pick(&addresses));
        let port = PortIndex(u16::from(how & 1));
        let sender_mac = [station_of(sender.to_bits()), MacAddress([2, 0, 0, 0, 0, how & 1]), MacAddress::BROADCAST]
            [usize::from(how >> 1 & 3) % 3];
        let message = Message {
            operation: if how & 8 == 0 { Operation::Request } else { Operation::Reply },
            sender_mac,
            sender_address: sender.to_bits(),
            target_mac: MacAddress::ZERO,
            target_address: target.to_bits(),
        };
        let vlan = (how & 16 != 0).then_some(VlanTag::new(VLAN));
        self.push(usize::from(how >> 5), port, &build::arp_frame(vlan, &message));
        self.settle();
    }

    /// One or all requests of Natrix are answered, by the right station or another one.
    fn answer(&mut self, dice: &mut Dice<'_>) {
        self.collect();
        let how = dice.byte();
        let asked =
            if how & 1 == 0 { core::mem::take(&mut self.asked) } else { self.asked.pop().into_iter().collect() };
        for (port, vlan, request) in asked {
            let station = if how & 2 == 0 { station_of(request.target_address) } else { station_of(77) };
            self.push(usize::from(how >> 2), port, &build::arp_frame(vlan, &request.reply(station)));
        }
        self.settle();
    }

    fn push(&mut self, worker: usize, port: PortIndex, frame: &[u8]) {
        // A full queue and an overlong frame concern the device only.
        let _ = self.bed.push(worker % self.workers.len(), port, frame);
    }

    fn poll(&mut self, worker: usize) -> usize {
        let worker = worker % self.workers.len();
        self.workers[worker].poll(self.now)
    }

    /// Polls until nothing moves.
    fn settle(&mut self) {
        for _ in 0..POLLS_MAX {
            let taken: usize = (0..self.workers.len()).map(|worker| self.poll(worker)).sum();
            if taken == 0 {
                return;
            }
        }
        unreachable!("packets go from worker to worker without end");
    }

    /// Checks the frames that left.
    fn collect(&mut self) {
        for port in [INSIDE_PORT, OUTSIDE_PORT] {
            while let Some((_, buffer)) = self.bed.pull(port) {
                self.left(port, buffer.bytes());
            }
        }
    }

    fn left(&mut self, port: PortIndex, frame: &[u8]) {
        let header = LinkHeader::parse(frame);
        assert!(header.is_ok(), "a frame without a header left: {frame:02x?}");
        let Ok(header) = header else { return };
        assert_eq!(
            header.source,
            MacAddress([2, 0, 0, 0, 0, port.index() as u8]),
            "frames leave from the port's station"
        );
        let tag = header.vlan.map(|tag| tag.id);
        assert!(tag.is_none() || (tag == Some(VLAN) && port == INSIDE_PORT), "VLAN {tag:?} on port {port}");
        let payload = frame.get(header.payload_offset()..).unwrap_or_default();
        match header.ether_type {
            ETHER_TYPE_ARP => {
                let message = Message::parse(payload);
                assert!(message.is_ok(), "an ARP message that is none left: {payload:02x?}");
                let Ok(message) = message else { return };
                assert_eq!(message.sender_mac, header.source, "ARP speaks for the port's station only");
                if message.operation == Operation::Request {
                    self.asked.push((port, header.vlan, message));
                }
            }
            other => {
                assert_eq!(other, ETHER_TYPE_IPV4, "only IPv4 and ARP leave");
                assert!(header.destination.is_unicast(), "a packet left to {}", header.destination);
                let side = if port == INSIDE_PORT { Side::Inside } else { Side::Outside };
                self.audit.comes_out(side, payload);
                self.traffic.note_out(side, payload);
            }
        }
    }

    /// Between polls the counters of each worker balance, and their sums do.
    fn check_books(&self) {
        for worker in &self.workers {
            let counters = worker.counters();
            let accounted =
                counters.verdicts_total() + counters.handed_off + counters.fragments_held + counters.neighbour_pending;
            assert_eq!(counters.received + counters.taken_over, accounted, "worker {}: {counters:?}", worker.id().0);
        }
    }

    /// Expires all timers.
    fn end(mut self) {
        for _ in 0..3 {
            self.settle();
            self.collect();
            self.now = self.now + Duration::from_secs(1);
        }
        // The hold-down of ports takes two minutes from the sweep on.
        // A control session with a transfer may be idle for four hours.
        for pause in [15_000, 8_000, 130, 130] {
            self.now = self.now + Duration::from_secs(pause);
            self.settle();
            self.collect();
        }
        for _ in 0..40 {
            // ARP asks once a second and gives up after a few requests.
            self.now = self.now + Duration::from_millis(500);
            self.settle();
            self.collect();
        }
        self.check_books();
        for worker in &self.workers {
            assert!(worker.is_quiet(), "something waits in worker {} for ever", worker.id().0);
            assert_eq!(worker.counters().neighbour_pending, 0, "packets pending though none waits");
        }
        assert!(
            self.workers.iter().map(Worker::shard).all(Shard::is_empty),
            "records are left after all timers ran out"
        );
        assert_eq!(self.bed.free_buffers(), self.buffers, "buffers are lost");
    }
}

/// The station with this address.
fn station_of(address: u32) -> MacAddress {
    let [a, b, c, d] = address.to_be_bytes();
    MacAddress([6, 1, a, b, c, d])
}
