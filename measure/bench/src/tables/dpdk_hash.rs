//! `dpdk-hash`: DPDK's `rte_hash`, a cuckoo hash table made for packet processing (the paper's
//! outlook: "for example cuckoo hashing").
//!
//! Used in bursts as DPDK means it: one bulk lookup, which asks for all lines ahead, then the new
//! keys one by one. It finds a position for each key; an array leads from there to the number. It
//! gets an eighth more room than there are flows, for a cuckoo table refuses the last few per cent.

use mem::Arena;
use packet_io::dpdk::hash::DpdkHash;

use super::structure::BURST;
use super::structure::BuildError;
use super::structure::Full;
use super::structure::Nat;
use super::structure::Size;
use super::structure::Translations;
use super::structure::key_of;
use super::workload::Packet;

/// From key to position, and on to the number.
pub(super) struct DpdkTable {
    hash: DpdkHash,
    /// Number by position, plus one; 0: the position is free.
    numbers: Arena<u32>,
    translations: Translations,
}

/// Keys to make room for.
fn entries(sessions: u32) -> u32 {
    (sessions + sessions / 8).max(64)
}

/// Memory DPDK needs for a table: buckets of 64 bytes for 8 keys, a power of two of them, 16 bytes
/// for each key, and a ring of free positions; half of it again for its own rounding.
pub(super) fn memory_bytes(sessions: u32) -> u64 {
    let entries = u64::from(entries(sessions));
    let table = entries.next_power_of_two() * (64 / 8 + 4) + entries * 16;
    table + table / 2 + (16 << 20)
}

impl Nat for DpdkTable {
    fn new(size: Size) -> Result<DpdkTable, BuildError> {
        let entries = entries(size.sessions);
        let hash = DpdkHash::new(entries).map_err(|reason| {
            BuildError::Dpdk(format!("dpdk-hash: no table of {entries} entries ({reason}); lower --sessions"))
        })?;
        // Positions are below the entries and those held back in each thread's cache, of which
        // there are none here.
        let numbers = Arena::zeroed(entries as usize + 1)?;
        Ok(DpdkTable { hash, numbers, translations: Translations::new(size.sessions)? })
    }

    #[inline]
    fn leave(&mut self, packets: &mut [Packet], now: u32) -> Result<(), Full> {
        let (mut keys, mut positions) = ([0; BURST], [-1; BURST]);
        for (packet, key) in packets.iter().zip(&mut keys) {
            *key = key_of(packet.source());
        }
        self.hash.find_or_add(&keys[..packets.len().min(BURST)], &mut positions);
        for (packet, position) in packets.iter_mut().zip(positions) {
            let position = usize::try_from(position).map_err(|_| Full)?;
            let known = self.numbers.get_mut(position).ok_or(Full)?;
            let number = match *known {
                0 => self.translations.next_free().ok_or(Full)?,
                known => known - 1,
            };
            *known = number + 1;
            self.translations.leave(packet, number, now);
        }
        Ok(())
    }

    #[inline]
    fn enter(&mut self, packets: &mut [Packet], now: u32) {
        for packet in packets {
            self.translations.enter(packet, now);
        }
    }

    fn bytes(&self) -> usize {
        self.hash.bytes() as usize + self.numbers.bytes() + self.translations.bytes()
    }
}
