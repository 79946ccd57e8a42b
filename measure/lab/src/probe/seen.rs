//! What the probe reads in a packet that came out. Endpoints of ICMP queries have the identifier as
//! their port.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use wire::icmp;
use wire::icmp::Icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;
use wire::tcp::Tcp;
use wire::udp::Udp;

/// A transport whose ports (or identifiers) are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// ICMP queries.
    Icmp,
}

impl Protocol {
    /// In lower case, as in names of findings.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Icmp => "icmp",
        }
    }
}

/// A packet, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its protocol; None for others, and for fragments other than the first.
    pub protocol: Option<Protocol>,
    /// Source endpoint.
    pub source: SocketAddrV4,
    /// Destination endpoint.
    pub destination: SocketAddrV4,
    /// Time to live.
    pub ttl: u8,
    /// TCP flags; none for others.
    pub flags: Flags,
    /// TCP sequence number, or that of an ICMP query.
    pub sequence: u32,
    /// TCP acknowledgment number.
    pub acknowledgment: u32,
    /// Type and code of an ICMP message.
    pub icmp: Option<(u8, u8)>,
    /// What follows the transport header; what an ICMP error quotes.
    pub payload: Vec<u8>,
    /// All of it, without padding.
    pub packet: Vec<u8>,
}

impl Seen {
    /// Reads a packet; None when it is no whole IPv4 packet with a whole transport header.
    pub fn read(packet: &[u8]) -> Option<Seen> {
        let view = Ipv4::new_checked(packet).ok()?;
        let (source, destination) = (Ipv4Addr::from_bits(view.source()), Ipv4Addr::from_bits(view.destination()));
        let mut seen = Seen {
            protocol: None,
            source: SocketAddrV4::new(source, 0),
            destination: SocketAddrV4::new(destination, 0),
            ttl: view.ttl(),
            flags: Flags(0),
            sequence: 0,
            acknowledgment: 0,
            icmp: None,
            payload: view.payload().to_vec(),
            packet: view.packet().to_vec(),
        };
        if view.is_fragment() {
            return Some(seen);
        }
        match view.protocol() {
            ipv4::PROTOCOL_UDP => {
                let datagram = Udp::new_checked(view.payload()).ok()?;
                seen.protocol = Some(Protocol::Udp);
                seen.source.set_port(datagram.source_port());
                seen.destination.set_port(datagram.destination_port());
                seen.payload = datagram.payload().to_vec();
            }
            ipv4::PROTOCOL_TCP => {
                let segment = Tcp::new_checked(view.payload()).ok()?;
                seen.protocol = Some(Protocol::Tcp);
                seen.source.set_port(segment.source_port());
                seen.destination.set_port(segment.destination_port());
                seen.flags = segment.flags();
                seen.sequence = segment.sequence();
                seen.acknowledgment = segment.acknowledgment();
                seen.payload = segment.payload().to_vec();
            }
            ipv4::PROTOCOL_ICMP => {
                let message = Icmp::new_checked(view.payload()).ok()?;
                seen.protocol = Some(Protocol::Icmp);
                seen.icmp = Some((message.icmp_type(), message.code()));
                if icmp::is_error(message.icmp_type()) {
                    seen.payload = message.quote().to_vec();
                } else {
                    seen.source.set_port(message.identifier());
                    seen.destination.set_port(message.identifier());
                    seen.sequence = u32::from(message.sequence());
                    seen.payload = message.payload().to_vec();
                }
            }
            _ => {}
        }
        Some(seen)
    }

    /// Whether this is `sent` after translation: all but addresses, ports, TTL and checksums is as
    /// it was.
    pub fn is(&self, sent: &Seen) -> bool {
        self.protocol == sent.protocol
            && self.flags == sent.flags
            && self.sequence == sent.sequence
            && self.acknowledgment == sent.acknowledgment
            && self.icmp == sent.icmp
            && self.payload == sent.payload
    }

    /// Whether it is an ICMP error.
    pub fn is_icmp_error(&self) -> bool {
        self.icmp.is_some_and(|(icmp_type, _)| icmp::is_error(icmp_type))
    }

    /// What an ICMP error quotes, as far as it goes: source and destination endpoint. None for
    /// other packets.
    pub fn quoted(&self) -> Option<(SocketAddrV4, SocketAddrV4)> {
        if !self.is_icmp_error() {
            return None;
        }
        let quoted = wire::quoted::Quoted::new_checked(self.payload.as_slice()).ok()?;
        let header = quoted.header();
        let identifier = quoted.icmp_query().map(|(_, identifier)| (identifier, identifier));
        let (from, to) = quoted.ports().or(identifier)?;
        let endpoint = |address, port| SocketAddrV4::new(Ipv4Addr::from_bits(address), port);
        Some((endpoint(header.source(), from), endpoint(header.destination(), to)))
    }

    /// What an ICMP error quotes and what is wrong with it, in words.
    pub fn quotes(&self) -> String {
        let quoted = self.quoted().map_or_else(|| "nothing".to_owned(), |(from, to)| format!("{from} -> {to}"));
        let faults = self.faults();
        let faults = if faults.is_empty() { String::new() } else { format!(", with faults: {}", faults.join(", ")) };
        format!("quoting {quoted}{faults}")
    }

    /// Everything wrong with its lengths and checksums, in words.
    pub fn faults(&self) -> Vec<String> {
        wire::verify::faults(&self.packet).iter().map(ToString::to_string).collect()
    }
}
