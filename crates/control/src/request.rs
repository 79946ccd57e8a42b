//! What a client can ask.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use serde::Deserialize;
use serde::Serialize;

use crate::filter::Filter;
use crate::values::Prefix;
use crate::values::Protocol;
use crate::values::words;

use core::fmt;
use core::str::FromStr;

use crate::values::ParseError;

/// Objects in a page when the request names no limit.
pub const PAGE_OBJECTS_DEFAULT: u32 = 100;
/// Most objects in one page; a larger limit is cut to this.
pub const PAGE_OBJECTS_MAX: u32 = 10_000;

/// One line from the client. Unknown fields are refused, so that a misspelt filter is not taken for no filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// One [`crate::Status`].
    Status,
    /// [`crate::Interface`]s in configuration order.
    Interfaces,
    /// [`crate::Pool`]s in configuration order.
    Pools,
    /// [`crate::PoolAddress`]es, by pool and address. Looks at `filter.pool` and `filter.external`.
    PoolAddresses(List),
    /// [`crate::Subscriber`]s.
    Subscribers(List),
    /// [`crate::Mapping`]s.
    Mappings(List),
    /// [`crate::Session`]s.
    Sessions(List),
    /// [`crate::Rule`]s in configuration order.
    Rules(List),
    /// [`crate::Counter`]s.
    Counters(Counters),
    /// [`crate::DropReason`]s, all of them, in the order of the verdicts.
    Drops,
    /// [`crate::FindAnswer`]s.
    Find(Find),
    /// One [`crate::WhyAnswer`].
    Why(Why),
    /// [`crate::TraceRecord`]s as packets pass, until the count is reached or [`Request::TraceStop`] comes.
    Trace(Trace),
    /// What a reload would do: [`crate::Change`]s, a [`crate::PoolPlan`] for each pool, one [`crate::Plan`].
    Plan(NewConfig),
    /// Changes the configuration while traffic flows: [`crate::Change`]s, one [`crate::Reloaded`].
    Reload(NewConfig),
    /// Ends the trace of this connection; the trace is answered by its end line, this request by nothing of its own.
    TraceStop,
}

/// A configuration to go over to: a file, or what was in force before the last reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewConfig {
    /// Absolute path of the file; the daemon reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Back to what was in force before the last reload.
    pub rollback: bool,
    /// Of a plan: subscribers, external addresses, mappings, flows and port blocks it tells by name at most, of each.
    #[serde(skip_serializing_if = "is_zero")]
    pub details: u32,
    /// Of a plan: also so many mappings, flows and port blocks that nothing happens to.
    #[serde(skip_serializing_if = "is_false")]
    pub kept: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct List {
    /// Which objects.
    pub filter: Filter,
    /// Most objects in this page; [`PAGE_OBJECTS_DEFAULT`] when absent, at most [`PAGE_OBJECTS_MAX`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where the page before this one ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl List {
    /// Objects this page may have.
    pub fn limit_effective(&self) -> u32 {
        self.limit.unwrap_or(PAGE_OBJECTS_DEFAULT).clamp(1, PAGE_OBJECTS_MAX)
    }
}

/// Which counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Counters {
    /// One object per counter and worker instead of the sums.
    pub per_worker: bool,
}

/// Who holds an endpoint. Without a port: who uses the address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// Internal or external address.
    pub address: Ipv4Addr,
    /// Port or ICMP query identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Only this transport; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Only internal addresses of this VRF, and of an external one only holders in it; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Most answers; as in [`List`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where the page before this one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

words!(
    /// Flags of the TCP segment `why` asks about.
    TcpSegment, "syn, syn_ack, ack, fin or rst", {
        /// SYN.
        Syn = "syn",
        /// SYN and ACK.
        SynAck = "syn_ack",
        /// ACK.
        Ack = "ack",
        /// FIN and ACK.
        Fin = "fin",
        /// RST.
        Rst = "rst",
    }
);

/// What would happen to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Why {
    /// Transport; ICMP means an echo request (outbound) or an echo reply (inbound).
    pub protocol: Protocol,
    /// Source; for ICMP the port is the query identifier.
    pub source: SocketAddrV4,
    /// Destination; for ICMP the port is the query identifier again.
    pub destination: SocketAddrV4,
    /// The packet comes from outside.
    #[serde(default)]
    pub inbound: bool,
    /// For TCP; SYN when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_segment: Option<TcpSegment>,
    /// Length of the IP packet; the shortest possible when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_bytes: Option<u16>,
    /// The packet carries Don't Fragment.
    #[serde(default)]
    pub dont_fragment: bool,
    /// Interface it arrives on; the first one of its side when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// Which packets to trace; all conditions that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// Transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Source or destination lies in this prefix, before or after translation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Prefix>,
    /// Source or destination port, before or after translation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Interface the packet arrived on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Only packets with this verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Only packets that were dropped.
    pub dropped_only: bool,
    /// End after so many records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Bytes of each frame to send along; none when 0.
    pub snap_bytes: u32,
}
