//! Bursts of small packets from subscribers to a server.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::random::Random;
use wire::build;
use wire::tcp::Flags;

pub(crate) const BURST: usize = 64;
/// A 64-byte frame without link header and check sequence.
pub(crate) const BYTES: usize = 46;
pub(crate) const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 443);

pub(crate) type Bytes = [u8; BYTES];
pub(crate) type Burst = [Bytes; BURST];

#[derive(Clone, Copy)]
pub(crate) enum Mix {
    Udp,
    Tcp,
    /// Half and half at random: no branch on the protocol is predicted for long.
    Both,
}

impl Mix {
    pub(crate) const ALL: [Mix; 3] = [Mix::Udp, Mix::Tcp, Mix::Both];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Mix::Udp => "udp",
            Mix::Tcp => "tcp",
            Mix::Both => "udp and tcp",
        }
    }

    /// Packets of 64 endpoints each: too many to predict a branch from the burst before.
    pub(crate) fn bursts<const COUNT: usize>(self) -> Box<[Burst; COUNT]> {
        let mut random = Random::new([1, 2, 3, 4]);
        let mut bursts = Box::new([[[0; BYTES]; BURST]; COUNT]);
        for burst in bursts.iter_mut() {
            for (serial, bytes) in (0..).zip(burst) {
                let tcp = match self {
                    Mix::Udp => false,
                    Mix::Tcp => true,
                    Mix::Both => random.below(2) == 1,
                };
                *bytes = packet(tcp, serial);
            }
        }
        bursts
    }
}

/// Subscribers have 64 each.
pub(crate) fn internal(serial: u32) -> (u32, u16) {
    (0x0a00_0001 + serial / 64, 20_000 + (serial % 64 * 7) as u16)
}

/// To the server; TCP with ACK only.
pub(crate) fn packet(tcp: bool, serial: u32) -> Bytes {
    let (address, port) = internal(serial);
    let source = SocketAddrV4::new(Ipv4Addr::from_bits(address), port);
    let built = if tcp {
        build::tcp(source, SERVER, Flags::ACK).sequence(1).acknowledgment(1).payload(&[0; 6]).build()
    } else {
        build::udp(source, SERVER).payload(&[0; 18]).build()
    };
    built.try_into().expect("the payload makes it as long as that")
}

pub(crate) fn is_tcp(bytes: &Bytes) -> bool {
    bytes[9] == 6
}
