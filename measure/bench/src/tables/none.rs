//! `none`: no table at all, only the work every packet costs (figure 1 of the paper): reading, time
//! stamp, new address and port, both checksums.
//!
//! The n-th packet out gets the n-th external endpoint, and the n-th answer the node of the n-th
//! packet, both kept in the order of the packets. So packets of one flow get different external
//! endpoints, and answers must come in order: this is no NAT, but what all others are measured
//! against.

use mem::Arena;

use super::structure::BuildError;
use super::structure::EXTERNAL;
use super::structure::Full;
use super::structure::Nat;
use super::structure::Size;
use super::workload::Packet;

/// Nodes in the order of their packets.
pub(super) struct NoTable {
    /// Address, then port, then the time of the last packet.
    nodes: Arena<[u32; 3]>,
    left: usize,
    entered: usize,
}

impl Nat for NoTable {
    fn new(size: Size) -> Result<NoTable, BuildError> {
        Ok(NoTable { nodes: Arena::zeroed(size.sessions as usize)?, left: 0, entered: 0 })
    }

    #[inline]
    fn leave(&mut self, packets: &mut [Packet], now: u32) -> Result<(), Full> {
        for packet in packets {
            let (address, port) = packet.source();
            *self.nodes.get_mut(self.left).ok_or(Full)? = [address, u32::from(port), now];
            packet.set_source((EXTERNAL + (self.left >> 16) as u32, self.left as u16));
            self.left += 1;
        }
        Ok(())
    }

    #[inline]
    fn enter(&mut self, packets: &mut [Packet], now: u32) {
        for (packet, node) in packets.iter_mut().zip(self.nodes.iter_mut().skip(self.entered)) {
            node[2] = now;
            packet.set_destination((node[0], node[1] as u16));
        }
        self.entered += packets.len();
    }

    fn bytes(&self) -> usize {
        self.nodes.bytes()
    }
}
