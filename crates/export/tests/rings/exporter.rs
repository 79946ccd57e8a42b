//! The thread that empties the rings, after a loss and behind a slow disk.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
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
use export::Taken;
use export::WriterOptions;
use export::store::Generator;
use export::store::Moment;
use export::store::Store;
use export::store::StoreWriter;
use mem::ring::Producer;
use nat::Instant;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::FINISHED;
use nat::event::Record;

use super::Place;
use super::at;
use super::later;
use super::mapping;
use super::moment;
use super::question;

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

    fn taken(&self, _: u64) -> Option<Taken> {
        None
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
