//! Subscribers, mappings and sessions.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddrV4;
use core::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use crate::objects::pool::PerProtocol;
use crate::values::ParseError;
use crate::values::Protocol;
use crate::values::words;

words!(
    /// The side that sent the first packet.
    Direction, "outbound or inbound", {
        /// The inside.
        Outbound = "outbound",
        /// The outside.
        Inbound = "inbound",
    }
);

/// An IPv6 host of NAT64 or behind a softwire, or the prefix that is its subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Host {
    /// Its address; behind a softwire, that of the B4.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: Ipv6Addr,
    /// 128, or the length of the prefix.
    pub prefix_length: u8,
    /// Its IPv4 address behind a softwire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub inner: Option<Ipv4Addr>,
}

impl Host {
    /// Its endpoint with this port, as in tables.
    pub fn endpoint(&self, port: u16) -> String {
        match self.inner {
            Some(inner) => format!("{} {inner}:{port}", self.address),
            None => format!("[{}]:{port}", self.address),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.inner, self.prefix_length) {
            (Some(inner), _) => write!(f, "{} {inner}", self.address),
            (None, 128) => write!(f, "{}", self.address),
            (None, length) => write!(f, "{}/{length}", self.address),
        }
    }
}

/// External ports for one subscriber alone, for all transports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubscriberPorts {
    /// `block`: leased. `slice`: from the formula of a deterministic pool.
    pub kind: String,
    /// External address.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub external_address: Ipv4Addr,
    /// Lowest port.
    pub first_port: u16,
    /// Highest port.
    pub last_port: u16,
    /// Its ports in use or held down now; null in an answer from a configuration alone.
    #[serde(default)]
    pub ports_used: Option<PerProtocol>,
}

/// An internal address with at least one mapping or port block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Subscriber {
    /// Internal address; null for a prefix of IPv6 hosts that has no number, because all its
    /// packets were refused.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<Ipv4Addr>,
    /// The IPv6 host that the internal address is the number of; absent for an IPv4 host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Pool of the address that it is paired with and uses, which a rule may have chosen; else the
    /// pool that serves it.
    pub pool: String,
    /// External address that it is paired with; null with arbitrary pooling.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub external_address: Option<Ipv4Addr>,
    /// The latest other pool from which a rule gave it a mapping or flow, which may have ended;
    /// null: none.
    #[serde(default)]
    pub other_pool: Option<String>,
    /// The external address it got there.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub other_external_address: Option<Ipv4Addr>,
    /// Owner.
    pub worker: u8,
    /// Mappings.
    pub mappings: PerProtocol,
    /// Shared ports that count for it because it opened them. `ports` limits their sum with
    /// `mappings`.
    #[serde(default)]
    pub shared_ports: PerProtocol,
    /// Its port blocks and slice; empty with single ports.
    #[serde(default)]
    pub subscriber_ports: Vec<SubscriberPorts>,
    /// Sessions; null if not counted by subscriber.
    pub sessions: Option<u64>,
    /// The class it is in; null for none.
    pub class: Option<String>,
    /// Bytes of state it counts for.
    pub memory_bytes: u64,
    /// Mappings made since it is a subscriber.
    #[serde(default)]
    pub mappings_created: u64,
    /// How often it was paired with an external address since then.
    #[serde(default)]
    pub addresses_paired: u64,
    /// Refused packets that wanted a mapping or session, since its first mapping; without a
    /// mapping, those within an hour.
    pub refused: Refused,
    /// Ports now reserved for it by `reserved_ports` of its class, used ones included.
    #[serde(default)]
    pub guaranteed: PerProtocol,
    /// Guaranteed ports that other subscribers still have.
    #[serde(default)]
    pub guarantee_missing: PerProtocol,
    /// The most mappings it may have; null if a transport has no limit.
    #[serde(default)]
    pub ports_max: Option<PerProtocol>,
    /// It is an offender: new mappings come from the penalty pool of its class.
    #[serde(default)]
    pub offender: bool,
    /// It has no mapping and is listed because its packets were refused within the last hour.
    #[serde(default)]
    pub refused_only: bool,
}

/// Refusals by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refused {
    /// Its limit of ports was reached.
    pub port_quota: u64,
    /// Its limit of sessions was reached.
    pub session_quota: u64,
    /// Its limit of memory was reached.
    pub memory_quota: u64,
    /// Its limit of new mappings or sessions a second was exceeded.
    pub rate_limit: u64,
    /// All port blocks it may have were full.
    #[serde(default)]
    pub block_limit: u64,
    /// No external port was free.
    pub ports_exhausted: u64,
    /// All external addresses that it may have drained.
    #[serde(default)]
    pub address_draining: u64,
    /// One of its mappings had its maximum number of sessions.
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
    /// The event log could not be written fast enough.
    #[serde(default)]
    pub log_full: u64,
}

impl Refused {
    /// Sum over the causes.
    pub fn total(&self) -> u64 {
        self.causes().map(|(_, count)| count).sum()
    }

    /// The causes that occurred, by the names of the fields.
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

/// An internal endpoint and its external endpoint (RFC 4787 §4). With ICMP the ports are query
/// identifiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Mapping {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Internal endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub internal: SocketAddrV4,
    /// The IPv6 host that the internal address is the number of; absent for an IPv4 host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// External endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub external: SocketAddrV4,
    /// Pool of the external address.
    pub pool: String,
    /// Owner.
    pub worker: u8,
    /// Time since creation; null if not recorded.
    pub age_us: Option<u64>,
    /// Time since the packet that refreshed it last.
    pub idle_us: u64,
    /// Time until it ends when nothing refreshes it.
    pub expires_in_us: u64,
    /// Its sessions.
    pub sessions: u64,
    /// What asked for it: `pcp`, `nat_pmp`, or a gateway such as `ftp`; absent if only packets did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// An external port that a subscriber asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Internal endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub internal: SocketAddrV4,
    /// The IPv6 host that the internal address is the number of; absent for an IPv4 host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// External endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub external: SocketAddrV4,
    /// Pool of the external address.
    pub pool: String,
    /// Owner.
    pub worker: u8,
    /// `pcp` or `nat_pmp`.
    pub origin: String,
    /// `map`: others may send; `peer`: for one remote endpoint; `once`: for one session.
    pub kind: String,
    /// Remote addresses, prefixes or endpoints that may send; empty for all.
    pub remotes: Vec<String>,
    /// Where the request came from; of an IPv6 host, its number with the port.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub client: SocketAddrV4,
    /// Time since it was made.
    pub age_us: u64,
    /// Time until it ends when it is not renewed.
    pub expires_in_us: u64,
    /// It was deleted or has expired, and its port is only held down for its client.
    pub held_down: bool,
}

/// A mapping and one remote endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// Transport.
    pub protocol: Protocol,
    /// Inside realm, by number.
    pub realm: u16,
    /// Inside realm, by the name of its VRF.
    pub vrf: String,
    /// Internal endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub internal: SocketAddrV4,
    /// The IPv6 host that the internal address is the number of; absent for an IPv4 host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// External endpoint.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub external: SocketAddrV4,
    /// Remote endpoint, as the inside knows it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub remote: SocketAddrV4,
    /// Remote endpoint outside, if a rule translates the destination too; null if it equals
    /// `remote`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub target: Option<SocketAddrV4>,
    /// True if other sessions use the same external endpoint towards other remotes
    /// (endpoint-dependent translation).
    pub shared: bool,
    /// Side of the first packet; null if not recorded.
    pub direction: Option<Direction>,
    /// State of the TCP connection; `active` for UDP and ICMP.
    pub state: String,
    /// Pool of the external address.
    pub pool: String,
    /// Owner.
    pub worker: u8,
    /// Time since creation; null if not recorded.
    pub age_us: Option<u64>,
    /// Time since the packet that refreshed it last.
    pub idle_us: u64,
    /// Time until it ends when nothing refreshes it.
    pub expires_in_us: u64,
}
