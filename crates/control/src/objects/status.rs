//! The instance as a whole, and its workers.

use core::fmt;
use core::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use crate::objects::routing::Announcement;
use crate::values::ParseError;
use crate::values::Protocol;
use crate::values::words;

words!(
    /// What the instance is doing.
    RunState, "starting, running or draining", {
        /// Ports are coming up.
        Starting = "starting",
        /// Packets are forwarded.
        Running = "running",
        /// It is stopping and sends the packets it still has.
        Draining = "draining",
    }
);

/// The instance as a whole. Totals count from the start of the process; rates are those of the last
/// second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// Release of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Path of its configuration.
    pub config: String,
    /// What it is doing.
    pub state: RunState,
    /// Time since the start.
    pub uptime_us: u64,
    /// Subscribers with at least one mapping.
    pub subscribers: u64,
    /// Subscribers there is room for.
    pub subscribers_max: u64,
    /// Mappings.
    pub mappings: u64,
    /// Mappings there is room for.
    pub mappings_max: u64,
    /// Sessions.
    pub sessions: u64,
    /// Sessions there is room for.
    pub sessions_max: u64,
    /// External ports held down before they are given out again.
    pub held_ports: u64,
    /// External ports that may rest.
    pub held_ports_max: u64,
    /// Packets taken from ports.
    pub packets_received: u64,
    /// Packets sent on.
    pub packets_forwarded: u64,
    /// Packets dropped, for any reason.
    pub packets_dropped: u64,
    /// Bytes of IP packets sent on.
    pub bytes_forwarded: u64,
    /// Mappings created.
    pub mappings_created: u64,
    /// Sessions created.
    pub sessions_created: u64,
    /// Packets sent on.
    pub packets_per_second: u64,
    /// Bits of IP packets sent on.
    pub bits_per_second: u64,
    /// Packets dropped.
    pub drops_per_second: u64,
    /// Mappings created.
    pub mappings_created_per_second: u64,
    /// Sessions created.
    #[serde(default)]
    pub sessions_created_per_second: u64,
    /// Where records of events go; null: nowhere.
    #[serde(default)]
    pub event_log: Option<EventLog>,
    /// Whether the clock is right that the log's times are of; null if the system does not say it.
    #[serde(default)]
    pub clock: Option<SystemClock>,
    /// Current idle times.
    #[serde(default)]
    pub timeouts: CurrentTimeouts,
    /// Idle times of destination ports that have their own; if several apply to a port, the first
    /// decides.
    #[serde(default)]
    pub port_timeouts: Vec<CurrentPortTimeout>,
    /// Fragments that may wait for the first one of their datagram.
    #[serde(default)]
    pub fragments_held_max: u32,
    /// Ports of a subscriber without a class.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = PortLimits))]
    pub subscriber_ports_max: Box<PortLimits>,
    /// Translation prefixes of NAT64 (RFC 6052).
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Nat64Prefix>))]
    pub nat64_prefixes: Box<[Nat64Prefix]>,
    /// Whether the pools are announced; null without `[routing] kernel = true`.
    #[serde(default)]
    pub announcement: Option<Announcement>,
    /// Users of the API whose group the machine did not have when the instance started: no member
    /// of it can log in.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<UserWithoutGroup>))]
    pub users_without_group: Box<[UserWithoutGroup]>,
    /// The workers in order.
    pub workers: Vec<Worker>,
}

/// The system's clock, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SystemClock {
    /// True if a time service (NTP, PTP) keeps it.
    pub synchronised: bool,
    /// Its error, as the service estimates it.
    pub estimated_error_us: u64,
    /// Its greatest possible error.
    pub maximum_error_us: u64,
}

/// A user of the API whose group does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserWithoutGroup {
    /// Name in the configuration.
    pub user: String,
    /// The group that is not there.
    pub group: String,
}

/// Current idle times: those of the configuration, or shorter ones while ports are scarce.
/// [`CurrentPortTimeout`] has the timers of single ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CurrentTimeouts {
    /// UDP.
    pub udp_us: u64,
    /// UDP to which nothing has come back.
    pub udp_unanswered_us: u64,
    /// TCP before the handshake is complete.
    pub tcp_opening_us: u64,
    /// Established TCP.
    pub tcp_established_us: u64,
    /// TCP after FIN or RST.
    pub tcp_closing_us: u64,
    /// ICMP queries.
    pub icmp_us: u64,
}

/// The most external ports, and query identifiers of ICMP, of one subscriber; null for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortLimits {
    /// UDP.
    pub udp: Option<u32>,
    /// TCP.
    pub tcp: Option<u32>,
    /// ICMP queries.
    pub icmp: Option<u32>,
}

/// A translation prefix of NAT64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Nat64Prefix {
    /// IPv6 addresses with an IPv4 address inside.
    pub prefix: String,
    /// Pool that serves its hosts.
    pub pool: Option<String>,
}

/// The idle time of sessions to some destination ports, opened from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CurrentPortTimeout {
    /// UDP, or TCP once established.
    pub protocol: Protocol,
    /// First destination port.
    pub first_port: u16,
    /// Last destination port.
    pub last_port: u16,
    /// Idle time.
    pub idle_us: u64,
}

words!(
    /// What happens if event records cannot be written fast enough.
    BackPressure, "refuse or drop", {
        /// Nothing new is made without its record.
        Refuse = "refuse",
        /// Records are lost.
        Drop = "drop",
    }
);

/// The event log. Totals count from the start of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventLog {
    /// Path of the file of lines; `-` for standard output; empty without lines.
    pub destination: String,
    /// What happens if it cannot be written fast enough.
    pub back_pressure: BackPressure,
    /// Records written.
    pub records_written: u64,
    /// Records that wait.
    pub records_waiting: u64,
    /// Events without a record, for lack of room.
    pub records_lost: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Completed rotations of the file.
    pub files_rotated: u64,
    /// Times that another program renamed, deleted or cut the file.
    #[serde(default)]
    pub files_taken: u64,
    /// Failed attempts to open, write, sync or rotate.
    pub errors: u64,
    /// Age of the oldest unwritten record; 0 without one.
    pub lag_us: u64,
    /// True if the last attempt failed: nothing is being written.
    pub failing: bool,
    /// The last error of the system; null without one.
    pub last_error: Option<String>,
    /// The store; null without one.
    #[serde(default)]
    pub store: Option<LogStore>,
    /// Collectors that get the records of the store.
    #[serde(default)]
    pub sinks: Vec<LogSink>,
}

words!(
    /// Format of a sink.
    SinkKind, "ipfix, syslog or json", {
        /// IPFIX (RFC 7011, RFC 8158).
        Ipfix = "ipfix",
        /// Syslog (RFC 5424).
        Syslog = "syslog",
        /// Lines of JSON.
        Json = "json",
    }
);

/// A collector. Totals count from the start of the process, or from the sink's last change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogSink {
    /// Name in the configuration.
    pub name: String,
    /// Format of its records.
    pub kind: SinkKind,
    /// The collector's address.
    pub address: String,
    /// True if there is a connection; true for datagrams.
    pub connected: bool,
    /// Records sent, also those that were sent again.
    pub records_sent: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Events that were deleted before they were sent, and records in datagrams that failed.
    pub records_lost: u64,
    /// Age of the oldest event that was not sent; 0 if all were.
    pub lag_us: u64,
    /// Connections made.
    pub connections: u64,
    /// Failures to connect, to send or to read.
    pub errors: u64,
    /// The last failure; null without one.
    pub last_error: Option<String>,
}

/// The store of the event log. Totals of the store itself count what earlier runs wrote, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogStore {
    /// Its folder.
    pub path: String,
    /// Records that this run wrote to the journal.
    pub records_written: u64,
    /// Records that wait, in rings or memory.
    pub records_waiting: u64,
    /// Bytes of catalogue, segments and current journal.
    pub bytes: u64,
    /// Sealed segments.
    pub segments: u64,
    /// Recorded gaps of sequence numbers.
    pub gaps: u64,
    /// Records in them.
    pub records_lost: u64,
    /// Starts that found the journal damaged, or without records that had been in it.
    pub cuts: u64,
    /// Failed attempts to write.
    pub errors: u64,
    /// Age of the oldest record that is not in the journal; 0 without one.
    pub lag_us: u64,
    /// True if the last attempt failed.
    pub failing: bool,
    /// The last error; null without one.
    pub last_error: Option<String>,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Worker {
    /// Number.
    pub worker: u8,
    /// CPU it is pinned to.
    pub cpu: Option<u16>,
    /// Part of the last second in which it had packets to work on.
    pub busy_ratio: f64,
    /// Packets taken from ports in the last second.
    #[serde(default)]
    pub packets_received_per_second: u64,
    /// Packets taken from ports.
    pub packets_received: u64,
    /// Packets sent on.
    pub packets_forwarded: u64,
    /// Packets dropped.
    pub packets_dropped: u64,
    /// Packets given to other workers.
    pub handed_off: u64,
    /// Packets taken from other workers.
    pub taken_over: u64,
    /// Subscribers it owns.
    pub subscribers: u64,
    /// Mappings it owns.
    pub mappings: u64,
    /// Sessions it owns.
    pub sessions: u64,
    /// Time it spent on packets since the start.
    #[serde(default)]
    pub busy_us: u64,
    /// Rounds with packets by the time they took: entry `n` counts those that took at most 2^`n` µs
    /// and more than the entry before; the last has all longer ones.
    #[serde(default)]
    pub rounds_by_time: Vec<u64>,
}
