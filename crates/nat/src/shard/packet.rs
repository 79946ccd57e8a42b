//! Processes one packet: asks [`crate::steps`], commits, rewrites.

pub(in crate::shard) mod activation;
pub(in crate::shard) mod endpoint_dependent;
pub(in crate::shard) mod errors;
pub(in crate::shard) mod fragments;
pub(in crate::shard) mod hairpin;
pub(in crate::shard) mod inbound;
pub(in crate::shard) mod local;
pub(in crate::shard) mod outbound;
pub(in crate::shard) mod targets;
