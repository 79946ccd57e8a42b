//! `natrix lab`: the tester.

use core::str::FromStr;
use std::path::PathBuf;

use clap::Args;
use clap::Subcommand;
use clap::ValueEnum;

/// Measures a NAT from outside.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Build the test hosts in network namespaces and leave them
    Up,
    /// Remove the test hosts
    Down,
    /// Highest rate without loss over established connections (RFC 9693 §4.6)
    Throughput(LabTest),
    /// Loss at ten rates up to the highest (RFC 8219 §7.4)
    Loss(LabTest),
    /// Delay and its variation at one rate (RFC 8219 §7.2, §7.3)
    Latency(LabLatency),
    /// Highest rate of new connections, each of them validated (RFC 9693 §4.5)
    Cps(LabCps),
    /// Number of connections the table can hold (RFC 9693 §4.9)
    Capacity(LabCapacity),
    /// Connections deleted per second (RFC 9693 §4.8)
    Teardown(LabTest),
    /// Find a device's behaviour from outside: mapping, filtering, ports, timers and more
    Probe(LabProbe),
    /// Measure the tester itself, with nothing between its two ports
    Ceiling(LabCeiling),
    /// Share the load of one router between several NATs by OSPF, and drain and kill one of them
    Sharing(LabSharing),
    /// Pass frames between two ports unchanged until standard input ends: the far end of the
    /// tester's loopback over vhost-user
    #[command(hide = true)]
    Join(LabJoin),
    /// Repeat a published experiment, and show the paper's own figures beside ours
    Study(LabStudy),
    /// Write results as one HTML file
    Report(LabReport),
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabDevice {
    /// This binary
    Natrix,
    /// The kernel's NAT, by nf_tables
    Netfilter,
    /// The `vpp` found on the path with its plugin nat44-ed, over memif
    Vpp,
    /// Any other device; start it and connect it to --inside and --outside yourself
    External,
}

/// How tester and device are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabTransport {
    /// Virtual Ethernet pairs, AF_XDP sockets
    AfXdp,
    /// Virtual Ethernet pairs, packet sockets
    AfPacket,
    /// Shared memory, net_memif on both sides; not for netfilter
    Memif,
    /// Shared memory, net_vhost at the tester and net_virtio_user at the device; not for netfilter
    VhostUser,
}

/// How a device on the test hosts' virtual Ethernet pairs is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabPairs {
    /// Virtual Ethernet pairs, AF_XDP sockets
    AfXdp,
    /// Virtual Ethernet pairs, packet sockets
    AfPacket,
}

impl From<LabPairs> for LabTransport {
    fn from(pairs: LabPairs) -> LabTransport {
        match pairs {
            LabPairs::AfXdp => LabTransport::AfXdp,
            LabPairs::AfPacket => LabTransport::AfPacket,
        }
    }
}

/// What the connections of a test are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabProtocol {
    /// The first datagram makes a connection
    Udp,
    /// A handshake of three segments makes a connection
    Tcp,
}

/// What the subscribers of a device are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LabFamily {
    /// IPv4 hosts
    #[default]
    Nat44,
    /// IPv6 hosts that reach IPv4 by NAT64; the tester is their CLAT
    Nat64,
    /// IPv4 hosts in softwires of DS-Lite; the tester is their B4s
    Dslite,
}

/// How rules are written for a device that has several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabRules {
    /// One rule after the other
    List,
    /// One rule with a set of addresses
    Set,
    /// One rule with a map of addresses
    Map,
    /// One masquerade rule: all share the address of the outside interface, as on home routers
    Masquerade,
}

/// How a device gives out ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabAllocation {
    /// Any free port for each mapping
    Ports,
    /// Blocks of ports for each subscriber
    Blocks,
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabPorts {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl FromStr for LabPorts {
    type Err = String;

    fn from_str(text: &str) -> Result<LabPorts, String> {
        let range = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match range {
            Some((first, last)) if 0 < first && first <= last => Ok(LabPorts { first, last }),
            _ => Err("give FIRST-LAST, ports from 1 to 65535".to_owned()),
        }
    }
}

/// Which way the frames of phase 2 go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabDirection {
    /// Both ways at once
    Both,
    /// From the Initiator to the Responder
    Outbound,
    /// From the Responder to the Initiator
    Inbound,
}

/// Frame sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabFrames {
    /// All frames have this many bytes.
    Fixed(u16),
    /// The simple Internet mix.
    Imix,
}

impl FromStr for LabFrames {
    type Err = String;

    fn from_str(text: &str) -> Result<LabFrames, String> {
        if text == "imix" {
            return Ok(LabFrames::Imix);
        }
        match text.parse() {
            Ok(bytes @ 64..=1518) => Ok(LabFrames::Fixed(bytes)),
            _ => Err("give a number of 64 to 1518, or imix".to_owned()),
        }
    }
}

/// Parameters of a test.
#[derive(Clone, Debug, Args)]
pub struct LabTest {
    /// The device under test
    #[arg(long, value_enum, default_value_t = LabDevice::Natrix)]
    pub dut: LabDevice,
    /// How tester and device are connected [default: af-xdp; for vpp memif]
    #[arg(long, value_enum)]
    pub transport: Option<LabTransport>,
    /// What makes a connection; with tcp, a handshake, followed by data within its window
    #[arg(long, value_enum, default_value_t = LabProtocol::Udp)]
    pub protocol: LabProtocol,
    /// What is inside; frames are longer there by 20 bytes with nat64, 40 with dslite. For natrix
    /// and external
    #[arg(long, value_enum, default_value_t = LabFamily::Nat44)]
    pub family: LabFamily,
    /// Connections (RFC 9693: N)
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    pub sessions: u64,
    /// Remote endpoints per inside endpoint: if the device maps endpoint-independently, they share
    /// a mapping
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub remotes: u32,
    /// External addresses of the device
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub external_addresses: u32,
    /// External ports of each of these addresses
    #[arg(long, value_name = "FIRST-LAST", default_value = "1024-65535")]
    pub dut_ports: LabPorts,
    /// Translation rules of the device, each for one inside address; all these addresses send the
    /// same traffic. 0: one rule for all
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_533))]
    pub rules: u32,
    /// How rules and filters are written for netfilter
    #[arg(long, value_enum, default_value_t = LabRules::Map)]
    pub rules_kind: LabRules,
    /// Packet filters of the device that match none of the traffic
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub filters: u32,
    /// How natrix allocates ports
    #[arg(long, value_enum, default_value_t = LabAllocation::Ports)]
    pub allocation: LabAllocation,
    /// Frame size in bytes with the check sequence, 64 to 1518, or `imix`: seven of twelve frames
    /// have 64, four have 594, one has 1518
    #[arg(long, value_name = "BYTES|imix", default_value = "64")]
    pub frame_bytes: LabFrames,
    /// Rate at which a test makes the connections it needs, frames per second; choose it well below
    /// the device's limit
    #[arg(long, value_name = "R", default_value_t = 20_000.0)]
    pub preparation_rate: f64,
    /// Rate of the validation, relative to that of the new connections (RFC 9693: alpha)
    #[arg(long, default_value_t = 0.8)]
    pub alpha: f64,
    /// Length of a trial over established connections, seconds [default: 2, with --quick 0.5]; RFC
    /// 2544 asks for 60
    #[arg(long, value_name = "S")]
    pub trial_seconds: Option<f64>,
    /// Lowest rate of the search, frames per second
    #[arg(long, value_name = "R", default_value_t = 1_000.0)]
    pub rate_min: f64,
    /// Highest rate of the search [default: 2000000, over shared memory 20000000]
    #[arg(long, value_name = "R")]
    pub rate_max: Option<f64>,
    /// Interval at which the search ends, frames per second (RFC 9693: error) [default: a
    /// thousandth of the highest rate, with --quick a fortieth]
    #[arg(long, value_name = "R")]
    pub error: Option<f64>,
    /// Number of repetitions [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Direction of the frames over established connections
    #[arg(long, value_enum, default_value_t = LabDirection::Both)]
    pub direction: LabDirection,
    /// Seed of all pseudorandom orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU of the tester [default: the first that natrix may use and the device does not]
    #[arg(long, value_name = "CPU")]
    pub tester_cpu: Option<u8>,
    /// CPUs of the device, separated by commas; natrix runs a worker on each [default: the first
    /// that natrix may use and the tester does not]
    #[arg(long, visible_alias = "device-cpu", value_name = "LIST", value_delimiter = ',')]
    pub device_cpus: Vec<u8>,
    /// With --dut external: the tester's inside port, a kernel interface, a PCI address or a DPDK
    /// device with its arguments
    #[arg(long, value_name = "PORT")]
    pub inside: Option<String>,
    /// The tester's outside port
    #[arg(long, value_name = "PORT")]
    pub outside: Option<String>,
    /// Arguments to add to the device strings of the tester's driver, such as busy_budget=0
    #[arg(long, value_name = "LIST")]
    pub tester_arguments: Option<String>,
    /// Arguments to add to the device strings of the device's driver
    #[arg(long, value_name = "LIST")]
    pub device_arguments: Option<String>,
    /// Shell command that empties the device's table
    #[arg(long, value_name = "COMMAND")]
    pub empty_command: Option<String>,
    /// Description of the device, for the result
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub described: String,
    /// One repetition, short trials and a coarse search, for a first look; options you set still
    /// count
    #[arg(long)]
    pub quick: bool,
    /// Skip the measurement of the tester itself, with nothing between its ports
    #[arg(long)]
    pub no_ceiling: bool,
    /// Read the tester's own ceiling from this file if it was measured within the last hour with
    /// the same transport, frames and CPUs; otherwise measure it and write it there
    #[arg(long, value_name = "FILE", conflicts_with = "no_ceiling")]
    pub ceiling_file: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Also write the JSON object into this file
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl LabTest {
    /// How tester and device are connected.
    pub fn transport(&self) -> LabTransport {
        let default = if self.dut == LabDevice::Vpp { LabTransport::Memif } else { LabTransport::AfXdp };
        self.transport.unwrap_or(default)
    }
}

/// `natrix lab cps`.
#[derive(Debug, Args)]
pub struct LabCps {
    /// Parameters of every test.
    #[command(flatten)]
    pub test: LabTest,
    /// With --protocol tcp: both ends close each connection as soon as it is established, seven
    /// segments in all; nothing is validated then
    #[arg(long)]
    pub tcp_close: bool,
}

/// `natrix lab ceiling`.
#[derive(Debug, Args)]
pub struct LabCeiling {
    /// Parameters of every test.
    #[command(flatten)]
    pub test: LabTest,
    /// With --protocol tcp: make handshakes instead of sending data; the tester is both ends
    #[arg(long)]
    pub handshakes: bool,
    /// With --handshakes: both ends close each connection as soon as it is established
    #[arg(long, requires = "handshakes")]
    pub tcp_close: bool,
}

/// `natrix lab join`.
#[derive(Debug, Args)]
pub struct LabJoin {
    /// Both ports, as DPDK devices with their arguments
    #[arg(num_args = 2, value_name = "PORT", required = true)]
    pub ports: Vec<String>,
}

/// `natrix lab latency`.
#[derive(Debug, Args)]
pub struct LabLatency {
    /// Parameters of every test.
    #[command(flatten)]
    pub test: LabTest,
    /// Frames per second, both directions together
    #[arg(long, value_name = "R", default_value_t = 20_000.0)]
    pub rate: f64,
    /// Measure the packets that make new connections (phase 1) instead of those of established ones
    #[arg(long)]
    pub first_packet: bool,
}

/// `natrix lab capacity`.
#[derive(Debug, Args)]
pub struct LabCapacity {
    /// Parameters of every test.
    #[command(flatten)]
    pub test: LabTest,
    /// Number of connections that the table can certainly hold (RFC 9693: C0)
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub c0: u64,
    /// Fraction of the rate below which the doubling ends (RFC 9693: beta)
    #[arg(long, default_value_t = 0.1)]
    pub beta: f64,
    /// Fraction of the rate below which the halving goes down (RFC 9693: gamma)
    #[arg(long, default_value_t = 0.5)]
    pub gamma: f64,
    /// Allowed error of the capacity (RFC 9693: E)
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub capacity_error: u64,
    /// Number of connections the device is configured for
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub room: u64,
}

/// The device whose behaviour is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabProbed {
    /// This binary
    Natrix,
    /// The kernel's NAT, by nf_tables
    Netfilter,
    /// Any device that translates between the test hosts
    External,
}

/// What the probe looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabProbePart {
    /// What a mapping depends on
    Mapping,
    /// Which hosts may send to it
    Filtering,
    /// Which ports and addresses are allocated
    Ports,
    /// Two inside hosts that reach each other at their external endpoints
    Hairpinning,
    /// Fragments in order and out of order
    Fragments,
    /// Time to live
    Ttl,
    /// ICMP queries, and errors about flows
    Icmp,
    /// Unsolicited SYNs, simultaneous open
    Tcp,
    /// How long flows last, and what refreshes them
    Timers,
    /// What happens when all ports are in use
    Exhaustion,
}

/// `natrix lab probe`.
#[derive(Clone, Debug, Args)]
pub struct LabProbe {
    /// The device; `external` is any device you start between the hosts of `natrix lab up`, or
    /// connect to --inside and --outside
    #[arg(long, value_enum)]
    pub dut: LabProbed,
    /// The tester's port on the inside of an external device: a kernel interface, a PCI address or
    /// a DPDK device
    #[arg(long, value_name = "PORT")]
    pub inside: Option<String>,
    /// The tester's port on its outside
    #[arg(long, value_name = "PORT")]
    pub outside: Option<String>,
    /// What is inside the device; for natrix and external
    #[arg(long, value_enum, default_value_t = LabFamily::Nat44)]
    pub family: LabFamily,
    /// Probe only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    pub only: Vec<LabProbePart>,
    /// How tester and device are connected; af-packet sockets reassemble fragments before the
    /// tester sees them
    #[arg(long, value_enum, default_value_t = LabPairs::AfXdp)]
    pub transport: LabPairs,
    /// Search for timers up to this time, seconds; all timers are searched at once
    #[arg(long, value_name = "S", default_value_t = 300.0, value_parser = seconds)]
    pub timer_max: f64,
    /// Precision of a timer, seconds, but at least a hundredth of the time
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub resolution: f64,
    /// Set the device's timers to a few seconds, search for them up to 12 s, and open at most 4096
    /// flows from one host
    #[arg(long)]
    pub quick: bool,
    /// External addresses of the device
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub external_addresses: u32,
    /// External ports of each of these addresses; with few ports they soon run out
    #[arg(long, value_name = "FIRST-LAST", default_value = "1024-65535")]
    pub dut_ports: LabPorts,
    /// Let netfilter use only `masquerade`: one outside address for all, as on home routers,
    /// instead of its own addresses and ports
    #[arg(long, conflicts_with_all = ["external_addresses", "dut_ports"])]
    pub masquerade: bool,
    /// Most flows opened by a host, to see what happens when all ports are in use
    #[arg(long, value_name = "N", default_value_t = 70_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub exhaust_max: u32,
    /// Time after which a packet counts as lost, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub patience: u32,
    /// Seed of ports and sequence numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU of the tester [default: the first that natrix may use and the device does not]
    #[arg(long, value_name = "CPU")]
    pub tester_cpu: Option<u8>,
    /// CPU of Natrix; the kernel's NAT runs where the tester sends [default: the first that natrix
    /// may use and the tester does not]
    #[arg(long, value_name = "CPU")]
    pub device_cpu: Option<u8>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Also write the JSON object into this file
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// A time from a hundredth of a second to a day.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("is not a number of seconds from 0.01 to 86400".to_owned()),
    }
}

/// `natrix lab sharing`.
#[derive(Clone, Debug, Args)]
pub struct LabSharing {
    /// NATs side by side, each with a pool of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub nats: u8,
    /// Subscribers, each with a flow of datagrams
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(20..=4_000))]
    pub subscribers: u32,
    /// How long each rate is measured, seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub rate_seconds: f64,
    /// Seconds without a packet after which the router may move a subscriber to another NAT
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub idle: u32,
    /// Driver of the NATs' ports
    #[arg(long, value_enum, default_value_t = LabPairs::AfXdp)]
    pub transport: LabPairs,
    /// Chooses the addresses of the subscribers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// A published experiment, or the comparison with Netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabStudyName {
    /// Natrix and Netfilter on the same transport and core
    Compare,
    /// Loss and delay against sessions (Hayashi)
    Sessions,
    /// Loss and delay against frame sizes (Hayashi)
    Sizes,
    /// Whether fragments get through (Hayashi)
    Fragments,
    /// Loss and delay against packet filters (Hayashi)
    Filters,
    /// What happens when all ports are in use (Hayashi)
    Exhaustion,
    /// The timer state diagram (Hayashi)
    Timers,
    /// Load sharing over one, two and four NATs by OSPF (Hayashi)
    Ospf,
    /// Throughput over frame sizes, 1 000 rules and 8 000 flows (Quick NAT)
    QuicknatSizes,
    /// The same over cores (Quick NAT)
    QuicknatCores,
    /// Time of a rule search (Quick NAT)
    QuicknatRules,
    /// Throughput, new connections, concurrent connections, delay (NFWare)
    Nfware,
    /// Packet I/O drivers and frame sizes (NAT in P4 with MACSAD)
    Drivers,
    /// Data structures of the translation table (Plotnikov)
    Tables,
    /// Million packets per second for 1 000 USD (Plotnikov)
    Cost,
}

/// What studies and reports have in common.
#[derive(Clone, Debug, Args)]
pub struct LabStudies {
    /// Few points, short trials, one repetition
    #[arg(long)]
    pub quick: bool,
    /// Folder of the results
    #[arg(long, value_name = "DIR", default_value = "natrix-lab-results")]
    pub results: PathBuf,
    /// How tester and device are connected, unless the study varies it
    #[arg(long, value_enum, default_value_t = LabTransport::AfXdp)]
    pub transport: LabTransport,
    /// Seed of all pseudorandom orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU of the tester; the device gets the others [default: the first that natrix may use]
    #[arg(long, value_name = "CPU")]
    pub tester_cpu: Option<u8>,
    /// Price list of the cost study: lines of maker,model,mpps,price_usd; a line without mpps is
    /// for this Natrix
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// Measure again what is already in the folder
    #[arg(long)]
    pub again: bool,
}

/// `natrix lab study`.
#[derive(Clone, Debug, Args)]
pub struct LabStudy {
    /// The study
    #[arg(value_enum)]
    pub name: LabStudyName,
    /// The devices
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [LabDevice::Natrix, LabDevice::Netfilter])]
    pub dut: Vec<LabDevice>,
    /// What studies have in common.
    #[command(flatten)]
    pub studies: LabStudies,
    /// Print the study's record as JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix lab report`.
#[derive(Clone, Debug, Args)]
pub struct LabReport {
    /// Common parameters. With `--quick` all studies run first; without it, the report shows the
    /// results in the folder.
    #[command(flatten)]
    pub studies: LabStudies,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "natrix-lab-report.html")]
    pub output: PathBuf,
}
