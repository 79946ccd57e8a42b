//! Ports kept for guaranteed minimums, exactly, with any number of workers.
//!
//! An address keeps some ports of each protocol for guarantees; the rest is for everybody. Each
//! port in use or held down is one of these:
//!
//! ```text
//!   within   part of its subscriber's guarantee; the subscriber's worker counts it
//!   beyond   part of the rest; counted here with one compare-and-swap
//! ```
//!
//! Guarantees never exceed the ports kept, so a subscriber below its guarantee always finds a port.
//!
//! If a reload makes an address keep ports, others may already use more than the rest. Until enough
//! are free, less can be guaranteed ([`Guarantees::stock`]).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use super::Mask;
use super::PortTable;
use super::WORDS;
use super::space;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// Attempts while other threads change the port. The last of them recounts it as well.
const RECOUNTS_MAX: usize = 8;

pub(crate) type PerProtocol = [u32; Protocol::COUNT];

pub(crate) struct Guarantees {
    within: Arena<AtomicU64>,
    beyond: Arena<AtomicU64>,
    /// Lower half: ports taken from the rest, with held-down ones. Upper half: guarantees. One
    /// word, because [`Guarantees::turn`] changes both.
    books: Box<[AtomicU64]>,
}

const GUARANTEED_ONE: u64 = 1 << 32;

fn halves(book: u64) -> (u32, u32) {
    (book as u32, (book >> 32) as u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stock {
    /// Upper bound of guarantees; smaller while others use more than the rest.
    pub(crate) can_be: u32,
    pub(crate) guaranteed: u32,
}

impl Stock {
    pub(crate) fn room(self) -> u32 {
        self.can_be.saturating_sub(self.guaranteed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Within,
    Beyond,
}

impl Guarantees {
    fn new(addresses: usize) -> Result<Guarantees, ArenaError> {
        let spaces = (addresses * Protocol::COUNT).max(1);
        Ok(Guarantees {
            within: Arena::zeroed(spaces * WORDS)?,
            beyond: Arena::zeroed(spaces * WORDS)?,
            books: (0..spaces).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.within.bytes() + self.beyond.bytes()
    }

    fn bits(&self, share: Share) -> &[AtomicU64] {
        match share {
            Share::Within => &self.within,
            Share::Beyond => &self.beyond,
        }
    }

    fn book(&self, address: AddressIndex, protocol: Protocol) -> &AtomicU64 {
        &self.books[space(address, protocol)]
    }

    pub(crate) fn take(&self, address: AddressIndex, protocol: Protocol, limit: u32) -> bool {
        let more = |book: u64| Some(book + 1).filter(|more| halves(*more).0 <= limit);
        self.book(address, protocol).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    pub(crate) fn give_back(&self, address: AddressIndex, protocol: Protocol) {
        let before = self.book(address, protocol).fetch_sub(1, Ordering::SeqCst);
        debug_assert!(halves(before).0 > 0, "each port of the rest was counted");
    }

    pub(crate) fn taken(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        halves(self.book(address, protocol).load(Ordering::SeqCst)).0
    }

    #[cfg(test)]
    pub(crate) fn guaranteed(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        halves(self.book(address, protocol).load(Ordering::SeqCst)).1
    }

    /// While others use more than the rest, they get no ports, so `can_be` only grows.
    pub(crate) fn stock(&self, address: AddressIndex, protocol: Protocol, offered: u32, for_guarantees: u32) -> Stock {
        let (taken, guaranteed) = halves(self.book(address, protocol).load(Ordering::SeqCst));
        Stock { can_be: for_guarantees.min(offered.saturating_sub(taken)), guaranteed }
    }

    pub(crate) fn guarantee(&self, address: AddressIndex, wanted: PerProtocol, can_be: PerProtocol) -> PerProtocol {
        Protocol::ALL.map(|protocol| {
            let p = protocol.index();
            let some = |book: u64| wanted[p].min(can_be[p].saturating_sub(halves(book).1));
            let more = |book: u64| Some(book + u64::from(some(book)) * GUARANTEED_ONE).filter(|sum| *sum != book);
            self.book(address, protocol).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).map_or(0, some)
        })
    }

    pub(crate) fn withdraw(&self, address: AddressIndex, amounts: PerProtocol) {
        for protocol in Protocol::ALL {
            let amount = amounts[protocol.index()];
            let before = self.book(address, protocol).fetch_sub(u64::from(amount) * GUARANTEED_ONE, Ordering::SeqCst);
            debug_assert!(halves(before).1 >= amount, "each guarantee was counted");
        }
    }

    /// Moves a port from the rest to its owner's guarantee, which grows by it if `raised`: both
    /// counts at once, so no other subscriber can take what the larger guarantee needs.
    pub(crate) fn turn(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        raised: bool,
        for_guarantees: u32,
    ) -> bool {
        // The thread that removes the mark takes the port off the count.
        if !self.unmark(address, protocol, port, Share::Beyond) {
            return false;
        }
        let more = if raised { GUARANTEED_ONE } else { 0 };
        let turned = |book: u64| (!raised || halves(book).1 < for_guarantees).then(|| book - 1 + more);
        let has_turned = self.book(address, protocol).fetch_update(Ordering::SeqCst, Ordering::SeqCst, turned).is_ok();
        self.mark(address, protocol, port, if has_turned { Share::Within } else { Share::Beyond });
        has_turned
    }

    /// A port of the rest must have been counted before.
    pub(crate) fn mark(&self, address: AddressIndex, protocol: Protocol, port: u16, share: Share) {
        let word = space(address, protocol) * WORDS + usize::from(port / 64);
        let before = self.bits(share)[word].fetch_or(1 << (port % 64), Ordering::SeqCst);
        match share {
            // A recount was faster and counted the port, too.
            Share::Beyond if before >> (port % 64) & 1 != 0 => self.give_back(address, protocol),
            // A recount may have marked it as beyond; it checks this mark afterwards.
            Share::Within => drop(self.forget_beyond(address, protocol, port)),
            Share::Beyond => {}
        }
    }

    pub(crate) fn forget_beyond(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let was_beyond = self.unmark(address, protocol, port, Share::Beyond);
        if was_beyond {
            self.give_back(address, protocol);
        }
        was_beyond
    }

    pub(crate) fn is_beyond(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let word = space(address, protocol) * WORDS + usize::from(port / 64);
        self.beyond[word].load(Ordering::SeqCst) >> (port % 64) & 1 != 0
    }

    pub(crate) fn unmark(&self, address: AddressIndex, protocol: Protocol, port: u16, share: Share) -> bool {
        let word = space(address, protocol) * WORDS + usize::from(port / 64);
        let bit = 1 << (port % 64);
        let cell = &self.bits(share)[word];
        // Read before writing: without guarantees no port has a mark.
        cell.load(Ordering::SeqCst) & bit != 0 && cell.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }
}

impl PortTable {
    pub(crate) fn guarantee_needs(addresses: usize) -> [Need; 2] {
        let spaces = addresses.saturating_mul(Protocol::COUNT).max(1);
        [Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)), Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS))]
    }

    /// Allocates the marks: 48 KiB an address.
    pub(crate) fn prepare_guarantees(&self) -> Result<(), ArenaError> {
        if self.guarantees.get().is_none() {
            // Another thread's marks serve as well.
            let _ = self.guarantees.set(Guarantees::new(self.places())?);
        }
        Ok(())
    }

    /// Counts offered ports in use without a guarantee as ports of the rest. Workers that know of
    /// the guarantees may take and give back meanwhile. Reads 32 KiB.
    pub(crate) fn recount(&self, address: AddressIndex, protocol: Protocol) {
        let Some(guarantees) = self.guarantees() else { return };
        let base = space(address, protocol);
        for word in 0..WORDS {
            let at = base * WORDS + word;
            let beyond = guarantees.beyond[at].load(Ordering::SeqCst);
            let mut wrong = beyond ^ self.is_of_the_rest(guarantees, at);
            while wrong != 0 {
                self.recount_port(address, protocol, (word * 64) as u16 | wrong.trailing_zeros() as u16);
                wrong &= wrong - 1;
            }
        }
    }

    fn is_of_the_rest(&self, guarantees: &Guarantees, at: usize) -> u64 {
        let taken = self.used[at].load(Ordering::SeqCst) & !self.withheld[at].load(Ordering::SeqCst);
        taken & !guarantees.within[at].load(Ordering::SeqCst)
    }

    /// Each thread that changes the port checks the marks afterwards, so the last one leaves them
    /// right. A mark is counted before it is set.
    pub(crate) fn recount_port(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        let Some(guarantees) = self.guarantees() else { return };
        let (at, bit) = (space(address, protocol) * WORDS + usize::from(port / 64), 1_u64 << (port % 64));
        for _ in 0..RECOUNTS_MAX {
            let is_wanted = self.is_of_the_rest(guarantees, at) & bit != 0;
            if is_wanted == (guarantees.beyond[at].load(Ordering::SeqCst) & bit != 0) {
                return;
            }
            if is_wanted {
                guarantees.book(address, protocol).fetch_add(1, Ordering::SeqCst);
                guarantees.mark(address, protocol, port, Share::Beyond);
            } else {
                guarantees.forget_beyond(address, protocol, port);
            }
        }
    }

    /// Call it after giving back a port or taking it within a guarantee: a recount may have counted
    /// it.
    #[inline]
    pub(crate) fn settle_mark(&self, guarantees: &Guarantees, address: AddressIndex, protocol: Protocol, port: u16) {
        if guarantees.is_beyond(address, protocol, port) {
            self.recount_port(address, protocol, port);
        }
    }

    /// Ports in use without a guarantee, if all but `mask` were offered.
    pub(crate) fn taken_of_the_rest(&self, address: AddressIndex, protocol: Protocol, mask: &Mask) -> u32 {
        (0..WORDS).map(|word| self.word_of_the_rest(address, protocol, word, mask).count_ones()).sum()
    }

    pub(crate) fn is_taken_of_the_rest(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        mask: &Mask,
    ) -> bool {
        self.word_of_the_rest(address, protocol, usize::from(port / 64), mask) >> (port % 64) & 1 != 0
    }

    fn word_of_the_rest(&self, address: AddressIndex, protocol: Protocol, word: usize, mask: &Mask) -> u64 {
        let at = space(address, protocol) * WORDS + word;
        let kept = self.kept[at].load(Ordering::Relaxed);
        let within = self.guarantees().map_or(0, |guarantees| guarantees.within[at].load(Ordering::Relaxed));
        self.used[at].load(Ordering::Relaxed) & !kept & !mask[word] & !within
    }

    /// `None` until a pool guarantees ports.
    #[inline]
    pub(crate) fn guarantees(&self) -> Option<&Guarantees> {
        self.guarantees.get()
    }
}

#[cfg(test)]
mod tests;
