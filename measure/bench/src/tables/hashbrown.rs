//! `hashbrown`: the hash table of Rust's standard library, a Swiss table, as a well-kept table of
//! today.
//!
//! Open addressing with a byte of hash for each slot, sixteen compared at a time; its own default
//! hash. Room for all flows is taken at the start, on the same pages as all other structures. One
//! packet after the other: it has no way to ask for a line ahead.

use ::hashbrown::DefaultHashBuilder;
use ::hashbrown::HashMap;
use ::hashbrown::hash_map::Entry;
use mem::ArenaError;
use mem::allocator::ArenaPages;

use super::structure::BuildError;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Size;

/// From key to number.
pub(super) struct Hashbrown {
    map: HashMap<Key, u32, DefaultHashBuilder, ArenaPages>,
    room: usize,
}

impl Lookup for Hashbrown {
    fn new(size: Size) -> Result<Hashbrown, BuildError> {
        let room = size.sessions as usize;
        let mut map = HashMap::with_hasher_in(DefaultHashBuilder::default(), ArenaPages);
        map.try_reserve(room).map_err(|_| {
            let available = mem::available::bytes().unwrap_or(0);
            ArenaError::NotEnough { needed: (room * size_of::<(Key, u32)>()) as u64, available }
        })?;
        Ok(Hashbrown { map, room })
    }

    #[inline]
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full> {
        let len = self.map.len();
        match self.map.entry(key) {
            Entry::Occupied(entry) => Ok(*entry.get()),
            Entry::Vacant(_) if len >= self.room => Err(Full),
            Entry::Vacant(entry) => Ok(*entry.insert(new)),
        }
    }

    fn bytes(&self) -> usize {
        self.map.allocation_size()
    }
}
