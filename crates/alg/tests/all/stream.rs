//! Any cutting of a stream into segments, with loss, repetition and reordering, gives one output
//! and one set of wants.

use alg::Held;
use alg::Passed;
use alg::Segment;
use alg::Step;
use alg::Stream;
use alg::Transport;
use proptest::prelude::*;

use crate::host::Host;
use crate::host::Waiting;
use crate::host::arrive;
use crate::pptp;

/// `PORT` needs a session that has been greeted.
fn ftp_client() -> Host {
    let mut host = Host::new("ftp", 40_000, Transport::Tcp);
    host.message(false, b"220 hello\r\n");
    host
}

fn sip_client() -> Host {
    Host::new("sip", 40_000, Transport::Tcp)
}

fn ftp_text() -> Vec<u8> {
    let mut text = b"USER me\r\nPASS you\r\n".to_vec();
    for i in 0..90_u16 {
        let port = 4660 + i % 4;
        text.extend_from_slice(format!("PORT 10,0,0,1,{},{}\r\nRETR file {i}\r\n", port >> 8, port & 255).as_bytes());
    }
    text
}

fn sip_text() -> Vec<u8> {
    let mut text = Vec::new();
    for i in 0..6 {
        let body = format!("v=0\r\nc=IN IP4 10.0.0.1\r\nm=audio {} RTP/AVP 0\r\na=x:{}\r\n", 5004, "y".repeat(i * 50));
        text.extend_from_slice(
            format!(
                "INVITE sip:bob@203.0.113.9 SIP/2.0\r\nVia: SIP/2.0/TCP 10.0.0.1:40000;branch=z9\r\n\
Contact: <sip:a@10.0.0.1:5060>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}\r\n\r\n",
                body.len()
            )
            .as_bytes(),
        );
    }
    text
}

fn check(host: fn() -> Host, input: &[u8], arrivals: &[(usize, usize)], acks: bool) {
    let mut model = host();
    // The model: the whole stream at once, message by message.
    let wanted = arrive(&mut model, input, &[], true);
    let mut real = host();
    let got = arrive(&mut real, input, arrivals, acks);
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&wanted));
    assert_eq!(real.wants, model.wants);
}

fn segments() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0..3000_usize, 1..700_usize).prop_map(|(from, length)| (from, from + length)), 0..40)
}

proptest! {
    #[test]
    fn ftp_in_any_pieces(arrivals in segments()) {
        check(ftp_client, &ftp_text(), &arrivals, true);
    }

    #[test]
    fn sip_in_any_pieces(arrivals in segments()) {
        check(sip_client, &sip_text(), &arrivals, true);
    }

    #[test]
    fn pieces_in_order(cuts in prop::collection::vec(1..60_usize, 1..200), again in any::<bool>()) {
        let mut at = 0;
        let mut arrivals = Vec::new();
        for cut in cuts {
            arrivals.push((at, at + cut));
            if again {
                arrivals.push((at.saturating_sub(7), at + cut));
            }
            at += cut;
        }
        check(sip_client, &sip_text(), &arrivals, true);
        check(ftp_client, &ftp_text(), &arrivals, true);
    }

    #[test]
    fn any_bytes_pass_without_loss(input in prop::collection::vec(any::<u8>(), 0..2000), arrivals in segments()) {
        check(sip_client, &input, &arrivals, true);
        check(ftp_client, &input, &arrivals, true);
        check(pptp::greeted, &input, &arrivals, true);
    }

    #[test]
    fn pptp_in_any_pieces(arrivals in segments()) {
        check(pptp::greeted, &pptp::calls(), &arrivals, true);
    }
}

fn rtsp_client() -> Host {
    Host::new("rtsp", 40_000, Transport::Tcp)
}

fn rtsp_text() -> Vec<u8> {
    let data = b"$\x00\x00\x05hello".to_vec();
    [crate::rtsp::SETUP.as_bytes(), &data, crate::rtsp::SETUP.as_bytes(), &data].concat()
}

fn check_waiting(host: fn() -> Host, waiting: &Waiting) {
    let mut model = host();
    let wanted = arrive(&mut model, waiting.input, &[], true);
    let mut real = host();
    let got = waiting.send(&mut real, true);
    let what = format!("{:?}, {} at a time, seed {}", waiting.writes, waiting.window, waiting.seed);
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&wanted), "{what}");
    assert_eq!(real.wants, model.wants, "{what}");
}

/// What a connection begins with must show its protocol: before, the last byte that came is not
/// acknowledged, and a sender may wait for that.
fn begun(writes: &[usize]) -> Vec<usize> {
    [&[10], writes].concat()
}

/// A message in more segments than its sender may send: the rest comes after an acknowledgement,
/// which its receiver cannot give, because it has nothing of the message.
#[test]
fn a_sender_gets_the_acknowledgement_that_it_waits_for() {
    let cases = [
        (ftp_client as fn() -> Host, ftp_text()),
        (sip_client, sip_text()),
        (rtsp_client, rtsp_text()),
        (pptp::greeted, pptp::calls()),
    ];
    for (host, input) in &cases {
        for window in [1, 2, 10] {
            for (writes, lost) in [(&[1][..], 0), (&[7, 30, 2], 0), (&[3], 20), (&[40, 1, 1], 30)] {
                for joins in [false, true] {
                    let writes = &if window == 1 || lost > 0 { begun(writes) } else { writes.to_vec() };
                    check_waiting(*host, &Waiting { input, writes, window, lost, seed: 1, joins });
                }
            }
        }
    }
}

/// Its receiver may take an empty line for the end of the header, and answer.
#[test]
fn a_line_that_ends_with_lf_alone_is_not_surely_a_part() {
    let lines = "SETUP rtsp://x/a RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP;client_port=5000-5001\r\n";
    let is_sure = |text: &str| rtsp_client().is_sure(true, text.as_bytes());
    assert!(is_sure(lines) && is_sure(lines.strip_suffix('\n').unwrap()));
    for text in
        [lines.replace("\r\n", "\n"), format!("{lines}\n"), format!("{lines}\r\r"), lines.replace("1\r\n", "1\n")]
    {
        assert!(!is_sure(&text), "{text:?}");
    }
    assert!(is_sure(&format!("{lines}Content-Length: 9\r\n\r\na\nb\n")), "a body may have them");
}

/// Of a message that is too long, the rest comes when its sender repeats it, and so does its end.
#[test]
fn a_stream_does_not_end_before_what_had_no_room() {
    const FIRST: u32 = u32::MAX - 1_000;
    let text = [b"INVITE sip:x SIP/2.0\r\n".as_slice(), &b"a: b\r\n".repeat(900)].concat();
    let (text, first) = (&text[..4_200], 2_896);
    let mut host = sip_client();
    let (mut stream, mut held, mut out) = (host.stream(FIRST), Held::default(), vec![0; 32_768]);
    let segment = |from: usize, to: usize, fin| {
        let sequence = FIRST.wrapping_add(from as u32);
        Segment { sequence, payload: &text[from..to], fin }
    };
    let mut pass = |stream: &mut Stream, held: &mut Held, segment: &Segment<'_>| {
        let Passed::On { sequence, length, fin } =
            stream.pass(held, segment, &mut out, |bytes, seen| host.step(true, bytes, seen))
        else {
            panic!("there is no gap")
        };
        (sequence.wrapping_sub(FIRST), out[..length].to_vec(), fin)
    };
    assert_eq!(pass(&mut stream, &mut held, &segment(0, first, false)), (0, vec![], false));
    assert!(stream.only_repeats(&held, &segment(0, first, false)));
    stream.take_over(&mut held, true);
    // A keep-alive is answered.
    assert_eq!(pass(&mut stream, &mut held, &segment(first - 1, first - 1, false)), (u32::MAX, vec![], false));
    let mut received = Vec::new();
    for _ in 0..3 {
        let (at, bytes, fin) = pass(&mut stream, &mut held, &segment(first, text.len(), true));
        received.truncate(at as usize);
        received.extend(bytes);
        assert!(!fin || received == text, "it ends after {} bytes", received.len());
        if fin {
            return;
        }
    }
    panic!("it has no end: {} bytes", received.len());
}

proptest! {
    #[test]
    fn any_pieces_of_a_sender_that_waits(
        writes in prop::collection::vec(1..80_usize, 1..20),
        window in 1..12_usize,
        (lost, seed) in (0..40_u32, any::<u32>()),
        joins in any::<bool>(),
    ) {
        let writes = begun(&writes);
        for (host, input) in [(ftp_client as fn() -> Host, &ftp_text()[..1_000]), (sip_client, &sip_text())] {
            check_waiting(host, &Waiting { input, writes: &writes, window, lost, seed, joins });
        }
    }
}

/// The work on a stream is linear, however it is cut and repeated: framed once, framed again when
/// the message is whole, and read.
#[test]
fn a_gateway_is_asked_about_each_byte_at_most_three_times() {
    let keep_alives = b"\r\n".repeat(2_000);
    let endless = [b"INVITE sip:x SIP/2.0\r\n".as_slice(), &b"a: b\r\n".repeat(400)].concat();
    let cases = [
        (ftp_client as fn() -> Host, ftp_text()),
        (sip_client, sip_text()),
        (sip_client, keep_alives),
        (sip_client, endless),
        (pptp::greeted, pptp::calls()),
    ];
    for (host, text) in cases {
        for size in [1, 7, 100, 1_448, 8_000] {
            let pieces = (0..text.len()).step_by(size).map(|at| (at, at + size));
            let arrivals: Vec<_> = pieces.flat_map(|piece| [piece; 2]).collect();
            let mut host = host();
            arrive(&mut host, &text, &arrivals, true);
            let what = String::from_utf8_lossy(&text[..20]);
            assert!(host.asked <= 3 * text.len(), "{what}: {} of {} by {size}", host.asked, text.len());
            assert!(host.asked >= text.len().min(alg::LINE_MAX) / 2, "{what}: {} by {size}", host.asked);
        }
    }
}

#[test]
fn one_byte_at_a_time() {
    for (host, text) in
        [(ftp_client as fn() -> Host, ftp_text()), (sip_client, sip_text()), (pptp::greeted, pptp::calls())]
    {
        let arrivals: Vec<_> = (0..text.len()).map(|at| (at, at + 1)).collect();
        check(host, &text, &arrivals, true);
    }
}

/// What each direction says, by its message of three segments.
fn long_message(from_inside: bool) -> Vec<u8> {
    let (own, peer) =
        if from_inside { ("10.0.0.1:40000", "203.0.113.9") } else { ("203.0.113.9", "198.51.100.7:60000") };
    let (address, padding) = (own.split(':').next().expect("an address"), "a=x:yyyyyyyyyy\r\n".repeat(50));
    let body = format!("v=0\r\nc=IN IP4 {address}\r\nm=audio 5004 RTP/AVP 0\r\n{padding}");
    let head = format!(
        "INVITE sip:bob@{peer} SIP/2.0\r\nVia: SIP/2.0/TCP {own};branch=z9\r\nContact: <sip:a@{own}>\r\n\
Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}

/// Sends the parts of one message of SIP, and returns what passed with each.
fn pass_parts(text: &[u8], from_inside: bool, parts: &[(usize, usize)]) -> Vec<Option<Vec<u8>>> {
    const FIRST: u32 = u32::MAX - 700;
    let mut host = sip_client();
    let (mut stream, mut held, mut out) = (host.stream(FIRST), Held::default(), vec![0; 16_384]);
    let mut next = FIRST;
    let passed = parts.iter().map(|&(from, to)| {
        let segment = Segment { sequence: FIRST.wrapping_add(from as u32), payload: &text[from..to], fin: false };
        let step = |bytes: &[u8], seen: usize| host.step(from_inside, bytes, seen);
        let Passed::On { sequence, length, .. } = stream.pass(&mut held, &segment, &mut out, step) else { return None };
        assert_eq!(sequence, next, "the output has no gap");
        next = next.wrapping_add(length as u32);
        stream.acknowledge(&mut held, next).expect("it was sent");
        Some(out[..length].to_vec())
    });
    let passed = passed.collect();
    assert!(held.is_empty() && !stream.is_over(), "nothing is left, and reading goes on");
    passed
}

/// A sender after a timeout repeats its first unacknowledged segment, and nothing else until that
/// is acknowledged. The receiver cannot say what else has come, because nothing was sent on to it.
#[test]
fn a_message_is_whole_once_its_lost_segment_was_repeated() {
    for from_inside in [true, false] {
        let text = &long_message(from_inside)[..];
        let wanted = pass_parts(text, from_inside, &[(0, text.len())]).remove(0).expect("it passes");
        let changed = if from_inside { "c=IN IP4 198.51.100.7" } else { "INVITE sip:bob@10.0.0.1:40000" };
        assert!(String::from_utf8_lossy(&wanted).contains(changed));
        for cuts in [[300, 700], [1, 2], [200, 399], [text.len() - 2, text.len() - 1]] {
            let parts = [(0, cuts[0]), (cuts[0], cuts[1]), (cuts[1], text.len())];
            for lost in 0..3 {
                let (from, to) = parts[lost];
                let half = from + (to - from) / 2;
                let others = [0, 1, 2].into_iter().filter(|part| *part != lost).map(|part| parts[part]);
                // Once, twice, or the later one first.
                let orders = [
                    others.clone().collect::<Vec<_>>(),
                    others.clone().chain(others.clone()).collect(),
                    others.rev().collect(),
                ];
                // By itself, in two, with the whole message, and with some bytes of its neighbours.
                let around = (from.saturating_sub(1), text.len().min(to + 1));
                for again in [&[(from, to)][..], &[(from, half), (half, to)], &[(0, text.len())], &[around]] {
                    let again: Vec<_> = again.iter().filter(|(from, to)| from < to).copied().collect();
                    for order in &orders {
                        let arrivals = [&order[..], &again].concat();
                        let passed = pass_parts(text, from_inside, &arrivals);
                        let got = passed.into_iter().flatten().collect::<Vec<_>>().concat();
                        let what = format!("{lost} of {cuts:?} lost, {arrivals:?}");
                        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&wanted), "{what}");
                    }
                }
            }
        }
    }
}

/// Only what one message may be long is kept, and of FTP, whose commands are lines, nothing.
#[test]
fn what_came_too_far_ahead_is_not_kept() {
    let text = long_message(true);
    let far = [&text[..], &b"\r\n".repeat(4_000)].concat();
    let (mut host, mut out) = (sip_client(), vec![0; 32_768]);
    let (mut stream, mut held) = (host.stream(0), Held::default());
    let mut pass = |from: usize, to: usize| {
        let segment = Segment { sequence: from as u32, payload: &far[from..to], fin: false };
        stream.pass(&mut held, &segment, &mut out, |bytes, seen| host.step(true, bytes, seen))
    };
    assert_eq!(pass(5_000, 6_000), Passed::Gap);
    assert_eq!(pass(4_000, 5_000), Passed::Gap);
    let Passed::On { length, .. } = pass(0, 4_000) else { panic!("it passes") };
    assert!((4_090..4_200).contains(&length), "{length} bytes pass: what fits one message");
    let (mut host, line) = (ftp_client(), b"NOOP\r\nNOOP\r\n");
    let (mut stream, mut held) = (host.stream(0), Held::default());
    let mut pass = |from: usize, to: usize| {
        let segment = Segment { sequence: from as u32, payload: &line[from..to], fin: false };
        stream.pass(&mut held, &segment, &mut out, |bytes, seen| host.step(true, bytes, seen))
    };
    assert_eq!(pass(6, 12), Passed::Gap);
    assert_eq!(pass(0, 6), Passed::On { sequence: 0, length: 6, fin: false });
    assert_eq!(pass(6, 12), Passed::On { sequence: 6, length: 6, fin: false });
}

/// What passes unread and what ends reading takes nothing that was kept for a message.
#[test]
fn what_came_ahead_of_something_else_is_forgotten() {
    let skips = |bytes: &[u8], _: usize| if bytes[0] == b's' { Step::Skip(9) } else { Step::Over };
    for (head, next) in [("s23", "456789"), ("over", "more")] {
        let mut stream = Stream::starting(1).keeping_ahead(true);
        let (mut held, mut out) = (Held::default(), vec![0; 8_192]);
        let mut pass = |sequence: u32, payload: &[u8]| {
            let segment = Segment { sequence, payload, fin: false };
            match stream.pass(&mut held, &segment, &mut out, skips) {
                Passed::On { sequence, length, .. } => Some((sequence, out[..length].to_vec())),
                Passed::Gap => None,
            }
        };
        assert_eq!(pass(6, b"?"), None);
        assert_eq!(pass(1, head.as_bytes()), Some((1, head.as_bytes().to_vec())));
        assert_eq!(pass(1 + head.len() as u32, next.as_bytes()).expect("the next").1, next.as_bytes());
        assert!(held.is_empty());
    }
}

#[test]
fn growth_waits_for_an_acknowledgement() {
    let mut host = ftp_client();
    let text = b"USER x\r\nPORT 10,0,0,1,18,52\r\n".to_vec();
    let line = text[8..].to_vec();
    let mut sender = crate::host::Sender::new();
    sender.send(&mut host, &text);
    let mut changed = 1;
    while sender.send(&mut host, &line) > 0 {
        changed += 1;
    }
    assert!((4..=alg::CORRECTIONS_MAX).contains(&changed), "{changed} corrections");
    assert_eq!(sender.repeat(&mut host, &line), 0);
    sender.acknowledge();
    assert!(sender.repeat(&mut host, &line) > 0);
}

proptest! {
    /// Changed and cut messages never panic, and change nothing but what they ask for.
    #[test]
    fn damaged_messages_are_read(at in 0..900_usize, byte in any::<u8>(), cut in 0..900_usize, side in any::<bool>()) {
        for name in ["ftp", "sip", "rtsp", "tftp", "pptp"] {
            for mut text in [sip_text(), ftp_text(), crate::rtsp::SETUP.as_bytes().to_vec(), pptp::calls()] {
                text.truncate(cut);
                if let Some(place) = text.get_mut(at) {
                    *place = byte;
                }
                let mut host = Host::new(name, 40_000, Transport::Tcp);
                host.client_is_inside = side;
                host.message(true, &text);
                check(sip_client, &text, &[], true);
            }
        }
    }
}

/// The end of a stream counts as one, and everything beyond was not sent (RFC 9293 §3.4).
#[test]
fn an_acknowledgement_of_what_was_not_sent_changes_nothing() {
    const FIRST: u32 = u32::MAX - 3;
    let mut stream = Stream::starting(FIRST);
    let (mut held, mut out, mut host) = (Held::default(), [0; 8_192], ftp_client());
    let segment = Segment { sequence: stream.next(), payload: b"USER me\r\nPORT 10,0,0,1,4,1\r\n", fin: false };
    let passed = stream.pass(&mut held, &segment, &mut out, |bytes, seen| host.step(true, bytes, seen));
    let Passed::On { sequence, length, .. } = passed else { panic!("nothing is missing") };
    let sent = sequence.wrapping_add(length as u32);
    assert_ne!(sent, stream.next(), "it has grown");
    for ahead in [2, 100, 1 << 30] {
        assert_eq!(stream.acknowledge(&mut held, sent.wrapping_add(ahead)), None);
    }
    assert!(!stream.is_over());
    assert_eq!(stream.acknowledge(&mut held, sent.wrapping_add(1)), Some(stream.next().wrapping_add(1)));
    assert_eq!(stream.acknowledge(&mut held, sent), Some(stream.next()));
}

/// Its sender still acknowledges what the other side sends, with the number after its FIN: with one
/// below, the receiver would ignore that (RFC 9293 §3.10.7.4).
#[test]
fn an_acknowledgement_after_the_end_has_its_number() {
    const FIRST: u32 = u32::MAX - 3;
    for line in [&b"USER me\r\n"[..], b"USER me\r\nPORT 10,0,0,1,4,1\r\n"] {
        let (mut stream, mut held, mut host, mut out) =
            (Stream::starting(FIRST), Held::default(), ftp_client(), [0; 8_192]);
        let mut pass = |sequence: u32, payload: &[u8], fin: bool| {
            let segment = Segment { sequence, payload, fin };
            stream.pass(&mut held, &segment, &mut out, |bytes, seen| host.step(true, bytes, seen))
        };
        let Passed::On { length, .. } = pass(FIRST, line, false) else { panic!("nothing is missing") };
        let (end, sent) = (FIRST.wrapping_add(line.len() as u32), FIRST.wrapping_add(length as u32));
        let empty = |sequence: u32| Passed::On { sequence, length: 0, fin: false };
        assert_eq!(pass(end, b"", false), empty(sent));
        // A segment of the sender that was not lost, but is late.
        assert_eq!(pass(end.wrapping_add(1), b"", false), empty(sent), "there was no end yet");
        assert_eq!(pass(end, b"", true), Passed::On { sequence: sent, length: 0, fin: true });
        assert_eq!(pass(end.wrapping_add(1), b"", false), empty(sent.wrapping_add(1)));
        assert_eq!(pass(end, b"", false), empty(sent), "sent before the end");
    }
}

/// Nor once reading is over: what is on its way may still be repeated.
#[test]
fn a_forged_acknowledgement_takes_nothing_on_its_way() {
    const FIRST: u32 = 7_000;
    let (mut stream, mut held, mut host, mut out) =
        (Stream::starting(FIRST), Held::default(), ftp_client(), [0; 8_192]);
    let mut pass = |stream: &mut Stream, held: &mut Held, sequence: u32, payload: &[u8]| {
        let segment = Segment { sequence, payload, fin: false };
        let passed = stream.pass(held, &segment, &mut out, |bytes, seen| host.step(true, bytes, seen));
        let Passed::On { sequence, length, .. } = passed else { panic!("nothing is missing") };
        (sequence, length)
    };
    let (sent, length) = pass(&mut stream, &mut held, FIRST, b"USER me\r\nPORT 10,0,0,1,4,1\r\n");
    stream.acknowledge(&mut held, sent.wrapping_add(length as u32)).expect("it was sent");
    stream.end();
    let next = stream.next();
    let (sent, _) = pass(&mut stream, &mut held, next, &[b'x'; 1_000]);
    stream.acknowledge(&mut held, sent.wrapping_add(1_000 + (1 << 30)));
    assert_eq!(pass(&mut stream, &mut held, next, &[b'x'; 1_000]), (sent, 1_000), "it was lost");
}

/// Whatever part of what has been sent is repeated arrives again, also after so much that sequence
/// numbers have come round.
#[test]
fn repetitions_arrive_after_any_number_of_bytes() {
    const PIECE: usize = 1 << 20;
    let payload: Vec<u8> = (0..PIECE).map(|at| at as u8).collect();
    let mut out = vec![0; PIECE + 8_192];
    let mut stream = Stream::starting(7);
    let (mut held, mut host) = (Held::default(), ftp_client());
    let line = b"USER me\r\nPORT 10,0,0,1,4,1\r\n";
    let mut next = stream.next();
    let mut pass = |stream: &mut Stream, held: &mut Held, sequence: u32, payload: &[u8], is_read: bool| {
        let segment = Segment { sequence, payload, fin: false };
        let passed = stream.pass(held, &segment, &mut out, |bytes, seen| match is_read {
            true => host.step(true, bytes, seen),
            false => Step::Skip(PIECE),
        });
        let Passed::On { sequence, length, .. } = passed else { panic!("nothing is missing") };
        (sequence, length)
    };
    let (sent, length) = pass(&mut stream, &mut held, next, line, true);
    let grown = length as u32 - line.len() as u32;
    assert!(grown > 0);
    next = next.wrapping_add(line.len() as u32);
    stream.acknowledge(&mut held, sent.wrapping_add(length as u32)).expect("it was sent");
    for piece in 0..5_000_u32 {
        let got = pass(&mut stream, &mut held, next, &payload, false);
        assert_eq!(got, (next.wrapping_add(grown), PIECE));
        if piece % 64 == 0 {
            // A part of it was lost.
            let again = pass(&mut stream, &mut held, next.wrapping_add(100), &payload[100..1_500], false);
            assert_eq!(again, (next.wrapping_add(grown + 100), 1_400), "after {piece} MiB");
        }
        next = next.wrapping_add(PIECE as u32);
        assert_eq!(stream.acknowledge(&mut held, next.wrapping_add(grown)), Some(next));
    }
}
