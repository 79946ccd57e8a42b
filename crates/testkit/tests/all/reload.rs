//! A running instance switches to other settings: what the change does not touch notices nothing,
//! what it removes drains or ends.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashSet;

use nat::Duration;
use nat::Fates;
use nat::PoolCensus;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Removed;
use nat::types::AddressIndex;
use nat::types::Prefix;
use nat::types::Side;
use nat::verdict::VerdictKind;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const WEST: [Ipv4Addr; 2] = [Ipv4Addr::new(203, 0, 113, 130), Ipv4Addr::new(203, 0, 113, 131)];

fn local(host: u8, port: u16) -> SocketAddrV4 {
    at([100, 64, 0, host].into(), port)
}

fn remote() -> SocketAddrV4 {
    at(E1, 80)
}

/// Room for addresses that are added.
fn roomy() -> Settings {
    settings().limits(|limits| limits.external_addresses_max = 16)
}

fn with_pool(mut settings: Settings, change: impl FnOnce(&mut Pool)) -> Settings {
    change(&mut settings.pools[0]);
    settings
}

fn is_there(bed: &mut Bed, internal: SocketAddrV4, external: SocketAddrV4) {
    assert_eq!(bed.open_udp(internal, remote()), external, "the mapping is the same");
    assert!(bed.udp_reaches(remote(), external, internal), "and answers come back");
}

#[test]
fn timers_limits_and_routes_change_and_nothing_else() {
    let mut bed = Bed::new(roomy()).workers(2);
    let external = bed.open_udp(local(10, 5_000), remote());
    let udp = Duration::from_secs(120);
    let mut next = roomy().timers(|timers| timers.udp = udp).limits(|limits| limits.sessions_per_mapping_max = 1);
    next.routes.clear();
    bed.reload(next);
    assert_eq!(bed.shared().generation(), 1);
    // Without its route nothing leaves; the mapping stays all the same.
    bed.inside(&build::udp(local(10, 5_000), remote()).build());
    assert_eq!(bed.count(Verdict::NoRoute), 1, "{:?}", bed.verdicts());
    bed.take_inside();
    bed.reload(roomy().timers(|timers| timers.udp = udp).limits(|limits| limits.sessions_per_mapping_max = 1));
    is_there(&mut bed, local(10, 5_000), external);
    bed.open_tcp(local(10, 5_001), remote());
    bed.inside(&build::tcp(local(10, 5_001), at(E2, 80), Flags::SYN).build());
    assert_eq!(bed.count(Verdict::SessionLimit), 1);
    bed.advance_secs(119);
    assert!(bed.mapping_of(Protocol::Udp, local(10, 5_000)).is_some());
    bed.advance_secs(2);
    assert!(bed.mapping_of(Protocol::Udp, local(10, 5_000)).is_none(), "the new timer holds from the next packet on");
    bed.run_out();
}

#[test]
fn a_removed_address_drains_and_its_subscribers_move() {
    let mut bed = Bed::new(roomy().pooling(Pooling::Paired)).workers(2);
    let mut before = Vec::new();
    for host in 10..30 {
        before.push((host, bed.open_udp(local(host, 5_000), remote())));
    }
    let next = with_pool(roomy(), |pool| pool.addresses = WEST.to_vec());
    let counts = bed.census(next.clone());
    assert_eq!(
        counts,
        [PoolCensus {
            subscribers_move: 20,
            mappings: Fates { drain: 20, ..Fates::default() },
            ..PoolCensus::default()
        }]
    );
    assert_eq!(bed.shared().generation(), 0, "counting changes nothing");
    bed.reload(next);
    for (host, external) in &before {
        is_there(&mut bed, local(*host, 5_000), *external);
        let new = bed.open_udp(local(*host, 6_000), remote());
        assert!(WEST.contains(new.ip()), "{new} is of the new pool");
        is_there(&mut bed, local(*host, 6_000), new);
        is_there(&mut bed, local(*host, 5_000), *external);
    }
    assert_eq!(bed.shared().addresses().count(), POOL.len() + 2, "those removed are still known");
    // When nothing is left there, their places are free for others.
    bed.advance_secs(1_000);
    bed.reload(with_pool(roomy(), |pool| pool.addresses = vec![[203, 0, 113, 140].into()]));
    assert_eq!(bed.shared().addresses().count(), 2 + 1);
    let external = bed.open_udp(local(10, 5_000), remote());
    assert_eq!(external.ip(), &Ipv4Addr::new(203, 0, 113, 140));
    bed.run_out();
}

#[test]
fn draining_has_an_end_if_one_is_given() {
    let mut bed = Bed::new(roomy());
    let external = bed.open_udp(local(10, 5_000), remote());
    let mut next = with_pool(roomy(), |pool| pool.addresses = WEST.to_vec());
    next.reload.drain_time = Some(Duration::from_secs(60));
    assert_eq!(bed.census(next.clone())[0].mappings.drain_until, 1);
    bed.reload(next.clone());
    for _ in 0..5 {
        bed.advance_secs(10);
        is_there(&mut bed, local(10, 5_000), external);
    }
    // Another reload does not begin the time anew.
    bed.reload(next);
    bed.advance_secs(20);
    let moved = bed.open_udp(local(10, 5_000), remote());
    assert!(WEST.contains(moved.ip()));
    bed.outside(&build::udp(remote(), external).build());
    bed.take_inside();
    assert!(bed.mappings().iter().all(|mapping| mapping.external.address != *external.ip()));
    bed.run_out();
}

#[test]
fn what_is_removed_ends_if_the_new_settings_say_so() {
    let mut bed = Bed::new(roomy());
    bed.open_udp(local(10, 5_000), remote());
    bed.connect(local(10, 5_001), remote());
    let mut next = with_pool(roomy(), |pool| pool.addresses = WEST.to_vec());
    next.reload.removed = Removed::End;
    assert_eq!(bed.census(next.clone())[0].mappings.end, 2);
    bed.reload(next);
    bed.advance_secs(10);
    assert_eq!(bed.mappings(), []);
    assert_eq!(bed.ports_used(), 2, "they rest (RFC 6888 REQ-8)");
    bed.advance_secs(200);
    assert_eq!(bed.ports_used(), 0);
    assert!(WEST.contains(bed.open_udp(local(10, 5_000), remote()).ip()));
    bed.run_out();
}

#[test]
fn a_draining_address_keeps_mappings_and_is_used_again() {
    let mut bed = Bed::new(roomy());
    let external = bed.open_udp(local(10, 5_000), remote());
    let drained = *external.ip();
    bed.reload(with_pool(roomy(), |pool| pool.draining_addresses = vec![drained]));
    is_there(&mut bed, local(10, 5_000), external);
    for port in 6_000..6_050 {
        assert_ne!(bed.open_udp(local(10, port), remote()).ip(), &drained);
    }
    for host in 20..60 {
        assert_ne!(bed.open_udp(local(host, 5_000), remote()).ip(), &drained);
    }
    bed.reload(roomy());
    is_there(&mut bed, local(10, 5_000), external);
    let used = (60..120).any(|host| *bed.open_udp(local(host, 5_000), remote()).ip() == drained);
    assert!(used, "it serves new subscribers again");
    // A whole pool that drains serves nobody new.
    bed.reload(with_pool(roomy(), |pool| pool.draining = true));
    bed.inside(&build::udp(local(130, 5_000), remote()).build());
    assert_eq!(bed.count(Verdict::AddressDraining), 1);
    // The sender gets an ICMP error.
    bed.only_inside();
    is_there(&mut bed, local(10, 5_000), external);
    bed.reload(roomy());
    bed.run_out();
}

#[test]
fn a_narrower_range_keeps_used_ports_and_gives_out_no_others() {
    let mut bed = Bed::new(roomy().ports(10_000, 10_999)).workers(2);
    let mut before = Vec::new();
    for host in 10..40 {
        for port in 5_000..5_010 {
            before.push((local(host, port), bed.open_udp(local(host, port), remote())));
        }
    }
    let next = roomy().ports(10_500, 10_999).reserved(&[10_600, 10_601]);
    let outside = |external: &SocketAddrV4| external.port() < 10_500 || [10_600, 10_601].contains(&external.port());
    let expected = before.iter().filter(|(_, external)| outside(external)).count() as u64;
    let counted = bed.census(next.clone())[0];
    assert_eq!((counted.mappings.drain, counted.mappings.keep), (expected, 300 - expected));
    bed.reload(next);
    for (internal, external) in &before {
        is_there(&mut bed, *internal, *external);
    }
    for host in 10..40 {
        for port in 7_000..7_010 {
            let external = bed.open_udp(local(host, port), remote());
            assert!(!outside(&external) && external.port() <= 10_999, "{external}");
        }
    }
    bed.advance_secs(600);
    assert_eq!(bed.ports_used(), 0);
    for index in 0..POOL.len() as u32 {
        assert_eq!(bed.shared().ports_available(AddressIndex(index), Protocol::Udp), 498);
    }
    bed.reload(roomy().ports(10_000, 10_999));
    for index in 0..POOL.len() as u32 {
        assert_eq!(bed.shared().ports_available(AddressIndex(index), Protocol::Udp), 1_000, "all are back");
    }
    bed.run_out();
}

#[test]
fn sessions_are_found_after_the_filtering_of_their_pool_changed() {
    let mut bed = Bed::new(roomy().filtering(Filtering::EndpointIndependent)).workers(2);
    let remotes: Vec<SocketAddrV4> = (0..40).map(|host| at([198, 51, 100, 20 + host].into(), 443)).collect();
    let external = bed.open_tcp(local(10, 5_000), remotes[0]);
    for remote in &remotes[1..] {
        assert_eq!(bed.open_tcp(local(10, 5_000), *remote), external);
    }
    let filterings = [
        Filtering::AddressDependent,
        Filtering::AddressAndPortDependent,
        Filtering::AddressDependent,
        Filtering::EndpointIndependent,
    ];
    for filtering in filterings {
        bed.reload(roomy().filtering(filtering));
        for round in 0..2 {
            for remote in &remotes {
                let ack = build::tcp(*remote, external, Flags::ACK).sequence(1).acknowledgment(1_001).build();
                bed.outside(&ack);
                assert_eq!(bed.take_inside().len(), 1, "{remote} under {filtering:?}, round {round}");
            }
            bed.advance_secs(8);
        }
    }
    bed.run_out();
}

/// The sweep, which has them found anew, is somewhere in the table then.
#[test]
fn sessions_survive_a_change_of_filtering_during_a_fill() {
    let remotes: Vec<SocketAddrV4> = (0..200).map(|host| at([198, 51, 100, 20 + host].into(), 443)).collect();
    let (before, new) = remotes.split_at(120);
    let mut bed = Bed::new(roomy().filtering(Filtering::EndpointIndependent));
    for remote in before {
        bed.open_tcp(local(10, 5_000), *remote);
    }
    let both = [Filtering::AddressDependent, Filtering::EndpointIndependent];
    for (round, filtering) in (0..20).zip(both.into_iter().cycle()) {
        bed.reload(roomy().filtering(filtering));
        // At once, so that the table grows before the sweep has come round.
        let from = local(10 + round, 6_000);
        let opened: Vec<Vec<u8>> = new.iter().map(|remote| build::tcp(from, *remote, Flags::SYN).build()).collect();
        bed.burst(Side::Inside, &opened);
        bed.take_outside();
        for _ in 0..2 {
            for remote in before {
                bed.inside(&build::tcp(local(10, 5_000), *remote, Flags::ACK).sequence(1_001).build());
                assert_eq!(bed.take_outside().len(), 1, "{remote} under {filtering:?}, round {round}");
            }
        }
    }
    bed.run_out();
}

#[test]
fn settings_that_do_not_fit_are_refused_and_change_nothing() {
    let mut bed = Bed::new(settings().limits(|limits| limits.external_addresses_max = POOL.len() as u32));
    let external = bed.open_udp(local(10, 5_000), remote());
    let next = with_pool(settings(), |pool| pool.addresses.extend(WEST));
    let refused = bed.reload_while(next, &[0], |_| panic!("nothing is begun"));
    assert!(refused.is_err());
    assert_eq!(bed.shared().generation(), 0);
    is_there(&mut bed, local(10, 5_000), external);
    bed.run_out();
}

#[test]
fn no_packet_is_lost_while_workers_switch_one_by_one() {
    let mut bed = Bed::new(roomy()).workers(4).steering(Steering::Wrong);
    let mut flows = Vec::new();
    for host in 10..50 {
        flows.push((local(host, 5_000), bed.open_udp(local(host, 5_000), remote())));
    }
    let next = with_pool(roomy(), |pool| {
        pool.addresses.extend(WEST);
        pool.port_min = 20_000;
    });
    let mut rounds = 0;
    bed.reload_while(next, &[2, 0, 3, 1], |bed| {
        rounds += 1;
        for (internal, external) in &flows {
            is_there(bed, *internal, *external);
        }
    })
    .expect("it fits");
    assert!(rounds > 8, "{rounds}");
    let dropped = |verdict: &&Verdict| verdict.kind() == VerdictKind::Dropped;
    assert_eq!(Verdict::ALL.iter().filter(dropped).map(|verdict| bed.count(*verdict)).sum::<u64>(), 0);
    bed.run_out();
}

#[test]
fn what_is_given_out_on_a_new_address_is_known_to_all_workers() {
    const WORKERS: usize = 3;
    // All of the addresses are others, at a place of their own and in place of ones that went
    // before.
    for (first, then) in [(POOL.to_vec(), WEST.to_vec()), (WEST.to_vec(), vec![WEST[1], POOL[0], POOL[1]])] {
        let with = |addresses: &[Ipv4Addr]| {
            with_pool(roomy(), |pool| {
                pool.addresses = addresses.to_vec();
                pool.filtering = [Filtering::AddressAndPortDependent; Protocol::COUNT];
            })
        };
        let mut bed = Bed::new(with(&first)).workers(WORKERS);
        // A subscriber that is there already speaks to others from the same port.
        let old: Vec<_> = (10..40).map(|host| local(host, 5_000)).collect();
        for one in &old {
            bed.open_udp(*one, remote());
        }
        let is_new = |external: SocketAddrV4| !first.contains(external.ip());
        let (mut port, mut seen) = (6_000, 0);
        bed.reload_while(with(&then), &[1, 2, 0], |bed| {
            bed.settle();
            port += 1;
            for host in 50..70 {
                let internal = local(host, port);
                bed.inside(&build::udp(internal, remote()).build());
                bed.take_inside();
                let Some(sent) = bed.take_outside().pop() else { continue };
                let external = source(&sent);
                if !is_new(external) {
                    continue;
                }
                seen += 1;
                for worker in 0..WORKERS {
                    let number = port << 3 | worker as u16;
                    let large = build::udp(remote(), external).identification(number).payload_length(2_000).build();
                    let mut packets = build::fragment(&large, 1_500);
                    packets.push(build::udp(remote(), external).payload(b"answer").build());
                    packets.push(build::icmp_error(E2, *external.ip(), 3, 1, &sent).build());
                    for packet in packets {
                        bed.offer_to(worker, Side::Outside, &packet);
                        bed.settle();
                        assert_eq!(bed.take_inside().len(), 1, "worker {worker} knows whose {external} is");
                    }
                }
                // Another subscriber's packet to it does not leave for the outside, on any worker.
                for one in &old {
                    bed.inside(&build::udp(*one, external).payload(b"neighbour").build());
                    bed.take_inside();
                    assert!(bed.take_outside().is_empty(), "{external} is no address outside");
                }
            }
        })
        .expect("there is room");
        assert!(seen > 20, "{seen}");
        assert_eq!(bed.count(Verdict::DestinationNotPool), 0);
        bed.run_out();
    }
}

#[test]
fn three_hundred_changes_leave_pairing_and_mappings_alone() {
    let limited = |most: u32| {
        let mut settings = roomy();
        settings.subscriber.ports_max = [most; Protocol::COUNT];
        settings
    };
    let mut bed = Bed::new(limited(2)).workers(2);
    let externals: Vec<_> = (10..150).map(|host| (host, bed.open_udp(local(host, 5_000), remote()))).collect();
    for number in 0..300 {
        bed.reload(limited(2 + number % 2));
    }
    // A class found 256 changes ago is looked up again: the last change allows three.
    for (host, external) in &externals {
        is_there(&mut bed, local(*host, 5_000), *external);
        for port in 6_000..6_002 {
            assert_eq!(bed.open_udp(local(*host, port), remote()).ip(), external.ip(), "the pairing stays");
        }
        bed.inside(&build::udp(local(*host, 6_002), remote()).build());
        assert_eq!(bed.take_outside().len(), 0, "three and no more");
        bed.take_inside();
    }
    assert_eq!(bed.count(Verdict::SubscriberPortQuota), 140);
    bed.run_out();
}

#[test]
fn flows_continue_on_a_draining_address_and_begin_on_added_ones() {
    for workers in [1, 3] {
        let web = || roomy().endpoint_dependent(Prefix::ALL, (443, 443));
        let server = |host: u8| at([198, 51, 100, host].into(), 443);
        let mut bed = Bed::new(web()).workers(workers).steering(Steering::Random);
        let flows: Vec<_> = (10..60).map(|host| (host, bed.open_udp(local(host, 5_000), server(host)))).collect();
        let mut next = with_pool(web(), |pool| pool.addresses = WEST.to_vec());
        next.reload.drain_time = Some(Duration::from_secs(100));
        let counted = bed.census(next.clone())[0];
        assert_eq!(counted.flows, Fates { drain_until: 50, ..Fates::default() });
        bed.reload(next);
        for (host, external) in &flows {
            assert_eq!(bed.open_udp(local(*host, 5_000), server(*host)), *external, "it goes on");
            let reaches = bed.udp_reaches(server(*host), *external, local(*host, 5_000));
            assert!(reaches, "{host}: {external} {:?}", bed.verdicts());
            let new = bed.open_udp(local(*host, 5_001), server(*host));
            assert!(WEST.contains(new.ip()), "{new} is of the new addresses");
            assert!(bed.udp_reaches(server(*host), new, local(*host, 5_001)));
        }
        let shared: usize = bed.shards().map(|shard| shard.view().shared_ports_len()).sum();
        assert!(shared > 0 && bed.mappings().is_empty(), "new ones share ports of addresses that are new");
        // Their time is over, however much they are used.
        for _ in 0..11 {
            bed.advance_secs(10);
            for (host, _) in &flows {
                bed.inside(&build::udp(local(*host, 5_000), server(*host)).build());
            }
            bed.take_outside();
        }
        for (host, _) in &flows {
            assert!(WEST.contains(bed.open_udp(local(*host, 5_000), server(*host)).ip()), "on a new one by now");
        }
        bed.run_out();
    }
}

/// Settings that some operator might have: other addresses, ranges, reserved ports, timers,
/// filters, modes.
fn random_settings(random: &mut SmallRng) -> Settings {
    let mut settings = roomy().limits(|limits| limits.external_addresses_max = 40);
    let pool_addresses = |random: &mut SmallRng, third: u8| {
        let count = random.random_range(1..6);
        let mut hosts: Vec<u8> = (1..12).collect();
        (0..count)
            .map(|_| Ipv4Addr::new(203, 0, third, hosts.swap_remove(random.random_range(0..hosts.len()))))
            .collect::<Vec<_>>()
    };
    let template = settings.pools[0].clone();
    settings.pools.clear();
    for (name, third, subscribers) in
        [("east", 113, topology::prefix([100, 64, 0, 0], 10)), ("west", 114, topology::prefix([100, 64, 0, 64], 26))]
    {
        let low = random.random_range(1_024..40_000);
        let allocation = match random.random_range(0..3) {
            0 => Allocation::Blocks(Blocks {
                size: BlockSize::of_ports(64 << random.random_range(0..3)).expect("a power of two"),
                per_subscriber_max: random.random_range(2..9),
                idle: Duration::from_secs(60),
            }),
            _ => Allocation::Ports,
        };
        settings.pools.push(Pool {
            name: name.into(),
            addresses: pool_addresses(random, third),
            subscribers: vec![subscribers],
            port_min: low,
            port_max: low + random.random_range(8_192..20_000),
            reserved_ports: (0..random.random_range(0..4)).map(|step| low + 100 + step).collect(),
            pooling: if random.random() { Pooling::Paired } else { Pooling::Arbitrary },
            allocation,
            parity: random.random(),
            draining: random.random_ratio(1, 10),
            ..template.clone()
        });
    }
    if random.random_ratio(1, 4) {
        let drained = settings.pools[0].addresses[0];
        settings.pools[0].draining_addresses = vec![drained];
    }
    let filterings = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
    settings = settings.filtering(filterings[random.random_range(0..3)]);
    settings.timeouts.udp = Duration::from_secs(random.random_range(300..600));
    settings.inbound_refresh = random.random();
    if random.random_ratio(1, 12) {
        // More than there is room for: refused.
        settings.pools[1].addresses.extend((0..60).map(|host| Ipv4Addr::new(203, 0, 115, host)));
    }
    settings
}

/// 200 random configurations one after the other, under traffic, on several workers that switch in
/// any order.
#[test]
fn two_hundred_random_configurations_under_traffic() {
    let mut random = SmallRng::seed_from_u64(200);
    let mut first = random_settings(&mut random);
    first.pools[1].addresses.truncate(3);
    let mut bed = Bed::new(first).workers(3).steering(Steering::Random);
    let mut flows: Vec<(SocketAddrV4, SocketAddrV4)> = Vec::new();
    let (mut refused, mut adopted, mut asked) = (0, 0, 0_u64);
    for round in 0..200_u32 {
        let next = random_settings(&mut random);
        let mut order = vec![0, 1, 2];
        order.swap(0, random.random_range(0..3));
        order.swap(1, random.random_range(1..3));
        let generation = bed.shared().generation();
        let used = bed.ports_used();
        let mut step = 0;
        let outcome = bed.reload_while(next, &order, |bed| {
            step += 1;
            // Whatever is there goes on, in both directions, in the midst of the change.
            for (internal, external) in flows.iter().skip(step % 5).step_by(5) {
                is_there(bed, *internal, *external);
                asked += 2;
            }
        });
        match outcome {
            Ok(()) => adopted += 1,
            Err(_) => {
                refused += 1;
                assert_eq!(
                    (bed.shared().generation(), bed.ports_used(), step),
                    (generation, used, 0),
                    "nothing changed"
                );
            }
        }
        for (internal, external) in &flows {
            is_there(&mut bed, *internal, *external);
        }
        // Some flows end, some begin.
        if flows.len() > 60 {
            flows.drain(..20);
        }
        for _ in 0..4 {
            let internal = local(random.random_range(10..250), random.random_range(2_000..60_000));
            if flows.iter().any(|(known, _)| *known == internal) {
                continue;
            }
            bed.inside(&build::udp(internal, remote()).payload_length(16).build());
            bed.take_inside();
            if let [packet] = &bed.take_outside()[..] {
                let external = source(packet);
                let shared = bed.shared();
                let place = shared.address_index(*external.ip()).expect("an address of a pool");
                assert!(shared.closed(place).is_none(), "{external} is closed to new mappings");
                let pool = shared.pool(shared.pool_of(place)).expect("it has a pool");
                assert!(
                    (pool.port_min..=pool.port_max).contains(&external.port())
                        && !pool.reserved_ports.contains(&external.port())
                );
                flows.push((internal, external));
            }
        }
        let mappings = bed.mappings();
        let externals: HashSet<_> = mappings.iter().map(|mapping| (mapping.protocol, mapping.external)).collect();
        assert_eq!(externals.len(), mappings.len(), "an external endpoint has two owners in round {round}");
        bed.advance_secs(3);
    }
    assert!(adopted > 150 && refused > 5 && asked > 5_000, "{adopted} adopted, {refused} refused, {asked} packets");
    // At the end every port is back, whatever it was part of.
    let last = roomy().limits(|limits| limits.external_addresses_max = 40);
    bed.run_out();
    bed.reload(last);
    bed.advance_secs(5);
    for (place, slot) in bed.shared().addresses() {
        let total = Protocol::ALL.map(|protocol| bed.shared().ports_available(place, protocol));
        let expected = if slot.closed.is_some() { [0; 3] } else { [64_512, 64_512, 65_535] };
        assert_eq!(total, expected, "{}", slot.address);
        assert_eq!(Protocol::ALL.map(|protocol| bed.shared().ports_used(place, protocol)), [0; 3]);
    }
    bed.run_out();
}

#[test]
fn a_subscriber_of_a_rules_pool_moves_with_its_addresses() {
    const OTHER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 200);
    let mut settings = settings();
    let second = Pool { name: "b".into(), addresses: vec![OTHER], subscribers: Vec::new(), ..Pool::default() };
    settings.pools.push(second);
    settings.limits.external_addresses_max = 16;
    let by_b = nat::settings::RuleAction::Translate {
        pool: Some(nat::types::PoolId(1)),
        mapping: nat::settings::MappingKind::EndpointIndependent,
    };
    settings = settings.rule(nat::rules::Match::ALL, by_b);
    let mut bed = Bed::new(settings.clone());
    assert_eq!(*bed.open_udp(at(I1, 1_000), at(E1, 53)).ip(), OTHER);
    let count = |bed: &Bed, settings: &Settings| {
        let census = bed.census(settings.clone());
        let of = |pool: usize| [census[pool].subscribers_keep, census[pool].subscribers_move];
        [of(0), of(1)]
    };
    let mut others = settings.clone();
    others.timeouts.udp = Duration::from_secs(200);
    assert_eq!(count(&bed, &others), [[0, 0], [1, 0]], "the subscriber has an address of pool b, which stays");
    others.pools[1].addresses = vec![Ipv4Addr::new(203, 0, 113, 201)];
    assert_eq!(count(&bed, &others), [[0, 0], [0, 1]], "the subscriber's address goes");
    bed.reload(settings);
}
