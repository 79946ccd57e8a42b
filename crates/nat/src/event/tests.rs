use core::net::Ipv4Addr;

use mem::ring;
use mem::ring::Consumer;

use super::refusals::Refusal;
use super::*;
use crate::random::KeyedHash;
use crate::time::Duration;
use crate::types::RealmId;

const CAPACITY: usize = 16;

fn log(back_pressure: BackPressure) -> (EventLog, Consumer<Record>) {
    let (producer, consumer) = ring::channel(CAPACITY);
    let settings = EventSettings { back_pressure, ..EventSettings::default() };
    let mut log = EventLog::new(&settings, KeyedHash::new([1, 2, 3, 4]));
    log.set_ring(producer);
    (log, consumer)
}

fn at(seconds: u64) -> Instant {
    Instant::ORIGIN + Duration::from_secs(seconds)
}

fn created() -> Event {
    Event::new(EventKind::MappingCreated, at(1))
}

fn taken(log: &mut EventLog, consumer: &mut Consumer<Record>) -> Vec<Event> {
    log.publish();
    core::iter::from_fn(|| consumer.try_pop()).map(|record| record.event().unwrap()).collect()
}

fn assert_no_number_is_missing(events: &[Event]) {
    let mut next = 1;
    for event in events {
        assert_eq!(event.sequence, next, "{event:?}");
        next += if event.kind == EventKind::Gap { u64::from(event.amount) } else { 1 };
    }
}

#[test]
fn without_a_ring_nothing_is_recorded_and_everything_may_happen() {
    let mut log = EventLog::new(&EventSettings::default(), KeyedHash::new([1, 2, 3, 4]));
    for _ in 0..100 {
        assert!(log.may_allocate() && log.may_end());
        log.record(created());
        log.record_minor(created());
        log.maintain(at(1), &EventSettings::default());
    }
    assert_eq!(log.counters(), EventCounters::default());
}

#[test]
fn a_full_ring_refuses_new_events_but_records_ends() {
    let (mut log, mut consumer) = log(BackPressure::Refuse);
    let mut created_count = 0;
    while log.may_allocate() {
        log.record(created());
        created_count += 1;
    }
    assert!(created_count >= CAPACITY / 2, "{created_count}");
    let mut ended = 0;
    while log.may_end() {
        log.record(Event::new(EventKind::MappingEnded, at(2)));
        ended += 1;
    }
    assert!(ended >= 2, "{ended}");
    assert_eq!(log.counters().lost, 0);
    let events = taken(&mut log, &mut consumer);
    assert_eq!(events.len(), created_count + ended);
    assert_no_number_is_missing(&events);
    assert!(log.may_allocate() && log.may_end());
}

#[test]
fn refusals_leave_room_for_ends_and_are_counted_as_lost() {
    let (mut log, mut consumer) = log(BackPressure::Refuse);
    for _ in 0..CAPACITY * 2 {
        log.record_minor(Event::new(EventKind::Refused, at(1)));
    }
    assert!(log.counters().lost > 0 && log.may_end());
    log.record(Event::new(EventKind::MappingEnded, at(1)));
    let events = taken(&mut log, &mut consumer);
    assert_no_number_is_missing(&events);
    assert_eq!(events.last().map(|event| event.kind), Some(EventKind::MappingEnded));
}

#[test]
fn lost_events_are_counted_and_a_gap_names_their_numbers() {
    let (mut log, mut consumer) = log(BackPressure::Drop);
    for _ in 0..CAPACITY + 5 {
        assert!(log.may_allocate() && log.may_end());
        log.record(created());
    }
    assert_eq!(log.counters().lost, 5);
    let mut events = taken(&mut log, &mut consumer);
    assert_eq!(events.len(), CAPACITY);
    log.record(created());
    events.extend(taken(&mut log, &mut consumer));
    assert_eq!(events[CAPACITY].kind, EventKind::Gap);
    assert_eq!((events[CAPACITY].sequence, events[CAPACITY].amount), (CAPACITY as u64 + 1, 5));
    assert_eq!(events[CAPACITY + 1].kind, EventKind::MappingCreated);
    assert_no_number_is_missing(&events);
}

#[test]
fn a_record_is_withdrawn_while_it_is_the_last_and_unpublished() {
    let (mut log, mut consumer) = log(BackPressure::Drop);
    let refused = || Event::new(EventKind::Refused, at(1));
    let numbered = |port: u16| Event { first_port: port, ..created() };
    let is = |port: u16| move |event: &Event| event.kind == EventKind::MappingCreated && event.first_port == port;
    log.record(numbered(1));
    assert!(!log.withdraw(is(2)), "there is no such record");
    log.record(numbered(2));
    assert!(log.withdraw(is(2)));
    log.record(numbered(3));
    log.record_minor(refused());
    log.record_minor(refused());
    assert!(log.withdraw(is(3)), "refusals stay");
    let name = HostName { address: 7, prefix_length: 128, inner: None };
    let named = || name.event(at(1), RealmId(0), Ipv4Addr::new(224, 0, 0, 1));
    assert!(log.record_name(named(), false));
    log.record(numbered(3));
    assert!(log.record_name(named(), true));
    log.record_minor(refused());
    assert!(log.withdraw(is(3)), "names stay");
    log.record(numbered(4));
    log.record(Event::new(EventKind::FilterDenied, at(1)));
    assert!(!log.withdraw(is(4)), "the filter's record may name its external endpoint");
    let events = taken(&mut log, &mut consumer);
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.first_port)).collect();
    let expected = [
        (EventKind::MappingCreated, 1),
        (EventKind::Refused, 0),
        (EventKind::Refused, 0),
        (EventKind::HostNamed, 7),
        (EventKind::HostNamed, 7),
        (EventKind::Refused, 0),
        (EventKind::MappingCreated, 4),
        (EventKind::FilterDenied, 0),
    ];
    assert_eq!(kinds, expected);
    assert_no_number_is_missing(&events);
    assert_eq!(log.counters().recorded, 8);
    log.record(numbered(5));
    log.publish();
    assert!(!log.withdraw(is(5)), "the exporter can see it");
}

#[test]
fn a_gap_is_reported_even_if_nothing_follows() {
    let (mut log, mut consumer) = log(BackPressure::Drop);
    for _ in 0..CAPACITY + 1 {
        log.record(created());
    }
    let mut events = taken(&mut log, &mut consumer);
    log.maintain(at(2), &EventSettings { back_pressure: BackPressure::Drop, ..EventSettings::default() });
    events.extend(taken(&mut log, &mut consumer));
    assert_eq!(events.last().map(|event| event.kind), Some(EventKind::Gap));
    assert_no_number_is_missing(&events);
}

fn refusal(subscriber: u32, verdict: Verdict) -> Refusal {
    Refusal {
        kind: EventKind::Refused,
        cause: Cause::Verdict(verdict),
        realm: RealmId(0),
        subscriber: Ipv4Addr::from_bits(subscriber),
        external: Ipv4Addr::UNSPECIFIED,
        pool: PoolName(0),
        protocol: Some(Protocol::Udp),
    }
}

#[test]
fn refusals_are_reported_once_an_interval_with_their_number() {
    let (mut log, mut consumer) = log(BackPressure::Refuse);
    for _ in 0..100 {
        log.refuse(refusal(1, Verdict::PortsExhausted), at(0));
    }
    log.refuse(refusal(1, Verdict::SessionLimit), at(0));
    log.refuse(refusal(2, Verdict::PortsExhausted), at(0));
    assert_eq!(taken(&mut log, &mut consumer).iter().map(|event| event.amount).collect::<Vec<_>>(), [1, 1, 1]);
    log.refuse(refusal(1, Verdict::PortsExhausted), at(10));
    let again = taken(&mut log, &mut consumer);
    assert_eq!(again.iter().map(|event| event.amount).collect::<Vec<_>>(), [100]);
    assert_eq!(again[0].subscriber, Ipv4Addr::from_bits(1));
}

#[test]
fn outstanding_refusals_are_reported_after_the_interval() {
    let (mut log, mut consumer) = log(BackPressure::Refuse);
    for _ in 0..7 {
        log.refuse(refusal(1, Verdict::PortsExhausted), at(0));
    }
    for _ in 0..1_000 {
        log.maintain(at(9), &EventSettings::default());
    }
    assert_eq!(taken(&mut log, &mut consumer).len(), 1);
    for _ in 0..1_000 {
        log.maintain(at(10), &EventSettings::default());
    }
    let later = taken(&mut log, &mut consumer);
    assert_eq!(later.iter().map(|event| event.amount).collect::<Vec<_>>(), [6]);
}

#[test]
fn however_many_are_refused_every_refusal_is_in_some_event() {
    let (producer, mut consumer) = ring::channel(1 << 16);
    let mut log = EventLog::new(&EventSettings::default(), KeyedHash::new([1, 2, 3, 4]));
    log.set_ring(producer);
    let mut refused = 0;
    for round in 0..5 {
        // More than the table holds.
        for subscriber in 0..2_000 {
            for _ in 0..=subscriber % 3 {
                log.refuse(refusal(subscriber, Verdict::PortsExhausted), at(round));
                refused += 1;
            }
        }
    }
    log.finish(at(6));
    let reported: u64 = taken(&mut log, &mut consumer).iter().map(|event| u64::from(event.amount)).sum();
    assert_eq!((reported, log.counters().lost), (refused, 0));
}

#[test]
fn names_are_frozen_and_unique() {
    let names: std::collections::HashSet<&str> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), EventKind::ALL.len());
    let causes = [
        Cause::None,
        Cause::Outbound,
        Cause::Inbound,
        Cause::Idle,
        Cause::Configuration,
        Cause::Drained,
        Cause::PoolPorts,
        Cause::SubscriberPorts,
        Cause::SubscriberSessions,
        Cause::Closed,
        Cause::Moved,
        Cause::LogOpened,
        Cause::RolledBack,
        Cause::NoAllocation,
    ];
    let causes: Vec<Cause> =
        causes.into_iter().chain(Verdict::ALL.iter().map(|verdict| Cause::Verdict(*verdict))).collect();
    let names: std::collections::HashSet<&str> = causes.iter().map(|cause| cause.name()).collect();
    let numbers: std::collections::HashSet<u64> = causes.iter().map(|cause| cause.number()).collect();
    // Two verdicts share names with directions; the kind distinguishes them.
    assert_eq!((names.len(), numbers.len()), (causes.len() - 2, causes.len()));
}

#[test]
fn each_adopted_configuration_is_reported_once() {
    let (mut log, mut consumer) = log(BackPressure::Refuse);
    // Number 2 was undone before this worker saw it.
    for generation in [1, 3] {
        log.adopt(generation);
        log.maintain(at(u64::from(generation)), &EventSettings::default());
        log.maintain(at(u64::from(generation)), &EventSettings::default());
    }
    let events = taken(&mut log, &mut consumer);
    assert_eq!(
        events.iter().map(|event| (event.kind, event.amount)).collect::<Vec<_>>(),
        [(EventKind::ConfigurationAdopted, 1), (EventKind::ConfigurationAdopted, 3)]
    );
}

#[test]
fn every_cause_comes_back_from_its_code() {
    let mut known = 0;
    for code in 0..=u8::MAX {
        if let Some(cause) = Cause::from_code(code) {
            assert_eq!(cause.code(), code);
            known += 1;
        }
    }
    assert_eq!(known, 18 + Verdict::COUNT);
}

/// Stores of the log keep causes by number for years.
#[test]
fn verdicts_keep_their_numbers() {
    let known: Vec<&str> = include_str!("verdicts.txt").lines().collect();
    let now: Vec<&str> = Verdict::ALL.iter().map(|verdict| verdict.name()).collect();
    assert_eq!(now, known, "add new verdicts at the end, there and in verdicts.txt; rename in place, never remove");
}
