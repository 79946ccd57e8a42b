//! Inside realms with the same addresses behind one instance: who is who, seen from the wire alone.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Protocol;
use nat::Settings;
use nat::settings::Interface;
use nat::settings::Pool;
use nat::settings::Route;
use nat::types::InterfaceId;
use nat::types::RealmId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::connection::SYN_ACK;
use testkit::seeds::for_each_seed;
use testkit::topology::INSIDE;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const RED: InterfaceId = INSIDE;
const BLUE: InterfaceId = InterfaceId(2);
const GREEN: InterfaceId = InterfaceId(3);
/// Customers in each realm, all with the same addresses.
const HOSTS: u32 = 12;

/// The addresses that red and blue share, in no order.
fn common() -> Vec<Ipv4Addr> {
    [1, 2, 129, 7, 200, 66].map(|last| Ipv4Addr::new(203, 0, 113, last)).to_vec()
}

/// Green's own.
fn greens() -> Vec<Ipv4Addr> {
    [10, 11, 140].map(|last| Ipv4Addr::new(203, 0, 113, last)).to_vec()
}

/// All three have 100.64.0.0/10, and Natrix the same address in each. Red and blue share a pool,
/// green has one of its own.
fn three_realms() -> Settings {
    let mut settings = settings().addresses(&common());
    for (realm, name) in [(1, "blue"), (2, "green")] {
        let interface = InterfaceId(settings.interfaces.len() as u16);
        let like_red = settings.interfaces[usize::from(RED.0)].clone();
        settings.interfaces.push(Interface { name: name.to_owned(), realm: RealmId(realm), ..like_red });
        let way = settings.routes[0];
        settings.routes.push(Route { interface, ..way });
    }
    settings.realm_names = ["red", "blue", "green"].map(str::to_owned).to_vec();
    settings.pools[0].realms = vec![RealmId(0), RealmId(1)];
    let green =
        Pool { name: "green".to_owned(), addresses: greens(), realms: vec![RealmId(2)], ..settings.pools[0].clone() };
    settings.pools.push(green);
    settings
}

fn host(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0100 + n)
}

fn question(protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    match protocol {
        Protocol::Udp => build::udp(from, to).payload_length(8).build(),
        Protocol::Tcp => build::tcp(from, to, Flags::SYN).build(),
        Protocol::Icmp => build::echo_request(*from.ip(), *to.ip(), from.port()).build(),
    }
}

fn answer(protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    match protocol {
        Protocol::Udp => build::udp(from, to).payload_length(8).build(),
        Protocol::Tcp => build::tcp(from, to, SYN_ACK).acknowledgment(1).build(),
        Protocol::Icmp => build::echo_reply(*from.ip(), *to.ip(), to.port()).build(),
    }
}

/// Subscribers with equal addresses in three realms use equal ports of all protocols, in any order,
/// over any worker.
fn run(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let workers = random.random_range(1..5);
    let mut bed = Bed::new(three_realms()).workers(workers).seed(seed).steering(Steering::Random);
    let mut paired: HashMap<(InterfaceId, Ipv4Addr), Ipv4Addr> = HashMap::new();
    let mut owners: HashMap<(Protocol, SocketAddrV4), (InterfaceId, SocketAddrV4)> = HashMap::new();
    for packet in 0..2_000 {
        let realm = [RED, BLUE, GREEN][random.random_range(0..3)];
        let protocol = Protocol::ALL[random.random_range(0..3)];
        let internal = at(host(random.random_range(0..HOSTS)), 5_000 + random.random_range(0..6));
        let remote = at(if random.random() { E1 } else { E2 }, random.random_range(80..84));
        bed.inside_by(realm, &question(protocol, internal, remote));
        let external = source(&bed.only_outside());
        let own = if realm == GREEN { greens() } else { common() };
        assert!(own.contains(external.ip()), "packet {packet}: {external} is another realm's");
        let pair = *paired.entry((realm, *internal.ip())).or_insert(*external.ip());
        assert_eq!(*external.ip(), pair, "packet {packet}: {internal} of {realm:?} has one address for all it does");
        let owner = *owners.entry((protocol, external)).or_insert((realm, internal));
        assert_eq!(owner, (realm, internal), "packet {packet}: {protocol} {external} is one endpoint's");
        bed.outside(&answer(protocol, remote, external));
        let arrived = bed.take_inside_by();
        let arrived: Vec<_> = arrived.iter().map(|(interface, packet)| (*interface, destination(packet))).collect();
        assert_eq!(arrived, [(realm, internal)], "packet {packet}: the answer to {protocol} {external}");
    }
    assert_eq!(paired.len(), 3 * HOSTS as usize, "each address is a subscriber in each realm");
    let of = |realm| (0..HOSTS).map(|n| paired[&(realm, host(n))]).collect::<Vec<_>>();
    assert_ne!(of(RED), of(BLUE), "the same address in another realm is paired independently");
    for realm in [RED, BLUE, GREEN] {
        assert!(of(realm).iter().collect::<HashSet<_>>().len() > 1, "several addresses are in use");
    }
    bed.run_out();
}

#[test]
fn pairing_is_for_each_subscriber_of_each_realm() {
    covers!("6888-REQ-2n", "6888-REQ-2");
    for_each_seed(6, run);
}
