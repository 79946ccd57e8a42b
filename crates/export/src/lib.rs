//! NAT events: from the rings of the workers to lines of JSON in a file or on standard output, and
//! from the store to collectors. The crate `lookup` reads the lines back.
//!
//! ```text
//!   ring of worker 0 ─┐
//!   ring of worker 1 ─┼─► exporter (one thread) ─► line ─► LogWriter ─► Medium: file, standard
//!   output
//!   ring of worker n ─┘                                      rotates, syncs, tries again
//! ```
//!
//! Nothing here slows a worker. Records that cannot be written stay in the rings. When the rings
//! are full, the shard decides (`nat::event::BackPressure`).

#![forbid(unsafe_code)]

/// Mode of files that name subscribers: only their user and group read them. The umask of the
/// process may take more away.
pub const FILE_MODE: u32 = 0o640;
/// The same for folders.
pub const FOLDER_MODE: u32 = 0o750;

mod exporter;
mod figures;
mod line;
mod medium;
mod pools;
pub mod sink;
pub mod store;
mod storing;
mod subscriber;
mod utc;
mod writer;

pub use exporter::Clocks;
pub use exporter::Exporter;
pub use exporter::Handle;
pub use exporter::Output;
pub use exporter::Outputs;
pub use figures::Figures;
pub use figures::FiguresView;
pub use line::FilterNames;
pub use line::NO_FORMULAS;
pub use line::Names;
pub use line::Own;
pub use line::write_line;
pub use line::write_own;
pub use medium::Files;
pub use medium::Medium;
pub use medium::Stdout;
pub use medium::Taken;
pub use medium::rotated;
pub use pools::PoolRange;
pub use pools::PoolRanges;
pub use subscriber::HostNames;
pub use subscriber::Subscriber;
pub use utc::UtcParseError;
pub use utc::parse_utc;
pub use utc::utc_text;
pub use writer::LogWriter;
pub use writer::Sync;
pub use writer::WriterOptions;
