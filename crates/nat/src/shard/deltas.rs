mod dependent;
mod grants;

use crate::steps::view::View;
use mem::ring::Producer;

use super::Ledger;
use crate::event::Cause;
use crate::external::blocks::Block;
use crate::external::ports::PortRange;
use crate::external::ports::Share;
use crate::external::ports::Taker;
use crate::settings::Pooling;
use crate::snapshot::shared::CompiledPool;
use crate::snapshot::shared::Shared;
use crate::state::delta::Change;
use crate::state::delta::Delta;
use crate::state::delta::DeltaHost;
use crate::state::delta::DeltaSession;
use crate::state::delta::GrantDelta;
use crate::state::grant_record::GrantRecord;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::state::mapping::SessionRef;
use crate::state::tcp::SequenceTracker;
use crate::steps::opening::Entered;
use crate::steps::opening::Entry;
use crate::steps::opening::External;
use crate::steps::opening::FromGuaranteed;
use crate::steps::opening::NewMapping;
use crate::steps::opening::Owner;
use crate::steps::opening::Place;
use crate::steps::opening::Source;
use crate::steps::pairing::UNPAIRED;
use crate::steps::session::SessionPlace;
use crate::steps::view::hashed_by;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// Rings for changes. Without a ring they cost nothing.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    ring: Option<Producer<Delta>>,
    lost: u64,
    grants: Option<Producer<GrantRecord>>,
    grants_lost: u64,
}

impl Shared {
    /// The worker that applies a delta.
    pub fn worker_of_delta(&self, delta: &Delta) -> WorkerId {
        if let Some(host) = &delta.host {
            return self.worker_of_host(host.address.to_bits());
        }
        self.worker_of_subscriber(delta.internal.address.into())
    }

    /// The worker of a grant.
    pub fn worker_of_grant(&self, delta: &GrantDelta) -> WorkerId {
        match &delta.host {
            Some(host) => self.worker_of_host(host.address.to_bits()),
            None => self.worker_of_subscriber(delta.internal.address.into()),
        }
    }
}

impl View<'_> {
    #[inline]
    pub(super) fn host_of_delta(&self, internal: Endpoint) -> Option<DeltaHost> {
        let number = HostNumber::from(internal.address);
        if number.is_ipv6() { self.delta_host(number) } else { None }
    }

    #[cold]
    fn delta_host(&self, number: HostNumber) -> Option<DeltaHost> {
        let host = self.state.subscribers.hosts.get(number)?;
        let transition = &self.snapshot.transition;
        let (inner, towards) = match host.way() {
            Way::Nat64(position) => (None, transition.prefix(position)?.embed(0)),
            Way::Softwire(position) => (Some(host.inner().into()), transition.softwire(position)?.aftr),
        };
        Some(DeltaHost { address: host.address().into(), inner, towards: towards.into() })
    }

    fn delta_of(&self, now: Instant, index: u32, session: Option<SessionRef>, change: Change) -> Delta {
        let mapping = self.state.mappings.get(index);
        let age_s = (now.as_micros() / 1_000_000).saturating_sub(u64::from(mapping.created_s()));
        let session = session.and_then(|session| match session {
            SessionRef::Inline => Some(DeltaSession {
                remote: Endpoint::new(mapping.remote_address().into(), mapping.remote_port()),
                opened_from: mapping.session_opened_from(),
                is_hairpin: mapping.session_is_hairpin(),
                state: mapping.state(),
                left: mapping.session_expires().saturating_since(now),
                tracker: mapping.tracker,
            }),
            SessionRef::Extra(slot) => {
                let session = self.state.sessions.get(slot);
                Some(DeltaSession {
                    remote: Endpoint::new(session.remote_address.into(), session.remote_port),
                    opened_from: session.opened_from(),
                    is_hairpin: session.is_hairpin(),
                    state: session.state(),
                    left: session.expires().saturating_since(now),
                    tracker: session.tracker,
                })
            }
            SessionRef::Flow(_) => None,
        });
        Delta {
            change,
            realm: mapping.realm(),
            protocol: mapping.protocol(),
            internal: mapping.internal(),
            host: self.host_of_delta(mapping.internal()),
            external: mapping.external(),
            age: Duration::from_secs(age_s),
            left: mapping.expires().saturating_since(now),
            session,
            remote_inside: None,
        }
    }

    /// Appends the live state in up to `scan_max` records from `cursor` on (0 to begin): mappings
    /// with their sessions, then endpoint-dependent sessions. Returns the next cursor, None at the
    /// end.
    pub fn deltas_page(&self, now: Instant, cursor: u64, scan_max: usize, out: &mut Vec<Delta>) -> Option<u64> {
        let mappings_end = u64::from(self.state.mappings.walk_end());
        let end = mappings_end + u64::from(self.state.flows.walk_end());
        let stop = cursor.saturating_add(scan_max as u64).min(end);
        for record in cursor..stop {
            match record.checked_sub(mappings_end) {
                None => self.deltas_of_mapping(now, record as u32, out),
                Some(flow) => self.delta_of_live_flow(now, flow as u32, out),
            }
        }
        (stop < end).then_some(stop)
    }

    fn deltas_of_mapping(&self, now: Instant, index: u32, out: &mut Vec<Delta>) {
        let mapping = self.state.mappings.get(index);
        if !mapping.is_in_use() || !self.state.is_alive(index, now) {
            return;
        }
        out.push(self.delta_of(now, index, None, Change::Lives));
        if mapping.has_live_session(now) {
            out.push(self.delta_of(now, index, Some(SessionRef::Inline), Change::Lives));
        }
        let mut slot = mapping.extra_head;
        while slot != 0 {
            let session = self.state.sessions.get(slot);
            if session.is_alive(now) && !session.is_hold() {
                out.push(self.delta_of(now, index, Some(SessionRef::Extra(slot)), Change::Lives));
            }
            slot = session.next;
        }
    }

    fn owner_of_installed(&self, key: &InternalKey, address: AddressIndex) -> (Owner, Option<Entered>) {
        let slot = self.state.subscribers.find(key.realm, key.address);
        let class = match slot {
            Some(slot) => self.class_now(slot),
            None => self.class_of(key.realm, key.address),
        };
        let compiled = self.snapshot.compiled_pool(address);
        let paired = if compiled.pooling == Pooling::Arbitrary { UNPAIRED } else { address };
        let entered = Entered { entry: Entry::new(compiled.id, Place::At(address)), address: paired };
        (Owner { slot, past: slot, class, penalty: None, released: None }, slot.is_none().then_some(entered))
    }

    fn source_of(&self, key: &InternalKey, delta: &Delta, address: AddressIndex, compiled: &CompiledPool) -> Source {
        if let Some((external, kind)) = self.static_mapping_of(key)
            && external == delta.external
        {
            return Source::Static(kind);
        }
        let port = delta.external.port;
        let holder = self.holder(key.realm, key.address);
        match (
            compiled.blocks.filter(|_| compiled.slice_ports == 0),
            self.snapshot.ports.blocks.lease_of(address, port),
        ) {
            (_, Some(lease)) if lease.holder == holder => {
                Source::Free { taker: Taker::Holder, guaranteed: None, activates: Some(lease.block) }
            }
            (Some(blocks), None) if (blocks.first..=blocks.last).contains(&port) => {
                Source::Given(Block::around(address, port, blocks.size))
            }
            _ => {
                let is_own = self
                    .state
                    .subscribers
                    .find(key.realm, key.address)
                    .is_none_or(|slot| AddressIndex(self.state.subscribers.get(slot).paired) == address);
                let from = FromGuaranteed { share: Share::Within, is_own, needs_all: false };
                Source::Free {
                    taker: Taker::Anyone,
                    guaranteed: compiled.has_guarantees().then_some(from),
                    activates: None,
                }
            }
        }
    }
}

impl Ledger {
    pub(super) fn set_deltas(&mut self, ring: Producer<Delta>) {
        (self.deltas.ring, self.deltas.lost) = (Some(ring), 0);
    }

    pub(super) fn set_grant_deltas(&mut self, ring: Producer<GrantRecord>) {
        (self.deltas.grants, self.deltas.grants_lost) = (Some(ring), 0);
    }

    pub(super) fn grant_deltas_lost(&self) -> u64 {
        self.deltas.grants_lost
    }

    pub(super) fn deltas_lost(&self) -> u64 {
        self.deltas.lost
    }

    #[inline(always)]
    pub(super) fn emit_session(&mut self, now: Instant, index: u32, session: SessionRef) {
        if self.deltas.ring.is_some() {
            self.emit_life(now, index, session);
        }
    }

    #[inline(never)]
    fn emit_life(&mut self, now: Instant, index: u32, session: SessionRef) {
        let delta = self.view().delta_of(now, index, Some(session), Change::Lives);
        // A grant's mapping begins without a session.
        let lives = delta.session.filter(|session| session.left > Duration::ZERO);
        self.emit(Delta { session: lives, ..delta });
    }

    /// `session`: only that further session ends.
    #[inline]
    pub(super) fn emit_end(&mut self, now: Instant, index: u32, session: Option<SessionRef>) {
        if self.deltas.ring.is_some() {
            self.emit(self.view().delta_of(now, index, session, Change::Ended));
        }
    }

    #[cold]
    fn emit(&mut self, delta: Delta) {
        let Some(ring) = &mut self.deltas.ring else { return };
        if ring.try_push(delta).is_err() {
            self.deltas.lost += 1;
        }
    }

    pub(super) fn install(&mut self, now: Instant, delta: &Delta) -> Result<(), Verdict> {
        self.install_because(now, delta, Cause::Outbound)
    }

    /// `cause`: in the event log, of a mapping it creates.
    fn install_because(&mut self, now: Instant, delta: &Delta, cause: Cause) -> Result<(), Verdict> {
        let place = (delta.change, delta.realm, delta.internal);
        let Some(internal) = self.installed_internal(now, place, delta.host.as_ref())? else { return Ok(()) };
        let key = InternalKey {
            realm: delta.realm,
            protocol: delta.protocol,
            address: internal.address.into(),
            port: internal.port,
        };
        if let (Some(session), Some(remote_inside)) = (&delta.session, delta.remote_inside) {
            return self.install_dependent(now, &key, delta, session, remote_inside);
        }
        let found = self.state.find_mapping(&key, self.state.hash_of(&key));
        let same = found.filter(|index| self.state.mappings.get(*index).external() == delta.external);
        if delta.change == Change::Ended {
            match (same, &delta.session) {
                (Some(index), None) => self.end_at_once(now, index),
                (Some(index), Some(session)) => self.end_installed(now, index, session),
                (None, _) => {}
            }
            return Ok(());
        }
        let index = match same {
            Some(index) => index,
            None => {
                if let Some(other) = found {
                    self.end_at_once(now, other);
                }
                self.install_mapping(now, &key, delta, cause)?
            }
        };
        match &delta.session {
            Some(session) => self.install_session(now, index, session)?,
            None => self.state.mappings.get_mut(index).extend_to(now + delta.left, false),
        }
        Ok(())
    }

    /// A host has another number on each instance. `None` if something of an unknown host ends.
    pub(super) fn installed_internal(
        &mut self,
        now: Instant,
        (change, realm, internal): (Change, RealmId, Endpoint),
        host: Option<&DeltaHost>,
    ) -> Result<Option<Endpoint>, Verdict> {
        let Some(host) = host else { return Ok(Some(internal)) };
        let way = self.shared.transition.way_of(realm, host.towards.to_bits()).ok_or(Verdict::NoRoute)?;
        let key =
            HostKey { address: host.address.to_bits(), inner: host.inner.map_or(0, |inner| inner.to_bits()), way };
        let hosts = &self.state.subscribers.hosts;
        let number = match change {
            Change::Ended => hosts.find(hosts.hash_of(&key), &key),
            Change::Lives => Some(self.enter_host_of(now, &key, realm)?),
        };
        Ok(number.map(|number| Endpoint::new(number.into(), internal.port)))
    }

    /// The other instance holds the port down. A hold-down here could refuse a port it has freed.
    fn end_at_once(&mut self, now: Instant, index: u32) {
        self.end_mapping_with(now, index, Some((Duration::ZERO, Cause::Idle)));
    }

    fn end_installed(&mut self, now: Instant, index: u32, session: &DeltaSession) {
        let protocol = self.state.mappings.get(index).protocol();
        let Some(compiled) = self.view().pool_of_mapping(index) else { return };
        let (by, remote) = (hashed_by(compiled, protocol), session.remote);
        let found = self.state.find_session(index, remote.address.to_bits(), remote.port, by, now);
        match found {
            Some(SessionRef::Extra(slot)) => self.end_extra_session(now, slot),
            // Instances may keep different sessions in the mapping's record. Its own end is
            // reported by itself.
            Some(SessionRef::Inline) => self.state.mappings.get_mut(index).shorten_session(now),
            Some(SessionRef::Flow(_)) | None => {}
        }
    }

    fn install_mapping(
        &mut self,
        now: Instant,
        key: &InternalKey,
        delta: &Delta,
        cause: Cause,
    ) -> Result<u32, Verdict> {
        let address = self.shared.address_index(delta.external.address).ok_or(Verdict::DestinationNotPool)?;
        let compiled = *self.shared.compiled_pool(address);
        let known = self.state.subscribers.find(key.realm, key.address);
        if self.state.mappings.is_full() || self.state.outbound.is_full() {
            return Err(Verdict::MappingTableFull);
        }
        if known.is_none() && self.state.subscribers.is_full() {
            return Err(Verdict::SubscriberTableFull);
        }
        let (owner, entered) = self.view().owner_of_installed(key, address);
        let mut new = NewMapping {
            key: *key,
            hash: self.state.hash_of(key),
            owner,
            entered,
            external: External {
                address,
                port: delta.external.port,
                source: self.view().source_of(key, delta, address, &compiled),
            },
            notes_place: known.is_some(),
            gives_single_ports: compiled.gives_single_ports(),
            turn: None,
            cause,
        };
        // Its sessions follow. Without sessions it lasts as long as the delta says.
        let nothing = NewSession {
            remote_address: 0,
            remote_port: 0,
            state: crate::state::tcp::TcpState::Established,
            opened_from: Side::Inside,
            hairpin: false,
            has_own_timer: false,
            expires: now,
        };
        let mut made = self.commit_mapping(now, &new, &nothing);
        if made.is_err() {
            self.unshare_in_the_way(new.external.source, address, key.protocol, delta.external.port);
            made = self.commit_mapping(now, &new, &nothing);
        }
        if made.is_err()
            && let Source::Free { taker, guaranteed: Some(from), activates } = new.external.source
        {
            // The guarantee may be used up, so the port counts as unguaranteed.
            let guaranteed = Some(FromGuaranteed { share: Share::Beyond, ..from });
            new.external.source = Source::Free { taker, guaranteed, activates };
            made = self.commit_mapping(now, &new, &nothing);
        }
        let Ok(index) = made else { return Err(Verdict::PortsExhausted) };
        let mapping = self.state.mappings.get_mut(index);
        mapping.clear_inline_session();
        mapping.set_created(now, delta.age);
        mapping.set_expires(now + delta.left);
        self.state.mappings.note_end(index, now + delta.left);
        self.counters.sessions_removed += 1;
        self.note_installed(now, index);
        Ok(index)
    }

    /// Shared ports may block the other instance's mapping or block.
    fn unshare_in_the_way(&mut self, source: Source, address: AddressIndex, protocol: Protocol, port: u16) {
        match source {
            Source::Given(block) => {
                let range = PortRange::of_block(block);
                for protocol in Protocol::ALL {
                    (range.first..=range.last).for_each(|port| self.unshare_for_install(address, protocol, port));
                }
            }
            Source::Free { .. } | Source::Lease { .. } | Source::Static(_) => {
                self.unshare_for_install(address, protocol, port)
            }
        }
    }

    fn install_session(&mut self, now: Instant, index: u32, given: &DeltaSession) -> Result<(), Verdict> {
        let mapping = self.state.mappings.get(index);
        let (protocol, remote) = (mapping.protocol(), (given.remote.address.to_bits(), given.remote.port));
        let compiled = self.view().pool_of_mapping(index).ok_or(Verdict::DestinationNotPool)?;
        let by = hashed_by(compiled, protocol);
        let expires = now + given.left;
        let session = match self.state.find_session(index, remote.0, remote.1, by, now) {
            Some(session) => {
                self.refresh(index, session, given.state, expires);
                session
            }
            None => {
                let server_port = match given.opened_from {
                    Side::Inside => remote.1,
                    Side::Outside => mapping.internal_port(),
                };
                let first = self.policy.lifetimes.first(protocol, server_port, given.opened_from);
                let new = NewSession {
                    remote_address: remote.0,
                    remote_port: remote.1,
                    state: given.state,
                    opened_from: given.opened_from,
                    hairpin: given.is_hairpin,
                    // A gateway may have to read it (`Ledger::gateway_of`).
                    has_own_timer: first.has_own_timer || self.view().gateway_of_server(index).is_some(),
                    expires,
                };
                let place = match (mapping.has_session(), mapping.has_live_session(now)) {
                    (false, _) => SessionPlace::First,
                    (true, false) => SessionPlace::Again,
                    (true, true) => SessionPlace::Extra,
                };
                if place == SessionPlace::Extra && self.state.sessions.is_full() {
                    return Err(Verdict::SessionTableFull);
                }
                self.commit_session(now, index, place, &new, by)
            }
        };
        *self.tracker_mut(index, session) = given.tracker;
        Ok(())
    }

    fn tracker_mut(&mut self, index: u32, session: SessionRef) -> &mut SequenceTracker {
        match session {
            SessionRef::Inline => &mut self.state.mappings.get_mut(index).tracker,
            SessionRef::Extra(slot) => &mut self.state.sessions.get_mut(slot).tracker,
            SessionRef::Flow(flow) => &mut self.state.flows.get_mut(flow).tracker,
        }
    }
}
