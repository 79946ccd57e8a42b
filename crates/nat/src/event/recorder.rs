//! A shard's end of the event ring, also when the ring is full.

use std::sync::Arc;

use mem::ring::Producer;

use super::Cause;
use super::Event;
use super::EventKind;
use super::LogsOpened;
use super::Record;
use super::filter_limit::FilterLimit;
use super::host_name::UNKNOWN_HOST;
use super::refusals::Refusal;
use super::refusals::Refusals;
use crate::random::KeyedHash;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::HostNumber;

/// What to do when the log is written too slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackPressure {
    /// No allocation without its record: new ones are refused, and an ended mapping keeps its port
    /// until its end is recorded.
    #[default]
    Refuse,
    /// Lost records are counted; an [`EventKind::Gap`] follows.
    Drop,
}

/// Which events are recorded, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// See [`BackPressure`].
    pub back_pressure: BackPressure,
    /// Mappings inside port blocks are events. Without it only the block is recorded.
    pub block_mappings: bool,
    /// Refusals of a subscriber for one cause are reported once in this time.
    pub refusal_interval: Duration,
    /// Records of logging filters, per worker.
    pub filter_events_per_second: u32,
}

impl Default for EventSettings {
    fn default() -> EventSettings {
        EventSettings {
            back_pressure: BackPressure::Refuse,
            block_mappings: false,
            refusal_interval: Duration::from_secs(10),
            filter_events_per_second: 1_000,
        }
    }
}

/// One slot in this many is for ends and gaps only: a full ring refuses allocations but records
/// ends.
const RESERVED_ONE_IN: usize = 4;

/// A new log gets live state only while at most one slot in this many is used, so that current
/// events are not delayed.
const EXISTING_STATE_WITHIN_ONE_IN: usize = 2;

/// Bit of a ring's mark: its worker has ended and has no unreported loss. The other bits are a
/// time, in µs, before which no event follows.
pub const FINISHED: u64 = 1 << 63;

/// Records that may follow a record to be withdrawn: of one refusal and of an exhausted pool, each
/// with the report of a replaced entry, and host names.
const FOLLOWING_MAX: usize = 4 + NAMES_MAX;

/// One worker's event log. Without a ring, recording costs nothing.
#[derive(Debug)]
pub(crate) struct EventLog {
    ring: Option<Producer<Record>>,
    reserved: usize,
    policy: BackPressure,
    next: u64,
    /// Lost events since the last reported gap.
    unreported: u64,
    /// One of them is an allocation or end.
    is_allocation_lost: bool,
    refusals: Refusals,
    filters: FilterLimit,
    /// Configuration in use, and the last one reported.
    adopted: u32,
    adopted_reported: u32,
    opened: Arc<LogsOpened>,
    opened_seen: u32,
    counters: EventCounters,
    /// Slots for host names before an event: 0 with IPv4 hosts only.
    for_names: usize,
    are_names_lost: bool,
}

/// Names that may precede one event: the host's and its subscriber's.
const NAMES_MAX: usize = 2;
/// A number means the same host for this time; less than [`crate::state::host::LINGER`].
const SAME_HOST_WITHIN: Duration = Duration::from_secs(15);

/// Counters of a shard's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounters {
    /// Records given to the exporter, including gaps.
    pub recorded: u64,
    /// Events without a record for lack of room.
    pub lost: u64,
}

impl EventLog {
    /// A log without a ring. `hash` needs its own secret.
    pub(crate) fn new(settings: &EventSettings, hash: KeyedHash) -> EventLog {
        EventLog {
            ring: None,
            reserved: 0,
            policy: settings.back_pressure,
            next: 1,
            unreported: 0,
            is_allocation_lost: false,
            refusals: Refusals::new(settings.refusal_interval, hash),
            filters: FilterLimit::default(),
            adopted: 0,
            adopted_reported: 0,
            opened: Arc::default(),
            opened_seen: 0,
            counters: EventCounters::default(),
            for_names: 0,
            are_names_lost: false,
        }
    }

    /// Reserves room for host names. Call it if there are IPv6 hosts.
    pub(crate) fn expect_names(&mut self) {
        self.for_names = NAMES_MAX;
    }

    pub(crate) const fn bytes() -> u64 {
        Refusals::BYTES
    }

    pub(crate) fn set_ring(&mut self, ring: Producer<Record>) {
        self.reserved = ring.capacity() / RESERVED_ONE_IN;
        self.ring = Some(ring);
    }

    pub(crate) fn follow(&mut self, opened: Arc<LogsOpened>) {
        self.opened_seen = opened.count();
        self.opened = opened;
    }

    #[inline]
    pub(crate) fn is_log_new(&mut self) -> bool {
        let count = self.opened.count();
        core::mem::replace(&mut self.opened_seen, count) != count && self.ring.is_some()
    }

    pub(crate) fn may_log_existing_state(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let kept = ring.capacity() - ring.capacity() / EXISTING_STATE_WITHIN_ONE_IN;
        // One more, for a gap to be reported first.
        ring.room(kept + 2 + self.for_names) > kept + 1 + self.for_names
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.ring.is_some()
    }

    #[inline(always)]
    pub(crate) fn may_allocate(&mut self) -> bool {
        self.ring.is_none() || self.policy == BackPressure::Drop || self.has_room()
    }

    /// True if there is room for a minor event without losing another.
    #[inline(always)]
    pub(crate) fn has_room(&mut self) -> bool {
        let kept = self.reserved + self.for_names;
        self.ring.as_mut().is_some_and(|ring| ring.room(kept + 2) > kept + 1)
    }

    pub(crate) fn has_room_to_allocate(&self) -> bool {
        let Some(ring) = &self.ring else { return true };
        self.policy == BackPressure::Drop || ring.capacity() - ring.len() > self.reserved + self.for_names + 1
    }

    pub(crate) fn counters(&self) -> EventCounters {
        self.counters
    }

    pub(crate) fn waiting(&self) -> usize {
        self.ring.as_ref().map_or(0, Producer::len)
    }

    #[inline]
    pub(crate) fn may_end(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        // One more, for a gap to be reported first.
        self.policy == BackPressure::Drop || ring.room(2 + self.for_names) >= 2 + self.for_names
    }

    pub(crate) fn has_room_to_end(&self, ends: usize) -> bool {
        let Some(ring) = &self.ring else { return true };
        self.policy == BackPressure::Drop || ring.capacity() - ring.len() > ends + self.for_names
    }

    /// Records an allocation or end. Under [`BackPressure::Refuse`], reserve the room first with
    /// [`EventLog::may_allocate`] or [`EventLog::may_end`].
    #[inline(always)]
    pub(crate) fn record(&mut self, event: Event) {
        if self.ring.is_some() {
            self.stage(event);
        }
    }

    /// Names a host for the events that follow. After false, record none of them: the number may
    /// still have another name.
    #[cold]
    pub(crate) fn record_name(&mut self, name: Event, is_minor: bool) -> bool {
        let lost = self.counters.lost;
        if is_minor {
            self.record_minor(name);
        } else {
            self.record(name);
        }
        lost == self.counters.lost && self.ring.is_some()
    }

    #[cold]
    pub(crate) fn lose_event(&mut self, kind: EventKind) {
        if self.ring.is_some() {
            self.lose(kind);
        }
    }

    /// True once after a loss: readers forget names at a gap.
    pub(crate) fn take_names_lost(&mut self) -> bool {
        core::mem::take(&mut self.are_names_lost)
    }

    pub(crate) fn record_minor(&mut self, event: Event) {
        let Some(ring) = &mut self.ring else { return };
        if ring.room(self.reserved + 2) > self.reserved + 1 {
            self.stage(event);
        } else {
            self.lose(event.kind);
        }
    }

    #[inline(always)]
    fn stage(&mut self, event: Event) {
        if self.unreported != 0 && !self.report_gap(event.at) {
            return self.lose(event.kind);
        }
        let Some(ring) = &mut self.ring else { return };
        if ring.stage(Event { sequence: self.next, ..event }.into()).is_err() {
            return self.lose(event.kind);
        }
        self.next += 1;
        self.counters.recorded += 1;
    }

    #[cold]
    fn lose(&mut self, kind: EventKind) {
        self.next += 1;
        self.unreported += 1;
        self.are_names_lost = true;
        self.is_allocation_lost |= kind.is_allocation();
        self.counters.lost += 1;
    }

    #[cold]
    fn report_gap(&mut self, at: Instant) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        let cause = if self.is_allocation_lost { Cause::None } else { Cause::NoAllocation };
        while self.unreported != 0 {
            let amount = u32::try_from(self.unreported).unwrap_or(u32::MAX);
            let sequence = self.next - self.unreported;
            if ring.stage(Event { sequence, amount, ..Event::new(EventKind::Gap, at).because(cause) }.into()).is_err() {
                return false;
            }
            self.counters.recorded += 1;
            self.unreported -= u64::from(amount);
        }
        self.is_allocation_lost = false;
        true
    }

    /// Withdraws the last such record, unless the exporter may see it or anything but refusals and
    /// names followed. False if it stays.
    #[cold]
    pub(crate) fn withdraw(&mut self, is_meant: impl Fn(&Event) -> bool) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let mut following: [Option<Event>; FOLLOWING_MAX] = [None; FOLLOWING_MAX];
        let mut places = following.iter_mut();
        let is_found = loop {
            let Some(event) = ring.unstage().and_then(|record| record.event()) else { break false };
            if is_meant(&event) {
                break true;
            }
            let may_follow = matches!(event.kind, EventKind::Refused | EventKind::PoolExhausted | EventKind::HostNamed);
            match places.next().filter(|_| may_follow) {
                Some(place) => *place = Some(event),
                None => {
                    // Its slot is free.
                    let _ = ring.stage(event.into());
                    break false;
                }
            }
        };
        let fewer = u64::from(is_found);
        for event in following.into_iter().rev().flatten() {
            let _ = ring.stage(Event { sequence: event.sequence - fewer, ..event }.into());
        }
        self.next -= fewer;
        self.counters.recorded -= fewer;
        is_found
    }

    /// The refusal is reported now, or later with others like it.
    pub(crate) fn refuse(&mut self, refusal: Refusal, now: Instant) {
        if !self.is_on() {
            return;
        }
        let (report, evicted) = self.refusals.count(refusal, now);
        for event in [evicted.map(|event| self.delayed(event)), report].into_iter().flatten() {
            self.record_minor(event);
        }
    }

    /// The event as a late report, without a host number that may mean another host by then.
    fn delayed(&self, event: Event) -> Event {
        let is_other = self.refusals.interval() > SAME_HOST_WITHIN && HostNumber::from(event.subscriber).is_ipv6();
        Event { subscriber: if is_other { UNKNOWN_HOST } else { event.subscriber }, ..event }
    }

    pub(crate) fn note_filter(&mut self, event: Event, per_second: u32) {
        if self.is_on() && self.filters.take(event.at, per_second) {
            self.record_minor(event);
        }
    }

    fn report_filters(&mut self, now: Instant, per_second: u32, is_last: bool) {
        if let Some(amount) = self.filters.suppressed(now, per_second, is_last) {
            self.record_minor(Event { amount, ..Event::new(EventKind::FilterSuppressed, now) });
        }
    }

    /// `generation` may skip numbers: a change that a worker did not answer is undone before all
    /// adopt it.
    pub(crate) fn adopt(&mut self, generation: u32) {
        self.adopted = generation;
    }

    /// Shows new records to the exporter, at the end of a round.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.publish();
        }
    }

    /// One bounded step: reports due gaps and refusals, and promises the exporter that no later
    /// event precedes `now`.
    #[inline]
    pub(crate) fn maintain(&mut self, now: Instant, settings: &EventSettings) {
        if self.ring.is_none() {
            return;
        }
        self.policy = settings.back_pressure;
        self.refusals.set_interval(settings.refusal_interval);
        if self.adopted != self.adopted_reported {
            self.adopted_reported = self.adopted;
            let event = Event::new(EventKind::ConfigurationAdopted, now).because(Cause::Configuration);
            self.record_minor(Event { amount: self.adopted, ..event });
        }
        if let Some(event) = self.refusals.next_due(now) {
            self.record_minor(self.delayed(event));
        }
        self.report_filters(now, settings.filter_events_per_second, false);
        if self.unreported != 0 {
            self.report_gap(now);
        }
        self.publish();
        self.mark(now.as_micros());
    }

    /// Unless an allocation's loss is unreported: until when the exporter has everything.
    #[inline]
    fn mark(&self, mark: u64) {
        if let Some(ring) = self.ring.as_ref().filter(|_| !self.is_allocation_lost) {
            ring.mark(mark);
        }
    }

    /// Reports everything outstanding: nothing follows.
    pub(crate) fn finish(&mut self, now: Instant) {
        if !self.is_on() {
            return;
        }
        while let Some(event) = self.refusals.take_any(now) {
            self.record_minor(self.delayed(event));
        }
        self.report_filters(now, 0, true);
        self.report_gap(now);
        self.publish();
        self.mark(now.as_micros() | FINISHED);
    }
}
