//! The standard check of tests for IPv6: are all lengths and checksums of a packet right?

use crate::checksum;
use crate::field;
use crate::icmp;
use crate::icmp6;
use crate::icmp6::Icmp6;
use crate::ipv4;
use crate::ipv6;
use crate::ipv6::ChainFault;
use crate::ipv6::Ipv6;
use crate::tcp;
use crate::tcp::Tcp;
use crate::udp;
use crate::udp::Udp;

/// A fault of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The IPv6 header.
    Ipv6(ipv6::Fault),
    /// The extension headers.
    Chain(ChainFault),
    /// The UDP header.
    Udp(udp::Fault),
    /// The UDP checksum, which IPv6 requires (RFC 8200 §8.1).
    UdpChecksum,
    /// The TCP header.
    Tcp(tcp::Fault),
    /// The TCP checksum.
    TcpChecksum,
    /// The ICMPv6 header.
    Icmp(icmp6::Fault),
    /// The ICMPv6 checksum.
    IcmpChecksum,
    /// The extension structure of an ICMPv6 error.
    Extension,
    /// The transport checksum of the packet an ICMPv6 error quotes whole.
    QuotedTransportChecksum,
    /// The header of the packet an ICMPv6 error quotes.
    Quoted,
}

/// All faults of an IPv6 packet; empty if it is right. Padding behind it is allowed. The transport
/// of a fragment cannot be checked.
#[must_use]
pub fn faults(packet: &[u8]) -> Vec<Fault> {
    let view = match Ipv6::new_checked(packet) {
        Ok(view) => view,
        Err(fault) => return vec![Fault::Ipv6(fault)],
    };
    let chain = match ipv6::chain(view.packet()) {
        Ok(chain) => chain,
        Err(fault) => return vec![Fault::Chain(fault)],
    };
    if chain.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
        return Vec::new();
    }
    let transport = view.packet().get(chain.offset..).unwrap_or(&[]);
    let mut faults = Vec::new();
    match chain.protocol {
        ipv4::PROTOCOL_UDP => {
            if let Err(fault) = Udp::new_checked(transport) {
                faults.push(Fault::Udp(fault));
            } else if !is_transport_valid(view.source(), view.destination(), chain.protocol, transport) {
                faults.push(Fault::UdpChecksum);
            }
        }
        ipv4::PROTOCOL_TCP => {
            if let Err(fault) = Tcp::new_checked(transport) {
                faults.push(Fault::Tcp(fault));
            } else if !is_transport_valid(view.source(), view.destination(), chain.protocol, transport) {
                faults.push(Fault::TcpChecksum);
            }
        }
        ipv6::PROTOCOL_ICMP6 => match Icmp6::new_checked(transport) {
            Err(fault) => faults.push(Fault::Icmp(fault)),
            Ok(message) => {
                if !message.is_checksum_valid(view.source(), view.destination()) {
                    faults.push(Fault::IcmpChecksum);
                }
                if icmp6::is_error(message.icmp_type()) {
                    error_faults(transport, &mut faults);
                }
            }
        },
        _ => {}
    }
    faults
}

fn error_faults(message: &[u8], faults: &mut Vec<Fault>) {
    let layout = icmp6::extension_layout(message);
    let extension = message.get(layout.extension).unwrap_or(&[]);
    if !extension.is_empty() && !icmp::is_extension_valid(extension) {
        faults.push(Fault::Extension);
    }
    let quote = message.get(layout.quote).unwrap_or(&[]);
    let view = Ipv6::new_unchecked(quote);
    if quote.len() < ipv6::HEADER_LENGTH || field::u8_at(quote, 0) >> 4 != 6 {
        faults.push(Fault::Quoted);
        return;
    }
    let Ok(chain) = ipv6::chain(quote) else { return };
    if chain.fragment.is_some() || quote.len() < view.length() {
        return;
    }
    let transport = view.packet().get(chain.offset..).unwrap_or(&[]);
    // A quoted datagram may come from IPv4, where a checksum of 0 means none; a wrong length is the
    // fault of its sender.
    let has_checksum = match chain.protocol {
        ipv4::PROTOCOL_UDP => Udp::new_checked(transport).is_ok_and(|datagram| datagram.checksum() != 0),
        ipv4::PROTOCOL_TCP | ipv6::PROTOCOL_ICMP6 => true,
        _ => false,
    };
    if has_checksum && !is_transport_valid(view.source(), view.destination(), chain.protocol, transport) {
        faults.push(Fault::QuotedTransportChecksum);
    }
}

/// True if the checksum of a UDP datagram, a TCP segment or an ICMPv6 message is right. A UDP
/// datagram without checksum is wrong.
#[must_use]
pub fn is_transport_valid(source: u128, destination: u128, protocol: u8, transport: &[u8]) -> bool {
    let mut transport = transport;
    if protocol == ipv4::PROTOCOL_UDP {
        if field::u16_at(transport, udp::CHECKSUM_OFFSET) == 0 {
            return false;
        }
        transport = field::clamped(transport, 0, usize::from(field::u16_at(transport, udp::LENGTH_OFFSET)));
    }
    checksum::pseudo_header6(source, destination, protocol, transport.len() as u32).add_bytes(transport).is_valid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build6;
    use crate::build6::endpoint;
    use crate::tcp::Flags;

    #[test]
    fn built_packets_are_right_and_changed_ones_are_not() {
        let (host, server) = (endpoint("2001:db8::1", 40_000), endpoint("2001:db8::2", 443));
        let udp = build6::udp(host, server, b"payload");
        let tcp = build6::tcp(host, server, Flags::SYN, b"");
        let echo = build6::echo_request(*host.ip(), *server.ip(), 7, b"ping");
        let error = build6::icmp(*server.ip(), *host.ip(), (1, 4), [0; 4], &udp);
        let extended = build6::with_extension(&udp, ipv6::HEADER_DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0]);
        for packet in [&udp, &tcp, &echo, &error, &extended] {
            assert_eq!(faults(packet), []);
            let mut wrong = packet.clone();
            *wrong.last_mut().expect("a byte") ^= 1;
            assert!(!faults(&wrong).is_empty());
        }
        let pieces = build6::fragment(&build6::udp(host, server, &[7; 3000]), 1280, 5);
        assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [1280, 1280, 592]);
        let whole = build6::reassemble(&pieces).expect("all pieces");
        assert_eq!((faults(&whole), whole.len()), (vec![], 3048));
        assert_eq!(build6::reassemble(&pieces[1..]), None);
    }
}
