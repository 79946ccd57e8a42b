//! `natrix bench routes`: Natrix's table of routes beside those of DPDK and a crate, and what
//! routes cost packets.
//!
//! ```text
//!   routes of a full table ─► each table: load ─► look up ─► remove and add ─► look up again
//!                          └► engine under traffic: no such routes, all, while they change
//! ```
//!
//! All tables get the same routes, addresses and changes, and must find the same next hops. Only
//! `rte_lpm`, which takes too long with many routes, gets the first of them.

use mem::ArenaError;
use mem::tsc;
use nat::types::Prefix;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::batches::Batches;
use crate::engine::resident_bytes;
use crate::stalls::StallsError;
use crate::traffic::BURST;

mod structure;
mod traffic;
mod workload;

pub use traffic::TrafficReport;
pub use traffic::longest_ns;

use structure::NONE;
use structure::RouteTable;
use workload::Route;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Routes.
    pub routes: u32,
    /// Routes in the table of `rte_lpm`: [`LPM_ROUTES_MAX`] at most, unless time does not matter.
    pub lpm_routes_max: u32,
    /// Changes a second under traffic.
    pub changes: u32,
    /// Established sessions of the traffic.
    pub sessions: u64,
    /// Length of each timed part, seconds.
    pub seconds: f64,
    /// Of the routes, addresses and changes.
    pub seed: u64,
}

/// For each route that comes or goes, `rte_lpm` walks over all routes of a length: filled with
/// 100,000 it takes a second, with a million more than two minutes.
pub const LPM_ROUTES_MAX: u32 = 100_000;

/// A table that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// The crate `prefix-trie`.
    PrefixTrie,
    /// Natrix's own: the table of the workers, and the collection of all routes beside it.
    Natrix,
    /// DPDK's `rte_lpm`.
    RteLpm,
    /// DPDK's `rte_fib`, DIR24-8 with next hops of 4 bytes.
    RteFib,
}

/// Figures of one table.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// Which.
    pub structure: Structure,
    /// Routes.
    pub routes: u32,
    /// From the list to the last route, seconds of CPU time.
    pub load_seconds: f64,
    /// All its memory: DPDK's by DPDK, of others what the process has more than before.
    pub bytes: usize,
    /// Memory that lookups read; only of Natrix's own.
    pub lookup_bytes: usize,
    /// A lookup of an address anywhere in a random route, in bursts of 64: TSC cycles.
    pub random_cycles: f64,
    /// A lookup of one of 1,024 addresses.
    pub popular_cycles: f64,
    /// Routes added a second of CPU time, one by one, to the full table.
    pub adds_per_second: f64,
    /// Routes removed a second of CPU time.
    pub removes_per_second: f64,
}

/// Figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The tables.
    pub tables: Vec<TableReport>,
    /// TSC cycles a second.
    pub tsc_hz: f64,
    /// Traffic with Natrix's own.
    pub traffic: TrafficReport,
}

/// What there is to say besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This program was built without DPDK, so its tables are left out.
    NoDpdk,
    /// DPDK runs on ordinary pages.
    DpdkOnPlainPages,
    /// The table of `rte_lpm` has only so many routes.
    FewerLpmRoutes(u32),
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// A number makes no sense.
    #[error("bench routes: {what} is out of range ({value}); {remedy}")]
    Option {
        /// Which.
        what: &'static str,
        /// Value seen.
        value: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Natrix's table refused a route.
    #[error("bench routes: natrix: {0}")]
    Natrix(daemon::routing::fib::FibError),
    /// DPDK did not start, or its table refused a route.
    #[error("bench routes: DPDK: {0}")]
    Dpdk(String),
    /// No memory.
    #[error("bench routes: {0}")]
    Memory(#[from] ArenaError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] StallsError),
    /// Two tables disagree; the figures would mean nothing.
    #[error(
        "bench routes: {structure:?} finds {found} for {address}, not {wanted}; this is a fault of Natrix, please report it"
    )]
    Wrong {
        /// Which table.
        structure: Structure,
        /// Address looked up.
        address: core::net::Ipv4Addr,
        /// Next hop found.
        found: u32,
        /// Next hop of the longest route.
        wanted: u32,
    },
    /// The engine has no table for routes of the kernel.
    #[error("bench routes: the engine follows no routes; this is a fault of Natrix, please report it")]
    NotFollowed,
    /// A thread died.
    #[error("bench routes: a thread panicked")]
    Thread,
}

impl RoutesError {
    fn natrix(error: daemon::routing::fib::FibError) -> RoutesError {
        RoutesError::Natrix(error)
    }
}

/// Addresses looked up in turn: more than the caches hold of them and of what they lead to.
const ADDRESSES: usize = 1 << 20;
/// Bursts timed together.
const BATCH: usize = 32;
/// Changes timed together: removed, then added again.
const CHANGES: usize = 512;

/// Measures all tables, then traffic. `table` gets each table's figures as they come.
///
/// # Errors
/// [`RoutesError`].
pub fn run(
    options: &Options,
    notice: &mut dyn FnMut(Notice),
    table: &mut dyn FnMut(&TableReport, f64),
) -> Result<Report, RoutesError> {
    check(options)?;
    let hz = traffic::frequency_hz();
    let mut random = SmallRng::seed_from_u64(options.seed);
    let routes = workload::routes(options.routes, &mut random);
    let addresses = workload::addresses(&routes, ADDRESSES, &mut random);
    let bench = Bench { routes: &routes, addresses: &addresses, seconds: options.seconds, hz, seed: options.seed };

    // The memory of the first two is seen from the process, so what the first gives back must not
    // serve the second: the trie is few large pieces, which go back to the system.
    let mut tables = Vec::new();
    let mut keep = |report: TableReport| {
        table(&report, hz);
        tables.push(report);
    };
    let (report, wanted) = bench.measure(Structure::PrefixTrie, || Ok(structure::Trie::default()), None)?;
    keep(report);
    keep(bench.measure(Structure::Natrix, structure::Natrix::new, Some(&wanted))?.0);
    #[cfg(not(feature = "dpdk"))]
    notice(Notice::NoDpdk);
    #[cfg(feature = "dpdk")]
    {
        use packet_io::dpdk::hash::start_without_ports;
        use packet_io::dpdk::routes::DpdkFib;
        use packet_io::dpdk::routes::DpdkLpm;
        let room = structure::room(options.routes, workload::groups(&routes));
        // Two first levels of 64 MiB, and what each route and group takes in both, generously.
        let bytes = (160 << 20) + u64::from(room.routes) * 400 + u64::from(room.groups) * 4 * 1_024;
        let huge = start_without_ports(bytes).map_err(|error| RoutesError::Dpdk(error.to_string()))?;
        if !huge {
            notice(Notice::DpdkOnPlainPages);
        }
        let made = |result: Result<_, String>| result.map_err(RoutesError::Dpdk);
        keep(bench.measure(Structure::RteFib, || made(DpdkFib::new(room)), Some(&wanted))?.0);
        let few = options.routes.min(options.lpm_routes_max);
        if few < options.routes {
            notice(Notice::FewerLpmRoutes(few));
        }
        let few = &routes[..few as usize];
        let addresses = workload::addresses(few, ADDRESSES, &mut random);
        let bench = Bench { routes: few, addresses: &addresses, ..bench };
        let wanted = bench.wanted()?;
        let made = |result: Result<_, String>| result.map_err(RoutesError::Dpdk);
        keep(bench.measure(Structure::RteLpm, || made(DpdkLpm::new(room)), Some(&wanted))?.0);
    }
    let traffic = traffic::measure(options, &routes, hz)?;
    Ok(Report { tables, tsc_hz: hz, traffic })
}

fn check(options: &Options) -> Result<(), RoutesError> {
    let out_of_range = |what, value: String, remedy| Err(RoutesError::Option { what, value, remedy });
    if !(1_000..=2_000_000).contains(&options.routes) {
        return out_of_range("--routes", options.routes.to_string(), "give 1000 to 2000000");
    }
    if !(1..=10_000_000).contains(&options.changes) {
        return out_of_range("--changes", options.changes.to_string(), "give 1 to 10000000");
    }
    if !(0.01..=600.0).contains(&options.seconds) {
        return out_of_range("--seconds", options.seconds.to_string(), "give 0.01 to 600");
    }
    Ok(())
}

/// What all tables get.
struct Bench<'a> {
    routes: &'a [Route],
    addresses: &'a [u32],
    seconds: f64,
    hz: f64,
    seed: u64,
}

impl Bench<'_> {
    /// The next hops that a table has to find, by the crate.
    #[cfg(feature = "dpdk")]
    fn wanted(&self) -> Result<Vec<u32>, RoutesError> {
        let mut table = structure::Trie::default();
        for (prefix, next_hop) in self.routes {
            table.set(*prefix, *next_hop)?;
        }
        self.next_hops(Structure::PrefixTrie, &table, None)
    }

    /// Measures one table. Returns the next hops it finds, which must be those `wanted` if there
    /// are any.
    fn measure<T: RouteTable>(
        &self,
        structure: Structure,
        make: impl FnOnce() -> Result<T, RoutesError>,
        wanted: Option<&[u32]>,
    ) -> Result<(TableReport, Vec<u32>), RoutesError> {
        let before = resident_bytes();
        let begun = cpu_seconds();
        let mut table = make()?;
        for (number, (prefix, next_hop)) in self.routes.iter().enumerate() {
            table.set(*prefix, *next_hop)?;
            if number % 1_000 == 999 {
                table.publish();
            }
        }
        table.publish();
        let load_seconds = cpu_seconds() - begun;
        let bytes = table.own_bytes().unwrap_or_else(|| resident_bytes().saturating_sub(before) as usize);
        let lookup_bytes = table.lookup_bytes();

        let random_cycles = self.time_lookups(&table, self.addresses);
        let popular_cycles = self.time_lookups(&table, &self.addresses[..workload::POPULAR]);
        let found = self.next_hops(structure, &table, wanted)?;
        let (adds_per_second, removes_per_second) = self.time_changes(&mut table)?;
        self.next_hops(structure, &table, Some(&found))?;
        let report = TableReport {
            structure,
            routes: self.routes.len() as u32,
            load_seconds,
            bytes,
            lookup_bytes,
            random_cycles,
            popular_cycles,
            adds_per_second,
            removes_per_second,
        };
        Ok((report, found))
    }

    /// Cycles of a lookup: the median of batches.
    fn time_lookups(&self, table: &impl RouteTable, addresses: &[u32]) -> f64 {
        let (bursts, _) = addresses.as_chunks::<BURST>();
        let mut found = [NONE; BURST];
        for burst in bursts {
            table.lookup(burst, &mut found);
        }
        let mut bursts = bursts.iter().cycle();
        let mut fresh = vec![[0; BURST]; BATCH];
        let mut batches = Batches::new(self.seconds, self.hz);
        while !batches.is_done() {
            // Addresses come from headers that are in the caches already.
            fresh.iter_mut().zip(&mut bursts).for_each(|(fresh, burst)| *fresh = *burst);
            batches.time(|| {
                for burst in &fresh {
                    table.lookup(burst, &mut found);
                    core::hint::black_box(&found);
                }
            });
        }
        batches.median(BATCH * BURST)
    }

    fn next_hops(
        &self,
        structure: Structure,
        table: &impl RouteTable,
        wanted: Option<&[u32]>,
    ) -> Result<Vec<u32>, RoutesError> {
        let mut all = Vec::with_capacity(self.addresses.len());
        let mut found = [NONE; BURST];
        for burst in self.addresses.as_chunks::<BURST>().0 {
            table.lookup(burst, &mut found);
            all.extend(found.map(|found| table.next_hop(found)));
        }
        for (place, wanted) in wanted.unwrap_or_default().iter().enumerate() {
            if all[place] != *wanted {
                let address = self.addresses[place].into();
                return Err(RoutesError::Wrong { structure, address, found: all[place], wanted: *wanted });
            }
        }
        Ok(all)
    }

    /// Routes added and removed a second: random ones go and come back.
    fn time_changes(&self, table: &mut impl RouteTable) -> Result<(f64, f64), RoutesError> {
        let mut random = SmallRng::seed_from_u64(self.seed ^ 0x726f_7574_6573);
        let (mut removing, mut adding, mut changes) = (0.0, 0.0, 0_usize);
        while removing + adding < self.seconds {
            let mut chosen: Vec<Route> =
                (0..CHANGES).map(|_| self.routes[random.random_range(0..self.routes.len())]).collect();
            chosen.sort_unstable_by_key(|(prefix, _): &(Prefix, u32)| *prefix);
            chosen.dedup();
            rand::seq::SliceRandom::shuffle(chosen.as_mut_slice(), &mut random);
            let begun = cpu_seconds();
            for (prefix, _) in &chosen {
                table.remove(*prefix)?;
            }
            table.publish();
            let between = cpu_seconds();
            for (prefix, next_hop) in &chosen {
                table.set(*prefix, *next_hop)?;
            }
            table.publish();
            removing += between - begun;
            adding += cpu_seconds() - between;
            changes += chosen.len();
        }
        Ok((changes as f64 / adding, changes as f64 / removing))
    }
}

/// Seconds that this thread had a CPU, or by the clock where threads have none of their own.
fn cpu_seconds() -> f64 {
    tsc::thread_seconds().unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0.0, |since| since.as_secs_f64())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tables_find_the_same_and_traffic_loses_nothing() {
        let (routes, lpm_routes_max) = (3_000, 1_000);
        let options = Options { routes, lpm_routes_max, changes: 20_000, sessions: 512, seconds: 0.02, seed: 1 };
        let (mut seen, mut notices) = (Vec::new(), Vec::new());
        let mut see = |table: &TableReport, _: f64| seen.push((table.structure, table.routes));
        let report = run(&options, &mut |notice| notices.push(notice), &mut see).unwrap();
        let mut expected = vec![(Structure::PrefixTrie, routes), (Structure::Natrix, routes)];
        if cfg!(feature = "dpdk") {
            expected.extend([(Structure::RteFib, routes), (Structure::RteLpm, lpm_routes_max)]);
        }
        assert_eq!(seen, expected);
        assert_eq!(notices.contains(&Notice::FewerLpmRoutes(lpm_routes_max)), cfg!(feature = "dpdk"), "{notices:?}");
        for table in &report.tables {
            assert!(table.random_cycles > 0.0 && table.popular_cycles > 0.0, "{table:?}");
            assert!(table.adds_per_second > 0.0 && table.removes_per_second > 0.0, "{table:?}");
        }
        let traffic = &report.traffic;
        assert!(traffic.static_cycles > 0.0 && traffic.full_cycles > 0.0, "{traffic:?}");
        assert!(traffic.changes_made > 0.0 && traffic.changing.bursts > 0 && traffic.reloads > 0, "{traffic:?}");
        let few = run(&Options { routes: 1, ..options }, &mut |_| {}, &mut |_, _| {});
        assert!(matches!(few, Err(RoutesError::Option { what: "--routes", .. })));
    }
}
