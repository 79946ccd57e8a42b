//! ICMP errors that pass through, and the packets they quote (RFC 5508 §4, §5).
//!
//! ```text
//!  0            outer header   +8                 + embedded header            quote end      end
//!  ├ outer IPv4 ┤ ICMP header ├ embedded IPv4 ... ├ ports │ L4 checksum? │ ... ┤ extensions ┤
//!    checksum 1   checksum 2    checksum 3                  checksum 4
//! ```
//!
//! All changed words are at even offsets, so checksums are updated incrementally (RFC 1624); no
//! byte behind the quoted transport header changes. The old ICMP checksum covers extensions (RFC
//! 4884).

use core::net::Ipv4Addr;

use wire::checksum::Delta;
use wire::field;
use wire::icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::quoted::Quoted;
use wire::tcp;
use wire::udp;

use crate::headers::gre;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;

/// RFC 792: an error quotes 64 bits.
const TRANSPORT_MIN: usize = 8;

/// Contents of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// ICMP type: 3, 11 or 12.
    pub icmp_type: u8,
    /// ICMP code.
    pub code: u8,
    /// Source of the error.
    pub outer_source: Ipv4Addr,
    /// Destination of the error.
    pub outer_destination: Ipv4Addr,
    /// Transport of the embedded packet.
    pub protocol: Protocol,
    /// Source of the embedded packet. Both ports of an ICMP query are its identifier.
    pub source: Endpoint,
    /// Destination of the embedded packet.
    pub destination: Endpoint,
    /// Type of an embedded ICMP query.
    pub query_type: Option<u8>,
    /// Sequence number of an embedded TCP segment.
    pub sequence: Option<u32>,
    icmp_offset: u16,
    embedded_offset: u16,
    transport_offset: u16,
    /// End of the quote, or of the embedded packet if shorter.
    transport_end: u16,
}

/// Contents after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuoteChange {
    /// New source of the embedded packet.
    pub source: Endpoint,
    /// New destination of the embedded packet.
    pub destination: Endpoint,
    /// New source of the error.
    pub outer_source: Ipv4Addr,
    /// New destination of the error.
    pub outer_destination: Ipv4Addr,
    /// New sequence number of an embedded TCP segment.
    pub sequence: Option<u32>,
}

impl Quote {
    /// The change that changes nothing.
    pub const fn unchanged(&self) -> QuoteChange {
        QuoteChange {
            source: self.source,
            destination: self.destination,
            outer_source: self.outer_source,
            outer_destination: self.outer_destination,
            sequence: self.sequence,
        }
    }
}

/// What an ICMP error quotes of a protocol that is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortlessQuote {
    /// IP protocol number of the embedded packet.
    pub protocol: u8,
    /// Source of the embedded packet.
    pub source: Ipv4Addr,
    /// Destination of the embedded packet.
    pub destination: Ipv4Addr,
    /// Call identifier of an embedded PPTP packet.
    pub call: Option<u16>,
    /// Destination of the error.
    pub outer_destination: Ipv4Addr,
}

/// Reads an ICMP error: an IP packet without padding whose header is checked.
///
/// # Errors
/// The verdict of a silent drop (RFC 5508 REQ-3, REQ-10; RFC 1812 §4.3.2.7). After
/// `ProtocolUnsupported` a pass rule can still apply to what [`parse_portless`] reads.
pub fn parse(packet: &[u8]) -> Result<Quote, Verdict> {
    check_headers(packet, contents)
}

/// Reads an ICMP error about a protocol that is not translated, as [`parse`] reads others. The
/// quote may end with the embedded IP header.
pub fn parse_portless(packet: &[u8]) -> Option<PortlessQuote> {
    let read = check_headers(packet, |outer, _, quoted| {
        let embedded = quoted.header();
        let protocol = embedded.protocol();
        Ok(Protocol::from_number(protocol).is_none().then(|| PortlessQuote {
            protocol,
            source: Ipv4Addr::from_bits(embedded.source()),
            destination: Ipv4Addr::from_bits(embedded.destination()),
            call: gre::call(quoted.transport()).filter(|_| protocol == gre::PROTOCOL),
            outer_destination: Ipv4Addr::from_bits(outer.destination()),
        }))
    });
    read.ok().flatten()
}

fn check_headers<R>(
    packet: &[u8],
    read: impl FnOnce(&Ipv4<&[u8]>, &icmp::Icmp<&[u8]>, &Quoted<&[u8]>) -> Result<R, Verdict>,
) -> Result<R, Verdict> {
    let outer = Ipv4::new_checked(packet).map_err(|_| Verdict::IpMalformed)?;
    if outer.is_fragment() {
        // A fragment cannot be verified (RFC 5508 REQ-3).
        return Err(Verdict::TransportMalformed);
    }
    if ipv4::has_source_route(outer.options()) {
        return Err(Verdict::SourceRoute);
    }
    let message = outer.payload();
    let error = icmp::Icmp::new_checked(message).map_err(|_| Verdict::TransportMalformed)?;
    if !icmp::can_carry_extensions(error.icmp_type()) {
        // Source quench is deprecated (REQ-10c1); a redirect means nothing beyond its link
        // (REQ-10b1).
        return Err(Verdict::IcmpTypeUnsupported);
    }
    if !error.is_checksum_valid() {
        return Err(Verdict::IcmpBadChecksum);
    }
    let quoted = Quoted::new_checked(error.quote()).map_err(|_| Verdict::IcmpQuoteMalformed)?;
    let embedded = quoted.header();
    if !quoted.is_checksum_valid() {
        // RFC 5508 REQ-3a.
        return Err(Verdict::IcmpQuoteMalformed);
    }
    if ipv4::has_source_route(embedded.options()) {
        // RFC 5508 REQ-10b3: the option would leak inside addresses.
        return Err(Verdict::SourceRoute);
    }
    if embedded.fragment_offset_bytes() != 0 {
        return Err(Verdict::IcmpQuoteMalformed);
    }
    read(&outer, &error, &quoted)
}

fn contents(outer: &Ipv4<&[u8]>, error: &icmp::Icmp<&[u8]>, quoted: &Quoted<&[u8]>) -> Result<Quote, Verdict> {
    let embedded = quoted.header();
    let protocol = Protocol::from_number(embedded.protocol()).ok_or(Verdict::ProtocolUnsupported)?;
    let transport = quoted.transport();
    if transport.len() < TRANSPORT_MIN {
        return Err(Verdict::IcmpQuoteMalformed);
    }
    let (ports, query_type) = match protocol {
        Protocol::Udp | Protocol::Tcp => (quoted.ports(), None),
        // No errors about errors (RFC 1122 §3.2.2).
        Protocol::Icmp => match quoted.icmp_query() {
            Some((query_type, identifier)) => (Some((identifier, identifier)), Some(query_type)),
            None => (None, None),
        },
    };
    let (source_port, destination_port) = ports.ok_or(Verdict::IcmpQuoteMalformed)?;
    let icmp_offset = outer.header_length();
    let embedded_offset = icmp_offset + icmp::HEADER_LENGTH;
    let transport_offset = embedded_offset + quoted.transport_offset();
    Ok(Quote {
        icmp_type: error.icmp_type(),
        code: error.code(),
        outer_source: Ipv4Addr::from_bits(outer.source()),
        outer_destination: Ipv4Addr::from_bits(outer.destination()),
        protocol,
        source: Endpoint::new(Ipv4Addr::from_bits(embedded.source()), source_port),
        destination: Endpoint::new(Ipv4Addr::from_bits(embedded.destination()), destination_port),
        query_type,
        sequence: (protocol == Protocol::Tcp).then(|| field::u32_at(transport, tcp::SEQUENCE_OFFSET)),
        // All offsets fit, as a total length does.
        icmp_offset: icmp_offset as u16,
        embedded_offset: embedded_offset as u16,
        transport_offset: transport_offset as u16,
        transport_end: (transport_offset + transport.len()) as u16,
    })
}

/// Rewrites the packet that [`parse`] read (RFC 5508 REQ-4, REQ-5, REQ-7). Type, code, MTU, pointer
/// and extensions stay.
pub fn rewrite(packet: &mut [u8], quote: &Quote, change: &QuoteChange) {
    let addresses = address_delta(quote.source.address, change.source.address)
        .combine(address_delta(quote.destination.address, change.destination.address));
    let embedded_at = usize::from(quote.embedded_offset);
    let transport_at = usize::from(quote.transport_offset);
    let transport_end = usize::from(quote.transport_end);

    let mut editor = Editor { bytes: packet, delta: Delta::NONE };
    editor.set_u32(embedded_at + ipv4::SOURCE_OFFSET, change.source.address.to_bits());
    editor.set_u32(embedded_at + ipv4::DESTINATION_OFFSET, change.destination.address.to_bits());
    let header_checksum = editor.u16_at(embedded_at + ipv4::CHECKSUM_OFFSET);
    editor.set_u16(embedded_at + ipv4::CHECKSUM_OFFSET, addresses.apply(header_checksum));

    match quote.protocol {
        Protocol::Udp | Protocol::Tcp => {
            editor.set_u16(transport_at, change.source.port);
            editor.set_u16(transport_at + 2, change.destination.port);
            let ports = Delta::of_u16(quote.source.port, change.source.port)
                .combine(Delta::of_u16(quote.destination.port, change.destination.port));
            let mut transport = addresses.combine(ports);
            if let (Some(before), Some(after)) = (quote.sequence, change.sequence) {
                editor.set_u32(transport_at + tcp::SEQUENCE_OFFSET, after);
                transport = transport.combine(Delta::of_u32(before, after));
            }
            let (at, is_udp) = match quote.protocol {
                Protocol::Udp => (transport_at + udp::CHECKSUM_OFFSET, true),
                _ => (transport_at + tcp::CHECKSUM_OFFSET, false),
            };
            // Behind the 8 bytes that old routers quote. Half a checksum cannot be updated.
            if at + 2 <= transport_end {
                let old = editor.u16_at(at);
                editor.set_u16(at, if is_udp { transport.apply_udp(old) } else { transport.apply(old) });
            }
        }
        Protocol::Icmp => {
            let old = quote.source.port;
            let new = if change.source.port != old { change.source.port } else { change.destination.port };
            editor.set_u16(transport_at + icmp::IDENTIFIER_OFFSET, new);
            let checksum_at = transport_at + icmp::CHECKSUM_OFFSET;
            let message = editor.bytes.get(transport_at..transport_end).unwrap_or(&[]);
            let checksum = Delta::of_u16(old, new).apply_icmp(editor.u16_at(checksum_at), message);
            editor.set_u16(checksum_at, checksum);
        }
    }

    let error = editor.delta;
    let checksum_at = usize::from(quote.icmp_offset) + icmp::CHECKSUM_OFFSET;
    field::set_u16(packet, checksum_at, error.apply(field::u16_at(packet, checksum_at)));

    let outer = address_delta(quote.outer_source, change.outer_source)
        .combine(address_delta(quote.outer_destination, change.outer_destination));
    field::set_u32(packet, ipv4::SOURCE_OFFSET, change.outer_source.to_bits());
    field::set_u32(packet, ipv4::DESTINATION_OFFSET, change.outer_destination.to_bits());
    let header_checksum = field::u16_at(packet, ipv4::CHECKSUM_OFFSET);
    field::set_u16(packet, ipv4::CHECKSUM_OFFSET, outer.apply(header_checksum));
}

fn address_delta(old: Ipv4Addr, new: Ipv4Addr) -> Delta {
    Delta::of_u32(old.to_bits(), new.to_bits())
}

struct Editor<'a> {
    bytes: &'a mut [u8],
    delta: Delta,
}

impl Editor<'_> {
    fn u16_at(&self, offset: usize) -> u16 {
        field::u16_at(self.bytes, offset)
    }

    fn set_u16(&mut self, offset: usize, value: u16) {
        self.delta = self.delta.combine(Delta::of_u16(self.u16_at(offset), value));
        field::set_u16(self.bytes, offset, value);
    }

    fn set_u32(&mut self, offset: usize, value: u32) {
        self.delta = self.delta.combine(Delta::of_u32(field::u32_at(self.bytes, offset), value));
        field::set_u32(self.bytes, offset, value);
    }
}
