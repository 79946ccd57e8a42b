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
}

/// The external addresses of all pools of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolRanges {
    /// Sorted, apart from each other.
    ranges: Vec<PoolRange>,
}

impl PoolRanges {
    /// The ranges of addresses with the numbers of their pools.
    pub fn new(addresses: impl Iterator<Item = (Ipv4Addr, u16)>) -> PoolRanges {
        let single = |(address, pool): (Ipv4Addr, u16)| PoolRange { first: address.into(), last: address.into(), pool };
        PoolRanges::of(addresses.map(single).collect())
    }

    /// The same from ranges, in any order. Of two that overlap the first counts.
    pub(crate) fn of(mut ranges: Vec<PoolRange>) -> PoolRanges {
        ranges.sort_unstable();
        let mut joined: Vec<PoolRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.first <= last.last => {}
                Some(last) if range.pool == last.pool && range.first - last.last == 1 => {
                    last.last = range.last.max(range.first);
                }
                _ => joined.push(PoolRange { last: range.last.max(range.first), ..range }),
            }
        }
        PoolRanges { ranges: joined }
    }

    /// The number of the pool that has this address.
    pub fn find(&self, address: Ipv4Addr) -> Option<u16> {
        let address = address.to_bits();
        let place = self.ranges.partition_point(|range| range.last < address);
        self.ranges.get(place).filter(|range| range.first <= address).map(|range| range.pool)
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
        let pools = PoolRanges::new(given.iter().map(|(address, pool)| (Ipv4Addr::from_bits(*address), *pool)));
        assert_eq!(pools.ranges().len(), 5);
        for address in (0..12).chain([u32::MAX - 1, u32::MAX]) {
            let known = given.iter().find(|(known, _)| *known == address).map(|(_, pool)| *pool);
            assert_eq!(pools.find(Ipv4Addr::from_bits(address)), known, "{address}");
        }
    }
}
