//! Whether a grant is renewed or made, its external port, and the remotes that it admits.

use alg::AlgId;

use crate::event::Cause;
use crate::external::blocks::Block;
use crate::external::ports::PortRange;
use crate::external::ports::Taker;
use crate::policy::gateways::CompiledGateway;
use crate::random::Random;
use crate::state::grant::Admission;
use crate::state::grant::Grant;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Request;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::state::mapping::SessionRef;
use crate::state::subscriber::Subscriber;
use crate::steps::expired::Expired;
use crate::steps::opening::Ask;
use crate::steps::opening::Entered;
use crate::steps::opening::Entry;
use crate::steps::opening::External;
use crate::steps::opening::Hints;
use crate::steps::opening::NewMapping;
use crate::steps::opening::Owner;
use crate::steps::opening::Place;
use crate::steps::opening::Source;
use crate::steps::pairing::UNPAIRED;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::verdict::Verdict;
use zerocopy::FromZeros;

/// RFC 6887 §11.3: never given to anyone, because PCP itself uses them.
const PCP_PORTS: core::ops::RangeInclusive<u16> = 5_350..=5_351;
/// Draws of a port, because some give ports that must not be granted.
const DRAWS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Refused as a packet from inside would be.
    Verdict(Verdict),
    OtherEndpoint,
}

impl From<Verdict> for Denied {
    fn from(verdict: Verdict) -> Denied {
        Denied::Verdict(verdict)
    }
}

pub(crate) const fn cause_of(origin: Origin) -> Cause {
    match origin {
        Origin::Pcp => Cause::Pcp,
        Origin::NatPmp => Cause::NatPmp,
        Origin::Alg(_) => Cause::Alg,
    }
}

/// The mapping that a grant keeps.
pub(crate) enum GrantPlace {
    /// These mappings end first. Then decide again.
    Expire(Expired),
    /// The internal endpoint's own, which lives.
    Known(u32),
    New(NewMapping),
}

pub(crate) fn may_be_granted(protocol: Protocol, port: u16) -> bool {
    port != 0 && !(protocol == Protocol::Udp && PCP_PORTS.contains(&port))
}

pub(crate) fn twin_key(key: &InternalKey) -> InternalKey {
    let protocol = if key.protocol == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
    InternalKey { protocol, ..*key }
}

impl View<'_> {
    /// The grant of the same internal endpoint, kind and peer, held down or not. A MAP of port
    /// control has filters instead of a peer. Gateways and port control do not renew each other's.
    pub(crate) fn find_grant(&self, request: &Request) -> Option<u32> {
        let (is_alg, peer) = (request.origin.is_alg(), request.remotes.as_slice().first());
        let has_filters = request.kind == Kind::Map && !is_alg;
        self.state.grants.find(&request.key, |grant| {
            let is_same_peer = has_filters || grant.remotes.as_slice().first() == peer;
            grant.kind() == request.kind && grant.origin().is_alg() == is_alg && is_same_peer
        })
    }

    pub(crate) fn shares_mapping(&self, now: Instant, index: u32) -> bool {
        let own = self.state.grants.get(index);
        let is_beside =
            |other: &Grant| other.mapping == own.mapping && other.is_alive(now) && !core::ptr::eq::<Grant>(other, own);
        own.mapping != 0 && self.state.grants.find(&own.key(), is_beside).is_some()
    }

    /// `None`: another is made, for which there is room.
    pub(crate) fn grant_to_renew(&self, now: Instant, request: &Request) -> Result<Option<u32>, Verdict> {
        let Some(known) = self.find_grant(request) else {
            return if self.state.grants.is_full() { Err(Verdict::MappingTableFull) } else { Ok(None) };
        };
        let grant = self.state.grants.get(known);
        if grant.is_used() || grant.is_given_up() {
            return Ok(None);
        }
        self.admit_peer(now, grant.mapping, request, false)?;
        Ok(Some(known))
    }

    /// Checks the room for the session that a PEER keeps. `is_new`: after the hold of its grant.
    pub(crate) fn admit_peer(&self, now: Instant, index: u32, request: &Request, is_new: bool) -> Result<(), Verdict> {
        let Some(remote) = request.peer() else { return Ok(()) };
        self.pool_of_mapping(index).ok_or(Verdict::DestinationNotPool)?;
        if self.session_of_peer(now, index, remote).is_some() {
            return Ok(());
        }
        self.decide_session_beside(now, index, i32::from(is_new)).map(|_| ())
    }

    pub(crate) fn session_of_peer(&self, now: Instant, index: u32, remote: (u32, u16)) -> Option<SessionRef> {
        let by = hashed_by(self.pool_of_mapping(index)?, self.state.mappings.get(index).protocol());
        self.state.find_session(index, remote.0, remote.1, by, now)
    }

    /// An expired mapping ends only if the endpoint can have another.
    pub(crate) fn decide_place(
        &self,
        now: Instant,
        request: &Request,
        suggested: Suggested,
        random: &mut Random,
    ) -> Result<GrantPlace, Denied> {
        if let Some(index) = self.state.find_live_mapping(&request.key, now) {
            self.admit_grant_at(now, index, suggested)?;
            self.admit_peer(now, index, request, true)?;
            return Ok(GrantPlace::Known(index));
        }
        let ask = self.ask_for_grant(now, &request.key);
        if !ask.expired.mappings().all(|index| self.may_end(index)) {
            return Err(Denied::Verdict(Verdict::LogFull));
        }
        let new = self.decide_granted(&ask, suggested, random)?;
        if ask.expired.is_any() {
            return Ok(GrantPlace::Expire(ask.expired));
        }
        Ok(GrantPlace::New(NewMapping { cause: cause_of(request.origin), ..new }))
    }

    /// For an internal endpoint without a live mapping.
    pub(super) fn ask_for_grant<'k>(&self, now: Instant, key: &'k InternalKey) -> Ask<'k> {
        let hash = self.state.hash_of(key);
        let expired = self.expired_before(now, key, self.state.find_mapping(key, hash));
        Ask { now, key, wanted: None, hints: Hints::of(hash), expired }
    }

    fn admit_grant_at(&self, now: Instant, index: u32, suggested: Suggested) -> Result<(), Denied> {
        let mapping = self.state.mappings.get(index);
        if let Suggested::Only(wish) = suggested
            && !wish.fits(mapping.external())
        {
            return Err(Denied::OtherEndpoint);
        }
        if !may_be_granted(mapping.protocol(), mapping.external_port()) {
            return Err(Denied::Verdict(Verdict::PortsExhausted));
        }
        if self.state.sessions.is_full() {
            return Err(Denied::Verdict(Verdict::SessionTableFull));
        }
        Ok(self.admit_session(now, index, true)?)
    }

    /// Decides as for a packet from inside, if possible with the suggested port.
    pub(super) fn decide_granted(
        &self,
        ask: &Ask<'_>,
        mut suggested: Suggested,
        random: &mut Random,
    ) -> Result<NewMapping, Denied> {
        for _ in 0..DRAWS {
            let mut new = self.decide_mapping(ask, random, &mut ())?.mapping;
            self.admit_hold(ask, &new, None)?;
            let wish = match suggested {
                Suggested::Any => None,
                Suggested::Rather(wish) | Suggested::Only(wish) | Suggested::WithTwin(wish) => Some(wish),
            };
            if let Some((external, entered)) = wish.and_then(|wish| self.external_as_wished(ask.key, &new, wish)) {
                (new.external, new.entered) = (external, entered);
            }
            self.choose_port_of_lease(ask.key.protocol, &mut new.external, random);
            let External { address, port, source } = new.external;
            let external = Endpoint::new(self.snapshot.address(address), port);
            match suggested {
                Suggested::Only(wish) if !wish.fits(external) && wish.port == 0 => continue,
                Suggested::Only(wish) if !wish.fits(external) => return Err(Denied::OtherEndpoint),
                Suggested::WithTwin(_) if !self.may_have_twin(ask, &new, random) => {
                    suggested = Suggested::WithTwin(Wish::NONE);
                }
                _ if may_be_granted(ask.key.protocol, port) => return Ok(new),
                _ if matches!(source, Source::Static(_)) => break,
                _ => {}
            }
        }
        Err(match suggested {
            Suggested::Only(_) | Suggested::WithTwin(_) => Denied::OtherEndpoint,
            Suggested::Any | Suggested::Rather(_) => Denied::Verdict(Verdict::PortsExhausted),
        })
    }

    /// Unlike a packet's, the port of a grant in a new block is chosen before the lease, because
    /// some must not be granted.
    fn choose_port_of_lease(&self, protocol: Protocol, external: &mut External, random: &mut Random) {
        let Source::Lease { block, parity } = external.source else { return };
        let (ports, range) = (&self.snapshot.ports, PortRange::of_block(block));
        let mut preferences = [parity, None].into_iter();
        let port = preferences.find_map(|parity| ports.pick_within(&range, protocol, parity, Taker::Holder, random));
        if let Some(port) = port {
            (external.port, external.source) = (port, Source::Given(block));
        }
    }

    /// Checks the room for the record that keeps the mapping, and for the mapping and the record of
    /// a `twin`.
    fn admit_hold(&self, ask: &Ask<'_>, new: &NewMapping, twin: Option<Protocol>) -> Result<(), Verdict> {
        if !self.state.sessions.has_room_for(1 + usize::from(twin.is_some())) {
            return Err(Verdict::SessionTableFull);
        }
        let Owner { slot, past, class, .. } = new.owner;
        let compiled = self.snapshot.classes.compiled(class);
        let mut record = past.map_or_else(Subscriber::new_zeroed, |slot| self.record_without_expired(ask, slot));
        record.mappings[ask.key.protocol.index()] += 1;
        let mut account = slot.map(|slot| *self.state.subscribers.account(slot)).unwrap_or_default();
        compiled.admits_session((&record, &account), true, ask.now)?;
        let Some(twin) = twin else { return Ok(()) };
        record.extra_sessions += 1;
        record.mapping_bucket = compiled.charge_mapping(record.mapping_bucket, ask.now);
        account.session_bucket = compiled.charge_session(account.session_bucket, ask.now);
        let shared = slot.map_or(0, |slot| self.state.subscribers.shared_ports(slot)[twin.index()]);
        compiled.admits_mapping(&record, shared, twin, ask.now)?;
        record.mappings[twin.index()] += 1;
        compiled.admits_session((&record, &account), true, ask.now)
    }

    /// Whether the client can have the same port of the other protocol, too (RFC 6886 §3.3). In
    /// blocks and slices it has it anyway.
    fn may_have_twin(&self, ask: &Ask<'_>, new: &NewMapping, random: &mut Random) -> bool {
        let External { address, port, source } = new.external;
        if !self.snapshot.compiled_pool(address).gives_single_ports() {
            return true;
        }
        let key = twin_key(ask.key);
        // Its own packets may have taken another port for this endpoint.
        let is_known = self.state.grants.find(&key, Grant::is_map_of_client).is_some();
        if is_known || self.state.find_live_mapping(&key, ask.now).is_some() {
            return true;
        }
        if !self.state.mappings.has_room_for(2) || !self.state.grants.has_room_for(2) {
            return false;
        }
        let twin = self.ask_for_grant(ask.now, &key);
        let wish = Wish { address: Some(self.snapshot.address(address).to_bits()), port };
        let is_free = match (source, new.entered) {
            (Source::Static(_), _) | (_, None) => self.decide_granted(&twin, Suggested::Only(wish), random).is_ok(),
            // It is paired with the address first.
            _ => self.may_have_beside(&key, new, port),
        };
        let at_port = ask.expired.at_port.or(twin.expired.own);
        let both = Ask { expired: Expired { at_port, ..ask.expired }, ..*ask };
        is_free && self.admit_hold(&both, new, Some(key.protocol)).is_ok()
    }

    /// The suggested endpoint, if the subscriber could have drawn it: in its slice or blocks, or a
    /// free one at its paired address. Without an address, it may choose one. Port 0 at another
    /// address means the drawn port.
    fn external_as_wished(
        &self,
        key: &InternalKey,
        new: &NewMapping,
        wish: Wish,
    ) -> Option<(External, Option<Entered>)> {
        let drawn = new.external;
        let address = match wish.address {
            Some(address) => self.snapshot.address_index(address.into())?,
            None => drawn.address,
        };
        if address == drawn.address && wish.port == 0 {
            return Some((drawn, new.entered)).filter(|_| !matches!(drawn.source, Source::Lease { .. }));
        }
        let mut entered = new.entered;
        if address != drawn.address {
            let same_pool = self.snapshot.pool_of(address) == self.snapshot.pool_of(drawn.address);
            if !same_pool || self.snapshot.closed(address).is_some() {
                return None;
            }
            match &mut entered {
                Some(entered) if entered.address == UNPAIRED => {}
                Some(Entered { entry: Entry { place: Place::Chosen | Place::Preferred(_), .. }, address: chosen })
                    if !self.snapshot.compiled_pool(address).has_guarantees() =>
                {
                    *chosen = address;
                }
                Some(_) => return None,
                None => {
                    let slot = new.owner.slot?;
                    (self.state.subscribers.get(slot).paired == UNPAIRED.0).then_some(())?;
                }
            }
        }
        let port = if wish.port == 0 { drawn.port } else { wish.port };
        if !may_be_granted(key.protocol, port) {
            return None;
        }
        let ports = &self.snapshot.ports;
        let lease = ports.blocks.lease_of(address, port);
        let source = match (drawn.source, lease) {
            (Source::Static(_), _) => return None,
            (Source::Free { .. } | Source::Lease { .. } | Source::Given(_), Some(lease)) => {
                let is_free = ports.is_free_in_lease(address, key.protocol, port);
                if lease.holder != self.holder(key.realm, key.address) || !is_free {
                    return None;
                }
                Source::Free { taker: Taker::Holder, guaranteed: None, activates: Some(lease.block) }
            }
            (Source::Free { taker: Taker::Anyone, guaranteed, .. }, None) => {
                let may_have = self.snapshot.may_have(address, key.protocol, port, &self.static_key(key));
                if !may_have || !ports.is_free(address, key.protocol, port) {
                    return None;
                }
                Source::Free { taker: Taker::Anyone, guaranteed, activates: None }
            }
            (Source::Lease { block, .. } | Source::Given(block), None) => {
                let size = block.size();
                let wished = Block::around(address, port, size);
                let compiled = self.snapshot.compiled_pool(address);
                let blocks = compiled.blocks?;
                let is_inside = (blocks.first..=blocks.last).contains(&wished.first_port())
                    && (blocks.first..=blocks.last).contains(&wished.last_port());
                if !is_inside || !ports.is_free(address, key.protocol, port) {
                    return None;
                }
                Source::Given(wished)
            }
            (Source::Free { taker: Taker::Holder, .. }, None) => return None,
        };
        Some((External { address, port, source }, entered))
    }

    /// Around a port that the subscriber draws: the first, their number (at most `wanted`), and the
    /// address.
    pub(crate) fn run_of_ports(
        &self,
        ask: &Ask<'_>,
        suggested: Suggested,
        wanted: u16,
        random: &mut Random,
    ) -> Option<(u16, u16, u32)> {
        let new = self.decide_granted(ask, suggested, random).ok()?;
        let address = self.snapshot.address(new.external.address).to_bits();
        let drawn = match (new.external.source, suggested) {
            (Source::Static(_), _) => return Some((new.external.port, wanted, address)),
            (Source::Given(block), Suggested::Any) => block.first_port(),
            _ => new.external.port,
        };
        let may_have = |port: u16| self.may_have_beside(ask.key, &new, port);
        let (mut first, mut last) = (drawn, drawn);
        if !may_have(drawn) {
            return None;
        }
        while last - first + 1 < wanted && last < u16::MAX && may_have(last + 1) {
            last += 1;
        }
        while last - first + 1 < wanted && first > 1 && may_have(first - 1) {
            first -= 1;
        }
        Some((first, last - first + 1, address))
    }

    /// Whether an internal endpoint of the same subscriber could have this port of the address,
    /// too, in no other new block.
    pub(super) fn may_have_beside(&self, key: &InternalKey, new: &NewMapping, port: u16) -> bool {
        let address = self.snapshot.address(new.external.address).to_bits();
        let found = self.external_as_wished(key, new, Wish { address: Some(address), port });
        found.is_some_and(|(external, _)| match (external.source, new.external.source) {
            (Source::Given(block), Source::Given(own)) => block == own,
            _ => true,
        })
    }

    pub(super) fn admission_by_grant<T: Report>(
        &self,
        now: Instant,
        index: u32,
        remote: (u32, u16),
        report: &mut T,
    ) -> Admission {
        if self.state.grants.is_empty() {
            return Admission::AsPool;
        }
        let mapping = self.state.mappings.get(index);
        let in_use = self.has_real_session(now, index);
        let admission = self.state.grants.admission(&mapping.key(), remote, in_use, now);
        if let Admission::Granted(grant) | Admission::Refused(grant) = admission {
            let grant = self.state.grants.get(grant);
            report.step(|| Step::Granted {
                origin: grant.origin(),
                kind: grant.kind(),
                allowed: matches!(admission, Admission::Granted(_)),
                expires_in: grant.expires().saturating_since(now),
            });
        }
        admission
    }

    pub(crate) fn registration(&self, now: Instant, index: u32, remote: (u32, u16)) -> Option<&Grant> {
        if self.state.grants.is_empty() {
            return None;
        }
        let is_it = |grant: &Grant| self.registers(now, grant, remote);
        let found = self.state.grants.find(&self.state.mappings.get(index).key(), is_it)?;
        Some(self.state.grants.get(found))
    }

    /// Registrations of a phone that sends over UDP from this mapping and listens at other
    /// registered ports.
    pub(crate) fn registrations_elsewhere(
        &self,
        now: Instant,
        index: u32,
        remote: (u32, u16),
    ) -> impl Iterator<Item = &Grant> {
        let own = self.state.mappings.get(index).key();
        let is_it = move |grant: &&Grant| {
            let is_by_it =
                grant.requester.port == own.port && grant.key() == InternalKey { port: grant.key().port, ..own };
            is_by_it && grant.key().port != own.port && self.registers(now, grant, remote)
        };
        let beside = (own.protocol == Protocol::Udp).then(|| self.state.grants_beside(own.realm, own.address));
        beside.into_iter().flatten().map(|grant| self.state.grants.get(grant)).filter(is_it)
    }

    fn registers(&self, now: Instant, grant: &Grant, remote: (u32, u16)) -> bool {
        grant.is_registration() && grant.is_alive(now) && grant.admits(remote)
    }

    /// Until when a packet of this remote endpoint may wait for an answer, if a registration has a
    /// gateway read it.
    pub(crate) fn awaits_answer_until(&self, now: Instant, index: u32, remote: (u32, u16)) -> Option<Instant> {
        let grant = self.registration(now, index, remote)?;
        let Origin::Alg(alg) = grant.origin() else { return None };
        Some(grant.expires().min(now + self.gateway_serving(alg, index)?.timeout))
    }

    /// `None` if the gateway does not serve the mapping's pool and class.
    pub(crate) fn gateway_serving(&self, alg: AlgId, index: u32) -> Option<&CompiledGateway> {
        let pool = self.pool_of_mapping(index)?.id;
        let class = self.class_now(self.state.mappings.get(index).subscriber);
        self.snapshot.gateways.of(alg).filter(|gateway| gateway.serves(pool, class))
    }

    pub(crate) fn origins_of(&self, index: u32, now: Instant) -> impl Iterator<Item = Origin> + '_ {
        let (key, grants) = (self.state.mappings.get(index).key(), &self.state.grants);
        let of_mapping = self.state.grants_beside(key.realm, key.address).map(|grant| grants.get(grant));
        of_mapping
            .filter(move |grant| grant.mapping == index && (grant.is_alive(now) && grant.hold != 0 || grant.is_used()))
            .map(|grant| grant.origin())
    }

    /// True if packets, not only a grant, keep the mapping alive.
    pub(crate) fn has_real_session(&self, now: Instant, index: u32) -> bool {
        let mapping = self.state.mappings.get(index);
        if mapping.has_live_session(now) {
            return true;
        }
        let mut slot = mapping.extra_head;
        while slot != 0 {
            let session = self.state.sessions.get(slot);
            if !session.is_hold() && session.is_alive(now) {
                return true;
            }
            slot = session.next;
        }
        false
    }
}
