//! Runs of the data plane: their clocks, names and pools.

use core::net::Ipv4Addr;
use std::sync::Arc;

use super::entries::Names;
use crate::pools::PoolRanges;

/// One moment by the boot's clock and by the time of day, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic.
    pub monotonic_us: u64,
    /// Since 1970.
    pub unix_us: u64,
}

impl Moment {
    /// Time of day less monotonic time.
    pub(crate) fn offset(&self) -> i64 {
        self.unix_us as i64 - self.monotonic_us as i64
    }
}

/// A run of the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) id: [u8; 16],
    /// Number of its first frame.
    pub(crate) first_frame: u64,
    /// Both clocks at the start and when each step was noticed.
    pub(crate) clocks: Vec<Moment>,
    /// Since when each of them may have been right: the reading before it was without the step.
    pub(crate) clocks_since_us: Vec<u64>,
    /// Periods that only a later segment shows to be uncertain.
    pub(crate) uncertain: Vec<(u64, u64)>,
    /// Time of its end, and whether it stopped cleanly.
    pub(crate) ended: Option<(u64, bool)>,
    /// True if no record is missing at its end, and the clock was not set before the next one.
    pub(crate) is_whole: bool,
    /// True if the rings that had its last records were lost.
    pub(crate) is_end_lost: bool,
    /// The names used last; a run keeps the numbers of realms and pools.
    pub(crate) names: Names,
    /// The formulas that were in use.
    pub(crate) formulas: Vec<FormulasInUse>,
    /// Since when which pools had which addresses.
    pub(crate) pools: Vec<(u64, Arc<PoolRanges>)>,
}

impl Boot {
    /// A run that begins at this moment.
    pub(crate) fn begin(id: [u8; 16], moment: Moment) -> Boot {
        Boot {
            id,
            first_frame: 0,
            clocks: vec![moment],
            clocks_since_us: vec![moment.monotonic_us],
            uncertain: Vec::new(),
            ended: None,
            is_whole: false,
            is_end_lost: false,
            names: Names::default(),
            formulas: Vec::new(),
            pools: Vec::new(),
        }
    }

    /// A step of the clock was noticed, which was not there yet at `since_us`. None if it comes
    /// before an earlier one.
    pub(crate) fn set_clock(&mut self, moment: Moment, since_us: u64) -> Option<()> {
        let before = self.clocks.last()?.monotonic_us;
        if moment.monotonic_us < before {
            return None;
        }
        self.clocks.push(moment);
        self.clocks_since_us.push(since_us.clamp(before, moment.monotonic_us));
        Some(())
    }

    /// The pools that some worker used between two moments, if the run recorded its pools.
    pub(crate) fn pools_between(&self, from_us: u64, to_us: u64) -> impl Iterator<Item = &PoolRanges> {
        let next = move |place: usize| self.pools.get(place + 1).map_or(u64::MAX, |(since_us, _)| *since_us);
        let in_use = self.pools.iter().enumerate().filter(move |(place, (since_us, _))| {
            // A run begins with its first ones.
            let is_begun = *place == 0 || *since_us <= to_us.saturating_add(ADOPTED_US);
            is_begun && from_us <= next(*place).saturating_add(ADOPTED_US)
        });
        in_use.map(|(_, (_, pools))| pools.as_ref())
    }

    /// The number of the pool that an external address was of at a time. A mapping may be recorded
    /// shortly before the configuration that made it possible, and outlive its pool.
    pub(crate) fn pool_of(&self, address: Ipv4Addr, at_us: u64) -> Option<u16> {
        let next = self.pools.partition_point(|(since_us, _)| *since_us <= at_us);
        let (before, after) = self.pools.split_at(next.saturating_sub(1));
        after.iter().chain(before.iter().rev()).find_map(|(_, pools)| pools.find(address))
    }
}

/// Workers use a new configuration by then, in µs after the log got its names.
pub(crate) const ADOPTED_US: u64 = 5_000_000;

/// The formulas of deterministic pools from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FormulasInUse {
    /// They came into use between these, by the boot's clock.
    pub(crate) since_us: u64,
    pub(crate) at_us: u64,
    /// Their checksum; 0 without.
    pub(crate) checksum: u32,
    /// The number of the first configuration with them.
    pub(crate) configuration: u32,
}
