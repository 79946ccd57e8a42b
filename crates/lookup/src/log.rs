//! From the event log: the holders of an endpoint at a moment, or in a short time such as a second.
//!
//! It replays the files in the order of time by the rules of the store ([`Replay`]), and parses
//! only lines that name the address; of others it needs the numbers. A line `covered` says until
//! when the log is complete and which numbers each worker has reached, so a missing file or line is
//! noticed.

use core::net::Ipv4Addr;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;

use export::NO_FORMULAS;
use export::Subscriber;
use export::UtcParseError;
use export::parse_utc;
use export::rotated;
use export::store::Found;
use export::store::Moment;
use export::store::Replay;
use export::store::StoreError;
use export::utc_text;
use memchr::memchr;
use memchr::memmem;
use nat::Instant;
use nat::Protocol;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::event::UNKNOWN_HOST;
use nat::types::HostNumber;
use nat::types::RealmId;
use nat::types::WorkerId;
use serde::Deserialize;
use serde::Deserializer;

use crate::Asked;

/// A question about the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The endpoint.
    pub asked: Asked<'a>,
    /// First moment, µs since 1970.
    pub from_us: u64,
    /// Last moment.
    pub to_us: u64,
    /// Checksum of a configuration's formulas ([`nat::deterministic::checksum`]), to learn when
    /// they were in use.
    pub formulas: Option<u32>,
}

impl<'a> Query<'a> {
    /// Asks the log alone about a moment, µs since 1970.
    pub fn moment(asked: Asked<'a>, at_us: u64) -> Query<'a> {
        Query { asked, from_us: at_us, to_us: at_us, formulas: None }
    }

    /// The same for a time in the format of RFC 3339.
    ///
    /// # Errors
    /// [`UtcParseError`] if `time` is not a time.
    pub fn at(asked: Asked<'a>, time: &str) -> Result<Query<'a>, UtcParseError> {
        Ok(Query::moment(asked, parse_utc(time)?))
    }
}

/// A change of the formulas of deterministic pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// Time, µs since 1970.
    pub at_us: u64,
    /// Checksum, 0 without formulas; None if the line has none.
    pub formulas: Option<u32>,
}

/// The answer and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Holders, and whether there was no other. Logs of earlier releases do not say until when they
    /// are complete.
    pub found: Found,
    /// Lines that are not records.
    pub unreadable: u64,
    /// The configuration in use at the end of the time.
    pub in_use: Option<Adoption>,
    /// Latest change within the time in question.
    pub changed_us: Option<u64>,
    /// The first later change.
    pub next_change: Option<Adoption>,
    /// When the formulas in question were adopted, if later.
    pub adopted_later_us: Option<u64>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("log {path}: {source}; check the path and its permissions", path = .path.display())]
pub struct HistoryError {
    /// The file.
    pub path: PathBuf,
    /// The error of the system.
    pub source: io::Error,
}

/// The files of a log in the order of time: the rotated ones, then `path`.
///
/// # Errors
/// The folder cannot be listed, or no file exists.
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>, HistoryError> {
    let error = |source| HistoryError { path: path.to_owned(), source };
    let mut files = rotated(path).map_err(error)?;
    if path.exists() || files.is_empty() {
        files.push(path.to_owned());
    }
    Ok(files)
}

/// Answers `query` from `files` in the order of time. Calls `progress` with the bytes read and all
/// bytes; false ends the search.
///
/// # Errors
/// A file cannot be read, or the search was ended ([`io::ErrorKind::Interrupted`]).
pub fn look_up(
    files: &[PathBuf],
    query: &Query<'_>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<History, HistoryError> {
    look_up_within(files, query, usize::MAX, progress)
}

/// As [`look_up`], with bounded memory.
///
/// # Errors
/// As [`look_up`], or there are more holders.
pub fn look_up_within(
    files: &[PathBuf],
    query: &Query<'_>,
    holders_max: usize,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<History, HistoryError> {
    let mut search = Search::new(*query, holders_max);
    let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let (total, mut done, mut shown) = (files.iter().map(length).sum(), 0, 0);
    for path in files {
        let error = |source| HistoryError { path: path.clone(), source };
        let mut reader = BufReader::with_capacity(PIECE, File::open(path).map_err(error)?);
        let begin = reader.fill_buf().map_err(error)?;
        if COMPRESSED.iter().any(|magic| begin.starts_with(magic)) {
            let what = "it is compressed; decompress it, and ask again";
            return Err(error(io::Error::new(io::ErrorKind::InvalidData, what)));
        }
        let mut line = Vec::new();
        loop {
            line.clear();
            let count = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).map_err(error)? as u64;
            if count == 0 {
                break;
            }
            search.line(&line);
            done += count;
            if done - shown >= PIECE as u64 {
                shown = done;
                if !progress(done, total) {
                    return Err(error(io::Error::new(io::ErrorKind::Interrupted, "the search was ended")));
                }
            }
        }
    }
    let first = files.first().cloned().unwrap_or_default();
    search.end().map_err(|error| HistoryError { path: first, source: io::Error::other(error) })
}

#[derive(Deserialize)]
struct Line<'a> {
    event: &'a str,
    worker: Option<u8>,
    sequence: Option<u64>,
    #[serde(default)]
    realm: serde_json::Value,
    /// Null for an IPv6 host whose name was lost.
    #[serde(borrow, default, deserialize_with = "nullable")]
    subscriber: Option<Option<&'a str>>,
    inner_address: Option<Ipv4Addr>,
    protocol: Option<&'a str>,
    internal_port: Option<u16>,
    external_address: Option<Ipv4Addr>,
    external_port: Option<u16>,
    first_port: Option<u16>,
    last_port: Option<u16>,
    remote_address: Option<Ipv4Addr>,
    remote_port: Option<u16>,
    held_s: Option<u32>,
    records: Option<u32>,
    lost: Option<u32>,
    formulas: Option<&'a str>,
    cause: Option<&'a str>,
    by_us: Option<i64>,
    unclear_us: Option<u64>,
    generation: Option<u32>,
    sequences: Option<Vec<u64>>,
    // Paths may contain escapes, which cannot be borrowed.
    file: Option<String>,
    earlier: Option<String>,
}

fn nullable<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Option<&'de str>>, D::Error> {
    Option::deserialize(input).map(Some)
}

/// In the current run.
#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    /// Next number; 0 before the first.
    next: u64,
    /// Time of the last record, by the clock of the run.
    last_us: u64,
}

/// The latest change of formulas at the time in question.
struct Change {
    /// Of the first configuration with these formulas.
    generation: u32,
    /// Workers that had recorded by then which mappings kept their ports.
    recorded: BTreeSet<u8>,
    /// Workers of its run.
    workers: usize,
    /// Its run has ended.
    is_over: bool,
}

struct Search<'a> {
    query: Query<'a>,
    /// The address in quotes, as in lines.
    needle: memmem::Finder<'static>,
    replay: Replay,
    realms: Vec<String>,
    history: History,
    change: Option<Change>,
    workers: Vec<Worker>,
    /// Time of day less the clock of the run.
    offset: i64,
    covered_us: u64,
    /// Time of the previous line, or 0.
    last_us: u64,
    /// File of the latest lines, if known.
    written_to: Option<String>,
    /// Other logs to read, for an incomplete answer.
    others: Vec<String>,
    /// A line is older than an earlier one, unexplained: the clock was set back while lines were
    /// lost, or the files overlap.
    is_out_of_order: bool,
}

impl<'a> Search<'a> {
    fn new(query: Query<'a>, holders_max: usize) -> Search<'a> {
        let question = query.asked.question(query.from_us, query.to_us);
        Search {
            query,
            needle: memmem::Finder::new(&format!("\"{}\"", query.asked.address)).into_owned(),
            replay: Replay::within(question, holders_max),
            realms: Vec::new(),
            history: History::default(),
            change: None,
            workers: Vec::new(),
            offset: 0,
            covered_us: 0,
            last_us: 0,
            written_to: None,
            others: Vec::new(),
            is_out_of_order: false,
        }
    }

    fn line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Some((time_us, rest)) = time_of(line) else {
            self.history.unreadable += 1;
            return;
        };
        self.line_of(line, rest, time_us);
        self.last_us = time_us;
    }

    fn line_of(&mut self, line: &[u8], rest: &[u8], time_us: u64) {
        // Most lines are records of other addresses.
        if let Some((worker, sequence, kind)) = record_of(rest)
            && !matches!(
                kind,
                EventKind::Gap
                    | EventKind::SnapshotComplete
                    | EventKind::ConfigurationAdopted
                    | EventKind::ConfigurationRecorded
            )
            && !self.is_about(rest)
        {
            let is_report = kind.is_allocation() && memmem::find(rest, b"\"log_opened\"").is_some();
            let cause = if is_report { Cause::LogOpened } else { Cause::None };
            // An address that was not asked for.
            let asked = self.query.asked.address;
            let is_none = asked.is_unspecified() || HostNumber::from(asked).is_ipv6();
            let other = Ipv4Addr::from_bits(u32::from(is_none));
            let event = Event { sequence, subscriber: other, external: other, ..Event::new(kind, Instant::ORIGIN) };
            return self.record(worker, &event.because(cause), None, time_us);
        }
        let Ok(line) = serde_json::from_slice::<Line<'_>>(line) else {
            self.history.unreadable += 1;
            return;
        };
        match line.event {
            "started" => {
                self.adopted(&line, time_us);
                if time_us <= self.query.from_us {
                    // A run begins without mappings.
                    self.change = None;
                }
                self.written_to = line.file;
                self.begin(time_us);
            }
            "opened" => {
                // There may be no earlier record of it.
                if time_us <= self.query.to_us {
                    self.adopted(&line, time_us);
                }
                self.opened(line, time_us);
            }
            "clock_set" => self.clock_set(line.by_us.unwrap_or(0), line.unclear_us, time_us),
            "covered" => self.covered(line.sequences.as_deref().unwrap_or_default(), time_us),
            "stopped" => {
                let sequences = line.sequences.as_deref();
                if let Some(sequences) = sequences.filter(|_| self.replay.is_running()) {
                    self.covered(sequences, time_us);
                }
                self.replay.end(sequences.is_some());
            }
            _ => self.numbered(&line, time_us),
        }
    }

    fn is_about(&self, rest: &[u8]) -> bool {
        match self.query.asked.host {
            None => self.needle.find(rest).is_some(),
            Some(asked) => host_of(rest).is_some_and(|host| asked.overlaps(&host)),
        }
    }

    fn begin(&mut self, time_us: u64) {
        self.replay.begin(Moment { monotonic_us: time_us, unix_us: time_us });
        self.workers.clear();
        if let Some(change) = &mut self.change {
            change.is_over = true;
        }
        (self.offset, self.covered_us) = (0, time_us);
    }

    /// A run began at an unknown time: mappings may already have been open. Their end, or a report,
    /// says since when.
    fn begin_before(&mut self, time_us: u64) {
        self.begin(self.last_us.min(time_us));
        self.replay.doubt(time_us);
    }

    /// By the clock of the run.
    fn monotonic_us(&self, time_us: u64) -> u64 {
        time_us.saturating_add_signed(self.offset.saturating_neg()).min(TIME_MAX_US)
    }

    /// The clock was set by `by_us`, at most `unclear_us` before; if unknown, after the log was
    /// last known to be complete.
    fn clock_set(&mut self, by_us: i64, unclear_us: Option<u64>, time_us: u64) {
        self.offset = self.offset.saturating_add(by_us).clamp(-(TIME_MAX_US as i64), TIME_MAX_US as i64);
        let monotonic_us = self.monotonic_us(time_us);
        let since_us = unclear_us.map_or(self.covered_us, |unclear_us| monotonic_us.saturating_sub(unclear_us));
        self.replay.set_clock(Moment { monotonic_us, unix_us: time_us }, since_us);
    }

    /// The clock was set back, but no line says so. Other lines may be missing, too.
    fn jumped(&mut self, last_us: u64, time_us: u64) {
        let back_us = last_us.saturating_sub(self.monotonic_us(time_us));
        self.clock_set(-i64::try_from(back_us).unwrap_or(i64::MAX), None, time_us);
        self.replay.doubt(TIME_MAX_US);
        self.is_out_of_order = true;
    }

    /// The log is complete before this time. `sequences`: last number of each worker.
    fn covered(&mut self, sequences: &[u64], time_us: u64) {
        if !self.replay.is_running() {
            self.begin_before(time_us);
        }
        if self.monotonic_us(time_us).saturating_add(STEP_US) < self.covered_us {
            self.jumped(self.covered_us, time_us);
        }
        let at = Instant::from_micros(self.monotonic_us(time_us));
        if let Some(change) = self.change.as_mut().filter(|change| !change.is_over) {
            change.workers = change.workers.max(sequences.len());
        }
        for (worker, last) in sequences.iter().enumerate().take(usize::from(u8::MAX)) {
            let next = self.workers.get(worker).map_or(0, |worker| worker.next).max(1);
            if next > last.saturating_add(1) {
                self.replay.doubt(TIME_MAX_US);
            } else if next <= *last {
                // Nothing else shows that lines are missing.
                let amount = u32::try_from(last - next + 1).unwrap_or(u32::MAX);
                let gap = Event { sequence: next, amount, ..Event::new(EventKind::Gap, at) };
                self.replay.push(WorkerId(worker as u8), &gap, None);
                self.worker(worker as u8).next = last.saturating_add(1);
            }
        }
        self.covered_us = self.covered_us.max(at.as_micros());
        self.replay.cover(at.as_micros());
    }

    fn worker(&mut self, worker: u8) -> &mut Worker {
        let place = usize::from(worker);
        if self.workers.len() <= place {
            self.workers.resize(place + 1, Worker::default());
        }
        if let Some(change) = self.change.as_mut().filter(|change| !change.is_over) {
            change.workers = change.workers.max(self.workers.len());
        }
        &mut self.workers[place]
    }

    /// `event` has no time yet.
    fn record(&mut self, worker: u8, event: &Event, host: Option<HostName>, time_us: u64) {
        let Worker { next, last_us } = *self.worker(worker);
        let is_before = event.sequence < next;
        if is_before && self.monotonic_us(time_us) <= last_us {
            // It was sent twice.
            return;
        }
        // Numbers begin again with a run, whose first line is missing.
        if is_before || !self.replay.is_running() {
            self.begin_before(time_us);
        } else if self.monotonic_us(time_us).saturating_add(STEP_US) < last_us {
            self.jumped(last_us, time_us);
        }
        let at_us = self.monotonic_us(time_us);
        let amount = if event.kind == EventKind::Gap { u64::from(event.amount).max(1) } else { 1 };
        let known = self.worker(worker);
        *known = Worker { next: event.sequence.saturating_add(amount), last_us: at_us.max(known.last_us) };
        self.replay.push(WorkerId(worker), &Event { at: Instant::from_micros(at_us), ..*event }, host);
    }

    fn numbered(&mut self, line: &Line<'_>, time_us: u64) {
        let kind = EventKind::ALL.into_iter().find(|kind| kind.name() == line.event);
        // Other releases may have other kinds.
        let (Some(worker), Some(sequence)) = (line.worker, line.sequence) else {
            return;
        };
        match kind {
            Some(EventKind::ConfigurationAdopted) => self.adopted(line, time_us),
            Some(EventKind::ConfigurationRecorded) if time_us <= self.query.from_us => {
                if let Some(change) = &mut self.change
                    && line.generation.is_some_and(|generation| generation >= change.generation)
                {
                    change.recorded.insert(worker);
                }
            }
            _ => {}
        }
        // It concerns no holder and only takes its number.
        let kind = kind.unwrap_or(EventKind::Refused);
        let mut event = Event { sequence, ..Event::new(kind, Instant::ORIGIN) };
        event.cause = match line.cause {
            Some(LOG_OPENED) => Cause::LogOpened,
            Some(CONFIGURATION) => Cause::Configuration,
            Some(NO_ALLOCATION) => Cause::NoAllocation,
            _ => Cause::None,
        };
        event.amount = line.held_s.or(line.records).or(line.lost).unwrap_or(0);
        let mut host = None;
        if kind.is_allocation() && !self.allocation(line, &mut event, &mut host) {
            self.history.unreadable += 1;
            return;
        }
        self.record(worker, &event, host, time_us);
    }

    /// False if fields are missing or wrong.
    fn allocation(&mut self, line: &Line<'_>, event: &mut Event, host: &mut Option<HostName>) -> bool {
        let protocol = match line.protocol {
            None => None,
            Some(name) => match Protocol::ALL.into_iter().find(|protocol| protocol.name() == name) {
                None => return false,
                some => some,
            },
        };
        let (first, last) = (line.external_port.or(line.first_port), line.external_port.or(line.last_port));
        let (Some(subscriber), Some(external), Some(first_port), Some(last_port)) =
            (line.subscriber, line.external_address, first, last)
        else {
            return false;
        };
        let subscriber = match subscriber {
            None => UNKNOWN_HOST,
            Some(text) => match text.parse::<Ipv4Addr>() {
                Ok(address) if !HostNumber::from(address).is_ipv6() => address,
                Ok(_) => return false,
                Err(_) => {
                    *host = Subscriber::host(text, line.inner_address);
                    if host.is_none() {
                        return false;
                    }
                    UNKNOWN_HOST
                }
            },
        };
        let realm = match &line.realm {
            serde_json::Value::String(name) => name.clone(),
            other => other.to_string(),
        };
        let number = self.realms.iter().position(|known| *known == realm).unwrap_or(self.realms.len());
        if number == self.realms.len() {
            self.realms.push(realm);
        }
        let Ok(number) = u16::try_from(number) else { return false };
        (event.subscriber, event.external, event.realm, event.protocol) =
            (subscriber, external, RealmId(number), protocol);
        (event.first_port, event.last_port) = (first_port, last_port);
        event.internal_port = line.internal_port.unwrap_or(0);
        if let (Some(address), Some(port)) = (line.remote_address, line.remote_port) {
            (event.remote, event.remote_port) = (address, port);
        }
        true
    }

    /// Records go to this log from here on. Since an earlier opening they may have gone to another
    /// one: their numbers are missing here.
    fn opened(&mut self, line: Line<'_>, time_us: u64) {
        if !self.replay.is_running() {
            self.begin_before(time_us);
        }
        let at = utc_text(time_us);
        match (line.cause, line.earlier) {
            // Lines before this one may be of that file, or of one that Natrix had rotated.
            (Some(cause), Some(earlier)) => {
                self.others.push(format!("at {at} another program {cause} the log: also give {earlier}"));
            }
            (Some(cause), None) => {
                self.others.push(format!("at {at} another program {cause} the log: earlier lines may be missing"));
            }
            (None, earlier) if self.written_to != earlier => {
                let earlier = earlier.unwrap_or_default();
                self.others.push(format!("until {at} records went to {earlier}; also give that file"));
            }
            (None, _) => {}
        }
        self.written_to = line.file;
    }

    /// Each worker reports a new configuration.
    fn adopted(&mut self, line: &Line<'_>, time_us: u64) {
        let formulas = match line.formulas {
            Some(NO_FORMULAS) => Some(0),
            Some(checksum) => u32::from_str_radix(checksum, 16).ok(),
            None => None,
        };
        let (history, adoption) = (&mut self.history, Adoption { at_us: time_us, formulas });
        if time_us <= self.query.to_us {
            // The first worker to report it was the first to use it.
            if history.in_use.is_none_or(|known| known.formulas != formulas || formulas.is_none()) {
                self.change = line.worker.is_some().then(|| Change {
                    generation: line.generation.unwrap_or(u32::MAX),
                    recorded: BTreeSet::new(),
                    workers: self.workers.len(),
                    is_over: false,
                });
                if history.in_use.is_some() && self.query.from_us < time_us {
                    history.changed_us = Some(time_us);
                }
                history.in_use = Some(adoption);
            }
            return;
        }
        // The other workers report the same later.
        let is_new = history.in_use.is_none_or(|known| known.formulas != formulas || formulas.is_none());
        if is_new {
            history.next_change.get_or_insert(adoption);
        }
        if formulas.is_some() && formulas == self.query.formulas {
            history.adopted_later_us.get_or_insert(time_us);
        }
    }

    fn end(self) -> Result<History, StoreError> {
        let Search { query, replay, realms, mut history, change, others, is_out_of_order, .. } = self;
        let mut found = replay.answer(&realms)?;
        if is_out_of_order {
            found.is_complete = false;
            found.holders.iter_mut().for_each(|holder| holder.is_certain = false);
            let note = "lines are older than others before them, so no holder is certain: the clock was set back while \
                        lines were lost, or the files overlap in time; a store ([log.store]) has no such limit";
            found.notes.push(note.to_owned());
        }
        if change.is_some_and(|change| change.recorded.len() < change.workers.max(1)) {
            found.are_formulas_doubtful = true;
            found.is_complete = false;
            let note = "the formulas changed just before; a mapping that kept its port may not be recorded";
            found.notes.push(note.to_owned());
        }
        if let Some(vrf) = query.asked.vrf {
            let is_known = realms.iter().any(|known| known == vrf) || found.holders.is_empty();
            found.holders.retain(|holder| holder.vrf.as_deref().is_none_or(|has| has == vrf));
            if !is_known {
                found.is_complete = false;
                let known = realms.join(", ");
                found.notes.push(format!("no line about that address has the VRF {vrf}, but lines have {known}"));
            }
        }
        if !found.is_complete {
            found.notes.extend(others);
        }
        if history.unreadable > 0 {
            let note = match history.unreadable {
                1 => "1 line is not a record and was skipped".to_owned(),
                lines => format!("{lines} lines are not records and were skipped"),
            };
            found.notes.push(note);
        }
        history.found = found;
        Ok(history)
    }
}

/// First bytes of gzip, zstd and xz files.
const COMPRESSED: [&[u8]; 3] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd], &[0xfd, 0x37, 0x7a, 0x58, 0x5a]];
const LOG_OPENED: &str = Cause::LogOpened.name();
const CONFIGURATION: &str = Cause::Configuration.name();
const NO_ALLOCATION: &str = Cause::NoAllocation.name();
/// A longer line is not a record.
const LINE_MAX: u64 = 1 << 16;
/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// A smaller step back of the clock does not matter.
const STEP_US: u64 = 10_000;
/// Later times are invalid.
const TIME_MAX_US: u64 = 1 << 59;

/// The time at the start of a line, and the rest.
fn time_of(line: &[u8]) -> Option<(u64, &[u8])> {
    let rest = line.strip_prefix(b"{\"time\":\"")?;
    let (text, rest) = rest.split_at_checked(memchr(b'"', rest)?)?;
    let time_us = parse_utc(core::str::from_utf8(text).ok()?).ok()?;
    (time_us < TIME_MAX_US).then_some((time_us, rest))
}

/// An IPv6 subscriber, as Natrix writes it.
fn host_of(rest: &[u8]) -> Option<HostName> {
    const FIELD: &[u8] = b"\"subscriber\":\"";
    let place = memmem::find(rest, FIELD)?;
    let text = rest.get(place + FIELD.len()..)?;
    let text = text.get(..memchr(b'"', text)?)?;
    if !text.contains(&b':') {
        return None;
    }
    Subscriber::host(core::str::from_utf8(text).ok()?, None)
}

/// Worker, number and kind of a whole line, as Natrix writes it.
fn record_of(rest: &[u8]) -> Option<(u8, u64, EventKind)> {
    fn number(text: &[u8]) -> Option<(u64, &[u8])> {
        let (digits, rest) = text.split_at_checked(text.iter().position(|byte| !byte.is_ascii_digit())?)?;
        Some((core::str::from_utf8(digits).ok()?.parse().ok()?, rest))
    }
    let whole = rest.strip_suffix(b"}\n")?;
    let (worker, rest) = number(whole.strip_prefix(b"\",\"worker\":")?)?;
    let (sequence, rest) = number(rest.strip_prefix(b",\"sequence\":")?)?;
    let rest = rest.strip_prefix(b",\"event\":\"")?;
    let name = rest.get(..memchr(b'"', rest)?)?;
    let kind = EventKind::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)?;
    Some((u8::try_from(worker).ok()?, sequence, kind))
}

#[doc(hidden)]
pub mod fuzzing {
    //! Claims about arbitrary bytes.

    use export::store::Holder;

    use super::*;

    /// The first bytes choose the time and endpoint in question.
    pub fn lines(bytes: &[u8]) {
        let Some((head, lines)) = bytes.split_first_chunk::<3>() else { return };
        let at_us = 1_795_289_400_000_000 + u64::from(head[0]) * 1_000_000;
        let address = Ipv4Addr::new(203, 0, 113, head[1] % 4);
        let port = (head[2] > 0).then_some(u16::from(head[2]) * 16);
        let asked = Asked { address, host: None, port, protocol: None, vrf: None };
        let mut search = Search::new(Query::moment(asked, at_us), usize::MAX);
        lines.split_inclusive(|byte| *byte == b'\n').for_each(|line| search.line(line));
        let Ok(History { found, .. }) = search.end() else { return };
        // After a step back, a holding may seem to have begun after the time.
        let is_asked = |holder: &Holder| holder.external == address || holder.subscriber.ipv4() == Some(address);
        assert!(found.holders.iter().all(is_asked), "a holding that was not asked about: {found:?}");
        assert!(found.is_complete || !found.notes.is_empty(), "an answer that is not complete says why");
    }
}

#[cfg(test)]
mod tests;
