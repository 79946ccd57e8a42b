//! Ports that a subscriber had before they were guaranteed to it. Nobody marked them as its own, so that they count among what
//! others have ([`crate::ports`], `guard.rs`), and its guarantee seems to lack what it has itself.
//!
//! A mapping does not know the next one of its subscriber. So while an address has less to set aside than it should, and a subscriber
//! there has ports beside its pledge that its guarantee would cover, the mappings are walked through, a bounded piece a call, and
//! each such port becomes part of its owner's pledge: first in place of ports that are pledged to it and not used, which then
//! are free for others, and then by a larger pledge.

use super::Shard;
use super::guarantee::NOTHING;
use super::port_choice::UNPAIRED;
use super::sweep::budget;
use crate::ports::PerProtocol;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// Subscribers of mappings are asked for this many records ahead.
const AHEAD: u32 = 8;

/// The walk over the mappings for such ports.
#[derive(Debug, Default)]
pub(super) struct EntitledWalk {
    /// The next mapping; 0: it is not under way.
    hand: u32,
    /// A subscriber was found that has such ports, since the walk began.
    is_wanted: bool,
}

impl Shard {
    /// By protocol, how many of the ports that a subscriber has of the rest, at its address, its guarantee covers at most. Nothing where
    /// the address has all to set aside that it should.
    fn entitled(&self, slot: u32) -> PerProtocol {
        let (subscriber, account) = (self.subscribers.get(slot), self.subscribers.account(slot));
        let address = AddressIndex(subscriber.paired);
        let Some(guard) = self.shared.ports.guard().filter(|_| address != UNPAIRED) else { return NOTHING };
        let facts = self.shared.facts(address);
        if facts.is_closed || !facts.is_guarded() || account.has_pledge() && !account.is_pledged(address) {
            return NOTHING;
        }
        let within = account.within();
        let is_short = Protocol::ALL.map(|protocol| {
            subscriber.mappings[protocol.index()] > within[protocol.index()]
                && guard.taken(address, protocol) > self.rest_of_address(facts, address, protocol)
        });
        if is_short == [false; Protocol::COUNT] {
            return NOTHING;
        }
        let reserved = self.reserved_for(facts, slot);
        [0, 1, 2].map(|p| if is_short[p] { reserved[p].saturating_sub(within[p]) } else { 0 })
    }

    /// Has the mappings walked through if this subscriber may have such ports.
    pub(super) fn note_entitled(&mut self, slot: u32) {
        if !self.entitled_walk.is_wanted && self.entitled(slot) != NOTHING {
            self.entitled_walk.is_wanted = true;
        }
    }

    /// Goes on with the walk, if it is wanted.
    pub(super) fn sweep_entitled(&mut self, now: Instant, elapsed: u64) {
        let walk = &mut self.entitled_walk;
        if walk.hand == 0 {
            if !walk.is_wanted {
                return;
            }
            (walk.hand, walk.is_wanted) = (1, false);
        }
        let end = self.mappings.walk_end();
        let first = self.entitled_walk.hand;
        let visits = budget(end, elapsed, 0) as u32;
        let stop = first.saturating_add(visits).min(end);
        // The next call will be there, if it has as much time.
        self.mappings.prefetch_range(stop..stop.saturating_add(visits));
        for index in first..stop {
            if index + AHEAD < stop && self.mappings.get(index + AHEAD).is_in_use() {
                self.subscribers.prefetch(self.mappings.get(index + AHEAD).subscriber);
            }
            self.turn_if_entitled(now, index);
        }
        self.entitled_walk.hand = if stop >= end { 0 } else { stop };
    }

    /// The port of this mapping becomes part of its subscriber's pledge, if it is of the rest and the guarantee covers it.
    fn turn_if_entitled(&mut self, now: Instant, index: u32) {
        let mapping = self.mappings.get(index);
        if !mapping.is_in_use() {
            return;
        }
        let (slot, external, protocol) = (mapping.subscriber, mapping.external(), mapping.protocol());
        let paired = AddressIndex(self.subscribers.get(slot).paired);
        if self.local.pool_address(external.address.to_bits()) != Some(paired) {
            return;
        }
        let p = protocol.index();
        let is_of_the_rest =
            self.shared.ports.guard().is_some_and(|guard| guard.is_beyond(paired, protocol, external.port));
        // What has run out is to rest, and a port of a pledge may not do so.
        if !is_of_the_rest || self.entitled(slot)[p] == 0 || !self.is_alive(index, now) {
            return;
        }
        let Some(guard) = self.shared.ports.guard() else { return };
        let account = self.subscribers.account_mut(slot);
        let raised = account.within()[p] >= account.pledge()[p];
        let set_aside = self.shared.facts(paired).set_aside[p];
        if guard.turn(paired, protocol, external.port, raised, set_aside) {
            let mut pledge = account.pledge();
            pledge[p] += u32::from(raised);
            account.set_pledge(paired, pledge);
            account.count_within(protocol);
        }
    }
}
