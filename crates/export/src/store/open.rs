//! The table of what is open: one cache line an interval, requested before it is needed.
//!
//! A carrier has millions of open mappings, so every start and end of one is a miss of all caches.
//! With a table of its own, the builder can request the line of an event that comes a few events
//! later: half of the writer's time was these misses.

use core::hash::BuildHasher;
use core::hash::Hasher;
use core::marker::PhantomData;
use std::hash::RandomState;

use mem::Arena;
use zerocopy::FromZeros;

/// One slot, on a cache line of its own.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C, align(64))]
struct Slot {
    key: [u64; 3],
    value: [u64; 3],
    /// 1 if it is used.
    used: u64,
    _rest: u64,
}

impl Slot {
    const FREE: Slot = Slot { key: [0; 3], value: [0; 3], used: 0, _rest: 0 };
}

/// The memory of the slots: large tables on large pages, because even a prefetch waits for the walk
/// to a page of 4 KiB.
#[derive(Debug)]
enum Slots {
    Heap(Vec<Slot>),
    Pages(Arena<Slot>),
}

/// Slots from which on a table is on pages of its own: 4 MiB.
const PAGES_FROM: usize = 1 << 16;

impl Slots {
    fn new(count: usize) -> Slots {
        let pages = if count >= PAGES_FROM { Arena::zeroed(count).ok() } else { None };
        pages.map_or_else(|| Slots::Heap(vec![Slot::FREE; count]), Slots::Pages)
    }
}

impl core::ops::Deref for Slots {
    type Target = [Slot];

    #[inline]
    fn deref(&self) -> &[Slot] {
        match self {
            Slots::Heap(slots) => slots,
            Slots::Pages(slots) => slots,
        }
    }
}

impl core::ops::DerefMut for Slots {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Slot] {
        match self {
            Slots::Heap(slots) => slots,
            Slots::Pages(slots) => slots,
        }
    }
}

/// A hash table with linear probing; removal closes gaps, so there are no markers of removed
/// entries.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    slots: Slots,
    used: usize,
    /// Of this process: subscribers choose part of the keys.
    seed: u64,
    of: PhantomData<(K, V)>,
}

/// A key or a value as three numbers.
pub(crate) trait Numbers: Copy {
    fn numbers(&self) -> [u64; 3];

    fn from_numbers(numbers: [u64; 3]) -> Self;
}

/// Slots of a new table.
const SLOTS_LEAST: usize = 64;

impl<K: Numbers, V: Numbers> Table<K, V> {
    pub(crate) fn new() -> Table<K, V> {
        let seed = RandomState::new().build_hasher().finish();
        Table { slots: Slots::new(SLOTS_LEAST), used: 0, seed, of: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    #[inline]
    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// The slot a key belongs to.
    #[inline]
    fn home(&self, key: &[u64; 3]) -> usize {
        let mut state = self.seed;
        for number in key {
            let product = u128::from(state ^ number) * 0x9e37_79b9_7f4a_7c15;
            state = (product as u64 ^ (product >> 64) as u64).rotate_left(23);
        }
        state as usize & self.mask()
    }

    /// Requests the line of a key.
    #[inline]
    pub(crate) fn prefetch(&self, key: &K) {
        let home = self.home(&key.numbers());
        for place in [home, (home + 1) & self.mask()] {
            mem::prefetch_write(&self.slots[place]);
        }
    }

    /// The slot of a key, or the free one where it belongs.
    #[inline]
    fn find(&self, key: &[u64; 3]) -> Result<usize, usize> {
        let mut place = self.home(key);
        loop {
            let slot = &self.slots[place];
            if slot.used == 0 {
                return Err(place);
            }
            if slot.key == *key {
                return Ok(place);
            }
            place = (place + 1) & self.mask();
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let place = self.find(&key.numbers()).ok()?;
        Some(V::from_numbers(self.slots[place].value))
    }

    /// Sets the value of a key. Returns the earlier one.
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (key, value) = (key.numbers(), value.numbers());
        match self.find(&key) {
            Ok(place) => Some(V::from_numbers(core::mem::replace(&mut self.slots[place].value, value))),
            Err(place) => {
                self.slots[place] = Slot { key, value, used: 1, _rest: 0 };
                self.used += 1;
                if self.used > self.slots.len() / 8 * 5 {
                    self.grow();
                }
                None
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let slots = Slots::new(self.slots.len() * 2);
        let before = core::mem::replace(&mut self.slots, slots);
        for slot in before.iter().filter(|slot| slot.used != 0) {
            if let Err(place) = self.find(&slot.key) {
                self.slots[place] = *slot;
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let mut hole = self.find(&key.numbers()).ok()?;
        let value = V::from_numbers(self.slots[hole].value);
        self.used -= 1;
        let mask = self.mask();
        let mut next = (hole + 1) & mask;
        // Entries that were moved on by the removed one come back.
        while self.slots[next].used != 0 {
            let home = self.home(&self.slots[next].key);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = Slot::FREE;
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, V)> {
        let used = self.slots.iter().filter(|slot| slot.used != 0);
        used.map(|slot| (K::from_numbers(slot.key), V::from_numbers(slot.value)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::Rng;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    struct Number(u64);

    impl Numbers for Number {
        fn numbers(&self) -> [u64; 3] {
            [self.0, 0, 0]
        }

        fn from_numbers(numbers: [u64; 3]) -> Number {
            Number(numbers[0])
        }
    }

    #[test]
    fn it_does_what_a_map_of_the_library_does() {
        let mut random = SmallRng::seed_from_u64(1);
        let (mut table, mut map) = (Table::new(), HashMap::new());
        for step in 0..400_000_u64 {
            // Enough to grow onto large pages, then few.
            let key = Number(random.random_range(0..if step < 300_000 { 200_000 } else { 40 }));
            let step = Number(step);
            match random.random_range(0..5) {
                0 | 1 => assert_eq!(table.insert(key, step), map.insert(key, step)),
                2 | 3 => assert_eq!(table.remove(&key), map.remove(&key)),
                _ => assert_eq!(table.get(&key), map.get(&key).copied()),
            }
            assert_eq!(table.len(), map.len());
        }
        let mut all: Vec<_> = table.iter().collect();
        assert!(matches!(table.slots, Slots::Pages(_)), "the table is not large");
        let mut known: Vec<_> = map.into_iter().collect();
        all.sort_unstable();
        known.sort_unstable();
        assert_eq!(all, known);
    }
}
