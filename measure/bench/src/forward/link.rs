//! Natrix's two ports in the benchmark: a driver's own receive and transmit, and the far ends
//! around it.
//!
//! | driver | how frames get in | how they are seen leaving |
//! |---|---|---|
//! | `net_ring` | sent through the same port before the poll | received from it after the poll |
//! | `net_memif` | sent by a port of the other role before the poll | received there after it |
//! | `net_null` | written into received buffers within the poll | read before they are dropped |
//!
//! Time spent on the far ends is never counted: before and after the poll the clock stands, and
//! within it [`Link`] adds up the cycles to be taken off.

use core::mem;

use ::mem::tsc;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use packet_io::dpdk::DpdkBuffer;
use packet_io::dpdk::DpdkIo;
use wire::ethernet::MacAddress;

use super::Driver;
use super::bed::Ports;
use super::traffic::Traffic;

/// The two ports of one driver, with the far ends of their links.
pub(super) struct Link {
    dpdk: DpdkIo,
    ports: Ports,
    pub(super) traffic: Traffic,
    /// TSC cycles the far ends took within polls.
    pub(super) far_cycles: u64,
    /// Per port: the ring has a burst that the far end put there.
    fed: [bool; 2],
    /// Buffers of the far ends, to be used again.
    spare: [Burst<DpdkBuffer>; 2],
}

impl Link {
    pub(super) fn new(dpdk: DpdkIo, ports: Ports, mut traffic: Traffic) -> Link {
        traffic.set_stations(ports.worker.map(|port| MacAddress(dpdk.mac(port))));
        Link { dpdk, ports, traffic, far_cycles: 0, fed: [false; 2], spare: [Burst::new(), Burst::new()] }
    }

    /// Gives DPDK back, for the next driver.
    pub(super) fn into_dpdk(self) -> DpdkIo {
        self.dpdk
    }

    /// Whether all links are up.
    pub(super) fn is_up(&self) -> bool {
        self.ports.worker.iter().chain(&self.ports.far).all(|port| self.dpdk.link_up(*port))
    }

    /// Has the worker's ports give their first buffers to the far ends, as a `net_memif` client
    /// does only when it receives.
    pub(super) fn offer_buffers(&mut self) {
        for port in self.ports.worker {
            self.dpdk.receive(port, &mut Burst::new());
        }
    }

    /// Before a poll: puts a burst into the receive queue of each port the traffic has something
    /// for. Returns false when there was no buffer or no room, which never happens while every
    /// burst is taken away again.
    pub(super) fn feed(&mut self) -> bool {
        if self.ports.driver == Driver::Null {
            return true;
        }
        for side in 0..2 {
            let burst = &mut self.spare[side];
            while !burst.is_full() {
                let Some(buffer) = self.dpdk.allocate() else { return false };
                // There is room, so it does not come back.
                let _ = burst.push(buffer);
            }
            self.fed[side] = self.traffic.write(side, burst);
            if self.fed[side] {
                self.dpdk.transmit(self.ports.far[side], burst);
                if !burst.is_empty() {
                    return false;
                }
            }
        }
        true
    }

    /// After a poll: takes what left.
    pub(super) fn drain(&mut self) {
        if self.ports.driver == Driver::Null {
            return;
        }
        for side in 0..2 {
            loop {
                let mut burst = Burst::new();
                self.dpdk.receive(self.ports.far[side], &mut burst);
                if burst.is_empty() {
                    break;
                }
                self.traffic.look(side, &burst);
                if self.spare[side].is_empty() {
                    self.spare[side] = burst;
                }
            }
        }
    }
}

impl Io for Link {
    type Buffer = DpdkBuffer;

    fn port_count(&self) -> usize {
        2
    }

    #[inline]
    fn receive(&mut self, port: PortIndex, burst: &mut Burst<DpdkBuffer>) {
        let side = port.index();
        // The rings also give back what the worker itself has just sent. The frames of the far end
        // come first and are a whole burst: receiving once per burst gets these, and no others.
        if self.ports.driver == Driver::Ring && !mem::take(&mut self.fed[side]) {
            return;
        }
        let before = burst.len();
        self.dpdk.receive(self.ports.worker[side], burst);
        if self.ports.driver == Driver::Null {
            let begin = tsc::read();
            // The driver leaves the content to chance.
            if !self.traffic.write(side, &mut burst[before..]) {
                while burst.len() > before {
                    drop(burst.pop());
                }
            }
            self.far_cycles += tsc::read().wrapping_sub(begin);
        }
    }

    #[inline]
    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<DpdkBuffer>) {
        let side = port.index();
        if self.ports.driver == Driver::Null {
            let begin = tsc::read();
            self.traffic.look(side, burst);
            self.far_cycles += tsc::read().wrapping_sub(begin);
        }
        self.dpdk.transmit(self.ports.worker[side], burst);
    }

    fn allocate(&mut self) -> Option<DpdkBuffer> {
        self.dpdk.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.dpdk.mac(self.ports.worker[port.index()])
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        self.dpdk.can_receive(self.ports.worker[port.index()])
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        self.dpdk.can_transmit(self.ports.worker[port.index()])
    }

    fn link_up(&self, port: PortIndex) -> bool {
        self.dpdk.link_up(self.ports.worker[port.index()])
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.dpdk.statistics(self.ports.worker[port.index()])
    }
}
