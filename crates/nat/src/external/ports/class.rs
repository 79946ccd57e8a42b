//! Classes and parities of ports.

use super::WORDS;
use crate::types::Protocol;

/// Ports of a mapping (RFC 4787 §4.2.1 REQ-3a). Query identifiers have one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortClass {
    /// 0 to 1023.
    Low,
    /// 1024 to 65535.
    High,
}

impl PortClass {
    pub(crate) const fn words(self, protocol: Protocol) -> (usize, usize) {
        match (protocol, self) {
            (Protocol::Icmp, _) => (0, WORDS),
            (_, PortClass::Low) => (0, 16),
            (_, PortClass::High) => (16, WORDS),
        }
    }
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

    pub(super) const BOTH: [Parity; 2] = [Parity::Even, Parity::Odd];

    pub(super) const fn mask(self) -> u64 {
        match self {
            Parity::Even => 0x5555_5555_5555_5555,
            Parity::Odd => 0xaaaa_aaaa_aaaa_aaaa,
        }
    }
}
