//! In-memory benchmarks of the engine. They print figures and compare within one run; none fails on a time.

#![forbid(unsafe_code)]

pub mod engine;
pub mod memory_bound;
mod needs;

pub use engine::BenchError;
pub use engine::Mode;
pub use engine::Options;
pub use engine::Report;
