//! The TCP header (RFC 9293 §3.1) and its options.

use core::fmt;
use core::ops::BitOr;

use crate::checksum;
use crate::field;
use crate::ipv4::PROTOCOL_TCP;

/// Offset of the source port.
pub const SOURCE_PORT_OFFSET: usize = 0;
/// Offset of the destination port.
pub const DESTINATION_PORT_OFFSET: usize = 2;
/// Offset of the sequence number.
pub const SEQUENCE_OFFSET: usize = 4;
/// Offset of the acknowledgment number.
pub const ACKNOWLEDGMENT_OFFSET: usize = 8;
/// Offset of the byte whose upper half is the header length in 32-bit words.
pub const DATA_OFFSET_OFFSET: usize = 12;
/// Offset of the flags.
pub const FLAGS_OFFSET: usize = 13;
/// Offset of the window.
pub const WINDOW_OFFSET: usize = 14;
/// Offset of the checksum.
pub const CHECKSUM_OFFSET: usize = 16;
/// Offset of the urgent pointer.
pub const URGENT_OFFSET: usize = 18;
/// Offset of the options, and length of a header without any.
pub const HEADER_LENGTH_MIN: usize = 20;
/// Length of the longest header.
pub const HEADER_LENGTH_MAX: usize = 60;

/// Option: end of the list.
pub const OPTION_END: u8 = 0;
/// Option: no operation.
pub const OPTION_NOP: u8 = 1;
/// Option: maximum segment size.
pub const OPTION_MSS: u8 = 2;
/// Option: window scale (RFC 7323).
pub const OPTION_WINDOW_SCALE: u8 = 3;
/// Option: selective acknowledgment permitted (RFC 2018).
pub const OPTION_SACK_PERMITTED: u8 = 4;
/// Option: timestamps (RFC 7323).
pub const OPTION_TIMESTAMPS: u8 = 8;

/// The flags of a segment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo.
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced.
    pub const CWR: Flags = Flags(0x80);

    /// Whether every flag of `other` is set.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether some flag of `other` is set.
    #[inline(always)]
    #[must_use]
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// The flags of both.
    #[inline(always)]
    #[must_use]
    pub const fn union(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        self.union(other)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Flags {
    /// `SYN|ACK`, or `-` if no flag is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (bit, name) in ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"].into_iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if separator.is_empty() { f.write_str("-") } else { Ok(()) }
    }
}

/// Why bytes are not a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fewer bytes than a header or the data offset needs.
    Truncated,
    /// The data offset is under 20 bytes.
    DataOffset,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Truncated => "TCP segment is cut short",
            Fault::DataOffset => "TCP data offset is under 20 bytes",
        })
    }
}

impl core::error::Error for Fault {}

/// A view of a TCP segment, up to the end of the IPv4 payload.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Tcp<T> {
    /// Checks the lengths.
    ///
    /// # Errors
    /// Names what is wrong.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Tcp<T>, Fault> {
        let view = Tcp { bytes };
        let available = view.bytes.as_ref().len();
        if available < HEADER_LENGTH_MIN {
            return Err(Fault::Truncated);
        }
        let header_length = view.header_length();
        if header_length < HEADER_LENGTH_MIN {
            return Err(Fault::DataOffset);
        }
        if available < header_length {
            return Err(Fault::Truncated);
        }
        Ok(view)
    }

    /// Skips the checks. On bytes that would fail them, accessors return zeros or empty slices.
    #[inline]
    pub const fn new_unchecked(bytes: T) -> Tcp<T> {
        Tcp { bytes }
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

    /// Sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        field::u32_at(self.bytes.as_ref(), SEQUENCE_OFFSET)
    }

    /// Acknowledgment number.
    #[inline]
    pub fn acknowledgment(&self) -> u32 {
        field::u32_at(self.bytes.as_ref(), ACKNOWLEDGMENT_OFFSET)
    }

    /// Header length in bytes, options included: the data offset.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(field::u8_at(self.bytes.as_ref(), DATA_OFFSET_OFFSET) >> 4) * 4
    }

    /// Flags.
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags(field::u8_at(self.bytes.as_ref(), FLAGS_OFFSET))
    }

    /// Window, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), WINDOW_OFFSET)
    }

    /// Checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), CHECKSUM_OFFSET)
    }

    /// Urgent pointer.
    #[inline]
    pub fn urgent_pointer(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), URGENT_OFFSET)
    }

    /// The options.
    #[inline]
    pub fn options(&self) -> Options<'_> {
        options(field::clamped(self.bytes.as_ref(), HEADER_LENGTH_MIN, self.header_length()))
    }

    /// Everything behind the header.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.bytes.as_ref().get(self.header_length()..).unwrap_or(&[])
    }

    /// Advance of the sequence number: the payload, and one each for SYN and FIN (RFC 9293 §3.4).
    pub fn sequence_length(&self) -> u32 {
        let flags = self.flags();
        let payload = u32::try_from(self.payload().len()).unwrap_or(u32::MAX);
        payload
            .saturating_add(u32::from(flags.contains(Flags::SYN)))
            .saturating_add(u32::from(flags.contains(Flags::FIN)))
    }

    /// Whether the checksum is right.
    pub fn is_checksum_valid(&self, source: u32, destination: u32) -> bool {
        checksum::is_tcp_valid(source, destination, self.bytes.as_ref())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Tcp<T> {
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

    /// Sets the sequence number.
    #[inline]
    pub fn set_sequence(&mut self, value: u32) {
        field::set_u32(self.bytes.as_mut(), SEQUENCE_OFFSET, value);
    }

    /// Sets the acknowledgment number.
    #[inline]
    pub fn set_acknowledgment(&mut self, value: u32) {
        field::set_u32(self.bytes.as_mut(), ACKNOWLEDGMENT_OFFSET, value);
    }

    /// Sets the header length, which must be a multiple of 4 from 20 to 60.
    #[inline]
    pub fn set_header_length(&mut self, length: usize) {
        field::set_u8(self.bytes.as_mut(), DATA_OFFSET_OFFSET, (((length / 4) & 0x0f) as u8) << 4);
    }

    /// Sets the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: Flags) {
        field::set_u8(self.bytes.as_mut(), FLAGS_OFFSET, flags.0);
    }

    /// Sets the window.
    #[inline]
    pub fn set_window(&mut self, window: u16) {
        field::set_u16(self.bytes.as_mut(), WINDOW_OFFSET, window);
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        field::set_u16(self.bytes.as_mut(), CHECKSUM_OFFSET, checksum);
    }

    /// Computes the checksum over all bytes of the view and writes it.
    pub fn fill_checksum(&mut self, source: u32, destination: u32) {
        self.set_checksum(0);
        let segment = self.bytes.as_ref();
        let length = u16::try_from(segment.len()).unwrap_or(u16::MAX);
        let sum = checksum::pseudo_header(source, destination, PROTOCOL_TCP, length).add_bytes(segment);
        self.set_checksum(sum.checksum());
    }
}

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Maximum segment size. `offset` is the position of its value, counted from the first option
    /// byte. At an odd offset its bytes belong to two words of the checksum.
    MaximumSegmentSize {
        /// The size in bytes.
        size: u16,
        /// Position of the value.
        offset: usize,
    },
    /// Window scale.
    WindowScale(u8),
    /// Selective acknowledgment permitted.
    SackPermitted,
    /// Timestamps.
    Timestamps {
        /// Timestamp value.
        value: u32,
        /// Timestamp echo reply.
        echo: u32,
    },
    /// Any other kind, or one of the above with a wrong length.
    Other {
        /// Option kind.
        kind: u8,
        /// Everything behind the length byte.
        data: &'a [u8],
    },
}

/// The options in `bytes`, without "no operation", up to the end of the list or the first malformed
/// option.
#[inline]
#[must_use]
pub const fn options(bytes: &[u8]) -> Options<'_> {
    Options { bytes, position: 0 }
}

/// Iterator of [`options`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Options<'a> {
    /// The maximum segment size, if the segment has the option.
    #[must_use]
    pub fn maximum_segment_size(self) -> Option<u16> {
        for option in self {
            if let TcpOption::MaximumSegmentSize { size, .. } = option {
                return Some(size);
            }
        }
        None
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = TcpOption<'a>;

    fn next(&mut self) -> Option<TcpOption<'a>> {
        loop {
            let start = self.position;
            let kind = *self.bytes.get(start)?;
            match kind {
                OPTION_END => return None,
                OPTION_NOP => self.position += 1,
                _ => {
                    // A length under 2 or past the end is malformed; no later option can be found
                    // then.
                    let end = start + usize::from(*self.bytes.get(start + 1)?);
                    let data = self.bytes.get(start + 2..end)?;
                    self.position = end;
                    return Some(match (kind, data) {
                        (OPTION_MSS, [high, low]) => {
                            TcpOption::MaximumSegmentSize { size: u16::from_be_bytes([*high, *low]), offset: start + 2 }
                        }
                        (OPTION_WINDOW_SCALE, [shift]) => TcpOption::WindowScale(*shift),
                        (OPTION_SACK_PERMITTED, []) => TcpOption::SackPermitted,
                        (OPTION_TIMESTAMPS, [_, _, _, _, _, _, _, _]) => {
                            TcpOption::Timestamps { value: field::u32_at(data, 0), echo: field::u32_at(data, 4) }
                        }
                        _ => TcpOption::Other { kind, data },
                    });
                }
            }
        }
    }
}
