//! A plan follows what rules do with what subscribers send: who keeps, moves or gets nothing new by
//! it fares so after the reload.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Affected;
use nat::Census;
use nat::Denial;
use nat::Duration;
use nat::Onward;
use nat::PoolCensus;
use nat::Prospect;
use nat::Protocol;
use nat::RuleChanges;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::RuleAction;
use nat::types::PoolId;
use nat::types::Prefix;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// A remote host that no rule mentions.
const ANYBODY: Ipv4Addr = Ipv4Addr::new(192, 88, 99, 77);
/// In [`all_kinds`] the pool with arbitrary pooling.
const ANY: PoolId = PoolId(5);
const SPARE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 200);

const fn by(pool: Option<PoolId>) -> RuleAction {
    RuleAction::Translate { pool, mapping: MappingKind::EndpointIndependent }
}

fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(100, 64, 0, number)
}

/// Everybody on one address, and a pool of another one that only rules lead to.
fn two_pools() -> Settings {
    let mut settings = settings().addresses(&POOL[..1]);
    let second = Pool { name: "z".into(), addresses: vec![SPARE], subscribers: Vec::new(), ..Pool::default() };
    settings.pools.push(second);
    settings.limits.external_addresses_max = 16;
    settings
}

/// That keep, move, drain and leave, of all pools.
fn counts(census: &Census) -> [u64; 4] {
    let sum = |of: fn(&PoolCensus) -> u64| census.pools.iter().map(of).sum::<u64>();
    [
        sum(|pool| pool.subscribers_keep),
        sum(|pool| pool.subscribers_move),
        sum(|pool| pool.subscribers_drain),
        sum(|pool| pool.subscribers_leave),
    ]
}

#[test]
fn a_rule_that_sends_everybody_to_another_pool_moves_everybody() {
    let mut bed = Bed::new(two_pools());
    assert_eq!(*bed.open_udp(at(I1, 4_000), at(E1, 53)).ip(), POOL[0]);
    let next = two_pools().rule(Match::ALL, by(Some(PoolId(1))));
    let census = bed.census_with_names(next.clone(), 10);
    assert_eq!(counts(&census), [0, 1, 0, 0]);
    let expected = Affected {
        realm: nat::types::RealmId(0),
        address: I1,
        pool: PoolId(0),
        external: Some(POOL[0]),
        becomes: Prospect::Moves,
        onward: Some(Onward::Pool(PoolId(1))),
        protocols: [true; 3],
    };
    assert_eq!(census.affected, [expected]);
    assert_eq!(census.outlook.rule_changes(), RuleChanges { added: 1, ..RuleChanges::default() });
    assert_eq!(census.pools[0].mappings.keep, 1, "what is there stays");
    bed.reload(next);
    assert_eq!(*bed.open_udp(at(I1, 4_000), at(E1, 53)).ip(), POOL[0]);
    assert_eq!(*bed.open_udp(at(I1, 4_001), at(E1, 53)).ip(), SPARE);
    // And back again.
    let census = bed.census_with_names(two_pools(), 10);
    assert_eq!(counts(&census), [0, 1, 0, 0]);
    assert_eq!((census.affected[0].pool, census.affected[0].onward), (PoolId(1), Some(Onward::Pool(PoolId(0)))));
    bed.reload(two_pools());
    assert_eq!(*bed.open_udp(at(I1, 4_002), at(E1, 53)).ip(), POOL[0]);
    bed.run_out();
}

#[test]
fn a_subscriber_denied_by_a_rule_drains_with_that_reason() {
    let mut bed = Bed::new(two_pools());
    bed.open_udp(at(I1, 4_000), at(E1, 53));
    let of_udp = Match { protocol: Some(Protocol::Udp.number()), ..Match::ALL };
    let cases = [
        (Match::ALL, RuleAction::Drop, Denial::Dropped, [true; 3]),
        (Match::ALL, RuleAction::NoTranslation, Denial::Untranslated, [true; 3]),
        (of_udp, RuleAction::Drop, Denial::Dropped, Protocol::ALL.map(|protocol| protocol == Protocol::Udp)),
    ];
    for (matches, action, denial, protocols) in cases {
        let next = two_pools().rule(matches, action);
        let census = bed.census_with_names(next.clone(), 10);
        assert_eq!(counts(&census), [0, 0, 1, 0], "{matches:?} {action:?}");
        let [one] = &census.affected[..] else { panic!("one is concerned: {census:?}") };
        assert_eq!((one.becomes, one.onward), (Prospect::Drains(None), Some(Onward::Nothing(denial))));
        assert_eq!(one.protocols, protocols);
        // Meanwhile another change does nothing to the subscriber.
        bed.reload(next.clone());
        assert_eq!(counts(&bed.census_with_names(next, 10)), [1, 0, 0, 0]);
        bed.reload(two_pools());
    }
    bed.run_out();
}

#[test]
fn rules_about_some_destinations_move_no_subscriber() {
    let mut bed = Bed::new(two_pools());
    bed.open_udp(at(I1, 4_000), at(E1, 53));
    let web = Match { destination_ports: PortRange::one(443), ..Match::ALL };
    let there = Match { destination: topology::prefix([198, 51, 100, 0], 24), ..Match::ALL };
    let next = two_pools().rule(web, by(Some(PoolId(1)))).rule(there, RuleAction::Drop);
    let census = bed.census_with_names(next.clone(), 10);
    assert_eq!(counts(&census), [1, 0, 0, 0]);
    assert_eq!(census.outlook.rule_changes(), RuleChanges { added: 2, narrow: 2, ..RuleChanges::default() });
    // A rule for everybody behind them counts, as they do not concern what is sent elsewhere.
    let next = next.rule(Match::ALL, by(Some(PoolId(1))));
    assert_eq!(counts(&bed.census_with_names(next, 10)), [0, 1, 0, 0]);
    // Where rules name all there is, it is said that nobody was asked.
    let half = |first: u8| Match { destination: topology::prefix([first, 0, 0, 0], 1), ..Match::ALL };
    let next = two_pools().rule(half(0), RuleAction::Drop).rule(half(128), RuleAction::Drop);
    let census = bed.census_with_names(next, 10);
    assert!(census.outlook.is_blind());
    assert_eq!(counts(&census), [1, 0, 0, 0]);
    bed.run_out();
}

fn blocks() -> Blocks {
    Blocks {
        size: BlockSize::of_ports(64).expect("a block size"),
        per_subscriber_max: 8,
        idle: Duration::from_secs(60),
    }
}

/// Some of each kind of pool: single ports, blocks, a formula, own addresses, and two that only
/// rules lead to.
fn all_kinds() -> Settings {
    let mut settings = settings().addresses(&POOL);
    settings.limits.external_addresses_max = 64;
    settings.limits.flows_max = 1_000;
    let pool = |name: &str, first: u8, count: u8, subscribers: Option<Prefix>| Pool {
        name: name.into(),
        addresses: (first..first + count).map(|last| Ipv4Addr::new(203, 0, 114, last)).collect(),
        subscribers: subscribers.into_iter().collect(),
        ..Pool::default()
    };
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 0, 0], 26)];
    settings.pools.push(Pool {
        allocation: Allocation::Blocks(blocks()),
        ..pool("blocks", 10, 3, Some(topology::prefix([100, 64, 0, 64], 27)))
    });
    settings.pools.push(Pool {
        allocation: Allocation::Deterministic { dynamic_slices: 2, overflow: blocks() },
        ..pool("formula", 20, 2, Some(topology::prefix([100, 64, 0, 96], 28)))
    });
    settings.pools.push(Pool { one_to_one: true, ..pool("own", 30, 4, Some(topology::prefix([100, 64, 0, 112], 30))) });
    settings.pools.push(pool("z", 40, 3, None));
    settings.pools.push(Pool { pooling: Pooling::Arbitrary, ..pool("any", 50, 3, None) });
    settings
}

/// The hosts of these subscribers, and one that no pool serves.
const HOSTS: [u8; 17] = [10, 11, 12, 13, 20, 33, 34, 70, 71, 72, 97, 98, 99, 113, 114, 140, 141];

fn random_rules(mut settings: Settings, random: &mut SmallRng) -> Settings {
    for _ in 0..random.random_range(0..5) {
        let protocols = [None, None, Some(6), Some(17), Some(1)];
        let sources =
            [Prefix::ALL, Prefix::ALL, topology::prefix([100, 64, 0, 0], 27), topology::prefix([100, 64, 0, 96], 28)];
        let mut matches = Match {
            protocol: protocols[random.random_range(0..5)],
            source: sources[random.random_range(0..4)],
            ..Match::ALL
        };
        match random.random_range(0..4) {
            0 => matches.destination = topology::prefix([198, 51, 100, 0], 24),
            1 => matches.destination_ports = PortRange::one(443),
            _ => {}
        }
        let mapping = MappingKind::EndpointDependent;
        let action = match random.random_range(0..9) {
            0 => RuleAction::Drop,
            1 => RuleAction::NoTranslation,
            2 | 3 => by(None),
            4 => by(Some(ANY)),
            5 => by(Some(PoolId(random.random_range(0..3)))),
            6 => RuleAction::Translate { pool: [None, Some(PoolId(4))][random.random_range(0..2)], mapping },
            _ => by(Some(PoolId(4))),
        };
        settings = settings.rule(matches, action);
    }
    settings
}

/// Rules at random, and at times something about pools.
fn random_settings(random: &mut SmallRng) -> Settings {
    let mut settings = all_kinds();
    if random.random_ratio(1, 4) {
        let pool = &mut settings.pools[[0, 1, 2, 4][random.random_range(0..4)]];
        pool.draining_addresses = vec![pool.addresses[0]];
    }
    if random.random_ratio(1, 8) {
        settings.pools[[0, 4][random.random_range(0..2)]].draining = true;
    }
    random_rules(settings, random)
}

/// The external address that something new from here gets, if it is translated.
fn opens(bed: &mut Bed, protocol: Protocol, internal: Ipv4Addr, port: u16) -> Option<Ipv4Addr> {
    let (from, to) = (at(internal, port), at(ANYBODY, 7_777));
    let packet = match protocol {
        Protocol::Udp => build::udp(from, to).build(),
        Protocol::Tcp => build::tcp(from, to, Flags::SYN).sequence(1).build(),
        Protocol::Icmp => build::echo_request(internal, ANYBODY, port).build(),
    };
    bed.inside(&packet);
    bed.take_inside();
    let sent = bed.take_outside();
    let source = sent.first().map(|packet| Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]));
    source.filter(|source| *source != internal)
}

/// On which addresses subscribers have had something until now.
type Known = HashMap<Ipv4Addr, HashSet<Ipv4Addr>>;

/// The same subscribers with the same past, each time.
fn with_past(seed: u64, past: &[Settings]) -> (Bed, Known) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut bed = Bed::new(past[0].clone()).seed(seed);
    let mut known = Known::new();
    for (round, settings) in (0..).zip(past) {
        if round > 0 {
            bed.reload(settings.clone());
        }
        for number in HOSTS {
            let protocol = Protocol::ALL[random.random_range(0..3)];
            if let Some(external) = opens(&mut bed, protocol, host(number), 2_000 + round) {
                known.entry(host(number)).or_default().insert(external);
            }
        }
    }
    (bed, known)
}

/// How often the explanation was right.
#[derive(Debug, Default)]
struct Tally {
    keeps: u32,
    moves: u32,
    gets_nothing: u32,
    /// Of those who move, whose new address is by chance what it would have been.
    by_chance: u32,
}

fn run(seed: u64, tally: &mut Tally) {
    let mut random = SmallRng::seed_from_u64(seed ^ 0x9e37_79b9);
    let past: Vec<Settings> = (0..random.random_range(1..3)).map(|_| random_settings(&mut random)).collect();
    let next = random_settings(&mut random);
    let protocol = Protocol::ALL[random.random_range(0..3)];
    let (mut without, known) = with_past(seed, &past);
    let (mut with, _) = with_past(seed, &past);
    let census = with.census_with_names(next.clone(), 1_000);
    assert!(!census.outlook.is_blind());
    with.reload(next);
    for (internal, had) in &known {
        let one = opens(&mut without, protocol, *internal, 9_000);
        let other = opens(&mut with, protocol, *internal, 9_000);
        let shared = with.shared();
        let pool_of =
            |external: Option<Ipv4Addr>| external.and_then(|it| shared.address_index(it)).map(|it| shared.pool_of(it));
        let has_had = |external: Option<Ipv4Addr>| external.is_some_and(|external| had.contains(&external));
        let context = format!("seed {seed}, {protocol:?} of {internal}, {one:?} without and {other:?} with the change");
        let Some(affected) = census.affected.iter().find(|affected| affected.address == *internal) else {
            // On one that is chosen with or without the change, or each time anew.
            let is_anew = pool_of(one) == pool_of(other) && (!has_had(one) || pool_of(one) == Some(ANY));
            // Rules that refused the subscriber no longer do.
            let is_regained = one.is_none() && (has_had(other) || pool_of(other) == Some(ANY));
            assert!(one == other || is_anew || is_regained, "kept: {context}");
            tally.keeps += 1;
            continue;
        };
        if !affected.protocols[protocol.index()] {
            // Another protocol of the subscriber fares worse.
            continue;
        }
        if affected.becomes != Prospect::Moves {
            assert_eq!(other, None, "{:?}: {context}", affected.becomes);
            tally.gets_nothing += 1;
            continue;
        }
        // An address chosen anew among several may be the one the subscriber had.
        let is_chance =
            one == other && pool_of(one).and_then(|id| shared.pool(id)).is_some_and(|pool| pool.addresses.len() > 1);
        assert!(other.is_some() && (one != other || is_chance), "moves: {context}");
        // A pool is named if it is the same for all that moves with the subscriber.
        let is_named = affected.onward.is_none() || affected.onward == pool_of(other).map(Onward::Pool);
        assert!(is_named, "{:?}: {context}", affected.onward);
        tally.by_chance += u32::from(is_chance);
        tally.moves += 1;
    }
}

#[test]
fn a_plan_of_random_rules_agrees_with_the_reload() {
    let mut tally = Tally::default();
    for seed in 1..=60 {
        run(seed, &mut tally);
    }
    assert!(tally.keeps > 100 && tally.moves > 50 && tally.gets_nothing > 30, "{tally:?}");
    assert!(tally.by_chance * 20 < tally.moves, "{tally:?}");
}
