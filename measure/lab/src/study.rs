//! Studies: published experiments, repeated on today's machine, with the paper's own figures beside
//! ours.
//!
//! ```text
//!   catalogue ─► Plan: runs (each a `natrix` command), charts and tables over their results
//!                  │
//!   runner ────────┤ starts one run after another, keeps each result in a file of its own
//!                  ▼
//!   record ────► StudyRecord: one JSON file, written anew after each run ─► report
//! ```
//!
//! A point of a chart is a command that anybody can type again, and a file with what it printed.

mod catalogue;
mod extract;
mod plan;
mod prices;
mod record;
mod runner;
mod summary;

pub(crate) use catalogue::FINDINGS;
pub use catalogue::Options;
pub(crate) use catalogue::SHARED_CORES;
pub use catalogue::StudyName;
pub(crate) use catalogue::TIMERS;
pub(crate) use catalogue::findings;
pub(crate) use catalogue::timers;
pub use plan::Load;
pub use plan::Plan;
pub use plan::Run;
pub use prices::Price;
pub use prices::PricesError;
pub use record::Paper;
pub use record::RunRecord;
pub use record::StudyRecord;
pub use record::TableRecord;
pub(crate) use runner::CEILINGS;
pub use runner::Progress;
pub use runner::StudyError;
pub use runner::perform;
pub use summary::Summary;
pub(crate) use summary::found;
pub(crate) use summary::summary;
