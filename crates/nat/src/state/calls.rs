//! PPTP calls by what their packets from inside say: addresses and the peer's identifier.
//!
//! A call is a grant ([`crate::state::grant::Kind::Call`]). Its external call identifier is leased
//! from the query identifiers of the external address, which are as long and as private, so that
//! limits, blocks, the log and the port table need not know of a further space of numbers. Packets
//! from outside find the grant by its mapping, and packets from inside here.

use crate::random::KeyedHash;
use crate::state::table::BucketTable;
use crate::types::Protocol;
use crate::types::RealmId;
use mem::ArenaError;
use mem::Need;

/// The space that external call identifiers are leased from.
pub(crate) const CALL_SPACE: Protocol = Protocol::Icmp;

/// A packet of a call from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    pub(crate) realm: RealmId,
    pub(crate) inside: u32,
    /// The peer's address and its call identifier.
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

    /// Memory of a table for this many calls.
    pub(crate) fn need(calls_max: usize) -> Need {
        BucketTable::need(calls_max)
    }

    #[cfg(test)]
    pub(crate) fn resident_bytes(&self) -> usize {
        self.grants.resident_bytes()
    }

    /// Takes over the hash of its shard, while the table is empty.
    pub(crate) fn set_hash(&mut self, hash: KeyedHash) {
        self.hash = hash;
    }

    fn hash_of(&self, key: &CallKey) -> u64 {
        let addresses = u64::from(key.inside) << 32 | u64::from(key.remote.0);
        self.hash.hash(addresses, u64::from(key.realm.0) << 16 | u64::from(key.remote.1))
    }

    /// The grant that `is_it` accepts.
    pub(crate) fn find(&self, key: &CallKey, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.grants.is_empty() {
            return None;
        }
        self.grants.find(self.hash_of(key), is_it)
    }

    /// False if full.
    pub(crate) fn insert(&mut self, key: &CallKey, grant: u32) -> bool {
        !self.grants.is_full() && self.grants.insert(self.hash_of(key), grant).is_ok()
    }

    pub(crate) fn remove(&mut self, key: &CallKey, grant: u32) {
        self.grants.remove(self.hash_of(key), grant);
    }
}
