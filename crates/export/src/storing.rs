//! The exporter's end of the store: events from the rings into its journal.
//!
//! An event stays in its ring until the journal has it. So a killed process loses nothing: the next
//! one finds it in the journal or in the ring's file.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use mem::ring::Consumer;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::FINISHED;
use nat::event::LogsOpened;
use nat::event::Record;
use nat::types::WorkerId;

use crate::exporter::Clocks;
use crate::figures::Figures;
use crate::line;
use crate::store;
use crate::store::Moment;
use crate::store::StoreOptions;
use crate::store::StoreWriter;

/// Time from a failure to the next attempt, in µs.
const RETRY_US: u64 = 100_000;
/// One in this many slots of a ring may wait for the journal before a frame is written at once.
const HELD_ONE_IN: usize = 8;
/// Time between two reports of the store's state, in µs.
const HEALTH_US: u64 = 100_000;
/// Time from lost records to a report of all live state, in µs.
const REPORT_AFTER_US: u64 = 1_000_000;
/// Time between two such reports.
const REPORT_INTERVAL_US: u64 = 30_000_000;

/// A store while the exporter writes it.
#[derive(Debug)]
pub(crate) struct Storing {
    writer: StoreWriter,
    figures: Arc<Figures>,
    /// Until when all events of each worker were taken.
    known_us: Vec<u64>,
    /// The sequence number after the last event that was taken of each worker.
    next: Vec<u64>,
    /// Events of one burst.
    events: Vec<Event>,
    /// Events that the journal does not have yet.
    waiting: u64,
    /// Time of the oldest of them; the maximum without one.
    oldest_us: u64,
    retry_at_us: u64,
    health_at_us: u64,
    /// When a report of all live state is due, because records were lost.
    report_at_us: Option<u64>,
    reported_us: u64,
}

impl Storing {
    pub(crate) fn new(writer: StoreWriter, figures: Arc<Figures>, workers: usize) -> Storing {
        Storing {
            writer,
            figures,
            known_us: vec![0; workers],
            next: vec![0; workers],
            events: Vec::new(),
            waiting: 0,
            oldest_us: u64::MAX,
            retry_at_us: 0,
            health_at_us: 0,
            report_at_us: None,
            reported_us: 0,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.writer.has_room()
    }

    pub(crate) fn set_options(&mut self, options: StoreOptions) {
        self.writer.set_options(options);
    }

    /// Takes up to `max` events of a worker, and shows each to `see`. They stay in the ring.
    pub(crate) fn take(
        &mut self,
        worker: WorkerId,
        ring: &mut Consumer<Record>,
        max: usize,
        mut see: impl FnMut(&Event),
    ) -> usize {
        // Read before the ring: what was published before this time is found below.
        let mark = ring.mark();
        self.events.clear();
        let events = &mut self.events;
        let count = ring.hold_burst(max, |record| events.extend(record.event()));
        for event in events.iter() {
            if event.kind == EventKind::Gap && event.cause != Cause::NoAllocation {
                self.report_at_us.get_or_insert(event.at.as_micros().saturating_add(REPORT_AFTER_US));
            }
            see(event);
        }
        let last = events.last().map_or(0, |event| event.at.as_micros());
        if let Some(known) = self.known_us.get_mut(usize::from(worker.0)) {
            // After its end the worker has no further event: it is known until whenever.
            *known = (*known).max(if count < max { mark } else { last });
        }
        if let (Some(next), Some(event)) = (self.next.get_mut(usize::from(worker.0)), self.events.last()) {
            *next = store::rings::following(event);
        }
        self.writer.push_all(worker, &self.events);
        self.waiting += count as u64;
        let first = self.events.first().map_or(u64::MAX, |event| event.at.as_micros());
        self.oldest_us = self.oldest_us.min(first);
        count
    }

    /// Writes what is due, and gives the rings' slots back. False if that failed.
    pub(crate) fn write(&mut self, moment: Clocks, rings: &mut [Consumer<Record>]) -> bool {
        let now_us = moment.now.as_micros();
        if now_us < self.retry_at_us {
            return false;
        }
        let now = moment_of(moment);
        let covered_us = self.known_us.iter().copied().min().unwrap_or(now_us).min(now_us);
        let mut done = self.writer.advance(now, covered_us);
        let is_crowded = rings.iter().any(|ring| ring.held() > ring.capacity() / HELD_ONE_IN);
        if done.is_ok() && is_crowded {
            done = self.writer.flush();
        }
        // Also after a failure: the journal may have them although a segment could not be written.
        if self.writer.is_all_written() {
            // Should the journal lose them, the next start knows by the numbers.
            rings.iter_mut().zip(&self.next).for_each(|(ring, next)| ring.release_at(*next));
            self.figures.records.fetch_add(core::mem::take(&mut self.waiting), Ordering::Relaxed);
            self.oldest_us = u64::MAX;
        }
        if now_us >= self.health_at_us {
            self.health_at_us = now_us + HEALTH_US;
            self.figures.set_health(self.writer.health());
            if let Some(ages) = self.writer.ages() {
                self.figures.set_ages(ages);
            }
        }
        self.figures.add_expired(self.writer.take_expired());
        let is_failing = u64::from(done.is_err());
        self.figures.failing.store(is_failing, Ordering::Relaxed);
        if let Err(error) = &done {
            self.figures.failed(&error.to_string());
            self.retry_at_us = now_us + RETRY_US;
        }
        done.is_ok()
    }

    /// Asks the workers to report all live state if records were lost: then later answers are
    /// complete again.
    pub(crate) fn ask_for_report(&mut self, moment: Clocks, opened: &LogsOpened) {
        let now_us = moment.now.as_micros();
        let is_due = self.report_at_us.is_some_and(|at_us| at_us <= now_us);
        if is_due && (self.reported_us == 0 || now_us >= self.reported_us + REPORT_INTERVAL_US) {
            (self.report_at_us, self.reported_us) = (None, now_us);
            opened.count_one();
        }
    }

    pub(crate) fn report(&self, in_rings: u64, moment: Clocks) {
        self.figures.set_waiting(in_rings + self.waiting, moment.now.as_micros(), self.oldest_us);
    }

    /// Seals the store after the last event. If that fails, the next start finds journal and rings;
    /// also if a worker could not report what it lost: then the end was none that has all records.
    pub(crate) fn finish(self, moment: Clocks) -> bool {
        // One that has neither a record nor a mark never ran: the start failed.
        if self.known_us.iter().any(|known| *known != 0 && known & FINISHED == 0) {
            return false;
        }
        let finished = self.writer.finish(moment_of(moment), moment.now.as_micros(), false);
        match &finished {
            Ok(()) => self.figures.set_waiting(0, 0, u64::MAX),
            Err(error) => {
                self.figures.failing.store(1, Ordering::Relaxed);
                self.figures.failed(&error.to_string());
            }
        }
        finished.is_ok()
    }
}

pub(crate) fn moment_of(moment: Clocks) -> Moment {
    Moment { monotonic_us: moment.now.as_micros(), unix_us: moment.unix_us }
}

/// The names for the numbers in events, as the store has them.
pub(crate) fn names_of(names: &line::Names) -> store::Names {
    let newest = names.formulas.last_key_value().map(|(number, checksum)| (*number, *checksum));
    let (configuration, formulas) = newest.unwrap_or_default();
    let (realms, pools) = (names.realms.clone(), names.pools.clone());
    store::Names { realms, pools, formulas, addresses: Arc::clone(&names.addresses), configuration }
}
