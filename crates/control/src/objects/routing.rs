//! Routes and neighbours.

use core::fmt;
use core::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use crate::values::ParseError;
use crate::values::RouteSource;
use crate::values::Side;
use crate::values::words;

words!(
    /// Why the pools are not announced.
    Withheld, "drained, no_link, device_down, no_next_hop, workers or log", {
        /// `natrix drain`.
        Drained = "drained",
        /// No interface of one side has link.
        NoLink = "no_link",
        /// A device of the kernel was set down, deleted, or lacks an address.
        DeviceDown = "device_down",
        /// No route in use leads to a router outside over an interface with link.
        NoNextHop = "no_next_hop",
        /// A worker does not answer.
        Workers = "workers",
        /// The event log fails, and `back_pressure = "refuse"` refuses new mappings.
        Log = "log",
    }
);

impl Withheld {
    /// The same in a few words, for people.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Withheld::Drained => "the instance is drained",
            Withheld::NoLink => "no interface of one side has link",
            Withheld::DeviceDown => "a device of the kernel is down, gone, or lacks an address",
            Withheld::NoNextHop => "no route leads to a router outside",
            Withheld::Workers => "a worker does not answer",
            Withheld::Log => "the event log fails",
        }
    }
}

/// Whether the pools are announced to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Announcement {
    /// Pool prefixes with a route in the kernel.
    pub prefixes: u64,
    /// Why there is none; null if the pools are announced.
    pub withheld: Option<Withheld>,
    /// Time since `natrix drain`; null if the instance is not drained.
    pub drained_us: Option<u64>,
}

/// What a drain or its end has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Drained {
    /// The instance is drained.
    pub drained: bool,
    /// The request changed that. A second drain changes nothing.
    pub changed: bool,
    /// Whether the pools are announced now.
    pub announcement: Announcement,
    /// Subscribers with at least one mapping. None of the counts is known while a worker is silent.
    pub subscribers: Option<u64>,
    /// Mappings.
    pub mappings: Option<u64>,
    /// Sessions.
    pub sessions: Option<u64>,
    /// Packets sent on in the last second.
    pub packets_per_second: Option<u64>,
    /// Why the counts are not known: the worker and its problem.
    pub unknown: Option<String>,
}

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
    /// Next hops; a subscriber keeps to one of them.
    pub next_hops: Vec<RouteNextHop>,
    /// The route has no next hops and drops packets: `blackhole`, `unreachable` or `prohibit` in
    /// the kernel, or a prefix that leads inside.
    pub drops: bool,
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
    /// Its interface has link. Only such next hops are used.
    pub link_up: bool,
    /// The device of its interface in the kernel, if any, is set up and can use all addresses. Only
    /// such next hops are used.
    pub device_up: bool,
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
