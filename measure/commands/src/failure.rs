//! What can make a benchmark or a command of the lab fail.

use std::io;

use crate::bench_tables::BenchTablesFailure;

/// Why the command failed; `Display` is what follows `error: `.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The result could not be written.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// The command needs DPDK.
    #[error("{command}: this build has no DPDK; {remedy}")]
    NoDpdk {
        /// The command.
        command: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The lab.
    #[error(transparent)]
    Lab(#[from] crate::lab::LabFailure),
    /// A study or a report of the lab.
    #[error(transparent)]
    LabStudy(#[from] crate::lab_study::StudyFailure),
    /// The benchmark of the engine.
    #[error(transparent)]
    Engine(#[from] bench::BenchError),
    /// The benchmark of the log's store.
    #[error(transparent)]
    Log(#[from] bench::log::LogError),
    /// The benchmark of the rule search.
    #[error(transparent)]
    Rules(#[from] bench::rules::RulesError),
    /// The benchmark of the table of routes.
    #[error(transparent)]
    Routes(#[from] bench::routes::RoutesError),
    /// The benchmark of what must not delay packets.
    #[error(transparent)]
    Stalls(#[from] bench::stalls::StallsError),
    /// The benchmark of several workers.
    #[error(transparent)]
    Scaling(#[from] bench::scaling::ScalingError),
    /// The benchmark of the whole path.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Forward(#[from] bench::forward::ForwardError),
    /// The study of tables.
    #[error(transparent)]
    Tables(#[from] BenchTablesFailure),
}
