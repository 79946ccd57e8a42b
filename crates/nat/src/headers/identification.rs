//! IPv4 identification of datagrams that leave with a shared external address (RFC 7857 §10).
//!
//! The identification of non-atomic datagrams (fragments, or DF clear) must be unique for source,
//! destination and protocol while one may live, and a translator is their source (RFC 6864 §5.3.1).
//! Subscribers choose theirs independently, so Natrix chooses new ones.
//!
//! Counters are indexed by a keyed hash of the three; flows that share a counter still get
//! different values. Worker `w` of `W` only uses values ≡ `w` modulo `W` (rounded up to a power of
//! two), so that workers with a common address cannot collide.

use core::net::Ipv4Addr;

use crate::random::KeyedHash;
use crate::types::WorkerId;

#[cfg(test)]
mod tests;

/// Counters of a worker: 32 KiB, and a power of two.
const COUNTERS: usize = 16_384;

/// Assigns identifications for one worker.
#[derive(Debug)]
pub struct IdentificationSource {
    counters: Box<[u16]>,
    worker: u16,
    /// Workers, rounded up to a power of two, as a shift.
    shift: u32,
    hash: KeyedHash,
}

impl IdentificationSource {
    /// `hash` must have its own secret. Counters start at random, because predictable
    /// identifications let others count a host's packets (RFC 7739 §3).
    pub fn new(worker: WorkerId, workers: usize, hash: KeyedHash) -> IdentificationSource {
        let workers = workers.clamp(1, WorkerId::COUNT_MAX).next_power_of_two();
        let counters: Vec<u16> = (0..COUNTERS as u64).map(|i| hash.hash(i, 1) as u16).collect();
        IdentificationSource {
            counters: counters.into_boxed_slice(),
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

    /// The same, for loops.
    #[inline(always)]
    pub(crate) fn next_inline(&mut self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8) -> u16 {
        let addresses = u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits());
        let hash = self.hash.hash(addresses, u64::from(protocol) << 8);
        let Some(counter) = self.counters.get_mut(hash as usize & (COUNTERS - 1)) else { return self.worker };
        *counter = counter.wrapping_add(1);
        *counter << self.shift | self.worker
    }
}
