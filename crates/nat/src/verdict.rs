//! The single verdict of each received packet, and the counters.
//!
//! Invariant, over all workers: `received == sum(verdicts) + fragments held + packets waiting for a
//! neighbour + packets inside hand-off rings`.

macro_rules! verdicts {
    ($( $variant:ident, $name:literal, $kind:ident, $description:literal; )+) => {
        /// Every received packet gets exactly one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Verdict { $( #[doc = $description] $variant, )+ }

        impl Verdict {
            /// All verdicts in index order.
            pub const ALL: &'static [Verdict] = &[ $( Verdict::$variant, )+ ];
            /// Number of verdicts.
            pub const COUNT: usize = Verdict::ALL.len();

            /// The stable name in commands, JSON and metrics.
            pub const fn name(self) -> &'static str {
                match self { $( Verdict::$variant => $name, )+ }
            }

            /// One sentence that explains the verdict.
            pub const fn description(self) -> &'static str {
                match self { $( Verdict::$variant => $description, )+ }
            }

            /// What became of the packet.
            pub const fn kind(self) -> VerdictKind {
                match self { $( Verdict::$variant => VerdictKind::$kind, )+ }
            }

            /// Index in [`Counters::verdicts`].
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

use wire::ipv4::PROTOCOL_ICMP;
use wire::ipv4::PROTOCOL_OFFSET;
use wire::ipv6;

use crate::types::Protocol;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerdictKind {
    /// Sent on, translated or passed.
    Forwarded,
    /// Meant for Natrix itself and handled.
    Local,
    /// Dropped for the reason of the verdict.
    Dropped,
}

verdicts! {
    Outbound, "outbound", Forwarded, "Translated from inside to outside.";
    Inbound, "inbound", Forwarded, "Translated from outside to inside.";
    Hairpin, "hairpin", Forwarded, "Translated twice, from one subscriber to another (RFC 4787 REQ-9).";
    Passed, "passed", Forwarded, "Forwarded untranslated by an explicit rule.";
    Local, "local", Local, "Packet to Natrix itself, which answered or used it: ARP, a ping, port control, or UDP to a closed port (answered with an ICMP error).";
    LocalIgnored, "local_ignored", Local, "Packet to Natrix itself, which does not answer such packets.";
    LinkUnknownType, "link_unknown_type", Dropped, "Ethernet frame that is neither IPv4 nor ARP, nor IPv6 on an interface with an IPv6 address.";
    LinkTruncated, "link_truncated", Dropped, "Ethernet frame too short for its headers.";
    LinkUnknownVlan, "link_unknown_vlan", Dropped, "802.1Q tag that no interface of the port has.";
    LinkOtherDestination, "link_other_destination", Dropped, "Ethernet destination is another station.";
    ArpInvalid, "arp_invalid", Dropped, "ARP packet that is malformed or not for this link.";
    NeighbourUnresolved, "neighbour_unresolved", Dropped, "The next hop did not answer in time (ARP or Neighbor Discovery).";
    NeighbourQueueFull, "neighbour_queue_full", Dropped, "Too many packets are waiting for the answer of their next hop (ARP or Neighbor Discovery).";
    HandOffRingFull, "hand_off_ring_full", Dropped, "The ring to the worker that owns the packet is full.";
    TransmitFull, "transmit_full", Dropped, "The transmit queue of the port is full.";
    NoBuffer, "no_buffer", Dropped, "No packet buffer was free.";
    IpMalformed, "ip_malformed", Dropped, "IPv4 header is too short, has another version, or has inconsistent lengths.";
    IpBadChecksum, "ip_bad_checksum", Dropped, "IPv4 header checksum is wrong.";
    TransportMalformed, "transport_malformed", Dropped, "TCP, UDP or ICMP header is too short or does not fit the IP length.";
    SourceInvalid, "source_invalid", Dropped, "Source address is never valid as a source (0/8, loopback, multicast, class E, broadcast).";
    SourceSpoofed, "source_spoofed", Dropped, "Source address belongs to Natrix or to a pool, or it is an inside address that arrived from outside.";
    SourceNotSubscriber, "source_not_subscriber", Dropped, "Inside source address is not in the subscriber prefixes of any pool.";
    BoundaryAddress, "boundary_address", Dropped, "Inside source address is the first or last of its prefix, which the formula of a deterministic pool excludes (RFC 7422); list it as a /32 in another pool to serve it.";
    DestinationInvalid, "destination_invalid", Dropped, "Destination cannot be forwarded to (0/8, loopback, multicast, class E, broadcast).";
    DestinationNotPool, "destination_not_pool", Dropped, "The packet came from outside, and its destination belongs neither to a pool nor to Natrix.";
    SourceRoute, "source_route", Dropped, "Packet carries a source-route option (RFC 5508 REQ-10b3).";
    NoRoute, "no_route", Dropped, "No route to the destination.";
    TtlExpired, "ttl_expired", Dropped, "TTL expired at Natrix.";
    TooBig, "too_big", Dropped, "The packet exceeds the MTU of the next link and must not be fragmented (RFC 4787 REQ-13).";
    NoMapping, "no_mapping", Dropped, "The packet is for an external endpoint that has no mapping.";
    Filtered, "filtered", Dropped, "The mapping's filtering does not permit this remote endpoint.";
    HairpinRefused, "hairpin_refused", Dropped, "The packet is for a mapping of another VRF, which the configuration does not permit.";
    UnsolicitedSyn, "unsolicited_syn", Dropped, "Unsolicited SYN from outside, held for `timeouts.unsolicited_syn` (RFC 5382 REQ-4).";
    TcpNoSession, "tcp_no_session", Dropped, "TCP segment other than SYN without a session.";
    ProtocolUnsupported, "protocol_unsupported", Dropped, "IP protocol that is neither translated nor passed by a rule.";
    IcmpTypeUnsupported, "icmp_type_unsupported", Dropped, "ICMP message that is not a query, reply or error, or is deprecated (RFC 5508 REQ-10c, REQ-11).";
    IcmpBadChecksum, "icmp_bad_checksum", Dropped, "ICMP checksum of an error message is wrong (RFC 5508 REQ-3).";
    IcmpQuoteMalformed, "icmp_quote_malformed", Dropped, "Packet quoted by an ICMP error is unusable or has a wrong header checksum (RFC 5508 REQ-3a).";
    IcmpQuoteNoMapping, "icmp_quote_no_mapping", Dropped, "ICMP error about a packet without a mapping (RFC 5508 REQ-4, REQ-5).";
    DroppedByRule, "dropped_by_rule", Dropped, "A rule with `action = \"drop\"` matches.";
    DeniedByFilter, "denied_by_filter", Dropped, "A filter with `action = \"deny\"` matches.";
    PortsExhausted, "ports_exhausted", Dropped, "No external port is free for a new mapping (RFC 6888 REQ-11).";
    BlockLimit, "block_limit", Dropped, "The port blocks of the subscriber are full, and it has reached its limit of blocks (RFC 6888 REQ-4).";
    AddressDraining, "address_draining", Dropped, "All external addresses that the subscriber may use are draining (pool.drain, pool.draining): it keeps its mappings and gets no new ones.";
    MappingTableFull, "mapping_table_full", Dropped, "The mapping table is full; nothing is evicted (RFC 6888 REQ-11d).";
    SessionTableFull, "session_table_full", Dropped, "The session table is full; nothing is evicted (RFC 6888 REQ-11d).";
    SessionLimit, "session_limit", Dropped, "The mapping has reached its limit of sessions (RFC 6888 REQ-5).";
    FlowTableFull, "flow_table_full", Dropped, "The table of endpoint-dependent flows is full; nothing is evicted (RFC 6888 REQ-11d).";
    SubscriberPortQuota, "subscriber_port_quota", Dropped, "The subscriber has reached its limit of ports of this protocol (RFC 6888 REQ-4).";
    SubscriberSessionQuota, "subscriber_session_quota", Dropped, "The subscriber has reached its limit of sessions (RFC 6888 REQ-5).";
    SubscriberMemoryQuota, "subscriber_memory_quota", Dropped, "The subscriber has reached its limit of memory (RFC 6888 REQ-5).";
    SubscriberRateLimit, "subscriber_rate_limit", Dropped, "The subscriber exceeds its rate of new mappings or sessions (RFC 6888 REQ-4c, REQ-5b).";
    SubscriberTableFull, "subscriber_table_full", Dropped, "The subscriber table is full; nothing is evicted (RFC 6888 REQ-11d).";
    LogFull, "log_full", Dropped, "The event log cannot be written fast enough, and no new mapping is created without its record ([log] back_pressure).";
    FragmentTiny, "fragment_tiny", Dropped, "First fragment too short for the transport header, or a second one that overlaps the header (RFC 1858, RFC 3128).";
    FragmentOverlap, "fragment_overlap", Dropped, "Fragment overlaps another one of its datagram; the whole datagram is dropped.";
    FragmentMalformed, "fragment_malformed", Dropped, "Fragment with impossible offset or length, or of a datagram whose fragments disagree about congestion marks (RFC 3168 section 5.3).";
    FragmentTableFull, "fragment_table_full", Dropped, "Too many fragmented datagrams are incomplete.";
    FragmentBuffersFull, "fragment_buffers_full", Dropped, "Too many fragments are waiting for their first fragment.";
    FragmentTimeout, "fragment_timeout", Dropped, "The first fragment did not arrive in time.";
    FragmentRefused, "fragment_refused", Dropped, "The first fragment of this datagram was dropped, so the others are too.";
    Quarantined, "quarantined", Dropped, "Natrix failed on the burst of this packet; the burst is kept for its developers.";
    AlgReordered, "alg_reordered", Dropped, "TCP segment of a control session that arrived before a missing one; the sender retransmits it.";
    Ipv6Malformed, "ipv6_malformed", Dropped, "IPv6 header is too short, has another version, or has inconsistent lengths or extension headers.";
    Ipv6NotForwarded, "ipv6_not_forwarded", Dropped, "IPv6 packet to a host other than Natrix, which does not forward IPv6.";
    NeighbourInvalid, "neighbour_invalid", Dropped, "Neighbour message of IPv6 that breaks a rule of RFC 4861, such as a hop limit below 255.";
    CallFragment, "call_fragment", Dropped, "Fragment of a GRE packet, while the PPTP gateway is enabled; calls are translated in whole packets only.";
    Ipv6Header, "ipv6_header", Dropped, "IPv6 extension headers that are not translated: more than 8, misplaced, behind a Fragment header, a routing header with segments left, or a jumbogram (RFC 7915 section 5.1).";
    SourceInPrefix, "source_in_prefix", Dropped, "IPv6 source address inside a prefix of NAT64: a loop (RFC 6146 section 3.5).";
    EmbeddedAddress, "embedded_address", Dropped, "IPv6 destination whose IPv4 address cannot be reached: 0/8, loopback, link-local, multicast, class E, or bits 64 to 71 that are not zero.";
    EmbeddedPrivate, "embedded_private", Dropped, "Private IPv4 address inside the well-known prefix 64:ff9b::/96 (RFC 6052 section 3.1).";
    IcmpUntranslatable, "icmp_untranslatable", Dropped, "ICMP message whose type, code or pointer means nothing in the other family (RFC 7915).";
    ChecksumMissing, "checksum_missing", Dropped, "UDP without a checksum: over IPv6, or in a fragment to an IPv6 host (RFC 7915 section 4.5).";
    FragmentIcmp, "fragment_icmp", Dropped, "Fragment of an ICMP message to or from an IPv6 host (RFC 7915 section 1.2).";
    HostLimit, "host_limit", Dropped, "The subscriber has reached its limit of IPv6 hosts (`subscriber.ipv6_hosts`).";
    HostTableFull, "host_table_full", Dropped, "The table of IPv6 hosts is full; nothing is evicted (RFC 6888 REQ-11d).";
    SoftwireSource, "softwire_source", Dropped, "Source inside a softwire that `softwire.inner` does not permit (RFC 6333 section 11).";
    SoftwireMalformed, "softwire_malformed", Dropped, "Packet in a softwire that is not IPv4, or whose length disagrees with that of the softwire's packet.";
    Reassembled, "reassembled", Forwarded, "Fragment of a softwire's packet, which was forwarded as a whole with its last fragment.";
    LocalKernel, "local_kernel", Local, "Packet to Natrix itself, which gave it to the kernel.";
    KernelLimited, "kernel_limited", Dropped, "The packet was for the kernel, and its class exceeded its rate.";
    KernelRingFull, "kernel_ring_full", Dropped, "The packet was for the kernel, which did not keep up.";
    SoftwireSubscriber, "softwire_subscriber", Dropped, "Softwire from an address that is not in `softwire.subscribers` (RFC 6333 section 11).";
    AlgAckUnsent, "alg_ack_unsent", Dropped, "TCP segment of a control session that acknowledges bytes that were not sent (RFC 9293 section 3.10.7.4).";
    AlgFragment, "alg_fragment", Dropped, "Fragment of a TCP segment in a control session whose sequence numbers a gateway has changed; only whole segments can be translated.";
    ReassemblyFull, "reassembly_full", Dropped, "The reassembly buffers are full: fragments of softwires (RFC 6333 section 5.3), or of UDP without a checksum (RFC 6146).";
    ReassemblyQuota, "reassembly_quota", Dropped, "The source has reached its limit of incomplete datagrams: fragments of softwires, or of UDP without a checksum.";
    AddressNotUsed, "address_not_used", Dropped, "Sending needs an own IPv6 address that Natrix does not use: another station has it, or its check is not finished (RFC 4862 section 5.4).";
}

/// Counters of one worker. All but gauges only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Packets from ports.
    pub received: u64,
    /// Packets by [`Verdict::index`].
    pub verdicts: [u64; Verdict::COUNT],
    /// Packets to other workers.
    pub handed_off: u64,
    /// Packets from other workers.
    pub taken_over: u64,
    /// Gauge: waiting for the first fragment of their datagram.
    pub fragments_held: u64,
    /// Gauge: packets waiting for their next hop's link-layer address. Their verdict counts when
    /// they leave.
    pub neighbour_pending: u64,
    /// Packets split for the next link's MTU.
    pub fragmented: u64,
    /// ICMP errors and replies that Natrix originated.
    pub originated: u64,
    /// ICMP errors not sent because of rate limits.
    pub icmp_errors_suppressed: u64,
    /// ICMP errors translated (also counted by verdict).
    pub icmp_errors_translated: u64,
    /// Mappings by [`crate::Protocol::index`].
    pub mappings_created: [u64; Protocol::COUNT],
    /// Mappings by [`crate::Protocol::index`].
    pub mappings_removed: [u64; Protocol::COUNT],
    /// Endpoint-dependent flows; each counts as a session, too.
    pub flows_created: u64,
    /// Endpoint-dependent flows removed.
    pub flows_removed: u64,
    /// Refusals because no port was free, or a port limit was reached, by
    /// [`crate::Protocol::index`]; includes port control.
    pub ports_refused: [u64; Protocol::COUNT],
    /// Subscribers paired with an external address.
    pub addresses_paired: u64,
    /// Port blocks leased.
    pub blocks_leased: u64,
    /// Port blocks given back.
    pub blocks_returned: u64,
    /// Subscribers sent to a penalty pool.
    pub penalties_begun: u64,
    /// Subscribers released from it.
    pub penalties_ended: u64,
    /// Refusals of subscribers without a mapping that a full list no longer shows.
    pub refusals_unlisted: u64,
    /// Sessions created.
    pub sessions_created: u64,
    /// Sessions removed.
    pub sessions_removed: u64,
    /// Forwarded without effect: the sequence number is outside the connection (RFC 7857 §2.2).
    pub tcp_resets_ignored: u64,
    /// Discarded because a matching outbound SYN followed in time (RFC 5382 §4.3 REQ-4).
    pub unsolicited_syns_matched: u64,
    /// Dropped because no more could be held.
    pub unsolicited_syns_overflow: u64,
    /// Gauge: ports held down.
    pub ports_held: u64,
    /// Reused too early because too many were held down.
    pub ports_held_short: u64,
    /// Replies of PCP by [`pcp::Code`].
    pub pcp_results: [u64; pcp::Code::ALL.len()],
    /// Replies of NAT-PMP by [`pcp::nat_pmp::Code`].
    pub nat_pmp_results: [u64; pcp::nat_pmp::Code::ALL.len()],
    /// Datagrams to the server that are no requests.
    pub port_control_ignored: u64,
    /// Requests not answered because of rate limits.
    pub port_control_limited: u64,
    /// Messages to clients about changed grants.
    pub port_control_updates: u64,
    /// Control sessions that gateways began to read, by [`alg::AlgId`].
    pub control_sessions: [u64; alg::ALGS.len()],
    /// Messages that gateways changed, by [`alg::AlgId`].
    pub messages_changed: [u64; alg::ALGS.len()],
    /// Expectations made.
    pub expectations_created: u64,
    /// Expectations refused: limits, or no port.
    pub expectations_refused: u64,
    /// The rest of what gateways did, by [`alg::AlgId`].
    pub gateways: [GatewayCounters; alg::ALGS.len()],
    /// Grants made on request.
    pub grants_opened: u64,
    /// Grants ended on request.
    pub grants_deleted: u64,
    /// IP bytes outbound, inbound and hairpinned.
    pub bytes_forwarded: [u64; 3],
    /// Translated packets by [`crate::Protocol::index`]; those of GRE are in none.
    pub translated: [u64; Protocol::COUNT],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            received: 0,
            verdicts: [0; Verdict::COUNT],
            handed_off: 0,
            taken_over: 0,
            fragments_held: 0,
            neighbour_pending: 0,
            fragmented: 0,
            originated: 0,
            icmp_errors_suppressed: 0,
            icmp_errors_translated: 0,
            mappings_created: [0; 3],
            mappings_removed: [0; 3],
            flows_created: 0,
            flows_removed: 0,
            ports_refused: [0; 3],
            addresses_paired: 0,
            blocks_leased: 0,
            blocks_returned: 0,
            penalties_begun: 0,
            penalties_ended: 0,
            refusals_unlisted: 0,
            sessions_created: 0,
            sessions_removed: 0,
            tcp_resets_ignored: 0,
            unsolicited_syns_matched: 0,
            unsolicited_syns_overflow: 0,
            ports_held: 0,
            ports_held_short: 0,
            pcp_results: [0; pcp::Code::ALL.len()],
            nat_pmp_results: [0; pcp::nat_pmp::Code::ALL.len()],
            port_control_ignored: 0,
            port_control_limited: 0,
            port_control_updates: 0,
            control_sessions: [0; alg::ALGS.len()],
            messages_changed: [0; alg::ALGS.len()],
            expectations_created: 0,
            expectations_refused: 0,
            gateways: [GatewayCounters::default(); alg::ALGS.len()],
            grants_opened: 0,
            grants_deleted: 0,
            bytes_forwarded: [0; 3],
            translated: [0; 3],
        }
    }
}

impl Counters {
    /// Counts one packet's verdict.
    #[inline]
    pub fn count(&mut self, verdict: Verdict) {
        self.verdicts[verdict.index()] += 1;
    }

    /// Takes back the verdict of a packet that does not leave, but nothing else that it counted.
    #[inline]
    pub fn uncount(&mut self, verdict: Verdict) {
        self.verdicts[verdict.index()] -= 1;
    }

    /// Takes back what a forwarded packet counted beside its verdict.
    pub fn uncount_forwarded(&mut self, forwarded: &Forwarded) {
        self.bytes_forwarded[forwarded.way] -= u64::from(forwarded.bytes);
        if let Some(protocol) = forwarded.protocol {
            self.translated[protocol.index()] -= 1;
        }
    }

    /// Packets with this verdict.
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.verdicts[verdict.index()]
    }

    /// Sum over all verdicts.
    pub fn verdicts_total(&self) -> u64 {
        self.verdicts.iter().sum()
    }
}

/// What a forwarded packet counts beside its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Index in [`Counters::bytes_forwarded`].
    pub way: usize,
    /// Its length as it leaves.
    pub bytes: u16,
    /// The protocol as which it was translated.
    pub protocol: Option<Protocol>,
}

impl Forwarded {
    /// The counts of an IP packet of either family, which ends with its slice. `None` unless the
    /// verdict is one of packets that leave.
    pub fn of(verdict: Verdict, packet: &[u8]) -> Option<Forwarded> {
        if !matches!(verdict, Verdict::Outbound | Verdict::Inbound | Verdict::Hairpin | Verdict::Passed) {
            return None;
        }
        let at = |offset: usize| packet.get(offset).copied();
        let number = match at(0)? >> 4 {
            6 => match at(ipv6::NEXT_HEADER_OFFSET)? {
                ipv6::PROTOCOL_IPV4 => at(ipv6::HEADER_LENGTH + PROTOCOL_OFFSET),
                ipv6::HEADER_FRAGMENT => at(ipv6::HEADER_LENGTH),
                next => Some(next),
            },
            _ => at(PROTOCOL_OFFSET),
        };
        let number = if number == Some(ipv6::PROTOCOL_ICMP6) { Some(PROTOCOL_ICMP) } else { number };
        let protocol = number.filter(|_| verdict != Verdict::Passed).and_then(Protocol::from_number);
        Some(Forwarded { way: way_of(verdict), bytes: packet.len() as u16, protocol })
    }
}

/// Index in [`Counters::bytes_forwarded`] of a packet that leaves.
#[inline(always)]
pub(crate) fn way_of(verdict: Verdict) -> usize {
    match verdict {
        Verdict::Outbound => 0,
        Verdict::Inbound => 1,
        _ => 2,
    }
}

/// Why a gateway stops reading a session or reserves no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayRefusal {
    /// The stream is of another protocol or ambiguous.
    Unreadable,
    /// No room for a control session or incomplete message, or the subscriber's share is full.
    TableFull,
    /// A message announces or changes too much.
    MessageLimit,
    /// Expectations of a control session.
    SessionLimit,
    /// Expectations of a subscriber, or unanswered clients of its servers over UDP.
    SubscriberLimit,
    /// No external port was free.
    NoPort,
}

impl GatewayRefusal {
    /// In the order of their numbers.
    pub const ALL: [GatewayRefusal; 6] = [
        GatewayRefusal::Unreadable,
        GatewayRefusal::TableFull,
        GatewayRefusal::MessageLimit,
        GatewayRefusal::SessionLimit,
        GatewayRefusal::SubscriberLimit,
        GatewayRefusal::NoPort,
    ];

    /// The stable name in commands and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            GatewayRefusal::Unreadable => "unreadable",
            GatewayRefusal::TableFull => "table_full",
            GatewayRefusal::MessageLimit => "message_limit",
            GatewayRefusal::SessionLimit => "session_limit",
            GatewayRefusal::SubscriberLimit => "subscriber_limit",
            GatewayRefusal::NoPort => "no_port",
        }
    }
}

/// What one gateway expected and refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayCounters {
    /// Expectations made.
    pub expected: u64,
    /// By [`GatewayRefusal`].
    pub refused: [u64; GatewayRefusal::ALL.len()],
}

impl GatewayCounters {
    pub(crate) fn refuse(&mut self, why: GatewayRefusal) {
        self.refused[why as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use wire::build;
    use wire::build6;

    use super::*;

    #[test]
    fn bytes_and_protocol_of_a_packet_are_found_in_either_family() {
        let (from, to) = (build::endpoint([100, 64, 0, 9], 5_000), build::endpoint([198, 51, 100, 1], 53));
        let packet = build::udp(from, to).payload(b"question").build();
        let forwarded = |way, bytes, protocol| Some(Forwarded { way, bytes, protocol });
        let udp = Some(Protocol::Udp);
        assert_eq!(Forwarded::of(Verdict::Outbound, &packet), forwarded(0, 36, udp));
        assert_eq!(Forwarded::of(Verdict::Inbound, &packet), forwarded(1, 36, udp));
        assert_eq!(Forwarded::of(Verdict::Passed, &packet), forwarded(2, 36, None));
        assert_eq!(Forwarded::of(Verdict::Local, &packet), None);
        assert_eq!(Forwarded::of(Verdict::NoRoute, &packet), None);
        let addresses = (1_u128.into(), 2_u128.into());
        let of6 = |next_header, payload: &[u8]| {
            Forwarded::of(Verdict::Inbound, &build6::raw(addresses.0, addresses.1, next_header, payload))
        };
        assert_eq!(of6(ipv6::PROTOCOL_IPV4, &packet), forwarded(1, 76, udp), "in a softwire");
        assert_eq!(of6(17, &[0; 8]), forwarded(1, 48, udp));
        assert_eq!(of6(ipv6::HEADER_FRAGMENT, &[6, 0, 0, 0, 0, 0, 0, 0, 1]), forwarded(1, 49, Some(Protocol::Tcp)));
        assert_eq!(of6(ipv6::PROTOCOL_ICMP6, &[0; 8]), forwarded(1, 48, Some(Protocol::Icmp)));
        assert_eq!(of6(47, &[0; 8]), forwarded(1, 48, None));
    }
}
