//! Packets to a neighbour that does not answer ARP: their senders get an ICMP error
//! (RFC 1812 §5.2.7.1).

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::redirection::Redirection;
use nat::redirection::Target;
use nat::rules::Match;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Interface;
use nat::settings::Route;
use nat::settings::RuleAction;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use testkit::bed6::*;
use testkit::packet::header;
use testkit::packet6::*;
use testkit::topology::INSIDE;
use testkit::topology::OUTSIDE;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::rfc5508::behind_a_hop;

/// A silent host on the outside link, and a silent router to E2.
const SILENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const SILENT_ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 78);
/// A neighbour is absent that has left three questions unanswered, each for a second. It is
/// forgotten after another second without a packet to it.
pub(crate) const PATIENCE_S: u64 = 5;

/// The standard topology with the silent router, and hosts that anyone may send to.
fn topology_of_silence() -> Settings {
    let mut settings = settings().filtering(Filtering::EndpointIndependent);
    settings.routes.push(Route { prefix: Prefix::host(E2), next_hop: SILENT_ROUTER, interface: OUTSIDE });
    settings
}

/// One worker and several, where any of them may receive any packet.
fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| {
        let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
        bed.silence(SILENT);
        bed.silence(SILENT_ROUTER);
        bed
    })
}

/// One packet of each transport. With Don't Fragment, it keeps its identification.
pub(crate) fn packets(from: SocketAddrV4, to: SocketAddrV4) -> [(Protocol, Vec<u8>); 3] {
    let ping = build::echo_request(*from.ip(), *to.ip(), from.port());
    [
        (Protocol::Udp, build::udp(from, to).payload_length(80).dont_fragment().build()),
        (Protocol::Tcp, build::tcp(from, to, Flags::SYN).mss(1460).dont_fragment().build()),
        (Protocol::Icmp, ping.payload_length(80).dont_fragment().build()),
    ]
}

/// Sends a packet three times: first it waits, then the neighbour is nearly absent, then it is. In
/// the end it is forgotten.
pub(crate) fn send_thrice(bed: &mut Bed, side: Side, packet: &[u8]) -> [Vec<Vec<u8>>; 2] {
    bed.burst(side, &[packet.to_vec()]);
    bed.advance(Duration::from_millis(2_500));
    bed.burst(side, &[packet.to_vec()]);
    assert_eq!(bed.counters().neighbour_pending, 2, "both wait for the neighbour");
    bed.assert_silent();
    bed.advance(Duration::from_millis(700));
    bed.burst(side, &[packet.to_vec()]);
    let errors = [bed.take_inside(), bed.take_outside()];
    bed.advance_secs(PATIENCE_S);
    bed.assert_silent();
    errors
}

/// "Host unreachable" about a packet, from Natrix to its sender.
fn assert_unreachable(error: &[u8], own: Ipv4Addr, sent: &[u8]) {
    assert!(is_icmp(error, 3, 1), "{error:02x?}");
    assert_eq!((source(error).ip(), destination(error).ip()), (&own, source(sent).ip()));
    assert_eq!(quote(error), behind_a_hop(sent), "the packet as its sender knows it");
}

#[test]
fn hosts_learn_that_an_outside_neighbour_is_silent() {
    for mut bed in beds(&topology_of_silence()) {
        for to in [at(SILENT, 80), at(E2, 80)] {
            for (_, packet) in packets(at(I1, 5_000), to) {
                let [inside, outside] = send_thrice(&mut bed, Side::Inside, &packet);
                assert_eq!((inside.len(), outside.len()), (3, 0));
                inside.iter().for_each(|error| assert_unreachable(error, OWN_INSIDE, &packet));
            }
        }
        let counters = bed.counters();
        assert_eq!((counters.of(Verdict::NeighbourUnresolved), counters.originated), (18, 18));
        assert_eq!((counters.received, counters.neighbour_pending), (18, 0));
        assert_eq!(counters.bytes_forwarded, [0; 3], "no byte of them or of their errors");
    }
}

#[test]
fn an_error_is_of_the_flow_in_each_kind_of_mapping() {
    let others = topology::prefix([192, 0, 2, 0], 24);
    let dependent = topology_of_silence().endpoint_dependent(others, (1, u16::MAX));
    let target = Target { address: SILENT.to_bits(), port: Some(8_080), weight: 1 };
    let redirection = Redirection::Targets(vec![target]);
    let redirected = topology_of_silence().redirected(Prefix::host(E1), (1, u16::MAX), redirection);
    for (settings, to) in [(dependent, at(SILENT, 80)), (redirected, at(E1, 80))] {
        for mut bed in beds(&settings) {
            for host in [I1, I2] {
                let (_, packet) = packets(at(host, 5_000), to)[1].clone();
                bed.inside(&packet);
                bed.advance_secs(PATIENCE_S);
                assert_unreachable(&bed.only_inside(), OWN_INSIDE, &packet);
            }
        }
    }
}

#[test]
fn remotes_learn_that_an_inside_host_is_silent() {
    for mut bed in beds(&topology_of_silence()) {
        bed.silence(I1);
        let opened = packets(at(I1, 5_000), at(E1, 1_000)).map(|(_, packet)| {
            bed.inside(&packet);
            source(&bed.only_outside())
        });
        let came = [
            build::udp(at(E1, 1_000), opened[0]).payload_length(80).build(),
            build::tcp(at(E1, 1_000), opened[1], Flags::SYN.union(Flags::ACK)).acknowledgment(1).build(),
            build::echo_reply(E1, *opened[2].ip(), opened[2].port()).payload_length(80).build(),
        ];
        for packet in came {
            let [inside, outside] = send_thrice(&mut bed, Side::Outside, &packet);
            assert_eq!((inside.len(), outside.len()), (0, 3));
            outside.iter().for_each(|error| assert_unreachable(error, OWN_OUTSIDE, &packet));
        }
        assert_eq!((bed.count(Verdict::NeighbourUnresolved), bed.counters().originated), (9, 9));
    }
}

#[test]
fn a_silent_host_behind_a_forward_is_reported() {
    let mut settings = topology_of_silence();
    settings.forwards = vec![Forward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external: POOL[0],
        ports: (443, 443),
        inside: I1.into(),
        inside_port: 8_443,
        admission: Admission::Anyone,
    }];
    for mut bed in beds(&settings) {
        bed.silence(I1);
        let syn = build::tcp(at(E1, 1_000), at(POOL[0], 443), Flags::SYN).build();
        bed.outside(&syn);
        bed.advance_secs(PATIENCE_S);
        assert_unreachable(&bed.only_outside(), OWN_OUTSIDE, &syn);
        let (_, syn) = packets(at(I2, 5_000), at(POOL[0], 443))[1].clone();
        bed.inside(&syn);
        bed.advance_secs(PATIENCE_S);
        assert_unreachable(&bed.only_inside(), OWN_INSIDE, &syn);
    }
}

#[test]
fn hairpinned_packets_to_a_silent_host_are_reported() {
    for mut bed in beds(&topology_of_silence()) {
        bed.silence(I1);
        let opened = packets(at(I1, 5_000), at(E1, 1_000)).map(|(_, packet)| {
            bed.inside(&packet);
            source(&bed.only_outside())
        });
        for to in &opened[..2] {
            for host in [I2, I3] {
                let [udp, tcp, _] = packets(at(host, 6_000), *to);
                let (_, packet) = if *to == opened[0] { udp } else { tcp };
                let [inside, outside] = send_thrice(&mut bed, Side::Inside, &packet);
                assert_eq!((inside.len(), outside.len()), (3, 0));
                inside.iter().for_each(|error| assert_unreachable(error, OWN_INSIDE, &packet));
            }
        }
        assert_eq!((bed.count(Verdict::NeighbourUnresolved), bed.counters().originated), (12, 12));
    }
}

#[test]
fn hosts_of_other_vrfs_get_errors_too() {
    const BLUE: InterfaceId = InterfaceId(2);
    let mut settings = topology_of_silence();
    settings.realm_names = ["red", "blue"].map(str::to_owned).to_vec();
    let like_red = settings.interfaces[0].clone();
    settings.interfaces.push(Interface { name: "blue".to_owned(), realm: RealmId(1), ..like_red });
    settings.pools[0].realms = vec![RealmId(0), RealmId(1)];
    settings.hairpin_between_realms = false;
    for mut bed in beds(&settings) {
        let (_, packet) = packets(at(I1, 5_000), at(SILENT, 80))[1].clone();
        bed.inside_by(BLUE, &packet);
        bed.advance_secs(PATIENCE_S);
        let errors = bed.take_inside_by();
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].0, BLUE);
        assert_unreachable(&errors[0].1, OWN_INSIDE, &packet);
    }
}

#[test]
fn untranslated_packets_are_reported() {
    let (hosts, near) = (topology::prefix([100, 64, 0, 0], 24), topology::prefix([192, 0, 2, 0], 24));
    let settings = topology_of_silence()
        .pass(47, hosts, near)
        .rule(Match { source: hosts, destination: near, ..Match::ALL }, RuleAction::NoTranslation);
    for mut bed in beds(&settings) {
        let gre = |from, to| build::raw(from, to, 47).payload_length(40).build();
        let udp = |from, to| build::udp(from, to).payload_length(40).build();
        for packet in [udp(at(I1, 5_000), at(SILENT, 80)), gre(I1, SILENT)] {
            bed.inside(&packet);
            bed.advance_secs(PATIENCE_S);
            assert_unreachable(&bed.only_inside(), OWN_INSIDE, &packet);
        }
        bed.silence(I2);
        for packet in [udp(at(OUTSIDE_ROUTER, 80), at(I2, 5_000)), gre(OUTSIDE_ROUTER, I2)] {
            bed.outside(&packet);
            bed.advance_secs(PATIENCE_S);
            assert_unreachable(&bed.only_outside(), OWN_OUTSIDE, &packet);
        }
        assert_eq!(bed.count(Verdict::NeighbourUnresolved), 4);
    }
}

#[test]
fn errors_about_silent_neighbours_can_be_switched_off() {
    for (to_inside, to_outside) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut settings = topology_of_silence();
        (settings.icmp.errors_to_inside, settings.icmp.errors_to_outside) = (to_inside, to_outside);
        for mut bed in beds(&settings) {
            bed.silence(I1);
            let external = bed.open_udp(at(I1, 5_000), at(E1, 1_000));
            bed.inside(&build::udp(at(I2, 5_000), at(SILENT, 80)).build());
            bed.inside(&build::udp(at(I2, 5_000), external).build());
            bed.outside(&build::udp(at(E1, 1_000), external).build());
            bed.advance_secs(PATIENCE_S);
            assert_eq!(bed.take_inside().len(), if to_inside { 2 } else { 0 });
            assert_eq!(bed.take_outside().len(), usize::from(to_outside));
            assert_eq!(bed.count(Verdict::NeighbourUnresolved), 3);
        }
    }
}

#[test]
fn nothing_is_reported_that_rfc_1812_excludes() {
    for mut bed in beds(&topology_of_silence()) {
        bed.silence(I1);
        let external = bed.open_udp(at(I1, 5_000), at(E1, 1_000));
        // Errors.
        let came = build::udp(at(E2, 1_000), at(I1, 5_000)).payload_length(40).build();
        let left = build::udp(external, at(E1, 1_000)).payload_length(40).build();
        for (kind, code) in [(3, 1), (3, 4), (11, 0), (12, 0)] {
            bed.inside(&build::icmp_error(I1, E2, kind, code, &came).build());
            bed.outside(&build::icmp_error(E1, *external.ip(), kind, code, &left).build());
        }
        // Later fragments. The first one is reported, in whatever order they come.
        let whole = build::udp(at(I2, 5_000), at(SILENT, 80)).payload_length(3_000).build();
        let pieces = build::fragment(&whole, 1_500);
        assert_eq!(pieces.len(), 3);
        bed.burst(Side::Inside, &pieces);
        // Answers of Natrix itself, whose identifier a host may use, too.
        let ping = bed.ping(I2, 77, E1);
        bed.outside(&build::echo_request(SILENT, OWN_OUTSIDE, ping.port()).build());
        bed.advance_secs(PATIENCE_S);
        let error = bed.only_inside();
        assert!(is_icmp(&error, 3, 1));
        assert_eq!((destination(&error).ip(), source(quote(&error))), (&I2, at(I2, 5_000)));
        assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
        assert_eq!(bed.counters().originated, 2, "the error and the answer to the ping");
    }
}

#[test]
fn errors_about_silent_neighbours_are_limited_by_host() {
    let settings = topology_of_silence().addresses(&POOL[..1]);
    let each = settings.icmp.errors_per_second_per_destination_max;
    for mut bed in beds(&settings) {
        // Until the neighbour is absent for the workers of both hosts.
        for _ in 0..50 {
            for host in [I1, I2] {
                bed.inside(&build::udp(at(host, 5_000), at(SILENT, 9)).build());
            }
            bed.advance(Duration::from_millis(100));
        }
        bed.take_inside();
        let seconds = 3;
        let mut answered = [0_u32; 2];
        for step in 0..seconds * 100 {
            // One host sends by many ports and the other little, behind the same address.
            let many = |port: u16| build::udp(at(I1, 1_024 + port), at(SILENT, 9)).build();
            bed.burst(Side::Inside, &(0..50).map(many).collect::<Vec<_>>());
            if step % 10 == 0 {
                bed.inside(&build::udp(at(I2, 5_000), at(SILENT, 9)).build());
            }
            for error in bed.take_inside() {
                assert!(is_icmp(&error, 3, 1));
                answered[usize::from(destination(&error).ip() == &I2)] += 1;
            }
            bed.advance(Duration::from_millis(10));
        }
        answered[0] += bed.take_inside().len() as u32;
        let most = each * seconds + each;
        assert!((each * seconds..=most).contains(&answered[0]), "{answered:?}");
        assert_eq!(answered[1], 10 * seconds, "the quiet one gets all its answers");
        let suppressed = bed.counters().icmp_errors_suppressed;
        assert!(suppressed > 0 && suppressed + bed.counters().originated <= bed.count(Verdict::NeighbourUnresolved));
    }
}

#[test]
fn an_error_that_exceeds_the_mtu_counts_no_bytes() {
    for mut bed in beds(&topology_of_silence().mtu(100, 1_500)) {
        bed.inside(&build::udp(at(I1, 5_000), at(SILENT, 9)).payload_length(60).build());
        bed.advance_secs(PATIENCE_S);
        let error = build::reassemble(&bed.take_inside()).expect("pieces that fit together");
        assert!(is_icmp(&error, 3, 1));
        assert_eq!(quote(&error).len(), 88);
        assert_eq!((bed.counters().bytes_forwarded, bed.counters().originated), ([0; 3], 1));
    }
}

#[test]
fn ipv6_hosts_learn_that_an_outside_neighbour_is_silent() {
    for workers in [1, 4] {
        let mut bed = Bed6::with_workers(settings6(), workers);
        let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (behind(SILENT), 80), b"x"));
        // Also if another worker was to send it.
        for worker in 0..workers {
            let [inside, _] = bed.undelivered(worker, OUTSIDE, &out[0]);
            assert_eq!(icmp6_of(&inside[0]), (1, 3, 0));
            assert_eq!((view6(&inside[0]).source(), view6(&inside[0]).destination()), (v6(OWN6), v6(C6)));
            assert_eq!(
                (source6(&inside[0][48..]), destination6(&inside[0][48..])),
                ((v6(C6), 5_000), (behind(SILENT), 80))
            );
        }
        let home = Ipv4Addr::new(192, 168, 1, 2);
        let sent = build::udp(at(home, 5_000), at(SILENT, 80)).payload_length(8).dont_fragment().build();
        let [_, out] = bed.inside(&softwire(v6(C6), v6(AFTR), &sent));
        for worker in 0..workers {
            let [inside, _] = bed.undelivered(worker, OUTSIDE, &out[0]);
            let error = &inside[0][40..];
            assert!(is_icmp(error, 3, 1));
            assert_eq!((header(error).source(), header(error).destination()), (0xc000_0001, home.to_bits()));
            assert_eq!(quote(error), behind_a_hop(&sent));
        }
        // A hairpin to an IPv4 host.
        let [_, out] = bed.inside(&build::udp(at(I1, 6_000), at(E1, 53)).build());
        let to = source(&out[0]);
        let [inside, _] = bed.inside(&udp6((v6(C6), 5_000), (behind(*to.ip()), to.port()), b"x"));
        assert_eq!(destination(&inside[0]), at(I1, 6_000));
        for worker in 0..workers {
            let [inside, _] = bed.undelivered(worker, INSIDE, &inside[0]);
            assert_eq!(icmp6_of(&inside[0]), (1, 3, 0));
            assert_eq!((view6(&inside[0]).source(), view6(&inside[0]).destination()), (v6(OWN6), v6(C6)));
        }
    }
}
