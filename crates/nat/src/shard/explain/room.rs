//! Whether there is room for something new, for who only asks: the twins of [`port_choice`](crate::shard::port_choice) and
//! [`dependent`](crate::shard::dependent) that take nothing.

use crate::flow::OutsideKey;
use crate::mapping::InternalKey;
use crate::ports::PortClass;
use crate::ports::PortRange;
use crate::settings::Pooling;
use crate::shard::Shard;
use crate::shard::port_choice::UNPAIRED;
use crate::shard::port_choice::port_class;
use crate::shard::port_sharing::BORROWABLE_PROBES;
use crate::shard::port_sharing::LAST_PROBES;
use crate::shard::port_sharing::class_in;
use crate::shared::PoolFacts;
use crate::shared_ports::Group;
use crate::shared_ports::SharedPort;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::verdict::Verdict;

/// What a flow that is to be made finds.
pub(super) struct RoomForFlow {
    /// The address its port would be of, where that is settled.
    pub(super) paired: Option<AddressIndex>,
    /// Whether a port is to be had there.
    pub(super) has_port: bool,
}

impl Shard {
    /// Where a flow of this pool towards `far` would get its port from. A subscriber that is new, or is to be settled anew, may get
    /// any address with room. `may_open`: a further port may count for it.
    pub(super) fn room_for_flow(
        &self,
        now: Instant,
        key: &InternalKey,
        pool: PoolId,
        far: (u32, u16),
        may_open: bool,
    ) -> Result<RoomForFlow, Verdict> {
        let facts = self.shared.pools[pool.index()];
        let class = port_class(key.port, &facts);
        let has_port = |address: AddressIndex| self.would_share_port(now, key, (&facts, class), address, far, may_open);
        let at = |address: AddressIndex| RoomForFlow { paired: Some(address), has_port: has_port(address) };
        let anywhere = || {
            let mut open = self.shared.choices(&facts).iter();
            RoomForFlow { paired: None, has_port: open.any(|address| has_port(*address)) }
        };
        let Some(slot) = self.subscribers.find(key.realm, key.address) else {
            if facts.pooling == Pooling::Arbitrary {
                return Ok(anywhere());
            }
            if let Some(home) = self.static_home(key, pool).filter(|home| self.has_room(&facts, *home, key, class)) {
                return Ok(at(home));
            }
            let open = self.shared.choices(&facts);
            let mut with_room = open.iter().filter(|address| self.has_room(&facts, **address, key, class));
            if let Some(home) = self.static_home(key, pool).filter(|_| with_room.next().is_none()) {
                return Ok(at(home));
            }
            let takes_part = |address: &&AddressIndex| {
                self.has_room(&facts, **address, key, class)
                    || self.has_port_for_flows(&facts, **address, key.protocol, class)
                    || self.has_shared_ports(Group::new(**address, key.protocol, class))
            };
            let mut candidates = open.iter().filter(takes_part).peekable();
            if candidates.peek().is_none() {
                return Err(Verdict::PortsExhausted);
            }
            return Ok(RoomForFlow { paired: None, has_port: candidates.any(|address| has_port(*address)) });
        };
        let record = self.subscribers.get(slot);
        let (paired, is_settled) = (AddressIndex(record.paired), record.generation == self.shared.stamp());
        if self.would_be_of(slot, key, pool, self.penalty_now(now, slot)) != pool {
            return match self.address_in_other_pool(slot, pool, &facts) {
                None => Err(Verdict::PortsExhausted),
                Some(UNPAIRED) => Ok(anywhere()),
                Some(address) => Ok(at(address)),
            };
        }
        if is_settled && paired != UNPAIRED || self.fits(paired, key, pool, &facts) {
            return Ok(at(paired));
        }
        if let Some(home) = self.static_home(key, pool).filter(|_| facts.one_to_one) {
            return Ok(at(home));
        }
        Ok(self.place_in(&self.shared, slot, pool).map_or_else(anywhere, at))
    }

    /// Whether a flow towards `far` would get a port of this address: one that is shared already, or one more.
    fn would_share_port(
        &self,
        now: Instant,
        key: &InternalKey,
        (facts, class): (&PoolFacts, PortClass),
        address: AddressIndex,
        far: (u32, u16),
        may_open: bool,
    ) -> bool {
        let protocol = key.protocol;
        let group = Group::new(address, protocol, class);
        let external = self.shared.address(address).to_bits();
        let subscriber = self.subscribers.find(key.realm, key.address).unwrap_or(0);
        let is_free = |shared: &SharedPort| {
            let port = shared.port();
            let users = self.shared.ports.users(address, protocol, port);
            let is_there = self.shared.ports.is_shared(address, protocol, port);
            if !is_there
                || self.shared.ports.is_going_out(address, protocol, port)
                || !shared.may_carry(subscriber, may_open, || users > 0)
            {
                return false;
            }
            let outside = OutsideKey { protocol, external: (external, port), far };
            let Some(flow) = self.flows.find_outside(&outside) else {
                return !self.shared.is_claimed(&outside);
            };
            if self.flows.get(flow).rests() {
                return now >= self.flows.get(flow).expires();
            }
            if !self.is_free_once_over(flow) {
                return false;
            }
            // The dead one ends first; with it the port may carry nothing any more, or not count for its opener.
            let is_his = self.flows.get(flow).subscriber == subscriber && self.is_last_on_port(flow);
            let is_busy = shared.flows() > 1 || users > 1;
            let serves = may_open || is_busy || is_his && self.would_admit_port(key, 1);
            !self.flows.get(flow).is_alive(now) && self.events.would_end() && serves
        };
        if self.shared_ports.of_group(group, LAST_PROBES).any(is_free) {
            return true;
        }
        if self.shared_ports.is_full() {
            return false;
        }
        if self.would_borrow(group, class_in(facts, class), external, far, may_open) {
            return true;
        }
        if !may_open {
            return false;
        }
        if facts.is_guarded() && !self.has_beyond_guarantees(facts, address, protocol) {
            return false;
        }
        let has_block = || {
            let blocks = facts.blocks.filter(|_| facts.slice_ports == 0);
            blocks.is_some_and(|blocks| {
                let range = PortRange { address, first: blocks.first, last: blocks.last };
                self.shared.ports.blocks_free(&range, blocks.size) > 0
            })
        };
        self.shared.ports.free_of_class(address, protocol, class) > 0 || has_block()
    }

    /// Whether the five-tuple of a flow that is over needs no rest.
    fn is_free_once_over(&self, flow: u32) -> bool {
        self.rest_of_flow(self.flows.get(flow)) == Duration::ZERO
    }

    /// Whether other workers have a shared port of this group for a flow towards `far`, of those this one does not use.
    fn would_borrow(
        &self,
        group: Group,
        class: Option<PortClass>,
        external: u32,
        far: (u32, u16),
        may_open: bool,
    ) -> bool {
        let (address, protocol) = (group.address(), group.protocol());
        let Some(commons) = &self.shared.commons else { return false };
        let ports = commons.map.from(group, class, 0).take(BORROWABLE_PROBES);
        let mut unknown = ports.filter(|port| self.shared_ports.find_port(group, *port).is_none());
        unknown.any(|port| {
            (may_open || self.shared.ports.users(address, protocol, port) > 0)
                && !self.shared.ports.is_going_out(address, protocol, port)
                && !self.shared.is_claimed(&OutsideKey { protocol, external: (external, port), far })
        })
    }

    /// Whether somebody who is a target could be entered as a subscriber, reached at this external address.
    pub(super) fn would_enter_target(&self, key: &InternalKey, external: u32) -> Result<(), Verdict> {
        let pool = self.shared.pool_for(key.realm, key.address.into()).ok_or(Verdict::SourceNotSubscriber)?;
        let facts = self.shared.pools[pool.index()];
        if let Err(verdict) = self.would_get_address(key, pool, &facts) {
            let address = self.shared.address_index(external.into());
            let is_there = address.is_some_and(|address| self.shared.pool_of(address) == pool);
            let has_no_room = matches!(verdict, Verdict::PortsExhausted | Verdict::AddressDraining);
            if !has_no_room || facts.pooling != Pooling::Paired || !is_there {
                return Err(verdict);
            }
        }
        if self.subscribers.is_full() { Err(Verdict::SubscriberTableFull) } else { Ok(()) }
    }

    /// The pool that a subscriber is of when it gets a mapping of `pool`.
    pub(super) fn would_be_of(&self, slot: u32, key: &InternalKey, pool: PoolId, penalty: Option<PoolId>) -> PoolId {
        let record = self.subscribers.get(slot);
        if record.generation == self.shared.stamp() {
            return PoolId(record.pool);
        }
        self.stays_in(AddressIndex(record.paired), key, pool, penalty).unwrap_or(pool)
    }

    /// The address a subscriber has for new mappings of his pool: that which he is paired with, if it is one for them still (as
    /// [`Shard::settle_pairing`] finds it). None: any, as he is paired with none, or anew.
    pub(super) fn would_be_paired(
        &self,
        slot: u32,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
    ) -> Result<Option<AddressIndex>, Verdict> {
        let record = self.subscribers.get(slot);
        let paired = AddressIndex(record.paired);
        let is_settled = record.generation == self.shared.stamp();
        if let Some(by_formula) = self.address_by_formula(key, pool, facts).filter(|_| !is_settled) {
            return by_formula.map(Some);
        }
        let is_usable = || self.fits(paired, key, pool, facts);
        if paired != UNPAIRED && (is_settled || facts.pooling == Pooling::Paired && is_usable()) {
            return Ok(Some(paired));
        }
        let there =
            self.place_in(&self.shared, slot, pool).filter(|_| !is_settled && self.penalty_pool(slot).is_none());
        if there.is_some() {
            return Ok(there);
        }
        self.would_get_address(key, pool, facts).map(|()| None)
    }

    /// The address that [`Shard::enter_with_own_pool`] would pair a subscriber with; None: any with room.
    pub(super) fn would_go_to_own_pool(
        &self,
        slot: u32,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
    ) -> Result<Option<AddressIndex>, Verdict> {
        if let Some(by_formula) = self.address_by_formula(key, pool, facts) {
            return by_formula.map(Some);
        }
        match self.place_in_own_pool(slot, pool, facts) {
            Some(known) => Ok(Some(known)),
            None => self.would_get_address(key, pool, facts).map(|()| None),
        }
    }

    /// The address that the formula of a pool gives somebody, or why it gives him none. None: the pool has no formula.
    fn address_by_formula(
        &self,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
    ) -> Option<Result<AddressIndex, Verdict>> {
        let formula = self.shared.formula(pool)?;
        let slice = formula.slice_of(key.address).ok_or_else(|| formula.why_no_slice(key.address));
        Some(slice.map(|slice| self.shared.member(facts, slice.address)))
    }

    /// Whether who is new gets an address of this pool, as [`Shard::address_for`] finds it.
    pub(super) fn would_get_address(&self, key: &InternalKey, pool: PoolId, facts: &PoolFacts) -> Result<(), Verdict> {
        if let Some(by_formula) = self.address_by_formula(key, pool, facts) {
            return by_formula.map(|_| ());
        }
        let class = port_class(key.port, facts);
        let mut open = self.shared.choices(facts).iter();
        let has_address = facts.pooling == Pooling::Arbitrary
            || self.static_home(key, pool).is_some()
            || open.any(|address| self.has_room(facts, *address, key, class))
            || (facts.is_guarded() && self.address_with_part_of_guarantee(facts, key).is_some());
        if has_address { Ok(()) } else { Err(self.why_no_address(facts, key)) }
    }
}
