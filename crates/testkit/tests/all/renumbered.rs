//! What records know by number (pools, classes) and by internal address alone, over reloads that
//! number pools and classes otherwise, take some away, or give them to another realm: events name
//! what they are about, and limits are those of the subscriber's class.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Settings;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::settings::Class;
use nat::settings::Penalty;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::types::PoolId;
use testkit::topology::prefix;
use testkit::*;
use wire::build;

const FAR: SocketAddrV4 = at(E1, 80);
/// Any UDP endpoint that sends nothing is forgotten after so many seconds.
const IDLE_S: u64 = 300;

/// With room for the addresses of more pools.
fn roomy() -> Settings {
    settings().limits(|limits| limits.external_addresses_max = 20)
}

/// A pool that serves nobody who sends here.
fn another(name: &str, last: u8) -> Pool {
    Pool {
        name: name.into(),
        addresses: vec![Ipv4Addr::new(198, 18, 0, last)],
        subscribers: vec![prefix([100, 99, last, 0], 24)],
        ..Pool::default()
    }
}

/// The same with two pools in front of all others.
fn with_two_in_front(mut settings: Settings) -> Settings {
    settings.pools.splice(0..0, [another("first", 101), another("second", 102)]);
    for class in &mut settings.classes {
        if let Some(penalty) = &mut class.limits.penalty {
            penalty.pool = PoolId(penalty.pool.0 + 2);
        }
    }
    settings
}

fn send(bed: &mut Bed, subscriber: Ipv4Addr, ports: core::ops::Range<u16>) {
    for port in ports {
        bed.inside(&build::udp(at(subscriber, port), FAR).build());
    }
    bed.take_inside();
    bed.take_outside();
}

/// Events of these kinds since the last call, each with the name of the pool that its line would
/// have.
fn reported(bed: &mut Bed, kinds: &[EventKind]) -> Vec<(Event, String)> {
    let events: Vec<Event> = bed.take_events(0, usize::MAX);
    let events = events.into_iter().filter(|event| kinds.contains(&event.kind));
    events.map(|event| (event, name_of(bed, &event))).collect()
}

fn name_of(bed: &Bed, event: &Event) -> String {
    bed.shared().pool_name(event.pool).unwrap_or_default().to_owned()
}

fn names(reported: &[(Event, String)]) -> Vec<(EventKind, &str)> {
    reported.iter().map(|(event, name)| (event.kind, name.as_str())).collect()
}

fn class(name: &str, third: u8, limits: SubscriberLimits) -> Class {
    Class {
        name: name.into(),
        subscribers: vec![prefix([100, 64, third, 0], 24)],
        realms: Vec::new(),
        limits,
        gateways: None,
    }
}

/// Three UDP ports each; five refusals in a minute, and a quiet one ends it.
fn with_penalty() -> Settings {
    let mut settings = roomy();
    settings.pools.push(Pool { subscribers: Vec::new(), ..another("penalty", 1) });
    let minute = Duration::from_secs(60);
    let penalty = Penalty { pool: PoolId(1), refusals: 5, window: minute, release: minute };
    let ports_max = [3, 1_000, 1_000];
    let limits = SubscriberLimits { ports_max, penalty: Some(penalty), ..SubscriberLimits::default() };
    settings.classes = vec![class("homes", 0, limits)];
    settings
}

#[test]
fn the_end_of_a_penalty_names_the_pool_that_its_beginning_named() {
    let without_class = |settings: Settings| Settings { classes: Vec::new(), ..settings };
    let without_pool = |settings: Settings| {
        let mut settings = without_class(settings);
        settings.pools.truncate(1);
        settings
    };
    let changes: [(&dyn Fn(Settings) -> Settings, Cause); 4] = [
        (&|settings| settings, Cause::Idle),
        (&with_two_in_front, Cause::Idle),
        (&without_class, Cause::Configuration),
        (&without_pool, Cause::Configuration),
    ];
    for (change, cause) in changes {
        for has_more in [false, true] {
            let mut bed = Bed::new(with_penalty()).record_events(1_000);
            // Nothing more while it lasts, or something of the penalty pool.
            send(&mut bed, I1, 10_000..10_008);
            if has_more {
                bed.open_tcp(at(I1, 5), at(E1, 443));
            }
            let kinds = [EventKind::PenaltyBegun, EventKind::PenaltyEnded];
            assert_eq!(names(&reported(&mut bed, &kinds)), [(EventKind::PenaltyBegun, "penalty")]);
            bed.reload(change(with_penalty()));
            bed.advance_secs(70);
            let ended = reported(&mut bed, &kinds);
            assert_eq!(names(&ended), [(EventKind::PenaltyEnded, "penalty")], "{cause:?}");
            assert_eq!((ended[0].0.subscriber, ended[0].0.cause), (I1, cause));
            bed.check_books();
        }
    }
}

#[test]
fn a_threshold_names_its_pool_after_renumbering() {
    for pooling in [Pooling::Paired, Pooling::Arbitrary] {
        let mut settings = roomy().pooling(pooling);
        let threshold = Some(Threshold { high_percent: 50, low_percent: 30 });
        settings.subscriber = SubscriberLimits { ports_max: [10; 3], threshold, ..SubscriberLimits::default() };
        let mut bed = Bed::new(settings.clone()).record_events(1_000);
        send(&mut bed, I1, 4_000..4_007);
        let kinds = [EventKind::ThresholdReached, EventKind::ThresholdCleared];
        assert_eq!(names(&reported(&mut bed, &kinds)), [(EventKind::ThresholdReached, "main")]);
        bed.reload(with_two_in_front(settings));
        bed.advance_secs(IDLE_S + 30);
        assert_eq!(names(&reported(&mut bed, &kinds)), [(EventKind::ThresholdCleared, "main")], "{pooling:?}");
    }
}

#[test]
fn refusals_reported_together_name_the_pool_that_refused() {
    let mut settings = roomy().addresses(&POOL[..1]).ports(2_048, 2_051);
    settings.pools[0].reuse_delay = Duration::ZERO;
    let mut bed = Bed::new(settings.clone()).record_events(1_000);
    let kinds = [EventKind::Refused, EventKind::PoolExhausted];
    let both = [(EventKind::Refused, "main"), (EventKind::PoolExhausted, "main")];
    send(&mut bed, I1, 4_000..4_012);
    assert_eq!(names(&reported(&mut bed, &kinds)), both, "the first of each");
    bed.reload(with_two_in_front(settings));
    bed.advance_secs(30);
    let mut later = reported(&mut bed, &kinds);
    later.sort_by_key(|(event, _)| event.kind == EventKind::PoolExhausted);
    assert_eq!(names(&later), both);
    assert!(later.iter().all(|(event, _)| event.amount == 7), "{later:?}");
    // The pool is gone, and has a name still.
    let mut bed = Bed::new(with_two_in_front(roomy().addresses(&POOL[..1]).ports(2_048, 2_051)));
    bed = bed.record_events(1_000);
    send(&mut bed, I1, 4_000..4_012);
    reported(&mut bed, &kinds);
    let mut next = with_two_in_front(roomy());
    next.pools.truncate(2);
    bed.reload(next);
    bed.advance_secs(30);
    let later = reported(&mut bed, &kinds);
    assert!(later.len() == 2 && later.iter().all(|(_, name)| name == "main"), "{later:?}");
}

#[test]
fn a_refusal_after_a_reload_names_the_paired_address() {
    let mut settings = roomy();
    settings.subscriber = SubscriberLimits { ports_max: [3; 3], ..SubscriberLimits::default() };
    let mut bed = Bed::new(settings.clone()).record_events(1_000);
    let subscribers: Vec<Ipv4Addr> = (10..30).map(|last| Ipv4Addr::new(100, 64, 0, last)).collect();
    let first = subscribers.iter().map(|one| *bed.open_udp(at(*one, 4_000), FAR).ip());
    let paired: Vec<Ipv4Addr> = first.collect();
    subscribers.iter().for_each(|one| send(&mut bed, *one, 4_001..4_003));
    bed.reload(with_two_in_front(settings));
    for (one, paired) in subscribers.iter().zip(paired) {
        send(&mut bed, *one, 5_000..5_001);
        let refused = reported(&mut bed, &[EventKind::Refused]);
        assert_eq!(names(&refused), [(EventKind::Refused, "main")]);
        assert_eq!((refused[0].0.subscriber, refused[0].0.external), (*one, paired));
    }
}

#[test]
fn a_threshold_uses_the_class_limits_after_renumbering() {
    let limits = |ports, high_percent, low_percent| SubscriberLimits {
        ports_max: [ports; 3],
        threshold: Some(Threshold { high_percent, low_percent }),
        ..SubscriberLimits::default()
    };
    let mut before = roomy();
    before.classes = vec![class("homes", 0, limits(10, 50, 10))];
    let mut bed = Bed::new(before.clone()).record_events(1_000);
    // One ends every ten seconds.
    for port in 4_000..4_008 {
        send(&mut bed, I1, port..port + 1);
        bed.advance_secs(10);
    }
    let kinds = [EventKind::ThresholdReached, EventKind::ThresholdCleared];
    let crossings = |bed: &mut Bed| -> Vec<(EventKind, u32, u32)> {
        let used = bed.mappings().len() as u32;
        reported(bed, &kinds).into_iter().map(|(event, _)| (event.kind, event.amount, used)).collect()
    };
    assert_eq!(crossings(&mut bed), [(EventKind::ThresholdReached, 50, 8)]);
    let mut after = before.clone();
    after.classes.insert(0, class("others", 9, limits(1_000, 90, 80)));
    bed.reload(after);
    let mut seen = Vec::new();
    for _ in 0..IDLE_S {
        bed.advance_secs(1);
        seen.extend(crossings(&mut bed));
    }
    // One of ten ports is what the class clears at.
    assert_eq!(seen, [(EventKind::ThresholdCleared, 10, 1)]);
    // The same the other way round: limits of no class do not hide that the own one is reached.
    let mut bed = Bed::new(before.clone()).record_events(1_000);
    send(&mut bed, I1, 4_000..4_004);
    let mut lower = before;
    lower.classes[0].limits = limits(4, 50, 10);
    lower.classes.insert(0, class("others", 9, SubscriberLimits::default()));
    bed.reload(lower);
    send(&mut bed, I1, 5_000..5_001);
    assert_eq!(crossings(&mut bed), [(EventKind::ThresholdReached, 100, 4)]);
}
