//! The packets of the benchmarks in memory: 64-byte frames without their link header, of flows that
//! subscribers open.

use core::net::Ipv4Addr;

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use nat::Packet;
use nat::Shared;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Route;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::family::Family;

/// Packets in a burst.
pub(crate) const BURST: usize = 64;
/// Bytes of a frame behind its Ethernet header: a 64-byte frame without its check sequence has 60,
/// of which 14 are link header.
pub(crate) const PACKET_BYTES: usize = 46;
/// Ports one external address gives to each protocol in the benchmark.
pub(crate) const PORTS_PER_ADDRESS: u64 = 64_512;
/// Mappings of one subscriber, of both protocols together.
pub(crate) const MAPPINGS_PER_SUBSCRIBER: u64 = 64;
/// Internal port of a subscriber's first flow of each protocol.
const FIRST_INTERNAL_PORT: u64 = 20_000;
/// Internal ports from one flow to the next.
const INTERNAL_PORT_STEP: u64 = 7;

const TCP: u16 = 0x8000;
const SERVERS: u16 = 1_024;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;

/// Nothing leaves the engine by itself in these benchmarks; counts what does.
#[derive(Default)]
pub(crate) struct Nowhere {
    packets: u64,
}

impl Sink for Nowhere {
    fn transmit(&mut self, _: Egress, _: &[&[u8]]) -> bool {
        self.packets += 1;
        true
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        self.packets += 1;
        true
    }
}

/// One session of the benchmark: what is needed to write its packets. 16 bytes.
#[derive(Clone, Copy, zerocopy::FromZeros)]
#[repr(C)]
pub(crate) struct Flow {
    pub(crate) internal_address: u32,
    pub(crate) external_address: u32,
    pub(crate) internal_port: u16,
    pub(crate) external_port: u16,
    /// Index of the remote server, top bit: TCP.
    server: u16,
    /// 1: the servers are far apart, as in the Internet, and not in one prefix.
    spread: u16,
}

impl Flow {
    /// A flow of one protocol to the first server, whose external endpoint is not known yet.
    pub(crate) fn new(is_tcp: bool, internal_address: u32, internal_port: u16) -> Flow {
        let server = if is_tcp { TCP } else { 0 };
        Flow { internal_address, external_address: 0, internal_port, external_port: 0, server, spread: 0 }
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.server & TCP != 0
    }

    pub(crate) fn remote_address(&self) -> u32 {
        let server = u32::from(self.server & !TCP);
        if self.spread == 0 {
            return u32::from(Ipv4Addr::new(198, 18, 0, 0)) + server;
        }
        // Between 11.0.0.0 and 125.255.255.255, where the benchmarks have no other addresses.
        let mixed = (server + 1).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b);
        (11 << 24) + (mixed ^ mixed >> 13) % (115 << 24)
    }

    /// Moves its server to where it is if the servers are far apart.
    pub(crate) fn spread(&mut self) {
        self.spread = 1;
    }

    /// Reads the external endpoint from the flow's translated packet.
    pub(crate) fn learn(&mut self, packet: &[u8; 64]) {
        self.external_address = u32::from_be_bytes([packet[12], packet[13], packet[14], packet[15]]);
        self.external_port = u16::from_be_bytes([packet[20], packet[21]]);
    }
}

/// A packet as the benchmark writes it: 46 bytes in a 64-byte line of its own.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Buffer(pub(crate) [u8; 64]);

/// A burst of empty buffers.
pub(crate) fn buffers() -> Box<[Buffer; BURST]> {
    Box::new([Buffer([0; 64]); BURST])
}

/// The buffers as packets just received on the interface of each one's side.
#[inline(always)]
pub(crate) fn packets(buffers: &mut [Buffer; BURST], side: impl Fn(usize) -> Side) -> [Packet<'_>; BURST] {
    let mut slot = 0;
    buffers.each_mut().map(|buffer| {
        let meta = PacketMeta { ingress: InterfaceId(side(slot) as u16), ..PacketMeta::default() };
        slot += 1;
        Packet::new(&mut buffer.0[..PACKET_BYTES], meta)
    })
}

/// The two interfaces of the benchmarks.
pub(crate) fn interfaces() -> Vec<Interface> {
    let interface = |name: &str, side, address| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address, prefix_length: 30 }],
        mtu: 1_500,
    };
    vec![
        interface("inside", Side::Inside, Ipv4Addr::new(192, 168, 255, 1)),
        interface("outside", Side::Outside, Ipv4Addr::new(192, 168, 254, 1)),
    ]
}

/// The way to all subscribers, and to all else.
pub(crate) fn routes() -> Vec<Route> {
    let route = |prefix, next_hop, interface| Route { prefix, next_hop, interface: InterfaceId(interface) };
    let subscribers = Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8).unwrap_or(Prefix::ALL);
    vec![route(subscribers, Ipv4Addr::new(192, 168, 255, 2), 0), route(Prefix::ALL, Ipv4Addr::new(192, 168, 254, 2), 1)]
}

/// So many addresses of a pool, from one on.
pub(crate) fn addresses(first: Ipv4Addr, count: u64) -> Vec<Ipv4Addr> {
    (0..count as u32).map(|i| Ipv4Addr::from_bits(first.to_bits() + i)).collect()
}

/// The memory of a list of flows.
pub(crate) fn flows_need(flows: u64) -> Need {
    Arena::<Flow>::need(flows as usize)
}

/// Flows of a worker's subscribers, 32 UDP and 32 TCP ports each, shuffled.
pub(crate) fn flows(shared: &Shared, family: Family, worker: WorkerId, count: u64) -> Result<Arena<Flow>, ArenaError> {
    let mut flows = Arena::<Flow>::zeroed(count as usize)?;
    let mut random = SmallRng::seed_from_u64(7 + u64::from(worker.0));
    let mut address = u32::from(Ipv4Addr::new(10, 0, 0, 1));
    let mut port = 0u64;
    for flow in flows.iter_mut() {
        while family.worker_of(shared, address) != worker {
            address += 1;
        }
        // Remote endpoints as in life: skewed to few servers.
        let skewed = random.random::<f64>().powi(3) * f64::from(SERVERS);
        *flow = Flow::new(port % 2 == 1, address, internal_port(port / 2));
        flow.server |= (skewed as u16).min(SERVERS - 1);
        port += 1;
        if port == MAPPINGS_PER_SUBSCRIBER {
            port = 0;
            address += 1;
        }
    }
    for i in (1..flows.len()).rev() {
        let j = random.random_range(0..=i);
        flows.swap(i, j);
    }
    Ok(flows)
}

/// Random flows, drawn as many at once as 64 bursts need. Reading a flow from the list before each
/// packet would leave the core's caches of pages full of the list's, which no real traffic does:
/// packets come in rings.
pub(crate) struct Drawn(Vec<Flow>);

impl Drawn {
    /// Flows drawn at once.
    const COUNT: usize = 64 * BURST;

    pub(crate) fn new() -> Drawn {
        Drawn(Vec::with_capacity(Drawn::COUNT))
    }

    /// A random one of `flows`, which are the same in each call.
    #[inline]
    pub(crate) fn next(&mut self, flows: &[Flow], random: &mut SmallRng) -> Flow {
        loop {
            if let Some(flow) = self.0.pop() {
                return flow;
            }
            self.0.extend((0..Drawn::COUNT).map(|_| flows[random.random_range(0..flows.len())]));
        }
    }

    /// Draws anew, because the flows are others now.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

/// Internal port of a subscriber's n-th flow of a protocol.
pub(crate) fn internal_port(n: u64) -> u16 {
    (FIRST_INTERNAL_PORT + n * INTERNAL_PORT_STEP) as u16
}

/// The `n` of [`internal_port`].
pub(crate) const fn position_of(internal_port: u16) -> u64 {
    (internal_port as u64).saturating_sub(FIRST_INTERNAL_PORT) / INTERNAL_PORT_STEP
}

pub(crate) fn write_outbound(buffer: &mut [u8; 64], flow: &Flow, flags: u8) {
    let server = flow.remote_address();
    write_packet(buffer, flow.is_tcp(), flow.internal_address, flow.internal_port, server, 443, flags);
}

pub(crate) fn write_inbound(buffer: &mut [u8; 64], flow: &Flow, flags: u8) {
    let server = flow.remote_address();
    write_packet(buffer, flow.is_tcp(), server, 443, flow.external_address, flow.external_port, flags);
}

/// Writes all headers; the transport checksum is left to be whatever it is, as the engine only
/// updates it.
fn write_packet(
    buffer: &mut [u8; 64],
    is_tcp: bool,
    source: u32,
    source_port: u16,
    destination: u32,
    destination_port: u16,
    flags: u8,
) {
    buffer[..20].copy_from_slice(&[0x45, 0, 0, PACKET_BYTES as u8, 0, 0, 0x40, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    buffer[9] = if is_tcp { 6 } else { 17 };
    buffer[12..16].copy_from_slice(&source.to_be_bytes());
    buffer[16..20].copy_from_slice(&destination.to_be_bytes());
    let checksum = wire::checksum::ipv4_header_checksum(&buffer[..20]);
    buffer[10..12].copy_from_slice(&checksum.to_be_bytes());
    buffer[20..22].copy_from_slice(&source_port.to_be_bytes());
    buffer[22..24].copy_from_slice(&destination_port.to_be_bytes());
    if is_tcp {
        buffer[24..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        buffer[32..40].copy_from_slice(&[0x50, flags, 0xff, 0xff, 0x12, 0x34, 0, 0]);
    } else {
        buffer[24..28].copy_from_slice(&[0, PACKET_BYTES as u8 - 20, 0x12, 0x34]);
    }
}
