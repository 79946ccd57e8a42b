use super::*;
use crate::build;

const INSIDE: std::net::SocketAddrV4 = build::endpoint([100, 64, 0, 10], 40_000);
const SERVER: std::net::SocketAddrV4 = build::endpoint([203, 0, 113, 1], 443);

fn flipped(packet: &[u8], offset: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[offset] ^= 0x55;
    packet
}

#[test]
fn a_wrong_byte_is_named_by_the_checksum_that_covers_it() {
    let udp = build::udp(INSIDE, SERVER).payload(b"payload").build();
    let tcp = build::tcp(INSIDE, SERVER, tcp::Flags::SYN).build();
    let echo = build::echo_request(*INSIDE.ip(), *SERVER.ip(), 7).build();
    assert_eq!(faults(&flipped(&udp, ipv4::TTL_OFFSET)), [Fault::Ipv4Checksum]);
    assert_eq!(faults(&flipped(&udp, 30)), [Fault::UdpChecksum]);
    assert_eq!(faults(&flipped(&tcp, 24)), [Fault::TcpChecksum]);
    assert_eq!(faults(&flipped(&echo, 24)), [Fault::IcmpChecksum]);
    assert_eq!(faults(&udp[..27]), [Fault::Ipv4(ipv4::Fault::Truncated)]);
}

#[test]
fn faults_of_the_packet_that_an_icmp_error_quotes_are_found() {
    let packet = build::udp(INSIDE, SERVER).payload(b"payload").build();
    let error = |quote: &[u8]| build::icmp_error(*SERVER.ip(), *INSIDE.ip(), 3, 3, quote);
    assert_eq!(faults(&error(&flipped(&packet, ipv4::TTL_OFFSET)).build()), [Fault::QuotedIpv4Checksum]);
    assert_eq!(faults(&error(&flipped(&packet, 30)).build()), [Fault::QuotedTransportChecksum]);
    assert_eq!(faults(&error(&flipped(&packet, 30)[..31]).build()), [], "a cut quote has no checksum to check");
    assert_eq!(faults(&error(&packet[..19]).build()), [Fault::Quoted(quoted::Fault::Truncated)]);
    let mut extended = error(&packet).extension(&[0, 4, 1, 1]).build();
    let last = extended.len() - 1;
    extended[last] ^= 1;
    assert_eq!(faults(&extended), [Fault::IcmpChecksum, Fault::Extension]);
}
