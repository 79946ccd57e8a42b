//! Plain types for rooms that must not name each other. Their methods stand with the code that
//! needs them.

/// An IPv6 host or prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName {
    /// Address of the host, or the first one of the prefix.
    pub address: u128,
    /// 128 for a host.
    pub prefix_length: u8,
    /// The IPv4 address behind a softwire, whose other end is `address`.
    pub inner: Option<u32>,
}

/// Ports of a mapping (RFC 4787 §4.2.1 REQ-3a). Query identifiers have one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortClass {
    /// 0 to 1023.
    Low,
    /// 1024 to 65535.
    High,
}

/// Parity of a port (RFC 4787 §4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// RTP.
    Even,
    /// RTCP.
    Odd,
}

impl Parity {
    /// Parity of a port.
    pub const fn of(port: u16) -> Parity {
        if port & 1 == 0 { Parity::Even } else { Parity::Odd }
    }
}

/// Ports of a block: a power of two from 64 to 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSize(pub(crate) u8);

/// A block of ports: its address, first grain and size. 0 is none: no block contains port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block(pub(crate) u32);

impl Block {
    /// Inverse of [`Block::number`]; `None` for 0.
    pub const fn from_number(number: u32) -> Option<Block> {
        if number == 0 { None } else { Some(Block(number)) }
    }

    /// Never 0.
    pub const fn number(self) -> u32 {
        self.0
    }
}
