//! `natrix bench`: what it measures, and how.

use std::path::PathBuf;

use clap::Args;
use clap::Subcommand;
use clap::ValueEnum;

/// `natrix bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The whole engine on frames in memory
    Engine(BenchEngine),
    /// The whole path through DPDK drivers, compared with plain forwarding and dpdk-testpmd
    Forward(BenchForward),
    /// Data structures for NAT tables, compared
    Tables(BenchTables),
    /// The rule search, compared with a linear one
    Rules(BenchRules),
    /// The table of routes, compared with DPDK's and a crate, and what routes cost packets
    Routes(BenchRoutes),
    /// Burst times of the engine while tables are listed, a pool is full, or millions of sessions
    /// end
    Stalls(BenchStalls),
    /// The gain from more workers, with and without hand-off between them
    Scaling(BenchScaling),
    /// The store of the event log: events a second on one core, bytes a mapping
    Log(BenchLog),
}

/// `natrix bench log`.
#[derive(Debug, Args)]
pub struct BenchLog {
    /// Mappings to log, each with a start and most with an end
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub mappings: u64,
    /// Missing or empty folder for the store, which is removed at the end [default: a new one for
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Seed of the events
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix bench engine`.
#[derive(Debug, Args)]
pub struct BenchEngine {
    /// Sessions to hold
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub sessions: u64,
    /// What the packets do
    #[arg(long, value_enum, default_value_t = BenchMode::Established)]
    pub mode: BenchMode,
    /// What the subscribers are
    #[arg(long, value_enum, default_value_t = BenchFamily::Nat44)]
    pub family: BenchFamily,
    /// How external ports are allocated: one by one, or in blocks of 64
    #[arg(long, value_enum, default_value_t = BenchAllocation::Ports)]
    pub allocation: BenchAllocation,
    /// Workers, one thread each
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Length of the timed part
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// Events: none, discarded by a thread, or written by a thread: as lines, or to a store in the
    /// folder for temporary files
    #[arg(long, value_enum, default_value_t = BenchEvents::Nowhere)]
    pub events: BenchEvents,
    /// Number of packet filters, all of which permit the traffic
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub filters: u32,
    /// Enable all application-level gateways and port control, which the traffic does not use
    #[arg(long)]
    pub gateways: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// The destination of the events of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchEvents {
    /// No events
    Nowhere,
    /// A thread takes and discards them
    Discarded,
    /// A thread writes them as lines to /dev/null
    Written,
    /// A thread writes them to a store
    Stored,
}

/// `natrix bench rules`.
#[derive(Debug, Args)]
pub struct BenchRules {
    /// Number of rules
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(6..=10_000_000))]
    pub rules: u32,
    /// Length of each timed part
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub seconds: f64,
    /// Seed of the rules, the packets and the changes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix bench routes`.
#[derive(Debug, Args)]
pub struct BenchRoutes {
    /// Number of routes
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..=2_000_000))]
    pub routes: u32,
    /// Changes of routes a second under traffic
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub changes: u32,
    /// Number of established sessions of the traffic
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(64..))]
    pub sessions: u64,
    /// Length of each timed part
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub seconds: f64,
    /// Seed of the routes, the addresses and the changes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix bench tables`.
#[derive(Debug, Args)]
pub struct BenchTables {
    /// Number of sessions, first new and then answered; separate several sizes by commas
    #[arg(
        long,
        value_name = "N[,N...]",
        value_delimiter = ',',
        default_value = "1000,10000,65536,100000,1000000",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub sessions: Vec<u32>,
    /// Structures to measure [default: all but none]
    #[arg(long, value_name = "NAME[,NAME...]", value_delimiter = ',', value_parser = BENCH_STRUCTURES)]
    pub structures: Vec<String>,
    /// Measure with 1 thread, 2 and so on up to T
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub threads: u8,
    /// Sessions per cell in the hash tables of the study: chain, chain-tree, bucket2, bucket3
    #[arg(long, value_name = "L", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub load: u32,
    /// Minimum length of each timed part: small sets are repeated; 0 measures once
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,
    /// Seed of the flows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Also write the results as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Also write results (tables.csv) and plots (SVG) into this folder; created if missing
    #[arg(long, value_name = "DIR")]
    pub out_dir: Option<PathBuf>,
    /// Print one JSON object per result instead of text
    #[arg(long)]
    pub json: bool,
}

/// The structures of `natrix bench tables`; `none` is the work on packets alone.
const BENCH_STRUCTURES: [&str; 11] = [
    "linear",
    "bst",
    "rbtree",
    "chain",
    "chain-tree",
    "bucket2",
    "bucket3",
    "hashbrown",
    "dpdk-hash",
    "natrix",
    "none",
];

/// The port allocation of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchAllocation {
    /// Each mapping takes any free port
    Ports,
    /// Subscribers lease blocks of 64 ports
    Blocks,
}

/// The subscribers of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchFamily {
    /// IPv4
    Nat44,
    /// IPv6, translated
    Nat64,
    /// IPv4 in softwires
    Dslite,
    /// A third of each
    Mixed,
}

impl BenchFamily {
    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            BenchFamily::Nat44 => "nat44",
            BenchFamily::Nat64 => "nat64",
            BenchFamily::Dslite => "dslite",
            BenchFamily::Mixed => "mixed",
        }
    }
}

/// The packets of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchMode {
    /// All belong to existing sessions
    Established,
    /// All create new sessions
    New,
    /// Most belong to existing sessions; as many sessions end as begin
    Mixed,
}

impl BenchMode {
    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            BenchMode::Established => "established",
            BenchMode::New => "new",
            BenchMode::Mixed => "mixed",
        }
    }
}

/// `natrix bench forward`.
#[derive(Debug, Args)]
pub struct BenchForward {
    /// Drivers, one after the other [default: all]
    #[arg(long = "driver", value_enum, value_delimiter = ',', value_name = "DRIVER")]
    pub drivers: Vec<BenchDriver>,
    /// Sessions to hold, all established
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..))]
    pub sessions: u64,
    /// Length of each of the three runs on each driver
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// Skip dpdk-testpmd
    #[arg(long)]
    pub no_testpmd: bool,
    /// Give the far ends of net_memif a CPU of their own, as between two programs
    #[arg(long)]
    pub apart: bool,
    /// Print one JSON object per driver instead of text
    #[arg(long)]
    pub json: bool,
}

/// A driver without hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchDriver {
    /// Rings in the process
    #[value(name = "net_ring")]
    Ring,
    /// Shared memory
    #[value(name = "net_memif")]
    Memif,
    /// Buffers from the pool and back to it
    #[value(name = "net_null")]
    Null,
}

/// `natrix bench stalls`.
#[derive(Debug, Args)]
pub struct BenchStalls {
    /// Established sessions that carry the traffic
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub sessions: u64,
    /// Further sessions, which all end at the same instant
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub ending: u64,
    /// Events, one after the other [default: all]
    #[arg(long = "event", value_enum, value_delimiter = ',', value_name = "EVENT")]
    pub events: Vec<BenchEvent>,
    /// Undisturbed engine time to measure before each event
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// Print one JSON object per event instead of text
    #[arg(long)]
    pub json: bool,
}

/// An event that must not delay packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchEvent {
    /// The configuration changes repeatedly
    Reload,
    /// All sessions are listed
    Dump,
    /// A pool is used up to its last port and stays full
    #[value(name = "pool_full")]
    PoolFull,
    /// Millions of sessions end at the same instant
    Expiry,
    /// All of the above, one after the other
    All,
}

/// `natrix bench scaling`.
#[derive(Debug, Args)]
pub struct BenchScaling {
    /// Total number of sessions
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub sessions: u64,
    /// Workers to compare with one, each on a CPU of its own
    #[arg(long, value_name = "W", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub workers: u8,
    /// Where packets from outside arrive [default: each, one after the other]
    #[arg(long = "arrival", value_enum, value_delimiter = ',', value_name = "ARRIVAL")]
    pub arrivals: Vec<BenchArrival>,
    /// Total length of all turns of one arrangement
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// Seed of the packet order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object per arrival instead of text
    #[arg(long)]
    pub json: bool,
}

/// Where packets from outside arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchArrival {
    /// At the worker that owns them
    Steered,
    /// At another worker, all of them
    Handoff,
}
