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
//! them came free the rest has none for anybody, and less is pledged ([`Guard::can_be_pledged`]), so that a pledge is always kept.

use core::sync::atomic::AtomicU32;
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
    /// By address and protocol: ports taken from the rest, resting ones among them.
    beyond_count: Box<[AtomicU32]>,
    /// By address and protocol: what is pledged to its subscribers.
    pledged: Box<[AtomicU32]>,
}

/// What a port was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// From what is set aside.
    Within,
    /// From the rest.
    Beyond,
}

/// Adds to a count that must not go above `limit`; whether it could.
fn add_within(count: &AtomicU32, more: u32, limit: u32) -> bool {
    let sum = |now: u32| now.checked_add(more).filter(|sum| *sum <= limit || more == 0);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum).is_ok()
}

impl Guard {
    fn new(addresses: usize) -> Result<Guard, ArenaError> {
        let spaces = (addresses * Protocol::COUNT).max(1);
        let counts = || (0..spaces).map(|_| AtomicU32::new(0)).collect();
        Ok(Guard {
            within: Arena::zeroed(spaces * WORDS)?,
            beyond: Arena::zeroed(spaces * WORDS)?,
            beyond_count: counts(),
            pledged: counts(),
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

    /// One port more from the rest of an address that has so many; whether there was one.
    pub(crate) fn take(&self, address: AddressIndex, protocol: Protocol, limit: u32) -> bool {
        add_within(&self.beyond_count[space(address, protocol)], 1, limit)
    }

    /// One port less from the rest.
    pub(crate) fn give_back(&self, address: AddressIndex, protocol: Protocol) {
        let before = self.beyond_count[space(address, protocol)].fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "each port of the rest was counted");
    }

    /// Ports of the rest that are taken.
    pub(crate) fn taken(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        self.beyond_count[space(address, protocol)].load(Ordering::SeqCst)
    }

    /// What is pledged to subscribers of an address.
    pub(crate) fn pledged(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        self.pledged[space(address, protocol)].load(Ordering::SeqCst)
    }

    /// Of so many ports that are to be set aside of those an address offers, how many can be pledged now: less than all while others have
    /// more than the rest. That only becomes more, as others get none meanwhile.
    pub(crate) fn can_be_pledged(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        offered: u32,
        set_aside: u32,
    ) -> u32 {
        set_aside.min(offered.saturating_sub(self.taken(address, protocol)))
    }

    /// How many more can be pledged, where so many can be in all.
    pub(crate) fn room(&self, address: AddressIndex, can_be: PerProtocol) -> PerProtocol {
        Protocol::ALL.map(|protocol| can_be[protocol.index()].saturating_sub(self.pledged(address, protocol)))
    }

    /// Pledges as much of what is wanted as there is room for, where so many can be pledged in all; how much that was.
    pub(crate) fn pledge(&self, address: AddressIndex, wanted: PerProtocol, can_be: PerProtocol) -> PerProtocol {
        Protocol::ALL.map(|protocol| {
            let p = protocol.index();
            let some = |pledged: u32| wanted[p].min(can_be[p].saturating_sub(pledged));
            let count = &self.pledged[space(address, protocol)];
            let more = |pledged: u32| Some(pledged + some(pledged)).filter(|sum| *sum != pledged);
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).map_or(0, some)
        })
    }

    /// Takes a pledge back.
    pub(crate) fn unpledge(&self, address: AddressIndex, amounts: PerProtocol) {
        for protocol in Protocol::ALL {
            let amount = amounts[protocol.index()];
            let before = self.pledged[space(address, protocol)].fetch_sub(amount, Ordering::SeqCst);
            debug_assert!(before >= amount, "each pledge was counted");
        }
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
                guard.beyond_count[space(address, protocol)].fetch_add(1, Ordering::SeqCst);
                guard.mark(address, protocol, port, Share::Beyond);
            } else {
                guard.forget_beyond(address, protocol, port);
            }
        }
    }

    /// After a port was given back, or taken as part of a pledge: a recount may have taken it for one of the rest at that moment.
    #[inline]
    pub(crate) fn settle_mark(&self, guard: &Guard, address: AddressIndex, protocol: Protocol, port: u16) {
        let at = space(address, protocol) * WORDS + usize::from(port / 64);
        if guard.beyond[at].load(Ordering::SeqCst) >> (port % 64) & 1 != 0 {
            self.recount_port(address, protocol, port);
        }
    }

    /// Ports that would be none of those set aside if the address offered all but those of `mask`: somebody has them, and not as part of a
    /// pledge. As [`PortTable::used`], for people.
    pub(crate) fn taken_of_the_rest(&self, address: AddressIndex, protocol: Protocol, mask: &Mask) -> u32 {
        let words = space(address, protocol) * WORDS..(space(address, protocol) + 1) * WORDS;
        let taken = words.zip(mask.iter()).map(|(at, mask)| {
            let kept = self.kept[at].load(Ordering::Relaxed);
            let within = self.guard().map_or(0, |guard| guard.within[at].load(Ordering::Relaxed));
            (self.used[at].load(Ordering::Relaxed) & !kept & !mask & !within).count_ones()
        });
        taken.sum()
    }

    /// The books of ports that are set aside; None while no pool has ever done so.
    #[inline]
    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.guard.get()
    }
}

#[cfg(test)]
mod tests;
