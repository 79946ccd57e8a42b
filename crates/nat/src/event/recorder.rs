//! A shard's end of the event ring, and what it does when the ring is full.

use std::sync::Arc;

use mem::ring::Producer;

use super::Cause;
use super::Event;
use super::EventKind;
use super::LogsOpened;
use super::filter_limit::FilterLimit;
use super::refusals::Refusal;
use super::refusals::Refusals;
use crate::random::KeyedHash;
use crate::time::Duration;
use crate::time::Instant;

/// What is done when whoever writes the log does not keep up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackPressure {
    /// No allocation without its record: new ones are refused, and what has ended keeps its port until its end can be
    /// recorded.
    #[default]
    Refuse,
    /// Records are lost, counted, and a [`EventKind::Gap`] with their number follows.
    Drop,
}

/// Which events there are and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// What is done when records can not be written fast enough.
    pub back_pressure: BackPressure,
    /// Mappings inside port blocks are events, too. Without it the block is the record.
    pub block_mappings: bool,
    /// Refusals of one subscriber for one cause are told once in so long, with their number.
    pub refusal_interval: Duration,
    /// Decisions of filters that log, recorded in a second at most, by each worker.
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

/// Part of the ring (one in so many slots) that only ends and gaps may use: a ring that fills up refuses what is new while
/// what ends is still recorded.
const RESERVED_ONE_IN: usize = 4;

/// What lived when another log was opened is told while no more than one in so many slots is taken: what begins and ends meanwhile
/// does not wait for it.
const RETOLD_WITHIN_ONE_IN: usize = 2;

/// Where a shard leaves its events. Without a ring, nowhere, at no cost.
#[derive(Debug)]
pub(crate) struct EventLog {
    ring: Option<Producer<Event>>,
    reserved: usize,
    policy: BackPressure,
    /// Number of the next event.
    next: u64,
    /// Numbers given to events that were lost since the last gap was told.
    untold: u64,
    refusals: Refusals,
    filters: FilterLimit,
    /// Configurations adopted so far, and how many of them are told.
    adopted: u32,
    adopted_told: u32,
    /// Logs that were opened, and how many of them were taken notice of.
    opened: Arc<LogsOpened>,
    opened_seen: u32,
    counters: EventCounters,
}

/// What became of the events of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounters {
    /// Records given to the exporter, gaps among them.
    pub recorded: u64,
    /// Events that no record was made of, as there was no room for it.
    pub lost: u64,
}

impl EventLog {
    /// A log that goes nowhere. `hash` has a secret of its own.
    pub(crate) fn new(settings: &EventSettings, hash: KeyedHash) -> EventLog {
        EventLog {
            ring: None,
            reserved: 0,
            policy: settings.back_pressure,
            next: 1,
            untold: 0,
            refusals: Refusals::new(settings.refusal_interval, hash),
            filters: FilterLimit::default(),
            adopted: 0,
            adopted_told: 0,
            opened: Arc::default(),
            opened_seen: 0,
            counters: EventCounters::default(),
        }
    }

    /// Bytes of its tables.
    pub(crate) const fn bytes() -> u64 {
        Refusals::BYTES
    }

    /// Events go into `ring` from now on.
    pub(crate) fn set_ring(&mut self, ring: Producer<Event>) {
        self.reserved = ring.capacity() / RESERVED_ONE_IN;
        self.ring = Some(ring);
    }

    /// Has other logs that are opened counted there.
    pub(crate) fn follow(&mut self, opened: Arc<LogsOpened>) {
        self.opened_seen = opened.count();
        self.opened = opened;
    }

    /// Whether records go into another log since this was asked the last time.
    #[inline]
    pub(crate) fn is_log_new(&mut self) -> bool {
        let count = self.opened.count();
        core::mem::replace(&mut self.opened_seen, count) != count && self.ring.is_some()
    }

    /// Whether there is room for a record of what lived when the log was opened.
    pub(crate) fn may_retell(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let kept = ring.capacity() - ring.capacity() / RETOLD_WITHIN_ONE_IN;
        // One more for a gap that may have to be told first.
        ring.room(kept + 2) > kept + 1
    }

    /// Whether events go anywhere.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.ring.is_some()
    }

    /// Whether something may be allocated that needs a record.
    #[inline(always)]
    pub(crate) fn may_allocate(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        self.policy == BackPressure::Drop || ring.room(self.reserved + 2) > self.reserved + 1
    }

    /// [`EventLog::may_allocate`] for who only asks.
    pub(crate) fn would_allocate(&self) -> bool {
        let Some(ring) = &self.ring else { return true };
        self.policy == BackPressure::Drop || ring.capacity() - ring.len() > self.reserved + 1
    }

    /// What became of the events so far.
    pub(crate) fn counters(&self) -> EventCounters {
        self.counters
    }

    /// Whether something may end whose end needs a record.
    #[inline]
    pub(crate) fn may_end(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        // One for a gap that may have to be told first.
        self.policy == BackPressure::Drop || ring.room(2) >= 2
    }

    /// [`EventLog::may_end`] for who only asks.
    pub(crate) fn would_end(&self) -> bool {
        let Some(ring) = &self.ring else { return true };
        self.policy == BackPressure::Drop || ring.capacity() - ring.len() >= 2
    }

    /// Writes an event about an allocation or an end down. It is lost when there is no room, which
    /// [`EventLog::may_allocate`] and [`EventLog::may_end`] rule out under [`BackPressure::Refuse`].
    #[inline]
    pub(crate) fn record(&mut self, event: Event) {
        if self.ring.is_some() {
            self.stage(event);
        }
    }

    /// Writes any other event down, unless the room is needed for allocations and ends.
    pub(crate) fn record_minor(&mut self, event: Event) {
        let Some(ring) = &mut self.ring else { return };
        if ring.room(self.reserved + 2) > self.reserved + 1 {
            self.stage(event);
        } else {
            self.lose();
        }
    }

    #[inline]
    fn stage(&mut self, event: Event) {
        if self.untold != 0 && !self.tell_gap(event.at) {
            return self.lose();
        }
        let Some(ring) = &mut self.ring else { return };
        if ring.stage(Event { sequence: self.next, ..event }).is_err() {
            return self.lose();
        }
        self.next += 1;
        self.counters.recorded += 1;
    }

    #[cold]
    fn lose(&mut self) {
        self.next += 1;
        self.untold += 1;
        self.counters.lost += 1;
    }

    /// Records the numbers that were lost. Whether nothing is left to be told.
    #[cold]
    fn tell_gap(&mut self, at: Instant) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        while self.untold != 0 {
            let amount = u32::try_from(self.untold).unwrap_or(u32::MAX);
            let sequence = self.next - self.untold;
            if ring.stage(Event { sequence, amount, ..Event::new(EventKind::Gap, at) }).is_err() {
                return false;
            }
            self.counters.recorded += 1;
            self.untold -= u64::from(amount);
        }
        true
    }

    /// Takes notice of a refusal; an event tells of it now or, with others like it, later.
    pub(crate) fn refuse(&mut self, refusal: Refusal, now: Instant) {
        if !self.is_on() {
            return;
        }
        let (told, displaced) = self.refusals.count(refusal, now);
        for event in [displaced, told].into_iter().flatten() {
            self.record_minor(event);
        }
    }

    /// Records a filter's decision, if there were not too many of them.
    pub(crate) fn note_filter(&mut self, event: Event, per_second: u32) {
        if self.is_on() && self.filters.take(event.at, per_second) {
            self.record_minor(event);
        }
    }

    fn tell_filters(&mut self, now: Instant, per_second: u32, is_last: bool) {
        if let Some(amount) = self.filters.untold(now, per_second, is_last) {
            self.record_minor(Event { amount, ..Event::new(EventKind::FilterUntold, now) });
        }
    }

    /// The worker goes by another configuration from now on; told with the next housekeeping.
    pub(crate) fn adopt(&mut self) {
        self.adopted += 1;
    }

    /// Shows the exporter what was recorded since the last time. Call it at the end of a round.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.publish();
        }
    }

    /// A bounded piece of housekeeping: gaps and refusals that nothing followed. From here on it goes by these settings.
    #[inline]
    pub(crate) fn maintain(&mut self, now: Instant, settings: &EventSettings) {
        if self.ring.is_none() {
            return;
        }
        self.policy = settings.back_pressure;
        self.refusals.set_interval(settings.refusal_interval);
        if self.adopted != self.adopted_told {
            self.adopted_told = self.adopted;
            let event = Event::new(EventKind::ConfigurationAdopted, now).because(Cause::Configuration);
            self.record_minor(Event { amount: self.adopted, ..event });
        }
        if let Some(event) = self.refusals.next_due(now) {
            self.record_minor(event);
        }
        self.tell_filters(now, settings.filter_events_per_second, false);
        if self.untold != 0 {
            self.tell_gap(now);
        }
        self.publish();
    }

    /// Tells what is still untold, as nothing follows.
    pub(crate) fn finish(&mut self, now: Instant) {
        if !self.is_on() {
            return;
        }
        while let Some(event) = self.refusals.take_any(now) {
            self.record_minor(event);
        }
        self.tell_filters(now, 0, true);
        self.tell_gap(now);
        self.publish();
    }
}
