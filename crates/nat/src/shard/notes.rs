//! What is told of mappings that begin and end.

use super::Shard;
use crate::time::Instant;

impl Shard {
    /// A mapping was made.
    #[inline]
    pub(super) fn note_mapping_created(&mut self, _now: Instant, _index: u32) {}

    /// A mapping is about to end; its record still says all of it.
    #[inline]
    pub(super) fn note_mapping_ended(&mut self, _now: Instant, _index: u32) {}
}
