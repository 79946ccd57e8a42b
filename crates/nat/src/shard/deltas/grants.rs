//! Changes of grants, for a file that outlives the process and for another instance.

use core::net::Ipv4Addr;

use crate::event::Cause;
use crate::shard::Ledger;
use crate::state::delta::Change;
use crate::state::delta::Delta;
use crate::state::delta::GrantDelta;
use crate::state::grant::Grant;
use crate::state::grant::Request;
use crate::state::grant::Suggested;
use crate::state::grant_record::GrantRecord;
use crate::state::mapping::InternalKey;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::verdict::Verdict;

/// Changes of one request: a set of ports is made and then marked, and may end other grants.
const CHANGES_MAX: usize = 256;

impl View<'_> {
    fn grant_delta(&self, now: Instant, index: u32, change: Change) -> GrantDelta {
        let grant = self.state.grants.get(index);
        let key = grant.key();
        let host = self.host_of_delta(grant.internal());
        // A host's number means nothing to another instance.
        let is_number = |address: HostNumber| host.is_some() && address == key.address;
        let internal = if host.is_some() { Endpoint::new(Ipv4Addr::UNSPECIFIED, key.port) } else { grant.internal() };
        let mut requester = grant.requester;
        if is_number(requester.address) {
            requester.address = HostNumber(0);
        }
        GrantDelta {
            change,
            realm: key.realm,
            protocol: key.protocol,
            internal,
            host,
            external: grant.external(),
            origin: grant.origin(),
            kind: grant.kind(),
            remotes: grant.remotes,
            requester,
            left: grant.expires().saturating_since(now),
            epoch_s: self.state.grants.epoch(key.realm, self.state.owner_of(key.address), now),
        }
    }

    /// Appends the live grants, as [`View::deltas_page`].
    pub fn grant_deltas_page(
        &self,
        now: Instant,
        cursor: u32,
        scan_max: u32,
        out: &mut Vec<GrantDelta>,
    ) -> Option<u32> {
        let end = self.state.grants.walk_end();
        let first = cursor.max(1);
        let stop = first.saturating_add(scan_max).min(end);
        for index in first..stop {
            let grant = self.state.grants.get(index);
            if grant.is_alive(now) && !grant.has_lost_mapping() {
                out.push(self.grant_delta(now, index, Change::Lives));
            }
        }
        (stop < end).then_some(stop)
    }
}

impl Ledger {
    /// True if the ring has room for all changes of one request.
    pub(in crate::shard) fn may_change_grants(&mut self) -> bool {
        self.deltas.grants.as_mut().is_none_or(|ring| ring.room(CHANGES_MAX) >= CHANGES_MAX)
    }

    /// Call it after each change of a grant.
    #[inline]
    pub(in crate::shard) fn note_grant(&mut self, now: Instant, index: u32) {
        let grant = self.state.grants.get(index);
        let change = if grant.is_alive(now) { Change::Lives } else { Change::Ended };
        self.emit_grant(now, index, change);
    }

    pub(in crate::shard) fn note_grant_ended(&mut self, now: Instant, index: u32) {
        self.emit_grant(now, index, Change::Ended);
    }

    fn emit_grant(&mut self, now: Instant, index: u32, change: Change) {
        // What a gateway expects does not outlive its control session.
        if self.deltas.grants.is_none() || self.state.grants.get(index).origin().is_alg() {
            return;
        }
        let record = GrantRecord::from(&self.view().grant_delta(now, index, change));
        if let Some(ring) = &mut self.deltas.grants {
            self.deltas.grants_lost += u64::from(ring.try_push(record).is_err());
            // Readers of a ring left behind count the time left from here.
            ring.mark(now.as_micros());
        }
    }

    pub(in crate::shard) fn install_grant(&mut self, now: Instant, delta: &GrantDelta) -> Result<(), Verdict> {
        let place = (delta.change, delta.realm, delta.internal);
        let Some(internal) = self.installed_internal(now, place, delta.host.as_ref())? else { return Ok(()) };
        let key = InternalKey {
            realm: delta.realm,
            protocol: delta.protocol,
            address: internal.address.into(),
            port: internal.port,
        };
        let mut requester = delta.requester;
        if delta.host.is_some() {
            requester.address = key.address;
        }
        let is_same = |grant: &Grant| {
            let is_of_gateway = grant.origin().is_alg();
            grant.kind() == delta.kind && grant.peer() == delta.peer() && is_of_gateway == delta.origin.is_alg()
        };
        if delta.change == Change::Ended {
            self.end_restored(now, &key, is_same);
            return Ok(());
        }
        let request = Request {
            key,
            origin: delta.origin,
            kind: delta.kind,
            remotes: delta.remotes,
            expires: now + delta.left,
            requester,
            suggested: Suggested::Any,
        };
        self.restore_grant(now, &request, delta.external)?;
        let owner = self.state.owner_of(key.address);
        self.state.grants.set_epoch_of(key.realm, owner, now, delta.epoch_s);
        Ok(())
    }

    /// Ignores quotas.
    pub(in crate::shard) fn install_mapping_at(
        &mut self,
        now: Instant,
        key: &InternalKey,
        external: Endpoint,
        (expires, cause): (Instant, Cause),
    ) -> Result<u32, Verdict> {
        let delta = Delta {
            change: Change::Lives,
            realm: key.realm,
            protocol: key.protocol,
            internal: Endpoint::new(key.address.into(), key.port),
            host: None,
            external,
            age: Duration::ZERO,
            left: expires.saturating_since(now),
            session: None,
            remote_inside: None,
        };
        self.install_because(now, &delta, cause)?;
        self.state.find_mapping(key, self.state.hash_of(key)).ok_or(Verdict::NoMapping)
    }
}
