//! The searches of RFC 9693: the highest rate at which a trial passes, and how many connections a
//! table holds.

use serde::Serialize;

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The highest value that passed; 0 when none did.
    pub best: f64,
    /// The lowest that failed; None when even the highest passed.
    pub failed: Option<f64>,
    /// Trials made.
    pub trials: u32,
}

/// Binary search for the highest value in `low..=high` that passes, down to an interval of `error`
/// (RFC 9693 §4.4).
///
/// `high` is tried first, as nothing has to be searched where it passes, then `low`, for the same
/// reason where it does not; a `low` of 0 passes.
///
/// # Errors
/// Those of a trial.
pub fn highest<E>(low: f64, high: f64, error: f64, mut passes: impl FnMut(f64) -> Result<bool, E>) -> Result<Found, E> {
    let mut trials = 1;
    if passes(high)? {
        return Ok(Found { best: high, failed: None, trials });
    }
    if low > 0.0 {
        trials += 1;
        if !passes(low)? {
            return Ok(Found { best: 0.0, failed: Some(low), trials });
        }
    }
    let (mut best, mut failed) = (low, high);
    while failed - best > error {
        let middle = best.midpoint(failed);
        trials += 1;
        if passes(middle)? {
            best = middle;
        } else {
            failed = middle;
        }
    }
    Ok(Found { best, failed: Some(failed), trials })
}

/// Limits of a capacity search, by the names of RFC 9693 §4.9.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CapacityLimits {
    /// C0: connections that can surely be stored.
    pub c0: u64,
    /// β: share of the rate below which the exponential search has gone too far.
    pub beta: f64,
    /// γ: share of the rate below which the final search has.
    pub gamma: f64,
    /// E: allowed error of the capacity.
    pub error: u64,
    /// As far as the tester can go: it has no more tuples.
    pub max: u64,
}

/// What the capacity search found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// Connections stored.
    pub stored: u64,
    /// The lowest number that could not be stored; None: the tester has no more tuples.
    pub failed: Option<u64>,
    /// (connections, highest rate) of each step; a rate of 0 means that they could not be stored.
    pub steps: Vec<(u64, f64)>,
}

/// [`highest`] in a range of which the upper end is a guess: where that passes, the range above it
/// is searched, twice as far, up to a limit.
///
/// # Errors
/// Those of a trial.
pub fn upwards<E>(
    [mut low, mut high]: [f64; 2],
    limit: f64,
    error: f64,
    mut passes: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Found, E> {
    let mut before = 0;
    loop {
        let mut found = highest(low, high, error, &mut passes)?;
        found.trials += before;
        match found {
            // What passed is not tried once more.
            Found { best: 0.0, .. } if before > 0 => return Ok(Found { best: low, ..found }),
            Found { failed: None, trials, .. } if high < limit => {
                (low, high, before) = (high, (high * 2.0).min(limit), trials);
            }
            _ => return Ok(found),
        }
    }
}

/// About how many numbers of connections such a search tries: it doubles to the largest, and halves
/// what is between the last two.
pub fn steps_expected(limits: &CapacityLimits) -> u32 {
    let doublings = (limits.max as f64 / limits.c0.max(1) as f64).max(1.0).log2().ceil();
    let halvings = (limits.max as f64 / 2.0 / limits.error.max(1) as f64).max(1.0).log2().ceil();
    (1.0 + doublings + halvings) as u32
}

/// The capacity search of RFC 9693 §4.9: doubles until the device collapses, then halves the
/// interval.
///
/// `rate` finds the highest establishment rate with validation for so many connections between two
/// bounds, of which the lower is what it must reach to count as stored; None: it collapsed.
///
/// # Errors
/// Those of a trial.
pub fn capacity<E>(
    limits: &CapacityLimits,
    line_rate: f64,
    mut rate: impl FnMut(u64, [f64; 2]) -> Result<Option<f64>, E>,
) -> Result<Capacity, E> {
    let mut steps = Vec::new();
    let mut try_one = |connections: u64, bounds: [f64; 2], steps: &mut Vec<(u64, f64)>| -> Result<Option<f64>, E> {
        let found = rate(connections, bounds)?;
        steps.push((connections, found.unwrap_or(0.0)));
        Ok(found)
    };
    let Some(mut stored_rate) = try_one(limits.c0, [0.0, line_rate], &mut steps)? else {
        return Ok(Capacity { stored: 0, failed: Some(limits.c0), steps });
    };
    let mut stored = limits.c0;
    let mut failed = loop {
        if stored >= limits.max {
            return Ok(Capacity { stored, failed: None, steps });
        }
        let next = (stored * 2).min(limits.max);
        let least = stored_rate * limits.beta;
        match try_one(next, [least, stored_rate], &mut steps)? {
            Some(found) if found >= least => (stored, stored_rate) = (next, found),
            _ => break next,
        }
    };
    while failed - stored > limits.error.max(1) {
        let middle = stored.midpoint(failed);
        let least = stored_rate * limits.gamma;
        match try_one(middle, [least, stored_rate], &mut steps)? {
            Some(found) if found >= least => (stored, stored_rate) = (middle, found),
            _ => failed = middle,
        }
    }
    Ok(Capacity { stored, failed: Some(failed), steps })
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;

    use super::*;

    fn search(threshold: f64) -> Found {
        highest(0.0, 1_000_000.0, 1000.0, |rate| Ok::<_, Infallible>(rate <= threshold)).unwrap()
    }

    #[test]
    fn the_highest_rate_is_found_within_the_error() {
        for threshold in [1500.0, 123_456.0, 500_000.0, 999_500.0] {
            let found = search(threshold);
            assert!(found.best <= threshold && threshold < found.failed.unwrap());
            assert!(found.failed.unwrap() - found.best <= 1000.0, "{found:?}");
        }
    }

    #[test]
    fn a_device_faster_than_the_range_and_one_that_passes_nothing() {
        assert_eq!(search(2e6), Found { best: 1e6, failed: None, trials: 1 });
        assert_eq!(search(-1.0).best, 0.0);
    }

    #[test]
    fn a_range_that_is_too_low_is_left_upwards_as_far_as_it_may_be() {
        let search = |threshold: f64, limit: f64| {
            upwards([1.0, 1000.0], limit, 10.0, |rate| Ok::<_, Infallible>(rate <= threshold)).unwrap()
        };
        let found = search(5_500.0, 1e6);
        assert!(found.best <= 5_500.0 && found.failed.unwrap() - found.best <= 10.0, "{found:?}");
        assert_eq!((search(5_500.0, 3_000.0).best, search(5_500.0, 3_000.0).failed), (3_000.0, None));
        assert!((490.0..=500.0).contains(&search(500.0, 1e6).best));
        assert_eq!(search(0.5, 1e6).best, 0.0);
        assert_eq!(search(1_000.0, 1_000.0).trials, 1);
        // One that passed once and then no more is not lost.
        let mut made = 0;
        let flaky = upwards([1.0, 1000.0], 1e6, 10.0, |_| {
            made += 1;
            Ok::<_, Infallible>(made == 1)
        });
        assert_eq!(flaky.unwrap().best, 1_000.0);
    }

    #[test]
    fn an_error_of_a_trial_ends_the_search() {
        assert_eq!(highest(0.0, 10.0, 1.0, |_| Err::<bool, _>("too slow")), Err("too slow"));
    }

    #[test]
    fn capacity_of_a_device_that_slows_down_is_within_its_error() {
        let limits = CapacityLimits { c0: 1000, beta: 0.1, gamma: 0.5, error: 16, max: 1 << 22 };
        let holds = 77_777;
        let found = capacity(&limits, 1e6, |connections, [least, bound]| {
            assert!(least < bound);
            Ok::<_, Infallible>((connections <= holds).then_some((1e9 / connections as f64).min(bound)))
        })
        .unwrap();
        assert!(found.stored <= holds && holds < found.failed.unwrap());
        assert!(found.failed.unwrap() - found.stored <= 16, "{found:?}");
        assert!(found.steps.len() <= steps_expected(&limits) as usize, "{found:?}");
    }

    #[test]
    fn capacity_beyond_the_tuples_of_the_tester_is_said_to_be_open() {
        let limits = CapacityLimits { c0: 1000, beta: 0.1, gamma: 0.5, error: 16, max: 5000 };
        let found = capacity(&limits, 1e6, |_, [_, bound]| Ok::<_, Infallible>(Some(bound))).unwrap();
        assert_eq!((found.stored, found.failed), (5000, None));
    }
}
