//! What the routes of the kernel said about the addresses that packets went to last.
//!
//! ```text
//!  address ─► hash: 4096 lines ─► address, table, version of the routes │ value, MTU, kind
//! ```
//!
//! One worker's own, so that established packets need no walk through a table of a million routes.
//! A line counts while no route has changed since it was written: [`RouteCache::follow`] learns of
//! changes at the beginning of each burst.

/// Lines: 64 KiB.
const LINES: usize = 4_096;
const HASH_SHIFT: u32 = 32 - LINES.trailing_zeros();
/// Versions with different tags.
const TAGS: u64 = u16::MAX as u64;

/// What a line knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The value of the longest route.
    pub(crate) value: u32,
    /// MTU of its next hop; None: the subscriber chooses among several.
    pub(crate) mtu: Option<u16>,
}

/// Address, and behind it table and version; what is known.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
struct Line(u64, Known);

const EMPTY: Line = Line(0, Known { value: 0, mtu: None });

/// See the [module](self). Without live routes it has no lines.
#[derive(Debug)]
pub(crate) struct RouteCache {
    lines: Option<Box<[Line; LINES]>>,
    /// Of the routes, as last seen.
    version: u64,
    /// The same as lines have it; never 0, so no line without content counts.
    tag: u16,
}

impl RouteCache {
    /// With lines if the routes are live.
    pub(crate) fn new(is_live: bool) -> RouteCache {
        let lines = || Box::new([EMPTY; LINES]);
        RouteCache { lines: is_live.then(lines), version: 0, tag: 1 }
    }

    /// The routes have this version now. All lines of other versions mean nothing any more.
    #[inline]
    pub(crate) fn follow(&mut self, version: u64) {
        if version != self.version {
            self.turn_to(version);
        }
    }

    #[inline(never)]
    fn turn_to(&mut self, version: u64) {
        // The tags come again.
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

    /// What is known about an address in a table, if it was asked for lately.
    #[inline(always)]
    pub(crate) fn get(&self, table: u16, address: u32) -> Option<Known> {
        let line = &self.lines.as_ref()?[RouteCache::place(table, address)];
        (line.0 == self.key(table, address)).then_some(line.1)
    }

    /// Remembers it.
    pub(crate) fn put(&mut self, table: u16, address: u32, known: Known) {
        let key = self.key(table, address);
        if let Some(lines) = &mut self.lines {
            lines[RouteCache::place(table, address)] = Line(key, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Known = Known { value: 7, mtu: Some(1_500) };

    #[test]
    fn a_line_counts_until_a_route_changes() {
        let mut cache = RouteCache::new(true);
        cache.follow(5);
        assert_eq!(cache.get(0, 1), None);
        cache.put(0, 1, HERE);
        assert_eq!((cache.get(0, 1), cache.get(1, 1), cache.get(0, 2)), (Some(HERE), None, None));
        cache.follow(5);
        assert_eq!(cache.get(0, 1), Some(HERE));
        cache.follow(6);
        assert_eq!(cache.get(0, 1), None);
        assert_eq!(cache.get(0, 0), None, "an empty line is no line");
    }

    #[test]
    fn no_line_comes_back_when_its_tag_does() {
        let mut cache = RouteCache::new(true);
        for first in [0, 1, TAGS - 1, TAGS] {
            cache.follow(first);
            cache.put(3, 9, HERE);
            cache.follow(first + TAGS);
            assert_eq!(cache.get(3, 9), None, "written in version {first}");
        }
    }

    #[test]
    fn without_live_routes_nothing_is_remembered() {
        let mut cache = RouteCache::new(false);
        cache.put(0, 1, HERE);
        assert_eq!(cache.get(0, 1), None);
    }
}
