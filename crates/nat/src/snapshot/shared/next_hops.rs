//! Next hops, and the routes that lead to them.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::sync::Arc;

use super::Shared;
use crate::headers::packet::Egress;
use crate::headers::packet::NextHopId;
use crate::routes;
use crate::routes::CUT;
use crate::routes::RouteTable;
use crate::routes::cache::Departure;
use crate::routes::cache::RouteCache;
use crate::routes::live::HOPS_MAX;
use crate::routes::live::HOST_HOPS;
use crate::routes::live::LiveRoutes;
use crate::routes::live::PackedHop;
use crate::settings::Settings;
use crate::snapshot::transition::RealmEdge;
use crate::snapshot::transition::Transition;
use crate::types::Facing;
use crate::types::InterfaceId;
use crate::types::Prefix;
use crate::types::RealmId;
use crate::types::Side;

#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHop {
    id: NextHopId,
    /// Router; 0 if destinations are on the link.
    gateway: u32,
    pub(crate) interface: InterfaceId,
    pub(crate) mtu: u16,
}

impl NextHop {
    fn of_slot(slot: u32, hop: PackedHop) -> NextHop {
        NextHop { id: NextHopId(slot), gateway: hop.gateway(), interface: hop.interface(), mtu: hop.mtu() }
    }

    #[inline(always)]
    pub(crate) fn egress(&self) -> Egress {
        Egress { next_hop: self.id }
    }

    /// The address whose link-layer address is needed.
    pub(crate) fn neighbour(&self, destination: u32) -> u32 {
        if self.gateway == 0 { destination } else { self.gateway }
    }
}

impl From<NextHop> for Departure {
    #[inline(always)]
    fn from(hop: NextHop) -> Departure {
        Departure { egress: hop.egress(), mtu: hop.mtu }
    }
}

/// A next hop, for the link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHopView {
    /// Interface that leads to it.
    pub interface: InterfaceId,
    /// The router; `None` if destinations are on the link.
    pub gateway: Option<Ipv4Addr>,
    /// Its packets are IPv6, by the IPv6 routes of the interface's realm.
    pub is_ipv6: bool,
}

/// Route value of destinations on the other side. No next hop's number.
const HOLE: u32 = routes::VALUE_LIMIT - 1;

impl Shared {
    /// In the order of [`NextHopId`]. Unused next hops of live routes are on no interface.
    pub fn next_hops(&self) -> impl Iterator<Item = NextHopView> + '_ {
        let view = |hop: &NextHop| NextHopView {
            interface: hop.interface,
            gateway: (hop.gateway != 0).then(|| Ipv4Addr::from_bits(hop.gateway)),
            is_ipv6: hop.id >= self.transition.first_hop,
        };
        let unused = NextHopView { interface: InterfaceId(u16::MAX), gateway: None, is_ipv6: false };
        let slots = if self.live.is_some() { HOPS_MAX as u32 } else { 0 };
        let live = (0..slots).map(move |slot| self.live_slot(slot).map_or(unused, |hop| view(&hop)));
        let to_hosts = self.host_hops.iter().map(move |hop| hop.as_ref().map_or(unused, view));
        self.next_hops.iter().map(view).chain(live).chain(to_hosts)
    }

    pub(crate) fn interface_of(&self, hop: NextHopId) -> Option<InterfaceId> {
        let number = hop.index();
        let to_host = || self.host_hops.get(number.checked_sub(HOPS_MAX)?).copied().flatten();
        let live = || u32::try_from(number).ok().and_then(|slot| self.live_slot(slot));
        self.next_hops.get(number).copied().or_else(live).or_else(to_host).map(|hop| hop.interface)
    }

    /// The routes that change while packets are looked up.
    pub fn live_routes(&self) -> Option<&Arc<LiveRoutes>> {
        self.live.as_ref()
    }

    /// True if the kernel takes packets to Natrix itself from this interface.
    #[inline]
    pub fn has_kernel(&self, interface: InterfaceId) -> bool {
        self.has_kernel.get(interface.index()).copied().unwrap_or(false)
    }

    #[inline(always)]
    fn hop_of(&self, value: u32, subscriber: u32) -> Option<NextHop> {
        match self.next_hops.get(value as usize) {
            Some(hop) => Some(*hop),
            None => self.live_hop(value, subscriber),
        }
    }

    #[inline(never)]
    fn live_hop(&self, value: u32, subscriber: u32) -> Option<NextHop> {
        if let Some(hop) = value.checked_sub(HOST_HOPS).and_then(|number| self.host_hops.get(number as usize)) {
            return *hop;
        }
        let (slot, hop) = self.live.as_ref()?.hop(value, subscriber)?;
        Some(NextHop::of_slot(slot, hop))
    }

    fn live_slot(&self, slot: u32) -> Option<NextHop> {
        let hop = self.live.as_ref()?.slot(slot)?;
        Some(NextHop::of_slot(slot, hop))
    }

    #[inline(always)]
    pub(crate) fn route_out(&self, destination: u32, subscriber: u32) -> Option<NextHop> {
        self.outside_routes.lookup(destination).and_then(|value| self.hop_of(value, subscriber))
    }

    /// The destination is the subscriber.
    #[inline]
    pub(crate) fn route_in(&self, realm: RealmId, destination: u32) -> Option<NextHop> {
        let routes = self.inside_routes.get(realm.index())?;
        routes.lookup(destination).and_then(|value| self.hop_of(value, destination))
    }

    /// The departure of a coarse entry, for [`RouteCache::set_ways`].
    pub(crate) fn way_of(&self, leaf: u8) -> Option<Departure> {
        let value = routes::value_of(leaf)?;
        // Groups and hosts of live routes have no coarse entry.
        self.next_hops.get(value as usize).copied().or_else(|| self.live_slot(value)).map(Departure::from)
    }

    /// Requests what [`Shared::steady_out`] reads of a filled table.
    #[inline(always)]
    pub(crate) fn request_steady_out(&self, destination: u32) {
        self.outside_routes.request_fine_leaf(destination);
    }

    /// Like [`Shared::route_out`], for established packets. `None` if the packet does not fit.
    #[inline(always)]
    pub(crate) fn steady_out(
        &self,
        cache: &mut RouteCache,
        destination: u32,
        subscriber: u32,
        length: u16,
    ) -> Option<Egress> {
        let routes = &self.outside_routes;
        if cache.is_filled() {
            return self.steady_by_fine_entry(routes, cache, destination, subscriber, length);
        }
        self.steady(routes, cache, destination, subscriber, length)
    }

    /// Like [`Shared::route_in`], otherwise as [`Shared::steady_out`].
    #[inline(always)]
    pub(crate) fn steady_in(
        &self,
        cache: &mut RouteCache,
        realm: RealmId,
        destination: u32,
        length: u16,
    ) -> Option<Egress> {
        let routes = self.inside_routes.get(realm.index())?;
        self.steady(routes, cache, destination, destination, length)
    }

    #[inline(always)]
    fn steady(
        &self,
        routes: &RouteTable,
        cache: &mut RouteCache,
        destination: u32,
        subscriber: u32,
        length: u16,
    ) -> Option<Egress> {
        let leaf = routes.leaf(destination);
        let way = cache.way(leaf);
        if length <= way.mtu {
            return Some(way.egress);
        }
        if leaf != CUT {
            return None;
        }
        self.steady_by_fine_entry(routes, cache, destination, subscriber, length)
    }

    #[inline(always)]
    fn steady_by_fine_entry(
        &self,
        routes: &RouteTable,
        cache: &mut RouteCache,
        destination: u32,
        subscriber: u32,
        length: u16,
    ) -> Option<Egress> {
        if let Some(leaf) = routes.fine_leaf(destination) {
            let way = cache.way(leaf);
            if length <= way.mtu {
                return Some(way.egress);
            }
            if leaf != 0 {
                return None;
            }
        }
        self.steady_by_address(routes, cache, destination, subscriber, length)
    }

    /// Where no byte has the answer. Inlined it would take registers from all packets.
    #[inline(never)]
    fn steady_by_address(
        &self,
        routes: &RouteTable,
        cache: &mut RouteCache,
        destination: u32,
        subscriber: u32,
        length: u16,
    ) -> Option<Egress> {
        let known = cache.get(routes.number(), destination);
        if let Some(egress) = known.and_then(|way| way.of(length)) {
            return Some(egress);
        }
        let value = match known {
            Some(known) => known.egress.next_hop.0,
            None => routes.find(destination)?,
        };
        let hop = self.hop_of(value, subscriber)?;
        let is_group = LiveRoutes::is_group(value);
        // Next hops to IPv6 hosts belong to the snapshot, which may change.
        if known.is_none() && (value < HOST_HOPS || is_group) {
            let known = if is_group { Departure::undecided(value) } else { hop.into() };
            cache.put(routes.number(), destination, known);
        }
        Departure::from(hop).of(length)
    }

    /// `subscriber` chooses among several next hops outside.
    pub(crate) fn route(&self, towards: Facing, destination: u32, subscriber: u32) -> Option<NextHop> {
        match towards.side {
            Side::Inside => self.route_in(towards.realm, destination),
            Side::Outside => self.route_out(destination, subscriber),
        }
    }

    /// True if there is a route, also one that drops packets.
    pub(crate) fn has_route(&self, towards: Facing, destination: u32) -> bool {
        match towards.side {
            Side::Inside => self.inside_routes.get(towards.realm.index()).and_then(|routes| routes.lookup(destination)),
            Side::Outside => self.outside_routes.lookup(destination),
        }
        .is_some()
    }

    pub(crate) fn on_link(&self, interface: InterfaceId) -> Option<NextHop> {
        let is_meant =
            |hop: &NextHop| hop.interface == interface && hop.gateway == 0 && hop.id < self.transition.first_hop;
        let slots = if self.live.is_some() { HOPS_MAX as u32 } else { 0 };
        let live = (0..slots).filter_map(|slot| self.live_slot(slot));
        self.next_hops.iter().copied().chain(live).find(is_meant)
    }
}

pub(crate) struct RouteLists {
    pub(crate) outside: Vec<(Prefix, u32)>,
    pub(crate) inside: Vec<Vec<(Prefix, u32)>>,
}

impl RouteLists {
    fn add(&mut self, towards: Facing, prefix: Prefix, hop: NextHopId) {
        let list = match towards.side {
            Side::Outside => Some(&mut self.outside),
            Side::Inside => self.inside.get_mut(towards.realm.index()),
        };
        if let Some(list) = list {
            list.push((prefix, hop.0));
        }
    }
}

#[derive(Default)]
struct NextHops {
    list: Vec<NextHop>,
    known: HashMap<(InterfaceId, u32), NextHopId>,
}

impl NextHops {
    fn add(&mut self, interface: InterfaceId, gateway: u32, mtu: u16) -> NextHopId {
        let next = NextHopId(self.list.len() as u32);
        let id = *self.known.entry((interface, gateway)).or_insert(next);
        if id == next {
            self.list.push(NextHop { id, gateway, interface, mtu });
        }
        id
    }
}

pub(crate) fn compile_routes(settings: &Settings) -> (RouteLists, Vec<NextHop>) {
    let mut next_hops = NextHops::default();
    let mut lists = RouteLists { outside: Vec::new(), inside: vec![Vec::new(); settings.realms()] };
    // RFC 6598 §4: packets to inside addresses "MUST NOT be forwarded" outside. So each inside
    // route is a hole outside, unless an outside one is as long or longer.
    let inside = |id: InterfaceId| settings.interfaces.get(id.index()).filter(|found| found.side == Side::Inside);
    let connected = settings.interfaces.iter().filter(|interface| interface.side == Side::Inside);
    let connected = connected
        .flat_map(|interface| &interface.addresses)
        .filter_map(|own| Prefix::new(own.address, own.prefix_length));
    let routed = settings.routes.iter().filter(|route| inside(route.interface).is_some()).map(|route| route.prefix);
    lists.outside.extend(connected.chain(routed).map(|prefix| (prefix, HOLE)));
    for (position, interface) in settings.interfaces.iter().enumerate() {
        for own in &interface.addresses {
            let Some(prefix) = Prefix::new(own.address, own.prefix_length) else { continue };
            let hop = next_hops.add(InterfaceId(position as u16), 0, interface.mtu);
            lists.add(interface.facing(), prefix, hop);
        }
    }
    for route in &settings.routes {
        let Some(interface) = settings.interfaces.get(route.interface.index()) else { continue };
        let hop = next_hops.add(route.interface, route.next_hop.to_bits(), interface.mtu);
        lists.add(interface.facing(), route.prefix, hop);
    }
    (lists, next_hops.list)
}

pub(super) fn compile_transition(settings: &Settings, lists: &mut RouteLists, hops: &mut Vec<NextHop>) -> Transition {
    let transition = Transition::new(settings, NextHopId(hops.len() as u32));
    // A longer route would take packets from hosts.
    lists.inside.iter_mut().for_each(|list| list.retain(|(prefix, _)| !Prefix::HOSTS.contains(prefix.address())));
    for realm in (0..settings.realms() as u16).map(RealmId) {
        let Some(edge) = transition.realm(realm) else { continue };
        for (prefix, mtu) in to_hosts(edge) {
            let id = NextHopId(hops.len() as u32);
            hops.push(NextHop { id, gateway: 0, interface: edge.interface, mtu });
            lists.add(Facing::inside(realm), prefix, id);
        }
    }
    transition
}

/// With routes of the kernel, whose tables have two fixed values for each realm's hosts.
pub(super) fn compile_host_hops(settings: &Settings, hops: &mut Vec<Option<NextHop>>) -> Transition {
    let transition = Transition::new(settings, NextHopId(HOST_HOPS));
    for realm in (0..settings.realms() as u16).map(RealmId) {
        let ways = transition.realm(realm).map(|edge| to_hosts(edge).map(|(_, mtu)| (edge.interface, mtu)));
        for number in 0..2 {
            let id = NextHopId(HOST_HOPS + hops.len() as u32);
            let hop = ways.and_then(|ways| ways.get(number).copied());
            hops.push(hop.map(|(interface, mtu)| NextHop { id, gateway: 0, interface, mtu }));
        }
    }
    transition
}

fn to_hosts(edge: &RealmEdge) -> [(Prefix, u16); 2] {
    // The softwire packet is fragmented, not the IPv4 packet inside (RFC 6333 §5.3).
    let mtu4 = edge.mtu.saturating_sub((wire::ipv6::HEADER_LENGTH - wire::ipv4::HEADER_LENGTH_MIN) as u16);
    [(Prefix::HOSTS, mtu4), (Prefix::SOFTWIRE_HOSTS, u16::MAX)]
}
