use nat::event::EventKind;

use super::super::GapFound;
use super::super::Generated;
use super::super::Generator;
use super::super::Question;
use super::super::Store;
use super::super::catalogue::Head;
use super::super::verify;
use super::recover::Rest;
use super::recover::SPILL_BYTES;
use super::*;

/// Makes a store whose journal is in another file for one of three rounds. Returns how many
/// calls failed.
fn with_faults(name: &str, faulty: &str) -> u32 {
    let folder = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let mut generator = Generator::new(Generated::Mappings(20_000), 2);
    let mut writer = StoreWriter::open(&folder, StoreOptions::default(), Generator::begin()).unwrap();
    let (mut events, mut count, mut failures) = (Vec::new(), 0, 0);
    for round in 0.. {
        events.clear();
        generator.fill(500, &mut events);
        if events.is_empty() {
            break;
        }
        let kept = writer.journal.as_ref().map(|(path, file)| (path.clone(), file.try_clone().unwrap()));
        let is_faulty = round % 3 == 1;
        if is_faulty {
            let path = kept.as_ref().map(|(path, _)| path.clone()).unwrap();
            writer.journal = Some((path, File::options().write(true).open(faulty).unwrap()));
        }
        writer.push_all(Generator::WORKER, &events);
        count += events.len() as u64;
        let now = generator.now();
        let mut done = writer.advance(now, now.monotonic_us).and_then(|()| writer.flush());
        if is_faulty {
            done = done.and_then(|()| writer.sync());
        }
        failures += u32::from(done.is_err());
        if is_faulty {
            writer.journal = kept;
        }
    }
    let now = generator.now();
    writer.finish(now, now.monotonic_us, false).unwrap();
    assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
    let stat = Store::open(&folder).unwrap().stat().unwrap();
    assert_eq!((stat.records, stat.mappings, stat.lost), (count, 20_000, 0));
    fs::remove_dir_all(&folder).unwrap();
    failures
}

#[test]
fn what_was_left_is_written_as_it_comes() {
    let folder = std::env::temp_dir().join(format!("natrix-store-spill-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut generator = Generator::new(Generated::Mappings(150_000), 2);
    let mut builder = Builder::new(0, None);
    let mut rest = Rest::new(&mut builder, 0, (0, Vec::new(), [0; 32]));
    let (mut events, mut count, mut most) = (Vec::new(), 0, 0);
    loop {
        events.clear();
        generator.fill(1_000, &mut events);
        if events.is_empty() {
            break;
        }
        events.iter().for_each(|event| rest.push(0, event));
        rest.spill(&folder).unwrap();
        (count, most) = (count + events.len(), most.max(rest.bytes.len()));
    }
    assert!(most < SPILL_BYTES, "{most} bytes are in memory");
    rest.write(&folder).unwrap();
    let mut found = 0;
    read_frames(&folder, 0, 0, [0; 32], |frame| {
        frame.events(|_, _| found += 1).unwrap();
        Ok(())
    })
    .unwrap();
    assert!(found == count && count > 150_000, "{found} of {count}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_full_disk_neither_loses_nor_repeats_records() {
    assert!(with_faults("full", "/dev/full") > 10);
}

#[test]
fn input_and_output_errors_neither_lose_nor_repeat_records() {
    // The first page has no memory: writing there is EIO.
    assert!(with_faults("eio", "/proc/self/mem") > 10);
}

#[test]
fn what_a_failed_sync_forgot_is_sealed_from_memory() {
    // It takes what is written, forgets it, and cannot be synced.
    assert!(with_faults("sync", "/dev/null") > 10);
}

/// Makes a store without threads in a folder of that name.
fn store(name: &str) -> (PathBuf, StoreWriter) {
    let folder = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let options = StoreOptions { rings_folder: folder.clone(), has_threads: false, ..StoreOptions::default() };
    let writer = StoreWriter::open(&folder, options, Generator::begin()).unwrap();
    (folder, writer)
}

/// Events of the next second, taken by the writer.
fn push_a_second(writer: &mut StoreWriter, generator: &mut Generator) {
    let mut events = Vec::new();
    generator.fill(500, &mut events);
    writer.push_all(Generator::WORKER, &events);
    writer.now = generator.now();
    writer.flush().unwrap();
}

#[test]
fn an_unwritten_head_replaces_no_file() {
    let (folder, mut writer) = store("head");
    let mut generator = Generator::new(Generated::Mappings(2_000), 4);
    let head = || fs::read_to_string(folder.join("head")).unwrap();
    push_a_second(&mut writer, &mut generator);
    writer.sync().unwrap();
    let first = head();
    // It takes what is written, and cannot be synced.
    let new = folder.join("head.new");
    std::os::unix::fs::symlink("/dev/null", &new).unwrap();
    push_a_second(&mut writer, &mut generator);
    writer.sync().unwrap();
    assert_eq!(head(), first);
    fs::remove_file(&new).unwrap();
    push_a_second(&mut writer, &mut generator);
    writer.sync().unwrap();
    assert_ne!(head(), first);
    assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
    drop(writer);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn frames_of_a_doubtful_journal_are_not_signed() {
    let (folder, mut writer) = store("doubtful");
    let mut generator = Generator::new(Generated::Mappings(2_000), 5);
    let signed = |writer: &StoreWriter| {
        Head::read(&folder.join(catalogue::HEAD), &writer.catalogue.catalogue.key).unwrap().frames
    };
    push_a_second(&mut writer, &mut generator);
    writer.sync().unwrap();
    let (journal, before) = (writer.journal.as_ref().unwrap().0.clone(), signed(&writer));
    let is_on_disk = fs::read(&journal).unwrap();
    // A sync fails, and the segment cannot be written yet.
    push_a_second(&mut writer, &mut generator);
    writer.is_doubtful = true;
    fs::create_dir(folder.join("sealing.new")).unwrap();
    writer.seal().unwrap_err();
    for _ in 0..2 {
        push_a_second(&mut writer, &mut generator);
        writer.sync().unwrap();
        assert_eq!(signed(&writer), before);
    }
    // A power cut now loses what the system forgot, which is no tampering.
    let copy = folder.with_extension("copy");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    fs::write(copy.join(journal.file_name().unwrap()), is_on_disk).unwrap();
    let options = writer.options.clone();
    drop(StoreWriter::open(&copy, options, generator.now()).unwrap());
    assert_eq!(verify(&copy, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
    // When the segment has it, all is signed again.
    fs::remove_dir(folder.join("sealing.new")).unwrap();
    writer.seal().unwrap_or_default();
    writer.seal().unwrap();
    push_a_second(&mut writer, &mut generator);
    writer.sync().unwrap();
    assert_eq!(signed(&writer), writer.next_frame);
    drop(writer);
    assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
    fs::remove_dir_all(&folder).unwrap();
    fs::remove_dir_all(&copy).unwrap();
}

#[test]
fn a_run_that_lost_records_is_not_whole_after_two_starts() {
    let (folder, mut writer) = store("repeated");
    let (uptime_us, mut events) = (rings::uptime_us(), Vec::new());
    let mut generator = Generator::new(Generated::Mappings(2_000), 6);
    let (mut producer, mut consumer) = writer.create_rings(1, 4_096).unwrap().remove(0);
    let mut length = 0;
    for _ in 0..2 {
        length = writer.journal_bytes;
        events.clear();
        generator.fill(500, &mut events);
        events.iter().for_each(|event| producer.try_push((*event).into()).unwrap());
        consumer.hold_burst(events.len(), |_| {});
        writer.push_all(Generator::WORKER, &events);
        writer.flush().unwrap();
        consumer.release_at(events.last().unwrap().sequence + 1);
    }
    producer.mark(generator.now().monotonic_us);
    let journal = writer.journal.as_ref().unwrap().0.clone();
    let (options, rings) = (writer.options.clone(), writer.rings.clone());
    drop((writer, producer, consumer));
    File::options().write(true).open(&journal).unwrap().set_len(length).unwrap();
    // The clock runs on as it was.
    let now = || {
        let Moment { monotonic_us, unix_us } = Generator::begin();
        let unix_us = unix_us.saturating_add_signed(rings::uptime_us() - uptime_us);
        (Moment { monotonic_us, unix_us }, unix_us as i64 - rings::uptime_us())
    };
    // A start fails after it has put the rest of the journal together.
    let key = catalogue::read_key(&folder.join(catalogue::KEY)).unwrap();
    let mut catalogue = CatalogueWriter::open(&folder, key).unwrap();
    fs::create_dir(folder.join("sealing.new")).unwrap();
    recover(&folder, &mut catalogue, &rings, now().1).unwrap_err();
    assert_eq!(catalogue.catalogue.cuts.len(), 1);
    fs::remove_dir(folder.join("sealing.new")).unwrap();
    let writer = StoreWriter::open(&folder, options, now().0).unwrap();
    let first = &writer.catalogue.catalogue.boots[0];
    assert!(first.ended.is_some() && !first.is_whole, "{first:?}");
    drop(writer);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_retention_deletes_before_a_merge_opens_it_is_no_fault() {
    let folder = std::env::temp_dir().join(format!("natrix-store-expired-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let mut generator = Generator::new(Generated::Mappings(5_000), 3);
    let options = StoreOptions { merge: 100, has_threads: false, ..StoreOptions::default() };
    let mut writer = StoreWriter::open(&folder, options, Generator::begin()).unwrap();
    let mut events = Vec::new();
    loop {
        events.clear();
        generator.fill(500, &mut events);
        if events.is_empty() {
            break;
        }
        writer.push_all(Generator::WORKER, &events);
        let now = generator.now();
        writer.advance(now, now.monotonic_us).unwrap();
        writer.seal().unwrap();
    }
    let oldest = writer.catalogue.catalogue.segments.values().next().unwrap().clone();
    let path = segment_path(&folder, oldest.id);
    writer.options.retention_us = Some(0);
    writer.expire().unwrap();
    assert!(!path.exists());
    let not_found = StoreError::Io { path, source: io::ErrorKind::NotFound.into() };
    writer.merging = Some(Work::Done((Box::new(oldest), Err(not_found))));
    writer.collect(false).unwrap();
    let now = generator.now();
    writer.finish(now, now.monotonic_us, true).unwrap();
    assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
    fs::remove_dir_all(&folder).unwrap();
}

/// A time of both clocks, so many seconds after the start, with a clock that is so many behind.
fn moment(second: u64, behind: u64) -> Moment {
    let Moment { monotonic_us, unix_us } = Generator::begin();
    Moment { monotonic_us: monotonic_us + second * 1_000_000, unix_us: unix_us + (second - behind) * 1_000_000 }
}

fn names(configuration: u32, formulas: u32) -> Names {
    Names { formulas, configuration, ..Names::default() }
}

/// An endpoint is of one subscriber until second 20, and of another from second 25 to 35. In
/// seconds 24 to 40 the catalogue cannot be written. Meanwhile the clock is 18 s behind, then
/// right again, and other formulas are in use, then the first ones again.
fn with_a_failing_catalogue(name: &str, is_killed: bool) -> (PathBuf, Store) {
    let (folder, mut writer) = store(name);
    let (mut producer, mut consumer) = writer.create_rings(1, 64).unwrap().remove(0);
    let mut push = |writer: &mut StoreWriter, sequence, kind, second, subscriber| {
        let at = nat::Instant::from_micros(moment(second, 0).monotonic_us);
        let event = Event {
            sequence,
            subscriber: [100, 64, 0, subscriber].into(),
            external: [203, 0, 113, 42].into(),
            internal_port: 4_000,
            first_port: 1_024,
            last_port: 1_024,
            protocol: Some(nat::Protocol::Udp),
            ..Event::new(kind, at)
        };
        producer.try_push(event.into()).unwrap();
        producer.mark(event.at.as_micros());
        consumer.hold_burst(64, |_| {});
        writer.push(WorkerId(0), &event);
    };
    let advance = |writer: &mut StoreWriter, second, behind| {
        let now = moment(second, behind);
        writer.advance(now, now.monotonic_us)
    };
    writer.set_names(names(0, 7));
    push(&mut writer, 1, EventKind::MappingCreated, 2, 40);
    push(&mut writer, 2, EventKind::MappingEnded, 20, 40);
    advance(&mut writer, 23, 0).unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let good = core::mem::replace(&mut writer.catalogue.file, full);
    writer.set_names(names(1, 8));
    push(&mut writer, 3, EventKind::MappingCreated, 25, 41);
    for (second, behind) in [(26, 18), (30, 18), (36, 0)] {
        if second == 36 {
            push(&mut writer, 4, EventKind::MappingEnded, 35, 41);
            writer.set_names(names(2, 7));
        }
        advance(&mut writer, second, behind).unwrap_err();
    }
    producer.mark(moment(40, 0).monotonic_us);
    writer.note_clock(moment(40, 0));
    if is_killed {
        let options = writer.options.clone();
        drop((writer, producer, consumer));
        writer = StoreWriter::open(&folder, options, moment(3_600, 0)).unwrap();
    } else {
        writer.catalogue.file = good;
        advance(&mut writer, 40, 0).unwrap();
    }
    let now = moment(3_601, 0);
    writer.finish(now, now.monotonic_us, false).unwrap();
    assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
    let store = Store::open(&folder).unwrap();
    (folder, store)
}

#[test]
fn what_was_so_while_nothing_could_be_written_is_recorded() {
    for is_killed in [false, true] {
        let (folder, store) = with_a_failing_catalogue(&format!("due-{is_killed}"), is_killed);
        let ask = |second| {
            let at_us = moment(second, 0).unix_us;
            let (address, port) = ([203, 0, 113, 42].into(), Some(1_024));
            store
                .look_up(&Question { address, host: None, port, protocol: None, from_us: at_us, to_us: at_us })
                .unwrap()
        };
        // At second 30 the machine showed second 12.
        let found = ask(12);
        let mut holders: Vec<u8> = found.holders.iter().map(|holder| last_byte(holder.subscriber)).collect();
        holders.sort_unstable();
        assert_eq!(holders, [40, 41], "killed {is_killed}: {found:?}");
        assert!(!found.notes.is_empty(), "killed {is_killed}: {found:?}");
        // The other formulas were in use at that time, or may have been.
        let found = ask(38);
        assert!(found.formulas.contains(&8), "killed {is_killed}: {found:?}");
        assert!(!ask(15).formulas.is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }
}

fn last_byte(subscriber: crate::Subscriber) -> u8 {
    match subscriber {
        crate::Subscriber::Ipv4(address) => address.octets()[3],
        _ => 0,
    }
}

const HOUR_US: u64 = 3_600_000_000;

/// A store that is written by a clock, with a segment each `hours`.
struct Aged {
    folder: PathBuf,
    unix_us: u64,
}

impl Aged {
    fn new(name: &str) -> Aged {
        let folder = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Aged { folder, unix_us: Generator::begin().unix_us }
    }

    fn now(&self, monotonic_us: u64) -> Moment {
        Moment { monotonic_us, unix_us: self.unix_us + monotonic_us }
    }

    fn open(&self, monotonic_us: u64, retention_us: Option<u64>) -> StoreWriter {
        let options = StoreOptions {
            retention_us,
            has_threads: false,
            segment_interval_us: u64::MAX,
            merge: 1_000,
            ..StoreOptions::default()
        };
        StoreWriter::open(&self.folder, options, self.now(monotonic_us)).unwrap()
    }

    /// Goes on for some hours and seals.
    fn go(&self, writer: &mut StoreWriter, hours: u64) {
        let now = self.now(writer.now.monotonic_us + hours * HOUR_US);
        writer.advance(now, now.monotonic_us).unwrap();
        writer.seal().unwrap();
        writer.collect(true).unwrap();
    }
}

impl Drop for Aged {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn ids(writer: &StoreWriter) -> Vec<u64> {
    writer.catalogue.catalogue.segments.values().map(|segment| segment.id).collect()
}

#[test]
fn a_clock_set_back_at_the_end_deletes_no_older_file() {
    let mut aged = Aged::new("set-back");
    let mut writer = aged.open(1_000_000, Some(24 * HOUR_US));
    (0..5).for_each(|_| aged.go(&mut writer, 1));
    let known = ids(&writer);
    aged.unix_us -= 1_000 * HOUR_US;
    aged.go(&mut writer, 1);
    aged.unix_us += 1_000 * HOUR_US;
    // By then a leap forward is believed.
    (0..3).for_each(|_| aged.go(&mut writer, 1));
    assert!(ids(&writer).starts_with(&known), "{:?}", ids(&writer));
}

fn oldest_boot(writer: &StoreWriter) -> u32 {
    writer.catalogue.catalogue.segments.values().next().unwrap().boot
}

#[test]
fn a_leap_of_the_clock_deletes_nothing_for_an_hour() {
    let mut aged = Aged::new("leap");
    let retention = Some(240 * HOUR_US);
    let mut writer = aged.open(1_000_000, retention);
    (0..3).for_each(|_| aged.go(&mut writer, 1));
    let now = writer.now;
    writer.finish(now, now.monotonic_us, false).unwrap();
    // A dead battery: 400 days ahead, over two starts.
    aged.unix_us += 400 * 24 * HOUR_US;
    for _ in 0..2 {
        let mut writer = aged.open(5 * HOUR_US, retention);
        aged.go(&mut writer, 0);
        assert_eq!(oldest_boot(&writer), 0);
        let now = aged.now(5 * HOUR_US + 60_000_000);
        writer.finish(now, now.monotonic_us, false).unwrap();
    }
    let mut writer = aged.open(6 * HOUR_US, retention);
    aged.go(&mut writer, 0);
    assert_eq!(oldest_boot(&writer), 0);
    // By then somebody has seen it.
    aged.go(&mut writer, 1);
    assert_eq!(oldest_boot(&writer), 1);
}

#[test]
fn a_segment_of_a_longer_retention_keeps_its_last_records() {
    let aged = Aged::new("longer");
    let mut writer = aged.open(1_000_000, None);
    // It spans 20 hours, then each an hour.
    aged.go(&mut writer, 20);
    let long = ids(&writer)[0];
    writer.options.retention_us = Some(24 * HOUR_US);
    for hours in 1..24 {
        aged.go(&mut writer, 1);
        assert!(ids(&writer).contains(&long), "its last records are {hours} hours old");
    }
    assert_eq!(writer.take_expired(), Expired::default());
    aged.go(&mut writer, 2);
    assert!(!ids(&writer).contains(&long));
}

#[test]
fn what_retention_deletes_is_counted_with_its_times() {
    let aged = Aged::new("counted");
    let mut writer = aged.open(1_000_000, None);
    (0..6).for_each(|_| aged.go(&mut writer, 1));
    let (known, ages) = (ids(&writer), writer.ages().expect("there are segments"));
    assert_eq!((known.len(), ages.len(), writer.ages()), (6, 6, None), "no news");
    let shorter = StoreOptions { retention_us: Some(3 * HOUR_US), ..writer.options.clone() };
    let would = shorter.expiring(&ages, writer.now.unix_us);
    assert!(would.segments >= 2 && would.segments < 6, "{would:?}");
    assert_eq!(writer.options.expiring(&ages, writer.now.unix_us), Expired::default());
    writer.options = shorter;
    writer.expire().expect("the disk works");
    assert_eq!(ids(&writer), known[would.segments as usize..]);
    let expired = writer.take_expired();
    assert_eq!((expired.segments, writer.take_expired()), (would.segments, Expired::default()));
    assert!(expired.from_us < expired.until_us && expired.until_us < writer.now.unix_us, "{expired:?}");
    // The newest stays.
    let none = StoreOptions { retention_us: Some(1), ..writer.options.clone() };
    assert_eq!(none.expiring(&ages, u64::MAX).segments, 5);
    assert_eq!(none.expiring(&[], u64::MAX).segments, 0);
    // Of two rounds, one line is made.
    let mut all = expired;
    all.join(Expired::default());
    all.join(Expired { segments: 1, from_us: expired.until_us, until_us: writer.now.unix_us });
    assert_eq!(all, Expired { segments: expired.segments + 1, from_us: expired.from_us, until_us: writer.now.unix_us });
}

#[test]
fn segments_of_a_clock_that_was_ahead_go_with_their_neighbours() {
    let mut aged = Aged::new("ahead");
    let mut writer = aged.open(1_000_000, Some(24 * HOUR_US));
    aged.go(&mut writer, 1);
    aged.unix_us += 20 * HOUR_US;
    aged.go(&mut writer, 1);
    let ahead = ids(&writer)[1];
    aged.unix_us -= 20 * HOUR_US;
    (0..23).for_each(|_| aged.go(&mut writer, 1));
    assert!(ids(&writer).contains(&ahead));
    (0..3).for_each(|_| aged.go(&mut writer, 1));
    assert!(!ids(&writer).contains(&ahead), "{:?}", ids(&writer));
}

#[test]
fn a_short_retention_makes_no_tiny_segments() {
    let span_s = |retention_s: u64| {
        let retention_us = Some(retention_s * 1_000_000);
        StoreOptions { retention_us, ..StoreOptions::default() }.span_us() as f64 / 1e6
    };
    assert_eq!([span_s(4), span_s(600), span_s(1_800), span_s(86_400)], [0.25, 37.5, 60.0, 1_350.0]);
}

/// Adds events until the generator has given so many, over some seconds of its clock.
fn write_more(writer: &mut StoreWriter, generator: &mut Generator, count: usize) -> Result<(), StoreError> {
    let mut events = Vec::new();
    for _ in 0..count / 500 {
        events.clear();
        generator.fill(500, &mut events);
        if events.is_empty() {
            break;
        }
        writer.push_all(Generator::WORKER, &events);
        let now = generator.now();
        writer.advance(now, now.monotonic_us)?;
    }
    Ok(())
}

#[test]
fn a_folder_that_was_moved_fails_until_it_is_back() {
    let folder = std::env::temp_dir().join(format!("natrix-store-moved-{}", std::process::id()));
    let away = folder.with_extension("away");
    for folder in [&folder, &away] {
        let _ = fs::remove_dir_all(folder);
    }
    let mut generator = Generator::new(Generated::Mappings(20_000), 2);
    let mut writer = StoreWriter::open(&folder, StoreOptions::default(), Generator::begin()).unwrap();
    write_more(&mut writer, &mut generator, 10_000).unwrap();
    fs::rename(&folder, &away).unwrap();
    let failure = write_more(&mut writer, &mut generator, 10_000).unwrap_err();
    assert!(matches!(failure, StoreError::Gone { .. }), "{failure}");
    assert!(failure.to_string().contains("put the folder back"), "{failure}");
    // What waits stays in the rings, and nothing is made where the folder was.
    assert!(!writer.is_all_written() && !folder.exists());
    fs::rename(&away, &folder).unwrap();
    write_more(&mut writer, &mut generator, usize::MAX).unwrap();
    let now = generator.now();
    writer.finish(now, now.monotonic_us, false).unwrap();
    let stat = Store::open(&folder).unwrap().stat().unwrap();
    assert_eq!((stat.mappings, stat.lost), (20_000, 0));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn deleted_files_are_a_failure() {
    for kept in ["catalogue", "journal-", "nothing"] {
        let folder = std::env::temp_dir().join(format!("natrix-store-gone-{kept}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let mut generator = Generator::new(Generated::Mappings(20_000), 2);
        let mut writer = StoreWriter::open(&folder, StoreOptions::default(), Generator::begin()).unwrap();
        write_more(&mut writer, &mut generator, 10_000).unwrap();
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            if !entry.file_name().to_str().unwrap().starts_with(kept) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        let failure = write_more(&mut writer, &mut generator, 10_000).unwrap_err();
        assert!(matches!(failure, StoreError::Gone { .. }), "{failure}");
        let now = generator.now();
        assert!(writer.finish(now, now.monotonic_us, false).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn what_is_in_the_journal_is_counted() {
    let folder = std::env::temp_dir().join(format!("natrix-store-counted-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let begin = Generator::begin();
    let mut writer = StoreWriter::open(&folder, StoreOptions::default(), begin).unwrap();
    let at = |seconds: u64| nat::Instant::from_micros(begin.monotonic_us + seconds * 1_000_000);
    let event = |sequence, kind, seconds| Event {
        sequence,
        external: [203, 0, 113, 1].into(),
        subscriber: [100, 64, 0, 1].into(),
        protocol: Some(nat::Protocol::Udp),
        first_port: sequence as u16,
        last_port: sequence as u16,
        ..Event::new(kind, at(seconds))
    };
    let mut write = |events: &[Event], seconds: u64| {
        let shown = begin.unix_us + seconds * 1_000_000;
        let now = Moment { monotonic_us: at(seconds).as_micros(), unix_us: shown };
        writer.push_all(Generator::WORKER, events);
        writer.advance(now, now.monotonic_us).and_then(|()| writer.flush()).unwrap();
        now
    };
    // Two mappings, a gap of five records, a block, and two records that never came.
    let gap = Event { amount: 5, ..event(3, EventKind::Gap, 3) };
    let block = event(8, EventKind::BlockLeased, 4);
    let late = event(11, EventKind::MappingCreated, 5);
    let created = [event(1, EventKind::MappingCreated, 1), event(2, EventKind::MappingCreated, 2)];
    write(&created, 2);
    write(&[gap, block, late], 5);
    let now = write(&[], 6);
    let unix_us = |seconds: u64| begin.unix_us + seconds * 1_000_000;
    let found = |first, last, from, until| GapFound {
        worker: Generator::WORKER.0,
        first,
        last,
        from_us: unix_us(from),
        until_us: unix_us(until),
        cause: nat::event::Cause::None,
    };
    let check = |is_sealed: bool| {
        let stat = Store::open(&folder).unwrap().stat().unwrap();
        assert_eq!((stat.records, stat.mappings, stat.leases, stat.gaps, stat.lost), (4, 3, 1, 2, 7));
        assert_eq!((stat.segments, stat.in_journal), if is_sealed { (1, 0) } else { (0, 4) });
        assert_eq!((stat.first_us, stat.last_us), (Some(begin.unix_us), Some(unix_us(6))));
        let verified = verify(&folder, None, |_, _| {}).unwrap();
        assert_eq!((verified.faults.len(), verified.gaps, verified.lost), (0, 2, 7), "{verified:?}");
        assert_eq!(verified.gaps_found, [found(9, 10, 4, 5), found(3, 7, 2, 3)]);
        assert_eq!(verified.gaps_found[1].records(), 5);
    };
    check(false);
    writer.finish(now, now.monotonic_us, false).unwrap();
    check(true);
    fs::remove_dir_all(&folder).unwrap();
}
