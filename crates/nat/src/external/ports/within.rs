//! Ports within a block or a slice, and leasing of blocks. Counting is not for the packet path.

use core::sync::atomic::Ordering;

use mem::ArenaError;
use mem::Need;

use super::Parity;
use super::PortAim;
use super::PortClass;
use super::PortTable;
use super::SUMMARY_WORDS;
use super::Taker;
use super::WORDS;
use super::full::bits_below;
use super::pick::PICKS;
use super::pick::PROBES;
use super::pick::random_word;
use super::space;
use crate::external::blocks::Block;
use crate::external::blocks::BlockSize;
use crate::external::blocks::BlockTable;
use crate::external::blocks::Holder;
use crate::external::blocks::LEASED_WORDS;
use crate::external::blocks::Lease;
use crate::random::Random;
use crate::rows::TornBlock;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;

/// Consecutive ports of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// External address.
    pub address: AddressIndex,
    /// Lowest port.
    pub first: u16,
    /// Highest port, at least `first`.
    pub last: u16,
}

impl PortRange {
    /// Ports of a block.
    pub const fn of_block(block: Block) -> PortRange {
        PortRange { address: block.address(), first: block.first_port(), last: block.last_port() }
    }

    /// Number of ports.
    pub const fn len(&self) -> u32 {
        self.last as u32 - self.first as u32 + 1
    }

    /// True if the port is in the range.
    pub const fn contains(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Always false.
    pub const fn is_empty(&self) -> bool {
        false
    }

    #[inline]
    pub(crate) fn mask(&self, word: usize) -> u64 {
        let word = word as u16;
        let from_first = if word == self.first / 64 { u64::MAX << (self.first % 64) } else { u64::MAX };
        let to_last = if word == self.last / 64 { u64::MAX >> (63 - self.last % 64) } else { u64::MAX };
        from_first & to_last
    }

    pub(crate) const fn words(&self) -> (usize, usize) {
        ((self.first / 64) as usize, (self.last / 64) as usize + 1)
    }
}

pub(crate) const UNLEASABLE_PIECES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Free,
    Taken,
    /// Offers nothing.
    Nothing,
}

impl PortTable {
    /// Aims anywhere in the range.
    #[inline]
    pub fn aim_within(&self, range: &PortRange, random: &mut Random) -> PortAim {
        PortAim(range.first + random.below(range.len()) as u16)
    }

    /// Like [`PortTable::aim_closer`], for [`PortTable::take_picked`].
    #[inline]
    pub fn aim_closer_within(
        &self,
        range: &PortRange,
        protocol: Protocol,
        parity: Option<Parity>,
        aim: PortAim,
        taker: Taker,
    ) -> Option<PortAim> {
        let word = usize::from(aim.0 / 64);
        if taker == Taker::Anyone && self.blocks.is_leased(range.address.index(), word) {
            return None;
        }
        let mask = range.mask(word);
        self.free_near(space(range.address, protocol), parity, mask, aim)
    }

    /// Aims at a word of the range not known to be full.
    pub fn aim_elsewhere_within(
        &self,
        range: &PortRange,
        protocol: Protocol,
        parity: Option<Parity>,
        random: &mut Random,
    ) -> Option<PortAim> {
        let word = random_word(&self.words_with_room(range, protocol, parity), random)?;
        let mask = range.mask(word);
        // Any bit of the word will do, if in the range.
        let aim = (word * 64) as u16 | random.below(64) as u16;
        let nearest = mask.rotate_right(u32::from(aim % 64)).trailing_zeros() as u16;
        Some(PortAim((word * 64) as u16 | ((aim + nearest) % 64)))
    }

    /// A random free port for [`PortTable::take_picked`]; `None` only if none is free.
    pub fn pick_within(
        &self,
        range: &PortRange,
        protocol: Protocol,
        parity: Option<Parity>,
        taker: Taker,
        random: &mut Random,
    ) -> Option<u16> {
        let base = space(range.address, protocol);
        for _ in 0..PROBES {
            let aim = self.aim_within(range, random);
            let word = usize::from(aim.0 / 64);
            let is_anothers = taker == Taker::Anyone && self.blocks.is_leased(range.address.index(), word);
            if !is_anothers
                && !self.is_full(base, parity, aim)
                && let Some(found) = self.free_near(base, parity, range.mask(word), aim)
            {
                return Some(found.0);
            }
        }
        let words = self.words_with_room(range, protocol, parity);
        self.pick_of_words(base, words, parity, |word| range.mask(word), taker, random)
    }

    /// Takes a port found by [`PortTable::pick_within`].
    pub fn allocate_within(
        &self,
        range: &PortRange,
        protocol: Protocol,
        parity: Option<Parity>,
        taker: Taker,
        random: &mut Random,
    ) -> Option<u16> {
        for _ in 0..PICKS {
            let port = self.pick_within(range, protocol, parity, taker, random)?;
            if self.take_picked(range.address, protocol, port, taker) {
                return Some(port);
            }
        }
        None
    }

    fn words_with_room(&self, range: &PortRange, protocol: Protocol, parity: Option<Parity>) -> [u64; SUMMARY_WORDS] {
        let base = space(range.address, protocol);
        let (first, end) = range.words();
        core::array::from_fn(|index| {
            let inside = bits_below(end, index) & !bits_below(first, index);
            if inside == 0 { 0 } else { self.words_open(base, parity, index) & inside }
        })
    }

    /// Allocates the records of leases: 32 KiB an address.
    pub fn prepare_blocks(&self) -> Result<(), ArenaError> {
        self.blocks.prepare()
    }

    /// Memory of [`PortTable::prepare_blocks`].
    pub fn blocks_need(addresses: usize) -> Need {
        BlockTable::records_need(addresses)
    }

    /// A random free block. Without any, the address is marked as full.
    pub fn find_block(&self, range: &PortRange, size: BlockSize, random: &mut Random) -> Option<Block> {
        let address = range.address;
        let found = self.free_block(range, size, random);
        if found.is_some() {
            return found;
        }
        self.blocks.set_full(address.index());
        let found = self.free_block(range, size, random);
        if found.is_some() {
            self.blocks.set_not_full(address.index());
        }
        found
    }

    /// Like [`PortTable::find_block`], but leaves the hint alone.
    pub fn free_block(&self, range: &PortRange, size: BlockSize, random: &mut Random) -> Option<Block> {
        let address = range.address;
        let mut candidates = self.blocks.free(address.index(), size, range.first, range.last);
        while let Some(grain) = random_word(&candidates, random) {
            candidates[grain / 64] &= !(1 << (grain % 64));
            let block = Block::new(address, grain as u32, size);
            if self.content(block) == Content::Free {
                return Some(block);
            }
        }
        None
    }

    /// Leases a free block; `next` is the holder's previous one. False if another worker leased it
    /// or took a port of it first, or without [`PortTable::prepare_blocks`].
    pub fn lease(&self, block: Block, holder: Holder, next: Option<Block>, now: Instant) -> bool {
        if !self.blocks.take(block) {
            return false;
        }
        // After the lease, see [`crate::external::blocks`].
        if self.content(block) == Content::Free {
            self.blocks.hold(block, holder, next, now);
            return true;
        }
        self.blocks.let_go(block);
        self.note_ports_free(block);
        // A search meanwhile saw this block leased. The release of its last port clears the hint.
        if self.content(block) == Content::Free {
            self.blocks.set_not_full(block.address().index());
        }
        false
    }

    fn content(&self, block: Block) -> Content {
        let range = PortRange::of_block(block);
        let (first, end) = range.words();
        let mut is_offered = false;
        for protocol in Protocol::ALL {
            let base = space(range.address, protocol);
            for word in first..end {
                let offered = self.offered_bits(range.address, protocol, word);
                is_offered |= offered != 0 && protocol != Protocol::Icmp;
                if self.used[base * WORDS + word].load(Ordering::SeqCst) & offered != 0 {
                    return Content::Taken;
                }
            }
        }
        if is_offered { Content::Free } else { Content::Nothing }
    }

    /// True if no port of the block is in use.
    pub fn is_unused(&self, block: Block) -> bool {
        self.content(block) != Content::Taken
    }

    /// The block's ports in use or held down.
    pub fn taken_in(&self, block: Block) -> impl Iterator<Item = (Protocol, u16)> + '_ {
        let range = PortRange::of_block(block);
        let (first, end) = range.words();
        let words = Protocol::ALL.into_iter().flat_map(move |protocol| (first..end).map(move |word| (protocol, word)));
        words.flat_map(move |(protocol, word)| {
            let used = self.used[space(range.address, protocol) * WORDS + word].load(Ordering::SeqCst);
            let taken = used & self.offered_bits(range.address, protocol, word);
            let bits = (0..64_u16).filter(move |bit| taken >> bit & 1 != 0);
            bits.map(move |bit| (protocol, (word * 64) as u16 | bit))
        })
    }

    /// Ports in use or held down, but no longer offered.
    pub fn used_of_withheld(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        let base = space(address, protocol) * WORDS;
        let used = |word: usize| {
            let bits = self.used[base + word].load(Ordering::Relaxed) & self.offered_bits(address, protocol, word);
            (bits & self.withheld[base + word].load(Ordering::Relaxed)).count_ones()
        };
        (0..WORDS).map(used).sum()
    }

    /// Ports outside the range that are leased or in use.
    pub fn busy_outside(&self, range: &PortRange, protocol: Protocol) -> u32 {
        let (address, (first, end)) = (range.address, range.words());
        let base = space(address, protocol) * WORDS;
        let busy = |word: usize| {
            let used = self.used[base + word].load(Ordering::Relaxed) & self.offered_bits(address, protocol, word);
            let leased = if self.blocks.is_leased(address.index(), word) { u64::MAX } else { 0 };
            let within = if (first..end).contains(&word) { range.mask(word) } else { 0 };
            ((used | leased) & !within).count_ones()
        };
        (0..WORDS).map(busy).sum()
    }

    /// Prefetches one word of each protocol for [`PortTable::is_unused`].
    pub fn prefetch_block(&self, block: Block) {
        self.blocks.prefetch(block);
        for protocol in Protocol::ALL {
            self.used.prefetch(space(block.address(), protocol) * WORDS + usize::from(block.first_port() / 64));
        }
    }

    /// Ports of the range in use.
    pub fn used_within(&self, range: &PortRange, protocol: Protocol) -> u32 {
        let base = space(range.address, protocol);
        let (first, end) = range.words();
        let used = |word: usize| {
            let bits = self.used[base * WORDS + word].load(Ordering::Relaxed);
            (bits & self.offered_bits(range.address, protocol, word) & range.mask(word)).count_ones()
        };
        (first..end).map(used).sum()
    }

    /// Free ports of a class outside leased blocks.
    pub fn free_of_class(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> u32 {
        let range = self.range(address, protocol, class);
        range.map_or(0, |(first, last)| self.free_within(&PortRange { address, first, last }, protocol))
    }

    /// Free ports of the range outside leased blocks.
    pub fn free_within(&self, range: &PortRange, protocol: Protocol) -> u32 {
        let (address, (first, end)) = (range.address, range.words());
        let base = space(address, protocol);
        let open = (first..end).filter(|word| !self.blocks.is_leased(address.index(), *word));
        let free = open.map(|word| {
            let used = self.used[base * WORDS + word].load(Ordering::Relaxed);
            (!used & self.offered_bits(address, protocol, word) & range.mask(word)).count_ones()
        });
        free.sum()
    }

    /// Offered ports of the range.
    pub fn available_within(&self, range: &PortRange, protocol: Protocol) -> u32 {
        let (first, end) = range.words();
        let offered = |word| (self.offered_bits(range.address, protocol, word) & range.mask(word)).count_ones();
        (first..end).map(offered).sum()
    }

    /// Offered ports in blocks that can be leased.
    pub fn available_in_blocks(&self, range: &PortRange, size: BlockSize, protocol: Protocol) -> u32 {
        let starts = (u32::from(range.first).next_multiple_of(size.ports())..).step_by(size.ports() as usize);
        let ends = starts.map(|first| (first, first + size.ports() - 1));
        let blocks = ends.take_while(|(_, last)| *last <= u32::from(range.last));
        let blocks =
            blocks.map(|(first, last)| PortRange { address: range.address, first: first as u16, last: last as u16 });
        let has_ports = |block: &PortRange| {
            [Protocol::Udp, Protocol::Tcp].iter().any(|protocol| self.available_within(block, *protocol) > 0)
        };
        blocks.filter(has_ports).map(|block| self.available_within(&block, protocol)).sum()
    }

    /// Gives back a block without ports in use.
    pub fn give_back(&self, block: Block) {
        self.blocks.forget(block);
        self.blocks.let_go(block);
        self.note_block_free(block);
    }

    fn note_block_free(&self, block: Block) {
        self.blocks.set_not_full(block.address().index());
        self.note_ports_free(block);
    }

    fn note_ports_free(&self, block: Block) {
        let address = block.address().index();
        for protocol in Protocol::ALL {
            let hint = &self.address_full[protocol.index()][address / 64];
            if hint.load(Ordering::SeqCst) >> (address % 64) & 1 != 0 {
                self.clear(hint, 1 << (address % 64));
            }
        }
    }

    /// The lease that has this port.
    pub fn lease_of(&self, address: AddressIndex, port: u16) -> Option<Lease> {
        self.blocks.lease_of(address, port)
    }

    /// Leases of an address, in order.
    pub fn leases_on(&self, address: AddressIndex) -> impl Iterator<Item = Lease> + '_ {
        let grains = 0..=u16::MAX / BlockSize::MIN.ports() as u16;
        let leases =
            grains.filter_map(move |grain| self.blocks.lease_of(address, grain * BlockSize::MIN.ports() as u16));
        // Each grain of a block names it.
        let mut last = None;
        leases.filter(move |lease| last.replace(lease.block) != Some(lease.block))
    }

    /// Blocks that could be leased now.
    pub fn blocks_free(&self, range: &PortRange, size: BlockSize) -> u32 {
        let free = self.blocks.free(range.address.index(), size, range.first, range.last);
        let grains = (0..free.len() * 64).filter(|grain| free[grain / 64] >> (grain % 64) & 1 != 0);
        let blocks = grains.map(|grain| Block::new(range.address, grain as u32, size));
        blocks.filter(|block| self.content(*block) == Content::Free).count() as u32
    }

    /// Ports in leased blocks.
    pub fn ports_leased(&self, address: AddressIndex) -> u32 {
        self.blocks.leased_grains(address.index()) * BlockSize::MIN.ports()
    }

    /// Ports of unleased blocks that cannot be leased: other ports of the block are taken singly,
    /// shared or leased in another size.
    pub fn ports_unleasable(&self, range: &PortRange, size: BlockSize) -> u32 {
        (0..UNLEASABLE_PIECES).map(|piece| self.ports_unleasable_in(range, size, piece)).sum()
    }

    /// In one of [`UNLEASABLE_PIECES`]. Reads at most 12 KiB.
    pub(crate) fn ports_unleasable_in(&self, range: &PortRange, size: BlockSize, piece: usize) -> u32 {
        const PIECE_WORDS: usize = LEASED_WORDS / UNLEASABLE_PIECES;
        let words = piece * PIECE_WORDS..(piece + 1) * PIECE_WORDS;
        let grains = words.flat_map(|index| {
            let starts = size.starts_between(range.first, range.last, index);
            (0..64).filter(move |grain| starts >> grain & 1 != 0).map(move |grain| index as u32 * 64 + grain)
        });
        grains.map(|grain| self.unleasable_of(Block::new(range.address, grain, size))).sum()
    }

    fn unleasable_of(&self, block: Block) -> u32 {
        let ports = block.size().ports();
        match self.blocks.leased_of(block) * BlockSize::MIN.ports() {
            0 if self.content(block) != Content::Taken => 0,
            leased => ports - leased,
        }
    }

    /// What keeps a port's block from being leased.
    pub fn torn_block(&self, range: &PortRange, size: BlockSize, port: u16) -> Option<TornBlock> {
        let block = Block::around(range.address, port, size);
        let (first, last) = (block.first_port(), block.last_port());
        if first < range.first || last > range.last || self.blocks.leased_of(block) > 0 {
            return None;
        }
        let inside = PortRange::of_block(block);
        let taken: u32 = Protocol::ALL.iter().map(|protocol| self.used_within(&inside, *protocol)).sum();
        let is_shared = |protocol, port| {
            self.lookup(range.address, protocol, port).is_some_and(|(_, mapping)| mapping == MappingIndex::SHARED)
        };
        let shared = |protocol| (first..=last).filter(|port| is_shared(protocol, *port)).count() as u32;
        let shared = Protocol::ALL.iter().map(|protocol| shared(*protocol)).sum();
        (taken > 0).then_some(TornBlock { first, last, shared, others: taken.saturating_sub(shared) })
    }

    /// Cheap unless a block has come back since the last failed search.
    pub fn has_free_block(&self, range: &PortRange, size: BlockSize) -> bool {
        if self.seems_without_block(range.address) {
            return false;
        }
        let has_one = || {
            let free = self.blocks.free(range.address.index(), size, range.first, range.last);
            let mut grains = (0..free.len() * 64).filter(|grain| free[grain / 64] >> (grain % 64) & 1 != 0);
            grains.any(|grain| self.content(Block::new(range.address, grain as u32, size)) == Content::Free)
        };
        if has_one() {
            return true;
        }
        self.blocks.set_full(range.address.index());
        let came_back = has_one();
        if came_back {
            self.blocks.set_not_full(range.address.index());
        }
        came_back
    }

    #[inline]
    fn seems_without_block(&self, address: AddressIndex) -> bool {
        self.blocks.is_full(address.index())
    }

    /// True if there are unleased blocks to search. At most 16 loads.
    pub fn has_unleased_block(&self, range: &PortRange, size: BlockSize) -> bool {
        let address = range.address.index();
        !self.seems_without_block(range.address)
            && self.blocks.free(address, size, range.first, range.last).iter().any(|bits| *bits != 0)
    }

    /// Call it when block sizes or places change: hints become stale.
    pub fn forget_full_addresses(&self) {
        self.blocks.forget_full();
    }
}

#[cfg(test)]
mod tests;
