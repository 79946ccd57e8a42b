//! Who can have nothing but what drains: the plan says it before, and what is refused is refused
//! for that and nothing else.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Fates;
use nat::PoolCensus;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::event::Cause;
use nat::event::EventKind;
use nat::redirection::Redirection;
use nat::redirection::RedirectionId;
use nat::redirection::Target;
use nat::rules::Match;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Removed;
use nat::settings::RuleAction;
use nat::types::Facing;
use nat::types::PoolId;
use nat::types::RealmId;
use nat::view::SubscriberView;
use testkit::*;
use wire::build;

fn blocks(ports: u32, per_subscriber_max: u16) -> Blocks {
    let size = BlockSize::of_ports(ports).expect("a block size");
    Blocks { size, per_subscriber_max, idle: Duration::from_secs(60) }
}

/// 14 subscribers by a formula on two addresses, with one block of 64 beside their slices.
fn formula() -> Settings {
    let mut settings = settings().addresses(&POOL[..2]);
    settings.limits.external_addresses_max = 8;
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 1, 0], 28)];
    settings.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 2, overflow: blocks(64, 1) };
    settings.pools[0].reuse_delay = Duration::ZERO;
    settings
}

/// The same with the address of subscriber 1 draining.
fn drained() -> Settings {
    let mut next = formula();
    next.pools[0].draining_addresses = vec![home(1)];
    next
}

fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(100, 64, 1, number)
}

fn local(number: u8, port: u16) -> SocketAddrV4 {
    at(host(number), port)
}

/// The address that the formula gives a subscriber.
fn home(number: u8) -> Ipv4Addr {
    let bed = Bed::new(formula());
    let formula = bed.shared().formula(PoolId(0)).expect("it is deterministic");
    POOL[formula.slice_of(host(number).into()).expect("it has a slice").address as usize]
}

/// Subscribers 1 to 14 whose address is that of subscriber 1; and the others.
fn halves() -> (Vec<u8>, Vec<u8>) {
    let first = home(1);
    (1..=14).partition(|number| home(*number) == first)
}

fn wants(bed: &mut Bed, from: SocketAddrV4) -> Verdict {
    let packet = build::udp(from, at(E1, 80)).build();
    let shard = bed
        .shards()
        .find(|shard| shard.view().worker_to_ask(bed.now(), nat::types::Side::Inside, &packet) == shard.worker());
    let explained = shard.expect("one is to be asked").explain(bed.now(), Facing::inside(RealmId(0)), &packet).verdict;
    let before = bed.counters();
    bed.inside(&packet);
    let after = bed.counters();
    let ends = Verdict::ALL.iter().copied().find(|verdict| after.of(*verdict) > before.of(*verdict));
    bed.take_inside();
    bed.take_outside();
    assert_eq!(ends, Some(explained), "what becomes of a packet is what was explained");
    explained
}

/// What was refused to a subscriber, by name.
fn refused(found: &[SubscriberView], number: u8) -> Vec<(&'static str, u32)> {
    let view = found.iter().find(|view| view.address == host(number)).expect("it is listed");
    let causes = SubscriberView::CAUSES.iter().map(|cause| cause.name()).zip(view.refused);
    causes.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn the_plan_drains_formula_subscribers_with_their_address() {
    let mut bed = Bed::new(formula()).workers(2);
    let (go, stay) = halves();
    assert!(!stay.is_empty(), "the formula uses both addresses");
    for number in 1..=14 {
        bed.open_udp(local(number, 5_000), at(E1, 80));
    }
    let (gone, left) = (go.len() as u64, stay.len() as u64);
    let expected = PoolCensus {
        subscribers_keep: left,
        subscribers_drain: gone,
        mappings: Fates { keep: left, drain: gone, ..Fates::default() },
        ..PoolCensus::default()
    };
    assert_eq!(bed.census(drained()), [expected]);
    let mut with_end = drained();
    with_end.reload.drain_time = Some(Duration::from_secs(60));
    let until = PoolCensus {
        subscribers_drain: 0,
        subscribers_drain_until: gone,
        mappings: Fates { keep: left, drain_until: gone, ..Fates::default() },
        ..expected
    };
    assert_eq!(bed.census(with_end), [until]);
    // While it drains it goes on to say so, and that another change ends it.
    bed.reload(drained());
    assert_eq!(bed.census(drained()), [expected]);
    assert_eq!(bed.census(formula())[0].subscribers_keep, 14);
    bed.reload(formula());
    bed.run_out();
}

#[test]
fn the_plan_drains_all_subscribers_of_a_draining_pool() {
    let modes: [fn(&mut Pool); 4] = [
        |pool| pool.pooling = Pooling::Paired,
        |pool| pool.pooling = Pooling::Arbitrary,
        |pool| pool.allocation = Allocation::Blocks(blocks(64, 4)),
        |pool| pool.allocation = Allocation::Deterministic { dynamic_slices: 2, overflow: blocks(64, 1) },
    ];
    for (mode, change) in modes.into_iter().enumerate() {
        let mut settings = formula();
        settings.pools[0].allocation = Allocation::Ports;
        change(&mut settings.pools[0]);
        let mut bed = Bed::new(settings.clone());
        for number in 1..=5 {
            bed.open_udp(local(number, 5_000), at(E1, 80));
        }
        let mut next = settings.clone();
        next.pools[0].draining = true;
        let counted = bed.census(next.clone())[0];
        let of = [counted.subscribers_keep, counted.subscribers_move, counted.subscribers_leave];
        assert_eq!((of, counted.subscribers_drain, counted.mappings.drain), ([0; 3], 5, 5), "mode {mode}");
        bed.reload(next);
        for number in [1, 9] {
            assert_eq!(wants(&mut bed, local(number, 6_000)), Verdict::AddressDraining, "mode {mode}");
        }
        assert_eq!(wants(&mut bed, local(1, 5_000)), Verdict::Outbound, "mode {mode}: what is there stays");
        bed.reload(settings);
        assert_eq!(wants(&mut bed, local(9, 6_000)), Verdict::Outbound, "mode {mode}");
        bed.run_out();
    }
}

#[test]
fn a_subscriber_whose_state_ends_at_once_leaves() {
    let mut bed = Bed::new(formula());
    bed.open_udp(local(1, 5_000), at(E1, 80));
    // Its address goes at once, and where the formula puts it then drains.
    let mut next = formula();
    next.pools[0].addresses = vec![Ipv4Addr::new(203, 0, 113, 150)];
    next.pools[0].allocation = Allocation::Deterministic { dynamic_slices: 0, overflow: blocks(64, 1) };
    next.pools[0].draining = true;
    next.reload.removed = Removed::End;
    let counted = bed.census(next)[0];
    assert_eq!((counted.subscribers_leave, counted.mappings.end), (1, 1));
    bed.run_out();
}

#[test]
fn a_draining_address_is_the_reason_of_the_refusal() {
    let mut bed = Bed::new(formula()).record_events(20_000);
    let (go, stay) = halves();
    let (one, new) = (go[0], go[1]);
    // One has its slice and all blocks it may have in use: those are not why it gets nothing more.
    let slice = bed.shared().formula(PoolId(0)).map_or(0, |formula| formula.slice_ports() as u16);
    for port in 0..slice + 1 {
        bed.open_udp(local(one, 2_000 + port), at(E1, 80));
    }
    bed.reload(drained());
    bed.take_events(0, usize::MAX);
    for port in 60_000..60_003 {
        assert_eq!(wants(&mut bed, local(one, port)), Verdict::AddressDraining);
        assert_eq!(wants(&mut bed, local(new, port)), Verdict::AddressDraining);
    }
    assert_eq!(wants(&mut bed, local(one, 2_000)), Verdict::Outbound, "what it has goes on");
    assert_eq!(
        wants(&mut bed, local(stay[0], 60_000)),
        Verdict::Outbound,
        "who is on the other address notices nothing"
    );
    assert_eq!(refused(&bed.subscribers(), one), [("address_draining", 3)]);
    assert_eq!(refused(&bed.refused_subscribers(), new), [("address_draining", 3)]);
    bed.finish_events();
    let events = bed.take_events(0, usize::MAX);
    let reported: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Refused).collect();
    assert!(reported.iter().all(|event| event.cause == Cause::Verdict(Verdict::AddressDraining)), "{reported:?}");
    assert!(
        reported.iter().any(|event| event.subscriber == host(one))
            && reported.iter().any(|event| event.subscriber == host(new))
    );
    assert!(events.iter().all(|event| event.kind != EventKind::PoolExhausted), "no pool has run out");
    // It is over when the address is open again.
    bed.advance_secs(600);
    bed.reload(formula());
    assert_eq!(wants(&mut bed, local(one, 60_003)), Verdict::Outbound);
    assert_eq!(wants(&mut bed, local(new, 60_003)), Verdict::Outbound);
    bed.run_out();
}

#[test]
fn without_a_slice_the_verdict_is_the_same_while_draining() {
    let mut next = formula();
    next.pools[0].draining = true;
    let mut bed = Bed::new(next);
    assert_eq!(wants(&mut bed, local(0, 5_000)), Verdict::BoundaryAddress);
    bed.run_out();
}

#[test]
fn flows_into_a_pool_that_drains_are_refused_for_that() {
    let mut settings = formula();
    settings.pools[0].allocation = Allocation::Ports;
    settings.limits.flows_max = 100;
    let target = Target { address: E2.to_bits(), port: Some(8_080), weight: 1 };
    settings.redirections = vec![Redirection::Targets(vec![target])];
    let to_target = RuleAction::Redirect(RedirectionId(0));
    let matches = Match { protocol: Some(17), ..Match::ALL };
    settings = settings.rule(matches, to_target);
    let mut bed = Bed::new(settings.clone());
    assert_eq!(wants(&mut bed, local(1, 5_000)), Verdict::Outbound);
    let mut next = settings.clone();
    next.pools[0].draining = true;
    bed.reload(next);
    for number in [1, 2] {
        assert_eq!(wants(&mut bed, local(number, 6_000)), Verdict::AddressDraining);
    }
    // And by a rule that shares ports but keeps the destination.
    let mut shares = settings;
    shares.redirections.clear();
    shares.rules.clear();
    let shares = shares.rule(matches, RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent });
    let mut drains = shares.clone();
    drains.pools[0].draining = true;
    bed.reload(drains);
    assert_eq!(wants(&mut bed, local(1, 6_001)), Verdict::AddressDraining);
    bed.reload(shares);
    assert_eq!(wants(&mut bed, local(1, 6_002)), Verdict::Outbound);
    bed.run_out();
}

/// Four subscribers, each with an address of its own.
fn one_to_one() -> Settings {
    let mut settings = formula();
    settings.pools[0] = Pool {
        name: "servers".into(),
        addresses: (64..68).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect(),
        subscribers: vec![topology::prefix([100, 64, 1, 0], 30)],
        one_to_one: true,
        ..Pool::default()
    };
    settings
}

fn own(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, 64 + number)
}

/// The same while the addresses of some of them drain.
fn one_to_one_without(numbers: &[u8]) -> Settings {
    let mut next = one_to_one();
    next.pools[0].draining_addresses = numbers.iter().map(|number| own(*number)).collect();
    next
}

/// As [`wants`], of a packet from outside.
fn comes(bed: &mut Bed, packet: &[u8]) -> Verdict {
    let shards: Vec<_> = bed.shards().collect();
    let explained = bed.shared().explain(Facing::OUTSIDE, packet, |worker, onward| -> Result<_, ()> {
        let shard = shards[worker.index()];
        Ok(match onward {
            None => shard.explain(bed.now(), Facing::OUTSIDE, packet),
            Some(onward) => shard.explain_onward(bed.now(), onward, packet),
        })
    });
    let explained = explained.expect("shards always answer").1.verdict;
    let before = bed.counters();
    bed.outside(packet);
    let after = bed.counters();
    let ends = Verdict::ALL.iter().copied().find(|verdict| after.of(*verdict) > before.of(*verdict));
    bed.take_inside();
    bed.take_outside();
    assert_eq!(ends, Some(explained), "what becomes of a packet is what was explained");
    explained
}

#[test]
fn the_plan_drains_owners_with_their_one_to_one_address() {
    let mut bed = Bed::new(one_to_one()).workers(2);
    for number in 0..4 {
        bed.open_udp(local(number, 5_000), at(E1, 80));
        bed.open_tcp(local(number, 5_001), at(E1, 80));
    }
    let next = one_to_one_without(&[1, 2]);
    let expected = PoolCensus {
        subscribers_keep: 2,
        subscribers_drain: 2,
        mappings: Fates { keep: 4, drain: 4, ..Fates::default() },
        ..PoolCensus::default()
    };
    assert_eq!(bed.census(next.clone()), [expected]);
    let mut with_end = next.clone();
    with_end.reload.drain_time = Some(Duration::from_secs(60));
    let until = PoolCensus {
        subscribers_drain: 0,
        subscribers_drain_until: 2,
        mappings: Fates { keep: 4, drain_until: 4, ..Fates::default() },
        ..expected
    };
    assert_eq!(bed.census(with_end.clone()), [until]);
    let mut whole = one_to_one();
    whole.pools[0].draining = true;
    assert_eq!(bed.census(whole)[0].subscribers_drain, 4);
    // And what it says is what happens: they live until then, and no longer.
    bed.reload(with_end);
    for _ in 0..5 {
        bed.advance_secs(10);
        assert_eq!(wants(&mut bed, local(1, 5_000)), Verdict::Outbound);
    }
    bed.advance_secs(20);
    let left: Vec<u8> = bed.mappings().iter().map(|mapping| mapping.internal.address.octets()[3]).collect();
    assert!(left.iter().all(|number| [0, 3].contains(number)), "{left:?}");
    bed.run_out();
}

#[test]
fn a_draining_one_to_one_address_refuses_from_both_sides() {
    for workers in [1, 4] {
        let mut bed = Bed::new(one_to_one()).workers(workers).record_events(20_000);
        let (drained, open) = (1, 3);
        for number in [drained, open] {
            assert_eq!(bed.open_udp(local(number, 5_000), at(E1, 80)), at(own(number), 5_000));
        }
        bed.reload(one_to_one_without(&[drained, 2]));
        for worker in 0..workers {
            bed.take_events(worker, usize::MAX);
        }
        let udp = |number: u8, port: u16| build::udp(at(E2, 9), at(own(number), port)).payload_length(8).build();
        let syn = |number: u8| build::tcp(at(E2, 9), at(own(number), 80), wire::tcp::Flags::SYN).build();
        let ping = |number: u8| build::echo_request(E2, own(number), 7).build();
        // Out, of one who has something and of one who has not; then in.
        for port in [6_000, 6_001] {
            assert_eq!(wants(&mut bed, local(drained, port)), Verdict::AddressDraining);
            assert_eq!(wants(&mut bed, local(2, port)), Verdict::AddressDraining);
        }
        for packet in [udp(drained, 53), syn(drained), ping(drained), udp(2, 53)] {
            assert_eq!(comes(&mut bed, &packet), Verdict::AddressDraining);
        }
        // What is there stays, in both directions; and others notice nothing.
        assert_eq!(wants(&mut bed, local(drained, 5_000)), Verdict::Outbound);
        let back = build::udp(at(E1, 80), at(own(drained), 5_000)).payload_length(8).build();
        assert_eq!(comes(&mut bed, &back), Verdict::Inbound);
        assert_eq!(wants(&mut bed, local(open, 6_000)), Verdict::Outbound);
        for packet in [udp(open, 53), syn(open), ping(open)] {
            assert_eq!(comes(&mut bed, &packet), Verdict::Inbound);
        }
        assert_eq!(bed.count(Verdict::AddressDraining), 8);
        assert_eq!(bed.count(Verdict::PortsExhausted), 0);
        assert_eq!(refused(&bed.subscribers(), drained), [("address_draining", 5)]);
        assert_eq!(refused(&bed.refused_subscribers(), 2), [("address_draining", 3)]);
        bed.finish_events();
        let events: Vec<_> = (0..workers).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect();
        let reported: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Refused).collect();
        assert_eq!(reported.iter().map(|event| event.amount).sum::<u32>(), 8);
        assert!(reported.iter().all(|event| event.cause == Cause::Verdict(Verdict::AddressDraining)), "{reported:?}");
        assert!(events.iter().all(|event| event.kind != EventKind::PoolExhausted), "no pool has run out");
        bed.reload(one_to_one());
        assert_eq!(wants(&mut bed, local(drained, 6_000)), Verdict::Outbound);
        assert_eq!(comes(&mut bed, &udp(2, 53)), Verdict::Inbound);
        bed.run_out();
    }
}

#[test]
fn a_draining_one_to_one_address_refuses_whatever_a_rule_says() {
    let mut settings = one_to_one();
    settings.pools.push(Pool {
        name: "others".into(),
        addresses: vec![POOL[0]],
        subscribers: Vec::new(),
        ..Pool::default()
    });
    let to_others = RuleAction::Translate { pool: Some(PoolId(1)), mapping: MappingKind::EndpointDependent };
    let settings = settings.rule(Match::ALL, to_others);
    let mut drains = settings.clone();
    drains.pools[0].draining_addresses = vec![own(1)];
    let mut bed = Bed::new(settings);
    assert_eq!(bed.open_udp(local(1, 5_000), at(E1, 80)), at(own(1), 5_000));
    let counted = bed.census(drains.clone());
    // The mapping is of its own address; the subscriber is counted where the rule has paired it.
    let drain = |of: fn(&PoolCensus) -> u64| counted.iter().map(of).sum::<u64>();
    assert_eq!((drain(|pool| pool.subscribers_drain), drain(|pool| pool.mappings.drain)), (1, 1));
    bed.reload(drains);
    assert_eq!(wants(&mut bed, local(1, 6_000)), Verdict::AddressDraining);
    assert_eq!(wants(&mut bed, local(1, 5_000)), Verdict::Outbound);
    bed.run_out();
}

#[test]
fn a_forward_continues_while_its_one_to_one_address_drains() {
    let mut settings = one_to_one();
    settings.pools.push(Pool {
        name: "others".into(),
        addresses: vec![POOL[0]],
        subscribers: Vec::new(),
        ..Pool::default()
    });
    settings.forwards = vec![nat::settings::Forward {
        realm: RealmId(0),
        protocol: nat::Protocol::Udp,
        external: POOL[0],
        ports: (53, 53),
        inside: host(1).into(),
        inside_port: 53,
        admission: nat::settings::Admission::Anyone,
    }];
    let mut drains = settings.clone();
    drains.pools[0].draining = true;
    let mut bed = Bed::new(settings);
    bed.reload(drains);
    assert!(bed.udp_reaches(at(E1, 9), at(POOL[0], 53), local(1, 53)));
    assert_eq!(wants(&mut bed, local(1, 54)), Verdict::AddressDraining);
    bed.run_out();
}

/// Blocks of 64 ports, one for each subscriber, on the one address or the other.
fn one_block(address: Ipv4Addr) -> Settings {
    let mut settings = settings().addresses(&[address]);
    settings.limits.external_addresses_max = 4;
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 1, 0], 28)];
    settings.pools[0].allocation = Allocation::Blocks(blocks(64, 1));
    settings
}

#[test]
fn a_block_on_a_draining_address_allows_one_on_another() {
    for is_idle in [true, false] {
        let mut bed = Bed::new(one_block(POOL[0]));
        for port in 0..64 {
            bed.open_udp(local(1, 2_000 + port), at(E1, 80));
        }
        if is_idle {
            // Its mappings are over, the block lies idle.
            bed.advance_secs(301);
        }
        let mut next = one_block(POOL[1]);
        next.pools[0].addresses.insert(0, POOL[0]);
        next.pools[0].draining_addresses = vec![POOL[0]];
        next.reload.drain_time = None;
        bed.reload(next);
        assert_eq!(wants(&mut bed, local(1, 9_000)), Verdict::Outbound, "idle: {is_idle}");
        assert_eq!(bed.open_udp(local(1, 9_001), at(E1, 80)).ip(), &POOL[1]);
        // One block there, and no more.
        for port in 0..62 {
            assert_eq!(wants(&mut bed, local(1, 9_100 + port)), Verdict::Outbound);
        }
        assert_eq!(wants(&mut bed, local(1, 9_200)), Verdict::BlockLimit);
        bed.run_out();
    }
}

#[test]
fn what_has_only_some_time_left_is_shown_with_that() {
    for mapping in [MappingKind::EndpointIndependent, MappingKind::EndpointDependent] {
        let rule = RuleAction::Translate { pool: None, mapping };
        let with = |address| {
            let mut settings = settings().addresses(&[address]).rule(Match::ALL, rule);
            (settings.limits.external_addresses_max, settings.limits.flows_max) = (4, 100);
            settings
        };
        let mut bed = Bed::new(with(POOL[0]));
        bed.open_udp(at(I1, 5_000), at(E1, 80));
        let shown = |bed: &Bed| {
            let mappings = bed.mappings().into_iter().map(|mapping| mapping.expires_in);
            mappings.chain(bed.sessions().into_iter().map(|session| session.expires_in)).collect::<Vec<_>>()
        };
        let count = shown(&bed).len();
        assert!(shown(&bed).iter().all(|left| *left > Duration::from_secs(100)), "{:?}", shown(&bed));
        let mut next = with(POOL[1]);
        next.reload.drain_time = Some(Duration::from_secs(8));
        bed.reload(next);
        assert_eq!(shown(&bed), vec![Duration::from_secs(8); count], "{mapping:?}");
        bed.advance_secs(9);
        assert_eq!(shown(&bed), [], "they ended then");
        bed.run_out();
    }
}
