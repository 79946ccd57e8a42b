//! Whether a subscriber may have one more mapping: asked before anything is taken for it.

use super::Shard;
use crate::time::Instant;
use crate::types::Protocol;
use crate::verdict::Verdict;

impl Shard {
    /// Whether the subscriber with this record may have one more mapping of this protocol now.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it; nothing is changed then.
    #[inline]
    pub(super) fn admit_mapping(
        &mut self,
        _now: Instant,
        _subscriber: u32,
        _protocol: Protocol,
    ) -> Result<(), Verdict> {
        Ok(())
    }
}
