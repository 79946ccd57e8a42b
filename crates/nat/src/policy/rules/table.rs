//! One hash table, for rules that fix at least the bits of its mask.
//!
//! Rules of one cell (equal in the mask's bits) are in order along the cell's way through the
//! buckets, so the first bucket with a match has the first rule. A rule in several cells has an
//! entry for each, which matches only that cell's packets. An obsolete [`PASSED`] costs at most one
//! look.

use core::cmp::Reverse;
use core::hint::select_unpredictable;
use core::iter;
use std::sync::Arc;

use mem::Arena;
use mem::ArenaError;
use mem::FromZeros;

use super::key::Match;
use super::key::PortRange;
use super::key::RuleKey;
use super::mask::Cell;
use super::mask::Mask;
use super::set::RuleId;

/// 2 MiB, one large page: what a change copies.
const CHUNK_BUCKETS: u32 = 1 << 15;
const CHUNK_SHIFT: u32 = 15;

/// Flag in a bucket's first entry, free or not: the way of some cell continues behind this bucket.
const PASSED: u32 = 1 << 24;
const NUMBER: u32 = (1 << 24) - 1;

/// A rule, as far as its packets are in the cell. All zero: free.
///
/// A key has eight lanes of 16 bits ([`RuleKey`]). It matches if each is within its span above
/// `first`, the first of these packets; span ffff: any value. A prefix is a range in each half of
/// its address.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Entry {
    first: [u64; 2],
    /// Source above destination. [`SPANS`] has those of the other lanes.
    port_spans: u32,
    rule: u32,
    /// Higher wins: [`ORDER_MAX`] minus the order, then 16 bits of index into [`SPANS`].
    rank: u64,
}

const ORDER_MAX: u64 = (1 << 48) - 1;
const SPANS_AT: u64 = 0xffff;

/// By prefix lengths and whether protocol and realm are given. The few in use stay in the L1 cache.
static SPANS: [[u64; 2]; SPANS_COUNT] = spans();
const SPANS_COUNT: usize = 33 * 33 * 4;

const fn spans() -> [[u64; 2]; SPANS_COUNT] {
    let mut all = [[0; 2]; SPANS_COUNT];
    let mut at = 0;
    while at < SPANS_COUNT {
        let (source, destination) = (at / 4 % 33, at / 4 / 33);
        let protocol = if at & 2 == 0 { 0xffff << 32 } else { 0 };
        let realm = if at & 1 == 0 { 0xffff << 48 } else { 0 };
        // The halves of an address's host bits are the spans of its halves.
        let (source, destination) = ((1_u64 << (32 - source)) - 1, (1_u64 << (32 - destination)) - 1);
        all[at] = [source | destination << 32, protocol | realm];
        at += 1;
    }
    all
}

const fn spans_at(rule: &Match) -> u64 {
    let lengths = rule.source.length() as u64 + 33 * rule.destination.length() as u64;
    lengths * 4 + rule.protocol.is_some() as u64 * 2 + rule.realm.is_some() as u64
}

#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(64))]
pub(super) struct Bucket([Entry; 2]);

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one cache line");

impl Bucket {
    /// The first match that ranks above `best`, and whether to look further, which is never after a
    /// match.
    #[inline(always)]
    pub(super) fn find(&self, key: &RuleKey, mut best: Best) -> (Best, bool) {
        let mut is_found = false;
        for entry in &self.0 {
            let is_better = entry.matches(key) & (entry.rank > best.rank);
            best.rank = select_unpredictable(is_better, entry.rank, best.rank);
            best.rule = select_unpredictable(is_better, entry.rule, best.rule);
            is_found |= is_better;
        }
        (best, (self.0[0].rule & PASSED != 0) & !is_found)
    }
}

impl Entry {
    /// `part`: what [`Mask::cells`] gives for the cell.
    fn new(part: &Match, number: u32, order: u64) -> Entry {
        let first = part.first();
        let span = |range: PortRange| u32::from(range.last - range.first);
        Entry {
            first: [first.addresses, first.rest],
            port_spans: span(part.destination_ports) | span(part.source_ports) << 16,
            rule: number,
            rank: rank_of(order) | spans_at(part),
        }
    }

    /// Undefined for a free entry. Branch-free, because the result is unpredictable.
    #[inline(always)]
    fn matches(&self, key: &RuleKey) -> bool {
        let [addresses, rest] = SPANS[(self.rank & SPANS_AT) as usize];
        mem::are_lanes_within([key.addresses, key.rest], self.first, [addresses, rest | u64::from(self.port_spans)])
    }

    fn cell(&self, word: &Cell) -> Cell {
        let [addresses, rest] = self.first;
        Cell { addresses: addresses & word.addresses, rest: rest & word.rest }
    }

    const fn is_free(&self) -> bool {
        self.rank == 0
    }

    const fn number(&self) -> u32 {
        self.rule & NUMBER
    }

    fn put(&mut self, entry: Entry) {
        let passed = self.rule & PASSED;
        *self = entry;
        self.rule = self.rule & !PASSED | passed;
    }

    fn clear(&mut self) {
        let passed = self.rule & PASSED;
        *self = Entry { rule: passed, ..FREE };
    }
}

const FREE: Entry = Entry { first: [0; 2], port_spans: 0, rule: 0, rank: 0 };

/// The rank of an order below 2^48 - 1, without the index of spans.
pub(super) const fn rank_of(order: u64) -> u64 {
    (ORDER_MAX - order) << 16
}

#[derive(Clone, Copy)]
pub(super) struct Best {
    pub(super) rank: u64,
    pub(super) rule: u32,
}

impl Best {
    pub(super) const NONE: Best = Best { rank: 0, rule: 0 };

    pub(super) fn id(self) -> Option<RuleId> {
        (self.rank != 0).then_some(RuleId(self.rule & NUMBER))
    }
}

type Place = (u32, usize);

/// Clones share chunks.
#[derive(Clone)]
pub(super) struct Table {
    mask: Mask,
    word: Cell,
    /// Each has `CHUNK_BUCKETS` buckets, unless it is the only one.
    chunks: Vec<Arc<Arena<Bucket>>>,
    buckets: u32,
    entries: u32,
    rank_max: u64,
}

impl Table {
    /// Half as many buckets again as `entries`: few ways go beyond their first bucket, which costs
    /// a second look and a misprediction.
    pub(super) fn new(mask: Mask, entries: usize) -> Result<Table, ArenaError> {
        let wanted = u32::try_from(entries.saturating_mul(3) / 2).unwrap_or(u32::MAX / 2).max(8);
        let buckets =
            if wanted <= CHUNK_BUCKETS { wanted.next_power_of_two() } else { wanted.next_multiple_of(CHUNK_BUCKETS) };
        let chunks = (0..buckets.div_ceil(CHUNK_BUCKETS))
            .map(|_| Arena::zeroed(buckets.min(CHUNK_BUCKETS) as usize).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Table { mask, word: mask.word(), chunks, buckets, entries: 0, rank_max: 0 })
    }

    pub(super) fn mask(&self) -> &Mask {
        &self.mask
    }

    pub(super) fn rank_max(&self) -> u64 {
        self.rank_max
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes()).sum()
    }

    pub(super) fn is_crowded(&self) -> bool {
        // Crowded above four fifths of two entries a bucket.
        u64::from(self.entries) * 5 >= u64::from(self.buckets) * 8
    }

    #[inline(always)]
    fn home(&self, cell: &Cell) -> u32 {
        (((cell.hash() >> 32) * u64::from(self.buckets)) >> 32) as u32
    }

    #[inline(always)]
    fn next(&self, bucket: u32) -> u32 {
        if bucket + 1 == self.buckets { 0 } else { bucket + 1 }
    }

    #[inline(always)]
    fn bucket(&self, index: u32) -> &Bucket {
        &self.chunks[(index >> CHUNK_SHIFT) as usize][(index & (CHUNK_BUCKETS - 1)) as usize]
    }

    fn bucket_mut(&mut self, index: u32) -> Result<&mut Bucket, ArenaError> {
        let chunk = &mut self.chunks[(index >> CHUNK_SHIFT) as usize];
        if Arc::get_mut(chunk).is_none() {
            let mut copy = Arena::zeroed(chunk.len())?;
            copy.copy_from_slice(chunk);
            *chunk = Arc::new(copy);
        }
        let Some(chunk) = Arc::get_mut(chunk) else { unreachable!("nobody else has what was just made") };
        Ok(&mut chunk[(index & (CHUNK_BUCKETS - 1)) as usize])
    }

    pub(super) const EMPTY_BUCKET: &'static Bucket = &Bucket([FREE; 2]);

    #[inline(always)]
    pub(super) fn aim(&self, key: &RuleKey, steps: u8) -> &Bucket {
        let index = self.home(&self.word.of(key)) + u32::from(steps);
        let bucket = self.bucket(if index >= self.buckets { index - self.buckets } else { index });
        mem::prefetch(bucket);
        bucket
    }

    #[inline(never)]
    pub(super) fn find_further(&self, key: &RuleKey, best: Best) -> Best {
        let mut index = self.home(&self.word.of(key));
        for _ in 1..self.buckets {
            index = self.next(index);
            let (found, is_further) = self.bucket(index).find(key, best);
            if !is_further {
                return found;
            }
        }
        best
    }

    fn way(&self, home: u32) -> impl Iterator<Item = (u32, &Bucket)> {
        let mut next = Some(home);
        let steps = iter::from_fn(move || {
            let index = next?;
            let bucket = self.bucket(index);
            next = (bucket.0[0].rule & PASSED != 0).then(|| self.next(index));
            Some((index, bucket))
        });
        steps.take(self.buckets as usize)
    }

    fn places<'a>(&'a self, cell: &'a Cell) -> impl Iterator<Item = (Place, &'a Entry)> {
        self.way(self.home(cell)).flat_map(move |(index, bucket)| {
            let entries = bucket.0.iter().enumerate();
            entries
                .filter(|(_, entry)| !entry.is_free() && entry.cell(&self.word) == *cell)
                .map(move |(slot, entry)| ((index, slot), entry))
        })
    }

    pub(super) fn cell_length(&self, rule: &Match) -> usize {
        self.mask.cells(rule).map(|(cell, _)| self.places(&cell).count()).max().unwrap_or(0)
    }

    pub(super) fn all_matches<'a>(&'a self, key: &'a RuleKey) -> impl Iterator<Item = u32> + 'a {
        let home = self.home(&self.word.of(key));
        self.way(home).flat_map(move |(_, bucket)| {
            bucket.0.iter().filter(|entry| !entry.is_free() && entry.matches(key)).map(|entry| entry.number())
        })
    }

    /// Appends a rule behind all others, for loading. Only while nothing was ever removed.
    pub(super) fn append(&mut self, rule: &Match, number: u32, order: u64) -> Result<(), ArenaError> {
        let mask = self.mask;
        for (cell, part) in mask.cells(rule) {
            let entry = Entry::new(&part, number, order);
            let (index, slot) = self.free_place(self.home(&cell))?;
            self.bucket_mut(index)?.0[slot].put(entry);
            self.entries += 1;
        }
        self.rank_max = self.rank_max.max(rank_of(order) | SPANS_AT);
        Ok(())
    }

    fn free_place(&mut self, home: u32) -> Result<Place, ArenaError> {
        let mut index = home;
        loop {
            let bucket = self.bucket(index);
            if let Some(slot) = bucket.0.iter().position(Entry::is_free) {
                return Ok((index, slot));
            }
            if bucket.0[0].rule & PASSED == 0 {
                self.bucket_mut(index)?.0[0].rule |= PASSED;
            }
            index = self.next(index);
        }
    }

    pub(super) fn insert(&mut self, rule: &Match, number: u32, order: u64) -> Result<(), ArenaError> {
        if self.is_crowded() {
            self.grow()?;
        }
        let mask = self.mask;
        for (cell, part) in mask.cells(rule) {
            let entry = Entry::new(&part, number, order);
            let home = self.home(&cell);
            let (mut places, mut entries): (Vec<Place>, Vec<Entry>) =
                self.places(&cell).map(|(place, entry)| (place, *entry)).unzip();
            places.push(self.free_place(home)?);
            entries.push(entry);
            // Follows the order of the way, which may wrap around the end of the table.
            let buckets = self.buckets;
            places.sort_by_key(|(index, slot)| ((index + buckets - home) % buckets, *slot));
            entries.sort_by_key(|entry| Reverse(entry.rank));
            for ((index, slot), entry) in places.into_iter().zip(entries) {
                self.bucket_mut(index)?.0[slot].put(entry);
            }
            self.entries += 1;
        }
        self.rank_max = self.rank_max.max(rank_of(order) | SPANS_AT);
        Ok(())
    }

    pub(super) fn remove(&mut self, rule: &Match, number: u32) -> Result<bool, ArenaError> {
        let mask = self.mask;
        let mut was_here = false;
        for (cell, ..) in mask.cells(rule) {
            let place = self.places(&cell).find(|(_, entry)| entry.number() == number).map(|(place, _)| place);
            if let Some((index, slot)) = place {
                self.bucket_mut(index)?.0[slot].clear();
                self.entries -= 1;
                was_here = true;
            }
        }
        Ok(was_here)
    }

    fn grow(&mut self) -> Result<(), ArenaError> {
        let mut all: Vec<Entry> = (0..self.buckets)
            .flat_map(|index| self.bucket(index).0)
            .filter(|entry| !entry.is_free())
            .map(|entry| Entry { rule: entry.rule & !PASSED, ..entry })
            .collect();
        all.sort_by_key(|entry| Reverse(entry.rank));
        let mut larger = Table::new(self.mask, all.len() * 2)?;
        for entry in all {
            let cell = entry.cell(&self.word);
            let (index, slot) = larger.free_place(larger.home(&cell))?;
            larger.bucket_mut(index)?.0[slot].put(entry);
            larger.entries += 1;
        }
        larger.rank_max = self.rank_max;
        *self = larger;
        Ok(())
    }
}
