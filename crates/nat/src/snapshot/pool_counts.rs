//! Counts of each pool since the start.

use crate::policy::rules::Hits;
use crate::policy::rules::RuleId;
use crate::types::PoolName;
use crate::types::WorkerId;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolCount {
    /// A subscriber was paired with an address.
    Paired,
    Mapped,
    /// All addresses drain.
    NoAddress,
    /// No port, or a limit of ports.
    NoPort,
}

const KINDS: u32 = 4;

impl PoolCount {
    pub(crate) fn of_refusal(verdict: Verdict) -> Option<PoolCount> {
        match verdict {
            Verdict::AddressDraining => Some(PoolCount::NoAddress),
            Verdict::PortsExhausted | Verdict::BlockLimit | Verdict::SubscriberPortQuota => Some(PoolCount::NoPort),
            _ => None,
        }
    }
}

/// Counts of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounted {
    /// Pairs of a subscriber and an address.
    pub addresses_paired: u64,
    /// Mappings.
    pub mappings_created: u64,
    /// Refusals because all addresses drain.
    pub refused_without_address: u64,
    /// Refusals because no port was free, or a limit of ports was reached.
    pub refused_without_port: u64,
}

/// By number of the name, so a pool that leaves the settings and returns continues its count.
#[derive(Debug)]
pub(crate) struct PoolCounts(Hits);

fn place(pool: PoolName, what: PoolCount) -> RuleId {
    RuleId(u32::from(pool.0) * KINDS + what as u32)
}

impl PoolCounts {
    pub(crate) fn new(workers: usize, names: usize, before: Option<&PoolCounts>) -> PoolCounts {
        let counts = PoolCounts(Hits::new(workers, names * KINDS as usize));
        if let Some(before) = before {
            counts.carry(before);
        }
        counts
    }

    pub(crate) fn carry(&self, before: &PoolCounts) {
        self.0.carry(&before.0, (0..before.0.len()).map(|place| (RuleId(place as u32), RuleId(place as u32))));
    }

    #[inline]
    pub(crate) fn count(&self, worker: WorkerId, pool: PoolName, what: PoolCount) {
        self.0.count(worker, place(pool, what));
    }

    pub(crate) fn of(&self, pool: PoolName) -> PoolCounted {
        let of = |what| self.0.of(place(pool, what));
        PoolCounted {
            addresses_paired: of(PoolCount::Paired),
            mappings_created: of(PoolCount::Mapped),
            refused_without_address: of(PoolCount::NoAddress),
            refused_without_port: of(PoolCount::NoPort),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_on_under_the_next_settings() {
        let before = PoolCounts::new(2, 2, None);
        for (worker, pool, what) in [(0, 0, PoolCount::Mapped), (1, 0, PoolCount::Mapped), (1, 1, PoolCount::NoPort)] {
            before.count(WorkerId(worker), PoolName(pool), what);
        }
        let after = PoolCounts::new(2, 3, Some(&before));
        before.count(WorkerId(0), PoolName(1), PoolCount::Paired);
        after.count(WorkerId(1), PoolName(1), PoolCount::Paired);
        after.carry(&before);
        assert_eq!(after.of(PoolName(0)), PoolCounted { mappings_created: 2, ..PoolCounted::default() });
        assert_eq!(
            after.of(PoolName(1)),
            PoolCounted { addresses_paired: 2, refused_without_port: 1, ..PoolCounted::default() }
        );
        assert_eq!(after.of(PoolName(2)), PoolCounted::default());
    }
}
