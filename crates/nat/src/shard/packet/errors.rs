//! ICMP errors (RFC 5508 §4). They never end, shorten or refresh a mapping (RFC 4787 §9 REQ-12, RFC
//! 5508 §4.3 REQ-6).

use crate::headers::icmp_quote;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Parsed;
use crate::headers::rewrite::decrement_ttl;
use crate::headers::rewrite::set_identification;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::steps::quoted::ErrorAct;
use crate::steps::quoted::IcmpError;
use crate::verdict::Verdict;

impl PacketPath {
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn inbound_error(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        via: Via,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        let from = self.ledger.shared.facing(meta.ingress);
        let error = IcmpError::read(now, parsed, from, packet);
        match self.view().decide_error_in(&error, (via, meta.turn), &mut ()) {
            Ok(ErrorAct::HandOff { worker, turn }) => {
                let stage = match via {
                    Via::Hairpin => Stage::Hairpin,
                    Via::Outside if turn != 0 => Stage::Balanced,
                    Via::Outside => Stage::Steered,
                };
                Fate::HandOff { worker, meta: PacketMeta { stage, turn, ..meta } }
            }
            Ok(ErrorAct::Pass { hop }) => self.pass_on(bytes, parsed, &hop, sink),
            Ok(ErrorAct::Translate { quote, change, hop }) => {
                icmp_quote::rewrite(packet, &quote, &change);
                decrement_ttl(packet);
                self.ledger.counters.icmp_errors_translated += 1;
                self.finish(packet, parsed, &hop, via.verdict(), sink)
            }
            Ok(ErrorAct::Hairpin { .. }) => Fate::Done(Verdict::IcmpQuoteNoMapping),
            Err(verdict) => Fate::Done(verdict),
        }
    }

    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn outbound_error(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut dyn Sink) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        let from = self.ledger.shared.facing(meta.ingress);
        let error = IcmpError::read(now, parsed, from, packet);
        let (quote, change, way) = match self.view().decide_error_out(&error, &mut ()) {
            Ok(ErrorAct::HandOff { worker, .. }) => {
                return Fate::HandOff { worker, meta: PacketMeta { stage: Stage::Steered, ..meta } };
            }
            Ok(ErrorAct::Pass { hop }) => return self.pass_on(bytes, parsed, &hop, sink),
            Ok(ErrorAct::Translate { quote, change, hop }) => (quote, change, Some(hop)),
            Ok(ErrorAct::Hairpin { quote, change }) => (quote, change, None),
            Err(verdict) => return Fate::Done(verdict),
        };
        icmp_quote::rewrite(packet, &quote, &change);
        let (source, destination) = (change.outer_source, change.outer_destination);
        if !parsed.dont_fragment {
            // RFC 6864 §5.3.1: the external address is shared.
            let fresh = self.identifications.next(source, destination, parsed.protocol_number);
            set_identification(packet, fresh);
        }
        match way {
            Some(hop) => {
                decrement_ttl(packet);
                self.ledger.counters.icmp_errors_translated += 1;
                self.finish(packet, parsed, &hop, Verdict::Outbound, sink)
            }
            None => {
                // RFC 5508 §5 REQ-7: the other mapping's worker undoes the quote's second
                // translation.
                let translated = Parsed { source: source.to_bits(), ..*parsed };
                self.inbound_error(Arrival { parsed: &translated, ..at }, bytes, Via::Hairpin, sink)
            }
        }
    }
}
