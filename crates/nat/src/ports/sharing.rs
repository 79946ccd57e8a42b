//! Ports that flows share, of which several workers may have flows on one.
//!
//! The worker that took the port is its *home*, and gives it back. Its entry counts the workers that have flows there, and
//! remembers whether one that is not its home has left since the home last asked: the port has not been idle as long as the
//! home's own flows say.

use core::sync::atomic::Ordering;

use super::MAPPING_BITS;
use super::PORTS;
use super::PortTable;
use super::space;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

/// In the entry of a shared port: the workers that have flows there.
const USERS: u32 = 0x7f;
/// In the entry of a shared port: another worker than its home has left it.
const LENT: u32 = 0x80;
const SHARED: u32 = MappingIndex::SHARED.0;

const _: () = assert!(WorkerId::COUNT_MAX <= USERS as usize, "all workers can be counted");

/// What became of a shared port that its home has no use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unshared {
    /// It has no owner any more, and is the home's to give back.
    Vacant,
    /// Other workers have flows there.
    InUse,
    /// Another worker had flows there until lately.
    WasInUse,
}

fn is_shared(entry: u32) -> bool {
    entry & ((1 << MAPPING_BITS) - 1) >= SHARED
}

impl PortTable {
    /// Changes the entry of a shared port; what it was. None: `change` says so, or the port is not shared.
    fn change_shared(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        change: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let entry = &self.entries[space(address, protocol) * PORTS + usize::from(port)];
        let change = |entry| if is_shared(entry) { change(entry) } else { None };
        if !self.exclusive {
            return entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).ok();
        }
        let before = entry.load(Ordering::Relaxed);
        entry.store(change(before)?, Ordering::Release);
        Some(before)
    }

    /// A worker that had no flow on this port is going to have one. None when the port is shared no more; else whether it carried none
    /// of any worker.
    pub(crate) fn join(&self, address: AddressIndex, protocol: Protocol, port: u16) -> Option<bool> {
        let before = self.change_shared(address, protocol, port, |entry| Some(entry + 1))?;
        Some(before & USERS == 0)
    }

    /// This worker, which had flows on the port, has none there any more.
    pub(crate) fn leave(&self, address: AddressIndex, protocol: Protocol, port: u16, worker: WorkerId) {
        let left = self.change_shared(address, protocol, port, |entry| {
            let is_home = entry >> MAPPING_BITS == u32::from(worker.0);
            debug_assert!(entry & USERS > 0, "who leaves was there");
            Some((entry - 1) | if is_home { 0 } else { LENT })
        });
        debug_assert!(left.is_some(), "a port that carries flows is shared");
    }

    /// Workers that have flows on a shared port.
    pub(crate) fn users(&self, address: AddressIndex, protocol: Protocol, port: u16) -> u32 {
        let entry = self.entries[space(address, protocol) * PORTS + usize::from(port)].load(Ordering::SeqCst);
        if is_shared(entry) { entry & USERS } else { 0 }
    }

    /// Whether flows share the port.
    pub(crate) fn is_shared(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        is_shared(self.entries[space(address, protocol) * PORTS + usize::from(port)].load(Ordering::SeqCst))
    }

    /// Ends the sharing of a port that its home has no flows on, if nobody else has or had lately.
    pub(crate) fn unshare(&self, address: AddressIndex, protocol: Protocol, port: u16) -> Unshared {
        let after = |entry| match (entry & USERS, entry & LENT) {
            (0, 0) => Some(0),
            (0, _) => Some(entry & !LENT),
            _ => None,
        };
        match self.change_shared(address, protocol, port, after) {
            None => Unshared::InUse,
            Some(before) if before & LENT != 0 => Unshared::WasInUse,
            Some(_) => Unshared::Vacant,
        }
    }
}

#[cfg(test)]
mod tests;
