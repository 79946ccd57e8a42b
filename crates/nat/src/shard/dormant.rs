//! Static mappings: dormant until a packet wakes them, from either side (see [`statics`](crate::statics)).

use super::Arrival;
use super::Fate;
use super::Foresight;
use super::Shard;
use super::inbound::Via;
use super::inbound::hand_inbound;
use super::notes::Unmade;
use super::outbound::Flow;
use super::outbound::remote_port;
use crate::mapping::InternalKey;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Class;
use crate::parse::Parsed;
use crate::rules::RuleId;
use crate::rules::RuleKey;
use crate::settings::Admission;
use crate::settings::Filtering;
use crate::shared::PoolFacts;
use crate::statics::Inside;
use crate::statics::Kind;
use crate::tcp;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;
use wire::tcp::Flags;

impl Shard {
    /// The static mapping that a packet is addressed to, if it is to one, whether awake or not.
    #[inline]
    pub(super) fn dormant(&self, parsed: &Parsed, protocol: Protocol) -> Option<Inside> {
        let statics = &self.shared.statics;
        if statics.is_empty() {
            return None;
        }
        statics.by_external(parsed.destination, protocol, parsed.destination_port)
    }

    /// The filter that a stranger meets who speaks to a mapping: its pool's, if it is not a forward's; none new is let in where
    /// the port is another's by now, or was a forward's.
    pub(super) fn filtering_of_mapping(&self, index: u32, protocol: Protocol, facts: &PoolFacts) -> Filtering {
        let mapping = self.mappings.get(index);
        if self.displaced(index).is_some_and(|found| found.is_shut) {
            return Filtering::AddressAndPortDependent;
        }
        let external = mapping.external();
        match self.shared.statics.by_external(external.address.to_bits(), protocol, external.port) {
            Some(inside) if inside.admission == Admission::Anyone => Filtering::EndpointIndependent,
            _ => facts.filtering[protocol.index()],
        }
    }

    /// The filter that a packet to a static mapping meets that is not awake: the pool's only where that was asked for.
    pub(super) fn filtering_of(&self, parsed: &Parsed, protocol: Protocol, facts: &PoolFacts) -> Filtering {
        match self.dormant(parsed, protocol) {
            Some(inside) if inside.admission == Admission::Anyone => Filtering::EndpointIndependent,
            _ => facts.filtering[protocol.index()],
        }
    }

    /// The address of a new subscriber's static mappings, if it is one of his pool.
    pub(super) fn static_home(&self, key: &InternalKey, pool: PoolId) -> Option<AddressIndex> {
        let home = self.shared.address_index(self.shared.statics.home(key.realm, key.address)?.into())?;
        (self.shared.pool_of(home) == pool).then_some(home)
    }

    /// The pool of whom an address of his own maps: he is of that one, whatever rules say, and needs room in no other.
    #[inline]
    pub(super) fn pool_of_own_address(&self, dormant: Option<(Endpoint, Kind)>) -> Option<PoolId> {
        match dormant {
            Some((external, Kind::OneToOne)) => {
                self.shared.address_index(external.address).map(|own| self.shared.pool_of(own))
            }
            _ => None,
        }
    }

    /// Whether [`Shard::claim_static`] would get it: nobody has it, and it does not rest.
    pub(super) fn would_claim_static(&self, address: AddressIndex, protocol: Protocol, port: u16, kind: Kind) -> bool {
        match kind {
            Kind::OneToOne => self.shared.ports.is_free(address, protocol, port),
            Kind::Forward => self.shared.ports.is_kept(address, protocol, port),
        }
    }

    /// Takes the external endpoint that belongs to a static mapping. None when somebody has it still who got it before the
    /// configuration said so.
    pub(super) fn claim_static(
        &self,
        protocol: Protocol,
        external: Endpoint,
        kind: Kind,
    ) -> Option<(AddressIndex, u16)> {
        let address = self.shared.address_index(external.address)?;
        let is_free = match kind {
            Kind::OneToOne => self.shared.ports.claim(address, protocol, external.port),
            // It is withheld from everybody else.
            Kind::Forward => self.shared.ports.claim_withheld(address, protocol, external.port),
        };
        if is_free
            && let Some(inside) = self.shared.statics.by_external(external.address.to_bits(), protocol, external.port)
        {
            self.shared.static_hits.count(self.worker, RuleId(inside.number));
        }
        is_free.then_some((address, external.port))
    }

    /// Whether an internal endpoint gets nothing new from a pool as what it might have drains. `dormant`: the external endpoint that belongs
    /// to it. Whose address is his own has that one, whatever pool a rule names; a forward is made on an address that drains, too.
    pub(super) fn drains_for(&self, key: &InternalKey, facts: &PoolFacts, dormant: Option<(Endpoint, Kind)>) -> bool {
        match dormant {
            Some((_, Kind::Forward)) => false,
            Some((external, Kind::OneToOne)) => {
                let address = self.shared.address_index(external.address);
                address.is_some_and(|address| self.shared.closed(address).is_some())
            }
            None => self.shared.has_only_closed(facts, key.realm, key.address),
        }
    }

    /// A packet to a static mapping that is not awake: it is made if the packet may open it. `dead` is what is left of the last
    /// mapping with this external endpoint.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "what the caller found out")]
    pub(super) fn wake<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        address: AddressIndex,
        inside: &Inside,
        dead: Option<u32>,
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        if via == Via::Outside
            && let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source)
        {
            return Fate::Done(verdict);
        }
        let worker = self.shared.worker_of_subscriber(inside.address);
        if worker != self.worker {
            // The port is found here until what is left of somebody else's mapping is gone.
            if let Some(index) = dead {
                if !self.may_end_mapping() {
                    // Whose packet it is, and what was refused to him, the other worker knows.
                    let ports = (parsed.source_port, parsed.destination_port);
                    let record = if via == Via::Hairpin { meta.record } else { 0 };
                    return Fate::HandOff { worker, meta: PacketMeta { stage: Stage::LogFull, ports, record, ..meta } };
                }
                self.end_mapping(now, index);
            }
            return hand_inbound(at, worker, via);
        }
        if via == Via::Hairpin && !self.shared.may_hairpin(self.shared.realm_of(meta.ingress), inside.realm) {
            return Fate::Done(Verdict::HairpinRefused);
        }
        if let Err(verdict) = may_open(parsed, protocol) {
            return Fate::Done(verdict);
        }
        let facts = *self.shared.facts(address);
        if self.filtering_of(parsed, protocol, &facts) != Filtering::EndpointIndependent {
            return if protocol == Protocol::Tcp { self.hold_syn(at, bytes) } else { Fate::Done(Verdict::Filtered) };
        }
        let key = inside.key(protocol);
        let remote_port = remote_port(protocol, parsed.source_port);
        if let Err(verdict) = self.filter(now, false, &RuleKey::of_flow(&key, (parsed.source, remote_port)), true) {
            return Fate::Done(verdict);
        }
        let hop = match self.way_in_to(at, bytes, inside.realm, inside.address, via, sink) {
            Ok(hop) => hop,
            Err(fate) => return fate,
        };
        let hash = self.hash_of(&key);
        let left = self.find_mapping(&key, hash);
        if left.is_some_and(|index| self.is_alive(index, now)) {
            // The internal endpoint has another external one, from before the configuration said so.
            return Fate::Done(Verdict::NoMapping);
        }
        for index in dead.into_iter().chain(left.filter(|index| dead != Some(*index))) {
            if !self.may_end_mapping() {
                return self.refuse_waking(now, &key, Verdict::LogFull);
            }
            self.end_mapping(now, index);
        }
        let index = match self.create_mapping(now, &key, &Foresight::of(hash), None) {
            Ok(index) => index,
            Err(verdict) => return self.refuse_waking(now, &key, verdict),
        };
        let first = self.lifetimes.first(protocol, remote_port, Side::Outside);
        let new = self.session_from_outside(parsed, remote_port, first, now + first.lifetime);
        match self.create_session(now, index, &new, Shard::hashed_by(&facts, protocol)) {
            Ok(session) => self.established_inbound(at, bytes, Flow { index, session: Some(session) }, &hop, via, sink),
            Err(verdict) => Fate::Done(verdict),
        }
    }

    /// A packet to a static mapping of this worker, to which another one could not give its external port.
    pub(super) fn refuse_for_log(&mut self, at: Arrival<'_>) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        let inside = self.shared.statics.by_external(parsed.destination, protocol, meta.ports.1);
        match inside {
            Some(inside) => self.refuse_waking(now, &inside.key(protocol), Verdict::LogFull),
            // By the settings of this worker there is none.
            None => Fate::Done(Verdict::LogFull),
        }
    }

    /// A static mapping could not be made for a packet to it.
    fn refuse_waking(&mut self, now: Instant, key: &InternalKey, verdict: Verdict) -> Fate {
        self.count_refusal(now, key, verdict);
        self.note_refusal(now, Unmade { key, verdict, wanted: None });
        Fate::Done(verdict)
    }
}

/// Whether a packet to a static mapping may open it.
///
/// # Errors
/// Its verdict when it may not.
pub(super) fn may_open(parsed: &Parsed, protocol: Protocol) -> Result<(), Verdict> {
    match parsed.class {
        // Only the first fragment of a datagram, which has the ports, opens anything.
        Class::LaterFragment => Err(Verdict::FragmentRefused),
        // An answer to what nobody asked.
        Class::IcmpReply => Err(Verdict::NoMapping),
        _ if parsed.fragment_offset != 0 => Err(Verdict::FragmentRefused),
        _ if protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) => Err(Verdict::TcpNoSession),
        _ => Ok(()),
    }
}
