//! The world over two ports of the tester, in real time. The tester is a router on both links, as
//! in the other tests of the lab.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use wire::arp;
use wire::build;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::LinkHeader;

use super::world::Arrival;
use super::world::Side;
use super::world::World;
use super::world::WorldError;
use crate::frame::Stations;
use crate::tester::End;

/// How long the tester sleeps when nothing has come: short beside any time that is measured.
const NAP: Duration = Duration::from_micros(100);
/// Frames a port did not take are offered again so often.
const OFFERS: u32 = 1_000;

/// See the module.
pub struct PortsWorld<I: Io> {
    io: I,
    ends: [End; 2],
    stations: [Stations; 2],
    begun: Instant,
    arrived: VecDeque<Arrival>,
    stop: Arc<AtomicBool>,
}

impl<I: Io> PortsWorld<I> {
    /// On two ports, inside first, with the Ethernet addresses at both ends of each link:
    /// [`Tester::meet`](crate::tester::Tester::meet) finds them.
    pub fn new(io: I, ends: [End; 2], stations: [Stations; 2]) -> PortsWorld<I> {
        PortsWorld { io, ends, stations, begun: Instant::now(), arrived: VecDeque::new(), stop: Arc::default() }
    }

    /// It is interrupted once this is set.
    pub fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    fn transmit(&mut self, at: usize, frame: &[u8]) -> Result<(), WorldError> {
        let mut buffer = self.io.allocate().ok_or(WorldError::NoBuffer)?;
        if !buffer.fill(&[frame]) {
            return Err(WorldError::TooLong { bytes: frame.len() });
        }
        let mut burst = Burst::new();
        // An empty burst has room.
        let _ = burst.push(buffer);
        for _ in 0..OFFERS {
            self.io.transmit(self.ends[at].port, &mut burst);
            if burst.is_empty() {
                return Ok(());
            }
            std::thread::sleep(NAP);
        }
        // A link that takes nothing loses it, as any link may.
        Ok(())
    }

    /// Takes what waits at both ports.
    fn receive(&mut self) -> Result<(), WorldError> {
        for (at, side) in [(0, Side::Inside), (1, Side::Outside)] {
            let mut burst = Burst::new();
            self.io.receive(self.ends[at].port, &mut burst);
            for buffer in burst.drain() {
                self.take(at, side, buffer.bytes())?;
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize, side: Side, frame: &[u8]) -> Result<(), WorldError> {
        let Ok(header) = LinkHeader::parse(frame) else { return Ok(()) };
        let payload = &frame[header.payload_offset()..];
        match header.ether_type {
            ETHER_TYPE_IPV4 if header.destination == self.stations[at].own => {
                self.arrived.push_back(Arrival { side, at: self.begun.elapsed(), packet: payload.to_vec() });
            }
            ETHER_TYPE_ARP => {
                if let Ok(message) = arp::Message::parse(payload)
                    && message.operation == arp::Operation::Request
                    && message.target_address == self.ends[at].address
                {
                    let reply = message.reply(self.stations[at].own);
                    self.transmit(at, &build::arp_frame(None, &reply))?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl<I: Io> World for PortsWorld<I> {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn send(&mut self, side: Side, packet: &[u8]) -> Result<(), WorldError> {
        let at = side as usize;
        let Stations { own, device } = self.stations[at];
        self.transmit(at, &build::frame(own, device, ETHER_TYPE_IPV4, packet))
    }

    fn next(&mut self, until: Duration) -> Result<Option<Arrival>, WorldError> {
        loop {
            if let Some(arrival) = self.arrived.pop_front() {
                return Ok(Some(arrival));
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(WorldError::Interrupted);
            }
            self.receive()?;
            if self.arrived.is_empty() {
                let now = self.now();
                if now >= until {
                    return Ok(None);
                }
                std::thread::sleep(NAP.min(until - now));
            }
        }
    }
}
