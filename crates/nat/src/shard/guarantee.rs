//! The ports guaranteed to a subscriber: others leave them alone however full their address is, and it finds them there.
//!
//! A subscriber is pledged what its class says at the address it is paired with, and keeps the pledge while it is one. What it takes
//! up to its pledge comes from what the address has set aside ([`crate::reserve`]), everything else from the rest
//! ([`crate::ports`], `guard.rs`): also ports that rest, or they would take the place of what is guaranteed. A port from
//! what is set aside goes over to the rest to rest there, and does not rest where nothing of it is left.

use super::Shard;
use super::port_choice::UNPAIRED;
use crate::mapping::InternalKey;
use crate::ports::Parity;
use crate::ports::PerProtocol;
use crate::ports::PortClass;
use crate::ports::Share;
use crate::shared::PoolFacts;
use crate::time::Duration;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::verdict::Verdict;

impl Shard {
    /// Ports of an address of a pool that nobody is guaranteed.
    fn rest_of_address(&self, facts: &PoolFacts, address: AddressIndex, protocol: Protocol) -> u32 {
        self.shared.ports.available(address, protocol).saturating_sub(facts.set_aside[protocol.index()])
    }

    /// Whether an address of a pool that guarantees ports has room for who comes new.
    pub(super) fn has_room_beside_guarantees(
        &self,
        facts: &PoolFacts,
        address: AddressIndex,
        key: &InternalKey,
    ) -> bool {
        let Some(guard) = self.shared.ports.guard() else { return false };
        let reserved = self.shared.classes.facts(self.shared.classes.of(key.realm, key.address)).reserved;
        if reserved == [0; Protocol::COUNT] {
            return guard.taken(address, key.protocol) < self.rest_of_address(facts, address, key.protocol);
        }
        // Its own pledge may be here already.
        let known = self.subscribers.find(key.realm, key.address).map(|slot| self.subscribers.account(slot));
        known.is_some_and(|account| account.is_pledged(address)) || guard.has_room(address, reserved, facts.set_aside)
    }

    /// Pledges a subscriber what its class says, at this address; adjusts a pledge from other settings. Whether it has all of it.
    pub(super) fn pledge(&mut self, slot: u32, facts: &PoolFacts, address: AddressIndex) -> bool {
        let reserved = self.shared.classes.facts(self.class_now(slot)).reserved;
        let Some(guard) = self.shared.ports.guard() else { return false };
        let account = self.subscribers.account_mut(slot);
        if account.pledge() == reserved && (account.is_pledged(address) || reserved == [0; Protocol::COUNT]) {
            return true;
        }
        if account.has_pledge() && !account.is_pledged(address) {
            if account.uses_pledge() {
                // Its ports there are set aside for it until they are back.
                return false;
            }
            guard.unpledge(account.pledged_at(), account.pledge());
            account.set_pledge(address, [0; Protocol::COUNT]);
        }
        let (has, uses) = (account.pledge(), account.within());
        let each = |number: &dyn Fn(usize) -> u32| -> PerProtocol { [number(0), number(1), number(2)] };
        let more = each(&|p| reserved[p].saturating_sub(has[p]));
        let is_pledged = guard.pledge(address, more, facts.set_aside);
        let less = each(&|p| has[p].saturating_sub(reserved[p].max(uses[p])));
        guard.unpledge(address, less);
        let more = if is_pledged { more } else { [0; Protocol::COUNT] };
        account.set_pledge(address, each(&|p| has[p] + more[p] - less[p]));
        is_pledged
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
        let Some(guard) = self.shared.ports.guard() else { return 0 };
        let rest = self.rest_of_address(facts, address, protocol).saturating_sub(guard.taken(address, protocol));
        let account = subscriber.map(|slot| self.subscribers.account(slot)).filter(|it| it.is_pledged(address));
        let own = account.map(|account| account.pledge()[p].saturating_sub(account.within()[p]));
        let reserved = self.shared.classes.facts(self.shared.classes.of(key.realm, key.address)).reserved;
        let pledged = || if guard.has_room(address, reserved, facts.set_aside) { reserved[p] } else { 0 };
        u64::from(rest + own.unwrap_or_else(pledged))
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

    /// A subscriber is one no longer: it is paired with nothing, and nothing is pledged to it.
    pub(super) fn part_with(&mut self, slot: u32, paired: AddressIndex) {
        if paired != UNPAIRED {
            self.shared.ports.unpair(paired);
        }
        let account = self.subscribers.account_mut(slot);
        if account.has_pledge()
            && let Some(guard) = self.shared.ports.guard()
        {
            guard.unpledge(account.pledged_at(), account.pledge());
            account.set_pledge(AddressIndex(0), [0; Protocol::COUNT]);
        }
    }
}
