//! RFC 3022, traditional NAT: bindings and the repair of headers.

use nat::Protocol;
use nat::Verdict;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

#[test]
fn later_sessions_of_an_internal_endpoint_use_its_binding() {
    covers!("3022-1");
    let mut bed = Bed::new(settings());
    let first = bed.open_tcp(at(I1, 5000), at(E1, 80));
    let second = bed.open_tcp(at(I1, 5000), at(E2, 80));
    assert_eq!(first, second);
    assert_eq!(bed.mappings().len(), 1);
    assert_eq!(bed.sessions().len(), 2);
}

#[test]
fn a_binding_ends_when_its_last_session_has_ended() {
    covers!("3022-2");
    let mut bed = Bed::new(settings().short_timers());
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    bed.advance_secs(9);
    assert!(bed.udp_reaches(at(E1, 1000), external, at(I1, 5000)));
    bed.advance_secs(2);
    assert!(!bed.udp_reaches(at(E1, 1000), external, at(I1, 5000)));
    assert_eq!(bed.mappings(), []);
    assert_eq!(bed.count(Verdict::NoMapping), 1);
}

#[test]
fn checksums_of_ten_thousand_random_packets_are_right_both_ways() {
    covers!("3022-3");
    let mut random = SmallRng::seed_from_u64(3022);
    let mut bed = Bed::new(settings());
    for _ in 0..5_000 {
        let internal = at(
            [100, 64 + random.random_range(0..64), random.random(), random.random_range(1..255)].into(),
            random.random_range(1..=u16::MAX),
        );
        let remote = at([198, 51, random.random(), random.random()].into(), random.random_range(1..=u16::MAX));
        let payload: Vec<u8> = (0..random.random_range(0..200)).map(|_| random.random()).collect();
        let is_tcp: bool = random.random();
        let packet = |from, to, flags| match is_tcp {
            true => build::tcp(from, to, flags).sequence(7).acknowledgment(9),
            false => build::udp(from, to),
        };
        if bed.counters().of(Verdict::Outbound) % 1_000 == 999 {
            bed.advance_secs(1);
        }
        bed.inside(&packet(internal, remote, Flags::SYN).payload(&payload).build());
        // The bed recomputes every checksum of what comes out.
        let external = source(&bed.only_outside());
        bed.outside(&packet(remote, external, Flags::SYN.union(Flags::ACK)).payload(&payload).build());
        assert_eq!(destination(&bed.only_inside()), internal);
    }
}

#[test]
fn udp_checksum_zero_stays_zero_both_ways() {
    covers!("3022-4");
    let mut bed = Bed::new(settings());
    bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).payload(b"plain").without_checksum().build());
    let out = bed.only_outside();
    assert_eq!(out[26..28], [0, 0]);
    bed.outside(&build::udp(at(E1, 9), source(&out)).payload(b"plain").without_checksum().build());
    assert_eq!(bed.only_inside()[26..28], [0, 0]);
}

#[test]
fn query_identifiers_differ_outside_and_are_restored_inside() {
    covers!("3022-5");
    let mut bed = Bed::new(settings().addresses(&POOL[..1]));
    let first = bed.ping(I1, 0x1234, E1);
    let second = bed.ping(I2, 0x1234, E1);
    assert_eq!(first.ip(), second.ip());
    assert_ne!(first.port(), second.port(), "two hosts share an address and got one identifier");
    for (external, host) in [(first, I1), (second, I2)] {
        bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).payload_length(32).build());
        let reply = bed.only_inside();
        assert_eq!(destination(&reply), at(host, 0x1234));
        assert_eq!(payload(&reply), payload(&build::echo_reply(E1, I1, 0).payload_length(32).build()));
    }
}

#[test]
fn odd_lengths_and_options_of_every_length_keep_checksums_right() {
    covers!("3022-6");
    let mut bed = Bed::new(settings());
    for words in 0..=10 {
        for payload in 0..9 {
            let ip_options = vec![1; words * 4];
            let tcp_options = vec![1; (10 - words) * 4];
            bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ip_options(&ip_options).payload_length(payload).build());
            let external = source(&bed.only_outside());
            bed.outside(&build::udp(at(E1, 9), external).ip_options(&ip_options).payload_length(payload).build());
            bed.only_inside();
            let syn =
                build::tcp(at(I1, 5000), at(E1, 80), Flags::SYN).ip_options(&ip_options).tcp_options(&tcp_options);
            bed.inside(&syn.payload_length(payload).build());
            bed.only_outside();
        }
    }
}

#[test]
fn an_error_from_a_router_is_put_into_the_terms_of_the_sender() {
    covers!("3022-7");
    let mut bed = Bed::new(settings());
    let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(40).build();
    bed.inside(&sent);
    let left = bed.only_outside();
    bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), 3, 1, &left).build());
    let error = bed.only_inside();
    assert_eq!(destination(&error).ip(), &I1);
    assert_eq!(source(&error).ip(), &OUTSIDE_ROUTER);
    let quote = quote(&error);
    assert_eq!(source(quote), at(I1, 5000));
    assert_eq!(destination(quote), at(E1, 1000));
    assert_eq!(quote[20..], sent[20..], "ports, checksum and payload are those that were sent");
}

#[test]
fn payloads_with_addresses_in_them_are_not_touched() {
    covers!("3022-8", "4787-REQ-10", "4787-REQ-10a", "5382-REQ-6");
    let mut bed = Bed::new(settings());
    let texts: [(u16, &[u8]); 5] = [
        (21, b"PORT 100,64,0,10,19,136\r\n"),
        (5060, b"REGISTER sip:e.example SIP/2.0\r\nContact: <sip:a@100.64.0.10:5060>\r\n\r\n"),
        (69, b"\0\x01file\0octet\0"),
        (554, b"SETUP rtsp://e/1 RTSP/1.0\r\nTransport: RTP/AVP;client_port=5000-5001\r\n\r\n"),
        (1720, &[3, 0, 0, 12, 100, 64, 0, 10, 19, 136, 0, 0]),
    ];
    for (port, text) in texts {
        bed.inside(&build::udp(at(I1, 5060), at(E1, port)).payload(text).build());
        assert_eq!(payload(&bed.only_outside()), text);
        let external = bed.connect(at(I1, 5061), at(E1, port));
        let segment = build::tcp(at(I1, 5061), at(E1, port), Flags::ACK.union(Flags::PSH));
        bed.inside(&segment.sequence(1_001).acknowledgment(5_001).payload(text).build());
        assert_eq!(payload(&bed.only_outside()), text);
        let answer = build::tcp(at(E1, port), external, Flags::ACK.union(Flags::PSH));
        bed.outside(&answer.sequence(5_001).acknowledgment(1_001).payload(text).build());
        assert_eq!(payload(&bed.only_inside()), text);
    }
}

#[test]
fn record_route_passes_untouched_and_source_routes_are_dropped() {
    covers!("3022-9");
    let mut bed = Bed::new(settings());
    let record_route = [7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ip_options(&record_route).payload(b"rr").build());
    let out = bed.only_outside();
    assert_eq!(out[20..32], record_route);
    for kind in [131, 137] {
        let source_route = [kind, 7, 4, 198, 51, 100, 2, 0];
        bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ip_options(&source_route).payload(b"sr").build());
        bed.outside(&build::udp(at(E1, 9), source(&out)).ip_options(&source_route).payload(b"sr").build());
    }
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::SourceRoute), 4);
}

#[test]
fn protocols_without_ports_are_dropped_and_counted() {
    covers!("3022-10", "6888-REQ-1");
    let mut bed = Bed::new(settings());
    for protocol in [2, 33, 47, 50, 51, 89, 132, 136, 253] {
        bed.inside(&build::raw(I1, E1, protocol).payload_length(40).build());
        bed.outside(&build::raw(E1, POOL[0], protocol).payload_length(40).build());
    }
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::ProtocolUnsupported), 18);
    assert_eq!(bed.mappings(), []);
}

#[test]
fn a_pass_rule_applies_between_its_prefixes_only() {
    covers!("3022-10");
    let inside = topology::prefix([100, 64, 0, 10], 32);
    let outside = topology::prefix([198, 51, 100, 1], 32);
    let mut bed = Bed::new(settings().pass(47, inside, outside));
    let gre = build::raw(I1, E1, 47).payload_length(60).build();
    bed.inside(&gre);
    let out = bed.only_outside();
    assert_eq!((source(&out).ip(), destination(&out).ip(), ttl(&out)), (&I1, &E1, 63));
    bed.outside(&build::raw(E1, I1, 47).payload_length(60).build());
    assert_eq!(destination(&bed.only_inside()).ip(), &I1);
    bed.inside(&build::raw(I2, E1, 47).payload_length(60).build());
    bed.inside(&build::raw(I1, E2, 47).payload_length(60).build());
    bed.outside(&build::raw(E2, I1, 47).payload_length(60).build());
    bed.outside(&build::udp(at(E1, 1), at(I1, 2)).payload_length(60).build());
    bed.assert_silent();
}

#[test]
fn equal_identifications_of_two_hosts_differ_outside() {
    covers!("3022-12");
    let mut bed = Bed::new(settings().addresses(&POOL[..1]));
    let mut identifications = Vec::new();
    for host in [I1, I2] {
        let whole = build::udp(at(host, 5000), at(E1, 9)).identification(77).payload_length(3_000).build();
        for fragment in build::fragment(&whole, 1_500) {
            bed.inside(&fragment);
        }
        let pieces = bed.take_outside();
        let ids: Vec<u16> = pieces.iter().map(|piece| packet::header(piece).identification()).collect();
        assert_eq!(ids.len(), 3);
        assert!(ids.iter().all(|id| *id == ids[0]), "pieces of one datagram have one identification");
        identifications.push(ids[0]);
        let joined = build::reassemble(&pieces).expect("the pieces fit together");
        assert!(wire::verify::faults(&joined).is_empty());
    }
    assert_ne!(identifications[0], identifications[1]);
    assert_eq!(bed.mappings().iter().filter(|mapping| mapping.protocol == Protocol::Udp).count(), 2);
}
