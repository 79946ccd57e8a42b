use std::collections::HashSet;

use nat::Duration;
use nat::Instant;
use nat::types::InterfaceId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use wire::ethernet::MacAddress;

use super::Action;
use super::NeighbourLimits;
use super::Neighbours;
use super::Refusal;

const LAN: InterfaceId = InterfaceId(0);
const LIMITS: NeighbourLimits =
    NeighbourLimits { neighbours_max: 64, unresolved_max: 32, waiting_per_neighbour_max: 4, waiting_max: 16 };

fn station(address: u32) -> MacAddress {
    let [a, b, c, d] = address.to_be_bytes();
    MacAddress([2, 1, a, b, c, d])
}

#[test]
fn bounds_hold_for_neighbours_and_packets() {
    let mut cache = Neighbours::new(LIMITS, 7);
    let now = Instant::ORIGIN;
    let mut given_back = 0;
    let held = (0..200_u32)
        .filter(|number| cache.hold(now, 0, (LAN, number / 8), *number, |_| given_back += 1).is_ok())
        .count();
    assert_eq!((held, given_back), (16, 0), "packets in all");
    assert_eq!((cache.waiting_count(), cache.views(0).count()), (16, 4), "four for each neighbour");
    // Another source has its share, and so has the first one, after a second without answers.
    assert_eq!(cache.hold(now, 1, (LAN, 100), 200, |_| given_back += 1), Ok(()));
    assert_eq!(given_back, 1, "the oldest packet of the first source");
    assert_eq!(cache.hold(now, 0, (LAN, 102), 201, |_| given_back += 1), Err((201, Refusal::Full)));
    while cache.next_action(now).is_some() {}
    let now = now + super::RETRY_AFTER;
    assert_eq!(cache.hold(now, 0, (LAN, 102), 202, |_| given_back += 1), Ok(()));
    assert_eq!((given_back, cache.waiting_count()), (2, 16), "of a neighbour that has missed its first answer");
}

#[test]
fn one_neighbour_may_take_all_places_until_others_need_them() {
    let limits = NeighbourLimits { waiting_per_neighbour_max: 12, ..LIMITS };
    let mut cache = Neighbours::new(limits, 7);
    let now = Instant::ORIGIN;
    let mut given_back = Vec::new();
    for number in 0..20 {
        let held = cache.hold(now, 1, (LAN, 1_u32), number, |packet| given_back.push(packet));
        assert_eq!(held.is_ok(), number < 12, "packet {number}");
    }
    for number in 100..120 {
        let _ = cache.hold(now, 2, (LAN, 2), number, |packet| given_back.push(packet));
    }
    assert_eq!(given_back, [0, 1, 2, 3], "the oldest of the source with the most, until both have eight");
    let waiting: Vec<_> = cache.views(0).map(|view| view.waiting).collect();
    assert_eq!((waiting, cache.waiting_count()), (vec![8, 8], 16));
}

#[test]
fn a_burst_to_one_neighbour_has_room_beside_a_scan() {
    let limits = NeighbourLimits { waiting_per_neighbour_max: 12, ..LIMITS };
    let mut cache = Neighbours::new(limits, 7);
    let now = Instant::ORIGIN;
    let mut given_back = Vec::new();
    let mut held = 0;
    for number in 0..50 {
        for place in 0..3 {
            let scanned = (LAN, 1_000_u32 + number * 3 + place);
            let _ = cache.hold(now, 1, scanned, 0, |packet| given_back.push(packet));
        }
        if number < 8 {
            held += u32::from(cache.hold(now, 2, (LAN, 1), 1_000, |packet| given_back.push(packet)).is_ok());
        }
        while cache.next_action(now).is_some() {}
    }
    assert_eq!(held, 8, "half of the places");
    assert!(!given_back.contains(&1_000), "the scan takes none of them");
}

#[test]
fn packets_to_a_silent_neighbour_are_refused_and_ask_again() {
    let mut cache = Neighbours::new(LIMITS, 7);
    let mut now = Instant::ORIGIN;
    let (mut requests, mut unresolved, mut silent, mut absent) = (0, 0, 0, 0);
    for number in 0..10 {
        for packet in 0..6 {
            match cache.hold(now, 0, (LAN, 1_u32), packet, |_| {}) {
                Ok(()) => {}
                Err((_, Refusal::Full)) => assert_eq!(number, 0, "only in the first second"),
                Err((_, Refusal::Silent)) => silent += 1,
                Err((_, Refusal::Absent)) => absent += 1,
            }
        }
        while let Some(action) = cache.next_action(now) {
            match action {
                Action::Request { .. } => requests += 1,
                Action::Unresolved { interface, .. } => {
                    assert_eq!(interface, LAN);
                    unresolved += 1;
                }
                Action::Send { .. } => panic!("it has not answered"),
            }
        }
        assert_eq!(cache.views(0).next().is_some_and(|view| view.refuses), number > 0, "second {number}");
        now = now + super::RETRY_AFTER;
    }
    assert_eq!((requests, unresolved, silent, absent), (10, 4, 3 * 6, 6 * 6));
    assert!(cache.learn(now, LAN, 1, station(1)));
    assert_eq!(cache.lookup(LAN, 1), Some(station(1)));
    assert_eq!(cache.unresolved_count, 0);
}

#[test]
fn every_packet_comes_out_once_and_in_order_under_random_use() {
    for seed in 0..50 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut cache = Neighbours::new(LIMITS, seed);
        let mut now = Instant::ORIGIN;
        let mut inside: HashSet<u32> = HashSet::new();
        let mut newest = [0_u32; 100];
        for number in 1..5_000_u32 {
            let address = random.random_range(0..100_u32);
            match random.random_range(0..4) {
                0 | 1 => match cache.lookup(LAN, address) {
                    Some(found) => assert_eq!(found, station(address), "seed {seed}"),
                    None => {
                        let given_up = |packet| assert!(inside.remove(&packet), "seed {seed}: comes out once");
                        if cache.hold(now, number.into(), (LAN, address), address << 16 | number, given_up).is_ok() {
                            inside.insert(address << 16 | number);
                        }
                    }
                },
                2 => {
                    cache.learn(now, LAN, address, station(address));
                }
                _ => now = now + Duration::from_millis(random.random_range(0..3_000)),
            }
            for _ in 0..random.random_range(0..20) {
                let (packet, sent) = match cache.next_action(now) {
                    None => break,
                    Some(Action::Request { .. }) => continue,
                    Some(Action::Send { packet, station: to, .. }) => {
                        assert_eq!(to, station(packet >> 16), "seed {seed}");
                        (packet, true)
                    }
                    Some(Action::Unresolved { packet, .. }) => (packet, false),
                };
                assert!(inside.remove(&packet), "seed {seed}: comes out once");
                let last = &mut newest[(packet >> 16) as usize];
                assert!(packet & 0xffff > *last || !sent, "seed {seed}: in order");
                *last = packet & 0xffff;
            }
            assert_eq!(inside.len() as u32, cache.waiting_count(), "seed {seed}");
        }
        // Left alone, everything runs out.
        for _ in 0..2_000 {
            now = now + Duration::from_millis(500);
            while let Some(action) = cache.next_action(now) {
                if let Action::Send { packet, .. } | Action::Unresolved { packet, .. } = action {
                    assert!(inside.remove(&packet), "seed {seed}");
                }
            }
        }
        assert!(inside.is_empty(), "seed {seed}");
        assert_eq!(cache.views(0).count(), 0, "seed {seed}: unused neighbours are forgotten");
        assert!(cache.slots.iter().all(|slot| *slot == u32::MAX), "seed {seed}: no slot is left behind");
        assert_eq!(cache.unresolved_count, 0, "seed {seed}");
        assert!(
            cache
                .lists
                .iter()
                .all(|list| (list.count, list.waiting, list.oldest, list.newest) == (0, 0, super::NONE, super::NONE))
        );
    }
}

#[test]
fn a_cache_with_nothing_due_looks_at_nothing() {
    let mut cache: Neighbours<u32> = Neighbours::new(LIMITS, 7);
    let now = Instant::ORIGIN;
    assert!(cache.hold(now, 0, (LAN, 1), 1, |_| {}).is_ok());
    while cache.next_action(now).is_some() {}
    cache.learn(now, LAN, 1, station(1));
    while cache.next_action(now).is_some() {}
    while cache.next_due <= now {
        assert!(cache.next_action(now).is_none());
    }
    assert_eq!(cache.next_due, now + super::TRUSTED_FOR);
}

#[test]
fn a_scan_of_one_source_leaves_room_for_others() {
    let mut cache = Neighbours::new(LIMITS, 7);
    let mut now = Instant::ORIGIN;
    let mut given_back = Vec::new();
    for round in 0..100 {
        for number in 0..100 {
            let _ = cache.hold(now, 1, (LAN, 1_000 + round * 100 + number), round, |packet| given_back.push(packet));
        }
        assert_eq!(cache.hold(now, 2, (LAN, round), 1_000, |packet| given_back.push(packet)), Ok(()), "round {round}");
        while cache.next_action(now).is_some() {}
        assert!(cache.learn(now, LAN, round, station(round)), "round {round}: its answer counts");
        while cache.next_action(now).is_some() {}
        now = now + Duration::from_millis(100);
    }
    assert!(!given_back.is_empty() && !given_back.contains(&1_000), "given up for the scan");
}

#[test]
fn a_station_with_many_addresses_leaves_the_others() {
    let mut cache = Neighbours::new(LIMITS, 7);
    let now = Instant::ORIGIN;
    for number in 0..1_000 {
        assert_eq!(cache.hold(now, number.into(), (LAN, number), number, |_| {}), Ok(()));
        let owner = if number < 8 { number } else { 99 };
        assert!(cache.learn(now, LAN, number, station(owner)));
        while cache.next_action(now).is_some() {}
    }
    assert_eq!(cache.views(0).count() as u32, LIMITS.neighbours_max - LIMITS.unresolved_max);
    let known = (0..8).filter(|number| cache.lookup(LAN, *number).is_some()).count();
    assert_eq!(known, 8, "stations with one address each");
}
