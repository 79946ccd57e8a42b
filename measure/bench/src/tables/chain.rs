//! `chain`: a hash table with separate chaining (figure 4 of the paper): each cell is the first
//! item of a linked list.
//!
//! The hash is the key modulo the number of cells, as in the paper. That spreads its random ports
//! and addresses evenly; a real subscriber's ports it would not. Further items come from a pool,
//! one after the other, linked by index.

use mem::Arena;
use mem::FromZeros;

use super::structure::BuildError;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Size;

/// One item: four a cache line.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Item {
    /// 0: no item.
    key: Key,
    number: u32,
    /// 0: the last one.
    next: u32,
}

/// Cells and pool in one array: indices from `cells` on are the pool's.
pub(super) struct Chain {
    items: Arena<Item>,
    /// A power of two.
    cells: u32,
    /// The next item of the pool that was never used.
    untouched: u32,
}

impl Lookup for Chain {
    fn new(size: Size) -> Result<Chain, BuildError> {
        // At worst all flows are in one cell.
        let items = Arena::zeroed(size.cells as usize + size.sessions as usize)?;
        Ok(Chain { items, cells: size.cells, untouched: size.cells })
    }

    #[inline]
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full> {
        let mut at = (key % u64::from(self.cells)) as u32;
        loop {
            let item = self.items.at_mut(at);
            if item.key == key {
                return Ok(item.number);
            }
            if item.key == 0 {
                *item = Item { key, number: new, next: 0 };
                return Ok(new);
            }
            if item.next == 0 {
                break;
            }
            at = item.next;
        }
        let index = self.untouched;
        let item = self.items.get_mut(index as usize).ok_or(Full)?;
        *item = Item { key, number: new, next: 0 };
        self.untouched += 1;
        self.items.at_mut(at).next = index;
        Ok(new)
    }

    fn bytes(&self) -> usize {
        self.items.bytes()
    }
}
