//! MAP (RFC 6887 §11, §15).

use pcp::Code;
use pcp::Map;

use super::Asked;
use super::Done;
use super::Fault;
use super::seconds;
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
use crate::steps::view::View;
use crate::time::Duration;
use crate::types::Endpoint;
use crate::types::Protocol;

pub(super) fn protocol_of(number: u8) -> Option<Protocol> {
    Protocol::from_number(number).filter(|protocol| *protocol != Protocol::Icmp)
}

/// `None` if the suggested endpoint could never be given.
pub(super) fn wish_of(map: &Map) -> Option<Wish> {
    let address = pcp::unmapped(&map.external_address)?;
    Some(Wish { address: (address != 0).then_some(address), port: map.external_port })
}

pub(super) fn external_of(grant: &Grant) -> Option<(u16, u32)> {
    Some((grant.external_port, grant.external_address))
}

/// PCP may take over a grant of NAT-PMP, which has no nonce.
pub(super) fn belongs_to_another(grant: &Grant, nonce: &[u8; 12]) -> bool {
    grant.origin() == Origin::Pcp && grant.requester.nonce != *nonce
}

impl Ledger {
    pub(super) fn map(&mut self, asked: &Asked<'_>, map: &Map) -> Result<Done, Option<Fault>> {
        let options = asked.options;
        let is_deletion = asked.lifetime == 0;
        if options.prefer_failure && (is_deletion || map.external_port == 0)
            || is_deletion && !options.filters().is_empty()
        {
            return Err(Some(Code::MalformedOption.into()));
        }
        if map.protocol == 0 && map.internal_port != 0 {
            return Err(Some(Code::MalformedRequest.into()));
        }
        if is_deletion && map.internal_port == 0 {
            return self.delete_all(asked, map).map_err(Some);
        }
        let Some(protocol) = protocol_of(map.protocol).filter(|_| map.internal_port != 0) else {
            return Err(Some(Code::UnsupportedProtocol.into()));
        };
        let key = asked.key(protocol, map.internal_port);
        if is_deletion {
            return self.delete(asked, map, &key).map_err(Some);
        }
        if let Some(external) = self.view().forward_of(&key) {
            let is_other = options.prefer_failure && !wish_of(map).is_some_and(|wish| wish.fits(external));
            if is_other {
                return Err(Some(Code::CannotProvideExternal.into()));
            }
            let external = Some((external.port, external.address.to_bits()));
            return Ok(Done { lifetime: u32::MAX, external, set: None });
        }
        if let Some(done) = self.map_set(asked, map, &key)? {
            return Ok(done);
        }
        self.map_one(asked, map, &key).map_err(Some)
    }

    fn map_one(&mut self, asked: &Asked<'_>, map: &Map, key: &InternalKey) -> Result<Done, Fault> {
        let mut request = self.request_of(asked, map, key)?;
        if let Some(known) = self.view().find_grant(&request) {
            let grant = *self.state.grants.get(known);
            if grant.is_alive(asked.now) {
                request.remotes = self.renewed(asked, &request, &grant)?;
            }
        }
        let made = self.open_counted(asked.now, &request)?;
        let grant = self.state.grants.get(made);
        let lifetime = seconds(self.view().left_of(asked.now, grant));
        Ok(Done { lifetime, external: external_of(grant), set: None })
    }

    /// The filters after a renewal, if this request may renew (RFC 6887 §11.3, §13.3).
    pub(super) fn renewed(&self, asked: &Asked<'_>, request: &Request, grant: &Grant) -> Result<Remotes, Fault> {
        if belongs_to_another(grant, &request.requester.nonce) {
            return Err(Fault::not_authorized(self.view().left_of(asked.now, grant)));
        }
        if let Suggested::Only(wish) = request.suggested
            && grant.key() == request.key
            && !wish.fits(grant.external())
        {
            return Err(Code::CannotProvideExternal.into());
        }
        self.view().filters(grant.remotes, asked)
    }

    pub(super) fn request_of(&self, asked: &Asked<'_>, map: &Map, key: &InternalKey) -> Result<Request, Fault> {
        let suggested = match (wish_of(map), asked.options.prefer_failure) {
            (Some(wish), true) => Suggested::Only(wish),
            (None, true) => return Err(Code::CannotProvideExternal.into()),
            (Some(wish), false) => Suggested::Rather(wish),
            (None, false) => Suggested::Any,
        };
        Ok(Request {
            key: *key,
            origin: Origin::Pcp,
            kind: Kind::Map,
            remotes: self.view().filters(Remotes::default(), asked)?,
            expires: asked.now + self.view().lifetime_for(asked.lifetime),
            requester: asked.requester(map.nonce),
            suggested,
        })
    }

    fn delete(&mut self, asked: &Asked<'_>, map: &Map, key: &InternalKey) -> Result<Done, Fault> {
        let nothing = Done { lifetime: 0, external: None, set: None };
        if self.view().forward_of(key).is_some() {
            return Err(Code::NotAuthorized.into());
        }
        let Some(index) = self.state.grants.find(key, Grant::is_map_of_client) else {
            // A packet, a PEER or a gateway made it.
            return match self.state.find_live_mapping(key, asked.now) {
                Some(_) => Err(Code::NotAuthorized.into()),
                None => Ok(nothing),
            };
        };
        let grant = *self.state.grants.get(index);
        if grant.is_alive(asked.now) && belongs_to_another(&grant, &map.nonce) {
            return Err(Fault::not_authorized(self.view().left_of(asked.now, &grant)));
        }
        let mut longest = Duration::ZERO;
        for port in self.ports_of_set(&grant) {
            longest = longest.max(self.delete_one(asked, &InternalKey { port, ..*key }, &map.nonce));
        }
        Ok(Done { lifetime: seconds(longest), ..nothing })
    }

    /// The mapping lives on while packets keep it; a deletion does not shorten that.
    fn delete_one(&mut self, asked: &Asked<'_>, key: &InternalKey, nonce: &[u8; 12]) -> Duration {
        let is_own = |grant: &Grant| grant.is_map_of_client() && !belongs_to_another(grant, nonce);
        let Some(index) = self.state.grants.find(key, is_own) else { return Duration::ZERO };
        let grant = *self.state.grants.get(index);
        if grant.is_alive(asked.now) {
            let rest = self.view().hold_down_of_grant(&grant);
            self.retire_grant(asked.now, index, rest);
            self.counters.grants_deleted += 1;
        }
        if grant.mapping == 0 { Duration::ZERO } else { self.view().idle_left(asked.now, grant.mapping) }
    }

    /// Deletes the mappings of one protocol, or all, that this nonce made.
    fn delete_all(&mut self, asked: &Asked<'_>, map: &Map) -> Result<Done, Fault> {
        let protocol = match map.protocol {
            0 => None,
            number => Some(protocol_of(number).ok_or(Code::UnsupportedProtocol)?),
        };
        let mut longest = Duration::ZERO;
        let most = self.state.grants.count_of_owner(asked.realm, self.state.owner_of(asked.subject));
        for _ in 0..most {
            let found = self.state.grants_beside(asked.realm, asked.subject).find(|index| {
                let grant = self.state.grants.get(*index);
                grant.is_alive(asked.now)
                    && grant.key().address == asked.subject
                    && grant.kind() == Kind::Map
                    && grant.origin() == Origin::Pcp
                    && grant.requester.nonce == map.nonce
                    && protocol.is_none_or(|wanted| wanted == grant.protocol())
            });
            let Some(index) = found else { break };
            let key = self.state.grants.get(index).key();
            longest = longest.max(self.delete_one(asked, &key, &map.nonce));
        }
        Ok(Done { lifetime: seconds(longest), external: None, set: None })
    }
}

impl View<'_> {
    /// Adds the request's filters to the mapping's (RFC 6887 §13.3).
    fn filters(&self, mut remotes: Remotes, asked: &Asked<'_>) -> Result<Remotes, Fault> {
        for filter in asked.options.filters() {
            if filter.length == 0 {
                remotes = Remotes::default();
                continue;
            }
            let remote = self.remote_of(asked.subject, &filter.address, filter.length).filter(|_| filter.length <= 128);
            let (address, length) = remote.ok_or(Code::MalformedOption)?;
            let remote = Remote::new(address.into(), length, filter.port);
            if !remotes.as_slice().contains(&remote) && !remotes.add(remote) {
                return Err(Code::ExcessiveRemotePeers.into());
            }
        }
        Ok(remotes)
    }
}

pub(super) fn endpoint_of(external: (u16, u32)) -> Endpoint {
    Endpoint::new(external.1.into(), external.0)
}
