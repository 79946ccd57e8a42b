//! Work between bursts, limited per call.

pub(in crate::shard) mod blocks;
pub(in crate::shard) mod hold_down;
pub(in crate::shard) mod lapse;
pub(in crate::shard) mod shared_ports;
pub(in crate::shard) mod shorten;
pub(in crate::shard) mod sweep;
pub(in crate::shard) mod watch;
