//! Whole UDP and TCP packets of established sessions, a burst at a time.
//!
//! Passes of [`PacketPath::process`](crate::shard::Shard::process):
//!
//! 1. [`PacketPath::look_at`] prefetches a line of the outbound or the port table.
//! 2. [`PacketPath::aim`] reads it and prefetches the mapping record.
//! 3. [`first_packet`](crate::shard::burst::first_packet) has its own passes.
//! 4. [`PacketPath::steady_out`] and [`PacketPath::steady_in`] compare, refresh and rewrite.
//!
//! Each pass prefetches in one tight loop, because page walks overlap only if close together in the
//! code, and into the second-level cache, because the first drops some of many prefetches
//! (docs/performance.md).
//!
//! UDP and TCP values are selected without a branch: the next packet's protocol is unpredictable,
//! and one misprediction costs as much as all the rest.
//!
//! Further sessions, and those that filters must be asked about, are in
//! [`judged_anew`](crate::shard::burst::judged_anew). Unusual packets (another state, flags,
//! options, fragments, a smaller MTU) stay untouched for `outbound` and `inbound`, which decide
//! alike.

use core::hint::select_unpredictable;

use wire::checksum::end_around;

use crate::external::ports::PortAim;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Packet;
use crate::headers::packet::Stage;
use crate::headers::parse::Class;
use crate::headers::parse::HEADERS;
use crate::headers::parse::be16;
use crate::headers::parse::be32;
use crate::headers::parse::parse;
use crate::headers::rewrite::End;
use crate::headers::rewrite::rewrite_headers;
use crate::policy::rules::Ruling;
use crate::policy::steady_timers::SteadyClock;
use crate::shard::burst::first_packet::Wanted;
use crate::shard::edge::HostPackets;
use crate::shard::packet::PacketPath;
use crate::state::mapping::InternalKey;
use crate::state::mapping::Mapping;
use crate::state::mapping::steady_remote;
use crate::state::tcp;
use crate::steps::opening::Drawn;
use crate::steps::opening::Hints;
use crate::types::HostNumber;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::shard) struct Kind(u8);

impl Kind {
    pub(in crate::shard) const ODD: Kind = Kind(0);
    const OUT: u8 = 1 << 0;
    /// `place` is its index in the port table.
    const IN: u8 = 1 << 1;
    const TCP: u8 = 1 << 2;
    /// Its headers are usual.
    const STEADY: u8 = 1 << 3;
    /// Usual, but another worker's: `place` has the worker and, from [`RECORD_SHIFT`] on, its
    /// record.
    const FOREIGN: u8 = 1 << 4;
    /// With [`Kind::IN`]: `place` is the record another worker found.
    const FOUND: u8 = 1 << 5;

    /// `header` has the TCP or UDP header where an option-free IPv4 header would put it; what
    /// precedes is arbitrary. `length` is the IPv4 packet's. Also whether the lengths agree.
    #[inline(always)]
    pub(in crate::shard) fn of_host(header: &[u8; HEADERS], is_tcp: bool, length: usize) -> (bool, Kind) {
        let (has_lengths, _) = transport(header, is_tcp, length);
        let is_steady = !is_tcp | (header[33] & 0x17 == 0x10);
        // Sums cost less here than the selection of the whole.
        let kind = Kind::OUT | (u8::from(is_tcp) * Kind::TCP) | (u8::from(is_steady) * Kind::STEADY);
        (has_lengths, Kind(kind))
    }

    #[inline(always)]
    pub(in crate::shard) const fn is_out(self) -> bool {
        self.0 & Kind::OUT != 0
    }

    #[inline(always)]
    pub(in crate::shard) const fn is_steady(self) -> bool {
        self.0 & Kind::STEADY != 0
    }

    #[inline(always)]
    pub(in crate::shard) const fn is_foreign(self) -> bool {
        self.0 & Kind::FOREIGN != 0
    }

    #[inline(always)]
    pub(in crate::shard) const fn is_tcp(self) -> bool {
        self.0 & Kind::TCP != 0
    }

    /// Index in a [`Tally`]: bit 0 from outside, bit 1 TCP.
    #[inline(always)]
    pub(in crate::shard) const fn tally(self) -> usize {
        (self.0 >> 1 & 3) as usize
    }
}

const RECORD_SHIFT: u32 = 8;

/// For an option-free IPv4 header.
#[inline(always)]
pub(in crate::shard) fn has_right_checksum(header: &[u8; HEADERS]) -> bool {
    let word = |i: usize| u64::from(u32::from_ne_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]));
    end_around(word(0) + word(4) + word(8) + word(12) + word(16)) == 0xffff
}

/// Whether the lengths agree, and the kind without its direction.
#[inline(always)]
fn transport(header: &[u8; HEADERS], is_tcp: bool, length: usize) -> (bool, u8) {
    let transport_length =
        select_unpredictable(is_tcp, usize::from(header[32] >> 4) * 4, usize::from(be16::<24>(header)));
    let least = select_unpredictable(is_tcp, 20, 8);
    // SYN, FIN and RST change states.
    let tcp_steady = if header[33] & 0x17 == 0x10 { Kind::TCP | Kind::STEADY } else { Kind::TCP };
    let kind = select_unpredictable(is_tcp, tcp_steady, Kind::STEADY);
    ((transport_length >= least) & (transport_length + 20 <= length), kind)
}

/// What the short way reads of a packet from inside, besides its transport header.
#[derive(Clone, Copy)]
pub(in crate::shard) struct Outgoing {
    /// [`InternalKey::word`].
    pub(in crate::shard) internal: u64,
    pub(in crate::shard) destination: u32,
    pub(in crate::shard) length: u16,
}

/// Kept between bursts, because clearing it would cost more than a packet. Valid only after its
/// pass.
pub(in crate::shard) struct Scratch {
    pub(in crate::shard) kind: [Kind; BURST_MAX],
    pub(in crate::shard) place: [u64; BURST_MAX],
    /// 0 for none.
    pub(in crate::shard) record: [u32; BURST_MAX],
    /// Here and below one bit a packet: the mapping may be in a further bucket.
    pub(in crate::shard) further: u64,
    /// From inside, apparently without a mapping.
    pub(in crate::shard) unsettled: u64,
    /// Unsettled, with a candidate port.
    pub(in crate::shard) aimed: u64,
    /// From outside to a port that endpoint-dependent sessions share.
    pub(in crate::shard) shared: u64,
    /// With a candidate endpoint-dependent session.
    pub(in crate::shard) flows: u64,
    pub(in crate::shard) flow_hash: [u64; BURST_MAX],
    /// Valid for `flows`.
    pub(in crate::shard) flow: [u32; BURST_MAX],
    /// From here on valid for `unsettled`.
    pub(in crate::shard) realm: [RealmId; BURST_MAX],
    pub(in crate::shard) subscriber_hash: [u64; BURST_MAX],
    /// 0 if unknown.
    pub(in crate::shard) subscriber: [u32; BURST_MAX],
    pub(in crate::shard) port: [Option<PortAim>; BURST_MAX],
    /// Valid without a subscriber.
    pub(in crate::shard) drawn: [Option<Drawn>; BURST_MAX],
    /// From here on valid for `aimed`.
    pub(in crate::shard) wanted: [Wanted; BURST_MAX],
    pub(in crate::shard) port_place: [usize; BURST_MAX],
    /// Valid for `unsettled`.
    pub(in crate::shard) ruling: [Ruling; BURST_MAX],
    /// The filter that permits it.
    pub(in crate::shard) filter: [Option<u32>; BURST_MAX],
    /// Rules or filters need the general way.
    pub(in crate::shard) refused: u64,
    /// Filters permit the answers, too.
    pub(in crate::shard) answers_permitted: u64,
    pub(in crate::shard) hosts: HostPackets,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            kind: [Kind::ODD; BURST_MAX],
            place: [0; BURST_MAX],
            record: [0; BURST_MAX],
            further: 0,
            unsettled: 0,
            aimed: 0,
            shared: 0,
            flows: 0,
            flow_hash: [0; BURST_MAX],
            flow: [0; BURST_MAX],
            realm: [RealmId(0); BURST_MAX],
            subscriber_hash: [0; BURST_MAX],
            subscriber: [0; BURST_MAX],
            port: [None; BURST_MAX],
            drawn: [None; BURST_MAX],
            wanted: [Wanted::NONE; BURST_MAX],
            port_place: [0; BURST_MAX],
            ruling: [Ruling::DEFAULT; BURST_MAX],
            filter: [None; BURST_MAX],
            refused: 0,
            answers_permitted: u64::MAX,
            hosts: HostPackets::default(),
        }
    }
}

impl Scratch {
    #[inline(always)]
    pub(in crate::shard) fn abroad(&self, i: usize) -> (WorkerId, u32) {
        (WorkerId(self.place[i] as u8), (self.place[i] >> RECORD_SHIFT) as u32)
    }

    /// Of an unsettled packet: true for a usual one of a source without a record.
    #[inline]
    pub(in crate::shard) fn may_be_new(&self, i: usize) -> bool {
        self.subscriber[i] == 0 && (self.kind[i].is_tcp() || self.kind[i].is_steady())
    }

    #[inline]
    pub(in crate::shard) fn hints(&self, i: usize) -> Hints {
        let hash = if self.kind[i].is_out() { self.place[i] } else { 0 };
        if self.unsettled >> i & 1 == 0 {
            return Hints::of(hash);
        }
        let is_drawn = self.aimed >> i & 1 == 0 && self.may_be_new(i);
        let drawn = if is_drawn { self.drawn[i] } else { None };
        Hints { hash, subscriber: self.subscriber[i], aim: self.port[i], drawn }
    }
}

const _: () = assert!(Kind::IN == 1 << 1 && Kind::TCP == 1 << 2, "see Kind::tally");

/// By [`Kind::tally`].
#[derive(Default)]
pub(in crate::shard) struct Tally {
    pub(in crate::shard) packets: [u64; 4],
    pub(in crate::shard) bytes: [u64; 4],
}

impl PacketPath {
    #[inline(always)]
    pub(in crate::shard) fn look(&self, packet: &Packet<'_>) -> (Kind, u64) {
        let Some(header) = packet.chunk::<HEADERS>(0) else { return self.look_odd(packet) };
        let length = usize::from(be16::<2>(header));
        let is_tcp = header[9] == 6;
        let (has_lengths, kind) = transport(header, is_tcp, length);
        let plain = (header[0] == 0x45)
            & (be16::<6>(header) & 0x3fff == 0)
            & (header[8] > 1)
            & (is_tcp | (header[9] == 17))
            & has_right_checksum(header)
            & packet.has(length)
            & has_lengths
            & matches!(packet.meta.stage, Stage::Received | Stage::Steered);
        if !plain {
            return self.look_odd(packet);
        }
        let protocol = select_unpredictable(is_tcp, Protocol::Tcp, Protocol::Udp);
        let facing = self.ledger.shared.facing(packet.meta.ingress);
        if facing.side == Side::Inside {
            let source = be32::<12>(header);
            let owner = self.ledger.shared.worker_of_subscriber(HostNumber(source));
            if owner != self.ledger.worker {
                return (Kind(Kind::FOREIGN | Kind::OUT), u64::from(owner.0));
            }
            let key =
                InternalKey { realm: facing.realm, protocol, address: HostNumber(source), port: be16::<20>(header) };
            let hash = self.ledger.state.hash_of(&key);
            return (Kind(kind | Kind::OUT), hash);
        }
        if packet.meta.record != 0 && kind & Kind::STEADY != 0 {
            // The last pass verifies the record.
            return (Kind(kind | Kind::IN | Kind::FOUND), u64::from(packet.meta.record));
        }
        match self.ledger.local.pool_address(be32::<16>(header)) {
            Some(address) => {
                let place = self.ledger.shared.ports.place(address, protocol, be16::<22>(header));
                (Kind(kind | Kind::IN), place as u64)
            }
            None => (Kind::ODD, 0),
        }
    }

    #[inline]
    pub(crate) fn first_pass(&self, packet: &Packet<'_>) -> u64 {
        self.look(packet).1
    }

    /// Only prefetches.
    #[cold]
    #[inline(never)]
    fn look_odd(&self, packet: &Packet<'_>) -> (Kind, u64) {
        let Ok(parsed) = parse(packet.bytes()) else { return (Kind::ODD, 0) };
        let Some(protocol) = parsed.protocol() else { return (Kind::ODD, 0) };
        if matches!(parsed.class, Class::LaterFragment | Class::IcmpError) {
            return (Kind::ODD, 0);
        }
        let hairpin = matches!(packet.meta.stage, Stage::Hairpin | Stage::HairpinFragment | Stage::OwnError);
        let facing = self.ledger.shared.facing(packet.meta.ingress);
        if !hairpin && facing.side == Side::Inside {
            let key = InternalKey {
                realm: facing.realm,
                protocol,
                address: HostNumber(parsed.source),
                port: parsed.source_port,
            };
            let hash = self.ledger.state.hash_of(&key);
            return (Kind(Kind::OUT), hash);
        }
        match self.ledger.local.pool_address(parsed.destination) {
            Some(address) => {
                let place = self.ledger.shared.ports.place(address, protocol, parsed.destination_port);
                (Kind(Kind::IN), place as u64)
            }
            None => (Kind::ODD, 0),
        }
    }

    /// Skips packets whose kind the edge has noted.
    #[inline(always)]
    pub(in crate::shard) fn look_at<const HOSTS: bool>(&self, scratch: &mut Scratch, burst: &[Packet<'_>]) {
        let count = burst.len().min(BURST_MAX);
        (scratch.further, scratch.unsettled, scratch.aimed) = (0, 0, 0);
        (scratch.shared, scratch.flows) = (0, 0);
        for (i, packet) in burst[..count].iter().enumerate() {
            if !HOSTS || !scratch.hosts.is_pending(i) {
                (scratch.kind[i], scratch.place[i]) = self.look(packet);
            }
        }
        for i in 0..count {
            let (kind, place) = (scratch.kind[i].0, scratch.place[i]);
            if kind & (Kind::OUT | Kind::FOREIGN) == Kind::OUT {
                self.ledger.state.outbound.prefetch(place);
            } else if kind & Kind::FOUND != 0 {
                self.ledger.state.mappings.prefetch_write(place as u32);
            } else {
                self.ledger.shared.ports.prefetch(place as usize);
            }
        }
        if self.ledger.route_cache.is_filled() {
            self.request_routes(scratch, &burst[..count]);
        }
    }

    /// Requests the bytes of a filled table of routes. A loop of its own, so that bursts without
    /// such a table pay nothing.
    #[inline(never)]
    fn request_routes(&self, scratch: &Scratch, burst: &[Packet<'_>]) {
        for (packet, kind) in burst.iter().zip(&scratch.kind) {
            if kind.0 & (Kind::OUT | Kind::FOREIGN) == Kind::OUT
                && let Some(header) = packet.chunk::<HEADERS>(0)
            {
                self.ledger.shared.request_steady_out(be32::<16>(header));
            }
        }
    }

    #[inline(always)]
    pub(in crate::shard) fn aim(&self, scratch: &mut Scratch, count: usize) {
        for i in 0..count.min(BURST_MAX) {
            let kind = scratch.kind[i];
            scratch.record[i] = if kind.0 & (Kind::OUT | Kind::FOREIGN) == Kind::OUT {
                let (record, goes_on) = self.ledger.state.outbound.candidate(scratch.place[i]);
                if record == 0 {
                    self.aim_further(scratch, i, goes_on);
                }
                record
            } else if kind.0 & Kind::FOUND != 0 {
                scratch.place[i] as u32
            } else if kind.0 & Kind::IN != 0 {
                match self.ledger.shared.ports.lookup_at(scratch.place[i] as usize) {
                    // This worker may have the session to one of several targets.
                    None => {
                        scratch.shared |= u64::from(!self.ledger.shared.balance.is_empty()) << i;
                        0
                    }
                    Some((_, record)) if record.is_shared() => {
                        scratch.shared |= 1 << i;
                        0
                    }
                    Some((worker, record)) if worker == self.ledger.worker => record.0,
                    Some((worker, record)) => {
                        aim_abroad(scratch, i, worker, record);
                        0
                    }
                }
            } else {
                0
            };
        }
        for record in &scratch.record[..count.min(BURST_MAX)] {
            self.ledger.state.mappings.prefetch_write(*record);
        }
    }

    #[inline(never)]
    fn aim_further(&self, scratch: &mut Scratch, i: usize, goes_on: bool) {
        scratch.unsettled |= 1 << i;
        (scratch.subscriber[i], scratch.port[i]) = (0, None);
        scratch.further |= u64::from(goes_on) << i;
        if goes_on || self.ledger.state.outbound.is_home_full(scratch.place[i]) {
            self.ledger.state.outbound.prefetch_next(scratch.place[i]);
        }
    }

    /// None if the packet is unusual; nothing has changed then.
    #[inline(always)]
    pub(in crate::shard) fn steady_out(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        record: u32,
        realm: RealmId,
    ) -> Option<Egress> {
        let is_tcp = kind.is_tcp();
        let protocol = select_unpredictable(is_tcp, Protocol::Tcp, Protocol::Udp);
        let destination = be32::<16>(header);
        let key = InternalKey { realm, protocol, address: HostNumber(be32::<12>(header)), port: be16::<20>(header) };
        let outgoing = Outgoing { internal: key.word(), destination, length: be16::<2>(header) };
        let (egress, (address, port)) = self.refresh_out(clock, header, kind, record, outgoing)?;
        let identification = self.plain_identification(header, address, destination);
        rewrite_headers(header, is_tcp, End::Source, address, port, identification);
        Some(egress)
    }

    /// Reads only the transport header.
    #[inline(always)]
    pub(in crate::shard) fn refresh_out(
        &mut self,
        clock: &SteadyClock,
        header: &[u8; HEADERS],
        kind: Kind,
        record: u32,
        outgoing: Outgoing,
    ) -> Option<(Egress, (u32, u16))> {
        let Outgoing { internal, destination, length } = outgoing;
        let is_tcp = kind.is_tcp();
        let cache = &mut self.ledger.route_cache;
        let egress = self.ledger.shared.steady_out(cache, destination, internal as u32, length)?;
        let generation = self.ledger.policy.generations.current();
        let mapping = self.ledger.state.mappings.get_mut(record);
        let differs = mapping.differs_outbound(internal, steady_remote(destination, be16::<22>(header), generation));
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        if (differs != 0) | is_due {
            let external = self.refresh_out_anew(clock, header, kind, record, outgoing)?;
            return Some((egress, external));
        }
        Some((egress, refreshed_out(mapping, clock, header, is_tcp, length)))
    }

    /// None if the packet cannot be fragmented and keeps its own.
    #[inline(always)]
    pub(in crate::shard) fn plain_identification(
        &mut self,
        header: &[u8; HEADERS],
        address: u32,
        destination: u32,
    ) -> Option<u16> {
        let may_be_fragmented = header[6] & 0x40 == 0;
        may_be_fragmented.then(|| self.identifications.next(address.into(), destination.into(), header[9]))
    }

    /// As [`PacketPath::steady_out`].
    #[inline(always)]
    pub(in crate::shard) fn steady_in(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        record: u32,
    ) -> Option<Egress> {
        let (egress, (address, port)) = self.refresh_in(clock, header, kind, record)?;
        rewrite_headers(header, kind.is_tcp(), End::Destination, address, port, None);
        Some(egress)
    }

    #[inline(always)]
    pub(in crate::shard) fn refresh_in(
        &mut self,
        clock: &SteadyClock,
        header: &[u8; HEADERS],
        kind: Kind,
        record: u32,
    ) -> Option<(Egress, (u32, u16))> {
        let is_tcp = kind.is_tcp();
        let protocol = select_unpredictable(is_tcp, Protocol::Tcp, Protocol::Udp);
        let generation = self.ledger.policy.generations.current();
        let mapping = self.ledger.state.mappings.get_mut(record);
        let remote = steady_remote(be32::<12>(header), be16::<20>(header), generation);
        let differs = mapping.differs_inbound(protocol as u8, be32::<16>(header), be16::<22>(header), remote);
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        let (realm, address, port) = (mapping.realm(), mapping.internal_address(), mapping.internal_port());
        if (differs != 0) | is_due {
            return self.refresh_in_anew(clock, header, kind, record);
        }
        let egress = self.ledger.shared.steady_in(&mut self.ledger.route_cache, realm, address.0, be16::<2>(header))?;
        let inbound_refresh = self.ledger.policy.timers.inbound_refresh;
        refreshed_in(mapping, clock, header, is_tcp, inbound_refresh);
        Some((egress, (address.0, port)))
    }
}

/// The external endpoint.
#[inline(always)]
pub(in crate::shard) fn refreshed_out(
    mapping: &mut Mapping,
    clock: &SteadyClock,
    header: &[u8; HEADERS],
    is_tcp: bool,
    length: u16,
) -> (u32, u16) {
    mapping.extend_session(clock.end[usize::from(is_tcp)]);
    mapping.tracker.observe_ack(Side::Inside, &segment_of(header, length), is_tcp);
    (mapping.external_address, mapping.external_port())
}

#[inline(always)]
pub(in crate::shard) fn refreshed_in(
    mapping: &mut Mapping,
    clock: &SteadyClock,
    header: &[u8; HEADERS],
    is_tcp: bool,
    inbound_refresh: [bool; 2],
) {
    mapping.extend_session_if(inbound_refresh[usize::from(is_tcp)], clock.end[usize::from(is_tcp)]);
    mapping.tracker.observe_ack(Side::Outside, &segment(header), is_tcp);
}

#[inline(always)]
fn aim_abroad(scratch: &mut Scratch, i: usize, worker: WorkerId, record: MappingIndex) {
    if scratch.kind[i].is_steady() {
        scratch.kind[i] = Kind(Kind::FOREIGN | Kind::IN);
        scratch.place[i] = u64::from(worker.0) | u64::from(record.0) << RECORD_SHIFT;
    }
}

/// Arbitrary values unless TCP.
#[inline(always)]
pub(in crate::shard) fn segment(header: &[u8; HEADERS]) -> tcp::Segment {
    segment_of(header, be16::<2>(header))
}

/// Reads only the transport header.
#[inline(always)]
pub(in crate::shard) fn segment_of(header: &[u8; HEADERS], length: u16) -> tcp::Segment {
    let headers = 20 + u32::from(header[32] >> 4) * 4;
    tcp::Segment {
        sequence: be32::<24>(header),
        ack: be32::<28>(header),
        length: u32::from(length).saturating_sub(headers),
    }
}

#[cfg(test)]
mod tests;
