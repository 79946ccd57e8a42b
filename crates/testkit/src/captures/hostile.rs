//! What other gateways stumbled over.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use wire::build;

use super::Capture;
use super::conversation::CLIENT;
use super::conversation::Connection;
use super::conversation::Link;
use super::conversation::SERVER;
use super::hostile_path;
use crate::topology::E1;
use crate::topology::I1;
use crate::topology::I2;
use crate::topology::at;

const PORT: &str = "PORT 100,64,0,10,18,52\r\n";
const REGISTER: &str =
    "REGISTER sip:x SIP/2.0\r\nContact: <sip:a@100.64.0.10:9999>\r\nCSeq: 1 REGISTER\r\nContent-Length: 0\r\n\r\n";
const SETUP: &str = "SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n";
const GREETING: (usize, &str) = (SERVER, "220 ready\r\n");
const USER: (usize, &str) = (CLIENT, "USER me\r\n");

/// What a web page can have a browser send, to open a port of a host behind the NAT. Each is the
/// name of a capture.
pub const SLIPSTREAMS: [&str; 23] = [
    "slipstream-ftp-post-first",
    "slipstream-ftp-post-after-220",
    "slipstream-ftp-port-first",
    "slipstream-ftp-user-before-220",
    "slipstream-ftp-port-after-220",
    "slipstream-ftp-user-request",
    "slipstream-ftp-long-line",
    "slipstream-ftp-bare-lf",
    "slipstream-ftp-bare-cr",
    "slipstream-ftp-http-server",
    "slipstream-ftp-gap",
    "slipstream-ftp-after-auth-tls",
    "slipstream-ftp-address-of-another",
    "slipstream-ftp-port-below-1024",
    "slipstream-sip-post",
    "slipstream-sip-segment-after-post",
    "slipstream-sip-body",
    "slipstream-sip-two-lengths",
    "slipstream-sip-picked-up",
    "slipstream-sip-udp-fragment",
    "slipstream-rtsp-get",
    "slipstream-rtsp-interleaved-first",
    "slipstream-pptp-post",
];

fn exchange(name: &str) -> Vec<(usize, String)> {
    let texts: Vec<(usize, &str)> = match name {
        "slipstream-ftp-post-first" => vec![(CLIENT, POST), (CLIENT, PORT)],
        "slipstream-ftp-post-after-220" => vec![GREETING, (CLIENT, POST), (CLIENT, PORT)],
        "slipstream-ftp-port-first" => vec![(CLIENT, PORT)],
        "slipstream-ftp-user-before-220" => vec![USER, GREETING, (CLIENT, PORT)],
        "slipstream-ftp-port-after-220" => vec![GREETING, (CLIENT, PORT)],
        // A method that is a command: the fields and the empty line are not.
        "slipstream-ftp-user-request" => {
            vec![GREETING, (CLIENT, "USER / HTTP/1.1\r\nHost: x\r\n\r\nPORT 100,64,0,10,18,52\r\n")]
        }
        "slipstream-ftp-long-line" => {
            return vec![
                (SERVER, "220 ready\r\n".to_owned()),
                (CLIENT, format!("USER {}", "a".repeat(600))),
                (CLIENT, PORT.to_owned()),
            ];
        }
        "slipstream-ftp-bare-lf" => vec![GREETING, (CLIENT, "USER a\nPORT 100,64,0,10,18,52\r\n")],
        "slipstream-ftp-bare-cr" => vec![GREETING, (CLIENT, "USER a\rPORT 100,64,0,10,18,52\r\n")],
        "slipstream-ftp-http-server" => vec![(SERVER, "HTTP/1.1 200 OK\r\n\r\n"), (CLIENT, PORT)],
        "slipstream-ftp-after-auth-tls" => {
            vec![GREETING, (CLIENT, "AUTH TLS\r\n"), (SERVER, "234 go\r\n"), (CLIENT, PORT)]
        }
        "slipstream-ftp-address-of-another" => vec![GREETING, USER, (CLIENT, "PORT 100,64,0,11,18,52\r\n")],
        "slipstream-ftp-port-below-1024" => vec![GREETING, USER, (CLIENT, "PORT 100,64,0,10,0,22\r\n")],
        "slipstream-sip-post" => vec![(CLIENT, POST), (CLIENT, REGISTER)],
        // The gateway is enabled after the handshake.
        "slipstream-sip-picked-up" => vec![(CLIENT, REGISTER)],
        "slipstream-sip-segment-after-post" => {
            // The request begins a segment, which is not the start of a message.
            return vec![(CLIENT, format!("{POST}{}", "x".repeat(1_360))), (CLIENT, REGISTER.to_owned())];
        }
        "slipstream-sip-body" => {
            let length = REGISTER.len();
            return vec![(CLIENT, format!("MESSAGE sip:x SIP/2.0\r\nContent-Length: {length}\r\n\r\n{REGISTER}"))];
        }
        "slipstream-sip-two-lengths" => {
            vec![(CLIENT, "MESSAGE sip:x SIP/2.0\r\nContent-Length: 5\r\nl: 0\r\n\r\n"), (CLIENT, REGISTER)]
        }
        "slipstream-rtsp-get" => vec![(CLIENT, "GET / HTTP/1.1\r\n\r\n"), (CLIENT, SETUP)],
        "slipstream-rtsp-interleaved-first" => vec![(CLIENT, "$\0\0\u{4}abcd"), (CLIENT, SETUP)],
        "slipstream-pptp-post" => {
            vec![(CLIENT, POST), (CLIENT, "\0\u{10}\0\u{1}\u{1a}+<M\0\u{5}\0\0\0\0\0\0")]
        }
        _ => Vec::new(),
    };
    texts.into_iter().map(|(end, text)| (end, text.to_owned())).collect()
}

fn slipstream(name: &'static str) -> Capture {
    let mut link = Link::default();
    let port = match name.split('-').nth(1) {
        Some("ftp") => 21,
        Some("rtsp") => 554,
        Some("pptp") => 1_723,
        _ => 5_060,
    };
    let (browser, server) = (at(I1, 41_000), at(E1, port));
    match name {
        "slipstream-sip-udp-fragment" => {
            // The second fragment begins with the request.
            let payload = [vec![b'x'; 1_472], REGISTER.as_bytes().to_vec()].concat();
            let datagram = build::udp(at(I1, 5_060), server).payload(&payload).build();
            build::fragment(&datagram, 1_500).into_iter().for_each(|fragment| link.carry(fragment));
        }
        "slipstream-ftp-gap" => {
            let mut connection = logged_in(&mut link, browser);
            // Alone, the second segment would be a command; with the first it is an argument.
            connection.say_ahead(&mut link, CLIENT, 5, PORT.as_bytes());
            connection.say(&mut link, CLIENT, "STAT ");
            connection.say(&mut link, CLIENT, PORT);
        }
        _ => {
            let mut connection = Connection::open(&mut link, browser, server);
            for (end, text) in exchange(name) {
                connection.say(&mut link, end, text);
            }
        }
    }
    Capture { path: hostile_path(name), packets: link.packets }
}

fn logged_in(link: &mut Link, client: SocketAddrV4) -> Connection {
    let mut connection = Connection::open(link, client, at(E1, 21));
    for (end, text) in [GREETING, USER, (SERVER, "331 password\r\n"), (CLIENT, "PASS x\r\n"), (SERVER, "230 in\r\n")] {
        connection.say(link, end, text);
    }
    connection
}

/// Many messages in one stream, with headers that are hard to delimit: a loop without an end.
fn odd_headers(link: &mut Link) {
    let odd = [
        "OPTIONS sip:x SIP/2.0\r\n:\r\nVia:\r\n \r\n\t\r\nContent-Length: 0\r\n\r\n",
        "OPTIONS sip:x SIP/2.0\r\nVia\r\n: : :\r\n;;,,\r\nl:0\r\n\r\n",
        "OPTIONS sip:x SIP/2.0\r\nContact: <<<>>>,,,;\r\nContent-Length:\t 0 \r\n\r\n",
        "\r\n\r\n\r\nOPTIONS sip:x SIP/2.0\r\nContent-Length: 0\r\n\r\n\r\n\r\n",
        "SIP/2.0 200\r\nVia: ,\r\n,\r\nContent-Length: 0\r\n\r\n",
        "OPTIONS sip:x SIP/2.0\r\nVia: SIP/2.0/TCP \r\nContent-Length: 00000000000000000000\r\n\r\n",
        "OPTIONS sip:x SIP/2.0\r\nContent-Length: -1\r\n\r\n",
        "OPTIONS sip:x SIP/2.0\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    ];
    for (port, message) in (40_000..).zip(odd) {
        let mut connection = Connection::open(link, at(I1, port), at(E1, 5_060));
        connection.say(link, CLIENT, message.repeat(1_400 / message.len()));
        // The last one in pieces.
        for piece in message.as_bytes().chunks(7) {
            connection.say(link, CLIENT, piece);
        }
    }
}

/// Malformed messages that each left a port behind.
fn malformed_messages(link: &mut Link) {
    for i in 0..96 {
        let sdp = format!("v=0\r\nc=IN IP4 100.64.0.10\r\nm=audio {} RTP/AVP 0\r\n", 2_000 + 2 * i);
        let (length, longer) = (sdp.len(), sdp.len() + 9);
        let head = "Content-Type: application/sdp\r\nContent-Length:";
        let message = match i % 6 {
            0 => format!("INVITE sip:x SIP/2.0\r\n{head} {longer}\r\n\r\n{sdp}"),
            1 => format!("INVITE sip:x SIP/2.0\r\n{head} x\r\n\r\n{sdp}"),
            2 => format!("INVITE\r\n{head} {length}\r\n\r\n{sdp}"),
            3 => format!("INVITE sip:x SIP/9.0\r\n{head} {length}\r\n\r\n{sdp}"),
            4 => format!("\r\n\r\nINVITE sip:x SIP/2.0\r\n\0: x\r\n{head} {length}\r\n\r\n{sdp}"),
            _ => "INVITE sip:x SIP/2.0\r\nContact: <sip:a@100.64.0.10:99999>\r\n".to_owned(),
        };
        link.datagram(at(I1, 5_060), at(E1, 5_060), message.as_bytes());
    }
}

/// A length that wraps around hides no second message.
fn huge_lengths(link: &mut Link) {
    let lengths = ["4294967328", "18446744073709551648", "65568", "99999999999999999999999999", "0x20", "+32"];
    for (port, length) in (40_000..).zip(lengths) {
        let mut connection = Connection::open(link, at(I1, port), at(E1, 5_060));
        let body = "x".repeat(32);
        let first = format!("MESSAGE sip:x SIP/2.0\r\nContent-Length: {length}\r\n\r\n{body}");
        connection.say(link, CLIENT, first + REGISTER);
    }
}

/// Descriptions without media: nothing gives the session an address.
fn no_media(link: &mut Link) {
    let nothing = ["", "m=audio 0 RTP/AVP 0\r\n", "m=x 5004 XYZ/1 0\r\n", "m=audio 99999 RTP/AVP 0\r\n", "m=\r\n"];
    for media in nothing {
        let sdp = format!("v=0\r\no=- 1 1 IN IP4 100.64.0.10\r\nc=IN IP4 100.64.0.10\r\n{media}");
        let head = "INVITE sip:x SIP/2.0\r\nContent-Type: application/sdp\r\nContent-Length:";
        link.datagram(at(I1, 5_060), at(E1, 5_060), format!("{head} {}\r\n\r\n{sdp}", sdp.len()).as_bytes());
    }
}

/// A command within other text is no command; IRC has no gateway at all.
fn command_within_a_line(link: &mut Link) {
    let mut irc = Connection::open(link, at(I1, 40_000), at(E1, 6_667));
    irc.say(link, CLIENT, "PRIVMSG a :\x01DCC SEND f 1681915914 9999 1\x01\r\n");
    let mut ftp = logged_in(link, at(I1, 40_001));
    for line in [
        "XPORT 100,64,0,10,18,52\r\n",
        "STAT PORT 100,64,0,10,18,52\r\n",
        " PORT 100,64,0,10,18,52\r\n",
        "PORT  x PORT 100,64,0,10,18,52\r\n",
        "PORT 100,64,0,10,18,52,PORT 100,64,0,10,18,52\r\n",
    ] {
        ftp.say(link, CLIENT, line);
    }
}

/// A request that begins a segment after 9 KB of a form is still within the form.
fn after_9_kb(link: &mut Link) {
    let starts =
        ["POST / HTTP/1.1\r\nContent-Length: 20000\r\n\r\n", "MESSAGE sip:x SIP/2.0\r\nContent-Length: 9000\r\n\r\n"];
    for (port, start) in (40_000..).zip(starts) {
        let mut connection = Connection::open(link, at(I1, port), at(E1, 5_060));
        let form = [start.as_bytes(), &[b'a'; 9_216]].concat();
        for segment in form.chunks(1_448) {
            connection.say(link, CLIENT, segment);
        }
        connection.say(link, CLIENT, REGISTER);
    }
}

/// Ten minutes of a transfer, and then ten minutes without one.
fn idle_control_connection(link: &mut Link) {
    let mut ftp = logged_in(link, at(I1, 40_000));
    ftp.say(link, CLIENT, "RETR film\r\n");
    ftp.say(link, SERVER, "150 go\r\n");
    link.wait(600);
    ftp.say(link, SERVER, "226 done\r\n");
    ftp.say(link, CLIENT, "NOOP\r\n");
    link.wait(600);
    ftp.acknowledge(link, SERVER);
}

/// Sessions of one phone each, more than a worker reads, and one more after they have ended.
fn full_table(link: &mut Link) {
    let register = |link: &mut Link, phone: SocketAddrV4| {
        let text = format!("REGISTER sip:x SIP/2.0\r\nVia: SIP/2.0/UDP {phone};branch=z9\r\nCSeq: 1 REGISTER\r\n\r\n");
        link.datagram(phone, at(E1, 5_060), text.as_bytes());
    };
    for host in 20..28 {
        (0..130).for_each(|i| register(link, at(Ipv4Addr::new(100, 64, 0, host), 10_000 + i)));
    }
    register(link, at(I2, 9_000));
    link.wait(700);
    register(link, at(I2, 9_001));
}

/// Puts the packets of a case on the link.
type Fill = fn(&mut Link);

/// All of them.
pub fn hostile() -> Vec<Capture> {
    let cases: [(&str, Fill); 8] = [
        ("cve-2026-21905", odd_headers),
        ("cve-2024-21616", malformed_messages),
        ("cve-2026-23457", huge_lengths),
        ("cve-2026-31427", no_media),
        ("cve-2022-2663", command_within_a_line),
        ("junos-9-kb-bypass", after_9_kb),
        ("idle-ftp-control", idle_control_connection),
        ("sip-table-full", full_table),
    ];
    let case = |(name, fill): (&str, Fill)| {
        let mut link = Link::default();
        fill(&mut link);
        Capture { path: hostile_path(name), packets: link.packets }
    };
    cases.into_iter().map(case).chain(SLIPSTREAMS.into_iter().map(slipstream)).collect()
}
