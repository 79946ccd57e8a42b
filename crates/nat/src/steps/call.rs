//! PPTP calls (RFC 2637): what their control sessions announce, and their tunnelled packets (§4).
//!
//! These have IP protocol 47, with a call identifier in place of ports. The identifier is leased
//! like a query identifier ([`CALL_SPACE`]), so the door leads to its mapping and worker. Only a
//! grant of [`Kind::Call`] lets packets through.

use alg::Want;

use crate::headers::gre;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::policy::gateways::CompiledGateway;
use crate::policy::rules::RuleKey;
use crate::state::calls::CALL_SPACE;
use crate::state::calls::CallKey;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remote;
use crate::state::grant::Remotes;
use crate::state::grant::Request;
use crate::state::grant::Requester;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::steps::announcement::Asking;
use crate::steps::announcement::Room;
use crate::steps::door::Door;
use crate::steps::inbound::Act;
use crate::steps::inbound::Inbound;
use crate::steps::outbound::Ending;
use crate::steps::outbound::Way;
use crate::steps::packet_filter::Judged;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::steps::way::NoWay;
use crate::steps::way::Reason;
use crate::time::Instant;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::verdict::GatewayRefusal;
use crate::verdict::Verdict;

/// What becomes of a call that a message names.
pub(crate) enum Call {
    Ends(u32),
    Known(u32),
    New { request: Request, room: Room },
}

/// Both ends accept a call: its packets are found by this key.
pub(crate) struct Connection {
    pub(crate) key: CallKey,
    /// Another call, whose identifier the peer reuses.
    pub(crate) over: Option<u32>,
    pub(crate) has_room: bool,
    /// When the control session ends, which the call outlives.
    pub(crate) until: Option<Instant>,
}

/// The packet as if no gateway knew call identifiers.
pub(super) fn without_call(parsed: &Parsed) -> Parsed {
    Parsed { destination_port: 0, class: Class::Other, ..*parsed }
}

impl View<'_> {
    /// `None` if an unknown call ends.
    pub(crate) fn decide_call(
        &self,
        asking: &Asking,
        want: &Want,
        gateway: &CompiledGateway,
    ) -> Result<Option<Call>, GatewayRefusal> {
        let Asking { now, key, alg, .. } = *asking;
        let control = self.state.mappings.get(key.mapping);
        let inside = InternalKey { protocol: CALL_SPACE, port: want.port, ..control.key() };
        let remote = key.remote.0;
        let known = self.state.grants.find(&inside, |grant| grant.is_call_with(remote) && grant.is_alive(now));
        if want.lifetime.is_some() {
            return Ok(known.map(Call::Ends));
        }
        if let Some(index) = known {
            return Ok(Some(Call::Known(index)));
        }
        let room = self.find_room(asking, inside, gateway, false)?;
        let request = Request {
            key: inside,
            origin: Origin::Alg(alg),
            kind: Kind::Call,
            remotes: Remotes::one(Remote::new(remote.into(), 32, 0)),
            expires: now + gateway.timeout,
            requester: Requester::default(),
            suggested: Suggested::Only(Wish { address: Some(control.external().address.to_bits()), port: 0 }),
        };
        Ok(Some(Call::New { request, room }))
    }

    /// A call that both ends accepted lives as long as its control session, any other until the
    /// timeout. `None` if gateways are off.
    pub(crate) fn decide_connection(&self, asking: &Asking, index: u32, peer: u16) -> Option<Connection> {
        let Asking { now, key: control, .. } = *asking;
        let store = self.state.control_sessions.as_ref()?;
        let grant = self.state.grants.get(index);
        let InternalKey { realm, address: inside, .. } = grant.key();
        let key = CallKey { realm, inside, remote: (control.remote.0, peer) };
        let over = self.call_of(now, &key).filter(|other| *other != index);
        let has_room = grant.call().is_some() || !store.calls.is_full();
        let session = self.control_session(now, &control);
        let until = session.map(|session| self.state.session_state(control.mapping, session).1);
        Some(Connection { key, over, has_room, until })
    }

    pub(crate) fn call_of(&self, now: Instant, key: &CallKey) -> Option<u32> {
        let store = self.state.control_sessions.as_ref()?;
        store.calls.find(key, |index| {
            let grant = self.state.grants.get(index);
            grant.is_alive(now) && grant.call() == Some(*key)
        })
    }

    fn report_call<T: Report>(&self, now: Instant, index: u32, report: &mut T) {
        let grant = self.state.grants.get(index);
        report.step(|| Step::Granted {
            origin: grant.origin(),
            kind: grant.kind(),
            allowed: true,
            expires_in: grant.expires().saturating_since(now),
        });
    }

    /// `None` without a call.
    pub(super) fn call_out<T: Report>(
        &self,
        now: Instant,
        realm: RealmId,
        parsed: &Parsed,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Option<Result<(u32, Way), Ending>> {
        let remote = (parsed.destination, parsed.destination_port);
        let index = self.call_of(now, &CallKey { realm, inside: HostNumber(parsed.source), remote })?;
        Some(self.leave_by_call(now, realm, parsed, (index, judged), report))
    }

    fn leave_by_call<T: Report>(
        &self,
        now: Instant,
        realm: RealmId,
        parsed: &Parsed,
        (index, judged): (u32, &mut Option<Judged>),
        report: &mut T,
    ) -> Result<(u32, Way), Ending> {
        self.check_source(Facing::inside(realm), parsed.source).map_or(Ok(()), Err)?;
        self.report_call(now, index, report);
        let mapping = self.state.grants.get(index).mapping;
        self.report_mapping(now, mapping, report);
        let key = RuleKey::new(realm, gre::PROTOCOL, parsed.source, 0, parsed.destination, 0);
        judged.insert(self.judge(true, key, true, report)).check()?;
        if parsed.ttl <= 1 {
            return Err(NoWay { verdict: Verdict::TtlExpired, reason: Reason::TtlExpired }.into());
        }
        let local = self.local_to(Facing::inside(realm), parsed.destination);
        if local.and_then(crate::snapshot::addresses::Local::pool_address).is_some() {
            return Ok((mapping, Way::Hairpin { made: 0 }));
        }
        let hop = self.way(Facing::OUTSIDE, parsed.destination, parsed, report)?;
        Ok((mapping, Way::Out(hop)))
    }

    /// `None` without a call.
    pub(super) fn call_in<T: Report>(
        &self,
        packet: &Inbound<'_>,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Option<Result<Act, Act>> {
        // Without gateways there are no calls, on any worker.
        self.state.control_sessions.as_ref()?;
        let mapping = match self.door(&packet.towards(CALL_SPACE), packet.now) {
            Door::Mapping(mapping) => mapping,
            Door::Elsewhere { worker, turn } => {
                return Some(Ok(Act::HandOff { worker, turn }));
            }
            _ => return None,
        };
        let key = self.state.mappings.get(mapping).key();
        let index = self.state.grants.find(&key, |grant| {
            grant.kind() == Kind::Call
                && grant.mapping == mapping
                && grant.is_alive(packet.now)
                && grant.call().is_some_and(|call| call.remote.0 == packet.parsed.source)
        })?;
        Some(self.enter_by_call(packet, index, judged, report))
    }

    fn enter_by_call<T: Report>(
        &self,
        packet: &Inbound<'_>,
        index: u32,
        judged: &mut Option<Judged>,
        report: &mut T,
    ) -> Result<Act, Act> {
        let grant = self.state.grants.get(index);
        let (mapping, key) = (grant.mapping, grant.key());
        self.check_stranger(packet)?;
        self.report_mapping(packet.now, mapping, report);
        self.report_call(packet.now, index, report);
        self.check_realm(packet, key.realm)?;
        let rule_key = RuleKey::new(key.realm, gre::PROTOCOL, key.address.0, 0, packet.parsed.source, 0);
        judged.insert(self.judge(false, rule_key, true, report)).check()?;
        let hop = self.way(Facing::inside(key.realm), key.address.0, packet.parsed, report)?;
        Ok(Act::EnterByCall { mapping, hop })
    }
}
