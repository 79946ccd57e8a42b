//! RFC 6056 and RFC 7857 §9: external ports cannot be guessed.

use std::collections::HashSet;

use testkit::*;
use wire::build;

/// External ports of so many mappings of different subscribers, in the order they were made.
fn ports(bed: &mut Bed, count: u32) -> Vec<u16> {
    let mut ports = Vec::new();
    for number in 0..count {
        let host = (0x6440_0100 + number / 100).into();
        bed.inside(&build::udp(at(host, 2_000 + (number % 100) as u16), at(E1, 9)).payload(b"x").build());
        ports.push(source(&bed.only_outside()).port());
    }
    ports
}

/// Chi-square over `bins` equal ranges of `first..=last`.
fn chi_square(ports: &[u16], first: u16, last: u16, bins: usize) -> f64 {
    let span = usize::from(last) - usize::from(first) + 1;
    let mut counts = vec![0_f64; bins];
    for port in ports {
        counts[(usize::from(*port) - usize::from(first)) * bins / span] += 1.0;
    }
    let expected = ports.len() as f64 / bins as f64;
    counts.iter().map(|count| (count - expected).powi(2) / expected).sum()
}

#[test]
fn the_whole_range_is_used_evenly_and_reserved_ports_never() {
    covers!("6056-1", "7857-9a", "6888-REQ-15");
    let reserved: Vec<u16> = (5_000..5_100).chain([1_900, 8_080]).collect();
    let mut bed = Bed::new(settings().reserved(&reserved));
    let ports = ports(&mut bed, 60_000);
    assert!(ports.iter().all(|port| *port >= 1024 && !reserved.contains(port)));
    // 63 degrees of freedom: over 120 happens by chance once in 10^5 seeds, and the seed is fixed.
    let statistic = chi_square(&ports, 1024, 65535, 64);
    assert!(statistic < 120.0, "chi-square {statistic}");
    assert!(ports.iter().any(|port| *port < 1_100) && ports.iter().any(|port| *port > 65_450));
}

#[test]
fn a_port_reveals_neither_the_next_nor_the_internal_one() {
    covers!("6056-2", "6888-REQ-15");
    let mut bed = Bed::new(settings());
    let ports = ports(&mut bed, 10_000);
    let mean = ports.iter().map(|port| f64::from(*port)).sum::<f64>() / ports.len() as f64;
    let variance = ports.iter().map(|port| (f64::from(*port) - mean).powi(2)).sum::<f64>();
    let correlation = |lag: usize| {
        let pairs = ports.iter().zip(&ports[lag..]);
        pairs.map(|(a, b)| (f64::from(*a) - mean) * (f64::from(*b) - mean)).sum::<f64>() / variance
    };
    for lag in 1..=10 {
        // Standard deviation is 1/sqrt(10000) = 0.01.
        assert!(correlation(lag).abs() < 0.05, "lag {lag}: {}", correlation(lag));
    }
    let neighbours = ports.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 1).count();
    assert!(neighbours < 10, "{neighbours} of 10000 ports are next to the one before");
    let preserved = (0..10_000_u16).zip(&ports).filter(|(number, port)| 2_000 + number % 100 == **port).count();
    assert!(preserved < 10, "{preserved} ports were kept");
}

#[test]
fn another_secret_gives_other_ports() {
    covers!("6056-3");
    let runs: HashSet<Vec<u16>> = (1..=4).map(|seed| ports(&mut Bed::new(settings()).seed(seed), 50)).collect();
    assert_eq!(runs.len(), 4);
    let again = ports(&mut Bed::new(settings()).seed(1), 50);
    assert!(runs.contains(&again), "a run can be repeated from its seed");
}

#[test]
fn the_three_rules_for_napt_hold() {
    covers!("6056-4", "7857-9c");
    let mut bed = Bed::new(settings().parity());
    let ports = ports(&mut bed, 20_000);
    assert!((0..20_000_u32).zip(&ports).all(|(number, port)| number % 2 == u32::from(port % 2)), "parity is kept");
    for parity in [0, 1] {
        let halves: Vec<u16> = ports.iter().filter(|port| **port % 2 == parity).map(|port| port >> 1).collect();
        let statistic = chi_square(&halves, 512, 32767, 64);
        assert!(statistic < 120.0, "chi-square of parity {parity}: {statistic}");
    }
}

#[test]
fn with_half_of_the_ports_reserved_the_others_are_used_evenly() {
    covers!("6056-5");
    // Blocks of 512 in turn: an algorithm that walks on from a reserved port would favour the
    // edges.
    let reserved: Vec<u16> = (1024..=65535).filter(|port| port / 512 % 2 == 0).collect();
    let mut bed = Bed::new(settings().reserved(&reserved));
    let ports = ports(&mut bed, 20_000);
    let positions: Vec<u16> = ports.iter().map(|port| port % 512).collect();
    let statistic = chi_square(&positions, 0, 511, 64);
    assert!(statistic < 120.0, "chi-square inside the blocks: {statistic}");
    let edge = positions.iter().filter(|position| **position == 0).count();
    assert!(edge < 90, "{edge} of 20000 ports are the first behind a reserved block; 39 are expected");
}

#[test]
fn every_unreserved_port_is_given_out_before_a_refusal() {
    covers!("6056-1", "6888-REQ-15");
    let reserved: Vec<u16> = (1_900..2_100).chain([5_350, 5_351, 65_535]).collect();
    for workers in [1, 2] {
        let mut bed = Bed::new(settings().addresses(&POOL[..1]).reserved(&reserved)).workers(workers);
        let free = 64_512 - reserved.len() as u32;
        let given: HashSet<u16> = ports(&mut bed, free).into_iter().collect();
        assert_eq!(given.len() as u32, free, "none is given twice, and none is refused");
        assert!(given.iter().all(|port| *port >= 1024 && !reserved.contains(port)));
        bed.inside(&build::udp(at(I1, 1), at(E1, 9)).payload(b"x").build());
        assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
        assert!(is_icmp(&bed.only_inside(), 3, 1));
    }
}

#[test]
fn half_the_ports_reserved_does_not_favour_any_of_the_others() {
    covers!("6056-5");
    // An allocator that takes the next free port from a random one on gives out ports behind a gap
    // most often (RFC 6056 §5).
    let layouts: [fn(u16) -> bool; 5] = [
        |port| port < 33_280,
        |port| port % 2 == 0,
        |port| port / 64 % 2 == 0,
        |port| port / 5_000 % 2 == 0,
        // Crowded and almost empty stretches take turns.
        |port| if port / 64 % 2 == 0 { port % 8 != 0 } else { port % 8 == 0 },
    ];
    for (layout, is_reserved) in layouts.into_iter().enumerate() {
        for workers in [1, 2] {
            let (reserved, offered): (Vec<u16>, Vec<u16>) = (1024..=65_535).partition(|port| is_reserved(*port));
            let mut bed = Bed::new(settings().reserved(&reserved)).workers(workers).seed(9 + layout as u64);
            // Few of 3 times 32000, so that those already in use change nothing; as many from each
            // worker, as each looks in its own part first.
            let worker_of = |host: u32| bed.shared().worker_of_subscriber(nat::types::HostNumber(host)).index();
            let of = |worker| (0x6440_0100_u32..).filter(move |host| worker_of(*host) == worker).take(96 / workers);
            let hosts: Vec<u32> = (0..workers).flat_map(of).collect();
            let mut given = Vec::new();
            for port in 2_000..2_100 {
                given.extend(hosts.iter().map(|host| bed.open_udp(at((*host).into(), port), at(E1, 9)).port()));
            }
            // The rank of a port among those offered has to be even.
            let ranks: Vec<u16> =
                given.iter().map(|port| offered.binary_search(port).expect("never a reserved one") as u16).collect();
            let last = offered.len() as u16 - 1;
            let even = chi_square(&ranks, 0, last, 64);
            assert!(even < 120.0, "layout {layout}, {workers} workers: chi-square {even} over the range");
            // And so the distance from the gap before it: every bin is one in 64 neighbours.
            let within: Vec<u16> = ranks.iter().map(|rank| rank % 64).collect();
            let even = chi_square(&within, 0, 63, 64);
            assert!(even < 120.0, "layout {layout}, {workers} workers: chi-square {even} behind gaps");
        }
    }
}
