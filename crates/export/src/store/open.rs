//! The table of what is open: one cache line an interval, requested before it is needed.
//!
//! A carrier has millions of open mappings, so every start and end of one is a miss of all caches.
//! With a table of its own, the builder can request the line of an event that comes a few events
//! later: half of the writer's time was these misses.

use core::hash::BuildHasher;
use core::hash::Hasher;
use std::hash::RandomState;

/// One slot, on a cache line of its own.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Slot<K, V>(Option<(K, V)>);

/// A hash table with linear probing; removal closes gaps, so there are no markers of removed
/// entries.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    slots: Vec<Slot<K, V>>,
    used: usize,
    /// Of this process: subscribers choose part of the keys.
    seed: u64,
}

/// A key as three numbers.
pub(crate) trait Key: Copy + Eq {
    fn numbers(&self) -> [u64; 3];
}

/// Slots of a new table.
const SLOTS_LEAST: usize = 64;

impl<K: Key, V: Clone> Table<K, V> {
    pub(crate) fn new() -> Table<K, V> {
        let seed = RandomState::new().build_hasher().finish();
        Table { slots: vec![Slot(None); SLOTS_LEAST], used: 0, seed }
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
    fn home(&self, key: &K) -> usize {
        let mut state = self.seed;
        for number in key.numbers() {
            let product = u128::from(state ^ number) * 0x9e37_79b9_7f4a_7c15;
            state = (product as u64 ^ (product >> 64) as u64).rotate_left(23);
        }
        state as usize & self.mask()
    }

    /// Requests the line of a key.
    #[inline]
    pub(crate) fn prefetch(&self, key: &K) {
        if let Some(slot) = self.slots.get(self.home(key)) {
            mem::prefetch_write(slot);
        }
    }

    /// The slot of a key, or the free one where it belongs.
    #[inline]
    fn find(&self, key: &K) -> Result<usize, usize> {
        let mut place = self.home(key);
        loop {
            match &self.slots[place].0 {
                None => return Err(place),
                Some((known, _)) if known == key => return Ok(place),
                Some(_) => place = (place + 1) & self.mask(),
            }
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.find(key).ok()?;
        self.slots[place].0.as_mut().map(|(_, value)| value)
    }

    /// Sets the value of a key. Returns the earlier one.
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(place) => self.slots[place].0.replace((key, value)).map(|(_, value)| value),
            Err(place) => {
                self.slots[place].0 = Some((key, value));
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
        let slots = vec![Slot(None); self.slots.len() * 2];
        for slot in core::mem::replace(&mut self.slots, slots) {
            if let Some((key, value)) = slot.0
                && let Err(place) = self.find(&key)
            {
                self.slots[place].0 = Some((key, value));
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let mut hole = self.find(key).ok()?;
        let (_, value) = self.slots[hole].0.take()?;
        self.used -= 1;
        let mask = self.mask();
        let mut next = (hole + 1) & mask;
        // Entries that were moved on by the removed one come back.
        while let Some((moved, _)) = &self.slots[next].0 {
            let home = self.home(moved);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                let entry = self.slots[next].0.take();
                self.slots[hole].0 = entry;
                hole = next;
            }
            next = (next + 1) & mask;
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().filter_map(|slot| slot.0.as_ref().map(|(key, value)| (key, value)))
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

    impl Key for Number {
        fn numbers(&self) -> [u64; 3] {
            [self.0, 0, 0]
        }
    }

    #[test]
    fn it_does_what_a_map_of_the_library_does() {
        let mut random = SmallRng::seed_from_u64(1);
        let (mut table, mut map) = (Table::new(), HashMap::new());
        for step in 0..200_000_u64 {
            let key = Number(random.random_range(0..if step < 100_000 { 3_000 } else { 40 }));
            match random.random_range(0..5) {
                0 | 1 => assert_eq!(table.insert(key, step), map.insert(key, step)),
                2 | 3 => assert_eq!(table.remove(&key), map.remove(&key)),
                _ => assert_eq!(table.get_mut(&key), map.get_mut(&key)),
            }
            assert_eq!(table.len(), map.len());
        }
        let mut all: Vec<_> = table.iter().map(|(key, value)| (*key, *value)).collect();
        let mut known: Vec<_> = map.into_iter().collect();
        all.sort_unstable();
        known.sort_unstable();
        assert_eq!(all, known);
    }
}
