//! CPU time of this thread, so that other programs on the same core do not count.

use std::time::Duration;

use criterion::measurement::Measurement;
use criterion::measurement::ValueFormatter;
use criterion::measurement::WallTime;
use mem::tsc;

/// Shown as time.
pub(crate) struct CpuTime;

/// Since the thread began.
pub(crate) fn now() -> Duration {
    Duration::from_secs_f64(tsc::thread_seconds().expect("Linux has a clock for each thread"))
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        now()
    }

    fn end(&self, begin: Duration) -> Duration {
        now() - begin
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, time: &Duration) -> f64 {
        time.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}
