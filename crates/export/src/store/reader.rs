//! The reader: which subscriber held something at a time, and whether the records of that time are
//! complete.
//!
//! One time of day belongs to the boots and clock settings that showed it: none if the clock was
//! set forward over it, two if the clock was set back. For each such moment of a boot's clock the
//! segment of that time has every interval, so one footer and one block answer. The end of an
//! interval that was still open then comes from later segments, by binary search.

mod coverage;
mod proof;
mod search;
mod time;

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use nat::Protocol;
use nat::event::HostName;
use nat::types::HostNumber;

use self::search::Journal;
use self::search::Search;
use self::search::Source;
use self::time::earliest_of;
use self::time::unix_span;
use super::catalogue::Catalogue;
use super::catalogue::Segment;
use super::error::StoreError;
use super::hosts::HostPrefix;
use super::row::End;
use super::row::Order;
use super::row::ROUNDED_US;
use super::row::Row;
use super::row::What;
use super::writer::segment_path;
use crate::Subscriber;

pub use self::proof::Edition;
pub use self::proof::Interval;
pub(crate) use self::search::ROWS_OF_HOLDER;

/// Segments that may soon be merged, the newest of them, which all intervals need open at once.
/// More than are waiting and being merged by default; fewer than a process may open.
const UNMERGED_HELD: usize = 192;
/// The same for the oldest, which retention deletes: hours of the log.
const OLDEST_HELD: usize = 64;

/// Bits of a version for the frames since the last entry of the catalogue.
const FRAMES_BITS: u32 = 32;

/// A store at one moment, with its journal and the number of frames in that.
type Whole = (Store, (Journal, u64));

/// A question to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// External address, or address of an IPv4 subscriber.
    pub address: Ipv4Addr,
    /// Instead of it, IPv6 subscribers.
    pub host: Option<HostPrefix>,
    /// Its port; None for all.
    pub port: Option<u16>,
    /// Only this transport.
    pub protocol: Option<Protocol>,
    /// First time, µs since 1970.
    pub from_us: u64,
    /// Last time; the same for a question about a moment.
    pub to_us: u64,
}

impl Question {
    /// What is searched for: numbers and identifiers of IPv6 hosts are no addresses.
    pub(crate) fn searched(&self) -> Question {
        let is_address = self.host.is_none() && !HostNumber::from(self.address).is_ipv6();
        Question {
            address: if is_address { self.address } else { Ipv4Addr::UNSPECIFIED },
            to_us: self.to_us.max(self.from_us),
            ..*self
        }
    }

    /// True if a host is asked for: it has this address behind a softwire, or is in the prefix.
    fn is_of(&self, name: &HostName) -> bool {
        match self.host {
            Some(host) => host.overlaps(name),
            None => !self.address.is_unspecified() && name.inner == Some(self.address.to_bits()),
        }
    }
}

/// What is known about the end of a holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// It ended at this time, µs since 1970.
    Ended(u64),
    /// It had not ended when the records end.
    Open,
    /// The instance stopped; it ended at this time at the latest.
    Restart(u64),
    /// The record of its end was lost; it ended at this time at the latest.
    Lost(u64),
}

/// A holder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Beginning, µs since 1970; the millisecond is exact.
    pub since_us: u64,
    /// End.
    pub until: Until,
    /// What it held.
    pub what: What,
    /// Number of its realm.
    pub realm: u16,
    /// Name of its realm, if the store has it.
    pub vrf: Option<String>,
    /// Number of the pool of its external address, if the store has it.
    pub pool: Option<u16>,
    /// Name of that pool.
    pub pool_name: Option<String>,
    /// The holder.
    pub subscriber: Subscriber,
    /// Transport; None: all.
    pub protocol: Option<Protocol>,
    /// Internal port; None with blocks.
    pub internal_port: Option<u16>,
    /// External address.
    pub external: Ipv4Addr,
    /// First external port.
    pub first_port: u16,
    /// Last external port.
    pub last_port: u16,
    /// Remote endpoint of a flow.
    pub remote: Option<(Ipv4Addr, u16)>,
    /// False if a lost record may have ended it before the time in question.
    pub is_certain: bool,
    /// False if the beginning is only known to be within two seconds from `since_us` on, because
    /// its record was lost.
    pub is_since_exact: bool,
    /// True if it began or ended in the millisecond in which the time in question begins or ends,
    /// and another subscriber may have had its port in that millisecond.
    pub is_ms_shared: bool,
}

/// Times of holders are exact to this, in µs: a beginning is rounded down, an end up.
const EXACT_US: u64 = 1_000;

impl Holder {
    /// True if it began or ended between these times, or may have by what is known of it.
    pub fn is_in_part(&self, from_us: u64, to_us: u64) -> bool {
        // The latest that it may have been.
        let since_us = self.since_us.saturating_add(if self.is_since_exact { 0 } else { ROUNDED_US });
        let is_ended = match self.until {
            Until::Open => false,
            Until::Ended(until) | Until::Restart(until) | Until::Lost(until) => until <= to_us,
        };
        from_us < since_us || is_ended || self.is_ms_shared
    }

    /// True if it may have begun or ended between these times, because its own are exact to a
    /// millisecond only.
    fn may_be_in_part(&self, from_us: u64, to_us: u64) -> bool {
        // What a restart ended had no successor in that millisecond.
        let is_ended = matches!(self.until, Until::Ended(until) if until < to_us.saturating_add(EXACT_US));
        from_us < self.since_us.saturating_add(EXACT_US) || is_ended
    }

    /// True if these are two subscribers with the same port of the same transport.
    pub fn has_port_of(&self, other: &Holder) -> bool {
        let has_transport = self.protocol.is_none() || other.protocol.is_none() || self.protocol == other.protocol;
        let has_port = self.first_port <= other.last_port && other.first_port <= self.last_port;
        let is_other = (self.realm, &self.subscriber) != (other.realm, &other.subscriber);
        self.external == other.external && has_port && has_transport && is_other
    }

    /// True if the remote endpoint of a packet decides which of the two it is of.
    pub fn is_apart_by_remote(&self, other: &Holder) -> bool {
        self.remote.is_some() && other.remote.is_some() && self.remote != other.remote
    }

    /// The interval alone, without what is known about its end.
    fn interval(&self) -> Holder {
        Holder { is_certain: true, until: Until::Open, ..self.clone() }
    }
}

/// The answer to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Holders, oldest first.
    pub holders: Vec<Holder>,
    /// True if the records of the whole time are there: there was no other holder.
    pub is_complete: bool,
    /// What limits the answer, in sentences.
    pub notes: Vec<String>,
    /// Reads from the disk.
    pub reads: u64,
    /// True if the clock was set back and showed some of that time more than once. A holder of one
    /// pass need not be that of another.
    pub has_time_twice: bool,
    /// Checksums of the formulas of deterministic pools that were in use. Their ports have no
    /// records.
    pub formulas: Vec<u32>,
    /// True if a mapping that kept a port when the formulas changed may have no record: then they
    /// prove nothing.
    pub are_formulas_doubtful: bool,
}

impl Found {
    /// True if it is proved that a holder of this answer held during the whole time in question,
    /// which is that between these.
    pub fn is_throughout(&self, holder: &Holder, from_us: u64, to_us: u64) -> bool {
        // Where the records are complete, an end in that time has one.
        let has_end = self.is_complete || matches!(holder.until, Until::Ended(_));
        holder.is_certain && has_end && !self.has_time_twice && !holder.is_in_part(from_us, to_us)
    }
}

/// A store that is read. Others may write it at the same time.
#[derive(Debug)]
pub struct Store {
    pub(crate) folder: PathBuf,
    pub(crate) catalogue: Catalogue,
}

/// How far a lookup may go.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// The most holders. A holder that is found twice counts twice here. Each takes some 200 bytes,
    /// and 56 for each of eight times as many rows.
    pub holders_max: usize,
    /// Whether the answer is still wanted. Asked before each segment, each frame of the journal
    /// and some rows, so it must be quick.
    pub goes_on: &'a dyn Fn() -> bool,
}

impl Bounds<'_> {
    /// A lookup without bounds.
    pub const NONE: Bounds<'static> = Bounds { holders_max: usize::MAX, goes_on: &|| true };
}

impl Store {
    /// Opens the store in `folder`.
    ///
    /// # Errors
    /// [`StoreError`] if there is none, or its catalogue is damaged.
    pub fn open(folder: &Path) -> Result<Store, StoreError> {
        let catalogue = Catalogue::of_store(folder)?;
        Ok(Store { folder: folder.to_owned(), catalogue })
    }

    /// Answers a question.
    ///
    /// # Errors
    /// [`StoreError`] if a file is damaged or cannot be read: then there is no answer.
    pub fn look_up(&self, question: &Question) -> Result<Found, StoreError> {
        self.look_up_within(question, Bounds::NONE)
    }

    /// As [`Store::look_up`], in bounded memory and as long as the answer is wanted.
    ///
    /// # Errors
    /// As [`Store::look_up`]; [`StoreError::TooMany`] if there are more holders,
    /// [`StoreError::Ended`] if the answer is no longer wanted.
    pub fn look_up_within(&self, question: &Question, bounds: Bounds<'_>) -> Result<Found, StoreError> {
        let mut found = self.search(question, None, bounds)?;
        // The catalogue and its head were two more.
        found.reads += 2;
        Ok(found)
    }

    /// The answer when no segment has anything.
    pub(crate) fn look_up_in(
        &self,
        question: &Question,
        journal: Journal,
        holders_max: usize,
    ) -> Result<Found, StoreError> {
        self.search(question, Some(journal), Bounds { holders_max, ..Bounds::NONE })
    }

    fn search(&self, question: &Question, journal: Option<Journal>, bounds: Bounds<'_>) -> Result<Found, StoreError> {
        let mut search = Search::new(self, question.searched(), journal, HashMap::new(), bounds);
        search.found.is_complete = true;
        search.run()?;
        Ok(search.found)
    }

    /// Calls `each` for every interval that was held at some time between these, in the order of
    /// segments; what only the journal has comes last. Its end is what the store knows. The
    /// intervals of the journal, and those that are open, are in memory meanwhile: 48 bytes each.
    ///
    /// # Errors
    /// As [`Store::look_up`], or the error of `each`.
    pub fn intervals<E: From<StoreError>>(
        &self,
        from_us: u64,
        to_us: u64,
        mut each: impl FnMut(&Interval) -> Result<(), E>,
    ) -> Result<(), E> {
        self.intervals_with(from_us, to_us, |_, interval| each(interval), |_, _| {})
    }

    /// As [`Store::intervals`], and calls `progress` with the rows that were read and all there
    /// are.
    ///
    /// # Errors
    /// As [`Store::intervals`].
    pub fn intervals_with<E: From<StoreError>>(
        &self,
        from_us: u64,
        to_us: u64,
        mut each: impl FnMut(Edition, &Interval) -> Result<(), E>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), E> {
        let question =
            Question { address: Ipv4Addr::UNSPECIFIED, host: None, port: None, protocol: None, from_us, to_us };
        let ((store, (journal, frames)), held) = self.with_files(&question)?;
        let version = store.catalogue.entries << FRAMES_BITS | frames.min((1 << FRAMES_BITS) - 1);
        let edition = Edition { store: store.catalogue.store, version };
        let mut each = |interval: &Interval| each(edition, interval);
        let mut search = Search::new(&store, question, Some(journal), held, Bounds::NONE);
        search.twice =
            store.times_twice(|boot, known| known.ended.map_or_else(|| search.covered_us(boot), |(end, _)| end));
        let rows_of = |segment: &Segment| segment.written.single_rows.saturating_add(segment.written.range_rows);
        let (total, mut done) = (store.catalogue.segments.values().map(rows_of).fold(0, u64::saturating_add), 0_u64);
        for (boot, known) in store.catalogue.boots.iter().enumerate() {
            let boot = boot as u32;
            let segments: Vec<&Segment> = store.catalogue.of_boot(boot).collect();
            // It knows the ends of what the last segment has open, too.
            let in_journal = search.journal.as_mut().and_then(|journal| journal.get_mut(&boot));
            let in_journal = in_journal.map(|window| core::mem::take(&mut window.rows));
            let losses = search.losses(boot);
            // Intervals that were held in the time in question and ended later, with the place of
            // the last segment that had them open.
            let mut later: HashMap<Order, (usize, Row)> = HashMap::new();
            let mut is_damaged = false;
            for (place, segment) in segments.iter().enumerate() {
                let is_last = place + 1 == segments.len() && in_journal.is_none();
                let (earliest, latest) = (unix_span(segment, known).0, store.latest_of(segment, known));
                let is_after = earliest > to_us;
                if latest < from_us || (is_after && later.is_empty()) {
                    done = done.saturating_add(rows_of(segment));
                    continue;
                }
                let next = segments.get(place + 1);
                let is_next_after = next.is_some_and(|next| unix_span(next, known).0 > to_us);
                let mut rows = Vec::new();
                if !is_after {
                    later.clear();
                }
                let named = search.load_names(segment);
                let opened = named.and_then(|()| Ok(search.segment(segment)?.footer.tables.clone()));
                let blocks = match opened {
                    // What ended in it is exported without its end.
                    Err(error) if is_after => {
                        is_damaged |= !search.is_read(segment, Err(error))?;
                        done = done.saturating_add(rows_of(segment));
                        continue;
                    }
                    opened => opened?,
                };
                for (table, index) in blocks.iter().enumerate().take(2) {
                    for block in &index.blocks {
                        rows.clear();
                        let file = search.segment(segment);
                        let read = file.and_then(|file| file.block(table, block, |row| rows.push(*row)));
                        match read {
                            Err(error) if is_after => {
                                is_damaged |= !search.is_read(segment, Err(error))?;
                                rows.clear();
                            }
                            read => read?,
                        }
                        done = done.saturating_add(rows.len() as u64);
                        progress(done, total);
                        if !is_last {
                            // What is open is in the next segment, too.
                            let is_held = |row: &&Row| row.until == End::Open && earliest_of(known, row) <= to_us;
                            if is_next_after && !is_after {
                                later.extend(rows.iter().filter(is_held).map(|row| (row.order(), (place, *row))));
                            }
                            if is_after {
                                for row in rows.iter().filter(|row| row.until == End::Open) {
                                    later.entry(row.order()).and_modify(|known| *known = (place, *row));
                                }
                            }
                            rows.retain(|row| row.until != End::Open);
                        }
                        if is_after {
                            for row in &rows {
                                later.remove(&row.order());
                            }
                        }
                        search.each_held((boot, Source::Segment(segment.id)), &losses, &rows, &mut each)?;
                    }
                }
            }
            if is_damaged {
                for row in in_journal.iter().flatten() {
                    later.remove(&row.order());
                }
                let left = later.into_values().collect();
                search.each_without_end((boot, &segments), &losses, left, &mut each)?;
            }
            if let Some(rows) = in_journal {
                search.take_names_of_journal(boot);
                search.each_held((boot, Source::Journal(boot)), &losses, &rows, &mut each)?;
            }
        }
        Ok(())
    }

    /// As [`Store::with_journal`], and opens the segments that may be deleted while the others are
    /// read: those to be merged, and the oldest, which retention deletes first.
    fn with_files(&self, question: &Question) -> Result<(Whole, HashMap<u64, File>), StoreError> {
        loop {
            let (store, journal) = self.with_journal(question)?;
            let asked = |segment: &&Segment| {
                let known = store.catalogue.boots.get(segment.boot as usize);
                known.is_some_and(|known| store.latest_of(segment, known) >= question.from_us)
            };
            let segments = || store.catalogue.segments.values().filter(asked);
            let unmerged = segments().rev().filter(|segment| !segment.is_merged).take(UNMERGED_HELD);
            let mut held = HashMap::new();
            let mut gone = Vec::new();
            for segment in unmerged.chain(segments().take(OLDEST_HELD)) {
                match File::open(segment_path(&self.folder, segment.id)) {
                    Ok(file) => drop(held.insert(segment.id, file)),
                    // It went after the catalogue was read, which says what has its rows now.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => gone.push(segment.id),
                    // Too many files are open: the others are opened when they are read.
                    Err(_) => break,
                }
            }
            // What the catalogue still has is missing permanently, which reading it reports.
            let is_there = |now: &Store| now.catalogue.segments.values().any(|segment| gone.contains(&segment.id));
            if gone.is_empty() || is_there(&Store::open(&self.folder)?) {
                return Ok(((store, journal), held));
            }
        }
    }

    /// The store as it is now, with all of its journal: no segment has what that has.
    fn with_journal(&self, question: &Question) -> Result<Whole, StoreError> {
        loop {
            let store = Store::open(&self.folder)?;
            let mut search = Search::new(&store, *question, None, HashMap::new(), Bounds::NONE);
            let is_live = store.catalogue.boots.last().is_some_and(|boot| boot.ended.is_none());
            let journal = if is_live { search.read_journal(None) } else { Ok((Journal::new(), 0)) };
            // A window that was sealed meanwhile took its journal away.
            if Store::open(&self.folder)?.catalogue.next_frame == store.catalogue.next_frame {
                return Ok((store, journal?));
            }
        }
    }

    /// Names of VRFs that the store has.
    pub fn vrfs(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.catalogue.boots.iter().flat_map(|boot| &boot.names.realms).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn check_wanted(&self, bounds: Bounds<'_>) -> Result<(), StoreError> {
        if (bounds.goes_on)() { Ok(()) } else { Err(StoreError::Ended { path: self.folder.clone() }) }
    }
}
