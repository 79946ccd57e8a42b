//! How whoever writes the log tells the shards that it goes on somewhere else.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

/// How many logs were opened while the instance runs. Whoever writes them counts, the shards look; it lies on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LogsOpened(AtomicU32);

impl LogsOpened {
    /// From here on records go into another log than before, which knows nothing of what lives.
    pub fn count_one(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// How many there were.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
