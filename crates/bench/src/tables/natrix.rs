//! `natrix`: the engine's own tables, used as the engine uses them: in bursts, each line asked for before it is needed, and
//! while one pass waits for the lines of some packets the next pass takes those before them.
//!
//! Outbound a table of tags leads to a mapping record of one cache line; inbound an array indexed by external endpoint leads
//! to the same record. Ports are drawn at random among the free ones. The record holds what the paper leaves out: realm,
//! protocol, TCP state, sequence numbers, remote endpoint and the session's own end.

use core::net::Ipv4Addr;
use core::ops::Range;

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

/// Packets a pass takes at once, as in the engine: more lines on their way than a core has room for are lost.
const CHUNK: usize = 8;

/// The packets that a pass takes in this turn, of `count`.
#[inline(always)]
fn chunk(turn: usize, pass: usize, count: usize) -> Range<usize> {
    match turn.checked_sub(pass) {
        Some(chunk) => (chunk * CHUNK).min(count)..((chunk + 1) * CHUNK).min(count),
        None => 0..0,
    }
}

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
        let count = packets.len().min(BURST);
        let mut looks = [None; BURST];
        for turn in 0..count.div_ceil(CHUNK) + 3 {
            for i in chunk(turn, 0, count) {
                let (address, port) = packets[i].source();
                looks[i] = Some(self.tables.look_ahead(address, port));
            }
            for look in looks[chunk(turn, 1, count)].iter_mut().flatten() {
                self.tables.look_closer(look);
            }
            for i in chunk(turn, 2, count) {
                if let Some(look) = &mut looks[i] {
                    self.tables.look_for_port(look, packets[i].source().0);
                }
            }
            for i in chunk(turn, 3, count) {
                let (packet, look) = (&mut packets[i], looks[i].as_ref().ok_or(Full)?);
                let (address, port) = packet.source();
                let external = self.tables.find_or_map(now, address, port, packet.destination(), look).ok_or(Full)?;
                packet.set_source(external);
            }
        }
        Ok(())
    }

    #[inline]
    fn enter(&mut self, packets: &mut [Packet], now: u32) {
        let now = Instant::from_micros(u64::from(now));
        let count = packets.len().min(BURST);
        let (mut places, mut mappings) = ([None; BURST], [None; BURST]);
        for turn in 0..count.div_ceil(CHUNK) + 2 {
            for i in chunk(turn, 0, count) {
                let (address, port) = packets[i].destination();
                places[i] = self.tables.look_ahead_inbound(address, port);
            }
            for i in chunk(turn, 1, count) {
                mappings[i] = places[i].and_then(|place| self.tables.look_closer_inbound(place));
            }
            for i in chunk(turn, 2, count) {
                if let Some(internal) = mappings[i].and_then(|index| self.tables.internal(now, index)) {
                    packets[i].set_destination(internal);
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        self.tables.bytes()
    }
}
