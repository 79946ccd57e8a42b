//! `natrix bench tables`: the data-structure study of D. Plotnikov, *Analysis of high performance
//! software NAT design approaches* (2015), repeated, with tables of today beside it.
//!
//! ```text
//!   packets ─► leave: look up, not found, enter, translate ─► servers ─► enter: look up, translate
//!              └────────────── timed ──────────────┘                     └────── timed ──────┘
//! ```
//!
//! The workload is the paper's worst case (§3.1.2): more than 99 % unique flows, all new, then all
//! answered. Cycles per packet are those of both passes over all packets of both. Each thread is a
//! NAT of its own with its share of the flows. Every run is checked: there are no figures unless
//! all replies have come to the hosts that asked, with right checksums.

mod bst;
mod bucket;
mod bucket2;
mod bucket3;
mod chain;
mod chain_tree;
#[cfg(feature = "dpdk")]
mod dpdk_hash;
mod figures;
mod hashbrown;
mod kind;
mod linear;
mod measure;
mod natrix;
mod none;
mod rbtree;
mod report;
mod structure;
mod workload;

#[cfg(test)]
mod tests;

pub use figures::draw as draw_figures;
pub use kind::Kind;
pub use kind::UnknownKind;
pub use report::Notice;
pub use report::Row;
pub use report::write_csv;
pub use structure::BuildError;

use measure::Job;
use structure::Size;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Structures, in the order of the report.
    pub structures: Vec<Kind>,
    /// Sizes: flows in all, over all threads.
    pub sessions: Vec<u32>,
    /// Each structure and size is measured with one thread, two, and so on up to this many, on as
    /// many CPUs.
    pub threads: usize,
    /// Flows a cell of the paper's hash tables: 1 means as many cells as flows.
    pub load: u32,
    /// How long to time each at least, in seconds: small sets are repeated. 0: once.
    pub seconds: f64,
    /// Of the flows, each thread its own.
    pub seed: u64,
}

/// Why the study could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// A table could not be made.
    #[error("bench tables: {0}")]
    Build(#[from] BuildError),
    /// Memory for the packets.
    #[error("bench tables: packets: {0}")]
    Memory(#[from] mem::ArenaError),
    /// A number makes no sense.
    #[error("bench tables: {what} is out of range ({value}); {remedy}")]
    Option {
        /// Which.
        what: &'static str,
        /// Value seen.
        value: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A packet was not translated as it should be; the figures would mean nothing.
    #[error("bench tables: {structure}: wrong packet (number {position}); this is a fault of Natrix, please report it")]
    Wrong {
        /// In which structure.
        structure: Kind,
        /// The packet's place in the set.
        position: u64,
    },
    /// A structure was full before all flows were in.
    #[error("bench tables: {structure}: is full (at {sessions} sessions); lower --sessions or --load")]
    Full {
        /// Which.
        structure: Kind,
        /// Flows it was made for.
        sessions: u32,
    },
    /// A thread died.
    #[error("bench tables: a thread panicked")]
    Thread,
}

/// Measures, size by size, all structures of a size in turns; `notice` gets what there is to say
/// besides, `row` each result as it comes.
///
/// # Errors
/// [`TablesError`]. What was measured before has been handed out by then.
pub fn run(
    options: &Options,
    mut notice: impl FnMut(Notice),
    mut row: impl FnMut(&Row),
) -> Result<Vec<Row>, TablesError> {
    check(options)?;
    let hz = mem::tsc::frequency_hz(100);
    let kinds = available(options, &mut notice)?;
    let mut rows = Vec::new();
    let mut done = Vec::new();
    for &asked in &options.sessions {
        let sizes: Vec<_> = kinds.iter().map(|kind| (*kind, size_of(*kind, asked, &mut notice))).collect();
        // A size that was cut down is measured once.
        let sizes: Vec<_> = sizes.into_iter().filter(|size| !done.contains(size)).collect();
        for threads in 1..=options.threads {
            let share = |sessions: u32| Size::with_load(sessions / threads as u32, options.load);
            let mut jobs: Vec<_> =
                sizes.iter().map(|(kind, sessions)| Job::new(*kind, share(*sessions), threads)).collect();
            Job::measure_all(&mut jobs, options, hz)?;
            for job in jobs {
                let result = report::row(job.kind, job.size.sessions * threads as u32, &job.results(), hz);
                row(&result);
                rows.push(result);
            }
        }
        done.extend(sizes);
    }
    Ok(rows)
}

/// The structures that this program was built with. Starts DPDK if it is among them.
fn available(options: &Options, notice: &mut impl FnMut(Notice)) -> Result<Vec<Kind>, TablesError> {
    let mut kinds = options.structures.clone();
    if !kinds.contains(&Kind::DpdkHash) {
        return Ok(kinds);
    }
    #[cfg(feature = "dpdk")]
    {
        let largest = options.sessions.iter().copied().max().unwrap_or(0);
        let bytes = dpdk_hash::memory_bytes(largest) * 2;
        let huge =
            packet_io::dpdk::hash::start_without_ports(bytes).map_err(|error| BuildError::Dpdk(error.to_string()))?;
        if !huge {
            notice(Notice::DpdkOnPlainPages);
        }
    }
    #[cfg(not(feature = "dpdk"))]
    {
        notice(Notice::NoDpdk);
        kinds.retain(|kind| *kind != Kind::DpdkHash);
    }
    kinds.dedup();
    Ok(kinds)
}

/// The size a structure is measured at: what was asked for, but no more than its limit.
fn size_of(kind: Kind, asked: u32, notice: &mut impl FnMut(Notice)) -> u32 {
    let limit = kind.sessions_max();
    if asked > limit {
        notice(Notice::Capped { structure: kind, asked, limit });
    }
    asked.min(limit)
}

/// Flows of one size at most: the external addresses and the 26 bits of Natrix's own mapping index
/// allow no more.
const SESSIONS_MAX: u32 = (1 << 26) - 1;

fn check(options: &Options) -> Result<(), TablesError> {
    let out_of_range = |what, value: String, remedy| Err(TablesError::Option { what, value, remedy });
    let cpus = core_affinity::get_core_ids().map_or(1, |cores| cores.len());
    if options.threads == 0 || options.threads > cpus {
        return out_of_range("--threads", options.threads.to_string(), "give 1 up to the number of CPUs");
    }
    if options.sessions.is_empty() || options.structures.is_empty() {
        return out_of_range("--sessions or --structures", "none".to_owned(), "give at least one of each");
    }
    let least = structure::BURST as u32 * options.threads as u32;
    for &sessions in &options.sessions {
        if sessions < least || sessions > SESSIONS_MAX {
            return out_of_range("--sessions", sessions.to_string(), "give 64 for each thread to 67108863 in all");
        }
    }
    if options.load == 0 || options.load > 1_024 {
        return out_of_range("--load", options.load.to_string(), "give 1 to 1024");
    }
    if !(options.seconds >= 0.0 && options.seconds <= 600.0) {
        return out_of_range("--seconds", options.seconds.to_string(), "give 0 to 600");
    }
    Ok(())
}
