//! What tests find: figures of each repetition with median and percentiles, steps of a loss curve,
//! delays, teardowns.

use serde::Serialize;

use super::Delays;

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

/// The value that so large a share of a sorted list does not exceed, between two of them in
/// proportion. Not a number of an empty list.
pub(super) fn percentile(sorted: &[f64], share: f64) -> f64 {
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

/// What `loss` found: the steps that were sent, and those that the tester could not send in any
/// repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LossCurve {
    /// The highest rate first.
    pub steps: Vec<LossStep>,
    /// Likewise.
    pub not_sent: Vec<NotSent>,
}

impl LossCurve {
    /// Marks the steps beyond what the tester alone passes without loss, frames a second: there it
    /// may lose by itself.
    pub fn mark_beyond(&mut self, ceiling: f64) {
        for step in &mut self.steps {
            step.beyond_ceiling = Some(step.rate > ceiling);
        }
    }
}

/// A step of a loss curve without a result: the tester did not keep its rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotSent {
    /// Frames a second, both ways together.
    pub rate: f64,
    /// What the tester sent instead, when it sent most.
    pub reached: f64,
    /// Repetitions in which it was tried.
    pub repetitions: u32,
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
    /// Repetitions in which the tester did not keep the rate: they are none of the above.
    pub not_sent: u32,
    /// Repetitions in which a CPU was away each time it was tried: they may have lost by that.
    pub disturbed: u32,
    /// Whether the rate is more than the tester alone passes without loss; None where that was not
    /// measured.
    pub beyond_ceiling: Option<bool>,
}

/// What became of one rate of a loss curve in the repetitions.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    /// Frames sent and lost, where the tester kept it.
    pub(super) made: Vec<[u64; 2]>,
    /// What it sent instead, where it did not.
    pub(super) reached: Vec<f64>,
    /// Repetitions in which a CPU was away each time.
    pub(super) disturbed: u32,
}

impl LossCurve {
    /// Of rates, the highest first, with what became of each.
    pub(super) fn of(tried: impl Iterator<Item = (f64, Tried)>) -> LossCurve {
        let mut curve = LossCurve::default();
        for (rate, Tried { made, reached, disturbed }) in tried {
            let repetitions = reached.len() as u32;
            match (&made[..], reached.into_iter().reduce(f64::max)) {
                ([], None) => {}
                ([], Some(reached)) => curve.not_sent.push(NotSent { rate, reached, repetitions }),
                _ => curve.steps.push(LossStep { not_sent: repetitions, disturbed, ..LossStep::of(rate, &made) }),
            }
        }
        curve
    }
}

impl LossStep {
    /// Of frames sent and lost in each repetition.
    fn of(rate: f64, made: &[[u64; 2]]) -> LossStep {
        let all = |which: usize| made.iter().map(|one| one[which]).sum();
        let shares = made.iter().map(|[sent, lost]| *lost as f64 / (*sent).max(1) as f64);
        let lost_share = Samples::of(shares.collect());
        LossStep { rate, sent: all(0), lost: all(1), lost_share, not_sent: 0, disturbed: 0, beyond_ceiling: None }
    }
}

/// One teardown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Teardown {
    /// Connections deleted.
    pub connections: u64,
    /// How long it took, seconds.
    pub seconds: f64,
    /// How long it takes when there is nothing to delete, seconds: the way to empty it, such as the
    /// start of a program. It is in `seconds`, too.
    pub idle_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_not_sent_are_shown_and_those_beyond_the_ceiling_marked() {
        let both =
            |made: &[[u64; 2]], reached: &[f64]| Tried { made: made.to_vec(), reached: reached.to_vec(), disturbed: 0 };
        let tried = [
            (3e6, both(&[], &[1.2e6, 1.4e6])),
            (2e6, both(&[[100, 40]], &[1.9e6])),
            (1e6, both(&[[100, 0], [100, 0]], &[])),
            // Nobody came to it.
            (5e5, Tried::default()),
        ];
        let mut curve = LossCurve::of(tried.into_iter());
        assert_eq!(curve.not_sent, [NotSent { rate: 3e6, reached: 1.4e6, repetitions: 2 }]);
        let steps: Vec<_> =
            curve.steps.iter().map(|step| (step.rate, step.lost_share.values.len(), step.not_sent)).collect();
        assert_eq!(steps, [(2e6, 1, 1), (1e6, 2, 0)]);
        assert!(curve.steps.iter().all(|step| step.beyond_ceiling.is_none()), "nobody knows of the tester");
        curve.mark_beyond(1.1e6);
        assert_eq!(curve.steps.iter().map(|step| step.beyond_ceiling).collect::<Vec<_>>(), [Some(true), Some(false)]);
    }

    #[test]
    fn percentiles_lie_between_the_values_they_are_between() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(percentile(&sorted, 0.5), 3.0);
        assert_eq!(percentile(&sorted, 0.0), 1.0);
        assert_eq!(percentile(&sorted, 1.0), 5.0);
        assert!((percentile(&sorted, 0.99) - 4.96).abs() < 1e-9);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
