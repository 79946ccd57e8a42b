//! What several workers keep in common about ports that flows share: [`Claims`] and [`SharedMap`].
//!
//! One worker needs none of this: its own tables know all. With several, a port that one of them took may carry flows of all:
//!
//! ```text
//!   port table      entry of the port: its home (the worker that took it) and how many workers have flows there
//!   claims          five-tuple outside ─► the worker whose flow it is: unique, and where its packets go
//!   map             which ports are shared at all, so that a worker without any finds those of others
//! ```
//!
//! So a pool is used to its last five-tuple whatever the number of workers (ADR 11). The price is a locked instruction or two for
//! each flow that is made, none for a packet of one that is there.

use mem::ArenaError;
use mem::Need;

mod claims;
mod map;

pub(crate) use claims::Claims;
pub(crate) use map::SharedMap;

/// See the [module](self).
pub(crate) struct Commons {
    pub(crate) claims: Claims,
    pub(crate) map: SharedMap,
}

impl Commons {
    /// For so many places of the port table and flows of all workers.
    pub(crate) fn new(places: usize, flows_max: usize) -> Result<Commons, ArenaError> {
        Ok(Commons { claims: Claims::new(flows_max)?, map: SharedMap::new(places)? })
    }

    /// The memory `new` is going to take.
    pub(crate) fn needs(places: usize, flows_max: usize) -> [Need; 3] {
        let [bits, counts] = SharedMap::needs(places);
        [Claims::need(flows_max), bits, counts]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.claims.bytes() + self.map.bytes()
    }
}
