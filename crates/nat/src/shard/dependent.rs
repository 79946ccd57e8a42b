//! Endpoint-dependent translation: packets of flows, both ways, and the making and ending of flows.
//!
//! ```text
//!   from inside: mapping of the endpoint has this session ─► as ever (outbound)
//!                else a flow with this five-tuple         ─► outbound_by_flow
//!                else a live mapping of the endpoint      ─► a session of it: whoever has a port of his own uses it
//!                else the rules                           ─► a mapping, or create_flow
//!   from outside: port table says "shared" ─► inbound_by_flow, by the five-tuple
//!                 a forward has several targets ─► inbound_balanced (`balanced`), by the five-tuple, too
//! ```
//!
//! So an internal endpoint that has a mapping keeps what RFC 4787 REQ-1 promises, towards everyone; a flow is what an endpoint
//! gets that has none and speaks to where a rule says so (ADR 11). No inside five-tuple has both.

use core::net::Ipv4Addr;

use wire::tcp::Flags;

use super::Arrival;
use super::Fate;
use super::Shard;
use super::inbound::Via;
use super::local::Reason;
use super::notes::Unmade;
use super::outbound::remote_port;
use super::port_choice::port_class;
use crate::event::EventKind;
use crate::flow::Flow;
use crate::flow::InsideKey;
use crate::flow::NewFlow;
use crate::flow::OutsideKey;
use crate::flow::endpoint;
use crate::fragments::DatagramIndex;
use crate::icmp_quote::Quote;
use crate::mapping::InternalKey;
use crate::mapping::SessionRef;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::parse::Class;
use crate::parse::Parsed;
use crate::parse::destination_is_valid;
use crate::rewrite::End;
use crate::rewrite::Rewrite;
use crate::rewrite::rewrite;
use crate::settings::MappingKind;
use crate::settings::RuleAction;
use crate::tcp;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Facing;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;

/// Tells the hash that chooses targets from others.
const TARGET_HASH: u64 = 0x7a26;
/// Flows looked at for each one made since the last call: those that end must not fill the table.
const RECORDS_PER_CREATED: u64 = 4;

/// What a packet to an external endpoint is a flow's by, if any.
#[inline]
pub(super) fn key_of_inbound(parsed: &Parsed, protocol: Protocol) -> OutsideKey {
    OutsideKey {
        protocol,
        external: (parsed.destination, parsed.destination_port),
        far: (parsed.source, remote_port(protocol, parsed.source_port)),
    }
}

/// The same of the packet that an error from outside is about.
pub(super) fn key_of_quote(quote: &Quote) -> OutsideKey {
    OutsideKey {
        protocol: quote.protocol,
        external: (quote.source.address.to_bits(), quote.source.port),
        far: (quote.destination.address.to_bits(), remote_port(quote.protocol, quote.destination.port)),
    }
}

impl Shard {
    /// The live flow of this internal endpoint to this remote one.
    #[inline(always)]
    pub(super) fn live_flow(&self, key: &InternalKey, near: (u32, u16), now: Instant) -> Option<u32> {
        if self.flows.is_empty() { None } else { self.find_live_flow(key, near, now) }
    }

    fn find_live_flow(&self, key: &InternalKey, near: (u32, u16), now: Instant) -> Option<u32> {
        let found = self.flows.find_inside(&InsideKey::new(key, near.0, near.1))?;
        self.flows.get(found).is_alive(now).then_some(found)
    }

    /// The live flow with this external endpoint and this remote one outside.
    pub(super) fn live_flow_outside(&self, key: &OutsideKey, now: Instant) -> Option<u32> {
        self.flows.find_outside(key).filter(|index| self.flows.get(*index).is_alive(now))
    }

    /// Whether a mapping has this entry of the port table: one of this worker's, not out of date.
    pub(super) fn is_mapped(&self, mapping: MappingIndex, now: Instant) -> bool {
        mapping != MappingIndex::SHARED && self.is_alive(mapping.0, now)
    }

    /// What the rules say of a packet that belongs to nothing yet: the remote endpoint outside of the flow it is to open; None
    /// when it is to have a mapping, or its endpoint has one and the destination stays.
    pub(super) fn flow_wanted(
        &self,
        key: &InternalKey,
        near: (u32, u16),
        has_mapping: bool,
        action: RuleAction,
    ) -> Option<(u32, u16)> {
        match action {
            RuleAction::Redirect(redirection) => {
                // One subscriber's flows go to one target, whatever their ports.
                let hash = self.hash.hash(u64::from(key.realm.0) << 32 | u64::from(key.address), TARGET_HASH);
                Some(self.shared.redirection(redirection)?.far(key.protocol, near, hash))
            }
            RuleAction::Translate { mapping: MappingKind::EndpointDependent, pool } => {
                // The external endpoint of a static one is its own, like that of a mapping.
                let has_own =
                    has_mapping || self.shared.statics.by_internal(key).is_some() || self.has_formula(key, pool);
                (!has_own).then_some(near)
            }
            RuleAction::Translate { .. } | RuleAction::NoTranslation | RuleAction::Drop => None,
        }
    }

    /// Whether ports of the pool that is wanted, or else of the subscriber's own, are somebody's by a formula (RFC 7422): none of
    /// those is shared.
    fn has_formula(&self, key: &InternalKey, wanted: Option<PoolId>) -> bool {
        let pool = wanted.or_else(|| self.shared.pool_for(key.realm, Ipv4Addr::from_bits(key.address)));
        pool.is_some_and(|pool| self.shared.formula(pool).is_some())
    }

    /// Whether an address can be a flow's remote one: flows are not hairpinned.
    pub(super) fn is_far_address(&self, address: u32) -> bool {
        destination_is_valid(address) && self.local.lookup(address).is_none()
    }

    /// Makes the flow of a packet that wants one, if it may open anything.
    pub(super) fn open_flow<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        key: &InternalKey,
        near: (u32, u16),
        (far, action): ((u32, u16), RuleAction),
        sink: &mut S,
    ) -> Result<Option<u32>, Fate> {
        let Arrival { now, meta, parsed } = at;
        if !self.is_far_address(far.0) {
            return Err(Fate::Done(Verdict::DestinationInvalid));
        }
        self.way_out_to(at, bytes, far.0, sink)?;
        if parsed.fragment_offset != 0 {
            // Only the first fragment of a datagram, which has the ports, opens anything.
            return Err(Fate::Done(Verdict::FragmentRefused));
        }
        if key.protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) {
            return Err(Fate::Done(Verdict::TcpNoSession));
        }
        let wanted = action.pool();
        match self.create_flow(now, key, near, far, wanted) {
            Ok(flow) => Ok(Some(flow)),
            // A port of its own does as well, where the subscriber can have one: in blocks it may have some left when none is to be
            // had for sharing. What changes the destination needs a flow.
            Err(Verdict::PortsExhausted) if matches!(action, RuleAction::Translate { .. }) => Ok(None),
            Err(verdict) => Err(self.refuse(now, Unmade { key, verdict, wanted }, meta, bytes, sink)),
        }
    }

    /// Makes a flow from an internal endpoint to `near`, which is `far` outside, by the pool that a rule wants or the subscriber's own;
    /// there is no live one.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it; nothing is changed then.
    pub(super) fn create_flow(
        &mut self,
        now: Instant,
        key: &InternalKey,
        near: (u32, u16),
        far: (u32, u16),
        wanted: Option<PoolId>,
    ) -> Result<u32, Verdict> {
        if let Some(dead) = self.flows.find_inside(&InsideKey::new(key, near.0, near.1)) {
            if !self.may_end_mapping() {
                return Err(Verdict::LogFull);
            }
            self.end_flow(now, dead);
        }
        if self.flows.is_full() {
            return Err(Verdict::FlowTableFull);
        }
        let known = self.subscribers.find(key.realm, key.address);
        let penalty = known.and_then(|slot| {
            self.settle_penalty(now, slot);
            self.penalty_pool(slot)
        });
        let own = || self.shared.pool_for(key.realm, Ipv4Addr::from_bits(key.address));
        let pool = penalty.or(wanted).or_else(own).ok_or(Verdict::SourceNotSubscriber)?;
        if self.shared.formula(pool).is_some() {
            // Each port is somebody's by the formula, which nothing here may contradict.
            return Err(Verdict::PortsExhausted);
        }
        let facts = self.shared.pools[pool.index()];
        if self.shared.has_only_closed(&facts, key.realm, key.address) {
            return Err(Verdict::AddressDraining);
        }
        let class = port_class(key.port, &facts);
        let subscriber = match known {
            Some(slot) => slot,
            None => self.create_flow_subscriber(key, pool, &facts, class)?,
        };
        if let Err(verdict) = self.admit_record().and_then(|()| self.admit_flow(now, subscriber)) {
            self.forget_subscriber_if_new(now, subscriber, true);
            return Err(verdict);
        }
        // Counted first, so that the subscriber stays while a dead flow of its own is cleared away.
        self.subscribers.count_flow(subscriber);
        let held = match self.share_port(now, key, (pool, &facts), class, subscriber, far) {
            Ok(held) => held,
            Err(verdict) => {
                self.uncount_flow(now, subscriber, key.protocol);
                return Err(verdict);
            }
        };
        let (port, address) = (held.slot, held.address);
        let external = held.key.external;
        let first = self.lifetimes.first(key.protocol, near.1, Side::Inside);
        let (state, expires) = (first.state, now + first.lifetime);
        let is_hairpin = false;
        let new = NewFlow { internal: *key, near, far, external, state, expires, port, subscriber, is_hairpin };
        self.make_room_for_flow();
        let Ok(index) = self.flows.insert(&new, now) else {
            self.let_go(&held);
            self.uncount_flow(now, subscriber, key.protocol);
            return Err(Verdict::FlowTableFull);
        };
        self.shared_ports.take(port, subscriber, held.opens);
        if held.opens {
            self.subscribers.count_shared_port(subscriber, key.protocol);
        }
        self.charge_flow(now, subscriber, key.protocol);
        self.subscribers.get_mut(subscriber).note_place(address, self.shared.pool_of(address));
        self.note_flow(EventKind::FlowCreated, now, index);
        self.counters.flows_created += 1;
        self.counters.sessions_created += 1;
        if key.protocol == Protocol::Tcp && self.syns.forget(endpoint(external), endpoint(far)) {
            self.counters.unsolicited_syns_matched += 1;
        }
        Ok(index)
    }

    /// One flow of a subscriber less; with the last of all it has, the subscriber goes.
    pub(super) fn uncount_flow(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        self.subscribers.uncount_flow(subscriber);
        self.watch_left(now, subscriber, protocol);
        if let Some(paired) = self.subscribers.remove_if_idle(subscriber) {
            self.part_with(now, subscriber, paired);
        }
    }

    /// Whether no flow, over or not, keeps this five-tuple from another. What has rested long enough goes.
    pub(super) fn is_rest_over(&mut self, now: Instant, key: &OutsideKey) -> bool {
        match self.flows.find_outside(key) {
            None => true,
            Some(index) => {
                let is_over = self.flows.get(index).rests() && now >= self.flows.get(index).expires();
                if is_over {
                    self.end_rest(index);
                }
                is_over
            }
        }
    }

    /// What rests may be another's from now on.
    pub(super) fn end_rest(&mut self, index: u32) {
        let key = self.flows.get(index).outside_key();
        self.flows.end_rest(index);
        self.shared.release(&key, self.worker);
    }

    /// Where there is no room for one more flow, the one that has rested longest goes.
    pub(super) fn make_room_for_flow(&mut self) {
        if let Some(index) = self.flows.in_the_way() {
            self.end_rest(index);
        }
    }

    /// How long the five-tuple of a flow that ends now is kept from others, as a mapping's port is (RFC 6888 REQ-8): what comes late
    /// from its very remote endpoint must reach nobody else.
    pub(super) fn rest_of_flow(&self, flow: &Flow) -> Duration {
        let Some(address) = self.shared.address_index(Ipv4Addr::from_bits(flow.external().0)) else {
            return Duration::ZERO;
        };
        let facts = self.shared.facts(address);
        let was_closed = flow.protocol() == Protocol::Tcp && flow.state() == TcpState::Closing;
        // Flows are filtered by nature.
        let is_free = facts.reuse_at_once.filtered || facts.reuse_at_once.tcp_closed && was_closed;
        if is_free { Duration::ZERO } else { facts.reuse_delay }
    }

    /// Ends a flow. Its five-tuple rests, and the shared port stays for a while.
    pub(super) fn end_flow(&mut self, now: Instant, index: u32) {
        self.note_flow(EventKind::FlowEnded, now, index);
        let flow = self.flows.get(index);
        let (port, era, subscriber, protocol) = (flow.port, flow.era(), flow.subscriber, flow.protocol());
        let key = flow.outside_key();
        match era {
            Some(era) => {
                self.flows.remove(index);
                self.shared.balance.leave(era);
            }
            None => {
                match self.rest_of_flow(flow) {
                    Duration::ZERO => {
                        self.flows.remove(index);
                        self.shared.release(&key, self.worker);
                    }
                    rest => self.flows.rest(index, now + rest),
                }
                let given_back = self.shared_ports.give_back(port, subscriber, now);
                if let Some(record) = self.shared_ports.get(port).filter(|_| given_back.is_idle) {
                    self.shared.ports.leave(record.group().address(), protocol, record.port(), self.worker);
                }
                if given_back.counts_no_more {
                    self.subscribers.uncount_shared_port(subscriber, protocol);
                }
            }
        }
        self.uncount_flow(now, subscriber, protocol);
        self.counters.flows_removed += 1;
        self.counters.sessions_removed += 1;
    }

    /// A packet from inside that belongs to a flow: state, timer, rewriting.
    #[cold]
    #[inline(never)]
    pub(super) fn outbound_by_flow<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        datagram: Option<DatagramIndex>,
        index: u32,
        sink: &mut S,
    ) -> Fate {
        let Arrival { parsed, .. } = at;
        if parsed.class == Class::IcmpReply {
            return Fate::Done(Verdict::IcmpTypeUnsupported);
        }
        let (far, external) = (self.flows.get(index).far(), self.flows.get(index).external());
        if self.flows.get(index).is_hairpin() {
            return self.hairpin_by_flow(at, bytes, datagram, index, sink);
        }
        let hop = match self.way_out_to(at, bytes, far.0, sink) {
            Ok(hop) => hop,
            Err(fate) => return fate,
        };
        self.advance_flow(at, bytes, index, Side::Inside);
        let outside = Parsed { destination: far.0, ..*parsed };
        let identification = self.identification_outside(&outside, external.0, datagram);
        if parsed.destination != far.0 || parsed.destination_port != far.1 {
            // A query identifier stands for both ports, and changes once.
            let port = if parsed.protocol() == Some(Protocol::Icmp) { parsed.destination_port } else { far.1 };
            let change =
                Rewrite { end: End::Destination, address: far.0, port, identification: None, decrement_ttl: false };
            rewrite(bytes, parsed, &change);
        }
        let change =
            Rewrite { end: End::Source, address: external.0, port: external.1, identification, decrement_ttl: true };
        rewrite(bytes, parsed, &change);
        self.finish(bytes, parsed, &hop, far.0, Verdict::Outbound, sink)
    }

    /// The first half of a hairpin by a flow: what a target answers to another subscriber.
    fn hairpin_by_flow<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        datagram: Option<DatagramIndex>,
        index: u32,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        if parsed.ttl <= 1 {
            self.send_error(now, Side::Inside, meta, Reason::TtlExpired, bytes, sink);
            return Fate::Done(Verdict::TtlExpired);
        }
        let Some(pool_address) = self.local.pool_address(parsed.destination) else {
            return Fate::Done(Verdict::NoMapping);
        };
        self.advance_flow(at, bytes, index, Side::Inside);
        let (address, port) = self.flows.get(index).external();
        let identification = self.identification_outside(parsed, address, datagram);
        rewrite(bytes, parsed, &Rewrite { end: End::Source, address, port, identification, decrement_ttl: false });
        let identification = identification.unwrap_or(parsed.identification);
        let translated = Parsed { source: address, source_port: port, identification, ..*parsed };
        let meta = PacketMeta { record: 0, ..meta };
        self.hairpin(Arrival { parsed: &translated, meta, ..at }, bytes, pool_address, sink)
    }

    /// A packet to an external endpoint that flows share, and that is no other worker's.
    #[cold]
    #[inline(never)]
    pub(super) fn inbound_by_flow<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        protocol: Protocol,
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        let key = key_of_inbound(parsed, protocol);
        let found = self.live_flow_outside(&key, now).filter(|index| self.is_via(*index, via));
        match found {
            Some(index) => self.enter_by_flow(at, bytes, index, via, sink),
            None => self.not_in_a_flow(at, bytes, via),
        }
    }

    /// Whether packets of a flow from its remote endpoint come this way.
    pub(super) fn is_via(&self, index: u32, via: Via) -> bool {
        self.flows.get(index).is_hairpin() == (via == Via::Hairpin)
    }

    /// A packet from the remote endpoint of a flow.
    pub(super) fn enter_by_flow<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        index: u32,
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        let flow = self.flows.get(index);
        let (protocol, far) = (flow.protocol(), flow.far());
        let (realm, internal, near) = (flow.realm(), flow.internal(), flow.near());
        // Also of one that began while it might.
        if via == Via::Hairpin && !self.shared.may_hairpin(self.shared.realm_of(at.meta.ingress), realm) {
            return Fate::Done(Verdict::HairpinRefused);
        }
        let inside = InternalKey { realm, protocol, address: internal.0, port: internal.1 };
        if let Err(verdict) = self.filter_flow(now, false, index, &inside) {
            return Fate::Done(verdict);
        }
        let hop = match self.way_in_to(at, bytes, realm, internal.0, via, sink) {
            Ok(hop) => hop,
            Err(fate) => return fate,
        };
        self.advance_flow(at, bytes, index, Side::Outside);
        if near != far {
            let port = if protocol == Protocol::Icmp { parsed.source_port } else { near.1 };
            let change =
                Rewrite { end: End::Source, address: near.0, port, identification: None, decrement_ttl: false };
            rewrite(bytes, parsed, &change);
        }
        let change = Rewrite {
            end: End::Destination,
            address: internal.0,
            port: internal.1,
            identification: None,
            decrement_ttl: true,
        };
        rewrite(bytes, parsed, &change);
        self.finish(bytes, parsed, &hop, internal.0, via.verdict(), sink)
    }

    /// The external endpoint is in use, but not with this remote one: address- and port-dependent filtering by nature.
    fn not_in_a_flow(&mut self, at: Arrival<'_>, bytes: &[u8], via: Via) -> Fate {
        let Arrival { parsed, .. } = at;
        if via == Via::Hairpin {
            return Fate::Done(Verdict::Filtered);
        }
        if let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source) {
            return Fate::Done(verdict);
        }
        if parsed.class == Class::Tcp && tcp::opens(Flags(parsed.tcp_flags)) {
            return self.hold_syn(at, bytes);
        }
        Fate::Done(Verdict::Filtered)
    }

    /// What a packet does to the state and the timer of its flow.
    fn advance_flow(&mut self, at: Arrival<'_>, bytes: &[u8], index: u32, from: Side) {
        let Arrival { now, parsed, .. } = at;
        if parsed.class == Class::Tcp {
            let advance = self.advance_tcp(now, 0, SessionRef::Flow(index), from, bytes, parsed);
            if let Some(expires) = advance.expires {
                self.flows.get_mut(index).refresh(advance.state, expires);
            }
            return;
        }
        let protocol = self.flows.get(index).protocol();
        if protocol == Protocol::Tcp {
            // A later fragment: it changes nothing.
            return;
        }
        // As of mappings: see `refresh_from_outside`.
        let (before, is_answer) = (self.flows.get(index).state(), from != self.flows.get(index).opened_from());
        let is_first_answer = is_answer && before == TcpState::UNANSWERED;
        if from == Side::Inside || self.shared.settings().inbound_refresh || is_first_answer {
            let state = if is_answer { TcpState::Established } else { before };
            let expires = now + self.lifetime(0, SessionRef::Flow(index), state);
            self.flows.get_mut(index).refresh(state, expires);
        }
    }

    /// Reclaims flows that are out of date, and ports that carry none; bounded like all of the sweep.
    pub(super) fn sweep_flows(&mut self, now: Instant, elapsed: u64) {
        let created = self.counters.flows_created - self.sweep.flows_created;
        self.sweep.flows_created = self.counters.flows_created;
        if self.flows.has_no_records() && self.shared_ports.len() == 0 {
            return;
        }
        let end = self.flows.walk_end();
        for _ in 0..super::sweep::budget(end, elapsed, created * RECORDS_PER_CREATED) {
            let index = self.sweep.flow_hand;
            self.sweep.flow_hand = if index + 1 >= end { 1 } else { index + 1 };
            if index < end {
                self.shorten_flow(now, index);
            }
            let is_over = index < end && self.flows.get(index).is_in_use() && {
                let flow = self.flows.get(index);
                !flow.is_alive(now) || self.is_flow_overdue(index, now)
            };
            if is_over && self.may_end_mapping() {
                self.end_flow(now, index);
            }
            let rested = index < end && {
                let flow = self.flows.get(index);
                flow.rests() && now >= flow.expires()
            };
            if rested {
                self.end_rest(index);
            }
        }
        self.sweep_shared_ports(now, elapsed);
    }

    /// Flows in the table, including those out of date and not yet reclaimed.
    pub fn flows_len(&self) -> usize {
        self.flows.len()
    }
}
