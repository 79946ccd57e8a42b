//! What the bed drives: the shards of an instance and the rings between them.

use std::collections::VecDeque;
use std::sync::Arc;

use nat::Counters;
use nat::Instant;
use nat::Outcome;
use nat::Packet;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::Verdict;
use nat::packet::BURST_MAX;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::packet::Stage;
use nat::types::Side;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::topology::INSIDE;
use crate::topology::OUTSIDE;

type Queued = (Vec<u8>, PacketMeta);

/// Shards with rings and queues around them.
pub(super) struct Machine {
    shared: Arc<Shared>,
    shards: Vec<Shard>,
    world: World,
    /// Packets received and not yet looked at, by worker.
    received: Vec<VecDeque<Queued>>,
}

/// Everything outside the shards.
struct World {
    /// Packets on their way to a worker, by receiver and sender.
    rings: Vec<Vec<VecDeque<Queued>>>,
    ring_packets: usize,
    sent: VecDeque<(Side, Vec<u8>)>,
    settings: Settings,
}

struct Outlet<'a> {
    world: &'a mut World,
    worker: usize,
}

impl World {
    fn side(&self, egress: Egress) -> Side {
        self.settings.interfaces.get(egress.interface.index()).map_or(Side::Outside, |interface| interface.side)
    }

    fn push(&mut self, from: usize, to: WorkerId, packet: Vec<u8>, meta: PacketMeta) -> bool {
        let ring = &mut self.rings[to.index()][from];
        if ring.len() >= self.ring_packets {
            return false;
        }
        ring.push_back((packet, meta));
        true
    }
}

impl Sink for Outlet<'_> {
    fn transmit(&mut self, egress: Egress, parts: &[&[u8]]) -> bool {
        let side = self.world.side(egress);
        self.world.sent.push_back((side, parts.concat()));
        true
    }

    fn hand_off(&mut self, worker: WorkerId, meta: PacketMeta, parts: &[&[u8]]) -> bool {
        self.world.push(self.worker, worker, parts.concat(), meta)
    }
}

impl Machine {
    pub(super) fn new(settings: &Settings, workers: usize, seed: u64, ring_packets: usize) -> Machine {
        let shared = Arc::new(Shared::new(settings.clone(), workers).expect("settings of a test are in range"));
        let mut random = SmallRng::seed_from_u64(seed);
        let shards = (0..workers)
            .map(|worker| {
                let id = WorkerId(worker as u8);
                Shard::new(Arc::clone(&shared), id, random.random()).expect("there is memory for a test's tables")
            })
            .collect();
        let rings = (0..workers).map(|_| (0..workers).map(|_| VecDeque::new()).collect()).collect();
        let world = World { rings, ring_packets, sent: VecDeque::new(), settings: settings.clone() };
        Machine { shared, shards, world, received: (0..workers).map(|_| VecDeque::new()).collect() }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter()
    }

    /// Puts a packet into the receive queue of a worker.
    pub(super) fn receive(&mut self, worker: usize, side: Side, packet: &[u8]) {
        let ingress = match side {
            Side::Inside => INSIDE,
            Side::Outside => OUTSIDE,
        };
        let meta = PacketMeta { ingress, ..PacketMeta::default() };
        self.received[worker].push_back((packet.to_vec(), meta));
    }

    /// One round of one worker: what came over rings, then a burst from its ports. Returns how many packets it took.
    pub(super) fn poll(&mut self, worker: usize, now: Instant) -> usize {
        let mut taken = 0;
        for from in 0..self.shards.len() {
            let count = self.world.rings[worker][from].len().min(BURST_MAX);
            let items: Vec<Queued> = self.world.rings[worker][from].drain(..count).collect();
            self.shards[worker].counters_mut().taken_over += items.len() as u64;
            taken += items.len();
            self.process(worker, now, items);
        }
        let count = self.received[worker].len().min(BURST_MAX);
        let items: Vec<Queued> = self.received[worker].drain(..count).collect();
        self.shards[worker].counters_mut().received += items.len() as u64;
        taken += items.len();
        self.process(worker, now, items);
        taken
    }

    fn process(&mut self, worker: usize, now: Instant, mut items: Vec<Queued>) {
        let mut burst: Vec<Packet<'_>> = items.iter_mut().map(|(bytes, meta)| Packet::new(bytes, *meta)).collect();
        let mut outlet = Outlet { world: &mut self.world, worker };
        let shard = &mut self.shards[worker];
        shard.process(now, &mut burst, &mut outlet);
        for packet in burst {
            match packet.outcome {
                Outcome::Done => {}
                Outcome::Transmit { egress, length } => {
                    let side = self.world.side(egress);
                    let bytes = packet.bytes.get(..usize::from(length)).expect("length is within the buffer");
                    self.world.sent.push_back((side, bytes.to_vec()));
                }
                Outcome::HandOff { worker: to, meta } => {
                    if self.world.push(worker, to, packet.bytes.to_vec(), meta) {
                        shard.counters_mut().handed_off += 1;
                    } else {
                        shard.counters_mut().count(Verdict::HandOffRingFull);
                    }
                }
            }
        }
    }

    /// Housekeeping of all workers.
    pub(super) fn maintain(&mut self, now: Instant) {
        for (worker, shard) in self.shards.iter_mut().enumerate() {
            shard.maintain(now, &mut Outlet { world: &mut self.world, worker });
        }
    }

    /// The oldest packet that left.
    pub(super) fn next_sent(&mut self) -> Option<(Side, Vec<u8>)> {
        self.world.sent.pop_front()
    }

    /// Packets in receive queues, and packets received that are in rings.
    pub(super) fn on_the_way(&self) -> u64 {
        let in_rings = self.world.rings.iter().flatten().flatten();
        in_rings.filter(|(_, meta)| meta.stage != Stage::OwnError).count() as u64
    }

    pub(super) fn counters(&self) -> Vec<&Counters> {
        self.shards.iter().map(Shard::counters).collect()
    }
}
