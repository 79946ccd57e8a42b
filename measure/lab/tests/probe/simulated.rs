//! The world of the probe over the simulated Natrix, with its virtual clock.

use core::time::Duration;
use std::collections::VecDeque;

use lab::probe::Side;
use lab::probe::Site;
use lab::probe::World;
use lab::probe::world::Arrival;
use lab::probe::world::WorldError;
use testkit::Bed;
use testkit::OUTSIDE_ROUTER;

/// Time between two rounds of housekeeping while nothing is sent.
const STEP: Duration = Duration::from_millis(500);

pub(crate) struct Simulated {
    bed: Bed,
    begun: u64,
    arrived: VecDeque<Arrival>,
}

impl Simulated {
    pub(crate) fn new(bed: Bed) -> Simulated {
        Simulated { begun: bed.now().as_micros(), bed, arrived: VecDeque::new() }
    }

    /// Hosts of the standard topology.
    pub(crate) fn site() -> Site {
        Site {
            first_inside: [100, 64, 8, 0].into(),
            inside_hosts: 8_192,
            first_remote: testkit::E1,
            remotes: 32,
            transit: OUTSIDE_ROUTER,
        }
    }

    fn take(&mut self) {
        let at = self.now();
        let sides = [(Side::Inside, self.bed.take_inside()), (Side::Outside, self.bed.take_outside())];
        for (side, packets) in sides {
            self.arrived.extend(packets.into_iter().map(|packet| Arrival { side, at, packet }));
        }
    }
}

impl World for Simulated {
    fn now(&self) -> Duration {
        Duration::from_micros(self.bed.now().as_micros() - self.begun)
    }

    fn send(&mut self, side: Side, packet: &[u8]) -> Result<(), WorldError> {
        match side {
            Side::Inside => self.bed.inside(packet),
            Side::Outside => self.bed.outside(packet),
        }
        self.take();
        Ok(())
    }

    fn next(&mut self, until: Duration) -> Result<Option<Arrival>, WorldError> {
        loop {
            if let Some(arrival) = self.arrived.pop_front() {
                return Ok(Some(arrival));
            }
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return Ok(None);
            }
            // The clock of the bed has no less than a microsecond.
            self.bed.jump(nat::Duration::from_micros(left.min(STEP).as_nanos().div_ceil(1_000) as u64));
            self.bed.settle();
            self.take();
        }
    }
}
