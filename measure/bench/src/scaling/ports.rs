//! A worker's two ports in memory: what the benchmark puts in is received, and what is sent is
//! counted.
//!
//! Like a driver's queues and the cache of its buffer pool: each worker has its own, and a buffer
//! that crossed to another worker stays there.

use mem::prefetch::prefetch;
use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::PortStatistics;

use crate::traffic::BURST;

/// Room in front of a fresh frame, as DPDK has it.
const HEADROOM: usize = 128;
/// Bytes of a buffer: headroom, the frame, and room for what the writer of headers writes behind
/// it.
const SLOT_BYTES: usize = 256;
/// Bytes of an Ethernet header.
const LINK_HEADER: usize = 14;
/// Bytes of a frame without its check sequence.
const FRAME_BYTES: usize = 60;

/// The block of a frame. It starts at a cache line, as DPDK's do, so that all that is touched of
/// the frame is in one line.
#[repr(align(64))]
struct Slot([u8; SLOT_BYTES]);

/// One frame in a block of its own.
pub(super) struct FrameBuffer {
    slot: Box<Slot>,
    start: usize,
    length: usize,
}

impl FrameBuffer {
    fn new() -> FrameBuffer {
        FrameBuffer { slot: Box::new(Slot([0; SLOT_BYTES])), start: HEADROOM, length: 0 }
    }

    /// Makes it a frame from one station to another, whose IP packet is to be written by the
    /// caller.
    fn begin(&mut self, station: [u8; 6]) -> Option<&mut [u8; 64]> {
        (self.start, self.length) = (HEADROOM, FRAME_BYTES);
        let (header, packet) = self.slot.0.get_mut(HEADROOM..)?.split_first_chunk_mut::<LINK_HEADER>()?;
        header[..6].copy_from_slice(&station);
        header[6..].copy_from_slice(&[2, 0, 0, 0, 1, 0, 8, 0]);
        packet.first_chunk_mut()
    }
}

impl Buffer for FrameBuffer {
    fn bytes(&self) -> &[u8] {
        self.slot.0.get(self.start..self.start + self.length).unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.slot.0.get_mut(self.start..self.start + self.length).unwrap_or_default()
    }

    #[inline]
    fn frame_mut(&mut self) -> (&mut [u8], u16) {
        (self.slot.0.get_mut(..self.start + self.length).unwrap_or_default(), self.start as u16)
    }

    #[inline]
    fn set_frame(&mut self, start: u16, len: u16) -> Option<&mut [u8]> {
        let frame = self.slot.0.get_mut(usize::from(start)..usize::from(start) + usize::from(len))?;
        (self.start, self.length) = (usize::from(start), usize::from(len));
        Some(frame)
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(self.bytes());
    }

    fn fill(&mut self, parts: &[&[u8]]) -> bool {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total > SLOT_BYTES - HEADROOM {
            return false;
        }
        (self.start, self.length) = (HEADROOM, total);
        let mut place = HEADROOM;
        for part in parts {
            if let Some(room) = self.slot.0.get_mut(place..place + part.len()) {
                room.copy_from_slice(part);
            }
            place += part.len();
        }
        true
    }
}

/// One worker's ports: 0 inside, 1 outside.
pub(super) struct Ports {
    /// Received frames, by port, in order.
    waiting: [Vec<FrameBuffer>; 2],
    spare: Vec<FrameBuffer>,
    /// Frames sent on both ports.
    pub(super) sent: u64,
    /// While sessions are opened: the IP packets sent outside, in order.
    pub(super) seen: Option<Vec<[u8; 64]>>,
}

impl Ports {
    pub(super) fn new() -> Ports {
        let queue = || Vec::with_capacity(BURST);
        Ports { waiting: [queue(), queue()], spare: Vec::new(), sent: 0, seen: None }
    }

    /// Puts a frame into the receive queue of a port, unless it holds a burst already; `write`
    /// writes the IP packet.
    pub(super) fn put(&mut self, port: usize, write: impl FnOnce(&mut [u8; 64])) {
        if self.waiting[port].len() >= BURST {
            return;
        }
        let mut buffer = self.spare.pop().unwrap_or_else(FrameBuffer::new);
        if let Some(packet) = buffer.begin(station(port)) {
            write(packet);
            self.waiting[port].push(buffer);
        }
    }

    /// Frames nobody has received yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.iter().map(Vec::len).sum()
    }
}

fn station(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

impl Io for Ports {
    type Buffer = FrameBuffer;

    fn port_count(&self) -> usize {
        2
    }

    #[inline]
    fn receive(&mut self, port: PortIndex, burst: &mut Burst<FrameBuffer>) {
        for buffer in self.waiting[port.index()].drain(..) {
            // A queue holds a burst at most, and the burst is empty.
            let _ = burst.push(buffer);
        }
    }

    #[inline]
    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<FrameBuffer>) {
        for buffer in burst.drain() {
            self.sent += 1;
            if port.index() == 1
                && let Some(seen) = &mut self.seen
            {
                let mut packet = [0; 64];
                let bytes = buffer.bytes().get(LINK_HEADER..).unwrap_or_default();
                let length = bytes.len().min(packet.len());
                packet[..length].copy_from_slice(&bytes[..length]);
                seen.push(packet);
            }
            self.spare.push(buffer);
        }
    }

    fn allocate(&mut self) -> Option<FrameBuffer> {
        Some(self.spare.pop().unwrap_or_else(FrameBuffer::new))
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        station(port.index())
    }

    fn can_receive(&self, _: PortIndex) -> bool {
        true
    }

    fn can_transmit(&self, _: PortIndex) -> bool {
        true
    }

    fn link_up(&self, _: PortIndex) -> bool {
        true
    }

    fn statistics(&self, _: PortIndex) -> PortStatistics {
        PortStatistics::default()
    }
}
