//! Begins and ends control sessions of gateways, after a decision of
//! [`crate::steps::control_session`].

use alg::AlgId;
use alg::Memory;
use alg::Stream;

use crate::shard::Ledger;
use crate::steps::announcement::Asking;
use crate::steps::control_session::Beginning;
use crate::time::Instant;
use crate::verdict::GatewayRefusal;

impl Ledger {
    /// `None` if there is no room.
    pub(in crate::shard) fn begin_control(&mut self, now: Instant, beginning: &Beginning) -> Option<u32> {
        let Beginning { begun, is_counted, replaces, refusal } = beginning;
        let alg = usize::from(begun.alg.0);
        if let Some(refusal) = refusal {
            self.counters.gateways[alg].refuse(*refusal);
        }
        if let Some(replaced) = replaces {
            self.replace_control(now, *replaced);
        }
        let Some(place) = self.state.control_sessions.as_mut()?.start(begun) else {
            self.counters.gateways[alg].refuse(GatewayRefusal::TableFull);
            return None;
        };
        self.counters.control_sessions[alg] += u64::from(*is_counted);
        let asking = Asking { now, place, key: begun.key, alg: begun.alg };
        if let Some(other) = self.view().other_session(&asking) {
            self.state.control_sessions.as_mut()?.copy_memory(other, place);
        }
        Some(place)
    }

    /// An unanswered client's session ends, or forged clients could take all sessions of their
    /// server's mapping. A mapping's first session stays, as without a gateway.
    pub(in crate::shard) fn replace_control(&mut self, now: Instant, place: u32) {
        let extra = self.view().unanswered_client(now, place);
        self.end_control(now, place);
        if let Some((_, slot)) = extra {
            self.end_extra_session(now, slot);
        }
    }

    pub(in crate::shard) fn end_control(&mut self, now: Instant, place: u32) {
        let Some(store) = self.state.control_sessions.as_ref() else { return };
        if store.get(place).alg == AlgId::PPTP {
            self.tend_calls(now, place, None);
        }
        if let Some(store) = self.state.control_sessions.as_mut() {
            store.remove(place);
        }
    }

    /// Stops reading this session in both directions, permanently.
    pub(in crate::shard) fn end_reading(&mut self, place: u32) {
        let Some(store) = self.state.control_sessions.as_mut() else { return };
        store.get_mut(place).streams.iter_mut().flatten().for_each(Stream::end);
    }

    /// What a gateway remembers, for both sessions of a phone.
    pub(in crate::shard) fn note_memory(&mut self, asking: &Asking, memory: Memory) {
        let Some(store) = self.state.control_sessions.as_mut() else { return };
        if core::mem::replace(&mut store.get_mut(asking.place).memory, memory) == memory {
            return;
        }
        if let Some(other) = self.view().other_session(asking)
            && let Some(store) = self.state.control_sessions.as_mut()
        {
            store.copy_memory(asking.place, other);
        }
    }
}
