//! What is reported: one row for each structure, size and number of threads.

use core::fmt;
use std::io;
use std::io::Write;

use serde::Serialize;

use super::kind::Kind;
use super::measure::ThreadResult;

/// One result, in the fixed fields of the design and the two halves of the cost.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The structure.
    pub structure: Kind,
    /// Flows in all, over all threads.
    pub sessions: u32,
    /// TSC cycles a packet on its thread, over both passes.
    pub tsc_cycles_per_packet: f64,
    /// Million packets a second, all threads.
    pub mpps: f64,
    /// Bytes of tables a flow.
    pub bytes_per_session: f64,
    /// Threads.
    pub threads: usize,
    /// Of the first packets of flows: looked up, not found, entered.
    pub new_cycles_per_packet: f64,
    /// Of the answers.
    pub answered_cycles_per_packet: f64,
}

/// The row of what the threads measured. `hz` is the rate of the time-stamp counter.
pub(super) fn row(structure: Kind, sessions: u32, threads: &[ThreadResult], hz: f64) -> Row {
    let mean = |of: fn(&ThreadResult) -> f64| threads.iter().map(of).sum::<f64>() / threads.len() as f64;
    Row {
        structure,
        sessions,
        tsc_cycles_per_packet: mean(|thread| thread.cycles),
        // Each thread at its own rate; they ran at the same time.
        mpps: threads.iter().map(|thread| hz / thread.cycles / 1e6).sum(),
        bytes_per_session: mean(|thread| thread.bytes as f64) * threads.len() as f64 / f64::from(sessions),
        threads: threads.len(),
        new_cycles_per_packet: mean(|thread| thread.new_cycles),
        answered_cycles_per_packet: mean(|thread| thread.answered_cycles),
    }
}

/// Something the reader should know beside the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A structure is too slow for the size asked for.
    Capped {
        /// Which.
        structure: Kind,
        /// Flows asked for.
        asked: u32,
        /// Flows it is measured at.
        limit: u32,
    },
    /// This program was built without DPDK.
    NoDpdk,
    /// DPDK's table is at a disadvantage.
    DpdkOnPlainPages,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Capped { structure, asked, limit } => write!(
                f,
                "{structure}: measured at {limit} sessions instead of {asked}; its time grows with the square of them"
            ),
            Notice::NoDpdk => f.write_str("dpdk-hash: left out; this natrix was built without the feature dpdk"),
            Notice::DpdkOnPlainPages => f.write_str(
                "dpdk-hash: runs on plain pages, for there are too few hugepages; the others may have transparent ones",
            ),
        }
    }
}

/// Writes rows as CSV, with a line of column names.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_csv(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "structure,sessions,threads,tsc_cycles_per_packet,mpps,bytes_per_session,new_cycles_per_packet,\
         answered_cycles_per_packet"
    )?;
    for row in rows {
        writeln!(
            out,
            "{},{},{},{:.1},{:.3},{:.1},{:.1},{:.1}",
            row.structure,
            row.sessions,
            row.threads,
            row.tsc_cycles_per_packet,
            row.mpps,
            row.bytes_per_session,
            row.new_cycles_per_packet,
            row.answered_cycles_per_packet
        )?;
    }
    Ok(())
}
