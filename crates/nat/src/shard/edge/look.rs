//! What an IPv6 packet is, by all its headers and checks: the long way.

use translate::Kind;
use wire::icmp;
use wire::icmp::Icmp;
use wire::icmp6;
use wire::icmp6::Icmp6;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::quoted::Quoted;

use crate::headers::own_icmp6::Problem;
use crate::headers::packet::Packet;
use crate::headers::packet::Stage;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::is_link_local;
use crate::headers::parse::source_is_valid;
use crate::shard::edge::arrive::Incoming;
use crate::shard::edge::refuse::Refusal;
use crate::shard::edge::verdict_of;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::SoftwireEnd;
use crate::snapshot::transition::Transition;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::types::DUMMY;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::Side;
use crate::verdict::Verdict;

const PROTOCOL_UDP: u8 = wire::ipv4::PROTOCOL_UDP;
const PROTOCOL_ICMP: u8 = wire::ipv4::PROTOCOL_ICMP;

/// RFC 6146 §3.5.
#[inline(always)]
fn check_source(
    transition: &Transition,
    realm: RealmId,
    source: u128,
    prefix: translate::Prefix,
) -> Result<(), Verdict> {
    translate::check_source6(source, prefix).map_err(verdict_of)?;
    match transition.way_of(realm, source) {
        Some(Way::Nat64(_)) => Err(Verdict::SourceInPrefix),
        _ if transition.is_own(source) => Err(Verdict::SourceInvalid),
        _ => Ok(()),
    }
}

/// True for an ICMP error about a host's number, which no IPv4 host knows.
#[cold]
#[inline(never)]
fn quotes_number(packet: &[u8]) -> bool {
    let Ok(outer) = Ipv4::new_checked(packet) else { return false };
    let Ok(message) = Icmp::new_checked(outer.payload()) else { return false };
    if !icmp::is_error(message.icmp_type()) {
        return false;
    }
    Quoted::new_checked(message.quote()).is_ok_and(|quoted| {
        let header = quoted.header();
        HostNumber(header.source()).is_ipv6() || HostNumber(header.destination()).is_ipv6()
    })
}

/// RFC 6333 §11.
#[inline(always)]
fn check_sender(transition: &Transition, end: &SoftwireEnd, source: u128) -> Result<(), Verdict> {
    let is_mapped = matches!(source >> 32, 0 | 0xffff);
    if is_mapped || ipv6::is_multicast(source) || ipv6::is_link_local(source) || transition.is_own(source) {
        return Err(Verdict::SourceInvalid);
    }
    match transition.way_of(end.realm, source) {
        Some(_) => Err(Verdict::SourceInPrefix),
        None => Ok(()),
    }
}

impl PacketPath {
    #[inline(always)]
    pub(super) fn look_at_edge(&self, packet: &mut Packet<'_>) -> Result<Incoming, Refusal> {
        packet.verdict = None;
        if !matches!(packet.meta.stage, Stage::Received | Stage::Steered) {
            return Ok(Incoming::Other);
        }
        let facing = self.ledger.shared.facing(packet.meta.ingress);
        if facing.side == Side::Outside {
            return Ok(Incoming::Other);
        }
        let bytes = packet.bytes();
        if bytes.first().is_none_or(|first| first >> 4 != 6) {
            // No packet can come from a host's number.
            if HostNumber(get_u32(bytes, ip::SOURCE)).is_ipv6() {
                return Err(Verdict::SourceInvalid.into());
            }
            if bytes.get(ip::PROTOCOL) == Some(&PROTOCOL_ICMP) && quotes_number(bytes) {
                return Err(Verdict::IcmpQuoteNoMapping.into());
            }
            return Ok(Incoming::Other);
        }
        if bytes.len() < ipv6::HEADER_LENGTH {
            return Err(Verdict::Ipv6Malformed.into());
        }
        let transition = &self.ledger.shared.transition;
        let (source, destination) = {
            let view = Ipv6::new_unchecked(bytes);
            (view.source(), view.destination())
        };
        match transition.way_of(facing.realm, destination) {
            None => self.look_at_request(packet, facing.realm, source).map_err(Refusal::from),
            Some(way @ Way::Nat64(position)) => {
                let prefix = transition.prefix(position).ok_or(Verdict::Ipv6NotForwarded)?;
                let headers = translate::read6(bytes)?;
                check_source(transition, facing.realm, source, prefix)?;
                let to = prefix.destination(destination)?;
                let address = match headers.kind {
                    // An error, perhaps of a router, belongs to the host that it is about.
                    Kind::Error => {
                        let quoted = translate::quoted6(bytes, &headers)?;
                        if !prefix.contains(quoted.source) {
                            return Err(Verdict::IcmpQuoteNoMapping.into());
                        }
                        quoted.destination
                    }
                    // RFC 6146 §3.4: other protocols.
                    Kind::Other => {
                        return Err(Refusal::Answer(
                            Verdict::ProtocolUnsupported,
                            Problem {
                                icmp_type: icmp6::TYPE_DESTINATION_UNREACHABLE,
                                code: icmp6::CODE_PORT_UNREACHABLE,
                                parameter: 0,
                            },
                        ));
                    }
                    _ => source,
                };
                let key = HostKey { address, inner: 0, way };
                let hash = self.ledger.state.subscribers.hosts.hash_of(&key);
                Ok(Incoming::Nat64 { headers, destination: to, key, hash })
            }
            Some(way @ Way::Softwire(position)) => {
                self.look_at_softwire(bytes, source, way, position).map_err(Refusal::from)
            }
        }
    }

    fn look_at_softwire(&self, bytes: &[u8], source: u128, way: Way, position: u8) -> Result<Incoming, Verdict> {
        let transition = &self.ledger.shared.transition;
        let Some(end) = transition.softwire(position) else { return Err(Verdict::Ipv6NotForwarded) };
        if self.is_unused(end.realm, end.aftr) {
            return Err(Verdict::AddressNotUsed);
        }
        let view = Ipv6::new_checked(bytes).map_err(|_| Verdict::Ipv6Malformed)?;
        let packet = view.packet();
        let chain = ipv6::chain_at_destination(packet).map_err(|_| Verdict::Ipv6Header)?;
        if chain.segments_left.is_some()
            || chain.offset != ipv6::HEADER_LENGTH && ipv6::unknown_option(packet).is_some()
        {
            return Err(Verdict::Ipv6Header);
        }
        check_sender(transition, end, source)?;
        if chain.protocol == ipv6::PROTOCOL_ICMP6 {
            // The sender is a router, which is no subscriber.
            return self.look_at_error(packet, end, way);
        }
        // RFC 6333 §11.
        if !end.serves(source) {
            return Err(Verdict::SoftwireSubscriber);
        }
        let is_whole = chain.fragment.is_none_or(|fragment| fragment.is_atomic());
        if chain.protocol == PROTOCOL_UDP && is_whole && self.ledger.shared.settings().port_control.pcp {
            // Its port is examined with its checksum.
            return Ok(Incoming::Request { source, way, offset: chain.offset as u16 });
        }
        if chain.protocol != ipv6::PROTOCOL_IPV4 {
            return Err(Verdict::SoftwireMalformed);
        }
        if let Some(fragment) = chain.fragment.filter(|fragment| !fragment.is_atomic()) {
            let (offset, length) = (chain.offset as u16, packet.len() as u16);
            return Ok(Incoming::Fragment { source, way, offset, fragment, length });
        }
        let inner = packet.get(chain.offset..).unwrap_or_default();
        let (key, hash) = self.look_inside(inner, source, way)?;
        Ok(Incoming::Softwire { offset: chain.offset as u16, key, hash })
    }

    /// A packet to Natrix that is perhaps a request for port control.
    #[cold]
    fn look_at_request(&self, packet: &Packet<'_>, realm: RealmId, source: u128) -> Result<Incoming, Verdict> {
        let transition = &self.ledger.shared.transition;
        let way = transition.way_of_grants(realm).ok_or(Verdict::Ipv6NotForwarded)?;
        let Way::Nat64(position) = way else { return Err(Verdict::Ipv6NotForwarded) };
        let prefix = transition.prefix(position).ok_or(Verdict::Ipv6NotForwarded)?;
        if !self.ledger.shared.is_request6(packet.meta.ingress, packet.bytes()) {
            return Err(Verdict::Ipv6NotForwarded);
        }
        if self.is_unused(realm, Ipv6::new_unchecked(packet.bytes()).destination()) {
            return Err(Verdict::AddressNotUsed);
        }
        check_source(transition, realm, source, prefix)?;
        Ok(Incoming::Request { source, way, offset: ipv6::HEADER_LENGTH as u16 })
    }

    /// A router reports the MTU for softwire packets (RFC 2473 §7.2). It must quote enough to name
    /// a host.
    #[cold]
    fn look_at_error(&self, packet: &[u8], end: &SoftwireEnd, way: Way) -> Result<Incoming, Verdict> {
        let headers = translate::read6(packet).map_err(|_| Verdict::LocalIgnored)?;
        let message = Icmp6::new_unchecked(packet.get(headers.transport..headers.length).unwrap_or_default());
        if headers.kind != Kind::Error || message.icmp_type() != icmp6::TYPE_PACKET_TOO_BIG {
            return Err(Verdict::LocalIgnored);
        }
        if !message.is_checksum_valid(headers.source, headers.destination) {
            return Err(Verdict::IcmpBadChecksum);
        }
        let mtu = message.parameter();
        if mtu < ipv6::MTU_MIN.into() {
            return Err(Verdict::IcmpQuoteMalformed);
        }
        let quoted = translate::quoted6(packet, &headers).map_err(verdict_of)?;
        if quoted.source != end.aftr || quoted.protocol != ipv6::PROTOCOL_IPV4 {
            return Err(Verdict::IcmpQuoteNoMapping);
        }
        if !end.serves(quoted.destination) {
            return Err(Verdict::SoftwireSubscriber);
        }
        let is_first = quoted.fragment.is_none_or(|fragment| fragment.offset == 0);
        let inner = message.quote().get(quoted.transport..).and_then(<[u8]>::first_chunk::<{ ip::HEADER_MIN }>);
        let inner = inner.filter(|inner| is_first && inner[0] >> 4 == 4).ok_or(Verdict::IcmpQuoteMalformed)?;
        let key = HostKey { address: quoted.destination, inner: get_u32(inner, ip::DESTINATION), way };
        let hash = self.ledger.state.subscribers.hosts.hash_of(&key);
        Ok(Incoming::TooBig { mtu, key, hash })
    }

    pub(super) fn look_inside(&self, inner: &[u8], source: u128, way: Way) -> Result<(HostKey, u64), Verdict> {
        let Way::Softwire(position) = way else { return Err(Verdict::SoftwireMalformed) };
        let Some(end) = self.ledger.shared.transition.softwire(position) else {
            return Err(Verdict::Ipv6NotForwarded);
        };
        let length = usize::from(u16::from_be_bytes(*inner.get(2..).and_then(<[u8]>::first_chunk).unwrap_or(&[0; 2])));
        let is_ipv4 = inner.len() >= ip::HEADER_MIN && inner.first().is_some_and(|first| first >> 4 == 4);
        if !is_ipv4 || length != inner.len() {
            return Err(Verdict::SoftwireMalformed);
        }
        let inside = get_u32(inner, ip::SOURCE);
        if !end.permits(inside) {
            return Err(Verdict::SoftwireSource);
        }
        // The prefixes may be wide.
        if !source_is_valid(inside) || is_link_local(inside) || inside == DUMMY {
            return Err(Verdict::SourceInvalid);
        }
        let key = HostKey { address: source, inner: inside, way };
        let hash = self.ledger.state.subscribers.hosts.hash_of(&key);
        Ok((key, hash))
    }
}
