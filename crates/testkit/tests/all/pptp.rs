//! The PPTP gateway in the whole packet path (RFC 2637).

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use nat::grant::Origin;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::types::Facing;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

use crate::gateways::Talk;
use crate::gateways::with;

const SERVER: SocketAddrV4 = at(E1, 1723);

/// A control message: its kind, its length, and what is at byte 12.
pub(crate) fn message(kind: u16, length: u16, words: &[u16]) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(length)];
    bytes[..2].copy_from_slice(&length.to_be_bytes());
    bytes[2..8].copy_from_slice(&[0, 1, 0x1a, 0x2b, 0x3c, 0x4d]);
    bytes[8..10].copy_from_slice(&kind.to_be_bytes());
    for (i, word) in words.iter().enumerate() {
        bytes[12 + 2 * i..14 + 2 * i].copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

pub(crate) fn word(message: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([message[at], message[at + 1]])
}

pub(crate) fn start_request() -> Vec<u8> {
    message(1, 156, &[0x0100])
}

pub(crate) fn start_reply() -> Vec<u8> {
    message(2, 156, &[0x0100, 0x0100])
}

pub(crate) fn call_request(id: u16) -> Vec<u8> {
    message(7, 168, &[id])
}

pub(crate) fn call_reply(id: u16, peer: u16) -> Vec<u8> {
    message(8, 32, &[id, peer, 0x0100])
}

fn gre(from: Ipv4Addr, to: Ipv4Addr, call: u16) -> Vec<u8> {
    let mut bytes = vec![0x30, 0x01, 0x88, 0x0b, 0, 5];
    bytes.extend_from_slice(&call.to_be_bytes());
    bytes.extend_from_slice(b"\0\0\0\x01hello");
    build::raw(from, to, 47).payload(&bytes).build()
}

/// Source, destination and call identifier. The rest is as [`gre`] made it.
fn ends(packet: &[u8]) -> (Ipv4Addr, Ipv4Addr, u16) {
    let ip = Ipv4::new_checked(packet).expect("a packet");
    assert!(wire::checksum::is_ipv4_header_valid(&packet[..20]));
    assert_eq!(
        (ip.payload()[..6].to_vec(), &ip.payload()[8..]),
        (vec![0x30, 1, 0x88, 0x0b, 0, 5], &b"\0\0\0\x01hello"[..])
    );
    (*source(packet).ip(), *destination(packet).ip(), word(ip.payload(), 6))
}

/// A client inside, with a control connection to a server.
pub(crate) fn dial(bed: &mut Bed, client: SocketAddrV4, server: SocketAddrV4) -> Talk {
    let mut talk = Talk::open(bed, client, server);
    assert_eq!(talk.pass_out(bed, &start_request()), start_request());
    assert_eq!(talk.pass_in(bed, &start_reply()), start_reply());
    talk
}

/// The external identifier of the call `own`, which the server knows by `peer`.
fn call(bed: &mut Bed, talk: &mut Talk, own: u16, peer: u16) -> u16 {
    let sent = talk.pass_out(bed, &call_request(own));
    let external = word(&sent, 12);
    assert_eq!(sent, call_request(external), "nothing else changes");
    assert_eq!(talk.pass_in(bed, &call_reply(peer, external)), call_reply(peer, own));
    external
}

/// Whether a call is made whose packets come in.
pub(crate) fn opens_a_call(bed: &mut Bed, client: SocketAddrV4) -> bool {
    let mut talk = dial(bed, client, SERVER);
    let external = word(&talk.pass_out(bed, &call_request(7)), 12);
    talk.pass_in(bed, &call_reply(9, external));
    gre_enters(bed, E1, *talk.external.ip(), external).is_some()
}

pub(crate) fn gre_leaves(bed: &mut Bed, from: Ipv4Addr, to: Ipv4Addr, call: u16) -> Option<(Ipv4Addr, Ipv4Addr, u16)> {
    bed.inside(&gre(from, to, call));
    bed.take_outside().first().map(|packet| ends(packet))
}

pub(crate) fn gre_enters(bed: &mut Bed, from: Ipv4Addr, to: Ipv4Addr, call: u16) -> Option<(Ipv4Addr, Ipv4Addr, u16)> {
    bed.outside(&gre(from, to, call));
    bed.take_inside().first().map(|packet| ends(packet))
}

fn state_is_gone(bed: &mut Bed) {
    bed.run_out();
    assert!(bed.grants().is_empty());
    assert_eq!(bed.ports_used(), 0);
}

#[test]
fn tunnelled_packets_pass_both_ways() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["pptp"])).workers(workers);
        let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
        let own = *talk.external.ip();
        // Before the call there is none.
        assert_eq!(gre_leaves(&mut bed, I1, E1, 77), None);
        let external = call(&mut bed, &mut talk, 5, 77);
        assert_eq!(gre_leaves(&mut bed, I1, E1, 77), Some((own, E1, 77)));
        assert_eq!(gre_enters(&mut bed, E1, own, external), Some((E1, I1, 5)));
        // Another call, another server, another subscriber.
        assert_eq!(gre_leaves(&mut bed, I1, E1, 78), None);
        assert_eq!(gre_leaves(&mut bed, I1, E2, 77), None);
        assert_eq!(gre_leaves(&mut bed, I2, E1, 77), None);
        assert_eq!(gre_enters(&mut bed, E2, own, external), None);
        assert_eq!(gre_enters(&mut bed, E1, own, external ^ 1), None);
        assert_eq!(bed.count(Verdict::ProtocolUnsupported), 6, "as without a gateway");
        let counters = bed.counters();
        assert_eq!((counters.expectations_created, counters.expectations_refused), (1, 0));
        state_is_gone(&mut bed);
    }
}

#[test]
fn no_rule_passes_errors_about_packets_of_a_call() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["pptp"]).pass(47, Prefix::ALL, Prefix::ALL)).workers(workers);
        let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
        let own = *talk.external.ip();
        let external = call(&mut bed, &mut talk, 5, 77);
        assert_eq!(gre_leaves(&mut bed, I1, E1, 77), Some((own, E1, 77)));
        assert_eq!(gre_enters(&mut bed, E1, own, external), Some((E1, I1, 5)));
        bed.inside(&build::icmp_error(I1, E1, 3, 4, &gre(E1, I1, 5)).build());
        bed.outside(&build::icmp_error(E1, own, 3, 4, &gre(own, E1, 77)).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::ProtocolUnsupported), 2);
        // Packets of no call pass as they are.
        bed.inside(&build::icmp_error(I1, E1, 3, 4, &gre(E1, I1, 6)).build());
        assert!(is_icmp(&bed.only_outside(), 3, 4));
        bed.outside(&build::icmp_error(E1, I1, 3, 4, &gre(I1, E1, 78)).build());
        assert!(is_icmp(&bed.only_inside(), 3, 4));
        state_is_gone(&mut bed);
    }
}

#[test]
fn equal_call_identifiers_of_two_clients_differ_outside() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["pptp"])).workers(workers);
        let clients = [(I1, 900), (I2, 901), (I3, 902)];
        let mut calls = Vec::new();
        for (client, peer) in clients {
            let mut talk = dial(&mut bed, at(client, 40_000), SERVER);
            let external = call(&mut bed, &mut talk, 0, peer);
            calls.push((client, peer, *talk.external.ip(), external));
        }
        for (i, (client, peer, own, external)) in calls.iter().copied().enumerate() {
            assert!(calls[..i].iter().all(|other| (other.2, other.3) != (own, external)));
            assert_eq!(gre_leaves(&mut bed, client, E1, peer), Some((own, E1, peer)));
            assert_eq!(gre_enters(&mut bed, E1, own, external), Some((E1, client, 0)));
        }
        state_is_gone(&mut bed);
    }
}

#[test]
fn one_client_calls_two_servers_with_one_identifier() {
    let mut bed = Bed::new(with(&["pptp"]));
    for (i, server) in [E1, E2].into_iter().enumerate() {
        let mut talk = dial(&mut bed, at(I1, 40_000 + i as u16), at(server, 1723));
        let external = call(&mut bed, &mut talk, 3, 9);
        let own = *talk.external.ip();
        assert_eq!(gre_leaves(&mut bed, I1, server, 9), Some((own, server, 9)));
        assert_eq!(gre_enters(&mut bed, server, own, external), Some((server, I1, 3)));
    }
    state_is_gone(&mut bed);
}

fn forwarding(inside: Ipv4Addr) -> (Settings, SocketAddrV4) {
    let mut settings = with(&["pptp"]);
    let external = at(POOL[0], 1723);
    settings.forwards.push(Forward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external: *external.ip(),
        ports: (1723, 1723),
        inside: inside.into(),
        inside_port: 1723,
        admission: Admission::Anyone,
    });
    (settings, external)
}

#[test]
fn a_server_behind_a_forward_is_called() {
    for workers in [1, 2, 8] {
        let (settings, external) = forwarding(I1);
        let mut bed = Bed::new(settings).workers(workers);
        let mut talk = Talk::enter(&mut bed, at(I1, 1723), at(E1, 50_000), external);
        talk.pass_in(&mut bed, &start_request());
        talk.pass_out(&mut bed, &start_reply());
        assert_eq!(talk.pass_in(&mut bed, &call_request(5)), call_request(5));
        let sent = talk.pass_out(&mut bed, &call_reply(77, 5));
        let lease = word(&sent, 12);
        assert_eq!(sent, call_reply(lease, 5));
        assert_eq!(gre_enters(&mut bed, E1, *external.ip(), lease), Some((E1, I1, 77)));
        assert_eq!(gre_leaves(&mut bed, I1, E1, 5), Some((*external.ip(), E1, 5)));
        assert_eq!(gre_enters(&mut bed, E2, *external.ip(), lease), None);
        state_is_gone(&mut bed);
    }
}

#[test]
fn a_subscriber_calls_another() {
    for workers in [1, 2, 8] {
        let (settings, external) = forwarding(I2);
        let mut bed = Bed::new(settings).workers(workers);
        let (client, server) = (at(I1, 40_000), at(I2, 1723));
        let mut numbers = (1_001, 5_001);
        let segment = |from, to, flags, sequence, ack, payload: &[u8]| {
            build::tcp(from, to, flags).sequence(sequence).acknowledgment(ack).payload(payload).build()
        };
        bed.inside(&segment(client, external, Flags::SYN, 1_000, 0, b""));
        let outside = source(&bed.only_inside());
        bed.inside(&segment(server, outside, Flags::SYN.union(Flags::ACK), 5_000, 1_001, b""));
        bed.only_inside();
        bed.inside(&segment(client, external, Flags::ACK, 1_001, 5_001, b""));
        bed.only_inside();
        let mut say = |bed: &mut Bed, is_client: bool, bytes: &[u8]| {
            let (from, to) = if is_client { (client, external) } else { (server, outside) };
            let (sequence, ack) = if is_client { numbers } else { (numbers.1, numbers.0) };
            bed.inside(&segment(from, to, Flags::ACK, sequence, ack, bytes));
            let next = if is_client { &mut numbers.0 } else { &mut numbers.1 };
            *next += bytes.len() as u32;
            payload(&bed.only_inside()).to_vec()
        };
        say(&mut bed, true, &start_request());
        say(&mut bed, false, &start_reply());
        let lease = word(&say(&mut bed, true, &call_request(5)), 12);
        let reply = say(&mut bed, false, &call_reply(77, lease));
        assert_eq!(word(&reply, 14), 5);
        let peer = word(&reply, 12);
        bed.inside(&gre(I1, *external.ip(), peer));
        assert_eq!(ends(&bed.only_inside()), (*outside.ip(), I2, 77));
        bed.inside(&gre(I2, *outside.ip(), lease));
        assert_eq!(ends(&bed.only_inside()), (*external.ip(), I1, 5));
        assert_eq!(bed.count(Verdict::ProtocolUnsupported), 0);
        state_is_gone(&mut bed);
    }
}

/// RFC 2637 §2.9: the server calls, and the client accepts.
#[test]
fn an_incoming_call_is_accepted() {
    let mut bed = Bed::new(with(&["pptp"]));
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    let ring = message(9, 220, &[77]);
    assert_eq!(talk.pass_in(&mut bed, &ring), ring);
    let sent = talk.pass_out(&mut bed, &message(10, 24, &[5, 77, 0x0100]));
    let external = word(&sent, 12);
    assert_eq!(sent, message(10, 24, &[external, 77, 0x0100]));
    for (kind, length) in [(11, 28), (14, 40), (15, 24)] {
        assert_eq!(talk.pass_in(&mut bed, &message(kind, length, &[external])), message(kind, length, &[5]));
    }
    // To the server by its own identifier.
    assert_eq!(talk.pass_out(&mut bed, &message(15, 24, &[77])), message(15, 24, &[77]));
    assert_eq!(gre_enters(&mut bed, E1, *talk.external.ip(), external), Some((E1, I1, 5)));
    state_is_gone(&mut bed);
}

#[test]
fn a_call_ends_with_its_messages() {
    let mut bed = Bed::new(with(&["pptp"]));
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    let own = *talk.external.ip();
    for (ends, is_ours) in [
        (message(12, 16, &[5]), true),
        (message(13, 148, &[77]), false),
        (message(3, 16, &[]), true),
        (message(4, 16, &[]), false),
    ] {
        let external = call(&mut bed, &mut talk, 5, 77);
        assert!(gre_enters(&mut bed, E1, own, external).is_some());
        if is_ours {
            let sent = talk.pass_out(&mut bed, &ends);
            assert!(sent.len() < 14 || word(&sent, 8) == 3 || word(&sent, 12) == external);
        } else {
            assert_eq!(talk.pass_in(&mut bed, &ends), ends);
        }
        assert_eq!(gre_enters(&mut bed, E1, own, external), None);
        assert_eq!(gre_leaves(&mut bed, I1, E1, 77), None);
        assert!(bed.grants().is_empty());
    }
    state_is_gone(&mut bed);
}

#[test]
fn a_refused_call_leaves_nothing() {
    let mut bed = Bed::new(with(&["pptp"]));
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    let external = word(&talk.pass_out(&mut bed, &call_request(5)), 12);
    assert_eq!(bed.grants().len(), 1);
    let refusal = |peer| message(8, 32, &[0, peer, 0x0400]);
    assert_eq!(talk.pass_in(&mut bed, &refusal(external)), refusal(5));
    assert!(bed.grants().is_empty());
    // Nobody answers the second one.
    talk.pass_out(&mut bed, &call_request(6));
    bed.advance_secs(31);
    assert!(bed.grants().is_empty());
    state_is_gone(&mut bed);
}

#[test]
fn a_call_lives_as_long_as_its_control_connection() {
    for ending in [Flags::RST.union(Flags::ACK), Flags::FIN.union(Flags::ACK)] {
        let mut bed = Bed::new(with(&["pptp"]));
        let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
        let (own, external) = (*talk.external.ip(), call(&mut bed, &mut talk, 5, 77));
        // Two hours without a packet.
        bed.advance_secs(7_200);
        assert!(gre_enters(&mut bed, E1, own, external).is_some());
        let echo = message(5, 16, &[]);
        assert_eq!(talk.pass_out(&mut bed, &echo), echo);
        bed.advance_secs(7_200);
        assert!(gre_leaves(&mut bed, I1, E1, 77).is_some());
        for (from, to) in [(at(I1, 40_000), SERVER), (SERVER, talk.external)] {
            let (sequence, ack) = talk.numbers(from == SERVER);
            let end = build::tcp(from, to, ending).sequence(sequence).acknowledgment(ack).build();
            if from == SERVER { bed.outside(&end) } else { bed.inside(&end) }
        }
        bed.take_inside();
        bed.take_outside();
        bed.advance_secs(5);
        assert_eq!(gre_enters(&mut bed, E1, own, external), None, "{ending:?}");
        assert!(bed.grants().is_empty());
        state_is_gone(&mut bed);
    }
}

#[test]
fn a_silent_control_connection_ends_its_calls() {
    let mut bed = Bed::new(with(&["pptp"]));
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    let (own, external) = (*talk.external.ip(), call(&mut bed, &mut talk, 5, 77));
    // An idle connection may be revived for another four minutes (RFC 7857 §2).
    bed.advance(bed.settings().timeouts.tcp_established + Duration::from_secs(250));
    assert_eq!(gre_enters(&mut bed, E1, own, external), None);
    state_is_gone(&mut bed);
}

#[test]
fn a_session_has_8_calls() {
    let mut bed = Bed::new(with(&["pptp"]));
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    for id in 0..8 {
        call(&mut bed, &mut talk, id, 100 + id);
    }
    assert_eq!(talk.pass_out(&mut bed, &call_request(8)), call_request(8), "it passes as it is");
    let counters = bed.counters();
    assert_eq!((counters.expectations_created, counters.expectations_refused), (8, 1));
    assert_eq!(talk.pass_out(&mut bed, &message(12, 16, &[3])).len(), 16);
    assert_ne!(talk.pass_out(&mut bed, &call_request(8)), call_request(8), "one has ended");
    state_is_gone(&mut bed);
}

/// 3022-10: other protocols are not translated.
#[test]
fn other_packets_of_protocol_47_are_as_without_a_gateway() {
    covers!("3022-10");
    for names in [&[][..], &["pptp"]] {
        let mut bed = Bed::new(with(names));
        let mut plain = gre(I1, E1, 77);
        // Version 0, and a packet too short for a call identifier.
        plain[21] = 0;
        bed.inside(&plain);
        bed.inside(&build::raw(I1, E1, 47).payload(&[0x30, 1, 0x88, 0x0b]).build());
        bed.inside(&gre(I1, E1, 77));
        bed.outside(&gre(E1, POOL[0], 77));
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::ProtocolUnsupported), 4);
    }
}

#[test]
fn fragments_of_tunnelled_packets_have_a_verdict() {
    for (names, verdict) in [(&[][..], Verdict::ProtocolUnsupported), (&["pptp"], Verdict::CallFragment)] {
        let mut bed = Bed::new(with(names));
        let long = build::raw(I1, E1, 47).payload(&[gre(I1, E1, 77)[20..].to_vec(), vec![7; 200]].concat()).build();
        let fragments = build::fragment(&long, 100);
        for fragment in &fragments {
            bed.inside(fragment);
        }
        bed.assert_silent();
        assert_eq!(bed.count(verdict), fragments.len() as u64);
    }
}

#[test]
fn pings_with_the_number_of_a_call_pass_by_themselves() {
    let mut settings = with(&["pptp"]);
    settings = settings.filtering(Filtering::EndpointIndependent);
    let mut bed = Bed::new(settings);
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    let external = call(&mut bed, &mut talk, 5, 77);
    let own = *talk.external.ip();
    // A stranger gets nothing by the lease of the call.
    bed.outside(&build::echo_reply(E2, own, external).build());
    bed.assert_silent();
    bed.outside(&build::echo_request(E1, own, external).build());
    bed.assert_silent();
    assert_eq!(bed.ping(I1, 5, E2), at(own, external));
    bed.outside(&build::echo_reply(E2, own, external).build());
    assert_eq!(*destination(&bed.only_inside()).ip(), I1);
    assert_eq!(gre_enters(&mut bed, E1, own, external), Some((E1, I1, 5)));
    state_is_gone(&mut bed);
}

#[test]
fn a_page_posted_to_the_port_of_pptp_gets_nothing() {
    let mut bed = Bed::new(with(&["pptp"]));
    for (i, first) in [
        b"POST / HTTP/1.1\r\n\r\n".to_vec(),
        call_request(5),
        message(1, 156, &[])[..40].iter().copied().chain(*b"POST / HTTP/1.1\r\n").collect(),
        message(16, 16, &[]),
        message(1, 16, &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut talk = Talk::open(&mut bed, at(I1, 40_000 + i as u16), SERVER);
        let start = first.len() == 57;
        if !start {
            assert_eq!(talk.pass_out(&mut bed, &first), first);
        }
        if !start {
            assert_eq!(talk.pass_out(&mut bed, &start_request()), start_request());
            assert_eq!(talk.pass_in(&mut bed, &start_reply()), start_reply());
            assert_eq!(talk.pass_out(&mut bed, &call_request(5)), call_request(5));
        }
    }
    // A server of another protocol, and one that refuses.
    for (port, reply) in [(41_000, b"HTTP/1.1 200 OK\r\n".to_vec()), (41_001, message(2, 156, &[0x0100, 0x0200]))] {
        let mut talk = Talk::open(&mut bed, at(I1, port), SERVER);
        talk.pass_out(&mut bed, &start_request());
        assert_eq!(talk.pass_in(&mut bed, &reply), reply);
        assert_eq!(talk.pass_out(&mut bed, &call_request(5)), call_request(5));
    }
    assert_eq!(bed.counters().expectations_created, 0);
    state_is_gone(&mut bed);
}

/// The log has the call identifier as a query identifier of the external address.
#[test]
fn the_log_names_the_origin_of_a_call() {
    let mut bed = Bed::new(with(&["pptp"])).record_events(1 << 8);
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    let external = call(&mut bed, &mut talk, 5, 77);
    state_is_gone(&mut bed);
    let events: Vec<_> = bed.take_events_in_order().into_iter().map(|(_, event)| event).collect();
    let lease = |kind| {
        events
            .iter()
            .filter(move |event| event.kind == kind && event.protocol == Some(Protocol::Icmp))
            .collect::<Vec<_>>()
    };
    let (made, ended) = (lease(EventKind::MappingCreated), lease(EventKind::MappingEnded));
    assert_eq!((made.len(), ended.len()), (1, 1));
    assert_eq!((made[0].cause, made[0].first_port, made[0].internal_port), (Cause::Alg, external, 5));
}

#[test]
fn a_reload_keeps_calls() {
    let mut bed = Bed::new(with(&["pptp"])).workers(2);
    let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
    let (own, external) = (*talk.external.ip(), call(&mut bed, &mut talk, 5, 77));
    for names in [&["pptp", "ftp"][..], &["ftp"], &[]] {
        bed.reload(with(names));
        bed.advance_secs(60);
        assert_eq!(gre_enters(&mut bed, E1, own, external), Some((E1, I1, 5)), "{names:?}");
        assert_eq!(gre_leaves(&mut bed, I1, E1, 77), Some((own, E1, 77)));
    }
    // A new call is not read.
    assert_eq!(talk.pass_out(&mut bed, &call_request(6)), call_request(6));
    state_is_gone(&mut bed);
}

#[test]
fn what_is_explained_of_a_tunnelled_packet_comes_true() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["pptp"])).workers(workers);
        let mut talk = dial(&mut bed, at(I1, 40_000), SERVER);
        let (own, external) = (*talk.external.ip(), call(&mut bed, &mut talk, 5, 77));
        for (side, packet, verdict) in [
            (Side::Inside, gre(I1, E1, 77), Verdict::Outbound),
            (Side::Inside, gre(I1, E1, 78), Verdict::ProtocolUnsupported),
            (Side::Outside, gre(E1, own, external), Verdict::Inbound),
            (Side::Outside, gre(E2, own, external), Verdict::ProtocolUnsupported),
        ] {
            let shards: Vec<&Shard> = bed.shards().collect();
            let from = Facing::from(side);
            let answer = bed.shared().explain(from, &packet, |worker, onward| -> Result<_, ()> {
                let shard = shards[worker.index()];
                Ok(match onward {
                    None => shard.explain(bed.now(), from, &packet),
                    Some(onward) => shard.explain_onward(bed.now(), onward, &packet),
                })
            });
            let explained = answer.expect("shards answer").1;
            assert_eq!(explained.verdict, verdict);
            let before = bed.count(verdict);
            if side == Side::Inside {
                bed.inside(&packet)
            } else {
                bed.outside(&packet)
            }
            assert_eq!(bed.count(verdict), before + 1);
            if verdict == Verdict::Inbound {
                assert_eq!(explained.destination_after.map(|to| (to.address, to.port)), Some((I1, 5)));
                let origin = format!("{:?}", Origin::Alg(alg::AlgId::PPTP));
                let names_origin = explained.steps.iter().any(|step| format!("{step:?}").contains(&origin));
                assert!(names_origin, "{:?}", explained.steps);
            }
        }
        bed.take_inside();
        bed.take_outside();
    }
}
