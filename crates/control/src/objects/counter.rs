//! Counters, drops by reason, and rules with what they matched.

use core::fmt;
use core::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

use crate::values::ParseError;
use crate::values::Prefix;
use crate::values::words;

words!(
    /// What a counter counts.
    CounterKind, "forwarded, local, dropped, event or gauge", {
        /// Packets with a verdict that sends them on.
        Forwarded = "forwarded",
        /// Packets with a verdict that ends here by design.
        Local = "local",
        /// Packets with a verdict that drops them.
        Dropped = "dropped",
        /// Anything else that only grows.
        Event = "event",
        /// A number of now.
        Gauge = "gauge",
    }
);

/// One counter, of one worker or over all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Stable name.
    pub name: String,
    /// Worker it belongs to; null for the sum over all.
    pub worker: Option<u8>,
    /// Its value.
    pub value: u64,
    /// What it counts.
    pub kind: CounterKind,
    /// One sentence.
    pub description: String,
}

/// Packets of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerPackets {
    /// The worker.
    pub worker: u8,
    /// Its packets.
    pub packets: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropReason {
    /// Name of the verdict.
    pub reason: String,
    /// Packets dropped over all workers.
    pub packets: u64,
    /// One sentence: why a packet ends so.
    pub description: String,
    /// The same by worker.
    pub per_worker: Vec<WorkerPackets>,
}

/// A rule of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Position in the configuration, from 0.
    pub index: u32,
    /// What it does with packets that match: `pass`.
    pub action: String,
    /// IP protocol number it matches.
    pub ip_protocol: u8,
    /// Inside addresses it matches.
    pub inside: Prefix,
    /// Outside addresses it matches.
    pub outside: Prefix,
    /// Packets that matched; null when that is not counted.
    pub packets: Option<u64>,
}
