//! Tests of whole instances on in-memory ports. One program: each further one would take as long
//! to build as the daemon. What counts allocations, limits memory or sets the environment has a
//! program of its own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/disk.rs"]
mod disk;
#[path = "../common/instance.rs"]
mod instance;

mod event_log;
mod find;
mod find_vrf;
mod full_disk;
mod lines;
mod reload;
mod replay;
mod sinks;
mod start;
mod store;
