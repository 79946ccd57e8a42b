use super::super::Generated;
use super::super::Generator;
use super::super::StoreOptions;
use super::super::StoreWriter;
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
        })
        .unwrap()
    {}
    (starts, events)
}

#[test]
fn it_follows_over_windows_and_runs_and_loses_nothing() {
    let folder = Folder::new("windows");
    let mut generator = Generator::new(Generated::Mappings(20_000), 3);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), Generator::begin()).unwrap();
    let cursor = CursorFile::new(&folder.0, "a.b", 1 << 30);
    assert_eq!(cursor.read().unwrap(), None);
    let mut follower = Follower::open(&folder.0, None).unwrap();
    cursor.write(follower.position()).unwrap();
    let first = write(&mut writer, &mut generator, 20);
    assert_eq!(read(&mut follower), (1, first));
    cursor.write(follower.position()).unwrap();
    assert_eq!(cursor.read().unwrap().as_ref(), Some(follower.position()));
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
    assert_eq!(cursor.read().unwrap(), None);
}

#[test]
fn what_is_deleted_beyond_the_bytes_is_a_gap() {
    let folder = Folder::new("deleted");
    let mut generator = Generator::new(Generated::Mappings(50_000), 5);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), Generator::begin()).unwrap();
    let mut follower = Follower::open(&folder.0, None).unwrap();
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
        let mut follower = Follower::open(&folder.0, None).unwrap();
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

#[test]
fn a_cursor_that_is_not_one_is_none() {
    for text in ["", "natrix cursor\nspool x", "natrix cursor\nspool 1\nframe 2\nworker 1", "natrix cursor\nspool 1\n"]
    {
        assert!(parse_cursor(text).is_none(), "{text}");
    }
    let (position, bytes) = parse_cursor("natrix cursor\nspool 7\nframe 2\nrun 1 1\nworker 3 4\n").unwrap();
    assert_eq!((position.frame, position.boot, position.is_from_start, bytes), (2, Some(1), true, 7));
    assert_eq!(position.workers, BTreeMap::from([(3, 4)]));
}
