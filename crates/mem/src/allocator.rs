//! Lends [`Arena`](crate::Arena) pages to collections of other crates, so that benchmarks compare
//! structures and not pages.

#![allow(unsafe_code, reason = "an allocator hands out raw memory")]

use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use allocator_api2::alloc::AllocError;
use allocator_api2::alloc::Allocator;

use crate::arena::Mapping;

/// Mapped bytes by address of a block. Rounding depends on the pages that were free.
static MAPPED: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(|| Mutex::new(HashMap::new()));

fn mapped() -> MutexGuard<'static, HashMap<usize, usize>> {
    // Every operation leaves the map whole, so a poisoned lock is usable.
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps each allocation by itself, present and on hugepages if possible.
///
/// For few and large blocks: each costs a system call and at least a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArenaPages;

// SAFETY: each block is a mapping of its own and valid until it is deallocated; all values of the
// type are alike.
unsafe impl Allocator for ArenaPages {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.align() > 4096 {
            return Err(AllocError);
        }
        let mapping = Mapping::new(layout.size().max(1)).map_err(|_| AllocError)?;
        mapped().insert(mapping.start.as_ptr().addr(), mapping.bytes);
        Ok(NonNull::slice_from_raw_parts(mapping.start, layout.size()))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, _: Layout) {
        let bytes = mapped().remove(&block.as_ptr().addr());
        debug_assert!(bytes.is_some(), "only what was handed out comes back");
        if let Some(bytes) = bytes {
            // SAFETY: exactly this range was mapped for this block, and the caller no longer uses
            // it.
            unsafe { libc::munmap(block.as_ptr().cast(), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use allocator_api2::vec::Vec;

    use super::*;

    #[test]
    fn a_vector_on_these_pages_grows_and_keeps_its_values() {
        let mut vector = Vec::new_in(ArenaPages);
        for value in 0..100_000_u64 {
            vector.push(value);
        }
        assert!(vector.iter().copied().eq(0..100_000));
        let address = vector.as_ptr().addr();
        assert!(mapped().contains_key(&address));
        drop(vector);
        assert!(!mapped().contains_key(&address));
    }
}
