//! `natrix bench forward`: the whole path of a packet, from a DPDK driver's receive to its
//! transmit, beside plain forwarding.
//!
//! ```text
//!   far end ─► driver ─► Worker::poll: receive, steer, translate, neighbour, transmit ─► driver
//!   far end ─► driver ─► receive, new Ethernet addresses, transmit                    ─► driver
//!              driver ─► dpdk-testpmd, mode mac                                       ─► driver
//! ```
//!
//! The worker is the daemon's own, with its mailbox and its clock, on one thread. Frames of 64
//! bytes arrive in bursts of 64 on both ports, half UDP and half TCP, sessions in random order. The
//! far ends run on the same thread between two polls: they write each frame anew, with right
//! checksums, answer ARP, and look at what leaves. Only the polls are timed. The three ways take
//! turns, and medians are reported. When packets were not translated there is no report but an
//! error.

mod bed;
mod cpu_time;
mod far_ends;
mod frame;
mod link;
mod testpmd;
mod traffic;

use core::fmt;
use std::sync::Arc;

use daemon::InterfaceLink;
use daemon::Worker;
use daemon::WorkerOptions;
use daemon::build_workers;
use daemon::clock::Clock;
use daemon::mailbox::mailbox;
use hdrhistogram::Histogram;
use mem::NotEnough;
use mem::Stock;
use mem::tsc;
use nat::Counters;
use nat::Shared;
use nat::Verdict;
use nat::verdict::VerdictKind;
use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk;
use packet_io::dpdk::DpdkError;
use serde::Serialize;
use wire::ethernet::MacAddress;

use bed::Bed;
pub use frame::FrameFault;
use link::Link;
use testpmd::Testpmd;
use traffic::Device;
use traffic::HOSTS;
use traffic::Script;
use traffic::Traffic;

/// How often natrix, plain forwarding and testpmd take turns.
pub const ROUNDS: u32 = 5;
/// How long the far ends wait for a link, or for Natrix to open what they opened.
const PATIENCE: core::time::Duration = core::time::Duration::from_secs(60);

/// A DPDK driver without hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Driver {
    /// Rings in the process: passes pointers, costs next to nothing.
    #[serde(rename = "net_ring")]
    Ring,
    /// Shared memory between two ports, as between two processes: copies each frame both ways.
    #[serde(rename = "net_memif")]
    Memif,
    /// Buffers out of the pool and back into it.
    #[serde(rename = "net_null")]
    Null,
}

impl Driver {
    /// All of them.
    pub const ALL: [Driver; 3] = [Driver::Ring, Driver::Memif, Driver::Null];

    /// DPDK's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Driver::Ring => "net_ring",
            Driver::Memif => "net_memif",
            Driver::Null => "net_null",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Drivers, one after the other.
    pub drivers: Vec<Driver>,
    /// Sessions, all established before the clock runs.
    pub sessions: u64,
    /// How long each of the three ways runs on each driver, seconds, all rounds together and far
    /// ends included.
    pub seconds: f64,
    /// The program to compare with; None: without.
    pub testpmd: Option<String>,
    /// Whether the far ends of `net_memif` have a CPU of their own, as between two programs.
    pub apart: bool,
}

/// The result on one driver. Medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The driver.
    pub driver: Driver,
    /// Sessions, half UDP and half TCP.
    pub sessions: u64,
    /// Asked for, of each of the three ways.
    pub seconds: f64,
    /// Turns each of them had.
    pub rounds: u32,
    /// Share of the CPU that natrix got in its turns; where it is much less than 1 others were busy
    /// there.
    pub cpu_share: f64,
    /// Million packets a second of CPU time through the worker: the TSC's rate over the cycles of
    /// its polls, far ends not counted.
    pub natrix_mpps: f64,
    /// The same of receive, new Ethernet addresses, transmit.
    pub plain_mpps: f64,
    /// Million packets a second of CPU time that testpmd sent by its own count; None when it was
    /// not run.
    pub testpmd_mpps: Option<f64>,
    /// Why it was not run.
    pub testpmd_reason: Option<String>,
    /// `natrix_mpps / plain_mpps`.
    pub natrix_to_plain: f64,
    /// `natrix_mpps / testpmd_mpps`.
    pub natrix_to_testpmd: Option<f64>,
    /// TSC cycles of a poll per packet, while the thread had the CPU.
    pub natrix_cycles_per_packet: f64,
    /// The same of plain forwarding.
    pub plain_cycles_per_packet: f64,
    /// TSC cycles per packet of the median poll.
    pub natrix_p50_cycles_per_packet: f64,
    /// The same of plain forwarding.
    pub plain_p50_cycles_per_packet: f64,
    /// Million packets a second in wall-clock time, with the far ends, which share the
    /// thread.
    pub natrix_wall_mpps: f64,
    /// The same of plain forwarding.
    pub plain_wall_mpps: f64,
    /// Packets of sessions that left Natrix translated, all rounds.
    pub natrix_packets: u64,
    /// Packets that plain forwarding sent on, all rounds.
    pub plain_packets: u64,
    /// Packets Natrix dropped, whatever the verdict.
    pub natrix_dropped: u64,
    /// Packets that plain forwarding did not bring to the far end.
    pub plain_dropped: u64,
    /// Frames from Natrix whose every byte was checked, opening included.
    pub frames_checked: u64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// DPDK did not start.
    #[error(transparent)]
    Dpdk(#[from] DpdkError),
    /// The engine could not be built.
    #[error(transparent)]
    Build(#[from] nat::BuildError),
    /// Not everything fits this machine's memory. Nothing has been taken.
    #[error("bench forward: {0}; ask for fewer sessions, or add memory")]
    NotEnough(#[from] NotEnough),
    /// A number makes no sense.
    #[error("bench forward: {what} is out of range ({value}); {remedy}")]
    Option {
        /// Which.
        what: &'static str,
        /// Value seen.
        value: String,
        /// What to do.
        remedy: String,
    },
    /// A link between two of the benchmark's own ports stays down.
    #[error(
        "bench forward: a link of {driver} does not come up (waited for {seconds} s); see DPDK's own messages above"
    )]
    Link {
        /// The driver.
        driver: Driver,
        /// How long it was given.
        seconds: u64,
    },
    /// A frame that left is not what it has to be.
    #[error(
        "bench forward: on {driver} a frame left untranslated or damaged: {fault} ({bytes}); this is a fault of Natrix, please report it"
    )]
    Frame {
        /// The driver.
        driver: Driver,
        /// What is wrong.
        fault: FrameFault,
        /// The frame.
        bytes: String,
    },
    /// Natrix did not do what the benchmark needs; the figures would mean nothing.
    #[error("bench forward: on {driver} {what} ({value}); this is a fault of Natrix, please report it")]
    Unexpected {
        /// The driver.
        driver: Driver,
        /// What.
        what: &'static str,
        /// Value seen.
        value: u64,
    },
}

/// Measures on one driver after the other; one report for each. `warn` is called at most once, when
/// the engine has its memory and some of it is not on hugepages; DPDK's is on ordinary pages on
/// purpose. Starts DPDK, so once per process. The calling thread is pinned to the first CPU it may
/// run on, and testpmd runs there in its turns.
///
/// # Errors
/// [`ForwardError`] when an option makes no sense, DPDK does not start, or packets were not
/// translated.
pub fn run(options: &Options, mut warn: impl FnMut(&str)) -> Result<Vec<Report>, ForwardError> {
    check(options)?;
    let plan = Stock::of_this_machine().plan(bed::needs(options.sessions))?;
    let mut warned = false;
    let bed = Bed::new(&options.drivers);
    // Both ends of a link are in this process, which may wait for a CPU.
    let begun = std::time::Instant::now();
    let mut dpdk = dpdk::start_patiently(&bed.dpdk, &mut |_| begun.elapsed() < PATIENCE)?;
    // One view for the one worker asked for.
    let Some(mut dpdk) = dpdk.pop() else { return Ok(Vec::new()) };
    let cpus = core_affinity::get_core_ids().unwrap_or_default();
    let cpu = cpus.first().copied();
    let far_cpu = cpus.get(1).copied().filter(|_| options.apart);
    if options.apart && far_cpu.is_none() {
        let remedy = "leave the option out, or allow a second CPU".to_owned();
        return Err(ForwardError::Option { what: "--apart", value: "one CPU".to_owned(), remedy });
    }
    if let Some(cpu) = cpu {
        core_affinity::set_for_current(cpu);
    }
    let hz = tsc::frequency_hz(100);
    let mut reports = Vec::new();
    for ports in &bed.ports {
        let link = Link::new(dpdk, *ports, Traffic::new(options.sessions as usize), far_cpu);
        let rival =
            options.testpmd.as_ref().map(|program| Testpmd::start(program, ports.driver, cpu.map_or(0, |cpu| cpu.id)));
        let mut run = Run::new(options, ports.driver, link, hz)?;
        if let Some(warning) = plan.warning(mem::missed_bytes()).filter(|_| !warned) {
            warn(&warning);
            warned = true;
        }
        reports.push(run.measure(rival)?);
        dpdk = run.worker.into_io().into_dpdk();
    }
    Ok(reports)
}

fn check(options: &Options) -> Result<(), ForwardError> {
    let out_of_range =
        |what, value: String, remedy: &str| Err(ForwardError::Option { what, value, remedy: remedy.to_owned() });
    if let Some(twice) = options.drivers.iter().enumerate().find(|(at, one)| options.drivers[..*at].contains(one)) {
        return out_of_range("--driver", format!("{} twice", twice.1), "name each driver once");
    }
    if options.sessions == 0 || options.sessions > bed::SESSIONS_MAX {
        let remedy = format!("give 1 to {}", bed::SESSIONS_MAX);
        return out_of_range("--sessions", options.sessions.to_string(), &remedy);
    }
    if !(options.seconds > 0.0 && options.seconds <= 3_600.0) {
        return out_of_range("--seconds", options.seconds.to_string(), "give more than 0 and at most 3600");
    }
    Ok(())
}

/// What one turn measured.
#[derive(Clone, Debug)]
struct Turn {
    /// Cycles of each poll.
    polls: Histogram<u64>,
    packets: u64,
    dropped: u64,
    /// In polls, without the far ends.
    cycles: u64,
    /// All of it.
    wall_cycles: u64,
    /// The part of it in which this thread had the CPU.
    cpu_share: f64,
}

impl Turn {
    fn new() -> Turn {
        let polls = Histogram::new(3).unwrap_or_else(|_| unreachable!("3 digits are valid"));
        Turn { polls, packets: 0, dropped: 0, cycles: 0, wall_cycles: 0, cpu_share: 1.0 }
    }

    fn count_poll(&mut self, cycles: u64) {
        self.cycles += cycles;
        let recorded = self.polls.record(cycles);
        debug_assert!(recorded.is_ok(), "the histogram grows by itself");
    }

    /// Every poll of a turn has as many packets.
    fn p50_cycles_per_packet(&self) -> f64 {
        self.polls.value_at_quantile(0.5) as f64 * self.polls.len() as f64 / self.packets as f64
    }

    /// Other programs take the CPU away in a poll as often as elsewhere.
    fn cycles_per_packet(&self) -> f64 {
        self.cycles as f64 * self.cpu_share / self.packets as f64
    }

    fn wall_cycles_per_packet(&self) -> f64 {
        self.wall_cycles as f64 / self.packets as f64
    }
}

/// One driver's run.
struct Run {
    driver: Driver,
    sessions: u64,
    seconds: f64,
    hz: f64,
    clock: Clock,
    worker: Worker<Link>,
    /// Keeps the worker's mailbox open, as the control server does.
    _asker: daemon::mailbox::Asker,
}

impl Run {
    fn new(options: &Options, driver: Driver, mut link: Link, hz: f64) -> Result<Run, ForwardError> {
        let waited = std::time::Instant::now();
        while !link.is_up() {
            if waited.elapsed() > PATIENCE {
                dpdk::show_messages();
                return Err(ForwardError::Link { driver, seconds: PATIENCE.as_secs() });
            }
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        link.offer_buffers();
        let clock = Clock::start();
        let shared = Arc::new(Shared::new(bed::settings(options.sessions), 1)?);
        let links = [0, 1].map(|port| InterfaceLink { port: PortIndex(port), vlan: None });
        let secret = [1, 2, 3, 4];
        let workers = build_workers(&shared, &links, vec![link], &WorkerOptions::default(), secret, clock.now())?;
        let missing = ForwardError::Unexpected { driver, what: "no worker was built", value: 0 };
        let mut worker = workers.into_iter().next().ok_or(missing)?;
        let (asker, inbox) = mailbox();
        worker.set_mailbox(inbox);
        Ok(Run { driver, sessions: options.sessions, seconds: options.seconds, hz, clock, worker, _asker: asker })
    }

    fn measure(&mut self, rival: Option<Result<Testpmd, String>>) -> Result<Report, ForwardError> {
        self.establish()?;
        let turn = self.seconds / f64::from(ROUNDS);
        let (mut rival, mut reason) = match rival {
            Some(Ok(rival)) => (Some(rival), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, Some("not asked for".to_owned())),
        };
        // Caches, branch predictors, and the CPU's clock.
        self.natrix_turn(turn / 4.0)?;
        self.plain_turn(turn / 4.0)?;
        let (mut natrix, mut plain, mut testpmd) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            natrix.push(self.natrix_turn(turn)?);
            plain.push(self.plain_turn(turn)?);
            match rival.as_mut().map(|rival| rival.packets_per_second(turn)) {
                Some(Ok(rate)) => testpmd.push(rate / 1e6),
                Some(Err(why)) => (rival, reason) = (None, Some(why)),
                None => {}
            }
        }
        drop(rival);
        let testpmd_mpps = if reason.is_none() { Some(median(testpmd)) } else { None };
        Ok(self.report(&natrix, &plain, testpmd_mpps, reason))
    }

    fn report(&self, natrix: &[Turn], plain: &[Turn], testpmd_mpps: Option<f64>, reason: Option<String>) -> Report {
        let median_of = |turns: &[Turn], of: fn(&Turn) -> f64| median(turns.iter().map(of).collect());
        let sum = |turns: &[Turn], of: fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>();
        let mpps = |cycles: f64| self.hz / cycles / 1e6;
        let natrix_cycles_per_packet = median_of(natrix, Turn::cycles_per_packet);
        let plain_cycles_per_packet = median_of(plain, Turn::cycles_per_packet);
        let natrix_mpps = mpps(natrix_cycles_per_packet);
        Report {
            driver: self.driver,
            sessions: self.sessions,
            seconds: self.seconds,
            rounds: ROUNDS,
            cpu_share: median_of(natrix, |turn| turn.cpu_share),
            natrix_mpps,
            plain_mpps: mpps(plain_cycles_per_packet),
            testpmd_mpps,
            testpmd_reason: reason,
            natrix_to_plain: plain_cycles_per_packet / natrix_cycles_per_packet,
            natrix_to_testpmd: testpmd_mpps.map(|testpmd| natrix_mpps / testpmd),
            natrix_cycles_per_packet,
            plain_cycles_per_packet,
            natrix_p50_cycles_per_packet: median_of(natrix, Turn::p50_cycles_per_packet),
            plain_p50_cycles_per_packet: median_of(plain, Turn::p50_cycles_per_packet),
            natrix_wall_mpps: mpps(median_of(natrix, Turn::wall_cycles_per_packet)),
            plain_wall_mpps: mpps(median_of(plain, Turn::wall_cycles_per_packet)),
            natrix_packets: sum(natrix, |turn| turn.packets),
            plain_packets: sum(plain, |turn| turn.packets),
            natrix_dropped: sum(natrix, |turn| turn.dropped),
            plain_dropped: sum(plain, |turn| turn.dropped),
            frames_checked: self.worker.io().far_ends().traffic.checked(),
        }
    }

    /// Opens every session, and has its server answer. Both neighbours are learnt by ARP on the
    /// way.
    fn establish(&mut self) -> Result<(), ForwardError> {
        let count = self.sessions as usize;
        // One first: what waits for its neighbour is bounded.
        for end in [1, count] {
            self.poll_until("not every session was opened", Script::Open { next: 0, end }, end, Traffic::opened)?;
        }
        for end in [1, count] {
            self.poll_until("not every session was answered", Script::Answer { next: 0, end }, end, Traffic::answered)?;
        }
        self.settle()?;
        let distinct = self.worker.io().far_ends().traffic.external_endpoints();
        if distinct != count {
            return Err(
                self.unexpected("sessions share an external endpoint, so that fewer are there", distinct as u64)
            );
        }
        let mappings = u64::from(self.worker.shard().view().mappings_len());
        if mappings != self.sessions {
            return Err(self.unexpected("there are not as many mappings as sessions", mappings));
        }
        Ok(())
    }

    fn poll_until(
        &mut self,
        what: &'static str,
        script: Script,
        count: usize,
        done: fn(&Traffic) -> usize,
    ) -> Result<(), ForwardError> {
        self.worker.io().far_ends().traffic.set_script(script);
        let waited = std::time::Instant::now();
        while done(&self.worker.io().far_ends().traffic) < count {
            self.natrix_poll()?;
            self.expect_good_frames()?;
            if waited.elapsed() > PATIENCE {
                return Err(self.unexpected(what, done(&self.worker.io().far_ends().traffic) as u64));
            }
        }
        Ok(())
    }

    /// Nothing arrives any more; what is inside leaves.
    fn settle(&mut self) -> Result<(), ForwardError> {
        self.worker.io().far_ends().traffic.set_script(Script::Silence);
        for _ in 0..4 {
            self.natrix_poll()?;
        }
        Ok(())
    }

    /// One poll of the worker between its far ends; the cycles it took, without theirs.
    fn natrix_poll(&mut self) -> Result<u64, ForwardError> {
        if !self.worker.io_mut().feed() {
            return Err(self.unexpected("the far end could not put in a burst", 0));
        }
        let far_cycles = self.worker.io().far_cycles;
        let begin = tsc::read();
        // As the daemon's threads do: the clock is read once per poll.
        let now = self.clock.now();
        self.worker.poll(now);
        let cycles = tsc::read().wrapping_sub(begin);
        let link = self.worker.io_mut();
        let far_cycles = link.far_cycles - far_cycles;
        link.drain();
        Ok(cycles.saturating_sub(far_cycles))
    }

    fn natrix_turn(&mut self, seconds: f64) -> Result<Turn, ForwardError> {
        let (written, seen) = self.worker.io().far_ends().traffic.begin(Device::Natrix);
        let (forwarded, dropped) = verdicts(self.worker.counters());
        let running = cpu_time::of_this_thread();
        let begin = tsc::read();
        let end = (seconds * self.hz) as u64;
        let mut turn = Turn::new();
        while turn.wall_cycles < end {
            turn.count_poll(self.natrix_poll()?);
            turn.wall_cycles = tsc::read().wrapping_sub(begin);
        }
        turn.cpu_share = cpu_time::share(running, cpu_time::of_this_thread(), turn.wall_cycles as f64 / self.hz * 1e9);
        self.expect_good_frames()?;
        let (forwarded_now, dropped_now) = verdicts(self.worker.counters());
        let (written_now, seen_now) = self.worker.io().far_ends().traffic.counts();
        (turn.packets, turn.dropped) = (seen_now - seen, dropped_now - dropped);
        let (written, forwarded) = (written_now - written, forwarded_now - forwarded);
        // Nobody waits for a neighbour any more, so what arrived has left or was dropped.
        if turn.packets != forwarded {
            return Err(self.unexpected("Natrix counts other translated packets than the far ends saw", forwarded));
        }
        if forwarded + turn.dropped != written {
            return Err(self.unexpected("packets got lost between the far ends", written - forwarded - turn.dropped));
        }
        if forwarded * 100 < written * 99 {
            return Err(self.unexpected("more than one packet in a hundred was dropped", turn.dropped));
        }
        Ok(turn)
    }

    fn plain_turn(&mut self, seconds: f64) -> Result<Turn, ForwardError> {
        let link = self.worker.io_mut();
        let (written, seen) = link.far_ends().traffic.begin(Device::Plain);
        let stations = link.far_ends().traffic.stations();
        let running = cpu_time::of_this_thread();
        let begin = tsc::read();
        let end = (seconds * self.hz) as u64;
        let mut turn = Turn::new();
        let mut fed = true;
        while turn.wall_cycles < end && fed {
            fed = link.feed();
            let far_cycles = link.far_cycles;
            let poll = tsc::read();
            forward(link, stations);
            turn.count_poll(tsc::read().wrapping_sub(poll).saturating_sub(link.far_cycles - far_cycles));
            link.drain();
            turn.wall_cycles = tsc::read().wrapping_sub(begin);
        }
        turn.cpu_share = cpu_time::share(running, cpu_time::of_this_thread(), turn.wall_cycles as f64 / self.hz * 1e9);
        let (written_now, seen_now) = link.far_ends().traffic.counts();
        turn.packets = seen_now - seen;
        turn.dropped = written_now - written - turn.packets;
        if !fed {
            return Err(self.unexpected("the far end could not put in a burst", 0));
        }
        Ok(turn)
    }

    fn expect_good_frames(&self) -> Result<(), ForwardError> {
        let Some(bad) = self.worker.io().far_ends().traffic.bad().cloned() else { return Ok(()) };
        let bytes = bad.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Err(ForwardError::Frame { driver: self.driver, fault: bad.fault, bytes })
    }

    fn unexpected(&self, what: &'static str, value: u64) -> ForwardError {
        ForwardError::Unexpected { driver: self.driver, what, value }
    }
}

/// Plain forwarding: a burst from each port, new Ethernet addresses, out by the other port. What
/// does not fit is dropped.
fn forward<I: Io>(io: &mut I, stations: [MacAddress; 2]) {
    for side in 0..2 {
        let other = 1 - side;
        let mut burst = Burst::new();
        io.receive(PortIndex(side as u16), &mut burst);
        for buffer in burst.iter_mut() {
            let frame = buffer.bytes_mut();
            HOSTS[other].write(frame, 0);
            stations[other].write(frame, 6);
        }
        io.transmit(PortIndex(other as u16), &mut burst);
        burst.clear();
    }
}

/// Packets translated, and packets dropped.
fn verdicts(counters: &Counters) -> (u64, u64) {
    let dropped = Verdict::ALL.iter().filter(|verdict| verdict.kind() == VerdictKind::Dropped);
    let translated = counters.of(Verdict::Outbound) + counters.of(Verdict::Inbound);
    (translated, dropped.map(|verdict| counters.of(*verdict)).sum())
}

/// The middle value; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
