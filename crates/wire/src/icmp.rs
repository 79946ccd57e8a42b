//! ICMP (RFC 792, RFC 950) and its extensions (RFC 4884).

use core::fmt;
use core::ops::Range;

use crate::checksum;
use crate::field;

/// Offset of the type.
pub const TYPE_OFFSET: usize = 0;
/// Offset of the code.
pub const CODE_OFFSET: usize = 1;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 2;
/// Offset of the identifier of a query message.
pub const IDENTIFIER_OFFSET: usize = 4;
/// Offset of the pointer of a Parameter Problem.
pub const POINTER_OFFSET: usize = 4;
/// Offset of the length of the quoted packet in 32-bit words (RFC 4884 §4).
pub const QUOTE_LENGTH_OFFSET: usize = 5;
/// Offset of the sequence number of a query message.
pub const SEQUENCE_OFFSET: usize = 6;
/// Offset of the next-hop MTU in "fragmentation needed" (RFC 1191 §4).
pub const NEXT_HOP_MTU_OFFSET: usize = 6;
/// Length of the header, and offset of payload or quoted packet.
pub const HEADER_LENGTH: usize = 8;

/// Echo Reply.
pub const TYPE_ECHO_REPLY: u8 = 0;
/// Destination Unreachable.
pub const TYPE_DESTINATION_UNREACHABLE: u8 = 3;
/// Source Quench, deprecated by RFC 6633.
pub const TYPE_SOURCE_QUENCH: u8 = 4;
/// Redirect.
pub const TYPE_REDIRECT: u8 = 5;
/// Echo.
pub const TYPE_ECHO_REQUEST: u8 = 8;
/// Router Advertisement (RFC 1256).
pub const TYPE_ROUTER_ADVERTISEMENT: u8 = 9;
/// Router Solicitation (RFC 1256).
pub const TYPE_ROUTER_SOLICITATION: u8 = 10;
/// Time Exceeded.
pub const TYPE_TIME_EXCEEDED: u8 = 11;
/// Parameter Problem.
pub const TYPE_PARAMETER_PROBLEM: u8 = 12;
/// Timestamp.
pub const TYPE_TIMESTAMP_REQUEST: u8 = 13;
/// Timestamp Reply.
pub const TYPE_TIMESTAMP_REPLY: u8 = 14;
/// Information Request, deprecated by RFC 6918.
pub const TYPE_INFORMATION_REQUEST: u8 = 15;
/// Information Reply, deprecated by RFC 6918.
pub const TYPE_INFORMATION_REPLY: u8 = 16;
/// Address Mask Request, deprecated by RFC 6918.
pub const TYPE_ADDRESS_MASK_REQUEST: u8 = 17;
/// Address Mask Reply, deprecated by RFC 6918.
pub const TYPE_ADDRESS_MASK_REPLY: u8 = 18;

/// Destination Unreachable: net unreachable.
pub const CODE_NET_UNREACHABLE: u8 = 0;
/// Destination Unreachable: host unreachable.
pub const CODE_HOST_UNREACHABLE: u8 = 1;
/// Destination Unreachable: protocol unreachable.
pub const CODE_PROTOCOL_UNREACHABLE: u8 = 2;
/// Destination Unreachable: port unreachable.
pub const CODE_PORT_UNREACHABLE: u8 = 3;
/// Destination Unreachable: fragmentation needed and DF set.
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;
/// Destination Unreachable: source route failed.
pub const CODE_SOURCE_ROUTE_FAILED: u8 = 5;
/// Destination Unreachable: communication administratively prohibited (RFC 1812 §5.2.7.1).
pub const CODE_ADMINISTRATIVELY_PROHIBITED: u8 = 13;
/// Time Exceeded: time to live exceeded in transit.
pub const CODE_TTL_EXCEEDED: u8 = 0;
/// Time Exceeded: fragment reassembly time exceeded.
pub const CODE_REASSEMBLY_TIME_EXCEEDED: u8 = 1;

/// Minimum length of the quoted packet in a message with extensions (RFC 4884 §3), and the offset
/// of extensions from senders that do not know the length field (§5.5).
pub const QUOTE_LENGTH_WITH_EXTENSION_MIN: usize = 128;
/// Length of the extension header.
const EXTENSION_HEADER_LENGTH: usize = 4;
/// Offset of the checksum in the extension header.
const EXTENSION_CHECKSUM_OFFSET: usize = 2;
/// Version in the upper half of the first byte of the extension header (RFC 4884 §7).
const EXTENSION_VERSION: u8 = 2;

/// True for a query or a reply to one. Such a message has an identifier (RFC 792, RFC 950, RFC 5508
/// §2).
#[inline]
#[must_use]
pub const fn is_query(icmp_type: u8) -> bool {
    is_request(icmp_type) || is_reply(icmp_type)
}

/// True for a request: Echo, Timestamp, Information Request, Address Mask Request.
#[inline]
#[must_use]
pub const fn is_request(icmp_type: u8) -> bool {
    matches!(
        icmp_type,
        TYPE_ECHO_REQUEST | TYPE_TIMESTAMP_REQUEST | TYPE_INFORMATION_REQUEST | TYPE_ADDRESS_MASK_REQUEST
    )
}

/// True for an answer to a request.
#[inline]
#[must_use]
pub const fn is_reply(icmp_type: u8) -> bool {
    matches!(icmp_type, TYPE_ECHO_REPLY | TYPE_TIMESTAMP_REPLY | TYPE_INFORMATION_REPLY | TYPE_ADDRESS_MASK_REPLY)
}

/// True for messages that quote a packet (RFC 1122 §3.2.2; a Redirect counts as an error there
/// too).
#[inline]
#[must_use]
pub const fn is_error(icmp_type: u8) -> bool {
    matches!(
        icmp_type,
        TYPE_DESTINATION_UNREACHABLE | TYPE_SOURCE_QUENCH | TYPE_REDIRECT | TYPE_TIME_EXCEEDED | TYPE_PARAMETER_PROBLEM
    )
}

/// True if RFC 4884 §4 gives messages of this type a length field and extensions.
#[inline]
#[must_use]
pub const fn can_carry_extensions(icmp_type: u8) -> bool {
    matches!(icmp_type, TYPE_DESTINATION_UNREACHABLE | TYPE_TIME_EXCEEDED | TYPE_PARAMETER_PROBLEM)
}

/// Why bytes are not an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fewer bytes than a header.
    Truncated,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ICMP message is shorter than 8 bytes")
    }
}

impl core::error::Error for Fault {}

/// A view of an ICMP message, up to the end of the IPv4 payload.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Icmp<T> {
    /// Checks the length.
    ///
    /// # Errors
    /// [`Fault::Truncated`] for fewer than 8 bytes.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Icmp<T>, Fault> {
        if bytes.as_ref().len() < HEADER_LENGTH { Err(Fault::Truncated) } else { Ok(Icmp { bytes }) }
    }

    /// Skips the check. On bytes that would fail it, accessors return zeros or empty slices.
    #[inline]
    pub const fn new_unchecked(bytes: T) -> Icmp<T> {
        Icmp { bytes }
    }

    /// Type.
    #[inline]
    pub fn icmp_type(&self) -> u8 {
        field::u8_at(self.bytes.as_ref(), TYPE_OFFSET)
    }

    /// Code.
    #[inline]
    pub fn code(&self) -> u8 {
        field::u8_at(self.bytes.as_ref(), CODE_OFFSET)
    }

    /// Checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), CHECKSUM_OFFSET)
    }

    /// Identifier of a query message.
    #[inline]
    pub fn identifier(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), IDENTIFIER_OFFSET)
    }

    /// Sequence number of a query message.
    #[inline]
    pub fn sequence(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), SEQUENCE_OFFSET)
    }

    /// Next-hop MTU of "fragmentation needed"; 0 from routers older than RFC 1191.
    #[inline]
    pub fn next_hop_mtu(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), NEXT_HOP_MTU_OFFSET)
    }

    /// Everything behind the header.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.bytes.as_ref().get(HEADER_LENGTH..).unwrap_or(&[])
    }

    /// The quoted packet of an error message, without extensions.
    pub fn quote(&self) -> &[u8] {
        let bytes = self.bytes.as_ref();
        bytes.get(extension_layout(bytes).quote).unwrap_or(&[])
    }

    /// Whether the checksum is right.
    pub fn is_checksum_valid(&self) -> bool {
        checksum::is_icmp_valid(self.bytes.as_ref())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Icmp<T> {
    /// Sets type and code.
    #[inline]
    pub fn set_type_and_code(&mut self, icmp_type: u8, code: u8) {
        field::set_u8(self.bytes.as_mut(), TYPE_OFFSET, icmp_type);
        field::set_u8(self.bytes.as_mut(), CODE_OFFSET, code);
    }

    /// Sets the identifier of a query message.
    #[inline]
    pub fn set_identifier(&mut self, identifier: u16) {
        field::set_u16(self.bytes.as_mut(), IDENTIFIER_OFFSET, identifier);
    }

    /// Sets the sequence number of a query message.
    #[inline]
    pub fn set_sequence(&mut self, sequence: u16) {
        field::set_u16(self.bytes.as_mut(), SEQUENCE_OFFSET, sequence);
    }

    /// Sets the next-hop MTU of "fragmentation needed".
    #[inline]
    pub fn set_next_hop_mtu(&mut self, mtu: u16) {
        field::set_u16(self.bytes.as_mut(), NEXT_HOP_MTU_OFFSET, mtu);
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        field::set_u16(self.bytes.as_mut(), CHECKSUM_OFFSET, checksum);
    }

    /// Computes the checksum over all bytes of the view and writes it.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let checksum = checksum::of_bytes(self.bytes.as_ref());
        self.set_checksum(checksum);
    }
}

/// Offsets of the quoted packet and the extensions of an ICMP error in the ICMP message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionLayout {
    /// The quoted packet. Zero padding may follow it if there are extensions.
    pub quote: Range<usize>,
    /// The extension structure; empty if there is none.
    pub extension: Range<usize>,
}

/// Finds the quoted packet and the extensions of an ICMP error. Both are inside `message`.
///
/// RFC 5508 REQ-3d: extensions and padding are not part of the embedded packet. RFC 4884 §5.5: a
/// length of 0 means no extensions, except from a sender that does not know the length field. Such
/// a sender puts them behind 128 bytes; they count only if version and checksum are right.
#[must_use]
pub fn extension_layout(message: &[u8]) -> ExtensionLayout {
    let end = message.len();
    let start = HEADER_LENGTH.min(end);
    let no_extension = ExtensionLayout { quote: start..end, extension: end..end };
    if !can_carry_extensions(field::u8_at(message, TYPE_OFFSET)) {
        return no_extension;
    }
    let quote_length = usize::from(field::u8_at(message, QUOTE_LENGTH_OFFSET)) * 4;
    let split = if quote_length != 0 { start + quote_length } else { start + QUOTE_LENGTH_WITH_EXTENSION_MIN };
    let Some(extension) = message.get(split..) else {
        return no_extension;
    };
    let believed = if quote_length != 0 { !extension.is_empty() } else { is_legacy_extension(extension) };
    if believed { ExtensionLayout { quote: start..split, extension: split..end } } else { no_extension }
}

fn is_legacy_extension(extension: &[u8]) -> bool {
    // Checksum 0 means "none" (RFC 4884 §7). Without a checksum, quoted payload could pass for an
    // extension.
    extension.len() >= EXTENSION_HEADER_LENGTH
        && field::u8_at(extension, 0) >> 4 == EXTENSION_VERSION
        && field::u16_at(extension, EXTENSION_CHECKSUM_OFFSET) != 0
        && checksum::Sum::ZERO.add_bytes(extension).is_valid()
}

/// True if an extension structure has a whole header, version 2, and a right checksum or none.
#[must_use]
pub fn is_extension_valid(extension: &[u8]) -> bool {
    extension.len() >= EXTENSION_HEADER_LENGTH
        && field::u8_at(extension, 0) >> 4 == EXTENSION_VERSION
        && (field::u16_at(extension, EXTENSION_CHECKSUM_OFFSET) == 0
            || checksum::Sum::ZERO.add_bytes(extension).is_valid())
}
