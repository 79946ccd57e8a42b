//! External ports held down before reuse (RFC 6888 REQ-8).
//!
//! They stay taken in the port table, with empty entries. This table records until when:
//!
//! ```text
//!   queue of 120 s   head ─► chunk ─next─► chunk ─next─► chunk ◄─ tail   one queue for each delay
//!   queue of  10 s   head ─► chunk ◄─ tail
//!   free chunks      chunk ─next─► chunk ─► …
//!
//!   chunk: 128 × [due: 30 bits | place: 34 bits]
//! ```
//!
//! A port costs eight bytes, written and read in sequence. At capacity the port with the least time
//! left is released early, and the caller counts it.

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::time::Duration;
use crate::time::Instant;

#[cfg(test)]
mod tests;

/// With more different delays, some ports are held too long.
pub(crate) const DELAYS_MAX: usize = 16;

const CHUNK: usize = 128;
const PLACE_BITS: u32 = 34;
const DUE_BITS: u32 = 30;
/// A tick is 2^14 µs.
const TICK_SHIFT: u32 = 14;
const NONE: u32 = u32::MAX;
const SPARE_CHUNKS: usize = 2 * DELAYS_MAX;

const _: () = assert!(PLACE_BITS + DUE_BITS == 64, "an entry is one word");

/// Due times wrap after 203 days; only differences below half of that compare.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Copy, Debug)]
struct Queue {
    delay: Duration,
    head: u32,
    tail: u32,
    head_at: u32,
    tail_at: u32,
    len: u32,
    head_due: u32,
}

pub(crate) struct HeldPorts {
    entries: Arena<u64>,
    next: Box<[u32]>,
    free: u32,
    queues: [Queue; DELAYS_MAX],
    queues_used: usize,
    len: u32,
    capacity: u32,
}

fn tick_after(at: Instant) -> u32 {
    (at.as_micros().saturating_add((1 << TICK_SHIFT) - 1) >> TICK_SHIFT) as u32 & ((1 << DUE_BITS) - 1)
}

fn tick_of(now: Instant) -> u32 {
    (now.as_micros() >> TICK_SHIFT) as u32 & ((1 << DUE_BITS) - 1)
}

fn ticks_between(from: u32, to: u32) -> i32 {
    // The shifts extend the sign.
    (to.wrapping_sub(from) << (32 - DUE_BITS)).cast_signed() >> (32 - DUE_BITS)
}

fn entry(place: usize, due: u32) -> u64 {
    debug_assert!(place < 1 << PLACE_BITS, "a place fits its bits");
    u64::from(due) << PLACE_BITS | place as u64
}

fn place_of(entry: u64) -> usize {
    (entry & ((1 << PLACE_BITS) - 1)) as usize
}

fn due_of(entry: u64) -> u32 {
    (entry >> PLACE_BITS) as u32
}

impl HeldPorts {
    pub(crate) fn new(capacity: u32) -> Result<HeldPorts, ArenaError> {
        let chunks = chunks(capacity);
        let empty =
            Queue { delay: Duration::ZERO, head: NONE, tail: NONE, head_at: 0, tail_at: 0, len: 0, head_due: 0 };
        Ok(HeldPorts {
            entries: Arena::zeroed(chunks * CHUNK)?,
            next: (0..chunks).map(|chunk| if chunk + 1 < chunks { chunk as u32 + 1 } else { NONE }).collect(),
            free: if chunks == 0 { NONE } else { 0 },
            queues: [empty; DELAYS_MAX],
            queues_used: 0,
            len: 0,
            capacity,
        })
    }

    pub(crate) fn needs(capacity: u32) -> [Need; 2] {
        let chunks = chunks(capacity);
        [Arena::<u64>::need(chunks * CHUNK), Need::Heap((chunks * size_of::<u32>()) as u64)]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes()
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns a port to release early.
    #[inline]
    pub(crate) fn hold(&mut self, place: usize, delay: Duration, now: Instant) -> Option<usize> {
        if self.capacity == 0 {
            return Some(place);
        }
        let gone = if self.len == self.capacity { self.pop_oldest() } else { None };
        let due = tick_after(now + delay.min(DELAY_MAX));
        let queue = self.queue_of(delay);
        self.push(queue, place, due);
        gone
    }

    #[inline]
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<usize> {
        let now = tick_of(now);
        let is_due = |queue: &Queue| queue.len > 0 && ticks_between(queue.head_due, now) >= 0;
        let queue = self.queues[..self.queues_used].iter().position(is_due)?;
        Some(self.pop(queue))
    }

    #[inline]
    pub(crate) fn next_is_due(&self, now: Instant) -> bool {
        let now = tick_of(now);
        self.queues[..self.queues_used].iter().any(|queue| queue.len > 0 && ticks_between(queue.head_due, now) >= 0)
    }

    #[inline]
    pub(crate) fn upcoming(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        let entries = self.first_queue().map(|queue| {
            let queue = &self.queues[queue];
            let start = queue.head as usize * CHUNK + queue.head_at as usize;
            let in_chunk = CHUNK - queue.head_at as usize;
            &self.entries[start..start + in_chunk.min(queue.len as usize).min(count)]
        });
        entries.unwrap_or_default().iter().map(|entry| place_of(*entry))
    }

    /// The place that is released `distance` places later; `None` if it is in another chunk.
    #[inline]
    pub(crate) fn ahead(&self, distance: usize) -> Option<usize> {
        self.upcoming(distance + 1).nth(distance)
    }

    #[inline]
    fn first_queue(&self) -> Option<usize> {
        let queues = &self.queues[..self.queues_used];
        let mut first: Option<usize> = None;
        for (index, queue) in queues.iter().enumerate().filter(|(_, queue)| queue.len > 0) {
            let is_earlier = first.is_none_or(|known| ticks_between(queues[known].head_due, queue.head_due) < 0);
            if is_earlier {
                first = Some(index);
            }
        }
        first
    }

    fn pop_oldest(&mut self) -> Option<usize> {
        let queue = self.first_queue()?;
        Some(self.pop(queue))
    }

    /// If all are used, the one with the next longer delay, or the longest.
    #[inline]
    fn queue_of(&mut self, delay: Duration) -> usize {
        let used = &self.queues[..self.queues_used];
        if let Some(queue) = used.iter().position(|queue| queue.delay == delay) {
            return queue;
        }
        self.new_queue(delay)
    }

    #[cold]
    fn new_queue(&mut self, delay: Duration) -> usize {
        let used = &self.queues[..self.queues_used];
        let queue = match used.iter().position(|queue| queue.len == 0) {
            Some(queue) => queue,
            None if self.queues_used < DELAYS_MAX => {
                self.queues_used += 1;
                self.queues_used - 1
            }
            None => {
                let longer = (0..DELAYS_MAX).filter(|queue| used[*queue].delay > delay);
                let longest = || (0..DELAYS_MAX).max_by_key(|queue| used[*queue].delay).unwrap_or(0);
                return longer.min_by_key(|queue| used[*queue].delay).unwrap_or_else(longest);
            }
        };
        self.queues[queue].delay = delay;
        queue
    }

    #[inline]
    fn push(&mut self, queue: usize, place: usize, due: u32) {
        let state = &mut self.queues[queue];
        if state.len == 0 || state.tail_at as usize == CHUNK {
            let chunk = self.free;
            debug_assert!(chunk != NONE, "there are chunks for all ports there is room for");
            self.free = self.next[chunk as usize];
            self.next[chunk as usize] = NONE;
            if state.len == 0 {
                (state.head, state.head_at, state.head_due) = (chunk, 0, due);
            } else {
                self.next[state.tail as usize] = chunk;
            }
            (state.tail, state.tail_at) = (chunk, 0);
        }
        self.entries[state.tail as usize * CHUNK + state.tail_at as usize] = entry(place, due);
        state.tail_at += 1;
        state.len += 1;
        self.len += 1;
    }

    #[inline]
    fn pop(&mut self, queue: usize) -> usize {
        let state = &mut self.queues[queue];
        let gone = self.entries[state.head as usize * CHUNK + state.head_at as usize];
        state.head_at += 1;
        state.len -= 1;
        self.len -= 1;
        if state.len == 0 || state.head_at as usize == CHUNK {
            let chunk = state.head;
            (state.head, state.head_at) = (self.next[chunk as usize], 0);
            self.next[chunk as usize] = self.free;
            self.free = chunk;
        }
        if state.len > 0 {
            state.head_due = due_of(self.entries[state.head as usize * CHUNK + state.head_at as usize]);
        }
        place_of(gone)
    }
}

fn chunks(capacity: u32) -> usize {
    if capacity == 0 { 0 } else { (capacity as usize).div_ceil(CHUNK) + SPARE_CHUNKS }
}
