//! Packets of a few endpoints in the order in which a link carries them.

use core::net::SocketAddrV4;

use nat::Duration;
use wire::build;
use wire::tcp::Flags;

/// The time between two packets, unless the conversation says otherwise.
const STEP: Duration = Duration::from_millis(20);

/// What is on the link so far.
#[derive(Default)]
pub(super) struct Link {
    now: Duration,
    pub(super) packets: Vec<(Duration, Vec<u8>)>,
}

impl Link {
    pub(super) fn carry(&mut self, packet: Vec<u8>) {
        self.packets.push((self.now, packet));
        self.now = self.now + STEP;
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
    }

    pub(super) fn datagram(&mut self, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
        self.carry(build::udp(from, to).payload(payload).build());
    }
}

/// A TCP connection, as one of its ends sees both.
pub(super) struct Connection {
    ends: [SocketAddrV4; 2],
    /// Sequence numbers of the next bytes.
    next: [u32; 2],
}

pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;

impl Connection {
    /// With its handshake.
    pub(super) fn open(link: &mut Link, client: SocketAddrV4, server: SocketAddrV4) -> Connection {
        let mut connection = Connection { ends: [client, server], next: [1_000, 5_000] };
        connection.segment(link, CLIENT, Flags::SYN, b"");
        connection.segment(link, SERVER, Flags::SYN.union(Flags::ACK), b"");
        connection.segment(link, CLIENT, Flags::ACK, b"");
        connection
    }

    pub(super) fn say(&mut self, link: &mut Link, end: usize, text: impl AsRef<[u8]>) {
        self.segment(link, end, Flags::ACK.union(Flags::PSH), text.as_ref());
    }

    /// A segment so many bytes ahead. What is missing comes later.
    pub(super) fn say_ahead(&mut self, link: &mut Link, end: usize, ahead: u32, text: &[u8]) {
        self.next[end] += ahead;
        self.segment(link, end, Flags::ACK.union(Flags::PSH), text);
        self.next[end] -= ahead + text.len() as u32;
    }

    /// An ACK without data.
    pub(super) fn acknowledge(&mut self, link: &mut Link, end: usize) {
        self.segment(link, end, Flags::ACK, b"");
    }

    /// Both ends say that they are done.
    pub(super) fn close(&mut self, link: &mut Link, first: usize) {
        let fin = Flags::FIN.union(Flags::ACK);
        self.segment(link, first, fin, b"");
        self.segment(link, 1 - first, fin, b"");
        self.segment(link, first, Flags::ACK, b"");
    }

    fn segment(&mut self, link: &mut Link, end: usize, flags: Flags, payload: &[u8]) {
        let ack = if flags.contains(Flags::ACK) { self.next[1 - end] } else { 0 };
        let segment = build::tcp(self.ends[end], self.ends[1 - end], flags).sequence(self.next[end]);
        link.carry(segment.acknowledgment(ack).payload(payload).build());
        let control = u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN));
        self.next[end] += payload.len() as u32 + control;
    }
}
