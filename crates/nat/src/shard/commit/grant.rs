//! Makes, renews and ends grants ([`crate::state::grant`]), after a decision of
//! [`crate::steps::grant`].

use super::ATTEMPTS;
use crate::shard::Ledger;
use crate::state::grant::Grant;
use crate::state::grant::HOLD_REMOTE;
use crate::state::grant::Kind;
use crate::state::grant::Request;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::state::session::HashedBy;
use crate::state::tcp::TcpState;
use crate::steps::grant::Denied;
use crate::steps::grant::GrantPlace;
use crate::steps::grant::cause_of;
use crate::steps::view::hashed_by;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Side;
use crate::verdict::Verdict;

/// A session that matches no packet and has ended.
const fn no_session(now: Instant) -> NewSession {
    NewSession {
        remote_address: 0,
        remote_port: 0,
        state: TcpState::Established,
        opened_from: Side::Inside,
        hairpin: false,
        has_own_timer: false,
        expires: now,
    }
}

impl Ledger {
    /// Opens or renews a grant. An error changes nothing that has not expired. The caller has
    /// checked whether the owner may have another.
    pub(in crate::shard) fn open_grant(&mut self, now: Instant, request: &Request) -> Result<u32, Denied> {
        if let Some(known) = self.view().grant_to_renew(now, request)? {
            self.renew_grant(now, known, request);
            self.hold_session(now, known);
            return Ok(known);
        }
        let (mapping, hold) = self.place_grant(now, request)?;
        // The known grant, which is over, gives way.
        if let Some(known) = self.view().find_grant(request) {
            self.end_grant(now, known);
        }
        let external = self.state.mappings.get(mapping).external();
        let made = self.insert_grant(now, request, (mapping, external), hold);
        debug_assert!(made.is_some(), "the decision has found room for the grant");
        let index = made.ok_or(Denied::Verdict(Verdict::MappingTableFull))?;
        self.note_grant(now, index);
        self.hold_session(now, index);
        Ok(index)
    }

    /// The mapping, made or found, and the session that holds it.
    fn place_grant(&mut self, now: Instant, request: &Request) -> Result<(u32, u32), Denied> {
        let mut suggested = request.suggested;
        for _ in 0..ATTEMPTS {
            let (view, random) = self.deciding();
            let mapping = match view.decide_place(now, request, suggested, random)? {
                GrantPlace::Expire(expired) => {
                    for index in expired.mappings() {
                        self.end_mapping(now, index);
                    }
                    continue;
                }
                GrantPlace::Known(mapping) => mapping,
                GrantPlace::New(new) => {
                    let Ok(index) = self.commit_mapping(now, &new, &no_session(now)) else {
                        // Another worker was faster, or the port's block is in use.
                        suggested = match suggested {
                            Suggested::Only(_) => return Err(Denied::OtherEndpoint),
                            Suggested::Any | Suggested::Rather(_) => Suggested::Any,
                            Suggested::WithTwin(_) => Suggested::WithTwin(Wish::NONE),
                        };
                        continue;
                    };
                    self.state.mappings.get_mut(index).clear_inline_session();
                    self.counters.sessions_removed += 1;
                    index
                }
            };
            return Ok((mapping, self.hold_mapping(now, mapping, request.expires)));
        }
        Err(Denied::Verdict(Verdict::PortsExhausted))
    }

    /// The session table has room.
    fn hold_mapping(&mut self, now: Instant, index: u32, until: Instant) -> u32 {
        let by = self.view().pool_of_mapping(index);
        let protocol = self.state.mappings.get(index).protocol();
        let by = by.map_or(HashedBy::Endpoint, |compiled| hashed_by(compiled, protocol));
        let hold = NewSession { remote_address: HOLD_REMOTE, expires: until, ..no_session(now) };
        let mapping = self.state.mappings.get_mut(index);
        let Some(slot) = self.state.sessions.insert(index, mapping, &hold, by, now) else { return 0 };
        self.counters.sessions_created += 1;
        self.count_session(now, index, true);
        slot
    }

    pub(in crate::shard) fn hold_again(&mut self, now: Instant, index: u32) {
        let Grant { mapping, .. } = *self.state.grants.get(index);
        let hold = self.hold_mapping(now, mapping, self.state.grants.get(index).expires());
        self.state.grants.get_mut(index).hold = hold;
    }

    pub(in crate::shard) fn renew_grant(&mut self, now: Instant, index: u32, request: &Request) {
        self.state.grants.renew(index, request);
        self.keep_until(index, request.expires);
        self.note_grant(now, index);
    }

    /// Makes a grant end earlier or later.
    pub(super) fn move_end(&mut self, now: Instant, index: u32, until: Instant) {
        self.state.grants.get_mut(index).set_expires(until);
        self.keep_until(index, until);
        self.note_grant(now, index);
    }

    pub(in crate::shard) fn keep_until(&mut self, index: u32, until: Instant) {
        let Grant { mapping, hold, .. } = *self.state.grants.get(index);
        if hold != 0 {
            let state = self.state.sessions.get(hold).state();
            let is_shorter = self.state.sessions.get_mut(hold).refresh(state, until);
            self.state.mappings.get_mut(mapping).extend_to(until, is_shorter);
            self.state.mappings.note_end(mapping, until);
        }
    }

    /// Ends a grant for its client. The mapping lives on while packets use it, and its port is held
    /// down for `rest` (RFC 6887 §15).
    pub(in crate::shard) fn retire_grant(&mut self, now: Instant, index: u32, rest: Duration) {
        if rest == Duration::ZERO || self.state.grants.get(index).mapping == 0 {
            self.end_grant(now, index);
            return;
        }
        let until = now + rest;
        self.state.grants.get_mut(index).reserve_until(until);
        self.keep_until(index, until);
        self.note_grant(now, index);
    }

    /// Ends a grant. The mapping lives on only while packets use it.
    pub(in crate::shard) fn end_grant(&mut self, now: Instant, index: u32) {
        self.release_hold(now, index);
        self.remove_grant(now, index);
    }

    /// Removes a grant whose hold is gone.
    fn remove_grant(&mut self, now: Instant, index: u32) {
        self.forget_call(index);
        self.note_grant_ended(now, index);
        let address = self.state.grants.get(index).key().address;
        self.state.grants.remove(index);
        self.state.subscribers.hosts.release(now, address);
    }

    /// An IPv6 host's number means the host while it has grants.
    fn insert_grant(&mut self, now: Instant, request: &Request, place: (u32, Endpoint), hold: u32) -> Option<u32> {
        let address = request.key.address;
        let made = self.state.grants.insert(request, self.state.owner_of(address), place, hold, now)?;
        self.state.subscribers.hosts.retain(address);
        Some(made)
    }

    pub(in crate::shard) fn release_hold(&mut self, now: Instant, index: u32) {
        let Grant { mapping, hold, .. } = *self.state.grants.get(index);
        if hold != 0 {
            self.state.grants.get_mut(index).hold = 0;
            self.end_extra_session(now, hold);
            // The hold may have set the mapping's end.
            let record = self.state.mappings.get_mut(mapping);
            let expires = record.expires();
            record.extend_to(expires, true);
            self.state.mappings.note_end(mapping, now);
        }
    }

    /// Call it when a mapping ends before its grants. Those a client still has need another
    /// mapping.
    #[cold]
    pub(in crate::shard) fn leave_grants(&mut self, now: Instant, mapping: u32) {
        let key = self.state.mappings.get(mapping).key();
        let is_out_of_place = self.view().is_out_of_place(mapping);
        while let Some(index) = self.state.grants.find(&key, |grant| grant.mapping == mapping) {
            // The hold goes with the mapping.
            let grant = self.state.grants.get_mut(index);
            grant.lose_mapping();
            // The client has not been notified yet.
            let is_awaited = grant.is_held_down() && grant.updates_left > 0;
            if is_awaited {
                continue;
            }
            if is_out_of_place && grant.kind() == Kind::Peer && grant.is_alive(now) {
                // A session cannot move.
                self.announce_end(now, index);
            } else if !grant.is_alive(now) || grant.kind() != Kind::Map {
                self.remove_grant(now, index);
            }
        }
    }

    /// The grant's own mapping has ended. False if there is no other.
    pub(in crate::shard) fn move_grant(&mut self, now: Instant, index: u32) -> bool {
        let grant = *self.state.grants.get(index);
        let request = Request::again(&grant);
        let Ok((mapping, hold)) = self.place_grant(now, &request) else { return false };
        let external = self.state.mappings.get(mapping).external();
        self.state.grants.get_mut(index).place_at(mapping, hold, external);
        self.note_grant(now, index);
        true
    }

    /// Call it after a remote's first session: a grant for only one session ends.
    #[cold]
    pub(in crate::shard) fn note_entered(&mut self, now: Instant, mapping: u32, remote: (u32, u16)) {
        let key = self.state.mappings.get(mapping).key();
        let is_once = |grant: &Grant| {
            grant.kind() == Kind::Once && grant.mapping == mapping && grant.is_alive(now) && grant.admits(remote)
        };
        if let Some(index) = self.state.grants.find(&key, is_once) {
            self.use_grant(now, index);
        }
    }

    /// Its session has come. If there is room, its record stays until the mapping ends, so that
    /// `show` and `find` name the origin.
    pub(in crate::shard) fn use_grant(&mut self, now: Instant, index: u32) {
        if !self.state.grants.is_half_empty() {
            self.end_grant(now, index);
            return;
        }
        self.release_hold(now, index);
        self.note_grant_ended(now, index);
        self.state.grants.get_mut(index).set_used();
    }

    pub(in crate::shard) fn reserve_until(&mut self, now: Instant, index: u32, until: Instant) {
        self.state.grants.get_mut(index).reserve_until(until);
        self.keep_until(index, until);
        self.note_grant(now, index);
    }

    /// Makes a grant again at the same external endpoint. Ignores quotas.
    pub(in crate::shard) fn restore_grant(
        &mut self,
        now: Instant,
        request: &Request,
        external: Endpoint,
    ) -> Result<u32, Verdict> {
        if let Some(known) = self.view().find_grant(request) {
            if self.state.grants.get(known).external() == external {
                self.renew_grant(now, known, request);
                return Ok(known);
            }
            self.end_grant(now, known);
        }
        if self.state.grants.is_full() {
            return Err(Verdict::MappingTableFull);
        }
        if self.state.sessions.is_full() {
            return Err(Verdict::SessionTableFull);
        }
        let mapping =
            self.install_mapping_at(now, &request.key, external, (request.expires, cause_of(request.origin)))?;
        self.view().admit_peer(now, mapping, request, true)?;
        let hold = self.hold_mapping(now, mapping, request.expires);
        let made = self.insert_grant(now, request, (mapping, external), hold);
        let index = made.ok_or(Verdict::MappingTableFull)?;
        self.hold_session(now, index);
        self.note_grant(now, index);
        Ok(index)
    }

    /// Another instance has ended it.
    pub(in crate::shard) fn end_restored(&mut self, now: Instant, key: &InternalKey, is_it: impl Fn(&Grant) -> bool) {
        if let Some(index) = self.state.grants.find(key, is_it) {
            self.end_grant(now, index);
        }
    }
}
