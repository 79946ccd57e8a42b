//! Delays, and what is said of them: the figures of RFC 8219 for each repetition, and how they lie
//! over all of them.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::Latency;
use super::Samples;
use super::samples::percentile;
use crate::frame::Way;

/// Significant digits of a histogram. A bucket is no wider than a 128th of what it counts, and is
/// reported by its middle: within [`RESOLUTION`].
const DIGITS: u8 = 2;
/// How far the delay of a bucket is from those that it counts at most, as a share.
pub const RESOLUTION: f64 = 0.005;

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
    /// IPDV of RFC 8219 §7.3.2: least, median and largest difference of one frame's delay from that
    /// of the one before.
    pub ipdv_us: [f64; 3],
    /// The raw samples: delays in nanoseconds, each within [`RESOLUTION`], and how many frames had
    /// them; the shortest first.
    pub histogram_ns: Vec<(u64, u64)>,
}

/// The figures of one repetition; None where no delay was taken.
pub(super) fn delays_of(way: Way, ticks: &[u64], ticks_a_second: f64) -> Option<Delays> {
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
        way: way.name(),
        frames: ticks.len() as u64,
        min_us: min,
        typical_us: percentile(&sorted, 0.5),
        worst_case_us: worst,
        max_us: percentile(&sorted, 1.0),
        pdv_us: worst - min,
        ipdv_us: [0.0, 0.5, 1.0].map(|share| percentile(&differences, share)),
        histogram_ns: histogram_of(&sorted),
    })
}

/// Delays and how often each was seen.
fn histogram_of(microseconds: &[f64]) -> Vec<(u64, u64)> {
    // So many digits are always possible.
    let Ok(mut histogram) = Histogram::<u64>::new(DIGITS) else { return Vec::new() };
    for delay in microseconds {
        // It grows with what it is given.
        let _ = histogram.record((delay * 1e3).round() as u64);
    }
    let buckets = histogram.iter_recorded();
    buckets.map(|at| (histogram.median_equivalent(at.value_iterated_to()), at.count_at_value())).collect()
}

/// The figures of one way over all repetitions, microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Which way.
    pub way: &'static str,
    /// The shortest of each repetition.
    pub min_us: Samples,
    /// The typical one of each.
    pub typical_us: Samples,
    /// The worst case of each.
    pub worst_case_us: Samples,
    /// The longest of each.
    pub max_us: Samples,
    /// PDV of each.
    pub pdv_us: Samples,
}

/// What `latency` found over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverRepetitions {
    /// Frames lost in each repetition.
    pub lost: Samples,
    /// By way.
    pub delays: Vec<Spread>,
}

impl OverRepetitions {
    /// Of these.
    pub fn of(all: &[Latency]) -> OverRepetitions {
        let spread = |way: Way| {
            let seen: Vec<&Delays> =
                all.iter().flat_map(|one| &one.delays).filter(|delays| delays.way == way.name()).collect();
            let samples = |figure: fn(&Delays) -> f64| Samples::of(seen.iter().map(|delays| figure(delays)).collect());
            (!seen.is_empty()).then(|| Spread {
                way: way.name(),
                min_us: samples(|delays| delays.min_us),
                typical_us: samples(|delays| delays.typical_us),
                worst_case_us: samples(|delays| delays.worst_case_us),
                max_us: samples(|delays| delays.max_us),
                pdv_us: samples(|delays| delays.pdv_us),
            })
        };
        OverRepetitions {
            lost: Samples::of(all.iter().map(|one| one.lost as f64).collect()),
            delays: Way::BOTH.into_iter().filter_map(spread).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_the_figures_of_rfc_8219() {
        let delays = delays_of(Way::Inbound, &[1_000, 3_000, 2_000], 1e9).unwrap();
        assert_eq!((delays.min_us, delays.typical_us, delays.max_us), (1.0, 2.0, 3.0));
        assert_eq!(delays.ipdv_us, [-1.0, 0.5, 2.0]);
        assert!(delays_of(Way::Inbound, &[], 1e9).is_none());
    }

    #[test]
    fn every_figure_is_found_in_the_histogram_within_its_resolution() {
        // From a tenth of a microsecond to a tenth of a second, most of them short.
        let ticks: Vec<u64> = (1..=20_000_u64).map(|number| 100 + number.pow(4) / 1_600_000_000).collect();
        let delays = delays_of(Way::Outbound, &ticks, 1e9).unwrap();
        // Twenty doublings of 128 buckets each, and the shortest.
        assert!(delays.histogram_ns.len() < 2800, "{} buckets", delays.histogram_ns.len());
        assert!(delays.histogram_ns.is_sorted_by_key(|(delay, _)| *delay));
        let all = delays.histogram_ns.iter();
        let again: Vec<f64> = all.flat_map(|(delay, count)| vec![*delay as f64 / 1e3; *count as usize]).collect();
        assert_eq!(again.len() as u64, delays.frames);
        let figures =
            [(0.0, delays.min_us), (0.5, delays.typical_us), (0.999, delays.worst_case_us), (1.0, delays.max_us)];
        for (share, figure) in figures {
            let found = percentile(&again, share);
            assert!((found - figure).abs() <= figure * RESOLUTION, "{found} us in place of {figure} us at {share}");
        }
    }

    #[test]
    fn figures_over_repetitions_are_by_way_over_those_that_have_it() {
        let one = |lost: u64, ticks: u64, ways: &[Way]| Latency {
            rate: 1.0,
            lost,
            delays: ways.iter().filter_map(|way| delays_of(*way, &[ticks], 1e9)).collect(),
        };
        let all = [one(0, 3_000, &Way::BOTH), one(7, 1_000, &Way::BOTH), one(1, 2_000, &[Way::Inbound])];
        let over = OverRepetitions::of(&all);
        assert_eq!((&over.lost.values[..], over.lost.median), (&[0.0, 7.0, 1.0][..], 1.0));
        let [outbound, inbound] = &over.delays[..] else { panic!("{over:?}") };
        assert_eq!((outbound.way, &outbound.typical_us.values[..]), ("outbound", &[3.0, 1.0][..]));
        assert_eq!((inbound.way, inbound.worst_case_us.median), ("inbound", 2.0));
        assert!((inbound.typical_us.p99 - 2.98).abs() < 1e-9, "{inbound:?}");
        assert!(OverRepetitions::of(&[]).delays.is_empty());
    }
}
