//! Counters, drops by reason, and rules with their hits.

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::values::AnyPrefix;
use crate::values::ParseError;
use crate::values::Prefix;
use crate::values::words;

words!(
    /// What a counter counts.
    CounterKind, "forwarded, local, dropped, event or gauge", {
        /// Packets with a verdict that sends them on.
        Forwarded = "forwarded",
        /// Packets that end here by design.
        Local = "local",
        /// Packets with a verdict that drops them.
        Dropped = "dropped",
        /// Anything else that only grows.
        Event = "event",
        /// A number of now.
        Gauge = "gauge",
    }
);

words!(
    /// What was used up when a packet was dropped. A word with `subscriber_` is a limit of one
    /// subscriber, the others are shared.
    Resource, "addresses, ports, subscriber_ports, mappings, subscribers, fragments, other or subscriber_other", {
        /// External addresses.
        Addresses = "addresses",
        /// External ports of a pool.
        Ports = "ports",
        /// Ports or blocks that the subscriber may have.
        SubscriberPorts = "subscriber_ports",
        /// The table of mappings.
        Mappings = "mappings",
        /// The table of subscribers.
        Subscribers = "subscribers",
        /// Room for fragments and datagrams that are put together.
        Fragments = "fragments",
        /// Anything else that all share: other tables, buffers, the log, a translation.
        Other = "other",
        /// Anything else that the subscriber has a limit of: sessions, memory, hosts, a rate.
        SubscriberOther = "subscriber_other",
    }
);

impl Resource {
    /// Whether it is a limit of one subscriber.
    pub const fn is_of_subscriber(self) -> bool {
        match self {
            Resource::SubscriberPorts | Resource::SubscriberOther => true,
            Resource::Addresses
            | Resource::Ports
            | Resource::Mappings
            | Resource::Subscribers
            | Resource::Fragments
            | Resource::Other => false,
        }
    }

    /// The packets dropped because of each of them.
    pub fn dropped(counters: &[Counter]) -> BTreeMap<Resource, u64> {
        let mut dropped = BTreeMap::new();
        for counter in counters {
            if let Some(resource) = counter.resource {
                *dropped.entry(resource).or_default() += counter.value;
            }
        }
        dropped
    }
}

/// One counter, of one worker or over all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Counter {
    /// Stable name.
    pub name: String,
    /// Number of the worker; null for the sum.
    pub worker: Option<u8>,
    /// Its value.
    pub value: u64,
    /// What it counts.
    pub kind: CounterKind,
    /// What was used up, if packets were dropped for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
    /// One sentence.
    pub description: String,
}

/// Packets of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerPackets {
    /// The worker.
    pub worker: u8,
    /// Its packets.
    pub packets: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropReason {
    /// Name of the verdict.
    pub reason: String,
    /// Packets dropped over all workers.
    pub packets: u64,
    /// Packets dropped in the last second.
    #[serde(default)]
    pub packets_per_second: u64,
    /// One sentence: why a packet ends so.
    pub description: String,
    /// One sentence: what to do if there are many.
    #[serde(default)]
    pub remedy: String,
    /// The same by worker.
    pub per_worker: Vec<WorkerPackets>,
}

/// A rule or filter of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rule {
    /// Position among rules of its kind, from 0; the first match decides.
    pub index: u32,
    /// Place in the configuration, as `check` counts: the index of its table among tables of that
    /// name, from 0, or file and line, `web.csv:17`.
    pub place: String,
    /// `rule`, `filter`, `pass` for rules about untranslated protocols, `forward` and `one-to-one`
    /// for static mappings.
    pub kind: String,
    /// Effect on matching packets: `translate`, `no-translation`, `redirect`, `drop`, `pass`,
    /// `permit`, `deny`, `forward`, `pair`.
    pub action: String,
    /// Of a filter: `out`, `in` or `both`.
    pub direction: Option<String>,
    /// Pool that translates; null for the subscriber's own pool or none.
    pub pool: Option<String>,
    /// Of `translate`: `endpoint-independent` or `endpoint-dependent`.
    pub mapping: Option<String>,
    /// VRF it matches; null: any.
    pub vrf: Option<String>,
    /// IP protocol number it matches; null: any.
    pub ip_protocol: Option<u8>,
    /// Inside addresses it matches.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub inside: AnyPrefix,
    /// Of a forward to a host behind a softwire, the address of its B4. Then `inside` is the
    /// address behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub b4: Option<Ipv6Addr>,
    /// Matching inside ports, `443` or `1024-65535`; null: any.
    pub inside_ports: Option<String>,
    /// Outside addresses it matches.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub outside: Prefix,
    /// Outside ports it matches; null: any.
    pub outside_ports: Option<String>,
    /// For `redirect`: the new destinations, `192.0.2.54:5353 weight 3` or a prefix. For a
    /// `forward` with targets: the targets.
    pub targets: Vec<String>,
    /// For a `forward` with targets: sessions opened to each target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_hits: Vec<u64>,
    /// For `forward` and `one-to-one`: the external side, `203.0.113.1:443` or the first and last
    /// address of a pool. The inside side is the match.
    pub external: Option<String>,
    /// Sessions opened by it (mappings for `forward` and `one-to-one`), or packets for rules that
    /// keep no state; null if not counted.
    pub hits: Option<u64>,
}
