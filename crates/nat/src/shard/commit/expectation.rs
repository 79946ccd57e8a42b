//! Expectations of gateways: grants with another origin, after a decision of
//! [`crate::steps::announcement`].

use alg::CallStep;
use alg::Known;
use alg::Want;
use alg::WantKind;

use crate::policy::gateways::CompiledGateway;
use crate::shard::Ledger;
use crate::state::grant::Grant;
use crate::state::grant::Origin;
use crate::state::grant::Request;
use crate::state::mapping::SessionRef;
use crate::steps::announcement::Announcement;
use crate::steps::announcement::Asking;
use crate::steps::announcement::Room;
use crate::steps::announcement::second_of_pair;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Side;
use crate::verdict::GatewayRefusal;

pub(in crate::shard) struct Reader<'a> {
    pub(in crate::shard) gateway: &'a CompiledGateway,
    pub(in crate::shard) client_is_inside: bool,
    /// Between a registered endpoint and its registrar, not on servers' ports.
    pub(in crate::shard) is_of_registration: bool,
    /// The server opened it; reading begins with the client's next request.
    pub(in crate::shard) awaits_request: bool,
}

impl Ledger {
    /// Reserves what a message announces; of a pair, returns the first.
    pub(in crate::shard) fn expect(&mut self, asking: &Asking, want: &Want) -> Option<Endpoint> {
        let (view, gateway) = (self.view(), self.shared.gateways.of(asking.alg)?);
        let answer = if want.kind == WantKind::Call {
            match view.decide_call(asking, want, gateway) {
                Ok(call) => self.commit_call(asking, want, call?),
                Err(why) => Err(why),
            }
        } else {
            match view.decide_announcement(asking, want, gateway) {
                Ok(announcement) => self.commit_announcement(asking, want, announcement),
                Err(why) => Err(why),
            }
        };
        if let Err(why) = answer {
            self.counters.expectations_refused += 1;
            self.counters.gateways[usize::from(asking.alg.0)].refuse(why);
        }
        answer.ok().flatten()
    }

    fn commit_announcement(
        &mut self,
        asking: &Asking,
        want: &Want,
        announcement: Announcement,
    ) -> Result<Option<Endpoint>, GatewayRefusal> {
        let (external, answer) = match announcement {
            Announcement::Ends { grant, answer } => {
                if let Some(index) = grant {
                    self.state.grants.get_mut(index).set_expires(Instant::ORIGIN);
                }
                return Ok(answer);
            }
            Announcement::Registered { external, answer } => (external, answer),
            Announcement::Grant { request, is_pair, room } => {
                let opened = match is_pair {
                    true => self.open_pair(asking.now, &request),
                    false => self.open_grant(asking.now, &request).ok(),
                };
                let external = self.state.grants.get(opened.ok_or(GatewayRefusal::NoPort)?).external();
                if let Some(room) = room {
                    self.count_expected(asking, &room);
                }
                (external, Some(external))
            }
        };
        self.learn(asking, Known { external: external.port, inside: want.port, peer: None });
        Ok(answer)
    }

    /// RTP and RTCP. Without a second port, RTP keeps its own: sound without reports is better than
    /// none. So nothing is undone, even if another worker takes the second port meanwhile.
    pub(in crate::shard) fn open_pair(&mut self, now: Instant, request: &Request) -> Option<u32> {
        let (view, random) = self.deciding();
        let pair = view.decide_pair(now, request, random);
        if let Some(first) = pair
            && let Ok(index) = self.open_grant(now, &first)
        {
            let external = self.state.grants.get(index).external();
            if external.port.is_multiple_of(2) {
                let _ = self.open_grant(now, &second_of_pair(&first, external));
            }
            return Some(index);
        }
        self.open_grant(now, request).ok()
    }

    pub(super) fn count_expected(&mut self, asking: &Asking, room: &Room) {
        self.counters.expectations_created += 1;
        self.counters.gateways[usize::from(asking.alg.0)].expected += 1;
        let Some(store) = self.state.control_sessions.as_mut().filter(|_| room.is_to_be_made) else { return };
        store.get_mut(asking.place).forget(|known| room.kept().contains(known));
        if let Some(oldest) = room.replaced {
            self.state.grants.get_mut(oldest).set_expires(Instant::ORIGIN);
        }
    }

    pub(in crate::shard) fn learn(&mut self, asking: &Asking, known: Known) {
        if let Some(store) = self.state.control_sessions.as_mut() {
            store.get_mut(asking.place).learn(known);
        }
    }

    pub(in crate::shard) fn end_registrations(&mut self, asking: &Asking, via: Option<u16>) {
        while let Some(index) = self.view().registration_of_sender(asking, via) {
            self.state.grants.get_mut(index).set_expires(Instant::ORIGIN);
        }
    }

    pub(in crate::shard) fn note_call(&mut self, asking: &Asking, step: CallStep, request: u16) {
        let Some(call) = self.view().decide_step_of_call(asking, step, request) else { return };
        if let Some(store) = self.state.control_sessions.as_mut().filter(|_| step == CallStep::Ends) {
            store.get_mut(call.place).forget_request(request);
        }
        for (index, until) in call.ends.into_iter().flatten() {
            self.move_end(asking.now, index, until);
        }
    }

    pub(in crate::shard) fn note_registered(&mut self, asking: &Asking, port: u16, seconds: u32) {
        if let Some((index, until)) = self.view().registered_until(asking, port, seconds) {
            self.move_end(asking.now, index, until);
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
}
