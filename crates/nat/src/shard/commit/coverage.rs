//! Moves ports a subscriber already has into its new guarantee (`guarantees.rs` of
//! [`crate::external::ports`]).
//!
//! A subscriber's mappings are not linked, so a limited walk over all runs while an address lacks
//! guaranteed ports that a subscriber already has. Each port replaces a guaranteed unused one, or
//! enlarges the guarantee.

use crate::external::ports::PerProtocol;
use crate::shard::Ledger;
use crate::shard::commit::port_of_ended::UNPAIRED;
use crate::steps::guarantee::NOTHING;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::upkeep::walk::Pace;
use crate::upkeep::walk::Pass;

const AHEAD: u32 = 8;

#[derive(Debug, Default)]
pub(in crate::shard) struct CoverageWalk {
    pass: Pass,
    is_wanted: bool,
}

impl View<'_> {
    /// What its guarantee would cover, if its address is short.
    fn coverable(&self, slot: u32) -> PerProtocol {
        let (subscriber, account) = (self.state.subscribers.get(slot), self.state.subscribers.account(slot));
        let address = AddressIndex(subscriber.paired);
        let Some(guarantees) = self.snapshot.ports.guarantees().filter(|_| address != UNPAIRED) else { return NOTHING };
        let compiled = self.snapshot.compiled_pool(address);
        if compiled.is_closed
            || !compiled.has_guarantees()
            || account.has_guarantee() && !account.is_guaranteed(address)
        {
            return NOTHING;
        }
        let within = account.within();
        let is_short = Protocol::ALL.map(|protocol| {
            subscriber.mappings[protocol.index()] > within[protocol.index()]
                && guarantees.taken(address, protocol) > self.rest_of_address(compiled, address, protocol)
        });
        if is_short == [false; Protocol::COUNT] {
            return NOTHING;
        }
        let reserved = self.reserved_for(compiled, slot);
        [0, 1, 2].map(|p| if is_short[p] { reserved[p].saturating_sub(within[p]) } else { 0 })
    }
}

impl Ledger {
    pub(in crate::shard) fn note_coverable(&mut self, slot: u32) {
        if !self.upkeep.coverage_walk.is_wanted && self.view().coverable(slot) != NOTHING {
            self.upkeep.coverage_walk.is_wanted = true;
        }
    }

    pub(in crate::shard) fn sweep_coverable(&mut self, now: Instant, elapsed: u64) {
        let walk = &mut self.upkeep.coverage_walk;
        if !walk.pass.is_under_way() {
            if !walk.is_wanted {
                return;
            }
            walk.pass.begin();
            walk.is_wanted = false;
        }
        let end = self.state.mappings.walk_end();
        let visits = Pace::RECORDS.due(end, elapsed);
        let stretch = walk.pass.next(visits, end);
        let stop = stretch.end;
        // For the next call, if it has as much time.
        self.state.mappings.prefetch_range(stop..stop.saturating_add(visits));
        for index in stretch {
            if index + AHEAD < stop && self.state.mappings.get(index + AHEAD).is_in_use() {
                self.state.subscribers.prefetch(self.state.mappings.get(index + AHEAD).subscriber);
            }
            self.cover_port(now, index);
        }
    }

    fn cover_port(&mut self, now: Instant, index: u32) {
        let mapping = self.state.mappings.get(index);
        if !mapping.is_in_use() {
            return;
        }
        let (slot, external, protocol) = (mapping.subscriber, mapping.external(), mapping.protocol());
        let paired = AddressIndex(self.state.subscribers.get(slot).paired);
        if self.local.pool_address(external.address.to_bits()) != Some(paired) {
            return;
        }
        let p = protocol.index();
        let is_unguaranteed = self
            .shared
            .ports
            .guarantees()
            .is_some_and(|guarantees| guarantees.is_beyond(paired, protocol, external.port));
        // Its port will be held down, and a guaranteed port must not be.
        if !is_unguaranteed || self.view().coverable(slot)[p] == 0 || !self.state.is_alive(index, now) {
            return;
        }
        let Some(guarantees) = self.shared.ports.guarantees() else { return };
        let account = self.state.subscribers.account_mut(slot);
        let raised = account.within()[p] >= account.guarantee()[p];
        let for_guarantees = self.shared.compiled_pool(paired).for_guarantees[p];
        if guarantees.turn(paired, protocol, external.port, raised, for_guarantees) {
            let mut guarantee = account.guarantee();
            guarantee[p] += u32::from(raised);
            account.set_guarantee(paired, guarantee);
            account.count_within(protocol);
        }
    }
}
