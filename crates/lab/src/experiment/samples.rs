//! What tests find: figures of each repetition with median and percentiles, steps of a loss curve, delays, teardowns.

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

/// The value that so large a share of a sorted list does not exceed, between two of them in proportion. Not a number of an empty list.
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
    pub(super) fn of(rate: f64, made: &[[u64; 2]]) -> LossStep {
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
        assert!(percentile(&[], 0.5).is_nan());
    }
}
