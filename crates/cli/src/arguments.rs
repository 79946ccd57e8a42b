//! The command line: one definition for parsing, help and completions.

use core::fmt;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::net::SocketAddr;
use std::path::Path;
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
use control::Protocol;
use control::TcpSegment;

use crate::bench_arguments::BenchCommand;
use crate::lab_arguments::LabCommand;
use crate::log_arguments::LogCommand;
use crate::setup_arguments::Doctor;
use crate::setup_arguments::Init;
use crate::setup_arguments::Manual;
use crate::show_arguments::Case;
use crate::show_arguments::Paging;
use crate::show_arguments::Show;
use crate::show_arguments::case;

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
    /// Check this machine, and print the command that fixes each problem
    Doctor(Doctor),
    /// Check a configuration file: report every fault with its line, problem and remedy
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
    /// Skip the checks that depend on this machine: CPUs, memory, event log's folder, TLS files
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
    /// Withdraw the pools from the routing, so that traffic leaves before a stop; --undo announces
    /// them again
    Drain(Drain),
    /// Print packets as they pass, with their verdicts
    Trace(Trace),
    /// Show a dashboard in the terminal
    Top(Top),
    /// Show changes and lookups with their users, the latest first
    Audit(Audit),
}

/// `natrix audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// Configuration of an instance that is not running, to read the file it names; by default
    /// /etc/natrix/natrix.toml
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
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
    /// Configuration file; the running instance reads it. Without --socket, this is the instance
    /// at the control socket that the file names, if one listens there
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
    #[arg(long, conflicts_with_all = ["wait", "until"])]
    pub undo: bool,
    /// Wait up to SECONDS (at least 3); exit status 1 if something is left
    // Two seconds without a packet must fit in.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(3..))]
    pub wait: Option<u32>,
    /// What to wait for
    #[arg(long, value_enum, value_name = "STATE", default_value_t = DrainUntil::Empty, requires = "wait")]
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
    /// Control socket of the running instance [default: /run/natrix/control.sock]
    #[arg(long, value_name = "PATH", env = "NATRIX_SOCKET")]
    pub socket: Option<PathBuf>,
}

impl Socket {
    /// The socket that was named, or the default one.
    pub fn path(&self) -> &Path {
        self.socket.as_deref().unwrap_or(Path::new(control::SOCKET_PATH_DEFAULT))
    }
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

/// `natrix find`.
#[derive(Debug, Args)]
pub struct Find {
    /// Address, or address and port (or ICMP query identifier), or an IPv6 subscriber:
    /// 2001:db8::7, [2001:db8::7]:40001 or 2001:db8::/56
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub endpoint: AddressAndPort,
    /// Answer from this file alone, without an instance: deterministic pools, forwards and
    /// one-to-one addresses. With --at: the configuration of that time, used together with the log
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["cursor", "all"])]
    pub config: Option<PathBuf>,
    /// Only this transport: udp, tcp or icmp
    #[arg(long, value_name = "PROTOCOL")]
    pub protocol: Option<Protocol>,
    /// Only internal addresses of this VRF, or holders of an external address in it
    #[arg(long, value_name = "NAME")]
    pub vrf: Option<String>,
    /// Find the holder at this time in the event log: 2026-11-21T19:30:00Z, with an offset such as
    /// +01:00, 2026-11-21 19:30:00 in this machine's zone, or "2 min ago". 21:04:17 means that
    /// whole second, 21:04:17.441 that millisecond
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to"], group = "earlier")]
    pub at: Option<String>,
    /// Find all holdings from this time on, in the store of the event log
    #[arg(long, value_name = "TIME", requires = "to", group = "earlier")]
    pub from: Option<String>,
    /// Until this time, inclusive; without a fraction, to the end of that second
    #[arg(long, value_name = "TIME", requires = "from")]
    pub to: Option<String>,
    /// With --at or --from: only flows towards this remote endpoint, as a server logs it. Where
    /// flows share an external port, only this shows which subscriber it was. Holders whose
    /// destination was not recorded are listed, too, with a note
    #[arg(long, value_name = "ADDRESS[:PORT]", requires = "earlier")]
    pub remote: Option<Remote>,
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

impl Find {
    /// The question, without pages.
    pub fn question(&self) -> control::Find {
        let AddressAndPort { address, port } = self.endpoint;
        control::Find { address, port, protocol: self.protocol, vrf: self.vrf.clone(), limit: None, cursor: None }
    }
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
    /// VRF of a packet from inside [default: that of the interface]
    #[arg(long, value_name = "NAME", conflicts_with = "inbound")]
    pub vrf: Option<String>,
    /// Output.
    #[command(flatten)]
    pub output: Output,
    /// What it is for.
    #[command(flatten)]
    pub case: Case,
}

/// An endpoint of `natrix why`.
fn why_endpoint(text: &str) -> Result<SocketAddr, ParseError> {
    let wrong = ParseError { what: "an address with a port", expected: "10.0.0.2:4000 or [2001:db8::2]:4000" };
    text.parse().map_err(|_| wrong)
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
            what: "an address",
            expected: "203.0.113.10, 203.0.113.10:40001, 2001:db8::7, [2001:db8::7]:40001 or 2001:db8::/56",
        };
        if let Ok(address) = text.parse() {
            return Ok(AddressAndPort { address, port: None });
        }
        if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
            let address = Some(address).filter(|address| address.contains(':')).and_then(|text| text.parse().ok());
            return Ok(AddressAndPort { address: address.ok_or(WRONG)?, port: Some(port.parse().map_err(|_| WRONG)?) });
        }
        let (address, port) = text.split_once(':').ok_or(WRONG)?;
        let (address, port) = (address.parse().map_err(|_| WRONG)?, port.parse().map_err(|_| WRONG)?);
        Ok(AddressAndPort { address: FindAddress::Ipv4(address), port: Some(port) })
    }
}

/// The address of a remote host, or its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its address. Outside is IPv4.
    pub address: Ipv4Addr,
    /// Its port; None for all.
    pub port: Option<u16>,
}

impl FromStr for Remote {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Remote, ParseError> {
        const WRONG: ParseError = ParseError { what: "an IPv4 address", expected: "198.51.100.7 or 198.51.100.7:443" };
        match text.parse() {
            Ok(AddressAndPort { address: FindAddress::Ipv4(address), port }) => Ok(Remote { address, port }),
            _ => Err(WRONG),
        }
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FindAddress::Ipv4(self.address).with_port(self.port).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show_arguments::EndpointFilter;

    #[test]
    fn a_remote_endpoint_is_ipv4_and_needs_an_earlier_time() {
        let of = |text: &str| text.parse::<Remote>().map(|remote| remote.to_string());
        for (text, plain) in [
            ("198.51.100.7", "198.51.100.7"),
            ("198.51.100.7:443", "198.51.100.7:443"),
            ("::ffff:198.51.100.7", "198.51.100.7"),
            ("[::ffff:198.51.100.7]:443", "198.51.100.7:443"),
        ] {
            assert_eq!(of(text).ok().as_deref(), Some(plain), "{text}");
        }
        for text in ["2001:db8::7", "198.51.100.0/24", ":443", "198.51.100.7:", "example.com:443"] {
            assert!(of(text).is_err(), "{text}");
        }
        let parsed = |more: &[&str]| {
            let words = ["natrix", "find", "203.0.113.7:41233", "--remote", "198.51.100.7:443"];
            crate::try_parse_from(words.iter().chain(more)).is_ok()
        };
        assert!(!parsed(&[]));
        assert!(parsed(&["--at", "now"]) && parsed(&["--from", "1 h ago", "--to", "now"]));
        assert!(!parsed(&["--at", "now", "--from", "1 h ago", "--to", "now"]));
    }

    #[test]
    fn an_ipv4_mapped_address_means_the_ipv4_address() {
        let of = |text: &str| text.parse::<AddressAndPort>();
        for (mapped, plain) in [
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("::ffff:cb00:7107", "203.0.113.7"),
            ("0:0:0:0:0:ffff:203.0.113.7", "203.0.113.7"),
            ("::ffff:203.0.113.7/128", "203.0.113.7"),
            ("[::ffff:203.0.113.7]:41233", "203.0.113.7:41233"),
        ] {
            assert_eq!(of(mapped), of(plain), "{mapped}");
            assert!(matches!(of(mapped), Ok(AddressAndPort { address: FindAddress::Ipv4(_), .. })), "{mapped}");
        }
        // IPv4 prefixes are not asked for.
        for text in ["::ffff:203.0.113.0/120", "[::ffff:203.0.113.0/120]:5", "[203.0.113.7]:5", "203.0.113.0/24"] {
            assert!(of(text).is_err(), "{text}");
        }
        let of = |text: &str| text.parse::<EndpointFilter>();
        for (mapped, plain) in [
            ("::ffff:10.0.0.2", "10.0.0.2"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("[::ffff:10.0.0.2]:4000", "10.0.0.2:4000"),
        ] {
            assert_eq!(of(mapped), of(plain), "{mapped}");
            assert!(of(mapped).is_ok(), "{mapped}");
        }
        assert!(of("[::ffff:10.0.0.2]").is_err() && of("2001:db8::2").is_err());
    }
}
