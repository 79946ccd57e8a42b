//! Records that are in no store, such as lines of JSON, replayed for one question.
//!
//! The answer follows the rules of a store: a sequence number that is missing makes later answers
//! incomplete until its worker reports all live state, and so does an end without a stop.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nat::event::Event;
use nat::event::HostName;
use nat::types::WorkerId;

use super::builder::Builder;
use super::builder::Wanted;
use super::builder::Window;
use super::catalogue::Boot;
use super::catalogue::Catalogue;
use super::catalogue::Moment;
use super::catalogue::Names;
use super::error::StoreError;
use super::reader::Found;
use super::reader::Question;
use super::reader::ROWS_OF_HOLDER;
use super::reader::Store;
use super::row::Row;

/// Intervals in memory after which those that cannot be the answer are dropped.
const ROWS: usize = 1 << 16;
/// Intervals in memory that may all be the answer.
const ROWS_MAX: usize = 4 << 20;
/// Runs in memory.
const RUNS_MAX: usize = 1 << 20;
/// How far from the time in question an interval is kept, in µs.
const NEAR_US: u64 = 10_000_000;

/// Runs, their clocks and what they recorded, as far as a question needs them.
#[derive(Debug)]
pub struct Replay {
    question: Question,
    boots: Vec<Boot>,
    windows: BTreeMap<u32, Window>,
    builder: Option<Builder>,
    /// Time of the latest record of the current run.
    latest_us: u64,
    /// Intervals in memory at which to look for some that are not needed.
    prune_at: usize,
    is_too_long: bool,
    /// The most holders of the answer.
    holders_max: usize,
}

impl Replay {
    /// Nothing yet, for the answer to `question`.
    pub fn new(question: Question) -> Replay {
        Replay::within(question, usize::MAX)
    }

    /// The same for an answer of at most so many holders.
    pub fn within(question: Question, holders_max: usize) -> Replay {
        let question = question.searched();
        Replay {
            question,
            boots: Vec::new(),
            windows: BTreeMap::new(),
            builder: None,
            latest_us: 0,
            prune_at: ROWS,
            is_too_long: false,
            holders_max,
        }
    }

    /// A run begins. One that has not ended ended without a stop.
    pub fn begin(&mut self, moment: Moment) {
        self.end(false);
        if self.boots.len() >= RUNS_MAX {
            self.is_too_long = true;
            return;
        }
        self.boots.push(Boot::begin([0; 16], moment));
        let address = self.question.address.to_bits();
        let wanted = Wanted { external: Some(address), subscriber: Some(address), host: self.question.host };
        self.builder = Some(Builder::new(moment.monotonic_us, Some(wanted)));
        (self.prune_at, self.latest_us) = (ROWS, 0);
    }

    /// True between the beginning of a run and its end.
    pub fn is_running(&self) -> bool {
        self.builder.is_some()
    }

    /// The clock was set before this moment, and after `since_us` of the monotonic clock.
    pub fn set_clock(&mut self, moment: Moment, since_us: u64) {
        if let Some(boot) = self.boots.last_mut() {
            // One that is out of order has no effect.
            let _ = boot.set_clock(moment, since_us);
        }
    }

    /// The next event of a worker. One that was there before, by its number, is skipped.
    /// `host` is the name of its IPv6 host, if its record has it.
    pub fn push(&mut self, worker: WorkerId, event: &Event, host: Option<HostName>) {
        let Some(builder) = &mut self.builder else { return };
        match host {
            Some(name) => builder.apply_named(worker.0, event, name),
            None => builder.apply(worker.0, event),
        };
        self.latest_us = self.latest_us.max(event.at.as_micros());
        if builder.rows() >= self.prune_at {
            let clocks = self.boots.last().map(|boot| &boot.clocks[..]).unwrap_or_default();
            let Question { from_us, to_us, .. } = self.question;
            let is_near = |row: &Row, clock: &Moment| {
                let unix_us = |ms: u64| ms.saturating_mul(1_000).saturating_add_signed(clock.offset());
                unix_us(row.start) <= to_us.saturating_add(NEAR_US)
                    && from_us <= unix_us(row.end).saturating_add(NEAR_US)
            };
            builder.retain(|row| clocks.iter().any(|clock| is_near(row, clock)));
            self.prune_at = builder.rows().saturating_mul(2).max(ROWS);
            let rows_max = self.holders_max.saturating_mul(ROWS_OF_HOLDER).clamp(ROWS, ROWS_MAX);
            self.is_too_long |= builder.rows() > rows_max;
        }
    }

    /// There are all records before this time.
    pub fn cover(&mut self, covered_us: u64) {
        if let Some(builder) = &mut self.builder {
            builder.cover_all(covered_us);
        }
    }

    /// Any record of this run may be missing, from where there are all records until `until_us`.
    pub fn doubt(&mut self, until_us: u64) {
        if let (Some(boot), Some(builder)) = (self.boots.last_mut(), &self.builder)
            && boot.uncertain.last().is_none_or(|(_, until)| *until < until_us)
        {
            boot.uncertain.push((builder.covered_us(), until_us));
        }
    }

    /// The run ended, with all its records if `is_clean`.
    pub fn end(&mut self, is_clean: bool) {
        self.cut();
        if let Some(boot) = self.boots.last_mut().filter(|boot| boot.ended.is_none()) {
            let covered_us = self.windows.last_key_value().map_or(0, |(_, window)| window.coverage.covered_us);
            boot.ended = Some((covered_us, is_clean));
        }
    }

    /// Ends the records of a run. The last ones may come before others that are missing.
    fn cut(&mut self) {
        let (Some(mut builder), Some(boot)) = (self.builder.take(), self.boots.last_mut()) else { return };
        if self.latest_us > builder.covered_us() {
            boot.uncertain.push((builder.covered_us(), self.latest_us));
            builder.cover(self.latest_us);
        }
        self.windows.insert(self.boots.len() as u32 - 1, builder.cut());
    }

    /// The answer. `realms` are the names for the realms in events.
    ///
    /// # Errors
    /// The records have too many answers: [`StoreError::TooMany`] if more than the caller takes.
    pub fn answer(mut self, realms: &[String]) -> Result<Found, StoreError> {
        if self.is_too_long {
            if self.holders_max < usize::MAX {
                return Err(StoreError::TooMany { max: self.holders_max });
            }
            let what = "the question has more than a million answers; ask for a port";
            return Err(StoreError::damaged(&PathBuf::from("lines"), what));
        }
        self.cut();
        let names = Names { realms: realms.to_vec(), ..Names::default() };
        // Only few runs have a holder.
        for (boot, window) in self.boots.iter_mut().zip(self.windows.values()) {
            if !window.rows.is_empty() {
                boot.names = names.clone();
            }
        }
        let catalogue = Catalogue { boots: self.boots, ..Catalogue::default() };
        Store { folder: PathBuf::new(), catalogue }.look_up_in(&self.question, self.windows, self.holders_max)
    }
}
