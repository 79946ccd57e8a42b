//! What connects tester and device: the tester's ports, and the driver strings of the device's.

use std::path::Path;

use cli::LabDevice;
use cli::LabFamily;
use cli::LabTest;
use cli::LabTransport;
use lab::edge;
use lab::edge::CustomerEdge;
use lab::edge::Edges;
use lab::edge::Family;
use lab::topology;
use packet_io::Claims;
use packet_io::dpdk;
use packet_io::dpdk::DpdkIo;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;
use packet_io::dpdk::Hugepages;

use super::LabFailure;
use super::lab_error;
use super::measure::fault;
use crate::failure::Failure;

const TESTER_BUFFERS: u32 = 32_768;
const TESTER_MEMORY_BYTES: u64 = 512 << 20;
const DESCRIPTORS: u16 = 2048;
/// Packets a ring of memif holds, as a power of two: as many as there are descriptors.
const MEMIF_RING_LOG2: u32 = 11;

/// Driver of the tester.
pub(super) fn driver(transport: LabTransport) -> &'static str {
    match transport {
        LabTransport::AfXdp => "net_af_xdp",
        LabTransport::AfPacket => "net_af_packet",
        LabTransport::Memif => "net_memif",
        LabTransport::VhostUser => "net_vhost",
    }
}

/// Driver of the tester's ports, as these are named: `pci` where that depends on what is in the
/// slot.
pub(super) fn named(transport: LabTransport, given: [&Option<String>; 2]) -> String {
    let given = given.map(|port| port.as_deref());
    match given[0].or(given[1]) {
        None => driver(transport).to_owned(),
        Some(port) if is_kernel_interface(port) => of_kernel(transport).to_owned(),
        Some(port) => driver_in(port).to_owned(),
    }
}

/// Whether the kernel takes in and sends what ports of this driver do.
pub(super) fn is_of_kernel(driver: &str) -> bool {
    matches!(driver, "net_af_xdp" | "net_af_packet" | "net_pcap" | "net_tap")
}

/// Whether the tester's transmit rings are in memory that the device shares and has to empty.
pub(super) fn is_ring_of_device(driver: &str) -> bool {
    matches!(driver, "net_memif" | "net_vhost" | "net_virtio_user")
}

/// The driver that the name of a DPDK device begins with, before its number.
fn driver_in(port: &str) -> &str {
    let end = port.find([',', '@']).unwrap_or(port.len());
    match port.starts_with("net_") {
        true => port[..end].trim_end_matches(|letter: char| letter.is_ascii_digit()),
        false => "pci",
    }
}

/// Driver of the tester on an interface of the kernel.
fn of_kernel(transport: LabTransport) -> &'static str {
    if transport == LabTransport::AfPacket { "net_af_packet" } else { "net_af_xdp" }
}

/// Whether tester and device share memory, and need no network namespaces.
pub(super) fn is_shared_memory(transport: LabTransport) -> bool {
    matches!(transport, LabTransport::Memif | LabTransport::VhostUser)
}

fn with_arguments(device: String, arguments: Option<&String>) -> String {
    match arguments {
        Some(arguments) => format!("{device},{arguments}"),
        None => device,
    }
}

/// Driver strings of the device's ports, inside first. Sockets are in `folder`.
pub(super) fn of_device(options: &LabTest, folder: &Path) -> [String; 2] {
    let sides = [(0, topology::INSIDE), (1, topology::OUTSIDE)];
    sides.map(|(number, side)| {
        let socket = folder.join(side);
        let device = match options.transport() {
            LabTransport::AfXdp => format!("net_af_xdp{number},iface={side}"),
            LabTransport::AfPacket => format!("net_af_packet{number},iface={side}"),
            LabTransport::Memif => format!(
                "net_memif{number},role=client,id={number},socket={}.memif,socket-abstract=no,rsize={MEMIF_RING_LOG2}",
                socket.display()
            ),
            LabTransport::VhostUser => {
                format!("net_virtio_user{number},path={}.vhost,queues=1,queue_size=1024", socket.display())
            }
        };
        with_arguments(device, options.device_arguments.as_ref())
    })
}

/// Device strings of the tester's ports, inside first.
fn of_tester(options: &LabTest, folder: &Path) -> Result<[String; 2], Failure> {
    let given = [&options.inside, &options.outside];
    if options.dut == LabDevice::External || given.iter().any(|port| port.is_some()) {
        let [Some(inside), Some(outside)] = given else {
            return Err(fault(
                "--dut external: the tester's ports are not named (--inside and --outside); give a kernel interface, a PCI address or a DPDK \
                 device for each"
                    .to_owned(),
            ));
        };
        return Ok(of_names(options.transport(), [inside, outside]));
    }
    let sides = [(0, topology::INSIDE), (1, topology::OUTSIDE)];
    Ok(sides.map(|(number, side)| {
        let socket = folder.join(side);
        let device = match options.transport() {
            LabTransport::AfXdp => format!("net_af_xdp{number},iface={side}"),
            LabTransport::AfPacket => format!("net_af_packet{number},iface={side}"),
            // The tester is the one that listens: it stays while the device comes and goes.
            LabTransport::Memif => format!(
                "net_memif{number},role=server,id={number},socket={}.memif,socket-abstract=no,rsize={MEMIF_RING_LOG2}",
                socket.display()
            ),
            LabTransport::VhostUser => format!("net_vhost{number},iface={}.vhost,queues=1", socket.display()),
        };
        with_arguments(device, options.tester_arguments.as_ref())
    }))
}

/// Device strings of ports that are named by kernel interfaces, PCI addresses or DPDK devices,
/// inside first.
pub(super) fn of_names(transport: LabTransport, [inside, outside]: [&String; 2]) -> [String; 2] {
    [(0, inside), (1, outside)].map(|(number, port)| match is_kernel_interface(port) {
        true => format!("{}{number},iface={port}", of_kernel(transport)),
        false => port.clone(),
    })
}

/// Whether a port is named by an interface of the kernel, and not by a PCI address or a DPDK
/// device.
pub(super) fn is_kernel_interface(port: &str) -> bool {
    !port.contains(':') && !port.starts_with("net_")
}

/// What is inside the device.
pub(super) fn family(family: LabFamily) -> Family {
    match family {
        LabFamily::Nat44 => Family::Nat44,
        LabFamily::Nat64 => Family::Nat64,
        LabFamily::Dslite => Family::Dslite,
    }
}

/// The tester's ports, the inside one with an edge where the family needs it.
pub(super) type Ports = CustomerEdge<DpdkIo>;

/// Starts the tester's ports.
pub(super) fn ports(options: &LabTest, folder: &Path) -> Result<Ports, Failure> {
    towards_device(of_tester(options, folder)?, family(options.family))
}

/// Starts the tester's ports of these device strings, with a device between them.
pub(super) fn towards_device(devices: [String; 2], family: Family) -> Result<Ports, Failure> {
    Ok(CustomerEdge::new(start(devices, family)?, family, Edges::Inside))
}

/// Refuses a transport that the device does not have.
pub(super) fn check(dut: LabDevice, transport: LabTransport) -> Result<(), Failure> {
    let name = driver(transport);
    match dut {
        LabDevice::Netfilter if is_shared_memory(transport) => {
            Err(fault(format!("--transport: netfilter has no such ports ({name}); use af-xdp or af-packet")))
        }
        LabDevice::Vpp if transport != LabTransport::Memif => {
            Err(fault(format!("--transport: vpp is measured over memif only ({name}); leave it out")))
        }
        LabDevice::Natrix | LabDevice::Netfilter | LabDevice::Vpp | LabDevice::External => Ok(()),
    }
}

/// Starts the tester's ports on the test hosts' pairs.
pub(super) fn pairs(transport: LabTransport, family: Family) -> Result<Ports, Failure> {
    let driver = driver(transport);
    let sides = [(0, topology::INSIDE), (1, topology::OUTSIDE)];
    towards_device(sides.map(|(number, side)| format!("{driver}{number},iface={side}")), family)
}

/// Driver strings of a device on the test hosts' pairs.
pub(super) fn pairs_of_device(transport: LabTransport) -> [String; 2] {
    let driver = driver(transport);
    [(0, topology::INSIDE), (1, topology::OUTSIDE)].map(|(number, side)| format!("{driver}{number},iface={side}"))
}

/// Starts the tester's ports connected to each other. Sockets are in `folder`.
pub(super) fn loopback(options: &LabTest, folder: &Path) -> Result<Ports, Failure> {
    let socket = folder.join("loopback");
    let socket = socket.display();
    let devices = match options.transport() {
        LabTransport::Memif => ["server", "client"].map(|role| {
            let number = usize::from(role == "client");
            format!("net_memif{number},role={role},id=0,socket={socket},socket-abstract=no,rsize={MEMIF_RING_LOG2}")
        }),
        LabTransport::AfXdp | LabTransport::AfPacket | LabTransport::VhostUser => of_tester(options, folder)?,
    };
    let family = family(options.family);
    Ok(CustomerEdge::new(start(devices, family)?, family, Edges::Both))
}

/// Starts two ports with nothing between them but what these device strings say. Packets of this
/// family fit.
pub(super) fn start(devices: [String; 2], family: Family) -> Result<DpdkIo, Failure> {
    let claims = Claims::take(devices.iter().map(String::as_str))
        .map_err(|held| fault(format!("tester: {held}; stop it, or name other ports with --inside and --outside")))?;
    // The ports stay open until the process ends.
    core::mem::forget(claims);
    let port = |device: String| DpdkPort {
        is_pci: !device.starts_with("net_"),
        device,
        mtu: edge::mtu(family),
        rx_descriptors: DESCRIPTORS,
        tx_descriptors: DESCRIPTORS,
    };
    let settings = DpdkSettings {
        ports: devices.map(port).into(),
        workers: 1,
        hugepages: Hugepages::Off,
        memory_bytes: TESTER_MEMORY_BYTES,
        buffers: TESTER_BUFFERS,
    };
    let mut views = dpdk::start(&settings).map_err(|error| lab_error(LabFailure::Ports(error)))?;
    views.pop().ok_or_else(|| fault("tester: no view of its ports; report this".to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_device_has_the_transports_it_can_use() {
        let all = LabTransport::value_variants();
        let fit = |dut| all.iter().filter(|transport| check(dut, **transport).is_ok()).count();
        assert_eq!([LabDevice::Natrix, LabDevice::External].map(fit), [all.len(); 2]);
        assert_eq!([LabDevice::Netfilter, LabDevice::Vpp].map(fit), [2, 1]);
        let refused = check(LabDevice::Netfilter, LabTransport::Memif).unwrap_err().to_string();
        assert_eq!(refused, "--transport: netfilter has no such ports (net_memif); use af-xdp or af-packet");
    }

    #[test]
    fn the_driver_is_read_from_what_a_port_is_named() {
        let named = ["net_memif0,role=client,id=0", "net_vhost1,iface=/tmp/2", "net_af_xdp0", "0000:03:00.1"];
        assert_eq!(named.map(driver_in), ["net_memif", "net_vhost", "net_af_xdp", "pci"]);
        assert_eq!(named.map(|port| is_ring_of_device(driver_in(port))), [true, true, false, false]);
    }
}
