//! Whole packets, byte by byte.

use translate::Limits;
use translate::Reason;
use translate::Tuple;
use wire::build;
use wire::build6;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::tcp::Flags;

use crate::support::*;

/// 203.0.113.5:53 to 192.0.2.1:40000, "hi". Checksums by hand.
const UDP4: [u8; 30] = [
    0x45, 0x00, 0x00, 0x1e, 0x12, 0x34, 0x00, 0x00, 0x40, 0x11, 0x6a, 0x94, 203, 0, 113, 5, 192, 0, 2, 1, //
    0x00, 0x35, 0x9c, 0x40, 0x00, 0x0a, 0xfc, 0xf3, b'h', b'i',
];

/// [64:ff9b::203.0.113.5]:53 to [2001:db8::7]:40000, "hi".
const UDP6: [u8; 50] = [
    0x60, 0, 0, 0, 0x00, 0x0a, 0x11, 0x3f, //
    0x00, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 203, 0, 113, 5, //
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, //
    0x00, 0x35, 0x9c, 0x40, 0x00, 0x0a, 0x91, 0x35, b'h', b'i',
];

#[test]
fn a_datagram_becomes_that_of_the_other_family() {
    assert_eq!(to_ipv6(&UDP4), UDP6);
    let mut expected = UDP4;
    expected[4..6].copy_from_slice(&[0x43, 0x21]);
    expected[8] = 0x3e;
    // 6a94 + (1234 - 4321) + (4000 - 3e00).
    expected[10..12].copy_from_slice(&[0x3b, 0xa7]);
    assert_eq!(to_ipv4(&UDP6), expected);
}

#[test]
fn an_echo_changes_type_and_checksum() {
    let echo6 = build6::echo_request(v6(HOST6), v6("64:ff9b::203.0.113.5"), 0x0102, b"");
    assert_eq!(echo6[40..], [0x80, 0, 0x14, 0xf4, 1, 2, 0, 1]);
    let echo4 = to_ipv4(&echo6);
    assert_eq!(echo4[20..], [8, 0, 0xf6, 0xfc, 1, 2, 0, 1]);
    assert_eq!(echo4[9], 1);
    let reply4 = build::echo_reply(v4("203.0.113.5"), v4("192.0.2.1"), 7).payload(b"ping").build();
    let reply6 = to_ipv6(&reply4);
    assert_eq!((reply6[6], reply6[40]), (58, 129));
    assert_right6(&reply6);
}

#[test]
fn a_reply_of_zeros_has_a_valid_checksum() {
    // RFC 1624 leaves 0x0000 here, which no receiver takes.
    let message = [129, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut reply6 = build6::raw(v6(HOST6), v6("64:ff9b::203.0.113.5"), 58, &message);
    build6::fill_checksum(&mut reply6);
    let reply4 = to_ipv4(&reply6);
    assert_eq!(reply4[20..24], [0, 0, 0xff, 0xff]);
    assert_right4(&reply4);
}

#[test]
fn ports_and_identifiers_are_those_of_the_tuple() {
    let (host, server) = (build6::endpoint(HOST6, 5000), build6::endpoint("64:ff9b::203.0.113.5", 443));
    let new =
        Tuple { source: v4("192.0.2.9").to_bits(), destination: to_4(server.ip().to_bits()), ports: Some((1, 2)) };
    for packet in [
        build6::tcp(host, server, Flags::SYN, b"data"),
        build6::udp(host, server, b"data"),
        build6::echo_request(*host.ip(), *server.ip(), 9, b"data"),
    ] {
        let headers = translate::read6(&packet).unwrap();
        let mut frame = packet.clone();
        let written = translate::to_ipv4(&mut frame, 0, &headers, &new, None, 1, &Limits::default()).unwrap();
        let packet4 = &frame[written.start..];
        assert_right4(packet4);
        let after = translate::read4(packet4).unwrap();
        assert_eq!(after.source, new.source);
        assert_eq!(after.ports, if packet4[9] == 1 { (1, 1) } else { (1, 2) });

        let mut frame = [vec![0; 20].as_slice(), packet4].concat();
        let back =
            Tuple { source: host.ip().to_bits(), destination: server.ip().to_bits(), ports: Some(headers.ports) };
        let written = translate::to_ipv6(&mut frame, 20, &after, &back, None, &Limits::default()).unwrap();
        let mut expected = packet;
        expected[7] -= 2;
        assert_eq!(frame[written.start..], expected);
    }
}

#[test]
fn a_datagram_without_checksum_gets_one() {
    let (server, host) = (build::endpoint([203, 0, 113, 5], 53), build::endpoint([192, 0, 2, 1], 4000));
    let plain = build::udp(server, host).payload(b"answer").without_checksum().build();
    let translated = to_ipv6(&plain);
    assert_ne!(translated[46..48], [0, 0]);
    assert_right6(&translated);
    let long = build::udp(server, host).payload_length(2000).without_checksum().build();
    for piece in build::fragment(&long, 600) {
        let offset = u16::from_be_bytes([piece[6], piece[7]]) & 0x1fff;
        if offset == 0 {
            assert_eq!(refused4(&piece), Reason::FragmentWithoutChecksum);
        }
    }
    let mut without = build6::udp(build6::endpoint(HOST6, 1), build6::endpoint("64:ff9b::203.0.113.5", 2), b"x");
    without[46..48].fill(0);
    assert_eq!(refused6(&without), Reason::Ipv6WithoutChecksum);
}

#[test]
fn a_damaged_datagram_stays_damaged() {
    let mut damaged = UDP4;
    damaged[29] ^= 1;
    assert_eq!(wire::verify6::faults(&to_ipv6(&damaged)), [wire::verify6::Fault::UdpChecksum]);
}

#[test]
fn class_and_options_follow_the_rfc() {
    let (server, host) = (build::endpoint([203, 0, 113, 5], 53), build::endpoint([192, 0, 2, 1], 4000));
    let record_route = [7, 7, 4, 0, 0, 0, 0, 1];
    let packet = build::udp(server, host).ds_field(0xb9).ip_options(&record_route).payload(b"x").build();
    let translated = to_ipv6(&packet);
    let view = Ipv6::new_checked(translated.as_slice()).unwrap();
    assert_eq!((view.traffic_class(), view.flow_label(), view.payload_length()), (0xb9, 0, 9));
    assert_right6(&translated);
    let limits = Limits { copies_traffic_class: false, ..Limits::default() };
    assert_eq!(Ipv6::new_unchecked(ipv6_of(&packet, &limits).unwrap().0).traffic_class(), 0);
    assert_eq!(to_ipv4(&translated)[1], 0xb9);
    assert_eq!(ipv4_of(&translated, &limits).unwrap().0[1], 0);

    let unexpired = build::udp(server, host).ip_options(&[131, 7, 4, 1, 2, 3, 4, 1]).build();
    let refused = ipv6_of(&unexpired, &Limits::default()).unwrap_err();
    let reply = refused.reply.expect("source route failed");
    assert_eq!((refused.reason, reply.icmp_type, reply.code), (Reason::Ipv4SourceRoute, 3, 5));
    let expired = build::udp(server, host).ip_options(&[131, 7, 8, 1, 2, 3, 4, 1]).build();
    assert_right6(&to_ipv6(&expired));
}

#[test]
fn extension_headers_are_skipped() {
    let (host, server) = (build6::endpoint(HOST6, 5000), build6::endpoint("64:ff9b::203.0.113.5", 443));
    let plain = build6::udp(host, server, b"payload");
    let options = [0, 1, 4, 0, 0, 0, 0];
    let mut extended = plain.clone();
    for header in [ipv6::HEADER_DESTINATION_OPTIONS, ipv6::HEADER_ROUTING, ipv6::HEADER_HOP_BY_HOP] {
        let body = if header == ipv6::HEADER_ROUTING { [0; 7] } else { options };
        extended = build6::with_extension(&extended, header, &body);
    }
    assert_eq!(to_ipv4(&extended), to_ipv4(&plain));

    let routed = build6::with_extension(&plain, ipv6::HEADER_ROUTING, &[0, 0, 2, 0, 0, 0, 0]);
    let routed = build6::with_extension(&routed, ipv6::HEADER_HOP_BY_HOP, &options);
    let refused = ipv4_of(&routed, &Limits::default()).unwrap_err();
    let reply = refused.reply.expect("a parameter problem");
    assert_eq!((refused.reason, reply.icmp_type, reply.code, reply.parameter), (Reason::SegmentsLeft, 4, 0, 51));
}

#[test]
fn hop_limits_fall_and_run_out() {
    let (server, host) = (build::endpoint([203, 0, 113, 5], 53), build::endpoint([192, 0, 2, 1], 4000));
    for ttl in [0, 1] {
        let refused = ipv6_of(&build::udp(server, host).ttl(ttl).build(), &Limits::default()).unwrap_err();
        let reply = refused.reply.expect("time exceeded");
        assert_eq!((refused.reason, reply.icmp_type, reply.code), (Reason::TtlExpired, 11, 0));
    }
    assert_eq!(to_ipv6(&build::udp(server, host).ttl(2).build())[7], 1);
    let mut packet = UDP6;
    packet[7] = 1;
    let reply = ipv4_of(&packet, &Limits::default()).unwrap_err().reply.expect("time exceeded");
    assert_eq!((reply.icmp_type, reply.code), (3, 0));
    // No error is answered with an error.
    let error = build::icmp_error(v4("203.0.113.5"), v4("192.0.2.1"), 3, 3, &UDP4).ttl(1).build();
    assert_eq!(ipv6_of(&error, &Limits::default()).unwrap_err().reply, None);
}

#[test]
fn other_protocols_pass_unless_they_mean_something_else() {
    for protocol in 0..=255 {
        let packet = build::raw(v4("203.0.113.5"), v4("192.0.2.1"), protocol).payload(&[0; 24]).build();
        let result = ipv6_of(&packet, &Limits::default()).map_err(|refused| refused.reason);
        match protocol {
            0 | 43 | 44 | 58 | 60 => assert_eq!(result.unwrap_err(), Reason::ForeignProtocol),
            2 => assert_eq!(result.unwrap_err(), Reason::Igmp),
            17 => assert_eq!(result.unwrap_err(), Reason::TransportMalformed, "a length of 0"),
            1 => assert_eq!(result.unwrap().0[40], 129),
            _ => {
                let translated = result.unwrap().0;
                assert_eq!((translated[6], translated.len()), (protocol, 64));
            }
        }
    }
    for protocol in [1, 2] {
        let packet = build6::raw(v6(HOST6), v6("64:ff9b::203.0.113.5"), protocol, &[8; 24]);
        assert_eq!(refused6(&packet), Reason::ForeignProtocol);
    }
}
