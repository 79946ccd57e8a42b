//! RFC 6333, DS-Lite: the AFTR.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use nat::types::AddressUse;
use nat::types::HostNumber;
use nat::types::InterfaceId;
use nat::types::RealmId;
use testkit::bed6::*;
use testkit::packet::header;
use testkit::packet6::*;
use testkit::*;
use wire::build;

const HOME: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
const AFTR_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);

/// A packet of a home behind the B4 at this address.
fn from(b4: &str, inner: &[u8]) -> Vec<u8> {
    softwire(v6(b4), v6(AFTR), inner)
}

fn with_class(class: u8, mut packet: Vec<u8>) -> Vec<u8> {
    packet[0] = 0x60 | class >> 4;
    packet[1] = class << 4;
    packet
}

/// The packet inside a softwire to this B4.
fn inner_of(packet: &[u8], b4: &str) -> Vec<u8> {
    let view = view6(packet);
    assert_eq!((view.source(), view.destination(), view.next_header()), (v6(AFTR), v6(b4), 4));
    assert_eq!(wire::verify::faults(&packet[40..]), [], "a right IPv4 packet inside");
    packet[40..].to_vec()
}

#[test]
fn homes_with_equal_addresses_have_mappings_of_their_own() {
    covers!("6333-5");
    let mut bed = Bed6::new(settings6());
    let inner = build::udp(at(HOME, 5_000), at(E1, 53)).payload(b"question").build();
    let mapped = [C6, D6].map(|b4| {
        let [inside, out] = bed.inside(&from(b4, &inner));
        assert!(inside.is_empty());
        assert_eq!((destination(&out[0]), payload(&out[0]), ttl(&out[0])), (at(E1, 53), &b"question"[..], 63));
        source(&out[0])
    });
    assert_ne!(mapped[0], mapped[1]);
    for (b4, mapped) in [C6, D6].into_iter().zip(mapped) {
        let [back, _] = bed.outside(&build::udp(at(E1, 53), mapped).payload(b"answer").ds_field(0xb8).build());
        assert_eq!(view6(&back[0]).traffic_class(), 0xb8);
        let inner = inner_of(&back[0], b4);
        assert_eq!(
            (source(&inner), destination(&inner), payload(&inner)),
            (at(E1, 53), at(HOME, 5_000), &b"answer"[..])
        );
        assert_eq!(header(&inner).ds_field(), 0xb8);
    }
}

#[test]
fn the_aftr_answers_pings_inside_the_softwire() {
    covers!("6333-4");
    let mut bed = Bed6::new(settings6());
    let [inside, out] = bed.inside(&from(C6, &build::echo_request(HOME, AFTR_INSIDE, 7).payload(b"hi").build()));
    assert!(out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Local));
    let reply = inner_of(&inside[0], C6);
    assert_eq!((source(&reply), destination(&reply).ip()), (at(AFTR_INSIDE, 7), &HOME));
    assert_eq!(payload(&reply), b"hi");
}

#[test]
fn own_errors_come_from_the_aftr_inside_the_softwire() {
    covers!("6333-4");
    let mut bed = Bed6::new(settings6());
    let packet = build::udp(at(HOME, 5_000), at(E1, 53)).ttl(1).build();
    let [inside, out] = bed.inside(&from(C6, &packet));
    assert!(out.is_empty());
    let error = inner_of(&inside[0], C6);
    assert_eq!((error[20], error[21]), (11, 0));
    assert_eq!((source(&error).ip(), destination(&error).ip()), (&AFTR_INSIDE, &HOME));
    assert_eq!(quote(&error), &packet[..], "the packet as its sender knows it");
}

#[test]
fn packets_from_outside_cannot_pose_as_the_aftr() {
    covers!("6333-4");
    let mut settings = settings6();
    let mut bed = Bed6::new(settings.clone());
    let [_, out] = bed.inside(&from(C6, &build::udp(at(HOME, 5_350), at(E1, 53)).build()));
    let mapped = source(&out[0]);
    let forged = |mapped| build::udp(at(AFTR_INSIDE, 5_351), mapped).payload(b"forged").build();
    for packet in [forged(mapped), build::icmp_error(AFTR_INSIDE, *mapped.ip(), 3, 3, &out[0]).build()] {
        let [back, _] = bed.outside(&packet);
        assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::SourceSpoofed)));
    }
    // Without softwires it is an address like any other.
    settings.transition = nat::settings::Transition::default();
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&build::udp(at(I1, 5_350), at(E1, 53)).build());
    assert_eq!(bed.outside(&forged(source(&out[0])))[0].len(), 1);
}

#[test]
fn a_host_without_room_is_answered_in_its_softwire() {
    covers!("6333-4", "6888-REQ-11b");
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 1;
    let mut bed = Bed6::new(settings);
    let packet = |home| build::udp(at(home, 5_000), at(E1, 53)).payload(b"question").build();
    assert_eq!(bed.inside(&from(C6, &packet(HOME)))[1].len(), 1);
    let other = Ipv4Addr::new(192, 168, 1, 3);
    let [inside, out] = bed.inside(&from(C6, &packet(other)));
    assert_eq!((inside.len(), out.len(), bed.verdict()), (1, 0, Some(Verdict::HostLimit)));
    let error = inner_of(&inside[0], C6);
    assert_eq!((error[20], error[21]), (3, 1));
    assert_eq!((source(&error).ip(), destination(&error).ip()), (&AFTR_INSIDE, &other));
    assert_eq!(quote(&error), &packet(other)[..]);
    // In fragments, and what nobody may answer.
    let large = build::udp(at(other, 5_000), at(E1, 53)).payload_length(1_400).build();
    let sent: Vec<_> =
        fragments6(&from(C6, &large), &[512], 9).iter().flat_map(|piece| bed.inside(piece)[0].clone()).collect();
    assert_eq!((sent.len(), source(&inner_of(&sent[0], C6)).ip()), (1, &AFTR_INSIDE));
    let error = build::icmp_error(other, E1, 3, 3, &build::udp(at(E1, 53), at(other, 5_000)).build()).build();
    assert!(bed.inside(&from(C6, &error))[0].is_empty());
}

#[test]
fn errors_from_outside_are_about_the_inner_packet() {
    covers!("6333-8");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()));
    let error = build::icmp_error(E2, *source(&out[0]).ip(), 3, 3, &out[0]).build();
    let [back, _] = bed.outside(&error);
    let inner = inner_of(&back[0], C6);
    assert_eq!((source(&inner).ip(), destination(&inner).ip(), inner[20], inner[21]), (&E2, &HOME, 3, 3));
    assert_eq!((source(quote(&inner)), destination(quote(&inner))), (at(HOME, 5_000), at(E1, 53)));
    // And the other way.
    let answer = build::udp(at(E1, 53), source(&out[0])).build();
    let [back, _] = bed.outside(&answer);
    let error = build::icmp_error(HOME, E1, 3, 3, &inner_of(&back[0], C6)).build();
    let [_, left] = bed.inside(&from(C6, &error));
    assert_eq!((source(&left[0]).ip(), destination(&left[0]).ip()), (source(&out[0]).ip(), &E1));
    assert_eq!(destination(quote(&left[0])), source(&out[0]));
}

/// The inside interface has IPv6 addresses only.
fn without_ipv4_inside() -> nat::Settings {
    let mut settings = settings6();
    settings.interfaces[0].addresses.clear();
    settings.routes.retain(|route| route.interface != topology::INSIDE);
    settings
}

#[test]
fn errors_about_hairpins_come_from_the_aftr() {
    covers!("6333-4", "6333-8", "4787-REQ-13");
    for settings in [settings6(), without_ipv4_inside()] {
        for workers in [1, 4] {
            let settings = settings.clone().filtering(nat::settings::Filtering::EndpointIndependent);
            let mut bed = Bed6::with_workers(settings, workers);
            // The NAT64 host's packets are of 1,480 bytes of IPv4 at most.
            let [_, out] = bed.inside(&udp6((v6(D6), 6_000), (behind(E1), 53), b"x"));
            let to = source(&out[0]);
            // The first packet of its host, and the next.
            for _ in 0..2 {
                let sent = build::udp(at(HOME, 5_000), to).payload_length(1_472).dont_fragment().build();
                let [inside, out] = bed.inside(&from(C6, &sent));
                assert_eq!((inside.len(), out.len()), (1, 0), "{workers}");
                let error = inner_of(&inside[0], C6);
                assert!(is_icmp(&error, 3, 4));
                assert_eq!(packet::icmp(&error).next_hop_mtu(), 1_480);
                assert_eq!((source(&error).ip(), destination(&error).ip()), (&AFTR_INSIDE, &HOME));
                assert_eq!(quote(&error), &sent[..548], "the packet as its sender knows it");
            }
            let fits = build::udp(at(HOME, 5_000), to).payload_length(1_452).dont_fragment().build();
            let [inside, _] = bed.inside(&from(C6, &fits));
            assert_eq!(destination6(&inside[0]), (v6(D6), 6_000));
        }
    }
}

#[test]
fn a_hairpin_without_a_route_is_reported_by_the_aftr() {
    covers!("6333-4");
    for workers in [1, 4] {
        let mut settings = without_ipv4_inside();
        settings.forwards.push(nat::settings::Forward {
            realm: RealmId(0),
            protocol: nat::Protocol::Udp,
            external: POOL[0],
            ports: (80, 80),
            inside: I1.into(),
            inside_port: 80,
            admission: nat::settings::Admission::Anyone,
        });
        let mut bed = Bed6::with_workers(settings, workers);
        let [inside, out] = bed.inside(&from(C6, &build::udp(at(HOME, 5_000), at(POOL[0], 80)).build()));
        assert_eq!((inside.len(), out.len(), bed.count(Verdict::NoRoute)), (1, 0, 1));
        let error = inner_of(&inside[0], C6);
        assert!(is_icmp(&error, 3, 1));
        assert_eq!((source(&error).ip(), destination(&error).ip()), (&AFTR_INSIDE, &HOME));
    }
}

#[test]
fn impossible_inner_sources_never_pass() {
    covers!("6333-9");
    let mut settings = settings6();
    settings.transition.softwires[0].inner = vec![nat::types::Prefix::ALL];
    let mut bed = Bed6::new(settings);
    let impossible = ["127.0.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.0.8"];
    for inner in impossible.into_iter().chain(["169.254.0.1", "169.254.255.255"]) {
        let inner = inner.parse().expect("an address");
        let [inside, out] = bed.inside(&from(C6, &build::udp(at(inner, 5_000), at(E1, 53)).build()));
        let seen = (inside.len(), out.len(), bed.verdict());
        assert_eq!(seen, (0, 0, Some(Verdict::SourceInvalid)), "{inner}");
    }
    assert_eq!(bed.inside(&from(C6, &build::udp(at([8, 8, 8, 8].into(), 5_000), at(E1, 53)).build()))[1].len(), 1);
}

#[test]
fn link_local_addresses_are_not_reached_through_a_softwire() {
    covers!("3927-2.7");
    let link_local = Ipv4Addr::new(169, 254, 0, 1);
    let mut bed = Bed6::new(settings6().filtering(nat::settings::Filtering::EndpointIndependent));
    let inner = |to: Ipv4Addr, length| build::udp(at(HOME, 5_000), at(to, 53)).payload_length(length).build();
    for known in [false, true] {
        for length in [8, 100, 1_400] {
            let refused = [
                inner(link_local, length),
                build::tcp(at(HOME, 5_000), at(link_local, 80), wire::tcp::Flags::SYN).payload_length(length).build(),
                build::echo_request(HOME, link_local, 7).payload_length(length).build(),
                build::icmp_error(HOME, link_local, 3, 3, &build::udp(at(E1, 53), at(HOME, 5_000)).build()).build(),
            ];
            for packet in refused {
                assert_eq!(bed.inside(&from(C6, &packet)).concat().len(), 0);
                assert_eq!(bed.verdict(), Some(Verdict::DestinationInvalid), "{known} {length}");
            }
        }
        assert_eq!(bed.inside(&from(C6, &inner([169, 253, 0, 1].into(), 8)))[1].len(), 1);
        assert_eq!(bed.inside(&from(C6, &inner(E1, 8)))[1].len(), 1);
    }
    let [_, out] = bed.inside(&from(C6, &inner(E1, 8)));
    let mapped = source(&out[0]);
    let about = build::udp(mapped, at(E1, 53)).payload(b"x").build();
    for packet in [
        build::udp(at(link_local, 53), mapped).payload(b"answer").build(),
        build::udp(at(link_local, 53), mapped).payload_length(1_400).build(),
        build::icmp_error(link_local, *mapped.ip(), 3, 3, &about).build(),
    ] {
        assert_eq!(bed.outside(&packet).concat().len(), 0);
        assert_eq!(bed.verdict(), Some(Verdict::SourceInvalid));
    }
    assert_eq!(bed.outside(&build::udp(at(E2, 9), mapped).build())[0].len(), 1, "any other may send");
}

/// Two VRFs whose customers and AFTRs have the same addresses, by interfaces 0 and 2.
fn two_realms() -> nat::Settings {
    const BLUE: RealmId = RealmId(1);
    let mut settings = settings6();
    let interface = InterfaceId(settings.interfaces.len() as u16);
    let like_red = settings.interfaces[0].clone();
    settings.interfaces.push(nat::settings::Interface { name: "blue".into(), realm: BLUE, ..like_red });
    let way = settings.routes[0];
    settings.routes.push(nat::settings::Route { interface, ..way });
    let own = settings.ipv6.addresses[0];
    settings.ipv6.addresses.push(nat::settings::Address6 { interface, ..own });
    let end = settings.transition.softwires[0].clone();
    settings.transition.softwires.push(nat::settings::Softwire { realm: BLUE, ..end });
    settings.realm_names = ["red", "blue"].map(str::to_owned).to_vec();
    settings.pools[0].realms = vec![RealmId(0), BLUE];
    settings
}

#[test]
fn vrfs_with_equal_addresses_share_neither_mtu_nor_room() {
    covers!("6333-5", "6333-15");
    let mut bed = Bed6::new(two_realms());
    let [red, blue] = [topology::INSIDE, InterfaceId(2)];
    let question = from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build());
    let answers = [red, blue].map(|realm| {
        let [_, out] = bed.receive(0, realm, &question);
        build::udp(at(E1, 53), source(&out[0])).payload_length(1_432).build()
    });
    let [sent, _] = bed.outside(&answers[0]);
    let error = icmp6_message(v6("2001:db8:ffff::1"), v6(AFTR), (2, 0), 1_280, &sent[0][..1_232]);
    bed.receive(0, red, &error);
    assert_eq!(bed.verdict(), Some(Verdict::Local));
    assert_eq!(answers.each_ref().map(|answer| bed.outside(answer)[0].len()), [2, 1]);
    // As many datagrams as a prefix may have.
    let large = from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(1_400).build());
    for identification in 0..9 {
        bed.receive(0, red, &fragments6(&large, &[512], identification)[0]);
    }
    assert_eq!(bed.verdict(), Some(Verdict::ReassemblyQuota));
    let left = fragments6(&large, &[512], 99).iter().flat_map(|piece| bed.receive(0, blue, piece)[1].clone()).count();
    assert_eq!(left, 1);
}

#[test]
fn only_permitted_inner_sources_pass() {
    covers!("6333-9", "6333-14");
    let mut bed = Bed6::new(settings6());
    for (inner, passes) in [
        ("192.168.255.1", true),
        ("192.0.0.2", true),
        ("192.0.0.7", true),
        ("192.0.0.1", false),
        ("192.0.0.8", false),
        ("8.8.8.8", false),
        ("100.64.0.10", false),
        ("10.0.0.1", false),
        ("127.0.0.1", false),
    ] {
        let inner = inner.parse().expect("an address");
        let [_, out] = bed.inside(&from(C6, &build::udp(at(inner, 5_000), at(E1, 53)).build()));
        assert_eq!(out.len(), usize::from(passes), "{inner}");
        if !passes {
            assert_eq!(bed.verdict(), Some(Verdict::SoftwireSource), "{inner}");
        }
    }
}

#[test]
fn only_customers_on_the_list_are_served() {
    covers!("6333-12");
    let listed = |prefixes: &[&str]| {
        let mut settings = settings6();
        settings.transition.softwires[0].subscribers = prefixes.iter().map(|prefix| prefix6(prefix)).collect();
        settings
    };
    // One is in another, and their order does not matter.
    let list = ["2001:db8:d::/48", "2001:db8:c:100::/64", "2001:db8:c:100::/56"];
    let mut bed = Bed6::new(listed(&list));
    let packet = build::udp(at(HOME, 5_000), at(E1, 53)).build();
    let expected = [
        (C6, true),
        ("2001:db8:c:1ff:ffff:ffff:ffff:ffff", true),
        ("2001:db8:c:200::", false),
        ("2001:db8:c:ff:ffff::", false),
        ("2001:db8:d::", true),
        ("2001:db8:e::", false),
        ("3fff::1", false),
    ];
    for (b4, is_served) in expected {
        let [back, out] = bed.inside(&from(b4, &packet));
        assert_eq!((back.len(), out.len()), (0, usize::from(is_served)), "{b4}");
        let verdict = if is_served { Verdict::Outbound } else { Verdict::SoftwireSubscriber };
        assert_eq!(bed.verdict(), Some(verdict), "{b4}");
        let whole = from(b4, &build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(1_400).build());
        let pieces = fragments6(&whole, &[800], 7);
        let out: usize = pieces.iter().map(|piece| bed.inside(piece)[1].len()).sum();
        assert_eq!(out, usize::from(is_served), "{b4} in fragments");
    }
    // NAT64 has no such list.
    let nat64 = udp6((v6("2001:db8:e::7"), 5_000), (behind(E1), 53), b"question");
    assert_eq!(bed.inside(&nat64)[1].len(), 1);
    bed.reload(listed(&["2001:db8:e::/48"]), |_| {}).expect("the list changes while traffic flows");
    assert_eq!(bed.inside(&from("2001:db8:e::", &packet))[1].len(), 1);
    assert_eq!(bed.inside(&from(C6, &packet))[1].len(), 0);
    bed.reload(listed(&[]), |_| {}).expect("without a list, all are served");
    assert_eq!(bed.inside(&from(C6, &packet))[1].len(), 1);
}

#[test]
fn large_packets_are_fragmented_around_not_inside() {
    covers!("6333-1", "6333-2");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()));
    let packet = build::udp(at(E1, 53), source(&out[0])).payload_length(1_472).build();
    for packet in
        [packet.clone(), build::udp(at(E1, 53), source(&out[0])).payload_length(1_472).dont_fragment().build()]
    {
        let [back, out] = bed.outside(&packet);
        assert!(out.is_empty());
        assert!(back.len() == 2 && back.iter().all(|piece| piece.len() <= 1_500));
        let whole = wire::build6::reassemble(&back).expect("fragments of one packet");
        let inner = inner_of(&whole, C6);
        assert_eq!((inner.len(), header(&inner).is_fragment()), (1_500, false));
    }
}

#[test]
fn fragments_of_a_softwire_in_any_order_make_the_packet() {
    covers!("6333-1");
    let mut bed = Bed6::new(settings6());
    let inner = build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(1_400).build();
    let fragments = fragments6(&from(C6, &inner), &[512, 512], 99);
    assert_eq!(fragments.len(), 3);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut left = Vec::new();
        for i in order {
            left.extend(bed.inside(&fragments[i])[1].clone());
        }
        assert_eq!((left.len(), bed.verdict()), (1, Some(Verdict::Outbound)));
        assert_eq!((destination(&left[0]), left[0].len()), (at(E1, 53), inner.len()));
    }
    assert_eq!(bed.count(Verdict::Reassembled), 6);
    // Half a packet.
    bed.inside(&fragments[0]);
    bed.advance(Duration::from_secs(30));
    assert_eq!(bed.count(Verdict::FragmentTimeout), 1);
}

#[test]
fn memory_for_fragments_is_reported_before_it_is_full() {
    covers!("6333-3");
    let mut bed = Bed6::new(settings6()).record_events(256);
    let inner = build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(1_400).build();
    let refused = |bed: &Bed6| bed.count(Verdict::ReassemblyFull);
    let mut begun = Vec::new();
    // Of 48 datagrams, and at most eight of one customer, who has a /56.
    for number in 0..48 {
        let b4 = format!("2001:db8:c:{:x}::1", 0x100 * (1 + number / 8) + number);
        bed.inside(&fragments6(&from(&b4, &inner), &[512, 512], number)[0]);
        begun.extend(bed.take_events().into_iter().map(|event| (number + 1, event.kind, event.cause, event.amount)));
    }
    assert_eq!(begun, [(36, EventKind::ThresholdReached, Cause::Reassembly, 75)]);
    assert_eq!(refused(&bed), 0, "none was refused before");
    bed.inside(&fragments6(&from("2001:db8:c:1f0::1", &inner), &[512, 512], 99)[0]);
    assert_eq!((bed.verdict(), refused(&bed)), (Some(Verdict::ReassemblyQuota), 0), "another /64 of the first one");
    assert_eq!(bed.take_events().len(), 1);
    // Another customer is served: a packet of those who have the most makes room.
    for number in 64..70 {
        let pieces = fragments6(&from("2001:db8:d:200::1", &inner), &[512, 512], number);
        let left: Vec<_> = pieces.iter().flat_map(|piece| bed.inside(piece)[1].clone()).collect();
        assert_eq!(left.len(), 1, "{number}");
        bed.inside(&fragments6(&from("2001:db8:e:200::1", &inner), &[512, 512], number)[0]);
    }
    assert_eq!(refused(&bed), 6);
    let events: Vec<_> = bed.take_events().into_iter().filter(|event| event.kind == EventKind::Refused).collect();
    assert_eq!(events.len(), 1, "refusals are events, too, one for many: {events:?}");
    assert_eq!(events[0].cause, Cause::Verdict(Verdict::ReassemblyFull));
    bed.advance(Duration::from_secs(30));
    let ended = bed.take_events().into_iter().find(|event| event.cause == Cause::Reassembly).expect("it is over");
    assert_eq!((ended.kind, ended.amount), (EventKind::ThresholdCleared, 0));
}

#[test]
fn no_byte_of_another_customer_fills_a_gap() {
    covers!("6333-1");
    let mut bed = Bed6::new(settings6());
    let victim = build::udp(at(HOME, 5_000), at(E1, 53)).payload(&b"SECRET".repeat(230)).build();
    for piece in fragments6(&from(C6, &victim), &[800], 1) {
        bed.inside(&piece);
    }
    assert_eq!(bed.verdict(), Some(Verdict::Outbound));
    let inner = build::udp(at(HOME, 5_000), at(E1, 53)).payload(&[1; 1_372]).build();
    assert_eq!(inner.len(), 1_400);
    let pieces = fragments6(&from(D6, &inner), &[96, 1_208], 2);
    let behind = wire::ipv6::Fragment { offset: 4_096, more: true, identification: 2 };
    for order in [[1, 2, 0], [1, 0, 2], [2, 1, 0], [2, 0, 1], [0, 1, 2], [0, 2, 1]] {
        for place in order {
            let mut piece = pieces[place].clone();
            if place == 1 {
                behind.write(&mut piece, 40, 4);
            }
            let [_, out] = bed.inside(&piece);
            assert!(out.is_empty(), "1,208 bytes never came: {order:?}");
        }
        bed.advance(Duration::from_secs(3));
    }
}

#[test]
fn an_error_in_a_softwire_is_about_its_own_hosts() {
    let mut bed = Bed6::new(settings6());
    let neighbour = Ipv4Addr::new(192, 168, 1, 3);
    let mut mapped = Vec::new();
    for (b4, inner) in [(C6, HOME), (D6, HOME), (D6, neighbour)] {
        let [_, out] = bed.inside(&from(b4, &build::udp(at(inner, 5_000), at(E1, 53)).payload(b"question").build()));
        mapped.push(source(&out[0]));
    }
    let about = |host| build::udp(at(E1, 53), at(host, 5_000)).payload(b"answer").build();
    let error = |host| from(D6, &build::icmp_error(HOME, E1, 3, 3, &about(host)).build());
    for (host, expected) in [(HOME, mapped[1]), (neighbour, mapped[2])] {
        let [_, out] = bed.inside(&error(host));
        assert_eq!(destination(quote(&out[0])), expected, "a router in the home reports about its hosts");
    }
    for first in [0xe000_0000_u32, 0xf000_0000] {
        for number in first..first + 16 {
            let [_, out] = bed.inside(&error(number.into()));
            assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::IcmpQuoteNoMapping)), "{number:x}");
        }
    }
}

#[test]
fn malformed_softwires_are_dropped_by_name() {
    let mut bed = Bed6::new(settings6());
    let inner = build::udp(at(HOME, 5_000), at(E1, 53)).payload(b"question").build();
    let mut drop = |packet: &[u8], expected: Verdict| {
        let [_, out] = bed.inside(packet);
        assert_eq!((out.len(), bed.verdict()), (0, Some(expected)));
    };
    drop(&from(C6, &inner[..inner.len() - 1]), Verdict::SoftwireMalformed);
    drop(&from(C6, &[inner.as_slice(), b"more"].concat()), Verdict::SoftwireMalformed);
    drop(&from(C6, b"no packet"), Verdict::SoftwireMalformed);
    // A softwire in a softwire.
    drop(&from(C6, &from(D6, &inner)), Verdict::SoftwireMalformed);
    drop(&packet6(v6(C6), v6(AFTR), 17, &[0; 8]), Verdict::SoftwireMalformed);
    for source in ["::", "::1", "::7", "::ffff:1.2.3.4", "ff02::1", "fe80::1", AFTR, OWN6] {
        drop(&from(source, &inner), Verdict::SourceInvalid);
    }
    // Too short for the short way, and long enough.
    for payload in [&b"question"[..], &[7; 64]] {
        let inner = build::udp(at(HOME, 5_000), at(E1, 53)).payload(payload).build();
        let change = |at: usize, to: u8| {
            let mut bad = inner.clone();
            bad[at] = to;
            bad
        };
        drop(&from(C6, &change(10, !inner[10])), Verdict::IpBadChecksum);
        drop(&from(C6, &change(25, 7)), Verdict::TransportMalformed);
        drop(&from(C6, &change(24, 1)), Verdict::TransportMalformed);
    }
    let mut segment = build::tcp(at(HOME, 5_000), at(E1, 80), wire::tcp::Flags::SYN).payload(&[7; 64]).build();
    segment[32] = 4 << 4;
    drop(&from(C6, &segment), Verdict::TransportMalformed);
    assert_eq!(bed.mappings(), 0);
    let first = u32::from(Ipv4Addr::new(224, 0, 0, 0));
    assert!(
        (first..first + 64).all(|number| bed.shards()[0].view().host(HostNumber(number)).is_none()),
        "no host has a record"
    );
    bed.inside(&from(C6, &inner));
    assert!((first..first + 64).any(|number| bed.shards()[0].view().host(HostNumber(number)).is_some()), "now one has");
}

#[test]
fn a_connection_through_a_softwire_follows_its_states() {
    covers!("6333-8");
    let mut bed = Bed6::new(settings6());
    let segment = |flags, sequence, ack| {
        build::tcp(at(HOME, 5_000), at(E1, 80), wire::tcp::Flags(flags)).sequence(sequence).acknowledgment(ack).build()
    };
    let [_, out] = bed.inside(&from(C6, &segment(2, 1, 0)));
    let mapped = source(&out[0]);
    let [back, _] =
        bed.outside(&build::tcp(at(E1, 80), mapped, wire::tcp::Flags(0x12)).sequence(9).acknowledgment(2).build());
    assert_eq!(destination(&inner_of(&back[0], C6)), at(HOME, 5_000));
    bed.inside(&from(C6, &segment(0x10, 2, 10)));
    bed.advance(Duration::from_secs(7_000));
    let [_, out] = bed.inside(&from(C6, &segment(0x10, 2, 10)));
    assert_eq!(source(&out[0]), mapped, "established for two hours");
}

/// What RFC 4787 and 5508 require of any NAT, for a host behind a B4.
#[test]
fn a_softwire_has_what_is_required_of_any_nat() {
    covers!("6333-8");
    let mut bed = Bed6::new(settings6());
    let question = |port, to| build::udp(at(HOME, port), to).payload(b"question").build();
    let open = |bed: &mut Bed6, b4, packet: &[u8]| source(&bed.inside(&from(b4, packet))[1][0]);
    let mapped = open(&mut bed, C6, &question(5_000, at(E1, 53)));
    // RFC 4787 REQ-1: one mapping for all remotes. REQ-2: one address for all of a subscriber.
    for to in [at(E1, 54), at(E2, 53)] {
        assert_eq!(open(&mut bed, C6, &question(5_000, to)), mapped);
    }
    assert_eq!(open(&mut bed, C6, &question(5_001, at(E1, 53))).ip(), mapped.ip());
    let ping = open(&mut bed, C6, &build::echo_request(HOME, E1, 7).build());
    assert_eq!(ping.ip(), mapped.ip());
    // REQ-8: anybody may send to it.
    let answer = |remote, to| build::udp(remote, to).payload(b"answer").build();
    let reaches = |bed: &mut Bed6, remote| {
        let [back, _] = bed.outside(&answer(remote, mapped));
        back.first().map(|packet| destination(&inner_of(packet, C6)))
    };
    assert_eq!(reaches(&mut bed, at(E2, 9)), Some(at(HOME, 5_000)));
    // REQ-9: hosts reach each other by their external endpoints, and see these.
    let [back, out] = bed.inside(&from(D6, &question(6_000, mapped)));
    assert!(out.is_empty());
    let received = inner_of(&back[0], C6);
    assert_eq!(destination(&received), at(HOME, 5_000));
    let other = source(&received);
    assert!(POOL.contains(other.ip()) && other != mapped);
    let [back, _] = bed.inside(&from(C6, &question(5_000, other)));
    assert_eq!(destination(&inner_of(&back[0], D6)), at(HOME, 6_000));
    // REQ-12: an error ends no mapping. REQ-14: fragments in any order.
    let [_, out] = bed.inside(&from(C6, &question(5_000, at(E1, 53))));
    bed.outside(&build::icmp_error(E1, *mapped.ip(), 3, 3, &out[0]).build());
    let large = build::udp(at(E1, 53), mapped).payload_length(1_400).build();
    let pieces = build::fragment(&large, 600);
    let received: Vec<_> = pieces.iter().rev().flat_map(|piece| bed.outside(piece)[0].clone()).collect();
    let received: Vec<_> = received.iter().map(|packet| inner_of(packet, C6)).collect();
    assert_eq!(payload(&build::reassemble(&received).expect("one datagram")), payload(&large));
    // RFC 5508 REQ-1 and REQ-2: a query is answered for a minute.
    bed.advance(Duration::from_secs(59));
    let [back, _] = bed.outside(&build::echo_reply(E1, *ping.ip(), ping.port()).build());
    assert_eq!(source(&inner_of(&back[0], C6)), at(E1, 7));
    // REQ-5 and REQ-6: a mapping lasts for five minutes, and packets from inside extend it.
    bed.advance(Duration::from_secs(200));
    assert_eq!(open(&mut bed, C6, &question(5_000, at(E1, 53))), mapped);
    bed.advance(Duration::from_secs(299));
    assert_eq!(reaches(&mut bed, at(E1, 53)), Some(at(HOME, 5_000)));
    bed.advance(Duration::from_secs(2));
    assert_eq!(reaches(&mut bed, at(E1, 53)), None);
}

#[test]
fn a_softwire_is_that_of_rfc_2473() {
    covers!("6333-6");
    let mut bed = Bed6::new(settings6());
    for payload_length in [8, 200] {
        for tos in [0, 1, 2, 3, 0x28, 0xb8, 0xff] {
            let packet = build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(payload_length).ds_field(tos);
            let [_, out] = bed.inside(&with_class(tos, from(C6, &packet.build())));
            assert_eq!((header(&out[0]).ds_field(), ttl(&out[0])), (tos, 63));
            let answer = build::udp(at(E1, 53), source(&out[0])).payload_length(payload_length).ds_field(tos);
            let [back, _] = bed.outside(&answer.ttl(9).build());
            let view = view6(&back[0]);
            assert_eq!((view.traffic_class(), view.flow_label(), view.hop_limit()), (tos, 0, 64));
            let inner = inner_of(&back[0], C6);
            assert_eq!((header(&inner).ds_field(), ttl(&inner)), (tos, 8), "one hop, counted inside");
        }
    }
    // Whatever the hop limit of the softwire.
    let mut outer = from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build());
    outer[7] = 1;
    assert_eq!(bed.inside(&outer)[1].len(), 1);
}

#[test]
fn the_ports_of_a_customer_are_limited_and_bounded() {
    covers!("6333-10", "7785-2");
    let mut settings = settings6();
    settings.subscriber.ports_max = [4; 3];
    let mut bed = Bed6::new(settings);
    let mut open = |b4: u128, inner: Ipv4Addr, port| {
        let packet = softwire(b4, v6(AFTR), &build::udp(at(inner, port), at(E1, 53)).build());
        bed.inside(&packet)[1].len()
    };
    // Four ports, whatever the home and its B4 call themselves.
    let opened: usize =
        (0..8).map(|n| open(v6(C6) + u128::from(n % 2), Ipv4Addr::new(192, 168, 1, n as u8), 5_000 + n)).sum();
    assert_eq!(opened, 4);
    assert_eq!((0..8).map(|n| open(v6(D6), HOME, 5_000 + n)).sum::<usize>(), 4, "another customer has its own");
    assert_eq!(bed.count(Verdict::SubscriberPortQuota), 8);
}

#[test]
fn a_rule_drops_what_customers_send() {
    let matches =
        nat::rules::Match { destination: nat::types::Prefix::new(E2, 32).expect("a prefix"), ..nat::rules::Match::ALL };
    let mut bed = Bed6::new(settings6().rule(matches, nat::settings::RuleAction::Drop));
    let packet = |to| from(C6, &build::udp(at(HOME, 5_000), at(to, 53)).build());
    assert_eq!(bed.inside(&packet(E2))[1].len(), 0);
    assert_eq!(bed.verdict(), Some(Verdict::DroppedByRule));
    assert_eq!(bed.inside(&packet(E1))[1].len(), 1);
}

#[test]
fn a_rule_without_translation_does_not_let_hosts_out() {
    // A host has no address that IPv4 knows.
    let mut bed = Bed6::new(settings6().rule(nat::rules::Match::ALL, nat::settings::RuleAction::NoTranslation));
    for packet in [
        from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()),
        udp6((v6(C6), 5_000), (behind(E1), 53), b"x"),
        from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(200).build()),
    ] {
        let [back, out] = bed.inside(&packet);
        assert!(back.is_empty() && out.is_empty());
    }
    assert_eq!(bed.mappings(), 0);
}

#[test]
fn the_class_of_a_softwire_is_that_of_its_packet() {
    covers!("6333-6");
    let mut bed = Bed6::new(settings6());
    let mut identification = 0;
    // The session is new, and then established.
    for _ in 0..2 {
        for (outer, inner, left) in
            [(0xb8, 0x22, 0xba), (0, 0xb8, 0), (0x28, 0, 0x28), (0x2b, 0x02, 0x2b), (0xb8, 0xb9, 0xb9), (0xff, 1, 0xff)]
        {
            let packet = |length| build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(length).ds_field(inner);
            for length in [8, 200] {
                let [_, out] = bed.inside(&with_class(outer, from(C6, &packet(length).build())));
                assert_eq!(header(&out[0]).ds_field(), left, "{outer:02x} {inner:02x}");
            }
            // In fragments.
            identification += 1;
            let pieces = fragments6(&from(C6, &packet(1_400).build()), &[512, 512], identification);
            let out = pieces.into_iter().flat_map(|piece| bed.inside(&with_class(outer, piece))[1].clone());
            assert_eq!(header(&out.last().expect("one packet")).ds_field(), left, "{outer:02x} {inner:02x}");
        }
    }
}

#[test]
fn a_softwires_end_is_used_only_while_no_other_has_it() {
    covers!("4862-5.4");
    let mut settings = settings6();
    settings.port_control.pcp = true;
    settings.transition.softwires[0].aftr = v6(OWN6).into();
    let mut bed = Bed6::new(settings);
    let to_aftr = |packet: &[u8]| softwire(v6(C6), v6(OWN6), packet);
    let packet = build::udp(at(HOME, 5_000), at(E1, 53)).build();
    let mut expiring = to_aftr(&packet);
    expiring[40..60].copy_from_slice(&build::udp(at(HOME, 5_000), at(E1, 53)).ttl(1).build()[..20]);
    let ping = to_aftr(&build::echo_request(HOME, AFTR_INSIDE, 7).build());
    let fragments =
        fragments6(&to_aftr(&build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(900).build()), &[512], 9);
    let request = udp6((v6(C6), 6_000), (v6(OWN6), 5_351), &[2; 24]);
    let [_, out] = bed.inside(&to_aftr(&packet));
    let mapped = source(&out[0]);
    let answer = |length| build::udp(at(E1, 53), mapped).payload_length(length).build();
    assert_eq!(bed.inside(&request)[0].len(), 1, "an answer");
    for now in [AddressUse::Tentative, AddressUse::Preferred, AddressUse::Duplicate] {
        bed.set_address_use(v6(OWN6), now);
        if now == AddressUse::Preferred {
            assert_eq!(bed.inside(&to_aftr(&packet))[1].len(), 1);
            assert_eq!(bed.outside(&answer(8))[0].len(), 1);
            continue;
        }
        for packet in [to_aftr(&packet), expiring.clone(), ping.clone(), request.clone()].iter().chain(&fragments) {
            assert_eq!(bed.inside(packet).concat(), Vec::<Vec<u8>>::new(), "{now:?}");
            assert_eq!(bed.verdict(), Some(Verdict::AddressNotUsed), "{now:?}");
        }
        for length in [8, 1_400, 1_472] {
            assert_eq!(bed.outside(&answer(length)).concat().len(), 0, "{now:?}");
            assert_eq!(bed.verdict(), Some(Verdict::AddressNotUsed), "{now:?}");
        }
    }
}

#[test]
fn a_mark_of_congestion_on_the_softwire_is_kept() {
    covers!("6333-6", "6040-4.2");
    // RFC 6040 §4.2: rows are the inner mark, columns the outer one; `None` is a drop.
    let table = [
        (0, [Some(0), Some(0), Some(0), None]),
        (1, [Some(1), Some(1), Some(1), Some(3)]),
        (2, [Some(2), Some(1), Some(2), Some(3)]),
        (3, [Some(3), Some(3), Some(3), Some(3)]),
    ];
    let mut bed = Bed6::new(settings6());
    for payload_length in [8, 200] {
        for (inner, row) in table {
            for (outer, expected) in [0, 1, 2, 3].into_iter().zip(row) {
                let packet =
                    build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(payload_length).ds_field(0x28 | inner);
                let [_, out] = bed.inside(&with_class(0x28 | outer, from(C6, &packet.build())));
                assert_eq!(
                    out.first().map(|it| header(it).ds_field()),
                    expected.map(|mark| 0x28 | mark),
                    "{inner} {outer}"
                );
            }
        }
    }
}

#[test]
fn a_mark_of_congestion_on_one_fragment_is_kept() {
    covers!("6333-6", "6040-4.2");
    let mut bed = Bed6::new(settings6());
    let mut identification = 0;
    for (inner, expected) in [(0, None), (1, Some(3)), (2, Some(3)), (3, Some(3))] {
        for marked in 0..3 {
            let packet = build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(1_400).ds_field(0x28 | inner);
            let mut left = Vec::new();
            identification += 1;
            for (place, piece) in
                fragments6(&from(C6, &packet.build()), &[512, 512], identification).into_iter().enumerate()
            {
                let mark = if place == marked { 3 } else { inner };
                left.extend(bed.inside(&with_class(0x28 | mark, piece))[1].clone());
            }
            let seen = left.first().map(|it| header(it).ds_field());
            assert_eq!(seen, expected.map(|mark| 0x28 | mark), "inner {inner}, fragment {marked}");
        }
    }
    assert_eq!(bed.count(Verdict::FragmentMalformed), 9, "each fragment of three packets");
}

#[test]
fn the_fragment_at_offset_0_gives_the_class() {
    covers!("6333-6", "8200-4.5", "3168-5.3");
    let mut bed = Bed6::new(settings6());
    let mut identification = 0;
    for (classes, expected) in [
        ([0xb8, 0x28, 0x00], Some(0xb8)),
        ([0xba, 0x2b, 0x02], Some(0xbb)),
        ([0xb9, 0x01, 0x02], Some(0xb9)),
        ([0xbb, 0x2a, 0x00], None),
    ] {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let packet = build::udp(at(HOME, 5_000), at(E1, 53)).payload_length(1_400).ds_field(0x2a);
            identification += 1;
            let pieces = fragments6(&from(C6, &packet.build()), &[512, 512], identification);
            let mut left = Vec::new();
            for place in order {
                left.extend(bed.inside(&with_class(classes[place], pieces[place].clone()))[1].clone());
            }
            let seen = left.first().map(|it| header(it).ds_field());
            // From 0xb8 the packet inside keeps its own mark (RFC 6040 §4.2).
            let expected = expected.map(|class| if class & 3 == 0 { class | 2 } else { class });
            assert_eq!(seen, expected, "{classes:02x?} in order {order:?}");
        }
    }
    assert_eq!(bed.count(Verdict::FragmentMalformed), 9);
}

#[test]
fn a_packet_too_big_makes_the_softwire_smaller() {
    covers!("6333-15");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()));
    let large = build::udp(at(E1, 53), source(&out[0])).payload_length(1_432).build();
    let [_, out] = bed.inside(&from(D6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()));
    let to_other = build::udp(at(E1, 53), source(&out[0])).payload_length(1_432).build();
    let [sent, _] = bed.outside(&large);
    assert_eq!((sent.len(), sent[0].len()), (1, 1_500));
    let router = v6("2001:db8:ffff::1");
    let too_big = |mtu, quote: &[u8]| icmp6_message(router, v6(AFTR), (2, 0), mtu, &quote[..quote.len().min(1_232)]);
    let drop = |bed: &mut Bed6, packet: &[u8], verdict| {
        let [back, out] = bed.inside(packet);
        assert!(back.is_empty() && out.is_empty());
        assert_eq!(bed.verdict(), Some(verdict));
        assert_eq!(bed.outside(&large)[0].len(), 1, "nothing has changed");
    };
    // Forged: too small, about another's softwire, and not about any.
    for mtu in [0, 68, 1_279] {
        drop(&mut bed, &too_big(mtu, &sent[0]), Verdict::IcmpQuoteMalformed);
    }
    let mut of_nobody = sent[0].clone();
    of_nobody[39] ^= 1;
    drop(&mut bed, &too_big(1_400, &of_nobody), Verdict::IcmpQuoteNoMapping);
    let mut from_nobody = sent[0].clone();
    from_nobody[23] ^= 1;
    drop(&mut bed, &too_big(1_400, &from_nobody), Verdict::IcmpQuoteNoMapping);
    let mut to_nobody = sent[0].clone();
    to_nobody[40 + 19] ^= 1;
    drop(&mut bed, &too_big(1_400, &to_nobody), Verdict::IcmpQuoteNoMapping);
    drop(&mut bed, &too_big(1_400, &sent[0][..50]), Verdict::IcmpQuoteMalformed);
    let mut damaged = too_big(1_400, &sent[0]);
    damaged[100] ^= 1;
    drop(&mut bed, &damaged, Verdict::IcmpBadChecksum);
    // A router's.
    let [back, out] = bed.inside(&too_big(1_400, &sent[0]));
    assert!(back.is_empty() && out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Local));
    let [back, _] = bed.outside(&large);
    assert!(back.len() == 2 && back.iter().all(|piece| piece.len() <= 1_400));
    assert_eq!(inner_of(&wire::build6::reassemble(&back).expect("one packet"), C6).len(), 1_460);
    assert_eq!(bed.outside(&to_other)[0].len(), 1, "other softwires are as large as before");
    // RFC 8201 §5.3: larger packets are tried again after ten minutes.
    bed.advance(Duration::from_secs(250));
    bed.inside(&from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()));
    assert_eq!(bed.outside(&large)[0].len(), 2);
    for _ in 0..2 {
        bed.advance(Duration::from_secs(200));
        bed.inside(&from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()));
    }
    assert_eq!(bed.outside(&large)[0].len(), 1);
}

#[test]
fn a_router_that_is_no_subscriber_reports_sizes() {
    covers!("6333-12", "6333-15");
    let mut settings = settings6();
    settings.transition.softwires[0].subscribers = vec![prefix6("2001:db8:c::/48")];
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&from(C6, &build::udp(at(HOME, 5_000), at(E1, 53)).build()));
    let large = build::udp(at(E1, 53), source(&out[0])).payload_length(1_432).build();
    let [sent, _] = bed.outside(&large);
    let router = v6("2001:db8:ffff::1");
    let too_big = |quote: &[u8]| icmp6_message(router, v6(AFTR), (2, 0), 1_400, &quote[..1_232]);
    // About the softwire of somebody who is no subscriber, either.
    let mut of_other = sent[0].clone();
    of_other[24..40].copy_from_slice(&v6(D6).to_be_bytes());
    bed.inside(&too_big(&of_other));
    assert_eq!((bed.verdict(), bed.outside(&large)[0].len()), (Some(Verdict::SoftwireSubscriber), 1));
    bed.inside(&too_big(&sent[0]));
    assert_eq!((bed.verdict(), bed.outside(&large)[0].len()), (Some(Verdict::Local), 2));
}

#[test]
fn a_packet_too_big_finds_the_worker_of_its_softwire() {
    covers!("6333-15");
    let mut bed = Bed6::with_workers(settings6(), 4);
    for n in 0..16_u128 {
        let b4 = v6("2001:db8:c:100::6") + (n << 72);
        let packet = softwire(b4, v6(AFTR), &build::udp(at(HOME, 5_000), at(E1, 53)).build());
        let [_, out] = bed.receive(0, topology::INSIDE, &packet);
        let large = build::udp(at(E1, 53), source(&out[0])).payload_length(1_432).build();
        let [sent, _] = bed.receive(1, topology::OUTSIDE, &large);
        let error = icmp6_message(v6("2001:db8:ffff::1"), v6(AFTR), (2, 0), 1_300, &sent[0][..100]);
        bed.receive(n as usize % 4, topology::INSIDE, &error);
        let [back, _] = bed.receive(2, topology::OUTSIDE, &large);
        assert!(back.len() == 2 && back.iter().all(|piece| piece.len() <= 1_300), "{n}");
    }
}
