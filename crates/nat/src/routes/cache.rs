//! A worker's next hops for established packets.
//!
//! ```text
//!  coarse entry of an address ─► ways: next hop, MTU
//!  if longer routes decide:
//!  address ─► hash: 4096 pairs of lines ─► address, table, version of the routes │ next hop, MTU
//! ```
//!
//! Two addresses with the same hash fit side by side. A line is valid while no route changes:
//! [`RouteCache::follow`] learns of changes at the beginning of each burst.

use core::array;

use crate::headers::packet::Egress;
use crate::headers::packet::NextHopId;
use crate::routes::CUT;

/// 128 KiB.
const PAIRS: usize = 4_096;
const HASH_SHIFT: u32 = 32 - PAIRS.trailing_zeros();
const TAGS: u64 = u16::MAX as u64;

/// Where an established packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) egress: Egress,
    /// 0, so that no packet fits, without a route or if the next hop takes longer to find.
    pub(crate) mtu: u16,
}

impl Departure {
    const NOWHERE: Departure = Departure::undecided(0);

    /// The subscriber chooses among the next hops of a value.
    pub(crate) const fn undecided(value: u32) -> Departure {
        Departure { egress: Egress { next_hop: NextHopId(value) }, mtu: 0 }
    }

    #[inline(always)]
    pub(crate) fn of(self, length: u16) -> Option<Egress> {
        (length <= self.mtu).then_some(self.egress)
    }
}

/// A pair of lines. Keys are address, version and table.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Pair {
    keys: [u64; 2],
    ways: [Departure; 2],
}

const EMPTY: Pair = Pair { keys: [0; 2], ways: [Departure::NOWHERE; 2] };
const _: () = assert!(size_of::<Pair>() == 32, "a pair is half a cache line");

/// It has no lines without live routes.
#[derive(Debug)]
pub(crate) struct RouteCache {
    /// Departures by coarse entry.
    ways: [Departure; 1 << u8::BITS],
    lines: Option<Box<[Pair; PAIRS]>>,
    version: u64,
    /// `version` in the lines; never 0, so empty lines do not count.
    tag: u16,
    hops_version: u64,
    /// Every address outside has a fine entry.
    is_filled: bool,
}

impl RouteCache {
    pub(crate) fn new(is_live: bool, ways: impl Fn(u8) -> Option<Departure>) -> RouteCache {
        let lines = || Box::new([EMPTY; PAIRS]);
        let none = [Departure::NOWHERE; _];
        let mut cache = RouteCache {
            ways: none,
            lines: is_live.then(lines),
            version: 0,
            tag: 1,
            hops_version: 0,
            is_filled: false,
        };
        cache.set_ways(ways);
        cache
    }

    /// What the coarse entries other than [`CUT`] lead to.
    pub(crate) fn set_ways(&mut self, ways: impl Fn(u8) -> Option<Departure>) {
        self.ways = array::from_fn(|leaf| {
            let leaf = leaf as u8;
            let way = if leaf == CUT { None } else { ways(leaf) };
            way.unwrap_or(Departure::NOWHERE)
        });
    }

    /// True if the version is another one than before. Lines of other versions are no longer valid.
    #[inline]
    pub(crate) fn follow(&mut self, version: u64) -> bool {
        let is_other = version != self.version;
        if is_other {
            self.turn_to(version);
        }
        is_other
    }

    /// Whether every address outside has a fine entry: then coarse entries need not be read.
    #[inline(always)]
    pub(crate) fn is_filled(&self) -> bool {
        self.is_filled
    }

    /// See [`RouteCache::is_filled`].
    pub(crate) fn set_filled(&mut self, is_filled: bool) {
        self.is_filled = is_filled;
    }

    /// True if [`RouteCache::set_ways`] is due.
    #[inline]
    pub(crate) fn follow_hops(&mut self, version: u64) -> bool {
        core::mem::replace(&mut self.hops_version, version) != version
    }

    #[inline(never)]
    fn turn_to(&mut self, version: u64) {
        // Tags repeat from here.
        if self.version / TAGS != version / TAGS
            && let Some(lines) = &mut self.lines
        {
            lines.fill(EMPTY);
        }
        self.version = version;
        self.tag = (version % TAGS) as u16 + 1;
    }

    #[inline(always)]
    fn key(&self, table: u16, address: u32) -> u64 {
        u64::from(address) << 32 | u64::from(self.tag) << 16 | u64::from(table)
    }

    #[inline(always)]
    fn place(table: u16, address: u32) -> usize {
        ((address ^ u32::from(table) << 16).wrapping_mul(0x9e37_79b1) >> HASH_SHIFT) as usize
    }

    #[inline(always)]
    pub(crate) fn way(&self, leaf: u8) -> Departure {
        self.ways[usize::from(leaf)]
    }

    /// What was looked up recently.
    #[inline(always)]
    pub(crate) fn get(&self, table: u16, address: u32) -> Option<Departure> {
        let pair = &self.lines.as_ref()?[RouteCache::place(table, address)];
        let key = self.key(table, address);
        // No branch between the two: it would be unpredictable.
        let is_second = pair.keys[1] == key;
        ((pair.keys[0] == key) | is_second).then_some(pair.ways[usize::from(is_second)])
    }

    /// Replaces the older line of its pair.
    pub(crate) fn put(&mut self, table: u16, address: u32, known: Departure) {
        let key = self.key(table, address);
        if let Some(lines) = &mut self.lines {
            let pair = &mut lines[RouteCache::place(table, address)];
            *pair = Pair { keys: [key, pair.keys[0]], ways: [known, pair.ways[0]] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn to(hop: u32, mtu: u16) -> Departure {
        Departure { egress: Egress { next_hop: NextHopId(hop) }, mtu }
    }

    const HERE: Departure = to(7, 1_500);

    fn cache(is_live: bool) -> RouteCache {
        RouteCache::new(is_live, |_| None)
    }

    #[test]
    fn a_line_counts_until_a_route_changes() {
        let mut cache = cache(true);
        assert!(cache.follow(5));
        assert_eq!(cache.get(0, 1), None);
        cache.put(0, 1, HERE);
        assert_eq!((cache.get(0, 1), cache.get(1, 1), cache.get(0, 2)), (Some(HERE), None, None));
        assert!(!cache.follow(5));
        assert_eq!(cache.get(0, 1), Some(HERE));
        cache.follow(6);
        assert_eq!(cache.get(0, 1), None);
        assert_eq!(cache.get(0, 0), None, "an empty line is no line");
    }

    #[test]
    fn no_line_comes_back_when_its_tag_does() {
        let mut cache = cache(true);
        for first in [0, 1, TAGS - 1, TAGS] {
            cache.follow(first);
            cache.put(3, 9, HERE);
            cache.follow(first + TAGS);
            assert_eq!(cache.get(3, 9), None, "written in version {first}");
        }
    }

    #[test]
    fn without_live_routes_nothing_is_remembered() {
        let mut cache = cache(false);
        cache.put(0, 1, HERE);
        assert_eq!(cache.get(0, 1), None);
    }

    #[test]
    fn two_addresses_of_the_same_pair_are_both_remembered() {
        let mut cache = cache(true);
        let place = RouteCache::place(0, 1);
        let same: Vec<u32> = (2..).filter(|address| RouteCache::place(0, *address) == place).take(2).collect();
        let known = [(1, HERE), (same[0], to(8, 1_400)), (same[1], to(9, 1_300))];
        for (address, way) in known {
            cache.put(0, address, way);
        }
        let found = known.map(|(address, _)| cache.get(0, address));
        assert_eq!(found, [None, Some(known[1].1), Some(known[2].1)], "the oldest one makes room");
    }

    #[test]
    fn a_coarse_entry_leads_to_the_next_hop_that_it_was_given_last() {
        let mut cache = RouteCache::new(true, |leaf| (leaf > 0).then(|| to(leaf.into(), 1_500)));
        assert_eq!(cache.way(3).of(1_500), Some(Egress { next_hop: NextHopId(3) }));
        assert_eq!(cache.way(3).of(1_501), None);
        assert_eq!((cache.way(0).of(20), cache.way(CUT).of(20)), (None, None));
        assert!(cache.follow_hops(4) && !cache.follow_hops(4));
        cache.set_ways(|_| Some(to(9, 1_280)));
        assert_eq!(cache.way(3), to(9, 1_280));
        assert_eq!(cache.way(CUT).of(20), None, "longer routes decide");
    }
}
