//! PPTP calls, by what their packets from inside contain. Packets from outside find a call, which
//! is a grant ([`crate::state::grant::Kind::Call`]), by its mapping.

use crate::random::KeyedHash;
use crate::state::table::BucketTable;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use mem::ArenaError;
use mem::Need;

/// External call identifiers are leased from query identifiers, which are as long and as private:
/// limits, blocks, log and port table need no further number space.
pub(crate) const CALL_SPACE: Protocol = Protocol::Icmp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    pub(crate) realm: RealmId,
    pub(crate) inside: HostNumber,
    /// The peer's address and call identifier.
    pub(crate) remote: (u32, u16),
}

pub(crate) struct CallTable {
    grants: BucketTable,
    hash: KeyedHash,
}

impl CallTable {
    pub(crate) fn new(calls_max: usize, hash: KeyedHash) -> Result<CallTable, ArenaError> {
        Ok(CallTable { grants: BucketTable::reserved(calls_max)?, hash })
    }

    pub(crate) fn need(calls_max: usize) -> Need {
        BucketTable::need(calls_max)
    }

    #[cfg(test)]
    pub(crate) fn resident_bytes(&self) -> usize {
        self.grants.resident_bytes()
    }

    /// The table must be empty.
    pub(crate) fn set_hash(&mut self, hash: KeyedHash) {
        self.hash = hash;
    }

    fn hash_of(&self, key: &CallKey) -> u64 {
        let addresses = u64::from(key.inside.0) << 32 | u64::from(key.remote.0);
        self.hash.hash(addresses, u64::from(key.realm.0) << 16 | u64::from(key.remote.1))
    }

    pub(crate) fn find(&self, key: &CallKey, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.grants.is_empty() {
            return None;
        }
        self.grants.find(self.hash_of(key), is_it)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.grants.is_full()
    }

    /// There must be room.
    pub(crate) fn insert(&mut self, key: &CallKey, grant: u32) {
        let entered = self.grants.insert(self.hash_of(key), grant);
        debug_assert!(entered.is_ok(), "it was not full");
    }

    pub(crate) fn remove(&mut self, key: &CallKey, grant: u32) {
        self.grants.remove(self.hash_of(key), grant);
    }
}
