//! The usual case, a burst at a time: whole UDP and TCP packets of established sessions.
//!
//! The passes of [`Shard::process`](super::Shard::process), so that memory is waited for while other packets are worked on:
//!
//! 1. [`Shard::look_at`] reads the headers and asks for the first line: of the table from inside, of the port table from
//!    outside.
//! 2. [`Shard::aim`] reads that line and asks for the mapping record.
//! 3. The passes of [`opening`](super::opening), only for packets from inside that have no mapping yet, ask for what its
//!    making will touch.
//! 4. [`Shard::steady_out`] and [`Shard::steady_in`] compare, refresh and rewrite.
//!
//! Each pass takes the whole burst, and asks for all its lines in one tight loop, into the second cache: whoever asks for a
//! line waits for the walk to its page, and only walks that stand close together in the code run side by side; and of
//! many lines asked for into the first cache some are dropped (figures in docs/performance.md).
//!
//! Everything here is computed for UDP and TCP alike and chosen at the end, because which of the two the next packet is
//! cannot be predicted, and a wrong guess costs as much as all the rest. Whatever is not as usual (another state, another
//! session of the mapping, flags, options, fragments, a next hop with a smaller MTU) is left untouched for the long way
//! in `outbound` and `inbound`, which decides alike for packets that are as usual; a test holds the two together.

use core::hint::select_unpredictable;

use wire::checksum::end_around;

use super::Foresight;
use super::Shard;
use super::opening::Wanted;
use crate::mapping::InternalKey;
use crate::mapping::steady_remote;
use crate::packet::BURST_MAX;
use crate::packet::Egress;
use crate::packet::Packet;
use crate::packet::Stage;
use crate::parse::Class;
use crate::parse::HEADERS;
use crate::parse::be16;
use crate::parse::be32;
use crate::parse::parse;
use crate::ports::PortAim;
use crate::rewrite::End;
use crate::rewrite::rewrite_headers;
use crate::rules::Ruling;
use crate::settings::Timeouts;
use crate::tcp;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;

/// What pass 1 found out about a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(u8);

impl Kind {
    /// Nothing to prefetch; the long way parses it.
    const ODD: Kind = Kind(0);
    /// From inside: `place` is the hash of the internal endpoint.
    const OUT: u8 = 1 << 0;
    /// To an external endpoint: `place` is its place in the port table.
    const IN: u8 = 1 << 1;
    const TCP: u8 = 1 << 2;
    /// As usual in all that the headers show.
    const STEADY: u8 = 1 << 3;
    /// As usual but for the worker it belongs to: `place` is the worker, and [`RECORD_SHIFT`] bits above it the record there.
    const FOREIGN: u8 = 1 << 4;
    /// With [`Kind::IN`]: another worker has read the port table, and `place` is the record it found there.
    const FOUND: u8 = 1 << 5;

    #[inline(always)]
    pub(super) const fn is_out(self) -> bool {
        self.0 & Kind::OUT != 0
    }

    #[inline(always)]
    pub(super) const fn is_steady(self) -> bool {
        self.0 & Kind::STEADY != 0
    }

    #[inline(always)]
    pub(super) const fn is_foreign(self) -> bool {
        self.0 & Kind::FOREIGN != 0
    }

    #[inline(always)]
    pub(super) const fn is_tcp(self) -> bool {
        self.0 & Kind::TCP != 0
    }
}

/// Of the `place` of a foreign packet: where the record begins, behind the worker.
const RECORD_SHIFT: u32 = 8;

/// What the first passes found out about a burst; one array for each thing, as each pass needs few of them.
///
/// Kept from burst to burst, because clearing it takes longer than a packet: what is said of a packet counts only once its
/// pass has been there.
pub(super) struct Looks {
    pub(super) kind: [Kind; BURST_MAX],
    pub(super) place: [u64; BURST_MAX],
    /// The mapping record to look at; 0 for none.
    pub(super) record: [u32; BURST_MAX],
    /// A bit for each packet whose mapping may be in a further bucket.
    pub(super) further: u64,
    /// A bit for each packet from inside that seems to have no mapping.
    pub(super) unsettled: u64,
    /// A bit for each unsettled packet with a port in view.
    pub(super) aimed: u64,
    /// A bit for each packet from outside to an external endpoint that flows of this worker share.
    pub(super) shared: u64,
    /// A bit for each packet with a flow in view.
    pub(super) flows: u64,
    /// Of packets that may have a flow: its hash.
    pub(super) flow_hash: [u64; BURST_MAX],
    /// Of those with a flow in view: its record.
    pub(super) flow: [u32; BURST_MAX],
    /// Of unsettled packets, as all below: the realm they come from.
    pub(super) realm: [RealmId; BURST_MAX],
    /// Their subscribers' hashes.
    pub(super) subscriber_hash: [u64; BURST_MAX],
    /// The subscriber's record; 0 when it is not known.
    pub(super) subscriber: [u32; BURST_MAX],
    /// Where to look for a port of the subscriber's address.
    pub(super) port: [Option<PortAim>; BURST_MAX],
    /// Of those with a port in view: what it has to be like.
    pub(super) wanted: [Wanted; BURST_MAX],
    /// The place of that port in the port table.
    pub(super) port_place: [usize; BURST_MAX],
    /// What the rules say of unsettled packets.
    pub(super) ruling: [Ruling; BURST_MAX],
    /// A bit for each unsettled packet that rules or filters do not let open a mapping as usual.
    pub(super) refused: u64,
    /// A bit for each whose answers the filters permit too.
    pub(super) stampable: u64,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks {
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
            wanted: [Wanted::NONE; BURST_MAX],
            port_place: [0; BURST_MAX],
            ruling: [Ruling::DEFAULT; BURST_MAX],
            refused: 0,
            stampable: u64::MAX,
        }
    }
}

impl Looks {
    /// The worker that foreign packet `i` belongs to, and its record there; 0 for none.
    #[inline(always)]
    pub(super) fn abroad(&self, i: usize) -> (WorkerId, u32) {
        (WorkerId(self.place[i] as u8), (self.place[i] >> RECORD_SHIFT) as u32)
    }

    /// What is known in advance if packet `i` opens a mapping.
    #[inline]
    pub(super) fn foresight(&self, i: usize) -> Foresight {
        let hash = if self.kind[i].is_out() { self.place[i] } else { 0 };
        if self.unsettled >> i & 1 == 0 {
            return Foresight::of(hash);
        }
        Foresight { hash, subscriber: self.subscriber[i], aim: self.port[i] }
    }
}

/// Forwarded packets of a burst, by way: out, in. Added to the counters once a burst.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) packets: [u64; 2],
    pub(super) bytes: [u64; 2],
}

/// The timers of established sessions, first UDP, then TCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct SteadyTimers {
    /// From the last packet to the end.
    lifetime: [Duration; 2],
    /// With this much left or less the session is not what its state says: an established TCP session is transitory in
    /// its last minutes (RFC 7857 §2).
    margin: [Duration; 2],
    /// Whether packets from outside restart the timer (RFC 4787 §4.3 REQ-6).
    pub(super) inbound_refresh: [bool; 2],
}

impl SteadyTimers {
    pub(super) fn new(timeouts: &Timeouts, inbound_refresh: bool) -> SteadyTimers {
        SteadyTimers {
            lifetime: [timeouts.udp, tcp::lifetime(TcpState::Established, timeouts)],
            margin: [Duration::ZERO, timeouts.tcp_closing],
            inbound_refresh: [inbound_refresh, true],
        }
    }
}

/// What the timers mean for one burst.
pub(super) struct SteadyClock {
    /// Where sessions that are used now end.
    pub(super) end: [Instant; 2],
    /// Sessions that end by then are not as usual.
    pub(super) due: [Instant; 2],
}

impl SteadyTimers {
    #[inline]
    pub(super) fn at(&self, now: Instant) -> SteadyClock {
        SteadyClock { end: self.lifetime.map(|length| now + length), due: self.margin.map(|length| now + length) }
    }
}

impl Shard {
    /// Pass 1: what kind of packet it is and where to look for its mapping; asks for that line.
    #[inline(always)]
    pub(super) fn look(&self, packet: &Packet<'_>) -> (Kind, u64) {
        let Some(header) = packet.bytes.first_chunk::<HEADERS>() else { return self.look_odd(packet) };
        let length = usize::from(be16::<2>(header));
        let is_tcp = header[9] == 6;
        let word = |i: usize| u64::from(u32::from_ne_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]));
        let sum = word(0) + word(4) + word(8) + word(12) + word(16);
        let transport_length =
            select_unpredictable(is_tcp, usize::from(header[32] >> 4) * 4, usize::from(be16::<24>(header)));
        let least = select_unpredictable(is_tcp, 20, 8);
        // No fragment, and nothing that makes the packet end here. Without a branch: see the module.
        let plain = (header[0] == 0x45)
            & (be16::<6>(header) & 0x3fff == 0)
            & (header[8] > 1)
            & (is_tcp | (header[9] == 17))
            & (end_around(sum) == 0xffff)
            & (length <= packet.bytes.len())
            & (transport_length >= least)
            & (transport_length + 20 <= length)
            & matches!(packet.meta.stage, Stage::Received | Stage::Steered);
        if !plain {
            return self.look_odd(packet);
        }
        // SYN, FIN and RST change states, and every other segment of an established connection has its ACK.
        let tcp_steady = if header[33] & 0x17 == 0x10 { Kind::TCP | Kind::STEADY } else { Kind::TCP };
        let kind = select_unpredictable(is_tcp, tcp_steady, Kind::STEADY);
        let protocol = select_unpredictable(is_tcp, Protocol::Tcp, Protocol::Udp);
        let facing = self.shared.facing(packet.meta.ingress);
        if facing.side == Side::Inside {
            let source = be32::<12>(header);
            let owner = self.shared.worker_of_subscriber(source);
            if owner != self.worker {
                return (Kind(Kind::FOREIGN | Kind::OUT), u64::from(owner.0));
            }
            let key = InternalKey { realm: facing.realm, protocol, address: source, port: be16::<20>(header) };
            let hash = self.hash_of(&key);
            return (Kind(kind | Kind::OUT), hash);
        }
        if packet.meta.record != 0 && kind & Kind::STEADY != 0 {
            // Where this is not the packet's mapping any more, the last pass sees it, and the long way reads the port table.
            return (Kind(kind | Kind::IN | Kind::FOUND), u64::from(packet.meta.record));
        }
        match self.local.pool_address(be32::<16>(header)) {
            Some(address) => {
                let place = self.shared.ports.place(address, protocol, be16::<22>(header));
                (Kind(kind | Kind::IN), place as u64)
            }
            None => (Kind::ODD, 0),
        }
    }

    /// Pass 1 of one packet, for the benchmark of the pieces: where to look for its mapping.
    #[inline]
    pub(crate) fn first_pass(&self, packet: &Packet<'_>) -> u64 {
        self.look(packet).1
    }

    /// Pass 1 of fragments, ICMP, packets on their second half and whatever else: only the prefetching.
    #[cold]
    #[inline(never)]
    fn look_odd(&self, packet: &Packet<'_>) -> (Kind, u64) {
        let Ok(parsed) = parse(packet.bytes) else { return (Kind::ODD, 0) };
        let Some(protocol) = parsed.protocol() else { return (Kind::ODD, 0) };
        if matches!(parsed.class, Class::LaterFragment | Class::IcmpError) {
            return (Kind::ODD, 0);
        }
        let hairpin = matches!(packet.meta.stage, Stage::Hairpin | Stage::HairpinFragment | Stage::OwnError);
        let facing = self.shared.facing(packet.meta.ingress);
        if !hairpin && facing.side == Side::Inside {
            let key = InternalKey { realm: facing.realm, protocol, address: parsed.source, port: parsed.source_port };
            let hash = self.hash_of(&key);
            return (Kind(Kind::OUT), hash);
        }
        match self.local.pool_address(parsed.destination) {
            Some(address) => {
                let place = self.shared.ports.place(address, protocol, parsed.destination_port);
                (Kind(Kind::IN), place as u64)
            }
            None => (Kind::ODD, 0),
        }
    }

    /// [`Shard::look`] at all packets.
    #[inline(always)]
    pub(super) fn look_at(&self, looks: &mut Looks, burst: &[Packet<'_>]) {
        let count = burst.len().min(BURST_MAX);
        (looks.further, looks.unsettled, looks.aimed) = (0, 0, 0);
        (looks.shared, looks.flows) = (0, 0);
        for (i, packet) in burst[..count].iter().enumerate() {
            (looks.kind[i], looks.place[i]) = self.look(packet);
        }
        for i in 0..count {
            let (kind, place) = (looks.kind[i].0, looks.place[i]);
            if kind & (Kind::OUT | Kind::FOREIGN) == Kind::OUT {
                self.outbound.prefetch(place);
            } else if kind & Kind::FOUND != 0 {
                self.mappings.prefetch_write(place as u32);
            } else {
                self.shared.ports.prefetch(place as usize);
            }
        }
    }

    /// Pass 2: the lines asked for have arrived; asks for the mapping records they name.
    #[inline(always)]
    pub(super) fn aim(&self, looks: &mut Looks, count: usize) {
        for i in 0..count.min(BURST_MAX) {
            let kind = looks.kind[i];
            looks.record[i] = if kind.0 & (Kind::OUT | Kind::FOREIGN) == Kind::OUT {
                let (record, goes_on) = self.outbound.candidate(looks.place[i]);
                if record == 0 {
                    self.aim_further(looks, i, goes_on);
                }
                record
            } else if kind.0 & Kind::FOUND != 0 {
                looks.place[i] as u32
            } else if kind.0 & Kind::IN != 0 {
                match self.shared.ports.lookup_at(looks.place[i] as usize) {
                    // Where an endpoint leads to several this worker may have the packet's flow.
                    None => {
                        looks.shared |= u64::from(!self.shared.balance.is_empty()) << i;
                        0
                    }
                    // Flows are told by more than the port table knows: see `dependent`.
                    Some((_, record)) if record.is_shared() => {
                        looks.shared |= 1 << i;
                        0
                    }
                    Some((worker, record)) if worker == self.worker => record.0,
                    Some((worker, record)) => {
                        aim_abroad(looks, i, worker, record);
                        0
                    }
                }
            } else {
                0
            };
        }
        for record in &looks.record[..count.min(BURST_MAX)] {
            self.mappings.prefetch_write(*record);
        }
    }

    /// The home bucket has no mapping for a packet from inside: asks for the next bucket if there may be one, or if one that
    /// is made now has to go there.
    #[inline(never)]
    fn aim_further(&self, looks: &mut Looks, i: usize, goes_on: bool) {
        looks.unsettled |= 1 << i;
        (looks.subscriber[i], looks.port[i]) = (0, None);
        looks.further |= u64::from(goes_on) << i;
        if goes_on || self.outbound.is_home_full(looks.place[i]) {
            self.outbound.prefetch_next(looks.place[i]);
        }
    }

    /// Pass 4 of a packet from inside: where it leaves, or None when it is not as usual and nothing was changed.
    #[inline(always)]
    pub(super) fn steady_out(
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
        let key = InternalKey { realm, protocol, address: be32::<12>(header), port: be16::<20>(header) };
        let hop = self.shared.route_out(destination)?;
        if be16::<2>(header) > hop.mtu {
            return None;
        }
        let egress = hop.egress(destination);
        let stamp = self.stamps.current();
        let mapping = self.mappings.get_mut(record);
        let differs = mapping.differs_outbound(key.word(), steady_remote(destination, be16::<22>(header), stamp));
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        if (differs != 0) | is_due {
            return None;
        }
        mapping.extend_session(clock.end[usize::from(is_tcp)]);
        mapping.tracker.observe_ack(Side::Inside, &segment(header), is_tcp);
        let (address, port) = (mapping.external_address, mapping.external_port());
        let identification = self.plain_identification(header, address, destination);
        rewrite_headers(header, is_tcp, End::Source, address, port, identification);
        Some(egress)
    }

    /// The new identification of a whole packet that leaves from this external address; None leaves it as it is.
    #[inline(always)]
    pub(super) fn plain_identification(
        &mut self,
        header: &[u8; HEADERS],
        address: u32,
        destination: u32,
    ) -> Option<u16> {
        let may_be_fragmented = header[6] & 0x40 == 0;
        may_be_fragmented.then(|| self.identifications.next(address.into(), destination.into(), header[9]))
    }

    /// Pass 4 of a packet from outside: where it leaves, or None when it is not as usual and nothing was changed.
    #[inline(always)]
    pub(super) fn steady_in(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        record: u32,
    ) -> Option<Egress> {
        let is_tcp = kind.is_tcp();
        let protocol = select_unpredictable(is_tcp, Protocol::Tcp, Protocol::Udp);
        let stamp = self.stamps.current();
        let mapping = self.mappings.get_mut(record);
        let remote = steady_remote(be32::<12>(header), be16::<20>(header), stamp);
        let differs = mapping.differs_inbound(protocol as u8, be32::<16>(header), be16::<22>(header), remote);
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        let (realm, address, port) = (mapping.realm(), mapping.internal_address(), mapping.internal_port());
        if (differs != 0) | is_due {
            return None;
        }
        let hop = self.shared.route_in(realm, address)?;
        if be16::<2>(header) > hop.mtu {
            return None;
        }
        mapping.extend_session_if(self.timers.inbound_refresh[usize::from(is_tcp)], clock.end[usize::from(is_tcp)]);
        mapping.tracker.observe_ack(Side::Outside, &segment(header), is_tcp);
        rewrite_headers(header, is_tcp, End::Destination, address, port, None);
        Some(hop.egress(address))
    }
}

/// The mapping belongs to another worker.
#[inline(always)]
fn aim_abroad(looks: &mut Looks, i: usize, worker: WorkerId, record: MappingIndex) {
    // Packets that are on their second half carry more than their headers.
    if looks.kind[i].is_steady() {
        looks.kind[i] = Kind(Kind::FOREIGN | Kind::IN);
        looks.place[i] = u64::from(worker.0) | u64::from(record.0) << RECORD_SHIFT;
    }
}

/// The numbers of a TCP segment; of anything else, whatever stands in their place.
#[inline(always)]
pub(super) fn segment(header: &[u8; HEADERS]) -> tcp::Segment {
    let headers = 20 + u32::from(header[32] >> 4) * 4;
    tcp::Segment {
        sequence: be32::<24>(header),
        ack: be32::<28>(header),
        length: u32::from(be16::<2>(header)).saturating_sub(headers),
    }
}

#[cfg(test)]
mod tests;
