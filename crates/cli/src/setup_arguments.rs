//! Arguments of the commands that prepare a machine: `init`, `doctor`, `manual`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::Args;
use control::Prefix;

/// `natrix init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Interface towards the subscribers: a name of the kernel, or a PCI address
    #[arg(long, value_name = "NAME")]
    pub inside: Option<String>,
    /// Interface towards the Internet
    #[arg(long, value_name = "NAME")]
    pub outside: Option<String>,
    /// External addresses that subscribers share
    #[arg(long, value_name = "ADDRESS[/LENGTH]", value_delimiter = ',')]
    pub pool: Vec<Prefix>,
    /// Own address inside; without it: the address of the interface
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    pub inside_address: Option<String>,
    /// Own address outside; without it: the address of the interface
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    pub outside_address: Option<String>,
    /// Next hop to the Internet; without it: that of the kernel's default route
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Option<Ipv4Addr>,
    /// Addresses of subscribers; without it: the inside network. Needed with --inside-gateway
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    pub subscribers: Vec<Prefix>,
    /// Router towards subscribers that are not on the inside network
    #[arg(long, value_name = "ADDRESS")]
    pub inside_gateway: Option<Ipv4Addr>,
    /// File to write; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "/etc/natrix/natrix.toml")]
    pub output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
}

/// `natrix doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Also check what this configuration needs
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object per check
    #[arg(long)]
    pub json: bool,
}

/// `natrix manual`.
#[derive(Debug, Args)]
pub struct Manual {
    /// Folder for the pages; created if missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
