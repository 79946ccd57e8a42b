//! Addresses of IPv6 with an IPv4 address inside (RFC 6052).

use core::fmt;

use crate::address::Halves;
use crate::reason::Reason;

/// Bits 64 to 71, the "u" octet, which must be zero (RFC 6052 §2.2).
const U_OCTET: u128 = 0xff << 56;

/// A translation prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    bits: Halves,
    /// As many leading ones as the length.
    mask: Halves,
    length: u8,
}

/// Why a prefix is none for translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixFault {
    /// The length is not 32, 40, 48, 56, 64 or 96.
    Length,
    /// Bits behind the length are set.
    HostBits,
    /// Bits 64 to 71 are not zero.
    UOctet,
    /// Not a global unicast address: a group, link-local, ::/96 or ::ffff:0:0/96.
    NotUnicast,
}

impl fmt::Display for PrefixFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PrefixFault::Length => "prefix length must be 32, 40, 48, 56, 64 or 96",
            PrefixFault::HostBits => "bits behind the prefix length must be zero",
            PrefixFault::UOctet => "bits 64 to 71 of the prefix must be zero",
            PrefixFault::NotUnicast => "addresses of the prefix must be global unicast",
        })
    }
}

impl core::error::Error for PrefixFault {}

impl Prefix {
    /// 64:ff9b::/96 (RFC 6052 §2.1).
    pub const WELL_KNOWN: Prefix = Prefix::unchecked(0x0064_ff9b << 96, 96);

    const fn unchecked(bits: u128, length: u8) -> Prefix {
        Prefix { bits: Halves::of(bits), mask: Halves::of(u128::MAX << (128 - length as u32)), length }
    }

    /// A prefix with this address and length.
    ///
    /// # Errors
    /// [`PrefixFault`].
    pub const fn new(address: u128, length: u8) -> Result<Prefix, PrefixFault> {
        if !matches!(length, 32 | 40 | 48 | 56 | 64 | 96) {
            return Err(PrefixFault::Length);
        }
        if address << length != 0 {
            return Err(PrefixFault::HostBits);
        }
        if address & U_OCTET != 0 {
            return Err(PrefixFault::UOctet);
        }
        let is_mapped = length == 96 && matches!(address >> 32, 0 | 0xffff);
        if is_mapped || address == 0 || wire::ipv6::is_multicast(address) || wire::ipv6::is_link_local(address) {
            return Err(PrefixFault::NotUnicast);
        }
        Ok(Prefix::unchecked(address, length))
    }

    /// The address with zeros behind the length.
    #[must_use]
    pub const fn address(self) -> u128 {
        self.bits.address()
    }

    /// Length in bits.
    #[must_use]
    pub const fn length(self) -> u8 {
        self.length
    }

    /// True for 64:ff9b::/96, which must not contain private addresses.
    #[must_use]
    pub const fn is_well_known(self) -> bool {
        self.address() == Prefix::WELL_KNOWN.address() && self.length == 96
    }

    /// True if an address has this prefix.
    #[inline(always)]
    #[must_use]
    pub const fn contains(&self, address: u128) -> bool {
        self.contains_halves(Halves::of(address))
    }

    /// [`Prefix::contains`].
    #[inline(always)]
    #[must_use]
    pub const fn contains_halves(&self, Halves([high, low]): Halves) -> bool {
        let (Halves(bits), Halves(mask)) = (self.bits, self.mask);
        (high ^ bits[0]) & mask[0] | (low ^ bits[1]) & mask[1] == 0
    }

    /// The address with this IPv4 address inside; bits behind it are zero.
    #[inline]
    #[must_use]
    pub const fn embed(&self, address: u32) -> u128 {
        let (bits, address) = (self.address(), address as u128);
        if self.length == 96 {
            return bits | address;
        }
        // Bits up to the "u" octet, and bits from bit 72 on.
        let above = 64 - self.length as u32;
        let below = 32 - above;
        bits | (address >> below) << 64 | (address & ((1 << below) - 1)) << (24 + above)
    }

    /// [`Prefix::embed`] of an address as a header has it.
    #[inline(always)]
    #[must_use]
    pub fn embed_octets(&self, octets: [u8; 4]) -> Halves {
        if self.length == 96 {
            let [a, b, c, d] = octets;
            let Halves([high, low]) = self.bits;
            return Halves([high, low | u64::from_ne_bytes([0, 0, 0, 0, a, b, c, d])]);
        }
        Halves::of(self.embed(u32::from_be_bytes(octets)))
    }

    /// The IPv4 address inside an address of this prefix. Bits behind it are ignored.
    #[inline(always)]
    #[must_use]
    pub const fn extract(&self, address: u128) -> u32 {
        if self.length == 96 {
            return address as u32;
        }
        let above = 64 - self.length as u32;
        let below = 32 - above;
        let upper = (address >> 64) & ((1 << above) - 1);
        let lower = (address >> (24 + above)) & ((1 << below) - 1);
        (upper << below | lower) as u32
    }

    /// [`Prefix::destination`] of an address that has this prefix; `None` for its errors. Takes one
    /// look into a table for nearly all addresses behind a prefix of 96 bits.
    #[inline(always)]
    #[must_use]
    pub fn destination_within(&self, address: Halves) -> Option<u32> {
        let low = u64::from_be(address.0[1]);
        let inside = if self.length == 96 { low as u32 } else { self.extract_further(address) };
        // With a prefix of 96 bits it is part of that, and zero.
        let has_octet = low & U_OCTET as u64 != 0;
        if (has_octet || !crate::address::is_ordinary(inside)) && self.is_refused(address) {
            return None;
        }
        Some(inside)
    }

    #[inline(never)]
    const fn extract_further(&self, address: Halves) -> u32 {
        self.extract(address.address())
    }

    #[inline(never)]
    fn is_refused(&self, address: Halves) -> bool {
        self.destination(address.address()).is_err()
    }

    /// The IPv4 address that a packet to `address` goes to.
    ///
    /// # Errors
    /// Names why there is none: outside the prefix, a "u" octet, or an IPv4 address that must not
    /// be reached ([`crate::check_embedded`]).
    #[inline]
    pub fn destination(self, address: u128) -> Result<u32, Reason> {
        if !self.contains(address) {
            return Err(Reason::DestinationOutsidePrefix);
        }
        if address & U_OCTET != 0 {
            return Err(Reason::EmbeddedUOctet);
        }
        let inside = self.extract(address);
        crate::check_embedded(inside, self)?;
        Ok(inside)
    }
}
