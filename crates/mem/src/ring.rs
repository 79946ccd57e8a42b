//! A bounded, lock-free ring from one thread to another.
//!
//! ```text
//!            consumer: head ──┐                 ┌── tail: producer
//!   slots   [   ][   ][   ][ a ][ b ][ c ][ d ][   ]
//!
//! positions only grow; slot = position & mask
//! ```
//!
//! Each side keeps its position and a copy of the other's, which it renews only when the ring looks
//! full (or empty): in steady state a burst moves one position line and the slots between the
//! cores. Padding is 128 bytes, because Intel CPUs fetch lines in pairs.

#![allow(unsafe_code, reason = "slots are shared between two threads")]

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering;
use std::sync::Arc;

pub mod file;

/// Keeps `T` on its own cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

#[derive(Default)]
#[repr(C)]
struct Positions {
    /// Written by the consumer only.
    released: Padded<Released>,
    /// Next position to push that the consumer may see; written by the producer only.
    tail: Padded<AtomicUsize>,
    /// The consumer does not wait for these; written by the producer only.
    progress: Padded<Progress>,
}

#[derive(Default)]
#[repr(C)]
struct Released {
    /// Next position to pop.
    head: AtomicUsize,
    /// See [`Consumer::release_at`].
    note: AtomicU64,
}

#[derive(Default)]
#[repr(C)]
struct Progress {
    /// Next position to push: staged items in the file of a killed process are read, too.
    staged: AtomicUsize,
    /// See [`Producer::mark`].
    mark: AtomicU64,
    /// Items that found no room, in a ring in a file: the last one is in its header.
    refused: AtomicU64,
}

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

struct Shared<T> {
    positions: NonNull<Positions>,
    slots: NonNull<Slot<T>>,
    /// A power of two.
    capacity: usize,
    /// Start and bytes of the mapped file with both; None on the heap.
    mapped: Option<(NonNull<u8>, usize)>,
    /// Two places for the last item that found no room, in a mapped file.
    refused: Option<NonNull<Refused<T>>>,
}

/// An item that found no room.
#[repr(C)]
struct Refused<T> {
    /// The position that it would have had.
    position: u64,
    item: T,
}

// SAFETY: only the consumer touches slots in head..tail, and only the producer the others; the
// positions change sides with Release and Acquire. Items go from one thread to another, hence `T:
// Send`.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the ring owns its items.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn on_heap(capacity: usize) -> Shared<T> {
        let slots: Box<[Slot<T>]> = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        let positions = NonNull::from(Box::leak(Box::<Positions>::default()));
        Shared { positions, slots: NonNull::from(Box::leak(slots)).cast(), capacity, mapped: None, refused: None }
    }

    #[inline(always)]
    fn positions(&self) -> &Positions {
        // SAFETY: the memory lives as long as `self`, and all of it is atomic.
        unsafe { self.positions.as_ref() }
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> &Slot<T> {
        // SAFETY: the masked position is below `capacity`, the number of slots; they live as long
        // as `self`.
        unsafe { self.slots.add(position & (self.capacity - 1)).as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if let Some((start, bytes)) = self.mapped {
            // SAFETY: exactly this range was mapped for this ring, and no end of it is left. Its
            // items need no drop.
            unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
            return;
        }
        let tail = self.positions().tail.0.load(Ordering::Relaxed);
        let mut position = self.positions().released.0.head.load(Ordering::Relaxed);
        while position != tail {
            // SAFETY: positions in head..tail hold items, and no other access is left.
            unsafe { (*self.slot(position).get()).assume_init_drop() };
            position = position.wrapping_add(1);
        }
        let slots = NonNull::slice_from_raw_parts(self.slots, self.capacity);
        // SAFETY: both were leaked by `on_heap` and have no other owner.
        unsafe { drop((Box::from_raw(self.positions.as_ptr()), Box::from_raw(slots.as_ptr()))) };
    }
}

/// The pushing end, for one thread.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// What the consumer can see.
    published: usize,
    /// Last known; the real one is at least this.
    head_seen: usize,
}

/// The popping end, for one thread.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// Slots before this position are the producer's again.
    released: usize,
    /// Last known; the real one is at least this.
    tail_seen: usize,
}

/// `capacity` is rounded up to a power of two.
pub fn channel<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    ends(Shared::on_heap(capacity.max(1).next_power_of_two()))
}

fn ends<T>(shared: Shared<T>) -> (Producer<T>, Consumer<T>) {
    let shared = Arc::new(shared);
    let producer = Producer { shared: Arc::clone(&shared), tail: 0, published: 0, head_seen: 0 };
    (producer, Consumer { shared, head: 0, released: 0, tail_seen: 0 })
}

impl<T: Send> Producer<T> {
    /// Capacity in items.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// The consumer may be taking some right now.
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.shared.positions().released.0.head.load(Ordering::Acquire))
    }

    /// True if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the consumer is gone: nothing pushed will be popped.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) < 2
    }

    /// Free slots, at least `wanted` if there are as many.
    #[inline]
    fn free(&mut self, wanted: usize) -> usize {
        let capacity = self.shared.capacity;
        let free = capacity - self.tail.wrapping_sub(self.head_seen);
        if free >= wanted {
            return free;
        }
        self.head_seen = self.shared.positions().released.0.head.load(Ordering::Acquire);
        capacity - self.tail.wrapping_sub(self.head_seen)
    }

    /// Known free slots, at least `wanted` if there are as many. Reads the other core's line only
    /// if fewer are known.
    #[inline]
    pub fn room(&mut self, wanted: usize) -> usize {
        self.free(wanted.min(self.capacity()))
    }

    /// The consumer cannot see it yet.
    #[inline]
    fn write(&mut self, item: T) {
        let slot = self.shared.slot(self.tail);
        // SAFETY: callers checked that the slot is free, so the consumer is done with it and does
        // not read it before `publish`.
        unsafe { (*slot.get()).write(item) };
        self.tail = self.tail.wrapping_add(1);
        self.note_staged();
    }

    /// Call it after the slots are written.
    #[inline]
    fn note_staged(&self) {
        self.shared.positions().progress.0.staged.store(self.tail, Ordering::Release);
    }

    /// Leaves a time before which nothing follows. The consumer sees it together with everything
    /// published before.
    #[inline]
    pub fn mark(&self, mark: u64) {
        self.shared.positions().progress.0.mark.store(mark, Ordering::Release);
    }

    /// Shows staged items to the consumer.
    #[inline]
    pub fn publish(&mut self) {
        // Without a change the line stays with the consumer's core.
        if self.published != self.tail {
            self.published = self.tail;
            self.shared.positions().tail.0.store(self.tail, Ordering::Release);
        }
    }

    /// Pushes an item that the consumer sees after [`Producer::publish`] or the next push. So a
    /// polling consumer costs one line transfer a burst, not one an item.
    ///
    /// # Errors
    /// The item, if the ring is full.
    #[inline]
    pub fn stage(&mut self, item: T) -> Result<(), T> {
        if self.free(1) == 0 {
            return Err(self.note_refused(item));
        }
        self.write(item);
        Ok(())
    }

    /// Leaves an item that found no room in the header of the file: its reader learns what is
    /// missing at the end of a ring that never had room again.
    #[cold]
    fn note_refused(&mut self, item: T) -> T {
        let Some(places) = self.shared.refused else { return item };
        let count = &self.shared.positions().progress.0.refused;
        let number = count.load(Ordering::Relaxed);
        let position = self.tail as u64;
        // SAFETY: both places are inside the mapping, aligned, and written by the producer only. A
        // mapped ring has items that need no drop (`file::create`), so the copy is one more value.
        unsafe {
            let refused = Refused { position, item: core::ptr::read(&item) };
            places.add((number & 1) as usize).write(refused);
        }
        // A kill before this leaves the one before.
        count.store(number.wrapping_add(1), Ordering::Release);
        item
    }

    /// Takes back the last staged item that is not published.
    pub fn unstage(&mut self) -> Option<T> {
        if self.published == self.tail {
            return None;
        }
        self.tail = self.tail.wrapping_sub(1);
        self.note_staged();
        let slot = self.shared.slot(self.tail);
        // SAFETY: the slot was written when it was staged, and the consumer does not read it before
        // `publish`; `tail` moved back, so the item is taken once.
        Some(unsafe { (*slot.get()).assume_init_read() })
    }

    /// Stages an item and publishes it.
    ///
    /// # Errors
    /// The item, if the ring is full.
    #[inline]
    pub fn try_push(&mut self, item: T) -> Result<(), T> {
        self.stage(item)?;
        self.publish();
        Ok(())
    }

    /// Pushes items while there is room and returns their number; takes none that does not fit.
    #[inline]
    pub fn push_burst<I: Iterator<Item = T>>(&mut self, items: &mut I) -> usize {
        let wanted = items.size_hint().0.clamp(1, self.capacity());
        let free = self.free(wanted);
        let mut count = 0;
        while count < free
            && let Some(item) = items.next()
        {
            self.write(item);
            count += 1;
        }
        self.publish();
        count
    }
}

impl<T> Drop for Producer<T> {
    /// The ring drops staged items that are not popped.
    fn drop(&mut self) {
        self.shared.positions().tail.0.store(self.tail, Ordering::Release);
    }
}

impl<T: Send> Consumer<T> {
    /// Capacity in items.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// The producer may be adding some right now.
    pub fn len(&self) -> usize {
        self.shared.positions().tail.0.load(Ordering::Acquire).wrapping_sub(self.head)
    }

    /// True if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the producer is gone: an empty ring stays empty.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) < 2
    }

    /// Filled slots, at least `wanted` if there are as many.
    #[inline]
    fn filled(&mut self, wanted: usize) -> usize {
        let filled = self.tail_seen.wrapping_sub(self.head);
        if filled >= wanted {
            return filled;
        }
        self.tail_seen = self.shared.positions().tail.0.load(Ordering::Acquire);
        self.tail_seen.wrapping_sub(self.head)
    }

    /// The producer does not get the slot yet.
    #[inline]
    fn read(&mut self) -> T {
        let slot = self.shared.slot(self.head);
        // SAFETY: callers checked that the slot is filled, so the producer is done with it and does
        // not touch it before `release`; `head` moves on, so the item is taken once.
        let item = unsafe { (*slot.get()).assume_init_read() };
        self.head = self.head.wrapping_add(1);
        item
    }

    /// Returns the slots of all taken items to the producer.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.shared.positions().released.0.head.store(self.head, Ordering::Release);
        }
    }

    /// [`Consumer::release`] with a number for a reader of the ring's file: what the items before
    /// this place were. It is never behind the released position.
    #[inline]
    pub fn release_at(&mut self, note: u64) {
        if self.released != self.head {
            self.shared.positions().released.0.note.store(note, Ordering::Release);
        }
        self.release();
    }

    /// Items taken by [`Consumer::hold_burst`] and not released.
    pub fn held(&self) -> usize {
        self.head.wrapping_sub(self.released)
    }

    /// The producer's last mark; what it published before can be popped from now on.
    pub fn mark(&self) -> u64 {
        self.shared.positions().progress.0.mark.load(Ordering::Acquire)
    }

    /// Like [`Consumer::pop_burst`], but until [`Consumer::release`] the items stay in the ring,
    /// for a reader of its file.
    #[inline]
    pub fn hold_burst(&mut self, max: usize, mut take: impl FnMut(T)) -> usize
    where
        T: Copy,
    {
        let count = self.filled(max).min(max);
        for _ in 0..count {
            take(self.read());
        }
        count
    }

    /// Pops one item, if any.
    #[inline]
    pub fn try_pop(&mut self) -> Option<T> {
        if self.filled(1) == 0 {
            return None;
        }
        let item = self.read();
        self.release();
        Some(item)
    }

    /// Passes up to `max` items to `take`, in order, and returns their number.
    #[inline]
    pub fn pop_burst(&mut self, max: usize, mut take: impl FnMut(T)) -> usize {
        let count = self.filled(max).min(max);
        // Also if `take` panics: items already taken must not be seen again.
        let release = ReleaseOnDrop(self);
        for _ in 0..count {
            take(release.0.read());
        }
        count
    }
}

struct ReleaseOnDrop<'a, T: Send>(&'a mut Consumer<T>);

impl<T: Send> Drop for ReleaseOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("tail", &self.tail).field("capacity", &self.shared.capacity).finish()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("head", &self.head).field("capacity", &self.shared.capacity).finish()
    }
}

#[cfg(test)]
mod tests;
