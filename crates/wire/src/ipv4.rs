//! The IPv4 header (RFC 791) and its options.

use core::fmt;

use crate::checksum;
use crate::field;

/// Offset of version and header length.
pub const VERSION_OFFSET: usize = 0;
/// Offset of the DS field and ECN bits (RFC 2474, RFC 3168).
pub const DS_OFFSET: usize = 1;
/// Offset of the total length.
pub const TOTAL_LENGTH_OFFSET: usize = 2;
/// Offset of the identification.
pub const IDENTIFICATION_OFFSET: usize = 4;
/// Offset of flags and fragment offset.
pub const FRAGMENT_OFFSET: usize = 6;
/// Offset of the time to live.
pub const TTL_OFFSET: usize = 8;
/// Offset of the protocol number.
pub const PROTOCOL_OFFSET: usize = 9;
/// Offset of the header checksum.
pub const CHECKSUM_OFFSET: usize = 10;
/// Offset of the source address.
pub const SOURCE_OFFSET: usize = 12;
/// Offset of the destination address.
pub const DESTINATION_OFFSET: usize = 16;
/// Offset of the options, and length of a header without any.
pub const HEADER_LENGTH_MIN: usize = 20;
/// Length of the longest header.
pub const HEADER_LENGTH_MAX: usize = 60;

/// Don't Fragment, in the 16 bits at [`FRAGMENT_OFFSET`].
pub const FLAG_DONT_FRAGMENT: u16 = 0x4000;
/// More Fragments, in the 16 bits at [`FRAGMENT_OFFSET`].
pub const FLAG_MORE_FRAGMENTS: u16 = 0x2000;
/// The fragment offset in units of 8 bytes, in the 16 bits at [`FRAGMENT_OFFSET`].
pub const FRAGMENT_OFFSET_MASK: u16 = 0x1fff;
/// These bits at [`FRAGMENT_OFFSET`] are all zero exactly if a packet is not a fragment.
pub const FRAGMENT_MASK: u16 = FLAG_MORE_FRAGMENTS | FRAGMENT_OFFSET_MASK;

/// First byte of a header without options: the common case, one comparison.
pub const VERSION_AND_LENGTH_PLAIN: u8 = 0x45;

/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// True for TCP and UDP. Compiles to no branch on which of the two it is: that of the next packet
/// cannot be predicted.
#[inline(always)]
#[must_use]
pub const fn is_tcp_or_udp(protocol: u8) -> bool {
    const BOTH: u64 = 1 << PROTOCOL_TCP | 1 << PROTOCOL_UDP;
    (protocol as u32) < u64::BITS && BOTH >> protocol & 1 != 0
}

/// Smallest MTU an IPv4 link can have (RFC 791 §3.2).
pub const MTU_MIN: u16 = 68;

/// Option: end of the list.
pub const OPTION_END: u8 = 0;
/// Option: no operation.
pub const OPTION_NOP: u8 = 1;
/// Option: record route.
pub const OPTION_RECORD_ROUTE: u8 = 7;
/// Option: timestamp.
pub const OPTION_TIMESTAMP: u8 = 68;
/// Option: loose source route.
pub const OPTION_LOOSE_SOURCE_ROUTE: u8 = 131;
/// Option: strict source route.
pub const OPTION_STRICT_SOURCE_ROUTE: u8 = 137;
/// Option: router alert (RFC 2113).
pub const OPTION_ROUTER_ALERT: u8 = 148;

/// Why bytes are not an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fewer bytes than a header, the header length or the total length needs.
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
            Fault::Truncated => "IPv4 packet is cut short",
            Fault::Version => "IP version is not 4",
            Fault::HeaderLength => "IPv4 header length is under 20 bytes",
            Fault::TotalLength => "IPv4 total length is shorter than the header",
        })
    }
}

impl core::error::Error for Fault {}

/// A view of an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv4<T> {
    /// Checks version and lengths. Bytes behind the total length are link-layer padding and not
    /// part of the packet. The header checksum is not checked; see [`Ipv4::is_checksum_valid`].
    ///
    /// # Errors
    /// Names the first wrong field.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Ipv4<T>, Fault> {
        let view = Ipv4 { bytes };
        let bytes = view.bytes.as_ref();
        if bytes.len() < HEADER_LENGTH_MIN {
            return Err(Fault::Truncated);
        }
        if bytes[VERSION_OFFSET] >> 4 != 4 {
            return Err(Fault::Version);
        }
        let header_length = view.header_length();
        if header_length < HEADER_LENGTH_MIN {
            return Err(Fault::HeaderLength);
        }
        let total_length = usize::from(view.total_length());
        if total_length < header_length {
            return Err(Fault::TotalLength);
        }
        if bytes.len() < total_length {
            return Err(Fault::Truncated);
        }
        Ok(view)
    }

    /// Skips the checks. On bytes that would fail them, accessors return zeros or empty slices.
    #[inline]
    pub const fn new_unchecked(bytes: T) -> Ipv4<T> {
        Ipv4 { bytes }
    }

    /// All bytes of the view, padding included.
    #[inline]
    pub fn into_inner(self) -> T {
        self.bytes
    }

    /// Header length in bytes, options included.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(field::u8_at(self.bytes.as_ref(), VERSION_OFFSET) & 0x0f) * 4
    }

    /// The DS field and ECN bits.
    #[inline]
    pub fn ds_field(&self) -> u8 {
        field::u8_at(self.bytes.as_ref(), DS_OFFSET)
    }

    /// Length of header and payload in bytes.
    #[inline]
    pub fn total_length(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), TOTAL_LENGTH_OFFSET)
    }

    /// Identification.
    #[inline]
    pub fn identification(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), IDENTIFICATION_OFFSET)
    }

    /// Flags and fragment offset as on the wire.
    #[inline]
    pub fn fragment_bits(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), FRAGMENT_OFFSET)
    }

    /// Don't Fragment.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fragment_bits() & FLAG_DONT_FRAGMENT != 0
    }

    /// More Fragments.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.fragment_bits() & FLAG_MORE_FRAGMENTS != 0
    }

    /// Offset of this payload in the datagram, in bytes.
    #[inline]
    pub fn fragment_offset_bytes(&self) -> usize {
        usize::from(self.fragment_bits() & FRAGMENT_OFFSET_MASK) * 8
    }

    /// True for a fragment of a datagram, the first one included.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment_bits() & FRAGMENT_MASK != 0
    }

    /// Time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        field::u8_at(self.bytes.as_ref(), TTL_OFFSET)
    }

    /// Protocol number of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        field::u8_at(self.bytes.as_ref(), PROTOCOL_OFFSET)
    }

    /// Header checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), CHECKSUM_OFFSET)
    }

    /// Source address in host bit order.
    #[inline]
    pub fn source(&self) -> u32 {
        field::u32_at(self.bytes.as_ref(), SOURCE_OFFSET)
    }

    /// Destination address in host bit order.
    #[inline]
    pub fn destination(&self) -> u32 {
        field::u32_at(self.bytes.as_ref(), DESTINATION_OFFSET)
    }

    /// The header with its options.
    #[inline]
    pub fn header(&self) -> &[u8] {
        field::clamped(self.bytes.as_ref(), 0, self.header_length())
    }

    /// The options, padding included; see [`options`].
    #[inline]
    pub fn options(&self) -> &[u8] {
        field::clamped(self.bytes.as_ref(), HEADER_LENGTH_MIN, self.header_length())
    }

    /// Header and payload, without padding behind the total length.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        field::clamped(self.bytes.as_ref(), 0, usize::from(self.total_length()))
    }

    /// Everything behind the header, up to the total length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        field::clamped(self.bytes.as_ref(), self.header_length(), usize::from(self.total_length()))
    }

    /// Whether the header checksum is right.
    pub fn is_checksum_valid(&self) -> bool {
        checksum::is_ipv4_header_valid(self.header())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4<T> {
    /// Sets version 4 and the header length, which must be a multiple of 4 from 20 to 60.
    #[inline]
    pub fn set_header_length(&mut self, length: usize) {
        field::set_u8(self.bytes.as_mut(), VERSION_OFFSET, 0x40 | ((length / 4) & 0x0f) as u8);
    }

    /// Sets the DS field and ECN bits.
    #[inline]
    pub fn set_ds_field(&mut self, value: u8) {
        field::set_u8(self.bytes.as_mut(), DS_OFFSET, value);
    }

    /// Sets the length of header and payload.
    #[inline]
    pub fn set_total_length(&mut self, length: u16) {
        field::set_u16(self.bytes.as_mut(), TOTAL_LENGTH_OFFSET, length);
    }

    /// Sets the identification.
    #[inline]
    pub fn set_identification(&mut self, value: u16) {
        field::set_u16(self.bytes.as_mut(), IDENTIFICATION_OFFSET, value);
    }

    /// Sets flags and fragment offset as on the wire.
    #[inline]
    pub fn set_fragment_bits(&mut self, bits: u16) {
        field::set_u16(self.bytes.as_mut(), FRAGMENT_OFFSET, bits);
    }

    /// Sets the time to live.
    #[inline]
    pub fn set_ttl(&mut self, ttl: u8) {
        field::set_u8(self.bytes.as_mut(), TTL_OFFSET, ttl);
    }

    /// Sets the protocol number.
    #[inline]
    pub fn set_protocol(&mut self, protocol: u8) {
        field::set_u8(self.bytes.as_mut(), PROTOCOL_OFFSET, protocol);
    }

    /// Sets the header checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        field::set_u16(self.bytes.as_mut(), CHECKSUM_OFFSET, checksum);
    }

    /// Sets the source address.
    #[inline]
    pub fn set_source(&mut self, address: u32) {
        field::set_u32(self.bytes.as_mut(), SOURCE_OFFSET, address);
    }

    /// Sets the destination address.
    #[inline]
    pub fn set_destination(&mut self, address: u32) {
        field::set_u32(self.bytes.as_mut(), DESTINATION_OFFSET, address);
    }

    /// Computes the header checksum over the whole header and writes it.
    pub fn fill_checksum(&mut self) {
        let checksum = checksum::ipv4_header_checksum(self.header());
        self.set_checksum(checksum);
    }

    /// Everything behind the header, up to the total length.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.header_length();
        let end = usize::from(self.total_length());
        field::clamped_mut(self.bytes.as_mut(), start, end)
    }
}

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    /// Type, with copied flag and class as on the wire.
    pub kind: u8,
    /// Everything behind the length byte; empty for options of one byte.
    pub data: &'a [u8],
}

impl Ipv4Option<'_> {
    /// Whether a fragment other than the first carries a copy of this option (RFC 791 §3.1).
    #[must_use]
    pub const fn is_copied(&self) -> bool {
        self.kind & 0x80 != 0
    }
}

/// The options of a header, without "no operation", up to the end of the list or the first
/// malformed option.
#[inline]
#[must_use]
pub const fn options(bytes: &[u8]) -> Options<'_> {
    Options { rest: bytes }
}

/// Iterator of [`options`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Ipv4Option<'a>;

    fn next(&mut self) -> Option<Ipv4Option<'a>> {
        loop {
            let (kind, after_kind) = self.rest.split_first()?;
            match *kind {
                OPTION_END => return None,
                OPTION_NOP => self.rest = after_kind,
                kind => {
                    // A length under 2 or past the end is malformed; no later option can be found
                    // then.
                    let length = usize::from(*after_kind.first()?);
                    let data = self.rest.get(2..length)?;
                    self.rest = self.rest.get(length..)?;
                    return Some(Ipv4Option { kind, data });
                }
            }
        }
    }
}

/// True if a loose or strict source route still has hops to go (RFC 791 §3.1).
#[must_use]
pub fn has_unexpired_source_route(bytes: &[u8]) -> bool {
    options(bytes).any(|option| {
        let is_route = matches!(option.kind, OPTION_LOOSE_SOURCE_ROUTE | OPTION_STRICT_SOURCE_ROUTE);
        // The pointer counts from 1, and from the type of the option.
        is_route && usize::from(field::u8_at(option.data, 0)) <= option.data.len() + 2
    })
}

/// True if the options contain a loose or strict source route (RFC 5508 REQ-10b3).
#[must_use]
pub fn has_source_route(bytes: &[u8]) -> bool {
    options(bytes).any(|option| matches!(option.kind, OPTION_LOOSE_SOURCE_ROUTE | OPTION_STRICT_SOURCE_ROUTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tcp_and_udp_are_tcp_or_udp() {
        let found: Vec<u8> = (0..=u8::MAX).filter(|protocol| is_tcp_or_udp(*protocol)).collect();
        assert_eq!(found, [PROTOCOL_TCP, PROTOCOL_UDP]);
    }
}
