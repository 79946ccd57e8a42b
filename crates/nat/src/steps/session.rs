use crate::steps::view::View;
use crate::time::Instant;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionPlace {
    /// Admitted with the mapping.
    First,
    /// Replaces an ended session.
    Again,
    Extra,
}

impl View<'_> {
    /// Nothing is evicted (RFC 6888 REQ-11d).
    pub(crate) fn decide_session(&self, now: Instant, index: u32) -> Result<SessionPlace, Verdict> {
        self.decide_session_beside(now, index, 0)
    }

    /// After the end of one of the mapping's further sessions.
    pub(crate) fn decide_session_instead(&self, now: Instant, index: u32) -> Result<SessionPlace, Verdict> {
        self.decide_session_beside(now, index, -1)
    }

    /// `change`: so many further sessions of the mapping come, or end, first.
    #[inline]
    pub(super) fn decide_session_beside(&self, now: Instant, index: u32, change: i32) -> Result<SessionPlace, Verdict> {
        let mapping = self.state.mappings.get(index);
        if !mapping.has_session() {
            return Ok(SessionPlace::First);
        }
        if !mapping.has_live_session(now) {
            return self.admit_session_beside(now, index, false, change).map(|()| SessionPlace::Again);
        }
        let limit = self.snapshot.settings().limits.sessions_per_mapping_max.min(u32::from(u16::MAX));
        if u32::from(mapping.extra_count()).saturating_add_signed(change) + 1 >= limit {
            return Err(Verdict::SessionLimit);
        }
        self.admit_session_beside(now, index, true, change)?;
        if self.state.sessions.has_room_for(1_usize.saturating_add_signed(change as isize)) {
            Ok(SessionPlace::Extra)
        } else {
            Err(Verdict::SessionTableFull)
        }
    }
}
