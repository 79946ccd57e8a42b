//! The reader of a worker's events during a benchmark, on another CPU than the worker.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant as Started;
use std::time::SystemTime;

use export::Clocks;
use export::Exporter;
use export::Files;
use export::Names;
use export::Output;
use export::Outputs;
use export::Sync;
use export::WriterOptions;
use export::store::Moment;
use export::store::StoreOptions;
use export::store::StoreWriter;
use mem::ring;
use mem::ring::Producer;
use nat::Instant;
use nat::event::Record;
use serde::Serialize;

/// Records that may wait, as by default in a configuration.
pub(crate) const QUEUE: usize = 65_536;
/// Records taken at a time.
const BATCH: usize = 1_024;

/// Where events go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventsTo {
    /// There are none.
    #[default]
    Nowhere,
    /// A thread takes them and forgets them: what recording itself costs.
    Discarded,
    /// A thread makes lines of them and writes these to `/dev/null`: what one exporter can do.
    Written,
    /// A thread writes them to a store in a folder for temporary files, which is removed.
    Stored,
}

/// A thread that takes events until it is dropped.
#[derive(Debug)]
pub(crate) enum Taker {
    Discards { stop: Arc<AtomicBool>, thread: Option<JoinHandle<()>> },
    Writes { _exporter: Exporter },
    Stores { exporter: Option<Exporter>, folder: PathBuf },
}

/// Stores that this process has made.
static STORES: AtomicUsize = AtomicUsize::new(0);

impl Taker {
    /// Starts one on the CPU with this number among those there are; None when nobody is to take
    /// events, or no thread is to be had.
    pub(crate) fn start(to: EventsTo, cpu: usize) -> Option<(Taker, Producer<Record>)> {
        let (producer, mut consumer) = ring::channel(QUEUE);
        let pin = move || {
            let cpus = core_affinity::get_core_ids().unwrap_or_default();
            if let Some(core) = cpus.get(cpu.checked_rem(cpus.len()).unwrap_or(0)) {
                core_affinity::set_for_current(*core);
            }
        };
        match to {
            EventsTo::Nowhere => None,
            EventsTo::Discarded => {
                let stop = Arc::new(AtomicBool::new(false));
                let stopped = Arc::clone(&stop);
                let take = move || {
                    pin();
                    while !stopped.load(Ordering::Relaxed) {
                        let taken = consumer.pop_burst(BATCH, |event| {
                            core::hint::black_box(event);
                        });
                        if taken == 0 {
                            thread::yield_now();
                        }
                    }
                };
                let thread = thread::Builder::new().spawn(take).ok()?;
                Some((Taker::Discards { stop, thread: Some(thread) }, producer))
            }
            EventsTo::Written => {
                let options = WriterOptions { rotate_bytes: 0, rotate_us: 0, sync: Sync::Never };
                let medium = Box::new(Files::new(PathBuf::from("/dev/null"), 0));
                let lines = Some(Output { medium, options, destination: String::new() });
                let (rings, names) = (vec![consumer], Names::default());
                let (version, opened) = (String::new(), Arc::default());
                let outputs = Outputs { lines, store: None, rings, names, version, opened };
                // The exporter's thread inherits the CPU of the thread that starts it.
                let start = move || {
                    pin();
                    Exporter::start(outputs, || Clocks { now: Instant::ORIGIN, unix_us: 0 })
                };
                let exporter = thread::Builder::new().spawn(start).ok()?.join().ok()?.ok()?;
                Some((Taker::Writes { _exporter: exporter }, producer))
            }
            EventsTo::Stored => {
                let number = STORES.fetch_add(1, Ordering::Relaxed);
                let folder = std::env::temp_dir().join(format!("natrix-bench-{}-{number}", std::process::id()));
                let begin = Started::now();
                let unix_us = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64);
                let moment = Moment { monotonic_us: 0, unix_us };
                let store = StoreWriter::open(&folder, StoreOptions::default(), moment).ok()?;
                let (producer, consumer) = store.create_rings(1, QUEUE).ok()?.pop()?;
                let (rings, names) = (vec![consumer], Names::default());
                let (version, opened) = (String::new(), Arc::default());
                let outputs = Outputs { lines: None, store: Some(store), rings, names, version, opened };
                let clocks = move || {
                    let elapsed_us = begin.elapsed().as_micros() as u64;
                    Clocks { now: Instant::from_micros(elapsed_us), unix_us: unix_us + elapsed_us }
                };
                let start = move || {
                    pin();
                    Exporter::start(outputs, clocks)
                };
                let exporter = thread::Builder::new().spawn(start).ok()?.join().ok()?.ok()?;
                Some((Taker::Stores { exporter: Some(exporter), folder }, producer))
            }
        }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        match self {
            Taker::Discards { stop, thread } => {
                stop.store(true, Ordering::Relaxed);
                if let Some(thread) = thread.take() {
                    // A panic there was reported by its own message.
                    let _ = thread.join();
                }
            }
            Taker::Writes { .. } => {}
            Taker::Stores { exporter, folder } => {
                drop(exporter.take());
                // What stays is in a folder for temporary files.
                let _ = std::fs::remove_dir_all(folder);
            }
        }
    }
}
