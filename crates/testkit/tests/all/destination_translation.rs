//! Destination translation from inside: to targets by weight, and between networks that have the
//! same addresses (twice NAT).

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;

use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::redirection::Redirection;
use nat::redirection::Target;
use nat::settings::Route;
use nat::tcp::TcpState;
use nat::types::Prefix;
use nat::types::Side;
use testkit::connection::FIN_ACK;
use testkit::connection::SYN_ACK;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// What the inside asks.
const ASKED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 53);

fn target(address: Ipv4Addr, port: Option<u16>, weight: u32) -> Target {
    Target { address: address.to_bits(), port, weight }
}

fn to(targets: Vec<Target>) -> Settings {
    settings().redirected(Prefix::host(ASKED), (0, 65_535), Redirection::Targets(targets))
}

fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

/// Sends one datagram from inside; where it left from and to.
fn open(bed: &mut Bed, internal: SocketAddrV4, remote: SocketAddrV4) -> (SocketAddrV4, SocketAddrV4) {
    bed.inside(&build::udp(internal, remote).payload_length(16).build());
    let left = bed.only_outside();
    (source(&left), destination(&left))
}

#[test]
fn redirected_packets_are_answered_from_the_original_address() {
    for mut bed in beds(&to(vec![target(E2, Some(5_353), 1)])) {
        for n in 0..20 {
            let internal = at(I1, 5_000 + n);
            let (external, remote_outside) = open(&mut bed, internal, at(ASKED, 53));
            assert_eq!(remote_outside, at(E2, 5_353));
            bed.outside(&build::udp(remote_outside, external).payload_length(32).build());
            let answer = bed.only_inside();
            assert_eq!((source(&answer), destination(&answer)), (at(ASKED, 53), internal));
            // The one that was asked has nothing to say: the packet did not go there.
            bed.outside(&build::udp(at(ASKED, 53), external).build());
            bed.assert_silent();
        }
        // All other hosts are reached as before.
        assert_eq!(open(&mut bed, at(I1, 6_000), at(E1, 53)).1, at(E1, 53));
        let shown = bed.sessions().into_iter().find(|session| session.internal.port == 5_000).expect("a session");
        assert_eq!(shown.remote.address, ASKED);
        assert_eq!(
            shown.target.map(|remote_outside| at(remote_outside.address, remote_outside.port)),
            Some(at(E2, 5_353))
        );
        bed.run_out();
    }
}

#[test]
fn an_endpoint_with_a_mapping_is_redirected_all_the_same() {
    for mut bed in beds(&to(vec![target(E2, None, 1)])) {
        let internal = at(I1, 5_000);
        let (mapped, _) = open(&mut bed, internal, at(E1, 53));
        let (_, remote_outside) = open(&mut bed, internal, at(ASKED, 53));
        assert_eq!(remote_outside, at(E2, 53));
        // The target itself, asked by its own name, is another remote endpoint to the inside, and
        // its own outside.
        let (external, remote_outside) = open(&mut bed, internal, at(E2, 53));
        assert_eq!((external, remote_outside), (mapped, at(E2, 53)));
        bed.outside(&build::udp(at(E2, 53), mapped).build());
        assert_eq!(source(&bed.only_inside()), at(E2, 53));
        bed.run_out();
    }
}

#[test]
fn tcp_and_pings_go_to_the_target_too() {
    for mut bed in beds(&to(vec![target(E2, Some(8_080), 1)])) {
        let internal = at(I1, 5_000);
        bed.inside(&build::tcp(internal, at(ASKED, 80), Flags::SYN).sequence(1_000).mss(1_460).build());
        let left = bed.only_outside();
        let external = source(&left);
        assert_eq!(destination(&left), at(E2, 8_080));
        let reply = |flags, sequence, ack| {
            build::tcp(at(E2, 8_080), external, flags).sequence(sequence).acknowledgment(ack).build()
        };
        bed.outside(&reply(SYN_ACK, 5_000, 1_001));
        let arrived = bed.only_inside();
        assert_eq!((source(&arrived), destination(&arrived)), (at(ASKED, 80), internal));
        bed.inside(&build::tcp(internal, at(ASKED, 80), Flags::ACK).sequence(1_001).acknowledgment(5_001).build());
        assert_eq!(destination(&bed.only_outside()), at(E2, 8_080));
        let state = |bed: &Bed| bed.sessions().into_iter().find_map(|session| session.state);
        assert_eq!(state(&bed), Some(TcpState::Established));
        bed.outside(&reply(FIN_ACK, 5_001, 1_001));
        assert_eq!(source(&bed.only_inside()), at(ASKED, 80));
        assert_eq!(state(&bed), Some(TcpState::FinOutside));

        bed.inside(&build::echo_request(I1, ASKED, 77).payload_length(32).build());
        let ping = bed.only_outside();
        assert_eq!(*destination(&ping).ip(), E2);
        bed.outside(&build::echo_reply(E2, *source(&ping).ip(), identifier(&ping)).payload_length(32).build());
        let pong = bed.only_inside();
        assert_eq!((*source(&pong).ip(), *destination(&pong).ip(), identifier(&pong)), (ASKED, I1, 77));
        bed.run_out();
    }
}

#[test]
fn errors_quote_the_endpoints_that_each_side_knows() {
    covers!("5508-REQ-4", "5508-REQ-5");
    for mut bed in beds(&to(vec![target(E2, Some(8_080), 1)])) {
        let packets = [
            build::udp(at(I1, 5_000), at(ASKED, 80)).payload_length(80).dont_fragment().build(),
            build::tcp(at(I1, 5_000), at(ASKED, 80), Flags::SYN).mss(1_460).dont_fragment().build(),
            build::echo_request(I1, ASKED, 5_000).payload_length(80).dont_fragment().build(),
        ];
        for sent in packets {
            bed.inside(&sent);
            let left = bed.only_outside();
            // From the target itself and from a router on the way.
            for (from, seen) in [(E2, ASKED), (OUTSIDE_ROUTER, OUTSIDE_ROUTER)] {
                bed.outside(&build::icmp_error(from, *source(&left).ip(), 3, 1, &left).build());
                let reported = bed.only_inside();
                assert_eq!((*source(&reported).ip(), *destination(&reported).ip()), (seen, I1));
                assert_eq!(
                    (source(quote(&reported)), destination(quote(&reported))),
                    (source(&sent), destination(&sent))
                );
            }
            let answer = match Protocol::from_number(packet::header(&sent).protocol()).expect("one of three") {
                Protocol::Udp => build::udp(destination(&left), source(&left)).payload_length(8),
                Protocol::Tcp => build::tcp(destination(&left), source(&left), SYN_ACK),
                Protocol::Icmp => build::echo_reply(E2, *source(&left).ip(), identifier(&left)),
            };
            let answer = answer.dont_fragment().build();
            bed.outside(&answer);
            let arrived = bed.only_inside();
            assert_eq!(*source(&arrived).ip(), ASKED);
            bed.inside(&build::icmp_error(I1, ASKED, 3, 3, &arrived).build());
            let reported = bed.only_outside();
            assert_eq!((*source(&reported).ip(), *destination(&reported).ip()), (*source(&left).ip(), E2));
            assert_eq!(
                (source(quote(&reported)), destination(quote(&reported))),
                (source(&answer), destination(&answer))
            );
        }
    }
}

#[test]
fn datagrams_in_pieces_go_to_the_target_whole() {
    for mut bed in beds(&to(vec![target(E2, Some(8_080), 1)])) {
        let sent = build::udp(at(I1, 5_000), at(ASKED, 80)).payload_length(4_000).identification(9).build();
        for piece in build::fragment(&sent, 1_500).iter().rev() {
            bed.inside(piece);
        }
        let left = build::reassemble(&bed.take_outside()).expect("all pieces left");
        assert_eq!((destination(&left), payload(&left)), (at(E2, 8_080), payload(&sent)));
        let answer = build::udp(at(E2, 8_080), source(&left)).payload_length(4_000).identification(9).build();
        for piece in build::fragment(&answer, 1_500).iter().rev() {
            bed.outside(piece);
        }
        let arrived = build::reassemble(&bed.take_inside()).expect("all pieces arrived");
        assert_eq!((source(&arrived), payload(&arrived)), (at(ASKED, 80), payload(&answer)));
    }
}

#[test]
fn subscribers_are_spread_by_weight_and_stay_with_their_target() {
    let targets = vec![target(E1, None, 1), target(E2, None, 3)];
    let mut bed = Bed::new(to(targets)).workers(3).steering(Steering::Random);
    let mut chosen: HashMap<Ipv4Addr, Ipv4Addr> = HashMap::new();
    for n in 0..2_000_u32 {
        let subscriber = Ipv4Addr::from_bits(0x6440_0100 + n % 1_000);
        let (_, remote_outside) = open(&mut bed, at(subscriber, 5_000 + n as u16), at(ASKED, 53));
        let known = *chosen.entry(subscriber).or_insert(*remote_outside.ip());
        assert_eq!(known, *remote_outside.ip(), "{subscriber} went elsewhere before");
    }
    let first = chosen.values().filter(|remote_outside| **remote_outside == E1).count();
    // Expected 250; six standard deviations are 82.
    assert!(first.abs_diff(250) < 82, "{first} of 1000 went to the target with a quarter of the weight");
}

#[test]
fn networks_with_the_same_addresses_know_each_other_by_others() {
    // 100.64.0.0/24 is here and there; those here know those there as 198.18.5.0/24.
    let there = topology::prefix([100, 64, 0, 0], 24);
    let known = topology::prefix([198, 18, 5, 0], 24);
    let mut settings = settings().redirected(known, (0, 65_535), Redirection::Prefix(there));
    settings.routes.push(Route { prefix: there, next_hop: OUTSIDE_ROUTER, interface: topology::OUTSIDE });
    // Only the lower half speaks with the world here: what has such a source or destination outside
    // would be a leak.
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 0, 0], 25)];
    for mut bed in beds(&settings) {
        for host in [128, 200, 254] {
            let (remote_inside, remote_outside) =
                (at([198, 18, 5, host].into(), 443), at([100, 64, 0, host].into(), 443));
            let mut connection = Connection::new(at(I1, 5_000 + u16::from(host)), at(I1, 0), remote_inside);
            bed.inside(&connection.segment(Side::Inside, Flags::SYN).build());
            let left = bed.only_outside();
            assert_eq!(destination(&left), remote_outside);
            connection.external = source(&left);
            bed.outside(
                &build::tcp(remote_outside, connection.external, SYN_ACK).sequence(5_000).acknowledgment(1_001).build(),
            );
            let arrived = bed.only_inside();
            assert_eq!((source(&arrived), destination(&arrived)), (remote_inside, connection.internal));
        }
        bed.run_out();
    }
}

#[test]
fn a_target_that_cannot_be_one_takes_nothing() {
    for address in [POOL[0], OWN_OUTSIDE, Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 1)] {
        let mut bed = Bed::new(to(vec![target(address, None, 1)]));
        bed.inside(&build::udp(at(I1, 5_000), at(ASKED, 53)).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::DestinationInvalid), 1, "{address}");
        assert_eq!((bed.ports_used(), bed.subscribers().len()), (0, 0));
    }
}

#[test]
fn flows_from_one_port_to_one_target_get_two_ports() {
    // Both names of the target lead to one remote endpoint outside: the two flows need two external
    // ports.
    let twin = Ipv4Addr::new(198, 51, 100, 54);
    let mut settings = to(vec![target(E2, Some(53), 1)]);
    settings =
        settings.redirected(Prefix::host(twin), (0, 65_535), Redirection::Targets(vec![target(E2, Some(53), 1)]));
    settings.pools[0].shared_ports_min = 1;
    for mut bed in beds(&settings) {
        let internal = at(I1, 5_000);
        let (first, remote_outside) = open(&mut bed, internal, at(ASKED, 53));
        let (second, other_outside) = open(&mut bed, internal, at(twin, 53));
        assert_eq!((remote_outside, other_outside), (at(E2, 53), at(E2, 53)));
        assert_ne!(first, second, "one five-tuple outside for two inside");
        for (external, remote_inside) in [(first, ASKED), (second, twin)] {
            bed.outside(&build::udp(at(E2, 53), external).build());
            assert_eq!(source(&bed.only_inside()), at(remote_inside, 53));
        }
    }
}

/// Flows of a host with an address of its own come from there, also of one that was paired with
/// another before the pool became one of such addresses.
#[test]
fn a_new_one_to_one_address_redirects_existing_flows() {
    let mut settings = to(vec![target(E2, None, 1)]).limits(|limits| limits.external_addresses_max = 20);
    settings.pools[0].addresses = (64..72).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect();
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 9, 0], 29)];
    let hosts: Vec<Ipv4Addr> = (0..8).map(|last| Ipv4Addr::new(100, 64, 9, last)).collect();
    for mut bed in beds(&settings) {
        for host in &hosts {
            open(&mut bed, at(*host, 5_000), at(E1, 53));
        }
        let mut next = settings.clone();
        next.pools[0].one_to_one = true;
        bed.reload(next);
        for (last, host) in (64..).zip(&hosts) {
            let (external, remote_outside) = open(&mut bed, at(*host, 6_000), at(ASKED, 53));
            assert_eq!((*external.ip(), remote_outside), (Ipv4Addr::new(203, 0, 113, last), at(E2, 53)), "{host}");
            assert_eq!(open(&mut bed, at(*host, 6_000), at(ASKED, 53)).0, external, "and goes on");
        }
        bed.run_out();
    }
}
