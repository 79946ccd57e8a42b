//! PPTP calls: grants whose external port is a call identifier.

use alg::Known;
use alg::Want;

use crate::shard::Ledger;
use crate::state::calls::CALL_SPACE;
use crate::state::mapping::InternalKey;
use crate::steps::announcement::Asking;
use crate::steps::call::Call;
use crate::steps::call::Connection;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::verdict::GatewayRefusal;

impl Ledger {
    pub(super) fn carry_out_call(
        &mut self,
        asking: &Asking,
        want: &Want,
        call: Call,
    ) -> Result<Option<Endpoint>, GatewayRefusal> {
        let Asking { now, place, .. } = *asking;
        let index = match call {
            Call::Ends(index) => {
                let external = self.state.grants.get(index).external();
                self.end_call(now, place, index);
                return Ok(Some(external));
            }
            Call::Known(index) => index,
            Call::New { request, room } => {
                let index = self.open_grant(now, &request).map_err(|_| GatewayRefusal::NoPort)?;
                self.count_expected(asking, &room);
                index
            }
        };
        while let Some(peer) = want.peer
            && let Some(connection) = self.view().decide_connection(asking, index, peer)
        {
            match connection.over {
                Some(over) => self.end_call(now, place, over),
                None => {
                    self.connect_call(now, index, &connection);
                    break;
                }
            }
        }
        let external = self.state.grants.get(index).external();
        self.learn(asking, Known { external: external.port, inside: want.port, peer: want.peer });
        Ok(Some(external))
    }

    fn connect_call(&mut self, now: Instant, index: u32, connection: &Connection) {
        self.forget_call(index);
        let Some(store) = self.state.control_sessions.as_mut() else { return };
        if !connection.has_room {
            return;
        }
        store.calls.insert(&connection.key, index);
        self.state.grants.get_mut(index).connect(connection.key.remote.1);
        if let Some(until) = connection.until {
            self.keep_call(now, index, until);
        }
    }

    /// Keeps the call until then, because its control session lives at least as long.
    pub(in crate::shard) fn keep_call(&mut self, now: Instant, index: u32, until: Instant) {
        if self.state.grants.get(index).expires() < until {
            self.move_end(now, index, until);
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

    /// Keeps the session's accepted calls until then, or ends all its calls.
    pub(in crate::shard) fn tend_calls(&mut self, now: Instant, place: u32, until: Option<Instant>) {
        let Some(store) = self.state.control_sessions.as_ref() else { return };
        let session = store.get(place);
        let (inside, remote, (known, count)) = (session.inside, session.key.remote.0, session.known_now());
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
