//! Configuration changes in one worker.

pub(in crate::shard) mod adopt;
pub(crate) mod census;
pub(in crate::shard) mod next_mapping;
pub(in crate::shard) mod retell;
pub(in crate::shard) mod stamps;
