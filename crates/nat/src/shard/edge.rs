//! The edge to IPv6 hosts: the engine sees their packets as IPv4.
//!
//! ```text
//!   IPv6 ──► arrive: host, its number ──► [ from the number, IPv4 ] ──► passes and steps of NAT44
//!                                                                              │
//!   IPv6 ◄── depart: host by its number ◄── [ to the number, IPv4 ] ◄──────────┘ hairpins inside
//! ```
//!
//! Packets of established sessions are not written as IPv4 in between: the passes of NAT44 get the
//! number beside the original headers, which are read and written once ([`HostPackets`]).
//!
//! Only here do NAT64 (RFC 7915) and softwires (RFC 6333) differ. The engine decrements the hop
//! limit.

mod arrive;
mod depart;
mod enter;
mod look;
mod port_control;
pub(in crate::shard) mod preview;
mod probe;
mod refuse;
#[cfg(test)]
mod tests;
mod undelivered;
pub(in crate::shard) mod usual;

use crate::event::Cause;
use crate::headers::identification::Identifications6;
use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Sink;
use crate::headers::parse::HEADERS;
use crate::headers::parse::ip;
use crate::random::KeyedHash;
use crate::settings::Settings;
use crate::shard::PACKET_BUFFER_BYTES;
use crate::shard::packet::PacketPath;
use crate::shard::upkeep::watch::crossing;
use crate::state::path_mtu::PathMtus;
use crate::state::reassembly::Reassembly;
use crate::time::Instant;
use crate::types::AddressUse;
use crate::types::Facing;
use crate::types::InterfaceId;
use crate::types::RealmId;
use crate::verdict::Verdict;
use crate::verdict::VerdictKind;
use crate::verdict::way_of;
use arrive::Incoming;
use probe::Probes;
use usual::Plain;
use wire::ipv4::is_tcp_or_udp;

/// Bytes that a packet may grow in front.
pub(in crate::shard) const ROOM: usize = 64;

const _: () = assert!(ROOM >= translate::ROOM && ROOM >= wire::ipv6::HEADER_LENGTH, "there is room for any header");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Sent {
    Left,
    /// The fragment waits for the rest of its datagram, without a verdict.
    Kept,
}

/// Packets of a burst from and to IPv6 hosts, a bit or an entry for each. A value is valid only
/// after its pass.
pub(in crate::shard) struct HostPackets {
    plain: [Plain; BURST_MAX],
    /// Packets from hosts, unchanged; `plain` and `internal` describe them.
    pending: u64,
    /// Of `pending`, those to translate; also others.
    nat64: u64,
    /// Packets to hosts, unchanged; `ends` has their internal endpoint.
    pending_in: u64,
    /// Packets to hosts, written as for an IPv4 host.
    further: u64,
    /// Probable host records of plain packets; 0 for none.
    candidates: [u32; BURST_MAX],
    /// Of plain packets: [`InternalKey::word`](crate::state::mapping::InternalKey::word), at first
    /// with address 0.
    internal: [u64; BURST_MAX],
    /// The new source of packets from hosts, once the session is found.
    ends: [(u32, u16); BURST_MAX],
    identifications: [u16; BURST_MAX],
    /// Places of the receiving hosts' records.
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

    /// The packet's length as IPv4.
    #[inline(always)]
    pub(in crate::shard) const fn length(&self, i: usize) -> u16 {
        self.plain[i].length
    }

    #[inline(always)]
    pub(in crate::shard) const fn postpone(&mut self, i: usize, end: (u32, u16)) {
        self.ends[i] = end;
        self.pending_in |= 1 << i;
    }

    #[inline(always)]
    pub(in crate::shard) const fn add_further(&mut self, i: usize) {
        self.further |= 1 << i;
    }
}

pub(in crate::shard) struct Edge {
    now: Instant,
    incoming: Box<[Incoming; BURST_MAX]>,
    /// Bytes that the packet emitted last to a host gained or lost.
    grown: i64,
    /// Room to write own packets to hosts. `None` while in use.
    buffer: Option<Box<[u8; ROOM + PACKET_BUFFER_BYTES]>>,
    /// Identifications for fragments of softwire packets.
    identifications: Identifications6,
    /// `None` while in use.
    reassembly: Option<Box<Reassembly>>,
    path_mtus: PathMtus,
    probes: Probes,
    /// Own addresses that must not be used (RFC 4862 §5.4), and why. Usually none.
    unused: Vec<(RealmId, u128, AddressUse)>,
}

impl Edge {
    pub(in crate::shard) fn new([of_paths, of_fragments]: [KeyedHash; 2], settings: &Settings) -> Edge {
        let has_hosts = !settings.transition.is_off();
        Edge {
            now: Instant::ORIGIN,
            incoming: Box::new([Incoming::Other; BURST_MAX]),
            grown: 0,
            buffer: Some(Box::new([0; ROOM + PACKET_BUFFER_BYTES])),
            identifications: Identifications6::new(of_fragments, has_hosts),
            reassembly: Some(Box::new(Reassembly::new(has_hosts))),
            path_mtus: PathMtus::new(of_paths, has_hosts),
            probes: Probes::default(),
            unused: Vec::with_capacity(settings.ipv6.addresses.len() + settings.transition.softwires.len()),
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

/// True for a whole TCP or UDP packet without options: the edge changes only addresses and
/// checksums, and the engine judges the rest.
#[inline(always)]
fn is_plain(header: &[u8; HEADERS], length: usize) -> bool {
    /// Bits of version, header length, total length, fragment offset and More Fragments.
    const FIXED: u64 = 0xff00_ffff_0000_3fff;
    let first = header.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    first & FIXED == 0x45 << 56 | (length as u64) << 32 && length >= HEADERS && is_tcp_or_udp(header[ip::PROTOCOL])
}

impl PacketPath {
    #[inline(always)]
    pub(in crate::shard) fn leads_to_host(&self, egress: Egress) -> bool {
        egress.next_hop >= self.ledger.shared.transition.first_hop
    }

    /// Link-local addresses are of no interest here: nothing is sent from them.
    pub(in crate::shard) fn set_address_use(&mut self, interface: InterfaceId, address: u128, now: AddressUse) {
        let shared = &self.ledger.shared;
        let settings = shared.settings();
        let own = &settings.ipv6.addresses;
        if !own.iter().any(|own| own.interface == interface && own.address.to_bits() == address) {
            return;
        }
        let is_of = |realm| {
            let mut of_address = own.iter().filter(|own| own.address.to_bits() == address);
            of_address.any(|own| shared.facing(own.interface) == Facing::inside(realm))
        };
        // A softwire may end at an address that no interface of its realm has.
        let ends = settings.transition.softwires.iter().filter(|end| end.aftr.to_bits() == address);
        let elsewhere = ends.map(|end| end.realm).filter(|realm| !is_of(*realm));
        for realm in core::iter::once(shared.realm_of(interface)).chain(elsewhere) {
            self.edge.unused.retain(|(of_realm, unused, _)| (*of_realm, *unused) != (realm, address));
            if now != AddressUse::Preferred {
                self.edge.unused.push((realm, address, now));
            }
        }
    }

    #[inline(always)]
    fn is_unused(&self, realm: RealmId, address: u128) -> bool {
        !self.edge.unused.is_empty() && self.why_unused(realm, address).is_some()
    }

    #[cold]
    fn why_unused(&self, realm: RealmId, address: u128) -> Option<AddressUse> {
        let is_it = |(of_realm, unused, _): &&(RealmId, u128, AddressUse)| (*of_realm, *unused) == (realm, address);
        self.edge.unused.iter().find(is_it).map(|(.., now)| *now)
    }

    /// The source of own packets to the IPv6 hosts of a realm; `None` if no address is left.
    fn own_address6(&self, realm: RealmId) -> Option<u128> {
        let own = self.ledger.shared.transition.realm(realm)?.own;
        if !self.is_unused(realm, own) {
            return Some(own);
        }
        let is_of_realm = |interface: InterfaceId| self.ledger.shared.facing(interface) == Facing::inside(realm);
        let mut others = self.ledger.shared.settings().ipv6.addresses.iter();
        let other =
            others.find(|other| is_of_realm(other.interface) && !self.is_unused(realm, other.address.to_bits()));
        other.map(|other| other.address.to_bits())
    }

    pub(in crate::shard) fn maintain_edge(&mut self, now: Instant, sink: &mut dyn Sink) {
        self.edge.now = now;
        let timeout = self.ledger.shared.settings().timeouts.fragment;
        let lost = self.edge.reassembly.as_mut().map_or(0, |reassembly| reassembly.expire(now, timeout));
        self.ledger.counters.verdicts[Verdict::FragmentTimeout.index()] += u64::from(lost);
        self.watch_reassembly(now);
        if self.ledger.shared.transition.nat64(0).is_some() {
            self.probe_idle(now, sink);
        }
    }

    /// Reports when the memory for datagrams is nearly full, and when that ends (RFC 6333 §6.3).
    fn watch_reassembly(&mut self, now: Instant) {
        let crossed = self.edge.reassembly.as_mut().and_then(|reassembly| reassembly.crossing());
        if let Some((is_high, percent)) = crossed {
            self.ledger.events.record_minor(crossing(is_high, now, Cause::Reassembly, percent));
        }
    }

    fn count_dropped_fragments(&mut self, now: Instant, verdict: Verdict, held: u32) {
        self.ledger.counters.verdicts[verdict.index()] += u64::from(held);
        if matches!(verdict, Verdict::ReassemblyFull | Verdict::ReassemblyQuota) {
            self.ledger.note_no_room(now, (RealmId::default(), None), verdict);
        }
    }

    fn count_evicted_fragments(&mut self, now: Instant, reassembly: &mut Reassembly) {
        let evicted = reassembly.take_evicted();
        if evicted != 0 {
            self.count_dropped_fragments(now, Verdict::ReassemblyFull, evicted);
        }
    }

    /// Sends a packet that is not one of the burst: made here, or released.
    ///
    /// # Errors No buffer is free, or an IPv6 host cannot receive the packet.
    #[inline]
    pub(in crate::shard) fn emit(
        &mut self,
        egress: Egress,
        parts: &[&[u8]],
        sink: &mut dyn Sink,
    ) -> Result<Sent, Verdict> {
        if self.leads_to_host(egress) {
            return self.emit_to_host(egress, parts, sink);
        }
        if sink.transmit(egress, parts) { Ok(Sent::Left) } else { Err(Verdict::NoBuffer) }
    }

    /// After [`PacketPath::emit`] of a packet that counts as forwarded: it counts as it left.
    pub(in crate::shard) fn count_grown(&mut self, egress: Egress, verdict: Verdict) {
        if self.leads_to_host(egress) && verdict.kind() == VerdictKind::Forwarded {
            let bytes = &mut self.ledger.counters.bytes_forwarded[way_of(verdict)];
            *bytes = bytes.wrapping_add_signed(self.edge.grown);
        }
    }
}
