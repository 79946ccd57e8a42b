//! The thread of the exporter writes every record once and in order, even when the medium fails for
//! a while.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;
use std::time::Instant as Started;

use export::Clocks;
use export::Exporter;
use export::Files;
use export::FilterNames;
use export::Medium;
use export::Names;
use export::Output;
use export::Outputs;
use export::Sync;
use export::Taken;
use export::WriterOptions;
use mem::ring;
use mem::ring::Producer;
use nat::Instant;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::LogsOpened;
use nat::event::Record;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// A medium in memory that a test can make fail.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    fails: bool,
}

impl Memory {
    fn set_failing(&self, fails: bool) {
        self.0.lock().unwrap().fails = fails;
    }

    /// All lines but those that only say until when the log has everything.
    fn lines(&self) -> Vec<Value> {
        self.all_lines().into_iter().filter(|line| line["event"] != "covered").collect()
    }

    fn all_lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().bytes.clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Medium for Memory {
    fn open(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock().unwrap();
        if state.fails {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        // Never all of it.
        let taken = bytes.len().div_ceil(2);
        state.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn rotate(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn taken(&self, _: u64) -> Option<Taken> {
        None
    }

    fn close(&mut self) {}
}

fn start(memory: &Memory, workers: usize, queue: usize) -> (Exporter, Vec<Producer<Record>>) {
    let (producers, rings) = (0..workers).map(|_| ring::channel(queue)).unzip();
    let options = WriterOptions { rotate_bytes: 0, rotate_us: 0, sync: Sync::Always };
    let outputs = Outputs {
        lines: Some(Output { medium: Box::new(memory.clone()), options, destination: "/log/events.json".to_owned() }),
        store: None,
        rings,
        names: Names::default(),
        version: "0.1.0".to_owned(),
        opened: Arc::default(),
    };
    let begin = Started::now();
    // The clock of the engine began two seconds after 1970.
    let clocks = move || {
        let elapsed = begin.elapsed().as_micros() as u64;
        Clocks { now: Instant::from_micros(1_000_000 + elapsed), unix_us: 3_000_000 + elapsed }
    };
    (Exporter::start(outputs, clocks).unwrap(), producers)
}

fn event(sequence: u64) -> Event {
    Event { sequence, ..Event::new(EventKind::MappingCreated, Instant::from_micros(1_000_000)) }
}

/// Pushes an event and waits for room if necessary.
fn push(ring: &mut Producer<Record>, event: Event) {
    let begin = Started::now();
    while ring.try_push(event.into()).is_err() {
        assert!(begin.elapsed() < PATIENCE, "somebody takes events");
        thread::yield_now();
    }
}

#[test]
fn records_of_many_workers_are_written_once_and_in_order() {
    const EVENTS: u64 = 20_000;
    let memory = Memory::default();
    let (exporter, producers) = start(&memory, 3, 64);
    let threads: Vec<_> = producers
        .into_iter()
        .map(|mut ring| thread::spawn(move || (1..=EVENTS).for_each(|sequence| push(&mut ring, event(sequence)))))
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let handle = exporter.handle();
    assert!(exporter.stop(), "all of it");
    let lines = memory.lines();
    assert_eq!(lines.len() as u64, 3 * EVENTS + 2);
    assert_eq!((&lines[0]["event"], &lines[0]["version"]), (&Value::from("started"), &Value::from("0.1.0")));
    assert_eq!(lines[lines.len() - 1]["event"], "stopped");
    for worker in 0..3 {
        let own = lines.iter().filter(|line| line["worker"] == worker);
        let sequences: Vec<u64> = own.map(|line| line["sequence"].as_u64().unwrap()).collect();
        assert!(sequences.iter().copied().eq(1..=EVENTS), "worker {worker}");
    }
    // The time is right by both clocks, whenever it was written.
    assert!(lines[1]["time"].as_str().unwrap().starts_with("1970-01-01T00:00:03.000"));
    let figures = handle.figures();
    let all = memory.all_lines().len() as u64;
    assert_eq!((figures.records, figures.waiting, figures.errors), (all, 0, 0));
    assert_eq!(figures.bytes as usize, memory.0.lock().unwrap().bytes.len());
}

#[test]
fn events_wait_in_the_rings_while_the_medium_fails() {
    let memory = Memory::default();
    memory.set_failing(true);
    let (exporter, mut producers) = start(&memory, 1, 256);
    let handle = exporter.handle();
    let ring = &mut producers[0];
    // More than the writer's buffer and the ring hold: at some point nothing more is accepted.
    let mut pushed = 0;
    let mut since_room = Started::now();
    while since_room.elapsed() < Duration::from_millis(300) {
        match ring.try_push(event(pushed + 1).into()) {
            Ok(()) => (pushed, since_room) = (pushed + 1, Started::now()),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
        assert!(pushed < 100_000, "what waits has a bound");
    }
    assert_eq!(ring.len(), 256, "the ring is full");
    let figures = handle.figures();
    assert!(figures.failing && figures.errors > 0 && figures.records == 0, "{figures:?}");
    assert!(figures.waiting > 256 && figures.lag_us > 0, "{figures:?}");
    assert!(figures.last_error.unwrap().starts_with("write: "));
    memory.set_failing(false);
    push(ring, event(pushed + 1));
    drop(producers);
    assert!(exporter.stop());
    assert!(!handle.figures().failing);
    let sequences: Vec<u64> = memory.lines().iter().filter_map(|line| line["sequence"].as_u64()).collect();
    assert!(sequences.into_iter().eq(1..=pushed + 1), "no event is lost or written twice");
}

#[test]
fn names_follow_the_configuration() {
    let memory = Memory::default();
    let (exporter, mut producers) = start(&memory, 1, 64);
    exporter.handle().set_names(Names { realms: vec!["blue".to_owned()], ..Names::default() });
    push(&mut producers[0], event(1));
    assert!(exporter.stop());
    let lines = memory.lines();
    assert_eq!(lines.iter().find(|line| line["sequence"] == 1).map(|line| &line["realm"]), Some(&Value::from("blue")));
}

#[test]
fn old_filter_records_keep_their_names_after_a_change() {
    let memory = Memory::default();
    let (exporter, mut producers) = start(&memory, 1, 64);
    let of = |configuration: u16, name: &str| {
        let filters = FilterNames { names: [(0, name.to_owned())].into(), ..FilterNames::default() };
        Names { filters: vec![(configuration, Arc::new(filters))], ..Names::default() }
    };
    exporter.handle().set_names(of(0, "old"));
    exporter.handle().announce(of(1, "new"));
    exporter.handle().set_names(of(1, "new"));
    // The first waited for the medium; the second came then.
    for (sequence, configuration) in [(1, 0), (2, 1)] {
        let decided = Event { kind: EventKind::FilterDenied, last_port: configuration, ..event(sequence) };
        push(&mut producers[0], decided);
    }
    assert!(exporter.stop());
    let lines = memory.lines();
    let named = |sequence: u64| lines.iter().find(|line| line["sequence"] == sequence).map(|line| &line["filter_name"]);
    assert_eq!((named(1), named(2)), (Some(&Value::from("old")), Some(&Value::from("new"))));
}

#[test]
fn names_of_filters_are_kept_for_a_few_changes() {
    let memory = Memory::default();
    let (exporter, mut producers) = start(&memory, 1, 64);
    for configuration in 0..9_u16 {
        let names = [(0, configuration.to_string())].into();
        let filters = Arc::new(FilterNames { names, ..FilterNames::default() });
        let next = Names { filters: vec![(configuration, filters)], ..Names::default() };
        exporter.handle().announce(next.clone());
        exporter.handle().set_names(next);
    }
    for configuration in 0..9_u16 {
        let decided = event(u64::from(configuration) + 1);
        push(&mut producers[0], Event { kind: EventKind::FilterDenied, last_port: configuration, ..decided });
    }
    assert!(exporter.stop());
    let lines = memory.lines();
    let named: Vec<&Value> = lines.iter().filter_map(|line| line.get("filter_name")).collect();
    assert_eq!(named, ["6", "7", "8"], "the current one and two earlier ones");
}

#[test]
fn lines_say_until_when_they_are_complete_and_clock_steps() {
    let memory = Memory::default();
    let (mut producers, rings): (Vec<_>, Vec<_>) = (0..2).map(|_| ring::channel(64)).unzip();
    let options = WriterOptions { rotate_bytes: 0, rotate_us: 0, sync: Sync::Never };
    let lines = Output { medium: Box::new(memory.clone()), options, destination: "/log/events.json".to_owned() };
    let outputs = Outputs {
        lines: Some(lines),
        store: None,
        rings,
        names: Names::default(),
        version: "0.1.0".to_owned(),
        opened: Arc::default(),
    };
    // A clock that the test moves: time of the engine, and of day.
    let time = Arc::new(Mutex::new((2_000_000, 50_000_000)));
    let read = Arc::clone(&time);
    let clocks = move || {
        let (now_us, unix_us) = *read.lock().unwrap();
        Clocks { now: Instant::from_micros(now_us), unix_us }
    };
    let exporter = Exporter::start(outputs, clocks).unwrap();
    let wait = |wanted: &str, count: usize| {
        let begin = Started::now();
        while memory.all_lines().iter().filter(|line| line["event"] == wanted).count() < count {
            assert!(begin.elapsed() < PATIENCE, "no line {wanted}: {:?}", memory.all_lines());
            thread::sleep(Duration::from_millis(1));
        }
    };
    push(&mut producers[0], event(1));
    push(&mut producers[0], event(2));
    push(&mut producers[1], event(1));
    producers.iter().for_each(|ring| ring.mark(2_500_000));
    *time.lock().unwrap() = (4_000_000, 52_000_000);
    wait("covered", 1);
    // An hour back.
    *time.lock().unwrap() = (4_100_000, 52_100_000 + 3_600_000_000);
    wait("clock_set", 1);
    // One worker has more to say; then both have ended.
    producers[0].mark(9_000_000);
    producers.iter().for_each(|ring| ring.mark(9_000_000 | nat::event::FINISHED));
    assert!(exporter.stop());
    let all = memory.all_lines();
    let of = |wanted: &str| all.iter().find(|line| line["event"] == wanted).unwrap();
    assert_eq!(of("covered")["sequences"], serde_json::json!([2, 1]));
    assert_eq!(of("covered")["time"], "1970-01-01T00:00:50.500000Z");
    assert_eq!(of("clock_set")["by_us"], 3_600_000_000_i64);
    // The reading before was a tenth of a second ago, by the clock of the test.
    assert_eq!(of("clock_set")["unclear_us"], 100_000);
    assert_eq!(of("stopped")["sequences"], serde_json::json!([2, 1]));
}

#[test]
fn each_step_of_the_clock_while_a_disk_is_slow_has_a_line() {
    let memory = Memory::default();
    let (mut producer, ring) = ring::channel(64);
    // How far the clock is behind, in µs, and how often both were read.
    let (behind_us, readings) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (behind, count, begin) = (Arc::clone(&behind_us), Arc::clone(&readings), Started::now());
    let clocks = move || {
        let elapsed = begin.elapsed().as_micros() as u64;
        count.fetch_add(1, Ordering::Relaxed);
        Clocks {
            now: Instant::from_micros(1_000_000 + elapsed),
            unix_us: 60_000_000 + elapsed - behind.load(Ordering::Relaxed),
        }
    };
    let options = WriterOptions { rotate_bytes: 0, rotate_us: 0, sync: Sync::Never };
    let outputs = Outputs {
        lines: Some(Output { medium: Box::new(memory.clone()), options, destination: String::new() }),
        store: None,
        rings: vec![ring],
        names: Names::default(),
        version: String::new(),
        opened: Arc::default(),
    };
    let exporter = Exporter::start(outputs, clocks).unwrap();
    let wait_for = |what: &str, done: &dyn Fn() -> bool| {
        let begin = Started::now();
        while !done() {
            assert!(begin.elapsed() < PATIENCE, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for("the first line", &|| memory.lines().len() == 1);
    // The thread waits for a line to be written.
    let waiting = memory.0.lock().unwrap();
    push(&mut producer, event(1));
    thread::sleep(Duration::from_millis(50));
    for us in [18_000_000, 0] {
        behind_us.store(us, Ordering::Relaxed);
        let before = readings.load(Ordering::Relaxed);
        wait_for("somebody reads the clock", &|| readings.load(Ordering::Relaxed) > before + 2);
    }
    drop(waiting);
    drop(producer);
    assert!(exporter.stop());
    let lines = memory.lines();
    let steps = lines.iter().filter(|line| line["event"] == "clock_set");
    assert_eq!(steps.map(|line| line["by_us"].as_i64().unwrap() / 1_000).collect::<Vec<_>>(), [-18_000, 18_000]);
}

#[test]
fn a_new_file_begins_with_what_became_of_the_old_one() {
    let folder = std::env::temp_dir().join(format!("natrix-{}-taken-lines", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (path, moved) = (folder.join("events.json"), folder.join("events.json.1"));
    let (mut producer, ring) = ring::channel(64);
    let options = WriterOptions { rotate_bytes: 0, rotate_us: 0, sync: Sync::Never };
    let (destination, opened) = (path.display().to_string(), Arc::new(LogsOpened::default()));
    let outputs = Outputs {
        lines: Some(Output { medium: Box::new(Files::new(path.clone(), 0)), options, destination }),
        store: None,
        rings: vec![ring],
        names: Names::default(),
        version: "0.1.0".to_owned(),
        opened: Arc::clone(&opened),
    };
    // A clock that the test moves.
    let time_us = Arc::new(AtomicU64::new(2_000_000));
    let read = Arc::clone(&time_us);
    let clocks = move || {
        let now_us = read.load(Ordering::Relaxed);
        Clocks { now: Instant::from_micros(now_us), unix_us: now_us }
    };
    let pass = |seconds: u64| time_us.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    let exporter = Exporter::start(outputs, clocks).unwrap();
    let handle = exporter.handle();
    let lines = |path: &std::path::Path| -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let wait_for = |what: &str, done: &dyn Fn() -> bool| {
        let begin = Started::now();
        while !done() {
            assert!(begin.elapsed() < PATIENCE, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    let has = |path: &std::path::Path, sequence: u64| lines(path).iter().any(|line| line["sequence"] == sequence);
    push(&mut producer, event(1));
    wait_for("the first record", &|| has(&path, 1));
    assert_eq!((handle.figures().taken, opened.count()), ((0, None), 0));
    std::fs::rename(&path, &moved).unwrap();
    pass(2);
    wait_for("a new file", &|| !lines(&path).is_empty());
    push(&mut producer, event(2));
    wait_for("the second record", &|| has(&path, 2));
    let first = lines(&path).remove(0);
    let renamed = moved.canonicalize().unwrap();
    assert_eq!([&first["event"], &first["cause"]], ["opened", "renamed"]);
    assert_eq!(first["file"], path.to_str().unwrap());
    assert_eq!((&first["earlier"], &first["workers"]), (&Value::from(renamed.to_str().unwrap()), &Value::from(1)));
    assert_eq!(handle.figures().taken, (1, Some(Taken::Renamed(Some(renamed)))));
    wait_for("the workers are asked for all state", &|| opened.count() == 1);
    assert!(has(&moved, 1) && !has(&moved, 2));
    // Again: so soon, the workers need not report all again.
    std::fs::remove_file(&path).unwrap();
    pass(2);
    wait_for("a third file", &|| !lines(&path).is_empty());
    let first = lines(&path).remove(0);
    assert_eq!(
        [&first["event"], &first["cause"], &first["earlier"]],
        [&"opened".into(), &"deleted".into(), &Value::Null]
    );
    assert_eq!((handle.figures().taken, opened.count()), ((2, Some(Taken::Deleted)), 1));
    pass(60);
    wait_for("the workers are asked again", &|| opened.count() == 2);
    // At the end, too.
    std::fs::remove_file(&path).unwrap();
    assert!(exporter.stop());
    let last: Vec<Value> = lines(&path).into_iter().filter(|line| line["event"] != "covered").collect();
    assert_eq!(last.iter().map(|line| &line["event"]).collect::<Vec<_>>(), ["opened", "stopped"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
