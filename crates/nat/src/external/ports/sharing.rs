//! Ports that flows share, also flows of several workers.
//!
//! The worker that took the port is its *home* and gives it back. The entry counts the workers with
//! flows there, and records whether another has left since the home last asked: the port was then
//! idle for less time than the home's own flows show.

use core::sync::atomic::Ordering;

use super::PortTable;
use super::owners::MAPPING_BITS;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

/// Workers with flows there.
const USERS: u32 = 0x7f;
/// A worker other than the home has left.
const LENT: u32 = 0x80;
const SHARED: u32 = MappingIndex::SHARED.0;

const _: () = assert!(WorkerId::COUNT_MAX <= USERS as usize, "all workers can be counted");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unshared {
    /// Without an owner: the home gives the port back.
    Vacant,
    InUse,
    WasInUse,
}

fn is_shared(entry: u32) -> bool {
    entry & ((1 << MAPPING_BITS) - 1) >= SHARED
}

impl PortTable {
    fn change_shared(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        change: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let entry = self.entry(address, protocol, port);
        let change = |entry| if is_shared(entry) { change(entry) } else { None };
        if !self.exclusive {
            return entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).ok();
        }
        let before = entry.load(Ordering::Relaxed);
        entry.store(change(before)?, Ordering::Release);
        Some(before)
    }

    /// For a worker's first flow; true if no worker had one there, `None` if the port is no longer
    /// shared.
    pub(crate) fn join(&self, address: AddressIndex, protocol: Protocol, port: u16) -> Option<bool> {
        let before = self.change_shared(address, protocol, port, |entry| Some(entry + 1))?;
        Some(before & USERS == 0)
    }

    pub(crate) fn leave(&self, address: AddressIndex, protocol: Protocol, port: u16, worker: WorkerId) {
        let left = self.change_shared(address, protocol, port, |entry| {
            let is_home = entry >> MAPPING_BITS == u32::from(worker.0);
            debug_assert!(entry & USERS > 0, "who leaves was there");
            Some((entry - 1) | if is_home { 0 } else { LENT })
        });
        debug_assert!(left.is_some(), "a port that carries flows is shared");
    }

    pub(crate) fn users(&self, address: AddressIndex, protocol: Protocol, port: u16) -> u32 {
        let entry = self.entry(address, protocol, port).load(Ordering::SeqCst);
        if is_shared(entry) { entry & USERS } else { 0 }
    }

    pub(crate) fn is_shared(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        is_shared(self.entry(address, protocol, port).load(Ordering::SeqCst))
    }

    /// Ends the sharing, unless a worker has flows there or another left since the last call.
    pub(crate) fn unshare(&self, address: AddressIndex, protocol: Protocol, port: u16, home: WorkerId) -> Unshared {
        let after = |entry: u32| match (entry & USERS, entry & LENT) {
            _ if entry >> MAPPING_BITS != u32::from(home.0) => None,
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
