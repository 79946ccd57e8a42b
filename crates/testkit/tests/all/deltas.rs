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
use nat::delta::DeltaSession;
use nat::redirection::Redirection;
use nat::redirection::Target;
use nat::settings::Admission;
use nat::settings::BalancedForward;
use nat::settings::Filtering;
use nat::settings::Interface;
use nat::settings::Route;
use nat::types::AddressIndex;
use nat::types::InterfaceId;
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
const RED: InterfaceId = InterfaceId(0);
const BLUE: InterfaceId = InterfaceId(2);

/// All that lives in an instance.
fn all<'a>(shards: impl IntoIterator<Item = &'a Shard>, now: Instant) -> Vec<Delta> {
    let mut deltas = Vec::new();
    for shard in shards {
        let mut cursor = Some(0_u64);
        while let Some(from) = cursor {
            cursor = shard.view().deltas_page(now, from, 100, &mut deltas);
        }
    }
    deltas
}

/// Records with all that is carried: times, states and trackers, too.
fn records(deltas: &[Delta]) -> BTreeSet<String> {
    let in_use: BTreeSet<String> = sessions(deltas).into_iter().map(|(mapping, _)| mapping).collect();
    let text = |delta: &Delta| {
        // With sessions it lives as long as the last of them, which are compared by themselves.
        let left = if in_use.contains(&mapping_of(delta)) { Duration::ZERO } else { delta.left };
        format!("{:?}", Delta { left, ..*delta })
    };
    deltas.iter().map(text).collect()
}

/// Realm, protocol, inside and outside endpoint. Flows have their inside remote endpoint, too.
fn mapping_of(delta: &Delta) -> String {
    let Delta { realm, protocol, internal, host, external, remote_inside, .. } = delta;
    format!("{realm:?} {protocol:?} {internal} {host:?} {external} {remote_inside:?}")
}

/// What pages show of mappings and sessions, without times and states.
fn shown<'a>(shards: impl IntoIterator<Item = &'a Shard>, now: Instant) -> BTreeSet<String> {
    let mut shown = BTreeSet::new();
    for shard in shards {
        let (mut mappings, mut sessions) = (Query::all(Filter::default()), Query::all(Filter::default()));
        shard.view().mappings_page(now, &mut mappings);
        shard.view().sessions_page(now, &mut sessions);
        assert_eq!((mappings.next, sessions.next), (None, None));
        for MappingView { realm, protocol, internal, external, .. } in mappings.records {
            shown.insert(format!("{realm:?} {protocol:?} {internal} {external}"));
        }
        for SessionView { realm, protocol, internal, external, remote, opened_from, hairpin, .. } in sessions.records {
            shown.insert(format!("{realm:?} {protocol:?} {internal} {external} {remote} {opened_from:?} {hairpin}"));
        }
    }
    shown
}

/// Mappings and flows without their times and states.
fn mappings(deltas: &[Delta]) -> BTreeSet<String> {
    let is_whole = |delta: &&Delta| delta.session.is_none() || delta.remote_inside.is_some();
    deltas.iter().filter(is_whole).map(mapping_of).collect()
}

/// Sessions without their times and states, after their mapping or flow.
fn sessions(deltas: &[Delta]) -> BTreeSet<(String, String)> {
    let with_session = deltas.iter().filter_map(|delta| Some((mapping_of(delta), delta.session?)));
    let key = |(mapping, session): (String, DeltaSession)| {
        let DeltaSession { remote, opened_from, is_hairpin, .. } = session;
        (mapping, format!("{remote} {opened_from:?} {is_hairpin}"))
    };
    with_session.map(key).collect()
}

/// External ports that a mapping has. Ports that sessions shared stay for a while after the last of
/// them, on each worker by itself, so they are in the second set.
fn ports(shared: &Shared, deltas: &[Delta]) -> [BTreeSet<(Ipv4Addr, u8, u16)>; 2] {
    let pool = &shared.settings().pools[0];
    let range = if pool.one_to_one { 5_000..=5_011 } else { pool.port_min..=pool.port_max };
    let known: BTreeSet<u16> = range.chain(deltas.iter().map(|delta| delta.external.port)).collect();
    let mut ports = [BTreeSet::new(), BTreeSet::new()];
    for address in (0..shared.address_count() as u32).map(AddressIndex) {
        for (protocol, port) in
            Protocol::ALL.iter().flat_map(|protocol| known.iter().map(move |port| (*protocol, *port)))
        {
            if let Some((_, mapping)) = shared.owner(address, protocol, port) {
                ports[usize::from(mapping.is_shared())].insert((shared.address(address), protocol as u8, port));
            }
        }
    }
    ports
}

/// How many ports are taken: the first instance also holds down those whose mapping ended.
fn ports_taken(shared: &Shared) -> Vec<u32> {
    let addresses = (0..shared.address_count() as u32).map(AddressIndex);
    let taken = |address, protocol| shared.ports_used(address, protocol) - shared.ports_held_down(address, protocol);
    addresses.flat_map(|address| Protocol::ALL.map(|protocol| taken(address, protocol))).collect()
}

struct Pair {
    bed: Bed,
    peer: Peer,
    seed: u64,
}

impl Pair {
    fn first(&self, now: Instant) -> Vec<Delta> {
        all(self.bed.shards(), now)
    }

    fn second(&self, now: Instant) -> Vec<Delta> {
        all(&self.peer.shards, now + AHEAD)
    }

    fn install_changes(&mut self, now: Instant) {
        for worker in 0..self.bed.shards().count() {
            let deltas = self.bed.take_deltas(worker);
            self.peer.install(now, &deltas);
        }
    }

    fn install_all(&mut self) {
        let (now, deltas) = (self.bed.now(), self.first(self.bed.now()));
        self.peer.install(now, &deltas);
    }

    /// No time has passed since the second instance had everything.
    fn check_begun(&self) {
        let (now, seed) = (self.bed.now(), self.seed);
        let (first, second) = (self.first(now), self.second(now));
        assert_eq!(mappings(&first), mappings(&second), "seed {seed}: mappings begun");
        assert_eq!(sessions(&first), sessions(&second), "seed {seed}: sessions begun");
        let (first_shown, second_shown) = (shown(self.bed.shards(), now), shown(&self.peer.shards, now + AHEAD));
        assert_eq!(first_shown, second_shown, "seed {seed}: records shown");
        self.check_ports(&first, &second);
    }

    /// What lived `then` has ended by a change, or lives.
    fn check_ended(&self, then: Instant) {
        let (now, seed) = (self.bed.now(), self.seed);
        let (first, second) = (self.first(now), self.second(then));
        assert_eq!(mappings(&first), mappings(&second), "seed {seed}: mappings after {now:?}");
        let (first_sessions, second_sessions) = (sessions(&first), sessions(&second));
        let missing: Vec<_> = first_sessions.difference(&second_sessions).collect();
        assert!(missing.is_empty(), "seed {seed}: sessions without their change: {missing:?}");
        // The session in a mapping's own record ends with its time, without a change.
        let mut past = BTreeSet::new();
        for (mapping, session) in second_sessions.difference(&first_sessions) {
            assert!(past.insert(mapping), "seed {seed}: {mapping} has {session} and another one that ended");
        }
        self.check_ports(&first, &second);
    }

    fn check_ports(&self, first: &[Delta], second: &[Delta]) {
        let seed = self.seed;
        let [first_own, first_shared] = ports(self.bed.shared(), first);
        let [second_own, second_shared] = ports(&self.peer.shared, second);
        assert_eq!(first_own, second_own, "seed {seed}: ports");
        if first_shared.is_empty() && second_shared.is_empty() {
            assert_eq!(ports_taken(self.bed.shared()), ports_taken(&self.peer.shared), "seed {seed}: ports taken");
        }
        for delta in first.iter().filter(|delta| delta.remote_inside.is_some()) {
            let port = (delta.external.address, delta.protocol as u8, delta.external.port);
            assert_eq!(first_shared.contains(&port), second_shared.contains(&port), "seed {seed}: {port:?} is shared");
        }
    }

    /// The second instance has just been given everything. Sessions that ended early may live on in
    /// it until their time is over.
    fn check_all(&self) {
        let (now, seed) = (self.bed.now(), self.seed);
        let (first, second) = (self.first(now), self.second(now));
        assert_eq!(mappings(&first), mappings(&second), "seed {seed}: all mappings");
        let (first, second) = (records(&first), records(&second));
        let missing: Vec<_> = first.difference(&second).collect();
        assert!(missing.is_empty(), "seed {seed}: {missing:#?}, but {:#?}", second.difference(&first));
    }
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
    if matches!(mode, Mode::Ports | Mode::Blocks(_)) && random.random() {
        settings = with_two_realms(settings);
    }
    if random.random_ratio(1, 2) {
        settings = with_dependent_sessions(settings, random);
    }
    settings
}

/// Both with the same subscribers' addresses.
fn with_two_realms(mut settings: Settings) -> Settings {
    let like_red = settings.interfaces[usize::from(RED.0)].clone();
    settings.interfaces.push(Interface { name: "blue".into(), realm: RealmId(1), ..like_red });
    let way = settings.routes[0];
    settings.routes.push(Route { interface: BLUE, ..way });
    settings.realm_names = vec!["red".into(), "blue".into()];
    settings.pools[0].realms = vec![RealmId(0), RealmId(1)];
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
    let has_two_realms = settings.realm_names.len() == 2;
    let bed = Bed::new(settings.clone()).workers(workers).seed(seed).record_deltas(RING);
    let mut pair = Pair { bed, peer: Peer::new(settings, peer_workers), seed };
    for _ in 0..60 {
        for _ in 0..random.random_range(1..20) {
            let inside = at(Ipv4Addr::new(100, 64, 0, random.random_range(8..16)), random.random_range(5_000..5_012));
            let outside = at([E1, E2, ASKED][random.random_range(0..3)], [80, 443, 5_000][random.random_range(0..3)]);
            let led = at(leading, 443);
            let bed = &mut pair.bed;
            let known = bed.mappings();
            let external = known.get(random.random_range(0..known.len().max(1))).map(|mapping| mapping.external);
            let external = external.map(|external| at(external.address, external.port));
            let from = if has_two_realms && random.random() { BLUE } else { RED };
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
                    bed.inside_by(from, &packet);
                }
                _ => {
                    let packet = packet(&mut random, inside, outside, Side::Inside);
                    bed.inside_by(from, &packet);
                }
            }
        }
        let (_, _) = (pair.bed.take_inside(), pair.bed.take_outside());
        pair.install_changes(pair.bed.now());
        if random.random_ratio(1, 4) {
            pair.check_begun();
            let then = pair.bed.now();
            pair.bed.advance(Duration::from_millis(random.random_range(100..4_000)));
            let is_swept = random.random();
            if is_swept {
                pair.bed.sweep();
            }
            // The second clock stands still, so that nothing ends there by itself.
            pair.install_changes(if is_swept { then } else { pair.bed.now() });
            if is_swept {
                pair.check_ended(then);
            }
            // A peer is brought up to date before its own timers run out.
            pair.install_all();
            pair.peer.maintain(pair.bed.now());
            pair.check_all();
        }
    }
    pair.check_begun();
    pair.bed.sweep();
    pair.install_changes(pair.bed.now());
    pair.install_all();
    pair.peer.maintain(pair.bed.now());
    pair.check_all();
    assert!(pair.bed.shards().all(|shard| shard.deltas_lost() == 0), "the ring has room");
    // In the end all is over in both, and no port is left behind.
    pair.bed.run_out();
    pair.install_changes(pair.bed.now());
    for _ in 0..20 {
        pair.bed.advance_secs(10);
        pair.peer.maintain(pair.bed.now());
    }
    assert!(pair.peer.shards.iter().all(Shard::is_empty), "seed {seed}: nothing is left");
    assert!(ports_taken(&pair.peer.shared).iter().all(|taken| *taken == 0), "seed {seed}: no port is left");
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
fn a_session_ends_wherever_the_peer_keeps_it() {
    let settings = || settings().short_timers().filtering(Filtering::AddressDependent);
    let mut bed = Bed::new(settings()).record_deltas(RING);
    let mut peer = Peer::new(settings(), 1);
    bed.open_udp(at(I1, 5_000), at(E1, 53));
    bed.open_udp(at(I1, 5_000), at(E2, 53));
    let deltas = bed.take_deltas(0);
    // The second session comes first here, and gets the place in the mapping's record.
    let (of_second, others): (Vec<Delta>, Vec<Delta>) =
        deltas.into_iter().partition(|delta| delta.session.is_some_and(|session| session.remote.address == E2));
    peer.install(bed.now(), &of_second);
    peer.install(bed.now(), &others);
    assert_eq!(sessions(&all(&peer.shards, bed.now() + AHEAD)).len(), 2);
    let then = bed.now();
    for _ in 0..4 {
        bed.advance_secs(4);
        bed.inside(&build::udp(at(I1, 5_000), at(E1, 53)).build());
    }
    let deltas = bed.take_deltas(0);
    assert!(deltas.iter().any(|delta| delta.session.is_some_and(|session| session.remote.address == E2)));
    peer.install(then, &deltas);
    let left = sessions(&all(&peer.shards, then + AHEAD));
    assert_eq!(left, sessions(&all(bed.shards(), bed.now())));
    assert_eq!(left.len(), 1);
}

#[test]
fn a_peer_that_has_everything_already_changes_nothing() {
    let mut bed = Bed::new(settings()).record_deltas(RING);
    bed.open_udp(at(I1, 5_000), at(E1, 53));
    bed.connect(at(I2, 5_000), at(E1, 443));
    let mut peer = Peer::new(settings(), 1);
    let first = all(bed.shards(), bed.now());
    for _ in 0..3 {
        peer.install(bed.now(), &first);
    }
    let second = all(&peer.shards, bed.now() + AHEAD);
    assert_eq!((mappings(&second).len(), sessions(&second).len()), (2, 2));
    assert_eq!(records(&first), records(&second));
}

#[test]
fn a_delta_of_a_foreign_address_is_refused_and_leaves_nothing() {
    let mut bed = Bed::new(settings()).record_deltas(RING);
    bed.open_udp(at(I1, 5_000), at(E1, 53));
    let mut deltas = all(bed.shards(), bed.now());
    deltas.iter_mut().for_each(|delta| delta.external.address = E2);
    let mut peer = Peer::new(settings(), 1);
    for delta in &deltas {
        assert!(peer.shards[0].install(bed.now(), delta).is_err());
    }
    assert!(peer.shards[0].is_empty());
}
