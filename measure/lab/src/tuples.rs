//! The four-tuples of a test: ranges of addresses and ports, enumerated once each in a pseudorandom
//! order.
//!
//! RFC 9693 §4.1 and RFC 4814 ask for pseudorandom ports. A shuffled list would need memory for
//! each tuple; a keyed permutation of the numbers needs none, and the same seed gives the same
//! order again.

use core::net::Ipv4Addr;
use core::ops::RangeInclusive;

use serde::Serialize;

/// An address and a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// IPv4 address, host order.
    pub address: u32,
    /// Port of UDP or TCP.
    pub port: u16,
}

impl Endpoint {
    /// An endpoint.
    pub const fn new(address: Ipv4Addr, port: u16) -> Endpoint {
        Endpoint { address: address.to_bits(), port }
    }
}

impl core::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", Ipv4Addr::from_bits(self.address), self.port)
    }
}

/// A connection as the Initiator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FourTuple {
    /// Source of what the Initiator sends.
    pub inside: Endpoint,
    /// Destination of what the Initiator sends.
    pub remote: Endpoint,
}

/// Addresses and ports on one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointRange {
    /// The first address; the others follow.
    pub first_address: Ipv4Addr,
    /// How many addresses there are, at least 1.
    pub addresses: u32,
    /// Ports of each.
    pub ports: RangeInclusive<u16>,
}

impl EndpointRange {
    /// How many endpoints there are.
    pub fn len(&self) -> u64 {
        u64::from(self.addresses) * self.ports.clone().count() as u64
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Endpoint `index` modulo [`Self::len`]: neighbours in number have neighbouring addresses.
    #[inline(always)]
    fn at(&self, index: u64) -> Endpoint {
        let address = index % u64::from(self.addresses);
        let port = (index / u64::from(self.addresses)) % self.ports.clone().count() as u64;
        Endpoint {
            address: self.first_address.to_bits().wrapping_add(address as u32),
            port: self.ports.start().wrapping_add(port as u16),
        }
    }

    /// Whether an endpoint is among them.
    pub fn contains(&self, endpoint: Endpoint) -> bool {
        endpoint.address.wrapping_sub(self.first_address.to_bits()) < self.addresses
            && self.ports.contains(&endpoint.port)
    }
}

/// All four-tuples of a test, in the order in which they are used.
#[derive(Clone, Debug)]
pub struct TupleSpace {
    inside: EndpointRange,
    remote: EndpointRange,
    order: Permutation,
}

impl TupleSpace {
    /// The first `count` four-tuples of a pseudorandom order of all of `inside` × `remote`.
    ///
    /// Returns None when there are fewer than `count`, or more than 2⁴⁰ in all.
    pub fn new(inside: EndpointRange, remote: EndpointRange, count: u64, seed: u64) -> Option<TupleSpace> {
        let all = inside.len().checked_mul(remote.len())?;
        if count > all || all == 0 || all > 1 << 40 {
            return None;
        }
        Some(TupleSpace { order: Permutation::new(all, seed), inside, remote })
    }

    /// How many there are in all.
    pub fn len(&self) -> u64 {
        self.order.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The inside endpoints.
    pub fn inside(&self) -> &EndpointRange {
        &self.inside
    }

    /// The remote endpoints.
    pub fn remote(&self) -> &EndpointRange {
        &self.remote
    }

    /// The four-tuple that comes at place `index` of the order. Different places below
    /// [`Self::len`] have different tuples.
    #[inline(always)]
    pub fn at(&self, index: u64) -> FourTuple {
        let number = self.order.at(index);
        let inside = self.inside.len();
        FourTuple { inside: self.inside.at(number % inside), remote: self.remote.at(number / inside) }
    }
}

/// A pseudorandom permutation of the numbers below `len`: a Feistel network of four rounds over the
/// next power of four, walked along its cycle until the number is below `len` (Black and Rogaway,
/// "Ciphers with arbitrary finite domains", 2002). Fewer than four steps on average.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    /// Another order for each seed.
    pub fn new(len: u64, seed: u64) -> Permutation {
        let bits = 64 - len.saturating_sub(1).leading_zeros();
        let mut state = seed;
        let keys = core::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed(state)
        });
        Permutation { len, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The number at place `index`, which is taken modulo the length.
    #[inline(always)]
    pub fn at(&self, index: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let mut number = index % self.len;
        loop {
            let (mut left, mut right) = (number >> self.half_bits, number & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (mixed(right ^ key) & mask));
            }
            number = (left << self.half_bits) | right;
            if number < self.len {
                return number;
            }
        }
    }
}

/// The finaliser of SplitMix64: every bit of the result hangs on every bit of the input.
#[inline(always)]
pub(crate) const fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn range(first: [u8; 4], addresses: u32, ports: RangeInclusive<u16>) -> EndpointRange {
        EndpointRange { first_address: first.into(), addresses, ports }
    }

    #[test]
    fn a_permutation_gives_each_number_once_whatever_the_length() {
        for len in [1, 2, 3, 5, 64, 1000, 4097] {
            let order = Permutation::new(len, 7);
            let seen: HashSet<u64> = (0..len).map(|index| order.at(index)).collect();
            assert_eq!(seen.len() as u64, len);
            assert!(seen.iter().all(|number| *number < len));
        }
    }

    #[test]
    fn orders_differ_by_seed_and_are_not_ascending() {
        let (one, other) = (Permutation::new(10_000, 1), Permutation::new(10_000, 2));
        let same = (0..10_000).filter(|index| one.at(*index) == other.at(*index)).count();
        assert!(same < 20, "{same} of 10000 numbers are at the same place in both orders");
        let ascents = (1..10_000).filter(|index| one.at(*index) > one.at(index - 1)).count();
        assert!((4500..5500).contains(&ascents), "{ascents} of 9999 steps go up");
    }

    #[test]
    fn each_tuple_comes_once_and_lies_in_its_ranges() {
        let space =
            TupleSpace::new(range([10, 0, 0, 2], 7, 1024..=1063), range([198, 19, 0, 0], 3, 80..=84), 4200, 3).unwrap();
        assert_eq!(space.len(), 7 * 40 * 3 * 5);
        let seen: HashSet<FourTuple> = (0..space.len()).map(|index| space.at(index)).collect();
        assert_eq!(seen.len(), 4200);
        assert!(
            seen.iter().all(|tuple| space.inside().contains(tuple.inside) && space.remote().contains(tuple.remote))
        );
    }

    #[test]
    fn more_tuples_than_there_are_is_refused() {
        assert!(TupleSpace::new(range([10, 0, 0, 2], 1, 1..=10), range([198, 19, 0, 0], 1, 80..=80), 11, 0).is_none());
    }
}
