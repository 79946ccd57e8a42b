//! Lifetimes, TCP state, and the end of mappings and sessions.

use super::Ledger;
use crate::event::Cause;
use crate::headers::parse::Parsed;
use crate::headers::parse::get_u16;
use crate::headers::parse::get_u32;
use crate::state::mapping::SessionRef;
use crate::state::tcp;
use crate::state::tcp::TcpState;
use crate::state::tcp::state_now;
use crate::state::timers::Timers;
use crate::steps::port_choice::hold_down_of_port;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::Side;
use wire::tcp::Flags;

pub(super) struct Advance {
    pub(super) state: TcpState,
    pub(super) expires: Option<Instant>,
}

impl View<'_> {
    #[inline]
    pub(super) fn lifetime(&self, index: u32, session: SessionRef, state: TcpState) -> Duration {
        self.lifetime_by(&self.policy.lifetimes, index, session, state)
    }

    #[inline]
    pub(super) fn lifetime_by(&self, lifetimes: &Timers, index: u32, session: SessionRef, state: TcpState) -> Duration {
        let mapping = self.state.mappings.get(index);
        let (protocol, own) = match session {
            SessionRef::Inline if mapping.has_own_timer() && mapping.session_opened_from() == Side::Inside => {
                (mapping.protocol(), lifetimes.own(mapping.protocol(), mapping.remote_port()))
            }
            SessionRef::Inline => (mapping.protocol(), None),
            SessionRef::Extra(slot) => {
                let session = self.state.sessions.get(slot);
                let is_ours = session.opened_from() == Side::Inside;
                (mapping.protocol(), lifetimes.own(mapping.protocol(), session.remote_port).filter(|_| is_ours))
            }
            SessionRef::Flow(flow) => {
                let flow = self.state.flows.get(flow);
                let own = || lifetimes.own(flow.protocol(), flow.remote_inside().port);
                (flow.protocol(), if flow.opened_from() == Side::Inside { own() } else { None })
            }
        };
        lifetimes.lifetime(protocol, state, own)
    }

    /// How long packets without a session keep an unfiltered mapping.
    pub(super) fn sessionless_lifetime(&self, protocol: Protocol) -> Duration {
        self.policy.lifetimes.lifetime(protocol, TcpState::Established, None)
    }
}

impl Ledger {
    #[inline]
    pub(super) fn refresh(&mut self, index: u32, session: SessionRef, state: TcpState, expires: Instant) {
        match session {
            SessionRef::Inline => {
                self.state.mappings.get_mut(index).refresh_session(state, expires);
                self.state.mappings.note_end(index, expires);
            }
            SessionRef::Extra(slot) => {
                let shortened = self.state.sessions.get_mut(slot).refresh(state, expires);
                self.state.mappings.get_mut(index).extend_to(expires, shortened);
                self.state.mappings.note_end(index, expires);
            }
            SessionRef::Flow(flow) => self.state.flows.get_mut(flow).refresh(state, expires),
        }
    }

    /// True if this side opened the session. Not for flows.
    pub(super) fn is_opened_from(&self, index: u32, session: SessionRef, side: Side) -> bool {
        self.state.remote_of(index, session).is_some_and(|(_, opened_from)| opened_from == side)
    }

    /// A probed connection ends as before, unless an answer makes it established again.
    pub(super) fn note_probed(&mut self, index: u32, session: SessionRef) {
        let (_, expires) = self.state.session_state(index, session);
        self.refresh(index, session, TcpState::Transitory, expires);
    }

    /// RFC 7857 §2.
    pub(super) fn advance_tcp(
        &mut self,
        now: Instant,
        index: u32,
        session: SessionRef,
        from: Side,
        bytes: &[u8],
        parsed: &Parsed,
    ) -> Advance {
        let timeouts = self.shared.settings().timeouts;
        let (stored, expires) = self.state.session_state(index, session);
        let before = state_now(stored, expires, now, &timeouts);
        let flags = Flags(parsed.tcp_flags);
        let transport = usize::from(parsed.header_length);
        let sequence = get_u32(bytes, transport + 4);
        let ack = get_u32(bytes, transport + 8);
        let tracker = match session {
            SessionRef::Inline => &mut self.state.mappings.get_mut(index).tracker,
            SessionRef::Extra(slot) => &mut self.state.sessions.get_mut(slot).tracker,
            SessionRef::Flow(flow) => &mut self.state.flows.get_mut(flow).tracker,
        };
        let reset_accepted = flags.contains(Flags::RST)
            && tracker.reset_is_plausible(from, sequence, flags.contains(Flags::ACK).then_some(ack));
        let after = tcp::next(before, from, flags, reset_accepted);
        if tcp::opens(flags) && after != before && matches!(before, TcpState::Closing | TcpState::Transitory) {
            *tracker = tcp::SequenceTracker::default();
        }
        let data_offset = (get_u16(bytes, transport + 12) >> 12) * 4;
        let payload = parsed.payload_length().saturating_sub(data_offset);
        let length = u32::from(payload) + u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN));
        tracker.observe(from, sequence, length, ack, flags);
        if flags.contains(Flags::RST) && !reset_accepted {
            self.counters.tcp_resets_ignored += 1;
        }
        let restarts = tcp::restarts_timer(before, after, flags);
        Advance { state: after, expires: restarts.then(|| now + self.view().lifetime(index, session, after)) }
    }

    /// The sweep removes further sessions, so their number does not matter.
    pub(super) fn end_mapping(&mut self, now: Instant, index: u32) {
        self.end_mapping_with(now, index, None);
    }

    pub(super) fn end_mapping_with(&mut self, now: Instant, index: u32, special: Option<(Duration, Cause)>) {
        if !self.state.grants.is_empty() {
            self.leave_grants(now, index);
        }
        self.note_mapping_ended(now, index, special.map(|(_, cause)| cause));
        self.emit_end(now, index, None);
        let mapping = self.state.mappings.get_mut(index);
        let key = mapping.key();
        let external = mapping.external();
        let subscriber = mapping.subscriber;
        let retired = self.local.pool_address(external.address.to_bits());
        let hold_down_of = |address| {
            special.map_or_else(
                || hold_down_of_port(mapping, self.shared.compiled_pool(address)),
                |(hold_down, _)| hold_down,
            )
        };
        let retired = retired.map(|address| (address, hold_down_of(address)));
        if mapping.has_session() {
            mapping.clear_inline_session();
            self.counters.sessions_removed += 1;
        }
        let extra = mapping.extra_count();
        if extra > 0 {
            self.uncount_sessions(now, index, u32::from(extra));
        }
        self.watch_leaving(now, subscriber, key.protocol);
        let hash = self.state.hash_of(&key);
        let was_there = self.state.outbound.remove(hash, index);
        debug_assert!(was_there, "every mapping is in the outbound table");
        if let Some((address, hold_down)) = retired {
            let hold_down = self.leave_guarantee(subscriber, address, key.protocol, external.port, hold_down);
            self.retire_port(now, address, key.protocol, external.port, hold_down);
        }
        if let Some(paired) = self.state.subscribers.uncount_mapping(subscriber, key.protocol) {
            self.part_with(now, subscriber, paired);
        }
        self.watch_blocks(subscriber, retired.map(|(address, _)| address), external.port);
        self.state.subscribers.hosts.release(now, key.address);
        self.counters.mappings_removed[key.protocol.index()] += 1;
        if extra > 0 {
            self.state.mappings.get_mut(index).condemn();
        } else {
            self.state.mappings.remove(index);
        }
    }

    pub(super) fn end_extra_session(&mut self, now: Instant, slot: u32) {
        let session = self.state.sessions.get(slot);
        let index = session.mapping;
        let outlived = session.expires() >= self.state.mappings.get(index).session_expires();
        if outlived && self.state.mappings.get(index).is_in_use() && !session.state().is_over() {
            self.state.mappings.get_mut(index).set_idled();
        }
        if !self.state.sessions.get(slot).is_hold() {
            self.emit_end(now, index, Some(SessionRef::Extra(slot)));
        }
        self.state.sessions.remove(slot, &mut self.state.mappings);
        self.counters.sessions_removed += 1;
        let mapping = self.state.mappings.get(index);
        if !mapping.is_condemned() {
            self.uncount_sessions(now, index, 1);
        } else if mapping.extra_count() == 0 {
            self.state.mappings.remove(index);
        }
    }
}
