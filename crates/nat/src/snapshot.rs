//! Settings compiled for the packet path, and what all workers share.

pub mod addresses;
pub mod memory;
pub(crate) mod orphaned;
pub(crate) mod pool_counts;
pub(crate) mod pool_names;
pub(crate) mod pressure;
pub(crate) mod removed_forwards;
pub(crate) mod shared;
pub(crate) mod slices_in_blocks;
pub(crate) mod transition;
