//! PEER (RFC 6887 §12).

use pcp::Code;
use pcp::Peer;

use super::Asked;
use super::Done;
use super::Fault;
use super::map::belongs_to_another;
use super::map::external_of;
use super::map::protocol_of;
use super::map::wish_of;
use super::seconds;
use crate::headers::parse::may_reach;
use crate::policy::rules::RuleKey;
use crate::settings::RuleAction;
use crate::shard::Ledger;
use crate::state::grant::Grant;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remote;
use crate::state::grant::Remotes;
use crate::state::grant::Request;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::state::mapping::SessionRef;
use crate::steps::view::hashed_by;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::RemoteInside;
use crate::types::Side;

impl Ledger {
    pub(super) fn peer(&mut self, asked: &Asked<'_>, peer: &Peer) -> Result<Done, Option<Fault>> {
        self.serve_peer(asked, peer).map_err(Some)
    }

    fn serve_peer(&mut self, asked: &Asked<'_>, peer: &Peer) -> Result<Done, Fault> {
        let map = &peer.map;
        let protocol = match map.protocol {
            0 => return Err(Code::MalformedRequest.into()),
            number => protocol_of(number).ok_or(Code::UnsupportedProtocol)?,
        };
        let remote = self.view().remote_of(asked.subject, &peer.remote_address, 128).map(|(remote, _)| remote);
        let remote = remote.filter(|remote| may_reach(asked.subject, *remote));
        let (Some(remote), false, false) = (remote, peer.remote_port == 0, map.internal_port == 0) else {
            return Err(Code::MalformedRequest.into());
        };
        let remote = (remote, peer.remote_port);
        let key = asked.key(protocol, map.internal_port);
        self.check_peer(&key, remote)?;
        let is_mapped = self.state.find_live_mapping(&key, asked.now).is_some();
        let wish = wish_of(map);
        let suggested = match wish {
            // An existing endpoint is returned, whatever is suggested.
            _ if is_mapped => Suggested::Any,
            Some(Wish { address: None, port: 0 }) => Suggested::Any,
            Some(wish) => Suggested::Only(wish),
            None => return Err(Code::CannotProvideExternal.into()),
        };
        let request = Request {
            key,
            origin: Origin::Pcp,
            kind: Kind::Peer,
            remotes: Remotes::one(Remote::exactly(Endpoint::new(remote.0.into(), remote.1))),
            expires: asked.now + self.view().lifetime_for(asked.lifetime),
            requester: asked.requester(map.nonce),
            suggested,
        };
        let known = self.view().find_grant(&request);
        if let Some(grant) = known.map(|known| *self.state.grants.get(known))
            && grant.is_alive(asked.now)
            && belongs_to_another(&grant, &map.nonce)
        {
            return Err(Fault::not_authorized(self.view().left_of(asked.now, &grant)));
        }
        if asked.lifetime == 0 {
            return Ok(self.stop_peer(asked, &key, known));
        }
        let made = self.open_counted(asked.now, &request)?;
        let grant = self.state.grants.get(made);
        Ok(Done { lifetime: seconds(self.view().left_of(asked.now, grant)), external: external_of(grant), set: None })
    }

    /// Checks the endpoint as if the subscriber had sent a packet there.
    fn check_peer(&self, key: &InternalKey, remote: (u32, u16)) -> Result<(), Fault> {
        let reaches = |prefix: translate::Prefix| prefix.destination(prefix.embed(remote.0)).is_ok();
        if !self.view().prefix_of(key.address).is_none_or(reaches) {
            return Err(Code::MalformedRequest.into());
        }
        if self.shared.route_out(remote.0, 0).is_none() && self.local.pool_address(remote.0).is_none() {
            return Err(Code::NetworkFailure.into());
        }
        let remote = RemoteInside { address: remote.0, port: remote.1 };
        match self.view().ruling(RuleKey::of_flow(key, remote)).action {
            RuleAction::Translate { pool: None, .. } => Ok(()),
            _ => Err(Code::NotAuthorized.into()),
        }
    }

    /// The session goes on as packets keep it.
    fn stop_peer(&mut self, asked: &Asked<'_>, key: &InternalKey, known: Option<u32>) -> Done {
        if let Some(known) = known {
            let ended = *self.state.grants.get(known);
            self.end_grant(asked.now, known);
            self.release_session(asked.now, &ended);
            self.counters.grants_deleted += 1;
        }
        let mapping = self.state.find_live_mapping(key, asked.now);
        let left = mapping.map(|mapping| self.view().idle_left(asked.now, mapping)).unwrap_or_default();
        Done { lifetime: seconds(left), external: None, set: None }
    }

    /// A PEER's session lasts as long as the grant (`shard/upkeep/grants.rs`).
    pub(in crate::shard) fn hold_session(&mut self, now: Instant, grant: u32) {
        let grant = self.state.grants.get(grant);
        let (Some(remote), index, until) = (grant.peer(), grant.mapping, grant.expires()) else { return };
        if let Some(session) = self.view().session_of_peer(now, index, remote) {
            let (_, expires) = self.state.session_state(index, session);
            match expires < until {
                true => self.refresh_until(index, session, until),
                false => self.shorten_to(now, index, session, until),
            }
            return;
        }
        let protocol = self.state.mappings.get(index).protocol();
        let by = self.view().pool_of_mapping(index).map(|compiled| hashed_by(compiled, protocol));
        let first = self.policy.lifetimes.first(protocol, remote.1, Side::Inside);
        let new = NewSession {
            remote_address: remote.0,
            remote_port: remote.1,
            state: first.state,
            opened_from: Side::Inside,
            hairpin: self.local.pool_address(remote.0).is_some(),
            has_own_timer: first.has_own_timer,
            expires: until,
        };
        let made = by.map(|by| self.create_session(now, index, &new, by));
        debug_assert!(matches!(made, Some(Ok(_))), "the decision has found room for the session");
    }

    /// The session of an ended PEER has its state's timer again.
    pub(in crate::shard) fn release_session(&mut self, now: Instant, ended: &Grant) {
        let (Some(remote), mapping) = (ended.peer(), ended.mapping) else { return };
        if let Some(session) = self.view().session_of_peer(now, mapping, remote) {
            self.shorten_to(now, mapping, session, now);
        }
    }

    /// Not before packets alone would let it end (RFC 6887 §15).
    fn shorten_to(&mut self, now: Instant, mapping: u32, session: SessionRef, until: Instant) {
        let (state, expires) = self.state.session_state(mapping, session);
        let idle = now + self.view().lifetime(mapping, session, state);
        let ends = until.max(idle);
        if ends < expires {
            self.refresh_until(mapping, session, ends);
        }
    }

    fn refresh_until(&mut self, mapping: u32, session: SessionRef, until: Instant) {
        let (state, _) = self.state.session_state(mapping, session);
        self.refresh(mapping, session, state, until);
    }
}
