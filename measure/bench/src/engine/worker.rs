//! One worker: its shard, its flows and its packet buffers.

use core::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::Barrier;

use mem::Arena;
use mem::tsc;
use nat::Counters;
use nat::Instant;
use nat::Outcome;
use nat::Protocol;
use nat::Shard;
use nat::Shared;
use nat::event::EventCounters;
use nat::types::AddressIndex;
use nat::types::Side;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::Mode;
use super::Options;
use super::Ports;
use super::report::BenchError;
use super::report::WorkerResult;
use super::report::resident_bytes;
use super::settings::CHURN_SUBSCRIBERS;
use super::settings::MAPPINGS_MAX;
use crate::burst_times::Begun;
use crate::events::QUEUE;
use crate::events::Taker;
use crate::family::Family;
use crate::family::Frames;
use crate::fill_rates::FillRates;
use crate::memory_bound::MemoryBound;
use crate::traffic::ACK;
use crate::traffic::BURST;
use crate::traffic::Drawn;
use crate::traffic::Flow;
use crate::traffic::Nowhere;
use crate::traffic::SYN;
use crate::traffic::flows;

/// In the mode `new`: subscribers of an address that open the flows that take its last ports.
const LAST_SUBSCRIBERS: usize = 16;
/// Longest measurement of the memory bound, before and after the engine's.
const BOUND_SECONDS_MAX: f64 = 0.5;
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

/// One worker's bench: its shard, its flows and its packet buffers.
pub(super) struct WorkerBench {
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

pub(super) fn run_worker(
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
    let bound_seconds = options.seconds.min(BOUND_SECONDS_MAX);
    let bound_before = bench.as_mut().map_or(0.0, |bench| bench.bound.cycles_per_packet(bound_seconds));
    barrier.wait();
    let prepared = bench.and_then(|bench| bench.stage(WorkerBench::prepare));
    barrier.wait();
    let measured = prepared.and_then(|bench| bench.stage(WorkerBench::measure));
    barrier.wait();
    let mut bench = measured?;
    let bound_after = bench.bound.cycles_per_packet(bound_seconds);
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
    pub(super) fn new(
        options: &Options,
        shared: &Arc<Shared>,
        worker: WorkerId,
        hz: f64,
    ) -> Result<WorkerBench, BenchError> {
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
    pub(super) fn prepare(&mut self) -> Result<(), BenchError> {
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
            let (created_before, ended_before) = (created(counters), removed(counters));
            self.run_for(ENDING_LOOK_SECONDS);
            let counters = self.shard.counters();
            if (removed(counters) - ended_before) * 2 > created(counters) - created_before {
                return;
            }
        }
    }

    /// The timed part.
    fn measure(&mut self) -> Result<(), BenchError> {
        if self.options.mode == Mode::New {
            return self.measure_fills();
        }
        let (before, ended_before) = (created(self.shard.counters()), removed(self.shard.counters()));
        self.run_for(self.options.seconds);
        let counters = self.shard.counters();
        let dropped = dropped(counters);
        if dropped > 0 {
            return Err(BenchError::Unexpected { what: "packets were dropped", value: dropped });
        }
        self.created = created(counters) - before;
        self.ended = removed(counters) - ended_before;
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
    pub(super) fn now(&self) -> Instant {
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
    pub(super) fn fill(&mut self, last_percent_from: usize) -> Result<u64, BenchError> {
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
