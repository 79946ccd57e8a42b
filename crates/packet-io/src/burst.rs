//! A burst: up to 64 owned buffers in a fixed array.

#![allow(
    unsafe_code,
    reason = "the array is partly initialised, so that a driver can write received buffers straight into it"
)]

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ops::DerefMut;
use core::ptr;
use core::slice;

use crate::io::Buffer;

/// Buffers a burst can have at most.
pub const BURST_MAX: usize = 64;

/// Up to [`BURST_MAX`] owned buffers, in order. Dereferences to the slice of them. Dropping it
/// frees them in bulk.
pub struct Burst<B: Buffer> {
    // Invariant: the first `len` entries are initialised and owned by the burst.
    buffers: [MaybeUninit<B>; BURST_MAX],
    len: usize,
}

impl<B: Buffer> Burst<B> {
    /// An empty burst.
    pub const fn new() -> Burst<B> {
        Burst { buffers: [const { MaybeUninit::uninit() }; BURST_MAX], len: 0 }
    }

    /// How many buffers it can still take.
    pub fn room(&self) -> usize {
        BURST_MAX - self.len
    }

    /// Whether it can take no more.
    pub fn is_full(&self) -> bool {
        self.len == BURST_MAX
    }

    /// Appends a buffer.
    ///
    /// # Errors
    /// Gives the buffer back when the burst is full.
    #[inline]
    pub fn push(&mut self, buffer: B) -> Result<(), B> {
        match self.buffers.get_mut(self.len) {
            Some(slot) => {
                slot.write(buffer);
                self.len += 1;
                Ok(())
            }
            None => Err(buffer),
        }
    }

    /// Takes the last buffer.
    pub fn pop(&mut self) -> Option<B> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the entry was among the first `len`, so it is initialised; it no longer is, so it
        // is not read again.
        Some(unsafe { self.buffers[self.len].assume_init_read() })
    }

    /// Takes all buffers out in order. Those the iterator is not asked for are freed with it.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_, B> {
        self.drain_front(BURST_MAX)
    }

    /// Takes the first `count` buffers (or all when there are fewer) out in order; the rest moves
    /// to the front.
    pub fn drain_front(&mut self, count: usize) -> Drain<'_, B> {
        let end = count.min(self.len);
        let len = self.len;
        // While the drain lives the burst counts as empty: a leaked drain leaks buffers and frees
        // none twice.
        self.len = 0;
        Drain { burst: self, next: 0, end, len }
    }

    /// Frees all buffers, in bulk where the implementation can.
    pub fn clear(&mut self) {
        if self.len > 0 {
            B::free_all(self.drain());
        }
    }

    /// The free part of the array, for a driver to write received buffers into; then
    /// [`Burst::grow`].
    #[cfg(feature = "dpdk")]
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<B>] {
        &mut self.buffers[self.len..]
    }

    /// Adopts `count` buffers that were written to the front of [`Burst::spare`].
    ///
    /// # Safety The first `count` entries of the spare part are initialised and have no other
    /// owner.
    #[cfg(feature = "dpdk")]
    pub(crate) unsafe fn grow(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.len += count;
    }
}

impl<B: Buffer> Default for Burst<B> {
    fn default() -> Burst<B> {
        Burst::new()
    }
}

impl<B: Buffer> Deref for Burst<B> {
    type Target = [B];

    #[inline]
    fn deref(&self) -> &[B] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { &*ptr::slice_from_raw_parts(self.buffers.as_ptr().cast::<B>(), self.len) }
    }
}

impl<B: Buffer> DerefMut for Burst<B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [B] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(self.buffers.as_mut_ptr().cast::<B>(), self.len) }
    }
}

impl<B: Buffer> Drop for Burst<B> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<B: Buffer> fmt::Debug for Burst<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Burst({} of {BURST_MAX})", self.len)
    }
}

/// Takes buffers out of a [`Burst`] in order.
pub struct Drain<'a, B: Buffer> {
    // Invariant: entries `next..len` of the array are initialised and owned by the drain;
    // `end..len` go back to the burst when the drain is dropped.
    burst: &'a mut Burst<B>,
    next: usize,
    end: usize,
    len: usize,
}

impl<B: Buffer> Drain<'_, B> {
    /// The buffers not yet taken.
    pub fn as_slice(&self) -> &[B] {
        // SAFETY: entries `next..end` are initialised.
        unsafe { slice::from_raw_parts(self.burst.buffers.as_ptr().add(self.next).cast::<B>(), self.end - self.next) }
    }

    /// Gives up the buffers not yet taken without freeing them, because something else has taken
    /// them over.
    #[cfg(feature = "dpdk")]
    pub(crate) fn forget(&mut self) {
        self.next = self.end;
    }
}

impl<B: Buffer> Iterator for Drain<'_, B> {
    type Item = B;

    #[inline]
    fn next(&mut self) -> Option<B> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: entry `next` is initialised; moving `next` past it ends the drain's ownership.
        let buffer = unsafe { self.burst.buffers[self.next].assume_init_read() };
        self.next += 1;
        Some(buffer)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl<B: Buffer> ExactSizeIterator for Drain<'_, B> {}

impl<B: Buffer> Drop for Drain<'_, B> {
    fn drop(&mut self) {
        self.for_each(drop);
        let rest = self.len - self.end;
        if rest > 0 {
            let array = self.burst.buffers.as_mut_ptr();
            // SAFETY: both ranges lie inside the array (`end + rest == len <= BURST_MAX`); the
            // moved entries are initialised, and their old places are not counted as such any more.
            unsafe { ptr::copy(array.add(self.end), array, rest) };
        }
        self.burst.len = rest;
    }
}

#[cfg(test)]
mod tests;
