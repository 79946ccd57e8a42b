//! The clock of the master agent: hundredths of a second since it started.

use std::time::Duration;
use std::time::Instant;

/// When the master agent last said what its clock shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MasterClock {
    at: Instant,
    shown: u32,
}

impl MasterClock {
    pub(crate) fn new(at: Instant, shown: u32) -> MasterClock {
        MasterClock { at, shown }
    }

    /// What it showed, or will show, at an instant; 0 before its start.
    pub(crate) fn shows(&self, at: Instant) -> u32 {
        let hundredths = |span: Duration| u32::try_from(span.as_millis() / 10).unwrap_or(u32::MAX);
        match at.checked_duration_since(self.at) {
            Some(later) => self.shown.wrapping_add(hundredths(later)),
            None => self.shown.saturating_sub(hundredths(self.at.duration_since(at))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_before_the_master_started_is_zero() {
        let now = Instant::now() + Duration::from_secs(100);
        let clock = MasterClock::new(now, 500);
        assert_eq!(clock.shows(now), 500);
        assert_eq!(clock.shows(now + Duration::from_secs(1)), 600);
        assert_eq!(clock.shows(now - Duration::from_secs(2)), 300);
        assert_eq!(clock.shows(now - Duration::from_secs(60)), 0);
    }
}
