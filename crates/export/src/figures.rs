//! How the log is doing, for `natrix show status` and `natrix show counters`.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::sync::Mutex;
use std::sync::PoisonError;

/// Written by the exporter, read by anyone.
#[derive(Debug, Default)]
pub struct Figures {
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) rotations: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) lag_us: AtomicU64,
    pub(crate) failing: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// [`Figures`] at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FiguresView {
    /// Records written.
    pub records: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Attempts to open, write, sync or rotate that failed.
    pub errors: u64,
    /// Times the file was rotated.
    pub rotations: u64,
    /// Records that wait in rings or buffers.
    pub waiting: u64,
    /// Age of the oldest record that waited when records were last taken or written; 0 when none did.
    pub lag_us: u64,
    /// Whether the last attempt failed, so that nothing is written at the moment.
    pub failing: bool,
    /// What the system said last.
    pub last_error: Option<String>,
}

impl Figures {
    /// All of them.
    pub fn view(&self) -> FiguresView {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        FiguresView {
            records: of(&self.records),
            bytes: of(&self.bytes),
            errors: of(&self.errors),
            rotations: of(&self.rotations),
            waiting: of(&self.waiting),
            lag_us: of(&self.lag_us),
            failing: of(&self.failing) != 0,
            last_error: self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    pub(crate) fn failed(&self, what: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.to_owned());
    }
}
