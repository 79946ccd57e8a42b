//! Ports that are withheld from an address, or offered again, while traffic flows (ADR 13).
//!
//! Withheld are ports outside a pool's range, reserved ports, and all ports of a draining address.
//! In each state exactly one party may change a port:
//!
//! ```text
//!   used withheld kept
//!     0     0      0    free: the worker that sets `used` owns it
//!     1     0      0    in use
//!     1     1      0    in use; becomes kept when given back
//!     1     1      1    withheld and unused; the thread that clears `kept` owns it
//! ```
//!
//! Only one thread at a time withholds and offers; with [`PortTable::for_one_worker`] it must be
//! that worker's thread.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use super::PORTS;
use super::Parity;
use super::PortTable;
use super::WORDS;
use super::space;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// One bit a port.
pub type Mask = Box<[u64; WORDS]>;

/// A withheld port may be in use.
const WATCHED: u8 = 1;
/// Some port between the lowest and the highest offered one is withheld.
const GAPS: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct Offer {
    /// Lowest and highest port, 16 bits each; 0 for none.
    range: AtomicU32,
    count: AtomicU32,
    flags: AtomicU8,
}

impl Offer {
    #[inline]
    pub(super) fn range(&self) -> (u16, u16) {
        let range = self.range.load(Ordering::Relaxed);
        ((range >> 16) as u16, range as u16)
    }

    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        // With writes to `used`: either the worker that gives back sees this flag, or the thread
        // that withholds sees the port free.
        self.flags.load(Ordering::SeqCst) & WATCHED != 0
    }
}

impl PortTable {
    /// Withholds free ports of `mask` at once, others when given back.
    pub fn withhold(&self, address: AddressIndex, protocol: Protocol, mask: &Mask) {
        let base = space(address, protocol);
        // If nothing was offered, no port can be given back.
        if self.offers[base].count() > 0 {
            self.offers[base].flags.fetch_or(WATCHED, Ordering::SeqCst);
        }
        for (word, wanted) in mask.iter().enumerate() {
            let withheld = &self.withheld[base * WORDS + word];
            let more = wanted & !withheld.load(Ordering::SeqCst);
            if more == 0 {
                continue;
            }
            self.set(withheld, more);
            let before = self.set(&self.used[base * WORDS + word], more);
            let free = more & !before;
            if free != 0 {
                self.set(&self.kept[base * WORDS + word], free);
                self.note_full(base, word, before | more);
            }
        }
        self.describe(base);
    }

    /// Offers withheld ports not in `mask`; those in use become free when given back.
    pub fn offer(&self, address: AddressIndex, protocol: Protocol, mask: &Mask) {
        let base = space(address, protocol);
        for (word, wanted) in mask.iter().enumerate() {
            self.offer_in(base, word, !wanted);
        }
        self.describe(base);
    }

    /// Offers these ports if withheld: one bit a port, from `first_word` on.
    pub(crate) fn offer_more(&self, address: AddressIndex, protocol: Protocol, first_word: usize, ports: &[u64]) {
        let base = space(address, protocol);
        for (word, wanted) in (first_word..WORDS).zip(ports) {
            self.offer_in(base, word, *wanted);
        }
        self.describe(base);
    }

    fn offer_in(&self, base: usize, word: usize, wanted: u64) {
        let withheld = &self.withheld[base * WORDS + word];
        let less = withheld.load(Ordering::SeqCst) & wanted;
        if less == 0 {
            return;
        }
        self.clear(withheld, less);
        let out = self.clear(&self.kept[base * WORDS + word], less) & less;
        if out != 0 {
            self.clear(&self.used[base * WORDS + word], out);
            for parity in Parity::BOTH.into_iter().filter(|parity| out & parity.mask() != 0) {
                self.note_free(base, word, parity);
            }
        }
    }

    /// True if withheld, in use or not.
    pub fn is_withheld(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        self.is_withheld_at(space(address, protocol), port)
    }

    /// True if withheld but in use: nothing new may begin there.
    #[inline]
    pub fn is_going_out(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let base = space(address, protocol);
        self.offers[base].is_watched() && self.is_withheld_at(base, port)
    }

    /// Takes a withheld, unused port for a configured owner.
    pub fn claim_withheld(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let base = space(address, protocol);
        // First, because giving the port back must check the flag.
        if !self.offers[base].is_watched() {
            self.offers[base].flags.fetch_or(WATCHED, Ordering::SeqCst);
        }
        self.is_withheld_at(base, port) && self.unkeep(base, port)
    }

    /// True if [`PortTable::claim_withheld`] would take this port.
    pub fn is_kept(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let base = space(address, protocol);
        let kept = self.kept[base * WORDS + usize::from(port / 64)].load(Ordering::SeqCst);
        self.is_withheld_at(base, port) && kept >> (port % 64) & 1 != 0
    }

    /// True if no port or block is in use and no subscriber is paired.
    pub fn is_idle(&self, address: AddressIndex) -> bool {
        self.paired_subscribers(address) == 0
            && self.ports_leased(address) == 0
            && Protocol::ALL.iter().all(|protocol| self.used(address, *protocol) == 0)
    }

    /// Withheld ports, if some lie between offered ones.
    #[inline]
    pub(super) fn gaps(&self, address: AddressIndex, protocol: Protocol) -> Option<&[AtomicU64]> {
        let base = space(address, protocol);
        let has_gaps = self.offers[base].flags.load(Ordering::Relaxed) & GAPS != 0;
        has_gaps.then(|| &self.withheld[base * WORDS..(base + 1) * WORDS])
    }

    #[inline]
    fn is_withheld_at(&self, base: usize, port: u16) -> bool {
        self.withheld[base * WORDS + usize::from(port / 64)].load(Ordering::SeqCst) >> (port % 64) & 1 != 0
    }

    /// True if the port was kept, and now belongs to the caller.
    fn unkeep(&self, base: usize, port: u16) -> bool {
        let kept = &self.kept[base * WORDS + usize::from(port / 64)];
        self.clear(kept, 1 << (port % 64)) >> (port % 64) & 1 != 0
    }

    /// Keeps a withheld port that is given back. False if the caller still owns the port.
    #[cold]
    pub(super) fn keep(&self, base: usize, port: u16) -> bool {
        if !self.is_withheld_at(base, port) {
            return false;
        }
        self.set(&self.kept[base * WORDS + usize::from(port / 64)], 1 << (port % 64));
        // Offered again meanwhile, the port belongs to the thread that clears the bit.
        let is_out = self.is_withheld_at(base, port) || !self.unkeep(base, port);
        if is_out {
            self.note_block_free_around(base, usize::from(port / 64));
        }
        is_out
    }

    #[cold]
    pub(super) fn take_back(&self, base: usize, port: u16) {
        if !self.is_withheld_at(base, port) {
            return;
        }
        let (word, bit) = (usize::from(port / 64), 1 << (port % 64));
        let before = self.set(&self.used[base * WORDS + word], bit);
        // Otherwise its owner is the thread that withheld it, or a worker that will give it back.
        if before & bit == 0 {
            self.note_full(base, word, before | bit);
            if !self.keep(base, port) {
                self.free(base, port);
            }
        }
    }

    fn describe(&self, base: usize) {
        let words = &self.withheld[base * WORDS..(base + 1) * WORDS];
        let offered = |word: usize| !words[word].load(Ordering::SeqCst);
        let count: u32 = (0..WORDS).map(|word| offered(word).count_ones()).sum();
        let first =
            (0..WORDS).find(|word| offered(*word) != 0).map(|word| word * 64 + offered(word).trailing_zeros() as usize);
        let last = (0..WORDS)
            .rfind(|word| offered(*word) != 0)
            .map(|word| word * 64 + 63 - offered(word).leading_zeros() as usize);
        let (lowest, highest) = (first.unwrap_or(0), last.unwrap_or(0));
        debug_assert!(highest < PORTS, "a port has 16 bits");
        let offer = &self.offers[base];
        if count > 0 && count as usize != highest + 1 - lowest {
            offer.flags.fetch_or(GAPS, Ordering::Relaxed);
        } else {
            offer.flags.fetch_and(!GAPS, Ordering::Relaxed);
        }
        offer.range.store((lowest as u32) << 16 | highest as u32, Ordering::Relaxed);
        offer.count.store(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
