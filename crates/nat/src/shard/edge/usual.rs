//! The short way of usual packets from IPv6 hosts: TCP and UDP where it always is, of hosts with a
//! record and probably of established sessions.

use core::hint::select_unpredictable;

use translate::Further;
use translate::Halves;
use wire::ipv6;
use wire::ipv6::Ipv6;

use crate::headers::packet::Egress;
use crate::headers::packet::Packet;
use crate::headers::packet::Sink;
use crate::headers::parse::HEADERS;
use crate::headers::parse::be16;
use crate::headers::parse::be32;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::rewrite::End;
use crate::headers::rewrite::replace_address;
use crate::headers::rewrite::rewrite_headers;
use crate::policy::steady_timers::SteadyClock;
use crate::shard::burst::established::Kind as Steadiness;
use crate::shard::burst::established::Outgoing;
use crate::shard::burst::established::Scratch;
use crate::shard::burst::established::has_right_checksum;
use crate::shard::edge::HostPackets;
use crate::shard::edge::arrive::Places;
use crate::shard::edge::arrive::each;
use crate::shard::edge::enter::DSCP;
use crate::shard::edge::enter::class_inside;
use crate::shard::edge::is_plain;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::snapshot::transition::Taker;
use crate::state::host::HostWords;
use crate::state::host::Way;
use crate::state::mapping::InternalKey;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;

const PROTOCOL_TCP: u8 = wire::ipv4::PROTOCOL_TCP;
const PROTOCOL_UDP: u8 = wire::ipv4::PROTOCOL_UDP;

/// A TCP or UDP packet whose headers are where they always are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plain {
    pub(super) hash: u64,
    destination: u32,
    /// As IPv4.
    pub(super) length: u16,
    position: u8,
}

#[inline(always)]
fn words_in_softwire(packet: &Packet<'_>, position: u8) -> Option<HostWords> {
    let header = packet.chunk::<{ ipv6::HEADER_LENGTH + HEADERS }>(0)?;
    let (outer, inner) = (header.first_chunk()?, header.last_chunk::<HEADERS>()?);
    Some(HostWords::new(Halves::source(outer), get_u32(inner, ip::SOURCE), Way::Softwire(position)))
}

/// The table key without the host's number. The transport header must start where it does behind an
/// option-free IPv4 header.
#[inline(always)]
fn internal_of(header: &[u8; HEADERS], is_tcp: bool, realm: RealmId) -> u64 {
    let protocol = select_unpredictable(is_tcp, Protocol::Tcp, Protocol::Udp);
    InternalKey { realm, protocol, address: HostNumber(0), port: be16::<20>(header) }.word()
}

/// Pending packets without a mapping take other ways, which read IPv4.
pub(in crate::shard) fn write_unsettled(scratch: &mut Scratch, burst: &mut [Packet<'_>]) {
    for i in each(scratch.hosts.pending & scratch.unsettled) {
        let Some(packet) = burst.get_mut(i) else { break };
        write_pending(&mut scratch.hosts, packet, i);
    }
}

/// Turns a pending packet into IPv4, from its host's number.
#[inline(never)]
pub(in crate::shard) fn write_pending(hosts: &mut HostPackets, packet: &mut Packet<'_>, i: usize) {
    hosts.pending &= !(1 << i);
    packet.meta.record = 0;
    let number = hosts.internal[i] as u32;
    if hosts.nat64 >> i & 1 == 0 {
        if let Some(header) = packet.header_mut() {
            replace_address(header, End::Source, number);
        }
    } else if let Some(header) = header_to_translate(packet) {
        translate::plain_to_ipv4(header, number, hosts.plain[i].destination, None);
    }
}

/// The packet begins where its IPv4 header will be.
#[inline(always)]
fn header_to_translate<'a>(packet: &'a mut Packet<'_>) -> Option<&'a mut [u8; translate::PLAIN]> {
    let start = usize::from(packet.start()).checked_sub(ipv6::HEADER_LENGTH - ip::HEADER_MIN)?;
    packet.frame_mut().get_mut(start..start + translate::PLAIN)?.first_chunk_mut()
}

impl PacketPath {
    /// [`PacketPath::look_at_edge`] for usual packets of this worker's hosts, which it notes; false
    /// for others. A host with a record has passed the checks of its address.
    #[inline(always)]
    pub(super) fn look_at_plain(
        &self,
        packet: &Packet<'_>,
        realm: RealmId,
        i: usize,
        scratch: &mut Scratch,
        places: &mut Places,
    ) -> bool {
        let Some(header) = packet.chunk::<{ translate::PLAIN }>(0) else { return false };
        let (Some(outer), Some(behind)) = (header.first_chunk(), header.last_chunk::<HEADERS>()) else { return false };
        let (source, destination) = (Halves::source(outer), Halves::destination(outer));
        let shared = &self.ledger.shared;
        let hosts = &self.ledger.state.subscribers.hosts;
        if shared.workers() > 1 && shared.worker_of_host(source.address()) != self.ledger.worker {
            return false;
        }
        // Each branch records its own result, so that no later code has to test the branch again.
        match shared.transition.taker_of(realm, destination) {
            None => false,
            Some(Taker::Nat64(position, nat64)) => {
                let Some(plain) = translate::plain_headers6(header, packet.room()) else { return false };
                let (has_lengths, kind) = Steadiness::of_host(behind, plain.is_tcp, plain.length);
                if !has_lengths || plain.is_at_last_hop {
                    return false;
                }
                let Some(destination) = nat64.prefix.destination_within(destination) else { return false };
                let hash = hosts.hash_of_words(HostWords::new(source, 0, Way::Nat64(position)));
                scratch.kind[i] = kind;
                scratch.hosts.plain[i] = Plain { hash, destination, length: plain.length as u16, position };
                scratch.hosts.internal[i] = internal_of(behind, plain.is_tcp, realm);
                places.nat64 |= 1 << i;
                true
            }
            Some(Taker::Softwire(position, end)) => {
                let Some(inner) = packet.chunk::<HEADERS>(ipv6::HEADER_LENGTH) else { return false };
                let view = Ipv6::new_unchecked(header);
                let length = usize::from(view.payload_length());
                let (outer_class, inner_class) = (view.traffic_class(), inner[1]);
                let is_usual = header[0] >> 4 == 6
                    && header[ipv6::NEXT_HEADER_OFFSET] == ipv6::PROTOCOL_IPV4
                    && packet.has(ipv6::HEADER_LENGTH + length)
                    && get_u32(inner, ip::DESTINATION) != AFTR_INSIDE
                    && is_plain(inner, length)
                    // Most outer headers have no other class, and no mark to take over.
                    && (outer_class ^ inner_class) & DSCP == 0
                    && (outer_class & 1 == 0 || class_inside(outer_class, inner_class) == Some(inner_class))
                    && !self.is_unused(realm, end.aftr)
                    && end.serves_halves(source);
                if !is_usual {
                    return false;
                }
                let words = HostWords::new(source, get_u32(inner, ip::SOURCE), Way::Softwire(position));
                let hash = hosts.hash_of_words(words);
                let is_tcp = inner[ip::PROTOCOL] == PROTOCOL_TCP;
                let (has_lengths, kind) = Steadiness::of_host(inner, is_tcp, length);
                let is_checked = (inner[ip::TTL] > 1) & has_right_checksum(inner) & has_lengths;
                let destination = be32::<{ ip::DESTINATION }>(inner);
                scratch.kind[i] = select_unpredictable(is_checked, kind, Steadiness::ODD);
                scratch.hosts.plain[i] = Plain { hash, destination, length: length as u16, position };
                scratch.hosts.internal[i] = internal_of(inner, is_tcp, realm);
                places.softwire |= 1 << i;
                true
            }
        }
    }

    /// False, and the packet is unchanged, unless its host has the expected record.
    #[inline(always)]
    pub(super) fn enter_plain(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        i: usize,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(header) = packet.chunk(0) else { return false };
        let words = HostWords::new(Halves::source(header), 0, Way::Nat64(scratch.hosts.plain[i].position));
        let hosts = &mut self.ledger.state.subscribers.hosts;
        let Some(number) = hosts.enter_expected(now, scratch.hosts.candidates[i], words) else { return false };
        self.expect_session(packet, i, (number, ipv6::HEADER_LENGTH - ip::HEADER_MIN), scratch);
        true
    }

    /// As [`PacketPath::enter_plain`].
    #[inline(always)]
    pub(super) fn enter_plain_from_softwire(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        i: usize,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(words) = words_in_softwire(packet, scratch.hosts.plain[i].position) else { return false };
        let hosts = &mut self.ledger.state.subscribers.hosts;
        let Some(number) = hosts.enter_expected(now, scratch.hosts.candidates[i], words) else { return false };
        self.expect_session(packet, i, (number, ipv6::HEADER_LENGTH), scratch);
        true
    }

    /// Handles a host without a record, or with one outside its home place in the table. Returns
    /// the packet's bit if it is finished.
    #[cold]
    #[inline(never)]
    pub(super) fn enter_unexpected(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        i: usize,
        scratch: &mut Scratch,
        sink: &mut dyn Sink,
    ) -> u64 {
        let Plain { hash, position, .. } = scratch.hosts.plain[i];
        let is_nat64 = scratch.hosts.nat64 >> i & 1 != 0;
        let words = match is_nat64 {
            true => packet.chunk(0).map(|header| HostWords::new(Halves::source(header), 0, Way::Nat64(position))),
            false => words_in_softwire(packet, position),
        };
        let number = words.and_then(|words| self.ledger.state.subscribers.hosts.enter_known(now, hash, &words));
        let cut = if is_nat64 { ipv6::HEADER_LENGTH - ip::HEADER_MIN } else { ipv6::HEADER_LENGTH };
        if let Some(number) = number {
            self.expect_session(packet, i, (number, cut), scratch);
            return 0;
        }
        scratch.hosts.pending &= !(1 << i);
        self.enter_new_host(now, packet, i, sink)
    }

    /// The IPv4 header of a packet from this host will be `cut` bytes on. A steady packet's session
    /// is probably established, so nothing is written yet.
    #[inline(always)]
    fn expect_session(
        &mut self,
        packet: &mut Packet<'_>,
        i: usize,
        (number, cut): (HostNumber, usize),
        scratch: &mut Scratch,
    ) {
        packet.set_start(usize::from(packet.start()) + cut);
        let internal = scratch.hosts.internal[i] | u64::from(number.0);
        scratch.hosts.internal[i] = internal;
        if !scratch.kind[i].is_steady() || self.is_long_way_only() {
            write_pending(&mut scratch.hosts, packet, i);
            return;
        }
        scratch.place[i] = self.ledger.state.hash_of_word(internal);
    }

    /// Refreshes the session of a pending packet. `None`, and nothing has changed, if it is
    /// unusual.
    #[inline(always)]
    pub(in crate::shard) fn steady_pending(
        &mut self,
        clock: &SteadyClock,
        header: &[u8; HEADERS],
        i: usize,
        scratch: &mut Scratch,
    ) -> Option<Egress> {
        let Plain { destination, length, .. } = scratch.hosts.plain[i];
        let outgoing = Outgoing { internal: scratch.hosts.internal[i], destination, length };
        let (egress, external) = self.refresh_out(clock, header, scratch.kind[i], scratch.record[i], outgoing)?;
        scratch.hosts.ends[i] = external;
        Some(egress)
    }

    /// Nothing else has written to the headers of pending packets.
    #[inline(always)]
    pub(super) fn write_sources(&mut self, scratch: &mut Scratch, burst: &mut [Packet<'_>]) {
        let (kinds, hosts) = (&scratch.kind, &mut scratch.hosts);
        let translated = hosts.pending & hosts.nat64;
        // In its own loop, so that waits for the counters overlap.
        for i in each(translated) {
            let Plain { destination, length, .. } = hosts.plain[i];
            let protocol = select_unpredictable(kinds[i].is_tcp(), PROTOCOL_TCP, PROTOCOL_UDP);
            hosts.identifications[i] = match translate::may_be_fragmented(length) {
                true => self.identifications.next_inline(hosts.ends[i].0.into(), destination.into(), protocol),
                false => 0,
            };
        }
        for i in each(translated) {
            let Some(packet) = burst.get_mut(i) else { break };
            let Some(header) = header_to_translate(packet) else { break };
            let (address, port) = hosts.ends[i];
            let further = Further { port, identification: hosts.identifications[i] };
            translate::plain_to_ipv4(header, address, hosts.plain[i].destination, Some(further));
        }
        for i in each(hosts.pending & !hosts.nat64) {
            let Some(packet) = burst.get_mut(i) else { break };
            let destination = hosts.plain[i].destination;
            let (address, port) = hosts.ends[i];
            let Some(header) = packet.header_mut() else { break };
            let identification = self.plain_identification(header, address, destination);
            rewrite_headers(header, kinds[i].is_tcp(), End::Source, address, port, identification);
        }
    }
}
