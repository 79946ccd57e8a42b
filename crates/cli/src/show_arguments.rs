//! `natrix show`: its lists, their filters and paging.

use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use clap::Subcommand;
use control::ParseError;
use control::Prefix;
use control::Prefix6;
use control::Protocol;
use control::RouteSource;
use control::Side;

use crate::arguments::Output;

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
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
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
pub(crate) fn case(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it is empty; write the reference, or leave --case out".to_owned());
    }
    control::check_case(text).map_err(|fault| format!("it {}; {}", fault.problem, fault.remedy))?;
    Ok(text.to_owned())
}

/// What a lookup is for.
#[derive(Clone, Debug, Default, Args)]
pub struct Case {
    /// Reference of the request, recorded with this lookup
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
        const WRONG: ParseError = ParseError {
            what: "an IPv4 address, prefix or port",
            expected: "10.0.0.2, 10.0.0.0/8, 10.0.0.2:4000 or :4000 (--host for IPv6)",
        };
        // The colons of an IPv4-mapped IPv6 address are no port.
        if text.matches(':').count() > 1 && !text.starts_with('[') {
            return Ok(EndpointFilter { prefix: Some(text.parse().map_err(|_| WRONG)?), port: None });
        }
        let split = match text.strip_prefix('[') {
            Some(rest) => Some(rest.split_once("]:").ok_or(WRONG)?),
            None => text.split_once(':'),
        };
        let (prefix, port) = match split {
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
