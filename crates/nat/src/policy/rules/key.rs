use core::fmt;
use core::net::Ipv4Addr;

use crate::types::Prefix;
use crate::types::RealmId;

/// An inclusive range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// Lowest port.
    pub first: u16,
    /// At least `first`.
    pub last: u16,
}

impl PortRange {
    /// Includes packets without ports.
    pub const ALL: PortRange = PortRange { first: 0, last: u16::MAX };

    /// One port only.
    pub const fn one(port: u16) -> PortRange {
        PortRange { first: port, last: port }
    }

    /// True for a port of the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// True if it contains all of `other`.
    pub const fn covers(self, other: PortRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// True if they share a port.
    pub const fn overlaps(self, other: PortRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// The packets of a rule as the inside sees them: the source is the subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Match {
    /// At most 255, as in a mapping's record; `None` for any.
    pub realm: Option<RealmId>,
    /// `None` for any.
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
    /// Every packet.
    pub const ALL: Match = Match {
        realm: None,
        protocol: None,
        source: Prefix::ALL,
        destination: Prefix::ALL,
        source_ports: PortRange::ALL,
        destination_ports: PortRange::ALL,
    };

    /// [`RuleSet`](super::RuleSet) must agree with this.
    pub fn matches(&self, key: &RuleKey) -> bool {
        self.realm.is_none_or(|realm| realm == key.realm())
            && self.protocol.is_none_or(|protocol| protocol == key.protocol())
            && self.source.contains(key.source())
            && self.destination.contains(key.destination())
            && self.source_ports.contains(key.source_port())
            && self.destination_ports.contains(key.destination_port())
    }

    /// True if each packet of `other` also matches this.
    pub fn covers(&self, other: &Match) -> bool {
        let has = |own: Prefix, other: Prefix| own.length() <= other.length() && own.contains(other.address());
        (self.realm.is_none() || self.realm == other.realm)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && has(self.source, other.source)
            && has(self.destination, other.destination)
            && self.source_ports.covers(other.source_ports)
            && self.destination_ports.covers(other.destination_ports)
    }

    /// True if some packet matches both.
    pub fn overlaps(&self, other: &Match) -> bool {
        (self.realm.is_none() || other.realm.is_none() || self.realm == other.realm)
            && (self.protocol.is_none() || other.protocol.is_none() || self.protocol == other.protocol)
            && self.source.overlaps(other.source)
            && self.destination.overlaps(other.destination)
            && self.source_ports.overlaps(other.source_ports)
            && self.destination_ports.overlaps(other.destination_ports)
    }

    /// The lowest matching packet; realm and protocol are 0 if any will do.
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

/// A packet as rules see it: two words to mask, or eight lanes of 16 bits to compare at once.
///
/// ```text
///   addresses   source 32 | destination 32
///   rest        destination port 16 | source port 16 | protocol 16 | realm 16
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleKey {
    pub(super) addresses: u64,
    pub(super) rest: u64,
}

impl RuleKey {
    /// Ports are 0 for protocols without ports.
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

    /// The inside realm.
    pub const fn realm(&self) -> RealmId {
        RealmId((self.rest >> 48) as u16)
    }

    /// The IP protocol number.
    pub const fn protocol(&self) -> u8 {
        (self.rest >> 32) as u8
    }

    /// The same packet with another inside address.
    #[inline]
    #[must_use]
    pub const fn from_source(self, source: u32) -> RuleKey {
        RuleKey { addresses: self.addresses & !(u32::MAX as u64) | source as u64, ..self }
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
