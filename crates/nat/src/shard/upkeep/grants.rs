//! Ends expired grants, and moves those whose mapping has lost its port or address.

use crate::settings::Settings;
use crate::shard::Ledger;
use crate::state::grant::Grant;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::Side;
use crate::upkeep::walk::Pace;

/// As many messages as RFC 6887 §14.2 asks for.
const UPDATES: u8 = 3;
/// Sessions examined for one mapping.
const SESSIONS_MAX: usize = 64;
/// To notify the client of a grant without a mapping.
const NOTICE_TIME: Duration = Duration::from_secs(2);

/// True if the server that made the grant is off. Expectations of gateways and calls end by
/// themselves.
fn is_without_server(settings: &Settings, grant: &Grant) -> bool {
    match grant.origin() {
        Origin::Pcp => !settings.port_control.pcp,
        Origin::NatPmp => !settings.port_control.nat_pmp,
        Origin::Alg(alg) => grant.kind() == Kind::Map && settings.gateways.iter().all(|gateway| gateway.alg != alg),
    }
}

impl View<'_> {
    /// Its port is no longer given out, or its address drains.
    pub(in crate::shard) fn is_out_of_place(&self, mapping: u32) -> bool {
        let record = self.state.mappings.get(mapping);
        let address = self.snapshot.address_index(record.external().address);
        let is_closed = address.is_none_or(|address| self.snapshot.closed(address).is_some());
        let is_at_home = self.snapshot.is_at_home(&self.static_key(&record.key()), record.external());
        is_closed && !is_at_home || self.orphaned(mapping).is_some()
    }

    fn is_without_server(&self, grant: &Grant) -> bool {
        is_without_server(self.snapshot.settings(), grant)
    }

    /// True if only grants keep this mapping, and the sweep would end it under other settings:
    /// grants move if their port or address `drains`, and end without a server.
    pub(in crate::shard) fn ends_with_grants(
        &self,
        now: Instant,
        mapping: u32,
        drains: bool,
        candidate: &Settings,
    ) -> bool {
        let grants = &self.state.grants;
        if grants.is_empty() || self.has_real_session(now, mapping) {
            return false;
        }
        let key = self.state.mappings.get(mapping).key();
        let of_owner = || self.state.grants_beside(key.realm, key.address).map(|index| grants.get(index));
        let held = || of_owner().filter(|grant| grant.mapping == mapping && grant.hold != 0);
        match drains {
            true => held().any(|grant| grant.is_alive(now) && grant.kind() != Kind::Call),
            false => {
                held().next().is_some()
                    && held().all(|grant| grant.is_alive(now) && is_without_server(candidate, grant))
            }
        }
    }

    /// Beside the hold-down of all ports: the idle time of mappings that packets make (RFC 6887
    /// §15).
    pub(in crate::shard) fn hold_down_of_grant(&self, grant: &Grant) -> Duration {
        match grant.kind() {
            Kind::Map => self.sessionless_lifetime(grant.protocol()),
            Kind::Peer | Kind::Once | Kind::Call => Duration::ZERO,
        }
    }
}

impl Ledger {
    pub(in crate::shard) fn sweep_grants(&mut self, now: Instant, elapsed: u64) {
        if self.state.grants.is_empty() {
            return;
        }
        let end = self.state.grants.walk_end();
        for index in self.upkeep.grants.next(Pace::RECORDS.due(end, elapsed), end) {
            self.tend_grant(now, index);
        }
    }

    fn tend_grant(&mut self, now: Instant, index: u32) {
        let grant = *self.state.grants.get(index);
        if !grant.is_in_use() {
            return;
        }
        if !grant.is_alive(now) {
            self.end_if_over(now, index);
            return;
        }
        if self.view().is_without_server(&grant) {
            if grant.origin().is_alg() {
                self.end_grant(now, index);
                return;
            }
            self.release_hold(now, index);
            self.release_session(now, &grant);
            self.announce_end(now, index);
            return;
        }
        // A call stays until the deadline of the change, like a session.
        if grant.kind() != Kind::Call && !grant.has_lost_mapping() && self.view().is_out_of_place(grant.mapping) {
            self.leave_place(now, index);
        }
        let grant = *self.state.grants.get(index);
        if grant.has_lost_mapping() {
            self.find_place(now, index);
            return;
        }
        if grant.hold == 0 && !self.state.sessions.is_full() && !self.view().is_out_of_place(grant.mapping) {
            // An earlier configuration took its port or address.
            self.hold_again(now, index);
        } else if grant.hold != 0 {
            // A shorter timer may have shortened the mapping.
            self.state.mappings.get_mut(grant.mapping).extend_to(grant.expires(), false);
        }
        if grant.kind() == Kind::Peer {
            self.keep_peer(now, index);
        }
    }

    /// Notifies the client of the new place or the end; its epoch time begins again (RFC 6887
    /// §8.5).
    fn find_place(&mut self, now: Instant, index: u32) {
        let grant = *self.state.grants.get(index);
        if grant.is_map_of_client() && grant.requester.set_size > 1 {
            self.announce_end_of_set(now, &grant);
            return;
        }
        if !self.move_grant(now, index) {
            self.announce_end(now, index);
            return;
        }
        if grant.origin() == Origin::NatPmp {
            self.move_twin(now, &grant, index);
        }
        self.reset_epoch_of(now, index);
        self.state.grants.get_mut(index).announce(UPDATES, now);
        self.updates_pending = true;
    }

    /// Notifies the client by updates with a lifetime of 0 (RFC 6887 §14.2).
    pub(in crate::shard) fn announce_end(&mut self, now: Instant, index: u32) {
        self.reset_epoch_of(now, index);
        self.note_grant_ended(now, index);
        let grant = self.state.grants.get_mut(index);
        grant.reserve_until(now + NOTICE_TIME);
        grant.announce(UPDATES, now);
        self.updates_pending = true;
    }

    /// Restarts the epoch time of the requester, not of a third party.
    fn reset_epoch_of(&mut self, now: Instant, index: u32) {
        let grant = *self.state.grants.get(index);
        let key = grant.key();
        if grant.requester.address == key.address {
            let owner = self.state.owner_of(key.address);
            self.state.grants.reset_epoch(key.realm, owner, now);
        }
    }

    fn end_if_over(&mut self, now: Instant, index: u32) {
        let grant = *self.state.grants.get(index);
        if now < grant.expires() || grant.is_used() {
            return;
        }
        // The inside was faster: the expected traffic came by its own session.
        if grant.kind() == Kind::Once && self.view().has_real_session(now, grant.mapping) {
            self.keep_by_data(now, &grant);
            self.use_grant(now, index);
            return;
        }
        let rest = if grant.is_held_down() { Duration::ZERO } else { self.view().hold_down_of_grant(&grant) };
        self.retire_grant(now, index, rest);
    }

    /// Media may come from outside only, for hours. If the inside has sent first, its sessions at
    /// an announced port live as long as data flow either way.
    fn keep_by_data(&mut self, now: Instant, grant: &Grant) {
        self.change_states(now, grant.mapping, |remote, side, state| {
            let is_of_media = side == Side::Inside || grant.admits(remote);
            let is_open = state == TcpState::Established || state == TcpState::UNANSWERED && side == Side::Inside;
            (is_of_media && is_open).then_some(TcpState::ANNOUNCED)
        });
    }

    /// From now on only the inside keeps a session alive.
    pub(in crate::shard) fn end_media(&mut self, now: Instant, mapping: u32, remote: u32) {
        self.change_states(now, mapping, |(address, _), _, state| {
            (address == remote && state == TcpState::ANNOUNCED).then_some(TcpState::Established)
        });
    }

    /// Timers go on.
    fn change_states(
        &mut self,
        now: Instant,
        index: u32,
        change: impl Fn((u32, u16), Side, TcpState) -> Option<TcpState>,
    ) {
        let mapping = self.state.mappings.get(index);
        if mapping.protocol() != Protocol::Udp {
            return;
        }
        let first = mapping.has_live_session(now).then_some(SessionRef::Inline);
        let extra = |slot: u32| (slot != 0).then_some(slot);
        let mut next = extra(mapping.extra_head);
        let mut session = first;
        for _ in 0..SESSIONS_MAX {
            if let Some(session) = session
                && let Some((remote, side)) = self.state.remote_of(index, session)
            {
                let state = self.state.session_state(index, session).0;
                match (session, change(remote, side, state)) {
                    (SessionRef::Inline, Some(state)) => self.state.mappings.get_mut(index).set_state(state),
                    (SessionRef::Extra(slot), Some(state)) => self.state.sessions.get_mut(slot).set_state(state),
                    _ => {}
                }
            }
            let Some(slot) = next else { return };
            let record = self.state.sessions.get(slot);
            next = extra(record.next);
            session = (record.is_alive(now) && !record.is_hold()).then_some(SessionRef::Extra(slot));
        }
    }

    fn leave_place(&mut self, now: Instant, index: u32) {
        let mapping = self.state.grants.get(index).mapping;
        if self.view().has_real_session(now, mapping) {
            self.release_hold(now, index);
        } else if self.may_end(mapping) {
            self.end_mapping(now, mapping);
        }
    }

    /// Keeps a PEER's session until the grant ends, although packets restart the timer, unless the
    /// connection has ended (RFC 6887 §12.3).
    fn keep_peer(&mut self, now: Instant, index: u32) {
        let grant = *self.state.grants.get(index);
        let (Some(remote), mapping) = (grant.peer(), grant.mapping) else { return };
        let Some(session) = self.view().session_of_peer(now, mapping, remote) else {
            self.end_grant(now, index);
            return;
        };
        let (state, expires) = self.state.session_state(mapping, session);
        if state.is_over() {
            self.end_grant(now, index);
        } else if expires < grant.expires() {
            self.refresh(mapping, session, state, grant.expires());
        }
    }
}
