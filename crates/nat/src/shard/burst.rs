//! Passes over a whole burst.

pub(in crate::shard) mod created;
pub(in crate::shard) mod endpoint_dependent;
pub(in crate::shard) mod established;
pub(in crate::shard) mod first_packet;
mod judged_anew;
mod new_subscribers;
pub(in crate::shard) mod rules;
