//! External addresses and their ports. Nothing here knows a subscriber's record.

pub mod address_slots;
pub(crate) mod between_workers;
pub mod blocks;
pub mod deterministic;
pub mod guaranteed_ports;
pub mod load_balancing;
pub mod ports;
pub mod static_mapping;
