//! Passes over a whole burst, so that memory is fetched for some packets while others are
//! processed: the short ways of established and of first packets, and their rules.

pub(in crate::shard) mod created;
pub(in crate::shard) mod endpoint_dependent;
pub(in crate::shard) mod established;
pub(in crate::shard) mod first_packet;
pub(in crate::shard) mod rules;
