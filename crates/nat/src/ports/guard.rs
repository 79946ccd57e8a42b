//! Ports set aside for subscribers with a guaranteed minimum, exact whatever the number of workers.
//!
//! Of an address and protocol so many ports are set aside; the rest is for everybody. Each port that is taken, and each that
//! rests, stands for one or the other:
//!
//! ```text
//!   within   from what is pledged to its subscriber: never more than that, which its worker counts
//!   beyond   from the rest: never more than there are, counted here with one compare and swap
//! ```
//!
//! What is pledged to all subscribers of an address is never more than what is set aside there. So a subscriber that uses less than
//! its pledge always finds a port, however full the address is.
//!
//! Where ports are set aside only since a change of the settings, others may have more than the rest already. Those ports were
//! marked by nobody: [`PortTable::recount`] finds them while workers take and give back, and counts them as the rest's. Until enough of
//! them came free the rest has none for anybody, and less is pledged ([`Guard::stock`]), so that a pledge is always kept. Those of them
//! that a subscriber has to whom something is to be pledged become part of its pledge one after the other ([`Guard::turn`]).

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

/// Attempts to count one port while others take it and give it back; one that is changed even then is looked at by who did it.
const RECOUNTS_MAX: usize = 8;

/// Numbers of ports by [`Protocol::index`].
pub(crate) type PerProtocol = [u32; Protocol::COUNT];

/// See the [module](self).
pub(crate) struct Guard {
    within: Arena<AtomicU64>,
    beyond: Arena<AtomicU64>,
    /// By address and protocol, in one word because a port that turns changes both at one instant: the lower half counts ports taken
    /// from the rest, resting ones among them; the upper half what is pledged to subscribers.
    books: Box<[AtomicU64]>,
}

/// One port in the upper half of a word of the books.
const PLEDGED_ONE: u64 = 1 << 32;

/// Ports taken from the rest, and pledged.
fn halves(book: u64) -> (u32, u32) {
    (book as u32, (book >> 32) as u32)
}

/// What there is of the ports an address has set aside, at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stock {
    /// How many can be pledged in all: less than all that is set aside while others have more than the rest.
    pub(crate) can_be: u32,
    /// How many are pledged.
    pub(crate) pledged: u32,
}

impl Stock {
    /// How many more can be pledged.
    pub(crate) fn room(self) -> u32 {
        self.can_be.saturating_sub(self.pledged)
    }
}

/// What a port was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// From what is set aside.
    Within,
    /// From the rest.
    Beyond,
}

impl Guard {
    fn new(addresses: usize) -> Result<Guard, ArenaError> {
        let spaces = (addresses * Protocol::COUNT).max(1);
        Ok(Guard {
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

    /// One port more from the rest of an address that has so many; whether there was one.
    pub(crate) fn take(&self, address: AddressIndex, protocol: Protocol, limit: u32) -> bool {
        let more = |book: u64| Some(book + 1).filter(|more| halves(*more).0 <= limit);
        self.book(address, protocol).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// One port less from the rest.
    pub(crate) fn give_back(&self, address: AddressIndex, protocol: Protocol) {
        let before = self.book(address, protocol).fetch_sub(1, Ordering::SeqCst);
        debug_assert!(halves(before).0 > 0, "each port of the rest was counted");
    }

    /// Ports of the rest that are taken.
    pub(crate) fn taken(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        halves(self.book(address, protocol).load(Ordering::SeqCst)).0
    }

    /// What is pledged to subscribers of an address.
    #[cfg(test)]
    pub(crate) fn pledged(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        halves(self.book(address, protocol).load(Ordering::SeqCst)).1
    }

    /// Of so many ports that are to be set aside of those an address offers, how many can be pledged now, and are. How many can be only
    /// becomes more while others have more than the rest, as they get none meanwhile.
    pub(crate) fn stock(&self, address: AddressIndex, protocol: Protocol, offered: u32, set_aside: u32) -> Stock {
        let (taken, pledged) = halves(self.book(address, protocol).load(Ordering::SeqCst));
        Stock { can_be: set_aside.min(offered.saturating_sub(taken)), pledged }
    }

    /// Pledges as much of what is wanted as there is room for, where so many can be pledged in all; how much that was.
    pub(crate) fn pledge(&self, address: AddressIndex, wanted: PerProtocol, can_be: PerProtocol) -> PerProtocol {
        Protocol::ALL.map(|protocol| {
            let p = protocol.index();
            let some = |book: u64| wanted[p].min(can_be[p].saturating_sub(halves(book).1));
            let more = |book: u64| Some(book + u64::from(some(book)) * PLEDGED_ONE).filter(|sum| *sum != book);
            self.book(address, protocol).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).map_or(0, some)
        })
    }

    /// Takes a pledge back.
    pub(crate) fn unpledge(&self, address: AddressIndex, amounts: PerProtocol) {
        for protocol in Protocol::ALL {
            let amount = amounts[protocol.index()];
            let before = self.book(address, protocol).fetch_sub(u64::from(amount) * PLEDGED_ONE, Ordering::SeqCst);
            debug_assert!(halves(before).1 >= amount, "each pledge was counted");
        }
    }

    /// Makes a port of the rest, which its owner has, part of its owner's pledge: of what is pledged to it and not used, or, if
    /// that is to be `raised`, of a pledge that is one port larger. Whether it was one of the rest, and no more than is to be set aside is
    /// pledged then. Both counts change at one instant: never is more pledged by it than the rest leaves, and nobody can be pledged
    /// in between what the owner's larger pledge needs.
    pub(crate) fn turn(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        raised: bool,
        set_aside: u32,
    ) -> bool {
        // Whoever takes the mark away takes it off the count.
        if !self.unmark(address, protocol, port, Share::Beyond) {
            return false;
        }
        let more = if raised { PLEDGED_ONE } else { 0 };
        let turned = |book: u64| (!raised || halves(book).1 < set_aside).then(|| book - 1 + more);
        let has_turned = self.book(address, protocol).fetch_update(Ordering::SeqCst, Ordering::SeqCst, turned).is_ok();
        self.mark(address, protocol, port, if has_turned { Share::Within } else { Share::Beyond });
        has_turned
    }

    /// Takes notice of what a taken port was taken from. One of the rest is counted before.
    pub(crate) fn mark(&self, address: AddressIndex, protocol: Protocol, port: u16, share: Share) {
        let word = space(address, protocol) * WORDS + usize::from(port / 64);
        let before = self.bits(share)[word].fetch_or(1 << (port % 64), Ordering::SeqCst);
        match share {
            // A recount was faster, and has counted it, too.
            Share::Beyond if before >> (port % 64) & 1 != 0 => self.give_back(address, protocol),
            // It was mistaken for one of the rest, if it is marked as such: a recount looks at this mark after making that one.
            Share::Within => drop(self.forget_beyond(address, protocol, port)),
            Share::Beyond => {}
        }
    }

    /// The port is not one of the rest, or no longer; whether it was marked as one.
    pub(crate) fn forget_beyond(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let was_beyond = self.unmark(address, protocol, port, Share::Beyond);
        if was_beyond {
            self.give_back(address, protocol);
        }
        was_beyond
    }

    /// Whether the port is marked as one of the rest.
    pub(crate) fn is_beyond(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let word = space(address, protocol) * WORDS + usize::from(port / 64);
        self.beyond[word].load(Ordering::SeqCst) >> (port % 64) & 1 != 0
    }

    /// Forgets that the port was taken from there; whether it was.
    pub(crate) fn unmark(&self, address: AddressIndex, protocol: Protocol, port: u16, share: Share) -> bool {
        let word = space(address, protocol) * WORDS + usize::from(port / 64);
        let bit = 1 << (port % 64);
        let cell = &self.bits(share)[word];
        // A look before the write: most ports are not marked where only some pools guarantee something.
        cell.load(Ordering::SeqCst) & bit != 0 && cell.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }
}

impl PortTable {
    /// The memory [`PortTable::prepare_guard`] is going to take for so many addresses.
    pub(crate) fn guard_needs(addresses: usize) -> [Need; 2] {
        let spaces = addresses.saturating_mul(Protocol::COUNT).max(1);
        [Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)), Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS))]
    }

    /// Makes ready for ports that are set aside: takes the memory of their marks, 48 KiB an address, if that has not been done.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn prepare_guard(&self) -> Result<(), ArenaError> {
        if self.guard.get().is_none() {
            // If another was faster, its marks serve as well.
            let _ = self.guard.set(Guard::new(self.places())?);
        }
        Ok(())
    }

    /// Has every port of an address that somebody has, and nobody as part of a pledge, counted as one of the rest: also those taken while
    /// nothing was set aside. What is withheld is none of the rest, as the address does not offer it. Workers take and give back
    /// meanwhile, if all of them know that there are books. Reads 32 KiB, and writes what is not as it should be.
    pub(crate) fn recount(&self, address: AddressIndex, protocol: Protocol) {
        let Some(guard) = self.guard() else { return };
        let base = space(address, protocol);
        for word in 0..WORDS {
            let at = base * WORDS + word;
            let beyond = guard.beyond[at].load(Ordering::SeqCst);
            let mut wrong = beyond ^ self.is_of_the_rest(guard, at);
            while wrong != 0 {
                self.recount_port(address, protocol, (word * 64) as u16 | wrong.trailing_zeros() as u16);
                wrong &= wrong - 1;
            }
        }
    }

    /// By port of a word, whether somebody has it, and not as part of a pledge.
    fn is_of_the_rest(&self, guard: &Guard, at: usize) -> u64 {
        let taken = self.used[at].load(Ordering::SeqCst) & !self.withheld[at].load(Ordering::SeqCst);
        taken & !guard.within[at].load(Ordering::SeqCst)
    }

    /// [`PortTable::recount`] of one port. Whoever else changes something about it at the same time looks at the marks afterwards, as is done
    /// here, so that the last one to look leaves them as they should be; and each mark is counted before it is made, and
    /// taken off the count by who removes it.
    pub(crate) fn recount_port(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        let Some(guard) = self.guard() else { return };
        let (at, bit) = (space(address, protocol) * WORDS + usize::from(port / 64), 1_u64 << (port % 64));
        // More than once only when others changed it meanwhile.
        for _ in 0..RECOUNTS_MAX {
            let is_wanted = self.is_of_the_rest(guard, at) & bit != 0;
            if is_wanted == (guard.beyond[at].load(Ordering::SeqCst) & bit != 0) {
                return;
            }
            if is_wanted {
                guard.book(address, protocol).fetch_add(1, Ordering::SeqCst);
                guard.mark(address, protocol, port, Share::Beyond);
            } else {
                guard.forget_beyond(address, protocol, port);
            }
        }
    }

    /// After a port was given back, or taken as part of a pledge: a recount may have taken it for one of the rest at that moment.
    #[inline]
    pub(crate) fn settle_mark(&self, guard: &Guard, address: AddressIndex, protocol: Protocol, port: u16) {
        if guard.is_beyond(address, protocol, port) {
            self.recount_port(address, protocol, port);
        }
    }

    /// Ports that would be none of those set aside if the address offered all but those of `mask`: somebody has them, and not as part of a
    /// pledge. As [`PortTable::used`], for people.
    pub(crate) fn taken_of_the_rest(&self, address: AddressIndex, protocol: Protocol, mask: &Mask) -> u32 {
        (0..WORDS).map(|word| self.word_of_the_rest(address, protocol, word, mask).count_ones()).sum()
    }

    /// Whether this port is one of [`PortTable::taken_of_the_rest`].
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
        let within = self.guard().map_or(0, |guard| guard.within[at].load(Ordering::Relaxed));
        self.used[at].load(Ordering::Relaxed) & !kept & !mask[word] & !within
    }

    /// The books of ports that are set aside; None while no pool has ever done so.
    #[inline]
    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.guard.get()
    }
}

#[cfg(test)]
mod tests;
