//! What Natrix is configured with, and which DPDK ports each driver needs.

use core::net::Ipv4Addr;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process;

use mem::Need;
use nat::Settings;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::Route;
use nat::types::InterfaceId;
use nat::types::MappingIndex;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use packet_io::PortIndex;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;
use packet_io::dpdk::Hugepages;

use super::Driver;
use super::frame::FRAME_BYTES;
use super::frame::Flow;
use super::traffic::MAPPINGS_PER_SUBSCRIBER;

/// Ports one external address gives to each protocol.
const PORTS_PER_ADDRESS: u64 = 64_512;
const FIRST_POOL_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 0, 1);
/// Longer than any run: nothing runs out while it is measured.
const NEVER: nat::Duration = nat::Duration::from_secs(86_400);

/// Receive and transmit descriptors of each queue.
const DESCRIPTORS: u16 = 256;
/// Memory of DPDK, and buffers in it.
pub(super) const MEMORY_MIB: u64 = 128;
const BUFFERS: u32 = 8_191;

/// Sessions there can be: each has a mapping of the one shard.
pub(super) const SESSIONS_MAX: u64 = MappingIndex::COUNT_MAX as u64 - ROOM;
/// Mappings and subscribers there is room for beyond those needed.
const ROOM: u64 = 64;

fn pool_addresses(sessions: u64) -> u32 {
    sessions.div_ceil(2).div_ceil(PORTS_PER_ADDRESS) as u32 + 1
}

/// Whether an address can be one of the pool's, however large that is.
pub(super) fn is_pool_address(address: u32) -> bool {
    let first = FIRST_POOL_ADDRESS.to_bits();
    (first..first + pool_addresses(SESSIONS_MAX)).contains(&address)
}

/// One inside and one outside interface, each with the next hop of all traffic behind it, and a
/// pool with room for all sessions.
pub(super) fn settings(sessions: u64) -> Settings {
    let first = FIRST_POOL_ADDRESS.to_bits();
    let interface = |name: &str, side, address| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address, prefix_length: 30 }],
        mtu: 1_500,
    };
    let route = |prefix, next_hop, interface| Route { prefix, next_hop, interface: InterfaceId(interface) };
    let subscribers = Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8).unwrap_or(Prefix::ALL);
    let mut settings = Settings {
        interfaces: vec![
            interface("inside", Side::Inside, Ipv4Addr::new(192, 168, 255, 1)),
            interface("outside", Side::Outside, Ipv4Addr::new(192, 168, 254, 1)),
        ],
        routes: vec![
            route(subscribers, Ipv4Addr::new(192, 168, 255, 2), 0),
            route(Prefix::ALL, Ipv4Addr::new(192, 168, 254, 2), 1),
        ],
        pools: vec![Pool {
            name: "bench".to_owned(),
            addresses: (0..pool_addresses(sessions)).map(|i| Ipv4Addr::from_bits(first + i)).collect(),
            subscribers: vec![subscribers],
            ..Pool::default()
        }],
        limits: Limits {
            mappings_max: (sessions + ROOM) as u32,
            extra_sessions_max: 1_024,
            subscribers_max: (sessions / MAPPINGS_PER_SUBSCRIBER + ROOM) as u32,
            ..Limits::default()
        },
        ..Settings::default()
    };
    settings.timeouts.udp = NEVER;
    settings.timeouts.tcp_opening = NEVER;
    settings
}

/// Everything a run takes at its peak: the engine's tables, the list of flows, twice while it is
/// looked through for endpoints, and DPDK.
pub(super) fn needs(sessions: u64) -> Vec<Need> {
    let mut needs = nat::memory::needs(&settings(sessions), 1);
    needs.push(Need::Heap(sessions * 2 * size_of::<Flow>() as u64));
    needs.push(Need::Heap(MEMORY_MIB << 20));
    needs
}

/// The DPDK ports of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) driver: Driver,
    /// Those of the worker: inside, outside.
    pub(super) worker: [PortIndex; 2],
    /// Those through which the far ends feed them and take what left. The same where the driver
    /// gives back what it is sent.
    pub(super) far_ends: [PortIndex; 2],
}

/// All ports of a run, and the socket that joins those of `net_memif`.
pub(super) struct Bed {
    pub(super) dpdk: DpdkSettings,
    pub(super) ports: Vec<Ports>,
    socket: PathBuf,
}

impl Bed {
    pub(super) fn new(drivers: &[Driver]) -> Bed {
        let socket = socket("natrix");
        let mut devices = Vec::new();
        let ports = drivers.iter().map(|driver| {
            let first = devices.len() as u16;
            devices.extend(driver.devices(&socket.display().to_string(), true));
            let pair = |first: u16| [PortIndex(first), PortIndex(first + 1)];
            // As between two programs of which Natrix is the client.
            let worker = if *driver == Driver::Memif { first + 2 } else { first };
            Ports { driver: *driver, worker: pair(worker), far_ends: pair(first) }
        });
        let ports = ports.collect();
        let port = |device| DpdkPort {
            device,
            is_pci: false,
            mtu: 1_500,
            rx_descriptors: DESCRIPTORS,
            tx_descriptors: DESCRIPTORS,
        };
        let dpdk = DpdkSettings {
            ports: devices.into_iter().map(port).collect(),
            workers: 1,
            // The buffers on their way fit the caches, and testpmd gets the same.
            hugepages: Hugepages::Off,
            memory_bytes: MEMORY_MIB << 20,
            buffers: BUFFERS,
        };
        Bed { dpdk, ports, socket }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // It is there only where net_memif was used.
        let _ = fs::remove_file(&self.socket);
    }
}

/// A path for a socket that no other process uses.
pub(super) fn socket(program: &str) -> PathBuf {
    env::temp_dir().join(format!("{program}-forward-{}.sock", process::id()))
}

impl Driver {
    /// The virtual devices: two ports, and with `far_ends` those that feed them, where the driver
    /// needs any.
    pub(super) fn devices(self, socket: &str, far_ends: bool) -> Vec<String> {
        let memif = |number: u8, role: &str, id: u8| {
            format!("net_memif{number},role={role},id={id},socket={socket},socket-abstract=no,bsize=2048")
        };
        match self {
            Driver::Ring => vec!["net_ring0".to_owned(), "net_ring1".to_owned()],
            Driver::Null => (0..2).map(|number| format!("net_null{number},size={FRAME_BYTES}")).collect(),
            // Servers first: they make the socket that the clients look for.
            Driver::Memif if far_ends => {
                vec![memif(0, "server", 0), memif(1, "server", 1), memif(2, "client", 0), memif(3, "client", 1)]
            }
            Driver::Memif => vec![memif(0, "server", 0), memif(1, "client", 0)],
        }
    }
}
