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

use core::time::Duration;
use std::time::Instant;

use packet_io::Io;
use serde::Serialize;

use crate::device::Device;
use crate::device::DeviceError;
use crate::frame::TrialKey;
use crate::frame::Way;
use crate::ledger::Establish;
use crate::ledger::Faults;
use crate::ledger::StateTable;
use crate::ledger::Steady;
use crate::ledger::Validate;
use crate::search;
use crate::search::CapacityLimits;
use crate::search::Found;
use crate::tester::Sent;
use crate::tester::Stream;
use crate::tester::Tester;
use crate::tester::TesterError;
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
    pub n: u64,
    /// R of phase 1 where it only prepares phase 2: surely below the maximum establishment rate.
    pub preparation_rate: f64,
    /// α: rate of the validation, as a share of R.
    pub alpha: f64,
    /// Bytes of a frame, check sequence included.
    pub frame_bytes: usize,
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
        "tester: slower than the device (which passes {passed:.0} frames/s, while the tester keeps no more than {reached:.0}); give the tester a \
         core of its own, another transport or larger frames"
    )]
    Ceiling {
        /// The highest rate that passed.
        passed: f64,
        /// The highest that the tester reached.
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
    /// The figures of these values, of which there is one at least.
    pub fn of(values: Vec<f64>) -> Samples {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| percentile(&sorted, share);
        Samples { median: at(0.5), p1: at(0.01), p99: at(0.99), values }
    }
}

/// The value that so large a share of a sorted list does not exceed, between two of them in proportion. 0 of an empty list.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = share * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// Delays of one way at one rate, microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Delays {
    /// Which way.
    pub way: &'static str,
    /// Frames whose delay was taken.
    pub frames: u64,
    /// The shortest.
    pub min_us: f64,
    /// TL of RFC 8219 §7.2: the median.
    pub typical_us: f64,
    /// WCL: the 99.9th percentile.
    pub worst_case_us: f64,
    /// The longest.
    pub max_us: f64,
    /// PDV of RFC 8219 §7.3.1: WCL less the shortest.
    pub pdv_us: f64,
    /// IPDV of RFC 8219 §7.3.2: least, median and largest difference of one frame's delay from that of the one before.
    pub ipdv_us: [f64; 3],
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossStep {
    /// Frames a second, both ways together.
    pub rate: f64,
    /// Frames sent.
    pub sent: u64,
    /// Frames missing.
    pub lost: u64,
}

/// One teardown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Teardown {
    /// Connections deleted.
    pub connections: u64,
    /// How long it took, seconds.
    pub seconds: f64,
}

/// A device between the two ports of a tester.
pub struct Experiment<'a, I: Io> {
    tester: &'a mut Tester<I>,
    device: &'a mut dyn Device,
    space: &'a TupleSpace,
    parameters: &'a Parameters,
    trials: u64,
    /// Told after each trial, for progress.
    pub on_trial: Box<dyn FnMut(&str) + 'a>,
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
        Experiment { tester, device, space, parameters, trials: 0, on_trial: Box::new(|_| {}) }
    }

    fn key(&mut self) -> TrialKey {
        self.trials += 1;
        TrialKey::new(self.parameters.seed, self.trials)
    }

    fn stream(&self, frames: u64, rate: f64) -> Stream {
        Stream { frames, rate, frame_bytes: self.parameters.frame_bytes }
    }

    /// Phase 1 on an empty table. The state table, and the faults.
    fn establish(&mut self, connections: u64, rate: f64) -> Result<(StateTable, Faults), ExperimentError> {
        self.device.empty()?;
        self.tester.meet()?;
        let key = self.key();
        let stream = self.stream(connections, rate);
        let mut traffic = Establish::new(self.space, connections);
        self.tester.run(&key, [Some(stream), None], &mut traffic)?;
        Ok((traffic.table, traffic.faults))
    }

    /// Phase 1 to prepare phase 2: all connections, or an error.
    fn prepare(&mut self) -> Result<StateTable, ExperimentError> {
        let (wanted, rate) = (self.parameters.n, self.parameters.preparation_rate);
        let (table, faults) = self.establish(wanted, rate)?;
        if table.len() < wanted || faults.sum() > 0 {
            return Err(ExperimentError::NotPrepared { made: table.len(), wanted, rate, faults });
        }
        (self.on_trial)(&format!("{wanted} connections made"));
        Ok(table)
    }

    /// Phase 1 at a rate, and validation at α times the rate. Frames missing and faults of both.
    fn trial_of_connections(&mut self, connections: u64, rate: f64) -> Result<(u64, Faults), ExperimentError> {
        let (table, faults) = self.establish(connections, rate)?;
        if table.len() < connections || faults.sum() > 0 {
            let lost = connections - table.len();
            (self.on_trial)(&format!("{rate:.0}/s: {lost} of {connections} connections missing"));
            return Ok((lost, faults));
        }
        let key = self.key();
        let stream = self.stream(connections, rate * self.parameters.alpha);
        let mut validate = Validate::new(self.space, &table, self.parameters.seed ^ self.trials);
        self.tester.run(&key, [None, Some(stream)], &mut validate)?;
        let lost = connections - validate.arrived;
        (self.on_trial)(&format!("{rate:.0}/s: {lost} of {connections} lost in validation"));
        Ok((lost, validate.faults))
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
        let key = self.key();
        let mut traffic = Steady::new(self.space, table, [out, back], timed, self.parameters.seed ^ self.trials);
        let sent = self.tester.run(&key, streams, &mut traffic)?;
        let mut faults = traffic.faults[0];
        let other = traffic.faults[1];
        faults.swapped += other.swapped;
        faults.repeated += other.repeated;
        faults.untranslated += other.untranslated;
        faults.moved += other.moved;
        faults.not_routed += other.not_routed;
        let lost = out + back - traffic.arrived.iter().sum::<u64>();
        (self.on_trial)(&format!("{rate:.0}/s: {lost} of {} lost", out + back));
        let ticks = self.tester.ticks_a_second();
        let delays = Way::BOTH.iter().filter_map(|way| delays_of(*way, traffic.delays(*way), ticks)).collect();
        Ok((Phase2 { lost, faults, sent }, delays))
    }

    /// The highest rate that passes. What only the tester can't do is no result.
    fn search(
        &mut self,
        high: f64,
        mut trial: impl FnMut(&mut Self, f64) -> Result<(u64, Faults), ExperimentError>,
    ) -> Result<Found, ExperimentError> {
        let Parameters { rate_min, error, .. } = *self.parameters;
        // The lowest rate that the tester itself could not keep.
        let mut ceiling: Option<(f64, f64)> = None;
        let mut worst = (0, Faults::default());
        let found = search::highest(rate_min, high, error, |rate| match trial(self, rate) {
            Ok((0, faults)) if faults.sum() == 0 => Ok(true),
            Ok(seen) => {
                worst = seen;
                Ok(false)
            }
            Err(ExperimentError::Tester(TesterError::TooSlow { reached, .. })) => {
                if ceiling.is_none_or(|(asked, _)| rate < asked) {
                    ceiling = Some((rate, reached));
                }
                Ok(false)
            }
            Err(other) => Err(other),
        })?;
        match (found, ceiling) {
            (Found { failed: Some(failed), best, .. }, Some((asked, reached))) if asked <= failed => {
                Err(ExperimentError::Ceiling { passed: best, reached })
            }
            (Found { failed: None, best, .. }, _) if high >= self.parameters.rate_max => {
                Err(ExperimentError::RangeTooLow { rate: best })
            }
            (Found { best: 0.0, .. }, _) => {
                let (lost, faults) = worst;
                Err(ExperimentError::NothingPasses { rate: rate_min, lost, sent: self.parameters.n, faults })
            }
            _ => Ok(found),
        }
    }

    /// Maximum connection establishment rate with validation, connections a second.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn cps(&mut self) -> Result<Samples, ExperimentError> {
        self.repeated(|this| {
            let n = this.parameters.n;
            let found = this.search(this.parameters.rate_max, |this, rate| this.trial_of_connections(n, rate))?;
            Ok(found.best)
        })
        .map(Samples::of)
    }

    /// Throughput of phase 2, frames a second, all ways together.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn throughput(&mut self) -> Result<Samples, ExperimentError> {
        self.repeated(|this| {
            let table = this.prepare()?;
            let found = this.search(this.parameters.rate_max, |this, rate| {
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
        let table = self.prepare()?;
        let mut steps = Vec::new();
        let mut reached_most = 0.0_f64;
        for tenth in (1..=10).rev() {
            let rate = self.parameters.rate_max * f64::from(tenth) / 10.0;
            match self.phase2(&table, rate, None) {
                Ok((done, _)) => {
                    steps.push(LossStep { rate, sent: done.sent.frames.iter().sum(), lost: done.lost });
                }
                Err(ExperimentError::Tester(TesterError::TooSlow { reached, .. })) => {
                    reached_most = reached_most.max(reached);
                }
                Err(other) => return Err(other),
            }
        }
        if steps.is_empty() {
            return Err(ExperimentError::Ceiling { passed: 0.0, reached: reached_most });
        }
        Ok(steps)
    }

    /// Delays at so many frames a second, both ways together.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn latency(&mut self, rate: f64) -> Result<Vec<Latency>, ExperimentError> {
        /// RFC 8219 §7.2 wants 500 frames at least; a percentile of 99.9 is better with more.
        const TIMED: u64 = 100_000;
        self.repeated(|this| {
            let table = this.prepare()?;
            let (done, delays) = this.phase2(&table, rate, Some(TIMED))?;
            Ok(Latency { rate, lost: done.lost, delays })
        })
    }

    /// Connections the table holds.
    ///
    /// # Errors
    /// When there is no valid result.
    pub fn capacity(&mut self, limits: &CapacityLimits) -> Result<search::Capacity, ExperimentError> {
        search::capacity(limits, self.parameters.rate_max, |connections, bound| {
            let found = self.search(bound, |this, rate| this.trial_of_connections(connections, rate));
            match found {
                Ok(found) => Ok(Some(found.best)),
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
            let begin = Instant::now();
            this.device.empty()?;
            let seconds = begin.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
            Ok(Teardown { connections: table.len(), seconds })
        })
    }

    fn repeated<T>(
        &mut self,
        mut once: impl FnMut(&mut Self) -> Result<T, ExperimentError>,
    ) -> Result<Vec<T>, ExperimentError> {
        (0..self.parameters.repetitions.max(1)).map(|_| once(self)).collect()
    }
}

fn delays_of(way: Way, ticks: &[u64], ticks_a_second: f64) -> Option<Delays> {
    if ticks.is_empty() {
        return None;
    }
    let in_order: Vec<f64> = ticks.iter().map(|ticks| *ticks as f64 * 1e6 / ticks_a_second).collect();
    let mut sorted = in_order.clone();
    sorted.sort_by(f64::total_cmp);
    let mut differences: Vec<f64> = in_order.windows(2).map(|pair| pair[1] - pair[0]).collect();
    differences.sort_by(f64::total_cmp);
    let (min, worst) = (sorted[0], percentile(&sorted, 0.999));
    Some(Delays {
        way: if way == Way::Outbound { "outbound" } else { "inbound" },
        frames: ticks.len() as u64,
        min_us: min,
        typical_us: percentile(&sorted, 0.5),
        worst_case_us: worst,
        max_us: percentile(&sorted, 1.0),
        pdv_us: worst - min,
        ipdv_us: [0.0, 0.5, 1.0].map(|share| percentile(&differences, share)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_the_values_they_are_between() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(percentile(&sorted, 0.5), 3.0);
        assert_eq!(percentile(&sorted, 0.0), 1.0);
        assert_eq!(percentile(&sorted, 1.0), 5.0);
        assert!((percentile(&sorted, 0.99) - 4.96).abs() < 1e-9);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn delays_have_the_figures_of_rfc_8219() {
        let delays = delays_of(Way::Inbound, &[1_000, 3_000, 2_000], 1e9).unwrap();
        assert_eq!((delays.min_us, delays.typical_us, delays.max_us), (1.0, 2.0, 3.0));
        assert_eq!(delays.ipdv_us, [-1.0, 0.5, 2.0]);
        assert!(delays_of(Way::Inbound, &[], 1e9).is_none());
    }
}
