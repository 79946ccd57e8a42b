//! The store of the event log: which subscriber held which external endpoint when, for years.
//!
//! ```text
//!   events ─► journal (order of time) ─► segments (sorted, compressed) ─► longer segments
//!                     └──────────── catalogue: a chain of entries with a signed head ────┘
//! ```
//!
//! | file | content |
//! |---|---|
//! | `catalogue` | the chain: boots, clock settings, segments, deletions |
//! | `catalogue.copy` | a copy of it, for a start or an answer after damage to it |
//! | `head` | the signed head of the chain |
//! | `journal-N` | frames from number N on that no segment has yet |
//! | `spool-N` | the same after its segment was sealed, for sinks that have not read it |
//! | `cursor-NAME` | the position of the sink of that name |
//! | `segment-N` | intervals, sorted by external endpoint and start |
//! | `lookups` | the holder that was looked up, when, for which case |
//! | `lock` | held by the process that writes |
//! | `damaged-N`, `damaged-store-N` | damaged files that a start put aside |
//!
//! The rings of the workers are files in memory (`rings`), where the next writer finds what a
//! killed one left.
//!
//! The rule of every answer: never a wrong holder, and no "no record" for a time that records do
//! not cover. `docs/logging.md` describes the format.

mod aside;
mod builder;
mod catalogue;
mod codec;
mod columns;
mod error;
mod folder;
mod follow;
#[doc(hidden)]
pub mod fuzzing;
mod generate;
pub(crate) mod hosts;
mod journal;
pub mod lookups;
mod merge;
mod open;
mod reader;
mod replay;
mod reserve;
pub mod rings;
mod row;
mod segment;
mod sort;
pub(crate) mod unwritten;
mod verify;
mod writer;

pub use builder::Gap;
pub use catalogue::Head;
pub use catalogue::Moment;
pub use catalogue::Names;
pub use error::StoreError;
pub use follow::CursorFile;
pub use follow::Follower;
pub use follow::Position;
pub use follow::PutAside;
pub use follow::Seen;
pub use follow::Start;
pub use generate::Generated;
pub use generate::Generator;
pub use hosts::HostPrefix;
pub use reader::Bounds;
pub use reader::Edition;
pub use reader::Found;
pub use reader::Holder;
pub use reader::Interval;
pub use reader::Question;
pub use reader::Store;
pub use reader::Until;
pub use replay::Replay;
pub use row::What;
pub use verify::GapFound;
pub use verify::Stat;
pub use verify::Verified;
pub use verify::verify;
pub use verify::verify_text;
pub(crate) use writer::Age;
pub use writer::Expired;
pub use writer::Health;
pub use writer::StoreOptions;
pub use writer::StoreWriter;
