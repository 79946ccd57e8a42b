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

use std::sync::Arc;

use wire::tcp::Flags;

use super::Arrival;
use super::Fate;
use super::Shard;
use super::inbound::Via;
use super::local::Reason;
use super::notes::Unmade;
use super::outbound::remote_port;
use super::port_choice::UNPAIRED;
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
use crate::ports::PortClass;
use crate::ports::PortRange;
use crate::ports::Taker;
use crate::ports::Unshared;
use crate::rewrite::End;
use crate::rewrite::Rewrite;
use crate::rewrite::rewrite;
use crate::settings::MappingKind;
use crate::settings::Pooling;
use crate::settings::RuleAction;
use crate::shared::PoolFacts;
use crate::shared_ports::Group;
use crate::shared_ports::SharedPort;
use crate::tcp;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Facing;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;

/// Shared ports looked at, at random, for one that no flow uses towards this remote endpoint, before another port is taken.
const PROBES: usize = 8;
/// And so many, one after the other from a random one on, when no other port is to be had: all, where there are no more.
pub(super) const LAST_PROBES: usize = 64;
/// Shared ports of all workers looked at, from a random one on, for some that this worker does not use yet.
pub(super) const BORROWABLE_PROBES: usize = 256;
/// Addresses of a pool looked at, from a random one on, for one with shared ports, when none has a free port.
const ADDRESS_PROBES: usize = 16;
/// Tells the hash that chooses targets from others.
const TARGET_HASH: u64 = 0x7a26;
/// Flows looked at for each one made since the last call: those that end must not fill the table.
const RECORDS_PER_CREATED: u64 = 4;

/// A shared port that is kept for a flow.
struct Held {
    /// The port's record.
    slot: u32,
    address: AddressIndex,
    /// The flow's five-tuple outside, which is this worker's.
    key: OutsideKey,
    /// This worker had no flow there before.
    joined: bool,
    /// Nobody had one there.
    opens: bool,
}

/// Where ports of other workers are looked for: blocks have those of all classes.
pub(super) fn class_in(facts: &PoolFacts, class: PortClass) -> Option<PortClass> {
    facts.blocks.is_none().then_some(class)
}

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

    /// Enters a subscriber that needs no port of its own: also where none is free but some are shared.
    fn create_flow_subscriber(
        &mut self,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Result<u32, Verdict> {
        match self.create_subscriber(key, pool, facts, class) {
            Err(Verdict::PortsExhausted) if facts.pooling == Pooling::Paired => {}
            created => return created,
        }
        let paired = self.address_with_shared_ports(key.protocol, facts, class).ok_or(Verdict::PortsExhausted)?;
        let slot = self.subscribers.insert(key.realm, key.address, pool, paired, self.shared.stamp());
        let slot = slot.ok_or(Verdict::SubscriberTableFull)?;
        self.shared.ports.pair(paired);
        Ok(slot)
    }

    /// A random address of the pool on which there are shared ports.
    fn address_with_shared_ports(
        &mut self,
        protocol: Protocol,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Option<AddressIndex> {
        let open = self.shared.choices(facts);
        let first = if open.is_empty() { 0 } else { self.random.below(open.len() as u32) as usize };
        let (before, after) = open.split_at(first);
        let mut from_there = after.iter().chain(before).take(ADDRESS_PROBES).copied();
        from_there.find(|address| self.has_shared_ports(Group::new(*address, protocol, class)))
    }

    /// Whether flows of any worker share ports of this group.
    pub(super) fn has_shared_ports(&self, group: Group) -> bool {
        match &self.shared.commons {
            Some(commons) => commons.map.count(group) > 0,
            None => self.shared_ports.count(group) > 0,
        }
    }

    /// A shared port that no other flow uses towards `far`: one that is there, at random, or one more, or one of other workers. Who has as
    /// many ports as he may opens no further one, and shares those that carry flows.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
    fn share_port(
        &mut self,
        now: Instant,
        key: &InternalKey,
        (pool, facts): (PoolId, &PoolFacts),
        class: PortClass,
        subscriber: u32,
        far: (u32, u16),
    ) -> Result<Held, Verdict> {
        let protocol = key.protocol;
        let may_open = self.admits_port(subscriber, protocol);
        let none = if may_open { Verdict::PortsExhausted } else { Verdict::SubscriberPortQuota };
        let paired = match self.settle_pairing(subscriber, key, pool, facts, class) {
            Ok(_) if self.subscribers.get(subscriber).pool != pool.0 => {
                self.address_in_other_pool(subscriber, pool, facts).ok_or(Verdict::PortsExhausted)?
            }
            Ok(paired) => paired,
            Err(_) => {
                // Where none is free some may be shared.
                let address = self.address_with_shared_ports(protocol, facts, class).ok_or(none)?;
                self.pair_with(subscriber, pool, address);
                address
            }
        };
        let address = match paired {
            UNPAIRED if may_open => {
                let free = self.choose_address(key, facts, class);
                free.or_else(|| self.address_with_shared_ports(protocol, facts, class)).ok_or(none)?
            }
            // One with free ports is of no use.
            UNPAIRED => self.address_with_shared_ports(protocol, facts, class).ok_or(none)?,
            paired => paired,
        };
        let group = Group::new(address, protocol, class);
        let min = if may_open { u32::from(facts.shared_ports_min) } else { 0 };
        if self.shared_ports.count(group) >= min
            && let Some(found) = self.probe_shared_ports(now, group, (subscriber, far), PROBES)
        {
            return Ok(found);
        }
        if may_open
            && let Some(slot) = self.add_shared_port(now, group, class)
            && let Some(held) = self.hold(now, slot, (subscriber, far))
        {
            return Ok(held);
        }
        let found = self.probe_shared_ports(now, group, (subscriber, far), LAST_PROBES);
        found.or_else(|| self.borrow_shared_port(now, facts, (group, class), (subscriber, far))).ok_or(none)
    }

    /// Looks at so many shared ports, at random, for one that this subscriber may have a flow towards `far` on, which no other flow is
    /// on; the last time at each, if there are no more.
    fn probe_shared_ports(
        &mut self,
        now: Instant,
        group: Group,
        (subscriber, far): (u32, (u32, u16)),
        probes: usize,
    ) -> Option<Held> {
        let count = self.shared_ports.count(group);
        if count == 0 {
            return None;
        }
        let first = self.random.below(count);
        for n in 0..probes as u32 {
            // The last look goes through them in order, so that it misses none.
            let slot = match probes {
                LAST_PROBES if n >= count => return None,
                LAST_PROBES => self.shared_ports.nth_from(group, first, n)?,
                _ => self.shared_ports.pick(group, &mut self.random)?,
            };
            if let Some(held) = self.hold(now, slot, (subscriber, far)) {
                return Some(held);
            }
        }
        None
    }

    /// Keeps a shared port for a flow of this subscriber towards `far` that is made next. None when another flow has the five-tuple, or
    /// the port may not carry it.
    fn hold(&mut self, now: Instant, slot: u32, (subscriber, far): (u32, (u32, u16))) -> Option<Held> {
        let record = self.shared_ports.get(slot)?;
        let (group, port) = (record.group(), record.port());
        let (address, protocol) = (group.address(), group.protocol());
        if self.shared.ports.is_going_out(address, protocol, port) || !self.may_carry(slot, subscriber) {
            return None;
        }
        let key = OutsideKey { protocol, external: (self.shared.address(address).to_bits(), port), far };
        if let Some(other) = self.flows.find_outside(&key) {
            let (is_alive, is_dead) = (self.flows.get(other).is_alive(now), self.flows.get(other).is_in_use());
            if is_alive || is_dead && !self.may_end_mapping() {
                return None;
            }
            if is_dead {
                self.end_flow(now, other);
            }
            if !self.is_rest_over(now, &key) {
                return None;
            }
            // With that flow it may carry nothing any more, or not count for its opener.
            if !self.may_carry(slot, subscriber) {
                return None;
            }
        }
        if !self.shared.claim(&key, self.worker) {
            return None;
        }
        if self.shared_ports.get(slot)?.flows() > 0 {
            return Some(Held { slot, address, key, joined: false, opens: false });
        }
        let Some(opens) = self.shared.ports.join(address, protocol, port) else {
            // Its home has given it back.
            self.shared.release(&key, self.worker);
            self.shared_ports.remove(slot);
            return None;
        };
        let held = Held { slot, address, key, joined: true, opens };
        if opens && !self.admits_port(subscriber, protocol) {
            // The flows of other workers that were there are over.
            self.let_go(&held);
            return None;
        }
        Some(held)
    }

    /// Gives back what [`Shard::hold`] took, as no flow is made.
    fn let_go(&mut self, held: &Held) {
        self.shared.release(&held.key, self.worker);
        if held.joined {
            self.shared.ports.leave(held.address, held.key.protocol, held.key.external.1, self.worker);
        }
    }

    /// Whether a shared port may carry one more flow of this subscriber.
    fn may_carry(&self, slot: u32, subscriber: u32) -> bool {
        let Some(record) = self.shared_ports.get(slot) else { return false };
        let (address, protocol) = (record.group().address(), record.group().protocol());
        let are_flows = || self.shared.ports.users(address, protocol, record.port()) > 0;
        record.may_carry(subscriber, self.admits_port(subscriber, protocol), are_flows)
    }

    /// A port that flows of other workers share and none of this one yet: it has a record from now on, and is found like the others.
    fn borrow_shared_port(
        &mut self,
        now: Instant,
        facts: &PoolFacts,
        (group, class): (Group, PortClass),
        flow: (u32, (u32, u16)),
    ) -> Option<Held> {
        let shared = Arc::clone(&self.shared);
        // Where this worker uses all there are, it has looked at them.
        let commons =
            shared.commons.as_ref().filter(|commons| commons.map.count(group) > self.shared_ports.count(group))?;
        let first = self.random.next_u64() as u16;
        let mut probes = 0;
        for port in commons.map.from(group, class_in(facts, class), first).take(BORROWABLE_PROBES) {
            if self.shared_ports.is_full() || probes >= LAST_PROBES {
                return None;
            }
            if self.shared_ports.find_port(group, port).is_some() {
                continue;
            }
            probes += 1;
            let Ok(slot) = self.shared_ports.add(group, port, now) else { return None };
            if let Some(held) = self.hold(now, slot, flow) {
                return Some(held);
            }
            if self.shared_ports.find_port(group, port) == Some(slot) {
                self.shared_ports.remove(slot);
            }
        }
        None
    }

    /// Takes one more port from the pool to be shared by flows of this worker.
    fn add_shared_port(&mut self, now: Instant, group: Group, class: PortClass) -> Option<u32> {
        if self.shared_ports.is_full() {
            return None;
        }
        let (address, protocol) = (group.address(), group.protocol());
        let facts = *self.shared.facts(address);
        if facts.is_guarded() {
            self.take_of_the_rest(&facts, address, protocol).ok()?;
        }
        let port = self.shared_port_among_others(&facts, group, class).or_else(|| {
            let (ports, workers) = (&self.shared.ports, self.shared.workers());
            ports.allocate(address, protocol, class, None, self.worker, workers, &mut self.random)
        });
        if facts.is_guarded() {
            self.settle_the_rest(address, protocol, port);
        }
        let port = port?;
        // Where it was another worker's before, this one may have a record of it still.
        let known = self.shared_ports.find_port(group, port);
        match known.map_or_else(|| self.shared_ports.add(group, port, now), Ok) {
            Ok(slot) => {
                self.shared.ports.publish(address, protocol, port, self.worker, MappingIndex::SHARED);
                let group = self.shared_ports.get(slot).map_or(group, SharedPort::group);
                if let Some(commons) = &self.shared.commons {
                    commons.map.add(group, port);
                }
                Some(slot)
            }
            Err(_) => {
                self.give_back_port(address, protocol, port);
                None
            }
        }
    }

    /// In a pool that gives out blocks, a port to be shared that lies where this worker has shared ports already, or in a block
    /// nobody has a port of: a block with one single port in it can be leased no more, so that shared ports anywhere would leave few.
    fn shared_port_among_others(&mut self, facts: &PoolFacts, group: Group, class: PortClass) -> Option<u16> {
        let blocks = facts.blocks.filter(|_| facts.slice_ports == 0)?;
        let (address, protocol) = (group.address(), group.protocol());
        for neighbour in [protocol, Protocol::Udp, Protocol::Tcp, Protocol::Icmp] {
            let slot = self.shared_ports.pick(Group::new(address, neighbour, class), &mut self.random);
            let Some(port) = slot.and_then(|slot| self.shared_ports.get(slot)).map(SharedPort::port) else { continue };
            let size = blocks.size.ports() as u16;
            let first = port / size * size;
            let range =
                PortRange { address, first: first.max(blocks.first), last: (first | (size - 1)).min(blocks.last) };
            // Where it stands alone, from other settings, there is no such range.
            if !range.contains(port) {
                continue;
            }
            let taken = self.shared.ports.allocate_within(&range, protocol, None, Taker::Anyone, &mut self.random);
            if taken.is_some() {
                return taken;
            }
        }
        let whole = PortRange { address, first: blocks.first, last: blocks.last };
        let block = self.shared.ports.free_block(&whole, blocks.size, &mut self.random)?;
        let range = PortRange::of_block(block);
        self.shared.ports.allocate_within(&range, protocol, None, Taker::Anyone, &mut self.random)
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
    fn is_rest_over(&mut self, now: Instant, key: &OutsideKey) -> bool {
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
        let end = self.shared_ports.walk_end();
        for _ in 0..super::sweep::budget(end, elapsed, 0) {
            let slot = self.sweep.shared_port_hand;
            self.sweep.shared_port_hand = if slot + 1 >= end { 1 } else { slot + 1 };
            let Some(group) = self.shared_ports.get(slot).map(SharedPort::group) else { continue };
            if self.shared_ports.is_idle_for(slot, self.idle_seconds(group.address()), now) {
                self.drop_shared_port(now, slot);
            }
        }
    }

    /// How long a shared port that carries nothing is kept: as long as the five-tuples of its last flows rest, and a mapping's port.
    fn idle_seconds(&self, address: AddressIndex) -> u32 {
        let facts = self.shared.facts(address);
        let rest = if facts.reuse_at_once.filtered { Duration::ZERO } else { facts.reuse_delay };
        u32::try_from(rest.as_micros().div_ceil(1_000_000)).unwrap_or(u32::MAX)
    }

    /// A port has carried nothing of this worker for long: it has rested, as nothing was sent from it for as long as a mapping's port
    /// rests, unless other workers use it.
    fn drop_shared_port(&mut self, now: Instant, slot: u32) {
        let Some(record) = self.shared_ports.get(slot) else { return };
        let (group, port) = (record.group(), record.port());
        let (address, protocol) = (group.address(), group.protocol());
        let owner = self.shared.ports.lookup(address, protocol, port);
        if owner != Some((self.worker, MappingIndex::SHARED)) {
            // Another's, who gives it back, or has by now.
            self.shared_ports.remove(slot);
            return;
        }
        match self.shared.ports.unshare(address, protocol, port) {
            Unshared::InUse => {}
            Unshared::WasInUse => self.shared_ports.begin_idling(slot, now),
            Unshared::Vacant => {
                self.shared_ports.remove(slot);
                if let Some(commons) = &self.shared.commons {
                    commons.map.remove(group, port);
                }
                self.give_back_port(address, protocol, port);
            }
        }
    }

    /// Flows in the table, including those out of date and not yet reclaimed.
    pub fn flows_len(&self) -> usize {
        self.flows.len()
    }

    /// External ports this worker has for flows to share, without those of other workers that it uses, too. For people and tests: looks
    /// at each.
    pub fn shared_ports_len(&self) -> usize {
        let records = (1..self.shared_ports.walk_end()).filter_map(|slot| self.shared_ports.get(slot));
        let is_own = |record: &&SharedPort| {
            let (group, port) = (record.group(), record.port());
            let owner = self.shared.ports.lookup(group.address(), group.protocol(), port);
            owner == Some((self.worker, MappingIndex::SHARED))
        };
        records.filter(is_own).count()
    }
}
