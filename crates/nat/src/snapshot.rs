//! The settings compiled for the packet path, and what all workers share.

pub mod addresses;
pub mod memory;
pub(crate) mod pool_names;
pub(crate) mod pressure;
pub mod routes;
pub(crate) mod shared;
