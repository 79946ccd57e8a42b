//! One hash table of rules: those that fix at least the bits of its mask.
//!
//! Rules of one cell (equal in the bits of the mask) lie along the cell's way through the buckets in their order, so that the first
//! bucket with a match has the first rule. A bucket that some way goes on from says so in its first entry; that is never
//! taken back, which costs a look at most.

use core::cmp::Reverse;
use core::hint::select_unpredictable;
use core::iter;
use std::sync::Arc;

use mem::Arena;
use mem::ArenaError;
use mem::FromZeros;

use super::key::Match;
use super::key::RuleKey;
use super::mask::Cell;
use super::mask::Mask;
use super::set::RuleId;

/// Buckets of a chunk: 2 MiB, one large page, and what a change copies.
const CHUNK_BUCKETS: u32 = 1 << 15;
const CHUNK_SHIFT: u32 = 15;

/// In the source's shift: it stands in the second of two cells by source port. Shifts are six bits, and shifting takes no more.
const SECOND_BY_SOURCE: u8 = 0x40;
/// In the source's shift of a bucket's first entry, used or not: some way goes on from this bucket.
const PASSED: u8 = 0x80;
/// In the destination's shift: it stands in the second of two cells by destination port.
const SECOND_BY_DESTINATION: u8 = 0x80;
/// In a rank: the protocol matters.
const PROTOCOL: u64 = 0xff;
/// In a rank: the realm matters.
const REALM: u64 = 0xff00;

/// A whole rule; two fill a cache line. All bytes zero: free.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Entry {
    /// Source and destination, as in a key; bits beyond the prefixes are zero.
    addresses: u64,
    destination_first: u16,
    destination_span: u16,
    source_first: u16,
    source_span: u16,
    /// Higher wins: what is left of the highest by its order, above the bits of `kind` that matter. 0: free.
    rank: u64,
    rule: u32,
    /// By how much to shift a difference of addresses until only the prefix is left.
    source_shift: u8,
    destination_shift: u8,
    /// Protocol and, above it, realm.
    kind: u16,
}

/// What a rank is made of what is left by.
const ORDER_MAX: u64 = (1 << 48) - 1;

/// A cache line of rules.
#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(64))]
pub(super) struct Bucket([Entry; 2]);

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one cache line");

impl Bucket {
    /// The first rule here that matches the key, if it comes before `best`; and whether there may be one further on: a way has
    /// its rules in their order.
    #[inline(always)]
    pub(super) fn find(&self, key: &RuleKey, mut best: Best) -> (Best, bool) {
        let mut is_found = false;
        for entry in &self.0 {
            let is_better = entry.matches(key) & (entry.rank > best.rank);
            best.rank = select_unpredictable(is_better, entry.rank, best.rank);
            best.rule = select_unpredictable(is_better, entry.rule, best.rule);
            is_found |= is_better;
        }
        (best, (self.0[0].source_shift & PASSED != 0) & !is_found)
    }
}

impl Entry {
    fn new(rule: &Match, number: u32, order: u64, second_by_source: bool, second_by_destination: bool) -> Entry {
        let first = rule.first();
        let kind = if rule.protocol.is_some() { PROTOCOL } else { 0 } | if rule.realm.is_some() { REALM } else { 0 };
        Entry {
            addresses: first.addresses,
            destination_first: rule.destination_ports.first,
            destination_span: rule.destination_ports.last - rule.destination_ports.first,
            source_first: rule.source_ports.first,
            source_span: rule.source_ports.last - rule.source_ports.first,
            rank: rank_of(order) | kind,
            rule: number,
            source_shift: (32 - rule.source.length()) | if second_by_source { SECOND_BY_SOURCE } else { 0 },
            destination_shift: (32 - rule.destination.length())
                | if second_by_destination { SECOND_BY_DESTINATION } else { 0 },
            kind: first.kind(),
        }
    }

    /// Whether the key is one of the rule's packets; true or false for a free one. Without branches: which of a bucket's two it is
    /// nobody can guess.
    #[inline(always)]
    fn matches(&self, key: &RuleKey) -> bool {
        let differs = self.addresses ^ key.addresses;
        let source = (differs & 0xffff_ffff).wrapping_shr(u32::from(self.source_shift));
        let destination = (differs >> 32).wrapping_shr(u32::from(self.destination_shift));
        let kind = u64::from(self.kind ^ key.kind()) & self.rank & (PROTOCOL | REALM);
        let is_source_port = key.source_port().wrapping_sub(self.source_first) <= self.source_span;
        let is_destination_port = key.destination_port().wrapping_sub(self.destination_first) <= self.destination_span;
        (source | destination | kind == 0) & is_source_port & is_destination_port
    }

    /// The cell it stands in.
    fn cell(&self, mask: &Mask, word: &Cell) -> Cell {
        let port = |first: u16, block: u8, second: bool| {
            let first = u64::from(first);
            if second { first + (1_u64 << block) } else { first }
        };
        let source_port = port(self.source_first, mask.source_block, self.source_shift & SECOND_BY_SOURCE != 0);
        let destination_port =
            port(self.destination_first, mask.destination_block, self.destination_shift & SECOND_BY_DESTINATION != 0);
        let rest = destination_port | source_port << 16 | u64::from(self.kind) << 32;
        Cell { addresses: self.addresses & word.addresses, rest: rest & word.rest }
    }

    const fn is_free(&self) -> bool {
        self.rank == 0
    }

    /// Puts `entry` here; what the slot says of its bucket stays.
    fn put(&mut self, entry: Entry) {
        let passed = self.source_shift & PASSED;
        *self = entry;
        self.source_shift = self.source_shift & !PASSED | passed;
    }

    fn clear(&mut self) {
        let passed = self.source_shift & PASSED;
        *self = Entry { source_shift: passed, ..FREE };
    }
}

const FREE: Entry = Entry {
    addresses: 0,
    destination_first: 0,
    destination_span: 0,
    source_first: 0,
    source_span: 0,
    rank: 0,
    rule: 0,
    source_shift: 0,
    destination_shift: 0,
    kind: 0,
};

/// The rank of the rule with this order, which is below 2^48 - 1; without its kind.
pub(super) const fn rank_of(order: u64) -> u64 {
    (ORDER_MAX - order) << 16
}

/// The rule found so far.
#[derive(Clone, Copy)]
pub(super) struct Best {
    /// 0: none.
    pub(super) rank: u64,
    pub(super) rule: u32,
}

impl Best {
    pub(super) const NONE: Best = Best { rank: 0, rule: 0 };

    pub(super) fn id(self) -> Option<RuleId> {
        (self.rank != 0).then_some(RuleId(self.rule))
    }
}

/// A place in a table: a bucket and one of its two entries.
type Place = (u32, usize);

/// See the [module](self). Clones share chunks.
#[derive(Clone)]
pub(super) struct Table {
    mask: Mask,
    word: Cell,
    /// All of `CHUNK_BUCKETS` but when there is only one.
    chunks: Vec<Arc<Arena<Bucket>>>,
    buckets: u32,
    entries: u32,
    /// No rule in it ranks higher.
    rank_max: u64,
}

impl Table {
    /// An empty table for about `entries` entries: as many buckets, so that few ways go beyond their first.
    pub(super) fn new(mask: Mask, entries: usize) -> Result<Table, ArenaError> {
        let wanted = u32::try_from(entries).unwrap_or(u32::MAX / 2).max(8);
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

    /// No rule in it ranks higher.
    pub(super) fn rank_max(&self) -> u64 {
        self.rank_max
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes()).sum()
    }

    /// Whether it is so full that ways get long.
    pub(super) fn is_crowded(&self) -> bool {
        // Four fifths of two a bucket.
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

    /// The bucket's chunk is copied when somebody else has it too.
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

    /// What a place for a bucket holds before there is one.
    pub(super) const EMPTY_BUCKET: &'static Bucket = &Bucket([FREE; 2]);

    /// Asks for a bucket of a key's way: its first, or so many further.
    #[inline(always)]
    pub(super) fn aim(&self, key: &RuleKey, steps: u8) -> &Bucket {
        let index = self.home(&self.word.of(key)) + u32::from(steps);
        let bucket = self.bucket(if index >= self.buckets { index - self.buckets } else { index });
        mem::prefetch(bucket);
        bucket
    }

    /// [`Bucket::find`] in the buckets that follow on the key's way.
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

    /// The buckets of a cell's way, as far as it goes.
    fn way(&self, home: u32) -> impl Iterator<Item = (u32, &Bucket)> {
        let mut next = Some(home);
        let steps = iter::from_fn(move || {
            let index = next?;
            let bucket = self.bucket(index);
            next = (bucket.0[0].source_shift & PASSED != 0).then(|| self.next(index));
            Some((index, bucket))
        });
        steps.take(self.buckets as usize)
    }

    /// Where the entries of a cell stand.
    fn places<'a>(&'a self, cell: &'a Cell) -> impl Iterator<Item = (Place, &'a Entry)> {
        self.way(self.home(cell)).flat_map(move |(index, bucket)| {
            let entries = bucket.0.iter().enumerate();
            entries
                .filter(|(_, entry)| !entry.is_free() && entry.cell(&self.mask, &self.word) == *cell)
                .map(move |(slot, entry)| ((index, slot), entry))
        })
    }

    /// The most rules that one of the rule's cells has.
    pub(super) fn cell_length(&self, rule: &Match) -> usize {
        self.mask.cells(rule).map(|(cell, _, _)| self.places(&cell).count()).max().unwrap_or(0)
    }

    /// The numbers of all rules that match a key. To find which rules hide another.
    pub(super) fn all_matches<'a>(&'a self, key: &'a RuleKey) -> impl Iterator<Item = u32> + 'a {
        let home = self.home(&self.word.of(key));
        self.way(home).flat_map(move |(_, bucket)| {
            bucket.0.iter().filter(|entry| !entry.is_free() && entry.matches(key)).map(|entry| entry.rule)
        })
    }

    /// Enters a rule that comes after all that are there, when nothing was ever removed: what loading does.
    pub(super) fn append(&mut self, rule: &Match, number: u32, order: u64) -> Result<(), ArenaError> {
        let mask = self.mask;
        for (cell, second_by_source, second_by_destination) in mask.cells(rule) {
            let entry = Entry::new(rule, number, order, second_by_source, second_by_destination);
            let (index, slot) = self.free_place(self.home(&cell))?;
            self.bucket_mut(index)?.0[slot].put(entry);
            self.entries += 1;
        }
        self.rank_max = self.rank_max.max(rank_of(order) | PROTOCOL | REALM);
        Ok(())
    }

    /// The first free place on a way, which is made longer when it has none.
    fn free_place(&mut self, home: u32) -> Result<Place, ArenaError> {
        let mut index = home;
        loop {
            let bucket = self.bucket(index);
            if let Some(slot) = bucket.0.iter().position(Entry::is_free) {
                return Ok((index, slot));
            }
            if bucket.0[0].source_shift & PASSED == 0 {
                self.bucket_mut(index)?.0[0].source_shift |= PASSED;
            }
            index = self.next(index);
        }
    }

    /// Enters a rule.
    pub(super) fn insert(&mut self, rule: &Match, number: u32, order: u64) -> Result<(), ArenaError> {
        if self.is_crowded() {
            self.grow()?;
        }
        let mask = self.mask;
        for (cell, second_by_source, second_by_destination) in mask.cells(rule) {
            let entry = Entry::new(rule, number, order, second_by_source, second_by_destination);
            let home = self.home(&cell);
            let (mut places, mut entries): (Vec<Place>, Vec<Entry>) =
                self.places(&cell).map(|(place, entry)| (place, *entry)).unzip();
            places.push(self.free_place(home)?);
            entries.push(entry);
            // Along the way, which may go round the end of the table.
            let buckets = self.buckets;
            places.sort_by_key(|(index, slot)| ((index + buckets - home) % buckets, *slot));
            entries.sort_by_key(|entry| Reverse(entry.rank));
            for ((index, slot), entry) in places.into_iter().zip(entries) {
                self.bucket_mut(index)?.0[slot].put(entry);
            }
            self.entries += 1;
        }
        self.rank_max = self.rank_max.max(rank_of(order) | PROTOCOL | REALM);
        Ok(())
    }

    /// Takes a rule out; false when it is not here.
    pub(super) fn remove(&mut self, rule: &Match, number: u32) -> Result<bool, ArenaError> {
        let mask = self.mask;
        let mut was_here = false;
        for (cell, ..) in mask.cells(rule) {
            let place = self.places(&cell).find(|(_, entry)| entry.rule == number).map(|(place, _)| place);
            if let Some((index, slot)) = place {
                self.bucket_mut(index)?.0[slot].clear();
                self.entries -= 1;
                was_here = true;
            }
        }
        Ok(was_here)
    }

    /// A larger table with the same entries.
    fn grow(&mut self) -> Result<(), ArenaError> {
        let mut all: Vec<Entry> = (0..self.buckets)
            .flat_map(|index| self.bucket(index).0)
            .filter(|entry| !entry.is_free())
            .map(|entry| Entry { source_shift: entry.source_shift & !PASSED, ..entry })
            .collect();
        all.sort_by_key(|entry| Reverse(entry.rank));
        let mut larger = Table::new(self.mask, all.len() * 2)?;
        for entry in all {
            let cell = entry.cell(&self.mask, &self.word);
            let (index, slot) = larger.free_place(larger.home(&cell))?;
            larger.bucket_mut(index)?.0[slot].put(entry);
            larger.entries += 1;
        }
        larger.rank_max = self.rank_max;
        *self = larger;
        Ok(())
    }
}
