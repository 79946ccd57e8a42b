//! What a local sender leaves to its network card: checksums. Which drivers get finished ones, and
//! what to switch off.

#![cfg(feature = "dpdk")]
#![allow(clippy::expect_used, reason = "helpers of a test")]

mod support;

use std::net::UdpSocket;

use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::TransportChecksum;
use packet_io::dpdk::DpdkIo;
use packet_io::dpdk::start;

/// A kernel interface with an address, and a neighbour on the other side that need not answer.
fn address(interface: &str, network: u8) {
    support::run(&format!("ip address add 192.0.{network}.1/24 dev {interface}"));
    support::run(&format!("ip neighbour add 192.0.{network}.2 lladdr 02:00:00:00:00:02 dev {interface} nud permanent"));
}

/// Whether the UDP checksum of a datagram that the kernel sends to the port is right, and what the
/// driver says of it.
fn received_right(io: &mut DpdkIo, port: PortIndex, network: u8) -> (bool, TransportChecksum) {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("a port is free");
    socket.send_to(&[0x5a; 99], (format!("192.0.{network}.2").as_str(), 9)).expect("there is a route");
    support::wait_for("the datagram", || {
        let mut burst = Burst::new();
        io.receive(port, &mut burst);
        burst.iter().find_map(|buffer| {
            let packet =
                buffer.bytes().get(14..14 + 20 + 8 + 99).filter(|packet| packet[0] == 0x45 && packet[9] == 17)?;
            Some((udp_sum(packet) == 0xffff, buffer.transport_checksum()))
        })
    })
}

/// The sum over pseudo header and datagram (RFC 768), which is 0xffff when the checksum in it is
/// right.
fn udp_sum(packet: &[u8]) -> u32 {
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
    };
    let mut sum = words(&packet[12..]) + 17 + (packet.len() as u32 - 20);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

#[test]
fn checksums_are_finished_once_the_far_end_has_its_offload_off() {
    support::own_network();
    support::veth("packet", "packet-far", 1);
    support::veth("fast", "fast-far", 1);
    let devices = ["net_af_packet0,iface=packet", "net_af_xdp0,iface=fast", "net_tap0,iface=natrix-tap"];
    let mut ios = start(&support::settings(devices.map(support::port).to_vec(), 1)).expect("DPDK starts");
    for (interface, network) in ["packet-far", "fast-far", "natrix-tap"].into_iter().zip(100..) {
        address(interface, network);
    }
    let io = &mut ios[0];

    // A local sender leaves the sum to the far end's card, and no driver says so: nothing separates
    // such a packet from a damaged one. A tap device asks the kernel for nothing, so the kernel
    // finishes what goes into it.
    assert_eq!(received_right(io, PortIndex(0), 100), (false, TransportChecksum::Unknown));
    assert_eq!(received_right(io, PortIndex(1), 101), (false, TransportChecksum::Unknown));
    assert_eq!(received_right(io, PortIndex(2), 102), (true, TransportChecksum::Unknown));
    for interface in ["packet-far", "fast-far"] {
        support::run(&format!("ethtool -K {interface} tx off"));
    }
    for (port, network) in [(0, 100), (1, 101), (2, 102)] {
        assert_eq!(received_right(io, PortIndex(port), network), (true, TransportChecksum::Unknown), "port {port}");
    }
}
