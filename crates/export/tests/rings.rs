//! A process that is killed: what it had taken, written or only staged is found by the next one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Instant as Started;

use export::Clocks;
use export::Exporter;
use export::Medium;
use export::Names;
use export::Output;
use export::Outputs;
use export::Subscriber;
use export::Sync;
use export::WriterOptions;
use export::store::Generated;
use export::store::Generator;
use export::store::Moment;
use export::store::Question;
use export::store::Replay;
use export::store::Store;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::Until;
use export::store::verify;
use mem::ring::Producer;
use nat::Instant;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::FINISHED;
use nat::event::HostName;
use nat::event::Record;
use nat::types::RealmId;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// A store and the folder of its rings, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("natrix-rings-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("rings")).unwrap();
        Place(path)
    }

    fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    fn options(&self) -> StoreOptions {
        StoreOptions { rings_folder: self.0.join("rings"), has_threads: false, ..StoreOptions::default() }
    }

    /// All files in memory: rings, and last what the catalogue does not have yet.
    fn in_memory(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.0.join("rings")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn rings(&self) -> Vec<PathBuf> {
        self.in_memory().into_iter().filter(|path| !path.to_string_lossy().ends_with("-due")).collect()
    }

    fn faults(&self) -> Vec<String> {
        verify(&self.store(), None, |_, _| {}).unwrap().faults
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn later(place: &Place, seconds: u64) -> StoreWriter {
    let begin = Generator::begin();
    let now = Moment { unix_us: begin.unix_us + seconds * 1_000_000, ..begin };
    StoreWriter::open(&place.store(), place.options(), now).unwrap()
}

#[test]
fn whatever_a_killed_process_had_is_in_the_store() {
    for seed in 0..60 {
        let place = Place::new(&format!("kill-{seed}"));
        let mut random = SmallRng::seed_from_u64(seed);
        let mut generator = Generator::new(Generated::Mappings(3_000), seed);
        let options = StoreOptions { segment_rows: 700, frame_bytes: 4_096, ..place.options() };
        let mut writer = StoreWriter::open(&place.store(), options, Generator::begin()).unwrap();
        let (mut producer, mut consumer) = writer.create_rings(1, 1_024).unwrap().remove(0);
        let (mut events, mut pushed, mut taken_until) = (Vec::new(), 0_u64, 0);
        let steps = random.random_range(1..40);
        for _ in 0..steps {
            events.clear();
            generator.fill(random.random_range(1..200), &mut events);
            for event in &events {
                producer.stage((*event).into()).unwrap();
                pushed += 1;
            }
            if random.random_bool(0.9) {
                producer.publish();
                producer.mark(generator.now().monotonic_us);
            }
            let (mark, mut taken) = (consumer.mark(), Vec::new());
            let count = consumer.hold_burst(usize::MAX >> 1, |record| taken.extend(record.event()));
            assert_eq!(count, taken.len());
            taken_until = taken.last().map_or(taken_until, |event: &Event| event.sequence + 1);
            writer.push_all(Generator::WORKER, &taken);
            writer.advance(generator.now(), mark).unwrap();
            if consumer.held() > 600 {
                writer.flush().unwrap();
            }
            if writer.is_all_written() {
                consumer.release_at(taken_until);
            }
        }
        // The end of the process: staged, published, held and pending events as they are.
        drop((writer, producer, consumer));
        if seed % 3 == 0 {
            // A frame that was being written.
            let journal = fs::read_dir(place.store()).unwrap().map(|entry| entry.unwrap().path());
            let journal = journal.filter(|path| path.to_string_lossy().contains("journal-")).max().unwrap();
            let mut bytes = fs::read(&journal).unwrap();
            bytes.extend_from_slice(&[80, 0, 0, 0, 1, 2, 3]);
            fs::write(&journal, bytes).unwrap();
        }
        drop(later(&place, 3_600));
        let again = later(&place, 7_200);
        let now = Moment { monotonic_us: Generator::begin().monotonic_us + 1, ..Generator::begin() };
        again.finish(now, now.monotonic_us, false).unwrap();
        assert_eq!(place.faults(), Vec::<String>::new(), "seed {seed}");
        let stat = Store::open(&place.store()).unwrap().stat().unwrap();
        assert_eq!((stat.records, stat.gaps), (pushed, 0), "seed {seed}: each once");
        assert_eq!(place.in_memory(), Vec::<PathBuf>::new());
    }
}

/// A mapping of `port` by a subscriber with the same number.
fn mapping(sequence: u64, kind: EventKind, port: u16, at: Instant) -> Event {
    Event {
        sequence,
        subscriber: [100, 64, (port >> 8) as u8, port as u8].into(),
        external: [203, 0, 113, 9].into(),
        internal_port: port,
        first_port: port,
        last_port: port,
        protocol: Some(nat::Protocol::Udp),
        ..Event::new(kind, at)
    }
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(Generator::begin().monotonic_us + seconds * 1_000_000)
}

fn question(port: u16, seconds: u64) -> Question {
    let at_us = Generator::begin().unix_us + seconds * 1_000_000;
    let (address, port) = ([203, 0, 113, 9].into(), Some(port));
    Question { address, host: None, port, protocol: None, from_us: at_us, to_us: at_us }
}

/// Two workers, of which each has one mapping in its ring, and then a kill.
fn two_rings(place: &Place) {
    let mut writer = later(place, 0);
    let mut rings = writer.create_rings(2, 64).unwrap();
    for (worker, (producer, _)) in rings.iter_mut().enumerate() {
        producer.try_push(mapping(1, EventKind::MappingCreated, 1_000 + worker as u16, at(5)).into()).unwrap();
        producer.mark(at(60).as_micros());
    }
    writer.note_clock(moment(60, 0));
    drop((writer, rings));
    assert_eq!(place.rings().len(), 2);
}

#[test]
fn a_mapping_in_a_ring_alone_is_answered_until_the_kill() {
    let place = Place::new("answer");
    two_rings(&place);
    let writer = later(&place, 3_600);
    assert!(!writer.is_last_end_lost());
    drop(writer);
    let store = Store::open(&place.store()).unwrap();
    assert_eq!(store.stat().unwrap().lost_ends, 0);
    for port in [1_000, 1_001] {
        let found = store.look_up(&question(port, 30)).unwrap();
        assert!(found.is_complete, "{found:?}");
        assert_eq!(found.holders.len(), 1);
        assert_eq!(found.holders[0].until, Until::Restart(Generator::begin().unix_us + 3_600_000_000));
        // Between the last sign of life and the next start nobody can be sure.
        let after = store.look_up(&question(port, 1_800)).unwrap();
        assert!(!after.is_complete && after.holders.iter().all(|holder| !holder.is_certain), "{after:?}");
    }
    assert!(store.look_up(&question(1_002, 30)).unwrap().is_complete);
}

#[test]
fn an_inner_address_without_its_b4_is_that_of_all() {
    let place = Place::new("inner");
    let mut writer = later(&place, 0);
    let inner = core::net::Ipv4Addr::new(192, 168, 1, 2);
    for (number, port) in [(1, 1_000), (2, 1_001)] {
        let b4 = 0x2001_0db8 << 96 | u128::from(number);
        let name = HostName { address: b4, prefix_length: 128, inner: Some(inner.to_bits()) };
        let subscriber = core::net::Ipv4Addr::new(224, 0, 0, number);
        let sequence = u64::from(number) * 2 - 1;
        writer.push(WorkerId(0), &Event { sequence, ..name.event(at(5), RealmId(0), subscriber) });
        let created = mapping(sequence + 1, EventKind::MappingCreated, port, at(5));
        writer.push(WorkerId(0), &Event { subscriber, internal_port: 4_000, ..created });
    }
    let now = Moment { monotonic_us: at(60).as_micros(), unix_us: Generator::begin().unix_us + 60_000_000 };
    writer.advance(now, at(60).as_micros()).unwrap();
    for is_sealed in [false, true] {
        if is_sealed {
            writer.seal().unwrap();
        }
        let store = Store::open(&place.store()).unwrap();
        for (port, count) in [(None, 2), (Some(4_000), 2), (Some(4_001), 0)] {
            let asked = Question { address: inner, port, ..question(1_000, 30) };
            let found = store.look_up(&asked).unwrap();
            assert_eq!((found.holders.len(), found.is_complete), (count, true), "sealed {is_sealed}: {found:?}");
            assert_eq!(found.notes.iter().any(|note| note.contains("several B4s")), count > 1);
        }
    }
}

#[test]
fn a_range_of_very_many_steps_of_the_clock_is_refused() {
    let question = Question { from_us: 0, to_us: 1 << 50, ..question(1_000, 0) };
    for (steps, is_answered) in [(5_000_u64, true), (10_001, false)] {
        let mut replay = Replay::new(question);
        replay.begin(Moment { monotonic_us: 0, unix_us: 1_000_000 });
        for step in 1..=steps {
            let monotonic_us = step * 100;
            replay.set_clock(
                Moment { monotonic_us, unix_us: 1_000_000 + monotonic_us + step % 2 * 50_000 },
                monotonic_us,
            );
        }
        replay.cover(steps * 100 + 50);
        assert_eq!(replay.answer(&[]).is_ok(), is_answered, "{steps} steps");
    }
}

#[test]
fn a_killed_instance_still_names_its_ipv6_hosts() {
    let place = Place::new("names");
    let mut writer = later(&place, 0);
    let (mut producer, mut consumer) = writer.create_rings(1, 64).unwrap().remove(0);
    let number = core::net::Ipv4Addr::new(224, 0, 0, 1);
    let name = |low: u128| HostName { address: 0x2001_0db8 << 96 | low, prefix_length: 128, inner: None };
    let named = |low, sequence, second| Event { sequence, ..name(low).event(at(second), RealmId(0), number) };
    let of_host =
        |sequence, kind, port, second| Event { subscriber: number, ..mapping(sequence, kind, port, at(second)) };
    // The name is in a segment, the mapping's end and another host's name only in the ring.
    let stored = [named(1, 1, 5), of_host(2, EventKind::MappingCreated, 1_000, 5)];
    for event in stored {
        producer.try_push(event.into()).unwrap();
    }
    consumer.hold_burst(2, |_| {});
    writer.push_all(WorkerId(0), &stored);
    let now = Moment { monotonic_us: at(10).as_micros(), unix_us: Generator::begin().unix_us + 10_000_000 };
    writer.advance(now, at(9).as_micros()).unwrap();
    writer.seal().unwrap();
    consumer.release_at(3);
    for event in [
        of_host(3, EventKind::MappingCreated, 1_001, 20),
        of_host(4, EventKind::MappingEnded, 1_000, 30),
        of_host(5, EventKind::MappingEnded, 1_001, 30),
        named(2, 6, 55),
        of_host(7, EventKind::MappingCreated, 1_000, 55),
    ] {
        producer.try_push(event.into()).unwrap();
    }
    producer.mark(at(60).as_micros());
    writer.note_clock(moment(60, 0));
    drop((writer, producer));
    drop(later(&place, 3_600));
    let store = Store::open(&place.store()).unwrap();
    for (port, second, host) in
        [(1_000, 7, Some(1)), (1_000, 25, Some(1)), (1_001, 25, Some(1)), (1_000, 40, None), (1_000, 58, Some(2))]
    {
        let found = store.look_up(&question(port, second)).unwrap();
        let holders: Vec<Subscriber> = found.holders.iter().map(|holder| holder.subscriber).collect();
        let expected: Vec<Subscriber> = host.into_iter().map(|low| Subscriber::Host(name(low))).collect();
        assert!(found.is_complete && holders == expected, "port {port} at {second}: {found:?}");
    }
}

#[test]
fn a_clock_set_back_before_a_kill_names_nobody_for_sure() {
    let place = Place::new("back");
    two_rings(&place);
    // The clock went back by 20 s, at the latest when the next one starts.
    let begin = Generator::begin();
    let past = Moment { unix_us: begin.unix_us - 20_000_000, ..begin };
    drop(StoreWriter::open(&place.store(), place.options(), past).unwrap());
    let store = Store::open(&place.store()).unwrap();
    // What had it at second 30 may have had it at second 10, and the other way round.
    for second in [10, 30] {
        let found = store.look_up(&question(1_000, second)).unwrap();
        assert!(!found.is_complete, "{found:?}");
        assert!(found.holders.iter().all(|holder| !holder.is_certain), "{found:?}");
    }
}

/// A time of both clocks, so many seconds after the start.
fn moment(seconds: u64, back_s: u64) -> Moment {
    Moment {
        monotonic_us: at(seconds).as_micros(),
        unix_us: Generator::begin().unix_us + (seconds - back_s) * 1_000_000,
    }
}

#[test]
fn a_part_of_a_time_that_occurred_twice_has_a_note() {
    let place = Place::new("twice");
    let mut writer = later(&place, 0);
    writer.push(WorkerId(0), &mapping(1, EventKind::MappingCreated, 1_000, at(10)));
    writer.push(WorkerId(0), &mapping(2, EventKind::MappingEnded, 1_000, at(40)));
    // At second 45 the clock shows 25 again.
    writer.advance(moment(45, 0), at(45).as_micros()).unwrap();
    writer.advance(moment(45, 20), at(45).as_micros()).unwrap();
    writer.push(WorkerId(0), &mapping(3, EventKind::MappingCreated, 1_001, at(46)));
    writer.finish(moment(80, 20), at(80).as_micros(), true).unwrap();
    let store = Store::open(&place.store()).unwrap();
    for (first, last, is_twice) in
        [(28.0, 28.0, true), (28.0, 28.999_999, true), (15.0, 27.0, true), (44.0, 50.0, true), (46.0, 50.0, false)]
    {
        let moment = |second: f64| Generator::begin().unix_us + (second * 1e6) as u64;
        let (from_us, to_us) = (moment(first), moment(last));
        let found = store.look_up(&Question { from_us, to_us, port: None, ..question(0, 0) }).unwrap();
        let context = format!("{first} to {last}: {found:?}");
        assert_eq!(found.has_time_twice, is_twice, "{context}");
        assert_eq!(found.notes.iter().any(|note| note.contains("occurred more than once")), is_twice, "{context}");
        for holder in &found.holders {
            assert_eq!(found.is_throughout(holder, from_us, to_us), !is_twice, "{context}");
        }
        if first == 28.0 {
            let ports: Vec<_> = found.holders.iter().map(|holder| (holder.first_port, holder.is_certain)).collect();
            assert_eq!(ports, [(1_000, true), (1_001, true)], "{context}");
        }
    }
}

#[test]
fn an_export_is_sure_of_no_time_near_a_step() {
    let place = Place::new("export");
    let mut writer = later(&place, 0);
    writer.advance(moment(40, 0), at(40).as_micros()).unwrap();
    writer.push(WorkerId(0), &mapping(1, EventKind::MappingCreated, 1_000, at(43)));
    writer.push(WorkerId(0), &mapping(2, EventKind::MappingCreated, 1_001, at(46)));
    writer.push(WorkerId(0), &mapping(3, EventKind::MappingEnded, 1_000, at(47)));
    // The clock went back by 20 s after second 40, and this is noticed at second 45.
    writer.advance(moment(45, 20), at(45).as_micros()).unwrap();
    writer.finish(moment(50, 20), at(50).as_micros(), true).unwrap();
    let store = Store::open(&place.store()).unwrap();
    let rows = |from: u64, to: u64| {
        let unix_us = |second: u64| Generator::begin().unix_us + second * 1_000_000;
        let mut rows = Vec::new();
        let each = |export::store::Interval { holder, .. }: &export::store::Interval| {
            rows.push((holder.first_port, holder.is_certain));
            Ok::<(), export::store::StoreError>(())
        };
        store.intervals(unix_us(from), unix_us(to), each).unwrap();
        rows.sort_unstable();
        rows
    };
    assert_eq!(rows(0, 60), [(1_000, false), (1_001, true)]);
    // By the new time it began at second 23.
    assert_eq!(rows(22, 24), [(1_000, false)]);
}

#[test]
fn an_address_of_one_host_is_not_said_to_be_nobodys() {
    let place = Place::new("one-to-one");
    let mut writer = later(&place, 0);
    let names = |own: [u8; 4], configuration| {
        let range = |address: [u8; 4], is_one_to_one| export::PoolRange {
            is_one_to_one,
            ..export::PoolRange::of_address(address.into(), u16::from(is_one_to_one))
        };
        let ranges = vec![range([203, 0, 113, 1], false), range(own, true)];
        let addresses = export::PoolRanges::of(ranges).into();
        export::store::Names { addresses, configuration, ..export::store::Names::default() }
    };
    writer.set_names(names([203, 0, 113, 67], 0));
    writer.advance(moment(100, 0), at(100).as_micros()).unwrap();
    // A reload gives that host another address.
    writer.set_names(names([203, 0, 113, 68], 1));
    writer.advance(moment(101, 0), at(101).as_micros()).unwrap();
    writer.advance(moment(300, 0), at(300).as_micros()).unwrap();
    let answer = |address: [u8; 4], second| {
        let question = Question { address: address.into(), ..question(1_000, second) };
        let found = Store::open(&place.store()).unwrap().look_up(&question).unwrap();
        (found.is_complete, found.notes.join(" "))
    };
    let (is_complete, notes) = answer([203, 0, 113, 67], 50);
    assert!(!is_complete && notes.contains("gave 203.0.113.67 to one host (one-to-one)"), "{notes}");
    assert_eq!(answer([203, 0, 113, 1], 50), (true, String::new()), "an address of many hosts, with records");
    let (is_complete, notes) = answer([203, 0, 113, 68], 200);
    assert!(!is_complete && notes.contains("one-to-one"), "{notes}");
    let (is_complete, notes) = answer([203, 0, 113, 67], 200);
    assert!(is_complete && notes.contains("pass untranslated have no record"), "no pool has it any more: {notes}");
}

#[test]
fn what_an_earlier_version_did_not_record_is_unknown() {
    let place = Place::new("earlier");
    let mut writer = later(&place, 0);
    let ranges = vec![export::PoolRange::of_address([203, 0, 113, 9].into(), 0)];
    let addresses = export::PoolRanges::of_earlier_version(ranges).into();
    writer.set_names(export::store::Names { addresses, ..export::store::Names::default() });
    writer.push(WorkerId(0), &mapping(1, EventKind::MappingCreated, 1_000, at(100)));
    writer.advance(moment(300, 0), at(300).as_micros()).unwrap();
    let answer = |address: [u8; 4], port| {
        let question = Question { address: address.into(), ..question(port, 200) };
        let found = Store::open(&place.store()).unwrap().look_up(&question).unwrap();
        (found.holders.len(), found.is_complete, found.notes.join(" "))
    };
    let (holders, is_complete, notes) = answer([203, 0, 113, 9], 7);
    assert!(holders == 0 && !is_complete && notes.contains("an earlier version of Natrix"), "{notes}");
    // A holder of the whole time has the port for itself.
    assert_eq!(answer([203, 0, 113, 9], 1_000), (1, true, String::new()));
    let (holders, is_complete, notes) = answer([203, 0, 113, 77], 7);
    assert!(holders == 0 && is_complete && notes.contains("was no external address of a pool"), "{notes}");
}

#[test]
fn a_changed_formula_proves_nothing_until_all_is_recorded() {
    let place = Place::new("formulas");
    let mut writer = later(&place, 0);
    let names = |configuration| export::store::Names {
        formulas: 7 + configuration,
        configuration,
        ..export::store::Names::default()
    };
    // There are two workers.
    let of_configuration = |sequence, kind, second| Event {
        sequence,
        amount: 1,
        first_port: 2,
        last_port: 2,
        ..Event::new(kind, at(second)).because(Cause::Configuration)
    };
    writer.set_names(names(0));
    writer.advance(moment(1, 0), at(1).as_micros()).unwrap();
    writer.advance(moment(9, 0), at(9).as_micros()).unwrap();
    writer.set_names(names(1));
    writer.advance(moment(10, 0), at(10).as_micros()).unwrap();
    writer.push(WorkerId(0), &of_configuration(1, EventKind::ConfigurationAdopted, 11));
    writer.push(WorkerId(0), &of_configuration(2, EventKind::ConfigurationRecorded, 12));
    // The second worker has no record yet, for longer than any walk takes.
    writer.advance(moment(300, 0), at(300).as_micros()).unwrap();
    let answer = |second| {
        let found = Store::open(&place.store()).unwrap().look_up(&question(1_000, second)).unwrap();
        (found.holders.len(), found.is_complete, found.are_formulas_doubtful, found.formulas)
    };
    assert_eq!(answer(290), (0, false, true, vec![8]), "who kept a port is not recorded yet");
    let kept = mapping(1, EventKind::MappingCreated, 1_000, at(400));
    writer.push(WorkerId(1), &Event { amount: 395, ..kept.because(Cause::Configuration) });
    writer.push(WorkerId(1), &of_configuration(2, EventKind::ConfigurationRecorded, 401));
    writer.advance(moment(500, 0), at(500).as_micros()).unwrap();
    for is_sealed in [false, true] {
        if is_sealed {
            writer.seal().unwrap();
        }
        assert_eq!(answer(5), (1, false, false, vec![7]), "by its age it began between seconds 4 and 6");
        assert_eq!(answer(6), (1, true, false, vec![7]));
        assert_eq!(answer(290), (1, false, true, vec![8]), "it kept the port before it was recorded");
        assert_eq!(answer(450), (1, true, false, vec![8]));
    }
}

#[test]
fn a_clock_set_again_after_the_last_mark_is_no_damage() {
    let place = Place::new("again");
    let mut writer = later(&place, 0);
    let rings = writer.create_rings(1, 64).unwrap();
    rings[0].0.mark(Generator::begin().monotonic_us + 1);
    // A step is recorded after the mark of a worker that is stuck; another follows the kill.
    let begin = Generator::begin();
    let (monotonic_us, unix_us) = (begin.monotonic_us + 9_000_000, begin.unix_us + 4_000_000);
    writer.advance(Moment { monotonic_us, unix_us }, begin.monotonic_us + 1).unwrap();
    drop((writer, rings));
    let past = Moment { unix_us: begin.unix_us - 20_000_000, ..begin };
    drop(StoreWriter::open(&place.store(), place.options(), past).unwrap());
    assert_eq!(place.faults(), Vec::<String>::new());
    assert!(!Store::open(&place.store()).unwrap().look_up(&question(1_000, 2)).unwrap().is_complete);
}

#[test]
fn a_mapping_after_the_last_round_is_found_and_uncertain() {
    let place = Place::new("late");
    let mut writer = later(&place, 0);
    let (mut producer, consumer) = writer.create_rings(1, 64).unwrap().remove(0);
    producer.mark(at(60).as_micros());
    writer.note_clock(moment(60, 0));
    // The next round had begun: its packet is out, and its mark is not.
    for (sequence, kind, port, second) in [
        (1, EventKind::MappingCreated, 1_000, 61),
        (2, EventKind::MappingCreated, 1_001, 61),
        (3, EventKind::MappingEnded, 1_001, 63),
    ] {
        producer.stage(mapping(sequence, kind, port, at(second)).into()).unwrap();
    }
    drop((writer, producer, consumer));
    drop(later(&place, 3_600));
    let store = Store::open(&place.store()).unwrap();
    let holders = |port, second| {
        let found = store.look_up(&question(port, second)).unwrap();
        assert!(!found.is_complete, "{found:?}");
        found.holders.iter().map(|holder| holder.is_certain).collect::<Vec<_>>()
    };
    assert_eq!((holders(1_000, 62), holders(1_000, 60)), (vec![false], vec![]));
    assert_eq!((holders(1_001, 62), holders(1_001, 63)), (vec![true], vec![]));
}

#[test]
fn a_lost_or_damaged_ring_is_never_a_confident_answer() {
    let changes: [fn(&PathBuf, &mut Vec<u8>); 7] = [
        |path, _| fs::remove_file(path).unwrap(),
        |path, bytes| fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
        // The machine's boot, the kind of the record, the position of the producer.
        |path, bytes| {
            bytes[24 + 20] ^= 1;
            fs::write(path, bytes).unwrap();
        },
        |path, bytes| {
            bytes[4_096 + 44] = 0xff;
            fs::write(path, bytes).unwrap();
        },
        |path, bytes| {
            bytes[1_024 + 128 + 3] = 0xff;
            fs::write(path, bytes).unwrap();
        },
        // Which numbers the journal must have: more than the ring ever had, or unknown (format 1).
        |path, bytes| {
            bytes[1_024 + 8] = 0xff;
            fs::write(path, bytes).unwrap();
        },
        |path, bytes| {
            bytes[8] = 1;
            fs::write(path, bytes).unwrap();
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for ring in 0..2 {
            let place = Place::new(&format!("damage-{number}-{ring}"));
            two_rings(&place);
            let path = place.rings()[ring].clone();
            change(&path, &mut fs::read(&path).unwrap());
            drop(later(&place, 3_600));
            let store = Store::open(&place.store()).unwrap();
            for port in [1_000, 1_001, 1_002] {
                let found = store.look_up(&question(port, 30)).unwrap();
                assert!(!found.is_complete, "change {number} of ring {ring}: {found:?}");
                let wrong = |holder: &&export::store::Holder| holder.internal_port != Some(port);
                assert_eq!(found.holders.iter().find(wrong), None);
            }
            assert_eq!(place.faults(), Vec::<String>::new());
            assert_eq!(place.in_memory(), Vec::<PathBuf>::new());
            // No number is missing, but what was in the ring is.
            assert_eq!(store.stat().unwrap().lost_ends, 1, "change {number} of ring {ring}");
            let verified = verify(&place.store(), None, |_, _| {}).unwrap();
            assert_eq!(verified.lost_ends, 1, "change {number} of ring {ring}");
        }
    }
}

#[test]
fn a_damaged_number_of_a_ring_hides_nothing_that_it_has() {
    // The number is above all that the ring has, and below all.
    for number in [9_u64, 1] {
        let place = Place::new(&format!("number-{number}"));
        let writer = later(&place, 0);
        let (mut producer, consumer) = writer.create_rings(1, 64).unwrap().remove(0);
        for sequence in 3..6 {
            let event = mapping(sequence, EventKind::MappingCreated, 1_000 + sequence as u16, at(sequence));
            producer.try_push(event.into()).unwrap();
        }
        producer.mark(at(60).as_micros());
        drop((writer, producer, consumer));
        let path = place.rings().remove(0);
        let mut bytes = fs::read(&path).unwrap();
        bytes[1_024 + 8..1_024 + 16].copy_from_slice(&number.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        drop(later(&place, 3_600));
        let stat = Store::open(&place.store()).unwrap().stat().unwrap();
        assert_eq!((stat.records, stat.lost), (3, 2), "{number}");
        assert_eq!(place.faults(), Vec::<String>::new(), "{number}");
    }
}

#[test]
fn what_a_worker_lost_before_a_kill_is_a_gap() {
    let gap = |cause: Cause| Event { amount: 3, sequence: 5, ..Event::new(EventKind::Gap, at(9)) }.because(cause);
    let created = |port: u16, second| mapping(u64::from(port) - 999, EventKind::MappingCreated, port, at(second));
    for (number, last) in [gap(Cause::None), gap(Cause::NoAllocation), created(1_006, 9)].into_iter().enumerate() {
        let place = Place::new(&format!("unreported-{number}"));
        let mut writer = later(&place, 0);
        let (mut producer, consumer) = writer.create_rings(1, 4).unwrap().remove(0);
        for port in 1_000..1_004 {
            producer.try_push(created(port, 5).into()).unwrap();
        }
        producer.mark(at(6).as_micros());
        writer.note_clock(moment(60, 0));
        // There is no room for three more, nor for the record that says so.
        producer.stage(created(1_004, 7).into()).unwrap_err();
        producer.stage(last.into()).unwrap_err();
        drop((writer, producer, consumer));
        let writer = later(&place, 3_600);
        let said = writer.damage().join("\n");
        let (is_minor, notices) = (number == 1, writer.notices().join("\n"));
        assert_eq!(said.contains("lost its last 3 records"), !is_minor, "{said}");
        assert_eq!(notices.contains("lost 3 records at its end"), is_minor, "{notices}");
        assert!(!writer.is_last_end_lost());
        drop(writer);
        let store = Store::open(&place.store()).unwrap();
        let stat = store.stat().unwrap();
        assert_eq!((stat.records, stat.gaps, stat.lost, stat.cuts), (4, 1, 3, 0), "{number}");
        assert_eq!(place.faults(), Vec::<String>::new(), "{number}");
        for (port, second) in [(1_000, 6), (1_000, 8), (1_005, 8), (1_005, 9)] {
            let found = store.look_up(&question(port, second)).unwrap();
            assert!(second == 6 || !found.is_complete, "{number} {port}: {found:?}");
            assert!(second == 6 || found.holders.iter().all(|holder| !holder.is_certain), "{number}: {found:?}");
        }
    }
}

/// Writes six mappings, a second and a frame each, of the first of two workers, and is killed. All
/// are released: the rings are empty. `at_third` is called after the third. Returns the journal and
/// its length before each mapping and at the end.
fn six_frames(place: &Place, at_third: impl Fn()) -> (PathBuf, Vec<u64>) {
    let mut writer = later(place, 0);
    let mut rings = writer.create_rings(2, 64).unwrap();
    let journal = fs::read_dir(place.store()).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.filter(|path| path.to_string_lossy().contains("journal-")).max().unwrap();
    let length = || fs::metadata(&journal).unwrap().len();
    let mut lengths = vec![length()];
    for number in 1..=6 {
        let event = mapping(number, EventKind::MappingCreated, 1_000 + number as u16, at(number));
        rings[0].0.try_push(event.into()).unwrap();
        rings[0].1.hold_burst(1, |_| {});
        writer.push(WorkerId(0), &event);
        let unix_us = Generator::begin().unix_us + number * 1_000_000;
        writer.advance(Moment { monotonic_us: event.at.as_micros(), unix_us }, event.at.as_micros()).unwrap();
        assert!(writer.is_all_written());
        rings[0].1.release_at(number + 1);
        lengths.push(length());
        if number == 3 {
            at_third();
        }
    }
    rings.iter().for_each(|(producer, _)| producer.mark(at(60).as_micros()));
    writer.note_clock(moment(60, 0));
    (journal, lengths)
}

fn copy(from: &PathBuf, to: &PathBuf) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn what_a_journal_lost_is_a_gap_after_a_kill() {
    type Damage = fn(&Place, &PathBuf, &[u64]);
    let flip = |journal: &PathBuf, place: u64| {
        let mut bytes = fs::read(journal).unwrap();
        bytes[place as usize] ^= 1;
        fs::write(journal, bytes).unwrap();
    };
    // What happens, and the numbers that are lost by it.
    let damages: [(&str, Damage, core::ops::Range<u64>); 7] = [
        ("none", |_, _, _| {}, 0..0),
        (
            "cut at a frame",
            |_, journal, lengths| {
                fs::File::options().write(true).open(journal).unwrap().set_len(lengths[3]).unwrap();
            },
            4..7,
        ),
        (
            "rolled back",
            |place, _, _| {
                fs::remove_dir_all(place.store()).unwrap();
                copy(&place.0.join("third"), &place.store());
            },
            4..7,
        ),
        ("removed", |_, journal, _| fs::remove_file(journal).unwrap(), 1..7),
        ("a flipped hash", |_, _, _| {}, 3..4),
        ("a flipped length", |_, _, _| {}, 3..4),
        ("a flipped magic", |_, _, _| {}, 0..0),
    ];
    for (number, (what, damage, lost)) in damages.into_iter().enumerate() {
        let place = Place::new(&format!("lost-{number}"));
        let (journal, lengths) = six_frames(&place, || copy(&place.store(), &place.0.join("third")));
        damage(&place, &journal, &lengths);
        match what {
            "a flipped hash" => flip(&journal, lengths[2] + 30),
            "a flipped length" => flip(&journal, lengths[2] + 1),
            "a flipped magic" => flip(&journal, 3),
            _ => {}
        }
        let is_wrong = !place.faults().is_empty();
        let mut writer = later(&place, 3_600);
        let is_cut = what != "none";
        assert_eq!(writer.health().cuts, u64::from(is_cut), "{what}");
        let store = Store::open(&place.store()).unwrap();
        let stat = store.stat().unwrap();
        let count = lost.clone().count() as u64;
        assert_eq!((stat.cuts, stat.lost, stat.gaps), (u64::from(is_cut), count, count.min(1)), "{what}");
        let verified = verify(&place.store(), None, |_, _| {}).unwrap();
        assert_eq!((verified.cuts, verified.lost), (stat.cuts, count), "{what}");
        // All frames were synced, and a head signed after that; an older copy has its own head.
        let is_found = is_cut && what != "rolled back";
        assert_eq!(verified.faults.len(), usize::from(is_found), "{what}: {:?}", verified.faults);
        assert_eq!(is_wrong, is_found, "{what}: verify before the start");
        for number in 1..=6_u64 {
            let port = 1_000 + number as u16;
            for second in [number, 30] {
                let found = store.look_up(&question(port, second)).unwrap();
                let is_there = !lost.contains(&number);
                assert_eq!(found.holders.len(), usize::from(is_there), "{what}, {port} at {second}: {found:?}");
                let is_before = count == 0 || second + 1 < lost.start;
                assert_eq!(found.is_complete, is_before, "{what}, {port} at {second}: {found:?}");
                // A lost record may have ended it.
                let may_have_ended = second == 30 && count > 0 && is_there;
                let is_certain = found.holders.iter().all(|holder| holder.is_certain);
                assert_eq!(is_certain, !may_have_ended, "{what}, {port} at {second}: {found:?}");
            }
        }
        assert_eq!(store.look_up(&question(7, 30)).unwrap().is_complete, count == 0, "{what}: nobody held it?");
        // The next start knows no less.
        drop(writer);
        drop(later(&place, 7_200));
        assert_eq!(Store::open(&place.store()).unwrap().stat().unwrap().cuts, u64::from(is_cut), "{what}");
    }
}

#[test]
fn a_cut_without_a_head_is_found_until_retention_is_over() {
    let place = Place::new("headless");
    let head = place.store().join("head");
    let fault = |boot: u32| {
        let faults = place.faults();
        let begin = format!("journal of boot {boot}: a start found no head");
        assert!(faults.len() == 1 && faults[0].starts_with(&begin), "{faults:?}");
    };
    let (journal, lengths) = six_frames(&place, || {});
    fs::File::options().write(true).open(&journal).unwrap().set_len(lengths[3]).unwrap();
    // With the rings the frames would be a gap.
    place.rings().iter().for_each(|ring| fs::remove_file(ring).unwrap());
    fs::remove_file(&head).unwrap();
    drop(later(&place, 600));
    fault(0);
    drop(later(&place, 700));
    fault(0);
    // Segments of this run and the next: the first one is deleted.
    let begin = Generator::begin();
    let mut sequence = 1;
    let mut seal = |writer: &mut StoreWriter, seconds: u64| {
        let now = Moment { monotonic_us: at(seconds).as_micros(), unix_us: begin.unix_us + seconds * 1_000_000 };
        writer.push(WorkerId(0), &mapping(sequence, EventKind::MappingCreated, 2_000, at(seconds)));
        sequence += 1;
        writer.advance(now, now.monotonic_us).unwrap();
        writer.seal().unwrap();
    };
    let options = StoreOptions { retention_us: Some(3_600_000_000), ..place.options() };
    let now = Moment { unix_us: begin.unix_us + 800_000_000, monotonic_us: at(800).as_micros() };
    let mut writer = StoreWriter::open(&place.store(), options, now).unwrap();
    seal(&mut writer, 900);
    fault(0);
    for seconds in [20_000, 40_000] {
        seal(&mut writer, seconds);
    }
    assert_eq!(place.faults(), Vec::<String>::new());
}

#[test]
fn a_removed_or_foreign_head_is_recorded() {
    let place = Place::new("no-head");
    let head = place.store().join("head");
    drop(later(&place, 0));
    // A start that ended before it signed the first head.
    let key = fs::read(place.store().join("signing.key")).unwrap();
    let catalogue = fs::read(place.store().join("catalogue")).unwrap();
    let length = catalogue[16] as usize;
    fs::remove_dir_all(place.store()).unwrap();
    fs::create_dir(place.store()).unwrap();
    fs::write(place.store().join("catalogue"), &catalogue[..16 + 8 + length + 32]).unwrap();
    fs::write(place.store().join("signing.key"), key).unwrap();
    drop(later(&place, 1));
    assert_eq!(place.faults(), Vec::<String>::new());
    for (number, text) in ["", "natrix log head\n"].into_iter().enumerate() {
        let now = Moment { unix_us: Generator::begin().unix_us + 2_000_000, ..Generator::begin() };
        later(&place, 2).finish(now, now.monotonic_us, false).unwrap();
        assert_eq!(place.faults().len(), number);
        fs::write(&head, text).unwrap();
        drop(later(&place, 3));
        assert_eq!(place.faults().len(), number + 1);
    }
    let stat = Store::open(&place.store()).unwrap().stat().unwrap();
    assert_eq!(stat.cuts, 2);
}

#[test]
fn a_copy_of_a_store_does_not_take_the_rings_of_the_first() {
    let place = Place::new("copy");
    two_rings(&place);
    let to = place.0.join("copy");
    copy(&place.store(), &to);
    drop(StoreWriter::open(&to, place.options(), Generator::begin()).unwrap());
    assert_eq!(place.rings().len(), 2);
}

#[test]
fn a_start_that_fails_before_a_worker_runs_lost_nothing() {
    for is_marked in [false, true] {
        let place = Place::new(&format!("failed-start-{is_marked}"));
        let store = later(&place, 0);
        let (producers, rings): (Vec<_>, Vec<_>) = store.create_rings(2, 64).unwrap().into_iter().unzip();
        if is_marked {
            producers[1].mark(at(1).as_micros());
        }
        let (names, version, opened) = (Names::default(), String::new(), Arc::default());
        let outputs = Outputs { lines: None, store: Some(store), rings, names, version, opened };
        let clocks = || Clocks { now: at(2), unix_us: Generator::begin().unix_us + 2_000_000 };
        drop(Exporter::start(outputs, clocks).unwrap());
        drop(producers);
        assert_eq!(place.in_memory().is_empty(), !is_marked);
        drop(later(&place, 100));
        let store = Store::open(&place.store()).unwrap();
        assert_eq!(store.stat().unwrap().lost_ends, u64::from(is_marked));
    }
}

#[test]
fn the_exporter_asks_for_a_report_after_a_loss() {
    let place = Place::new("exporter");
    let begin = Started::now();
    let clocks = move || {
        let elapsed = begin.elapsed().as_micros() as u64;
        Clocks { now: Instant::from_micros(1_000_000 + elapsed), unix_us: Generator::begin().unix_us + elapsed }
    };
    let moment = Moment { monotonic_us: 1_000_000, unix_us: clocks().unix_us };
    let store = StoreWriter::open(&place.store(), place.options(), moment).unwrap();
    let (mut producers, rings): (Vec<_>, Vec<_>) = store.create_rings(2, 64).unwrap().into_iter().unzip();
    let names = Names { pools: vec!["main".to_owned()], realms: vec!["home".to_owned()], ..Names::default() };
    let opened = Arc::default();
    let outputs =
        Outputs { lines: None, store: Some(store), rings, names, version: String::new(), opened: Arc::clone(&opened) };
    let exporter = Exporter::start(outputs, clocks).unwrap();
    // The rings hold 64 records, so a busy machine finds one full at any time.
    let push = |producer: &mut Producer<Record>, event: Event| {
        while producer.try_push(event.into()).is_err() {
            assert!(begin.elapsed().as_secs() < 60, "{:?}", exporter.handle().stored());
            std::thread::yield_now();
        }
    };
    let mut next = [1_u64; 2];
    for step in 0..20_000_u64 {
        let worker = (step % 2) as usize;
        let event = mapping(next[worker], EventKind::MappingCreated, step as u16, clocks().now);
        push(&mut producers[worker], event);
        producers[worker].mark(event.at.as_micros());
        next[worker] += 1;
    }
    for (ring, next) in place.rings().iter().zip(next) {
        while mem::ring::file::read::<Record>(ring).unwrap().note != Some(next) {
            assert!(begin.elapsed().as_secs() < 60, "the ring says which numbers the journal has");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // A gap without allocations needs no report, another one does.
    let gap =
        |sequence, cause| Event { sequence, amount: 7, ..Event::new(EventKind::Gap, clocks().now).because(cause) };
    push(&mut producers[0], gap(next[0], Cause::NoAllocation));
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(opened.count(), 0);
    push(&mut producers[1], gap(next[1], Cause::None));
    while opened.count() == 0 {
        assert!(begin.elapsed().as_secs() < 60, "a report is asked for");
        std::thread::sleep(Duration::from_millis(5));
    }
    let handle = exporter.handle();
    producers.iter().for_each(|producer| producer.mark(clocks().now.as_micros() | FINISHED));
    drop(producers);
    assert!(exporter.stop());
    let stored = handle.stored().unwrap();
    assert_eq!((stored.records, stored.waiting, stored.errors), (20_002, 0, 0), "{stored:?}");
    assert_eq!((stored.health.gaps, stored.health.records_lost), (2, 14));
    assert_eq!(place.faults(), Vec::<String>::new());
    let stat = Store::open(&place.store()).unwrap().stat().unwrap();
    assert_eq!((stat.records, stat.mappings), (20_000, 20_000));
    assert_eq!(place.in_memory(), Vec::<PathBuf>::new());
}

/// A medium that takes a line only when the test lets it go, as a disk that is slow.
struct Slow(Arc<AtomicBool>);

impl Medium for Slow {
    fn open(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begin = Started::now();
        while self.0.load(Ordering::Relaxed) && begin.elapsed().as_secs() < 60 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(bytes.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn rotate(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn close(&mut self) {}
}

#[test]
fn what_was_so_while_the_exporter_waited_for_a_disk_is_recorded() {
    let place = Place::new("slow");
    // Second and how far the clock is behind; the readings of both.
    let (time, readings) = (Arc::new(Mutex::new((1, 0))), Arc::new(AtomicU64::new(0)));
    let (read, count) = (Arc::clone(&time), Arc::clone(&readings));
    let clocks = move || {
        let (second, behind) = *read.lock().unwrap();
        // Each reading is later than the one before.
        let Moment { monotonic_us, unix_us } = moment(second, behind);
        let later_us = count.fetch_add(1, Ordering::Relaxed);
        Clocks { now: Instant::from_micros(monotonic_us + later_us), unix_us: unix_us + later_us }
    };
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        let begin = Started::now();
        while !done() {
            assert!(begin.elapsed().as_secs() < 60, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let go_to = |second: u64, behind: u64| {
        *time.lock().unwrap() = (second, behind);
        let before = readings.load(Ordering::Relaxed);
        // One may have begun before.
        wait("somebody reads the clock", &|| readings.load(Ordering::Relaxed) > before + 2);
    };
    let store = later(&place, 0);
    let (mut producer, ring) = store.create_rings(1, 64).unwrap().remove(0);
    let names = |generation, checksum| Names { formulas: [(generation, checksum)].into(), ..Names::default() };
    let is_slow = Arc::new(AtomicBool::new(false));
    let options = WriterOptions { rotate_bytes: 0, rotate_us: 0, sync: Sync::Never };
    let medium = Box::new(Slow(Arc::clone(&is_slow)));
    let outputs = Outputs {
        lines: Some(Output { medium, options, destination: String::new() }),
        store: Some(store),
        rings: vec![ring],
        names: names(0, 7),
        version: String::new(),
        opened: Arc::default(),
    };
    let exporter = Exporter::start(outputs, clocks).unwrap();
    let handle = exporter.handle();
    let mut sequence = 0;
    let mut push = |kind, second, subscriber: u8| {
        sequence += 1;
        let event = Event { subscriber: [100, 64, 0, subscriber].into(), ..mapping(sequence, kind, 1_000, at(second)) };
        producer.try_push(event.into()).unwrap();
        producer.mark(event.at.as_micros());
    };
    push(EventKind::MappingCreated, 2, 40);
    push(EventKind::MappingEnded, 20, 40);
    go_to(23, 0);
    wait("these are written", &|| handle.stored().is_some_and(|stored| stored.records == 2));
    // The thread waits for a line to be written.
    is_slow.store(true, Ordering::Relaxed);
    push(EventKind::MappingCreated, 25, 41);
    go_to(26, 18);
    handle.announce(names(1, 8));
    go_to(30, 18);
    push(EventKind::MappingEnded, 35, 41);
    go_to(36, 0);
    handle.announce(names(2, 7));
    go_to(40, 0);
    is_slow.store(false, Ordering::Relaxed);
    producer.mark(at(41).as_micros() | FINISHED);
    drop(producer);
    assert!(exporter.stop());
    assert_eq!(place.faults(), Vec::<String>::new());
    // At second 30 the machine showed second 12.
    let found = Store::open(&place.store()).unwrap().look_up(&question(1_000, 12)).unwrap();
    let mut holders: Vec<Subscriber> = found.holders.iter().map(|holder| holder.subscriber).collect();
    holders.sort_unstable();
    let both = [40, 41].map(|low| Subscriber::Ipv4([100, 64, 0, low].into()));
    assert!(holders == both && !found.notes.is_empty() && found.formulas == [7, 8], "{found:?}");
}
