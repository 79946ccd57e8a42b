//! What a change of the configuration does, and did.

use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use serde::Deserialize;
use serde::Serialize;

use crate::objects::pool::PerProtocol;
use crate::values::Protocol;

/// One difference between the running configuration and another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What differs: `pool "a".ports`, `timeouts.udp`.
    pub object: String,
    /// Its value now; absent when it is new.
    pub before: Option<String>,
    /// Its value then; absent when it is removed.
    pub after: Option<String>,
    /// Whether a reload can bring it about; false: it needs a restart.
    pub live: bool,
    /// Why it needs a restart.
    pub reason: Option<String>,
}

/// What a change does to the state of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPlan {
    /// The pool, by its name now.
    pub pool: String,
    /// Subscribers who notice nothing.
    pub subscribers_keep: u64,
    /// Subscribers whose next mapping is on another external address.
    pub subscribers_move: u64,
    /// Subscribers who keep what they have and get nothing new: all external addresses that they may have drain, or rules drop what
    /// they send or let it through untranslated.
    #[serde(default)]
    pub subscribers_drain: u64,
    /// The same, and what they have ends at the latest after `drain_time_us` of the plan.
    #[serde(default)]
    pub subscribers_drain_until: u64,
    /// Subscribers whom no pool serves any more, or whose mappings end while all else that they may have drains.
    pub subscribers_leave: u64,
    /// Mappings that nothing happens to.
    pub mappings_keep: u64,
    /// Mappings that stay as long as they are used, on an endpoint that is not given out again.
    pub mappings_drain: u64,
    /// Mappings that stay as long as they are used, but no longer than `drain_time_us` of the plan.
    pub mappings_drain_until: u64,
    /// Mappings that end.
    pub mappings_end: u64,
    /// Flows, which share external ports, that nothing happens to.
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
    /// Port blocks that nothing happens to.
    #[serde(default)]
    pub blocks_keep: u64,
    /// Port blocks that stay as long as something in them is used.
    #[serde(default)]
    pub blocks_drain: u64,
    /// As `mappings_drain_until`.
    #[serde(default)]
    pub blocks_drain_until: u64,
    /// Port blocks that end.
    #[serde(default)]
    pub blocks_end: u64,
    /// Ports to be set aside on its addresses for what classes guarantee (`reserved_ports`).
    #[serde(default)]
    pub guaranteed: PerProtocol,
    /// Those of them that others have now: they are set aside as they come free.
    #[serde(default)]
    pub guarantee_missing: PerProtocol,
    /// Slices of its formula, where there are any of the next.
    #[serde(default)]
    pub slices: u64,
    /// Slices with ports in port blocks of others now: whose they are gets these as the blocks go back.
    #[serde(default)]
    pub slices_leased: u64,
    /// Those of them that have no other ports.
    #[serde(default)]
    pub slices_leased_whole: u64,
    /// After how long the last of these blocks is back at the latest; absent: when nothing in it is used.
    #[serde(default)]
    pub slices_leased_us: Option<u64>,
}

/// What a change does to one subscriber, external address, mapping, flow or port block: some of them, as many as were asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDetail {
    /// Whom or what it is about.
    pub what: PlanSubject,
    /// VRF of the subscriber.
    pub vrf: Option<String>,
    /// The internal address of the subscriber; of an external address that one.
    pub address: Ipv4Addr,
    /// Transport of a mapping or flow.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// Internal port of a mapping or flow.
    #[serde(default)]
    pub internal_port: Option<u16>,
    /// The pool, by its name now; of an address that is added, by its name then.
    pub pool: String,
    /// The external address now; absent when any of the pool serves a subscriber.
    pub external: Option<Ipv4Addr>,
    /// The external port of a mapping or flow, or the first one of a block.
    #[serde(default)]
    pub first_port: Option<u16>,
    /// The last one; of a mapping or flow the same.
    #[serde(default)]
    pub last_port: Option<u16>,
    /// Whom a flow is with: others may have the same external port.
    #[serde(default)]
    pub remote: Option<SocketAddrV4>,
    /// What becomes of it.
    pub becomes: PlanFate,
    /// After how long what is left of it ends, of what drains; absent: when it is not used any more.
    #[serde(default)]
    pub ends_in_us: Option<u64>,
    /// The pool of a subscriber's next mapping, by its name then, of one who moves; absent where it differs by protocol.
    #[serde(default)]
    pub next_pool: Option<String>,
    /// Why rules give a subscriber nothing new, if they do.
    #[serde(default)]
    pub denied: Option<PlanDenial>,
    /// The protocols of a subscriber that this is so for; empty: all.
    #[serde(default)]
    pub protocols: Vec<Protocol>,
}

/// Why rules give a subscriber nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanDenial {
    /// What he sends is dropped.
    Dropped,
    /// It is let through as it is.
    Untranslated,
    /// It is sent to a pool of blocks, slices or whole addresses, which has no ports for him.
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
pub struct PlanRules {
    /// Rules that are new.
    pub added: u64,
    /// Rules that are gone.
    pub removed: u64,
    /// Rules that stand elsewhere in the order, among others.
    pub moved: u64,
    /// Those of all these that are about some destinations or ports only: what subscribers become does not say what they match.
    pub narrow: u64,
    /// Whether subscribers were asked about under both lists; false: these name all destinations or ports, so that no packet stands for
    /// what a subscriber sends in general.
    pub compared: bool,
}

/// Whom or what a detail is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// How many there are of each kind beside those a plan names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unnamed {
    /// Subscribers who move, drain or leave.
    pub subscribers: u64,
    /// External addresses that are added or closed.
    pub addresses: u64,
    /// Mappings that drain or end, and if asked for those that keep.
    pub mappings: u64,
    /// Flows, likewise.
    pub flows: u64,
    /// Port blocks, likewise.
    pub blocks: u64,
}

/// What becomes of whom or what a detail is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanFate {
    /// Nothing.
    Keeps,
    /// His next mapping is on another external address.
    Moves,
    /// He keeps what he has and gets nothing new: all external addresses that he may have drain, or rules deny it. It stays as long as
    /// it is used.
    Drains,
    /// No pool serves him any more, or what he has ends while all else that he may have drains.
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
    /// External addresses that take no new mappings from then on: removed, or set to drain.
    pub addresses_closed: u64,
    /// How long mappings that drain may stay at most; absent: as long as they are used.
    pub drain_time_us: Option<u64>,
    /// All pools together.
    pub total: PoolPlan,
    /// How rules differ.
    #[serde(default)]
    pub rules: PlanRules,
    /// How many more there are of what details name; nothing where none were asked for.
    #[serde(default)]
    pub unnamed: Unnamed,
    /// How long counting took.
    pub took_us: u64,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The configuration in force.
    pub config: String,
    /// Changes since the start.
    pub generation: u32,
    /// Differences to the one before.
    pub changes: u64,
    /// External addresses whose ports changed.
    pub addresses_changed: u64,
    /// Workers that went over, all of them.
    pub workers: u64,
    /// From reading the file to the last worker.
    pub took_us: u64,
    /// Of that, from the first worker to the last.
    pub adoption_us: u64,
}

/// One thing wrong with a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFault {
    /// The file.
    pub file: String,
    /// Its line.
    pub line: Option<u32>,
    /// What is at fault, as a path into the file.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// The value seen; empty when there is none.
    pub seen: String,
    /// What to do.
    pub remedy: String,
}
