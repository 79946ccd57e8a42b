//! Routes that change while packets are looked up, without a lock (ADR 20).
//!
//! ```text
//!  IPv4: root: 65536 entries, bits 31..16 ─► middle: 256, bits 15..8 ─► node: 16 ─► node: 16
//!  IPv6: root: 65536 entries, the first 16 bits ─► node: 16, the next 4 bits ─► node ─► …
//!  entry: 0 none · length + 1 (8 bits), value (23 bits) · CHUNK bit + number of the next level
//!
//!   beside it, for established IPv4 packets: a byte for each /12 (coarse), and where routes are
//!   longer, one for each /24 (fine); outside, once many parts have longer routes, for every /24
//! ```
//!
//! Each entry has the length of its route, so a change touches only entries that no longer route
//! covers. The route of length 0 is stored separately: it would change all entries. A chunk, next
//! hop or group is reused only after each reader has begun another poll ([`LiveRoutes::report`]).

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use mem::Arena;
use mem::ArenaError;

use crate::routes::COARSE_BITS;
use crate::routes::COARSE_ENTRIES;
use crate::routes::CUT;
use crate::routes::Coarse;
use crate::routes::Fine;
use crate::types::InterfaceId;
use crate::types::Prefix;

mod writer;

pub use writer::Full;
pub use writer::Target;
pub use writer::Writer;

/// Next hops that all tables can have together.
pub const HOPS_MAX: usize = 4_096;
/// Lists of several next hops that all tables can have together.
pub const GROUPS_MAX: usize = 1_024;
/// Subscribers are spread over buckets, and these over the next hops of a group.
pub const BUCKETS: usize = 256;

const CHUNK: u32 = 1 << 31;
const VALUE_BITS: u32 = 23;
const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;
/// The value is the number of a group.
const GROUP: u32 = 1 << (VALUE_BITS - 1);
pub(crate) const DROP: u32 = VALUE_MASK;
/// First value that leads to IPv6 hosts: each realm has one for NAT64, then one for softwires. No
/// slot of a next hop has such a number.
pub(crate) const HOST_HOPS: u32 = HOPS_MAX as u32;
/// No route is as long, so none ever replaces these entries.
const HOST_DEPTH: u32 = u32::MAX >> (VALUE_BITS + 1);

/// From so many parts with longer routes on, the outside table has fine entries for all parts: one
/// byte in place of two then answers for nearly every packet.
const FILLED_FROM: u32 = COARSE_ENTRIES as u32 / 8;

const ROOT_ENTRIES: usize = 1 << 16;
const ROOTS_PER_PART: usize = ROOT_ENTRIES / COARSE_ENTRIES;
const MIDDLE_ENTRIES: usize = 256;
const NODE_ENTRIES: usize = 16;
const MIDDLES_MAX: usize = 1 << 16;

/// Bits of the address below a level, and entries of a chunk. IPv4 addresses are the first of 128
/// bits.
type Level = (u32, usize);
const LEVELS: [Level; 4] = [(112, ROOT_ENTRIES), (104, MIDDLE_ENTRIES), (100, NODE_ENTRIES), (96, NODE_ENTRIES)];
const LEVELS6: [Level; 29] = levels6();

const fn levels6() -> [Level; 29] {
    let mut levels = [(112, ROOT_ENTRIES); 29];
    let mut level = 1;
    while level < levels.len() {
        levels[level] = (112 - 4 * level as u32, NODE_ENTRIES);
        level += 1;
    }
    levels
}

/// A reader that has not reported yet holds nothing.
const NOT_RUNNING: u64 = u64::MAX;

/// Gateway, interface and MTU in one word, so that a reader never sees half of it. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PackedHop(u64);

impl PackedHop {
    pub(crate) fn new(interface: InterfaceId, gateway: u32, mtu: u16) -> PackedHop {
        PackedHop(u64::from(gateway) << 32 | u64::from(interface.0) << 16 | u64::from(mtu))
    }

    pub(crate) fn gateway(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn interface(self) -> InterfaceId {
        InterfaceId((self.0 >> 16) as u16)
    }

    pub(crate) fn mtu(self) -> u16 {
        self.0 as u16
    }
}

#[derive(Debug)]
struct Table {
    levels: &'static [Level],
    root: Arena<AtomicU32>,
    middles: Arena<[AtomicU32; MIDDLE_ENTRIES]>,
    nodes: Arena<[AtomicU32; NODE_ENTRIES]>,
    /// The entry of the route of length 0.
    default: AtomicU32,
    /// IPv4: what all addresses of a /12 have in common.
    coarse: Arc<Coarse>,
    /// IPv4: what all addresses of a /24 have in common, once the coarse entry is [`CUT`] or all
    /// are filled. A /12 is a page, which is first written then.
    fine: Arc<Arena<Fine>>,
    /// Coarse entries that are [`CUT`]. Only the writer uses it.
    parts_cut: AtomicU32,
    /// Once this many are cut, all parts get fine entries permanently.
    filled_from: u32,
    is_filled: AtomicBool,
}

impl Table {
    fn new(nodes: usize, fine: Arena<Fine>) -> Result<Table, ArenaError> {
        Ok(Table {
            levels: &LEVELS,
            root: Arena::zeroed(ROOT_ENTRIES)?,
            middles: Arena::growing(MIDDLES_MAX.min(nodes.max(1)))?,
            nodes: Arena::growing(nodes.max(1))?,
            default: AtomicU32::new(0),
            coarse: Arc::new([const { AtomicU8::new(0) }; _]),
            fine: Arc::new(fine),
            parts_cut: AtomicU32::new(0),
            filled_from: u32::MAX,
            is_filled: AtomicBool::new(false),
        })
    }

    /// The outside table. On large pages, because it may have the routes of the whole Internet.
    fn outside(nodes: usize) -> Result<Table, ArenaError> {
        Ok(Table { filled_from: FILLED_FROM, ..Table::new(nodes, Arena::growing(1)?)? })
    }

    fn new6(nodes: usize) -> Result<Table, ArenaError> {
        Ok(Table {
            levels: &LEVELS6,
            root: Arena::zeroed(ROOT_ENTRIES)?,
            middles: Arena::zeroed(1)?,
            nodes: Arena::growing(nodes.max(1))?,
            default: AtomicU32::new(0),
            coarse: Arc::new([const { AtomicU8::new(0) }; _]),
            fine: Arc::new(Arena::zeroed(0)?),
            parts_cut: AtomicU32::new(0),
            filled_from: u32::MAX,
            is_filled: AtomicBool::new(false),
        })
    }

    /// Numbers of IPv6 hosts lead to the realm's next hops to them.
    fn of_realm(realm: u32, nodes: usize) -> Result<Table, ArenaError> {
        let table = Table::new(nodes, Arena::reserved(1)?)?;
        let first = HOST_HOPS + 2 * realm;
        for (prefix, value) in [(Prefix::HOSTS, first), (Prefix::SOFTWIRE_HOSTS, first + 1)] {
            let at = |address: core::net::Ipv4Addr| (address.to_bits() >> 16) as usize;
            for entry in &table.root[at(prefix.address())..=at(prefix.last())] {
                entry.store(HOST_DEPTH << VALUE_BITS | value, Ordering::Relaxed);
            }
            table.summarise(prefix.address().to_bits(), prefix.last().to_bits());
        }
        Ok(table)
    }

    fn summarise(&self, first: u32, last: u32) {
        let default = self.default.load(Ordering::Relaxed);
        let is_filled = self.is_filled.load(Ordering::Relaxed);
        let mut parts_cut = self.parts_cut.load(Ordering::Relaxed);
        for part in part_of(first)..=part_of(last) {
            let common = self.common(part, default);
            let was_cut = self.coarse[part].load(Ordering::Relaxed) == CUT;
            if is_filled || common == CUT {
                let all = addresses_of(part);
                // Where nothing kept them, earlier fine entries mean nothing.
                let was_fine = is_filled || was_cut;
                let changed = if was_fine { (first.max(all.0), last.min(all.1)) } else { all };
                let is_default = was_fine && (first, last) == (0, u32::MAX);
                self.summarise_finely(changed, default, is_default);
            }
            parts_cut = parts_cut + u32::from(common == CUT) - u32::from(was_cut);
            // Release: a reader then finds the fine entries filled in.
            self.coarse[part].store(common, Ordering::Release);
        }
        self.parts_cut.store(parts_cut, Ordering::Relaxed);
        if !is_filled && parts_cut >= self.filled_from {
            self.fill(default);
        }
    }

    /// The coarse entry of a part: [`CUT`] unless a byte names what all its addresses have in
    /// common.
    fn common(&self, part: usize, default: u32) -> u8 {
        let entries = &self.root[part * ROOTS_PER_PART..(part + 1) * ROOTS_PER_PART];
        let leaf = |entry: &AtomicU32| or_default(entry.load(Ordering::Relaxed), default);
        let value = |leaf: u32| if leaf == 0 { 0 } else { (leaf & VALUE_MASK) + 1 };
        let first = leaf(&entries[0]);
        let is_one = first & CHUNK == 0
            && entries.iter().all(|entry| leaf(entry) & CHUNK == 0 && value(leaf(entry)) == value(first));
        if is_one { u8::try_from(value(first)).unwrap_or(CUT) } else { CUT }
    }

    /// Gives the parts without longer routes their fine entries, too.
    fn fill(&self, default: u32) {
        for part in 0..COARSE_ENTRIES {
            if self.coarse[part].load(Ordering::Relaxed) != CUT {
                self.summarise_finely(addresses_of(part), default, false);
            }
        }
        self.is_filled.store(true, Ordering::Release);
    }

    /// `is_default`: only the default route has changed, so addresses with another stay.
    fn summarise_finely(&self, (first, last): (u32, u32), default: u32, is_default: bool) {
        let Some(fine) = self.fine.first() else { return };
        for root in (first >> 16)..=(last >> 16) {
            let entry = self.root[root as usize].load(Ordering::Relaxed);
            if is_default && entry != 0 && entry & CHUNK == 0 {
                continue;
            }
            let all = (root << 16, root << 16 | 0xffff);
            let (first, last) = (first.max(all.0) >> 8, last.min(all.1) >> 8);
            let chunk = (entry & CHUNK != 0).then(|| self.middles.at(entry ^ CHUNK));
            for number in first..=last {
                let entry =
                    chunk.map_or(entry, |chunk| chunk[number as usize % MIDDLE_ENTRIES].load(Ordering::Relaxed));
                if is_default && entry != 0 {
                    continue;
                }
                let leaf = fine_leaf(or_default(entry, default));
                let place = &fine[number as usize];
                // A page that never had anything stays untouched.
                if place.load(Ordering::Relaxed) != leaf {
                    place.store(leaf, Ordering::Release);
                }
            }
        }
    }

    #[inline]
    fn lookup(&self, address: u32) -> Option<u32> {
        // Acquire: a reader that sees the number of a chunk also sees its content.
        let mut entry = self.root[(address >> 16) as usize].load(Ordering::Acquire);
        if entry & CHUNK != 0 {
            entry = self.middles.at(entry ^ CHUNK)[(address >> 8) as usize % MIDDLE_ENTRIES].load(Ordering::Acquire);
            if entry & CHUNK != 0 {
                entry = self.nodes.at(entry ^ CHUNK)[(address >> 4) as usize % NODE_ENTRIES].load(Ordering::Acquire);
                if entry & CHUNK != 0 {
                    entry = self.nodes.at(entry ^ CHUNK)[address as usize % NODE_ENTRIES].load(Ordering::Acquire);
                }
            }
        }
        if entry == 0 {
            entry = self.default.load(Ordering::Acquire);
        }
        (entry != 0).then_some(entry & VALUE_MASK)
    }

    /// One load for the first 16 bits, and one for each 4 bits more of the routes here.
    fn lookup6(&self, address: u128) -> Option<u32> {
        let mut entry = self.root[(address >> 112) as usize].load(Ordering::Acquire);
        let mut below = 112;
        while entry & CHUNK != 0 && below > 0 {
            below -= 4;
            entry = self.nodes.at(entry ^ CHUNK)[(address >> below) as usize % NODE_ENTRIES].load(Ordering::Acquire);
        }
        if entry == 0 {
            entry = self.default.load(Ordering::Acquire);
        }
        (entry != 0).then_some(entry & VALUE_MASK)
    }
}

/// The part of the coarse table that an address belongs to.
fn part_of(address: u32) -> usize {
    (address >> (32 - COARSE_BITS)) as usize
}

/// First and last address of a part.
fn addresses_of(part: usize) -> (u32, u32) {
    let first = (part as u32) << (32 - COARSE_BITS);
    (first, first | u32::MAX >> COARSE_BITS)
}

#[inline]
fn or_default(entry: u32, default: u32) -> u32 {
    if entry == 0 { default } else { entry }
}

fn fine_leaf(entry: u32) -> u8 {
    let value = entry & VALUE_MASK;
    if entry == 0 || entry & CHUNK != 0 || value + 1 >= u32::from(CUT) { 0 } else { (value + 1) as u8 }
}

#[derive(Debug)]
struct Group([AtomicU32; BUCKETS]);

#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

/// A next hop of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop6 {
    /// Interface that leads to it.
    pub interface: InterfaceId,
    /// The router in host bit order; 0: destinations are on the link.
    pub gateway: u128,
}

/// The tables of all realms: table 0 is the outside, then come the realms. [`Writer`] changes them.
/// Lookups must be within a poll ([`LiveRoutes::report`]).
#[derive(Debug)]
pub struct LiveRoutes {
    /// IPv4 tables, then IPv6 tables.
    tables: Box<[Table]>,
    tables4: usize,
    hops: Box<[AtomicU64]>,
    /// IPv6 routers by slot. Not written while a route leads to the slot, so a reader sees both
    /// halves.
    routers6: Box<[[AtomicU64; 2]]>,
    groups: Box<[Group]>,
    /// Grows with each change that readers must pass before something is reused.
    generation: AtomicU64,
    /// Grows with each change of `hops`, before `generation` does.
    hops_version: AtomicU64,
    /// Grows with each batch of changes, before `generation`: what a reader remembers of an earlier
    /// version means nothing.
    version: AtomicU64,
    /// By reader: the generation in which its current poll began.
    seen: Box<[Line]>,
}

impl LiveRoutes {
    /// Empty tables, each with room for `nodes` nodes of 64 bytes. A /24 with longer routes needs
    /// one, and one more for each /28 with longer routes; an IPv6 route one for each 4 bits behind
    /// the first 16, shared with routes beside it.
    pub fn new(realms: usize, readers: usize, nodes: usize, has_ipv6: bool) -> Result<LiveRoutes, ArenaError> {
        let mut tables = vec![Table::outside(nodes)?];
        for realm in 0..realms {
            tables.push(Table::of_realm(realm as u32, nodes)?);
        }
        let tables4 = tables.len();
        for _ in 0..if has_ipv6 { tables4 } else { 0 } {
            tables.push(Table::new6(nodes)?);
        }
        let slots6 = if has_ipv6 { HOPS_MAX } else { 0 };
        Ok(LiveRoutes {
            tables: tables.into(),
            tables4,
            hops: (0..HOPS_MAX).map(|_| AtomicU64::new(0)).collect(),
            routers6: (0..slots6).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            groups: (0..GROUPS_MAX).map(|_| Group(core::array::from_fn(|_| AtomicU32::new(DROP)))).collect(),
            generation: AtomicU64::new(1),
            hops_version: AtomicU64::new(1),
            version: AtomicU64::new(1),
            seen: (0..readers).map(|_| Line(AtomicU64::new(NOT_RUNNING))).collect(),
        })
    }

    /// True if there are tables of IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.tables.len() > self.tables4
    }

    /// The next hop by the longest route; `subscriber` chooses among several. `None`: no route, or
    /// one that drops packets.
    pub fn lookup6(&self, table: usize, address: u128, subscriber: u32) -> Option<Hop6> {
        let value = self.tables.get(self.tables4 + table)?.lookup6(address)?;
        let (slot, hop) = self.hop(value, subscriber)?;
        let [high, low] = self.routers6.get(slot as usize)?;
        let half = |half: &AtomicU64| u128::from(half.load(Ordering::Acquire));
        Some(Hop6 { interface: hop.interface(), gateway: half(high) << 64 | half(low) })
    }

    /// The value of the longest route, for [`LiveRoutes::gateway`]. Routes with the same next hops
    /// have the same.
    #[inline]
    pub fn lookup(&self, table: usize, address: u32) -> Option<u32> {
        self.tables.get(table)?.lookup(address)
    }

    /// A subscriber's router, in host bit order; 0: destinations are on the link. `None`: the route
    /// drops packets.
    pub fn gateway(&self, value: u32, subscriber: u32) -> Option<u32> {
        self.hop(value, subscriber).map(|(_, hop)| hop.gateway())
    }

    #[inline]
    pub(crate) fn hop(&self, value: u32, subscriber: u32) -> Option<(u32, PackedHop)> {
        let slot = match value {
            DROP => return None,
            _ if value & GROUP != 0 => {
                let group = self.groups.get((value ^ GROUP) as usize)?;
                group.0[bucket_of(subscriber)].load(Ordering::Acquire)
            }
            slot => slot,
        };
        self.slot(slot).map(|hop| (slot, hop))
    }

    pub(crate) fn slot(&self, slot: u32) -> Option<PackedHop> {
        let packed = self.hops.get(slot as usize)?.load(Ordering::Acquire);
        (packed != 0).then_some(PackedHop(packed))
    }

    /// Grows with each change that a reader has to report.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Grows whenever a slot of a next hop has other content.
    pub fn hops_version(&self) -> u64 {
        self.hops_version.load(Ordering::Acquire)
    }

    pub(super) fn summaries(&self, table: usize) -> (Arc<Coarse>, Arc<Arena<Fine>>) {
        let table = &self.tables[table];
        (Arc::clone(&table.coarse), Arc::clone(&table.fine))
    }

    /// Whether every address has a fine entry in the outside table. Once true, it stays so.
    pub(crate) fn outside_is_filled(&self) -> bool {
        self.tables[0].is_filled.load(Ordering::Acquire)
    }

    /// Grows with each batch of changes.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn is_group(value: u32) -> bool {
        value & GROUP != 0
    }

    /// A reader begins a poll, having read [`LiveRoutes::generation`] and adopted the next hops.
    pub fn report(&self, reader: usize, generation: u64) {
        if let Some(line) = self.seen.get(reader) {
            line.0.store(generation, Ordering::Release);
        }
    }

    fn is_seen(&self, generation: u64) -> bool {
        self.seen.iter().all(|line| line.0.load(Ordering::Acquire) >= generation)
    }

    /// Memory that was ever used, in pages.
    pub fn resident_bytes(&self) -> usize {
        let resident = |table: &Table| {
            let tree = table.root.resident_bytes() + table.middles.resident_bytes() + table.nodes.resident_bytes();
            tree + table.fine.resident_bytes()
        };
        self.tables.iter().map(resident).sum()
    }

    /// Reserved memory. The system provides a page when it is first written.
    pub fn bytes(&self) -> usize {
        let reserved =
            |table: &Table| table.root.bytes() + table.middles.bytes() + table.nodes.bytes() + table.fine.bytes();
        self.tables.iter().map(reserved).sum()
    }
}

/// Fibonacci hashing spreads neighbours.
#[inline]
fn bucket_of(subscriber: u32) -> usize {
    (subscriber.wrapping_mul(0x9e37_79b1) >> 24) as usize
}

#[cfg(test)]
mod tests;
