//! Offenders: who runs against its limits again and again gets new mappings from the penalty pool
//! of its class, until it has been quiet for long enough. What exists stays, pairing holds within
//! each pool, and nobody else notices.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Class;
use nat::settings::Penalty;
use nat::settings::Pool;
use nat::settings::PortTimeout;
use nat::settings::Rate;
use nat::settings::SubscriberLimits;
use nat::types::PoolId;
use nat::types::PoolName;
use nat::types::Side;
use nat::view::SubscriberView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::topology::prefix;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const FAR: SocketAddrV4 = at(E1, 80);
const PENALTY_POOL: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
const QUOTA: u16 = 5;

/// Five UDP ports each; ten refusals in a minute, and it takes ten quiet minutes to be released.
fn with_penalty() -> Settings {
    let mut settings = settings();
    settings.pools.push(Pool {
        name: "penalty".into(),
        addresses: PENALTY_POOL.to_vec(),
        subscribers: Vec::new(),
        ..Pool::default()
    });
    let penalty =
        Penalty { pool: PoolId(1), refusals: 10, window: Duration::from_secs(60), release: Duration::from_secs(600) };
    let limits = SubscriberLimits {
        ports_max: [u32::from(QUOTA), 1_000, 1_000],
        penalty: Some(penalty),
        ..SubscriberLimits::default()
    };
    settings.classes = vec![Class {
        name: "homes".into(),
        subscribers: vec![prefix([100, 64, 0, 0], 16)],
        realms: Vec::new(),
        limits,
        gateways: None,
    }];
    settings
}

/// Sends a packet of a new endpoint; the external address it leaves with, if it does.
fn open(bed: &mut Bed, subscriber: Ipv4Addr, port: u16) -> Option<Ipv4Addr> {
    bed.inside(&build::udp(SocketAddrV4::new(subscriber, port), FAR).build());
    bed.take_inside();
    bed.take_outside().first().map(|packet| *source(packet).ip())
}

fn open_tcp(bed: &mut Bed, subscriber: Ipv4Addr, port: u16) -> Option<Ipv4Addr> {
    bed.inside(&build::tcp(SocketAddrV4::new(subscriber, port), FAR, Flags::SYN).build());
    bed.take_inside();
    bed.take_outside().first().map(|packet| *source(packet).ip())
}

fn penalties(bed: &mut Bed, workers: usize) -> Vec<Event> {
    let events = (0..workers).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect::<Vec<_>>();
    let is_one = |event: &Event| matches!(event.kind, EventKind::PenaltyBegun | EventKind::PenaltyEnded);
    events.into_iter().filter(is_one).collect()
}

fn view(bed: &Bed, subscriber: Ipv4Addr) -> SubscriberView {
    bed.subscribers().into_iter().find(|view| view.address == subscriber).expect("a subscriber")
}

/// Makes an offender of a subscriber that has no mapping yet.
fn offend(bed: &mut Bed, subscriber: Ipv4Addr) -> Ipv4Addr {
    let own = open(bed, subscriber, 10_000).expect("a port");
    for port in 1..QUOTA {
        assert_eq!(open(bed, subscriber, 10_000 + port), Some(own), "one address for all");
    }
    for port in 0..10 {
        assert_eq!(open(bed, subscriber, 20_000 + port), None);
    }
    own
}

#[test]
fn an_offender_gets_new_mappings_from_the_penalty_pool() {
    covers!("6888-REQ-2", "6888-REQ-11d");
    for workers in [1, 3] {
        let mut bed = Bed::new(with_penalty()).workers(workers).record_events(1_000);
        let own = offend(&mut bed, I1);
        assert!(POOL.contains(&own) && view(&bed, I1).is_offender);
        let reported = penalties(&mut bed, workers);
        let [begun] = reported.as_slice() else { panic!("one event: {reported:?}") };
        let cause = Cause::Verdict(Verdict::SubscriberPortQuota);
        assert_eq!((begun.kind, begun.subscriber, begun.pool), (EventKind::PenaltyBegun, I1, PoolName(1)));
        assert_eq!((begun.amount, begun.cause), (10, cause));
        // Until it has something there it is shown with the address it has, and the pool of that.
        assert_eq!((view(&bed, I1).pool, view(&bed, I1).external_address), (PoolId(0), Some(own)));
        // TCP has a quota of its own. All of its new mappings are on one address of the penalty
        // pool.
        let sent = open_tcp(&mut bed, I1, 30_000).expect("a port");
        assert!(PENALTY_POOL.contains(&sent), "{sent}");
        for port in 30_001..30_050 {
            assert_eq!(open_tcp(&mut bed, I1, port), Some(sent));
        }
        assert_eq!((view(&bed, I1).pool, view(&bed, I1).external_address), (PoolId(1), Some(sent)));
        // What it has works both ways.
        let old = bed.mapping_of(Protocol::Udp, SocketAddrV4::new(I1, 10_000)).expect("it stays").external;
        assert_eq!(old.address, own);
        let external = SocketAddrV4::new(old.address, old.port);
        assert!(bed.udp_reaches(FAR, external, SocketAddrV4::new(I1, 10_000)));
        // Nobody else is moved.
        assert!(POOL.contains(&open(&mut bed, I2, 10_000).expect("a port")));
        assert!(!view(&bed, I2).is_offender);
        assert_eq!((bed.counters().penalties_begun, bed.counters().penalties_ended), (1, 0));
        bed.check_books();
    }
}

#[test]
fn it_is_released_after_a_quiet_time_and_not_before() {
    let mut bed = Bed::new(with_penalty()).record_events(1_000);
    offend(&mut bed, I1);
    assert!(PENALTY_POOL.contains(&open_tcp(&mut bed, I1, 30_000).expect("a port")));
    bed.advance_secs(200);
    // Refused once more: the quiet time begins anew.
    assert_eq!(open(&mut bed, I1, 20_000), None);
    bed.advance(Duration::from_micros(600_000_000 - 1));
    assert!(PENALTY_POOL.contains(&open_tcp(&mut bed, I1, 30_001).expect("a port")), "a microsecond before");
    bed.advance(Duration::from_micros(1));
    assert!(POOL.contains(&open_tcp(&mut bed, I1, 30_002).expect("a port")), "it is over");
    assert!(!view(&bed, I1).is_offender);
    let reported = penalties(&mut bed, 1);
    let ended = reported.last().expect("two events");
    assert_eq!((reported.len(), ended.kind, ended.cause, ended.amount), (2, EventKind::PenaltyEnded, Cause::Idle, 800));
    assert_eq!(bed.counters().penalties_ended, 1);
    bed.check_books();
}

#[test]
fn a_silent_offender_is_remembered_until_its_penalty_ends() {
    let mut bed = Bed::new(with_penalty()).record_events(1_000);
    offend(&mut bed, I1);
    // UDP mappings end after five minutes, the penalty after ten.
    bed.advance_secs(400);
    bed.sweep();
    assert_eq!(bed.mappings().len(), 0);
    assert!(PENALTY_POOL.contains(&open(&mut bed, I1, 40_000).expect("a port")), "it has not escaped");
    bed.advance_secs(1_000);
    bed.sweep();
    assert_eq!(bed.subscribers().len(), 0);
    assert_eq!(penalties(&mut bed, 1).len(), 2);
    assert!(POOL.contains(&open(&mut bed, I1, 40_000).expect("a port")));
}

/// One mapping a second, of which each ends after a second.
fn with_penalty_of_rates() -> Settings {
    let mut settings = with_penalty();
    settings.classes[0].limits.ports_max = [1_000; 3];
    settings.classes[0].limits.new_mappings = Some(Rate { per_second: 1, burst: 3 });
    let idle = Duration::from_secs(1);
    settings.port_timeouts = vec![PortTimeout { protocol: Protocol::Udp, ports: 80..=80, idle }];
    settings
}

#[test]
fn offences_count_with_and_without_mappings() {
    for workers in [1, 3] {
        let mut bed = Bed::new(with_penalty_of_rates()).workers(workers);
        // Three rounds of three refusals, with nothing left in between.
        let mut port = 10_000;
        for allowed in [3, 2, 2] {
            for number in 0..allowed + 3 {
                assert_eq!(open(&mut bed, I1, port).is_some(), number < allowed, "{number} of {allowed}");
                port += 1;
            }
            bed.advance_secs(2);
            bed.sweep();
            assert_eq!(bed.subscribers().len(), 0);
        }
        assert!(open(&mut bed, I1, port).is_some_and(|address| POOL.contains(&address)), "nine are not ten");
        assert!(open(&mut bed, I1, port + 1).is_some());
        assert_eq!(open(&mut bed, I1, port + 2), None);
        assert!(view(&bed, I1).is_offender, "the tenth within a minute");
        bed.advance_secs(2);
        assert!(open(&mut bed, I1, port + 3).is_some_and(|address| PENALTY_POOL.contains(&address)));
        bed.check_books();
    }
}

#[test]
fn refusals_without_any_mapping_count_as_offences() {
    let mut settings = with_penalty_of_rates();
    settings.classes[0].limits.new_mappings = Some(Rate { per_second: 1, burst: 30 });
    // Ends long before the bucket has a token again.
    settings.port_timeouts[0].idle = Duration::from_millis(10);
    let mut bed = Bed::new(settings).record_events(1_000);
    for port in 0..30 {
        assert!(open(&mut bed, I1, 10_000 + port).is_some());
    }
    bed.advance(Duration::from_millis(20));
    bed.sweep();
    assert_eq!(bed.subscribers().len(), 0);
    for port in 0..10 {
        assert_eq!(open(&mut bed, I1, 20_000 + port), None);
    }
    let shown = view(&bed, I1);
    assert!(shown.is_offender && shown.mappings == [0; 3] && shown.external_address.is_none(), "{shown:?}");
    bed.advance_secs(1);
    let sent = open(&mut bed, I1, 30_000).expect("a port");
    assert!(PENALTY_POOL.contains(&sent));
    assert_eq!(view(&bed, I1).external_address, Some(sent));
    // And it is released as others are.
    bed.advance_secs(1_000);
    bed.sweep();
    assert_eq!((bed.subscribers().len(), penalties(&mut bed, 1).len()), (0, 2));
    assert!(POOL.contains(&open(&mut bed, I1, 30_001).expect("a port")));
    bed.check_books();
}

#[test]
fn offences_are_forgotten_after_their_window_whatever_it_has() {
    let mut bed = Bed::new(with_penalty_of_rates());
    for port in 0..12 {
        open(&mut bed, I1, 10_000 + port);
    }
    bed.advance_secs(60);
    bed.sweep();
    for port in 0..4 {
        assert_eq!(open(&mut bed, I1, 20_000 + port).is_some(), port < 3);
    }
    assert!(!view(&bed, I1).is_offender, "nine were in another minute");
}

#[test]
fn only_own_offences_within_the_window_count() {
    let mut bed = Bed::new(with_penalty());
    for port in 0..QUOTA {
        open(&mut bed, I1, 10_000 + port);
    }
    // Nine a minute, for three minutes: never ten within one.
    for _ in 0..3 {
        for port in 0..9 {
            assert_eq!(open(&mut bed, I1, 20_000 + port), None);
        }
        bed.advance_secs(60);
    }
    assert!(!view(&bed, I1).is_offender);
    // A pool that has run out is nobody's fault.
    let mut settings = with_penalty();
    settings.pools[0].addresses.truncate(1);
    (settings.pools[0].port_min, settings.pools[0].port_max) = (2_000, 2_001);
    settings.classes[0].limits.ports_max = [u32::MAX; 3];
    let mut bed = Bed::new(settings);
    open(&mut bed, I1, 10_000);
    for port in 1..100 {
        open(&mut bed, I1, 10_000 + port);
    }
    assert_eq!((bed.count(Verdict::PortsExhausted), view(&bed, I1).is_offender), (98, false));
}

#[test]
fn a_full_penalty_pool_refuses_and_does_not_give_from_another() {
    covers!("6888-REQ-11a");
    let mut settings = with_penalty();
    settings.pools[1].addresses.truncate(1);
    (settings.pools[1].port_min, settings.pools[1].port_max) = (2_000, 2_003);
    let mut bed = Bed::new(settings);
    offend(&mut bed, I1);
    let got: Vec<_> = (0..6).filter_map(|n| open_tcp(&mut bed, I1, 30_000 + n)).collect();
    assert_eq!(got, vec![PENALTY_POOL[0]; 4]);
    bed.check_books();
}

#[test]
fn blocks_of_the_own_pool_are_no_blocks_of_the_penalty_pool() {
    let mut settings = with_penalty();
    let blocks =
        Blocks { size: BlockSize::of_ports(64).expect("a size"), per_subscriber_max: 1, idle: Duration::from_secs(5) };
    for pool in &mut settings.pools {
        pool.allocation = Allocation::Blocks(blocks);
    }
    settings.classes[0].limits.ports_max = [u32::MAX; 3];
    let mut bed = Bed::new(settings).record_events(1_000);
    // One block has 64 ports; what is above makes an offender.
    let own: HashSet<_> = (0..74).filter_map(|n| open(&mut bed, I1, 10_000 + n)).collect();
    assert_eq!((own.len(), bed.count(Verdict::BlockLimit)), (1, 10));
    assert_eq!(view(&bed, I1).refused.iter().sum::<u32>(), 10, "counted for the subscriber too");
    let sent: Vec<_> = (0..70).filter_map(|n| open_tcp(&mut bed, I1, 30_000 + n)).collect();
    assert_eq!(sent.len(), 64, "a block of the penalty pool, and no more");
    assert!(sent.iter().all(|address| PENALTY_POOL.contains(address)));
    // Its own block goes back when nothing of it is in use, because it is served elsewhere.
    bed.advance_secs(500);
    bed.sweep();
    let returned = bed.take_events(0, usize::MAX).into_iter().filter(|event| event.kind == EventKind::BlockReturned);
    assert!(returned.into_iter().any(|event| event.cause == Cause::Moved && own.contains(&event.external)));
}

#[test]
fn a_released_subscriber_gets_back_the_address_of_its_sessions() {
    covers!("6888-REQ-2");
    for in_blocks in [false, true] {
        let mut settings = with_penalty();
        settings.pools[0].addresses = (1..=16).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect();
        if in_blocks {
            let size = BlockSize::of_ports(64).expect("a size");
            settings.pools[0].allocation =
                Allocation::Blocks(Blocks { size, per_subscriber_max: 8, idle: Duration::from_secs(5) });
        }
        let mut bed = Bed::new(settings.clone()).workers(3);
        let subscribers: Vec<Ipv4Addr> = (10..22).map(|last| Ipv4Addr::new(100, 64, 0, last)).collect();
        let mut homes = Vec::new();
        for subscriber in &subscribers {
            // A connection that outlives the penalty.
            let client = SocketAddrV4::new(*subscriber, 9_000);
            let external = bed.open_tcp(client, FAR);
            let answer = build::tcp(FAR, external, Flags::SYN.union(Flags::ACK)).sequence(5_000).acknowledgment(1_001);
            bed.outside(&answer.build());
            bed.inside(&build::tcp(client, FAR, Flags::ACK).sequence(1_001).acknowledgment(5_001).build());
            bed.take_inside();
            bed.take_outside();
            assert_eq!(offend(&mut bed, *subscriber), *external.ip());
            homes.push(*external.ip());
            assert!(PENALTY_POOL.contains(&open_tcp(&mut bed, *subscriber, 30_000).expect("a port")));
        }
        bed.advance_secs(700);
        for (subscriber, home) in subscribers.iter().zip(&homes) {
            assert_eq!(open_tcp(&mut bed, *subscriber, 30_001), Some(*home), "{subscriber} has one address again");
            assert_eq!(view(&bed, *subscriber).external_address, Some(*home));
        }
        // An address that takes nobody new is no way back.
        offend_again(&mut bed, subscribers[0]);
        settings.pools[0].draining_addresses = vec![homes[0]];
        bed.reload(settings);
        bed.advance_secs(700);
        let other = open_tcp(&mut bed, subscribers[0], 30_003).expect("a port");
        assert!(other != homes[0] && !PENALTY_POOL.contains(&other), "{other}");
        bed.check_books();
    }
}

/// Makes an offender of a subscriber whose mappings have run out.
fn offend_again(bed: &mut Bed, subscriber: Ipv4Addr) {
    let own = offend(bed, subscriber);
    assert!(!PENALTY_POOL.contains(&own));
    assert!(PENALTY_POOL.contains(&open_tcp(bed, subscriber, 30_002).expect("a port")));
}

#[test]
fn a_reload_that_knows_no_penalty_ends_it() {
    let mut bed = Bed::new(with_penalty()).workers(2).record_events(1_000);
    offend(&mut bed, I1);
    assert!(PENALTY_POOL.contains(&open_tcp(&mut bed, I1, 30_000).expect("a port")));
    let mut next = with_penalty();
    next.classes[0].limits.penalty = None;
    bed.reload(next);
    assert!(POOL.contains(&open_tcp(&mut bed, I1, 30_001).expect("a port")));
    let reported = penalties(&mut bed, 2);
    assert_eq!(reported.last().map(|event| event.cause), Some(Cause::Configuration));
    bed.check_books();
}

#[test]
fn many_workers_keep_offenders_in_the_right_pool() {
    let mut random = SmallRng::seed_from_u64(7);
    let mut bed = Bed::new(with_penalty().short_timers()).workers(4).seed(7).steering(Steering::Random);
    for _ in 0..200 {
        for _ in 0..100 {
            let subscriber = Ipv4Addr::from_bits(0x6440_0100 + random.random_range(0..20));
            let internal = SocketAddrV4::new(subscriber, 1_000 + random.random_range(0..8));
            bed.offer(Side::Inside, &build::udp(internal, FAR).build());
        }
        bed.settle();
        bed.take_inside();
        bed.take_outside();
        bed.advance(Duration::from_millis(random.random_range(1..4_000)));
        for view in bed.subscribers() {
            let is_sent = view.external_address.is_some_and(|address| PENALTY_POOL.contains(&address));
            // Who was released has nothing there, and is paired anew with its next mapping.
            assert!(view.is_offender || !is_sent || view.mappings == [0; Protocol::COUNT], "{view:?}");
            assert_eq!(view.pool, PoolId(u16::from(is_sent)), "the pool is that of the address: {view:?}");
        }
        bed.check_books();
    }
    let counters = bed.counters();
    assert!(counters.penalties_begun > 5, "{} offenders", counters.penalties_begun);
    let offenders = bed.subscribers().iter().filter(|view| view.is_offender).count() as u64;
    assert_eq!(counters.penalties_begun - counters.penalties_ended, offenders);
}
