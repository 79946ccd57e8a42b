//! Limits the ICMP errors that Natrix originates (RFC 1812 §4.3.2.8) and its port control replies,
//! by worker and by destination, so that no noisy host uses up the share of others.
//!
//! A bucket holds a quarter of a second's messages, at least eight and at most a whole second's: a
//! traceroute that sends its probes at once gets all answers.

use core::net::Ipv4Addr;

use crate::random::KeyedHash;
use crate::settings::IcmpPolicy;
use crate::time::Instant;
use crate::types::Facing;

#[cfg(test)]
mod tests;

const WAYS: usize = 4;
const SETS: usize = 512;
const BURST_MIN: u64 = 8;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Messages a second.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// For one worker.
    pub total: u32,
    /// For one destination.
    pub each: u32,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Nanoseconds a message costs; `None` allows none.
    interval: Option<u64>,
    /// How many nanoseconds ahead of now [`Bucket::full_again`] may be.
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

    fn take(self, full_again: u64, now: u64) -> Option<u64> {
        let interval = self.interval?;
        let from = full_again.max(now);
        (from - now <= self.tolerance).then(|| from.saturating_add(interval))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Address and realm.
    destination: u64,
    /// In nanoseconds; not after now if it is full.
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
    /// `hash` must have its own secret. Takes 32 KiB.
    pub fn new(policy: &IcmpPolicy, hash: KeyedHash) -> RateLimit {
        let (total, each) = (policy.errors_per_second_max, policy.errors_per_second_per_destination_max);
        RateLimit::with_rates(Rates { total, each }, hash)
    }

    /// See [`RateLimit::new`].
    pub fn with_rates(rates: Rates, hash: KeyedHash) -> RateLimit {
        RateLimit {
            total_rate: Rate::per_second(rates.total),
            total: 0,
            destination_rate: Rate::per_second(rates.each),
            buckets: vec![[Bucket::default(); WAYS]; SETS].into_boxed_slice(),
            hash,
        }
    }

    /// Earlier use still counts.
    pub fn set_policy(&mut self, policy: &IcmpPolicy) {
        self.total_rate = Rate::per_second(policy.errors_per_second_max);
        self.destination_rate = Rate::per_second(policy.errors_per_second_per_destination_max);
    }

    /// True if a message may be sent; counts it then.
    ///
    /// A destination without room in the table shares another's bucket: a flood makes the limit
    /// stricter, never looser.
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
        // A refused message costs neither bucket anything.
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
