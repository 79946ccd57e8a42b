//! RFC 7422 §2: the orders of a deterministic pool, as traffic meets them, and the answers an
//! operator gets about it in either direction.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::HashSet;

use lookup::Asked;
use lookup::formula;
use nat::Duration;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::event::Cause;
use nat::event::EventKind;
use nat::settings::Algorithm;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::types::RealmId;
use testkit::topology::prefix;
use testkit::*;

const ORDERS: [Algorithm; 4] = [Algorithm::Sequential, Algorithm::Spread, Algorithm::Keyed(7), Algorithm::Keyed(8)];
/// Of a /27 without its first and its last address.
const SUBSCRIBERS: u8 = 30;

fn subscriber(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(100, 64, 1, n)
}

/// Three addresses for thirty subscribers: ten slices of each, and as much as two of them for
/// dynamic blocks.
fn in_order(algorithm: Algorithm) -> Settings {
    let mut settings = settings();
    let overflow = Blocks {
        size: BlockSize::of_ports(512).expect("a power of two"),
        per_subscriber_max: 1,
        idle: Duration::from_secs(60),
    };
    settings.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 2, overflow };
    settings.pools[0].subscribers = vec![prefix([100, 64, 1, 0], 27)];
    settings.pools[0].realms = vec![RealmId::default()];
    settings.pools[0].algorithm = algorithm;
    settings
}

/// Who each subscriber was to the outside, with some mappings each.
fn seen(settings: &Settings, seed: u64) -> BTreeMap<Ipv4Addr, Vec<SocketAddrV4>> {
    let mut bed = Bed::new(settings.clone()).workers(3).seed(seed);
    let mut seen: BTreeMap<Ipv4Addr, Vec<SocketAddrV4>> = BTreeMap::new();
    for port in 5_000..5_020 {
        for n in 1..=SUBSCRIBERS {
            let external = bed.open_udp(at(subscriber(n), port), at(E1, 53));
            seen.entry(subscriber(n)).or_default().push(external);
        }
    }
    seen
}

/// The answer from the configuration alone: the subscriber, and its ports of which address.
fn reported(settings: &Settings, address: Ipv4Addr, port: Option<u16>) -> Option<(Ipv4Addr, (Ipv4Addr, u16, u16))> {
    let asked = Asked { address, host: None, port, protocol: None, vrf: None };
    let answers = formula::find(settings, &asked).expect("the file alone is enough");
    let [answer] = &answers[..] else { panic!("one answer, not {answers:?}") };
    let own = answer.subscriber_ports.first()?;
    Some((answer.holder?, (own.external_address, own.first_port, own.last_port)))
}

#[test]
fn find_answers_for_ports_and_for_subscribers() {
    covers!("7422-2");
    for order in ORDERS {
        let settings = in_order(order);
        for (inside, externals) in seen(&settings, 1) {
            let (holder, range) = reported(&settings, inside, None).expect("the subscriber has a slice");
            assert_eq!(holder, inside, "{order:?}");
            for external in externals {
                let (address, first, last) = range;
                assert!(*external.ip() == address && (first..=last).contains(&external.port()), "{order:?} {external}");
                assert_eq!(reported(&settings, address, Some(external.port())), Some((inside, range)), "{order:?}");
            }
        }
        // Nobody has what is left for dynamic blocks by the file, nor have the first and last
        // address of the prefix anything.
        assert_eq!(reported(&settings, POOL[0], Some(u16::MAX)), None);
        for n in [0, SUBSCRIBERS + 1] {
            assert_eq!(reported(&settings, subscriber(n), None), None);
        }
    }
}

#[test]
fn every_order_gives_exclusive_ports_that_lead_back() {
    covers!("7422-10");
    let mut addresses = Vec::new();
    for order in ORDERS {
        let settings = in_order(order);
        let seen = seen(&settings, 1);
        let mut slices = HashSet::new();
        for (inside, externals) in &seen {
            let owners: HashSet<_> =
                externals.iter().map(|external| reported(&settings, *external.ip(), Some(external.port()))).collect();
            let [Some((holder, range))] = owners.iter().collect::<Vec<_>>()[..] else {
                panic!("all of them are in one slice: {owners:?}")
            };
            assert_eq!(holder, inside, "{order:?}");
            assert!(slices.insert(*range), "{order:?}: {range:?} has two owners");
        }
        for address in POOL {
            assert_eq!(slices.iter().filter(|(of, ..)| *of == address).count(), 10, "{order:?}: the load is even");
        }
        let address_of = |n: u8| *seen[&subscriber(n)][0].ip();
        let by_subscriber: Vec<Ipv4Addr> = (1..=SUBSCRIBERS).map(address_of).collect();
        // Other random numbers give other ports, of the same slices.
        let again = self::seen(&settings, 2);
        assert_ne!(again, seen);
        assert!(again.iter().all(|(inside, externals)| *externals[0].ip() == *seen[inside][0].ip()), "{order:?}");
        addresses.push(by_subscriber);
    }
    let [sequential, spread, one_key, other_key] = &addresses[..] else { panic!("four orders") };
    assert!(sequential.chunks(10).zip(POOL).all(|(chunk, address)| chunk.iter().all(|of| *of == address)));
    assert!(spread.chunks(3).all(|chunk| chunk == POOL), "neighbours are on different addresses");
    assert!(one_key != other_key && one_key != sequential && one_key != spread, "each key has an order of its own");
}

#[test]
fn the_end_of_a_change_follows_all_that_kept_its_port() {
    let mut bed = Bed::new(in_order(Algorithm::Sequential)).record_events(64);
    for port in 5_000..5_010 {
        for n in 1..=SUBSCRIBERS {
            bed.open_udp(at(subscriber(n), port), at(E1, 53));
        }
    }
    assert!(bed.take_events(0, usize::MAX).is_empty(), "a formula needs no records");
    bed.reload(in_order(Algorithm::Spread));
    // Nobody reads for a while, so the queue is full.
    bed.advance(Duration::from_millis(100));
    let (mut kept, mut ends) = (0, Vec::new());
    for _ in 0..400 {
        for event in bed.take_events(0, 8) {
            match event.kind {
                EventKind::MappingCreated => {
                    assert_eq!((event.cause, ends.len()), (Cause::Configuration, 0));
                    kept += 1;
                }
                EventKind::ConfigurationRecorded => ends.push(event.amount),
                _ => {}
            }
        }
        bed.advance(Duration::from_millis(1));
    }
    assert_eq!(ends, [1], "once, with the number of the configuration");
    assert!(kept > 64, "{kept} do not fit into the queue at once");
}
