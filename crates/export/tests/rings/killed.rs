//! Records that only the rings of a killed process have.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use export::Clocks;
use export::Exporter;
use export::Names;
use export::Outputs;
use export::Subscriber;
use export::store::Generated;
use export::store::Generator;
use export::store::Moment;
use export::store::Question;
use export::store::Store;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::Until;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::types::RealmId;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::Place;
use super::at;
use super::copy;
use super::later;
use super::mapping;
use super::moment;
use super::question;
use super::two_rings;

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
