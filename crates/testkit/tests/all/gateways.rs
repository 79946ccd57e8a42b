//! Application-level gateways in the whole packet path.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

mod ftp;
mod limits;
mod rtsp_tftp;
mod sip;
mod switches;

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use alg::AlgId;
use nat::Protocol;
use nat::Settings;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Gateway;
use nat::types::RealmId;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;
use wire::tcp::Tcp;
use wire::udp::Udp;

const CLIENT: SocketAddrV4 = at(I1, 40_000);
const SERVER: SocketAddrV4 = at(E1, 21);
const PORT: &str = "PORT 100,64,0,10,18,52\r\n";

pub(crate) fn with(names: &[&str]) -> Settings {
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent);
    settings.gateways = names.iter().map(|name| Gateway::new(AlgId::named(name).expect("a gateway"))).collect();
    // Few, so that tests fill the table.
    settings.control_sessions_max = 1_024;
    settings
}

/// A network with an FTP server inside that a forward leads to: its endpoint inside, and the
/// external one.
pub(crate) fn server_behind_a_forward() -> (Bed, SocketAddrV4, SocketAddrV4) {
    let mut settings = with(&["ftp"]);
    let external = at(POOL[0], 21);
    settings.forwards.push(Forward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external: *external.ip(),
        ports: (21, 21),
        inside: I1.into(),
        inside_port: 21,
        admission: Admission::Anyone,
    });
    (Bed::new(settings), at(I1, 21), external)
}

pub(crate) fn tcp_of(packet: &[u8]) -> (u32, u32, Vec<u8>) {
    let ip = Ipv4::new_checked(packet).expect("a packet");
    let (source, destination) = (source(packet).ip().to_bits(), destination(packet).ip().to_bits());
    assert!(wire::checksum::is_tcp_valid(source, destination, ip.payload()), "the checksum is right");
    let tcp = Tcp::new_checked(ip.payload()).expect("a segment");
    (tcp.sequence(), tcp.acknowledgment(), tcp.payload().to_vec())
}

pub(crate) fn udp_text(packet: &[u8]) -> String {
    let ip = Ipv4::new_checked(packet).expect("a packet");
    let (source, destination) = (source(packet).ip().to_bits(), destination(packet).ip().to_bits());
    assert!(wire::checksum::is_udp_valid(source, destination, ip.payload()), "the checksum is right");
    String::from_utf8(Udp::new_checked(ip.payload()).expect("a datagram").payload().to_vec()).expect("text")
}

/// A connection through the bed, with the numbers each end believes in.
pub(crate) struct Talk {
    pub(crate) inside: SocketAddrV4,
    pub(crate) remote: SocketAddrV4,
    pub(crate) external: SocketAddrV4,
    /// Of the inside: the next to send, and the next expected.
    inner: (u32, u32),
    outer: (u32, u32),
}

impl Talk {
    pub(crate) fn open(bed: &mut Bed, inside: SocketAddrV4, remote: SocketAddrV4) -> Talk {
        let external = bed.connect(inside, remote);
        Talk::opened(inside, remote, external)
    }

    /// After a handshake with the numbers of [`Bed::connect`].
    pub(crate) fn opened(inside: SocketAddrV4, remote: SocketAddrV4, external: SocketAddrV4) -> Talk {
        Talk { inside, remote, external, inner: (1_001, 5_001), outer: (5_001, 1_001) }
    }

    /// The forward leads to `inside`.
    pub(crate) fn enter(bed: &mut Bed, inside: SocketAddrV4, remote: SocketAddrV4, external: SocketAddrV4) -> Talk {
        bed.outside(&build::tcp(remote, external, Flags::SYN).sequence(5_000).build());
        assert_eq!(destination(&bed.only_inside()), inside);
        let answer = build::tcp(inside, remote, Flags::SYN.union(Flags::ACK)).sequence(1_000).acknowledgment(5_001);
        bed.inside(&answer.build());
        assert_eq!(source(&bed.only_outside()), external);
        bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).acknowledgment(1_001).build());
        bed.only_inside();
        Talk::opened(inside, remote, external)
    }

    pub(crate) fn send_out(&mut self, bed: &mut Bed, text: &str) -> String {
        String::from_utf8(self.pass_out(bed, text.as_bytes())).expect("text")
    }

    /// What the server gets.
    pub(crate) fn pass_out(&mut self, bed: &mut Bed, payload: &[u8]) -> Vec<u8> {
        let segment = build::tcp(self.inside, self.remote, Flags::ACK.union(Flags::PSH)).payload(payload);
        bed.inside(&segment.sequence(self.inner.0).acknowledgment(self.inner.1).build());
        self.inner.0 += payload.len() as u32;
        let (sequence, ack, payload) = tcp_of(&bed.only_outside());
        assert_eq!((sequence, ack), (self.outer.1, self.outer.0), "the server's numbers");
        self.outer.1 += payload.len() as u32;
        payload
    }

    pub(crate) fn send_in(&mut self, bed: &mut Bed, text: &str) -> String {
        String::from_utf8(self.pass_in(bed, text.as_bytes())).expect("text")
    }

    /// What the inside gets.
    pub(crate) fn pass_in(&mut self, bed: &mut Bed, payload: &[u8]) -> Vec<u8> {
        let segment = build::tcp(self.remote, self.external, Flags::ACK.union(Flags::PSH)).payload(payload);
        bed.outside(&segment.sequence(self.outer.0).acknowledgment(self.outer.1).build());
        self.outer.0 += payload.len() as u32;
        let (sequence, ack, payload) = tcp_of(&bed.only_inside());
        assert_eq!((sequence, ack), (self.inner.1, self.inner.0), "the client's numbers");
        self.inner.1 += payload.len() as u32;
        payload
    }

    /// The next sequence number and acknowledgement of the outside, or of the inside.
    pub(crate) fn numbers(&self, of_outside: bool) -> (u32, u32) {
        if of_outside { self.outer } else { self.inner }
    }

    pub(crate) fn log_in(mut self, bed: &mut Bed, server_is_inside: bool) -> Talk {
        for (is_server, text) in [
            (true, "220 ready\r\n"),
            (false, "USER me\r\n"),
            (true, "331 password\r\n"),
            (false, "PASS x\r\n"),
            (true, "230 in\r\n"),
        ] {
            let passed = if is_server == server_is_inside { self.send_out(bed, text) } else { self.send_in(bed, text) };
            assert_eq!(passed, text);
        }
        self
    }
}

/// `h1,h2,h3,h4,p1,p2`.
pub(crate) fn commas(text: &str) -> SocketAddrV4 {
    let digits = |c: char| !c.is_ascii_digit() && c != ',';
    let list = text.split(digits).find(|part| part.split(',').count() == 6).expect("six numbers");
    let n: Vec<u8> = list.split(',').map(|part| part.parse().expect("an octet")).collect();
    at(Ipv4Addr::new(n[0], n[1], n[2], n[3]), u16::from_be_bytes([n[4], n[5]]))
}

pub(crate) fn syn_reaches(bed: &mut Bed, from: SocketAddrV4, to: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.outside(&build::tcp(from, to, Flags::SYN).sequence(9).build());
    bed.take_inside().first().map(|packet| destination(packet))
}

pub(crate) const INVITE: &str = "INVITE sip:bob@198.51.100.1 SIP/2.0\r\n\
Via: SIP/2.0/UDP 100.64.0.10:5060;branch=z9hG4bK1\r\n\
Contact: <sip:alice@100.64.0.10:5060>\r\n\
CSeq: 1 INVITE\r\n\
Content-Type: application/sdp\r\n\
Content-Length: 65\r\n\r\n\
v=0\r\nc=IN IP4 100.64.0.10\r\nm=audio 5004 RTP/AVP 0\r\na=rtcp:5005  \r\n";

pub(crate) fn close(bed: &mut Bed, talk: &Talk) {
    let fin = Flags::FIN.union(Flags::ACK);
    let (sequence, ack) = talk.numbers(false);
    bed.inside(&build::tcp(talk.inside, talk.remote, fin).sequence(sequence).acknowledgment(ack).build());
    bed.only_outside();
    let (sequence, ack) = talk.numbers(true);
    bed.outside(&build::tcp(talk.remote, talk.external, fin).sequence(sequence).acknowledgment(ack + 1).build());
    bed.only_inside();
}
