//! RFC 4787, behaviour for UDP. One test per requirement, in order.

use std::collections::HashSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::types::Side;
use testkit::*;
use wire::build;

const DATAGRAM: usize = 16;

/// Opens mappings of other subscribers until `count` exist.
fn fill(bed: &mut Bed, count: u32) {
    for number in 0..count {
        let host = (0x6441_0000 + number / 60).into();
        bed.offer(Side::Inside, &build::udp(at(host, 3_000 + (number % 60) as u16), at(E2, 9)).build());
        if number % 50 == 49 {
            bed.settle();
            bed.take_outside();
        }
    }
    bed.settle();
    bed.take_outside();
    bed.take_inside();
}

#[test]
fn a_mapping_serves_every_destination() {
    covers!("4787-REQ-1");
    let mut bed = Bed::new(settings());
    let mut firsts = Vec::new();
    for port in 5_000..6_000 {
        let first = bed.open_udp(at(I1, port), at(E1, 1000));
        assert_eq!(bed.open_udp(at(I1, port), at(E1, 1001)), first);
        assert_eq!(bed.open_udp(at(I1, port), at(E2, 1000)), first);
        firsts.push(first);
    }
    fill(&mut bed, 100_000);
    for (port, first) in (5_000..6_000).zip(firsts) {
        assert_eq!(bed.open_udp(at(I1, port), at(E2, 7)), first, "mapping changed under load");
    }
    assert!(bed.mappings().len() > 100_000);
}

#[test]
fn all_mappings_of_a_subscriber_share_one_address() {
    covers!("4787-REQ-2", "6888-REQ-2");
    let mut bed = Bed::new(settings());
    let mut addresses = HashSet::new();
    for number in 0..500 {
        let remote = at([198, 51, 100, (number % 50) as u8 + 1].into(), 9);
        addresses.insert(*bed.open_udp(at(I1, 5_000 + number), remote).ip());
        addresses.insert(*bed.open_tcp(at(I1, 5_000 + number), remote).ip());
        addresses.insert(*bed.ping(I1, 5_000 + number, *remote.ip()).ip());
    }
    assert_eq!(addresses.len(), 1);
}

#[test]
fn a_pool_needs_not_be_contiguous_and_all_of_it_is_used() {
    covers!("6888-REQ-3");
    let mut bed = Bed::new(settings());
    let used: HashSet<_> =
        (1..200).map(|host| *bed.open_udp(at([100, 64, 9, host].into(), 1), at(E1, 9)).ip()).collect();
    assert_eq!(used, HashSet::from(POOL));
}

#[test]
fn no_two_internal_endpoints_share_an_external_endpoint() {
    covers!("4787-REQ-3");
    let mut bed = Bed::new(settings().addresses(&POOL[..2]));
    let mut seen = HashSet::new();
    for number in 0..10_000 {
        for host in [I1, I2] {
            assert!(seen.insert(bed.open_udp(at(host, 5_000 + number), at(E1, 1000))), "external endpoint given twice");
        }
    }
}

#[test]
fn low_ports_map_to_low_ports_where_the_pool_has_them() {
    covers!("4787-REQ-3a");
    let mut bed = Bed::new(settings().ports(1, 65_535));
    for port in [1, 53, 500, 1023] {
        assert!(bed.open_udp(at(I1, port), at(E1, 9)).port() < 1024);
    }
    for port in [1024, 5_000, 65_535] {
        assert!(bed.open_udp(at(I1, port), at(E1, 9)).port() >= 1024);
    }
    // A pool without low ports gives others rather than nothing.
    let mut bed = Bed::new(settings());
    assert!(bed.open_udp(at(I1, 500), at(E1, 9)).port() >= 1024);
}

#[test]
fn parity_is_kept_where_the_pool_asks_for_it() {
    covers!("4787-REQ-4", "7857-8a");
    let mut bed = Bed::new(settings().parity());
    for port in 5_000..5_500 {
        assert_eq!(bed.open_udp(at(I1, port), at(E1, 9)).port() % 2, port % 2);
    }
    let mut bed = Bed::new(settings());
    let kept = (5_000..5_500).filter(|port| bed.open_udp(at(I1, *port), at(E1, 9)).port() % 2 == port % 2).count();
    assert!((180..320).contains(&kept), "without parity {kept} of 500 ports kept it by chance");
}

#[test]
fn a_mapping_outlives_120_s_of_silence() {
    covers!("4787-REQ-5");
    let mut bed = Bed::new(settings().timers(|timeouts| timeouts.udp = Duration::from_secs(120)));
    let external = bed.open_udp(at(I1, 5000), at(E1, 53));
    bed.advance_secs(119);
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 5000)));
}

#[test]
fn no_destination_port_shortens_the_timer() {
    covers!("4787-REQ-5a");
    let mut bed = Bed::new(settings());
    for port in [0, 1, 53, 123, 1023, 1024] {
        bed.open_udp(at(I1, 5_000 + port), at(E1, port.max(1)));
    }
    bed.advance_secs(299);
    assert_eq!(bed.mappings().len(), 6);
}

#[test]
fn the_timer_is_what_the_settings_say_to_the_second() {
    covers!("4787-REQ-5b");
    for seconds in [60, 300, 900] {
        let mut bed = Bed::new(settings().timers(|timeouts| {
            timeouts.udp = Duration::from_secs(seconds);
            timeouts.udp_unanswered = timeouts.udp;
        }));
        bed.open_udp(at(I1, 5000), at(E1, 9));
        bed.advance_secs(seconds - 1);
        assert_eq!(bed.mappings().len(), 1, "{seconds} s");
        bed.advance(Duration::from_millis(1_100));
        assert_eq!(bed.mappings().len(), 0, "{seconds} s");
    }
}

#[test]
fn by_default_a_mapping_lives_300_s() {
    covers!("4787-REQ-5c");
    assert_eq!(Settings::default().timeouts.udp, Duration::from_secs(300));
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    bed.advance_secs(299);
    assert!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)));
}

#[test]
fn outbound_packets_refresh() {
    covers!("4787-REQ-6");
    let mut bed = Bed::new(settings().short_timers());
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    for _ in 0..7 {
        bed.advance_secs(8);
        assert_eq!(bed.open_udp(at(I1, 5000), at(E1, 9)), external);
    }
    bed.advance_secs(3);
    assert!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)));
    // Another session of the same mapping refreshes the mapping too.
    bed.advance_secs(5);
    assert_eq!(bed.open_udp(at(I1, 5000), at(E2, 9)), external);
    bed.advance_secs(9);
    assert!(bed.udp_reaches(at(E2, 9), external, at(I1, 5000)));
}

#[test]
fn inbound_packets_refresh_only_where_the_settings_say_so() {
    covers!("4787-REQ-6a");
    for refresh in [false, true] {
        let wanted = settings().short_timers();
        let mut bed = Bed::new(if refresh { wanted.inbound_refresh() } else { wanted });
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        bed.advance_secs(8);
        assert!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)));
        bed.advance_secs(8);
        assert_eq!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)), refresh);
    }
}

fn reaches(filtering: Filtering) -> [bool; 3] {
    let mut bed = Bed::new(settings().filtering(filtering));
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    [at(E1, 1000), at(E1, 7777), at(E2, 7777)].map(|remote| bed.udp_reaches(remote, external, at(I1, 5000)))
}

#[test]
fn filtering_is_endpoint_independent_by_default_and_selectable() {
    covers!("4787-REQ-8", "4787-REQ-8a", "6888-REQ-7");
    assert_eq!(Filtering::default(), Filtering::EndpointIndependent);
    assert_eq!(reaches(Filtering::EndpointIndependent), [true, true, true]);
    assert_eq!(reaches(Filtering::AddressDependent), [true, true, false]);
    assert_eq!(reaches(Filtering::AddressAndPortDependent), [true, false, false]);
}

#[test]
fn a_filter_opens_with_each_destination() {
    covers!("4787-REQ-8");
    for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        let mut bed = Bed::new(settings().filtering(filtering));
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        for host in 1..60 {
            let remote = at([198, 51, 100, host].into(), 2_000);
            assert!(
                !bed.udp_reaches(remote, external, at(I1, 5000))
                    || host == 1 && filtering == Filtering::AddressDependent
            );
            assert_eq!(bed.open_udp(at(I1, 5000), remote), external);
            assert!(bed.udp_reaches(remote, external, at(I1, 5000)));
        }
    }
}

#[test]
fn subscribers_reach_each_other_by_their_external_endpoints() {
    covers!("4787-REQ-9", "4787-REQ-9a");
    for workers in [1, 2, 4] {
        let mut bed = Bed::new(settings()).workers(workers).steering(Steering::Random);
        let first = bed.open_udp(at(I1, 5000), at(E1, 9));
        let second = bed.open_udp(at(I2, 6000), at(E1, 9));
        bed.inside(&build::udp(at(I1, 5000), second).payload(b"hello").build());
        let arrived = bed.only_inside();
        assert_eq!((source(&arrived), destination(&arrived)), (first, at(I2, 6000)));
        bed.inside(&build::udp(at(I2, 6000), first).payload(b"hello yourself").build());
        let arrived = bed.only_inside();
        assert_eq!((source(&arrived), destination(&arrived)), (second, at(I1, 5000)));
        assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
        assert_eq!(bed.count(Verdict::Hairpin), 2);
    }
}

#[test]
fn a_hairpin_opens_a_mapping_like_any_other_destination() {
    covers!("4787-REQ-9", "4787-REQ-9a", "4787-REQ-1");
    let mut bed = Bed::new(settings());
    let second = bed.open_udp(at(I2, 6000), at(E1, 9));
    bed.inside(&build::udp(at(I1, 5000), second).payload(b"first").build());
    let seen = source(&bed.only_inside());
    assert!(POOL.contains(seen.ip()));
    assert_eq!(bed.open_udp(at(I1, 5000), at(E1, 9)), seen, "the Internet sees the same endpoint");
    // Also to oneself.
    bed.inside(&build::udp(at(I1, 5000), seen).payload(b"me").build());
    let arrived = bed.only_inside();
    assert_eq!((source(&arrived), destination(&arrived)), (seen, at(I1, 5000)));
}

#[test]
fn hairpins_obey_the_filter() {
    covers!("4787-REQ-9", "4787-REQ-8");
    let mut bed = Bed::new(settings().filtering(Filtering::AddressDependent).addresses(&POOL[..1]));
    let second = bed.open_udp(at(I2, 6000), at(E1, 9));
    bed.inside(&build::udp(at(I1, 5000), second).payload(b"knock").build());
    assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new());
    assert_eq!(bed.count(Verdict::Filtered), 1);
    let first = bed.open_udp(at(I1, 5000), at(E1, 9));
    bed.inside(&build::udp(at(I2, 6000), first).payload(b"come in").build());
    assert_eq!(destination(&bed.only_inside()), at(I1, 5000));
    bed.inside(&build::udp(at(I1, 5000), second).payload(b"thanks").build());
    assert_eq!(destination(&bed.only_inside()), at(I2, 6000));
}

#[test]
fn behaviour_is_the_same_in_a_full_table_as_in_an_empty_one() {
    covers!("4787-REQ-11");
    // 95 % of 3 x 20000 ports in use.
    let mut bed = Bed::new(settings().ports(20_000, 39_999));
    let early = bed.open_udp(at(I1, 5000), at(E1, 1000));
    fill(&mut bed, 57_300);
    let used = bed.ports_used();
    assert!(used >= 57_000, "{used}");
    for (host, port) in [(I1, 5000), (I2, 5000), (I3, 5000), (I2, 1), (I3, 65_535)] {
        let external = bed.open_udp(at(host, port), at(E1, 1000));
        assert_eq!(bed.open_udp(at(host, port), at(E2, 1001)), external, "mapping is endpoint-independent");
        assert!(bed.udp_reaches(at(E2, 7777), external, at(host, port)), "filtering is endpoint-independent");
    }
    assert_eq!(bed.open_udp(at(I1, 5000), at(E2, 3)), early);
}

#[test]
fn no_icmp_message_ends_or_refreshes_a_mapping() {
    covers!("4787-REQ-12");
    let mut bed = Bed::new(settings().short_timers());
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    let outbound = build::udp(external, at(E1, 1000)).payload_length(DATAGRAM).ttl(60).build();
    let inbound = build::udp(at(E1, 1000), at(I1, 5000)).payload_length(DATAGRAM).ttl(60).build();
    let before = bed.mappings();
    let kinds =
        (0..16).map(|code| (3, code)).chain([(4, 0), (5, 0), (5, 1), (11, 0), (11, 1), (12, 0), (12, 1), (12, 2)]);
    for (kind, code) in kinds.chain([(1, 0), (2, 0), (6, 0), (19, 0), (40, 0), (253, 0), (255, 255)]) {
        for from in [E1, OUTSIDE_ROUTER, E2] {
            bed.outside(&build::icmp_error(from, *external.ip(), kind, code, &outbound).build());
        }
        bed.inside(&build::icmp_error(I1, E1, kind, code, &inbound).build());
    }
    assert_eq!(bed.mappings(), before, "mapping and timer are as they were");
    bed.take_inside();
    bed.take_outside();
    bed.advance_secs(9);
    assert!(bed.udp_reaches(at(E1, 1000), external, at(I1, 5000)));
    bed.advance_secs(2);
    assert!(!bed.udp_reaches(at(E1, 1000), external, at(I1, 5000)));
}

#[test]
fn errors_of_type_3_pass_from_any_sender_with_any_code() {
    covers!("4787-REQ-12a", "4787-REQ-12b");
    let mut bed = Bed::new(settings());
    let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(DATAGRAM).build();
    bed.inside(&sent);
    let left = bed.only_outside();
    for code in 0..16 {
        for from in [E1, E2, OUTSIDE_ROUTER, [10, 9, 9, 9].into()] {
            bed.outside(&build::icmp_error(from, *source(&left).ip(), 3, code, &left).build());
            let error = bed.only_inside();
            assert!(is_icmp(&error, 3, code));
            assert_eq!((source(&error).ip(), destination(&error).ip()), (&from, &I1));
            assert_eq!(source(quote(&error)), at(I1, 5000));
        }
    }
}

#[test]
fn too_big_with_df_is_reported_with_the_mtu_and_dropped() {
    covers!("4787-REQ-13");
    let mut bed = Bed::new(settings().mtu(1500, 1400));
    let big = build::udp(at(I1, 5000), at(E1, 9)).payload_length(1472).dont_fragment().build();
    bed.inside(&big);
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
    let error = bed.only_inside();
    assert!(is_icmp(&error, 3, 4));
    assert_eq!(packet::icmp(&error).next_hop_mtu(), 1400);
    assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_INSIDE, &I1));
    assert_eq!(quote(&error)[..28], big[..28], "the packet as it was sent, with the inside source");
    assert_eq!(bed.mappings(), [], "no mapping for a packet that did not pass");

    let mut bed = Bed::new(settings().mtu(1400, 1500));
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    bed.outside(&build::udp(at(E1, 9), external).payload_length(1472).dont_fragment().build());
    let error = bed.only_outside();
    assert!(is_icmp(&error, 3, 4));
    assert_eq!(packet::icmp(&error).next_hop_mtu(), 1400);
    assert_eq!(source(quote(&error)), at(E1, 9));
    assert_eq!(destination(quote(&error)), external, "the quote shows nothing of the inside");
}

#[test]
fn too_big_without_df_leaves_in_fragments_in_order() {
    covers!("4787-REQ-13a");
    let mut bed = Bed::new(settings().mtu(1500, 1400));
    let big = build::udp(at(I1, 5000), at(E1, 9)).payload_length(1472).build();
    bed.inside(&big);
    let pieces = bed.take_outside();
    assert_eq!(pieces.len(), 2);
    assert!(pieces.iter().all(|piece| piece.len() <= 1400));
    assert_eq!(packet::header(&pieces[0]).fragment_offset_bytes(), 0);
    assert!(packet::header(&pieces[1]).fragment_offset_bytes() > 0, "in order");
    let whole = build::reassemble(&pieces).expect("they fit together");
    assert_eq!(wire::verify::faults(&whole), []);
    assert_eq!(payload(&whole), payload(&big));
    // Two such datagrams do not share an identification.
    bed.inside(&big);
    let other = bed.take_outside();
    assert_ne!(packet::header(&pieces[0]).identification(), packet::header(&other[0]).identification());
}

fn orders() -> [[usize; 3]; 6] {
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
}

#[test]
fn fragments_pass_in_every_order_and_late() {
    covers!("4787-REQ-14", "S4");
    for workers in [1, 3] {
        let mut bed = Bed::new(settings()).workers(workers).steering(Steering::Random);
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        for (number, order) in orders().into_iter().enumerate() {
            for pause in [0, 1_500] {
                let id = (number * 2 + usize::from(pause == 0)) as u16;
                let inbound = build::udp(at(E1, 9), external).identification(id).payload_length(4_000).build();
                let outbound = build::udp(at(I1, 5000), at(E1, 9)).identification(id).payload_length(4_000).build();
                for (side, whole) in [(Side::Outside, inbound), (Side::Inside, outbound)] {
                    let pieces = build::fragment(&whole, 1_500);
                    assert_eq!(pieces.len(), 3);
                    for (position, piece) in order.into_iter().enumerate() {
                        if position == 2 {
                            bed.advance(Duration::from_millis(pause));
                        }
                        bed.burst(side, &[pieces[piece].clone()]);
                    }
                    let out = if side == Side::Inside { bed.take_outside() } else { bed.take_inside() };
                    let joined = build::reassemble(&out).expect("all pieces came out");
                    assert_eq!(wire::verify::faults(&joined), [], "order {order:?}");
                    assert_eq!(payload(&joined), payload(&whole));
                    let ends = (source(&joined), destination(&joined));
                    let expected = if side == Side::Inside { (external, at(E1, 9)) } else { (at(E1, 9), at(I1, 5000)) };
                    assert_eq!(ends, expected);
                }
            }
        }
    }
}

#[test]
fn a_flood_of_incomplete_datagrams_hurts_no_other() {
    covers!("4787-REQ-14a");
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    let limits = settings().limits;
    for id in 0..20_000_u16 {
        let part = build::udp(at(E2, 9), external).identification(id).payload_length(100);
        let bits = if id % 2 == 0 { 0x2000 | (id % 8) } else { 185 };
        bed.outside(&part.fragment_bits(bits).build());
        let part = build::udp(at(I2, 9), at(E2, 9)).identification(id).payload_length(100);
        bed.inside(&part.fragment_bits(185).build());
        if id % 100 == 0 {
            bed.take_inside();
            assert!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)), "a whole packet passes at any time");
            bed.take_outside();
            assert_eq!(bed.open_udp(at(I1, 5000), at(E1, 9)), external);
        }
        assert!(bed.counters().fragments_held <= u64::from(limits.fragments_held_max), "memory is bounded");
    }
    let full = bed.count(Verdict::FragmentTableFull) + bed.count(Verdict::FragmentBuffersFull);
    assert!(full > 1_000, "{:?}", bed.verdicts());
    // Two seconds later fragments pass again.
    bed.advance_secs(3);
    bed.take_inside();
    let whole = build::udp(at(E1, 9), external).payload_length(4_000).build();
    for piece in build::fragment(&whole, 1_500) {
        bed.outside(&piece);
    }
    assert_eq!(bed.take_inside().len(), 3);
    assert_eq!(bed.mappings().iter().filter(|mapping| mapping.protocol == Protocol::Udp).count(), 1);
}

#[test]
fn fragments_in_order_pass_during_a_flood_of_others() {
    covers!("4787-REQ-14a");
    let mut bed = Bed::new(settings().limits(|limits| limits.fragmented_datagrams_max = 4_096));
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    for id in 0..4_000_u16 {
        bed.outside(&build::udp(at(E2, 9), external).identification(id).payload_length(100).fragment_bits(185).build());
        if id % 400 == 0 {
            let whole = build::udp(at(E1, 9), external).identification(id).payload_length(4_000).build();
            for piece in build::fragment(&whole, 1_500) {
                bed.outside(&piece);
            }
            assert_eq!(bed.take_inside().len(), 3);
        }
    }
}

#[test]
fn without_ports_packets_are_refused_and_nothing_is_evicted() {
    covers!("6888-REQ-11a", "6888-REQ-11b", "6888-REQ-11d");
    let mut bed = Bed::new(settings().addresses(&POOL[..1]).ports(10_000, 10_099));
    let all: Vec<_> = (0..100).map(|port| bed.open_udp(at(I1, 5_000 + port), at(E1, 9))).collect();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 100, "every port was given out");
    bed.inside(&build::udp(at(I2, 5000), at(E1, 9)).payload(b"one too many").build());
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
    let error = bed.only_inside();
    assert!(is_icmp(&error, 3, 1));
    assert_eq!((destination(&error).ip(), source(quote(&error))), (&I2, at(I2, 5000)));
    assert_eq!(bed.count(Verdict::PortsExhausted), 1);
    for (port, external) in (0..100).zip(all) {
        assert!(bed.udp_reaches(at(E2, 1), external, at(I1, 5_000 + port)));
    }
}

#[test]
fn full_tables_refuse_new_mappings_and_evict_none() {
    covers!("6888-REQ-11d", "S15");
    let mut bed = Bed::new(settings().limits(|limits| limits.mappings_max = 50));
    let all: Vec<_> = (0..50).map(|port| bed.open_udp(at(I1, 5_000 + port), at(E1, 9))).collect();
    bed.inside(&build::udp(at(I2, 5000), at(E1, 9)).payload(b"x").build());
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
    assert!(is_icmp(&bed.only_inside(), 3, 1));
    assert_eq!(bed.count(Verdict::MappingTableFull), 1);
    for (port, external) in (0..50).zip(all) {
        assert!(bed.udp_reaches(at(E2, 1), external, at(I1, 5_000 + port)));
    }

    let mut bed = Bed::new(settings().limits(|limits| limits.subscribers_max = 10));
    for host in 1..=10 {
        bed.open_udp(at([100, 64, 3, host].into(), 1), at(E1, 9));
    }
    bed.inside(&build::udp(at([100, 64, 3, 11].into(), 1), at(E1, 9)).payload(b"x").build());
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
    assert_eq!(bed.count(Verdict::SubscriberTableFull), 1);
    assert_eq!(bed.subscribers().len(), 10);
}
