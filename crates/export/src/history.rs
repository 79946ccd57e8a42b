//! Who held an external endpoint at a time: the answer from the lines that were written.
//!
//! One pass over the files in the order of time. Only lines that name the address are parsed; what is kept is what is open at
//! each time, so that memory is bounded by who holds ports at once.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;
use std::path::PathBuf;

use nat::Protocol;
use nat::event::Cause;
use serde::Deserialize;

use crate::line::NO_FORMULAS;
use crate::medium::rotated;
use crate::utc::parse_utc;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// External or internal address.
    pub address: Ipv4Addr,
    /// Its port; None: all of them.
    pub port: Option<u16>,
    /// Only this transport.
    pub protocol: Option<Protocol>,
    /// When, µs since 1970.
    pub at_us: u64,
    /// The checksum of the formulas of a configuration ([`nat::deterministic::checksum`]): when they were in force is looked for.
    pub formulas: Option<u32>,
}

/// What somebody had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A mapping: one external port of one transport.
    Mapping,
    /// A block of ports of all transports.
    Block,
    /// An external endpoint of the configuration.
    Static,
    /// A port shared with others, towards one remote endpoint.
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

/// Why somebody had something no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Still had it where the log ends.
    Open,
    /// It ended at this time, µs since 1970.
    Ended(u64),
    /// The instance was started anew at this time and knew nothing of it; it ended before.
    Restart(u64),
    /// Still had it at this time, when records began to go elsewhere; when they came back it was over.
    Elsewhere(u64),
}

/// Somebody who had the endpoint, or had it from what was asked about, at the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What it was.
    pub what: What,
    /// Realm, by name or number.
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
    /// Remote endpoint, of flows only.
    pub remote: Option<(Ipv4Addr, u16)>,
    /// Since when, µs since 1970. To the second only, where just the end is in the log.
    pub since_us: u64,
    /// Until when.
    pub until: Until,
}

/// When an instance went over to formulas of deterministic pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// When, µs since 1970.
    pub at_us: u64,
    /// Their checksum, 0 where there were none; None: the line does not tell.
    pub formulas: Option<u32>,
}

/// A log that was opened while the instance ran: workers tell it what lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// When, µs since 1970.
    pub at_us: u64,
    /// Where the records of before are.
    pub earlier: String,
}

/// The answer, and how far it can be relied upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Who had it, oldest first.
    pub holdings: Vec<Holding>,
    /// Time of the first line, µs since 1970.
    pub first_us: Option<u64>,
    /// Time of the last line.
    pub last_us: Option<u64>,
    /// Records that were lost between the last start before the time asked about, and the time: any of them may have been
    /// the one that was wanted.
    pub lost: u64,
    /// Lines that are no records.
    pub unreadable: u64,
    /// What was in force at the time asked about, since when.
    pub in_force: Option<Adoption>,
    /// The first change of configuration after it.
    pub next_change: Option<Adoption>,
    /// How the files begin, if they do so with a log that was opened while the instance ran.
    pub opened: Option<Opened>,
    /// The log that was opened last before the time asked about, if some worker has not told it all that lived then.
    pub untold: Option<Opened>,
    /// Records of the time asked about are in another log: that which `earlier` says, until this one was opened again.
    pub away: Option<Opened>,
    /// When the formulas asked about were adopted, if that was after the time asked about.
    pub adopted_later_us: Option<u64>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("log {path}: {source}; check the path and its permissions", path = .path.display())]
pub struct HistoryError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// The files of a log in the order of time: those that were rotated, then `path` itself.
///
/// # Errors
/// When the folder can not be listed, or nothing of the log is there.
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>, HistoryError> {
    let error = |source| HistoryError { path: path.to_owned(), source };
    let mut files = rotated(path).map_err(error)?;
    if path.exists() || files.is_empty() {
        files.push(path.to_owned());
    }
    Ok(files)
}

/// Who held what `query` asks about. `files` are read in this order, which has to be that of time.
///
/// # Errors
/// [`HistoryError`] when a file can not be read.
pub fn look_up(files: &[PathBuf], query: &Query) -> Result<History, HistoryError> {
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

/// A line as far as it matters here. All else in it is skipped.
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
    // Paths may have escapes, which can not be borrowed.
    file: Option<String>,
    earlier: Option<String>,
}

/// Tells holdings apart that are open at the same time.
type Key = (What, String, Ipv4Addr, Option<Protocol>, Option<u16>, Ipv4Addr, u16, Option<(Ipv4Addr, u16)>);

struct Search {
    query: Query,
    /// The address as lines have it, with its quotes.
    needle: Vec<u8>,
    open: HashMap<Key, Holding>,
    history: History,
    /// The start of the last line before the time asked about, if it has one.
    lost_since_start: u64,
    /// Where the lines read last were written to, as far as they say so.
    written_to: Option<String>,
    /// No line of the present file was read yet.
    is_file_new: bool,
    /// What was held when records began to go elsewhere, and when that was.
    left: HashMap<Key, Holding>,
    left_us: u64,
    /// The log opened last, and which workers have told it all.
    telling: Option<(Opened, u16, HashSet<u16>)>,
}

impl Search {
    fn new(query: Query) -> Search {
        Search {
            query,
            needle: format!("\"{}\"", query.address).into_bytes(),
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
            b"\"event\":\"all_told\"",
            b"\"event\":\"configuration_adopted\"",
        ];
        if !is_about && !tells.iter().any(|event| contains(line, event)) {
            return;
        }
        match serde_json::from_slice::<Line<'_>>(line) {
            Ok(line) if line.event == "opened" => {
                let follows = match &self.written_to {
                    Some(known) => line.earlier.as_ref() == Some(known),
                    // Those before it said nothing: they are its own, unless it begins a file.
                    None => is_file_new && !is_first,
                };
                // Of before it says nothing.
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
            "static_made" => (What::Static, true),
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
            "all_told" => {
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
            // A mapping may become a static one, or no longer be one, while it exists.
            if what == What::Static { What::Mapping } else { what },
            holding.realm.clone(),
            holding.subscriber,
            holding.protocol,
            holding.internal_port,
            holding.external,
            holding.first_port,
            holding.remote,
        );
        // To the second, as records of what lives know it.
        let told_since_us = line.held_s.and_then(|held_s| time_us.checked_sub((held_s + 1) * 1_000_000));
        // What is told again, or ends, began elsewhere or is known since it began.
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
            // Its end is in no record: another time he had the same.
            if let Some(known) = self.open.insert(key, Holding { since_us, ..holding }) {
                self.close(Holding { until: Until::Ended(since_us), ..known });
            }
            return;
        }
        if is_begin {
            self.open.insert(key, holding);
            return;
        }
        // Where the beginning is in no file, the end says how long it was.
        let begun = self.open.remove(&key).or_else(|| Some(Holding { since_us: told_since_us?, ..holding }));
        if let Some(holding) = begun {
            self.close(Holding { until: Until::Ended(time_us), ..holding });
        }
    }

    /// Records go into this log from here on. It may be in the file for the second time: then what was held meanwhile began and ended
    /// elsewhere.
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
            // What is lost before does not matter where all is told anew.
            self.lost_since_start = 0;
            (opened, line.workers.unwrap_or(0), HashSet::new())
        });
    }

    /// A configuration came into force; workers say so one after the other.
    fn adopted(&mut self, line: &Line<'_>, time_us: u64) {
        let formulas = match line.formulas {
            Some(NO_FORMULAS) => Some(0),
            Some(checksum) => u32::from_str_radix(checksum, 16).ok(),
            None => None,
        };
        let (history, adoption) = (&mut self.history, Adoption { at_us: time_us, formulas });
        if time_us <= self.query.at_us {
            // The first of the workers was the first to go by it.
            if history.in_force.is_none_or(|known| known.formulas != formulas || formulas.is_none()) {
                history.in_force = Some(adoption);
            }
            return;
        }
        // What only one worker told before the time, others tell after it.
        let is_new = history.in_force.is_none_or(|known| known.formulas != formulas || formulas.is_none());
        if is_new {
            history.next_change.get_or_insert(adoption);
        }
        if formulas.is_some() && formulas == self.query.formulas {
            history.adopted_later_us.get_or_insert(time_us);
        }
    }

    /// Whatever the instance had is gone.
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
        let Query { address, port, protocol, .. } = self.query;
        let as_external = holding.external == address
            && port.is_none_or(|port| (holding.first_port..=holding.last_port).contains(&port));
        let as_internal = holding.subscriber == address
            && port.is_none_or(|port| holding.internal_port.is_none_or(|internal| internal == port));
        let fits = match (protocol, holding.protocol) {
            (Some(wanted), Some(has)) => wanted == has,
            _ => true,
        };
        fits && (as_external || as_internal)
    }

    fn end(mut self) -> History {
        for holding in core::mem::take(&mut self.open).into_values() {
            self.close(holding);
        }
        for holding in core::mem::take(&mut self.left).into_values() {
            self.close(Holding { until: Until::Elsewhere(self.left_us), ..holding });
        }
        self.history.untold = self
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

/// The cause of a record of what lived when the log was opened.
const LOG_OPENED: &str = Cause::LogOpened.name();

/// What a line says somebody got or lost.
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

/// The time of a line, which it starts with.
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
