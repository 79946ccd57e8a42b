//! The packet that an ICMP error quotes: a whole IPv4 header and as much of the rest as was sent.

use core::fmt;

use crate::checksum;
use crate::field;
use crate::icmp;
use crate::ipv4;

/// Why bytes are not a quoted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The IPv4 header is incomplete.
    Truncated,
    /// The version is not 4.
    Version,
    /// The header length is under 20 bytes.
    HeaderLength,
    /// The total length is under the header length.
    TotalLength,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Truncated => "quoted IPv4 header is cut short",
            Fault::Version => "quoted IP version is not 4",
            Fault::HeaderLength => "quoted IPv4 header length is under 20 bytes",
            Fault::TotalLength => "quoted IPv4 total length is shorter than the header",
        })
    }
}

impl core::error::Error for Fault {}

/// A view of a quoted packet. Unlike [`ipv4::Ipv4`], it accepts a truncated payload.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Quoted<T> {
    /// Checks that the header is complete with its options.
    ///
    /// # Errors
    /// Names the first wrong field.
    pub fn new_checked(bytes: T) -> Result<Quoted<T>, Fault> {
        let view = Quoted { bytes };
        let bytes = view.bytes.as_ref();
        if bytes.len() < ipv4::HEADER_LENGTH_MIN {
            return Err(Fault::Truncated);
        }
        if bytes[ipv4::VERSION_OFFSET] >> 4 != 4 {
            return Err(Fault::Version);
        }
        let header = view.header();
        let header_length = header.header_length();
        if header_length < ipv4::HEADER_LENGTH_MIN {
            return Err(Fault::HeaderLength);
        }
        if usize::from(header.total_length()) < header_length {
            return Err(Fault::TotalLength);
        }
        if bytes.len() < header_length {
            return Err(Fault::Truncated);
        }
        Ok(view)
    }

    /// The header; its payload ends with the quote.
    pub fn header(&self) -> ipv4::Ipv4<&[u8]> {
        ipv4::Ipv4::new_unchecked(self.bytes.as_ref())
    }

    /// Offset of the transport header, behind the options (RFC 5508 REQ-3b).
    pub fn transport_offset(&self) -> usize {
        self.header().header_length()
    }

    /// The quoted part of the transport, up to the total length or less.
    pub fn transport(&self) -> &[u8] {
        let header = self.header();
        field::clamped(self.bytes.as_ref(), header.header_length(), usize::from(header.total_length()))
    }

    /// True if the quote reaches the total length of the packet.
    pub fn is_complete(&self) -> bool {
        self.bytes.as_ref().len() >= usize::from(self.header().total_length())
    }

    /// Source and destination port of quoted UDP or TCP. None for another protocol, a fragment
    /// other than the first, or a quote that ends before the ports.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let header = self.header();
        if !matches!(header.protocol(), ipv4::PROTOCOL_UDP | ipv4::PROTOCOL_TCP) || header.fragment_offset_bytes() != 0
        {
            return None;
        }
        let transport = self.transport();
        (transport.len() >= 4).then(|| (field::u16_at(transport, 0), field::u16_at(transport, 2)))
    }

    /// Type and identifier of a quoted ICMP query. None for another message, a fragment other than
    /// the first, or a quote that ends before the identifier.
    pub fn icmp_query(&self) -> Option<(u8, u16)> {
        let header = self.header();
        if header.protocol() != ipv4::PROTOCOL_ICMP || header.fragment_offset_bytes() != 0 {
            return None;
        }
        let transport = self.transport();
        let icmp_type = *transport.first()?;
        (icmp::is_query(icmp_type) && transport.len() >= icmp::IDENTIFIER_OFFSET + 2)
            .then(|| (icmp_type, field::u16_at(transport, icmp::IDENTIFIER_OFFSET)))
    }

    /// True if the checksum of the quoted header is right (RFC 5508 REQ-3a).
    pub fn is_checksum_valid(&self) -> bool {
        checksum::is_ipv4_header_valid(self.header().header())
    }
}
