//! What is reported, and why nothing is.

use mem::NotEnough;
use nat::Shared;
use nat::event::EventCounters;
use serde::Serialize;

use super::Mode;
use super::Options;
use super::Ports;
use crate::events::EventsTo;
use crate::family::Family;
use crate::fill_rates::FillReport;

/// The result, in the fixed fields of the design.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the packets did.
    pub mode: Mode,
    /// What the subscribers were.
    pub family: Family,
    /// How ports were given out.
    pub allocation: Ports,
    /// Sessions in the tables.
    pub sessions: u64,
    /// Workers.
    pub workers: usize,
    /// Packet filters in use.
    pub filters: u32,
    /// Gateways and port control were enabled.
    pub gateways: bool,
    /// Packets in the timed part.
    pub packets: u64,
    /// Million packets a second, all workers.
    pub mpps: f64,
    /// Million packets a second of one worker.
    pub mpps_per_worker: f64,
    /// TSC cycles a packet on its worker.
    pub tsc_cycles_per_packet: f64,
    /// Sessions created a second, all workers.
    pub new_sessions_per_second: f64,
    /// Sessions that had run out and were ended a second, all workers. In the mixed mode about as
    /// many as were created.
    pub ended_sessions_per_second: f64,
    /// Bytes of tables a session, with what was reserved only as far as it was used.
    pub bytes_per_session: f64,
    /// Resident memory of the process.
    pub resident_bytes: u64,
    /// Million random read-modify-writes of two lines a second, one worker.
    pub memory_bound_mpps: f64,
    /// `mpps_per_worker / memory_bound_mpps`.
    pub fraction_of_memory_bound: f64,
    /// Median burst time per burst of 64 packets, nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile.
    pub p999_ns: f64,
    /// Longest burst.
    pub max_ns: f64,
    /// In the mode `new` with one worker: how the rate changed while the table filled, and when the
    /// pool ran out of ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<FillReport>,
    /// Records of events that found room; where events go anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_recorded: Option<u64>,
    /// Events without a record, because the reader did not keep up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_lost: Option<u64>,
}

/// Why the benchmark could not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine could not be built.
    #[error(transparent)]
    Build(#[from] nat::BuildError),
    /// Memory for the benchmark's own data.
    #[error("benchmark: {0}")]
    Memory(#[from] mem::ArenaError),
    /// Not everything fits this machine's memory. Nothing has been taken.
    #[error("bench engine: {0}; ask for fewer sessions or workers, or add memory")]
    NotEnough(#[from] NotEnough),
    /// A number makes no sense.
    #[error("bench engine: {what} is out of range ({value}); {remedy}")]
    Option {
        /// Which.
        what: &'static str,
        /// Value seen.
        value: String,
        /// What to do.
        remedy: String,
    },
    /// The engine did not do what the benchmark needs; the figures would mean nothing.
    #[error("bench engine: {what} ({value}); this is a fault of Natrix, please report it")]
    Unexpected {
        /// What.
        what: &'static str,
        /// Value seen.
        value: u64,
    },
    /// A worker thread died.
    #[error("bench engine: a worker panicked")]
    Worker,
}

/// What one worker measured.
pub(super) struct WorkerResult {
    pub(super) ended: u64,
    pub(super) packets: u64,
    pub(super) cycles: u64,
    pub(super) created: u64,
    pub(super) sessions: u64,
    pub(super) bytes: u64,
    /// Of the whole process, while the tables of all workers are there.
    pub(super) resident_bytes: u64,
    pub(super) bound_cycles_per_packet: f64,
    pub(super) bursts: hdrhistogram::Histogram<u64>,
    pub(super) fill: Option<FillReport>,
    pub(super) events: EventCounters,
}

pub(super) fn report(options: &Options, shared: &Shared, results: &[WorkerResult], hz: f64) -> Report {
    let sum = |of: fn(&WorkerResult) -> u64| results.iter().map(of).sum::<u64>();
    let packets = sum(|result| result.packets);
    let sessions = sum(|result| result.sessions);
    // Each worker's rate by its own timed cycles; they ran at the same time.
    let rate = |of: fn(&WorkerResult) -> u64| {
        results.iter().map(|result| of(result) as f64 / (result.cycles as f64 / hz)).sum::<f64>()
    };
    let mpps = rate(|result| result.packets) / 1e6;
    let bound_cycles = results.iter().map(|result| result.bound_cycles_per_packet).sum::<f64>() / results.len() as f64;
    let memory_bound_mpps = hz / bound_cycles / 1e6;
    let mut bursts = hdrhistogram::Histogram::<u64>::new(3).unwrap_or_else(|_| unreachable!("3 digits are valid"));
    for result in results {
        let merged = bursts.add(&result.bursts);
        debug_assert!(merged.is_ok(), "histograms resize themselves");
    }
    let nanoseconds = |quantile: f64| bursts.value_at_quantile(quantile) as f64 / hz * 1e9;
    let mpps_per_worker = mpps / results.len() as f64;
    Report {
        mode: options.mode,
        family: options.family,
        allocation: options.allocation,
        sessions,
        workers: results.len(),
        filters: options.filters,
        gateways: options.gateways,
        packets,
        mpps,
        mpps_per_worker,
        tsc_cycles_per_packet: sum(|result| result.cycles) as f64 / packets as f64,
        new_sessions_per_second: rate(|result| result.created),
        ended_sessions_per_second: rate(|result| result.ended),
        bytes_per_session: (sum(|result| result.bytes) as f64 + shared.bytes() as f64) / sessions as f64,
        resident_bytes: results.iter().map(|result| result.resident_bytes).max().unwrap_or(0),
        memory_bound_mpps,
        fraction_of_memory_bound: mpps_per_worker / memory_bound_mpps,
        p50_ns: nanoseconds(0.5),
        p99_ns: nanoseconds(0.99),
        p999_ns: nanoseconds(0.999),
        max_ns: bursts.max() as f64 / hz * 1e9,
        fill: results.iter().find_map(|result| result.fill.clone()),
        events_recorded: (options.events != EventsTo::Nowhere).then(|| sum(|result| result.events.recorded)),
        events_lost: (options.events != EventsTo::Nowhere).then(|| sum(|result| result.events.lost)),
    }
}

/// Resident memory with its hugepages, which the kernel counts apart.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.trim().strip_suffix("kB"))
            .and_then(|number| number.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    (kib("VmRSS:") + kib("HugetlbPages:")) * 1_024
}
