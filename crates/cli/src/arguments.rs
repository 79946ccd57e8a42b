//! The command line: one definition gives parsing, help and completions.

use std::net::Ipv4Addr;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::Parser;
use clap::Subcommand;
use clap::ValueEnum;
use clap_complete::Shell;
use control::ParseError;
use control::Prefix;
use control::Protocol;
use control::TcpSegment;

use crate::lab_arguments::LabCommand;

/// A carrier-grade NAT in software.
#[derive(Debug, Parser)]
#[command(name = "natrix", version, about, long_about = None, disable_help_subcommand = true, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Validate a configuration file: every fault with its place, what is wrong and what to do
    Check(Check),
    /// Run the data plane in the foreground
    Run(Run),
    /// Translate captures offline: no privileges, capture time as the clock
    Replay(Replay),
    /// Benchmarks of the engine and of the whole path
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Measure a NAT from outside: this one, the kernel's
    #[command(subcommand)]
    Lab(LabCommand),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// The commands that ask a running instance.
    #[command(flatten)]
    Client(ClientCommand),
}

/// `natrix check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// One JSON object per fault
    #[arg(long)]
    pub json: bool,
    /// Do not ask whether its tables fit the memory this machine has available now
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
    /// Capture of what arrives from inside
    #[arg(long, value_name = "IN.pcap")]
    pub inside: PathBuf,
    /// Capture of what arrives from outside
    #[arg(long, value_name = "OUT.pcap")]
    pub outside: PathBuf,
    /// Folder for what leaves, made when missing
    #[arg(long, value_name = "DIR")]
    pub out_dir: PathBuf,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The whole engine on frames in memory
    Engine(BenchEngine),
    /// The whole path through DPDK drivers, beside plain forwarding and dpdk-testpmd
    Forward(BenchForward),
    /// Data structures for NAT tables, side by side
    Tables(BenchTables),
    /// The rule search, beside a linear one
    Rules(BenchRules),
    /// Burst times of the engine while tables are listed, a pool runs full, or millions of sessions end at once
    Stalls(BenchStalls),
    /// What further workers bring, with packets that arrive at their owner and with packets that must be handed off
    Scaling(BenchScaling),
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
    /// How external ports are given out: one by one, or in blocks of 64
    #[arg(long, value_enum, default_value_t = BenchAllocation::Ports)]
    pub allocation: BenchAllocation,
    /// Workers, one thread each
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Length of the timed part
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// What becomes of the events: there are none, a thread takes and forgets them, or one makes lines of them
    #[arg(long, value_enum, default_value_t = BenchEvents::Nowhere)]
    pub events: BenchEvents,
    /// Packet filters, all of which let the traffic pass
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub filters: u32,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// What becomes of the events of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchEvents {
    /// There are none
    Nowhere,
    /// A thread takes them and forgets them
    Discarded,
    /// A thread makes lines of them and writes these to /dev/null
    Written,
}

/// `natrix bench rules`.
#[derive(Debug, Args)]
pub struct BenchRules {
    /// Rules
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(6..=10_000_000))]
    pub rules: u32,
    /// Length of each timed part
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub seconds: f64,
    /// Seed of the rules, the packets and the changes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix bench tables`.
#[derive(Debug, Args)]
pub struct BenchTables {
    /// Sessions, all of them new and then all answered; several sizes with commas between
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
    /// Sessions a cell in the hash tables of the study: chain, chain-tree, bucket2, bucket3
    #[arg(long, value_name = "L", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub load: u32,
    /// Length of each timed part at least: small sets are repeated; 0 measures once
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,
    /// Seed of the flows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Also write the results as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Also write results (tables.csv) and plots (SVG) into this folder, made when missing
    #[arg(long, value_name = "DIR")]
    pub out_dir: Option<PathBuf>,
    /// One JSON object a result instead of text
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

/// How ports are given out in a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchAllocation {
    /// Each mapping takes any free port
    Ports,
    /// Subscribers lease blocks of 64 ports
    Blocks,
}

/// What the packets of a benchmark do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchMode {
    /// All belong to sessions that exist
    Established,
    /// All make new sessions
    New,
    /// Most belong to sessions that exist; as many sessions end as begin
    Mixed,
}

impl BenchMode {
    /// The word of the command line and of JSON.
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
    /// How long each of the three runs on each driver
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// Leave out dpdk-testpmd
    #[arg(long)]
    pub no_testpmd: bool,
    /// One JSON object per driver instead of text
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
    /// Buffers out of the pool and back into it
    #[value(name = "net_null")]
    Null,
}

/// `natrix bench stalls`.
#[derive(Debug, Args)]
pub struct BenchStalls {
    /// Established sessions, which the traffic belongs to
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub sessions: u64,
    /// Further sessions, which all end at one instant
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub ending: u64,
    /// What happens, one after the other [default: all]
    #[arg(long = "event", value_enum, value_delimiter = ',', value_name = "EVENT")]
    pub events: Vec<BenchEvent>,
    /// How much of the engine's time to measure undisturbed before each event
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// One JSON object per event instead of text
    #[arg(long)]
    pub json: bool,
}

/// Something that must not delay packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchEvent {
    /// The configuration changes, again and again
    Reload,
    /// All sessions are listed
    Dump,
    /// A pool runs full to its last port, and stays so
    #[value(name = "pool_full")]
    PoolFull,
    /// Millions of sessions end at one instant
    Expiry,
    /// Each of the others
    All,
}

/// `natrix bench scaling`.
#[derive(Debug, Args)]
pub struct BenchScaling {
    /// Sessions in all
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub sessions: u64,
    /// Workers to set beside one, each on a CPU of its own
    #[arg(long, value_name = "W", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    pub workers: u8,
    /// Where packets from outside arrive [default: each, one after the other]
    #[arg(long = "arrival", value_enum, value_delimiter = ',', value_name = "ARRIVAL")]
    pub arrivals: Vec<BenchArrival>,
    /// Length of all turns of one arrangement together
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// Seed of the order in which packets come
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One JSON object per arrival instead of text
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

/// Commands that ask a running instance.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Show the state of the running instance
    #[command(subcommand)]
    Show(Show),
    /// Who holds this external (or internal) endpoint
    Find(Find),
    /// What would happen to this packet now, step by step, changing nothing
    Why(Why),
    /// What a reload would do to the running instance: subscribers and mappings that keep, move, drain or end
    Plan(PlanArguments),
    /// Go over to another configuration while traffic flows
    Reload(NewConfig),
    /// Packets as they pass, with what became of them
    Trace(Trace),
    /// Dashboard in the terminal
    Top(Top),
}

/// `natrix plan`.
#[derive(Debug, Args)]
#[group(skip)]
pub struct PlanArguments {
    /// Name so many affected subscribers, external addresses, mappings, flows and port blocks at most, of each (10000 at most)
    #[arg(long, value_name = "N", default_value_t = 0, num_args = 0..=1, default_missing_value = "20")]
    pub details: u32,
    /// Name also so many mappings, flows and port blocks that nothing happens to
    #[arg(long, requires = "details")]
    pub kept: bool,
    /// What to go over to.
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
    /// Back to what was in force before the last reload
    #[arg(long)]
    pub rollback: bool,
    /// Socket and form of the output.
    #[command(flatten)]
    pub output: Output,
}

/// Where the running instance listens.
#[derive(Clone, Debug, Args)]
pub struct Socket {
    /// Control socket of the running instance
    #[arg(long, value_name = "PATH", env = "NATRIX_SOCKET", default_value = control::SOCKET_PATH_DEFAULT)]
    pub socket: PathBuf,
}

/// Socket and form of the output.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Where the instance listens.
    #[command(flatten)]
    pub socket: Socket,
    /// JSON, one object per line
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
    /// Sessions: mappings and remote endpoints
    Sessions(ShowSessions),
    /// Rules of the configuration
    Rules(ShowRules),
    /// All counters
    Counters(ShowCounters),
    /// Packets dropped, by reason, most frequent first
    Drops(ShowDrops),
}

/// `natrix show status`.
#[derive(Debug, Args)]
pub struct ShowStatus {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Most workers to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `natrix show interfaces`.
#[derive(Debug, Args)]
pub struct ShowInterfaces {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Most interfaces to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// How much of a list.
#[derive(Clone, Debug, Args)]
pub struct Paging {
    /// Most objects to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Show all, however many
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Go on where an earlier page ended
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
}

/// `natrix show pools`.
#[derive(Debug, Args)]
pub struct ShowPools {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Each external address instead of each pool
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
}

/// Which owner.
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
}

/// Which mappings.
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
    /// Which.
    #[command(flatten)]
    pub endpoints: EndpointFilters,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
}

/// `natrix show sessions`.
#[derive(Debug, Args)]
pub struct ShowSessions {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Which.
    #[command(flatten)]
    pub endpoints: EndpointFilters,
    /// Remote address, prefix or endpoint
    #[arg(long, value_name = "ADDRESS[/LENGTH][:PORT]")]
    pub remote: Option<EndpointFilter>,
    /// State, as the table shows it
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Paging.
    #[command(flatten)]
    pub paging: Paging,
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

/// `natrix show counters`.
#[derive(Debug, Args)]
pub struct ShowCounters {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Each worker by itself instead of the sums
    #[arg(long)]
    pub per_worker: bool,
    /// Only counters with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Counters that are zero too
    #[arg(long)]
    pub all: bool,
    /// Most counters to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `natrix show drops`.
#[derive(Debug, Args)]
pub struct ShowDrops {
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// Reasons that never occurred too
    #[arg(long)]
    pub all: bool,
    /// Most reasons to show
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// `natrix find`.
#[derive(Debug, Args)]
pub struct Find {
    /// Address, or address and port (or ICMP query identifier)
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub endpoint: AddressAndPort,
    /// Answer from this configuration alone, for deterministic pools; no instance is asked. With --at: the configuration of that
    /// time, whose formulas are asked besides the log
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["cursor", "all"])]
    pub config: Option<PathBuf>,
    /// Only this transport: udp, tcp or icmp
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<Protocol>,
    /// Only internal addresses of this VRF, and of an external address only holders in it
    #[arg(long, value_name = "NAME")]
    pub vrf: Option<String>,
    /// Who had it at this time, such as 2026-11-21T19:30:00Z, by the records of the event log
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// The event log: one file (with those it was before it was rotated), or several in the order of time. Without it, that of
    /// the running instance
    #[arg(long, value_name = "FILE", requires = "at")]
    pub log: Vec<PathBuf>,
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
    /// Source; for icmp the port is the query identifier
    #[arg(value_name = "SRC:PORT")]
    pub source: SocketAddrV4,
    /// Destination
    #[arg(value_name = "DST:PORT")]
    pub destination: SocketAddrV4,
    /// The packet comes from outside
    #[arg(long)]
    pub inbound: bool,
    /// Flags of a TCP segment: syn, syn_ack, ack, fin or rst
    #[arg(long, value_name = "FLAGS")]
    pub segment: Option<TcpSegment>,
    /// Length of the IP packet in bytes; the shortest possible when absent
    #[arg(long, value_name = "BYTES")]
    pub length: Option<u16>,
    /// The packet carries Don't Fragment
    #[arg(long)]
    pub dont_fragment: bool,
    /// Interface it arrives on; the first one of its side when absent
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Output.
    #[command(flatten)]
    pub output: Output,
}

/// `natrix trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// Write the frames to this capture file too: each as it came and as it left
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// End after so many packets
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Transport: udp, tcp or icmp
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<Protocol>,
    /// Source or destination address or prefix, before or after translation
    #[arg(long, value_name = "ADDRESS[/LENGTH]")]
    pub address: Option<Prefix>,
    /// Source or destination port, before or after translation
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Interface the packet arrived on
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Only packets with this verdict (see `natrix show counters --all`)
    #[arg(long, value_name = "NAME")]
    pub verdict: Option<String>,
    /// Only packets that were dropped
    #[arg(long)]
    pub dropped: bool,
    /// Every decision under its packet
    #[arg(long)]
    pub steps: bool,
    /// Output.
    #[command(flatten)]
    pub output: Output,
}

/// `natrix top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Where the instance listens.
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

/// `ADDRESS[:PORT]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressAndPort {
    /// The address.
    pub address: Ipv4Addr,
    /// The port.
    pub port: Option<u16>,
}

impl FromStr for AddressAndPort {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<AddressAndPort, ParseError> {
        const WRONG: ParseError = ParseError { expected: "203.0.113.10 or 203.0.113.10:40001" };
        let (address, port) = match text.split_once(':') {
            Some((address, port)) => (address, Some(port.parse().map_err(|_| WRONG)?)),
            None => (text, None),
        };
        Ok(AddressAndPort { address: address.parse().map_err(|_| WRONG)?, port })
    }
}
