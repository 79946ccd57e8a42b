//! Making and ending mappings and sessions: every change of NAT state is here.

use core::net::Ipv4Addr;

use super::Foresight;
use super::Shard;
use super::port_choice::port_class;
use crate::event::Cause;
use crate::mapping::InternalKey;
use crate::mapping::NewSession;
use crate::mapping::SessionRef;
use crate::parse::Parsed;
use crate::parse::get_u16;
use crate::parse::get_u32;
use crate::session::HashedBy;
use crate::settings::Filtering;
use crate::shared::PoolFacts;
use crate::tcp;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::timers::Timers;
use crate::types::Endpoint;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;
use wire::tcp::Flags;

/// A segment's effect on a session.
pub(super) struct Advance {
    pub(super) state: TcpState,
    /// New end of the session; None leaves it as it is.
    pub(super) expires: Option<Instant>,
}

impl Shard {
    /// The mapping of an internal endpoint, dead or alive.
    #[inline(always)]
    pub(super) fn find_mapping(&self, key: &InternalKey, hash: u64) -> Option<u32> {
        // The word first: a key that is written in parts and read back as a whole waits for all writes before it.
        let internal = key.word();
        self.outbound.find(hash, |index| self.mappings.get(index).matches(internal))
    }

    /// The live mapping of an internal endpoint.
    pub(super) fn find_live_mapping(&self, key: &InternalKey, now: Instant) -> Option<u32> {
        self.find_mapping(key, self.hash_of(key)).filter(|index| self.is_alive(*index, now))
    }

    /// Whether the mapping is in use and not out of date.
    ///
    /// Exact: where a session ended early beside others, the record's end is only a bound, and a live
    /// session is looked for. That stops at the first one; new sessions are at the head of the chain.
    #[inline]
    pub(super) fn is_alive(&self, index: u32, now: Instant) -> bool {
        let mapping = self.mappings.get(index);
        mapping.is_alive(now) && (!mapping.expiry_is_bound() || self.has_live_session(index, now))
    }

    #[cold]
    fn has_live_session(&self, index: u32, now: Instant) -> bool {
        let mapping = self.mappings.get(index);
        if mapping.has_live_session(now) {
            return true;
        }
        let mut slot = mapping.extra_head;
        while slot != 0 {
            let session = self.sessions.get(slot);
            if session.is_alive(now) {
                return true;
            }
            slot = session.next;
        }
        false
    }

    /// How sessions of a pool and protocol are hashed.
    pub(super) fn hashed_by(facts: &PoolFacts, protocol: Protocol) -> HashedBy {
        match facts.filtering[protocol.index()] {
            Filtering::AddressDependent => HashedBy::Address,
            _ => HashedBy::Endpoint,
        }
    }

    /// The facts of the pool a mapping's external address belongs to.
    pub(super) fn facts_of_mapping(&self, index: u32) -> Option<PoolFacts> {
        let external = self.mappings.get(index).external_address;
        let address = self.shared.address_index(Ipv4Addr::from_bits(external))?;
        Some(*self.shared.facts(address))
    }

    /// The live session of a mapping with a remote endpoint.
    #[inline]
    pub(super) fn find_session(
        &self,
        index: u32,
        remote_address: u32,
        remote_port: u16,
        by: HashedBy,
        now: Instant,
    ) -> Option<SessionRef> {
        let mapping = self.mappings.get(index);
        if mapping.session_matches(remote_address, remote_port, now) {
            return Some(SessionRef::Inline);
        }
        if mapping.extra_count() == 0 {
            return None;
        }
        self.sessions.find(index, remote_address, remote_port, by, now).map(SessionRef::Extra)
    }

    pub(super) fn session_state(&self, index: u32, session: SessionRef) -> (TcpState, Instant) {
        match session {
            SessionRef::Inline => {
                let mapping = self.mappings.get(index);
                (mapping.state(), mapping.session_expires())
            }
            SessionRef::Extra(slot) => {
                let session = self.sessions.get(slot);
                (session.state(), session.expires())
            }
            SessionRef::Flow(flow) => (self.flows.get(flow).state(), self.flows.get(flow).expires()),
        }
    }

    /// How long after its last packet a session of a mapping ends, were it in `state`.
    #[inline]
    pub(super) fn lifetime(&self, index: u32, session: SessionRef, state: TcpState) -> Duration {
        self.lifetime_by(&self.lifetimes, index, session, state)
    }

    /// The same by these timers.
    #[inline]
    pub(super) fn lifetime_by(&self, lifetimes: &Timers, index: u32, session: SessionRef, state: TcpState) -> Duration {
        let mapping = self.mappings.get(index);
        let (protocol, own) = match session {
            SessionRef::Inline if mapping.has_own_timer() => {
                (mapping.protocol(), lifetimes.own(mapping.protocol(), mapping.remote_port()))
            }
            SessionRef::Inline => (mapping.protocol(), None),
            SessionRef::Extra(slot) => {
                let session = self.sessions.get(slot);
                let is_ours = session.opened_from() == Side::Inside;
                (mapping.protocol(), lifetimes.own(mapping.protocol(), session.remote_port).filter(|_| is_ours))
            }
            // A flow has no mapping.
            SessionRef::Flow(flow) => {
                let flow = self.flows.get(flow);
                let own = || lifetimes.own(flow.protocol(), flow.near().1);
                (flow.protocol(), if flow.opened_from() == Side::Inside { own() } else { None })
            }
        };
        lifetimes.lifetime(protocol, state, own)
    }

    /// How long a mapping lasts without a session: one of UDP or ICMP that nobody is filtered by.
    pub(super) fn sessionless_lifetime(&self, protocol: Protocol) -> Duration {
        self.lifetimes.lifetime(protocol, TcpState::Established, None)
    }

    /// Writes a session's new state and end down.
    #[inline]
    pub(super) fn refresh(&mut self, index: u32, session: SessionRef, state: TcpState, expires: Instant) {
        match session {
            SessionRef::Inline => self.mappings.get_mut(index).refresh_session(state, expires),
            SessionRef::Extra(slot) => {
                let shortened = self.sessions.get_mut(slot).refresh(state, expires);
                self.mappings.get_mut(index).extend_to(expires, shortened);
            }
            SessionRef::Flow(flow) => self.flows.get_mut(flow).refresh(state, expires),
        }
    }

    /// What a TCP segment does to its session (RFC 7857 §2). Takes note of its sequence numbers.
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
        let (stored, expires) = self.session_state(index, session);
        let before = state_now(stored, expires, now, &timeouts);
        let flags = Flags(parsed.tcp_flags);
        let transport = usize::from(parsed.header_length);
        let sequence = get_u32(bytes, transport + 4);
        let ack = get_u32(bytes, transport + 8);
        let tracker = match session {
            SessionRef::Inline => &mut self.mappings.get_mut(index).tracker,
            SessionRef::Extra(slot) => &mut self.sessions.get_mut(slot).tracker,
            SessionRef::Flow(flow) => &mut self.flows.get_mut(flow).tracker,
        };
        let reset_accepted = flags.contains(Flags::RST)
            && tracker.reset_is_plausible(from, sequence, flags.contains(Flags::ACK).then_some(ack));
        let after = tcp::next(before, from, flags, reset_accepted);
        if tcp::opens(flags) && after != before && matches!(before, TcpState::Closing | TcpState::Transitory) {
            *tracker = tcp::SequenceTracker::default();
        }
        // The data offset is the upper half of byte 12, in words.
        let data_offset = (get_u16(bytes, transport + 12) >> 12) * 4;
        let payload = parsed.payload_length().saturating_sub(data_offset);
        let length = u32::from(payload) + u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN));
        tracker.observe(from, sequence, length, ack, flags);
        if flags.contains(Flags::RST) && !reset_accepted {
            self.counters.tcp_resets_ignored += 1;
        }
        let restarts = tcp::restarts_timer(before, after, flags);
        Advance { state: after, expires: restarts.then(|| now + self.lifetime(index, session, after)) }
    }

    /// Adds a session to a mapping: inline when that slot is free, else in the side table.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it. Nothing is evicted (RFC 6888 REQ-11d).
    pub(super) fn create_session(
        &mut self,
        now: Instant,
        index: u32,
        new: &NewSession,
        by: HashedBy,
    ) -> Result<SessionRef, Verdict> {
        let mapping = self.mappings.get(index);
        if !mapping.has_live_session(now) {
            // The very first one was admitted with its mapping.
            if mapping.has_session() {
                self.admit_session(now, index, false)?;
                self.count_session(now, index, false);
                self.counters.sessions_removed += 1;
            }
            self.mappings.get_mut(index).set_inline_session(new);
            self.counters.sessions_created += 1;
            return Ok(SessionRef::Inline);
        }
        let limit = self.shared.settings().limits.sessions_per_mapping_max;
        if u32::from(mapping.extra_count()) + 1 >= limit.min(u32::from(u16::MAX)) {
            return Err(Verdict::SessionLimit);
        }
        self.admit_session(now, index, true)?;
        let mapping = self.mappings.get_mut(index);
        let slot = self.sessions.insert(index, mapping, new, by, now).ok_or(Verdict::SessionTableFull)?;
        self.count_session(now, index, true);
        self.counters.sessions_created += 1;
        Ok(SessionRef::Extra(slot))
    }

    /// Makes a mapping for an internal endpoint that has none, with a port of the pool that a rule wants, or else of the one that
    /// serves the subscriber. It has no session yet and is out of date until it gets one.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it; nothing is changed then.
    pub(super) fn create_mapping(
        &mut self,
        now: Instant,
        key: &InternalKey,
        foresight: &Foresight,
        wanted: Option<PoolId>,
    ) -> Result<u32, Verdict> {
        if self.mappings.is_full() {
            return Err(Verdict::MappingTableFull);
        }
        let foreseen = foresight.subscriber;
        let known = if foreseen != 0 && self.subscribers.is(foreseen, key.realm, key.address) {
            Some(foreseen)
        } else {
            self.subscribers.find(key.realm, key.address)
        };
        let penalty = known.and_then(|slot| {
            self.settle_penalty(now, slot);
            self.penalty_pool(slot)
        });
        let own = || self.shared.pool_for(key.realm, Ipv4Addr::from_bits(key.address));
        let dormant = self.shared.statics.by_internal(key);
        let fixed = self.pool_of_own_address(dormant);
        let pool = fixed.or(penalty).or(wanted).or_else(own).ok_or(Verdict::SourceNotSubscriber)?;
        let facts = self.shared.pools[pool.index()];
        self.admit_mapping_record(&facts)?;
        let class = port_class(key.port, &facts);
        if facts.one_to_one && dormant.is_none() {
            return Err(Verdict::PortsExhausted);
        }
        if dormant.is_some() {
            self.admit_record()?;
        }
        if self.drains_for(key, &facts, dormant) {
            return Err(Verdict::AddressDraining);
        }
        let (subscriber, is_new) = match known {
            Some(slot) => (slot, false),
            None => (self.create_subscriber(key, pool, &facts, class)?, true),
        };
        if let Err(verdict) = self.admit_mapping(now, subscriber, key.protocol) {
            self.forget_subscriber_if_new(now, subscriber, is_new);
            return Err(verdict);
        }
        match self.settle_pairing(subscriber, key, pool, &facts, class) {
            // Static mappings need no room, nor an address that takes more: he is paired anew when he wants something else.
            Err(Verdict::PortsExhausted | Verdict::AddressDraining) if dormant.is_some() => {}
            Err(verdict) => {
                self.forget_subscriber_if_new(now, subscriber, is_new);
                return Err(verdict);
            }
            Ok(_) => {}
        }
        let aim = foresight.aim.filter(|_| known == Some(foreseen));
        let taken = match dormant {
            Some((external, kind)) => self.claim_static(key.protocol, external, kind).ok_or(Verdict::PortsExhausted),
            None if self.subscribers.get(subscriber).pool == pool.0 => {
                self.take_port(now, key, &facts, class, subscriber, aim)
            }
            None => match self.enter_with_own_pool(subscriber, key, (pool, &facts), class) {
                Ok(true) => self.take_port(now, key, &facts, class, subscriber, None),
                Ok(false) => self.take_port_of(subscriber, key, (pool, &facts), class),
                Err(verdict) => Err(verdict),
            },
        };
        let (address, port) = match taken {
            Ok(taken) => taken,
            Err(verdict) => {
                self.forget_subscriber_if_new(now, subscriber, is_new);
                return Err(verdict);
            }
        };
        let external = Endpoint::new(self.shared.address(address), port);
        let Some(index) = self.mappings.insert(key, subscriber, external, now) else {
            self.give_back_unused(subscriber, address, key.protocol, port);
            self.forget_subscriber_if_new(now, subscriber, is_new);
            return Err(Verdict::MappingTableFull);
        };
        if self.outbound.insert(foresight.hash, index.0).is_err() {
            self.mappings.remove(index.0);
            self.give_back_unused(subscriber, address, key.protocol, port);
            self.forget_subscriber_if_new(now, subscriber, is_new);
            return Err(Verdict::MappingTableFull);
        }
        // Where a forward leads from is the file's choice, and pairs nobody who has a place elsewhere.
        if dormant.is_none() || self.subscribers.get(subscriber).elsewhere().is_none() {
            self.subscribers.get_mut(subscriber).note_place(address, self.shared.pool_of(address));
        }
        self.count_mapping(now, subscriber, key.protocol);
        // Last, because from here on other workers find the owner of the external endpoint.
        self.shared.ports.publish(address, key.protocol, port, self.worker, index);
        self.counters.mappings_created[key.protocol.index()] += 1;
        self.note_mapping_created(now, index.0, facts.gives_single_ports());
        Ok(index.0)
    }

    /// Ends a mapping; its port rests, or is free at once. Further sessions are reclaimed by the sweep, so that the
    /// cost here does not depend on how many there are.
    pub(super) fn end_mapping(&mut self, now: Instant, index: u32) {
        self.end_mapping_resting(now, index, None);
    }

    /// [`Shard::end_mapping`], after which its port rests for so long, for this cause; None: as its pool and its record say.
    pub(super) fn end_mapping_resting(&mut self, now: Instant, index: u32, special: Option<(Duration, Cause)>) {
        self.note_mapping_ended(now, index, special.map(|(_, cause)| cause));
        let mapping = self.mappings.get_mut(index);
        let key = mapping.key();
        let external = mapping.external();
        let subscriber = mapping.subscriber;
        let retired = self.local.pool_address(external.address.to_bits());
        let rest_of =
            |address| special.map_or_else(|| Shard::rest_of(mapping, self.shared.facts(address)), |(rest, _)| rest);
        let retired = retired.map(|address| (address, rest_of(address)));
        if mapping.has_session() {
            mapping.clear_inline_session();
            self.counters.sessions_removed += 1;
        }
        let extra = mapping.extra_count();
        if extra > 0 {
            self.uncount_sessions(now, index, u32::from(extra));
        }
        self.watch_leaving(now, subscriber, key.protocol);
        let hash = self.hash_of(&key);
        let was_there = self.outbound.remove(hash, index);
        debug_assert!(was_there, "every mapping is in the outbound table");
        if let Some((address, rest)) = retired {
            let rest = self.leave_guarantee(subscriber, address, key.protocol, external.port, rest);
            self.retire_port(now, address, key.protocol, external.port, rest);
        }
        if let Some(paired) = self.subscribers.uncount_mapping(subscriber, key.protocol) {
            self.part_with(now, subscriber, paired);
        }
        self.watch_blocks(subscriber, retired.map(|(address, _)| address), external.port);
        self.counters.mappings_removed[key.protocol.index()] += 1;
        if extra > 0 {
            self.mappings.get_mut(index).condemn();
        } else {
            self.mappings.remove(index);
        }
    }

    /// Ends a further session, and with the last one of a condemned mapping its record.
    pub(super) fn end_extra_session(&mut self, now: Instant, slot: u32) {
        let session = self.sessions.get(slot);
        let index = session.mapping;
        let outlived = session.expires() >= self.mappings.get(index).session_expires();
        if outlived && self.mappings.get(index).is_in_use() && !session.state().is_over() {
            self.mappings.get_mut(index).set_idled();
        }
        self.sessions.remove(slot, &mut self.mappings);
        self.counters.sessions_removed += 1;
        let mapping = self.mappings.get(index);
        if !mapping.is_condemned() {
            self.uncount_sessions(now, index, 1);
        } else if mapping.extra_count() == 0 {
            self.mappings.remove(index);
        }
    }
}

/// The state a stored one stands for now: an established session whose idle time has run out is
/// Transitory (RFC 7857 §2, edge "TCP_EST expired").
pub(super) fn state_now(
    stored: TcpState,
    expires: Instant,
    now: Instant,
    timeouts: &crate::settings::Timeouts,
) -> TcpState {
    if stored.is_established() && expires.saturating_since(now) <= timeouts.tcp_closing {
        TcpState::Transitory
    } else {
        stored
    }
}
