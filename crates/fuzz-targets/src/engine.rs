//! Claims about the whole path of IP packets through the engine, over packets and time.

use nat::Duration;
use nat::Shard;
use nat::Verdict;
use nat::types::Side;
use testkit::Bed;
use testkit::Steering;
use testkit::at;
use testkit::packet;
use wire::icmp::is_error;
use wire::ipv4::Ipv4;
use wire::verify::Fault;

use crate::dice::Dice;
use crate::traffic::Setup;
use crate::traffic::Traffic;
use crate::traffic::setup;
use crate::traffic::with_hosts;

/// Maximum of steps in an input, so that each input takes milliseconds.
const STEPS_MAX: usize = 300;

/// Lengths of a step of time in milliseconds: none, around each timer, and hours.
const PAUSES: [u64; 16] = [
    0, 1, 100, 500, 1_000, 2_000, 6_000, 10_000, 60_000, 120_000, 240_000, 300_000, 3_600_000, 7_200_000, 7_440_000,
    86_400_000,
];

/// Of the decisions for the driver.
const HAS_HOSTS: u8 = 16;

/// Idle time of a control session with a transfer.
const CONTROL_SESSION: Duration = Duration::from_secs(4 * 60 * 60);

/// Verdicts about exhausted resources, which `why` does not predict in full.
pub(crate) const RESOURCES: [Verdict; 5] = [
    Verdict::PortsExhausted,
    Verdict::MappingTableFull,
    Verdict::SessionTableFull,
    Verdict::SessionLimit,
    Verdict::SubscriberTableFull,
];

/// Packets may arrive at any worker at any time. Each gets one verdict, a packet that leaves is
/// right, each explanation comes true, and after all timers nothing is left.
///
/// Eight bytes choose the settings, and whether there are hosts of NAT64 and behind B4s; then each
/// step is an operation and its arguments.
pub fn path(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let Setup { settings, workers, ring_packets, seed, rest } = setup(&mut dice);
    let steering = [Steering::Owner, Steering::Wrong, Steering::Random, Steering::Fixed(0)][usize::from(rest & 3)];
    let (settings, traffic) = match rest & HAS_HOSTS {
        0 => (settings, Traffic::default()),
        _ => (with_hosts(settings), Traffic::with_families()),
    };
    let bed = Bed::new(settings).workers(workers).seed(seed).ring_packets(ring_packets).steering(steering);
    let mut run = Run { bed, traffic, workers };
    for _ in 0..STEPS_MAX {
        if dice.is_empty() {
            break;
        }
        run.step(&mut dice);
        run.collect();
    }
    run.end();
}

struct Run {
    bed: Bed,
    traffic: Traffic,
    workers: usize,
}

impl Run {
    fn step(&mut self, dice: &mut Dice<'_>) {
        match dice.byte() % 16 {
            // Processed at once.
            0..=9 => {
                let (side, packets) = self.traffic.next(dice);
                for packet in packets {
                    self.feed(side, &packet);
                }
            }
            // Queued, so that workers see bursts in any order.
            10 | 11 => {
                let (side, packets) = self.traffic.next(dice);
                for packet in packets {
                    self.bed.offer(side, &packet);
                }
            }
            12 => {
                let worker = usize::from(dice.byte()) % self.workers;
                self.bed.poll(worker);
            }
            // Time passes without a sweep, so that packets meet expired state.
            13 | 14 => self.bed.jump(Duration::from_millis(dice.pick(&PAUSES))),
            _ => self.sweep(),
        }
    }

    /// A packet that travels alone gets the verdict that was explained.
    fn feed(&mut self, side: Side, packet: &[u8]) {
        self.bed.settle();
        let explained = self.explained(side, packet);
        let before = self.bed.counters().verdicts;
        match side {
            Side::Inside => self.bed.inside(packet),
            Side::Outside => self.bed.outside(packet),
        }
        self.bed.check_books();
        let Some(explained) = explained else { return };
        let after = self.bed.counters().verdicts;
        let given: Vec<Verdict> =
            Verdict::ALL.iter().copied().filter(|verdict| after[verdict.index()] > before[verdict.index()]).collect();
        // `why` does not predict whether Natrix's own reply has a route and fits, nor what a
        // gateway has read of a stream, nor that it drops what has a wrong checksum.
        let is_damaged = || {
            wire::verify::faults(packet).iter().any(|fault| matches!(fault, Fault::UdpChecksum | Fault::TcpChecksum))
        };
        if explained == Verdict::Local
            || matches!(given[..], [Verdict::AlgReordered | Verdict::AlgAckUnsent | Verdict::AlgFragment])
            || given == [Verdict::TransportMalformed] && is_damaged()
            || given.iter().all(|verdict| RESOURCES.contains(verdict))
        {
            return;
        }
        assert_eq!(given, [explained], "what was explained comes true for {packet:02x?} from {}", side.name());
    }

    /// The verdict that a single worker predicts, for whole packets except ICMP errors. The
    /// external address of a first hairpin is not known yet.
    fn explained(&self, side: Side, packet: &[u8]) -> Option<Verdict> {
        let shard = self.bed.shards().next().filter(|_| self.workers == 1)?;
        let view = Ipv4::new_checked(packet).ok()?;
        let is_error = view.protocol() == 1 && view.payload().first().is_some_and(|icmp_type| is_error(*icmp_type));
        if view.is_fragment() || is_error {
            return None;
        }
        let is_hairpin = self.bed.shared().address_index(*packet::destination(packet).ip()).is_some();
        if side == Side::Inside && is_hairpin {
            return None;
        }
        Some(shard.explain(self.bed.now(), side.into(), &self.bed.on_the_link(side, packet)).verdict)
    }

    fn collect(&mut self) {
        for packet in self.bed.take_inside() {
            self.traffic.note_out(Side::Inside, &packet);
        }
        for packet in self.bed.take_outside() {
            self.traffic.note_out(Side::Outside, &packet);
        }
        let granted = self.bed.grants().into_iter();
        let ends = granted.map(|grant| (grant.protocol, at(grant.external.address, grant.external.port)));
        self.traffic.talks.granted = ends.collect();
    }

    /// After a sweep each mapping has one port, and each port that is not held down has one
    /// mapping.
    fn sweep(&mut self) {
        self.bed.sweep();
        let live = self.bed.shards().map(|shard| u64::from(shard.view().mappings_len())).sum::<u64>();
        assert_eq!(self.bed.ports_used(), live + self.bed.ports_held(), "ports in use and mappings");
        assert_eq!(self.bed.mappings().len() as u64, live, "mappings shown and mappings there");
    }

    /// Expires all timers.
    fn end(mut self) {
        self.bed.settle();
        let timeouts = self.bed.settings().timeouts;
        let granted = self.bed.grants().iter().map(|grant| grant.left).max();
        self.bed.jump(granted.unwrap_or(Duration::ZERO).max(CONTROL_SESSION));
        self.sweep();
        let longest = [timeouts.udp, timeouts.icmp, timeouts.tcp_opening, timeouts.tcp_established];
        let longest = longest.into_iter().max().unwrap_or(Duration::ZERO) + timeouts.tcp_closing;
        self.bed.jump(longest + timeouts.unsolicited_syn + timeouts.fragment);
        for _ in 0..4 {
            self.sweep();
        }
        // The hold-down of ports begins with the sweep.
        let rest = self.bed.settings().pools.iter().map(|pool| pool.reuse_delay).max().unwrap_or(Duration::ZERO);
        self.bed.jump(rest + Duration::from_secs(1));
        self.sweep();
        assert!(self.bed.shards().all(Shard::is_empty), "records are left after all timers ran out");
        assert_eq!(self.bed.ports_used(), 0, "ports are in use though there is no mapping");
        assert!(self.bed.subscribers().is_empty(), "subscribers without mappings are left");
        let counters = self.bed.counters();
        assert_eq!(counters.mappings_created, counters.mappings_removed, "mappings created and removed");
        assert_eq!(counters.sessions_created, counters.sessions_removed, "sessions created and removed");
        assert_eq!(counters.fragments_held, 0, "fragments are held for ever");
        self.bed.check_books();
    }
}
