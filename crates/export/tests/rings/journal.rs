//! Journals and heads that are cut, removed or foreign.

use std::fs;
use std::path::PathBuf;

use export::store::Generator;
use export::store::Moment;
use export::store::Store;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::verify;
use nat::event::EventKind;
use nat::types::WorkerId;

use super::Place;
use super::at;
use super::copy;
use super::later;
use super::mapping;
use super::moment;
use super::question;

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
