//! NAT events: from the workers' rings to lines of JSON in a file or on standard output, and back from the lines to who held
//! an external endpoint at a time.
//!
//! ```text
//!   ring of worker 0 ─┐
//!   ring of worker 1 ─┼─► exporter (one thread) ─► line ─► LogWriter ─► Medium: file, standard output
//!   ring of worker n ─┘                                      rotates, syncs, tries again
//! ```
//!
//! Nothing here slows a worker. What can not be written stays in the rings; what happens when they are full is decided by the
//! shard (`nat::event::BackPressure`).

#![forbid(unsafe_code)]

mod exporter;
mod figures;
pub mod history;
mod line;
mod medium;
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
pub use line::Names;
pub use line::write_line;
pub use medium::Files;
pub use medium::Medium;
pub use medium::Stdout;
pub use utc::UtcParseError;
pub use utc::parse_utc;
pub use utc::utc_text;
pub use writer::LogWriter;
pub use writer::Sync;
pub use writer::WriterOptions;
