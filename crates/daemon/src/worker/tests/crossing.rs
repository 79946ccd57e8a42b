//! Several workers: hand-off, order, and ports that only one of them can send on.

use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use nat::Duration;
use nat::Verdict;
use packet_io::Burst;
use packet_io::Io;
use packet_io::MemoryBuffer;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use packet_io::memory::MemorySettings;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::bed::Bed;
use super::bed::INSIDE;
use super::bed::INSIDE_ADDRESS;
use super::bed::OUTSIDE;
use super::bed::SERVER;
use super::bed::subscriber;
use crate::outlet::UNDELIVERED_MAX;
use crate::worker::WorkerOptions;

/// Flows that only make neighbours known.
const WARM_UP: u8 = 20;

/// Sends from every subscriber in turn; frames of a flow arrive at a worker drawn per flow. Returns
/// what came out, by payload: (flow, number).
fn exchange<I: Io>(bed: &mut Bed<I>, flows: u8, packets: u8, seed: u64) -> BTreeMap<u8, SocketAddrV4> {
    let mut random = SmallRng::seed_from_u64(seed);
    let workers = bed.workers.len();
    let queue_of: Vec<usize> = (0..flows).map(|_| random.random_range(0..workers)).collect();
    let mut external = BTreeMap::new();
    let mut next_out = BTreeMap::new();
    let mut next_back = BTreeMap::new();
    // Subscribers of every worker make the server known to all of them.
    for host in 200..200 + WARM_UP {
        bed.push_udp(0, subscriber(host), SERVER, &[255, 0]);
        bed.settle_with_arp(OUTSIDE);
    }
    for number in 0..packets {
        for flow in 0..flows {
            bed.push_udp(queue_of[usize::from(flow)], subscriber(flow + 2), SERVER, &[flow, number]);
        }
        for _ in 0..random.random_range(0..3) {
            bed.poll_all();
        }
        collect(&bed.sent(OUTSIDE), &mut next_out, &mut external);
    }
    bed.settle();
    let sent = bed.sent(OUTSIDE);
    collect(&sent, &mut next_out, &mut external);
    assert_eq!(next_out.len(), usize::from(flows), "seed {seed}");
    assert!(next_out.values().all(|next| *next == packets), "seed {seed}: {next_out:?}");

    let mut inside = BTreeMap::new();
    for number in 0..packets {
        for (flow, external) in &external {
            // The replies of a flow arrive where the NIC likes, but always there.
            let queue = queue_of[usize::from(flow.wrapping_mul(7)) % queue_of.len()];
            bed.push_udp(queue, SERVER, *external, &[*flow, number]);
        }
        bed.poll_all();
        let sent = bed.sent(INSIDE);
        bed.answer_arp(usize::from(number) % workers, INSIDE, &sent);
        collect(&sent, &mut next_back, &mut inside);
    }
    for _ in 0..4 {
        bed.settle();
        let sent = bed.sent(INSIDE);
        bed.answer_arp(0, INSIDE, &sent);
        collect(&sent, &mut next_back, &mut inside);
    }
    assert!(next_back.values().all(|next| *next == packets), "seed {seed}: {next_back:?}");
    external
}

/// Checks that the packets of each flow come in order and without a gap.
fn collect(sent: &[super::bed::Sent], next: &mut BTreeMap<u8, u8>, from: &mut BTreeMap<u8, SocketAddrV4>) {
    for frame in sent {
        let Some((source, _, payload)) = frame.udp() else { continue };
        let [flow, number] = *payload else { panic!("two bytes") };
        if flow == 255 {
            continue;
        }
        let expected = next.entry(flow).or_insert(0);
        assert_eq!(number, *expected, "flow {flow} in order");
        *expected += 1;
        assert_eq!(*from.entry(flow).or_insert(source), source, "flow {flow} keeps its external endpoint");
    }
}

#[test]
fn flows_keep_order_and_lose_no_packet_with_any_steering() {
    for seed in 0..20 {
        for workers in 1..=3 {
            let mut bed = Bed::new(workers).after_start();
            exchange(&mut bed, 12, 8, seed);
            let total = bed.total();
            assert_eq!(
                (total.of(Verdict::Outbound), total.of(Verdict::Inbound)),
                (12 * 8 + u64::from(WARM_UP), 12 * 8)
            );
            assert_eq!(total.handed_off, total.taken_over);
            assert_eq!(total.handed_off > 0, workers > 1);
        }
    }
}

#[test]
fn a_full_ring_is_a_counted_drop() {
    let sizes = MemorySettings { queue_frames: 4_096, buffers: 8_192, ..MemorySettings::default() };
    let mut bed = Bed::with_io(2, &sizes, |_, io| io).after_start();
    // Only worker 0 polls, so its ring to worker 1 fills up.
    for _ in 0..90 {
        for host in 2..62 {
            bed.push_udp(0, subscriber(host), SERVER, b"x");
        }
        for _ in 0..2 {
            bed.workers[0].poll(bed.now);
        }
    }
    let full = bed.total().of(Verdict::HandOffRingFull);
    assert!(full > 0);
    assert_eq!(bed.total().handed_off, 2_048, "the ring holds as many packets");
    bed.assert_balance();
    bed.settle();
    assert!(bed.total().taken_over > 0);
}

/// A MAP of PCP for the sender itself (RFC 6887 §11.1).
fn request_of(host: SocketAddrV4) -> Vec<u8> {
    let head = [&[2, 1, 0, 0, 0, 0, 2, 88][..], &host.ip().to_ipv6_mapped().octets()].concat();
    let map = [&[7; 12][..], &[17, 0, 0, 0], &[4, 0, 0, 0], &[0; 10], &[255; 2], &[0; 4]].concat();
    [head, map].concat()
}

/// A worker that does not poll for a while takes the packets of others all the same.
#[test]
fn a_flood_of_requests_leaves_room_in_the_ring() {
    let sizes = MemorySettings { queue_frames: 4_096, buffers: 8_192, ..MemorySettings::default() };
    let mut settings = super::bed::settings();
    settings.port_control.pcp = true;
    let mut bed = Bed::with_settings(settings, 2, &sizes, &WorkerOptions::default(), |_, io| io).after_start();
    let send = |bed: &mut Bed<MemoryIo>, to: SocketAddrV4, rounds: usize| {
        for _ in 0..rounds {
            for host in 2..62 {
                let from = subscriber(host);
                let payload = if to == SERVER { b"x".to_vec() } else { request_of(from) };
                bed.push_udp(0, from, to, &payload);
            }
            for _ in 0..2 {
                bed.workers[0].poll(bed.now);
            }
        }
    };
    let before = bed.total().handed_off;
    send(&mut bed, SocketAddrV4::new(INSIDE_ADDRESS, 5_351), 80);
    let total = bed.total();
    assert_eq!(total.handed_off - before, 1_024, "half of the ring");
    assert!(total.of(Verdict::LocalIgnored) > 1_000, "the others are limited");
    send(&mut bed, SERVER, 20);
    let total = bed.total();
    assert!(total.handed_off - before > 1_024 + 300, "{} packets", total.handed_off - before);
    assert_eq!(total.of(Verdict::HandOffRingFull), 0);
    bed.assert_balance();
    bed.settle();
    assert!(bed.total().verdicts[Verdict::Local.index()] >= 1_024, "the requests are answered");
}

#[test]
fn what_one_worker_learns_by_arp_the_others_know() {
    let mut bed = Bed::new(3).after_start();
    for host in 2..40 {
        bed.push_udp(usize::from(host) % 3, subscriber(host), SERVER, b"x");
    }
    bed.settle();
    let asked = bed.sent(OUTSIDE);
    assert_eq!(asked.len(), 3, "each worker asks once");
    // All answers arrive at the same worker, as they do on a port with one queue.
    bed.answer_arp(2, OUTSIDE, &asked[..1]);
    bed.settle();
    let sent = bed.sent(OUTSIDE);
    assert!(sent.iter().any(|frame| frame.worker == 0) && sent.iter().any(|frame| frame.worker == 1));
    assert_eq!(bed.total().neighbour_pending, 0);
}

/// Ports of which only one worker has a transmit queue.
struct OneSender {
    io: MemoryIo,
    sends: bool,
}

impl Io for OneSender {
    type Buffer = MemoryBuffer;

    fn port_count(&self) -> usize {
        self.io.port_count()
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        self.io.receive(port, burst);
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        if self.sends {
            self.io.transmit(port, burst);
        }
    }

    fn allocate(&mut self) -> Option<MemoryBuffer> {
        self.io.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.io.mac(port)
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        self.io.can_receive(port)
    }

    fn can_transmit(&self, _port: PortIndex) -> bool {
        self.sends
    }

    fn link_up(&self, port: PortIndex) -> bool {
        self.io.link_up(port)
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.io.statistics(port)
    }
}

/// Errors of the second worker, sent or not.
fn errors_of_sender(bed: &Bed<OneSender>) -> u64 {
    let counters = bed.workers[1].counters();
    counters.originated + counters.icmp_errors_suppressed
}

#[test]
fn senders_of_another_worker_learn_of_a_silent_neighbour() {
    let wrap = |worker, io| OneSender { io, sends: worker == 1 };
    let mut bed = Bed::with_io(2, &MemorySettings::default(), wrap).after_start();
    for host in 2..10 {
        bed.push_udp(0, subscriber(host), SERVER, b"x");
    }
    bed.run_for(Duration::from_secs(4), Duration::from_millis(10));
    let total = bed.total();
    assert!(total.handed_off > 0, "not all of them belong to the worker that sends");
    assert_eq!((total.of(Verdict::NeighbourUnresolved), errors_of_sender(&bed)), (8, 8));
    let errors = bed.settle_with_arp(INSIDE);
    let told: BTreeSet<u8> = errors.iter().filter_map(|frame| frame.icmp().map(|_| frame.payload[19])).collect();
    assert_eq!(told, (2..10).collect());
}

#[test]
fn packets_kept_for_errors_are_bounded() {
    let wrap = |worker, io| OneSender { io, sends: worker == 1 };
    let mut bed = Bed::with_io(2, &MemorySettings::default(), wrap).after_start();
    // Until the server is absent.
    for _ in 0..70 {
        bed.push_udp(1, subscriber(2), SERVER, b"x");
        bed.run_for(Duration::from_millis(50), Duration::from_millis(10));
    }
    let (before, dropped) = (errors_of_sender(&bed), bed.total().of(Verdict::NeighbourUnresolved));
    for host in 100..164 {
        bed.push_udp(0, subscriber(host), SERVER, b"x");
        bed.push_udp(1, subscriber(host), SERVER, b"y");
    }
    bed.poll_all();
    let dropped = bed.total().of(Verdict::NeighbourUnresolved) - dropped;
    assert!(dropped > UNDELIVERED_MAX as u64, "{dropped} packets were dropped in one poll");
    assert_eq!(errors_of_sender(&bed) - before, UNDELIVERED_MAX as u64);
    bed.settle();
}

#[test]
fn a_worker_without_a_transmit_queue_sends_through_one_that_has() {
    for seed in 0..5 {
        let wrap = |worker, io| OneSender { io, sends: worker == 1 };
        let mut bed = Bed::with_io(2, &MemorySettings::default(), wrap).after_start();
        exchange(&mut bed, 12, 8, seed);
        let total = bed.total();
        assert_eq!((total.of(Verdict::Outbound), total.of(Verdict::Inbound)), (12 * 8 + u64::from(WARM_UP), 12 * 8));
        // A request that arrives at the worker that cannot send is answered all the same.
        let request = wire::arp::Message::request(
            super::bed::station_of(*SERVER.ip()),
            SERVER.ip().to_bits(),
            super::bed::POOL_ON_LINK.to_bits(),
        );
        bed.push_arp(0, OUTSIDE, None, wire::ethernet::MacAddress::BROADCAST, &request);
        bed.settle();
        assert!(bed.sent(OUTSIDE).iter().any(|frame| frame.arp().is_some() && frame.worker == 1));
    }
}
