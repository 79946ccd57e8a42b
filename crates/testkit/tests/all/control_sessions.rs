//! Control sessions over TCP whose packets may be refused at any time, as a random policy has it.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Protocol;
use testkit::connection::SYN_ACK;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;
use wire::tcp::Tcp;

use crate::pptp;

/// A port that a gateway has announced: its protocol, where it leads, and where it is.
pub(crate) type Announced = (Protocol, SocketAddrV4, SocketAddrV4);

pub(crate) struct ControlSession {
    inside: SocketAddrV4,
    remote_inside: SocketAddrV4,
    /// The server, as packets reach it.
    remote_outside: SocketAddrV4,
    external: SocketAddrV4,
    /// Of the inside, and of the outside: the next to send, and the next expected.
    inner: (u32, u32),
    outer: (u32, u32),
}

/// The payload of a segment. `None` if it is no segment.
fn payload_of(packet: &[u8]) -> Option<Vec<u8>> {
    let ip = Ipv4::new_checked(packet).ok().filter(|ip| ip.protocol() == 6)?;
    Some(Tcp::new_checked(ip.payload()).ok()?.payload().to_vec())
}

fn segments(packets: Vec<Vec<u8>>) -> impl Iterator<Item = Vec<u8>> {
    packets.into_iter().filter(|packet| payload_of(packet).is_some())
}

impl ControlSession {
    /// `None` if the policy refuses it.
    pub(crate) fn open(bed: &mut Bed, inside: SocketAddrV4, remote_inside: SocketAddrV4) -> Option<ControlSession> {
        bed.inside(&build::tcp(inside, remote_inside, Flags::SYN).sequence(1_000).build());
        let syn = segments(bed.take_outside()).next()?;
        let (external, remote_outside) = (source(&syn), destination(&syn));
        bed.outside(&build::tcp(remote_outside, external, SYN_ACK).sequence(5_000).acknowledgment(1_001).build());
        segments(bed.take_inside()).find(|packet| destination(packet) == inside)?;
        bed.inside(&build::tcp(inside, remote_inside, Flags::ACK).sequence(1_001).acknowledgment(5_001).build());
        segments(bed.take_outside()).next()?;
        Some(ControlSession {
            inside,
            remote_inside,
            remote_outside,
            external,
            inner: (1_001, 5_001),
            outer: (5_001, 1_001),
        })
    }

    pub(crate) fn send_out(&mut self, bed: &mut Bed, bytes: &[u8]) -> Option<Vec<u8>> {
        let segment = build::tcp(self.inside, self.remote_inside, Flags::ACK).sequence(self.inner.0);
        bed.inside(&segment.acknowledgment(self.inner.1).payload(bytes).build());
        let passed = payload_of(&segments(bed.take_outside()).next()?)?;
        self.inner.0 += bytes.len() as u32;
        self.outer.1 += passed.len() as u32;
        Some(passed)
    }

    pub(crate) fn send_in(&mut self, bed: &mut Bed, bytes: &[u8]) -> Option<Vec<u8>> {
        let segment = build::tcp(self.remote_outside, self.external, Flags::ACK).sequence(self.outer.0);
        bed.outside(&segment.acknowledgment(self.outer.1).payload(bytes).build());
        let passed = payload_of(&segments(bed.take_inside()).next()?)?;
        self.outer.0 += bytes.len() as u32;
        self.inner.1 += passed.len() as u32;
        Some(passed)
    }

    /// The inside repeats its last bytes, which nobody has acknowledged, with more.
    pub(crate) fn repeat_out(&mut self, bed: &mut Bed, last: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        self.inner.0 -= last as u32;
        self.send_out(bed, bytes)
    }

    fn reset(&self, bed: &mut Bed) {
        let reset = build::tcp(self.inside, self.remote_inside, Flags::RST.union(Flags::ACK));
        bed.inside(&reset.sequence(self.inner.0).acknowledgment(self.inner.1).build());
        bed.take_outside();
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text stays text")
}

/// What a client announces for `data` by `PORT`, if a gateway changes it. The session ends if
/// `resets`.
pub(crate) fn ftp(bed: &mut Bed, client: SocketAddrV4, data: u16, resets: bool) -> Option<Announced> {
    let mut session = ControlSession::open(bed, client, at(E1, 21))?;
    let [a, b, c, d] = client.ip().octets();
    let port = format!("PORT {a},{b},{c},{d},{},{}\r\n", data >> 8, data & 0xff);
    let mut exchange = || {
        session.send_in(bed, b"220 ready\r\n")?;
        session.send_out(bed, b"USER me\r\n")?;
        let sent = text(session.send_out(bed, port.as_bytes())?);
        (sent != port).then(|| crate::gateways::commas(&sent))
    };
    let external = exchange();
    if resets {
        session.reset(bed);
    }
    Some((Protocol::Tcp, at(*client.ip(), data), external?))
}

/// What a client announces for the pair of ports at `media` by `SETUP`, if a gateway changes it.
pub(crate) fn rtsp(bed: &mut Bed, client: SocketAddrV4, media: u16, resets: bool) -> Option<Announced> {
    let mut session = ControlSession::open(bed, client, at(E1, 554))?;
    let ports = format!("client_port={media}-{}", media + 1);
    let setup = format!("SETUP rtsp://x/ RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP;unicast;{ports}\r\n\r\n");
    let sent = session.send_out(bed, setup.as_bytes()).map(text);
    if resets {
        session.reset(bed);
    }
    let sent = sent.filter(|sent| *sent != setup)?;
    let external = sent.split("client_port=").nth(1)?.split('-').next()?.parse().ok()?;
    Some((Protocol::Udp, at(*client.ip(), media), at(*session.external.ip(), external)))
}

/// Where a tunnelled packet for the call `own` arrives, if the gateway has leased an identifier.
/// The control connection ends if `resets`, and the call with it.
pub(crate) fn pptp(bed: &mut Bed, client: SocketAddrV4, own: u16, resets: bool) -> Option<(Ipv4Addr, u16)> {
    let mut session = ControlSession::open(bed, client, at(E1, 1_723))?;
    session.send_out(bed, &pptp::start_request())?;
    session.send_in(bed, &pptp::start_reply())?;
    let external = pptp::word(&session.send_out(bed, &pptp::call_request(own))?, 12);
    let reply = session.send_in(bed, &pptp::call_reply(77, external))?;
    let found = pptp::gre_enters(bed, *session.remote_outside.ip(), *session.external.ip(), external);
    assert!(found.is_none() || pptp::word(&reply, 14) == own, "a call whose number was not translated back");
    if resets {
        session.reset(bed);
        let after = pptp::gre_enters(bed, *session.remote_outside.ip(), *session.external.ip(), external);
        assert_eq!(after, None, "the call outlives its control connection");
    }
    found.map(|(_, inside, call)| (inside, call))
}
