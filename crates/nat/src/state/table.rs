//! A hash table from hashes to record indices.
//!
//! ```text
//!  bucket (one 64-byte cache line)
//!  ┌───────────────┬──────────────────────────┬──────────┐
//!  │ tags 10 × u16 │ indices 10 × u32         │ overflow │   tag 0: slot is empty
//!  └───────────────┴──────────────────────────┴──────────┘
//!  hash: upper 32 bits → home bucket, lower 16 bits → tag
//! ```
//!
//! An entry takes the first empty slot from its home on; buckets passed count it in `overflow`. So
//! a lookup ends at the first bucket with `overflow` 0, almost always the home: one cache line.
//! Deletion leaves no tombstones.

use core::mem::size_of;

use mem::Arena;
use mem::ArenaError;
use mem::FromZeros;
use mem::Need;
use mem::PageKind;

const SLOTS: usize = 10;

const LANES: usize = 8;

/// More would save half a byte an entry, but one in four lookups before an insertion would read a
/// second line, not one in seven.
const LOAD_MAX: (usize, usize) = (3, 4);

#[derive(FromZeros)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u16; SLOTS],
    indices: [u32; SLOTS],
    /// Entries from here or earlier that were put further on.
    overflow: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one cache line");

impl Bucket {
    #[inline(always)]
    fn matches(&self, tag: u16) -> u32 {
        const { assert!(SLOTS == LANES + 2, "the last lanes overlap the first, and begin two slots later") };
        let (first, last) = (self.tags.first_chunk::<LANES>(), self.tags.last_chunk::<LANES>());
        let (Some(first), Some(last)) = (first, last) else { return 0 };
        mem::equal_lanes(first, tag) | mem::equal_lanes(last, tag) << 2
    }

    #[inline(always)]
    fn index_in(&self, slots: u32) -> u32 {
        self.indices[first_of(slots)]
    }
}

#[inline(always)]
fn first_of(slots: u32) -> usize {
    // Spares the bounds check.
    (slots.trailing_zeros() as usize).min(SLOTS - 1)
}

/// The table is at capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table is full")]
pub struct TableFull;

/// A multimap from 64-bit hash to `u32` index, of one worker.
///
/// n equal hashes cost n / 10 lines a lookup; the key ([`crate::random::KeyedHash`]) keeps
/// outsiders from causing that.
#[derive(Debug)]
pub struct BucketTable {
    buckets: Arena<Bucket>,
    length: usize,
    capacity: usize,
}

impl BucketTable {
    /// 8.5 bytes an entry.
    pub fn with_capacity(entries_max: usize) -> Result<BucketTable, ArenaError> {
        BucketTable::on(entries_max, Arena::zeroed)
    }

    /// The same, on pages that come with their first entries ([`Arena::reserved`]).
    pub fn reserved(entries_max: usize) -> Result<BucketTable, ArenaError> {
        BucketTable::on(entries_max, Arena::reserved)
    }

    fn on(
        entries_max: usize,
        arena: impl FnOnce(usize) -> Result<Arena<Bucket>, ArenaError>,
    ) -> Result<BucketTable, ArenaError> {
        let buckets = BucketTable::buckets_for(entries_max);
        if u32::try_from(buckets).is_err() {
            // Positions are 32 bits of the hash.
            return Err(ArenaError::TooLarge { length: buckets, record_bytes: size_of::<Bucket>() });
        }
        Ok(BucketTable { buckets: arena(buckets)?, length: 0, capacity: entries_max })
    }

    const fn buckets_for(entries_max: usize) -> usize {
        entries_max.div_ceil(SLOTS).saturating_mul(LOAD_MAX.1).div_ceil(LOAD_MAX.0) + 1
    }

    /// Memory for this many.
    pub fn need(entries_max: usize) -> Need {
        Arena::<Bucket>::need(BucketTable::buckets_for(entries_max))
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// True if the table is at capacity.
    pub fn is_full(&self) -> bool {
        self.length >= self.capacity
    }

    /// Maximum of entries.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the buckets.
    pub fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    /// Bytes of the buckets whose pages are there.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.buckets.resident_bytes()
    }

    /// Kind of its pages.
    pub fn pages(&self) -> PageKind {
        self.buckets.pages()
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn tag(hash: u64) -> u16 {
        (hash as u16).max(1)
    }

    #[inline(always)]
    fn after(&self, position: usize) -> usize {
        if position + 1 == self.buckets.len() { 0 } else { position + 1 }
    }

    /// Prefetches the home bucket.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        self.buckets.prefetch(self.home(hash));
    }

    /// What [`BucketTable::find`] would try first (0 for none), and whether a further bucket may
    /// have one. Call [`BucketTable::prefetch`] first.
    #[inline(always)]
    pub fn candidate(&self, hash: u64) -> (u32, bool) {
        let bucket = &self.buckets[self.home(hash)];
        let matches = bucket.matches(BucketTable::tag(hash));
        let index = bucket.index_in(matches);
        (if matches == 0 { 0 } else { index }, (matches == 0) & (bucket.overflow != 0))
    }

    /// True if no slot in the home bucket is empty.
    #[inline]
    pub fn is_home_full(&self, hash: u64) -> bool {
        self.buckets[self.home(hash)].matches(0) == 0
    }

    /// Prefetches the bucket behind the home.
    #[inline(always)]
    pub fn prefetch_next(&self, hash: u64) {
        self.buckets.prefetch(self.after(self.home(hash)));
    }

    /// The index that [`BucketTable::find`] would try first.
    #[inline]
    pub fn first_candidate(&self, hash: u64) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// The first index that `is_it` accepts. It may see one with another hash.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = BucketTable::tag(hash);
        let mut position = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[position];
            let mut matches = bucket.matches(tag);
            while matches != 0 {
                let index = bucket.index_in(matches);
                if is_it(index) {
                    return Some(index);
                }
                matches &= matches - 1;
            }
            if bucket.overflow == 0 {
                return None;
            }
            position = self.after(position);
        }
        None
    }

    /// Does not look for existing entries.
    pub fn insert(&mut self, hash: u64, index: u32) -> Result<(), TableFull> {
        // Below capacity a slot is empty, so the loop ends.
        if self.length >= self.capacity {
            return Err(TableFull);
        }
        let mut position = self.home(hash);
        loop {
            let next = self.after(position);
            let bucket = &mut self.buckets[position];
            let empty = bucket.matches(0);
            if empty != 0 {
                let slot = first_of(empty);
                bucket.tags[slot] = BucketTable::tag(hash);
                bucket.indices[slot] = index;
                self.length += 1;
                return Ok(());
            }
            bucket.overflow += 1;
            position = next;
        }
    }

    /// False without such an entry.
    pub fn remove(&mut self, hash: u64, index: u32) -> bool {
        let Some((position, slot)) = self.locate(hash, index) else { return false };
        let bucket = &mut self.buckets[position];
        bucket.tags[slot] = 0;
        bucket.indices[slot] = 0;
        let mut passed = self.home(hash);
        while passed != position {
            self.buckets[passed].overflow -= 1;
            passed = self.after(passed);
        }
        self.length -= 1;
        true
    }

    fn locate(&self, hash: u64, index: u32) -> Option<(usize, usize)> {
        let tag = BucketTable::tag(hash);
        let mut position = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[position];
            let mut matches = bucket.matches(tag);
            while matches != 0 {
                let slot = first_of(matches);
                if bucket.indices[slot] == index {
                    return Some((position, slot));
                }
                matches &= matches - 1;
            }
            if bucket.overflow == 0 {
                return None;
            }
            position = self.after(position);
        }
        None
    }
}

#[cfg(test)]
mod tests;
