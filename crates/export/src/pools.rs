//! Which pool an external address is of. An address is in one pool only, so records of mappings
//! need no pool.

use core::net::Ipv4Addr;

/// Neighbouring addresses of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolRange {
    /// First address.
    pub first: u32,
    /// Last address.
    pub last: u32,
    /// Number of the pool's name.
    pub pool: u16,
    /// True if the configuration alone gives each of these addresses to one host: it has a record
    /// only while the host uses it.
    pub is_one_to_one: bool,
}

impl PoolRange {
    /// A single address, which several hosts share.
    pub fn of_address(address: Ipv4Addr, pool: u16) -> PoolRange {
        PoolRange { first: address.into(), last: address.into(), pool, is_one_to_one: false }
    }
}

/// The external addresses of all pools of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolRanges {
    /// Sorted, apart from each other.
    ranges: Vec<PoolRange>,
    /// True if an earlier version recorded them, without saying which are one-to-one.
    is_of_earlier_version: bool,
}

impl PoolRanges {
    /// The pools from their ranges, in any order. Of two that overlap the first counts.
    pub fn of(mut ranges: Vec<PoolRange>) -> PoolRanges {
        ranges.sort_unstable();
        let mut joined: Vec<PoolRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.first <= last.last => {}
                Some(last)
                    if PoolRange { first: last.first, last: last.last, ..range } == *last
                        && range.first - last.last == 1 =>
                {
                    last.last = range.last.max(range.first);
                }
                _ => joined.push(PoolRange { last: range.last.max(range.first), ..range }),
            }
        }
        PoolRanges { ranges: joined, is_of_earlier_version: false }
    }

    /// The same as an earlier version recorded them: which are one-to-one is not known.
    pub fn of_earlier_version(ranges: Vec<PoolRange>) -> PoolRanges {
        PoolRanges { is_of_earlier_version: true, ..PoolRanges::of(ranges) }
    }

    /// True if it is not known which addresses the configuration alone gave to one host each.
    pub fn is_of_earlier_version(&self) -> bool {
        self.is_of_earlier_version
    }

    /// The number of the pool that has this address.
    pub fn find(&self, address: Ipv4Addr) -> Option<u16> {
        self.range_of(address).map(|range| range.pool)
    }

    /// The range that has this address.
    pub(crate) fn range_of(&self, address: Ipv4Addr) -> Option<&PoolRange> {
        let address = address.to_bits();
        let place = self.ranges.partition_point(|range| range.last < address);
        self.ranges.get(place).filter(|range| range.first <= address)
    }

    /// All ranges, in order.
    pub fn ranges(&self) -> &[PoolRange] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_pool_that_was_given() {
        let given = [(5, 0), (3, 0), (4, 0), (6, 1), (9, 1), (u32::MAX, 7), (0, 2)];
        let single = |(address, pool): &(u32, u16)| PoolRange::of_address(Ipv4Addr::from_bits(*address), *pool);
        let pools = PoolRanges::of(given.iter().map(single).collect());
        assert_eq!(pools.ranges().len(), 5);
        for address in (0..12).chain([u32::MAX - 1, u32::MAX]) {
            let known = given.iter().find(|(known, _)| *known == address).map(|(_, pool)| *pool);
            assert_eq!(pools.find(Ipv4Addr::from_bits(address)), known, "{address}");
        }
    }
}
