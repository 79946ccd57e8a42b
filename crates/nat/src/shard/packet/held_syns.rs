//! Answers held unsolicited SYNs (RFC 5382 §4.3 REQ-4).

use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::local::Reason;
use crate::state::flow::OutsideKey;
use crate::state::session::HashedBy;
use crate::steps::door::Door;
use crate::steps::door::Towards;
use crate::steps::view::hashed_by;
use crate::time::Instant;
use crate::types::Protocol;
use crate::verdict::Verdict;

const SYNS_PER_CALL_MAX: usize = 16;

impl PacketPath {
    /// After six seconds without a matching SYN from inside.
    pub(in crate::shard) fn answer_syns(&mut self, now: Instant, sink: &mut dyn Sink) {
        for _ in 0..SYNS_PER_CALL_MAX {
            let Some(syn) = self.ledger.syns.pop_due(now) else { return };
            let meta = PacketMeta { ingress: syn.ingress, ..PacketMeta::default() };
            let towards = self.ledger.shared.side(syn.ingress);
            let (external, remote_outside) = (syn.external.into(), syn.remote.into());
            let key = OutsideKey { protocol: Protocol::Tcp, external, remote_outside };
            // Another worker may have created the awaited mapping; only that worker sees its
            // sessions.
            if let Door::Elsewhere { worker, turn: 0 } = self.view().door(&Towards::between(key), now) {
                let meta = PacketMeta { stage: Stage::HeldSyn, ..meta };
                // A full ring means silence, which is always allowed (REQ-4a).
                let _ = sink.hand_off(worker, meta, &[syn.quote()]);
                continue;
            }
            self.send_error(now, towards, meta, Reason::PortUnreachable, syn.quote(), sink);
        }
    }

    /// Handles a held SYN whose external endpoint has got a mapping here.
    pub(in crate::shard) fn answer_held_syn(&mut self, at: Arrival<'_>, bytes: &[u8], sink: &mut dyn Sink) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let key = Towards::of(parsed, Protocol::Tcp, 0).key;
        let matched = match self.view().door(&Towards::between(key), now) {
            Door::Session(_) => true,
            Door::Mapping(index) => {
                let compiled = self.view().pool_of_mapping(index);
                let by = compiled.map_or(HashedBy::Endpoint, |compiled| hashed_by(compiled, Protocol::Tcp));
                self.ledger.state.find_session(index, parsed.source, parsed.source_port, by, now).is_some()
            }
            // A third worker has the endpoint: silence.
            Door::Elsewhere { turn: 0, .. } => true,
            _ => false,
        };
        if matched {
            self.ledger.counters.unsolicited_syns_matched += 1;
        } else {
            let meta = PacketMeta { stage: Stage::Received, ..meta };
            self.send_error(now, self.ledger.shared.side(meta.ingress), meta, Reason::PortUnreachable, bytes, sink);
        }
        Fate::Done(Verdict::UnsolicitedSyn)
    }
}
