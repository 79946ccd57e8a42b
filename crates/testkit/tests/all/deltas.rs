//! A second instance that is fed with the changes of state of a first one holds the same mappings,
//! sessions and ports, whatever its clock and its number of workers.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use std::collections::BTreeSet;

use nat::Delta;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::redirection::Redirection;
use nat::redirection::Target;
use nat::settings::Admission;
use nat::settings::BalancedForward;
use nat::types::AddressIndex;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::view::Filter;
use nat::view::MappingView;
use nat::view::Query;
use nat::view::SessionView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::peer::AHEAD;
use testkit::peer::Peer;
use testkit::peer::RING;
use testkit::random_pools::Mode;
use testkit::random_pools::PoolShape;
use testkit::random_pools::random_pool;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// What subscribers ask for, and are led elsewhere.
const ASKED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 77);

type MappingKey = (u8, u32, (Ipv4Addr, u16), (Ipv4Addr, u16), Duration);

fn mappings(shards: &[&Shard], now: Instant) -> BTreeSet<MappingKey> {
    let mut found: Vec<MappingView> = Vec::new();
    for shard in shards {
        let mut all = Query::all(Filter::default());
        shard.view().mappings_page(now, &mut all);
        assert_eq!(all.next, None);
        found.append(&mut all.records);
    }
    let key = |view: &MappingView| {
        let endpoint = |endpoint: nat::types::Endpoint| (endpoint.address, endpoint.port);
        let kind = view.protocol as u8;
        // With sessions it lives as long as the last of them, which are compared by themselves.
        let left = if view.sessions == 0 { view.expires_in } else { Duration::ZERO };
        (kind, view.sessions, endpoint(view.internal), endpoint(view.external), left)
    };
    found.iter().map(key).collect()
}

fn sessions(shards: &[&Shard], now: Instant) -> BTreeSet<String> {
    let mut found: Vec<SessionView> = Vec::new();
    for shard in shards {
        let mut all = Query::all(Filter::default());
        shard.view().sessions_page(now, &mut all);
        found.append(&mut all.records);
    }
    let key = |view: &SessionView| {
        let SessionView { protocol, internal, external, remote, opened_from, state, hairpin, expires_in, .. } = view;
        format!("{protocol:?} {internal} {external} {remote} {opened_from:?} {state:?} {hairpin} {expires_in:?}")
    };
    found.iter().map(key).collect()
}

/// External ports that somebody has: the first instance also holds down those whose mapping ended.
fn ports(shared: &Shared, shards: &[&Shard]) -> u64 {
    let addresses = (0..shared.address_count() as u32).map(AddressIndex);
    let used = addresses.flat_map(|address| Protocol::ALL.map(|protocol| shared.ports_used(address, protocol)));
    used.map(u64::from).sum::<u64>() - shards.iter().map(|shard| u64::from(shard.view().held_ports_len())).sum::<u64>()
}

/// All that lives in an instance.
fn all(bed: &Bed) -> Vec<Delta> {
    let mut deltas = Vec::new();
    for shard in bed.shards() {
        let mut cursor = Some(0_u64);
        while let Some(from) = cursor {
            cursor = shard.view().deltas_page(bed.now(), from, 100, &mut deltas);
        }
    }
    deltas
}

fn random_settings(random: &mut SmallRng) -> Settings {
    let modes = [Mode::Ports, Mode::Ports, Mode::Blocks(64), Mode::Blocks(256), Mode::Deterministic, Mode::OneToOne];
    let mode = modes[random.random_range(0..modes.len())];
    let shape = PoolShape {
        name: "main",
        third: 113,
        subscribers: topology::prefix([100, 64, 0, 8], 29),
        mode,
        spans: 400..4_000,
    };
    let mut settings = settings().short_timers();
    settings.pools = vec![random_pool(&shape, random)];
    settings.pools[0].draining = false;
    settings.pools[0].draining_addresses.clear();
    // What ends here and begins elsewhere in one step is reported by two workers.
    settings.pools[0].reuse_delay = Duration::from_secs(random.random_range(2..6));
    settings.limits.mappings_max = 2_000;
    settings.limits.extra_sessions_max = 2_000;
    settings.limits.flows_max = 2_000;
    if random.random_ratio(1, 2) {
        settings = with_dependent_sessions(settings, random);
    }
    settings
}

/// Ports shared towards web servers, destinations that are translated, and an endpoint that leads
/// to several targets.
fn with_dependent_sessions(settings: Settings, random: &mut SmallRng) -> Settings {
    let target = |address: Ipv4Addr, port| Target { address: address.to_bits(), port, weight: 1 };
    let mut settings = settings.endpoint_dependent(Prefix::host(E2), (443, 443)).redirected(
        Prefix::host(ASKED),
        (0, 65_535),
        Redirection::Targets(vec![target(E1, None), target(E2, Some(90))]),
    );
    settings.pools[0].shared_ports_min = random.random_range(1..4);
    let external = settings.pools[0].addresses[0];
    settings.balanced_forwards.push(BalancedForward {
        realm: RealmId::default(),
        protocol: Protocol::Tcp,
        external,
        ports: (443, 443),
        targets: vec![
            target(Ipv4Addr::new(100, 64, 0, 9), Some(8_080)),
            target(Ipv4Addr::new(100, 64, 0, 10), Some(8_080)),
        ],
        admission: Admission::Anyone,
        is_sticky: false,
    });
    settings
}

fn packet(random: &mut SmallRng, from: core::net::SocketAddrV4, to: core::net::SocketAddrV4, side: Side) -> Vec<u8> {
    match random.random_range(0..4) {
        0 => build::udp(from, to).build(),
        1 => {
            let identifier = if side == Side::Inside { from.port() } else { to.port() };
            build::icmp_query(*from.ip(), *to.ip(), if side == Side::Inside { 8 } else { 0 }, identifier).build()
        }
        _ => {
            let flags =
                [Flags::SYN, Flags::SYN.union(Flags::ACK), Flags::ACK, Flags::FIN.union(Flags::ACK), Flags::RST];
            let flags = flags[random.random_range(0..flags.len())];
            build::tcp(from, to, flags).sequence(1_000).acknowledgment(1_001).build()
        }
    }
}

fn run(seed: u64, workers: usize, peer_workers: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let settings = random_settings(&mut random);
    let leading = settings.pools[0].addresses[0];
    let mut bed = Bed::new(settings.clone()).workers(workers).seed(seed).record_deltas(RING);
    let mut peer = Peer::new(settings, peer_workers);
    for _ in 0..60 {
        for _ in 0..random.random_range(1..20) {
            let inside = at(Ipv4Addr::new(100, 64, 0, random.random_range(8..16)), random.random_range(5_000..5_012));
            let outside = at([E1, E2, ASKED][random.random_range(0..3)], [80, 443, 5_000][random.random_range(0..3)]);
            let led = at(leading, 443);
            let known = bed.mappings();
            let external = known.get(random.random_range(0..known.len().max(1))).map(|mapping| mapping.external);
            let external = external.map(|external| at(external.address, external.port));
            match (random.random_range(0..6), external) {
                (5, _) => {
                    let packet = packet(&mut random, outside, led, Side::Outside);
                    bed.outside(&packet);
                }
                (0, Some(external)) => {
                    let packet = packet(&mut random, outside, external, Side::Outside);
                    bed.outside(&packet);
                }
                // Hairpinning.
                (1, Some(external)) => {
                    let packet = packet(&mut random, inside, external, Side::Inside);
                    bed.inside(&packet);
                }
                _ => {
                    let packet = packet(&mut random, inside, outside, Side::Inside);
                    bed.inside(&packet);
                }
            }
        }
        let (_, _) = (bed.take_inside(), bed.take_outside());
        for worker in 0..workers {
            let deltas = bed.take_deltas(worker);
            peer.install(bed.now(), &deltas);
        }
        if random.random_ratio(1, 4) {
            bed.advance(Duration::from_millis(random.random_range(100..4_000)));
            for worker in 0..workers {
                let deltas = bed.take_deltas(worker);
                peer.install(bed.now(), &deltas);
            }
            // A peer is brought up to date before its own timers run out.
            peer.install(bed.now(), &all(&bed));
            peer.maintain(bed.now());
        }
    }
    bed.sweep();
    for worker in 0..workers {
        let deltas = bed.take_deltas(worker);
        peer.install(bed.now(), &deltas);
    }
    peer.install(bed.now(), &all(&bed));
    peer.maintain(bed.now());
    let (first, second): (Vec<&Shard>, Vec<&Shard>) = (bed.shards().collect(), peer.shards.iter().collect());
    let now = bed.now();
    assert!(first.iter().all(|shard| shard.deltas_lost() == 0), "the ring has room");
    assert_eq!(mappings(&first, now), mappings(&second, now + AHEAD), "seed {seed}: mappings");
    assert_eq!(sessions(&first, now), sessions(&second, now + AHEAD), "seed {seed}: sessions");
    // Ports that sessions shared stay for a while after the last of them, on each worker by itself.
    if bed.shards().all(|shard| shard.view().shared_ports_len() == 0) {
        assert_eq!(ports(bed.shared(), &first), ports(&peer.shared, &second), "seed {seed}: ports");
    }
    // In the end all is over in both, and no port is left behind.
    bed.run_out();
    for worker in 0..workers {
        let deltas = bed.take_deltas(worker);
        peer.install(bed.now(), &deltas);
    }
    for _ in 0..20 {
        bed.advance_secs(10);
        peer.maintain(bed.now());
    }
    assert!(peer.shards.iter().all(Shard::is_empty), "seed {seed}: nothing is left");
    assert_eq!(ports(&peer.shared, &[]), 0, "seed {seed}: no port is left");
}

#[test]
fn a_peer_fed_with_deltas_holds_the_same_state() {
    for_each_seed(24, |seed| run(seed, 1, 1));
}

#[test]
fn a_peer_with_other_workers_holds_the_same_state() {
    for_each_seed(12, |seed| {
        run(seed, 3, 2);
        run(seed, 1, 4);
    });
}

#[test]
fn a_peer_that_has_everything_already_changes_nothing() {
    let mut bed = Bed::new(settings()).record_deltas(RING);
    bed.open_udp(at(I1, 5_000), at(E1, 53));
    bed.connect(at(I2, 5_000), at(E1, 443));
    let mut peer = Peer::new(settings(), 1);
    for _ in 0..3 {
        peer.install(bed.now(), &all(&bed));
    }
    let second: Vec<&Shard> = peer.shards.iter().collect();
    assert_eq!(mappings(&second, bed.now() + AHEAD).len(), 2);
    assert_eq!(sessions(&second, bed.now() + AHEAD).len(), 2);
}

#[test]
fn a_delta_of_a_foreign_address_is_refused_and_leaves_nothing() {
    let mut bed = Bed::new(settings()).record_deltas(RING);
    bed.open_udp(at(I1, 5_000), at(E1, 53));
    let mut deltas = all(&bed);
    deltas.iter_mut().for_each(|delta| delta.external.address = E2);
    let mut peer = Peer::new(settings(), 1);
    for delta in &deltas {
        assert!(peer.shards[0].install(bed.now(), delta).is_err());
    }
    assert!(peer.shards[0].is_empty());
}
