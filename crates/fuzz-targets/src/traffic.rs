//! Makes packets from the bytes of an input: well-formed ones that meet the engine's state, and
//! damaged ones.
//!
//! Random bytes are rarely an IPv4 packet, and never a reply to a mapping with a random port. So a
//! few bytes describe a packet, and replies are made from packets that left.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use alg::AlgId;
use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Gateway;
use nat::settings::InterfaceAddress;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Transition;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use testkit::E1;
use testkit::E2;
use testkit::I1;
use testkit::I2;
use testkit::I3;
use testkit::OUTSIDE_ROUTER;
use testkit::OWN_INSIDE;
use testkit::OWN_OUTSIDE;
use testkit::POOL;
use testkit::Variants;
use testkit::at;
use testkit::bed::families::home;
use testkit::bed::families::nat64_host;
use testkit::bed::families::with_families;
use testkit::packet;
use testkit::topology;
use wire::build;
use wire::build::Builder;
use wire::icmp;
use wire::icmp::Icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::ipv6::MTU_MIN;
use wire::tcp::Flags;
use wire::tcp::Tcp;
use wire::udp::Udp;

use crate::dice::Dice;
use crate::talk::Talks;

/// Remembered packets of each kind.
const REMEMBERED: usize = 8;
/// Bytes of payload that exceed the usual MTU.
const LONG_PAYLOAD: usize = 1_600;

/// Of what port control grants.
pub(crate) const LIFETIME_MAX: Duration = Duration::from_secs(600);

/// Inside addresses, mostly of subscribers.
const INSIDERS: [Ipv4Addr; 16] = [
    I1,
    I2,
    I3,
    I1,
    I2,
    Ipv4Addr::new(100, 64, 1, 9),
    Ipv4Addr::new(100, 127, 255, 255),
    Ipv4Addr::new(10, 9, 9, 9),
    OWN_INSIDE,
    POOL[0],
    OWN_OUTSIDE,
    Ipv4Addr::new(100, 64, 0, 255),
    Ipv4Addr::UNSPECIFIED,
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::new(224, 0, 0, 1),
    E1,
];

/// The first of them among IPv6 hosts: two of NAT64, and two behind B4s.
const HOSTS: [Ipv4Addr; 6] = [nat64_host(1), home(1), I1, nat64_host(2), home(2), nat64_host(1)];

/// Outside addresses, mostly of hosts.
const OUTSIDERS: [Ipv4Addr; 16] = [
    E1,
    E2,
    E1,
    OUTSIDE_ROUTER,
    Ipv4Addr::new(192, 0, 2, 77),
    Ipv4Addr::new(8, 8, 8, 8),
    OWN_OUTSIDE,
    OWN_INSIDE,
    POOL[0],
    POOL[1],
    I1,
    Ipv4Addr::new(100, 64, 7, 7),
    Ipv4Addr::BROADCAST,
    Ipv4Addr::new(192, 0, 2, 255),
    Ipv4Addr::UNSPECIFIED,
    Ipv4Addr::new(240, 0, 0, 1),
];

const PORTS: [u16; 16] =
    [5_000, 5_001, 80, 5_002, 53, 1_023, 1_024, 0, 65_535, 40_000, 5_000, 5_001, 443, 5_003, 5_004, 5_005];

const FLAGS: [Flags; 16] = [
    Flags::SYN,
    Flags(0x12),
    Flags::ACK,
    Flags(0x11),
    Flags(0x14),
    Flags::RST,
    Flags::FIN,
    Flags::NONE,
    Flags(0x18),
    Flags(0x06),
    Flags(0x03),
    Flags(0x3f),
    Flags(0xc2),
    Flags::ACK,
    Flags::SYN,
    Flags(0x12),
];

/// IP options: none, record route, loose source route, router alert, an excessive length, padding.
const OPTIONS: [&[u8]; 6] = [
    &[],
    &[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0],
    &[131, 7, 4, 198, 51, 100, 9],
    &[148, 4, 0, 0],
    &[7, 60, 4, 1],
    &[1, 1, 1, 0],
];

/// An instance, chosen by the first bytes of an input.
pub(crate) struct Setup {
    pub(crate) settings: Settings,
    pub(crate) workers: usize,
    pub(crate) ring_packets: usize,
    pub(crate) seed: u64,
    /// Further decisions for the driver of the instance.
    pub(crate) rest: u8,
}

/// Reads the variant of the settings: eight bytes.
pub(crate) fn setup(dice: &mut Dice<'_>) -> Setup {
    let (filters, sizes, policy, pools) = (dice.byte(), dice.byte(), dice.byte(), dice.byte());
    let (mtu, limits, seed, rest) = (dice.byte(), dice.byte(), dice.byte(), dice.byte());
    let filtering = |bits: u8| match bits & 3 {
        1 => Filtering::AddressDependent,
        2 => Filtering::AddressAndPortDependent,
        _ => Filtering::EndpointIndependent,
    };
    let mut settings = topology::settings().limits(|limit| {
        // Small tables: full ones are interesting, and large ones take time to make.
        limit.mappings_max = if limits & 1 == 0 { 60 } else { 4 };
        limit.extra_sessions_max = if limits & 2 == 0 { 40 } else { 2 };
        limit.subscribers_max = if limits & 4 == 0 { 20 } else { 2 };
        limit.sessions_per_mapping_max = if limits & 8 == 0 { 30 } else { 2 };
        limit.fragmented_datagrams_max = if limits & 16 == 0 { 12 } else { 2 };
        limit.fragments_held_max = if limits & 32 == 0 { 10 } else { 2 };
        limit.unsolicited_syns_max = if limits & 64 == 0 { 8 } else { 1 };
        limit.held_ports_max = if limits & 1 == 0 { 40 } else { 3 };
    });
    if limits & 128 != 0 {
        settings = settings.short_timers();
    }
    settings = settings.pooling(if filters & 64 == 0 { Pooling::Paired } else { Pooling::Arbitrary });
    for pool in &mut settings.pools {
        pool.filtering = [filtering(filters), filtering(filters >> 2), filtering(filters >> 4)];
        pool.parity = filters & 128 != 0;
        // Every second instance holds ports down.
        pool.reuse_delay = Duration::from_secs(if sizes & 128 == 0 { 0 } else { 20 });
        pool.reuse_at_once.filtered = sizes & 64 != 0;
    }
    settings.inbound_refresh = sizes & 1 != 0;
    settings.answer_unsolicited_syn = sizes & 2 == 0;
    settings.icmp.answer_echo = policy & 1 == 0;
    settings.icmp.errors_to_inside = policy & 2 == 0;
    settings.icmp.errors_to_outside = policy & 4 == 0;
    settings.icmp.no_resources_code = [Some(1), Some(13), None, Some(1)][usize::from(policy >> 3 & 3)];
    if policy & 32 != 0 {
        settings.icmp.errors_per_second_max = 2;
    }
    if policy & 64 != 0 {
        settings = settings.pass(47, topology::prefix([100, 64, 0, 0], 10), Prefix::host(E1));
    }
    settings = match pools & 7 {
        0 | 1 => settings,
        2 => settings.ports(2_000, 2_003),
        3 => settings.ports(1, 65_535),
        4 => settings.ports(1_020, 1_027).reserved(&[1_022, 1_024]),
        5 => settings.ports(1, 1_023),
        6 => settings.ports(5_000, 5_000),
        _ => settings.ports(65_530, 65_535),
    };
    settings = match pools >> 3 & 3 {
        0 => settings.addresses(&POOL[..1]),
        1 => settings.addresses(&POOL[..2]),
        // Natrix's own address is a pool address too, as on a small line.
        2 => settings.addresses(&[OWN_OUTSIDE]),
        _ => settings.addresses(&[Ipv4Addr::new(192, 0, 2, 77), POOL[1]]),
    };
    if pools & 32 != 0 {
        settings.pools.push(second_pool());
    }
    if pools & 64 != 0
        && let Some(outside) = settings.interfaces.get_mut(1)
    {
        outside.addresses.push(InterfaceAddress { address: Ipv4Addr::new(203, 0, 113, 254), prefix_length: 24 });
    }
    if pools & 128 != 0 {
        // No default route.
        settings.routes.retain(|route| route.interface == topology::INSIDE);
    }
    if mtu & 64 != 0 {
        // Ports that remotes and subscribers use too.
        let forward = |protocol, ports, inside: Ipv4Addr, inside_port| Forward {
            realm: RealmId::default(),
            protocol,
            external: POOL[0],
            ports,
            inside: inside.into(),
            inside_port,
            admission: if sizes & 32 == 0 { Admission::Anyone } else { Admission::AsPool },
        };
        settings.forwards = vec![
            forward(Protocol::Udp, (2_000, 2_001), I1, 5_000),
            forward(Protocol::Tcp, (2_001, 2_002), I1, 5_000),
            forward(Protocol::Tcp, (80, 80), I2, 80),
        ];
    }
    if mtu & 128 != 0 {
        settings.pools.push(Pool {
            name: "whole".to_owned(),
            addresses: vec![WHOLE],
            subscribers: vec![Prefix::host(I2)],
            one_to_one: true,
            ..Pool::default()
        });
        // One external endpoint for each internal one.
        settings.forwards.retain(|forward| forward.inside != I2.into());
    }
    if rest & 32 != 0 {
        settings.gateways = (0..alg::ALGS.len() as u8).map(|number| Gateway::new(AlgId(number))).collect();
    }
    (settings.port_control.pcp, settings.port_control.nat_pmp) = (rest & 64 != 0, rest & 128 != 0);
    settings.port_control.lifetime_max = LIFETIME_MAX;
    settings.port_control.mappings_per_subscriber = 8;
    settings.port_control.third_party = vec![Prefix::host(I1)];
    let mtus = [1_500, 1_500, 1_400, 576, 68, 2_000, 1_006, 1_280];
    let mtu_of = |bits: u8| mtus[usize::from(bits & 7)];
    Setup {
        settings: settings.mtu(mtu_of(mtu), mtu_of(mtu >> 3)),
        workers: if sizes & 4 == 0 { 1 } else { 2 },
        ring_packets: if sizes & 8 == 0 { 64 } else { 2 },
        seed: u64::from(seed),
        rest,
    }
}

/// The settings with a few IPv6 hosts of both kinds in the first pool.
pub(crate) fn with_hosts(settings: Settings) -> Settings {
    let mut settings = with_families(settings);
    settings.transition.hosts_max = 20;
    settings.transition.hosts_per_subscriber_max = 2;
    if let Some(pool) = settings.pools.first_mut() {
        pool.subscribers.push(Transition::HOSTS);
    }
    if let Some(inside) = settings.interfaces.first_mut() {
        inside.mtu = inside.mtu.max(MTU_MIN);
    }
    settings
}

/// An address without an owner, or of one subscriber.
const WHOLE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);

/// For one subscriber of the first pool, by its longer prefix.
fn second_pool() -> Pool {
    Pool {
        name: "second".to_owned(),
        addresses: vec![POOL[2]],
        port_max: 1_031,
        subscribers: vec![Prefix::host(I3)],
        ..Pool::default()
    }
}

/// The latest packets in and out, and the next ones.
#[derive(Default)]
pub(crate) struct Traffic {
    went_in: [Vec<Vec<u8>>; 2],
    came_out: [Vec<Vec<u8>>; 2],
    has_families: bool,
    pub(crate) talks: Talks,
}

fn remember(packets: &mut Vec<Vec<u8>>, packet: &[u8]) {
    if packets.len() == REMEMBERED {
        packets.remove(0);
    }
    packets.push(packet.to_vec());
}

impl Traffic {
    /// Traffic of IPv6 hosts, too.
    pub(crate) fn with_families() -> Traffic {
        Traffic { has_families: true, ..Traffic::default() }
    }

    fn insider(&self, dice: &mut Dice<'_>) -> SocketAddrV4 {
        let choice = dice.byte();
        let place = usize::from(choice & 15);
        let host = if self.has_families { HOSTS.get(place) } else { None };
        at(*host.unwrap_or(&INSIDERS[place]), PORTS[usize::from(choice >> 4)])
    }

    /// Remembers a packet that left.
    pub(crate) fn note_out(&mut self, side: Side, packet: &[u8]) {
        remember(&mut self.came_out[side.index()], packet);
        self.talks.note_out(side, packet);
    }

    /// The next packet, or the next fragments of one.
    pub(crate) fn next(&mut self, dice: &mut Dice<'_>) -> (Side, Vec<Vec<u8>>) {
        let kind = dice.byte();
        let (side, packet) = self.packet(kind & 0x3f, dice);
        let mut packets = if kind & 0x40 == 0 { vec![packet] } else { fragments(&packet, dice) };
        if kind & 0x80 != 0 {
            for packet in &mut packets {
                spoil(packet, dice);
            }
        }
        for packet in &packets {
            remember(&mut self.went_in[side.index()], packet);
        }
        (side, packets)
    }

    fn packet(&mut self, kind: u8, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        if kind >= 48 {
            return self.talks.next(kind - 48, dice);
        }
        match kind % 16 {
            0 | 1 => (Side::Inside, flow(17, self.insider(dice), outsider(dice), dice)),
            2 | 3 => (Side::Inside, flow(6, self.insider(dice), outsider(dice), dice)),
            4 => (Side::Inside, flow(1, self.insider(dice), outsider(dice), dice)),
            5..=7 => (Side::Outside, self.reply(dice)),
            8 => (Side::Outside, self.error(Side::Outside, dice)),
            9 => (Side::Inside, self.error(Side::Inside, dice)),
            10 => (Side::Inside, self.hairpin(dice)),
            11 => (Side::Outside, self.stranger(dice)),
            12 => self.again(dice),
            13 => (Side::Inside, other(self.insider(dice), outsider(dice), dice)),
            14 => (Side::Outside, other(outsider(dice), self.insider(dice), dice)),
            _ => {
                let side = if dice.byte() & 1 == 0 { Side::Inside } else { Side::Outside };
                let length = usize::from(dice.byte());
                (side, dice.bytes(length).to_vec())
            }
        }
    }

    /// From outside to the source of a packet that left, usually from its destination.
    fn reply(&self, dice: &mut Dice<'_>) -> Vec<u8> {
        let Some(sent) = dice.pick_some(&self.came_out[Side::Outside.index()]) else { return Vec::new() };
        let header = packet::header(sent);
        let how = dice.byte();
        let mut from = packet::destination(sent);
        if how & 1 != 0 {
            from = outsider(dice);
        }
        if how & 2 != 0 {
            from.set_port(dice.pick(&PORTS));
        }
        let mut to = packet::source(sent);
        if how & 4 != 0 {
            to.set_port(to.port().wrapping_add(u16::from(dice.byte()) % 8));
        }
        if header.protocol() == 1 && how & 8 == 0 {
            return shaped(build::echo_reply(*from.ip(), *to.ip(), to.port()), dice);
        }
        flow(header.protocol(), from, to, dice)
    }

    /// From inside to the source of a packet that left: from one subscriber to another, or to
    /// itself.
    fn hairpin(&self, dice: &mut Dice<'_>) -> Vec<u8> {
        let from = self.insider(dice);
        let Some(sent) = dice.pick_some(&self.came_out[Side::Outside.index()]) else { return Vec::new() };
        flow(packet::header(sent).protocol(), from, packet::source(sent), dice)
    }

    /// From outside to an address of Natrix that may be unused.
    fn stranger(&self, dice: &mut Dice<'_>) -> Vec<u8> {
        let from = outsider(dice);
        let address = dice.pick(&[POOL[0], OWN_OUTSIDE, POOL[1], WHOLE, POOL[2], OWN_INSIDE, I1]);
        let port = if dice.byte() & 1 == 0 { dice.pick(&PORTS) } else { 2_000 + u16::from(dice.byte()) % 4 };
        let protocol = dice.pick(&[17, 6, 1]);
        flow(protocol, from, at(address, port), dice)
    }

    /// An ICMP error about a packet that came out on this side.
    fn error(&self, side: Side, dice: &mut Dice<'_>) -> Vec<u8> {
        let Some(about) = dice.pick_some(&self.came_out[side.index()]) else { return Vec::new() };
        let how = dice.byte();
        let (icmp_type, code) = dice.pick(&[(3, 3), (3, 4), (11, 0), (3, 1), (12, 0), (11, 1), (4, 0), (5, 0)]);
        let length = [28, about.len(), 128, 20, usize::from(dice.byte()), 548][usize::from(how & 7) % 6];
        let mut quote = about.get(..length).unwrap_or(about).to_vec();
        if how & 8 != 0 {
            spoil(&mut quote, dice);
        }
        let from = match (how & 16, side) {
            (0, _) => packet::destination(about),
            (_, Side::Inside) => self.insider(dice),
            (_, Side::Outside) => outsider(dice),
        };
        let to = if how & 128 == 0 { packet::source(about) } else { outsider(dice) };
        let mut error = build::icmp_error(*from.ip(), *to.ip(), icmp_type, code, &quote).next_hop_mtu(dice.word());
        error = match how & 0x60 {
            0x20 => error.extension(&[0, 8, 1, 1, 0, 0, 17, 64]),
            0x40 => error.legacy_extension(&[0, 8, 1, 1, 0, 0, 17, 64]),
            _ => error,
        };
        shaped(error, dice)
    }

    /// Repeats an earlier packet on the same side or the other.
    fn again(&self, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        let side = if dice.byte() & 1 == 0 { Side::Inside } else { Side::Outside };
        let packets = if dice.byte() & 3 == 3 { &self.came_out } else { &self.went_in };
        (side, dice.pick_some(&packets[side.index()]).cloned().unwrap_or_default())
    }
}

fn outsider(dice: &mut Dice<'_>) -> SocketAddrV4 {
    let choice = dice.byte();
    at(OUTSIDERS[usize::from(choice & 15)], PORTS[usize::from(choice >> 4)])
}

/// TCP, UDP or an ICMP query. The identifier of a query is the inside port.
fn flow(protocol: u8, from: SocketAddrV4, to: SocketAddrV4, dice: &mut Dice<'_>) -> Vec<u8> {
    let builder = match protocol {
        6 => {
            let flags = dice.pick(&FLAGS);
            let numbers = dice.byte();
            let number = |bits: u8| [1_000, 1_001, 5_000, 5_001, 0, u32::MAX, 70_000, 1][usize::from(bits & 7)];
            build::tcp(from, to, flags).sequence(number(numbers)).acknowledgment(number(numbers >> 3)).mss(1_460)
        }
        1 => build::icmp_query(*from.ip(), *to.ip(), dice.pick(&[8, 8, 0, 13, 14, 15, 10, 17]), from.port()),
        _ => build::udp(from, to),
    };
    shaped(builder, dice)
}

/// A packet without ports.
fn other(from: SocketAddrV4, to: SocketAddrV4, dice: &mut Dice<'_>) -> Vec<u8> {
    let protocol = dice.pick(&[47, 50, 2, 41, 132, 0, 255]);
    shaped(build::raw(*from.ip(), *to.ip(), protocol).payload_length(40), dice)
}

/// One byte: time to live, length, DF, options, checksum, and bytes behind the packet.
fn shaped(builder: Builder, dice: &mut Dice<'_>) -> Vec<u8> {
    let shape = dice.byte();
    let mut builder = match shape & 3 {
        0 => builder,
        1 => builder.ttl(1),
        2 => builder.ttl(2),
        _ => builder.ttl(255),
    };
    if shape & 4 != 0 {
        builder = builder.payload_length(LONG_PAYLOAD);
    }
    if shape & 8 != 0 {
        builder = builder.dont_fragment();
    }
    if shape & 16 != 0 {
        builder = builder.ip_options(dice.pick(&OPTIONS));
    }
    if shape & 32 != 0 {
        builder = builder.without_checksum();
    }
    if shape & 64 != 0 {
        builder = builder.payload(&dice.byte().to_be_bytes());
    }
    let mut packet = builder.build();
    if shape & 128 != 0 {
        packet.resize(packet.len() + 18, 0xa5);
    }
    packet
}

/// The fragments of a packet, some missing, repeated or out of order.
fn fragments(packet: &[u8], dice: &mut Dice<'_>) -> Vec<Vec<u8>> {
    let mtu = [68, 100, 300, 576][usize::from(dice.byte() & 3)];
    let mut whole = packet.to_vec();
    if Ipv4::new_checked(packet).is_err() {
        return vec![whole];
    }
    let mut view = Ipv4::new_unchecked(whole.as_mut_slice());
    let identification = u16::from(dice.byte() & 3);
    view.set_fragment_bits(view.fragment_bits() & !ipv4::FLAG_DONT_FRAGMENT);
    view.set_identification(identification);
    view.fill_checksum();
    let mut pieces = build::fragment(&whole, mtu);
    pieces.truncate(30);
    match dice.byte() & 7 {
        0 | 1 => {}
        2 => pieces.reverse(),
        3 => {
            pieces.remove(0);
        }
        4 => {
            pieces.pop();
        }
        5 => pieces.truncate(1),
        6 => {
            let twice = pieces.clone();
            pieces.extend(twice);
        }
        _ => {
            let first = usize::from(dice.byte()) % pieces.len();
            pieces.rotate_left(first);
        }
    }
    pieces
}

/// Changes a few bytes of a packet, and may correct the checksums afterwards.
fn spoil(packet: &mut [u8], dice: &mut Dice<'_>) {
    if packet.is_empty() {
        return;
    }
    let how = dice.byte();
    for _ in 0..=how & 3 {
        let place = usize::from(dice.byte()) % packet.len();
        packet[place] = dice.byte();
    }
    if how & 4 == 0 {
        repair(packet);
    }
}

/// Corrects all checksums that can be found.
fn repair(packet: &mut [u8]) {
    if packet.len() < ipv4::HEADER_LENGTH_MIN {
        return;
    }
    let mut view = Ipv4::new_unchecked(&mut *packet);
    if view.header_length() > view.header().len() {
        return;
    }
    view.fill_checksum();
    if Ipv4::new_checked(&*packet).is_err() {
        return;
    }
    let mut view = Ipv4::new_unchecked(&mut *packet);
    let (protocol, source, destination) = (view.protocol(), view.source(), view.destination());
    if view.is_fragment() {
        return;
    }
    let transport = view.payload_mut();
    match protocol {
        ipv4::PROTOCOL_UDP if Udp::new_checked(&*transport).is_ok() => {
            Udp::new_unchecked(transport).fill_checksum(source, destination);
        }
        ipv4::PROTOCOL_TCP if Tcp::new_checked(&*transport).is_ok() => {
            Tcp::new_unchecked(transport).fill_checksum(source, destination);
        }
        ipv4::PROTOCOL_ICMP if transport.len() >= icmp::HEADER_LENGTH => Icmp::new_unchecked(transport).fill_checksum(),
        _ => {}
    }
}
