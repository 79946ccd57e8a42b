//! The engine's tables alone, for the benchmark that compares structures: mappings, ports and hash
//! of a [`Shard`](crate::Shard), without subscribers, filters, TCP states, sweeping or counters.

use core::net::Ipv4Addr;

use mem::ArenaError;

use crate::external::ports::AddressSpec;
use crate::external::ports::PortAim;
use crate::external::ports::PortClass;
use crate::external::ports::PortTable;
use crate::random::KeyedHash;
use crate::random::Random;
use crate::state::mapping::InternalKey;
use crate::state::mapping::MappingStore;
use crate::state::mapping::NewSession;
use crate::state::table::BucketTable;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;

pub mod hosts;

#[cfg(test)]
mod tests;

const WORKER: WorkerId = WorkerId(0);
const CLASS: PortClass = PortClass::High;

/// Progress of a packet from inside.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    hash: u64,
    /// Candidate mapping, 0 for none.
    record: u32,
    /// The candidate may be in a further line.
    goes_on: bool,
    aim: Option<PortAim>,
}

/// One worker's UDP mappings.
pub struct Tables {
    outbound: BucketTable,
    mappings: MappingStore,
    ports: PortTable,
    hash: KeyedHash,
    random: Random,
    /// Lowest external address; the others follow it.
    first_address: u32,
    addresses: u32,
    idle: Duration,
}

impl Tables {
    /// External addresses run from `first`. `random` seeds hash and ports.
    pub fn new(mappings_max: u32, first: Ipv4Addr, random: [u64; 4], idle: Duration) -> Result<Tables, ArenaError> {
        let spec = AddressSpec { port_min: 1_024, port_max: u16::MAX, reserved: Vec::new(), ..AddressSpec::default() };
        // A quarter more ports than mappings, so that subscribers nearly always keep their address.
        let ports = u64::from(mappings_max) * 5 / 4;
        let addresses = ports.div_ceil(u64::from(spec.port_max - spec.port_min) + 1) as u32 + 1;
        Ok(Tables {
            outbound: BucketTable::with_capacity(mappings_max as usize)?,
            mappings: MappingStore::new(mappings_max)?,
            ports: PortTable::new(&vec![spec; addresses as usize])?.for_one_worker(),
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

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.mappings.len() as usize
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First step from inside: prefetches the table's line.
    #[inline(always)]
    pub fn look_ahead(&self, address: u32, port: u16) -> Look {
        let hash = self.hash.hash(u64::from(address) << 16 | u64::from(port), Protocol::Udp as u64);
        self.outbound.prefetch(hash);
        Look { hash, record: 0, goes_on: false, aim: None }
    }

    /// Second step: prefetches the record or the next line.
    #[inline(always)]
    pub fn look_closer(&self, look: &mut Look) {
        (look.record, look.goes_on) = self.outbound.candidate(look.hash);
        self.mappings.prefetch_write(look.record);
        if look.goes_on {
            self.outbound.prefetch_next(look.hash);
        }
    }

    /// Third step: reads further lines, and prefetches a new mapping's port.
    #[inline(always)]
    pub fn look_for_port(&mut self, look: &mut Look, address: u32) {
        if look.goes_on {
            look.record = self.outbound.first_candidate(look.hash).unwrap_or(0);
            self.mappings.prefetch_write(look.record);
        }
        if look.record == 0 {
            let home = self.home(address);
            look.aim = self.ports.aim(home, Protocol::Udp, CLASS, WORKER, 1, &mut self.random);
            if let Some(aim) = look.aim {
                let place = self.ports.place(home, Protocol::Udp, aim.port());
                self.ports.prefetch_bit(place);
                self.ports.prefetch(place);
            }
        }
    }

    /// Last step: refreshes or makes the mapping, and returns its external endpoint.
    #[inline]
    pub fn find_or_map(
        &mut self,
        now: Instant,
        address: u32,
        port: u16,
        remote: (u32, u16),
        look: &Look,
    ) -> Option<(u32, u16)> {
        match self.find(now, address, port, look.hash, |_| true) {
            Some(external) => Some(external),
            None => self.map(now, (address, port), remote, look, address).map(|(_, external)| external),
        }
    }

    #[inline(always)]
    fn find(
        &mut self,
        now: Instant,
        address: u32,
        port: u16,
        hash: u64,
        is_it: impl Fn(u32) -> bool,
    ) -> Option<(u32, u16)> {
        let internal =
            InternalKey { realm: RealmId(0), protocol: Protocol::Udp, address: HostNumber(address), port }.word();
        let is_it = |index| self.mappings.get(index).matches(internal) && is_it(index);
        let index = self.outbound.find(hash, is_it)?;
        let mapping = self.mappings.get_mut(index);
        mapping.extend_session(now + self.idle);
        Some((mapping.external_address, mapping.external_port()))
    }

    #[inline(always)]
    fn map(
        &mut self,
        now: Instant,
        (address, port): (u32, u16),
        remote: (u32, u16),
        look: &Look,
        subscriber: u32,
    ) -> Option<(u32, (u32, u16))> {
        if self.mappings.is_full() {
            return None;
        }
        let key = InternalKey { realm: RealmId(0), protocol: Protocol::Udp, address: HostNumber(address), port };
        let expires = now + self.idle;
        let (index, port) = self.take_port(subscriber, look.aim)?;
        let external = Endpoint::new(Ipv4Addr::from_bits(self.first_address + index.0), port);
        let session = NewSession {
            remote_address: remote.0,
            remote_port: remote.1,
            state: TcpState::Established,
            opened_from: Side::Inside,
            hairpin: false,
            has_own_timer: false,
            expires,
        };
        let mapping = self.mappings.insert(&key, 0, external, now, &session)?;
        // Has room whenever the records have.
        self.outbound.insert(look.hash, mapping.0).ok()?;
        self.ports.publish(index, Protocol::Udp, port, WORKER, mapping);
        Some((mapping.0, (external.address.to_bits(), port)))
    }

    /// A shard keeps it in the subscriber's record.
    #[inline(always)]
    fn home(&self, subscriber: u32) -> AddressIndex {
        AddressIndex(((u64::from(subscriber.wrapping_mul(0x9e37_79b9)) * u64::from(self.addresses)) >> 32) as u32)
    }

    fn take_port(&mut self, subscriber: u32, aim: Option<PortAim>) -> Option<(AddressIndex, u16)> {
        let home = self.home(subscriber);
        if let Some(port) = aim.and_then(|aim| self.ports.allocate_near(home, Protocol::Udp, None, aim)) {
            return Some((home, port));
        }
        (0..self.addresses).find_map(|step| {
            let index = AddressIndex((home.0 + step) % self.addresses);
            let taken = self.ports.allocate(index, Protocol::Udp, CLASS, None, WORKER, 1, &mut self.random);
            taken.map(|port| (index, port))
        })
    }

    fn index_of(&self, address: u32) -> Option<AddressIndex> {
        let offset = address.wrapping_sub(self.first_address);
        (offset < self.addresses).then_some(AddressIndex(offset))
    }

    /// First step from outside: prefetches the port's entry and returns its place.
    #[inline(always)]
    pub fn look_ahead_inbound(&self, address: u32, port: u16) -> Option<usize> {
        let place = self.ports.place(self.index_of(address)?, Protocol::Udp, port);
        self.ports.prefetch(place);
        Some(place)
    }

    /// Second step: prefetches the record and returns its index.
    #[inline(always)]
    pub fn look_closer_inbound(&self, place: usize) -> Option<u32> {
        let (_, mapping) = self.ports.lookup_at(place)?;
        self.mappings.prefetch_write(mapping.0);
        Some(mapping.0)
    }

    /// Last step: refreshes the mapping, and returns its internal endpoint unless expired.
    #[inline(always)]
    pub fn internal(&mut self, now: Instant, index: u32) -> Option<(u32, u16)> {
        let expires = now + self.idle;
        let mapping = self.mappings.get_mut(index);
        if !mapping.is_alive(now) {
            return None;
        }
        mapping.extend_session(expires);
        Some((mapping.internal_address().0, mapping.internal_port()))
    }
}
