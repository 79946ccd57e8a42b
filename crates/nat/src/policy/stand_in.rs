//! What stands for IPv6 hosts where rules, filters and classes compare 32-bit addresses.
//!
//! ```text
//!   prefixes that the configuration names ─► a tree ─► each an aligned block of 224.0.0.0/3
//!
//!   2001:db8::/32       ┌──────────────┬──────────────┬─────────────┬────────┐
//!   with three more     │ 2001:db8:1:: │ 2001:db8:2:: │ 2001:db8:3::│ others │
//!   prefixes in it      └──────────────┴──────────────┴─────────────┴────────┘
//! ```
//!
//! A host is the last address of the block of the longest prefix that contains it. So a block
//! contains a host exactly if the prefix does, and everything made for IPv4 prefixes works with
//! blocks.
//!
//! An outermost prefix keeps its block when others are added or removed, so the counters of its
//! rules continue.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::BTreeMap;

use crate::types::HOSTS_FIRST;
use crate::types::Prefix;

/// Addresses for the outermost blocks: a quarter of all, so that a free place is found soon.
const ROOM: u64 = 1 << 27;
/// Number of addresses in 224.0.0.0/3.
const ADDRESSES: u64 = 1 << 29;

/// An IPv6 prefix. Host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix6 {
    address: u128,
    length: u8,
}

impl Prefix6 {
    /// Clears host bits. `None` if `length` is over 128.
    pub const fn new(address: u128, length: u8) -> Option<Prefix6> {
        match length {
            0 => Some(Prefix6 { address: 0, length }),
            1..=128 => Some(Prefix6 { address: address & u128::MAX << (128 - length as u32), length }),
            _ => None,
        }
    }

    /// The first address.
    pub const fn address(self) -> u128 {
        self.address
    }

    /// 0 to 128.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// True for an address of the prefix.
    pub const fn contains(self, address: u128) -> bool {
        match self.length {
            0 => true,
            length => (self.address ^ address) >> (128 - length as u32) == 0,
        }
    }

    pub(crate) const fn last(self) -> u128 {
        match self.length {
            128 => self.address,
            length => self.address | u128::MAX >> length as u32,
        }
    }
}

impl fmt::Display for Prefix6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv6Addr::from_bits(self.address), self.length)
    }
}

/// A prefix and what stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// As configured.
    pub prefix: Prefix6,
    /// Stands for the prefix in rules, filters and classes.
    pub block: Prefix,
}

/// Too many prefixes, or too many in each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many IPv6 prefixes, or too many of them nested")]
pub struct NoRoom;

/// The blocks, in the order of the prefixes' addresses.
///
/// # Errors
/// Not enough room for all.
pub fn stand_ins(prefixes: impl IntoIterator<Item = Prefix6>) -> Result<Vec<StandIn>, NoRoom> {
    let mut prefixes: Vec<Prefix6> = prefixes.into_iter().collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    let parents = parents(&prefixes);
    // Children stand behind their parents.
    let mut sizes = vec![1_u64; prefixes.len()];
    for at in (0..prefixes.len()).rev() {
        sizes[at] = sizes[at].next_power_of_two();
        if sizes[at] > ROOM {
            return Err(NoRoom);
        }
        if let Some(parent) = parents[at] {
            sizes[parent] += sizes[at];
        }
    }
    let outermost = (0..prefixes.len()).filter(|at| parents[*at].is_none());
    if outermost.map(|at| sizes[at]).sum::<u64>() > ROOM {
        return Err(NoRoom);
    }
    Ok(placed(&prefixes, &parents, &sizes))
}

/// The longest other prefix that contains each.
fn parents(prefixes: &[Prefix6]) -> Vec<Option<usize>> {
    let mut parents = Vec::with_capacity(prefixes.len());
    let mut around: Vec<usize> = Vec::new();
    for (at, prefix) in prefixes.iter().enumerate() {
        while around.last().is_some_and(|last| !prefixes[*last].contains(prefix.address)) {
            around.pop();
        }
        parents.push(around.last().copied());
        around.push(at);
    }
    parents
}

fn placed(prefixes: &[Prefix6], parents: &[Option<usize>], sizes: &[u64]) -> Vec<StandIn> {
    // Larger ones first: then each place is free or taken as a whole.
    let mut order: Vec<usize> = (0..prefixes.len()).collect();
    order.sort_by_key(|at| (parents[*at].is_some(), core::cmp::Reverse(sizes[*at]), *at));
    let mut starts = vec![0; prefixes.len()];
    let mut taken: BTreeMap<u64, u64> = BTreeMap::from([(0, 1)]);
    for at in order.iter().copied().filter(|at| parents[*at].is_none()) {
        if prefixes[at].length == 0 {
            continue;
        }
        let (size, places) = (sizes[at], ADDRESSES / sizes[at]);
        let mut place = hash(prefixes[at]) % places;
        let is_taken = |place: u64| {
            let (start, end) = (place * size, (place + 1) * size);
            taken.range(..end).next_back().is_some_and(|(_, last)| *last > start)
        };
        while is_taken(place) {
            place = (place + 1) % places;
        }
        starts[at] = place * size;
        taken.insert(place * size, (place + 1) * size);
    }
    let mut next = starts.clone();
    // By depth, so that parents get their start before their children.
    let mut inner: Vec<usize> = (0..prefixes.len()).filter(|at| parents[*at].is_some()).collect();
    inner.sort_by_key(|at| (depth(parents, *at), core::cmp::Reverse(sizes[*at]), *at));
    for at in inner {
        let Some(parent) = parents[at] else { continue };
        // In ::/0, after the block that stands for all other hosts.
        if prefixes[parent].length == 0 && next[parent] == 0 {
            next[parent] = sizes[at];
        }
        starts[at] = next[parent];
        next[parent] += sizes[at];
        next[at] = starts[at];
    }
    let block = |at: usize| match prefixes[at].length {
        0 => Some(Prefix::HOSTS),
        _ => {
            let address = Ipv4Addr::from_bits(HOSTS_FIRST | starts[at] as u32);
            Prefix::new(address, 32 - sizes[at].trailing_zeros() as u8)
        }
    };
    (0..prefixes.len()).filter_map(|at| Some(StandIn { prefix: prefixes[at], block: block(at)? })).collect()
}

fn depth(parents: &[Option<usize>], at: usize) -> usize {
    core::iter::successors(parents[at], |parent| parents[*parent]).count()
}

/// FNV-1a: the same in every instance.
fn hash(prefix: Prefix6) -> u64 {
    let bytes = prefix.address.to_be_bytes().into_iter().chain([prefix.length]);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[derive(Clone, Debug)]
pub(crate) struct StandIns {
    /// The block of each address up to the next entry.
    stretches: Vec<(u128, u32)>,
}

impl StandIns {
    /// `all` in the order of [`stand_ins`].
    pub(crate) fn new(all: &[StandIn]) -> StandIns {
        let mut stretches: Vec<(u128, u32)> = vec![(0, HOSTS_FIRST)];
        let mut around: Vec<&StandIn> = Vec::new();
        let own = |one: Option<&&StandIn>| one.map_or(HOSTS_FIRST, |one| one.block.last().to_bits());
        let mut begin = |from: u128, stands: u32| {
            match stretches.last_mut() {
                Some(last) if last.0 == from => last.1 = stands,
                _ => stretches.push((from, stands)),
            };
        };
        for one in all {
            while let Some(last) = around.last().filter(|last| !last.prefix.contains(one.prefix.address)) {
                let end = last.prefix.last();
                around.pop();
                begin(end + 1, own(around.last()));
            }
            begin(one.prefix.address, one.block.last().to_bits());
            around.push(one);
        }
        while let Some(last) = around.pop() {
            if let Some(next) = last.prefix.last().checked_add(1) {
                begin(next, own(around.last()));
            }
        }
        StandIns { stretches }
    }

    /// Costs a binary search over the prefixes.
    pub(crate) fn of(&self, address: u128) -> u32 {
        let behind = self.stretches.partition_point(|(from, _)| *from <= address);
        behind.checked_sub(1).and_then(|at| self.stretches.get(at)).map_or(HOSTS_FIRST, |(_, stands)| *stands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix6 {
        let (address, length) = text.split_once('/').unwrap();
        Prefix6::new(address.parse::<Ipv6Addr>().unwrap().to_bits(), length.parse().unwrap()).unwrap()
    }

    fn check(all: &[Prefix6]) {
        let named = stand_ins(all.iter().copied()).unwrap();
        let found = StandIns::new(&named);
        let near = |prefix: &Prefix6| {
            let (first, last) = (prefix.address, prefix.last());
            [first, last, first.wrapping_sub(1), last.wrapping_add(1), first ^ 1 << 60]
        };
        for host in all.iter().flat_map(near) {
            let stands = found.of(host);
            assert!(stands >= HOSTS_FIRST);
            for one in &named {
                let is_in = one.block.contains(Ipv4Addr::from_bits(stands));
                assert_eq!(is_in, one.prefix.contains(host), "{} and {:x}", one.prefix, host);
            }
        }
    }

    #[test]
    fn a_block_contains_the_hosts_of_its_prefix() {
        check(&[]);
        check(&[prefix("::/0")]);
        check(&[prefix("2001:db8::/32")]);
        let nested = ["::/0", "2001:db8::/32", "2001:db8:1::/48", "2001:db8:1:100::/56", "2001:db8:1:100::7/128"];
        check(&nested.map(prefix));
        let mixed = ["2001:db8:1::/48", "2001:db8:2::/48", "2001:db8:2:200::/56", "3fff::/20", "ff00::/8"];
        check(&mixed.map(prefix));
        check(&[prefix("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"), prefix("::/1"), prefix("8000::/1")]);
        let many: Vec<Prefix6> = (0..300_u128)
            .map(|n| Prefix6::new(0x2001_0db8 << 96 | n.wrapping_mul(0x9e37_79b9) << 64, 40 + (n % 40) as u8).unwrap())
            .collect();
        check(&many);
    }

    #[test]
    fn a_prefix_keeps_its_block_when_others_come() {
        let few = stand_ins(["2001:db8:1::/48", "2001:db8:9::/56"].map(prefix)).unwrap();
        let more = ["2001:db8:1::/48", "2001:db8:9::/56", "2001:db8:0::/56", "2001:db8:7::/56", "2001:db8:7::/64"];
        let more = stand_ins(more.map(prefix)).unwrap();
        assert!(few.iter().all(|one| more.contains(one)), "{few:?} {more:?}");
    }

    #[test]
    fn prefixes_in_each_other_end_before_the_room_does() {
        let chain = |count: u8| stand_ins((0..count).map(|more| Prefix6::new(0x2001_0db8 << 96, 32 + more).unwrap()));
        assert!(chain(20).is_ok());
        assert_eq!(chain(60), Err(NoRoom));
    }
}
