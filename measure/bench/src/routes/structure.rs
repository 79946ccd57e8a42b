//! The tables that are compared, behind one interface.

use std::sync::Arc;

use daemon::routing::fib::Fib;
use daemon::routing::rib::Hop;
use daemon::routing::rib::Leads;
use daemon::routing::rib::Rib;
use daemon::routing::rib::Table;
use nat::Settings;
use nat::routes::live::LiveRoutes;
use nat::types::InterfaceId;
use nat::types::Prefix;
#[cfg(feature = "dpdk")]
use packet_io::dpdk::routes::DpdkFib;
#[cfg(feature = "dpdk")]
use packet_io::dpdk::routes::DpdkLpm;
#[cfg(feature = "dpdk")]
use packet_io::dpdk::routes::Room;
use prefix_trie::PrefixMap;

use super::RoutesError;
use crate::traffic;
use crate::traffic::BURST;

/// The next hop of addresses without route.
pub(super) const NONE: u32 = u32::MAX;
/// The kernel's number of BGP, and the metric that FRR gives its routes.
const BGP: u8 = 186;
const METRIC: u32 = 20;
/// The interface outside in the settings of the benchmarks.
const OUTSIDE: InterfaceId = InterfaceId(1);

/// A table of routes of IPv4 that changes.
pub(super) trait RouteTable {
    /// Sets the route of a prefix, whether there was one or not.
    fn set(&mut self, prefix: Prefix, next_hop: u32) -> Result<(), RoutesError>;
    /// Removes the route of a prefix.
    fn remove(&mut self, prefix: Prefix) -> Result<(), RoutesError>;
    /// Called after each batch of changes.
    fn publish(&mut self) {}
    /// Finds a number of the longest route's next hop for each address of a burst.
    fn lookup(&self, addresses: &[u32; BURST], found: &mut [u32; BURST]);
    /// The next hop behind a number that [`RouteTable::lookup`] has found, or [`NONE`].
    fn next_hop(&self, found: u32) -> u32 {
        found
    }
    /// Memory that lookups read, if it is known; the rest is seen from the process.
    fn lookup_bytes(&self) -> usize;
    /// All memory, if the table takes it from its own supply.
    fn own_bytes(&self) -> Option<usize> {
        None
    }
}

/// Natrix's own: the collection of all routes, and the table that workers read.
pub(super) struct Natrix {
    rib: Rib,
    fib: Fib,
    live: Arc<LiveRoutes>,
    settings: Settings,
}

impl Natrix {
    /// Room for as many nodes as an instance has.
    pub(super) fn new() -> Result<Natrix, RoutesError> {
        let settings = Settings { interfaces: traffic::interfaces(), ..Settings::default() };
        let live = Arc::new(LiveRoutes::new(settings.realms(), 0, 1 << 21, false)?);
        Ok(Natrix::over(&live, settings))
    }

    /// As its routing thread fills the table of an engine.
    pub(super) fn over(live: &Arc<LiveRoutes>, settings: Settings) -> Natrix {
        let rib = Rib::of(&settings);
        Natrix { fib: Fib::new(live, rib.tables()), rib, live: Arc::clone(live), settings }
    }

    /// Puts the routes of the configuration into the table.
    pub(super) fn set_fixed(&mut self) -> Result<(), RoutesError> {
        for table in Table::all(self.settings.realms()) {
            let mut from = core::ops::Bound::Unbounded;
            while let Some(prefix) = self.rib.next_prefix(table, from) {
                self.fib.refresh(&self.rib, &self.settings, table, prefix).map_err(RoutesError::natrix)?;
                from = core::ops::Bound::Excluded(prefix);
            }
        }
        self.fib.publish();
        Ok(())
    }

    fn change(&mut self, prefix: Prefix, route: Option<Leads<'_>>) -> Result<(), RoutesError> {
        if self.rib.change_kernel(Table::Outside, prefix, METRIC, route) {
            self.fib.refresh(&self.rib, &self.settings, Table::Outside, prefix).map_err(RoutesError::natrix)?;
        }
        Ok(())
    }
}

/// The router with a number, outside and on the link.
fn gateway(next_hop: u32) -> u32 {
    0xc0a8_fe02 + (next_hop << 8)
}

impl RouteTable for Natrix {
    fn set(&mut self, prefix: Prefix, next_hop: u32) -> Result<(), RoutesError> {
        let hop = Hop { interface: OUTSIDE, gateway: gateway(next_hop), weight: 1 };
        self.change(prefix, Some(Leads { protocol: BGP, hops: &[hop], object: None }))
    }

    fn remove(&mut self, prefix: Prefix) -> Result<(), RoutesError> {
        self.change(prefix, None)
    }

    fn publish(&mut self) {
        self.fib.publish();
    }

    #[inline]
    fn lookup(&self, addresses: &[u32; BURST], found: &mut [u32; BURST]) {
        for (address, found) in addresses.iter().zip(found) {
            *found = self.live.lookup(0, *address).unwrap_or(NONE);
        }
    }

    fn next_hop(&self, found: u32) -> u32 {
        match found {
            NONE => NONE,
            value => self.live.gateway(value, 0).map_or(NONE, |gateway| gateway.wrapping_sub(0xc0a8_fe02) >> 8),
        }
    }

    fn lookup_bytes(&self) -> usize {
        self.fib.bytes()
    }
}

/// The crate `prefix-trie`: a binary tree of the prefixes that there are.
#[derive(Default)]
pub(super) struct Trie(PrefixMap<(u32, u8), u32>);

fn key(prefix: Prefix) -> (u32, u8) {
    (prefix.address().to_bits(), prefix.length())
}

impl RouteTable for Trie {
    fn set(&mut self, prefix: Prefix, next_hop: u32) -> Result<(), RoutesError> {
        self.0.insert(key(prefix), next_hop);
        Ok(())
    }

    fn remove(&mut self, prefix: Prefix) -> Result<(), RoutesError> {
        self.0.remove(&key(prefix));
        Ok(())
    }

    #[inline]
    fn lookup(&self, addresses: &[u32; BURST], found: &mut [u32; BURST]) {
        for (address, found) in addresses.iter().zip(found) {
            *found = self.0.get_lpm(&(*address, 32)).map_or(NONE, |(_, next_hop)| *next_hop);
        }
    }

    fn lookup_bytes(&self) -> usize {
        // The crate does not report its memory.
        0
    }
}

/// DPDK's tables.
#[cfg(feature = "dpdk")]
macro_rules! of_dpdk {
    ($table:ident) => {
        impl RouteTable for $table {
            fn set(&mut self, prefix: Prefix, next_hop: u32) -> Result<(), RoutesError> {
                self.add(prefix.address().to_bits(), prefix.length(), next_hop).map_err(RoutesError::Dpdk)
            }

            fn remove(&mut self, prefix: Prefix) -> Result<(), RoutesError> {
                self.delete(prefix.address().to_bits(), prefix.length()).map_err(RoutesError::Dpdk)
            }

            #[inline]
            fn lookup(&self, addresses: &[u32; BURST], found: &mut [u32; BURST]) {
                $table::lookup(self, addresses, found);
            }

            fn lookup_bytes(&self) -> usize {
                0
            }

            fn own_bytes(&self) -> Option<usize> {
                Some(self.bytes() as usize)
            }
        }
    };
}

#[cfg(feature = "dpdk")]
of_dpdk!(DpdkLpm);
#[cfg(feature = "dpdk")]
of_dpdk!(DpdkFib);

/// Room for these routes in a table of DPDK, with some more for changes.
#[cfg(feature = "dpdk")]
pub(super) fn room(routes: u32, groups: u32) -> Room {
    Room { routes: routes + routes / 8 + 64, groups: groups + groups / 8 + 64 }
}
