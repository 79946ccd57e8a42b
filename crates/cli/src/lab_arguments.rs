//! `natrix lab`: the tester.

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
    Cps(LabTest),
    /// Connections the table holds (RFC 9693 §4.9)
    Capacity(LabCapacity),
    /// Connections deleted a second (RFC 9693 §4.8)
    Teardown(LabTest),
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabDevice {
    /// This binary
    Natrix,
    /// The kernel's NAT, by nf_tables
    Netfilter,
}

/// How tester and device are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabTransport {
    /// Virtual Ethernet pairs, AF_XDP sockets
    AfXdp,
    /// Virtual Ethernet pairs, packet sockets
    AfPacket,
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

/// Parameters of a test.
#[derive(Clone, Debug, Args)]
pub struct LabTest {
    /// The device under test
    #[arg(long, value_enum)]
    pub dut: LabDevice,
    /// How tester and device are connected
    #[arg(long, value_enum, default_value_t = LabTransport::AfXdp)]
    pub transport: LabTransport,
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
    /// Bytes of a frame, with its check sequence
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1518))]
    pub frame_bytes: u16,
    /// Rate at which connections are made where a test only needs them, frames a second; surely below what the device can
    #[arg(long, value_name = "R", default_value_t = 20_000.0)]
    pub preparation_rate: f64,
    /// Rate of the validation as a share of that of the new connections (RFC 9693: alpha)
    #[arg(long, default_value_t = 0.8)]
    pub alpha: f64,
    /// Length of a trial of existing connections, seconds; RFC 2544 wants 60
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub trial_seconds: f64,
    /// The lowest rate searched, frames a second
    #[arg(long, value_name = "R", default_value_t = 1_000.0)]
    pub rate_min: f64,
    /// The highest
    #[arg(long, value_name = "R", default_value_t = 2_000_000.0)]
    pub rate_max: f64,
    /// The search ends at an interval of this, frames a second (RFC 9693: error)
    #[arg(long, value_name = "R", default_value_t = 1_000.0)]
    pub error: f64,
    /// How often the test is made
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Which way the frames over existing connections go
    #[arg(long, value_enum, default_value_t = LabDirection::Both)]
    pub direction: LabDirection,
    /// Seed of all pseudorandom orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU of the tester
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub tester_cpu: u8,
    /// CPU of the device
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub device_cpu: u8,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Also write the JSON object into this file
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
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
