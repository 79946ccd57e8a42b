//! Errors that Natrix sends.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use nat::Duration;
use nat::Verdict;
use nat::settings::IcmpPolicy;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::beds;
use super::errors;
use super::with_icmp;

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
fn when_all_query_identifiers_are_used_the_sender_learns() {
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
