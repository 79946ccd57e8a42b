//! Which external address and port a new mapping gets, and what becomes of them when it ends.

use core::net::Ipv4Addr;

use super::Shard;
use crate::mapping::InternalKey;
use crate::ports::Parity;
use crate::ports::PortAim;
use crate::ports::PortClass;
use crate::ports::Share;
use crate::settings::Pooling;
use crate::shared::PoolFacts;
use crate::shared::Shared;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::verdict::Verdict;

/// Marks a subscriber of a pool with arbitrary pooling: paired with no address.
pub(super) const UNPAIRED: AddressIndex = AddressIndex(u32::MAX);

/// Attempts of arbitrary pooling to find an address that still has a port. More than one is needed only
/// when another worker takes the last port of the chosen address at the same moment.
pub(super) const ARBITRARY_ATTEMPTS: usize = 8;

impl Shard {
    /// Enters a subscriber that has no mapping yet, paired with an address if its pool pairs.
    pub(super) fn create_subscriber(
        &mut self,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Result<u32, Verdict> {
        let paired = self.address_for(key, pool, facts, class)?;
        let generation = self.shared.stamp();
        let slot = self.subscribers.insert(key.realm, key.address, pool, paired, generation);
        let slot = slot.ok_or(Verdict::SubscriberTableFull)?;
        if paired != UNPAIRED {
            self.shared.ports.pair(paired);
        }
        if facts.is_guarded() {
            self.find_room_for_pledge(slot, key, pool, facts, class);
        }
        Ok(slot)
    }

    /// Pledges a new subscriber its ports; others may have been faster at the address that was chosen.
    fn find_room_for_pledge(
        &mut self,
        slot: u32,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
        class: PortClass,
    ) {
        for _ in 0..ARBITRARY_ATTEMPTS {
            let paired = AddressIndex(self.subscribers.get(slot).paired);
            if self.pledge(slot, facts, paired) {
                return;
            }
            let Ok(next) = self.address_for(key, pool, facts, class) else { return };
            if next == paired {
                // None has room for all of it.
                return;
            }
            self.pair_with(slot, pool, next);
        }
    }

    /// The address a subscriber is to be paired with: that of his slice, or one with room.
    ///
    /// # Errors
    /// [`Verdict::PortsExhausted`] when the pool has no room, [`Verdict::AddressDraining`] when all of it drains,
    /// [`Verdict::BoundaryAddress`] or [`Verdict::SourceNotSubscriber`] when it has no slice for him.
    pub(super) fn address_for(
        &mut self,
        key: &InternalKey,
        pool: PoolId,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Result<AddressIndex, Verdict> {
        // Who has a slice has its address with it.
        let formula = self.shared.formula(pool);
        let slice = match formula {
            Some(formula) => Some(formula.slice_of(key.address).ok_or_else(|| formula.why_no_slice(key.address))?),
            None => None,
        };
        match (slice, facts.pooling) {
            (Some(slice), _) => Ok(self.shared.member(facts, slice.address)),
            (None, Pooling::Arbitrary) => Ok(UNPAIRED),
            (None, Pooling::Paired) => {
                let home = self.static_home(key, pool);
                let suits = home.filter(|home| facts.one_to_one || self.has_room(facts, *home, key, class));
                let chosen = suits.or_else(|| self.choose_address(key, facts, class));
                // Static mappings need no room.
                chosen.or(home).ok_or_else(|| self.why_no_address(facts, key))
            }
        }
    }

    /// Why a pool has no address for whoever comes new.
    #[cold]
    pub(super) fn why_no_address(&self, facts: &PoolFacts, key: &InternalKey) -> Verdict {
        let drains = self.shared.has_only_closed(facts, key.realm, key.address);
        if drains { Verdict::AddressDraining } else { Verdict::PortsExhausted }
    }

    /// Removes a subscriber that was entered for a mapping that could not be made.
    pub(super) fn forget_subscriber_if_new(&mut self, now: Instant, subscriber: u32, is_new: bool) {
        if is_new && let Some(paired) = self.subscribers.remove_if_idle(subscriber) {
            self.part_with(now, subscriber, paired);
        }
    }

    /// Takes a free external port at random: of the subscriber's own ones if it has such, else on the paired address, or on any
    /// of the pool.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
    #[inline]
    pub(super) fn take_port(
        &mut self,
        now: Instant,
        key: &InternalKey,
        facts: &PoolFacts,
        class: PortClass,
        subscriber: u32,
        aim: Option<PortAim>,
    ) -> Result<(AddressIndex, u16), Verdict> {
        // RFC 4787 §4.2.2 REQ-4 as relaxed by RFC 7857 §8. A query identifier has no parity.
        let parity = (facts.parity && key.protocol != Protocol::Icmp).then(|| Parity::of(key.port));
        if !facts.gives_single_ports() {
            return self.take_own_port(now, key, facts, parity, subscriber, aim);
        }
        if facts.is_guarded() {
            return self.take_port_beside_guarantees(key, facts, class, parity, subscriber);
        }
        let paired = AddressIndex(self.subscribers.get(subscriber).paired);
        if let Some(aim) = aim.filter(|_| paired != UNPAIRED)
            && let Some(port) = self.shared.ports.allocate_near(paired, key.protocol, parity, aim)
        {
            return Ok((paired, port));
        }
        let attempts = if paired == UNPAIRED { ARBITRARY_ATTEMPTS } else { 1 };
        for _ in 0..attempts {
            let address = if paired == UNPAIRED {
                self.choose_address(key, facts, class).ok_or(Verdict::PortsExhausted)?
            } else {
                paired
            };
            // Parity is a preference: a port of the other one serves better than none.
            for wanted in [parity, None] {
                let workers = self.shared.workers();
                let ports = &self.shared.ports;
                if let Some(port) =
                    ports.allocate(address, key.protocol, class, wanted, self.worker, workers, &mut self.random)
                {
                    return Ok((address, port));
                }
                if parity.is_none() {
                    break;
                }
            }
        }
        Err(Verdict::PortsExhausted)
    }

    /// Whether a port is withheld for a forward: nobody else gets it, however soon.
    #[inline]
    pub(super) fn is_forwarded(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let (statics, balance) = (&self.shared.statics, &self.shared.balance);
        let external = || self.shared.address(address).to_bits();
        !statics.is_empty() && statics.is_forwarded(external(), protocol, port)
            || !balance.is_empty() && balance.find(external(), protocol, port).is_some()
    }

    /// The one address of a pool that mappings of this subscriber get; None where it may be any, or is not chosen yet.
    pub(super) fn address_in(&self, key: &InternalKey, pool: PoolId) -> Option<AddressIndex> {
        let slot = self.subscribers.find(key.realm, key.address)?;
        let record = self.subscribers.get(slot);
        let paired = AddressIndex(record.paired);
        let is_paired_there = paired != UNPAIRED && self.shared.pool_of(paired) == pool;
        if is_paired_there || self.pool_of_record(slot).or_else(|| self.pool_of_subscriber(slot)) == Some(pool) {
            return is_paired_there.then_some(paired);
        }
        let facts = self.shared.pools.get(pool.index())?;
        if !facts.gives_single_ports() || facts.one_to_one {
            return None;
        }
        self.address_in_other_pool(slot, pool, facts).filter(|address| *address != UNPAIRED)
    }

    /// Whether a subscriber whom a rule entered with a pool of single ports is entered with his own when that one, of blocks or slices, is
    /// to give him something: only there he can have any, and single ports serve him from wherever he is entered.
    pub(super) fn goes_to_own_pool(&self, slot: u32, pool: PoolId, facts: &PoolFacts) -> bool {
        let shared = &self.shared;
        if facts.gives_single_ports() || facts.one_to_one {
            return false;
        }
        let record = self.subscribers.get(slot);
        let Some(entered) = shared.pools.get(usize::from(record.pool)) else { return false };
        let is_elsewhere = record.generation == shared.stamp() && record.pool != pool.0;
        is_elsewhere
            && entered.gives_single_ports()
            && !entered.one_to_one
            && !entered.is_guarded()
            && shared.pool_for(record.realm(), Ipv4Addr::from_bits(record.address)) == Some(pool)
    }

    /// Where [`Shard::goes_to_own_pool`] finds him a place that he has had: with blocks of his, or what he had last there. None also where
    /// a formula says it, or nobody is paired.
    pub(super) fn place_in_own_pool(&self, slot: u32, pool: PoolId, facts: &PoolFacts) -> Option<AddressIndex> {
        if facts.pooling != Pooling::Paired || self.shared.formula(pool).is_some() {
            return None;
        }
        let is_open =
            |address: &AddressIndex| self.shared.pool_of(*address) == pool && !self.shared.facts(*address).is_closed;
        let of_blocks = self.blocks_of(slot).map(|block| block.address()).find(is_open);
        of_blocks.or_else(|| self.place_in(&self.shared, slot, pool))
    }

    /// Enters a subscriber with his own pool, if that is due, and notes where he was. False: he is where he was.
    ///
    /// # Errors
    /// The verdict of the packet that wanted something there, where his pool has no place for him.
    #[cold]
    pub(super) fn enter_with_own_pool(
        &mut self,
        subscriber: u32,
        key: &InternalKey,
        (pool, facts): (PoolId, &PoolFacts),
        class: PortClass,
    ) -> Result<bool, Verdict> {
        if !self.goes_to_own_pool(subscriber, pool, facts) {
            return Ok(false);
        }
        let new = match self.place_in_own_pool(subscriber, pool, facts) {
            Some(known) => known,
            None => self.address_for(key, pool, facts, class)?,
        };
        let old = AddressIndex(self.subscribers.get(subscriber).paired);
        self.pair_with(subscriber, pool, new);
        if old != UNPAIRED {
            self.subscribers.get_mut(subscriber).set_elsewhere(Some(old));
        }
        Ok(true)
    }

    /// Takes a port of a pool that the subscriber is not entered with: rules send some of its flows to one pool and others to
    /// another. Who is paired has an address there too, always the same one. Blocks are for the pool it is entered with.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
    #[cold]
    pub(super) fn take_port_of(
        &mut self,
        subscriber: u32,
        key: &InternalKey,
        (pool, facts): (PoolId, &PoolFacts),
        class: PortClass,
    ) -> Result<(AddressIndex, u16), Verdict> {
        if !facts.gives_single_ports() {
            return Err(Verdict::PortsExhausted);
        }
        let parity = (facts.parity && key.protocol != Protocol::Icmp).then(|| Parity::of(key.port));
        let own = self.address_in_other_pool(subscriber, pool, facts);
        let address = match own.ok_or(Verdict::PortsExhausted)? {
            UNPAIRED => self.choose_address(key, facts, class).ok_or(Verdict::PortsExhausted)?,
            own => own,
        };
        if facts.is_guarded() {
            self.take_of_the_rest(facts, address, key.protocol)?;
        }
        let mut taken = None;
        for wanted in [parity, None] {
            let (ports, workers) = (&self.shared.ports, self.shared.workers());
            taken = ports.allocate(address, key.protocol, class, wanted, self.worker, workers, &mut self.random);
            if taken.is_some() {
                break;
            }
        }
        if facts.is_guarded() {
            self.settle_the_rest(address, key.protocol, taken);
        }
        taken.map(|port| (address, port)).ok_or(Verdict::PortsExhausted)
    }

    /// The address a subscriber has in a pool that he is not entered with: the one he had something on last, or else always the same
    /// one, by hash. [`UNPAIRED`] where pooling is arbitrary, None where no address is open.
    pub(super) fn address_in_other_pool(
        &self,
        subscriber: u32,
        pool: PoolId,
        facts: &PoolFacts,
    ) -> Option<AddressIndex> {
        self.address_in_other_pool_under(&self.shared, subscriber, pool, facts)
    }

    /// The same under other settings, whose pool has this number and these facts.
    pub(super) fn address_in_other_pool_under(
        &self,
        shared: &Shared,
        subscriber: u32,
        pool: PoolId,
        facts: &PoolFacts,
    ) -> Option<AddressIndex> {
        if facts.pooling == Pooling::Arbitrary {
            return Some(UNPAIRED);
        }
        self.place_in(shared, subscriber, pool).or_else(|| {
            let record = self.subscribers.get(subscriber);
            let open = shared.choices(facts);
            let position = consistent(self.subscribers.hash_of(record.realm(), record.address), open.len());
            open.get(position?).copied()
        })
    }

    /// Where a subscriber that is entered with another pool had something last, if that is an open address of this one: it stays paired
    /// with it, whatever becomes of the pool's other addresses (RFC 4787 §4.1 REQ-2).
    pub(super) fn place_in(&self, shared: &Shared, subscriber: u32, pool: PoolId) -> Option<AddressIndex> {
        let place = self.subscribers.get(subscriber).elsewhere()?;
        if shared.slot(place).is_none() || shared.pool_of(place) != pool {
            return None;
        }
        let facts = shared.facts(place);
        // Whom a formula or the file gives an address has that one.
        let is_paired = facts.pooling == Pooling::Paired && !facts.one_to_one && shared.formula(pool).is_none();
        (is_paired && !facts.is_closed).then_some(place)
    }

    /// Gives a port back that has no owner: none was published, or that one is gone, and the port has rested.
    #[inline]
    pub(super) fn give_back_port(&mut self, address: AddressIndex, protocol: Protocol, port: u16) {
        let ports = &self.shared.ports;
        let Some(guard) = ports.guard() else { return ports.release_vacant(address, protocol, port) };
        // Unmarked before somebody else can have it, and given back to the rest when it is free.
        let was_beyond = guard.unmark(address, protocol, port, Share::Beyond);
        ports.release_vacant(address, protocol, port);
        if was_beyond {
            guard.give_back(address, protocol);
        }
        ports.settle_mark(guard, address, protocol, port);
    }

    /// Gives a port back that was taken for a mapping which could not be made.
    pub(super) fn give_back_unused(&mut self, subscriber: u32, address: AddressIndex, protocol: Protocol, port: u16) {
        self.leave_guarantee(subscriber, address, protocol, port, Duration::ZERO);
        self.give_back_port(address, protocol, port);
    }
}

/// One of so many positions, by hash; of one more at the end, as few move there as have to (Lamping and Veach, "A Fast, Minimal
/// Memory, Consistent Hash Algorithm").
fn consistent(hash: u64, positions: usize) -> Option<usize> {
    let (mut state, mut found, mut next) = (hash, None, 0_u64);
    while next < positions as u64 {
        found = Some(next as usize);
        state = state.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        // Below 2^63 at each step, as positions are addresses.
        next = (next + 1).saturating_mul(1 << 31) / ((state >> 33) + 1);
    }
    found
}

/// RFC 4787 §4.2.1 REQ-3a: well-known source ports map to well-known ones and others to others, as far as the pool has both.
#[inline]
pub(super) fn port_class(port: u16, facts: &PoolFacts) -> PortClass {
    let is_low = port < 1024;
    if (is_low && facts.has_low_ports) || !facts.has_high_ports { PortClass::Low } else { PortClass::High }
}

#[cfg(test)]
mod tests;
