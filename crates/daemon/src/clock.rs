//! The clock of a running instance: µs since its start, from CLOCK_MONOTONIC.
//!
//! A worker reads it once per poll, not per packet. On Linux this is a read of the time-stamp
//! counter in user space (vDSO), calibrated by the kernel: some 20 ns for a burst of up to 64
//! packets.

use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use nat::Instant;

/// Counts from its creation. Copies share the origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
    origin_unix_us: u64,
}

impl Clock {
    /// A clock that starts now, at one second, so that instants before the start differ from the
    /// origin.
    pub fn start() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock {
            origin: std::time::Instant::now(),
            origin_unix_us: u64::try_from(unix.as_micros()).unwrap_or(0).saturating_sub(START_US),
        }
    }

    /// The current time.
    #[inline]
    pub fn now(&self) -> Instant {
        let elapsed = self.origin.elapsed();
        Instant::from_micros(START_US + elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros()))
    }

    /// Time since the start.
    pub fn uptime_us(&self) -> u64 {
        self.now().as_micros() - START_US
    }

    /// µs since 1970 at `instant`, for display. Ignores steps of the system's clock since the
    /// start.
    pub fn unix_us(&self, instant: Instant) -> u64 {
        self.origin_unix_us + instant.as_micros()
    }
}

const START_US: u64 = 1_000_000;
