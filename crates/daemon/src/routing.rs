//! Routes: those of the configuration, those of the kernel, and which of them count.
//!
//! ```text
//!  kernel ──► netlink ──► keeper ──► rib: all routes, the best of each prefix ──► fib ──► workers
//! ```
//!
//! The keeper is one thread. Workers look routes up in tables that it changes under them
//! (`nat::routes::live`), so a change of routes is no change of the configuration.

pub mod announcement;
mod default_route;
pub mod family;
pub mod fib;
pub mod keeper;
pub mod record;
pub mod rib;
pub mod shared;
