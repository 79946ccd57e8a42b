//! Time of day and the clocks of boots: one may have been set, and shows some times twice or never.

use std::collections::BTreeSet;

use super::Holder;
use super::Store;
use super::search::Search;
use crate::store::builder::Coverage;
use crate::store::catalogue::Boot;
use crate::store::catalogue::Moment;
use crate::store::catalogue::Segment;
use crate::store::error::StoreError;
use crate::store::row::Row;
use crate::utc_text;

/// A stretch of a boot in which the clock was not set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) boot: u32,
    pub(super) offset: i64,
    /// By the boot's clock; `to_us` is the first moment after it.
    pub(super) from_us: u64,
    pub(super) to_us: u64,
}

impl Stretch {
    pub(super) fn unix_us(&self, monotonic_us: u64) -> u64 {
        monotonic_us.saturating_add_signed(self.offset)
    }
}

impl Store {
    /// Stretches of all boots, with the time until which records are known to be complete.
    pub(super) fn stretches(&self, boot: u32, known: &Boot, end_us: u64) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        for (place, (clock, since_us)) in known.clocks.iter().zip(&known.clocks_since_us).enumerate() {
            // Until a step was noticed, either setting may have been the right one.
            let to_us = known.clocks.get(place + 1).map_or(end_us, |next| next.monotonic_us.min(end_us));
            if to_us > *since_us {
                stretches.push(Stretch { boot, offset: clock.offset(), from_us: *since_us, to_us });
            }
        }
        stretches
    }

    /// Times of day that occurred more than once, because a clock was set back: first and next
    /// moment of each, in order.
    pub(super) fn times_twice(&self, end_of: impl Fn(u32, &Boot) -> u64) -> Vec<(u64, u64)> {
        let boots = self.catalogue.boots.iter().enumerate().map(|(boot, known)| (boot as u32, known));
        let stretches = boots.flat_map(|(boot, known)| self.stretches(boot, known, end_of(boot, known)));
        let mut shown: Vec<_> =
            stretches.map(|stretch| (stretch.unix_us(stretch.from_us), stretch.unix_us(stretch.to_us))).collect();
        shown.sort_unstable();
        let mut twice = Vec::new();
        let mut shown_to = 0;
        for (begin, end) in shown {
            if begin < shown_to {
                twice.push((begin, end.min(shown_to)));
            }
            shown_to = shown_to.max(end);
        }
        twice
    }
}

impl Search<'_> {
    /// As [`Search::stretch`]. Between two readings of the clock with a step between them, either
    /// setting may have been the right one.
    pub(super) fn stretch_by_clock(
        &mut self,
        known: &Boot,
        stretch: &Stretch,
        from: u64,
        to: u64,
    ) -> Result<(), StoreError> {
        // Both are in order.
        let first = known.clocks.partition_point(|noticed| noticed.monotonic_us <= from).max(1);
        let steps = known.clocks.iter().zip(&known.clocks_since_us).skip(first);
        let steps = steps.map(|(noticed, since_us)| (*since_us, noticed.monotonic_us));
        let unclear: Vec<(u64, u64)> = steps.take_while(|(since, _)| *since <= to).collect();
        let mut next = from;
        for (since, noticed) in &unclear {
            if next < *since {
                self.stretch(stretch, next, *since - 1)?;
            }
            next = next.max(*noticed);
        }
        if next <= to {
            self.stretch(stretch, next, to)?;
        }
        for (since, noticed) in unclear {
            let before = self.found.holders.len();
            self.stretch(stretch, since.max(from), (noticed - 1).min(to))?;
            let mut late = self.found.holders.split_off(before);
            let known: BTreeSet<Holder> = self.found.holders.iter().map(Holder::interval).collect();
            late.retain(|holder| !known.contains(&holder.interval()));
            late.iter_mut().for_each(|holder| holder.is_certain = false);
            self.found.holders.extend(late);
            let (first, last) = (utc_text(stretch.unix_us(since)), utc_text(stretch.unix_us(noticed)));
            self.limit(format!(
                "the clock was set between {first} and {last}; those are listed who had it by the time before or after"
            ));
        }
        Ok(())
    }

    /// Time of day of a millisecond of a boot, by the clock setting of that time.
    pub(super) fn unix_us(&self, boot: u32, monotonic_ms: u64) -> u64 {
        let monotonic_us = monotonic_ms.saturating_mul(1_000);
        let boot = self.store.catalogue.boots.get(boot as usize);
        let clocks = boot.map(|boot| &boot.clocks[..]).unwrap_or_default();
        let clock = clocks.iter().rev().find(|clock| clock.monotonic_us <= monotonic_us).or(clocks.first());
        monotonic_us.saturating_add_signed(clock.map_or(0, Moment::offset))
    }

    /// The earliest and the latest time that a millisecond of a boot can have been, if that is not
    /// clear: the clock was set between two readings.
    pub(super) fn unclear_unix_us(&self, boot: u32, monotonic_ms: u64) -> Option<(u64, u64)> {
        let (first_us, last_us) = (monotonic_ms.saturating_mul(1_000), monotonic_ms.saturating_mul(1_000) + 999);
        let boot = self.store.catalogue.boots.get(boot as usize)?;
        let after = boot.clocks.partition_point(|clock| clock.monotonic_us <= first_us);
        let since_us = *boot.clocks_since_us.get(after).filter(|_| after > 0)?;
        let (before, after) = (boot.clocks.get(after - 1)?.offset(), boot.clocks.get(after)?.offset());
        let unix_us = |offset: i64| first_us.saturating_add_signed(offset);
        (since_us <= last_us).then(|| (unix_us(before.min(after)), unix_us(before.max(after))))
    }
}

/// First and last time of day that any clock setting of its boot gives the records of a segment.
pub(super) fn unix_span(segment: &Segment, boot: &Boot) -> (u64, u64) {
    let (first, last) = span(&segment.coverage);
    let offsets = || boot.clocks.iter().map(Moment::offset);
    let (least, most) = (offsets().min().unwrap_or(0), offsets().max().unwrap_or(0));
    (first.saturating_add_signed(least), last.saturating_add_signed(most))
}

/// The earliest time of day that any clock setting of its boot gives the start of a row.
pub(super) fn earliest_of(boot: &Boot, row: &Row) -> u64 {
    let least = boot.clocks.iter().map(Moment::offset).min().unwrap_or(0);
    row.start.saturating_mul(1_000).saturating_add_signed(least)
}

/// First and last time of the records of a segment, in whole milliseconds as its rows.
pub(super) fn span(coverage: &Coverage) -> (u64, u64) {
    let (first, last) = (coverage.from_us.min(coverage.earliest_us), coverage.covered_us.max(coverage.latest_us));
    (first / 1_000 * 1_000, (last / 1_000).saturating_add(1).saturating_mul(1_000))
}
