//! Takes ports and gives them back.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use super::PortTable;
use super::WORDS;
use super::aim::PortAim;
use super::class::Parity;
use super::space;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// On whose behalf a port is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// Takes no port of a leased block.
    Anyone,
    /// The holder of the port's block.
    Holder,
}

impl PortTable {
    /// Takes the free port next to `aim`, which must be for the same address, protocol and class.
    #[inline]
    pub fn allocate_near(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        parity: Option<Parity>,
        aim: PortAim,
    ) -> Option<u16> {
        self.take_near(space(address, protocol), parity, u64::MAX, aim, Taker::Anyone)
    }

    #[inline]
    pub(super) fn take_near(
        &self,
        base: usize,
        parity: Option<Parity>,
        mask: u64,
        aim: PortAim,
        taker: Taker,
    ) -> Option<u16> {
        // Again after a lost race.
        for _ in 0..2 {
            let found = self.free_near(base, parity, mask, aim)?.0;
            if self.take(base, usize::from(found / 64), u32::from(found % 64), taker) {
                return Some(found);
            }
        }
        None
    }

    /// True if [`PortTable::claim`] would take this port.
    pub fn is_free(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let (base, word) = (space(address, protocol), usize::from(port / 64));
        let used = self.used[base * WORDS + word].load(Ordering::SeqCst);
        used >> (port % 64) & 1 == 0 && !self.blocks.is_leased(base / Protocol::COUNT, word)
    }

    /// True if the port is in a leased block.
    pub(crate) fn is_in_block(&self, address: AddressIndex, port: u16) -> bool {
        self.blocks.is_leased(address.index(), usize::from(port / 64))
    }

    /// True if the block's holder could take this port.
    pub fn is_free_in_lease(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let used = self.used[space(address, protocol) * WORDS + usize::from(port / 64)].load(Ordering::SeqCst);
        used >> (port % 64) & 1 == 0
    }

    /// Takes a port that is offered, free and in no leased block.
    pub fn claim(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        self.take(space(address, protocol), usize::from(port / 64), u32::from(port % 64), Taker::Anyone)
    }

    #[inline(always)]
    pub(super) fn take(&self, base: usize, word: usize, bit: u32, taker: Taker) -> bool {
        let cell = &self.used[base * WORDS + word];
        // Read before writing: near exhaustion most probes hit used bits.
        if cell.load(Ordering::Relaxed) >> bit & 1 != 0 {
            return false;
        }
        let before = self.set(cell, 1 << bit);
        if before >> bit & 1 != 0 {
            return false;
        }
        // After setting the bit, see [`crate::external::blocks`].
        if taker == Taker::Anyone && self.blocks.is_leased(base / Protocol::COUNT, word) {
            self.free(base, (word * 64) as u16 | bit as u16);
            return false;
        }
        self.note_full(base, word, before | 1 << bit);
        true
    }

    /// Gives back a taken port, unless it was withheld meanwhile.
    pub fn release(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        // Owner first: the next taker must find the entry empty.
        self.vacate(address, protocol, port);
        self.release_vacant(address, protocol, port);
    }

    /// Gives back a taken port that has no owner.
    #[inline]
    pub fn release_vacant(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        let base = space(address, protocol);
        if self.offers[base].is_watched() && self.keep(base, port) {
            return;
        }
        self.free(base, port);
        // Another thread may have found the port in use and withheld it.
        if self.offers[base].is_watched() {
            self.take_back(base, port);
        }
    }

    #[inline]
    pub(super) fn free(&self, base: usize, port: u16) {
        let (word, bit) = (usize::from(port / 64), port % 64);
        let before = self.clear(&self.used[base * WORDS + word], 1 << bit);
        debug_assert!(before >> bit & 1 == 1, "only a taken port is released");
        self.note_free(base, word, Parity::of(port));
    }

    #[inline]
    pub(super) fn set(&self, word: &AtomicU64, bits: u64) -> u64 {
        if !self.exclusive {
            return word.fetch_or(bits, Ordering::SeqCst);
        }
        let before = word.load(Ordering::Relaxed);
        word.store(before | bits, Ordering::Relaxed);
        before
    }

    #[inline]
    pub(super) fn clear(&self, word: &AtomicU64, bits: u64) -> u64 {
        if !self.exclusive {
            return word.fetch_and(!bits, Ordering::SeqCst);
        }
        let before = word.load(Ordering::Relaxed);
        word.store(before & !bits, Ordering::Relaxed);
        before
    }
}
