//! From the event log: the holders of an endpoint at a time.
//!
//! It makes one pass over the files in the order of time. It parses only lines that name the
//! address and keeps what is open at each time, so the number of current holders bounds its memory.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;
use std::path::PathBuf;

use export::NO_FORMULAS;
use export::UtcParseError;
use export::parse_utc;
use export::rotated;
use nat::Protocol;
use nat::event::Cause;
use serde::Deserialize;

use crate::Asked;

/// A question about the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The endpoint.
    pub asked: Asked<'a>,
    /// The time, µs since 1970.
    pub at_us: u64,
    /// Checksum of the formulas of a configuration ([`nat::deterministic::checksum`]); the answer
    /// says when they were in use.
    pub formulas: Option<u32>,
}

impl<'a> Query<'a> {
    /// The question about a time in the format of RFC 3339, of the log alone.
    ///
    /// # Errors
    /// [`UtcParseError`] if `time` is not a time.
    pub fn at(asked: Asked<'a>, time: &str) -> Result<Query<'a>, UtcParseError> {
        Ok(Query { asked, at_us: parse_utc(time)?, formulas: None })
    }
}

/// Kind of holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A mapping: one external port of one transport.
    Mapping,
    /// A block of ports of all transports.
    Block,
    /// A static mapping of the configuration.
    Static,
    /// A shared port towards one remote endpoint.
    Flow,
}

impl What {
    /// `mapping`, `block`, `static` or `flow`.
    pub const fn name(self) -> &'static str {
        match self {
            What::Mapping => "mapping",
            What::Block => "block",
            What::Static => "static",
            What::Flow => "flow",
        }
    }
}

/// How a holding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Not ended when the log ends.
    Open,
    /// It ended at this time, µs since 1970.
    Ended(u64),
    /// The instance restarted at this time without it; it ended earlier.
    Restart(u64),
    /// Not ended at this time, when records began to go to another log. When they came back it had
    /// ended.
    Elsewhere(u64),
}

/// A holder of the endpoint at the time, or a holding of the internal address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What it was.
    pub what: What,
    /// Name or number of the realm.
    pub realm: String,
    /// Internal address.
    pub subscriber: Ipv4Addr,
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
    /// Beginning, µs since 1970. Exact to the second if the log has only the end.
    pub since_us: u64,
    /// The end.
    pub until: Until,
}

/// A change of the formulas of deterministic pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The time, µs since 1970.
    pub at_us: u64,
    /// Their checksum, 0 without formulas; None if the line does not have it.
    pub formulas: Option<u32>,
}

/// A log that was opened while the instance ran. Workers then report all current state to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The time, µs since 1970.
    pub at_us: u64,
    /// The log with the earlier records.
    pub earlier: String,
}

/// The answer and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Holders, oldest first.
    pub holdings: Vec<Holding>,
    /// Time of the first line, µs since 1970.
    pub first_us: Option<u64>,
    /// Time of the last line.
    pub last_us: Option<u64>,
    /// Records lost between the last start before the time in question and that time. Any of them
    /// may be the answer.
    pub lost: u64,
    /// Lines that are not records.
    pub unreadable: u64,
    /// The configuration in use at the time, and since when.
    pub in_use: Option<Adoption>,
    /// The first later change of the configuration.
    pub next_change: Option<Adoption>,
    /// The first line, if the files begin with a log that was opened while the instance ran.
    pub opened: Option<Opened>,
    /// The last log opened before the time, if a worker has not completed its snapshot.
    pub incomplete: Option<Opened>,
    /// Records of the time are in another log, the one in `earlier`, until this log was opened
    /// again.
    pub away: Option<Opened>,
    /// When the formulas in question were adopted, if that was after the time.
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

/// The files of a log in the order of time: the rotated ones, then `path` itself.
///
/// # Errors
/// The folder cannot be listed, or no file of the log exists.
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>, HistoryError> {
    let error = |source| HistoryError { path: path.to_owned(), source };
    let mut files = rotated(path).map_err(error)?;
    if path.exists() || files.is_empty() {
        files.push(path.to_owned());
    }
    Ok(files)
}

/// Answers `query` from `files`, which must be in the order of time.
///
/// # Errors
/// [`HistoryError`] if a file cannot be read.
pub fn look_up(files: &[PathBuf], query: &Query<'_>) -> Result<History, HistoryError> {
    let mut search = Search::new(*query);
    for path in files {
        search.is_file_new = true;
        let error = |source| HistoryError { path: path.clone(), source };
        let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(error)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(error)? == 0 {
                break;
            }
            search.line(&line);
        }
    }
    Ok(search.end())
}

/// The fields of a line that matter here.
#[derive(Deserialize)]
struct Line<'a> {
    event: &'a str,
    #[serde(default)]
    realm: serde_json::Value,
    subscriber: Option<Ipv4Addr>,
    protocol: Option<&'a str>,
    internal_port: Option<u16>,
    external_address: Option<Ipv4Addr>,
    external_port: Option<u16>,
    first_port: Option<u16>,
    last_port: Option<u16>,
    remote_address: Option<Ipv4Addr>,
    remote_port: Option<u16>,
    held_s: Option<u64>,
    lost: Option<u64>,
    formulas: Option<&'a str>,
    cause: Option<&'a str>,
    worker: Option<u16>,
    workers: Option<u16>,
    // Paths may contain escapes, which cannot be borrowed.
    file: Option<String>,
    earlier: Option<String>,
}

/// Identifies a holding among all that are open at the same time.
type Key = (What, String, Ipv4Addr, Option<Protocol>, Option<u16>, Ipv4Addr, u16, Option<(Ipv4Addr, u16)>);

struct Search<'a> {
    query: Query<'a>,
    /// The address as it appears in lines, with its quotes.
    needle: Vec<u8>,
    open: HashMap<Key, Holding>,
    history: History,
    /// Lost records since the last start before the time in question.
    lost_since_start: u64,
    /// The file that the latest lines were written to, if known.
    written_to: Option<String>,
    /// True until the first line of the current file.
    is_file_new: bool,
    /// The holdings when records began to go to another log, and the time.
    left: HashMap<Key, Holding>,
    left_us: u64,
    /// The log opened last, and the workers that have completed its snapshot.
    telling: Option<(Opened, u16, HashSet<u16>)>,
}

impl<'a> Search<'a> {
    fn new(query: Query<'a>) -> Search<'a> {
        Search {
            query,
            needle: format!("\"{}\"", query.asked.address).into_bytes(),
            open: HashMap::new(),
            history: History::default(),
            lost_since_start: 0,
            written_to: None,
            is_file_new: true,
            left: HashMap::new(),
            left_us: 0,
            telling: None,
        }
    }

    fn line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Some(time_us) = time_of(line) else {
            self.history.unreadable += 1;
            return;
        };
        let (is_file_new, is_first) = (core::mem::take(&mut self.is_file_new), self.history.first_us.is_none());
        let before_us = self.history.last_us.unwrap_or(time_us);
        self.history.first_us = Some(self.history.first_us.map_or(time_us, |first| first.min(time_us)));
        self.history.last_us = Some(self.history.last_us.map_or(time_us, |last| last.max(time_us)));
        let is_about = contains(line, &self.needle);
        let tells: [&[u8]; 5] = [
            b"\"event\":\"started\"",
            b"\"event\":\"opened\"",
            b"\"event\":\"gap\"",
            b"\"event\":\"snapshot_complete\"",
            b"\"event\":\"configuration_adopted\"",
        ];
        if !is_about && !tells.iter().any(|event| contains(line, event)) {
            return;
        }
        match serde_json::from_slice::<Line<'_>>(line) {
            Ok(line) if line.event == "opened" => {
                let follows = match &self.written_to {
                    Some(known) => line.earlier.as_ref() == Some(known),
                    // Earlier lines named no file: they belong to this log, unless it begins a
                    // file.
                    None => is_file_new && !is_first,
                };
                // It has no earlier records.
                if time_us <= self.query.at_us {
                    self.adopted(&line, time_us);
                }
                self.log_opened(line, time_us, before_us, follows, is_first);
            }
            Ok(line) => self.record(&line, time_us),
            Err(_) => self.history.unreadable += 1,
        }
    }

    fn record(&mut self, line: &Line<'_>, time_us: u64) {
        let (what, is_begin) = match line.event {
            "mapping_created" => (What::Mapping, true),
            "mapping_ended" => (What::Mapping, false),
            "block_leased" => (What::Block, true),
            "block_returned" => (What::Block, false),
            "static_created" => (What::Static, true),
            "static_ended" => (What::Static, false),
            "flow_created" => (What::Flow, true),
            "flow_ended" => (What::Flow, false),
            "gap" => {
                if time_us <= self.query.at_us {
                    self.lost_since_start += line.lost.unwrap_or(0);
                }
                return;
            }
            "started" => {
                self.adopted(line, time_us);
                self.written_to.clone_from(&line.file);
                return self.restart(time_us);
            }
            "snapshot_complete" => {
                if let (Some((_, _, told)), Some(worker)) = (&mut self.telling, line.worker) {
                    told.insert(worker);
                }
                return;
            }
            "configuration_adopted" => return self.adopted(line, time_us),
            _ => return,
        };
        let Some(holding) = holding(what, line, time_us) else {
            self.history.unreadable += 1;
            return;
        };
        if !self.is_asked_about(&holding) {
            return;
        }
        let key = (
            // A mapping may become a static one, or the reverse, while it exists.
            if what == What::Static { What::Mapping } else { what },
            holding.realm.clone(),
            holding.subscriber,
            holding.protocol,
            holding.internal_port,
            holding.external,
            holding.first_port,
            holding.remote,
        );
        // Exact to the second, like the records of a snapshot.
        let told_since_us = line.held_s.and_then(|held_s| time_us.checked_sub((held_s + 1) * 1_000_000));
        // A holding that is reported again, or ends, began in another log or is known already.
        let is_known = |known: &Holding| told_since_us.is_none_or(|told| told <= known.since_us);
        if let Some(known) = self.left.remove(&key) {
            if !is_begin && is_known(&known) || line.cause == Some(LOG_OPENED) && is_known(&known) {
                self.open.insert(key.clone(), known);
            } else {
                self.close(Holding { until: Until::Elsewhere(self.left_us), ..known });
            }
        }
        if is_begin && line.cause == Some(LOG_OPENED) {
            let since_us = told_since_us.unwrap_or(time_us);
            if self.open.get(&key).is_some_and(is_known) {
                return;
            }
            // No record has its end, so this is another holding of the same endpoint.
            if let Some(known) = self.open.insert(key, Holding { since_us, ..holding }) {
                self.close(Holding { until: Until::Ended(since_us), ..known });
            }
            return;
        }
        if is_begin {
            self.open.insert(key, holding);
            return;
        }
        // If no file has the beginning, the end says how long it lasted.
        let begun = self.open.remove(&key).or_else(|| Some(Holding { since_us: told_since_us?, ..holding }));
        if let Some(holding) = begun {
            self.close(Holding { until: Until::Ended(time_us), ..holding });
        }
    }

    /// Records go to this log from here on. A file may be opened for the second time; then holdings
    /// of the time between began and ended in another log.
    fn log_opened(&mut self, line: Line<'_>, time_us: u64, before_us: u64, follows: bool, is_first: bool) {
        let opened = Opened { at_us: time_us, earlier: line.earlier.unwrap_or_default() };
        self.written_to = line.file;
        if is_first {
            self.history.opened = Some(opened.clone());
        } else if !follows {
            if (before_us..time_us).contains(&self.query.at_us) {
                self.history.away = Some(opened.clone());
            }
            for holding in core::mem::take(&mut self.left).into_values() {
                self.close(Holding { until: Until::Elsewhere(self.left_us), ..holding });
            }
            (self.left, self.left_us) = (core::mem::take(&mut self.open), before_us);
        }
        let has_all = follows && !is_first;
        self.telling = (!has_all && time_us <= self.query.at_us).then(|| {
            // Earlier losses do not matter if a snapshot follows.
            self.lost_since_start = 0;
            (opened, line.workers.unwrap_or(0), HashSet::new())
        });
    }

    /// A configuration came into use; each worker reports it.
    fn adopted(&mut self, line: &Line<'_>, time_us: u64) {
        let formulas = match line.formulas {
            Some(NO_FORMULAS) => Some(0),
            Some(checksum) => u32::from_str_radix(checksum, 16).ok(),
            None => None,
        };
        let (history, adoption) = (&mut self.history, Adoption { at_us: time_us, formulas });
        if time_us <= self.query.at_us {
            // The first worker to report it was the first to use it.
            if history.in_use.is_none_or(|known| known.formulas != formulas || formulas.is_none()) {
                history.in_use = Some(adoption);
            }
            return;
        }
        // Only one worker reported it before the time; the others do so later.
        let is_new = history.in_use.is_none_or(|known| known.formulas != formulas || formulas.is_none());
        if is_new {
            history.next_change.get_or_insert(adoption);
        }
        if formulas.is_some() && formulas == self.query.formulas {
            history.adopted_later_us.get_or_insert(time_us);
        }
    }

    /// All state of the instance is gone.
    fn restart(&mut self, time_us: u64) {
        for holding in core::mem::take(&mut self.open).into_values() {
            self.close(Holding { until: Until::Restart(time_us), ..holding });
        }
        for holding in core::mem::take(&mut self.left).into_values() {
            self.close(Holding { until: Until::Elsewhere(self.left_us), ..holding });
        }
        if time_us <= self.query.at_us {
            self.telling = None;
        }
        if time_us <= self.query.at_us {
            self.lost_since_start = 0;
        }
    }

    fn close(&mut self, holding: Holding) {
        let at_us = self.query.at_us;
        let is_over = match holding.until {
            Until::Open => false,
            Until::Ended(until) | Until::Restart(until) => until <= at_us,
            Until::Elsewhere(left) => left < at_us,
        };
        if holding.since_us <= at_us && !is_over {
            self.history.holdings.push(holding);
        }
    }

    fn is_asked_about(&self, holding: &Holding) -> bool {
        let Asked { address, port, protocol, vrf } = self.query.asked;
        let as_external = holding.external == address
            && port.is_none_or(|port| (holding.first_port..=holding.last_port).contains(&port));
        let as_internal = holding.subscriber == address
            && port.is_none_or(|port| holding.internal_port.is_none_or(|internal| internal == port));
        let fits = match (protocol, holding.protocol) {
            (Some(wanted), Some(has)) => wanted == has,
            _ => true,
        };
        fits && vrf.is_none_or(|vrf| holding.realm == vrf) && (as_external || as_internal)
    }

    fn end(mut self) -> History {
        for holding in core::mem::take(&mut self.open).into_values() {
            self.close(holding);
        }
        for holding in core::mem::take(&mut self.left).into_values() {
            self.close(Holding { until: Until::Elsewhere(self.left_us), ..holding });
        }
        self.history.incomplete = self
            .telling
            .take()
            .and_then(|(opened, workers, told)| (told.len() < usize::from(workers)).then_some(opened));
        self.history.lost = self.lost_since_start;
        self.history.holdings.sort_by_key(|holding| {
            (holding.since_us, holding.subscriber, holding.external, holding.first_port, holding.internal_port)
        });
        self.history
    }
}

/// The cause of records about state that existed when the log was opened.
const LOG_OPENED: &str = Cause::LogOpened.name();

/// The holding that a line is about.
fn holding(what: What, line: &Line<'_>, time_us: u64) -> Option<Holding> {
    let protocol = match line.protocol {
        None => None,
        Some(name) => Some(Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)?),
    };
    let first_port = line.external_port.or(line.first_port)?;
    Some(Holding {
        what,
        realm: match &line.realm {
            serde_json::Value::String(name) => name.clone(),
            other => other.to_string(),
        },
        subscriber: line.subscriber?,
        protocol,
        internal_port: line.internal_port,
        external: line.external_address?,
        first_port,
        last_port: line.external_port.or(line.last_port)?,
        remote: line.remote_address.zip(line.remote_port),
        since_us: time_us,
        until: Until::Open,
    })
}

/// The time at the start of a line.
fn time_of(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"time\":\"")?;
    let text = rest.get(..rest.iter().position(|byte| *byte == b'"')?)?;
    parse_utc(core::str::from_utf8(text).ok()?).ok()
}

fn contains(line: &[u8], needle: &[u8]) -> bool {
    let Some((first, rest)) = needle.split_first() else { return true };
    let mut from = 0;
    while let Some(found) = line.get(from..).and_then(|tail| tail.iter().position(|byte| byte == first)) {
        from += found + 1;
        if line.get(from..).is_some_and(|tail| tail.starts_with(rest)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
