use crate::external::ports::Share;
use crate::shard::Ledger;
use crate::state::mapping::InternalKey;
use crate::steps::opening::Place;
pub(in crate::shard) use crate::steps::pairing::UNPAIRED;
pub(in crate::shard) use crate::steps::port_choice::port_class;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;

/// Held ports whose bits are fetched ahead, before they are released.
const AHEAD: usize = 8;

impl View<'_> {
    /// True for a forwarded port, which needs no hold-down.
    #[inline]
    pub(in crate::shard) fn is_forwarded(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let (static_mappings, balance) = (&self.snapshot.static_mappings, &self.snapshot.balance);
        let external = || self.snapshot.address(address).to_bits();
        !static_mappings.is_empty() && static_mappings.is_forwarded(external(), protocol, port)
            || !balance.is_empty() && balance.find(external(), protocol, port).is_some()
    }

    /// The external address of the subscriber's new mappings; None if it may be any.
    pub(in crate::shard) fn address_in(&self, key: &InternalKey, pool: PoolId) -> Option<AddressIndex> {
        let slot = self.state.subscribers.find(key.realm, key.address)?;
        let record = self.state.subscribers.get(slot);
        let paired = AddressIndex(record.paired);
        let is_paired_there = paired != UNPAIRED && self.snapshot.pool_of(paired) == pool;
        if is_paired_there || self.pool_of_record(slot).or_else(|| self.pool_of_subscriber(slot)) == Some(pool) {
            return is_paired_there.then_some(paired);
        }
        let compiled = self.snapshot.pools.get(pool.index())?;
        if !compiled.gives_single_ports() || compiled.one_to_one {
            return None;
        }
        match self.place_in_other_pool(slot, compiled)? {
            Place::At(address) => Some(address),
            _ => None,
        }
    }
}

impl Ledger {
    #[inline]
    pub(in crate::shard) fn retire_port(
        &mut self,
        now: Instant,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        hold_down: Duration,
    ) {
        self.shared.ports.vacate(address, protocol, port);
        if hold_down == Duration::ZERO || self.view().is_forwarded(address, protocol, port) {
            self.give_back_port(address, protocol, port);
            return;
        }
        let place = self.shared.ports.place(address, protocol, port);
        if let Some(gone) = self.state.held_ports.hold(place, hold_down, now) {
            self.counters.ports_held_short += 1;
            self.release_held_port(gone);
            if let Some(ahead) = self.state.held_ports.ahead(AHEAD) {
                self.shared.ports.prefetch_bit(ahead);
            }
        }
    }

    /// Call it after the hold-down, if there was one.
    #[inline]
    pub(in crate::shard) fn give_back_port(&mut self, address: AddressIndex, protocol: Protocol, port: u16) {
        let ports = &self.shared.ports;
        let Some(guarantees) = ports.guarantees() else { return ports.release_vacant(address, protocol, port) };
        // The port loses its mark before others can take it, and counts as unguaranteed until it is
        // free.
        let was_beyond = guarantees.unmark(address, protocol, port, Share::Beyond);
        ports.release_vacant(address, protocol, port);
        if was_beyond {
            guarantees.give_back(address, protocol);
        }
        ports.settle_mark(guarantees, address, protocol, port);
    }
}
