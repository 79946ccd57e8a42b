//! Ports that flows share: which one a new flow is put on, and how one comes to be shared and stops being so (ADR 11).
//!
//! ```text
//! share_port ─► one of this worker's, at random            ─► hold
//!            else one more from the pool (add_shared_port)  ─► hold
//!            else any of this worker's, in order            ─► hold
//!            else one of other workers (borrow_shared_port) ─► hold
//! hold       ─► the five-tuple is claimed among all workers, the worker joins the port; let_go undoes both
//! idle       ─► drop_shared_port, when none of any worker is on it
//! ```

use std::sync::Arc;

use super::Shard;
use super::port_choice::UNPAIRED;
use super::sweep::budget;
use crate::flow::OutsideKey;
use crate::mapping::InternalKey;
use crate::ports::PortClass;
use crate::ports::PortRange;
use crate::ports::Taker;
use crate::ports::Unshared;
use crate::settings::Pooling;
use crate::shared::PoolFacts;
use crate::shared_ports::Group;
use crate::shared_ports::SharedPort;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::verdict::Verdict;

/// Shared ports looked at, at random, for one that no flow uses towards this remote endpoint, before another port is taken.
const PROBES: usize = 8;
/// And so many, one after the other from a random one on, when no other port is to be had: all, where there are no more.
pub(super) const LAST_PROBES: usize = 64;
/// Shared ports of all workers looked at, from a random one on, for some that this worker does not use yet.
pub(super) const BORROWABLE_PROBES: usize = 256;
/// Addresses of a pool looked at, from a random one on, for one with shared ports, when none has a free port.
const ADDRESS_PROBES: usize = 16;

/// A shared port that is kept for a flow.
pub(super) struct Held {
    /// The port's record.
    pub(super) slot: u32,
    pub(super) address: AddressIndex,
    /// The flow's five-tuple outside, which is this worker's.
    pub(super) key: OutsideKey,
    /// This worker had no flow there before.
    joined: bool,
    /// Nobody had one there.
    pub(super) opens: bool,
}

/// Where ports of other workers are looked for: blocks have those of all classes.
pub(super) fn class_in(facts: &PoolFacts, class: PortClass) -> Option<PortClass> {
    facts.blocks.is_none().then_some(class)
}

impl Shard {
    /// Enters a subscriber that needs no port of its own: also where none is free but some are shared.
    pub(super) fn create_flow_subscriber(
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
        let paired = self.address_for_flows(key.protocol, facts, class).ok_or(Verdict::PortsExhausted)?;
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
        self.random_address(facts, |shard, address| shard.has_shared_ports(Group::new(address, protocol, class)))
    }

    /// A random address of a pool without room for a mapping, where flows get a port all the same: a single one of a block that nobody
    /// can lease, or one that is shared.
    fn address_for_flows(&mut self, protocol: Protocol, facts: &PoolFacts, class: PortClass) -> Option<AddressIndex> {
        let single =
            self.random_address(facts, |shard, address| shard.has_port_for_flows(facts, address, protocol, class));
        single.or_else(|| self.address_with_shared_ports(protocol, facts, class))
    }

    /// Of some addresses of the pool, from a random one on, the first that `suits`.
    fn random_address(
        &mut self,
        facts: &PoolFacts,
        suits: impl Fn(&Shard, AddressIndex) -> bool,
    ) -> Option<AddressIndex> {
        let open = self.shared.choices(facts);
        let first = if open.is_empty() { 0 } else { self.random.below(open.len() as u32) as usize };
        let (before, after) = open.split_at(first);
        let mut from_there = after.iter().chain(before).take(ADDRESS_PROBES).copied();
        from_there.find(|address| suits(self, *address))
    }

    /// Whether flows get a port of a pool of blocks that is in none: without a free block there may be one.
    pub(super) fn has_port_for_flows(
        &self,
        facts: &PoolFacts,
        address: AddressIndex,
        protocol: Protocol,
        class: PortClass,
    ) -> bool {
        let gives_blocks = facts.blocks.is_some() && facts.slice_ports == 0;
        gives_blocks && self.shared.ports.has_single_port(address, protocol, class)
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
    pub(super) fn share_port(
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
                let address = self.address_for_flows(protocol, facts, class).ok_or(none)?;
                self.pair_with(subscriber, pool, address);
                address
            }
        };
        let address = match paired {
            UNPAIRED if may_open => {
                let free = self.choose_address(key, facts, class);
                free.or_else(|| self.address_for_flows(protocol, facts, class)).ok_or(none)?
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
    pub(super) fn let_go(&mut self, held: &Held) {
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

    /// Looks at so many shared ports that each is looked at in time, and gives back those that have been idle for long.
    pub(super) fn sweep_shared_ports(&mut self, now: Instant, elapsed: u64) {
        let end = self.shared_ports.walk_end();
        for _ in 0..budget(end, elapsed, 0) {
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
