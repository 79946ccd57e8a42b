//! Applies shorter timers to silent sessions.
//!
//! The sweep limits each record's end once to a shorter timer from now, so nothing ends sooner
//! after its last packet than that timer says.

use crate::steps::view::View;
use core::ops::Range;

use crate::settings::Timeouts;
use crate::shard::Ledger;
use crate::state::mapping::SessionRef;
use crate::state::timers::Timers;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::Side;
use crate::upkeep::looked_over::LookedOver;

/// Further sessions examined per mapping.
const OTHERS_MAX: u16 = 16;

#[derive(Debug, Default)]
pub(in crate::shard) struct Shortening {
    mappings: LookedOver,
    sessions: LookedOver,
    flows: LookedOver,
}

impl Shortening {
    #[inline]
    pub(in crate::shard) fn has_mappings(&self) -> bool {
        self.mappings.is_due()
    }

    #[inline]
    pub(in crate::shard) fn looked_at_mappings(&mut self, records: Range<u32>) {
        self.mappings.passed(records);
    }
}

pub(in crate::shard) fn has_shorter(before: &Timeouts, after: &Timeouts) -> bool {
    let all = |timeouts: &Timeouts| {
        let Timeouts { udp, udp_unanswered, tcp_opening, tcp_established, tcp_closing, icmp, .. } = *timeouts;
        [udp, udp_unanswered, tcp_opening, tcp_established, tcp_closing, icmp]
    };
    all(after).iter().zip(all(before)).any(|(after, before)| *after < before)
}

impl View<'_> {
    /// `lifetime`: of its kind, under these timers.
    pub(in crate::shard) fn idle_of(
        &self,
        now: Instant,
        expires: Instant,
        lifetime: impl Fn(&Timers) -> Duration,
    ) -> Duration {
        let present = lifetime(&self.policy.lifetimes);
        self.policy.former.idle(now, expires, present, lifetime)
    }

    /// `None` if unknown: some have their own timers, and there are too many to examine.
    fn others_end(&self, now: Instant, index: u32) -> Option<Instant> {
        let mapping = self.state.mappings.get(index);
        if mapping.extra_count() > OTHERS_MAX {
            return (!self.policy.lifetimes.has_own(mapping.protocol())).then_some(Instant::ORIGIN);
        }
        let (mut end, mut slot) = (Instant::ORIGIN, mapping.extra_head);
        while slot != 0 {
            let session = self.state.sessions.get(slot);
            let expires = session.expires();
            if session.is_hold() {
                end = end.max(expires);
            }
            end = end.max(expires.min(now + self.lifetime(index, SessionRef::Extra(slot), session.state())));
            slot = session.next;
        }
        Some(end)
    }
}

impl Ledger {
    pub(in crate::shard) fn shorten_lives(&mut self) {
        self.upkeep.shortening = Shortening {
            mappings: LookedOver::all_before(self.state.mappings.walk_end()),
            sessions: LookedOver::all_before(self.state.sessions.walk_end()),
            flows: LookedOver::all_before(self.state.flows.walk_end()),
        };
    }

    pub(in crate::shard) fn shorten_mapping(&mut self, now: Instant, index: u32) {
        let mapping = self.state.mappings.get(index);
        if !mapping.is_in_use() || mapping.is_condemned() {
            return;
        }
        let (has_session, session_ends) = (mapping.has_session(), mapping.session_expires());
        if has_session {
            // The server's port may have gained or lost its own timer or its gateway.
            let side = mapping.session_opened_from();
            let port = if side == Side::Inside { mapping.remote_port() } else { mapping.internal_port() };
            // A connection that a gateway changed needs its numbers shifted until it ends.
            let is_unusual = self.policy.lifetimes.is_unusual(mapping.protocol(), port, side)
                || self.view().has_control_session(index)
                || self.view().gateway_of_server(index).is_some();
            self.state.mappings.get_mut(index).set_own_timer(is_unusual);
        }
        let mapping = self.state.mappings.get(index);
        let limit = now + self.view().lifetime(index, SessionRef::Inline, mapping.state());
        let without = now + self.view().sessionless_lifetime(mapping.protocol());
        let protocol = mapping.protocol();
        let others_end = self.view().others_end(now, index);
        let mapping = self.state.mappings.get_mut(index);
        let session_limit = if has_session { session_ends.min(limit) } else { Instant::ORIGIN };
        let is_shorter = has_session && session_limit < session_ends;
        if is_shorter {
            mapping.shorten_session(session_limit);
        }
        let ends_together = mapping.extra_count() == 0 && has_session && mapping.expires() == session_ends;
        if ends_together {
            mapping.set_expires(session_limit);
        } else if mapping.extra_count() > 0 && protocol == Protocol::Tcp {
            mapping.extend_to(session_limit, is_shorter);
        } else if let Some(others_end) = others_end {
            // Packets without a session may have kept it alive, for as long as a session would.
            mapping.set_expires(mapping.expires().min(without.max(session_limit).max(others_end)));
        }
        let end = mapping.expires();
        self.state.mappings.note_end(index, end);
    }

    #[inline]
    pub(in crate::shard) fn shorten_session(&mut self, now: Instant, slot: u32) {
        if !self.upkeep.shortening.sessions.is_due() {
            return;
        }
        self.upkeep.shortening.sessions.passed(slot..slot + 1);
        let session = self.state.sessions.get(slot);
        if session.mapping == 0 || session.is_hold() {
            return;
        }
        let (index, state, session_ends) = (session.mapping, session.state(), session.expires());
        let limit = now + self.view().lifetime(index, SessionRef::Extra(slot), state);
        if limit < session_ends {
            self.state.sessions.get_mut(slot).refresh(state, limit);
            let mapping = self.state.mappings.get_mut(index);
            if mapping.protocol() == Protocol::Tcp {
                mapping.extend_to(limit, true);
            }
        }
    }

    #[inline]
    pub(in crate::shard) fn shorten_flow(&mut self, now: Instant, slot: u32) {
        if !self.upkeep.shortening.flows.is_due() {
            return;
        }
        self.upkeep.shortening.flows.passed(slot..slot + 1);
        let flow = self.state.flows.get(slot);
        if !flow.is_in_use() {
            return;
        }
        let (state, ends) = (flow.state(), flow.expires());
        let limit = now + self.view().lifetime(0, SessionRef::Flow(slot), state);
        if limit < ends {
            self.refresh(0, SessionRef::Flow(slot), state, limit);
        }
    }
}
