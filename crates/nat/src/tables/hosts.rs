//! Two ways from an IPv6 host to its mappings and back, and IPv4, for the benchmark that compares
//! them (ADR 19).
//!
//! ```text
//!   ByNumber   address ─ hash ─► host record: number     (number, port) ─ hash ─► mapping
//!              mapping: number ─► host record: address
//!   SideLines  (address, port) ─ hash ─► mapping and side line, both compared
//!              mapping and side line: address
//! ```
//!
//! Each pass over a burst requests what the next one reads.

use core::net::Ipv4Addr;

use mem::Arena;
use mem::ArenaError;
use mem::FromZeros;

use super::Look;
use super::Tables;
use crate::random::KeyedHash;
use crate::state::host::HostKey;
use crate::state::host::HostStore;
use crate::state::host::Way;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::HOSTS_FIRST;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::WorkerId;

#[cfg(test)]
mod tests;

/// Packets of a burst.
pub const BURST: usize = 64;

/// Internal endpoint. IPv4 addresses are those below 2^32.
pub type Inside = (u128, u16);
/// External endpoint.
pub type Outside = (u32, u16);

const REMOTE: Outside = (0xc612_0001, 53);
const IDLE: Duration = Duration::from_secs(300);
const FIRST: Ipv4Addr = Ipv4Addr::new(203, 0, 0, 0);
const PREFIX_LENGTH: u8 = 56;
/// In a mapping: the side line has the address.
const IN_SIDE_LINE: u32 = HOSTS_FIRST;

/// A table of mappings.
pub trait Mappings: Sized {
    /// An empty table. `random` seeds hashes and ports.
    ///
    /// # Errors
    /// Memory is short.
    fn new(mappings_max: u32, hosts_max: u32, random: [u64; 4]) -> Result<Self, ArenaError>;

    /// Bytes of all tables.
    fn bytes(&self) -> usize;

    /// Translates a burst from inside, making missing mappings. `None` if there is no room.
    fn leave(&mut self, now: Instant, burst: &[Inside; BURST]) -> Option<[Outside; BURST]>;

    /// Translates a burst from outside. `None` if one has no mapping.
    fn enter(&mut self, now: Instant, burst: &[Outside; BURST]) -> Option<[Inside; BURST]>;
}

const NO_LOOK: Look = Look { hash: 0, record: 0, goes_on: false, aim: None };

fn tables(mappings_max: u32, random: [u64; 4]) -> Result<Tables, ArenaError> {
    Tables::new(mappings_max, FIRST, random, IDLE)
}

/// IPv4 hosts only, as the engine does it.
pub struct Ipv4Only {
    tables: Tables,
}

impl Mappings for Ipv4Only {
    fn new(mappings_max: u32, _: u32, random: [u64; 4]) -> Result<Ipv4Only, ArenaError> {
        Ok(Ipv4Only { tables: tables(mappings_max, random)? })
    }

    fn bytes(&self) -> usize {
        self.tables.bytes()
    }

    #[inline(never)]
    fn leave(&mut self, now: Instant, burst: &[Inside; BURST]) -> Option<[Outside; BURST]> {
        let numbered = burst.map(|(address, port)| (address as u32, port));
        let mut looks = numbered.map(|(address, port)| self.tables.look_ahead(address, port));
        leave_numbered(&mut self.tables, now, &numbered, &mut looks)
    }

    #[inline(never)]
    fn enter(&mut self, now: Instant, burst: &[Outside; BURST]) -> Option<[Inside; BURST]> {
        let records = records_of(&self.tables, burst)?;
        let mut inside = [(0, 0); BURST];
        for (record, inside) in records.iter().zip(&mut inside) {
            let (address, port) = self.tables.internal(now, *record)?;
            *inside = (address.into(), port);
        }
        Some(inside)
    }
}

/// The later passes, for 32-bit addresses or numbers.
#[inline(always)]
fn leave_numbered(
    tables: &mut Tables,
    now: Instant,
    burst: &[(u32, u16); BURST],
    looks: &mut [Look; BURST],
) -> Option<[Outside; BURST]> {
    for look in looks.iter_mut() {
        tables.look_closer(look);
    }
    for (look, (address, _)) in looks.iter_mut().zip(burst) {
        tables.look_for_port(look, *address);
    }
    let mut outside = [(0, 0); BURST];
    for ((look, (address, port)), outside) in looks.iter().zip(burst).zip(&mut outside) {
        *outside = tables.find_or_map(now, *address, *port, REMOTE, look)?;
    }
    Some(outside)
}

/// Reads the lines, and requests the records.
#[inline(always)]
fn records_of(tables: &Tables, burst: &[Outside; BURST]) -> Option<[u32; BURST]> {
    let mut places = [0; BURST];
    for ((address, port), place) in burst.iter().zip(&mut places) {
        *place = tables.look_ahead_inbound(*address, *port)?;
    }
    let mut records = [0; BURST];
    for (place, record) in places.iter().zip(&mut records) {
        *record = tables.look_closer_inbound(*place)?;
    }
    Some(records)
}

/// As in the engine: a number stands for the host's address in mappings.
pub struct ByNumber {
    tables: Tables,
    hosts: HostStore,
}

fn key_of(address: u128) -> HostKey {
    HostKey { address, inner: 0, way: Way::Nat64(0) }
}

impl ByNumber {
    #[cold]
    #[inline(never)]
    fn number_of_other(&mut self, now: Instant, hash: u64, key: &HostKey) -> Option<HostNumber> {
        if let Some(number) = self.hosts.enter_known(now, hash, &key.words()) {
            return Some(number);
        }
        let number = self.hosts.enter(now, hash, key, RealmId(0)).ok()?;
        self.hosts.retain(number);
        Some(number)
    }
}

impl Mappings for ByNumber {
    fn new(mappings_max: u32, hosts_max: u32, random: [u64; 4]) -> Result<ByNumber, ArenaError> {
        // Subscribers have records, too.
        let records = hosts_max.saturating_mul(2);
        let hosts = HostStore::new(records, (PREFIX_LENGTH, u32::MAX), (WorkerId(0), 1), KeyedHash::new(random))?;
        Ok(ByNumber { tables: tables(mappings_max, random)?, hosts })
    }

    fn bytes(&self) -> usize {
        self.tables.bytes() + self.hosts.bytes()
    }

    #[inline(never)]
    fn leave(&mut self, now: Instant, burst: &[Inside; BURST]) -> Option<[Outside; BURST]> {
        let mut looks = [(0, 0); BURST];
        for ((address, _), (hash, _)) in burst.iter().zip(&mut looks) {
            *hash = self.hosts.hash_of(&key_of(*address));
            self.hosts.prefetch(*hash);
        }
        for (hash, candidate) in &mut looks {
            *candidate = self.hosts.aim(*hash);
        }
        let mut numbered = [(0, 0); BURST];
        let mut in_tables = [NO_LOOK; BURST];
        for (i, (address, port)) in burst.iter().enumerate() {
            let key = key_of(*address);
            let (hash, candidate) = looks[i];
            let number = match self.hosts.enter_expected(now, candidate, key.words()) {
                Some(number) => number,
                None => self.number_of_other(now, hash, &key)?,
            };
            numbered[i] = (number.0, *port);
            in_tables[i] = self.tables.look_ahead(number.0, *port);
        }
        leave_numbered(&mut self.tables, now, &numbered, &mut in_tables)
    }

    #[inline(never)]
    fn enter(&mut self, now: Instant, burst: &[Outside; BURST]) -> Option<[Inside; BURST]> {
        let records = records_of(&self.tables, burst)?;
        let mut internal = [(0, 0); BURST];
        for (record, (place, internal_port)) in records.iter().zip(&mut internal) {
            let (number, port) = self.tables.internal(now, *record)?;
            (*place, *internal_port) = (self.hosts.aim_at_number(HostNumber(number)), port);
        }
        let mut inside = [(0, 0); BURST];
        for ((place, port), inside) in internal.iter().zip(&mut inside) {
            *inside = (self.hosts.at_place(*place)?.address(), *port);
        }
        Some(inside)
    }
}

#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct SideLine {
    high: u64,
    low: u64,
}

const _: () = assert!(size_of::<SideLine>() == 16, "four side lines are one cache line");

impl SideLine {
    const fn of(address: u128) -> SideLine {
        SideLine { high: (address >> 64) as u64, low: address as u64 }
    }

    const fn address(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    #[inline(always)]
    const fn is(self, address: u128) -> bool {
        (self.high ^ (address >> 64) as u64) | (self.low ^ address as u64) == 0
    }
}

/// Mappings of IPv6 hosts have all 128 bits in a side line, and each packet asks which sort its
/// host is.
pub struct SideLines {
    tables: Tables,
    lines: Arena<SideLine>,
}

#[inline(always)]
fn in_mapping(address: u128) -> u32 {
    u32::try_from(address).unwrap_or(IN_SIDE_LINE)
}

impl SideLines {
    #[inline(always)]
    fn look_ahead(&self, (address, port): Inside) -> Look {
        if let Ok(address) = u32::try_from(address) {
            return self.tables.look_ahead(address, port);
        }
        // In two rounds: a host chooses low bits and port, and so could choose a sum of both.
        let by_host = self.tables.hash.hash((address >> 64) as u64, address as u64);
        let hash = self.tables.hash.hash(by_host, u64::from(port) << 8 | Protocol::Udp as u64);
        self.tables.outbound.prefetch(hash);
        Look { hash, ..NO_LOOK }
    }

    #[inline(always)]
    fn find_or_map(&mut self, now: Instant, (address, port): Inside, look: &Look) -> Option<Outside> {
        let stands_for = in_mapping(address);
        let is_ipv4 = stands_for != IN_SIDE_LINE;
        let lines = &self.lines;
        let is_it = |index| is_ipv4 || lines.at(index).is(address);
        if let Some(external) = self.tables.find(now, stands_for, port, look.hash, is_it) {
            return Some(external);
        }
        let (index, external) = self.tables.map(now, (stands_for, port), REMOTE, look, subscriber_of(address))?;
        if !is_ipv4 {
            *self.lines.at_mut(index) = SideLine::of(address);
        }
        Some(external)
    }
}

/// Chooses the external address, common to all hosts of a subscriber.
#[inline(always)]
fn subscriber_of(address: u128) -> u32 {
    if in_mapping(address) == IN_SIDE_LINE { (address >> 72) as u32 } else { address as u32 }
}

impl Mappings for SideLines {
    fn new(mappings_max: u32, _: u32, random: [u64; 4]) -> Result<SideLines, ArenaError> {
        Ok(SideLines { tables: tables(mappings_max, random)?, lines: Arena::zeroed(mappings_max as usize + 1)? })
    }

    fn bytes(&self) -> usize {
        self.tables.bytes() + self.lines.bytes()
    }

    #[inline(never)]
    fn leave(&mut self, now: Instant, burst: &[Inside; BURST]) -> Option<[Outside; BURST]> {
        let mut looks = burst.map(|inside| self.look_ahead(inside));
        for (look, (address, _)) in looks.iter_mut().zip(burst) {
            self.tables.look_closer(look);
            if in_mapping(*address) == IN_SIDE_LINE {
                self.lines.prefetch(look.record as usize);
            }
        }
        for (look, (address, _)) in looks.iter_mut().zip(burst) {
            self.tables.look_for_port(look, subscriber_of(*address));
        }
        let mut outside = [(0, 0); BURST];
        for ((look, inside), outside) in looks.iter().zip(burst).zip(&mut outside) {
            *outside = self.find_or_map(now, *inside, look)?;
        }
        Some(outside)
    }

    #[inline(never)]
    fn enter(&mut self, now: Instant, burst: &[Outside; BURST]) -> Option<[Inside; BURST]> {
        let records = records_of(&self.tables, burst)?;
        // The record shows if there is a side line, but was requested just above.
        for record in records {
            self.lines.prefetch(record as usize);
        }
        let mut inside = [(0, 0); BURST];
        for (record, inside) in records.iter().zip(&mut inside) {
            let (stands_for, port) = self.tables.internal(now, *record)?;
            let address = match stands_for {
                IN_SIDE_LINE => self.lines.at(*record).address(),
                ipv4 => ipv4.into(),
            };
            *inside = (address, port);
        }
        Some(inside)
    }
}
