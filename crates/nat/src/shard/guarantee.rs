//! The ports guaranteed to a subscriber: others leave them alone however full their address is, and it finds them there.
//!
//! A subscriber is pledged what its class says at the address it is paired with, and keeps the pledge while it is one. What it takes
//! up to its pledge comes from what the address has set aside ([`crate::reserve`]), everything else from the rest
//! ([`crate::ports`], `guard.rs`): also ports that rest, or they would take the place of what is guaranteed. A port from
//! what is set aside goes over to the rest to rest there, and does not rest where nothing of it is left.
//!
//! Where a change of the settings guarantees more than others have left, a subscriber is pledged what can be set aside now. Others get none
//! meanwhile, and a walk over the subscribers pledges what comes free to those who lack some. What a subscriber has there itself is none of
//! the others': `shard/entitled.rs` makes it part of its pledge.

use super::Shard;
use super::port_choice::UNPAIRED;
use super::port_choice::port_class;
use super::sweep::budget;
use crate::mapping::InternalKey;
use crate::ports::Guard;
use crate::ports::Parity;
use crate::ports::PerProtocol;
use crate::ports::PortClass;
use crate::ports::Share;
use crate::ports::Stock;
use crate::shared::PoolFacts;
use crate::subscriber::Account;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;
use crate::view::Guarantee;

/// No ports of any protocol.
pub(super) const NOTHING: PerProtocol = [0; Protocol::COUNT];

/// What of a subscriber's pledge at an address is there, of what there is to pledge: less than all of it where the address
/// offers fewer ports by now, or others took some while nothing was set aside.
fn backed(stock: [Stock; Protocol::COUNT], address: AddressIndex, account: &Account) -> PerProtocol {
    if !account.is_pledged(address) {
        return NOTHING;
    }
    let (pledge, within) = (account.pledge(), account.within());
    [0, 1, 2].map(|p| {
        let too_many = stock[p].pledged.saturating_sub(stock[p].can_be);
        pledge[p].saturating_sub(too_many).max(within[p])
    })
}

/// Of what is reserved, what there is and what is missing.
fn guarantee(reserved: PerProtocol, there: PerProtocol) -> Guarantee {
    let ports = [0, 1, 2].map(|p| reserved[p].min(there[p]));
    Guarantee { ports, missing: [0, 1, 2].map(|p| reserved[p] - ports[p]) }
}

impl Shard {
    /// Ports of an address of a pool that nobody is guaranteed.
    pub(super) fn rest_of_address(&self, facts: &PoolFacts, address: AddressIndex, protocol: Protocol) -> u32 {
        self.shared.ports.available(address, protocol).saturating_sub(facts.set_aside[protocol.index()])
    }

    /// What the class of a subscriber, or of somebody who would become one, guarantees it in this pool. Who was sent there, by a rule or as
    /// an offender, is guaranteed nothing: ports are set aside in the pool that serves it.
    fn reserved_in(&self, facts: &PoolFacts, class: u16, realm: RealmId, address: u32) -> PerProtocol {
        let reserved = self.shared.classes.facts(class).reserved;
        if reserved == NOTHING || !facts.is_guarded() {
            return NOTHING;
        }
        let own = self.shared.pool_for(realm, address.into());
        if own == Some(facts.id) { reserved } else { NOTHING }
    }

    pub(super) fn reserved_for(&self, facts: &PoolFacts, slot: u32) -> PerProtocol {
        let subscriber = self.subscribers.get(slot);
        self.reserved_in(facts, self.class_now(slot), subscriber.realm(), subscriber.address)
    }

    fn reserved_for_key(&self, facts: &PoolFacts, key: &InternalKey) -> PerProtocol {
        self.reserved_in(facts, self.shared.classes.of(key.realm, key.address), key.realm, key.address)
    }

    /// What can be pledged to all subscribers of an address together, and is.
    fn stock(&self, guard: &Guard, facts: &PoolFacts, address: AddressIndex) -> [Stock; Protocol::COUNT] {
        Protocol::ALL.map(|protocol| {
            let offered = self.shared.ports.available(address, protocol);
            guard.stock(address, protocol, offered, facts.set_aside[protocol.index()])
        })
    }

    /// Whether an address of a pool that guarantees ports has room for who comes new.
    pub(super) fn has_room_beside_guarantees(
        &self,
        facts: &PoolFacts,
        address: AddressIndex,
        key: &InternalKey,
    ) -> bool {
        let Some(guard) = self.shared.ports.guard() else { return false };
        let reserved = self.reserved_for_key(facts, key);
        if reserved == NOTHING {
            return guard.taken(address, key.protocol) < self.rest_of_address(facts, address, key.protocol);
        }
        // Its own pledge may be here already.
        let known = self.subscribers.find(key.realm, key.address).map(|slot| self.subscribers.account(slot));
        if known.is_some_and(|account| account.is_pledged(address)) {
            return true;
        }
        let stock = self.stock(guard, facts, address);
        stock.into_iter().zip(reserved).all(|(stock, wanted)| stock.room() >= wanted)
    }

    /// Where no address has room for all that a subscriber is guaranteed: one where it gets a port all the same, rather of what is set aside.
    pub(super) fn address_with_part_of_guarantee(&self, facts: &PoolFacts, key: &InternalKey) -> Option<AddressIndex> {
        let guard = self.shared.ports.guard().filter(|_| self.reserved_for_key(facts, key) != NOTHING)?;
        let (p, protocol) = (key.protocol.index(), key.protocol);
        // Blocks from before are in no book of guarantees.
        let class = port_class(key.port, facts);
        let is_free = |address: AddressIndex| self.shared.ports.has_single_port(address, protocol, class);
        let some_set_aside =
            |address: &&AddressIndex| self.stock(guard, facts, **address)[p].room() > 0 && is_free(**address);
        let some_rest = |address: &&AddressIndex| {
            guard.taken(**address, protocol) < self.rest_of_address(facts, **address, protocol) && is_free(**address)
        };
        let open = self.shared.choices(facts);
        open.iter().find(some_set_aside).or_else(|| open.iter().find(some_rest)).copied()
    }

    /// Pledges a subscriber what its class says, at this address, or as much of it as can be set aside now; adjusts a pledge from other
    /// settings. Whether it has all of it.
    pub(super) fn pledge(&mut self, slot: u32, facts: &PoolFacts, address: AddressIndex) -> bool {
        let reserved = self.reserved_for(facts, slot);
        if reserved == NOTHING && !self.subscribers.account(slot).has_pledge() {
            return true;
        }
        let Some(guard) = self.shared.ports.guard() else { return false };
        let stock = self.stock(guard, facts, address);
        let account = self.subscribers.account_mut(slot);
        let backed = backed(stock, address, account);
        if account.pledge() == reserved && backed == reserved && account.is_pledged(address) {
            return true;
        }
        if account.has_pledge() && !account.is_pledged(address) {
            if account.uses_pledge() {
                // Its ports there are set aside for it until they are back.
                return false;
            }
            guard.unpledge(account.pledged_at(), account.pledge());
            account.set_pledge(address, NOTHING);
        }
        let (has, uses) = (account.pledge(), account.within());
        let each = |number: &dyn Fn(usize) -> u32| -> PerProtocol { [number(0), number(1), number(2)] };
        let keeps = each(&|p| if has[p] == 0 { 0 } else { backed[p].min(reserved[p]).max(uses[p]) });
        guard.unpledge(address, each(&|p| has[p].saturating_sub(keeps[p])));
        let more =
            guard.pledge(address, each(&|p| reserved[p].saturating_sub(keeps[p])), stock.map(|stock| stock.can_be));
        let pledged = each(&|p| keeps[p] + more[p]);
        account.set_pledge(address, pledged);
        pledged.into_iter().zip(reserved).all(|(pledged, wanted)| pledged >= wanted)
    }

    /// Has subscribers pledged what they are guaranteed since the settings changed, and those who lack some what has come free, a few a
    /// call. Without books of ports set aside nothing is walked.
    #[inline]
    pub(super) fn sweep_guarantees(&mut self, now: Instant, elapsed: u64) {
        if self.shared.ports.guard().is_some() {
            self.walk_guarantees(elapsed);
            self.sweep_entitled(now, elapsed);
        }
    }

    #[inline(never)]
    fn walk_guarantees(&mut self, elapsed: u64) {
        let end = self.subscribers.walk_end();
        for _ in 0..budget(end, elapsed, 0) {
            let slot = self.guarantee_hand;
            self.guarantee_hand = if slot + 1 >= end { 1 } else { slot + 1 };
            if slot >= end || !self.subscribers.get(slot).is_in_use() {
                continue;
            }
            let address = AddressIndex(self.subscribers.get(slot).paired);
            if address == UNPAIRED {
                continue;
            }
            let facts = *self.shared.facts(address);
            // On an address that is closed nothing new is made; it is paired anew with its next mapping.
            if !facts.is_closed {
                self.pledge(slot, &facts, address);
                self.note_entitled(slot);
            }
        }
    }

    /// What is set aside for a subscriber now, by protocol, of what it uses among others, and what of its guarantee could not be yet.
    pub(super) fn guarantee_of(&self, slot: u32) -> Guarantee {
        let (subscriber, account) = (self.subscribers.get(slot), self.subscribers.account(slot));
        let address = AddressIndex(subscriber.paired);
        let Some(guard) = self.shared.ports.guard().filter(|_| address != UNPAIRED) else {
            return Guarantee::default();
        };
        let facts = self.shared.facts(address);
        let reserved = self.reserved_for(facts, slot);
        let has = backed(self.stock(guard, facts, address), address, account);
        guarantee(reserved, has)
    }

    /// [`Shard::guarantee_of`] as the next mapping will find it, of who is to be one, too: at this address, or at any of the pool. None where
    /// nothing is guaranteed.
    pub(super) fn guarantee_now(
        &self,
        subscriber: Option<u32>,
        facts: &PoolFacts,
        address: Option<AddressIndex>,
        key: &InternalKey,
    ) -> Option<Guarantee> {
        let reserved = self.reserved_for_key(facts, key);
        let guard = self.shared.ports.guard().filter(|_| reserved != NOTHING)?;
        let at = |address: AddressIndex| {
            let stock = self.stock(guard, facts, address);
            let account = subscriber.map(|slot| self.subscribers.account(slot));
            let has = account.map_or(NOTHING, |account| backed(stock, address, account));
            guarantee(reserved, [0, 1, 2].map(|p| has[p] + stock[p].room()))
        };
        match address {
            Some(address) => Some(at(address)),
            None => {
                let open = self.shared.choices(facts).iter().map(|address| at(*address));
                open.min_by_key(|guarantee| guarantee.missing.iter().map(|ports| u64::from(*ports)).sum::<u64>())
            }
        }
    }

    /// Takes a port on the subscriber's address in a pool that guarantees ports.
    ///
    /// # Errors
    /// [`Verdict::PortsExhausted`] when what is left is guaranteed to others.
    #[inline(never)]
    pub(super) fn take_port_beside_guarantees(
        &mut self,
        key: &InternalKey,
        facts: &PoolFacts,
        class: PortClass,
        parity: Option<Parity>,
        subscriber: u32,
    ) -> Result<(AddressIndex, u16), Verdict> {
        let address = AddressIndex(self.subscribers.get(subscriber).paired);
        self.pledge(subscriber, facts, address);
        let protocol = key.protocol;
        let share = if self.subscribers.account(subscriber).has_left(address, protocol) {
            Share::Within
        } else {
            self.take_of_the_rest(facts, address, protocol)?;
            Share::Beyond
        };
        let (ports, workers) = (&self.shared.ports, self.shared.workers());
        let wanted = [parity, None].into_iter().take(if parity.is_none() { 1 } else { 2 });
        let mut wanted = wanted;
        let random = &mut self.random;
        let found =
            wanted.find_map(|wanted| ports.allocate(address, protocol, class, wanted, self.worker, workers, random));
        let Some(port) = found else {
            // Ports of this class have run out.
            if share == Share::Beyond
                && let Some(guard) = ports.guard()
            {
                guard.give_back(address, protocol);
            }
            return Err(Verdict::PortsExhausted);
        };
        if let Some(guard) = ports.guard() {
            guard.mark(address, protocol, port, share);
        }
        if share == Share::Within {
            self.subscribers.account_mut(subscriber).count_within(protocol);
        }
        Ok((address, port))
    }

    /// Ports of this protocol that a subscriber, or somebody who would become one, could have beside what is guaranteed to others;
    /// at most, as others may be faster.
    pub(super) fn left_beside_guarantees(
        &self,
        subscriber: Option<u32>,
        facts: &PoolFacts,
        address: AddressIndex,
        key: &InternalKey,
    ) -> u64 {
        let (p, protocol) = (key.protocol.index(), key.protocol);
        let (ports, Some(guard)) = (&self.shared.ports, self.shared.ports.guard()) else { return 0 };
        let rest = self.rest_of_address(facts, address, protocol).saturating_sub(guard.taken(address, protocol));
        let account = subscriber.map(|slot| self.subscribers.account(slot)).filter(|it| it.is_pledged(address));
        let within = account.map_or(0, |account| account.within()[p]);
        let own = self.guarantee_now(subscriber, facts, Some(address), key).map_or(0, |it| it.ports[p]);
        // A pledge from other settings may be of ports that are not offered any more, or are in blocks from before.
        let free = ports.free_of_class(address, protocol, port_class(key.port, facts));
        u64::from((rest + own.saturating_sub(within)).min(free))
    }

    /// Whether [`Shard::take_of_the_rest`] would find one.
    pub(super) fn has_beyond_guarantees(&self, facts: &PoolFacts, address: AddressIndex, protocol: Protocol) -> bool {
        let limit = self.rest_of_address(facts, address, protocol);
        self.shared.ports.guard().is_some_and(|guard| guard.taken(address, protocol) < limit)
    }

    /// Before a port is taken for nobody's guarantee: one of the rest is used up by it.
    ///
    /// # Errors
    /// [`Verdict::PortsExhausted`] when what is left is guaranteed to others.
    pub(super) fn take_of_the_rest(
        &self,
        facts: &PoolFacts,
        address: AddressIndex,
        protocol: Protocol,
    ) -> Result<(), Verdict> {
        let limit = self.rest_of_address(facts, address, protocol);
        match self.shared.ports.guard() {
            Some(guard) if guard.take(address, protocol, limit) => Ok(()),
            _ => Err(Verdict::PortsExhausted),
        }
    }

    /// After [`Shard::take_of_the_rest`]: which port it was; None: none could be had.
    pub(super) fn settle_the_rest(&self, address: AddressIndex, protocol: Protocol, port: Option<u16>) {
        match (self.shared.ports.guard(), port) {
            (Some(guard), Some(port)) => guard.mark(address, protocol, port, Share::Beyond),
            (Some(guard), None) => guard.give_back(address, protocol),
            (None, _) => {}
        }
    }

    /// A port is no longer used by its subscriber. For how long it may rest: not at all if what was guaranteed to somebody would
    /// be missing meanwhile.
    #[inline]
    pub(super) fn leave_guarantee(
        &mut self,
        subscriber: u32,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        rest: Duration,
    ) -> Duration {
        if self.shared.ports.guard().is_none() {
            rest
        } else {
            self.leave_share(subscriber, (address, protocol, port), rest)
        }
    }

    #[inline(never)]
    fn leave_share(
        &mut self,
        subscriber: u32,
        (address, protocol, port): (AddressIndex, Protocol, u16),
        rest: Duration,
    ) -> Duration {
        let facts = *self.shared.facts(address);
        let was_within =
            self.shared.ports.guard().is_some_and(|guard| guard.unmark(address, protocol, port, Share::Within));
        if !was_within {
            return rest;
        }
        self.subscribers.account_mut(subscriber).uncount_within(protocol);
        if rest == Duration::ZERO || !facts.is_guarded() {
            return rest;
        }
        if self.take_of_the_rest(&facts, address, protocol).is_err() {
            self.counters.ports_held_short += 1;
            return Duration::ZERO;
        }
        self.settle_the_rest(address, protocol, Some(port));
        rest
    }

    /// A subscriber is one no longer: it is paired with nothing, and nothing is pledged to it. Its rates and offences are remembered
    /// for as long as they count.
    pub(super) fn part_with(&mut self, now: Instant, slot: u32, paired: AddressIndex) {
        if paired != UNPAIRED {
            self.shared.ports.unpair(paired);
        }
        let account = self.subscribers.account_mut(slot);
        if account.has_pledge()
            && let Some(guard) = self.shared.ports.guard()
        {
            guard.unpledge(account.pledged_at(), account.pledge());
            account.set_pledge(AddressIndex(0), NOTHING);
        }
        self.forget_if_past(now, slot);
    }
}
