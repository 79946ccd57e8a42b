//! In-memory ports: a test bed pushes frames in on one side and pulls them out on the other.
//!
//! ```text
//!   MemoryBed::push(worker, port) ──▶ receive queue per (worker, port) ──▶ MemoryIo::receive
//!   MemoryBed::pull(port)         ◀── transmit queue per port          ◀── MemoryIo::transmit
//! ```
//!
//! All queues are bounded and all buffers come from one preallocated pool. What happens depends on
//! the order of calls only. Workers may run on one thread or on many; a lock per burst guards each
//! queue.

mod pool;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

pub use pool::HEADROOM;
pub use pool::MemoryBuffer;
pub use pool::MemoryPool;

use crate::burst::Burst;
use crate::io::Buffer;
use crate::io::Io;
use crate::io::PortIndex;
use crate::io::PortStatistics;

/// Sizes of a bed of in-memory ports.
#[derive(Clone, Debug)]
pub struct MemorySettings {
    /// Ports.
    pub ports: usize,
    /// Workers: one [`MemoryIo`] each.
    pub workers: usize,
    /// Frames each receive and each transmit queue holds at most.
    pub queue_frames: usize,
    /// Buffers in the pool.
    pub buffers: usize,
    /// Longest frame a buffer holds, in bytes, not counting [`HEADROOM`].
    pub frame_bytes: usize,
}

impl Default for MemorySettings {
    /// Two ports, one worker, room for 1024 full-size frames each way.
    fn default() -> MemorySettings {
        MemorySettings { ports: 2, workers: 1, queue_frames: 1024, buffers: 4096, frame_bytes: 1600 }
    }
}

/// What was sent on a port: the worker that sent it, and the frame.
type Sent = (usize, MemoryBuffer);

struct Port {
    /// One per worker.
    receive: Vec<Mutex<VecDeque<MemoryBuffer>>>,
    transmit: Mutex<VecDeque<Sent>>,
    statistics: Mutex<PortStatistics>,
}

struct Shared {
    ports: Vec<Port>,
    workers: usize,
    queue_frames: usize,
    pool: MemoryPool,
}

/// The test's end of in-memory ports. Clones share the same ports.
#[derive(Clone)]
pub struct MemoryBed {
    shared: Arc<Shared>,
}

/// One worker's end of in-memory ports.
pub struct MemoryIo {
    shared: Arc<Shared>,
    worker: usize,
}

impl MemoryBed {
    /// Builds the ports and allocates everything they will ever need.
    pub fn new(settings: &MemorySettings) -> MemoryBed {
        let queue = || VecDeque::with_capacity(settings.queue_frames);
        let port = || Port {
            receive: (0..settings.workers).map(|_| Mutex::new(queue())).collect(),
            transmit: Mutex::new(VecDeque::with_capacity(settings.queue_frames)),
            statistics: Mutex::new(PortStatistics::default()),
        };
        let shared = Shared {
            ports: (0..settings.ports).map(|_| port()).collect(),
            workers: settings.workers,
            queue_frames: settings.queue_frames,
            pool: MemoryPool::new(settings.buffers, settings.frame_bytes),
        };
        MemoryBed { shared: Arc::new(shared) }
    }

    /// The worker's end. Ask once per worker: two values of one worker take frames from the same
    /// queues.
    pub fn io(&self, worker: usize) -> MemoryIo {
        MemoryIo { shared: Arc::clone(&self.shared), worker }
    }

    /// Puts a frame into a worker's receive queue. Returns false when the queue is full, the frame
    /// too long, no buffer free, or there is no such worker or port.
    #[must_use]
    pub fn push(&self, worker: usize, port: PortIndex, frame: &[u8]) -> bool {
        let Some(port) = self.shared.ports.get(port.index()) else { return false };
        let Some(queue) = port.receive.get(worker) else { return false };
        let mut queue = lock(queue);
        if queue.len() >= self.shared.queue_frames {
            lock(&port.statistics).receive_missed += 1;
            return false;
        }
        let Some(mut buffer) = self.shared.pool.allocate() else {
            lock(&port.statistics).receive_no_buffer += 1;
            return false;
        };
        if !buffer.fill(&[frame]) {
            lock(&port.statistics).receive_too_long += 1;
            return false;
        }
        queue.push_back(buffer);
        true
    }

    /// Takes the oldest frame sent on the port, and the number of the worker that sent it.
    pub fn pull(&self, port: PortIndex) -> Option<(usize, MemoryBuffer)> {
        lock(&self.shared.ports.get(port.index())?.transmit).pop_front()
    }

    /// Frames waiting in all receive queues.
    pub fn waiting(&self) -> usize {
        self.shared.ports.iter().flat_map(|port| &port.receive).map(|queue| lock(queue).len()).sum()
    }

    /// Free buffers.
    pub fn free_buffers(&self) -> usize {
        self.shared.pool.free_count()
    }
}

impl Io for MemoryIo {
    type Buffer = MemoryBuffer;

    fn port_count(&self) -> usize {
        self.shared.ports.len()
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        let Some(port) = self.shared.ports.get(port.index()) else { return };
        let Some(queue) = port.receive.get(self.worker) else { return };
        let mut queue = lock(queue);
        if queue.is_empty() {
            return;
        }
        let mut statistics = lock(&port.statistics);
        while !burst.is_full() {
            let Some(buffer) = queue.pop_front() else { break };
            statistics.received_packets += 1;
            statistics.received_bytes += buffer.len() as u64;
            // The burst has room, so nothing comes back.
            let _ = burst.push(buffer);
        }
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        let Some(port) = self.shared.ports.get(port.index()) else { return };
        let mut queue = lock(&port.transmit);
        let room = self.shared.queue_frames.saturating_sub(queue.len());
        let mut statistics = lock(&port.statistics);
        for buffer in burst.drain_front(room) {
            statistics.sent_packets += 1;
            statistics.sent_bytes += buffer.len() as u64;
            queue.push_back((self.worker, buffer));
        }
    }

    fn allocate(&mut self) -> Option<MemoryBuffer> {
        self.shared.pool.allocate()
    }

    /// Locally administered: 02:00:00:00, then the port number.
    fn mac(&self, port: PortIndex) -> [u8; 6] {
        let [high, low] = port.0.to_be_bytes();
        [2, 0, 0, 0, high, low]
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        port.index() < self.shared.ports.len() && self.worker < self.shared.workers
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        port.index() < self.shared.ports.len()
    }

    fn link_up(&self, port: PortIndex) -> bool {
        port.index() < self.shared.ports.len()
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.shared.ports.get(port.index()).map(|port| *lock(&port.statistics)).unwrap_or_default()
    }
}

/// Locks even when a panicking test thread held it: queues are consistent between any two
/// statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
