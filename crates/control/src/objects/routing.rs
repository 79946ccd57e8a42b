//! Routes and neighbours.

use serde::Deserialize;
use serde::Serialize;

use crate::values::RouteSource;
use crate::values::Side;

/// A route of the engine. There may be several for a prefix, of which one is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Route {
    /// Side of the table: a packet from inside is routed outside, and the reverse.
    pub side: Side,
    /// VRF of an inside table.
    pub vrf: Option<String>,
    /// Destinations, `198.51.100.0/24`.
    pub prefix: String,
    /// Where the route is from.
    pub source: RouteSource,
    /// Next hops; a subscriber keeps to one of them. Empty: packets are dropped.
    pub next_hops: Vec<RouteNextHop>,
    /// The routing protocol that gave the route to the kernel: `bgp`, `ospf`, or a number.
    pub protocol: Option<String>,
    /// Metric of a route of the kernel. The lowest counts.
    pub metric: Option<u32>,
    /// The route is the one that counts: for its prefix or, with `address` in the filter, for that
    /// address.
    pub used: bool,
    /// Why it is used or not.
    pub reason: String,
}

/// A next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RouteNextHop {
    /// Interface that leads to it.
    pub interface: String,
    /// The router; absent: destinations are on the link.
    pub via: Option<String>,
    /// Share of the subscribers, relative to the other next hops.
    pub weight: u16,
}

/// A neighbour in the cache of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Neighbour {
    /// Interface it is on.
    pub interface: String,
    /// Its IPv4 or IPv6 address.
    pub address: String,
    /// Its Ethernet address, once known.
    pub mac: Option<String>,
    /// `known`, `probing`, `asking` or `absent`.
    pub state: String,
    /// Packets that wait for its answer.
    pub waiting: u32,
    /// `natrix` or `kernel`: the part that asks for it.
    pub owner: String,
    /// Worker whose cache it is in.
    pub worker: u8,
}
