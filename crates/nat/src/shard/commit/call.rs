//! PPTP calls: grants whose external port is a call identifier.

use alg::Known;
use alg::Want;

use crate::shard::Ledger;
use crate::shard::commit::expectation::Asking;
use crate::state::calls::CALL_SPACE;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remote;
use crate::state::grant::Remotes;
use crate::state::grant::Request;
use crate::state::grant::Requester;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::verdict::GatewayRefusal;

impl Ledger {
    /// A call that both ends accepted lives as long as its control session, any other until the
    /// timeout.
    pub(in crate::shard) fn expect_call(&mut self, asking: &Asking, want: &Want) -> Option<Endpoint> {
        let Asking { now, place, key, alg } = *asking;
        let gateway = self.shared.gateways.of(alg)?;
        let (timeout, limit) = (gateway.timeout, gateway.expectations_per_subscriber);
        let control = self.state.mappings.get(key.mapping);
        let (own, inside) = (control.external(), control.key());
        let inside = InternalKey { protocol: CALL_SPACE, port: want.port, ..inside };
        let remote = key.remote.0;
        let known = self.state.grants.find(&inside, |grant| grant.is_call_with(remote) && grant.is_alive(now));
        if want.lifetime.is_some() {
            let external = known.map(|index| self.state.grants.get(index).external());
            self.end_call(now, place, known?);
            return external;
        }
        let index = match known {
            Some(index) => index,
            None => {
                let room = match self.find_room(asking, inside, limit, false) {
                    Ok(room) => room,
                    Err(why) => {
                        self.refuse_expectation(alg, why);
                        return None;
                    }
                };
                let wish = Wish { address: Some(own.address.to_bits()), port: 0 };
                let request = Request {
                    key: inside,
                    origin: Origin::Alg(alg),
                    kind: Kind::Call,
                    remotes: Remotes::one(Remote::new(remote.into(), 32, 0)),
                    expires: now + timeout,
                    requester: Requester::default(),
                    suggested: Suggested::Only(wish),
                };
                match self.open_grant(now, &request) {
                    Ok(index) => {
                        self.make_room(asking, &room);
                        self.counters.expectations_created += 1;
                        self.counters.gateways[usize::from(alg.0)].expected += 1;
                        index
                    }
                    Err(_) => {
                        self.refuse_expectation(alg, GatewayRefusal::NoPort);
                        return None;
                    }
                }
            }
        };
        if let Some(peer) = want.peer {
            self.connect_call(asking, index, peer);
        }
        let external = self.state.grants.get(index).external();
        let call = Known { external: external.port, inside: want.port, peer: want.peer };
        self.state.control_sessions.as_mut()?.get_mut(place).learn(call);
        Some(external)
    }

    fn connect_call(&mut self, asking: &Asking, index: u32, peer: u16) {
        let Asking { now, place, key, .. } = *asking;
        self.forget_call(index);
        let grant = self.state.grants.get_mut(index);
        grant.connect(peer);
        let Some(call) = grant.call() else { return };
        // The peer reuses another call's identifier.
        while let Some(other) = self.view().call_of(now, &call) {
            self.end_call(now, place, other);
        }
        let is_known = self.state.control_sessions.as_mut().is_some_and(|store| store.calls.insert(&call, index));
        if !is_known {
            self.state.grants.get_mut(index).disconnect();
            return;
        }
        if let Some(session) = self.view().control_session(now, &key) {
            let (_, expires) = self.state.session_state(key.mapping, session);
            self.keep_call(now, index, expires);
        }
    }

    /// Keeps the call until then, because its control session lives at least as long.
    pub(in crate::shard) fn keep_call(&mut self, now: Instant, index: u32, until: Instant) {
        if self.state.grants.get(index).expires() < until {
            self.state.grants.get_mut(index).set_expires(until);
            self.keep_until(index, until);
            self.note_grant(now, index);
        }
    }

    fn end_call(&mut self, now: Instant, place: u32, index: u32) {
        let inside = self.state.grants.get(index).key().port;
        self.end_grant(now, index);
        if let Some(store) = self.state.control_sessions.as_mut() {
            store.get_mut(place).forget(|known| known.inside != inside);
        }
    }

    /// Packets from inside do not find it any more.
    pub(in crate::shard) fn forget_call(&mut self, index: u32) {
        if let Some(call) = self.state.grants.get(index).call()
            && let Some(store) = self.state.control_sessions.as_mut()
        {
            store.calls.remove(&call, index);
        }
    }

    pub(in crate::shard) fn tend_calls(&mut self, now: Instant, place: u32, until: Option<Instant>) {
        let Some(store) = self.state.control_sessions.as_ref() else { return };
        let session = store.get(place);
        let (remote, mut known) = (session.key.remote.0, [Known::default(); crate::state::alg::KNOWN_MAX]);
        let count = session.known().len();
        known[..count].copy_from_slice(session.known());
        let inside = session.inside;
        for Known { inside: port, peer, .. } in &known[..count] {
            let inside = InternalKey { protocol: CALL_SPACE, port: *port, ..inside };
            let found = self.state.grants.find(&inside, |grant| grant.is_call_with(remote));
            match (found, until) {
                (Some(index), Some(until)) if peer.is_some() => self.keep_call(now, index, until),
                (Some(index), None) => self.end_call(now, place, index),
                _ => {}
            }
        }
    }
}
