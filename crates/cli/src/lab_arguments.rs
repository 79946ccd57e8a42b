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
    /// Highest rate without loss over connections that exist (RFC 9693 §4.6)
    Throughput(LabTest),
    /// Share lost at ten rates up to the highest (RFC 8219 §7.4)
    Loss(LabTest),
    /// Delay and its variation at one rate (RFC 8219 §7.2, §7.3)
    Latency(LabLatency),
    /// Highest rate of new connections, each validated (RFC 9693 §4.5)
    Cps(LabCps),
    /// Connections the table holds (RFC 9693 §4.9)
    Capacity(LabCapacity),
    /// Connections deleted a second (RFC 9693 §4.8)
    Teardown(LabTest),
    /// How the device behaves, found from outside: mapping, filtering, ports, timers and more
    Probe(LabProbe),
    /// What the tester can do with nothing between its two ports
    Ceiling(LabCeiling),
    /// Pass frames between two ports as they come, until standard input ends: the far end of the tester's loopback over vhost-user
    #[command(hide = true)]
    Join(LabJoin),
    /// Repeat a published experiment, with the paper's own figures beside ours
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
    /// Any other, which you start and connect to --inside and --outside yourself
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

/// What the connections of a test are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabProtocol {
    /// A datagram makes a connection
    Udp,
    /// A handshake of three segments makes it
    Tcp,
}

/// How rules are told to a device that has several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabRules {
    /// One after the other
    List,
    /// One rule with a set of addresses
    Set,
    /// One rule with a map of addresses
    Map,
    /// One rule for all that masquerades: the address of the outside interface for all, as home routers have it
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

/// Sizes of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabFrames {
    /// All the same, bytes.
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
    /// How tester and device are connected
    #[arg(long, value_enum, default_value_t = LabTransport::AfXdp)]
    pub transport: LabTransport,
    /// What connections are made of; with tcp each by a handshake, and data follows within its window
    #[arg(long, value_enum, default_value_t = LabProtocol::Udp)]
    pub protocol: LabProtocol,
    /// Connections (RFC 9693: N)
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    pub sessions: u64,
    /// Remote endpoints each inside endpoint talks to: further connections of a mapping where the device maps
    /// endpoint-independently
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub remotes: u32,
    /// External addresses of the device
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub external_addresses: u32,
    /// External ports of each of these addresses
    #[arg(long, value_name = "FIRST-LAST", default_value = "1024-65535")]
    pub dut_ports: LabPorts,
    /// Translation rules of the device, each for one inside address; the traffic comes from all of these alike. 0: one rule for all
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_533))]
    pub rules: u32,
    /// How netfilter has these rules, and the filters
    #[arg(long, value_enum, default_value_t = LabRules::Map)]
    pub rules_kind: LabRules,
    /// Packet filters of the device that match nothing of the traffic
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub filters: u32,
    /// How natrix gives out ports
    #[arg(long, value_enum, default_value_t = LabAllocation::Ports)]
    pub allocation: LabAllocation,
    /// Bytes of a frame with its check sequence, 64 to 1518, or `imix`: of twelve frames seven of 64, four of 594, one of 1518
    #[arg(long, value_name = "BYTES|imix", default_value = "64")]
    pub frame_bytes: LabFrames,
    /// Rate at which connections are made where a test only needs them, frames a second; surely below what the device can
    #[arg(long, value_name = "R", default_value_t = 20_000.0)]
    pub preparation_rate: f64,
    /// Rate of the validation as a share of that of the new connections (RFC 9693: alpha)
    #[arg(long, default_value_t = 0.8)]
    pub alpha: f64,
    /// Length of a trial of existing connections, seconds [default: 2, with --quick 0.5]; RFC 2544 wants 60
    #[arg(long, value_name = "S")]
    pub trial_seconds: Option<f64>,
    /// The lowest rate searched, frames a second
    #[arg(long, value_name = "R", default_value_t = 1_000.0)]
    pub rate_min: f64,
    /// The highest [default: 2000000, over shared memory 20000000]
    #[arg(long, value_name = "R")]
    pub rate_max: Option<f64>,
    /// The search ends at an interval of this, frames a second (RFC 9693: error) [default: a thousandth of the highest, with --quick a
    /// fortieth]
    #[arg(long, value_name = "R")]
    pub error: Option<f64>,
    /// How often the test is made [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Which way the frames over existing connections go
    #[arg(long, value_enum, default_value_t = LabDirection::Both)]
    pub direction: LabDirection,
    /// Seed of all pseudorandom orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU of the tester
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub tester_cpu: u8,
    /// CPUs of the device, with commas between; natrix has a worker on each
    #[arg(long, visible_alias = "device-cpu", value_name = "LIST", default_value = "1", value_delimiter = ',')]
    pub device_cpus: Vec<u8>,
    /// Of --dut external: the tester's inside port, a kernel interface, a PCI address or a DPDK device with its arguments
    #[arg(long, value_name = "PORT")]
    pub inside: Option<String>,
    /// The tester's outside port
    #[arg(long, value_name = "PORT")]
    pub outside: Option<String>,
    /// Arguments to add to the device strings of the tester's driver, such as busy_budget=0
    #[arg(long, value_name = "LIST")]
    pub tester_arguments: Option<String>,
    /// The same for the device's driver
    #[arg(long, value_name = "LIST")]
    pub device_arguments: Option<String>,
    /// Command of the shell that empties the device's table
    #[arg(long, value_name = "COMMAND")]
    pub empty_command: Option<String>,
    /// What the result is to say of the device
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub described: String,
    /// One repetition, short trials, a coarse search: for a first look. What you give yourself counts all the same
    #[arg(long)]
    pub quick: bool,
    /// Do not measure the tester itself first, with nothing between its ports
    #[arg(long)]
    pub no_ceiling: bool,
    /// Takes the tester's own ceiling from this file, if it was measured within the last hour on the same transport, frames and CPUs; else measures it and
    /// writes it there
    #[arg(long, value_name = "FILE", conflicts_with = "no_ceiling")]
    pub ceiling_file: Option<PathBuf>,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Also write the JSON object into this file
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `natrix lab cps`.
#[derive(Debug, Args)]
pub struct LabCps {
    /// Parameters of every test.
    #[command(flatten)]
    pub test: LabTest,
    /// Of --protocol tcp: both ends close each connection as soon as it is established, seven segments in all; there is no validation then
    #[arg(long)]
    pub tcp_close: bool,
}

/// `natrix lab ceiling`.
#[derive(Debug, Args)]
pub struct LabCeiling {
    /// Parameters of every test.
    #[command(flatten)]
    pub test: LabTest,
    /// Of --protocol tcp: handshakes in place of data, both ends of which are the tester's
    #[arg(long)]
    pub handshakes: bool,
    /// Of --handshakes: both ends close each connection as soon as it is established
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
    /// Frames a second, both ways together
    #[arg(long, value_name = "R", default_value_t = 20_000.0)]
    pub rate: f64,
    /// The delay of the packets that make new connections (phase 1), not of those of connections that exist
    #[arg(long)]
    pub first_packet: bool,
}

/// `natrix lab capacity`.
#[derive(Debug, Args)]
pub struct LabCapacity {
    /// Parameters of every test.
    #[command(flatten)]
    pub test: LabTest,
    /// Connections that can surely be stored (RFC 9693: C0)
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub c0: u64,
    /// Share of the rate below which the doubling ends (RFC 9693: beta)
    #[arg(long, default_value_t = 0.1)]
    pub beta: f64,
    /// Share of the rate below which the halving goes down (RFC 9693: gamma)
    #[arg(long, default_value_t = 0.5)]
    pub gamma: f64,
    /// Allowed error of the capacity (RFC 9693: E)
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub capacity_error: u64,
    /// Connections the device is set up for
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub room: u64,
}

/// Whose behaviour is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabProbed {
    /// This binary
    Natrix,
    /// The kernel's NAT, by nf_tables
    Netfilter,
    /// Whatever translates between the standing test hosts
    External,
}

/// What the probe looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabProbePart {
    /// What a mapping depends on
    Mapping,
    /// Who may send to it
    Filtering,
    /// Which ports and addresses are given
    Ports,
    /// Two hosts inside that meet at their external endpoints
    Hairpinning,
    /// Fragments in order and out of order
    Fragments,
    /// Time to live
    Ttl,
    /// ICMP queries, and errors about flows
    Icmp,
    /// Unsolicited SYNs, simultaneous open
    Tcp,
    /// How long flows are kept, and what refreshes them
    Timers,
    /// What happens past the last port
    Exhaustion,
}

/// `natrix lab probe`.
#[derive(Debug, Args)]
pub struct LabProbe {
    /// The device; `external` is whatever was started between the hosts of `natrix lab up`, or is connected to --inside and --outside
    #[arg(long, value_enum)]
    pub dut: LabProbed,
    /// The tester's port to the inside of an external device: a kernel interface, a PCI address or a DPDK device
    #[arg(long, value_name = "PORT")]
    pub inside: Option<String>,
    /// The tester's port to its outside
    #[arg(long, value_name = "PORT")]
    pub outside: Option<String>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    pub only: Vec<LabProbePart>,
    /// How tester and device are connected; the sockets of af-packet join fragments before anybody sees them
    #[arg(long, value_enum, default_value_t = LabTransport::AfXdp)]
    pub transport: LabTransport,
    /// Timers are looked for up to this time, seconds; each takes it once, all at the same time
    #[arg(long, value_name = "S", default_value_t = 300.0, value_parser = seconds)]
    pub timer_max: f64,
    /// The interval a timer is found in, seconds; a hundredth of the time when that is more
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub resolution: f64,
    /// Sets the device's timers to a few seconds, looks for them up to 12 s, and opens at most 4096 flows of one host
    #[arg(long)]
    pub quick: bool,
    /// External addresses of the device
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub external_addresses: u32,
    /// External ports of each of these addresses; few of them are soon exhausted
    #[arg(long, value_name = "FIRST-LAST", default_value = "1024-65535")]
    pub dut_ports: LabPorts,
    /// Netfilter takes the address of the outside interface for all by `masquerade` alone, as home routers do, in place of addresses and ports of its own
    #[arg(long, conflicts_with_all = ["external_addresses", "dut_ports"])]
    pub masquerade: bool,
    /// Flows one host opens at most, to see what happens past the last port
    #[arg(long, value_name = "N", default_value_t = 70_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub exhaust_max: u32,
    /// A packet that has not come after this time is lost, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub patience: u32,
    /// Seed of ports and sequence numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU of the tester
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub tester_cpu: u8,
    /// CPU of Natrix; the kernel's NAT works where the tester sends
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub device_cpu: u8,
    /// One JSON object instead of a table
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
        _ => Err("give seconds, 0.01 to 86400".to_owned()),
    }
}

/// A published experiment, or the comparison with Netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabStudyName {
    /// Natrix beside Netfilter on the same transport and core
    Compare,
    /// Loss and delay against sessions (Hayashi)
    Sessions,
    /// Loss and delay against frame sizes (Hayashi)
    Sizes,
    /// Whether fragments get through (Hayashi)
    Fragments,
    /// Loss and delay against packet filters (Hayashi)
    Filters,
    /// What happens past the last port (Hayashi)
    Exhaustion,
    /// The timer state diagram (Hayashi)
    Timers,
    /// Throughput over frame sizes, 1 000 rules and 8 000 flows (Quick NAT)
    QuicknatSizes,
    /// The same over cores (Quick NAT)
    QuicknatCores,
    /// Time of a rule search (Quick NAT)
    QuicknatRules,
    /// Throughput, new connections, concurrent ones, delay (NFWare)
    Nfware,
    /// Packet I/O drivers and frame sizes (NAT in P4 with MACSAD)
    Drivers,
    /// Data structures of the translation table (Plotnikov)
    Tables,
    /// Million packets a second for 1 000 USD (Plotnikov)
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
    /// How tester and device are connected, where a study does not vary that
    #[arg(long, value_enum, default_value_t = LabTransport::AfXdp)]
    pub transport: LabTransport,
    /// Seed of all pseudorandom orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU of the tester; the device gets the others
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub tester_cpu: u8,
    /// Price list of the cost study: lines of maker,model,mpps,price_usd; without mpps it is this Natrix
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// Measure again what the folder has already
    #[arg(long)]
    pub again: bool,
}

/// `natrix lab study`.
#[derive(Clone, Debug, Args)]
pub struct LabStudy {
    /// Which
    #[arg(value_enum)]
    pub name: LabStudyName,
    /// The devices
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [LabDevice::Natrix, LabDevice::Netfilter])]
    pub dut: Vec<LabDevice>,
    /// What studies have in common.
    #[command(flatten)]
    pub studies: LabStudies,
    /// The study's record as JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `natrix lab report`.
#[derive(Clone, Debug, Args)]
pub struct LabReport {
    /// What studies have in common. With `--quick` all of them are made first; without, the report has what the folder has.
    #[command(flatten)]
    pub studies: LabStudies,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "natrix-lab-report.html")]
    pub output: PathBuf,
}
