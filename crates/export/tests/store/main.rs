//! The store against a list of all that happened: random events, clock steps, losses, kills, torn
//! files, retention. No answer may name a wrong holder with certainty, and an answer that claims to
//! be complete must be the list's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod answers;
mod damage;
mod exports;
mod generated;
mod permissions;
mod verification;
mod world;

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use export::store::Generated;
use export::store::Generator;
use export::store::Moment;
use export::store::StoreOptions;
use export::store::StoreWriter;
use nat::event::Cause;
use nat::event::Event;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-"));
    found.sort();
    found
}

/// The writer of a store with all of a generated log, the time of its end, and what began.
fn generated(folder: &Folder, kind: Generated, seed: u64) -> (StoreWriter, Moment, Vec<Event>) {
    let mut generator = Generator::new(kind, seed);
    let options = StoreOptions { segment_rows: 10_000, ..StoreOptions::default() };
    let mut writer = StoreWriter::open(&folder.0, options, Generator::begin()).unwrap();
    let (mut events, mut begun) = (Vec::new(), Vec::new());
    loop {
        events.clear();
        generator.fill(4_096, &mut events);
        if events.is_empty() {
            return (writer, generator.now(), begun);
        }
        begun.extend(events.iter().copied().filter(|event| event.cause == Cause::Outbound));
        writer.push_all(Generator::WORKER, &events);
        writer.advance(generator.now(), generator.now().monotonic_us).unwrap();
    }
}
