//! Which stamp says of a session or flow that the filters in force permit its packets in both directions.
//!
//! A record has room for few different stamps, so that their numbers come round. Before one does, no record may have it left
//! from the last time: after each change of the filters a walk takes the stamps of all filters before off the records, so many a
//! call. While changes come faster than walks end, and the numbers run out, nothing is stamped at all, and every packet is
//! asked about.

use super::Shard;
use crate::rules::Permits;
use crate::rules::STAMPS;

/// Records visited in one call: about 2 µs, as they lie side by side.
const RECORDS_PER_CALL_MAX: u32 = 256;
/// A stamp that no record ever has.
const NOBODY: u8 = STAMPS + 1;

/// The stamp in force, and how far the walk is.
#[derive(Debug)]
pub(super) struct Stamps {
    /// Of the filters in force.
    latest: u8,
    /// What records are compared with: `latest`, or [`NOBODY`] while it may be left from the last time.
    current: u8,
    /// Numbers given out since a walk ended, that in force then among them.
    used: u8,
    /// Where the walk goes on, if it is under way: in the mappings, then in the flows.
    walk: Option<(Kind, u32)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Mappings,
    Flows,
}

impl Stamps {
    pub(super) fn new(stamp: u8) -> Stamps {
        Stamps { latest: stamp, current: stamp, used: 1, walk: None }
    }

    /// What a record has of which packets need not be asked about.
    #[inline(always)]
    pub(super) fn current(&self) -> u8 {
        self.current
    }

    /// The stamp for a record whose packets are permitted like this, if it gets one.
    #[inline(always)]
    pub(super) fn to_give(&self, permits: Permits) -> Option<u8> {
        (permits.out & permits.back & (self.current != NOBODY)).then_some(self.current)
    }

    /// Other filters are in force, if their stamp is another.
    pub(super) fn change(&mut self, stamp: u8) {
        if stamp == self.latest {
            return;
        }
        self.latest = stamp;
        self.used = self.used.saturating_add(1);
        self.current = if self.used <= STAMPS { stamp } else { NOBODY };
        self.walk = Some((Kind::Mappings, 1));
    }
}

impl Shard {
    /// Takes stamps of filters that are gone off some records.
    #[inline]
    pub(super) fn sweep_stamps(&mut self) {
        if self.stamps.walk.is_some() {
            self.walk_stamps();
        }
    }

    #[cold]
    fn walk_stamps(&mut self) {
        let Some((kind, from)) = self.stamps.walk else { return };
        let current = self.stamps.current;
        let end = match kind {
            Kind::Mappings => self.mappings.walk_end(),
            Kind::Flows => self.flows.walk_end(),
        };
        let stop = from.saturating_add(RECORDS_PER_CALL_MAX).min(end);
        for index in from..stop {
            match kind {
                Kind::Mappings => {
                    let mapping = self.mappings.get_mut(index);
                    if mapping.is_in_use() && mapping.session_stamp() != current {
                        mapping.set_session_stamp(0);
                    }
                }
                Kind::Flows => {
                    let flow = self.flows.get_mut(index);
                    if flow.is_in_use() && flow.stamp() != current {
                        flow.set_stamp(0);
                    }
                }
            }
        }
        self.stamps.walk = match kind {
            _ if stop < end => Some((kind, stop)),
            Kind::Mappings => Some((Kind::Flows, 1)),
            Kind::Flows => None,
        };
        if self.stamps.walk.is_none() {
            (self.stamps.current, self.stamps.used) = (self.stamps.latest, 1);
        }
    }
}
