//! RFC 5382, behaviour for TCP. One test or more per requirement, in order.

use std::collections::HashSet;

use nat::Counters;
use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::tcp::TcpState;
use nat::types::Side;
use testkit::connection::FIN_ACK;
use testkit::connection::SYN_ACK;
use testkit::connection::opposite;
use testkit::*;
use wire::build;
use wire::tcp::Flags;
use wire::tcp::Tcp;

const SIDES: [Side; 2] = [Side::Inside, Side::Outside];
const NOTHING: Vec<Vec<u8>> = Vec::new();

/// One worker, and two whose packets arrive at either.
fn beds(settings: &Settings) -> [Bed; 2] {
    [Bed::new(settings.clone()), Bed::new(settings.clone()).workers(2).steering(Steering::Random)]
}

/// An established connection in each of [`beds`].
fn connections() -> [(Bed, Connection); 2] {
    beds(&settings()).map(|mut bed| {
        let connection = Connection::open(&mut bed, at(I1, 5000), at(E1, 80));
        (bed, connection)
    })
}

fn syn(bed: &mut Bed, remote: core::net::SocketAddrV4, external: core::net::SocketAddrV4) {
    bed.outside(&build::tcp(remote, external, Flags::SYN).sequence(77).mss(1460).build());
}

#[test]
fn a_mapping_serves_every_destination() {
    covers!("5382-REQ-1");
    for mut bed in beds(&settings()) {
        for port in 5_000..5_500 {
            let first = bed.open_tcp(at(I1, port), at(E1, 80));
            assert_eq!(bed.open_tcp(at(I1, port), at(E1, 81)), first);
            assert_eq!(bed.open_tcp(at(I1, port), at(E2, 80)), first);
        }
        assert_eq!(bed.mappings().len(), 500);
        assert_eq!(bed.sessions().len(), 1_500);
    }
}

#[test]
fn a_connection_opened_from_either_side_carries_data() {
    covers!("5382-REQ-2");
    for mut bed in beds(&settings()) {
        for first in SIDES {
            let mut connection = Connection::open(&mut bed, at(I1, 5000), at(E1, 80));
            if first == Side::Outside {
                // The subscriber listens on an endpoint it has opened before.
                connection = Connection::new(at(I1, 5000), connection.external, at(E2, 7000));
                connection.pass(&mut bed, first, Flags::SYN);
                connection.pass(&mut bed, opposite(first), SYN_ACK);
                connection.pass(&mut bed, first, Flags::ACK);
            }
            assert_eq!(connection.state(&bed), Some(TcpState::Established));
            for round in 0..50 {
                connection.pass_data(&mut bed, Side::Inside, &vec![round; usize::from(round) * 29]);
                connection.pass_data(&mut bed, Side::Outside, &vec![round; 1_460 - usize::from(round)]);
                connection.pass(&mut bed, SIDES[usize::from(round) % 2], Flags::ACK);
            }
            connection.close(&mut bed, first);
            assert_eq!(connection.state(&bed), Some(TcpState::Closing));
        }
    }
}

#[test]
fn every_copy_of_a_syn_and_a_syn_ack_passes() {
    covers!("5382-REQ-2");
    for mut bed in beds(&settings()) {
        let mut connection = Connection::half_open(&mut bed, at(I1, 5000), at(E1, 80));
        let syn = build::tcp(at(I1, 5000), at(E1, 80), Flags::SYN).sequence(1_000).mss(1460).build();
        for pause in [1, 2, 4, 8, 16, 32] {
            bed.advance_secs(pause);
            assert!(connection.send_raw(&mut bed, Side::Inside, &syn).is_some());
        }
        let answer = connection.segment(Side::Outside, SYN_ACK);
        assert!(connection.send(&mut bed, Side::Outside, &answer).is_some());
        for pause in [1, 2, 4, 8] {
            bed.advance_secs(pause);
            assert!(connection.send_raw(&mut bed, Side::Outside, &answer.build()).is_some());
        }
        connection.pass_data(&mut bed, Side::Inside, b"at last");
        assert_eq!(bed.sessions().len(), 1);
    }
}

#[test]
fn data_in_a_syn_and_in_a_syn_ack_passes() {
    covers!("5382-REQ-2");
    // TCP Fast Open (RFC 7413 §2): a request for a cookie, and a cookie with data.
    let cookies: [&[u8]; 2] = [&[34, 2], &[34, 10, 1, 2, 3, 4, 5, 6, 7, 8]];
    for mut bed in beds(&settings()) {
        for (port, cookie) in (5_000..).zip(cookies) {
            let external = bed.open_tcp(at(I1, port), at(E2, 9));
            let mut connection = Connection::new(at(I1, port), external, at(E1, 80));
            let syn = connection.segment(Side::Inside, Flags::SYN).tcp_options(cookie).payload(b"GET / HTTP/1.1\r\n");
            let arrived = connection.send(&mut bed, Side::Inside, &syn).expect("SYN with data");
            assert_eq!(payload(&arrived), b"GET / HTTP/1.1\r\n");
            let answer = connection.segment(Side::Outside, SYN_ACK).tcp_options(cookie).payload(b"200 OK");
            let arrived = connection.send(&mut bed, Side::Outside, &answer).expect("SYN-ACK with data");
            assert_eq!(payload(&arrived), b"200 OK");
            connection.pass_data(&mut bed, Side::Outside, b"more before the last ACK");
            connection.pass(&mut bed, Side::Inside, Flags::ACK);
            assert_eq!(connection.state(&bed), Some(TcpState::Established));
        }
    }
}

#[test]
fn one_side_may_send_for_hours_after_the_other_has_closed() {
    covers!("5382-REQ-2");
    for closed in SIDES {
        for (mut bed, mut connection) in connections() {
            connection.pass(&mut bed, closed, FIN_ACK);
            connection.pass(&mut bed, opposite(closed), Flags::ACK);
            // Ten minutes with a segment every three, then one after two hours.
            for pause in [180, 180, 180, 60, 7_439] {
                bed.advance_secs(pause);
                connection.pass_data(&mut bed, opposite(closed), &[7; 1_460]);
                connection.pass(&mut bed, closed, Flags::ACK);
            }
            connection.pass(&mut bed, opposite(closed), FIN_ACK);
            connection.pass(&mut bed, closed, Flags::ACK);
            assert_eq!(connection.state(&bed), Some(TcpState::Closing));
        }
    }
}

#[test]
fn fins_with_data_and_fins_that_cross_pass() {
    covers!("5382-REQ-2");
    for first in SIDES {
        for (mut bed, mut connection) in connections() {
            let fin = connection.segment(first, FIN_ACK.union(Flags::PSH)).payload(b"last words");
            let crossing = connection.segment(opposite(first), FIN_ACK);
            assert_eq!(payload(&connection.send(&mut bed, first, &fin).expect("FIN")), b"last words");
            // Simultaneous close (RFC 9293 §3.6, figure 13): neither FIN acknowledges the other.
            assert!(connection.send(&mut bed, opposite(first), &crossing).is_some());
            connection.pass(&mut bed, first, Flags::ACK);
            connection.pass(&mut bed, opposite(first), Flags::ACK);
            assert_eq!(connection.state(&bed), Some(TcpState::Closing));
            // Copies of both FINs.
            assert!(connection.send_raw(&mut bed, first, &fin.build()).is_some());
            assert!(connection.send_raw(&mut bed, opposite(first), &crossing.build()).is_some());
        }
    }
}

#[test]
fn urgent_data_window_probes_and_keep_alives_pass() {
    covers!("5382-REQ-2");
    for (mut bed, mut connection) in connections() {
        for side in SIDES {
            connection.pass_data(&mut bed, side, &[1; 1_000]);
            let mut urgent = connection.segment(side, Flags::ACK.union(Flags::URG)).payload(b"stop!").build();
            let ends = (packet::header(&urgent).source(), packet::header(&urgent).destination());
            // The urgent pointer is the last word of the header.
            urgent[20 + 18..20 + 20].copy_from_slice(&5_u16.to_be_bytes());
            Tcp::new_unchecked(&mut urgent[20..]).fill_checksum(ends.0, ends.1);
            let arrived = connection.send_raw(&mut bed, side, &urgent).expect("urgent segment");
            assert_eq!((packet::tcp(&arrived).urgent_pointer(), payload(&arrived)), (5, &b"stop!"[..]));
            // A window of zero, probed with one byte (RFC 9293 §3.8.6.1), and opened again.
            let zero = connection.segment(opposite(side), Flags::ACK).window(0);
            let arrived = connection.send(&mut bed, opposite(side), &zero).expect("window of zero");
            assert_eq!(packet::tcp(&arrived).window(), 0);
            for _ in 0..3 {
                bed.advance_secs(60);
                let probe = connection.segment(side, Flags::ACK).payload(b"?").build();
                assert!(connection.send_raw(&mut bed, side, &probe).is_some());
            }
            // Keep-alive: the byte before the next one, with and without data (RFC 9293 §3.8.4).
            let next = packet::tcp(&connection.segment(side, Flags::ACK).build()).sequence();
            for length in [0, 1] {
                bed.advance_secs(7_200);
                let keep_alive = connection.segment(side, Flags::ACK).sequence(next.wrapping_sub(1));
                let keep_alive = keep_alive.payload_length(length).build();
                assert!(connection.send_raw(&mut bed, side, &keep_alive).is_some());
                connection.pass(&mut bed, opposite(side), Flags::ACK);
            }
        }
        assert_eq!(connection.state(&bed), Some(TcpState::Established));
    }
}

/// TCP options as stacks send them, unknown ones, malformed ones, and 40 bytes full.
fn options() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = vec![
        vec![],
        // MSS, SACK permitted, timestamps, NOP, window scale: a usual SYN.
        vec![2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 1, 0, 0, 0, 0, 0, 1, 3, 3, 7],
        // Window scale over its maximum (RFC 7323 §2.3).
        vec![3, 3, 255, 0],
        // Four SACK blocks (RFC 2018 §3).
        [vec![1, 1, 5, 34], (0..32).collect()].concat(),
        // Timestamps and three SACK blocks: 40 bytes.
        [vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8, 1, 1, 5, 26], (0..24).collect()].concat(),
        // MD5 signature (RFC 2385), TCP-AO (RFC 5925), user timeout (RFC 5482), MPTCP (RFC 8684).
        [vec![19, 18], vec![0xaa; 16]].concat(),
        [vec![29, 16, 1, 2], vec![0xbb; 12]].concat(),
        vec![28, 4, 0x80, 60],
        [vec![30, 12, 0x01, 0x81], vec![0xcc; 8]].concat(),
        // AccECN (RFC 9768).
        vec![172, 11, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0],
        // Longer than the header, shorter than itself, and bytes behind the end of the list.
        vec![250, 200, 1, 2],
        vec![250, 0, 1, 2],
        vec![250, 1, 1, 2],
        vec![0, 9, 9, 9],
    ];
    for kind in [0_u8, 1, 6, 9, 14, 27, 69, 76, 127, 128, 252, 253, 254, 255] {
        for length in [2_u8, 3, 4, 17, 40] {
            all.push((0..length).map(|byte| [kind, length].get(usize::from(byte)).copied().unwrap_or(byte)).collect());
        }
    }
    all
}

#[test]
fn options_known_and_unknown_pass_unchanged() {
    covers!("5382-REQ-2");
    for mut bed in beds(&settings()) {
        for (port, options) in (5_000..).zip(options()) {
            let external = bed.open_tcp(at(I1, port), at(E2, 9));
            let mut connection = Connection::new(at(I1, port), external, at(E1, 80));
            let script = [
                (Side::Inside, Flags::SYN, &b""[..]),
                (Side::Outside, SYN_ACK, b""),
                (Side::Inside, Flags::ACK, b""),
                (Side::Inside, Flags::ACK, b"question"),
                (Side::Outside, Flags::ACK, b"answers"),
                (Side::Outside, FIN_ACK, b""),
                (Side::Inside, FIN_ACK, b"!"),
                (Side::Outside, Flags::ACK, b""),
            ];
            for (from, flags, data) in script {
                let sent = connection.segment(from, flags).tcp_options(&options).payload(data);
                let arrived = connection.send(&mut bed, from, &sent).expect("options do not stop a segment");
                let (sent, end) = (sent.build(), 20 + packet::tcp(&arrived).header_length());
                assert_eq!(arrived[24..36], sent[24..36], "numbers, flags and window");
                assert_eq!(arrived[38..end], sent[38..end], "urgent pointer and options");
                assert_eq!(payload(&arrived), data);
            }
            assert_eq!(connection.state(&bed), Some(TcpState::Closing));
        }
    }
}

#[test]
fn an_established_connection_passes_all_flags_unchanged() {
    covers!("5382-REQ-2");
    let mut bed = Bed::new(settings());
    for reserved in 0..16 {
        for flags in 0..=255 {
            for side in SIDES {
                let connection = Connection::open(&mut bed, at(I1, 5000 + u16::from(flags)), at(E1, 80));
                let mut segment = connection.segment(side, Flags(flags)).payload(b"odd").build();
                let ends = (packet::header(&segment).source(), packet::header(&segment).destination());
                // Beside the data offset: three reserved bits and AE (RFC 9768), which was NS.
                segment[20 + 12] |= reserved;
                Tcp::new_unchecked(&mut segment[20..]).fill_checksum(ends.0, ends.1);
                let arrived = connection.send_raw(&mut bed, side, &segment);
                let arrived = arrived.unwrap_or_else(|| panic!("{reserved:x} {flags:02x} from {}", side.name()));
                assert_eq!(arrived[32..34], [0x50 | reserved, flags]);
                assert_eq!(payload(&arrived), b"odd");
            }
        }
    }
}

#[test]
fn ecn_is_negotiated_and_used_through_the_nat() {
    covers!("5382-REQ-2");
    for mut bed in beds(&settings()) {
        let external = bed.open_tcp(at(I1, 5000), at(E2, 9));
        let mut connection = Connection::new(at(I1, 5000), external, at(E1, 80));
        // RFC 3168 §6.1.1: ECN-setup SYN and SYN-ACK; then data marked by a router, echoed, and
        // answered.
        connection.pass(&mut bed, Side::Inside, Flags::SYN.union(Flags::ECE).union(Flags::CWR));
        connection.pass(&mut bed, Side::Outside, SYN_ACK.union(Flags::ECE));
        connection.pass(&mut bed, Side::Inside, Flags::ACK);
        let marked = connection.segment(Side::Outside, Flags::ACK).ds_field(3).payload(b"congested");
        let arrived = connection.send(&mut bed, Side::Outside, &marked).expect("marked segment");
        assert_eq!(packet::header(&arrived).ds_field(), 3);
        let echo = connection.pass(&mut bed, Side::Inside, Flags::ACK.union(Flags::ECE));
        assert!(packet::tcp(&echo).flags().contains(Flags::ECE));
        let reduced = connection.pass(&mut bed, Side::Outside, Flags::ACK.union(Flags::CWR));
        assert!(packet::tcp(&reduced).flags().contains(Flags::CWR));
    }
}

#[test]
fn simultaneous_open_works_with_plain_syns_both_ways() {
    covers!("5382-REQ-2a");
    for filtering in [Filtering::EndpointIndependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&settings().filtering(filtering)) {
            let mut connection = Connection::half_open(&mut bed, at(I1, 5000), at(E1, 80));
            assert_eq!(connection.state(&bed), Some(TcpState::OpeningOutbound));
            let arrived = connection.pass(&mut bed, Side::Outside, Flags::SYN);
            assert_eq!(packet::tcp(&arrived).flags(), Flags::SYN);
            assert_eq!(connection.state(&bed), Some(TcpState::Established));
            // Each end answers with the sequence number of its SYN (RFC 9293 §3.5, figure 7).
            for side in SIDES {
                let next = packet::tcp(&connection.segment(side, Flags::ACK).build()).sequence();
                let answer = connection.segment(side, SYN_ACK).sequence(next.wrapping_sub(1)).build();
                assert!(connection.send_raw(&mut bed, side, &answer).is_some());
            }
            connection.pass_data(&mut bed, Side::Inside, b"hello");
            connection.pass_data(&mut bed, Side::Outside, b"hello too");
            bed.advance_secs(7_439);
            connection.pass_data(&mut bed, Side::Outside, b"still there");
            assert_eq!(bed.sessions().len(), 1);
        }
    }
}

/// Which SYNs reach a subscriber that has sent a SYN to E1:80, as their state decides.
fn reaches(bed: &mut Bed) -> [bool; 3] {
    let external = bed.open_tcp(at(I1, 5000), at(E1, 80));
    [at(E1, 80), at(E1, 7777), at(E2, 7777)].map(|remote| {
        syn(bed, remote, external);
        let arrived = bed.take_inside();
        assert!(arrived.iter().all(|packet| destination(packet) == at(I1, 5000)));
        arrived.len() == 1
    })
}

#[test]
fn filtering_is_endpoint_independent_by_default_and_selectable() {
    covers!("5382-REQ-3", "5382-REQ-3a");
    for mut bed in beds(&settings()) {
        assert_eq!(reaches(&mut bed), [true, true, true]);
    }
    for mut bed in beds(&settings().filtering(Filtering::AddressDependent)) {
        assert_eq!(reaches(&mut bed), [true, true, false]);
    }
    for mut bed in beds(&settings().filtering(Filtering::AddressAndPortDependent)) {
        assert_eq!(reaches(&mut bed), [true, false, false]);
    }
}

#[test]
fn filtering_is_selected_for_each_pool() {
    covers!("5382-REQ-3a");
    let mut wanted = settings().addresses(&POOL[..1]);
    let strict = Pool {
        name: "strict".into(),
        addresses: POOL[1..].to_vec(),
        subscribers: vec![topology::prefix([100, 64, 0, 11], 32)],
        filtering: [Filtering::AddressAndPortDependent; Protocol::COUNT],
        ..wanted.pools[0].clone()
    };
    wanted.pools.push(strict);
    for mut bed in beds(&wanted) {
        for (host, expected) in [(I1, true), (I2, false), (I3, true)] {
            let external = bed.open_tcp(at(host, 5000), at(E1, 80));
            syn(&mut bed, at(E2, 7777), external);
            assert_eq!(bed.take_inside().len() == 1, expected);
        }
    }
}

#[test]
fn tcp_filtering_follows_its_own_setting_and_not_that_of_udp() {
    covers!("5382-REQ-3b");
    for (tcp, udp) in [
        (Filtering::AddressDependent, Filtering::EndpointIndependent),
        (Filtering::EndpointIndependent, Filtering::AddressDependent),
    ] {
        for mut bed in beds(&settings().filtering_of(Protocol::Tcp, tcp).filtering_of(Protocol::Udp, udp)) {
            assert_eq!(reaches(&mut bed), [true, true, tcp == Filtering::EndpointIndependent]);
            let external = bed.open_udp(at(I1, 5000), at(E1, 80));
            assert!(bed.udp_reaches(at(E1, 7777), external, at(I1, 5000)));
            assert_eq!(bed.udp_reaches(at(E2, 7777), external, at(I1, 5000)), udp == Filtering::EndpointIndependent);
        }
    }
}

#[test]
fn an_unsolicited_syn_is_answered_after_six_seconds() {
    covers!("5382-REQ-4");
    for mut bed in beds(&settings()) {
        for external in [at(POOL[0], 40_000), at(POOL[2], 1), at(POOL[1], 65_535)] {
            let knock = build::tcp(at(E1, 80), external, Flags::SYN).sequence(77).tcp_options(&[2, 4, 5, 180]).build();
            bed.outside(&knock);
            // Copies, as a stack sends them, do not prolong the time and are not answered apart.
            for pause in [1_000, 2_000, 2_999] {
                bed.advance(Duration::from_millis(pause));
                bed.assert_silent();
                bed.outside(&knock);
            }
            bed.advance(Duration::from_millis(1_001));
            let error = bed.only_outside();
            assert!(is_icmp(&error, 3, 3));
            assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_OUTSIDE, &E1));
            assert_eq!(quote(&error), knock, "the SYN as it was sent");
            bed.advance_secs(30);
            // The copies came while the first one was held.
            bed.assert_silent();
        }
        assert_eq!(bed.mappings(), []);
        assert_eq!(bed.count(Verdict::UnsolicitedSyn), 12);
    }
}

#[test]
fn a_filtered_syn_is_answered_after_six_seconds_too() {
    covers!("5382-REQ-4");
    for mut bed in beds(&settings().filtering(Filtering::AddressDependent)) {
        let external = bed.open_tcp(at(I1, 5000), at(E1, 80));
        syn(&mut bed, at(E2, 80), external);
        bed.advance(Duration::from_millis(5_999));
        bed.assert_silent();
        bed.advance(Duration::from_millis(1_001));
        let error = bed.only_outside();
        assert!(is_icmp(&error, 3, 3));
        assert_eq!((destination(&error).ip(), destination(quote(&error))), (&E2, external));
        // Another one, and this time the subscriber wants it.
        syn(&mut bed, at(E2, 81), external);
        bed.advance_secs(3);
        assert_eq!(bed.open_tcp(at(I1, 5000), at(E2, 81)), external);
        bed.advance_secs(30);
        bed.assert_silent();
    }
}

#[test]
fn an_unsolicited_syn_is_dropped_if_the_subscriber_opens() {
    covers!("5382-REQ-4");
    // One address with one port: the mapping gets the endpoint that E1 has guessed.
    let one = settings().addresses(&POOL[..1]).ports(40_000, 40_000);
    for workers in [1, 2, 4] {
        for seed in 0..8 {
            let mut bed = Bed::new(one.clone()).workers(workers).seed(seed).steering(Steering::Random);
            let (remote, external) = (at(E1, 80 + seed as u16), at(POOL[0], 40_000));
            syn(&mut bed, remote, external);
            bed.advance_secs(3);
            bed.assert_silent();
            let mut connection = Connection::half_open(&mut bed, at(I1, 5000), remote);
            assert_eq!(connection.external, external);
            // The retransmission arrives, and both are opening at once.
            connection.pass(&mut bed, Side::Outside, Flags::SYN);
            assert_eq!(connection.state(&bed), Some(TcpState::Established));
            bed.advance_secs(30);
            bed.assert_silent();
        }
    }
}

#[test]
fn an_unsolicited_syn_is_dropped_though_nothing_follows() {
    covers!("5382-REQ-4");
    let one = settings().addresses(&POOL[..1]).ports(40_000, 40_000);
    for workers in [1, 2, 4] {
        for pause in [0, 3_000, 5_990] {
            let mut bed = Bed::new(one.clone()).workers(workers).steering(Steering::Random);
            syn(&mut bed, at(E1, 80), at(POOL[0], 40_000));
            bed.advance(Duration::from_millis(pause));
            bed.open_tcp(at(I1, 5000), at(E1, 80));
            bed.advance_secs(30);
            bed.assert_silent();
        }
    }
}

#[test]
fn an_unsolicited_syn_is_answered_beside_another_connection() {
    covers!("5382-REQ-4");
    let one = settings().addresses(&POOL[..1]).ports(40_000, 40_000);
    for workers in [1, 2, 4] {
        for seed in 0..8 {
            let mut bed = Bed::new(one.clone()).workers(workers).seed(seed).steering(Steering::Random);
            syn(&mut bed, at(E1, 80 + seed as u16), at(POOL[0], 40_000));
            bed.advance_secs(3);
            bed.open_tcp(at(I1, 5000), at(E2, 80));
            bed.advance(Duration::from_millis(2_999));
            bed.assert_silent();
            bed.advance_secs(1);
            let answers = bed.take_outside();
            assert_eq!(answers.len(), 1, "{workers} workers, seed {seed}");
            assert!(answers.iter().all(|packet| is_icmp(packet, 3, 3)));
        }
    }
}

#[test]
fn a_refused_syn_never_gets_a_rst() {
    covers!("5382-REQ-4");
    for filtering in [Filtering::EndpointIndependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&settings().filtering(filtering)) {
            let external = bed.open_tcp(at(I1, 5000), at(E1, 80));
            for flags in 0..=255 {
                for to in [external, at(POOL[1], 40_000)] {
                    bed.outside(&build::tcp(at(E2, u16::from(flags)), to, Flags(flags)).payload(b"?").build());
                }
            }
            bed.advance_secs(30);
            let sent = bed.take_outside();
            assert!(!sent.is_empty() && sent.iter().all(|packet| is_icmp(packet, 3, 3)), "nothing but 3/3");
        }
    }
}

#[test]
fn a_flood_of_syns_has_bounded_memory_and_answers() {
    covers!("5382-REQ-4", "S10");
    let held_max = Limits::default().unsolicited_syns_max;
    let mut bed = Bed::new(settings().limits(|limits| limits.unsolicited_syns_max = held_max));
    let connection = Connection::open(&mut bed, at(I1, 5000), at(E1, 443));
    let held = |counters: &Counters| {
        let taken = counters.of(Verdict::UnsolicitedSyn) - counters.unsolicited_syns_overflow;
        taken - counters.originated - counters.icmp_errors_suppressed
    };
    let policy = settings().icmp;
    let mut answered = 0;
    // A million in twenty seconds, all different.
    for second in 0..20_u32 {
        for tenth in 0..10_u32 {
            let burst: Vec<Vec<u8>> = (0..5_000_u32)
                .map(|number| {
                    let id = (second * 10 + tenth) * 5_000 + number;
                    let remote = at((0x0800_0000 + id / 16).into(), (id % 16) as u16 + 1);
                    build::tcp(remote, at(POOL[1], 20_000 + (id % 7) as u16), Flags::SYN).sequence(id).build()
                })
                .collect();
            for arriving in burst.chunks(500) {
                bed.burst(Side::Outside, arriving);
            }
            bed.advance(Duration::from_millis(100));
        }
        assert!(held(&bed.counters()) <= u64::from(held_max), "memory is bounded");
        let data = connection.segment(Side::Outside, Flags::ACK).payload(b"not hurt").build();
        bed.outside(&data);
        assert_eq!(payload(&bed.only_inside()), b"not hurt");
        let data = connection.segment(Side::Inside, Flags::ACK).payload(b"not hurt either").build();
        bed.inside(&data);
        let sent = bed.take_outside();
        answered += sent.iter().filter(|packet| is_icmp(packet, 3, 3)).count();
        let others: Vec<&[u8]> = sent.iter().filter(|packet| !is_icmp(packet, 3, 3)).map(|one| payload(one)).collect();
        assert_eq!(others, [b"not hurt either"]);
        // One second's worth, and the bucket's depth once.
        assert!(answered as u32 <= policy.errors_per_second_max * (second + 2), "{answered} in {second} s");
    }
    assert_eq!(bed.count(Verdict::UnsolicitedSyn), 1_000_000);
    assert_eq!(bed.counters().mappings_created.iter().sum::<u64>(), 1, "no mapping came of it");
    bed.advance_secs(10);
    assert_eq!(held(&bed.counters()), 0);
    bed.take_outside();
    // Afterwards all is as before.
    syn(&mut bed, at(E2, 80), at(POOL[0], 40_000));
    bed.advance(Duration::from_millis(5_999));
    bed.assert_silent();
    bed.advance_secs(1);
    assert!(is_icmp(&bed.only_outside(), 3, 3));
}

#[test]
fn one_knocking_host_gets_answers_at_a_bounded_rate() {
    covers!("5382-REQ-4");
    let mut bed = Bed::new(settings().limits(|limits| limits.unsolicited_syns_max = 4_096));
    for port in 1..=2_000 {
        syn(&mut bed, at(E1, port), at(POOL[0], 40_000));
    }
    bed.advance_secs(7);
    let answers = bed.take_outside().len() as u32;
    let allowed = settings().icmp.errors_per_second_per_destination_max;
    assert!(answers >= 1 && answers <= 2 * allowed, "{answers} answers in a second, {allowed} allowed");
}

#[test]
fn by_policy_an_unsolicited_syn_is_dropped_silently() {
    covers!("5382-REQ-4a");
    let mut quiet = settings().filtering(Filtering::AddressDependent);
    quiet.answer_unsolicited_syn = false;
    let mut no_errors = settings().filtering(Filtering::AddressDependent);
    no_errors.icmp.errors_to_outside = false;
    for policy in [quiet, no_errors] {
        for mut bed in beds(&policy) {
            let external = bed.open_tcp(at(I1, 5000), at(E1, 80));
            syn(&mut bed, at(E2, 80), external);
            syn(&mut bed, at(E1, 80), at(POOL[2], 40_000));
            bed.advance_secs(30);
            bed.assert_silent();
            assert_eq!(bed.count(Verdict::UnsolicitedSyn), 2);
        }
    }
}

#[test]
fn an_established_connection_survives_over_two_hours_idle() {
    covers!("5382-REQ-5");
    assert_eq!(Settings::default().timeouts.tcp_established, Duration::from_secs(7_440));
    for side in SIDES {
        for (mut bed, mut connection) in connections() {
            for _ in 0..3 {
                bed.advance_secs(7_439);
                assert_eq!(connection.state(&bed), Some(TcpState::Established));
                connection.pass_data(&mut bed, side, b"still there");
            }
            assert_eq!(connection.expires_in(&bed), Duration::from_secs(7_440 + 240));
        }
    }
}

#[test]
fn a_partly_open_connection_outlives_239_s_of_silence() {
    covers!("5382-REQ-5");
    for mut bed in beds(&settings()) {
        let mut connection = Connection::half_open(&mut bed, at(I1, 5000), at(E1, 80));
        bed.advance_secs(239);
        connection.pass(&mut bed, Side::Outside, SYN_ACK);
        // One that was opened from outside, too.
        let mut inbound = Connection::new(at(I1, 5000), connection.external, at(E2, 80));
        inbound.pass(&mut bed, Side::Outside, Flags::SYN);
        bed.advance_secs(239);
        inbound.pass(&mut bed, Side::Inside, SYN_ACK);
        // And one that nobody answers ends.
        let unanswered = Connection::half_open(&mut bed, at(I2, 5000), at(E1, 80));
        bed.advance_secs(241);
        assert_eq!(unanswered.state(&bed), None);
        let late = unanswered.segment(Side::Outside, SYN_ACK).build();
        assert_eq!(unanswered.send_raw(&mut bed, Side::Outside, &late), None);
    }
}

#[test]
fn a_closing_connection_outlives_239_s_of_silence() {
    covers!("5382-REQ-5", "S9");
    for first in SIDES {
        for (mut bed, mut connection) in connections() {
            let fin = connection.segment(first, FIN_ACK).build();
            connection.close(&mut bed, first);
            bed.advance_secs(239);
            assert!(connection.send_raw(&mut bed, first, &fin).is_some(), "the last ACK was lost: FIN once more");
            connection.pass(&mut bed, opposite(first), Flags::ACK);
            bed.advance_secs(241);
            assert_eq!(connection.state(&bed), None);
            assert!(connection.send_raw(&mut bed, first, &fin).is_none());
        }
    }
}

#[test]
fn each_timer_is_what_the_settings_say() {
    covers!("5382-REQ-5a");
    let set = |seconds: [u64; 3]| {
        settings().timers(|timeouts| {
            timeouts.tcp_opening = Duration::from_secs(seconds[0]);
            timeouts.tcp_established = Duration::from_secs(seconds[1]);
            timeouts.tcp_closing = Duration::from_secs(seconds[2]);
        })
    };
    for seconds in [[5, 60, 9], [30, 3_600, 120], [600, 86_400, 300]] {
        for mut bed in beds(&set(seconds)) {
            let opening = Connection::half_open(&mut bed, at(I1, 1), at(E1, 80));
            let mut closing = Connection::open(&mut bed, at(I2, 2), at(E1, 80));
            closing.close(&mut bed, Side::Outside);
            let established = Connection::open(&mut bed, at(I3, 3), at(E1, 80));
            // An established one has the closing time on top, in which it can be revived.
            let lives = [(opening, seconds[0]), (closing, seconds[2]), (established, seconds[1] + seconds[2])];
            let start = bed.now();
            let mut by_end = lives;
            by_end.sort_by_key(|(_, life)| *life);
            for (connection, life) in by_end {
                let elapsed = bed.now().saturating_since(start).as_micros() / 1_000_000;
                bed.advance_secs(life - 1 - elapsed);
                assert!(connection.state(&bed).is_some(), "{life} s, one before the end");
                bed.advance(Duration::from_millis(1_100));
                assert_eq!(connection.state(&bed), None, "{life} s");
                // Keeps whole seconds for the next one.
                bed.advance(Duration::from_millis(900));
            }
        }
    }
}

#[test]
fn nothing_is_sent_when_a_connection_is_given_up() {
    covers!("5382-REQ-5-note1");
    for (mut bed, connection) in connections() {
        bed.advance_secs(7_440 + 240 + 10);
        assert_eq!(connection.state(&bed), None);
        bed.assert_silent();
        bed.run_out();
        bed.assert_silent();
    }
}

#[test]
fn a_segment_without_connection_is_dropped_without_state() {
    covers!("5382-REQ-5-note2", "5382-REQ-2");
    for mut bed in beds(&settings()) {
        let external = bed.open_tcp(at(I2, 5000), at(E1, 80));
        let not_opening = (0..=255).map(Flags).filter(|flags| !nat::tcp::opens(*flags));
        let mut sent = 0;
        for flags in not_opening {
            for _ in 0..2 {
                // No mapping at all; a mapping, but no session with this remote endpoint; from
                // outside; a hairpin.
                bed.inside(&build::tcp(at(I1, 5000), at(E1, 80), flags).sequence(1).payload(b"?").build());
                bed.inside(&build::tcp(at(I2, 5000), at(E2, 80), flags).sequence(1).payload(b"?").build());
                bed.outside(&build::tcp(at(E2, 80), external, flags).sequence(1).payload(b"?").build());
                bed.outside(&build::tcp(at(E2, 80), at(POOL[1], 9), flags).sequence(1).payload(b"?").build());
                bed.inside(&build::tcp(at(I1, 5000), external, flags).sequence(1).payload(b"?").build());
                sent += 5;
            }
        }
        bed.advance_secs(30);
        bed.assert_silent();
        assert_eq!((bed.mappings().len(), bed.sessions().len()), (1, 1), "only what the SYN made");
        assert_eq!(bed.count(Verdict::TcpNoSession) + bed.count(Verdict::NoMapping), sent);
    }
}

#[test]
fn an_ack_does_not_bring_a_forgotten_connection_back() {
    covers!("5382-REQ-5-note2");
    for (mut bed, connection) in connections() {
        bed.advance_secs(7_440 + 241);
        for side in SIDES {
            let keep_alive = connection.segment(side, Flags::ACK).build();
            assert_eq!(connection.send_raw(&mut bed, side, &keep_alive), None);
        }
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn no_protocol_above_tcp_is_touched() {
    covers!("5382-REQ-6");
    let pptp = [&[0, 156, 0, 1, 0x1a, 0x2b, 0x3c, 0x4d, 0, 7, 0, 0], &[0x13, 0x88, 0, 1][..]].concat();
    let h323 = [&[3, 0, 0, 30, 8, 2, 0, 1, 5, 0x7e, 0, 18, 5, 0x20][..], &[100, 64, 0, 10, 19, 136], &[0; 10]].concat();
    let programs: [(u16, &[u8]); 8] = [
        (5060, b"INVITE sip:b@e.example SIP/2.0\r\nVia: SIP/2.0/TCP 100.64.0.10:5000\r\nContact: <sip:a@100.64.0.10>\r\n\r\n"),
        (1720, &h323),
        (1723, &pptp),
        (554, b"SETUP rtsp://e/1 RTSP/1.0\r\nTransport: RTP/AVP;unicast;destination=100.64.0.10;client_port=5000-5001\r\n\r\n"),
        (21, b"PORT 100,64,0,10,19,136\r\n"),
        (21, b"EPRT |1|100.64.0.10|5000|\r\n"),
        (6667, b"PRIVMSG b :\x01DCC SEND f 1681915914 5000 9\x01\r\n"),
        (139, b"\x84\0\0\x44 100.64.0.10"),
    ];
    for mut bed in beds(&settings()) {
        for (port, (service, text)) in (5_000..).zip(programs) {
            let mut connection = Connection::open(&mut bed, at(I1, port), at(E1, service));
            connection.pass_data(&mut bed, Side::Inside, text);
            connection.pass_data(&mut bed, Side::Outside, text);
        }
        assert_eq!(bed.mappings().len(), 8, "no mapping was opened for what a payload says");
    }
}

#[test]
fn no_two_internal_endpoints_share_an_external_endpoint() {
    covers!("5382-REQ-7");
    for mut bed in beds(&settings().addresses(&POOL[..2])) {
        let mut seen = HashSet::new();
        for number in 0..10_000 {
            for host in [I1, I2] {
                let external = bed.open_tcp(at(host, 5_000 + number), at(E1, 80));
                assert!(seen.insert(external), "external endpoint given twice");
            }
        }
    }
}

/// A segment from one subscriber to the other's external endpoint; what comes out, to the other.
fn hairpin(
    bed: &mut Bed,
    from: core::net::SocketAddrV4,
    to: core::net::SocketAddrV4,
    segment: (Flags, u32, u32),
    data: &[u8],
) -> Vec<u8> {
    let (flags, sequence, acknowledgment) = segment;
    let sent = build::tcp(from, to, flags).sequence(sequence).acknowledgment(acknowledgment).payload(data).build();
    bed.inside(&sent);
    assert_eq!(bed.take_outside(), NOTHING);
    let arrived = bed.only_inside();
    assert_eq!(payload(&arrived), data);
    arrived
}

#[test]
fn a_hairpinned_connection_works_from_first_to_last_segment() {
    covers!("5382-REQ-8", "5382-REQ-8a");
    for workers in [1, 2, 4] {
        for seed in 1..=4 {
            let mut bed = Bed::new(settings()).workers(workers).seed(seed).steering(Steering::Random);
            let (client, server) = (at(I1, 5000), at(I2, 8080));
            let service = bed.open_tcp(server, at(E1, 9));
            let arrived = hairpin(&mut bed, client, service, (Flags::SYN, 1_000, 0), b"");
            let visitor = source(&arrived);
            assert!(POOL.contains(visitor.ip()), "accept() shows an external endpoint");
            assert_eq!(destination(&arrived), server);
            let script: [(bool, Flags, u32, u32, &[u8]); 9] = [
                (false, SYN_ACK, 9_000, 1_001, b""),
                (true, Flags::ACK, 1_001, 9_001, b""),
                (true, Flags::ACK, 1_001, 9_001, b"question"),
                (false, Flags::ACK, 9_001, 1_009, b""),
                (false, Flags::ACK, 9_001, 1_009, b"answer"),
                (false, FIN_ACK, 9_007, 1_009, b""),
                (true, Flags::ACK, 1_009, 9_008, b""),
                (true, FIN_ACK, 1_009, 9_008, b""),
                (false, Flags::ACK, 9_008, 1_010, b""),
            ];
            for (from_client, flags, sequence, acknowledgment, data) in script {
                let (from, to) = if from_client { (client, service) } else { (server, visitor) };
                let arrived = hairpin(&mut bed, from, to, (flags, sequence, acknowledgment), data);
                let ends = if from_client { (visitor, server) } else { (service, client) };
                assert_eq!((source(&arrived), destination(&arrived)), ends);
                if flags == Flags::ACK && data == b"answer" {
                    let states: Vec<_> = bed.sessions().iter().filter(|one| one.hairpin).map(|one| one.state).collect();
                    assert_eq!(states, [Some(TcpState::Established); 2], "one session on each mapping");
                    bed.advance_secs(7_000);
                }
            }
            let states: Vec<_> = bed.sessions().iter().filter(|one| one.hairpin).map(|one| one.state).collect();
            assert_eq!(states, [Some(TcpState::Closing); 2]);
            // The Internet sees the subscriber at the same endpoint.
            bed.advance_secs(100);
            assert_eq!(bed.open_tcp(client, at(E1, 80)), visitor);
            bed.run_out();
        }
    }
}

#[test]
fn subscribers_may_open_at_the_same_time() {
    covers!("5382-REQ-8", "5382-REQ-2a");
    for workers in [1, 2, 4] {
        let mut bed = Bed::new(settings().filtering(Filtering::AddressAndPortDependent));
        bed = bed.workers(workers).steering(Steering::Random);
        let (one, other) = (at(I1, 5000), at(I2, 6000));
        let (one_outside, other_outside) = (bed.open_tcp(one, at(E1, 9)), bed.open_tcp(other, at(E1, 9)));
        // The first SYN is refused, but opens the way for the second.
        bed.inside(&build::tcp(one, other_outside, Flags::SYN).sequence(1_000).build());
        bed.assert_silent();
        hairpin(&mut bed, other, one_outside, (Flags::SYN, 9_000, 0), b"");
        hairpin(&mut bed, one, other_outside, (Flags::SYN, 1_000, 0), b"");
        hairpin(&mut bed, one, other_outside, (SYN_ACK, 1_000, 9_001), b"");
        hairpin(&mut bed, other, one_outside, (SYN_ACK, 9_000, 1_001), b"");
        hairpin(&mut bed, one, other_outside, (Flags::ACK, 1_001, 9_001), b"through");
        let states: Vec<_> = bed.sessions().iter().filter(|one| one.hairpin).map(|one| one.state).collect();
        assert_eq!(states, [Some(TcpState::Established); 2]);
        bed.advance_secs(30);
        bed.assert_silent();
    }
}

#[test]
fn every_unreachable_about_a_segment_is_translated_with_its_mtu() {
    covers!("5382-REQ-9");
    for mut bed in beds(&settings()) {
        let mut connection = Connection::open(&mut bed, at(I1, 5000), at(E1, 80));
        let sent = connection.segment(Side::Inside, Flags::ACK).payload_length(1_400).dont_fragment();
        let left = connection.send(&mut bed, Side::Inside, &sent).expect("segment");
        for code in 0..16 {
            for length in [28, 40, 548, left.len()] {
                let error = build::icmp_error(OUTSIDE_ROUTER, *connection.external.ip(), 3, code, &left[..length]);
                bed.outside(&error.next_hop_mtu(1_300 + u16::from(code)).build());
                let arrived = bed.only_inside();
                assert!(is_icmp(&arrived, 3, code));
                assert_eq!((source(&arrived).ip(), destination(&arrived).ip()), (&OUTSIDE_ROUTER, &I1));
                assert_eq!((source(quote(&arrived)), destination(quote(&arrived))), (at(I1, 5000), at(E1, 80)));
                assert_eq!(packet::icmp(&arrived).next_hop_mtu(), 1_300 + u16::from(code));
                assert_eq!(quote(&arrived)[24..28], left[24..28], "the sequence number the stack compares");
            }
        }
    }
}

#[test]
fn no_icmp_message_ends_a_connection_in_any_state() {
    covers!("5382-REQ-10", "4787-REQ-12");
    for (mut bed, mut established) in connections() {
        let mut opening = Connection::half_open(&mut bed, at(I2, 5000), at(E1, 80));
        let mut closing = Connection::open(&mut bed, at(I3, 5000), at(E1, 80));
        closing.close(&mut bed, Side::Inside);
        bed.advance_secs(100);
        let (mappings, sessions) = (bed.mappings(), bed.sessions());
        for connection in [&established, &opening, &closing] {
            // As it looks outside.
            let outbound = build::tcp(connection.external, connection.remote, Flags::ACK).sequence(1_001);
            let outbound = outbound.acknowledgment(5_001).payload(b"data").build();
            let inbound = build::tcp(connection.remote, connection.internal, Flags::ACK).sequence(5_001).build();
            for (kind, code) in (0..16).map(|code| (3, code)).chain([(4, 0), (5, 1), (11, 0), (11, 1), (12, 0)]) {
                for from in [E1, OUTSIDE_ROUTER] {
                    bed.outside(&build::icmp_error(from, *connection.external.ip(), kind, code, &outbound).build());
                }
                bed.inside(&build::icmp_error(*connection.internal.ip(), E1, kind, code, &inbound).build());
            }
        }
        assert_eq!((bed.mappings(), bed.sessions()), (mappings, sessions), "sessions and timers are as they were");
        bed.take_inside();
        bed.take_outside();
        established.pass_data(&mut bed, Side::Inside, b"next");
        established.pass_data(&mut bed, Side::Outside, b"and back");
        opening.pass(&mut bed, Side::Outside, SYN_ACK);
        closing.pass(&mut bed, Side::Outside, Flags::ACK);
    }
}
