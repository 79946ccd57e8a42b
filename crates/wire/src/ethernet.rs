//! Ethernet II and one 802.1Q tag.
//!
//! ```text
//!  0            6            12        14                16        18
//!  | destination |   source   | 0x8100 | PCP DEI VLAN id | EtherType | payload   tagged
//!  | destination |   source   | EtherType | payload                              untagged
//! ```

use core::fmt;
use core::str::FromStr;

use crate::field;

/// Offset of the destination address.
pub const DESTINATION_OFFSET: usize = 0;
/// Offset of the source address.
pub const SOURCE_OFFSET: usize = 6;
/// Offset of the EtherType, or of the tag protocol identifier of a tagged frame.
pub const ETHER_TYPE_OFFSET: usize = 12;
/// Length of an untagged header.
pub const HEADER_LENGTH: usize = 14;
/// Length of a header with one tag.
pub const TAGGED_HEADER_LENGTH: usize = 18;
/// Shortest frame on the wire, without the frame check sequence (IEEE 802.3).
pub const FRAME_LENGTH_MIN: usize = 60;

/// EtherType of IPv4.
pub const ETHER_TYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHER_TYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHER_TYPE_IPV6: u16 = 0x86dd;
/// Tag protocol identifier of 802.1Q.
pub const ETHER_TYPE_VLAN: u16 = 0x8100;
/// Tag protocol identifier of a service tag, 802.1ad. This crate does not read such a tag.
pub const ETHER_TYPE_SERVICE_VLAN: u16 = 0x88a8;

/// Highest usable VLAN identifier (4095 is reserved).
pub const VLAN_ID_MAX: u16 = 4094;

/// Why a frame has no readable link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Shorter than its header.
    Truncated,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("frame is shorter than its Ethernet header")
    }
}

impl core::error::Error for Fault {}

/// A 48-bit link-layer address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);
    /// `00:00:00:00:00:00`, which no station has.
    pub const ZERO: MacAddress = MacAddress([0; 6]);

    /// Reads the address at `offset`; missing bytes are zero.
    #[inline]
    #[must_use]
    pub fn at(bytes: &[u8], offset: usize) -> MacAddress {
        match bytes.get(offset..).and_then(<[u8]>::first_chunk) {
            Some(chunk) => MacAddress(*chunk),
            None => MacAddress::ZERO,
        }
    }

    /// Writes the address at `offset` if it fits.
    #[inline]
    pub fn write(self, bytes: &mut [u8], offset: usize) {
        if let Some(chunk) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
            *chunk = self.0;
        }
    }

    /// Whether all bits are set.
    #[must_use]
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// True if the group bit is set, as in the broadcast address.
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for an address of a single station.
    #[must_use]
    pub const fn is_unicast(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is not a link-layer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddressSyntax;

impl fmt::Display for MacAddressSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a MAC address: write six pairs of hexadecimal digits, as in 02:00:5e:10:00:01")
    }
}

impl core::error::Error for MacAddressSyntax {}

impl FromStr for MacAddress {
    type Err = MacAddressSyntax;

    /// Six pairs of hexadecimal digits, all separated by `:` or all by `-`.
    fn from_str(text: &str) -> Result<MacAddress, MacAddressSyntax> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0_u8; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part = parts.next().ok_or(MacAddressSyntax)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(MacAddressSyntax);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| MacAddressSyntax)?;
        }
        match parts.next() {
            None => Ok(MacAddress(octets)),
            Some(_) => Err(MacAddressSyntax),
        }
    }
}

/// The tag control information of an 802.1Q tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// VLAN identifier, 12 bits; 0 means that the tag carries a priority only.
    pub id: u16,
    /// The other four bits as on the wire: priority code point (3 bits) and drop eligible (lowest
    /// bit).
    pub priority_bits: u8,
}

impl VlanTag {
    /// Tag with this identifier and priority 0.
    #[must_use]
    pub const fn new(id: u16) -> VlanTag {
        VlanTag { id: id & 0x0fff, priority_bits: 0 }
    }

    /// From the 16 bits on the wire.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u16) -> VlanTag {
        VlanTag { id: bits & 0x0fff, priority_bits: (bits >> 12) as u8 }
    }

    /// The 16 bits on the wire.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        ((self.priority_bits as u16) << 12) | (self.id & 0x0fff)
    }
}

/// The link header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// Destination.
    pub destination: MacAddress,
    /// Source.
    pub source: MacAddress,
    /// The 802.1Q tag, if present.
    pub vlan: Option<VlanTag>,
    /// Type of the payload. Another tag protocol identifier if the frame has more than one tag.
    pub ether_type: u16,
}

impl LinkHeader {
    /// Reads the header of a frame.
    ///
    /// # Errors
    /// [`Fault::Truncated`] if the frame ends before its header does.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<LinkHeader, Fault> {
        if frame.len() < HEADER_LENGTH {
            return Err(Fault::Truncated);
        }
        let destination = MacAddress::at(frame, DESTINATION_OFFSET);
        let source = MacAddress::at(frame, SOURCE_OFFSET);
        let ether_type = field::u16_at(frame, ETHER_TYPE_OFFSET);
        if ether_type != ETHER_TYPE_VLAN {
            return Ok(LinkHeader { destination, source, vlan: None, ether_type });
        }
        if frame.len() < TAGGED_HEADER_LENGTH {
            return Err(Fault::Truncated);
        }
        let vlan = Some(VlanTag::from_bits(field::u16_at(frame, HEADER_LENGTH)));
        Ok(LinkHeader { destination, source, vlan, ether_type: field::u16_at(frame, HEADER_LENGTH + 2) })
    }

    /// Length of the header, and offset of the payload.
    #[inline]
    #[must_use]
    pub const fn payload_offset(&self) -> usize {
        match self.vlan {
            Some(_) => TAGGED_HEADER_LENGTH,
            None => HEADER_LENGTH,
        }
    }

    /// Writes the header to the start of `frame` and returns its length, or None if it does not
    /// fit.
    #[inline]
    pub fn write(&self, frame: &mut [u8]) -> Option<usize> {
        let length = self.payload_offset();
        if frame.len() < length {
            return None;
        }
        self.destination.write(frame, DESTINATION_OFFSET);
        self.source.write(frame, SOURCE_OFFSET);
        match self.vlan {
            Some(tag) => {
                field::set_u16(frame, ETHER_TYPE_OFFSET, ETHER_TYPE_VLAN);
                field::set_u16(frame, HEADER_LENGTH, tag.to_bits());
                field::set_u16(frame, HEADER_LENGTH + 2, self.ether_type);
            }
            None => field::set_u16(frame, ETHER_TYPE_OFFSET, self.ether_type),
        }
        Some(length)
    }
}
