//! The timers before the last change. They show how long sessions have been idle since before it.

use crate::state::timers::Timers;
use crate::time::Duration;
use crate::time::Instant;

#[derive(Debug)]
pub(crate) struct FormerTimers {
    timers: Timers,
    /// `None` during the first poll under the new timers.
    changed: Option<Instant>,
}

impl FormerTimers {
    pub(crate) fn new(timers: Timers) -> FormerTimers {
        FormerTimers { timers, changed: Some(Instant::ORIGIN) }
    }

    pub(crate) fn follow(&mut self, before: &mut Timers) {
        core::mem::swap(&mut self.timers, before);
        self.changed = None;
    }

    #[inline]
    pub(crate) fn note_time(&mut self, now: Instant) {
        if self.changed.is_none() {
            self.changed = Some(now);
        }
    }

    /// How long a session has been idle that ends at `expires`: by `present`, its lifetime now, or
    /// by its lifetime under these timers if its last packet came before the change.
    pub(crate) fn idle(
        &self,
        now: Instant,
        expires: Instant,
        present: Duration,
        lifetime: impl Fn(&Timers) -> Duration,
    ) -> Duration {
        let former = lifetime(&self.timers);
        let since_change = now.saturating_since(self.changed.unwrap_or(now));
        let left = expires.saturating_since(now);
        let since = |lifetime: Duration| Duration::from_micros(lifetime.as_micros().saturating_sub(left.as_micros()));
        let is_of = |lifetime: Duration| left <= lifetime;
        let is_by_present = is_of(present) && since(present) <= since_change;
        let is_by_former = is_of(former) && since(former) >= since_change;
        if is_by_former && !is_by_present { since(former) } else { since(present) }
    }
}
