//! Expectations of gateways: grants with another origin.

use alg::AlgId;
use alg::CallStep;
use alg::Known;
use alg::Want;
use alg::WantKind;

use crate::policy::gateways::CompiledGateway;
use crate::shard::Ledger;
use crate::state::alg::AlgKey;
use crate::state::alg::KNOWN_MAX;
use crate::state::grant::Grant;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remote;
use crate::state::grant::Remotes;
use crate::state::grant::Request;
use crate::state::grant::Requester;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::state::mapping::SessionRef;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::GatewayRefusal;

const PAIR_ATTEMPTS: u16 = 8;
const REGISTRATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// RFC 3261 §16.6, Timer C.
const RINGING_MAX: Duration = Duration::from_secs(180);

pub(in crate::shard) struct Reader<'a> {
    pub(in crate::shard) gateway: &'a CompiledGateway,
    pub(in crate::shard) client_is_inside: bool,
    /// Between a registered endpoint and its registrar, not on servers' ports.
    pub(in crate::shard) is_of_registration: bool,
    /// The server opened it; reading begins with the client's next request.
    pub(in crate::shard) awaits_request: bool,
}

#[derive(Clone, Copy)]
pub(in crate::shard) struct Asking {
    pub(in crate::shard) now: Instant,
    pub(in crate::shard) place: u32,
    pub(in crate::shard) key: AlgKey,
    pub(in crate::shard) alg: AlgId,
}

/// Where a session's announcement finds room.
#[derive(Clone, Copy, Default)]
pub(in crate::shard) struct Room {
    is_to_be_made: bool,
    kept: [Known; KNOWN_MAX],
    count: usize,
    /// The grant that gives way.
    replaced: Option<u32>,
}

impl Ledger {
    /// Reserves what a message announces; of a pair, returns the first.
    pub(in crate::shard) fn expect(&mut self, asking: &Asking, want: &Want) -> Option<Endpoint> {
        let Asking { now, key, alg, .. } = *asking;
        if want.kind == WantKind::Call {
            return self.expect_call(asking, want);
        }
        let gateway = self.shared.gateways.of(alg)?;
        let (timeout, limit) = (gateway.timeout, gateway.expectations_per_subscriber);
        let origin = Origin::Alg(alg);
        let control = self.state.mappings.get(key.mapping);
        let own = control.external();
        let protocol = Protocol::from(want.transport);
        let inside = InternalKey { protocol, port: want.port, ..control.key() };
        // A registered endpoint must admit every caller. Over UDP there is no connection to count.
        let is_lasting = want.lifetime.is_some() || protocol != Protocol::Tcp;
        let kind = if want.kind == WantKind::Control && is_lasting { Kind::Map } else { Kind::Once };
        let lifetime = want.lifetime.map(|seconds| Duration::from_secs(seconds.into()).min(REGISTRATION_MAX));
        let wish = Wish { address: Some(own.address.to_bits()), port: 0 };
        let request = Request {
            key: inside,
            origin,
            kind,
            // From any port.
            remotes: Remotes::one(Remote::new(key.remote.0.into(), 32, 0)),
            expires: now + lifetime.unwrap_or(timeout).max(timeout),
            requester: Requester::of_control(control.internal_port()),
            suggested: if want.needs_own_address { Suggested::Only(wish) } else { Suggested::Any },
        };
        if lifetime == Some(Duration::ZERO) {
            return self.end_expected(&request, (own, request.requester.port));
        }
        // What a call announces stays registered, if that admits as much for as long.
        let admits = |grant: &Grant| {
            let is_registration = grant.kind() == Kind::Map && grant.origin().is_alg() && grant.is_alive(now);
            let is_same_peer = grant.remotes.as_slice().first() == request.remotes.as_slice().first();
            is_registration && is_same_peer && grant.expires() >= request.expires
        };
        let is_of_call = want.kind == WantKind::Control && want.lifetime.is_none();
        if let Some(known) = self.state.grants.find(&inside, admits).filter(|_| is_of_call) {
            let external = self.state.grants.get(known).external();
            let known = Known { external: external.port, inside: want.port, peer: None };
            self.state.control_sessions.as_mut()?.get_mut(asking.place).learn(known);
            return Some(external).filter(|external| !want.needs_own_address || external.address == own.address);
        }
        let is_known = self.view().find_grant(&request).is_some_and(|index| !self.state.grants.get(index).is_used());
        if want.lifetime.is_some() && self.may_not_register(asking, protocol) {
            self.refuse_expectation(alg, GatewayRefusal::SessionLimit);
            return None;
        }
        if want.renews && !self.was_announced(asking, &request) {
            self.refuse_expectation(alg, GatewayRefusal::Unreadable);
            return None;
        }
        let found = if is_known { Ok(Room::default()) } else { self.find_room(asking, inside, limit, want.replaces) };
        let room = match found {
            Ok(room) => room,
            Err(why) => {
                self.refuse_expectation(alg, why);
                return None;
            }
        };
        let external = match want.kind {
            WantKind::Pair => self.expect_pair(now, &request),
            _ => self.open_grant(now, &request).ok().map(|index| self.state.grants.get(index).external()),
        };
        match external {
            Some(external) => {
                self.counters.expectations_created += u64::from(!is_known);
                self.counters.gateways[usize::from(alg.0)].expected += u64::from(!is_known);
                self.make_room(asking, &room);
                let known = Known { external: external.port, inside: want.port, peer: None };
                let store = self.state.control_sessions.as_mut()?;
                store.get_mut(asking.place).learn(known);
            }
            None => self.refuse_expectation(alg, GatewayRefusal::NoPort),
        }
        external
    }

    /// Whether an announcement is still valid, or sound of the session comes from there.
    fn was_announced(&self, asking: &Asking, request: &Request) -> bool {
        let is_there = |index: u32| self.state.grants.get(index).is_alive(asking.now);
        let known = self.state.control_sessions.as_ref().map_or(&[][..], |store| store.get(asking.place).known());
        let is_in_use = || {
            let mapping = self.state.find_live_mapping(&request.key, asking.now);
            mapping.is_some_and(|mapping| self.view().has_real_session(asking.now, mapping))
        };
        self.view().find_grant(request).is_some_and(is_there)
            || known.iter().any(|known| known.inside == request.key.port) && is_in_use()
    }

    /// True for a connection opened from outside: the program that accepted it may be any server
    /// that repeats what it gets, so the outside could make it register anything.
    fn may_not_register(&self, asking: &Asking, protocol: Protocol) -> bool {
        let session = self.state.control_sessions.as_ref().map(|store| store.get(asking.place));
        protocol == Protocol::Tcp && session.is_some_and(|it| !it.client_is_inside)
    }

    pub(in crate::shard) fn refuse_expectation(&mut self, alg: AlgId, why: GatewayRefusal) {
        self.counters.expectations_refused += 1;
        self.counters.gateways[usize::from(alg.0)].refuse(why);
    }

    /// At most [`KNOWN_MAX`] ports for a session and `limit` for a subscriber. Those in use or
    /// ended do not count, and a pair counts once. `replaces`: the session's oldest gives way.
    pub(in crate::shard) fn find_room(
        &self,
        asking: &Asking,
        inside: InternalKey,
        limit: u32,
        replaces: bool,
    ) -> Result<Room, GatewayRefusal> {
        let Asking { now, place, .. } = *asking;
        let view = self.view();
        let grants = &self.state.grants;
        let waits = |grant: &Grant| {
            let is_waiting = grant.origin().is_alg() && grant.is_alive(now) && !grant.is_second_of_pair();
            is_waiting && (grant.kind() == Kind::Map || !view.has_real_session(now, grant.mapping))
        };
        let of_owner = grants.of_owner(inside.realm, inside.address);
        if of_owner.filter(|index| waits(grants.get(*index))).count() as u32 >= limit {
            return Err(GatewayRefusal::SubscriberLimit);
        }
        let store = self.state.control_sessions.as_ref().ok_or(GatewayRefusal::SessionLimit)?;
        let known = store.get(place).known();
        if known.len() < KNOWN_MAX {
            return Ok(Room::default());
        }
        let of_port = |port: u16| {
            let key = |protocol: &Protocol| InternalKey { port, protocol: *protocol, ..inside };
            Protocol::ALL.iter().find_map(|protocol| grants.find(&key(protocol), waits))
        };
        let mut room = Room { is_to_be_made: true, ..Room::default() };
        for known in known.iter().filter(|known| of_port(known.inside).is_some()) {
            room.kept[room.count] = *known;
            room.count += 1;
        }
        if room.count == KNOWN_MAX {
            // In the order of announcement.
            let oldest = of_port(room.kept[0].inside).filter(|_| replaces);
            room.replaced = Some(oldest.ok_or(GatewayRefusal::SessionLimit)?);
            room.kept.rotate_left(1);
            room.count -= 1;
        }
        Ok(room)
    }

    /// Call it when the new announcement has its port.
    pub(in crate::shard) fn make_room(&mut self, asking: &Asking, room: &Room) {
        let Some(store) = self.state.control_sessions.as_mut().filter(|_| room.is_to_be_made) else { return };
        let kept = &room.kept[..room.count];
        store.get_mut(asking.place).forget(|known| kept.contains(known));
        if let Some(oldest) = room.replaced {
            self.state.grants.get_mut(oldest).set_expires(Instant::ORIGIN);
        }
    }

    /// A message that ends a registration still names its endpoint: for the session's port, the
    /// session's own. `None` if the port is not registered here: any endpoint would be another
    /// registration's.
    fn end_expected(&mut self, request: &Request, (own, own_port): (Endpoint, u16)) -> Option<Endpoint> {
        let found = self.view().find_grant(request);
        let external = found.map(|index| self.state.grants.get(index).external());
        if let Some(index) = found {
            self.state.grants.get_mut(index).set_expires(Instant::ORIGIN);
        }
        external.or((request.key.port == own_port).then_some(own))
    }

    /// RFC 3261 §10.2.2. Phones may share an inside address, so ports identify the sender: the one
    /// it sends from or, over TCP, listens on (`via`).
    pub(in crate::shard) fn end_registrations(&mut self, asking: &Asking, via: Option<u16>) {
        let Asking { now, place, key, alg } = *asking;
        let control = self.state.mappings.get(key.mapping).key();
        let registrar = Remote::new(key.remote.0.into(), 32, 0);
        loop {
            let Some(store) = self.state.control_sessions.as_ref() else { return };
            let known = store.get(place).known();
            let is_of_sender = |grant: &Grant| {
                let (port, by) = (grant.key().port, grant.requester.port);
                let is_known = known.iter().any(|known| known.inside == port);
                is_known || [port, by].contains(&control.port) || Some(port) == via
            };
            let is_ended = |grant: &Grant| {
                let is_registration = grant.kind() == Kind::Map && grant.origin() == Origin::Alg(alg);
                let is_its = grant.key() == InternalKey { port: grant.key().port, ..control };
                let is_there = grant.remotes.as_slice().first() == Some(&registrar);
                is_registration && is_its && is_there && is_of_sender(grant) && grant.is_alive(now)
            };
            let of_owner = || self.state.grants_beside(control.realm, control.address);
            let ended = of_owner().find(|index| is_ended(self.state.grants.get(*index)));
            let Some(index) = ended else { return };
            self.state.grants.get_mut(index).set_expires(Instant::ORIGIN);
        }
    }

    /// An even port for RTP and the next for RTCP (RFC 3550 §11), or any port for RTP: sound
    /// without reports is better than none.
    fn expect_pair(&mut self, now: Instant, request: &Request) -> Option<Endpoint> {
        let above = |request: &Request, external: Endpoint| Request {
            key: InternalKey { port: request.key.port.wrapping_add(1), ..request.key },
            suggested: Suggested::Only(Wish {
                address: Some(external.address.to_bits()),
                port: external.port.wrapping_add(1),
            }),
            ..*request
        };
        let single = *request;
        let rtcp = InternalKey { port: request.key.port.wrapping_add(1), ..request.key };
        let mut request = Request { requester: request.requester.in_set(request.key.port, 2), ..*request };
        let (suggest, only) = match single.suggested {
            Suggested::Only(wish) => (Suggested::Only as fn(Wish) -> Suggested, wish.address),
            _ => (Suggested::Rather as fn(Wish) -> Suggested, None),
        };
        // A phone may send RTCP first.
        let known = self.state.find_live_mapping(&rtcp, now).map(|index| self.state.mappings.get(index).external());
        if let Some(external) = known.filter(|known| only.is_none_or(|address| address == known.address.to_bits())) {
            let wish = Wish { address: Some(external.address.to_bits()), port: external.port & !1 };
            request.suggested = suggest(wish);
        }
        let mut last = None;
        for attempt in 0..PAIR_ATTEMPTS {
            if let Ok(first) = self.open_grant(now, &request) {
                let external = self.state.grants.get(first).external();
                if external.port.is_multiple_of(2) && self.open_grant(now, &above(&request, external)).is_ok() {
                    return Some(external);
                }
                let is_in_use = self.view().has_real_session(now, self.state.grants.get(first).mapping);
                if is_in_use || self.view().shares_mapping(now, first) {
                    // The mapping is in use, so the port cannot move.
                    return Some(external);
                }
                self.withdraw_grant(now, first);
                last = Some(external);
            }
            let Some(external) = last else {
                if request.suggested == single.suggested {
                    return None;
                }
                break;
            };
            let port = (external.port & !1).wrapping_add(2 * attempt);
            request.suggested = suggest(Wish { address: Some(external.address.to_bits()), port });
        }
        self.open_grant(now, &single).ok().map(|index| self.state.grants.get(index).external())
    }

    /// True if the pair's second port is kept for the same subscriber.
    pub(in crate::shard) fn has_second(&self, asking: &Asking, want: &Want, first: Endpoint) -> bool {
        let control = self.state.mappings.get(asking.key.mapping).key();
        let (protocol, port) = (Protocol::from(want.transport), want.port.wrapping_add(1));
        let second = Endpoint::new(first.address, first.port.wrapping_add(1));
        let is_it = |grant: &Grant| grant.is_alive(asking.now) && grant.external() == second;
        self.state.grants.find(&InternalKey { protocol, port, ..control }, is_it).is_some()
    }

    /// Ends a grant of which no client was notified, with its mapping.
    fn withdraw_grant(&mut self, now: Instant, index: u32) {
        let mapping = self.state.grants.get(index).mapping;
        self.end_grant(now, index);
        if mapping != 0 && self.may_end(mapping) {
            self.end_mapping_with(now, mapping, Some((Duration::ZERO, crate::event::Cause::RolledBack)));
        }
    }

    /// The remote endpoint and the client's side; `None` for flows, which no gateway reads.
    pub(in crate::shard) fn remote_of(&self, index: u32, session: SessionRef) -> Option<((u32, u16), Side)> {
        let mapping = self.state.mappings.get(index);
        match session {
            SessionRef::Inline => {
                Some(((mapping.remote_address(), mapping.remote_port()), mapping.session_opened_from()))
            }
            SessionRef::Extra(slot) => {
                let session = self.state.sessions.get(slot);
                Some(((session.remote_address, session.remote_port), session.opened_from()))
            }
            SessionRef::Flow(_) => None,
        }
    }

    /// Found by the server's port, by the registration the session leads to, or because a server
    /// inside opened it for a client that found no place. `known`: its record, if it is read
    /// already.
    pub(in crate::shard) fn gateway_of(
        &self,
        now: Instant,
        index: u32,
        session: SessionRef,
        known: Option<u32>,
    ) -> Option<Reader<'_>> {
        let mapping = self.state.mappings.get(index);
        let (remote, side) = self.remote_of(index, session)?;
        let client_is_inside = side == Side::Inside;
        // An IPv6 host has no IPv4 address to rewrite.
        if crate::types::is_host_number(mapping.key().address) {
            return None;
        }
        let view = self.view();
        let port = if client_is_inside { remote.1 } else { mapping.internal_port() };
        if self.policy.lifetimes.is_served(mapping.protocol(), port) {
            let pool = view.pool_of_mapping(index)?.id;
            let class = view.class_now(mapping.subscriber);
            if let Some(gateway) = self.shared.gateways.find(mapping.protocol(), port, pool, class) {
                let is_of_registration = false;
                return Some(Reader { gateway, client_is_inside, is_of_registration, awaits_request: false });
            }
        }
        // Sessions on the long way have a mark.
        if session == SessionRef::Inline && !mapping.has_own_timer() {
            return None;
        }
        // Reading goes on even if the registration ends.
        let store = self.state.control_sessions.as_ref()?;
        let begun = known.map(|place| store.get(place)).filter(|session| session.is_of_registration);
        let alg = match begun {
            Some(session) => session.alg,
            None => match view.registration(now, index, remote).map(Grant::origin) {
                Some(Origin::Alg(alg)) => alg,
                Some(Origin::Pcp | Origin::NatPmp) => return None,
                None => {
                    let gateway = view.gateway_of_server(index).filter(|_| client_is_inside)?;
                    let (client_is_inside, is_of_registration) = (false, false);
                    return Some(Reader { gateway, client_is_inside, is_of_registration, awaits_request: true });
                }
            },
        };
        let gateway = self.shared.gateways.of(alg).filter(|_| view.gateway_serving(alg, index).is_some())?;
        Some(Reader { gateway, client_is_inside, is_of_registration: true, awaits_request: false })
    }

    pub(in crate::shard) fn note_announced(&mut self, asking: &Asking, external: u16, inside: u16, request: u16) {
        if let Some(store) = self.state.control_sessions.as_mut() {
            store.get_mut(asking.place).learn(Known { external, inside, peer: Some(request) });
        }
    }

    /// A phone sends no sound until the callee answers, so ports wait longer after a provisional
    /// answer than without any, and after the final answer no longer than that.
    pub(in crate::shard) fn note_call(&mut self, asking: &Asking, step: CallStep, request: u16) {
        let Asking { now, place, key, alg } = *asking;
        let Some(timeout) = self.shared.gateways.of(alg).map(|gateway| gateway.timeout) else { return };
        let other = self.view().other_session(asking);
        let Some(store) = self.state.control_sessions.as_mut().filter(|_| step != CallStep::Asks) else { return };
        // Asked in one session, answered in the other.
        let is_asked = |place: &u32| store.get(*place).known().iter().any(|known| known.peer == Some(request));
        let place = Some(place).filter(is_asked).or(other).unwrap_or(place);
        let (known, len) = store.get(place).known_now();
        let control = self.state.mappings.get(key.mapping).key();
        let peer = Remote::new(key.remote.0.into(), 32, 0);
        if step == CallStep::Ends {
            store.get_mut(place).forget_request(request);
        }
        let announced = known[..len].iter().filter(|known| known.peer == Some(request));
        for (known, above) in announced.flat_map(|known| [(known, 0), (known, 1)]) {
            let is_it = |grant: &Grant| {
                let is_port = grant.external().port == known.external.wrapping_add(above);
                let is_its = is_port && (above == 0 || grant.is_second_of_pair());
                let is_there = grant.remotes.as_slice().first() == Some(&peer);
                let is_of_call = grant.kind() == Kind::Once && grant.origin() == Origin::Alg(alg);
                is_its && is_there && is_of_call && grant.is_alive(now)
            };
            let inside = InternalKey { protocol: Protocol::Udp, port: known.inside.wrapping_add(above), ..control };
            let Some(index) = self.state.grants.find(&inside, is_it) else { continue };
            let expires = self.state.grants.get(index).expires();
            let until = match step {
                CallStep::Rings => expires.max(now + RINGING_MAX),
                _ => expires.min(now + timeout),
            };
            if until != expires {
                self.state.grants.get_mut(index).set_expires(until);
                self.keep_until(index, until);
                self.note_grant(now, index);
            }
        }
    }

    /// A registration lives as long as the answer says (RFC 3261 §10.2.4), and at least as long as
    /// an expectation.
    pub(in crate::shard) fn note_registered(&mut self, asking: &Asking, port: u16, seconds: u32) {
        let Asking { now, key, alg, .. } = *asking;
        let Some(timeout) = self.shared.gateways.of(alg).map(|gateway| gateway.timeout) else { return };
        let inside = InternalKey { port, ..self.state.mappings.get(key.mapping).key() };
        let registrar = Remote::new(key.remote.0.into(), 32, 0);
        let is_it = |grant: &Grant| {
            let is_there = grant.remotes.as_slice().first() == Some(&registrar);
            is_there && grant.is_registration() && grant.origin() == Origin::Alg(alg) && grant.is_alive(now)
        };
        let Some(index) = self.state.grants.find(&inside, is_it) else { return };
        let until = now + Duration::from_secs(seconds.into()).min(REGISTRATION_MAX).max(timeout);
        self.state.grants.get_mut(index).set_expires(until);
        self.keep_until(index, until);
        self.note_grant(now, index);
    }
}
