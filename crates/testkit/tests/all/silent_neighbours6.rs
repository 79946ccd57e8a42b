//! Packets to an IPv6 neighbour that does not answer: their senders get an ICMP error (RFC 4861
//! §7.2.2).

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Route6;
use nat::settings::Transition;
use nat::types::RealmId;
use nat::types::Side;
use testkit::bed::families::ROUTERS;
use testkit::bed::families::home;
use testkit::bed::families::inside_host;
use testkit::bed::families::nat64_host;
use testkit::bed::families::prefix_of;
use testkit::bed::families::with_families;
use testkit::bed6::*;
use testkit::packet::header;
use testkit::packet6::*;
use testkit::topology::INSIDE;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

use crate::rfc5508::behind_a_hop;
use crate::silent_neighbours::PATIENCE_S;
use crate::silent_neighbours::packets;
use crate::silent_neighbours::send_thrice;

/// Hosts behind the silent router, and others.
const SILENT: [Ipv4Addr; 2] = [nat64_host(1), home(1)];
const LIVELY: [Ipv4Addr; 3] = [nat64_host(2), home(2), I2];

/// The standard topology with IPv6 hosts, some of them behind a router that does not answer.
fn topology_of_silence() -> Settings {
    let mut settings = with_families(settings().filtering(Filtering::EndpointIndependent));
    settings.pools[0].subscribers.push(Transition::HOSTS);
    for host in SILENT {
        let prefix = prefix_of(host, 56);
        settings.ipv6.routes.push(Route6 {
            prefix: prefix.address().into(),
            prefix_length: prefix.length(),
            next_hop: ROUTERS[1].into(),
            interface: INSIDE,
        });
    }
    settings
}

/// One worker and several, where any of them may receive any packet.
fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| {
        let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
        bed.silence(Ipv6Addr::from_bits(ROUTERS[1]));
        bed
    })
}

/// Opens a mapping of each transport from a silent host, and returns its external endpoints.
fn open(bed: &mut Bed, host: Ipv4Addr) -> [SocketAddrV4; 3] {
    packets(at(host, 5_000), at(E1, 1_000)).map(|(_, packet)| {
        bed.inside(&packet);
        source(&bed.only_outside())
    })
}

/// A packet of each transport to these external endpoints. A sender behind a CLAT keeps neither
/// identification nor Don't Fragment.
fn answers(from: Ipv4Addr, to: &[SocketAddrV4; 3]) -> [Vec<u8>; 3] {
    [
        build::udp(at(from, 1_000), to[0]).payload_length(80).build(),
        build::tcp(at(from, 1_000), to[1], Flags::SYN.union(Flags::ACK)).acknowledgment(1).build(),
        build::echo_reply(from, *to[2].ip(), to[2].port()).payload_length(80).build(),
    ]
}

/// Without what IPv6 has no place for.
fn through_ipv6(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let mut view = Ipv4::new_unchecked(packet.as_mut_slice());
    view.set_identification(0);
    view.set_fragment_bits(0);
    view.fill_checksum();
    packet
}

/// The own address that a sender sees.
fn own_of(sender: Ipv4Addr) -> Ipv4Addr {
    match sender {
        sender if sender == home(2) => Ipv4Addr::new(192, 0, 0, 1),
        sender if sender == E1 => OWN_OUTSIDE,
        _ => OWN_INSIDE,
    }
}

/// "Host unreachable" about a packet, from Natrix to its sender.
fn assert_unreachable(error: &[u8], sent: &[u8]) {
    assert!(is_icmp(error, 3, 1), "{error:02x?}");
    let sender = *source(sent).ip();
    assert_eq!((source(error).ip(), destination(error).ip()), (&own_of(sender), &sender));
    assert_eq!(through_ipv6(quote(error)), through_ipv6(&behind_a_hop(sent)), "the packet as its sender knows it");
}

#[test]
fn remotes_learn_that_an_ipv6_host_is_silent() {
    // covers: 4861-7.2.2b
    for mut bed in beds(&topology_of_silence()) {
        for host in SILENT {
            let opened = open(&mut bed, host);
            for packet in answers(E1, &opened) {
                let [inside, outside] = send_thrice(&mut bed, Side::Outside, &packet);
                assert_eq!((inside.len(), outside.len()), (0, 3), "to {host}");
                outside.iter().for_each(|error| assert_unreachable(error, &packet));
            }
        }
        let counters = bed.counters();
        assert_eq!((counters.of(Verdict::NeighbourUnresolved), counters.originated), (18, 18));
        assert_eq!(counters.neighbour_pending, 0);
        assert_eq!(counters.bytes_forwarded[1..], [0; 2], "no byte of them or of their errors");
    }
}

#[test]
fn a_softwire_quotes_its_packet_to_the_last_bit() {
    for mut bed in beds(&topology_of_silence()) {
        let external = bed.open_udp(at(home(1), 5_000), at(E1, 1_000));
        let packet = build::udp(at(E1, 1_000), external).payload_length(80).identification(0x1234).build();
        bed.outside(&packet);
        bed.advance_secs(PATIENCE_S);
        assert_eq!(quote(&bed.only_outside()), behind_a_hop(&packet));
    }
}

#[test]
fn hairpinned_packets_to_a_silent_ipv6_host_are_reported() {
    for mut bed in beds(&topology_of_silence()) {
        for host in SILENT {
            let opened = open(&mut bed, host);
            for sender in LIVELY {
                for packet in &packets(at(sender, 6_000), opened[0])[..1] {
                    let [inside, outside] = send_thrice(&mut bed, Side::Inside, &packet.1);
                    assert_eq!((inside.len(), outside.len()), (3, 0), "from {sender} to {host}");
                    inside.iter().for_each(|error| assert_unreachable(error, &packet.1));
                }
                let (_, syn) = packets(at(sender, 6_000), opened[1])[1].clone();
                bed.inside(&syn);
                bed.advance_secs(PATIENCE_S);
                assert_unreachable(&bed.only_inside(), &syn);
            }
        }
        assert_eq!((bed.count(Verdict::NeighbourUnresolved), bed.counters().originated), (24, 24));
    }
}

#[test]
fn a_silent_ipv6_host_behind_a_forward_is_reported() {
    let mut settings = topology_of_silence();
    settings.forwards = [443, 444]
        .into_iter()
        .zip(SILENT)
        .map(|(port, host)| Forward {
            realm: RealmId(0),
            protocol: Protocol::Tcp,
            external: POOL[0],
            ports: (port, port),
            inside: inside_host(host),
            inside_port: 8_443,
            admission: Admission::Anyone,
        })
        .collect();
    for mut bed in beds(&settings) {
        for port in [443, 444] {
            let syn = build::tcp(at(E1, 1_000), at(POOL[0], port), Flags::SYN).build();
            bed.outside(&syn);
            bed.advance_secs(PATIENCE_S);
            assert_unreachable(&bed.only_outside(), &syn);
            for sender in LIVELY {
                let (_, syn) = packets(at(sender, 5_000), at(POOL[0], port))[1].clone();
                bed.inside(&syn);
                bed.advance_secs(PATIENCE_S);
                assert_unreachable(&bed.only_inside(), &syn);
            }
        }
    }
}

#[test]
fn only_the_first_piece_of_a_packet_is_reported() {
    for mut bed in beds(&topology_of_silence()) {
        for host in SILENT {
            let external = bed.open_udp(at(host, 5_000), at(E1, 1_000));
            // Natrix cuts the first for the link, and its sender the second.
            let whole = build::udp(at(E1, 1_000), external).payload_length(1_472).build();
            let cut = build::fragment(&build::udp(at(E1, 1_000), external).payload_length(2_500).build(), 1_000);
            for (sent, first) in [(vec![whole.clone()], whole), (cut.clone(), cut[0].clone())] {
                bed.burst(Side::Outside, &sent);
                bed.advance_secs(PATIENCE_S);
                let error = bed.only_outside();
                assert!(is_icmp(&error, 3, 1));
                assert_eq!((source(quote(&error)), destination(quote(&error))), (at(E1, 1_000), external));
                assert_eq!(payload(quote(&error))[..500], payload(&first)[..500]);
                assert!(error.len() <= 576, "RFC 1812 section 4.3.2.3");
            }
        }
    }
}

#[test]
fn errors_about_silent_ipv6_hosts_can_be_switched_off() {
    for (to_inside, to_outside) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut settings = topology_of_silence();
        (settings.icmp.errors_to_inside, settings.icmp.errors_to_outside) = (to_inside, to_outside);
        for mut bed in beds(&settings) {
            for host in SILENT {
                let external = bed.open_udp(at(host, 5_000), at(E1, 1_000));
                for sender in LIVELY {
                    bed.inside(&build::udp(at(sender, 5_000), external).build());
                }
                bed.outside(&build::udp(at(E1, 1_000), external).build());
                bed.advance_secs(PATIENCE_S);
                assert_eq!(bed.take_inside().len(), if to_inside { 3 } else { 0 });
                assert_eq!(bed.take_outside().len(), usize::from(to_outside));
            }
            assert_eq!(bed.count(Verdict::NeighbourUnresolved), 8);
        }
    }
}

#[test]
fn nothing_is_reported_to_ipv6_that_rfc_4443_excludes() {
    // covers: 4443-2.4e
    for mut bed in beds(&topology_of_silence()) {
        for host in SILENT {
            let external = bed.open_udp(at(host, 5_000), at(E1, 1_000));
            let ping = bed.ping(host, 77, E1);
            let left = build::udp(external, at(E1, 1_000)).payload_length(40).build();
            for (kind, code) in [(3, 1), (3, 4), (11, 0)] {
                bed.outside(&build::icmp_error(E1, *external.ip(), kind, code, &left).build());
            }
            // Answers of Natrix itself, whose identifier the host uses outside, too.
            let own = if host == home(1) { Ipv4Addr::new(192, 0, 0, 1) } else { OWN_OUTSIDE };
            bed.inside(&build::echo_request(host, own, 77).payload_length(1_300).build());
            bed.inside(&build::echo_request(host, own, ping.port()).build());
            // An error of Natrix itself.
            bed.inside(&build::udp(at(host, 5_000), at(E2, 1)).ttl(1).build());
            bed.advance_secs(PATIENCE_S);
            bed.assert_silent();
        }
        assert!(bed.count(Verdict::NeighbourUnresolved) > 0);
    }
}

#[test]
fn errors_about_silent_ipv6_hosts_are_limited_by_sender() {
    let settings = topology_of_silence();
    let each = settings.icmp.errors_per_second_per_destination_max;
    for mut bed in beds(&settings) {
        let opened = SILENT.map(|host| bed.open_udp(at(host, 5_000), at(E1, 1_000)));
        // Until the neighbour is absent for the workers of both hosts.
        for _ in 0..50 {
            for external in opened {
                bed.outside(&build::udp(at(E1, 9), external).build());
            }
            bed.advance(Duration::from_millis(100));
        }
        bed.take_outside();
        let seconds = 3;
        let mut answered = [0_u32; 2];
        for step in 0..seconds * 100 {
            let many = |port: u16| build::udp(at(E1, 1_024 + port), opened[usize::from(port % 2)]).build();
            bed.burst(Side::Outside, &(0..50).map(many).collect::<Vec<_>>());
            if step % 10 == 0 {
                bed.outside(&build::udp(at(E2, 5_000), opened[0]).build());
            }
            for error in bed.take_outside() {
                answered[usize::from(destination(&error).ip() == &E2)] += 1;
            }
            bed.advance(Duration::from_millis(10));
        }
        // Each worker has a limit of its own.
        let most = 2 * (each * seconds + each);
        assert!((each * seconds..=most).contains(&answered[0]), "{answered:?}");
        assert_eq!(answered[1], 10 * seconds, "the quiet one gets all its answers");
        let suppressed = bed.counters().icmp_errors_suppressed;
        assert!(suppressed > 0 && suppressed + bed.counters().originated <= bed.count(Verdict::NeighbourUnresolved));
    }
}

#[test]
fn packets_that_no_sender_waits_for_are_not_reported() {
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (behind(E1), 53), b"x"));
    let external = source(&out[0]);
    let [to_host, _] = bed.outside(&build::udp(at(E1, 53), external).payload_length(8).build());
    let [_, errors] = bed.undelivered(0, INSIDE, &to_host[0]);
    assert!(is_icmp(&errors[0], 3, 1));
    assert_eq!((header(&errors[0]).source(), destination(&errors[0]).ip()), (OWN_OUTSIDE.to_bits(), &E1));
    let home = Ipv4Addr::new(192, 168, 1, 2);
    let [_, out] = bed.inside(&softwire(v6(C6), v6(AFTR), &build::echo_request(home, E1, 77).build()));
    assert_eq!(out.len(), 1);
    // From Natrix itself, from and to no single host, to an unknown host, and malformed.
    let (host, remote) = ((v6(C6), 5_000), (behind(E1), 53));
    for packet in [
        udp6((v6(OWN6), 5_351), host, b"x"),
        udp6((v6(AFTR), 5_351), host, b"x"),
        udp6(remote, (v6("ff02::1"), 5_000), b"x"),
        udp6((0, 53), host, b"x"),
        udp6(remote, (v6(D6), 5_000), b"x"),
        udp6((v6(D6), 53), host, b"x"),
        icmp6_message(behind(E1), v6(C6), (1, 4), 0, &to_host[0]),
        softwire(v6(AFTR), v6(C6), &build::udp(at(E1, 53), at(I1, 5_000)).build()),
        softwire(v6(AFTR), v6(C6), &build::echo_reply(Ipv4Addr::new(192, 0, 0, 1), home, 77).build()),
        softwire(v6(AFTR), v6(C6), b"x"),
        softwire(v6(AFTR), v6(C6), &[]),
        to_host[0][..30].to_vec(),
        to_host[0][..40].to_vec(),
    ] {
        assert_eq!(bed.undelivered(0, INSIDE, &packet), [Vec::<Vec<u8>>::new(), Vec::new()], "{packet:02x?}");
    }
}
