//! How the exporter notifies the shards of a newly opened log.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

/// Logs opened so far: the exporter counts, the shards read. Has its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LogsOpened(AtomicU32);

impl LogsOpened {
    /// From now on, records go into another log, which has no live state yet.
    pub fn count_one(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// How often that was.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
