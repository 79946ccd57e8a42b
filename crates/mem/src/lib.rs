//! Hugepage arenas, prefetching, single-producer single-consumer rings, and a few system calls: the
//! only unsafe code outside packet-io.

#[cfg(feature = "allocator")]
pub mod allocator;
pub mod arena;
pub mod available;
pub mod lanes;
pub mod pages;
pub mod peer;
pub mod prefetch;
pub mod reserved;
pub mod ring;
pub mod stock;
pub mod system_clock;
pub mod tsc;
pub mod turn;

pub use arena::Arena;
pub use arena::ArenaError;
pub use arena::missed_bytes;
pub use lanes::are_lanes_within;
pub use lanes::equal_lanes;
pub use pages::PageKind;
pub use peer::peer_groups;
pub use prefetch::prefetch;
pub use prefetch::prefetch_near;
pub use prefetch::prefetch_write;
pub use reserved::Reserved;
pub use stock::Need;
pub use stock::NotEnough;
pub use stock::Plan;
pub use stock::Stock;
pub use turn::Turn;
/// The bound on records of an [`Arena`]: `#[derive(zerocopy::FromZeros)]` on `#[repr(C)]` records.
pub use zerocopy::FromZeros;
