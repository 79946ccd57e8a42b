//! Realms with overlapping internal addresses.

use std::net::SocketAddrV4;

use super::*;

const RED: InterfaceId = InterfaceId(0);
const OUT: InterfaceId = InterfaceId(1);
const BLUE: InterfaceId = InterfaceId(2);

/// Both realms have 100.64.0.0/24, in which Natrix is 100.64.0.1 (red) or 100.64.0.2 (blue), and a
/// pool.
fn two_realms() -> Settings {
    let mut settings = settings();
    let mut blue = settings.interfaces[0].clone();
    blue.name = "blue".to_owned();
    blue.realm = RealmId(1);
    blue.addresses = vec![InterfaceAddress { address: Ipv4Addr::new(100, 64, 0, 2), prefix_length: 24 }];
    settings.interfaces.push(blue);
    settings.realm_names = vec!["red".to_owned(), "blue".to_owned()];
    settings.pools[0].addresses = vec![Ipv4Addr::new(203, 0, 113, 1)];
    settings.pools[0].realms = vec![RealmId(0)];
    let shared = Pool {
        name: "b".to_owned(),
        addresses: vec![Ipv4Addr::new(203, 0, 113, 129)],
        realms: vec![RealmId(1)],
        ..Pool::default()
    };
    settings.pools.push(shared);
    settings
}

fn shard_of(settings: Settings) -> Shard {
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices")
}

fn external(packet: &[u8]) -> SocketAddrV4 {
    let (address, port) = source_of(packet);
    SocketAddrV4::new(address, port)
}

/// First packet, further mapping (the short way), established packets and fragments.
#[test]
fn the_same_internal_endpoint_in_two_realms_is_two_endpoints() {
    // covers: 6888-REQ-2n
    let mut shard = shard_of(two_realms());
    let server = build::endpoint([198, 51, 100, 1], 53);
    for port in 5_000..5_003 {
        let question = build::udp(build::endpoint([100, 64, 0, 10], port), server).payload(b"question").build();
        let mut externals = Vec::new();
        for (realm, address) in [(RED, [203, 0, 113, 1]), (BLUE, [203, 0, 113, 129])] {
            let (verdict, left) = send_by(&mut shard, 0, realm, &question);
            assert_eq!((verdict, left[0].0), (Some(Verdict::Outbound), OUT));
            let outside = external(&left[0].1);
            assert_eq!(outside.ip().octets(), address, "each realm has its pool");
            assert_eq!(external(&send_by(&mut shard, 1, realm, &question).1[0].1), outside);
            externals.push((realm, outside));
        }
        for (realm, outside) in externals {
            let answer = build::udp(server, outside).payload(b"answer").build();
            let (verdict, left) = send_by(&mut shard, 1, OUT, &answer);
            assert_eq!((verdict, left[0].0), (Some(Verdict::Inbound), realm));
            assert_eq!(&left[0].1[16..20], [100, 64, 0, 10]);
            let large = build::udp(server, outside).payload_length(2_000).build();
            for piece in build::fragment(&large, 1_500) {
                for (interface, _) in send_by(&mut shard, 1, OUT, &piece).1 {
                    assert_eq!(interface, realm);
                }
            }
        }
    }
    assert_eq!(shard.view().mappings_len(), 6);
    let mut all = Query::all(Filter::default());
    shard.view().subscribers_page(Instant::ORIGIN, &mut all);
    let mut realms: Vec<RealmId> = all.records.iter().map(|view| view.realm).collect();
    realms.sort_unstable();
    assert_eq!(realms, [RealmId(0), RealmId(1)]);
}

#[test]
fn equal_fragments_of_two_realms_are_two_datagrams() {
    let mut shard = shard_of(two_realms());
    let (i1, e1) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 80));
    let whole = |byte: u8| build::udp(i1, e1).payload(&[byte; 4_000]).identification(77).build();
    let (red, blue) = (build::fragment(&whole(b'r'), 1_500), build::fragment(&whole(b'b'), 1_500));
    let mut left = [Vec::new(), Vec::new()];
    for (red, blue) in red.iter().zip(&blue).rev() {
        for (realm, piece) in [(RED, red), (BLUE, blue)] {
            for (_, packet) in send_by(&mut shard, 0, realm, piece).1 {
                left[usize::from(packet[15] == 129)].push(packet);
            }
        }
    }
    for (pieces, byte) in left.iter().zip([b'r', b'b']) {
        let whole = build::reassemble(pieces).expect("one datagram");
        assert_eq!(verify::faults(&whole), []);
        assert!(whole[28..].iter().all(|seen| *seen == byte), "no byte of the other realm");
    }
}

#[test]
fn an_error_reaches_the_realm_whose_packet_it_is_about() {
    let mut shard = shard_of(two_realms());
    let (i1, e1) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 80));
    let question = build::udp(i1, e1).payload(b"question").build();
    let router = Ipv4Addr::new(198, 51, 100, 254);
    for realm in [RED, BLUE] {
        let sent = send_by(&mut shard, 0, realm, &question).1[0].1.clone();
        let error = build::icmp_error(router, external(&sent).ip().to_owned(), 3, 1, &sent).build();
        let (verdict, left) = send_by(&mut shard, 0, OUT, &error);
        assert_eq!((verdict, left[0].0), (Some(Verdict::Inbound), realm));
        // Natrix's own error returns the way the packet came.
        let expired = build::udp(i1, e1).ttl(1).build();
        let (verdict, left) = send_by(&mut shard, 0, realm, &expired);
        assert_eq!((verdict, left[0].0), (Some(Verdict::TtlExpired), realm));
        assert_eq!(left[0].1[15], if realm == RED { 1 } else { 2 }, "from Natrix's address in that realm");
    }
}

#[test]
fn an_address_of_another_realm_is_not_our_own() {
    let mut shard = shard_of(two_realms());
    let e1 = build::endpoint([198, 51, 100, 1], 80);
    // 100.64.0.1 is Natrix in the red realm and a subscriber in the blue one.
    let packet = build::udp(build::endpoint([100, 64, 0, 1], 5_000), e1).build();
    assert_eq!(send_by(&mut shard, 0, RED, &packet).0, Some(Verdict::SourceSpoofed));
    assert_eq!(send_by(&mut shard, 0, BLUE, &packet).0, Some(Verdict::Outbound));
    let ping = build::echo_request([100, 64, 0, 9].into(), [100, 64, 0, 2].into(), 1).build();
    assert_eq!(send_by(&mut shard, 0, BLUE, &ping).0, Some(Verdict::Local));
    assert_ne!(send_by(&mut shard, 0, RED, &ping).0, Some(Verdict::Local));
}

#[test]
fn realms_reach_each_other_by_hairpinning_unless_forbidden() {
    for (is_allowed, expected) in [(true, Verdict::Hairpin), (false, Verdict::HairpinRefused)] {
        let mut shard = shard_of(Settings { hairpin_between_realms: is_allowed, ..two_realms() });
        let e1 = build::endpoint([198, 51, 100, 1], 80);
        let (red, blue) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([100, 64, 0, 10], 6_000));
        let other = build::endpoint([100, 64, 0, 11], 7_000);
        let red_outside = external(&send_by(&mut shard, 0, RED, &build::udp(red, e1).build()).1[0].1);
        let blue_outside = external(&send_by(&mut shard, 0, BLUE, &build::udp(blue, e1).build()).1[0].1);
        for (from, source, to, arrives) in
            [(RED, red, blue_outside, BLUE), (BLUE, blue, red_outside, RED), (RED, other, blue_outside, BLUE)]
        {
            let before = shard.view().mappings_len();
            let packet = build::udp(source, to).payload(b"peer").build();
            let meant = shard.explain(Instant::ORIGIN, shard.shared().facing(from), &packet).verdict;
            let (verdict, left) = send_by(&mut shard, 0, from, &packet);
            assert_eq!((verdict, meant), (Some(expected), expected));
            if is_allowed {
                assert_eq!(left[0].0, arrives);
            } else {
                assert_eq!((left.len(), shard.view().mappings_len()), (0, before), "nothing is left behind");
            }
        }
        // The policy does not apply within a realm.
        let packet = build::udp(other, red_outside).build();
        assert_eq!(send_by(&mut shard, 0, RED, &packet).0, Some(Verdict::Hairpin));
    }
}

#[test]
fn a_realm_that_no_pool_serves_is_refused() {
    let mut settings = two_realms();
    settings.pools.pop();
    let mut shard = shard_of(settings);
    let packet = build::udp(build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 80)).build();
    assert_eq!(send_by(&mut shard, 0, BLUE, &packet).0, Some(Verdict::SourceNotSubscriber));
    assert_eq!(send_by(&mut shard, 0, RED, &packet).0, Some(Verdict::Outbound));
}
