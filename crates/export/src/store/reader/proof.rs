//! What is proved of an interval: between which moments no lost record can have ended it.
//!
//! A lookup asks this about one moment. A row of an export is asked about any moment later, so it
//! has both ends of the time that is proved.

use super::Holder;
use super::Store;
use super::Until;
use super::search::Search;
use super::search::Source;
use super::time::unix_span;
use crate::Subscriber;
use crate::store::catalogue::Boot;
use crate::store::catalogue::Moment;
use crate::store::catalogue::Segment;
use crate::store::row::End;
use crate::store::row::ROUNDED_US;
use crate::store::row::Row;

/// An interval of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The holder. It is certain if all of its time is proved.
    pub holder: Holder,
    /// First moment that is proved, and the moment from which it is not proved any longer, µs since
    /// 1970. None if nothing is proved.
    pub known_us: Option<(u64, u64)>,
    /// True if it is proved until the records end, and had not ended then.
    pub is_open_to_the_end: bool,
    /// True if the clock was set back and showed some of the time that is proved once more: then
    /// another subscriber may have held the same at the same time of day.
    pub has_time_twice: bool,
    /// Identifies the run of the instance.
    pub run: [u8; 16],
    /// Beginning by the clock of the run, in ms. No later record changes it.
    pub started_ms: u64,
}

/// Which state of which store an export is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// Identifies the store.
    pub store: [u8; 16],
    /// Grows with each record: of two rows about one interval, the higher one knows more.
    pub version: u64,
}

/// The periods of a boot in which records may be missing.
pub(super) struct Losses {
    pub(super) periods: Vec<(u64, u64)>,
    /// True if the last of them has ended.
    pub(super) is_ended: bool,
}

impl Losses {
    /// When a lost record may first have ended an interval. It was reported last at `seen_us`: at
    /// the end of a period, all workers have reported what was open then.
    fn first_of(&self, start_us: u64, seen_us: u64) -> u64 {
        let periods = self.periods.iter().enumerate();
        let unconfirmed = periods.filter(|(place, (from, until))| {
            let is_confirmed = *from <= seen_us && (self.is_ended || place + 1 < self.periods.len());
            start_us <= *until && !is_confirmed
        });
        unconfirmed.map(|(_, (from, _))| (*from).max(start_us)).min().unwrap_or(u64::MAX)
    }

    /// The time in which an interval is proved, by its boot's clock. Of one that is open, it goes
    /// on after the records.
    pub(super) fn proved(&self, row: &Row) -> (u64, u64) {
        let (start_us, end_us) = (row.start.saturating_mul(1_000), row.end.saturating_mul(1_000));
        // Where the start is not known to the millisecond, its first time is not proved.
        let from_us = start_us + if row.is_start_rounded { ROUNDED_US } else { 0 };
        let until_us = match row.until {
            End::Exact => end_us,
            End::Open => self.first_of(start_us, end_us).max(end_us.saturating_add(1)),
            End::Lost => self.first_of(start_us, 0).min(end_us),
        };
        (from_us, until_us)
    }
}

impl Search<'_> {
    /// An interval as an export has it.
    pub(super) fn interval(&self, boot: u32, of: (Source, &Row), losses: &Losses) -> Interval {
        self.interval_until(boot, of, losses, u64::MAX)
    }

    /// The same of an interval that may have ended from this time of its boot's clock on, in a
    /// segment that cannot be read.
    pub(super) fn interval_until(
        &self,
        boot: u32,
        (source, row): (Source, &Row),
        losses: &Losses,
        doubtful_us: u64,
    ) -> Interval {
        let mut holder = self.holder(boot, (source, row), false);
        let (from_us, until_us) = losses.proved(row);
        let until_us = until_us.min(doubtful_us);
        let covered_us = self.covered_us(boot);
        let until_us = if row.until == End::Open { until_us.min(covered_us) } else { until_us };
        let known_us = self.longest_part(boot, from_us, until_us);
        let known_us = known_us.filter(|_| holder.subscriber != Subscriber::Unknown);
        let is_whole = match holder.until {
            Until::Ended(end) => known_us == Some((holder.since_us, end)),
            Until::Restart(end) => self.is_clean(boot) && known_us == Some((holder.since_us, end)),
            Until::Open | Until::Lost(_) => false,
        };
        holder.is_certain = is_whole;
        self.widen(boot, row, &mut holder);
        let known = self.store.catalogue.boots.get(boot as usize);
        let last_us = known.and_then(|boot| Some(covered_us.saturating_add_signed(boot.clocks.last()?.offset())));
        let known_until_us = known_us.map(|(_, until_us)| until_us);
        let is_open_to_the_end = holder.until == Until::Open && last_us.is_some() && last_us == known_until_us;
        let (first_us, end_us) = known_us.unwrap_or((holder.since_us, holder.since_us + 1));
        let has_time_twice = self.twice.iter().any(|(begin, end)| *begin < end_us && first_us < *end);
        let run = known.map_or([0; 16], |boot| boot.id);
        Interval { holder, known_us, is_open_to_the_end, has_time_twice, run, started_ms: row.start }
    }

    fn is_clean(&self, boot: u32) -> bool {
        let boot = self.store.catalogue.boots.get(boot as usize);
        boot.and_then(|boot| boot.ended).is_some_and(|(_, is_clean)| is_clean)
    }

    /// Until when the records of a boot are known to be complete, in whole ms as the ends of rows.
    pub(super) fn covered_us(&self, boot: u32) -> u64 {
        match self.store.catalogue.boots.get(boot as usize).and_then(|boot| boot.ended) {
            Some((covered_us, true)) => covered_us.div_ceil(1_000).saturating_mul(1_000),
            Some((covered_us, false)) => covered_us,
            None => {
                let sealed = self.store.catalogue.of_boot(boot).map(|segment| &segment.coverage);
                let all = sealed.chain(self.window(boot).map(|window| &window.coverage));
                all.map(|coverage| coverage.covered_us).max().unwrap_or(0)
            }
        }
    }

    /// The longest part of a time by a boot's clock in which the time of day was not set, as time
    /// of day.
    fn longest_part(&self, boot: u32, from_us: u64, until_us: u64) -> Option<(u64, u64)> {
        let boot = self.store.catalogue.boots.get(boot as usize)?;
        let parts = boot.clocks.iter().enumerate().map(|(place, clock)| {
            let begin_us = if place == 0 { 0 } else { clock.monotonic_us };
            let end_us = boot.clocks_since_us.get(place + 1).copied().unwrap_or(u64::MAX);
            let (from_us, until_us) = (from_us.max(begin_us), until_us.min(end_us));
            (until_us.saturating_sub(from_us), from_us, until_us, clock.offset())
        });
        let (length, from_us, until_us, offset) = parts.max_by_key(|(length, ..)| *length)?;
        let unix_us = |monotonic_us: u64| monotonic_us.saturating_add_signed(offset);
        Some((unix_us(from_us), unix_us(until_us))).filter(|(from_us, until_us)| length > 0 && from_us < until_us)
    }

    /// Moves the ends of a holding to the earliest and the latest time of day that any setting of
    /// the clock meanwhile gives it.
    fn widen(&self, boot: u32, row: &Row, holder: &mut Holder) {
        let Some(known) = self.store.catalogue.boots.get(boot as usize) else { return };
        if known.clocks.len() < 2 {
            return;
        }
        let start_us = row.start.saturating_mul(1_000);
        let end_us = match row.until {
            End::Open => known.ended.map_or(u64::MAX, |(end_us, _)| end_us),
            End::Exact | End::Lost => row.end.saturating_mul(1_000),
        };
        let (mut first, mut last) = (holder.since_us, 0);
        for (place, clock) in known.clocks.iter().enumerate() {
            let since_us = if place == 0 { 0 } else { known.clocks_since_us[place] };
            let next_us = known.clocks.get(place + 1).map_or(u64::MAX, |next| next.monotonic_us);
            if since_us < end_us && start_us < next_us {
                let unix_us = |monotonic_us: u64| monotonic_us.saturating_add_signed(Moment::offset(clock));
                first = first.min(unix_us(start_us.max(since_us)));
                last = last.max(unix_us(end_us.min(next_us)));
            }
        }
        if first < holder.since_us || self.unclear_unix_us(boot, row.start).is_some() {
            (holder.since_us, holder.is_since_exact, holder.is_certain) = (first, false, false);
        }
        let is_unclear = self.unclear_unix_us(boot, row.end).is_some();
        match &mut holder.until {
            Until::Restart(end) if *end < last => (*end, holder.is_certain) = (last, false),
            Until::Ended(end) | Until::Lost(end) if *end < last || is_unclear => {
                (holder.until, holder.is_certain) = (Until::Lost(last.max(*end)), false);
            }
            Until::Open | Until::Restart(_) | Until::Ended(_) | Until::Lost(_) => {}
        }
    }
}

impl Store {
    /// The last moment at which a segment's intervals can have been held: what it has open when its
    /// boot ended without a stop may have been held until the next start.
    pub(super) fn latest_of(&self, segment: &Segment, boot: &Boot) -> u64 {
        let (_, latest) = unix_span(segment, boot);
        let is_last = self.catalogue.of_boot(segment.boot).last().is_some_and(|last| last.id == segment.id);
        match boot.ended {
            _ if !is_last => latest,
            Some((_, true)) => latest,
            Some((end_us, false)) => {
                lost_end_us(boot, self.catalogue.boots.get(segment.boot as usize + 1), end_us).max(latest)
            }
            None => u64::MAX,
        }
    }
}

/// How long a boot may have run after its last record, in µs, if the clock went back before the
/// next start.
const LOST_END_US: u64 = 600_000_000;
/// The same if it did not: twice the default interval of syncs. The clock may have gone back by
/// less than the time between the boots.
const LOST_LEAST_US: u64 = 2_000_000;

/// The times of day in which a boot that did not stop cleanly may have gone on after its last
/// record at `end_us`, by each setting of the clock that may have been right then.
pub(super) fn unrecorded(boot: &Boot, next: Option<&Boot>, end_us: u64) -> Vec<(u64, u64)> {
    let next_us = next.and_then(|next| next.clocks.first()).map(|clock| clock.unix_us);
    let mut spans = Vec::new();
    for (place, (clock, since_us)) in boot.clocks.iter().zip(&boot.clocks_since_us).enumerate() {
        let later = boot.clocks.get(place + 1);
        if later.is_some_and(|later| later.monotonic_us <= end_us) {
            continue;
        }
        let unix_us = |monotonic_us: u64| monotonic_us.saturating_add_signed(clock.offset());
        let begin = unix_us(end_us.max(*since_us));
        let end = match (later, next_us.filter(|_| boot.ended.is_some())) {
            (Some(later), _) => unix_us(later.monotonic_us),
            (None, None) => u64::MAX,
            (None, Some(next)) if next < begin => begin.saturating_add(LOST_END_US),
            (None, Some(next)) if boot.is_whole => next.max(begin),
            (None, Some(next)) => next.max(begin.saturating_add(LOST_LEAST_US)),
        };
        spans.push((begin, end));
    }
    spans
}

/// When a boot that did not stop cleanly had ended at the latest.
pub(super) fn lost_end_us(boot: &Boot, next: Option<&Boot>, end_us: u64) -> u64 {
    unrecorded(boot, next, end_us).iter().map(|(_, end)| *end).max().unwrap_or(u64::MAX)
}
