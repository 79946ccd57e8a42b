//! Numbers of inside hosts.

use core::fmt;
use core::net::Ipv4Addr;

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use super::Endpoint;
use super::HOSTS_FIRST;
use super::SOFTWIRE_HOSTS_FIRST;

/// An inside host within its realm: its IPv4 address, or from [`HOSTS_FIRST`] on the number of an
/// IPv6 host, or of the prefix that is a subscriber (`state/host.rs`).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct HostNumber(pub u32);

impl HostNumber {
    /// True for an IPv6 host or prefix.
    #[inline(always)]
    pub const fn is_ipv6(self) -> bool {
        self.0 >= HOSTS_FIRST
    }

    /// True for a host of NAT64.
    #[inline(always)]
    pub(crate) const fn is_nat64(self) -> bool {
        self.0 >= HOSTS_FIRST && self.0 < SOFTWIRE_HOSTS_FIRST
    }
}

impl From<Ipv4Addr> for HostNumber {
    #[inline(always)]
    fn from(address: Ipv4Addr) -> HostNumber {
        HostNumber(address.to_bits())
    }
}

/// As events and pages have it.
impl From<HostNumber> for Ipv4Addr {
    #[inline(always)]
    fn from(number: HostNumber) -> Ipv4Addr {
        Ipv4Addr::from_bits(number.0)
    }
}

/// An internal endpoint.
impl From<(HostNumber, u16)> for Endpoint {
    #[inline(always)]
    fn from((host, port): (HostNumber, u16)) -> Endpoint {
        Endpoint::new(host.into(), port)
    }
}

impl fmt::Debug for HostNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv4Addr::from(*self).fmt(f)
    }
}
