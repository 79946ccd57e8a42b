//! Damage to one file of a store: it opens all the same, nothing is deleted, and answers say what
//! is not known.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::fs;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;
use std::time::SystemTime;

use export::store::CursorFile;
use export::store::Follower;
use export::store::Found;
use export::store::Interval;
use export::store::Moment;
use export::store::Question;
use export::store::Start;
use export::store::Store;
use export::store::StoreError;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::Until;
use export::store::verify;
use nat::Instant;
use nat::Protocol;
use nat::event::Event;
use nat::event::EventKind;
use nat::types::WorkerId;

const UNIX_US: u64 = 1_790_000_000_000_000;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("natrix-damage-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("rings")).unwrap();
        Place(path)
    }

    fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.store().join(name)
    }

    fn options(&self) -> StoreOptions {
        StoreOptions { rings_folder: self.0.join("rings"), has_threads: false, ..StoreOptions::default() }
    }

    fn try_open(&self, second: u64) -> Result<StoreWriter, StoreError> {
        StoreWriter::open(&self.store(), self.options(), moment(second))
    }

    fn open(&self, second: u64) -> StoreWriter {
        self.try_open(second).unwrap()
    }

    fn ask(&self, port: u16, second: u64) -> Found {
        Store::open(&self.store()).unwrap().look_up(&question(port, second)).unwrap()
    }

    fn faults(&self) -> Vec<String> {
        verify(&self.store(), None, |_, _| {}).unwrap().faults
    }

    fn cut(&self, name: &str) {
        let file = File::options().write(true).open(self.file(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn moment(second: u64) -> Moment {
    Moment { monotonic_us: second * 1_000_000, unix_us: UNIX_US + second * 1_000_000 }
}

fn question(port: u16, second: u64) -> Question {
    let at_us = UNIX_US + second * 1_000_000;
    let address = [203, 0, 113, 1].into();
    Question { address, host: None, port: Some(port), protocol: None, from_us: at_us, to_us: at_us }
}

/// A mapping of a host of its own begins or ends.
fn push(writer: &mut StoreWriter, sequence: u64, (kind, port, second): (EventKind, u16, u64)) {
    let [high, low] = port.to_be_bytes();
    let event = Event {
        sequence,
        subscriber: [100, 64, high, low].into(),
        external: [203, 0, 113, 1].into(),
        internal_port: 5_000,
        first_port: port,
        last_port: port,
        protocol: Some(Protocol::Udp),
        amount: second as u32,
        ..Event::new(kind, Instant::from_micros(second * 1_000_000))
    };
    let amount = if kind == EventKind::MappingCreated { 0 } else { event.amount };
    writer.push(WorkerId(0), &Event { amount, ..event });
}

const BEGINS: EventKind = EventKind::MappingCreated;
const ENDS: EventKind = EventKind::MappingEnded;

/// A run of three segments, of ten seconds each, and a journal. It is killed in second 35. Mapping
/// 1000 and 1001 begin in the first segment, 2000 in the second, 3000 in the third, 4000 in the
/// journal; 1001 ends in the second.
fn killed(place: &Place) {
    let mut writer = place.open(1);
    let mut sequence = 0;
    for (from, events) in [
        (1, &[(BEGINS, 1_000, 3), (BEGINS, 1_001, 4)][..]),
        (11, &[(BEGINS, 2_000, 13), (ENDS, 1_001, 15)]),
        (21, &[(BEGINS, 3_000, 23)]),
        (31, &[(BEGINS, 4_000, 33)]),
    ] {
        for event in events {
            sequence += 1;
            push(&mut writer, sequence, *event);
        }
        let end = if from == 31 { 35 } else { from + 9 };
        writer.advance(moment(end), end * 1_000_000).unwrap();
        if from == 31 { writer.flush().unwrap() } else { writer.seal().unwrap() }
    }
    writer.advance(moment(37), 36_000_000).unwrap();
}

#[test]
fn what_was_open_at_a_damaged_end_is_uncertain_later() {
    let place = Place::new("last");
    killed(&place);
    let whole = fs::read(place.file("segment-00000002")).unwrap();
    place.cut("segment-00000002");
    let damaged = fs::read(place.file("segment-00000002")).unwrap();
    let writer = place.open(100);
    let reported = writer.damage().join("\n");
    assert!(reported.contains("segment-00000002") && reported.contains("put it back"), "{reported}");
    assert_eq!(fs::read(place.file("segment-00000002")).unwrap(), damaged, "it stays where it was");
    let faults = place.faults();
    assert!(faults.iter().any(|fault| fault.contains("a start found it damaged")), "{faults:?}");
    assert!(faults.len() == 2 && Store::open(&place.store()).unwrap().stat().unwrap().cuts == 1, "{faults:?}");
    let known = |port: u16, second: u64| {
        let found = place.ask(port, second);
        (found.holders.iter().map(|holder| holder.is_certain).collect::<Vec<_>>(), found.is_complete)
    };
    assert_eq!(known(1_000, 5), (vec![true], true), "before the damaged one");
    assert!(place.ask(1_000, 5).notes.concat().contains("ends of holdings"));
    assert_eq!(known(1_001, 18), (vec![], true));
    assert_eq!(known(2_000, 18), (vec![true], true));
    for second in [25, 34] {
        assert_eq!(known(1_000, second), (vec![false], false), "it may have ended");
        assert_eq!(known(2_000, second), (vec![false], false));
        assert_eq!(known(9, second), (vec![], false), "what began meanwhile is not known");
    }
    assert_eq!(known(1_001, 25), (vec![], false));
    assert_eq!(known(3_000, 25), (vec![], false));
    assert!(!known(4_000, 34).1);
    let found = place.ask(1_000, 25);
    assert!(found.notes[0].contains("segment-00000002 is damaged or missing"), "{:?}", found.notes);
    assert!(matches!(found.holders[0].until, Until::Restart(_)), "{found:?}");
    // A copy of the file that is put back.
    drop(writer);
    fs::write(place.file("segment-00000002"), whole).unwrap();
    for second in [25, 34] {
        assert_eq!(known(3_000, second), (vec![false], false), "the start did not know it");
    }
    assert_eq!(place.open(200).damage(), [""; 0]);
    assert_eq!(place.faults().len(), 1, "{:?}", place.faults());
}

#[test]
fn the_neighbours_of_a_damaged_segment_say_what_they_know() {
    let place = Place::new("middle");
    killed(&place);
    let writer = place.open(100);
    assert_eq!(writer.damage(), [""; 0]);
    fs::remove_file(place.file("segment-00000001")).unwrap();
    let known = |port: u16, second: u64| {
        let found = place.ask(port, second);
        let holders = found.holders.iter().map(|holder| (holder.is_certain, holder.until));
        (holders.collect::<Vec<_>>(), found.is_complete)
    };
    let restart = Until::Restart(moment(100).unix_us);
    // It was open before and after.
    assert_eq!(known(1_000, 15), (vec![(true, restart)], false));
    // It began in there, and the next one has that.
    assert_eq!(known(2_000, 15), (vec![(true, restart)], false));
    // It ended in there.
    let (holders, is_complete) = known(1_001, 15);
    assert!(!is_complete && matches!(holders[..], [(false, Until::Lost(_))]), "{holders:?}");
    let Until::Lost(end_us) = holders[0].1 else { unreachable!() };
    assert!(moment(15).unix_us < end_us && end_us <= moment(21).unix_us, "{end_us}");
    assert!(known(1_001, 5).0[0].0, "certain before");
    assert_eq!(known(1_001, 25), (vec![], true));
    // Of no moment of a longer time either.
    let store = Store::open(&place.store()).unwrap();
    let longer = Question { to_us: moment(25).unix_us, ..question(1_001, 5) };
    let found = store.look_up(&longer).unwrap();
    assert!(!found.holders.iter().any(|holder| found.is_throughout(holder, longer.from_us, longer.to_us)), "{found:?}");
}

/// What an export says of each port at some second: whether the holder is proved.
fn exported(place: &Place, (from, to): (u64, u64), second: u64) -> Result<Vec<(u16, bool)>, StoreError> {
    let (mut found, at_us) = (Vec::new(), moment(second).unix_us);
    let put = |interval: &Interval| {
        let holder = &interval.holder;
        let is_ended = match holder.until {
            Until::Open => false,
            Until::Ended(end) | Until::Restart(end) | Until::Lost(end) => end <= at_us,
        };
        if holder.since_us <= at_us && !is_ended {
            let is_proved = interval.known_us.is_some_and(|(from_us, to_us)| from_us <= at_us && at_us < to_us);
            found.push((holder.first_port, is_proved));
        }
        Ok::<(), StoreError>(())
    };
    let (from_us, to_us) = (moment(from).unix_us, moment(to).unix_us);
    Store::open(&place.store())?.intervals(from_us, to_us, put)?;
    found.sort_unstable();
    Ok(found)
}

#[test]
fn an_export_of_whole_segments_needs_no_damaged_one() {
    for (is_restarted, segment, changed) in [false, true]
        .into_iter()
        .flat_map(|is_restarted| [1, 2].map(|segment| (is_restarted, segment)))
        .flat_map(|(is_restarted, segment)| [None, Some(20)].map(|changed| (is_restarted, segment, changed)))
    {
        let place = Place::new("export");
        killed(&place);
        if is_restarted {
            drop(place.open(100));
        }
        let path = place.file(&format!("segment-{segment:08x}"));
        match changed {
            None => fs::remove_file(&path).unwrap(),
            Some(at) => {
                let mut bytes = fs::read(&path).unwrap();
                bytes[at] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
        }
        let (mut rows, mut proved) = (0, 0);
        for second in 2..10 {
            let found: Vec<(u16, bool)> = [1_000, 1_001, 2_000, 3_000, 4_000]
                .into_iter()
                .flat_map(|port| place.ask(port, second).holders)
                .map(|holder| (holder.first_port, holder.is_certain))
                .collect();
            let exported = exported(&place, (2, 9), second).unwrap();
            assert_eq!(exported, found, "{is_restarted} {segment} {changed:?} {second}");
            rows += exported.len();
            proved += exported.iter().filter(|(_, is_proved)| *is_proved).count();
        }
        assert_eq!((rows, proved), (13, 13), "{is_restarted} {segment} {changed:?}");
        // Of later moments it says what a lookup does.
        for second in [15, 25, 34] {
            for (port, is_proved) in exported(&place, (2, 9), second).unwrap() {
                let found = place.ask(port, second).holders;
                assert!(!is_proved || found.iter().any(|holder| holder.is_certain), "{port} {second}: {found:?}");
            }
        }
        // The time of the damaged one has no export.
        let second = 10 * segment + 5;
        exported(&place, (second, second), second).unwrap_err();
    }
}

#[test]
fn a_damaged_segment_keeps_no_others_from_being_merged() {
    let place = Place::new("merge");
    killed(&place);
    place.cut("segment-00000001");
    let mut writer = place.open(100);
    assert_eq!(writer.damage(), [""; 0], "it is not the last one");
    writer.set_options(StoreOptions { merge: 2, ..place.options() });
    for second in 0..40 {
        let now = moment(110 + second);
        push(&mut writer, second + 1, (BEGINS, 5_000 + second as u16, 110 + second));
        writer.advance(now, now.monotonic_us).unwrap();
        writer.seal().unwrap();
    }
    assert!(writer.health().segments < 30, "{:?}", writer.health());
    writer.finish(moment(200), moment(200).monotonic_us, true).unwrap();
    assert!(place.file("segment-00000001").exists());
    assert!(place.ask(5_003, 150).is_complete);
}

#[test]
fn a_gap_in_a_time_is_not_held_throughout() {
    let place = Place::new("gap");
    let mut writer = place.open(1);
    push(&mut writer, 1, (BEGINS, 1_000, 3));
    // Its end may be among those.
    push(&mut writer, 9, (BEGINS, 2_000, 20));
    writer.advance(moment(31), 30_000_000).unwrap();
    let found = place.ask(1_000, 2);
    assert!(found.holders.is_empty());
    let longer = Question { from_us: moment(3).unix_us, to_us: moment(25).unix_us, ..question(1_000, 3) };
    let found = Store::open(&place.store()).unwrap().look_up(&longer).unwrap();
    assert!(found.holders[0].is_certain && !found.is_complete, "{found:?}");
    assert!(!found.is_throughout(&found.holders[0], longer.from_us, longer.to_us), "{found:?}");
}

#[test]
fn a_damaged_catalogue_is_restored_from_its_copy() {
    for (name, hurt) in [("cut", 0), ("flipped", 1), ("removed", 2), ("a later format", 3), ("empty", 4)] {
        let place = Place::new(&format!("restored-{hurt}"));
        killed(&place);
        let path = place.file("catalogue");
        let mut bytes = fs::read(&path).unwrap();
        match hurt {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes[200] ^= 1,
            3 => bytes[14] ^= 4,
            _ => bytes.clear(),
        }
        fs::write(&path, &bytes).unwrap();
        if hurt == 2 {
            fs::remove_file(&path).unwrap();
        }
        // Answers do not wait for a start.
        assert!(place.ask(1_000, 25).is_complete, "{name}");
        let reported = place.open(100).damage().join("\n");
        assert!(reported.contains("no record is lost"), "{name}: {reported}");
        assert_eq!(fs::read(place.file("damaged-1/catalogue")).ok(), (hurt != 2).then_some(bytes), "{name}");
        let found = place.ask(1_000, 25);
        assert!(found.is_complete && found.holders[0].is_certain, "{name}: {found:?}");
        assert_eq!(place.faults().len(), usize::from(hurt != 2), "{name}: {:?}", place.faults());
        let _ = fs::remove_dir_all(place.file("damaged-1"));
        assert_eq!(place.faults(), Vec::<String>::new(), "{name}");
        // The next start has nothing to say.
        assert_eq!(place.open(200).damage(), [""; 0], "{name}");
    }
}

#[test]
fn a_store_beyond_repair_is_kept_and_a_new_one_begins() {
    let place = Place::new("aside");
    killed(&place);
    for name in ["catalogue", "catalogue.copy"] {
        place.cut(name);
    }
    let before = place.ask(1_000, 5);
    assert!(!before.is_complete && before.notes.join(" ").contains("catalogue of the store is damaged"), "{before:?}");
    assert!(before.holders.iter().all(|holder| !holder.is_certain), "{before:?}");
    let segment = fs::read(place.file("segment-00000000")).unwrap();
    let mut writer = place.open(100);
    let reported = writer.damage().join("\n");
    let kept = place.file("damaged-store-1");
    assert!(reported.contains("damaged-store-1") && reported.contains("natrix find --dir"), "{reported}");
    assert_eq!(fs::read(kept.join("segment-00000000")).unwrap(), segment);
    let found = place.ask(1_000, 25);
    assert!(!found.is_complete && found.notes.join(" ").contains("damaged-store-1"), "{found:?}");
    assert!(place.faults()[0].contains("damaged-store-1"), "{:?}", place.faults());
    let old = Store::open(&kept).unwrap().look_up(&question(1_000, 5)).unwrap();
    assert!(!old.is_complete && old.holders.iter().all(|holder| !holder.is_certain), "{old:?}");
    // What is as old as the retention goes.
    let hour = Duration::from_secs(3_600);
    let segment = File::options().write(true).open(kept.join("segment-00000000")).unwrap();
    segment.set_modified(SystemTime::now() - 3 * hour).unwrap();
    writer.set_options(StoreOptions { retention_us: Some(2 * hour.as_micros() as u64), ..place.options() });
    for second in [110, 120, 130] {
        push(&mut writer, second / 10 - 10, (BEGINS, second as u16, second));
        writer.advance(moment(second), second * 1_000_000).unwrap();
        writer.seal().unwrap();
    }
    assert!(!kept.join("segment-00000000").exists() && kept.join("catalogue").exists());
    assert!(place.ask(110, 125).is_complete);
    drop(writer);
    assert_eq!(place.open(200).damage(), [""; 0]);
}

#[test]
fn a_retained_row_proves_its_holder_in_a_deleted_time() {
    let place = Place::new("deleted");
    let mut writer = place.open(1);
    writer.set_options(StoreOptions { retention_us: Some(20_000_000), ..place.options() });
    for (sequence, second) in (1..).zip((3..90).step_by(10)) {
        push(&mut writer, sequence, (BEGINS, 1_000 + second as u16, second));
        writer.advance(moment(second + 7), (second + 7) * 1_000_000).unwrap();
        writer.seal().unwrap();
    }
    let found = place.ask(1_003, 5);
    assert!(found.notes.concat().contains("deleted by retention") && !found.is_complete, "{found:?}");
    let since: Vec<(u64, bool)> = found.holders.iter().map(|holder| (holder.since_us, holder.is_certain)).collect();
    assert_eq!(since, [(moment(3).unix_us, true)], "{found:?}");
    assert!(place.ask(1_013, 5).holders.is_empty(), "it began later");
}

#[test]
fn verify_reads_the_spool_the_copy_and_the_key() {
    let place = Place::new("spool");
    drop(place.open(0));
    let cursor = CursorFile::new(&place.store(), "one", 1 << 30);
    cursor.write(Follower::open(&place.store(), Start::Now).unwrap().position()).unwrap();
    killed(&place);
    // What a kill tore off is no damage: the start did not count it.
    let journal = fs::read_dir(place.store()).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.into_iter().find(|path| path.to_string_lossy().contains("journal-")).unwrap();
    let torn = [fs::read(&journal).unwrap(), vec![7; 30]].concat();
    fs::write(&journal, torn).unwrap();
    let writer = place.open(100);
    assert_eq!(place.faults(), Vec::<String>::new());
    let files = fs::read_dir(place.store()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut spool: Vec<String> = files.filter(|name| name.starts_with("spool-")).collect();
    spool.sort_unstable();
    assert_eq!(spool.len(), 4, "{spool:?}");
    let named = |what: &str, name: &str| {
        let faults = place.faults();
        assert!(faults.len() == 1 && faults[0].starts_with(name), "{what} {name}: {faults:?}");
    };
    for (number, name) in spool.iter().enumerate() {
        let whole = fs::read(place.file(name)).unwrap();
        let mut changed = whole.clone();
        changed[whole.len().min(100) - 10] ^= 1;
        fs::write(place.file(name), changed).unwrap();
        named("flipped", name);
        fs::remove_file(place.file(name)).unwrap();
        if let Some(before) = number.checked_sub(1) {
            named("removed", &spool[before]);
        }
        fs::write(place.file(name), whole).unwrap();
    }
    for name in ["catalogue.copy", "signing.key"] {
        let whole = fs::read(place.file(name)).unwrap();
        place.cut(name);
        named("cut", name);
        fs::remove_file(place.file(name)).unwrap();
        if name == "catalogue.copy" {
            named("removed", name);
        }
        fs::write(place.file(name), whole).unwrap();
    }
    assert_eq!(place.faults(), Vec::<String>::new());
    drop(writer);
}

#[test]
fn a_damaged_key_of_a_store_begins_a_new_one() {
    let place = Place::new("key");
    killed(&place);
    place.cut("signing.key");
    let reported = place.open(100).damage().join("\n");
    assert!(reported.contains("damaged-store-1"), "{reported}");
    assert!(place.file("damaged-store-1/signing.key").exists());
    assert!(!place.ask(1_000, 5).is_complete);
    // A key that the configuration names is not the store's: that is to be mended there.
    let key = place.0.join("elsewhere.key");
    fs::write(&key, "no key\n").unwrap();
    let options = StoreOptions { signing_key: Some(key), ..place.options() };
    let refused = StoreWriter::open(&place.store(), options, moment(300));
    assert!(matches!(refused, Err(StoreError::Key { .. })), "{refused:?}");
}

#[test]
fn a_journal_of_more_than_four_gib_is_read() {
    let place = Place::new("long");
    killed(&place);
    let journal = fs::read_dir(place.store()).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.into_iter().find(|path| path.to_string_lossy().contains("journal-")).unwrap();
    let length = fs::metadata(&journal).unwrap().len();
    // What comes after the frames is a hole in the file.
    File::options().write(true).open(&journal).unwrap().set_len((4 << 30) + length).unwrap();
    let before = place.ask(4_000, 34);
    let writer = place.open(1_000);
    assert!(!writer.damage().iter().any(|what| what.contains("new store")), "{:?}", writer.damage());
    drop(writer);
    let after = place.ask(4_000, 34);
    assert_eq!((after.holders.len(), after.holders[0].subscriber), (1, before.holders[0].subscriber));
    assert!(!place.file("damaged-store-1").exists());
}

#[test]
fn a_damaged_journal_is_kept_and_its_end_is_a_gap() {
    let place = Place::new("journal");
    killed(&place);
    let journal = fs::read_dir(place.store()).unwrap().map(|entry| entry.unwrap().path());
    let is_journal = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("journal-");
    let journal = journal.filter(is_journal).max().unwrap();
    let mut bytes = fs::read(&journal).unwrap();
    bytes[40] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    let reported = place.open(100).damage().join("\n");
    assert!(reported.contains("damaged-1"), "{reported}");
    let kept = place.file("damaged-1").join(journal.file_name().unwrap());
    assert_eq!(fs::read(kept).unwrap(), bytes);
    assert!(!place.ask(1_000, 34).is_complete && place.ask(1_000, 25).is_complete);
    assert_eq!(place.faults().len(), 1, "{:?}", place.faults());
}
