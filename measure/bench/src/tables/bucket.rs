//! What `bucket2` and `bucket3` have in common: lists of cache lines with several items each.
//!
//! ```text
//!   cell = key mod cells ─► ┌ one cache line ────────────────────────────┐
//!                           │ item │ item │ (item) │ next ───────────────┼─► another line, or none
//!                           └────────────────────────────────────────────┘
//! ```
//!
//! "The memory for storing the collision resolving chains is allocated in chunks which are less or
//! equal to the processor's cache line" (§2.2.4). An item is 16 bytes as in the paper: key, number,
//! and four bytes of service data for which a NAT always finds a use. Four items and a link do not
//! fit.

use mem::Arena;
use mem::FromZeros;

use super::structure::BuildError;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Size;

#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Item {
    /// 0: no item. Items are filled from the first one on.
    key: Key,
    number: u32,
    _service: u32,
}

#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(64))]
struct Line<const ITEMS: usize> {
    items: [Item; ITEMS],
    /// 0: the last one.
    next: u32,
}

const _: () = assert!(size_of::<Line<2>>() == 64 && size_of::<Line<3>>() == 64, "one cache line");

/// Cells and pool in one array: indices from `cells` on are the pool's.
pub(super) struct Bucket<const ITEMS: usize> {
    lines: Arena<Line<ITEMS>>,
    /// A power of two.
    cells: u32,
    /// The next line of the pool that was never used.
    untouched: u32,
}

impl<const ITEMS: usize> Lookup for Bucket<ITEMS> {
    fn new(size: Size) -> Result<Bucket<ITEMS>, BuildError> {
        // At worst all flows are in one cell.
        let pool = (size.sessions as usize).div_ceil(ITEMS);
        Ok(Bucket { lines: Arena::zeroed(size.cells as usize + pool)?, cells: size.cells, untouched: size.cells })
    }

    #[inline]
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full> {
        let item = Item { key, number: new, _service: 0 };
        let mut at = (key % u64::from(self.cells)) as u32;
        loop {
            let line = self.lines.at_mut(at);
            for slot in &mut line.items {
                if slot.key == key {
                    return Ok(slot.number);
                }
                if slot.key == 0 {
                    *slot = item;
                    return Ok(new);
                }
            }
            if line.next == 0 {
                break;
            }
            at = line.next;
        }
        let index = self.untouched;
        self.lines.get_mut(index as usize).ok_or(Full)?.items[0] = item;
        self.untouched += 1;
        self.lines.at_mut(at).next = index;
        Ok(new)
    }

    fn bytes(&self) -> usize {
        self.lines.bytes()
    }
}
