use mem::ArenaError;
use mem::Reserved;

/// Records in reserved address space. The kernel provides memory when a place is first used:
/// without gateway traffic they take none.
pub(super) struct Places<T> {
    pub(super) list: Reserved<T>,
    /// Used before.
    free: Reserved<u32>,
    free_len: usize,
}

impl<T> Places<T> {
    pub(super) fn reserved(max: usize) -> Result<Places<T>, ArenaError> {
        Ok(Places { list: Reserved::new(max)?, free: Reserved::new(max)?, free_len: 0 })
    }

    pub(super) fn bytes_for(count: u32) -> u64 {
        u64::from(count) * (size_of::<T>() + size_of::<u32>()) as u64
    }

    /// `first` fills new places. `None` if all are taken.
    pub(super) fn take(&mut self, first: impl FnOnce() -> T) -> Option<u32> {
        match self.free_len.checked_sub(1) {
            Some(last) => {
                self.free_len = last;
                self.free.get(last).copied()
            }
            None => self.list.push(first()).ok().map(|place| place as u32),
        }
    }

    pub(super) fn give_back(&mut self, place: u32) {
        match self.free.get_mut(self.free_len) {
            Some(slot) => *slot = place,
            None => {
                let pushed = self.free.push(place);
                debug_assert!(pushed.is_ok(), "there are no more places than were taken");
            }
        }
        self.free_len += 1;
    }

    pub(super) fn used(&self) -> u32 {
        (self.list.len() - self.free_len) as u32
    }

    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> usize {
        self.list.resident_bytes() + self.free.resident_bytes()
    }
}
