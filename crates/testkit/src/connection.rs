//! A TCP connection through the bed: both ends keep count of their sequence numbers, and each
//! segment must come out at the other end with the right endpoints or not at all.

use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::tcp::TcpState;
use nat::types::Side;
use nat::view::SessionView;
use wire::build;
use wire::build::Builder;
use wire::tcp::Flags;

use crate::bed::Bed;
use crate::packet;

/// SYN and ACK.
pub const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
/// FIN and ACK.
pub const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);
/// RST and ACK.
pub const RST_ACK: Flags = Flags::RST.union(Flags::ACK);

/// Both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The end inside.
    pub internal: SocketAddrV4,
    /// How the end outside sees the one inside.
    pub external: SocketAddrV4,
    /// The end outside.
    pub remote: SocketAddrV4,
    /// Next sequence number by [`Side::index`].
    next: [u32; 2],
}

impl Connection {
    /// Between endpoints with a mapping already; nothing is sent.
    pub fn new(internal: SocketAddrV4, external: SocketAddrV4, remote: SocketAddrV4) -> Connection {
        Connection { internal, external, remote, next: [1_000, 5_000] }
    }

    /// The inside sends its SYN and gets no answer.
    ///
    /// # Panics
    /// When the SYN does not come out.
    pub fn half_open(bed: &mut Bed, internal: SocketAddrV4, remote: SocketAddrV4) -> Connection {
        let external = bed.open_tcp(internal, remote);
        Connection { next: [1_001, 5_000], ..Connection::new(internal, external, remote) }
    }

    /// Opened from inside with three segments.
    ///
    /// # Panics
    /// When one of them does not come out.
    pub fn open(bed: &mut Bed, internal: SocketAddrV4, remote: SocketAddrV4) -> Connection {
        let mut connection = Connection::half_open(bed, internal, remote);
        connection.pass(bed, Side::Outside, SYN_ACK);
        connection.pass(bed, Side::Inside, Flags::ACK);
        connection
    }

    /// The next segment of one end, as it sends it.
    pub fn segment(&self, from: Side, flags: Flags) -> Builder {
        let (source, destination) = match from {
            Side::Inside => (self.internal, self.remote),
            Side::Outside => (self.remote, self.external),
        };
        let acknowledgment = if flags.contains(Flags::ACK) { self.next[from.index() ^ 1] } else { 0 };
        build::tcp(source, destination, flags).sequence(self.next[from.index()]).acknowledgment(acknowledgment)
    }

    /// Sends a segment and gives what came out at the other end.
    ///
    /// # Panics
    /// When it comes out with wrong endpoints, more than once, or something comes back.
    pub fn send(&mut self, bed: &mut Bed, from: Side, segment: &Builder) -> Option<Vec<u8>> {
        let sent = segment.build();
        self.next[from.index()] = packet::tcp(&sent).sequence().wrapping_add(packet::tcp(&sent).sequence_length());
        self.send_raw(bed, from, &sent)
    }

    /// As [`Connection::send`], for bytes; the sequence numbers stay as they are.
    ///
    /// # Panics
    /// As there.
    pub fn send_raw(&self, bed: &mut Bed, from: Side, sent: &[u8]) -> Option<Vec<u8>> {
        let (mut arrived, back, ends) = match from {
            Side::Inside => {
                bed.inside(sent);
                (bed.take_outside(), bed.take_inside(), (self.external, self.remote))
            }
            Side::Outside => {
                bed.outside(sent);
                (bed.take_inside(), bed.take_outside(), (self.remote, self.internal))
            }
        };
        assert!(back.is_empty(), "an answer to {sent:02x?}: {back:02x?}");
        assert!(arrived.len() <= 1, "arrived more than once: {arrived:02x?}");
        let arrived = arrived.pop()?;
        assert_eq!((packet::source(&arrived), packet::destination(&arrived)), ends);
        Some(arrived)
    }

    /// Sends a segment without payload, which must come out.
    ///
    /// # Panics
    /// When it does not.
    pub fn pass(&mut self, bed: &mut Bed, from: Side, flags: Flags) -> Vec<u8> {
        let segment = self.segment(from, flags);
        let arrived = self.send(bed, from, &segment);
        arrived.unwrap_or_else(|| panic!("{flags:?} from {} was dropped: {:?}", from.name(), bed.verdicts()))
    }

    /// Sends data, which must come out as it went in.
    ///
    /// # Panics
    /// When it does not.
    pub fn pass_data(&mut self, bed: &mut Bed, from: Side, data: &[u8]) {
        let segment = self.segment(from, Flags::ACK.union(Flags::PSH)).payload(data);
        let arrived = self.send(bed, from, &segment);
        let arrived = arrived.unwrap_or_else(|| panic!("data from {} was dropped: {:?}", from.name(), bed.verdicts()));
        assert_eq!(packet::payload(&arrived), data);
    }

    /// Both ends send a FIN, that from `first` first, and both are acknowledged.
    ///
    /// # Panics
    /// When a segment does not come out.
    pub fn close(&mut self, bed: &mut Bed, first: Side) {
        let other = opposite(first);
        self.pass(bed, first, FIN_ACK);
        self.pass(bed, other, FIN_ACK);
        self.pass(bed, first, Flags::ACK);
    }

    /// What is shown of its session now.
    pub fn session(&self, bed: &Bed) -> Option<SessionView> {
        bed.sessions().into_iter().find(|session| {
            session.protocol == Protocol::Tcp
                && (session.internal.address, session.internal.port) == (*self.internal.ip(), self.internal.port())
                && (session.remote.address, session.remote.port) == (*self.remote.ip(), self.remote.port())
        })
    }

    /// The state that is shown of its session; None when there is none.
    pub fn state(&self, bed: &Bed) -> Option<TcpState> {
        self.session(bed).and_then(|session| session.state)
    }

    /// How long its session is shown to live; zero when there is none.
    pub fn expires_in(&self, bed: &Bed) -> Duration {
        self.session(bed).map_or(Duration::ZERO, |session| session.expires_in)
    }
}

/// The other side.
pub const fn opposite(side: Side) -> Side {
    match side {
        Side::Inside => Side::Outside,
        Side::Outside => Side::Inside,
    }
}
