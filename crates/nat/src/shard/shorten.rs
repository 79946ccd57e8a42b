//! Timers that have become shorter reach sessions that are silent, too: those a full pool wants to be rid of.
//!
//! A record has the time it ends at, which its last packet gave it under the timers in force then. After timers have become shorter
//! the sweep looks at each record once, and whatever would still last for longer than the timer in force ends when that has
//! passed from now on. So nothing ends sooner after its last packet than the timer in force says. What has not been looked at
//! yet lasts as long as it did; timers that become longer apply from the next packet on.

use core::ops::Range;

use super::Shard;
use crate::looked_over::LookedOver;
use crate::mapping::SessionRef;
use crate::settings::Timeouts;
use crate::time::Duration;
use crate::time::Instant;
use crate::timers::Timers;
use crate::types::Protocol;
use crate::types::Side;

/// Further sessions of one mapping that are looked at.
const OTHERS_MAX: u16 = 16;

/// Records that are still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Shortening {
    mappings: LookedOver,
    sessions: LookedOver,
    flows: LookedOver,
}

impl Shortening {
    /// Whether some mappings are.
    #[inline]
    pub(super) fn has_mappings(&self) -> bool {
        self.mappings.is_due()
    }

    /// These mappings were looked at.
    #[inline]
    pub(super) fn looked_at_mappings(&mut self, records: Range<u32>) {
        self.mappings.passed(records);
    }
}

/// The timers before the last change of settings, and when that was.
#[derive(Debug)]
pub(super) struct Former {
    timers: Timers,
    /// None: the workers go by the new ones since less than a poll.
    changed: Option<Instant>,
}

impl Former {
    pub(super) fn new(timers: Timers) -> Former {
        Former { timers, changed: Some(Instant::ORIGIN) }
    }

    /// The settings have changed from those with these timers; the ones kept till now come back in their place.
    pub(super) fn follow(&mut self, before: &mut Timers) {
        core::mem::swap(&mut self.timers, before);
        self.changed = None;
    }

    #[inline]
    pub(super) fn note_time(&mut self, now: Instant) {
        if self.changed.is_none() {
            self.changed = Some(now);
        }
    }
}

/// Whether some timer is shorter than before.
pub(super) fn has_shorter(before: &Timeouts, after: &Timeouts) -> bool {
    let all = |timeouts: &Timeouts| {
        let Timeouts { udp, udp_unanswered, tcp_opening, tcp_established, tcp_closing, icmp, .. } = *timeouts;
        [udp, udp_unanswered, tcp_opening, tcp_established, tcp_closing, icmp]
    };
    all(after).iter().zip(all(before)).any(|(after, before)| *after < before)
}

impl Shard {
    /// Timers have become shorter: all records are to be looked at.
    pub(super) fn shorten_lives(&mut self) {
        self.shortening = Shortening {
            mappings: LookedOver::all_before(self.mappings.walk_end()),
            sessions: LookedOver::all_before(self.sessions.walk_end()),
            flows: LookedOver::all_before(self.flows.walk_end()),
        };
    }

    /// For how long a session has been idle that ends at `expires`, where `lifetime` says how long it lasts by some timers. What ends
    /// later than a packet of today would have it, or by a packet from before today's timers, goes by those before.
    pub(super) fn idle_of(&self, now: Instant, expires: Instant, lifetime: impl Fn(&Timers) -> Duration) -> Duration {
        let (present, former) = (lifetime(&self.lifetimes), lifetime(&self.former.timers));
        let changed = self.former.changed.unwrap_or(now);
        let left = expires.saturating_since(now);
        let since = |lifetime: Duration| Duration::from_micros(lifetime.as_micros().saturating_sub(left.as_micros()));
        let is_of = |lifetime: Duration| left <= lifetime;
        // Whether its last packet came under these timers.
        let is_by_present = is_of(present) && since(present) <= now.saturating_since(changed);
        let is_by_former = is_of(former) && since(former) >= now.saturating_since(changed);
        if is_by_former && !is_by_present { since(former) } else { since(present) }
    }

    /// A mapping that exists, and its first session, last no longer than the timers in force say.
    pub(super) fn shorten_mapping(&mut self, now: Instant, index: u32) {
        let mapping = self.mappings.get(index);
        if !mapping.is_in_use() || mapping.is_condemned() {
            return;
        }
        let (has_session, session_ends) = (mapping.has_session(), mapping.session_expires());
        if has_session && mapping.session_opened_from() == Side::Inside {
            // Its destination port may have got a timer of its own, or lost it.
            let has_own = self.lifetimes.own(mapping.protocol(), mapping.remote_port()).is_some();
            self.mappings.get_mut(index).set_own_timer(has_own);
        }
        let mapping = self.mappings.get(index);
        let limit = now + self.lifetime(index, SessionRef::Inline, mapping.state());
        let without = now + self.sessionless_lifetime(mapping.protocol());
        let protocol = mapping.protocol();
        let others_end = self.others_end(now, index);
        let mapping = self.mappings.get_mut(index);
        let session_limit = if has_session { session_ends.min(limit) } else { Instant::ORIGIN };
        let is_shorter = has_session && session_limit < session_ends;
        if is_shorter {
            mapping.shorten_session(session_limit);
        }
        let ends_together = mapping.extra_count() == 0 && has_session && mapping.expires() == session_ends;
        if ends_together {
            mapping.set_expires(session_limit);
        } else if mapping.extra_count() > 0 && protocol == Protocol::Tcp {
            // It lives as long as the last of its sessions.
            mapping.extend_to(session_limit, is_shorter);
        } else if let Some(others_end) = others_end {
            // Packets that got no session may have kept it alive: for as long as one would have.
            mapping.set_expires(mapping.expires().min(without.max(session_limit).max(others_end)));
        }
    }

    /// When the last further session of a mapping ends under the timers in force, at most. None when that is not known: some have
    /// timers of their own, and there are too many to look at.
    fn others_end(&self, now: Instant, index: u32) -> Option<Instant> {
        let mapping = self.mappings.get(index);
        if mapping.extra_count() > OTHERS_MAX {
            return (!self.lifetimes.has_own(mapping.protocol())).then_some(Instant::ORIGIN);
        }
        let (mut end, mut slot) = (Instant::ORIGIN, mapping.extra_head);
        while slot != 0 {
            let session = self.sessions.get(slot);
            end = end.max(session.expires().min(now + self.lifetime(index, SessionRef::Extra(slot), session.state())));
            slot = session.next;
        }
        Some(end)
    }

    /// The same for a further session.
    #[inline]
    pub(super) fn shorten_session(&mut self, now: Instant, slot: u32) {
        if !self.shortening.sessions.is_due() {
            return;
        }
        self.shortening.sessions.passed(slot..slot + 1);
        let session = self.sessions.get(slot);
        if session.mapping == 0 {
            return;
        }
        let (index, state, session_ends) = (session.mapping, session.state(), session.expires());
        let limit = now + self.lifetime(index, SessionRef::Extra(slot), state);
        if limit < session_ends {
            self.sessions.get_mut(slot).refresh(state, limit);
            let mapping = self.mappings.get_mut(index);
            if mapping.protocol() == Protocol::Tcp {
                mapping.extend_to(limit, true);
            }
        }
    }

    /// The same for a flow.
    #[inline]
    pub(super) fn shorten_flow(&mut self, now: Instant, slot: u32) {
        if !self.shortening.flows.is_due() {
            return;
        }
        self.shortening.flows.passed(slot..slot + 1);
        let flow = self.flows.get(slot);
        if !flow.is_in_use() {
            return;
        }
        let (state, ends) = (flow.state(), flow.expires());
        let limit = now + self.lifetime(0, SessionRef::Flow(slot), state);
        if limit < ends {
            self.refresh(0, SessionRef::Flow(slot), state, limit);
        }
    }
}
