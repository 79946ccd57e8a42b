//! RFC 5508, behaviour for ICMP. One test per requirement or more, in order.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::IcmpPolicy;
use nat::tcp::TcpState;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

/// A router inside that has no mapping and is no subscriber.
const FAR_ROUTER: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// One MPLS label stack object (RFC 4950 §2).
const MPLS: [u8; 8] = [0, 8, 1, 1, 0, 1, 0x41, 1];

/// The same world with one worker and with several, where any of them may receive any packet.
fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

fn with_icmp(change: impl FnOnce(&mut IcmpPolicy)) -> Settings {
    let mut settings = settings();
    change(&mut settings.icmp);
    settings
}

/// What a packet is behind one router: TTL less by one, nothing else changed.
fn behind_a_hop(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let mut view = Ipv4::new_unchecked(packet.as_mut_slice());
    view.set_ttl(view.ttl() - 1);
    view.fill_checksum();
    packet
}

/// One packet of each transport from I1 to E1, all with Don't Fragment: such a packet keeps its
/// identification, so that a quote of it can be restored to the last bit.
fn outbound_packets() -> [(Protocol, Vec<u8>); 3] {
    [
        (Protocol::Udp, build::udp(at(I1, 5000), at(E1, 1000)).payload_length(80).dont_fragment().build()),
        (Protocol::Tcp, build::tcp(at(I1, 5000), at(E1, 1000), Flags::SYN).mss(1460).dont_fragment().build()),
        (Protocol::Icmp, build::echo_request(I1, E1, 5000).payload_length(80).dont_fragment().build()),
    ]
}

/// One packet of each transport from E1 to the mapping that the packet from I1 made.
fn inbound_packet(protocol: Protocol, external: SocketAddrV4) -> Vec<u8> {
    let packet = match protocol {
        Protocol::Udp => build::udp(at(E1, 1000), external).payload_length(80),
        Protocol::Tcp => build::tcp(at(E1, 1000), external, Flags::SYN.union(Flags::ACK)).acknowledgment(1),
        Protocol::Icmp => build::echo_reply(E1, *external.ip(), external.port()).payload_length(80),
    };
    packet.dont_fragment().build()
}

/// All types and codes of errors that pass.
fn errors() -> impl Iterator<Item = (u8, u8)> {
    (0..16).map(|code| (3, code)).chain([(11, 0), (11, 1), (12, 0), (12, 1), (12, 2)])
}

fn timestamp(from: Ipv4Addr, to: Ipv4Addr, kind: u8, id: u16) -> Vec<u8> {
    build::icmp_query(from, to, kind, id).payload(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).build()
}

#[test]
fn queries_and_replies_keep_identifier_sequence_and_payload() {
    covers!("5508-REQ-1", "5508-REQ-10a3", "5508-REQ-10b2");
    for mut bed in beds(&settings()) {
        for sequence in 1..=100 {
            let query = build::echo_request(I1, E1, 7).sequence(sequence).payload_length(56).build();
            bed.inside(&query);
            let left = bed.only_outside();
            assert!(is_icmp(&left, 8, 0));
            assert_eq!(payload(&left), payload(&query));
            assert_eq!(u32::from(packet::icmp(&left).sequence()), sequence);
            let (external, id) = (*source(&left).ip(), identifier(&left));
            let reply = build::echo_reply(E1, external, id).sequence(sequence).payload_length(56).build();
            bed.outside(&reply);
            let back = bed.only_inside();
            assert!(is_icmp(&back, 0, 0));
            assert_eq!((source(&back).ip(), destination(&back)), (&E1, at(I1, 7)));
            assert_eq!(u32::from(packet::icmp(&back).sequence()), sequence);
            assert_eq!(payload(&back), payload(&query));
        }
        bed.inside(&timestamp(I1, E1, 13, 9));
        let left = bed.only_outside();
        assert!(is_icmp(&left, 13, 0));
        bed.outside(&timestamp(E1, *source(&left).ip(), 14, identifier(&left)));
        let back = bed.only_inside();
        assert!(is_icmp(&back, 14, 0));
        assert_eq!(destination(&back), at(I1, 9));
        assert_eq!(payload(&back), payload(&left));
    }
}

#[test]
fn subscribers_with_equal_identifiers_get_their_own_replies() {
    covers!("5508-REQ-1");
    for mut bed in beds(&settings().addresses(&POOL[..1])) {
        let (first, second) = (bed.ping(I1, 7, E1), bed.ping(I2, 7, E1));
        assert_ne!(first, second);
        for (external, host) in [(first, I1), (second, I2)] {
            bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).build());
            assert_eq!(destination(&bed.only_inside()), at(host, 7));
        }
    }
}

#[test]
fn queries_from_outside_reach_nobody_inside() {
    covers!("5508-REQ-1");
    let mut bed = Bed::new(settings());
    let external = bed.ping(I1, 7, E1);
    bed.outside(&build::echo_request(E1, *external.ip(), external.port()).build());
    bed.outside(&timestamp(E1, *external.ip(), 13, external.port()));
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::NoMapping), 2);
}

#[test]
fn one_identifier_mapping_serves_every_destination() {
    covers!("5508-REQ-1a");
    for mut bed in beds(&settings()) {
        let externals: HashSet<_> = (1..=200).map(|host| bed.ping(I1, 7, Ipv4Addr::new(198, 51, 100, host))).collect();
        assert_eq!(externals.len(), 1);
        assert_eq!(bed.mappings().len(), 1);
    }
}

#[test]
fn a_reply_after_59_s_is_delivered() {
    covers!("5508-REQ-2");
    assert!(Settings::default().timeouts.icmp >= Duration::from_secs(60));
    let mut bed = Bed::new(settings());
    let external = bed.ping(I1, 7, E1);
    bed.advance_secs(59);
    bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).build());
    assert_eq!(destination(&bed.only_inside()), at(I1, 7));
}

#[test]
fn the_query_timer_is_what_the_settings_say_to_the_second() {
    covers!("5508-REQ-2a");
    for seconds in [30, 60, 90] {
        let mut bed = Bed::new(settings().timers(|timeouts| timeouts.icmp = Duration::from_secs(seconds)));
        let external = bed.ping(I1, 7, E1);
        let reply = build::echo_reply(E1, *external.ip(), external.port()).build();
        bed.advance_secs(seconds - 1);
        bed.outside(&reply);
        assert_eq!(destination(&bed.only_inside()), at(I1, 7), "{seconds} s");
        bed.advance(Duration::from_millis(1_100));
        bed.outside(&reply);
        bed.assert_silent();
        assert_eq!(bed.mappings(), []);
    }
}

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
fn queries_are_not_hairpinned_by_a_napt() {
    covers!("5508-REQ-7");
    for mut bed in beds(&settings()) {
        let external = bed.ping(I2, 7, E1);
        bed.inside(&build::echo_request(I1, *external.ip(), external.port()).build());
        bed.inside(&build::echo_reply(I1, *external.ip(), external.port()).build());
        bed.assert_silent();
        assert_eq!(bed.mappings().len(), 1, "and no mapping is made for them");
    }
}

#[test]
fn without_resources_the_sender_gets_the_configured_code() {
    covers!("5508-REQ-8", "6888-REQ-11b");
    assert_eq!(IcmpPolicy::default().no_resources_code, Some(1));
    for code in [Some(1), Some(13), None] {
        let full = with_icmp(|icmp| icmp.no_resources_code = code).addresses(&POOL[..1]).ports(10_000, 10_000);
        for mut bed in beds(&full) {
            bed.open_udp(at(I1, 5000), at(E1, 9));
            bed.open_tcp(at(I1, 5000), at(E1, 9));
            let packets = [
                build::udp(at(I2, 5000), at(E1, 9)).payload(b"x").build(),
                build::tcp(at(I2, 5000), at(E1, 9), Flags::SYN).build(),
            ];
            for packet in packets {
                bed.inside(&packet);
                assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
                let Some(code) = code else {
                    bed.assert_silent();
                    continue;
                };
                let error = bed.only_inside();
                assert!(is_icmp(&error, 3, code));
                assert_eq!(destination(&error).ip(), &I2);
                assert_eq!(quote(&error), packet);
            }
            assert_eq!(bed.count(Verdict::PortsExhausted), 2);
        }
    }
}

#[test]
fn when_all_query_identifiers_are_in_use_the_sender_is_told() {
    covers!("5508-REQ-8", "6888-REQ-11a");
    let mut bed = Bed::new(settings().addresses(&POOL[..1]));
    let mut used = HashSet::new();
    // All but 0, which is never given out.
    for id in 0..u16::MAX {
        assert!(used.insert(bed.ping(I1, id, E1).port()), "identifier given twice");
    }
    assert!(!used.contains(&0));
    let query = build::echo_request(I2, E1, 7).build();
    bed.inside(&query);
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
    let error = bed.only_inside();
    assert!(is_icmp(&error, 3, 1));
    assert_eq!((destination(&error).ip(), quote(&error)), (&I2, &query[..]));
    assert_eq!(bed.count(Verdict::PortsExhausted), 1);
}

#[test]
fn own_errors_can_be_switched_off_and_transit_errors_pass() {
    covers!("5508-REQ-9", "5508-REQ-10a2");
    for (to_inside, to_outside) in [(true, true), (false, true), (true, false), (false, false)] {
        let wanted = with_icmp(|icmp| {
            (icmp.errors_to_inside, icmp.errors_to_outside) = (to_inside, to_outside);
        });
        let mut bed = Bed::new(wanted.mtu(1400, 1400));
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        let out = build::udp(at(I1, 5000), at(E1, 1000));
        let back = build::udp(at(E1, 1000), external);
        bed.inside(&out.clone().ttl(1).payload(b"1").build());
        bed.inside(&out.clone().dont_fragment().payload_length(1472).build());
        assert_eq!(bed.take_inside().len(), if to_inside { 2 } else { 0 });
        bed.outside(&back.clone().ttl(1).payload(b"1").build());
        bed.outside(&back.clone().dont_fragment().payload_length(1472).build());
        bed.outside(&build::udp(at(E1, 1000), at(OWN_OUTSIDE, 33_434)).payload(b"traceroute").build());
        assert_eq!(bed.take_outside().len(), if to_outside { 3 } else { 0 });

        bed.outside(&build::icmp_error(E1, *external.ip(), 3, 3, &build::udp(external, at(E1, 1000)).build()).build());
        assert!(is_icmp(&bed.only_inside(), 3, 3));
        bed.inside(&build::icmp_error(I1, E1, 3, 3, &build::udp(at(E1, 1000), at(I1, 5000)).build()).build());
        assert!(is_icmp(&bed.only_outside(), 3, 3));
    }
}

#[test]
fn too_big_reports_the_next_mtu_in_both_directions() {
    covers!("5508-REQ-10a1", "4787-REQ-13", "S12");
    for mut bed in beds(&settings().mtu(1300, 1400)) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(1_373).dont_fragment();
        bed.inside(&sent.build());
        assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
        let error = bed.only_inside();
        assert!(is_icmp(&error, 3, 4));
        assert_eq!(packet::icmp(&error).next_hop_mtu(), 1400);
        assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_INSIDE, &I1));
        assert_eq!(quote(&error), &sent.build()[..548], "as much as fits in 576 bytes (RFC 1812 §4.3.2.3)");

        let came = build::udp(at(E1, 1000), external).payload_length(1_273).dont_fragment();
        bed.outside(&came.build());
        let error = bed.only_outside();
        assert!(is_icmp(&error, 3, 4));
        assert_eq!(packet::icmp(&error).next_hop_mtu(), 1300);
        assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_OUTSIDE, &E1));
        assert_eq!(quote(&error), &came.build()[..548], "nothing of the inside is in it");
        assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new());

        // One byte less fits.
        bed.inside(&sent.payload_length(1_372).build());
        assert_eq!(bed.only_outside().len(), 1_400);
        bed.outside(&came.payload_length(1_272).build());
        assert_eq!(bed.only_inside().len(), 1_300);
    }
}

#[test]
fn without_dont_fragment_too_big_leaves_in_fragments() {
    covers!("5508-REQ-10a1", "4787-REQ-13a");
    for mut bed in beds(&settings().mtu(1300, 1400)) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(1_472).build();
        let came = build::udp(at(E1, 1000), external).payload_length(1_472).build();
        bed.inside(&sent);
        let out = bed.take_outside();
        bed.outside(&came);
        let back = bed.take_inside();
        for (pieces, mtu, whole) in [(out, 1_400, &sent), (back, 1_300, &came)] {
            assert_eq!(pieces.len(), 2);
            assert!(pieces.iter().all(|piece| piece.len() <= mtu));
            let joined = build::reassemble(&pieces).expect("they fit together");
            assert_eq!(wire::verify::faults(&joined), []);
            assert_eq!(payload(&joined), payload(whole));
        }
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

#[test]
fn ttl_expiry_is_answered_in_the_terms_of_the_sender() {
    covers!("5508-REQ-10a2", "S7");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        let before = bed.mappings();
        let out = [
            build::udp(at(I1, 5000), at(E1, 1000)).ttl(1).payload(b"old").build(),
            build::udp(at(I1, 5001), at(E1, 1000)).ttl(1).payload(b"new").build(),
            build::tcp(at(I1, 5001), at(E1, 1000), Flags::SYN).ttl(1).build(),
            build::echo_request(I1, E1, 7).ttl(1).build(),
        ];
        for packet in out {
            bed.inside(&packet);
            let error = bed.only_inside();
            assert!(is_icmp(&error, 11, 0));
            assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_INSIDE, &I1));
            assert_eq!(quote(&error), packet);
        }
        let packet = build::udp(at(E1, 1000), external).ttl(1).payload(b"back").build();
        bed.outside(&packet);
        let error = bed.only_outside();
        assert!(is_icmp(&error, 11, 0));
        assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_OUTSIDE, &E1));
        assert_eq!(quote(&error), packet);
        assert_eq!(bed.mappings(), before, "no mapping came of it, and no timer moved");
        assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new());
        // TTL 2 is enough.
        bed.inside(&build::udp(at(I1, 5000), at(E1, 1000)).ttl(2).payload(b"x").build());
        assert_eq!(ttl(&bed.only_outside()), 1);
    }
}

/// Sends messages of this type that quote a packet, and some that do not, from both sides.
fn assert_dropped(bed: &mut Bed, kind: u8, code: u8) {
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    let before = bed.counters().of(Verdict::IcmpTypeUnsupported);
    let outbound = build::udp(external, at(E1, 1000)).payload_length(40).build();
    let inbound = build::udp(at(E1, 1000), at(I1, 5000)).payload_length(40).build();
    bed.outside(&build::icmp_error(E1, *external.ip(), kind, code, &outbound).rest_of_header([192, 0, 2, 9]).build());
    bed.outside(&build::icmp_query(E1, *external.ip(), kind, external.port()).payload_length(8).build());
    bed.inside(&build::icmp_error(I1, E1, kind, code, &inbound).rest_of_header([192, 0, 2, 9]).build());
    bed.inside(&build::icmp_query(I1, E1, kind, 5000).payload_length(8).build());
    bed.assert_silent();
    assert_eq!(bed.counters().of(Verdict::IcmpTypeUnsupported), before + 4, "type {kind}");
}

#[test]
fn redirects_are_not_translated() {
    covers!("5508-REQ-10b1");
    for mut bed in beds(&settings()) {
        for code in 0..4 {
            assert_dropped(&mut bed, 5, code);
        }
    }
}

#[test]
fn messages_about_a_source_route_do_not_pass_and_leak_nothing() {
    covers!("5508-REQ-10b3");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        let mut expected = 0;
        for kind in [131, 137] {
            let [a, b, c, d] = I3.octets();
            let options = [kind, 7, 4, a, b, c, d, 0];
            let inbound = build::udp(at(E1, 1000), at(I1, 5000)).payload_length(40);
            let outbound = build::udp(external, at(E1, 1000)).payload_length(40);
            for (icmp_type, code) in errors() {
                // In the quoted header, in the outer one, and behind harmless options.
                let shifted: Vec<u8> = [1, 1, 1].into_iter().chain(options).collect();
                for route in [&options[..], &shifted] {
                    let quoted = inbound.clone().ip_options(route).build();
                    bed.inside(&build::icmp_error(I1, E1, icmp_type, code, &quoted).build());
                    let error = build::icmp_error(I1, E1, icmp_type, code, &inbound.build());
                    bed.inside(&error.ip_options(route).build());
                    let quoted = outbound.clone().ip_options(route).build();
                    bed.outside(&build::icmp_error(E1, *external.ip(), icmp_type, code, &quoted).build());
                    let error = build::icmp_error(E1, *external.ip(), icmp_type, code, &outbound.build());
                    bed.outside(&error.ip_options(route).build());
                    expected += 4;
                }
            }
            bed.inside(&build::echo_request(I1, E1, 7).ip_options(&options).build());
            expected += 1;
        }
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::SourceRoute), expected);
    }
}

#[test]
fn address_mask_messages_are_not_translated() {
    covers!("5508-REQ-10b4");
    for mut bed in beds(&settings()) {
        for kind in [17, 18] {
            assert_dropped(&mut bed, kind, 0);
        }
    }
}

#[test]
fn the_pointer_of_a_parameter_problem_stays() {
    covers!("5508-REQ-10b5");
    for mut bed in beds(&settings()) {
        let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(40).dont_fragment().build();
        bed.inside(&sent);
        let left = bed.only_outside();
        let came = build::udp(at(E1, 1000), source(&left)).payload_length(40).dont_fragment().build();
        bed.outside(&came);
        let arrived = bed.only_inside();
        for pointer in [0, 1, 8, 20, 22, 59, 255] {
            let error = build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), 12, 0, &left);
            bed.outside(&error.rest_of_header([pointer, 0, 0, 0]).build());
            let error = bed.only_inside();
            assert_eq!((error[24], quote(&error)), (pointer, &behind_a_hop(&sent)[..]));
            bed.inside(&build::icmp_error(I1, E1, 12, 0, &arrived).rest_of_header([pointer, 0, 0, 0]).build());
            let error = bed.only_outside();
            assert_eq!((error[24], quote(&error)), (pointer, &behind_a_hop(&came)[..]));
        }
    }
}

#[test]
fn router_advertisements_and_solicitations_are_not_translated() {
    covers!("5508-REQ-10b6");
    for mut bed in beds(&settings()) {
        for kind in [9, 10] {
            assert_dropped(&mut bed, kind, 0);
        }
    }
}

#[test]
fn source_quench_is_dropped() {
    covers!("5508-REQ-10c1");
    for mut bed in beds(&settings()) {
        assert_dropped(&mut bed, 4, 0);
    }
}

#[test]
fn information_requests_and_replies_are_dropped() {
    covers!("5508-REQ-10c2");
    for mut bed in beds(&settings()) {
        for kind in [15, 16] {
            assert_dropped(&mut bed, kind, 0);
        }
    }
}

#[test]
fn own_errors_have_the_dscp_of_the_packet_they_are_about() {
    covers!("5508-REQ-10d");
    let full = settings().addresses(&POOL[..1]).ports(10_000, 10_000).mtu(1400, 1400);
    let mut bed = Bed::new(full);
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    for dscp in 0..64_u8 {
        // ECN "congestion experienced" is said about the packet, not about its error.
        let field = dscp << 2 | 3;
        let out = build::udp(at(I1, 5000), at(E1, 1000)).ds_field(field);
        let back = build::udp(at(E1, 1000), external).ds_field(field);
        bed.inside(&out.clone().ttl(1).payload(b"1").build());
        bed.inside(&out.clone().dont_fragment().payload_length(1472).build());
        bed.inside(&build::udp(at(I2, 5000), at(E1, 1000)).ds_field(field).payload(b"full").build());
        bed.outside(&back.clone().ttl(1).payload(b"1").build());
        bed.outside(&back.clone().dont_fragment().payload_length(1472).build());
        bed.outside(&build::tcp(at(E1, 1000), at(POOL[0], 9), Flags::SYN).ds_field(field).build());
        bed.advance_secs(8);
        let (inside, outside) = (bed.take_inside(), bed.take_outside());
        assert_eq!((inside.len(), outside.len()), (3, 3));
        for error in inside.iter().chain(&outside) {
            assert_eq!(packet::header(error).ds_field(), dscp << 2, "{error:02x?}");
            assert_eq!(packet::header(error).protocol(), 1);
        }
        bed.inside(&out.payload(b"keep alive").build());
        bed.take_outside();
    }
}

#[test]
fn nothing_is_said_about_packets_that_rfc_1812_excludes() {
    covers!("5508-REQ-10e", "S11");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        bed.open_tcp(at(I1, 5000), at(E1, 1000));
        // ICMP errors, with every code, and messages that could be errors for all we know.
        let outbound = build::udp(external, at(E1, 1000)).payload_length(40).build();
        let inbound = build::udp(at(E1, 1000), at(I1, 5000)).payload_length(40).build();
        for (kind, code) in errors().chain([(4, 0), (5, 1), (1, 0), (6, 0), (40, 0), (253, 0)]) {
            bed.outside(&build::icmp_error(E1, *external.ip(), kind, code, &outbound).ttl(1).build());
            bed.inside(&build::icmp_error(I1, E1, kind, code, &inbound).ttl(1).build());
        }
        let [own, subnet, limited, group]: [Ipv4Addr; 4] =
            [OWN_INSIDE, [100, 64, 0, 255].into(), Ipv4Addr::BROADCAST, [224, 0, 0, 251].into()];
        // Broadcast and multicast.
        for to in [subnet, limited, group, [192, 0, 2, 255].into(), [239, 1, 1, 1].into(), [240, 0, 0, 1].into()] {
            for ttl in [1, 64] {
                bed.inside(&build::udp(at(I1, 5000), at(to, 137)).ttl(ttl).build());
                bed.outside(&build::udp(at(E1, 5000), at(to, 137)).ttl(ttl).build());
                bed.inside(&build::echo_request(I1, to, 7).ttl(ttl).build());
                bed.outside(&build::echo_request(E1, to, 7).ttl(ttl).build());
            }
        }
        // Later fragments.
        for id in 0..50 {
            let piece = build::raw(I1, E1, 17).identification(id).fragment_bits(185).payload_length(64).ttl(1);
            bed.inside(&piece.build());
            let piece = build::raw(E1, *external.ip(), 17).identification(id).fragment_bits(185).payload_length(64);
            bed.outside(&piece.ttl(1).build());
        }
        // Sources that cannot be a host's.
        for from in [limited, group, subnet, Ipv4Addr::UNSPECIFIED, [127, 0, 0, 1].into(), [250, 1, 1, 1].into()] {
            for to in [at(E1, 9), at(own, 9), external] {
                bed.inside(&build::udp(at(from, 9), to).ttl(1).build());
                bed.inside(&build::udp(at(from, 9), to).build());
            }
            for to in [external, at(OWN_OUTSIDE, 9)] {
                bed.outside(&build::udp(at(from, 9), to).ttl(1).build());
                bed.outside(&build::udp(at(from, 9), to).build());
            }
        }
        // Headers that fail validation.
        let mut broken = build::udp(at(I1, 5000), at(E1, 1000)).ttl(1).build();
        broken[10] ^= 1;
        bed.inside(&broken);
        let mut broken = build::udp(at(E1, 1000), external).ttl(1).build();
        broken[10] ^= 1;
        bed.outside(&broken);
        bed.advance_secs(10);
        bed.assert_silent();
        assert_eq!(bed.counters().originated, 0);
        // But an Echo is a query, and is answered.
        bed.inside(&build::echo_request(I1, E1, 7).ttl(1).build());
        assert!(is_icmp(&bed.only_inside(), 11, 0));
    }
}

#[test]
fn a_first_fragment_is_answered_and_later_ones_are_not() {
    covers!("5508-REQ-10e");
    for mut bed in beds(&settings()) {
        let whole = build::udp(at(I1, 5000), at(E1, 1000)).ttl(1).payload_length(3_000).build();
        for piece in build::fragment(&whole, 1_500) {
            bed.inside(&piece);
        }
        assert!(is_icmp(&bed.only_inside(), 11, 0));
        bed.assert_silent();
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn own_errors_are_limited_in_all_and_for_each_destination() {
    covers!("5508-REQ-10f", "S11");
    let policy = IcmpPolicy::default();
    let (total, each) = (policy.errors_per_second_max, policy.errors_per_second_per_destination_max);
    let mut bed = Bed::new(settings());
    let seconds = 3;
    let mut answered = [0_u32; 2];
    // 100 000 packets a second from one host, and one every 100 ms from another.
    for step in 0..seconds * 1_000 {
        let packets: Vec<_> = (0..100).map(|_| build::udp(at(I1, 5000), at(E1, 9)).ttl(1).build()).collect();
        bed.burst(Side::Inside, &packets);
        if step % 100 == 0 {
            bed.inside(&build::udp(at(I2, 5000), at(E1, 9)).ttl(1).build());
        }
        for error in bed.take_inside() {
            assert!(is_icmp(&error, 11, 0));
            answered[usize::from(destination(&error).ip() == &I2)] += 1;
        }
        bed.advance(Duration::from_millis(1));
    }
    let most = each * seconds + each;
    assert!((each * seconds..=most).contains(&answered[0]), "{answered:?}");
    assert_eq!(answered[1], 10 * seconds, "the quiet one gets all its answers");
    assert_eq!(bed.count(Verdict::TtlExpired), u64::from(seconds) * 100_010);
    let suppressed = bed.counters().icmp_errors_suppressed;
    assert_eq!(suppressed + bed.counters().originated, u64::from(seconds) * 100_010);

    // Many hosts: the sum is limited too.
    let mut bed = Bed::new(settings());
    for step in 0..1_000_u32 {
        let hosts = (0..100).map(|number| (step * 100 + number) * 7_919 % 65_536);
        let packets: Vec<_> =
            hosts.map(|host| build::udp(at((0x6441_0000 + host).into(), 5000), at(E1, 9)).ttl(1).build()).collect();
        bed.burst(Side::Inside, &packets);
        bed.advance(Duration::from_millis(1));
    }
    let answered = bed.take_inside().len() as u32;
    assert!((total..=total + total / 4 + 1).contains(&answered), "{answered}");
}

#[test]
fn each_worker_and_each_side_is_limited() {
    covers!("5508-REQ-10f");
    let workers = 4;
    let mut bed = Bed::new(settings()).workers(workers).steering(Steering::Random);
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    for _ in 0..1_000 {
        let packets: Vec<_> = (0..20).map(|_| build::udp(at(E1, 9), external).ttl(1).build()).collect();
        bed.burst(Side::Outside, &packets);
        bed.advance(Duration::from_millis(1));
    }
    let each = settings().icmp.errors_per_second_per_destination_max as usize;
    let answered = bed.take_outside().len();
    // One flow is the work of one worker, no matter which worker receives it.
    assert!((each..=2 * each).contains(&answered), "{answered}");
}

#[test]
fn messages_that_are_neither_query_nor_error_are_dropped() {
    covers!("5508-REQ-11");
    for mut bed in beds(&settings()) {
        for kind in (0..=255).filter(|kind| ![0, 3, 8, 11, 12, 13, 14].contains(kind)) {
            assert_dropped(&mut bed, kind, 0);
        }
        // None of them costs a mapping.
        assert_eq!(bed.mappings().len(), 1);
    }
}
