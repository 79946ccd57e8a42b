//! `natrix bench engine`: the engine alone, in memory, at any number of sessions.
//!
//! Packets are 64-byte Ethernet frames, half UDP and half TCP, half outbound and half inbound, sessions in
//! uniformly random order. Headers are written fresh before each burst, outside the timed part; the timed
//! part is one call of `Shard::process` and one of `Shard::maintain`: everything the engine does. The memory
//! bound is measured in the same run on the same worker, before and after, so that a noisy neighbour moves
//! both.

use core::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::Barrier;

use mem::Arena;
use mem::Need;
use mem::NotEnough;
use mem::Stock;
use nat::Counters;
use nat::Instant;
use nat::Outcome;
use nat::Packet;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::packet::Stage;
use nat::settings::Filtering;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Route;
use nat::types::InterfaceId;
use nat::types::MappingIndex;
use nat::types::Prefix;
use nat::types::Side;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::memory_bound;
use mem::tsc;

/// Packets in a burst.
const BURST: usize = 64;
/// Flows drawn at once, as many as 64 bursts need. Reading a flow from the list before each packet would leave the core's
/// caches of pages full of the list's, which no real traffic does: packets come in rings.
const DRAWN: usize = 64 * BURST;
/// Bytes of a frame behind its Ethernet header: a 64-byte frame without its check sequence has 60, of which 14 are link header.
const PACKET_BYTES: usize = 46;
/// Ports one external address gives to each protocol in the benchmark.
const PORTS_PER_ADDRESS: u64 = 64_512;
/// Mappings of one subscriber, of both protocols together.
const MAPPINGS_PER_SUBSCRIBER: u64 = 64;

/// In the mixed mode: how long a new flow lives.
const CHURN_LIFETIME: nat::Duration = nat::Duration::from_millis(10);
/// In the mixed mode: subscribers the new flows come from.
const CHURN_SUBSCRIBERS: u32 = 4_096;
/// In the mixed mode: room for new flows that have run out and are not swept yet, beyond a quarter of all.
const CHURN_ROOM: u64 = 262_144;

/// In the mode `new`: smaller tables are filled again and again, each time with a new shard.
pub(crate) const FILLED_ONCE_FROM: u64 = 1_000_000;

/// Mappings one shard can have.
const MAPPINGS_MAX: u64 = MappingIndex::COUNT_MAX as u64;
/// Flows in all: what the subscribers' addresses before those of the new flows are enough for, with room for workers that get
/// more of them than others.
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

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sessions in all.
    pub sessions: u64,
    /// What the packets do.
    pub mode: Mode,
    /// Workers, each with its share of the sessions, pinned to CPU 0, 1, …
    pub workers: usize,
    /// How long to measure, seconds.
    pub seconds: f64,
}

/// The result, in the fixed fields of the design.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the packets did.
    pub mode: Mode,
    /// Sessions in the tables.
    pub sessions: u64,
    /// Workers.
    pub workers: usize,
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
    /// Bytes of tables a session.
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

/// Nothing leaves the engine by itself in these benchmarks; counts what does.
#[derive(Default)]
struct Nowhere {
    packets: u64,
}

impl Sink for Nowhere {
    fn transmit(&mut self, _: Egress, _: &[&[u8]]) -> bool {
        self.packets += 1;
        true
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        self.packets += 1;
        true
    }
}

/// One session of the benchmark: what is needed to write its packets. 16 bytes.
#[derive(Clone, Copy, zerocopy::FromZeros)]
#[repr(C)]
struct Flow {
    internal_address: u32,
    external_address: u32,
    internal_port: u16,
    external_port: u16,
    /// Index of the remote server, top bit: TCP.
    server: u16,
    _reserved: u16,
}

const TCP: u16 = 0x8000;
const SERVERS: u16 = 1_024;

impl Flow {
    fn is_tcp(&self) -> bool {
        self.server & TCP != 0
    }

    fn remote_address(&self) -> u32 {
        u32::from(Ipv4Addr::new(198, 18, 0, 0)) + u32::from(self.server & !TCP)
    }
}

/// A packet as the benchmark writes it: 46 bytes in a 64-byte line of its own.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Buffer([u8; 64]);

fn settings(options: &Options) -> Settings {
    let per_protocol = options.sessions.div_ceil(2);
    // Room for the sessions and for those that the mixed mode opens while as many run out.
    let room = if options.mode == Mode::Mixed { per_protocol + per_protocol / 4 + CHURN_ROOM } else { per_protocol };
    let addresses = room.div_ceil(PORTS_PER_ADDRESS).max(1) + 1;
    let first = u32::from(Ipv4Addr::new(203, 0, 0, 1));
    let per_worker = options.sessions.div_ceil(options.workers as u64);
    let mappings_max = match options.mode {
        Mode::Mixed => (per_worker + per_worker / 4 + CHURN_ROOM).min(MAPPINGS_MAX),
        _ => per_worker + 64,
    } as u32;
    let mut settings = Settings {
        interfaces: vec![
            interface("inside", Side::Inside, Ipv4Addr::new(192, 168, 255, 1)),
            interface("outside", Side::Outside, Ipv4Addr::new(192, 168, 254, 1)),
        ],
        routes: vec![
            route(Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8), Ipv4Addr::new(192, 168, 255, 2), 0),
            route(Some(Prefix::ALL), Ipv4Addr::new(192, 168, 254, 2), 1),
        ],
        pools: vec![Pool {
            name: "bench".to_owned(),
            addresses: (0..addresses as u32).map(|i| Ipv4Addr::from_bits(first + i)).collect(),
            port_min: 1_024,
            port_max: u16::MAX,
            reserved_ports: Vec::new(),
            subscribers: vec![Prefix::ALL],
            pooling: Pooling::Paired,
            filtering: [Filtering::EndpointIndependent; 3],
            parity: false,
        }],
        limits: Limits {
            mappings_max,
            extra_sessions_max: 1_024,
            subscribers_max: (per_worker / MAPPINGS_PER_SUBSCRIBER) as u32 + CHURN_SUBSCRIBERS + 64,
            ..Limits::default()
        },
        ..Settings::default()
    };
    // A sweep must not end what the benchmark calls established.
    settings.timeouts.udp = nat::Duration::from_secs(86_400);
    settings.timeouts.tcp_opening = match options.mode {
        // In the mixed mode the new flows are SYNs that nobody answers, and these run out soon.
        Mode::Mixed => CHURN_LIFETIME,
        _ => nat::Duration::from_secs(86_400),
    };
    settings
}

fn interface(name: &str, side: Side, address: Ipv4Addr) -> Interface {
    Interface {
        name: name.to_owned(),
        side,
        addresses: vec![InterfaceAddress { address, prefix_length: 30 }],
        mtu: 1_500,
    }
}

fn route(prefix: Option<Prefix>, next_hop: Ipv4Addr, interface: u16) -> Route {
    Route { prefix: prefix.unwrap_or(Prefix::ALL), next_hop, interface: InterfaceId(interface) }
}

/// What one worker measured.
struct WorkerResult {
    packets: u64,
    cycles: u64,
    created: u64,
    sessions: u64,
    bytes: u64,
    /// Of the whole process, while the tables of all workers are there.
    resident_bytes: u64,
    bound_cycles_per_packet: f64,
    bursts: hdrhistogram::Histogram<u64>,
}

/// The memory of the list of flows of one worker.
pub(crate) fn flows_need(flows: u64) -> Need {
    Arena::<Flow>::need(flows as usize)
}

/// Runs the benchmark. `warn` is called at most once, when all memory is taken and some of it is not on hugepages.
///
/// # Errors
/// [`BenchError`] when memory is short (before any is taken), an option makes no sense, or the engine did not behave.
pub fn run(options: &Options, warn: &(dyn Fn(&str) + Sync)) -> Result<Report, BenchError> {
    check(options)?;
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
    let barrier = Arc::new(Barrier::new(options.workers));
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.workers)
            .map(|worker| {
                let (shared, barrier) = (Arc::clone(&shared), Arc::clone(&barrier));
                let ready = &ready;
                scope.spawn(move || run_worker(options, shared, WorkerId(worker as u8), &barrier, ready, hz))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| BenchError::Worker)?).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(report(options, &shared, &results, hz))
}

fn check(options: &Options) -> Result<(), BenchError> {
    let out_of_range = |what, value: String, remedy: String| Err(BenchError::Option { what, value, remedy });
    if options.workers == 0 || options.workers > WorkerId::COUNT_MAX {
        return out_of_range("--workers", options.workers.to_string(), "give 1 to 64".to_owned());
    }
    if options.sessions < options.workers as u64 * BURST as u64 {
        return out_of_range("--sessions", options.sessions.to_string(), "give at least 64 for each worker".to_owned());
    }
    let most = MAPPINGS_MAX - CHURN_ROOM;
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
        sessions,
        workers: results.len(),
        packets,
        mpps,
        mpps_per_worker,
        tsc_cycles_per_packet: sum(|result| result.cycles) as f64 / packets as f64,
        new_sessions_per_second: rate(|result| result.created),
        bytes_per_session: (sum(|result| result.bytes) as f64 + shared.bytes() as f64) / sessions as f64,
        resident_bytes: results.iter().map(|result| result.resident_bytes).max().unwrap_or(0),
        memory_bound_mpps,
        fraction_of_memory_bound: mpps_per_worker / memory_bound_mpps,
        p50_ns: nanoseconds(0.5),
        p99_ns: nanoseconds(0.99),
        p999_ns: nanoseconds(0.999),
        max_ns: bursts.max() as f64 / hz * 1e9,
    }
}

/// Resident memory with its hugepages, which the kernel counts apart.
fn resident_bytes() -> u64 {
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
    shard: Shard,
    flows: Arena<Flow>,
    /// Flows of the next packets, the last one next.
    drawn: Vec<Flow>,
    buffers: Box<[Buffer; BURST]>,
    random: SmallRng,
    /// Internal addresses of the mixed mode's new flows.
    churn: Vec<u32>,
    churned: u64,
    /// While true the clock stands still.
    frozen: bool,
    start: u64,
    ticks_per_micro: f64,
    cycles: u64,
    packets: u64,
    bursts: hdrhistogram::Histogram<u64>,
}

fn run_worker(
    options: &Options,
    shared: Arc<Shared>,
    worker: WorkerId,
    barrier: &Barrier,
    ready: &(dyn Fn(WorkerId) + Sync),
    hz: f64,
) -> Result<WorkerResult, BenchError> {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.get(worker.index()).copied()) {
        core_affinity::set_for_current(core);
    }
    let count = options.sessions / options.workers as u64;
    let shard = Shard::new(Arc::clone(&shared), worker, [1, 2, 3, u64::from(worker.0)])?;
    let bytes = shard.bytes() as u64;
    let mut bench = WorkerBench {
        shard,
        flows: flows(&shared, worker, count)?,
        drawn: Vec::with_capacity(DRAWN),
        buffers: Box::new([Buffer([0; 64]); BURST]),
        random: SmallRng::seed_from_u64(0x6e61_7472_6978 + u64::from(worker.0)),
        churn: churn_subscribers(&shared, worker),
        churned: 0,
        frozen: true,
        start: tsc::read(),
        ticks_per_micro: hz / 1e6,
        cycles: 0,
        packets: 0,
        bursts: hdrhistogram::Histogram::new(3).unwrap_or_else(|_| unreachable!("3 digits are valid")),
    };
    let region = (bytes as usize + shared.bytes() / options.workers).next_multiple_of(64);
    let mut bound = memory_bound::MemoryBound::new(region)?;
    barrier.wait();
    ready(worker);
    barrier.wait();
    let bound_before = bound.cycles_per_packet(0.5);
    barrier.wait();
    let before = bench.shard.counters().clone();
    bench.fill();
    bench.expect_created(&before, count)?;
    if options.mode == Mode::New {
        // A small table is filled in no time: begin anew until the measurement is long enough.
        while (bench.cycles as f64) < options.seconds * hz && count < FILLED_ONCE_FROM {
            refill(&mut bench, &shared, worker)?;
        }
    } else {
        bench.answer();
        bench.frozen = false;
        bench.start = tsc::read();
        bench.run_for(0.5, hz, options.mode);
        bench.reset();
        barrier.wait();
        let created = created(bench.shard.counters());
        bench.run_for(options.seconds, hz, options.mode);
        let dropped = dropped(bench.shard.counters());
        if dropped > 0 {
            return Err(BenchError::Unexpected { what: "packets were dropped", value: dropped });
        }
        let result_created = self::created(bench.shard.counters()) - created;
        barrier.wait();
        let bound_after = bound.cycles_per_packet(0.5);
        // Not part of what the engine needs resident.
        drop(bound);
        return Ok(bench.result(result_created, bytes, (bound_before + bound_after) / 2.0));
    }
    let created = bench.packets;
    barrier.wait();
    let bound_after = bound.cycles_per_packet(0.5);
    drop(bound);
    Ok(bench.result(created, bytes, (bound_before + bound_after) / 2.0))
}

/// Builds a new shard in place of the full one, outside the timed part, and fills it.
fn refill(bench: &mut WorkerBench, shared: &Arc<Shared>, worker: WorkerId) -> Result<(), BenchError> {
    // Give the ports back: a long time passes, and the sweep ends everything.
    let mut sink = Nowhere::default();
    let later = Instant::from_micros(200_000_000_000);
    for round in 0..u64::from(u32::MAX) {
        if bench.shard.is_empty() {
            break;
        }
        bench.shard.maintain(Instant::from_micros(later.as_micros() + round * 1_000_000), &mut sink);
    }
    bench.shard = Shard::new(Arc::clone(shared), worker, [bench.random.random(), 2, 3, 4])?;
    bench.fill();
    Ok(())
}

fn created(counters: &Counters) -> u64 {
    counters.mappings_created.iter().sum()
}

fn dropped(counters: &Counters) -> u64 {
    nat::Verdict::ALL
        .iter()
        .filter(|verdict| verdict.kind() == nat::verdict::VerdictKind::Dropped)
        .map(|verdict| counters.of(*verdict))
        .sum()
}

/// Subscribers of this worker with 32 UDP and 32 TCP ports each, shuffled.
fn flows(shared: &Shared, worker: WorkerId, count: u64) -> Result<Arena<Flow>, BenchError> {
    let mut flows = Arena::<Flow>::zeroed(count as usize)?;
    let mut random = SmallRng::seed_from_u64(7 + u64::from(worker.0));
    let mut address = u32::from(Ipv4Addr::new(10, 0, 0, 1));
    let mut port = 0u64;
    for flow in flows.iter_mut() {
        while shared.worker_of_subscriber(address) != worker {
            address += 1;
        }
        let is_tcp = port % 2 == 1;
        // Remote endpoints as in life: skewed to few servers.
        let skewed = random.random::<f64>().powi(3) * f64::from(SERVERS);
        *flow = Flow {
            internal_address: address,
            external_address: 0,
            internal_port: (20_000 + port / 2 * 7) as u16,
            external_port: 0,
            server: (skewed as u16).min(SERVERS - 1) | if is_tcp { TCP } else { 0 },
            _reserved: 0,
        };
        port += 1;
        if port == MAPPINGS_PER_SUBSCRIBER {
            port = 0;
            address += 1;
        }
    }
    for i in (1..flows.len()).rev() {
        let j = random.random_range(0..=i);
        flows.swap(i, j);
    }
    Ok(flows)
}

/// Addresses of this worker that have no other flows.
fn churn_subscribers(shared: &Shared, worker: WorkerId) -> Vec<u32> {
    let first = u32::from(Ipv4Addr::new(10, 192, 0, 1));
    (first..)
        .filter(|address| shared.worker_of_subscriber(*address) == worker)
        .take(CHURN_SUBSCRIBERS as usize)
        .collect()
}

impl WorkerBench {
    /// The engine's clock. It stands still while the flows are opened, so that none runs out before it is answered.
    fn now(&self) -> Instant {
        if self.frozen {
            return Instant::ORIGIN;
        }
        Instant::from_micros((tsc::read().wrapping_sub(self.start) as f64 / self.ticks_per_micro) as u64)
    }

    fn reset(&mut self) {
        self.cycles = 0;
        self.packets = 0;
        self.bursts.reset();
    }

    fn result(self, created: u64, bytes: u64, bound_cycles_per_packet: f64) -> WorkerResult {
        WorkerResult {
            packets: self.packets,
            cycles: self.cycles,
            created,
            sessions: u64::from(self.shard.mappings_len()),
            bytes,
            resident_bytes: resident_bytes(),
            bound_cycles_per_packet,
            bursts: self.bursts,
        }
    }

    fn expect_created(&self, before: &Counters, count: u64) -> Result<(), BenchError> {
        let made = created(self.shard.counters()) - created(before);
        if made == count {
            Ok(())
        } else {
            Err(BenchError::Unexpected { what: "not every first packet made a mapping", value: made })
        }
    }

    /// Opens every flow once; reads the external endpoints from the translated packets.
    fn fill(&mut self) {
        let mut index = 0;
        while index < self.flows.len() {
            let count = BURST.min(self.flows.len() - index);
            for slot in 0..count {
                let flow = self.flows[index + slot];
                write_outbound(&mut self.buffers[slot].0, &flow, SYN);
            }
            self.process(count, |_| Side::Inside);
            for slot in 0..count {
                let bytes = &self.buffers[slot].0;
                let flow = &mut self.flows[index + slot];
                flow.external_address = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
                flow.external_port = u16::from_be_bytes([bytes[20], bytes[21]]);
            }
            index += count;
        }
    }

    /// The servers answer every TCP flow, which establishes it.
    fn answer(&mut self) {
        let mut index = 0;
        while index < self.flows.len() {
            let count = BURST.min(self.flows.len() - index);
            for slot in 0..count {
                let flow = self.flows[index + slot];
                write_inbound(&mut self.buffers[slot].0, &flow, SYN | ACK);
            }
            self.process(count, |_| Side::Outside);
            index += count;
        }
    }

    fn run_for(&mut self, seconds: f64, hz: f64, mode: Mode) {
        let until = self.cycles + (seconds * hz) as u64;
        while self.cycles < until {
            for slot in 0..BURST {
                let flow = self.draw();
                if mode == Mode::Mixed && slot % 2 == 0 && self.random.random_ratio(4, 100) {
                    self.write_new_flow(slot);
                    continue;
                }
                if slot % 2 == 0 {
                    write_outbound(&mut self.buffers[slot].0, &flow, ACK);
                } else {
                    write_inbound(&mut self.buffers[slot].0, &flow, ACK);
                }
            }
            self.process(BURST, |slot| if slot % 2 == 0 { Side::Inside } else { Side::Outside });
        }
    }

    /// A random flow.
    fn draw(&mut self) -> Flow {
        loop {
            if let Some(flow) = self.drawn.pop() {
                return flow;
            }
            let (flows, random) = (&self.flows, &mut self.random);
            self.drawn.extend((0..DRAWN).map(|_| flows[random.random_range(0..flows.len())]));
        }
    }

    /// Writes the SYN of a flow that does not exist: half of all packets are outbound, and 4 % of those are new.
    fn write_new_flow(&mut self, slot: usize) {
        let serial = self.churned;
        self.churned += 1;
        let count = self.churn.len() as u64;
        let flow = Flow {
            internal_address: self.churn[(serial % count) as usize],
            external_address: 0,
            internal_port: (1_024 + serial / count % 60_000) as u16,
            external_port: 0,
            server: TCP,
            _reserved: 0,
        };
        write_outbound(&mut self.buffers[slot].0, &flow, SYN);
    }

    /// The timed part.
    fn process(&mut self, count: usize, side: impl Fn(usize) -> Side) {
        let now = self.now();
        let mut sink = Nowhere::default();
        let mut slot = 0;
        let mut packets = self.buffers.each_mut().map(|buffer| {
            let meta = PacketMeta { ingress: InterfaceId(side(slot) as u16), stage: Stage::Received, ports: (0, 0) };
            slot += 1;
            Packet::new(&mut buffer.0[..PACKET_BYTES], meta)
        });
        let begin = tsc::read();
        self.shard.process(now, &mut packets[..count], &mut sink);
        self.shard.maintain(now, &mut sink);
        let cycles = tsc::read() - begin;
        debug_assert!(packets[..count].iter().all(|packet| packet.outcome != Outcome::Done), "all packets leave");
        self.cycles += cycles;
        self.packets += count as u64;
        let recorded = self.bursts.record(cycles);
        debug_assert!(recorded.is_ok(), "the histogram grows by itself");
    }
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

fn write_outbound(buffer: &mut [u8; 64], flow: &Flow, flags: u8) {
    let server = Ipv4Addr::from_bits(flow.remote_address());
    write_packet(buffer, flow.is_tcp(), flow.internal_address, flow.internal_port, server.to_bits(), 443, flags);
}

fn write_inbound(buffer: &mut [u8; 64], flow: &Flow, flags: u8) {
    let server = flow.remote_address();
    write_packet(buffer, flow.is_tcp(), server, 443, flow.external_address, flow.external_port, flags);
}

/// Writes all headers; the transport checksum is left to be whatever it is, as the engine only updates it.
fn write_packet(
    buffer: &mut [u8; 64],
    is_tcp: bool,
    source: u32,
    source_port: u16,
    destination: u32,
    destination_port: u16,
    flags: u8,
) {
    buffer[..20].copy_from_slice(&[0x45, 0, 0, PACKET_BYTES as u8, 0, 0, 0x40, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    buffer[9] = if is_tcp { 6 } else { 17 };
    buffer[12..16].copy_from_slice(&source.to_be_bytes());
    buffer[16..20].copy_from_slice(&destination.to_be_bytes());
    let checksum = wire::checksum::ipv4_header_checksum(&buffer[..20]);
    buffer[10..12].copy_from_slice(&checksum.to_be_bytes());
    buffer[20..22].copy_from_slice(&source_port.to_be_bytes());
    buffer[22..24].copy_from_slice(&destination_port.to_be_bytes());
    if is_tcp {
        buffer[24..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        buffer[32..40].copy_from_slice(&[0x50, flags, 0xff, 0xff, 0x12, 0x34, 0, 0]);
    } else {
        buffer[24..28].copy_from_slice(&[0, PACKET_BYTES as u8 - 20, 0x12, 0x34]);
    }
}
