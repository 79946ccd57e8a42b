//! Tunnelled packets of PPTP calls.

use crate::headers::gre;
use crate::headers::packet::Sink;
use crate::headers::parse::Parsed;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::shard::packet::inbound::hand_inbound;
use crate::shard::packet::outbound::Flow;
use crate::steps::call::NoCall;
use crate::steps::call::without_call;
use crate::steps::inbound::Act;
use crate::types::Side;
use crate::verdict::Verdict;
use alg::AlgId;

impl PacketPath {
    /// Processes GRE from inside, on the subscriber's worker.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn call_out<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let realm = self.ledger.shared.realm_of(meta.ingress);
        let Some(calling) = self.view().decide_call_out(now, realm, parsed, &mut ()) else {
            return self.pass_other(Arrival { parsed: &without_call(parsed), ..at }, bytes, sink);
        };
        if let Some(judged) = &calling.judged {
            self.note_judged(now, judged);
        }
        match calling.leaves {
            Ok((index, way)) => self.leave_translated(at, bytes, None, way, Flow { index, session: None }, sink),
            Err(NoCall::Return(no_way)) => self.turn_back(at, bytes, Side::Inside, no_way, sink),
            Err(NoCall::Drop(verdict)) => Fate::Done(verdict),
        }
    }

    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn call_in<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Some(decided) = self.view().decide_call_in(&self.view().inbound_of(at, via), &mut ()) else {
            return match via {
                Via::Outside => self.pass_other(Arrival { parsed: &without_call(at.parsed), ..at }, bytes, sink),
                Via::Hairpin => Fate::Done(Verdict::ProtocolUnsupported),
            };
        };
        if let Some(judged) = &decided.judged {
            self.note_judged(at.now, judged);
        }
        match decided.act {
            Act::Enter { mapping: index, hop, .. } => {
                self.enter_translated(at, bytes, Flow { index, session: None }, &hop, via, sink)
            }
            Act::HandOff { worker, turn } => hand_inbound(at, worker, turn, via),
            Act::Return(no_way) => self.turn_back(at, bytes, via.side(), no_way, sink),
            Act::Drop(verdict) => Fate::Done(verdict),
            _ => Fate::Done(Verdict::ProtocolUnsupported),
        }
    }

    /// Names the gateway if the fragment could belong to a call.
    pub(in crate::shard) fn fragment_of_call(&self, parsed: &Parsed, fate: Fate) -> Fate {
        let is_served = || self.ledger.shared.gateways.of(AlgId::PPTP).is_some();
        match fate {
            Fate::Done(Verdict::ProtocolUnsupported) if parsed.protocol_number == gre::PROTOCOL && is_served() => {
                Fate::Done(Verdict::CallFragment)
            }
            fate => fate,
        }
    }
}
