//! What several workers share about ports with flows (ADR 11).
//!
//! [`Claims`] keeps outside five-tuples unique and steers packets; [`SharedMap`] shows the ports
//! that others share. A new flow costs one or two atomic instructions, a packet of an existing flow
//! none.

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
