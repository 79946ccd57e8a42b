//! Longest-prefix match from an IPv4 address to a small number.
//!
//! ```text
//!  root: 65536 entries, bits 31..16 ─► chunk: 256 entries, bits 15..8 ─► chunk: 256, bits 7..0
//!  entry: 0 none · value + 1 · CHUNK bit + chunk number
//! ```
//!
//! At most three dependent loads; a few routes are scanned in the L1 cache instead. Before either,
//! 4096 bytes by bits 31..20 have the answer wherever no route is longer; live routes then have a
//! byte for each /24.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use mem::prefetch_near;

use crate::routes::live::LiveRoutes;
use crate::types::Prefix;

pub(crate) mod cache;
pub mod live;

const SCAN_MAX: usize = 8;

const COARSE_BITS: u32 = 12;
const COARSE_ENTRIES: usize = 1 << COARSE_BITS;
/// The entry has no value: longer routes decide, or the value does not fit into a byte.
pub(crate) const CUT: u8 = u8::MAX;

const CHUNK: u32 = 1 << 31;
const CHUNK_ENTRIES: usize = 256;
const ROOT_ENTRIES: usize = 1 << 16;

/// Route values must be below this.
pub const VALUE_LIMIT: u32 = CHUNK - 1;

/// Why a route table could not be built.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// Out of memory.
    #[error("route table: {0}")]
    Memory(#[from] ArenaError),
    /// A value is too large for an entry.
    #[error("route {prefix}: value {value} is not below {VALUE_LIMIT}")]
    Value {
        /// The route.
        prefix: Prefix,
        /// The value.
        value: u32,
    },
}

/// By bits 31..20: 0 none, value + 1, or [`CUT`].
type Coarse = [AtomicU8; COARSE_ENTRIES];

const FINE_BITS: u32 = 24;
const FINE_ENTRIES: usize = 1 << FINE_BITS;
/// Of live routes, by bits 31..8 where the coarse entry is [`CUT`]: value + 1, or 0 to search the
/// table.
type Fine = [AtomicU8; FINE_ENTRIES];

/// See the [module](self).
#[derive(Debug)]
pub struct RouteTable {
    coarse: Arc<Coarse>,
    /// Empty unless the routes are live.
    fine: Arc<Arena<Fine>>,
    lookup: Lookup,
    length: usize,
}

#[derive(Debug)]
enum Lookup {
    Scan(Vec<Scanned>),
    Tree { root: Arena<u32>, chunks: Arena<[u32; CHUNK_ENTRIES]> },
    Live { routes: Arc<LiveRoutes>, table: usize },
}

#[derive(Debug)]
struct Scanned {
    network: u32,
    mask: u32,
    value: u32,
}

impl RouteTable {
    /// A later route replaces one of the same prefix. Takes 256 KiB, and 1 KiB for each /16 and
    /// each /24 with longer routes.
    pub fn new(routes: &[(Prefix, u32)]) -> Result<RouteTable, RouteError> {
        if let Some(&(prefix, value)) = routes.iter().find(|(_, value)| *value >= VALUE_LIMIT) {
            return Err(RouteError::Value { prefix, value });
        }
        // A stable sort: of equal prefixes the later one is painted last.
        let mut sorted = routes.to_vec();
        sorted.sort_by_key(|(prefix, _)| prefix.length());
        let lookup = if sorted.len() <= SCAN_MAX {
            let scanned = |&(prefix, value): &(Prefix, u32)| Scanned {
                network: prefix.address().to_bits(),
                mask: prefix.mask(),
                value,
            };
            Lookup::Scan(sorted.iter().map(scanned).collect())
        } else {
            build_tree(&sorted)?
        };
        Ok(RouteTable { coarse: coarse(&sorted), fine: Arc::new(Arena::zeroed(0)?), lookup, length: routes.len() })
    }

    /// There must be a live table with this number.
    pub(crate) fn live(routes: &Arc<LiveRoutes>, table: usize) -> RouteTable {
        let (coarse, fine) = routes.summaries(table);
        RouteTable { coarse, fine, lookup: Lookup::Live { routes: Arc::clone(routes), table }, length: 0 }
    }

    /// Memory that [`RouteTable::new`] takes; none for a few routes.
    pub fn needs(prefixes: &[Prefix]) -> Vec<Need> {
        if prefixes.len() <= SCAN_MAX {
            return Vec::new();
        }
        vec![Arena::<u32>::need(ROOT_ENTRIES), Arena::<[u32; CHUNK_ENTRIES]>::need(chunks_for(prefixes))]
    }

    /// Routes it was built from.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Memory it takes.
    pub fn bytes(&self) -> usize {
        match &self.lookup {
            Lookup::Scan(routes) => size_of_val(routes.as_slice()),
            Lookup::Tree { root, chunks } => root.bytes() + chunks.bytes(),
            Lookup::Live { routes, .. } => routes.bytes(),
        }
    }

    /// The value of the longest prefix that contains `address` (host bit order).
    #[inline(always)]
    pub fn lookup(&self, address: u32) -> Option<u32> {
        self.lookup_coarse(address).unwrap_or_else(|| self.lookup_fine(address))
    }

    /// `None` if routes longer than 12 bits decide about the address.
    #[inline(always)]
    pub(crate) fn lookup_coarse(&self, address: u32) -> Option<Option<u32>> {
        let leaf = self.leaf(address);
        (leaf != CUT).then(|| value_of(leaf))
    }

    /// [`CUT`], or an entry for [`value_of`].
    #[inline(always)]
    pub(crate) fn leaf(&self, address: u32) -> u8 {
        // Acquire: the next hop of a live route is there when its number is.
        self.coarse[(address >> (32 - COARSE_BITS)) as usize].load(Ordering::Acquire)
    }

    /// Where the coarse entry is [`CUT`]: 0, or an entry for [`value_of`]. `None` without live
    /// routes.
    #[inline(always)]
    pub(crate) fn fine_leaf(&self, address: u32) -> Option<u8> {
        let entry = &self.fine.first()?[(address >> (32 - FINE_BITS)) as usize];
        Some(entry.load(Ordering::Acquire))
    }

    /// Requests what [`RouteTable::fine_leaf`] reads.
    #[inline(always)]
    pub(crate) fn request_fine_leaf(&self, address: u32) {
        if let Some(fine) = self.fine.first() {
            prefetch_near(&fine[(address >> (32 - FINE_BITS)) as usize]);
        }
    }

    pub(crate) fn number(&self) -> u16 {
        match self.lookup {
            Lookup::Live { table, .. } => table as u16,
            Lookup::Scan(_) | Lookup::Tree { .. } => 0,
        }
    }

    #[inline(never)]
    fn lookup_fine(&self, address: u32) -> Option<u32> {
        self.find(address)
    }

    /// [`RouteTable::lookup`] where [`RouteTable::lookup_coarse`] has no answer.
    #[inline(always)]
    pub(crate) fn find(&self, address: u32) -> Option<u32> {
        match &self.lookup {
            Lookup::Scan(routes) => {
                // All are scanned: an early exit would be mispredicted.
                let leaf = routes
                    .iter()
                    .fold(0, |leaf, route| if address & route.mask == route.network { route.value + 1 } else { leaf });
                leaf.checked_sub(1)
            }
            Lookup::Tree { root, chunks } => {
                let mut entry = root[(address >> 16) as usize];
                if entry & CHUNK != 0 {
                    entry = chunks.at(entry ^ CHUNK)[(address >> 8) as usize % CHUNK_ENTRIES];
                    if entry & CHUNK != 0 {
                        entry = chunks.at(entry ^ CHUNK)[address as usize % CHUNK_ENTRIES];
                    }
                }
                entry.checked_sub(1)
            }
            Lookup::Live { routes, table } => routes.lookup(*table, address),
        }
    }
}

/// The value of an entry other than [`CUT`].
#[inline(always)]
pub(crate) fn value_of(leaf: u8) -> Option<u32> {
    u32::from(leaf).checked_sub(1)
}

fn coarse(sorted: &[(Prefix, u32)]) -> Arc<Coarse> {
    let mut entries = [0; COARSE_ENTRIES];
    for &(prefix, value) in sorted {
        let at = |address: u32| (address >> (32 - COARSE_BITS)) as usize;
        let leaf = u8::try_from(value + 1).unwrap_or(CUT);
        let leaf = if u32::from(prefix.length()) > COARSE_BITS { CUT } else { leaf };
        entries[at(prefix.address().to_bits())..=at(prefix.last().to_bits())].fill(leaf);
    }
    Arc::new(entries.map(AtomicU8::new))
}

/// From short to long, so that longer routes cover shorter ones.
fn build_tree(sorted: &[(Prefix, u32)]) -> Result<Lookup, ArenaError> {
    let mut root = Arena::<u32>::zeroed(ROOT_ENTRIES)?;
    let prefixes: Vec<Prefix> = sorted.iter().map(|(prefix, _)| *prefix).collect();
    let mut chunks = Arena::<[u32; CHUNK_ENTRIES]>::zeroed(chunks_for(&prefixes))?;
    let mut chunks_used = 0;
    for &(prefix, value) in sorted {
        let leaf = value + 1;
        let bits = prefix.address().to_bits();
        let last = prefix.last().to_bits();
        if prefix.length() <= 16 {
            root[(bits >> 16) as usize..=(last >> 16) as usize].fill(leaf);
            continue;
        }
        let middle = descend(&mut root[(bits >> 16) as usize], &mut chunks, &mut chunks_used);
        if prefix.length() <= 24 {
            chunks[middle][low_byte(bits >> 8)..=low_byte(last >> 8)].fill(leaf);
            continue;
        }
        let mut entry = chunks[middle][low_byte(bits >> 8)];
        let bottom = descend(&mut entry, &mut chunks, &mut chunks_used);
        chunks[middle][low_byte(bits >> 8)] = entry;
        chunks[bottom][low_byte(bits)..=low_byte(last)].fill(leaf);
    }
    Ok(Lookup::Tree { root, chunks })
}

fn low_byte(bits: u32) -> usize {
    bits as usize % CHUNK_ENTRIES
}

fn chunks_for(prefixes: &[Prefix]) -> usize {
    parents(prefixes, 16) + parents(prefixes, 24)
}

fn parents(prefixes: &[Prefix], length: u8) -> usize {
    let mut parents: Vec<u32> = prefixes
        .iter()
        .filter(|prefix| prefix.length() > length)
        .map(|prefix| prefix.address().to_bits() >> (32 - length))
        .collect();
    parents.sort_unstable();
    parents.dedup();
    parents.len()
}

/// Fills a new chunk with `entry`.
fn descend(entry: &mut u32, chunks: &mut Arena<[u32; CHUNK_ENTRIES]>, chunks_used: &mut u32) -> usize {
    if *entry & CHUNK == 0 {
        chunks.at_mut(*chunks_used).fill(*entry);
        *entry = *chunks_used | CHUNK;
        *chunks_used += 1;
    }
    (*entry ^ CHUNK) as usize
}

#[cfg(test)]
mod tests;
