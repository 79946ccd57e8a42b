//! The ports of pools: how many are used, and whose they are.

use core::net::Ipv4Addr;

use super::CompiledPool;
use super::Shared;
use crate::external::blocks::BlockSize;
use crate::external::blocks::Lease;
use crate::external::deterministic::Formula;
use crate::external::deterministic::Owner;
use crate::external::ports::PortRange;
use crate::rows::SubscriberPorts;
use crate::rows::TornBlock;
use crate::settings::Allocation;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;

impl Shared {
    /// Ports of an address held down; included in [`Shared::ports_used`].
    pub fn ports_held_down(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.held_down(index, protocol)
    }

    /// Ports of an address in use or held down.
    pub fn ports_used(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.used(index, protocol)
    }

    /// Ports that an address can give out.
    pub fn ports_available(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.available(index, protocol)
    }

    /// Ports that subscribers can get. Blocks and slices limit query identifiers, although the
    /// address offers all.
    pub fn ports_obtainable(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        let compiled = self.compiled_pool(index);
        let Some(pool) =
            self.pool(compiled.id).filter(|_| protocol == Protocol::Icmp && !compiled.gives_single_ports())
        else {
            return self.ports_available(index, protocol);
        };
        let range = PortRange { address: index, first: pool.port_min, last: pool.port_max };
        match pool.allocation {
            Allocation::Blocks(blocks) => self.ports.available_in_blocks(&range, blocks.size, protocol),
            _ => self.ports.available_within(&range, protocol),
        }
    }

    /// [`Shared::ports_obtainable`], and busy ports that are no longer offered.
    pub fn ports_there(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        let compiled = self.compiled_pool(index);
        let pool = self.pool(compiled.id).filter(|_| protocol == Protocol::Icmp && !compiled.gives_single_ports());
        let left = match pool {
            Some(pool) => {
                let range = PortRange { address: index, first: pool.port_min, last: pool.port_max };
                self.ports.busy_outside(&range, protocol)
            }
            None => self.ports.used_of_withheld(index, protocol),
        };
        self.ports_obtainable(index, protocol).saturating_add(left)
    }

    /// Subscribers paired with an address.
    pub fn paired_subscribers(&self, index: AddressIndex) -> u32 {
        self.ports.paired_subscribers(index)
    }

    #[inline(always)]
    pub(crate) fn compiled_pool(&self, index: AddressIndex) -> &CompiledPool {
        &self.pools[usize::from(self.compiled_of[index.index()])]
    }

    /// `None` unless the pool is deterministic.
    pub fn formula(&self, pool: PoolId) -> Option<&Formula> {
        self.formulas.get(pool.index())?.as_ref()
    }

    /// The lease that has an external port.
    pub fn lease_of(&self, index: AddressIndex, port: u16) -> Option<Lease> {
        self.ports.lease_of(index, port)
    }

    /// Leases of an address, in order. Not for the packet path.
    pub fn leases_on(&self, index: AddressIndex) -> impl Iterator<Item = Lease> + '_ {
        self.ports.leases_on(index)
    }

    /// True if the formula excludes this network or broadcast address.
    pub fn is_boundary_address(&self, pool: PoolId, inside: Ipv4Addr) -> bool {
        self.formula(pool).is_some_and(|formula| formula.slice_of(inside.into()).is_none())
    }

    /// A subscriber's slice and blocks, on its paired address or on all of the pool. Not for the
    /// packet path.
    pub fn subscriber_ports(
        &self,
        pool: PoolId,
        realm: RealmId,
        inside: Ipv4Addr,
        paired: Option<Ipv4Addr>,
    ) -> Vec<SubscriberPorts> {
        let Some(compiled) = self.pools.get(pool.index()) else { return Vec::new() };
        let slice = self.formula(pool).and_then(|formula| formula.slice_of(inside.into()));
        let mut found: Vec<SubscriberPorts> = Vec::new();
        found.extend(slice.map(|slice| {
            let range =
                PortRange { address: self.member(compiled, slice.address), first: slice.first, last: slice.last };
            self.own_range(&range, None)
        }));
        let addresses = match paired.and_then(|address| self.address_index(address)) {
            Some(address) => vec![address],
            None if slice.is_none() => self.choices(compiled).to_vec(),
            None => Vec::new(),
        };
        for address in addresses {
            let leases = self.ports.leases_on(address);
            let mine = leases.filter(|lease| lease.holder.realm == realm && lease.holder.address == inside.into());
            found.extend(mine.map(|lease| self.own_lease(&lease)));
        }
        found
    }

    /// The ports of a leased block. Not for the packet path.
    pub fn own_lease(&self, lease: &Lease) -> SubscriberPorts {
        self.own_range(&PortRange::of_block(lease.block), Some(lease.since_s))
    }

    fn own_range(&self, range: &PortRange, leased_s: Option<u32>) -> SubscriberPorts {
        SubscriberPorts {
            address: self.address(range.address),
            first: range.first,
            last: range.last,
            leased_s,
            used: Protocol::ALL.map(|protocol| self.ports.used_within(range, protocol)),
        }
    }

    /// Ports of an address in leased blocks.
    pub fn ports_leased(&self, index: AddressIndex) -> u32 {
        self.ports.ports_leased(index)
    }

    /// Ports of unleased blocks that cannot be leased, because others of the block are in use
    /// singly.
    pub fn ports_unleasable(&self, index: AddressIndex) -> u32 {
        let Some((range, size)) = self.range_of_blocks(index) else { return 0 };
        self.ports.ports_unleasable(&range, size)
    }

    /// The port's block, if single ports keep it from being leased.
    pub fn torn_block(&self, index: AddressIndex, port: u16) -> Option<TornBlock> {
        let (range, size) = self.range_of_blocks(index)?;
        self.ports.torn_block(&range, size, port)
    }

    fn range_of_blocks(&self, index: AddressIndex) -> Option<(PortRange, BlockSize)> {
        let blocks = self.compiled_pool(index).blocks?;
        Some((PortRange { address: index, first: blocks.first, last: blocks.last }, blocks.size))
    }

    /// The owner by formula. An address removed from the formula may have mappings left.
    pub fn slice_owner(&self, index: AddressIndex, port: u16) -> Option<Owner> {
        let compiled = self.compiled_pool(index);
        let formula = self.formula(compiled.id)?;
        Some(formula.owner_of((*self.position_of.get(index.index())?)?, port))
    }
}
