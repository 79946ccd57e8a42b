//! Hosts of three families: what they send, and which of them got a packet.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Protocol;
use rand::Rng;
use rand::rngs::SmallRng;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use translate::Prefix;
use wire::build;
use wire::ipv6;
use wire::tcp::Flags;

/// A host inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Host {
    /// An IPv4 subscriber.
    V4(Ipv4Addr),
    /// Of NAT64.
    Nat64(u128),
    /// Behind a B4.
    Home(u128, Ipv4Addr),
}

/// A TCP or UDP packet that came out, whatever is around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) protocol: Protocol,
    pub(crate) source: SocketAddrV4,
    /// Outside, the remote; inside, the host and its port.
    pub(crate) destination: Result<SocketAddrV4, (Host, u16)>,
    /// Of the host that sent it, as its payload says; absent if a remote sent it.
    pub(crate) sender: Option<u16>,
}

impl Host {
    /// One of a few hosts, some with equal inner addresses, some with a common prefix.
    pub(crate) fn random(random: &mut SmallRng) -> Host {
        let prefix =
            v6(["2001:db8:c:100::", "2001:db8:c:1ff::", "2001:db8:d:200::", "2001:db8:e:300::"]
                [random.random_range(0..4)]);
        let last = random.random_range(1..4_u8);
        match random.random_range(0..3) {
            0 => Host::V4(Ipv4Addr::new(100, 64, 0, random.random_range(10..18))),
            1 => Host::Nat64(prefix + u128::from(last)),
            _ => Host::Home(prefix + u128::from(last), Ipv4Addr::new(192, 168, 1, random.random_range(1..3))),
        }
    }

    /// A packet with this payload.
    pub(crate) fn packet(
        self,
        protocol: Protocol,
        port: u16,
        to: SocketAddrV4,
        flags: Flags,
        payload: &[u8],
    ) -> Vec<u8> {
        let inner = |from: Ipv4Addr| match protocol {
            Protocol::Tcp => build::tcp(at(from, port), to, flags).sequence(1).payload(payload).build(),
            Protocol::Udp => build::udp(at(from, port), to).payload(payload).build(),
            Protocol::Icmp => build::echo_request(from, *to.ip(), port).payload(payload).build(),
        };
        match self {
            Host::V4(address) => inner(address),
            Host::Home(b4, address) => softwire(b4, v6(AFTR), &inner(address)),
            Host::Nat64(address) => {
                let (from, to) = ((address, port), (behind(*to.ip()), to.port()));
                match protocol {
                    Protocol::Tcp => tcp6(from, to, flags.0, (1, 0), payload),
                    Protocol::Udp => udp6(from, to, payload),
                    Protocol::Icmp => ping6(from.0, to.0, port),
                }
            }
        }
    }
}

/// Source port, destination port and payload.
fn transport(protocol: u8, bytes: &[u8]) -> Option<(Protocol, u16, u16, &[u8])> {
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let (protocol, header) = match protocol {
        6 => (Protocol::Tcp, 20),
        17 => (Protocol::Udp, 8),
        _ => return None,
    };
    Some((protocol, word(0)?, word(2)?, bytes.get(header..)?))
}

fn sender(payload: &[u8]) -> Option<u16> {
    let bytes: [u8; 2] = payload.strip_prefix(b"from")?.try_into().ok()?;
    Some(u16::from_be_bytes(bytes))
}

/// Names the host that sends a packet.
pub(crate) fn label(host: u16) -> Vec<u8> {
    [b"from".as_slice(), &host.to_be_bytes()].concat()
}

/// What came out inside or outside; `None` for all but TCP and UDP in one piece.
pub(crate) fn seen(packet: &[u8], is_inside: bool) -> Option<Seen> {
    let (host, source, destination, rest): (Option<Host>, u32, u32, _) = if packet[0] >> 4 == 6 {
        let view = view6(packet);
        let to = view.destination();
        if view.next_header() == 4 {
            let inner = &packet[ipv6::HEADER_LENGTH..];
            let ip = packet::header(inner);
            let home = Ipv4Addr::from_bits(ip.destination());
            (Some(Host::Home(to, home)), ip.source(), 0, transport(ip.protocol(), ip.payload()).map(owned)?)
        } else {
            let remote = Prefix::WELL_KNOWN.extract(view.source());
            (Some(Host::Nat64(to)), remote, 0, transport(view.next_header(), view.payload()).map(owned)?)
        }
    } else {
        let ip = packet::header(packet);
        let to = ip.destination();
        let host = is_inside.then(|| Host::V4(to.into()));
        (host, ip.source(), to, transport(ip.protocol(), ip.payload()).map(owned)?)
    };
    let (protocol, from, to, sender) = rest;
    let source = at(source.into(), from);
    let destination = match host {
        Some(host) => Err((host, to)),
        None => Ok(at(destination.into(), to)),
    };
    Some(Seen { protocol, source, destination, sender })
}

fn owned((protocol, from, to, payload): (Protocol, u16, u16, &[u8])) -> (Protocol, u16, u16, Option<u16>) {
    (protocol, from, to, sender(payload))
}
