//! What becomes of the state that the first half of a hairpin made when the second half refuses the packet, here or on another worker.
//!
//! It is taken back, unless something else uses it by then. Only where the other subscriber's mapping lets nobody in whom it does not
//! know, it stays: to him it is as if the packet had come from outside, and two who open the way to each other live on that.

use super::Arrival;
use super::Fate;
use super::Shard;
use super::outbound::remote_port;
use crate::event::Cause;
use crate::mapping::SessionRef;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Parsed;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use crate::verdict::VerdictKind;

/// What was made is only a session of a mapping that was there.
const SESSION_ONLY: u32 = 1 << 31;

/// What the first half made: a mapping with its session.
pub(super) fn made_mapping(index: u32) -> u32 {
    index
}

/// What the first half made: a further session of a mapping; 0 where it has the place of an earlier one.
pub(super) fn made_session(index: u32, session: SessionRef) -> u32 {
    if matches!(session, SessionRef::Extra(_)) { index | SESSION_ONLY } else { 0 }
}

/// Whether a packet that ends so came to nothing, and not only because nobody has opened the way from the other side.
fn is_refused(verdict: Verdict) -> bool {
    verdict.kind() == VerdictKind::Dropped && !matches!(verdict, Verdict::Filtered | Verdict::UnsolicitedSyn)
}

impl Shard {
    /// The second half of a hairpin came to this end: takes back what the first one made if it was refused.
    #[inline]
    pub(super) fn after_hairpin<S: Sink>(&mut self, at: Arrival<'_>, bytes: &[u8], fate: Fate, sink: &mut S) -> Fate {
        if at.meta.record != 0
            && let Fate::Done(verdict) = fate
            && is_refused(verdict)
        {
            self.have_taken_back(at, bytes, sink);
        }
        fate
    }

    #[cold]
    fn have_taken_back<S: Sink>(&mut self, at: Arrival<'_>, bytes: &[u8], sink: &mut S) {
        let Arrival { now, meta, parsed } = at;
        match self.worker_of_source(parsed) {
            Some(worker) if worker == self.worker => self.take_back(now, meta.record, parsed),
            Some(worker) => {
                let packet = bytes.get(..usize::from(parsed.total_length)).unwrap_or(bytes);
                // If the ring is full, its timers end it.
                let _ = sink.hand_off(worker, PacketMeta { stage: Stage::TakeBack, ..meta }, &[packet]);
            }
            None => {}
        }
    }

    /// The worker that has the mapping which a hairpinned packet seems to come from.
    fn worker_of_source(&self, parsed: &Parsed) -> Option<WorkerId> {
        let address = self.local.pool_address(parsed.source)?;
        let (worker, _) = self.shared.owner(address, parsed.protocol()?, parsed.source_port)?;
        Some(worker)
    }

    /// Ends what was made for this packet, whose source is translated already, if nothing else has used it since.
    pub(super) fn take_back(&mut self, now: Instant, made: u32, parsed: &Parsed) {
        let Some(protocol) = parsed.protocol() else { return };
        let index = made & !SESSION_ONLY;
        let mapping = self.mappings.get(index);
        let external = Endpoint::new(parsed.source.into(), parsed.source_port);
        if !mapping.is_in_use() || mapping.protocol() != protocol || mapping.external() != external {
            return;
        }
        let far = (parsed.destination, remote_port(protocol, parsed.destination_port));
        let Some(facts) = self.facts_of_mapping(index) else { return };
        let by = Shard::hashed_by(&facts, protocol);
        let Some(session) = self.find_session(index, far.0, far.1, by, now) else { return };
        let (state, expires) = self.session_state(index, session);
        if state != self.lifetimes.first(protocol, far.1, Side::Inside).state {
            // Somebody has answered.
            return;
        }
        let mapping = self.mappings.get(index);
        match session {
            SessionRef::Inline if made & SESSION_ONLY == 0 => {
                let is_only_one = mapping.extra_count() == 0 && mapping.expires() == expires;
                if is_only_one && self.may_end(index) {
                    // Nobody has seen its port, so that it need not rest.
                    self.end_mapping_resting(now, index, Some((Duration::ZERO, Cause::TakenBack)));
                }
            }
            SessionRef::Extra(slot) if made & SESSION_ONLY != 0 => self.end_extra_session(now, slot),
            _ => {}
        }
    }
}
