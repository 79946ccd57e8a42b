//! Benchmarks: of the engine in memory, and (feature `dpdk`) of the whole path through DPDK
//! drivers. They print figures and compare within one run; none fails on a time.

#![forbid(unsafe_code)]

mod batches;
mod burst_times;
pub mod engine;
pub mod events;
mod family;
mod fill_rates;
#[cfg(feature = "dpdk")]
pub mod forward;
pub mod log;
pub mod memory_bound;
mod needs;
pub mod routes;
pub mod rules;
pub mod scaling;
pub mod stalls;
pub mod tables;
mod traffic;

pub use engine::BenchError;
pub use engine::Mode;
pub use engine::Options;
pub use engine::Report;
pub use events::EventsTo;
pub use family::Family;
