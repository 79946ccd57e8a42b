//! Places of external addresses in the port table. A removed address keeps its place until nothing
//! is left of it, so an [`AddressIndex`] in a record means the same address after a reload.

use core::net::Ipv4Addr;
use std::collections::HashMap;

use crate::external::load_balancing::Balance;
use crate::external::ports::AddressSpec;
use crate::external::ports::PortTable;
use crate::settings::Pool;
use crate::settings::Removed;
use crate::settings::Settings;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;

/// Why and until when an address takes no new mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// True if removed from the configuration, false if it drains.
    pub removed: bool,
    /// When closed.
    pub since: Instant,
    /// When the remaining mappings end; `None` if by themselves.
    pub ends: Option<Instant>,
}

/// A place of the port table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The address.
    pub address: Ipv4Addr,
    /// Removed pools are numbered after those of the settings.
    pub pool: PoolId,
    /// `None` while open.
    pub closed: Option<Closed>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) slots: Vec<Option<Slot>>,
    pub(crate) removed_pools: Vec<Pool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) needed: usize,
    pub(crate) removed: usize,
}

impl Slots {
    pub(crate) fn new(settings: &Settings) -> Slots {
        let wanted = wanted(settings, Instant::ORIGIN);
        Slots { slots: wanted.into_iter().map(Some).collect(), removed_pools: Vec::new() }
    }

    pub(crate) fn successor(
        &self,
        before: &Settings,
        settings: &Settings,
        ports: &PortTable,
        balance: &Balance,
        now: Instant,
    ) -> Result<Slots, NoRoom> {
        let wanted = wanted(settings, now);
        let known: HashMap<Ipv4Addr, usize> =
            self.slots.iter().enumerate().filter_map(|(place, slot)| Some((slot.as_ref()?.address, place))).collect();
        let mut next = Slots { slots: vec![None; self.slots.len()], removed_pools: Vec::new() };
        for slot in &wanted {
            let Some(place) = known.get(&slot.address) else { continue };
            let since = |closed: Closed| match self.slots[*place].and_then(|old| old.closed) {
                Some(old) => Closed { since: old.since, ends: ends(settings, closed.removed, old.since), ..closed },
                None => closed,
            };
            next.slots[*place] = Some(Slot { closed: slot.closed.map(since), ..*slot });
        }
        let is_idle = |place: usize, address: Ipv4Addr| {
            ports.is_idle(AddressIndex(place as u32)) && !balance.concerns(address.to_bits())
        };
        self.keep_removed(before, settings, is_idle, now, &mut next);
        let mut free = next.slots.iter().enumerate().filter(|(_, slot)| slot.is_none()).map(|(place, _)| place);
        let free: Vec<usize> = free.by_ref().collect();
        let mut free = free.into_iter();
        for slot in wanted.into_iter().filter(|slot| !known.contains_key(&slot.address)) {
            match free.next() {
                Some(place) => next.slots[place] = Some(slot),
                None => next.slots.push(Some(slot)),
            }
        }
        let needed = next.slots.len();
        let removed =
            next.slots.iter().flatten().filter(|slot| slot.closed.is_some_and(|closed| closed.removed)).count();
        if needed > ports.places() { Err(NoRoom { needed, removed }) } else { Ok(next) }
    }

    fn keep_removed(
        &self,
        before: &Settings,
        settings: &Settings,
        is_idle: impl Fn(usize, Ipv4Addr) -> bool,
        now: Instant,
        next: &mut Slots,
    ) {
        for (place, old) in self.slots.iter().enumerate() {
            let Some(old) = old else { continue };
            if next.slots[place].is_some() {
                continue;
            }
            let since = match old.closed {
                // All workers know it is closed, so an idle one stays idle.
                Some(Closed { removed: true, .. }) if is_idle(place, old.address) => continue,
                Some(closed) => closed.since,
                None => now,
            };
            let Some(pool) = self.pool_in(before, old.pool) else { continue };
            let id = match settings.pools.iter().position(|other| other.name == pool.name) {
                Some(position) => position,
                None => settings.pools.len() + next.removed_pool(pool),
            };
            let closed = Closed { removed: true, since, ends: ends(settings, true, since) };
            next.slots[place] = Some(Slot { address: old.address, pool: PoolId(id as u16), closed: Some(closed) });
        }
        for (position, pool) in next.removed_pools.iter_mut().enumerate() {
            let id = PoolId((settings.pools.len() + position) as u16);
            pool.addresses =
                next.slots.iter().flatten().filter(|slot| slot.pool == id).map(|slot| slot.address).collect();
            pool.subscribers.clear();
        }
    }

    fn removed_pool(&mut self, pool: &Pool) -> usize {
        match self.removed_pools.iter().position(|other| other.name == pool.name) {
            Some(position) => position,
            None => {
                self.removed_pools.push(pool.clone());
                self.removed_pools.len() - 1
            }
        }
    }

    pub(crate) fn pool_in<'a>(&'a self, settings: &'a Settings, id: PoolId) -> Option<&'a Pool> {
        let removed = || self.removed_pools.get(id.index().checked_sub(settings.pools.len())?);
        settings.pools.get(id.index()).or_else(removed)
    }

    pub(crate) fn specs(
        &self,
        settings: &Settings,
        balanced: impl Iterator<Item = (u32, Protocol, (u16, u16))>,
    ) -> Vec<AddressSpec> {
        let mut forwarded: HashMap<Ipv4Addr, [Vec<(u16, u16)>; Protocol::COUNT]> = HashMap::new();
        for forward in &settings.forwards {
            forwarded.entry(forward.external).or_default()[forward.protocol.index()].push(forward.ports);
        }
        for (address, protocol, ports) in balanced {
            forwarded.entry(address.into()).or_default()[protocol.index()].push(ports);
        }
        let spec = |slot: &Option<Slot>| {
            let open = slot.as_ref().filter(|slot| slot.closed.is_none());
            match open.and_then(|slot| Some((slot, settings.pools.get(slot.pool.index())?))) {
                None => AddressSpec::NOTHING,
                Some((slot, pool)) => AddressSpec {
                    port_min: pool.port_min,
                    port_max: pool.port_max,
                    reserved: pool.reserved_ports.clone(),
                    forwarded: forwarded.get(&slot.address).cloned().unwrap_or_default(),
                    is_whole: pool.one_to_one,
                },
            }
        };
        self.slots.iter().map(spec).collect()
    }
}

fn wanted(settings: &Settings, now: Instant) -> Vec<Slot> {
    let mut wanted = Vec::new();
    for (position, pool) in settings.pools.iter().enumerate() {
        for address in &pool.addresses {
            let drains = pool.draining || pool.draining_addresses.contains(address);
            let closed = drains.then(|| Closed { removed: false, since: now, ends: ends(settings, false, now) });
            wanted.push(Slot { address: *address, pool: PoolId(position as u16), closed });
        }
    }
    wanted
}

pub(crate) fn ends(settings: &Settings, removed: bool, since: Instant) -> Option<Instant> {
    if removed && settings.reload.removed == Removed::End {
        return Some(since);
    }
    settings.reload.drain_time.map(|time| since + time)
}
