//! What becomes of endpoints that gateways read in messages, and of what earlier messages
//! announced.

use alg::AlgId;
use alg::CallStep;
use alg::Known;
use alg::Want;
use alg::WantKind;

use crate::policy::gateways::CompiledGateway;
use crate::random::Random;
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
use crate::steps::opening::Ask;
use crate::steps::opening::NewMapping;
use crate::steps::opening::Source;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::verdict::GatewayRefusal;

/// Draws of a port, until the next is free, too.
const PAIR_DRAWS: usize = 8;
const REGISTRATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// RFC 3261 §16.6, Timer C.
const RINGING_MAX: Duration = Duration::from_secs(180);

/// The control session whose message is read.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) now: Instant,
    pub(crate) place: u32,
    pub(crate) key: AlgKey,
    pub(crate) alg: AlgId,
}

/// Where a session's announcement finds room.
#[derive(Clone, Copy, Default)]
pub(crate) struct Room {
    pub(crate) is_to_be_made: bool,
    kept: [Known; KNOWN_MAX],
    count: usize,
    /// The grant that gives way.
    pub(crate) replaced: Option<u32>,
}

impl Room {
    pub(crate) fn kept(&self) -> &[Known] {
        &self.kept[..self.count]
    }
}

/// What an announced endpoint leads to. `answer`: what the message names in its place.
pub(crate) enum Announcement {
    /// A registration already admits the peer for as long.
    Registered { external: Endpoint, answer: Option<Endpoint> },
    /// The message ends this registration.
    Ends { grant: Option<u32>, answer: Option<Endpoint> },
    /// `room`: `None` if a grant is known, and renewed.
    Grant { request: Request, is_pair: bool, room: Option<Room> },
}

/// What a message changes for all that a call has announced.
pub(crate) struct OfCall {
    /// The session that announced it.
    pub(crate) place: u32,
    /// Grants, and when they end from now on.
    pub(crate) ends: [Option<(u32, Instant)>; 2 * KNOWN_MAX],
}

/// The request for RTCP's port, once RTP has its own.
pub(crate) fn second_of_pair(first: &Request, external: Endpoint) -> Request {
    let wish = Wish { address: Some(external.address.to_bits()), port: external.port.wrapping_add(1) };
    Request {
        key: InternalKey { port: first.key.port.wrapping_add(1), ..first.key },
        suggested: Suggested::Only(wish),
        ..*first
    }
}

impl View<'_> {
    /// For all but calls ([`View::decide_call`]).
    pub(crate) fn decide_announcement(
        &self,
        asking: &Asking,
        want: &Want,
        gateway: &CompiledGateway,
    ) -> Result<Announcement, GatewayRefusal> {
        let Asking { now, key, alg, .. } = *asking;
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
            origin: Origin::Alg(alg),
            kind,
            // From any port.
            remotes: Remotes::one(Remote::new(key.remote.0.into(), 32, 0)),
            expires: now + lifetime.unwrap_or(gateway.timeout).max(gateway.timeout),
            requester: Requester::of_control(control.internal_port()),
            suggested: if want.needs_own_address { Suggested::Only(wish) } else { Suggested::Any },
        };
        if lifetime == Some(Duration::ZERO) {
            return Ok(self.end_of_registration(&request, (own, control.internal_port())));
        }
        if let Some(external) = self.registered_for_call(now, want, &request) {
            let answer = Some(external).filter(|external| !want.needs_own_address || external.address == own.address);
            return Ok(Announcement::Registered { external, answer });
        }
        if want.lifetime.is_some() && self.may_not_register(asking, protocol) {
            return Err(GatewayRefusal::SessionLimit);
        }
        if want.renews && !self.was_announced(asking, &request) {
            return Err(GatewayRefusal::Unreadable);
        }
        let is_known = self.find_grant(&request).is_some_and(|index| !self.state.grants.get(index).is_used());
        let room = if is_known { None } else { Some(self.find_room(asking, inside, gateway, want.replaces)?) };
        Ok(Announcement::Grant { request, is_pair: want.kind == WantKind::Pair, room })
    }

    /// A message that ends a registration still names its endpoint: for the session's port, the
    /// session's own. `None` if the port is not registered here: any endpoint would be another
    /// registration's.
    fn end_of_registration(&self, request: &Request, (own, own_port): (Endpoint, u16)) -> Announcement {
        let grant = self.find_grant(request);
        let external = grant.map(|index| self.state.grants.get(index).external());
        Announcement::Ends { grant, answer: external.or((request.key.port == own_port).then_some(own)) }
    }

    /// What a call announces stays registered, if that admits as much for as long.
    fn registered_for_call(&self, now: Instant, want: &Want, request: &Request) -> Option<Endpoint> {
        if want.kind != WantKind::Control || want.lifetime.is_some() {
            return None;
        }
        let admits = |grant: &Grant| {
            let is_same_peer = grant.remotes.as_slice().first() == request.remotes.as_slice().first();
            grant.is_registration() && grant.is_alive(now) && is_same_peer && grant.expires() >= request.expires
        };
        self.state.grants.find(&request.key, admits).map(|known| self.state.grants.get(known).external())
    }

    /// True for a connection opened from outside: the program that accepted it may be any server
    /// that repeats what it gets, so the outside could make it register anything.
    fn may_not_register(&self, asking: &Asking, protocol: Protocol) -> bool {
        let session = self.state.control_sessions.as_ref().map(|store| store.get(asking.place));
        protocol == Protocol::Tcp && session.is_some_and(|it| !it.client_is_inside)
    }

    /// Whether an announcement is still valid, or sound of the session comes from there.
    fn was_announced(&self, asking: &Asking, request: &Request) -> bool {
        let is_there = |index: u32| self.state.grants.get(index).is_alive(asking.now);
        let known = self.state.control_sessions.as_ref().map_or(&[][..], |store| store.get(asking.place).known());
        let is_in_use = || {
            let mapping = self.state.find_live_mapping(&request.key, asking.now);
            mapping.is_some_and(|mapping| self.has_real_session(asking.now, mapping))
        };
        self.find_grant(request).is_some_and(is_there)
            || known.iter().any(|known| known.inside == request.key.port) && is_in_use()
    }

    /// At most [`KNOWN_MAX`] ports for a session, and the gateway's limit for a subscriber. Those
    /// in use or ended do not count, and a pair counts once. `replaces`: the session's oldest gives
    /// way.
    pub(super) fn find_room(
        &self,
        asking: &Asking,
        inside: InternalKey,
        gateway: &CompiledGateway,
        replaces: bool,
    ) -> Result<Room, GatewayRefusal> {
        let Asking { now, place, .. } = *asking;
        let grants = &self.state.grants;
        let waits = |grant: &Grant| {
            let is_waiting = grant.origin().is_alg() && grant.is_alive(now) && !grant.is_second_of_pair();
            is_waiting && (grant.kind() == Kind::Map || !self.has_real_session(now, grant.mapping))
        };
        let of_owner = grants.of_owner(inside.realm, inside.address);
        let waiting = of_owner.filter(|index| waits(grants.get(*index))).count();
        if waiting as u32 >= gateway.expectations_per_subscriber {
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

    /// The request for the first of two ports: an even one for RTP, and the next for RTCP (RFC 3550
    /// §11). `None` if no pair was found.
    pub(crate) fn decide_pair(&self, now: Instant, request: &Request, random: &mut Random) -> Option<Request> {
        let first = Request { requester: request.requester.in_set(request.key.port, 2), ..*request };
        if self.state.find_live_mapping(&request.key, now).is_some() {
            // Its port cannot move.
            return Some(first);
        }
        let at = |external: Endpoint| Wish { address: Some(external.address.to_bits()), port: external.port & !1 };
        let ask = self.ask_for_grant(now, &request.key);
        let rtcp = InternalKey { port: request.key.port.wrapping_add(1), ..request.key };
        let place = match self.state.find_live_mapping(&rtcp, now) {
            // A phone may send RTCP first.
            Some(known) => {
                let known = self.state.mappings.get(known).external();
                let wish = at(known);
                let is_allowed = match request.suggested {
                    Suggested::Only(only) => only.address.is_none_or(|address| Some(address) == wish.address),
                    _ => true,
                };
                let mut may_have = || self.decide_granted(&ask, Suggested::Only(wish), random).is_ok();
                Some(wish).filter(|_| is_allowed && wish.port != known.port && may_have())?
            }
            None => (0..PAIR_DRAWS).find_map(|_| {
                let new = self.decide_granted(&ask, request.suggested, random).ok()?;
                let wish = at(Endpoint::new(self.snapshot.address(new.external.address), new.external.port));
                self.may_have_pair(&ask, &rtcp, &new, wish, random).then_some(wish)
            })?,
        };
        let suggested = match request.suggested {
            Suggested::Only(_) => Suggested::Only(place),
            _ => Suggested::Rather(place),
        };
        Some(Request { suggested, ..first })
    }

    fn may_have_pair(
        &self,
        ask: &Ask<'_>,
        rtcp: &InternalKey,
        new: &NewMapping,
        first: Wish,
        random: &mut Random,
    ) -> bool {
        let above = first.port.wrapping_add(1);
        if !matches!(new.external.source, Source::Static(_)) {
            return self.may_have_beside(ask.key, new, first.port) && self.may_have_beside(rtcp, new, above);
        }
        let second = Suggested::Only(Wish { port: above, ..first });
        first.port == new.external.port
            && self.decide_granted(&self.ask_for_grant(ask.now, rtcp), second, random).is_ok()
    }

    /// True if the pair's second port is kept for the same subscriber.
    pub(crate) fn has_second(&self, asking: &Asking, want: &Want, first: Endpoint) -> bool {
        let control = self.state.mappings.get(asking.key.mapping).key();
        let (protocol, port) = (Protocol::from(want.transport), want.port.wrapping_add(1));
        let second = Endpoint::new(first.address, first.port.wrapping_add(1));
        let is_it = |grant: &Grant| grant.is_alive(asking.now) && grant.external() == second;
        self.state.grants.find(&InternalKey { protocol, port, ..control }, is_it).is_some()
    }

    /// One of the sender's registrations, if a message ends all (RFC 3261 §10.2.2). Phones may
    /// share an inside address, so ports identify the sender: the one it sends from or, over TCP,
    /// listens on (`via`).
    pub(crate) fn registration_of_sender(&self, asking: &Asking, via: Option<u16>) -> Option<u32> {
        let Asking { now, place, key, alg } = *asking;
        let control = self.state.mappings.get(key.mapping).key();
        let known = self.state.control_sessions.as_ref()?.get(place).known();
        let is_of_sender = |grant: &Grant| {
            let (port, by) = (grant.key().port, grant.requester.port);
            let is_known = known.iter().any(|known| known.inside == port);
            is_known || [port, by].contains(&control.port) || Some(port) == via
        };
        let is_it = |index: &u32| {
            let grant = self.state.grants.get(*index);
            let is_its = grant.key() == InternalKey { port: grant.key().port, ..control };
            is_its && self.is_registration_at(now, grant, (key, alg)) && is_of_sender(grant)
        };
        self.state.grants_beside(control.realm, control.address).find(is_it)
    }

    /// Of this gateway, at the peer of the session.
    fn is_registration_at(&self, now: Instant, grant: &Grant, (key, alg): (AlgKey, AlgId)) -> bool {
        let registrar = Remote::new(key.remote.0.into(), 32, 0);
        let is_there = grant.remotes.as_slice().first() == Some(&registrar);
        is_there && grant.is_registration() && grant.origin() == Origin::Alg(alg) && grant.is_alive(now)
    }

    /// The grant, and its new end. A registration lives as long as the answer says (RFC 3261
    /// §10.2.4), and at least as long as an expectation.
    pub(crate) fn registered_until(&self, asking: &Asking, port: u16, seconds: u32) -> Option<(u32, Instant)> {
        let Asking { now, key, alg, .. } = *asking;
        let timeout = self.snapshot.gateways.of(alg)?.timeout;
        let inside = InternalKey { port, ..self.state.mappings.get(key.mapping).key() };
        let index = self.state.grants.find(&inside, |grant| self.is_registration_at(now, grant, (key, alg)))?;
        Some((index, now + Duration::from_secs(seconds.into()).min(REGISTRATION_MAX).max(timeout)))
    }

    /// A phone sends no sound until the callee answers, so ports wait longer after a provisional
    /// answer than without any, and after the final answer no longer than that.
    pub(crate) fn decide_step_of_call(&self, asking: &Asking, step: CallStep, request: u16) -> Option<OfCall> {
        let Asking { now, place, key, alg } = *asking;
        let timeout = self.snapshot.gateways.of(alg)?.timeout;
        let store = self.state.control_sessions.as_ref().filter(|_| step != CallStep::Asks)?;
        // Asked in one session, answered in the other.
        let is_asked = |place: &u32| store.get(*place).known().iter().any(|known| known.peer == Some(request));
        let place = Some(place).filter(is_asked).or_else(|| self.other_session(asking)).unwrap_or(place);
        let control = self.state.mappings.get(key.mapping).key();
        let peer = Remote::new(key.remote.0.into(), 32, 0);
        let end_of = |known: &Known, above: u16| {
            let is_it = |grant: &Grant| {
                let is_port = grant.external().port == known.external.wrapping_add(above);
                let is_its = is_port && (above == 0 || grant.is_second_of_pair());
                let is_there = grant.remotes.as_slice().first() == Some(&peer);
                let is_of_call = grant.kind() == Kind::Once && grant.origin() == Origin::Alg(alg);
                is_its && is_there && is_of_call && grant.is_alive(now)
            };
            let inside = InternalKey { protocol: Protocol::Udp, port: known.inside.wrapping_add(above), ..control };
            let index = self.state.grants.find(&inside, is_it)?;
            let expires = self.state.grants.get(index).expires();
            let until = match step {
                CallStep::Rings => expires.max(now + RINGING_MAX),
                _ => expires.min(now + timeout),
            };
            (until != expires).then_some((index, until))
        };
        let mut ends = [None; 2 * KNOWN_MAX];
        let announced = store.get(place).known().iter().filter(|known| known.peer == Some(request));
        for (pair, known) in ends.chunks_exact_mut(2).zip(announced) {
            (pair[0], pair[1]) = (end_of(known, 0), end_of(known, 1));
        }
        Some(OfCall { place, ends })
    }
}
