//! Natrix configuration: TOML text to a validated, compiled snapshot, reporting every fault at once.

#![forbid(unsafe_code)]

mod fault;
mod model;

pub use fault::Fault;
pub use model::Config;
pub use model::Control;
pub use model::Dpdk;
pub use model::DriverKind;
pub use model::Hugepages;
pub use model::InterfaceLink;
pub use model::Log;
pub use model::LogLevel;
pub use model::Port;
pub use model::Workers;
