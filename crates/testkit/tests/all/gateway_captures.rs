//! What other gateways stumbled over, rebuilt from public advisories, packet by packet.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Verdict;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::gateways::Talk;
use crate::gateways::tcp_of;
use crate::gateways::udp_text;
use crate::gateways::with;

const ALL: [&str; 5] = ["ftp", "sip", "rtsp", "tftp", "pptp"];

/// The bytes leave as they came, and nothing is expected.
fn passes_unchanged(bed: &mut Bed, talk: &mut Talk, from_client: bool, bytes: &[u8]) {
    let passed = if from_client { talk.pass_out(bed, bytes) } else { talk.pass_in(bed, bytes) };
    assert!(passed == bytes, "{}", String::from_utf8_lossy(&passed));
    assert_eq!(bed.counters().expectations_created, 0);
}

/// Many messages in one stream, with headers that are hard to delimit: a loop without an end.
#[test]
fn cve_2026_21905_odd_headers_in_a_sip_stream_end() {
    let mut bed = Bed::new(with(&ALL));
    let odd: [&[u8]; 8] = [
        b"OPTIONS sip:x SIP/2.0\r\n:\r\nVia:\r\n \r\n\t\r\nContent-Length: 0\r\n\r\n",
        b"OPTIONS sip:x SIP/2.0\r\nVia\r\n: : :\r\n;;,,\r\nl:0\r\n\r\n",
        b"OPTIONS sip:x SIP/2.0\r\nContact: <<<>>>,,,;\r\nContent-Length:\t 0 \r\n\r\n",
        b"\r\n\r\n\r\nOPTIONS sip:x SIP/2.0\r\nContent-Length: 0\r\n\r\n\r\n\r\n",
        b"SIP/2.0 200\r\nVia: ,\r\n,\r\nContent-Length: 0\r\n\r\n",
        b"OPTIONS sip:x SIP/2.0\r\nVia: SIP/2.0/TCP \r\nContent-Length: 00000000000000000000\r\n\r\n",
        b"OPTIONS sip:x SIP/2.0\r\nContent-Length: -1\r\n\r\n",
        b"OPTIONS sip:x SIP/2.0\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    ];
    for (i, message) in odd.iter().enumerate() {
        let mut talk = Talk::open(&mut bed, at(I1, 40_000 + i as u16), at(E1, 5060));
        let stream = message.repeat(1_400 / message.len());
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        // Whole messages, then in pieces. A message that is not complete may be held until it is.
        for (bytes, size) in [(&stream[..], stream.len()), (message, 1), (&stream[..], 7)] {
            for piece in bytes.chunks(size) {
                sent.extend_from_slice(piece);
                received.extend(talk.pass_out(&mut bed, piece));
                assert!(sent.starts_with(&received), "in order");
            }
        }
        assert!(sent.len() - received.len() <= 4_096, "no more is held");
    }
    assert_eq!(bed.counters().expectations_created, 0);
    bed.run_out();
}

/// Malformed messages that each leave a port behind.
#[test]
fn cve_2024_21616_malformed_sip_leaves_no_port_behind() {
    let mut bed = Bed::new(with(&ALL));
    let phone = at(I1, 5060);
    let broken = |i: u16| {
        let sdp = format!("v=0\r\nc=IN IP4 100.64.0.10\r\nm=audio {} RTP/AVP 0\r\n", 2_000 + i);
        let length = sdp.len();
        match i % 6 {
            // A body longer, or shorter, than it says.
            0 => format!(
                "INVITE sip:x SIP/2.0\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
                length + 9
            ),
            1 => format!("INVITE sip:x SIP/2.0\r\nContent-Type: application/sdp\r\nContent-Length: x\r\n\r\n{sdp}"),
            2 => format!("INVITE\r\nContent-Type: application/sdp\r\nContent-Length: {length}\r\n\r\n{sdp}"),
            3 => format!(
                "INVITE sip:x SIP/9.0\r\nContent-Type: application/sdp\r\nContent-Length: {length}\r\n\r\n{sdp}"
            ),
            4 => format!("\r\n\r\nINVITE sip:x SIP/2.0\r\n\0: x\r\nContent-Length: {length}\r\n\r\n{sdp}"),
            _ => "INVITE sip:x SIP/2.0\r\nContact: <sip:a@100.64.0.10:99999>\r\n".to_owned(),
        }
    };
    for i in 0..3_000 {
        bed.inside(&build::udp(phone, at(E1, 5060)).payload(broken(i).as_bytes()).build());
        assert_eq!(bed.take_outside().len(), 1);
    }
    // No more than a session may announce at a time, whatever was read. Its neighbour is served.
    let counters = bed.counters();
    assert!(bed.grants().len() <= 16, "{} grants", bed.grants().len());
    assert!(counters.expectations_created <= 8 + 8, "{}", counters.expectations_created);
    bed.open_udp(at(I2, 5060), at(E1, 5060));
    bed.advance_secs(60);
    assert!(bed.grants().is_empty(), "nobody used them");
    bed.run_out();
}

/// A length of 2^32 + 32 is not 32: what follows in the segment is no message.
#[test]
fn cve_2026_23457_a_huge_length_hides_no_second_message() {
    for length in ["4294967328", "18446744073709551648", "65568", "99999999999999999999999999", "0x20", "+32"] {
        let mut bed = Bed::new(with(&ALL));
        let mut talk = Talk::open(&mut bed, at(I1, 40_000), at(E1, 5060));
        let body = "x".repeat(32);
        let stream = format!(
            "MESSAGE sip:x SIP/2.0\r\nContent-Length: {length}\r\n\r\n{body}REGISTER sip:x SIP/2.0\r\n\
Contact: <sip:a@100.64.0.10:9999>\r\nContent-Length: 0\r\n\r\n"
        );
        passes_unchanged(&mut bed, &mut talk, true, stream.as_bytes());
        bed.run_out();
    }
}

/// Descriptions without media of their own: the address of the session comes from nowhere.
#[test]
fn cve_2026_31427_a_description_without_media_gets_no_address() {
    let mut bed = Bed::new(with(&ALL));
    for media in
        ["", "m=audio 0 RTP/AVP 0\r\n", "m=holograph 5004 XYZ/1 0\r\n", "m=audio 99999 RTP/AVP 0\r\n", "m=\r\n"]
    {
        let sdp = format!("v=0\r\no=- 1 1 IN IP4 100.64.0.10\r\nc=IN IP4 100.64.0.10\r\n{media}");
        let text = format!(
            "INVITE sip:x SIP/2.0\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
            sdp.len()
        );
        bed.inside(&build::udp(at(I1, 5060), at(E1, 5060)).payload(text.as_bytes()).build());
        assert_eq!(udp_text(&bed.only_outside()), text);
    }
    assert_eq!(bed.counters().expectations_created, 0);
    bed.run_out();
}

/// A command in the middle of other text is no command; IRC has no gateway at all.
#[test]
fn cve_2022_2663_a_command_within_a_line_is_none() {
    let mut bed = Bed::new(with(&ALL));
    let mut irc = Talk::open(&mut bed, at(I1, 40_000), at(E1, 6667));
    passes_unchanged(&mut bed, &mut irc, true, b"PRIVMSG a :\x01DCC SEND f 1681915914 9999 1\x01\r\n");
    let mut ftp = Talk::open(&mut bed, at(I1, 40_001), at(E1, 21)).log_in(&mut bed, false);
    for line in [
        "XPORT 100,64,0,10,18,52\r\n",
        "STAT PORT 100,64,0,10,18,52\r\n",
        " PORT 100,64,0,10,18,52\r\n",
        "PORT  x PORT 100,64,0,10,18,52\r\n",
        "PORT 100,64,0,10,18,52,PORT 100,64,0,10,18,52\r\n",
    ] {
        passes_unchanged(&mut bed, &mut ftp, true, line.as_bytes());
    }
    bed.run_out();
}

/// A request that begins a segment after 9 KB of a page's form is still within the form.
#[test]
fn a_message_after_9_kb_of_a_form_is_part_of_it() {
    for start in
        ["POST / HTTP/1.1\r\nContent-Length: 20000\r\n\r\n", "MESSAGE sip:x SIP/2.0\r\nContent-Length: 9000\r\n\r\n"]
    {
        let mut bed = Bed::new(with(&ALL));
        let mut talk = Talk::open(&mut bed, at(I1, 40_000), at(E1, 5060));
        let form = [start.as_bytes(), &[b'a'; 9_216]].concat();
        for segment in form.chunks(1_448) {
            passes_unchanged(&mut bed, &mut talk, true, segment);
        }
        let register = "REGISTER sip:x SIP/2.0\r\nContact: <sip:a@100.64.0.10:9999>\r\nContent-Length: 0\r\n\r\n";
        passes_unchanged(&mut bed, &mut talk, true, register.as_bytes());
        bed.run_out();
    }
}

/// A control connection without a packet for ten minutes of transfer, with a shorter idle time.
#[test]
fn an_idle_ftp_control_connection_outlives_its_transfer_only() {
    let mut settings = with(&["ftp"]);
    settings.timeouts.tcp_established = Duration::from_secs(300);
    let mut bed = Bed::new(settings);
    let mut talk = Talk::open(&mut bed, at(I1, 40_000), at(E1, 21)).log_in(&mut bed, false);
    talk.send_out(&mut bed, "RETR film\r\n");
    talk.send_in(&mut bed, "150 go\r\n");
    bed.advance_secs(600);
    assert_eq!(talk.send_in(&mut bed, "226 done\r\n"), "226 done\r\n");
    assert_eq!(talk.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
    // Without a transfer it is idle like any other: 300 s, and four minutes to be revived.
    bed.advance_secs(600);
    let late = build::tcp(at(E1, 21), talk.external, Flags::ACK).sequence(1).acknowledgment(1);
    bed.outside(&late.build());
    bed.assert_silent();
    bed.run_out();
}

/// A worker reads 1,024 sessions, and 128 of one subscriber: the rest passes unread, and later ones
/// are read again.
#[test]
fn a_full_table_of_sip_sessions_empties() {
    let mut bed = Bed::new(with(&["sip"]));
    let changed = |bed: &mut Bed, host: u8, port: u16| {
        let own = Ipv4Addr::new(100, 64, 0, host);
        let text =
            format!("REGISTER sip:x SIP/2.0\r\nVia: SIP/2.0/UDP {own}:{port};branch=z9\r\nCSeq: 1 REGISTER\r\n\r\n");
        bed.inside(&build::udp(at(own, port), at(E1, 5060)).payload(text.as_bytes()).build());
        udp_text(&bed.only_outside()) != text
    };
    for host in 20..28 {
        let read = (0..150).filter(|i| changed(&mut bed, host, 10_000 + i)).count();
        assert_eq!(read, 128, "as many as one subscriber may have");
    }
    assert!(!changed(&mut bed, 30, 9_000), "the table is full");
    bed.advance_secs(700);
    (0..400).for_each(|_| bed.advance(Duration::from_millis(10)));
    assert!(changed(&mut bed, 30, 9_001), "the table has room again");
    bed.run_out();
}

/// What browsers were made to send; the side of each payload: true is the inside.
#[test]
fn slipstreams_expect_nothing_and_each_packet_has_its_verdict() {
    let port = "PORT 100,64,0,10,18,52\r\n";
    let register = "REGISTER sip:x SIP/2.0\r\nContact: <sip:a@100.64.0.10:9999>\r\nContent-Length: 0\r\n\r\n";
    let setup = "SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
    let post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n";
    let long = format!("USER {}", "a".repeat(600));
    let padded = format!("{post}{}", "x".repeat(1_360));
    let in_body = format!("MESSAGE sip:x SIP/2.0\r\nContent-Length: {}\r\n\r\n{register}", register.len());
    let greeting = "220 ready\r\n";
    let exchanges: [(u16, Vec<(bool, &str)>); 16] = [
        (21, vec![(true, post), (true, port)]),
        (21, vec![(false, greeting), (true, post), (true, port)]),
        (21, vec![(true, port)]),
        (21, vec![(true, "USER x\r\n"), (false, greeting), (true, port)]),
        (21, vec![(false, greeting), (true, port)]),
        (21, vec![(false, greeting), (true, &long), (true, port)]),
        (21, vec![(false, greeting), (true, "USER a\nPORT 100,64,0,10,18,52\r\n")]),
        (21, vec![(false, greeting), (true, "USER a\rPORT 100,64,0,10,18,52\r\n")]),
        (21, vec![(false, "HTTP/1.1 200 OK\r\n\r\n"), (true, port)]),
        (5060, vec![(true, post), (true, register)]),
        (5060, vec![(true, &padded), (true, register)]),
        (5060, vec![(true, &in_body)]),
        (5060, vec![(true, "MESSAGE sip:x SIP/2.0\r\nContent-Length: 5\r\nl: 0\r\n\r\n"), (true, register)]),
        (554, vec![(true, "GET / HTTP/1.1\r\n\r\n"), (true, setup)]),
        (554, vec![(true, "$\0\0\u{4}abcd"), (true, setup)]),
        (1723, vec![(true, post), (true, "\0\u{10}\0\u{1}\u{1a}+<M\0\u{5}\0\0\0\0\0\0")]),
    ];
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&ALL)).workers(workers);
        let mut sent = [0, 0];
        for (i, (server, exchange)) in exchanges.iter().enumerate() {
            let mut talk = Talk::open(&mut bed, at(I1, 41_000 + i as u16), at(E1, *server));
            // The handshake.
            sent = [sent[0] + 2, sent[1] + 1];
            for (from_inside, text) in exchange {
                passes_unchanged(&mut bed, &mut talk, *from_inside, text.as_bytes());
                sent[usize::from(!*from_inside)] += 1;
            }
        }
        assert!(bed.grants().is_empty());
        let counters = bed.counters();
        assert_eq!((counters.expectations_created, counters.expectations_refused), (0, 0));
        assert_eq!([bed.count(Verdict::Outbound), bed.count(Verdict::Inbound)], sent, "{:?}", bed.verdicts());
        assert_eq!(counters.received, sent[0] + sent[1]);
        // What was hoped for does not work.
        for (transport, inside) in [(6, 4_660), (17, 9_999), (17, 5_000)] {
            let known = bed.mapping_of(if transport == 6 { Protocol::Tcp } else { Protocol::Udp }, at(I1, inside));
            assert!(known.is_none());
        }
        bed.run_out();
    }
}

/// A segment that arrives before the one that makes it harmless.
#[test]
fn a_gap_ends_in_silence_and_then_in_order() {
    let mut bed = Bed::new(with(&["ftp"]));
    let talk = Talk::open(&mut bed, at(I1, 40_000), at(E1, 21)).log_in(&mut bed, false);
    let (sequence, ack) = talk.numbers(false);
    let part = |from: u32, text: &[u8]| {
        build::tcp(at(I1, 40_000), at(E1, 21), Flags::ACK)
            .sequence(sequence + from)
            .acknowledgment(ack)
            .payload(text)
            .build()
    };
    // "STAT " is missing: alone, the second would be a command.
    bed.inside(&part(5, b"PORT 100,64,0,10,18,52\r\n"));
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::AlgReordered), 1);
    bed.inside(&part(0, b"STAT "));
    bed.take_outside();
    bed.inside(&part(5, b"PORT 100,64,0,10,18,52\r\n"));
    let all: Vec<u8> = bed.take_outside().iter().flat_map(|packet| tcp_of(packet).2).collect();
    assert!(all.ends_with(b"PORT 100,64,0,10,18,52\r\n"));
    assert_eq!(bed.counters().expectations_created, 0);
}
