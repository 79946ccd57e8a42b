//! The command line: one definition for parsing, help and completions.

use std::net::IpAddr;
use std::net::Ipv6Addr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::Parser;
use clap::Subcommand;
use clap::ValueEnum;
use clap_complete::Shell;
use control::AnyPrefix;
use control::FindAddress;
use control::ParseError;
use control::Prefix;
use control::Prefix6;
use control::Protocol;
use control::RouteSource;
use control::Side;
use control::TcpSegment;

use crate::lab_arguments::LabCommand;
use crate::log_arguments::LogCommand;
use crate::setup_arguments::Doctor;
use crate::setup_arguments::Init;
use crate::setup_arguments::Manual;

/// A carrier-grade NAT in software.
#[derive(Debug, Parser)]
#[command(name = "natrix", version, long_about = None, disable_help_subcommand = true, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a first configuration from what this machine has
    Init(Init),
    /// Check this machine: what stands in the way, each with the command that mends it
    Doctor(Doctor),
    /// Validate a configuration file: every fault with its place, what is wrong and what to do
    Check(Check),
    /// Run the data plane in the foreground
    Run(Run),
    /// Translate captures offline: no privileges, capture time as the clock
    Replay(Replay),
    /// Benchmark the engine and the whole path
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Measure a NAT from outside: Natrix, the kernel's, VPP or any other
    #[command(subcommand)]
    Lab(LabCommand),
    /// Verify, measure and export the store of the event log
    #[command(subcommand)]
    Log(LogCommand),
    /// Make a token for a user of the API: prints it, and the lines for the configuration
    Token(TokenArguments),
    /// The process of the API; natrix run starts it
    #[command(hide = true)]
    Api,
    /// The process for SNMP; natrix run starts it
    #[command(hide = true)]
    Snmp,
    /// Write the manual pages
    #[command(hide = true)]
    Manual(Manual),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Commands for a running instance.
    #[command(flatten)]
    Client(ClientCommand),
}

/// `natrix token`.
#[derive(Debug, Args)]
pub struct TokenArguments {
    /// Name of the user
    #[arg(value_name = "NAME")]
    pub name: String,
    /// What the user may do: view, operate or audit
    #[arg(long, value_name = "ROLE", default_value = "view", value_parser = ["view", "operate", "audit"])]
    pub role: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `natrix check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print one JSON object per fault
    #[arg(long)]
    pub json: bool,
    /// Do not check that the tables fit into the memory of this machine
    #[arg(long)]
    pub any_machine: bool,
}

/// `natrix run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
}

/// `natrix replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// Configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Capture of the packets from inside
    #[arg(long, value_name = "IN.pcap")]
    pub inside: PathBuf,
    /// Capture of the packets from outside
    #[arg(long, value_name = "OUT.pcap")]
    pub outside: PathBuf,
    /// Folder for the captures of translated packets; created if missing
    #[arg(long, value_name = "DIR")]
    pub out_dir: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

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
    /// Folder for the store, which is removed at the end [default: a new one for temporary files]
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

/// Commands for a running instance.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Show the state of the running instance
    #[command(subcommand)]
    Show(Show),
    /// Find the holder of an external (or internal) endpoint
    Find(Find),
    /// Explain what would happen to a packet now, step by step; changes nothing
    Why(Why),
    /// Report what a reload would do: subscribers and mappings that keep, move, drain or end
    Plan(PlanArguments),
    /// Switch to another configuration under traffic
    Reload(NewConfig),
    /// Withdraw the pools from the routing, so that traffic leaves before a stop; or return
    Drain(Drain),
    /// Print packets as they pass, with their verdicts
    Trace(Trace),
    /// Show a dashboard in the terminal
    Top(Top),
    /// Show who changed or looked up what, the latest first
    Audit(Audit),
}

/// `natrix audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
}

/// `natrix plan`.
#[derive(Debug, Args)]
#[group(skip)]
pub struct PlanArguments {
    /// Name up to N affected subscribers, addresses, mappings, flows and port blocks each (max.
    /// 10000)
    #[arg(long, value_name = "N", default_value_t = 0, num_args = 0..=1, default_missing_value = "20")]
    pub details: u32,
    /// Also name as many unchanged mappings, flows and port blocks
    #[arg(long, requires = "details")]
    pub kept: bool,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
    /// The new configuration.
    #[command(flatten)]
    pub target: NewConfig,
}

/// `natrix plan` and `natrix reload`.
#[derive(Debug, Args)]
#[group(skip)]
pub struct NewConfig {
    /// Configuration file; the running instance reads it
    #[arg(short, long, value_name = "FILE", required_unless_present = "rollback", conflicts_with = "rollback")]
    pub config: Option<PathBuf>,
    /// Return to the configuration before the last reload
    #[arg(long)]
    pub rollback: bool,
    /// Socket and output format.
    #[command(flatten)]
    pub output: Output,
}

/// `natrix drain`.
#[derive(Debug, Args)]
pub struct Drain {
    /// Announce the pools again
    #[arg(long, conflicts_with = "wait")]
    pub undo: bool,
    /// Wait up to so many seconds; exit status 1 if something is left
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u32,
    /// What to wait for
    #[arg(long, value_enum, value_name = "STATE", default_value_t = DrainUntil::Empty)]
    pub until: DrainUntil,
    /// Socket and output format.
    #[command(flatten)]
    pub output: Output,
}

/// What `natrix drain --wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DrainUntil {
    /// No session is left
    Empty,
    /// No packet was forwarded for two seconds, whatever sessions are left
    Quiet,
}

/// The control socket.
#[derive(Clone, Debug, Args)]
pub struct Socket {
    /// Control socket of the running instance
    #[arg(long, value_name = "PATH", env = "NATRIX_SOCKET", default_value = control::SOCKET_PATH_DEFAULT)]
    pub socket: PathBuf,
}

/// Socket and output format.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// The control socket.
    #[command(flatten)]
    pub socket: Socket,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `natrix show`.
#[derive(Debug, Subcommand)]
pub enum Show {
    /// Uptime, table use, rates and workers
    Status(ShowStatus),
    /// Interfaces with link state and traffic
    Interfaces(ShowInterfaces),
    /// Pools and how full they are
    Pools(ShowPools),
    /// Subscribers with at least one mapping
    Subscribers(ShowSubscribers),
    /// Mappings: internal and external endpoints
    Mappings(ShowMappings),
    /// Grants: external ports that subscribers asked for by PCP or NAT-PMP
    Grants(ShowGrants),
    /// Application-level gateways: settings, sessions, and what they refused
    Algs(ShowAlgs),
    /// Expectations: external ports that payloads announced
    Expectations(ShowExpectations),
    /// Sessions: mappings and remote endpoints
    Sessions(ShowSessions),
    /// Routes, and which one is used for an address and why
    Routes(ShowRoutes),
    /// Neighbours: Ethernet addresses of next hops
    Neighbours(ShowNeighbours),
    /// Rules of the configuration
    Rules(ShowRules),
    /// All counters
    Counters(ShowCounters),
    /// Dropped packets by reason, most frequent first
    Drops(ShowDrops),
}

/// `natrix show status`.
#[derive(Debug, Args)]
pub struct ShowStatus {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Maximum number of workers to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `natrix show interfaces`.
#[derive(Debug, Args)]
pub struct ShowInterfaces {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Maximum number of interfaces to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// The part of a list.
#[derive(Clone, Debug, Args)]
pub struct Paging {
    /// Maximum number of objects to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Show all
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Continue where an earlier page ended
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
}

/// `natrix show pools`.
#[derive(Debug, Args)]
pub struct ShowPools {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// List external addresses instead of pools
    #[arg(long)]
    pub addresses: bool,
    /// Only this pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Only these external addresses (with --addresses)
    #[arg(long, value_name = "ADDRESS[/LENGTH]", requires = "addresses")]
    pub external: Option<Prefix>,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
}

/// A case, which is one line of plain text.
fn case(text: &str) -> Result<String, String> {
    control::check_case(text).map_err(|fault| format!("it {}; {}", fault.problem, fault.remedy))?;
    Ok(text.to_owned())
}

/// What a lookup is for.
#[derive(Clone, Debug, Default, Args)]
pub struct Case {
    /// Reference of the request, recorded with this lookup in the audit log
    #[arg(long, value_name = "TEXT", value_parser = case)]
    pub case: Option<String>,
}

/// `natrix show subscribers`.
#[derive(Debug, Args)]
pub struct ShowSubscribers {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Internal address or prefix
    #[arg(long, value_name = "ADDRESS[/LENGTH]")]
    pub internal: Option<Prefix>,
    /// External address or prefix
    #[arg(long, value_name = "ADDRESS[/LENGTH]")]
    pub external: Option<Prefix>,
    /// Owner.
    #[command(flatten)]
    pub owner: OwnerFilter,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// Conditions on the owner.
#[derive(Clone, Debug, Args)]
pub struct OwnerFilter {
    /// Name of the pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Name of the VRF
    #[arg(long, value_name = "NAME")]
    pub vrf: Option<String>,
    /// Number of the worker
    #[arg(long, value_name = "N")]
    pub worker: Option<u8>,
    /// IPv6 host, B4 or prefix
    #[arg(long, value_name = "ADDRESS[/LENGTH]")]
    pub host: Option<Prefix6>,
}

/// Conditions on mappings.
#[derive(Clone, Debug, Args)]
pub struct EndpointFilters {
    /// Transport: udp, tcp or icmp
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<Protocol>,
    /// Internal address, prefix or endpoint
    #[arg(long, value_name = "ADDRESS[/LENGTH][:PORT]")]
    pub internal: Option<EndpointFilter>,
    /// External address, prefix or endpoint
    #[arg(long, value_name = "ADDRESS[/LENGTH][:PORT]")]
    pub external: Option<EndpointFilter>,
    /// Internal, external or remote port
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Owner.
    #[command(flatten)]
    pub owner: OwnerFilter,
}

/// `natrix show mappings`.
#[derive(Debug, Args)]
pub struct ShowMappings {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Conditions on endpoints.
    #[command(flatten)]
    pub endpoints: EndpointFilters,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix show grants`.
#[derive(Debug, Args)]
pub struct ShowGrants {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Conditions on endpoints.
    #[command(flatten)]
    pub endpoints: EndpointFilters,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix show algs`.
#[derive(Debug, Args)]
pub struct ShowAlgs {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Name of the gateway
    #[arg(long, value_name = "NAME")]
    pub alg: Option<String>,
    /// Numbers of this worker only
    #[arg(long, value_name = "N")]
    pub worker: Option<u8>,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
}

/// `natrix show expectations`.
#[derive(Debug, Args)]
pub struct ShowExpectations {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Name of the gateway
    #[arg(long, value_name = "NAME")]
    pub alg: Option<String>,
    /// Conditions on endpoints.
    #[command(flatten)]
    pub endpoints: EndpointFilters,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix show sessions`.
#[derive(Debug, Args)]
pub struct ShowSessions {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Conditions on endpoints.
    #[command(flatten)]
    pub endpoints: EndpointFilters,
    /// Remote address, prefix or endpoint
    #[arg(long, value_name = "ADDRESS[/LENGTH][:PORT]")]
    pub remote: Option<EndpointFilter>,
    /// State, as shown in the table
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix show rules`.
#[derive(Debug, Args)]
pub struct ShowRules {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
}

/// `natrix show routes`.
#[derive(Debug, Args)]
pub struct ShowRoutes {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Only routes that cover this address; the one in use is marked
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<IpAddr>,
    /// Only routes with a next hop on this interface
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Only routes from here: connected, static, kernel, excluded, pool, nat64 or softwire
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<RouteSource>,
    /// Only the table of this side: inside or outside
    #[arg(long, value_name = "SIDE")]
    pub side: Option<Side>,
    /// Only the inside table of this VRF
    #[arg(long, value_name = "NAME")]
    pub vrf: Option<String>,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
}

/// `natrix show neighbours`.
#[derive(Debug, Args)]
pub struct ShowNeighbours {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Only this IPv4 or IPv6 address
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<IpAddr>,
    /// Only neighbours on this interface
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Only the cache of this worker
    #[arg(long, value_name = "N")]
    pub worker: Option<u8>,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix show counters`.
#[derive(Debug, Args)]
pub struct ShowCounters {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Show each worker instead of the sums
    #[arg(long)]
    pub per_worker: bool,
    /// Only counters with this text in the name
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Include counters that are zero
    #[arg(long)]
    pub all: bool,
    /// Maximum number of counters to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `natrix show drops`.
#[derive(Debug, Args)]
pub struct ShowDrops {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Include reasons that never occurred
    #[arg(long)]
    pub all: bool,
    /// Maximum number of reasons to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `natrix find`.
#[derive(Debug, Args)]
pub struct Find {
    /// Address, or address and port (or ICMP query identifier), or an IPv6 subscriber:
    /// 2001:db8::7, [2001:db8::7]:40001 or 2001:db8::/56
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub endpoint: AddressAndPort,
    /// Answer for deterministic pools from this file alone, without an instance. With --at: the
    /// configuration of that time, used together with the log
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["cursor", "all"])]
    pub config: Option<PathBuf>,
    /// Only this transport: udp, tcp or icmp
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<Protocol>,
    /// Only internal addresses of this VRF, or holders of an external address in it
    #[arg(long, value_name = "NAME")]
    pub vrf: Option<String>,
    /// Find the holder at this time in the event log: 2026-11-21T19:30:00Z, with an offset such as
    /// +01:00, 2026-11-21 19:30:00 in this machine's zone, or "2 min ago"
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to"])]
    pub at: Option<String>,
    /// Find all holdings from this time on, in the store of the event log
    #[arg(long, value_name = "TIME", requires = "to")]
    pub from: Option<String>,
    /// And until this time
    #[arg(long, value_name = "TIME", requires = "from")]
    pub to: Option<String>,
    /// The event log: one file (its rotated files are included), or several in the order of time
    /// [default: the log of the running instance]
    #[arg(long, value_name = "FILE", requires = "at")]
    pub log: Vec<PathBuf>,
    /// The store of the event log [default: that of the configuration, or of the running instance]
    #[arg(long, value_name = "DIR", conflicts_with = "log")]
    pub dir: Option<PathBuf>,
    /// Reference of the request, recorded with this lookup: in the audit log, or in the store
    #[arg(long, value_name = "TEXT", value_parser = case)]
    pub case: Option<String>,
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
}

/// `natrix why`.
#[derive(Debug, Args)]
pub struct Why {
    /// Transport: udp, tcp or icmp (echo)
    #[arg(value_name = "PROTOCOL")]
    pub protocol: Protocol,
    /// Source, IPv6 in brackets; for icmp the port is the query identifier
    #[arg(value_name = "SRC:PORT", value_parser = why_endpoint)]
    pub source: SocketAddr,
    /// Destination; from an IPv6 source, IPv4 is put behind the first [[nat64]] prefix of the VRF
    #[arg(value_name = "DST:PORT", value_parser = why_endpoint)]
    pub destination: SocketAddr,
    /// The packet comes in the softwire of this B4 (DS-Lite)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "inbound")]
    pub b4: Option<Ipv6Addr>,
    /// The packet arrives from outside
    #[arg(long)]
    pub inbound: bool,
    /// Flags of a TCP segment: syn, syn_ack, ack, fin or rst
    #[arg(long, value_name = "FLAGS")]
    pub segment: Option<TcpSegment>,
    /// Length of the IP packet in bytes [default: the shortest possible]
    #[arg(long, value_name = "BYTES")]
    pub length: Option<u16>,
    /// The packet carries Don't Fragment
    #[arg(long)]
    pub dont_fragment: bool,
    /// Interface it arrives on [default: the first one of its side]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// An endpoint of `natrix why`.
fn why_endpoint(text: &str) -> Result<SocketAddr, ParseError> {
    let expected = "an endpoint such as 10.0.0.2:4000 or [2001:db8::2]:4000";
    text.parse().map_err(|_| ParseError { expected })
}

/// `natrix trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// Also write the frames to this capture file, as received and as sent
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Stop after N packets
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Transport: udp, tcp or icmp
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<Protocol>,
    /// Source or destination address or prefix, before or after translation
    #[arg(long, value_name = "ADDRESS[/LENGTH]")]
    pub address: Option<AnyPrefix>,
    /// Source or destination port, before or after translation
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Interface the packet arrived on
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Only packets with this verdict (see `natrix show counters --all`)
    #[arg(long, value_name = "NAME")]
    pub verdict: Option<String>,
    /// Only dropped packets
    #[arg(long)]
    pub dropped: bool,
    /// Print every decision below its packet
    #[arg(long)]
    pub steps: bool,
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix top`.
#[derive(Debug, Args)]
pub struct Top {
    /// The control socket.
    #[command(flatten)]
    pub socket: Socket,
}

/// `ADDRESS[/LENGTH][:PORT]` or `:PORT`, as a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointFilter {
    /// Addresses that match.
    pub prefix: Option<Prefix>,
    /// Port that matches.
    pub port: Option<u16>,
}

impl FromStr for EndpointFilter {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<EndpointFilter, ParseError> {
        const WRONG: ParseError = ParseError { expected: "10.0.0.2, 10.0.0.0/8, 10.0.0.2:4000 or :4000" };
        let (prefix, port) = match text.split_once(':') {
            Some((prefix, port)) => (prefix, Some(port.parse().map_err(|_| WRONG)?)),
            None => (text, None),
        };
        let prefix = match prefix {
            "" if port.is_some() => None,
            text => Some(text.parse().map_err(|_| WRONG)?),
        };
        Ok(EndpointFilter { prefix, port })
    }
}

/// `ADDRESS[:PORT]`, `IPV6`, `[IPV6]:PORT` or `IPV6/LENGTH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressAndPort {
    /// The address.
    pub address: FindAddress,
    /// The port.
    pub port: Option<u16>,
}

impl FromStr for AddressAndPort {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<AddressAndPort, ParseError> {
        const WRONG: ParseError = ParseError {
            expected: "203.0.113.10, 203.0.113.10:40001, 2001:db8::7, [2001:db8::7]:40001 or 2001:db8::/56",
        };
        if let Ok(prefix) = text.parse() {
            return Ok(AddressAndPort { address: FindAddress::Ipv6(prefix), port: None });
        }
        if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
            let address = address.parse().map_err(|_| WRONG)?;
            return Ok(AddressAndPort {
                address: FindAddress::Ipv6(address),
                port: Some(port.parse().map_err(|_| WRONG)?),
            });
        }
        let (address, port) = match text.split_once(':') {
            Some((address, port)) => (address, Some(port.parse().map_err(|_| WRONG)?)),
            None => (text, None),
        };
        Ok(AddressAndPort { address: FindAddress::Ipv4(address.parse().map_err(|_| WRONG)?), port })
    }
}
