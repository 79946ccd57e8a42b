//! A fixed-length array of zeroed records on the largest pages that the machine has.
//!
//! ```text
//!   Arena<T>          anonymous mapping, 2 MiB aligned, populated when it is made
//!   ┌─────┬─────┬─────┬─ ─ ─┬─────┬──────────┐
//!   │ T 0 │ T 1 │ T 2 │     │T n-1│ rounding │     pages: 1 GiB, else 2 MiB,
//!   └─────┴─────┴─────┴─ ─ ─┴─────┴──────────┘     else transparent, else plain
//! ```
//!
//! Gigabytes on 4 KiB pages miss the TLB on almost every packet; on hugepages they do not. An arena
//! takes all its memory when it is made: no packet waits for a page fault, and the machine cannot
//! run out later. Exceptions: [`Arena::reserved`], [`Arena::growing`] and [`provide_on_demand`].

#![allow(unsafe_code, reason = "maps memory and shows it as a slice")]

use core::fmt;
use core::marker::PhantomData;
use core::mem::align_of;
use core::mem::needs_drop;
use core::mem::size_of;
use core::ops::Deref;
use core::ops::DerefMut;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::fs;
use std::io;

use zerocopy::FromZeros;

use crate::available;
use crate::pages;
use crate::pages::PageKind;
use crate::prefetch::prefetch;
use crate::prefetch::prefetch_write;
use crate::stock::Need;
use crate::turn::Turn;

/// Smaller arenas do not ask how much memory is left, which takes the kernel a millisecond.
/// Whatever starts plans all its tables together before.
const ASKED_FROM: usize = 8 << 20;

/// See [`missed_bytes`].
static MISSED_BYTES: AtomicU64 = AtomicU64::new(0);

/// See [`provide_on_demand`].
static IS_ON_DEMAND: AtomicBool = AtomicBool::new(false);

/// From now on this process makes all arenas like [`Arena::reserved`]. For tests and fuzzers, which
/// make thousands of instances and use few records: providing all pages takes longer than most of
/// them run.
pub fn provide_on_demand() {
    IS_ON_DEMAND.store(true, Ordering::Relaxed);
}

/// Bytes of live arenas that suit hugepages but are on ordinary pages, for lack of hugepages.
pub fn missed_bytes() -> u64 {
    MISSED_BYTES.load(Ordering::Relaxed)
}

/// Why an arena cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The machine or the control group has less memory left.
    #[error("table needs {needed} bytes of memory, {available} are available; lower the limits or add memory")]
    NotEnough {
        /// Bytes requested.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// More than the address space.
    #[error("table of {length} records of {record_bytes} bytes is larger than the address space; lower the limits")]
    TooLarge {
        /// Records requested.
        length: usize,
        /// Bytes of one record.
        record_bytes: usize,
    },
    /// The kernel refused the mapping.
    #[error("kernel refused {needed} bytes for a table with {available} available: {source}")]
    Refused {
        /// Bytes requested.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// A fixed-length array of zeroed records. See the [module](self).
///
/// Records are never dropped; a `T` that needs dropping does not compile.
pub struct Arena<T> {
    first: NonNull<T>,
    length: usize,
    /// 0 without a mapping.
    mapped: usize,
    pages: PageKind,
    /// See [`missed_bytes`].
    missed: u64,
    owns: PhantomData<T>,
}

// SAFETY: an arena owns its memory exclusively, like `Box<[T]>`.
unsafe impl<T: Send> Send for Arena<T> {}
// SAFETY: shared access only gives `&T`, like `Box<[T]>`.
unsafe impl<T: Sync> Sync for Arena<T> {}

impl<T> Arena<T> {
    /// Memory that an arena of this length takes.
    pub const fn need(length: usize) -> Need {
        Need::Table((length as u64).saturating_mul(size_of::<T>() as u64))
    }
}

impl<T: FromZeros> Arena<T> {
    /// An arena of `length` records, all bytes zero.
    ///
    /// # Errors
    /// Nothing is taken then.
    pub fn zeroed(length: usize) -> Result<Arena<T>, ArenaError> {
        const { assert!(!needs_drop::<T>(), "an arena does not drop its records") };
        const { assert!(align_of::<T>() <= 4096, "pages are aligned to 4 KiB at least") };
        let too_large = ArenaError::TooLarge { length, record_bytes: size_of::<T>() };
        let bytes = match length.checked_mul(size_of::<T>()) {
            // Room for all rounding below; slices stay within `isize::MAX`.
            Some(bytes) if bytes <= isize::MAX as usize - 2 * pages::PAGE_1G as usize => bytes,
            _ => return Err(too_large),
        };
        if bytes == 0 {
            return Ok(Arena {
                first: NonNull::dangling(),
                length,
                mapped: 0,
                pages: PageKind::Plain,
                missed: 0,
                owns: PhantomData,
            });
        }
        Ok(Arena::on(Mapping::new(bytes)?, length))
    }

    /// Like [`Arena::zeroed`], on ordinary pages that the kernel provides when each is first
    /// written: a page fault, about a microsecond, once a page. For small tables that most machines
    /// never use.
    ///
    /// # Errors
    /// As for [`Arena::zeroed`]. A later shortage of memory is noticed only then, by the kernel, so
    /// plans of memory count the whole arena ([`Arena::need`]).
    pub fn reserved(length: usize) -> Result<Arena<T>, ArenaError> {
        const { assert!(!needs_drop::<T>(), "an arena does not drop its records") };
        const { assert!(align_of::<T>() <= 4096, "pages are aligned to 4 KiB at least") };
        match length.checked_mul(size_of::<T>()) {
            Some(0) => Arena::zeroed(length),
            Some(bytes) if bytes <= isize::MAX as usize - 2 * pages::PAGE_1G as usize => {
                Ok(Arena::on(Mapping::reserved(bytes)?, length))
            }
            _ => Err(ArenaError::TooLarge { length, record_bytes: size_of::<T>() }),
        }
    }

    /// Like [`Arena::reserved`], on transparent hugepages if the machine has them. For large tables
    /// that use their first records first, so that few records need few pages.
    ///
    /// # Errors
    /// As for [`Arena::reserved`].
    pub fn growing(length: usize) -> Result<Arena<T>, ArenaError> {
        let mut arena: Arena<T> = Arena::reserved(length)?;
        if arena.mapped >= PAGE_2M && transparent_hugepages_enabled() {
            // SAFETY: advice about a range of this mapping, which changes no contents.
            let answer = unsafe { libc::madvise(arena.first.as_ptr().cast(), arena.mapped, libc::MADV_HUGEPAGE) };
            if answer == 0 {
                arena.pages = PageKind::Transparent;
            }
        }
        Ok(arena)
    }

    fn on(mapping: Mapping, length: usize) -> Arena<T> {
        Arena {
            first: mapping.start.cast(),
            length,
            mapped: mapping.bytes,
            pages: mapping.pages,
            missed: mapping.missed,
            owns: PhantomData,
        }
    }
}

impl<T> Arena<T> {
    /// Memory that the kernel has provided: all of it, unless reserved only.
    pub fn resident_bytes(&self) -> usize {
        if self.mapped == 0 {
            return 0;
        }
        let mapping = Mapping { start: self.first.cast(), bytes: self.mapped, pages: self.pages, missed: 0 };
        mapping.resident_bytes()
    }

    /// The pages of this arena.
    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// Memory taken, rounded to pages.
    pub fn bytes(&self) -> usize {
        self.mapped
    }

    /// Panics out of range, which is a bug of the caller: indices come from our own tables.
    #[inline(always)]
    pub fn at(&self, index: u32) -> &T {
        &self[index as usize]
    }

    /// Panics out of range, like [`Arena::at`].
    #[inline(always)]
    pub fn at_mut(&mut self, index: u32) -> &mut T {
        &mut self[index as usize]
    }

    /// Prefetches the record's cache line. No effect out of range.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        if let Some(record) = self.get(index) {
            prefetch(record);
        }
    }

    /// The same for a record that only this worker writes, and will write soon.
    #[inline(always)]
    pub fn prefetch_write(&self, index: usize) {
        if let Some(record) = self.get(index) {
            prefetch_write(record);
        }
    }
}

impl<T> Deref for Arena<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // Not `slice::from_raw_parts`: in debug builds it checks its parts, which took an eighth of
        // the time of tests.
        // SAFETY: `first` is aligned and points to `length` records (or dangles if they have no
        // bytes) that live as long as `self`; zero bytes are a valid `T` (`FromZeros`, required to
        // make the arena).
        unsafe { NonNull::slice_from_raw_parts(self.first, self.length).as_ref() }
    }
}

impl<T> DerefMut for Arena<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { NonNull::slice_from_raw_parts(self.first, self.length).as_mut() }
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        MISSED_BYTES.fetch_sub(self.missed, Ordering::Relaxed);
        if self.mapped != 0 {
            // SAFETY: exactly this range was mapped for this arena, and no borrow of it is left.
            unsafe { libc::munmap(self.first.as_ptr().cast(), self.mapped) };
        }
    }
}

impl<T> fmt::Debug for Arena<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("length", &self.length)
            .field("bytes", &self.mapped)
            .field("pages", &self.pages)
            .finish()
    }
}

pub(crate) struct Mapping {
    pub(crate) start: NonNull<u8>,
    pub(crate) bytes: usize,
    pages: PageKind,
    /// See [`missed_bytes`].
    missed: u64,
}

impl Mapping {
    /// All pages are present, except after [`provide_on_demand`].
    pub(crate) fn new(bytes: usize) -> Result<Mapping, ArenaError> {
        if IS_ON_DEMAND.load(Ordering::Relaxed) {
            return Mapping::reserved(bytes);
        }
        // `MemAvailable` excludes reserved hugepages; the kernel refuses if there are too few.
        for (kind, rounded) in pages::worth(bytes as u64) {
            let rounded = rounded as usize;
            let flag = if kind == PageKind::Huge1G { libc::MAP_HUGE_1GB } else { libc::MAP_HUGE_2MB };
            let turn = Turn::wait();
            let answer = map(rounded, libc::MAP_HUGETLB | flag);
            // The pages are reserved and no longer count as free.
            drop(turn);
            if let Ok(start) = answer {
                let mapping = Mapping { start, bytes: rounded, pages: kind, missed: 0 };
                if mapping.fill_in().is_ok() {
                    return Ok(mapping);
                }
                mapping.unmap();
            }
        }

        let page = page_bytes();
        let huge = bytes >= PAGE_2M;
        let needed = bytes.next_multiple_of(page);
        if needed >= ASKED_FROM {
            let available = available::bytes().unwrap_or(u64::MAX);
            if needed as u64 > available {
                return Err(ArenaError::NotEnough { needed: needed as u64, available });
            }
        }
        let refused = |source| {
            let available = available::bytes().unwrap_or(u64::MAX);
            ArenaError::Refused { needed: needed as u64, available, source }
        };
        let start = if huge { map_aligned(needed) } else { map(needed, 0) }.map_err(refused)?;
        let missed = if pages::worth(bytes as u64).next().is_some() { bytes as u64 } else { 0 };
        let mut mapping = Mapping { start, bytes: needed, pages: PageKind::Plain, missed };
        if huge && transparent_hugepages_enabled() {
            // SAFETY: advice about a range of this mapping, which changes no contents.
            let answer = unsafe { libc::madvise(start.as_ptr().cast(), needed, libc::MADV_HUGEPAGE) };
            if answer == 0 {
                mapping.pages = PageKind::Transparent;
            }
        }
        if let Err(error) = mapping.fill_in() {
            mapping.unmap();
            return Err(refused(error));
        }
        MISSED_BYTES.fetch_add(missed, Ordering::Relaxed);
        Ok(mapping)
    }

    /// The kernel provides each page when it is first written.
    pub(crate) fn reserved(bytes: usize) -> Result<Mapping, ArenaError> {
        let needed = bytes.next_multiple_of(page_bytes());
        let refused = |source| {
            let available = available::bytes().unwrap_or(u64::MAX);
            ArenaError::Refused { needed: needed as u64, available, source }
        };
        let start = map(needed, 0).map_err(refused)?;
        Ok(Mapping { start, bytes: needed, pages: PageKind::Plain, missed: 0 })
    }

    /// Bytes of the pages that the kernel has provided.
    pub(crate) fn resident_bytes(&self) -> usize {
        let page = page_bytes();
        let mut present = vec![0_u8; self.bytes.div_ceil(page)];
        // SAFETY: one byte for each page of this mapping is written, and nothing else.
        let answer = unsafe { libc::mincore(self.start.as_ptr().cast(), self.bytes, present.as_mut_ptr()) };
        if answer != 0 {
            return self.bytes;
        }
        present.iter().filter(|page| **page & 1 == 1).count() * page
    }

    /// Provides every page now.
    fn fill_in(&self) -> io::Result<()> {
        // SAFETY: populating a range of this mapping changes no contents.
        let answer = unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_POPULATE_WRITE) };
        if answer == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // Kernels before 5.14 do not know the advice.
        for offset in (0..self.bytes).step_by(page_bytes()) {
            // SAFETY: inside the mapping, to which no other pointer exists yet.
            unsafe { self.start.as_ptr().add(offset).write_volatile(0) };
        }
        Ok(())
    }

    pub(crate) fn unmap(&self) {
        // SAFETY: exactly this range was mapped and is no longer used.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn map(bytes: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a new private anonymous mapping at an address that the kernel chooses affects no
    // other memory.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapping at address zero"))
}

/// Aligned to 2 MiB, or the first and last pages could not be huge.
fn map_aligned(bytes: usize) -> io::Result<NonNull<u8>> {
    let wide = map(bytes + PAGE_2M, 0)?;
    let before = wide.as_ptr().addr().next_multiple_of(PAGE_2M) - wide.as_ptr().addr();
    let after = PAGE_2M - before;
    // SAFETY: `before + bytes + after` is the whole mapping, so all three ranges are inside it, and
    // it is not in use yet.
    unsafe {
        if before != 0 {
            libc::munmap(wide.as_ptr().cast(), before);
        }
        let start = wide.add(before);
        if after != 0 {
            libc::munmap(start.add(bytes).as_ptr().cast(), after);
        }
        Ok(start)
    }
}

/// Alignment for transparent hugepages.
const PAGE_2M: usize = pages::PAGE_2M as usize;

fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).unwrap_or(4096)
}

fn transparent_hugepages_enabled() -> bool {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|text| !text.contains("[never]"))
}

#[cfg(test)]
mod tests;
