//! ICMP errors.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Verdict;
use nat::settings::Filtering;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::types::AddressUse;
use nat::types::InterfaceId;
use nat::types::RealmId;
use nat::types::Side;
use testkit::bed6::*;
use testkit::packet::header;
use testkit::packet6::*;
use testkit::*;
use wire::build;

use super::e1;

#[test]
fn errors_of_routers_outside_reach_the_host() {
    covers!("6146-6", "7915-4.2b");
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
fn errors_neither_make_nor_refresh_nor_end_a_session() {
    covers!("6146-13");
    let mut bed = Bed6::new(settings6());
    let udp = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"))[1].remove(0);
    let ping = bed.inside(&ping6(v6(C6), behind(E1), 77))[1].remove(0);
    let syn = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), b""))[1].remove(0);
    let answer = build::udp(at(E1, 53), source(&udp)).payload(b"answer").build();
    let came_in = bed.outside(&answer)[0].remove(0);
    // When each session ends, by the virtual clock; and all that was ever counted.
    let ends = |bed: &Bed6| {
        let end = |view: &nat::view::MappingView| (view.protocol, bed.now() + view.expires_in);
        let mut ends: Vec<_> = bed.mapping_views().iter().map(end).collect();
        ends.sort_by_key(|(protocol, _)| protocol.index());
        let counters = bed.shards()[0].counters();
        (ends, counters.mappings_created, counters.sessions_created, counters.sessions_removed)
    };
    let before = ends(&bed);
    assert_eq!(before.0.len(), 3);
    for _ in 0..3 {
        bed.advance(Duration::from_secs(15));
        for sent in [&udp, &ping, &syn] {
            for (kind, code) in [(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)] {
                let [back, _] = bed.outside(&build::icmp_error(E2, *source(sent).ip(), kind, code, sent).build());
                assert_eq!((back.len(), bed.verdict()), (1, Some(Verdict::Inbound)), "{kind}/{code}");
            }
        }
        for (kind, code) in [(1, 4), (2, 0), (3, 0)] {
            let error = icmp6_message(v6(C6), behind(E1), (kind, code), 1_400, &came_in);
            assert_eq!(bed.inside(&error)[1].len(), 1, "{kind}/{code}");
        }
        // About sessions that do not exist.
        let stranger = udp6(e1(9), (v6(D6), 9), b"x");
        assert_eq!(bed.inside(&icmp6_message(v6(D6), behind(E1), (1, 4), 0, &stranger))[1].len(), 0);
        let about = build::udp(at(*source(&udp).ip(), 9), at(E1, 9)).build();
        assert_eq!(bed.outside(&build::icmp_error(E2, *source(&udp).ip(), 3, 3, &about).build())[0].len(), 0);
        assert_eq!(ends(&bed), before);
    }
    // So each ends in its time: the query first, then TCP, then UDP.
    for (seconds, left) in [(20, 2), (180, 1), (60, 0)] {
        bed.advance(Duration::from_secs(seconds));
        assert_eq!(bed.mapping_views().len(), left);
    }
}

#[test]
fn quoted_packets_are_translated_without_their_hop_count() {
    covers!("7915-4.3");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &[7; 600]));
    let mapped = source(&out[0]);
    let error = |quote: &[u8]| build::icmp_error(E2, *mapped.ip(), 11, 0, quote).build();
    for (ttl, class, payload) in [(1, 0, 0), (0, 0xb8, 8), (255, 3, 600), (17, 0x22, 1_400)] {
        // The router quotes what it had, however often it was forwarded.
        let sent = build::udp(mapped, at(E1, 53)).payload_length(payload).ttl(ttl).ds_field(class).build();
        for quoted_length in [28, 60, sent.len()] {
            let quoted_length = quoted_length.min(sent.len());
            let [back, _] = bed.outside(&error(&sent[..quoted_length]));
            let outer = view6(&back[0]);
            assert_eq!((usize::from(outer.payload_length()) + 40, outer.hop_limit()), (back[0].len(), 63));
            let quote = &back[0][48..];
            let inner = view6(quote);
            assert_eq!((inner.hop_limit(), inner.traffic_class()), (ttl, class), "as the router had it");
            assert_eq!((source6(quote), destination6(quote)), ((v6(C6), 5_000), e1(53)));
            assert_eq!(usize::from(inner.payload_length()), sent.len() - 20, "of the whole quoted packet");
            // As much as fits (RFC 4443 §2.4 (c)).
            assert_eq!(quote.len(), (quoted_length + 20).min(1_232), "{payload}");
            assert_eq!(quote[48..], sent[28..quote.len() - 20]);
        }
    }
    // A quoted fragment keeps its place.
    let whole = build::udp(mapped, at(E1, 53)).payload_length(1_400).identification(0x4321).build();
    let first = &build::fragment(&whole, 800)[0];
    let [back, _] = bed.outside(&error(first));
    let quote = &back[0][48..];
    let fragment = wire::ipv6::Fragment::at(quote, 40);
    assert_eq!((view6(quote).next_header(), fragment.offset, fragment.more), (44, 0, true));
    assert_eq!((fragment.identification, &quote[48..50]), (0x4321, &5_000_u16.to_be_bytes()[..]));
    // Only one packet is in an error: deeper ones are not looked at.
    let nested = build::icmp_error(*mapped.ip(), E1, 3, 3, &build::udp(at(E1, 53), mapped).build()).build();
    assert_eq!(bed.outside(&error(&nested)).concat().len(), 0);
    assert_eq!(bed.verdict(), Some(Verdict::IcmpQuoteMalformed));
    // The other way round, where RFC 7915 section 5.3 says the same.
    let [came_in, _] = bed.outside(&build::udp(at(E1, 53), mapped).payload_length(300).build());
    for (hop_limit, class) in [(0, 0x2e), (1, 0), (200, 0xff)] {
        let mut quote = came_in[0].clone();
        (quote[0], quote[1], quote[7]) = (0x60 | class >> 4, class << 4, hop_limit);
        for length in [48, 100, quote.len()] {
            let [_, out] = bed.inside(&icmp6_message(v6(C6), behind(E1), (3, 0), 0, &quote[..length]));
            let inner = &out[0][28..];
            assert_eq!((ttl(inner), header(inner).ds_field()), (hop_limit, class));
            assert_eq!((source(inner), destination(inner)), (at(E1, 53), mapped));
            assert_eq!(usize::from(u16::from_be_bytes([inner[2], inner[3]])), 328, "of the whole quoted packet");
            assert_eq!(inner.len(), length - 20);
        }
    }
    let nested = icmp6_message(behind(E1), v6(C6), (1, 4), 0, &udp6((v6(C6), 5_000), e1(53), b"x"));
    assert_eq!(bed.inside(&icmp6_message(v6(C6), behind(E1), (3, 0), 0, &nested)).concat().len(), 0);
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
fn packets_from_outside_cannot_pose_as_natrix() {
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
    bed.set_address_use(v6(OWN6), AddressUse::Duplicate);
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
    bed.set_address_use(v6(OWN6), AddressUse::Duplicate);
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
fn a_hairpin_into_a_vrf_of_smaller_links_is_too_big() {
    covers!("4787-REQ-13");
    const FOUR: InterfaceId = InterfaceId(2);
    let (host, own) = (Ipv4Addr::new(10, 9, 0, 7), Ipv4Addr::new(10, 9, 0, 1));
    let mut settings = settings6().filtering(Filtering::EndpointIndependent);
    // The first VRF has no IPv4 address, the second no IPv6 address.
    settings.interfaces[0].addresses.clear();
    settings.routes.retain(|route| route.interface != topology::INSIDE);
    settings.realm_names = vec!["six".into(), "four".into()];
    settings.interfaces.push(Interface {
        name: "four".into(),
        side: Side::Inside,
        realm: RealmId(1),
        addresses: vec![InterfaceAddress { address: own, prefix_length: 24 }],
        mtu: 1_300,
    });
    settings.pools[0].subscribers.push(topology::prefix([10, 9, 0, 0], 24));
    for workers in [1, 4] {
        let mut bed = Bed6::with_workers(settings.clone(), workers);
        let [_, out] = bed.receive(0, FOUR, &build::udp(at(host, 6_000), at(E1, 53)).build());
        let to = (behind(*source(&out[0]).ip()), source(&out[0]).port());
        // The first packet of its host, and the next.
        for _ in 0..2 {
            let sent = udp6((v6(C6), 5_000), to, &[7; 1_352]);
            let [inside, out] = bed.inside(&sent);
            assert_eq!((inside.len(), out.len()), (1, 0), "{workers}");
            assert_eq!((view6(&inside[0]).source(), view6(&inside[0]).destination()), (v6(OWN6), v6(C6)));
            assert_eq!(icmp6_of(&inside[0]), (2, 0, 1_320));
            let quote = &inside[0][48..];
            assert_eq!((source6(quote), destination6(quote)), ((v6(C6), 5_000), to));
        }
        let [inside, _] = bed.inside(&udp6((v6(C6), 5_000), to, &[7; 1_272]));
        assert_eq!((destination(&inside[0]), inside[0].len()), (at(host, 6_000), 1_300));
        // The other way, the error comes from the address that its receiver knows.
        let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
        let sent = build::udp(at(host, 6_000), source(&out[0])).payload_length(1_472).dont_fragment().build();
        let [inside, _] = bed.receive(0, FOUR, &sent);
        assert!(is_icmp(&inside[0], 3, 4));
        assert_eq!((source(&inside[0]).ip(), destination(&inside[0]).ip()), (&own, &host));
    }
}
