//! Packet buffers in one preallocated block of memory.
//!
//! ```text
//!   head ──▶ 3 ──▶ 0 ──▶ 7 ──▶ none   free slots: a stack of slot numbers, linked by `next`
//!   slot:  | HEADROOM | frame ............ |
//! ```

#![allow(unsafe_code, reason = "each buffer borrows its slot of the shared block for as long as it is not freed")]

use core::cell::UnsafeCell;
use core::fmt;
use core::slice;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use crate::io::Buffer;

/// Bytes in front of a fresh frame, for link headers to grow into. The same as DPDK's default.
pub const HEADROOM: usize = 128;

/// End of the stack of free slots.
const NONE: u32 = u32::MAX;

/// A bounded pool of packet buffers. Clones share it. Taking and freeing a buffer neither allocates
/// nor locks.
#[derive(Clone)]
pub struct MemoryPool {
    shared: Arc<Shared>,
}

struct Shared {
    bytes: Box<[UnsafeCell<u8>]>,
    slot_bytes: usize,
    /// Slot below each free slot in the stack.
    next: Box<[AtomicU32]>,
    /// Top of the stack in the low half. The high half counts changes, so that a compare-and-swap
    /// fails when the same slot was taken and freed in between.
    head: AtomicU64,
    free: AtomicUsize,
}

// SAFETY: a slot's bytes are touched only through the one MemoryBuffer that took it off the stack,
// and the release/acquire pair on `head` orders the last access of one owner before the first of
// the next.
unsafe impl Sync for Shared {}
// SAFETY: the block is plain memory without ties to a thread.
unsafe impl Send for Shared {}

impl MemoryPool {
    /// A pool of `buffers` buffers for frames of up to `frame_bytes` bytes. Buffers are limited to
    /// 2^32 - 1.
    pub fn new(buffers: usize, frame_bytes: usize) -> MemoryPool {
        let buffers = buffers.min(NONE as usize - 1);
        let slot_bytes = HEADROOM + frame_bytes;
        let below = |slot: usize| if slot + 1 == buffers { NONE } else { slot as u32 + 1 };
        let shared = Shared {
            bytes: zeroed(buffers * slot_bytes),
            slot_bytes,
            next: (0..buffers).map(|slot| AtomicU32::new(below(slot))).collect(),
            head: AtomicU64::new(if buffers == 0 { u64::from(NONE) } else { 0 }),
            free: AtomicUsize::new(buffers),
        };
        MemoryPool { shared: Arc::new(shared) }
    }

    /// Takes an empty buffer when one is free.
    pub fn allocate(&self) -> Option<MemoryBuffer> {
        let slot = self.shared.take()?;
        Some(MemoryBuffer { shared: Arc::clone(&self.shared), slot, start: HEADROOM, len: 0 })
    }

    /// Free buffers.
    pub fn free_count(&self) -> usize {
        self.shared.free.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let slot = head as u32;
            let below = self.next.get(slot as usize)?.load(Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, successor(head, below), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    self.free.fetch_sub(1, Ordering::Relaxed);
                    return Some(slot);
                }
                Err(now) => head = now,
            }
        }
    }

    fn give(&self, slot: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.next[slot as usize].store(head as u32, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, successor(head, slot), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.free.fetch_add(1, Ordering::Relaxed);
    }
}

/// Zeroed bytes; large blocks cost no memory until they are touched.
fn zeroed(count: usize) -> Box<[UnsafeCell<u8>]> {
    let bytes = Box::into_raw(vec![0u8; count].into_boxed_slice());
    // SAFETY: the box was just given up, and UnsafeCell<u8> has the layout of u8.
    unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) }
}

/// The head after `head` with `slot` on top: the change count goes up by one.
fn successor(head: u64, slot: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(slot)
}

/// A buffer of a [`MemoryPool`]; dropping it puts it back.
pub struct MemoryBuffer {
    shared: Arc<Shared>,
    slot: u32,
    // Invariant: start + len <= slot_bytes.
    start: usize,
    len: usize,
}

impl MemoryBuffer {
    /// First byte of the whole slot, headroom included.
    fn slot_start(&self) -> *mut u8 {
        self.shared.bytes[self.slot as usize * self.shared.slot_bytes..][..self.shared.slot_bytes]
            .as_ptr()
            .cast_mut()
            .cast::<u8>()
    }
}

impl Buffer for MemoryBuffer {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `start + len` is inside the slot, which this buffer alone owns; UnsafeCell<u8>
        // has the layout of u8.
        unsafe { slice::from_raw_parts(self.slot_start().add(self.start), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the borrow is exclusive because the buffer is borrowed
        // exclusively, and the memory may be written through a shared reference because it is in
        // UnsafeCells.
        unsafe { slice::from_raw_parts_mut(self.slot_start().add(self.start), self.len) }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn frame_mut(&mut self) -> (&mut [u8], u16) {
        // SAFETY: `start + len` is inside the slot; the rest as in `bytes_mut`.
        (unsafe { slice::from_raw_parts_mut(self.slot_start(), self.start + self.len) }, self.start as u16)
    }

    fn set_frame(&mut self, start: u16, len: u16) -> Option<&mut [u8]> {
        if usize::from(start) + usize::from(len) > self.shared.slot_bytes {
            return None;
        }
        (self.start, self.len) = (usize::from(start), usize::from(len));
        Some(self.bytes_mut())
    }

    fn fill(&mut self, parts: &[&[u8]]) -> bool {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total > self.shared.slot_bytes - HEADROOM {
            return false;
        }
        self.start = HEADROOM;
        self.len = total;
        let mut rest = self.bytes_mut();
        for part in parts {
            let (front, back) = rest.split_at_mut(part.len());
            front.copy_from_slice(part);
            rest = back;
        }
        true
    }
}

impl Drop for MemoryBuffer {
    fn drop(&mut self) {
        self.shared.give(self.slot);
    }
}

impl fmt::Debug for MemoryBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBuffer({:02x?})", self.bytes())
    }
}
