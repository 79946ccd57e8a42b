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
//! within it [`Link`] adds up the cycles to be taken off. They may have a thread of their own
//! ([`far`](super::far)).

use core::mem;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;

use ::mem::tsc;
use core_affinity::CoreId;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use packet_io::dpdk::DpdkBuffer;
use packet_io::dpdk::DpdkIo;
use wire::ethernet::MacAddress;

use super::Driver;
use super::bed::Ports;
use super::far_ends;
use super::far_ends::Apart;
use super::far_ends::FarEnds;
use super::traffic::Traffic;

/// The two ports of one driver, with the far ends of their links.
pub(super) struct Link {
    dpdk: DpdkIo,
    ports: Ports,
    far_ends: Arc<Mutex<FarEnds>>,
    /// The far ends' thread, where they have one.
    apart: Option<Apart>,
    /// TSC cycles the far ends took within polls.
    pub(super) far_cycles: u64,
}

impl Link {
    /// With a CPU for the far ends, they have a thread there: only where they have ports of their
    /// own.
    pub(super) fn new(mut dpdk: DpdkIo, ports: Ports, mut traffic: Traffic, far_cpu: Option<CoreId>) -> Link {
        traffic.set_stations(ports.worker.map(|port| MacAddress(dpdk.mac(port))));
        let far_ends = Arc::new(Mutex::new(FarEnds::new(ports, traffic)));
        let far_cpu = far_cpu.filter(|_| ports.far_ends != ports.worker);
        let apart = far_cpu.map(|cpu| Apart::start(dpdk.split_off(&ports.far_ends), Arc::clone(&far_ends), cpu));
        Link { dpdk, ports, far_ends, apart, far_cycles: 0 }
    }

    /// Gives DPDK back, for the next driver.
    pub(super) fn into_dpdk(self) -> DpdkIo {
        self.dpdk
    }

    /// What arrives and what left.
    pub(super) fn far_ends(&self) -> MutexGuard<'_, FarEnds> {
        far_ends::locked(&self.far_ends)
    }

    /// Whether all links are up.
    pub(super) fn is_up(&self) -> bool {
        self.ports.worker.iter().chain(&self.ports.far_ends).all(|port| self.dpdk.link_up(*port))
    }

    /// Has the worker's ports give their first buffers to the far ends, as a `net_memif` client
    /// does only when it receives.
    pub(super) fn offer_buffers(&mut self) {
        for port in self.ports.worker {
            self.dpdk.receive(port, &mut Burst::new());
        }
    }

    /// As [`FarEnds::feed`].
    pub(super) fn feed(&mut self) -> bool {
        match &self.apart {
            Some(apart) => apart.feed(),
            None => far_ends::locked(&self.far_ends).feed(&mut self.dpdk),
        }
    }

    /// As [`FarEnds::drain`].
    pub(super) fn drain(&mut self) {
        match &self.apart {
            Some(apart) => apart.drain(),
            None => far_ends::locked(&self.far_ends).drain(&mut self.dpdk),
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
        if self.ports.driver == Driver::Ring && !mem::take(&mut self.far_ends().fed[side]) {
            return;
        }
        let before = burst.len();
        self.dpdk.receive(self.ports.worker[side], burst);
        if self.ports.driver == Driver::Null {
            let begin = tsc::read();
            // The driver leaves the content to chance.
            if !self.far_ends().traffic.write(side, &mut burst[before..]) {
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
            self.far_ends().traffic.look(side, burst);
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
