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

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use super::PortTable;
use super::WORDS;
use super::space;
use crate::types::AddressIndex;
use crate::types::Protocol;

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

    /// Whether so many more can be pledged of those that are set aside.
    pub(crate) fn has_room(&self, address: AddressIndex, wanted: PerProtocol, set_aside: PerProtocol) -> bool {
        Protocol::ALL.into_iter().all(|protocol| {
            let p = protocol.index();
            wanted[p] == 0 || self.pledged(address, protocol).saturating_add(wanted[p]) <= set_aside[p]
        })
    }

    /// Pledges so many more, all of them or none; whether it could.
    pub(crate) fn pledge(&self, address: AddressIndex, wanted: PerProtocol, set_aside: PerProtocol) -> bool {
        let mut done = [0; Protocol::COUNT];
        for protocol in Protocol::ALL {
            let p = protocol.index();
            if !add_within(&self.pledged[space(address, protocol)], wanted[p], set_aside[p]) {
                self.unpledge(address, done);
                return false;
            }
            done[p] = wanted[p];
        }
        true
    }

    /// Takes a pledge back.
    pub(crate) fn unpledge(&self, address: AddressIndex, amounts: PerProtocol) {
        for protocol in Protocol::ALL {
            let amount = amounts[protocol.index()];
            let before = self.pledged[space(address, protocol)].fetch_sub(amount, Ordering::SeqCst);
            debug_assert!(before >= amount, "each pledge was counted");
        }
    }

    /// Takes notice of what a taken port was taken from.
    pub(crate) fn mark(&self, address: AddressIndex, protocol: Protocol, port: u16, share: Share) {
        let word = space(address, protocol) * WORDS + usize::from(port / 64);
        self.bits(share)[word].fetch_or(1 << (port % 64), Ordering::SeqCst);
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

    /// The books of ports that are set aside; None while no pool has ever done so.
    #[inline]
    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.guard.get()
    }
}
