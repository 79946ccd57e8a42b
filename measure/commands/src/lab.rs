//! `natrix lab`: builds the test hosts, starts the device, runs a test of RFC 9693, prints its
//! result.

#[cfg(feature = "dpdk")]
mod ceiling;
#[cfg(feature = "dpdk")]
mod cpus;
#[cfg(feature = "dpdk")]
mod join;
#[cfg(feature = "dpdk")]
mod measure;
#[cfg(feature = "dpdk")]
mod output;
#[cfg(feature = "dpdk")]
mod probe;
#[cfg(feature = "dpdk")]
mod sharing;
#[cfg(feature = "dpdk")]
mod transport;

use std::io::Write;

use cli::LabCommand;
use lab::device::Limits;
use lab::topology::Left;
use lab::topology::Topology;

use crate::failure::Failure;

/// Runs a command of the lab.
pub(crate) fn run(command: &LabCommand, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        LabCommand::Up => up(out),
        LabCommand::Down => {
            let was_there = Topology::remove_standing().map_err(lab_error)?;
            // Before their namespaces: a process in a namespace without a name is not found by it.
            let Left { devices, folders } = lab::topology::end_left();
            let left = Topology::remove_left().map_err(lab_error)?;
            writeln!(out, "{}", if was_there { "the test hosts are removed" } else { "there are no test hosts" })?;
            for (path, value) in Limits::of_this_machine().put_back_left() {
                writeln!(out, "restored to its value before an interrupted run: {path} = {value}")?;
            }
            if !devices.is_empty() {
                let numbers = devices.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                writeln!(out, "ended devices of interrupted runs: processes {numbers}")?;
            }
            let left: Vec<String> =
                left.into_iter().chain(folders.iter().map(|folder| folder.display().to_string())).collect();
            if !left.is_empty() {
                writeln!(out, "removed what interrupted runs left: {}", left.join(", "))?;
            }
            Ok(())
        }
        #[cfg(feature = "dpdk")]
        LabCommand::Probe(options) => probe::run(options, out),
        #[cfg(feature = "dpdk")]
        LabCommand::Join(options) => join::run(options, out),
        #[cfg(feature = "dpdk")]
        LabCommand::Sharing(options) => sharing::run(options, out),
        command => test(command, out),
    }
}

fn lab_error(error: impl Into<LabFailure>) -> Failure {
    Failure::Lab(error.into())
}

/// Why the lab has no result.
#[derive(Debug, thiserror::Error)]
pub enum LabFailure {
    /// The test hosts.
    #[error(transparent)]
    Topology(#[from] lab::topology::TopologyError),
    /// The device.
    #[error(transparent)]
    Device(#[from] lab::device::DeviceError),
    /// The test.
    #[error(transparent)]
    Experiment(#[from] lab::experiment::ExperimentError),
    /// A number on the command line.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Number(#[from] lab::experiment::NumberError),
    /// The probe.
    #[error(transparent)]
    Probe(#[from] lab::probe::ProbeError),
    /// Several NATs side by side.
    #[error(transparent)]
    Sharing(#[from] lab::sharing::SharingError),
    /// Something else that the command line asks for and that is not there.
    #[cfg(feature = "dpdk")]
    #[error("{0}")]
    Fault(String),
    /// The tester's ports.
    #[cfg(feature = "dpdk")]
    #[error("tester: {0}")]
    Ports(#[from] packet_io::dpdk::DpdkError),
}

fn up(out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(topology) = Topology::standing() {
        writeln!(out, "the test hosts are there: {} and {}", topology.tester(), topology.device())?;
        return Ok(());
    }
    let topology = Topology::build(Topology::STANDING, true).map_err(lab_error)?;
    writeln!(
        out,
        "test hosts: {} ({} inside, {} outside) and {} ({}, {}); look inside with: ip netns exec {} ip address",
        topology.tester(),
        lab::topology::TESTER_INSIDE,
        lab::topology::TESTER_OUTSIDE,
        topology.device(),
        lab::topology::DEVICE_INSIDE,
        lab::topology::DEVICE_OUTSIDE,
        topology.tester(),
    )?;
    Ok(())
}

/// It needs drivers, and this build has none.
#[cfg(not(feature = "dpdk"))]
fn test(_: &LabCommand, _: &mut dyn Write) -> Result<(), Failure> {
    let remedy = "build it with: cargo build --release --package natrix --features dpdk";
    Err(Failure::NoDpdk { command: "lab", remedy })
}

#[cfg(feature = "dpdk")]
use measure::test;
