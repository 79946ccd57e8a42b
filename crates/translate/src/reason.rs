//! Why a packet is not translated, and what its sender should hear.

/// Why a packet is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Version or lengths of the IPv4 header are wrong.
    Ipv4Malformed,
    /// The checksum of the IPv4 header is wrong.
    Ipv4Checksum,
    /// An unexpired source route (RFC 7915 §4.1).
    Ipv4SourceRoute,
    /// Version or lengths of the IPv6 header are wrong.
    Ipv6Malformed,
    /// A payload length of 0 with hop-by-hop options (RFC 2675).
    Jumbogram,
    /// Extension headers end behind the packet.
    HeadersTruncated,
    /// More extension headers than are followed.
    HeadersTooMany,
    /// Hop-by-hop options are not the first extension header.
    HeadersMisplaced,
    /// A routing header with segments left (RFC 7915 §5.1), RFC 5095's type 0 included.
    SegmentsLeft,
    /// Extension headers behind a Fragment header (RFC 7915 §5.1.1).
    HeadersBehindFragment,
    /// A fragment that is not the last is not a multiple of 8 bytes.
    FragmentLength,
    /// A fragment ends behind the largest packet.
    FragmentOverrun,
    /// A first fragment without its whole transport header.
    FragmentTiny,
    /// A fragment of an ICMP message (RFC 7915 §1.2).
    FragmentedIcmp,
    /// The time to live has run out.
    TtlExpired,
    /// The hop limit has run out.
    HopLimitExpired,
    /// Larger than the IPv6 link, with Don't Fragment.
    TooBigForIpv6,
    /// Larger than the IPv4 link, and more than 1,260 bytes.
    TooBigForIpv4,
    /// A transport header is cut short, or its length is wrong.
    TransportMalformed,
    /// A protocol number that means something else in the other family: ICMPv6 or an extension
    /// header in IPv4, ICMP or IGMP in IPv6.
    ForeignProtocol,
    /// IGMP concerns one link (RFC 7915 §4.2).
    Igmp,
    /// A fragment of an IPv4 UDP datagram without checksum (RFC 7915 §4.5).
    FragmentWithoutChecksum,
    /// An IPv6 UDP datagram without checksum (RFC 8200 §8.1).
    Ipv6WithoutChecksum,
    /// The checksum of an ICMP error is wrong.
    IcmpChecksum,
    /// An ICMP type that is not translated.
    IcmpType,
    /// An ICMP code that is not translated.
    IcmpCode,
    /// A pointer to a field that the other family does not have.
    IcmpPointer,
    /// An error about an error.
    ErrorAboutError,
    /// The quoted packet cannot be read.
    QuoteMalformed,
    /// A Packet Too Big below 1,280 bytes (RFC 8201 §4).
    PacketTooBigSmall,
    /// IPv6 source ::.
    SourceUnspecified,
    /// IPv6 source ::1.
    SourceLoopback,
    /// IPv6 source is a group.
    SourceMulticast,
    /// IPv6 source is link-local.
    SourceLinkLocal,
    /// IPv6 source is an IPv4-mapped or IPv4-compatible address.
    SourceMapped,
    /// IPv6 source inside the translation prefix (RFC 6146 §3.5): a loop.
    SourceInPrefix,
    /// IPv4 source in 0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/4 or 240.0.0.0/4.
    Source4Illegal,
    /// IPv6 destination outside the translation prefix.
    DestinationOutsidePrefix,
    /// Bits 64 to 71 of the destination are not zero (RFC 6052 §2.2).
    EmbeddedUOctet,
    /// The destination contains an address of 0.0.0.0/8.
    EmbeddedUnspecified,
    /// The destination contains an address of 127.0.0.0/8.
    EmbeddedLoopback,
    /// The destination contains an address of 169.254.0.0/16.
    EmbeddedLinkLocal,
    /// The destination contains a group.
    EmbeddedMulticast,
    /// The destination contains an address of 240.0.0.0/4, or the broadcast address.
    EmbeddedReserved,
    /// The well-known prefix with a private address (RFC 6052 §3.1).
    EmbeddedPrivate,
    /// Too little room in front of the packet.
    NoRoom,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 46] = [
        Reason::Ipv4Malformed,
        Reason::Ipv4Checksum,
        Reason::Ipv4SourceRoute,
        Reason::Ipv6Malformed,
        Reason::Jumbogram,
        Reason::HeadersTruncated,
        Reason::HeadersTooMany,
        Reason::HeadersMisplaced,
        Reason::SegmentsLeft,
        Reason::HeadersBehindFragment,
        Reason::FragmentLength,
        Reason::FragmentOverrun,
        Reason::FragmentTiny,
        Reason::FragmentedIcmp,
        Reason::TtlExpired,
        Reason::HopLimitExpired,
        Reason::TooBigForIpv6,
        Reason::TooBigForIpv4,
        Reason::TransportMalformed,
        Reason::ForeignProtocol,
        Reason::Igmp,
        Reason::FragmentWithoutChecksum,
        Reason::Ipv6WithoutChecksum,
        Reason::IcmpChecksum,
        Reason::IcmpType,
        Reason::IcmpCode,
        Reason::IcmpPointer,
        Reason::ErrorAboutError,
        Reason::QuoteMalformed,
        Reason::PacketTooBigSmall,
        Reason::SourceUnspecified,
        Reason::SourceLoopback,
        Reason::SourceMulticast,
        Reason::SourceLinkLocal,
        Reason::SourceMapped,
        Reason::SourceInPrefix,
        Reason::Source4Illegal,
        Reason::DestinationOutsidePrefix,
        Reason::EmbeddedUOctet,
        Reason::EmbeddedUnspecified,
        Reason::EmbeddedLoopback,
        Reason::EmbeddedLinkLocal,
        Reason::EmbeddedMulticast,
        Reason::EmbeddedReserved,
        Reason::EmbeddedPrivate,
        Reason::NoRoom,
    ];

    /// The name of its counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Ipv4Malformed => "ipv4_malformed",
            Reason::Ipv4Checksum => "ipv4_checksum",
            Reason::Ipv4SourceRoute => "ipv4_source_route",
            Reason::Ipv6Malformed => "ipv6_malformed",
            Reason::Jumbogram => "jumbogram",
            Reason::HeadersTruncated => "headers_truncated",
            Reason::HeadersTooMany => "headers_too_many",
            Reason::HeadersMisplaced => "headers_misplaced",
            Reason::SegmentsLeft => "segments_left",
            Reason::HeadersBehindFragment => "headers_behind_fragment",
            Reason::FragmentLength => "fragment_length",
            Reason::FragmentOverrun => "fragment_overrun",
            Reason::FragmentTiny => "fragment_tiny",
            Reason::FragmentedIcmp => "fragmented_icmp",
            Reason::TtlExpired => "ttl_expired",
            Reason::HopLimitExpired => "hop_limit_expired",
            Reason::TooBigForIpv6 => "too_big_for_ipv6",
            Reason::TooBigForIpv4 => "too_big_for_ipv4",
            Reason::TransportMalformed => "transport_malformed",
            Reason::ForeignProtocol => "foreign_protocol",
            Reason::Igmp => "igmp",
            Reason::FragmentWithoutChecksum => "fragment_without_checksum",
            Reason::Ipv6WithoutChecksum => "ipv6_without_checksum",
            Reason::IcmpChecksum => "icmp_checksum",
            Reason::IcmpType => "icmp_type",
            Reason::IcmpCode => "icmp_code",
            Reason::IcmpPointer => "icmp_pointer",
            Reason::ErrorAboutError => "error_about_error",
            Reason::QuoteMalformed => "quote_malformed",
            Reason::PacketTooBigSmall => "packet_too_big_small",
            Reason::SourceUnspecified => "source_unspecified",
            Reason::SourceLoopback => "source_loopback",
            Reason::SourceMulticast => "source_multicast",
            Reason::SourceLinkLocal => "source_link_local",
            Reason::SourceMapped => "source_mapped",
            Reason::SourceInPrefix => "source_in_prefix",
            Reason::Source4Illegal => "source4_illegal",
            Reason::DestinationOutsidePrefix => "destination_outside_prefix",
            Reason::EmbeddedUOctet => "embedded_u_octet",
            Reason::EmbeddedUnspecified => "embedded_unspecified",
            Reason::EmbeddedLoopback => "embedded_loopback",
            Reason::EmbeddedLinkLocal => "embedded_link_local",
            Reason::EmbeddedMulticast => "embedded_multicast",
            Reason::EmbeddedReserved => "embedded_reserved",
            Reason::EmbeddedPrivate => "embedded_private",
            Reason::NoRoom => "no_room",
        }
    }
}

/// The ICMP error that an RFC asks for, in the family of the packet. The caller limits its rate and
/// never answers an error or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Type.
    pub icmp_type: u8,
    /// Code.
    pub code: u8,
    /// MTU or pointer, as the type has it.
    pub parameter: u32,
}

/// A packet that was not translated; its frame is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// What its sender should hear.
    pub reply: Option<Reply>,
}

impl Refused {
    pub(crate) const fn with(reason: Reason, icmp_type: u8, code: u8, parameter: u32) -> Refused {
        Refused { reason, reply: Some(Reply { icmp_type, code, parameter }) }
    }
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Refused {
        Refused { reason, reply: None }
    }
}
