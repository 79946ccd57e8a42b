//! IPv6 of one worker: own addresses, neighbour messages, echo, and errors of its own (RFC 4443,
//! RFC 4861, RFC 4862). Without a clock, a socket or a thread.
//!
//! Natrix is a host on its IPv6 links so far: it answers for its addresses and forwards nothing. A
//! frame with IPv6 leaves the burst in `Worker::take_frame`, so packets of IPv4 do not pass here.
//!
//! The first worker that can send on an interface probes for duplicates there. All workers follow
//! what it, or any of them, finds out ([`OwnAddresses`]).

pub mod node;
pub mod own;
mod send;

use nat::types::InterfaceId;
pub use node::Learnt6;
pub use node::Node;
pub use own::OwnAddresses;
use wire::ethernet::MacAddress;

/// Another station has or claims an own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict6 {
    /// Interface it was seen on.
    pub interface: InterfaceId,
    /// The address.
    pub address: u128,
    /// The station that sent the message.
    pub station: MacAddress,
    /// The address is not used any more.
    pub is_given_up: bool,
}
