//! From inside: source translation, and the making of mappings and sessions.

use super::Arrival;
use super::Fate;
use super::Foresight;
use super::Shard;
use super::hairpin::made_mapping;
use super::hairpin::made_session;
use super::inbound::Via;
use super::local::Reason;
use super::notes::Unmade;
use crate::addresses::Local;
use crate::mapping::InternalKey;
use crate::mapping::NewSession;
use crate::mapping::SessionRef;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Class;
use crate::parse::Parsed;
use crate::parse::destination_is_valid;
use crate::parse::source_is_valid;
use crate::rewrite::End;
use crate::rewrite::Rewrite;
use crate::rewrite::rewrite;
use crate::rules::RuleKey;
use crate::rules::Ruling;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::shared::NextHop;
use crate::tcp;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;
use wire::tcp::Flags;

/// Where an outbound packet goes on.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Out by this hop.
    Out(NextHop),
    /// To another subscriber's external endpoint on this address (RFC 4787 §6 REQ-9), and what was made for it (`hairpin`).
    Hairpin { address: AddressIndex, made: u32 },
}

impl Way {
    fn having_made(self, made: u32) -> Way {
        match self {
            Way::Out(_) => self,
            Way::Hairpin { address, .. } => Way::Hairpin { address, made },
        }
    }
}

/// The mapping and session of a packet.
#[derive(Clone, Copy)]
pub(super) struct Flow {
    /// Mapping record.
    pub(super) index: u32,
    /// Its session; None when an unfiltered UDP mapping goes on without one.
    pub(super) session: Option<SessionRef>,
}

/// What a packet that is not as usual belongs to.
enum Opened {
    /// A session of a mapping, and where it goes on.
    Session(Way, Flow),
    /// A flow, by its record.
    Flow(u32),
}

impl Shard {
    /// A packet that came in by an inside interface.
    #[inline]
    pub(super) fn leaving<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        foresight: &Foresight,
        sink: &mut S,
    ) -> Fate {
        let Arrival { meta, parsed, .. } = at;
        if parsed.class == Class::IcmpError {
            // Belongs to the subscriber it is about, who need not be its sender (a router may be).
            return self.outbound_error(at, bytes, sink);
        }
        let owner = self.shared.worker_of_subscriber(parsed.source);
        if owner != self.worker {
            return Fate::HandOff { worker: owner, meta: PacketMeta { stage: Stage::Steered, ..meta } };
        }
        if parsed.is_fragment() {
            return self.outbound_fragment(at, bytes, sink);
        }
        if parsed.class == Class::Other {
            return self.outbound_other(at, bytes, sink);
        }
        self.outbound_flow(at, bytes, foresight, None, sink)
    }

    /// TCP, UDP and ICMP queries, whole or in fragments. `datagram` is the tracker's entry of a fragment.
    #[inline]
    pub(super) fn outbound_flow<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        foresight: &Foresight,
        datagram: Option<crate::fragments::DatagramIndex>,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        let realm = self.shared.realm_of(meta.ingress);
        let key = InternalKey { realm, protocol, address: parsed.source, port: parsed.source_port };
        let remote_port = remote_port(protocol, parsed.destination_port);
        // The usual case first: the mapping is alive and this is its first session. That session was
        // checked when it was made, so that addresses need no further look.
        let found = self.find_mapping(&key, foresight.hash);
        let (way, flow) = match found {
            Some(index)
                if self.mappings.get(index).session_matches(parsed.destination, remote_port, now)
                    && parsed.class != Class::IcmpReply =>
            {
                if let Err(verdict) = self.filter_session(now, true, index, (parsed.destination, remote_port)) {
                    return Fate::Done(verdict);
                }
                let hairpin = self.mappings.get(index).session_is_hairpin();
                let way = match self.way_out(at, bytes, hairpin, sink) {
                    Ok(way) => way,
                    Err(fate) => return fate,
                };
                (way, Flow { index, session: Some(SessionRef::Inline) })
            }
            _ => match self.live_flow(&key, (parsed.destination, remote_port), now) {
                Some(index) => {
                    return match self.filter_flow(now, true, index, &key) {
                        Ok(()) => self.outbound_by_flow(at, bytes, datagram, index, sink),
                        Err(verdict) => Fate::Done(verdict),
                    };
                }
                None => match self.open_outbound(at, bytes, &key, foresight, found, sink) {
                    Ok(Opened::Session(way, flow)) => (way, flow),
                    Ok(Opened::Flow(index)) => return self.outbound_by_flow(at, bytes, datagram, index, sink),
                    Err(fate) => return fate,
                },
            },
        };
        self.established_outbound(at, bytes, datagram, way, flow, sink)
    }

    /// Finds the way out, and refuses packets whose time or size does not allow it, before any state is touched.
    #[inline]
    fn way_out<S: Sink>(&mut self, at: Arrival<'_>, bytes: &[u8], hairpin: bool, sink: &mut S) -> Result<Way, Fate> {
        let Arrival { now, meta, parsed } = at;
        if parsed.ttl <= 1 {
            self.send_error(now, Side::Inside, meta, Reason::TtlExpired, bytes, sink);
            return Err(Fate::Done(Verdict::TtlExpired));
        }
        if hairpin {
            return match self.local.lookup(parsed.destination).and_then(Local::pool_address) {
                Some(address) => Ok(Way::Hairpin { address, made: 0 }),
                None => Err(Fate::Done(Verdict::NoMapping)),
            };
        }
        self.way_out_to(at, bytes, parsed.destination, sink).map(Way::Out)
    }

    /// The way out to `destination`, which need not be the packet's own.
    #[inline]
    pub(super) fn way_out_to<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        destination: u32,
        sink: &mut S,
    ) -> Result<NextHop, Fate> {
        let Arrival { now, meta, parsed } = at;
        if parsed.ttl <= 1 {
            self.send_error(now, Side::Inside, meta, Reason::TtlExpired, bytes, sink);
            return Err(Fate::Done(Verdict::TtlExpired));
        }
        let Some(hop) = self.shared.route_out(destination).copied() else {
            self.send_error(now, Side::Inside, meta, Reason::NetUnreachable, bytes, sink);
            return Err(Fate::Done(Verdict::NoRoute));
        };
        if parsed.total_length > hop.mtu && parsed.dont_fragment {
            // RFC 4787 §11 REQ-13: the sender learns the MTU of the next link.
            self.send_error(now, Side::Inside, meta, Reason::TooBig(hop.mtu), bytes, sink);
            return Err(Fate::Done(Verdict::TooBig));
        }
        Ok(hop)
    }

    /// Everything but the first session of a live mapping: all checks, then mapping and session are found or made.
    #[cold]
    #[inline(never)]
    fn open_outbound<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        key: &InternalKey,
        foresight: &Foresight,
        found: Option<u32>,
        sink: &mut S,
    ) -> Result<Opened, Fate> {
        let Arrival { now, meta, parsed } = at;
        if let Some(verdict) = self.check_source(self.shared.facing(at.meta.ingress), parsed.source) {
            return Err(Fate::Done(verdict));
        }
        let target = self.dormant(parsed, key.protocol);
        // Which of several targets it is, is found out behind the translation of the source.
        let is_balanced = self.shared.balance.find(parsed.destination, key.protocol, parsed.destination_port).is_some();
        let is_static = target.is_some() || is_balanced;
        let hairpin = match self.local_to(self.shared.facing(meta.ingress), parsed.destination) {
            Some(Local::Own(_)) => return Err(self.local_packet(at, Side::Inside, bytes, sink)),
            Some(Local::Broadcast(_)) => return Err(Fate::Done(Verdict::DestinationInvalid)),
            Some(Local::OwnAndPool(_, address)) => {
                if !is_static
                    && (self.shared.owner(address, key.protocol, parsed.destination_port).is_none()
                        || key.protocol == Protocol::Icmp)
                {
                    return Err(self.local_packet(at, Side::Inside, bytes, sink));
                }
                Some(address)
            }
            Some(Local::Pool(address)) => Some(address),
            None => None,
        };
        if !destination_is_valid(parsed.destination) {
            return Err(Fate::Done(Verdict::DestinationInvalid));
        }
        let is_answer = parsed.class == Class::IcmpReply;
        let answers = is_answer
            && found.is_some_and(|index| self.is_alive(index, now))
            && self.shared.statics.by_internal(key).is_some();
        if is_answer && !answers {
            // An answer to nothing: queries from outside do not pass a NAPT, so no reply is due. They pass basic NAT.
            return Err(Fate::Done(Verdict::IcmpTypeUnsupported));
        }
        let remote_port = remote_port(key.protocol, parsed.destination_port);
        let alive = found.filter(|index| self.is_alive(*index, now));
        let session = alive.and_then(|index| {
            let by = self.facts_of_mapping(index).map(|facts| Shard::hashed_by(&facts, key.protocol))?;
            self.find_session(index, parsed.destination, remote_port, by, now)
        });
        let near = (parsed.destination, remote_port);
        let rule_key = RuleKey::of_flow(key, near);
        let permits = self.filter(now, true, &rule_key, session.is_none()).map_err(Fate::Done)?;
        // Rules are about what is opened, never about what is there.
        let ruling = if session.is_none() { self.shared.rule_for(&rule_key) } else { Ruling::DEFAULT };
        if ruling.action == RuleAction::Drop {
            self.shared.rules.count(self.worker, ruling);
            return Err(Fate::Done(Verdict::DroppedByRule));
        }
        if session.is_none()
            && hairpin.is_none()
            && let Some(far) = self.flow_wanted(key, near, alive.is_some(), ruling.action)
        {
            let opened = self.open_flow(at, bytes, key, near, (far, ruling.action), sink);
            if !matches!(opened, Ok(None)) {
                self.shared.rules.count(self.worker, ruling);
            }
            if let Some(flow) = opened? {
                return Ok(Opened::Flow(flow));
            }
        }
        let way = self.way_out(at, bytes, hairpin.is_some(), sink)?;
        if let Some(address) = hairpin {
            // Only basic NAT hairpins queries (RFC 5508 §6 REQ-7), and no state is made for a packet that
            // will find no mapping on the other side. A SYN may be waited for, like one from outside.
            let owner = self.shared.owner(address, key.protocol, parsed.destination_port);
            let has_owner =
                owner.is_some_and(|(worker, mapping)| worker != self.worker || self.is_mapped(mapping, now));
            let is_napt_query = key.protocol == Protocol::Icmp && !answers;
            if !is_static && (is_napt_query || !has_owner) {
                return Err(Fate::Done(Verdict::NoMapping));
            }
            // Where a session goes is said in the second half, too: to whom has the port from before the forward, perhaps.
            if let Some(target) = target
                && session.is_none()
                && !self.shared.may_hairpin(key.realm, target.realm)
            {
                return Err(Fate::Done(Verdict::HairpinRefused));
            }
            // A mapping of another worker says its realm there, in the second half. One that is over says nothing: the forward that has its
            // port now may lead elsewhere.
            if let Some((worker, mapping)) = owner
                && worker == self.worker
                && mapping != MappingIndex::SHARED
                && !is_balanced
                && self.is_mapped(mapping, now)
                && !self.shared.may_hairpin(key.realm, self.mappings.get(mapping.0).realm())
            {
                return Err(Fate::Done(Verdict::HairpinRefused));
            }
        }
        if let (RuleAction::NoTranslation, Way::Out(hop)) = (ruling.action, way) {
            self.shared.rules.count(self.worker, ruling);
            return Err(self.pass_out(at, bytes, &hop, sink));
        }
        if let (Some(index), Some(session)) = (alive, session) {
            return Ok(Opened::Session(way, Flow { index, session: Some(session) }));
        }
        if parsed.fragment_offset != 0 {
            // Only the first fragment of a datagram, which has the ports, opens anything.
            return Err(Fate::Done(Verdict::FragmentRefused));
        }
        if key.protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) {
            // RFC 5382 §5 leaves this open; silence, and no state from a bare ACK.
            return Err(Fate::Done(Verdict::TcpNoSession));
        }
        let (index, made) = match (alive, found) {
            (Some(index), _) if self.is_before_targets(index) => {
                self.shared.rules.count(self.worker, ruling);
                let unmade = Unmade { key, verdict: Verdict::PortsExhausted, wanted: ruling.action.pool() };
                return Err(self.refuse(now, unmade, meta, bytes, sink));
            }
            (Some(index), _) => (index, 0),
            (None, dead) => {
                if let Some(dead) = dead {
                    if !self.may_end(dead) {
                        self.shared.rules.count(self.worker, ruling);
                        let unmade = Unmade { key, verdict: Verdict::LogFull, wanted: ruling.action.pool() };
                        return Err(self.refuse(now, unmade, meta, bytes, sink));
                    }
                    self.end_mapping(now, dead);
                }
                let wanted = ruling.action.pool();
                match self.create_mapping(now, key, foresight, wanted) {
                    Ok(index) => (index, made_mapping(index)),
                    Err(verdict) => {
                        self.shared.rules.count(self.worker, ruling);
                        return Err(self.refuse(now, Unmade { key, verdict, wanted }, meta, bytes, sink));
                    }
                }
            }
        };
        let Some(facts) = self.facts_of_mapping(index) else { return Err(Fate::Done(Verdict::NoMapping)) };
        let first = self.lifetimes.first(key.protocol, remote_port, Side::Inside);
        let new = NewSession {
            remote_address: parsed.destination,
            remote_port,
            state: first.state,
            opened_from: Side::Inside,
            hairpin: hairpin.is_some(),
            has_own_timer: first.has_own_timer,
            expires: now + first.lifetime,
        };
        let external = self.mappings.get(index).external();
        match self.create_session(now, index, &new, Shard::hashed_by(&facts, key.protocol)) {
            Ok(session) => {
                self.stamp(index, Some(session), permits);
                self.shared.rules.count(self.worker, ruling);
                if key.protocol == Protocol::Tcp {
                    let remote = Endpoint::new(parsed.destination.into(), remote_port);
                    if self.syns.forget(external, remote) {
                        self.counters.unsolicited_syns_matched += 1;
                    }
                }
                let made = if made == 0 { made_session(index, session) } else { made };
                Ok(Opened::Session(way.having_made(made), Flow { index, session: Some(session) }))
            }
            // Where nobody is filtered a UDP session is only bookkeeping: going on without it hurts nobody,
            // while refusing would break programs that talk to thousands (peer-to-peer, resolvers). What the
            // operator grants a subscriber is another matter.
            Err(Verdict::SessionLimit | Verdict::SessionTableFull)
                if key.protocol == Protocol::Udp
                    && facts.filtering[Protocol::Udp.index()] == Filtering::EndpointIndependent =>
            {
                Ok(Opened::Session(way, Flow { index, session: None }))
            }
            Err(verdict) => {
                self.shared.rules.count(self.worker, ruling);
                Err(self.refuse(now, Unmade { key, verdict, wanted: Some(facts.id) }, meta, bytes, sink))
            }
        }
    }

    /// RFC 6888 REQ-11: no resources. The packet is dropped, and its sender told that it is so.
    pub(super) fn refuse<S: Sink>(
        &mut self,
        now: Instant,
        unmade: Unmade<'_>,
        meta: PacketMeta,
        bytes: &[u8],
        sink: &mut S,
    ) -> Fate {
        let Unmade { key, verdict, .. } = unmade;
        self.note_refusal(now, unmade);
        self.count_refusal(now, key, verdict);
        self.note_offence(now, key, verdict);
        if verdict != Verdict::SourceNotSubscriber
            && let Some(code) = self.shared.settings().icmp.no_resources_code
        {
            self.send_error(now, Side::Inside, meta, Reason::NoResources(code), bytes, sink);
        }
        Fate::Done(verdict)
    }

    /// A packet of a session that exists by now: state, timer, rewriting.
    #[inline]
    fn established_outbound<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        datagram: Option<crate::fragments::DatagramIndex>,
        way: Way,
        flow: Flow,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        match flow.session {
            Some(session) if parsed.class == Class::Tcp => {
                let advance = self.advance_tcp(now, flow.index, session, Side::Inside, bytes, parsed);
                if let Some(expires) = advance.expires {
                    self.refresh(flow.index, session, advance.state, expires);
                }
            }
            Some(session) => {
                let (state, expires) = self.session_state(flow.index, session);
                // A later fragment of a TCP segment changes nothing but the timer, and that never shortens.
                let lifetime = match self.mappings.get(flow.index).protocol() {
                    Protocol::Tcp => expires.saturating_since(now),
                    Protocol::Udp | Protocol::Icmp => self.lifetime(flow.index, session, state),
                };
                self.refresh(flow.index, session, state, now + lifetime);
            }
            None => {
                let expires = now + self.sessionless_lifetime(Protocol::Udp);
                self.mappings.get_mut(flow.index).extend_to(expires, false);
            }
        }
        let mapping = self.mappings.get(flow.index);
        let (address, port) = (mapping.external_address, mapping.external_port());
        let identification = self.identification_outside(parsed, address, datagram);
        let decrement_ttl = matches!(way, Way::Out(_));
        let change = Rewrite { end: End::Source, address, port, identification, decrement_ttl };
        rewrite(bytes, parsed, &change);
        match way {
            Way::Out(hop) => self.finish(bytes, parsed, &hop, parsed.destination, Verdict::Outbound, sink),
            Way::Hairpin { address: pool_address, made } => {
                let translated = Parsed {
                    source: address,
                    source_port: port,
                    // A query identifier stands for both ports.
                    destination_port: if parsed.protocol() == Some(Protocol::Icmp) {
                        port
                    } else {
                        parsed.destination_port
                    },
                    identification: identification.unwrap_or(parsed.identification),
                    ..*parsed
                };
                let meta = PacketMeta { record: made, ..at.meta };
                self.hairpin(Arrival { parsed: &translated, meta, ..at }, bytes, pool_address, sink)
            }
        }
    }

    /// The second half of a hairpin: here, or on the worker that owns the other mapping.
    pub(super) fn hairpin<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        address: AddressIndex,
        sink: &mut S,
    ) -> Fate {
        let Arrival { meta, parsed: translated, .. } = at;
        let Some(protocol) = translated.protocol() else { return Fate::Done(Verdict::NoMapping) };
        if let Some((worker, _)) = self.shared.owner(address, protocol, translated.destination_port)
            && worker != self.worker
        {
            let stage = if translated.class == Class::LaterFragment { Stage::HairpinFragment } else { Stage::Hairpin };
            let ports = (translated.source_port, translated.destination_port);
            return Fate::HandOff { worker, meta: PacketMeta { stage, ports, ..meta } };
        }
        let fate = self.inbound_flow(at, bytes, Via::Hairpin, sink);
        self.after_hairpin(at, bytes, fate, sink)
    }

    /// The identification a packet gets outside. Many subscribers share an address, so that ids of
    /// datagrams that may be in fragments must be given out anew (RFC 6864 §5.3.1, RFC 7857 §10).
    #[inline]
    pub(super) fn identification_outside(
        &mut self,
        parsed: &Parsed,
        external_address: u32,
        datagram: Option<crate::fragments::DatagramIndex>,
    ) -> Option<u16> {
        let source = external_address.into();
        let destination = parsed.destination.into();
        match datagram {
            None if parsed.dont_fragment => None,
            None => Some(self.identifications.next(source, destination, parsed.protocol_number)),
            Some(datagram) => {
                let known = self.fragments.translated_identification(datagram);
                Some(known.unwrap_or_else(|| {
                    let fresh = self.identifications.next(source, destination, parsed.protocol_number);
                    self.fragments.set_translated_identification(datagram, fresh);
                    fresh
                }))
            }
        }
    }

    /// Protocols without ports: passed untranslated by a rule, or dropped.
    pub(super) fn outbound_other<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let Arrival { parsed, .. } = at;
        if let Some(verdict) = self.check_source(self.shared.facing(at.meta.ingress), parsed.source) {
            return Fate::Done(verdict);
        }
        if let Some(Local::Own(_) | Local::OwnAndPool(..)) =
            self.local_to(self.shared.facing(at.meta.ingress), parsed.destination)
        {
            return Fate::Done(Verdict::LocalIgnored);
        }
        let key = RuleKey::outbound(self.shared.realm_of(at.meta.ingress), parsed);
        let ruling = self.shared.passes.ruling(&key);
        if ruling.rule.is_none() {
            return Fate::Done(Verdict::ProtocolUnsupported);
        }
        if let Err(verdict) = self.filter(at.now, true, &key, true) {
            return Fate::Done(verdict);
        }
        self.shared.passes.count(self.worker, ruling);
        match self.way_out(at, bytes, false, sink) {
            Ok(Way::Out(hop)) => {
                crate::rewrite::decrement_ttl(bytes);
                self.finish(bytes, parsed, &hop, parsed.destination, Verdict::Passed, sink)
            }
            Ok(Way::Hairpin { .. }) => Fate::Done(Verdict::ProtocolUnsupported),
            Err(fate) => fate,
        }
    }

    /// Sources that can not be: on either side impossible addresses, Natrix's own and the pools'; from outside also
    /// inside ones (RFC 2827 §4, RFC 6598 §4 "MUST filter such packets on ingress links").
    pub(super) fn check_source(&self, from: Facing, source: u32) -> Option<Verdict> {
        if !source_is_valid(source) {
            return Some(Verdict::SourceInvalid);
        }
        match self.local_to(from, source) {
            None => (from.side == Side::Outside && self.shared.is_inside(source)).then_some(Verdict::SourceSpoofed),
            Some(Local::Broadcast(_)) => Some(Verdict::SourceInvalid),
            Some(_) => Some(Verdict::SourceSpoofed),
        }
    }
}

/// The remote port of a session: ICMP queries have none, the identifier is the mapping's own.
#[inline]
pub(super) fn remote_port(protocol: Protocol, port: u16) -> u16 {
    if protocol == Protocol::Icmp { 0 } else { port }
}
