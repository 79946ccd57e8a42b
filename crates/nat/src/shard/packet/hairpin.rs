//! Removes what a hairpin's first half created if the second half refuses the packet.
//!
//! It stays if something else uses it, or if the other subscriber only filters unknown remote
//! endpoints: hole punching between subscribers depends on that.

use crate::event::Cause;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Parsed;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::outbound::remote_port;
use crate::state::mapping::SessionRef;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use crate::verdict::VerdictKind;

/// Only a session of an existing mapping was created.
const SESSION_ONLY: u32 = 1 << 31;

pub(in crate::shard) fn made_mapping(index: u32) -> u32 {
    index
}

/// 0 if the session replaced an earlier one.
pub(in crate::shard) fn made_session(index: u32, session: SessionRef) -> u32 {
    if matches!(session, SessionRef::Extra(_)) { index | SESSION_ONLY } else { 0 }
}

fn is_refused(verdict: Verdict) -> bool {
    verdict.kind() == VerdictKind::Dropped && !matches!(verdict, Verdict::Filtered | Verdict::UnsolicitedSyn)
}

impl View<'_> {
    fn worker_of_source(&self, parsed: &Parsed) -> Option<WorkerId> {
        let address = self.local.pool_address(parsed.source)?;
        let (worker, _) = self.snapshot.owner(address, parsed.protocol()?, parsed.source_port)?;
        Some(worker)
    }
}

impl PacketPath {
    #[inline]
    pub(in crate::shard) fn after_hairpin(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        fate: Fate,
        sink: &mut dyn Sink,
    ) -> Fate {
        if at.meta.record != 0
            && let Fate::Done(verdict) = fate
            && is_refused(verdict)
        {
            self.have_taken_back(at, bytes, sink);
        }
        fate
    }

    #[cold]
    fn have_taken_back(&mut self, at: Arrival<'_>, bytes: &[u8], sink: &mut dyn Sink) {
        let Arrival { now, meta, parsed } = at;
        match self.view().worker_of_source(parsed) {
            Some(worker) if worker == self.ledger.worker => self.take_back(now, meta.record, parsed),
            Some(worker) => {
                let packet = bytes.get(..usize::from(parsed.total_length)).unwrap_or(bytes);
                // If the ring is full, timers end the state.
                let _ = sink.hand_off(worker, PacketMeta { stage: Stage::TakeBack, ..meta }, &[packet]);
            }
            None => {}
        }
    }

    /// The source is already translated.
    pub(in crate::shard) fn take_back(&mut self, now: Instant, made: u32, parsed: &Parsed) {
        let Some(protocol) = parsed.protocol() else { return };
        let index = made & !SESSION_ONLY;
        let mapping = self.ledger.state.mappings.get(index);
        let external = Endpoint::new(parsed.source.into(), parsed.source_port);
        if !mapping.is_in_use() || mapping.protocol() != protocol || mapping.external() != external {
            return;
        }
        let remote_outside = (parsed.destination, remote_port(protocol, parsed.destination_port));
        let Some(compiled) = self.view().pool_of_mapping(index) else { return };
        let by = hashed_by(compiled, protocol);
        let Some(session) = self.ledger.state.find_session(index, remote_outside.0, remote_outside.1, by, now) else {
            return;
        };
        let (state, expires) = self.ledger.state.session_state(index, session);
        if state != self.ledger.policy.lifetimes.first(protocol, remote_outside.1, Side::Inside).state {
            return;
        }
        let mapping = self.ledger.state.mappings.get(index);
        match session {
            SessionRef::Inline if made & SESSION_ONLY == 0 => {
                let is_only_one = mapping.extra_count() == 0 && mapping.expires() == expires;
                if is_only_one {
                    self.ledger.withdraw_mapping_created(index);
                }
                if is_only_one && self.ledger.may_end(index) {
                    // No other host has seen the port, so it needs no hold-down.
                    self.ledger.end_mapping_with(now, index, Some((Duration::ZERO, Cause::RolledBack)));
                }
            }
            SessionRef::Extra(slot) if made & SESSION_ONLY != 0 => self.ledger.end_extra_session(now, slot),
            _ => {}
        }
    }
}
