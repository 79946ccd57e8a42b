//! Configuration changes in one worker.

pub(in crate::shard) mod adopt;
pub(crate) mod census;
pub(in crate::shard) mod existing_state;
pub(in crate::shard) mod next_mapping;
mod stay;
