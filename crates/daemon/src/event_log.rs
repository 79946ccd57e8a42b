//! The event log of an instance: rings for the workers, and the thread that writes their records.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;

use config::Config;
use config::EventLog;
use config::EventTarget;
use config::LogStore;
use config::LogSync;
use export::Clocks;
use export::Exporter;
use export::Files;
use export::FilterNames;
use export::Handle;
use export::Medium;
use export::Names;
use export::Output;
use export::Outputs;
use export::PoolRange;
use export::PoolRanges;
use export::Stdout;
use export::Sync;
use export::WriterOptions;
use export::store::Expired;
use export::store::Moment;
use export::store::StoreError;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::utc_text;
use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Settings;
use nat::Shared;
use nat::event::LogsOpened;
use nat::event::Record;

use crate::clock::Clock;
use crate::instance::lock;

/// Longest time between two clocks that are read at one moment, in µs, and how often to try.
const READING_US: u64 = 100;
const READINGS_MAX: u32 = 10;

/// Room in a store for a start with a full disk: the records of all rings, and a segment of what
/// the journal has.
const RESERVE_BYTES: u64 = 64 << 20;

/// Why there is no event log.
#[derive(Debug, thiserror::Error)]
pub enum EventLogError {
    /// The file cannot be opened.
    #[error("event log {path}: {source}; create the folder and let Natrix write there, or set another [log] events", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The store cannot be opened.
    #[error("log store {path}: {source}", path = .path.display())]
    Store {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
    /// No thread could be started.
    #[error("event log thread: {0}; see the system's log")]
    Thread(io::Error),
}

/// The control server's view of the log.
#[derive(Debug)]
pub struct EventLogView {
    /// Path of the file of lines, or `-`; empty without lines.
    destination: Mutex<String>,
    /// Folder of the store.
    store: Option<PathBuf>,
    /// Figures, names and the destination of lines.
    pub handle: Handle,
}

/// The destinations after a change: that of lines is already open. Dropping it without use leaves
/// no trace.
#[derive(Debug)]
pub(crate) struct Prepared {
    output: Option<Output>,
    store: Option<StoreOptions>,
    /// The file, if this created it.
    made: Option<PathBuf>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // It is empty: only the exporter writes, and it never had this file.
        if let Some(path) = &self.made
            && self.output.is_some()
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl EventLogView {
    /// Folder of the store, if there is one.
    pub fn store(&self) -> Option<&Path> {
        self.store.as_deref()
    }

    /// Path of the file of lines, or `-`; empty without lines.
    pub fn destination(&self) -> String {
        lock(&self.destination).clone()
    }

    /// Sends events to `prepared`.
    pub(crate) fn change(&self, mut prepared: Prepared) {
        if let Some(output) = prepared.output.take() {
            lock(&self.destination).clone_from(&output.destination);
            self.handle.set_output(output);
        }
        if let Some(options) = prepared.store.take() {
            self.handle.set_store(options);
        }
    }
}

/// What a change deletes of the store, if it shortens its retention.
pub(crate) fn shortened(before: &Config, after: &Config, running: Option<&EventLogView>) -> Option<String> {
    let store = |config: &Config| config.event_log.as_ref()?.store.clone();
    let (before, after) = (store(before)?, store(after)?);
    let kept = after.retention?;
    if before.retention.is_some_and(|retention| retention <= kept) {
        return None;
    }
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now_us = u64::try_from(unix.as_micros()).unwrap_or(u64::MAX);
    let expiring = running.map(|view| view.handle.expiring(&store_options(&after), now_us)).unwrap_or_default();
    let deletes = match expiring {
        Expired { segments: 0, .. } => "records are deleted earlier than before".to_owned(),
        Expired { segments, from_us, until_us } => {
            format!("{}, which this deletes now", records_text(segments, from_us, until_us))
        }
    };
    let is = before.retention.map_or_else(|| "for ever".to_owned(), time_text);
    Some(format!(
        "log.store.retention: {deletes} (kept {is} before, {} from now on); a rollback does not bring them back",
        time_text(kept)
    ))
}

fn time_text(time: nat::Duration) -> String {
    control::duration_text(time.as_micros())
}

/// Segments of the store, by number and time.
pub(crate) fn records_text(segments: u64, from_us: u64, until_us: u64) -> String {
    let segments = control::counted(segments, "segment");
    format!("{segments} with records from {} to {}", utc_text(from_us), utc_text(until_us))
}

/// Opens the destination in `wanted`.
///
/// # Errors
/// The file cannot be opened; nothing changes then.
pub(crate) fn prepare(wanted: &EventLog) -> Result<Prepared, EventLogError> {
    let store = wanted.store.as_ref().map(store_options);
    let Some(target) = &wanted.target else { return Ok(Prepared { output: None, store, made: None }) };
    let made = match target {
        EventTarget::File(path) => (!path.exists()).then(|| path.clone()),
        EventTarget::StandardOutput => None,
    };
    let output = Some(open(target, wanted)?);
    Ok(Prepared { output, store, made })
}

/// Opens the destination of lines.
fn open(target: &EventTarget, wanted: &EventLog) -> Result<Output, EventLogError> {
    let options = options_of(wanted);
    let (medium, destination): (Box<dyn Medium>, _) = match target {
        EventTarget::StandardOutput => (Box::new(Stdout), "-".to_owned()),
        EventTarget::File(path) => {
            let mut medium = Files::new(path.clone(), wanted.keep_files);
            medium.open().map_err(|source| EventLogError::File { path: path.clone(), source })?;
            (Box::new(medium), path.display().to_string())
        }
    };
    Ok(Output { medium, options, destination })
}

fn store_options(wanted: &LogStore) -> StoreOptions {
    StoreOptions {
        segment_rows: wanted.segment_rows,
        segment_interval_us: wanted.segment_interval.as_micros(),
        sync_interval_us: wanted.sync_interval.as_micros(),
        retention_us: wanted.retention.map(|retention| retention.as_micros()),
        signing_key: wanted.signing_key.clone(),
        reserve_bytes: RESERVE_BYTES,
        ..StoreOptions::default()
    }
}

fn options_of(wanted: &EventLog) -> WriterOptions {
    WriterOptions {
        rotate_bytes: wanted.rotate_bytes,
        rotate_us: wanted.rotate_interval.as_micros(),
        sync: match wanted.sync {
            LogSync::Never => Sync::Never,
            LogSync::OnRotation => Sync::OnRotation,
            LogSync::Interval(interval) => Sync::Interval(interval.as_micros()),
            LogSync::Always => Sync::Always,
        },
    }
}

/// A running log.
#[derive(Debug)]
pub struct Started {
    /// Its thread.
    pub exporter: Exporter,
    /// The control server's view.
    pub view: EventLogView,
    /// The rings, for the workers, in order.
    pub rings: Vec<Producer<Record>>,
    /// Shows the workers that records go to another log.
    pub opened: Arc<LogsOpened>,
    /// True if the previous run ended without a stop and its last records may be lost.
    pub is_last_end_lost: bool,
    /// What of the store is damaged, and what the start did about it, in sentences.
    pub damage: Vec<String>,
    /// What is missing of the previous run and changes no answer, in sentences.
    pub notices: Vec<String>,
}

/// The rings of workers, in order.
type Rings = (Vec<Producer<Record>>, Vec<Consumer<Record>>);

/// Opens the store, which takes in what an earlier run left, and makes rings of its own.
fn open_store(
    wanted: &LogStore,
    workers: usize,
    queue: usize,
    clock: Clock,
) -> Result<(StoreWriter, Rings), EventLogError> {
    let error = |source| EventLogError::Store { path: wanted.path.clone(), source };
    let moment = || {
        let Clocks { now, unix_us } = clock.both();
        Moment { monotonic_us: now.as_micros(), unix_us }
    };
    let writer = StoreWriter::open_by(&wanted.path, store_options(wanted), moment).map_err(error)?;
    let rings = writer.create_rings(workers, queue).map_err(error)?;
    Ok((writer, rings.into_iter().unzip()))
}

/// Starts the log of `config`, if it has one. The rings are for the workers, in order.
///
/// # Errors
/// [`EventLogError`]; a file that cannot be written is an error at the start, not at the first
/// record.
pub fn start(config: &Config, workers: usize, clock: Clock, version: &str) -> Result<Option<Started>, EventLogError> {
    let Some(wanted) = &config.event_log else { return Ok(None) };
    let queue = wanted.queue as usize;
    let (store, (producers, rings)) = match &wanted.store {
        Some(store) => {
            let (writer, rings) = open_store(store, workers, queue, clock)?;
            (Some(writer), rings)
        }
        None => (None, (0..workers).map(|_| ring::channel(queue)).unzip()),
    };
    let is_last_end_lost = store.as_ref().is_some_and(StoreWriter::is_last_end_lost);
    let damage = store.as_ref().map_or_else(Vec::new, |store| store.damage().to_vec());
    let notices = store.as_ref().map_or_else(Vec::new, |store| store.notices().to_vec());
    let lines = wanted.target.as_ref().map(|target| open(target, wanted)).transpose()?;
    let destination = lines.as_ref().map(|lines| lines.destination.clone()).unwrap_or_default();
    let names = names_of(&config.nat);
    let (version, opened) = (version.to_owned(), Arc::new(LogsOpened::default()));
    let seen = Arc::clone(&opened);
    let outputs = Outputs { lines, store, rings, names, version, opened };
    let exporter = Exporter::start(outputs, move || clock.both()).map_err(EventLogError::Thread)?;
    let store = wanted.store.as_ref().map(|store| store.path.clone());
    let view = EventLogView { destination: Mutex::new(destination), store, handle: exporter.handle() };
    Ok(Some(Started { exporter, view, rings: producers, opened: seen, is_last_end_lost, damage, notices }))
}

/// The names for numbers in events, for an instance that starts with these settings.
pub fn names_of(settings: &Settings) -> Names {
    let pools = settings.pools.iter().map(|pool| pool.name.clone());
    names(settings, 0, pools.collect())
}

/// The same for an instance that may have started with others: pools keep their numbers.
pub(crate) fn names_in(shared: &Shared) -> Names {
    names(shared.settings(), shared.generation(), shared.pool_names().map(str::to_owned).collect())
}

fn names(settings: &Settings, generation: u32, pools: Vec<String>) -> Names {
    // There may be a million filters, but few of them log.
    let logs = settings.filters.iter().any(|filter| filter.log);
    let filters = logs.then(|| FilterNames {
        names: settings.filter_names.clone(),
        places: settings.origins.filters.clone(),
        files: settings.origins.files.clone(),
    });
    let numbers: HashMap<&str, u16> = pools.iter().map(String::as_str).zip(0..).collect();
    let number_of = |name: &str| numbers.get(name).copied();
    let with_number = settings.pools.iter().filter_map(|pool| Some((pool, number_of(&pool.name)?)));
    let addresses = with_number.flat_map(|(pool, number)| {
        let is_one_to_one = pool.one_to_one;
        let single = move |address: &_| PoolRange { is_one_to_one, ..PoolRange::of_address(*address, number) };
        pool.addresses.iter().map(single)
    });
    let addresses = Arc::new(PoolRanges::of(addresses.collect()));
    Names {
        pools,
        addresses,
        realms: settings.realm_names.clone(),
        filters: filters.map(|filters| (generation as u16, Arc::new(filters))).into_iter().collect(),
        formulas: [(generation, nat::deterministic::checksum(settings))].into(),
    }
}

impl Clock {
    /// The current time by both clocks, so that the times of events follow the system's clock,
    /// including steps. A thread that is interrupted between them reads them again: that would look
    /// like a step.
    fn both(&self) -> Clocks {
        let mut best = (u64::MAX, Clocks { now: self.now(), unix_us: 0 });
        for _ in 0..READINGS_MAX {
            let begin = self.now();
            let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let now = self.now();
            let took_us = now.as_micros() - begin.as_micros();
            if took_us < best.0 {
                best = (took_us, Clocks { now, unix_us: u64::try_from(unix.as_micros()).unwrap_or(u64::MAX) });
            }
            if took_us < READING_US {
                break;
            }
        }
        best.1
    }
}
