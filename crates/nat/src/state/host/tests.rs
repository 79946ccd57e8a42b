use crate::types::HostNumber;
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const REALM: RealmId = RealmId(3);

fn store(hosts_max: u32, per_subscriber_max: u32, worker: u8, workers: usize) -> HostStore {
    let hash = KeyedHash::new([1, 2, 3, 4]);
    HostStore::new(hosts_max, (56, per_subscriber_max), (WorkerId(worker), workers), hash).expect("a small table")
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(1_000_000 * (100 + seconds))
}

fn host(subscriber: u64, host: u64) -> HostKey {
    HostKey {
        address: 0x2001_0db8 << 96 | u128::from(subscriber) << 72 | u128::from(host),
        inner: 0,
        way: Way::Nat64(0),
    }
}

fn enter(store: &mut HostStore, seconds: u64, key: &HostKey) -> Result<HostNumber, Verdict> {
    let hash = store.hash_of(key);
    store.enter(at(seconds), hash, key, REALM)
}

fn sweep(store: &mut HostStore, seconds: u64) {
    store.sweep(at(seconds), store.untouched);
}

#[test]
fn hosts_of_a_prefix_share_one_subscriber() {
    let mut store = store(100, 10, 0, 1);
    let numbers = [host(1, 1), host(1, 2), host(2, 1)].map(|key| enter(&mut store, 0, &key).expect("room"));
    let [first, second, other] = numbers.map(|number| store.subscriber_of(number));
    assert_eq!(first, second);
    assert_ne!(first, other);
    assert_eq!(store.subscriber_of(first), first, "a subscriber is its own");
    assert_eq!(store.subscriber_of(HostNumber(0x0a00_0001)), HostNumber(0x0a00_0001), "an IPv4 host is its own");
    assert!(store.get(first).is_some_and(|record| record.is_subscriber() && record.address() == host(1, 0).address));
    assert!(numbers.iter().all(|number| number.is_nat64()));
}

#[test]
fn hosts_differ_by_address_inner_address_and_way() {
    let mut store = store(100, 10, 0, 1);
    let plain = host(1, 1);
    let keys = [
        plain,
        HostKey { address: plain.address + 1, ..plain },
        HostKey { way: Way::Nat64(1), ..plain },
        HostKey { way: Way::Softwire(0), inner: 1, ..plain },
        HostKey { way: Way::Softwire(0), inner: 2, ..plain },
    ];
    let numbers = keys.map(|key| enter(&mut store, 0, &key).expect("room"));
    for (i, number) in numbers.iter().enumerate() {
        assert_eq!(enter(&mut store, 1, &keys[i]), Ok(*number));
        assert!(numbers[..i].iter().all(|other| other != number));
        let found = store.get(*number).expect("a host");
        assert_eq!((found.address(), found.inner(), found.way()), (keys[i].address, keys[i].inner, keys[i].way));
    }
    assert!(numbers[3..].iter().all(|number| number.0 >= SOFTWIRE_HOSTS_FIRST));
}

#[test]
fn hosts_that_nothing_names_make_room_for_others() {
    let mut store = store(100, 10, 0, 1);
    let named: Vec<HostNumber> =
        (0..30).map(|subscriber| enter(&mut store, 0, &host(subscriber, 1)).expect("room")).collect();
    for number in &named {
        store.retain(*number);
    }
    let held = enter(&mut store, 0, &host(30, 1)).expect("room");
    store.keep(held);
    // Two records each, until full.
    let invented = (100..).take_while(|number| enter(&mut store, 1, &host(*number, 1)).is_ok()).count();
    assert_eq!(invented, (100 - 2 * 31) / 2);
    let key = host(50, 1);
    let previewed = |store: &HostStore, seconds| store.preview(at(seconds), store.hash_of(&key), &key, REALM);
    assert_eq!(enter(&mut store, 2, &key), Err(Verdict::HostTableFull), "their packets may be on the way");
    assert_eq!(previewed(&store, 2), Err(Verdict::HostTableFull));
    assert!(previewed(&store, 4).is_ok_and(|previewed| !previewed.is_known));
    let number = enter(&mut store, 4, &key).expect("room");
    store.retain(number);
    assert!(named.iter().chain([&held, &number]).all(|number| store.get(*number).is_some()));
    assert_eq!(store.get(held).map(Host::key), Some(host(30, 1)));
    sweep(&mut store, 4);
    sweep(&mut store, 7);
    assert_eq!(store.len(), 2 * 32, "of invented hosts nothing is left");
    sweep(&mut store, 30);
    sweep(&mut store, 33);
    assert_eq!(store.len(), 2 * 31, "nothing holds the held one any longer");
}

#[test]
fn a_subscriber_has_a_bounded_number_of_hosts() {
    let mut store = store(100, 3, 0, 1);
    for number in 1..=3 {
        assert!(enter(&mut store, 0, &host(1, number)).is_ok());
    }
    assert_eq!(enter(&mut store, 0, &host(1, 4)), Err(Verdict::HostLimit));
    assert!(enter(&mut store, 0, &host(2, 1)).is_ok(), "another subscriber has its own share");
    sweep(&mut store, 30);
    assert!(enter(&mut store, 30, &host(1, 4)).is_ok(), "idle hosts have ended");
}

#[test]
fn hosts_whose_packets_are_dropped_end_with_the_burst() {
    let mut store = store(100, 2, 0, 1);
    for number in 1..50 {
        let dropped = enter(&mut store, 0, &host(1, number)).expect("room");
        store.settle(at(0));
        assert!(store.get(dropped).is_none());
    }
    assert_eq!(store.len(), 0, "nor is anything left of their subscriber");
    let (named, held) =
        (enter(&mut store, 0, &host(1, 1)).expect("room"), enter(&mut store, 0, &host(1, 2)).expect("room"));
    store.retain(named);
    store.keep(held);
    store.settle(at(0));
    assert!(store.get(named).is_some() && store.get(held).is_some());
    assert_eq!(enter(&mut store, 0, &host(1, 3)), Err(Verdict::HostLimit));
    store.release(at(0), named);
    store.settle(at(0));
    assert!(store.get(named).is_some(), "it lingers, as its number may still be in use");
}

#[test]
fn a_full_table_refuses_and_evicts_nothing() {
    let mut store = store(4, 100, 0, 1);
    let first = enter(&mut store, 0, &host(1, 1));
    assert!(enter(&mut store, 0, &host(1, 2)).is_ok() && enter(&mut store, 0, &host(1, 3)).is_ok());
    assert_eq!(enter(&mut store, 0, &host(1, 4)), Err(Verdict::HostTableFull));
    assert_eq!(enter(&mut store, 0, &host(1, 1)), first);
}

#[test]
fn a_number_is_reused_only_after_its_last_record_and_a_while() {
    let mut store = store(100, 100, 0, 1);
    let number = enter(&mut store, 0, &host(1, 1)).expect("room");
    store.retain(number);
    sweep(&mut store, 1_000);
    assert!(store.get(number).is_some(), "a mapping names it");
    store.release(at(1_000), number);
    sweep(&mut store, 1_000 + LINGER.as_secs());
    assert!(store.get(number).is_some(), "a held fragment may name it");
    sweep(&mut store, 1_001 + LINGER.as_secs());
    assert!(store.get(number).is_none());
    sweep(&mut store, 1_100 + LINGER.as_secs());
    assert_eq!(store.len(), 0, "its subscriber has ended, too");
}

#[test]
fn a_host_number_names_its_worker() {
    for workers in [1, 2, 3, 7, 64] {
        for worker in [0, workers - 1] {
            let mut store = store(1_000, 1_000, worker as u8, workers);
            for number in 0..50 {
                let key = HostKey { way: Way::Softwire(0), ..host(number, 1) };
                let number = enter(&mut store, 0, &key).expect("room");
                assert_eq!(worker_of_number(number, workers), WorkerId(worker as u8));
            }
        }
        assert_eq!(worker_of_number(HostNumber(u32::MAX - 1), workers), WorkerId(workers as u8 - 1));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u64, u64),
    Retain(usize),
    Release(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..6, 0_u64..8).prop_map(|(subscriber, number)| Step::Enter(subscriber, number)),
        2 => any::<usize>().prop_map(Step::Retain),
        2 => any::<usize>().prop_map(Step::Release),
        1 => (0_u64..15).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Against a map: named hosts keep their numbers, numbers are unique, and in the end nothing is
    /// left.
    #[test]
    fn numbers_stay_with_their_hosts(steps in proptest::collection::vec(step(), 1..200)) {
        let mut store = store(40, 5, 1, 3);
        let mut now = 0;
        let mut named: Vec<(HostKey, HostNumber)> = Vec::new();
        for step in steps {
            match step {
                Step::Enter(subscriber, number) => {
                    let key = host(subscriber, number);
                    if let Ok(number) = enter(&mut store, now, &key) {
                        for (other, of) in &named {
                            prop_assert_eq!(*of == number, *other == key);
                        }
                    } else {
                        prop_assert!(named.iter().all(|(other, _)| *other != key), "a known host is never refused");
                    }
                }
                Step::Retain(which) => {
                    let key = host(which as u64 % 6, which as u64 / 6 % 8);
                    if let Ok(number) = enter(&mut store, now, &key) {
                        store.retain(number);
                        named.push((key, number));
                    }
                }
                Step::Release(which) if !named.is_empty() => {
                    let (_, number) = named.swap_remove(which % named.len());
                    store.release(at(now), number);
                }
                Step::Release(_) => {}
                Step::Pass(seconds) => {
                    now += seconds;
                    sweep(&mut store, now);
                }
            }
        }
        let counts = named.iter().fold(HashMap::new(), |mut counts: HashMap<HostNumber, u32>, (_, number)| {
            *counts.entry(*number).or_default() += 1;
            counts
        });
        for (number, count) in counts {
            prop_assert_eq!(store.index_of(number).map(|index| store.records.at(index).references), Some(count));
        }
        for (_, number) in named {
            store.release(at(now), number);
        }
        for _ in 0..3 {
            now += 60;
            sweep(&mut store, now);
        }
        prop_assert_eq!(store.len(), 0);
    }
}
