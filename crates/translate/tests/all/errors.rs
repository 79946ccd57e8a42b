//! ICMP errors with their quoted packets and extensions.

use translate::Reason;
use wire::build;
use wire::build6;
use wire::icmp;
use wire::icmp6;
use wire::ipv4::Ipv4;
use wire::ipv6::Ipv6;
use wire::tcp::Flags;

use crate::support::*;

const ROUTER6: &str = "2001:db8:ffff::1";
const EXTENSION: [u8; 8] = [0, 8, 1, 1, 0, 0, 17, 64];

/// A datagram of the host as the IPv4 network sees it.
fn sent4(length: usize) -> Vec<u8> {
    let (host, server) = (build::endpoint([192, 0, 2, 1], 4000), build::endpoint([203, 0, 113, 5], 53));
    build::udp(host, server).payload_length(length - 28).ttl(3).build()
}

/// A datagram of the server as the IPv6 network sees it.
fn sent6(length: usize) -> Vec<u8> {
    let (server, host) = (build6::endpoint("64:ff9b::203.0.113.5", 53), build6::endpoint(HOST6, 4000));
    build6::udp(server, host, &vec![7; length - 48])
}

fn error4(icmp_type: u8, code: u8, quote: &[u8]) -> build::Builder {
    build::icmp_error(v4("203.0.113.9"), v4("192.0.2.1"), icmp_type, code, quote)
}

fn error6(icmp_type: u8, code: u8, parameter: u32, quote: &[u8]) -> Vec<u8> {
    build6::icmp(v6(ROUTER6), v6("64:ff9b::203.0.113.5"), (icmp_type, code), parameter.to_be_bytes(), quote)
}

#[test]
fn the_quote_is_what_the_host_had_sent() {
    let packet = to_ipv6(&error4(3, 3, &sent4(100)).build());
    assert_right6(&packet);
    let outer = Ipv6::new_checked(packet.as_slice()).unwrap();
    assert_eq!((outer.source(), outer.destination()), (bits("64:ff9b::203.0.113.9"), bits(HOST6)));
    let message = icmp6::Icmp6::new_checked(outer.payload()).unwrap();
    assert_eq!((message.icmp_type(), message.code(), message.parameter()), (1, 4, 0));
    let quote = message.quote();
    assert_right6(quote);
    let inner = Ipv6::new_checked(quote).unwrap();
    assert_eq!((inner.source(), inner.destination()), (bits(HOST6), bits("64:ff9b::203.0.113.5")));
    assert_eq!(inner.hop_limit(), 3, "not decremented inside");
    assert_eq!(quote.len(), 120);
}

#[test]
fn the_quote_is_what_the_server_had_sent() {
    for length in [60, 100, 700, 1232] {
        let packet = to_ipv4(&error6(3, 0, 0, &sent6(length)));
        assert_right4(&packet);
        assert_eq!(packet.len(), (28 + length - 20).min(576), "RFC 1812 limits the length");
        let outer = Ipv4::new_checked(packet.as_slice()).unwrap();
        assert_eq!((packet[20], packet[21]), (11, 0));
        let inner = Ipv4::new_unchecked(&outer.payload()[8..]);
        assert_eq!((inner.source(), inner.destination()), (v4("203.0.113.5").to_bits(), v4("192.0.2.1").to_bits()));
        assert_eq!(usize::from(inner.total_length()), length - 20);
    }
}

#[test]
fn a_short_quote_is_enough() {
    // RFC 792: header and 64 bits.
    let packet = to_ipv6(&error4(3, 1, &sent4(100)[..28]).build());
    assert_right6(&packet);
    assert_eq!(packet.len(), 48 + 48);
    let (host, server) = (build::endpoint([192, 0, 2, 1], 4000), build::endpoint([203, 0, 113, 5], 443));
    let segment = build::tcp(host, server, Flags::ACK).payload_length(100).build();
    assert_right6(&to_ipv6(&error4(11, 0, &segment[..28]).build()));
    assert_eq!(refused4(&error4(11, 0, &segment[..27]).build()), Reason::QuoteMalformed);
    assert_eq!(refused4(&error4(11, 0, &segment[..20]).build()), Reason::QuoteMalformed);
}

#[test]
fn a_quoted_echo_is_translated_with_its_checksum() {
    let ping = build::echo_request(v4("192.0.2.1"), v4("203.0.113.5"), 77).payload(b"ping").build();
    let packet = to_ipv6(&error4(3, 1, &ping).build());
    assert_right6(&packet);
    assert_eq!(packet[48 + 40], 128);
    let ping6 = build6::echo_request(v6("64:ff9b::203.0.113.5"), v6(HOST6), 77, b"ping");
    let packet = to_ipv4(&error6(1, 3, 0, &ping6));
    assert_right4(&packet);
    assert_eq!(packet[28 + 20], 8);
}

#[test]
fn mtus_and_pointers_are_where_the_type_has_them() {
    let packet = to_ipv6(&error4(3, 4, &sent4(1400)).next_hop_mtu(1300).build());
    assert_eq!(packet[40..42], [2, 0]);
    assert_eq!(packet[44..48], 1320_u32.to_be_bytes());
    assert_eq!(packet.len(), 1280, "RFC 4443 limits the length");
    assert_right6(&packet);
    let packet = to_ipv6(&error4(12, 0, &sent4(100)).rest_of_header([8, 0, 0, 0]).build());
    assert_eq!((&packet[40..42], &packet[44..48]), (&[4, 0][..], &[0, 0, 0, 7][..]));
    let packet = to_ipv6(&error4(3, 2, &sent4(100)).build());
    assert_eq!((&packet[40..42], &packet[44..48]), (&[4, 1][..], &[0, 0, 0, 6][..]));

    let packet = to_ipv4(&error6(2, 0, 1400, &sent6(500)));
    assert_eq!((&packet[20..22], &packet[24..28]), (&[3, 4][..], &[0, 0, 5, 100][..]));
    let packet = to_ipv4(&error6(4, 0, 7, &sent6(500)));
    assert_eq!((&packet[20..22], &packet[24..28]), (&[12, 0][..], &[8, 0, 0, 0][..]));
    assert_eq!(refused6(&error6(4, 0, 40, &sent6(500))), Reason::IcmpPointer);
    assert_eq!(refused6(&error6(2, 0, 1279, &sent6(500))), Reason::PacketTooBigSmall);
    // The quoted packet has a Fragment header, which IPv4 does not need.
    let piece = &build6::fragment(&sent6(2000), 1280, 1)[0];
    let packet = to_ipv4(&error6(2, 0, 1400, &piece[..1000]));
    assert_eq!(packet[26..28], 1372_u16.to_be_bytes());
    assert_right4(&packet);
}

#[test]
fn extensions_pass_behind_a_quote_of_whole_words() {
    // RFC 4884: at least 128 bytes, in words of 4 bytes for IPv4 and of 8 for IPv6.
    for length in [60, 128, 132, 136, 200] {
        let packet = to_ipv6(&error4(11, 0, &sent4(length)).extension(&EXTENSION).build());
        assert_right6(&packet);
        let message = &packet[40..];
        let layout = icmp6::extension_layout(message);
        assert_eq!(layout.extension.len(), 12);
        assert!(icmp::is_extension_valid(&message[layout.extension.clone()]));
        assert_eq!(message[layout.extension][4..], EXTENSION);
        assert!(layout.quote.len() >= 128 && layout.quote.len().is_multiple_of(8));
        assert_eq!(layout.quote.len(), (length.max(108) + 20).next_multiple_of(8), "{length}");

        let quote = &sent6(length);
        let mut padded = quote.clone();
        padded.resize(quote.len().max(128).next_multiple_of(8), 0);
        let mut structure = [&[0x20, 0, 0, 0], EXTENSION.as_slice()].concat();
        let sum = wire::checksum::of_bytes(&structure);
        structure[2..4].copy_from_slice(&sum.to_be_bytes());
        let words = (padded.len() / 8) as u32;
        let error = error6(1, 0, words << 24, &[padded.as_slice(), &structure].concat());
        let packet = to_ipv4(&error);
        assert_right4(&packet);
        let message = &packet[20..];
        let layout = icmp::extension_layout(message);
        assert_eq!(message[layout.extension.clone()], structure);
        assert_eq!(layout.quote.len(), (quote.len() - 20).max(128));
    }
}

#[test]
fn extensions_give_way_to_limits_and_types() {
    // A Parameter Problem of IPv6 has none.
    let packet = to_ipv6(&error4(12, 0, &sent4(200)).rest_of_header([8, 0, 0, 0]).extension(&EXTENSION).build());
    assert_right6(&packet);
    assert_eq!(packet.len(), 48 + 220);
    // 1,280 bytes at most: the quote becomes shorter.
    let packet = to_ipv6(&error4(11, 0, &sent4(1300)[..1020]).extension(&[vec![1, 44], vec![1; 298]].concat()).build());
    assert!(packet.len() <= 1280);
    assert_right6(&packet);
    let layout = icmp6::extension_layout(&packet[40..]);
    assert_eq!(layout.extension.len(), 304);
    // An extension that leaves no room for a quote goes.
    let packet = to_ipv6(&error4(11, 0, &sent4(140)).extension(&[vec![4, 176], vec![1; 1198]].concat()).build());
    assert_eq!(icmp6::extension_layout(&packet[40..]).extension.len(), 0);
    assert_right6(&packet);
}

#[test]
fn errors_about_errors_and_wrong_checksums_are_refused() {
    let error = error4(3, 3, &sent4(100)).build();
    assert_eq!(refused4(&error4(3, 1, &error).build()), Reason::QuoteMalformed, "no tuple was given");
    let headers = translate::read4(&error4(3, 1, &error).build()).unwrap();
    assert_eq!(translate::quoted4(&error4(3, 1, &error).build(), &headers), Err(Reason::ErrorAboutError));
    let mut wrong = error;
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(refused4(&wrong), Reason::IcmpChecksum);

    let error = error6(1, 4, 0, &sent6(100));
    let nested = error6(1, 0, 0, &error);
    let headers = translate::read6(&nested).unwrap();
    assert_eq!(translate::quoted6(&nested, &headers), Err(Reason::ErrorAboutError));
    let mut wrong = error;
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(refused6(&wrong), Reason::IcmpChecksum);
}

#[test]
fn without_room_an_error_is_left_as_it_is() {
    let error = error4(3, 3, &sent4(100)).build();
    let headers = translate::read4(&error).unwrap();
    let inner = translate::quoted4(&error, &headers).unwrap();
    let limits = translate::Limits::default();
    for room in 0..60 {
        let mut frame = [vec![0; room].as_slice(), &error].concat();
        let before = frame.clone();
        let result = translate::to_ipv6(&mut frame, room, &headers, &tuple6(&headers), Some(&tuple6(&inner)), &limits);
        // 20 for each header.
        if room < 40 {
            assert_eq!(result.unwrap_err().reason, Reason::NoRoom);
            assert_eq!(frame, before);
        } else {
            assert_right6(&frame[result.unwrap().start..]);
        }
    }
}
