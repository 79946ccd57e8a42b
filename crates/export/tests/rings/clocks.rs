//! Clocks that are set before or after a kill.

use export::store::Generator;
use export::store::Moment;
use export::store::Question;
use export::store::Replay;
use export::store::Store;
use export::store::StoreWriter;
use nat::event::EventKind;
use nat::types::WorkerId;

use super::Place;
use super::at;
use super::later;
use super::mapping;
use super::moment;
use super::question;
use super::two_rings;

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
fn a_clock_set_back_before_a_kill_gives_no_certain_holder() {
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
