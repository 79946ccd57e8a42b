//! What gateways change in a stream or a datagram stays one stream, and fits the links.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;

use nat::Protocol;
use nat::Verdict;
use nat::settings::Admission;
use nat::settings::Class;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::types::Prefix;
use nat::types::RealmId;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;
use wire::tcp::Tcp;

use crate::gateways::INVITE;
use crate::gateways::Talk;
use crate::gateways::server_behind_a_forward;
use crate::gateways::tcp_of;
use crate::gateways::udp_text;
use crate::gateways::with;

const CLIENT: SocketAddrV4 = at(I1, 40_000);
const SERVER: SocketAddrV4 = at(E1, 21);

fn tcp_options(packet: &[u8]) -> Vec<u8> {
    let ip = Ipv4::new_checked(packet).expect("a packet");
    let tcp = Tcp::new_checked(ip.payload()).expect("a segment");
    ip.payload()[20..tcp.header_length()].to_vec()
}

fn sack(left: u32, right: u32) -> Vec<u8> {
    [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat()
}

/// RFC 2018: a block names bytes by the numbers of their sender.
#[test]
fn selective_acknowledgements_are_in_the_numbers_of_the_sender() {
    covers!("3022-8");
    let mut bed = Bed::new(with(&["ftp"]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    // Two inside ports with short numbers, so that the text grows.
    let (inner, outer) = (talk.numbers(false).0, talk.numbers(true).1);
    let first = "PORT 100,64,0,10,4,1\r\n";
    let first_out = talk.send_out(&mut bed, first);
    assert_ne!(first_out.len(), first.len(), "{first_out}");
    assert_eq!(talk.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
    let (inner_noop, outer_noop) = (inner + first.len() as u32, outer + first_out.len() as u32);
    let acknowledge = |bed: &mut Bed, ack: u32, options: &[u8]| {
        let segment = build::tcp(SERVER, talk.external, Flags::ACK).sequence(talk.numbers(true).0).acknowledgment(ack);
        bed.outside(&segment.tcp_options(options).build());
        let packet = bed.only_inside();
        (tcp_of(&packet).1, tcp_options(&packet))
    };
    // The first segment is missing.
    let seen = acknowledge(&mut bed, outer, &sack(outer_noop, outer_noop + 6));
    assert_eq!(seen, (inner, sack(inner_noop, inner_noop + 6)));
    // A part of the changed text: no byte of the sender is surely there.
    let seen = acknowledge(&mut bed, outer, &sack(outer + 6, outer + 8));
    assert_eq!(seen, (inner, vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]));
    // Both ends of a block lie in other bytes.
    let seen = acknowledge(&mut bed, outer, &sack(outer + 2, outer_noop + 3));
    assert_eq!(seen, (inner, sack(inner + 2, inner_noop + 3)));
    assert_eq!(acknowledge(&mut bed, outer_noop + 6, &[]).0, inner_noop + 6);
}

/// Sends what fills the link as it came and not as it becomes.
#[test]
fn a_segment_that_no_longer_fits_is_cut() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["ftp"])).workers(workers);
        let talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let mut text: String = (1..=8).map(|port| format!("PORT 100,64,0,10,4,{port}\r\n")).collect();
        while text.len() + 6 <= 1_460 {
            text.push_str("NOOP\r\n");
        }
        let (sequence, ack) = talk.numbers(false);
        let segment = build::tcp(CLIENT, SERVER, Flags::ACK.union(Flags::PSH)).sequence(sequence).acknowledgment(ack);
        bed.inside(&segment.payload(text.as_bytes()).build());
        let packets = bed.take_outside();
        assert_eq!(packets.len(), 2);
        let (mut next, mut all) = (talk.numbers(true).1, Vec::new());
        for (i, packet) in packets.iter().enumerate() {
            assert!(packet.len() <= 1_500);
            let (sequence, ack, payload) = tcp_of(packet);
            assert_eq!((sequence, ack), (next, talk.numbers(true).0));
            let ip = Ipv4::new_checked(&packet[..]).expect("a packet");
            let flags = Tcp::new_checked(ip.payload()).expect("a segment").flags();
            assert_eq!(flags.contains(Flags::PSH), i == 1, "only at the end");
            next += payload.len() as u32;
            all.extend(payload);
        }
        let all = String::from_utf8(all).expect("text");
        assert_eq!(all.matches("PORT 203,0,113,").count(), 8, "{all}");
        assert_eq!(all.matches("NOOP").count(), text.matches("NOOP").count());
        assert_eq!(bed.count(Verdict::Outbound), 5, "one verdict for what came");
        // A repetition of any part becomes the same bytes.
        let part = 30..1_300;
        let again = build::tcp(CLIENT, SERVER, Flags::ACK).sequence(sequence + 30).acknowledgment(ack);
        bed.inside(&again.payload(&text.as_bytes()[part]).build());
        for packet in bed.take_outside() {
            let (sequence, _, payload) = tcp_of(&packet);
            let from = (sequence - talk.numbers(true).1) as usize;
            assert_eq!(payload, all.as_bytes()[from..from + payload.len()]);
        }
        bed.run_out();
    }
}

/// A segment of a small path stays within it, whatever its headers take.
#[test]
fn a_segment_of_the_smallest_path_is_cut() {
    let mut bed = Bed::new(with(&["ftp"]));
    let talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let timestamps = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1];
    let mut text: String = (1..=8).map(|port| format!("PORT 100,64,0,10,4,{port}\r\n")).collect();
    while text.len() + 6 <= 576 - 52 {
        text.push_str("NOOP\r\n");
    }
    let (sequence, ack) = talk.numbers(false);
    let segment = build::tcp(CLIENT, SERVER, Flags::ACK).sequence(sequence).acknowledgment(ack);
    bed.inside(&segment.tcp_options(&timestamps).payload(text.as_bytes()).build());
    let lengths: Vec<_> = bed.take_outside().iter().map(Vec::len).collect();
    assert_eq!((lengths.len(), lengths[0]), (2, 576), "{lengths:?}");
    bed.run_out();
}

#[test]
fn a_datagram_that_no_longer_fits_is_fragmented() {
    for dont_fragment in [false, true] {
        let mut bed = Bed::new(with(&["sip"]));
        let (phone, proxy) = (at(I1, 5060), at(E1, 5060));
        let mut text = INVITE.to_owned();
        let head = text.find("CSeq").expect("a header");
        while text.len() < 1_472 {
            let length = (1_472 - text.len()).min(400);
            let line = if length < 10 { " ".repeat(length) } else { format!("X: {}\r\n", "y".repeat(length - 5)) };
            let place = if length < 10 { head + 3 } else { head };
            text.insert_str(place, &line);
        }
        assert_eq!(text.len(), 1_472, "it fills the link");
        let mut datagram = build::udp(phone, proxy).payload(text.as_bytes());
        if dont_fragment {
            datagram = datagram.dont_fragment();
        }
        bed.inside(&datagram.build());
        let fragments = bed.take_outside();
        assert!(fragments.len() > 1 && fragments.iter().all(|fragment| fragment.len() <= 1_500));
        let sent = udp_text(&build::reassemble(&fragments).expect("all fragments left"));
        let signalling = source(&build::reassemble(&fragments).expect("all fragments left"));
        assert!(sent.contains(&format!("UDP {signalling};")) && sent.len() > text.len(), "{sent}");
        bed.run_out();
    }
}

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);

/// Passes through with the numbers and the payload that it came with.
fn passes_as_it_is(bed: &mut Bed, from_inside: bool, packet: &[u8]) {
    let passed = if from_inside {
        bed.inside(packet);
        bed.only_outside()
    } else {
        bed.outside(packet);
        bed.only_inside()
    };
    assert_eq!(tcp_of(&passed), tcp_of(packet));
}

/// RFC 5961 §4: the host answers a SYN within a connection, and nothing else changes.
#[test]
fn a_syn_within_a_connection_changes_no_stream() {
    covers!("3022-8");
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["ftp"])).workers(workers);
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let text = "PORT 100,64,0,10,4,1\r\n";
        assert_ne!(talk.send_out(&mut bed, text).len(), text.len());
        let external = talk.external;
        for (sequence, payload) in [(1_000, ""), (77_777, ""), (77_777, "data")] {
            let syn = build::tcp(CLIENT, SERVER, Flags::SYN).sequence(sequence).payload(payload.as_bytes());
            passes_as_it_is(&mut bed, true, &syn.build());
            assert_eq!(talk.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
            assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
        }
        for (flags, sequence, ack, payload) in [
            (SYN_ACK, 5_000, 1_001, ""),
            (SYN_ACK, 99_999, 1_001, ""),
            (SYN_ACK, 99_999, 4_711, "data"),
            (Flags::SYN, 99_999, 0, ""),
        ] {
            let forged = build::tcp(SERVER, external, flags).sequence(sequence).acknowledgment(ack);
            passes_as_it_is(&mut bed, false, &forged.payload(payload.as_bytes()).build());
            assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
            assert_ne!(talk.send_out(&mut bed, text), text, "it is still read");
        }
        bed.run_out();
    }
}

#[test]
fn a_blind_syn_to_a_server_behind_a_forward_changes_no_stream() {
    let (mut bed, server, external) = server_behind_a_forward();
    let client = at(E1, 50_000);
    let syn = |sequence| build::tcp(client, external, Flags::SYN).sequence(sequence).build();
    // Another number before the server's answer, which says which of them it took.
    passes_as_it_is(&mut bed, false, &syn(5_000));
    passes_as_it_is(&mut bed, false, &syn(99_999));
    let mut talk = Talk::enter(&mut bed, server, client, external);
    passes_as_it_is(&mut bed, false, &syn(5_000));
    passes_as_it_is(&mut bed, false, &syn(99_999));
    talk = talk.log_in(&mut bed, true);
    talk.send_in(&mut bed, "PASV\r\n");
    let reply = "227 Entering Passive Mode (100,64,0,10,4,1).\r\n";
    assert_ne!(talk.send_out(&mut bed, reply).len(), reply.len());
    for sequence in [5_000, 99_999] {
        passes_as_it_is(&mut bed, false, &syn(sequence));
        talk.send_in(&mut bed, "PASV\r\n");
        assert_ne!(talk.send_out(&mut bed, reply), reply);
    }
    bed.run_out();
}

/// Until the server has acknowledged one, each SYN of the client begins anew (RFC 9293 §3.5).
#[test]
fn an_answer_to_another_syn_is_no_answer() {
    let mut bed = Bed::new(with(&["ftp"]));
    let syn = |sequence| build::tcp(CLIENT, SERVER, Flags::SYN).sequence(sequence).build();
    let external = bed.open_tcp(CLIENT, SERVER);
    passes_as_it_is(&mut bed, true, &syn(400));
    // Blind, late, and one that would be simultaneous.
    for (flags, sequence, ack) in [(SYN_ACK, 99_999, 4_711), (SYN_ACK, 4_000, 1_001), (Flags::SYN, 99_999, 0)] {
        let forged = build::tcp(SERVER, external, flags).sequence(sequence).acknowledgment(ack);
        passes_as_it_is(&mut bed, false, &forged.build());
    }
    // The client tries again with its first number.
    passes_as_it_is(&mut bed, true, &syn(1_000));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let text = "PORT 100,64,0,10,4,1\r\n";
    assert_ne!(talk.send_out(&mut bed, text), text);
    bed.run_out();
}

/// Once both sides have ended it, the same endpoints are a new connection.
#[test]
fn a_new_connection_of_equal_endpoints_is_read_from_its_start() {
    let mut bed = Bed::new(with(&["ftp"]));
    let text = "PORT 100,64,0,10,4,1\r\n";
    for _ in 0..3 {
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        assert_ne!(talk.send_out(&mut bed, text), text);
        let fin = Flags::FIN.union(Flags::ACK);
        let ((sequence, ack), external) = (talk.numbers(false), talk.external);
        bed.inside(&build::tcp(CLIENT, SERVER, fin).sequence(sequence).acknowledgment(ack).build());
        bed.only_outside();
        let (sequence, ack) = talk.numbers(true);
        bed.outside(&build::tcp(SERVER, external, fin).sequence(sequence).acknowledgment(ack + 1).build());
        bed.only_inside();
    }
    bed.run_out();
}

/// RFC 7857 §2: a SYN while only one side has sent its FIN is within the connection. The host
/// answers it (RFC 5961 §4), and what the other side still sends is read.
#[test]
fn a_syn_after_one_fin_changes_no_stream() {
    for from_inside in [true, false] {
        let mut bed = Bed::new(with(&["ftp"]));
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let text = "PORT 100,64,0,10,4,1\r\n";
        assert_ne!(talk.send_out(&mut bed, text).len(), text.len());
        let (external, fin) = (talk.external, Flags::FIN.union(Flags::ACK));
        let (sequence, ack) = talk.numbers(!from_inside);
        if from_inside {
            bed.inside(&build::tcp(CLIENT, SERVER, fin).sequence(sequence).acknowledgment(ack).build());
            bed.only_outside();
        } else {
            bed.outside(&build::tcp(SERVER, external, fin).sequence(sequence).acknowledgment(ack).build());
            bed.only_inside();
        }
        passes_as_it_is(&mut bed, true, &build::tcp(CLIENT, SERVER, Flags::SYN).sequence(77_777).build());
        passes_as_it_is(&mut bed, false, &build::tcp(SERVER, external, Flags::SYN).sequence(99_999).build());
        if from_inside {
            assert_eq!(talk.send_in(&mut bed, "221 bye\r\n"), "221 bye\r\n", "in the numbers of the connection");
        } else {
            assert_ne!(talk.send_out(&mut bed, text), text, "it is still read");
        }
        bed.run_out();
    }
}

/// What is forged before the answer to a SYN, and the RST that the end inside sends, end nothing.
#[test]
fn a_forged_segment_before_the_answer_ends_no_reading() {
    let text = "PORT 100,64,0,10,4,1\r\n";
    for (flags, payload) in [
        (Flags::ACK, ""),
        (Flags::ACK.union(Flags::PSH), "220 ready\r\n"),
        (Flags::FIN.union(Flags::ACK), ""),
        (Flags::RST, ""),
    ] {
        let mut bed = Bed::new(with(&["ftp"]));
        let external = bed.open_tcp(CLIENT, SERVER);
        let forged = build::tcp(SERVER, external, flags).sequence(99_999).acknowledgment(4_711);
        passes_as_it_is(&mut bed, false, &forged.payload(payload.as_bytes()).build());
        passes_as_it_is(&mut bed, true, &build::tcp(CLIENT, SERVER, Flags::RST).sequence(4_711).build());
        let answer = build::tcp(SERVER, external, SYN_ACK).sequence(5_000).acknowledgment(1_001);
        passes_as_it_is(&mut bed, false, &answer.build());
        passes_as_it_is(
            &mut bed,
            true,
            &build::tcp(CLIENT, SERVER, Flags::ACK).sequence(1_001).acknowledgment(5_001).build(),
        );
        let mut talk = Talk::opened(CLIENT, SERVER, external).log_in(&mut bed, false);
        assert_ne!(talk.send_out(&mut bed, text), text, "{flags:?}: it is read");
        bed.run_out();

        // The same to a server behind a forward.
        let (mut bed, server, external) = server_behind_a_forward();
        let client = at(E1, 50_000);
        bed.outside(&build::tcp(client, external, Flags::SYN).sequence(5_000).build());
        bed.only_inside();
        let forged = build::tcp(client, external, flags).sequence(99_999).acknowledgment(4_711);
        passes_as_it_is(&mut bed, false, &forged.payload(payload.as_bytes()).build());
        passes_as_it_is(&mut bed, true, &build::tcp(server, client, Flags::RST).sequence(4_711).build());
        let mut talk = Talk::enter(&mut bed, server, client, external).log_in(&mut bed, true);
        talk.send_in(&mut bed, "PASV\r\n");
        let reply = "227 Entering Passive Mode (100,64,0,10,4,1).\r\n";
        assert_ne!(talk.send_out(&mut bed, reply), reply, "{flags:?}: it is read");
        bed.run_out();
    }
}

/// The client has seen an answer that did not pass here, so its first byte may be missed.
#[test]
fn an_answer_that_did_not_pass_here_ends_reading() {
    let mut bed = Bed::new(with(&["ftp"]));
    let external = bed.open_tcp(CLIENT, SERVER);
    passes_as_it_is(
        &mut bed,
        true,
        &build::tcp(CLIENT, SERVER, Flags::ACK).sequence(1_001).acknowledgment(5_001).build(),
    );
    let late = build::tcp(SERVER, external, SYN_ACK).sequence(5_000).acknowledgment(1_001);
    passes_as_it_is(&mut bed, false, &late.build());
    let mut talk = Talk::opened(CLIENT, SERVER, external).log_in(&mut bed, false);
    let text = "PORT 100,64,0,10,4,1\r\n";
    assert_eq!(talk.send_out(&mut bed, text), text);
    bed.run_out();
}

/// RFC 9293 §3.10.7.4: an acknowledgement of what was not sent is ignored. Anyone can forge it who
/// knows the endpoints of the connection.
#[test]
fn a_forged_acknowledgement_ends_no_reading() {
    let (port, pasv) = ("PORT 100,64,0,10,4,1\r\n", "227 Entering Passive Mode (100,64,0,10,4,1).\r\n");
    for server_is_inside in [false, true] {
        for ahead in [2, 1_000, 1 << 20, 1 << 30] {
            for (flags, payload) in [(Flags::ACK, ""), (Flags::ACK.union(Flags::PSH), "220 x\r\n")] {
                let (mut bed, mut talk) = if server_is_inside {
                    let (mut bed, server, external) = server_behind_a_forward();
                    let talk = Talk::enter(&mut bed, server, at(E1, 50_000), external);
                    (bed, talk)
                } else {
                    let mut bed = Bed::new(with(&["ftp"]));
                    let talk = Talk::open(&mut bed, CLIENT, SERVER);
                    (bed, talk)
                };
                talk = talk.log_in(&mut bed, server_is_inside);
                for from_outside in [true, false] {
                    let (sequence, ack) = talk.numbers(from_outside);
                    let (from, to) =
                        if from_outside { (talk.remote, talk.external) } else { (talk.inside, talk.remote) };
                    for sequence in [sequence, sequence + 5, 99_999] {
                        let forged = build::tcp(from, to, flags).sequence(sequence).acknowledgment(ack + ahead);
                        let forged = forged.payload(payload.as_bytes()).build();
                        if from_outside {
                            bed.outside(&forged)
                        } else {
                            bed.inside(&forged)
                        }
                        bed.assert_silent();
                    }
                }
                assert_eq!(bed.count(Verdict::AlgAckUnsent), 6, "{ahead} {payload}");
                // An old one is no news.
                let (sequence, ack) = talk.numbers(true);
                let old = build::tcp(talk.remote, talk.external, Flags::ACK).sequence(sequence);
                bed.outside(&old.acknowledgment(ack - 10).build());
                bed.only_inside();
                if server_is_inside {
                    assert_eq!(talk.send_in(&mut bed, "PASV\r\n"), "PASV\r\n");
                    assert_ne!(talk.send_out(&mut bed, pasv), pasv, "{ahead} {payload}: it is read");
                } else {
                    assert_ne!(talk.send_out(&mut bed, port), port, "{ahead} {payload}: it is read");
                    assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
                }
                bed.run_out();
            }
        }
    }
}

/// A header with a flipped bit must not leave with a checksum that fits it.
#[test]
fn a_damaged_acknowledgement_is_dropped() {
    let mut bed = Bed::new(with(&["ftp"]));
    let talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let (sequence, ack) = talk.numbers(true);
    let mut damaged = build::tcp(SERVER, talk.external, Flags::ACK).sequence(sequence).acknowledgment(ack).build();
    damaged[20 + 11] ^= 1;
    bed.outside(&damaged);
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::TransportMalformed), 1);
    bed.run_out();
}

/// Fragments are not read. A forged one ends nothing, one of the connection ends reading, and none
/// passes between numbers that it does not know.
#[test]
fn a_segment_in_fragments_ends_reading() {
    let text = "PORT 100,64,0,10,4,1\r\n";
    for is_forged in [false, true] {
        let mut bed = Bed::new(with(&["ftp"]));
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let (sequence, ack) = talk.numbers(false);
        let sequence = if is_forged { sequence + 1_000_000 } else { sequence };
        let whole = |sequence| {
            let long = vec![b'x'; 1_000];
            build::tcp(CLIENT, SERVER, Flags::ACK).sequence(sequence).acknowledgment(ack).payload(&long).build()
        };
        for fragment in build::fragment(&whole(sequence), 500) {
            bed.inside(&fragment);
        }
        assert!(bed.take_outside().len() > 1, "it passes");
        let passed = talk.send_out(&mut bed, text);
        assert_eq!(passed == text, !is_forged, "{passed}");
        // Its numbers differ from now on.
        if is_forged {
            for fragment in build::fragment(&whole(talk.numbers(false).0), 500) {
                bed.inside(&fragment);
            }
            bed.assert_silent();
            assert_eq!(bed.count(Verdict::AlgFragment), 1);
        }
        bed.run_out();
    }
}

/// The path may carry less than the links of Natrix, as behind a tunnel, and a receiver may take
/// less. The sender knows, so what a message becomes is not longer than its segments.
#[test]
fn no_segment_is_longer_than_those_of_the_sender() {
    let (phone, proxy) = (at(I1, 40_000), at(E1, 5060));
    let mut bed = Bed::new(with(&["sip"]));
    let (inside_takes, outside_takes) = (1_300_u16, 1_412_u16);
    bed.inside(&build::tcp(phone, proxy, Flags::SYN).sequence(1_000).mss(inside_takes).build());
    let external = source(&bed.only_outside());
    let answer = build::tcp(proxy, external, Flags::SYN.union(Flags::ACK)).sequence(5_000).acknowledgment(1_001);
    bed.outside(&answer.mss(outside_takes).build());
    bed.only_inside();
    bed.inside(&build::tcp(phone, proxy, Flags::ACK).sequence(1_001).acknowledgment(5_001).build());
    bed.only_outside();
    let message = |start: &str, length: usize| {
        let mut text = format!("{start}Contact: <sip:a@{I1}>\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n");
        while text.len() + 2 + 400 <= length {
            text.push_str(&format!("X: {}\r\n", "x".repeat(300)));
        }
        text.push_str(&format!("X: {}\r\n\r\n", "x".repeat(length - text.len() - 7)));
        text
    };
    // In their order, without gaps or overlaps.
    let joined = |packets: Vec<Vec<u8>>, first: u32, takes: u16| {
        let mut all = Vec::new();
        for packet in packets {
            let (sequence, _, payload) = tcp_of(&packet);
            assert!(payload.len() <= usize::from(takes), "{} bytes", payload.len());
            if !payload.is_empty() {
                assert_eq!(sequence, first + all.len() as u32);
            }
            all.extend(payload);
        }
        String::from_utf8(all).expect("text")
    };
    let request = message("INVITE sip:b@192.0.2.1 SIP/2.0\r\n", 1_974);
    let segment = |from: usize, to: usize| {
        let segment = build::tcp(phone, proxy, Flags::ACK).sequence(1_001 + from as u32).acknowledgment(5_001);
        segment.payload(&request.as_bytes()[from..to]).build()
    };
    bed.inside(&segment(0, 1_412));
    bed.inside(&segment(1_412, request.len()));
    let sent = joined(bed.take_outside(), 1_001, outside_takes);
    assert!(sent.len() > request.len() && sent.contains(&format!("<sip:a@{}:", external.ip())), "{sent}");
    // The first one is lost, and sent again by itself.
    bed.inside(&segment(0, 1_412));
    let again = joined(bed.take_outside(), 1_001, outside_takes);
    assert!(again.len() > 1_412 && sent.starts_with(&again), "{again}");
    let answer = message("SIP/2.0 200 OK\r\n", 1_800).replace(&I1.to_string(), &E2.to_string());
    for (from, to) in [(0, 1_300), (1_300, answer.len())] {
        let segment = build::tcp(proxy, external, Flags::ACK).sequence(5_001 + from as u32);
        let segment = segment.acknowledgment(1_001 + sent.len() as u32);
        bed.outside(&segment.payload(&answer.as_bytes()[from..to]).build());
    }
    assert_eq!(joined(bed.take_inside(), 5_001, inside_takes), answer);
    bed.run_out();
}

/// A host believes an ICMP error only if it quotes bytes that are in flight (RFC 5927 §4.1), so the
/// quote has the numbers of the sender, of either side.
#[test]
fn icmp_errors_quote_the_numbers_of_the_sender() {
    let quoted = |error: &[u8]| {
        let ip = Ipv4::new_checked(error).expect("a packet");
        assert!(wire::checksum::is_icmp_valid(ip.payload()), "the checksum is right");
        let segment = &ip.payload()[8 + 20..];
        u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]])
    };
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["ftp"])).workers(workers);
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let line = "PORT 100,64,0,10,4,1\r\n";
        assert_ne!(talk.send_out(&mut bed, line).len(), line.len());
        let (inner, outer) = (talk.numbers(false).0, talk.numbers(true).1);
        assert_ne!(inner.wrapping_sub(1_001), outer.wrapping_sub(1_001));
        let segment = build::tcp(CLIENT, SERVER, Flags::ACK).sequence(inner).acknowledgment(talk.numbers(false).1);
        bed.inside(&segment.payload(b"NOOP\r\n").build());
        let sent = bed.only_outside();
        assert_eq!(tcp_of(&sent).0, outer);
        bed.outside(&build::icmp_error(E2, *talk.external.ip(), 3, 4, &sent).build());
        assert_eq!(quoted(&bed.only_inside()), inner);
        // What the server sends is not changed, so the numbers of its segments are not either.
        let segment = build::tcp(SERVER, talk.external, Flags::ACK).sequence(talk.numbers(true).0);
        bed.outside(&segment.acknowledgment(outer).payload(b"200 OK\r\n").build());
        let came = bed.only_inside();
        bed.inside(&build::icmp_error(I1, *SERVER.ip(), 3, 4, &came).build());
        assert_eq!(quoted(&bed.only_outside()), talk.numbers(true).0);
        bed.run_out();
    }
}

/// Both subscribers' gateways change it, or only the caller's, and it grows: no byte waits for a
/// repetition.
#[test]
fn a_hairpinned_call_over_tcp_arrives_at_once() {
    for (workers, reads_server) in [(1, true), (2, true), (8, true), (1, false), (8, false)] {
        let (client, server, service) = (at(I1, 40_000), at(I2, 5_060), at(POOL[2], 5_060));
        let mut settings = with(&["sip"]).filtering(Filtering::EndpointIndependent).addresses(&POOL[2..]);
        settings.forwards = vec![Forward {
            realm: RealmId(0),
            protocol: Protocol::Tcp,
            external: *service.ip(),
            ports: (5_060, 5_060),
            inside: I2.into(),
            inside_port: 5_060,
            admission: Admission::Anyone,
        }];
        if !reads_server {
            settings.classes.push(Class {
                name: "plain".into(),
                subscribers: vec![Prefix::host(I2)],
                realms: Vec::new(),
                limits: settings.subscriber,
                gateways: Some(vec![]),
            });
        }
        let mut bed = Bed::new(settings).workers(workers).steering(Steering::Random);
        let mut numbers = [1_000, 9_000];
        let mut pass = |bed: &mut Bed, from: SocketAddrV4, to: SocketAddrV4, flags: Flags, payload: &[u8]| {
            let (own, other) = if from == client { (0, 1) } else { (1, 0) };
            let segment = build::tcp(from, to, flags).sequence(numbers[own]).acknowledgment(numbers[other]);
            bed.inside(&segment.payload(payload).build());
            numbers[own] += payload.len() as u32 + u32::from(flags.contains(Flags::SYN));
            bed.take_inside()
        };
        let visitor = source(&pass(&mut bed, client, service, Flags::SYN, b"")[0]);
        pass(&mut bed, server, visitor, Flags::SYN.union(Flags::ACK), b"");
        pass(&mut bed, client, service, Flags::ACK, b"");
        for total in [400, 1_460] {
            let message = |padding: &str| {
                let sdp = format!("v=0\r\nc=IN IP4 {I1}\r\nm=audio 5004 RTP/AVP 0\r\n{padding}");
                format!(
                    "INVITE sip:b@example.com SIP/2.0\r\nVia: SIP/2.0/TCP {client};branch=z9hG4bK1\r\n\
Contact: <sip:a@{client}>\r\nContent-Type: application/sdp\r\nContent-Length: {:04}\r\n\r\n{sdp}",
                    sdp.len()
                )
            };
            let missing = total - message("").len();
            let text = message(&("y".repeat(missing % 14) + &"a=x:yyyyyyyy\r\n".repeat(missing / 14)));
            assert_eq!(text.len(), total);
            let packets = pass(&mut bed, client, service, Flags::ACK, text.as_bytes());
            assert!(packets.iter().all(|packet| packet.len() <= 1_500), "each fits the link");
            let packets = build::reassemble(&packets).map_or(packets, |whole| vec![whole]);
            let got: String = packets.iter().map(|it| String::from_utf8(tcp_of(it).2).expect("text")).collect();
            let (head, sdp) = got.split_once("\r\n\r\n").expect("a header");
            let length = head.split("Content-Length: ").nth(1).and_then(|length| length.parse().ok());
            assert_eq!(length, Some(sdp.len()), "it is whole: {got}");
            assert!(sdp.contains(&format!("c=IN IP4 {}\r\n", visitor.ip())) && got.len() > total, "{got}");
            assert!(!got.contains(&I1.to_string()), "{got}");
        }
        bed.run_out();
    }
}
