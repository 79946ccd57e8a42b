//! What several workers share about ports with flows: [`Claims`] and [`SharedMap`].
//!
//! With one worker its own tables are complete. With several, a port taken by one worker may carry
//! flows of all:
//!
//! ```text
//!   port table   entry of the port: its home (the worker that took it), workers with flows
//!   claims       outside five-tuple ─► its worker: keeps it unique, and steers its packets
//!   map          the shared ports, so that a worker without any finds those of others
//! ```
//!
//! So a pool is used to its last five-tuple whatever the number of workers (ADR 11). The price is
//! one or two atomic instructions for each new flow, and none for a packet of an existing flow.

use mem::ArenaError;
use mem::Need;

mod claims;
mod map;

pub(crate) use claims::Claims;
pub(crate) use map::SharedMap;

pub(crate) struct BetweenWorkers {
    pub(crate) claims: Claims,
    pub(crate) map: SharedMap,
}

impl BetweenWorkers {
    pub(crate) fn new(places: usize, flows_max: usize) -> Result<BetweenWorkers, ArenaError> {
        Ok(BetweenWorkers { claims: Claims::new(flows_max)?, map: SharedMap::new(places)? })
    }

    pub(crate) fn needs(places: usize, flows_max: usize) -> [Need; 3] {
        let [bits, counts] = SharedMap::needs(places);
        [Claims::need(flows_max), bits, counts]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.claims.bytes() + self.map.bytes()
    }
}
