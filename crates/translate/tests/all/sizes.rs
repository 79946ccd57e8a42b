//! MTUs, Don't Fragment, and fragments.

use translate::Limits;
use translate::Reason;
use wire::build;
use wire::build6;
use wire::ipv4::Ipv4;

use crate::support::*;

/// A datagram of this many bytes, with IPv4 header.
fn udp4(length: usize) -> build::Builder {
    let (server, host) = (build::endpoint([203, 0, 113, 5], 53), build::endpoint([192, 0, 2, 1], 4000));
    build::udp(server, host).identification(0xbeef).payload_length(length - 28)
}

fn udp6(length: usize) -> Vec<u8> {
    let (host, server) = (build6::endpoint(HOST6, 5000), build6::endpoint("64:ff9b::203.0.113.5", 443));
    build6::udp(host, server, &vec![7; length - 48])
}

fn limits(mtu4: u16, mtu6: u16) -> Limits {
    Limits { mtu4, mtu6, ..Limits::default() }
}

#[test]
fn packets_that_may_be_fragmented_are_cut_to_1280() {
    let (_, written) = ipv6_of(&udp4(1260).build(), &limits(1500, 1500)).unwrap();
    assert_eq!((written.length, written.split), (1280, None));
    let (packet, written) = ipv6_of(&udp4(1261).build(), &limits(1500, 1500)).unwrap();
    assert_eq!((written.length, written.split), (1281, Some(1280)));
    let pieces: Vec<Vec<u8>> = translate::pieces(&packet, 1280, 0xbeef)
        .map(|piece| [piece.headers.as_slice(), piece.payload].concat())
        .collect();
    assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [1280, 57]);
    assert_eq!(pieces[0][44..48], [0, 0, 0xbe, 0xef], "the low half is that of IPv4");
    assert_eq!(build6::reassemble(&pieces).unwrap(), packet);
    assert_right6(&packet);
}

#[test]
fn packets_with_dont_fragment_fit_or_are_refused() {
    // MTU matrix of 1280, 1281 and 1500 with Don't Fragment: total length + 20 must fit.
    for mtu in [1280, 1281, 1500] {
        let fits = usize::from(mtu) - 20;
        let (_, written) = ipv6_of(&udp4(fits).dont_fragment().build(), &limits(1500, mtu)).unwrap();
        assert_eq!((written.length, written.split), (usize::from(mtu), None));
        let refused = ipv6_of(&udp4(fits + 1).dont_fragment().build(), &limits(1500, mtu)).unwrap_err();
        let reply = refused.reply.expect("fragmentation needed");
        assert_eq!((refused.reason, reply.icmp_type, reply.code), (Reason::TooBigForIpv6, 3, 4));
        assert_eq!(reply.parameter, u32::from(mtu) - 20);
    }
}

#[test]
fn the_smallest_mtu_of_ipv6_can_be_raised() {
    let raised = Limits { lowest_mtu6: 1400, ..Limits::default() };
    assert_eq!(ipv6_of(&udp4(1380).build(), &raised).unwrap().1.split, None);
    assert_eq!(ipv6_of(&udp4(1381).build(), &raised).unwrap().1.split, Some(1400));
}

#[test]
fn dont_fragment_is_set_above_1260_bytes() {
    let small = to_ipv4(&udp6(1280));
    let large = to_ipv4(&udp6(1281));
    let (small, large) = (Ipv4::new_unchecked(small.as_slice()), Ipv4::new_unchecked(large.as_slice()));
    assert_eq!((small.total_length(), small.dont_fragment(), small.identification()), (1260, false, 0x4321));
    assert_eq!((large.total_length(), large.dont_fragment()), (1261, true));
}

#[test]
fn too_large_for_ipv4_is_split_or_reported() {
    let (_, written) = ipv4_of(&udp6(1280), &limits(1000, 1500)).unwrap();
    assert_eq!((written.length, written.split), (1260, Some(1000)));
    for (mtu4, expected) in [(1400, 1420), (1000, 1280), (68, 1280)] {
        let refused = ipv4_of(&udp6(1500), &limits(mtu4, 1500)).unwrap_err();
        let reply = refused.reply.expect("packet too big");
        assert_eq!((refused.reason, reply.icmp_type, reply.parameter), (Reason::TooBigForIpv4, 2, expected));
    }
}

#[test]
fn fragments_of_ipv4_keep_offset_and_identification() {
    let whole = udp4(2500).build();
    let pieces: Vec<Vec<u8>> =
        build::fragment(&whole, 1000).iter().map(|piece| ipv6_of(piece, &limits(1500, 1500)).unwrap().0).collect();
    assert_eq!(pieces.len(), 3);
    for piece in &pieces {
        assert_eq!((piece[6], piece[40], &piece[44..48]), (44, 17, &[0, 0, 0xbe, 0xef][..]));
    }
    let whole6 = build6::reassemble(&pieces).expect("all fragments");
    assert_right6(&whole6);
    assert_eq!(whole6.len(), 2520);
}

#[test]
fn large_fragments_are_cut_again() {
    let whole = udp4(4000).build();
    let mut pieces = Vec::new();
    for piece in build::fragment(&whole, 1500) {
        let (packet, written) = ipv6_of(&piece, &limits(1500, 1500)).unwrap();
        match written.split {
            None => pieces.push(packet),
            Some(mtu) => {
                let cut = translate::pieces(&packet, mtu, 1);
                pieces.extend(cut.map(|piece| [piece.headers.as_slice(), piece.payload].concat()));
            }
        }
    }
    assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.len() <= 1280));
    assert_right6(&build6::reassemble(&pieces).expect("all fragments"));
}

#[test]
fn fragments_of_ipv6_keep_the_low_half_of_their_number() {
    let whole = udp6(3000);
    let pieces: Vec<Vec<u8>> = build6::fragment(&whole, 1280, 0xdead_beef).iter().map(|piece| to_ipv4(piece)).collect();
    for piece in &pieces {
        let view = Ipv4::new_checked(piece.as_slice()).unwrap();
        assert_eq!((view.identification(), view.dont_fragment(), view.is_fragment()), (0xbeef, false, true));
        assert_right4(piece);
    }
    assert_right4(&build::reassemble(&pieces).expect("all fragments"));
}

#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    // RFC 6946, RFC 8021: none is made, and one that comes is translated.
    let atomic = build6::with_extension(&udp6(100), 44, &[0, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd]);
    let packet = to_ipv4(&atomic);
    let view = Ipv4::new_unchecked(packet.as_slice());
    assert_eq!((view.total_length(), view.is_fragment(), view.dont_fragment()), (80, false, false));
    assert_eq!(view.identification(), 0xccdd);
    assert_right4(&packet);
    let echo = build6::echo_request(v6(HOST6), v6("64:ff9b::203.0.113.5"), 1, b"ping");
    assert_right4(&to_ipv4(&build6::with_extension(&echo, 44, &[0, 0, 0, 0, 0, 0, 1])));
    assert_ne!(to_ipv6(&udp4(500).build())[6], 44, "no Fragment header without need");
}
