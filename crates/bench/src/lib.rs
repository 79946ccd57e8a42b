//! In-memory benchmarks of the engine.
