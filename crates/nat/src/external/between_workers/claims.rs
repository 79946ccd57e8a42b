//! The outside five-tuples of all workers' flows: a lock-free set.
//!
//! ```text
//!   slot: [tag 57 bits | firm 1 bit | worker 6 bits], 0 = free
//!   window of a hash: 32 slots, four cache lines
//! ```
//!
//! Two five-tuples with the same tag in one window (one pair in 2^57) cannot both be claimed: the
//! second flow gets another port (ADR 11).
//!
//! A claim writes a tentative entry, searches the window for its tag, and makes the entry firm. A
//! firm entry with the tag was first; a tentative one is struck out, so its owner fails. Each of
//! two claims writes before it reads, so both may fail, but never both succeed.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use std::sync::OnceLock;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::random::KeyedHash;
use crate::state::flow::OutsideKey;
use crate::types::WorkerId;

#[cfg(test)]
mod tests;

const LINE: usize = 8;
const WINDOW_LINES: usize = 4;
/// With half of them in use, one window in 10,000 is full.
const SLOTS_PER_FLOW: usize = 2;
const WORKER_BITS: u32 = 6;
const WORKER: u64 = (1 << WORKER_BITS) - 1;
const FIRM: u64 = 1 << WORKER_BITS;
/// Set in every tag, so no entry is 0.
const THERE: u64 = FIRM << 1;
const TAG: u64 = !(FIRM | WORKER);

const _: () = assert!(WorkerId::COUNT_MAX <= 1 << WORKER_BITS, "a worker fits an entry");

pub(crate) struct Claims {
    slots: Arena<AtomicU64>,
    lines: usize,
    hash: OnceLock<KeyedHash>,
}

impl Claims {
    /// 16 bytes a flow.
    pub(crate) fn new(flows_max: usize) -> Result<Claims, ArenaError> {
        let lines = Claims::lines_for(flows_max);
        Ok(Claims { slots: Arena::zeroed(lines * LINE)?, lines, hash: OnceLock::new() })
    }

    fn lines_for(flows_max: usize) -> usize {
        flows_max.saturating_mul(SLOTS_PER_FLOW).div_ceil(LINE).max(WINDOW_LINES)
    }

    pub(crate) fn need(flows_max: usize) -> Need {
        Arena::<AtomicU64>::need(Claims::lines_for(flows_max).saturating_mul(LINE))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Only the first call counts, for all workers.
    pub(crate) fn seed(&self, hash: KeyedHash) {
        let _ = self.hash.set(hash);
    }

    fn hash_of(&self, key: &OutsideKey) -> u64 {
        self.hash.get().map_or(0, |hash| key.hash(hash))
    }

    fn window(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> + '_ {
        let first = ((hash & 0xffff_ffff) * self.lines as u64) >> 32;
        let lines = (first as usize..self.lines).chain(0..self.lines).take(WINDOW_LINES);
        lines.flat_map(|line| &self.slots[line * LINE..(line + 1) * LINE])
    }

    fn find(&self, hash: u64) -> Option<(&AtomicU64, u64)> {
        let wanted = hash & TAG | THERE | FIRM;
        let entries = self.window(hash).map(|slot| (slot, slot.load(Ordering::SeqCst)));
        let mut matching = entries.filter(|(_, entry)| entry & !WORKER == wanted);
        matching.next()
    }

    /// Reads one line, or four if no worker has claimed it.
    pub(crate) fn worker_of(&self, key: &OutsideKey) -> Option<WorkerId> {
        self.find(self.hash_of(key)).map(|(_, entry)| WorkerId((entry & WORKER) as u8))
    }

    /// False if another worker claims it, or its window is full.
    pub(crate) fn claim(&self, key: &OutsideKey, worker: WorkerId) -> bool {
        self.claim_hash(self.hash_of(key), worker)
    }

    fn claim_hash(&self, hash: u64, worker: WorkerId) -> bool {
        let tentative = hash & TAG | THERE | u64::from(worker.0);
        let enter = |slot: &&AtomicU64| {
            slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, tentative, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let Some(own) = self.window(hash).find(enter) else { return false };
        for slot in self.window(hash).filter(|slot| !core::ptr::eq(*slot, own)) {
            let entry = slot.load(Ordering::SeqCst);
            if entry & TAG != tentative & TAG {
                continue;
            }
            let is_struck_out = entry & FIRM == 0
                && match slot.compare_exchange(entry, 0, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => true,
                    // Struck out by another worker or withdrawn. A firm one was first.
                    Err(now) => now & TAG != tentative & TAG,
                };
            if !is_struck_out {
                // Another worker may have struck it out.
                let _ = own.compare_exchange(tentative, 0, Ordering::SeqCst, Ordering::SeqCst);
                return false;
            }
        }
        own.compare_exchange(tentative, tentative | FIRM, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn release(&self, key: &OutsideKey, worker: WorkerId) {
        self.release_hash(self.hash_of(key), worker);
    }

    fn release_hash(&self, hash: u64, worker: WorkerId) {
        let found = self.find(hash);
        debug_assert!(
            found.is_some_and(|(_, entry)| entry & WORKER == u64::from(worker.0)),
            "only what was claimed is released"
        );
        if let Some((slot, _)) = found.filter(|(_, entry)| entry & WORKER == u64::from(worker.0)) {
            slot.store(0, Ordering::SeqCst);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.slots.iter().filter(|slot| slot.load(Ordering::SeqCst) != 0).count()
    }
}
