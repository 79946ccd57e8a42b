//! Forgets control sessions that have ended, with their calls.

use alg::Alg;
use alg::AlgId;

use crate::shard::Ledger;
use crate::state::mapping::InternalKey;
use crate::state::tcp::TcpState;
use crate::time::Instant;
use crate::types::Protocol;
use crate::upkeep::walk::Pace;

impl Ledger {
    pub(in crate::shard) fn sweep_gateways(&mut self, now: Instant, elapsed_micros: u64) {
        let Some(store) = self.state.control_sessions.as_mut().filter(|store| !store.is_empty()) else { return };
        let due = Pace::SLOW.due(store.places(), elapsed_micros);
        for index in store.walk(due) {
            if self.state.control_sessions.as_ref().is_some_and(|store| store.is_in_use(index)) {
                self.forget_if_over(now, index);
            }
        }
    }

    fn forget_if_over(&mut self, now: Instant, index: u32) {
        let Some(store) = self.state.control_sessions.as_ref() else { return };
        let session = store.get(index);
        let (key, is_read) = (session.key, session.is_read());
        let has_calls = session.alg == AlgId::PPTP && !session.known().is_empty();
        let found = self.view().control_session(now, &key);
        if has_calls {
            let goes_on = found.map(|session| self.state.session_state(key.mapping, session));
            let goes_on = goes_on.filter(|(state, _)| is_read && state.is_established());
            self.tend_calls(now, index, goes_on.map(|(_, expires)| expires));
        }
        let is_over = |session| self.state.session_state(key.mapping, session).0 == TcpState::Closing;
        if found.is_none_or(is_over) {
            self.end_media_of(now, index);
        }
        if let Some(session) = found {
            self.keep_while_data_lives(now, index, session);
        } else if let Some(store) = self.state.control_sessions.as_mut() {
            store.remove(index);
        }
    }
    /// Packets from outside no longer keep what a closed control session has announced.
    fn end_media_of(&mut self, now: Instant, index: u32) {
        let Some(store) = self.state.control_sessions.as_ref() else { return };
        let session = store.get(index);
        if !session.alg.alg().is_some_and(Alg::ends_media) {
            return;
        }
        let (of_control, remote) = (session.inside, session.key.remote.0);
        let (known, len) = session.known_now();
        for (known, above) in known[..len].iter().flat_map(|known| [(known, 0), (known, 1)]) {
            let (inside, external) = (known.inside.wrapping_add(above), known.external.wrapping_add(above));
            let inside = InternalKey { protocol: Protocol::Udp, port: inside, ..of_control };
            let found = self.state.find_live_mapping(&inside, now);
            if let Some(mapping) = found.filter(|found| self.state.mappings.get(*found).external_port() == external) {
                self.end_media(now, mapping, remote);
            }
        }
    }
}
