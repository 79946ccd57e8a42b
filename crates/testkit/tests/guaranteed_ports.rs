//! The ports guaranteed to the subscribers of a class: others leave them alone however full their pool is, with any number of
//! workers, and a guaranteed port is there each time it is asked for.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::settings::Class;
use nat::settings::SubscriberLimits;
use nat::types::Side;
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
    settings.classes = vec![Class { name: "business".into(), subscribers, realms: Vec::new(), limits }];
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
fn who_comes_when_a_pool_is_full_has_what_is_guaranteed_and_not_one_more() {
    covers!("6888-REQ-4", "6888-REQ-11d");
    for workers in [1, 3] {
        let mut bed = Bed::new(guaranteed(1)).workers(workers);
        assert_eq!(opened(&mut bed, I1, 100), 60, "40 are set aside");
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
fn resting_ports_never_take_the_place_of_guaranteed_ones() {
    let mut bed = Bed::new(guaranteed(1).short_timers()).workers(2);
    let rest = bed.settings().pools[0].reuse_delay;
    assert!(rest > Duration::from_secs(60));
    for round in 0..5_u16 {
        for n in 0..4 {
            for port in 0..GUARANTEED {
                assert!(opens(&mut bed, business(n), 10_000 + round * 100 + port), "round {round}");
            }
        }
        // Whoever else wants has the rest, which rests afterwards as it should.
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
