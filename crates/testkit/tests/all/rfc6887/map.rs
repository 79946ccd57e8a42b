//! MAP: suggestions, renewals, lifetimes and deletions.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::settings::Forward;
use nat::settings::Pooling;
use nat::types::RealmId;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::BOTH;
use super::CANNOT_PROVIDE_EXTERNAL;
use super::MALFORMED_OPTION;
use super::MALFORMED_REQUEST;
use super::NO_RESOURCES;
use super::NOT_AUTHORIZED;
use super::SUCCESS;
use super::UNSUPP_OPTION;
use super::UNSUPP_PROTOCOL;
use super::USER_EX_QUOTA;
use super::all_ways;
use super::bed;
use super::udp;
use super::with_pcp;

#[test]
fn an_empty_suggestion_gets_the_address_of_other_mappings() {
    covers!("6887-10", "6887-11.3k");
    let mut bed = bed();
    let first = bed.granted(&udp(7_000));
    let second = bed.granted(&udp(7_001));
    assert_eq!(first.ip(), second.ip());
    let free = at(*first.ip(), first.port() ^ 1);
    assert_eq!(bed.granted(&udp(7_002).suggest(free)), free);
    // What packets made, and what the configuration has: a static mapping on any address of the
    // pool.
    let mut bed = Bed::new(with_pcp());
    let external = bed.open_udp(at(I1, 5_000), at(E1, 53));
    assert_eq!(bed.granted(&udp(7_000)).ip(), external.ip());
    for address in POOL {
        for workers in [1, 8] {
            let mut bed = Bed::new(with_forward(address)).workers(workers).steering(Steering::Random);
            for protocol in BOTH {
                assert_eq!(*bed.granted(&Ask::map(I1, protocol, 7_000)).ip(), address, "{workers} workers");
            }
        }
    }
}

/// A static mapping of `I1`, port 80, at this address.
fn with_forward(external: Ipv4Addr) -> Settings {
    let mut settings = with_pcp();
    settings.forwards.push(Forward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external,
        ports: (80, 80),
        inside: I1.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    });
    settings
}

#[test]
fn a_suggested_address_is_honoured_beside_others() {
    covers!("6887-10");
    // Beside a static mapping elsewhere, in pools of both kinds.
    for pooling in [Pooling::Paired, Pooling::Arbitrary] {
        for address in POOL {
            let mut settings = with_forward(POOL[0]);
            settings.pools[0].pooling = pooling;
            let mut bed = Bed::new(settings);
            let wish = at(address, 40_000);
            assert_eq!(bed.granted(&udp(7_000).suggest(wish)), wish, "{pooling:?}");
        }
    }
    // And beside mappings of packets and grants, where a subscriber may have several addresses.
    let mut settings = with_pcp();
    settings.pools[0].pooling = Pooling::Arbitrary;
    let mut bed = Bed::new(settings);
    bed.open_udp(at(I1, 5_000), at(E1, 53));
    for address in POOL {
        let given = bed.granted(&udp(7_000 + address.to_bits() as u16 % 256).suggest(at(address, 40_000)));
        assert_eq!(given, at(address, 40_000));
    }
    // A paired subscriber has one (RFC 4787 REQ-2), and keeps it.
    let mut bed = Bed::new(with_pcp());
    let paired = bed.open_udp(at(I1, 5_000), at(E1, 53));
    for address in POOL {
        let given = bed.granted(&udp(7_000 + address.to_bits() as u16 % 256).suggest(at(address, 40_000)));
        assert_eq!(given.ip(), paired.ip());
    }
}

#[test]
fn after_a_loss_a_client_gets_its_endpoint_back() {
    covers!("6887-11.3k");
    for address in POOL {
        for (way, settings) in all_ways().into_iter().take(2) {
            let mut bed = Bed::new(settings);
            assert_eq!(bed.granted(&udp(7_000).suggest(at(address, 40_000))), at(address, 40_000), "{way}");
            assert_eq!(*bed.granted(&udp(7_001)).ip(), address, "{way}: and is paired with its address");
            bed.run_out();
        }
    }
}

#[test]
fn a_suggestion_is_honoured_in_blocks_and_slices() {
    covers!("6887-11.3k");
    for (way, settings) in all_ways() {
        let mut bed = Bed::new(settings);
        let first = bed.granted(&udp(7_000));
        let free = at(*first.ip(), first.port() ^ 1);
        let given = bed.granted(&udp(7_002).suggest(free));
        assert_eq!(given, if way == "one to one" { at(*first.ip(), 7_002) } else { free }, "{way}");
    }
}

#[test]
fn other_protocols_and_all_ports_are_not_mapped() {
    covers!("6887-11.3b", "6887-11.3c", "6887-11.3d");
    let code = |protocol, port| bed().pcp(&Ask { protocol, ..udp(port) }).code;
    assert_eq!([code(132, 7_000), code(1, 7_000)], [UNSUPP_PROTOCOL; 2]);
    assert_eq!([code(17, 0), code(0, 0)], [UNSUPP_PROTOCOL; 2]);
    assert_eq!(code(0, 7_000), MALFORMED_REQUEST);
}

#[test]
fn another_nonce_is_refused_for_as_long_as_the_mapping_lasts() {
    covers!("6887-11.3e");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000));
    bed.advance_secs(100);
    let told = bed.pcp(&udp(7_000).nonce(1));
    assert_eq!((told.code, told.lifetime), (NOT_AUTHORIZED, 500));
    assert_eq!(bed.granted(&udp(7_000)), external);
}

#[test]
fn a_forward_is_returned_to_every_nonce() {
    covers!("6887-11.3f", "6887-15.1b");
    let mut settings = with_pcp();
    settings.forwards = vec![Forward {
        realm: RealmId::default(),
        protocol: Protocol::Tcp,
        external: POOL[1],
        ports: (8_080, 8_080),
        inside: I1.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    }];
    let mut bed = Bed::new(settings);
    for nonce in [1, 2] {
        let told = bed.pcp(&Ask::map(I1, Protocol::Tcp, 80).nonce(nonce));
        assert_eq!((told.code, told.external, told.lifetime), (SUCCESS, at(POOL[1], 8_080), u32::MAX));
    }
    assert_eq!(bed.pcp(&Ask::map(I1, Protocol::Tcp, 80).lifetime(0)).code, NOT_AUTHORIZED);
    let other = Ask::map(I1, Protocol::Tcp, 80).suggest(at(POOL[1], 80)).prefer_failure();
    assert_eq!(bed.pcp(&other).code, CANNOT_PROVIDE_EXTERNAL);
}

#[test]
fn prefer_failure_needs_a_mapping_and_a_port() {
    covers!("6887-11.3g", "6887-13.2a");
    let code = |ask: Ask| bed().pcp(&ask.prefer_failure()).code;
    assert_eq!(code(udp(7_000).suggest(at(POOL[0], 9_000)).lifetime(0)), MALFORMED_OPTION);
    assert_eq!(code(udp(7_000).suggest(at(POOL[0], 0))), MALFORMED_OPTION);
}

#[test]
fn prefer_failure_refuses_anything_else() {
    covers!("6887-11.3h");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000));
    let other = at(*external.ip(), external.port() ^ 1);
    assert_eq!(bed.pcp(&udp(7_000).suggest(other).prefer_failure()).code, CANNOT_PROVIDE_EXTERNAL);
    assert_eq!(bed.pcp(&udp(7_000).suggest(external).prefer_failure()).external, external);
    assert_eq!(bed.pcp(&udp(7_001).suggest(external).prefer_failure()).code, CANNOT_PROVIDE_EXTERNAL);
    assert_eq!(bed.granted(&udp(7_001).suggest(other).prefer_failure()), other);
    assert_eq!(bed.mappings().len(), 2);
}

#[test]
fn a_renewal_keeps_the_external_endpoint() {
    covers!("6887-11.3i");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000).lifetime(300));
    bed.advance_secs(200);
    let told = bed.pcp(&udp(7_000).suggest(at(*external.ip(), external.port() ^ 1)).lifetime(1_000));
    assert_eq!((told.external, told.lifetime), (external, 1_000));
    bed.advance_secs(900);
    assert!(bed.is_open(Protocol::Udp, at(E2, 1), external, at(I1, 7_000)));
    bed.advance_secs(101);
    assert!(!bed.is_open(Protocol::Udp, at(E2, 2), external, at(I1, 7_000)));
}

#[test]
fn a_mapping_of_packets_is_taken_over_and_outlives_its_grant() {
    covers!("6887-11.3j");
    let mut bed = bed();
    let external = bed.open_udp(at(I1, 7_000), at(E1, 53));
    assert_eq!(bed.granted(&udp(7_000)), external);
    assert!(bed.is_open(Protocol::Udp, at(E2, 1), external, at(I1, 7_000)));
    bed.pcp(&udp(7_000).lifetime(0));
    assert!(!bed.is_open(Protocol::Udp, at(E2, 2), external, at(I1, 7_000)));
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)), "the session lives");
}

#[test]
fn an_impossible_suggestion_gets_another_port() {
    covers!("6887-11.3l", "6887-11.3m");
    let mut bed = bed();
    let taken = bed.granted(&Ask::map(I2, Protocol::Udp, 7_000));
    let bad = [
        at(Ipv4Addr::LOCALHOST, 9_000),
        at(Ipv4Addr::new(224, 0, 0, 1), 9_000),
        at(Ipv4Addr::new(198, 51, 100, 9), 9_000),
        taken,
        at(*taken.ip(), 5_350),
        at(*taken.ip(), 5_351),
        at(*taken.ip(), 80),
    ];
    for (port, suggested) in (7_100..).zip(bad) {
        let given = bed.granted(&udp(port).suggest(suggested));
        assert!(given != suggested && POOL.contains(given.ip()) && !(5_350..=5_351).contains(&given.port()));
    }
}

#[test]
fn the_ports_of_pcp_are_never_given() {
    covers!("6887-11.3m");
    let mut bed = Bed::new(with_pcp().ports(5_348, 5_353).addresses(&POOL[..1]));
    let mut given: Vec<u16> = Vec::new();
    for port in 7_000..7_008 {
        let told = bed.pcp(&udp(port));
        given.extend((told.code == SUCCESS).then(|| told.external.port()));
    }
    given.sort_unstable();
    assert_eq!(given, [5_348, 5_349, 5_352, 5_353]);
}

#[test]
fn only_the_protocol_that_was_asked_for_is_mapped() {
    covers!("6887-11.3n");
    let mut bed = bed();
    let external = bed.granted(&Ask::map(I1, Protocol::Tcp, 7_000));
    assert!(!bed.is_open(Protocol::Udp, at(E1, 1), external, at(I1, 7_000)));
    assert!(bed.is_open(Protocol::Tcp, at(E1, 1), external, at(I1, 7_000)));
}

#[test]
fn a_subscriber_has_a_limited_number_of_mappings() {
    covers!("6887-11.3o");
    let mut settings = with_pcp();
    settings.port_control.mappings_per_subscriber = 3;
    let mut bed = Bed::new(settings);
    let codes: Vec<u8> = (7_000..7_004).map(|port| bed.pcp(&udp(port)).code).collect();
    assert_eq!(codes, [SUCCESS, SUCCESS, SUCCESS, USER_EX_QUOTA]);
    assert_eq!(bed.pcp(&Ask::map(I2, Protocol::Udp, 7_000)).code, SUCCESS);
    bed.pcp(&udp(7_000).lifetime(0));
    assert_eq!(bed.pcp(&udp(7_003)).code, SUCCESS, "one was given up");
}

#[test]
fn grants_count_against_the_ports_of_the_subscriber() {
    covers!("6887-11.3o");
    let mut settings = with_pcp();
    settings.subscriber.ports_max = [2, 2, 2];
    let mut bed = Bed::new(settings);
    bed.open_udp(at(I1, 6_999), at(E1, 53));
    let told: Vec<u8> = (7_000..7_002).map(|port| bed.pcp(&udp(port)).code).collect();
    assert_eq!(told, [SUCCESS, USER_EX_QUOTA]);
    assert_eq!(bed.pcp(&udp(7_001)).lifetime, 30, "a short error");
    bed.pcp(&udp(7_000).lifetime(0));
    assert_eq!(bed.pcp(&udp(7_001)).code, SUCCESS, "a port held down for its client makes room");
}

#[test]
fn third_party_is_off_but_for_listed_prefixes() {
    covers!("6887-13.1a", "6887-13.1b");
    assert_eq!(bed().pcp(&udp(7_000).third_party(I2)).code, UNSUPP_OPTION);
    let mut settings = with_pcp();
    settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 10], 32)];
    for workers in [1, 8] {
        let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
        assert_eq!(bed.pcp(&udp(7_000).third_party(I1)).code, MALFORMED_REQUEST, "itself");
        assert_eq!(bed.pcp(&udp(7_000).third_party(E1)).code, UNSUPP_OPTION, "nobody inside");
        assert_eq!(bed.pcp(&Ask::map(I2, Protocol::Udp, 7_000).third_party(I3)).code, UNSUPP_OPTION, "not listed");
        let told = bed.pcp(&udp(7_000).third_party(I2));
        assert_eq!((told.code, told.options().len()), (SUCCESS, 1));
        assert!(bed.is_open(Protocol::Udp, at(E1, 1), told.external, at(I2, 7_000)));
    }
}

#[test]
fn prefer_failure_cannot_scan_ports_fast() {
    covers!("6887-13.2b");
    let mut bed = bed();
    bed.granted(&Ask::map(I2, Protocol::Udp, 7_000));
    // All ports in 20 s.
    for port in 1..=65_535_u16 {
        bed.inside(&udp(7_000).suggest(at(POOL[0], port)).prefer_failure().packet());
        if port.is_multiple_of(33) {
            bed.advance(Duration::from_millis(10));
        }
    }
    let answered = bed.take_inside().len();
    // 400 a second, and 100 at once.
    let most = 400 * 20 + 100;
    assert!((most - 200..=most).contains(&answered), "{answered} of 65,535 were answered");
    assert_eq!(bed.counters().port_control_limited, 65_535 - answered as u64);
}

#[test]
fn lifetimes_are_within_their_bounds() {
    covers!("6887-15a");
    let mut settings = with_pcp();
    for (asked, granted) in [(1, 120), (600, 600), (1_000_000_000, 86_400)] {
        assert_eq!(Bed::new(settings.clone()).pcp(&udp(7_000).lifetime(asked)).lifetime, granted);
    }
    settings.port_control.lifetime_min = Duration::from_secs(10);
    settings.port_control.lifetime_max = Duration::from_secs(20);
    for (asked, granted) in [(1, 10), (15, 15), (600, 20)] {
        assert_eq!(Bed::new(settings.clone()).pcp(&udp(7_000).lifetime(asked)).lifetime, granted);
    }
}

#[test]
fn a_deletion_ends_no_flow() {
    covers!("6887-15b");
    let mut bed = bed();
    let external = bed.granted(&udp(7_000));
    bed.inside(&build::udp(at(I1, 7_000), at(E1, 53)).payload(b"x").build());
    bed.take_outside();
    let told = bed.pcp(&udp(7_000).lifetime(0));
    assert_eq!(told.code, SUCCESS);
    assert!(told.lifetime > 100, "the time that the flow has left");
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)));
    // One that had no packets, and one that has had none for longer than they would keep it.
    for (port, had_packets) in [(7_001, false), (7_002, true)] {
        let idle = bed.granted(&udp(port).lifetime(7_200));
        if had_packets {
            bed.inside(&build::udp(at(I1, port), at(E1, 53)).payload(b"x").build());
            bed.take_outside();
            bed.advance_secs(bed.settings().timeouts.udp.as_secs() + 1);
        }
        assert_eq!(bed.pcp(&udp(port).lifetime(0)).lifetime, 0, "{port}");
        assert!(!bed.is_open(Protocol::Udp, at(E2, 1), idle, at(I1, port)), "{port} is gone");
    }
}

#[test]
fn a_held_down_port_is_shown_until_it_is_free() {
    for protocol in BOTH {
        let mut bed = bed();
        let idle = Ask::map(I1, protocol, 7_000).lifetime(86_400);
        bed.granted(&idle);
        bed.pcp(&idle.lifetime(0));
        let timeouts = bed.settings().timeouts;
        let rest = if protocol == Protocol::Tcp { timeouts.tcp_established } else { timeouts.udp };
        let shown = bed.mappings()[0].expires_in;
        assert!(shown <= rest + timeouts.tcp_closing && shown + Duration::from_secs(10) > rest, "{shown:?}");
    }
}

#[test]
fn a_freed_port_is_held_down_for_its_client() {
    covers!("6887-15c");
    for protocol in BOTH {
        for is_deleted in [true, false] {
            let mut bed = Bed::new(with_pcp().ports(2_000, 2_003).addresses(&POOL[..1]));
            let timeouts = bed.settings().timeouts;
            let idle = if protocol == Protocol::Tcp { timeouts.tcp_established } else { timeouts.udp };
            let reuse = bed.settings().pools[0].reuse_delay;
            let own = Ask::map(I1, protocol, 7_000);
            let external = bed.granted(&own);
            for port in 0..3 {
                bed.granted(&Ask::map(I2, protocol, 7_000 + port).lifetime(86_400));
            }
            if is_deleted {
                bed.pcp(&own.clone().lifetime(0));
            } else {
                bed.advance_secs(601);
            }
            // Its idle time as if a packet had made it, and then the hold-down of all ports.
            let what = format!("{protocol:?}, deleted: {is_deleted}");
            for pause in [0, idle.as_secs() - 10, reuse.as_secs()] {
                bed.advance_secs(pause);
                for (who, ask) in [
                    ("another subscriber", Ask::map(I2, protocol, 7_003)),
                    ("another port", Ask::map(I1, protocol, 7_001)),
                ] {
                    let told = bed.pcp(&ask.suggest(external));
                    assert_eq!(told.code, NO_RESOURCES, "{what}: not for {who} after {pause} s");
                }
            }
            bed.advance_secs(60 + timeouts.tcp_closing.as_secs());
            assert_eq!(bed.granted(&Ask::map(I2, protocol, 7_003)), external, "{what}: free in the end");
        }
    }
}

#[test]
fn a_client_gets_a_port_back_that_it_deleted() {
    covers!("6887-15c");
    for protocol in BOTH {
        for workers in [1, 8] {
            let mut bed = Bed::new(with_pcp()).workers(workers).steering(Steering::Random);
            let timeouts = bed.settings().timeouts;
            let idle = if protocol == Protocol::Tcp { timeouts.tcp_established } else { timeouts.udp };
            let own = Ask::map(I1, protocol, 7_000);
            let external = bed.granted(&own);
            for pause in [0, idle.as_secs() - 20] {
                bed.pcp(&own.clone().lifetime(0));
                assert!(!bed.is_open(protocol, at(E1, 9), external, at(I1, 7_000)), "it is deleted");
                // A SYN that nobody expects is answered after some seconds.
                bed.advance_secs(pause + 10);
                bed.take_outside();
                assert_eq!(bed.granted(&own.clone().suggest(external)), external, "{protocol:?} after {pause} s");
                assert!(bed.is_open(protocol, at(E2, 9), external, at(I1, 7_000)), "it is open again");
            }
        }
    }
}

#[test]
fn a_deletion_copies_the_suggested_endpoint() {
    covers!("6887-15.1a", "6887-15.1c");
    let mut bed = bed();
    bed.granted(&udp(7_000));
    let ask = udp(7_000).suggest(at(E1, 1_234)).lifetime(0);
    for _ in 0..2 {
        let told = bed.pcp(&ask);
        assert_eq!((told.code, told.lifetime, told.external), (SUCCESS, 0, at(E1, 1_234)));
    }
    assert_eq!(bed.pcp(&udp(9).lifetime(0)).code, SUCCESS, "never there");
}

#[test]
fn an_outbound_mapping_is_not_deleted() {
    covers!("6887-15.1b");
    let mut bed = bed();
    let external = bed.open_udp(at(I1, 7_000), at(E1, 53));
    assert_eq!(bed.pcp(&udp(7_000).lifetime(0)).code, NOT_AUTHORIZED);
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)));
}

#[test]
fn the_end_of_a_connection_ends_no_mapping_that_was_asked_for() {
    covers!("6887-15.1d");
    for end in [Flags::RST, Flags::FIN.union(Flags::ACK)] {
        let mut bed = bed();
        let (peer, inside) = (at(E1, 9_000), at(I1, 7_000));
        let external = bed.granted(&Ask::map(I1, Protocol::Tcp, 7_000).lifetime(7_200));
        assert!(bed.is_open(Protocol::Tcp, peer, external, inside));
        let answer = build::tcp(inside, peer, Flags::SYN.union(Flags::ACK)).sequence(1).acknowledgment(2);
        bed.inside(&answer.build());
        bed.outside(&build::tcp(peer, external, end).sequence(2).acknowledgment(2).build());
        bed.inside(&build::tcp(inside, peer, end).sequence(2).acknowledgment(3).build());
        bed.take_inside();
        bed.take_outside();
        bed.advance_secs(3_600);
        assert!(bed.sessions().is_empty(), "{end:?}: the connection is over");
        assert!(bed.is_open(Protocol::Tcp, at(E2, 9_000), external, inside), "{end:?}");
    }
}

#[test]
fn deleting_all_needs_the_nonce_of_each() {
    covers!("6887-15.1e");
    let mut bed = bed();
    let own = [bed.granted(&udp(7_000)), bed.granted(&udp(7_001))];
    let other = bed.granted(&udp(7_002).nonce(3));
    let all = Ask { protocol: 0, ..udp(0).lifetime(0) };
    assert_eq!(bed.pcp(&all.clone().nonce(9)).code, SUCCESS);
    assert!(bed.is_open(Protocol::Udp, at(E1, 1), own[0], at(I1, 7_000)));
    assert_eq!(bed.pcp(&all).code, SUCCESS);
    for (external, port) in own.into_iter().zip([7_000, 7_001]) {
        assert!(!bed.is_open(Protocol::Udp, at(E1, 2), external, at(I1, port)));
    }
    assert!(bed.is_open(Protocol::Udp, at(E1, 2), other, at(I1, 7_002)));
}
