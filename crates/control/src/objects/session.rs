//! Subscribers, mappings and sessions.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use crate::objects::pool::PerProtocol;
use crate::values::ParseError;
use crate::values::Protocol;
use crate::values::words;

words!(
    /// Who sent the first packet.
    Direction, "outbound or inbound", {
        /// The inside.
        Outbound = "outbound",
        /// The outside.
        Inbound = "inbound",
    }
);

/// External ports that a subscriber has for itself, for all transports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnPorts {
    /// `block`: leased. `slice`: by the formula of a deterministic pool.
    pub kind: String,
    /// External address.
    pub external_address: Ipv4Addr,
    /// Lowest port.
    pub first_port: u16,
    /// Highest port.
    pub last_port: u16,
}

/// An internal address with at least one mapping, or a port block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscriber {
    /// Internal address.
    pub address: Ipv4Addr,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Pool of the address it is paired with and has something on, which a rule may have chosen; else the pool that serves it.
    pub pool: String,
    /// External address it is paired with; null with arbitrary pooling.
    pub external_address: Option<Ipv4Addr>,
    /// Another pool from which a rule gave it a mapping or flow, the latest one; it may have nothing there by now. Null: none.
    #[serde(default)]
    pub other_pool: Option<String>,
    /// The external address it got there.
    #[serde(default)]
    pub other_external_address: Option<Ipv4Addr>,
    /// Owner.
    pub worker: u8,
    /// Mappings.
    pub mappings: PerProtocol,
    /// Ports that flows share and that count for it, as it was the first on them: with `mappings` what its `ports` bound.
    #[serde(default)]
    pub shared_ports: PerProtocol,
    /// Port blocks and slice it has; empty where each mapping takes any port.
    #[serde(default)]
    pub own_ports: Vec<OwnPorts>,
    /// Sessions; null when they are not counted by subscriber.
    pub sessions: Option<u64>,
    /// The class it is in; null for none.
    pub class: Option<String>,
    /// Bytes of state it counts for.
    pub memory_bytes: u64,
    /// Packets that wanted a mapping or session and were refused, since it has had a mapping; and those within an hour while it
    /// had none.
    pub refused: Refused,
    /// Ports set aside for it now by its class's `reserved_ports`, those of them in use included.
    #[serde(default)]
    pub guaranteed: PerProtocol,
    /// What its class guarantees more, and is still others'.
    #[serde(default)]
    pub guarantee_missing: PerProtocol,
    /// It is an offender: its new mappings come from its class's penalty pool.
    #[serde(default)]
    pub offender: bool,
    /// It has no mapping, and is listed because packets of it were refused within the last hour.
    #[serde(default)]
    pub refused_only: bool,
}

/// Refusals by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// It had as many ports as it may have.
    pub port_quota: u64,
    /// It had as many sessions as it may have.
    pub session_quota: u64,
    /// Its state took as much memory as it may.
    pub memory_quota: u64,
    /// It made mappings or sessions faster than it may.
    pub rate_limit: u64,
    /// All port blocks it may have were full.
    #[serde(default)]
    pub block_limit: u64,
    /// No external port was free.
    pub ports_exhausted: u64,
    /// All external addresses that it may have drained.
    #[serde(default)]
    pub address_draining: u64,
    /// A mapping of it had as many sessions as one may have.
    #[serde(default)]
    pub session_limit: u64,
    /// The table of mappings was full.
    #[serde(default)]
    pub mapping_table_full: u64,
    /// The table of further sessions was full.
    #[serde(default)]
    pub session_table_full: u64,
    /// The table of endpoint-dependent flows was full.
    #[serde(default)]
    pub flow_table_full: u64,
    /// The table of subscribers was full.
    #[serde(default)]
    pub subscriber_table_full: u64,
    /// Records of the event log could not be written fast enough.
    #[serde(default)]
    pub log_full: u64,
}

impl Refused {
    /// Sum over the causes.
    pub fn total(&self) -> u64 {
        self.causes().map(|(_, count)| count).sum()
    }

    /// The causes there were, by the names of the fields.
    pub fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let all = [
            ("port_quota", self.port_quota),
            ("session_quota", self.session_quota),
            ("memory_quota", self.memory_quota),
            ("rate_limit", self.rate_limit),
            ("block_limit", self.block_limit),
            ("ports_exhausted", self.ports_exhausted),
            ("address_draining", self.address_draining),
            ("session_limit", self.session_limit),
            ("mapping_table_full", self.mapping_table_full),
            ("session_table_full", self.session_table_full),
            ("flow_table_full", self.flow_table_full),
            ("subscriber_table_full", self.subscriber_table_full),
            ("log_full", self.log_full),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

/// An internal endpoint and the external endpoint it has (RFC 4787 §4). With ICMP the ports are query identifiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Internal endpoint.
    pub internal: SocketAddrV4,
    /// External endpoint.
    pub external: SocketAddrV4,
    /// Pool of the external address.
    pub pool: String,
    /// Owner.
    pub worker: u8,
    /// Time since it was made; null when that is not recorded.
    pub age_us: Option<u64>,
    /// Time since the packet that refreshed it last.
    pub idle_us: u64,
    /// Time until it ends when nothing refreshes it.
    pub expires_in_us: u64,
    /// Its sessions.
    pub sessions: u64,
}

/// A mapping and one remote endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Internal endpoint.
    pub internal: SocketAddrV4,
    /// External endpoint.
    pub external: SocketAddrV4,
    /// Remote endpoint, as the inside knows it.
    pub remote: SocketAddrV4,
    /// The remote endpoint outside, where a rule translates the destination too; null where it is `remote`.
    pub target: Option<SocketAddrV4>,
    /// Whether other sessions have the same external endpoint towards other remote ones (endpoint-dependent translation).
    pub shared: bool,
    /// Who sent the first packet; null when that is not recorded.
    pub direction: Option<Direction>,
    /// State of the TCP connection; `active` for UDP and ICMP.
    pub state: String,
    /// Pool of the external address.
    pub pool: String,
    /// Owner.
    pub worker: u8,
    /// Time since it was made; null when that is not recorded.
    pub age_us: Option<u64>,
    /// Time since the packet that refreshed it last.
    pub idle_us: u64,
    /// Time until it ends when nothing refreshes it.
    pub expires_in_us: u64,
}
