//! The rings between workers: packets that another worker owns or has to send, and what ARP told one of them.
//!
//! Every ordered pair of workers has two rings of its own, so each has one producer and one consumer and nothing
//! is locked. Small messages do not share the ring of the packets: a packet flood must not keep ARP from working.

use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Verdict;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::types::InterfaceId;

use crate::neighbour::Learnt;

/// ARP messages that fit between two workers.
const LEARNT_CAPACITY: usize = 64;

/// One item of a hand-off ring.
#[derive(Debug)]
pub enum Crossing<B> {
    /// An IP packet for the receiving worker's shard.
    Process {
        /// The packet.
        buffer: B,
        /// What travels with it.
        meta: PacketMeta,
    },
    /// An IP packet that is done but for its link header, for a worker that has a transmit queue of the port.
    Transmit {
        /// The packet, exactly as long as its IP length.
        buffer: B,
        /// Where to.
        egress: Egress,
        /// The verdict to count for it; None when Natrix made it itself.
        verdict: Option<Verdict>,
    },
    /// A complete frame that Natrix made itself.
    Frame {
        /// The frame.
        buffer: B,
        /// Interface it leaves by.
        interface: InterfaceId,
    },
}

/// One worker's ends of all rings. At its own index there is none.
#[derive(Debug)]
pub struct Crossings<B> {
    /// Towards each worker.
    pub to: Vec<Option<Producer<Crossing<B>>>>,
    /// From each worker.
    pub from: Vec<Option<Consumer<Crossing<B>>>>,
    /// ARP news towards each worker.
    pub learnt_to: Vec<Option<Producer<Learnt>>>,
    /// ARP news from each worker.
    pub learnt_from: Vec<Option<Consumer<Learnt>>>,
}

impl<B> Crossings<B> {
    /// Packets that wait in the incoming rings.
    pub fn waiting(&self) -> usize
    where
        B: Send,
    {
        self.from.iter().flatten().map(Consumer::len).sum()
    }
}

/// Rings between `workers` workers, each for `capacity` packets; one value per worker, in order.
pub fn mesh<B: Send>(workers: usize, capacity: usize) -> Vec<Crossings<B>> {
    let empty = || Crossings { to: Vec::new(), from: Vec::new(), learnt_to: Vec::new(), learnt_from: Vec::new() };
    let mut all: Vec<Crossings<B>> = (0..workers).map(|_| empty()).collect();
    for from in 0..workers {
        for to in 0..workers {
            let mut ends = (None, None, None, None);
            if from != to {
                let (producer, consumer) = ring::channel(capacity);
                let (learnt_producer, learnt_consumer) = ring::channel(LEARNT_CAPACITY);
                ends = (Some(producer), Some(consumer), Some(learnt_producer), Some(learnt_consumer));
            }
            // Pushed in ascending order of the other worker, so that position is that worker's number.
            if let Some(crossings) = all.get_mut(from) {
                crossings.to.push(ends.0);
                crossings.learnt_to.push(ends.2);
            }
            if let Some(crossings) = all.get_mut(to) {
                crossings.from.push(ends.1);
                crossings.learnt_from.push(ends.3);
            }
        }
    }
    all
}
