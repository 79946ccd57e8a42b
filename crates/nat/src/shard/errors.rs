//! ICMP errors on their way through the NAT (RFC 5508 §4): the packet they quote is translated back, and
//! no mapping is ended, shortened or refreshed by one (RFC 4787 §9 REQ-12, RFC 5508 §4.3 REQ-6).

use super::Arrival;
use super::Fate;
use super::Shard;
use super::inbound::Via;
use crate::icmp_quote;
use crate::icmp_quote::QuoteChange;
use crate::mapping::InternalKey;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Parsed;
use crate::rewrite::decrement_ttl;
use crate::rewrite::set_identification;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::verdict::Verdict;

impl Shard {
    /// An error from outside (or, via a hairpin, from another subscriber) about a packet that left with one
    /// of our external endpoints as its source.
    #[cold]
    #[inline(never)]
    pub(super) fn inbound_error<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], via: Via, sink: &mut S) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        // The source is not compared with the peer: routers on the way report too (RFC 4787 REQ-12a).
        if via == Via::Outside
            && let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source)
        {
            return Fate::Done(verdict);
        }
        let local = self.shared.local.lookup(parsed.destination);
        let Some(address) = local.and_then(|local| local.pool_address()) else {
            let verdict = if local.is_some() { Verdict::LocalIgnored } else { Verdict::DestinationNotPool };
            return Fate::Done(verdict);
        };
        let quote = match icmp_quote::parse(packet) {
            Ok(quote) => quote,
            Err(verdict) => return Fate::Done(verdict),
        };
        if quote.source.address != quote.outer_destination {
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        }
        let Some((worker, mapping)) = self.shared.owner(address, quote.protocol, quote.source.port) else {
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        };
        if worker != self.worker {
            let stage = if via == Via::Hairpin { Stage::Hairpin } else { Stage::Steered };
            return Fate::HandOff { worker, meta: PacketMeta { stage, ..meta } };
        }
        if !self.is_alive(mapping.0, now) {
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        }
        if parsed.ttl <= 1 {
            return Fate::Done(Verdict::TtlExpired);
        }
        let mapping = self.mappings.get(mapping.0);
        let (realm, internal) = (mapping.realm(), mapping.internal());
        let Some(hop) = self.shared.route_in(realm, internal.address.to_bits()).copied() else {
            return Fate::Done(Verdict::NoRoute);
        };
        if parsed.total_length > hop.mtu && parsed.dont_fragment {
            // In silence: nothing is said about errors (RFC 1812 §4.3.2.7).
            return Fate::Done(Verdict::TooBig);
        }
        // RFC 5508 §4.2 REQ-4: the quote becomes what the subscriber sent.
        let change = QuoteChange { source: internal, outer_destination: internal.address, ..quote.unchanged() };
        icmp_quote::rewrite(packet, &quote, &change);
        decrement_ttl(packet);
        self.counters.icmp_errors_translated += 1;
        let verdict = if via == Via::Hairpin { Verdict::Hairpin } else { Verdict::Inbound };
        self.finish(packet, parsed, &hop, internal.address.to_bits(), verdict, sink)
    }

    /// An error from inside about a packet that came in to a subscriber.
    #[cold]
    #[inline(never)]
    pub(super) fn outbound_error<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(packet) = bytes.get_mut(..usize::from(parsed.total_length)) else {
            return Fate::Done(Verdict::IpMalformed);
        };
        if let Some(verdict) = self.check_source(self.shared.facing(meta.ingress), parsed.source) {
            return Fate::Done(verdict);
        }
        if !crate::parse::destination_is_valid(parsed.destination) {
            return Fate::Done(Verdict::DestinationInvalid);
        }
        let local = self.shared.local.lookup(parsed.destination);
        let hairpin = local.and_then(|local| local.pool_address());
        if local.is_some() && hairpin.is_none() {
            return Fate::Done(Verdict::LocalIgnored);
        }
        let quote = match icmp_quote::parse(packet) {
            Ok(quote) => quote,
            Err(verdict) => return Fate::Done(verdict),
        };
        if quote.source.address != quote.outer_destination {
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        }
        let owner = self.shared.worker_of_subscriber(quote.destination.address.to_bits());
        if owner != self.worker {
            return Fate::HandOff { worker: owner, meta: PacketMeta { stage: Stage::Steered, ..meta } };
        }
        let key = InternalKey {
            realm: self.shared.realm_of(meta.ingress),
            protocol: quote.protocol,
            address: quote.destination.address.to_bits(),
            port: quote.destination.port,
        };
        let Some(index) = self.find_live_mapping(&key, now) else {
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        };
        if parsed.ttl <= 1 {
            return Fate::Done(Verdict::TtlExpired);
        }
        let external: Endpoint = self.mappings.get(index).external();
        let way = match (hairpin, self.shared.route_out(parsed.destination).copied()) {
            (Some(_), _) => None,
            (None, Some(hop)) => Some(hop),
            (None, None) => return Fate::Done(Verdict::NoRoute),
        };
        if parsed.dont_fragment && way.is_some_and(|hop| parsed.total_length > hop.mtu) {
            return Fate::Done(Verdict::TooBig);
        }
        // RFC 5508 §4.2 REQ-5: the quote becomes what the remote host sent; the error itself comes from the
        // external address, whoever inside reported it (REQ-5c), so that no inside address leaves.
        let change = QuoteChange { destination: external, outer_source: external.address, ..quote.unchanged() };
        icmp_quote::rewrite(packet, &quote, &change);
        if !parsed.dont_fragment {
            // RFC 6864 §5.3.1: like all else that leaves with an address many share and may be fragmented.
            let fresh = self.identifications.next(external.address, parsed.destination.into(), parsed.protocol_number);
            set_identification(packet, fresh);
        }
        match way {
            Some(hop) => {
                decrement_ttl(packet);
                self.counters.icmp_errors_translated += 1;
                self.finish(packet, parsed, &hop, parsed.destination, Verdict::Outbound, sink)
            }
            None => {
                // RFC 5508 §5 REQ-7: the other mapping is still to be undone, where it lives.
                let translated = Parsed { source: external.address.to_bits(), ..*parsed };
                self.inbound_error(Arrival { parsed: &translated, ..at }, bytes, Via::Hairpin, sink)
            }
        }
    }
}
