//! From outside, and the second half of hairpinning: destination translation behind the filter.

use super::Arrival;
use super::Fate;
use super::Shard;
use super::dependent::key_of_inbound;
use super::local::Reason;
use super::notes::Unmade;
use super::outbound::Flow;
use super::outbound::remote_port;
use crate::addresses::Local;
use crate::mapping::NewSession;
use crate::mapping::SessionRef;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Class;
use crate::parse::Parsed;
use crate::rewrite::End;
use crate::rewrite::Rewrite;
use crate::rewrite::rewrite;
use crate::rules::RuleKey;
use crate::session::HashedBy;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::shared::NextHop;
use crate::tcp;
use crate::tcp::TcpState;
use crate::time::Instant;
use crate::timers::FirstLife;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::unsolicited_syn::Hold;
use crate::verdict::Verdict;
use wire::tcp::Flags;

/// How a packet came to the inbound half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// From an outside interface.
    Outside,
    /// From another subscriber, whose source is translated already. Never hairpinned again.
    Hairpin,
}

impl Via {
    pub(super) fn verdict(self) -> Verdict {
        match self {
            Via::Outside => Verdict::Inbound,
            Via::Hairpin => Verdict::Hairpin,
        }
    }
}

impl Shard {
    /// A packet that came in by an outside interface.
    #[inline]
    pub(super) fn entering<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let Arrival { parsed, .. } = at;
        if parsed.class == Class::IcmpError {
            return self.inbound_error(at, bytes, Via::Outside, sink);
        }
        if parsed.is_fragment() {
            return self.inbound_fragment(at, bytes, sink);
        }
        if parsed.class == Class::Other {
            return self.inbound_other(at, bytes, sink);
        }
        self.inbound_flow(at, bytes, Via::Outside, sink)
    }

    /// TCP, UDP and ICMP replies to an external endpoint. `parsed` has the ports also when the packet is a later fragment.
    #[inline]
    pub(super) fn inbound_flow<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], via: Via, sink: &mut S) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        let (address, is_own) = match self.local.lookup(parsed.destination) {
            Some(Local::Pool(address)) => (address, false),
            Some(Local::OwnAndPool(_, address)) => (address, true),
            other => return self.not_for_a_mapping(at, bytes, other, sink),
        };
        if meta.turn != 0 {
            return self.inbound_balanced(at, bytes, address, via, sink);
        }
        // A query from outside is for nobody behind a NAPT; only Natrix itself may answer it.
        let owner = match parsed.class {
            Class::IcmpRequest if !self.shared.facts(address).one_to_one => None,
            _ => self.shared.owner_towards(address, &key_of_inbound(parsed, protocol)),
        };
        let Some((worker, mapping)) = owner else {
            if self.is_balanced(parsed, protocol) {
                return self.inbound_balanced(at, bytes, address, via, sink);
            }
            if let Some(inside) = self.dormant(parsed, protocol) {
                return self.wake(at, bytes, address, &inside, None, via, sink);
            }
            if is_own && via == Via::Outside && parsed.class != Class::IcmpReply {
                return self.local_packet(at, Side::Outside, bytes, sink);
            }
            return self.no_mapping(at, bytes, via);
        };
        if worker != self.worker {
            return hand_inbound(at, worker, via);
        }
        if mapping == MappingIndex::SHARED {
            // Of flows from before the forward.
            if self.is_balanced(parsed, protocol) {
                return self.inbound_balanced(at, bytes, address, via, sink);
            }
            return self.inbound_by_flow(at, bytes, protocol, via, sink);
        }
        let index = mapping.0;
        if !self.is_alive(index, now) {
            if self.is_balanced(parsed, protocol) {
                return self.inbound_balanced(at, bytes, address, via, sink);
            }
            if let Some(inside) = self.dormant(parsed, protocol) {
                return self.wake(at, bytes, address, &inside, Some(index), via, sink);
            }
            return self.no_mapping(at, bytes, via);
        }
        let remote_port = remote_port(protocol, parsed.source_port);
        let mapping = self.mappings.get(index);
        if via == Via::Hairpin && !self.shared.may_hairpin(self.shared.realm_of(meta.ingress), mapping.realm()) {
            return Fate::Done(Verdict::HairpinRefused);
        }
        let session = if mapping.session_matches(parsed.source, remote_port, now)
            && mapping.session_is_hairpin() == (via == Via::Hairpin)
        {
            if let Err(verdict) = self.filter_session(now, false, index, (parsed.source, remote_port)) {
                return Fate::Done(verdict);
            }
            Some(SessionRef::Inline)
        } else {
            let key = RuleKey::of_flow(&mapping.key(), (parsed.source, remote_port));
            if self.is_balanced(parsed, protocol) {
                // The mapping is from before the forward: its own sessions stay, and all else is for the targets.
                let by = Shard::hashed_by(self.shared.facts(address), protocol);
                if self.find_session(index, parsed.source, remote_port, by, now).is_none() {
                    return self.inbound_balanced(at, bytes, address, via, sink);
                }
            }
            let opens = self.shared.filters.logs() && {
                let by = Shard::hashed_by(self.shared.facts(address), protocol);
                self.find_session(index, parsed.source, remote_port, by, now).is_none()
            };
            if let Err(verdict) = self.filter(now, false, &key, opens) {
                return Fate::Done(verdict);
            }
            match self.admit(at, bytes, index, address, protocol, via) {
                Ok(session) => session,
                Err(fate) => return fate,
            }
        };
        let hop = match self.way_in(at, bytes, index, via, sink) {
            Ok(hop) => hop,
            Err(fate) => return fate,
        };
        self.established_inbound(at, bytes, Flow { index, session }, &hop, via, sink)
    }

    /// A packet that is not from the remote endpoint of the mapping's first session: is there another
    /// session, does the filter let it in, and does it open a session?
    #[cold]
    #[inline(never)]
    fn admit(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        index: u32,
        address: AddressIndex,
        protocol: Protocol,
        via: Via,
    ) -> Result<Option<SessionRef>, Fate> {
        let Arrival { now, parsed, .. } = at;
        if via == Via::Outside
            && let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source)
        {
            return Err(Fate::Done(verdict));
        }
        let remote_port = remote_port(protocol, parsed.source_port);
        let facts = *self.shared.facts(address);
        let by = Shard::hashed_by(&facts, protocol);
        if let Some(session) = self.find_session(index, parsed.source, remote_port, by, now) {
            return Ok(Some(session));
        }
        if self.live_flow(&self.mappings.get(index).key(), (parsed.source, remote_port), now).is_some() {
            // The two endpoints speak already, by another external endpoint: inside, both would be one connection.
            return Err(Fate::Done(Verdict::Filtered));
        }
        let filtering = self.filtering_of_mapping(index, protocol, &facts);
        if !self.filter_allows(now, index, parsed.source, filtering, by) {
            let is_syn = parsed.class == Class::Tcp && tcp::opens(Flags(parsed.tcp_flags));
            return Err(if is_syn { self.hold_syn(at, bytes) } else { Fate::Done(Verdict::Filtered) });
        }
        // The packet ends here, and must not leave a session behind (conformance point S7).
        let ends_here = parsed.ttl <= 1;
        match protocol {
            // Passing needs no state of its own; a session comes with the first packet from inside, so that
            // a flood from outside takes no memory.
            Protocol::Udp | Protocol::Icmp => {
                let asks = matches!(parsed.class, Class::Udp | Class::IcmpRequest);
                if asks && !ends_here && self.rules_lead_away(index, parsed) {
                    self.open_for_answers(at, index, protocol, by);
                }
                Ok(None)
            }
            Protocol::Tcp => {
                if parsed.class == Class::LaterFragment || !tcp::opens(Flags(parsed.tcp_flags)) {
                    return Err(Fate::Done(Verdict::TcpNoSession));
                }
                if ends_here {
                    return Ok(None);
                }
                let first = self.lifetimes.first(Protocol::Tcp, remote_port, Side::Outside);
                let new = self.session_from_outside(parsed, remote_port, first, now + first.lifetime);
                match self.create_session(now, index, &new, by) {
                    Ok(session) => Ok(Some(session)),
                    Err(verdict) => {
                        let key = self.mappings.get(index).key();
                        self.count_refusal(now, &key, verdict);
                        self.note_refusal(
                            now,
                            Unmade { key: &key, verdict, wanted: self.facts_of_mapping(index).map(|facts| facts.id) },
                        );
                        Err(Fate::Done(verdict))
                    }
                }
            }
        }
    }

    /// A session that a packet from outside, or from another subscriber, opens.
    pub(super) fn session_from_outside(
        &self,
        parsed: &Parsed,
        remote_port: u16,
        first: FirstLife,
        expires: Instant,
    ) -> NewSession {
        NewSession {
            remote_address: parsed.source,
            remote_port,
            state: first.state,
            opened_from: Side::Outside,
            hairpin: self.local.lookup(parsed.source).is_some(),
            has_own_timer: first.has_own_timer,
            expires,
        }
    }

    /// Whether rules would send the answer to this packet elsewhere or with another source, if it opened something itself. One that they
    /// would drop takes no memory.
    fn rules_lead_away(&self, index: u32, parsed: &Parsed) -> bool {
        if self.shared.rules.is_empty() {
            return false;
        }
        let key = self.mappings.get(index).key();
        let remote = (parsed.source, remote_port(key.protocol, parsed.source_port));
        let action = self.shared.rule_for(&RuleKey::of_flow(&key, remote)).action;
        matches!(action, RuleAction::Redirect(_) | RuleAction::NoTranslation)
    }

    /// Opens a session for an asker from outside whose answers rules would lead away: rules are about what the inside opens. It lasts
    /// as briefly as one that nobody has answered yet, and is left out where there is no room for it; who floods from outside
    /// gets no more, and keeps no mapping alive where his packets may not (RFC 4787 §4.3 REQ-6).
    fn open_for_answers(&mut self, at: Arrival<'_>, index: u32, protocol: Protocol, by: HashedBy) {
        let Arrival { now, parsed, .. } = at;
        let first = self.lifetimes.first(protocol, 0, Side::Outside);
        let unanswered = now + self.lifetimes.first_of_target(protocol).lifetime;
        let mapped_until = self.mappings.get(index).expires();
        let expires = if self.shared.settings().inbound_refresh { unanswered } else { unanswered.min(mapped_until) };
        let new = self.session_from_outside(parsed, remote_port(protocol, parsed.source_port), first, expires);
        // The packet passes in any case.
        let _ = self.create_session(now, index, &new, by);
    }

    /// RFC 4787 §5: whether this remote address may send to the mapping although it has no session with it.
    pub(super) fn filter_allows(
        &self,
        now: Instant,
        index: u32,
        remote_address: u32,
        filtering: Filtering,
        by: HashedBy,
    ) -> bool {
        match filtering {
            Filtering::EndpointIndependent => true,
            Filtering::AddressDependent => {
                let mapping = self.mappings.get(index);
                (mapping.remote_address() == remote_address && mapping.has_live_session(now))
                    || (by == HashedBy::Address
                        && mapping.extra_count() > 0
                        && self.sessions.has_address(index, mapping.extra_head, remote_address, now))
            }
            Filtering::AddressAndPortDependent => false,
        }
    }

    /// Finds the way to the subscriber, and refuses packets whose time or size does not allow it.
    #[inline]
    fn way_in<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        index: u32,
        via: Via,
        sink: &mut S,
    ) -> Result<NextHop, Fate> {
        let mapping = self.mappings.get(index);
        self.way_in_to(at, bytes, mapping.realm(), mapping.internal_address(), via, sink)
    }

    /// The way to an internal address.
    #[inline]
    pub(super) fn way_in_to<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        realm: RealmId,
        internal: u32,
        via: Via,
        sink: &mut S,
    ) -> Result<NextHop, Fate> {
        let Arrival { now, meta, parsed } = at;
        let towards = match via {
            Via::Outside => Side::Outside,
            Via::Hairpin => Side::Inside,
        };
        if parsed.ttl <= 1 {
            self.send_error(now, towards, meta, Reason::TtlExpired, bytes, sink);
            return Err(Fate::Done(Verdict::TtlExpired));
        }
        let Some(hop) = self.shared.route_in(realm, internal).copied() else {
            self.send_error(now, towards, meta, Reason::HostUnreachable, bytes, sink);
            return Err(Fate::Done(Verdict::NoRoute));
        };
        if parsed.total_length > hop.mtu && parsed.dont_fragment {
            self.send_error(now, towards, meta, Reason::TooBig(hop.mtu), bytes, sink);
            return Err(Fate::Done(Verdict::TooBig));
        }
        Ok(hop)
    }

    #[inline]
    pub(super) fn established_inbound<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        flow: Flow,
        hop: &NextHop,
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        let Flow { index, session } = flow;
        match session {
            Some(session) if parsed.class == Class::Tcp => {
                let advance = self.advance_tcp(now, index, session, Side::Outside, bytes, parsed);
                if let Some(expires) = advance.expires {
                    self.refresh(index, session, advance.state, expires);
                }
            }
            session => self.refresh_from_outside(now, index, session),
        }
        let mapping = self.mappings.get(index);
        let change = Rewrite {
            end: End::Destination,
            address: mapping.internal_address(),
            port: mapping.internal_port(),
            identification: None,
            decrement_ttl: true,
        };
        rewrite(bytes, parsed, &change);
        self.finish(bytes, parsed, hop, change.address, via.verdict(), sink)
    }

    /// What a UDP packet or ICMP reply from outside does to the timer.
    #[inline]
    fn refresh_from_outside(&mut self, now: Instant, index: u32, session: Option<SessionRef>) {
        let protocol = self.mappings.get(index).protocol();
        if protocol == Protocol::Tcp {
            // A later fragment: it has no flags, and changes nothing.
            return;
        }
        // RFC 4787 §4.3 REQ-6a: whether UDP from outside refreshes is a choice; ICMP replies follow it.
        let refreshes = self.shared.settings().inbound_refresh;
        match session {
            Some(session) => {
                // The first answer changes the state, and with it the timer; once, so that nobody outside can keep the
                // session alive by it.
                let is_first_answer = self.session_state(index, session).0 == TcpState::UNANSWERED;
                if refreshes || is_first_answer {
                    let lifetime = self.lifetime(index, session, TcpState::Established);
                    self.refresh(index, session, TcpState::Established, now + lifetime);
                }
            }
            None if refreshes => {
                let expires = now + self.sessionless_lifetime(protocol);
                self.mappings.get_mut(index).extend_to(expires, false);
            }
            None => {}
        }
    }

    /// The packet's own journey through the NAT is over: it leaves, in fragments if it has to.
    #[inline]
    pub(super) fn finish<S: Sink>(
        &mut self,
        bytes: &mut [u8],
        parsed: &Parsed,
        hop: &NextHop,
        destination: u32,
        verdict: Verdict,
        sink: &mut S,
    ) -> Fate {
        let way = match verdict {
            Verdict::Outbound => 0,
            Verdict::Inbound => 1,
            _ => 2,
        };
        self.counters.bytes_forwarded[way] += u64::from(parsed.total_length);
        let egress = hop.egress(destination);
        if parsed.total_length <= hop.mtu {
            return Fate::Forward { verdict, egress, length: parsed.total_length };
        }
        self.send_in_fragments(bytes, parsed, hop.mtu, egress, verdict, sink)
    }

    /// No mapping has the external endpoint. A SYN is held for a while (RFC 5382 §4.3 REQ-4).
    #[cold]
    #[inline(never)]
    pub(super) fn no_mapping(&mut self, at: Arrival<'_>, bytes: &[u8], via: Via) -> Fate {
        let Arrival { meta, parsed, .. } = at;
        if via == Via::Outside
            && let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source)
        {
            return Fate::Done(verdict);
        }
        if parsed.class != Class::Tcp || !tcp::opens(Flags(parsed.tcp_flags)) {
            return Fate::Done(Verdict::NoMapping);
        }
        // Retransmissions must meet on one worker; the mapping a SYN may wait for has no owner yet.
        let keeper = self.shared.worker_of_stray(parsed.destination, parsed.source, u32::from(parsed.destination_port));
        if keeper != self.worker && meta.stage == Stage::Received {
            return Fate::HandOff { worker: keeper, meta: PacketMeta { stage: Stage::Steered, ..meta } };
        }
        self.hold_syn(at, bytes)
    }

    pub(super) fn hold_syn(&mut self, at: Arrival<'_>, bytes: &[u8]) -> Fate {
        let Arrival { now, meta, parsed } = at;
        if self.shared.settings().answer_unsolicited_syn {
            let external = Endpoint::new(parsed.destination.into(), parsed.destination_port);
            let remote = Endpoint::new(parsed.source.into(), parsed.source_port);
            let packet = bytes.get(..usize::from(parsed.total_length)).unwrap_or(bytes);
            if self.syns.hold(now, external, remote, meta.ingress, packet) == Hold::Full {
                self.counters.unsolicited_syns_overflow += 1;
            }
        }
        Fate::Done(Verdict::UnsolicitedSyn)
    }

    /// The destination is no pool's address.
    #[cold]
    #[inline(never)]
    fn not_for_a_mapping<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        local: Option<Local>,
        sink: &mut S,
    ) -> Fate {
        let Arrival { parsed, .. } = at;
        match local {
            // Natrix's inside addresses mean nothing outside: an answer would show one there as its source.
            Some(Local::Own(interface)) if self.shared.side(interface) == Side::Outside => {
                self.local_packet(at, Side::Outside, bytes, sink)
            }
            Some(Local::Broadcast(_)) => Fate::Done(Verdict::DestinationInvalid),
            _ if !crate::parse::destination_is_valid(parsed.destination) => Fate::Done(Verdict::DestinationInvalid),
            None => self.pass_in(at, bytes, sink),
            Some(_) => Fate::Done(Verdict::DestinationNotPool),
        }
    }

    /// Protocols without ports, from outside: passed untranslated by a rule, or dropped.
    pub(super) fn inbound_other<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let Arrival { parsed, .. } = at;
        if let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source) {
            return Fate::Done(verdict);
        }
        match self.local.lookup(parsed.destination) {
            Some(Local::Own(_)) => return Fate::Done(Verdict::LocalIgnored),
            Some(_) => return Fate::Done(Verdict::ProtocolUnsupported),
            None => {}
        }
        let Some((realm, ruling)) = self.passes_in(&self.shared.passes, |realm| RuleKey::inbound(realm, parsed)) else {
            return Fate::Done(Verdict::DestinationNotPool);
        };
        if let Err(verdict) = self.filter(at.now, false, &RuleKey::inbound(realm, parsed), true) {
            return Fate::Done(verdict);
        }
        self.shared.passes.count(self.worker, ruling);
        self.deliver_untranslated(at, bytes, realm, sink)
    }
}

/// The packet goes on at the worker that owns its destination.
pub(super) fn hand_inbound(at: Arrival<'_>, worker: WorkerId, via: Via) -> Fate {
    let Arrival { meta, parsed, .. } = at;
    let stage = match (via, parsed.class) {
        (Via::Outside, Class::LaterFragment) => Stage::FragmentResolved,
        (Via::Outside, _) if parsed.is_fragment() => Stage::FragmentResolved,
        (Via::Outside, _) => Stage::Steered,
        (Via::Hairpin, Class::LaterFragment) => Stage::HairpinFragment,
        (Via::Hairpin, _) => Stage::Hairpin,
    };
    let ports = (parsed.source_port, parsed.destination_port);
    Fate::HandOff { worker, meta: PacketMeta { stage, ports, ..meta } }
}
