//! The instance as a whole, and its workers.

use core::fmt;
use core::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use crate::values::ParseError;
use crate::values::words;

words!(
    /// What the instance is doing.
    RunState, "starting, running or draining", {
        /// Ports are coming up.
        Starting = "starting",
        /// Packets are forwarded.
        Running = "running",
        /// It was told to stop and sends out what it still has.
        Draining = "draining",
    }
);

/// The instance as a whole. Totals count from the start of the process; rates are those of the last second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// External ports that rest before they are given out again.
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
    /// The workers in order.
    pub workers: Vec<Worker>,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Number.
    pub worker: u8,
    /// CPU it is pinned to.
    pub cpu: Option<u16>,
    /// Part of the last second in which it had packets to work on.
    pub busy_ratio: f64,
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
}
