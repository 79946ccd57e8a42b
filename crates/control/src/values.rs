//! Small values of the protocol, spelled the same in requests, replies, commands and JSON.

use core::fmt;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddr;
use core::str::FromStr;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error as _;

/// A text that is not a value of its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not {what}; write {expected}")]
pub struct ParseError {
    /// What it is not: `an address`.
    pub what: &'static str,
    /// What to write instead: values, or their form.
    pub expected: &'static str,
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident, $expected:literal, { $( $(#[$variant_meta:meta])* $variant:ident = $word:literal, )+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $( $(#[$variant_meta])* #[serde(rename = $word)] $variant, )+ }

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [$name] = &[ $( $name::$variant, )+ ];

            /// The word commands and JSON use.
            pub const fn name(self) -> &'static str {
                match self { $( $name::$variant => $word, )+ }
            }
        }

        // Derived, its words would be the names of the variants.
        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::schema::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .enum_values(Some([$( $word, )+]))
                    .description(Some($expected))
                    .into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<$name, ParseError> {
                match text {
                    $( $word => Ok($name::$variant), )+
                    _ => Err(ParseError { what: "known", expected: $expected }),
                }
            }
        }
    };
}
pub(crate) use words;

words!(
    /// A transport that mappings can have.
    Protocol, "udp, tcp or icmp", {
        /// UDP.
        Udp = "udp",
        /// TCP.
        Tcp = "tcp",
        /// ICMP queries; the query identifier plays the port (RFC 5508 §3).
        Icmp = "icmp",
    }
);

words!(
    /// Which realm an interface faces (RFC 2663 §2.1).
    Side, "inside or outside", {
        /// The subscribers.
        Inside = "inside",
        /// The Internet.
        Outside = "outside",
    }
);

words!(
    /// Where a route is from, the most preferred first.
    RouteSource, "connected, static, kernel, excluded, pool, nat64 or softwire", {
        /// The prefix of an own address.
        Connected = "connected",
        /// `[[route]]`.
        Static = "static",
        /// The routing table of the kernel.
        Kernel = "kernel",
        /// Leads inside, so it is not used outside (RFC 6598 §4).
        Excluded = "excluded",
        /// A pool, announced by a route of the kernel. No packet is routed by it.
        Pool = "pool",
        /// A translation prefix of NAT64, announced in the same way.
        Nat64 = "nat64",
        /// The address of an AFTR, announced in the same way.
        Softwire = "softwire",
    }
);

words!(
    /// How a subscriber's mappings spread over the addresses of a pool (RFC 4787 §4.1).
    Pooling, "paired or arbitrary", {
        /// All mappings of one subscriber share one external address.
        Paired = "paired",
        /// Each mapping takes any address.
        Arbitrary = "arbitrary",
    }
);

words!(
    /// Whether an external address takes new mappings.
    AddressState, "active, draining or removed", {
        /// It does.
        Active = "active",
        /// It does not, by `pool.drain` or `pool.draining`.
        Draining = "draining",
        /// The configuration does not have it any more, but something still uses it.
        Removed = "removed",
    }
);

impl AddressState {
    /// That of an instance that does not say.
    pub(crate) fn unsaid() -> AddressState {
        AddressState::Active
    }
}

words!(
    /// Which remote endpoints may send to a mapping (RFC 4787 §5).
    Filtering, "endpoint_independent, address_dependent or address_and_port_dependent", {
        /// All remotes.
        EndpointIndependent = "endpoint_independent",
        /// Addresses that the internal endpoint has sent to.
        AddressDependent = "address_dependent",
        /// Address and port pairs that the internal endpoint has sent to.
        AddressAndPortDependent = "address_and_port_dependent",
    }
);

words!(
    /// The three kinds of verdict.
    VerdictKind, "forwarded, local or dropped", {
        /// Sent on, translated or passed.
        Forwarded = "forwarded",
        /// Handled by Natrix itself.
        Local = "local",
        /// Dropped, for the reason the verdict names.
        Dropped = "dropped",
    }
);

/// An IPv4 prefix, `a.b.c.d/length`; host bits are zero. An address alone is read as its /32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: Ipv4Addr,
    length: u8,
}

impl Prefix {
    /// `address/length` with the host bits cleared; None when `length` is over 32.
    pub fn new(address: Ipv4Addr, length: u8) -> Option<Prefix> {
        if length > 32 {
            return None;
        }
        Some(Prefix { address: Ipv4Addr::from_bits(address.to_bits() & Prefix::mask(length)), length })
    }

    /// The /32 of one address.
    pub fn host(address: Ipv4Addr) -> Prefix {
        Prefix { address, length: 32 }
    }

    fn mask(length: u8) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
    }

    /// First address.
    pub fn address(self) -> Ipv4Addr {
        self.address
    }

    /// Length, 0 to 32.
    pub fn length(self) -> u8 {
        self.length
    }

    /// True if the prefix contains `address`.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & Prefix::mask(self.length) == self.address.to_bits()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Prefix, ParseError> {
        let wrong = ParseError { what: "an IPv4 prefix", expected: "10.0.0.0/8 or 10.0.0.2" };
        if let Some(prefix) = unmapped(text) {
            return Ok(prefix);
        }
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, length.parse().map_err(|_| wrong.clone())?),
            None => (text, 32),
        };
        Prefix::new(address.parse().map_err(|_| wrong.clone())?, length).ok_or(wrong)
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prefix, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Bits before the IPv4 address in an IPv4-mapped IPv6 address.
const MAPPED_BITS: u8 = 96;

/// The IPv4 prefix that an IPv4-mapped IPv6 address or prefix means: `::ffff:203.0.113.7`. Servers
/// that accept both families on one socket log IPv4 clients so.
fn unmapped(text: &str) -> Option<Prefix> {
    let (address, length) = text.split_once('/').unwrap_or((text, "128"));
    let address = address.parse::<Ipv6Addr>().ok()?.to_ipv4_mapped()?;
    Prefix::new(address, length.parse::<u8>().ok()?.checked_sub(MAPPED_BITS)?)
}

/// Reads an endpoint. An IPv4-mapped IPv6 address means the IPv4 address.
pub(crate) fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let endpoint = SocketAddr::deserialize(deserializer)?;
    Ok(SocketAddr::new(endpoint.ip().to_canonical(), endpoint.port()))
}

/// Reads an address. An IPv4-mapped IPv6 address means the IPv4 address.
pub(crate) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    Ok(Option::<IpAddr>::deserialize(deserializer)?.map(|address| address.to_canonical()))
}

/// An IPv6 prefix, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix6 {
    address: Ipv6Addr,
    length: u8,
}

impl Prefix6 {
    /// `address/length`; None when `length` is over 128.
    pub fn new(address: Ipv6Addr, length: u8) -> Option<Prefix6> {
        (length <= 128).then_some(Prefix6 { address, length })
    }

    /// One address.
    pub const fn host(address: Ipv6Addr) -> Prefix6 {
        Prefix6 { address, length: 128 }
    }

    /// The address as it was written.
    pub fn address(self) -> Ipv6Addr {
        self.address
    }

    /// 128 for an address.
    pub fn length(self) -> u8 {
        self.length
    }

    /// True if the prefix contains `address`.
    pub fn contains(self, address: Ipv6Addr) -> bool {
        let differs = address.to_bits() ^ self.address.to_bits();
        differs.checked_shr(128 - u32::from(self.length)).unwrap_or(0) == 0
    }
}

impl fmt::Display for Prefix6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix6 {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Prefix6, ParseError> {
        let wrong = ParseError { what: "an IPv6 prefix", expected: "2001:db8::/56 or 2001:db8::7" };
        if unmapped(text).is_some() {
            return Err(ParseError { what: "an IPv6 prefix, but an IPv4-mapped one", expected: "it as IPv4" });
        }
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, length.parse().map_err(|_| wrong.clone())?),
            None => (text, 128),
        };
        let prefix = Prefix6 { address: address.parse().map_err(|_| wrong.clone())?, length };
        if length <= 128 { Ok(prefix) } else { Err(wrong) }
    }
}

impl Serialize for Prefix6 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix6 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prefix6, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// What `find` asks for: an IPv4 address, or IPv6 hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindAddress {
    /// External, or internal.
    Ipv4(Ipv4Addr),
    /// IPv6 hosts of NAT64, or B4s: one, or a prefix of them.
    Ipv6(Prefix6),
}

impl From<Ipv4Addr> for FindAddress {
    fn from(address: Ipv4Addr) -> FindAddress {
        FindAddress::Ipv4(address)
    }
}

impl fmt::Display for FindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindAddress::Ipv4(address) => address.fmt(f),
            FindAddress::Ipv6(prefix) if prefix.length == 128 => prefix.address.fmt(f),
            FindAddress::Ipv6(prefix) => prefix.fmt(f),
        }
    }
}

impl FindAddress {
    /// Its text with a port: `203.0.113.7:41233`, `[2001:db8::7]:5000`.
    pub fn with_port(self, port: Option<u16>) -> String {
        match (self, port) {
            (_, None) => self.to_string(),
            (FindAddress::Ipv4(_), Some(port)) => format!("{self}:{port}"),
            (FindAddress::Ipv6(_), Some(port)) => format!("[{self}]:{port}"),
        }
    }
}

impl FromStr for FindAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<FindAddress, ParseError> {
        let wrong = ParseError { what: "an address", expected: "203.0.113.10, 2001:db8::7 or 2001:db8::/56" };
        if let Some(prefix) = unmapped(text).filter(|prefix| prefix.length == 32) {
            return Ok(FindAddress::Ipv4(prefix.address));
        }
        let of_ipv6 = |prefix| Ok(FindAddress::Ipv6(prefix));
        text.parse().map(FindAddress::Ipv4).or_else(|_| text.parse().map_or(Err(wrong), of_ipv6))
    }
}

impl Serialize for FindAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FindAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FindAddress, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// A prefix of either family, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyPrefix {
    /// IPv4.
    V4(Prefix),
    /// IPv6.
    V6(Prefix6),
}

impl AnyPrefix {
    /// True if the prefix contains `address`.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self, address) {
            (AnyPrefix::V4(prefix), IpAddr::V4(address)) => prefix.contains(address),
            (AnyPrefix::V6(prefix), IpAddr::V6(address)) => prefix.contains(address),
            _ => false,
        }
    }
}

impl fmt::Display for AnyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnyPrefix::V4(prefix) => prefix.fmt(f),
            AnyPrefix::V6(prefix) => prefix.fmt(f),
        }
    }
}

impl FromStr for AnyPrefix {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<AnyPrefix, ParseError> {
        let is_ipv6 = text.contains(':') && unmapped(text).is_none();
        if is_ipv6 { text.parse().map(AnyPrefix::V6) } else { text.parse().map(AnyPrefix::V4) }
    }
}

impl Serialize for AnyPrefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AnyPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyPrefix, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Bytes of a packet; two hexadecimal digits each in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HexBytes(pub Vec<u8>);

impl fmt::Display for HexBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for HexBytes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<HexBytes, ParseError> {
        const WRONG: ParseError = ParseError { what: "hexadecimal", expected: "an even number of hexadecimal digits" };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(WRONG);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(WRONG);
        let bytes = pairs.iter().map(|[high, low]| Ok((digit(*high)? << 4 | digit(*low)?) as u8));
        bytes.collect::<Result<Vec<u8>, ParseError>>().map(HexBytes)
    }
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HexBytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// `part / whole` as a number JSON can carry: 0 when `whole` is 0.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;
    use crate::request::Why;

    #[test]
    fn an_ipv4_mapped_address_means_the_ipv4_address() {
        assert_eq!("::ffff:203.0.113.7".parse::<FindAddress>(), "203.0.113.7".parse());
        assert_eq!("::FFFF:cb00:7107".parse::<FindAddress>(), "203.0.113.7".parse());
        assert_eq!("::ffff:203.0.113.7".parse::<Prefix>(), "203.0.113.7".parse());
        assert_eq!("::ffff:203.0.113.0/120".parse::<AnyPrefix>(), "203.0.113.0/24".parse());
        // Prefixes of IPv6 hosts have none, and a question about them must not find no holder.
        for text in ["::ffff:203.0.113.7", "::ffff:203.0.113.0/120"] {
            assert!(text.parse::<Prefix6>().unwrap_err().to_string().contains("write it as IPv4"), "{text}");
        }
        for text in ["2001:db8::/56", "::/0", "::ffff:0:0/80"] {
            assert!(matches!(text.parse(), Ok(AnyPrefix::V6(_))), "{text}");
            assert!(matches!(text.parse(), Ok(FindAddress::Ipv6(_))), "{text}");
        }
        let filter: Filter = serde_json::from_str(r#"{"address":"::ffff:198.51.100.1"}"#).unwrap();
        assert_eq!(filter.address, "198.51.100.1".parse().ok());
        assert_eq!(serde_json::from_str::<Filter>("{}").unwrap(), Filter::default());
        let why = r#"{"protocol":"udp","source":"[::ffff:10.0.0.2]:4000","destination":"[::ffff:192.0.2.1]:53"}"#;
        let why: Why = serde_json::from_str(why).unwrap();
        assert_eq!((why.source, why.destination), (([10, 0, 0, 2], 4_000).into(), ([192, 0, 2, 1], 53).into()));
    }
}
