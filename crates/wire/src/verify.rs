//! The standard check of tests: are all lengths and checksums of a packet right?

use core::fmt;

use crate::checksum;
use crate::icmp;
use crate::icmp::Icmp;
use crate::ipv4;
use crate::ipv4::Ipv4;
use crate::quoted;
use crate::quoted::Quoted;
use crate::tcp;
use crate::tcp::Tcp;
use crate::udp;
use crate::udp::Udp;

/// A fault of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The IPv4 header.
    Ipv4(ipv4::Fault),
    /// The IPv4 header checksum.
    Ipv4Checksum,
    /// The UDP header.
    Udp(udp::Fault),
    /// The UDP checksum.
    UdpChecksum,
    /// The TCP header.
    Tcp(tcp::Fault),
    /// The TCP checksum.
    TcpChecksum,
    /// The ICMP header.
    Icmp(icmp::Fault),
    /// The ICMP checksum.
    IcmpChecksum,
    /// The header of the packet an ICMP error quotes.
    Quoted(quoted::Fault),
    /// The header checksum of the packet an ICMP error quotes.
    QuotedIpv4Checksum,
    /// The transport checksum of the packet an ICMP error quotes whole.
    QuotedTransportChecksum,
    /// The extension structure of an ICMP error.
    Extension,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Ipv4(fault) => fault.fmt(f),
            Fault::Ipv4Checksum => f.write_str("IPv4 header checksum is wrong"),
            Fault::Udp(fault) => fault.fmt(f),
            Fault::UdpChecksum => f.write_str("UDP checksum is wrong"),
            Fault::Tcp(fault) => fault.fmt(f),
            Fault::TcpChecksum => f.write_str("TCP checksum is wrong"),
            Fault::Icmp(fault) => fault.fmt(f),
            Fault::IcmpChecksum => f.write_str("ICMP checksum is wrong"),
            Fault::Quoted(fault) => fault.fmt(f),
            Fault::QuotedIpv4Checksum => f.write_str("header checksum of the quoted packet is wrong"),
            Fault::QuotedTransportChecksum => f.write_str("transport checksum of the quoted packet is wrong"),
            Fault::Extension => f.write_str("ICMP extension structure is wrong"),
        }
    }
}

/// All faults of an IPv4 packet; empty if it is right. Padding behind it and a UDP length shorter
/// than the IPv4 payload are allowed. The transport of a fragment cannot be checked.
#[must_use]
pub fn faults(packet: &[u8]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let view = match Ipv4::new_checked(packet) {
        Ok(view) => view,
        Err(fault) => return vec![Fault::Ipv4(fault)],
    };
    if !view.is_checksum_valid() {
        faults.push(Fault::Ipv4Checksum);
    }
    if view.is_fragment() {
        return faults;
    }
    let (source, destination, payload) = (view.source(), view.destination(), view.payload());
    match view.protocol() {
        ipv4::PROTOCOL_UDP => match Udp::new_checked(payload) {
            Ok(datagram) if datagram.is_checksum_valid(source, destination) => {}
            Ok(_) => faults.push(Fault::UdpChecksum),
            Err(fault) => faults.push(Fault::Udp(fault)),
        },
        ipv4::PROTOCOL_TCP => match Tcp::new_checked(payload) {
            Ok(segment) if segment.is_checksum_valid(source, destination) => {}
            Ok(_) => faults.push(Fault::TcpChecksum),
            Err(fault) => faults.push(Fault::Tcp(fault)),
        },
        ipv4::PROTOCOL_ICMP => icmp_faults(payload, &mut faults),
        _ => {}
    }
    faults
}

fn icmp_faults(message: &[u8], faults: &mut Vec<Fault>) {
    let view = match Icmp::new_checked(message) {
        Ok(view) => view,
        Err(fault) => {
            faults.push(Fault::Icmp(fault));
            return;
        }
    };
    if !view.is_checksum_valid() {
        faults.push(Fault::IcmpChecksum);
    }
    if !icmp::is_error(view.icmp_type()) {
        return;
    }
    let extension = message.get(icmp::extension_layout(message).extension).unwrap_or(&[]);
    if !extension.is_empty() && !icmp::is_extension_valid(extension) {
        faults.push(Fault::Extension);
    }
    match Quoted::new_checked(view.quote()) {
        Ok(quoted) => quoted_faults(&quoted, faults),
        Err(fault) => faults.push(Fault::Quoted(fault)),
    }
}

fn quoted_faults(quoted: &Quoted<&[u8]>, faults: &mut Vec<Fault>) {
    if !quoted.is_checksum_valid() {
        faults.push(Fault::QuotedIpv4Checksum);
    }
    let header = quoted.header();
    if header.is_fragment() || !quoted.is_complete() {
        return;
    }
    let (source, destination, transport) = (header.source(), header.destination(), quoted.transport());
    let right = match header.protocol() {
        ipv4::PROTOCOL_UDP => match Udp::new_checked(transport) {
            Ok(datagram) => datagram.is_checksum_valid(source, destination),
            Err(_) => true,
        },
        ipv4::PROTOCOL_TCP => checksum::is_tcp_valid(source, destination, transport),
        ipv4::PROTOCOL_ICMP => checksum::is_icmp_valid(transport),
        _ => true,
    };
    if !right {
        faults.push(Fault::QuotedTransportChecksum);
    }
}

#[cfg(test)]
mod tests;
