//! IPv6 packets from inside (RFC 6146 §3.4, RFC 6333 §6.3), in passes: headers, host table, host.

use core::hint::select_unpredictable;
use core::net::Ipv4Addr;
use core::num::NonZero;

use translate::Further;
use translate::Halves;
use translate::Headers6;
use translate::Kind;
use translate::Limits;
use translate::Tuple4;
use wire::icmp;
use wire::icmp::Icmp;
use wire::icmp6;
use wire::icmp6::Icmp6;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::Fragment;
use wire::ipv6::Ipv6;
use wire::quoted::Quoted;

use crate::headers::icmp_quote;
use crate::headers::own_icmp;
use crate::headers::own_icmp::IcmpError;
use crate::headers::own_icmp6;
use crate::headers::own_icmp6::Problem;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Class;
use crate::headers::parse::HEADERS;
use crate::headers::parse::Parsed;
use crate::headers::parse::be16;
use crate::headers::parse::be32;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::headers::parse::source_is_valid;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::replace_address;
use crate::headers::rewrite::rewrite;
use crate::headers::rewrite::rewrite_headers;
use crate::shard::burst::established::Kind as Steadiness;
use crate::shard::burst::established::Outgoing;
use crate::shard::burst::established::Scratch;
use crate::shard::burst::established::SteadyClock;
use crate::shard::burst::established::has_right_checksum;
use crate::shard::edge::HostPackets;
use crate::shard::edge::Sent;
use crate::shard::edge::is_plain;
use crate::shard::edge::port_control::take_over_request;
use crate::shard::edge::verdict_of;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::snapshot::transition::SoftwireEnd;
use crate::snapshot::transition::Taker;
use crate::snapshot::transition::Transition;
use crate::state::host::HostKey;
use crate::state::host::HostStore;
use crate::state::host::HostWords;
use crate::state::host::Way;
use crate::state::host::subscriber_prefix;
use crate::state::mapping::InternalKey;
use crate::state::reassembly;
use crate::state::reassembly::Outcome as Reassembled;
use crate::state::reassembly::Part;
use crate::steps::opening::Foresight;
use crate::time::Instant;
use crate::types::DUMMY;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::is_host_number;
use crate::verdict::Verdict;

const PROTOCOL_TCP: u8 = wire::ipv4::PROTOCOL_TCP;
const PROTOCOL_UDP: u8 = wire::ipv4::PROTOCOL_UDP;
const PROTOCOL_ICMP: u8 = wire::ipv4::PROTOCOL_ICMP;

#[derive(Clone, Copy, Debug)]
pub(super) enum Incoming {
    /// IPv4, or finished.
    Other,
    Nat64 {
        headers: Headers6,
        destination: u32,
        key: HostKey,
        hash: u64,
    },
    Softwire {
        offset: u16,
        key: HostKey,
        hash: u64,
    },
    TooBig {
        mtu: u32,
        key: HostKey,
        hash: u64,
    },
    /// For port control, outside of softwires.
    Request {
        source: u128,
        way: Way,
        offset: u16,
    },
    Fragment {
        source: u128,
        way: Way,
        offset: u16,
        fragment: Fragment,
        length: u16,
    },
}

/// A TCP or UDP packet whose headers are where they always are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plain {
    pub(super) hash: u64,
    destination: u32,
    /// As IPv4.
    pub(super) length: u16,
    position: u8,
}

/// Sets of packets in a burst, a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    /// The short way, to translate.
    pub(super) nat64: u64,
    /// The short way, in softwires.
    pub(super) softwire: u64,
    /// The long way.
    others: u64,
}

#[inline(always)]
pub(super) fn each(mut places: u64) -> impl Iterator<Item = usize> {
    // Not of zero, for which a baseline CPU has no result.
    core::iter::from_fn(move || {
        let left = NonZero::new(places)?;
        places &= places - 1;
        Some(left.trailing_zeros() as usize)
    })
}

pub(super) enum Refusal {
    Drop(Verdict),
    Answer(Verdict, Problem),
}

impl Refusal {
    pub(super) const fn verdict(&self) -> Verdict {
        match self {
            Refusal::Drop(verdict) | Refusal::Answer(verdict, _) => *verdict,
        }
    }
}

impl From<Verdict> for Refusal {
    fn from(verdict: Verdict) -> Refusal {
        Refusal::Drop(verdict)
    }
}

impl From<translate::Reason> for Refusal {
    fn from(reason: translate::Reason) -> Refusal {
        Refusal::Drop(verdict_of(reason))
    }
}

impl From<translate::Refused> for Refusal {
    fn from(refused: translate::Refused) -> Refusal {
        let verdict = verdict_of(refused.reason);
        match refused.reply {
            None => Refusal::Drop(verdict),
            Some(reply) => Refusal::Answer(
                verdict,
                Problem { icmp_type: reply.icmp_type, code: reply.code, parameter: reply.parameter },
            ),
        }
    }
}

/// The ICMPv6 error to the sender of a refused packet (RFC 7915 §5.4, RFC 6146 §3.5.1.1). Packets
/// with a forged source are dropped silently.
const fn problem_of(verdict: Verdict) -> Option<Problem> {
    match verdict {
        Verdict::EmbeddedAddress | Verdict::EmbeddedPrivate | Verdict::ChecksumMissing | Verdict::Ipv6Header => {
            Some(Problem::PROHIBITED)
        }
        Verdict::HostLimit | Verdict::HostTableFull => Some(Problem::NO_RESOURCES),
        _ => None,
    }
}

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
        is_host_number(header.source()) || is_host_number(header.destination())
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

/// Takes over the traffic class of the outer header.
pub(super) fn parse_in_softwire(packet: &mut Packet<'_>, offset: u16) -> Result<Parsed, Verdict> {
    // A reassembled packet has its class already, and its outer headers are gone.
    let outer = (offset != 0).then(|| Ipv6::new_unchecked(packet.bytes()).traffic_class());
    let inner = packet.bytes_mut().get_mut(usize::from(offset)..).unwrap_or_default();
    let parsed = parse(inner)?;
    if let Some(outer) = outer {
        take_class(inner, outer)?;
    }
    Ok(parsed)
}

fn take_class(inner: &mut [u8], outer: u8) -> Result<(), Verdict> {
    let Ok(mut view) = Ipv4::new_checked(inner) else { return Err(Verdict::IpMalformed) };
    let class = class_inside(outer, view.ds_field()).ok_or(Verdict::SoftwireMalformed)?;
    if class != view.ds_field() {
        view.set_ds_field(class);
        view.fill_checksum();
    }
    Ok(())
}

/// An error may be about another host of the same softwire.
pub(super) fn take_from_softwire(
    packet: &mut Packet<'_>,
    offset: u16,
    parsed: &Parsed,
    (number, key): (u32, &HostKey),
    hosts: &HostStore,
) -> Result<(), Verdict> {
    let inner = packet.bytes_mut().get_mut(usize::from(offset)..).unwrap_or_default();
    if parsed.class == Class::IcmpError {
        let inner = inner.get_mut(..usize::from(parsed.total_length)).ok_or(Verdict::IpMalformed)?;
        let quote = icmp_quote::parse(inner)?;
        let host = Ipv4Addr::from_bits(number);
        let mut change = quote.unchanged();
        change.outer_source = host;
        let about = HostKey { inner: quote.destination.address.to_bits(), ..*key };
        let about = match about.inner == key.inner {
            true => number,
            false => hosts.find(hosts.hash_of(&about), &about).ok_or(Verdict::IcmpQuoteNoMapping)?,
        };
        change.destination = Endpoint { address: about.into(), ..quote.destination };
        icmp_quote::rewrite(inner, &quote, &change);
    } else {
        let change = Rewrite {
            end: End::Source,
            address: number,
            port: parsed.source_port,
            identification: None,
            decrement_ttl: false,
        };
        rewrite(inner, parsed, &change);
    }
    packet.meta.record = 0;
    if packet.shrink_front(offset) { Ok(()) } else { Err(Verdict::SoftwireMalformed) }
}

#[inline(always)]
fn words_in_softwire(packet: &Packet<'_>, position: u8) -> Option<HostWords> {
    let header = packet.chunk::<{ ipv6::HEADER_LENGTH + HEADERS }>(0)?;
    let (outer, inner) = (header.first_chunk()?, header.last_chunk::<HEADERS>()?);
    Some(HostWords::new(Halves::source(outer), get_u32(inner, ip::SOURCE), Way::Softwire(position)))
}

/// Lacks the host's number. TCP or UDP is where it is behind an option-free IPv4 header.
#[inline(always)]
fn internal_of(header: &[u8; HEADERS], is_tcp: bool, realm: RealmId) -> u64 {
    let protocol = select_unpredictable(is_tcp, Protocol::Tcp, Protocol::Udp);
    InternalKey { realm, protocol, address: 0, port: be16::<20>(header) }.word()
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

/// Bits of a traffic class.
const DSCP: u8 = 0xfc;
const ECN: u8 = 3;

/// The class of a packet from a softwire: that of the outer header (RFC 6333 §7.1), with the
/// congestion mark of either (RFC 6040 §4.2). `None`: the packet must be dropped, because it cannot
/// be marked.
#[inline(always)]
const fn class_inside(outer: u8, inner: u8) -> Option<u8> {
    let mark = match (outer & ECN, inner & ECN) {
        (3, 0) => return None,
        (3, _) => 3,
        (1, 2) => 1,
        (_, mark) => mark,
    };
    Some(outer & DSCP | mark)
}

impl PacketPath {
    /// Turns a burst's IPv6 packets into IPv4. Returns a bit for each finished packet.
    #[inline(never)]
    pub(in crate::shard) fn arrive<S: Sink>(
        &mut self,
        now: Instant,
        burst: &mut [Packet<'_>],
        scratch: &mut Scratch,
        sink: &mut S,
    ) -> u64 {
        let mut finished = 0;
        let mut places = Places::default();
        self.edge.now = now;
        (scratch.hosts.pending, scratch.hosts.pending_in, scratch.hosts.further) = (0, 0, 0);
        for (packet, i) in burst.iter_mut().zip(0..BURST_MAX) {
            packet.verdict = None;
            let facing = self.ledger.shared.facing(packet.meta.ingress);
            if facing.side == Side::Outside
                || !matches!(packet.meta.stage, Stage::Received | Stage::Steered) && !take_over_request(packet)
            {
                continue;
            }
            if !self.look_at_plain(packet, facing.realm, i % BURST_MAX, scratch, &mut places) {
                let is_waiting = self.look_at_further(now, i, packet, sink, &mut finished);
                places.others |= u64::from(is_waiting) << i;
            }
        }
        let plain = places.nat64 | places.softwire;
        for i in each(plain) {
            self.ledger.state.subscribers.hosts.prefetch(scratch.hosts.plain[i].hash);
        }
        for i in each(plain) {
            scratch.hosts.candidates[i] = self.ledger.state.subscribers.hosts.candidate(scratch.hosts.plain[i].hash);
        }
        for i in each(plain) {
            self.ledger.state.subscribers.hosts.prefetch_record(scratch.hosts.candidates[i]);
        }
        for i in each(places.others) {
            if let Incoming::Nat64 { hash, .. } | Incoming::Softwire { hash, .. } = self.edge.incoming[i] {
                self.ledger.state.subscribers.hosts.aim(hash);
            }
        }
        (scratch.hosts.pending, scratch.hosts.nat64) = (plain, places.nat64);
        for i in each(places.nat64) {
            let Some(packet) = burst.get_mut(i) else { break };
            if !self.enter_plain(now, packet, i, scratch) {
                finished |= self.enter_unexpected(now, packet, i, scratch, sink);
            }
        }
        for i in each(places.softwire) {
            let Some(packet) = burst.get_mut(i) else { break };
            if !self.enter_plain_from_softwire(now, packet, i, scratch) {
                finished |= self.enter_unexpected(now, packet, i, scratch, sink);
            }
        }
        for i in each(places.others) {
            let Some(packet) = burst.get_mut(i) else { break };
            if let Err(refusal) = self.enter_further(now, i, packet, sink, &mut finished) {
                self.refuse_at_edge(now, packet, &refusal, sink);
                finished |= 1 << i;
            }
        }
        finished
    }

    /// False if nothing is left to do here.
    #[inline(never)]
    fn look_at_further<S: Sink>(
        &mut self,
        now: Instant,
        i: usize,
        packet: &mut Packet<'_>,
        sink: &mut S,
        finished: &mut u64,
    ) -> bool {
        let incoming = match self.look_at_edge(packet) {
            Ok(Incoming::Other) => return false,
            Ok(incoming) => incoming,
            Err(refusal) => {
                self.refuse_at_edge(now, packet, &refusal, sink);
                *finished |= 1 << i;
                return false;
            }
        };
        let address = match &incoming {
            Incoming::Other => return false,
            Incoming::Nat64 { key, .. } | Incoming::Softwire { key, .. } | Incoming::TooBig { key, .. } => key.address,
            Incoming::Request { source, .. } | Incoming::Fragment { source, .. } => *source,
        };
        let worker = self.ledger.shared.worker_of_host(address);
        if worker != self.ledger.worker {
            if self.is_request(packet, &incoming) {
                if let Err(verdict) = self.pass_request_of_host_on(now, worker, packet, address, sink) {
                    self.refuse_at_edge(now, packet, &verdict.into(), sink);
                }
                *finished |= 1 << i;
                return false;
            }
            let meta = PacketMeta { record: 0, stage: Stage::Steered, ..packet.meta };
            packet.verdict = None;
            packet.outcome = Outcome::HandOff { worker, meta };
            *finished |= 1 << i;
            return false;
        }
        if let Incoming::Nat64 { hash, .. } | Incoming::Softwire { hash, .. } = &incoming {
            self.ledger.state.subscribers.hosts.prefetch(*hash);
        }
        self.edge.incoming[i] = incoming;
        true
    }

    #[inline(never)]
    fn enter_further<S: Sink>(
        &mut self,
        now: Instant,
        i: usize,
        packet: &mut Packet<'_>,
        sink: &mut S,
        finished: &mut u64,
    ) -> Result<(), Refusal> {
        match self.edge.incoming[i] {
            Incoming::Other => Ok(()),
            Incoming::Nat64 { headers, destination, key, hash } => {
                self.enter_by_nat64(now, packet, &headers, destination, (key, hash))
            }
            Incoming::Softwire { offset, key, hash } => {
                self.enter_from_softwire(now, packet, offset, (key, hash), sink)
            }
            Incoming::TooBig { mtu, key, hash } => {
                *finished |= 1 << i;
                packet.outcome = Outcome::Done;
                self.note_path_mtu(now, mtu, (&key, hash)).map_err(Refusal::from)
            }
            Incoming::Request { source, way, offset } => {
                *finished |= 1 << i;
                packet.outcome = Outcome::Done;
                self.serve_host(now, packet, usize::from(offset), (source, way), sink).map_err(Refusal::from)
            }
            Incoming::Fragment { source, way, offset, fragment, length } => {
                *finished |= 1 << i;
                let bytes = usize::from(offset)..usize::from(length);
                self.reassemble(now, packet, (source, way), &fragment, bytes, sink)
            }
        }
    }

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
        // Each way notes by itself: joined, they would ask again which one it was.
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
                    && !self.is_duplicate(realm, end.aftr)
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
    fn enter_plain(&mut self, now: Instant, packet: &mut Packet<'_>, i: usize, scratch: &mut Scratch) -> bool {
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

    /// For a host without a record, or not in its first place. Returns the packet's bit if it is
    /// finished.
    #[cold]
    #[inline(never)]
    fn enter_unexpected<S: Sink>(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        i: usize,
        scratch: &mut Scratch,
        sink: &mut S,
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
        self.enter_newcomer(now, packet, i, sink)
    }

    /// The IPv4 header of a packet from this host will be `cut` bytes on. A steady packet's session
    /// is probably established, so nothing is written yet.
    #[inline(always)]
    fn expect_session(
        &mut self,
        packet: &mut Packet<'_>,
        i: usize,
        (number, cut): (u32, usize),
        scratch: &mut Scratch,
    ) {
        packet.set_start(usize::from(packet.start()) + cut);
        let internal = scratch.hosts.internal[i] | u64::from(number);
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

    /// Checks a host without a record, on the long way. Returns the packet's bit if it is finished.
    #[cold]
    #[inline(never)]
    fn enter_newcomer<S: Sink>(&mut self, now: Instant, packet: &mut Packet<'_>, i: usize, sink: &mut S) -> u64 {
        let entered = self.look_at_edge(packet).and_then(|incoming| match incoming {
            Incoming::Nat64 { headers, destination, key, hash } => {
                self.enter_by_nat64(now, packet, &headers, destination, (key, hash))
            }
            Incoming::Softwire { offset, key, hash } => {
                self.enter_from_softwire(now, packet, offset, (key, hash), sink)
            }
            // None of these is usual.
            Incoming::Other | Incoming::TooBig { .. } | Incoming::Request { .. } | Incoming::Fragment { .. } => {
                Err(Verdict::Ipv6Malformed.into())
            }
        });
        let Err(refusal) = entered else { return 0 };
        self.refuse_at_edge(now, packet, &refusal, sink);
        1 << i
    }

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
            if is_host_number(get_u32(bytes, ip::SOURCE)) {
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
        if self.is_duplicate(end.realm, end.aftr) {
            // RFC 4862 §5.4.5.
            return Err(Verdict::LocalIgnored);
        }
        let view = Ipv6::new_checked(bytes).map_err(|_| Verdict::Ipv6Malformed)?;
        let packet = view.packet();
        let chain = ipv6::chain(packet).map_err(|_| Verdict::Ipv6Header)?;
        if chain.segments_left.is_some() {
            return Err(Verdict::Ipv6Header);
        }
        check_sender(transition, end, source)?;
        if chain.protocol == ipv6::PROTOCOL_ICMP6 {
            // From a router, which is no subscriber.
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

    /// Perhaps a request for port control.
    #[cold]
    fn look_at_request(&self, packet: &Packet<'_>, realm: RealmId, source: u128) -> Result<Incoming, Verdict> {
        let transition = &self.ledger.shared.transition;
        let way = transition.way_of_grants(realm).ok_or(Verdict::Ipv6NotForwarded)?;
        let Way::Nat64(position) = way else { return Err(Verdict::Ipv6NotForwarded) };
        let prefix = transition.prefix(position).ok_or(Verdict::Ipv6NotForwarded)?;
        if !self.ledger.shared.is_request6(packet.meta.ingress, packet.bytes()) {
            return Err(Verdict::Ipv6NotForwarded);
        }
        if self.is_duplicate(realm, Ipv6::new_unchecked(packet.bytes()).destination()) {
            return Err(Verdict::LocalIgnored);
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

    #[cold]
    fn note_path_mtu(&mut self, now: Instant, mtu: u32, (key, hash): (&HostKey, u64)) -> Result<(), Verdict> {
        self.ledger.state.subscribers.hosts.find(hash, key).ok_or(Verdict::IcmpQuoteNoMapping)?;
        if let Ok(mtu) = u16::try_from(mtu) {
            let realm = self.ledger.shared.transition.realm_of(key.way);
            self.edge.path_mtus.note(now, (realm, key.address), mtu);
        }
        Err(Verdict::Local)
    }

    fn look_inside(&self, inner: &[u8], source: u128, way: Way) -> Result<(HostKey, u64), Verdict> {
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
        if !source_is_valid(inside) || inside == DUMMY {
            return Err(Verdict::SourceInvalid);
        }
        let key = HostKey { address: source, inner: inside, way };
        let hash = self.ledger.state.subscribers.hosts.hash_of(&key);
        Ok((key, hash))
    }

    #[inline(always)]
    fn enter_by_nat64(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        headers: &Headers6,
        destination: u32,
        (key, hash): (HostKey, u64),
    ) -> Result<(), Refusal> {
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let hosts = &mut self.ledger.state.subscribers.hosts;
        let number = match headers.kind {
            Kind::Error => hosts.find(hash, &key).ok_or(Verdict::IcmpQuoteNoMapping)?,
            _ => hosts.enter(now, hash, &key, realm)?,
        };
        self.translate_from(packet, headers, (number, destination), key.way)
    }

    #[inline(always)]
    pub(super) fn translate_from(
        &self,
        packet: &mut Packet<'_>,
        headers: &Headers6,
        (number, destination): (u32, u32),
        way: Way,
    ) -> Result<(), Refusal> {
        let Way::Nat64(position) = way else { return Err(Verdict::Ipv6NotForwarded.into()) };
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let transition = &self.ledger.shared.transition;
        let quoted = match (headers.kind, transition.prefix(position)) {
            (Kind::Error, Some(prefix)) => {
                let quoted = translate::quoted6(packet.bytes(), headers)?;
                Some(Tuple4 { source: prefix.extract(quoted.source), destination: number, ports: None })
            }
            _ => None,
        };
        let mtu6 = transition.realm(realm).map_or(ipv6::MTU_MIN, |edge| edge.mtu);
        let limits = match headers.kind {
            Kind::Error => Limits { mtu4: transition.mtu4, mtu6, is_hop: false, ..Limits::default() },
            // The engine knows the way out, and its MTU.
            _ => Limits { mtu4: u16::MAX, mtu6, is_hop: false, ..Limits::default() },
        };
        let new = Tuple4 { source: number, destination, ports: None };
        let start = usize::from(packet.start());
        // The engine sets the identification.
        let written = translate::to_ipv4(packet.frame_mut(), start, headers, &new, quoted.as_ref(), 0, &limits)?;
        packet.set_start(written.start);
        // All 32 bits distinguish datagrams.
        packet.meta.record = match headers.fragment {
            Some(fragment) if !fragment.is_atomic() => fragment.identification,
            _ => 0,
        };
        Ok(())
    }

    pub(super) fn enter_from_softwire<S: Sink>(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        offset: u16,
        (key, hash): (HostKey, u64),
        sink: &mut S,
    ) -> Result<(), Refusal> {
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let parsed = parse_in_softwire(packet, offset)?;
        if parsed.destination == AFTR_INSIDE {
            return self.answer_in_softwire(now, packet, usize::from(offset), &key, sink).map_err(Refusal::from);
        }
        let entered = self.ledger.state.subscribers.hosts.enter(now, hash, &key, realm);
        if entered.is_err() {
            self.refuse_in_softwire(now, packet, usize::from(offset), &key, sink);
        }
        let number = entered?;
        let hosts = &self.ledger.state.subscribers.hosts;
        take_from_softwire(packet, offset, &parsed, (number, &key), hosts).map_err(Refusal::from)
    }

    /// RFC 6333 §5.3: before decapsulation.
    #[cold]
    #[inline(never)]
    fn reassemble<S: Sink>(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        (source, way): (u128, Way),
        fragment: &Fragment,
        bytes: core::ops::Range<usize>,
        sink: &mut S,
    ) -> Result<(), Refusal> {
        let timeout = self.ledger.shared.settings().timeouts.fragment;
        let Way::Softwire(position) = way else { return Err(Verdict::SoftwireMalformed.into()) };
        let Some(mut reassembly) = self.edge.reassembly.take() else {
            return Err(Verdict::ReassemblyFull.into());
        };
        let part = Part {
            source,
            subscriber: subscriber_prefix(source, self.ledger.shared.transition.prefix_length),
            realm: self.ledger.shared.transition.realm_of(way),
            way: position,
            identification: fragment.identification,
            class: Ipv6::new_unchecked(packet.bytes()).traffic_class(),
            offset: usize::from(fragment.offset),
            more: fragment.more,
            bytes: packet.bytes().get(bytes).unwrap_or_default(),
        };
        let outcome = reassembly.accept(now, timeout, &part);
        self.count_displaced_fragments(now, &mut reassembly);
        packet.outcome = Outcome::Done;
        let result = match outcome {
            Reassembled::Held => Ok(()),
            Reassembled::Dropped { verdict, held } => {
                self.count_dropped_fragments(now, verdict, held);
                Err(verdict.into())
            }
            Reassembled::Whole { slot, length, held, class } => {
                self.ledger.counters.verdicts[Verdict::Reassembled.index()] += u64::from(held);
                let frame = reassembly.frame(slot, length);
                let mut whole = Packet::in_frame(frame, reassembly::ROOM as u16, packet.meta);
                let classed = take_class(whole.bytes_mut(), class).map_err(Refusal::from);
                let result = classed.and_then(|()| self.enter_whole(now, &mut whole, (source, way), sink));
                packet.verdict = whole.verdict;
                result
            }
        };
        self.edge.reassembly = Some(reassembly);
        self.watch_reassembly(now);
        result
    }

    fn enter_whole<S: Sink>(
        &mut self,
        now: Instant,
        whole: &mut Packet<'_>,
        (source, way): (u128, Way),
        sink: &mut S,
    ) -> Result<(), Refusal> {
        let (key, hash) = self.look_inside(whole.bytes(), source, way)?;
        self.enter_from_softwire(now, whole, 0, (key, hash), sink)?;
        let (kind, hash) = self.look(whole);
        let foresight = Foresight::of(if kind.is_out() { hash } else { 0 });
        self.process_long(now, whole, &foresight, sink);
        let bytes = whole.bytes();
        let lost = match whole.outcome {
            Outcome::Done => None,
            Outcome::Transmit { egress, length, .. } => {
                let sent = self.emit(egress, &[bytes.get(..usize::from(length)).unwrap_or(bytes)], sink);
                if let (Ok(Sent::Left), Some(counted)) = (&sent, whole.verdict) {
                    self.count_grown(egress, counted);
                }
                sent.err()
            }
            Outcome::HandOff { worker, meta } => {
                if sink.hand_off(worker, meta, &[bytes]) {
                    self.ledger.counters.handed_off += 1;
                    None
                } else {
                    self.ledger.counters.count(Verdict::HandOffRingFull);
                    whole.verdict = Some(Verdict::HandOffRingFull);
                    None
                }
            }
        };
        if let Some(verdict) = lost {
            if let Some(counted) = whole.verdict.replace(verdict) {
                self.ledger.counters.uncount(counted);
                self.uncount_unsent(counted, whole.bytes());
            }
            self.ledger.counters.count(verdict);
        }
        Ok(())
    }

    /// RFC 6333 §6.5.
    #[cold]
    fn answer_in_softwire<S: Sink>(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        offset: usize,
        key: &HostKey,
        sink: &mut S,
    ) -> Result<(), Verdict> {
        let inner = packet.bytes().get(offset..).unwrap_or_default();
        let is_udp = inner.get(ip::PROTOCOL) == Some(&PROTOCOL_UDP);
        if is_udp {
            let length = inner.len();
            let served = self.serve_in_softwire(now, packet, offset..offset + length, key, sink);
            if let Err(Verdict::HostLimit | Verdict::HostTableFull) = served {
                self.refuse_in_softwire(now, packet, offset, key, sink);
            }
            return served;
        }
        let identification =
            self.identifications.next(Ipv4Addr::from_bits(AFTR_INSIDE), Ipv4Addr::from_bits(key.inner), 1);
        let inner = packet.bytes_mut().get_mut(offset..).unwrap_or_default();
        let (aftr, egress, length) = self.echo_in_softwire(inner, key.way, identification)?;
        let inner = inner.get(..length).unwrap_or_default();
        let sent = self.put_in_softwire(egress, (aftr, key.address), inner, sink);
        self.ledger.counters.originated += u64::from(sent.is_ok());
        Err(sent.err().unwrap_or(Verdict::Local))
    }

    /// There is no room for the host: it is answered as if its ports were used up (RFC 6888
    /// REQ-11b), inside its softwire.
    #[cold]
    fn refuse_in_softwire<S: Sink>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        offset: usize,
        key: &HostKey,
        sink: &mut S,
    ) {
        let inner = packet.bytes().get(offset..).unwrap_or_default();
        let (policy, transition) = (self.ledger.shared.settings().icmp, &self.ledger.shared.transition);
        let Some(code) = policy.no_resources_code else { return };
        let Way::Softwire(position) = key.way else { return };
        let Some((aftr, realm)) = transition.softwire(position).map(|end| (end.aftr, end.realm)) else { return };
        let Some(egress) = self.hop_to_hosts(realm) else { return };
        if !policy.errors_to_inside || !own_icmp::may_answer(inner) || !self.may_send_error6(now, realm, key.address) {
            return;
        }
        let (from, to) = (Ipv4Addr::from_bits(AFTR_INSIDE), Ipv4Addr::from_bits(key.inner));
        let identification = self.identifications.next(from, to, 1);
        let mut buffer = [0; own_icmp::ERROR_MAX];
        let length = own_icmp::write_error(&mut buffer, IcmpError::Unreachable(code), from, identification, inner);
        let error = buffer.get(..length).unwrap_or_default();
        let sent = self.put_in_softwire(egress, (aftr, key.address), error, sink);
        self.ledger.counters.originated += u64::from(sent.is_ok());
    }

    /// Returns the AFTR that replies, the hop and the length.
    pub(super) fn echo_in_softwire(
        &self,
        inner: &mut [u8],
        way: Way,
        identification: u16,
    ) -> Result<(u128, Egress, usize), Verdict> {
        let Way::Softwire(position) = way else { return Err(Verdict::LocalIgnored) };
        let end = self.ledger.shared.transition.softwire(position).ok_or(Verdict::LocalIgnored)?;
        if !self.ledger.shared.settings().icmp.answer_echo {
            return Err(Verdict::LocalIgnored);
        }
        let length = own_icmp::echo_reply(inner, identification).ok_or(Verdict::LocalIgnored)?;
        let egress = self.hop_to_hosts(end.realm).ok_or(Verdict::NoRoute)?;
        Ok((end.aftr, egress, length))
    }

    /// A next hop for IPv6.
    pub(super) fn hop_to_hosts(&self, realm: RealmId) -> Option<Egress> {
        let hop = self.ledger.shared.route_in(realm, crate::types::HOSTS_FIRST)?;
        (hop.egress().next_hop >= self.ledger.shared.transition.first_hop).then(|| hop.egress())
    }

    #[cold]
    #[inline(never)]
    fn refuse_at_edge<S: Sink>(&mut self, now: Instant, packet: &mut Packet<'_>, refusal: &Refusal, sink: &mut S) {
        let verdict = match refusal {
            Refusal::Drop(verdict) => {
                // RFC 7915 §5.4: not about ICMPv6 messages. Hosts in softwires have been answered.
                let realm = self.ledger.shared.realm_of(packet.meta.ingress);
                let is_answered =
                    matches!(verdict, Verdict::HostLimit | Verdict::HostTableFull) && self.is_to_aftr(realm, packet);
                let is_silent = is_answered || own_icmp6::is_icmp6(packet.bytes());
                if let Some(problem) = problem_of(*verdict).filter(|_| !is_silent) {
                    self.send_error6(now, realm, problem, packet.bytes(), sink);
                }
                *verdict
            }
            Refusal::Answer(verdict, problem) => {
                let realm = self.ledger.shared.realm_of(packet.meta.ingress);
                self.send_error6(now, realm, *problem, packet.bytes(), sink);
                *verdict
            }
        };
        if matches!(verdict, Verdict::HostLimit | Verdict::HostTableFull) {
            self.note_host_refused(now, packet, verdict);
        }
        self.ledger.counters.count(verdict);
        packet.verdict = Some(verdict);
        packet.outcome = Outcome::Done;
    }

    fn is_to_aftr(&self, realm: RealmId, packet: &Packet<'_>) -> bool {
        let Ok(view) = Ipv6::new_checked(packet.bytes()) else { return false };
        matches!(self.ledger.shared.transition.way_of(realm, view.destination()), Some(Way::Softwire(_)))
    }

    /// A prefix without a host so far has no subscriber.
    #[cold]
    fn note_host_refused(&mut self, now: Instant, packet: &Packet<'_>, verdict: Verdict) {
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let Ok(view) = Ipv6::new_checked(packet.bytes()) else { return };
        let subscriber = self.ledger.state.subscribers.hosts.find_subscriber(view.source(), realm);
        self.ledger.note_no_room(now, (realm, subscriber.map(Ipv4Addr::from_bits)), verdict);
    }

    /// Whether the rate of own errors to this address allows another. All addresses of a /64 share
    /// one.
    fn may_send_error6(&mut self, now: Instant, realm: RealmId, address: u128) -> bool {
        let half = (address >> 64) as u64;
        let folded = Ipv4Addr::from_bits((half >> 32) as u32 ^ half as u32);
        let may_send = self.ledger.policy.icmp_limit.allow(now, (Facing::inside(realm), folded));
        self.ledger.counters.icmp_errors_suppressed += u64::from(!may_send);
        may_send
    }

    /// RFC 4443 §2.4.
    fn send_error6<S: Sink>(&mut self, now: Instant, realm: RealmId, problem: Problem, bytes: &[u8], sink: &mut S) {
        let Ok(view) = Ipv6::new_checked(bytes) else { return };
        let offending = view.packet();
        if !self.ledger.shared.settings().icmp.errors_to_inside || !own_icmp6::may_answer(offending) {
            return;
        }
        let (Some(own), Some(egress)) = (self.own_address6(realm), self.hop_to_hosts(realm)) else { return };
        if !self.may_send_error6(now, realm, view.source()) {
            return;
        }
        let mut buffer = [0; own_icmp6::ERROR_MAX];
        let length = own_icmp6::write_error(&mut buffer, problem, own, offending);
        if sink.transmit(egress, &[buffer.get(..length).unwrap_or_default()]) {
            self.ledger.counters.originated += 1;
        }
    }
}
