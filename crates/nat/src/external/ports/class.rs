//! Ports of each class and parity in the words of a port table.

use super::WORDS;
pub use crate::types::Parity;
pub use crate::types::PortClass;
use crate::types::Protocol;

impl PortClass {
    pub(crate) const fn words(self, protocol: Protocol) -> (usize, usize) {
        match (protocol, self) {
            (Protocol::Icmp, _) => (0, WORDS),
            (_, PortClass::Low) => (0, 16),
            (_, PortClass::High) => (16, WORDS),
        }
    }
}

impl Parity {
    pub(super) const BOTH: [Parity; 2] = [Parity::Even, Parity::Odd];

    pub(super) const fn mask(self) -> u64 {
        match self {
            Parity::Even => 0x5555_5555_5555_5555,
            Parity::Odd => 0xaaaa_aaaa_aaaa_aaaa,
        }
    }
}
