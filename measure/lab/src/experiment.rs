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
//! A trial that says something about the tester and not about the device is no result, but an
//! error.

mod ceiling;
mod delays;
mod error;
mod numbers;
mod parameters;
mod samples;

use core::time::Duration;

use packet_io::Io;

pub use delays::Delays;
pub use delays::OverRepetitions;
pub use delays::RESOLUTION;
pub use delays::Spread;
use delays::delays_of;
pub use error::ExperimentError;
pub use error::RATE;
pub use numbers::NumberError;
pub use numbers::Numbers;
pub use parameters::Direction;
pub use parameters::Parameters;
pub use samples::Latency;
pub use samples::LossCurve;
pub use samples::LossStep;
pub use samples::NotSent;
pub use samples::Samples;
pub use samples::Teardown;
use samples::Tried;

use crate::device::Device;
use crate::device::DeviceError;
use crate::frame::FrameSizes;
use crate::frame::Protocol;
use crate::frame::TrialKey;
use crate::frame::Way;
use crate::ledger::Establish;
use crate::ledger::Faults;
use crate::ledger::Handshake;
use crate::ledger::Remaining;
use crate::ledger::Segments;
use crate::ledger::StaleFrames;
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

/// So many connections of a trial are tried again after the table was emptied, at this rate.
const STALE_TUPLES: usize = 64;
const STALE_RATE: f64 = 10_000.0;
/// Connections that a preparation lost are made in so many further rounds at most.
const PREPARATION_ROUNDS: u32 = 4;
/// A trial in which the tester came this near to the rate, as a share of it, was void by a hitch of
/// the machine: it is made again, so often.
const HITCH_SHARE: f64 = 0.9;
const HITCHES: u32 = 3;
/// The same where delays are measured: any hitch is among the longest of a thousand, and it is one
/// short trial.
const HITCHES_OF_DELAYS: u32 = 12;
/// The same of trials shorter than this, of which a hitch hits fewer: many short ones are for who
/// has little time.
const SHORT_TRIAL_SECONDS: f64 = 0.5;
const HITCHES_SHORT: u32 = 2;
const HITCHES_OF_DELAYS_SHORT: u32 = 8;
/// No trial is made again after this long, however many may be: long ones are seldom without a
/// hitch on a shared machine.
const HITCH_PATIENCE_SECONDS: f64 = 8.0;
/// The same where connections are only made: each trial goes on where the one before ended.
const HITCHES_OF_PREPARATION: u32 = 12;
/// The longest time that a CPU may be away in a trial that counts losses of the device: a pair
/// holds 256 frames, which takes as long at 850 000 frames/s.
const HITCH_SECONDS: f64 = 0.0003;
/// So many hitches as long as the longest may there have been in each second of a trial. What loses
/// more than all frames of that time is no hitch: a full table, or a rate far beyond what passes,
/// need not be seen four times.
const HITCHES_A_SECOND: f64 = 4.0;
/// At the lowest rate of a search for connections only so many seconds of them are made first: it
/// is a guess, and all of them would take a quarter of an hour.
const GLANCE_SECONDS: f64 = 2.0;
/// Frames of each way whose delay is taken. RFC 8219 §7.2 wants 500 at least; a percentile of 99.9
/// is better with more.
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
    ended_by: Option<ExperimentError>,
    at_least: Option<f64>,
    /// The longest that tester or device were kept from their CPUs since a search began its step.
    hitch_seconds: f64,
    /// Whether that may have decided the last trial that counts, and how many figures such trials
    /// decided.
    is_disturbed: bool,
    disturbed: u32,
    disturbed_repetitions: Vec<u32>,
    /// A search goes on beyond the highest rate of the parameters, where that passes, up to this
    /// one: that of the parameters may be a guess.
    pub rate_limit: f64,
    /// About how many trials a repetition will be.
    expected: u32,
    /// The longest time since it was asked last that a CPU of the device was taken from it,
    /// seconds. Nobody looks, where nothing else is set.
    pub away: Box<dyn FnMut() -> f64 + 'a>,
    /// The side on which the tester's link to the device is down, as far as anything but the
    /// tester's driver knows.
    pub link_down: Box<dyn FnMut() -> Option<&'static str> + 'a>,
    /// Called before each trial, for progress: what it does, and for how long.
    pub on_begin: Box<dyn FnMut(&'static str, Duration) + 'a>,
    /// Called after each trial, for progress.
    pub on_trial: Box<dyn FnMut(&Progress) + 'a>,
}

/// How far a test has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What the last trial did.
    pub line: String,
    /// Repetitions made.
    pub repetitions: u32,
    /// Trials of this repetition made, and those it will have taken about; 0 where that is not
    /// known.
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

/// How much of a trial is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// A short one, to see whether anything passes.
    Glance,
    /// All of it.
    Whole,
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
            ended_by: None,
            at_least: None,
            hitch_seconds: 0.0,
            is_disturbed: false,
            disturbed: 0,
            disturbed_repetitions: Vec::new(),
            rate_limit: parameters.rate_max,
            expected: 1,
            away: Box::new(|| 0.0),
            link_down: Box::new(|| None),
            on_begin: Box::new(|_, _| {}),
            on_trial: Box::new(|_| {}),
        }
    }

    /// Every trial so far, in order.
    pub fn trials(&self) -> &[Trial] {
        &self.log
    }

    /// The highest rate that passed before the tester itself ended the search: the device does at
    /// least this. None where the tester did not.
    pub fn at_least(&self) -> Option<f64> {
        self.at_least
    }

    /// Figures that a trial decided in which a CPU was away each time it was made: they may be
    /// worse than the device.
    pub fn disturbed(&self) -> u32 {
        self.disturbed
    }

    /// Repetitions with such a figure, counted from 0.
    pub fn disturbed_repetitions(&self) -> &[u32] {
        &self.disturbed_repetitions
    }

    /// Counts a figure, and whether it is such a one.
    fn count_disturbed(&mut self, is_disturbed: bool) {
        self.disturbed += u32::from(is_disturbed);
        if is_disturbed && self.disturbed_repetitions.last() != Some(&self.repetition) {
            self.disturbed_repetitions.push(self.repetition);
        }
    }

    /// Why there are fewer repetitions than asked for, where one of them failed and the ones before
    /// it are kept.
    pub fn ended_by(&mut self) -> Option<ExperimentError> {
        self.ended_by.take()
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
        let seconds = streams.iter().flatten().map(|stream| stream.frames as f64 / stream.rate).fold(0.0, f64::max);
        (self.on_begin)(phase, Duration::try_from_secs_f64(seconds).unwrap_or_default());
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
            not_taken: 0,
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
            trial.not_taken = sent.not_taken.iter().sum();
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
                    (trial.not_taken, "not taken by the device"),
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
                    self.meet()?;
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

    /// Waits for the device's links and Ethernet addresses while it runs, within its patience.
    fn meet(&mut self) -> Result<(), ExperimentError> {
        let device = &mut *self.device;
        self.tester.meet_while(|waited| {
            device.alive()?;
            Ok(waited < device.patience())
        })
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

    /// Empties the device, and makes sure of it: by its own count, or where it has none by frames
    /// to endpoints it had before.
    fn begin_empty(&mut self) -> Result<(), ExperimentError> {
        // The first time nothing is known, and an earlier run may have left entries: see whether
        // any frame passes.
        if self.trials == 0 && self.device.sessions()?.is_none() {
            self.meet()?;
            self.tester.be_known()?;
            let few = (STALE_TUPLES as u64).min(self.parameters.n);
            self.make("emptying", few, STALE_RATE, None)?;
        }
        self.device.empty()?;
        self.see_empty()
    }

    /// Makes sure that the device was emptied.
    fn see_empty(&mut self) -> Result<(), ExperimentError> {
        self.meet()?;
        self.tester.be_known()?;
        if self.before.is_empty() || self.device.sessions()?.is_some() {
            return Ok(());
        }
        let before = core::mem::replace(&mut self.before, StateTable::new(0));
        let stream = self.stream(before.len(), STALE_RATE);
        let mut traffic = StaleFrames::new(self.space, &before);
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

    /// Phase 1 on an empty table; with `timed`, the delay of this many frames is taken. An error:
    /// it did not begin.
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
        self.before = opened.table.first(STALE_TUPLES);
        Ok(opened)
    }

    /// Phase 1 to prepare phase 2: all connections, or an error. This measures nothing, it makes
    /// connections: what was lost on the way is sent again, each time at half the rate, and so is
    /// what a tester did not send that was kept from its CPU, or was too slow for the rate.
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

    /// What is missing in a table, once more. The table then, faults, and why it is not valid where
    /// it is not.
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

    /// Makes a trial at a rate; again, a few times, when the machine took a CPU away and the trial
    /// came out as it would then: the tester did not keep the rate, or what happened
    /// `may_come_of_it`, given how many frames can be lost by it at most. The last one counts in
    /// any case.
    fn without_hitch<T>(
        &mut self,
        rate: f64,
        hitches: u32,
        mut trial: impl FnMut(&mut Self) -> Result<T, ExperimentError>,
        may_come_of_it: impl Fn(&T, u64) -> bool,
    ) -> Result<T, ExperimentError> {
        let begin = self.tester.seconds();
        self.is_disturbed = false;
        for _ in 0..hitches {
            if self.tester.seconds() - begin > HITCH_PATIENCE_SECONDS {
                break;
            }
            self.hitch_seconds = 0.0;
            let trial_began = self.tester.seconds();
            let outcome = trial(self);
            let most = self.most_by_hitches(rate, trial_began);
            match outcome {
                // Of what was asked for in the trial that it did not keep: validation is slower
                // than what it validates.
                Err(ExperimentError::Tester(TesterError::TooSlow { asked, reached, .. }))
                    if reached >= asked * HITCH_SHARE => {}
                Ok(outcome) if self.hitch_seconds > HITCH_SECONDS && may_come_of_it(&outcome, most) => {
                    if let Some(last) = self.log.last_mut() {
                        last.void = true;
                    }
                    let hitch_ms = self.hitch_seconds * 1e3;
                    self.tell(format!("a CPU was taken away for {hitch_ms:.1} ms, so this trial does not count"));
                }
                other => return other,
            }
        }
        self.hitch_seconds = 0.0;
        let trial_began = self.tester.seconds();
        let outcome = trial(self)?;
        // Readers of the figure must know: a busy machine is not a slow device.
        self.is_disturbed =
            self.hitch_seconds > HITCH_SECONDS && may_come_of_it(&outcome, self.most_by_hitches(rate, trial_began));
        Ok(outcome)
    }

    /// Frames that hitches as long as the longest may have lost since a trial began. How many there
    /// were is not known.
    fn most_by_hitches(&self, rate: f64, trial_began: f64) -> u64 {
        let seconds = self.hitch_seconds * (self.tester.seconds() - trial_began).max(1.0) * HITCHES_A_SECOND;
        (rate * seconds) as u64
    }

    /// The highest rate of a range that passes, in `what` a second. What only the tester can't do
    /// is no result.
    ///
    /// With `has_glance` the lowest rate is tried with [`Extent::Glance`] first, and as a whole
    /// only if no higher one passes.
    fn search(
        &mut self,
        what: &'static str,
        [low, high]: [f64; 2],
        has_glance: bool,
        mut trial: impl FnMut(&mut Self, f64, Extent) -> Result<(u64, Faults), ExperimentError>,
    ) -> Result<Found, ExperimentError> {
        let Parameters { rate_max, error, .. } = *self.parameters;
        let hitches = self.parameters.hitches();
        // The lowest rate that the tester itself could not keep; what it was asked for then, and
        // what it sent.
        let mut ceiling: Option<(f64, [f64; 2])> = None;
        let mut worst = (0, Faults::default());
        // The lowest rate that the device did not pass, and whether a CPU was away then.
        let mut decided = (f64::INFINITY, false);
        self.at_least = None;
        let limit = if high >= rate_max { self.rate_limit.max(high) } else { high };
        let mut passes = |this: &mut Self, rate: f64, extent: Extent| match this.without_hitch(
            rate,
            hitches,
            |this| trial(this, rate, extent),
            |(lost, faults), most| (1..=most).contains(lost) && faults.sum() == 0,
        ) {
            Ok((0, faults)) if faults.sum() == 0 => Ok(true),
            Ok(seen) => {
                worst = seen;
                if rate < decided.0 {
                    decided = (rate, this.is_disturbed);
                }
                Ok(false)
            }
            Err(ExperimentError::Tester(TesterError::TooSlow { asked, reached, .. })) => {
                if ceiling.is_none_or(|(lowest, _)| rate < lowest) {
                    ceiling = Some((rate, [asked, reached]));
                }
                Ok(false)
            }
            Err(other) => Err(other),
        };
        let mut found = search::upwards([low, high], limit, error, |rate| {
            passes(self, rate, if has_glance && rate <= low { Extent::Glance } else { Extent::Whole })
        })?;
        if has_glance && found.best > 0.0 && found.best <= low && !passes(self, low, Extent::Whole)? {
            found = Found { best: 0.0, failed: Some(low), ..found };
        }
        // A rate that the device failed above the one that the search ended with decided nothing.
        self.count_disturbed(decided.1 && found.failed.is_some_and(|failed| decided.0 <= failed));
        match (found, ceiling) {
            (Found { failed: Some(failed), best, .. }, Some((lowest, [asked, reached]))) if lowest <= failed => {
                self.at_least = (best > 0.0).then_some(best);
                Err(ExperimentError::Ceiling { what, passed: best, asked, reached })
            }
            (Found { failed: None, best, .. }, _) if high >= rate_max => {
                self.at_least = Some(best);
                Err(ExperimentError::RangeTooLow { what, rate: best })
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

    /// The highest rate of a range at which so many connections are made and validated.
    fn search_of_connections(&mut self, connections: u64, range: [f64; 2]) -> Result<Found, ExperimentError> {
        let few = ((range[0] * GLANCE_SECONDS) as u64).clamp(1, connections);
        // A lower bound that was found by a search has to hold for all of them.
        let has_glance = few < connections && range[0] <= self.parameters.rate_min;
        self.search("connections", range, has_glance, |this, rate, extent| {
            let made = match extent {
                Extent::Glance => few,
                Extent::Whole => connections,
            };
            this.trial_of_connections(made, rate)
        })
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
            Ok(this.search_of_connections(n, range)?.best)
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
            let found = this.search("frames", range, false, |this, rate, _| {
                let (done, _) = this.phase2(&table, rate, None)?;
                Ok((done.lost, done.faults))
            })?;
            Ok(found.best)
        })
        .map(Samples::of)
    }

    /// Loss at ten rates up to `rate_max`, the highest first. Rates that the tester cannot keep are
    /// marked as such.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn loss(&mut self) -> Result<LossCurve, ExperimentError> {
        self.expected = 11;
        // By tenth of the highest rate.
        let mut tried: [Tried; 10] = Default::default();
        // A rate that the tester did not keep, and what it sent instead.
        let mut slowest = (0.0, 0.0);
        let rate_max = self.parameters.rate_max;
        let rate_of = |tenth: usize| rate_max * (tenth + 1) as f64 / 10.0;
        self.repeated_and_kept(|this| {
            let table = this.prepare()?;
            for (tenth, tried) in tried.iter_mut().enumerate().rev() {
                let rate = rate_of(tenth);
                let may_be_hitch = |(done, _): &(Phase2, _), most| (1..=most).contains(&done.lost);
                match this.without_hitch(
                    rate,
                    this.parameters.hitches(),
                    |this| this.phase2(&table, rate, None),
                    may_be_hitch,
                ) {
                    Ok((done, _)) => {
                        this.count_disturbed(this.is_disturbed);
                        tried.disturbed += u32::from(this.is_disturbed);
                        tried.made.push([done.sent.frames.iter().sum(), done.lost]);
                    }
                    Err(ExperimentError::Tester(TesterError::TooSlow { reached, .. })) => {
                        slowest = (rate, reached);
                        tried.reached.push(reached);
                    }
                    Err(other) => return Err(other),
                }
            }
            Ok(())
        })?;
        let all = tried.into_iter().enumerate().rev();
        let curve = LossCurve::of(all.map(|(tenth, tried)| (rate_of(tenth), tried)));
        if curve.steps.is_empty() && !self.was_interrupted {
            let (asked, reached) = slowest;
            return Err(ExperimentError::Ceiling { what: "frames", passed: 0.0, asked, reached });
        }
        Ok(curve)
    }

    /// Delays at so many frames a second, both ways together.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn latency(&mut self, rate: f64) -> Result<Vec<Latency>, ExperimentError> {
        self.expected = 2;
        self.repeated_and_kept(|this| {
            let table = this.prepare()?;
            // A frame that waited for a CPU to come back does not show the device's delay either.
            let (done, delays) = this.without_hitch(
                rate,
                this.parameters.hitches_of_delays(),
                |this| this.phase2(&table, rate, Some(TIMED)),
                |_, _| true,
            )?;
            this.count_disturbed(this.is_disturbed);
            Ok(Latency { rate, lost: done.lost, delays })
        })
    }

    /// Delays of the frames that make new connections (phase 1), at so many a second.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn first_packet_latency(&mut self, rate: f64) -> Result<Vec<Latency>, ExperimentError> {
        // As in [`Self::latency`].
        self.repeated_and_kept(|this| {
            let once = this.without_hitch(
                rate,
                this.parameters.hitches_of_delays(),
                |this| this.first_packet_latency_once(rate),
                |_, _| true,
            )?;
            this.count_disturbed(this.is_disturbed);
            Ok(once)
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
        self.repeated_and_kept(|this| this.capacity_once(limits))
    }

    fn capacity_once(&mut self, limits: &CapacityLimits) -> Result<search::Capacity, ExperimentError> {
        let lowest = self.parameters.rate_min;
        search::capacity(limits, self.parameters.rate_max, |connections, [floor, bound]| {
            let low = floor.clamp(lowest, bound.max(lowest));
            match self.search_of_connections(connections, [low, bound]) {
                Ok(found) => Ok(Some(found.best)),
                // What the search begins with can surely be stored: a device that does not is no
                // device that holds none.
                Err(ExperimentError::NothingPasses { rate, lost, faults, .. }) if connections <= limits.c0 => {
                    match lost == connections {
                        true => Err(made_none(connections, faults)),
                        false => Err(ExperimentError::BelowC0 { c0: connections, lost, rate, faults }),
                    }
                }
                Err(ExperimentError::NothingPasses { .. }) => Ok(None),
                // Here the rate only has to be enough.
                Err(ExperimentError::RangeTooLow { rate, .. }) => Ok(Some(rate)),
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
        self.repeated_and_kept(|this| {
            let table = this.prepare()?;
            if let Some(counted) = this.device.sessions()?
                && counted < table.len()
            {
                return Err(ExperimentError::Miscounted { made: table.len(), counted });
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
        once: impl FnMut(&mut Self) -> Result<T, ExperimentError>,
    ) -> Result<Vec<T>, ExperimentError> {
        match self.repetitions(once) {
            (all, None) => Ok(all),
            (_, Some(error)) => Err(error),
        }
    }

    /// The same of repetitions that say something each by itself: those that were made before one
    /// failed are kept, and [`Self::ended_by`] says why there are no more. Of a search they are
    /// not: only what the tester could find is there, the lower ones.
    fn repeated_and_kept<T>(
        &mut self,
        once: impl FnMut(&mut Self) -> Result<T, ExperimentError>,
    ) -> Result<Vec<T>, ExperimentError> {
        match self.repetitions(once) {
            (all, Some(error)) if all.is_empty() => Err(error),
            (all, error) => {
                self.ended_by = error;
                Ok(all)
            }
        }
    }

    fn repetitions<T>(
        &mut self,
        mut once: impl FnMut(&mut Self) -> Result<T, ExperimentError>,
    ) -> (Vec<T>, Option<ExperimentError>) {
        let mut all = Vec::new();
        for repetition in 0..self.parameters.repetitions.max(1) {
            self.repetition = repetition;
            match once(self) {
                Ok(one) => all.push(one),
                Err(
                    ExperimentError::Tester(TesterError::Interrupted)
                    | ExperimentError::Device(DeviceError::Interrupted),
                ) => {
                    self.was_interrupted = true;
                    break;
                }
                Err(error) => return (all, Some(error)),
            }
        }
        (all, None)
    }
}

/// What a device is that made no connection at all: one that passes nothing, or one that does not
/// translate.
fn made_none(sent: u64, faults: Faults) -> ExperimentError {
    match faults.sum() {
        0 => ExperimentError::Silent { sent },
        _ => ExperimentError::NoConnection { sent, faults },
    }
}

#[cfg(test)]
pub(crate) mod tests;
