//! IPv4 identification behind a shared external address (RFC 7857 §10).
//!
//! Non-atomic datagrams (fragments, or DF clear) need a value unique for source, destination and
//! protocol while one may live. Subscribers choose theirs independently, so the translator must
//! assign it (RFC 6864 §5.3.1).
//!
//! A keyed hash of the three selects a counter; flows that share one still get different values.
//! Worker `w` of `W`, rounded up to a power of two, uses values ≡ `w` modulo `W`, so workers with a
//! common address cannot collide.

use core::net::Ipv4Addr;

use crate::random::KeyedHash;
use crate::types::RealmId;
use crate::types::WorkerId;

#[cfg(test)]
mod tests;

/// Counters of a worker: 32 KiB, and a power of two.
const COUNTERS: usize = 16_384;

/// Counters for fragments of IPv6: 16 KiB, and a power of two.
const COUNTERS6: usize = 4_096;

/// Assigns identifications of fragmented packets to IPv6 nodes (RFC 7739 §5.3): a node that gets
/// some of them cannot guess those of others.
#[derive(Debug)]
pub(crate) struct Identifications6 {
    counters: Box<[u32]>,
    hash: KeyedHash,
}

impl Identifications6 {
    /// `hash` must have its own secret. Without hosts, nothing is allocated.
    pub(crate) fn new(hash: KeyedHash, has_hosts: bool) -> Identifications6 {
        let count = if has_hosts { COUNTERS6 as u64 } else { 0 };
        let counters: Vec<u32> = (0..count).map(|i| hash.hash(i, u64::MAX) as u32).collect();
        Identifications6 { counters: counters.into_boxed_slice(), hash }
    }

    fn hash_of(&self, realm: RealmId, destination: u128) -> u64 {
        let high = (destination >> 64) as u64 ^ u64::from(realm.0).rotate_right(16);
        self.hash.hash(high, destination as u64)
    }

    /// The next identification of packets to this node.
    pub(crate) fn next(&self, realm: RealmId, destination: u128) -> u32 {
        let hash = self.hash_of(realm, destination);
        let counter = self.counters.get(hash as usize & (COUNTERS6 - 1)).copied().unwrap_or(0);
        // Nodes that share a counter begin at different values.
        counter.wrapping_add((hash >> 32) as u32)
    }

    /// Call it after the next identification was used.
    pub(crate) fn advance(&mut self, realm: RealmId, destination: u128) {
        let hash = self.hash_of(realm, destination);
        if let Some(counter) = self.counters.get_mut(hash as usize & (COUNTERS6 - 1)) {
            *counter = counter.wrapping_add(1);
        }
    }
}

/// Assigns identifications for one worker.
#[derive(Debug)]
pub struct IdentificationSource {
    counters: Box<[u16; COUNTERS]>,
    worker: u16,
    /// log2 of the workers, rounded up.
    shift: u32,
    hash: KeyedHash,
}

impl IdentificationSource {
    /// `hash` must have its own secret. Counters start at random: predictable values let others
    /// count a host's packets (RFC 7739 §3).
    pub fn new(worker: WorkerId, workers: usize, hash: KeyedHash) -> IdentificationSource {
        let workers = workers.clamp(1, WorkerId::COUNT_MAX).next_power_of_two();
        let mut counters = Box::new([0; COUNTERS]);
        for (counter, i) in counters.iter_mut().zip(0..) {
            *counter = hash.hash(i, 1) as u16;
        }
        IdentificationSource {
            counters,
            worker: u16::from(worker.0) & (workers as u16 - 1),
            shift: workers.trailing_zeros(),
            hash,
        }
    }

    /// The next identification for a datagram from an external address.
    #[inline(never)]
    pub fn next(&mut self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8) -> u16 {
        self.next_inline(source, destination, protocol)
    }

    #[inline(always)]
    pub(crate) fn next_inline(&mut self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8) -> u16 {
        let addresses = u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits());
        let hash = self.hash.hash(addresses, u64::from(protocol) << 8);
        let counter = &mut self.counters[hash as usize % COUNTERS];
        *counter = counter.wrapping_add(1);
        *counter << self.shift | self.worker
    }
}
