//! The tables of the engine without the engine: for the benchmark that sets them beside other structures.
//!
//! Mappings, ports and the hash are those a [`Shard`](crate::Shard) uses, in its order: prefetch the table line, then
//! the record, then decide. What is missing is everything else a shard does: parsing, filters, TCP states, routes,
//! fragments, sweeping, counters.

use core::net::Ipv4Addr;

use mem::ArenaError;

use crate::mapping::InternalKey;
use crate::mapping::MappingStore;
use crate::mapping::NewSession;
use crate::ports::AddressSpec;
use crate::ports::PortClass;
use crate::ports::PortTable;
use crate::random::KeyedHash;
use crate::random::Random;
use crate::table::BucketTable;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;

#[cfg(test)]
mod tests;

/// The only worker there is here.
const WORKER: WorkerId = WorkerId(0);

/// The mappings of UDP of one worker, found from either side. Owned by one thread.
pub struct Tables {
    outbound: BucketTable,
    mappings: MappingStore,
    ports: PortTable,
    hash: KeyedHash,
    random: Random,
    /// The first external address; the others follow it.
    first_address: u32,
    addresses: u32,
    idle: Duration,
}

impl Tables {
    /// Room for `mappings_max` mappings, on external addresses that follow each other from `first` on. `random` seeds
    /// hash and ports, `idle` is how long a mapping lives without packets.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(mappings_max: u32, first: Ipv4Addr, random: [u64; 4], idle: Duration) -> Result<Tables, ArenaError> {
        let spec = AddressSpec { port_min: 1_024, port_max: u16::MAX, reserved: Vec::new() };
        // A quarter more ports than mappings, so that subscribers nearly always stay with their address.
        let ports = u64::from(mappings_max) * 5 / 4;
        let addresses = ports.div_ceil(u64::from(spec.port_max - spec.port_min) + 1) as u32 + 1;
        Ok(Tables {
            outbound: BucketTable::with_capacity(mappings_max as usize)?,
            mappings: MappingStore::new(mappings_max)?,
            ports: PortTable::new(&vec![spec; addresses as usize])?,
            hash: KeyedHash::new(random),
            random: Random::new(random),
            first_address: first.to_bits(),
            addresses,
            idle,
        })
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.outbound.bytes() + self.mappings.bytes() + self.ports.bytes()
    }

    /// Mappings there are.
    pub fn len(&self) -> usize {
        self.mappings.len() as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What [`Tables::find_or_map`] finds an internal endpoint by. Asks for the table's line.
    #[inline]
    pub fn look_ahead(&self, address: u32, port: u16) -> u64 {
        let hash = self.hash.hash(u64::from(address) << 16 | u64::from(port), Protocol::Udp as u64);
        self.outbound.prefetch(hash);
        hash
    }

    /// Second step: asks for the record, when there is one.
    #[inline]
    pub fn look_closer(&self, hash: u64) {
        if let Some(index) = self.outbound.first_candidate(hash) {
            self.mappings.prefetch(index);
        }
    }

    /// Last step: the external endpoint of an internal one, of a new mapping if it has none, its life begun anew.
    /// None when there is no room or no port.
    #[inline]
    pub fn find_or_map(
        &mut self,
        now: Instant,
        address: u32,
        port: u16,
        remote: (u32, u16),
        hash: u64,
    ) -> Option<(u32, u16)> {
        let key = InternalKey { realm: RealmId(0), protocol: Protocol::Udp, address, port };
        let expires = now + self.idle;
        if let Some(index) = self.outbound.find(hash, |index| self.mappings.get(index).matches(&key)) {
            let mapping = self.mappings.get_mut(index);
            mapping.refresh_session(TcpState::Transitory, expires);
            return Some((mapping.external_address, mapping.external_port));
        }
        if self.mappings.is_full() {
            return None;
        }
        let (index, port) = self.take_port(address)?;
        let external = Endpoint::new(Ipv4Addr::from_bits(self.first_address + index.0), port);
        let mapping = self.mappings.insert(&key, external, now)?;
        self.mappings.get_mut(mapping.0).set_inline_session(&NewSession {
            remote_address: remote.0,
            remote_port: remote.1,
            state: TcpState::Transitory,
            opened_from: Side::Inside,
            hairpin: false,
            expires,
        });
        // Has room whenever the records have.
        self.outbound.insert(hash, mapping.0).ok()?;
        self.ports.publish(index, Protocol::Udp, port, WORKER, mapping);
        Some((external.address.to_bits(), port))
    }

    /// A free port of the subscriber's address, or of the next one that has any.
    fn take_port(&mut self, subscriber: u32) -> Option<(AddressIndex, u16)> {
        let home = (u64::from(subscriber.wrapping_mul(0x9e37_79b9)) * u64::from(self.addresses)) >> 32;
        (0..self.addresses).find_map(|step| {
            let index = AddressIndex((home as u32 + step) % self.addresses);
            let taken = self.ports.allocate(index, Protocol::Udp, PortClass::High, None, WORKER, 1, &mut self.random);
            taken.map(|port| (index, port))
        })
    }

    fn index_of(&self, address: u32) -> Option<AddressIndex> {
        let offset = address.wrapping_sub(self.first_address);
        (offset < self.addresses).then_some(AddressIndex(offset))
    }

    /// First step for a packet from outside: asks for the port's entry.
    #[inline]
    pub fn look_ahead_inbound(&self, address: u32, port: u16) {
        if let Some(index) = self.index_of(address) {
            self.ports.prefetch(index, Protocol::Udp, port);
        }
    }

    /// Second step: reads the entry and asks for the record.
    #[inline]
    pub fn look_closer_inbound(&self, address: u32, port: u16) -> Option<u32> {
        let (_, mapping) = self.ports.lookup(self.index_of(address)?, Protocol::Udp, port)?;
        self.mappings.prefetch(mapping.0);
        Some(mapping.0)
    }

    /// Last step: the internal endpoint of the mapping that the entry names, its life begun anew. None when it has run out.
    #[inline]
    pub fn internal(&mut self, now: Instant, index: u32) -> Option<(u32, u16)> {
        let expires = now + self.idle;
        let mapping = self.mappings.get_mut(index);
        if !mapping.is_alive(now) {
            return None;
        }
        mapping.refresh_session(TcpState::Transitory, expires);
        Some((mapping.internal_address, mapping.internal_port))
    }
}
