//! Pools as some operator might have them, at random, for tests that change configurations while
//! traffic flows.

use core::net::Ipv4Addr;
use core::ops::Range;

use nat::Duration;
use nat::Protocol;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Rate;
use nat::settings::Selection;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::types::Prefix;
use nat::types::RealmId;
use rand::Rng;
use rand::rngs::SmallRng;

/// How a pool gives ports out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Single ports.
    Ports,
    /// Blocks of so many ports.
    Blocks(u32),
    /// Slices by a formula, and dynamic blocks of 64 ports.
    Deterministic,
    /// Whole addresses.
    OneToOne,
}

/// What a random pool is to be.
#[derive(Clone, Debug)]
pub struct PoolShape {
    /// Its name.
    pub name: &'static str,
    /// Third byte of its addresses.
    pub third: u8,
    /// The subscribers it serves.
    pub subscribers: Prefix,
    /// How it gives ports out.
    pub mode: Mode,
    /// How many ports its range has, but for one.
    pub spans: Range<u16>,
}

/// Blocks of so many ports, some of them for each subscriber.
///
/// # Panics
/// When the number is no power of two.
pub fn random_blocks(ports: u32, random: &mut SmallRng) -> Blocks {
    Blocks {
        size: BlockSize::of_ports(ports).expect("a power of two"),
        per_subscriber_max: random.random_range(2..9),
        idle: Duration::from_secs(random.random_range(1..60)),
    }
}

/// A pool of this shape, with everything else about it at random.
pub fn random_pool(shape: &PoolShape, random: &mut SmallRng) -> Pool {
    let PoolShape { name, third, subscribers, mode, ref spans } = *shape;
    let mut hosts: Vec<u8> = (1..13).collect();
    let count = if mode == Mode::OneToOne { 1 << (32 - subscribers.length()) } else { random.random_range(1..7) };
    let addresses = (0..count)
        .map(|_| Ipv4Addr::new(203, 0, third, hosts.swap_remove(random.random_range(0..hosts.len()))))
        .collect::<Vec<_>>();
    let low = random.random_range(1_024..30_000);
    let filterings = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
    let pool = Pool {
        name: name.into(),
        subscribers: vec![subscribers],
        realms: if random.random() { vec![RealmId::default()] } else { Vec::new() },
        pooling: if random.random() { Pooling::Paired } else { Pooling::Arbitrary },
        selection: [Selection::LeastUsed, Selection::RoundRobin, Selection::Hash][random.random_range(0..3)],
        filtering: [filterings[random.random_range(0..3)]; Protocol::COUNT],
        reuse_delay: Duration::from_secs(random.random_range(0..30)),
        threshold: random.random::<bool>().then_some(Threshold { high_percent: 80, low_percent: 60 }),
        shared_ports_min: random.random_range(1..4),
        draining: random.random_ratio(1, 12),
        draining_addresses: addresses.iter().copied().filter(|_| random.random_ratio(1, 8)).collect(),
        addresses,
        ..Pool::default()
    };
    match mode {
        Mode::OneToOne => Pool { one_to_one: true, realms: vec![RealmId::default()], ..pool },
        _ => Pool {
            port_min: low,
            port_max: low + random.random_range(spans.clone()),
            reserved_ports: (0..random.random_range(0..4)).map(|step| low + 100 + step).collect(),
            parity: random.random(),
            allocation: match mode {
                Mode::Blocks(ports) => Allocation::Blocks(random_blocks(ports, random)),
                Mode::Deterministic => Allocation::Deterministic {
                    dynamic_slices: random.random_range(0..60),
                    overflow: random_blocks(64, random),
                },
                Mode::Ports | Mode::OneToOne => Allocation::Ports,
            },
            pooling: if mode == Mode::Deterministic { Pooling::Paired } else { pool.pooling },
            ..pool
        },
    }
}

/// What each subscriber may use: sometimes too little for anything new.
pub fn random_limits(random: &mut SmallRng) -> SubscriberLimits {
    let few = |random: &mut SmallRng| if random.random_ratio(1, 4) { random.random_range(1..6) } else { u32::MAX };
    let rate = |random: &mut SmallRng| random.random_ratio(1, 4).then_some(Rate { per_second: 50, burst: 50 });
    SubscriberLimits {
        ports_max: [few(random), few(random), few(random)],
        sessions_max: few(random),
        new_mappings: rate(random),
        new_sessions: rate(random),
        threshold: random.random::<bool>().then_some(Threshold { high_percent: 90, low_percent: 50 }),
        ..SubscriberLimits::default()
    }
}
