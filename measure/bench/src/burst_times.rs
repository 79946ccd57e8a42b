//! How long bursts took, and in which of them the operating system took the core away.
//!
//! The time-stamp counter goes on while another thread has the core; the thread's own clock does
//! not. A burst in which the counter gained more than the clock is counted apart: its time is not
//! the engine's. Most kernels charge interrupts to the thread, so their time stays in.

use hdrhistogram::Histogram;
use mem::tsc;
use serde::Serialize;

/// Time off the core that makes a burst an interrupted one: more than the clocks' own blur, less
/// than a change of threads.
const OFF_CORE_SECONDS_MIN: f64 = 1e-6;

/// Times of the bursts of one phase, in TSC cycles.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// Bursts measured, interrupted ones included.
    pub bursts: u64,
    /// Median of the bursts that were not interrupted.
    pub p50_cycles: u64,
    /// 99th percentile of these.
    pub p99_cycles: u64,
    /// 99.9th percentile of these.
    pub p999_cycles: u64,
    /// Longest of these.
    pub max_cycles: u64,
    /// Bursts in which the operating system, or the host, gave the core to somebody else.
    pub interrupted_bursts: u64,
    /// 99.9th percentile of all bursts.
    pub all_p999_cycles: u64,
    /// Longest of all bursts.
    pub all_max_cycles: u64,
}

/// Collects the times of bursts.
pub(crate) struct BurstTimes {
    hz: f64,
    own: Histogram<u64>,
    interrupted: Histogram<u64>,
}

/// A burst that has begun.
pub(crate) struct Begun {
    running: Option<f64>,
    cycles: u64,
}

impl Begun {
    /// Call it right before the timed part.
    #[inline(always)]
    pub(crate) fn now() -> Begun {
        Begun { running: tsc::thread_seconds(), cycles: tsc::read() }
    }

    /// Cycles since then, less those in which the thread was off its core.
    #[inline(always)]
    pub(crate) fn own_cycles(&self, hz: f64) -> f64 {
        self.own_cycles_of(tsc::read() - self.cycles, hz)
    }

    /// Of a timed part that took so many cycles, those in which the thread was on its core. The
    /// part is the only long thing since [`Begun::now`].
    #[inline(always)]
    pub(crate) fn own_cycles_of(&self, cycles: u64, hz: f64) -> f64 {
        match self.running_seconds() {
            Some(running) if is_interrupted(cycles, running, hz) => running * hz,
            _ => cycles as f64,
        }
    }

    fn running_seconds(&self) -> Option<f64> {
        self.running.zip(tsc::thread_seconds()).map(|(before, after)| after - before)
    }
}

/// Whether somebody else had the core in a burst of so many cycles, in which the thread's own clock
/// went on by so much.
fn is_interrupted(cycles: u64, running_seconds: f64, hz: f64) -> bool {
    cycles as f64 / hz - running_seconds >= OFF_CORE_SECONDS_MIN
}

impl BurstTimes {
    /// No burst yet; the counter has so many cycles a second.
    pub(crate) fn new(hz: f64) -> BurstTimes {
        let histogram = || Histogram::new(3).unwrap_or_else(|_| unreachable!("3 digits are valid"));
        BurstTimes { hz, own: histogram(), interrupted: histogram() }
    }

    /// Call it right after the timed part. Returns the cycles it took.
    #[inline(always)]
    pub(crate) fn end(&mut self, begun: &Begun) -> u64 {
        let cycles = tsc::read() - begun.cycles;
        self.record(cycles, begun.running_seconds());
        cycles
    }

    fn record(&mut self, cycles: u64, running_seconds: Option<f64>) {
        let is_interrupted = running_seconds.is_some_and(|running| is_interrupted(cycles, running, self.hz));
        let recorded = if is_interrupted { self.interrupted.record(cycles) } else { self.own.record(cycles) };
        debug_assert!(recorded.is_ok(), "the histogram grows by itself");
    }

    /// Forgets all bursts.
    pub(crate) fn reset(&mut self) {
        self.own.reset();
        self.interrupted.reset();
    }

    /// What was collected.
    pub(crate) fn times(&self) -> Times {
        let mut all = self.own.clone();
        let merged = all.add(&self.interrupted);
        debug_assert!(merged.is_ok(), "histograms resize themselves");
        Times {
            bursts: all.len(),
            p50_cycles: self.own.value_at_quantile(0.5),
            p99_cycles: self.own.value_at_quantile(0.99),
            p999_cycles: self.own.value_at_quantile(0.999),
            max_cycles: self.own.max(),
            interrupted_bursts: self.interrupted.len(),
            all_p999_cycles: all.value_at_quantile(0.999),
            all_max_cycles: all.max(),
        }
    }
}

/// What the machine does to a thread that only looks at the counter: times of waits that would take
/// `cycles` each, for so many seconds. Whatever is longer is interrupts, and the host's own work.
pub(crate) fn of_machine(hz: f64, cycles: u64, seconds: f64) -> Times {
    let mut times = BurstTimes::new(hz);
    for _ in 0..(seconds * hz / cycles.max(1) as f64) as u64 {
        let begun = Begun::now();
        while tsc::read() - begun.cycles < cycles {
            core::hint::spin_loop();
        }
        times.end(&begun);
    }
    times.times()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: f64 = 1e9;

    #[test]
    fn a_burst_in_which_the_core_was_away_counts_apart() {
        let mut times = BurstTimes::new(HZ);
        for _ in 0..999 {
            times.record(4_000, Some(4.3e-6));
        }
        times.record(900_000, Some(5e-6));
        let times = times.times();
        assert_eq!((times.bursts, times.interrupted_bursts), (1_000, 1));
        assert!(times.max_cycles < 4_010 && times.all_max_cycles >= 900_000, "{times:?}");
    }

    #[test]
    fn a_burst_that_is_long_by_itself_is_the_engines() {
        let mut times = BurstTimes::new(HZ);
        for _ in 0..998 {
            times.record(4_000, Some(4.3e-6));
        }
        for _ in 0..2 {
            times.record(900_000, Some(900e-6));
        }
        let times = times.times();
        assert_eq!(times.interrupted_bursts, 0);
        assert!(times.p999_cycles >= 900_000 && times.p99_cycles < 4_010, "{times:?}");
    }

    #[test]
    fn a_thread_that_sleeps_in_a_burst_was_interrupted() {
        let mut times = BurstTimes::new(tsc::frequency_hz(20));
        let begun = Begun::now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        times.end(&begun);
        assert_eq!(times.times().interrupted_bursts, 1);
        assert!(begun.own_cycles(times.hz) < times.times().all_max_cycles as f64 / 2.0, "sleep is not its own time");
    }

    #[test]
    fn the_machine_alone_takes_as_long_as_asked_for_or_longer() {
        let times = of_machine(tsc::frequency_hz(20), 5_000, 0.01);
        assert!(times.bursts > 0 && times.p50_cycles >= 4_995 && times.p999_cycles >= times.p50_cycles, "{times:?}");
    }

    #[test]
    fn without_a_threads_clock_no_burst_is_left_out() {
        let mut times = BurstTimes::new(HZ);
        times.record(900_000, None);
        assert_eq!((times.times().interrupted_bursts, times.times().max_cycles >= 900_000), (0, true));
    }
}
