//! Ports that flows of several workers share: a pool is used to its last five-tuple whatever the
//! number of workers, no five-tuple is two flows', each packet finds its flow wherever it arrives,
//! and a port goes back when nobody uses it.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::HashSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Pooling;
use nat::types::Prefix;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// Everything to port 443 shares `ports` ports of one address.
fn web(ports: u16) -> Settings {
    let mut settings = settings().endpoint_dependent(Prefix::ALL, (443, 443)).addresses(&POOL[..1]).short_timers();
    settings = settings.ports(10_000, 9_999 + ports);
    settings.pools[0].reuse_delay = Duration::ZERO;
    settings
}

/// The n-th web server.
fn server(n: u32) -> SocketAddrV4 {
    at(Ipv4Addr::from_bits(0xc633_6400 + n), 443)
}

fn host(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0100 + n)
}

fn flows(bed: &Bed) -> usize {
    bed.shards().map(|shard| shard.view().flows_len()).sum()
}

/// Sends a datagram from inside; the external endpoint it left from, unless no port is left.
fn send(bed: &mut Bed, internal: SocketAddrV4, remote: SocketAddrV4) -> Option<SocketAddrV4> {
    let exhausted = bed.count(Verdict::PortsExhausted);
    bed.inside(&build::udp(internal, remote).payload_length(8).build());
    let left = bed.take_outside();
    let is_exhausted = bed.count(Verdict::PortsExhausted) - exhausted;
    assert_eq!(left.len() as u64 + is_exhausted, 1, "it leaves, or no port is left");
    bed.take_inside();
    left.first().map(|packet| source(packet))
}

/// Has the remote endpoint answer; who got it.
fn answer(bed: &mut Bed, remote: SocketAddrV4, external: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.outside(&build::udp(remote, external).payload_length(8).build());
    let arrived = bed.take_inside();
    assert!(arrived.len() < 2);
    arrived.first().map(|packet| destination(packet))
}

#[test]
fn any_number_of_workers_use_a_pool_to_its_last_five_tuple() {
    const PORTS: u16 = 50;
    for pooling in [Pooling::Paired, Pooling::Arbitrary] {
        for workers in [1, 2, 8] {
            let mut bed = Bed::new(web(PORTS).pooling(pooling)).workers(workers).steering(Steering::Random);
            let mut open = Vec::new();
            for n in 1..=4 {
                let mut seen = HashSet::new();
                for flow in 0..PORTS {
                    // Each time another subscriber, of whichever worker.
                    let internal = at(host(u32::from(flow) % 40), 5_000 + flow);
                    let external = send(&mut bed, internal, server(n));
                    let external = external.unwrap_or_else(|| {
                        panic!("{workers} workers, {pooling:?}: flow {flow} of {PORTS} to server {n} is refused")
                    });
                    assert!(seen.insert(external), "{external} is two flows' towards one server");
                    open.push((internal, external, server(n)));
                }
                for other in 0..40 {
                    let refused = send(&mut bed, at(host(other), 7_000), server(n));
                    assert_eq!(refused, None, "{workers} workers: one more to server {n}");
                }
            }
            assert_eq!(bed.ports_used(), u64::from(PORTS));
            for (internal, external, remote) in &open {
                assert_eq!(answer(&mut bed, *remote, *external), Some(*internal));
                assert_eq!(send(&mut bed, *internal, *remote), Some(*external), "as long as it lives");
            }
            assert_eq!(answer(&mut bed, server(9), open[0].1), None, "from where nobody has sent to");
            bed.advance_secs(400);
            assert_eq!((flows(&bed), bed.ports_used()), (0, 0));
            assert!(bed.shards().all(nat::Shard::is_empty));
            // What was lent can be anybody's mapping again.
            let internal = at(host(1), 5_000);
            let mapped: HashSet<SocketAddrV4> =
                (0..PORTS).map(|n| bed.open_udp(at(*internal.ip(), 20_000 + n), at(*server(1).ip(), 80))).collect();
            assert_eq!(mapped.len(), usize::from(PORTS));
        }
    }
}

/// A port that only flows of another worker still use is not given back; after the last of them it
/// is held down.
#[test]
fn a_port_stays_shared_as_long_as_any_worker_uses_it() {
    let mut settings = web(1);
    settings.pools[0].reuse_delay = Duration::from_secs(120);
    let mut bed = Bed::new(settings).workers(2).steering(Steering::Random);
    let worker_of =
        |bed: &Bed, n: u32| bed.shards().next().map(|shard| shard.shared().worker_of_subscriber(host(n).into()));
    let first = at(host(0), 5_000);
    let second = (1..100).find(|n| worker_of(&bed, *n) != worker_of(&bed, 0)).expect("somebody is of the other worker");
    let second = at(host(second), 5_000);
    let external = send(&mut bed, first, server(1)).expect("the only port");
    assert_eq!(send(&mut bed, second, server(1)), None);
    assert_eq!(send(&mut bed, second, server(2)), Some(external), "another worker's flow shares it");
    assert_eq!(send(&mut bed, second, server(1)), None);
    // The first flow ends, long before the second.
    for _ in 0..40 {
        bed.advance_secs(5);
        assert_eq!(send(&mut bed, second, server(2)), Some(external));
        assert_eq!(answer(&mut bed, server(2), external), Some(second));
        assert!(flows(&bed) >= 1 && bed.ports_used() == 1);
    }
    assert_eq!(flows(&bed), 1);
    assert_eq!(answer(&mut bed, server(1), external), None);
    // By now it is free towards the first server, for both workers.
    assert_eq!(send(&mut bed, second, server(1)), Some(external));
    bed.advance_secs(30);
    assert_eq!(
        (flows(&bed), bed.ports_used()),
        (0, 1),
        "kept for two minutes, counted from the last flow of any worker"
    );
    bed.advance_secs(90);
    assert_eq!(bed.ports_used(), 1);
    bed.advance_secs(30);
    assert_eq!(bed.ports_used(), 0);
    assert!(bed.shards().all(nat::Shard::is_empty));
}

/// Errors from routers, fragments and simultaneous opens find the flow on its worker, too.
#[test]
fn whatever_belongs_to_a_flow_finds_its_worker() {
    for workers in [2, 5] {
        let mut settings = web(3);
        settings.limits.fragmented_datagrams_max = 256;
        let mut bed = Bed::new(settings).workers(workers).steering(Steering::Random);
        for n in 0..30 {
            let internal = at(host(n), 5_000);
            let remote = server(n);
            let external = send(&mut bed, internal, remote).expect("a port to share");
            let sent = build::udp(external, remote).payload_length(8).build();
            bed.outside(&build::icmp_error(Ipv4Addr::new(203, 0, 113, 77), *external.ip(), 3, 1, &sent).build());
            let error = bed.only_inside();
            assert_eq!(destination(quote(&error)).ip(), remote.ip());
            assert_eq!(source(quote(&error)), internal);
            let datagram = build::udp(remote, external).payload_length(3_000).identification(n as u16).build();
            let mut pieces = build::fragment(&datagram, 1_500);
            pieces.reverse();
            for piece in &pieces {
                bed.outside(piece);
            }
            let arrived = build::reassemble(&bed.take_inside()).expect("all pieces arrived");
            assert_eq!(destination(&arrived), internal);
        }
        // A SYN from outside is held wherever it arrived, and forgotten when the other side opens,
        // too.
        for n in 40..60 {
            let (internal, remote) = (at(host(n), 6_000), server(n));
            bed.inside(&build::tcp(internal, server(99), Flags::SYN).build());
            let external = source(&bed.only_outside());
            bed.outside(&build::tcp(remote, external, Flags::SYN).build());
            assert!(bed.take_inside().is_empty() && bed.take_outside().is_empty());
            // Towards each server the flow may be on any of the three ports.
            bed.inside(&build::tcp(internal, remote, Flags::SYN).build());
            let answered = source(&bed.only_outside()) != external;
            bed.advance_secs(7);
            assert_eq!(!bed.take_outside().is_empty(), answered, "an error is sent only if no remote host came");
            bed.take_inside();
        }
    }
}

/// A query identifier below 1024 is not a separate kind of port: a subscriber at its limit shares
/// the identifier it has, which has one record.
#[test]
fn low_and_high_query_identifiers_share_the_same_ports() {
    for workers in [1, 2, 4] {
        let mut settings = settings().endpoint_dependent(Prefix::ALL, (0, 65_535)).addresses(&POOL[..1]).short_timers();
        settings = settings.ports(1, 65_535);
        settings.pools[0].reuse_delay = Duration::from_secs(20);
        settings.subscriber.ports_max = [1; Protocol::COUNT];
        let mut bed = Bed::new(settings).workers(workers).steering(Steering::Random);
        let first = bed.ping(host(1), 5_000, *server(1).ip());
        for round in 0..6 {
            assert_eq!(bed.ping(host(1), 100, *server(2).ip()), first, "{workers} workers, round {round}");
            assert_eq!(bed.ping(host(1), 5_000, *server(1).ip()), first);
            for _ in 0..16 {
                bed.advance_secs(3);
                assert_eq!(bed.ping(host(1), 5_000, *server(1).ip()), first, "it goes on");
            }
            assert_eq!((flows(&bed), bed.ports_used()), (1, 1), "{workers} workers, round {round}");
        }
        bed.advance_secs(200);
        assert_eq!(bed.ports_used(), 0);
        assert!(bed.shards().all(nat::Shard::is_empty));
    }
}

/// Random opens, ends and answers on few ports, beside mappings, against a plain set of
/// five-tuples.
#[test]
fn what_is_refused_is_in_use_and_what_is_in_use_is_one_flows() {
    for_each_seed(12, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = [2, 3, 8][random.random_range(0..3)];
        let ports = random.random_range(2..8);
        let mut settings = web(ports);
        settings.pools[0].shared_ports_min = [1, 64][random.random_range(0..2)];
        let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random);
        // By internal endpoint and server: the external endpoint, and the second of the last
        // packet.
        let mut known: BTreeMap<(SocketAddrV4, SocketAddrV4), (SocketAddrV4, u64)> = BTreeMap::new();
        let (mut second, mut refused, mut opened) = (0, 0, 0);
        for _ in 0..1_500 {
            // Unanswered or not: long enough that everything that has not been used is over and
            // swept.
            known.retain(|_, (_, last)| second - *last < 100);
            match random.random_range(0..20) {
                0 => {
                    let seconds = random.random_range(100..300);
                    bed.advance_secs(seconds);
                    second += seconds;
                }
                1 if !known.is_empty() => {
                    let n = random.random_range(0..known.len());
                    let ((internal, remote), (external, _)) = known.iter().nth(n).expect("there are more");
                    assert_eq!(answer(&mut bed, *remote, *external), Some(*internal), "seed {seed}");
                }
                _ => {
                    let internal = at(host(random.random_range(0..30)), random.random_range(5_000..5_003));
                    let remote = server(random.random_range(0..6));
                    let before = known.get(&(internal, remote)).copied();
                    match send(&mut bed, internal, remote) {
                        Some(external) => {
                            if let Some((known, _)) = before {
                                assert_eq!(external, known, "seed {seed}: a live flow keeps its port");
                            }
                            let is_twice = known
                                .iter()
                                .any(|((other, to), (at, _))| *other != internal && *to == remote && *at == external);
                            assert!(!is_twice, "seed {seed}: {external} is two flows' towards {remote}");
                            opened += u32::from(before.is_none());
                            known.insert((internal, remote), (external, second));
                        }
                        None => {
                            let in_use = known.keys().filter(|(_, to)| *to == remote).count();
                            assert!(
                                before.is_none() && in_use == usize::from(ports),
                                "seed {seed}, {workers} workers: refused, and {in_use} of {ports} ports have flows to {remote}"
                            );
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert!(opened > 100 && refused > 20, "seed {seed}: {opened} opened, {refused} refused");
        bed.advance_secs(600);
        assert!(bed.shards().all(nat::Shard::is_empty), "seed {seed}");
        assert_eq!(bed.ports_used(), 0);
    });
}
