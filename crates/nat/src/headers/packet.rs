//! How packets enter and leave a shard, which never owns their buffers.

use crate::types::InterfaceId;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// Upper bound of packets in a burst.
pub const BURST_MAX: usize = 64;

/// Where a packet is on its way through the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Just received.
    #[default]
    Received,
    /// From another worker: process it as if just received.
    Steered,
    /// A fragment, back from the worker that tracks its datagram.
    FragmentResolved,
    /// Source translated; the destination is a mapping of this worker (RFC 4787 REQ-9).
    Hairpin,
    /// Natrix's ICMP error, for the worker of the inside host that sent the packet.
    OwnError,
    /// Natrix's ICMP error about a packet to a silent inside host, for that host's worker.
    Undelivered,
    /// A SYN held for six seconds, for the present worker of its external endpoint.
    HeldSyn,
    /// `Steered`, to an endpoint with several targets.
    Balanced,
    /// `Hairpin`, for a fragment.
    HairpinFragment,
    /// A hairpinned packet refused in the second half: undo [`PacketMeta::record`].
    TakeBack,
    /// To a static mapping whose port the sending worker could not free because the event log is
    /// full. The subscriber's worker drops and counts it.
    LogFull,
    /// A port-control request for another worker's subscriber.
    PortControl,
    /// From inside. The receiving worker's mapping has the port of the sender's static mapping: end
    /// it if it has expired, and give the packet back.
    Vacate,
    /// Back from `Vacate`.
    Vacated,
}

impl Stage {
    /// Natrix originated the packet: it has no verdict, and no worker counts it as received.
    #[inline]
    pub const fn is_own(self) -> bool {
        matches!(self, Stage::OwnError | Stage::Undelivered | Stage::HeldSyn | Stage::TakeBack)
    }
}

/// Travels with a packet between stages and workers; 12 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// [`Stage::Steered`]: the record that the sender read in the port table, or 0; only a hint.
    /// Hairpinned: what the first half made. [`Stage::Vacate`]: the external address.
    pub record: u32,
    /// Interface it came in by.
    pub ingress: InterfaceId,
    /// Where it is on its way.
    pub stage: Stage,
    /// Stops so far, for an endpoint with several targets.
    pub turn: u8,
    /// Source and destination, if they were found elsewhere: for fragments and [`Stage::LogFull`].
    /// [`Stage::Vacate`]: the external port is the second.
    pub ports: (u16, u16),
}

/// Position in a snapshot's [`crate::Shared::next_hops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHopId(pub u32);

impl NextHopId {
    /// Index into arrays by next hop.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A next hop of either family. On a directly connected subnet the neighbour is the packet's
/// destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Valid only in the shard's snapshot.
    pub next_hop: NextHopId,
}

/// What the caller must do with a processed packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Free the buffer. The verdict is or will be counted.
    #[default]
    Done,
    /// Send this part of the frame, without padding.
    Transmit {
        /// Next hop.
        egress: Egress,
        /// Start of the IP packet, whose header may have grown or shrunk.
        start: u16,
        /// IP total length, bytes.
        length: u16,
    },
    /// Put it in a worker's ring; count `HandOffRingFull` if that is full.
    HandOff {
        /// The packet's worker.
        worker: WorkerId,
        /// Metadata to send along.
        meta: PacketMeta,
    },
}

/// One packet of a burst.
#[derive(Debug)]
pub struct Packet<'a> {
    /// With room in front and Ethernet padding behind.
    frame: &'a mut [u8],
    start: u16,
    /// In: origin and stage.
    pub meta: PacketMeta,
    /// Out: what to do.
    pub outcome: Outcome,
    /// Out: the verdict that was counted; `None` if handed off or held. If the packet does not
    /// leave, [`crate::Counters::uncount`] it.
    pub verdict: Option<Verdict>,
}

impl<'a> Packet<'a> {
    /// A packet without room in front.
    pub const fn new(bytes: &'a mut [u8], meta: PacketMeta) -> Packet<'a> {
        Packet::in_frame(bytes, 0, meta)
    }

    /// A packet that begins at `start` of `frame`.
    #[inline(always)]
    pub const fn in_frame(frame: &'a mut [u8], start: u16, meta: PacketMeta) -> Packet<'a> {
        Packet { frame, start, meta, outcome: Outcome::Done, verdict: None }
    }

    /// From the IP header to the end of the frame.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        self.frame.get(usize::from(self.start)..).unwrap_or_default()
    }

    /// [`Packet::bytes`], to be rewritten in place.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.frame.get_mut(usize::from(self.start)..).unwrap_or_default()
    }

    /// Compares once, where a slice of a slice compares twice.
    #[inline(always)]
    pub(crate) fn chunk<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        let from = usize::from(self.start) + offset;
        self.frame.get(from..from + N)?.first_chunk()
    }

    #[inline(always)]
    pub(crate) fn header_mut<const N: usize>(&mut self) -> Option<&mut [u8; N]> {
        let from = usize::from(self.start);
        self.frame.get_mut(from..from + N)?.first_chunk_mut()
    }

    #[inline(always)]
    pub(crate) fn has(&self, length: usize) -> bool {
        usize::from(self.start) + length <= self.frame.len()
    }

    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.frame.len().wrapping_sub(usize::from(self.start))
    }

    /// Start of the IP packet in its frame.
    #[inline(always)]
    pub const fn start(&self) -> u16 {
        self.start
    }

    #[inline(always)]
    pub(crate) fn frame_mut(&mut self) -> &mut [u8] {
        self.frame
    }

    #[inline(always)]
    pub(crate) fn frame_and_outcome_mut(&mut self) -> (&mut [u8], &mut Outcome) {
        (self.frame, &mut self.outcome)
    }

    #[inline(always)]
    pub(crate) fn set_start(&mut self, start: usize) {
        debug_assert!(start <= self.frame.len(), "inside the frame");
        self.start = start as u16;
    }

    /// Adds `count` arbitrary bytes in front. False without room.
    #[must_use]
    pub fn grow_front(&mut self, count: u16) -> bool {
        let start = self.start.checked_sub(count);
        self.start = start.unwrap_or(self.start);
        start.is_some()
    }

    /// Cuts bytes off the front. False if the packet is shorter.
    #[must_use]
    pub fn shrink_front(&mut self, count: u16) -> bool {
        let fits = usize::from(count) <= self.bytes().len();
        self.start += if fits { count } else { 0 };
        fits
    }
}

/// Receives packets that the shard makes, and must copy them. Only released fragments have a
/// verdict, which the shard counts.
pub trait Sink {
    /// Sends the concatenated `parts`. False without a free buffer.
    fn transmit(&mut self, egress: Egress, parts: &[&[u8]]) -> bool;

    /// Hands a packet to another worker. False if its ring is full. For port-control requests a
    /// half-full ring counts as full, so that a flood of them keeps no packet out.
    fn hand_off(&mut self, worker: WorkerId, meta: PacketMeta, parts: &[&[u8]]) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_grows_into_the_room_in_front_of_it() {
        let mut frame = [0, 0, 0, 0, 0x45, 7];
        let mut packet = Packet::in_frame(&mut frame, 4, PacketMeta::default());
        assert_eq!((packet.bytes(), packet.start()), (&[0x45, 7][..], 4));
        assert!(packet.grow_front(3) && !packet.grow_front(2), "there were four bytes of room");
        packet.bytes_mut()[..3].copy_from_slice(&[1, 2, 3]);
        assert_eq!((packet.bytes(), packet.start()), (&[1, 2, 3, 0x45, 7][..], 1));
        assert!(packet.shrink_front(4) && !packet.shrink_front(2), "one byte is left");
        assert_eq!((packet.bytes(), packet.start()), (&[7][..], 5));
        assert!(packet.shrink_front(1) && packet.bytes().is_empty());
    }

    #[test]
    fn parts_of_a_packet_end_with_its_frame() {
        let mut frame = [9, 9, 1, 2, 3, 4];
        let mut packet = Packet::in_frame(&mut frame, 2, PacketMeta::default());
        assert_eq!((packet.chunk(0), packet.chunk(2)), (Some(&[1, 2, 3, 4]), Some(&[3, 4])));
        assert!(packet.chunk::<4>(1).is_none() && packet.header_mut::<5>().is_none());
        assert!(packet.has(4) && !packet.has(5));
        *packet.header_mut().expect("two bytes are there") = [7, 8];
        assert_eq!(packet.bytes(), [7, 8, 3, 4]);
    }
}
