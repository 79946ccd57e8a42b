//! A request of a client outside to a server behind a forward, over UDP. A gateway reads it only
//! with a session. Anyone can forge clients, so the oldest unanswered one may be replaced.

use crate::state::alg::AlgKey;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::time::Instant;
use crate::types::RemoteOutside;
use crate::types::Side;
use crate::verdict::GatewayRefusal;

#[derive(Clone, Copy)]
pub(crate) struct ToServer {
    /// The gateway reads the request, which gets a session.
    pub(crate) is_read: bool,
    /// The control session of an unanswered client: it ends first.
    pub(crate) replaces: Option<u32>,
    /// One reason for each request.
    pub(crate) refusal: Option<GatewayRefusal>,
    /// If it is not read: it gets a session, but only for its answers.
    pub(crate) is_for_answers: bool,
}

impl View<'_> {
    /// `asks`: it can be a request to a server of this gateway.
    pub(crate) fn decide_to_server(&self, now: Instant, index: u32, remote: RemoteOutside, asks: bool) -> ToServer {
        let remote = remote.not_redirected();
        let is_for_answers = || self.rules_lead_away(&self.state.mappings.get(index).key(), remote);
        if !asks {
            return ToServer { is_read: false, replaces: None, refusal: None, is_for_answers: is_for_answers() };
        }
        let subscriber = self.state.mappings.get(index).subscriber;
        let store = self.state.control_sessions.as_ref();
        let store = store.filter(|store| store.has_room_for(subscriber, Side::Outside));
        let has_room = store.is_some() && self.decide_session(now, index).is_ok();
        // Nothing is replaced for a client that is refused anyway.
        let oldest = store.and_then(|store| store.client_to_replace(subscriber));
        let replaces = oldest.filter(|oldest| has_room || self.makes_room(now, *oldest, index));
        let is_read = has_room || replaces.is_some();
        let refusal = match (is_read, replaces) {
            (true, None) => None,
            (true, Some(_)) => Some(GatewayRefusal::SubscriberLimit),
            (false, _) => Some(GatewayRefusal::TableFull),
        };
        ToServer { is_read, replaces, refusal, is_for_answers: !is_read && is_for_answers() }
    }

    fn makes_room(&self, now: Instant, place: u32, index: u32) -> bool {
        let is_of_it = self.unanswered_client(now, place).is_some_and(|(mapping, _)| mapping == index);
        is_of_it && self.decide_session_instead(now, index).is_ok()
    }

    /// Its mapping and session, unless it is the mapping's first.
    pub(crate) fn unanswered_client(&self, now: Instant, place: u32) -> Option<(u32, u32)> {
        let session = self.state.control_sessions.as_ref()?.get(place);
        let key = session.key;
        let of = self.control_session(now, &key).filter(|_| session.is_of_client())?;
        match of {
            SessionRef::Extra(slot) if self.state.session_state(key.mapping, of).0 == TcpState::UNANSWERED => {
                Some((key.mapping, slot))
            }
            _ => None,
        }
    }

    pub(crate) fn control_session(&self, now: Instant, key: &AlgKey) -> Option<SessionRef> {
        let mapping = self.state.mappings.get(key.mapping);
        if !mapping.is_in_use() || AlgKey::of(key.mapping, mapping, key.remote) != *key {
            return None;
        }
        if mapping.session_matches(key.remote.0, key.remote.1, now) {
            return Some(SessionRef::Inline);
        }
        let by = hashed_by(self.pool_of_mapping(key.mapping)?, mapping.protocol());
        self.state.find_session(key.mapping, key.remote.0, key.remote.1, by, now)
    }
}
