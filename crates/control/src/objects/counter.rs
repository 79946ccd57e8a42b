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

/// A rule or filter of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Position among those of its kind, from 0: the first that matches counts.
    pub index: u32,
    /// Where it stands in the configuration, as `check` counts: the number of its table among those of its name, from 0, or file and
    /// line, `web.csv:17`.
    pub place: String,
    /// `rule`, `filter`, `pass` for rules about protocols that are not translated, `forward` and `one-to-one` for what is paired for
    /// ever.
    pub kind: String,
    /// What it does with packets that match: `translate`, `no-translation`, `redirect`, `drop`, `pass`, `permit`, `deny`,
    /// `forward`, `pair`.
    pub action: String,
    /// Of a filter: `out`, `in` or `both`.
    pub direction: Option<String>,
    /// Pool that translates; null where the subscriber's own does, or none.
    pub pool: Option<String>,
    /// Of `translate`: `endpoint-independent` or `endpoint-dependent`.
    pub mapping: Option<String>,
    /// VRF it matches; null: any.
    pub vrf: Option<String>,
    /// IP protocol number it matches; null: any.
    pub ip_protocol: Option<u8>,
    /// Inside addresses it matches.
    pub inside: Prefix,
    /// Inside ports it matches, `443` or `1024-65535`; null: any.
    pub inside_ports: Option<String>,
    /// Outside addresses it matches.
    pub outside: Prefix,
    /// Outside ports it matches; null: any.
    pub outside_ports: Option<String>,
    /// Of `redirect`: where packets go instead, `192.0.2.54:5353 weight 3` or a prefix. Of a `forward` to several: those inside.
    pub targets: Vec<String>,
    /// Of a `forward` to several: the sessions opened to each of `targets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_hits: Vec<u64>,
    /// Of `forward` and `one-to-one`: the external side, `203.0.113.1:443` or the first and last address of a pool; the inside
    /// side is what is matched.
    pub external: Option<String>,
    /// Sessions it opened (of `forward` and `one-to-one`: mappings) and, where nothing is kept of a packet, packets it was applied to; null when that is not counted.
    pub hits: Option<u64>,
}
