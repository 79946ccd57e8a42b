//! A process that is killed: what it had taken, written or only staged is found by the next one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod clocks;
mod exporter;
mod journal;
mod killed;
mod losses;

use std::fs;
use std::path::PathBuf;

use export::store::Generator;
use export::store::Moment;
use export::store::Question;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::verify;
use nat::Instant;
use nat::event::Event;
use nat::event::EventKind;

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

/// A time of both clocks, so many seconds after the start.
fn moment(seconds: u64, back_s: u64) -> Moment {
    Moment {
        monotonic_us: at(seconds).as_micros(),
        unix_us: Generator::begin().unix_us + (seconds - back_s) * 1_000_000,
    }
}

fn copy(from: &PathBuf, to: &PathBuf) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}
