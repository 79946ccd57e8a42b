//! Further traps: small things that break NATs, one test each.

use nat::Duration;
use nat::Instant;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::tcp::TcpState;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);

#[test]
fn echo_and_timestamp_queries_share_one_identifier_mapping() {
    covers!("T1", "5508-REQ-10b2");
    let mut bed = Bed::new(settings());
    let echo = bed.ping(I1, 7, E1);
    let timestamp =
        |source, destination, kind, id| build::icmp_query(source, destination, kind, id).payload_length(12).build();
    bed.inside(&timestamp(I1, E1, 13, 7));
    let external = source(&bed.only_outside());
    assert_eq!(external, echo);
    bed.outside(&timestamp(E1, *external.ip(), 14, external.port()));
    assert_eq!(destination(&bed.only_inside()), at(I1, 7));
    bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).payload_length(32).build());
    assert_eq!(destination(&bed.only_inside()), at(I1, 7));
    assert_eq!(bed.mappings().len(), 1);
}

#[test]
fn an_unsolicited_syn_ack_is_dropped_silently() {
    covers!("T2");
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    bed.outside(&build::tcp(at(E1, 80), external, SYN_ACK).build());
    let tcp = bed.open_tcp(at(I1, 5000), at(E1, 80));
    bed.outside(&build::tcp(at(E2, 80), tcp, SYN_ACK).build());
    bed.advance_secs(10);
    bed.assert_silent();
    assert_eq!(bed.sessions().len(), 2, "no session came of it");
}

#[test]
fn data_in_a_syn_passes() {
    covers!("T3", "5382-REQ-2");
    let mut bed = Bed::new(settings());
    let fast_open = [34, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    let syn = build::tcp(at(I1, 5000), at(E1, 80), Flags::SYN).tcp_options(&fast_open).payload(b"GET /").build();
    bed.inside(&syn);
    let out = bed.only_outside();
    assert_eq!(payload(&out), b"GET /");
    bed.outside(&build::tcp(at(E1, 80), source(&out), SYN_ACK).acknowledgment(6).payload(b"200").build());
    assert_eq!(payload(&bed.only_inside()), b"200");
    assert_eq!(bed.sessions()[0].state, Some(TcpState::Established));
}

#[test]
fn a_closed_connection_reopens_at_once() {
    covers!("T4", "S9");
    let mut bed = Bed::new(settings());
    let (inside, remote) = (at(I1, 5000), at(E1, 80));
    let external = bed.connect(inside, remote);
    bed.inside(&build::tcp(inside, remote, FIN_ACK).sequence(1_001).acknowledgment(5_001).build());
    bed.outside(&build::tcp(remote, external, FIN_ACK).sequence(5_001).acknowledgment(1_002).build());
    bed.inside(&build::tcp(inside, remote, Flags::ACK).sequence(1_002).acknowledgment(5_002).build());
    bed.take_inside();
    bed.take_outside();
    bed.inside(&build::tcp(inside, remote, Flags::SYN).sequence(90_000).build());
    assert_eq!(source(&bed.only_outside()), external);
    bed.outside(&build::tcp(remote, external, SYN_ACK).sequence(95_000).acknowledgment(90_001).build());
    bed.only_inside();
    bed.inside(&build::tcp(inside, remote, Flags::ACK).sequence(90_001).acknowledgment(95_001).build());
    bed.only_outside();
    assert_eq!(bed.sessions()[0].state, Some(TcpState::Established));
    bed.advance_secs(600);
    bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(95_001).payload(b"still here").build());
    assert_eq!(payload(&bed.only_inside()), b"still here");
}

#[test]
fn the_length_byte_of_an_extended_error_stays() {
    covers!("T5", "5508-REQ-3d");
    let mut bed = Bed::new(settings());
    bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).payload_length(300).build());
    let left = bed.only_outside();
    // One MPLS label stack entry (RFC 4950 §2).
    let object = [0, 8, 1, 1, 0, 1, 0x41, 1];
    for kind in [3, 11, 12] {
        let error =
            build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, 0, &left[..128]).extension(&object).build();
        bed.outside(&error);
        let arrived = bed.only_inside();
        assert_eq!(arrived[25], 32, "128 bytes are 32 words");
        assert_eq!(arrived[arrived.len() - 12..], error[error.len() - 12..]);
        assert_eq!(source(quote(&arrived)), at(I1, 5000));
    }
}

#[test]
fn a_header_with_options_is_translated_and_split() {
    covers!("T6");
    let mut bed = Bed::new(settings().mtu(1500, 600));
    // Router alert is copied into every fragment, record route only into the first (RFC 791 §3.1).
    let options = [148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0, 0];
    bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ip_options(&options).payload_length(1_000).build());
    let pieces = bed.take_outside();
    assert_eq!(pieces.len(), 2);
    assert_eq!(packet::header(&pieces[0]).options(), options);
    assert_eq!(packet::header(&pieces[1]).options(), [148, 4, 0, 0]);
    let whole = build::reassemble(&pieces).expect("they fit together");
    assert_eq!(wire::verify::faults(&whole), []);
}

#[test]
fn packets_from_own_or_external_addresses_are_forged() {
    covers!("T7", "S15");
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    let tcp = bed.connect(at(I1, 5000), at(E1, 80));
    for forged in [OWN_INSIDE, OWN_OUTSIDE, POOL[0], POOL[1], POOL[2]] {
        for port in [5000, external.port()] {
            bed.inside(&build::udp(at(forged, port), at(E1, 9)).build());
            bed.inside(&build::udp(at(forged, port), external).build());
            bed.inside(&build::tcp(at(forged, port), tcp, Flags::SYN).build());
            bed.inside(&build::echo_request(forged, OWN_INSIDE, 1).build());
        }
    }
    bed.assert_silent();
    assert!(bed.count(Verdict::SourceSpoofed) >= 30, "{:?}", bed.verdicts());
    // LAND: source and destination are the same external endpoint.
    bed.outside(&build::udp(external, external).payload(b"land").build());
    bed.outside(&build::udp(at(POOL[2], 5), external).payload(b"land").build());
    bed.outside(&build::tcp(tcp, tcp, Flags::SYN).build());
    bed.outside(&build::udp(at(OWN_OUTSIDE, 7), at(OWN_OUTSIDE, 7)).build());
    bed.advance_secs(10);
    let returned = bed.take_inside().iter().chain(&bed.take_outside()).map(|packet| source(packet)).collect::<Vec<_>>();
    assert_eq!(returned, [], "nothing comes of a packet to itself");
}

#[test]
fn a_subscriber_cannot_be_imitated_from_outside_to_another_one() {
    covers!("T7");
    let mut bed = Bed::new(settings());
    let first = bed.open_udp(at(I1, 5000), at(E1, 9));
    bed.inside(&build::udp(at(I2, 6000), first).payload(b"hairpin").build());
    let second = source(&bed.only_inside());
    bed.inside(&build::udp(at(I1, 5000), second).payload(b"hairpin").build());
    bed.take_inside();
    // Both mappings have a session with each other; its packets come from inside only.
    bed.outside(&build::udp(first, second).payload(b"forged").build());
    bed.outside(&build::udp(second, first).payload(b"forged").build());
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::SourceSpoofed), 2);
}

#[test]
fn impossible_destinations_are_dropped() {
    covers!("T8");
    let mut bed = Bed::new(settings());
    let bad = [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [239, 255, 255, 250],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
    ];
    for address in bad {
        for ttl in [1, 64] {
            bed.inside(&build::udp(at(I1, 5000), at(address.into(), 1900)).ttl(ttl).build());
            bed.inside(&build::tcp(at(I1, 5000), at(address.into(), 80), Flags::SYN).ttl(ttl).build());
            bed.inside(&build::echo_request(I1, address.into(), 1).ttl(ttl).build());
            bed.outside(&build::udp(at(E1, 5000), at(address.into(), 1900)).ttl(ttl).build());
        }
    }
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::DestinationInvalid), 56, "{:?}", bed.verdicts());
    assert_eq!(bed.mappings(), []);
}

#[test]
fn impossible_sources_are_dropped() {
    covers!("T8");
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    let bad = [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255, 255, 255, 255]];
    for address in bad {
        bed.inside(&build::udp(at(address.into(), 5000), at(E1, 9)).build());
        bed.outside(&build::udp(at(address.into(), 5000), external).build());
        bed.outside(&build::echo_request(address.into(), OWN_OUTSIDE, 9).build());
    }
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::SourceInvalid), 15, "{:?}", bed.verdicts());
}

#[test]
fn a_broadcast_of_the_inside_subnet_goes_nowhere() {
    covers!("T9");
    let mut bed = Bed::new(settings());
    let broadcast = [100, 64, 0, 255].into();
    bed.inside(&build::udp(at(I1, 5000), at(broadcast, 137)).build());
    bed.inside(&build::udp(at(I1, 5000), at([192, 0, 2, 255].into(), 137)).build());
    bed.inside(&build::udp(at(broadcast, 5000), at(E1, 9)).build());
    bed.outside(&build::udp(at(E1, 5000), at(broadcast, 137)).build());
    bed.assert_silent();
    assert_eq!(bed.mappings(), []);
}

#[test]
fn shared_address_space_as_destination_outside_is_not_forwarded() {
    covers!("T10");
    let mut bed = Bed::new(settings());
    bed.open_udp(at(I1, 5000), at(E1, 9));
    for to in [at(I1, 5000), at([100, 100, 1, 1].into(), 53)] {
        bed.outside(&build::udp(at(E1, 9), to).build());
        bed.outside(&build::tcp(at(E1, 9), to, Flags::SYN).build());
        bed.outside(&build::echo_request(E1, *to.ip(), 1).build());
    }
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::DestinationNotPool), 6);
}

#[test]
fn a_jumbo_packet_passes_whole_where_the_links_carry_it() {
    covers!("T11");
    let mut bed = Bed::new(settings().mtu(9_000, 9_000));
    bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).payload_length(8_972).dont_fragment().build());
    let out = bed.only_outside();
    assert_eq!(out.len(), 9_000);
    bed.outside(&build::udp(at(E1, 9), source(&out)).payload_length(8_972).dont_fragment().build());
    assert_eq!(bed.only_inside().len(), 9_000);
}

#[test]
fn a_packet_that_is_dropped_leaves_no_mapping_and_no_session() {
    covers!("T14", "S7");
    let mut bed = Bed::new(settings().limits(|limits| limits.sessions_per_mapping_max = 2).mtu(1500, 1400));
    bed.inside(&build::udp(at(I1, 1), at(E1, 9)).ttl(1).build());
    bed.inside(&build::udp(at(I1, 2), at(E1, 9)).ttl(0).build());
    bed.inside(&build::udp(at(I1, 3), at(E1, 9)).payload_length(1_472).dont_fragment().build());
    bed.inside(&build::udp(at([10, 0, 0, 1].into(), 4), at(E1, 9)).build());
    bed.inside(&build::udp(at(I1, 5), at(POOL[1], 40_000)).build());
    bed.inside(&build::tcp(at(I1, 6), at(E1, 80), Flags::ACK).build());
    bed.inside(&build::tcp(at(I1, 7), at(E1, 80), Flags::RST).build());
    bed.inside(&build::tcp(at(I1, 8), at(E1, 80), Flags::SYN.union(Flags::RST)).build());
    bed.inside(&build::udp(at(I1, 9), at(E1, 9)).fragment_bits(185).payload_length(64).build());
    bed.inside(&build::echo_reply(I1, E1, 10).build());
    assert_eq!(bed.mappings(), []);
    assert_eq!(bed.ports_used(), 0);
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());

    let external = bed.open_tcp(at(I1, 5000), at(E1, 80));
    bed.outside(&build::tcp(at(E2, 80), external, Flags::SYN).ttl(1).build());
    assert_eq!(bed.sessions().len(), 1);
}

#[test]
fn a_clock_step_expires_nothing_that_packets_keep_alive() {
    covers!("T16");
    let mut bed = Bed::new(settings()).clock(Instant::ORIGIN);
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    let tcp = bed.connect(at(I1, 5000), at(E1, 80));
    // The engine has one clock, which never goes back, and gets the time with each packet: a pause
    // of the process (suspend, a debugger) is a pause, and timers that outlast it go on.
    bed.jump(Duration::from_secs(299));
    assert!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)));
    bed.jump(Duration::from_secs(7_000));
    bed.outside(&build::tcp(at(E1, 80), tcp, Flags::ACK).sequence(5_001).acknowledgment(1_001).payload(b"x").build());
    assert_eq!(bed.only_inside().len(), 41);
}

#[test]
fn timers_work_across_every_wrap_of_a_smaller_clock() {
    covers!("T17");
    // 2^32 µs, 2^32 ms (49.7 days), 2^40 µs, 2^44 µs, 2^47 µs (4.5 years). Records hold 8.9 years.
    for micros in [1_u64 << 32, (1 << 32) * 1_000, 1 << 40, 1 << 44, 1 << 47] {
        let start = Instant::from_micros(micros - 5_000_000);
        let mut bed = Bed::new(settings().short_timers()).clock(start);
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        bed.connect(at(I1, 5000), at(E1, 80));
        bed.advance_secs(9);
        assert!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)), "before and after {micros} µs");
        bed.advance_secs(2);
        assert!(!bed.udp_reaches(at(E1, 9), external, at(I1, 5000)), "after {micros} µs");
        bed.run_out();
    }
}

#[test]
fn port_zero_and_the_ends_of_the_range_work() {
    covers!("S13");
    let mut bed = Bed::new(settings().reserved(&[5350, 5351]));
    for port in [0, 1, 65_535] {
        let external = bed.open_udp(at(I1, port), at(E1, 9));
        assert_ne!(external.port(), 0);
        assert!(bed.udp_reaches(at(E1, 0), external, at(I1, port)));
        bed.inside(&build::udp(at(I1, port), at(E1, 0)).build());
        assert_eq!(source(&bed.only_outside()), external);
    }
    for identifier in [0, 0xffff] {
        let external = bed.ping(I1, identifier, E1);
        bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).build());
        assert_eq!(destination(&bed.only_inside()), at(I1, identifier));
    }
}

#[test]
fn a_million_allocations_stay_within_the_range_of_ports() {
    covers!("S13");
    let mut settings = settings().ports(1, 65_535).reserved(&[5350, 5351]).addresses(&POOL[..1]);
    // Each port is to be given out often.
    settings.pools[0].reuse_delay = Duration::ZERO;
    let settings = Settings {
        timeouts: nat::settings::Timeouts { udp: Duration::from_millis(50), ..settings.timeouts },
        ..settings
    };
    let mut bed = Bed::new(settings);
    for round in 0..100_u32 {
        let packets: Vec<Vec<u8>> = (0..10_000_u32)
            .map(|number| {
                build::udp(at((0x6440_0100 + number / 50).into(), (round * 50 + number % 50) as u16 + 1_024), at(E1, 9))
                    .build()
            })
            .collect();
        for part in packets.chunks(500) {
            bed.burst(Side::Inside, part);
            for packet in bed.take_outside() {
                let port = source(&packet).port();
                assert!(port != 0 && port != 5350 && port != 5351);
            }
            bed.take_inside();
        }
        bed.advance_secs(5);
    }
    let made: u64 = bed.counters().mappings_created.iter().sum();
    assert!(made >= 999_000, "{made} mappings were made");
}

#[test]
fn ended_sessions_free_their_room_while_the_mapping_lives() {
    let few = settings()
        .short_timers()
        .filtering(Filtering::AddressDependent)
        .limits(|limits| limits.extra_sessions_max = 10);
    let mut bed = Bed::new(few);
    for round in 0..20_u8 {
        for host in 0..10 {
            // Refused, and without a packet outside, if there were no room.
            bed.open_udp(at(I1, 5000), at([198, 51, round, host + 10].into(), 9));
        }
        bed.open_udp(at(I1, 5000), at(E1, 9));
        bed.advance_secs(6);
        bed.open_udp(at(I1, 5000), at(E1, 9));
        bed.advance_secs(6);
    }
    assert_eq!(bed.mappings().len(), 1);
    assert_eq!(bed.counters().mappings_created.iter().sum::<u64>(), 1, "one mapping all the time");
}

#[test]
fn packets_to_inside_addresses_do_not_leave_outside() {
    // RFC 6598 §4: they "MUST NOT be forwarded across Service Provider boundaries", whatever the
    // default route.
    let mut bed = Bed::new(settings());
    bed.inside(&build::udp(at(I1, 5000), at(I2, 6000)).build());
    assert!(is_icmp(&bed.only_inside(), 3, 0), "the sender learns that there is no way");
    bed.inside(&build::udp(at(I1, 5000), at([100, 127, 0, 1].into(), 6000)).build());
    assert!(bed.take_outside().is_empty());
    assert_eq!(bed.count(Verdict::NoRoute), 2);
    assert_eq!(bed.ports_used(), 0, "no mapping is made for them");
}

#[test]
fn inside_sources_are_not_believed_outside() {
    // RFC 2827 §4: a forged source speaks for one subscriber to another.
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    bed.outside(&build::udp(at(I2, 6000), external).build());
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::SourceSpoofed), 1);
}

#[test]
fn the_inside_address_of_natrix_does_not_answer_outside() {
    let mut bed = Bed::new(settings());
    bed.outside(&build::echo_request(E1, OWN_INSIDE, 7).build());
    bed.outside(&build::udp(at(E1, 9), at(OWN_INSIDE, 33_434)).build());
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::DestinationNotPool), 2);
}
