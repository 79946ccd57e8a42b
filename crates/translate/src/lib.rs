//! Translation between IPv4 and IPv6 packets (RFC 7915, with RFC 6052, RFC 6791, RFC 8021 and RFC
//! 4884), without state, clock or allocation.
//!
//! A caller reads the headers ([`read4`], [`read6`]), finds new addresses and ports for them, and
//! has the packet rewritten in its frame ([`to_ipv6`], [`to_ipv4`]). For an ICMP error it also
//! reads the quoted packet ([`quoted4`], [`quoted6`]) and gives a tuple for it.
//!
//! ```text
//!   frame: [ room │ IPv4 │ TCP … ]   ──►   [ roo │  IPv6   │ TCP … ]     20 bytes longer in front
//! ```
//!
//! An IPv6 packet is up to [`ROOM`] bytes longer than the IPv4 packet it was, and all of it in
//! front. Bytes behind a packet never move. What cannot be translated has a [`Reason`], and where
//! an RFC asks for an ICMP error, a [`Reply`].

#![no_std]
#![forbid(unsafe_code)]

mod address;
mod headers;
pub mod icmp;
mod pieces;
mod plain;
mod prefix;
mod quote;
mod reason;
mod to_ipv4;
mod to_ipv6;
mod transport;

pub use address::Halves;
pub use address::check_embedded;
pub use address::check_source4;
pub use address::check_source6;
pub use headers::Headers;
pub use headers::Headers4;
pub use headers::Headers6;
pub use headers::Kind;
pub use headers::quoted4;
pub use headers::quoted6;
pub use headers::read4;
pub use headers::read6;
pub use pieces::Piece;
pub use pieces::Pieces;
pub use pieces::pieces;
pub use plain::Further;
pub use plain::PLAIN;
pub use plain::PlainHeaders;
pub use plain::is_plain4;
pub use plain::is_plain6;
pub use plain::is_steady4;
pub use plain::may_be_fragmented;
pub use plain::plain_headers6;
pub use plain::plain_to_ipv4;
pub use plain::plain_to_ipv6;
pub use prefix::Prefix;
pub use prefix::PrefixFault;
pub use reason::Reason;
pub use reason::Refused;
pub use reason::Reply;
pub use to_ipv4::to_ipv4;
pub use to_ipv6::to_ipv6;

/// Bytes in front of an IPv4 packet that always suffice for its translation: 20 for the header, 8
/// for a Fragment header, in an ICMP error 20 and 8 more for the quote, and 4 of padding.
pub const ROOM: usize = 60;

/// Size up to which a translated IPv4 packet may be fragmented on its way (RFC 7915 §5): that of an
/// IPv6 packet of 1,280 bytes.
pub const DONT_FRAGMENT_ABOVE: usize = 1_260;

/// What a packet is to have after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Source and destination port of TCP and UDP; of an echo, the first is the identifier. None
    /// keeps them.
    pub ports: Option<(u16, u16)>,
}

/// What an IPv4 packet is to have.
pub type Tuple4 = Tuple<u32>;
/// What an IPv6 packet is to have; addresses in host bit order.
pub type Tuple6 = Tuple<u128>;

/// What the links and the operator allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// MTU of the IPv4 next hop.
    pub mtu4: u16,
    /// MTU of the IPv6 next hop.
    pub mtu6: u16,
    /// Size of IPv6 packets that reach every host, 1,280 or more: packets that IPv4 would have
    /// fragmented are cut to it (RFC 7915 §4.1).
    pub lowest_mtu6: u16,
    /// Traffic class and type of service are copied; otherwise they become 0.
    pub copies_traffic_class: bool,
    /// The translation counts as a hop; otherwise the caller forwards the packet, and decrements
    /// the hop limit itself.
    pub is_hop: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { mtu4: 1_500, mtu6: 1_500, lowest_mtu6: wire::ipv6::MTU_MIN, copies_traffic_class: true, is_hop: true }
    }
}

impl Limits {
    #[inline]
    pub(crate) const fn has_expired(&self, hop_limit: u8) -> bool {
        self.is_hop && hop_limit <= 1
    }

    #[inline]
    pub(crate) const fn after(&self, hop_limit: u8) -> u8 {
        if self.is_hop { hop_limit - 1 } else { hop_limit }
    }
}

/// Where the translated packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Start of the packet in its frame.
    pub start: usize,
    /// Length of the packet.
    pub length: usize,
    /// The packet is larger than this and has to be fragmented: IPv6 with [`pieces`], IPv4 as any
    /// router does.
    pub split: Option<u16>,
}
