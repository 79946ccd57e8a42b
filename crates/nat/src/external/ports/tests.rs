use std::collections::HashSet;

use super::full::summary_of;
use super::*;
use crate::random::Random;
use crate::types::MappingIndex;
use crate::types::WorkerId;

const A: AddressIndex = AddressIndex(0);
const W: WorkerId = WorkerId(0);

fn spec() -> AddressSpec {
    AddressSpec { port_min: 1_024, port_max: 65_535, reserved: vec![], ..AddressSpec::default() }
}

fn table(specs: &[AddressSpec]) -> PortTable {
    PortTable::new(specs).expect("memory suffices")
}

fn random(seed: u64) -> Random {
    Random::new([seed, 2, 3, 4])
}

fn drain(table: &PortTable, protocol: Protocol, class: PortClass, parity: Option<Parity>) -> Vec<u16> {
    let mut random = random(9);
    std::iter::from_fn(|| table.allocate(A, protocol, class, parity, W, 1, &mut random)).collect()
}

#[test]
fn an_address_is_used_to_its_last_port_each_port_once() {
    let table = table(&[spec()]);
    let ports = drain(&table, Protocol::Udp, PortClass::High, None);
    assert_eq!(ports.len(), 64_512);
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 64_512);
    assert!(ports.iter().all(|port| *port >= 1_024));
    assert_eq!(table.used(A, Protocol::Udp), table.available(A, Protocol::Udp));
    assert_eq!(table.used(A, Protocol::Tcp), 0, "protocols have ports of their own");
    assert!(table.is_exhausted(A, Protocol::Udp, PortClass::High));
    table.release(A, Protocol::Udp, 40_000);
    assert!(!table.is_exhausted(A, Protocol::Udp, PortClass::High));
    assert_eq!(drain(&table, Protocol::Udp, PortClass::High, None), [40_000]);
}

#[test]
fn reserved_ports_and_port_zero_are_never_given_out() {
    let table = table(&[AddressSpec {
        port_min: 2_000,
        port_max: 2_999,
        reserved: vec![2_500, 2_501],
        ..AddressSpec::default()
    }]);
    let ports = drain(&table, Protocol::Tcp, PortClass::High, None);
    assert_eq!(ports.len(), 998);
    assert!(ports.iter().all(|port| (2_000..=2_999).contains(port) && *port != 2_500 && *port != 2_501));
    assert!(!table.claim(A, Protocol::Tcp, 2_500));
    assert!(!table.claim(A, Protocol::Tcp, 0));
    let identifiers = drain(&table, Protocol::Icmp, PortClass::High, None);
    assert_eq!(identifiers.len(), 65_535, "every identifier but 0");
}

#[test]
fn low_and_high_ports_are_kept_apart() {
    let table = table(&[AddressSpec { port_min: 1, port_max: 65_535, reserved: vec![], ..AddressSpec::default() }]);
    let low = drain(&table, Protocol::Udp, PortClass::Low, None);
    assert_eq!(low.len(), 1_023);
    assert!(low.iter().all(|port| *port < 1_024));
    assert_eq!(drain(&table, Protocol::Udp, PortClass::High, None).len(), 64_512);
}

#[test]
fn parity_is_kept_to_the_last_port_of_it() {
    let table = table(&[spec()]);
    let odd = drain(&table, Protocol::Udp, PortClass::High, Some(Parity::Odd));
    assert_eq!(odd.len(), 32_256);
    assert!(odd.iter().all(|port| port % 2 == 1));
    let even = drain(&table, Protocol::Udp, PortClass::High, Some(Parity::of(4)));
    assert_eq!(even.len(), 32_256);
}

#[test]
fn any_one_of_many_workers_can_use_the_whole_address() {
    let table = table(&[spec()]);
    let mut random = random(1);
    let ports: HashSet<u16> =
        std::iter::from_fn(|| table.allocate(A, Protocol::Tcp, PortClass::High, None, WorkerId(5), 16, &mut random))
            .collect();
    assert_eq!(ports.len(), 64_512);
}

#[test]
fn concurrent_workers_get_each_port_exactly_once() {
    let table = table(&[spec()]);
    let shares: Vec<Vec<u16>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u8)
            .map(|worker| {
                let table = &table;
                scope.spawn(move || {
                    let mut random = random(u64::from(worker));
                    let (mut mine, mut taken) = (Vec::new(), 0);
                    while let Some(port) =
                        table.allocate(A, Protocol::Udp, PortClass::High, None, WorkerId(worker), 4, &mut random)
                    {
                        mine.push(port);
                        taken += 1;
                        // Some come back, to race with words becoming full.
                        if taken % 3 == 0 {
                            let back = mine.swap_remove(random.below(mine.len() as u32) as usize);
                            table.release(A, Protocol::Udp, back);
                        }
                    }
                    mine
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no worker panics")).collect()
    });
    let mut all: Vec<u16> = shares.concat();
    // A worker may have given up while another still gave back.
    all.extend(drain(&table, Protocol::Udp, PortClass::High, None));
    assert_eq!(all.len(), 64_512);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 64_512);
}

#[test]
fn ports_are_spread_evenly_over_the_range() {
    // Chi-square over 252 bins of 256 ports: 251 degrees of freedom, 99.9 % quantile 325.
    let table = table(&[spec()]);
    let mut random = random(77);
    let mut bins = [0u32; 252];
    for _ in 0..10_000 {
        let port = table.allocate(A, Protocol::Udp, PortClass::High, None, W, 1, &mut random).expect("not full");
        bins[usize::from((port - 1_024) / 256)] += 1;
    }
    let expected = 10_000.0 / 252.0;
    let chi: f64 = bins.iter().map(|seen| (f64::from(*seen) - expected).powi(2) / expected).sum();
    assert!(chi < 325.0, "chi-square {chi}");
}

#[test]
fn successive_ports_are_not_related() {
    let table = table(&[spec()]);
    let mut random = random(78);
    let ports: Vec<f64> = (0..10_000)
        .map(|_| table.allocate(A, Protocol::Udp, PortClass::High, None, W, 1, &mut random).expect("not full"))
        .map(f64::from)
        .collect();
    let mean = ports.iter().sum::<f64>() / ports.len() as f64;
    let variance: f64 = ports.iter().map(|port| (port - mean).powi(2)).sum();
    let covariance: f64 = ports.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    // Standard deviation for 10 000 independent numbers: 0.01.
    assert!((covariance / variance).abs() < 0.04, "correlation {}", covariance / variance);
}

#[test]
fn an_entry_has_worker_and_mapping_until_port_release() {
    let table = table(&[spec(), spec()]);
    let address = AddressIndex(1);
    assert!(table.claim(address, Protocol::Tcp, 5_000));
    assert!(!table.claim(address, Protocol::Tcp, 5_000));
    assert_eq!(table.lookup(address, Protocol::Tcp, 5_000), None, "taken, but not published");
    let mapping = MappingIndex(MappingIndex::COUNT_MAX as u32);
    table.publish(address, Protocol::Tcp, 5_000, WorkerId(63), mapping);
    assert_eq!(table.lookup(address, Protocol::Tcp, 5_000), Some((WorkerId(63), mapping)));
    assert_eq!(table.lookup(address, Protocol::Udp, 5_000), None);
    assert_eq!(table.lookup(A, Protocol::Tcp, 5_000), None);
    table.release(address, Protocol::Tcp, 5_000);
    assert_eq!(table.lookup(address, Protocol::Tcp, 5_000), None);
}

#[test]
fn addresses_are_chosen_evenly_and_full_ones_are_passed_over() {
    let small = AddressSpec { port_min: 3_000, port_max: 3_009, reserved: vec![], ..AddressSpec::default() };
    let table = table(&vec![small; 100]);
    let among: Vec<AddressIndex> = (0..100).map(AddressIndex).collect();
    let mut random = random(5);
    let mut taken = 0;
    while let Some(address) = table.choose_address(&among, Protocol::Udp, PortClass::High, &mut random) {
        table.pair(address);
        let port = table.allocate(address, Protocol::Udp, PortClass::High, None, W, 1, &mut random);
        assert!(port.is_some(), "an address that is chosen has room");
        taken += 1;
        if taken == 500 {
            let most = (0..100).map(|i| table.paired_subscribers(AddressIndex(i))).max();
            assert!(most <= Some(10), "two choices keep the load nearly even: {most:?}");
        }
    }
    assert_eq!(taken, 1_000, "every port of every address");
}

#[test]
fn an_address_with_more_ports_in_use_is_passed_over() {
    let table = table(&[spec(), spec()]);
    let (busy, idle) = (AddressIndex(0), AddressIndex(1));
    let mut random = random(6);
    table.pair(busy);
    table.pair(idle);
    table.pair(idle);
    let offered = table.available(busy, Protocol::Udp);
    for _ in 0..offered / 2 {
        table.allocate(busy, Protocol::Udp, PortClass::High, None, W, 1, &mut random).unwrap();
    }
    let mut chosen = |protocol: Protocol| {
        let choices = (0..400).map(|_| table.choose_address(&[busy, idle], protocol, PortClass::High, &mut random));
        choices.filter(|choice| *choice == Some(busy)).count()
    };
    // Both draws are the busy one: a quarter.
    let of_busy = chosen(Protocol::Udp);
    assert!((60..140).contains(&of_busy), "{of_busy} of 400");
    // No TCP port in use: subscribers decide.
    let of_fewer = chosen(Protocol::Tcp);
    assert!((260..340).contains(&of_fewer), "{of_fewer} of 400");
}

fn unevenness(counts: &[u32]) -> f64 {
    let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    let chi: f64 = counts.iter().map(|seen| (f64::from(*seen) - expected).powi(2) / expected).sum();
    let freedom = counts.len() as f64 - 1.0;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

/// RFC 6056 §3.2, even in a small range.
#[test]
fn ports_of_a_small_range_are_random_too() {
    for workers in [1, 2, 16] {
        let mut first = vec![0u32; 1_000];
        let table =
            table(&[AddressSpec { port_min: 2_000, port_max: 2_999, reserved: vec![], ..AddressSpec::default() }]);
        let mut random = random(6);
        for worker in (0..workers).cycle().take(64_000) {
            let worker = WorkerId(worker as u8);
            let port = table.allocate(A, Protocol::Udp, PortClass::High, None, worker, workers, &mut random).unwrap();
            first[usize::from(port - 2_000)] += 1;
            table.release(A, Protocol::Udp, port);
        }
        // The search after missed probes slightly favours the edges.
        assert!(unevenness(&first) < if workers == 1 { 5.0 } else { 100.0 }, "{workers}: {}", unevenness(&first));
        assert!(first.iter().all(|seen| (20..150).contains(seen)), "{workers} workers");
    }
}

#[test]
fn last_free_ports_are_found_at_random_not_in_a_row() {
    let table = table(&[spec()]);
    drain(&table, Protocol::Udp, PortClass::High, None);
    let free: Vec<u16> = (0..100).map(|n| 1_100 + n * 640).collect();
    for port in &free {
        table.release(A, Protocol::Udp, *port);
    }
    let mut random = random(3);
    let mut counts = vec![0u32; free.len()];
    for _ in 0..20_000 {
        let port = table.allocate(A, Protocol::Udp, PortClass::High, None, W, 1, &mut random).unwrap();
        counts[usize::from((port - 1_100) / 640)] += 1;
        table.release(A, Protocol::Udp, port);
    }
    assert!(unevenness(&counts) < 5.0, "{}", unevenness(&counts));
}

#[test]
fn a_parity_runs_out_alone() {
    let table = table(&[spec()]);
    drain(&table, Protocol::Udp, PortClass::High, Some(Parity::Even));
    let mut random = random(4);
    let base = space(A, Protocol::Udp);
    let left = |parity| {
        table.words_not_full(base, PortClass::High, Protocol::Udp, parity).iter().map(|b| b.count_ones()).sum::<u32>()
    };
    assert_eq!((left(Some(Parity::Even)), left(Some(Parity::Odd)), left(None)), (0, 1_008, 1_008));
    assert_eq!(table.allocate(A, Protocol::Udp, PortClass::High, Some(Parity::Even), W, 1, &mut random), None);
    assert!(!table.is_exhausted(A, Protocol::Udp, PortClass::High));
    table.release(A, Protocol::Udp, 2_222);
    let again = table.allocate(A, Protocol::Udp, PortClass::High, Some(Parity::Even), W, 1, &mut random);
    assert_eq!(again, Some(2_222));
}

#[test]
fn full_word_that_looks_free_is_found_out_by_the_next_search() {
    let table = table(&[spec()]);
    drain(&table, Protocol::Udp, PortClass::High, None);
    // A releaser cleared the hint late, after others filled the word again.
    table.full[summary_of(space(A, Protocol::Udp), Parity::Odd, 500)].fetch_and(!(1 << (500 % 64)), Ordering::SeqCst);
    assert!(!table.is_exhausted(A, Protocol::Udp, PortClass::High));
    assert_eq!(table.allocate(A, Protocol::Udp, PortClass::High, None, W, 1, &mut random(2)), None);
    assert!(table.is_exhausted(A, Protocol::Udp, PortClass::High));
}

#[test]
fn hints_are_right_after_workers_fought_over_the_last_ports() {
    let table =
        table(&[AddressSpec { port_min: 4_096, port_max: 4_096 + 255, reserved: vec![], ..AddressSpec::default() }]);
    for round in 0..20 {
        std::thread::scope(|scope| {
            for worker in 0..4u8 {
                let table = &table;
                scope.spawn(move || {
                    let mut random = random(round * 4 + u64::from(worker));
                    let mut mine = Vec::new();
                    for _ in 0..3_000 {
                        let parity = [None, None, Some(Parity::Even), Some(Parity::Odd)][random.below(4) as usize];
                        match table.allocate(
                            A,
                            Protocol::Udp,
                            PortClass::High,
                            parity,
                            WorkerId(worker),
                            4,
                            &mut random,
                        ) {
                            Some(port) => mine.push(port),
                            None if mine.is_empty() => {}
                            None => {
                                let back = mine.swap_remove(random.below(mine.len() as u32) as usize);
                                table.release(A, Protocol::Udp, back);
                            }
                        }
                    }
                    for port in mine {
                        table.release(A, Protocol::Udp, port);
                    }
                });
            }
        });
        assert_eq!(table.used(A, Protocol::Udp), 0);
        assert!(!table.is_exhausted(A, Protocol::Udp, PortClass::High));
        assert_eq!(table.address_full[Protocol::Udp.index()][0].load(Ordering::SeqCst), 0);
        let ports = drain(&table, Protocol::Udp, PortClass::High, None);
        assert_eq!(ports.len(), 256, "no hint hides a free port");
        assert!(table.is_exhausted(A, Protocol::Udp, PortClass::High));
        for port in ports {
            table.release(A, Protocol::Udp, port);
        }
    }
}

#[test]
fn entries_of_identifiers_take_memory_when_used() {
    let table = table(&[spec(), spec()]);
    let (before, other) = (table.bytes(), AddressIndex(1));
    assert!((0..=u16::MAX).all(|identifier| table.lookup(other, Protocol::Icmp, identifier).is_none()));
    assert_eq!(table.bytes(), before, "to look takes none");
    assert!(table.claim(other, Protocol::Icmp, 7_000));
    table.publish(other, Protocol::Icmp, 7_000, WorkerId(3), MappingIndex(99));
    assert_eq!(table.lookup(other, Protocol::Icmp, 7_000), Some((WorkerId(3), MappingIndex(99))));
    let page = table.bytes() - before;
    assert!((1..=65_536).contains(&page) && page.is_power_of_two(), "one page: {page}");
    let neighbours = [(A, Protocol::Icmp, 7_000), (other, Protocol::Udp, 7_000), (other, Protocol::Tcp, 7_000)];
    assert!(neighbours.iter().all(|(address, protocol, port)| table.lookup(*address, *protocol, *port).is_none()));
    table.release(other, Protocol::Icmp, 7_000);
    assert_eq!(table.lookup(other, Protocol::Icmp, 7_000), None);
}

#[test]
fn each_endpoint_has_a_place_of_its_own() {
    let table = table(&[spec(), spec(), spec()]);
    let mut places = HashSet::new();
    for address in (0..3).map(AddressIndex) {
        for protocol in Protocol::ALL {
            for port in [0, 1, 63, 64, 40_000, 65_535] {
                let place = table.place(address, protocol, port);
                assert_eq!(table.endpoint_at(place), (address, protocol, port));
                assert!(places.insert(place));
            }
        }
    }
    assert_eq!(table.lookup_at(3 * Protocol::COUNT * PORTS), None, "behind the last one");
}
