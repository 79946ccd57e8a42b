//! The reader: who held something at a time, and whether the records of that time are complete.
//!
//! One time of day belongs to the boots and clock settings that showed it: none if the clock was
//! set forward over it, two if the clock was set back. For each such moment of a boot's clock the
//! segment of that time has every interval, so one footer and one block answer. The end of an
//! interval that was still open then comes from later segments, by binary search.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use nat::Protocol;
use nat::event::HostName;
use nat::types::is_host_number;

use super::builder::Builder;
use super::builder::Coverage;
use super::builder::Wanted;
use super::builder::Window;
use super::builder::union;
use super::catalogue::Boot;
use super::catalogue::Catalogue;
use super::catalogue::FormulasInUse;
use super::catalogue::Moment;
use super::catalogue::Segment;
use super::error::StoreError;
use super::hosts::HostPrefix;
use super::hosts::subscriber_of;
use super::row::End;
use super::row::Row;
use super::row::What;
use super::segment::SegmentFile;
use super::segment::Written;
use super::writer::read_frames;
use super::writer::segment_path;
use crate::Subscriber;
use crate::utc_text;

/// Intervals of the journal that a lookup keeps; no single address has more.
const JOURNAL_ROWS_MAX: usize = 4 << 20;
/// Holders in an answer.
const HOLDERS_MAX: usize = 1 << 20;
/// Settings of the clock that a question may meet: each is searched by itself.
const STRETCHES_MAX: usize = 10_000;
/// How long a boot may have run after its last record, in µs, if the clock went back before the
/// next start.
const LOST_END_US: u64 = 600_000_000;
/// The same if it did not: twice the default interval of syncs. The clock may have gone back by
/// less than the time between the boots.
const LOST_LEAST_US: u64 = 2_000_000;
/// Records of mappings that kept ports of others are looked for until then, in µs after a change of
/// formulas, if no record says that there are all of them: more than a walk over all mappings.
const RETOLD_US: u64 = 60_000_000;
/// They have adopted the new formulas by then, in µs after the log got them.
const ADOPTED_US: u64 = 5_000_000;
/// Times of day are before this one.
const UNIX_MAX_US: u64 = 1 << 60;

/// Segments that may soon be merged, the newest of them, which all intervals need open at once.
/// More than are waiting and being merged by default; fewer than a process may open.
const UNMERGED_HELD: usize = 192;
/// The same for the oldest, which retention deletes: hours of the log.
const OLDEST_HELD: usize = 64;

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
        let is_address = self.host.is_none() && !is_host_number(self.address.to_bits());
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
    /// Who held it.
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
    /// False if the beginning is known to the second only, because its record was lost.
    pub is_since_exact: bool,
}

impl Holder {
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
    /// Checksums of the formulas of deterministic pools that were in use. Their ports have no
    /// records.
    pub formulas: Vec<u32>,
    /// True if a mapping that kept a port when the formulas changed may have no record: then they
    /// prove nothing.
    pub are_formulas_doubtful: bool,
}

/// A store that is read. Others may write it at the same time.
#[derive(Debug)]
pub struct Store {
    pub(crate) folder: PathBuf,
    pub(crate) catalogue: Catalogue,
}

/// A stretch of a boot in which the clock was not set.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    boot: u32,
    offset: i64,
    /// By the boot's clock; `to_us` is the first moment after it.
    from_us: u64,
    to_us: u64,
}

impl Stretch {
    fn unix_us(&self, monotonic_us: u64) -> u64 {
        monotonic_us.saturating_add_signed(self.offset)
    }
}

/// Records that no segment has, by boot, as far as a lookup needs them: those after the last
/// segment of the last boot, or all of a replay.
type Journal = BTreeMap<u32, Window>;

/// Where an interval was read: identifiers of names may mean another host elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    /// The segment with this number.
    Segment(u64),
    /// What the journal has of this boot.
    Journal(u32),
}

/// Rows for one holder: one that held long is in several segments.
pub(crate) const ROWS_OF_HOLDER: usize = 8;
/// Rows, each of which may need a read of its own, between two looks whether a search goes on.
const ROWS_BETWEEN_LOOKS: usize = 64;

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

/// One lookup.
struct Search<'a> {
    store: &'a Store,
    question: Question,
    journal: Option<Journal>,
    /// The segment read last.
    cached: Option<(u64, SegmentFile)>,
    /// Segments that were opened before they are read, because their files may be deleted.
    held: HashMap<u64, File>,
    /// Names of IPv6 hosts that were met, by where they are and identifier.
    names: HashMap<(Source, u32), HostName>,
    found: Found,
    bounds: Bounds<'a>,
}

impl Store {
    /// Opens the store in `folder`.
    ///
    /// # Errors
    /// [`StoreError`] if there is none, or its catalogue is damaged.
    pub fn open(folder: &Path) -> Result<Store, StoreError> {
        let (catalogue, _) = Catalogue::read(folder, |_, _| {})?;
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
        // The catalogue was one more.
        found.reads += 1;
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
        let found = Found { is_complete: true, ..Found::default() };
        let question = question.searched();
        let (held, names) = (HashMap::new(), HashMap::new());
        let mut search = Search { store: self, question, journal, cached: None, held, names, found, bounds };
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
        each: impl FnMut(&Holder) -> Result<(), E>,
    ) -> Result<(), E> {
        self.intervals_with(from_us, to_us, each, |_, _| {})
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
        mut each: impl FnMut(&Holder) -> Result<(), E>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), E> {
        let question =
            Question { address: Ipv4Addr::UNSPECIFIED, host: None, port: None, protocol: None, from_us, to_us };
        let (store, journal, held) = self.with_files(&question)?;
        let found = Found::default();
        let names = HashMap::new();
        let journal = Some(journal);
        let bounds = Bounds::NONE;
        let mut search = Search { store: &store, question, journal, cached: None, held, names, found, bounds };
        let rows_of = |segment: &Segment| segment.written.single_rows.saturating_add(segment.written.range_rows);
        let (total, mut done) = (store.catalogue.segments.values().map(rows_of).fold(0, u64::saturating_add), 0_u64);
        for (boot, known) in store.catalogue.boots.iter().enumerate() {
            let boot = boot as u32;
            let segments: Vec<&Segment> = store.catalogue.of_boot(boot).collect();
            // It knows the ends of what the last segment has open, too.
            let in_journal = search.journal.as_mut().and_then(|journal| journal.get_mut(&boot));
            let in_journal = in_journal.map(|window| core::mem::take(&mut window.rows));
            // Intervals that were held in the time in question and ended later.
            let mut later = 0_u64;
            for (place, segment) in segments.iter().enumerate() {
                let is_last = place + 1 == segments.len() && in_journal.is_none();
                let first = span(&segment.coverage).0;
                let (earliest, latest) = unix_span(segment, known);
                let is_after = earliest > to_us;
                if latest < from_us || (is_after && later == 0) {
                    done = done.saturating_add(rows_of(segment));
                    continue;
                }
                let (mut rows, mut open) = (Vec::new(), 0);
                search.load_names(segment)?;
                let blocks = search.segment(segment)?.footer.tables.clone();
                for (table, index) in blocks.iter().enumerate().take(2) {
                    for block in &index.blocks {
                        rows.clear();
                        search.segment(segment)?.block(table, block, |row| rows.push(*row))?;
                        done = done.saturating_add(rows.len() as u64);
                        progress(done, total);
                        if !is_last {
                            // What is open is in the next segment, too.
                            let is_held =
                                |row: &&Row| row.until == End::Open && search.unix_us(boot, row.start) <= to_us;
                            open += rows.iter().filter(is_held).count() as u64;
                            rows.retain(|row| row.until != End::Open);
                        }
                        let held = search.each_held((boot, Source::Segment(segment.id)), first, &rows, &mut each)?;
                        later = later.saturating_sub(if is_after { held } else { 0 });
                    }
                }
                if !is_after {
                    later = open;
                }
            }
            if let Some(rows) = in_journal {
                search.take_names_of_journal(boot);
                let from_us = search.window(boot).map_or(0, |window| span(&window.coverage).0);
                search.each_held((boot, Source::Journal(boot)), from_us, &rows, &mut each)?;
            }
        }
        Ok(())
    }

    /// As [`Store::with_journal`], and opens the segments that may be deleted while the others are
    /// read: those to be merged, and the oldest, which retention deletes first.
    fn with_files(&self, question: &Question) -> Result<(Store, Journal, HashMap<u64, File>), StoreError> {
        loop {
            let (store, journal) = self.with_journal(question)?;
            let asked = |segment: &&Segment| {
                let known = store.catalogue.boots.get(segment.boot as usize);
                known.is_some_and(|known| unix_span(segment, known).1 >= question.from_us)
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
            // What the catalogue still has is missing for good, which reading it reports.
            let is_there = |now: &Store| now.catalogue.segments.values().any(|segment| gone.contains(&segment.id));
            if gone.is_empty() || is_there(&Store::open(&self.folder)?) {
                return Ok((store, journal, held));
            }
        }
    }

    /// The store as it is now, with all of its journal: no segment has what that has.
    fn with_journal(&self, question: &Question) -> Result<(Store, Journal), StoreError> {
        loop {
            let store = Store::open(&self.folder)?;
            let found = Found::default();
            let (question, names) = (*question, HashMap::new());
            let held = HashMap::new();
            let bounds = Bounds::NONE;
            let mut search =
                Search { store: &store, question, journal: None, cached: None, held, names, found, bounds };
            let is_live = store.catalogue.boots.last().is_some_and(|boot| boot.ended.is_none());
            let journal = if is_live { search.read_journal(None) } else { Ok(Journal::new()) };
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

    /// Stretches of all boots, with the time until which records are known to be complete.
    fn stretches(&self, boot: u32, known: &Boot, end_us: u64) -> Vec<Stretch> {
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
}

impl Search<'_> {
    fn run(&mut self) -> Result<(), StoreError> {
        let Question { from_us, to_us, .. } = self.question;
        let mut moments = 0;
        // Time of day that some stretch shows, to find what no stretch shows.
        let mut shown: Vec<(u64, u64)> = Vec::new();
        let boots = &self.store.catalogue.boots;
        for (boot, known) in boots.iter().enumerate() {
            let boot = boot as u32;
            let end_us = match known.ended {
                Some((end, _)) => end,
                None => self.live_end(boot, from_us, known)?,
            };
            for stretch in self.store.stretches(boot, known, end_us) {
                let (first, last) = (stretch.unix_us(stretch.from_us), stretch.unix_us(stretch.to_us));
                shown.push((first, last));
                if from_us < last && first <= to_us {
                    moments += 1;
                    if moments > STRETCHES_MAX {
                        let what = "the clock was set too often in that time; ask for a shorter time";
                        return Err(StoreError::damaged(&self.store.folder, what));
                    }
                    let monotonic = |unix_us: u64| unix_us.saturating_add_signed(-stretch.offset);
                    let from = monotonic(from_us).max(stretch.from_us);
                    let to = monotonic(to_us).min(stretch.to_us - 1);
                    self.stretch_by_clock(known, &stretch, from, to)?;
                    self.note_formulas(boot, from, to, end_us)?;
                }
            }
            if known.ended.is_none_or(|(_, is_clean)| !is_clean) {
                self.after_end(known, boot, end_us)?;
            }
        }
        self.limits(shown, moments);
        self.found.holders.sort_unstable();
        self.found.holders.dedup();
        self.ambiguity();
        Ok(())
    }

    /// Calls `each` for those of some rows that were held in the time in question. `from_us` is the
    /// first time of their segment. Returns how many there were.
    fn each_held<E>(
        &self,
        (boot, source): (u32, Source),
        from_us: u64,
        rows: &[Row],
        each: &mut impl FnMut(&Holder) -> Result<(), E>,
    ) -> Result<u64, E> {
        let (stretch, mut held) = (Stretch { boot, offset: 0, from_us: 0, to_us: 0 }, 0);
        for row in rows {
            let mut holder = self.holder(&stretch, (source, row), from_us);
            let end = match holder.until {
                Until::Ended(end) | Until::Restart(end) | Until::Lost(end) => end,
                Until::Open => u64::MAX,
            };
            // Near a step of the clock, it may have begun and ended by the time before or after it.
            let (since, until) = (self.unclear_unix_us(boot, row.start), self.unclear_unix_us(boot, row.end));
            let until = until.filter(|_| matches!(holder.until, Until::Ended(_) | Until::Lost(_)));
            holder.is_certain &= since.is_none() && until.is_none();
            let (first, end) = (since.map_or(holder.since_us, |since| since.0), until.map_or(end, |until| until.1));
            if first <= self.question.to_us && self.question.from_us < end {
                each(&holder)?;
                held += 1;
            }
        }
        Ok(held)
    }

    /// As [`Search::stretch`]. Between two readings of the clock with a step between them, either
    /// setting may have been the right one.
    fn stretch_by_clock(&mut self, known: &Boot, stretch: &Stretch, from: u64, to: u64) -> Result<(), StoreError> {
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

    /// Notes the formulas in use between two moments. `end_us`: that of the records.
    fn note_formulas(&mut self, boot: u32, from_us: u64, to_us: u64, end_us: u64) -> Result<(), StoreError> {
        let Some(known) = self.store.catalogue.boots.get(boot as usize) else { return Ok(()) };
        for (place, in_use) in known.formulas.iter().enumerate() {
            // Workers adopt a configuration after it was announced to the log.
            let until_us = known.formulas.get(place + 1).map_or(u64::MAX, adopted_us);
            if in_use.checksum != 0 && in_use.since_us <= to_us && from_us < until_us {
                self.found.formulas.push(in_use.checksum);
            }
        }
        self.found.formulas.sort_unstable();
        self.found.formulas.dedup();
        for change in changes(known).filter(|change| change.since_us <= to_us && from_us < change.until_us) {
            // By then every worker has a record of the change.
            let recorded_us = self.recorded_us(boot, &change)?.filter(|_| change.adopted_us <= end_us);
            if recorded_us.is_none_or(|recorded_us| from_us <= recorded_us) {
                self.found.are_formulas_doubtful = true;
                let note = "the formulas changed just before; a mapping that kept its port may not be recorded";
                self.limit(note.to_owned());
            }
        }
        Ok(())
    }

    /// When all workers had recorded the mappings that kept their ports at a change of formulas.
    fn recorded_us(&mut self, boot: u32, change: &Change) -> Result<Option<u64>, StoreError> {
        let known = self.recorded_so_far_us(boot, change);
        let is_last = boot as usize + 1 == self.store.catalogue.boots.len();
        if known.is_some() || !is_last || self.journal.is_some() {
            return Ok(known);
        }
        self.journal()?;
        Ok(self.recorded_so_far_us(boot, change))
    }

    /// The same by the segments, and by the journal if it was read.
    fn recorded_so_far_us(&self, boot: u32, change: &Change) -> Option<u64> {
        let catalogue = &self.store.catalogue;
        let of_boot = catalogue.segments.values().chain(&catalogue.deleted).filter(|segment| segment.boot == boot);
        let journal = self.window(boot).map(|window| &window.coverage);
        let mut workers: BTreeMap<u8, Option<u64>> = BTreeMap::new();
        for coverage in of_boot.map(|segment| &segment.coverage).chain(journal) {
            for (worker, ..) in &coverage.workers {
                workers.entry(*worker).or_default();
            }
            for (worker, configuration, at_us) in &coverage.recorded {
                if change.configurations.contains(configuration) {
                    let first = workers.entry(*worker).or_default();
                    *first = Some(first.map_or(*at_us, |first| first.min(*at_us)));
                }
            }
        }
        let all: Option<Vec<u64>> = workers.into_values().collect();
        all?.into_iter().max()
    }

    /// The end of the records of a boot that has not ended.
    fn live_end(&mut self, boot: u32, from_us: u64, known: &Boot) -> Result<u64, StoreError> {
        let sealed_us = self.store.catalogue.of_boot(boot).last().map(|segment| segment.coverage.covered_us);
        let began_us = known.clocks.first().map_or(0, |moment| moment.monotonic_us);
        let sealed_us = sealed_us.unwrap_or(began_us);
        // A question about an earlier time needs no journal.
        let lowest = known.clocks.iter().map(Moment::offset).min().unwrap_or(0);
        let to_us = self.question.to_us.max(from_us);
        if to_us < sealed_us.saturating_add_signed(lowest) {
            return Ok(sealed_us);
        }
        let covered = self.journal()?.get(&boot).map(|window| window.coverage.covered_us);
        Ok(covered.unwrap_or(sealed_us).max(sealed_us))
    }

    /// Reads the journal, once.
    fn journal(&mut self) -> Result<&Journal, StoreError> {
        if self.journal.is_none() {
            let address = self.question.address.to_bits();
            let host = self.question.host;
            let journal =
                self.read_journal(Some(Wanted { external: Some(address), subscriber: Some(address), host }))?;
            self.journal = Some(journal);
        }
        Ok(self.journal.get_or_insert_default())
    }

    /// True if the question may be about IPv6 hosts: any but one about an address of a pool, whose
    /// answer needs no names.
    fn searches_hosts(&self) -> bool {
        let Question { address, host, .. } = self.question;
        let is_of_pool = |boot: &Boot| boot.pools.iter().any(|(_, pools)| pools.find(address).is_some());
        host.is_some() || !self.store.catalogue.boots.iter().any(is_of_pool)
    }

    /// What the journal has of a boot, if it was read.
    fn window(&self, boot: u32) -> Option<&Window> {
        self.journal.as_ref().and_then(|journal| journal.get(&boot))
    }

    /// What the journal has of the intervals that are wanted, or of all.
    fn read_journal(&mut self, wanted: Option<Wanted>) -> Result<Journal, StoreError> {
        let store = self.store;
        let known = &store.catalogue;
        let Some(boot) = known.boots.len().checked_sub(1) else { return Ok(Journal::new()) };
        let began_us = known.boots[boot].clocks.first().map_or(0, |moment| moment.monotonic_us);
        let boot = boot as u32;
        let mut builder = Builder::new(began_us, wanted);
        if let Some(last) = known.of_boot(boot).last() {
            let (question, searches_hosts) = (self.question, self.searches_hosts());
            let (address, mut open) = (question.address.to_bits(), Vec::new());
            let segment = self.segment(last)?;
            let mut keep = |row: &Row| {
                if row.until == End::Open {
                    open.push(*row);
                }
            };
            match wanted {
                Some(_) => {
                    segment.external(address, (0, u16::MAX), &mut keep)?;
                    segment.subscriber(address, &mut keep)?;
                    let ids = if searches_hosts { ids_of(segment, &question)? } else { Vec::new() };
                    segment.subscribers(&ids, &mut keep)?;
                }
                None => segment.all(&mut keep)?,
            }
            let names = segment.names_at(last.frames.1)?;
            builder.resume(&last.coverage, open.into_iter(), &names);
        }
        let mut frames = 0;
        let mut is_too_long = false;
        let bounds = self.bounds;
        read_frames(&store.folder, boot, known.next_frame, known.last_frame, |frame| {
            frames += 1;
            store.check_wanted(bounds)?;
            let is_readable = frame.events(|worker, event| {
                builder.apply(worker, event);
            });
            is_readable
                .ok_or_else(|| StoreError::damaged(&store.folder, format!("frame {} is not readable", frame.number)))?;
            builder.cover(frame.covered_us);
            is_too_long |= wanted.is_some() && builder.rows() > JOURNAL_ROWS_MAX;
            if is_too_long {
                return Err(StoreError::damaged(&store.folder, "the journal has too many records of one address"));
            }
            Ok(())
        })?;
        self.found.reads += 1;
        Ok((frames > 0).then(|| (boot, builder.cut())).into_iter().collect())
    }

    /// Opens a segment, or returns the one opened last.
    fn segment(&mut self, segment: &Segment) -> Result<&mut SegmentFile, StoreError> {
        let is_cached = self.cached.as_ref().is_some_and(|(id, _)| *id == segment.id);
        if !is_cached {
            let path = segment_path(&self.store.folder, segment.id);
            self.count_reads();
            let Written { footer_offset, bytes, .. } = segment.written;
            let file = match self.held.remove(&segment.id) {
                Some(file) => SegmentFile::of(&path, file, footer_offset, bytes)?,
                None => SegmentFile::open(&path, footer_offset, bytes)?,
            };
            self.cached = Some((segment.id, file));
        }
        match &mut self.cached {
            Some((_, file)) => Ok(file),
            None => Err(StoreError::damaged(&self.store.folder, "a segment is not open")),
        }
    }

    fn count_reads(&mut self) {
        if let Some((_, file)) = &mut self.cached {
            self.found.reads += core::mem::take(&mut file.reads);
        }
    }

    /// The intervals in a segment that the question is about.
    fn rows_of(&mut self, segment: &Segment) -> Result<Vec<Row>, StoreError> {
        let question = self.question;
        let address = question.address.to_bits();
        let ports = question.port.map_or((0, u16::MAX), |port| (port, port));
        let searches_hosts = self.searches_hosts();
        let mut rows = Vec::new();
        let file = self.segment(segment)?;
        if question.host.is_none() {
            file.external(address, ports, |row| rows.push(*row))?;
        }
        let mut take = |row: &Row| {
            if question.port.is_none_or(|port| row.what == What::Block || row.internal_port == port) {
                rows.push(*row);
            }
        };
        if question.host.is_none() {
            file.subscriber(address, &mut take)?;
        }
        if searches_hosts {
            let ids = ids_of(file, &question)?;
            file.subscribers(&ids, &mut take)?;
        }
        rows.retain(|row| question.protocol.is_none_or(|wanted| row.protocol.is_none_or(|has| has == wanted)));
        if rows.len() > HOLDERS_MAX {
            let what = "the question has more than a million answers; ask for a shorter time";
            return Err(StoreError::damaged(&self.store.folder, what));
        }
        let ids: HashSet<u32> = rows.iter().map(|row| row.subscriber).filter(|id| is_host_number(*id)).collect();
        if let (Some(first), Some(last)) = (ids.iter().min(), ids.iter().max()) {
            let mut names = Vec::new();
            self.segment(segment)?.names((*first, *last), |row| {
                if ids.contains(&row.id) {
                    names.push(((Source::Segment(segment.id), row.id), row.name));
                }
            })?;
            self.names.extend(names);
        }
        Ok(rows)
    }

    /// Replaces the names by all that a segment has.
    fn load_names(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let mut names = HashMap::new();
        self.segment(segment)?.names((0, u32::MAX), |row| {
            names.insert((Source::Segment(segment.id), row.id), row.name);
        })?;
        self.names = names;
        Ok(())
    }

    /// Adds the names that the journal has.
    fn take_names_of_journal(&mut self, boot: u32) {
        if let Some(window) = self.journal.as_ref().and_then(|journal| journal.get(&boot)) {
            self.names.extend(window.names.rows.iter().map(|row| ((Source::Journal(boot), row.id), row.name)));
        }
    }

    /// The intervals of the journal that the question is about.
    fn rows_of_journal(&mut self, boot: u32) -> Result<Vec<Row>, StoreError> {
        let question = self.question;
        let address = question.address.to_bits();
        let is_asked = |window: &Window, row: &Row| {
            let is_external = question.host.is_none()
                && row.external == address
                && question.port.is_none_or(|port| (row.first_port..=row.last_port).contains(&port));
            let is_it = match is_host_number(row.subscriber) {
                true => window.names.get(row.subscriber).is_some_and(|name| question.is_of(&name)),
                false => question.host.is_none() && row.subscriber == address,
            };
            let is_internal =
                is_it && question.port.is_none_or(|port| row.what == What::Block || row.internal_port == port);
            (is_external || is_internal)
                && question.protocol.is_none_or(|wanted| row.protocol.is_none_or(|has| has == wanted))
        };
        let rows = |window: &Window| window.rows.iter().filter(|row| is_asked(window, row)).copied().collect();
        let rows = self.journal()?.get(&boot).map(rows).unwrap_or_default();
        self.take_names_of_journal(boot);
        Ok(rows)
    }

    /// The holders between two moments of a stretch.
    fn stretch(&mut self, stretch: &Stretch, from_us: u64, to_us: u64) -> Result<(), StoreError> {
        let store = self.store;
        let segments: Vec<&Segment> = store.catalogue.of_boot(stretch.boot).collect();
        // What outlived a change of formulas is recorded some time later.
        let mut recorded_us = to_us;
        for change in store.catalogue.boots.get(stretch.boot as usize).into_iter().flat_map(changes) {
            if change.since_us <= to_us && from_us < change.until_us {
                let until_us = self.recorded_us(stretch.boot, &change)?;
                recorded_us = recorded_us.max(until_us.unwrap_or(change.adopted_us.saturating_add(RETOLD_US)));
            }
        }
        let is_about = |coverage: &Coverage| {
            let (first, last) = span(coverage);
            first <= recorded_us && from_us <= last
        };
        let mut rows = Vec::new();
        for (place, segment) in segments.iter().enumerate() {
            store.check_wanted(self.bounds)?;
            if is_about(&segment.coverage) {
                rows.extend(self.rows_of(segment)?.into_iter().map(|row| (place, row)));
            }
            if rows.len() / ROWS_OF_HOLDER > self.bounds.holders_max {
                distinct(&mut rows);
                self.check_count(rows.len() / ROWS_OF_HOLDER)?;
            }
        }
        let sealed_us = segments.last().map_or(0, |last| last.coverage.covered_us);
        let is_last = stretch.boot as usize + 1 == store.catalogue.boots.len();
        let has_journal = is_last || self.window(stretch.boot).is_some();
        if has_journal && (recorded_us >= sealed_us || segments.is_empty()) {
            rows.extend(self.rows_of_journal(stretch.boot)?.into_iter().map(|row| (segments.len(), row)));
        }
        let (from_ms, to_ms) = (from_us / 1_000, to_us / 1_000);
        let mut done: Vec<(usize, Row)> = Vec::new();
        distinct(&mut rows);
        for (number, (place, row)) in rows.into_iter().enumerate() {
            if number % ROWS_BETWEEN_LOOKS == 0 {
                store.check_wanted(self.bounds)?;
            }
            if !row.is_within(from_ms, to_ms) {
                continue;
            }
            let row = self.with_end(&segments, place, row)?;
            if row.is_within(from_ms, to_ms) {
                done.push((place, row));
            }
            self.check_count(self.found.holders.len() + done.len())?;
        }
        for (place, row) in done {
            let segment = segments.get(place).map(|segment| Source::Segment(segment.id));
            let source = segment.unwrap_or(Source::Journal(stretch.boot));
            let holder = self.holder(stretch, (source, &row), from_us);
            self.found.holders.push(holder);
        }
        self.check_covered(stretch, &segments, from_us, to_us)
    }

    fn check_count(&self, holders: usize) -> Result<(), StoreError> {
        let max = self.bounds.holders_max;
        if holders > max { Err(StoreError::TooMany { max }) } else { Ok(()) }
    }

    /// The same interval with its end, from later segments.
    fn with_end(&mut self, segments: &[&Segment], place: usize, row: Row) -> Result<Row, StoreError> {
        if row.until != End::Open || place >= segments.len() {
            return Ok(row);
        }
        // It is in every segment until it ends. The next ones are likeliest.
        let (mut known, mut has, mut has_not) = (row, place, segments.len());
        let mut step = 1;
        while has + 1 < has_not {
            let middle = if has + step < has_not { has + step } else { has + (has_not - has) / 2 };
            match self.same(segments[middle], &row)? {
                Some(later) => {
                    (known, has) = (later, middle);
                    if later.until != End::Open {
                        return Ok(later);
                    }
                    step *= 4;
                }
                None => {
                    has_not = middle;
                    step = usize::MAX / 2;
                }
            }
            if step > segments.len() {
                step = usize::MAX / 4;
            }
        }
        let of_last_boot =
            segments.last().is_some_and(|segment| segment.boot as usize + 1 == self.store.catalogue.boots.len());
        if has + 1 == segments.len() && of_last_boot {
            let order = known.order();
            let last = self.store.catalogue.boots.len() as u32 - 1;
            let window = self.journal()?.get(&last);
            let found = window.and_then(|window| window.rows.iter().find(|later| later.order() == order).copied());
            known = found.unwrap_or(known);
        }
        Ok(known)
    }

    /// The same interval in another segment.
    fn same(&mut self, segment: &Segment, row: &Row) -> Result<Option<Row>, StoreError> {
        let mut found = None;
        let order = row.order();
        let file = self.segment(segment)?;
        file.external(row.external, (row.first_port, row.first_port), |other| {
            if other.order() == order {
                found = Some(*other);
            }
        })?;
        Ok(found)
    }

    /// Time of day of a millisecond of a boot, by the clock setting of that time.
    fn unix_us(&self, boot: u32, monotonic_ms: u64) -> u64 {
        let monotonic_us = monotonic_ms.saturating_mul(1_000);
        let boot = self.store.catalogue.boots.get(boot as usize);
        let clocks = boot.map(|boot| &boot.clocks[..]).unwrap_or_default();
        let clock = clocks.iter().rev().find(|clock| clock.monotonic_us <= monotonic_us).or(clocks.first());
        monotonic_us.saturating_add_signed(clock.map_or(0, Moment::offset))
    }

    /// The earliest and the latest time that a millisecond of a boot can have been, if that is not
    /// clear: the clock was set between two readings.
    fn unclear_unix_us(&self, boot: u32, monotonic_ms: u64) -> Option<(u64, u64)> {
        let (first_us, last_us) = (monotonic_ms.saturating_mul(1_000), monotonic_ms.saturating_mul(1_000) + 999);
        let boot = self.store.catalogue.boots.get(boot as usize)?;
        let after = boot.clocks.partition_point(|clock| clock.monotonic_us <= first_us);
        let since_us = *boot.clocks_since_us.get(after).filter(|_| after > 0)?;
        let (before, after) = (boot.clocks.get(after - 1)?.offset(), boot.clocks.get(after)?.offset());
        let unix_us = |offset: i64| first_us.saturating_add_signed(offset);
        (since_us <= last_us).then(|| (unix_us(before.min(after)), unix_us(before.max(after))))
    }

    fn holder(&self, stretch: &Stretch, (source, row): (Source, &Row), from_us: u64) -> Holder {
        let boot = self.store.catalogue.boots.get(stretch.boot as usize);
        let unix_us = |monotonic_ms: u64| self.unix_us(stretch.boot, monotonic_ms);
        let until = match (row.until, boot.and_then(|boot| boot.ended)) {
            (End::Exact, _) => Until::Ended(unix_us(row.end)),
            (End::Lost, _) => Until::Lost(unix_us(row.end)),
            (End::Open, None) => Until::Open,
            (End::Open, Some((covered_us, is_clean))) => {
                let next = self.store.catalogue.boots.get(stretch.boot as usize + 1);
                let start = next.and_then(|next| next.clocks.first()).map(|clock| clock.unix_us);
                let end = unix_us(covered_us.div_ceil(1_000));
                Until::Restart(if is_clean { end } else { start.unwrap_or(end).max(end) })
            }
        };
        // A lost record may have ended it between its start and the time in question, unless its
        // end is known, or a later record says that it was open.
        let (start_us, seen_us) = (row.start.saturating_mul(1_000), row.end.saturating_mul(1_000));
        let is_bounded = row.until == End::Exact || (row.until == End::Open && from_us <= seen_us);
        let confirmed_us = if row.until == End::Open { seen_us } else { 0 };
        let is_lost = !is_bounded && self.may_have_ended(stretch.boot, start_us, confirmed_us, from_us);
        let is_early = row.is_start_rounded && from_us / 1_000 < row.start.saturating_add(1_000);
        let port = (row.what != What::Block).then_some(row.internal_port);
        let pool = boot.and_then(|boot| boot.pool_of(row.external_address(), row.start.saturating_mul(1_000)));
        let pool_name = boot.zip(pool).and_then(|(boot, pool)| boot.names.pools.get(usize::from(pool))).cloned();
        let remote = (row.what == What::Flow).then(|| (Ipv4Addr::from_bits(row.remote), row.remote_port));
        let subscriber = subscriber_of(row.subscriber, |id| self.names.get(&(source, id)).copied());
        Holder {
            since_us: unix_us(row.start),
            until,
            what: row.what,
            realm: row.realm,
            vrf: boot.and_then(|boot| boot.names.realms.get(usize::from(row.realm))).cloned(),
            pool,
            pool_name,
            subscriber,
            protocol: row.protocol,
            internal_port: port,
            external: row.external_address(),
            first_port: row.first_port,
            last_port: row.last_port,
            remote,
            is_certain: !is_lost && !is_early && subscriber != Subscriber::Unknown,
            is_since_exact: !row.is_start_rounded,
        }
    }

    /// The periods of a boot in which records may be missing, and whether the last one has ended.
    fn periods(&self, boot: u32) -> (Vec<(u64, u64)>, bool) {
        let catalogue = &self.store.catalogue;
        let of_boot = catalogue.segments.values().chain(&catalogue.deleted).filter(|segment| segment.boot == boot);
        let journal = self.window(boot).map(|window| &window.coverage);
        let mut periods = catalogue.boots.get(boot as usize).map(|boot| boot.uncertain.clone()).unwrap_or_default();
        let mut last: Option<&Coverage> = None;
        for coverage in of_boot.map(|segment| &segment.coverage).chain(journal) {
            periods.extend_from_slice(&coverage.uncertain);
            if last.is_none_or(|last| last.covered_us <= coverage.covered_us) {
                last = Some(coverage);
            }
        }
        (union(periods), last.is_none_or(|last| !last.is_still_uncertain))
    }

    fn is_uncertain(&self, boot: u32, from_us: u64, to_us: u64) -> bool {
        self.periods(boot).0.iter().any(|(from, until)| *from <= to_us && from_us <= *until)
    }

    /// True if a lost record may have ended an interval before `to_us`. It was reported last at
    /// `seen_us`: at the end of a period, all workers have reported what was open then.
    fn may_have_ended(&self, boot: u32, from_us: u64, seen_us: u64, to_us: u64) -> bool {
        let (periods, is_ended) = self.periods(boot);
        periods.iter().enumerate().any(|(place, (from, until))| {
            let is_confirmed = *from <= seen_us && (is_ended || place + 1 < periods.len());
            *from <= to_us && from_us <= *until && !is_confirmed
        })
    }

    /// Notes what is missing between two moments.
    fn check_covered(
        &mut self,
        stretch: &Stretch,
        segments: &[&Segment],
        from_us: u64,
        to_us: u64,
    ) -> Result<(), StoreError> {
        let store = self.store;
        if self.is_uncertain(stretch.boot, from_us, to_us) {
            let at = utc_text(stretch.unix_us(from_us));
            self.limit(format!("records were lost before {at}, and any of them may be the answer"));
        }
        // A clean stretch of segments and then the journal; what is missing was deleted.
        let mut covered_us = store.catalogue.boots[stretch.boot as usize].clocks.first().map_or(0, |c| c.monotonic_us);
        let mut hole = None;
        for segment in segments {
            if segment.coverage.from_us > covered_us {
                hole = hole.or((covered_us <= to_us && from_us < segment.coverage.from_us).then_some(()));
            }
            covered_us = covered_us.max(segment.coverage.covered_us);
        }
        let is_deleted = hole.is_some()
            || (to_us >= covered_us
                && store.catalogue.deleted.iter().any(|segment| {
                    segment.boot == stretch.boot && segment.coverage.covered_us > covered_us.max(from_us)
                }));
        if is_deleted {
            self.limit("records of that time were deleted by retention".to_owned());
        }
        Ok(())
    }

    /// A boot that did not stop cleanly ran for some time after its last record. What was open then
    /// may still have been held, and something else may have begun.
    fn after_end(&mut self, known: &Boot, boot: u32, end_us: u64) -> Result<(), StoreError> {
        let Question { from_us, to_us, .. } = self.question;
        let next = self.store.catalogue.boots.get(boot as usize + 1).and_then(|boot| boot.clocks.first());
        let mut is_asked = false;
        for (place, (clock, since_us)) in known.clocks.iter().zip(&known.clocks_since_us).enumerate() {
            let later = known.clocks.get(place + 1);
            if later.is_some_and(|later| later.monotonic_us <= end_us) {
                continue;
            }
            let unix_us = |monotonic_us: u64| monotonic_us.saturating_add_signed(clock.offset());
            let begin = unix_us(end_us.max(*since_us));
            let end = match (later, next, known.ended) {
                (Some(later), ..) => unix_us(later.monotonic_us),
                (None, _, None) | (None, None, _) => u64::MAX,
                (None, Some(next), _) if next.unix_us < begin => begin.saturating_add(LOST_END_US),
                (None, Some(next), _) if known.is_whole => next.unix_us.max(begin),
                (None, Some(next), _) => next.unix_us.max(begin.saturating_add(LOST_LEAST_US)),
            };
            is_asked |= from_us < end && begin <= to_us;
        }
        if !is_asked {
            return Ok(());
        }
        let stretches = self.store.stretches(boot, known, end_us);
        let Some(stretch) = stretches.last().copied() else {
            self.limit("an instance of that time left no record".to_owned());
            return Ok(());
        };
        let end = utc_text(stretch.unix_us(stretch.to_us));
        self.limit(match known.ended {
            None => format!("the records end at {end}, before that time"),
            Some(_) if known.is_whole => format!("the instance was killed after {end}; when exactly is not known"),
            Some(_) => format!("the instance ended without a stop after {end}; its last records may be lost"),
        });
        let last_us = stretch.to_us.saturating_sub(1).max(stretch.from_us);
        let before = self.found.holders.len();
        // There are records after the time until which there are all.
        // Those that are listed already may come a second time.
        let holders_max = self.bounds.holders_max;
        self.bounds.holders_max = holders_max.saturating_add(before);
        self.stretch(&stretch, last_us, self.latest_us(boot).max(last_us))?;
        self.bounds.holders_max = holders_max;
        let mut late = self.found.holders.split_off(before);
        late.retain_mut(|holder| {
            let is_ended = match holder.until {
                Until::Ended(end) | Until::Lost(end) => end <= from_us,
                Until::Open | Until::Restart(_) => {
                    holder.is_certain = false;
                    false
                }
            };
            !is_ended && holder.since_us <= to_us
        });
        // A holder of the recorded part of the time is listed already.
        let known: BTreeSet<Holder> = self.found.holders.iter().map(Holder::interval).collect();
        late.retain(|holder| !known.contains(&holder.interval()));
        self.found.holders.extend(late);
        self.check_count(self.found.holders.len())
    }

    /// The time of the latest record of a boot.
    fn latest_us(&self, boot: u32) -> u64 {
        let segments = self.store.catalogue.of_boot(boot).map(|segment| &segment.coverage);
        let all = segments.chain(self.window(boot).map(|window| &window.coverage));
        all.map(|coverage| coverage.latest_us).max().unwrap_or(0)
    }

    fn limit(&mut self, note: String) {
        self.found.is_complete = false;
        if !self.found.notes.contains(&note) {
            self.found.notes.push(note);
        }
    }

    /// Notes the parts of the time that no stretch shows.
    fn limits(&mut self, mut shown: Vec<(u64, u64)>, moments: usize) {
        self.count_reads();
        let Question { from_us, to_us, .. } = self.question;
        let is_moment = from_us == to_us;
        shown.sort_unstable();
        let began = self.store.catalogue.boots.iter().filter_map(|boot| boot.clocks.first()).map(|clock| clock.unix_us);
        let (first, last) =
            (shown.first().map(|first| first.0).or(began.min()), shown.iter().map(|shown| shown.1).max());
        let mut covered_to = from_us;
        for (begin, end) in &shown {
            if *begin <= covered_to {
                covered_to = covered_to.max(*end);
            }
        }
        match (first, last) {
            _ if to_us >= UNIX_MAX_US => self.limit("that is no time a clock can show".to_owned()),
            (Some(first), _) if from_us < first => {
                self.limit(format!("the records begin at {}, after that time", utc_text(first)));
            }
            (None, _) | (_, None) => self.limit("there is no record".to_owned()),
            (_, Some(last)) if to_us >= last && self.found.is_complete => {
                self.limit(format!("the records end at {}, before that time", utc_text(last)));
            }
            _ if covered_to <= to_us => {
                let at = utc_text(covered_to);
                self.limit(format!(
                    "no record covers {at}: the instance was not running, or its clock was set forward over that time"
                ));
            }
            _ => {}
        }
        if is_moment && moments > 1 {
            let note = "the clock was set back: that time occurred more than once, and the holders of each are listed";
            self.found.notes.push(note.to_owned());
        }
    }

    /// Notes why a moment has several holders, or an uncertain one.
    fn ambiguity(&mut self) {
        let is_unknown = |holder: &Holder| holder.subscriber == Subscriber::Unknown;
        if self.found.holders.iter().any(is_unknown) {
            self.limit("the record that names an IPv6 host is missing".to_owned());
        }
        if self.found.holders.iter().any(|holder| !holder.is_certain && !is_unknown(holder)) {
            let note = "a holder marked uncertain may have ended before that time: the record of its end may be lost";
            self.limit(note.to_owned());
        }
        let behind = |holder: &Holder| match holder.subscriber {
            Subscriber::Host(name) if self.question.host.is_none() && self.question.is_of(&name) => Some(name.address),
            _ => None,
        };
        if self.found.holders.iter().filter_map(behind).collect::<BTreeSet<u128>>().len() > 1 {
            let note = "hosts behind several B4s have that inner address: ask for the B4 of the one that is meant";
            self.found.notes.push(note.to_owned());
        }
        if self.found.holders.iter().any(|holder| !holder.is_since_exact) {
            self.found.notes.push("a beginning is known to the second only: its own record was lost".to_owned());
        }
    }
}

/// Leaves one row of each interval: later segments know more about its end.
fn distinct(rows: &mut Vec<(usize, Row)>) {
    rows.sort_unstable_by_key(|(place, row)| (row.order(), core::cmp::Reverse(*place)));
    rows.dedup_by_key(|(_, row)| row.order());
}

/// A change of the formulas of deterministic pools, by the clock of its boot.
struct Change {
    /// Since when the new ones may have been in use.
    since_us: u64,
    /// By then all workers have adopted them.
    adopted_us: u64,
    /// Until when they may have been in use.
    until_us: u64,
    /// Numbers of the configurations with them.
    configurations: core::ops::Range<u32>,
}

/// The changes of formulas in a boot. It begins without mappings, so its first ones are none.
fn changes(boot: &Boot) -> impl Iterator<Item = Change> {
    boot.formulas.iter().enumerate().skip(1).filter_map(|(place, in_use)| {
        let before = boot.formulas.get(place - 1)?;
        let next = boot.formulas.get(place..)?.iter().find(|next| next.checksum != in_use.checksum);
        (before.checksum != in_use.checksum).then(|| Change {
            since_us: in_use.since_us,
            adopted_us: adopted_us(in_use),
            until_us: next.map_or(u64::MAX, adopted_us),
            configurations: in_use.configuration..next.map_or(u32::MAX, |next| next.configuration),
        })
    })
}

/// When all workers have adopted a configuration that was announced.
fn adopted_us(in_use: &FormulasInUse) -> u64 {
    in_use.at_us.saturating_add(ADOPTED_US)
}

/// The identifiers of the IPv6 subscribers that a question is about.
fn ids_of(segment: &mut SegmentFile, question: &Question) -> Result<Vec<u32>, StoreError> {
    let mut ids = Vec::new();
    segment.names((0, u32::MAX), |row| {
        if question.is_of(&row.name) {
            ids.push(row.id);
        }
    })?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// First and last time of day that any clock setting of its boot gives the records of a segment.
fn unix_span(segment: &Segment, boot: &Boot) -> (u64, u64) {
    let (first, last) = span(&segment.coverage);
    let offsets = || boot.clocks.iter().map(Moment::offset);
    let (least, most) = (offsets().min().unwrap_or(0), offsets().max().unwrap_or(0));
    (first.saturating_add_signed(least), last.saturating_add_signed(most))
}

/// First and last time of the records of a segment, in whole milliseconds as its rows.
fn span(coverage: &Coverage) -> (u64, u64) {
    let (first, last) = (coverage.from_us.min(coverage.earliest_us), coverage.covered_us.max(coverage.latest_us));
    (first / 1_000 * 1_000, (last / 1_000).saturating_add(1).saturating_mul(1_000))
}
