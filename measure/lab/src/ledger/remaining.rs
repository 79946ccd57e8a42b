//! What phase 1 lost, once more: for preparations, in which connections are made and nothing is
//! measured.

use super::Faults;
use super::Noted;
use super::StateTable;
use crate::frame::Seen;
use crate::frame::Way;
use crate::tester::Traffic;
use crate::tuples::Endpoint;
use crate::tuples::TupleSpace;

/// Each four-tuple of UDP that a state table has not, Initiator to Responder.
pub struct Remaining<'a> {
    space: &'a TupleSpace,
    missing: Vec<u32>,
    /// What the Responder knows, with what came now.
    pub table: StateTable,
    /// Frames that arrived and should not have, or not so.
    pub faults: Faults,
}

impl<'a> Remaining<'a> {
    /// For what is missing in a table. 4 bytes each.
    pub fn new(space: &'a TupleSpace, table: StateTable) -> Remaining<'a> {
        let missing = (0..table.room() as u32).filter(|tuple| table.external(*tuple).is_none()).collect();
        Remaining { space, missing, table, faults: Faults::default() }
    }

    /// Frames to be sent.
    pub fn frames(&self) -> u64 {
        self.missing.len() as u64
    }

    /// Connections still missing.
    pub fn left(&self) -> u64 {
        self.table.room() - self.table.len()
    }
}

impl Traffic for Remaining<'_> {
    fn tuple(&self, _: Way, sequence: u32) -> u32 {
        self.missing.get(sequence as usize).copied().unwrap_or_default()
    }

    fn next(&mut self, way: Way, sequence: u32) -> (u32, Endpoint, Endpoint) {
        let number = self.tuple(way, sequence);
        let tuple = self.space.at(u64::from(number));
        (number, tuple.inside, tuple.remote)
    }

    fn arrived(&mut self, _: Way, seen: &Seen, _: u64) {
        if let Some(Noted::New) = self.table.note(self.space, seen, &mut self.faults) {
            self.table.filled += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.table.len() == self.table.room()
    }
}
