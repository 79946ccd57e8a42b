//! The ports guaranteed to the subscribers of a class: others leave them alone however full their
//! pool is, with any number of workers, and a guaranteed port is there each time it is asked for.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::rules::Match;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Class;
use nat::settings::MappingKind;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::settings::Selection;
use nat::settings::SubscriberLimits;
use nat::types::Side;
use nat::view::Step;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::topology::prefix;
use testkit::*;
use wire::build;

const FAR: SocketAddrV4 = at(E1, 80);
const GUARANTEED: u16 = 10;

/// The n-th of four subscribers with a guarantee.
fn business(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0900 + n)
}

/// A hundred ports on each of so many addresses; ten are guaranteed to each of four subscribers.
fn guaranteed(addresses: usize) -> Settings {
    let mut settings = settings().ports(1_024, 1_123).addresses(&POOL[..addresses]);
    let reserved = u32::from(GUARANTEED);
    let limits = SubscriberLimits { reserved_ports: [reserved, reserved, 0], ..SubscriberLimits::default() };
    let subscribers = vec![prefix([100, 64, 9, 0], 30)];
    settings.classes = vec![Class { name: "business".into(), subscribers, realms: Vec::new(), limits, gateways: None }];
    settings
}

fn opens(bed: &mut Bed, subscriber: Ipv4Addr, port: u16) -> bool {
    bed.inside(&build::udp(SocketAddrV4::new(subscriber, port), FAR).build());
    bed.take_inside();
    !bed.take_outside().is_empty()
}

fn opened(bed: &mut Bed, subscriber: Ipv4Addr, count: u16) -> usize {
    (0..count).filter(|port| opens(bed, subscriber, 10_000 + port)).count()
}

#[test]
fn in_a_full_pool_subscribers_get_exactly_their_guarantee() {
    covers!("6888-REQ-4", "6888-REQ-11d");
    for workers in [1, 3] {
        let mut bed = Bed::new(guaranteed(1)).workers(workers);
        assert_eq!(opened(&mut bed, I1, 100), 60, "40 are guaranteed");
        assert_eq!(opened(&mut bed, I2, 10), 0);
        for n in 0..4 {
            assert_eq!(opened(&mut bed, business(n), GUARANTEED + 5), usize::from(GUARANTEED));
        }
        // Each protocol has its own; of ICMP nothing is guaranteed.
        bed.check_books();
    }
}

#[test]
fn what_is_not_used_of_the_rest_is_for_everybody() {
    let mut bed = Bed::new(guaranteed(1));
    assert_eq!(opened(&mut bed, business(0), 100), 70, "its own ten and all of the rest");
    assert_eq!(opened(&mut bed, I1, 10), 0);
    assert_eq!(opened(&mut bed, business(1), 20), 10);
}

#[test]
fn held_ports_never_use_up_guaranteed_ports() {
    let mut bed = Bed::new(guaranteed(1).short_timers()).workers(2);
    let rest = bed.settings().pools[0].reuse_delay;
    assert!(rest > Duration::from_secs(60));
    for round in 0..5_u16 {
        for n in 0..4 {
            for port in 0..GUARANTEED {
                assert!(opens(&mut bed, business(n), 10_000 + round * 100 + port), "round {round}");
            }
        }
        // Another subscriber gets the rest, whose ports are then held down as they should be.
        opened(&mut bed, I1, 100);
        bed.advance_secs(15);
        bed.sweep();
    }
    assert!(bed.counters().ports_held_short > 0);
    bed.advance_secs(300);
    bed.sweep();
    assert_eq!((bed.ports_used(), bed.ports_held()), (0, 0));
    assert_eq!(opened(&mut bed, I1, 100), 60, "nothing was lost");
}

#[test]
fn a_guarantee_can_come_and_go_with_a_reload() {
    let mut bed = Bed::new(guaranteed(1)).workers(2);
    assert_eq!(opened(&mut bed, I1, 100), 60);
    let mut without = guaranteed(1);
    without.classes[0].limits.reserved_ports = [0; 3];
    bed.reload(without);
    assert_eq!(opened(&mut bed, I2, 100), 40);
    bed.reload(guaranteed(1));
    assert_eq!(opened(&mut bed, business(0), 5), 0, "what others have is not taken from them");
    bed.advance_secs(600);
    bed.sweep();
    assert_eq!(opened(&mut bed, I1, 100), 60);
    assert_eq!(opened(&mut bed, business(0), 15), 10);
    bed.check_books();
}

/// Without any guarantee.
fn without(addresses: usize) -> Settings {
    let mut settings = guaranteed(addresses);
    settings.classes[0].limits.reserved_ports = [0; 3];
    settings
}

/// The guarantee of UDP ports that a subscriber's view shows: reserved, missing.
fn reported(bed: &Bed, subscriber: Ipv4Addr) -> (u32, u32) {
    let view = bed.subscribers().into_iter().find(|view| view.address == subscriber).expect("it has something");
    (view.guarantee.ports[0], view.guarantee.missing[0])
}

/// What `why` says of a new mapping: ports free, and the guarantee; None: it would be refused.
fn explained(bed: &Bed, subscriber: Ipv4Addr) -> (Option<u64>, Option<(u32, u32)>) {
    let packet = build::udp(SocketAddrV4::new(subscriber, 4_000), FAR).build();
    let owner = bed.shared().worker_of_subscriber(subscriber.into());
    let shard = bed.shards().nth(owner.index()).expect("one for each worker");
    let explained = shard.explain(bed.now(), Side::Inside.into(), &packet);
    let free = explained.steps.iter().find_map(|step| match step {
        Step::MappingWouldBeCreated { ports_free } => Some(*ports_free),
        _ => None,
    });
    let guarantee = explained.steps.iter().find_map(|step| match step {
        Step::Guaranteed { ports, missing } => Some((*ports, *missing)),
        _ => None,
    });
    (free, guarantee)
}

/// Keeps the first so many mappings of a subscriber alive for so long, while all others run out and
/// rest.
fn outlive(bed: &mut Bed, subscriber: Ipv4Addr, kept: u16, seconds: u64) {
    outlive_several(bed, &[(subscriber, kept)], seconds);
}

/// The same of several.
fn outlive_several(bed: &mut Bed, kept: &[(Ipv4Addr, u16)], seconds: u64) {
    for _ in 0..seconds / 5 {
        for (subscriber, kept) in kept {
            opened(bed, *subscriber, *kept);
        }
        bed.advance_secs(5);
    }
    bed.sweep();
}

#[test]
fn a_late_guarantee_grows_as_ports_of_others_are_freed() {
    for workers in [1, 3] {
        let mut bed = Bed::new(without(1).short_timers()).workers(workers);
        assert_eq!(opened(&mut bed, I1, 80), 80);
        assert_eq!(opened(&mut bed, business(0), 1), 1);
        assert_eq!(opened(&mut bed, business(1), 1), 1);
        bed.reload(guaranteed(1).short_timers());
        bed.sweep();
        // 18 are free. Of the 40 guaranteed, the two owners have some: no other subscriber gets
        // any, and no more is promised than there is.
        assert_eq!(opened(&mut bed, I1, 100), 80, "{workers} workers");
        assert_eq!(opened(&mut bed, I2, 5), 0);
        assert_eq!(explained(&bed, I2), (None, None));
        let (first, second) = (reported(&bed, business(0)), reported(&bed, business(1)));
        assert_eq!((first, second), ((10, 0), (10, 0)), "what one has itself is not lost to the other");
        for n in [0, 1] {
            assert_eq!(explained(&bed, business(n)), (Some(9), Some((10, 0))));
        }
        // The view of a new subscriber shows that there is nothing yet, and the subscriber gets
        // nothing.
        assert_eq!(explained(&bed, business(2)), (None, Some((0, 10))));
        assert_eq!(opened(&mut bed, business(2), 5), 0);
        assert_eq!(opened(&mut bed, business(0), 30), 10, "all that is guaranteed, with what it had");
        // Ports that others release go first to a subscriber that misses part of its guarantee.
        outlive(&mut bed, I1, 70, 300);
        assert_eq!(opened(&mut bed, I2, 5), 0);
        assert_eq!(opened(&mut bed, business(2), 15), 10);
        assert_eq!(reported(&bed, business(2)), (10, 0));
        assert_eq!(opened(&mut bed, business(3), 15), 10);
        assert_eq!(opened(&mut bed, business(0), 15), 10);
        assert_eq!(opened(&mut bed, I2, 5), 0);
        bed.run_out();
        assert_eq!(opened(&mut bed, I1, 100), 60, "as if nothing had been");
        bed.check_books();
    }
}

/// Of the UDP ports that these settings guarantee, how many a plan says are others'.
fn planned(bed: &Bed, settings: Settings) -> u64 {
    bed.guarantee_plan(settings).iter().map(|plan| plan.missing[0]).sum()
}

#[test]
fn what_a_subscriber_has_already_counts_towards_its_guarantee() {
    for workers in [1, 3] {
        let mut bed = Bed::new(without(1).short_timers()).workers(workers);
        assert_eq!(opened(&mut bed, business(0), 15), 15);
        assert_eq!(opened(&mut bed, business(1), 4), 4);
        assert_eq!(opened(&mut bed, I1, 81), 81);
        // No port is free. Of forty guaranteed, the owners have ten and four.
        let after = guaranteed(1).short_timers();
        assert_eq!(planned(&bed, after.clone()), 26, "{workers} workers");
        bed.reload(after.clone());
        assert_eq!(planned(&bed, after.clone()), 26, "whatever was made of it so far");
        bed.sweep();
        bed.sweep();
        assert_eq!(planned(&bed, after.clone()), 26);
        assert_eq!((reported(&bed, business(0)), reported(&bed, business(1))), ((10, 0), (4, 6)));
        assert_eq!(explained(&bed, business(0)), (None, Some((10, 0))));
        assert_eq!(explained(&bed, business(1)), (None, Some((4, 6))));
        // What comes free of the first one's goes to the second one.
        outlive_several(&mut bed, &[(I1, 81), (business(0), 9), (business(1), 4)], 300);
        assert_eq!((reported(&bed, business(0)), reported(&bed, business(1))), ((10, 0), (9, 1)));
        assert_eq!(planned(&bed, after.clone()), 21, "six are free, and one of them is the first one's");
        assert_eq!((opened(&mut bed, business(1), 15), opened(&mut bed, business(0), 15)), (9, 10));
        assert_eq!((opened(&mut bed, I1, 90), opened(&mut bed, I2, 1)), (81, 0));
        bed.run_out();
        assert_eq!(opened(&mut bed, I1, 100), 60, "as if nothing had been");
        bed.check_books();
    }
}

#[test]
fn a_new_subscriber_sees_its_part_of_the_guarantee() {
    let mut bed = Bed::new(without(1).short_timers());
    assert_eq!(opened(&mut bed, I1, 93), 93);
    bed.reload(guaranteed(1).short_timers());
    bed.sweep();
    // Seven are left: not the whole guarantee, but all of it that there is.
    let (free, guarantee) = explained(&bed, business(0));
    assert_eq!((free, guarantee), (Some(7), Some((7, 3))));
    assert_eq!(opened(&mut bed, business(0), 15), 7);
}

#[test]
fn a_smaller_pool_promises_no_more_than_it_has() {
    let mut bed = Bed::new(guaranteed(1));
    assert_eq!(opened(&mut bed, business(0), 1), 1);
    assert_eq!(opened(&mut bed, I1, 100), 60);
    let mut smaller = guaranteed(1).ports(1_024, 1_063);
    smaller.classes[0].limits.reserved_ports = [10, 0, 0];
    bed.reload(smaller);
    bed.sweep();
    let (set_aside, missing) = reported(&bed, business(0));
    assert_eq!(set_aside + missing, 10);
    assert_eq!(opened(&mut bed, business(0), 20), set_aside.max(1) as usize);
    assert_eq!(opened(&mut bed, I2, 5), 0);
    bed.check_books();
}

#[test]
fn a_changed_guarantee_reaches_silent_subscribers() {
    let raised = |reserved: u32| {
        let mut settings = guaranteed(1);
        settings.classes[0].limits.reserved_ports = [reserved, 0, 0];
        settings
    };
    let mut bed = Bed::new(raised(5)).workers(2);
    assert_eq!(opened(&mut bed, business(0), 1), 1);
    assert_eq!(opened(&mut bed, I1, 100), 80);
    assert_eq!(reported(&bed, business(0)), (5, 0));
    bed.reload(raised(25));
    bed.sweep();
    assert_eq!(reported(&bed, business(0)), (20, 5), "80 are others'");
    assert_eq!(opened(&mut bed, business(0), 30), 20);
    bed.reload(raised(5));
    bed.sweep();
    assert_eq!(reported(&bed, business(0)), (5, 0));
    assert_eq!(opened(&mut bed, business(0), 30), 20, "what is in use of it stays");
    bed.reload(without(1));
    assert_eq!(opened(&mut bed, I2, 10), 0, "there is nothing free");
    bed.check_books();
}

#[test]
fn what_others_hold_at_rest_or_share_counts_too() {
    let mut settings = without(1).short_timers();
    settings.limits.flows_max = 100;
    settings.rules = vec![Rule {
        matches: Match { protocol: Some(17), source: prefix([100, 64, 0, 0], 24), ..Match::ALL },
        action: RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent },
    }];
    let mut bed = Bed::new(settings.clone());
    bed.reload(settings.clone());
    // Ports that flows share, and ports that rest.
    let flows = opened(&mut bed, I1, 50);
    let tcp = |bed: &mut Bed, port| {
        bed.inside(&build::tcp(SocketAddrV4::new(I2, port), FAR, wire::tcp::Flags::SYN).build());
        bed.take_outside().len()
    };
    assert_eq!((0..100).map(|port| tcp(&mut bed, 2_000 + port)).sum::<usize>(), 100);
    bed.advance_secs(30);
    bed.sweep();
    assert!(bed.ports_held() > 0 && flows > 0);
    settings.classes = guaranteed(1).classes;
    bed.reload(settings);
    assert_eq!(tcp(&mut bed, 3_000), 0, "all ports are held down, and 40 of them are guaranteed");
    bed.advance_secs(200);
    bed.sweep();
    assert_eq!((0..100).map(|port| tcp(&mut bed, 2_000 + port)).sum::<usize>(), 60);
    bed.run_out();
}

/// A subscriber misses nothing of what it has itself at its address; each address reserves the
/// ports of two guarantees. Returns how many had something.
fn check_subscriber_ports(bed: &Bed, reserved: u32) -> usize {
    let mappings = bed.mappings();
    let known = bed.subscribers().into_iter().filter(|view| (0..4).any(|n| view.address == business(n)));
    let with_own = known.map(|view| {
        let own = mappings.iter().filter(|mapping| {
            let is_here = Some(mapping.external.address) == view.external_address;
            mapping.internal.address == view.address && mapping.protocol == Protocol::Udp && is_here
        });
        let own = u32::try_from(own.count()).expect("few");
        (view, own)
    });
    let all: Vec<_> = with_own.collect();
    let mut checked = 0;
    for (view, own) in &all {
        let others = all
            .iter()
            .filter(|(other, _)| other.address != view.address && other.external_address == view.external_address);
        let others: u32 = others.map(|(other, own)| other.guarantee.ports[0].max(*own)).sum();
        // While nothing is guaranteed, more than two may come to one address.
        if *own > 0 && reserved > 0 && others + reserved.min(*own) <= 2 * reserved {
            assert!(view.guarantee.ports[0] >= reserved.min(*own), "{own} of {reserved}: {view:?}");
            checked += 1;
        }
    }
    checked
}

#[test]
fn reported_guarantees_are_there_while_guarantees_change() {
    for (workers, seed) in [(1, 1), (3, 2), (4, 3)] {
        let mut random = SmallRng::seed_from_u64(seed);
        let order: Vec<usize> = (0..workers).collect();
        let mut bed = Bed::new(without(2).short_timers()).workers(workers).seed(seed).steering(Steering::Random);
        let (mut kept, mut own) = (0, 0);
        for _ in 0..60 {
            let mut settings = without(2).short_timers();
            let reserved = [0, 5, 10, 15][random.random_range(0..4)];
            settings.classes[0].limits.reserved_ports = [reserved, reserved, 0];
            let mut churn = SmallRng::seed_from_u64(random.random());
            let meanwhile = |bed: &mut Bed| {
                for _ in 0..churn.random_range(0..40) {
                    let other = Ipv4Addr::from_bits(0x6440_0100 + churn.random_range(0..30));
                    let internal = SocketAddrV4::new(other, churn.random_range(2_000..2_030));
                    bed.offer(Side::Inside, &build::udp(internal, FAR).build());
                }
                bed.settle();
                bed.take_outside();
            };
            bed.reload_while(settings, &order, meanwhile).expect("it fits");
            if random.random_bool(0.3) {
                // Nothing runs out meanwhile.
                bed.sweep();
                bed.sweep();
                own += check_subscriber_ports(&bed, reserved);
            }
            for _ in 0..random.random_range(1..20) {
                bed.advance(Duration::from_millis(random.random_range(1..9_000)));
                let n = random.random_range(0..4);
                let view = bed.subscribers().into_iter().find(|view| view.address == business(n));
                let port = random.random_range(2_000..2_040);
                let is_known = bed.mapping_of(Protocol::Udp, SocketAddrV4::new(business(n), port)).is_some();
                let passed = opens(&mut bed, business(n), port);
                if let Some(view) = view.filter(|view| view.guarantee.ports[0] > view.mappings[0] && !is_known) {
                    assert!(passed, "{workers} workers: {view:?}");
                    kept += 1;
                }
            }
            bed.check_books();
        }
        assert!(kept > 50 && own > 10, "{kept} and {own} times");
        bed.reload(guaranteed(2).short_timers());
        bed.run_out();
        assert_eq!((opened(&mut bed, I1, 100), opened(&mut bed, I2, 100)), (80, 80), "nothing was lost");
    }
}

#[test]
fn with_many_workers_no_guaranteed_port_is_ever_refused() {
    for (workers, seed) in [(1, 1), (4, 2), (8, 3)] {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut bed = Bed::new(guaranteed(2).short_timers()).workers(workers).seed(seed).steering(Steering::Random);
        let mut kept = 0;
        for _ in 0..150 {
            // Everybody else takes whatever there is.
            for _ in 0..80 {
                let other = Ipv4Addr::from_bits(0x6440_0100 + random.random_range(0..30));
                let internal = SocketAddrV4::new(other, random.random_range(2_000..2_030));
                bed.offer(Side::Inside, &build::udp(internal, FAR).build());
            }
            bed.settle();
            bed.take_outside();
            for n in 0..4 {
                let port = random.random_range(2_000..2_040);
                let has = bed
                    .subscribers()
                    .iter()
                    .find(|view| view.address == business(n))
                    .map_or(0, |view| view.mappings[0]);
                let is_known = bed.mapping_of(Protocol::Udp, SocketAddrV4::new(business(n), port)).is_some();
                let passed = opens(&mut bed, business(n), port);
                if has < u32::from(GUARANTEED) && !is_known {
                    assert!(passed, "{workers} workers: one of {has} mappings");
                    kept += 1;
                }
            }
            bed.advance(Duration::from_millis(random.random_range(1..6_000)));
            bed.check_books();
        }
        assert!(kept > 100, "{kept} times");
        bed.advance_secs(300);
        bed.sweep();
        assert_eq!(bed.ports_used(), 0);
        assert_eq!((opened(&mut bed, I1, 100), opened(&mut bed, I2, 100)), (80, 80), "two subscribers of two each");
    }
}

/// All ports of the old address are in old blocks: a new subscriber gets one of the new address,
/// and the guarantee.
#[test]
fn old_blocks_have_no_ports_for_new_subscribers() {
    for selection in [Selection::LeastUsed, Selection::RoundRobin, Selection::Hash] {
        let mut before = without(1).ports(1_024, 1_535).limits(|limits| limits.external_addresses_max = 4);
        let size = BlockSize::of_ports(64).expect("a size");
        before.pools[0].allocation =
            Allocation::Blocks(Blocks { size, per_subscriber_max: 1, idle: Duration::from_secs(60) });
        before.pools[0].selection = selection;
        let mut bed = Bed::new(before).workers(2);
        let holder = |n: u32| Ipv4Addr::from_bits(0x6440_0300 + n);
        assert_eq!((0..10).filter(|n| opens(&mut bed, holder(*n), 5_000)).count(), 8, "eight blocks");
        let mut next = guaranteed(2).ports(1_024, 1_535).limits(|limits| limits.external_addresses_max = 4);
        next.pools[0].selection = selection;
        bed.reload(next);
        for n in 0..12 {
            assert!(opens(&mut bed, holder(100 + n), 5_000), "{selection:?}, {n}");
        }
        for n in 0..4 {
            assert_eq!(opened(&mut bed, business(n), GUARANTEED), usize::from(GUARANTEED), "{selection:?}, {n}");
        }
        bed.check_books();
    }
}

/// Where there is no other address, `why` says that nothing is free.
#[test]
fn ports_in_old_blocks_are_not_reported_as_free() {
    let mut before = without(1).ports(1_024, 1_535);
    let size = BlockSize::of_ports(64).expect("a size");
    before.pools[0].allocation =
        Allocation::Blocks(Blocks { size, per_subscriber_max: 1, idle: Duration::from_secs(60) });
    let mut bed = Bed::new(before);
    for n in 0..8 {
        assert!(opens(&mut bed, Ipv4Addr::from_bits(0x6440_0300 + n), 5_000));
    }
    bed.reload(guaranteed(1).ports(1_024, 1_535));
    for subscriber in [business(0), I1] {
        let packet = build::udp(SocketAddrV4::new(subscriber, 10_000), FAR).build();
        let shard = bed.shards().next().expect("there is one");
        let explained = shard.explain(bed.now(), Side::Inside.into(), &packet);
        assert_eq!(explained.verdict, Verdict::PortsExhausted, "{subscriber}");
        assert!(!opens(&mut bed, subscriber, 10_000));
    }
}
