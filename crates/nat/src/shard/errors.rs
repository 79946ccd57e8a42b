//! ICMP errors on their way through the NAT (RFC 5508 §4): the packet they quote is translated back, and
//! no mapping is ended, shortened or refreshed by one (RFC 4787 §9 REQ-12, RFC 5508 §4.3 REQ-6).

use super::Arrival;
use super::Fate;
use super::Shard;
use super::dependent::key_of_quote;
use super::inbound::Via;
use super::outbound::remote_port;
use crate::balance::Stop;
use crate::flow::endpoint;
use crate::icmp_quote;
use crate::icmp_quote::Quote;
use crate::icmp_quote::QuoteChange;
use crate::mapping::InternalKey;
use crate::packet::PacketMeta;
use crate::packet::Sink;
use crate::packet::Stage;
use crate::parse::Parsed;
use crate::rewrite::decrement_ttl;
use crate::rewrite::set_identification;
use crate::rules::RuleKey;
use crate::settings::RuleAction;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::RealmId;
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
        let local = self.local.lookup(parsed.destination);
        let Some(address) = local.and_then(|local| local.pool_address()) else {
            if local.is_some() {
                return Fate::Done(Verdict::LocalIgnored);
            }
            return self.error_untranslated_in(at, bytes, sink);
        };
        let quote = match icmp_quote::parse(packet) {
            Ok(quote) => quote,
            Err(verdict) => return Fate::Done(verdict),
        };
        if quote.source.address != quote.outer_destination {
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        }
        let owner = self.shared.owner_towards(address, &key_of_quote(&quote)).filter(|_| meta.turn == 0);
        let group = self.shared.balance.find(parsed.destination, quote.protocol, quote.source.port);
        let sleeper = self.shared.statics.by_external(parsed.destination, quote.protocol, quote.source.port);
        let worker = match (owner, sleeper) {
            (Some((worker, _)), _) => worker,
            // RFC 7857 §12: a static mapping is there also while no packet goes through it.
            (None, Some(inside)) => self.shared.worker_of_subscriber(inside.address),
            (None, None) if group.is_some() => self.worker,
            (None, None) => return Fate::Done(Verdict::IcmpQuoteNoMapping),
        };
        if worker != self.worker {
            let stage = if via == Via::Hairpin { Stage::Hairpin } else { Stage::Steered };
            return Fate::HandOff { worker, meta: PacketMeta { stage, ..meta } };
        }
        let mut awake = owner.and_then(|(_, entry)| self.quoted_inside(&quote, entry, now));
        if awake.is_none()
            && let Some(group) = group
        {
            awake = self.quoted_inside(&quote, MappingIndex::SHARED, now);
            let far = (quote.destination.address.to_bits(), remote_port(quote.protocol, quote.destination.port));
            if awake.is_none()
                && let Stop::Next(worker, turn) = self.next_stop(group, quote.source.port, far, meta.turn)
            {
                let stage = if via == Via::Hairpin { Stage::Hairpin } else { Stage::Balanced };
                return Fate::HandOff { worker, meta: PacketMeta { stage, turn, ..meta } };
            }
        }
        let sleeping = || {
            sleeper.map(|inside| (inside.realm, Endpoint::new(inside.address.into(), inside.port), quote.destination))
        };
        let Some((realm, internal, remote)) = awake.or_else(sleeping) else {
            return Fate::Done(Verdict::IcmpQuoteNoMapping);
        };
        if parsed.ttl <= 1 {
            return Fate::Done(Verdict::TtlExpired);
        }
        let Some(hop) = self.shared.route_in(realm, internal.address.to_bits()).copied() else {
            return Fate::Done(Verdict::NoRoute);
        };
        if parsed.total_length > hop.mtu && parsed.dont_fragment {
            // In silence: nothing is said about errors (RFC 1812 §4.3.2.7).
            return Fate::Done(Verdict::TooBig);
        }
        // RFC 5508 §4.2 REQ-4: the quote becomes what the subscriber sent. The host itself is known by another address
        // where the destination was translated too; routers are not.
        let is_remote = quote.outer_source == quote.destination.address;
        let change = QuoteChange {
            source: internal,
            destination: remote,
            outer_source: if is_remote { remote.address } else { quote.outer_source },
            outer_destination: internal.address,
        };
        icmp_quote::rewrite(packet, &quote, &change);
        decrement_ttl(packet);
        self.counters.icmp_errors_translated += 1;
        let verdict = if via == Via::Hairpin { Verdict::Hairpin } else { Verdict::Inbound };
        self.finish(packet, parsed, &hop, internal.address.to_bits(), verdict, sink)
    }

    /// An error from outside about a packet that a rule let through as it was: so goes the error.
    fn error_untranslated_in<S: Sink>(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut S) -> Fate {
        let quote = match icmp_quote::parse(bytes) {
            Ok(quote) if quote.source.address == quote.outer_destination => quote,
            _ => return Fate::Done(Verdict::DestinationNotPool),
        };
        let remote = (quote.destination.address.to_bits(), remote_port(quote.protocol, quote.destination.port));
        let key_in = |realm| {
            let (address, port) = (quote.source.address.to_bits(), quote.source.port);
            RuleKey::of_flow(&InternalKey { realm, protocol: quote.protocol, address, port }, remote)
        };
        match self.passes_in(&self.shared.rules, key_in) {
            Some(_) if at.parsed.ttl <= 1 => Fate::Done(Verdict::TtlExpired),
            Some((realm, _)) => self.deliver_untranslated(at, bytes, realm, sink),
            None => Fate::Done(Verdict::DestinationNotPool),
        }
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
        let local = self.local.lookup(parsed.destination);
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
        let Some((external, remote)) = self.quoted_outside(&quote, &key, now) else {
            let remote = (quote.source.address.to_bits(), remote_port(quote.protocol, quote.source.port));
            let ruling = self.shared.rule_for(&RuleKey::of_flow(&key, remote));
            return match self.shared.route_out(parsed.destination).copied() {
                Some(hop) if ruling.action == RuleAction::NoTranslation && parsed.ttl > 1 && hairpin.is_none() => {
                    self.pass_out(at, bytes, &hop, sink)
                }
                _ => Fate::Done(Verdict::IcmpQuoteNoMapping),
            };
        };
        if parsed.ttl <= 1 {
            return Fate::Done(Verdict::TtlExpired);
        }
        let way = match (hairpin, self.shared.route_out(remote.address.to_bits()).copied()) {
            (Some(_), _) => None,
            (None, Some(hop)) => Some(hop),
            (None, None) => return Fate::Done(Verdict::NoRoute),
        };
        if parsed.dont_fragment && way.is_some_and(|hop| parsed.total_length > hop.mtu) {
            return Fate::Done(Verdict::TooBig);
        }
        // RFC 5508 §4.2 REQ-5: the quote becomes what the remote host sent; the error itself comes from the
        // external address, whoever inside reported it (REQ-5c), so that no inside address leaves.
        let change = QuoteChange {
            source: remote,
            destination: external,
            outer_source: external.address,
            outer_destination: remote.address,
        };
        icmp_quote::rewrite(packet, &quote, &change);
        if !parsed.dont_fragment {
            // RFC 6864 §5.3.1: like all else that leaves with an address many share and may be fragmented.
            let fresh = self.identifications.next(external.address, remote.address, parsed.protocol_number);
            set_identification(packet, fresh);
        }
        match way {
            Some(hop) => {
                decrement_ttl(packet);
                self.counters.icmp_errors_translated += 1;
                self.finish(packet, parsed, &hop, remote.address.to_bits(), Verdict::Outbound, sink)
            }
            None => {
                // RFC 5508 §5 REQ-7: the other mapping is still to be undone, where it lives.
                let translated = Parsed { source: external.address.to_bits(), ..*parsed };
                self.inbound_error(Arrival { parsed: &translated, ..at }, bytes, Via::Hairpin, sink)
            }
        }
    }

    /// The flow that an error is about, whichever side it comes from.
    pub(super) fn quoted_flow(&self, quote: &Quote, key: &InternalKey, now: Instant) -> Option<u32> {
        let near = (quote.source.address.to_bits(), remote_port(quote.protocol, quote.source.port));
        self.live_flow(key, near, now).or_else(|| self.live_flow_outside(&key_of_quote(quote), now))
    }

    /// What the packet that an error from outside quotes was before it was translated: realm and source, and destination.
    fn quoted_inside(&self, quote: &Quote, entry: MappingIndex, now: Instant) -> Option<(RealmId, Endpoint, Endpoint)> {
        if entry != MappingIndex::SHARED {
            let mapping = self.is_mapped(entry, now).then(|| self.mappings.get(entry.0))?;
            return Some((mapping.realm(), mapping.internal(), quote.destination));
        }
        let flow = self.flows.get(self.live_flow_outside(&key_of_quote(quote), now)?);
        Some((flow.realm(), endpoint(flow.internal()), known_as(flow.near(), quote.protocol, quote.destination)))
    }

    /// What the packet that an error from inside quotes, which came to the internal endpoint `key`, was outside: destination
    /// and source.
    fn quoted_outside(&self, quote: &Quote, key: &InternalKey, now: Instant) -> Option<(Endpoint, Endpoint)> {
        let near = (quote.source.address.to_bits(), remote_port(quote.protocol, quote.source.port));
        if let Some(index) = self.live_flow(key, near, now) {
            let flow = self.flows.get(index);
            return Some((endpoint(flow.external()), known_as(flow.far(), quote.protocol, quote.source)));
        }
        let awake = self.find_live_mapping(key, now).map(|index| self.mappings.get(index).external());
        let external = awake.or_else(|| self.shared.statics.by_internal(key).map(|(external, _)| external))?;
        Some((external, quote.source))
    }
}

/// A remote endpoint by its other name. A query identifier stands for both ports, and is not the remote endpoint's.
fn known_as(other: (u32, u16), protocol: Protocol, quoted: Endpoint) -> Endpoint {
    let port = if protocol == Protocol::Icmp { quoted.port } else { other.1 };
    endpoint((other.0, port))
}
