//! The store of the event log: the rate of its writer on one core, and the bytes a mapping takes.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use export::store::Generated;
use export::store::Generator;
use export::store::Store;
use export::store::StoreError;
use export::store::StoreOptions;
use export::store::StoreWriter;
use serde::Serialize;

/// Events that are made before the clock runs, and logged while it does.
const BATCH: usize = 65_536;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Mappings to log.
    pub mappings: u64,
    /// Folder of the store, missing or empty; None for a new one among the temporary files. The
    /// store is removed at the end, and the folder if it was missing.
    pub folder: Option<PathBuf>,
    /// Seed of the events.
    pub seed: u64,
}

/// The result.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Report {
    /// Mappings that began.
    pub mappings: u64,
    /// Starts and ends.
    pub events: u64,
    /// Events a second with everything: pairing, journal, sorting, encoding, merging, syncs.
    pub events_per_second: f64,
    /// Bytes of the store for each mapping.
    pub bytes_per_mapping: f64,
    /// CPU time for each event, in ns, by the system's count for the thread: without the time in
    /// which other programs had the core, or the thread waited for the disk.
    pub cpu_ns_per_event: f64,
    /// Longest time of a batch, in s: sealing and merging happen in it.
    pub longest_batch_seconds: f64,
}

/// Why it could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was to stop.
    #[error("ended before all mappings were logged")]
    Stopped,
    /// The folder is not empty: what is in it would be lost with the store.
    #[error("--dir {}: it exists and is not an empty folder; name a new one", .0.display())]
    InUse(PathBuf),
    /// The folder cannot be made, or what was written cannot be removed.
    #[error("--dir {}: {source}; name another folder", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The folder of a store while it is measured. It was made here, or was empty.
struct Place {
    folder: PathBuf,
    is_made: bool,
}

impl Place {
    fn begin(folder: PathBuf) -> Result<Place, LogError> {
        let failed = |source| LogError::Folder { path: folder.clone(), source };
        let is_made = match fs::create_dir(&folder) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !fs::metadata(&folder).map_err(failed)?.is_dir()
                    || fs::read_dir(&folder).map_err(failed)?.next().is_some()
                {
                    return Err(LogError::InUse(folder));
                }
                false
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Place { folder, is_made })
    }

    /// Removes what was written, and the folder if it was made here.
    fn end(self) -> Result<(), LogError> {
        let remove = || {
            if self.is_made {
                return fs::remove_dir_all(&self.folder);
            }
            for entry in fs::read_dir(&self.folder)? {
                let path = entry?.path();
                // A store of one run has no folders.
                fs::remove_file(path)?;
            }
            Ok(())
        };
        remove().map_err(|source| LogError::Folder { path: self.folder.clone(), source })
    }
}

/// Logs generated events with a writer that has no thread of its own, so that the time of the
/// calls is the time of one core. Ends early, and removes the store, once `stop` is set.
///
/// # Errors
/// The store cannot be written; its folder is not empty, and nothing of it was changed; it was
/// stopped.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<Report, LogError> {
    let folder = options
        .folder
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("natrix-bench-log-{}", std::process::id())));
    let place = Place::begin(folder)?;
    let report = measure(options, &place.folder, stop);
    let ended = place.end();
    let report = report?;
    ended.map(|()| report)
}

/// CPU time of this thread so far, in ns; 0 where the system does not count it.
fn cpu_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0)
}

fn measure(options: &Options, folder: &std::path::Path, stop: &AtomicBool) -> Result<Report, LogError> {
    let mut generator = Generator::new(Generated::Mappings(options.mappings), options.seed);
    let store_options = StoreOptions {
        has_threads: false,
        // By the clock of the events, which runs faster than time.
        sync_interval_us: 60_000_000,
        segment_interval_us: u64::MAX,
        ..StoreOptions::default()
    };
    let mut writer = StoreWriter::open(folder, store_options, Generator::begin())?;
    let (mut taken, mut longest, mut count, mut used_ns) = (Duration::ZERO, Duration::ZERO, 0, 0);
    let mut events = Vec::with_capacity(BATCH);
    loop {
        events.clear();
        generator.fill(BATCH, &mut events);
        if events.is_empty() {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(LogError::Stopped);
        }
        let now = generator.now();
        let (started, cpu) = (Instant::now(), cpu_ns());
        writer.push_all(Generator::WORKER, &events);
        writer.advance(now, now.monotonic_us)?;
        let elapsed = started.elapsed();
        used_ns += cpu_ns().saturating_sub(cpu);
        (taken, longest, count) = (taken + elapsed, longest.max(elapsed), count + events.len() as u64);
    }
    let now = generator.now();
    let (started, cpu) = (Instant::now(), cpu_ns());
    writer.finish(now, now.monotonic_us, true)?;
    taken += started.elapsed();
    used_ns += cpu_ns().saturating_sub(cpu);
    let stat = Store::open(folder)?.stat()?;
    let seconds = taken.as_secs_f64();
    Ok(Report {
        mappings: stat.mappings,
        events: count,
        events_per_second: count as f64 / seconds,
        bytes_per_mapping: stat.bytes_per_mapping.unwrap_or(0.0),
        cpu_ns_per_event: used_ns as f64 / count.max(1) as f64,
        longest_batch_seconds: longest.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &std::path::Path) -> Options {
        Options { mappings: 10, folder: Some(folder.to_owned()), seed: 1 }
    }

    #[test]
    fn a_folder_that_has_something_is_left_alone() {
        let base = std::env::temp_dir().join(format!("natrix-bench-log-test-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let (mine, store, empty, new) = (base.join("mine"), base.join("store"), base.join("empty"), base.join("new"));
        [&mine, &empty].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        fs::write(mine.join("precious"), "mine").unwrap();
        assert!(matches!(run(&options(&mine), &AtomicBool::new(false)), Err(LogError::InUse(_))));
        assert_eq!(fs::read_to_string(mine.join("precious")).unwrap(), "mine");
        // A file is no folder.
        assert!(matches!(run(&options(&mine.join("precious")), &AtomicBool::new(false)), Err(LogError::InUse(_))));
        assert_eq!(fs::read_to_string(mine.join("precious")).unwrap(), "mine");

        // Also a store: its records are somebody's.
        let mut writer = StoreWriter::open(&store, StoreOptions::default(), Generator::begin()).unwrap();
        let now = Generator::begin();
        writer.advance(now, now.monotonic_us).unwrap();
        writer.finish(now, now.monotonic_us, true).unwrap();
        let entries = Store::open(&store).unwrap().stat().unwrap();
        assert!(matches!(run(&options(&store), &AtomicBool::new(false)), Err(LogError::InUse(_))));
        assert_eq!(Store::open(&store).unwrap().stat().unwrap().bytes, entries.bytes);

        // What is new is removed, and an empty folder stays.
        assert_eq!(run(&options(&new), &AtomicBool::new(false)).unwrap().mappings, 10);
        assert!(!new.exists());
        assert_eq!(run(&options(&empty), &AtomicBool::new(false)).unwrap().mappings, 10);
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
        // Also if it is stopped.
        for folder in [&new, &empty] {
            assert!(matches!(run(&options(folder), &AtomicBool::new(true)), Err(LogError::Stopped)));
        }
        assert!(!new.exists() && fs::read_dir(&empty).unwrap().next().is_none());
        fs::remove_dir_all(&base).unwrap();
    }
}
