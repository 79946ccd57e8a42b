//! The twin of each port in the kernel, so that routing daemons, LLDP and SSH run on it as on any
//! other port.
//!
//! ```text
//!  worker: frame to Natrix itself ──► class, rate ──► ring ──► thread ──► TAP ──► kernel
//!  worker: transmit queue ◄────────── copied ◄─────── ring ◄── thread ◄── TAP ◄── kernel
//!  worker: unknown neighbour ───────► ring ──► thread ──► netlink: resolve it
//!  worker: neighbour cache ◄───────── ring ◄── thread ◄── netlink: the kernel's neighbours
//! ```
//!
//! A worker makes no system call for any of it, and takes frames of the kernel after its own. On
//! such a port, ARP and Neighbor Discovery belong to the kernel. Natrix answers only for pool
//! addresses, which the kernel does not have.

pub mod class;
mod connections;
pub mod end;
pub mod ingress;
pub mod netlink;
pub mod next_hop_objects;
mod probes;
mod questions;
mod sent;
pub mod setup;
pub mod thread;

pub use end::KernelEnd;

#[cfg(test)]
mod tests;
