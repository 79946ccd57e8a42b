//! How many ICMP errors Natrix sends of its own accord (RFC 1812 §4.3.2.8): one bucket for the worker and
//! one per destination, so that one noisy host does not use up what the others need.
//!
//! A bucket is the time at which it will be full again: nothing has to be refilled. It holds a quarter
//! of a second's worth of messages, at least eight and at most one second's worth, so that a traceroute
//! that sends its probes at once gets all its answers.

use core::net::Ipv4Addr;

use crate::random::KeyedHash;
use crate::settings::IcmpPolicy;
use crate::time::Instant;
use crate::types::Facing;

#[cfg(test)]
mod tests;

/// Destinations that are told apart in one set of the table.
const WAYS: usize = 4;
/// Sets of the table; a power of two.
const SETS: usize = 512;
/// Messages a bucket holds at least, if that is not more than one second's worth.
const BURST_MIN: u64 = 8;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Rate and burst of a kind of bucket, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Time one message costs; None: no message ever.
    interval: Option<u64>,
    /// How far ahead of now the full-again time may be before a message is taken.
    tolerance: u64,
}

impl Rate {
    fn per_second(messages: u32) -> Rate {
        if messages == 0 {
            return Rate { interval: None, tolerance: 0 };
        }
        let messages = u64::from(messages);
        let burst = (messages / 4).max(BURST_MIN).min(messages);
        let interval = NANOS_PER_SECOND.div_ceil(messages);
        Rate { interval: Some(interval), tolerance: interval * (burst - 1) }
    }

    /// The bucket after one message is taken from it, or None when it is empty.
    fn take(self, full_again: u64, now: u64) -> Option<u64> {
        let interval = self.interval?;
        let from = full_again.max(now);
        (from - now <= self.tolerance).then(|| from.saturating_add(interval))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Which address of which realm: hosts of several may have the same one.
    destination: u64,
    /// When it is full again, nanoseconds. At or before now: full, so the same as one never used.
    full_again: u64,
}

/// The limits of one worker.
#[derive(Debug)]
pub struct RateLimit {
    total_rate: Rate,
    total: u64,
    destination_rate: Rate,
    buckets: Box<[[Bucket; WAYS]]>,
    hash: KeyedHash,
}

impl RateLimit {
    /// Limits by `policy`; `hash` has a secret of its own. Takes 32 KiB.
    pub fn new(policy: &IcmpPolicy, hash: KeyedHash) -> RateLimit {
        RateLimit {
            total_rate: Rate::per_second(policy.errors_per_second_max),
            total: 0,
            destination_rate: Rate::per_second(policy.errors_per_second_per_destination_max),
            buckets: vec![[Bucket::default(); WAYS]; SETS].into_boxed_slice(),
            hash,
        }
    }

    /// Takes over a new policy; what was used under the old one still counts.
    pub fn set_policy(&mut self, policy: &IcmpPolicy) {
        self.total_rate = Rate::per_second(policy.errors_per_second_max);
        self.destination_rate = Rate::per_second(policy.errors_per_second_per_destination_max);
    }

    /// Whether a message to an address of this realm may be sent now; if so, it is counted as sent.
    ///
    /// A destination for which the table has no room shares the bucket of another one: a flood of
    /// destinations makes the limit stricter, never looser.
    pub fn allow(&mut self, now: Instant, (facing, destination): (Facing, Ipv4Addr)) -> bool {
        let now = now.as_micros().saturating_mul(1_000);
        let realm = (facing.side.index() as u64) << 16 | u64::from(facing.realm.0);
        let destination = realm << 32 | u64::from(destination.to_bits());
        let hash = self.hash.hash(destination, 0);
        let set = (hash as usize) & (SETS - 1);
        let shared = (hash >> 32) as usize % WAYS;
        let Some(ways) = self.buckets.get_mut(set) else { return false };
        let known = ways.iter().position(|b| b.destination == destination && b.full_again > now);
        let way = known.or_else(|| ways.iter().position(|b| b.full_again <= now));
        let (way, is_own) = way.map_or((shared, false), |way| (way, true));
        let Some(bucket) = ways.get_mut(way) else { return false };
        // Both are asked before either is charged: a message that one refuses must not cost the other.
        let Some(bucket_after) = self.destination_rate.take(bucket.full_again, now) else { return false };
        let Some(total_after) = self.total_rate.take(self.total, now) else { return false };
        bucket.full_again = bucket_after;
        if is_own {
            bucket.destination = destination;
        }
        self.total = total_after;
        true
    }
}
