//! An FTP transfer and a SIP call, on both sides of a NAT with a one-to-one address, so that each
//! side is known before: 100.64.0.10 is 203.0.113.10 outside.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use wire::ipv4::Ipv4;

use super::Capture;
use super::conversation::CLIENT;
use super::conversation::Connection;
use super::conversation::Link;
use super::conversation::SERVER;
use crate::topology::E1;
use crate::topology::I1;
use crate::topology::at;

const EXTERNAL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);

/// What the hosts on each side send.
struct Sides {
    inside: Link,
    outside: Link,
}

/// Packets with their times.
type Timed = Vec<(Duration, Vec<u8>)>;

/// A conversation as each side has it: `speak` gets the address that the subscriber has there.
fn sides(speak: impl Fn(&mut Link, Ipv4Addr)) -> Sides {
    let [mut inside, mut outside] = [Link::default(), Link::default()];
    speak(&mut inside, I1);
    speak(&mut outside, EXTERNAL);
    let is_of = |packet: &[u8], host: Ipv4Addr| Ipv4::new_unchecked(packet).source() == host.to_bits();
    inside.packets.retain(|(_, packet)| is_of(packet, I1));
    outside.packets.retain(|(_, packet)| !is_of(packet, EXTERNAL));
    Sides { inside, outside }
}

/// An active transfer: `PORT`, and the server connects.
fn transfer(link: &mut Link, client: Ipv4Addr) {
    let mut control = Connection::open(link, at(client, 40_000), at(E1, 21));
    let [a, b, c, d] = client.octets();
    let port = format!("PORT {a},{b},{c},{d},18,52\r\n");
    for (end, text) in [
        (SERVER, "220 ready\r\n"),
        (CLIENT, "USER anonymous\r\n"),
        (SERVER, "230 in\r\n"),
        (CLIENT, &port),
        (SERVER, "200 ok\r\n"),
        (CLIENT, "RETR film\r\n"),
    ] {
        control.say(link, end, text);
    }
    // The server is the client of the data connection.
    let mut data = Connection::open(link, at(E1, 20), at(client, 4_660));
    control.say(link, SERVER, "150 go\r\n");
    data.say(link, CLIENT, [b'f'; 1_000]);
    data.close(link, CLIENT);
    control.say(link, SERVER, "226 done\r\n");
    control.say(link, CLIENT, "QUIT\r\n");
    control.say(link, SERVER, "221 bye\r\n");
    control.close(link, SERVER);
}

/// A call to a server outside: sound and its reports both ways.
fn call(link: &mut Link, phone: Ipv4Addr) {
    let (own, proxy) = (at(phone, 5_060), at(E1, 5_060));
    let sdp = |address: Ipv4Addr, port: u16| {
        format!("v=0\r\no=- 1 1 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n")
    };
    let via = format!("Via: SIP/2.0/UDP {own};branch=z9hG4bK1\r\n");
    let dialogue =
        "From: <sip:alice@example.net>;tag=a\r\nTo: <sip:bob@example.net>;tag=b\r\nCall-ID: 1@example.net\r\n";
    let with_body = |head: String, body: &str| {
        format!("{head}Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let contact = format!("Contact: <sip:alice@{own}>\r\n");
    let invite = format!("INVITE sip:bob@{} SIP/2.0\r\n{via}{contact}{dialogue}CSeq: 1 INVITE\r\n", E1);
    let answer = format!("SIP/2.0 200 OK\r\n{via}Contact: <sip:bob@{proxy}>\r\n{dialogue}CSeq: 1 INVITE\r\n");
    let ack = format!("ACK sip:bob@{E1} SIP/2.0\r\n{via}{dialogue}CSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n");
    let bye = format!("BYE sip:bob@{E1} SIP/2.0\r\n{via}{dialogue}CSeq: 2 BYE\r\nContent-Length: 0\r\n\r\n");
    let done = format!("SIP/2.0 200 OK\r\n{via}{dialogue}CSeq: 2 BYE\r\nContent-Length: 0\r\n\r\n");
    link.datagram(own, proxy, with_body(invite, &sdp(phone, 5_004)).as_bytes());
    link.datagram(proxy, own, with_body(answer, &sdp(E1, 20_000)).as_bytes());
    link.datagram(own, proxy, ack.as_bytes());
    let ends = |plus: u16| (SocketAddrV4::new(phone, 5_004 + plus), SocketAddrV4::new(E1, 20_000 + plus));
    for (plus, sound) in [(0, &[0x80; 172][..]), (1, &[0x81; 28])] {
        let (ear, mouth) = ends(plus);
        // The other side speaks first, so that the port must have been expected.
        link.datagram(mouth, ear, sound);
        link.datagram(ear, mouth, sound);
    }
    link.datagram(own, proxy, bye.as_bytes());
    link.datagram(proxy, own, done.as_bytes());
}

/// Both, from both sides.
pub fn replayed() -> Vec<Capture> {
    let capture = |name: &str, packets: Timed| Capture { path: format!("examples/captures/{name}.pcap"), packets };
    let [ftp, sip] = [sides(transfer), sides(call)];
    vec![
        capture("ftp-inside", ftp.inside.packets),
        capture("ftp-outside", ftp.outside.packets),
        capture("sip-inside", sip.inside.packets),
        capture("sip-outside", sip.outside.packets),
    ]
}
