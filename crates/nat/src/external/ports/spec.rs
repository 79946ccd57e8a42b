//! The ports that an external address gives out, by the configuration.

use super::Mask;
use super::WORDS;
use crate::types::Protocol;

/// What an external address offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSpec {
    /// Lowest port, at least 1; not for query identifiers.
    pub port_min: u16,
    /// Highest port; 0 offers nothing, not even query identifiers.
    pub port_max: u16,
    /// Ports never given out; not for query identifiers.
    pub reserved: Vec<u16>,
    /// Further ranges of ports never given out, by [`Protocol::index`].
    pub forwarded: [Vec<(u16, u16)>; Protocol::COUNT],
    /// All ports belong to one subscriber, by [`super::PortTable::claim`]; no other field applies.
    pub is_whole: bool,
}

impl Default for AddressSpec {
    fn default() -> AddressSpec {
        AddressSpec {
            port_min: 1_024,
            port_max: u16::MAX,
            reserved: Vec::new(),
            forwarded: Default::default(),
            is_whole: false,
        }
    }
}

impl AddressSpec {
    /// An address that offers nothing.
    pub const NOTHING: AddressSpec = AddressSpec {
        port_min: 1,
        port_max: 0,
        reserved: Vec::new(),
        forwarded: [const { Vec::new() }; Protocol::COUNT],
        is_whole: false,
    };
}

/// Ports an address never gives out. Port 0 is one: sockets and tables use it for "none".
pub fn never_offered(spec: &AddressSpec, protocol: Protocol) -> Mask {
    let mut words = Box::new([u64::MAX; WORDS]);
    if spec.is_whole {
        return Box::new([0; WORDS]);
    }
    if spec.port_max == 0 {
        return words;
    }
    let (first, last, reserved) = match protocol {
        Protocol::Icmp => (1, u16::MAX, [].as_slice()),
        Protocol::Udp | Protocol::Tcp => (spec.port_min.max(1), spec.port_max, spec.reserved.as_slice()),
    };
    for word in first / 64..=last / 64 {
        let from_first = if word == first / 64 { u64::MAX << (first % 64) } else { u64::MAX };
        let to_last = if word == last / 64 { u64::MAX >> (63 - last % 64) } else { u64::MAX };
        words[usize::from(word)] = !(from_first & to_last);
    }
    for port in reserved {
        words[usize::from(port / 64)] |= 1 << (port % 64);
    }
    for port in spec.forwarded[protocol.index()].iter().flat_map(|(first, last)| *first..=*last) {
        words[usize::from(port / 64)] |= 1 << (port % 64);
    }
    words
}
