//! Figures of the log for `natrix show status` and `natrix show counters`.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::medium::Taken;
use crate::store::Age;
use crate::store::Expired;
use crate::store::Health;
use crate::store::StoreOptions;

/// The exporter writes them, and any thread may read them.
#[derive(Debug, Default)]
pub struct Figures {
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) rotations: AtomicU64,
    taken: Mutex<(u64, Option<Taken>)>,
    pub(crate) waiting: AtomicU64,
    pub(crate) lag_us: AtomicU64,
    pub(crate) failing: AtomicU64,
    last_error: Mutex<Option<String>>,
    health: Mutex<Health>,
    /// Of a store: what retention has deleted since the last question, and what there is.
    expired: Mutex<Expired>,
    ages: Mutex<Vec<Age>>,
}

/// A reading of [`Figures`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FiguresView {
    /// Records written.
    pub records: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Failed attempts to open, write, sync or rotate.
    pub errors: u64,
    /// Rotations of the file.
    pub rotations: u64,
    /// Times that another program took the file, and what it did the last time.
    pub taken: (u64, Option<Taken>),
    /// Records waiting in rings or buffers.
    pub waiting: u64,
    /// Age of the oldest waiting record at the last take or write; 0 without one.
    pub lag_us: u64,
    /// True if the last attempt failed and nothing is being written.
    pub failing: bool,
    /// The last error of the system.
    pub last_error: Option<String>,
    /// Of a store: segments, gaps, bytes.
    pub health: Health,
}

impl Figures {
    /// Reads all figures.
    pub fn view(&self) -> FiguresView {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        FiguresView {
            records: of(&self.records),
            bytes: of(&self.bytes),
            errors: of(&self.errors),
            rotations: of(&self.rotations),
            taken: self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            waiting: of(&self.waiting),
            lag_us: of(&self.lag_us),
            failing: of(&self.failing) != 0,
            last_error: self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            health: *self.health.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub(crate) fn set_health(&self, health: Health) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
        self.bytes.store(health.bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_taken(&self, taken: Taken) {
        let mut known = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *known = (known.0 + 1, Some(taken));
    }

    pub(crate) fn add_expired(&self, expired: Expired) {
        self.expired.lock().unwrap_or_else(PoisonError::into_inner).join(expired);
    }

    pub(crate) fn take_expired(&self) -> Expired {
        core::mem::take(&mut *self.expired.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_ages(&self, ages: Vec<Age>) {
        *self.ages.lock().unwrap_or_else(PoisonError::into_inner) = ages;
    }

    pub(crate) fn expiring(&self, options: &StoreOptions, now_us: u64) -> Expired {
        options.expiring(&self.ages.lock().unwrap_or_else(PoisonError::into_inner), now_us)
    }

    /// Sets the number of waiting records and the age of the oldest that was taken and not written.
    pub(crate) fn set_waiting(&self, waiting: u64, now_us: u64, oldest_us: u64) {
        self.waiting.store(waiting, Ordering::Relaxed);
        let lag_us = if oldest_us == u64::MAX { 0 } else { now_us.saturating_sub(oldest_us) };
        self.lag_us.store(lag_us, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, what: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.to_owned());
    }
}
