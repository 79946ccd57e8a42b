//! Packets from either side activate static mappings.

use crate::external::static_mapping::Inside;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::notes::Unmade;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::shard::packet::inbound::hand_inbound;
use crate::shard::packet::outbound::Flow;
use crate::snapshot::shared::NextHop;
use crate::state::mapping::InternalKey;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::steps::expired::Expired;
use crate::steps::opening::Hints;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

impl PacketPath {
    /// Ends what has expired first.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn activate(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        (inside, expired): (&Inside, &Expired),
        hop: &NextHop,
        via: Via,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        let key = match self.ledger.enter_static(now, inside, protocol) {
            Ok(key) => key,
            Err(verdict) => return Fate::Done(verdict),
        };
        let hash = self.ledger.state.hash_of(&key);
        for index in expired.mappings() {
            if !self.ledger.may_end(index) {
                return self.refuse_static(now, &key, Verdict::LogFull);
            }
            self.ledger.end_mapping(now, index);
        }
        let first = self.ledger.policy.lifetimes.first(protocol, key.port, Side::Outside);
        let packet = self.view().inbound_of(at, via);
        let mut new = self.view().session_from_outside(&packet, protocol, first, now + first.lifetime);
        // The same for every client of this server.
        if let Some(gateway) = self.view().gateway_of_static(&key) {
            (new.state, new.expires) = (TcpState::UNANSWERED, now + gateway.timeout);
        }
        match self.ledger.open_mapping(now, &key, &Hints::of(hash), None, &new) {
            Ok(index) => {
                let flow = Flow { index, session: Some(SessionRef::Inline) };
                self.established_inbound(at, bytes, flow, hop, via, sink)
            }
            Err(verdict) => self.refuse_static(now, &key, verdict),
        }
    }

    /// Ends an expired mapping that still has the port of another worker's static mapping.
    #[cold]
    pub(in crate::shard) fn vacate(&mut self, at: Arrival<'_>, expired: u32, worker: WorkerId, via: Via) -> Fate {
        let Arrival { now, meta, parsed } = at;
        if self.ledger.may_end(expired) {
            self.ledger.end_mapping(now, expired);
            return hand_inbound(at, worker, 0, via);
        }
        // The other worker knows the subscriber and counts the refusal.
        let ports = (parsed.source_port, parsed.destination_port);
        let record = if via == Via::Hairpin { meta.record } else { 0 };
        Fate::HandOff { worker, meta: PacketMeta { stage: Stage::LogFull, ports, record, ..meta } }
    }

    /// Another worker asks for the port of its static mapping, for a packet from inside.
    #[cold]
    pub(in crate::shard) fn vacate_for(&mut self, at: Arrival<'_>) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let address = self.ledger.shared.address_index(meta.record.into());
        let expired = address
            .zip(parsed.protocol())
            .and_then(|(address, protocol)| self.view().expired_at(now, address, protocol, meta.ports.1));
        if let Some(index) = expired
            && self.ledger.may_end(index)
        {
            self.ledger.end_mapping(now, index);
        }
        let worker = self.ledger.shared.worker_of_subscriber(HostNumber(parsed.source));
        Fate::HandOff { worker, meta: PacketMeta { stage: Stage::Vacated, ..meta } }
    }

    /// Another worker could not free the port.
    pub(in crate::shard) fn refuse_for_log(&mut self, at: Arrival<'_>) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return Fate::Done(Verdict::ProtocolUnsupported) };
        let inside = self.ledger.shared.static_mappings.by_external(parsed.destination, protocol, meta.ports.1);
        match inside {
            Some(inside) => match self.view().endpoint_of_static(now, &inside, protocol) {
                Ok((key, None)) => self.refuse_static(now, &key, Verdict::LogFull),
                // No record of the host could count the refusal.
                Ok((_, Some(_))) | Err(_) => Fate::Done(Verdict::LogFull),
            },
            // This worker's settings have no such static mapping.
            None => Fate::Done(Verdict::LogFull),
        }
    }

    fn refuse_static(&mut self, now: Instant, key: &InternalKey, verdict: Verdict) -> Fate {
        let unmade = Unmade { key, verdict, wanted: None };
        self.ledger.count_refusal(now, unmade);
        self.ledger.note_refusal(now, unmade);
        Fate::Done(verdict)
    }
}
