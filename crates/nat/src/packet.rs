//! How packets enter and leave a shard: borrowed bytes with a little metadata in, an outcome out.
//!
//! The shard never owns packet buffers. Packets it makes itself (ICMP errors, fragments, released
//! fragments) leave through a [`Sink`].

use crate::types::InterfaceId;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// Packets a burst can have at most.
pub const BURST_MAX: usize = 64;

/// Where a packet is on its way through the workers. Travels with it through hand-off rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Just received; nothing is decided.
    #[default]
    Received,
    /// A worker that is not the owner looked at it and sent it here: process it as if just received.
    Steered,
    /// Fragment whose datagram's ports were found by the worker that tracks it; ports in [`PacketMeta::ports`].
    FragmentResolved,
    /// Source already translated; now the destination, a mapping of this worker, is to be translated (RFC 4787 REQ-9).
    Hairpin,
    /// An ICMP error Natrix itself made about a hairpinned packet, on its way to the worker of the sender's
    /// mapping. Not a packet received: it is counted as originated and has no verdict.
    OwnError,
    /// A SYN that was held for six seconds, on its way to the worker that owns the external endpoint by now: only that
    /// one knows whether a matching SYN went out. Like `OwnError` it is no packet received, and has no verdict.
    HeldSyn,
    /// As `Steered`, for a packet from outside to an endpoint that leads to several: [`PacketMeta::turn`] says how many workers
    /// have seen it.
    Balanced,
    /// Like `Hairpin`, for a fragment with ports in [`PacketMeta::ports`].
    HairpinFragment,
    /// A hairpinned packet that the second half refused, on its way back to the worker that made something for it in the first one
    /// ([`PacketMeta::record`]). Like `OwnError` it is no packet received, and has no verdict.
    TakeBack,
    /// A packet to a static mapping, with ports in [`PacketMeta::ports`], whose external port the sender could not free, for want of room
    /// in the event log: it ends where its subscriber is, who is told so.
    LogFull,
}

impl Stage {
    /// Whether this is something of Natrix's own, not a packet received: no worker's balance has it.
    #[inline]
    pub const fn is_own(self) -> bool {
        matches!(self, Stage::OwnError | Stage::HeldSyn | Stage::TakeBack)
    }
}

/// What travels with a packet between stages and between workers. Plain data, 12 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// Of a [`Stage::Steered`] packet: the record of the receiving worker that the sender read in the port table; 0 for none.
    /// A hint of where to look first, so that the table is read once: the record may be another endpoint's by now.
    /// Of a hairpinned packet: what the first half made for it, at the worker that has its source (`shard/hairpin.rs`).
    pub record: u32,
    /// Interface the packet came in by.
    pub ingress: InterfaceId,
    /// Where it is on its way.
    pub stage: Stage,
    /// Of a packet to an endpoint that leads to several: stops behind it, on its way to the worker that has its session; 0 for none.
    pub turn: u8,
    /// Source and destination port of the datagram, for fragments whose ports were found elsewhere.
    pub ports: (u16, u16),
}

/// Where a packet leaves, for the link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Interface it leaves by.
    pub interface: InterfaceId,
    /// Next-hop IPv4 address, in host bit order, whose link-layer address is needed.
    pub next_hop: u32,
}

/// What the caller is to do with a packet after the shard has looked at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Free the buffer: dropped, held as a copy, answered or replaced. Its verdict is counted, or will be.
    #[default]
    Done,
    /// Send the packet; its IP packet now has `length` bytes (padding behind it is not part of it).
    Transmit {
        /// Where to.
        egress: Egress,
        /// IP total length in bytes.
        length: u16,
    },
    /// Put it with this metadata in the ring to another worker. If the ring is full the caller drops it
    /// and counts `HandOffRingFull`.
    HandOff {
        /// The worker it belongs to.
        worker: WorkerId,
        /// Metadata to send along.
        meta: PacketMeta,
    },
}

/// One packet of a burst.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The bytes from the IPv4 header to the end of the frame (may include Ethernet padding).
    pub bytes: &'a mut [u8],
    /// In: where it comes from.
    pub meta: PacketMeta,
    /// Out: what to do with it.
    pub outcome: Outcome,
    /// Out: the verdict the shard has counted for it; None when it is handed off or held, so not decided yet.
    ///
    /// Traces show it, and the caller takes it back with [`crate::Counters::uncount`] when a packet to be
    /// transmitted has to wait for its neighbour or is dropped behind the shard (ARP failure, full queue).
    pub verdict: Option<Verdict>,
}

impl<'a> Packet<'a> {
    /// A packet about which nothing is decided.
    pub const fn new(bytes: &'a mut [u8], meta: PacketMeta) -> Packet<'a> {
        Packet { bytes, meta, outcome: Outcome::Done, verdict: None }
    }
}

/// Takes packets the shard makes itself. Implemented by the worker; must copy the bytes before it returns.
///
/// Packets given here carry no verdict of their own, except released fragments, whose verdict the shard
/// counts when it gives them here.
pub trait Sink {
    /// Sends an IP packet made of `parts` one after another. Returns false when no buffer was free.
    fn transmit(&mut self, egress: Egress, parts: &[&[u8]]) -> bool;

    /// Sends an IP packet made of `parts` to another worker's ring. Returns false when it was full or no buffer was free.
    fn hand_off(&mut self, worker: WorkerId, meta: PacketMeta, parts: &[&[u8]]) -> bool;
}
