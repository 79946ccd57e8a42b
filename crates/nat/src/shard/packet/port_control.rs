//! Requests to the port-control server, its replies, announcements and updates.

use core::net::Ipv4Addr;

use pcp::CLIENT_PORT;
use pcp::SERVER_PORT;
use wire::checksum;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::udp::Udp;

use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::port_control::Answer;
use crate::shard::port_control::Asker;
use crate::shard::port_control::Datagram;
use crate::snapshot::shared::NextHop;
use crate::state::grant::Grant;
use crate::state::grant::Origin;
use crate::steps::untranslated::LocalAnswer;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::InterfaceId;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

pub(in crate::shard) const HEADERS: usize = ipv4::HEADER_LENGTH_MIN + wire::udp::HEADER_LENGTH;
const TTL: u8 = 64;
/// Announcements sent after a loss of state (RFC 6887 §14.1.3, RFC 6886 §3.2.1).
const ANNOUNCEMENTS: u8 = 10;
/// Time between the first two announcements; then it doubles.
const FIRST_GAP_MS: u64 = 250;
const NOTIFIED_PER_CALL: u32 = 64;

/// Announcements still to be sent.
#[derive(Debug, Default)]
pub(in crate::shard) struct Unasked {
    announcements_left: u8,
    /// The announcements are about other addresses, which PCP clients learn from updates.
    only_nat_pmp: bool,
    has_other_addresses: bool,
    announcement_due_ms: u64,
    cursor: u32,
    /// Nothing was due since the round began.
    is_quiet: bool,
}

fn milliseconds(at: Instant) -> u64 {
    at.as_micros() / 1_000
}

/// IPv4 and UDP.
pub(in crate::shard) fn headers(from: Endpoint, to: Endpoint, identification: u16, payload: &[u8]) -> [u8; HEADERS] {
    let mut bytes = [0; HEADERS];
    let (header, datagram) = bytes.split_at_mut(ipv4::HEADER_LENGTH_MIN);
    let length = (wire::udp::HEADER_LENGTH + payload.len()) as u16;
    let mut udp = Udp::new_unchecked(datagram);
    udp.set_source_port(from.port);
    udp.set_destination_port(to.port);
    udp.set_length(length);
    let (source, destination) = (from.address.to_bits(), to.address.to_bits());
    let sum = checksum::pseudo_header(source, destination, ipv4::PROTOCOL_UDP, length);
    let sum = sum.add_u16(from.port).add_u16(to.port).add_u16(length).add_bytes(payload).udp_checksum();
    udp.set_checksum(sum);
    let mut ip = Ipv4::new_unchecked(header);
    ip.set_header_length(ipv4::HEADER_LENGTH_MIN);
    ip.set_total_length(HEADERS as u16 + payload.len() as u16);
    ip.set_identification(identification);
    ip.set_ttl(TTL);
    ip.set_protocol(ipv4::PROTOCOL_UDP);
    ip.set_source(source);
    ip.set_destination(destination);
    ip.fill_checksum();
    bytes
}

impl View<'_> {
    /// A grant's update (RFC 6887 §14.2): the reply a renewal would get.
    fn update_of(&self, now: Instant, grant: &Grant) -> Option<pcp::Reply> {
        let key = grant.key();
        let requester = grant.requester;
        let left = if grant.is_alive(now) { grant.expires().saturating_since(now) } else { Default::default() };
        let map = pcp::Map {
            nonce: requester.nonce,
            protocol: key.protocol.number(),
            internal_port: key.port,
            external_port: grant.external_port,
            external_address: pcp::mapped(grant.external_address),
        };
        let mut options = pcp::Options::default();
        if requester.is_b4() {
            let inner = self.state.subscribers.hosts.get(key.address)?.inner();
            options.third_party = Some(pcp::mapped(inner));
        } else if requester.address != key.address {
            options.third_party = Some(pcp::mapped(key.address.0));
        }
        let lifetime = u32::try_from(left.as_micros().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        let epoch = self.epoch_for(now, key.realm, requester.address);
        match grant.peer() {
            Some((address, remote_port)) => {
                // The host's own form of the address.
                let prefix = self.prefix_of(key.address);
                let remote_address =
                    prefix.map_or_else(|| pcp::mapped(address), |prefix| prefix.embed(address).to_be_bytes());
                let peer = pcp::Peer { map, remote_port, remote_address };
                pcp::peer_update(lifetime, epoch, &peer, &options)
            }
            None => pcp::map_update(lifetime, epoch, &map, &options),
        }
    }
}

impl PacketPath {
    /// Serves a datagram to an inside address of Natrix.
    #[cold]
    pub(in crate::shard) fn serve_port_control(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let source = Endpoint::new(parsed.source.into(), parsed.source_port);
        let facing = self.ledger.shared.facing(meta.ingress);
        let start = usize::from(parsed.header_length);
        let datagram = bytes.get(start..usize::from(parsed.total_length)).unwrap_or_default();
        let Ok(udp) = Udp::new_checked(datagram) else { return Fate::Done(Verdict::LocalIgnored) };
        if parsed.is_fragment() || parsed.source_port == 0 || !udp.is_checksum_valid(parsed.source, parsed.destination)
        {
            self.ledger.counters.port_control_ignored += 1;
            return Fate::Done(Verdict::LocalIgnored);
        }
        if !self.requests.allow(now, (facing, source.address)) {
            self.ledger.counters.port_control_limited += 1;
            return Fate::Done(Verdict::LocalIgnored);
        }
        let payload = udp.payload();
        let request = Datagram { now, realm: facing.realm, source, asker: Asker::Ipv4, payload };
        let answer = self.ledger.serve(&request);
        let from = Endpoint::new(parsed.destination.into(), SERVER_PORT);
        if let Answer::Elsewhere(subject) = answer {
            return self.hand_request_to(self.ledger.shared.worker_of_subscriber(subject), at, bytes, sink);
        }
        let mut copy = [0; pcp::MESSAGE_MAX];
        let Some(reply) = answer.as_bytes(payload, &mut copy) else { return Fate::Done(Verdict::LocalIgnored) };
        self.send_from(facing, from, source, reply, sink);
        Fate::Done(Verdict::Local)
    }

    /// Limits a request for another worker before it takes room in a ring. `None` if it is not a
    /// request.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn pass_request_on(
        &mut self,
        owner: WorkerId,
        at: Arrival<'_>,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) -> Option<Fate> {
        let Arrival { now, meta, parsed } = at;
        let facing = self.ledger.shared.facing(meta.ingress);
        let is_request = self.view().decide_local(facing, parsed) == Ok(LocalAnswer::PortControl);
        if !is_request || parsed.is_fragment() || HostNumber(parsed.source).is_ipv6() {
            return None;
        }
        if !self.requests.allow(now, (facing, parsed.source.into())) {
            self.ledger.counters.port_control_limited += 1;
            return Some(Fate::Done(Verdict::LocalIgnored));
        }
        Some(self.hand_request_to(owner, at, bytes, sink))
    }

    /// The sink keeps room in the ring for other packets.
    fn hand_request_to(&mut self, worker: WorkerId, at: Arrival<'_>, bytes: &[u8], sink: &mut dyn Sink) -> Fate {
        let packet = bytes.get(..usize::from(at.parsed.total_length)).unwrap_or_default();
        if sink.hand_off(worker, PacketMeta { stage: Stage::PortControl, ..at.meta }, &[packet]) {
            self.ledger.counters.handed_off += 1;
            return Fate::Held;
        }
        self.ledger.counters.port_control_limited += 1;
        Fate::Done(Verdict::LocalIgnored)
    }

    fn send_from(&mut self, towards: Facing, from: Endpoint, to: Endpoint, payload: &[u8], sink: &mut dyn Sink) {
        let Some(hop) = self.ledger.shared.route(towards, to.address.to_bits(), from.address.to_bits()) else { return };
        self.send_by(&hop, from, to, payload, sink);
    }

    fn send_by(&mut self, hop: &NextHop, from: Endpoint, to: Endpoint, payload: &[u8], sink: &mut dyn Sink) {
        if HEADERS + payload.len() > usize::from(hop.mtu) {
            return;
        }
        let identification = self.identifications.next(from.address, to.address, ipv4::PROTOCOL_UDP);
        if self.emit(hop.egress(), &[&headers(from, to, identification, payload), payload], sink).is_ok() {
            self.ledger.counters.originated += 1;
        }
    }

    pub(in crate::shard) fn announce_from(&mut self, now: Instant) {
        self.unasked.announcements_left = ANNOUNCEMENTS;
        self.unasked.announcement_due_ms = milliseconds(now);
        self.unasked.only_nat_pmp = false;
    }

    /// Announced to NAT-PMP clients (RFC 6886 §3.2.1).
    pub(in crate::shard) fn note_other_addresses(&mut self) {
        self.unasked.has_other_addresses = true;
    }

    fn announce_other_addresses(&mut self, now: Instant) {
        self.ledger.state.grants.note_addresses_changed(now);
        let is_lost = self.unasked.announcements_left > 0 && !self.unasked.only_nat_pmp;
        self.announce_from(now);
        self.unasked.only_nat_pmp = !is_lost;
    }

    pub(in crate::shard) fn send_unasked(&mut self, now: Instant, sink: &mut dyn Sink) {
        if core::mem::take(&mut self.unasked.has_other_addresses) {
            self.announce_other_addresses(now);
        }
        if self.unasked.announcements_left > 0 && milliseconds(now) >= self.unasked.announcement_due_ms {
            self.announce(now, sink);
        }
        if self.ledger.updates_pending {
            self.send_updates(now, sink);
        }
    }

    /// Sends an announcement to all clients of each inside link.
    #[cold]
    fn announce(&mut self, now: Instant, sink: &mut dyn Sink) {
        let sent = ANNOUNCEMENTS - self.unasked.announcements_left;
        self.unasked.announcements_left -= 1;
        self.unasked.announcement_due_ms = milliseconds(now) + (FIRST_GAP_MS << sent);
        // One worker announces for all.
        if self.ledger.worker != WorkerId(0) {
            return;
        }
        let shared = std::sync::Arc::clone(&self.ledger.shared);
        let policy = &shared.settings().port_control;
        let to = Endpoint::new(Ipv4Addr::from(pcp::ALL_CLIENTS), CLIENT_PORT);
        let epoch = self.ledger.state.grants.epoch(RealmId::default(), HostNumber(0), now);
        let mut external = shared.settings().pools.iter().flat_map(|pool| pool.addresses.iter());
        let only = match (external.next(), external.next()) {
            (Some(only), None) => only.to_bits(),
            // With several external addresses, each subscriber asks for its own.
            _ => 0,
        };
        if policy.pcp && !self.unasked.only_nat_pmp {
            self.announce_to_hosts(pcp::announcement(epoch).as_bytes(), sink);
        }
        let common = self.ledger.state.grants.common_epoch(now);
        let notice = pcp::nat_pmp::address(pcp::nat_pmp::Code::Success, common, only);
        for (number, interface) in shared.settings().interfaces.iter().enumerate() {
            let hop = shared.on_link(InterfaceId(number as u16));
            let (Side::Inside, Some(own), Some(hop)) = (interface.side, interface.addresses.first(), hop) else {
                continue;
            };
            let from = Endpoint::new(own.address, SERVER_PORT);
            if policy.pcp && !self.unasked.only_nat_pmp {
                self.send_by(&hop, from, to, pcp::announcement(epoch).as_bytes(), sink);
            }
            if policy.nat_pmp {
                self.send_by(&hop, from, to, &notice, sink);
            }
        }
    }

    #[cold]
    fn send_updates(&mut self, now: Instant, sink: &mut dyn Sink) {
        let end = self.ledger.state.grants.walk_end();
        let first = self.unasked.cursor.max(1);
        if first == 1 {
            self.unasked.is_quiet = true;
        }
        let stop = first.saturating_add(NOTIFIED_PER_CALL).min(end);
        for index in first..stop {
            let grant = *self.ledger.state.grants.get(index);
            if !grant.is_in_use() || grant.updates_left == 0 {
                continue;
            }
            self.unasked.is_quiet = false;
            if milliseconds(now) < grant.update_due_ms {
                continue;
            }
            self.send_update(now, &grant, sink);
            let grant = self.ledger.state.grants.get_mut(index);
            let sent = grant.update_number;
            grant.updates_left -= 1;
            grant.update_number += 1;
            grant.update_due_ms = milliseconds(now) + (FIRST_GAP_MS << sent.min(8));
        }
        self.unasked.cursor = if stop >= end { 1 } else { stop };
        if stop >= end && self.unasked.is_quiet {
            self.ledger.updates_pending = false;
        }
    }

    fn send_update(&mut self, now: Instant, grant: &Grant, sink: &mut dyn Sink) {
        if grant.origin() != Origin::Pcp {
            return;
        }
        let Some(update) = self.view().update_of(now, grant) else { return };
        if grant.key().address.is_ipv6() {
            self.send_update_to_host(grant, update.as_bytes(), sink);
            return;
        }
        let to = Endpoint::new(grant.requester.address.into(), grant.requester.port);
        let facing = Facing::inside(grant.key().realm);
        let Some(own) = self.ledger.shared.own_address_towards(facing, grant.requester.address.0) else { return };
        self.ledger.counters.port_control_updates += 1;
        self.send_from(facing, Endpoint::new(own.into(), SERVER_PORT), to, update.as_bytes(), sink);
    }
}
