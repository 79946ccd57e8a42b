//! ICMP errors (RFC 5508 §4). They never end, shorten or refresh a mapping (RFC 4787 §9 REQ-12, RFC
//! 5508 §4.3 REQ-6).

use crate::headers::icmp_quote;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Parsed;
use crate::headers::parse::may_reach;
use crate::headers::rewrite::decrement_ttl;
use crate::headers::rewrite::set_identification;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::steps::quoted::ErrorAct;
use crate::steps::quoted::quote_of;
use crate::types::Facing;
use crate::verdict::Verdict;

impl PacketPath {
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn inbound_error<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        via: Via,
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        // Routers on the way report errors, too (RFC 4787 REQ-12a).
        if via == Via::Outside
            && let Some(verdict) = self.view().check_source(Facing::OUTSIDE, parsed.source)
        {
            return Fate::Done(verdict);
        }
        match self.ledger.local.lookup(parsed.destination) {
            Some(local) if local.pool_address().is_some() => {}
            Some(_) => return Fate::Done(Verdict::LocalIgnored),
            None => return self.error_untranslated_in(at, bytes, sink),
        }
        let quote = match quote_of(packet) {
            Ok(quote) => quote,
            Err(verdict) => return Fate::Done(verdict),
        };
        let realm = self.ledger.shared.realm_of(meta.ingress);
        match self.view().decide_error_in(now, parsed, &quote, (via, realm, meta.turn), &mut ()) {
            Ok(ErrorAct::HandOff { worker, turn }) => {
                let stage = match via {
                    Via::Hairpin => Stage::Hairpin,
                    Via::Outside if turn != 0 => Stage::Balanced,
                    Via::Outside => Stage::Steered,
                };
                Fate::HandOff { worker, meta: PacketMeta { stage, turn, ..meta } }
            }
            Ok(ErrorAct::Translate { change, hop }) => {
                icmp_quote::rewrite(packet, &quote, &change);
                decrement_ttl(packet);
                self.ledger.counters.icmp_errors_translated += 1;
                self.finish(packet, parsed, &hop, via.verdict(), sink)
            }
            Ok(ErrorAct::Hairpin { .. } | ErrorAct::Pass { .. }) => Fate::Done(Verdict::IcmpQuoteNoMapping),
            Err(verdict) => Fate::Done(verdict),
        }
    }

    fn error_untranslated_in<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let realm = quote_of(bytes).ok().and_then(|quote| self.view().realm_of_untranslated(&quote));
        match realm {
            Some(_) if at.parsed.ttl <= 1 => Fate::Done(Verdict::TtlExpired),
            Some(realm) => self.deliver_untranslated(at, bytes, realm, sink),
            None => Fate::Done(Verdict::DestinationNotPool),
        }
    }

    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn outbound_error<S: Sink>(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        sink: &mut S,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        let from = self.ledger.shared.facing(meta.ingress);
        if let Some(verdict) = self.view().check_source(from, parsed.source) {
            return Fate::Done(verdict);
        }
        if !may_reach(parsed.source, parsed.destination) {
            return Fate::Done(Verdict::DestinationInvalid);
        }
        let local = self.ledger.local.lookup(parsed.destination);
        let is_hairpin = local.is_some_and(|local| local.pool_address().is_some());
        if local.is_some() && !is_hairpin {
            return Fate::Done(Verdict::LocalIgnored);
        }
        let quote = match quote_of(packet) {
            Ok(quote) => quote,
            Err(verdict) => return Fate::Done(verdict),
        };
        let (change, way) = match self.view().decide_error_out(now, parsed, &quote, (from.realm, is_hairpin), &mut ()) {
            Ok(ErrorAct::HandOff { worker, .. }) => {
                return Fate::HandOff { worker, meta: PacketMeta { stage: Stage::Steered, ..meta } };
            }
            Ok(ErrorAct::Pass { hop }) => return self.pass_on(bytes, parsed, &hop, sink),
            Ok(ErrorAct::Translate { change, hop }) => (change, Some(hop)),
            Ok(ErrorAct::Hairpin { change }) => (change, None),
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
