//! Ports within bounds: those of a subscriber's block, or of its slice of a deterministic pool; and the leasing of blocks.

use core::sync::atomic::Ordering;

use mem::ArenaError;
use mem::Need;

use super::PROBES;
use super::Parity;
use super::PortAim;
use super::PortClass;
use super::PortTable;
use super::SUMMARY_WORDS;
use super::Taker;
use super::WORDS;
use super::bits_below;
use super::random_word;
use super::space;
use crate::blocks::Block;
use crate::blocks::BlockSize;
use crate::blocks::BlockTable;
use crate::blocks::Holder;
use crate::blocks::LEASED_WORDS;
use crate::blocks::Lease;
use crate::random::Random;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::view::TornBlock;

/// Ports of one external address, from a first to a last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The external address.
    pub address: AddressIndex,
    /// Lowest port.
    pub first: u16,
    /// Highest port, at least `first`.
    pub last: u16,
}

impl PortRange {
    /// The ports of a block.
    pub const fn of_block(block: Block) -> PortRange {
        PortRange { address: block.address(), first: block.first_port(), last: block.last_port() }
    }

    /// How many ports.
    pub const fn len(&self) -> u32 {
        self.last as u32 - self.first as u32 + 1
    }

    /// Whether the port is one of them.
    pub const fn contains(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Never: a range has its first port at least.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Of the 64 ports of this word of `used`, those that are in the range.
    #[inline]
    pub(crate) fn mask(&self, word: usize) -> u64 {
        let word = word as u16;
        let from_first = if word == self.first / 64 { u64::MAX << (self.first % 64) } else { u64::MAX };
        let to_last = if word == self.last / 64 { u64::MAX >> (63 - self.last % 64) } else { u64::MAX };
        from_first & to_last
    }

    /// First word and the one after the last.
    pub(crate) const fn words(&self) -> (usize, usize) {
        ((self.first / 64) as usize, (self.last / 64) as usize + 1)
    }
}

/// Pieces in which an address is searched for blocks that nobody can lease.
pub(crate) const UNLEASABLE_PIECES: usize = 4;

/// What is in a block that somebody wants to lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Ports to give out, all free.
    Free,
    /// A port that somebody took by itself.
    Taken,
    /// Nothing that is ever given out.
    Nothing,
}

impl PortTable {
    /// Chooses where in the range to look for a free port.
    #[inline]
    pub fn aim_within(&self, range: &PortRange, random: &mut Random) -> PortAim {
        PortAim(range.first + random.below(range.len()) as u16)
    }

    /// As [`PortTable::aim_closer`], for a port that [`PortTable::allocate_near_within`] is going to take.
    #[inline]
    pub fn aim_closer_within(
        &self,
        range: &PortRange,
        protocol: Protocol,
        parity: Option<Parity>,
        aim: PortAim,
    ) -> Option<PortAim> {
        let mask = range.mask(usize::from(aim.0 / 64));
        self.free_near(space(range.address, protocol), parity, mask, aim)
    }

    /// Chooses once more where in the range to look for a free port, where one of this parity is left as far as is known. None
    /// when there is none.
    pub fn aim_elsewhere_within(
        &self,
        range: &PortRange,
        protocol: Protocol,
        parity: Option<Parity>,
        random: &mut Random,
    ) -> Option<PortAim> {
        let word = random_word(&self.words_with_room(range, protocol, parity), random)?;
        let mask = range.mask(word);
        // Any bit of the word will do, but it has to be one of the range.
        let aim = (word * 64) as u16 | random.below(64) as u16;
        let nearest = mask.rotate_right(u32::from(aim % 64)).trailing_zeros() as u16;
        Some(PortAim((word * 64) as u16 | ((aim + nearest) % 64)))
    }

    /// Takes the free port next to one aimed at in the range, for `taker`.
    #[inline]
    pub fn allocate_near_within(
        &self,
        range: &PortRange,
        protocol: Protocol,
        parity: Option<Parity>,
        aim: PortAim,
        taker: Taker,
    ) -> Option<u16> {
        let mask = range.mask(usize::from(aim.0 / 64));
        self.take_near(space(range.address, protocol), parity, mask, aim, taker)
    }

    /// Takes a random free port of the range. None only when none of this parity is free there.
    pub fn allocate_within(
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
            if !self.is_full(base, parity, aim)
                && let Some(port) = self.allocate_near_within(range, protocol, parity, aim, taker)
            {
                return Some(port);
            }
        }
        let mut candidates = self.words_with_room(range, protocol, parity);
        while let Some(word) = random_word(&candidates, random) {
            if let Some(port) = self.take_any(base, word, parity, range.mask(word), taker, random) {
                return Some(port);
            }
            candidates[word / 64] &= !(1 << (word % 64));
        }
        None
    }

    /// By word of `used`, one bit: it is of the range, and `full` does not say that it has no port of this parity.
    fn words_with_room(&self, range: &PortRange, protocol: Protocol, parity: Option<Parity>) -> [u64; SUMMARY_WORDS] {
        let base = space(range.address, protocol);
        let (first, end) = range.words();
        core::array::from_fn(|index| {
            let inside = bits_below(end, index) & !bits_below(first, index);
            if inside == 0 { 0 } else { self.words_open(base, parity, index) & inside }
        })
    }

    /// Makes ready for leases: takes the memory of their records, 32 KiB an address, if that has not been done.
    ///
    /// # Errors
    /// When memory is short.
    pub fn prepare_blocks(&self) -> Result<(), ArenaError> {
        self.blocks.prepare()
    }

    /// The memory [`PortTable::prepare_blocks`] is going to take for so many addresses.
    pub fn blocks_need(addresses: usize) -> Need {
        BlockTable::records_need(addresses)
    }

    /// Leases a random free block of this size that lies within the range. `next` is the holder's block before it.
    ///
    /// None when there is none, or when [`PortTable::prepare_blocks`] was never called.
    pub fn lease(
        &self,
        range: &PortRange,
        size: BlockSize,
        holder: Holder,
        next: Option<Block>,
        now: Instant,
        random: &mut Random,
    ) -> Option<Block> {
        let address = range.address;
        let found = self.lease_free(range, size, holder, next, now, random);
        if found.is_none() {
            self.blocks.set_full(address.index());
            // One may have come back meanwhile, and its releaser found the hint still clear.
            if self.blocks.free(address.index(), size, range.first, range.last).iter().any(|bits| *bits != 0)
                && let Some(block) = self.lease_free(range, size, holder, next, now, random)
            {
                self.blocks.set_not_full(address.index());
                return Some(block);
            }
        }
        found
    }

    /// A random block of this size within the range of which nobody has a port, not leased: it may be somebody's at once.
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

    fn lease_free(
        &self,
        range: &PortRange,
        size: BlockSize,
        holder: Holder,
        next: Option<Block>,
        now: Instant,
        random: &mut Random,
    ) -> Option<Block> {
        let address = range.address;
        let mut candidates = self.blocks.free(address.index(), size, range.first, range.last);
        while let Some(grain) = random_word(&candidates, random) {
            candidates[grain / 64] &= !(1 << (grain % 64));
            let block = Block::new(address, grain as u32, size);
            if !self.blocks.take(block) {
                continue;
            }
            // After the lease: who takes a single port sets its bit first, and then looks at the lease.
            if self.content(block) == Content::Free {
                self.blocks.hold(block, holder, next, now);
                return Some(block);
            }
            self.blocks.let_go(block);
            self.note_ports_free(block);
            // Who looked for a block meanwhile found this one leased. Where ports of it are in use still, whoever gives the last
            // of them back says so.
            if self.content(block) == Content::Free {
                self.blocks.set_not_full(address.index());
            }
        }
        None
    }

    /// What is in a block, over all protocols. Reads a word for each 64 ports and protocol.
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

    /// Whether no port of the block is in use.
    pub fn is_unused(&self, block: Block) -> bool {
        self.content(block) != Content::Taken
    }

    /// The ports of a block that somebody has, or that rest. Reads a word for each 64 ports and protocol.
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

    /// Ports of one protocol in use or at rest that the address does not give out any more. For people: reads all words of the address.
    pub fn used_of_withheld(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        let base = space(address, protocol) * WORDS;
        let used = |word: usize| {
            let bits = self.used[base + word].load(Ordering::Relaxed) & self.offered_bits(address, protocol, word);
            (bits & self.withheld[base + word].load(Ordering::Relaxed)).count_ones()
        };
        (0..WORDS).map(used).sum()
    }

    /// Ports outside of the range that are leased in blocks, or that somebody has of this protocol. For people, as
    /// [`PortTable::used_of_withheld`].
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

    /// Asks for the lines that [`PortTable::is_unused`] reads of one word of each protocol.
    pub fn prefetch_block(&self, block: Block) {
        self.blocks.prefetch(block);
        for protocol in Protocol::ALL {
            self.used.prefetch(space(block.address(), protocol) * WORDS + usize::from(block.first_port() / 64));
        }
    }

    /// Ports of one protocol in use within the range. For people: reads a word for each 64 ports.
    pub fn used_within(&self, range: &PortRange, protocol: Protocol) -> u32 {
        let base = space(range.address, protocol);
        let (first, end) = range.words();
        let used = |word: usize| {
            let bits = self.used[base * WORDS + word].load(Ordering::Relaxed);
            (bits & self.offered_bits(range.address, protocol, word) & range.mask(word)).count_ones()
        };
        (first..end).map(used).sum()
    }

    /// Ports of one class that whoever comes could have of an address now: not in use, and not in somebody's block. For people:
    /// reads a word for each 64 ports.
    pub fn free_of_class(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> u32 {
        let range = self.range(address, protocol, class);
        range.map_or(0, |(first, last)| self.free_within(&PortRange { address, first, last }, protocol))
    }

    /// The same of the ports within a range.
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

    /// Ports of one protocol that are given out within the range. For people, as [`PortTable::used_within`].
    pub fn available_within(&self, range: &PortRange, protocol: Protocol) -> u32 {
        let (first, end) = range.words();
        let offered = |word| (self.offered_bits(range.address, protocol, word) & range.mask(word)).count_ones();
        (first..end).map(offered).sum()
    }

    /// As [`PortTable::available_within`], in those blocks of the range that can be leased.
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

    /// Gives a block back of which no port is in use.
    pub fn give_back(&self, block: Block) {
        self.blocks.forget(block);
        self.blocks.let_go(block);
        self.note_block_free(block);
    }

    /// Clears the hints that say the address has nothing left.
    fn note_block_free(&self, block: Block) {
        self.blocks.set_not_full(block.address().index());
        self.note_ports_free(block);
    }

    /// Clears those about single ports.
    fn note_ports_free(&self, block: Block) {
        let address = block.address().index();
        for protocol in Protocol::ALL {
            let hint = &self.address_full[protocol.index()][address / 64];
            if hint.load(Ordering::SeqCst) >> (address % 64) & 1 != 0 {
                self.clear(hint, 1 << (address % 64));
            }
        }
    }

    /// The lease that has this port, if one has.
    pub fn lease_of(&self, address: AddressIndex, port: u16) -> Option<Lease> {
        self.blocks.lease_of(address, port)
    }

    /// The leases of one address, in order. For people: reads all there is to read of it.
    pub fn leases_on(&self, address: AddressIndex) -> impl Iterator<Item = Lease> + '_ {
        let grains = 0..=u16::MAX / BlockSize::MIN.ports() as u16;
        let leases =
            grains.filter_map(move |grain| self.blocks.lease_of(address, grain * BlockSize::MIN.ports() as u16));
        // Each grain of a block names it.
        let mut last = None;
        leases.filter(move |lease| last.replace(lease.block) != Some(lease.block))
    }

    /// Blocks of this size that could be leased within the range now: nobody has one of their ports. For people: reads the words of
    /// all of them.
    pub fn blocks_free(&self, range: &PortRange, size: BlockSize) -> u32 {
        let free = self.blocks.free(range.address.index(), size, range.first, range.last);
        let grains = (0..free.len() * 64).filter(|grain| free[grain / 64] >> (grain % 64) & 1 != 0);
        let blocks = grains.map(|grain| Block::new(range.address, grain as u32, size));
        blocks.filter(|block| self.content(*block) == Content::Free).count() as u32
    }

    /// Ports of one address that are leased in blocks. For people.
    pub fn ports_leased(&self, address: AddressIndex) -> u32 {
        self.blocks.leased_grains(address.index()) * BlockSize::MIN.ports()
    }

    /// Ports of blocks of this size within the range that nobody can lease though nobody has leased them: others of the same block are
    /// taken singly, to be shared by flows, or were leased in another size. [`PortTable::ports_unleasable_in`] of all pieces: for people.
    pub fn ports_unleasable(&self, range: &PortRange, size: BlockSize) -> u32 {
        (0..UNLEASABLE_PIECES).map(|piece| self.ports_unleasable_in(range, size, piece)).sum()
    }

    /// [`PortTable::ports_unleasable`] of one of [`UNLEASABLE_PIECES`] of the address. Reads 12 KiB at most.
    pub(crate) fn ports_unleasable_in(&self, range: &PortRange, size: BlockSize, piece: usize) -> u32 {
        const PIECE_WORDS: usize = LEASED_WORDS / UNLEASABLE_PIECES;
        let words = piece * PIECE_WORDS..(piece + 1) * PIECE_WORDS;
        let grains = words.flat_map(|index| {
            let starts = size.starts_between(range.first, range.last, index);
            (0..64).filter(move |grain| starts >> grain & 1 != 0).map(move |grain| index as u32 * 64 + grain)
        });
        grains.map(|grain| self.unleasable_of(Block::new(range.address, grain, size))).sum()
    }

    /// How many ports of a block nobody has leased, if nobody can lease it.
    fn unleasable_of(&self, block: Block) -> u32 {
        let ports = block.size().ports();
        match self.blocks.leased_of(block) * BlockSize::MIN.ports() {
            0 if self.content(block) != Content::Taken => 0,
            leased => ports - leased,
        }
    }

    /// What is taken singly in the block of this size around a port, if that is within the range and some of it keeps it from being
    /// leased. For people.
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

    /// Whether a block of this size is free within the range: leased to nobody, and with none of its ports in use. Where there was none
    /// before and nothing came back since, the answer is at hand; else it reads a word for each 64 ports of each block that is not leased,
    /// until it finds one that is free.
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
        // One may have come back meanwhile, and its releaser found the hint still clear.
        let came_back = has_one();
        if came_back {
            self.blocks.set_not_full(range.address.index());
        }
        came_back
    }

    /// Whether nobody found a free block on the address the last time, and nothing came back since.
    #[inline]
    fn seems_without_block(&self, address: AddressIndex) -> bool {
        self.blocks.is_full(address.index())
    }

    /// Whether [`PortTable::has_free_block`] has blocks to look through: some that nobody has leased. As cheap as 16 loads.
    pub fn has_unleased_block(&self, range: &PortRange, size: BlockSize) -> bool {
        let address = range.address.index();
        !self.seems_without_block(range.address)
            && self.blocks.free(address, size, range.first, range.last).iter().any(|bits| *bits != 0)
    }

    /// Blocks have another size from now on, or lie elsewhere: what was found out about those before says nothing.
    pub fn forget_full_addresses(&self) {
        self.blocks.forget_full();
    }
}

#[cfg(test)]
mod tests;
