//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! Ones-complement arithmetic has two zeros. A sum is 0x0000 only if every summed word is 0; any
//! other multiple of 65535 is 0xffff. So the checksum, its complement, is 0x0000 for those and
//! 0xffff only over all-zero words. Equation 3 of RFC 1624, `HC' = ~(~HC + ~m + m')`, keeps this
//! right except for one message: an ICMP Echo Reply that becomes all zeros (see
//! [`Delta::apply_icmp`]).

use crate::field;

/// Folds to 16 bits with end-around carry.
#[inline(always)]
const fn fold_u64(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    fold_u32(sum as u32)
}

/// Folds to 16 bits with end-around carry.
#[inline(always)]
const fn fold_u32(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// Folds to 16 bits with end-around carry. The halves of a number rotated by half its width add up
/// in its upper half, which also received the carry of the lower half.
#[inline(always)]
pub const fn end_around(sum: u64) -> u16 {
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// The ones-complement sum of 64-bit words. It differs from that of their 16-bit words by a
/// multiple of 65535, and is 0 only if all words are (RFC 1071 §2 (C)).
#[inline(always)]
#[must_use]
pub const fn end_around_sum<const N: usize>(words: [u64; N]) -> u64 {
    let (mut sum, mut i) = (0_u64, 0);
    while i < N {
        let (next, carry) = sum.overflowing_add(words[i]);
        sum = next + carry as u64;
        i += 1;
    }
    sum
}

/// A ones-complement sum in progress.
///
/// It adds words in the byte order of the machine and swaps once at the end (RFC 1071 §2 (B)), so
/// that [`Sum::add_bytes`] can load eight bytes at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Sum of native-order words, carries kept in the upper half.
    native: u64,
}

impl Sum {
    /// An empty sum.
    pub const ZERO: Sum = Sum { native: 0 };

    /// Adds bytes. The slice must begin at an even offset of the summed data, and only the last
    /// slice may have an odd length. An odd last byte counts as if a zero byte followed it (RFC
    /// 1071 §1).
    #[inline]
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Sum {
        let mut native = (self.native & 0xffff_ffff) + (self.native >> 32);
        let (chunks, rest) = bytes.as_chunks::<8>();
        // Each step adds less than 2^33, so 64 bits hold the sum of 16 GiB.
        for chunk in chunks {
            let word = u64::from_ne_bytes(*chunk);
            native += (word & 0xffff_ffff) + (word >> 32);
        }
        let mut last = [0_u8; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        let word = u64::from_ne_bytes(last);
        native += (word & 0xffff_ffff) + (word >> 32);
        Sum { native }
    }

    /// Adds one 16-bit number in host bit order.
    #[inline]
    #[must_use]
    pub const fn add_u16(self, value: u16) -> Sum {
        Sum { native: (self.native & 0xffff_ffff) + (self.native >> 32) + value.to_be() as u64 }
    }

    /// Adds one 32-bit number in host bit order.
    #[inline]
    #[must_use]
    pub const fn add_u32(self, value: u32) -> Sum {
        Sum { native: (self.native & 0xffff_ffff) + (self.native >> 32) + value.to_be() as u64 }
    }

    /// Adds one 128-bit number in host bit order: an IPv6 address.
    #[inline]
    #[must_use]
    pub fn add_u128(self, value: u128) -> Sum {
        self.add_bytes(&value.to_be_bytes())
    }

    /// The 16-bit sum. 0 only when everything added was 0.
    #[inline]
    #[must_use]
    pub const fn fold(self) -> u16 {
        u16::from_be(fold_u64(self.native))
    }

    /// The checksum: the complement of the sum.
    #[inline]
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum as UDP sends it: 0 means "none" (RFC 768), so a computed 0 becomes 0xffff.
    #[inline]
    #[must_use]
    pub const fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            other => other,
        }
    }

    /// True if a sum over data that includes its checksum shows no fault.
    #[inline]
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

/// The effect of changed words on a checksum: `~m + m'` of RFC 1624 equation 3, folded.
///
/// Compute it once for a mapping, store it ([`Delta::to_bits`]) and apply it to each packet. Every
/// changed word must be at an even offset of the covered data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(u16);

impl Delta {
    /// No change.
    pub const NONE: Delta = Delta(0);

    /// A 16-bit number changes from `old` to `new`.
    #[inline(always)]
    #[must_use]
    pub const fn of_u16(old: u16, new: u16) -> Delta {
        Delta(fold_u32(!old as u32 + new as u32))
    }

    /// A 32-bit number changes from `old` to `new`.
    #[inline(always)]
    #[must_use]
    pub const fn of_u32(old: u32, new: u32) -> Delta {
        let old = !old;
        Delta(fold_u32((old >> 16) + (old & 0xffff) + (new >> 16) + (new & 0xffff)))
    }

    /// The sum of both changes.
    #[inline(always)]
    #[must_use]
    pub const fn combine(self, other: Delta) -> Delta {
        Delta(fold_u32(self.0 as u32 + other.0 as u32))
    }

    /// The inverse change.
    #[inline(always)]
    #[must_use]
    pub const fn inverse(self) -> Delta {
        Delta(!self.0)
    }

    /// Updates a checksum of IPv4 headers, TCP or ICMP errors: RFC 1624 equation 3.
    ///
    /// Equals a full recomputation if the new words are not all zero. A protocol number, an IP
    /// version or an ICMP error type guarantees this.
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold_u32(!checksum as u32 + self.0 as u32)
    }

    /// Updates a UDP checksum. 0 means that the sender computed none and stays 0. A result of 0
    /// becomes 0xffff (RFC 768), so that a checksum never turns into none.
    #[inline(always)]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        if checksum == 0 {
            return 0;
        }
        match self.apply(checksum) {
            0 => 0xffff,
            other => other,
        }
    }

    /// Updates the checksum of an ICMP query; `message` already has its new identifier.
    ///
    /// An Echo Reply (type 0) with identifier 0, sequence number 0 and a payload of zeros sums to
    /// 0x0000, so its checksum is 0xffff. Equation 3 gives 0x0000, and every receiver drops such a
    /// message. Only a result of 0 reads the message, up to the first byte that is not zero.
    #[inline]
    #[must_use]
    pub fn apply_icmp(self, checksum: u16, message: &[u8]) -> u16 {
        match self.apply(checksum) {
            0 if is_all_zero_but_checksum(message) => 0xffff,
            other => other,
        }
    }

    /// The bits to store in a record.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Inverse of [`Delta::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u16) -> Delta {
        Delta(bits)
    }
}

#[cold]
fn is_all_zero_but_checksum(message: &[u8]) -> bool {
    let checksum = crate::icmp::CHECKSUM_OFFSET..crate::icmp::CHECKSUM_OFFSET + 2;
    message.iter().enumerate().all(|(offset, byte)| *byte == 0 || checksum.contains(&offset))
}

/// 0 and 0xffff are the same change.
impl PartialEq for Delta {
    fn eq(&self, other: &Delta) -> bool {
        self.0 % 0xffff == other.0 % 0xffff
    }
}

impl Eq for Delta {}

/// The checksum over `bytes`. A checksum field among them must be zero.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> u16 {
    Sum::ZERO.add_bytes(bytes).checksum()
}

/// The right checksum of an IPv4 header, given whole with its options. Ignores the checksum field.
#[must_use]
pub fn ipv4_header_checksum(header: &[u8]) -> u16 {
    let before = field::clamped(header, 0, crate::ipv4::CHECKSUM_OFFSET);
    let after = field::clamped(header, crate::ipv4::CHECKSUM_OFFSET + 2, header.len());
    Sum::ZERO.add_bytes(before).add_bytes(after).checksum()
}

/// True if the checksum of a whole IPv4 header is right.
#[must_use]
pub fn is_ipv4_header_valid(header: &[u8]) -> bool {
    Sum::ZERO.add_bytes(header).is_valid()
}

/// The pseudo-header of TCP and UDP (RFC 9293 §3.1, RFC 768). `length` counts transport header and
/// payload.
#[must_use]
pub const fn pseudo_header(source: u32, destination: u32, protocol: u8, length: u16) -> Sum {
    Sum::ZERO.add_u32(source).add_u32(destination).add_u16(protocol as u16).add_u16(length)
}

/// The pseudo-header of IPv6 (RFC 8200 §8.1). `length` counts the upper-layer header and payload.
#[must_use]
pub fn pseudo_header6(source: u128, destination: u128, protocol: u8, length: u32) -> Sum {
    Sum::ZERO.add_u128(source).add_u128(destination).add_u32(length).add_u16(u16::from(protocol))
}

/// True if the checksum of a TCP segment between these addresses is right.
#[must_use]
pub fn is_tcp_valid(source: u32, destination: u32, segment: &[u8]) -> bool {
    match u16::try_from(segment.len()) {
        Ok(length) => {
            pseudo_header(source, destination, crate::ipv4::PROTOCOL_TCP, length).add_bytes(segment).is_valid()
        }
        Err(_) => false,
    }
}

/// True if the checksum of a UDP datagram between these addresses is right or absent. `datagram`
/// begins at the UDP header and ends where its length field says.
#[must_use]
pub fn is_udp_valid(source: u32, destination: u32, datagram: &[u8]) -> bool {
    if field::u16_at(datagram, crate::udp::CHECKSUM_OFFSET) == 0 {
        return true;
    }
    match u16::try_from(datagram.len()) {
        Ok(length) => {
            pseudo_header(source, destination, crate::ipv4::PROTOCOL_UDP, length).add_bytes(datagram).is_valid()
        }
        Err(_) => false,
    }
}

/// True if the checksum of an ICMP message is right.
#[must_use]
pub fn is_icmp_valid(message: &[u8]) -> bool {
    Sum::ZERO.add_bytes(message).is_valid()
}

/// Like [`Delta`], for several changes in a row: words in memory order, folded only when applied.
///
/// The sum is the same in either byte order except for a swap (RFC 1071 §2 (B)), so nothing is
/// swapped. Takes up to 2^31 words.
#[derive(Clone, Copy, Debug)]
pub struct WideDelta(u64);

impl WideDelta {
    /// Changes four bytes at an even offset of the covered data.
    #[inline(always)]
    #[must_use]
    pub const fn of_u32(old: [u8; 4], new: [u8; 4]) -> WideDelta {
        WideDelta(!u32::from_ne_bytes(old) as u64 + u32::from_ne_bytes(new) as u64)
    }

    /// Changes two bytes at an even offset of the covered data.
    #[inline(always)]
    #[must_use]
    pub const fn of_u16(old: [u8; 2], new: [u8; 2]) -> WideDelta {
        WideDelta(!u16::from_ne_bytes(old) as u64 + u16::from_ne_bytes(new) as u64)
    }

    /// Words of eight bytes, in memory order and at an even offset of the covered data, give way to
    /// others. Costs two instructions a word, and is folded to 16 bits only when applied.
    #[inline(always)]
    #[must_use]
    pub const fn of_words<const O: usize, const N: usize>(old: [u64; O], new: [u64; N]) -> WideDelta {
        let sum = end_around_sum([!end_around_sum(old), end_around_sum(new)]);
        WideDelta((sum >> 32) + (sum & 0xffff_ffff))
    }

    /// Decrements the first of two bytes, which must not be 0.
    pub const DECREMENT: WideDelta = WideDelta::of_u16([1, 0], [0, 0]);

    /// The sum of both changes.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: WideDelta) -> WideDelta {
        WideDelta(self.0 + other.0)
    }

    /// Updates a checksum in memory order: RFC 1624 equation 3, as [`Delta::apply`].
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !end_around(self.0 + !checksum as u64)
    }
}

#[cfg(test)]
mod tests;
