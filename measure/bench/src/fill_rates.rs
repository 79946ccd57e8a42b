//! How fast a table fills, by how full it is already.

use serde::Serialize;

/// The parts in which a fill is reported.
const PARTS: usize = 100;
/// Parts in a tenth.
const TENTH: usize = PARTS / 10;

/// The rates of new sessions while the table filled. Time in which the thread was off its core does
/// not count.
#[derive(Clone, Debug, Serialize)]
pub struct FillReport {
    /// Sessions a second in each tenth of the fill; 0 for one that no burst began in, which a table
    /// of few bursts has.
    pub tenths_per_second: Vec<f64>,
    /// The slowest of these to the average of the whole fill.
    pub slowest_tenth_to_average: f64,
    /// The slowest of a hundred parts to that average.
    pub slowest_hundredth_to_average: f64,
    /// Ports of the pool, UDP and TCP together.
    pub pool_ports: u64,
    /// Sessions that took the last hundredth of them, down to the last one.
    pub last_percent_of_pool_sessions: u64,
    /// Sessions a second in that hundredth.
    pub last_percent_of_pool_per_second: f64,
    /// This to the average of the whole fill.
    pub last_percent_of_pool_to_average: f64,
}

/// Sessions opened, and the cycles that took.
#[derive(Clone, Copy, Default)]
struct Part {
    sessions: u64,
    cycles: f64,
}

impl Part {
    fn add(&mut self, other: Part) {
        self.sessions += other.sessions;
        self.cycles += other.cycles;
    }

    /// 0 when nothing was timed.
    fn per_second(&self, hz: f64) -> f64 {
        if self.cycles > 0.0 { self.sessions as f64 / (self.cycles / hz) } else { 0.0 }
    }
}

/// Collects the bursts of a fill.
pub(crate) struct FillRates {
    parts: [Part; PARTS],
    last_percent: Part,
}

impl FillRates {
    pub(crate) fn new() -> FillRates {
        FillRates { parts: [Part::default(); PARTS], last_percent: Part::default() }
    }

    /// A burst of so many sessions, of which the first is number `index` of `total`.
    pub(crate) fn record(&mut self, index: usize, total: usize, sessions: usize, cycles: f64) {
        if let Some(part) = self.parts.get_mut(index * PARTS / total.max(1)) {
            part.add(Part { sessions: sessions as u64, cycles });
        }
    }

    /// A burst that took ports of the last hundredth.
    pub(crate) fn record_last_percent(&mut self, sessions: usize, cycles: f64) {
        self.last_percent.add(Part { sessions: sessions as u64, cycles });
    }

    pub(crate) fn report(&self, pool_ports: u64, hz: f64) -> FillReport {
        let sum = |parts: &[Part]| {
            parts.iter().fold(Part::default(), |mut sum, part| {
                sum.add(*part);
                sum
            })
        };
        let average = sum(&self.parts).per_second(hz);
        let tenths: Vec<f64> = self.parts.chunks(TENTH).map(|tenth| sum(tenth).per_second(hz)).collect();
        // A table of less than a hundred bursts leaves parts empty.
        let slowest = |rates: &mut dyn Iterator<Item = f64>| {
            rates.filter(|rate| *rate > 0.0).reduce(f64::min).map_or(0.0, |slowest| slowest / average)
        };
        FillReport {
            slowest_tenth_to_average: slowest(&mut tenths.iter().copied()),
            tenths_per_second: tenths,
            slowest_hundredth_to_average: slowest(&mut self.parts.iter().map(|part| part.per_second(hz))),
            pool_ports,
            last_percent_of_pool_sessions: self.last_percent.sessions,
            last_percent_of_pool_per_second: self.last_percent.per_second(hz),
            last_percent_of_pool_to_average: if average > 0.0 {
                self.last_percent.per_second(hz) / average
            } else {
                0.0
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9 * right.abs()
    }

    #[test]
    fn the_slowest_parts_are_found_and_compared_with_the_average() {
        let mut rates = FillRates::new();
        for index in 0..1_000 {
            // Ten times as slow in one hundredth: 109 cycles for 100 sessions' worth of ten.
            let cycles = if index / 10 == 55 { 10.0 } else { 1.0 };
            rates.record(index, 1_000, 1, cycles);
        }
        rates.record_last_percent(64, 128.0);
        let report = rates.report(5, 1e3);
        let average = 1e3 * 1_000.0 / 1_090.0;
        assert_eq!(report.tenths_per_second.len(), 10);
        assert!(is_close(report.tenths_per_second[0], 1e3), "{report:?}");
        assert!(is_close(report.slowest_tenth_to_average, 1e3 * 100.0 / 190.0 / average), "{report:?}");
        assert!(is_close(report.slowest_hundredth_to_average, 100.0 / average), "{report:?}");
        assert_eq!((report.pool_ports, report.last_percent_of_pool_sessions), (5, 64));
        assert!(is_close(report.last_percent_of_pool_to_average, 500.0 / average), "{report:?}");
    }

    #[test]
    fn a_table_of_few_bursts_has_a_slowest_part_too() {
        let mut rates = FillRates::new();
        rates.record(0, 128, 64, 64.0);
        rates.record(64, 128, 64, 128.0);
        let report = rates.report(128, 1e3);
        assert!(is_close(report.slowest_hundredth_to_average, 500.0 / (1e3 * 128.0 / 192.0)), "{report:?}");
    }

    #[test]
    fn a_table_of_one_burst_has_figures_everywhere() {
        let mut rates = FillRates::new();
        rates.record(0, 64, 64, 64.0);
        let report = rates.report(192, 1e3);
        assert_eq!(report.tenths_per_second, [1e3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(is_close(report.slowest_tenth_to_average, 1.0), "{report:?}");
        assert!(is_close(report.slowest_hundredth_to_average, 1.0), "{report:?}");
        let nothing = [report.last_percent_of_pool_per_second, report.last_percent_of_pool_to_average];
        assert_eq!(nothing, [0.0, 0.0]);
    }
}
