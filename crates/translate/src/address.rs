//! Addresses that no translated packet may come from or go to.

use core::net::Ipv4Addr;

use wire::ipv6;

use crate::prefix::Prefix;
use crate::reason::Reason;

/// An IPv6 address as two words of a header in memory, which are compared, hashed and written
/// without turning their bytes around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Halves(pub [u64; 2]);

impl Halves {
    /// Those of an address.
    #[inline(always)]
    #[must_use]
    pub const fn of(address: u128) -> Halves {
        Halves([((address >> 64) as u64).to_be(), (address as u64).to_be()])
    }

    /// The address.
    #[inline(always)]
    #[must_use]
    pub const fn address(self) -> u128 {
        (u64::from_be(self.0[0]) as u128) << 64 | u64::from_be(self.0[1]) as u128
    }

    /// The source in an IPv6 header.
    #[inline(always)]
    #[must_use]
    pub fn source(header: &[u8; ipv6::HEADER_LENGTH]) -> Halves {
        Halves([word(header, ipv6::SOURCE_OFFSET), word(header, ipv6::SOURCE_OFFSET + 8)])
    }

    /// The destination in an IPv6 header.
    #[inline(always)]
    #[must_use]
    pub fn destination(header: &[u8; ipv6::HEADER_LENGTH]) -> Halves {
        Halves([word(header, ipv6::DESTINATION_OFFSET), word(header, ipv6::DESTINATION_OFFSET + 8)])
    }
}

/// Eight bytes as they are in memory.
#[inline(always)]
pub(crate) fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Checks the source of an IPv6 packet (RFC 7915 §5.1, RFC 6146 §3.5).
///
/// # Errors
/// Names what kind of address it is.
#[inline]
pub const fn check_source6(source: u128, prefix: Prefix) -> Result<(), Reason> {
    if prefix.contains(source) {
        return Err(Reason::SourceInPrefix);
    }
    if ipv6::is_multicast(source) {
        return Err(Reason::SourceMulticast);
    }
    if ipv6::is_link_local(source) {
        return Err(Reason::SourceLinkLocal);
    }
    match source >> 32 {
        0 => Err(match source {
            0 => Reason::SourceUnspecified,
            1 => Reason::SourceLoopback,
            _ => Reason::SourceMapped,
        }),
        0xffff => Err(Reason::SourceMapped),
        _ => Ok(()),
    }
}

/// Checks the source of an IPv4 packet (RFC 7915 §4.1, RFC 1812 §5.3.7).
///
/// # Errors
/// [`Reason::Source4Illegal`].
#[inline]
pub const fn check_source4(source: u32) -> Result<(), Reason> {
    match embedded_kind(source) {
        Some(_) => Err(Reason::Source4Illegal),
        None => Ok(()),
    }
}

/// Checks the IPv4 address that a packet through `prefix` goes to.
///
/// The well-known prefix must not contain private addresses (RFC 6052 §3.1). Addresses for
/// documentation and benchmarks are let through, because test networks use them.
///
/// # Errors
/// Names what kind of address it is.
#[inline]
pub const fn check_embedded(address: u32, prefix: Prefix) -> Result<(), Reason> {
    if let Some(reason) = embedded_kind(address) {
        return Err(reason);
    }
    if prefix.is_well_known() && is_private(address) {
        return Err(Reason::EmbeddedPrivate);
    }
    Ok(())
}

/// True if all addresses with this first octet may be reached ([`check_embedded`]).
#[inline(always)]
pub(crate) const fn is_ordinary(address: u32) -> bool {
    const SPECIAL: [u64; 4] = {
        let mut special = [0; 4];
        let mut octet = 0;
        while octet < 256 {
            let is_special = matches!(octet, 0 | 10 | 100 | 127 | 169 | 172 | 192 | 224..=255);
            special[octet / 64] |= (is_special as u64) << (octet % 64);
            octet += 1;
        }
        special
    };
    let octet = address >> 24;
    SPECIAL[(octet / 64) as usize] >> (octet % 64) & 1 == 0
}

const fn embedded_kind(address: u32) -> Option<Reason> {
    let address = Ipv4Addr::from_bits(address);
    match address.octets() {
        [0, ..] => Some(Reason::EmbeddedUnspecified),
        [127, ..] => Some(Reason::EmbeddedLoopback),
        [169, 254, ..] => Some(Reason::EmbeddedLinkLocal),
        [224..=239, ..] => Some(Reason::EmbeddedMulticast),
        [240..=255, ..] => Some(Reason::EmbeddedReserved),
        _ => None,
    }
}

/// RFC 1918, RFC 6598 and RFC 6333 §5.7.
const fn is_private(address: u32) -> bool {
    let octets = Ipv4Addr::from_bits(address).octets();
    matches!(octets, [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] | [192, 0, 0, _])
}
