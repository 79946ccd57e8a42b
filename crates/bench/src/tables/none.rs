//! No structure at all: the work every packet costs whatever the table (figure 1 of the paper).
//!
//! The n-th packet gets the n-th translation, without looking anything up. So packets of one flow get different external
//! endpoints: this is no NAT, but what all others are measured against.

use super::structure::BuildError;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Size;

/// Nothing.
pub(super) struct None;

impl Lookup for None {
    fn new(_: Size) -> Result<None, BuildError> {
        Ok(None)
    }

    #[inline(always)]
    fn find_or_insert(&mut self, _: Key, new: u32) -> Result<u32, Full> {
        Ok(new)
    }

    fn bytes(&self) -> usize {
        0
    }
}
