//! What is announced to the routers while it can serve: pools, and prefixes for IPv6 hosts.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::BTreeSet;
use std::time::Instant;

use control::Withheld;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::stand_in::Prefix6;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use netlink_packet_route::route::RouteMessage;

use crate::kernel::netlink;
use crate::routing::rib::Hop;
use crate::routing::rib::Rib;
use crate::routing::rib::Table;

/// Why [`unreachable`] prefixes are withheld, for people.
pub(crate) const UNREACHABLE: &str = "no interface of its VRF can use all its IPv6 addresses";

/// The pools as the routing sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    /// Time of `natrix drain`, until it is undone.
    pub(crate) drained_at: Option<Instant>,
    /// Why none is announced.
    pub(crate) withheld: Option<Withheld>,
    /// Everything that can be announced.
    pub(crate) served: BTreeSet<Served>,
    /// The part of it that hosts cannot reach by IPv6: see [`unreachable`].
    pub(crate) unreachable: BTreeSet<Served>,
    /// What has a route in the kernel.
    pub(crate) announced: BTreeSet<Served>,
}

impl Pools {
    /// Whether a route of the kernel leads to this address of a pool.
    pub(crate) fn announces(&self, address: Ipv4Addr) -> bool {
        // Its prefixes do not overlap.
        let before = self.announced.range(..=Served::Pool(Prefix::host(address))).next_back();
        matches!(before, Some(Served::Pool(prefix)) if prefix.contains(address))
    }
}

/// Destinations that Natrix serves, so that routers must send them here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Served {
    /// Of a pool, for the outside.
    Pool(Prefix),
    /// A translation prefix, for IPv6 hosts of a realm.
    Nat64(RealmId, Prefix6),
    /// The address of an AFTR, for B4s of a realm.
    Softwire(RealmId, Prefix6),
}

impl Served {
    /// The prefixes of all pools, of NAT64 and of softwires, and those of removed addresses that
    /// still `drain`, without addresses that the kernel has on an interface.
    pub(super) fn all(settings: &Settings, drain: &[Ipv4Addr]) -> BTreeSet<Served> {
        let addresses = settings.pools.iter().flat_map(|pool| &pool.addresses).chain(drain).map(|one| one.to_bits());
        let own = settings.interfaces.iter().flat_map(|interface| &interface.addresses);
        let own: BTreeSet<u32> = own.map(|own| own.address.to_bits()).collect();
        let pools = prefixes_of(addresses.filter(|address| !own.contains(address))).into_iter().map(Served::Pool);
        let nat64 =
            settings.transition.nat64.iter().filter_map(|one| {
                Some(Served::Nat64(one.realm, Prefix6::new(one.prefix.address(), one.prefix.length())?))
            });
        let has = |aftr: Ipv6Addr| settings.ipv6.addresses.iter().any(|own| own.address == aftr);
        let softwires = settings.transition.softwires.iter().filter(|one| !has(one.aftr));
        let softwires =
            softwires.filter_map(|one| Some(Served::Softwire(one.realm, Prefix6::new(one.aftr.to_bits(), 128)?)));
        pools.chain(nat64).chain(softwires).collect()
    }

    /// Its route in a table of the kernel.
    pub(super) fn message(self, table: u32) -> RouteMessage {
        match self {
            Served::Pool(prefix) => netlink::announcement(table, prefix),
            Served::Nat64(_, prefix) | Served::Softwire(_, prefix) => netlink::announcement(table, prefix),
        }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Served::Pool(prefix) => prefix.fmt(f),
            Served::Nat64(_, prefix) | Served::Softwire(_, prefix) => prefix.fmt(f),
        }
    }
}

/// Addresses that a change removed and that have flows whose time to drain is not over.
pub(super) fn draining(shared: &Shared, now: nat::Instant) -> Vec<Ipv4Addr> {
    let is_used = |place| {
        shared.ports_leased(place) > 0 || Protocol::ALL.iter().any(|protocol| shared.ports_used(place, *protocol) > 0)
    };
    let drain = shared.addresses().filter(|(place, slot)| {
        let closed = slot.closed.filter(|closed| closed.removed);
        closed.is_some_and(|closed| closed.ends.is_none_or(|ends| now < ends)) && is_used(*place)
    });
    drain.map(|(_, slot)| slot.address).collect()
}

/// What a pool needs to be announced, as the instance sees it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The time of the workers.
    pub now: nat::Instant,
    /// By port: whether it has link.
    pub ports_up: Vec<bool>,
    /// By interface: whether its port has link.
    pub interfaces_up: Vec<bool>,
    /// Devices of the kernel that ports are on top of.
    pub devices_below: BTreeSet<u32>,
    /// Interfaces whose device of the kernel is down, gone, or without an address of IPv4.
    pub devices_down: BTreeSet<InterfaceId>,
    /// Interfaces whose device is so, or lacks an address of IPv6.
    pub devices_down6: BTreeSet<InterfaceId>,
    /// All workers answer.
    pub workers_alive: bool,
    /// New mappings can be logged, or need no log.
    pub log_healthy: bool,
}

impl Health {
    /// Whether packets can leave by an interface: its port has link, and its device of the kernel,
    /// if it has one, resolves neighbours.
    pub(super) fn is_up(&self, interface: InterfaceId) -> bool {
        self.has_link(interface) && !self.devices_down.contains(&interface)
    }

    /// The same for packets of IPv6.
    pub(super) fn is_up6(&self, interface: InterfaceId) -> bool {
        self.has_link(interface) && !self.devices_down6.contains(&interface)
    }

    pub(super) fn has_link(&self, interface: InterfaceId) -> bool {
        self.interfaces_up.get(interface.index()).copied().unwrap_or(false)
    }
}

/// The prefixes that cover these addresses and no other.
pub fn prefixes_of(addresses: impl Iterator<Item = u32>) -> Vec<Prefix> {
    let mut sorted: Vec<u32> = addresses.collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut prefixes: Vec<Prefix> = Vec::new();
    for address in sorted {
        let mut last = Prefix::host(address.into());
        // Two halves are one prefix.
        while let Some(before) = prefixes.last() {
            let whole = last.length().checked_sub(1).and_then(|length| Prefix::new(last.address(), length));
            let Some(whole) =
                whole.filter(|whole| before.length() == last.length() && whole.contains(before.address()))
            else {
                break;
            };
            prefixes.pop();
            last = whole;
        }
        prefixes.push(last);
    }
    prefixes
}

/// What keeps the pools from being announced.
pub(super) fn withheld(health: &Health, settings: &Settings, rib: &Rib, is_drained: bool) -> Option<Withheld> {
    let both_sides = |is_up: &dyn Fn(InterfaceId) -> bool| {
        [Side::Inside, Side::Outside].into_iter().all(|side| {
            let mut all = (0..).map(InterfaceId).zip(&settings.interfaces);
            all.any(|(id, interface)| interface.side == side && is_up(id))
        })
    };
    let is_outside = |interface: InterfaceId| {
        settings.interfaces.get(interface.index()).is_some_and(|interface| interface.side == Side::Outside)
    };
    let is_router = |hop: &Hop| hop.gateway != 0 && is_outside(hop.interface) && health.is_up(hop.interface);
    if is_drained {
        Some(Withheld::Drained)
    } else if !health.workers_alive {
        Some(Withheld::Workers)
    } else if !both_sides(&|id| health.has_link(id)) {
        Some(Withheld::NoLink)
    } else if !both_sides(&|id| health.is_up(id)) {
        Some(Withheld::DeviceDown)
    } else if !rib.any_used(Table::Outside, is_router) {
        Some(Withheld::NoNextHop)
    } else if !health.log_healthy {
        Some(Withheld::Log)
    } else {
        None
    }
}

/// What hosts cannot reach by IPv6, because no interface of their VRF has all its addresses. Pools
/// do not depend on these.
pub(super) fn unreachable(health: &Health, settings: &Settings, served: &BTreeSet<Served>) -> BTreeSet<Served> {
    let has_ipv6 = |id: &InterfaceId| settings.ipv6.addresses.iter().any(|own| own.interface == *id);
    let is_cut_off = |realm: RealmId| {
        let of_realm = (0..).map(InterfaceId).zip(&settings.interfaces);
        let of_realm = of_realm.filter(|(id, one)| one.facing() == Facing::inside(realm) && has_ipv6(id));
        let mut of_realm = of_realm.map(|(id, _)| id).peekable();
        of_realm.peek().is_some() && of_realm.all(|id| health.devices_down6.contains(&id))
    };
    let is_unreachable = |served: &Served| match served {
        Served::Pool(_) => false,
        Served::Nat64(realm, _) | Served::Softwire(realm, _) => is_cut_off(*realm),
    };
    served.iter().copied().filter(is_unreachable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rib::KernelRoute;

    #[test]
    fn an_address_is_announced_with_its_prefix() {
        let prefix = |text: &str, length| Served::Pool(Prefix::new(text.parse().unwrap(), length).unwrap());
        let announced = [prefix("203.0.113.4", 30), prefix("203.0.113.10", 32)].into();
        let pools = Pools { announced, ..Pools::default() };
        let is_announced = |last: &u8| pools.announces(Ipv4Addr::new(203, 0, 113, *last));
        assert_eq!((0..=20).filter(is_announced).collect::<Vec<_>>(), [4, 5, 6, 7, 10]);
        assert!(!Pools::default().announces(Ipv4Addr::new(203, 0, 113, 4)));
    }

    #[test]
    fn pool_addresses_become_the_fewest_prefixes() {
        let prefixes = |addresses: core::ops::Range<u32>| {
            let found = prefixes_of(addresses.map(|low| 0xcb00_7100 + low));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(prefixes(0..256), ["203.0.113.0/24"]);
        assert_eq!(prefixes(1..5), ["203.0.113.1/32", "203.0.113.2/31", "203.0.113.4/32"]);
        assert_eq!(prefixes(8..12), ["203.0.113.8/30"]);
        assert!(prefixes(0..0).is_empty());
    }

    /// Two interfaces with link, and everything else as it should be.
    fn healthy() -> Health {
        Health {
            now: nat::Instant::default(),
            ports_up: vec![true, true],
            interfaces_up: vec![true, true],
            devices_below: BTreeSet::new(),
            devices_down: BTreeSet::new(),
            devices_down6: BTreeSet::new(),
            workers_alive: true,
            log_healthy: true,
        }
    }

    #[test]
    fn pools_are_withheld_while_they_cannot_serve() {
        let settings = crate::routing::rib::tests::settings();
        let rib = Rib::of(&settings);
        let why = |health: Health| withheld(&health, &settings, &rib, false);
        assert_eq!(why(healthy()), None);
        assert_eq!(withheld(&healthy(), &settings, &rib, true), Some(Withheld::Drained));
        assert_eq!(why(Health { workers_alive: false, ..healthy() }), Some(Withheld::Workers));
        assert_eq!(why(Health { interfaces_up: vec![true, false], ..healthy() }), Some(Withheld::NoLink));
        assert_eq!(why(Health { interfaces_up: vec![false, true], ..healthy() }), Some(Withheld::NoLink));
        let down = |id| BTreeSet::from([InterfaceId(id)]);
        assert_eq!(why(Health { devices_down: down(0), ..healthy() }), Some(Withheld::DeviceDown));
        assert_eq!(why(Health { devices_down: down(1), ..healthy() }), Some(Withheld::DeviceDown));
        assert_eq!(why(Health { log_healthy: false, ..healthy() }), Some(Withheld::Log));
        assert_eq!(why(Health::default()), Some(Withheld::Workers));
    }

    #[test]
    fn pools_need_a_router_outside_over_a_link_that_is_up() {
        let mut settings = crate::routing::rib::tests::settings();
        settings.routes.retain(|route| route.interface != InterfaceId(1));
        let mut rib = Rib::of(&settings);
        let why = |rib: &mut Rib, settings: &Settings, up: &[bool]| {
            rib.set_links(up);
            withheld(&Health { interfaces_up: up.to_vec(), ..healthy() }, settings, rib, false)
        };
        // The connected prefix outside leads to no router.
        assert_eq!(why(&mut rib, &settings, &[true, true]), Some(Withheld::NoNextHop));
        let hop = |interface| Hop { interface: InterfaceId(interface), gateway: 7, weight: 1 };
        let route = |hops: &[Hop]| KernelRoute { protocol: 186, metric: 20, hops: hops.to_vec(), object: None };
        rib.set_kernel(Table::Outside, Prefix::ALL, &[route(&[hop(1)])]);
        assert_eq!(why(&mut rib, &settings, &[true, true]), None, "a route of the kernel is enough");
        // A second interface outside has link, and no route leads over it.
        settings.interfaces.push(settings.interfaces[1].clone());
        assert_eq!(why(&mut rib, &settings, &[true, false, true]), Some(Withheld::NoNextHop));
        rib.set_kernel(Table::Outside, Prefix::ALL, &[route(&[hop(1), hop(2)])]);
        assert_eq!(why(&mut rib, &settings, &[true, false, true]), None, "one of two next hops is enough");
        // A static route over the interface without link, which was preferred.
        let route = nat::settings::Route {
            prefix: Prefix::ALL,
            next_hop: Ipv4Addr::new(192, 0, 2, 254),
            interface: InterfaceId(1),
        };
        settings.routes.push(route);
        rib.set_fixed(&settings);
        assert_eq!(why(&mut rib, &settings, &[true, false, true]), None, "the route of the kernel takes its place");
        settings.routes.retain(|route| route.interface != InterfaceId(1));
        rib.set_fixed(&settings);
        rib.set_kernel(Table::Outside, Prefix::ALL, &[]);
        assert_eq!(why(&mut rib, &settings, &[true, true, true]), Some(Withheld::NoNextHop), "it is gone");
    }

    #[test]
    fn only_what_needs_an_address_of_ipv6_is_withheld_without_it() {
        let mut settings = crate::routing::rib::tests::settings();
        let mut other = settings.interfaces[0].clone();
        other.realm = RealmId(1);
        settings.interfaces.push(other);
        let own = |interface, last: u16| nat::settings::Address6 {
            interface: InterfaceId(interface),
            address: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last),
            prefix_length: 64,
        };
        settings.ipv6.addresses = vec![own(0, 1), own(2, 2)];
        let prefix = Prefix6::new(0x64_ff9b << 96, 96).unwrap();
        let pool = Served::Pool(Prefix::host(Ipv4Addr::new(203, 0, 113, 1)));
        let nat64 = [RealmId(0), RealmId(1)].map(|realm| Served::Nat64(realm, prefix));
        let served = BTreeSet::from([pool, nat64[0], nat64[1]]);
        let without = |lacking: &[u16], settings: &Settings| {
            let devices_down6 = lacking.iter().copied().map(InterfaceId).collect();
            let health = Health { devices_down6, ..healthy() };
            assert_eq!(withheld(&health, settings, &Rib::of(settings), false), None, "pools do not depend on it");
            unreachable(&health, settings, &served).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(without(&[], &settings), []);
        assert_eq!(without(&[0], &settings), [nat64[0]], "of one VRF of two");
        assert_eq!(without(&[0, 2], &settings), nat64);
        settings.interfaces[2].realm = RealmId(0);
        assert_eq!(without(&[0], &settings), [], "its other interface is as it should be");
        assert_eq!(without(&[0, 2], &settings), [nat64[0]]);
        settings.ipv6.addresses.clear();
        assert_eq!(without(&[0, 2], &settings), [], "none has an address of IPv6 that it could lack");
    }

    #[test]
    fn prefixes_that_ipv6_hosts_use_are_served_like_pools() {
        let mut settings = crate::routing::rib::tests::settings();
        let realm = RealmId(0);
        let aftr = "2001:db8:64::aaaa".parse().unwrap();
        settings.transition.nat64 =
            vec![nat::settings::Nat64 { prefix: translate::Prefix::WELL_KNOWN, realm, lowest_mtu6: 1_280 }];
        let softwire = nat::settings::Softwire { aftr, realm, inner: Vec::new(), subscribers: Vec::new() };
        settings.transition.softwires = vec![softwire];
        let all = |settings: &Settings| Served::all(settings, &[]).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all(&settings), ["64:ff9b::/96", "2001:db8:64::aaaa/128"]);
        settings.ipv6.addresses =
            vec![nat::settings::Address6 { interface: InterfaceId(0), address: aftr, prefix_length: 64 }];
        assert_eq!(all(&settings), ["64:ff9b::/96"], "the kernel has that address");
        let drain = Served::all(&settings, &[Ipv4Addr::new(203, 0, 113, 8), Ipv4Addr::new(203, 0, 113, 9)]);
        assert!(drain.contains(&Served::Pool(Prefix::new(Ipv4Addr::new(203, 0, 113, 8), 31).unwrap())), "they drain");
    }
}
