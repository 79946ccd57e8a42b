//! `natrix bench engine`: the engine alone, in memory, at any number of sessions.
//!
//! Packets are 64-byte Ethernet frames (longer by the IPv6 headers on the side of IPv6
//! subscribers), half UDP and half TCP, half outbound and half inbound, sessions in uniformly
//! random order. Headers are written fresh before each burst, outside the timed part; the timed
//! part is one call of `Shard::process` and one of `Shard::maintain`: everything the engine does.
//! The memory bound is measured in the same run on the same worker, before and after, so that a
//! noisy neighbour moves both.

use core::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::Barrier;

use mem::Arena;
use mem::NotEnough;
use mem::Stock;
use mem::tsc;
use nat::Counters;
use nat::Instant;
use nat::Outcome;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::blocks::BlockSize;
use nat::event::BackPressure;
use nat::event::EventCounters;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Gateway;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::PortControl;
use nat::types::AddressIndex;
use nat::types::MappingIndex;
use nat::types::Prefix;
use nat::types::Side;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::burst_times::Begun;
use crate::events::EventsTo;
use crate::events::QUEUE;
use crate::events::Taker;
use crate::family::Family;
use crate::family::Frames;
use crate::fill_rates::FillRates;
use crate::fill_rates::FillReport;
use crate::memory_bound::MemoryBound;
use crate::traffic;
use crate::traffic::ACK;
use crate::traffic::BURST;
use crate::traffic::Drawn;
use crate::traffic::Flow;
use crate::traffic::MAPPINGS_PER_SUBSCRIBER;
use crate::traffic::Nowhere;
use crate::traffic::PORTS_PER_ADDRESS;
use crate::traffic::SYN;
use crate::traffic::flows;

/// In the mixed mode: how long a new flow lives.
const CHURN_LIFETIME: nat::Duration = nat::Duration::from_millis(10);
/// In the mixed mode: subscribers the new flows come from.
const CHURN_SUBSCRIBERS: u32 = 4_096;
/// In the mixed mode: room for new flows that have run out and are not swept yet, beyond a quarter
/// of all.
const CHURN_ROOM: u64 = 262_144;

/// Blocks one subscriber may have.
const BLOCKS_PER_SUBSCRIBER_MAX: u16 = 64;
/// First port of the pool.
const FIRST_PORT: u16 = 1_024;
/// In the mode `new`: of so many ports that the sessions need there is one more. With less,
/// addresses that got a few more subscribers than others would run full before all sessions are
/// there.
const TIGHT_POOL_ROOM: u64 = 256;
/// In the mode `new`: subscribers of an address that open the flows that take its last ports.
const LAST_SUBSCRIBERS: usize = 16;
/// Their first internal port.
const LAST_INTERNAL_PORT: u64 = 30_000;

/// So long the engine works before it is measured.
const WARM_UP_SECONDS: f64 = 0.5;
/// Of the mixed mode: how often to look whether as many sessions end as are made, and for how long
/// at most.
const ENDING_LOOK_SECONDS: f64 = 0.1;
const ENDING_SECONDS_MAX: f64 = 30.0;
/// A reader of events that takes none for so long is not waited for.
const READER_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// In the mode `new`: smaller tables are filled again and again, each time with a new shard.
pub(crate) const FILLED_ONCE_FROM: u64 = 1_000_000;

/// Mappings one shard can have.
const MAPPINGS_MAX: u64 = MappingIndex::COUNT_MAX as u64;
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

/// Ports that may rest beside so many sessions: as many as by default in a configuration.
fn held_ports(sessions: u64) -> u32 {
    Limits::held_ports_for(u32::try_from(sessions).unwrap_or(u32::MAX))
}

/// The settings of an engine that is to hold these sessions.
pub(crate) fn settings(options: &Options) -> Settings {
    let per_protocol = options.sessions.div_ceil(2);
    // Room for the sessions and for those that the mixed mode opens while as many run out.
    let room = if options.mode == Mode::Mixed { per_protocol + per_protocol / 4 + CHURN_ROOM } else { per_protocol };
    // And for the ports of those that have run out, which rest.
    let workers = options.workers as u64;
    let resting = if options.mode == Mode::Mixed {
        workers * u64::from(held_ports(options.sessions.div_ceil(workers)))
    } else {
        0
    };
    // When all sessions are new, hardly more ports than they need, so that they run short.
    let (addresses, ports) = match options.mode {
        Mode::New if options.allocation == Ports::Ports => {
            let needed = room + room / TIGHT_POOL_ROOM + 64;
            let addresses = needed.div_ceil(PORTS_PER_ADDRESS);
            (addresses, needed.div_ceil(addresses))
        }
        _ => {
            // A subscriber has half as many flows of a protocol as a block has ports.
            let factor = if options.allocation == Ports::Blocks { 2 } else { 1 };
            (((room + resting) * factor).div_ceil(PORTS_PER_ADDRESS).max(1) + 1, PORTS_PER_ADDRESS)
        }
    };
    let per_worker = options.sessions.div_ceil(options.workers as u64);
    let mappings_max = match options.mode {
        Mode::Mixed => per_worker + per_worker / 4 + CHURN_ROOM,
        // One worker goes on to the last port.
        Mode::New if options.workers == 1 && options.allocation == Ports::Ports => addresses * ports * 2,
        _ => per_worker + 64,
    };
    let mut settings = Settings {
        interfaces: traffic::interfaces(),
        routes: traffic::routes(),
        pools: vec![Pool {
            name: "bench".to_owned(),
            addresses: traffic::addresses(Ipv4Addr::new(203, 0, 0, 1), addresses),
            port_min: FIRST_PORT,
            port_max: FIRST_PORT + (ports - 1) as u16,
            allocation: match options.allocation {
                Ports::Ports => Allocation::Ports,
                Ports::Blocks => Allocation::Blocks(Blocks {
                    size: BlockSize::MIN,
                    // The mixed mode opens all new flows from few subscribers.
                    per_subscriber_max: BLOCKS_PER_SUBSCRIBER_MAX,
                    idle: nat::Duration::from_secs(120),
                }),
            },
            ..Pool::default()
        }],
        limits: Limits {
            mappings_max: mappings_max.min(MAPPINGS_MAX) as u32,
            extra_sessions_max: 1_024,
            subscribers_max: (per_worker / MAPPINGS_PER_SUBSCRIBER) as u32 + CHURN_SUBSCRIBERS + 64,
            held_ports_max: held_ports(per_worker),
            ..Limits::default()
        },
        filters: filters(options.filters),
        ..Settings::default()
    };
    // What is measured is how fast events can be recorded and taken, not how refusals are.
    settings.events.back_pressure = BackPressure::Drop;
    // A sweep must not end what the benchmark calls established.
    settings.timeouts.udp = nat::Duration::from_secs(86_400);
    settings.timeouts.tcp_opening = match options.mode {
        // In the mixed mode the new flows are SYNs that nobody answers, and these run out soon.
        Mode::Mixed => CHURN_LIFETIME,
        _ => nat::Duration::from_secs(86_400),
    };
    if options.gateways {
        settings.gateways = (0..alg::ALGS.len()).map(|id| Gateway::new(alg::AlgId(id as u8))).collect();
        settings.port_control = PortControl { pcp: true, nat_pmp: true, ..settings.port_control };
    }
    options.family.extend(&mut settings);
    settings
}

/// Filters as an operator has them: many that deny services and hosts nobody here talks to, and
/// every fourth one permits what subscribers do.
fn filters(count: u32) -> Vec<FilterRule> {
    let prefix = |address: u32, length: u8| Prefix::new(Ipv4Addr::from_bits(address), length).unwrap_or(Prefix::ALL);
    let filter = |i: u32| {
        // From 198.51.0.0 on, where none of the servers is; subscribers are in 10.0.0.0/8.
        let host = prefix(0xc633_0000 + i / 4, 32);
        let (matches, action) = match i % 4 {
            0 => (Match { source: prefix(0x0a00_0000 + i * 4, 28), ..Match::ALL }, FilterAction::Permit),
            1 => (Match { destination: host, ..Match::ALL }, FilterAction::Deny),
            2 => (
                Match {
                    protocol: Some(6),
                    destination: host,
                    destination_ports: PortRange { first: 137, last: 139 },
                    ..Match::ALL
                },
                FilterAction::Deny,
            ),
            _ => (Match { source: prefix(0x6440_0000 + i, 32), destination: host, ..Match::ALL }, FilterAction::Deny),
        };
        FilterRule { matches, action, out: true, back: true, log: false }
    };
    (0..count).map(filter).collect()
}

/// What one worker measured.
struct WorkerResult {
    ended: u64,
    packets: u64,
    cycles: u64,
    created: u64,
    sessions: u64,
    bytes: u64,
    /// Of the whole process, while the tables of all workers are there.
    resident_bytes: u64,
    bound_cycles_per_packet: f64,
    bursts: hdrhistogram::Histogram<u64>,
    fill: Option<FillReport>,
    events: EventCounters,
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

fn report(options: &Options, shared: &Shared, results: &[WorkerResult], hz: f64) -> Report {
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

/// One worker's bench: its shard, its flows and its packet buffers.
struct WorkerBench {
    options: Options,
    worker: WorkerId,
    shared: Arc<Shared>,
    shard: Shard,
    taker: Option<Taker>,
    /// Of shards that were full and are gone.
    events: EventCounters,
    bound: MemoryBound,
    flows: Arena<Flow>,
    drawn: Drawn,
    frames: Frames,
    random: SmallRng,
    /// Internal addresses of the mixed mode's new flows.
    churn: Vec<u32>,
    churned: u64,
    /// While true the engine's clock stands still.
    frozen: bool,
    /// The engine's clock, in TSC cycles: the time the engine itself has worked.
    clock: u64,
    cycles: u64,
    packets: u64,
    /// Sessions made in the timed part.
    ended: u64,
    created: u64,
    bursts: hdrhistogram::Histogram<u64>,
    fill: FillRates,
    /// Sessions opened before those that take the last ports.
    sessions: u64,
    hz: f64,
}

fn run_worker(
    options: &Options,
    shared: &Arc<Shared>,
    worker: WorkerId,
    barrier: &Barrier,
    ready: &(dyn Fn(WorkerId) + Sync),
    hz: f64,
) -> Result<WorkerResult, BenchError> {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.get(worker.index()).copied()) {
        core_affinity::set_for_current(core);
    }
    // A worker that failed meets the others all the same, or they would wait for it for ever.
    let mut bench = WorkerBench::new(options, shared, worker, hz);
    barrier.wait();
    ready(worker);
    barrier.wait();
    let bound_before = bench.as_mut().map_or(0.0, |bench| bench.bound.cycles_per_packet(0.5));
    barrier.wait();
    let prepared = bench.and_then(|bench| bench.stage(WorkerBench::prepare));
    barrier.wait();
    let measured = prepared.and_then(|bench| bench.stage(WorkerBench::measure));
    barrier.wait();
    let mut bench = measured?;
    let bound_after = bench.bound.cycles_per_packet(0.5);
    Ok(bench.result((bound_before + bound_after) / 2.0))
}

/// Ports of the pool, UDP and TCP together.
fn pool_ports(shared: &Shared) -> u64 {
    spaces(shared).map(|(address, protocol)| u64::from(shared.ports_available(address, protocol))).sum()
}

/// Each address of the pool with each of the two protocols.
fn spaces(shared: &Shared) -> impl Iterator<Item = (AddressIndex, Protocol)> {
    let addresses = (0..shared.address_count() as u32).map(AddressIndex);
    addresses.flat_map(|address| [(address, Protocol::Udp), (address, Protocol::Tcp)])
}

/// Mappings made so far.
fn ended(counters: &Counters) -> u64 {
    counters.mappings_removed.iter().sum()
}

pub(crate) fn created(counters: &Counters) -> u64 {
    counters.mappings_created.iter().sum()
}

/// Mappings ended so far.
pub(crate) fn removed(counters: &Counters) -> u64 {
    counters.mappings_removed.iter().sum()
}

/// Packets dropped so far.
pub(crate) fn dropped(counters: &Counters) -> u64 {
    nat::Verdict::ALL
        .iter()
        .filter(|verdict| verdict.kind() == nat::verdict::VerdictKind::Dropped)
        .map(|verdict| counters.of(*verdict))
        .sum()
}

/// Addresses of this worker that have no other flows.
fn churn_subscribers(shared: &Shared, family: Family, worker: WorkerId) -> Vec<u32> {
    let first = u32::from(Ipv4Addr::new(10, 192, 0, 1));
    (first..).filter(|address| family.worker_of(shared, *address) == worker).take(CHURN_SUBSCRIBERS as usize).collect()
}

/// Has somebody take the shard's events, on a CPU that is no worker's as far as there are so many.
fn attach(options: &Options, shard: &mut Shard, worker: WorkerId) -> Option<Taker> {
    let (taker, ring) = Taker::start(options.events, options.workers + worker.index())?;
    shard.set_events(ring);
    Some(taker)
}

impl WorkerBench {
    fn new(options: &Options, shared: &Arc<Shared>, worker: WorkerId, hz: f64) -> Result<WorkerBench, BenchError> {
        let mut shard = Shard::new(Arc::clone(shared), worker, [1, 2, 3, u64::from(worker.0)])?;
        let taker = attach(options, &mut shard, worker);
        let region = (shard.bytes() + shared.bytes() / options.workers).next_multiple_of(64);
        Ok(WorkerBench {
            options: *options,
            worker,
            shared: Arc::clone(shared),
            shard,
            taker,
            events: EventCounters::default(),
            flows: flows(shared, options.family, worker, options.sessions / options.workers as u64)?,
            bound: MemoryBound::new(region)?,
            drawn: Drawn::new(),
            frames: Frames::new(options.family),
            random: SmallRng::seed_from_u64(0x6e61_7472_6978 + u64::from(worker.0)),
            churn: churn_subscribers(shared, options.family, worker),
            churned: 0,
            frozen: false,
            clock: 0,
            cycles: 0,
            packets: 0,
            created: 0,
            ended: 0,
            bursts: hdrhistogram::Histogram::new(3).unwrap_or_else(|_| unreachable!("3 digits are valid")),
            fill: FillRates::new(),
            sessions: 0,
            hz,
        })
    }

    /// One stage of the work. A panic in it is an error like others, so that nobody waits for this
    /// worker.
    fn stage(mut self, work: fn(&mut WorkerBench) -> Result<(), BenchError>) -> Result<WorkerBench, BenchError> {
        let done = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| work(&mut self)));
        done.map_err(|_| BenchError::Worker)??;
        Ok(self)
    }

    /// What is done before the timed part.
    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.options.mode == Mode::New {
            return Ok(());
        }
        // No flow may run out before it is answered.
        self.frozen = true;
        self.fill(usize::MAX)?;
        self.answer();
        self.frozen = false;
        self.run_for(WARM_UP_SECONDS);
        if self.options.mode == Mode::Mixed {
            self.run_until_as_many_end();
        }
        self.reset();
        Ok(())
    }

    /// Goes on until sessions end about as fast as they are made: the sweep has come to where the
    /// short ones are.
    fn run_until_as_many_end(&mut self) {
        let until = self.cycles + (ENDING_SECONDS_MAX * self.hz) as u64;
        while self.cycles < until {
            let counters = self.shard.counters();
            let (created_before, ended_before) = (created(counters), ended(counters));
            self.run_for(ENDING_LOOK_SECONDS);
            let counters = self.shard.counters();
            if (ended(counters) - ended_before) * 2 > created(counters) - created_before {
                return;
            }
        }
    }

    /// The timed part.
    fn measure(&mut self) -> Result<(), BenchError> {
        if self.options.mode == Mode::New {
            return self.measure_fills();
        }
        let (before, ended_before) = (created(self.shard.counters()), ended(self.shard.counters()));
        self.run_for(self.options.seconds);
        let counters = self.shard.counters();
        let dropped = dropped(counters);
        if dropped > 0 {
            return Err(BenchError::Unexpected { what: "packets were dropped", value: dropped });
        }
        self.created = created(counters) - before;
        self.ended = ended(counters) - ended_before;
        self.sessions = u64::from(self.shard.view().mappings_len());
        Ok(())
    }

    /// The timed part of the mode `new`.
    fn measure_fills(&mut self) -> Result<(), BenchError> {
        let last_percent_from =
            if self.to_the_last_port() { (pool_ports(&self.shared) / 100 * 99) as usize } else { usize::MAX };
        loop {
            self.created += self.fill(last_percent_from)?;
            if self.to_the_last_port() {
                self.fill_to_the_last_port(last_percent_from)?;
            }
            // A small table is filled in no time: begin anew until the measurement is long enough.
            let is_long_enough = self.cycles as f64 >= self.options.seconds * self.hz;
            if is_long_enough || self.flows.len() as u64 >= FILLED_ONCE_FROM {
                return Ok(());
            }
            self.refill()?;
        }
    }

    /// Whether a fill goes on to the last port. Where workers share the pool, a worker cannot see
    /// when it is nearly full.
    fn to_the_last_port(&self) -> bool {
        self.options.mode == Mode::New
            && self.options.allocation == Ports::Ports
            && self.options.workers == 1
            && pool_ports(&self.shared) <= MAPPINGS_MAX
    }

    /// Builds a new shard in place of the full one, outside the timed part.
    fn refill(&mut self) -> Result<(), BenchError> {
        // Give the ports back: a long time passes, and the sweep ends everything.
        let mut sink = Nowhere::default();
        let later = Instant::from_micros(200_000_000_000);
        for round in 0..u64::from(u32::MAX) {
            if self.shard.is_empty() {
                break;
            }
            self.shard.maintain(Instant::from_micros(later.as_micros() + round * 1_000_000), &mut sink);
        }
        self.events = self.all_events();
        self.shard = Shard::new(Arc::clone(&self.shared), self.worker, [self.random.random(), 2, 3, 4])?;
        self.taker = attach(&self.options, &mut self.shard, self.worker);
        self.clock = 0;
        Ok(())
    }

    /// Of all shards so far.
    fn all_events(&self) -> EventCounters {
        let now = self.shard.event_counters();
        EventCounters { recorded: self.events.recorded + now.recorded, lost: self.events.lost + now.lost }
    }

    /// The engine's clock.
    fn now(&self) -> Instant {
        Instant::from_micros((self.clock as f64 / self.hz * 1e6) as u64)
    }

    fn reset(&mut self) {
        self.cycles = 0;
        self.packets = 0;
        self.bursts.reset();
    }

    fn result(self, bound_cycles_per_packet: f64) -> WorkerResult {
        let fill = self.to_the_last_port().then(|| self.fill.report(pool_ports(&self.shared), self.hz));
        let events = self.all_events();
        // Not part of what the engine needs resident.
        drop(self.bound);
        WorkerResult {
            events,
            packets: self.packets,
            cycles: self.cycles,
            created: self.created,
            ended: self.ended,
            sessions: self.sessions,
            // Some of it came with the sessions.
            bytes: self.shard.bytes() as u64,
            resident_bytes: resident_bytes(),
            bound_cycles_per_packet,
            bursts: self.bursts,
            fill,
        }
    }

    /// Opens every flow once; reads the external endpoints from the translated packets. Bursts from
    /// number `last_percent_from` on count as such. Returns how many sessions that made: one for
    /// each flow.
    fn fill(&mut self, last_percent_from: usize) -> Result<u64, BenchError> {
        let before = created(self.shard.counters());
        let mut index = 0;
        while index < self.flows.len() {
            let count = BURST.min(self.flows.len() - index);
            for slot in 0..count {
                let flow = self.flows[index + slot];
                self.frames.write_outbound(slot, &flow, SYN);
            }
            let cycles = self.open(count);
            self.fill.record(index, self.flows.len(), count, cycles);
            if index >= last_percent_from {
                self.fill.record_last_percent(count, cycles);
            }
            for slot in 0..count {
                self.frames.teach(slot, &mut self.flows[index + slot]);
            }
            index += count;
        }
        self.sessions = u64::from(self.shard.view().mappings_len());
        let made = created(self.shard.counters()) - before;
        if made != self.flows.len() as u64 || self.sessions != made {
            return Err(BenchError::Unexpected {
                what: "not every first packet made a session that is still there",
                value: made,
            });
        }
        Ok(made)
    }

    /// Processes a burst of first packets. Returns the cycles that took, less those in which the
    /// thread was off its core.
    fn open(&mut self, count: usize) -> f64 {
        self.await_reader();
        let begun = Begun::now();
        let before = self.cycles;
        self.process(count, |_| Side::Inside);
        begun.own_cycles_of(self.cycles - before, self.hz)
    }

    /// Waits until the reader of events has caught up: what is measured is what records cost, not a
    /// full queue. A reader that takes nothing for a second is not waited for.
    fn await_reader(&self) {
        if self.shard.events_waiting() < QUEUE / 2 {
            return;
        }
        let begun = std::time::Instant::now();
        while self.shard.events_waiting() > QUEUE / 8 && begun.elapsed() < READER_WAIT_MAX {
            std::thread::yield_now();
        }
    }

    /// After [`WorkerBench::fill`]: the subscribers open flows until not a port of the pool is
    /// free. These count nowhere but in the rate of the last hundredth.
    fn fill_to_the_last_port(&mut self, last_percent_from: usize) -> Result<(), BenchError> {
        let counted = (self.cycles, self.packets, self.bursts.clone());
        let last = self.last_flows();
        for (number, burst) in last.chunks(BURST).enumerate() {
            for (slot, flow) in burst.iter().enumerate() {
                self.frames.write_outbound(slot, flow, SYN);
            }
            let cycles = self.open(burst.len());
            if self.flows.len() + number * BURST >= last_percent_from {
                self.fill.record_last_percent(burst.len(), cycles);
            }
        }
        (self.cycles, self.packets, self.bursts) = counted;
        let free = |(address, protocol)| {
            let shared = self.shard.shared();
            u64::from(shared.ports_available(address, protocol) - shared.ports_used(address, protocol))
        };
        match spaces(self.shard.shared()).map(free).sum() {
            0 => Ok(()),
            value => Err(BenchError::Unexpected { what: "the pool is not full", value }),
        }
    }

    /// Flows for all ports still free, of subscribers paired with their addresses, shuffled.
    fn last_flows(&mut self) -> Vec<Flow> {
        let shared = Arc::clone(self.shard.shared());
        let mut subscribers = vec![Vec::with_capacity(LAST_SUBSCRIBERS); shared.address_count()];
        let mut missing = subscribers.len() * LAST_SUBSCRIBERS;
        for flow in self.flows.iter() {
            let address = shared.address_index(flow.external_address.into());
            let Some(known) = address.and_then(|address| subscribers.get_mut(address.index())) else { continue };
            if known.len() < LAST_SUBSCRIBERS {
                known.push(flow.internal_address);
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        let mut last = Vec::new();
        for (address, protocol) in spaces(&shared) {
            let free = shared.ports_available(address, protocol) - shared.ports_used(address, protocol);
            let known = subscribers.get(address.index()).map(Vec::as_slice).unwrap_or_default();
            for (number, subscriber) in (0..u64::from(free)).zip(known.iter().cycle()) {
                let port = LAST_INTERNAL_PORT + number;
                last.push(Flow::new(protocol == Protocol::Tcp, *subscriber, port as u16));
            }
        }
        for i in (1..last.len()).rev() {
            last.swap(i, self.random.random_range(0..=i));
        }
        last
    }

    /// The servers answer every TCP flow, which establishes it.
    fn answer(&mut self) {
        let mut index = 0;
        while index < self.flows.len() {
            let count = BURST.min(self.flows.len() - index);
            for slot in 0..count {
                let flow = self.flows[index + slot];
                self.frames.write_inbound(slot, &flow, SYN | ACK);
            }
            self.process(count, |_| Side::Outside);
            index += count;
        }
    }

    fn run_for(&mut self, seconds: f64) {
        let mode = self.options.mode;
        let until = self.cycles + (seconds * self.hz) as u64;
        while self.cycles < until {
            for slot in 0..BURST {
                let flow = self.drawn.next(&self.flows, &mut self.random);
                if mode == Mode::Mixed && slot % 2 == 0 && self.random.random_ratio(4, 100) {
                    self.write_new_flow(slot);
                    continue;
                }
                if slot % 2 == 0 {
                    self.frames.write_outbound(slot, &flow, ACK);
                } else {
                    self.frames.write_inbound(slot, &flow, ACK);
                }
            }
            self.process(BURST, |slot| if slot % 2 == 0 { Side::Inside } else { Side::Outside });
        }
    }

    /// Writes the SYN of a flow that does not exist: half of all packets are outbound, and 4 % of
    /// those are new.
    fn write_new_flow(&mut self, slot: usize) {
        let serial = self.churned;
        self.churned += 1;
        let count = self.churn.len() as u64;
        let port = (1_024 + serial / count % 60_000) as u16;
        let flow = Flow::new(true, self.churn[(serial % count) as usize], port);
        self.frames.write_outbound(slot, &flow, SYN);
    }

    /// The timed part.
    fn process(&mut self, count: usize, side: impl Fn(usize) -> Side) {
        let now = self.now();
        let mut sink = Nowhere::default();
        let mut packets = self.frames.packets(side);
        let begin = tsc::read();
        self.shard.process(now, &mut packets[..count], &mut sink);
        self.shard.maintain(now, &mut sink);
        let cycles = tsc::read() - begin;
        debug_assert!(packets[..count].iter().all(|packet| packet.outcome != Outcome::Done), "all packets leave");
        self.cycles += cycles;
        if !self.frozen {
            self.clock += cycles;
        }
        self.packets += count as u64;
        let recorded = self.bursts.record(cycles);
        debug_assert!(recorded.is_ok(), "the histogram grows by itself");
    }
}

#[cfg(test)]
mod tests {
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
    fn nobody_waits_for_ever_for_a_worker_that_fails() {
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
