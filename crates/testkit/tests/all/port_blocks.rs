//! Port blocks and deterministic pools: RFC 6888 REQ-13 and REQ-14, RFC 7422; and that all workers
//! together use a pool to its last port.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::net::SocketAddrV4;

use nat::Duration;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::event::Event;
use nat::event::EventKind;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Forward;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::RuleAction;
use nat::settings::Selection;
use nat::types::AddressIndex;
use nat::types::PoolId;
use nat::types::Protocol;
use nat::types::RealmId;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

fn blocks(ports: u32, per_subscriber_max: u16, idle_s: u64) -> Blocks {
    let size = BlockSize::of_ports(ports).expect("a block size");
    Blocks { size, per_subscriber_max, idle: Duration::from_secs(idle_s) }
}

fn with(mut settings: Settings, allocation: Allocation) -> Settings {
    for pool in &mut settings.pools {
        pool.allocation = allocation;
        pool.reuse_delay = Duration::ZERO;
    }
    settings
}

/// RFC 7422 §2: 198.51.100.0/28 there, 100.64.1.0/28 here.
fn example(overflow: Blocks) -> Settings {
    let mut settings = settings().addresses(&POOL[..1]);
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 1, 0], 28)];
    with(settings, Allocation::Deterministic { dynamic_slices: 2, overflow })
}

fn subscriber(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x6440_0100 + number)
}

/// Sends a packet of each of these internal endpoints; the external endpoints of those that left,
/// by internal one.
fn open(bed: &mut Bed, internal: impl Iterator<Item = SocketAddrV4>) -> HashMap<SocketAddrV4, SocketAddrV4> {
    let mut external = HashMap::new();
    let all: Vec<SocketAddrV4> = internal.collect();
    for some in all.chunks(512) {
        for from in some {
            // What comes out has no trace of the sender but this.
            let payload = [from.ip().octets().as_slice(), &from.port().to_be_bytes()].concat();
            bed.offer(Side::Inside, &build::udp(*from, at(E1, 9)).payload(&payload).build());
        }
        bed.settle();
        bed.take_inside();
        for packet in bed.take_outside() {
            let payload: [u8; 6] = packet[28..34].try_into().expect("six bytes");
            let [a, b, c, d, high, low] = payload;
            external.insert(at([a, b, c, d].into(), u16::from_be_bytes([high, low])), source(&packet));
        }
    }
    external
}

fn used(bed: &Bed) -> u32 {
    let shared = bed.shared();
    (0..shared.address_count() as u32).map(|index| shared.ports_used(AddressIndex(index), Protocol::Udp)).sum()
}

/// Three addresses, eight workers: every port is given out before anybody is refused.
#[test]
fn eight_workers_use_three_addresses_to_the_last_port() {
    covers!("6888-REQ-13");
    let limits = |settings: Settings| {
        settings.limits(|limits| {
            limits.mappings_max = 60_000;
            limits.extra_sessions_max = 1_000;
            limits.subscribers_max = 10_000;
        })
    };
    let modes = [
        (Allocation::Ports, Selection::LeastUsed),
        (Allocation::Blocks(blocks(64, 1, 0)), Selection::LeastUsed),
        (Allocation::Blocks(blocks(64, 1, 0)), Selection::RoundRobin),
        (Allocation::Blocks(blocks(64, 1, 0)), Selection::Hash),
    ];
    for (allocation, selection) in modes {
        let mut settings = with(limits(settings()), allocation);
        settings.pools[0].selection = selection;
        let mut bed = Bed::new(settings).workers(8);
        let mut given = HashSet::new();
        let ports = 3 * 64_512;
        // Each of them wants a whole block.
        for first in (0..ports / 64).step_by(504) {
            let wanting =
                (first..first + 504).flat_map(|number| (0..64).map(move |port| at(subscriber(number), 2_000 + port)));
            for external in open(&mut bed, wanting).into_values() {
                assert!(given.insert(external), "{external} is given out twice");
            }
            if given.len() < (first as usize + 504) * 64 {
                // Single ports of a subscriber's own address may be gone while others have some:
                // the next ones take these.
                assert_eq!(allocation, Allocation::Ports, "{} of {}", given.len(), (first + 504) * 64);
            }
        }
        let mut late = 0;
        while given.len() < ports as usize && late < 2_000 {
            let external = open(&mut bed, (0..64).map(|port| at(subscriber(100_000 + late), 2_000 + port)));
            given.extend(external.into_values());
            late += 1;
        }
        assert_eq!((given.len() as u32, used(&bed)), (ports, ports), "{allocation:?} {selection:?}");
        let refused = bed.count(Verdict::PortsExhausted);
        let one_more = open(&mut bed, [at(subscriber(200_000), 2_000)].into_iter());
        assert_eq!((one_more.len(), bed.count(Verdict::PortsExhausted)), (0, refused + 1));
        bed.run_out();
        assert_eq!(used(&bed), 0);
        let shared = bed.shared();
        let leased = (0..3).map(|index| shared.ports_leased(AddressIndex(index)));
        assert_eq!(leased.sum::<u32>(), 0, "every block came back");
    }
}

/// RFC 6888 REQ-13: subscribers with uneven demands, in small blocks.
#[test]
fn small_blocks_leave_few_ports_unused_before_the_first_refusal() {
    covers!("6888-REQ-13");
    let settings = with(settings().addresses(&POOL[..1]), Allocation::Blocks(blocks(64, 64, 60)));
    let mut bed = Bed::new(settings).workers(4);
    let mut given = 0;
    for number in 0.. {
        // 1 to 1200 ports, most of them a few hundred.
        let wants = 1 + (number * 7_919) % 1_200;
        let found = open(&mut bed, (0..wants).map(|port| at(subscriber(number), 2_000 + port as u16)));
        given += found.len();
        if found.len() < wants as usize {
            break;
        }
    }
    assert!(given * 100 >= 64_512 * 95, "{given} of 64512 ports in use at the first refusal");
}

#[test]
fn a_block_serves_all_protocols_with_random_ports() {
    covers!("6888-REQ-14", "6888-REQ-15");
    let mut bed = Bed::new(with(settings(), Allocation::Blocks(blocks(512, 2, 60))));
    let ports: Vec<u16> = (0..200).map(|port| bed.open_udp(at(I1, 2_000 + port), at(E1, 9)).port()).collect();
    bed.inside(&build::tcp(at(I1, 2_000), at(E1, 80), Flags::SYN).build());
    let tcp = source(&bed.only_outside()).port();
    bed.inside(&build::echo_request(I1, E1, 7).build());
    let echo = bed.only_outside();
    let identifier = u16::from_be_bytes([echo[24], echo[25]]);
    let block = ports[0] / 512;
    assert!(ports.iter().chain([&tcp, &identifier]).all(|port| port / 512 == block), "one block for all");
    let steps: HashSet<u16> = ports.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.len() > 120, "{} differences between neighbours", steps.len());
    let other = bed.open_udp(at(I2, 2_000), at(E1, 9)).port();
    assert_ne!(other / 512, block, "another subscriber has another block");
}

/// The active blocks are used up, the next is leased, until the subscriber has as many as it may;
/// what is there goes on.
#[test]
fn a_subscriber_gets_so_many_blocks_and_no_port_more() {
    covers!("6888-REQ-11d");
    let mut bed = Bed::new(with(settings(), Allocation::Blocks(blocks(64, 3, 60)))).workers(2);
    let given = open(&mut bed, (0..400).map(|port| at(I1, 2_000 + port)));
    assert_eq!((given.len(), bed.count(Verdict::BlockLimit)), (3 * 64, 400 - 3 * 64));
    let blocks: HashSet<u16> = given.values().map(|external| external.port() / 64).collect();
    assert_eq!((blocks.len(), bed.counters().blocks_leased), (3, 3));
    let first = *given.keys().next().expect("some");
    assert_eq!(open(&mut bed, [first].into_iter()).get(&first), given.get(&first), "what there is goes on");
    // TCP has the same blocks, and so its ports without one more of them.
    bed.inside(&build::tcp(at(I1, 2_000), at(E1, 80), Flags::SYN).build());
    assert!(blocks.contains(&(source(&bed.only_outside()).port() / 64)));
    assert_eq!(open(&mut bed, [at(I2, 2_000)].into_iter()).len(), 1, "others have theirs");
}

#[test]
fn a_block_comes_back_when_nothing_in_it_was_in_use_for_so_long() {
    covers!("6888-REQ-14");
    let mut settings = with(settings().short_timers(), Allocation::Blocks(blocks(64, 2, 60)));
    settings.pools[0].reuse_delay = Duration::from_secs(20);
    let mut bed = Bed::new(settings).workers(2);
    let leased = |bed: &Bed| (0..3).map(|index| bed.shared().ports_leased(AddressIndex(index))).sum::<u32>();
    let before = bed.open_udp(at(I1, 2_000), at(E1, 9));
    // Ten seconds until the mapping ends, twenty for the port to rest, sixty idle.
    bed.advance_secs(80);
    assert_eq!((leased(&bed), bed.mappings().len()), (64, 0));
    let again = bed.open_udp(at(I1, 2_001), at(E1, 9));
    assert_eq!((again.ip(), again.port() / 64), (before.ip(), before.port() / 64), "it is still the subscriber's");
    bed.advance_secs(80);
    assert_eq!(leased(&bed), 64, "the time began anew");
    bed.advance_secs(30);
    let counters = bed.counters();
    assert_eq!((leased(&bed), counters.blocks_leased, counters.blocks_returned), (0, 1, 1));
    assert_eq!(bed.subscribers(), vec![]);
}

/// A connection that the subscriber has elsewhere does not keep the block.
#[test]
fn an_idle_block_is_freed_though_its_subscriber_is_active() {
    covers!("6888-REQ-14");
    let in_ports = || settings().addresses(&POOL[..1]).timers(|timeouts| timeouts.udp = Duration::from_secs(10));
    let in_blocks = || with(in_ports(), Allocation::Blocks(blocks(64, 2, 5)));
    let with_rule = || {
        let mut settings = in_blocks();
        let (name, addresses) = ("single".into(), POOL[1..2].to_vec());
        settings.pools.push(Pool { name, addresses, subscribers: Vec::new(), ..Pool::default() });
        let by_pool = RuleAction::Translate { pool: Some(PoolId(1)), mapping: MappingKind::EndpointIndependent };
        settings.rule(Match { protocol: Some(6), ..Match::ALL }, by_pool)
    };
    let with_forward = || {
        let mut settings = in_blocks();
        settings.forwards.push(Forward {
            realm: RealmId::default(),
            protocol: Protocol::Tcp,
            external: POOL[0],
            ports: (80, 80),
            inside: I1.into(),
            inside_port: 80,
            admission: Admission::Anyone,
        });
        settings
    };
    let leased = |bed: &Bed| bed.shared().ports_leased(AddressIndex(0));
    for workers in [1, 3] {
        // How it begins, whether that has blocks, and how it goes on.
        let cases = [(with_rule(), with_rule()), (with_forward(), with_forward()), (in_ports(), in_blocks())];
        for (before, after) in cases {
            let mut bed = Bed::new(before).workers(workers);
            bed.open_udp(at(I1, 4_000), at(E1, 9));
            let connection = bed.connect(at(I1, 80), at(E1, 443));
            bed.reload(after);
            let in_block = bed.open_udp(at(I1, 4_001), at(E1, 9));
            assert_eq!((in_block.ip(), leased(&bed)), (&POOL[0], 64));
            // Ten seconds until the mapping ends, five idle, and some until that was noticed.
            bed.advance_secs(10);
            assert_eq!(leased(&bed), 64, "it is not idle for long enough");
            bed.advance_secs(20);
            let left: Vec<SocketAddrV4> =
                bed.mappings().iter().map(|left| at(left.external.address, left.external.port)).collect();
            assert_eq!((leased(&bed), bed.counters().blocks_returned, left), (0, 1, vec![connection]));
            // Who comes again gets one again.
            bed.open_udp(at(I1, 4_002), at(E1, 9));
            assert_eq!(leased(&bed), 64);
            bed.check_books();
        }
        // What is in use stays, whatever else ends.
        let mut bed = Bed::new(in_blocks()).workers(workers);
        let connection = bed.connect(at(I1, 80), at(E1, 443));
        for port in 4_000..4_020 {
            bed.open_udp(at(I1, port), at(E1, 9));
            bed.advance_secs(20);
        }
        let counters = bed.counters();
        assert_eq!((leased(&bed), counters.blocks_leased, counters.blocks_returned), (64, 1, 0), "{connection}");
    }
}

/// RFC 6888 REQ-14: one record for a block and one for its end, whatever happens inside.
#[test]
fn a_block_makes_two_records_however_many_mappings_it_has_had() {
    covers!("6888-REQ-14");
    let run = |allocation| {
        let mut bed = Bed::new(with(settings().short_timers(), allocation)).record_events(100_000);
        let mut mappings = 0;
        for _ in 0..10 {
            mappings +=
                open(&mut bed, (0..20).flat_map(|n| (0..50).map(move |port| at(subscriber(n), 2_000 + port)))).len();
            bed.advance_secs(15);
        }
        bed.run_out();
        let events = bed.take_events(0, usize::MAX);
        (mappings, events)
    };
    let (mappings, events) = run(Allocation::Blocks(blocks(64, 4, 60)));
    assert_eq!(mappings, 10_000);
    let of = |kind| events.iter().filter(|event| event.kind == kind).collect::<Vec<&Event>>();
    let (leases, returns) = (of(EventKind::BlockLeased), of(EventKind::BlockReturned));
    assert_eq!((leases.len(), returns.len(), events.len()), (20, 20, 40), "and nothing else");
    for (lease, number) in leases.iter().zip(0..) {
        assert_eq!(
            (lease.subscriber, lease.last_port - lease.first_port, lease.protocol),
            (subscriber(number), 63, None)
        );
        assert!(POOL.contains(&lease.external));
        let end = returns.iter().find(|end| end.first_port == lease.first_port && end.external == lease.external);
        assert_eq!(end.map(|end| end.subscriber), Some(lease.subscriber));
    }
    let (mappings, events) = run(Allocation::Ports);
    assert_eq!(events.len(), 2 * mappings, "two for each mapping where ports are given out one by one");
}

/// The same subscriber has the same address, as long as it has room.
#[test]
fn addresses_are_chosen_as_the_pool_says() {
    let run = |selection, seed| {
        let mut settings = with(settings(), Allocation::Blocks(blocks(512, 8, 60)));
        settings.pools[0].selection = selection;
        let mut bed = Bed::new(settings).seed(seed);
        (0..300).map(|n| *bed.open_udp(at(subscriber(n), 2_000), at(E1, 9)).ip()).collect::<Vec<Ipv4Addr>>()
    };
    assert_eq!(run(Selection::Hash, 1), run(Selection::Hash, 2), "whatever else is random");
    assert_ne!(run(Selection::LeastUsed, 1), run(Selection::LeastUsed, 2));
    let in_turn = run(Selection::RoundRobin, 1);
    assert!(in_turn.windows(2).all(|pair| pair[0] != pair[1]));
    for (selection, most) in [(Selection::RoundRobin, 100), (Selection::LeastUsed, 110), (Selection::Hash, 130)] {
        let chosen = run(selection, 3);
        let count = |address: &Ipv4Addr| chosen.iter().filter(|one| *one == address).count();
        assert!(POOL.iter().all(|address| count(address) <= most), "{selection:?}");
    }
}

/// RFC 7422 §2: the numbers of the example, in traffic.
#[test]
fn each_subscriber_has_exactly_the_ports_of_the_formula() {
    covers!("7422-1", "7422-3", "7422-4", "7422-5", "7422-9");
    let mut bed = Bed::new(example(blocks(512, 2, 60))).workers(3);
    let shared = bed.shared();
    let formula = shared.formula(PoolId(0)).expect("it is deterministic");
    assert_eq!((formula.slice_ports(), formula.dynamic()), (4_032, Some((57_472, 65_535))));
    for last in [1, 2, 14] {
        let inside = Ipv4Addr::new(100, 64, 1, last);
        let first = 1_024 + (u16::from(last) - 1) * 4_032;
        let given = open(&mut bed, (0..4_032).map(|port| at(inside, 2_000 + port)));
        assert_eq!(given.len(), 4_032);
        assert!(
            given
                .values()
                .all(|external| (first..first + 4_032).contains(&external.port()) && *external.ip() == POOL[0])
        );
        assert_eq!(bed.counters().blocks_leased, 0, "none is leased while a port of the slice is free");
        bed.inside(&build::echo_request(inside, E1, 7).build());
        let echo = bed.only_outside();
        assert!((first..first + 4_032).contains(&u16::from_be_bytes([echo[24], echo[25]])), "query identifiers too");
        let shared = bed.shared();
        let own = shared.subscriber_ports(PoolId(0), RealmId(0), inside, Some(POOL[0]));
        assert_eq!((own.len(), own[0].first, own[0].last), (1, first, first + 4_031));
        assert_eq!(own[0].used, [4_032, 0, 1], "UDP, TCP and ICMP");
    }
    for nobody in [0, 15] {
        let nobody = Ipv4Addr::new(100, 64, 1, nobody);
        bed.inside(&build::udp(at(nobody, 2_000), at(E1, 9)).build());
        let reported = bed.only_inside();
        assert_eq!(
            (*destination(&reported).ip(), packet::icmp(&reported).icmp_type()),
            (nobody, 3),
            "the sender gets an ICMP error"
        );
        assert!(bed.take_outside().is_empty());
    }
    assert_eq!(bed.count(Verdict::BoundaryAddress), 2, "boundary addresses have no slice");
    assert_eq!(bed.count(Verdict::SourceNotSubscriber), 0);
}

#[test]
fn overflow_uses_dynamic_blocks_and_only_these_are_logged() {
    covers!("7422-5", "7422-7", "7422-8");
    let mut bed = Bed::new(example(blocks(512, 2, 60))).record_events(10_000);
    let inside = Ipv4Addr::new(100, 64, 1, 5);
    let slice = open(&mut bed, (0..4_032).map(|port| at(inside, 2_000 + port)));
    assert_eq!(slice.len(), 4_032);
    assert_eq!(bed.take_events(0, usize::MAX), vec![], "what the formula shows is not logged");
    let over = open(&mut bed, (4_032..4_033).map(|port| at(inside, 2_000 + port)));
    let port = over.values().next().expect("it leaves").port();
    assert!(port >= 57_472);
    let events = bed.take_events(0, usize::MAX);
    let [lease] = &events[..] else { panic!("one record, not {events:?}") };
    assert_eq!((lease.kind, lease.subscriber, lease.external), (EventKind::BlockLeased, inside, POOL[0]));
    assert!((lease.first_port..=lease.last_port).contains(&port) && lease.last_port - lease.first_port == 511);
    let more = open(&mut bed, (4_033..6_000).map(|port| at(inside, 2_000 + port)));
    assert_eq!(more.len(), 2 * 512 - 1, "M is the slice and two blocks");
    let own = bed.shared().subscriber_ports(PoolId(0), RealmId(0), inside, Some(POOL[0]));
    let used: Vec<_> = own.iter().map(|own| (own.leased_s.is_some(), own.used)).collect();
    assert_eq!(used, [(false, [4_032, 0, 0]), (true, [512, 0, 0]), (true, [512, 0, 0])]);
    assert_eq!(bed.count(Verdict::BlockLimit), 6_000 - 4_032 - 2 * 512);
    // One port of the slice is free again: it is used before any of a block.
    let end = *slice.iter().next().expect("some").0;
    let keep: Vec<SocketAddrV4> = slice.keys().copied().filter(|internal| *internal != end).collect();
    for _ in 0..4 {
        bed.advance_secs(100);
        open(&mut bed, keep.iter().copied());
        open(&mut bed, more.keys().chain(over.keys()).copied());
    }
    let again = open(&mut bed, [at(inside, 50_000)].into_iter());
    assert_eq!(again.values().next(), slice.get(&end));
}

/// RFC 7422 §2: ports inside the range are random.
#[test]
fn ports_of_a_slice_are_spread_over_it_at_random() {
    covers!("7422-6");
    let mut bed = Bed::new(example(blocks(512, 2, 60)));
    let inside = Ipv4Addr::new(100, 64, 1, 3);
    let ports: Vec<u16> = (0..2_016).map(|port| bed.open_udp(at(inside, 2_000 + port), at(E1, 9)).port()).collect();
    let first = 1_024 + 2 * 4_032;
    let mut bins = [0_f64; 63];
    ports.iter().for_each(|port| bins[usize::from(port - first) / 64] += 1.0);
    let statistic: f64 = bins.iter().map(|seen| (seen - 32.0).powi(2) / 32.0).sum();
    // 62 degrees of freedom; without replacement it is smaller still.
    assert!(statistic < 105.0, "chi-square {statistic}");
    let neighbours = ports.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 1).count();
    assert!(neighbours < 40, "{neighbours} of 2015 ports are next to the one before");
}

/// RFC 7422 §2: who had a port before a restart is who has it after.
#[test]
fn slices_are_the_same_after_a_restart() {
    covers!("7422-12", "6888-REQ-8b");
    let ranges = |seed| {
        let bed = Bed::new(example(blocks(512, 2, 60))).seed(seed);
        let shared = bed.shared();
        let owners: Vec<_> = (1_024..=u16::MAX).map(|port| shared.slice_owner(AddressIndex(0), port)).collect();
        owners
    };
    assert_eq!(ranges(1), ranges(2));
}

/// Of an address with eight blocks one is kept by flows that share a port of it, and seven are
/// leased. Of another all are free.
#[test]
fn an_address_whose_blocks_are_all_kept_is_passed_over() {
    covers!("6888-REQ-13");
    for selection in [Selection::LeastUsed, Selection::RoundRobin, Selection::Hash] {
        for workers in [1, 2] {
            let dns = Match { protocol: Some(17), destination_ports: PortRange { first: 53, last: 53 }, ..Match::ALL };
            let action = RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent };
            let mut settings = with(settings().addresses(&POOL[..1]), Allocation::Blocks(blocks(64, 1, 600)));
            settings = settings.rule(dns, action).limits(|limits| {
                limits.external_addresses_max = 4;
                limits.flows_max = 100;
            });
            (settings.pools[0].port_min, settings.pools[0].port_max) = (2_048, 2_559);
            settings.pools[0].selection = selection;
            let mut bed = Bed::new(settings.clone()).workers(workers);
            bed.inside(&build::udp(at(subscriber(200), 5_000), at(E1, 53)).build());
            assert_eq!(bed.take_outside().len(), 1, "a flow");
            let first = open(&mut bed, (0..8).map(|number| at(subscriber(number), 5_000)));
            assert_eq!(first.len(), 7, "and seven blocks");
            settings.pools[0].addresses.push(POOL[1]);
            bed.reload(settings);
            let second = open(&mut bed, (20..28).map(|number| at(subscriber(number), 5_000)));
            assert_eq!(second.len(), 8, "{selection:?}, {workers} workers");
            assert!(second.values().all(|external| *external.ip() == POOL[1]));
        }
    }
}

/// Old single ports stand everywhere on the old address: new subscribers get blocks of the new one,
/// to the last.
#[test]
fn after_single_ports_blocks_come_from_where_they_are_free() {
    for selection in [Selection::LeastUsed, Selection::RoundRobin, Selection::Hash] {
        let mut settings = with(settings().addresses(&POOL[..1]), Allocation::Ports);
        settings = settings.limits(|limits| limits.external_addresses_max = 4);
        (settings.pools[0].port_min, settings.pools[0].port_max) = (2_048, 2_559);
        settings.pools[0].selection = selection;
        let mut bed = Bed::new(settings.clone()).workers(2);
        let before = open(&mut bed, (0..200).map(|number| at(subscriber(number), 5_000)));
        assert_eq!(before.len(), 200);
        settings.pools[0].addresses.push(POOL[1]);
        settings.pools[0].allocation = Allocation::Blocks(blocks(64, 1, 600));
        bed.reload(settings);
        let after = open(&mut bed, (300..308).map(|number| at(subscriber(number), 5_000)));
        assert_eq!(after.len(), 8, "{selection:?}");
        assert!(after.values().all(|external| *external.ip() == POOL[1]), "{selection:?}: {after:?}");
        // When the single ports are back, so are the blocks they kept.
        bed.advance_secs(400);
        assert_eq!(open(&mut bed, (400..408).map(|number| at(subscriber(number), 5_000))).len(), 8, "{selection:?}");
    }
}

/// A hundred addresses with one block each, all leased, and one more: it is found however many are
/// full.
#[test]
fn one_address_with_a_free_block_is_found_among_many_without() {
    for selection in [Selection::LeastUsed, Selection::RoundRobin, Selection::Hash] {
        let address = |number: u8| Ipv4Addr::new(203, 0, 114, number);
        let addresses: Vec<Ipv4Addr> = (0..100).map(address).collect();
        let mut settings = with(settings().addresses(&addresses), Allocation::Blocks(blocks(64, 1, 600)));
        settings = settings.limits(|limits| limits.external_addresses_max = 210);
        (settings.pools[0].port_min, settings.pools[0].port_max) = (2_048, 2_111);
        settings.pools[0].selection = selection;
        let mut bed = Bed::new(settings.clone()).workers(2);
        let leased = open(&mut bed, (0..100).map(|number| at(subscriber(number), 5_000)));
        assert_eq!(leased.len(), 100, "{selection:?}");
        for number in 100..110 {
            settings.pools[0].addresses.push(address(number));
            // With this all forget what is full.
            bed.reload(settings.clone());
            let one = at(subscriber(u32::from(number)), 5_000);
            let found = open(&mut bed, [one].into_iter());
            assert_eq!(found.get(&one).map(|external| *external.ip()), Some(address(number)), "{selection:?}");
        }
    }
}
