//! The time that the tester goes by.

#[cfg(test)]
use core::cell::Cell;
use core::time::Duration;
#[cfg(test)]
use std::rc::Rc;

use mem::tsc;

/// How long the frequency of the time-stamp counter is measured, milliseconds.
const CALIBRATION_MS: u64 = 50;
/// Simulated time that a look at the clock takes, and that an idle turn takes, nanoseconds.
#[cfg(test)]
const LOOK_NS: u64 = 1_000;
#[cfg(test)]
const IDLE_NS: u64 = 20_000;

/// A clock that only goes forward.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The time-stamp counter, with its ticks a second.
    Counter(f64),
    /// Nanoseconds that only the tester's own looks advance: a test does not depend on how busy the
    /// machine is.
    #[cfg(test)]
    Simulated(Rc<Cell<u64>>),
}

impl Clock {
    /// The machine's.
    pub fn counter() -> Clock {
        Clock::Counter(tsc::frequency_hz(CALIBRATION_MS))
    }

    /// One that begins now.
    #[cfg(test)]
    pub(crate) fn simulated() -> Clock {
        Clock::Simulated(Rc::default())
    }

    /// Ticks a second.
    pub fn ticks_a_second(&self) -> f64 {
        match self {
            Clock::Counter(ticks_a_second) => *ticks_a_second,
            #[cfg(test)]
            Clock::Simulated(_) => 1e9,
        }
    }

    /// Ticks until now.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        match self {
            Clock::Counter(_) => tsc::read(),
            #[cfg(test)]
            Clock::Simulated(ticks) => {
                ticks.set(ticks.get() + LOOK_NS);
                ticks.get()
            }
        }
    }

    /// Ticks of a time.
    pub fn ticks(&self, time: Duration) -> u64 {
        (time.as_secs_f64() * self.ticks_a_second()) as u64
    }

    /// Nothing is to be done in this turn: simulated time need not be waited for.
    #[inline(always)]
    pub fn idle(&self) {
        match self {
            Clock::Counter(_) => {}
            #[cfg(test)]
            Clock::Simulated(ticks) => ticks.set(ticks.get() + IDLE_NS),
        }
    }

    /// Lets time pass in which nobody looks.
    #[cfg(test)]
    pub(crate) fn advance(&self, time: Duration) {
        if let Clock::Simulated(ticks) = self {
            ticks.set(ticks.get() + self.ticks(time));
        }
    }
}
