//! A packet from inside (RFC 6146 §3.5.1).
//!
//! [`View::decide_outbound`] goes through it in this order:
//!
//! ```text
//!   leave           the first session of a mapping, or an endpoint-dependent session;
//!                   filters, if they have changed; route or hairpin  ─► Leave, or the end
//!   ask             source, destination, mapping, session, filters, rules ─► Question, or the end
//!   open_dependent  if a rule asks for it ([`Question::shares`])     ─► OpenDependent, or the end
//!   open            route or hairpin, then a session that is known, a new one of a mapping, or a
//!                   new mapping                               ─► Leave, Open, Map, or the end
//! ```
//!
//! If no endpoint-dependent session can be opened and a mapping serves as well, `open` follows.

use crate::external::static_mapping::Inside;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::may_reach;
use crate::policy::rules::RuleKey;
use crate::policy::rules::Ruling;
use crate::random::Random;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::snapshot::addresses::Local;
use crate::snapshot::shared::NextHop;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::state::mapping::SessionRef;
use crate::state::session::HashedBy;
use crate::state::tcp;
use crate::steps::dependent::DependentSessionRequest;
use crate::steps::dependent::NewDependent;
use crate::steps::door::remote_port;
use crate::steps::expired::Expired;
use crate::steps::expired::Vacancy;
use crate::steps::new_mapping::Preview;
use crate::steps::opening::Ask;
use crate::steps::opening::Hints;
use crate::steps::packet_filter::Judged;
use crate::steps::report::Report;
use crate::steps::session::SessionPlace;
use crate::steps::step::Step;
use crate::steps::untranslated::LocalAnswer;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::steps::way::NoWay;
use crate::steps::way::Reason;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::ExternalEndpoint;
use crate::types::Facing;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use wire::tcp::Flags;

#[derive(Clone, Copy)]
pub(crate) struct Outbound<'a> {
    pub(crate) now: Instant,
    pub(crate) parsed: &'a Parsed,
    pub(crate) key: InternalKey,
    pub(crate) hints: Hints,
    pub(crate) found: Option<u32>,
    pub(crate) vacancy: Vacancy,
}

/// As the second half of a hairpin sees the packet.
#[inline]
pub(crate) fn translated(parsed: &Parsed, external: ExternalEndpoint) -> Parsed {
    let ExternalEndpoint { address: source, port: source_port } = external;
    // An ICMP identifier stands for both ports.
    let is_query = parsed.protocol() == Some(Protocol::Icmp);
    let destination_port = if is_query { source_port } else { parsed.destination_port };
    Parsed { source, source_port, destination_port, ..*parsed }
}

impl Outbound<'_> {
    pub(crate) fn remote(&self) -> RemoteInside {
        let port = remote_port(self.key.protocol, self.parsed.destination_port);
        RemoteInside { address: self.parsed.destination, port }
    }

    pub(crate) fn destination(&self) -> Endpoint {
        Endpoint::new(self.parsed.destination.into(), self.parsed.destination_port)
    }
}

pub(crate) struct DecidedOutbound {
    /// `None` if the filters were not asked this time. Counted however the packet ends.
    pub(crate) judged: Option<Judged>,
    pub(crate) departure: Result<Departure, Ending>,
}

/// By what exists.
#[derive(Clone, Copy)]
pub(crate) enum Leaves {
    /// Without a session if the pool does not filter.
    ByMapping { mapping: u32, session: Option<SessionRef>, way: Way },
    /// By an endpoint-dependent session.
    ByDependent { index: u32, way: Way },
}

/// What no commit for this packet changes: asked once, even if the packet is decided several times.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    /// The external address that it is sent to.
    hairpin: Option<AddressIndex>,
    target: Option<Inside>,
    pub(crate) is_balanced: bool,
    /// It answers a query that came in through basic NAT.
    answers: bool,
    pub(crate) alive: Option<u32>,
    session: Option<SessionRef>,
    pub(crate) ruling: Ruling,
    /// The remote endpoint outside of an endpoint-dependent session, unless a mapping must serve.
    shares: Option<RemoteOutside>,
}

#[derive(Clone, Copy)]
pub(crate) enum Way {
    Out(NextHop),
    /// RFC 4787 §6 REQ-9.
    Hairpin {
        made: u32,
    },
}

pub(crate) enum Departure {
    Leave(Leaves),
    Open { mapping: u32, place: SessionPlace, by: HashedBy, new: NewSession, way: Way },
    Map { mapping: Preview, new: NewSession, way: Way },
    OpenDependent { new: NewDependent, way: Way },
}

pub(crate) enum Ending {
    Local(Result<LocalAnswer, Verdict>),
    Drop(Verdict),
    Return(NoWay),
    DropByRule(Ruling),
    Pass(NextHop),
    /// End them, then decide again. For `why`, [`View::map`] decides.
    Expire {
        expired: Expired,
        way: Way,
    },
    /// A mapping of `worker` holds the port of the static mapping. `worker` ends it if it has
    /// expired; then decide again.
    Ask {
        worker: WorkerId,
        external: Endpoint,
    },
    /// `wanted`: the pool it should have come from.
    Refuse {
        key: InternalKey,
        verdict: Verdict,
        wanted: Option<PoolId>,
    },
}

impl Ending {
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Ending::Local(answer) => answer.map_or_else(|verdict| verdict, |_| Verdict::Local),
            Ending::Drop(verdict) | Ending::Refuse { verdict, .. } => *verdict,
            Ending::Return(no_way) => no_way.verdict,
            Ending::DropByRule(_) => Verdict::DroppedByRule,
            Ending::Pass(_) => Verdict::Passed,
            Ending::Expire { .. } | Ending::Ask { .. } => Verdict::NoMapping,
        }
    }
}

impl From<Verdict> for Ending {
    fn from(verdict: Verdict) -> Ending {
        Ending::Drop(verdict)
    }
}

impl From<NoWay> for Ending {
    fn from(no_way: NoWay) -> Ending {
        Ending::Return(no_way)
    }
}

impl View<'_> {
    /// `asked`: `None` at first. After a commit that lost a race or only ended something, call this
    /// again with the same value.
    #[inline]
    pub(crate) fn decide_outbound<T: Report>(
        &self,
        packet: &Outbound<'_>,
        asked: &mut Option<Question>,
        random: &mut Random,
        report: &mut T,
    ) -> DecidedOutbound {
        if asked.is_none() {
            let mut judged = None;
            if let Some(leaves) = self.leave(packet, &mut judged, report).transpose() {
                return DecidedOutbound { judged, departure: leaves.map(Departure::Leave) };
            }
        }
        self.decide_opening(packet, asked, random, report)
    }

    /// By no session found so far.
    #[cold]
    #[inline(never)]
    fn decide_opening<T: Report>(
        &self,
        packet: &Outbound<'_>,
        asked: &mut Option<Question>,
        random: &mut Random,
        report: &mut T,
    ) -> DecidedOutbound {
        let mut judged = None;
        let departure = match asked {
            Some(question) => self.open_asked(packet, question, random, report),
            None => self
                .ask(packet, &mut judged, report)
                .and_then(|question| self.open_asked(packet, asked.insert(question), random, report)),
        };
        DecidedOutbound { judged, departure }
    }

    fn open_asked<T: Report>(
        &self,
        packet: &Outbound<'_>,
        question: &mut Question,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Departure, Ending> {
        if let Some(remote_outside) = question.shares {
            let (remote_inside, action) = (packet.remote(), question.ruling.action);
            let Outbound { now, parsed, ref key, .. } = *packet;
            let ask = DependentSessionRequest { now, key, remote_inside, remote_outside, wanted: action.pool() };
            if let Some(departure) = self.open_dependent(parsed, &ask, action, random, report)? {
                return Ok(departure);
            }
            question.shares = None;
        }
        self.open(packet, question, random, report)
    }

    /// `None`: by no session that can be found before any question is asked. Perhaps by a later one
    /// of a mapping.
    #[inline]
    fn leave<T: Report>(
        &self,
        packet: &Outbound<'_>,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Option<Leaves>, Ending> {
        let Outbound { now, parsed, ref key, found, .. } = *packet;
        let remote = packet.remote();
        let is_first = |mapping: &u32| {
            self.state.mappings.get(*mapping).session_matches(remote.address, remote.port, now)
                && self.has_kept_way(*mapping, SessionRef::Inline)
        };
        match found.filter(is_first) {
            Some(mapping) if parsed.class != Class::IcmpReply => {
                self.leave_by_first(packet, mapping, judged, report).map(Some)
            }
            _ => match self.state.live_flow(key, remote, now) {
                Some(index) => self.leave_by_dependent(packet, index, judged, report).map(Some),
                None => Ok(None),
            },
        }
    }

    /// False if the remote address of the mapping's session has become one of Natrix since the
    /// session was opened, or is no longer one.
    #[inline]
    pub(crate) fn has_kept_way(&self, mapping: u32, session: SessionRef) -> bool {
        let record = self.state.mappings.get(mapping);
        let (remote, is_hairpin) = match session {
            SessionRef::Extra(slot) => {
                let session = self.state.sessions.get(slot);
                (session.remote_address, session.is_hairpin())
            }
            _ => (record.remote_address(), record.session_is_hairpin()),
        };
        match self.local_to(Facing::inside(record.realm()), remote) {
            Some(local) => is_hairpin && local.pool_address().is_some(),
            None => !is_hairpin,
        }
    }

    /// Its addresses were checked when the session was opened.
    #[inline]
    fn leave_by_first<T: Report>(
        &self,
        packet: &Outbound<'_>,
        mapping: u32,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Leaves, Ending> {
        let first = self.state.mappings.get(mapping);
        let rule_key = RuleKey::of_flow(&packet.key, packet.remote());
        self.judge_anew(first.session_generation(), rule_key, judged, report)?;
        let way = self.way_of_session(first.session_is_hairpin(), packet.parsed.destination, packet.parsed, report)?;
        self.report_mapping(packet.now, mapping, report);
        self.report_session(packet.now, mapping, SessionRef::Inline, report);
        Ok(Leaves::ByMapping { mapping, session: Some(SessionRef::Inline), way })
    }

    fn leave_by_dependent<T: Report>(
        &self,
        packet: &Outbound<'_>,
        index: u32,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Leaves, Ending> {
        let flow = self.state.flows.get(index);
        let rule_key = RuleKey::of_flow(&packet.key, flow.remote_inside());
        self.judge_anew(flow.filter_generation(), rule_key, judged, report)?;
        let way = self.way_by_dependent(packet.parsed, index, report)?;
        self.report_flow(packet.now, index, report);
        Ok(Leaves::ByDependent { index, way })
    }

    /// After the filters.
    fn way_by_dependent<T: Report>(&self, parsed: &Parsed, index: u32, report: &mut T) -> Result<Way, Ending> {
        if parsed.class == Class::IcmpReply {
            return Err(Ending::Drop(Verdict::IcmpTypeUnsupported));
        }
        let flow = self.state.flows.get(index);
        let remote_outside = flow.remote_outside().address;
        if !flow.is_hairpin() && self.local.lookup(remote_outside).is_some() {
            // It has become one since the session was opened.
            return Err(Ending::Drop(Verdict::DestinationInvalid));
        }
        self.way_of_session(flow.is_hairpin(), remote_outside, parsed, report)
    }

    /// `generation`: of the filters that the session has passed.
    #[inline]
    fn judge_anew<T: Report>(
        &self,
        generation: u8,
        key: RuleKey,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<(), Ending> {
        if generation == self.policy.filter_generation() {
            self.report_filter(true, &key, report);
            return Ok(());
        }
        Ok(judged.insert(self.judge(true, key, false, report)).check()?)
    }

    #[inline]
    fn way_of_session<T: Report>(
        &self,
        is_hairpin: bool,
        remote_outside: u32,
        parsed: &Parsed,
        report: &mut T,
    ) -> Result<Way, Ending> {
        if !is_hairpin {
            return Ok(Way::Out(self.way(Facing::OUTSIDE, remote_outside, parsed, report)?));
        }
        report.step(|| Step::Hairpin { external: Endpoint::new(parsed.destination.into(), parsed.destination_port) });
        if parsed.ttl <= 1 {
            return Err(NoWay { verdict: Verdict::TtlExpired, reason: Reason::TtlExpired }.into());
        }
        Ok(Way::Hairpin { made: 0 })
    }

    fn ask<T: Report>(
        &self,
        packet: &Outbound<'_>,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Question, Ending> {
        let Outbound { now, parsed, key, found, .. } = packet;
        let from = Facing::inside(key.realm);
        self.check_source(from, parsed.source).map_or(Ok(()), Err)?;
        let (external, protocol) = ((parsed.destination, parsed.destination_port), key.protocol);
        let target = self.snapshot.static_mappings.by_external(external.0, protocol, external.1);
        // The second half chooses the target, after the source is translated.
        let is_balanced = self.snapshot.balance.find(external.0, protocol, external.1).is_some();
        let hairpin = self.hairpin_to(packet, from, target.is_some() || is_balanced, report)?;
        let alive = found.filter(|index| self.state.is_alive(*index, *now));
        let is_answer = parsed.class == Class::IcmpReply;
        let answers = is_answer && alive.is_some() && self.static_mapping_of(key).is_some();
        let remote = packet.remote();
        let session = alive.and_then(|index| {
            let by = hashed_by(self.pool_of_mapping(index)?, protocol);
            self.state.find_session(index, remote.address, remote.port, by, *now)
        });
        let rule_key = RuleKey::of_flow(key, remote);
        // Queries from outside pass basic NAT and exempting rules but no NAPT, so no other reply is
        // due.
        let is_exempt = || session.is_none() && hairpin.is_none() && self.exempts(&rule_key);
        if is_answer && !answers && !is_exempt() {
            return Err(Ending::Drop(Verdict::IcmpTypeUnsupported));
        }
        match (alive, session) {
            (Some(mapping), Some(session @ SessionRef::Extra(_))) => {
                let generation = self.state.filter_generation(mapping, session);
                self.judge_anew(generation, rule_key, judged, report)?;
            }
            _ => judged.insert(self.judge(true, rule_key, session.is_none(), report)).check()?,
        }
        let mut question =
            Question { hairpin, target, is_balanced, answers, alive, session, ruling: Ruling::DEFAULT, shares: None };
        // Rules apply only to what is opened.
        if session.is_none() {
            question.ruling = self.rule(&rule_key, report);
            if question.ruling.action == RuleAction::Drop {
                return Err(Ending::DropByRule(question.ruling));
            }
            if hairpin.is_none() {
                question.shares = self.dependent_wanted(key, remote, alive.is_some(), question.ruling.action);
            }
        }
        Ok(question)
    }

    /// `is_static`: its endpoint belongs to a forward.
    fn hairpin_to<T: Report>(
        &self,
        packet: &Outbound<'_>,
        from: Facing,
        is_static: bool,
        report: &mut T,
    ) -> Result<Option<AddressIndex>, Ending> {
        let (parsed, protocol) = (packet.parsed, packet.key.protocol);
        let local = self.local_to(from, parsed.destination);
        let own = match local {
            Some(Local::Own(_)) => true,
            Some(Local::Broadcast(_)) => return Err(Ending::Drop(Verdict::DestinationInvalid)),
            Some(Local::OwnAndPool(_, address)) => {
                let is_owned = || self.snapshot.owner(address, protocol, parsed.destination_port).is_some();
                !is_static && (protocol == Protocol::Icmp || !is_owned())
            }
            Some(Local::Pool(_)) | None => false,
        };
        if own {
            report.step(|| Step::OwnAddress(packet.destination().address));
            return Err(Ending::Local(self.decide_local(from, parsed)));
        }
        if !may_reach(packet.key.address, parsed.destination) {
            return Err(Ending::Drop(Verdict::DestinationInvalid));
        }
        Ok(local.and_then(Local::pool_address))
    }

    fn exempts(&self, key: &RuleKey) -> bool {
        self.ruling(*key).action == RuleAction::NoTranslation
    }

    fn rule<T: Report>(&self, key: &RuleKey, report: &mut T) -> Ruling {
        let ruling = self.ruling(*key);
        if T::LISTENS
            && let Some(position) = ruling.rule.and_then(|rule| self.snapshot.rules.set().position(rule))
        {
            report.step(|| Step::Rule { position, action: ruling.action });
        }
        ruling
    }

    fn open<T: Report>(
        &self,
        packet: &Outbound<'_>,
        question: &Question,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Departure, Ending> {
        let Outbound { now, parsed, key, .. } = packet;
        let Question { alive, session, ruling, .. } = *question;
        let way = match question.hairpin {
            Some(address) => self.hairpin_way(packet, question, address, report)?,
            None => Way::Out(self.way(Facing::OUTSIDE, parsed.destination, parsed, report)?),
        };
        if let (RuleAction::NoTranslation, Way::Out(hop)) = (ruling.action, way) {
            if key.address.is_ipv6() {
                // An IPv6 host has no IPv4 address of its own.
                return Err(Ending::DropByRule(ruling));
            }
            return Err(Ending::Pass(hop));
        }
        if let Some(mapping) = alive {
            self.report_mapping(*now, mapping, report);
        }
        if let (Some(mapping), Some(session)) = (alive, session) {
            self.report_session(*now, mapping, session, report);
            return Ok(Departure::Leave(Leaves::ByMapping { mapping, session: Some(session), way }));
        }
        if parsed.fragment_offset != 0 {
            return Err(Ending::Drop(Verdict::FragmentRefused));
        }
        if key.protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) {
            // RFC 5382 §5 leaves this open. A bare ACK creates no state.
            return Err(Ending::Drop(Verdict::TcpNoSession));
        }
        match alive {
            Some(mapping) => self.open_session(packet, question, mapping, way, report),
            None => self.map_after_expired(packet, question, way, random, report),
        }
    }

    /// A packet that will find no mapping must make no state.
    fn hairpin_way<T: Report>(
        &self,
        packet: &Outbound<'_>,
        question: &Question,
        address: AddressIndex,
        report: &mut T,
    ) -> Result<Way, Ending> {
        let Outbound { now, parsed, key, .. } = packet;
        report.step(|| Step::Hairpin { external: packet.destination() });
        if parsed.ttl <= 1 {
            return Err(NoWay { verdict: Verdict::TtlExpired, reason: Reason::TtlExpired }.into());
        }
        let owner = self.snapshot.owner(address, key.protocol, parsed.destination_port);
        let here = owner.filter(|(worker, _)| *worker == self.worker).map(|(_, mapping)| mapping);
        let mapped = here.filter(|mapping| self.state.is_mapped(*mapping, *now));
        // A SYN may be held, like one from outside.
        let has_owner = owner.is_some() && (here.is_none() || mapped.is_some());
        // Only basic NAT hairpins queries (RFC 5508 §6 REQ-7).
        let is_napt_query = key.protocol == Protocol::Icmp && !question.answers;
        if question.target.is_none() && !question.is_balanced && (is_napt_query || !has_owner) {
            report.step(|| Step::NoMapping);
            return Err(Ending::Drop(Verdict::NoMapping));
        }
        // The second half checks another worker's mapping, and a session older than the forward on
        // its port. A forward may have the port of an expired mapping.
        let of_target = question.target.filter(|_| question.session.is_none()).map(|target| target.realm);
        let mapped = mapped.filter(|_| !question.is_balanced);
        let of_mapping = mapped.map(|mapping| self.state.mappings.get(mapping.0).realm());
        if of_target.into_iter().chain(of_mapping).any(|realm| !self.snapshot.may_hairpin(key.realm, realm)) {
            return Err(Ending::Drop(Verdict::HairpinRefused));
        }
        Ok(Way::Hairpin { made: 0 })
    }

    fn open_session<T: Report>(
        &self,
        packet: &Outbound<'_>,
        question: &Question,
        mapping: u32,
        way: Way,
        report: &mut T,
    ) -> Result<Departure, Ending> {
        if self.is_before_targets(mapping) {
            let wanted = question.ruling.action.pool();
            return Err(Ending::Refuse { key: packet.key, verdict: Verdict::PortsExhausted, wanted });
        }
        let protocol = packet.key.protocol;
        let compiled = self.pool_of_mapping(mapping).ok_or(Verdict::NoMapping)?;
        match self.decide_session(packet.now, mapping) {
            Ok(place) => {
                report.step(|| Step::SessionWouldBeCreated);
                let (by, mut new) = (hashed_by(compiled, protocol), self.session_from_inside(packet, question));
                // A gateway may have to read it (`Ledger::gateway_of`).
                new.has_own_timer |= self.awaits_answer_until(packet.now, mapping, packet.remote().raw()).is_some()
                    || self.gateway_of_server(mapping).is_some();
                Ok(Departure::Open { mapping, place, by, new, way })
            }
            // Without filtering, a UDP session is only bookkeeping: refusing would break programs
            // with thousands of peers. A subscriber's own limits do apply.
            Err(Verdict::SessionLimit | Verdict::SessionTableFull)
                if protocol == Protocol::Udp
                    && compiled.filtering[protocol.index()] == Filtering::EndpointIndependent =>
            {
                Ok(Departure::Leave(Leaves::ByMapping { mapping, session: None, way }))
            }
            Err(verdict) => Err(Ending::Refuse { key: packet.key, verdict, wanted: Some(compiled.id) }),
        }
    }

    fn map_after_expired<T: Report>(
        &self,
        packet: &Outbound<'_>,
        question: &Question,
        way: Way,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Departure, Ending> {
        // The other fragments of its datagram could not wait for it.
        if packet.vacancy == Vacancy::Unasked
            && !packet.parsed.is_fragment()
            && let Some((worker, external)) = self.port_is_elsewhere(&packet.key)
        {
            return Err(Ending::Ask { worker, external });
        }
        let expired = self.expired_before(packet.now, &packet.key, packet.found);
        let expired = Expired { is_vacated: packet.vacancy == Vacancy::Vacant, ..expired };
        if expired.is_any() {
            return Err(self.expire(packet, expired, question, way));
        }
        self.map(packet, question, (expired, way), random, report)
    }

    fn expire(&self, packet: &Outbound<'_>, expired: Expired, question: &Question, way: Way) -> Ending {
        let ends = self.recorded_ends(&expired);
        if ends == 0 || self.events.has_room_to_end(ends) {
            return Ending::Expire { expired, way };
        }
        let wanted = question.ruling.action.pool();
        Ending::Refuse { key: packet.key, verdict: Verdict::LogFull, wanted }
    }

    /// A new mapping, after the ends of the expired ones, if any.
    pub(crate) fn map<T: Report>(
        &self,
        packet: &Outbound<'_>,
        question: &Question,
        (expired, way): (Expired, Way),
        random: &mut Random,
        report: &mut T,
    ) -> Result<Departure, Ending> {
        let Outbound { now, key, hints, .. } = packet;
        let wanted = question.ruling.action.pool();
        let ask = Ask { now: *now, key, wanted, hints: *hints, expired };
        let mapping = self.decide_mapping(&ask, random, report);
        let mapping = mapping.map_err(|verdict| Ending::Refuse { key: *key, verdict, wanted })?;
        report.step(|| Step::SessionWouldBeCreated);
        let mut new = self.session_from_inside(packet, question);
        new.has_own_timer |= self.gateway_of_static(key).is_some();
        Ok(Departure::Map { mapping, new, way })
    }

    fn session_from_inside(&self, packet: &Outbound<'_>, question: &Question) -> NewSession {
        let RemoteInside { address: remote_address, port: remote_port } = packet.remote();
        let first = self.policy.lifetimes.first(packet.key.protocol, remote_port, Side::Inside);
        NewSession {
            remote_address,
            remote_port,
            state: first.state,
            opened_from: Side::Inside,
            hairpin: question.hairpin.is_some(),
            has_own_timer: first.has_own_timer,
            expires: packet.now + first.lifetime,
        }
    }

    /// True if its external endpoint leads to several targets: a new session might duplicate the
    /// five-tuple of a target's session, perhaps on another worker.
    fn is_before_targets(&self, mapping: u32) -> bool {
        if self.snapshot.balance.is_empty() {
            return false;
        }
        let mapping = self.state.mappings.get(mapping);
        let (protocol, external) = (mapping.protocol(), mapping.external());
        self.snapshot.balance.find(external.address.to_bits(), protocol, external.port).is_some()
    }

    pub(crate) fn owner_of_destination(&self, packet: &Outbound<'_>) -> Option<(WorkerId, MappingIndex)> {
        let address = self.local.pool_address(packet.parsed.destination)?;
        self.snapshot.owner(address, packet.key.protocol, packet.parsed.destination_port)
    }
}
