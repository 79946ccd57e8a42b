//! Token buckets of subscribers.

use zerocopy::FromZeros;

use crate::settings::Rate;
use crate::time::Instant;

/// Ticks in 1 µs: enough to keep the rounding error of rates small.
const TICKS_PER_MICRO: u64 = 16;
const TICKS_PER_SECOND: u64 = 1_000_000 * TICKS_PER_MICRO;
/// Buckets wrap after 203 days. A value further ahead than any burst is in the past.
const BUCKET_BITS: u32 = 48;
const BUCKET_MASK: u64 = (1 << BUCKET_BITS) - 1;
/// 12 days at one token a second keep buckets unambiguous.
pub const BURST_MAX: u32 = 1_000_000;

/// GCRA: the time at which the bucket is full, modulo 2^48 ticks; 0 if unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub(crate) struct Bucket([u16; 3]);

impl Bucket {
    pub(crate) const UNUSED: Bucket = Bucket([0; 3]);

    #[inline]
    fn full_again(self) -> u64 {
        let [low, middle, high] = self.0.map(u64::from);
        low | middle << 16 | high << 32
    }

    #[inline]
    fn at(full_again: u64) -> Bucket {
        // Zero means unused; one tick less hardly differs.
        let full_again = if full_again & BUCKET_MASK == 0 { BUCKET_MASK } else { full_again };
        Bucket([full_again as u16, (full_again >> 16) as u16, (full_again >> 32) as u16])
    }

    #[cfg(test)]
    pub(crate) fn numbered(full_again: u64) -> Bucket {
        Bucket::at(full_again)
    }
}

/// Buckets need no refilling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketRate {
    /// Ticks for one token; 0 without a limit.
    interval: u64,
    /// How far ahead of now a bucket with a token may be.
    tolerance: u64,
}

impl BucketRate {
    pub(crate) const UNLIMITED: BucketRate = BucketRate { interval: 0, tolerance: u64::MAX };

    pub(crate) fn new(rate: Option<Rate>) -> BucketRate {
        let Some(Rate { per_second, burst }) = rate else { return BucketRate::UNLIMITED };
        // Rounded up: the rate is never exceeded in the long run.
        let interval = TICKS_PER_SECOND.div_ceil(u64::from(per_second.max(1)));
        BucketRate { interval, tolerance: interval * (u64::from(burst.clamp(1, BURST_MAX)) - 1) }
    }

    #[inline]
    pub(crate) fn ahead(self, bucket: Bucket, now: Instant) -> u64 {
        let ahead = bucket.full_again().wrapping_sub(ticks(now)) & BUCKET_MASK;
        // Unused, in the past, or from another rate.
        let is_full = bucket == Bucket::default() || ahead > self.tolerance.saturating_add(self.interval);
        if is_full { 0 } else { ahead }
    }

    #[inline]
    pub(crate) fn has_token(self, bucket: Bucket, now: Instant) -> bool {
        self.interval == 0 || self.ahead(bucket, now) <= self.tolerance
    }

    pub(crate) fn is_full(self, bucket: Bucket, now: Instant) -> bool {
        self.interval == 0 || self.ahead(bucket, now) == 0
    }

    #[inline]
    pub(crate) fn take(self, bucket: Bucket, now: Instant) -> Bucket {
        if self.interval == 0 {
            return bucket;
        }
        Bucket::at(ticks(now).wrapping_add(self.ahead(bucket, now)).wrapping_add(self.interval))
    }
}

#[inline]
fn ticks(at: Instant) -> u64 {
    at.as_micros().wrapping_mul(TICKS_PER_MICRO)
}
