//! Burst receive and send: DPDK ethdev through a small C shim, pcap files, in-memory ports.
//!
//! A worker is generic over [`Io`], its own view of all physical ports:
//!
//! | implementation | for | module |
//! |---|---|---|
//! | `DpdkIo` | traffic (cargo feature `dpdk`) | `dpdk` |
//! | [`MemoryIo`] | simulation, tests, benchmarks | [`memory`] |
//! | [`Replay`] | `natrix replay`: captures in, captures out, their time as clock | [`replay`] |
//!
//! Nothing here allocates between start and stop, except [`Replay`], which reads and writes files.

mod burst;
pub mod capture;
mod claim;
#[cfg(feature = "dpdk")]
pub mod dpdk;
mod io;
pub mod memory;
pub mod replay;
pub mod tap;

pub use burst::BURST_MAX;
pub use burst::Burst;
pub use burst::Drain;
pub use claim::Claims;
pub use claim::Held;
pub use claim::Unclaimed;
pub use claim::driver_of;
pub use claim::held;
pub use claim::peer_pid;
pub use io::Buffer;
pub use io::Io;
pub use io::PortIndex;
pub use io::PortStatistics;
pub use io::TransportChecksum;
pub use memory::MemoryBuffer;
pub use memory::MemoryIo;
pub use replay::Replay;
