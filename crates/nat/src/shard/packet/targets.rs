//! Sessions to one of several targets ([`load_balancing`](crate::external::load_balancing)).

use crate::external::load_balancing::Aim;
use crate::headers::packet::Sink;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::notes::Unmade;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::snapshot::shared::NextHop;
use crate::state::mapping::InternalKey;
use crate::steps::door::Towards;
use crate::verdict::Verdict;

impl PacketPath {
    pub(in crate::shard) fn lead(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        aim: &Aim,
        hop: &NextHop,
        via: Via,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        let outside = Towards::of(parsed, protocol, 0).key;
        match self.ledger.open_lead(now, aim, &outside, via == Via::Hairpin) {
            Ok(index) => self.enter_by_flow(at, bytes, index, hop, via, sink),
            Err(verdict) => {
                let key = InternalKey { realm: aim.realm, protocol, address: aim.address, port: aim.port };
                let unmade = Unmade { key: &key, verdict, wanted: None };
                self.ledger.count_refusal(now, unmade);
                self.ledger.note_refusal(now, unmade);
                Fate::Done(verdict)
            }
        }
    }
}
