//! NAT-PMP (RFC 6886).

use pcp::nat_pmp;
use pcp::nat_pmp::Code;
use pcp::nat_pmp::Refused;

use super::Answer;
use super::Datagram;
use super::seconds;
use crate::shard::Ledger;
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
use crate::steps::expired::Expired;
use crate::steps::grant::twin_key;
use crate::steps::opening::Ask;
use crate::steps::opening::Hints;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::Protocol;

/// A subscriber without a mapping keeps the address it was shown this long.
const PAIRED_FOR: Duration = Duration::from_secs(120);

fn as_answer<const N: usize>(bytes: [u8; N]) -> Answer {
    let mut all = [0; 16];
    for (to, from) in all.iter_mut().zip(bytes) {
        *to = from;
    }
    Answer::NatPmp(all, N)
}

fn code_of(code: pcp::Code) -> Code {
    match code {
        pcp::Code::NotAuthorized => Code::NotAuthorized,
        pcp::Code::NetworkFailure => Code::NetworkFailure,
        _ => Code::OutOfResources,
    }
}

impl Ledger {
    pub(super) fn serve_nat_pmp(&mut self, datagram: &Datagram<'_>) -> Answer {
        let Datagram { now, realm, source, payload, .. } = *datagram;
        let own = self.state.grants.epoch(realm, self.state.owner_of(source.address.into()), now);
        // As notices of a change say (RFC 6886 §3.2.1).
        let epoch = own.min(self.state.grants.common_epoch(now));
        let (code, answer) = match nat_pmp::parse(payload) {
            Err(Refused::Ignored) => {
                self.counters.port_control_ignored += 1;
                return Answer::Nothing;
            }
            Err(Refused::Error(Code::UnsupportedOpcode)) => (Code::UnsupportedOpcode, Answer::Copy),
            Err(Refused::Error(code)) => (code, as_answer(nat_pmp::other_version(epoch))),
            Ok(nat_pmp::Request::Address) => {
                let found = self.address_of(datagram);
                let code = found.err().unwrap_or(Code::Success);
                (code, as_answer(nat_pmp::address(code, epoch, found.unwrap_or(0))))
            }
            Ok(nat_pmp::Request::Map { is_tcp, internal_port, external_port, lifetime }) => {
                let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
                let address = source.address.to_bits();
                let key = InternalKey { realm, protocol, address: HostNumber(address), port: internal_port };
                let done = match lifetime {
                    _ if !self.may_change_grants() => Err(Code::OutOfResources),
                    0 => self.unmap(datagram, &key).map(|()| (0, 0)),
                    _ => self.map_port(datagram, &key, external_port, lifetime),
                };
                let code = done.err().unwrap_or(Code::Success);
                let (port, granted) = done.unwrap_or((external_port, lifetime));
                (code, as_answer(nat_pmp::map(code, epoch, is_tcp, (internal_port, port), granted)))
            }
        };
        self.counters.nat_pmp_results[code as usize] += 1;
        answer
    }

    /// Pairs a subscriber without a mapping for a while, so that it gets the address it is shown.
    fn address_of(&mut self, datagram: &Datagram<'_>) -> Result<u32, Code> {
        let Datagram { now, realm, source, .. } = *datagram;
        let key = InternalKey { realm, protocol: Protocol::Udp, address: source.address.into(), port: source.port };
        let own = self.shared.static_mappings.own_address(realm, key.address);
        let known = own.or_else(|| {
            let slot = self.state.subscribers.find(realm, key.address)?;
            let paired = crate::types::AddressIndex(self.state.subscribers.get(slot).paired);
            (paired != crate::steps::pairing::UNPAIRED).then(|| self.shared.address(paired).to_bits())
        });
        if let Some(address) = known {
            return Ok(address);
        }
        let ask =
            Ask { now, key: &key, wanted: None, hints: Hints::of(self.state.hash_of(&key)), expired: Expired::NONE };
        let (view, random) = self.deciding();
        let preview = view.decide_mapping(&ask, random, &mut ()).map_err(|_| Code::NetworkFailure)?;
        if let Some(address) = preview.address {
            return Ok(self.shared.address(address).to_bits());
        }
        let nobody = Remotes::one(Remote::new(core::net::Ipv4Addr::UNSPECIFIED, 32, 0));
        let request = Request {
            key,
            origin: Origin::NatPmp,
            kind: Kind::Once,
            remotes: nobody,
            expires: now + PAIRED_FOR,
            requester: Requester::new([0; 12], source),
            suggested: Suggested::Any,
        };
        let made = self.open_counted(now, &request).map_err(|_| Code::NetworkFailure)?;
        Ok(self.state.grants.get(made).external_address)
    }

    fn map_port(
        &mut self,
        datagram: &Datagram<'_>,
        key: &InternalKey,
        suggested: u16,
        lifetime_s: u32,
    ) -> Result<(u16, u32), Code> {
        let Datagram { now, source, .. } = *datagram;
        if key.port == 0 {
            return Err(Code::NotAuthorized);
        }
        if let Some(external) = self.view().forward_of(key) {
            return Ok((external.port, lifetime_s));
        }
        let known = self.state.grants.find(key, |grant| grant.is_map_of_client() && grant.is_alive(now));
        if known.is_some_and(|known| self.state.grants.get(known).origin() != Origin::NatPmp) {
            return Err(Code::NotAuthorized);
        }
        // Never longer than asked (RFC 6886 §3.3).
        let lifetime = self.view().lifetime_for(lifetime_s).min(Duration::from_secs(u64::from(lifetime_s)));
        let request = Request {
            key: *key,
            origin: Origin::NatPmp,
            kind: Kind::Map,
            remotes: Remotes::default(),
            expires: now + lifetime,
            requester: Requester::new([0; 12], source),
            suggested: Suggested::WithTwin(Wish { address: None, port: suggested }),
        };
        let made = self.open_counted(now, &request).map_err(|fault| code_of(fault.code))?;
        let grant = *self.state.grants.get(made);
        self.reserve_twin(now, &request, &grant);
        Ok((grant.external_port, seconds(lifetime)))
    }

    /// Keeps the same port of the other protocol (RFC 6886 §3.3), which leads nowhere. In blocks
    /// and slices the client has it anyway. Another worker may take it after the decision: then the
    /// next renewal tries again.
    fn reserve_twin(&mut self, now: Instant, request: &Request, grant: &Grant) {
        let is_shared = self
            .shared
            .address_index(grant.external().address)
            .is_some_and(|address| self.shared.compiled_pool(address).gives_single_ports());
        if !is_shared {
            return;
        }
        let key = twin_key(&request.key);
        let known = self.state.grants.find(&key, Grant::is_map_of_client);
        if let Some(known) = known {
            let twin = self.state.grants.get(known);
            if twin.is_held_down() && twin.external() == grant.external() {
                self.reserve_until(now, known, request.expires);
            }
            return;
        }
        let wish = Wish { address: Some(grant.external_address), port: grant.external_port };
        let twin = Request { key, suggested: Suggested::Only(wish), ..*request };
        if let Ok(index) = self.open_grant(now, &twin) {
            self.reserve_until(now, index, twin.expires);
        }
    }

    fn twin_of(&self, grant: &Grant) -> Option<u32> {
        self.state.grants.find(&twin_key(&grant.key()), |twin| {
            twin.is_held_down() && twin.origin() == Origin::NatPmp && twin.external() == grant.external()
        })
    }

    pub(in crate::shard) fn move_twin(&mut self, now: Instant, from: &Grant, index: u32) {
        if let Some(twin) = self.twin_of(from) {
            self.end_grant(now, twin);
        }
        let grant = *self.state.grants.get(index);
        let request = Request::again(&grant);
        self.reserve_twin(now, &request, &grant);
    }

    /// The other protocol's port is held down no longer than its own.
    fn retire_mapped(&mut self, now: Instant, index: u32) {
        let grant = *self.state.grants.get(index);
        let rest = self.view().hold_down_of_grant(&grant);
        self.retire_grant(now, index, rest);
        self.counters.grants_deleted += 1;
        if let Some(twin) = self.twin_of(&grant) {
            let until = self.state.grants.get(twin).expires().min(now + rest);
            self.reserve_until(now, twin, until);
        }
    }

    fn unmap(&mut self, datagram: &Datagram<'_>, key: &InternalKey) -> Result<(), Code> {
        if key.port == 0 {
            return self.unmap_all(datagram, key);
        }
        if self.view().forward_of(key).is_some() {
            return Err(Code::NotAuthorized);
        }
        let known = self.state.grants.find(key, |grant| grant.is_map_of_client() && grant.is_alive(datagram.now));
        let Some(known) = known else { return Ok(()) };
        let grant = *self.state.grants.get(known);
        if grant.origin() != Origin::NatPmp {
            return Err(Code::NotAuthorized);
        }
        self.retire_mapped(datagram.now, known);
        Ok(())
    }

    /// An error if some must not be deleted.
    fn unmap_all(&mut self, datagram: &Datagram<'_>, key: &InternalKey) -> Result<(), Code> {
        let most = self.state.grants.count_of_owner(key.realm, self.state.owner_of(key.address));
        for _ in 0..most {
            let found = self.state.grants_beside(key.realm, key.address).find(|index| {
                let grant = self.state.grants.get(*index);
                grant.is_alive(datagram.now)
                    && grant.key().address == key.address
                    && grant.kind() == Kind::Map
                    && grant.origin() == Origin::NatPmp
                    && grant.protocol() == key.protocol
            });
            let Some(index) = found else { break };
            self.retire_mapped(datagram.now, index);
        }
        let mut left = self.state.grants_beside(key.realm, key.address);
        let is_left = left.any(|index| {
            let grant = self.state.grants.get(index);
            let is_own = grant.key().address == key.address && grant.protocol() == key.protocol;
            is_own && grant.is_alive(datagram.now) && grant.is_map_of_client()
        });
        if is_left { Err(Code::NotAuthorized) } else { Ok(()) }
    }
}
