//! Errors that others send and Natrix translates (§4).

use std::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Verdict;
use nat::tcp::TcpState;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::FAR_ROUTER;
use super::beds;
use super::behind_a_hop;
use super::errors;
use super::inbound_packet;
use super::outbound_packets;

/// One MPLS label stack object (RFC 4950 §2).
const MPLS: [u8; 8] = [0, 8, 1, 1, 0, 1, 0x41, 1];

#[test]
fn an_error_with_a_wrong_icmp_checksum_is_dropped_silently() {
    covers!("5508-REQ-3");
    let mut bed = Bed::new(settings());
    let mut wrong = 0;
    for (protocol, sent) in outbound_packets() {
        bed.inside(&sent);
        let left = bed.only_outside();
        let came = inbound_packet(protocol, source(&left));
        bed.outside(&came);
        let arrived = bed.only_inside();
        for (kind, code) in errors() {
            let mut from_outside = build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, code, &left).build();
            let mut from_inside = build::icmp_error(I1, E1, kind, code, &arrived).build();
            for error in [&mut from_outside, &mut from_inside] {
                let checksum = u16::from_be_bytes([error[22], error[23]]).wrapping_add(1);
                error[22..24].copy_from_slice(&checksum.to_be_bytes());
            }
            bed.outside(&from_outside);
            bed.inside(&from_inside);
            bed.assert_silent();
            wrong += 2;
        }
    }
    assert_eq!(bed.count(Verdict::IcmpBadChecksum), wrong);
}

#[test]
fn an_error_with_a_wrong_quoted_checksum_is_dropped() {
    covers!("5508-REQ-3a");
    let mut bed = Bed::new(settings());
    let mut wrong = 0;
    for (protocol, sent) in outbound_packets() {
        bed.inside(&sent);
        let mut left = bed.only_outside();
        bed.outside(&inbound_packet(protocol, source(&left)));
        let mut arrived = bed.only_inside();
        for quoted in [&mut left, &mut arrived] {
            let checksum = u16::from_be_bytes([quoted[10], quoted[11]]).wrapping_add(1);
            quoted[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        for (kind, code) in errors() {
            // The builder puts the right ICMP checksum around the wrong quote.
            bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, code, &left).build());
            bed.inside(&build::icmp_error(I1, E1, kind, code, &arrived).build());
            bed.assert_silent();
            wrong += 2;
        }
    }
    assert_eq!(bed.count(Verdict::IcmpQuoteMalformed), wrong);
}

#[test]
fn options_of_the_quoted_header_are_skipped() {
    covers!("5508-REQ-3b");
    for mut bed in beds(&settings()) {
        for words in 1..=10_usize {
            let no_operation = vec![1; words * 4];
            let mut record_route = vec![0; words * 4];
            record_route[..3].copy_from_slice(&[7, (words * 4 - 1) as u8, 4]);
            for options in [no_operation, record_route] {
                let sent = build::udp(at(I1, 5000), at(E1, 1000)).ip_options(&options).payload_length(40);
                let sent = sent.dont_fragment().build();
                assert_eq!(usize::from(sent[0] & 15), 5 + words);
                bed.inside(&sent);
                let left = bed.only_outside();
                // Whole, and the options with just 8 bytes behind them.
                for length in [left.len(), 20 + words * 4 + 8] {
                    let external = *source(&left).ip();
                    bed.outside(&build::icmp_error(OUTSIDE_ROUTER, external, 3, 1, &left[..length]).build());
                    let error = bed.only_inside();
                    assert_eq!(destination(&error).ip(), &I1);
                    assert_eq!(quote(&error), &behind_a_hop(&sent)[..length]);
                }
                let came = build::udp(at(E1, 1000), source(&left)).ip_options(&options).payload_length(40);
                let came = came.dont_fragment().build();
                bed.outside(&came);
                let arrived = bed.only_inside();
                bed.inside(&build::icmp_error(I1, E1, 3, 3, &arrived).build());
                assert_eq!(quote(&bed.only_outside()), behind_a_hop(&came));
            }
        }
    }
}

#[test]
fn the_quoted_transport_checksum_is_not_checked() {
    covers!("5508-REQ-3c");
    for mut bed in beds(&settings()) {
        for (protocol, sent) in outbound_packets() {
            bed.inside(&sent);
            let left = bed.only_outside();
            let external = *source(&left).ip();
            bed.outside(&build::icmp_error(OUTSIDE_ROUTER, external, 3, 1, &left[..28]).build());
            assert_eq!(quote(&bed.only_inside()), &behind_a_hop(&sent)[..28], "8 bytes of {protocol:?}");
            // A wrong checksum, and a payload that is not what the checksum is about.
            let mut wrong = left.clone();
            wrong[match protocol {
                Protocol::Udp => 26,
                Protocol::Tcp => 36,
                Protocol::Icmp => 22,
            }] ^= 0x55;
            let mut altered = left.clone();
            altered[left.len() - 1] ^= 0x55;
            for quoted in [wrong, altered] {
                bed.outside(&build::icmp_error(OUTSIDE_ROUTER, external, 3, 1, &quoted).build());
                let error = bed.only_inside();
                assert_eq!(source(quote(&error)), at(I1, 5000), "{protocol:?}");
                assert_eq!(quote(&error).len(), sent.len());
            }
        }
    }
}

#[test]
fn extensions_and_padding_are_not_part_of_the_quoted_packet() {
    covers!("5508-REQ-3d");
    for mut bed in beds(&settings()) {
        // Shorter than 128 bytes, so that zeros follow; and longer, so that it is cut.
        for length in [0, 1, 7, 80, 99, 100, 101, 400] {
            let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(length).dont_fragment().build();
            bed.inside(&sent);
            let left = bed.only_outside();
            let came = build::udp(at(E1, 1000), source(&left)).payload_length(length).dont_fragment().build();
            bed.outside(&came);
            let arrived = bed.only_inside();
            let shown = left.len().min(128);
            for kind in [3, 11, 12] {
                let from_outside =
                    build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, 0, &left[..shown]).extension(&MPLS);
                let legacy = build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, 0, &left[..shown])
                    .legacy_extension(&MPLS);
                let from_inside = build::icmp_error(I1, E1, kind, 0, &arrived[..shown]).extension(&MPLS);
                for (side, error, original) in [
                    (Side::Outside, from_outside.build(), &sent),
                    (Side::Outside, legacy.build(), &sent),
                    (Side::Inside, from_inside.build(), &came),
                ] {
                    bed.burst(side, std::slice::from_ref(&error));
                    let out = if side == Side::Outside { bed.only_inside() } else { bed.only_outside() };
                    assert_eq!(out.len(), error.len());
                    assert_eq!(out[24..28], error[24..28], "length field");
                    assert_eq!(out[28..28 + shown], behind_a_hop(original)[..shown]);
                    assert_eq!(out[28 + shown..], error[28 + shown..], "padding and extension");
                    assert_eq!(wire::verify::faults(&out), []);
                    assert!(wire::icmp::is_extension_valid(&out[28 + 128..]));
                }
            }
        }
    }
}

#[test]
fn an_error_from_outside_without_mapping_is_dropped_silently() {
    covers!("5508-REQ-4");
    let mut bed = Bed::new(settings().short_timers());
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    let unused = at(*external.ip(), external.port() ^ 1);
    let error = |quoted: &[u8], to: Ipv4Addr| build::icmp_error(E1, to, 3, 3, quoted).build();
    let quoted = [
        build::udp(unused, at(E1, 1000)).build(),
        build::tcp(external, at(E1, 1000), Flags::SYN).build(),
        build::echo_request(*external.ip(), E1, external.port()).build(),
    ];
    for quoted in &quoted {
        bed.outside(&error(quoted, *external.ip()));
    }
    // Sent to one external address about a packet of another one, or of somebody else altogether.
    let other = POOL.into_iter().find(|address| address != external.ip()).expect("there are three");
    let existing = build::udp(external, at(E1, 1000)).build();
    bed.outside(&error(&existing, other));
    bed.outside(&error(&build::udp(at(E2, 7), at(E1, 1000)).build(), *external.ip()));
    bed.outside(&error(&build::udp(at(I1, 5000), at(E1, 1000)).build(), *external.ip()));
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::IcmpQuoteNoMapping), 6);
    // One that was.
    bed.advance_secs(11);
    bed.outside(&error(&existing, *external.ip()));
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::IcmpQuoteNoMapping), 7);
    assert_eq!(bed.counters().originated, 0);
}

#[test]
fn an_error_from_outside_quotes_what_the_subscriber_sent() {
    covers!("5508-REQ-4a", "5508-REQ-4c");
    for mut bed in beds(&settings()) {
        for (protocol, sent) in outbound_packets() {
            bed.inside(&sent);
            let left = bed.only_outside();
            for from in [E1, OUTSIDE_ROUTER, E2] {
                for length in [28, 36, left.len()] {
                    bed.outside(&build::icmp_error(from, *source(&left).ip(), 3, 3, &left[..length]).build());
                    let error = bed.only_inside();
                    assert_eq!((source(&error).ip(), destination(&error).ip()), (&from, &I1));
                    assert_eq!(quote(&error), &behind_a_hop(&sent)[..length], "{protocol:?}");
                }
            }
        }
    }
}

#[test]
fn type_and_code_of_errors_stay_as_they_are_in_both_directions() {
    covers!("5508-REQ-4b", "5508-REQ-5b");
    for mut bed in beds(&settings()) {
        for (protocol, sent) in outbound_packets() {
            bed.inside(&sent);
            let left = bed.only_outside();
            bed.outside(&inbound_packet(protocol, source(&left)));
            let arrived = bed.only_inside();
            for (kind, code) in errors() {
                bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, code, &left).build());
                assert!(is_icmp(&bed.only_inside(), kind, code));
                bed.inside(&build::icmp_error(I1, E1, kind, code, &arrived).build());
                assert!(is_icmp(&bed.only_outside(), kind, code));
            }
        }
    }
}

#[test]
fn an_error_from_inside_without_mapping_is_dropped_silently() {
    covers!("5508-REQ-5");
    let mut bed = Bed::new(settings().short_timers());
    bed.open_udp(at(I1, 5000), at(E1, 1000));
    let error = |from: Ipv4Addr, quoted: &[u8]| build::icmp_error(from, E1, 3, 3, quoted).build();
    let quoted = [
        build::udp(at(E1, 1000), at(I1, 5001)).build(),
        build::udp(at(E1, 1000), at(I2, 5000)).build(),
        build::tcp(at(E1, 1000), at(I1, 5000), Flags::SYN).build(),
        build::echo_reply(E1, I1, 5000).build(),
        // Not a packet to somebody inside at all.
        build::udp(at(E1, 1000), at(E2, 5000)).build(),
        // From another host than the one the error goes to.
        build::udp(at(E2, 1000), at(I1, 5000)).build(),
    ];
    for quoted in &quoted {
        for from in [I1, INSIDE_ROUTER, FAR_ROUTER] {
            bed.inside(&error(from, quoted));
        }
    }
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::IcmpQuoteNoMapping), 18);
    bed.advance_secs(11);
    bed.inside(&error(I1, &build::udp(at(E1, 1000), at(I1, 5000)).build()));
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::IcmpQuoteNoMapping), 19);
    assert_eq!(bed.counters().originated, 0);
    assert_eq!(bed.mappings(), []);
}

#[test]
fn an_error_from_inside_quotes_what_the_remote_host_sent() {
    covers!("5508-REQ-5a");
    for mut bed in beds(&settings()) {
        for (protocol, sent) in outbound_packets() {
            bed.inside(&sent);
            let external = source(&bed.only_outside());
            let came = inbound_packet(protocol, external);
            bed.outside(&came);
            let arrived = bed.only_inside();
            for length in [28, 36, arrived.len()] {
                bed.inside(&build::icmp_error(I1, E1, 3, 3, &arrived[..length]).build());
                let error = bed.only_outside();
                assert_eq!((source(&error).ip(), destination(&error).ip()), (external.ip(), &E1));
                assert_eq!(quote(&error), &behind_a_hop(&came)[..length], "{protocol:?}");
            }
        }
    }
}

#[test]
fn an_error_from_inside_has_the_external_address_as_source() {
    covers!("5508-REQ-5c");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        bed.outside(&build::udp(at(E1, 1000), external).payload_length(80).build());
        let arrived = bed.only_inside();
        // A router that has no mapping, one that is a subscriber's address without one, and another
        // subscriber.
        bed.open_udp(at(I3, 5000), at(E1, 1000));
        for from in [FAR_ROUTER, INSIDE_ROUTER, I3, I1] {
            for (kind, code) in [(11, 0), (3, 1), (3, 4), (12, 0)] {
                bed.inside(&build::icmp_error(from, E1, kind, code, &arrived).build());
                let error = bed.only_outside();
                assert_eq!(source(&error).ip(), external.ip(), "not {from}");
                assert!(error.windows(4).all(|word| word != from.octets()), "{from} is nowhere in it");
                assert_eq!(destination(quote(&error)), external);
            }
        }
        assert_eq!(bed.mappings().len(), 2, "the router got no mapping");
    }
}

/// Basic NAT: whatever the error is about.
#[test]
fn an_error_of_a_one_to_one_host_has_its_own_address() {
    covers!("5508-REQ-5c");
    let own = |host: Ipv4Addr| Ipv4Addr::new(203, 0, 113, 64 + host.octets()[3] - 8);
    let mut wanted = settings();
    wanted.pools.push(nat::settings::Pool {
        name: "servers".into(),
        addresses: (64..68).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect(),
        subscribers: vec![topology::prefix([100, 64, 0, 8], 30)],
        one_to_one: true,
        ..nat::settings::Pool::default()
    });
    for workers in [1, 3] {
        let mut bed = Bed::new(wanted.clone()).workers(workers).steering(Steering::Random);
        for about in [I1, I3] {
            let external = bed.open_udp(at(about, 5000), at(E1, 1000));
            assert_eq!(external.ip() == &own(I1), about == I1, "{about} has {external}");
            bed.outside(&build::udp(at(E1, 1000), external).payload_length(80).build());
            let arrived = bed.only_inside();
            for (from, seen) in [(I1, own(I1)), (I2, own(I2)), (I3, *external.ip())] {
                bed.inside(&build::icmp_error(from, E1, 11, 0, &arrived).build());
                let error = bed.only_outside();
                assert_eq!(source(&error).ip(), &seen, "{from} about {about}");
                assert_eq!(destination(quote(&error)), external);
            }
        }
    }
}

#[test]
fn an_error_neither_ends_nor_refreshes_the_session_it_is_about() {
    covers!("5508-REQ-6");
    for inbound_refresh in [false, true] {
        let mut wanted = settings().short_timers();
        wanted.inbound_refresh = inbound_refresh;
        for mut bed in beds(&wanted) {
            let external = bed.ping(I1, 7, E1);
            let query = build::echo_request(*external.ip(), E1, external.port()).payload_length(32).build();
            let reply = build::echo_reply(E1, *external.ip(), external.port()).payload_length(32).build();
            let reply_inside = build::echo_reply(E1, I1, 7).payload_length(32).build();
            let error = |bed: &mut Bed, kind, code| {
                bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *external.ip(), kind, code, &query).build());
                assert_eq!(quote(&bed.only_inside()).len(), query.len());
                bed.inside(&build::icmp_error(I1, E1, kind, code, &reply_inside).build());
                assert_eq!(quote(&bed.only_outside()).len(), query.len());
            };
            // An error at 1 s: a reply at 5 s still arrives.
            bed.advance_secs(1);
            error(&mut bed, 3, 1);
            bed.advance_secs(4);
            if !inbound_refresh {
                bed.outside(&reply);
                assert_eq!(destination(&bed.only_inside()), at(I1, 7));
            }
            // An error every second: the session ends all the same at 10 s.
            for (kind, code) in [(3, 0), (3, 1), (3, 3), (11, 0)] {
                bed.advance_secs(1);
                error(&mut bed, kind, code);
            }
            assert_eq!(bed.mappings().len(), 1);
            bed.advance(Duration::from_millis(1_100));
            assert_eq!(bed.mappings(), []);
            bed.outside(&reply);
            bed.assert_silent();
        }
    }
}

#[test]
fn an_error_about_a_hairpinned_packet_reaches_its_sender() {
    covers!("5508-REQ-7", "5508-REQ-7a");
    for mut bed in beds(&settings()) {
        for hosts in [[I1, I2], [I1, I3], [I2, I3]] {
            let [first, second] = hosts;
            let one = bed.open_udp(at(first, 5000), at(E1, 9));
            let two = bed.open_udp(at(second, 6000), at(E1, 9));
            let sent = build::udp(at(first, 5000), two).payload_length(80).dont_fragment().build();
            bed.inside(&sent);
            let arrived = bed.only_inside();
            assert_eq!((source(&arrived), destination(&arrived)), (one, at(second, 6000)));
            for (kind, code) in errors() {
                for length in [28, arrived.len()] {
                    bed.inside(&build::icmp_error(second, *one.ip(), kind, code, &arrived[..length]).build());
                    let error = bed.only_inside();
                    assert!(is_icmp(&error, kind, code));
                    assert_eq!((source(&error).ip(), destination(&error).ip()), (two.ip(), &first));
                    assert_eq!(ttl(&error), 63);
                    assert_eq!(quote(&error), &behind_a_hop(&sent)[..length], "exactly what was sent");
                }
            }
            assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
        }
    }
}

#[test]
fn an_error_about_a_hairpinned_connection_reaches_its_sender() {
    covers!("5508-REQ-7", "5508-REQ-7a");
    for mut bed in beds(&settings()) {
        let two = bed.open_tcp(at(I2, 80), at(E1, 9));
        let sent = build::tcp(at(I1, 5000), two, Flags::SYN).mss(1460).dont_fragment().build();
        bed.inside(&sent);
        let arrived = bed.only_inside();
        let one = source(&arrived);
        for length in [28, 36, 37, 38, arrived.len()] {
            bed.inside(&build::icmp_error(I2, *one.ip(), 3, 3, &arrived[..length]).build());
            let error = bed.only_inside();
            assert_eq!((source(&error).ip(), destination(&error).ip()), (two.ip(), &I1));
            let expected = behind_a_hop(&sent);
            if length == 37 {
                // Half a checksum cannot be restored; the rest is.
                assert_eq!(quote(&error)[..36], expected[..36]);
            } else {
                assert_eq!(quote(&error), &expected[..length]);
            }
        }
        let opening = bed.sessions().iter().filter(|session| session.state == Some(TcpState::OpeningOutbound)).count();
        assert_eq!(opening, 2, "the errors ended nothing");
    }
}

#[test]
fn a_foreign_too_big_reaches_the_owner_with_its_mtu() {
    covers!("5508-REQ-10a1", "S12");
    for mut bed in beds(&settings()) {
        for mtu in [0, 40, 68, 296, 576, 1_280, 1_492, 9_000, 65_535] {
            for (protocol, sent) in outbound_packets() {
                bed.inside(&sent);
                let left = bed.only_outside();
                let external = source(&left);
                let error = build::icmp_error(OUTSIDE_ROUTER, *external.ip(), 3, 4, &left).next_hop_mtu(mtu);
                bed.outside(&error.build());
                let arrived = bed.only_inside();
                assert_eq!(packet::icmp(&arrived).next_hop_mtu(), mtu);
                assert_eq!((destination(&arrived).ip(), quote(&arrived)), (&I1, &behind_a_hop(&sent)[..]));

                let came = inbound_packet(protocol, external);
                bed.outside(&came);
                let arrived = bed.only_inside();
                bed.inside(&build::icmp_error(FAR_ROUTER, E1, 3, 4, &arrived).next_hop_mtu(mtu).build());
                let error = bed.only_outside();
                assert_eq!(packet::icmp(&error).next_hop_mtu(), mtu);
                assert_eq!((source(&error).ip(), quote(&error)), (external.ip(), &behind_a_hop(&came)[..]));
            }
        }
        // Natrix does not believe it itself: the next large packet passes.
        bed.inside(&build::udp(at(I1, 5000), at(E1, 1000)).payload_length(1_472).dont_fragment().build());
        assert_eq!(bed.only_outside().len(), 1_500);
    }
}
