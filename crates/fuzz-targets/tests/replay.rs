//! Runs every target over its committed seeds and regressions, and over similar bytes.

#![allow(clippy::panic, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;

use fuzz_targets::TARGETS;
use fuzz_targets::Target;
use proptest::prelude::*;

fn folder(kind: &str, target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind).join(target.name)
}

/// Name and bytes of every file of a folder by name; empty without such a folder.
fn files(kind: &str, target: &Target) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder(kind, target)) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        // An unreadable file is a test that does not run, so it fails.
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        files.push((path.display().to_string(), bytes));
    }
    files.sort();
    files
}

#[test]
fn every_target_has_seeds_and_every_folder_a_target() {
    for target in TARGETS {
        assert!(!files("seeds", target).is_empty(), "no seed in {}", folder("seeds", target).display());
    }
    for kind in ["seeds", "regressions"] {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind);
        for entry in fs::read_dir(root).into_iter().flatten() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            assert!(
                !entry.path().is_dir() || fuzz_targets::target(&name).is_some(),
                "fuzz/{kind}/{name}: no target has this name"
            );
        }
    }
}

/// Names the input of a claim that fails. Threads print past the test's own output, so only then.
struct Input<'a>(&'a str, &'a Target);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} {}", self.1.name, self.0);
        }
    }
}

/// Calls `run` with every target, on all processors.
fn each_target(run: impl Fn(&'static Target) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(target) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(target);
                }
            });
        }
    });
}

#[test]
fn seeds_and_regressions_hold_every_claim() {
    each_target(|target| {
        for kind in ["seeds", "regressions"] {
            for (name, bytes) in files(kind, target) {
                let _named = Input(&name, target);
                (target.run)(&bytes);
            }
        }
    });
}

/// Bytes of a seed to change one by one; behind them are only payloads.
const CHANGED_MAX: usize = 256;

/// Of seeds whose runs make a whole instance each, one byte in so many is changed, and one cut in
/// two so many is made, in each seed another one. `make soak` changes all bytes, and makes one cut
/// in eight.
const ONE_IN: usize = 8;

#[test]
fn every_cut_and_every_changed_byte_of_a_seed_holds_every_claim() {
    let is_soak = std::env::var_os("NATRIX_RUNS").is_some();
    each_target(|target| {
        for (number, (name, bytes)) in files("seeds", target).into_iter().enumerate() {
            let _named = Input(&name, target);
            let is_path = target.name.ends_with("_path");
            let (first, step, cuts) = match (is_path, is_soak) {
                (true, false) => (number % ONE_IN, ONE_IN, 2 * ONE_IN),
                (true, true) => (0, 1, 8),
                (false, _) => (0, 1, 1),
            };
            for length in (number % cuts..bytes.len().min(CHANGED_MAX)).step_by(cuts) {
                (target.run)(&bytes[..length]);
            }
            let mut changed = bytes.clone();
            for offset in (first..bytes.len().min(CHANGED_MAX)).step_by(step) {
                let values = [bytes[offset] ^ 1, 0x7f, 0xff, 0, 1, 0x40, 0x45, 0x4f, 0x80, 0xfe, !bytes[offset]];
                let count = if is_path { 1 } else { values.len() };
                for value in &values[..count] {
                    changed[offset] = *value;
                    (target.run)(&changed);
                }
                changed[offset] = bytes[offset];
            }
        }
    });
}

proptest! {
    #[test]
    fn arbitrary_bytes_hold_every_claim(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for target in TARGETS {
            (target.run)(&bytes);
        }
    }
}
