//! A packet to an external endpoint: from outside, or in the second half of a hairpin.

use crate::external::load_balancing::Aim;
use crate::external::load_balancing::Group;
use crate::external::static_mapping::Inside;
use crate::external::static_mapping::Kind;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::is_link_local;
use crate::policy::gateways::CompiledGateway;
use crate::policy::rules::RuleKey;
use crate::policy::rules::Ruling;
use crate::settings::Admission;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::snapshot::shared::CompiledPool;
use crate::snapshot::shared::NextHop;
use crate::snapshot::transition::check_embeddable;
use crate::state::grant::Admission as ByGrant;
use crate::state::grant::Kind::Once;
use crate::state::host::Host;
use crate::state::host::Way;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::state::mapping::SessionRef;
use crate::state::session::HashedBy;
use crate::state::tcp;
use crate::state::tcp::TcpState;
use crate::state::tcp::state_now;
use crate::state::timers::FirstLife;
use crate::steps::door::Door;
use crate::steps::door::Towards;
use crate::steps::door::remote_port;
use crate::steps::expired::Expired;
use crate::steps::packet_filter::Judged;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::untranslated::LocalAnswer;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::steps::way::NoWay;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use wire::tcp::Flags;

const REGISTERED_SESSIONS_MAX: u16 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Outside,
    /// From another subscriber: its source is translated. Never hairpinned again.
    Hairpin,
}

impl Via {
    pub(crate) fn verdict(self) -> Verdict {
        match self {
            Via::Outside => Verdict::Inbound,
            Via::Hairpin => Verdict::Hairpin,
        }
    }

    /// The side that gets the ICMP error if the packet ends here.
    pub(crate) fn side(self) -> Side {
        match self {
            Via::Outside => Side::Outside,
            Via::Hairpin => Side::Inside,
        }
    }
}

/// `parsed` has the ports even of a later fragment.
#[derive(Clone, Copy)]
pub(crate) struct Inbound<'a> {
    pub(crate) now: Instant,
    pub(crate) parsed: &'a Parsed,
    pub(crate) via: Via,
    pub(crate) realm: RealmId,
    pub(crate) turn: u8,
    pub(crate) is_vacated: bool,
}

impl Inbound<'_> {
    pub(crate) fn towards(&self, protocol: Protocol) -> Towards {
        let towards = Towards::of(self.parsed, protocol, self.turn);
        if self.is_vacated { towards.vacated() } else { towards }
    }

    fn remote(&self, protocol: Protocol) -> RemoteOutside {
        RemoteOutside { address: self.parsed.source, port: remote_port(protocol, self.parsed.source_port) }
    }

    pub(crate) fn external(&self) -> Endpoint {
        Endpoint::new(self.parsed.destination.into(), self.parsed.destination_port)
    }

    fn is_syn(&self) -> bool {
        self.parsed.class == Class::Tcp && tcp::opens(Flags(self.parsed.tcp_flags))
    }

    /// A packet that ends here must not create a session (conformance point S7).
    fn ends_here(&self) -> bool {
        self.parsed.ttl <= 1
    }
}

pub(crate) struct Decided {
    /// `None` if the filters were not asked. Counted however the packet ends.
    pub(crate) judged: Option<Judged>,
    pub(crate) ruling: Option<Ruling>,
    pub(crate) act: Act,
}

/// What a session that a packet from outside opens is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedFor {
    /// The packet itself, which ends here without one.
    Packet,
    /// Its answers only.
    Answers,
    /// A gateway, which reads the packets of a session, if it is a request
    /// ([`View::decide_to_server`]).
    Gateway,
}

pub(crate) enum Act {
    /// Without a session if the pool does not filter.
    Enter {
        mapping: u32,
        session: Option<SessionRef>,
        hop: NextHop,
    },
    Open {
        mapping: u32,
        new: NewSession,
        by: HashedBy,
        purpose: OpenedFor,
        hop: NextHop,
    },
    EnterFlow {
        flow: u32,
        hop: NextHop,
    },
    EnterByCall {
        mapping: u32,
        hop: NextHop,
    },
    Activate {
        inside: Inside,
        expired: Expired,
        hop: NextHop,
    },
    Lead {
        aim: Aim,
        hop: NextHop,
    },
    Local(Result<LocalAnswer, Verdict>),
    Pass {
        hop: NextHop,
    },
    HandOff {
        worker: WorkerId,
        turn: u8,
    },
    Vacate {
        expired: u32,
        worker: WorkerId,
    },
    /// An unexpected SYN (RFC 5382 §4.3 REQ-4). `is_stray`: no worker has its destination.
    Hold {
        is_stray: bool,
    },
    Drop(Verdict),
    Return(NoWay),
    Refuse {
        key: InternalKey,
        verdict: Verdict,
        wanted: Option<PoolId>,
    },
}

impl Act {
    /// If all that it asks for can be done. `None`: another worker decides.
    pub(crate) fn verdict(&self, via: Via) -> Option<Verdict> {
        Some(match self {
            Act::Enter { .. } | Act::Open { .. } | Act::EnterFlow { .. } => via.verdict(),
            Act::EnterByCall { .. } | Act::Activate { .. } | Act::Lead { .. } => via.verdict(),
            Act::Local(answer) => answer.map_or_else(|verdict| verdict, |_| Verdict::Local),
            Act::Pass { .. } => Verdict::Passed,
            Act::HandOff { .. } | Act::Vacate { .. } => return None,
            Act::Hold { .. } => Verdict::UnsolicitedSyn,
            Act::Drop(verdict) | Act::Refuse { verdict, .. } => *verdict,
            Act::Return(no_way) => no_way.verdict,
        })
    }
}

impl From<Verdict> for Act {
    fn from(verdict: Verdict) -> Act {
        Act::Drop(verdict)
    }
}

impl From<NoWay> for Act {
    fn from(no_way: NoWay) -> Act {
        Act::Return(no_way)
    }
}

fn may_open(parsed: &Parsed, protocol: Protocol) -> Result<(), Verdict> {
    match parsed.class {
        // Only the first fragment has ports.
        Class::LaterFragment => Err(Verdict::FragmentRefused),
        Class::IcmpReply => Err(Verdict::NoMapping),
        _ if parsed.fragment_offset != 0 => Err(Verdict::FragmentRefused),
        _ if protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) => Err(Verdict::TcpNoSession),
        _ => Ok(()),
    }
}

fn filtering_of(admission: Option<Admission>, protocol: Protocol, compiled: &CompiledPool) -> Filtering {
    match admission {
        Some(Admission::Anyone) => Filtering::EndpointIndependent,
        _ => compiled.filtering[protocol.index()],
    }
}

impl<'a> View<'a> {
    pub(crate) fn decide_inbound<T: Report>(&self, packet: &Inbound<'_>, report: &mut T) -> Decided {
        let mut decided = Decided { judged: None, ruling: None, act: Act::Drop(Verdict::ProtocolUnsupported) };
        let act = match packet.parsed.protocol() {
            Some(protocol) => {
                let door = self.door(&packet.towards(protocol), packet.now);
                self.enter(packet, protocol, &door, &mut decided, report)
            }
            None => self.enter_portless(packet, &mut decided, report),
        };
        decided.act = act.unwrap_or_else(|act| act);
        decided
    }

    fn enter<T: Report>(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        door: &Door,
        decided: &mut Decided,
        report: &mut T,
    ) -> Result<Act, Act> {
        let judged = &mut decided.judged;
        match door {
            Door::Mapping(index) => self.enter_mapping(packet, protocol, *index, judged, report),
            Door::Session(index) => self.enter_flow(packet, *index, judged, report),
            Door::Shared => self.refuse_without_session(packet, report),
            Door::Static { inside, expired } => self.enter_static(packet, protocol, (inside, *expired), judged, report),
            Door::Target(aim) => self.enter_target(packet, protocol, aim, judged, report),
            Door::Elsewhere { worker, turn } => Ok(Act::HandOff { worker: *worker, turn: *turn }),
            Door::Own if packet.via == Via::Outside && packet.parsed.class != Class::IcmpReply => {
                report.step(|| Step::OwnAddress(packet.external().address));
                Ok(Act::Local(self.decide_local(Facing::OUTSIDE, packet.parsed)))
            }
            Door::Own | Door::Nothing => self.refuse_at_no_door(packet, report),
            // The pool has lost the address since the session was opened. What the address is now
            // may be another realm's.
            Door::NotExternal(_) if packet.via == Via::Hairpin => {
                report.step(|| Step::NoMapping);
                Err(Act::Drop(Verdict::NoMapping))
            }
            Door::NotExternal(local) => self.enter_untranslated(packet, *local, decided, report),
        }
    }

    pub(super) fn check_stranger(&self, packet: &Inbound<'_>) -> Result<(), Verdict> {
        match packet.via {
            Via::Outside => self.check_source(Facing::OUTSIDE, packet.parsed.source).map_or(Ok(()), Err),
            Via::Hairpin => Ok(()),
        }
    }

    /// Whether an IPv6 host can be shown where a packet comes from. The well-known prefix must not
    /// be put before a private address (RFC 6052 §3.1).
    fn check_shown(&self, packet: &Inbound<'_>, internal: &InternalKey) -> Result<(), Verdict> {
        if !internal.address.is_nat64() {
            // No router forwards packets of a link-local address (RFC 3927 §2.7).
            let is_misled = internal.address.is_ipv6() && is_link_local(packet.parsed.source);
            return if is_misled { Err(Verdict::SourceInvalid) } else { Ok(()) };
        }
        let is_of_pool = |address| self.local.lookup(address).is_some_and(|local| local.pool_address().is_some());
        if packet.via == Via::Hairpin && !is_of_pool(packet.parsed.source) {
            // In an explanation: the external address of the sender is not chosen yet.
            return Ok(());
        }
        let known = self.state.subscribers.hosts.get(internal.address).map(Host::way);
        let transition = &self.snapshot.transition;
        let way = self.new_host.map_or(known, |_| transition.way_of_grants(internal.realm));
        let Some(Way::Nat64(position)) = way else { return Ok(()) };
        transition.prefix(position).map_or(Ok(()), |prefix| check_embeddable(packet.parsed.source, prefix))
    }

    pub(super) fn check_realm(&self, packet: &Inbound<'_>, realm: RealmId) -> Result<(), Verdict> {
        let may_enter = packet.via == Via::Outside || self.snapshot.may_hairpin(packet.realm, realm);
        if may_enter { Ok(()) } else { Err(Verdict::HairpinRefused) }
    }

    #[cold]
    fn refuse_at_no_door<T: Report>(&self, packet: &Inbound<'_>, report: &mut T) -> Result<Act, Act> {
        report.step(|| Step::NoMapping);
        self.check_stranger(packet)?;
        Err(if packet.is_syn() { Act::Hold { is_stray: true } } else { Act::Drop(Verdict::NoMapping) })
    }

    /// Endpoint-dependent sessions imply address- and port-dependent filtering.
    #[cold]
    fn refuse_without_session<T: Report>(&self, packet: &Inbound<'_>, report: &mut T) -> Result<Act, Act> {
        report.step(|| Step::FilterAsked { filtering: Filtering::AddressAndPortDependent, allowed: false });
        self.check_stranger(packet)?;
        let is_held = packet.is_syn() && packet.via == Via::Outside;
        Err(if is_held { Act::Hold { is_stray: false } } else { Act::Drop(Verdict::Filtered) })
    }

    #[inline]
    fn enter_mapping<T: Report>(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        index: u32,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Act, Act> {
        let Inbound { now, parsed, via, .. } = *packet;
        let mapping = self.state.mappings.get(index);
        self.check_realm(packet, mapping.realm())?;
        self.report_mapping(now, index, report);
        self.report_port_awaited(packet, index, report);
        let remote = packet.remote(protocol);
        let by = || self.pool_of_mapping(index).map_or(HashedBy::Endpoint, |compiled| hashed_by(compiled, protocol));
        let is_way = |is_hairpin: bool| is_hairpin == (via == Via::Hairpin);
        let is_first =
            mapping.session_matches(remote.address, remote.port, now) && is_way(mapping.session_is_hairpin());
        let found = if is_first {
            Some(SessionRef::Inline)
        } else {
            self.state.find_session(index, remote.address, remote.port, by(), now)
        };
        let key = RuleKey::of_flow(&mapping.key(), remote.not_redirected());
        let is_usual = match found {
            Some(SessionRef::Extra(slot)) => is_way(self.state.sessions.get(slot).is_hairpin()),
            _ => is_first,
        };
        let has_passed = found.is_some_and(|session| {
            is_usual && self.state.filter_generation(index, session) == self.policy.filter_generation()
        });
        if has_passed {
            self.report_filter(false, &key, report);
        } else {
            let opens = found.is_none() && self.snapshot.filters.logs();
            judged.insert(self.judge(false, key, opens, report)).check()?;
        }
        if !(has_passed || is_first && self.has_kept_way(index, SessionRef::Inline)) {
            self.check_stranger(packet)?;
        }
        let towards = Facing::inside(mapping.realm());
        let Some(session) = found else {
            self.check_shown(packet, &mapping.key())?;
            let by = by();
            let opens = self.admit_without_session(packet, protocol, index, by, report)?;
            let hop = self.way(towards, mapping.internal_address().0, parsed, report)?;
            return Ok(match opens {
                Some((new, purpose)) => Act::Open { mapping: index, new, by, purpose, hop },
                None => Act::Enter { mapping: index, session: None, hop },
            });
        };
        self.report_session(now, index, session, report);
        let hop = self.way(towards, mapping.internal_address().0, parsed, report)?;
        Ok(Act::Enter { mapping: index, session: Some(session), hop })
    }

    /// Through the session that the first half of a hairpin makes with the sender's own endpoint.
    /// As [`View::enter_mapping`] once it exists.
    pub(crate) fn enter_by_session<T: Report>(
        &self,
        parsed: &Parsed,
        key: &InternalKey,
        remote: RemoteInside,
        report: &mut T,
    ) -> Result<NextHop, Verdict> {
        self.judge(false, RuleKey::of_flow(key, remote), false, report).check()?;
        self.way(Facing::inside(key.realm), key.address.0, parsed, report).map_err(|no_way| no_way.verdict)
    }

    #[cold]
    fn admit_without_session<T: Report>(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        index: u32,
        by: HashedBy,
        report: &mut T,
    ) -> Result<Option<(NewSession, OpenedFor)>, Act> {
        let remote = packet.remote(protocol);
        let granted = self.admission_by_grant(packet.now, index, remote.raw(), report);
        self.check_filtering(packet, protocol, index, (by, granted), report)?;
        // The registrar may call from any port, at any time (`docs/alg.md`).
        let registered = match granted {
            ByGrant::Granted(_) => self.awaits_answer_until(packet.now, index, remote.raw()),
            ByGrant::AsPool | ByGrant::Refused(_) => None,
        };
        match protocol {
            Protocol::Udp | Protocol::Icmp => self.open_for_datagram(packet, protocol, index, (granted, registered)),
            Protocol::Tcp if !packet.is_syn() => Err(Act::Drop(Verdict::TcpNoSession)),
            Protocol::Tcp => self.open_for_syn(packet, index, registered.is_some(), report).map(Some),
        }
    }

    fn check_filtering<T: Report>(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        index: u32,
        (by, granted): (HashedBy, ByGrant),
        report: &mut T,
    ) -> Result<(), Act> {
        let (now, remote) = (packet.now, packet.remote(protocol));
        let filtering = match granted {
            ByGrant::AsPool => self.filtering_of_mapping(index),
            ByGrant::Granted(_) => Filtering::EndpointIndependent,
            ByGrant::Refused(_) => Filtering::AddressAndPortDependent,
        };
        // The inside would take two sessions of these endpoints for one connection.
        let is_elsewhere =
            self.state.live_flow(&self.state.mappings.get(index).key(), remote.not_redirected(), now).is_some();
        let allowed = !is_elsewhere && self.filtering_allows(now, index, remote.address, filtering, by);
        // A grant that admits the packet is reported already.
        if !allowed || !matches!(granted, ByGrant::Granted(_)) {
            report.step(|| Step::FilterAsked { filtering, allowed });
        }
        if allowed {
            return Ok(());
        }
        let is_held = packet.is_syn() && !is_elsewhere;
        Err(if is_held { Act::Hold { is_stray: false } } else { Act::Drop(Verdict::Filtered) })
    }

    /// The first packet from inside makes a session, so a flood from outside takes no memory.
    fn open_for_datagram(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        index: u32,
        (granted, registered): (ByGrant, Option<Instant>),
    ) -> Result<Option<(NewSession, OpenedFor)>, Act> {
        let Inbound { now, parsed, .. } = *packet;
        let asks = !packet.ends_here() && matches!(parsed.class, Class::Udp | Class::IcmpRequest);
        let is_once = matches!(granted, ByGrant::Granted(grant) if self.state.grants.get(grant).kind() == Once);
        if asks && is_once {
            self.decide_session(now, index).map_err(|verdict| self.refuse_session(index, verdict))?;
        }
        let mut new = self.session_for_answers(packet, protocol, index);
        if let Some(until) = registered.filter(|_| asks && self.may_open_to_registration(now, index)) {
            // After the registration, the pool's filtering applies again, unless the phone answers.
            (new.has_own_timer, new.expires) = (true, new.expires.min(until));
            return Ok(Some((new, OpenedFor::Packet)));
        }
        let to_server = matches!(granted, ByGrant::AsPool) && asks && !parsed.is_fragment();
        // A gateway reads a client's first request over UDP to a server behind a forward only with
        // a session.
        if let Some(gateway) = to_server.then(|| self.gateway_of_server(index)).flatten() {
            // Anyone can forge clients, so it ends soon unless the server answers.
            (new.state, new.expires) = (TcpState::UNANSWERED, now + gateway.timeout);
            return Ok(Some((new, OpenedFor::Gateway)));
        }
        if is_once {
            new.state = TcpState::ANNOUNCED;
        }
        let opens = asks
            && (is_once
                || self
                    .rules_lead_away(&self.state.mappings.get(index).key(), packet.remote(protocol).not_redirected()));
        let purpose = if is_once { OpenedFor::Packet } else { OpenedFor::Answers };
        Ok(opens.then_some((new, purpose)))
    }

    fn open_for_syn<T: Report>(
        &self,
        packet: &Inbound<'_>,
        index: u32,
        is_registered: bool,
        report: &mut T,
    ) -> Result<(NewSession, OpenedFor), Act> {
        let now = packet.now;
        if !packet.ends_here() {
            self.decide_session(now, index).map_err(|verdict| self.refuse_session(index, verdict))?;
        }
        report.step(|| Step::SessionWouldBeCreated);
        let port = self.state.mappings.get(index).internal_port();
        let mut first = self.policy.lifetimes.first(Protocol::Tcp, port, Side::Outside);
        first.has_own_timer |= is_registered;
        let new = self.session_from_outside(packet, Protocol::Tcp, first, now + first.lifetime);
        Ok((new, OpenedFor::Packet))
    }

    fn refuse_session(&self, index: u32, verdict: Verdict) -> Act {
        let wanted = self.pool_of_mapping(index).map(|compiled| compiled.id);
        Act::Refuse { key: self.state.mappings.get(index).key(), verdict, wanted }
    }

    /// A gateway reads a call over UDP only with a session. Sessions cost memory, so further calls
    /// pass unread.
    fn may_open_to_registration(&self, now: Instant, index: u32) -> bool {
        let has_few = self.state.mappings.get(index).extra_count() < REGISTERED_SESSIONS_MAX;
        has_few && self.decide_session(now, index).is_ok()
    }

    /// Reads what clients outside ask this mapping's server over UDP.
    pub(crate) fn gateway_of_server(&self, index: u32) -> Option<&'a CompiledGateway> {
        let mapping = self.state.mappings.get(index);
        if !self.may_have_clients(&mapping.key()) || !self.is_static(index) {
            return None;
        }
        let (pool, class) = (self.pool_of_mapping(index)?.id, self.class_now(mapping.subscriber));
        self.gateway_of_clients(&mapping.key(), pool, class)
    }

    /// As [`View::gateway_of_server`], before the static mapping is active.
    pub(crate) fn gateway_of_static(&self, key: &InternalKey) -> Option<&'a CompiledGateway> {
        if !self.may_have_clients(key) {
            return None;
        }
        let (external, _) = self.static_mapping_of(key)?;
        let pool = self.snapshot.compiled_pool(self.snapshot.address_index(external.address)?).id;
        self.gateway_of_clients(key, pool, self.class_of(key.realm, key.address))
    }

    /// Gateways read and write IPv4 addresses of hosts.
    fn may_have_clients(&self, key: &InternalKey) -> bool {
        let is_served = key.protocol == Protocol::Udp && self.policy.lifetimes.is_served(key.protocol, key.port);
        is_served && !key.address.is_ipv6()
    }

    fn gateway_of_clients(&self, key: &InternalKey, pool: PoolId, class: u16) -> Option<&'a CompiledGateway> {
        let gateway = self.snapshot.gateways.find(key.protocol, key.port, pool, class)?;
        gateway.alg.alg()?.is_first_request().map(|_| gateway)
    }

    /// True if rules change the way or the source of the answer. A dropped answer takes no memory.
    pub(crate) fn rules_lead_away(&self, key: &InternalKey, remote: RemoteInside) -> bool {
        if self.snapshot.rules.is_empty() {
            return false;
        }
        let action = self.ruling(RuleKey::of_flow(key, remote)).action;
        matches!(action, RuleAction::Redirect(_) | RuleAction::NoTranslation)
    }

    pub(crate) fn session_from_outside(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        first: FirstLife,
        expires: Instant,
    ) -> NewSession {
        let RemoteOutside { address: remote_address, port: remote_port } = packet.remote(protocol);
        NewSession {
            remote_address,
            remote_port,
            state: first.state,
            opened_from: Side::Outside,
            hairpin: self.local.lookup(remote_address).is_some(),
            has_own_timer: first.has_own_timer,
            expires,
        }
    }

    /// A session for a packet whose answers rules would treat as new. It lasts as long as an
    /// unanswered session and extends no mapping (RFC 4787 §4.3 REQ-6), so a flood gains nothing.
    fn session_for_answers(&self, packet: &Inbound<'_>, protocol: Protocol, index: u32) -> NewSession {
        let first =
            self.policy.lifetimes.first(protocol, self.state.mappings.get(index).internal_port(), Side::Outside);
        let unanswered = packet.now + self.policy.lifetimes.first_of_target(protocol).lifetime;
        let mapped_until = self.state.mappings.get(index).expires();
        let refreshes = self.snapshot.settings().inbound_refresh;
        let expires = if refreshes { unanswered } else { unanswered.min(mapped_until) };
        self.session_from_outside(packet, protocol, first, expires)
    }

    /// An orphaned mapping admits no new session.
    fn filtering_of_mapping(&self, index: u32) -> Filtering {
        let mapping = self.state.mappings.get(index);
        let (key, external) = (mapping.key(), mapping.external());
        let orphaned = self.snapshot.orphaned(&self.static_key(&key), external, mapping.created_s());
        if orphaned.is_some_and(|orphaned| orphaned.is_shut) {
            return Filtering::AddressAndPortDependent;
        }
        let owner = self.snapshot.static_mappings.by_external(external.address.to_bits(), key.protocol, external.port);
        let admission = owner.map(|inside| inside.admission);
        self.pool_of_mapping(index)
            .map_or(Filtering::AddressAndPortDependent, |compiled| filtering_of(admission, key.protocol, compiled))
    }

    /// Whether filtering (RFC 4787 §5) admits a packet without a session.
    fn filtering_allows(&self, now: Instant, index: u32, remote: u32, filtering: Filtering, by: HashedBy) -> bool {
        match filtering {
            Filtering::EndpointIndependent => true,
            Filtering::AddressDependent => {
                let mapping = self.state.mappings.get(index);
                (mapping.remote_address() == remote && mapping.has_live_session(now))
                    || (by == HashedBy::Address
                        && mapping.extra_count() > 0
                        && self.state.sessions.has_address(index, mapping.extra_head, remote, now))
            }
            Filtering::AddressAndPortDependent => false,
        }
    }

    fn enter_flow<T: Report>(
        &self,
        packet: &Inbound<'_>,
        index: u32,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Act, Act> {
        let flow = self.state.flows.get(index);
        if flow.is_hairpin() != (packet.via == Via::Hairpin) {
            return self.refuse_without_session(packet, report);
        }
        self.report_flow(packet.now, index, report);
        // The session may be older than the ban.
        self.check_realm(packet, flow.realm())?;
        let (address, port) = flow.internal();
        let key = InternalKey { realm: flow.realm(), protocol: flow.protocol(), address, port };
        let key = RuleKey::of_flow(&key, flow.remote_inside());
        if flow.filter_generation() == self.policy.filter_generation() {
            self.report_filter(false, &key, report);
        } else {
            judged.insert(self.judge(false, key, false, report)).check()?;
            if self.local.lookup(packet.parsed.source).is_some() {
                // It has become one of Natrix since the session was opened.
                self.check_stranger(packet)?;
            }
        }
        let hop = self.way(Facing::inside(flow.realm()), address.0, packet.parsed, report)?;
        Ok(Act::EnterFlow { flow: index, hop })
    }

    #[cold]
    fn enter_static<T: Report>(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        (inside, expired): (&Inside, Option<u32>),
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Act, Act> {
        let worker = self.snapshot.worker_of_inside(&inside.host);
        if worker != self.worker {
            // The port table leads here until the previous mapping of the port has ended.
            return Err(expired.map_or(Act::HandOff { worker, turn: 0 }, |expired| Act::Vacate { expired, worker }));
        }
        report.step(|| Step::StaticMapping {
            host: inside.host,
            port: inside.port,
            external: packet.external(),
            one_to_one: inside.kind == Kind::OneToOne,
        });
        self.check_stranger(packet)?;
        let (key, new_host) = self.endpoint_of_static(packet.now, inside, protocol).map_err(Act::Drop)?;
        let view = View { new_host: new_host.as_ref(), ..*self };
        let hop = view.open_from_outside(packet, &key, Some(inside.admission), judged, report)?;
        let own = self.state.find_mapping(&key, self.state.hash_of(&key));
        if own.is_some_and(|index| self.state.is_alive(index, packet.now)) {
            // The internal endpoint still has another external one from the previous configuration.
            report.step(|| Step::NoMapping);
            return Err(Act::Drop(Verdict::NoMapping));
        }
        let at_port = expired.filter(|index| own != Some(*index));
        Ok(Act::Activate { inside: *inside, expired: Expired { own, at_port, is_vacated: packet.is_vacated }, hop })
    }

    #[cold]
    pub(crate) fn enter_target<T: Report>(
        &self,
        packet: &Inbound<'_>,
        protocol: Protocol,
        aim: &Aim,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Act, Act> {
        self.check_stranger(packet)?;
        let external = packet.external();
        let group = self.snapshot.balance.find(external.address.to_bits(), protocol, external.port);
        report.step(|| {
            let targets = group.and_then(Group::current).map_or(&[][..], |generation| generation.targets());
            Step::Target {
                internal: Endpoint::new(aim.address.into(), aim.port),
                external,
                weight: targets.get(aim.position).map_or(0, |target| target.weight),
                total: targets.iter().map(|target| u64::from(target.weight)).sum(),
            }
        });
        let key = InternalKey { realm: aim.realm, protocol, address: aim.address, port: aim.port };
        let admission = group.map(|group| group.admission);
        let hop = self.open_from_outside(packet, &key, admission, judged, report)?;
        if self.has_session_with(&key, packet.remote(protocol).not_redirected(), packet.now) {
            return Err(Act::Drop(Verdict::Filtered));
        }
        Ok(Act::Lead { aim: *aim, hop })
    }

    fn open_from_outside<T: Report>(
        &self,
        packet: &Inbound<'_>,
        key: &InternalKey,
        admission: Option<Admission>,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<NextHop, Act> {
        self.check_realm(packet, key.realm)?;
        self.check_shown(packet, key)?;
        may_open(packet.parsed, key.protocol)?;
        let address = self.snapshot.address_index(packet.external().address);
        let filtering = address.map_or(Filtering::AddressAndPortDependent, |address| {
            filtering_of(admission, key.protocol, self.snapshot.compiled_pool(address))
        });
        let allowed = filtering == Filtering::EndpointIndependent;
        report.step(|| Step::FilterAsked { filtering, allowed });
        if !allowed {
            let is_held = key.protocol == Protocol::Tcp;
            return Err(if is_held { Act::Hold { is_stray: false } } else { Act::Drop(Verdict::Filtered) });
        }
        let rule_key = RuleKey::of_flow(key, packet.remote(key.protocol).not_redirected());
        judged.insert(self.judge(false, rule_key, true, report)).check()?;
        Ok(self.way(Facing::inside(key.realm), key.address.0, packet.parsed, report)?)
    }

    /// True if the internal endpoint has a session with the remote, through any external endpoint.
    fn has_session_with(&self, key: &InternalKey, remote: RemoteInside, now: Instant) -> bool {
        let by_mapping = || {
            let index = self.state.find_live_mapping(key, now)?;
            let compiled = self.pool_of_mapping(index)?;
            self.state.find_session(index, remote.address, remote.port, hashed_by(compiled, key.protocol), now)
        };
        self.state.live_flow(key, remote, now).is_some() || by_mapping().is_some()
    }

    pub(crate) fn report_mapping<T: Report>(&self, now: Instant, index: u32, report: &mut T) {
        let mapping = self.state.mappings.get(index);
        report.step(|| Step::MappingFound {
            internal: mapping.internal(),
            external: mapping.external(),
            expires_in: mapping.expires().saturating_since(now),
            origin: self.origins_of(index, now).next(),
        });
    }

    fn report_port_awaited<T: Report>(&self, packet: &Inbound<'_>, index: u32, report: &mut T) {
        if !T::LISTENS {
            return;
        }
        let (key, external) = (self.state.mappings.get(index).key(), packet.external());
        let owner = self.snapshot.static_mappings.by_external(external.address.to_bits(), key.protocol, external.port);
        if let Some(owner) = owner.filter(|owner| owner.key(key.protocol) != self.static_key(&key)) {
            let (host, port, one_to_one) = (owner.host, owner.port, owner.kind == Kind::OneToOne);
            report.step(|| Step::StaticMapping { host, port, external, one_to_one });
            report.step(|| Step::PortAwaited(external));
        }
    }

    pub(crate) fn report_session<T: Report>(&self, now: Instant, index: u32, session: SessionRef, report: &mut T) {
        self.report_session_of(now, self.state.mappings.get(index).protocol(), index, session, report);
    }

    fn report_session_of<T: Report>(
        &self,
        now: Instant,
        protocol: Protocol,
        index: u32,
        session: SessionRef,
        report: &mut T,
    ) {
        let (state, expires) = self.state.session_state(index, session);
        let timeouts = &self.snapshot.settings().timeouts;
        report.step(|| Step::SessionFound {
            state: (protocol == Protocol::Tcp).then(|| state_now(state, expires, now, timeouts)),
            expires_in: expires.saturating_since(now),
        });
    }

    pub(crate) fn report_flow<T: Report>(&self, now: Instant, index: u32, report: &mut T) {
        let flow = self.state.flows.get(index);
        report.step(|| Step::FlowFound {
            internal: flow.internal().into(),
            external: flow.external().into(),
            remote: flow.remote_outside().into(),
            expires_in: flow.expires().saturating_since(now),
        });
        self.report_session_of(now, flow.protocol(), 0, SessionRef::Flow(index), report);
    }
}
