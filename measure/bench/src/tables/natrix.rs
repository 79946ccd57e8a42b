//! `natrix`: the engine's own tables, used as the engine uses them: in passes over a burst, each
//! line asked for one pass before it is needed.
//!
//! Outbound a table of tags leads to a mapping record of one cache line; inbound an array indexed
//! by external endpoint leads to the same record. Ports are drawn at random among the free ones.
//! The record holds what the paper leaves out: realm, protocol, TCP state, sequence numbers, remote
//! endpoint and the session's own end.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Instant;
use nat::tables::Tables;

use super::structure::BURST;
use super::structure::BuildError;
use super::structure::EXTERNAL;
use super::structure::Full;
use super::structure::Nat;
use super::structure::Size;
use super::workload::Packet;

/// The engine's tables for one worker.
pub(super) struct Natrix {
    tables: Tables,
}

impl Nat for Natrix {
    fn new(size: Size) -> Result<Natrix, BuildError> {
        let (first, idle) = (Ipv4Addr::from_bits(EXTERNAL), Duration::from_secs(300));
        Ok(Natrix { tables: Tables::new(size.sessions, first, [1, 2, 3, 4], idle)? })
    }

    #[inline]
    fn leave(&mut self, packets: &mut [Packet], now: u32) -> Result<(), Full> {
        let now = Instant::from_micros(u64::from(now));
        let mut looks = [None; BURST];
        for (packet, look) in packets.iter().zip(&mut looks) {
            let (address, port) = packet.source();
            *look = Some(self.tables.look_ahead(address, port));
        }
        for look in looks.iter_mut().flatten() {
            self.tables.look_closer(look);
        }
        for (packet, look) in packets.iter().zip(looks.iter_mut().flatten()) {
            self.tables.look_for_port(look, packet.source().0);
        }
        for (packet, look) in packets.iter_mut().zip(looks.iter().flatten()) {
            let (address, port) = packet.source();
            let external = self.tables.find_or_map(now, address, port, packet.destination(), look).ok_or(Full)?;
            packet.set_source(external);
        }
        Ok(())
    }

    #[inline]
    fn enter(&mut self, packets: &mut [Packet], now: u32) {
        let now = Instant::from_micros(u64::from(now));
        let (mut places, mut mappings) = ([None; BURST], [None; BURST]);
        for (packet, place) in packets.iter().zip(&mut places) {
            let (address, port) = packet.destination();
            *place = self.tables.look_ahead_inbound(address, port);
        }
        for (place, mapping) in places.iter().zip(&mut mappings) {
            *mapping = place.and_then(|place| self.tables.look_closer_inbound(place));
        }
        for (packet, mapping) in packets.iter_mut().zip(mappings) {
            if let Some(internal) = mapping.and_then(|index| self.tables.internal(now, index)) {
                packet.set_destination(internal);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.tables.bytes()
    }
}
