//! The effects of a configuration change, before and after it.

use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use serde::Deserialize;
use serde::Serialize;

use crate::objects::pool::PerProtocol;
use crate::values::Protocol;

/// One difference between the running configuration and another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    /// What differs: `pool "a".ports`, `timeouts.udp`.
    pub object: String,
    /// Its value now; absent when it is new.
    pub before: Option<String>,
    /// Its value then; absent when it is removed.
    pub after: Option<String>,
    /// True if a reload can make the change; false if it needs a restart.
    pub live: bool,
    /// Why it needs a restart.
    pub reason: Option<String>,
}

/// The effect of a change on the state of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolPlan {
    /// The pool, by its name now.
    pub pool: String,
    /// Subscribers without any change.
    pub subscribers_keep: u64,
    /// Subscribers whose next mapping is on another external address.
    pub subscribers_move: u64,
    /// Subscribers that keep their mappings and get no new ones: all their possible external
    /// addresses drain, or rules drop their packets or pass them untranslated.
    #[serde(default)]
    pub subscribers_drain: u64,
    /// As `subscribers_drain`, and their mappings end at the latest after `drain_time_us` of the
    /// plan.
    #[serde(default)]
    pub subscribers_drain_until: u64,
    /// Subscribers without a pool, or whose mappings end while all other possible addresses drain.
    pub subscribers_leave: u64,
    /// Unchanged mappings.
    pub mappings_keep: u64,
    /// Mappings that stay while they are used, on an endpoint that is not given out again.
    pub mappings_drain: u64,
    /// Mappings that stay while they are used, but at most `drain_time_us` of the plan.
    pub mappings_drain_until: u64,
    /// Mappings that end.
    pub mappings_end: u64,
    /// Unchanged flows (which share external ports).
    #[serde(default)]
    pub flows_keep: u64,
    /// As `mappings_drain`.
    #[serde(default)]
    pub flows_drain: u64,
    /// As `mappings_drain_until`.
    #[serde(default)]
    pub flows_drain_until: u64,
    /// Flows that end.
    #[serde(default)]
    pub flows_end: u64,
    /// Unchanged port blocks.
    #[serde(default)]
    pub blocks_keep: u64,
    /// Port blocks that stay while a port in them is used.
    #[serde(default)]
    pub blocks_drain: u64,
    /// As `mappings_drain_until`.
    #[serde(default)]
    pub blocks_drain_until: u64,
    /// Port blocks that end.
    #[serde(default)]
    pub blocks_end: u64,
    /// Ports of forwards that mappings of other inside endpoints still have, and that drain as
    /// `mappings_drain`. Such a forward takes no new sessions until the mapping ends.
    #[serde(default)]
    pub forwards_wait_drain: u64,
    /// The same, of mappings that drain as `mappings_drain_until`.
    #[serde(default)]
    pub forwards_wait_drain_until: u64,
    /// Ports that the addresses must reserve for the guarantees of classes (`reserved_ports`).
    #[serde(default)]
    pub guaranteed: PerProtocol,
    /// Guaranteed ports in use by other subscribers; they are reserved as they become free.
    #[serde(default)]
    pub guarantee_missing: PerProtocol,
    /// Slices of the formula, if any of the following counts is not 0.
    #[serde(default)]
    pub slices: u64,
    /// Slices with ports in port blocks that others lease. Their subscribers get these ports as the
    /// blocks are returned.
    #[serde(default)]
    pub slices_leased: u64,
    /// Slices whose ports are all in such blocks.
    #[serde(default)]
    pub slices_leased_whole: u64,
    /// Maximum time until the last of these blocks is returned; absent: when no port in it is used.
    #[serde(default)]
    pub slices_leased_us: Option<u64>,
}

/// The effect of a change on one subscriber, external address, mapping, flow or port block; as many
/// as were requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanDetail {
    /// Kind of the object.
    pub what: PlanSubject,
    /// VRF of the subscriber.
    pub vrf: Option<String>,
    /// Internal address of the subscriber, or the external address.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: Ipv4Addr,
    /// Transport of a mapping or flow.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// Internal port of a mapping or flow.
    #[serde(default)]
    pub internal_port: Option<u16>,
    /// Current name of the pool; for an added address, the new name.
    pub pool: String,
    /// Current external address; absent if any address of the pool may serve the subscriber.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub external: Option<Ipv4Addr>,
    /// External port of a mapping or flow, or first port of a block.
    #[serde(default)]
    pub first_port: Option<u16>,
    /// Last port; for a mapping or flow the same as the first.
    #[serde(default)]
    pub last_port: Option<u16>,
    /// Remote endpoint of a flow: other flows may have the same external port.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub remote: Option<SocketAddrV4>,
    /// The effect.
    pub becomes: PlanFate,
    /// Maximum time until it ends, if it drains; absent: when it is no longer used.
    #[serde(default)]
    pub ends_in_us: Option<u64>,
    /// New name of the pool of the next mapping of a moving subscriber; absent if it differs by
    /// protocol.
    #[serde(default)]
    pub next_pool: Option<String>,
    /// Why rules give a subscriber no new mapping, if they do not.
    #[serde(default)]
    pub denied: Option<PlanDenial>,
    /// Protocols for which this holds; empty: all.
    #[serde(default)]
    pub protocols: Vec<Protocol>,
}

/// Why rules give a subscriber nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlanDenial {
    /// Its packets are dropped.
    Dropped,
    /// It is let through as it is.
    Untranslated,
    /// A rule sends it to a pool of blocks, slices or whole addresses, which has no ports for this
    /// subscriber.
    OtherMode,
}

impl PlanDenial {
    /// In a table.
    pub const fn name(self) -> &'static str {
        match self {
            PlanDenial::Dropped => "a rule drops what is new",
            PlanDenial::Untranslated => "a rule passes what is new untranslated",
            PlanDenial::OtherMode => "a rule names a pool that has no ports for others",
        }
    }
}

/// How rules differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanRules {
    /// Rules that are new.
    pub added: u64,
    /// Rules that are gone.
    pub removed: u64,
    /// Rules at another place in the order.
    pub moved: u64,
    /// Rules among these that match only some destinations or ports. The effects on subscribers do
    /// not include them.
    pub narrow: u64,
    /// True if subscribers were compared under both lists. False if these rules name all
    /// destinations or ports, so that no packet represents the traffic of a subscriber in general.
    pub compared: bool,
}

/// Kind of the object that a detail describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlanSubject {
    /// A subscriber.
    Subscriber,
    /// An external address.
    Address,
    /// A mapping.
    Mapping,
    /// A flow, which shares its external port.
    Flow,
    /// A port block.
    Block,
}

impl PlanSubject {
    /// In a table.
    pub const fn name(self) -> &'static str {
        match self {
            PlanSubject::Subscriber => "subscriber",
            PlanSubject::Address => "address",
            PlanSubject::Mapping => "mapping",
            PlanSubject::Flow => "flow",
            PlanSubject::Block => "block",
        }
    }
}

/// Objects of each kind beyond those that a plan names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unnamed {
    /// Subscribers that move, drain or leave.
    pub subscribers: u64,
    /// External addresses that are added or closed.
    pub addresses: u64,
    /// Mappings that drain or end, and unchanged ones if requested.
    pub mappings: u64,
    /// Flows, likewise.
    pub flows: u64,
    /// Port blocks, likewise.
    pub blocks: u64,
}

/// The effect on the object of a detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlanFate {
    /// Nothing.
    Keeps,
    /// Its next mapping is on another external address.
    Moves,
    /// It keeps its mappings while they are used and gets no new ones: all possible external
    /// addresses drain, or rules deny new mappings.
    Drains,
    /// No pool serves it, or its mappings end while all other possible addresses drain.
    Leaves,
    /// It takes new mappings, and did not before.
    Added,
    /// It takes no new mappings any more.
    Closed,
    /// It ends with the change.
    Ends,
}

impl PlanFate {
    /// In a table.
    pub const fn name(self) -> &'static str {
        match self {
            PlanFate::Keeps => "keeps",
            PlanFate::Moves => "moves",
            PlanFate::Drains => "drains",
            PlanFate::Leaves => "leaves",
            PlanFate::Added => "added",
            PlanFate::Closed => "closed",
            PlanFate::Ends => "ends",
        }
    }
}

/// What a change does in all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Plan {
    /// The configuration it leads to.
    pub config: String,
    /// Whether a reload would do it.
    pub applies: bool,
    /// Differences.
    pub changes: u64,
    /// Differences that need a restart.
    pub changes_restart: u64,
    /// External addresses that are added.
    pub addresses_added: u64,
    /// External addresses that take no new mappings after the change: removed, or set to drain.
    pub addresses_closed: u64,
    /// Maximum time that draining mappings stay; absent: while they are used.
    pub drain_time_us: Option<u64>,
    /// All pools together.
    pub total: PoolPlan,
    /// How rules differ.
    #[serde(default)]
    pub rules: PlanRules,
    /// Objects beyond those that details name; empty if no details were requested.
    #[serde(default)]
    pub unnamed: Unnamed,
    /// What else it would do that a rollback does not undo, and new warnings of `natrix check`, in
    /// sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How long counting took.
    pub took_us: u64,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reloaded {
    /// The current configuration.
    pub config: String,
    /// Changes since the start.
    pub generation: u32,
    /// Differences to the one before.
    pub changes: u64,
    /// External addresses whose ports changed.
    pub addresses_changed: u64,
    /// Workers that switched: all of them.
    pub workers: u64,
    /// From reading the file to the last worker.
    pub took_us: u64,
    /// Part of this time from the first worker to the last.
    pub adoption_us: u64,
    /// Why the file that a restart reads has another configuration: what is in use is so until the
    /// next restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_saved: Option<String>,
    /// What else it does that a rollback does not undo, and new warnings of `natrix check`, in
    /// sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One thing wrong with a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigFault {
    /// The file.
    pub file: String,
    /// Its line.
    pub line: Option<u32>,
    /// The faulty key, as a path into the file.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// The value seen; empty when there is none.
    pub seen: String,
    /// What to do.
    pub remedy: String,
}
