//! The only thread that changes live routes.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

use super::CHUNK;
use super::DROP;
use super::GROUP;
use super::GROUPS_MAX;
use super::HOPS_MAX;
use super::LiveRoutes;
use super::MIDDLE_ENTRIES;
use super::NODE_ENTRIES;
use super::PackedHop;
use super::ROOT_ENTRIES;
use super::Table;
use super::VALUE_BITS;
use super::VALUE_MASK;
use crate::policy::stand_in::Prefix6;
use crate::types::InterfaceId;
use crate::types::Prefix;

/// A table has no room for a change; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// No free node.
    #[error("the route table has no room for another prefix")]
    Nodes,
    /// No free slot of a next hop.
    #[error("there are {HOPS_MAX} next hops already")]
    Hops,
    /// No free group.
    #[error("there are {GROUPS_MAX} lists of several next hops already")]
    Groups,
}

/// Where a route leads: a next hop, several, or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target(u32);

impl Target {
    /// Drops packets.
    pub const DROP: Target = Target(DROP);
}

/// A number that can be reused when all readers have passed a generation.
#[derive(Clone, Copy, Debug)]
enum Retired {
    Middle { table: usize, chunk: u32 },
    Node { table: usize, chunk: u32 },
    Hop(u32),
    Group(u32),
}

/// Free numbers, and the first never used.
#[derive(Debug, Default)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
}

impl Numbers {
    fn take(&mut self, limit: usize) -> Option<u32> {
        self.free.pop().or_else(|| {
            let number = self.next;
            ((number as usize) < limit).then(|| {
                self.next += 1;
                number
            })
        })
    }

    fn used(&self) -> usize {
        self.next as usize - self.free.len()
    }
}

#[derive(Debug, Default)]
struct Chunks {
    middles: Numbers,
    nodes: Numbers,
}

/// Changes the tables; one for each [`LiveRoutes`].
#[derive(Debug)]
pub struct Writer {
    live: Arc<LiveRoutes>,
    chunks: Vec<Chunks>,
    hops: Numbers,
    hop_uses: HashMap<Known, (u32, u32)>,
    groups: Numbers,
    group_members: HashMap<u32, Vec<Known>>,
    /// Since the last [`Writer::publish`].
    fresh: Vec<Retired>,
    retired: VecDeque<(u64, Retired)>,
    /// The generation in which the latest next hop was filled in.
    filled: u64,
    /// Since the last [`Writer::publish`].
    has_changed: bool,
}

#[derive(Clone, Copy)]
struct Chunk {
    level: usize,
    number: u32,
}

const ROOT: Chunk = Chunk { level: 0, number: 0 };

impl Table {
    fn entry(&self, chunk: Chunk, index: usize) -> &AtomicU32 {
        match (chunk.level, self.entries(chunk.level)) {
            (0, _) => &self.root[index],
            (_, MIDDLE_ENTRIES) => &self.middles.at(chunk.number)[index % MIDDLE_ENTRIES],
            _ => &self.nodes.at(chunk.number)[index % NODE_ENTRIES],
        }
    }

    fn below(&self, level: usize) -> u32 {
        self.levels.get(level).map_or(0, |(below, _)| *below)
    }

    fn entries(&self, level: usize) -> usize {
        self.levels.get(level).map_or(1, |(_, entries)| *entries)
    }

    fn index(&self, level: usize, address: u128) -> usize {
        (address >> self.below(level)) as usize % self.entries(level)
    }

    fn bits(&self, level: usize) -> u32 {
        128 - self.below(level)
    }
}

/// Addresses of a route, as the first of 128 bits.
#[derive(Clone, Copy)]
struct Range {
    first: u128,
    last: u128,
    length: u8,
}

impl From<Prefix> for Range {
    fn from(prefix: Prefix) -> Range {
        let bits = |address: core::net::Ipv4Addr| u128::from(address.to_bits()) << 96;
        Range { first: bits(prefix.address()), last: bits(prefix.last()), length: prefix.length() }
    }
}

impl From<Prefix6> for Range {
    fn from(prefix: Prefix6) -> Range {
        Range { first: prefix.address(), last: prefix.last(), length: prefix.length() }
    }
}

fn leaf(length: u8, target: Target) -> u32 {
    (u32::from(length) + 1) << VALUE_BITS | target.0
}

/// Length + 1 of a leaf's route; 0: none.
fn depth(leaf: u32) -> u32 {
    leaf >> VALUE_BITS
}

/// A next hop. Its packed word has the router of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Known {
    packed: PackedHop,
    router6: u128,
}

impl Known {
    /// Distinct next hops have distinct words, and so scores.
    fn word(self) -> u64 {
        let (high, low) = ((self.router6 >> 64) as u64, self.router6 as u64);
        self.packed.0 ^ low.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ high.wrapping_mul(0xc4ce_b9fe_1a85_ec53)
    }
}

impl Writer {
    /// `live` must have no routes.
    pub fn new(live: &Arc<LiveRoutes>) -> Writer {
        Writer {
            live: Arc::clone(live),
            chunks: live.tables.iter().map(|_| Chunks::default()).collect(),
            hops: Numbers::default(),
            hop_uses: HashMap::new(),
            groups: Numbers::default(),
            group_members: HashMap::new(),
            fresh: Vec::new(),
            retired: VecDeque::new(),
            filled: 0,
            has_changed: false,
        }
    }

    /// Bytes of chunks in use.
    pub fn bytes(&self) -> usize {
        let chunks = |chunks: &Chunks| chunks.middles.used() * MIDDLE_ENTRIES + chunks.nodes.used() * NODE_ENTRIES;
        let of_chunks = self.chunks.iter().map(chunks).sum::<usize>();
        (of_chunks + self.live.tables.len() * ROOT_ENTRIES) * size_of::<u32>()
    }

    /// Leads to these next hops: interface, gateway (0: on the link), MTU and weight. A subscriber
    /// keeps its next hop of a group while that is a member.
    pub fn target(&mut self, hops: &[(InterfaceId, u32, u16, u16)]) -> Result<Target, Full> {
        let known = hops.iter().map(|&(interface, gateway, mtu, weight)| {
            (Known { packed: PackedHop::new(interface, gateway, mtu), router6: 0 }, weight)
        });
        self.target_of(&known.collect::<Vec<_>>())
    }

    /// As [`Writer::target`], with gateways of IPv6.
    pub fn target6(&mut self, hops: &[(InterfaceId, u128, u16, u16)]) -> Result<Target, Full> {
        let known = hops.iter().map(|&(interface, router6, mtu, weight)| {
            // No router of IPv4 has this address.
            (Known { packed: PackedHop::new(interface, u32::MAX, mtu), router6 }, weight)
        });
        self.target_of(&known.collect::<Vec<_>>())
    }

    fn target_of(&mut self, hops: &[(Known, u16)]) -> Result<Target, Full> {
        self.reclaim();
        match hops {
            [] => Ok(Target::DROP),
            [(one, _)] => self.use_hop(*one).map(Target),
            several => {
                let number = self.groups.take(GROUPS_MAX).ok_or(Full::Groups)?;
                let mut slots = Vec::new();
                for &(hop, weight) in several {
                    match self.use_hop(hop) {
                        Ok(slot) => slots.push((slot, hop, weight)),
                        Err(full) => {
                            self.groups.free.push(number);
                            for (_, hop, _) in slots {
                                self.release_hop(hop);
                            }
                            return Err(full);
                        }
                    }
                }
                if let Some(group) = self.live.groups.get(number as usize) {
                    for (bucket, place) in group.0.iter().enumerate() {
                        place.store(choose(bucket, &slots), Ordering::Release);
                    }
                }
                self.group_members.insert(number, slots.into_iter().map(|(_, hop, _)| hop).collect());
                Ok(Target(number | GROUP))
            }
        }
    }

    /// Returns a target that no route has any more.
    pub fn release(&mut self, target: Target) {
        match target.0 {
            DROP => {}
            group if group & GROUP != 0 => {
                let number = group ^ GROUP;
                for hop in self.group_members.remove(&number).unwrap_or_default() {
                    self.release_hop(hop);
                }
                self.fresh.push(Retired::Group(number));
            }
            slot => {
                if let Some(hop) = self.known(slot) {
                    self.release_hop(hop);
                }
            }
        }
    }

    fn known(&self, slot: u32) -> Option<Known> {
        let packed = self.live.slot(slot)?;
        let half = |half: &AtomicU64| u128::from(half.load(Ordering::Relaxed));
        let router6 = self.live.routers6.get(slot as usize).map_or(0, |[high, low]| half(high) << 64 | half(low));
        Some(Known { packed, router6 })
    }

    fn use_hop(&mut self, hop: Known) -> Result<u32, Full> {
        if let Some((slot, uses)) = self.hop_uses.get_mut(&hop) {
            *uses += 1;
            return Ok(*slot);
        }
        let slot = self.hops.take(HOPS_MAX).ok_or(Full::Hops)?;
        self.hop_uses.insert(hop, (slot, 1));
        if let Some([high, low]) = self.live.routers6.get(slot as usize) {
            high.store((hop.router6 >> 64) as u64, Ordering::Release);
            low.store(hop.router6 as u64, Ordering::Release);
        }
        if let Some(place) = self.live.hops.get(slot as usize) {
            place.store(hop.packed.0, Ordering::Release);
        }
        self.live.hops_version.fetch_add(1, Ordering::Release);
        self.filled = self.live.generation.fetch_add(1, Ordering::Release) + 1;
        Ok(slot)
    }

    fn release_hop(&mut self, hop: Known) {
        let Some((slot, uses)) = self.hop_uses.get_mut(&hop) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.fresh.push(Retired::Hop(*slot));
            self.hop_uses.remove(&hop);
        }
    }

    /// True if all readers know the latest next hops. Only then may a route lead to a target.
    pub fn is_ready(&self) -> bool {
        self.live.is_seen(self.filled)
    }

    /// Lets readers report, so that what is retired can be reused. Call it after each batch of
    /// changes.
    pub fn publish(&mut self) {
        if self.has_changed {
            // Before the generation: a reader that reports it has dropped what it remembers.
            self.live.version.fetch_add(1, Ordering::Release);
            self.has_changed = false;
        }
        if !self.fresh.is_empty() {
            let generation = self.live.generation.fetch_add(1, Ordering::Release) + 1;
            self.retired.extend(self.fresh.drain(..).map(|retired| (generation, retired)));
        }
        self.reclaim();
    }

    fn reclaim(&mut self) {
        while let Some(&(generation, retired)) = self.retired.front() {
            if !self.live.is_seen(generation) {
                return;
            }
            self.retired.pop_front();
            match retired {
                Retired::Middle { table, chunk } => self.give_back(table, |chunks| &mut chunks.middles, chunk),
                Retired::Node { table, chunk } => self.give_back(table, |chunks| &mut chunks.nodes, chunk),
                Retired::Hop(slot) => self.hops.free.push(slot),
                Retired::Group(number) => self.groups.free.push(number),
            }
        }
    }

    fn give_back(&mut self, table: usize, numbers: impl Fn(&mut Chunks) -> &mut Numbers, chunk: u32) {
        if let Some(chunks) = self.chunks.get_mut(table) {
            numbers(chunks).free.push(chunk);
        }
    }

    /// Sets the route of a prefix, whether there was one or not.
    pub fn set(&mut self, table: usize, prefix: Prefix, target: Target) -> Result<(), Full> {
        self.set_range(table, prefix.into(), target)
    }

    /// As [`Writer::set`], in a table of IPv6.
    pub fn set6(&mut self, table: usize, prefix: Prefix6, target: Target) -> Result<(), Full> {
        self.set_range(self.live.tables4 + table, prefix.into(), target)
    }

    /// Removes a route. `cover` is the longest shorter one, unless it has length 0.
    pub fn remove(&mut self, table: usize, prefix: Prefix, cover: Option<(u8, Target)>) {
        self.remove_range(table, prefix.into(), cover);
    }

    /// As [`Writer::remove`], from a table of IPv6.
    pub fn remove6(&mut self, table: usize, prefix: Prefix6, cover: Option<(u8, Target)>) {
        self.remove_range(self.live.tables4 + table, prefix.into(), cover);
    }

    fn set_range(&mut self, table: usize, range: Range, target: Target) -> Result<(), Full> {
        let leaf = leaf(range.length, target);
        self.change(table, range, leaf, |old| depth(old) <= depth(leaf))?;
        self.summarise(table, range);
        Ok(())
    }

    /// Only tables of IPv4 have coarse entries.
    fn summarise(&self, table: usize, range: Range) {
        if let Some(tree) = self.live.tables.get(table).filter(|_| table < self.live.tables4) {
            tree.summarise((range.first >> 96) as u32, (range.last >> 96) as u32);
        }
    }

    fn remove_range(&mut self, table: usize, range: Range, cover: Option<(u8, Target)>) {
        let removed = u32::from(range.length) + 1;
        let leaf = cover.filter(|(length, _)| *length > 0).map_or(0, |(length, target)| leaf(length, target));
        // Where the route exists, so do its chunks.
        let _ = self.change(table, range, leaf, |old| depth(old) == removed);
        self.collapse(table, range.first);
        self.summarise(table, range);
    }

    fn change(&mut self, table: usize, range: Range, leaf: u32, may: impl Fn(u32) -> bool + Copy) -> Result<(), Full> {
        let live = Arc::clone(&self.live);
        let Some(tree) = live.tables.get(table) else { return Ok(()) };
        self.has_changed = true;
        if range.length == 0 {
            tree.default.store(leaf, Ordering::Release);
            return Ok(());
        }
        let mut chunk = ROOT;
        while u32::from(range.length) > tree.bits(chunk.level) {
            chunk = self.descend(table, tree, chunk, tree.index(chunk.level, range.first))?;
        }
        let (first, last) = (tree.index(chunk.level, range.first), tree.index(chunk.level, range.last));
        paint(tree, chunk, (first, last), leaf, may);
        Ok(())
    }

    /// A new chunk is filled with the entry before readers see it.
    fn descend(&mut self, table: usize, tree: &Table, chunk: Chunk, index: usize) -> Result<Chunk, Full> {
        let entry = tree.entry(chunk, index);
        let old = entry.load(Ordering::Relaxed);
        let level = chunk.level + 1;
        if old & CHUNK != 0 {
            return Ok(Chunk { level, number: old ^ CHUNK });
        }
        self.reclaim();
        let chunks = self.chunks.get_mut(table).ok_or(Full::Nodes)?;
        let number = match tree.entries(level) {
            MIDDLE_ENTRIES => chunks.middles.take(tree.middles.len()),
            _ => chunks.nodes.take(tree.nodes.len()),
        };
        let new = Chunk { level, number: number.ok_or(Full::Nodes)? };
        for index in 0..tree.entries(level) {
            tree.entry(new, index).store(old, Ordering::Relaxed);
        }
        entry.store(new.number | CHUNK, Ordering::Release);
        Ok(new)
    }

    /// Replaces a chunk whose entries are all one route of the level above.
    fn collapse(&mut self, table: usize, first: u128) {
        let live = Arc::clone(&self.live);
        let Some(tree) = live.tables.get(table) else { return };
        let mut path = vec![ROOT];
        while let Some(&chunk) = path.last() {
            let entry = tree.entry(chunk, tree.index(chunk.level, first)).load(Ordering::Relaxed);
            if entry & CHUNK == 0 {
                break;
            }
            path.push(Chunk { level: chunk.level + 1, number: entry ^ CHUNK });
        }
        while let [.., above, chunk] = path.as_slice() {
            let (above, chunk) = (*above, *chunk);
            let same = tree.entry(chunk, 0).load(Ordering::Relaxed);
            let is_of_above = same & CHUNK == 0 && depth(same) <= tree.bits(above.level) + 1;
            let entries = tree.entries(chunk.level);
            if !is_of_above || (1..entries).any(|i| tree.entry(chunk, i).load(Ordering::Relaxed) != same) {
                return;
            }
            tree.entry(above, tree.index(above.level, first)).store(same, Ordering::Release);
            let chunk = chunk.number;
            self.fresh.push(match entries {
                MIDDLE_ENTRIES => Retired::Middle { table, chunk },
                _ => Retired::Node { table, chunk },
            });
            path.pop();
        }
    }
}

fn paint(tree: &Table, chunk: Chunk, indices: (usize, usize), leaf: u32, may: impl Fn(u32) -> bool + Copy) {
    for index in indices.0..=indices.1 {
        let entry = tree.entry(chunk, index);
        let old = entry.load(Ordering::Relaxed);
        if old & CHUNK != 0 {
            let below = Chunk { level: chunk.level + 1, number: old ^ CHUNK };
            paint(tree, below, (0, tree.entries(below.level) - 1), leaf, may);
        } else if may(old) {
            entry.store(leaf, Ordering::Release);
        }
    }
}

/// Highest weighted score (rendezvous hashing): when a member leaves, only its buckets move.
fn choose(bucket: usize, members: &[(u32, Known, u16)]) -> u32 {
    let score = |hop: Known, weight: u16| {
        let mixed =
            (hop.word() ^ (bucket as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb);
        // Uniform in (0, 1).
        let uniform = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -f64::from(weight.max(1)) / uniform.ln()
    };
    let best = members.iter().max_by(|a, b| score(a.1, a.2).total_cmp(&score(b.1, b.2)));
    best.map_or(VALUE_MASK, |(slot, ..)| *slot)
}
