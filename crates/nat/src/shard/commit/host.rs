//! Numbers of IPv6 hosts.

use crate::shard::Ledger;
use crate::state::host::HostKey;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::verdict::Verdict;

impl Ledger {
    /// The number of a host. A host without a record gets a new number.
    #[inline(always)]
    pub(in crate::shard) fn enter_host(
        &mut self,
        now: Instant,
        hash: u64,
        key: &HostKey,
        realm: RealmId,
    ) -> Result<HostNumber, Verdict> {
        self.state.subscribers.hosts.enter(now, hash, key, realm)
    }

    /// As [`Ledger::enter_host`], where the hash is not yet known.
    pub(in crate::shard) fn enter_host_of(
        &mut self,
        now: Instant,
        key: &HostKey,
        realm: RealmId,
    ) -> Result<HostNumber, Verdict> {
        let hash = self.state.subscribers.hosts.hash_of(key);
        self.enter_host(now, hash, key, realm)
    }
}
