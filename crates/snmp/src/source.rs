//! What the daemon said, kept for a while, so that a walk asks it once and not for each object.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use control::Actor;
use control::AuditRecord;
use control::Client;
use control::ClientError;
use control::Filter;
use control::List;
use control::PAGE_OBJECTS_MAX;
use control::PoolAddress;
use control::Record;
use control::Request;

use crate::figures::Figures;
use crate::maps::Indices;
use crate::maps::Maps;
use crate::settings::Settings;

/// How long numbers of the instance as a whole are used.
const FIGURES_KEPT: Duration = Duration::from_secs(1);
/// How long the ranges of pools are used.
const RANGES_KEPT: Duration = Duration::from_secs(10);
/// How long a picture of the maps is used, at least; otherwise ten times as long as it took.
const MAPS_KEPT: Duration = Duration::from_secs(2);
const MAPS_KEPT_TIMES: u32 = 10;
/// How long a request waits for a newer picture while there is an older one, and for the first.
const NEWER_WITHIN: Duration = Duration::from_millis(400);
const FIRST_WITHIN: Duration = Duration::from_secs(15);
/// How long the daemon may take for each line of an answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The daemon does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable;

impl From<ClientError> for Unavailable {
    fn from(_: ClientError) -> Unavailable {
        Unavailable
    }
}

/// A range of addresses of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: Ipv4Addr,
    pub(crate) last: Ipv4Addr,
}

/// A pool as this agent knows it.
#[derive(Clone, Debug)]
pub(crate) struct KnownPool {
    /// Its index, never given to another pool.
    pub(crate) index: u32,
    ranges: Vec<Range>,
    /// Since when its ranges and ports are what they are.
    pub(crate) since: Instant,
    ports: (u16, u16),
}

/// A range with its place in the table of ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberedRange {
    pub(crate) pool: u32,
    pub(crate) number: u32,
    pub(crate) range: Range,
}

/// All pools there are or were.
#[derive(Debug, Default)]
pub(crate) struct KnownPools {
    by_name: HashMap<String, KnownPool>,
    /// The ranges of those there are, in the order of the table.
    pub(crate) ranges: Vec<NumberedRange>,
}

impl KnownPools {
    pub(crate) fn get(&self, name: &str) -> Option<&KnownPool> {
        self.by_name.get(name)
    }
}

struct Kept<T> {
    value: Arc<T>,
    at: Instant,
    took: Duration,
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Kept<T> {
        Kept { value: Arc::clone(&self.value), at: self.at, took: self.took }
    }
}

/// The way to the daemon, connected again when a connection is lost.
struct Connection {
    socket: PathBuf,
    client: Option<Client>,
}

impl Connection {
    fn ask<T>(&mut self, ask: impl FnOnce(&mut Client) -> Result<T, ClientError>) -> Result<T, Unavailable> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect_for(&self.socket, env!("CARGO_PKG_VERSION"), ANSWERS_WITHIN, Some(actor()))?,
        };
        let answer = ask(&mut client)?;
        self.client = Some(client);
        Ok(answer)
    }
}

/// The user that asks, for the audit log: which managers there are is for the master agent to know.
fn actor() -> Actor {
    Actor { who: "snmp".to_owned(), from: "agentx".to_owned(), case: None }
}

/// All that requests look at.
pub(crate) struct Source {
    connection: Connection,
    figures: Option<Kept<Figures>>,
    pools: Option<Kept<KnownPools>>,
    maps: Arc<Shared>,
}

/// Between requests and the thread that takes pictures of the maps.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: bool,
    latest: Option<Kept<Maps>>,
    failures: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    /// Starts the thread that takes pictures of the maps. It ends with the process.
    pub(crate) fn start(settings: &Settings) -> io::Result<Source> {
        let connection = || Connection { socket: settings.control.clone(), client: None };
        let maps = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let (shared, mut own, rows_max) = (Arc::clone(&maps), connection(), settings.rows_max);
        thread::Builder::new().name("maps".to_owned()).spawn(move || take_pictures(&shared, &mut own, rows_max))?;
        Ok(Source { connection: connection(), figures: None, pools: None, maps })
    }

    /// Numbers of the instance, at most a second old.
    pub(crate) fn figures(&mut self) -> Result<Arc<Figures>, Unavailable> {
        if let Some(kept) = &self.figures
            && kept.at.elapsed() < FIGURES_KEPT
        {
            return Ok(Arc::clone(&kept.value));
        }
        let begun = Instant::now();
        let figures = Arc::new(self.connection.ask(Figures::ask)?);
        self.figures = Some(Kept { value: Arc::clone(&figures), at: Instant::now(), took: begun.elapsed() });
        Ok(figures)
    }

    /// Indices and ranges of the pools.
    pub(crate) fn pools(&mut self) -> Result<Arc<KnownPools>, Unavailable> {
        let figures = self.figures()?;
        if let Some(kept) = &self.pools
            && kept.at.elapsed() < RANGES_KEPT
            && figures.pools.iter().all(|pool| kept.value.get(&pool.name).is_some())
        {
            return Ok(Arc::clone(&kept.value));
        }
        let begun = Instant::now();
        let ranges = self.connection.ask(ask_ranges)?;
        let before = self.pools.as_ref().map(|kept| Arc::clone(&kept.value)).unwrap_or_default();
        let known = Arc::new(know(&figures, ranges, &before));
        self.pools = Some(Kept { value: Arc::clone(&known), at: Instant::now(), took: begun.elapsed() });
        Ok(known)
    }

    /// Adds to the audit log of the daemon.
    pub(crate) fn record(&mut self, action: &str, subject: String) -> Result<(), Unavailable> {
        let record = Request::Record(Record { action: action.to_owned(), subject, result: None, id: None });
        self.connection.ask(|client| client.request_one::<AuditRecord>(&record)).map(drop)
    }

    /// A picture of the maps. An older one while the daemon takes its time.
    pub(crate) fn maps(&self) -> Result<Arc<Maps>, Unavailable> {
        let mut state = self.maps.lock();
        let is_fresh = |kept: &Kept<Maps>| kept.at.elapsed() < MAPS_KEPT.max(kept.took * MAPS_KEPT_TIMES);
        let (within, before) = match &state.latest {
            Some(kept) if is_fresh(kept) => return Ok(Arc::clone(&kept.value)),
            Some(kept) => (NEWER_WITHIN, Some(kept.at)),
            None => (FIRST_WITHIN, None),
        };
        state.wanted = true;
        let failures = state.failures;
        self.maps.changed.notify_all();
        let unchanged =
            |state: &mut State| state.failures == failures && state.latest.as_ref().map(|kept| kept.at) == before;
        let (state, _) =
            self.maps.changed.wait_timeout_while(state, within, unchanged).unwrap_or_else(PoisonError::into_inner);
        state.latest.as_ref().map(|kept| Arc::clone(&kept.value)).ok_or(Unavailable)
    }
}

fn take_pictures(shared: &Shared, connection: &mut Connection, rows_max: usize) {
    let mut indices = Indices::default();
    let mut was_cut = false;
    loop {
        let state = shared.lock();
        drop(shared.changed.wait_while(state, |state| !state.wanted).unwrap_or_else(PoisonError::into_inner));
        let begun = Instant::now();
        let picture = connection.ask(|client| Maps::ask(client, &mut indices, rows_max));
        let mut state = shared.lock();
        state.wanted = false;
        match picture {
            Ok(maps) => {
                if maps.is_cut && !was_cut {
                    tracing::warn!(
                        target: "natrix",
                        object = "snmp",
                        "the tables of subscribers and maps have only {rows_max} rows of more; raise snmp.rows, or \
                         read lists by the API"
                    );
                }
                was_cut = maps.is_cut;
                state.latest = Some(Kept { value: Arc::new(maps), at: Instant::now(), took: begun.elapsed() });
            }
            Err(Unavailable) => state.failures += 1,
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// The ranges of each pool, by its name.
fn ask_ranges(client: &mut Client) -> Result<HashMap<String, Vec<Range>>, ClientError> {
    let list = List { filter: Filter::default(), limit: Some(PAGE_OBJECTS_MAX), cursor: None };
    let mut addresses: HashMap<String, Vec<Ipv4Addr>> = HashMap::new();
    for address in client.pages::<PoolAddress>(list, Request::PoolAddresses) {
        let address = address?;
        addresses.entry(address.pool).or_default().push(address.address);
    }
    Ok(addresses.into_iter().map(|(pool, addresses)| (pool, ranges(addresses))).collect())
}

/// Addresses as ranges, in order.
fn ranges(mut addresses: Vec<Ipv4Addr>) -> Vec<Range> {
    addresses.sort_unstable();
    let mut ranges: Vec<Range> = Vec::new();
    for address in addresses {
        match ranges.last_mut() {
            Some(range) if range.last.to_bits().checked_add(1) == Some(address.to_bits()) => range.last = address,
            Some(range) if range.last == address => {}
            _ => ranges.push(Range { first: address, last: address }),
        }
    }
    ranges
}

/// Pools that were known keep their index, also while the configuration does not have them.
fn know(figures: &Figures, mut ranges: HashMap<String, Vec<Range>>, before: &KnownPools) -> KnownPools {
    let now = Instant::now();
    let mut known = KnownPools { by_name: before.by_name.clone(), ranges: Vec::new() };
    for pool in &figures.pools {
        let ranges = ranges.remove(&pool.name).unwrap_or_default();
        let ports = (pool.port_min, pool.port_max);
        let next = known.by_name.len() as u32 + 1;
        // The first time, the pools are as old as the instance.
        let since = if before.by_name.is_empty() { figures.started } else { now };
        let entry = known.by_name.entry(pool.name.clone());
        let entry = entry.or_insert_with(|| KnownPool { index: next, ranges: ranges.clone(), since, ports });
        if entry.ranges != ranges || entry.ports != ports {
            *entry = KnownPool { index: entry.index, ranges, since: now, ports };
        }
        let numbered = (1..).zip(&entry.ranges);
        let numbered = numbered.map(|(number, range)| NumberedRange { pool: entry.index, number, range: *range });
        known.ranges.extend(numbered);
    }
    known.ranges.sort_unstable_by_key(|range| (range.pool, range.number));
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_ranges_in_order() {
        let addresses = ["203.0.113.9", "203.0.113.1", "203.0.113.0", "203.0.112.255", "203.0.113.9", "203.0.113.11"];
        let found = ranges(addresses.map(|text| text.parse().unwrap()).to_vec());
        let found: Vec<String> = found.iter().map(|range| format!("{}-{}", range.first, range.last)).collect();
        assert_eq!(found, ["203.0.112.255-203.0.113.1", "203.0.113.9-203.0.113.9", "203.0.113.11-203.0.113.11"]);
    }
}
