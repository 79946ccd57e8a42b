//! Reads the headers of a packet once, into one value.

use wire::checksum;
use wire::field;
use wire::icmp as icmp4;
use wire::icmp6;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::ipv6;
use wire::ipv6::ChainFault;
use wire::ipv6::Fragment;
use wire::ipv6::Ipv6;
use wire::tcp;
use wire::udp;

use crate::reason::Reason;
use crate::reason::Refused;

/// IGMP (RFC 3376).
const PROTOCOL_IGMP: u8 = 2;

/// What a packet contains, as far as translation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP, whole or a first fragment.
    Tcp,
    /// UDP, whole or a first fragment.
    Udp,
    /// An echo request or reply.
    Echo,
    /// An ICMP error.
    Error,
    /// A fragment without transport header.
    LaterFragment,
    /// Any other protocol.
    Other,
}

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Ports of TCP and UDP; the identifier of an echo, twice; otherwise zeros.
    pub ports: (u16, u16),
    /// What the packet contains.
    pub kind: Kind,
    /// Number of the transport protocol in its own family.
    pub protocol: u8,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// Don't Fragment; false for IPv6.
    pub dont_fragment: bool,
    /// Identification of IPv4, 0 for IPv6 without Fragment header.
    pub identification: u32,
    /// The fragment, if it is one. An IPv6 packet with a Fragment header counts, even if it is
    /// whole (RFC 6946).
    pub fragment: Option<Fragment>,
    /// Start of the transport header, or of the payload of a later fragment.
    pub transport: usize,
    /// Length of the packet by its header; a quoted packet may end before.
    pub length: usize,
}

/// Headers of an IPv4 packet.
pub type Headers4 = Headers<u32>;
/// Headers of an IPv6 packet.
pub type Headers6 = Headers<u128>;

impl<A> Headers<A> {
    /// Length of everything behind the IP headers.
    #[inline]
    pub(crate) const fn transport_length(&self) -> usize {
        self.length - self.transport
    }

    /// A part of a packet, and not a whole one.
    #[inline]
    pub(crate) fn is_part(&self) -> bool {
        self.fragment.is_some_and(|fragment| !fragment.is_atomic())
    }
}

/// Whether all of a packet is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Quoted,
}

/// Reads an IPv4 packet. Padding may follow it. Addresses are not judged; see
/// [`crate::check_source4`].
///
/// # Errors
/// Names what is wrong with it.
pub fn read4(packet: &[u8]) -> Result<Headers4, Refused> {
    let view = Ipv4::new_checked(packet).map_err(|_| Reason::Ipv4Malformed)?;
    if !view.is_checksum_valid() {
        return Err(Reason::Ipv4Checksum.into());
    }
    if ipv4::has_unexpired_source_route(view.options()) {
        let unreachable = icmp4::TYPE_DESTINATION_UNREACHABLE;
        return Err(Refused::with(Reason::Ipv4SourceRoute, unreachable, icmp4::CODE_SOURCE_ROUTE_FAILED, 0));
    }
    headers4(packet, Extent::Whole).map_err(Refused::from)
}

/// Reads the packet that an ICMPv4 error quotes, from the whole packet with the error and its
/// headers.
///
/// # Errors
/// [`Reason::QuoteMalformed`], [`Reason::ErrorAboutError`], or what is wrong with its transport.
pub fn quoted4(packet: &[u8], outer: &Headers4) -> Result<Headers4, Reason> {
    let message = packet.get(outer.transport..outer.length).unwrap_or(&[]);
    let quote = message.get(icmp4::extension_layout(message).quote).unwrap_or(&[]);
    wire::quoted::Quoted::new_checked(quote).map_err(|_| Reason::QuoteMalformed)?;
    let inner = headers4(quote, Extent::Quoted)?;
    if inner.kind == Kind::Error { Err(Reason::ErrorAboutError) } else { Ok(inner) }
}

/// Reads an IPv6 packet. Padding may follow it. Addresses are not judged; see
/// [`crate::check_source6`].
///
/// # Errors
/// Names what is wrong with it.
pub fn read6(packet: &[u8]) -> Result<Headers6, Refused> {
    let view = Ipv6::new_checked(packet).map_err(|_| Reason::Ipv6Malformed)?;
    headers6(view.packet(), Extent::Whole)
}

/// Reads the packet that an ICMPv6 error quotes, from the whole packet with the error and its
/// headers.
///
/// # Errors
/// [`Reason::QuoteMalformed`], [`Reason::ErrorAboutError`], or what is wrong with its headers.
pub fn quoted6(packet: &[u8], outer: &Headers6) -> Result<Headers6, Reason> {
    let message = packet.get(outer.transport..outer.length).unwrap_or(&[]);
    let quote = message.get(icmp6::extension_layout(message).quote).unwrap_or(&[]);
    if quote.len() < ipv6::HEADER_LENGTH || field::u8_at(quote, ipv6::VERSION_OFFSET) >> 4 != 6 {
        return Err(Reason::QuoteMalformed);
    }
    let inner = headers6(quote, Extent::Quoted).map_err(|refused| refused.reason)?;
    if inner.kind == Kind::Error { Err(Reason::ErrorAboutError) } else { Ok(inner) }
}

/// The caller has checked version and lengths of the header.
fn headers4(packet: &[u8], extent: Extent) -> Result<Headers4, Reason> {
    let view = Ipv4::new_unchecked(packet);
    let fragment = view.is_fragment().then(|| Fragment {
        offset: view.fragment_offset_bytes() as u16,
        more: view.more_fragments(),
        identification: view.identification().into(),
    });
    let mut headers = Headers {
        source: view.source(),
        destination: view.destination(),
        ports: (0, 0),
        kind: Kind::Other,
        protocol: view.protocol(),
        traffic_class: view.ds_field(),
        hop_limit: view.ttl(),
        dont_fragment: view.dont_fragment(),
        identification: view.identification().into(),
        fragment,
        transport: view.header_length(),
        length: view.total_length().into(),
    };
    match headers.protocol {
        PROTOCOL_IGMP => return Err(Reason::Igmp),
        ipv6::HEADER_HOP_BY_HOP
        | ipv6::HEADER_ROUTING
        | ipv6::HEADER_FRAGMENT
        | ipv6::HEADER_DESTINATION_OPTIONS
        | ipv6::PROTOCOL_ICMP6 => return Err(Reason::ForeignProtocol),
        _ => {}
    }
    let is_icmp = headers.protocol == ipv4::PROTOCOL_ICMP;
    read_transport(packet, &mut headers, extent, is_icmp)?;
    if headers.kind == Kind::Echo {
        let icmp_type = field::u8_at(packet, headers.transport);
        if icmp4::is_error(icmp_type) {
            (headers.kind, headers.ports) = (Kind::Error, (0, 0));
        } else if crate::icmp::echo_to_6(icmp_type).is_none() {
            return Err(Reason::IcmpType);
        }
    }
    Ok(headers)
}

/// `packet` has at least an IPv6 header.
fn headers6(packet: &[u8], extent: Extent) -> Result<Headers6, Refused> {
    let view = Ipv6::new_unchecked(packet);
    if view.payload_length() == 0 && view.next_header() == ipv6::HEADER_HOP_BY_HOP {
        return Err(Reason::Jumbogram.into());
    }
    let chain = ipv6::chain(view.packet()).map_err(|fault| match fault {
        ChainFault::Truncated => Reason::HeadersTruncated,
        ChainFault::TooMany => Reason::HeadersTooMany,
        ChainFault::Misplaced => Reason::HeadersMisplaced,
    })?;
    if let Some(pointer) = chain.segments_left {
        let problem = icmp6::TYPE_PARAMETER_PROBLEM;
        return Err(Refused::with(Reason::SegmentsLeft, problem, icmp6::CODE_ERRONEOUS_FIELD, pointer as u32));
    }
    if chain.has_extension_behind_fragment() {
        return Err(Reason::HeadersBehindFragment.into());
    }
    if matches!(chain.protocol, ipv4::PROTOCOL_ICMP | PROTOCOL_IGMP) {
        return Err(Reason::ForeignProtocol.into());
    }
    let mut headers = Headers {
        source: view.source(),
        destination: view.destination(),
        ports: (0, 0),
        kind: Kind::Other,
        protocol: chain.protocol,
        traffic_class: view.traffic_class(),
        hop_limit: view.hop_limit(),
        dont_fragment: false,
        identification: chain.fragment.map_or(0, |fragment| fragment.identification),
        fragment: chain.fragment,
        transport: chain.offset,
        length: view.length(),
    };
    let is_icmp = headers.protocol == ipv6::PROTOCOL_ICMP6;
    read_transport(packet, &mut headers, extent, is_icmp)?;
    if headers.kind == Kind::Echo {
        let icmp_type = field::u8_at(packet, headers.transport);
        if icmp6::is_error(icmp_type) {
            (headers.kind, headers.ports) = (Kind::Error, (0, 0));
        } else if crate::icmp::echo_to_4(icmp_type).is_none() {
            return Err(Reason::IcmpType.into());
        }
    }
    Ok(headers)
}

/// Finds ports and kind. An ICMP message is an echo until its type is known.
fn read_transport<A>(packet: &[u8], headers: &mut Headers<A>, extent: Extent, is_icmp: bool) -> Result<(), Reason> {
    if headers.length < headers.transport {
        return Err(Reason::HeadersTruncated);
    }
    if let Some(fragment) = headers.fragment {
        if is_icmp && !fragment.is_atomic() {
            return Err(Reason::FragmentedIcmp);
        }
        if fragment.more && !headers.transport_length().is_multiple_of(8) {
            return Err(Reason::FragmentLength);
        }
        if usize::from(fragment.offset) + headers.transport_length() > usize::from(u16::MAX) {
            return Err(Reason::FragmentOverrun);
        }
        if fragment.offset != 0 {
            headers.kind = Kind::LaterFragment;
            return Ok(());
        }
    }
    let end = headers.length.min(packet.len());
    let transport = packet.get(headers.transport..end).unwrap_or(&[]);
    let (kind, needed) = match headers.protocol {
        _ if is_icmp => (Kind::Echo, icmp4::HEADER_LENGTH),
        ipv4::PROTOCOL_TCP => (Kind::Tcp, tcp::HEADER_LENGTH_MIN),
        ipv4::PROTOCOL_UDP => (Kind::Udp, udp::HEADER_LENGTH),
        _ => return Ok(()),
    };
    // Of a quoted TCP segment, ports and sequence number are enough.
    let needed = if extent == Extent::Quoted { needed.min(8) } else { needed };
    if transport.len() < needed {
        return Err(match extent {
            Extent::Quoted => Reason::QuoteMalformed,
            Extent::Whole if headers.is_part() => Reason::FragmentTiny,
            Extent::Whole => Reason::TransportMalformed,
        });
    }
    if kind == Kind::Udp && extent == Extent::Whole && !headers.is_part() {
        let length = usize::from(field::u16_at(transport, udp::LENGTH_OFFSET));
        if length < udp::HEADER_LENGTH || length > transport.len() {
            return Err(Reason::TransportMalformed);
        }
    }
    headers.kind = kind;
    headers.ports = if is_icmp {
        let identifier = field::u16_at(transport, icmp4::IDENTIFIER_OFFSET);
        (identifier, identifier)
    } else {
        (field::u16_at(transport, udp::SOURCE_PORT_OFFSET), field::u16_at(transport, udp::DESTINATION_PORT_OFFSET))
    };
    Ok(())
}

/// True if the checksum of the ICMPv4 message of this packet is right.
pub(crate) fn is_icmp4_valid(packet: &[u8], headers: &Headers4) -> bool {
    checksum::is_icmp_valid(packet.get(headers.transport..headers.length).unwrap_or(&[]))
}

/// True if the checksum of the ICMPv6 message of this packet is right.
pub(crate) fn is_icmp6_valid(packet: &[u8], headers: &Headers6) -> bool {
    let message = packet.get(headers.transport..headers.length).unwrap_or(&[]);
    icmp6::Icmp6::new_unchecked(message).is_checksum_valid(headers.source, headers.destination)
}
