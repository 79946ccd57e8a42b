//! The edge to IPv6 hosts: what arrives from them becomes IPv4 before the engine sees it, and what
//! the engine sends them becomes IPv6 again.
//!
//! ```text
//!   IPv6 ──► arrive: host, its number ──► [ from the number, IPv4 ] ──► passes and steps of NAT44
//!                                                                              │
//!   IPv6 ◄── depart: host by its number ◄── [ to the number, IPv4 ] ◄──────────┘ hairpins inside
//! ```
//!
//! Packets of established sessions are not written as IPv4 in between: the passes of NAT44 get the
//! number beside the headers as they came, and these are read and written once ([`HostPackets`]).
//! All other packets become IPv4 first, and last IPv6.
//!
//! NAT64 translates (RFC 7915), a softwire is taken off and put on (RFC 6333): everything else is
//! the same for both, and for IPv4 subscribers. The hop limit is decremented once, by the engine.

pub(in crate::shard) mod arrive;
mod depart;
pub(in crate::shard) mod foretell;
mod port_control;
mod probe;
#[cfg(test)]
mod tests;

use crate::event::Cause;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Sink;
use crate::headers::parse::HEADERS;
use crate::headers::parse::ip;
use crate::random::KeyedHash;
use crate::shard::PACKET_BUFFER_BYTES;
use crate::shard::packet::PacketPath;
use crate::shard::upkeep::watch::crossing;
use crate::state::path_mtu::PathMtus;
use crate::state::reassembly::Reassembly;
use crate::time::Instant;
use crate::types::RealmId;
use crate::verdict::Verdict;
use arrive::Incoming;
use arrive::Plain;
use probe::Probes;
use wire::ipv4::is_tcp_or_udp;

/// Bytes that a packet may grow in front: the headers of a softwire, or of a translation.
pub(in crate::shard) const ROOM: usize = 64;

const _: () = assert!(ROOM >= translate::ROOM && ROOM >= wire::ipv6::HEADER_LENGTH, "there is room for any header");

/// The result of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Sent {
    Left,
    /// It waits for the rest of its datagram, and has no verdict so far.
    Kept,
}

/// Packets of a burst that come from IPv6 hosts, or go to them. A value is valid only after its
/// pass.
pub(in crate::shard) struct HostPackets {
    plain: [Plain; BURST_MAX],
    /// Bits of packets, here and below: they came from hosts, and are as they came. What is known
    /// about them is in `plain` and `internal`.
    pending: u64,
    /// The packets among these that are translated; also others.
    nat64: u64,
    /// They go to hosts, and are as they came from outside. `ends` has their internal endpoint.
    pending_in: u64,
    /// They go to hosts, and are as they would be for an IPv4 host.
    further: u64,
    /// The records that are probably those of the hosts of plain packets; 0 for none.
    candidates: [u32; BURST_MAX],
    /// Of plain packets: [`InternalKey::word`](crate::state::mapping::InternalKey::word), at first
    /// with the address 0.
    internal: [u64; BURST_MAX],
    /// New endpoints of pending packets: of those from hosts the source, once the session is found.
    ends: [(u32, u16); BURST_MAX],
    identifications: [u16; BURST_MAX],
    /// Places of the records of hosts that packets go to.
    departing: [u32; BURST_MAX],
}

impl Default for HostPackets {
    fn default() -> HostPackets {
        HostPackets {
            plain: [Plain::default(); BURST_MAX],
            pending: 0,
            nat64: 0,
            pending_in: 0,
            further: 0,
            candidates: [0; BURST_MAX],
            internal: [0; BURST_MAX],
            ends: [(0, 0); BURST_MAX],
            identifications: [0; BURST_MAX],
            departing: [0; BURST_MAX],
        }
    }
}

impl HostPackets {
    #[inline(always)]
    pub(in crate::shard) const fn is_pending(&self, i: usize) -> bool {
        self.pending >> i & 1 != 0
    }

    /// Length of the IPv4 packet that a pending packet becomes.
    #[inline(always)]
    pub(in crate::shard) const fn length(&self, i: usize) -> u16 {
        self.plain[i].length
    }

    /// A steady packet from outside goes to this internal endpoint, of a host.
    #[inline(always)]
    pub(in crate::shard) const fn postpone(&mut self, i: usize, end: (u32, u16)) {
        self.ends[i] = end;
        self.pending_in |= 1 << i;
    }

    /// Another packet goes to a host.
    #[inline(always)]
    pub(in crate::shard) const fn add_further(&mut self, i: usize) {
        self.further |= 1 << i;
    }
}

/// Kept between bursts.
pub(in crate::shard) struct Edge {
    /// Time of the current call.
    now: Instant,
    incoming: Box<[Incoming; BURST_MAX]>,
    /// For own packets to hosts. `None` while in use.
    buffer: Option<Box<[u8; ROOM + PACKET_BUFFER_BYTES]>>,
    /// The next identification for fragments of softwire packets.
    identification: u32,
    /// `None` while in use.
    reassembly: Option<Box<Reassembly>>,
    path_mtus: PathMtus,
    probes: Probes,
}

impl Edge {
    pub(in crate::shard) fn new(hash: KeyedHash, has_hosts: bool) -> Edge {
        Edge {
            now: Instant::ORIGIN,
            incoming: Box::new([Incoming::Other; BURST_MAX]),
            buffer: Some(Box::new([0; ROOM + PACKET_BUFFER_BYTES])),
            identification: hash.hash(0, 0) as u32,
            reassembly: Some(Box::new(Reassembly::new(has_hosts))),
            path_mtus: PathMtus::new(hash, has_hosts),
            probes: Probes::default(),
        }
    }

    /// Fragments without a verdict.
    pub(in crate::shard) fn held(&self) -> u32 {
        self.reassembly.as_ref().map_or(0, |reassembly| reassembly.held())
    }
}

pub(in crate::shard) fn verdict_of(reason: translate::Reason) -> Verdict {
    use translate::Reason;
    match reason {
        Reason::Ipv4Malformed => Verdict::IpMalformed,
        Reason::Ipv4Checksum => Verdict::IpBadChecksum,
        Reason::Ipv4SourceRoute => Verdict::SourceRoute,
        Reason::Ipv6Malformed => Verdict::Ipv6Malformed,
        Reason::Jumbogram
        | Reason::HeadersTruncated
        | Reason::HeadersTooMany
        | Reason::HeadersMisplaced
        | Reason::SegmentsLeft
        | Reason::HeadersBehindFragment => Verdict::Ipv6Header,
        Reason::FragmentLength | Reason::FragmentOverrun => Verdict::FragmentMalformed,
        Reason::FragmentTiny => Verdict::FragmentTiny,
        Reason::FragmentedIcmp => Verdict::FragmentIcmp,
        Reason::TtlExpired | Reason::HopLimitExpired => Verdict::TtlExpired,
        Reason::TooBigForIpv6 | Reason::TooBigForIpv4 => Verdict::TooBig,
        Reason::TransportMalformed => Verdict::TransportMalformed,
        Reason::ForeignProtocol | Reason::Igmp => Verdict::ProtocolUnsupported,
        Reason::FragmentWithoutChecksum | Reason::Ipv6WithoutChecksum => Verdict::ChecksumMissing,
        Reason::IcmpChecksum => Verdict::IcmpBadChecksum,
        Reason::IcmpType | Reason::IcmpCode | Reason::IcmpPointer => Verdict::IcmpUntranslatable,
        Reason::ErrorAboutError | Reason::QuoteMalformed | Reason::PacketTooBigSmall => Verdict::IcmpQuoteMalformed,
        Reason::SourceUnspecified
        | Reason::SourceLoopback
        | Reason::SourceMulticast
        | Reason::SourceLinkLocal
        | Reason::SourceMapped
        | Reason::Source4Illegal => Verdict::SourceInvalid,
        Reason::SourceInPrefix => Verdict::SourceInPrefix,
        Reason::DestinationOutsidePrefix => Verdict::Ipv6NotForwarded,
        Reason::EmbeddedPrivate => Verdict::EmbeddedPrivate,
        Reason::EmbeddedUOctet
        | Reason::EmbeddedUnspecified
        | Reason::EmbeddedLoopback
        | Reason::EmbeddedLinkLocal
        | Reason::EmbeddedMulticast
        | Reason::EmbeddedReserved => Verdict::EmbeddedAddress,
        Reason::NoRoom => Verdict::NoBuffer,
    }
}

/// True if an IPv4 packet of `length` bytes is whole, without options, and TCP or UDP: at the edge
/// only addresses and checksums change. The engine judges everything else.
#[inline(always)]
fn is_plain(header: &[u8; HEADERS], length: usize) -> bool {
    /// Version and length of the header, length of the packet, fragment offset and More Fragments.
    const FIXED: u64 = 0xff00_ffff_0000_3fff;
    let first = header.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    first & FIXED == 0x45 << 56 | (length as u64) << 32 && length >= HEADERS && is_tcp_or_udp(header[ip::PROTOCOL])
}

impl PacketPath {
    #[inline(always)]
    pub(in crate::shard) fn leads_to_host(&self, egress: Egress) -> bool {
        egress.next_hop >= self.ledger.shared.transition.first_hop
    }

    /// Drops fragments that wait too long for the rest, and probes idle connections.
    pub(in crate::shard) fn maintain_edge<S: Sink>(&mut self, now: Instant, sink: &mut S) {
        self.edge.now = now;
        let timeout = self.ledger.shared.settings().timeouts.fragment;
        let lost = self.edge.reassembly.as_mut().map_or(0, |reassembly| reassembly.expire(now, timeout));
        self.ledger.counters.verdicts[Verdict::FragmentTimeout.index()] += u64::from(lost);
        self.watch_reassembly(now);
        if self.ledger.shared.transition.nat64(0).is_some() {
            self.probe_idle(now, sink);
        }
    }

    /// RFC 6333 §6.3: reports that the memory for datagrams is soon full, and when that ends.
    fn watch_reassembly(&mut self, now: Instant) {
        let crossed = self.edge.reassembly.as_mut().and_then(|reassembly| reassembly.crossing());
        if let Some((is_high, percent)) = crossed {
            self.ledger.events.record_minor(crossing(is_high, now, Cause::Reassembly, percent));
        }
    }

    /// Counts a fragment that was dropped for `verdict`, and the fragments that were kept of its
    /// datagram.
    fn count_dropped_fragments(&mut self, now: Instant, verdict: Verdict, held: u32) {
        self.ledger.counters.verdicts[verdict.index()] += u64::from(held);
        if matches!(verdict, Verdict::ReassemblyFull | Verdict::ReassemblyQuota) {
            self.ledger.note_no_room(now, (RealmId::default(), None), verdict);
        }
    }

    /// Counts fragments that were dropped for a new datagram.
    fn count_displaced_fragments(&mut self, now: Instant, reassembly: &mut Reassembly) {
        let displaced = reassembly.take_displaced();
        if displaced != 0 {
            self.count_dropped_fragments(now, Verdict::ReassemblyFull, displaced);
        }
    }

    /// Sends a packet that is not one of the burst: made here, or released.
    ///
    /// # Errors
    /// No buffer, or an IPv6 host cannot receive it.
    #[inline]
    pub(in crate::shard) fn emit<S: Sink>(
        &mut self,
        egress: Egress,
        parts: &[&[u8]],
        sink: &mut S,
    ) -> Result<Sent, Verdict> {
        if self.leads_to_host(egress) {
            return self.emit_to_host(egress, parts, sink);
        }
        if sink.transmit(egress, parts) { Ok(Sent::Left) } else { Err(Verdict::NoBuffer) }
    }
}
