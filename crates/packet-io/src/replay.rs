//! Ports that replay captures: what was captured comes in, what is sent goes to captures, and the
//! clock is the time of the captured frames.
//!
//! ```text
//!   loop { replay.step()?  → the clock moves to the next frame of any port
//!          receive, work, transmit at that time }
//! ```
//! The captures are merged by time. The clock never goes back: a frame that is earlier than the one
//! before it in its file arrives at the same time as its predecessor.

use std::fs::File;
use std::io::BufReader;
use std::io::BufWriter;

use crate::burst::Burst;
use crate::capture::CaptureError;
use crate::capture::CaptureReader;
use crate::capture::CaptureWriter;
use crate::io::Buffer;
use crate::io::Io;
use crate::io::PortIndex;
use crate::io::PortStatistics;
use crate::memory::MemoryBuffer;
use crate::memory::MemoryPool;

/// Buffers for frames on their way and for frames the worker holds on to; those never used cost no
/// memory.
const BUFFERS: usize = 4096;
/// The longest IP packet and two 802.1Q tags: captures taken above segmentation offload have such
/// frames.
const FRAME_BYTES: usize = 65_535 + 14 + 8;

/// A port's captures.
#[derive(Default)]
pub struct ReplayPort {
    /// Frames to receive; none: nothing arrives.
    pub input: Option<CaptureReader<BufReader<File>>>,
    /// Where sent frames go; none: they are counted and dropped.
    pub output: Option<CaptureWriter<BufWriter<File>>>,
    /// The port's own Ethernet address.
    pub mac: [u8; 6],
}

struct Port {
    captures: ReplayPort,
    /// The frame that is to arrive next, and when.
    next: Option<(u64, MemoryBuffer)>,
    statistics: PortStatistics,
}

/// [`Io`] over capture files, for one worker.
pub struct Replay {
    ports: Vec<Port>,
    pool: MemoryPool,
    first_ns: Option<u64>,
    now_ns: u64,
    /// What went wrong where no error can be returned; [`Replay::step`] and [`Replay::finish`]
    /// return it.
    fault: Option<CaptureError>,
}

impl Replay {
    /// Ports over these captures, in the order of [`PortIndex`]. The clock stands at the first
    /// frame.
    ///
    /// # Errors
    /// When the first frame of a capture can't be read.
    pub fn new(ports: Vec<ReplayPort>) -> Result<Replay, CaptureError> {
        let port = |captures| Port { captures, next: None, statistics: PortStatistics::default() };
        let pool = MemoryPool::new(BUFFERS, FRAME_BYTES);
        let mut replay =
            Replay { ports: ports.into_iter().map(port).collect(), pool, first_ns: None, now_ns: 0, fault: None };
        for port in &mut replay.ports {
            port.refill(&replay.pool)?;
        }
        replay.first_ns = replay.next_ns();
        replay.now_ns = replay.first_ns.unwrap_or(0);
        Ok(replay)
    }

    /// The clock, in nanoseconds of the captures' own time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The clock, in microseconds since the first frame.
    pub fn elapsed_us(&self) -> u64 {
        self.now_ns.saturating_sub(self.first_ns.unwrap_or(0)) / 1_000
    }

    /// When the next frame arrives; none when all captures have ended.
    pub fn next_ns(&self) -> Option<u64> {
        self.ports.iter().filter_map(|port| port.next.as_ref()).map(|(time_ns, _)| *time_ns).min()
    }

    /// Moves the clock to the next frame. Returns false when there is none; the clock then stays.
    ///
    /// # Errors
    /// When a capture turned out to be damaged, or writing failed, since the last call.
    pub fn step(&mut self) -> Result<bool, CaptureError> {
        match (self.fault.take(), self.next_ns()) {
            (Some(fault), _) => Err(fault),
            (None, None) => Ok(false),
            (None, Some(next_ns)) => {
                self.advance_to(next_ns);
                Ok(true)
            }
        }
    }

    /// Moves the clock on to `time_ns`, for timers that run out between frames. It never goes back.
    pub fn advance_to(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
    }

    /// Writes out what was sent.
    ///
    /// # Errors
    /// When writing fails, or something failed since the last [`Replay::step`].
    pub fn finish(self) -> Result<(), CaptureError> {
        for port in self.ports {
            if let Some(output) = port.captures.output {
                output.finish()?;
            }
        }
        self.fault.map_or(Ok(()), Err)
    }
}

impl Port {
    /// Reads the next frame that fits a buffer.
    fn refill(&mut self, pool: &MemoryPool) -> Result<(), CaptureError> {
        let Some(input) = &mut self.captures.input else { return Ok(()) };
        while let Some(record) = input.next_record()? {
            let Some(mut buffer) = pool.allocate() else {
                self.statistics.receive_no_buffer += 1;
                continue;
            };
            if buffer.fill(&[record.bytes]) {
                self.next = Some((record.time_ns, buffer));
                return Ok(());
            }
            self.statistics.receive_too_long += 1;
        }
        Ok(())
    }
}

impl Io for Replay {
    type Buffer = MemoryBuffer;

    fn port_count(&self) -> usize {
        self.ports.len()
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        let Some(port) = self.ports.get_mut(port.index()) else { return };
        while !burst.is_full() {
            let Some((_, buffer)) = port.next.take_if(|(time_ns, _)| *time_ns <= self.now_ns) else { return };
            port.statistics.received_packets += 1;
            port.statistics.received_bytes += buffer.len() as u64;
            // The burst has room, so nothing comes back.
            let _ = burst.push(buffer);
            if let Err(fault) = port.refill(&self.pool) {
                port.captures.input = None;
                self.fault.get_or_insert(fault);
            }
        }
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        let Some(port) = self.ports.get_mut(port.index()) else { return };
        for buffer in burst.drain() {
            port.statistics.sent_packets += 1;
            port.statistics.sent_bytes += buffer.len() as u64;
            let Some(output) = &mut port.captures.output else { continue };
            if let Err(fault) = output.write(self.now_ns, buffer.bytes()) {
                port.statistics.send_errors += 1;
                self.fault.get_or_insert(fault);
            }
        }
    }

    fn allocate(&mut self) -> Option<MemoryBuffer> {
        self.pool.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.ports.get(port.index()).map_or([0; 6], |port| port.captures.mac)
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        port.index() < self.ports.len()
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        port.index() < self.ports.len()
    }

    fn link_up(&self, port: PortIndex) -> bool {
        port.index() < self.ports.len()
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.ports.get(port.index()).map(|port| port.statistics).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
