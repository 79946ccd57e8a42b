//! The engine: every NAT decision and all NAT state, one shard per worker.
//!
//! It uses no clock, thread, file or socket and writes no log text: `now` and random bits are
//! arguments. After a shard is built, packets allocate nothing; answers to clients may.

#![forbid(unsafe_code)]

pub mod event;
mod external;
mod headers;
#[doc(hidden)]
pub mod pieces;
mod policy;
pub mod random;
mod reload;
pub mod routes;
mod rows;
pub mod settings;
mod shard;
mod show;
mod snapshot;
mod state;
mod steps;
pub mod tables;
pub mod time;
pub mod types;
mod upkeep;
pub mod verdict;

pub use external::address_slots;
pub use external::blocks;
pub use external::deterministic;
pub use external::guaranteed_ports;
pub use external::load_balancing;
pub use external::ports;
pub use external::static_mapping;
pub use external::static_mapping::StaticMappings;
pub use headers::icmp_quote;
pub use headers::identification;
pub use headers::own_icmp;
pub use headers::own_icmp6;
pub use headers::packet;
pub use headers::packet::Outcome;
pub use headers::packet::Packet;
pub use headers::split;
pub use policy::class;
pub use policy::origin;
pub use policy::rate_limit;
pub use policy::redirection;
pub use policy::rules;
pub use policy::stand_in;
pub use reload::already_held::AlreadyHeld;
pub use reload::change;
pub use reload::outlook::Outlook;
pub use reload::outlook::RuleChanges;
pub use rows::Prospect;
pub use settings::Settings;
pub use shard::Affected;
pub use shard::Census;
pub use shard::Denial;
pub use shard::Fates;
pub use shard::Held;
pub use shard::Named;
pub use shard::Onward;
pub use shard::PoolCensus;
pub use shard::Shard;
pub use shard::Successor;
pub use show::view;
pub use snapshot::addresses;
pub use snapshot::memory;

pub use snapshot::shared::BuildError;
pub use snapshot::shared::NextHopView;
pub use snapshot::shared::Shared;
pub use snapshot::slices_in_blocks::SliceHolds;
pub use snapshot::slices_in_blocks::SlicePlan;
pub use state::delta;
pub use state::delta::Delta;
pub use state::delta::GrantDelta;
pub use state::fragments;
pub use state::grant;
pub use state::grant_record::GrantRecord;
pub use state::held_syn;
pub use state::reassembly;
pub use state::table;
pub use state::tcp;
pub use steps::view::View;
pub use time::Duration;
pub use time::Instant;
pub use types::Protocol;
pub use verdict::Counters;
pub use verdict::Verdict;
