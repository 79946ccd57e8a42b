//! How full the fullest pool is: found by one worker, read by all, so that timers adapt alike.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering;

use crate::types::Protocol;

/// In percent, by protocol.
#[derive(Debug, Default)]
pub(crate) struct Pressure([AtomicU8; Protocol::COUNT]);

impl Pressure {
    pub(crate) fn set(&self, percent: [u8; Protocol::COUNT]) {
        for (cell, percent) in self.0.iter().zip(percent) {
            // Other workers read this line at each poll, so write only changes.
            if cell.load(Ordering::Relaxed) != percent {
                cell.store(percent, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn percent(&self) -> [u8; Protocol::COUNT] {
        [0, 1, 2].map(|protocol| self.0[protocol].load(Ordering::Relaxed))
    }
}
