//! Port blocks leased to subscribers (ADR 12).
//!
//! ```text
//!   (external address)
//!     leased   16 words of 64 bits, one bit a grain of 64 ports; a block is in one word
//!     records  1,024 × 32 bytes, by a block's first grain: holder, holder's next block, time
//! ```
//!
//! A grain covers one word of `used` in the [`PortTable`](crate::external::ports::PortTable). A
//! block is 1 to 64 grains, aligned to its size, and belongs to its holder for all protocols.
//!
//! A block and a single port never share a grain. Both sides set their bits, then check those of
//! the other, with sequential consistency, so at least one notices the other and gives way.
//!
//! Only the holder's worker writes a record; all read it, and each word is complete in itself.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::sync::OnceLock;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::time::Instant;
use crate::types::AddressIndex;
pub use crate::types::Block;
pub use crate::types::BlockSize;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::WorkerId;

const GRAINS: usize = 1_024;
pub(crate) const LEASED_WORDS: usize = GRAINS / 64;
const RECORD_WORDS: usize = 4;
const GRAIN_PORTS: u16 = 64;
const INSTANT_MAX: u64 = (1 << 48) - 1;

impl BlockSize {
    /// 64 ports.
    pub const MIN: BlockSize = BlockSize(0);
    /// 4096 ports.
    pub const MAX: BlockSize = BlockSize(6);

    /// `None` unless there is a block of so many ports.
    pub const fn of_ports(ports: u32) -> Option<BlockSize> {
        if !ports.is_power_of_two() || ports < BlockSize::MIN.ports() || ports > BlockSize::MAX.ports() {
            return None;
        }
        Some(BlockSize((ports.trailing_zeros() - GRAIN_PORTS.trailing_zeros()) as u8))
    }

    /// Number of ports.
    pub const fn ports(self) -> u32 {
        (GRAIN_PORTS as u32) << self.0
    }

    const fn grains(self) -> u32 {
        1 << self.0
    }

    const fn bits(self) -> u64 {
        u64::MAX >> (64 - self.grains())
    }

    /// Grains of a word at which a block may begin.
    const fn starts(self) -> u64 {
        u64::MAX / self.bits()
    }

    pub(crate) fn starts_between(self, first: u16, last: u16, index: usize) -> u64 {
        let from = usize::from(first).div_ceil(usize::from(GRAIN_PORTS));
        let end = ((usize::from(last) + 1) / usize::from(GRAIN_PORTS) + 1).saturating_sub(self.grains() as usize);
        self.starts() & below(end, index) & !below(from, index)
    }

    const fn free_starts(self, leased: u64) -> u64 {
        let mut free = !leased;
        let mut step = 0;
        while step < self.0 {
            free &= free >> (1 << step);
            step += 1;
        }
        free & self.starts()
    }
}

const PLACE_BITS: u32 = 28;

impl Block {
    /// Addresses a [`Block`] can name.
    pub const ADDRESSES_MAX: usize = (1 << PLACE_BITS) / GRAINS;

    pub(crate) const fn new(address: AddressIndex, grain: u32, size: BlockSize) -> Block {
        Block((size.0 as u32) << PLACE_BITS | address.0 << 10 | grain)
    }

    const fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }

    const fn grain(self) -> u32 {
        self.0 % GRAINS as u32
    }

    /// Its external address.
    pub const fn address(self) -> AddressIndex {
        AddressIndex(self.place() as u32 / GRAINS as u32)
    }

    pub(crate) const fn around(address: AddressIndex, port: u16, size: BlockSize) -> Block {
        let grain = (port / GRAIN_PORTS) as u32;
        Block::new(address, grain & !(size.grains() - 1), size)
    }

    /// Its size.
    pub const fn size(self) -> BlockSize {
        BlockSize((self.0 >> PLACE_BITS) as u8 & 7)
    }

    /// Lowest port.
    pub const fn first_port(self) -> u16 {
        self.grain() as u16 * GRAIN_PORTS
    }

    /// Highest port.
    pub const fn last_port(self) -> u16 {
        self.first_port() + (self.size().ports() - 1) as u16
    }
}

/// The subscriber that holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its worker.
    pub worker: WorkerId,
    /// Its realm.
    pub realm: RealmId,
    /// Its address; of IPv6 hosts, their prefix's number, never that of one host.
    pub address: HostNumber,
}

const IS_HELD: u64 = 1 << 63;

impl Holder {
    /// Layout: held 1 bit, size 3, worker 6 of 8, realm 16, address 32.
    const fn word(self, size: BlockSize) -> u64 {
        IS_HELD
            | (size.0 as u64) << 56
            | (self.worker.0 as u64) << 48
            | (self.realm.0 as u64) << 32
            | self.address.0 as u64
    }
}

/// A leased block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The block.
    pub block: Block,
    /// Its holder.
    pub holder: Holder,
    /// When leased, in whole seconds.
    pub since_s: u32,
}

pub(crate) struct BlockTable {
    addresses: usize,
    /// While false, single ports need no check.
    is_ready: AtomicBool,
    leased: Arena<AtomicU64>,
    records: OnceLock<Arena<AtomicU64>>,
    /// By address: a hint that the last search found no free block.
    full: Box<[AtomicU64]>,
}

impl BlockTable {
    pub(crate) fn new(addresses: usize) -> Result<BlockTable, ArenaError> {
        Ok(BlockTable {
            addresses,
            is_ready: AtomicBool::new(false),
            leased: Arena::zeroed(addresses.max(1) * LEASED_WORDS)?,
            records: OnceLock::new(),
            full: (0..addresses.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    pub(crate) fn need(addresses: usize) -> Need {
        Arena::<AtomicU64>::need(addresses.max(1).saturating_mul(LEASED_WORDS))
    }

    pub(crate) fn records_need(addresses: usize) -> Need {
        Arena::<AtomicU64>::need(addresses.max(1).saturating_mul(GRAINS * RECORD_WORDS))
    }

    /// Must precede the first lease.
    pub(crate) fn prepare(&self) -> Result<(), ArenaError> {
        if self.records.get().is_none() {
            let records = Arena::zeroed(self.addresses.max(1) * GRAINS * RECORD_WORDS)?;
            // Another thread's records serve as well.
            let _ = self.records.set(records);
        }
        self.is_ready.store(true, Ordering::SeqCst);
        Ok(())
    }

    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.leased.bytes() + self.records.get().map_or(0, Arena::bytes)
    }

    #[inline]
    fn word(&self, address: usize, index: usize) -> &AtomicU64 {
        &self.leased[address * LEASED_WORDS + index]
    }

    #[inline]
    pub(crate) fn leased(&self, address: usize, index: usize) -> u64 {
        if !self.is_ready() {
            return 0;
        }
        self.word(address, index).load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn is_leased(&self, address: usize, grain: usize) -> bool {
        self.leased(address, grain / 64) >> (grain % 64) & 1 != 0
    }

    /// A place at which an unleased block between these ports begins.
    pub(crate) fn free(&self, address: usize, size: BlockSize, first: u16, last: u16) -> [u64; LEASED_WORDS] {
        core::array::from_fn(|index| {
            size.free_starts(self.leased(address, index)) & size.starts_between(first, last, index)
        })
    }

    pub(crate) fn leased_of(&self, block: Block) -> u32 {
        let (word, bits) = self.bits_of(block);
        (word.load(Ordering::SeqCst) & bits).count_ones()
    }

    pub(crate) fn take(&self, block: Block) -> bool {
        let (word, bits) = self.bits_of(block);
        let mut before = word.load(Ordering::SeqCst);
        while before & bits == 0 {
            match word.compare_exchange_weak(before, before | bits, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => before = now,
            }
        }
        false
    }

    pub(crate) fn let_go(&self, block: Block) {
        let (word, bits) = self.bits_of(block);
        let before = word.fetch_and(!bits, Ordering::SeqCst);
        debug_assert_eq!(before & bits, bits, "only a leased block is let go");
    }

    fn bits_of(&self, block: Block) -> (&AtomicU64, u64) {
        let grain = block.grain();
        (self.word(block.address().index(), grain as usize / 64), block.size().bits() << (grain % 64))
    }

    #[inline]
    fn record(&self, place: usize) -> Option<&[AtomicU64]> {
        self.records.get()?.get(place * RECORD_WORDS..(place + 1) * RECORD_WORDS)
    }

    pub(crate) fn hold(&self, block: Block, holder: Holder, next: Option<Block>, now: Instant) {
        let Some(record) = self.record(block.place()) else { return };
        let since_s = (now.as_micros() / 1_000_000) as u32;
        record[1].store(u64::from(since_s) << 32 | u64::from(number(next)), Ordering::Relaxed);
        record[2].store(0, Ordering::Relaxed);
        // Last, so that a reader of the holder finds the other words.
        record[0].store(holder.word(block.size()), Ordering::Release);
    }

    /// Call it before [`BlockTable::let_go`].
    pub(crate) fn forget(&self, block: Block) {
        if let Some(record) = self.record(block.place()) {
            record[0].store(0, Ordering::Release);
        }
    }

    pub(crate) fn next(&self, block: Block) -> Option<Block> {
        Block::from_number(self.record(block.place())?[1].load(Ordering::Relaxed) as u32)
    }

    pub(crate) fn set_next(&self, block: Block, next: Option<Block>) {
        if let Some(record) = self.record(block.place()) {
            let since = record[1].load(Ordering::Relaxed) & !u64::from(u32::MAX);
            record[1].store(since | u64::from(number(next)), Ordering::Relaxed);
        }
    }

    pub(crate) fn unused_since(&self, block: Block) -> Option<Instant> {
        let since = self.record(block.place())?[2].load(Ordering::Relaxed);
        since.checked_sub(1).map(Instant::from_micros)
    }

    pub(crate) fn set_unused_since(&self, block: Block, since: Option<Instant>) {
        if let Some(record) = self.record(block.place()) {
            let word = since.map_or(0, |at| at.as_micros().min(INSTANT_MAX) + 1);
            record[2].store(word, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn prefetch(&self, block: Block) {
        if let Some(records) = self.records.get() {
            records.prefetch_write(block.place() * RECORD_WORDS);
        }
    }

    /// Reads up to seven records: not for the packet path.
    pub(crate) fn lease_of(&self, address: AddressIndex, port: u16) -> Option<Lease> {
        let grain = usize::from(port / GRAIN_PORTS);
        if address.index() >= self.addresses || !self.is_leased(address.index(), grain) {
            return None;
        }
        (BlockSize::MIN.0..=BlockSize::MAX.0).find_map(|exponent| {
            let size = BlockSize(exponent);
            let block = Block::new(address, grain as u32 & !(size.grains() - 1), size);
            self.lease(block)
        })
    }

    pub(crate) fn lease(&self, block: Block) -> Option<Lease> {
        let record = self.record(block.place())?;
        let word = record[0].load(Ordering::Acquire);
        let holder = Holder {
            worker: WorkerId((word >> 48) as u8),
            realm: RealmId((word >> 32) as u16),
            address: HostNumber(word as u32),
        };
        let since_s = (record[1].load(Ordering::Relaxed) >> 32) as u32;
        (word == holder.word(block.size())).then_some(Lease { block, holder, since_s })
    }

    #[inline]
    pub(crate) fn is_full(&self, address: usize) -> bool {
        self.full[address / 64].load(Ordering::SeqCst) >> (address % 64) & 1 != 0
    }

    /// Search again afterwards: a block may have been given back meanwhile.
    pub(crate) fn set_full(&self, address: usize) {
        self.full[address / 64].fetch_or(1 << (address % 64), Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn set_not_full(&self, address: usize) {
        if self.is_ready() && self.is_full(address) {
            self.full[address / 64].fetch_and(!(1 << (address % 64)), Ordering::SeqCst);
        }
    }

    pub(crate) fn forget_full(&self) {
        self.full.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    }

    pub(crate) fn leased_grains(&self, address: usize) -> u32 {
        (0..LEASED_WORDS).map(|index| self.leased(address, index).count_ones()).sum()
    }
}

fn number(block: Option<Block>) -> u32 {
    block.map_or(0, Block::number)
}

fn below(end: usize, index: usize) -> u64 {
    match end.saturating_sub(index * 64) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests;
