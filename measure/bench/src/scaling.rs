//! `natrix bench scaling`: what further workers bring, in one run.
//!
//! ```text
//!   one worker with all sessions        ─┐
//!   workers, each with its share         ├─ in turns, so that the machine disturbs all alike
//!     steered: each packet arrives       │
//!       at the worker that owns it       │
//!     handoff: each packet from outside ─┘
//!       arrives at the next worker, and passes the ring to its owner
//! ```
//!
//! These are the workers of `natrix run`: `Worker::poll` with its rings, Ethernet headers and
//! transmit queues; only the ports are memory. Who owns a packet is asked of the engine's own
//! steering ([`Shared::worker_of_subscriber`], [`Shared::owner`]). Timed are the polls that had
//! something to do, less what the operating system gave to others meanwhile. Frames are written
//! between polls.

mod ports;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Barrier;

use core_affinity::CoreId;
use daemon::InterfaceLink;
use daemon::LinkMode;
use daemon::Worker;
use daemon::WorkerOptions;
use daemon::build_workers;
use mem::Arena;
use mem::Need;
use mem::NotEnough;
use mem::Stock;
use mem::tsc;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::types::WorkerId;
use packet_io::PortIndex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::EventsTo;
use crate::burst_times::Begun;
use crate::engine;
use crate::family::Family;
use crate::traffic;
use crate::traffic::ACK;
use crate::traffic::BURST;
use crate::traffic::Drawn;
use crate::traffic::Flow;
use crate::traffic::SYN;
use ports::Ports;

#[cfg(test)]
mod tests;

/// Times each arrangement has its turn.
const ROUNDS: usize = 5;
/// Seconds of traffic before the first turn, of each arrangement.
const WARM_UP_SECONDS: f64 = 0.2;
/// Polls after which a fault is assumed where packets are waited for.
const POLLS_MAX: usize = 1 << 20;
/// Ports of the workers.
const INSIDE: usize = 0;
const OUTSIDE: usize = 1;

/// Where packets from outside arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// At the worker that owns them, as network cards with flow rules do it.
    Steered,
    /// At another worker, all of them.
    Handoff,
}

impl Arrival {
    /// Both.
    pub const ALL: [Arrival; 2] = [Arrival::Steered, Arrival::Handoff];
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sessions in all, all established.
    pub sessions: u64,
    /// Workers beside the one that does it alone: 2 or more.
    pub workers: usize,
    /// Which arrivals.
    pub arrivals: Vec<Arrival>,
    /// Length of all turns of one arrangement together, seconds.
    pub seconds: f64,
    /// Of the order of the packets, each worker its own.
    pub seed: u64,
}

/// One arrangement beside the worker alone. Rates are medians over the turns.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where packets from outside arrived.
    pub arrival: Arrival,
    /// Sessions in all.
    pub sessions: u64,
    /// Workers.
    pub workers: usize,
    /// Turns.
    pub rounds: usize,
    /// Million packets a second of the worker alone, in its own time.
    pub one_worker_mpps: f64,
    /// Million packets a second of all workers, each in its own time.
    pub mpps: f64,
    /// `mpps` to `one_worker_mpps`, turn by turn.
    pub ratio: f64,
    /// Smallest of these.
    pub ratio_min: f64,
    /// Largest of these.
    pub ratio_max: f64,
    /// TSC cycles a packet of the worker alone.
    pub one_worker_cycles_per_packet: f64,
    /// TSC cycles a packet, of all workers together.
    pub cycles_per_packet: f64,
    /// In wall-clock time, with the writing of frames.
    pub one_worker_wall_mpps: f64,
    /// The same of all workers.
    pub wall_mpps: f64,
    /// Packets that passed a ring, of all.
    pub handed_off_share: f64,
}

/// Why the benchmark could not run.
#[derive(Debug, thiserror::Error)]
pub enum ScalingError {
    /// The engine could not be built.
    #[error(transparent)]
    Build(#[from] nat::BuildError),
    /// Memory for the benchmark's own data.
    #[error("bench scaling: {0}")]
    Memory(#[from] mem::ArenaError),
    /// Not everything fits this machine's memory. Nothing has been taken.
    #[error("bench scaling: {0}; ask for fewer sessions or workers, or add memory")]
    NotEnough(#[from] NotEnough),
    /// A number makes no sense.
    #[error("bench scaling: {what} is out of range ({value}); {remedy}")]
    Option {
        /// Which.
        what: &'static str,
        /// Value seen.
        value: String,
        /// What to do.
        remedy: String,
    },
    /// The workers did not do what the benchmark needs; the figures would mean nothing.
    #[error("bench scaling: {what} ({seen}, expected {expected}); this is a fault of Natrix, please report it")]
    Unexpected {
        /// What.
        what: &'static str,
        /// Value seen.
        seen: u64,
        /// Value expected.
        expected: u64,
    },
    /// A worker thread died.
    #[error("bench scaling: a worker panicked")]
    Worker,
}

fn expect(what: &'static str, seen: u64, expected: u64) -> Result<(), ScalingError> {
    if seen == expected { Ok(()) } else { Err(ScalingError::Unexpected { what, seen, expected }) }
}

/// Runs the benchmark. `warn` is called at most once, when all memory is taken and some of it is
/// not on hugepages.
///
/// # Errors
/// [`ScalingError`] when memory is short (before any is taken), an option makes no sense, or
/// packets did not go where they should.
pub fn run(options: &Options, warn: &dyn Fn(&str)) -> Result<Vec<Report>, ScalingError> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    check(options, cores.len())?;
    let settings = [1, options.workers].map(|workers| settings(options, workers));
    let mut sum = needs(options, &settings[0], 1);
    sum.extend(needs(options, &settings[1], options.workers));
    let plan = Stock::of_this_machine().plan(sum)?;
    let hz = tsc::frequency_hz(100);
    let [alone, shared] = settings;
    let mut alone = Team::new(alone, 1, options, hz)?;
    let mut team = Team::new(shared, options.workers, options, hz)?;
    if let Some(warning) = plan.warning(mem::missed_bytes()) {
        warn(&warning);
    }
    alone.establish()?;
    team.establish()?;
    let mut turns: Vec<(Arrival, Vec<(Turn, Turn)>)> =
        options.arrivals.iter().map(|arrival| (*arrival, Vec::new())).collect();
    for round in 0..=ROUNDS {
        // The first round only warms up.
        let seconds = if round == 0 { WARM_UP_SECONDS } else { options.seconds / ROUNDS as f64 };
        for (arrival, turns) in &mut turns {
            let one = alone.turn(Arrival::Steered, seconds, &cores)?;
            let all = team.turn(*arrival, seconds, &cores)?;
            if round > 0 {
                turns.push((one, all));
            }
        }
    }
    Ok(turns.into_iter().map(|(arrival, turns)| report(options, arrival, &turns, hz)).collect())
}

fn check(options: &Options, cores: usize) -> Result<(), ScalingError> {
    let out_of_range = |what, value: String, remedy: String| Err(ScalingError::Option { what, value, remedy });
    if options.workers < 2 || options.workers > WorkerId::COUNT_MAX {
        return out_of_range("--workers", options.workers.to_string(), "give 2 to 64".to_owned());
    }
    if options.workers > cores {
        let remedy = format!("give each a CPU of its own: it may run on {cores}");
        return out_of_range("--workers", options.workers.to_string(), remedy);
    }
    let least = (options.workers * BURST) as u64;
    let most = engine::SESSIONS_OF_WORKER_MAX;
    if options.sessions < least || options.sessions > most {
        return out_of_range("--sessions", options.sessions.to_string(), format!("give {least} to {most}"));
    }
    if !(options.seconds > 0.0 && options.seconds <= 600.0) {
        return out_of_range("--seconds", options.seconds.to_string(), "give more than 0 and at most 600".to_owned());
    }
    Ok(())
}

fn settings(options: &Options, workers: usize) -> Settings {
    let mode = engine::Mode::Established;
    let (sessions, seconds) = (options.sessions, options.seconds);
    engine::settings(&engine::Options {
        family: Family::Nat44,
        allocation: engine::Ports::Ports,
        sessions,
        mode,
        workers,
        seconds,
        events: EventsTo::Nowhere,
        filters: 0,
        gateways: false,
    })
}

/// Everything one team takes.
fn needs(options: &Options, settings: &Settings, workers: usize) -> Vec<Need> {
    let mut needs = nat::memory::needs(settings, workers);
    let flows = traffic::flows_need(options.sessions.div_ceil(workers as u64));
    needs.extend((0..workers).flat_map(|_| [flows, Need::Heap(2 << 20)]));
    needs
}

fn report(options: &Options, arrival: Arrival, turns: &[(Turn, Turn)], hz: f64) -> Report {
    let median = |of: &dyn Fn(&(Turn, Turn)) -> f64| {
        let mut values: Vec<f64> = turns.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let ratio = |(one, all): &(Turn, Turn)| all.mpps(hz) / one.mpps(hz);
    Report {
        arrival,
        sessions: options.sessions,
        workers: options.workers,
        rounds: turns.len(),
        one_worker_mpps: median(&|(one, _)| one.mpps(hz)),
        mpps: median(&|(_, all)| all.mpps(hz)),
        ratio: median(&ratio),
        ratio_min: turns.iter().map(ratio).fold(f64::INFINITY, f64::min),
        ratio_max: turns.iter().map(ratio).fold(0.0, f64::max),
        one_worker_cycles_per_packet: median(&|(one, _)| one.cycles_per_packet()),
        cycles_per_packet: median(&|(_, all)| all.cycles_per_packet()),
        one_worker_wall_mpps: median(&|(one, _)| one.wall_mpps()),
        wall_mpps: median(&|(_, all)| all.wall_mpps()),
        handed_off_share: median(&|(_, all)| all.handed_off_share()),
    }
}

/// What one worker did in a turn.
#[derive(Clone, Copy, Default)]
struct Share {
    /// Packets sent.
    packets: u64,
    /// TSC cycles of its polls that had something to do, less those in which it was off its core.
    cycles: f64,
    handed_off: u64,
}

/// What all workers of a team did in a turn.
struct Turn {
    shares: Vec<Share>,
    wall_seconds: f64,
}

impl Turn {
    fn packets(&self) -> f64 {
        self.shares.iter().map(|share| share.packets as f64).sum()
    }

    fn mpps(&self, hz: f64) -> f64 {
        self.shares.iter().map(|share| share.packets as f64 / (share.cycles / hz) / 1e6).sum()
    }

    fn cycles_per_packet(&self) -> f64 {
        self.shares.iter().map(|share| share.cycles).sum::<f64>() / self.packets()
    }

    fn wall_mpps(&self) -> f64 {
        self.packets() / self.wall_seconds / 1e6
    }

    fn handed_off_share(&self) -> f64 {
        self.shares.iter().map(|share| share.handed_off as f64).sum::<f64>() / self.packets()
    }
}

/// A worker's place among the others in a turn.
struct Place<'a> {
    arrival: Arrival,
    /// Whose packets from outside arrive here.
    others: &'a [Flow],
    /// Packets each worker has taken from rings so far, for the worker that hands them off to it.
    taken: &'a [AtomicU64],
    /// The worker it hands off to.
    next: usize,
    stop: &'a AtomicBool,
    barrier: &'a Barrier,
    seconds: f64,
    hz: f64,
}

/// Workers that share one instance, and the flows each of them owns.
struct Team {
    shared: Arc<Shared>,
    members: Vec<Member>,
    flows: Vec<Arena<Flow>>,
    hz: f64,
    start: u64,
}

struct Member {
    worker: Worker<Ports>,
    random: SmallRng,
    /// Flows of the next packets from each side.
    drawn: [Drawn; 2],
}

impl Team {
    fn new(settings: Settings, workers: usize, options: &Options, hz: f64) -> Result<Team, ScalingError> {
        let Options { sessions, seed, .. } = *options;
        let shared = Arc::new(Shared::new(settings, workers)?);
        let links = [INSIDE, OUTSIDE].map(|port| InterfaceLink { port: PortIndex(port as u16), vlan: None });
        let ios = (0..workers).map(|_| Ports::new()).collect();
        // Nobody answers ARP here.
        let worker_options = WorkerOptions { mode: LinkMode::Offline, ..WorkerOptions::default() };
        let built = build_workers(&shared, &links, ios, &worker_options, [1, 2, 3, 4], Instant::ORIGIN)?;
        let share = |worker: usize| sessions / workers as u64 + u64::from((worker as u64) < sessions % workers as u64);
        let flows =
            (0..workers).map(|worker| traffic::flows(&shared, Family::Nat44, WorkerId(worker as u8), share(worker)));
        Ok(Team {
            flows: flows.collect::<Result<_, _>>()?,
            members: built
                .into_iter()
                .map(|worker| Member {
                    drawn: [Drawn::new(), Drawn::new()],
                    random: SmallRng::seed_from_u64((seed << 8) + worker.id().index() as u64),
                    worker,
                })
                .collect(),
            shared,
            hz,
            start: 0,
        })
    }

    /// Opens all sessions at their workers, has the servers answer, and asks the steering whether
    /// it knows their owners.
    fn establish(&mut self) -> Result<(), ScalingError> {
        for (index, (member, flows)) in self.members.iter_mut().zip(&mut self.flows).enumerate() {
            for burst in flows.chunks_mut(BURST) {
                member.open(burst);
            }
            for burst in flows.chunks(BURST) {
                member.answer(burst);
            }
            let counters = member.worker.counters();
            expect("packets were dropped", engine::dropped(counters), 0)?;
            expect("packets from inside were handed off", counters.handed_off, 0)?;
            expect("not every first packet made a session", engine::created(counters), flows.len() as u64)?;
            let owned = flows.iter().filter(|flow| owner(&self.shared, flow) == Some(WorkerId(index as u8))).count();
            expect("sessions are not their worker's", owned as u64, flows.len() as u64)?;
        }
        self.start = tsc::read();
        Ok(())
    }

    /// All workers at once, each on a core of its own.
    fn turn(&mut self, arrival: Arrival, seconds: f64, cores: &[CoreId]) -> Result<Turn, ScalingError> {
        let count = self.members.len();
        let (barrier, stop) = (Barrier::new(count), AtomicBool::new(false));
        let before: Vec<u64> = self.members.iter().map(|member| member.worker.counters().taken_over).collect();
        let taken: Vec<AtomicU64> = before.into_iter().map(AtomicU64::new).collect();
        let (flows, start, hz) = (&self.flows, self.start, self.hz);
        let clock = std::time::Instant::now();
        let shares = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .members
                .iter_mut()
                .zip(flows)
                .zip(cores)
                .enumerate()
                .map(|(index, ((member, own), core))| {
                    let next = (index + 1) % count;
                    let others = if arrival == Arrival::Steered { own } else { &flows[next] };
                    let place =
                        Place { arrival, others, taken: &taken, next, stop: &stop, barrier: &barrier, seconds, hz };
                    scope.spawn(move || {
                        core_affinity::set_for_current(*core);
                        member.turn(own, &place, start)
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| ScalingError::Worker))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let turn = Turn { shares, wall_seconds: clock.elapsed().as_secs_f64() };
        self.check_turn(arrival, &turn)?;
        Ok(turn)
    }

    /// Whether all packets went where they should.
    fn check_turn(&self, arrival: Arrival, turn: &Turn) -> Result<(), ScalingError> {
        let (mut handed_off, mut taken_over) = (0, 0);
        for member in &self.members {
            let counters = member.worker.counters();
            expect("packets were dropped", engine::dropped(counters), 0)?;
            expect("packets are still on their way", member.worker.io().waiting() as u64, 0)?;
            handed_off += counters.handed_off;
            taken_over += counters.taken_over;
        }
        expect("packets were lost between workers", taken_over, handed_off)?;
        let handed_off: u64 = turn.shares.iter().map(|share| share.handed_off).sum();
        match arrival {
            Arrival::Steered => expect("packets were handed off", handed_off, 0),
            Arrival::Handoff => expect("no packet was handed off", u64::from(handed_off > 0), 1),
        }
    }
}

/// The worker the steering gives a flow's packets from outside to.
fn owner(shared: &Shared, flow: &Flow) -> Option<WorkerId> {
    let address = shared.address_index(flow.external_address.into())?;
    let protocol = if flow.is_tcp() { Protocol::Tcp } else { Protocol::Udp };
    shared.owner(address, protocol, flow.external_port).map(|(worker, _)| worker)
}

impl Member {
    /// Opens the flows of a burst, and learns their external endpoints.
    fn open(&mut self, flows: &mut [Flow]) {
        let io = self.worker.io_mut();
        io.seen = Some(Vec::with_capacity(BURST));
        for flow in flows.iter() {
            io.put(INSIDE, |packet| traffic::write_outbound(packet, flow, SYN));
        }
        self.worker.poll(Instant::ORIGIN);
        let seen = self.worker.io_mut().seen.take().unwrap_or_default();
        for (flow, packet) in flows.iter_mut().zip(&seen) {
            flow.learn(packet);
        }
    }

    fn answer(&mut self, flows: &[Flow]) {
        for flow in flows {
            self.worker.io_mut().put(OUTSIDE, |packet| traffic::write_inbound(packet, flow, SYN | ACK));
        }
        self.worker.poll(Instant::ORIGIN);
    }

    /// Traffic until somebody says stop, then until nothing is on its way.
    fn turn(&mut self, own: &[Flow], place: &Place<'_>, start: u64) -> Share {
        let now = || Instant::from_micros((tsc::read().wrapping_sub(start) as f64 / place.hz * 1e6) as u64);
        let (sent, handed_off) = (self.worker.io().sent, self.worker.counters().handed_off);
        let mut share = Share::default();
        self.drawn[OUTSIDE].forget();
        place.barrier.wait();
        let end = tsc::read() + (place.seconds * place.hz) as u64;
        while !place.stop.load(Ordering::Relaxed) {
            self.feed(own, place);
            let begun = Begun::now();
            let taken = self.worker.poll(now());
            let cycles = begun.own_cycles(place.hz);
            if taken > 0 {
                share.cycles += cycles;
            }
            self.tell(place);
            if tsc::read() > end {
                place.stop.store(true, Ordering::Relaxed);
            }
        }
        share.packets = self.worker.io().sent - sent;
        share.handed_off = self.worker.counters().handed_off - handed_off;
        // Nobody puts anything in any more once all are here; what is in the rings then is all
        // there is.
        self.worker.poll(now());
        place.barrier.wait();
        for _ in 0..POLLS_MAX {
            if self.worker.poll(now()) == 0 && self.worker.is_quiet() {
                break;
            }
        }
        share
    }

    /// Puts a burst into the queue of each port. Packets for another worker wait until it has room
    /// for them.
    fn feed(&mut self, own: &[Flow], place: &Place<'_>) {
        if place.arrival == Arrival::Handoff {
            let there = place.taken.get(place.next).map_or(0, |taken| taken.load(Ordering::Acquire));
            let on_their_way = self.worker.counters().handed_off.saturating_sub(there);
            if on_their_way as usize + BURST > WorkerOptions::default().ring_packets / 2 {
                return;
            }
        }
        for _ in 0..BURST {
            let outbound = self.drawn[INSIDE].next(own, &mut self.random);
            let inbound = self.drawn[OUTSIDE].next(place.others, &mut self.random);
            let io = self.worker.io_mut();
            io.put(INSIDE, |packet| traffic::write_outbound(packet, &outbound, ACK));
            io.put(OUTSIDE, |packet| traffic::write_inbound(packet, &inbound, ACK));
        }
    }

    fn tell(&self, place: &Place<'_>) {
        if let Some(taken) = place.taken.get(self.worker.id().index()) {
            taken.store(self.worker.counters().taken_over, Ordering::Release);
        }
    }
}
