//! The tests of RFC 9693 on one device.
//!
//! | test | what |
//! |---|---|
//! | [`Experiment::cps`] | highest rate of new connections, each validated (§4.4, §4.5) |
//! | [`Experiment::throughput`] | highest rate without loss over connections that exist (§4.6) |
//! | [`Experiment::loss`] | share lost at rates in steps (RFC 8219 §7.4) |
//! | [`Experiment::latency`] | delay and its variation at one rate (RFC 8219 §7.2, §7.3) |
//! | [`Experiment::capacity`] | connections the table holds (§4.9) |
//! | [`Experiment::teardown`] | connections deleted a second (§4.8) |
//!
//! A trial that says something about the tester and not about the device is no result, but an error.

mod ceiling;
mod delays;
mod numbers;

use core::time::Duration;
use std::time::Instant;

use packet_io::Io;
use serde::Serialize;

pub use delays::Delays;
pub use delays::OverRepetitions;
pub use delays::RESOLUTION;
pub use delays::Spread;
use delays::delays_of;
pub use numbers::NumberError;
pub use numbers::Numbers;

use crate::device::Device;
use crate::device::DeviceError;
use crate::frame::FrameSizes;
use crate::frame::Protocol;
use crate::frame::TrialKey;
use crate::frame::Way;
use crate::ledger::Ending;
use crate::ledger::Establish;
use crate::ledger::Faults;
use crate::ledger::Handshake;
use crate::ledger::Leftover;
use crate::ledger::Remaining;
use crate::ledger::Segments;
use crate::ledger::StateTable;
use crate::ledger::Steady;
use crate::ledger::Validate;
use crate::result::Trial;
use crate::search;
use crate::search::CapacityLimits;
use crate::search::Found;
use crate::segment::SYN_FRAME_BYTES;
use crate::tester::Sent;
use crate::tester::Stream;
use crate::tester::Tester;
use crate::tester::TesterError;
use crate::tester::Traffic;
use crate::tuples::TupleSpace;

/// Which way the frames of phase 2 go (RFC 9693 §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both ways at once, half the frames each.
    Both,
    /// Initiator to Responder.
    Outbound,
    /// Responder to Initiator.
    Inbound,
}

/// Parameters, by the names of RFC 9693 §4.3 where it has one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// N: connections made in phase 1.
    #[serde(rename = "N")]
    pub n: u64,
    /// R of phase 1 where it only prepares phase 2: surely below the maximum establishment rate.
    #[serde(rename = "R")]
    pub preparation_rate: f64,
    /// α: rate of the validation, as a share of R.
    pub alpha: f64,
    /// What the connections are made of.
    pub protocol: Protocol,
    /// Of TCP in `cps`: whether each connection is closed as soon as it is established.
    pub tcp_close: bool,
    /// Bytes of a frame, check sequence included, or the mix of them. Segments that open or close a connection have what their headers need.
    pub frame_bytes: FrameSizes,
    /// Length of a trial of phase 2, seconds.
    pub trial_seconds: f64,
    /// The lowest rate searched, frames a second.
    pub rate_min: f64,
    /// The highest.
    pub rate_max: f64,
    /// The search of a rate ends at an interval of this, frames a second.
    pub error: f64,
    /// How often each test is made.
    pub repetitions: u32,
    /// Which way phase 2 goes.
    pub direction: Direction,
    /// Seed of every pseudorandom order.
    pub seed: u64,
}

impl Parameters {
    /// How connections of TCP end in phase 1.
    const fn ending(&self) -> Ending {
        if self.tcp_close { Ending::Closed } else { Ending::Open }
    }

    /// Frames that each connection of phase 1 takes.
    pub const fn frames_per_connection(&self) -> u32 {
        match self.protocol {
            Protocol::Udp => 1,
            Protocol::Tcp => self.ending().segments(),
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The tester.
    #[error(transparent)]
    Tester(#[from] TesterError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is faster than the tester.
    #[error(
        "tester: slower than the device ({passed:.0} {what}/s pass; of {asked:.0} asked for the tester sent {reached:.0}); give the tester a \
         core of its own, another transport or larger frames"
    )]
    Ceiling {
        /// `frames` or `connections`.
        what: &'static str,
        /// The highest rate that passed.
        passed: f64,
        /// The lowest rate that the tester did not keep.
        asked: f64,
        /// What it sent instead.
        reached: f64,
    },
    /// The device is faster than it was asked for.
    #[error("rate: passes at the highest asked for ({rate:.0} frames/s); raise --rate-max")]
    RangeTooLow {
        /// The highest asked for.
        rate: f64,
    },
    /// Not even the lowest rate passes.
    #[error(
        "device: loses frames at the lowest rate ({rate:.0} frames/s: {lost} of {sent} missing, faults {faults:?}); see that it translates and routes"
    )]
    NothingPasses {
        /// The lowest rate.
        rate: f64,
        /// Frames missing.
        lost: u64,
        /// Frames sent.
        sent: u64,
        /// Faults of those that arrived.
        faults: Faults,
    },
    /// Nothing that was sent came out.
    #[error(
        "device: answers ARP, but passes nothing (0 of {sent} frames arrived); see that it translates, and routes 198.19.0.0/16 to the tester"
    )]
    Silent {
        /// Frames sent.
        sent: u64,
    },
    /// What it passes it has not translated, or not routed.
    #[error(
        "device: made none of {sent} connections, though frames came out of it (faults {faults:?}); see that it translates what comes from \
         10.0.0.0/8, and routes it"
    )]
    NoConnection {
        /// Frames sent.
        sent: u64,
        /// Faults of those that arrived.
        faults: Faults,
    },
    /// It made connections, and then nothing more came out.
    #[error(
        "device: passes nothing {way} (0 of {sent} frames arrived), though it made the connections; see that it runs still and keeps them"
    )]
    OneWay {
        /// `outbound` or `inbound`.
        way: &'static str,
        /// Frames sent.
        sent: u64,
    },
    /// There is nobody at the other end of a link.
    #[error("device: its {side} link is down; see that it runs and that both links are up, and start the test again")]
    LinkDown {
        /// `inside` or `outside`.
        side: &'static str,
    },
    /// It does not even hold what a search begins with.
    #[error(
        "device: does not hold the connections that the search begins with ({lost} of {c0} are missing at {rate:.0} frames/s, faults \
         {faults:?}); lower --c0, or --rate-min"
    )]
    BelowC0 {
        /// C0.
        c0: u64,
        /// Connections missing.
        lost: u64,
        /// The lowest rate.
        rate: f64,
        /// Faults of frames that arrived.
        faults: Faults,
    },
    /// Phase 1 did not make all connections.
    #[error(
        "device: made {made} of {wanted} connections at {rate:.0} frames/s (faults {faults:?}); lower --preparation-rate, or ask for \
         fewer connections"
    )]
    NotPrepared {
        /// Connections made.
        made: u64,
        /// Connections wanted.
        wanted: u64,
        /// At this rate.
        rate: f64,
        /// Faults of frames that arrived.
        faults: Faults,
    },
    /// It does not say how full its table is.
    #[error("device: made connections in another number than its table says ({made} made, {told} told); no result")]
    Miscounted {
        /// Connections made.
        made: u64,
        /// Entries it tells of.
        told: u64,
    },
}

/// Samples of one figure over all repetitions, in order, and what RFC 9693 §5 wants of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Samples {
    /// Each repetition's.
    pub values: Vec<f64>,
    /// The median.
    pub median: f64,
    /// The first percentile.
    pub p1: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Samples {
    /// The figures of these values; not a number (in JSON: null) where there is none.
    pub fn of(values: Vec<f64>) -> Samples {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| percentile(&sorted, share);
        Samples { median: at(0.5), p1: at(0.01), p99: at(0.99), values }
    }
}

/// The value that so large a share of a sorted list does not exceed, between two of them in proportion. Not a number of an empty list.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// What `latency` found in one repetition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Frames a second, both ways together.
    pub rate: f64,
    /// Frames lost.
    pub lost: u64,
    /// By way.
    pub delays: Vec<Delays>,
}

/// One step of a loss curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossStep {
    /// Frames a second, both ways together.
    pub rate: f64,
    /// Frames sent, in all repetitions.
    pub sent: u64,
    /// Frames missing, in all repetitions.
    pub lost: u64,
    /// Of each repetition the share that is missing, of 1.
    pub lost_share: Samples,
}

impl LossStep {
    /// Of frames sent and lost in each repetition.
    fn of(rate: f64, made: &[[u64; 2]]) -> LossStep {
        let all = |which: usize| made.iter().map(|one| one[which]).sum();
        let shares = made.iter().map(|[sent, lost]| *lost as f64 / (*sent).max(1) as f64);
        LossStep { rate, sent: all(0), lost: all(1), lost_share: Samples::of(shares.collect()) }
    }
}

/// One teardown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Teardown {
    /// Connections deleted.
    pub connections: u64,
    /// How long it took, seconds.
    pub seconds: f64,
    /// How long it takes when there is nothing to delete, seconds: the way to empty it, such as the start of a program. It is in `seconds`, too.
    pub idle_seconds: f64,
}

/// So many connections of a trial are tried again after the table was emptied, at this rate.
const LEFTOVERS: usize = 64;
const LEFTOVER_RATE: f64 = 10_000.0;
/// Connections that a preparation lost are made in so many further rounds at most.
const PREPARATION_ROUNDS: u32 = 4;
/// A trial in which the tester came this near to the rate, as a share of it, was void by a hitch of the machine: it is made again, so often.
const HITCH_SHARE: f64 = 0.9;
const HITCHES: u32 = 3;
/// The same where delays are measured: any hitch is among the longest of a thousand, and it is one short trial.
const HITCHES_OF_DELAYS: u32 = 12;
/// No trial is made again after this long, however many may be: long ones are seldom without a hitch on a shared machine.
const HITCH_PATIENCE: Duration = Duration::from_secs(8);
/// The same where connections are only made: each trial goes on where the one before ended.
const HITCHES_OF_PREPARATION: u32 = 12;
/// So long may nobody be kept from his CPU in a trial that is to say what the device loses: a pair holds 256 frames, and at 850 000 frames/s that is as long.
const HITCH_SECONDS: f64 = 0.0003;
/// So many hitches as long as the longest may there have been in each second of a trial. What loses more than all frames of that time is no hitch: a full
/// table, or a rate far beyond what passes, need not be seen four times.
const HITCHES_A_SECOND: f64 = 4.0;
/// Frames of each way whose delay is taken. RFC 8219 §7.2 wants 500 at least; a percentile of 99.9 is better with more.
const TIMED: u64 = 100_000;

/// A device between the two ports of a tester.
pub struct Experiment<'a, I: Io> {
    tester: &'a mut Tester<I>,
    device: &'a mut dyn Device,
    space: &'a TupleSpace,
    parameters: &'a Parameters,
    trials: u64,
    repetition: u32,
    log: Vec<Trial>,
    /// Some connections of the trial before, to see that they are gone.
    before: StateTable,
    was_interrupted: bool,
    at_least: Option<f64>,
    /// The longest that tester or device were kept from their CPUs since a search began its step.
    hitch_seconds: f64,
    /// About how many trials a repetition will be.
    expected: u32,
    /// The longest time since it was asked last that a CPU of the device was taken from it, seconds. Nobody looks, where nothing else is set.
    pub away: Box<dyn FnMut() -> f64 + 'a>,
    /// The side on which the tester's link to the device is down, as far as somebody can tell who is not the tester's driver.
    pub link_down: Box<dyn FnMut() -> Option<&'static str> + 'a>,
    /// Told after each trial, for progress.
    pub on_trial: Box<dyn FnMut(&Progress) + 'a>,
}

/// How far a test has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What the last trial did.
    pub line: String,
    /// Repetitions made.
    pub repetitions: u32,
    /// Trials of this repetition made, and those it will have taken about; 0 where that is not known.
    pub trials: [u32; 2],
}

/// What phase 1 did.
struct Opened {
    table: StateTable,
    faults: Faults,
    delays: Option<Delays>,
    /// Why it is no result, where it is none.
    done: Result<(), ExperimentError>,
}

/// What one trial of phase 2 did.
struct Phase2 {
    lost: u64,
    faults: Faults,
    sent: Sent,
}

impl<'a, I: Io> Experiment<'a, I> {
    /// On a device that was started.
    pub fn new(
        tester: &'a mut Tester<I>,
        device: &'a mut dyn Device,
        space: &'a TupleSpace,
        parameters: &'a Parameters,
    ) -> Experiment<'a, I> {
        Experiment {
            tester,
            device,
            space,
            parameters,
            trials: 0,
            repetition: 0,
            log: Vec::new(),
            before: StateTable::new(0),
            was_interrupted: false,
            at_least: None,
            hitch_seconds: 0.0,
            expected: 1,
            away: Box::new(|| 0.0),
            link_down: Box::new(|| None),
            on_trial: Box::new(|_| {}),
        }
    }

    /// Every trial so far, in order.
    pub fn trials(&self) -> &[Trial] {
        &self.log
    }

    /// The highest rate that passed before the tester itself ended the search: the device does at least this. None where the tester did not.
    pub fn at_least(&self) -> Option<f64> {
        self.at_least
    }

    /// Whether it was ended before all was measured.
    pub fn was_interrupted(&self) -> bool {
        self.was_interrupted
    }

    fn key(&mut self) -> TrialKey {
        self.trials += 1;
        TrialKey::new(self.parameters.seed, self.trials)
    }

    fn stream(&self, frames: u64, rate: f64) -> Stream {
        Stream { frames, rate, sizes: self.parameters.frame_bytes }
    }

    /// The frames that make so many connections.
    fn opening(&self, connections: u64, rate: f64) -> Stream {
        let sizes = match self.parameters.protocol {
            Protocol::Udp => self.parameters.frame_bytes,
            Protocol::Tcp => FrameSizes::Fixed(SYN_FRAME_BYTES),
        };
        Stream { frames: connections, rate, sizes }
    }

    /// Runs one trial over the connections of `table`, or with frames that make connections.
    fn run<T: Traffic>(
        &mut self,
        table: Option<&StateTable>,
        streams: [Option<Stream>; 2],
        traffic: &mut T,
    ) -> Result<Sent, TesterError> {
        let key = self.key();
        let Some(conversations) = table.and_then(|table| table.conversations.as_ref()) else {
            return self.tester.run(&key, streams, traffic);
        };
        let frames = streams.map(|stream| stream.map_or(0, |stream| stream.frames));
        self.tester.run(&key, streams, &mut Segments::new(traffic, conversations, frames))
    }

    /// Runs one trial as [`Self::run`] does, and notes it. `outcome`: frames missing, and faults.
    fn trial<T: Traffic>(
        &mut self,
        phase: &'static str,
        table: Option<&StateTable>,
        streams: [Option<Stream>; 2],
        traffic: &mut T,
        outcome: impl Fn(&T) -> (u64, Faults),
    ) -> Result<(Sent, u64, Faults), ExperimentError> {
        // What was before is not of this trial.
        (self.away)();
        let done = self.run(table, streams, traffic);
        let away_seconds = (self.away)();
        let rate = streams.iter().flatten().map(|stream| stream.rate).sum();
        let mut trial = Trial {
            repetition: self.repetition,
            phase,
            rate,
            reached: 0.0,
            sent: 0,
            answers: 0,
            lost: 0,
            faults: 0,
            forged: 0,
            damaged: 0,
            returned: 0,
            seconds: 0.0,
            late_ms: 0.0,
            away_ms: away_seconds * 1e3,
            void: false,
        };
        let mut note = |sent: &Sent| {
            let (missing, faults) = outcome(traffic);
            trial.sent = sent.frames.iter().sum();
            trial.answers = sent.answers.iter().sum();
            // What was not sent is not lost.
            let planned: u64 = streams.iter().flatten().map(|stream| stream.frames).sum();
            let lost = missing.saturating_sub(planned.saturating_sub(trial.sent));
            (trial.lost, trial.faults, trial.seconds) = (lost, faults.sum(), sent.seconds);
            trial.reached = trial.sent as f64 / sent.seconds.max(f64::MIN_POSITIVE);
            trial.late_ms = sent.latest_seconds * 1e3;
            (trial.forged, trial.damaged, trial.returned) = (sent.forged, sent.damaged, sent.returned);
            (lost, faults)
        };
        match done {
            Ok(sent) => {
                let (lost, faults) = note(&sent);
                self.hitch_seconds = self.hitch_seconds.max(away_seconds).max(sent.latest_seconds);
                let kinds = [
                    (faults.sum(), "faults"),
                    (sent.forged, "forged"),
                    (sent.damaged, "damaged"),
                    (sent.returned, "returned"),
                ];
                let what: String = kinds
                    .iter()
                    .filter(|(count, _)| *count > 0)
                    .map(|(count, kind)| format!(", {count} {kind}"))
                    .collect();
                self.tell(format!("{phase} at {rate:.0}/s: {lost} of {} lost{what}", trial.sent));
                let (down, alive) = if lost > 0 { (self.side_down(), self.device.alive()) } else { (None, Ok(())) };
                trial.void = down.is_some() || alive.is_err();
                let is_all_lost = lost > 0 && lost == trial.sent;
                self.log.push(trial);
                // A device that ended may have taken its end of the link with it.
                alive?;
                if let Some(side) = down {
                    return Err(ExperimentError::LinkDown { side });
                }
                if is_all_lost {
                    // Nobody there loses nothing.
                    self.tester.meet()?;
                }
                Ok((sent, lost, faults))
            }
            Err(error) => {
                if let TesterError::TooSlow { sent, reached, .. } = &error {
                    note(sent);
                    let reached = *reached;
                    trial.void = true;
                    self.log.push(trial);
                    // Where nobody takes frames the tester comes late, too.
                    self.device.alive()?;
                    if let Some(side) = self.side_down() {
                        return Err(ExperimentError::LinkDown { side });
                    }
                    self.tell(format!("{phase} at {rate:.0}/s: the tester itself is too slow ({reached:.0}/s)"));
                }
                Err(error.into())
            }
        }
    }

    /// The side on which the link to the device is down.
    fn side_down(&mut self) -> Option<&'static str> {
        self.tester.side_down().or_else(|| (self.link_down)())
    }

    fn tell(&mut self, line: String) {
        let made = self.log.iter().rev().take_while(|trial| trial.repetition == self.repetition).count() as u32;
        let progress = Progress { line, repetitions: self.repetition, trials: [made, self.expected] };
        (self.on_trial)(&progress);
    }

    /// About how many trials a search of a rate takes.
    fn trials_of_search(&self) -> u32 {
        let Parameters { rate_min, rate_max, error, .. } = *self.parameters;
        ((rate_max - rate_min) / error.max(1.0)).max(2.0).log2().ceil() as u32 + 2
    }

    /// Empties the device, and makes sure of it: by its own count, or where it has none by frames to endpoints it had before.
    fn begin_empty(&mut self) -> Result<(), ExperimentError> {
        // The first time there is nothing of before, and yet there may be what a run before this one left: it is seen whether anything goes.
        if self.trials == 0 && self.device.sessions()?.is_none() {
            self.tester.meet()?;
            self.tester.be_known()?;
            let few = (LEFTOVERS as u64).min(self.parameters.n);
            self.make("emptying", few, LEFTOVER_RATE, None)?;
        }
        self.device.empty()?;
        self.see_empty()
    }

    /// Makes sure that the device was emptied.
    fn see_empty(&mut self) -> Result<(), ExperimentError> {
        self.tester.meet()?;
        self.tester.be_known()?;
        if self.before.is_empty() || self.device.sessions()?.is_some() {
            return Ok(());
        }
        let before = core::mem::replace(&mut self.before, StateTable::new(0));
        let stream = self.stream(before.len(), LEFTOVER_RATE);
        let mut traffic = Leftover::new(self.space, &before);
        match self.run(Some(&before), [None, Some(stream)], &mut traffic) {
            // That it was late does not matter here.
            Ok(_) | Err(TesterError::TooSlow { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match traffic.arrived {
            0 => Ok(()),
            left => Err(DeviceError::NotEmptied { device: self.device.name(), left }.into()),
        }
    }

    /// Phase 1 on an empty table; with `timed`, the delay of this many frames is taken. An error: it did not begin.
    fn open(
        &mut self,
        phase: &'static str,
        connections: u64,
        rate: f64,
        timed: Option<u64>,
    ) -> Result<Opened, ExperimentError> {
        self.begin_empty()?;
        self.make(phase, connections, rate, timed)
    }

    /// Phase 1 on the table as it is.
    fn make(
        &mut self,
        phase: &'static str,
        connections: u64,
        rate: f64,
        timed: Option<u64>,
    ) -> Result<Opened, ExperimentError> {
        let stream = self.opening(connections, rate);
        let ticks = self.tester.ticks_a_second();
        let opened = match self.parameters.protocol {
            Protocol::Udp => {
                let mut traffic = Establish::new(self.space, connections);
                if let Some(timed) = timed {
                    traffic = traffic.timed(timed);
                }
                let missing = |traffic: &Establish<'_>| (connections - traffic.table.len(), traffic.faults);
                let done = self.trial(phase, None, [Some(stream), None], &mut traffic, missing).map(drop);
                let delays = delays_of(Way::Outbound, traffic.delays(), ticks);
                Opened { faults: traffic.faults, table: traffic.table, delays, done }
            }
            Protocol::Tcp => {
                let mut traffic = Handshake::new(self.space, connections, self.parameters.ending());
                if let Some(timed) = timed {
                    traffic = traffic.timed(timed);
                }
                let missing = |traffic: &Handshake<'_>| (connections - traffic.table.len(), traffic.faults);
                let done = self.trial(phase, None, [Some(stream), None], &mut traffic, missing).map(drop);
                let delays = delays_of(Way::Outbound, traffic.delays(), ticks);
                Opened { faults: traffic.faults, table: traffic.table, delays, done }
            }
        };
        // Whatever came of it, these have to be gone after the next emptying.
        self.before = opened.table.first(LEFTOVERS);
        Ok(opened)
    }

    /// Phase 1 to prepare phase 2: all connections, or an error. This measures nothing, it makes connections: what was lost on the way is sent again, each
    /// time at half the rate, and so is what a tester did not send that was kept from its CPU, or was too slow for the rate.
    fn prepare(&mut self) -> Result<StateTable, ExperimentError> {
        let (wanted, mut rate) = (self.parameters.n, self.parameters.preparation_rate);
        let Opened { mut table, mut faults, mut done, .. } = self.open("preparation", wanted, rate, None)?;
        let (mut rounds, mut hitches) = (0, 0);
        loop {
            let late = match &done {
                Err(ExperimentError::Tester(TesterError::TooSlow { reached, .. }))
                    if hitches < HITCHES_OF_PREPARATION =>
                {
                    Some(*reached)
                }
                _ => None,
            };
            if late.is_none() {
                done?;
            }
            // A tester that was late may have sent nothing.
            if table.is_empty() && (late.is_none() || faults.sum() > 0) {
                return Err(made_none(wanted, faults));
            }
            if table.len() == wanted || faults.sum() > 0 || rounds == PREPARATION_ROUNDS {
                break;
            }
            match late {
                Some(reached) => {
                    hitches += 1;
                    // After a mere hitch the rate is one that it can keep.
                    rate /= if reached < rate * HITCH_SHARE { 2.0 } else { 1.0 };
                }
                None => {
                    rounds += 1;
                    rate /= 2.0;
                }
            }
            (table, faults, done) = self.remaining(table, rate);
        }
        if table.len() < wanted || faults.sum() > 0 {
            return Err(ExperimentError::NotPrepared { made: table.len(), wanted, rate, faults });
        }
        Ok(table)
    }

    /// What is missing in a table, once more. The table then, faults, and why it is not valid where it is not.
    fn remaining(&mut self, table: StateTable, rate: f64) -> (StateTable, Faults, Result<(), ExperimentError>) {
        match self.parameters.protocol {
            Protocol::Udp => {
                let mut rest = Remaining::new(self.space, table);
                let stream = self.stream(rest.frames(), rate);
                let missing = |rest: &Remaining<'_>| (rest.left(), rest.faults);
                let done = self.trial("preparation", None, [Some(stream), None], &mut rest, missing).map(drop);
                (rest.table, rest.faults, done)
            }
            Protocol::Tcp => {
                let mut rest = Handshake::resume(self.space, table);
                let stream = self.opening(rest.frames(), rate);
                let missing = |rest: &Handshake<'_>| (rest.table.room() - rest.table.len(), rest.faults);
                // The same key, as it is sent again and not anew.
                self.trials -= 1;
                let done = self.trial("preparation", None, [Some(stream), None], &mut rest, missing).map(drop);
                (rest.table, rest.faults, done)
            }
        }
    }

    /// Phase 1 at a rate, and validation at α times the rate. Frames missing and faults of both.
    fn trial_of_connections(&mut self, connections: u64, rate: f64) -> Result<(u64, Faults), ExperimentError> {
        let Opened { table, faults, done, .. } = self.open("phase1", connections, rate, None)?;
        done?;
        if table.len() < connections || faults.sum() > 0 {
            return Ok((connections - table.len(), faults));
        }
        if self.parameters.tcp_close {
            // Frames went both ways over each of them, and there is none any more.
            return Ok((0, faults));
        }
        let stream = self.stream(connections, rate * self.parameters.alpha);
        let mut validate = Validate::new(self.space, &table, self.parameters.seed ^ self.trials);
        let missing = |validate: &Validate<'_>| (connections - validate.arrived, validate.faults);
        let (_, lost, faults) = self.trial("validation", Some(&table), [None, Some(stream)], &mut validate, missing)?;
        Ok((lost, faults))
    }

    /// The frames of one trial of phase 2 at so many frames a second, both ways together.
    fn phase2(
        &mut self,
        table: &StateTable,
        rate: f64,
        timed: Option<u64>,
    ) -> Result<(Phase2, Vec<Delays>), ExperimentError> {
        let frames = (rate * self.parameters.trial_seconds).max(1.0) as u64;
        let (out, back) = match self.parameters.direction {
            Direction::Both => (frames.div_ceil(2), frames / 2),
            Direction::Outbound => (frames, 0),
            Direction::Inbound => (0, frames),
        };
        let seconds = self.parameters.trial_seconds;
        let stream = |frames: u64| (frames > 0).then(|| self.stream(frames, frames as f64 / seconds));
        let streams = [stream(out), stream(back)];
        let mut traffic = Steady::new(self.space, table, [out, back], timed, self.parameters.seed ^ self.trials);
        let missing = |traffic: &Steady<'_>| {
            let [mut faults, other] = traffic.faults;
            faults += other;
            (out + back - traffic.arrived.iter().sum::<u64>(), faults)
        };
        let (sent, lost, faults) = self.trial("phase2", Some(table), streams, &mut traffic, missing)?;
        for way in Way::BOTH {
            let sent = [out, back][way.index()];
            // No frame at all, not even one that is not as it should be.
            if timed.is_some() && sent > 0 && traffic.arrived[way.index()] + traffic.faults[way.index()].sum() == 0 {
                return Err(ExperimentError::OneWay { way: way.name(), sent });
            }
        }
        let ticks = self.tester.ticks_a_second();
        let delays = Way::BOTH.iter().filter_map(|way| delays_of(*way, traffic.delays(*way), ticks)).collect();
        Ok((Phase2 { lost, faults, sent }, delays))
    }

    /// Makes a trial at a rate; again, a few times, when the machine took a CPU away and the trial came out as it would then: the tester did not keep the
    /// rate, or what happened `may_come_of_it`, given how many frames can be lost by it at most. The last one counts in any case.
    fn without_hitch<T>(
        &mut self,
        rate: f64,
        hitches: u32,
        mut trial: impl FnMut(&mut Self) -> Result<T, ExperimentError>,
        may_come_of_it: impl Fn(&T, u64) -> bool,
    ) -> Result<T, ExperimentError> {
        let begin = Instant::now();
        for _ in 0..hitches {
            if begin.elapsed() > HITCH_PATIENCE {
                break;
            }
            self.hitch_seconds = 0.0;
            let trial_began = Instant::now();
            let outcome = trial(self);
            // The longest hitch is known, and not how many there were.
            let hitches_seconds = self.hitch_seconds * trial_began.elapsed().as_secs_f64().max(1.0) * HITCHES_A_SECOND;
            match outcome {
                // Of what was asked for in the trial that it did not keep: validation is slower than what it validates.
                Err(ExperimentError::Tester(TesterError::TooSlow { asked, reached, .. }))
                    if reached >= asked * HITCH_SHARE => {}
                Ok(outcome)
                    if self.hitch_seconds > HITCH_SECONDS
                        && may_come_of_it(&outcome, (rate * hitches_seconds) as u64) =>
                {
                    if let Some(last) = self.log.last_mut() {
                        last.void = true;
                    }
                    let hitch_ms = self.hitch_seconds * 1e3;
                    self.tell(format!("a CPU was away for {hitch_ms:.1} ms meanwhile: this trial does not count"));
                }
                other => return other,
            }
        }
        trial(self)
    }

    /// The highest rate of a range that passes, in `what` a second. What only the tester can't do is no result.
    fn search(
        &mut self,
        what: &'static str,
        [low, high]: [f64; 2],
        mut trial: impl FnMut(&mut Self, f64) -> Result<(u64, Faults), ExperimentError>,
    ) -> Result<Found, ExperimentError> {
        let error = self.parameters.error;
        // The lowest rate that the tester itself could not keep; what it was asked for then, and what it sent.
        let mut ceiling: Option<(f64, [f64; 2])> = None;
        let mut worst = (0, Faults::default());
        self.at_least = None;
        let found = search::highest(low, high, error, |rate| {
            match self.without_hitch(
                rate,
                HITCHES,
                |this| trial(this, rate),
                |(lost, faults), most| (1..=most).contains(lost) && faults.sum() == 0,
            ) {
                Ok((0, faults)) if faults.sum() == 0 => Ok(true),
                Ok(seen) => {
                    worst = seen;
                    Ok(false)
                }
                Err(ExperimentError::Tester(TesterError::TooSlow { asked, reached, .. })) => {
                    if ceiling.is_none_or(|(lowest, _)| rate < lowest) {
                        ceiling = Some((rate, [asked, reached]));
                    }
                    Ok(false)
                }
                Err(other) => Err(other),
            }
        })?;
        match (found, ceiling) {
            (Found { failed: Some(failed), best, .. }, Some((lowest, [asked, reached]))) if lowest <= failed => {
                self.at_least = (best > 0.0).then_some(best);
                Err(ExperimentError::Ceiling { what, passed: best, asked, reached })
            }
            (Found { failed: None, best, .. }, _) if high >= self.parameters.rate_max => {
                self.at_least = Some(best);
                Err(ExperimentError::RangeTooLow { rate: best })
            }
            (Found { best: 0.0, .. }, _) => {
                let (lost, faults) = worst;
                // The last was made at the lowest rate.
                let sent = self.log.last().map_or(0, |trial| trial.sent);
                Err(ExperimentError::NothingPasses { rate: low, lost, sent, faults })
            }
            _ => Ok(found),
        }
    }

    /// Maximum connection establishment rate with validation, connections a second.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn cps(&mut self) -> Result<Samples, ExperimentError> {
        // About half of them pass, and are validated.
        self.expected = self.trials_of_search() * 3 / 2;
        self.repeated(|this| {
            let n = this.parameters.n;
            let range = [this.parameters.rate_min, this.parameters.rate_max];
            let found = this.search("connections", range, |this, rate| this.trial_of_connections(n, rate))?;
            Ok(found.best)
        })
        .map(Samples::of)
    }

    /// Throughput of phase 2, frames a second, all ways together.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn throughput(&mut self) -> Result<Samples, ExperimentError> {
        self.expected = 1 + self.trials_of_search();
        self.repeated(|this| {
            let table = this.prepare()?;
            let range = [this.parameters.rate_min, this.parameters.rate_max];
            let found = this.search("frames", range, |this, rate| {
                let (done, _) = this.phase2(&table, rate, None)?;
                Ok((done.lost, done.faults))
            })?;
            Ok(found.best)
        })
        .map(Samples::of)
    }

    /// Loss at ten rates up to `rate_max`, the highest first.
    ///
    /// # Errors
    /// When there is no valid result. Steps that the tester can't keep are left out.
    pub fn loss(&mut self) -> Result<Vec<LossStep>, ExperimentError> {
        self.expected = 11;
        // By tenth of the highest rate: frames sent and lost in each repetition.
        let mut made: [Vec<[u64; 2]>; 10] = Default::default();
        // A rate that the tester did not keep, and what it sent instead.
        let mut slowest = (0.0, 0.0);
        let rate_max = self.parameters.rate_max;
        let rate_of = |tenth: usize| rate_max * (tenth + 1) as f64 / 10.0;
        self.repeated(|this| {
            let table = this.prepare()?;
            for (tenth, made) in made.iter_mut().enumerate().rev() {
                let rate = rate_of(tenth);
                let may_be_hitch = |(done, _): &(Phase2, _), most| (1..=most).contains(&done.lost);
                match this.without_hitch(rate, HITCHES, |this| this.phase2(&table, rate, None), may_be_hitch) {
                    Ok((done, _)) => made.push([done.sent.frames.iter().sum(), done.lost]),
                    Err(ExperimentError::Tester(TesterError::TooSlow { reached, .. })) => slowest = (rate, reached),
                    Err(other) => return Err(other),
                }
            }
            Ok(())
        })?;
        let steps = made.iter().enumerate().rev().filter(|(_, made)| !made.is_empty());
        let steps: Vec<LossStep> = steps.map(|(tenth, made)| LossStep::of(rate_of(tenth), made)).collect();
        if steps.is_empty() && !self.was_interrupted {
            let (asked, reached) = slowest;
            return Err(ExperimentError::Ceiling { what: "frames", passed: 0.0, asked, reached });
        }
        Ok(steps)
    }

    /// Delays at so many frames a second, both ways together.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn latency(&mut self, rate: f64) -> Result<Vec<Latency>, ExperimentError> {
        self.expected = 2;
        self.repeated(|this| {
            let table = this.prepare()?;
            // A frame that waited for a CPU to come back says nothing about the device either.
            let (done, delays) = this.without_hitch(
                rate,
                HITCHES_OF_DELAYS,
                |this| this.phase2(&table, rate, Some(TIMED)),
                |_, _| true,
            )?;
            Ok(Latency { rate, lost: done.lost, delays })
        })
    }

    /// Delays of the frames that make new connections (phase 1), at so many a second.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn first_packet_latency(&mut self, rate: f64) -> Result<Vec<Latency>, ExperimentError> {
        // As in [`Self::latency`].
        self.repeated(|this| {
            this.without_hitch(rate, HITCHES_OF_DELAYS, |this| this.first_packet_latency_once(rate), |_, _| true)
        })
    }

    fn first_packet_latency_once(&mut self, rate: f64) -> Result<Latency, ExperimentError> {
        let connections = self.parameters.n;
        let Opened { table, faults, delays, done } = self.open("phase1", connections, rate, Some(TIMED))?;
        done?;
        if table.is_empty() {
            return Err(made_none(connections, faults));
        }
        Ok(Latency { rate, lost: connections - table.len(), delays: delays.into_iter().collect() })
    }

    /// Connections the table holds.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn capacity(&mut self, limits: &CapacityLimits) -> Result<Vec<search::Capacity>, ExperimentError> {
        self.expected = search::steps_expected(limits) * self.trials_of_search();
        self.repeated(|this| this.capacity_once(limits))
    }

    fn capacity_once(&mut self, limits: &CapacityLimits) -> Result<search::Capacity, ExperimentError> {
        let lowest = self.parameters.rate_min;
        search::capacity(limits, self.parameters.rate_max, |connections, [floor, bound]| {
            let low = floor.clamp(lowest, bound.max(lowest));
            let found =
                self.search("connections", [low, bound], |this, rate| this.trial_of_connections(connections, rate));
            match found {
                Ok(found) => Ok(Some(found.best)),
                // What the search begins with can surely be stored: a device that does not is no device that holds none.
                Err(ExperimentError::NothingPasses { rate, lost, faults, .. }) if connections <= limits.c0 => {
                    match lost == connections {
                        true => Err(made_none(connections, faults)),
                        false => Err(ExperimentError::BelowC0 { c0: connections, lost, rate, faults }),
                    }
                }
                Err(ExperimentError::NothingPasses { .. }) => Ok(None),
                // Here the rate only has to be enough.
                Err(ExperimentError::RangeTooLow { rate }) => Ok(Some(rate)),
                Err(ExperimentError::Ceiling { passed, .. }) if passed > 0.0 => Ok(Some(passed)),
                Err(other) => Err(other),
            }
        })
    }

    /// How fast connections are deleted, by emptying the table as a whole.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn teardown(&mut self) -> Result<Vec<Teardown>, ExperimentError> {
        self.repeated(|this| {
            let table = this.prepare()?;
            if let Some(told) = this.device.sessions()?
                && told < table.len()
            {
                return Err(ExperimentError::Miscounted { made: table.len(), told });
            }
            let seconds = this.device.empty()?.max(Duration::from_nanos(1)).as_secs_f64();
            // The last one, too: after it no trial would find what is left.
            this.see_empty()?;
            let idle_seconds = this.device.empty()?.as_secs_f64();
            Ok(Teardown { connections: table.len(), seconds, idle_seconds })
        })
    }

    /// So many repetitions, or those that were made until it was interrupted.
    fn repeated<T>(
        &mut self,
        mut once: impl FnMut(&mut Self) -> Result<T, ExperimentError>,
    ) -> Result<Vec<T>, ExperimentError> {
        let mut all = Vec::new();
        for repetition in 0..self.parameters.repetitions.max(1) {
            self.repetition = repetition;
            match once(self) {
                Ok(one) => all.push(one),
                Err(ExperimentError::Tester(TesterError::Interrupted)) => {
                    self.was_interrupted = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

/// What a device is that made no connection at all: one that passes nothing, or one that does not translate.
fn made_none(sent: u64, faults: Faults) -> ExperimentError {
    match faults.sum() {
        0 => ExperimentError::Silent { sent },
        _ => ExperimentError::NoConnection { sent, faults },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Settings;
    use crate::tester::tests as tests_of_tester;
    use crate::tester::tests::Mischief;
    use crate::tester::tests::Toy;

    #[test]
    fn percentiles_lie_between_the_values_they_are_between() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(percentile(&sorted, 0.5), 3.0);
        assert_eq!(percentile(&sorted, 0.0), 1.0);
        assert_eq!(percentile(&sorted, 1.0), 5.0);
        assert!((percentile(&sorted, 0.99) - 4.96).abs() < 1e-9);
        assert!(percentile(&[], 0.5).is_nan());
    }

    /// A device that only passes on what it is asked about.
    struct Fake {
        sessions: Option<u64>,
        empties: Result<(), u64>,
        /// So often it is still there when it is asked.
        lives: u32,
    }

    impl Device for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }

        fn start(&mut self) -> Result<(), DeviceError> {
            Ok(())
        }

        fn empty(&mut self) -> Result<Duration, DeviceError> {
            let emptied = self.empties.map(|()| Duration::from_millis(1));
            emptied.map_err(|left| DeviceError::NotEmptied { device: "fake", left })
        }

        fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
            Ok(self.sessions)
        }

        fn alive(&mut self) -> Result<(), DeviceError> {
            let lives = self.lives;
            self.lives = lives.saturating_sub(1);
            let (told, log) = ("killed".to_owned(), "natrix.log".into());
            if lives > 0 { Ok(()) } else { Err(DeviceError::Ended { device: "fake", told, log }) }
        }

        fn settings(&self) -> Settings {
            Settings::default()
        }
    }

    pub(super) fn parameters() -> Parameters {
        Parameters {
            n: 500,
            preparation_rate: 1e4,
            alpha: 0.8,
            protocol: Protocol::Udp,
            tcp_close: false,
            frame_bytes: FrameSizes::Fixed(64),
            trial_seconds: 0.05,
            rate_min: 1000.0,
            rate_max: 2000.0,
            error: 500.0,
            repetitions: 1,
            direction: Direction::Both,
            seed: 3,
        }
    }

    /// What an experiment with a toy of this mischief and a device says.
    fn told<T: core::fmt::Debug>(
        mischief: Mischief,
        mut device: Fake,
        parameters: &Parameters,
        experiment: impl Fn(&mut Experiment<'_, Toy>) -> Result<T, ExperimentError>,
    ) -> String {
        let space = tests_of_tester::space();
        // A busy machine can make the tester itself too slow: that says nothing here, and is tried again, the mischief too.
        for _ in 0..100 {
            let mut tester = Tester::new(Toy::new(mischief), tests_of_tester::ENDS);
            let mut this = Experiment::new(&mut tester, &mut device, &space, parameters);
            match experiment(&mut this) {
                Err(ExperimentError::Tester(TesterError::TooSlow { .. }) | ExperimentError::Ceiling { .. }) => {}
                other => return other.map_or_else(|error| error.to_string(), |value| format!("{value:?}")),
            }
        }
        panic!("the tester is always too slow");
    }

    const EMPTY: Fake = Fake { sessions: Some(0), empties: Ok(()), lives: u32::MAX };

    #[test]
    fn a_device_that_does_not_answer_is_named_with_a_remedy() {
        let deaf = Mischief { deaf: true, ..Mischief::default() };
        let told = told(deaf, EMPTY, &parameters(), |this| this.throughput());
        assert!(told.contains("does not answer ARP for 10.255.0.1 (inside); see that it runs"), "{told}");
    }

    #[test]
    fn a_device_that_answers_and_passes_nothing_is_told_from_one_that_loses_some() {
        let hole = Mischief { lose_all: true, ..Mischief::default() };
        let told_of = told(hole, EMPTY, &parameters(), |this| this.throughput());
        assert!(told_of.contains("passes nothing (0 of 500 frames arrived)"), "{told_of}");
        // Half of what is sent, five times.
        let leak = Mischief { lose_one_in: Some(2), ..Mischief::default() };
        let told_of = told(leak, EMPTY, &parameters(), |this| this.throughput());
        assert!(told_of.contains("device: made 4") && told_of.contains(" of 500 connections at"), "{told_of}");
    }

    #[test]
    fn a_device_that_makes_no_connection_is_no_result_of_any_test_and_it_is_said_why() {
        let hole = Mischief { lose_all: true, ..Mischief::default() };
        let router = Mischief { only_route: true, ..Mischief::default() };
        let limits = CapacityLimits { c0: 100, beta: 0.1, gamma: 0.5, error: 10, max: 500 };
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let parameters = Parameters { protocol, ..parameters() };
            let all = |mischief: Mischief| {
                [
                    told(mischief, EMPTY, &parameters, |this| this.first_packet_latency(1000.0)),
                    told(mischief, EMPTY, &parameters, |this| this.capacity(&limits)),
                    told(mischief, EMPTY, &parameters, |this| this.latency(1000.0)),
                    told(mischief, EMPTY, &parameters, |this| this.loss()),
                ]
            };
            for told in all(hole) {
                assert!(told.contains("passes nothing (0 of "), "{told}");
            }
            for told in all(router) {
                assert!(told.contains("made none of ") && told.contains("see that it translates"), "{told}");
            }
        }
        let leak = Mischief { lose_one_in: Some(2), ..Mischief::default() };
        let told_of = told(leak, EMPTY, &parameters(), |this| this.capacity(&limits));
        assert!(
            told_of.contains("50 of 100 are missing at 1000 frames/s") && told_of.contains("lower --c0"),
            "{told_of}"
        );
    }

    #[test]
    fn a_device_that_ended_is_no_device_that_loses_all() {
        let stops = Mischief { lose_from: Some(501), ..Mischief::default() };
        let ended = || Fake { lives: 0, ..EMPTY };
        for told in [
            told(stops, ended(), &parameters(), |this| this.loss()),
            told(stops, ended(), &parameters(), |this| this.throughput()),
        ] {
            assert!(
                told.contains("device fake: ended while it was measured (killed), so there is no result"),
                "{told}"
            );
        }
        // One that somebody else started, and that does not answer any more.
        let deaf = Mischief { deaf_from: Some(501), ..stops };
        let told_of = told(deaf, EMPTY, &parameters(), |this| this.loss());
        assert!(told_of.contains("does not answer ARP for 10.255.0.1"), "{told_of}");
    }

    #[test]
    fn a_device_that_stops_or_whose_link_goes_down_in_a_trial_is_named_and_not_the_tester() {
        // After the 500 frames of the preparation, and some of the trial.
        let stops = Mischief { lose_from: Some(501), ..Mischief::default() };
        let told_of = told(stops, EMPTY, &parameters(), |this| this.latency(1000.0));
        assert!(told_of.contains("passes nothing outbound (0 of 25 frames arrived)"), "{told_of}");
        for unplugged in [500, 510] {
            let unplugged = Mischief { unplug_from: Some(unplugged), ..Mischief::default() };
            let told_of = told(unplugged, EMPTY, &parameters(), |this| this.latency(1000.0));
            assert!(told_of.contains("its outside link is down; see that it runs"), "{told_of}");
        }
        // Somebody else can see more than the driver.
        let told_of = told(stops, EMPTY, &parameters(), |this| {
            this.link_down = Box::new(|| Some("inside"));
            this.latency(1000.0)
        });
        assert!(told_of.contains("its inside link is down"), "{told_of}");
    }

    #[test]
    fn what_a_preparation_lost_is_sent_again_and_the_trials_say_so() {
        // Of UDP the seventh datagram; of TCP the seventh SYN, the last acknowledgement, and one of what is between.
        for (protocol, lost) in [(Protocol::Udp, 7), (Protocol::Tcp, 7), (Protocol::Tcp, 700), (Protocol::Tcp, 1500)] {
            prepared_again(&Parameters { protocol, ..parameters() }, lost);
        }
    }

    fn prepared_again(parameters: &Parameters, lost: u64) {
        let space = tests_of_tester::space();
        let once = Mischief { lose: Some(lost), ..Mischief::default() };
        for _ in 0..100 {
            let mut tester = Tester::new(Toy::new(once), tests_of_tester::ENDS);
            let mut device = EMPTY;
            let mut this = Experiment::new(&mut tester, &mut device, &space, parameters);
            let prepared = this.prepare();
            if this.trials().iter().any(|trial| trial.void) {
                // A busy machine: that says nothing here.
                continue;
            }
            assert_eq!(prepared.unwrap().len(), parameters.n);
            let rounds: Vec<(u64, u64)> = this.trials().iter().map(|trial| (trial.sent, trial.lost)).collect();
            assert_eq!(rounds, [(500, 1), (1, 0)]);
            assert_eq!(this.trials()[1].rate, parameters.preparation_rate / 2.0);
            return;
        }
        panic!("the tester is always too slow");
    }

    #[test]
    fn a_tester_that_was_late_in_a_preparation_makes_what_is_missing_and_goes_on() {
        let space = tests_of_tester::space();
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let parameters = Parameters { protocol, ..parameters() };
            // Longer than any frame may wait, in the middle of the preparation.
            let stalls = Mischief { stall: Some((200, Duration::from_millis(80))), ..Mischief::default() };
            let mut tester = Tester::new(Toy::new(stalls), tests_of_tester::ENDS);
            let mut device = EMPTY;
            let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
            assert_eq!(this.prepare().unwrap().len(), parameters.n, "{protocol:?}");
            let all = this.trials();
            assert!(all.len() >= 2 && all[0].void, "{all:?}");
            assert!(all.iter().all(|trial| trial.phase == "preparation"), "{all:?}");
            // It had sent a part, which is not sent again.
            assert!(all.iter().all(|trial| trial.sent < parameters.n), "{all:?}");
        }
    }

    #[test]
    fn a_tester_too_slow_for_the_rate_of_a_preparation_makes_it_at_a_lower_one() {
        let space = tests_of_tester::space();
        let fast = Parameters { n: 20_000, preparation_rate: 1e8, ..parameters() };
        // Late for sure, and far from the rate.
        let stalls = Mischief { stall: Some((200, Duration::from_millis(80))), ..Mischief::default() };
        let mut tester = Tester::new(Toy::new(stalls), tests_of_tester::ENDS);
        let mut device = EMPTY;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &fast);
        assert_eq!(this.prepare().unwrap().len(), fast.n);
        let rates: Vec<f64> = this.trials().iter().map(|trial| trial.rate).collect();
        assert!(rates.len() >= 2 && rates[0] == 1e8 && rates.is_sorted_by(|one, next| one >= next), "{rates:?}");
    }

    #[test]
    fn a_table_that_was_not_emptied_is_no_result_whether_the_device_counts_or_not() {
        let full = Fake { empties: Err(17), ..EMPTY };
        let told_of = told(Mischief::default(), full, &parameters(), |this| this.throughput());
        assert!(told_of.contains("its table was not emptied (17 entries left)"), "{told_of}");
        // The toy keeps its table whatever is done: before the first trial, too, entries are found by their frames, as a run before may have left some.
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let once = Parameters { protocol, repetitions: 1, ..parameters() };
            let mute = || Fake { sessions: None, ..EMPTY };
            let first = told(Mischief::default(), mute(), &once, |this| this.first_packet_latency(1000.0));
            let teardown = told(Mischief::default(), mute(), &once, |this| this.teardown());
            for told_of in [first, teardown] {
                assert!(told_of.contains("its table was not emptied (64 entries left)"), "{told_of}");
            }
        }
    }

    #[test]
    fn every_test_of_tcp_opens_its_connections_by_handshakes_and_sends_data_over_them() {
        let space = tests_of_tester::space();
        for tcp_close in [false, true] {
            let parameters = Parameters { protocol: Protocol::Tcp, tcp_close, ..parameters() };
            let mut tester = Tester::new(Toy::new(Mischief::default()), tests_of_tester::ENDS);
            let mut device = EMPTY;
            let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
            let rate = 1e4;
            let outcome = loop {
                match this.trial_of_connections(500, rate) {
                    Err(ExperimentError::Tester(TesterError::TooSlow { .. })) => {}
                    other => break other.unwrap(),
                }
            };
            assert_eq!(outcome, (0, Faults::default()));
            let kept: Vec<_> = this.trials().iter().filter(|trial| !trial.void).collect();
            let opening = kept.iter().rfind(|trial| trial.phase == "phase1").unwrap();
            assert_eq!(opening.sent, 500);
            assert_eq!(opening.answers, 500 * (u64::from(parameters.frames_per_connection()) - 1));
            assert_eq!(kept.iter().any(|trial| trial.phase == "validation"), !tcp_close);
        }
        let parameters = Parameters { protocol: Protocol::Tcp, ..parameters() };
        let delays = told(Mischief::default(), EMPTY, &parameters, |this| this.latency(1000.0));
        assert!(delays.contains("lost: 0") && delays.contains("outbound") && delays.contains("inbound"), "{delays}");
        let delays = told(Mischief::default(), EMPTY, &parameters, |this| this.first_packet_latency(1000.0));
        assert!(delays.contains("lost: 0") && delays.contains("frames: 500"), "{delays}");
        let leak = Mischief { misnumber: Some(1400), ..Mischief::default() };
        let told_of = told(leak, EMPTY, &parameters, |this| this.throughput());
        assert!(told_of.contains(" of 500 connections at") && told_of.contains("misnumbered: 1"), "{told_of}");
    }

    #[test]
    fn a_tester_slower_than_the_device_is_an_error_and_no_result() {
        let fast = Parameters { rate_max: 1e12, error: 1e11, ..parameters() };
        let space = tests_of_tester::space();
        let mut tester = Tester::new(Toy::new(Mischief::default()), tests_of_tester::ENDS);
        let mut device = EMPTY;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &fast);
        let ended = loop {
            match this.throughput() {
                // Not even the preparation was kept, on a busy machine.
                Err(ExperimentError::Tester(TesterError::TooSlow { .. })) => {}
                other => break other,
            }
        };
        let told = ended.unwrap_err().to_string();
        assert!(told.contains("tester: slower than the device") && told.contains("give the tester a core"), "{told}");
        assert!(this.trials().iter().any(|trial| trial.void), "void trials are kept as what they are");
        // The first step of the search is beyond any tester: nothing passed, or what did is said.
        let passed = this.trials().iter().filter(|trial| trial.phase == "phase2" && !trial.void && trial.lost == 0);
        assert_eq!(this.at_least(), passed.map(|trial| trial.rate).reduce(f64::max));
    }

    #[test]
    fn what_is_lost_while_a_cpu_was_away_is_tried_again_a_few_times_and_then_counts() {
        let space = tests_of_tester::space();
        let with_cpus_away = |mischief: Mischief| {
            for _ in 0..100 {
                let mut tester = Tester::new(Toy::new(mischief), tests_of_tester::ENDS);
                let mut device = EMPTY;
                let parameters = parameters();
                let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
                this.away = Box::new(|| 2.0 * HITCH_SECONDS);
                // A busy machine: that says nothing here.
                let Ok(steps) = this.loss() else { continue };
                if steps.len() == 10 {
                    return (steps, this.trials().to_vec());
                }
            }
            panic!("the tester is always too slow");
        };
        // One frame of the first step, after 500 of the preparation.
        let once = Mischief { lose: Some(520), ..Mischief::default() };
        let (steps, trials) = with_cpus_away(once);
        assert!(steps.iter().all(|step| step.lost == 0), "{steps:?}");
        let void: Vec<_> = trials.iter().filter(|trial| trial.void && trial.lost > 0).collect();
        assert_eq!(void.len(), 1, "{trials:?}");
        assert!(void[0].away_ms > HITCH_SECONDS * 1e3, "{void:?}");
        // A device that loses all the time is not let off, and one that is clean is not tried twice.
        let mut tester = Tester::new(Toy::new(Mischief::default()), tests_of_tester::ENDS);
        let (mut device, parameters) = (EMPTY, parameters());
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        let rate = 1e5;
        let mut tries = |away_seconds: f64, lost: u64| {
            let mut made = 0;
            let trial = |this: &mut Experiment<'_, Toy>| {
                (made, this.hitch_seconds) = (made + 1, away_seconds);
                Ok(lost)
            };
            let may_come_of_it = |lost: &u64, most| (1..=most).contains(lost);
            assert_eq!(this.without_hitch(rate, HITCHES, trial, may_come_of_it).unwrap(), lost);
            made
        };
        let (short, long) = (HITCH_SECONDS / 2.0, HITCH_SECONDS * 2.0);
        assert_eq!([tries(long, 7), tries(long, 0), tries(short, 7)], [HITCHES + 1, 1, 1]);
        // More than were sent in all that time: that was the device.
        let most = (rate * long * HITCHES_A_SECOND) as u64;
        assert_eq!([tries(long, most), tries(long, most + 1)], [HITCHES + 1, 1]);
    }

    #[test]
    fn frames_that_are_forged_damaged_or_come_back_are_in_their_trial_and_in_what_is_told() {
        let space = tests_of_tester::space();
        // Three frames of the first step of a loss curve, after the 500 of the preparation.
        let mischief = Mischief { forge: Some(510), damage: Some(520), send_back: Some(530), ..Mischief::default() };
        for _ in 0..100 {
            let mut tester = Tester::new(Toy::new(mischief), tests_of_tester::ENDS);
            let (mut device, parameters) = (EMPTY, parameters());
            let lines = core::cell::RefCell::new(Vec::new());
            let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
            this.on_trial = Box::new(|progress| lines.borrow_mut().push(progress.line.clone()));
            let steps = this.loss();
            let trials = this.trials().to_vec();
            drop(this);
            if trials.iter().any(|trial| trial.void) {
                // A busy machine: that says nothing here.
                continue;
            }
            let of = |trial: &Trial| [trial.lost, trial.faults, trial.forged, trial.damaged, trial.returned];
            assert_eq!(of(&trials[0]), [0; 5], "of the preparation");
            assert_eq!(of(&trials[1]), [3, 0, 1, 1, 1]);
            assert!(trials[2..].iter().all(|trial| of(trial) == [0; 5]), "{trials:?}");
            assert_eq!(steps.unwrap()[0].lost, 3);
            let told = &lines.borrow()[1];
            assert_eq!(told, "phase2 at 2000/s: 3 of 100 lost, 1 forged, 1 damaged, 1 returned");
            return;
        }
        panic!("the tester is always too slow");
    }

    #[test]
    fn a_known_loss_is_reported_to_the_frame_in_every_repetition_with_median_and_percentiles() {
        let space = tests_of_tester::space();
        let parameters = Parameters { repetitions: 3, ..parameters() };
        let leak = Mischief { lose_one_in: Some(20), ..Mischief::default() };
        for _ in 0..100 {
            let mut tester = Tester::new(Toy::new(leak), tests_of_tester::ENDS);
            let mut device = EMPTY;
            let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
            // A busy machine keeps not every rate: that says nothing here.
            let Ok(steps) = this.loss() else { continue };
            if steps.len() < 10 {
                continue;
            }
            let of = |repetition| this.trials().iter().filter(move |trial| trial.repetition == repetition);
            assert!((0..3).all(|repetition| of(repetition).any(|trial| trial.phase == "phase2")));
            for (step, tenth) in steps.iter().zip((1..=10_u32).rev()) {
                let kept = step.lost_share.values.len() as u64;
                let sent = u64::from(tenth) * 10;
                assert_eq!((step.rate, step.sent), (f64::from(tenth) * 200.0, sent * kept));
                let (known, frame) = (1.0 / 20.0, 1.0 / sent as f64);
                let seen = step.lost_share.values.iter();
                assert!(seen.clone().all(|share| (share - known).abs() < frame), "{step:?}");
                let lost = seen.map(|share| share / frame).sum::<f64>();
                assert!((lost - step.lost as f64).abs() < 1e-6, "{step:?}");
                let Samples { median, p1, p99, .. } = step.lost_share;
                assert!(p1 <= median && median <= p99, "{step:?}");
            }
            return;
        }
        panic!("the tester is always too slow");
    }

    #[test]
    fn a_trial_the_tester_did_not_keep_says_what_it_sent_until_then() {
        let space = tests_of_tester::space();
        let leak = Mischief { lose_one_in: Some(20), ..Mischief::default() };
        let parameters = Parameters { rate_max: 1e12, ..parameters() };
        for _ in 0..100 {
            let mut tester = Tester::new(Toy::new(leak), tests_of_tester::ENDS);
            let mut device = EMPTY;
            let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
            // More than any tester can.
            let Ok(_) = this.prepare().and_then(|table| this.phase2(&table, 1e9, None).map(drop).or(Ok(()))) else {
                continue;
            };
            let Some(trial) = this.trials().last().filter(|trial| trial.phase == "phase2") else { continue };
            assert!(trial.void && trial.sent > 1_000 && trial.seconds > 0.0, "{trial:?}");
            assert!((trial.reached - trial.sent as f64 / trial.seconds).abs() < 1.0, "{trial:?}");
            let share = trial.lost as f64 / trial.sent as f64;
            assert!((0.04..0.06).contains(&share), "what was never sent is not lost: {trial:?}");
            return;
        }
        panic!("no preparation came to its end");
    }

    #[test]
    fn a_validation_that_was_a_little_late_is_made_again_though_it_is_slower_than_what_it_validates() {
        let space = tests_of_tester::space();
        let mut tester = Tester::new(Toy::new(Mischief::default()), tests_of_tester::ENDS);
        let (mut device, parameters) = (EMPTY, parameters());
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        let mut tries = |asked: f64, reached: f64| {
            let mut made = 0;
            let trial = |_: &mut Experiment<'_, Toy>| -> Result<(), _> {
                made += 1;
                let sent = Box::default();
                Err(TesterError::TooSlow { asked, reached, late_ms: 3.0, sent }.into())
            };
            assert!(this.without_hitch(1000.0, HITCHES, trial, |(), _| false).is_err());
            made
        };
        // At α = 0.8; a tenth less than asked for is no hitch any more.
        assert_eq!([tries(800.0, 760.0), tries(800.0, 719.0)], [HITCHES + 1, 1]);
    }

    #[test]
    fn every_trial_is_kept_with_its_repetition() {
        let space = tests_of_tester::space();
        let twice = Parameters { repetitions: 2, rate_max: 1000.0, ..parameters() };
        let mut tester = Tester::new(Toy::new(Mischief::default()), tests_of_tester::ENDS);
        let mut device = EMPTY;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &twice);
        let _ = this.latency(1000.0);
        let of = |repetition| this.trials().iter().filter(|trial| trial.repetition == repetition).count();
        assert!(of(0) >= 1 && this.trials()[0].phase == "preparation");
        assert!(!this.was_interrupted());
    }
}
