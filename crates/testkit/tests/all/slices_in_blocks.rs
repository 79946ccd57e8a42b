//! A pool goes from port blocks to a formula on the same addresses: blocks of others lie in slices
//! until nothing in them is used. The plan counts these slices and says until when, `why` refuses
//! where nothing is left, and each slice is whole in the end.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Duration;
use nat::Settings;
use nat::SlicePlan;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::deterministic::Owner;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Forward;
use nat::settings::Pool;
use nat::types::Facing;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::Protocol;
use nat::types::RealmId;
use nat::view::Explanation;
use nat::view::Step;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::seeds::for_each_seed;
use testkit::topology::prefix;
use testkit::*;
use wire::build;

/// The n-th holder of a block.
fn holder(n: u8) -> SocketAddrV4 {
    at(Ipv4Addr::new(100, 64, 3, n), 4_000)
}

/// The n-th subscriber of the formula.
fn subscriber(n: u8) -> SocketAddrV4 {
    at(Ipv4Addr::new(100, 64, 0, 32 + n), 5_000)
}

fn blocks(ports: u32, per_subscriber_max: u16) -> Blocks {
    let size = BlockSize::of_ports(ports).expect("a power of two");
    Blocks { size, per_subscriber_max, idle: Duration::from_secs(60) }
}

fn in_blocks(addresses: &[Ipv4Addr], ports: u32) -> Settings {
    let mut settings = settings().addresses(addresses).ports(1_024, 2_047);
    settings.limits.external_addresses_max = 8;
    settings.pools[0].allocation = Allocation::Blocks(blocks(ports, 4));
    settings
}

/// The same addresses and ports by a formula for these subscribers; everybody else has an address
/// besides.
fn by_formula(before: &Settings, subscribers: Prefix) -> Settings {
    let mut next = before.clone();
    next.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 0, overflow: blocks(64, 0) };
    next.pools[0].subscribers = vec![subscribers];
    next.pools.push(Pool {
        name: "others".into(),
        addresses: vec![POOL[2]],
        subscribers: vec![prefix([100, 64, 0, 0], 10)],
        ..Pool::default()
    });
    next
}

fn why(bed: &Bed, from: SocketAddrV4) -> Explanation {
    let packet = build::udp(from, at(E1, 53)).payload_length(8).build();
    let shards: Vec<_> = bed.shards().collect();
    let from = Facing::inside(RealmId::default());
    let asked = bed
        .shared()
        .explain(from, &packet, |worker, _| Ok::<_, ()>(shards[worker.index()].explain(bed.now(), from, &packet)));
    asked.expect("shards always answer").1
}

/// What others have of the slice, and how many ports it has, if that is said.
fn said(explanation: &Explanation) -> Option<(u32, u32)> {
    explanation.steps.iter().find_map(|step| match step {
        Step::SliceInBlocks { leased, ports, .. } => Some((*leased, *ports)),
        _ => None,
    })
}

/// Ports of slices in blocks of others, counted one by one, by subscriber.
fn counted(bed: &Bed) -> HashMap<Ipv4Addr, HashSet<(u32, u16)>> {
    let shared = bed.shared();
    let mut found: HashMap<Ipv4Addr, HashSet<(u32, u16)>> = HashMap::new();
    for (address, _) in shared.addresses() {
        for lease in shared.leases_on(address) {
            for port in lease.block.first_port()..=lease.block.last_port() {
                if let Some(Owner::Subscriber(owner)) = shared.slice_owner(address, port)
                    && owner != Ipv4Addr::from(lease.holder.address)
                {
                    found.entry(owner).or_default().insert((address.0, port));
                }
            }
        }
    }
    found
}

#[test]
fn slices_in_blocks_of_others_are_refused_as_planned() {
    for workers in [1, 2] {
        let before = in_blocks(&POOL[..1], 128);
        let mut bed = Bed::new(before.clone()).workers(workers);
        let mut held: Vec<_> = (1..9).map(|n| (holder(n), bed.open_udp(holder(n), at(E1, 443)))).collect();
        // Six of them, with 170 ports each, and four ports that nobody has.
        let next = by_formula(&before, prefix([100, 64, 0, 32], 29));
        let all = |until| SlicePlan { pool: PoolId(0), slices: 6, leased: 6, leased_whole: 6, until };
        assert_eq!(bed.slice_plan(next.clone()), [all(None)]);
        bed.reload(next.clone());
        assert_eq!(bed.slice_plan(next.clone()), [all(None)], "it is so now");
        for n in 1..7 {
            let preview = why(&bed, subscriber(n));
            assert_eq!((preview.verdict, said(&preview)), (Verdict::PortsExhausted, Some((170, 170))), "{preview:?}");
            let refused = bed.counters().of(Verdict::PortsExhausted);
            bed.inside(&build::udp(subscriber(n), at(E1, 53)).payload_length(8).build());
            assert_eq!(bed.counters().of(Verdict::PortsExhausted), refused + 1);
            bed.take_inside();
        }
        // All but one holder fall silent: the rest of the two or three slices that its block
        // overlaps is free.
        let (last, external) = held.remove(0);
        for _ in 0..6 {
            bed.advance_secs(100);
            assert_eq!(bed.open_udp(last, at(E1, 443)), external);
        }
        let left = counted(&bed);
        assert!((1..=3).contains(&left.len()), "{left:?}");
        let [plan] = bed.slice_plan(next.clone())[..] else { panic!("one pool is concerned") };
        assert_eq!((plan.leased, plan.leased_whole, plan.until), (left.len() as u64, 0, None));
        for n in 1..7 {
            let preview = why(&bed, subscriber(n));
            let leased = left.get(subscriber(n).ip()).map_or(0, |ports| ports.len() as u32);
            assert_eq!(said(&preview), (leased > 0).then_some((leased, 170)));
            let free = Step::MappingWouldBeCreated { ports_free: u64::from(170 - leased) };
            assert!(preview.verdict == Verdict::Outbound && preview.steps.contains(&free), "{preview:?}");
            bed.open_udp(subscriber(n), at(E1, 53));
        }
        bed.run_out();
        assert_eq!(bed.slice_plan(next), []);
    }
}

#[test]
fn a_deadline_says_when_every_slice_is_whole_at_the_latest() {
    let before = in_blocks(&POOL[..2], 64);
    let mut bed = Bed::new(before.clone()).workers(2);
    let mut held: Vec<_> = (1..9).map(|n| (holder(n), bed.open_udp(holder(n), at(E1, 443)))).collect();
    let mut next = by_formula(&before, prefix([100, 64, 0, 32], 29));
    next.reload.drain_time = Some(Duration::from_secs(90));
    let [plan] = bed.slice_plan(next.clone())[..] else { panic!("one pool is concerned") };
    let until = plan.until.expect("mappings in the slices of others end with the drain time");
    // Then the ports rest; no block of this pool lies idle, as it leases none.
    assert_eq!(until, bed.now() + Duration::from_secs(90 + 120));
    assert_eq!(bed.census(next.clone())[0].blocks.drain_until, 8, "and the blocks are counted so");
    bed.reload(next.clone());
    let planned: HashSet<_> = counted(&bed).into_keys().collect();
    assert_eq!(planned.len() as u64, plan.leased);
    bed.advance_secs(85);
    held.iter().for_each(|(from, external)| assert_eq!(bed.open_udp(*from, at(E1, 443)), *external));
    bed.advance_secs(2);
    held.clear();
    bed.advance_secs(120);
    assert!(bed.now() < until && !counted(&bed).is_empty(), "they rest until then");
    bed.advance_secs(10);
    assert!(bed.now() < until + Duration::from_secs(10) && counted(&bed).is_empty(), "and all is back then");
    assert_eq!(bed.slice_plan(next), []);
    bed.run_out();
}

#[test]
fn a_block_in_the_subscribers_own_slice_takes_no_port() {
    let before = in_blocks(&POOL[..1], 64);
    let mut bed = Bed::new(before.clone());
    let external = bed.open_udp(subscriber(0), at(E1, 443));
    let next = by_formula(&before, Prefix::new(*subscriber(0).ip(), 32).expect("a prefix"));
    assert_eq!(bed.slice_plan(next.clone()), []);
    bed.reload(next);
    let again = at(*subscriber(0).ip(), 5_001);
    let preview = why(&bed, again);
    let free = Step::MappingWouldBeCreated { ports_free: 1_023 };
    assert!(said(&preview).is_none() && preview.steps.contains(&free), "{preview:?}");
    assert_eq!(bed.open_udp(again, at(E1, 443)).ip(), external.ip());
    bed.run_out();
}

#[test]
fn the_plan_counts_what_is_there_one_by_one_after_the_change() {
    for_each_seed(24, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let addresses = &POOL[..random.random_range(1..3)];
        let before = in_blocks(addresses, [64, 128, 256][random.random_range(0..3)]);
        let mut bed = Bed::new(before.clone()).workers(random.random_range(1..4)).seed(seed);
        for n in 1..random.random_range(2..16) {
            let from = if random.random_bool(0.3) { subscriber(n) } else { holder(n) };
            bed.inside(&build::udp(from, at(E1, 443)).payload_length(8).build());
            bed.take_outside();
            bed.take_inside();
        }
        let mut next = by_formula(&before, prefix([100, 64, 0, 32], random.random_range(26..32)));
        let low = random.random_range(1_024..1_200);
        (next.pools[0].port_min, next.pools[0].port_max) = (low, random.random_range(1_700..2_500));
        next.pools[0].reserved_ports = (1_300..1_300 + random.random_range(0..90)).collect();
        let overflow = blocks(64, random.random_range(0..3));
        next.pools[0].allocation = Allocation::Deterministic { dynamic_slices: random.random_range(0..9), overflow };
        if random.random() {
            next.forwards.push(Forward {
                realm: RealmId::default(),
                protocol: Protocol::Tcp,
                external: addresses[0],
                ports: (1_500, 1_600),
                inside: Ipv4Addr::new(100, 64, 0, 9).into(),
                inside_port: 1_500,
                admission: nat::settings::Admission::AsPool,
            });
        }
        let planned = bed.slice_plan(next.clone());
        bed.reload(next.clone());
        // Ports that nobody is given, of neither protocol, count for nobody.
        let offers = |port: u16| !next.pools[0].reserved_ports.contains(&port);
        let mut leased = counted(&bed);
        leased.values_mut().for_each(|ports| ports.retain(|(_, port)| offers(*port)));
        leased.retain(|_, ports| !ports.is_empty());
        let formula = bed.shared().formula(PoolId(0)).expect("it has one");
        let slice = |owner: &Ipv4Addr| formula.slice_of((*owner).into()).expect("a subscriber");
        let has_all = |(owner, ports): &(&Ipv4Addr, &HashSet<_>)| {
            (slice(owner).first..=slice(owner).last).filter(|port| offers(*port)).count() == ports.len()
        };
        let (count, whole) = (leased.len() as u64, leased.iter().filter(has_all).count() as u64);
        let reported = planned.iter().map(|plan| (plan.slices, plan.leased, plan.leased_whole)).collect::<Vec<_>>();
        match count {
            0 => assert_eq!(reported, []),
            count => assert_eq!(reported, [(formula.subscribers(), count, whole)]),
        }
        bed.run_out();
    });
}
