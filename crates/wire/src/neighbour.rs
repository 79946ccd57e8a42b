//! Neighbor Discovery: solicitations and advertisements of neighbours (RFC 4861).
//!
//! Router and Redirect messages are not read: Natrix has static routes only.

use core::fmt;

use crate::ethernet::MacAddress;
use crate::field;
use crate::icmp6;
use crate::icmp6::Icmp6;
use crate::ipv6;
use crate::ipv6::Ipv6;

/// The hop limit of each message: it came from the same link (RFC 4861 §3.1).
pub const HOP_LIMIT: u8 = 255;
/// Longest message that [`Message::write`] makes, IPv6 header included.
pub const LENGTH_MAX: usize = ipv6::HEADER_LENGTH + BODY_LENGTH + OPTION_LENGTH;

/// ICMPv6 header and target address.
const BODY_LENGTH: usize = 24;
/// An option with an Ethernet address.
const OPTION_LENGTH: usize = 8;
/// Offset of the target address in the ICMPv6 message.
const TARGET_OFFSET: usize = 8;
/// Option: source link-layer address.
const OPTION_SOURCE: u8 = 1;
/// Option: target link-layer address.
const OPTION_TARGET: u8 = 2;
/// Options looked at, at most.
const OPTIONS_MAX: usize = 16;
/// ff02::1.
const ALL_NODES: u128 = 0xff02 << 112 | 1;

/// Flags of an advertisement, in the first byte behind the checksum.
const FLAG_ROUTER: u8 = 0x80;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;

/// Why a packet is no valid message (RFC 4861 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not an IPv6 packet that directly contains a message of these types.
    Other,
    /// The hop limit is not 255: it came from another link.
    HopLimit,
    /// The checksum is wrong.
    Checksum,
    /// The code is not 0.
    Code,
    /// Shorter than 24 bytes.
    Truncated,
    /// The target is a multicast address.
    Target,
    /// An option of length 0 or past the end, or too many of them.
    Option,
    /// A solicitation without source address that is not for duplicate address detection.
    Unspecified,
    /// A solicited advertisement to a multicast address.
    Solicited,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Other => "not a solicitation or an advertisement of a neighbour",
            Fault::HopLimit => "hop limit of a neighbour message is not 255",
            Fault::Checksum => "checksum of a neighbour message is wrong",
            Fault::Code => "code of a neighbour message is not 0",
            Fault::Truncated => "neighbour message is cut short",
            Fault::Target => "target of a neighbour message is a multicast address",
            Fault::Option => "option of a neighbour message is malformed",
            Fault::Unspecified => "solicitation without a source address is malformed",
            Fault::Solicited => "solicited advertisement was sent to a group",
        })
    }
}

impl core::error::Error for Fault {}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Asks for the station of the target.
    Solicitation,
    /// Says which station the target has.
    Advertisement {
        /// The target is a router.
        router: bool,
        /// Answers a solicitation.
        solicited: bool,
        /// Replaces a station that is already known.
        override_known: bool,
    },
}

/// A message with its IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Solicitation or advertisement.
    pub kind: Kind,
    /// IPv6 source; 0 in duplicate address detection.
    pub source: u128,
    /// IPv6 destination.
    pub destination: u128,
    /// The address the message is about.
    pub target: u128,
    /// Station of the source (solicitation) or of the target (advertisement), if it is given.
    pub station: Option<MacAddress>,
}

impl Message {
    /// Reads and checks an IPv6 packet.
    ///
    /// # Errors
    /// Names the first rule of RFC 4861 §7.1.1 or §7.1.2 that the packet breaks.
    pub fn parse(packet: &[u8]) -> Result<Message, Fault> {
        let view = Ipv6::new_checked(packet).map_err(|_| Fault::Other)?;
        let message = view.payload();
        let icmp = Icmp6::new_checked(message).map_err(|_| Fault::Other)?;
        let is_solicitation = icmp.icmp_type() == icmp6::TYPE_NEIGHBOUR_SOLICITATION;
        if view.next_header() != ipv6::PROTOCOL_ICMP6
            || !is_solicitation && icmp.icmp_type() != icmp6::TYPE_NEIGHBOUR_ADVERTISEMENT
        {
            return Err(Fault::Other);
        }
        if view.hop_limit() != HOP_LIMIT {
            return Err(Fault::HopLimit);
        }
        let (source, destination) = (view.source(), view.destination());
        if !icmp.is_checksum_valid(source, destination) {
            return Err(Fault::Checksum);
        }
        if icmp.code() != 0 {
            return Err(Fault::Code);
        }
        if message.len() < BODY_LENGTH {
            return Err(Fault::Truncated);
        }
        let target = field::u128_at(message, TARGET_OFFSET);
        if ipv6::is_multicast(target) {
            return Err(Fault::Target);
        }
        let wanted = if is_solicitation { OPTION_SOURCE } else { OPTION_TARGET };
        let station = station_option(message.get(BODY_LENGTH..).unwrap_or(&[]), wanted)?;
        let flags = field::u8_at(message, 4);
        let kind = if is_solicitation {
            if source == 0 && (station.is_some() || destination != ipv6::solicited_node(target)) {
                return Err(Fault::Unspecified);
            }
            Kind::Solicitation
        } else {
            if flags & FLAG_SOLICITED != 0 && ipv6::is_multicast(destination) {
                return Err(Fault::Solicited);
            }
            Kind::Advertisement {
                router: flags & FLAG_ROUTER != 0,
                solicited: flags & FLAG_SOLICITED != 0,
                override_known: flags & FLAG_OVERRIDE != 0,
            }
        };
        Ok(Message { kind, source, destination, target, station })
    }

    /// A question for the station of `target`, to its solicited-node group.
    #[must_use]
    pub const fn solicitation(source: u128, station: MacAddress, target: u128) -> Message {
        let destination = ipv6::solicited_node(target);
        Message { kind: Kind::Solicitation, source, destination, target, station: Some(station) }
    }

    /// A probe for duplicate address detection (RFC 4862 §5.4.2).
    #[must_use]
    pub const fn probe(target: u128) -> Message {
        let destination = ipv6::solicited_node(target);
        Message { kind: Kind::Solicitation, source: 0, destination, target, station: None }
    }

    /// The answer to this solicitation for an address that `station` has (RFC 4861 §7.2.4).
    #[must_use]
    pub const fn reply(&self, station: MacAddress) -> Message {
        let solicited = self.source != 0;
        Message {
            kind: Kind::Advertisement { router: true, solicited, override_known: true },
            source: self.target,
            destination: if solicited { self.source } else { ALL_NODES },
            target: self.target,
            station: Some(station),
        }
    }

    /// An announcement to all nodes that `station` has an address (RFC 4861 §7.2.6).
    #[must_use]
    pub const fn announcement(address: u128, station: MacAddress) -> Message {
        Message {
            kind: Kind::Advertisement { router: true, solicited: false, override_known: true },
            source: address,
            destination: ALL_NODES,
            target: address,
            station: Some(station),
        }
    }

    /// Writes the IPv6 packet to the front of `out` and returns its length.
    pub fn write(&self, out: &mut [u8; LENGTH_MAX]) -> usize {
        out.fill(0);
        let length = if self.station.is_some() { LENGTH_MAX } else { LENGTH_MAX - OPTION_LENGTH };
        let mut ip = Ipv6::new_unchecked(out.as_mut_slice());
        ip.set_class_and_label(0, 0);
        ip.set_payload_length((length - ipv6::HEADER_LENGTH) as u16);
        ip.set_next_header(ipv6::PROTOCOL_ICMP6);
        ip.set_hop_limit(HOP_LIMIT);
        ip.set_source(self.source);
        ip.set_destination(self.destination);
        let message = field::clamped_mut(out, ipv6::HEADER_LENGTH, length);
        let (icmp_type, flags, option) = match self.kind {
            Kind::Solicitation => (icmp6::TYPE_NEIGHBOUR_SOLICITATION, 0, OPTION_SOURCE),
            Kind::Advertisement { router, solicited, override_known } => {
                let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
                let flags =
                    flag(router, FLAG_ROUTER) | flag(solicited, FLAG_SOLICITED) | flag(override_known, FLAG_OVERRIDE);
                (icmp6::TYPE_NEIGHBOUR_ADVERTISEMENT, flags, OPTION_TARGET)
            }
        };
        field::set_u8(message, icmp6::TYPE_OFFSET, icmp_type);
        field::set_u8(message, 4, flags);
        field::set_u128(message, TARGET_OFFSET, self.target);
        if let Some(station) = self.station {
            field::set_u8(message, BODY_LENGTH, option);
            field::set_u8(message, BODY_LENGTH + 1, 1);
            station.write(message, BODY_LENGTH + 2);
        }
        Icmp6::new_unchecked(message).fill_checksum(self.source, self.destination);
        length
    }
}

/// The Ethernet address in the first option of this type.
fn station_option(options: &[u8], wanted: u8) -> Result<Option<MacAddress>, Fault> {
    let mut found = None;
    let mut at = 0;
    for _ in 0..OPTIONS_MAX {
        if at >= options.len() {
            return Ok(found);
        }
        let length = usize::from(field::u8_at(options, at + 1)) * 8;
        if length == 0 || at + length > options.len() {
            return Err(Fault::Option);
        }
        if field::u8_at(options, at) == wanted && length == OPTION_LENGTH && found.is_none() {
            found = Some(MacAddress::at(options, at + 2));
        }
        at += length;
    }
    if at >= options.len() { Ok(found) } else { Err(Fault::Option) }
}

#[cfg(test)]
mod tests;
