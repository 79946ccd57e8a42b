//! Notifies the shards of a newly opened log.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

/// Logs opened so far: the exporter counts, shards read. Has its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LogsOpened(AtomicU32);

impl LogsOpened {
    /// Later records go into a new log, which lacks live state.
    pub fn count_one(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Logs opened so far.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
