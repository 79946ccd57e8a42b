//! Ports guaranteed to a subscriber by its class, on its paired address, until it leaves
//! (`guarantees.rs` of [`crate::external::ports`]).
//!
//! While held down, a guaranteed port counts as unguaranteed, or it would use up the guarantee. If
//! no unguaranteed port is left, it is free at once.
//!
//! If new settings guarantee more than is free, others get no port until walks over subscribers and
//! mappings have filled the guarantees.

use crate::external::ports::PerProtocol;
use crate::external::ports::Share;
use crate::shard::Ledger;
use crate::shard::commit::port_of_ended::UNPAIRED;
use crate::snapshot::shared::CompiledPool;
use crate::state::subscriber::Account;
use crate::steps::guarantee::NOTHING;
use crate::steps::guarantee::backed;
use crate::steps::guarantee::keeps;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::upkeep::walk::Pace;
use crate::verdict::Verdict;

impl Ledger {
    /// Counts an unguaranteed port before it is chosen.
    pub(in crate::shard) fn take_unguaranteed(
        &self,
        compiled: &CompiledPool,
        address: AddressIndex,
        protocol: Protocol,
    ) -> Result<(), Verdict> {
        let limit = self.view().rest_of_address(compiled, address, protocol);
        match self.shared.ports.guarantees() {
            Some(guarantees) if guarantees.take(address, protocol, limit) => Ok(()),
            _ => Err(Verdict::PortsExhausted),
        }
    }

    /// Marks the port of [`Ledger::take_unguaranteed`], or uncounts it if there was none.
    pub(in crate::shard) fn settle_unguaranteed(&self, address: AddressIndex, protocol: Protocol, port: Option<u16>) {
        match (self.shared.ports.guarantees(), port) {
            (Some(guarantees), Some(port)) => guarantees.mark(address, protocol, port, Share::Beyond),
            (Some(guarantees), None) => guarantees.give_back(address, protocol),
            (None, _) => {}
        }
    }

    /// Guarantees as many ports as possible; true if that is all of them. `account` is changed, and
    /// the counts that workers share.
    pub(in crate::shard) fn guarantee_to(
        &self,
        account: &mut Account,
        reserved: PerProtocol,
        compiled: &CompiledPool,
        address: AddressIndex,
    ) -> bool {
        if reserved == NOTHING && !account.has_guarantee() {
            return true;
        }
        let Some(guarantees) = self.shared.ports.guarantees() else { return false };
        let stock = self.view().stock(guarantees, compiled, address);
        if account.guarantee() == reserved
            && backed(stock, address, account) == reserved
            && account.is_guaranteed(address)
        {
            return true;
        }
        let keeps = keeps(stock, account, reserved, address);
        if account.has_guarantee() && !account.is_guaranteed(address) {
            if account.uses_guarantee() {
                // The ports there stay guaranteed until they are given back.
                return false;
            }
            guarantees.withdraw(account.guaranteed_at(), account.guarantee());
            account.set_guarantee(address, NOTHING);
        }
        let has = account.guarantee();
        guarantees.withdraw(address, [0, 1, 2].map(|p| has[p].saturating_sub(keeps[p])));
        let wanted = [0, 1, 2].map(|p| reserved[p].saturating_sub(keeps[p]));
        let more = guarantees.guarantee(address, wanted, stock.map(|stock| stock.can_be));
        let guaranteed = [0, 1, 2].map(|p| keeps[p] + more[p]);
        account.set_guarantee(address, guaranteed);
        guaranteed.into_iter().zip(reserved).all(|(guaranteed, wanted)| guaranteed >= wanted)
    }

    pub(in crate::shard) fn guarantee(&mut self, slot: u32, compiled: &CompiledPool, address: AddressIndex) -> bool {
        let view = self.view();
        let reserved = view.reserved_for(compiled, slot);
        let mut account = *view.state.subscribers.account(slot);
        let has_all = self.guarantee_to(&mut account, reserved, compiled, address);
        *self.state.subscribers.account_mut(slot) = account;
        has_all
    }

    #[inline]
    pub(in crate::shard) fn sweep_guarantees(&mut self, now: Instant, elapsed: u64) {
        if self.shared.ports.guarantees().is_some() {
            self.walk_guarantees(elapsed);
            self.sweep_coverable(now, elapsed);
        }
    }

    #[inline(never)]
    fn walk_guarantees(&mut self, elapsed: u64) {
        let end = self.state.subscribers.walk_end();
        for slot in self.upkeep.guarantees.next(Pace::RECORDS.due(end, elapsed), end) {
            if !self.state.subscribers.get(slot).is_in_use() {
                continue;
            }
            let address = AddressIndex(self.state.subscribers.get(slot).paired);
            if address == UNPAIRED {
                continue;
            }
            let compiled = *self.shared.compiled_pool(address);
            if !compiled.is_closed {
                self.guarantee(slot, &compiled, address);
                self.note_coverable(slot);
            }
        }
    }

    /// Zero if guaranteed ports would be short meanwhile.
    #[inline]
    pub(in crate::shard) fn leave_guarantee(
        &mut self,
        subscriber: u32,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        hold_down: Duration,
    ) -> Duration {
        if self.shared.ports.guarantees().is_none() {
            hold_down
        } else {
            self.leave_share(subscriber, (address, protocol, port), hold_down)
        }
    }

    #[inline(never)]
    fn leave_share(
        &mut self,
        subscriber: u32,
        (address, protocol, port): (AddressIndex, Protocol, u16),
        hold_down: Duration,
    ) -> Duration {
        let compiled = *self.shared.compiled_pool(address);
        let was_within = self
            .shared
            .ports
            .guarantees()
            .is_some_and(|guarantees| guarantees.unmark(address, protocol, port, Share::Within));
        if !was_within {
            return hold_down;
        }
        self.state.subscribers.account_mut(subscriber).uncount_within(protocol);
        if hold_down == Duration::ZERO || !compiled.has_guarantees() {
            return hold_down;
        }
        if self.take_unguaranteed(&compiled, address, protocol).is_err() {
            self.counters.ports_held_short += 1;
            return Duration::ZERO;
        }
        self.settle_unguaranteed(address, protocol, Some(port));
        hold_down
    }

    /// Rates and offences are remembered while they matter.
    pub(in crate::shard) fn part_with(&mut self, now: Instant, slot: u32, paired: AddressIndex) {
        if paired != UNPAIRED {
            self.shared.ports.unpair(paired);
        }
        if self.state.subscribers.account(slot).has_guarantee()
            && let Some(guarantees) = self.shared.ports.guarantees()
        {
            let account = self.state.subscribers.account_mut(slot);
            guarantees.withdraw(account.guaranteed_at(), account.guarantee());
            account.set_guarantee(AddressIndex(0), NOTHING);
        }
        self.forget_if_past(now, slot);
    }
}
