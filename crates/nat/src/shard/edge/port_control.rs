//! Port control of IPv6 hosts: requests to Natrix's IPv6 addresses (NAT64), to the AFTR (B4s) and
//! to 192.0.0.1 in a softwire; announcements and updates.

use core::net::Ipv4Addr;
use core::ops::Range;

use pcp::CLIENT_PORT;
use pcp::MESSAGE_MAX;
use pcp::SERVER_PORT;
use wire::checksum;
use wire::ipv4;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::udp::Udp;

use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::get_u16;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::shard::edge::arrive::Incoming;
use crate::shard::packet::PacketPath;
use crate::shard::packet::port_control::HEADERS;
use crate::shard::packet::port_control::headers;
use crate::shard::port_control::Asker;
use crate::shard::port_control::Datagram;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::state::grant::Grant;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::WorkerId;
use crate::verdict::Verdict;

const HEADERS6: usize = ipv6::HEADER_LENGTH + wire::udp::HEADER_LENGTH;
const HOP_LIMIT: u8 = 64;
const ALL_NODES: u128 = 0xff02 << 112 | 1;

type Endpoint6 = (u128, u16);

fn headers6(from: Endpoint6, to: Endpoint6, payload: &[u8]) -> [u8; HEADERS6] {
    let mut bytes = [0; HEADERS6];
    let (header, datagram) = bytes.split_at_mut(ipv6::HEADER_LENGTH);
    let length = (wire::udp::HEADER_LENGTH + payload.len()) as u16;
    let mut udp = Udp::new_unchecked(datagram);
    udp.set_source_port(from.1);
    udp.set_destination_port(to.1);
    udp.set_length(length);
    let sum = checksum::pseudo_header6(from.0, to.0, ipv4::PROTOCOL_UDP, length.into());
    udp.set_checksum(sum.add_u16(from.1).add_u16(to.1).add_u16(length).add_bytes(payload).udp_checksum());
    let mut view = Ipv6::new_unchecked(header);
    view.set_class_and_label(0, 0);
    view.set_payload_length(length);
    view.set_next_header(ipv4::PROTOCOL_UDP);
    view.set_hop_limit(HOP_LIMIT);
    view.set_source(from.0);
    view.set_destination(to.0);
    bytes
}

fn datagram_at(packet: &[u8], offset: usize) -> Option<Udp<&[u8]>> {
    let view = Ipv6::new_checked(packet).ok()?;
    let (source, destination) = (view.source(), view.destination());
    let bytes = packet.get(..view.length())?.get(offset..)?;
    let udp = Udp::new_checked(bytes).ok()?;
    let sum = checksum::pseudo_header6(source, destination, ipv4::PROTOCOL_UDP, udp.length().into());
    let is_valid = udp.checksum() != 0 && sum.add_bytes(bytes.get(..usize::from(udp.length()))?).is_valid();
    (is_valid && udp.source_port() != 0).then_some(udp)
}

/// True for a host's request that another worker has rate-limited. It then counts as steered.
#[inline(always)]
pub(super) fn take_over_request(packet: &mut Packet<'_>) -> bool {
    let is_one = packet.meta.stage == Stage::PortControl && packet.bytes().first().is_some_and(|it| it >> 4 == 6);
    if is_one {
        packet.meta.stage = Stage::Steered;
    }
    is_one
}

impl PacketPath {
    pub(super) fn is_request(&self, packet: &Packet<'_>, incoming: &Incoming) -> bool {
        match incoming {
            Incoming::Request { way, offset, .. } => {
                self.judge_request(packet, usize::from(*offset), *way) == Verdict::Local
            }
            Incoming::Softwire { offset, .. } => {
                // Reads requests without IP options, as all clients send them. Others are limited
                // by their own worker.
                let inner = packet.chunk::<{ ip::HEADER_MIN + 4 }>(usize::from(*offset));
                inner.is_some_and(|header| {
                    get_u32(header, ip::DESTINATION) == AFTR_INSIDE
                        && header[ip::PROTOCOL] == ipv4::PROTOCOL_UDP
                        && get_u16(header, ip::HEADER_MIN + 2) == SERVER_PORT
                })
            }
            Incoming::Other | Incoming::Nat64 { .. } | Incoming::TooBig { .. } | Incoming::Fragment { .. } => false,
        }
    }

    /// Limits a request before it takes room in a ring, which refuses it when half full.
    #[cold]
    #[inline(never)]
    pub(super) fn pass_request_of_host_on(
        &mut self,
        now: Instant,
        worker: WorkerId,
        packet: &mut Packet<'_>,
        source: u128,
        sink: &mut dyn Sink,
    ) -> Result<(), Verdict> {
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        if !self.may_ask(now, realm, source) {
            return Err(Verdict::LocalIgnored);
        }
        let meta = PacketMeta { record: 0, stage: Stage::PortControl, ..packet.meta };
        if !sink.hand_off(worker, meta, &[packet.bytes()]) {
            self.ledger.counters.port_control_limited += 1;
            return Err(Verdict::LocalIgnored);
        }
        self.ledger.counters.handed_off += 1;
        (packet.verdict, packet.outcome) = (None, Outcome::Done);
        Ok(())
    }

    /// [`Verdict::Local`] for a request, otherwise the reason why it is not one.
    pub(super) fn judge_request(&self, packet: &Packet<'_>, offset: usize, way: Way) -> Verdict {
        match (datagram_at(packet.bytes(), offset), way) {
            (Some(udp), _) if udp.destination_port() == SERVER_PORT => Verdict::Local,
            (_, Way::Softwire(_)) => Verdict::SoftwireMalformed,
            (_, Way::Nat64(_)) => Verdict::LocalIgnored,
        }
    }

    /// All addresses of a /64 share one rate.
    fn may_ask(&mut self, now: Instant, realm: RealmId, source: u128) -> bool {
        let half = (source >> 64) as u64;
        let folded = Ipv4Addr::from_bits((half >> 32) as u32 ^ half as u32);
        let allowed = self.requests.allow(now, (Facing::inside(realm), folded));
        self.ledger.counters.port_control_limited += u64::from(!allowed);
        allowed
    }

    /// Serves a request outside of softwires: of a NAT64 host, or of a B4 for hosts behind it.
    ///
    /// # Errors
    /// Always: the verdict of the packet.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_host(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        offset: usize,
        (source, way): (u128, Way),
        sink: &mut dyn Sink,
    ) -> Result<(), Verdict> {
        let verdict = self.judge_request(packet, offset, way);
        let udp = datagram_at(packet.bytes(), offset).filter(|_| verdict == Verdict::Local);
        let Some(udp) = udp else {
            self.ledger.counters.port_control_ignored += 1;
            return Err(verdict);
        };
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        if !self.may_ask(now, realm, source) {
            return Err(Verdict::LocalIgnored);
        }
        let (number, asker) = match way {
            Way::Nat64(_) => {
                let key = HostKey { address: source, inner: 0, way };
                (self.ledger.enter_host_of(now, &key, realm)?, Asker::Host(source.to_be_bytes()))
            }
            Way::Softwire(_) => (HostNumber(0), Asker::B4(source, way)),
        };
        let from = Endpoint::new(number.into(), udp.source_port());
        let answer = self.ledger.serve(&Datagram { now, realm, source: from, asker, payload: udp.payload() });
        let mut copy = [0; MESSAGE_MAX];
        let Some(reply) = answer.as_bytes(udp.payload(), &mut copy) else { return Err(Verdict::LocalIgnored) };
        let own = Ipv6::new_unchecked(packet.bytes()).destination();
        self.send6(realm, (own, SERVER_PORT), (source, udp.source_port()), reply, sink);
        Err(Verdict::Local)
    }

    /// The datagram in an IPv4 packet to 192.0.0.1 and the port of the server; `None` if it is not
    /// sound.
    ///
    /// # Errors The packet is for another port, or the server is off.
    pub(super) fn request_in_softwire<'a>(&self, inner: &'a [u8]) -> Result<Option<Udp<&'a [u8]>>, Verdict> {
        let parsed = parse(inner)?;
        let datagram = inner.get(usize::from(parsed.header_length)..usize::from(parsed.total_length));
        let policy = &self.ledger.shared.settings().port_control;
        if parsed.destination_port != SERVER_PORT || !(policy.pcp || policy.nat_pmp) {
            return Err(Verdict::LocalIgnored);
        }
        let is_sound = |udp: &Udp<&[u8]>| {
            let is_valid = udp.is_checksum_valid(parsed.source, parsed.destination);
            is_valid && parsed.source_port != 0 && !parsed.is_fragment()
        };
        Ok(datagram.and_then(|bytes| Udp::new_checked(bytes).ok()).filter(is_sound))
    }

    /// Serves a request of a host behind a B4 to 192.0.0.1.
    ///
    /// # Errors
    /// Always: the verdict of the packet.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_in_softwire(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        inner: Range<usize>,
        key: &HostKey,
        sink: &mut dyn Sink,
    ) -> Result<(), Verdict> {
        let inner = packet.bytes().get(inner).unwrap_or_default();
        let Some(udp) = self.request_in_softwire(inner)? else {
            self.ledger.counters.port_control_ignored += 1;
            return Err(Verdict::LocalIgnored);
        };
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        if !self.may_ask(now, realm, key.address) {
            return Err(Verdict::LocalIgnored);
        }
        let number = self.ledger.enter_host_of(now, key, realm)?;
        let source = Endpoint::new(number.into(), udp.source_port());
        let asker = Asker::Host(pcp::mapped(key.inner));
        let answer = self.ledger.serve(&Datagram { now, realm, source, asker, payload: udp.payload() });
        let mut copy = [0; MESSAGE_MAX];
        let Some(reply) = answer.as_bytes(udp.payload(), &mut copy) else { return Err(Verdict::LocalIgnored) };
        self.send_inside(realm, key, udp.source_port(), reply, sink);
        Err(Verdict::Local)
    }

    pub(in crate::shard) fn send_update_to_host(&mut self, grant: &Grant, update: &[u8], sink: &mut dyn Sink) {
        let (realm, number, port) = (grant.key().realm, grant.key().address, grant.requester.port);
        let Some(host) = self.ledger.state.subscribers.hosts.get(number).copied() else { return };
        self.ledger.counters.port_control_updates += 1;
        let transition = &self.ledger.shared.transition;
        match host.way() {
            Way::Nat64(_) => {
                let Some(own) = self.own_address6(realm) else { return };
                self.send6(realm, (own, SERVER_PORT), (host.address(), port), update, sink);
            }
            Way::Softwire(position) if grant.requester.is_b4() => {
                let Some(aftr) = transition.softwire(position).map(|end| end.aftr) else { return };
                self.send6(realm, (aftr, SERVER_PORT), (host.address(), port), update, sink);
            }
            way @ Way::Softwire(_) => {
                let key = HostKey { address: host.address(), inner: host.inner(), way };
                self.send_inside(realm, &key, port, update, sink);
            }
        }
    }

    /// Announces on the first inside link of each realm with NAT64.
    pub(in crate::shard) fn announce_to_hosts(&mut self, announcement: &[u8], sink: &mut dyn Sink) {
        for realm in (0..self.ledger.shared.settings().realms() as u16).map(RealmId) {
            let way = self.ledger.shared.transition.way_of_grants(realm);
            let (Some(_), Some(own)) = (way, self.own_address6(realm)) else { continue };
            self.send6(realm, (own, SERVER_PORT), (ALL_NODES, CLIENT_PORT), announcement, sink);
        }
    }

    fn send6(&mut self, realm: RealmId, from: Endpoint6, to: Endpoint6, payload: &[u8], sink: &mut dyn Sink) {
        let Some(egress) = self.hop_to_hosts(realm).filter(|_| !self.is_unused(realm, from.0)) else { return };
        if sink.transmit(egress, &[&headers6(from, to, payload), payload]) {
            self.ledger.counters.originated += 1;
        }
    }

    /// Sends a reply from 192.0.0.1 in a softwire.
    fn send_inside(&mut self, realm: RealmId, to: &HostKey, port: u16, payload: &[u8], sink: &mut dyn Sink) {
        let Way::Softwire(position) = to.way else { return };
        let aftr = self.ledger.shared.transition.softwire(position).map(|end| end.aftr);
        let (Some(aftr), Some(egress)) = (aftr, self.hop_to_hosts(realm)) else { return };
        let from = Endpoint::new(AFTR_INSIDE.into(), SERVER_PORT);
        let client = Endpoint::new(to.inner.into(), port);
        let identification = self.identifications.next(from.address, client.address, ipv4::PROTOCOL_UDP);
        let mut bytes = [0; HEADERS + MESSAGE_MAX];
        let length = HEADERS + payload.len();
        let (header, rest) = bytes.split_at_mut(HEADERS);
        header.copy_from_slice(&headers(from, client, identification, payload));
        let Some(place) = rest.get_mut(..payload.len()) else { return };
        place.copy_from_slice(payload);
        let packet = bytes.get(..length).unwrap_or_default();
        if self.put_in_softwire(egress, (aftr, to.address), packet, sink).is_ok() {
            self.ledger.counters.originated += 1;
        }
    }
}
