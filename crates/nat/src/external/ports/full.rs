//! Hints which words and which addresses are full.

use core::sync::atomic::Ordering;

use super::PortTable;
use super::SUMMARY_WORDS;
use super::WORDS;
use super::aim::PortAim;
use super::class::Parity;
use super::class::PortClass;
use super::space;
use crate::types::AddressIndex;
use crate::types::Protocol;

impl PortTable {
    #[inline]
    pub(super) fn is_full(&self, base: usize, parity: Option<Parity>, aim: PortAim) -> bool {
        let word = usize::from(aim.0 / 64);
        let full = |parity| self.full[summary_of(base, parity, word)].load(Ordering::Relaxed) >> (word % 64) & 1 != 0;
        match parity {
            Some(parity) => full(parity),
            None => full(Parity::Even) && full(Parity::Odd),
        }
    }

    pub(super) fn words_not_full(
        &self,
        base: usize,
        class: PortClass,
        protocol: Protocol,
        parity: Option<Parity>,
    ) -> [u64; SUMMARY_WORDS] {
        core::array::from_fn(|index| self.words_not_full_in(base, class, protocol, parity, index))
    }

    #[inline]
    pub(super) fn words_not_full_in(
        &self,
        base: usize,
        class: PortClass,
        protocol: Protocol,
        parity: Option<Parity>,
        index: usize,
    ) -> u64 {
        let (first, end) = class.words(protocol);
        let leased = self.blocks.leased(base / Protocol::COUNT, index);
        self.words_open(base, parity, index) & !leased & bits_below(end, index) & !bits_below(first, index)
    }

    /// Those not known to be full of the 64 words from `64 × index` on.
    #[inline]
    pub(super) fn words_open(&self, base: usize, parity: Option<Parity>, index: usize) -> u64 {
        let full = |parity| self.full[summary_of(base, parity, index * 64)].load(Ordering::SeqCst);
        match parity {
            Some(parity) => !full(parity),
            None => !(full(Parity::Even) & full(Parity::Odd)),
        }
    }

    #[inline(always)]
    pub(super) fn note_full(&self, base: usize, word: usize, used: u64) {
        if Parity::BOTH.iter().any(|parity| used & parity.mask() == parity.mask()) {
            self.note_full_of(base, word, used);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_full_of(&self, base: usize, word: usize, used: u64) {
        for parity in Parity::BOTH {
            let mask = parity.mask();
            if used & mask != mask {
                continue;
            }
            let summary = &self.full[summary_of(base, parity, word)];
            let bit = 1 << (word % 64);
            if summary.load(Ordering::SeqCst) & bit != 0 {
                continue;
            }
            self.set(summary, bit);
            // A port may have come back between the two writes: "full" must not stay where one is
            // free.
            if self.used[base * WORDS + word].load(Ordering::SeqCst) & mask != mask {
                self.note_free(base, word, parity);
            }
        }
    }

    pub(super) fn note_free(&self, base: usize, word: usize, parity: Parity) {
        let summary = &self.full[summary_of(base, parity, word)];
        let bit = 1 << (word % 64);
        if summary.load(Ordering::SeqCst) & bit != 0 {
            self.clear(summary, bit);
        }
        // After the summary, which is read after this hint is set.
        let address = base / Protocol::COUNT;
        let hint = &self.address_full[base % Protocol::COUNT][address / 64];
        let bit = 1 << (address % 64);
        if hint.load(Ordering::SeqCst) & bit != 0 {
            self.clear(hint, bit);
        }
        self.note_block_free_around(base, word);
    }

    pub(super) fn note_block_free_around(&self, base: usize, word: usize) {
        let address = base / Protocol::COUNT;
        if self.blocks.is_full(address) && !self.blocks.is_leased(address, word) {
            let place = base * WORDS + word;
            let offered = !self.kept[place].load(Ordering::SeqCst);
            if self.used[place].load(Ordering::SeqCst) & offered == 0 {
                self.blocks.set_not_full(address);
            }
        }
    }

    pub(super) fn note_exhausted(&self, address: AddressIndex, protocol: Protocol) {
        let hint = &self.address_full[protocol.index()][address.index() / 64];
        let bit = 1 << (address.index() % 64);
        self.set(hint, bit);
        // Corrected as in `note_full`.
        if !self.is_exhausted(address, protocol, PortClass::High) {
            self.clear(hint, bit);
        }
    }

    /// True if found full, and no port has come back since.
    #[inline]
    pub fn seems_full(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let hint = &self.address_full[protocol.index()][address.index() / 64];
        class == PortClass::High && hint.load(Ordering::Relaxed) >> (address.index() % 64) & 1 != 0
    }

    /// True if `full` shows no free port of this class. Two to 32 loads.
    pub fn is_exhausted(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let base = space(address, protocol);
        // Words in the middle serve every class but the low one.
        let from = if class == PortClass::Low { 0 } else { SUMMARY_WORDS / 2 };
        (from..SUMMARY_WORDS)
            .chain(0..from)
            .all(|index| self.words_not_full_in(base, class, protocol, None, index) == 0)
    }

    /// True if a port outside leased blocks is free.
    pub fn has_single_port(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let base = space(address, protocol);
        (0..SUMMARY_WORDS).any(|index| {
            let leased = self.blocks.leased(address.index(), index);
            self.words_not_full_in(base, class, protocol, None, index) & !leased != 0
        })
    }
}

pub(super) fn summary_of(base: usize, parity: Parity, word: usize) -> usize {
    (base * Parity::BOTH.len() + parity as usize) * SUMMARY_WORDS + word / 64
}

pub(super) fn bits_below(end: usize, index: usize) -> u64 {
    match end.saturating_sub(index * 64) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}
