//! What the probe needs of the world: a place inside the NAT, a place outside, and a clock.

use core::time::Duration;

/// Which side of the NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Where the subscribers are.
    Inside,
    /// Where the servers are.
    Outside,
}

impl Side {
    /// The other one.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Inside => Side::Outside,
            Side::Outside => Side::Inside,
        }
    }
}

/// An IPv4 packet that came out of the NAT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// On which side.
    pub side: Side,
    /// When, by the clock of the world.
    pub at: Duration,
    /// The packet, without link header; there may be padding behind it.
    pub packet: Vec<u8>,
}

/// Why the world does not take or give packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// No packet buffer is left.
    #[error("tester: no packet buffer is free; give it more buffers")]
    NoBuffer,
    /// The packet does not fit in a frame.
    #[error("tester: a packet is too long for a frame ({bytes} bytes); report this")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A signal ended it.
    #[error("lab: interrupted before anything was found; start it again")]
    Interrupted,
}

/// Both sides of a NAT, with a clock that is real or not.
pub trait World {
    /// Time since some beginning.
    fn now(&self) -> Duration;

    /// A host on `side` sends this IPv4 packet to the NAT.
    ///
    /// # Errors
    /// When it cannot be sent.
    fn send(&mut self, side: Side, packet: &[u8]) -> Result<(), WorldError>;

    /// The next packet that came out on either side, waiting for it until `until` at most. None
    /// when there is none by then; the clock stands at `until` or later.
    ///
    /// # Errors
    /// When nothing can be received.
    fn next(&mut self, until: Duration) -> Result<Option<Arrival>, WorldError>;
}
