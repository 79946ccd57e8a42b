//! Control sessions of gateways, requests of port control, and packets to what they asked for.
//!
//! Random segments are never a conversation, so both ends of a connection keep the numbers that
//! they believe in, and say whole messages, parts of them, or anything.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Protocol;
use nat::types::Side;
use testkit::Ask;
use testkit::E1;
use testkit::I1;
use testkit::I2;
use testkit::I3;
use testkit::OWN_INSIDE;
use testkit::POOL;
use testkit::at;
use testkit::packet;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;
use wire::tcp::Tcp;

use crate::dice::Dice;

/// Connections at a time.
const CONNECTIONS: usize = 4;
const SERVERS: [u16; 4] = [21, 5_060, 554, 1_723];
const HOSTS: [Ipv4Addr; 4] = [I1, I2, I1, I3];
/// The message of its connection that `phrase` does not know by number.
const ANYTHING: u8 = 15;

/// What the inside says in FTP, SIP, RTSP and PPTP, as if it were `I1`.
const FROM_INSIDE: [&[&[u8]]; 4] = [
    &[
        b"USER a\r\n",
        b"PORT 100,64,0,10,18,52\r\n",
        b"EPRT |1|100.64.0.10|4661|\r\n",
        b"PASV\r\n",
        b"EPSV\r\n",
        b"RETR f\r\n",
        b"AUTH TLS\r\n",
    ],
    &[
        b"REGISTER sip:x SIP/2.0\r\nVia: SIP/2.0/TCP 100.64.0.10:5060\r\nContact: <sip:a@100.64.0.10:5062>;expires=60\r\nl: 0\r\n\r\n",
        b"INVITE sip:x SIP/2.0\r\nContact: <sip:a@100.64.0.10>\r\nc: application/sdp\r\nl: 55\r\n\r\nv=0\r\nc=IN IP4 100.64.0.10\r\nm=audio 6000 RTP/AVP 0 8 3\r\n",
        b"SIP/2.0 200 OK\r\nVia: SIP/2.0/TCP 198.51.100.1\r\nContact: <sip:a@100.64.0.10:5061>\r\nl: 0\r\n\r\n",
        b"\r\n\r\n",
    ],
    &[
        b"SETUP rtsp://x/a RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5004-5005\r\n\r\n",
        b"SETUP rtsp://x/b RTSP/2.0\r\nTransport: RTP/AVP/UDP;unicast;dest_addr=\":5006\"/\":5007\"\r\n\r\n",
        b"$\0\0\x04abcd",
    ],
    &[
        b"\0\x10\0\x01\x1a\x2b\x3c\x4d\0\x05\0\0\0\0\0\0",
        b"\0\x10\0\x01\x1a\x2b\x3c\x4d\0\x0c\0\0\0\x07\0\0",
    ],
];

/// What the outside says.
const FROM_OUTSIDE: [&[&[u8]]; 4] = [
    &[b"220 x\r\n", b"227 (198,51,100,1,18,52)\r\n", b"150 go\r\n", b"226 done\r\n", b"234 yes\r\n", b"220-x\r\n"],
    &[
        b"SIP/2.0 200 OK\r\nVia: SIP/2.0/TCP 203.0.113.1:5060\r\nl: 0\r\n\r\n",
        b"INVITE sip:a@203.0.113.1:5062 SIP/2.0\r\nVia: SIP/2.0/TCP 198.51.100.1\r\nl: 0\r\n\r\n",
    ],
    &[b"RTSP/1.0 200 OK\r\nTransport: RTP/AVP;unicast;client_port=5004-5005;server_port=7000-7001\r\n\r\n"],
    &[b"\0\x10\0\x01\x1a\x2b\x3c\x4d\0\x05\0\0\0\0\0\0"],
];

/// Start of a connection, and the request or reply of a call.
fn pptp(from_inside: bool, dice: &mut Dice<'_>) -> Vec<u8> {
    let choice = dice.byte();
    let (kind, length): (u16, u16) = match (choice & 1, from_inside) {
        (0, true) => (1, 156),
        (0, false) => (2, 156),
        (_, true) => (7, 168),
        (_, false) => (8, 32),
    };
    let mut bytes = vec![0; usize::from(length)];
    bytes[..2].copy_from_slice(&length.to_be_bytes());
    bytes[2..8].copy_from_slice(&[0, 1, 0x1a, 0x2b, 0x3c, 0x4d]);
    bytes[8..10].copy_from_slice(&kind.to_be_bytes());
    bytes[12..14].copy_from_slice(&[choice >> 6, 1]);
    if kind == 8 {
        bytes[14..16].copy_from_slice(&dice.word().to_be_bytes());
    }
    if kind != 7 {
        bytes[16..18].copy_from_slice(&[1, 0]);
    }
    bytes
}

/// A TCP connection and the numbers that both ends believe in.
struct Connection {
    inside: SocketAddrV4,
    remote: SocketAddrV4,
    /// As the remote host knows the inside.
    external: Option<SocketAddrV4>,
    /// Next to send, and next expected.
    inner: (u32, u32),
    outer: (u32, u32),
}

/// All conversations.
#[derive(Default)]
pub(crate) struct Talks {
    connections: Vec<Connection>,
    /// Protocol and external endpoint of each grant now.
    pub(crate) granted: Vec<(Protocol, SocketAddrV4)>,
}

/// The number behind a segment, and what it belongs to.
fn end_of(packet: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, u32, bool)> {
    let ip = Ipv4::new_checked(packet).ok().filter(|ip| ip.protocol() == 6 && !ip.is_fragment())?;
    let tcp = Tcp::new_checked(ip.payload()).ok()?;
    let is_syn = tcp.flags().contains(Flags::SYN);
    let length = tcp.payload().len() as u32 + u32::from(is_syn) + u32::from(tcp.flags().contains(Flags::FIN));
    Some((packet::source(packet), packet::destination(packet), tcp.sequence().wrapping_add(length), is_syn))
}

fn is_later(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) > 0
}

impl Talks {
    /// Ends learn what they got.
    pub(crate) fn note_out(&mut self, side: Side, packet: &[u8]) {
        let Some((source, destination, end, is_syn)) = end_of(packet) else { return };
        for connection in &mut self.connections {
            let got = match side {
                Side::Outside if destination == connection.remote => {
                    if is_syn {
                        connection.external.get_or_insert(source);
                    }
                    (connection.external == Some(source)).then_some(&mut connection.outer.1)
                }
                Side::Inside if source == connection.remote && destination == connection.inside => {
                    Some(&mut connection.inner.1)
                }
                _ => None,
            };
            if let Some(got) = got.filter(|got| if is_syn { **got == 0 } else { is_later(**got, end) }) {
                *got = end;
            }
        }
    }

    pub(crate) fn next(&mut self, kind: u8, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        match kind {
            0 => self.open(dice),
            1 => self.syn(dice),
            2 => self.answer(dice),
            3..=6 => self.say(true, dice),
            7..=9 => self.say(false, dice),
            10 | 11 => datagram(dice),
            12 => (Side::Inside, nat_pmp(dice)),
            13 | 14 => (Side::Inside, pcp(dice)),
            _ => self.to_granted(dice),
        }
    }

    fn open(&mut self, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        let choice = dice.byte();
        let inside = at(HOSTS[usize::from(choice & 3)], 30_000 + u16::from(choice >> 4));
        let remote = at(E1, SERVERS[usize::from(choice >> 2 & 3)]);
        if self.connections.len() == CONNECTIONS {
            self.connections.remove(0);
        }
        let (inner, outer) = ((1_001, 0), (5_000, 0));
        self.connections.push(Connection { inside, remote, external: None, inner, outer });
        (Side::Inside, build::tcp(inside, remote, Flags::SYN).sequence(1_000).mss(1_460).build())
    }

    fn answer(&mut self, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        let nothing = (Side::Outside, Vec::new());
        let choice = usize::from(dice.byte()) % self.connections.len().max(1);
        let Some(Connection { remote, external: Some(external), outer, .. }) = self.connections.get_mut(choice) else {
            return nothing;
        };
        outer.0 = 5_001;
        let segment = build::tcp(*remote, *external, Flags::SYN | Flags::ACK).sequence(5_000).acknowledgment(outer.1);
        (Side::Outside, segment.mss(1_460).build())
    }

    /// A SYN or SYN-ACK of a connection, repeated or forged.
    fn syn(&mut self, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        let choice = dice.byte();
        let connection = self.connections.get(usize::from(choice & 3) % self.connections.len().max(1));
        let Some(Connection { inside, remote, external: Some(external), .. }) = connection else {
            return self.open(dice);
        };
        let flags = if choice & 4 == 0 { Flags::SYN } else { Flags::SYN | Flags::ACK };
        let (side, from, to, repeated) = match choice & 8 {
            0 => (Side::Inside, *inside, *remote, (1_000, 5_001)),
            _ => (Side::Outside, *remote, *external, (5_000, 1_001)),
        };
        let sequence = if choice & 16 == 0 { repeated.0 } else { dice.word().into() };
        let ack = if choice & 32 == 0 { repeated.1 } else { dice.word().into() };
        let payload: &[u8] = if choice >> 6 == 3 { b"x" } else { b"" };
        (side, build::tcp(from, to, flags).sequence(sequence).acknowledgment(ack).payload(payload).build())
    }

    /// A message, or part of one, in order, again, or with a gap before it.
    fn say(&mut self, from_inside: bool, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        let side = if from_inside { Side::Inside } else { Side::Outside };
        let (which, phrase, how) = (dice.byte(), dice.byte(), dice.byte());
        let choice = usize::from(which & 3) % self.connections.len().max(1);
        let Some(connection) = self.connections.get_mut(choice) else { return (side, Vec::new()) };
        let Some(external) = connection.external else { return (side, Vec::new()) };
        let server = SERVERS.iter().position(|port| *port == connection.remote.port()).unwrap_or(0);
        let known = if from_inside { FROM_INSIDE } else { FROM_OUTSIDE }[server];
        let mut text = match phrase & 15 {
            ANYTHING => dice.bytes(usize::from(how)).to_vec(),
            8.. if server == 3 => pptp(from_inside, dice),
            number => known[usize::from(number) % known.len()].to_vec(),
        };
        if how & 1 != 0 {
            text = text.repeat(1 + usize::from(phrase >> 6));
        }
        if how & 2 != 0 {
            text.truncate(usize::from(dice.byte()));
        }
        let (ends, numbers) = if from_inside {
            ((connection.inside, connection.remote), &mut connection.inner)
        } else {
            ((connection.remote, external), &mut connection.outer)
        };
        let sequence = match how >> 2 & 7 {
            0 => numbers.0.wrapping_sub(u32::from(dice.byte())),
            1 => numbers.0.wrapping_add(u32::from(dice.byte())),
            _ => numbers.0,
        };
        let flags = if how & 0xe0 == 0xe0 { Flags::FIN | Flags::ACK } else { Flags::ACK };
        let segment = build::tcp(ends.0, ends.1, flags).sequence(sequence).acknowledgment(numbers.1).payload(&text);
        let end = sequence.wrapping_add(text.len() as u32);
        if is_later(numbers.0, end) {
            numbers.0 = end;
        }
        (side, segment.build())
    }

    /// From the peer or from a stranger to a port that was asked for.
    fn to_granted(&self, dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
        let Some(&(protocol, external)) = dice.pick_some(&self.granted) else { return (Side::Outside, Vec::new()) };
        let choice = dice.byte();
        let host = if choice & 3 == 0 { testkit::E2 } else { E1 };
        let from = at(host, [20, 5_060, 7_000, 7_001][usize::from(choice >> 2 & 3)]);
        let packet = match protocol {
            Protocol::Tcp => build::tcp(from, external, Flags::SYN).sequence(9).build(),
            Protocol::Udp => build::udp(from, external).payload(b"data").build(),
            _ => gre(host, *external.ip(), external.port()),
        };
        (Side::Outside, packet)
    }
}

fn gre(from: Ipv4Addr, to: Ipv4Addr, call: u16) -> Vec<u8> {
    let [high, low] = call.to_be_bytes();
    build::raw(from, to, 47).payload(&[0x30, 1, 0x88, 0x0b, 0, 5, high, low, 0, 0, 0, 1, 1, 2, 3, 4, 5]).build()
}

/// SIP and TFTP over UDP, from either side, and what a call tunnels.
fn datagram(dice: &mut Dice<'_>) -> (Side, Vec<u8>) {
    let (choice, phrase) = (dice.byte(), dice.byte());
    let host = HOSTS[usize::from(choice & 3)];
    let said = |list: &[&'static [u8]]| list[usize::from(phrase) % list.len()];
    match choice >> 2 & 7 {
        0..=3 => (Side::Inside, build::udp(at(host, 5_060), at(E1, 5_060)).payload(said(FROM_INSIDE[1])).build()),
        4 => {
            (Side::Outside, build::udp(at(E1, 5_060), at(POOL[0], dice.word())).payload(said(FROM_OUTSIDE[1])).build())
        }
        5 => (Side::Inside, build::udp(at(host, 3_000), at(E1, 69)).payload(b"\0\x01file\0octet\0").build()),
        6 => (Side::Inside, gre(host, E1, u16::from(phrase))),
        _ => {
            let length = usize::from(phrase);
            (Side::Inside, build::udp(at(host, 5_060), at(E1, 5_060)).payload(dice.bytes(length)).build())
        }
    }
}

fn pcp(dice: &mut Dice<'_>) -> Vec<u8> {
    let (choice, how) = (dice.byte(), dice.byte());
    let host = HOSTS[usize::from(choice & 3)];
    let protocol = if choice & 4 == 0 { Protocol::Udp } else { Protocol::Tcp };
    let port = [5_000, 5_001, 6_000, 4_660, 0, 7_000, 7_001, 40_000][usize::from(choice >> 3 & 7)];
    let mut ask = match how & 7 {
        0 => Ask::peer(host, protocol, port, at(E1, 80)),
        1 => Ask::announce(host),
        _ => Ask::map(host, protocol, port),
    };
    ask = ask.lifetime([600, 0, 120, u32::MAX][usize::from(how >> 3 & 3)]).nonce(1 + (choice >> 7));
    ask = match how >> 5 {
        0 | 1 => ask,
        2 => ask.suggest(at(POOL[0], 2_000 + u16::from(choice >> 4))),
        3 => ask.filter(128, at(E1, 0)),
        4 => ask.prefer_failure().suggest(at(POOL[0], 2_001)),
        5 => ask.third_party(I2),
        6 => ask.set(4, choice & 64 != 0),
        _ => ask.option(dice.byte(), &dice.word().to_be_bytes()),
    };
    ask.packet()
}

fn nat_pmp(dice: &mut Dice<'_>) -> Vec<u8> {
    let choice = dice.byte();
    let mut message = vec![0, choice & 3];
    if choice & 3 != 0 {
        message.extend([0, 0]);
        message.extend((5_000 + u16::from(choice >> 2 & 3)).to_be_bytes());
        message.extend(dice.word().to_be_bytes());
        message.extend(u32::from(if choice & 64 == 0 { 600 } else { 0_u16 }).to_be_bytes());
    }
    let host = HOSTS[usize::from(choice >> 4 & 3)];
    build::udp(at(host, 40_000), at(OWN_INSIDE, pcp::SERVER_PORT)).payload(&message).build()
}
