//! Packets to an external endpoint that leads to several inside targets (see [`balance`](crate::balance)): found by their flow, handed
//! on to the worker that may have it, or let open one.

use super::Arrival;
use super::Fate;
use super::Shard;
use super::dormant::may_open;
use super::inbound::Via;
use super::inbound::hand_inbound;
use super::notes::Unmade;
use super::outbound::remote_port;
use super::port_choice::port_class;
use crate::balance::Aim;
use crate::balance::Group;
use crate::balance::Stop;
use crate::event::EventKind;
use crate::flow::ERA;
use crate::flow::InsideKey;
use crate::flow::NewFlow;
use crate::flow::OutsideKey;
use crate::mapping::InternalKey;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Parsed;
use crate::rules::RuleKey;
use crate::settings::Admission;
use crate::settings::Filtering;
use crate::settings::Pooling;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Facing;
use crate::types::Protocol;
use crate::types::WorkerId;
use crate::verdict::Verdict;

impl Shard {
    /// Whether a packet is to an endpoint that leads to several targets, or did while sessions of then are left.
    #[inline]
    pub(super) fn is_balanced(&self, parsed: &Parsed, protocol: Protocol) -> bool {
        self.shared.balance.find(parsed.destination, protocol, parsed.destination_port).is_some()
    }

    /// Whether a mapping has an external endpoint that leads to several targets by now: what it has goes on, but a new session towards a
    /// remote endpoint could be a target's already, perhaps on another worker, and two would have one 5-tuple.
    pub(super) fn is_before_targets(&self, mapping: u32) -> bool {
        if self.shared.balance.is_empty() {
            return false;
        }
        let mapping = self.mappings.get(mapping);
        let (protocol, external) = (mapping.key().protocol, mapping.external());
        self.shared.balance.find(external.address.to_bits(), protocol, external.port).is_some()
    }

    /// Where a packet from `far` goes on that has no flow of this worker.
    pub(super) fn next_stop(&self, group: &Group, port: u16, far: (u32, u16), behind: u8) -> Stop<WorkerId> {
        let stop =
            group.next_stop(port, far, behind, &self.worker, |address| self.shared.worker_of_subscriber(address));
        match stop {
            // Workers that go by the settings before would not find the session.
            Stop::Here(_) if group.is_new && !self.shared.is_settled() => Stop::Nowhere,
            stop => stop,
        }
    }

    /// A packet to such an endpoint on this address.
    #[cold]
    #[inline(never)]
    pub(super) fn inbound_balanced<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        address: AddressIndex,
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        let external = (parsed.destination, parsed.destination_port);
        let far = (parsed.source, remote_port(protocol, parsed.source_port));
        if let Some(index) = self.live_flow_outside(&OutsideKey { protocol, external, far }, now) {
            if self.is_via(index, via) {
                return self.enter_by_flow(at, bytes, index, via, sink);
            }
            return Fate::Done(Verdict::Filtered);
        }
        if via == Via::Outside
            && let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source)
        {
            return Fate::Done(verdict);
        }
        let Some(group) = self.shared.balance.find(external.0, protocol, external.1) else {
            // A worker that goes by other settings sent it here.
            return self.no_mapping(at, bytes, via);
        };
        match self.next_stop(group, external.1, far, meta.turn) {
            Stop::Next(worker, turn) => match hand_inbound(at, worker, via) {
                Fate::HandOff { worker, meta } => {
                    // Elsewhere it is not steered once more by what the port table says.
                    let stage = if meta.stage == Stage::Steered { Stage::Balanced } else { meta.stage };
                    Fate::HandOff { worker, meta: PacketMeta { stage, turn, ..meta } }
                }
                other => other,
            },
            Stop::Here(aim) => self.lead(at, bytes, address, aim, via, sink),
            Stop::Nowhere => self.no_mapping(at, bytes, via),
        }
    }

    /// A packet that opens a session to a target, if it may.
    fn lead<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        address: AddressIndex,
        aim: Aim,
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        if via == Via::Hairpin && !self.shared.may_hairpin(self.shared.realm_of(meta.ingress), aim.realm) {
            return Fate::Done(Verdict::HairpinRefused);
        }
        if let Err(verdict) = may_open(parsed, protocol) {
            return Fate::Done(verdict);
        }
        let facts = *self.shared.facts(address);
        if self.filtering_of_targets(parsed, protocol, &facts) != Filtering::EndpointIndependent {
            return if protocol == Protocol::Tcp { self.hold_syn(at, bytes) } else { Fate::Done(Verdict::Filtered) };
        }
        let key = InternalKey { realm: aim.realm, protocol, address: aim.address, port: aim.port };
        let far = (parsed.source, remote_port(protocol, parsed.source_port));
        if let Err(verdict) = self.filter(now, false, &RuleKey::of_flow(&key, far), true) {
            return Fate::Done(verdict);
        }
        if let Err(fate) = self.way_in_to(at, bytes, aim.realm, aim.address, via, sink) {
            return fate;
        }
        if self.speaks_to(&key, far, now) {
            // The two speak already, by another external endpoint: inside, both would be one connection.
            return Fate::Done(Verdict::Filtered);
        }
        let external = (parsed.destination, parsed.destination_port);
        match self.create_flow_to_target(now, &key, (address, external), &aim, far, via) {
            Ok(index) => self.enter_by_flow(at, bytes, index, via, sink),
            Err(verdict) => {
                self.count_refusal(now, &key, verdict);
                self.note_refusal(now, Unmade { key: &key, verdict, wanted: None });
                Fate::Done(verdict)
            }
        }
    }

    /// The filter that a stranger meets at an endpoint with several targets.
    pub(super) fn filtering_of_targets(
        &self,
        parsed: &Parsed,
        protocol: Protocol,
        facts: &crate::shared::PoolFacts,
    ) -> Filtering {
        let group = self.shared.balance.find(parsed.destination, protocol, parsed.destination_port);
        match group.map(|group| group.admission) {
            Some(Admission::Anyone) => Filtering::EndpointIndependent,
            _ => facts.filtering[protocol.index()],
        }
    }

    /// Whether an internal endpoint has a session with a remote one, by a mapping or a flow of whatever external endpoint.
    pub(super) fn speaks_to(&self, key: &InternalKey, far: (u32, u16), now: Instant) -> bool {
        let by_mapping = || {
            let index = self.find_live_mapping(key, now)?;
            let facts = self.facts_of_mapping(index)?;
            self.find_session(index, far.0, far.1, Shard::hashed_by(&facts, key.protocol), now)
        };
        self.live_flow(key, far, now).is_some() || by_mapping().is_some()
    }

    /// Makes the flow of a session to a target; there is no live one.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it; nothing is changed then.
    fn create_flow_to_target(
        &mut self,
        now: Instant,
        key: &InternalKey,
        (address, external): (AddressIndex, (u32, u16)),
        aim: &Aim,
        far: (u32, u16),
        via: Via,
    ) -> Result<u32, Verdict> {
        let outside = OutsideKey { protocol: key.protocol, external, far };
        let inside = InsideKey::new(key, far.0, far.1);
        // Both tables have room for one flow of each five-tuple: what is left of old ones goes first.
        while let Some(dead) = self.flows.find_outside(&outside).or_else(|| self.flows.find_inside(&inside)) {
            if self.flows.get(dead).rests() {
                // From before the forward: whoever comes to it now has the endpoint to himself.
                self.end_rest(dead);
                continue;
            }
            if !self.may_end_mapping() {
                return Err(Verdict::LogFull);
            }
            self.end_flow(now, dead);
        }
        if self.flows.is_full() {
            return Err(Verdict::FlowTableFull);
        }
        self.make_room_for_flow();
        let subscriber = match self.subscribers.find(key.realm, key.address) {
            Some(slot) => slot,
            None => self.create_target(key, address)?,
        };
        if let Err(verdict) = self.admit_record().and_then(|()| self.admit_flow(now, subscriber)) {
            self.forget_subscriber_if_new(now, subscriber, true);
            return Err(verdict);
        }
        let group = self.shared.balance.find(external.0, key.protocol, external.1);
        let Some(era) = group.and_then(Group::current) else {
            self.forget_subscriber_if_new(now, subscriber, true);
            return Err(Verdict::NoMapping);
        };
        let first = self.lifetimes.first_of_target(key.protocol);
        let new = NewFlow {
            internal: *key,
            near: far,
            far,
            external,
            state: first.state,
            expires: now + first.lifetime,
            port: ERA | era.id(),
            subscriber,
            is_hairpin: via == Via::Hairpin,
        };
        self.subscribers.count_flow(subscriber);
        let Ok(index) = self.flows.insert(&new, now) else {
            self.uncount_flow(now, subscriber, key.protocol);
            return Err(Verdict::FlowTableFull);
        };
        era.enter(aim.position);
        self.shared.count_lead(self.worker, group);
        self.charge_flow(now, subscriber, key.protocol);
        self.note_flow(EventKind::FlowCreated, now, index);
        self.counters.flows_created += 1;
        self.counters.sessions_created += 1;
        Ok(index)
    }

    /// Enters the subscriber that a target is. Sessions to it take no port, so that it is entered also where its pool has none
    /// free: with the address it is reached at, as with a forward to one.
    fn create_target(&mut self, key: &InternalKey, address: AddressIndex) -> Result<u32, Verdict> {
        let pool = self.shared.pool_for(key.realm, key.address.into()).ok_or(Verdict::SourceNotSubscriber)?;
        let facts = self.shared.pools[pool.index()];
        let class = port_class(key.port, &facts);
        match self.create_subscriber(key, pool, &facts, class) {
            Err(Verdict::PortsExhausted | Verdict::AddressDraining)
                if facts.pooling == Pooling::Paired && self.shared.pool_of(address) == pool => {}
            created => return created,
        }
        let slot = self.subscribers.insert(key.realm, key.address, pool, address, self.shared.stamp());
        let slot = slot.ok_or(Verdict::SubscriberTableFull)?;
        self.shared.ports.pair(address);
        Ok(slot)
    }
}
