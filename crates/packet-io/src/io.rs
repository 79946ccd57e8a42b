//! The two traits a worker sees: a packet buffer, and burst I/O on all ports.

use core::fmt;

use crate::burst::Burst;
use crate::burst::Drain;

/// A physical port: index in the order of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u16);

impl PortIndex {
    /// Index into per-port arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What the device says about the transport checksum of a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChecksum {
    /// Nothing: the checksum is as it was on the wire.
    #[default]
    Unknown,
    /// The device checked it and it is right.
    Good,
    /// The device checked it and it is wrong.
    Bad,
    /// The packet comes from a local sender that left the sum to its network card: the field holds
    /// the sum of the pseudo header only. An incremental update keeps that so, and it must be
    /// finished before the wire.
    Unfinished,
}

/// A packet buffer. Dropping it frees it, on any thread.
///
/// There is room in front of the frame, so that its headers can grow.
pub trait Buffer: Send + Sized {
    /// The frame.
    fn bytes(&self) -> &[u8];

    /// The frame, to be rewritten in place.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Length of the frame in bytes.
    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there is no byte in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer from its first byte to the end of the frame, and where the frame begins in it:
    /// what is in front is room for headers to grow into.
    fn frame_mut(&mut self) -> (&mut [u8], u16);

    /// Makes the frame the `len` bytes that begin `start` bytes into the buffer, and returns them;
    /// those that were not part of it are arbitrary. None, having changed nothing, when the buffer
    /// ends before.
    fn set_frame(&mut self, start: u16, len: u16) -> Option<&mut [u8]>;

    /// Asks for the memory that holds the headers, without waiting for any of it.
    fn prefetch(&self) {}

    /// Replaces the content by `parts` one after another. Returns false when they do not fit; the
    /// content is then arbitrary. Restores the room in front.
    #[must_use]
    fn fill(&mut self, parts: &[&[u8]]) -> bool;

    /// What the device says about the transport checksum.
    fn transport_checksum(&self) -> TransportChecksum {
        TransportChecksum::Unknown
    }

    /// Frees many buffers; implementations that can do it in bulk override it.
    fn free_all(buffers: Drain<'_, Self>) {
        buffers.for_each(drop);
    }
}

/// Counters of one port since it was started, over all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatistics {
    /// Frames received.
    pub received_packets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Frames the device dropped because the receive queue was full.
    pub receive_missed: u64,
    /// Frames received with an error.
    pub receive_errors: u64,
    /// Frames dropped because no buffer was free to receive into.
    pub receive_no_buffer: u64,
    /// Frames dropped because they came in several pieces and no single buffer is large enough.
    pub receive_too_long: u64,
    /// Frames the device failed to send.
    pub send_errors: u64,
}

/// One worker's view of all physical ports. Each worker has its own value.
pub trait Io {
    /// The buffers packets come in.
    type Buffer: Buffer;

    /// How many ports there are; their indices are 0 up to this.
    fn port_count(&self) -> usize;

    /// Appends received frames until the burst is full or none is waiting.
    fn receive(&mut self, port: PortIndex, burst: &mut Burst<Self::Buffer>);

    /// Sends frames from the front of the burst. What did not fit the transmit queue stays, in
    /// order; the caller drops and counts it.
    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<Self::Buffer>);

    /// An empty buffer, when one is free.
    fn allocate(&mut self) -> Option<Self::Buffer>;

    /// The port's Ethernet address.
    fn mac(&self, port: PortIndex) -> [u8; 6];

    /// Whether this worker has a receive queue of the port. Receiving elsewhere yields nothing.
    fn can_receive(&self, port: PortIndex) -> bool;

    /// Whether this worker can send on the port. Sending elsewhere leaves the burst as it is.
    fn can_transmit(&self, port: PortIndex) -> bool;

    /// Whether the port's link is up now.
    fn link_up(&self, port: PortIndex) -> bool;

    /// Counters of the port, over all workers.
    fn statistics(&self, port: PortIndex) -> PortStatistics;
}
