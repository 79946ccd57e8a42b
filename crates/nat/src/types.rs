//! Small types, in the words of RFC 2663, 4787 and 6888.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

mod host_number;
mod named;
mod remote;

pub use host_number::HostNumber;
pub use named::Block;
pub use named::BlockSize;
pub use named::HostName;
pub use named::Parity;
pub use named::PortClass;
pub(crate) use remote::ExternalEndpoint;
pub(crate) use remote::RemoteInside;
pub(crate) use remote::RemoteOutside;

/// Transports of a NAPT mapping. ICMP queries have an identifier for a port (RFC 5508 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// IP protocol 17.
    Udp = 0,
    /// IP protocol 6.
    Tcp = 1,
    /// Queries, IP protocol 1.
    Icmp = 2,
}

impl From<alg::Transport> for Protocol {
    fn from(transport: alg::Transport) -> Protocol {
        match transport {
            alg::Transport::Udp => Protocol::Udp,
            alg::Transport::Tcp => Protocol::Tcp,
        }
    }
}

impl Protocol {
    /// Length of arrays by [`Protocol::index`].
    pub const COUNT: usize = 3;
    /// All, in index order.
    pub const ALL: [Protocol; 3] = [Protocol::Udp, Protocol::Tcp, Protocol::Icmp];

    /// 0, 1 or 2.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Inverse of [`Protocol::index`].
    pub const fn from_index(index: usize) -> Option<Protocol> {
        match index {
            0 => Some(Protocol::Udp),
            1 => Some(Protocol::Tcp),
            2 => Some(Protocol::Icmp),
            _ => None,
        }
    }

    /// The IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Udp => 17,
            Protocol::Tcp => 6,
            Protocol::Icmp => 1,
        }
    }

    /// The protocol with this number, if NAPT translates it.
    pub const fn from_number(number: u8) -> Option<Protocol> {
        match number {
            17 => Some(Protocol::Udp),
            6 => Some(Protocol::Tcp),
            1 => Some(Protocol::Icmp),
            _ => None,
        }
    }

    /// As in commands and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Icmp => "icmp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Side of an interface (RFC 2663 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Side {
    /// The subscribers; their addresses are valid only here.
    Inside = 0,
    /// The Internet.
    Outside = 1,
}

impl Side {
    /// 0 or 1.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// `inside` or `outside`.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Inside => "inside",
            Side::Outside => "outside",
        }
    }
}

/// Whether an own IPv6 address may be used (RFC 4862 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AddressUse {
    /// It is not known yet whether another station has it.
    Tentative = 0,
    /// No other station has it.
    Preferred = 1,
    /// Another station has it.
    Duplicate = 2,
}

/// From here on, internal addresses are numbers of IPv6 hosts (`state/host.rs`): no IPv4 host may
/// have them (RFC 1112, RFC 6890).
pub const HOSTS_FIRST: u32 = 0xe000_0000;
/// From here on, of hosts behind a softwire (RFC 6333).
pub const SOFTWIRE_HOSTS_FIRST: u32 = 0xf000_0000;

/// Source of an own ICMPv4 error to an IPv6 host before translation (RFC 7600 §4.8), and through a
/// hairpin until its receiver is known. Only Natrix may forward it (RFC 7600 §7, "Forwardable:
/// False").
pub(crate) const DUMMY: u32 = 0xc000_0008;

/// An inside host as the configuration names it, within its realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InsideHost {
    /// A subscriber.
    Ipv4(Ipv4Addr),
    /// A NAT64 host (RFC 6146), behind its realm's first translation prefix.
    Ipv6(Ipv6Addr),
    /// A host behind a B4 (RFC 6333).
    BehindB4 {
        /// Its address.
        b4: Ipv6Addr,
        /// The host's inner address.
        inner: Ipv4Addr,
    },
}

impl InsideHost {
    /// Address of the IPv6 host or the B4.
    pub const fn ipv6(&self) -> Option<Ipv6Addr> {
        match *self {
            InsideHost::Ipv4(_) => None,
            InsideHost::Ipv6(address) | InsideHost::BehindB4 { b4: address, .. } => Some(address),
        }
    }

    /// `port` may be a range.
    pub fn with_port(&self, port: impl fmt::Display) -> String {
        match self {
            InsideHost::Ipv4(address) => format!("{address}:{port}"),
            InsideHost::Ipv6(address) => format!("[{address}]:{port}"),
            InsideHost::BehindB4 { b4, inner } => format!("{inner}:{port} behind {b4}"),
        }
    }
}

impl From<Ipv4Addr> for InsideHost {
    fn from(address: Ipv4Addr) -> InsideHost {
        InsideHost::Ipv4(address)
    }
}

impl fmt::Display for InsideHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InsideHost::Ipv4(address) => address.fmt(f),
            InsideHost::Ipv6(address) => address.fmt(f),
            InsideHost::BehindB4 { b4, inner } => write!(f, "{inner} behind {b4}"),
        }
    }
}

/// A VRF with its own address space; 0 is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealmId(pub u16);

impl RealmId {
    /// Seven bits of a fragment's key.
    pub const COUNT_MAX: usize = 128;

    /// Per-realm index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Side and realm of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facing {
    /// Its side.
    pub side: Side,
    /// 0 for the outside.
    pub realm: RealmId,
}

impl Facing {
    /// The Internet.
    pub const OUTSIDE: Facing = Facing { side: Side::Outside, realm: RealmId(0) };

    /// One realm's subscribers.
    pub const fn inside(realm: RealmId) -> Facing {
        Facing { side: Side::Inside, realm }
    }
}

impl From<Side> for Facing {
    /// The side; for the inside, in the default realm.
    fn from(side: Side) -> Facing {
        Facing { side, realm: RealmId(0) }
    }
}

/// The owner of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u8);

impl WorkerId {
    /// Six bits of a port table entry.
    pub const COUNT_MAX: usize = 64;

    /// Per-worker index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A logical interface: a port, or an 802.1Q sub-interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u16);

impl InterfaceId {
    /// Index into `Settings::interfaces`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u16);

impl PoolId {
    /// After a reload that left no pool.
    pub const NONE: PoolId = PoolId(u16::MAX);

    /// Index into `Settings::pools`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A pool's name, by a number that survives reloads, unlike its position in the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName(pub u16);

impl PoolName {
    /// No name.
    pub const NONE: PoolName = PoolName(u16::MAX);
    pub(crate) const COUNT_MAX: u16 = u16::MAX;
}

/// An external address: its place in the port table, kept across reloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressIndex(pub u32);

impl AddressIndex {
    /// Per-address index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A shard's mapping record. Tables use 0 for "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MappingIndex(pub u32);

impl MappingIndex {
    /// Upper bound: 26 bits, less index 0 and the values for shared ports.
    pub const COUNT_MAX: usize = (1 << 26) - 257;

    /// No mapping: flows share the external endpoint. The port table varies the last eight bits.
    pub const SHARED: MappingIndex = MappingIndex((1 << 26) - 256);

    /// Whatever the last eight bits are.
    #[inline(always)]
    pub const fn is_shared(self) -> bool {
        self.0 >= MappingIndex::SHARED.0
    }

    /// Index into the record arena.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The IPv4 address.
    pub address: Ipv4Addr,
    /// The port or ICMP query identifier.
    pub port: u16,
}

impl Endpoint {
    /// `address:port`.
    pub const fn new(address: Ipv4Addr, port: u16) -> Endpoint {
        Endpoint { address, port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.address, self.port)
    }
}

/// An IPv4 prefix; host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: Ipv4Addr,
    length: u8,
}

impl Prefix {
    /// Every address.
    pub const ALL: Prefix = Prefix { address: Ipv4Addr::UNSPECIFIED, length: 0 };
    /// Numbers of IPv6 hosts.
    pub const HOSTS: Prefix = Prefix { address: Ipv4Addr::from_bits(HOSTS_FIRST), length: 3 };
    /// Numbers of hosts behind softwires.
    pub const SOFTWIRE_HOSTS: Prefix = Prefix { address: Ipv4Addr::from_bits(SOFTWIRE_HOSTS_FIRST), length: 4 };

    /// Clears host bits. `None` if `length` is over 32.
    pub const fn new(address: Ipv4Addr, length: u8) -> Option<Prefix> {
        if length > 32 {
            return None;
        }
        let bits = address.to_bits() & Prefix::mask_of(length);
        Some(Prefix { address: Ipv4Addr::from_bits(bits), length })
    }

    /// The /32 of one address.
    pub const fn host(address: Ipv4Addr) -> Prefix {
        Prefix { address, length: 32 }
    }

    const fn mask_of(length: u8) -> u32 {
        if length == 0 { 0 } else { u32::MAX << (32 - length as u32) }
    }

    /// First address.
    pub const fn address(self) -> Ipv4Addr {
        self.address
    }

    /// 0 to 32.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// As 32 bits.
    pub const fn mask(self) -> u32 {
        Prefix::mask_of(self.length)
    }

    /// Last address.
    pub const fn last(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !self.mask())
    }

    /// True for addresses of the prefix.
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask() == self.address.to_bits()
    }

    /// True if they have a common address.
    pub const fn overlaps(self, other: Prefix) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}
