use std::os::unix::fs::FileExt;

use super::super::Generated;
use super::super::Generator;
use super::super::StoreOptions;
use super::super::StoreWriter;
use super::cursor::parse_cursor;
use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("natrix-follow-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes `rounds` batches of a hundred events, a frame each.
fn write(writer: &mut StoreWriter, generator: &mut Generator, rounds: usize) -> Vec<Event> {
    let mut all = Vec::new();
    for _ in 0..rounds {
        let mut events = Vec::new();
        generator.fill(100, &mut events);
        writer.push_all(Generator::WORKER, &events);
        writer.advance(generator.now(), generator.now().monotonic_us).unwrap();
        writer.flush().unwrap();
        all.append(&mut events);
    }
    all
}

fn read(follower: &mut Follower) -> (u32, Vec<Event>) {
    let (mut starts, mut events) = (0, Vec::new());
    while follower
        .step(|seen| match seen {
            Seen::Start { .. } => starts += 1,
            Seen::Event { event, .. } => events.push(*event),
            Seen::Ended { .. } | Seen::Over { .. } => {}
        })
        .unwrap()
    {}
    (starts, events)
}

/// What a follower reports of the ends of runs: address, port and subscriber of each, their time,
/// and of each run its end, whether it was stopped and whether all ends are known.
#[derive(Debug, Default, PartialEq)]
struct Reported {
    ended: Vec<(u32, u16, Subscriber)>,
    times: Vec<u64>,
    over: Vec<(u64, bool, bool)>,
}

impl Reported {
    /// One step; false if there was nothing.
    fn step(&mut self, follower: &mut Follower) -> bool {
        let one = |seen: Seen<'_>| match seen {
            Seen::Ended { event, subscriber, unix_us, .. } => {
                assert_eq!((event.sequence, event.kind.is_allocation()), (0, true));
                self.ended.push((event.external.to_bits(), event.first_port, subscriber));
                self.times.push(unix_us);
            }
            Seen::Over { unix_us, is_clean, are_ends_known, .. } => {
                self.over.push((unix_us, is_clean, are_ends_known));
            }
            Seen::Start { .. } | Seen::Event { .. } => {}
        };
        follower.step(one).unwrap()
    }

    fn all(follower: &mut Follower) -> Reported {
        let mut reported = Reported::default();
        while reported.step(follower) {}
        reported
    }
}

const ADDRESS: u32 = 0xcb00_7100;

fn at(seconds: u64) -> Moment {
    let begin = Generator::begin();
    let us = seconds * 1_000_000;
    Moment { monotonic_us: begin.monotonic_us + us, unix_us: begin.unix_us + us }
}

fn mapping(sequence: u64, kind: EventKind, (external, port): (u32, u16), subscriber: u32) -> Event {
    let (subscriber, external) = (subscriber.into(), external.into());
    let at = Instant::from_micros(at(1).monotonic_us);
    let (first_port, last_port) = (port, if kind == EventKind::BlockLeased { port + 9 } else { port });
    Event { sequence, subscriber, external, first_port, last_port, ..Event::new(kind, at) }
}

/// Writes these events of a worker, up to some second.
fn put(writer: &mut StoreWriter, seconds: u64, events: &[Event]) {
    writer.push_all(WorkerId(0), events);
    writer.advance(at(seconds), at(seconds).monotonic_us).unwrap();
    writer.flush().unwrap();
}

fn open(folder: &Folder, seconds: u64) -> StoreWriter {
    StoreWriter::open(&folder.0, StoreOptions::default(), at(seconds)).unwrap()
}

#[test]
fn the_end_of_a_run_ends_what_was_open() {
    use EventKind::*;
    let folder = Folder::new("ends");
    let mut writer = open(&folder, 0);
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    let number = core::net::Ipv4Addr::new(224, 0, 0, 1);
    let host = nat::event::HostName { address: 7, prefix_length: 128, inner: None };
    let named = host.event(Instant::from_micros(at(1).monotonic_us), nat::types::RealmId(0), number);
    let events = [
        mapping(1, MappingCreated, (ADDRESS + 1, 9), 5),
        mapping(2, MappingCreated, (ADDRESS, 7), 5),
        mapping(3, MappingCreated, (ADDRESS, 8), 5),
        mapping(4, BlockLeased, (ADDRESS, 100), 6),
        mapping(5, MappingEnded, (ADDRESS, 8), 5),
        Event { sequence: 6, ..named },
        mapping(7, MappingCreated, (ADDRESS + 2, 9), number.to_bits()),
    ];
    put(&mut writer, 10, &events);
    let cursor = CursorFile::new(&folder.0, "c", 1 << 30);
    assert_eq!(Reported::all(&mut follower), Reported::default(), "the run goes on");
    cursor.write(follower.position()).unwrap();
    writer.finish(at(20), at(20).monotonic_us, false).unwrap();
    let four = Subscriber::Ipv4;
    let open_then = vec![
        (ADDRESS, 7, four(5.into())),
        (ADDRESS, 100, four(6.into())),
        (ADDRESS + 1, 9, four(5.into())),
        (ADDRESS + 2, 9, Subscriber::Host(host)),
    ];
    // At once, and by one that was away until the next run has records.
    let mut away = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
    let reported = Reported::all(&mut follower);
    assert_eq!((&reported.ended, &reported.over), (&open_then, &vec![(at(20).unix_us, true, true)]));
    assert!(reported.times.iter().all(|time| *time == at(20).unix_us), "{:?}", reported.times);
    cursor.write(follower.position()).unwrap();
    let mut writer = open(&folder, 100);
    put(&mut writer, 110, &[mapping(1, MappingCreated, (ADDRESS, 7), 8)]);
    assert_eq!(Reported::all(&mut away), reported);
    // One that reported them all before it ended does not repeat them.
    let mut follower = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
    assert_eq!(Reported::all(&mut follower), Reported::default());
    cursor.write(follower.position()).unwrap();
    // A kill: the time until which there are records.
    drop(writer);
    let mut writer = open(&folder, 200);
    put(&mut writer, 210, &[]);
    for follower in [&mut follower, &mut Follower::open(&folder.0, cursor.read().unwrap()).unwrap()] {
        let reported = Reported::all(follower);
        assert_eq!(reported.ended, [(ADDRESS, 7, four(8.into()))]);
        assert_eq!(reported.over, [(at(110).unix_us, false, true)]);
        assert_eq!(follower.lost(), 0);
    }
}

#[test]
fn ends_come_in_pieces_and_go_on_at_an_address() {
    let folder = Folder::new("pieces");
    let mut writer = open(&folder, 0);
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    let count = 20_000_u32;
    let one = |number: u32| (ADDRESS + number / 5_000, (number % 5_000) as u16);
    let events: Vec<Event> =
        (0..count).map(|number| mapping(u64::from(number) + 1, EventKind::MappingCreated, one(number), 5)).collect();
    put(&mut writer, 10, &events);
    while follower.step(|_| {}).unwrap() {}
    writer.finish(at(20), at(20).monotonic_us, false).unwrap();
    let cursor = CursorFile::new(&folder.0, "c", 1 << 30);
    let mut reported = Reported::default();
    while reported.ended.len() < 12_000 {
        let before = reported.ended.len();
        assert!(reported.step(&mut follower));
        assert!(reported.ended.len() - before <= 1_024, "a piece of {}", reported.ended.len() - before);
        cursor.write(follower.position()).unwrap();
    }
    let rest = Reported::all(&mut Follower::open(&folder.0, cursor.read().unwrap()).unwrap());
    assert_eq!(rest.over, [(at(20).unix_us, true, true)]);
    // From the first port of the address on that it was at.
    let seen = reported.ended.iter().filter(|(address, ..)| *address < ADDRESS + 2);
    let all: Vec<(u32, u16)> = seen.chain(&rest.ended).map(|(address, port, _)| (*address, *port)).collect();
    assert_eq!(all, (0..count).map(one).collect::<Vec<_>>());
}

#[test]
fn ends_that_the_store_does_not_know_are_not_guessed() {
    for case in ["deleted", "damaged", "cut"] {
        let folder = Folder::new(&format!("unknown-{case}"));
        let mut writer = open(&folder, 0);
        let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
        put(&mut writer, 5, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 5)]);
        let (_, journal) = files(&folder.0).unwrap().remove(0);
        let length = fs::metadata(&journal).unwrap().len();
        put(&mut writer, 10, &[mapping(2, EventKind::MappingCreated, (ADDRESS, 8), 5)]);
        while follower.step(|_| {}).unwrap() {}
        drop(writer);
        if case == "cut" {
            File::options().write(true).open(&journal).unwrap().set_len(length).unwrap();
        }
        let mut writer = open(&folder, 100);
        let (catalogue, _) = Catalogue::read(&folder.0, |_, _| {}).unwrap();
        let path = segment_path(&folder.0, catalogue.of_boot(0).last().unwrap().id);
        match case {
            "deleted" => fs::remove_file(&path).unwrap(),
            "damaged" => {
                let mut bytes = fs::read(&path).unwrap();
                bytes[20] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
            _ => {}
        }
        put(&mut writer, 110, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 8)]);
        let reported = Reported::all(&mut follower);
        let known = usize::from(case == "cut");
        assert_eq!((reported.ended.len(), reported.over[0].2, follower.lost()), (known, false, 0), "{case}");
    }
}

#[test]
fn what_is_deleted_is_counted_before_it_is_missed() {
    let folder = Folder::new("counted");
    let mut generator = Generator::new(Generated::Mappings(50_000), 5);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), Generator::begin()).unwrap();
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    let before = write(&mut writer, &mut generator, 3);
    assert_eq!(read(&mut follower).1, before);
    CursorFile::new(&folder.0, "c", 20_000).write(follower.position()).unwrap();
    assert_eq!(follower.deleted().unwrap(), 0);
    for _ in 0..6 {
        write(&mut writer, &mut generator, 10);
        writer.seal().unwrap();
    }
    write(&mut writer, &mut generator, 1);
    writer.seal().unwrap();
    write(&mut writer, &mut generator, 1);
    let counted = follower.deleted().unwrap();
    assert!(counted >= 3_000, "{counted}");
    assert_eq!((follower.deleted().unwrap(), follower.lost()), (counted, 0));
    read(&mut follower);
    assert_eq!(follower.lost(), counted);
}

#[test]
fn it_follows_over_windows_and_runs_and_loses_nothing() {
    let folder = Folder::new("windows");
    let mut generator = Generator::new(Generated::Mappings(20_000), 3);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), Generator::begin()).unwrap();
    let cursor = CursorFile::new(&folder.0, "a.b", 1 << 30);
    assert_eq!(cursor.read().unwrap(), Start::Now);
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    cursor.write(follower.position()).unwrap();
    let first = write(&mut writer, &mut generator, 20);
    assert_eq!(read(&mut follower), (1, first));
    cursor.write(follower.position()).unwrap();
    assert_eq!(cursor.read().unwrap(), Start::At(follower.position().clone()));
    // Two windows are sealed while nobody reads.
    let mut later = write(&mut writer, &mut generator, 20);
    writer.seal().unwrap();
    later.extend(write(&mut writer, &mut generator, 20));
    writer.seal().unwrap();
    later.extend(write(&mut writer, &mut generator, 5));
    writer.seal().unwrap();
    drop(writer);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), generator.now()).unwrap();
    let mut again = Generator::new(Generated::Mappings(20_000), 4);
    let of_next = write(&mut writer, &mut again, 10);
    // One that starts again from its cursor, and the one that is still open.
    let mut resumed = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
    for follower in [&mut follower, &mut resumed] {
        let (starts, events) = read(follower);
        assert_eq!(starts, 1);
        assert_eq!(events, [&later[..], &of_next[..]].concat());
        assert_eq!(follower.lost(), 0);
    }
    let spools = || files(&folder.0).unwrap().iter().filter(|(_, path)| path.to_string_lossy().contains(SPOOL)).count();
    assert!(spools() > 0);
    cursor.write(follower.position()).unwrap();
    cursor.trim().unwrap();
    assert_eq!(spools(), 0, "everything was read");
    CursorFile::keep_only(&folder.0, &["other"]).unwrap();
    assert_eq!(cursor.read().unwrap(), Start::Now);
}

#[test]
fn what_is_deleted_beyond_the_bytes_is_a_gap() {
    let folder = Folder::new("deleted");
    let mut generator = Generator::new(Generated::Mappings(50_000), 5);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), Generator::begin()).unwrap();
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    let cursor = CursorFile::new(&folder.0, "c", 20_000);
    let before = write(&mut writer, &mut generator, 10);
    assert_eq!(read(&mut follower).1, before);
    cursor.write(follower.position()).unwrap();
    let mut missed = Vec::new();
    for _ in 0..6 {
        missed.extend(write(&mut writer, &mut generator, 10));
        writer.seal().unwrap();
    }
    // One more, so that the last of these windows is sealed, too.
    missed.extend(write(&mut writer, &mut generator, 1));
    writer.seal().unwrap();
    let last = write(&mut writer, &mut generator, 1);
    let mut resumed = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
    let (_, events) = read(&mut resumed);
    let gap = events[0];
    assert_eq!((gap.kind, gap.sequence), (EventKind::Gap, missed[0].sequence));
    let amount = u64::from(gap.amount);
    assert!(amount >= 3_000 && amount == resumed.lost(), "{gap:?}");
    let rest: Vec<Event> = missed.iter().chain(&last).skip(amount as usize).copied().collect();
    assert_eq!(&events[1..], &rest);
    // The same when a whole run is missing.
    writer.finish(generator.now(), generator.now().monotonic_us, false).unwrap();
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), generator.now()).unwrap();
    for (first, path) in files(&folder.0).unwrap() {
        if path.to_string_lossy().contains(SPOOL) {
            assert!(first < u64::MAX);
            fs::remove_file(path).unwrap();
        }
    }
    let mut again = Generator::new(Generated::Mappings(1_000), 6);
    let of_next = write(&mut writer, &mut again, 2);
    let mut resumed = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
    let (starts, events) = read(&mut resumed);
    assert_eq!((starts, events[0].kind), (1, EventKind::Gap));
    assert_eq!(u64::from(events[0].amount), (missed.len() + last.len()) as u64);
    assert_eq!(&events[1..], &of_next);
}

#[test]
fn frames_that_a_start_replaced_are_followed_from_the_cut() {
    // Frames that the follower had read, and whether the journal is cut there or damaged before it.
    for (number, (seen, is_cut)) in
        [(26, true), (22, true), (26, false), (15, false), (5, false)].into_iter().enumerate()
    {
        let folder = Folder::new(&format!("cut-{number}"));
        let mut generator = Generator::new(Generated::Mappings(20_000), 3);
        let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), Generator::begin()).unwrap();
        let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
        let cursor = CursorFile::new(&folder.0, "c", 1 << 30);
        let (_, journal) = files(&folder.0).unwrap().remove(0);
        let (mut events, mut lengths) = (Vec::new(), Vec::new());
        for round in 0..26 {
            lengths.push(fs::metadata(&journal).unwrap().len());
            events.push(write(&mut writer, &mut generator, 1));
            if round < seen {
                assert_eq!(read(&mut follower).1, events[round]);
                cursor.write(follower.position()).unwrap();
            }
        }
        drop(writer);
        if is_cut {
            File::options().write(true).open(&journal).unwrap().set_len(lengths[20]).unwrap();
        } else {
            let mut bytes = fs::read(&journal).unwrap();
            bytes[lengths[10] as usize + 70] ^= 1;
            fs::write(&journal, bytes).unwrap();
        }
        let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), generator.now()).unwrap();
        let mut again = Generator::new(Generated::Mappings(20_000), 4);
        let of_next = write(&mut writer, &mut again, 3);
        let mut resumed = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
        let (starts, found) = read(&mut resumed);
        assert_eq!(starts, 1, "{number}");
        // What was read before is not repeated, and only what nobody has is a gap.
        let there = |frame: &usize| !is_cut && *frame != 10;
        let expected: Vec<Event> =
            (seen..26).filter(there).flat_map(|frame| events[frame].clone()).chain(of_next).collect();
        let (gaps, rest): (Vec<Event>, Vec<Event>) = found.iter().partition(|event| event.kind == EventKind::Gap);
        assert_eq!(rest, expected, "{number}");
        let lost: u64 = if !is_cut && seen <= 10 { events[10].len() as u64 } else { 0 };
        assert_eq!(gaps.iter().map(|gap| u64::from(gap.amount)).sum::<u64>(), lost, "{number}: {gaps:?}");
        assert_eq!(resumed.lost(), lost);
    }
}

/// Changes a byte of the only file whose name begins so.
fn damage(folder: &Folder, beginning: &str, place: impl Fn(usize) -> usize) {
    let mut paths = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    let path = paths.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(beginning)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let place = place(bytes.len());
    bytes[place] ^= 0x40;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_segment_keeps_no_follower_from_beginning() {
    let folder = Folder::new("segment");
    let mut writer = open(&folder, 0);
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    put(&mut writer, 10, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 5)]);
    read(&mut follower);
    let position = follower.position().clone();
    CursorFile::new(&folder.0, "c", 1 << 30).write(&position).unwrap();
    writer.finish(at(20), at(20).monotonic_us, false).unwrap();
    let segment = segment_path(&folder.0, 0);
    let bytes = fs::read(&segment).unwrap();
    for length in [bytes.len() / 2, bytes.len()] {
        let mut damaged = bytes[..length].to_vec();
        let end = damaged.len();
        damaged[end - 60..].fill(0x55);
        fs::write(&segment, damaged).unwrap();
        for start in [Start::Now, Start::Run, Start::Oldest, Start::At(position.clone())] {
            let mut follower = Follower::open(&folder.0, start.clone()).unwrap();
            if let Start::At(_) = start {
                assert_eq!(Reported::all(&mut follower).over, [(at(20).unix_us, true, false)]);
            }
        }
    }
    // A later run goes on, too.
    let mut writer = open(&folder, 100);
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    put(&mut writer, 110, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 8)]);
    assert_eq!(read(&mut follower).1.len(), 1);
}

#[test]
fn a_damaged_segment_before_the_last_leaves_ends_unknown() {
    let folder = Folder::new("before");
    let options = StoreOptions { segment_interval_us: 5_000_000, has_threads: false, ..StoreOptions::default() };
    for is_damaged in [false, true] {
        let _ = fs::remove_dir_all(&folder.0);
        let mut writer = StoreWriter::open(&folder.0, options.clone(), at(0)).unwrap();
        let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
        put(&mut writer, 1, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 5)]);
        put(&mut writer, 10, &[mapping(2, EventKind::MappingCreated, (ADDRESS, 8), 5)]);
        put(&mut writer, 11, &[mapping(3, EventKind::MappingCreated, (ADDRESS, 9), 5)]);
        assert_eq!(read(&mut follower).1.len(), 3);
        drop(writer);
        if is_damaged {
            damage(&folder, "segment-", |_| 20);
        }
        // The start makes a segment of the rest, which is whole.
        let writer = open(&folder, 100);
        assert_eq!(writer.damage().is_empty(), !is_damaged);
        let reported = Reported::all(&mut follower);
        let (.., are_ends_known) = reported.over[0];
        assert_eq!((reported.over.len(), are_ends_known), (1, !is_damaged), "{reported:?}");
        assert!(is_damaged || reported.ended.len() == 3, "{reported:?}");
    }
}

#[test]
fn ends_are_unknown_after_lost_records_of_the_run() {
    let gap =
        |cause| Event { sequence: 3, amount: 4, ..Event::new(EventKind::Gap, Instant::from_micros(9)) }.because(cause);
    let created = |number: u16| mapping(u64::from(number), EventKind::MappingCreated, (ADDRESS, number), 5);
    // One may have ended, and that had no record, or the follower missed it.
    let lost = [created(1), created(2), gap(Cause::None)];
    let minor = [created(1), created(2), gap(Cause::NoAllocation)];
    let missed = [created(1), created(2), created(7)];
    for (events, are_known) in [(&lost, false), (&minor, true), (&missed, false)] {
        let folder = Folder::new("gap");
        let mut writer = open(&folder, 0);
        let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
        let cursor = CursorFile::new(&folder.0, "c", 1 << 30);
        cursor.write(follower.position()).unwrap();
        put(&mut writer, 10, events);
        read(&mut follower);
        cursor.write(follower.position()).unwrap();
        let mut late = Follower::open(&folder.0, Start::Now).unwrap();
        let mut resumed = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
        writer.finish(at(20), at(20).monotonic_us, false).unwrap();
        for (follower, are_known) in [(&mut follower, are_known), (&mut resumed, are_known), (&mut late, true)] {
            assert_eq!(Reported::all(follower).over, [(at(20).unix_us, true, are_known)], "{events:?}");
        }
    }
}

#[test]
fn frames_behind_damage_are_read_and_the_rest_is_a_gap() {
    let folder = Folder::new("bit");
    let options = StoreOptions { has_threads: false, ..StoreOptions::default() };
    let mut writer = StoreWriter::open(&folder.0, options, Generator::begin()).unwrap();
    let mut generator = Generator::new(Generated::Mappings(10_000), 7);
    let follower = Follower::open(&folder.0, Start::Now).unwrap();
    CursorFile::new(&folder.0, "c", 1 << 30).write(follower.position()).unwrap();
    let written = write(&mut writer, &mut generator, 12);
    // One who reads the journal while it is written waits, because that may be a frame on its way.
    damage(&folder, JOURNAL, |length| length / 2 - 300);
    let mut live = Follower::open(&folder.0, Start::At(follower.position().clone())).unwrap();
    let before = read(&mut live).1;
    assert!((500..=700).contains(&before.len()) && before == written[..before.len()], "{}", before.len());
    writer.finish(generator.now(), generator.now().monotonic_us, false).unwrap();
    let late = Follower::open(&folder.0, Start::At(follower.position().clone())).unwrap();
    for (mut follower, mut events) in [(live, before.clone()), (late, Vec::new())] {
        // The last file is left when there is a later one.
        events.extend(read(&mut follower).1);
        drop(open(&folder, 100_000));
        events.extend(read(&mut follower).1);
        let gap = events.iter().position(|event| event.kind == EventKind::Gap).unwrap();
        let lost = u64::from(events[gap].amount);
        assert_eq!((gap, lost, follower.lost()), (before.len(), 100, 100));
        assert_eq!((&events[..gap], &events[gap + 1..]), (&written[..gap], &written[gap + 100..]));
    }
}

#[test]
fn a_file_that_the_disk_cannot_read_is_passed_over() {
    let folder = Folder::new("sector");
    let options = StoreOptions { has_threads: false, ..StoreOptions::default() };
    let mut writer = StoreWriter::open(&folder.0, options.clone(), Generator::begin()).unwrap();
    let mut generator = Generator::new(Generated::Mappings(10_000), 7);
    let follower = Follower::open(&folder.0, Start::Now).unwrap();
    let start = Start::At(follower.position().clone());
    CursorFile::new(&folder.0, "c", 1 << 30).write(follower.position()).unwrap();
    write(&mut writer, &mut generator, 3);
    writer.finish(generator.now(), generator.now().monotonic_us, false).unwrap();
    let spool = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    let spool = spool.into_iter().find(|path| path.to_str().unwrap().contains(SPOOL)).unwrap();
    fs::remove_file(&spool).unwrap();
    // Reading the beginning of it says what a bad sector says.
    std::os::unix::fs::symlink("/proc/self/mem", &spool).unwrap();
    assert_eq!(File::open(&spool).unwrap().read_at(&mut [0], 0).unwrap_err().raw_os_error(), Some(5));
    let mut follower = Follower::open(&folder.0, start).unwrap();
    drop(open(&folder, 100_000));
    let mut writer = open(&folder, 200_000);
    let event = mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 5);
    writer.push_all(WorkerId(0), &[event]);
    writer.advance(at(200_001), at(200_001).monotonic_us).unwrap();
    writer.flush().unwrap();
    let (starts, events) = read(&mut follower);
    assert_eq!((starts, events.last().map(|event| event.first_port)), (1, Some(7)), "{events:?}");
}

#[test]
fn a_damaged_cursor_begins_with_the_oldest_record() {
    let folder = Folder::new("cursor");
    let cursor = CursorFile::new(&folder.0, "c.new", 1 << 30);
    let mut writer = open(&folder, 0);
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    put(&mut writer, 10, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 5)]);
    read(&mut follower);
    cursor.write(follower.position()).unwrap();
    put(&mut writer, 11, &[mapping(2, EventKind::MappingCreated, (ADDRESS, 8), 5)]);
    writer.finish(at(20), at(20).monotonic_us, false).unwrap();
    fs::write(folder.0.join("cursor-c.new"), "").unwrap();
    drop(open(&folder, 100));
    cursor.trim().unwrap();
    assert_eq!(cursor.read().unwrap(), Start::Oldest);
    let follower = Follower::open(&folder.0, Start::Oldest).unwrap();
    cursor.write(follower.position()).unwrap();
    drop(follower);
    // Also if it ends before that is reported.
    let start = cursor.read().unwrap();
    assert!(matches!(start, Start::At(_)), "{start:?}");
    let mut follower = Follower::open(&folder.0, start).unwrap();
    let (mut over, mut ports) = (Vec::new(), Vec::new());
    let each = |over: &mut Vec<bool>, ports: &mut Vec<u16>, seen: Seen<'_>| match seen {
        Seen::Event { event, .. } => ports.push(event.first_port),
        Seen::Over { are_ends_known, .. } => over.push(are_ends_known),
        Seen::Start { .. } | Seen::Ended { .. } => {}
    };
    while follower.step(|seen| each(&mut over, &mut ports, seen)).unwrap() {}
    assert_eq!((&over[..], &ports[..], follower.lost()), (&[false, true][..], &[7, 8][..], 0));
    cursor.write(follower.position()).unwrap();
    let mut again = Follower::open(&folder.0, cursor.read().unwrap()).unwrap();
    assert_eq!(Reported::all(&mut again).over, []);
}

#[test]
fn a_new_store_has_the_cursors_of_the_one_put_aside() {
    let folder = Folder::new("aside");
    let cursor = CursorFile::new(&folder.0, "c", 1 << 30);
    let mut writer = open(&folder, 0);
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    put(&mut writer, 10, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 5)]);
    read(&mut follower);
    cursor.write(follower.position()).unwrap();
    drop(writer);
    fs::write(folder.0.join(catalogue::KEY), "damaged").unwrap();
    let mut writer = open(&folder, 100);
    put(&mut writer, 110, &[mapping(1, EventKind::MappingCreated, (ADDRESS, 7), 8)]);
    assert_eq!(seen_by(&cursor, &folder.0, 0), ["unknown", "start", "mapping_created 1"]);
}

/// What the follower of a cursor sees, which must know before how much is lost.
fn seen_by(cursor: &CursorFile, folder: &Path, lost: u64) -> Vec<String> {
    let start = cursor.read().unwrap();
    let mut follower = Follower::open(folder, start).unwrap();
    assert_eq!(follower.put_aside().map(PutAside::records), Some(lost));
    assert_eq!((follower.deleted().unwrap(), follower.lost()), (lost, 0));
    let mut said = Vec::new();
    let each = |said: &mut Vec<String>, seen: Seen<'_>| {
        said.push(match seen {
            Seen::Start { .. } => "start".to_owned(),
            Seen::Event { event, .. } if event.kind == EventKind::Gap => {
                format!("{} lost from {}", event.amount, event.sequence)
            }
            Seen::Event { event, .. } => format!("{} {}", event.kind.name(), event.sequence),
            Seen::Over { are_ends_known, .. } => (if are_ends_known { "over" } else { "unknown" }).to_owned(),
            Seen::Ended { .. } => "ended".to_owned(),
        });
    };
    while follower.step(|seen| each(&mut said, seen)).unwrap() {}
    assert_eq!((follower.deleted().unwrap(), follower.lost()), (0, lost));
    said
}

#[test]
fn what_a_store_put_aside_had_not_sent_is_a_gap() {
    let folder = Folder::new("unsent");
    let created = |sequence| mapping(sequence, EventKind::MappingCreated, (ADDRESS, sequence as u16), 5);
    let [cursor, other] = ["c", "damaged"].map(|name| CursorFile::new(&folder.0, name, 1 << 30));
    let rings = folder.0.with_extension("rings");
    fs::create_dir_all(&rings).unwrap();
    let options = || StoreOptions { rings_folder: rings.clone(), ..StoreOptions::default() };
    let mut writer = StoreWriter::open(&folder.0, options(), at(0)).unwrap();
    let mut follower = Follower::open(&folder.0, Start::Now).unwrap();
    put(&mut writer, 10, &[created(1), created(2)]);
    read(&mut follower);
    cursor.write(follower.position()).unwrap();
    put(&mut writer, 11, &[created(3)]);
    writer.finish(at(20), at(20).monotonic_us, false).unwrap();
    // The rest of that run, and one that was killed: two records were in the ring only.
    let mut writer = StoreWriter::open(&folder.0, options(), at(100)).unwrap();
    let (mut producer, consumer) = writer.create_rings(1, 8).unwrap().remove(0);
    put(&mut writer, 110, &[created(1), created(2)]);
    for sequence in 2..5 {
        producer.try_push(created(sequence).into()).unwrap();
    }
    drop((writer, producer, consumer));
    fs::write(folder.0.join("cursor-damaged"), "").unwrap();
    for name in [catalogue::NAME, catalogue::COPY] {
        let mut bytes = fs::read(folder.0.join(name)).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(folder.0.join(name), bytes).unwrap();
    }
    let mut writer = StoreWriter::open(&folder.0, options(), at(200)).unwrap();
    let said = writer.damage().join("\n");
    assert!(said.contains("the last 2 records of the earlier store were in memory only"), "{said}");
    assert!(folder.0.join("damaged-store-1/ring-0").exists() && folder.0.join("damaged-store-1/ring-due").exists());
    assert_eq!(fs::read_dir(&rings).unwrap().count(), 0);
    put(&mut writer, 210, &[created(1)]);
    let later = ["unknown", "start", "mapping_created 1"];
    assert_eq!(seen_by(&cursor, &folder.0, 5), [&["1 lost from 3", "4 lost from 1"], &later[..]].concat());
    let Start::At(position) = other.read().unwrap() else { panic!("it has a position") };
    assert!(position.aside.as_ref().is_some_and(|aside| !aside.is_known), "{position:?}");
    assert_eq!(seen_by(&other, &folder.0, 0), later);
    // Also if a second one is put aside before that was said.
    drop(writer);
    fs::write(folder.0.join(catalogue::KEY), "damaged").unwrap();
    drop(StoreWriter::open(&folder.0, options(), at(300)).unwrap());
    assert_eq!(seen_by(&cursor, &folder.0, 6), ["1 lost from 3", "4 lost from 1", "1 lost from 1", "unknown"]);
    fs::remove_dir_all(&rings).unwrap();
}

#[test]
fn a_malformed_cursor_is_not_read() {
    for text in ["", "natrix cursor\nspool x", "natrix cursor\nspool 1\nframe 2\nworker 1", "natrix cursor\nspool 1\n"]
    {
        assert!(parse_cursor(text).is_none(), "{text}");
    }
    let (position, bytes) = parse_cursor("natrix cursor\nspool 7\nframe 2\nrun 1 1\nworker 3 4\n").unwrap();
    assert_eq!((position.frame, position.boot, position.is_from_start, bytes), (2, Some(1), true, 7));
    assert_eq!(position.workers, BTreeMap::from([(3, 4)]));
    assert_eq!((position.ends, position.datagram), (Ends::Pending, 0));
    for (words, ends, datagram) in [
        ("ends 9 datagram 6", Ends::From(9), 6),
        ("ends reported", Ends::Reported, 0),
        ("later word datagram 4294967295", Ends::Pending, u32::MAX),
    ] {
        let (position, _) = parse_cursor(&format!("natrix cursor\nspool 7\nframe 2\nrun 1 0 {words}\n")).unwrap();
        assert_eq!((position.boot, position.ends, position.datagram), (Some(1), ends, datagram), "{words}");
    }
}
