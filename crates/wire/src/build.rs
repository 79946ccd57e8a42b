//! Builds whole, valid packets for tests and tools.
//!
//! ```
//! use wire::build;
//! use wire::tcp::Flags;
//!
//! let inside = build::endpoint([100, 64, 0, 10], 40_000);
//! let server = build::endpoint([203, 0, 113, 1], 443);
//! let syn = build::tcp(inside, server, Flags::SYN).sequence(1).mss(1460).build();
//! assert!(wire::verify::faults(&syn).is_empty());
//! let error = build::icmp_error(*server.ip(), *inside.ip(), 3, 3, &syn).build();
//! assert!(wire::verify::faults(&error).is_empty());
//! ```

use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use crate::arp;
use crate::checksum::Sum;
use crate::ethernet;
use crate::ethernet::LinkHeader;
use crate::ethernet::MacAddress;
use crate::ethernet::VlanTag;
use crate::icmp;
use crate::icmp::Icmp;
use crate::ipv4;
use crate::ipv4::Ipv4;
use crate::tcp;
use crate::tcp::Flags;
use crate::tcp::Tcp;
use crate::udp;
use crate::udp::Udp;

/// Address and port from literals.
#[must_use]
pub const fn endpoint(address: [u8; 4], port: u16) -> SocketAddrV4 {
    let [a, b, c, d] = address;
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port)
}

/// A UDP datagram.
#[must_use]
pub fn udp(source: SocketAddrV4, destination: SocketAddrV4) -> Builder {
    let ports = (source.port(), destination.port());
    Builder::new(*source.ip(), *destination.ip(), Transport::Udp { ports, checksum: UdpChecksum::Right })
}

/// A TCP segment with sequence and acknowledgment number 0 and the largest window.
#[must_use]
pub fn tcp(source: SocketAddrV4, destination: SocketAddrV4, flags: Flags) -> Builder {
    let segment = Segment {
        ports: (source.port(), destination.port()),
        flags,
        sequence: 0,
        acknowledgment: 0,
        window: u16::MAX,
        options: Vec::new(),
    };
    Builder::new(*source.ip(), *destination.ip(), Transport::Tcp(segment))
}

/// An Echo with sequence number 1.
#[must_use]
pub fn echo_request(source: Ipv4Addr, destination: Ipv4Addr, identifier: u16) -> Builder {
    icmp_query(source, destination, icmp::TYPE_ECHO_REQUEST, identifier)
}

/// An Echo Reply with sequence number 1.
#[must_use]
pub fn echo_reply(source: Ipv4Addr, destination: Ipv4Addr, identifier: u16) -> Builder {
    icmp_query(source, destination, icmp::TYPE_ECHO_REPLY, identifier)
}

/// An ICMP query message of any type, with sequence number 1.
#[must_use]
pub fn icmp_query(source: Ipv4Addr, destination: Ipv4Addr, icmp_type: u8, identifier: u16) -> Builder {
    Builder::new(source, destination, Transport::IcmpQuery { icmp_type, identifier, sequence: 1 })
}

/// An ICMP error that quotes all of `quote`, which is a packet or its beginning.
#[must_use]
pub fn icmp_error(source: Ipv4Addr, destination: Ipv4Addr, icmp_type: u8, code: u8, quote: &[u8]) -> Builder {
    let error = Error { icmp_type, code, rest: [0; 4], quote: quote.to_vec(), extension: Vec::new() };
    Builder::new(source, destination, Transport::IcmpError(error))
}

/// A packet of any protocol; the payload is everything behind the IPv4 header.
#[must_use]
pub fn raw(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8) -> Builder {
    Builder::new(source, destination, Transport::Raw { protocol })
}

#[derive(Clone, Debug)]
struct Segment {
    ports: (u16, u16),
    flags: Flags,
    sequence: u32,
    acknowledgment: u32,
    window: u16,
    options: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Error {
    icmp_type: u8,
    code: u8,
    rest: [u8; 4],
    quote: Vec<u8>,
    extension: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UdpChecksum {
    Right,
    None,
}

#[derive(Clone, Debug)]
enum Transport {
    Udp { ports: (u16, u16), checksum: UdpChecksum },
    Tcp(Segment),
    IcmpQuery { icmp_type: u8, identifier: u16, sequence: u16 },
    IcmpError(Error),
    Raw { protocol: u8 },
}

/// Builds a packet. A setter for another protocol has no effect.
#[derive(Clone, Debug)]
pub struct Builder {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    ds_field: u8,
    identification: u16,
    fragment_bits: u16,
    ttl: u8,
    options: Vec<u8>,
    transport: Transport,
    payload: Vec<u8>,
}

impl Builder {
    fn new(source: Ipv4Addr, destination: Ipv4Addr, transport: Transport) -> Builder {
        Builder {
            source,
            destination,
            ds_field: 0,
            identification: 0,
            fragment_bits: 0,
            ttl: 64,
            options: Vec::new(),
            transport,
            payload: Vec::new(),
        }
    }

    /// Sets the payload of the transport.
    #[must_use]
    pub fn payload(mut self, payload: &[u8]) -> Builder {
        self.payload = payload.to_vec();
        self
    }

    /// Sets a payload of this many bytes, each different from its neighbours.
    #[must_use]
    pub fn payload_length(mut self, length: usize) -> Builder {
        self.payload = (0..length).map(|index| (index % 251) as u8).collect();
        self
    }

    /// Time to live; the default is 64.
    #[must_use]
    pub fn ttl(mut self, ttl: u8) -> Builder {
        self.ttl = ttl;
        self
    }

    /// DS field and ECN bits.
    #[must_use]
    pub fn ds_field(mut self, value: u8) -> Builder {
        self.ds_field = value;
        self
    }

    /// Identification.
    #[must_use]
    pub fn identification(mut self, value: u16) -> Builder {
        self.identification = value;
        self
    }

    /// Sets Don't Fragment.
    #[must_use]
    pub fn dont_fragment(mut self) -> Builder {
        self.fragment_bits |= ipv4::FLAG_DONT_FRAGMENT;
        self
    }

    /// Flags and fragment offset as on the wire, for packets that no sender should make.
    #[must_use]
    pub fn fragment_bits(mut self, bits: u16) -> Builder {
        self.fragment_bits = bits;
        self
    }

    /// IPv4 options, padded with zeros to a multiple of 4 and cut to 40 bytes.
    #[must_use]
    pub fn ip_options(mut self, options: &[u8]) -> Builder {
        self.options = padded_options(options);
        self
    }

    /// UDP: sends checksum 0, "none".
    #[must_use]
    pub fn without_checksum(mut self) -> Builder {
        if let Transport::Udp { checksum, .. } = &mut self.transport {
            *checksum = UdpChecksum::None;
        }
        self
    }

    /// TCP: sequence number. ICMP query: sequence number, its lower 16 bits.
    #[must_use]
    pub fn sequence(mut self, value: u32) -> Builder {
        match &mut self.transport {
            Transport::Tcp(segment) => segment.sequence = value,
            Transport::IcmpQuery { sequence, .. } => *sequence = value as u16,
            Transport::Udp { .. } | Transport::IcmpError(_) | Transport::Raw { .. } => {}
        }
        self
    }

    /// TCP: acknowledgment number.
    #[must_use]
    pub fn acknowledgment(mut self, value: u32) -> Builder {
        if let Transport::Tcp(segment) = &mut self.transport {
            segment.acknowledgment = value;
        }
        self
    }

    /// TCP: window.
    #[must_use]
    pub fn window(mut self, value: u16) -> Builder {
        if let Transport::Tcp(segment) = &mut self.transport {
            segment.window = value;
        }
        self
    }

    /// TCP: maximum segment size as the only option.
    #[must_use]
    pub fn mss(self, size: u16) -> Builder {
        let [high, low] = size.to_be_bytes();
        self.tcp_options(&[tcp::OPTION_MSS, 4, high, low])
    }

    /// TCP: options, padded with zeros to a multiple of 4 and cut to 40 bytes.
    #[must_use]
    pub fn tcp_options(mut self, options: &[u8]) -> Builder {
        if let Transport::Tcp(segment) = &mut self.transport {
            segment.options = padded_options(options);
        }
        self
    }

    /// ICMP error: next-hop MTU.
    #[must_use]
    pub fn next_hop_mtu(mut self, mtu: u16) -> Builder {
        if let Transport::IcmpError(error) = &mut self.transport {
            [error.rest[2], error.rest[3]] = mtu.to_be_bytes();
        }
        self
    }

    /// ICMP error: the four bytes behind the checksum (pointer, or gateway address of a Redirect).
    #[must_use]
    pub fn rest_of_header(mut self, rest: [u8; 4]) -> Builder {
        if let Transport::IcmpError(error) = &mut self.transport {
            error.rest = rest;
        }
        self
    }

    /// ICMP error: appends an extension structure with these objects (RFC 4884 §7). The quote is
    /// padded with zeros to 128 bytes and whole words; the length field gets its length.
    #[must_use]
    pub fn extension(mut self, objects: &[u8]) -> Builder {
        if let Transport::IcmpError(error) = &mut self.transport {
            let words = error.quote.len().max(icmp::QUOTE_LENGTH_WITH_EXTENSION_MIN).div_ceil(4).min(255);
            error.quote.resize(words * 4, 0);
            error.rest[1] = words as u8;
            error.extension = extension_structure(objects);
        }
        self
    }

    /// ICMP error: appends an extension structure as senders before RFC 4884 do: the quote is
    /// padded or cut to 128 bytes and the length field stays 0 (§5.5).
    #[must_use]
    pub fn legacy_extension(mut self, objects: &[u8]) -> Builder {
        if let Transport::IcmpError(error) = &mut self.transport {
            error.quote.resize(icmp::QUOTE_LENGTH_WITH_EXTENSION_MIN, 0);
            error.extension = extension_structure(objects);
        }
        self
    }

    /// The packet with right lengths and checksums. Cuts a payload that exceeds 65535 bytes.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let header_length = ipv4::HEADER_LENGTH_MIN + self.options.len();
        let (source, destination) = (self.source.to_bits(), self.destination.to_bits());
        let mut packet = vec![0; header_length];
        let protocol = self.append_transport(&mut packet);
        packet.truncate(usize::from(u16::MAX));
        let total_length = packet.len() as u16;

        let (header, transport) = packet.split_at_mut(header_length);
        match &self.transport {
            Transport::Udp { checksum, .. } => {
                let mut view = Udp::new_unchecked(&mut *transport);
                view.set_length(total_length - header_length as u16);
                if *checksum == UdpChecksum::Right {
                    view.fill_checksum(source, destination);
                }
            }
            Transport::Tcp(_) => Tcp::new_unchecked(transport).fill_checksum(source, destination),
            Transport::IcmpQuery { .. } | Transport::IcmpError(_) => Icmp::new_unchecked(transport).fill_checksum(),
            Transport::Raw { .. } => {}
        }

        header[ipv4::HEADER_LENGTH_MIN..].copy_from_slice(&self.options);
        let mut view = Ipv4::new_unchecked(header);
        view.set_header_length(header_length);
        view.set_ds_field(self.ds_field);
        view.set_total_length(total_length);
        view.set_identification(self.identification);
        view.set_fragment_bits(self.fragment_bits);
        view.set_ttl(self.ttl);
        view.set_protocol(protocol);
        view.set_source(source);
        view.set_destination(destination);
        view.fill_checksum();
        packet
    }

    /// Appends the transport header without checksum and the payload; returns the protocol number.
    fn append_transport(&self, packet: &mut Vec<u8>) -> u8 {
        match &self.transport {
            Transport::Udp { ports, .. } => {
                let mut header = [0; udp::HEADER_LENGTH];
                let mut view = Udp::new_unchecked(&mut header);
                view.set_source_port(ports.0);
                view.set_destination_port(ports.1);
                packet.extend_from_slice(&header);
                packet.extend_from_slice(&self.payload);
                ipv4::PROTOCOL_UDP
            }
            Transport::Tcp(segment) => {
                let mut header = [0; tcp::HEADER_LENGTH_MIN];
                let mut view = Tcp::new_unchecked(&mut header);
                view.set_source_port(segment.ports.0);
                view.set_destination_port(segment.ports.1);
                view.set_sequence(segment.sequence);
                view.set_acknowledgment(segment.acknowledgment);
                view.set_header_length(tcp::HEADER_LENGTH_MIN + segment.options.len());
                view.set_flags(segment.flags);
                view.set_window(segment.window);
                packet.extend_from_slice(&header);
                packet.extend_from_slice(&segment.options);
                packet.extend_from_slice(&self.payload);
                ipv4::PROTOCOL_TCP
            }
            Transport::IcmpQuery { icmp_type, identifier, sequence } => {
                let mut header = [0; icmp::HEADER_LENGTH];
                let mut view = Icmp::new_unchecked(&mut header);
                view.set_type_and_code(*icmp_type, 0);
                view.set_identifier(*identifier);
                view.set_sequence(*sequence);
                packet.extend_from_slice(&header);
                packet.extend_from_slice(&self.payload);
                ipv4::PROTOCOL_ICMP
            }
            Transport::IcmpError(error) => {
                packet.extend_from_slice(&[error.icmp_type, error.code, 0, 0]);
                packet.extend_from_slice(&error.rest);
                packet.extend_from_slice(&error.quote);
                packet.extend_from_slice(&error.extension);
                ipv4::PROTOCOL_ICMP
            }
            Transport::Raw { protocol } => {
                packet.extend_from_slice(&self.payload);
                *protocol
            }
        }
    }
}

fn padded_options(options: &[u8]) -> Vec<u8> {
    let mut padded = options.to_vec();
    padded.resize(options.len().next_multiple_of(4).min(40), 0);
    padded
}

fn extension_structure(objects: &[u8]) -> Vec<u8> {
    let mut structure = vec![0x20, 0, 0, 0];
    structure.extend_from_slice(objects);
    let checksum = Sum::ZERO.add_bytes(&structure).checksum().to_be_bytes();
    structure[2..4].copy_from_slice(&checksum);
    structure
}

/// Cuts a packet into fragments of at most `mtu` bytes (RFC 791 §3.2) and ignores Don't Fragment.
/// The packet may be a fragment itself. A packet that fits, or is not IPv4, is returned unchanged.
#[must_use]
pub fn fragment(packet: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let Ok(view) = Ipv4::new_checked(packet) else {
        return vec![packet.to_vec()];
    };
    if view.packet().len() <= mtu {
        return vec![view.packet().to_vec()];
    }
    let mut copied: Vec<u8> = Vec::new();
    for option in ipv4::options(view.options()).filter(ipv4::Ipv4Option::is_copied) {
        copied.push(option.kind);
        copied.push(option.data.len() as u8 + 2);
        copied.extend_from_slice(option.data);
    }
    let later_options = padded_options(&copied);
    let payload = view.payload();
    let mut fragments = Vec::new();
    let mut sent = 0;
    while sent < payload.len() {
        let options = if sent == 0 { view.options() } else { &later_options };
        let header_length = ipv4::HEADER_LENGTH_MIN + options.len();
        // Every fragment but the last carries a multiple of 8 bytes, and at least 8.
        let room = (mtu.saturating_sub(header_length) & !7).max(8);
        let end = (sent + room).min(payload.len());
        let more = end < payload.len() || view.more_fragments();
        let offset = view.fragment_bits() & ipv4::FRAGMENT_OFFSET_MASK;
        let mut bits = view.fragment_bits() & ipv4::FLAG_DONT_FRAGMENT;
        bits |= offset.wrapping_add((sent / 8) as u16) & ipv4::FRAGMENT_OFFSET_MASK;
        if more {
            bits |= ipv4::FLAG_MORE_FRAGMENTS;
        }
        let mut piece = packet[..ipv4::HEADER_LENGTH_MIN].to_vec();
        piece.extend_from_slice(options);
        piece.extend_from_slice(&payload[sent..end]);
        let total_length = piece.len() as u16;
        let mut header = Ipv4::new_unchecked(&mut piece);
        header.set_header_length(header_length);
        header.set_total_length(total_length);
        header.set_fragment_bits(bits);
        header.fill_checksum();
        fragments.push(piece);
        sent = end;
    }
    fragments
}

/// Reassembles fragments of one datagram in any order. Returns None if one is missing, if two
/// overlap, or if source, destination, protocol or identification differ.
#[must_use]
pub fn reassemble(fragments: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut views = Vec::new();
    for bytes in fragments {
        views.push(Ipv4::new_checked(bytes.as_slice()).ok()?);
    }
    views.sort_by_key(Ipv4::fragment_offset_bytes);
    let first = views.first()?;
    let key = |view: &Ipv4<&[u8]>| (view.source(), view.destination(), view.protocol(), view.identification());
    let mut packet = first.header().to_vec();
    let mut length = 0;
    let mut more = true;
    for view in &views {
        if key(view) != key(first) || view.fragment_offset_bytes() != length || !more {
            return None;
        }
        packet.extend_from_slice(view.payload());
        length += view.payload().len();
        more = view.more_fragments();
    }
    let total_length = u16::try_from(packet.len()).ok()?;
    let dont_fragment = first.fragment_bits() & ipv4::FLAG_DONT_FRAGMENT;
    let mut header = Ipv4::new_unchecked(&mut packet);
    header.set_total_length(total_length);
    header.set_fragment_bits(dont_fragment);
    header.fill_checksum();
    (!more).then_some(packet)
}

/// An untagged frame, padded to the minimum length of Ethernet.
#[must_use]
pub fn frame(source: MacAddress, destination: MacAddress, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    frame_of(&LinkHeader { destination, source, vlan: None, ether_type }, payload)
}

/// A frame with an 802.1Q tag, padded to the minimum length of Ethernet.
#[must_use]
pub fn tagged_frame(
    source: MacAddress,
    destination: MacAddress,
    vlan: VlanTag,
    ether_type: u16,
    payload: &[u8],
) -> Vec<u8> {
    frame_of(&LinkHeader { destination, source, vlan: Some(vlan), ether_type }, payload)
}

/// A frame with this header, padded to the minimum length of Ethernet.
#[must_use]
pub fn frame_of(header: &LinkHeader, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; header.payload_offset()];
    header.write(&mut frame);
    frame.extend_from_slice(payload);
    let length = frame.len().max(ethernet::FRAME_LENGTH_MIN);
    frame.resize(length, 0);
    frame
}

/// A frame with an ARP message: a request is broadcast, a reply goes to its target.
#[must_use]
pub fn arp_frame(vlan: Option<VlanTag>, message: &arp::Message) -> Vec<u8> {
    let destination = match message.operation {
        arp::Operation::Request => MacAddress::BROADCAST,
        arp::Operation::Reply => message.target_mac,
    };
    let header = LinkHeader { destination, source: message.sender_mac, vlan, ether_type: ethernet::ETHER_TYPE_ARP };
    frame_of(&header, &message.to_bytes())
}

#[cfg(test)]
mod tests;
