//! Queues through control sessions: the oldest is found without a search.

use super::AlgSession;

#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    OfAll = 0,
    OfOwner = 1,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    previous: u32,
    next: u32,
}

impl Links {
    pub(super) const NONE: Links = Links { previous: NONE, next: NONE };
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue { first: NONE, last: NONE };

    pub(super) fn first(&self) -> Option<u32> {
        Some(self.first).filter(|first| *first != NONE)
    }

    /// `index` must not be queued.
    pub(super) fn append(&mut self, list: &mut [AlgSession], which: Which, index: u32) {
        list[index as usize].links[which as usize] = Links { previous: self.last, next: NONE };
        match self.last {
            NONE => self.first = index,
            last => list[last as usize].links[which as usize].next = index,
        }
        self.last = index;
    }

    /// `index` must be queued.
    pub(super) fn unlink(&mut self, list: &mut [AlgSession], which: Which, index: u32) {
        let Links { previous, next } = list[index as usize].links[which as usize];
        match previous {
            NONE => self.first = next,
            previous => list[previous as usize].links[which as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => list[next as usize].links[which as usize].previous = previous,
        }
    }
}
