//! Everything around the engine: workers, clock, steering, hand-off, neighbours, control socket.
//!
//! ```text
//!   ports ─► Worker 0 ─► Shard 0        control socket ─► server threads
//!     │         ▲ rings                        │ mailboxes
//!     └────► Worker 1 ─► Shard 1  ◄────────────┘
//! ```
//!
//! [`worker::Worker`] has neither thread nor clock. `run` gives it a thread and DPDK ports,
//! `replay` gives it captures and their time, tests and simulations give it memory and a virtual
//! clock.

pub mod adoption;
pub mod audit;
mod below;
pub mod change;
pub mod claims;
pub mod clock;
pub mod conflict;
pub mod crossing;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod event_log;
pub mod fleet;
mod grants;
pub mod http_group;
pub mod instance;
pub mod ipv6;
pub mod kernel;
pub mod links;
pub mod log;
pub mod machine;
pub mod mailbox;
pub mod neighbour;
mod next_hop;
pub mod notify;
pub mod outlet;
pub mod quarantine;
pub mod replay;
pub mod rounds;
pub mod routing;
pub mod run;
pub mod running;
pub mod saved;
pub mod server;
pub mod sinks;
pub mod trace;
pub mod watchdog;
pub mod worker;

pub use links::InterfaceLink;
pub use worker::LinkMode;
pub use worker::Worker;
pub use worker::WorkerOptions;
pub use worker::build_workers;
