//! Requests of the client.

use core::net::Ipv6Addr;
use core::net::SocketAddr;

use serde::Deserialize;
use serde::Serialize;

use crate::fault::Fault;
use crate::filter::Filter;
use crate::values::AnyPrefix;
use crate::values::FindAddress;
use crate::values::Protocol;
use crate::values::endpoint;
use crate::values::words;

use core::fmt;
use core::str::FromStr;

use crate::values::ParseError;

/// Objects in a page if the request names no limit.
pub const PAGE_OBJECTS_DEFAULT: u32 = 100;
/// Maximum of objects in one page; larger limits are reduced to it.
pub const PAGE_OBJECTS_MAX: u32 = 10_000;

/// One line from the client. Unknown fields are refused, so that a misspelt filter does not count
/// as no filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// One [`crate::Status`].
    Status,
    /// [`crate::Interface`]s in configuration order.
    Interfaces,
    /// [`crate::Pool`]s in configuration order.
    Pools,
    /// [`crate::PoolAddress`]es, by pool and address.
    PoolAddresses(List),
    /// [`crate::Subscriber`]s.
    Subscribers(List),
    /// [`crate::Mapping`]s.
    Mappings(List),
    /// [`crate::Grant`]s.
    Grants(List),
    /// [`crate::Alg`]s.
    Algs(List),
    /// [`crate::Expectation`]s.
    Expectations(List),
    /// [`crate::Session`]s.
    Sessions(List),
    /// [`crate::Rule`]s in configuration order.
    Rules(List),
    /// [`crate::Route`]s by table and prefix.
    Routes(List),
    /// [`crate::Neighbour`]s.
    Neighbours(List),
    /// [`crate::Counter`]s.
    Counters(Counters),
    /// All [`crate::DropReason`]s, in the order of the verdicts.
    Drops,
    /// [`crate::FindAnswer`]s.
    Find(Find),
    /// One [`crate::WhyAnswer`].
    Why(Why),
    /// [`crate::TraceRecord`]s as packets pass, until the count or [`Request::TraceStop`].
    Trace(Trace),
    /// What a reload would do: [`crate::Change`]s, a [`crate::PoolPlan`] for each pool, one
    /// [`crate::Plan`].
    Plan(NewConfig),
    /// Changes the configuration while traffic flows: [`crate::Change`]s, one [`crate::Reloaded`].
    Reload(NewConfig),
    /// Withdraws the pools from the routing, or announces them again: one [`crate::Drained`].
    Drain(Drain),
    /// [`crate::AuditRecord`]s, the latest first.
    Audit(List),
    /// Adds to the audit log what the client does without the daemon, such as a lookup in the log
    /// of events. Answered by the [`crate::AuditRecord`].
    Record(Record),
    /// Ends the trace of this connection. The trace gets its end line; this request has no answer
    /// of its own.
    TraceStop,
}

impl Request {
    /// The name of the list that it asks for, if it does, and the page.
    pub fn list(&self) -> Option<(&'static str, &List)> {
        match self {
            Request::PoolAddresses(list) => Some(("pool_addresses", list)),
            Request::Subscribers(list) => Some(("subscribers", list)),
            Request::Mappings(list) => Some(("mappings", list)),
            Request::Grants(list) => Some(("grants", list)),
            Request::Algs(list) => Some(("algs", list)),
            Request::Expectations(list) => Some(("expectations", list)),
            Request::Sessions(list) => Some(("sessions", list)),
            Request::Rules(list) => Some(("rules", list)),
            Request::Routes(list) => Some(("routes", list)),
            Request::Neighbours(list) => Some(("neighbours", list)),
            Request::Audit(list) => Some(("audit", list)),
            _ => None,
        }
    }

    /// Refuses a filter that the list does not take.
    ///
    /// # Errors
    /// As [`Filter::check`].
    pub fn check_filter(&self) -> Result<(), Fault> {
        self.list().map_or(Ok(()), |(name, list)| list.filter.check(name))
    }
}

/// Leaves the routing, or returns to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drain {
    /// Announce the pools again.
    pub undo: bool,
}

/// The result in the record of what begins and will have another record at its end.
pub const STARTED: &str = "started";

/// What a client does, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// `find`, `log export`, `log head`, `log verify` or `snmp set`.
    pub action: String,
    /// What it is about.
    pub subject: String,
    /// What came of it, such as `none`; [`STARTED`] if it lasts; None if that is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The `id` of its record with [`STARTED`], which this one ends. The same user sends both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The configuration to change to: a file, a text, or the one before the last reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewConfig {
    /// Absolute path of the file, which the daemon reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The configuration itself. Relative paths in it start at the folder of the running
    /// configuration's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Also write `text` to the file of the running configuration once it is in use.
    #[serde(skip_serializing_if = "is_false")]
    pub save: bool,
    /// Return to the configuration before the last reload.
    pub rollback: bool,
    /// For a plan: the maximum of subscribers, external addresses, mappings, flows and port blocks
    /// to name, of each.
    #[serde(skip_serializing_if = "is_zero")]
    pub details: u32,
    /// For a plan: also name as many unchanged mappings, flows and port blocks.
    #[serde(skip_serializing_if = "is_false")]
    pub kept: bool,
    /// Refuse differences that decide which records of subscribers are kept, or where they go: the
    /// log, its collectors, and filters with `log`. The API sets it for clients that may not look
    /// subscribers up.
    #[serde(skip_serializing_if = "is_false")]
    pub keep_records: bool,
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
    /// Most objects in this page; [`PAGE_OBJECTS_DEFAULT`] when absent, at most
    /// [`PAGE_OBJECTS_MAX`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// End of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl List {
    /// The limit that applies to this page.
    pub fn limit_effective(&self) -> u32 {
        self.limit.unwrap_or(PAGE_OBJECTS_DEFAULT).clamp(1, PAGE_OBJECTS_MAX)
    }

    /// The place where this page starts.
    ///
    /// # Errors
    /// The cursor is not from a list.
    pub fn start(&self) -> Result<Cursor, Fault> {
        let Some(text) = &self.cursor else { return Ok(Cursor::default()) };
        let parts = text.split_once('.').and_then(|(part, place)| Some((part.parse().ok()?, place.parse().ok()?)));
        let wrong =
            || Fault::new("cursor", "is not from this list", "omit it to start from the beginning").seen(text.as_str());
        let (part, place) = parts.ok_or_else(wrong)?;
        Ok(Cursor { part, place })
    }
}

/// A place in a list of several parts, such as the records of each worker. Its text is the cursor
/// of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The part.
    pub part: usize,
    /// The place in it: a position, or an address of either family.
    pub place: u128,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.part, self.place)
    }
}

/// Which counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Counters {
    /// One object per counter and worker instead of the sums.
    pub per_worker: bool,
}

/// The holder of an endpoint. Without a port: the users of the address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// Internal or external address, or IPv6 hosts.
    pub address: FindAddress,
    /// Port or ICMP query identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Only this transport; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Only internal addresses of this VRF, or holders of an external address in it; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Maximum of answers; as in [`List`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// End of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Find {
    /// What is looked up, for the audit log: `203.0.113.7:41233 udp in VRF blue`.
    pub fn subject(&self) -> String {
        let protocol = self.protocol.map(|protocol| format!(" {protocol}")).unwrap_or_default();
        let vrf = self.vrf.as_ref().map(|vrf| format!(" in VRF {vrf}")).unwrap_or_default();
        format!("{}{protocol}{vrf}", self.address.with_port(self.port))
    }
}

words!(
    /// Flags of the TCP segment in a `why` request.
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

/// Asks what would happen to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Why {
    /// Transport; ICMP is an echo request (outbound) or an echo reply (inbound).
    pub protocol: Protocol,
    /// Source; for ICMP the port is the query identifier. An IPv6 host of NAT64 has IPv6.
    #[serde(deserialize_with = "endpoint")]
    pub source: SocketAddr,
    /// Destination; for ICMP the port is the query identifier again. With IPv6 as source, an IPv4
    /// destination is put behind the first translation prefix of the VRF.
    #[serde(deserialize_with = "endpoint")]
    pub destination: SocketAddr,
    /// The packet comes in the softwire of this B4 (DS-Lite); source and destination are inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b4: Option<Ipv6Addr>,
    /// The packet comes from outside.
    #[serde(default)]
    pub inbound: bool,
    /// For TCP; absent: SYN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_segment: Option<TcpSegment>,
    /// Length of the IP packet; absent: the shortest possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_bytes: Option<u16>,
    /// The packet carries Don't Fragment.
    #[serde(default)]
    pub dont_fragment: bool,
    /// Interface it arrives on; absent: the first one of its side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// VRF that a packet from inside comes from; absent: that of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
}

/// Which packets to trace. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// Transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Prefix of source or destination, before or after translation; IPv6 also around a softwire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<AnyPrefix>,
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
    /// Maximum of records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Bytes of each frame to include; 0: none.
    pub snap_bytes: u32,
}
