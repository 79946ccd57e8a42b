//! The UDP header (RFC 768).

use core::fmt;

use crate::checksum;
use crate::field;
use crate::ipv4::PROTOCOL_UDP;

/// Offset of the source port.
pub const SOURCE_PORT_OFFSET: usize = 0;
/// Offset of the destination port.
pub const DESTINATION_PORT_OFFSET: usize = 2;
/// Offset of the length.
pub const LENGTH_OFFSET: usize = 4;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 6;
/// Length of the header.
pub const HEADER_LENGTH: usize = 8;

/// Why bytes are not a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fewer bytes than a header or the length field needs.
    Truncated,
    /// The length is under 8.
    Length,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Truncated => "UDP datagram is cut short",
            Fault::Length => "UDP length is under 8",
        })
    }
}

impl core::error::Error for Fault {}

/// A view of a UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Udp<T> {
    /// Checks the lengths of an unfragmented datagram.
    ///
    /// # Errors
    /// Names what is wrong.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Udp<T>, Fault> {
        let view = Udp { bytes };
        let available = view.bytes.as_ref().len();
        if available < HEADER_LENGTH {
            return Err(Fault::Truncated);
        }
        let length = usize::from(view.length());
        if length < HEADER_LENGTH {
            return Err(Fault::Length);
        }
        if available < length {
            return Err(Fault::Truncated);
        }
        Ok(view)
    }

    /// Skips the checks. On bytes that would fail them, accessors return zeros or empty slices.
    #[inline]
    pub const fn new_unchecked(bytes: T) -> Udp<T> {
        Udp { bytes }
    }

    /// Source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), SOURCE_PORT_OFFSET)
    }

    /// Destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), DESTINATION_PORT_OFFSET)
    }

    /// Length of header and payload.
    #[inline]
    pub fn length(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), LENGTH_OFFSET)
    }

    /// Checksum; 0 means none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), CHECKSUM_OFFSET)
    }

    /// Payload, up to the length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        field::clamped(self.bytes.as_ref(), HEADER_LENGTH, usize::from(self.length()))
    }

    /// True if the checksum is right or absent.
    pub fn is_checksum_valid(&self, source: u32, destination: u32) -> bool {
        let datagram = field::clamped(self.bytes.as_ref(), 0, usize::from(self.length()));
        checksum::is_udp_valid(source, destination, datagram)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Udp<T> {
    /// Sets the source port.
    #[inline]
    pub fn set_source_port(&mut self, port: u16) {
        field::set_u16(self.bytes.as_mut(), SOURCE_PORT_OFFSET, port);
    }

    /// Sets the destination port.
    #[inline]
    pub fn set_destination_port(&mut self, port: u16) {
        field::set_u16(self.bytes.as_mut(), DESTINATION_PORT_OFFSET, port);
    }

    /// Sets the length of header and payload.
    #[inline]
    pub fn set_length(&mut self, length: u16) {
        field::set_u16(self.bytes.as_mut(), LENGTH_OFFSET, length);
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        field::set_u16(self.bytes.as_mut(), CHECKSUM_OFFSET, checksum);
    }

    /// Computes the checksum over the length of the header field and writes it.
    pub fn fill_checksum(&mut self, source: u32, destination: u32) {
        self.set_checksum(0);
        let length = self.length();
        let datagram = field::clamped(self.bytes.as_ref(), 0, usize::from(length));
        let sum = checksum::pseudo_header(source, destination, PROTOCOL_UDP, length).add_bytes(datagram);
        self.set_checksum(sum.udp_checksum());
    }
}
