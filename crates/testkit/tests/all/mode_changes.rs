//! Pools change how they give ports out, and everything else that may change does, while traffic
//! flows on several workers.
//!
//! After each change and in the midst of it: what existed goes on in both directions, no external
//! endpoint has two owners, the log says whose each is, and at the end every port is where it
//! began.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::deterministic::Owner;
use nat::event::Event;
use nat::event::EventKind;
use nat::redirection::Redirection;
use nat::redirection::RedirectionId;
use nat::redirection::Target;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::Class;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Forward;
use nat::settings::Interface;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::PortTimeout;
use nat::settings::Removed;
use nat::settings::Route;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::types::AddressIndex;
use nat::types::Endpoint;
use nat::types::InterfaceId;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::RealmId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use testkit::random_pools::Mode;
use testkit::random_pools::PoolShape;
use testkit::random_pools::random_blocks;
use testkit::random_pools::random_limits;
use testkit::random_pools::random_pool;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;

/// A service with an address that only the rules know, and where it is.
const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 200);
const TARGETS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 201), Ipv4Addr::new(198, 51, 100, 202)];
/// The port that rules and filters are about; nothing that has to go on goes there.
const REFUSED: u16 = 9_999;
const WORKERS: usize = 3;

const MODES: [Mode; 6] =
    [Mode::Ports, Mode::Blocks(64), Mode::Blocks(512), Mode::Blocks(4_096), Mode::Deterministic, Mode::OneToOne];

fn shape(name: &'static str, third: u8, subscribers: Prefix, mode: Mode) -> PoolShape {
    PoolShape { name, third, subscribers, mode, spans: 16_384..30_000 }
}

fn to_port(port: u16) -> Match {
    Match { destination_ports: PortRange { first: port, last: port }, ..Match::ALL }
}

fn roomy() -> Settings {
    settings().limits(|limits| {
        limits.external_addresses_max = 40;
        limits.flows_max = 10_000;
    })
}

/// Everything that may change, at random.
fn random_settings(modes: [Mode; 2], random: &mut SmallRng) -> Settings {
    let mut settings = roomy();
    let [east, west] = modes;
    settings.pools = vec![
        random_pool(&shape("east", 113, topology::prefix([100, 64, 0, 0], 24), east), random),
        random_pool(&shape("west", 114, topology::prefix([100, 64, 0, 64], 29), west), random),
    ];
    if random.random() {
        // Numbers of pools mean something else from now on.
        settings.pools.reverse();
    }
    if random.random_ratio(1, 12) {
        // More than there is room for: refused.
        settings.pools[0].one_to_one = false;
        settings.pools[0].addresses.extend((0..60).map(|host| Ipv4Addr::new(203, 0, 115, host)));
    }
    for (number, pool) in settings.pools.iter().enumerate().filter(|(_, pool)| !pool.one_to_one) {
        if random.random() {
            let port = random.random_range(2_000..60_000);
            settings.forwards.push(Forward {
                realm: RealmId::default(),
                protocol: if random.random() { Protocol::Udp } else { Protocol::Tcp },
                external: *pool.addresses.choose(random).expect("it has some"),
                ports: (port, port + random.random_range(0..200)),
                inside: Ipv4Addr::new(100, 64, 0, 20 + number as u8).into(),
                inside_port: random.random_range(1_024..50_000),
                admission: Admission::AsPool,
            });
        }
    }
    if random.random() {
        let mapping = MappingKind::EndpointDependent;
        let rule = Rule { matches: to_port(443), action: RuleAction::Translate { pool: None, mapping } };
        settings.rules.push(rule);
    }
    if random.random() {
        settings.rules.push(Rule { matches: to_port(REFUSED), action: RuleAction::Drop });
    }
    if random.random_ratio(1, 3) {
        let pool = Some(PoolId(random.random_range(0..2)));
        let mapping = MappingKind::EndpointIndependent;
        settings.rules.push(Rule { matches: to_port(8_080), action: RuleAction::Translate { pool, mapping } });
    }
    if random.random() {
        let target = |address: &Ipv4Addr| Target { address: address.to_bits(), port: Some(7_000), weight: 1 };
        let matches = Match {
            protocol: Some(Protocol::Udp.number()),
            destination: Prefix::new(SERVICE, 32).expect("a length"),
            destination_ports: PortRange::one(80),
            ..Match::ALL
        };
        let targets = TARGETS[..random.random_range(1..3)].iter().map(target).collect();
        settings.redirections.push(Redirection::Targets(targets));
        settings.rules.insert(0, Rule { matches, action: RuleAction::Redirect(RedirectionId(0)) });
    }
    for port in 0..random.random_range(0..4) {
        let action = [FilterAction::Deny, FilterAction::Permit][random.random_range(0..2)];
        settings.filters.push(FilterRule {
            matches: to_port(REFUSED - port),
            action,
            out: true,
            back: random.random(),
            log: false,
        });
    }
    settings.subscriber = random_limits(random);
    for number in 0..random.random_range(0..3_u8) {
        settings.classes.push(Class {
            name: format!("class {number}"),
            subscribers: vec![topology::prefix([100, 64, 0, number * 32], 27)],
            realms: Vec::new(),
            limits: random_limits(random),
            gateways: None,
        });
    }
    settings.timeouts.udp = Duration::from_secs(random.random_range(300..600));
    settings.timeouts.udp_unanswered = Duration::from_secs(random.random_range(120..600));
    settings.timeouts.adapt_above_percent = random.random::<bool>().then_some(90);
    if random.random() {
        let idle = Duration::from_secs(random.random_range(60..200));
        settings.port_timeouts.push(PortTimeout { protocol: Protocol::Udp, ports: 443..=443, idle });
    }
    settings.inbound_refresh = random.random();
    settings.events.block_mappings = random.random();
    if random.random_ratio(1, 6) {
        settings.reload.removed = Removed::End;
    }
    settings
}

/// Something that exists and has to go on.
#[derive(Clone, Copy, Debug)]
struct Talk {
    internal: SocketAddrV4,
    /// Where the subscriber sends to, and where that arrives.
    remote_inside: SocketAddrV4,
    remote_outside: SocketAddrV4,
    external: SocketAddrV4,
}

impl Talk {
    fn goes_on(&self, bed: &mut Bed, what: &str) {
        bed.inside(&build::udp(self.internal, self.remote_inside).payload_length(16).build());
        let went = bed.take_outside();
        let [packet] = &went[..] else { panic!("{what}: {} packets of {self:?}; {:?}", went.len(), bed.verdicts()) };
        assert_eq!((source(packet), destination(packet)), (self.external, self.remote_outside), "{what}: {self:?}");
        bed.outside(&build::udp(self.remote_outside, self.external).payload_length(16).build());
        let came = bed.take_inside();
        let [packet] = &came[..] else { panic!("{what}: {} answers to {self:?}; {:?}", came.len(), bed.verdicts()) };
        assert_eq!((source(packet), destination(packet)), (self.remote_inside, self.internal), "{what}: {self:?}");
    }

    /// Begins one, if it is let.
    fn begin(bed: &mut Bed, internal: SocketAddrV4, remote_inside: SocketAddrV4) -> Option<Talk> {
        bed.inside(&build::udp(internal, remote_inside).payload_length(16).build());
        bed.take_inside();
        let went = bed.take_outside();
        let [packet] = &went[..] else { return None };
        Some(Talk { internal, remote_inside, remote_outside: destination(packet), external: source(packet) })
    }
}

/// What the log says from its begin, and what the last one says that was opened since.
#[derive(Default)]
struct Books {
    whole: Ledger,
    later: Option<Ledger>,
    /// How often the later ledger had a complete snapshot, and agreed with the first.
    compared: u32,
}

impl Books {
    fn read(&mut self, bed: &mut Bed) {
        for worker in 0..WORKERS {
            let events = bed.take_events(worker, usize::MAX);
            self.whole.read(worker, &events);
            if let Some(later) = &mut self.later {
                later.read(worker, &events);
            }
        }
        if let Some(later) = self.later.as_ref().filter(|later| later.is_snapshot_complete(WORKERS)) {
            self.compared += 1;
            later.assert_says_as(&self.whole, bed.now());
        }
    }
}

/// No endpoint has two owners, and the log says whose it is if it says anything at all of its kind.
fn check_owners(bed: &mut Bed, books: &mut Books, round: u32) {
    books.read(bed);
    let ledger = &books.whole;
    let mappings = bed.mappings();
    let externals: HashSet<_> =
        mappings.iter().map(|mapping| (mapping.external.address, mapping.protocol, mapping.external.port)).collect();
    assert_eq!(externals.len(), mappings.len(), "an external endpoint has two owners in round {round}");
    let flows: Vec<_> = bed.sessions().into_iter().filter(|session| session.shared).collect();
    let mut outside = HashSet::new();
    for flow in &flows {
        let external = (flow.external.address, flow.protocol, flow.external.port);
        assert!(!externals.contains(&external), "a mapping's port is shared in round {round}: {flow:?}");
        assert!(outside.insert((external, flow.target.unwrap_or(flow.remote))), "{flow:?} is there twice");
    }
    let booked = ledger.at(bed.now());
    for (external, holder) in &booked {
        // Swept later: then it is not shown any more.
        let mapping = mappings.iter().find(|one| (one.external.address, one.protocol, one.external.port) == *external);
        let shown = mapping.map(|one| (one.realm, one.internal.address, one.internal.port, one.worker.index()));
        let expected = (holder.realm, holder.subscriber, holder.port, holder.worker);
        assert!(shown.is_none_or(|shown| shown == expected), "{external:?} in round {round}: {shown:?}, {expected:?}");
    }
    let booked_flows = ledger.flows_at(bed.now());
    for flow in &flows {
        let remote_outside = flow.target.unwrap_or(flow.remote);
        let key =
            ((flow.external.address, flow.protocol, flow.external.port), (remote_outside.address, remote_outside.port));
        let holder = booked_flows.get(&key).unwrap_or_else(|| panic!("{flow:?} is in no record"));
        assert_eq!((holder.subscriber, holder.port), (flow.internal.address, flow.internal.port));
    }
    let leased = |shard: &nat::Shard| shard.counters().blocks_leased - shard.counters().blocks_returned;
    assert_eq!(ledger.blocks() as u64, bed.shards().map(leased).sum::<u64>(), "blocks in round {round}");
    for mapping in &mappings {
        let external = (mapping.external.address, mapping.protocol, mapping.external.port);
        let block = ledger.block_holder(mapping.external.address, mapping.external.port);
        let whose = booked.get(&external).or(block.as_ref());
        assert!(
            whose.is_none_or(|holder| holder.subscriber == mapping.internal.address),
            "{mapping:?} in round {round}: {whose:?}"
        );
    }
}

/// What the census says of `next` is what a count says afterwards.
fn preview(bed: &Bed, next: &Settings) -> u64 {
    let counts = bed.census(next.clone());
    counts.iter().map(|one| one.mappings.total() + one.flows.total()).sum()
}

fn shared_sessions(bed: &Bed) -> u64 {
    bed.sessions().iter().filter(|session| session.shared).count() as u64
}

/// Whether a switch to `next` may end a talk: its address may be gone, or its port may belong to
/// another subscriber for good, possibly since an earlier change.
fn may_end(next: &Settings, talk: &Talk) -> bool {
    let has_static = || next.forwards.iter().any(|forward| forward.external == *talk.external.ip());
    let is_pool_of_ports = |pool: &Pool| !pool.one_to_one && pool.addresses.contains(talk.external.ip());
    let serves_whole =
        |pool: &Pool| pool.one_to_one && pool.subscribers.iter().any(|some| some.contains(*talk.internal.ip()));
    next.reload.removed == Removed::End
        && (has_static() || next.pools.iter().any(serves_whole) || !next.pools.iter().any(is_pool_of_ports))
}

fn run(seed: u64, rounds: u32) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut modes = [Mode::Ports, Mode::Blocks(64)];
    let first = loop {
        let settings = random_settings(modes, &mut random);
        if settings.pools.iter().all(|pool| pool.addresses.len() < 20) {
            break settings;
        }
    };
    let mut bed = Bed::new(first).workers(WORKERS).seed(seed).steering(Steering::Random).record_events(1 << 14);
    let mut books = Books::default();
    let mut talks: Vec<Talk> = Vec::new();
    let mut changes: HashMap<(Mode, Mode), u32> = HashMap::new();
    let (mut refused, mut asked, mut shared) = (0, 0_u64, 0_u64);
    for round in 0..rounds {
        // Only the few of the west can have addresses of their own.
        let next_modes = [MODES[random.random_range(0..5)], MODES[random.random_range(0..6)]];
        let next = random_settings(next_modes, &mut random);
        let (ending, going_on): (Vec<Talk>, Vec<Talk>) = talks.iter().partition(|talk| may_end(&next, talk));
        let mut order = vec![0, 1, 2];
        order.swap(0, random.random_range(0..3));
        order.swap(1, random.random_range(1..3));
        let (generation, used) = (bed.shared().generation(), bed.ports_used());
        let mut step = 0;
        let outcome = bed.reload_while(next.clone(), &order, |bed| {
            step += 1;
            for talk in going_on.iter().skip(step % 5).step_by(5) {
                talk.goes_on(bed, &format!("seed {seed}, round {round}, step {step}"));
                asked += 2;
            }
        });
        match outcome {
            Ok(()) => {
                for pair in modes.into_iter().zip(next_modes) {
                    *changes.entry(pair).or_default() += 1;
                }
                modes = next_modes;
                talks = going_on;
                drop(ending);
            }
            Err(_) => {
                refused += 1;
                assert_eq!((bed.shared().generation(), bed.ports_used(), step), (generation, used, 0));
            }
        }
        for talk in &talks {
            talk.goes_on(&mut bed, &format!("seed {seed}, after round {round}"));
        }
        check_owners(&mut bed, &mut books, round);
        assert_eq!(
            preview(&bed, bed.settings()),
            bed.mappings().len() as u64 + shared_sessions(&bed),
            "the census finds each once"
        );
        // Some end, some begin.
        if talks.len() > 60 {
            talks.drain(..25);
        }
        for _ in 0..6 {
            // Half of them of the few that may have addresses of their own.
            let host = if random.random() { random.random_range(65..71) } else { random.random_range(10..250) };
            let internal = at(Ipv4Addr::new(100, 64, 0, host), random.random_range(2_000..60_000));
            let remote_inside = match random.random_range(0..4) {
                0 => at(E1, 80),
                1 => at(E2, 8_080),
                2 => at(SERVICE, 80),
                _ => at(Ipv4Addr::new(198, 51, 100, random.random_range(1..100)), 443),
            };
            if talks.iter().any(|talk| talk.internal == internal) {
                continue;
            }
            let Some(talk) = Talk::begin(&mut bed, internal, remote_inside) else { continue };
            talk.goes_on(&mut bed, &format!("seed {seed}, new in round {round}"));
            check_new(&bed, &talk);
            talks.push(talk);
        }
        shared += shared_sessions(&bed);
        check_owners(&mut bed, &mut books, round);
        if random.random_ratio(1, 6) {
            bed.open_event_log();
            books.later = Some(Ledger::opened());
        }
        bed.advance(Duration::from_millis(random.random_range(100..5_000)));
    }
    assert!(asked > u64::from(rounds) * 10 && refused > 0 && shared > 0, "{asked} asked, {refused} refused, {shared}");
    assert!(changes.len() > 15, "{} kinds of changes of mode", changes.len());
    bed.run_out();
    // Idle blocks go back, and shared ports.
    bed.advance_secs(300);
    books.read(&mut bed);
    assert!(books.compared > rounds / 4, "{} times", books.compared);
    let ledger = &books.whole;
    assert!(ledger.at(bed.now()).is_empty() && ledger.flows_at(bed.now()).is_empty() && ledger.lost == 0);
    assert_eq!(ledger.blocks(), 0, "all blocks are back");
    bed.reload(roomy());
    bed.advance_secs(5);
    for (place, slot) in bed.shared().addresses() {
        let total = Protocol::ALL.map(|protocol| bed.shared().ports_available(place, protocol));
        let expected = if slot.closed.is_some() { [0; 3] } else { [64_512, 64_512, 65_535] };
        assert_eq!(total, expected, "{}", slot.address);
        assert_eq!(Protocol::ALL.map(|protocol| bed.shared().ports_used(place, protocol)), [0; 3]);
    }
    bed.run_out();
}

/// A new mapping is where the settings in use put it.
fn check_new(bed: &Bed, talk: &Talk) {
    let shared = bed.shared();
    let place: AddressIndex = shared.address_index(*talk.external.ip()).expect("an address of a pool");
    let forwarded = bed.settings().forwards.iter().any(|forward| {
        forward.external == *talk.external.ip() && (forward.ports.0..=forward.ports.1).contains(&talk.external.port())
    });
    let pool = shared.pool(shared.pool_of(place)).expect("it has a pool");
    let mapped = bed.mapping_of(Protocol::Udp, talk.internal);
    // A forward is open on an address that drains, and so is an address of one's own.
    if !forwarded && !pool.one_to_one {
        assert!(shared.closed(place).is_none(), "{talk:?} is on an address that is closed; {mapped:?}");
        assert!((pool.port_min..=pool.port_max).contains(&talk.external.port()), "{talk:?}");
        assert!(!pool.reserved_ports.contains(&talk.external.port()), "{talk:?}");
    }
}

#[test]
fn leaving_a_slice_is_logged_when_the_formula_changes() {
    covers!("6888-4");
    let formula = |subscribers: &[Prefix]| {
        let mut settings = roomy();
        settings.pools[0].allocation = Allocation::Deterministic {
            dynamic_slices: 0,
            overflow: random_blocks(64, &mut SmallRng::seed_from_u64(1)),
        };
        settings.pools[0].subscribers = subscribers.to_vec();
        settings
    };
    let (first, second) = (topology::prefix([100, 64, 0, 0], 25), topology::prefix([100, 64, 0, 128], 25));
    let mut bed = Bed::new(formula(&[first])).workers(2).record_events(1 << 10);
    let mut ledger = Ledger::default();
    let internals: Vec<_> = (10..50).map(|host| at(Ipv4Addr::new(100, 64, 0, host), 5_000)).collect();
    let talks: Vec<_> = internals.iter().map(|one| Talk::begin(&mut bed, *one, at(E1, 80)).expect("let")).collect();
    // Everybody has another slice from now on.
    let next = formula(&[second, first]);
    let counts = bed.census(next.clone())[0];
    assert!(counts.mappings.drain > 30, "{counts:?}");
    bed.reload(next);
    bed.advance_secs(1);
    for worker in 0..2 {
        ledger.read(worker, &bed.take_events(worker, usize::MAX));
    }
    let (booked, shared) = (ledger.at(bed.now()), bed.shared());
    let mut reported = 0;
    for talk in &talks {
        let external = (*talk.external.ip(), Protocol::Udp, talk.external.port());
        let place = shared.address_index(*talk.external.ip()).expect("an address of the pool");
        let by_formula =
            shared.slice_owner(place, talk.external.port()) == Some(Owner::Subscriber(*talk.internal.ip()));
        match booked.get(&external) {
            Some(holder) => assert_eq!((holder.subscriber, holder.port), (*talk.internal.ip(), talk.internal.port())),
            None => assert!(by_formula, "{talk:?} is reported neither by the formula nor by the log"),
        }
        reported += u64::from(!by_formula);
    }
    assert_eq!(reported, counts.mappings.drain, "as the census preview");
    bed.run_out();
    for worker in 0..2 {
        ledger.read(worker, &bed.take_events(worker, usize::MAX));
    }
    assert!(ledger.at(bed.now()).is_empty(), "and their ends are reported too");
}

/// The formula of the configuration knows nothing of an address that is not there any more.
#[test]
fn the_log_names_the_slices_of_a_removed_address() {
    covers!("6888-4");
    let formula = |addresses: &[Ipv4Addr]| {
        let mut settings = roomy();
        let overflow = random_blocks(64, &mut SmallRng::seed_from_u64(1));
        settings.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 0, overflow };
        settings.pools[0].subscribers = vec![topology::prefix([100, 64, 1, 0], 28)];
        settings.pools[0].addresses = addresses.to_vec();
        settings
    };
    // Replaced, one of several, and the first of several, so that the others have other slices.
    let changes: [(&[Ipv4Addr], &[Ipv4Addr]); 3] =
        [(&POOL[..1], &POOL[1..2]), (&POOL[..3], &POOL[..2]), (&POOL[..3], &POOL[1..3])];
    for (before, after) in changes {
        let mut bed = Bed::new(formula(before)).workers(2).record_events(1 << 10);
        let mut ledger = Ledger::default();
        let internals: Vec<_> = (1..15).map(|host| at(Ipv4Addr::new(100, 64, 1, host), 5_000)).collect();
        let talks: Vec<_> = internals.iter().map(|one| Talk::begin(&mut bed, *one, at(E1, 80)).expect("let")).collect();
        bed.reload(formula(after));
        bed.advance_secs(1);
        for worker in 0..2 {
            ledger.read(worker, &bed.take_events(worker, usize::MAX));
        }
        let (booked, shared) = (ledger.at(bed.now()), bed.shared());
        for talk in &talks {
            let external = (*talk.external.ip(), Protocol::Udp, talk.external.port());
            let place = shared.address_index(*talk.external.ip()).expect("an address of the pool, still");
            let owner = shared.slice_owner(place, talk.external.port());
            if !after.contains(talk.external.ip()) {
                assert_eq!(owner, None, "{talk:?}");
            }
            match booked.get(&external) {
                Some(holder) => assert_eq!((holder.subscriber, holder.port), (*talk.internal.ip(), 5_000)),
                None => assert_eq!(owner, Some(Owner::Subscriber(*talk.internal.ip())), "{talk:?} is reported nowhere"),
            }
        }
        bed.run_out();
        for worker in 0..2 {
            ledger.read(worker, &bed.take_events(worker, usize::MAX));
        }
        assert!(ledger.at(bed.now()).is_empty(), "and their ends are reported too");
    }
}

/// Two realms with the same addresses: to the formula they look alike.
#[test]
fn leaving_a_slice_is_logged_when_the_formula_changes_realm() {
    covers!("6888-4");
    let (red, blue) = (RealmId(0), RealmId(1));
    let formula_of = |realm: RealmId, other: RealmId| {
        let mut settings = roomy();
        let interface = InterfaceId(settings.interfaces.len() as u16);
        let like_red = settings.interfaces[0].clone();
        settings.interfaces.push(Interface { name: "blue".to_owned(), realm: blue, ..like_red });
        let way = settings.routes[0];
        settings.routes.push(Route { interface, ..way });
        settings.realm_names = ["red", "blue"].map(str::to_owned).to_vec();
        let dynamic = Pool {
            name: "dynamic".into(),
            addresses: vec![Ipv4Addr::new(203, 0, 113, 200)],
            realms: vec![other],
            ..settings.pools[0].clone()
        };
        let overflow = random_blocks(64, &mut SmallRng::seed_from_u64(1));
        settings.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 0, overflow };
        settings.pools[0].subscribers = vec![topology::prefix([100, 64, 0, 0], 25)];
        settings.pools[0].realms = vec![realm];
        settings.pools.push(dynamic);
        settings
    };
    let mut bed = Bed::new(formula_of(blue, red)).workers(2).record_events(1 << 10);
    let all = |bed: &mut Bed| (0..2).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect::<Vec<_>>();
    let internals: Vec<_> = (10..30).map(|host| at(Ipv4Addr::new(100, 64, 0, host), 5_000)).collect();
    for internal in &internals {
        bed.inside_by(InterfaceId(2), &build::udp(*internal, at(E1, 80)).build());
    }
    assert_eq!(bed.take_outside().len(), internals.len());
    let mut mapped: Vec<_> = bed.mappings().iter().map(|one| (one.realm, one.internal, one.external)).collect();
    assert_eq!(all(&mut bed), [], "the formula is enough");
    let next = formula_of(red, blue);
    let counts = bed.census(next.clone())[0];
    assert_eq!(counts.mappings.drain, internals.len() as u64, "their ports are others' from then on: {counts:?}");
    bed.reload(next);
    bed.advance_secs(1);
    let of = |event: &Event| {
        let internal = Endpoint::new(event.subscriber, event.internal_port);
        (event.realm, internal, Endpoint::new(event.external, event.first_port))
    };
    let by = |events: Vec<Event>, kind| -> Vec<_> {
        let mut found: Vec<_> = events.iter().filter(|event| event.kind == kind).map(of).collect();
        found.sort_unstable_by_key(|(_, internal, _)| *internal);
        found
    };
    mapped.sort_unstable_by_key(|(_, internal, _)| *internal);
    assert!(mapped.iter().all(|(realm, ..)| *realm == blue));
    assert_eq!(by(all(&mut bed), EventKind::MappingCreated), mapped);
    bed.run_out();
    assert_eq!(by(all(&mut bed), EventKind::MappingEnded), mapped, "and their ends are reported too");
}

#[test]
fn pools_change_mode_and_everything_else_under_traffic() {
    for_each_seed(4, |seed| run(seed, 100));
}
