//! `natrix bench engine`: the engine alone, in memory, at any number of sessions.
//!
//! Packets are 64-byte Ethernet frames (longer by the IPv6 headers on the side of IPv6
//! subscribers), half UDP and half TCP, half outbound and half inbound, sessions in uniformly
//! random order. Headers are written fresh before each burst, outside the timed part; the timed
//! part is one call of `Shard::process` and one of `Shard::maintain`: everything the engine does.
//! The memory bound is measured in the same run on the same worker, before and after, so that a
//! noisy neighbour moves both.

mod report;
mod settings;
mod worker;

use std::sync::Arc;
use std::sync::Barrier;

use mem::Stock;
use mem::tsc;
use nat::Shared;
use nat::types::WorkerId;
use serde::Serialize;

use crate::events::EventsTo;
use crate::family::Family;
use crate::traffic::BURST;

pub use self::report::BenchError;
pub use self::report::Report;
use self::report::WorkerResult;
use self::report::report;
pub(crate) use self::report::resident_bytes;
use self::settings::CHURN_ROOM;
use self::settings::MAPPINGS_MAX;
pub(crate) use self::settings::settings;
pub(crate) use self::worker::FILLED_ONCE_FROM;
pub(crate) use self::worker::created;
pub(crate) use self::worker::dropped;
pub(crate) use self::worker::removed;
use self::worker::run_worker;

/// Sessions one worker can be asked for.
pub(crate) const SESSIONS_OF_WORKER_MAX: u64 = MAPPINGS_MAX - CHURN_ROOM;
/// Flows in all: what the subscribers' addresses before those of the new flows are enough for, with
/// room for workers that get more of them than others.
const SESSIONS_MAX: u64 = 700_000_000;

/// What the packets do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All sessions exist; packets of random ones.
    Established,
    /// Each packet opens a session, until the tables have as many as asked for.
    New,
    /// 98 % established, 2 % new, and as many expiring.
    Mixed,
}

/// How the pool gives ports out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ports {
    /// One by one.
    #[default]
    Ports,
    /// In blocks of 64, of which each subscriber needs one, half full.
    Blocks,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What the subscribers are.
    pub family: Family,
    /// How ports are given out.
    pub allocation: Ports,
    /// Sessions in all.
    pub sessions: u64,
    /// What the packets do.
    pub mode: Mode,
    /// Workers, each with its share of the sessions, pinned to CPU 0, 1, …
    pub workers: usize,
    /// How long to measure, seconds.
    pub seconds: f64,
    /// Where events go.
    pub events: EventsTo,
    /// Packet filters, all of which let the traffic pass.
    pub filters: u32,
    /// All application-level gateways and port control are enabled. No packet is theirs.
    pub gateways: bool,
}

/// Runs the benchmark. `warn` is called at most once, when all memory is taken and some of it is
/// not on hugepages.
///
/// # Errors
/// [`BenchError`] when memory is short (before any is taken), an option makes no sense, or the
/// engine did not behave.
pub fn run(options: &Options, warn: &(dyn Fn(&str) + Sync)) -> Result<Report, BenchError> {
    check(options, core_affinity::get_core_ids().map_or(1, |cores| cores.len()))?;
    let settings = settings(options);
    let plan = Stock::of_this_machine().plan(crate::needs::needs(options, &settings))?;
    // What is measured is the engine with all its memory: one worker speaks for all.
    let ready = |worker: WorkerId| {
        if worker == WorkerId(0)
            && let Some(warning) = plan.warning(mem::missed_bytes())
        {
            warn(&warning);
        }
    };
    let hz = tsc::frequency_hz(100);
    let shared = Arc::new(Shared::new(settings, options.workers)?);
    let results = run_workers(&vec![*options; options.workers], &shared, &ready, hz);
    Ok(report(options, &shared, &results.into_iter().collect::<Result<Vec<_>, _>>()?, hz))
}

/// Runs all workers at once, each by its own options.
fn run_workers(
    options: &[Options],
    shared: &Arc<Shared>,
    ready: &(dyn Fn(WorkerId) + Sync),
    hz: f64,
) -> Vec<Result<WorkerResult, BenchError>> {
    let barrier = &Barrier::new(options.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = options
            .iter()
            .enumerate()
            .map(|(worker, options)| {
                let worker = WorkerId(worker as u8);
                scope.spawn(move || run_worker(options, shared, worker, barrier, ready, hz))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| BenchError::Worker)?).collect()
    })
}

fn check(options: &Options, cores: usize) -> Result<(), BenchError> {
    let out_of_range = |what, value: String, remedy: String| Err(BenchError::Option { what, value, remedy });
    if options.workers == 0 || options.workers > WorkerId::COUNT_MAX {
        return out_of_range("--workers", options.workers.to_string(), "give 1 to 64".to_owned());
    }
    if options.workers > cores {
        let remedy = format!("give each a CPU of its own: it may run on {cores}");
        return out_of_range("--workers", options.workers.to_string(), remedy);
    }
    if options.sessions < options.workers as u64 * BURST as u64 {
        return out_of_range("--sessions", options.sessions.to_string(), "give at least 64 for each worker".to_owned());
    }
    let most = SESSIONS_OF_WORKER_MAX;
    if options.sessions.div_ceil(options.workers as u64) > most || options.sessions > SESSIONS_MAX {
        let remedy = format!("give at most {most} for each worker and {SESSIONS_MAX} in all");
        return out_of_range("--sessions", options.sessions.to_string(), remedy);
    }
    if !(options.seconds > 0.0 && options.seconds <= 3_600.0) {
        return out_of_range("--seconds", options.seconds.to_string(), "give more than 0 and at most 3600".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nat::Instant;

    use super::worker::WorkerBench;
    use super::*;

    const OPTIONS: Options = Options {
        family: Family::Nat44,
        allocation: Ports::Ports,
        sessions: 256,
        mode: Mode::Established,
        workers: 2,
        seconds: 0.01,
        events: EventsTo::Nowhere,
        filters: 0,
        gateways: false,
    };

    #[test]
    fn a_failed_worker_does_not_block_the_others() {
        for mode in [Mode::Established, Mode::New, Mode::Mixed] {
            let options = Options { mode, ..OPTIONS };
            let shared = Arc::new(Shared::new(settings(&options), options.workers).unwrap());
            // The second one has more flows than its tables have room for.
            let room = u64::from(settings(&options).limits.mappings_max);
            let too_many = Options { sessions: room * 3, ..options };
            let results = run_workers(&[options, too_many], &shared, &|_| {}, tsc::frequency_hz(10));
            assert!(results[0].is_ok(), "{mode:?}");
            // Builds with debug assertions notice it by a panic.
            let failed = matches!(results[1], Err(BenchError::Unexpected { .. } | BenchError::Worker));
            assert!(failed, "{mode:?}");
        }
    }

    #[test]
    fn each_family_has_all_its_packets_translated() {
        for family in [Family::Nat44, Family::Nat64, Family::Dslite, Family::Mixed] {
            for mode in [Mode::Established, Mode::New, Mode::Mixed] {
                for workers in [1, 2] {
                    let options = Options { family, mode, workers, sessions: 1_024, ..OPTIONS };
                    let shared = Arc::new(Shared::new(settings(&options), workers).unwrap());
                    let results = run_workers(&vec![options; workers], &shared, &|_| {}, tsc::frequency_hz(10));
                    for result in results {
                        let result = result.unwrap_or_else(|error| panic!("{family:?} {mode:?}: {error}"));
                        assert!(result.packets > 0 && result.sessions >= 512, "{family:?} {mode:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn workers_get_a_cpu_each_or_the_benchmark_is_refused() {
        assert!(check(&OPTIONS, 2).is_ok());
        let refusal = check(&OPTIONS, 1).unwrap_err().to_string();
        assert_eq!(refusal, "bench engine: --workers is out of range (2); give each a CPU of its own: it may run on 1");
    }

    #[test]
    fn time_passes_while_new_sessions_are_measured() {
        let options = Options { sessions: 4_096, mode: Mode::New, workers: 1, ..OPTIONS };
        let shared = Arc::new(Shared::new(settings(&options), 1).unwrap());
        let mut bench = WorkerBench::new(&options, &shared, WorkerId(0), 1e9).unwrap();
        bench.prepare().unwrap();
        assert_eq!(bench.now(), Instant::ORIGIN);
        assert_eq!(bench.fill(usize::MAX).unwrap(), 4_096);
        assert!(bench.now() > Instant::ORIGIN);
        // A second fill finds all sessions there: it makes none, and says so.
        assert!(matches!(bench.fill(usize::MAX), Err(BenchError::Unexpected { value: 0, .. })));
    }
}
