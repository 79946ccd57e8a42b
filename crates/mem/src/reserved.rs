//! A list of bounded length whose memory comes as it grows.

#![allow(unsafe_code, reason = "writes records into mapped memory and shows them as a slice")]

use core::fmt;
use core::marker::PhantomData;
use core::mem::needs_drop;
use core::ops::Deref;
use core::ops::DerefMut;

use crate::arena::ArenaError;
use crate::arena::Mapping;

/// The address space is reserved when the list is made; the kernel provides a page when its first
/// record is pushed. So an unused table takes no memory, and a used one allocates nothing.
///
/// Records are never dropped; a `T` that needs dropping does not compile.
pub struct Reserved<T> {
    memory: Mapping,
    length: usize,
    max: usize,
    owns: PhantomData<T>,
}

// SAFETY: a list owns its memory exclusively, like `Box<[T]>`.
unsafe impl<T: Send> Send for Reserved<T> {}
// SAFETY: shared access only gives `&T`, like `Box<[T]>`.
unsafe impl<T: Sync> Sync for Reserved<T> {}

impl<T> Reserved<T> {
    /// For at most `max` records.
    ///
    /// # Errors
    /// Too little address space. A later shortage of memory is noticed only then, by the kernel, so
    /// plans of memory count the whole list.
    pub fn new(max: usize) -> Result<Reserved<T>, ArenaError> {
        const { assert!(!needs_drop::<T>(), "a list does not drop its records") };
        const { assert!(align_of::<T>() <= 4096, "pages are aligned to 4 KiB at least") };
        const { assert!(size_of::<T>() > 0, "records have bytes") };
        let too_large = ArenaError::TooLarge { length: max, record_bytes: size_of::<T>() };
        let bytes =
            max.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize / 2).ok_or(too_large)?;
        Ok(Reserved { memory: Mapping::reserved(bytes.max(1))?, length: 0, max, owns: PhantomData })
    }

    /// Appends a record and returns its place.
    ///
    /// # Errors
    /// The record, if the list is full.
    pub fn push(&mut self, record: T) -> Result<usize, T> {
        if self.length == self.max {
            return Err(record);
        }
        let place = self.length;
        // SAFETY: the mapping has room for `max` records and `place` is below; the mapping is
        // aligned to pages, and nothing refers to memory behind `length`.
        unsafe { self.memory.start.cast::<T>().add(place).write(record) };
        self.length += 1;
        Ok(place)
    }

    /// Memory that the kernel has provided.
    pub fn resident_bytes(&self) -> usize {
        self.memory.resident_bytes()
    }
}

impl<T> Deref for Reserved<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `length` records were written by `push`, and live as long as `self`.
        unsafe { core::slice::from_raw_parts(self.memory.start.cast().as_ptr(), self.length) }
    }
}

impl<T> DerefMut for Reserved<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.memory.start.cast().as_ptr(), self.length) }
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        // No borrow of it is left.
        self.memory.unmap();
    }
}

impl<T> fmt::Debug for Reserved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("length", &self.length).field("max", &self.max).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_with_the_records() {
        let mut list = Reserved::<[u64; 600]>::new(1_000).unwrap();
        assert_eq!((list.resident_bytes(), list.len()), (0, 0));
        for place in 0..1_000 {
            assert_eq!(list.push([place as u64; 600]), Ok(place));
            let used = (place + 1) * 4_800;
            // Transparent hugepages come 2 MiB at a time.
            assert!((used..used + (2 << 20) + 4_096).contains(&list.resident_bytes()), "{place}");
        }
        assert!(list.push([0; 600]).is_err(), "it is full");
        list[7][599] = 70;
        assert!(list.iter().enumerate().all(|(place, record)| record[0] == place as u64));
        assert_eq!((list[7][599], list[8][0]), (70, 8));
    }

    #[test]
    fn a_list_larger_than_the_address_space_is_refused() {
        assert!(matches!(Reserved::<u64>::new(usize::MAX / 8), Err(ArenaError::TooLarge { .. })));
        assert!(Reserved::<u64>::new(0).unwrap().push(1).is_err());
    }
}
