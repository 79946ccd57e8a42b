//! The engine: every NAT decision and all NAT state, one shard per worker.
//!
//! This crate knows no clock, no thread, no file, no socket and no log text: `now` and random bits are
//! arguments. Nothing is allocated after a shard is built.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod balance;
pub mod blocks;
pub mod change;
pub mod class;
mod commons;
pub mod deterministic;
mod displaced;
mod entitled;
pub mod event;
mod fifo_map;
mod flow;
pub mod fragments;
mod held_ports;
pub mod icmp_quote;
pub mod identification;
mod leftovers;
mod looked_over;
mod mapping;
pub mod memory;
pub mod origin;
mod outlook;
pub mod own_icmp;
pub mod packet;
mod parse;
#[doc(hidden)]
pub mod pieces;
mod pool_names;
pub mod ports;
mod pressure;
pub mod random;
pub mod rate_limit;
pub mod redirection;
pub mod reserve;
mod rewrite;
pub mod route;
pub mod rules;
mod session;
pub mod settings;
mod shard;
mod shared;
mod shared_ports;
mod slices_in_blocks;
pub mod slots;
pub mod split;
pub mod statics;
mod subscriber;
pub mod table;
pub mod tables;
pub mod tcp;
pub mod time;
mod timers;
mod turned_away;
pub mod types;
pub mod unsolicited_syn;
pub mod verdict;
pub mod view;

pub use entitled::Entitled;
pub use outlook::Outlook;
pub use outlook::RuleChanges;
pub use packet::Outcome;
pub use packet::Packet;
pub use settings::Settings;
pub use shard::Affected;
pub use shard::Census;
pub use shard::Denial;
pub use shard::Fates;
pub use shard::Held;
pub use shard::Named;
pub use shard::Onward;
pub use shard::PoolCensus;
pub use shard::Prospect;
pub use shard::Shard;
pub use shard::Successor;
pub use shared::BuildError;
pub use shared::Shared;
pub use slices_in_blocks::SliceHolds;
pub use slices_in_blocks::SlicePlan;
pub use statics::StaticMappings;
pub use time::Duration;
pub use time::Instant;
pub use types::Protocol;
pub use verdict::Counters;
pub use verdict::Verdict;
