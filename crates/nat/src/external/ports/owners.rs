//! The worker and the mapping that own a port.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

use super::PORTS;
use super::PortTable;
use super::WITH_PORTS;
use super::WORDS;
use super::space;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

pub(super) const MAPPING_BITS: u32 = 26;

const _: () = assert!(MappingIndex::SHARED.0 + 256 == 1 << MAPPING_BITS, "a mapping index fits an entry");
const _: () = assert!(MappingIndex::COUNT_MAX < MappingIndex::SHARED.index(), "no mapping stands for shared ports");
const _: () = assert!(WorkerId::COUNT_MAX == 1 << (32 - MAPPING_BITS), "a worker fits an entry");

impl PortTable {
    /// Records the owner of a taken port.
    #[inline(always)]
    pub fn publish(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        worker: WorkerId,
        mapping: MappingIndex,
    ) {
        let entry = u32::from(worker.0) << MAPPING_BITS | mapping.0;
        self.entry(address, protocol, port).store(entry, Ordering::Release);
    }

    /// Owner of an external endpoint. One array read.
    #[inline]
    pub fn lookup(&self, address: AddressIndex, protocol: Protocol, port: u16) -> Option<(WorkerId, MappingIndex)> {
        let (worker, mapping) = self.lookup_at(self.place(address, protocol, port))?;
        // Only `sharing` uses the other bits.
        Some((worker, mapping.min(MappingIndex::SHARED)))
    }

    /// The owner; [`MappingIndex::is_shared`] if flows share the port.
    #[inline(always)]
    pub fn lookup_at(&self, place: usize) -> Option<(WorkerId, MappingIndex)> {
        let entry = match self.entries.get(place) {
            Some(entry) => entry.load(Ordering::Acquire),
            None => self.identifier_entry_at(place),
        };
        if entry == 0 {
            return None;
        }
        let mapping = MappingIndex(entry & ((1 << MAPPING_BITS) - 1));
        Some((WorkerId((entry >> MAPPING_BITS) as u8), mapping))
    }

    /// An entry of a query identifier. Its page exists only once something was written there.
    #[cold]
    fn identifier_entry_at(&self, place: usize) -> u32 {
        let (address, protocol, identifier) = self.endpoint_at(place);
        if address.index() >= self.places() {
            return 0;
        }
        let word = space(address, protocol) * WORDS + usize::from(identifier / 64);
        let is_free = !self.used[word].load(Ordering::SeqCst) | self.kept[word].load(Ordering::SeqCst);
        match is_free >> (identifier % 64) & 1 {
            0 => self.entry(address, protocol, identifier).load(Ordering::Acquire),
            _ => 0,
        }
    }

    /// Removes the owner; the port stays taken.
    #[inline]
    pub fn vacate(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        self.entry(address, protocol, port).store(0, Ordering::Release);
    }

    /// Index of an external endpoint, for [`PortTable::lookup_at`]: those with ports by address,
    /// then those with identifiers.
    #[inline(always)]
    pub fn place(&self, address: AddressIndex, protocol: Protocol, port: u16) -> usize {
        let at = match protocol {
            Protocol::Udp | Protocol::Tcp => address.index() * WITH_PORTS + protocol.index(),
            Protocol::Icmp => self.places() * WITH_PORTS + address.index(),
        };
        at * PORTS + usize::from(port)
    }

    /// The inverse of [`PortTable::place`].
    #[inline]
    pub fn endpoint_at(&self, place: usize) -> (AddressIndex, Protocol, u16) {
        let at = place / PORTS;
        let (address, protocol) = match at.checked_sub(self.places() * WITH_PORTS) {
            None if at % WITH_PORTS == Protocol::Udp.index() => (at / WITH_PORTS, Protocol::Udp),
            None => (at / WITH_PORTS, Protocol::Tcp),
            Some(address) => (address, Protocol::Icmp),
        };
        (AddressIndex(address as u32), protocol, (place % PORTS) as u16)
    }

    /// Prefetches for [`PortTable::lookup_at`].
    #[inline(always)]
    pub fn prefetch(&self, place: usize) {
        self.entries.prefetch(place);
    }

    /// Prefetches the bit of a [`PortTable::place`] for writing.
    #[inline]
    pub fn prefetch_bit(&self, place: usize) {
        const { assert!(PORTS / WORDS == 64, "a word has a bit for each port") };
        const { assert!(Protocol::COUNT == WITH_PORTS + 1, "identifiers follow two protocols with ports") };
        let at = place / PORTS;
        let base = match at.checked_sub(self.places() * WITH_PORTS) {
            None => at + at / WITH_PORTS,
            Some(address) => space(AddressIndex(address as u32), Protocol::Icmp),
        };
        self.used.prefetch_write(base * WORDS + place % PORTS / 64);
    }

    #[inline(always)]
    pub(super) fn entry(&self, address: AddressIndex, protocol: Protocol, port: u16) -> &AtomicU32 {
        let (address, port) = (address.index(), usize::from(port));
        match protocol {
            Protocol::Udp | Protocol::Tcp => &self.entries[(address * WITH_PORTS + protocol.index()) * PORTS + port],
            Protocol::Icmp => &self.identifiers[address * PORTS + port],
        }
    }
}
