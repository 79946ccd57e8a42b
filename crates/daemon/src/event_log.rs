//! The event log of an instance: rings for the workers, and the thread that writes their records.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;

use config::Config;
use config::EventLog;
use config::EventTarget;
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
use export::Stdout;
use export::Sync;
use export::WriterOptions;
use mem::ring;
use mem::ring::Producer;
use nat::Settings;
use nat::Shared;
use nat::event::Event;
use nat::event::LogsOpened;

use crate::clock::Clock;
use crate::instance::lock;

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
    /// No thread could be started.
    #[error("event log thread: {0}; see the system's log")]
    Thread(io::Error),
}

/// The control server's view of the log.
#[derive(Debug)]
pub struct EventLogView {
    /// Path of the file, or `-`.
    destination: Mutex<String>,
    /// Figures, names and the destination of lines.
    pub handle: Handle,
}

/// The destination of lines after a change, already open. Dropping it without use leaves no trace.
#[derive(Debug)]
pub(crate) struct Prepared {
    output: Option<Output>,
    destination: String,
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
    /// Path of the file, or `-`.
    pub fn destination(&self) -> String {
        lock(&self.destination).clone()
    }

    /// Sends lines to `prepared`.
    pub(crate) fn change(&self, mut prepared: Prepared) {
        if let Some(output) = prepared.output.take() {
            self.handle.set_output(output);
            lock(&self.destination).clone_from(&prepared.destination);
        }
    }
}

/// Opens the destination in `wanted`.
///
/// # Errors
/// The file cannot be opened; nothing changes then.
pub(crate) fn prepare(wanted: &EventLog) -> Result<Prepared, EventLogError> {
    let options = options_of(wanted);
    match &wanted.target {
        EventTarget::StandardOutput => {
            let destination = "-".to_owned();
            let output = Some(Output { medium: Box::new(Stdout), options, destination: destination.clone() });
            Ok(Prepared { output, destination, made: None })
        }
        EventTarget::File(path) => {
            let made = (!path.exists()).then(|| path.clone());
            let mut medium = Files::new(path.clone(), wanted.keep_files);
            medium.open().map_err(|source| EventLogError::File { path: path.clone(), source })?;
            let destination = path.display().to_string();
            let output = Some(Output { medium: Box::new(medium), options, destination: destination.clone() });
            Ok(Prepared { output, destination, made })
        }
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
    pub rings: Vec<Producer<Event>>,
    /// Shows the workers that records go to another log.
    pub opened: Arc<LogsOpened>,
}

/// Starts the log of `config`, if it has one. The rings are for the workers, in order.
///
/// # Errors
/// [`EventLogError`]; a file that cannot be written is an error at the start, not at the first
/// record.
pub fn start(config: &Config, workers: usize, clock: Clock, version: &str) -> Result<Option<Started>, EventLogError> {
    let Some(wanted) = &config.event_log else { return Ok(None) };
    let (producers, rings) = (0..workers).map(|_| ring::channel(wanted.queue as usize)).unzip();
    let options = options_of(wanted);
    let names = names_of(&config.nat);
    let (version, opened) = (version.to_owned(), Arc::new(LogsOpened::default()));
    let seen = Arc::clone(&opened);
    let clocks = move || clock.both();
    let (exporter, destination) = match &wanted.target {
        EventTarget::StandardOutput => {
            let destination = "-".to_owned();
            let (medium, name) = (Stdout, destination.clone());
            let outputs = Outputs { medium, options, rings, names, version, destination: name, opened };
            (Exporter::start(outputs, clocks), destination)
        }
        EventTarget::File(path) => {
            let mut medium = Files::new(path.clone(), wanted.keep_files);
            medium.open().map_err(|source| EventLogError::File { path: path.clone(), source })?;
            let destination = path.display().to_string();
            let name = destination.clone();
            let outputs = Outputs { medium, options, rings, names, version, destination: name, opened };
            (Exporter::start(outputs, clocks), destination)
        }
    };
    let exporter = exporter.map_err(EventLogError::Thread)?;
    let view = EventLogView { destination: Mutex::new(destination), handle: exporter.handle() };
    Ok(Some(Started { exporter, view, rings: producers, opened: seen }))
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
    Names {
        pools,
        realms: settings.realm_names.clone(),
        filters: filters.map(|filters| (generation as u16, Arc::new(filters))).into_iter().collect(),
        formulas: [(generation, nat::deterministic::checksum(settings))].into(),
    }
}

impl Clock {
    /// The current time by both clocks, so that the times of events follow the system's clock,
    /// including steps.
    fn both(&self) -> Clocks {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Clocks { now: self.now(), unix_us: u64::try_from(unix.as_micros()).unwrap_or(u64::MAX) }
    }
}
