//! Natrix's own addresses, looked up for every outbound destination and nearly always absent.
//!
//! A bitmap of 16 bits an address, in the L1 cache, rejects all but 1 in 16 other addresses. Behind
//! it is an open-addressed table, at most half full.

use core::net::Ipv4Addr;

use crate::settings::Interface;
use crate::types::AddressIndex;
use crate::types::InterfaceId;

/// What an address is to Natrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// External address of a pool.
    Pool(AddressIndex),
    /// Natrix's own address.
    Own(InterfaceId),
    /// Natrix's own address, shared by a pool.
    OwnAndPool(InterfaceId, AddressIndex),
    /// Broadcast address of a connected prefix.
    Broadcast(InterfaceId),
}

impl Local {
    /// The external address, if a pool has it.
    #[inline]
    pub const fn pool_address(self) -> Option<AddressIndex> {
        match self {
            Local::Pool(address) | Local::OwnAndPool(_, address) => Some(address),
            Local::Own(_) | Local::Broadcast(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    address: u32,
    local: Option<Local>,
}

const SLOTS_PER_ADDRESS: usize = 2;

const FILTER_BITS_PER_SLOT: usize = 8;

/// See the [module](self).
#[derive(Debug)]
pub struct LocalAddresses {
    filter: Box<[u64]>,
    /// Their number is a power of two.
    slots: Box<[Slot]>,
    filter_shift: u32,
    slot_shift: u32,
    length: usize,
    /// The pools' addresses, if they are few ranges.
    ranges: Vec<PoolRange>,
}

#[derive(Clone, Copy, Debug)]
struct PoolRange {
    first: u32,
    count: u32,
    index: u32,
}

const RANGES_MAX: usize = 4;

/// Fibonacci hashing needs no key: only the configuration adds entries.
#[inline(always)]
fn scatter(address: u32) -> u32 {
    address.wrapping_mul(0x9e37_79b1)
}

impl LocalAddresses {
    /// `external` preferably comes in index order; none is a broadcast address.
    pub fn new(interfaces: &[Interface], external: &[(Ipv4Addr, AddressIndex)]) -> LocalAddresses {
        let pool_addresses = external.len();
        let interface_addresses: usize = interfaces.iter().map(|interface| interface.addresses.len()).sum();
        // Each interface address may add a broadcast address.
        let slots = ((pool_addresses + 2 * interface_addresses) * SLOTS_PER_ADDRESS).next_power_of_two().max(8);
        let filter_bits = slots * FILTER_BITS_PER_SLOT;
        let mut set = LocalAddresses {
            filter: vec![0; filter_bits / 64].into_boxed_slice(),
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            filter_shift: 32_u32.saturating_sub(filter_bits.ilog2()),
            slot_shift: 32_u32.saturating_sub(slots.ilog2()),
            length: 0,
            ranges: ranges(external),
        };
        for (address, index) in external {
            set.add(address.to_bits(), Local::Pool(*index));
        }
        let addresses =
            || (0..).zip(interfaces).flat_map(|(id, i)| i.addresses.iter().map(move |a| (InterfaceId(id), a)));
        for (interface, own) in addresses() {
            set.add(own.address.to_bits(), Local::Own(interface));
        }
        for (interface, own) in addresses() {
            // A /31 has no broadcast address (RFC 3021 §2.1), a /32 no room for one.
            if own.prefix_length < 31 {
                let host_bits = u32::MAX.checked_shr(u32::from(own.prefix_length)).unwrap_or(0);
                set.add(own.address.to_bits() | host_bits, Local::Broadcast(interface));
            }
        }
        set
    }

    fn add(&mut self, address: u32, local: Local) {
        let bit = self.filter_bit(address);
        self.filter[bit / 64] |= 1 << (bit % 64);
        let mut position = self.home(address);
        // Half of the slots are free, so this ends.
        while let Some(present) = self.slots[position].local {
            if self.slots[position].address == address {
                let merged = match (present, local) {
                    (Local::Pool(index), Local::Own(interface)) => Local::OwnAndPool(interface, index),
                    (present, _) => present,
                };
                self.slots[position].local = Some(merged);
                return;
            }
            position = (position + 1) & (self.slots.len() - 1);
        }
        self.slots[position] = Slot { address, local: Some(local) };
        self.length += 1;
    }

    #[inline(always)]
    fn filter_bit(&self, address: u32) -> usize {
        (scatter(address) >> self.filter_shift) as usize
    }

    #[inline(always)]
    fn home(&self, address: u32) -> usize {
        (scatter(address) >> self.slot_shift) as usize
    }

    /// What `address` (host bit order) is to Natrix.
    #[inline(always)]
    pub fn lookup(&self, address: u32) -> Option<Local> {
        let bit = self.filter_bit(address);
        if self.filter[bit / 64] >> (bit % 64) & 1 == 0 {
            return None;
        }
        self.lookup_filtered(address)
    }

    /// The index of an external address (host bit order).
    #[inline(always)]
    pub fn pool_address(&self, address: u32) -> Option<AddressIndex> {
        if self.ranges.len() > RANGES_MAX {
            return self.lookup(address).and_then(Local::pool_address);
        }
        let mut found = u32::MAX;
        for range in &self.ranges {
            let offset = address.wrapping_sub(range.first);
            found = if offset < range.count { range.index + offset } else { found };
        }
        (found != u32::MAX).then_some(AddressIndex(found))
    }

    fn lookup_filtered(&self, address: u32) -> Option<Local> {
        let mut position = self.home(address);
        loop {
            let slot = self.slots[position];
            if slot.address == address || slot.local.is_none() {
                return slot.local;
            }
            position = (position + 1) & (self.slots.len() - 1);
        }
    }

    /// True if an address is only in this set.
    pub(crate) fn adds_to(&self, before: &LocalAddresses) -> bool {
        self.slots.iter().any(|slot| slot.local.is_some() && before.lookup(slot.address).is_none())
    }

    /// Addresses in the set.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// A duplicate address has its first index.
fn ranges(external: &[(Ipv4Addr, AddressIndex)]) -> Vec<PoolRange> {
    let mut ranges: Vec<PoolRange> = Vec::new();
    for (address, AddressIndex(index)) in external {
        let (address, index) = (address.to_bits(), *index);
        match ranges.last_mut() {
            Some(last) if address.wrapping_sub(last.first) == last.count && last.index + last.count == index => {
                last.count += 1;
            }
            _ => ranges.push(PoolRange { first: address, count: 1, index }),
        }
    }
    // The lookup takes the last matching range, the table the first entry.
    ranges.reverse();
    ranges
}

#[cfg(test)]
mod tests;
