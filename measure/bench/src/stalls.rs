//! `natrix bench stalls`: burst times while nothing happens, and while something large does.
//!
//! ```text
//!   sessions established ─► for each event:  undisturbed ─► the event, under the same traffic
//!
//!   reload      a rule, a filter, all timers, a pool's addresses change; a worker adopts each
//!   dump        a page of sessions after each burst, as for the control server, until all are seen
//!   pool_full   two packets of each burst open flows, until no port is free, and as long again
//!   expiry      millions of sessions end at one instant; traffic until the sweep has removed them
//! ```
//!
//! One worker, and the calls of a worker: `Shard::process` on a burst, `Shard::maintain`, then at
//! most one question. Only these are timed: headers are written before, and results are checked
//! afterwards. Each event is checked to have happened: every change in use, every session seen,
//! every port taken, every mapping ended.

use core::net::Ipv4Addr;
use std::sync::Arc;

use core_affinity::CoreId;
use daemon::mailbox::PAGE_RECORDS;
use daemon::mailbox::page;
use mem::Arena;
use mem::Need;
use mem::NotEnough;
use mem::Stock;
use mem::tsc;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::Successor;
use nat::Verdict;
use nat::change::Reshape;
use nat::rules::Match;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::types::AddressIndex;
use nat::types::MappingIndex;
use nat::types::Prefix;
use nat::types::Side;
use nat::types::WorkerId;
use nat::view::Filter;
use nat::view::Query;
use nat::view::SessionView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::burst_times;
use crate::burst_times::Begun;
use crate::burst_times::BurstTimes;
pub use crate::burst_times::Times;
use crate::engine::created;
use crate::engine::dropped;
use crate::engine::removed;
use crate::family::Family;
use crate::traffic;
use crate::traffic::ACK;
use crate::traffic::BURST;
use crate::traffic::Buffer;
use crate::traffic::Drawn;
use crate::traffic::Flow;
use crate::traffic::MAPPINGS_PER_SUBSCRIBER;
use crate::traffic::Nowhere;
use crate::traffic::PORTS_PER_ADDRESS;
use crate::traffic::SYN;

#[cfg(test)]
mod tests;

/// First external address of the pool of all but the flows that end.
const POOL: Ipv4Addr = Ipv4Addr::new(203, 0, 0, 1);
/// First external address of the pool of the flows that end.
const ENDING_POOL: Ipv4Addr = Ipv4Addr::new(204, 0, 0, 1);
/// Subscribers of the flows that end.
const ENDING_SUBSCRIBERS: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 64, 0, 0), 10);
/// First of the subscribers that open flows until the pool is full.
const FILLING_SUBSCRIBERS: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 1);
/// First internal port of flows that fill the pool for subscribers that have others.
const FILLING_PORT_FIRST: u16 = 30_000;
/// Longer than any run.
const NEVER: nat::Duration = nat::Duration::from_secs(86_400);
/// After this the flows that end do so, all at once. Longer than it takes to get there.
const ENDING_AFTER: nat::Duration = nat::Duration::from_secs(3_600);
/// How long before that instant the clock goes on after the wait has been skipped.
const RUN_UP: nat::Duration = nat::Duration::from_millis(10);
/// Seconds of traffic before anything is measured.
const WARM_UP_SECONDS: f64 = 0.5;
/// How long to look at the machine alone.
const MACHINE_SECONDS_MAX: f64 = 2.0;
/// Mappings there is room for beyond those needed.
const ROOM: u64 = 64;
/// What is changed, one after the other: each begins with the configuration of the start, so that
/// the change before is taken back.
const CHANGES: [fn(&Settings, u64) -> Settings; 5] =
    [with_rule, with_filter, with_timers, without_address, with_reserved];
/// Of the engine's time, between two changes.
const BETWEEN_CHANGES_SECONDS: f64 = 0.02;
/// And behind the last one, so that what it left to do is not in the figures of the next event.
const AFTER_CHANGES_SECONDS: f64 = 0.5;
/// Bursts between two looks at all ports of a pool.
const LOOK_EVERY: u64 = 4_096;
/// Calls after which the sweep must have ended everything, for each mapping there can be: it ends
/// at least 8 in a call once it has found them, and looks at 16 or more.
const CALLS_PER_MAPPING_MAX: u64 = 2;

/// Something that must not delay packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The configuration changes, again and again.
    Reload,
    /// All sessions are listed.
    Dump,
    /// A pool runs full to its last port, and stays so.
    PoolFull,
    /// Many sessions end at one instant.
    Expiry,
}

impl Event {
    /// All, in the order in which they can follow each other.
    pub const ALL: [Event; 4] = [Event::Reload, Event::Dump, Event::PoolFull, Event::Expiry];
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Established sessions, which the traffic belongs to.
    pub sessions: u64,
    /// Further sessions, which end at one instant in [`Event::Expiry`]. They are there from the
    /// beginning, so they are listed too.
    pub ending: u64,
    /// Which events; they happen in the order of [`Event::ALL`].
    pub events: Vec<Event>,
    /// How much of the engine's time to measure undisturbed before each event, seconds. A dump
    /// begins anew until it was measured as long.
    pub seconds: f64,
}

/// One event, beside the undisturbed traffic right before it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What happened.
    pub event: Event,
    /// Established sessions.
    pub sessions: u64,
    /// What the event was about: changes adopted, sessions listed, flows that got one of the last
    /// ports, sessions that ended.
    pub records: u64,
    /// Flows refused because the pool was full.
    pub refused: u64,
    /// In wall-clock time, from the event's beginning to its end.
    pub event_seconds: f64,
    /// TSC cycles a second.
    pub tsc_hz: f64,
    /// Bursts before the event.
    pub undisturbed: Times,
    /// Bursts during the event.
    pub disturbed: Times,
    /// Between the two: a thread that does nothing for as long as the median of the undisturbed
    /// bursts. What it saw beyond that is interrupts and the host's own work, and is in the other
    /// times as well.
    pub machine: Times,
    /// After the event: as long as the median of the disturbed bursts. Longer bursts are fewer, so
    /// the same number of interrupts is a larger share of them.
    pub machine_disturbed: Times,
    /// 99.9th percentile to median of the undisturbed bursts.
    pub undisturbed_p999_to_p50: f64,
    /// The same of the machine alone.
    pub machine_p999_to_p50: f64,
    /// Medians: disturbed to undisturbed.
    pub p50_ratio: f64,
    /// 99th percentiles: disturbed to undisturbed.
    pub p99_ratio: f64,
    /// 99.9th percentiles: disturbed to undisturbed.
    pub p999_ratio: f64,
    /// The same with interrupted bursts.
    pub all_p999_ratio: f64,
}

/// Why the benchmark could not run.
#[derive(Debug, thiserror::Error)]
pub enum StallsError {
    /// The engine could not be built.
    #[error(transparent)]
    Build(#[from] nat::BuildError),
    /// Memory for the benchmark's own data.
    #[error("bench stalls: {0}")]
    Memory(#[from] mem::ArenaError),
    /// Not everything fits this machine's memory. Nothing has been taken.
    #[error("bench stalls: {0}; ask for fewer sessions, or add memory")]
    NotEnough(#[from] NotEnough),
    /// A number makes no sense.
    #[error("bench stalls: {what} is out of range ({value}); {remedy}")]
    Option {
        /// Which.
        what: &'static str,
        /// Value seen.
        value: String,
        /// What to do.
        remedy: String,
    },
    /// The event was not what it claims to be; the figures would mean nothing.
    #[error("bench stalls: {what} ({seen}, expected {expected}); this is a fault of Natrix, please report it")]
    Unexpected {
        /// What.
        what: &'static str,
        /// Value seen.
        seen: u64,
        /// Value expected.
        expected: u64,
    },
    /// The thread that prepares changes died.
    #[error("bench stalls: the thread that prepares changes panicked")]
    Panicked,
}

fn expect(what: &'static str, seen: u64, expected: u64) -> Result<(), StallsError> {
    if seen == expected { Ok(()) } else { Err(StallsError::Unexpected { what, seen, expected }) }
}

/// Sizes that follow from the options.
struct Sizes {
    /// External addresses of the pool of all but the flows that end.
    addresses: u64,
    /// Those of the flows that end.
    ending_addresses: u64,
    /// TCP ports of the first pool that no established session has.
    spare: u64,
    mappings_max: u64,
}

impl Sizes {
    fn of(options: &Options) -> Sizes {
        let (udp, tcp) = (options.sessions.div_ceil(2), options.sessions / 2);
        // One more than would do if all were used evenly.
        let addresses = udp.div_ceil(PORTS_PER_ADDRESS) + 1;
        let spare = if options.has(Event::PoolFull) { addresses * PORTS_PER_ADDRESS - tcp } else { 0 };
        let ending_addresses = options.ending.div_ceil(PORTS_PER_ADDRESS);
        Sizes {
            addresses,
            // A subscriber has twice as many TCP ports here, so that addresses fill less evenly.
            ending_addresses: ending_addresses + ending_addresses / 32 + 1,
            spare,
            mappings_max: options.sessions.saturating_add(options.ending).saturating_add(spare + ROOM),
        }
    }
}

impl Options {
    fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }

    fn check(&self) -> Result<(), StallsError> {
        let out_of_range = |what, value: String, remedy: String| Err(StallsError::Option { what, value, remedy });
        if self.sessions < BURST as u64 {
            return out_of_range("--sessions", self.sessions.to_string(), "give at least 64".to_owned());
        }
        if self.has(Event::Expiry) && self.ending == 0 {
            return out_of_range("--ending", "0".to_owned(), "give at least 1".to_owned());
        }
        let most = MappingIndex::COUNT_MAX as u64 - 2 * PORTS_PER_ADDRESS - ROOM;
        let both = self.sessions.saturating_add(self.ending);
        if both > most {
            let remedy = format!("give at most {most} together");
            return out_of_range("--sessions and --ending", both.to_string(), remedy);
        }
        if !(self.seconds > 0.0 && self.seconds <= 600.0) {
            return out_of_range("--seconds", self.seconds.to_string(), "give more than 0 and at most 600".to_owned());
        }
        Ok(())
    }
}

fn settings(options: &Options, sizes: &Sizes) -> Settings {
    let pool = |name: &str, first, addresses, subscribers| Pool {
        name: name.to_owned(),
        addresses: traffic::addresses(first, addresses),
        subscribers: vec![subscribers],
        // An expiry is over when all ports are back.
        reuse_delay: nat::Duration::ZERO,
        ..Pool::default()
    };
    let ending = Prefix::new(ENDING_SUBSCRIBERS.0, ENDING_SUBSCRIBERS.1).unwrap_or(Prefix::ALL);
    let subscribers = (options.sessions + options.ending).div_ceil(MAPPINGS_PER_SUBSCRIBER) + sizes.spare + ROOM;
    let mut settings = Settings {
        interfaces: traffic::interfaces(),
        routes: traffic::routes(),
        pools: vec![
            pool("bench", POOL, sizes.addresses, Prefix::ALL),
            pool("ending", ENDING_POOL, sizes.ending_addresses, ending),
        ],
        limits: Limits {
            mappings_max: sizes.mappings_max as u32,
            extra_sessions_max: 1_024,
            subscribers_max: subscribers as u32,
            ..Limits::default()
        },
        ..Settings::default()
    };
    settings.timeouts.udp = NEVER;
    settings.timeouts.tcp_established = NEVER;
    // What ends are SYNs that nobody answers.
    settings.timeouts.tcp_opening = ENDING_AFTER;
    settings
}

/// Everything a run takes at its peak.
fn needs(options: &Options, settings: &Settings) -> Vec<Need> {
    let mut needs = nat::memory::needs(settings, 1);
    needs.extend([traffic::flows_need(options.sessions), Need::Heap(2 << 20)]);
    needs
}

/// Runs the benchmark. `warn` is called at most once, when all memory is taken and some of it is
/// not on hugepages; `report` gets each event's figures when it is over.
///
/// # Errors
/// [`StallsError`] when memory is short (before any is taken), an option makes no sense, or an
/// event was not what it claims to be.
pub fn run(options: &Options, warn: &dyn Fn(&str), report: &mut dyn FnMut(Report)) -> Result<(), StallsError> {
    options.check()?;
    let sizes = Sizes::of(options);
    let settings = settings(options, &sizes);
    let plan = Stock::of_this_machine().plan(needs(options, &settings))?;
    // The core the first worker would have.
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.first() {
        core_affinity::set_for_current(*core);
    }
    let mut bed = Bed::new(options, settings, tsc::frequency_hz(100))?;
    bed.other_core = cores.get(1).copied();
    if let Some(warning) = plan.warning(mem::missed_bytes()) {
        warn(&warning);
    }
    bed.establish()?;
    bed.open_ending()?;
    bed.start();
    bed.run_for(WARM_UP_SECONDS);
    for event in Event::ALL.into_iter().filter(|event| options.has(*event)) {
        report(bed.measure(event, options.seconds)?);
    }
    Ok(())
}

/// What came of an event.
pub(crate) struct Done {
    /// What it was about.
    pub(crate) records: u64,
    refused: u64,
}

/// The engine's clock.
enum Clock {
    /// It stands still while the flows are opened, so that all have one time.
    Frozen,
    /// Microseconds to be added to the counter's, which was so at the start.
    Running { start: u64, ahead: u64 },
}

/// What a worker is asked at the end of a burst.
enum Ask<'a> {
    /// A page of sessions.
    Page(&'a mut Listing),
    /// Go on under these settings.
    Adopt(&'a mut Successor),
    /// Change the ports that an address offers.
    Reshape(&'a Shared, &'a Reshape, Offers),
}

/// Whether ports are taken out before workers switch, or put in afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offers {
    Fewer,
    More,
}

/// Whether packets leave the shard at the end of a burst only, or a question is answered too.
type Question<'a> = Option<Ask<'a>>;

/// A list of all sessions on its way.
struct Listing {
    /// The page, as the asker brings it.
    page: Query<SessionView>,
    ended: bool,
    seen: u64,
    /// Sum over a number made of each session's endpoints.
    sum: u64,
}

impl Listing {
    fn new() -> Listing {
        Listing { page: page(0, PAGE_RECORDS, Filter::default()), ended: false, seen: 0, sum: 0 }
    }

    /// What the asker does with a page: outside the timed part.
    fn take_page(&mut self) {
        self.ended = self.page.next.is_none();
        self.page.cursor = self.page.next.unwrap_or(0);
        for view in self.page.records.drain(..) {
            self.seen += 1;
            let external = u32::from(view.external.address);
            self.sum = self.sum.wrapping_add(number_of(view.protocol, external, view.external.port));
        }
    }
}

/// A number made of an external endpoint, to compare sets of them by their sum.
fn number_of(protocol: Protocol, address: u32, port: u16) -> u64 {
    let number = u64::from(address) << 24 | u64::from(port) << 8 | protocol as u64;
    let number = (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number ^ number >> 32
}

/// An engine of one worker under traffic.
pub(crate) struct Bed {
    /// The snapshot in use.
    pub(crate) shared: Arc<Shared>,
    shard: Shard,
    /// The sessions.
    pub(crate) flows: Arena<Flow>,
    drawn: Drawn,
    buffers: Box<[Buffer; BURST]>,
    random: SmallRng,
    clock: Clock,
    /// Burst times since the last reset.
    pub(crate) times: BurstTimes,
    hz: f64,
    /// Cycles of the timed parts since the last reset.
    pub(crate) cycles: u64,
    /// Generation of live routes that was reported last.
    routes_seen: u64,
    ending: u64,
    /// Sum over the numbers of all flows opened and not ended.
    sum: u64,
    /// Packets refused because no port was free, as expected.
    refused: u64,
    filling_subscriber: u32,
    /// The CPU of what is done beside the worker; `None`: any.
    other_core: Option<CoreId>,
}

impl Bed {
    /// For traffic of so many sessions and nothing else, under settings that `adapt` has changed.
    pub(crate) fn of_traffic(sessions: u64, hz: f64, adapt: impl FnOnce(&mut Settings)) -> Result<Bed, StallsError> {
        let options = Options { sessions, ending: 1, events: vec![Event::Reload], seconds: 1.0 };
        options.check()?;
        let mut settings = settings(&options, &Sizes::of(&options));
        adapt(&mut settings);
        Bed::new(&options, settings, hz)
    }

    fn new(options: &Options, settings: Settings, hz: f64) -> Result<Bed, StallsError> {
        let shared = Arc::new(Shared::new(settings, 1)?);
        let shard = Shard::new(Arc::clone(&shared), WorkerId(0), [1, 2, 3, 4])?;
        Ok(Bed {
            flows: traffic::flows(&shared, Family::Nat44, WorkerId(0), options.sessions)?,
            drawn: Drawn::new(),
            shared,
            shard,
            buffers: traffic::buffers(),
            random: SmallRng::seed_from_u64(0x7374_616c_6c73),
            clock: Clock::Frozen,
            times: BurstTimes::new(hz),
            hz,
            cycles: 0,
            routes_seen: 0,
            ending: options.ending,
            sum: 0,
            refused: 0,
            filling_subscriber: FILLING_SUBSCRIBERS.to_bits(),
            other_core: None,
        })
    }

    fn now(&self) -> Instant {
        match self.clock {
            Clock::Frozen => Instant::ORIGIN,
            Clock::Running { start, ahead } => {
                let passed = tsc::read().wrapping_sub(start) as f64 / self.hz * 1e6;
                Instant::from_micros(ahead + passed as u64)
            }
        }
    }

    /// Starts the engine's clock.
    pub(crate) fn start(&mut self) {
        self.clock = Clock::Running { start: tsc::read(), ahead: 0 };
    }

    /// Skips the time up to an instant, as if nobody had sent anything.
    fn skip_to(&mut self, instant: Instant) {
        self.clock = Clock::Running { start: tsc::read(), ahead: instant.as_micros() };
    }

    /// Forgets all times.
    pub(crate) fn reset(&mut self) {
        self.times.reset();
        self.cycles = 0;
    }

    /// The timed part: what a worker does in a round.
    fn round(&mut self, count: usize, side: impl Fn(usize) -> Side, question: Question<'_>) {
        let now = self.now();
        let mut sink = Nowhere::default();
        let mut packets = traffic::packets(&mut self.buffers, side);
        let begun = Begun::now();
        // As a worker begins a poll.
        if let Some(live) = self.shared.live_routes() {
            let generation = live.generation();
            if generation != self.routes_seen {
                live.report(0, generation);
                self.routes_seen = generation;
            }
        }
        self.shard.process(now, &mut packets[..count], &mut sink);
        self.shard.maintain(now, &mut sink);
        let mut answer = None;
        match question {
            None => {}
            Some(Ask::Page(list)) => {
                self.shard.view().sessions_page(now, &mut list.page);
                answer = Some(list);
            }
            Some(Ask::Adopt(successor)) => self.shard.adopt(successor),
            Some(Ask::Reshape(shared, reshape, Offers::Fewer)) => shared.withhold(reshape),
            Some(Ask::Reshape(shared, reshape, Offers::More)) => shared.offer(reshape),
        }
        self.cycles += self.times.end(&begun);
        if let Some(list) = answer {
            list.take_page();
        }
    }

    /// Opens the flows of a burst, and learns their external endpoints.
    fn open(&mut self, flows: &mut [Flow]) {
        for (buffer, flow) in self.buffers.iter_mut().zip(flows.iter()) {
            traffic::write_outbound(&mut buffer.0, flow, SYN);
        }
        self.round(flows.len(), |_| Side::Inside, None);
        for (buffer, flow) in self.buffers.iter().zip(flows) {
            flow.learn(&buffer.0);
            let protocol = if flow.is_tcp() { Protocol::Tcp } else { Protocol::Udp };
            self.sum = self.sum.wrapping_add(number_of(protocol, flow.external_address, flow.external_port));
        }
    }

    /// Opens all sessions of the traffic, and has the servers answer.
    pub(crate) fn establish(&mut self) -> Result<(), StallsError> {
        for index in (0..self.flows.len()).step_by(BURST) {
            let count = BURST.min(self.flows.len() - index);
            let mut burst: [Flow; BURST] =
                core::array::from_fn(|slot| self.flows[(index + slot).min(index + count - 1)]);
            self.open(&mut burst[..count]);
            self.flows[index..index + count].copy_from_slice(&burst[..count]);
        }
        for index in (0..self.flows.len()).step_by(BURST) {
            let count = BURST.min(self.flows.len() - index);
            for slot in 0..count {
                traffic::write_inbound(&mut self.buffers[slot].0, &self.flows[index + slot], SYN | ACK);
            }
            self.round(count, |_| Side::Outside, None);
        }
        expect("not every first packet made a session", self.shard.sessions_len(), self.flows.len() as u64)?;
        self.expect_no_drops()
    }

    /// Opens the flows that end, in an order in which neighbours are far from each other.
    fn open_ending(&mut self) -> Result<(), StallsError> {
        let stride = far_stride(self.ending);
        let first = ENDING_SUBSCRIBERS.0.to_bits() + 1;
        let mut position = 0;
        for opened in (0..self.ending).step_by(BURST) {
            let count = (BURST as u64).min(self.ending - opened) as usize;
            let mut burst = [Flow::new(true, 0, 0); BURST];
            for flow in &mut burst[..count] {
                let subscriber = first + (position / MAPPINGS_PER_SUBSCRIBER) as u32;
                *flow = Flow::new(true, subscriber, traffic::internal_port(position % MAPPINGS_PER_SUBSCRIBER));
                position = (position + stride) % self.ending;
            }
            self.open(&mut burst[..count]);
        }
        let expected = self.flows.len() as u64 + self.ending;
        expect("not every first packet made a session", self.shard.sessions_len(), expected)?;
        self.expect_no_drops()
    }

    /// Packets of random established sessions, half of them from inside.
    fn write_traffic(&mut self) {
        for slot in 0..BURST {
            let flow = self.drawn.next(&self.flows, &mut self.random);
            if side(slot) == Side::Inside {
                traffic::write_outbound(&mut self.buffers[slot].0, &flow, ACK);
            } else {
                traffic::write_inbound(&mut self.buffers[slot].0, &flow, ACK);
            }
        }
    }

    /// One round of undisturbed traffic.
    fn traffic_round(&mut self, question: Question<'_>) {
        self.write_traffic();
        self.round(BURST, side, question);
    }

    /// Traffic for so much of the engine's time.
    pub(crate) fn run_for(&mut self, seconds: f64) {
        let until = self.cycles + (seconds * self.hz) as u64;
        while self.cycles < until {
            self.traffic_round(None);
        }
    }

    /// Undisturbed traffic, then the event.
    fn measure(&mut self, event: Event, seconds: f64) -> Result<Report, StallsError> {
        self.reset();
        self.run_for(seconds);
        let undisturbed = self.times.times();
        let machine = burst_times::of_machine(self.hz, undisturbed.p50_cycles, seconds.min(MACHINE_SECONDS_MAX));
        self.reset();
        if event == Event::Expiry {
            self.approach_the_end();
        }
        let clock = std::time::Instant::now();
        let Done { records, refused } = match event {
            Event::Reload => self.reload(seconds)?,
            Event::Dump => self.dump(seconds)?,
            Event::PoolFull => self.fill_pool()?,
            Event::Expiry => self.expire()?,
        };
        let event_seconds = clock.elapsed().as_secs_f64();
        self.expect_no_drops()?;
        let disturbed = self.times.times();
        let machine_disturbed =
            burst_times::of_machine(self.hz, disturbed.p50_cycles, seconds.min(MACHINE_SECONDS_MAX));
        let ratio = |of: fn(&Times) -> u64| of(&disturbed) as f64 / of(&undisturbed) as f64;
        Ok(Report {
            event,
            sessions: self.flows.len() as u64,
            records,
            refused,
            event_seconds,
            tsc_hz: self.hz,
            undisturbed,
            disturbed,
            machine,
            machine_disturbed,
            machine_p999_to_p50: machine.p999_cycles as f64 / machine.p50_cycles as f64,
            undisturbed_p999_to_p50: undisturbed.p999_cycles as f64 / undisturbed.p50_cycles as f64,
            p50_ratio: ratio(|times| times.p50_cycles),
            p99_ratio: ratio(|times| times.p99_cycles),
            p999_ratio: ratio(|times| times.p999_cycles),
            all_p999_ratio: ratio(|times| times.all_p999_cycles),
        })
    }

    /// Changes the configuration again and again, each time as a whole instance with one worker
    /// does: ports out, over, ports in. Between two changes the engine does what the last one left
    /// it to do. Another thread prepares each change and frees what it replaced, under traffic.
    pub(crate) fn reload(&mut self, seconds: f64) -> Result<Done, StallsError> {
        let original = self.shared.settings().clone();
        let until = self.cycles + (seconds * self.hz) as u64;
        let mut changes = 0;
        while self.cycles < until || changes < CHANGES.len() as u64 {
            let settings = (CHANGES[changes as usize % CHANGES.len()])(&original, changes);
            self.change(settings)?;
            changes += 1;
            self.run_for(BETWEEN_CHANGES_SECONDS);
        }
        // The events that follow find what they expect.
        self.change(original)?;
        self.run_for(AFTER_CHANGES_SECONDS);
        Ok(Done { records: changes, refused: 0 })
    }

    fn change(&mut self, settings: Settings) -> Result<(), StallsError> {
        let before = Arc::clone(&self.shared);
        let now = self.now();
        let (after, reshapes, mut successor) = self.beside(|| {
            let after = Arc::new(before.successor(settings, now)?);
            let reshapes = after.reshapes(&before);
            let successor = Successor::new(&before, &after);
            Ok::<_, StallsError>((after, reshapes, successor))
        })??;
        for reshape in &reshapes {
            self.traffic_round(Some(Ask::Reshape(&after, reshape, Offers::Fewer)));
        }
        self.traffic_round(Some(Ask::Adopt(&mut successor)));
        expect("a change was not adopted", u64::from(self.shard.shared().generation()), u64::from(after.generation()))?;
        for reshape in &reshapes {
            self.traffic_round(Some(Ask::Reshape(&after, reshape, Offers::More)));
        }
        self.shared = Arc::clone(&after);
        self.beside(|| {
            after.settle_hits(&before);
            after.settle();
            // The last that have the old settings.
            drop((successor, before));
        })
    }

    /// Does something on another CPU, as the control thread of an instance does, while traffic goes
    /// on.
    fn beside<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> Result<T, StallsError> {
        let other = self.other_core;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                if let Some(core) = other {
                    core_affinity::set_for_current(core);
                }
                work()
            });
            while !thread.is_finished() {
                self.traffic_round(None);
            }
            thread.join().map_err(|_| StallsError::Panicked)
        })
    }

    /// Lists all sessions, again and again until that took long enough to measure. Returns how many
    /// each list had.
    fn dump(&mut self, seconds: f64) -> Result<Done, StallsError> {
        let until = self.cycles + (seconds * self.hz) as u64;
        loop {
            let mut list = Listing::new();
            while !list.ended {
                self.traffic_round(Some(Ask::Page(&mut list)));
            }
            expect("not every session was listed once", list.seen, self.shard.sessions_len())?;
            expect("other sessions were listed than there are", list.sum, self.sum)?;
            if self.cycles >= until {
                return Ok(Done { records: list.seen, refused: 0 });
            }
        }
    }

    /// Opens flows until no TCP port is free, and goes on as long again.
    fn fill_pool(&mut self) -> Result<Done, StallsError> {
        let free = self.free_ports();
        let (made_before, refused_before) = (created(self.shard.counters()), self.ports_exhausted());
        let mut rounds = 0;
        // A flow of a subscriber that has no other gets a port while there is any, so that each
        // round takes one.
        while created(self.shard.counters()) - made_before < free && rounds < free {
            self.filling_round();
            rounds += 1;
        }
        expect("the pool did not run full", self.free_ports(), 0)?;
        for _ in 0..rounds {
            self.filling_round();
        }
        expect("ports of the full pool became free", self.free_ports(), 0)?;
        let refused = self.ports_exhausted() - refused_before;
        // At least the flows of those that had no other.
        expect("flows of the full pool were not refused", refused.min(rounds), rounds)?;
        self.refused += refused;
        Ok(Done { records: created(self.shard.counters()) - made_before, refused })
    }

    /// One round in which two of the packets open flows: one of a subscriber that has no other, and
    /// one of a subscriber that has, whose address may be full while others are not.
    fn filling_round(&mut self) {
        self.write_traffic();
        let fresh = Flow::new(true, self.filling_subscriber, FILLING_PORT_FIRST);
        self.filling_subscriber += 1;
        let known = self.flows[self.random.random_range(0..self.flows.len())].internal_address;
        let port = self.random.random_range(FILLING_PORT_FIRST..=u16::MAX);
        // Both slots are for packets from inside.
        traffic::write_outbound(&mut self.buffers[0].0, &fresh, SYN);
        traffic::write_outbound(&mut self.buffers[BURST / 2].0, &Flow::new(true, known, port), SYN);
        self.round(BURST, side, None);
    }

    /// Skips the wait, and gets to the very instant at which the flows end.
    fn approach_the_end(&mut self) {
        self.skip_to(Instant::from_micros(ENDING_AFTER.as_micros() - RUN_UP.as_micros()));
        while self.now() < Instant::ORIGIN + ENDING_AFTER {
            self.traffic_round(None);
        }
        self.reset();
    }

    /// Traffic until the sweep has ended all flows that have run out.
    fn expire(&mut self) -> Result<Done, StallsError> {
        let removed_before = removed(self.shard.counters());
        let rounds_max = u64::from(self.shared.settings().limits.mappings_max) * CALLS_PER_MAPPING_MAX + LOOK_EVERY;
        for rounds in 1..=rounds_max {
            self.traffic_round(None);
            // Flows that filled the pool end soon after; the ports show which flows are left. There
            // are many of them to look at.
            if removed(self.shard.counters()) - removed_before >= self.ending
                && rounds.is_multiple_of(LOOK_EVERY.min(self.ending))
                && self.ending_ports_used() == 0
            {
                return Ok(Done { records: self.ending, refused: 0 });
            }
        }
        Err(StallsError::Unexpected {
            what: "sessions that ran out were not swept",
            seen: self.ending_ports_used(),
            expected: 0,
        })
    }

    /// Addresses of the pool of all but the flows that end, which is the first.
    fn addresses(&self) -> impl Iterator<Item = AddressIndex> {
        let count = self.shared.settings().pools.first().map_or(0, |pool| pool.addresses.len());
        (0..count as u32).map(AddressIndex)
    }

    /// TCP ports of these addresses that nobody has.
    fn free_ports(&self) -> u64 {
        let free = |address| {
            self.shared.ports_available(address, Protocol::Tcp) - self.shared.ports_used(address, Protocol::Tcp)
        };
        self.addresses().map(free).map(u64::from).sum()
    }

    /// TCP ports that flows still have that were to end.
    fn ending_ports_used(&self) -> u64 {
        let others = self.addresses().count() as u32..self.shared.address_count() as u32;
        others.map(|address| u64::from(self.shared.ports_used(AddressIndex(address), Protocol::Tcp))).sum()
    }

    fn ports_exhausted(&self) -> u64 {
        self.shard.counters().of(Verdict::PortsExhausted)
    }

    /// Whether all packets went through but those refused because no port was free.
    pub(crate) fn expect_no_drops(&self) -> Result<(), StallsError> {
        expect("packets were dropped", dropped(self.shard.counters()), self.refused)
    }
}

/// One more rule that no packet of the traffic matches.
fn with_rule(original: &Settings, number: u64) -> Settings {
    let mut settings = original.clone();
    settings.rules.push(Rule { matches: nobody(number), action: RuleAction::Drop });
    settings
}

/// Another filter: every session is judged anew by its next packet.
fn with_filter(original: &Settings, number: u64) -> Settings {
    let mut settings = original.clone();
    let filter = FilterRule { matches: nobody(number), action: FilterAction::Deny, out: true, back: true, log: false };
    settings.filters.push(filter);
    settings
}

/// Shorter timers, which no session of the traffic runs into: the sweep looks at every record for
/// those that are silent.
fn with_timers(original: &Settings, number: u64) -> Settings {
    let mut settings = original.clone();
    let shorter = nat::Duration::from_secs(80_000 - number % 1_000);
    (settings.timeouts.udp, settings.timeouts.tcp_established) = (shorter, shorter);
    settings
}

/// The address of the first pool that is last is taken away: its mappings drain.
fn without_address(original: &Settings, _: u64) -> Settings {
    let mut settings = original.clone();
    if let Some(pool) = settings.pools.first_mut() {
        pool.addresses.pop();
    }
    settings
}

/// Other ports of all addresses of the first pool are not given out: each address is changed by
/// itself.
fn with_reserved(original: &Settings, number: u64) -> Settings {
    let mut settings = original.clone();
    if let Some(pool) = settings.pools.first_mut() {
        pool.reserved_ports = vec![60_000 + (number % 1_000) as u16];
    }
    settings
}

/// Packets that nobody sends.
fn nobody(number: u64) -> Match {
    let host = Ipv4Addr::from_bits(Ipv4Addr::new(240, 0, 0, 0).to_bits() | (number as u32 & 0xffff));
    Match { destination: Prefix::new(host, 32).unwrap_or(Prefix::ALL), ..Match::ALL }
}

/// Half of the packets come from inside.
fn side(slot: usize) -> Side {
    if slot.is_multiple_of(2) { Side::Inside } else { Side::Outside }
}

/// A stride through `count` places that comes to each of them once, and jumps far.
fn far_stride(count: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (count as f64 * 0.618) as u64;
    (golden.max(1)..).find(|stride| gcd(*stride, count) == 1).unwrap_or(1)
}
