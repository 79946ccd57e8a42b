//! What a rule matches, and what is looked up.

use core::fmt;
use core::net::Ipv4Addr;

use crate::types::Prefix;
use crate::types::RealmId;

/// Ports from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// Lowest port.
    pub first: u16,
    /// Highest port, at least `first`.
    pub last: u16,
}

impl PortRange {
    /// Every port, and what has none.
    pub const ALL: PortRange = PortRange { first: 0, last: u16::MAX };

    /// One port.
    pub const fn one(port: u16) -> PortRange {
        PortRange { first: port, last: port }
    }

    /// Whether `port` is one of them.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Whether all of `other` lies in this one.
    pub const fn covers(self, other: PortRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Whether both have a port in common.
    pub const fn overlaps(self, other: PortRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// What packets a rule is about, as the inside sees them: the source is the subscriber's endpoint, the destination the remote one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Match {
    /// The realm; None: any. Realms have numbers up to 255, as in a mapping's record.
    pub realm: Option<RealmId>,
    /// The IP protocol number; None: any.
    pub protocol: Option<u8>,
    /// Inside addresses.
    pub source: Prefix,
    /// Outside addresses.
    pub destination: Prefix,
    /// Inside ports.
    pub source_ports: PortRange,
    /// Outside ports.
    pub destination_ports: PortRange,
}

impl Match {
    /// Everything.
    pub const ALL: Match = Match {
        realm: None,
        protocol: None,
        source: Prefix::ALL,
        destination: Prefix::ALL,
        source_ports: PortRange::ALL,
        destination_ports: PortRange::ALL,
    };

    /// Whether a packet is one of them. What [`RuleSet`](super::RuleSet) has to agree with.
    pub fn matches(&self, key: &RuleKey) -> bool {
        self.realm.is_none_or(|realm| realm == key.realm())
            && self.protocol.is_none_or(|protocol| protocol == key.protocol())
            && self.source.contains(key.source())
            && self.destination.contains(key.destination())
            && self.source_ports.contains(key.source_port())
            && self.destination_ports.contains(key.destination_port())
    }

    /// Whether each packet of `other` is one of these too.
    pub fn covers(&self, other: &Match) -> bool {
        let has = |own: Prefix, other: Prefix| own.length() <= other.length() && own.contains(other.address());
        (self.realm.is_none() || self.realm == other.realm)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && has(self.source, other.source)
            && has(self.destination, other.destination)
            && self.source_ports.covers(other.source_ports)
            && self.destination_ports.covers(other.destination_ports)
    }

    /// Whether some packet is one of both.
    pub fn overlaps(&self, other: &Match) -> bool {
        (self.realm.is_none() || other.realm.is_none() || self.realm == other.realm)
            && (self.protocol.is_none() || other.protocol.is_none() || self.protocol == other.protocol)
            && self.source.overlaps(other.source)
            && self.destination.overlaps(other.destination)
            && self.source_ports.overlaps(other.source_ports)
            && self.destination_ports.overlaps(other.destination_ports)
    }

    /// The first packet it matches: lowest addresses and ports; realm and protocol 0 where any will do.
    pub fn first(&self) -> RuleKey {
        RuleKey::new(
            self.realm.unwrap_or_default(),
            self.protocol.unwrap_or(0),
            self.source.address().to_bits(),
            self.source_ports.first,
            self.destination.address().to_bits(),
            self.destination_ports.first,
        )
    }
}

/// A packet as rules see it. Two words, so that masking it is two operations:
///
/// ```text
///   addresses   source 32 | destination 32
///   rest        destination port 16 | source port 16 | protocol 16 | realm 16
/// ```
///
/// and eight lanes of 16 bits, so that comparing it with a rule is one operation on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleKey {
    pub(super) addresses: u64,
    pub(super) rest: u64,
}

impl RuleKey {
    /// A packet of this realm and IP protocol between these endpoints. Ports are 0 where a protocol has none.
    #[inline(always)]
    pub const fn new(
        realm: RealmId,
        protocol: u8,
        source: u32,
        source_port: u16,
        destination: u32,
        destination_port: u16,
    ) -> RuleKey {
        RuleKey {
            addresses: source as u64 | (destination as u64) << 32,
            rest: destination_port as u64
                | (source_port as u64) << 16
                | (protocol as u64) << 32
                | (realm.0 as u64) << 48,
        }
    }

    /// The realm it comes from.
    pub const fn realm(&self) -> RealmId {
        RealmId((self.rest >> 48) as u16)
    }

    /// The IP protocol number.
    pub const fn protocol(&self) -> u8 {
        (self.rest >> 32) as u8
    }

    /// The inside address.
    pub const fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.addresses as u32)
    }

    /// The outside address.
    pub const fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits((self.addresses >> 32) as u32)
    }

    /// The inside port.
    #[inline(always)]
    pub const fn source_port(&self) -> u16 {
        (self.rest >> 16) as u16
    }

    /// The outside port.
    #[inline(always)]
    pub const fn destination_port(&self) -> u16 {
        self.rest as u16
    }
}
