//! The work of each parser and of the stream is at most so much a byte and a segment, however a
//! sender tries to make more of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "../../tests/all/host.rs"]
#[allow(dead_code, reason = "shared with the tests outside")]
mod host;

use host::Host;
use host::Sender;
use host::Talk;

use crate::Transport;

/// Bytes looked at or copied, at most, for each byte that arrives. Most of it is the comparison of
/// what is in a header with the names that a parser knows; the worst input here needs 35.
const EACH_BYTE: u64 = 48;
/// Corrections looked at, at most, for each segment that repeats what was changed before.
const EACH_REPEATED: u64 = 6 * crate::CORRECTIONS_MAX as u64;

/// Sizes of segments, in turn.
const SIZES: [&[usize]; 7] = [&[1], &[2], &[7, 1], &[64], &[536], &[1_448, 1, 3], &[9_000]];

/// Input bytes, growing by a factor of 64.
const TOTALS: [usize; 4] = [1 << 10, 1 << 12, 1 << 14, 1 << 16];

/// What is repeated, and what comes before.
struct Hostile {
    alg: &'static str,
    /// The client is outside, and its server inside.
    is_server_inside: bool,
    /// True: from the client.
    before: Vec<(bool, Vec<u8>)>,
    /// True: from the client.
    repeated: Vec<(bool, Vec<u8>)>,
}

impl Hostile {
    fn client(alg: &'static str, repeated: impl Into<Vec<u8>>) -> Hostile {
        Hostile { alg, is_server_inside: false, before: Vec::new(), repeated: vec![(true, repeated.into())] }
    }

    fn ftp(repeated: impl Into<Vec<u8>>) -> Hostile {
        let before = vec![(false, b"220 x\r\n".to_vec()), (true, b"USER x\r\n".to_vec())];
        Hostile { before, ..Hostile::client("ftp", repeated) }
    }

    fn ftp_reply(command: &str, reply: String) -> Hostile {
        let repeated = vec![(true, command.as_bytes().to_vec()), (false, reply.into_bytes())];
        Hostile { is_server_inside: true, repeated, ..Hostile::ftp("") }
    }

    fn pptp(repeated: impl Into<Vec<u8>>) -> Hostile {
        let start = |kind: u8| {
            let mut message = vec![0; 156];
            message[1] = 156;
            message[2..10].copy_from_slice(&[0, 1, 0x1a, 0x2b, 0x3c, 0x4d, 0, kind]);
            message[14] = 1;
            message
        };
        Hostile { before: vec![(true, start(1)), (false, start(2))], ..Hostile::client("pptp", repeated) }
    }
}

/// One message of SIP with this in its header fields, at most 4,096 bytes.
fn sip(method: &str, uri: &str, fields: &str) -> Vec<u8> {
    format!("{method} {uri} SIP/2.0\r\n{fields}Content-Length: 0\r\n\r\n").into_bytes()
}

fn sdp(lines: &str) -> Vec<u8> {
    let length = lines.len();
    format!("INVITE sip:x SIP/2.0\r\nContent-Type: application/sdp\r\nContent-Length: {length}\r\n\r\n{lines}")
        .into_bytes()
}

fn rtsp(transport: &str) -> Vec<u8> {
    format!("SETUP rtsp://x/ RTSP/1.0\r\nTransport: {transport}\r\n\r\n").into_bytes()
}

fn hostile() -> Vec<Hostile> {
    let long_uri = "x".repeat(480);
    let expires = ";expires".repeat(55);
    vec![
        Hostile::ftp("\r\n"),
        Hostile::ftp("NOOP\r\n"),
        Hostile::ftp("PORT 10,0,0,1,19,136\r\n"),
        Hostile::ftp("EPRT |1|10.0.0.1|5000|\r\n"),
        Hostile::ftp(format!("PORT {}\r\n", "1,".repeat(240))),
        Hostile::ftp([[255, 244].repeat(250), b"\r\n".to_vec()].concat()),
        Hostile::ftp([vec![254; 500], b"\r\n".to_vec()].concat()),
        Hostile::ftp("x".repeat(511)),
        Hostile::ftp_reply("PASV\r\n", format!("227 {}\r\n", "1,1,1,1,1,x".repeat(40))),
        Hostile::ftp_reply("PASV\r\n", format!("227 {}\r\n", "1".repeat(500))),
        Hostile::ftp_reply("PASV\r\n", "227 (10,0,0,1,19,136)\r\n".to_owned()),
        Hostile::ftp_reply("EPSV\r\n", format!("229 {}(|||5000|)\r\n", "x".repeat(490))),
        Hostile::ftp_reply("STAT\r\n", format!("211-x\r\n{}211 x\r\n", "211-\r\n".repeat(80))),
        Hostile::client("sip", "\r\n"),
        Hostile::client("sip", "OPTIONS "),
        Hostile::client("sip", sip("OPTIONS", &long_uri, &"a:\r\n".repeat(880))),
        Hostile::client("sip", sip("OPTIONS", &long_uri, &"y: ,\r\n".repeat(590))),
        Hostile::client("sip", sip("OPTIONS", "sip:x", &"Via: x\r\n".repeat(500))),
        Hostile::client("sip", sip("OPTIONS", "sip:x", &format!("Via: x\r\n{}", " \r\n".repeat(1_300)))),
        Hostile::client("sip", sip("OPTIONS", "sip:x", &format!("Via: {}\r\n", ",".repeat(500)).repeat(7))),
        Hostile::client("sip", sip("REGISTER", "sip:x", &format!("m:{}\r\n", ",".repeat(500)).repeat(7))),
        Hostile::client("sip", sip("REGISTER", "sip:x", &format!("m:x{expires}\r\n").repeat(8))),
        Hostile::client("sip", sip("REGISTER", "sip:x", &format!("m:x{}\r\n", ";".repeat(500)).repeat(7))),
        Hostile::client("sip", sip("REGISTER", "sip:x", &format!("m:{}\r\n", "<sip:@?".repeat(70)).repeat(7))),
        Hostile::client("sip", sip("REGISTER", "sip:x", &format!("m:{}\r\n", "\"\\\"".repeat(160)).repeat(7))),
        Hostile::client("sip", sip("OPTIONS", "sip:x", &"v:SIP/2.0/TCP 10.0.0.1:5060\r\n".repeat(31))),
        Hostile::client("sip", sip("OPTIONS", "sip:x", &"m:<sip:x@10.0.0.1:5060>,".repeat(15))),
        Hostile::client("sip", sdp(&"c=IN IP4 10.0.0.1\r\n".repeat(180))),
        Hostile::client("sip", sdp(&"m=audio 5000 RTP/AVP 0\r\nc=IN IP4 10.0.0.1\r\na=rtcp:5009\r\n".repeat(8))),
        Hostile::client("sip", sdp(&"\n".repeat(3_900))),
        Hostile::client("sip", format!("MESSAGE sip:x SIP/2.0\r\nl:3900\r\n\r\n{}", "\r\n".repeat(1_950))),
        Hostile::client("rtsp", "OPTIONS * RTSP/1.0\r\n\r\n\r\n\r\n\r\n\r\n"),
        Hostile::client("rtsp", [b"OPTIONS * RTSP/1.0\r\n\r\n".to_vec(), [b'$', 0, 0, 0].repeat(1_000)].concat()),
        Hostile::client("rtsp", rtsp(&",".repeat(490))),
        Hostile::client("rtsp", rtsp(&";".repeat(490))),
        Hostile::client("rtsp", rtsp(&"\"".repeat(491))),
        Hostile::client("rtsp", rtsp(&format!("RTP/AVP{}", ";client_port=".repeat(36)))),
        Hostile::client("rtsp", rtsp(&"RTP/AVP;client_port=5000-5001,".repeat(8))),
        Hostile::client("rtsp", rtsp(&"RTP/AVP;interleave".repeat(27))),
        Hostile::client("rtsp", format!("OPTIONS {} RTSP/1.0\r\n{}\r\n", "x".repeat(480), "a:\r\n".repeat(890))),
        Hostile::pptp([0, 16, 0, 1, 0x1a, 0x2b, 0x3c, 0x4d, 0, 5, 0, 0, 0, 0, 0, 0]),
        Hostile::pptp([0, 16, 0, 1, 0x1a, 0x2b, 0x3c, 0x4d, 0, 12, 0, 0, 0, 1, 0, 0]),
        Hostile::pptp([&[0, 168, 0, 1, 0x1a, 0x2b, 0x3c, 0x4d, 0, 7, 0, 0, 0, 1][..], &[0; 154]].concat()),
        Hostile::pptp([0, 16, 0, 1, 0x1a]),
    ]
}

fn assert_linear(what: &str, bytes: usize, repeated: usize) {
    let (work, bound) = (super::take(), EACH_BYTE * bytes as u64 + EACH_REPEATED * repeated as u64);
    assert!(work >= bytes as u64, "{what}: {work} for {bytes} bytes is too little to be all");
    assert!(work <= bound, "{what}: {work} for {bytes} bytes and {repeated} repeated segments, more than {bound}");
}

/// Cuts what is to be sent as `sizes` say, in turn.
fn pieces<'a>(bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle();
    core::iter::from_fn(move || {
        let size = rest.len().min(*sizes.next()?);
        let (piece, after) = rest.split_at(size);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[test]
fn the_work_of_each_parser_is_linear() {
    for (number, hostile) in hostile().iter().enumerate() {
        for (sizes, total) in SIZES.iter().flat_map(|sizes| TOTALS.map(|total| (*sizes, total))) {
            let mut host = Host::new(hostile.alg, 5_060, Transport::Tcp);
            host.client_is_inside = !hostile.is_server_inside;
            let mut talk = Talk::new(host);
            let send = |talk: &mut Talk, from_client: bool, bytes: &[u8]| {
                if from_client { talk.client(bytes) } else { talk.server(bytes) }
            };
            for (from_client, bytes) in &hostile.before {
                send(&mut talk, *from_client, bytes);
            }
            super::take();
            let mut bytes = 0;
            while bytes < total {
                for (from_client, message) in &hostile.repeated {
                    // Short ones fill a segment.
                    let message = if hostile.repeated.len() == 1 {
                        message.repeat(600 / message.len() + 1)
                    } else {
                        message.clone()
                    };
                    for piece in pieces(&message, sizes) {
                        send(&mut talk, *from_client, piece);
                        bytes += piece.len();
                    }
                }
            }
            assert_linear(&format!("{} number {number} in segments of {sizes:?}", hostile.alg), bytes, 0);
        }
    }
}

/// Messages that wait because nobody acknowledges what was changed before them: what comes
/// meanwhile, and what is repeated, is not read again and again.
#[test]
fn the_work_of_a_message_that_waits_is_linear() {
    let via = sip("OPTIONS", "sip:x", &"v:SIP/2.0/TCP 10.0.0.1:5060\r\n".repeat(15));
    let transport = rtsp(&"RTP/AVP;client_port=5000-5001,".repeat(8));
    for (alg, message) in [("sip", &via), ("rtsp", &transport)] {
        for size in [1, 7, 100] {
            let mut host = Host::new(alg, 5_060, Transport::Tcp);
            let mut sender = Sender::new();
            super::take();
            let (mut bytes, mut passed) = (0, 1);
            // Until nothing passes any more.
            while passed > 0 {
                passed = sender.send(&mut host, message);
                bytes += message.len();
                assert!(bytes < 100 * message.len(), "corrections run out");
            }
            for piece in message.repeat(8).chunks(size) {
                assert_eq!(sender.send(&mut host, piece), 0, "it waits");
                assert_eq!(sender.repeat(&mut host, piece), 0, "it still waits");
                bytes += 2 * piece.len();
                if sender.held() > crate::MESSAGE_MAX - 2 * message.len() {
                    break;
                }
            }
            assert_linear(&format!("{alg} in segments of {size}"), bytes, 0);
            sender.acknowledge();
            assert!(sender.repeat(&mut host, &message[message.len() - 1..]) > 0, "it goes on");
        }
    }
}

/// What was changed and is not acknowledged is repeated byte by byte.
#[test]
fn the_work_of_repetitions_is_linear() {
    let message = rtsp(&"RTP/AVP;client_port=5000-5001,".repeat(8));
    let mut host = Host::new("rtsp", 5_060, Transport::Tcp);
    let mut sender = Sender::new();
    let all = message.repeat(crate::CORRECTIONS_MAX / 8);
    assert!(sender.send(&mut host, &all) > 0);
    super::take();
    let mut bytes = 0;
    for round in 1..=8 {
        for from in 0..all.len() {
            let to = (from + round).min(all.len());
            sender.repeat(&mut host, &all[from..]);
            sender.repeat_part(&mut host, &all, from, to);
            bytes += all.len() - from + to - from;
        }
        assert_linear(&format!("{round} bytes"), bytes, 2 * all.len());
        bytes = 0;
    }
}

/// Datagrams have no segments: one reading each.
#[test]
fn the_work_of_datagrams_is_linear() {
    let strings = |text: &str| [&[0, 1][..], text.as_bytes()].concat();
    let datagrams = [
        ("tftp", strings(&"\0".repeat(512))),
        ("tftp", strings(&format!("{}\0octet\0", "x".repeat(500)))),
        ("tftp", strings(&"octet\0".repeat(80))),
        ("tftp", vec![0; 4_000]),
        ("sip", sip("REGISTER", "sip:x", &format!("m:{}\r\n", "<sip:@?".repeat(70)).repeat(7))),
        ("sip", sip("REGISTER", &"@".repeat(480), &"a:\r\n".repeat(890))),
        ("sip", sdp(&"m=audio 5000 RTP/AVP 0\r\nc=IN IP4 10.0.0.1\r\na=rtcp:5009\r\n".repeat(8))),
        ("sip", sdp(&"\n".repeat(3_900))),
    ];
    for (alg, datagram) in datagrams {
        let mut host = Host::new(alg, 5_060, Transport::Udp);
        for from_client in [true, false] {
            super::take();
            host.message(from_client, &datagram);
            assert_linear(&format!("{alg}, {} bytes", datagram.len()), datagram.len(), 0);
        }
    }
}

/// What is counted is all: the parsers have no readers of bytes of their own.
#[test]
fn the_parsers_read_bytes_by_counted_readers_only() {
    let parsers = [
        include_str!("../ftp.rs"),
        include_str!("../sip.rs"),
        include_str!("../sip/named.rs"),
        include_str!("../sip/sdp.rs"),
        include_str!("../rtsp.rs"),
        include_str!("../tftp.rs"),
        include_str!("../pptp.rs"),
    ];
    let uncounted = [
        ".position(|byte",
        ".rposition(",
        ".take_while(",
        ".windows(",
        ".split(",
        ".chunks",
        ".contains(",
        ".skip(",
        "eq_ignore_ascii_case",
        ".starts_with(",
        ".ends_with(",
        "bytes.iter()",
        "message.iter()",
        "line.iter()",
    ];
    for parser in parsers {
        for reader in uncounted {
            assert!(!parser.contains(reader), "{reader} in {}", parser.lines().next().unwrap());
        }
    }
}
