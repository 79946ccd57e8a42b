//! Static port forwards and one-to-one pools.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::rules::Match;
use nat::settings::Admission;
use nat::settings::FilterAction;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Pool;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// A subscriber with a forwarded port, and its external address.
const SERVER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 80);
/// A subscriber with a one-to-one address, and that address.
const WHOLE: Ipv4Addr = Ipv4Addr::new(100, 64, 9, 2);
const WHOLE_OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 66);

fn forward(protocol: Protocol, ports: (u16, u16), inside_port: u16) -> Forward {
    Forward {
        realm: RealmId::default(),
        protocol,
        external: POOL[1],
        ports,
        inside: SERVER.into(),
        inside_port,
        admission: Admission::Anyone,
    }
}

fn with_forwards() -> Settings {
    let mut settings = settings();
    settings.forwards = vec![forward(Protocol::Tcp, (8_000, 8_009), 80), forward(Protocol::Udp, (53, 53), 5_353)];
    settings
}

/// 203.0.113.64/30 is that of 100.64.9.0/30.
fn with_one_to_one() -> Settings {
    let mut settings = settings();
    settings.pools.push(Pool {
        name: "servers".into(),
        addresses: (64..68).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect(),
        subscribers: vec![topology::prefix([100, 64, 9, 0], 30)],
        one_to_one: true,
        ..Pool::default()
    });
    settings
}

/// The same with one worker and with several that get packets at random.
fn beds(settings: &Settings) -> [Bed; 2] {
    let bed = || Bed::new(settings.clone());
    [bed(), bed().workers(4).steering(Steering::Wrong)]
}

fn syn(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    build::tcp(from, to, Flags::SYN).sequence(1).mss(1460).build()
}

#[test]
fn a_forwarded_tcp_port_is_open_from_outside_to_anyone() {
    for filtering in [Filtering::EndpointIndependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&with_forwards().filtering(filtering)) {
            for client in [at(E1, 4_000), at(E1, 4_001), at(E2, 4_000)] {
                bed.outside(&syn(client, at(POOL[1], 8_003)));
                let came = bed.only_inside();
                assert_eq!((source(&came), destination(&came)), (client, at(SERVER, 83)));
                let answer =
                    build::tcp(at(SERVER, 83), client, Flags::SYN.union(Flags::ACK)).sequence(9).acknowledgment(2);
                bed.inside(&answer.build());
                let went = bed.only_outside();
                assert_eq!((source(&went), destination(&went)), (at(POOL[1], 8_003), client));
                bed.outside(&build::tcp(client, at(POOL[1], 8_003), Flags::ACK).sequence(2).acknowledgment(10).build());
                assert_eq!(destination(&bed.only_inside()), at(SERVER, 83));
            }
            assert_eq!((bed.mappings().len(), bed.sessions().len()), (1, 3), "one mapping, as any other");
            // Next to it nothing is open.
            for port in [7_999, 8_010] {
                bed.outside(&syn(at(E1, 4_000), at(POOL[1], port)));
            }
            bed.outside(&build::udp(at(E1, 4_000), at(POOL[1], 8_003)).payload(b"x").build());
            bed.assert_silent();
            bed.run_out();
        }
    }
}

#[test]
fn a_forwarded_udp_port_works_again_after_its_mapping_ended() {
    covers!("6888-REQ-8b");
    for mut bed in beds(&with_forwards()) {
        for _ in 0..3 {
            assert!(bed.udp_reaches(at(E1, 9), at(POOL[1], 53), at(SERVER, 5_353)));
            bed.inside(&build::udp(at(SERVER, 5_353), at(E1, 9)).payload(b"answer").build());
            let answer = bed.only_outside();
            assert_eq!((source(&answer), destination(&answer)), (at(POOL[1], 53), at(E1, 9)));
            assert!(bed.udp_reaches(at(E2, 77), at(POOL[1], 53), at(SERVER, 5_353)));
            assert_eq!(bed.mappings().len(), 1);
            bed.advance_secs(310);
            assert_eq!((bed.mappings().len(), bed.ports_held()), (0, 0), "its port needs no rest");
        }
        // Not swept yet, but over: it is activated all the same.
        assert!(bed.udp_reaches(at(E1, 9), at(POOL[1], 53), at(SERVER, 5_353)));
        bed.jump(Duration::from_secs(301));
        assert!(bed.udp_reaches(at(E2, 9), at(POOL[1], 53), at(SERVER, 5_353)));
        assert_eq!(bed.mappings().len(), 1);
        bed.run_out();
    }
}

#[test]
fn the_server_itself_always_leaves_from_its_forwarded_port() {
    for mut bed in beds(&with_forwards()) {
        // Also with the first packet, and its other ports have the same address.
        assert_eq!(bed.open_udp(at(SERVER, 5_353), at(E1, 9)), at(POOL[1], 53));
        assert_eq!(bed.connect(at(SERVER, 85), at(E1, 80)), at(POOL[1], 8_005));
        assert_eq!(*bed.open_udp(at(SERVER, 1_234), at(E1, 9)).ip(), POOL[1]);
        assert_eq!(bed.open_udp(at(SERVER, 5_353), at(E2, 9)), at(POOL[1], 53), "to any remote host");
        // Another inside host with the same port gets another endpoint.
        assert_ne!(bed.open_udp(at(I1, 5_353), at(E1, 9)), at(POOL[1], 53));
        bed.run_out();
    }
}

#[test]
fn forwarded_ports_are_never_given_to_another_subscriber() {
    // Exactly the ten forwarded ports and six others.
    let mut wanted = with_forwards().addresses(&POOL[1..2]).ports(8_000, 8_015);
    wanted.pools[0].reuse_delay = Duration::ZERO;
    let mut bed = Bed::new(wanted);
    for _ in 0..3 {
        let mut seen = Vec::new();
        for number in 0..20_u16 {
            bed.inside(&syn(at(I1, 5_000 + number), at(E1, 80)));
            seen.extend(bed.take_outside().iter().map(|packet| source(packet).port()));
            bed.take_inside();
        }
        seen.sort_unstable();
        assert_eq!(seen, (8_010..8_016).collect::<Vec<u16>>());
        // And the pool being full is nothing to the server.
        assert_eq!(bed.open_tcp(at(SERVER, 80), at(E1, 80)), at(POOL[1], 8_000));
        bed.advance_secs(250);
        assert_eq!((bed.mappings().len(), bed.ports_used()), (0, 0));
    }
}

#[test]
fn a_subscriber_reaches_a_forward_by_its_outside_address() {
    covers!("7857-12b");
    for mut bed in beds(&with_forwards()) {
        // Nobody has used it before.
        bed.inside(&build::udp(at(I1, 5_000), at(POOL[1], 53)).payload(b"q").build());
        let came = bed.only_inside();
        assert_eq!(destination(&came), at(SERVER, 5_353));
        let client = source(&came);
        assert_ne!(*client.ip(), I1, "it shows its external endpoint");
        bed.inside(&build::udp(at(SERVER, 5_353), client).payload(b"a").build());
        let back = bed.only_inside();
        assert_eq!((source(&back), destination(&back)), (at(POOL[1], 53), at(I1, 5_000)));
        // And TCP, from the server itself too.
        for host in [I2, SERVER] {
            bed.inside(&syn(at(host, 6_000), at(POOL[1], 8_000)));
            assert_eq!(destination(&bed.only_inside()), at(SERVER, 80));
        }
        bed.run_out();
    }
}

#[test]
fn with_admission_as_pool_the_pools_filtering_applies() {
    let mut wanted = with_forwards().filtering(Filtering::AddressDependent);
    for forward in &mut wanted.forwards {
        forward.admission = Admission::AsPool;
    }
    for mut bed in beds(&wanted) {
        assert!(!bed.udp_reaches(at(E1, 9), at(POOL[1], 53), at(SERVER, 5_353)));
        bed.outside(&syn(at(E1, 4_000), at(POOL[1], 8_000)));
        assert_eq!((bed.count(Verdict::Filtered), bed.count(Verdict::UnsolicitedSyn)), (1, 1));
        assert_eq!(bed.mappings(), []);
        assert_eq!(bed.open_udp(at(SERVER, 5_353), at(E1, 1)), at(POOL[1], 53));
        assert!(bed.udp_reaches(at(E1, 9), at(POOL[1], 53), at(SERVER, 5_353)));
        assert!(!bed.udp_reaches(at(E2, 9), at(POOL[1], 53), at(SERVER, 5_353)));
    }
}

#[test]
fn what_opens_nothing_wakes_no_forward() {
    for mut bed in beds(&with_forwards()) {
        let to = at(POOL[1], 8_000);
        for flags in [Flags::ACK, Flags::RST, Flags::FIN, Flags::SYN.union(Flags::ACK)] {
            bed.outside(&build::tcp(at(E1, 4_000), to, flags).build());
        }
        bed.outside(&build::tcp(at(E1, 4_000), to, Flags::SYN).ttl(1).build());
        bed.outside(&build::udp(at(E1, 9), at(POOL[1], 53)).ttl(1).build());
        // Forged sources.
        for source in [I1, POOL[0], OWN_OUTSIDE] {
            bed.outside(&build::udp(at(source, 9), at(POOL[1], 53)).payload(b"x").build());
        }
        assert_eq!((bed.mappings(), bed.subscribers(), bed.ports_used()), (vec![], vec![], 0));
        assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new());
    }
}

#[test]
fn fragments_reach_a_forward_in_any_order() {
    for mut bed in beds(&with_forwards()) {
        let whole = build::udp(at(E1, 9), at(POOL[1], 53)).payload_length(2_000).build();
        let piece = |from: usize, to: usize, bits: u16| {
            let raw = build::raw(E1, POOL[1], 17).identification(7).fragment_bits(bits);
            raw.payload(&whole[20 + from..20 + to]).build()
        };
        let pieces = [piece(0, 1_024, 0x2000), piece(1_024, 2_008, 128)];
        for piece in pieces.iter().rev() {
            bed.outside(piece);
        }
        let came = bed.take_inside();
        assert_eq!(came.len(), pieces.len());
        assert!(came.iter().all(|piece| *destination(piece).ip() == SERVER));
        assert_eq!(bed.mappings().len(), 1);
    }
}

#[test]
fn errors_about_a_forward_are_translated_also_when_it_sleeps() {
    covers!("7857-12b");
    for mut bed in beds(&with_forwards()) {
        let outside_view = build::udp(at(POOL[1], 53), at(E1, 9)).payload(b"late").build();
        bed.outside(&build::icmp_error(E2, POOL[1], 3, 3, &outside_view).build());
        let error = bed.only_inside();
        assert_eq!((*destination(&error).ip(), source(quote(&error))), (SERVER, at(SERVER, 5_353)));
        let inside_view = build::udp(at(E1, 9), at(SERVER, 5_353)).payload(b"closed").build();
        bed.inside(&build::icmp_error(SERVER, E1, 3, 3, &inside_view).build());
        let error = bed.only_outside();
        assert_eq!((*source(&error).ip(), destination(quote(&error))), (POOL[1], at(POOL[1], 53)));
        assert_eq!(bed.mappings(), [], "an error makes nothing");
    }
}

#[test]
fn one_to_one_addresses_keep_ports_and_serve_all_protocols() {
    covers!("7857-12a", "5508-REQ-7");
    for mut bed in beds(&with_one_to_one()) {
        for port in [1, 80, 1_023, 1_024, 50_000, 65_535] {
            assert_eq!(bed.open_udp(at(WHOLE, port), at(E1, 9)), at(WHOLE_OUTSIDE, port));
            assert_eq!(bed.open_tcp(at(WHOLE, port), at(E1, 80)), at(WHOLE_OUTSIDE, port));
            assert_eq!(bed.ping(WHOLE, port, E1), at(WHOLE_OUTSIDE, port));
            assert!(bed.udp_reaches(at(E2, 7), at(WHOLE_OUTSIDE, port), at(WHOLE, port)), "and from anyone");
        }
        // Nobody has sent from these.
        assert!(bed.udp_reaches(at(E1, 9), at(WHOLE_OUTSIDE, 4_444), at(WHOLE, 4_444)));
        bed.outside(&syn(at(E1, 4_000), at(WHOLE_OUTSIDE, 22)));
        assert_eq!(destination(&bed.only_inside()), at(WHOLE, 22));
        // The neighbours have theirs.
        let neighbour = Ipv4Addr::new(100, 64, 9, 3);
        assert_eq!(bed.open_udp(at(neighbour, 80), at(E1, 9)), at(Ipv4Addr::new(203, 0, 113, 67), 80));
        bed.run_out();
    }
}

#[test]
fn a_ping_from_outside_to_a_one_to_one_address_is_answered() {
    covers!("7857-12a", "5508-REQ-7");
    for mut bed in beds(&with_one_to_one()) {
        for (from, identifier) in [(E1, 7), (E2, 7), (E1, 8), (E1, 0)] {
            bed.outside(&build::echo_request(from, WHOLE_OUTSIDE, identifier).payload_length(20).build());
            let came = bed.only_inside();
            assert_eq!((*source(&came).ip(), *destination(&came).ip()), (from, WHOLE));
            bed.inside(&build::echo_reply(WHOLE, from, identifier).payload_length(20).build());
            let went = bed.only_outside();
            assert_eq!((*source(&went).ip(), *destination(&went).ip()), (WHOLE_OUTSIDE, from));
            assert_eq!(packet::icmp(&went).icmp_type(), 0);
        }
        // An answer that nobody asked for, from either side.
        bed.inside(&build::echo_reply(WHOLE, E1, 99).build());
        bed.outside(&build::echo_reply(E1, WHOLE_OUTSIDE, 99).build());
        bed.assert_silent();
        bed.run_out();
    }
}

#[test]
fn a_subscriber_pings_a_one_to_one_address_through_a_hairpin() {
    covers!("7857-12a", "7857-12b", "5508-REQ-7");
    for mut bed in beds(&with_one_to_one()) {
        let neighbour = Ipv4Addr::new(100, 64, 9, 1);
        for pinger in [I1, neighbour] {
            bed.inside(&build::echo_request(pinger, WHOLE_OUTSIDE, 300).payload_length(20).build());
            let came = bed.only_inside();
            assert_eq!(*destination(&came).ip(), WHOLE);
            let (asker, identifier) = (*source(&came).ip(), packet::icmp(&came).identifier());
            assert_ne!(asker, pinger);
            bed.inside(&build::echo_reply(WHOLE, asker, identifier).payload_length(20).build());
            let back = bed.only_inside();
            assert_eq!((*source(&back).ip(), *destination(&back).ip()), (WHOLE_OUTSIDE, pinger));
            assert_eq!(packet::icmp(&back).identifier(), 300);
            // An error about the ping goes back the same way.
            let seen = build::echo_request(asker, WHOLE, identifier).payload_length(20).build();
            bed.inside(&build::icmp_error(WHOLE, asker, 3, 1, &seen).build());
            let error = bed.only_inside();
            assert_eq!((*source(&error).ip(), *destination(&error).ip()), (WHOLE_OUTSIDE, pinger));
            assert_eq!((*source(quote(&error)).ip(), *destination(quote(&error)).ip()), (pinger, WHOLE_OUTSIDE));
        }
        // Of the pool that many share nobody can be pinged.
        bed.open_udp(at(I2, 5_000), at(E1, 9));
        bed.inside(&build::echo_request(I1, POOL[0], 1).build());
        bed.assert_silent();
    }
}

#[test]
fn two_one_to_one_addresses_talk_to_each_other() {
    for mut bed in beds(&with_one_to_one()) {
        let other = Ipv4Addr::new(100, 64, 9, 0);
        let other_outside = Ipv4Addr::new(203, 0, 113, 64);
        bed.inside(&build::udp(at(WHOLE, 500), at(other_outside, 500)).payload(b"q").build());
        let came = bed.only_inside();
        assert_eq!((source(&came), destination(&came)), (at(WHOLE_OUTSIDE, 500), at(other, 500)));
        bed.inside(&build::udp(at(other, 500), at(WHOLE_OUTSIDE, 500)).payload(b"a").build());
        let back = bed.only_inside();
        assert_eq!((source(&back), destination(&back)), (at(other_outside, 500), at(WHOLE, 500)));
        bed.run_out();
    }
}

#[test]
fn what_is_explained_is_what_happens() {
    let mut settings = with_one_to_one();
    settings.forwards = with_forwards().forwards;
    let mut bed = Bed::new(settings);
    let packets: Vec<(Side, Vec<u8>)> = vec![
        (Side::Outside, syn(at(E1, 1), at(POOL[1], 8_000))),
        (Side::Outside, build::tcp(at(E1, 1), at(POOL[1], 8_001), Flags::ACK).build()),
        (Side::Outside, build::udp(at(E1, 1), at(POOL[1], 53)).build()),
        (Side::Outside, build::udp(at(I1, 1), at(POOL[1], 53)).build()),
        (Side::Outside, build::udp(at(E1, 1), at(POOL[1], 54)).build()),
        (Side::Outside, build::echo_request(E1, WHOLE_OUTSIDE, 5).build()),
        (Side::Outside, build::echo_reply(E1, WHOLE_OUTSIDE, 6).build()),
        (Side::Outside, build::echo_request(E1, POOL[0], 5).build()),
        (Side::Outside, build::udp(at(E1, 1), at(WHOLE_OUTSIDE, 9)).ttl(1).build()),
        (Side::Outside, build::udp(at(E1, 1), at(WHOLE_OUTSIDE, 9)).build()),
        (Side::Inside, build::echo_reply(WHOLE, E1, 5).build()),
        (Side::Inside, build::echo_reply(WHOLE, E1, 77).build()),
        (Side::Inside, build::udp(at(WHOLE, 9), at(E2, 1)).build()),
        (Side::Inside, build::udp(at(SERVER, 5_353), at(E2, 1)).build()),
        (Side::Inside, build::udp(at(I1, 5), at(POOL[1], 53)).build()),
        (Side::Inside, build::udp(at(I1, 5), at(POOL[1], 55)).build()),
        (Side::Inside, build::udp(at(WHOLE, 10), at(Ipv4Addr::new(203, 0, 113, 64), 10)).build()),
        (Side::Inside, build::echo_request(WHOLE, Ipv4Addr::new(203, 0, 113, 64), 10).build()),
        (Side::Inside, syn(at(SERVER, 84), at(E1, 80))),
    ];
    for round in 0..2 {
        for (side, bytes) in &packets {
            let shard = bed.shards().next().expect("one worker");
            let explained = shard.explain(bed.now(), (*side).into(), bytes);
            let before = bed.counters();
            match side {
                Side::Inside => bed.inside(bytes),
                Side::Outside => bed.outside(bytes),
            }
            let after = bed.counters();
            let happened: Vec<Verdict> =
                Verdict::ALL.iter().copied().filter(|verdict| after.of(*verdict) > before.of(*verdict)).collect();
            let what = format!("round {round}: {:?} to {:?}", source(bytes), destination(bytes));
            assert_eq!(happened, [explained.verdict], "{what}: {:?}", explained.steps);
        }
        bed.take_inside();
        bed.take_outside();
    }
}

#[test]
fn each_forward_and_one_to_one_pool_counts_its_mappings() {
    let mut settings = with_one_to_one();
    settings.forwards = with_forwards().forwards;
    for mut bed in beds(&settings) {
        for _ in 0..3 {
            bed.outside(&build::udp(at(E1, 9_000), at(POOL[1], 53)).build());
            assert_eq!(destination(&bed.only_inside()), at(SERVER, 5_353));
        }
        // From inside too; and a mapping that is there is not counted again.
        bed.inside(&build::tcp(at(WHOLE, 443), at(E1, 80), Flags::SYN).build());
        assert_eq!(source(&bed.only_outside()), at(WHOLE_OUTSIDE, 443));
        assert_eq!(hits(&bed), [0, 1, 1]);
    }
}

/// By forward and one-to-one pool, how many mappings it made.
fn hits(bed: &Bed) -> Vec<u64> {
    let shared = bed.shared();
    (0..shared.static_count()).filter_map(|at| shared.static_at(at)).map(|(_, hits)| hits).collect()
}

#[test]
fn hits_of_unchanged_static_mappings_survive_reloads() {
    let mut settings = with_one_to_one();
    settings.forwards = with_forwards().forwards;
    for mut bed in beds(&settings) {
        let call = |bed: &mut Bed, port: u16| {
            bed.outside(&build::udp(at(E1, port), at(POOL[1], 53)).build());
            bed.take_inside().len()
        };
        assert_eq!(call(&mut bed, 9_000), 1);
        bed.inside(&build::tcp(at(WHOLE, 443), at(E1, 80), Flags::SYN).build());
        assert_eq!(hits(&bed), [0, 1, 1]);
        // Something else changes.
        let mut next = settings.clone();
        next.timeouts.udp = Duration::from_secs(200);
        bed.reload(next.clone());
        assert_eq!(hits(&bed), [0, 1, 1]);
        // One comes before them; others may send to it; the pool takes another place. Meanwhile
        // they are used.
        next.forwards.insert(0, Forward { ports: (7_000, 7_000), inside_port: 7_000, ..next.forwards[0] });
        next.forwards[2].admission = Admission::AsPool;
        next.pools.insert(0, Pool { name: "other".into(), subscribers: Vec::new(), ..Pool::default() });
        let order: Vec<usize> = (0..bed.shards().count()).collect();
        let first = 2_000;
        let mut host = first;
        bed.reload_while(next.clone(), &order, |bed| {
            bed.inside(&build::tcp(at(WHOLE, host), at(E1, 80), Flags::SYN).build());
            host += 1;
        })
        .expect("the settings can follow");
        let made = 1 + u64::from(host - first);
        assert_eq!(hits(&bed), [0, 0, 1, made], "none is lost while workers switch");
        bed.inside(&build::tcp(at(WHOLE, host), at(E1, 80), Flags::SYN).build());
        assert_eq!(hits(&bed), [0, 0, 1, made + 1]);
        // What leads elsewhere from now on is another one; what is away for a while begins anew.
        next.forwards[2].inside_port += 1;
        let pool = next.pools.pop().expect("the one-to-one pool is the last");
        bed.reload(next.clone());
        assert_eq!(hits(&bed), [0, 0, 0]);
        next.pools.push(pool);
        bed.reload(next);
        assert_eq!(hits(&bed), [0, 0, 0, 0]);
    }
}

#[test]
fn what_wakes_a_forward_is_filtered_too() {
    let deny = Match { destination: Prefix::host(E1), source: Prefix::host(SERVER), ..Match::ALL };
    let settings = with_forwards().filter(deny, FilterAction::Deny);
    for mut bed in beds(&settings) {
        bed.outside(&build::udp(at(E1, 9_000), at(POOL[1], 53)).build());
        bed.assert_silent();
        assert_eq!((bed.count(Verdict::DeniedByFilter), bed.mappings().len()), (1, 0));
        bed.outside(&build::udp(at(E2, 9_000), at(POOL[1], 53)).build());
        assert_eq!(destination(&bed.only_inside()), at(SERVER, 5_353));
    }
}
