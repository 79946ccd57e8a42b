//! Decides about an ICMP error (RFC 5508 §4): the original form of the quoted packet, and its way.

use core::net::Ipv4Addr;

use crate::headers::icmp_quote;
use crate::headers::icmp_quote::PortlessQuote;
use crate::headers::icmp_quote::Quote;
use crate::headers::icmp_quote::QuoteChange;
use crate::headers::parse::Parsed;
use crate::headers::parse::destination_is_valid;
use crate::headers::parse::may_reach;
use crate::policy::rules::RuleKey;
use crate::settings::RuleAction;
use crate::snapshot::shared::NextHop;
use crate::state::alg::AlgKey;
use crate::state::calls::CALL_SPACE;
use crate::state::flow::OutsideKey;
use crate::state::grant::Grant;
use crate::state::mapping::InternalKey;
use crate::steps::door::Door;
use crate::steps::door::Towards;
use crate::steps::door::remote_port;
use crate::steps::inbound::Via;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::DUMMY;
use crate::types::Endpoint;
use crate::types::ExternalEndpoint;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// An ICMP error as it arrives.
#[derive(Clone, Copy)]
pub(crate) struct IcmpError<'a> {
    pub(crate) now: Instant,
    pub(crate) parsed: &'a Parsed,
    pub(crate) quote: Result<Quote, Verdict>,
    /// Only if the protocol of the quoted packet is not translated.
    pub(crate) portless: Option<PortlessQuote>,
    /// Where the interface leads by which it came in.
    pub(crate) from: Facing,
}

pub(crate) enum ErrorAct {
    Translate {
        quote: Quote,
        change: QuoteChange,
        hop: NextHop,
    },
    Hairpin {
        quote: Quote,
        change: QuoteChange,
    },
    /// Like the quoted packet.
    Pass {
        hop: NextHop,
    },
    HandOff {
        worker: WorkerId,
        turn: u8,
    },
}

impl<'a> IcmpError<'a> {
    /// Reads the quote, which counts only if the receiver of the error sent the quoted packet.
    pub(crate) fn read(now: Instant, parsed: &'a Parsed, from: Facing, packet: &[u8]) -> IcmpError<'a> {
        let quote = icmp_quote::parse(packet).and_then(|quote| {
            let is_sender = quote.source.address == quote.outer_destination;
            if is_sender { Ok(quote) } else { Err(Verdict::IcmpQuoteNoMapping) }
        });
        let portless = match quote {
            Err(Verdict::ProtocolUnsupported) => icmp_quote::parse_portless(packet),
            _ => None,
        };
        let portless = portless.filter(|quote| quote.source == quote.outer_destination);
        IcmpError { now, parsed, quote, portless, from }
    }
}

fn report_quote<T: Report>(quote: &Quote, report: &mut T) {
    report.step(|| Step::Quoted { protocol: quote.protocol, source: quote.source, destination: quote.destination });
}

fn report_portless<T: Report>(quote: &PortlessQuote, report: &mut T) {
    let PortlessQuote { protocol, source, destination, .. } = *quote;
    report.step(|| Step::QuotedPortless { protocol, source, destination });
}

/// The endpoint as the other side knows it. A query identifier stays.
pub(crate) fn known_as(other: Endpoint, protocol: Protocol, quoted: Endpoint) -> Endpoint {
    let port = if protocol == Protocol::Icmp { quoted.port } else { other.port };
    Endpoint { port, ..other }
}

fn remote_of(quoted: Endpoint, protocol: Protocol) -> RemoteInside {
    RemoteInside { address: quoted.address.to_bits(), port: remote_port(protocol, quoted.port) }
}

impl View<'_> {
    /// From outside, or the second half of a hairpin. Refused silently: errors are never answered
    /// (RFC 1812 §4.3.2.7).
    pub(crate) fn decide_error_in<T: Report>(
        &self,
        error: &IcmpError<'_>,
        (via, turn): (Via, u8),
        report: &mut T,
    ) -> Result<ErrorAct, Verdict> {
        let IcmpError { now, parsed, from, .. } = *error;
        // Routers on the way report errors, too (RFC 4787 REQ-12a).
        if via == Via::Outside {
            self.check_source(Facing::OUTSIDE, parsed.source).map_or(Ok(()), Err)?;
        }
        match self.local.lookup(parsed.destination) {
            Some(local) if local.pool_address().is_some() => {}
            Some(_) => return Err(Verdict::LocalIgnored),
            None => return self.pass_error_in(error, report),
        }
        let quote = &error.quote?;
        report_quote(quote, report);
        let door = self.door(&Towards::of_quote(quote, turn), now);
        let mut sequence = quote.sequence;
        let (receiver, internal, remote) = match door {
            Door::Elsewhere { worker, turn } => return Ok(ErrorAct::HandOff { worker, turn }),
            Door::Mapping(index) => {
                self.report_mapping(now, index, report);
                let mapping = self.state.mappings.get(index);
                sequence = self.sequence_of_sender(index, quote.destination, Side::Inside, sequence);
                (mapping.realm(), mapping.internal(), quote.destination)
            }
            Door::Session(index) => {
                self.report_flow(now, index, report);
                let flow = self.state.flows.get(index);
                let remote = known_as(flow.remote_inside().into(), quote.protocol, quote.destination);
                (flow.realm(), flow.internal().into(), remote)
            }
            // RFC 7857 §12: also while it is inactive.
            Door::Static { inside, expired } => {
                report.step(|| Step::NoMapping);
                let worker = self.snapshot.worker_of_inside(&inside.host);
                // Only the worker of an IPv6 host knows its number.
                if worker != self.worker && inside.host.ipv6().is_some() && expired.is_none() {
                    return Ok(ErrorAct::HandOff { worker, turn: 0 });
                }
                let Ok((key, None)) = self.endpoint_of_static(now, &inside, quote.protocol) else {
                    return Err(Verdict::IcmpQuoteNoMapping);
                };
                (inside.realm, Endpoint::new(key.address.into(), key.port), quote.destination)
            }
            _ => {
                report.step(|| Step::NoMapping);
                return Err(Verdict::IcmpQuoteNoMapping);
            }
        };
        // Natrix's own errors about packets to the outside come this way, too.
        let is_of_host = via == Via::Hairpin && from.side == Side::Inside;
        if is_of_host && !self.snapshot.may_hairpin(from.realm, receiver) {
            return Err(Verdict::HairpinRefused);
        }
        let hop = self.way(Facing::inside(receiver), internal.address.to_bits(), parsed, report);
        let hop = hop.map_err(|no_way| no_way.verdict)?;
        // RFC 5508 §4.2 REQ-4: the quote must show what the subscriber sent. With twice NAT, only
        // the host itself has another address inside.
        let outer_source = match quote.outer_source {
            source if source == quote.destination.address => remote.address,
            // Only Natrix's own errors come from here. Now their receiver is known.
            source if source.to_bits() == DUMMY => self.snapshot.own_source_towards(receiver, internal.address),
            source => source,
        };
        let change = QuoteChange {
            source: internal,
            destination: remote,
            outer_source,
            outer_destination: internal.address,
            sequence,
        };
        Ok(ErrorAct::Translate { quote: *quote, change, hop })
    }

    /// To an address behind no pool.
    fn pass_error_in<T: Report>(&self, error: &IcmpError<'_>, report: &mut T) -> Result<ErrorAct, Verdict> {
        let parsed = error.parsed;
        let realm = match (&error.quote, &error.portless) {
            (Ok(quote), _) => self.realm_of_untranslated(quote).inspect(|_| report_quote(quote, report)),
            (Err(_), Some(quote)) => self.realm_of_passed(quote, report),
            (Err(_), None) => None,
        };
        // Numbers of IPv6 hosts are no addresses.
        let realm = realm.filter(|_| destination_is_valid(parsed.destination)).ok_or(Verdict::DestinationNotPool)?;
        let hop = self.way(Facing::inside(realm), parsed.destination, parsed, report);
        Ok(ErrorAct::Pass { hop: hop.map_err(|no_way| no_way.verdict)? })
    }

    /// The host that sent a packet, as it leaves on this side; of another worker's host only the
    /// external address. `protocol`: `None` without ports.
    pub(crate) fn sender_of(
        &self,
        now: Instant,
        (protocol, source, destination): (Option<Protocol>, Endpoint, Endpoint),
        side: Side,
    ) -> (Facing, Ipv4Addr) {
        let any_host = (Facing::inside(RealmId::default()), source.address);
        let address = source.address.to_bits();
        if self.local.pool_address(address).is_none() {
            return if side == Side::Inside { (Facing::OUTSIDE, source.address) } else { any_host };
        }
        let Some(protocol) = protocol else { return any_host };
        let key = OutsideKey {
            protocol,
            external: ExternalEndpoint { address, port: source.port },
            remote_outside: RemoteOutside {
                address: destination.address.to_bits(),
                port: remote_port(protocol, destination.port),
            },
        };
        match self.door(&Towards::between(key), now) {
            Door::Mapping(index) => {
                let mapping = self.state.mappings.get(index);
                (Facing::inside(mapping.realm()), mapping.internal_address().0.into())
            }
            Door::Session(index) => {
                let flow = self.state.flows.get(index);
                (Facing::inside(flow.realm()), flow.internal().0.0.into())
            }
            _ => any_host,
        }
    }

    pub(crate) fn decide_error_out<T: Report>(
        &self,
        error: &IcmpError<'_>,
        report: &mut T,
    ) -> Result<ErrorAct, Verdict> {
        let IcmpError { now, parsed, from: Facing { realm, .. }, .. } = *error;
        self.check_source(Facing::inside(realm), parsed.source).map_or(Ok(()), Err)?;
        if !may_reach(HostNumber(parsed.source), parsed.destination) {
            return Err(Verdict::DestinationInvalid);
        }
        let local = self.local.lookup(parsed.destination);
        let is_hairpin = local.is_some_and(|local| local.pool_address().is_some());
        if local.is_some() && !is_hairpin {
            return Err(Verdict::LocalIgnored);
        }
        let quote = match (&error.quote, &error.portless) {
            (Ok(quote), _) => quote,
            (Err(_), Some(quote)) => return self.pass_error_out(error, quote, report),
            (Err(verdict), None) => return Err(*verdict),
        };
        report_quote(quote, report);
        let Endpoint { address, port } = quote.destination;
        let worker = self.snapshot.worker_of_subscriber(address.into());
        if worker != self.worker {
            return Ok(ErrorAct::HandOff { worker, turn: 0 });
        }
        let key = InternalKey { realm, protocol: quote.protocol, address: address.into(), port };
        let Some((external, remote, sequence)) = self.quoted_outside(now, quote, &key, report) else {
            let remote = remote_of(quote.source, quote.protocol);
            let ruling = self.ruling(RuleKey::of_flow(&key, remote));
            let passes = ruling.action == RuleAction::NoTranslation && parsed.ttl > 1 && !is_hairpin;
            let hop = self.snapshot.route_out(parsed.destination, parsed.source).filter(|_| passes);
            return hop.map(|hop| ErrorAct::Pass { hop }).ok_or(Verdict::IcmpQuoteNoMapping);
        };
        // RFC 5508 §4.2 REQ-5: the quote must show what the remote host sent. The error comes from
        // the sender's own external address or else from the mapping's, so no inside address leaks
        // (REQ-5c).
        let own = self.snapshot.static_mappings.own_address(realm, HostNumber(parsed.source));
        let change = QuoteChange {
            source: remote,
            destination: external,
            outer_source: own.map_or(external.address, Ipv4Addr::from_bits),
            outer_destination: remote.address,
            sequence,
        };
        if is_hairpin {
            let hairpin = ErrorAct::Hairpin { quote: *quote, change };
            return if parsed.ttl <= 1 { Err(Verdict::TtlExpired) } else { Ok(hairpin) };
        }
        let hop = self.way(Facing::OUTSIDE, remote.address.to_bits(), parsed, report);
        Ok(ErrorAct::Translate { quote: *quote, change, hop: hop.map_err(|no_way| no_way.verdict)? })
    }

    /// About a packet from outside, which a rule has passed into the sender's realm.
    fn pass_error_out<T: Report>(
        &self,
        error: &IcmpError<'_>,
        quote: &PortlessQuote,
        report: &mut T,
    ) -> Result<ErrorAct, Verdict> {
        report_portless(quote, report);
        let (inside, outside) = (quote.destination, quote.source);
        if let Some(call) = quote.call
            && self.state.control_sessions.is_some()
        {
            let worker = self.snapshot.worker_of_subscriber(inside.into());
            if worker != self.worker {
                return Ok(ErrorAct::HandOff { worker, turn: 0 });
            }
            let key = InternalKey { realm: error.from.realm, protocol: CALL_SPACE, address: inside.into(), port: call };
            let is_it = |grant: &Grant| grant.is_call_with(outside.to_bits()) && grant.is_alive(error.now);
            // Its packets are translated.
            if self.state.grants.find(&key, is_it).is_some() {
                return Err(Verdict::ProtocolUnsupported);
            }
        }
        let is_of_sender = |realm: &RealmId| *realm == error.from.realm;
        let passed = self.realm_passing((quote.protocol, inside, outside), Side::Outside, report);
        passed.filter(is_of_sender).ok_or(Verdict::ProtocolUnsupported)?;
        let hop = self.way(Facing::OUTSIDE, error.parsed.destination, error.parsed, report);
        Ok(ErrorAct::Pass { hop: hop.map_err(|no_way| no_way.verdict)? })
    }

    /// The realm from which a rule has passed the quoted packet.
    fn realm_of_passed<T: Report>(&self, quote: &PortlessQuote, report: &mut T) -> Option<RealmId> {
        report_portless(quote, report);
        self.realm_passing((quote.protocol, quote.source, quote.destination), Side::Inside, report)
    }

    /// The realm where a rule and the filters pass packets without ports of this inside and this
    /// outside address. `from`: which of them sends.
    fn realm_passing<T: Report>(
        &self,
        (protocol, inside, outside): (u8, Ipv4Addr, Ipv4Addr),
        from: Side,
        report: &mut T,
    ) -> Option<RealmId> {
        let (inside, outside) = (inside.to_bits(), outside.to_bits());
        // Numbers of IPv6 hosts are no addresses.
        if !destination_is_valid(inside) || !destination_is_valid(outside) {
            return None;
        }
        let key_in = |realm| RuleKey::new(realm, protocol, inside, 0, outside, 0);
        let (realm, ruling) = self.passes_in(&self.snapshot.passes, key_in)?;
        match from {
            Side::Inside => self.check_portless(Facing::inside(realm), inside, outside).ok()?,
            Side::Outside => self.check_portless(Facing::OUTSIDE, outside, inside).ok()?,
        }
        self.report_pass_rule(ruling.rule?, report);
        self.judge(from == Side::Inside, key_in(realm), false, report).passes().then_some(realm)
    }

    /// The sequence number as the sender knows it, where a gateway has changed the length of its
    /// data. Otherwise the error would seem forged (RFC 5927 §4.1).
    fn sequence_of_sender(&self, index: u32, remote: Endpoint, from: Side, sequence: Option<u32>) -> Option<u32> {
        let store = self.state.control_sessions.as_ref();
        let (Some(quoted), Some(store)) = (sequence, store.filter(|store| !store.is_empty())) else { return sequence };
        let key = AlgKey::of(index, self.state.mappings.get(index), (remote.address.to_bits(), remote.port));
        let Some(place) = store.find(&key) else { return sequence };
        let way = usize::from(from == Side::Outside);
        let stream = store.get(place).streams[way].as_ref();
        stream.map(|stream| stream.place_in(store.held(place, way), quoted, false)).or(sequence)
    }

    fn quoted_outside<T: Report>(
        &self,
        now: Instant,
        quote: &Quote,
        key: &InternalKey,
        report: &mut T,
    ) -> Option<(Endpoint, Endpoint, Option<u32>)> {
        let remote_inside = remote_of(quote.source, quote.protocol);
        if let Some(index) = self.state.live_flow(key, remote_inside, now) {
            self.report_flow(now, index, report);
            let flow = self.state.flows.get(index);
            let remote = known_as(flow.remote_outside().into(), quote.protocol, quote.source);
            return Some((flow.external().into(), remote, quote.sequence));
        }
        if let Some(index) = self.state.find_live_mapping(key, now) {
            self.report_mapping(now, index, report);
            let sequence = self.sequence_of_sender(index, quote.source, Side::Outside, quote.sequence);
            return Some((self.state.mappings.get(index).external(), quote.source, sequence));
        }
        report.step(|| Step::NoMapping);
        let (external, _) = self.static_mapping_of(key)?;
        Some((external, quote.source, quote.sequence))
    }

    fn realm_of_untranslated(&self, quote: &Quote) -> Option<RealmId> {
        let remote = remote_of(quote.destination, quote.protocol);
        let (address, port) = (quote.source.address.into(), quote.source.port);
        let key_in = |realm| RuleKey::of_flow(&InternalKey { realm, protocol: quote.protocol, address, port }, remote);
        self.passes_in(&self.snapshot.rules, key_in).map(|(realm, _)| realm)
    }
}
