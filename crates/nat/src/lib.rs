//! The engine: every NAT decision and all NAT state, one shard per worker.
//!
//! This crate knows no clock, no thread, no file, no socket and no log text: `now` and random bits are
//! arguments. Nothing is allocated after a shard is built.

#![forbid(unsafe_code)]

mod fifo_map;
pub mod fragments;
pub mod icmp_quote;
pub mod identification;
pub mod own_icmp;
pub mod packet;
pub mod rate_limit;
pub mod settings;
pub mod split;
pub mod tcp;
pub mod time;
pub mod types;
pub mod unsolicited_syn;
pub mod verdict;

pub use packet::Outcome;
pub use packet::Packet;
pub use settings::Settings;
pub use time::Duration;
pub use time::Instant;
pub use types::Protocol;
pub use verdict::Counters;
pub use verdict::Verdict;
