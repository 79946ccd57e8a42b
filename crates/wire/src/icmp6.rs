//! ICMPv6 (RFC 4443, with extensions of RFC 4884).

use core::fmt;

use crate::checksum;
use crate::field;
use crate::icmp::ExtensionLayout;
use crate::ipv6;

/// Offset of the type.
pub const TYPE_OFFSET: usize = 0;
/// Offset of the code.
pub const CODE_OFFSET: usize = 1;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 2;
/// Offset of the identifier of an echo.
pub const IDENTIFIER_OFFSET: usize = 4;
/// Offset of the MTU of a Packet Too Big.
pub const MTU_OFFSET: usize = 4;
/// Offset of the pointer of a Parameter Problem.
pub const POINTER_OFFSET: usize = 4;
/// Offset of the length of the quoted packet in 64-bit words (RFC 4884 §4).
pub const QUOTE_LENGTH_OFFSET: usize = 4;
/// Offset of the sequence number of an echo.
pub const SEQUENCE_OFFSET: usize = 6;
/// Length of the header, and offset of payload or quoted packet.
pub const HEADER_LENGTH: usize = 8;

/// Destination Unreachable.
pub const TYPE_DESTINATION_UNREACHABLE: u8 = 1;
/// Packet Too Big.
pub const TYPE_PACKET_TOO_BIG: u8 = 2;
/// Time Exceeded.
pub const TYPE_TIME_EXCEEDED: u8 = 3;
/// Parameter Problem.
pub const TYPE_PARAMETER_PROBLEM: u8 = 4;
/// Echo Request.
pub const TYPE_ECHO_REQUEST: u8 = 128;
/// Echo Reply.
pub const TYPE_ECHO_REPLY: u8 = 129;
/// Multicast Listener Query (RFC 2710, RFC 3810).
pub const TYPE_LISTENER_QUERY: u8 = 130;
/// Router Solicitation (RFC 4861).
pub const TYPE_ROUTER_SOLICITATION: u8 = 133;
/// Router Advertisement (RFC 4861).
pub const TYPE_ROUTER_ADVERTISEMENT: u8 = 134;
/// Neighbor Solicitation (RFC 4861).
pub const TYPE_NEIGHBOUR_SOLICITATION: u8 = 135;
/// Neighbor Advertisement (RFC 4861).
pub const TYPE_NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Redirect (RFC 4861).
pub const TYPE_REDIRECT: u8 = 137;
/// Version 2 Multicast Listener Report (RFC 3810).
pub const TYPE_LISTENER_REPORT: u8 = 143;

/// Destination Unreachable: no route to destination.
pub const CODE_NO_ROUTE: u8 = 0;
/// Destination Unreachable: communication administratively prohibited.
pub const CODE_PROHIBITED: u8 = 1;
/// Destination Unreachable: beyond the scope of the source address.
pub const CODE_BEYOND_SCOPE: u8 = 2;
/// Destination Unreachable: address unreachable.
pub const CODE_ADDRESS_UNREACHABLE: u8 = 3;
/// Destination Unreachable: port unreachable.
pub const CODE_PORT_UNREACHABLE: u8 = 4;
/// Time Exceeded: hop limit exceeded in transit.
pub const CODE_HOP_LIMIT_EXCEEDED: u8 = 0;
/// Parameter Problem: erroneous header field.
pub const CODE_ERRONEOUS_FIELD: u8 = 0;
/// Parameter Problem: unrecognized next header.
pub const CODE_UNKNOWN_NEXT_HEADER: u8 = 1;
/// Code of a Parameter Problem: an unknown option.
pub const CODE_UNKNOWN_OPTION: u8 = 2;

/// True for errors, which quote a packet: the types with a high bit of 0 (RFC 4443 §2.1).
#[inline]
#[must_use]
pub const fn is_error(icmp_type: u8) -> bool {
    icmp_type < 128
}

/// True if RFC 4884 §4 gives messages of this type a length field and extensions.
#[inline]
#[must_use]
pub const fn can_carry_extensions(icmp_type: u8) -> bool {
    matches!(icmp_type, TYPE_DESTINATION_UNREACHABLE | TYPE_TIME_EXCEEDED)
}

/// Why bytes are not an ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fewer bytes than a header.
    Truncated,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ICMPv6 message is shorter than 8 bytes")
    }
}

impl core::error::Error for Fault {}

/// A view of an ICMPv6 message, up to the end of the IPv6 payload.
#[derive(Clone, Copy, Debug)]
pub struct Icmp6<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Icmp6<T> {
    /// Checks the length.
    ///
    /// # Errors
    /// [`Fault::Truncated`] for fewer than 8 bytes.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Icmp6<T>, Fault> {
        if bytes.as_ref().len() < HEADER_LENGTH { Err(Fault::Truncated) } else { Ok(Icmp6 { bytes }) }
    }

    /// Skips the check. On bytes that would fail it, accessors return zeros or empty slices.
    #[inline]
    pub const fn new_unchecked(bytes: T) -> Icmp6<T> {
        Icmp6 { bytes }
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

    /// Identifier of an echo.
    #[inline]
    pub fn identifier(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), IDENTIFIER_OFFSET)
    }

    /// Sequence number of an echo.
    #[inline]
    pub fn sequence(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), SEQUENCE_OFFSET)
    }

    /// MTU of a Packet Too Big, or the pointer of a Parameter Problem.
    #[inline]
    pub fn parameter(&self) -> u32 {
        field::u32_at(self.bytes.as_ref(), MTU_OFFSET)
    }

    /// The quoted packet of an error message, without extensions.
    pub fn quote(&self) -> &[u8] {
        let bytes = self.bytes.as_ref();
        bytes.get(extension_layout(bytes).quote).unwrap_or(&[])
    }

    /// Whether the checksum is right, with the addresses of the IPv6 header.
    pub fn is_checksum_valid(&self, source: u128, destination: u128) -> bool {
        let message = self.bytes.as_ref();
        checksum::pseudo_header6(source, destination, ipv6::PROTOCOL_ICMP6, message.len() as u32)
            .add_bytes(message)
            .is_valid()
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Icmp6<T> {
    /// Sets type and code.
    #[inline]
    pub fn set_type_and_code(&mut self, icmp_type: u8, code: u8) {
        field::set_u8(self.bytes.as_mut(), TYPE_OFFSET, icmp_type);
        field::set_u8(self.bytes.as_mut(), CODE_OFFSET, code);
    }

    /// Sets the MTU of a Packet Too Big, or the pointer of a Parameter Problem.
    #[inline]
    pub fn set_parameter(&mut self, value: u32) {
        field::set_u32(self.bytes.as_mut(), MTU_OFFSET, value);
    }

    /// Computes the checksum over all bytes of the view, with the addresses of the IPv6 header, and
    /// writes it.
    pub fn fill_checksum(&mut self, source: u128, destination: u128) {
        field::set_u16(self.bytes.as_mut(), CHECKSUM_OFFSET, 0);
        let message = self.bytes.as_ref();
        let sum = checksum::pseudo_header6(source, destination, ipv6::PROTOCOL_ICMP6, message.len() as u32);
        let checksum = sum.add_bytes(message).checksum();
        field::set_u16(self.bytes.as_mut(), CHECKSUM_OFFSET, checksum);
    }
}

/// Finds the quoted packet and the extensions of an ICMPv6 error (RFC 4884 §4.3). Both are inside
/// `message`. A length that reaches past the end counts as none.
#[must_use]
pub fn extension_layout(message: &[u8]) -> ExtensionLayout {
    let end = message.len();
    let start = HEADER_LENGTH.min(end);
    let length = usize::from(field::u8_at(message, QUOTE_LENGTH_OFFSET)) * 8;
    let split = start + length;
    if can_carry_extensions(field::u8_at(message, TYPE_OFFSET)) && length != 0 && split < end {
        ExtensionLayout { quote: start..split, extension: split..end }
    } else {
        ExtensionLayout { quote: start..end, extension: end..end }
    }
}

#[cfg(test)]
mod tests;
