//! Where an axis whose steps multiply has its numbers.

use core::ops::Range;

/// Numbers on an axis at least, where it goes on that far.
const FEWEST: usize = 4;
/// And at most: more would stand on each other.
const MOST: usize = 10;

/// The numbers of a logarithmic axis of this range, the least first: powers of ten where there are
/// enough of them, else 1, 2 and 5 times these, else, within a decade, equal steps.
pub(crate) fn logarithmic(range: &Range<f64>) -> Vec<f64> {
    let decades = within(range, &[1.0]);
    if decades.len() >= FEWEST {
        return decades.iter().copied().step_by(decades.len().div_ceil(MOST)).collect();
    }
    let thirds = within(range, &[1.0, 2.0, 5.0]);
    if thirds.len() >= FEWEST { thirds } else { equal_steps(range) }
}

/// These multiples of powers of ten that are in the range.
fn within(range: &Range<f64>, multiples: &[f64]) -> Vec<f64> {
    let exponents = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let all = exponents.flat_map(|exponent| multiples.iter().map(move |multiple| multiple * power_of_ten(exponent)));
    all.filter(|tick| (range.start..=range.end).contains(tick)).collect()
}

/// The numbers of an axis with equal steps: of what comes in wholes they are whole.
pub(crate) fn linear(range: &Range<f64>, are_wholes: bool) -> Vec<f64> {
    match range.end - range.start {
        few if are_wholes && few <= FEWEST as f64 => {
            (range.start.ceil() as i64..=range.end as i64).map(|number| number as f64).collect()
        }
        _ => equal_steps(range),
    }
}

/// The widest steps of 1, 2 or 5 times a power of ten by which there are enough numbers.
fn equal_steps(range: &Range<f64>) -> Vec<f64> {
    let widest = (range.end - range.start).log10().ceil() as i32;
    let steps = (widest - 2..=widest).rev();
    let steps = steps.flat_map(|exponent| [5.0, 2.0, 1.0].map(|multiple| multiple * power_of_ten(exponent)));
    let ticks = |step: f64| {
        let numbers = (range.start / step).ceil() as i64..=(range.end / step).floor() as i64;
        numbers.map(|number| number as f64 * step).collect::<Vec<_>>()
    };
    steps.map(ticks).find(|ticks| ticks.len() >= FEWEST).unwrap_or_default()
}

/// As exact as there is: a power of a negative exponent is one over the other.
fn power_of_ten(exponent: i32) -> f64 {
    if exponent < 0 { 1.0 / 10_f64.powi(-exponent) } else { 10_f64.powi(exponent) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_whole_numbers_has_no_fractions() {
        assert_eq!(linear(&(0.0..1.08), true), [0.0, 1.0]);
        assert_eq!(linear(&(0.0..3.24), true), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(linear(&(0.0..8.64), true), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(linear(&(0.0..1640.0), true), [0.0, 500.0, 1000.0, 1500.0]);
        assert_eq!(linear(&(0.0..1.08), false), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
    }

    #[test]
    fn an_axis_of_any_length_has_enough_numbers_and_not_too_many() {
        assert_eq!(logarithmic(&(0.7..1.5e6)), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!(logarithmic(&(42.0..2277.0)), [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]);
        // No power of ten, and two of the thirds.
        assert_eq!(logarithmic(&(165.0..611.0)), [200.0, 300.0, 400.0, 500.0, 600.0]);
        assert_eq!(logarithmic(&(59.0..260.0)), [100.0, 150.0, 200.0, 250.0]);
        assert_eq!(logarithmic(&(0.02..0.045)).len(), 6, "{:?}", logarithmic(&(0.02..0.045)));
        for start in [1e-6, 0.03, 0.7, 1.0, 7.3, 99.0, 12_345.0, 8e8] {
            for width in [2.25, 3.0, 5.0, 9.9, 10.0, 40.0, 999.0, 1e6, 1e15] {
                let range = start..start * width;
                let ticks = logarithmic(&range);
                assert!((FEWEST..=MOST).contains(&ticks.len()), "{range:?}: {ticks:?}");
                assert!(ticks.is_sorted() && ticks.iter().all(|tick| range.start <= *tick && *tick <= range.end));
            }
        }
    }
}
