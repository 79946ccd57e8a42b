//! The rings between workers: packets that another worker owns or must send, and learned
//! neighbours.
//!
//! Every ordered pair of workers has two rings of its own, so each ring has one producer and one
//! consumer, without a lock. ARP messages have their own ring, so that a packet flood cannot stop
//! ARP.

use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Verdict;
use nat::packet::PacketMeta;
use nat::types::InterfaceId;
use packet_io::Buffer;

use crate::ipv6::Learnt6;
use crate::neighbour::Learnt;
use crate::outlet::packet_of;

/// ARP messages that fit between two workers.
const LEARNT_CAPACITY: usize = 64;

/// The next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Interface towards it.
    pub interface: InterfaceId,
    /// Its address, in host bit order.
    pub address: u32,
}

/// One item of a hand-off ring.
#[derive(Debug)]
pub enum Crossing<B> {
    /// An IP packet for the receiving worker's shard.
    Process {
        /// The packet.
        buffer: B,
        /// Its metadata.
        meta: PacketMeta,
    },
    /// An IP packet that only lacks its link header, for a worker with a transmit queue of the
    /// port.
    Transmit {
        /// The packet, exactly as long as its IP length.
        buffer: B,
        /// The next hop by address, because the other worker may use another snapshot.
        to: Neighbour,
        /// The verdict to count for it; None when Natrix made it itself.
        verdict: Option<Verdict>,
    },
    /// A complete frame.
    Frame {
        /// The frame.
        buffer: B,
        /// Interface it leaves by.
        interface: InterfaceId,
        /// The verdict to count for it; None when Natrix made it itself.
        verdict: Option<Verdict>,
    },
}

impl<B: Buffer> Crossing<B> {
    /// The IP packet.
    pub(crate) fn packet(&self) -> &[u8] {
        match self {
            Crossing::Process { buffer, .. } | Crossing::Transmit { buffer, .. } => buffer.bytes(),
            Crossing::Frame { buffer, .. } => packet_of(buffer.bytes()),
        }
    }
}

/// What workers say to each other about their links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A station was learned by ARP.
    Learnt(Learnt),
    /// A station was learned by Neighbor Discovery.
    Learnt6(Learnt6),
}

/// One worker's ends of all rings. There is none at its own index.
#[derive(Debug)]
pub struct Crossings<B> {
    /// Towards each worker.
    pub to: Vec<Option<Producer<Crossing<B>>>>,
    /// From each worker.
    pub from: Vec<Option<Consumer<Crossing<B>>>>,
    /// News of links towards each worker.
    pub learnt_to: Vec<Option<Producer<News>>>,
    /// News of links from each worker.
    pub learnt_from: Vec<Option<Consumer<News>>>,
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

/// Makes rings between `workers` workers, each for `capacity` packets; one value per worker.
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
            // In ascending order of the other worker, so that the position is its number.
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
