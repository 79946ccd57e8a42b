//! RFC 6146, stateful NAT64.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use testkit::bed6::*;
use testkit::packet::header;
use testkit::packet6::*;
use testkit::*;
use wire::build;

/// The endpoint of E1 as an IPv6 host knows it.
fn e1(port: u16) -> At6 {
    (behind(E1), port)
}

#[test]
fn a_datagram_and_its_answer_are_translated() {
    covers!("6146-1", "6146-27", "6146-28", "7915-5.5");
    let mut bed = Bed6::new(settings6());
    let [inside, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    assert!(inside.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Outbound));
    let mapped = source(&out[0]);
    assert!(POOL.contains(mapped.ip()));
    assert_eq!((destination(&out[0]), payload(&out[0]), ttl(&out[0])), (at(E1, 53), &b"question"[..], 63));

    let [back, out] = bed.outside(&build::udp(at(E1, 53), mapped).payload(b"answer").build());
    assert!(out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Inbound));
    assert_eq!((source6(&back[0]), destination6(&back[0])), (e1(53), (v6(C6), 5_000)));
    assert_eq!((&back[0][48..], view6(&back[0]).hop_limit()), (&b"answer"[..], 63));
}

#[test]
fn a_mapping_of_an_ipv6_host_serves_all_destinations() {
    covers!("6146-5", "6146-17");
    let mut bed = Bed6::new(settings6());
    let mut mapped = Vec::new();
    for (remote, port) in [(E1, 53), (E1, 54), (E2, 53)] {
        let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (behind(remote), port), b"x"));
        mapped.push(source(&out[0]));
    }
    assert!(mapped.iter().all(|one| *one == mapped[0]));
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), b""));
    assert_eq!(source(&out[0]).ip(), mapped[0].ip(), "one IPv4 address for all protocols");
}

#[test]
fn parity_and_class_of_ports_are_those_of_ipv4_hosts() {
    covers!("6146-17");
    let mapped = |bed: &mut Bed6, port| {
        let [_, out] = bed.inside(&udp6((v6(C6), port), e1(53), b"x"));
        source(&out[0]).port()
    };
    let mut settings = settings6().parity();
    settings.pools[0].port_min = 1;
    let mut bed = Bed6::new(settings);
    for port in (500..600).chain(5_000..5_200) {
        let external = mapped(&mut bed, port);
        assert_eq!((external % 2, external < 1_024), (port % 2, port < 1_024), "{port}");
    }
    // Without the option, ports are random.
    let mut bed = Bed6::new(settings6());
    let kept = (5_000..5_500).filter(|port| mapped(&mut bed, *port) % 2 == port % 2).count();
    assert!((180..320).contains(&kept), "without parity {kept} of 500 ports kept it by chance");
}

#[test]
fn a_connection_is_translated_both_ways() {
    covers!("6146-20");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), b""));
    let mapped = source(&out[0]);
    bed.advance(Duration::from_secs(239));
    let [back, _] = bed.outside(&build::tcp(at(E1, 80), mapped, wire::tcp::Flags(0x12)).build());
    assert_eq!(destination6(&back[0]), (v6(C6), 5_000), "the SYN-ACK passes within 240 s");
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 0x10, (2, 1), b"GET /"));
    assert_eq!((source(&out[0]), payload(&out[0])), (mapped, &b"GET /"[..]));
}

#[test]
fn a_ping_is_translated_both_ways() {
    covers!("7915-4.2a", "7915-5.2a");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&ping6(v6(C6), behind(E1), 77));
    let mapped = identifier(&out[0]);
    let reply = build::echo_reply(E1, *source(&out[0]).ip(), mapped).build();
    let [back, _] = bed.outside(&reply);
    assert_eq!(icmp6_of(&back[0]).0, 129);
    assert_eq!(icmp6_of(&back[0]).2 >> 16, 77);
    assert_eq!(view6(&back[0]).source(), behind(E1));
}

#[test]
fn hosts_reach_each_other_by_their_ipv4_endpoints() {
    covers!("6146-29");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(D6), 7_000), e1(53), b"x"));
    let of_d = source(&out[0]);
    let [inside, out] = bed.inside(&udp6((v6(C6), 5_000), (behind(*of_d.ip()), of_d.port()), b"hello"));
    assert!(out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Hairpin));
    assert_eq!(destination6(&inside[0]), (v6(D6), 7_000));
    let (from, port) = source6(&inside[0]);
    assert!(translate::Prefix::WELL_KNOWN.contains(from), "the source is the sender's IPv4 endpoint");
    let [inside, _] = bed.inside(&udp6((v6(D6), 7_000), (from, port), b"hello you"));
    assert_eq!((destination6(&inside[0]), &inside[0][48..]), ((v6(C6), 5_000), &b"hello you"[..]));
}

#[test]
fn errors_of_routers_outside_reach_the_host() {
    covers!("6146-6", "6146-13", "7915-4.2b", "7915-4.3");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let error = build::icmp_error(E2, *source(&out[0]).ip(), 3, 3, &out[0]).build();
    let [back, _] = bed.outside(&error);
    assert_eq!(icmp6_of(&back[0]), (1, 4, 0));
    assert_eq!((view6(&back[0]).source(), view6(&back[0]).destination()), (behind(E2), v6(C6)));
    let quoted = &back[0][48..];
    assert_eq!((source6(quoted), destination6(quoted)), ((v6(C6), 5_000), e1(53)));
}

#[test]
fn no_ipv4_host_reports_about_a_host_by_its_number() {
    covers!("6146-6");
    let mut bed = Bed6::new(settings6());
    bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let subscriber = Ipv4Addr::new(100, 64, 0, 10);
    bed.inside(&build::udp(at(subscriber, 5_000), at(E1, 53)).build());
    let error = |about: Ipv4Addr| {
        let quote = build::udp(at(E1, 53), at(about, 5_000)).payload(b"answer").build();
        build::icmp_error(subscriber, E1, 3, 3, &quote).build()
    };
    for number in 0xe000_0000_u32..0xe000_0010 {
        let [_, out] = bed.inside(&error(number.into()));
        assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::IcmpQuoteNoMapping)), "{number:x}");
    }
    let [_, out] = bed.inside(&error(subscriber));
    assert_eq!((out.len(), bed.verdict()), (1, Some(Verdict::Outbound)), "about itself");
}

#[test]
fn nobody_outside_speaks_for_natrix() {
    let mut bed = Bed6::new(settings6());
    let dummy = Ipv4Addr::new(192, 0, 0, 8);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let mapped = source(&out[0]);
    let [back, _] = bed.outside(&build::udp(at(dummy, 5_351), mapped).payload(b"forged").build());
    assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::SourceInvalid)));
    let [back, _] = bed.outside(&build::icmp_error(dummy, *mapped.ip(), 3, 1, &out[0]).build());
    assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::SourceInvalid)));
    let subscriber = Ipv4Addr::new(100, 64, 0, 10);
    let [_, out] = bed.inside(&build::udp(at(subscriber, 5_000), at(dummy, 53)).build());
    assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::DestinationInvalid)), "nor is it a destination");
}

#[test]
fn private_sources_are_not_put_behind_the_well_known_prefix() {
    covers!("6052-5", "7915-4.1f");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let mapped = source(&out[0]);
    let [_, out] = bed.inside(&ping6(v6(C6), behind(E1), 77));
    let pinged = source(&out[0]);
    let from = |text: &str, verdict| (text.parse::<Ipv4Addr>().expect("an address"), verdict);
    for (private, verdict) in [
        from("10.0.0.1", Verdict::EmbeddedPrivate),
        from("172.16.0.1", Verdict::EmbeddedPrivate),
        from("172.31.255.255", Verdict::EmbeddedPrivate),
        from("192.168.1.1", Verdict::EmbeddedPrivate),
        from("192.0.0.170", Verdict::EmbeddedPrivate),
        from("169.254.1.1", Verdict::SourceInvalid),
        from("127.0.0.1", Verdict::SourceInvalid),
        from("0.0.0.1", Verdict::SourceInvalid),
    ] {
        for _ in 0..2 {
            let [back, out] = bed.outside(&build::udp(at(private, 53), mapped).payload(b"answer").build());
            assert_eq!((back.len(), out.len(), bed.verdict()), (0, 0, Some(verdict)), "{private}");
        }
        let [back, _] = bed.outside(&build::echo_reply(private, *pinged.ip(), pinged.port()).build());
        assert_eq!((back.len(), bed.verdict()), (0, Some(verdict)), "{private}");
    }
    for public in ["172.32.0.1", "192.0.1.1", "198.18.0.1", "8.8.8.8"] {
        let public: Ipv4Addr = public.parse().expect("an address");
        let [back, _] = bed.outside(&build::udp(at(public, 53), mapped).build());
        assert_eq!(source6(&back[0]), (behind(public), 53));
    }
    // A prefix of one's own leads there.
    let prefix = translate::Prefix::new(v6("2001:db8:64::"), 96).expect("a prefix");
    let mut settings = settings6();
    settings.transition.nat64[0].prefix = prefix;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (prefix.embed(E1.to_bits()), 53), b"question"));
    let private = Ipv4Addr::new(10, 0, 0, 1);
    let [back, _] = bed.outside(&build::udp(at(private, 53), source(&out[0])).build());
    assert_eq!(source6(&back[0]), (prefix.embed(private.to_bits()), 53));
    let [back, _] = bed.outside(&build::udp(at([169, 254, 0, 1].into(), 53), source(&out[0])).build());
    assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::SourceInvalid)));
}

#[test]
fn errors_of_private_routers_come_from_natrix() {
    covers!("6052-5");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[7; 1_300]));
    let router = Ipv4Addr::new(10, 9, 8, 7);
    let error = build::icmp_error(router, *source(&out[0]).ip(), 3, 4, &out[0]).next_hop_mtu(1_300).build();
    let [back, _] = bed.outside(&error);
    assert_eq!(icmp6_of(&back[0]), (2, 0, 1_320));
    assert_eq!((view6(&back[0]).source(), view6(&back[0]).destination()), (v6(OWN6), v6(C6)));
    let quoted = &back[0][48..];
    assert_eq!((source6(quoted), destination6(quoted)), ((v6(C6), 5_000), e1(53)));
    let link_local = Ipv4Addr::new(169, 254, 1, 1);
    let [back, _] = bed.outside(&build::icmp_error(link_local, *source(&out[0]).ip(), 3, 1, &out[0]).build());
    assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::SourceInvalid)));
}

#[test]
fn errors_quote_as_much_as_1280_bytes_hold() {
    covers!("4443-2.4a");
    let mut settings = settings6();
    settings.interfaces[1].mtu = 1_400;
    let mut bed = Bed6::new(settings);
    let large = udp6((v6(C6), 5_000), e1(53), &[7; 1_452]);
    let mut last = udp6((v6(C6), 5_001), e1(53), &[7; 1_400]);
    last[7] = 1;
    for (packet, expected) in [(large, (2, 0, 1_420)), (last, (3, 0, 0))] {
        let [inside, out] = bed.inside(&packet);
        assert!(out.is_empty());
        assert_eq!(icmp6_of(&inside[0]), expected);
        assert_eq!(inside[0].len(), 1_280);
        let quoted = &inside[0][48..];
        assert_eq!((quoted[..6] == packet[..6], &quoted[8..]), (true, &packet[8..quoted.len()]));
    }
    // A short packet is quoted whole.
    let mut short = udp6((v6(C6), 5_002), e1(53), &[7; 700]);
    short[7] = 1;
    let [inside, _] = bed.inside(&short);
    assert_eq!((inside[0].len(), &inside[0][88..]), (48 + short.len(), &short[40..]));
}

#[test]
fn a_duplicate_address_sends_nothing() {
    covers!("4862-5.4");
    let mut settings = settings6();
    settings.port_control.pcp = true;
    let mut bed = Bed6::new(settings.clone());
    bed.give_up_address(v6(OWN6));
    let mut expiring = udp6((v6(C6), 5_000), e1(53), b"question");
    expiring[7] = 1;
    assert_eq!(bed.inside(&expiring)[0], Vec::<Vec<u8>>::new(), "no address is left to send it from");
    let private = udp6((v6(C6), 5_000), (behind([10, 0, 0, 1].into()), 53), b"question");
    assert_eq!(bed.inside(&private)[0], Vec::<Vec<u8>>::new());
    assert_eq!(bed.answer6((v6(C6), 6_000), (v6(OWN6), 5_351), &[2; 24]), None);
    // Another address takes over.
    let other = v6("2001:db8:1::2");
    settings.ipv6.addresses.push(nat::settings::Address6 {
        interface: topology::INSIDE,
        address: other.into(),
        prefix_length: 64,
    });
    let mut bed = Bed6::new(settings);
    bed.give_up_address(v6(OWN6));
    for packet in [expiring, private] {
        let [inside, _] = bed.inside(&packet);
        assert_eq!(view6(&inside[0]).source(), other);
    }
    assert!(bed.answer6((v6(C6), 6_000), (other, 5_351), &[2; 24]).is_some());
}

#[test]
fn errors_from_inside_reach_the_remote_host() {
    covers!("6791-4");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let mapped = source(&out[0]);
    let [back, _] = bed.outside(&build::udp(at(E1, 53), mapped).payload(b"answer").build());
    // From a router that is no host of NAT64.
    let error = icmp6_message(v6("2001:db8:ff::1"), behind(E1), (2, 0), 1_400, &back[0]);
    let [_, out] = bed.inside(&error);
    assert_eq!(bed.verdict(), Some(Verdict::Outbound));
    assert_eq!(source(&out[0]).ip(), mapped.ip());
    let message = &out[0][20..];
    assert_eq!((message[0], message[1]), (3, 4));
    assert_eq!(u16::from_be_bytes([message[6], message[7]]), 1_380);
    assert_eq!((source(&message[8..]), destination(&message[8..])), (at(E1, 53), mapped));
}

#[test]
fn own_errors_come_from_an_ipv6_address_of_natrix() {
    let mut bed = Bed6::new(settings6());
    let mut packet = udp6((v6(C6), 5_000), e1(53), b"question");
    packet[7] = 1;
    let [inside, out] = bed.inside(&packet);
    assert!(out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::TtlExpired));
    assert_eq!(icmp6_of(&inside[0]), (3, 0, 0));
    assert_eq!((view6(&inside[0]).source(), view6(&inside[0]).destination()), (v6(OWN6), v6(C6)));
    let quoted = &inside[0][48..];
    assert_eq!((source6(quoted), destination6(quoted)), ((v6(C6), 5_000), e1(53)));
}

#[test]
fn fragments_in_any_order_leave_as_one_datagram() {
    covers!("6146-8", "7915-5.1.1a");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 3_000]);
    let fragments = fragments6(&whole, &[1_232, 1_232], 0xabcd_0001);
    let mut left = Vec::new();
    for fragment in fragments.iter().rev() {
        let [inside, out] = bed.inside(fragment);
        assert!(inside.is_empty());
        left.extend(out);
        bed.advance(Duration::from_millis(600));
    }
    assert_eq!(left.len(), 3);
    let whole = build::reassemble(&left).expect("all fragments of one datagram");
    assert_eq!((destination(&whole), payload(&whole)), (at(E1, 53), &[7; 3_000][..]));
}

#[test]
fn datagrams_with_equal_low_identifications_do_not_mix() {
    covers!("6146-8");
    let mut bed = Bed6::new(settings6());
    let datagrams = [5_000_u16, 5_001].map(|port| udp6((v6(C6), port), e1(53), &[port as u8; 2_000]));
    let one = fragments6(&datagrams[0], &[1_232], 0x0001_1234);
    let two = fragments6(&datagrams[1], &[1_232], 0x0002_1234);
    let mut left = Vec::new();
    for fragment in [&one[1], &two[1], &two[0], &one[0]] {
        left.extend(bed.inside(fragment)[1].clone());
    }
    assert_eq!(left.len(), 4);
    let identification = |packet: &Vec<u8>| u16::from_be_bytes([packet[4], packet[5]]);
    let mut groups: Vec<Vec<Vec<u8>>> = Vec::new();
    for packet in left {
        match groups.iter_mut().find(|group| identification(&group[0]) == identification(&packet)) {
            Some(group) => group.push(packet),
            None => groups.push(vec![packet]),
        }
    }
    let mut payloads: Vec<Vec<u8>> =
        groups.iter().map(|group| payload(&build::reassemble(group).expect("whole")).to_vec()).collect();
    payloads.sort();
    let mut expected = [5_000_u16, 5_001].map(|port| vec![port as u8; 2_000]);
    expected.sort();
    assert_eq!(payloads, expected);
}

#[test]
fn overlapping_and_tiny_fragments_are_dropped_by_name() {
    covers!("6146-9");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 2_000]);
    let one = fragments6(&whole, &[1_232], 1);
    bed.inside(&one[0]);
    let overlapping = fragments6(&whole, &[1_224], 1);
    let [_, out] = bed.inside(&overlapping[1]);
    assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::FragmentOverlap)));
    let tcp = tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), &[0; 64]);
    let tiny = fragments6(&tcp, &[16], 2);
    bed.inside(&tiny[0]);
    assert_eq!(bed.verdict(), Some(Verdict::FragmentTiny));
}

#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), b"atomic");
    let atomic = fragments6(&whole, &[], 0x77);
    assert_eq!(atomic.len(), 1);
    let [_, out] = bed.inside(&atomic[0]);
    assert_eq!((payload(&out[0]), header(&out[0]).is_fragment()), (&b"atomic"[..], false));
}

#[test]
fn udp_without_checksum_gets_one() {
    covers!("6146-10");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let mapped = source(&out[0]);
    let answer = build::udp(at(E1, 53), mapped).payload(b"answer").without_checksum().build();
    // The bed checks that the checksum is right.
    let [back, _] = bed.outside(&answer);
    assert_ne!(&back[0][46..48], [0, 0]);
}

#[test]
fn sizes_and_dont_fragment_follow_the_rfc() {
    covers!("7915-4.1a", "7915-4.1b", "7915-4.1c", "7915-5a");
    let mut settings = settings6();
    settings.interfaces[0].mtu = 1_280;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[1; 1_232]));
    let mapped = source(&out[0]);
    assert!(!header(&out[0]).dont_fragment(), "1,280 bytes of IPv6 may be fragmented");

    let packet = |length: usize| build::udp(at(E1, 53), mapped).payload_length(length - 28);
    let [back, _] = bed.outside(&packet(500).build());
    assert_eq!((back.len(), view6(&back[0]).next_header()), (1, 17), "no Fragment header without need");
    let [back, out] = bed.outside(&packet(1_261).dont_fragment().build());
    assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::TooBig)));
    assert_eq!((out[0][20], out[0][21], u16::from_be_bytes([out[0][26], out[0][27]])), (3, 4, 1_260));
    let [back, _] = bed.outside(&packet(1_260).dont_fragment().build());
    assert_eq!(back[0].len(), 1_280);
    let [back, _] = bed.outside(&packet(1_500).identification(0x4242).build());
    assert!(back.len() > 1 && back.iter().all(|piece| piece.len() <= 1_280));
    let whole = wire::build6::reassemble(&back).expect("fragments of one packet");
    assert_eq!(whole.len(), 1_520);
}

#[test]
fn a_large_ipv6_packet_may_not_be_fragmented() {
    covers!("7915-5a", "7915-5.2c");
    let mut settings = settings6();
    settings.interfaces[1].mtu = 1_400;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[1; 1_233]));
    assert!(header(&out[0]).dont_fragment());
    let [inside, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[1; 1_400]));
    assert!(out.is_empty());
    assert_eq!(icmp6_of(&inside[0]), (2, 0, 1_420));
}

#[test]
fn without_a_free_port_the_host_is_unreachable() {
    covers!("6146-19", "6146-18");
    let mut settings = settings6().addresses(&POOL[..1]).ports(2_000, 2_003);
    settings.transition.hosts_per_subscriber_max = 10;
    let mut bed = Bed6::new(settings);
    let mut mapped = Vec::new();
    for port in 5_000..5_004 {
        let [_, out] = bed.inside(&udp6((v6(C6), port), e1(53), b"x"));
        mapped.push(source(&out[0]));
    }
    mapped.sort();
    mapped.dedup();
    assert_eq!(mapped.len(), 4, "no external port twice");
    let [inside, out] = bed.inside(&udp6((v6(C6), 6_000), e1(53), b"x"));
    assert!(out.is_empty());
    assert_eq!((bed.verdict(), icmp6_of(&inside[0])), (Some(Verdict::PortsExhausted), (1, 3, 0)));
}

#[test]
fn other_protocols_are_refused_with_an_error() {
    covers!("6146-11");
    let mut bed = Bed6::new(settings6());
    let [inside, out] = bed.inside(&packet6(v6(C6), behind(E1), 132, &[0; 20]));
    assert!(out.is_empty());
    assert_eq!((bed.verdict(), icmp6_of(&inside[0])), (Some(Verdict::ProtocolUnsupported), (1, 4, 0)));
}

#[test]
fn hostile_ipv6_packets_are_dropped_by_name() {
    covers!("6146-12", "6052-5", "7915-5.1b", "7915-5.1c");
    let mut bed = Bed6::new(settings6());
    let from = v6(C6);
    let drop = |bed: &mut Bed6, packet: &[u8], expected: Verdict| {
        let [_, out] = bed.inside(packet);
        assert_eq!((out.len(), bed.verdict()), (0, Some(expected)), "{packet:02x?}");
    };
    let to = |address: &str| behind(address.parse().expect("an IPv4 address"));
    for address in ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255", "240.0.0.5"] {
        drop(&mut bed, &udp6((from, 1), (to(address), 2), b"x"), Verdict::EmbeddedAddress);
    }
    for address in ["10.0.0.1", "192.168.7.7", "172.16.3.4", "100.64.0.10"] {
        drop(&mut bed, &udp6((from, 1), (to(address), 2), b"x"), Verdict::EmbeddedPrivate);
    }
    drop(&mut bed, &udp6((behind(E2), 1), e1(2), b"x"), Verdict::SourceInPrefix);
    for source in ["::", "::1", "ff02::1", "fe80::1", "::ffff:192.0.2.1"] {
        drop(&mut bed, &udp6((v6(source), 1), e1(2), b"x"), Verdict::SourceInvalid);
    }
    let whole = udp6((from, 1), e1(2), b"x");
    let with = |header: u8, body: &[u8]| wire::build6::with_extension(&whole, header, body);
    // A routing header of type 0 with segments left (RFC 5095).
    drop(&mut bed, &with(43, &[0, 0, 1, 0, 0, 0, 0]), Verdict::Ipv6Header);
    let mut many = whole.clone();
    for _ in 0..64 {
        many = wire::build6::with_extension(&many, 60, &[0, 1, 4, 0, 0, 0, 0]);
    }
    drop(&mut bed, &many, Verdict::Ipv6Header);
    let mut jumbogram = with(0, &[0, 0xc2, 4, 0, 1, 0, 0]);
    jumbogram[4..6].copy_from_slice(&[0, 0]);
    drop(&mut bed, &jumbogram, Verdict::Ipv6Header);
    drop(&mut bed, &whole[..39], Verdict::Ipv6Malformed);
    // Errors about errors, and a Packet Too Big that no link can mean.
    let error = icmp6_message(behind(E1), from, (1, 0), 0, &udp6((from, 1), e1(2), b"x"));
    drop(&mut bed, &icmp6_message(from, behind(E1), (1, 0), 0, &error), Verdict::IcmpQuoteMalformed);
    assert_eq!(bed.mappings(), 0, "nothing of all that made state");
}

#[test]
fn ipv4_packets_cannot_name_the_number_of_a_host() {
    let mut bed = Bed6::new(settings6());
    bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    for source in ["224.0.0.1", "224.0.0.2", "240.0.0.1", "255.255.255.254"] {
        let source = source.parse().expect("an address");
        bed.inside(&build::udp(at(source, 5_000), at(E1, 53)).build());
        assert_eq!(bed.verdict(), Some(Verdict::SourceInvalid));
    }
}

#[test]
fn no_inside_route_takes_packets_from_ipv6_hosts() {
    covers!("6146-5");
    let mut settings = settings6();
    let way = nat::settings::Route { interface: topology::INSIDE, ..settings.routes[0] };
    for (first, length) in [(224, 8), (232, 8), (240, 8), (248, 8), (224, 4), (240, 4)] {
        let prefix = topology::prefix([first, 0, 0, 0], length);
        settings.routes.push(nat::settings::Route { prefix, ..way });
    }
    let mut bed = Bed6::new(settings);
    for host in [C6, D6, "2001:db8:e::1"] {
        let [_, out] = bed.inside(&udp6((v6(host), 5_000), e1(53), b"x"));
        let [back, _] = bed.outside(&build::udp(at(E1, 53), source(&out[0])).build());
        assert_eq!(destination6(&back[0]), (v6(host), 5_000));
        let home = Ipv4Addr::new(192, 168, 1, 2);
        let [_, out] = bed.inside(&softwire(v6(host), v6(AFTR), &build::udp(at(home, 5_000), at(E1, 53)).build()));
        let [back, _] = bed.outside(&build::udp(at(E1, 53), source(&out[0])).build());
        assert_eq!(view6(&back[0]).destination(), v6(host));
    }
}

#[test]
fn many_sources_of_one_prefix_are_bounded_and_harmless() {
    covers!("6146-30");
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 64;
    let mut bed = Bed6::new(settings);
    for host in 0..1 << 20 {
        bed.inside(&udp6((v6("2001:db8:bad:100::") + host, 5_000), e1(53), b"x"));
    }
    assert_eq!((bed.mappings(), bed.count(Verdict::HostLimit)), (64, (1 << 20) - 64));
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    assert_eq!(out.len(), 1, "other subscribers are not affected");
}

#[test]
fn hosts_whose_packets_are_dropped_take_no_room() {
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 2;
    settings.transition.hosts_max = 20;
    let mut bed = Bed6::new(settings);
    let host = |prefix: u128, n: u128| v6(C6) + (prefix << 72) + n;
    // Of one prefix, and of more prefixes than the table has room for.
    for n in 1..100 {
        for source in [host(0, n), host(n, 0)] {
            let mut dropped = udp6((source, 5_000), e1(53), b"x");
            dropped[7] = 1;
            assert!(bed.inside(&dropped)[1].is_empty());
            assert_eq!(bed.verdict(), Some(Verdict::TtlExpired));
        }
    }
    for n in 200..202 {
        assert_eq!(bed.inside(&udp6((host(0, n), 5_000), e1(53), b"x"))[1].len(), 1);
    }
    assert!(bed.inside(&udp6((host(0, 202), 5_000), e1(53), b"x"))[1].is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::HostLimit));
}

#[test]
fn refused_hosts_are_events_with_their_prefix() {
    let refused = |bed: &mut Bed6| {
        let events = bed.take_events().into_iter().filter(|event| event.kind == EventKind::Refused);
        let events: Vec<_> = events.map(|event| (event.cause, event.subscriber, event.amount)).collect();
        let [(cause, subscriber, amount)] = events[..] else { panic!("one event: {events:?}") };
        (cause, subscriber, amount)
    };
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 2;
    let mut bed = Bed6::new(settings).record_events(64);
    for host in 0..5 {
        bed.inside(&udp6((v6("2001:db8:c:100::") + host, 5_000), e1(53), b"x"));
    }
    assert_eq!(bed.count(Verdict::HostLimit), 3);
    let (cause, subscriber, amount) = refused(&mut bed);
    assert_eq!((cause, amount), (Cause::Verdict(Verdict::HostLimit), 1), "one for many");
    assert!(nat::types::is_host_number(subscriber.to_bits()), "the number of a named prefix");
    let mut settings = settings6();
    settings.transition.hosts_max = 2;
    let mut bed = Bed6::new(settings).record_events(64);
    bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    bed.inside(&udp6((v6(D6), 5_000), e1(53), b"x"));
    assert_eq!(refused(&mut bed), (Cause::Verdict(Verdict::HostTableFull), Ipv4Addr::UNSPECIFIED, 1));
}

#[test]
fn a_prefix_leaves_room_for_fragments_of_others() {
    covers!("6146-30");
    let mut settings = settings6();
    settings.limits.fragmented_datagrams_max = 64;
    let mut bed = Bed6::new(settings);
    let begin = |source: u128| fragments6(&udp6((source, 5_000), e1(53), &[1; 2_000]), &[1_000], 1).swap_remove(0);
    for host in 0..64 {
        // Begun and never completed.
        bed.inside(&begin(v6("2001:db8:bad:100::") + host));
    }
    assert_eq!(bed.count(Verdict::FragmentTableFull), 56, "an eighth for each subscriber");
    let [_, out] = bed.inside(&begin(v6(C6)));
    assert_eq!(out.len(), 1, "other subscribers are not affected");
}

#[test]
fn a_prefix_is_one_subscriber_on_any_worker() {
    let mut settings = settings6();
    settings.subscriber.ports_max = [4; 3];
    for workers in [1, 3] {
        let mut bed = Bed6::with_workers(settings.clone(), workers);
        let mut mapped = Vec::new();
        for host in 0..6 {
            // Received by any worker.
            let packet = udp6((v6("2001:db8:c:1aa::") + host, 5_000), e1(53), b"x");
            let [_, out] = bed.receive(host as usize % workers, topology::INSIDE, &packet);
            mapped.extend(out.iter().map(|packet| source(packet)));
        }
        assert_eq!(mapped.len(), 4, "the quota is that of the prefix");
        assert!(mapped.iter().all(|one| one.ip() == mapped[0].ip()), "and so is the pairing");
        assert_eq!(bed.count(Verdict::SubscriberPortQuota), 2);
        for (host, mapped) in (0..4).zip(&mapped) {
            for worker in 0..workers {
                let answer = build::udp(at(E1, 53), *mapped).build();
                let [back, _] = bed.receive(worker, topology::OUTSIDE, &answer);
                assert_eq!(destination6(&back[0]), (v6("2001:db8:c:1aa::") + host, 5_000));
            }
        }
    }
}

#[test]
fn ipv4_and_ipv6_hosts_share_one_pool() {
    let mut bed = Bed6::new(settings6());
    let mut mapped = Vec::new();
    for port in 5_000..5_100 {
        mapped.push(source(&bed.inside(&build::udp(at(I1, port), at(E1, 53)).build())[1][0]));
        mapped.push(source(&bed.inside(&udp6((v6(C6), port), e1(53), b"x"))[1][0]));
        let inner = build::udp(at([192, 168, 1, 2].into(), port), at(E1, 53)).build();
        mapped.push(source(&bed.inside(&softwire(v6(D6), v6(AFTR), &inner))[1][0]));
    }
    let all = mapped.len();
    mapped.sort();
    mapped.dedup();
    assert_eq!((mapped.len(), all), (300, 300));
}

#[test]
fn a_host_ends_with_its_last_mapping() {
    covers!("6146-4", "6146-14");
    let mut settings = settings6();
    settings.transition.hosts_max = 3;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let mapped = source(&out[0]);
    bed.inside(&udp6((v6(D6), 5_000), e1(53), b"x"));
    assert_eq!(bed.verdict(), Some(Verdict::HostTableFull), "a host and its prefix take a record each");
    bed.advance(Duration::from_secs(299));
    let [back, _] = bed.outside(&build::udp(at(E1, 53), mapped).build());
    assert_eq!(destination6(&back[0]), (v6(C6), 5_000));
    bed.advance(Duration::from_secs(400));
    assert_eq!(bed.mappings(), 0);
    let [_, out] = bed.inside(&udp6((v6(D6), 5_000), e1(53), b"x"));
    assert_eq!(out.len(), 1, "the records are free again");
}

#[test]
fn prefixes_of_all_lengths_reach_the_address_inside() {
    covers!("6146-26", "6052-3", "6052-4");
    for (text, length) in [
        ("2001:db8::", 32),
        ("2001:db8:100::", 40),
        ("2001:db8:122::", 48),
        ("2001:db8:122:300::", 56),
        ("2001:db8:122:344::", 64),
        ("2001:db8:122:344::", 96),
    ] {
        let mut settings = settings6();
        let prefix = translate::Prefix::new(v6(text), length).expect("a prefix");
        settings.transition.nat64[0].prefix = prefix;
        settings.ipv6.addresses[0].address = v6("fd00::1").into();
        let mut bed = Bed6::new(settings);
        let host = v6("fd00:6::6");
        // Bits behind the address are ignored, and not repeated.
        let suffix = if length == 96 { 0 } else { 0xff };
        let [_, out] = bed.inside(&udp6((host, 5_000), (prefix.embed(E1.to_bits()) | suffix, 53), b"x"));
        assert_eq!(destination(&out[0]), at(E1, 53), "{text}/{length}");
        let [back, _] = bed.outside(&build::udp(at(E1, 53), source(&out[0])).build());
        assert_eq!(source6(&back[0]), (prefix.embed(E1.to_bits()), 53), "{text}/{length}");
    }
}

/// A bed in which C6:5000 has a mapping of TCP, half open, and its endpoint outside.
fn half_open(settings: nat::Settings) -> (Bed6, core::net::SocketAddrV4) {
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), SYN, (1, 0), b""));
    let mapped = source(&out[0]);
    (bed, mapped)
}

/// The same, established.
fn established() -> (Bed6, core::net::SocketAddrV4) {
    let (mut bed, mapped) = half_open(settings6());
    assert!(passes_in(&mut bed, E1, mapped, SYN | ACK));
    assert!(passes_out(&mut bed, ACK));
    (bed, mapped)
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// True if a segment of C6 arrives at E1.
fn passes_out(bed: &mut Bed6, flags: u8) -> bool {
    !bed.inside(&tcp6((v6(C6), 5_000), e1(80), flags, (2, 2), b""))[1].is_empty()
}

/// True if a segment from port 80 outside arrives at C6.
fn passes_in(bed: &mut Bed6, from: Ipv4Addr, mapped: core::net::SocketAddrV4, flags: u8) -> bool {
    let segment = build::tcp(at(from, 80), mapped, wire::tcp::Flags(flags)).sequence(2).acknowledgment(2).build();
    let [back, out] = bed.outside(&segment);
    assert!(out.is_empty(), "nothing answers at once");
    back.first().is_some_and(|packet| destination6(packet) == (v6(C6), 5_000))
}

#[test]
fn each_protocol_has_a_binding_of_its_own() {
    covers!("6146-2");
    let mut settings = settings6().addresses(&POOL[..1]).ports(2_000, 2_001);
    settings.pools[0].reuse_delay = Duration::ZERO;
    let mut bed = Bed6::new(settings);
    // Two ports, and each serves all three protocols.
    let mut ports = Vec::new();
    for host in 0..2 {
        let host = v6(C6) + host;
        let udp = source(&bed.inside(&udp6((host, 5_000), e1(53), b"x"))[1][0]);
        let tcp = source(&bed.inside(&tcp6((host, 5_000), e1(80), SYN, (1, 0), b""))[1][0]);
        let icmp = identifier(&bed.inside(&ping6(host, behind(E1), 5_000))[1][0]);
        ports.push([udp.port(), tcp.port(), icmp]);
        assert_eq!(destination6(&bed.outside(&build::udp(at(E1, 53), udp).build())[0][0]), (host, 5_000));
        let answer = build::tcp(at(E1, 80), tcp, wire::tcp::Flags(SYN | ACK)).acknowledgment(2).build();
        assert_eq!(destination6(&bed.outside(&answer)[0][0]), (host, 5_000));
    }
    assert!(ports[0].iter().zip(&ports[1]).all(|(one, other)| one != other), "an endpoint once in each table");
    assert_eq!(bed.mappings(), 6);
}

#[test]
fn an_error_about_an_error_is_dropped_silently() {
    covers!("6146-7");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let mapped = source(&out[0]);
    let error = build::icmp_error(*mapped.ip(), E1, 3, 3, &build::udp(at(E1, 53), mapped).build()).build();
    for icmp_type in [3, 11, 12] {
        let [back, left] = bed.outside(&build::icmp_error(E2, *mapped.ip(), icmp_type, 0, &error).build());
        assert!(back.is_empty() && left.is_empty());
        assert_eq!(bed.verdict(), Some(Verdict::IcmpQuoteMalformed));
    }
    let answer = bed.outside(&build::udp(at(E1, 53), mapped).build())[0].remove(0);
    let error = icmp6_message(behind(E1), v6(C6), (1, 0), 0, &answer);
    for icmp_type in [1, 2, 3, 4] {
        let nested = icmp6_message(v6(C6), behind(E1), (icmp_type, 0), 1_400, &error);
        let [back, left] = bed.inside(&nested);
        assert!(back.is_empty() && left.is_empty());
        assert_eq!(bed.verdict(), Some(Verdict::IcmpQuoteMalformed));
    }
}

#[test]
fn an_endpoint_without_a_binding_is_silent() {
    covers!("6146-15");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let mapped = source(&out[0]);
    let other = at(*mapped.ip(), mapped.port() ^ 1);
    let [back, left] = bed.outside(&build::udp(at(E1, 53), other).build());
    assert!(back.is_empty() && left.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::NoMapping));
    assert!(bed.advance(Duration::from_secs(10)).concat().is_empty());
    assert_eq!(bed.mappings(), 1);
}

#[test]
fn filtering_by_address_refuses_strangers_silently() {
    covers!("6146-16");
    use nat::settings::Filtering;
    for (filtering, passes) in [
        (Filtering::EndpointIndependent, [true, true]),
        (Filtering::AddressDependent, [true, false]),
        (Filtering::AddressAndPortDependent, [false, false]),
    ] {
        let mut bed = Bed6::new(settings6().filtering(filtering));
        let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
        let mapped = source(&out[0]);
        assert_eq!(bed.outside(&build::udp(at(E1, 53), mapped).build())[0].len(), 1);
        for (from, passes) in [(at(E1, 54), passes[0]), (at(E2, 53), passes[1])] {
            let [back, left] = bed.outside(&build::udp(from, mapped).build());
            assert_eq!((back.len(), left.len()), (usize::from(passes), 0), "{filtering:?} {from}");
            let expected = if passes { Verdict::Inbound } else { Verdict::Filtered };
            assert_eq!(bed.verdict(), Some(expected));
        }
    }
}

#[test]
fn an_unexpected_syn_is_kept_for_six_seconds() {
    covers!("6146-21");
    use nat::settings::Filtering;
    // No binding: kept, and answered after six seconds.
    let (mut bed, mapped) = half_open(settings6());
    let other = at(*mapped.ip(), mapped.port() ^ 1);
    assert!(!passes_in(&mut bed, E2, other, SYN));
    assert_eq!(bed.verdict(), Some(Verdict::UnsolicitedSyn));
    assert!(bed.advance(Duration::from_millis(5_900)).concat().is_empty(), "silence for six seconds");
    let [_, out] = bed.advance(Duration::from_secs(2));
    assert_eq!((out.len(), out[0][20], out[0][21]), (1, 3, 3));
    assert_eq!(
        (destination(&out[0]).ip(), source(quote(&out[0])), destination(quote(&out[0]))),
        (&E2, at(E2, 80), other)
    );
    // A binding and no filtering: forwarded at once.
    assert!(passes_in(&mut bed, E2, mapped, SYN));
    // A binding and filtering: kept, answered, or forgotten when the host opens the connection.
    for opens in [false, true] {
        let mut bed = Bed6::new(settings6().filtering(Filtering::AddressDependent));
        let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), (behind(E2), 443), SYN, (1, 0), b""));
        let mapped = source(&out[0]);
        assert!(!passes_in(&mut bed, E1, mapped, SYN));
        bed.advance(Duration::from_secs(3));
        if opens {
            assert!(passes_out(&mut bed, SYN));
            assert!(passes_in(&mut bed, E1, mapped, SYN), "both have sent a SYN");
            assert!(passes_out(&mut bed, SYN | ACK));
        }
        let [_, out] = bed.advance(Duration::from_secs(5));
        assert_eq!(out.len(), usize::from(!opens));
        if opens {
            bed.advance(Duration::from_secs(7_000));
            assert!(passes_in(&mut bed, E1, mapped, ACK), "established");
        }
    }
    // By policy, silence.
    let mut settings = settings6();
    settings.answer_unsolicited_syn = false;
    let (mut bed, mapped) = half_open(settings);
    assert!(!passes_in(&mut bed, E2, at(*mapped.ip(), mapped.port() ^ 1), SYN));
    assert!(bed.advance(Duration::from_secs(30)).concat().is_empty());
}

#[test]
fn a_segment_without_session_opens_none() {
    covers!("6146-22");
    let (mut bed, mapped) = half_open(settings6());
    for flags in [ACK, FIN | ACK, RST, SYN | ACK, 0] {
        // No binding.
        assert!(!passes_in(&mut bed, E2, at(*mapped.ip(), mapped.port() ^ 1), flags));
        // A binding, and no session.
        assert!(!passes_in(&mut bed, E2, mapped, flags), "{flags:02x}");
        assert_eq!(bed.verdict(), Some(Verdict::TcpNoSession));
    }
    assert!(bed.advance(Duration::from_secs(10)).concat().is_empty());
    // From inside.
    let sessions = |bed: &Bed6| bed.shards()[0].counters().sessions_created;
    let before = sessions(&bed);
    for flags in [ACK, FIN | ACK, RST] {
        bed.inside(&tcp6((v6(D6), 5_000), e1(80), flags, (1, 1), b""));
        assert_eq!(bed.verdict(), Some(Verdict::TcpNoSession));
    }
    assert_eq!((sessions(&bed), bed.mappings()), (before, 1));
}

#[test]
fn a_connection_ends_as_the_states_say() {
    covers!("6146-23");
    // Established for two hours, refreshed from either side.
    let (mut bed, mapped) = established();
    for _ in 0..2 {
        bed.advance(Duration::from_secs(7_199));
        assert!(passes_in(&mut bed, E1, mapped, ACK));
        bed.advance(Duration::from_secs(7_199));
        assert!(passes_out(&mut bed, ACK));
    }
    // One FIN changes nothing, from whichever side.
    for first_inside in [true, false] {
        let (mut bed, mapped) = established();
        let fin = |bed: &mut Bed6, inside: bool| {
            if inside { passes_out(bed, FIN | ACK) } else { passes_in(bed, E1, mapped, FIN | ACK) }
        };
        assert!(fin(&mut bed, first_inside));
        bed.advance(Duration::from_secs(7_199));
        assert!(passes_in(&mut bed, E1, mapped, ACK) && passes_out(&mut bed, ACK));
        // Both: four minutes.
        assert!(fin(&mut bed, !first_inside));
        bed.advance(Duration::from_secs(239));
        assert!(passes_in(&mut bed, E1, mapped, ACK) && passes_out(&mut bed, ACK));
        bed.advance(Duration::from_secs(300));
        assert_eq!(bed.mappings(), 0);
    }
    // A RST: four minutes, unless anything but another RST follows.
    for inside in [true, false] {
        let (mut bed, mapped) = established();
        assert!(if inside { passes_out(&mut bed, RST | ACK) } else { passes_in(&mut bed, E1, mapped, RST | ACK) });
        bed.advance(Duration::from_secs(239));
        assert!(if inside { passes_in(&mut bed, E1, mapped, ACK) } else { passes_out(&mut bed, ACK) });
        bed.advance(Duration::from_secs(7_000));
        assert!(passes_in(&mut bed, E1, mapped, ACK) && passes_out(&mut bed, ACK), "established again");
        let (mut bed, mapped) = established();
        assert!(if inside { passes_out(&mut bed, RST | ACK) } else { passes_in(&mut bed, E1, mapped, RST | ACK) });
        bed.advance(Duration::from_secs(300));
        assert_eq!(bed.mappings(), 0);
    }
}

#[test]
fn an_idle_query_lives_for_a_minute() {
    covers!("6146-25");
    for (timeout, short) in [(None, 59), (Some(20), 19)] {
        let settings = match timeout {
            None => settings6(),
            Some(seconds) => settings6().timers(|timeouts| timeouts.icmp = Duration::from_secs(seconds)),
        };
        let mut bed = Bed6::new(settings);
        let [_, out] = bed.inside(&ping6(v6(C6), behind(E1), 77));
        let reply = build::echo_reply(E1, *source(&out[0]).ip(), identifier(&out[0])).build();
        bed.advance(Duration::from_secs(short));
        assert_eq!(bed.outside(&reply)[0].len(), 1);
        bed.advance(Duration::from_secs(short + 3));
        assert_eq!(bed.outside(&reply)[0].len(), 0);
        bed.advance(Duration::from_secs(30));
        assert_eq!(bed.mappings(), 0);
    }
}

#[test]
fn packets_to_own_and_unmapped_addresses_end_here() {
    let mut bed = Bed6::new(settings6());
    for own in [OWN_INSIDE, OWN_OUTSIDE] {
        let [_, out] = bed.inside(&udp6((v6(C6), 1), (behind(own), 2), b"x"));
        assert!(out.is_empty(), "{own}");
        assert!(matches!(bed.verdict(), Some(Verdict::Local | Verdict::LocalIgnored | Verdict::EmbeddedPrivate)));
    }
    // The prefix around an address of the pool, where nothing is.
    let [_, out] = bed.inside(&udp6((v6(C6), 1), (behind(POOL[0]), 2), b"x"));
    assert!(out.is_empty());
    assert_eq!((bed.verdict(), bed.mappings()), (Some(Verdict::NoMapping), 0));
}

#[test]
fn the_hop_limit_falls_on_each_way_through_a_hairpin() {
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let own = source(&out[0]);
    // A host that sends to its own endpoint outside, again and again.
    let mut hops = Vec::new();
    let mut packet = udp6((v6(C6), 5_000), (behind(*own.ip()), own.port()), b"loop");
    packet[7] = 5;
    for _ in 0..10 {
        let [back, out] = bed.inside(&packet);
        assert!(out.is_empty());
        let Some(next) = back.first().filter(|next| next[6] == 17) else { break };
        assert_eq!(destination6(next), (v6(C6), 5_000));
        hops.push(next[7]);
        packet[7] = next[7];
    }
    assert_eq!(hops, [4, 3, 2, 1]);
    assert_eq!(bed.verdict(), Some(Verdict::TtlExpired));
}

#[test]
fn the_local_use_prefix_reaches_private_addresses() {
    covers!("8215-3");
    for (text, length) in [("64:ff9b:1::", 48), ("64:ff9b:1:fffe::", 64), ("64:ff9b:1:fffe::", 96)] {
        let mut settings = settings6();
        let prefix = translate::Prefix::new(v6(text), length).expect("a prefix");
        settings.transition.nat64[0].prefix = prefix;
        let mut bed = Bed6::new(settings);
        for to in [E1, [10, 1, 2, 3].into(), [192, 168, 7, 7].into()] {
            let to: Ipv4Addr = to;
            let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (prefix.embed(to.to_bits()), 53), b"x"));
            assert_eq!(destination(&out[0]), at(to, 53), "{text}/{length}");
            let [back, _] = bed.outside(&build::udp(at(to, 53), source(&out[0])).build());
            assert_eq!(source6(&back[0]), (prefix.embed(to.to_bits()), 53));
        }
        if length != 96 {
            let u_octet = prefix.embed(E1.to_bits()) | 1 << 56;
            assert!(bed.inside(&udp6((v6(C6), 5_000), (u_octet, 53), b"x"))[1].is_empty());
            assert_eq!(bed.verdict(), Some(Verdict::EmbeddedAddress), "bits 64 to 71 are zero");
        }
        let loopback = prefix.embed(0x7f00_0001);
        assert!(bed.inside(&udp6((v6(C6), 5_000), (loopback, 53), b"x"))[1].is_empty());
        assert_eq!(bed.verdict(), Some(Verdict::EmbeddedAddress));
    }
}

#[test]
fn atomic_fragments_belong_to_no_other_fragments() {
    covers!("6946-4");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 2_000]);
    let fragments = fragments6(&whole, &[1_232], 0x77);
    let atomic = fragments6(&udp6((v6(C6), 5_000), e1(53), b"atomic"), &[], 0x77);
    // With the identification of a datagram that is not whole yet.
    assert!(bed.inside(&fragments[1])[1].is_empty());
    let [_, out] = bed.inside(&atomic[0]);
    assert_eq!((out.len(), payload(&out[0])), (1, &b"atomic"[..]));
    let [_, left] = bed.inside(&fragments[0]);
    assert_eq!(payload(&build::reassemble(&left).expect("one datagram")), &[7; 2_000][..]);
    // In a softwire, too.
    let inner = build::udp(at([192, 168, 1, 2].into(), 5_000), at(E1, 53)).payload(b"inner").build();
    let atomic = fragments6(&softwire(v6(D6), v6(AFTR), &inner), &[], 9);
    let [_, out] = bed.inside(&atomic[0]);
    assert_eq!(payload(&out[0]), b"inner");
}

#[test]
fn a_datagram_with_an_overlap_is_dropped_whole() {
    covers!("5722-4");
    let whole = udp6((v6(C6), 5_000), e1(53), &[7; 3_000]);
    let fragments = fragments6(&whole, &[1_232, 1_232], 1);
    let overlapping = fragments6(&whole, &[1_224, 1_232], 1);
    let mut bed = Bed6::new(settings6());
    bed.inside(&fragments[2]);
    bed.inside(&fragments[1]);
    assert!(bed.inside(&overlapping[1])[1].is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::FragmentOverlap));
    // Nor those that come later.
    assert!(bed.inside(&fragments[0])[1].is_empty());
    assert_eq!(bed.count(Verdict::FragmentOverlap), 4);
    // In a softwire, too.
    let inner = build::udp(at([192, 168, 1, 2].into(), 5_000), at(E1, 53)).payload_length(1_400).build();
    let outer = softwire(v6(D6), v6(AFTR), &inner);
    let fragments = fragments6(&outer, &[512, 512], 9);
    bed.inside(&fragments[0]);
    assert!(bed.inside(&fragments6(&outer, &[504, 512], 9)[1])[1].is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::FragmentOverlap));
    for later in &fragments {
        assert!(bed.inside(later)[1].is_empty());
        assert_eq!(bed.verdict(), Some(Verdict::FragmentOverlap));
    }
    bed.advance(Duration::from_secs(3));
    let left: Vec<_> = fragments.iter().flat_map(|piece| bed.inside(piece)[1].clone()).collect();
    assert_eq!(left.len(), 1, "a datagram with the same identification, long after");
}

/// A connection of [`C6`] from this port: its external endpoint.
fn opened_with(bed: &mut Bed6, port: u16, to: At6) -> std::net::SocketAddrV4 {
    let [_, out] = bed.inside(&tcp6((v6(C6), port), to, 2, (1, 0), b""));
    let (mapped, remote) = (source(&out[0]), destination(&out[0]));
    bed.outside(&build::tcp(remote, mapped, wire::tcp::Flags(0x12)).build());
    bed.inside(&tcp6((v6(C6), port), to, 0x10, (2, 1), b""));
    mapped
}

#[test]
fn an_idle_connection_is_probed_before_it_ends() {
    covers!("6146-24");
    for workers in [1, 2] {
        let mut bed = Bed6::with_workers(settings6(), workers);
        // Two sessions of one mapping, and hosts that RFC 6146 is not about: IPv4 and behind a B4.
        let mapped = opened_with(&mut bed, 5_000, e1(80));
        assert_eq!(opened_with(&mut bed, 5_000, e1(81)), mapped);
        bed.inside(&build::tcp(at(I1, 5), at(E1, 80), wire::tcp::Flags(2)).build());
        let inner = build::tcp(at([192, 168, 1, 2].into(), 5), at(E1, 80), wire::tcp::Flags(2)).build();
        bed.inside(&softwire(v6(D6), v6(AFTR), &inner));
        let [inside, out] = bed.advance(Duration::from_secs(7_430));
        assert_eq!((inside.len(), out.len()), (0, 0), "established");
        let [mut inside, out] = bed.advance(Duration::from_secs(30));
        inside.sort_by_key(|packet| source6(packet).1);
        assert_eq!((inside.len(), out.len()), (2, 0), "one probe for each connection");
        for (probe, port) in inside.iter().zip([80, 81]) {
            assert_eq!((source6(probe), destination6(probe)), (e1(port), (v6(C6), 5_000)));
            assert_eq!((&probe[44..52], probe[53], probe.len()), (&[0; 8][..], 0x10, 60), "ACK, 0, 0, and no data");
        }
        // The host answers one of them, as a host that has the connection does.
        let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 0x10, (2, 1), b""));
        assert_eq!((source(&out[0]), destination(&out[0])), (mapped, at(E1, 80)));
        let [inside, _] = bed.advance(Duration::from_secs(7_000));
        assert_eq!(inside.len(), 0, "nothing is probed twice, and the other is over");
        let ack = |port| build::tcp(at(E1, port), mapped, wire::tcp::Flags(0x10)).build();
        assert_eq!(bed.outside(&ack(80))[0].len(), 1);
        let sessions = bed.mapping_views().iter().map(|view| view.sessions).sum::<u32>();
        assert_eq!(sessions, 1);
        // Probed again after another time, and over without an answer.
        let [inside, _] = bed.advance(Duration::from_secs(7_700));
        assert_eq!(inside.len(), 1);
        assert_eq!(bed.mapping_views(), []);
    }
}
