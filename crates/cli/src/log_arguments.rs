//! The command line of `natrix log`.

use std::path::PathBuf;

use clap::Args;
use clap::Subcommand;
use clap::ValueEnum;

use crate::arguments::Socket;
use crate::show_arguments::Case;

/// `natrix log`.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Report what a store has: records, mappings, bytes a mapping, bytes a day
    Stat(LogStat),
    /// Verify a store: the chain, its signed head, every segment, every sequence number
    Verify(LogVerify),
    /// Print the signed head of the chain, to keep elsewhere
    Head(LogHead),
    /// Write the intervals of a time to a file
    Export(LogExport),
    /// Make a synthetic store through the real writer, for sizing and tests
    Generate(LogGenerate),
    /// Estimate the bytes a day and a year that a store needs
    Size(LogSize),
}

/// The store.
#[derive(Clone, Debug, Args)]
pub struct LogDir {
    /// Folder of the store [default: that of the running instance]
    #[arg(long, value_name = "DIR", env = "NATRIX_LOG_STORE")]
    pub dir: Option<PathBuf>,
    /// Socket of the instance.
    #[command(flatten)]
    pub socket: Socket,
}

/// `natrix log stat`.
#[derive(Debug, Args)]
pub struct LogStat {
    /// The store.
    #[command(flatten)]
    pub store: LogDir,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix log verify`.
#[derive(Debug, Args)]
pub struct LogVerify {
    /// The store.
    #[command(flatten)]
    pub store: LogDir,
    /// Also verify that nothing up to this exported head was cut off or rewritten
    #[arg(long, value_name = "FILE")]
    pub head: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix log head`.
#[derive(Debug, Args)]
pub struct LogHead {
    /// The store.
    #[command(flatten)]
    pub store: LogDir,
    /// The signing key [default: the key in the store]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// `natrix log export`.
#[derive(Debug, Args)]
pub struct LogExport {
    /// The store.
    #[command(flatten)]
    pub store: LogDir,
    /// Format of the file
    #[arg(long, value_enum, default_value_t = LogFormat::Json)]
    pub format: LogFormat,
    /// Intervals held at this time or later, such as 2026-11-21T19:30:00Z
    #[arg(long, value_name = "TIME")]
    pub from: String,
    /// Intervals held at this time or earlier
    #[arg(long, value_name = "TIME")]
    pub to: String,
    /// The file; - for standard output, but not for Parquet
    #[arg(long, value_name = "PATH")]
    pub output: PathBuf,
    /// Observation domain of IPFIX messages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub domain: u32,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line
    Json,
    /// Apache Parquet, for analytical engines
    Parquet,
    /// IPFIX messages (RFC 7011, RFC 5655): two records an interval, its beginning and its end
    Ipfix,
}

/// `natrix log generate`.
#[derive(Debug, Args)]
#[group(skip)]
pub struct LogGenerate {
    /// Folder of the new store
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Number of mappings
    #[arg(long, value_name = "N", required_unless_present = "leases", conflicts_with = "leases")]
    pub mappings: Option<u64>,
    /// Number of leases of port blocks
    #[arg(long, value_name = "N")]
    pub leases: Option<u64>,
    /// Seed of the events
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix log size`.
#[derive(Debug, Args)]
pub struct LogSize {
    /// Number of subscribers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub subscribers: u64,
    /// How external ports are allocated
    #[arg(long, value_enum)]
    pub allocation: LogAllocation,
    /// Mappings, or leases of blocks, that a subscriber makes a day [default: 15000 mappings, 6
    /// leases]
    #[arg(long, value_name = "N")]
    pub per_day: Option<u64>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Allocation of external ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogAllocation {
    /// Blocks of ports: one record a block
    Blocks,
    /// Single ports: one record a mapping
    Ports,
}
