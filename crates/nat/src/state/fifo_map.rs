//! A map of fixed capacity in order of arrival, for state with a constant lifetime. Operations are
//! O(1) on average; only construction allocates.

#[cfg(test)]
mod tests;

pub(crate) type Slot = u32;

const NONE: Slot = Slot::MAX;

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    bucket: u32,
    chain: Slot,
    older: Slot,
    younger: Slot,
    live: bool,
}

#[derive(Debug)]
pub(crate) struct FifoMap<K, V> {
    entries: Box<[Entry<K, V>]>,
    buckets: Box<[Slot]>,
    free: Slot,
    oldest: Slot,
    youngest: Slot,
    len: usize,
}

impl<K: Copy + Eq + Default, V: Default> FifoMap<K, V> {
    pub(crate) fn new(capacity: usize) -> FifoMap<K, V> {
        let capacity = capacity.min(NONE as usize - 1);
        let entries: Vec<Entry<K, V>> = (0..capacity)
            .map(|i| Entry {
                key: K::default(),
                value: V::default(),
                bucket: 0,
                chain: if i + 1 < capacity { i as Slot + 1 } else { NONE },
                older: NONE,
                younger: NONE,
                live: false,
            })
            .collect();
        let buckets = vec![NONE; capacity.next_power_of_two().max(1)];
        FifoMap {
            entries: entries.into_boxed_slice(),
            buckets: buckets.into_boxed_slice(),
            free: if capacity == 0 { NONE } else { 0 },
            oldest: NONE,
            youngest: NONE,
            len: 0,
        }
    }

    pub(crate) const fn bytes_for(capacity: u64) -> u64 {
        capacity.saturating_mul(size_of::<Entry<K, V>>() as u64 + 2 * size_of::<Slot>() as u64)
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.buckets)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn bucket_of(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    pub(crate) fn find(&self, hash: u64, key: &K) -> Option<Slot> {
        let mut at = *self.buckets.get(self.bucket_of(hash))?;
        // A chain has no more entries than the map, so the loop ends.
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.key == *key {
                return Some(at);
            }
            at = entry.chain;
        }
        None
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&V> {
        self.entries.get(slot as usize).filter(|e| e.live).map(|e| &e.value)
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut V> {
        self.entries.get_mut(slot as usize).filter(|e| e.live).map(|e| &mut e.value)
    }

    pub(crate) fn oldest(&self) -> Option<(Slot, &V)> {
        self.get(self.oldest).map(|value| (self.oldest, value))
    }

    /// `None` if full. The key must be new.
    pub(crate) fn insert(&mut self, hash: u64, key: K, value: V) -> Option<Slot> {
        let slot = self.free;
        let bucket = self.bucket_of(hash);
        let first = self.buckets.get_mut(bucket)?;
        let entry = self.entries.get_mut(slot as usize)?;
        self.free = entry.chain;
        *entry =
            Entry { key, value, bucket: bucket as u32, chain: *first, older: self.youngest, younger: NONE, live: true };
        *first = slot;
        match self.entries.get_mut(self.youngest as usize) {
            Some(previous) => previous.younger = slot,
            None => self.oldest = slot,
        }
        self.youngest = slot;
        self.len += 1;
        Some(slot)
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<V> {
        let entry = self.entries.get_mut(slot as usize).filter(|e| e.live)?;
        entry.live = false;
        let value = core::mem::take(&mut entry.value);
        let (bucket, chain, older, younger) = (entry.bucket, entry.chain, entry.older, entry.younger);
        entry.chain = self.free;
        self.free = slot;
        self.len -= 1;
        match self.entries.get_mut(older as usize) {
            Some(neighbour) => neighbour.younger = younger,
            None => self.oldest = younger,
        }
        match self.entries.get_mut(younger as usize) {
            Some(neighbour) => neighbour.older = older,
            None => self.youngest = older,
        }
        let first = self.buckets.get_mut(bucket as usize)?;
        if *first == slot {
            *first = chain;
            return Some(value);
        }
        let mut at = *first;
        while let Some(entry) = self.entries.get_mut(at as usize) {
            if entry.chain == slot {
                entry.chain = chain;
                break;
            }
            at = entry.chain;
        }
        Some(value)
    }
}
