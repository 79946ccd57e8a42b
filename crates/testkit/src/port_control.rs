//! A client of PCP and NAT-PMP: requests to bytes, and what replies say.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Protocol;
use pcp::SERVER_PORT;
use pcp::mapped;
use wire::build;

use crate::Bed;
use crate::OWN_INSIDE;
use crate::packet;

/// The nonce of [`Ask`] unless changed.
pub const NONCE: [u8; 12] = *b"natrix nonce";

/// A request of PCP.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Source of the datagram.
    pub from: SocketAddrV4,
    /// Destination.
    pub to: SocketAddrV4,
    /// The field with the client's address, usually that of `from`.
    pub client: Ipv4Addr,
    /// MAP 1, PEER 2, ANNOUNCE 0.
    pub opcode: u8,
    /// Seconds.
    pub lifetime: u32,
    /// Of the mapping.
    pub nonce: [u8; 12],
    /// IP protocol.
    pub protocol: u8,
    /// Internal port.
    pub port: u16,
    /// Suggested external endpoint.
    pub suggested: SocketAddrV4,
    /// For PEER.
    pub remote: SocketAddrV4,
    /// As on the wire.
    pub options: Vec<u8>,
}

/// No endpoint.
const NONE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

impl Ask {
    /// A MAP for ten minutes.
    pub fn map(host: Ipv4Addr, protocol: Protocol, port: u16) -> Ask {
        Ask {
            from: SocketAddrV4::new(host, 40_000),
            to: SocketAddrV4::new(OWN_INSIDE, SERVER_PORT),
            client: host,
            opcode: 1,
            lifetime: 600,
            nonce: NONCE,
            protocol: protocol.number(),
            port,
            suggested: NONE,
            remote: NONE,
            options: Vec::new(),
        }
    }

    /// A PEER for ten minutes.
    pub fn peer(host: Ipv4Addr, protocol: Protocol, port: u16, remote: SocketAddrV4) -> Ask {
        Ask { opcode: 2, remote, ..Ask::map(host, protocol, port) }
    }

    /// ANNOUNCE.
    pub fn announce(host: Ipv4Addr) -> Ask {
        Ask { opcode: 0, lifetime: 0, ..Ask::map(host, Protocol::Udp, 0) }
    }

    /// Another lifetime.
    #[must_use]
    pub fn lifetime(self, lifetime: u32) -> Ask {
        Ask { lifetime, ..self }
    }

    /// Another nonce.
    #[must_use]
    pub fn nonce(self, byte: u8) -> Ask {
        Ask { nonce: [byte; 12], ..self }
    }

    /// Suggests this.
    #[must_use]
    pub fn suggest(self, suggested: SocketAddrV4) -> Ask {
        Ask { suggested, ..self }
    }

    /// One more option.
    #[must_use]
    pub fn option(mut self, code: u8, data: &[u8]) -> Ask {
        self.options.extend([code, 0]);
        self.options.extend((data.len() as u16).to_be_bytes());
        self.options.extend(data);
        while !self.options.len().is_multiple_of(4) {
            self.options.push(0);
        }
        self
    }

    /// FILTER: bits of the prefix within 128.
    #[must_use]
    pub fn filter(self, length: u8, remote: SocketAddrV4) -> Ask {
        let mut data = vec![0, length];
        data.extend(remote.port().to_be_bytes());
        data.extend(mapped(remote.ip().to_bits()));
        self.option(3, &data)
    }

    /// PREFER_FAILURE.
    #[must_use]
    pub fn prefer_failure(self) -> Ask {
        self.option(2, &[])
    }

    /// THIRD_PARTY.
    #[must_use]
    pub fn third_party(self, host: Ipv4Addr) -> Ask {
        self.option(1, &mapped(host.to_bits()))
    }

    /// PORT_SET from its own port on.
    #[must_use]
    pub fn set(self, size: u16, parity: bool) -> Ask {
        let ([a, b], [c, d]) = (size.to_be_bytes(), self.port.to_be_bytes());
        self.option(130, &[a, b, c, d, u8::from(parity)])
    }

    /// The message.
    pub fn message(&self) -> Vec<u8> {
        let mut bytes = vec![2, self.opcode, 0, 0];
        bytes.extend(self.lifetime.to_be_bytes());
        bytes.extend(mapped(self.client.to_bits()));
        if self.opcode != 0 {
            bytes.extend(self.nonce);
            bytes.extend([self.protocol, 0, 0, 0]);
            bytes.extend(self.port.to_be_bytes());
            bytes.extend(self.suggested.port().to_be_bytes());
            bytes.extend(mapped(self.suggested.ip().to_bits()));
        }
        if self.opcode == 2 {
            bytes.extend(self.remote.port().to_be_bytes());
            bytes.extend([0, 0]);
            bytes.extend(mapped(self.remote.ip().to_bits()));
        }
        bytes.extend(&self.options);
        bytes
    }

    /// The message of a client with this address, which knows the remote peer by another.
    pub fn message6(&self, client: u128, remote: Option<u128>) -> Vec<u8> {
        let mut bytes = self.message();
        bytes[8..24].copy_from_slice(&client.to_be_bytes());
        if let Some(remote) = remote {
            bytes[64..80].copy_from_slice(&remote.to_be_bytes());
        }
        bytes
    }

    /// The datagram.
    pub fn packet(&self) -> Vec<u8> {
        build::udp(self.from, self.to).payload(&self.message()).build()
    }
}

/// A reply of PCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcpReply {
    /// Result code.
    pub code: u8,
    /// Seconds.
    pub lifetime: u32,
    /// Epoch time.
    pub epoch: u32,
    /// Assigned external endpoint.
    pub external: SocketAddrV4,
    /// The whole message.
    pub message: Vec<u8>,
}

fn word(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u16::from_be_bytes(*word))
}

impl PcpReply {
    /// Reads a reply.
    ///
    /// # Panics
    /// It is none.
    pub fn of(message: &[u8]) -> PcpReply {
        let fields = pcp::Fields::of(message).expect("a reply");
        let field = message.get(44..60).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        let address = pcp::unmapped(&field).unwrap_or_default();
        PcpReply {
            code: fields.result,
            lifetime: fields.lifetime,
            epoch: fields.epoch,
            external: SocketAddrV4::new(address.into(), word(message, 42)),
            message: message.to_vec(),
        }
    }

    /// The code and data of each option.
    pub fn options(&self) -> Vec<(u8, Vec<u8>)> {
        let fixed = if self.message.get(1).is_some_and(|opcode| opcode & 0x7f == 2) { 80 } else { 60 };
        let (mut found, mut rest) = (Vec::new(), self.message.get(fixed..).unwrap_or_default());
        while rest.len() >= 4 {
            let length = usize::from(word(rest, 2));
            found.push((rest[0], rest.get(4..4 + length).unwrap_or_default().to_vec()));
            rest = rest.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        }
        found
    }
}

impl Bed {
    /// The payload of the only answer to a datagram, which must come from where it was sent to.
    pub fn answer(&mut self, from: SocketAddrV4, to: SocketAddrV4, message: &[u8]) -> Option<Vec<u8>> {
        self.inside(&build::udp(from, to).payload(message).build());
        let answers = self.take_inside();
        assert!(answers.len() <= 1, "one answer at most");
        assert_eq!(self.take_outside(), Vec::<Vec<u8>>::new(), "nothing goes outside");
        let answer = answers.first()?;
        assert_eq!((packet::source(answer), packet::destination(answer)), (to, from));
        let payload = packet::payload(answer).to_vec();
        assert!(payload.len() <= message.len().max(60), "no amplification");
        Some(payload)
    }

    /// The reply to a request of PCP.
    ///
    /// # Panics
    /// There is none.
    pub fn pcp(&mut self, ask: &Ask) -> PcpReply {
        PcpReply::of(&self.answer(ask.from, ask.to, &ask.message()).expect("a reply"))
    }

    /// The external endpoint that a MAP gets.
    ///
    /// # Panics
    /// It is refused.
    pub fn granted(&mut self, ask: &Ask) -> SocketAddrV4 {
        let told = self.pcp(ask);
        assert_eq!(told.code, 0, "granted");
        told.external
    }

    /// Whether a packet of a stranger reaches the inside endpoint.
    pub fn is_open(
        &mut self,
        protocol: Protocol,
        remote: SocketAddrV4,
        external: SocketAddrV4,
        internal: SocketAddrV4,
    ) -> bool {
        let packet = match protocol {
            Protocol::Tcp => build::tcp(remote, external, wire::tcp::Flags::SYN).sequence(1).mss(1_460).build(),
            _ => build::udp(remote, external).payload(b"stranger").build(),
        };
        self.outside(&packet);
        let came = self.take_inside();
        self.take_outside();
        came.first().is_some_and(|first| {
            assert_eq!((packet::source(first), packet::destination(first)), (remote, internal));
            true
        })
    }
}
