//! Pools and their addresses.

use core::net::Ipv4Addr;

use serde::Deserialize;
use serde::Serialize;

use crate::values::AddressState;
use crate::values::Filtering;
use crate::values::Pooling;
use crate::values::Prefix;
use crate::values::Protocol;

/// One number for each transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PerProtocol {
    /// UDP.
    pub udp: u64,
    /// TCP.
    pub tcp: u64,
    /// ICMP queries.
    pub icmp: u64,
}

impl PerProtocol {
    /// The number of one transport.
    pub fn of(&self, protocol: Protocol) -> u64 {
        match protocol {
            Protocol::Udp => self.udp,
            Protocol::Tcp => self.tcp,
            Protocol::Icmp => self.icmp,
        }
    }

    /// The sum, transport by transport.
    pub fn plus(&self, other: &PerProtocol) -> PerProtocol {
        PerProtocol {
            udp: self.udp.saturating_add(other.udp),
            tcp: self.tcp.saturating_add(other.tcp),
            icmp: self.icmp.saturating_add(other.icmp),
        }
    }

    /// That of the transport which has most.
    pub fn largest(&self) -> u64 {
        self.udp.max(self.tcp).max(self.icmp)
    }

    /// Sum over the transports.
    pub fn total(&self) -> u64 {
        self.udp.saturating_add(self.tcp).saturating_add(self.icmp)
    }
}

/// Filtering of each transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilteringByProtocol {
    /// UDP.
    pub udp: Filtering,
    /// TCP.
    pub tcp: Filtering,
    /// ICMP queries.
    pub icmp: Filtering,
}

/// A pool of external addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pool {
    /// Name in the configuration.
    pub name: String,
    /// How many external addresses it has.
    pub addresses: u64,
    /// Inside prefixes it serves.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub subscriber_prefixes: Vec<Prefix>,
    /// It serves the IPv6 hosts of a `[[nat64]]` or `[[softwire]]`.
    #[serde(default)]
    pub serves_ipv6_hosts: bool,
    /// How addresses are shared.
    pub pooling: Pooling,
    /// Remote endpoints that may send to a mapping.
    pub filtering: FilteringByProtocol,
    /// Allocation mode: `ports`, `blocks`, `deterministic`, or `one-to-one` for whole addresses.
    #[serde(default)]
    pub allocation: String,
    /// Ports of a block; null without blocks.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// How long a block without ports in use is kept; null without blocks.
    #[serde(default)]
    pub block_idle_us: Option<u64>,
    /// External ports leased in blocks over all addresses, used or not.
    #[serde(default)]
    pub ports_leased: u64,
    /// External ports in blocks that cannot be leased, because single ports of them are in use: by
    /// flows that share ports, or from earlier settings.
    #[serde(default)]
    pub ports_unleasable: u64,
    /// External ports of forwards, used or not. No other mapping gets them.
    #[serde(default)]
    pub ports_forwarded: PerProtocol,
    /// Hold-down time of a port before it is given out again.
    #[serde(default)]
    pub reuse_delay_us: u64,
    /// Lowest external port given out.
    pub port_min: u16,
    /// Highest external port given out.
    pub port_max: u16,
    /// Makes no new mappings.
    pub draining: bool,
    /// Subscribers with at least one mapping.
    pub subscribers: u64,
    /// External ports in use or held down over all addresses.
    pub ports_used: PerProtocol,
    /// Held-down ports among these: the mapping has ended, and the port is not given out yet.
    #[serde(default)]
    pub ports_held: PerProtocol,
    /// All external ports over all addresses, including those in use, held down or leased that are
    /// no longer given out. ICMP query identifiers: 65,535 on each address with single ports,
    /// whatever the range; with blocks or slices, the range.
    pub ports_total: PerProtocol,
    /// Part of the fullest transport's ports that is in use, held down, or in blocks that are
    /// leased or cannot be leased.
    pub utilisation_ratio: f64,
    /// Subscribers paired with an address of it since the start; 0 with arbitrary pooling.
    #[serde(default)]
    pub addresses_paired: u64,
    /// Mappings made since the start.
    #[serde(default)]
    pub mappings_created: u64,
    /// Packets refused because all its addresses drain.
    #[serde(default)]
    pub refused_without_address: u64,
    /// Packets and requests refused because no port was free or the subscriber was at its limit.
    #[serde(default)]
    pub refused_without_port: u64,
}

/// One external address of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolAddress {
    /// Its pool.
    pub pool: String,
    /// The address.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: Ipv4Addr,
    /// Whether it takes new mappings.
    #[serde(default = "AddressState::unsaid")]
    pub state: AddressState,
    /// Time until its mappings end; null while it is active, or if they end by themselves.
    #[serde(default)]
    pub ends_in_us: Option<u64>,
    /// Whether its prefix is announced to the kernel's routing now; null if no pool ever is.
    #[serde(default)]
    pub announced: Option<bool>,
    /// Subscribers paired with it; for arbitrary pooling null.
    pub subscribers: Option<u64>,
    /// External ports leased in blocks, used or not.
    #[serde(default)]
    pub ports_leased: u64,
    /// External ports in blocks that cannot be leased, as [`Pool::ports_unleasable`].
    #[serde(default)]
    pub ports_unleasable: u64,
    /// External ports in use or at rest.
    pub ports_used: PerProtocol,
    /// Held-down ports among these: the mapping has ended, and the port is not given out yet.
    #[serde(default)]
    pub ports_held: PerProtocol,
    /// External ports there are, counted as with [`Pool::ports_total`].
    pub ports_total: PerProtocol,
    /// Part of the fullest transport's ports that is in use, held down, or in blocks that are
    /// leased or cannot be leased.
    pub utilisation_ratio: f64,
}
