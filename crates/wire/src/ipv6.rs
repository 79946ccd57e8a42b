//! The IPv6 header and the walk over its extension headers (RFC 8200).
//!
//! An address is a `u128` in host bit order, as [`core::net::Ipv6Addr::to_bits`] gives it.

use core::fmt;

use crate::field;

/// Offset of version, traffic class and flow label.
pub const VERSION_OFFSET: usize = 0;
/// Offset of the payload length.
pub const PAYLOAD_LENGTH_OFFSET: usize = 4;
/// Offset of the next header.
pub const NEXT_HEADER_OFFSET: usize = 6;
/// Offset of the hop limit.
pub const HOP_LIMIT_OFFSET: usize = 7;
/// Offset of the source address.
pub const SOURCE_OFFSET: usize = 8;
/// Offset of the destination address.
pub const DESTINATION_OFFSET: usize = 24;
/// Length of the header, without extension headers.
pub const HEADER_LENGTH: usize = 40;
/// Length of a Fragment header.
pub const FRAGMENT_HEADER_LENGTH: usize = 8;
/// Smallest MTU an IPv6 link can have (RFC 8200 §5).
pub const MTU_MIN: u16 = 1280;

/// Next header: hop-by-hop options.
pub const HEADER_HOP_BY_HOP: u8 = 0;
/// Next header: IPv4 in IPv6 (RFC 2473).
pub const PROTOCOL_IPV4: u8 = 4;
/// Next header: routing.
pub const HEADER_ROUTING: u8 = 43;
/// Next header: fragment.
pub const HEADER_FRAGMENT: u8 = 44;
/// Next header: encapsulating security payload (RFC 4303).
pub const HEADER_ESP: u8 = 50;
/// Next header: authentication (RFC 4302).
pub const HEADER_AUTHENTICATION: u8 = 51;
/// Next header: ICMPv6.
pub const PROTOCOL_ICMP6: u8 = 58;
/// Next header: nothing follows.
pub const HEADER_NONE: u8 = 59;
/// Next header: destination options.
pub const HEADER_DESTINATION_OPTIONS: u8 = 60;

/// The one option without a length.
const OPTION_PAD1: u8 = 0;

/// Extension headers that [`chain`] follows at most. RFC 8504 §5.3 lets a node limit them.
pub const EXTENSIONS_MAX: usize = 8;

/// Why bytes are not an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fewer bytes than a header or the payload length needs.
    Truncated,
    /// The version is not 6.
    Version,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Truncated => "IPv6 packet is cut short",
            Fault::Version => "IP version is not 6",
        })
    }
}

impl core::error::Error for Fault {}

/// A view of an IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv6<T> {
    /// Checks version and length. Bytes behind the payload length are link-layer padding and not
    /// part of the packet. Extension headers are not checked; see [`chain`].
    ///
    /// # Errors
    /// Names the first wrong field.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Ipv6<T>, Fault> {
        let view = Ipv6 { bytes };
        let bytes = view.bytes.as_ref();
        if bytes.len() < HEADER_LENGTH {
            return Err(Fault::Truncated);
        }
        if bytes[VERSION_OFFSET] >> 4 != 6 {
            return Err(Fault::Version);
        }
        if bytes.len() < view.length() {
            return Err(Fault::Truncated);
        }
        Ok(view)
    }

    /// Skips the checks. On bytes that would fail them, accessors return zeros or empty slices.
    #[inline]
    pub const fn new_unchecked(bytes: T) -> Ipv6<T> {
        Ipv6 { bytes }
    }

    /// The traffic class: DS field and ECN bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (field::u16_at(self.bytes.as_ref(), VERSION_OFFSET) >> 4) as u8
    }

    /// The flow label.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        field::u32_at(self.bytes.as_ref(), VERSION_OFFSET) & 0x000f_ffff
    }

    /// Length of everything behind the header, extension headers included.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        field::u16_at(self.bytes.as_ref(), PAYLOAD_LENGTH_OFFSET)
    }

    /// Length of header and payload.
    #[inline]
    pub fn length(&self) -> usize {
        HEADER_LENGTH + usize::from(self.payload_length())
    }

    /// Type of what follows the header.
    #[inline]
    pub fn next_header(&self) -> u8 {
        field::u8_at(self.bytes.as_ref(), NEXT_HEADER_OFFSET)
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        field::u8_at(self.bytes.as_ref(), HOP_LIMIT_OFFSET)
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> u128 {
        field::u128_at(self.bytes.as_ref(), SOURCE_OFFSET)
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> u128 {
        field::u128_at(self.bytes.as_ref(), DESTINATION_OFFSET)
    }

    /// Header and payload, without padding behind the payload length.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        field::clamped(self.bytes.as_ref(), 0, self.length())
    }

    /// Everything behind the header, up to the payload length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        field::clamped(self.bytes.as_ref(), HEADER_LENGTH, self.length())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6<T> {
    /// Sets version 6, the traffic class and the flow label, of which the lower 20 bits count.
    #[inline]
    pub fn set_class_and_label(&mut self, traffic_class: u8, flow_label: u32) {
        let word = 6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0x000f_ffff;
        field::set_u32(self.bytes.as_mut(), VERSION_OFFSET, word);
    }

    /// Sets the length of everything behind the header.
    #[inline]
    pub fn set_payload_length(&mut self, length: u16) {
        field::set_u16(self.bytes.as_mut(), PAYLOAD_LENGTH_OFFSET, length);
    }

    /// Sets the type of what follows the header.
    #[inline]
    pub fn set_next_header(&mut self, header: u8) {
        field::set_u8(self.bytes.as_mut(), NEXT_HEADER_OFFSET, header);
    }

    /// Sets the hop limit.
    #[inline]
    pub fn set_hop_limit(&mut self, hops: u8) {
        field::set_u8(self.bytes.as_mut(), HOP_LIMIT_OFFSET, hops);
    }

    /// Sets the source address.
    #[inline]
    pub fn set_source(&mut self, address: u128) {
        field::set_u128(self.bytes.as_mut(), SOURCE_OFFSET, address);
    }

    /// Sets the destination address.
    #[inline]
    pub fn set_destination(&mut self, address: u128) {
        field::set_u128(self.bytes.as_mut(), DESTINATION_OFFSET, address);
    }
}

/// A Fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of this payload in the fragmentable part, in bytes; a multiple of 8.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
    /// Identification.
    pub identification: u32,
}

impl Fragment {
    /// Reads the header at `offset` of `bytes`; see [`field`] for bytes that end before.
    #[must_use]
    pub fn at(bytes: &[u8], offset: usize) -> Fragment {
        let bits = field::u16_at(bytes, offset + 2);
        Fragment { offset: bits & 0xfff8, more: bits & 1 != 0, identification: field::u32_at(bytes, offset + 4) }
    }

    /// Writes the header at `offset` of `bytes`, in front of a `next_header`.
    pub fn write(&self, bytes: &mut [u8], offset: usize, next_header: u8) {
        field::set_u16(bytes, offset, u16::from(next_header) << 8);
        field::set_u16(bytes, offset + 2, self.offset & 0xfff8 | u16::from(self.more));
        field::set_u32(bytes, offset + 4, self.identification);
    }

    /// A whole packet with a Fragment header (RFC 6946).
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// What [`chain`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The first header that was not followed: a transport protocol, ESP, AH, "nothing follows", or
    /// any extension header behind a Fragment header.
    pub protocol: u8,
    /// Where it begins in the packet.
    pub offset: usize,
    /// Where the number of `protocol` stands in the packet, for a Parameter Problem.
    pub number_offset: usize,
    /// The Fragment header, which ends the walk.
    pub fragment: Option<Fragment>,
    /// Where "segments left" stands in the first routing header that has any left.
    pub segments_left: Option<usize>,
}

impl Chain {
    /// True if an extension header other than ESP follows the Fragment header (RFC 7915 §5.1.1).
    #[must_use]
    pub const fn has_extension_behind_fragment(&self) -> bool {
        self.fragment.is_some()
            && matches!(
                self.protocol,
                HEADER_HOP_BY_HOP
                    | HEADER_ROUTING
                    | HEADER_FRAGMENT
                    | HEADER_AUTHENTICATION
                    | HEADER_DESTINATION_OPTIONS
            )
    }
}

/// Why extension headers cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainFault {
    /// A header reaches past the end of the packet.
    Truncated,
    /// More than [`EXTENSIONS_MAX`].
    TooMany,
    /// Hop-by-hop options somewhere else than directly behind the IPv6 header (RFC 8200 §4.1).
    Misplaced,
}

impl fmt::Display for ChainFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChainFault::Truncated => "IPv6 extension header is cut short",
            ChainFault::TooMany => "IPv6 packet has too many extension headers",
            ChainFault::Misplaced => "IPv6 hop-by-hop options are not the first extension header",
        })
    }
}

impl core::error::Error for ChainFault {}

/// Follows hop-by-hop options, routing headers, destination options and one Fragment header.
/// `packet` is a packet without padding, or the beginning of one. Looks at no more than
/// [`EXTENSIONS_MAX`] headers.
///
/// # Errors
/// [`ChainFault`]. The header that was not followed may itself be cut short.
#[inline]
pub fn chain(packet: &[u8]) -> Result<Chain, ChainFault> {
    walk::<STOP>(packet)
}

/// As [`chain`], for the destination of the packet: also follows what is behind the Fragment header
/// of a packet that is whole (RFC 6946 §4).
///
/// # Errors
/// As [`chain`].
pub fn chain_at_destination(packet: &[u8]) -> Result<Chain, ChainFault> {
    walk::<THROUGH_ATOMIC>(packet)
}

/// As [`chain`], as far as the packet shows: also behind the Fragment header of a first fragment.
///
/// # Errors
/// As [`chain`].
pub fn chain_to_transport(packet: &[u8]) -> Result<Chain, ChainFault> {
    walk::<THROUGH_FIRST>(packet)
}

/// Where [`walk`] stops: at each Fragment header, at those of fragments, at those of later
/// fragments.
const STOP: u8 = 0;
const THROUGH_ATOMIC: u8 = 1;
const THROUGH_FIRST: u8 = 2;

#[inline(always)]
fn walk<const FRAGMENTS: u8>(packet: &[u8]) -> Result<Chain, ChainFault> {
    let mut chain = Chain {
        protocol: field::u8_at(packet, NEXT_HEADER_OFFSET),
        offset: HEADER_LENGTH,
        number_offset: NEXT_HEADER_OFFSET,
        fragment: None,
        segments_left: None,
    };
    for _ in 0..=EXTENSIONS_MAX {
        let length = match chain.protocol {
            HEADER_HOP_BY_HOP if chain.offset != HEADER_LENGTH => return Err(ChainFault::Misplaced),
            HEADER_HOP_BY_HOP | HEADER_ROUTING | HEADER_DESTINATION_OPTIONS => {
                (usize::from(field::u8_at(packet, chain.offset + 1)) + 1) * 8
            }
            HEADER_FRAGMENT => FRAGMENT_HEADER_LENGTH,
            _ => return Ok(chain),
        };
        if chain.offset + length > packet.len() {
            return Err(ChainFault::Truncated);
        }
        if chain.protocol == HEADER_ROUTING && chain.segments_left.is_none() {
            let at = chain.offset + 3;
            chain.segments_left = (field::u8_at(packet, at) != 0).then_some(at);
        }
        let is_fragment = chain.protocol == HEADER_FRAGMENT;
        if is_fragment {
            chain.fragment = Some(Fragment::at(packet, chain.offset));
        }
        chain.protocol = field::u8_at(packet, chain.offset);
        chain.number_offset = chain.offset;
        chain.offset += length;
        let goes_on = |fragment: Fragment| match FRAGMENTS {
            THROUGH_ATOMIC => fragment.is_atomic(),
            THROUGH_FIRST => fragment.offset == 0,
            _ => false,
        };
        if is_fragment && !chain.fragment.is_some_and(goes_on) {
            return Ok(chain);
        }
    }
    Err(ChainFault::TooMany)
}

/// An option that its destination does not know, and because of which it must not take the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOption {
    /// Where it stands in the packet, for a Parameter Problem.
    pub offset: usize,
    /// The source wants to know (RFC 8200 §4.2).
    pub is_reported: bool,
}

/// Options of a header that are read, padding included (RFC 8504 §5.3): with more, the packet is
/// dropped.
const OPTIONS_MAX: usize = 16;

/// The first such option in the headers that [`chain_at_destination`] follows. Padding, Router
/// Alert and all options that may be skipped are accepted.
#[must_use]
pub fn unknown_option(packet: &[u8]) -> Option<UnknownOption> {
    let (mut header, mut offset) = (field::u8_at(packet, NEXT_HEADER_OFFSET), HEADER_LENGTH);
    for _ in 0..=EXTENSIONS_MAX {
        let length = match header {
            HEADER_HOP_BY_HOP | HEADER_ROUTING | HEADER_DESTINATION_OPTIONS => {
                (usize::from(field::u8_at(packet, offset + 1)) + 1) * 8
            }
            HEADER_FRAGMENT if Fragment::at(packet, offset).is_atomic() => FRAGMENT_HEADER_LENGTH,
            _ => return None,
        };
        if header == HEADER_HOP_BY_HOP || header == HEADER_DESTINATION_OPTIONS {
            let (mut at, mut count) = (offset + 2, 0);
            while at < offset + length {
                count += 1;
                let kind = field::u8_at(packet, at);
                let end = if kind == OPTION_PAD1 { at + 1 } else { at + 2 + usize::from(field::u8_at(packet, at + 1)) };
                // No RFC covers an option that is longer than its header; the packet is dropped.
                if kind >> 6 != 0 || end > offset + length || count > OPTIONS_MAX {
                    return Some(UnknownOption { offset: at, is_reported: kind >> 6 > 1 });
                }
                at = end;
            }
        }
        header = field::u8_at(packet, offset);
        offset += length;
    }
    None
}

/// The solicited-node multicast address of an address (RFC 4291 §2.7.1).
#[must_use]
pub const fn solicited_node(address: u128) -> u128 {
    0xff02_0000_0000_0000_0000_0001_ff00_0000 | address & 0x00ff_ffff
}

/// The Ethernet address of a multicast group (RFC 2464 §7).
#[must_use]
pub const fn station_of_group(group: u128) -> [u8; 6] {
    let [a, b, c, d] = (group as u32).to_be_bytes();
    [0x33, 0x33, a, b, c, d]
}

/// True for ff00::/8.
#[must_use]
pub const fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xff
}

/// True for fe80::/10.
#[must_use]
pub const fn is_link_local(address: u128) -> bool {
    address >> 118 == 0xfe80 >> 6
}

/// The link-local address of a station, with its modified EUI-64 (RFC 4291 appendix A).
#[must_use]
pub const fn link_local_of(station: [u8; 6]) -> u128 {
    let [a, b, c, d, e, f] = station;
    let identifier = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    0xfe80 << 112 | identifier as u128
}

#[cfg(test)]
mod tests;
