//! External ports: which are free, and which worker and mapping owns each of the others.
//!
//! ```text
//!   (external address, protocol)
//!     used      1,024 words of 64 bits, one bit a port; set for ports that are not offered, too
//!     withheld  the same size: ports that must not be given out (`withheld.rs`)
//!     kept      the same size: withheld ports not in use
//!     full      2 × 16 words, one bit a word of `used`: a hint that no even (odd) port is free
//!     entries   65,536 × [worker: 6 bits | mapping: 26 bits], 0 = none: inbound table, by port
//!               of a port shared by flows (`sharing.rs`):
//!               [home worker: 6 bits | 18 bits set | lent: 1 bit | workers with flows: 7 bits]
//! ```
//!
//! Entries of query identifiers are in memory of their own, because few networks use many. It gets
//! its pages when an identifier of theirs is first used ([`Arena::reserved`]).
//!
//! All workers share the table (ADR 1); the worker that sets a bit first owns the port. Each worker
//! searches its own cache lines first.
//!
//! A port is chosen by RFC 6056 §3.3.1 (algorithm 1): a random port or, if taken, the next free one
//! in its word. If few are free, a search through `full` keeps the cost O(1) up to a full address.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use std::sync::OnceLock;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::external::blocks::BlockTable;
use crate::random::Random;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

mod guarantees;
mod sharing;
#[cfg(test)]
mod tests;
mod withheld;
mod within;

pub(crate) use guarantees::Guarantees;
pub(crate) use guarantees::PerProtocol;
pub(crate) use guarantees::Share;
pub(crate) use guarantees::Stock;
pub(crate) use sharing::Unshared;
pub use withheld::Mask;
pub use within::PortRange;
pub(crate) use within::UNLEASABLE_PIECES;

const WORDS: usize = 1_024;
const SUMMARY_WORDS: usize = WORDS / 64;
const PORTS: usize = 65_536;
/// UDP and TCP.
const WITH_PORTS: usize = 2;
const LINE_WORDS: usize = 8;
const AIMS: usize = 4;
/// Each covers 64 ports, so four nearly always succeed if one port in a hundred is free.
const PROBES: usize = 4;
/// Picks for one port; each but the last lost a race.
const PICKS: usize = 64;
const MAPPING_BITS: u32 = 26;

const _: () = assert!(MappingIndex::SHARED.0 + 256 == 1 << MAPPING_BITS, "a mapping index fits an entry");
const _: () = assert!(MappingIndex::COUNT_MAX < MappingIndex::SHARED.index(), "no mapping stands for shared ports");
const _: () = assert!(WorkerId::COUNT_MAX == 1 << (32 - MAPPING_BITS), "a worker fits an entry");

/// Ports of a mapping (RFC 4787 §4.2.1 REQ-3a). Query identifiers have one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortClass {
    /// 0 to 1023.
    Low,
    /// 1024 to 65535.
    High,
}

impl PortClass {
    pub(crate) const fn words(self, protocol: Protocol) -> (usize, usize) {
        match (protocol, self) {
            (Protocol::Icmp, _) => (0, WORDS),
            (_, PortClass::Low) => (0, 16),
            (_, PortClass::High) => (16, WORDS),
        }
    }
}

/// Parity of a port (RFC 4787 §4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// RTP.
    Even,
    /// RTCP.
    Odd,
}

impl Parity {
    /// Parity of a port.
    pub const fn of(port: u16) -> Parity {
        if port & 1 == 0 { Parity::Even } else { Parity::Odd }
    }

    const BOTH: [Parity; 2] = [Parity::Even, Parity::Odd];

    const fn mask(self) -> u64 {
        match self {
            Parity::Even => 0x5555_5555_5555_5555,
            Parity::Odd => 0xaaaa_aaaa_aaaa_aaaa,
        }
    }
}

/// What an external address offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSpec {
    /// Lowest port, at least 1; not for query identifiers.
    pub port_min: u16,
    /// Highest port; 0 offers nothing, not even query identifiers.
    pub port_max: u16,
    /// Ports never given out; not for query identifiers.
    pub reserved: Vec<u16>,
    /// Further ranges of ports never given out, by [`Protocol::index`].
    pub forwarded: [Vec<(u16, u16)>; Protocol::COUNT],
    /// All ports belong to one subscriber, by [`PortTable::claim`]; no other field applies.
    pub is_whole: bool,
}

impl Default for AddressSpec {
    fn default() -> AddressSpec {
        AddressSpec {
            port_min: 1_024,
            port_max: u16::MAX,
            reserved: Vec::new(),
            forwarded: Default::default(),
            is_whole: false,
        }
    }
}

impl AddressSpec {
    /// An address that offers nothing.
    pub const NOTHING: AddressSpec = AddressSpec {
        port_min: 1,
        port_max: 0,
        reserved: Vec::new(),
        forwarded: [const { Vec::new() }; Protocol::COUNT],
        is_whole: false,
    };
}

/// The external ports of an instance.
pub struct PortTable {
    used: Arena<AtomicU64>,
    withheld: Arena<AtomicU64>,
    kept: Arena<AtomicU64>,
    full: Arena<AtomicU64>,
    entries: Arena<AtomicU32>,
    identifiers: Arena<AtomicU32>,
    /// By protocol, one bit an address: a hint that no high port is free.
    address_full: [Box<[AtomicU64]>; Protocol::COUNT],
    offers: Box<[withheld::Offer]>,
    paired: Box<[AtomicU32]>,
    pub(crate) blocks: BlockTable,
    guarantees: OnceLock<Guarantees>,
    /// One worker needs no atomic read-modify-write.
    exclusive: bool,
}

/// On whose behalf a port is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// Takes no port of a leased block.
    Anyone,
    /// The holder of the port's block.
    Holder,
}

/// A search for a port.
#[derive(Clone, Copy, Debug)]
pub struct Sought {
    /// External address.
    pub address: AddressIndex,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Class of ports.
    pub class: PortClass,
    /// The searching worker.
    pub worker: WorkerId,
    /// Workers sharing the table.
    pub workers: usize,
}

/// Where a search starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAim(u16);

impl PortAim {
    /// The port, which may be taken.
    pub const fn port(self) -> u16 {
        self.0
    }
}

fn space(address: AddressIndex, protocol: Protocol) -> usize {
    address.index() * Protocol::COUNT + protocol.index()
}

fn summary_of(base: usize, parity: Parity, word: usize) -> usize {
    (base * Parity::BOTH.len() + parity as usize) * SUMMARY_WORDS + word / 64
}

fn bits_below(end: usize, index: usize) -> u64 {
    match end.saturating_sub(index * 64) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

fn random_word(words: &[u64; SUMMARY_WORDS], random: &mut Random) -> Option<usize> {
    let count = words.iter().map(|bits| bits.count_ones()).sum();
    if count == 0 {
        return None;
    }
    let (index, bit) = select_in(words, random.below(count));
    Some(index * 64 + bit as usize)
}

fn select_in(words: &[u64; SUMMARY_WORDS], mut n: u32) -> (usize, u32) {
    for (index, bits) in words.iter().enumerate() {
        let ones = bits.count_ones();
        if n < ones {
            return (index, select(*bits, n));
        }
        n -= ones;
    }
    debug_assert!(false, "more bits are set than n");
    (0, 0)
}

/// The n-th (from 0) set bit, which must exist.
fn select(mut bits: u64, n: u32) -> u32 {
    for _ in 0..n {
        bits &= bits - 1;
    }
    bits.trailing_zeros()
}

impl PortTable {
    /// All ports are free. Takes about 0.6 MiB an address, and 0.25 MiB more if all its query
    /// identifiers are used.
    pub fn new(specs: &[AddressSpec]) -> Result<PortTable, ArenaError> {
        PortTable::with_room(specs, specs.len())
    }

    /// Places up to `addresses_max` offer nothing until [`PortTable::withhold`] and
    /// [`PortTable::offer`] are called.
    pub fn with_room(specs: &[AddressSpec], addresses_max: usize) -> Result<PortTable, ArenaError> {
        let places = specs.len().max(addresses_max);
        let spaces = (places * Protocol::COUNT).max(1);
        let hints = || (0..places.div_ceil(64)).map(|_| AtomicU64::new(0)).collect::<Box<[AtomicU64]>>();
        // No other thread uses the table yet.
        let table = PortTable {
            used: Arena::zeroed(spaces * WORDS)?,
            withheld: Arena::zeroed(spaces * WORDS)?,
            kept: Arena::zeroed(spaces * WORDS)?,
            full: Arena::zeroed(spaces * Parity::BOTH.len() * SUMMARY_WORDS)?,
            entries: Arena::zeroed((places * WITH_PORTS).max(1) * PORTS)?,
            identifiers: Arena::reserved(places.max(1) * PORTS)?,
            address_full: [hints(), hints(), hints()],
            offers: (0..spaces).map(|_| withheld::Offer::default()).collect(),
            paired: (0..places).map(|_| AtomicU32::new(0)).collect(),
            blocks: BlockTable::new(places)?,
            guarantees: OnceLock::new(),
            exclusive: true,
        };
        // Addresses of one pool have equal specs.
        let mut last: Option<(&AddressSpec, Vec<Mask>)> = None;
        for (position, spec) in specs.iter().enumerate() {
            let masks = match last.take() {
                Some((known, masks)) if known == spec => masks,
                _ => Protocol::ALL.iter().map(|protocol| never_offered(spec, *protocol)).collect(),
            };
            for (protocol, mask) in Protocol::ALL.iter().zip(&masks) {
                table.withhold(AddressIndex(position as u32), *protocol, mask);
            }
            last = Some((spec, masks));
        }
        Ok(PortTable { exclusive: false, ..table })
    }

    /// Addresses the table has room for.
    pub fn places(&self) -> usize {
        self.paired.len()
    }

    /// Memory that [`PortTable::new`] takes.
    pub fn needs(addresses: usize) -> [Need; 7] {
        let spaces = addresses.saturating_mul(Protocol::COUNT).max(1);
        let identifiers = addresses.max(1).saturating_mul(PORTS);
        [
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(Parity::BOTH.len() * SUMMARY_WORDS)),
            Arena::<AtomicU32>::need(identifiers.saturating_mul(WITH_PORTS)),
            Need::Heap(Arena::<AtomicU32>::need(identifiers).bytes()),
            BlockTable::need(addresses),
        ]
    }

    /// Memory of all arrays; of query identifiers' entries what is in use.
    pub fn bytes(&self) -> usize {
        let bits = self.used.bytes() + self.withheld.bytes() + self.kept.bytes() + self.full.bytes();
        let guarantees = self.guarantees.get().map_or(0, Guarantees::bytes);
        bits + self.entries.bytes() + self.identifiers.resident_bytes() + self.blocks.bytes() + guarantees
    }

    /// For one worker, which needs no atomic read-modify-write.
    #[must_use]
    pub fn for_one_worker(self) -> PortTable {
        PortTable { exclusive: true, ..self }
    }

    /// A random place to look for a free port; may miss.
    #[inline]
    pub fn aim(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        class: PortClass,
        worker: WorkerId,
        workers: usize,
        random: &mut Random,
    ) -> Option<PortAim> {
        let range = self.range(address, protocol, class)?;
        choose(range, self.gaps(address, protocol), worker, workers, random)
    }

    #[inline]
    fn is_full(&self, base: usize, parity: Option<Parity>, aim: PortAim) -> bool {
        let word = usize::from(aim.0 / 64);
        let full = |parity| self.full[summary_of(base, parity, word)].load(Ordering::Relaxed) >> (word % 64) & 1 != 0;
        match parity {
            Some(parity) => full(parity),
            None => full(Parity::Even) && full(Parity::Odd),
        }
    }

    /// The port that [`PortTable::allocate_near`] would take now.
    #[inline]
    pub fn aim_closer(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        parity: Option<Parity>,
        aim: PortAim,
    ) -> Option<PortAim> {
        let is_leased = self.blocks.is_leased(address.index(), usize::from(aim.0 / 64));
        if is_leased { None } else { self.free_near(space(address, protocol), parity, u64::MAX, aim) }
    }

    /// Aims at another word, not known to be full.
    #[expect(clippy::too_many_arguments, reason = "one plain value for each condition on the port")]
    pub fn aim_elsewhere(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        class: PortClass,
        parity: Option<Parity>,
        worker: WorkerId,
        workers: usize,
        random: &mut Random,
    ) -> Option<PortAim> {
        let base = space(address, protocol);
        let again = (0..AIMS).find_map(|_| {
            let aim = self.aim(address, protocol, class, worker, workers, random)?;
            (!self.is_full(base, parity, aim)).then_some(aim)
        });
        again.or_else(|| {
            let words = self.words_not_full(base, class, protocol, parity);
            let word = random_word(&words, random)?;
            Some(PortAim((word * 64) as u16 | random.below(64) as u16))
        })
    }

    /// Like [`PortTable::aim_closer`], but a lease shows only when the port is taken.
    #[inline(always)]
    pub fn near(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        parity: Option<Parity>,
        aim: PortAim,
    ) -> Option<PortAim> {
        self.free_near(space(address, protocol), parity, u64::MAX, aim)
    }

    /// Takes the free port next to `aim`, which must be for the same address, protocol and class.
    #[inline]
    pub fn allocate_near(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        parity: Option<Parity>,
        aim: PortAim,
    ) -> Option<u16> {
        self.take_near(space(address, protocol), parity, u64::MAX, aim, Taker::Anyone)
    }

    /// Prefetches the bit of a [`PortTable::place`] for writing.
    #[inline]
    pub fn prefetch_bit(&self, place: usize) {
        const { assert!(PORTS / WORDS == 64, "a word has a bit for each port") };
        const { assert!(Protocol::COUNT == WITH_PORTS + 1, "identifiers follow two protocols with ports") };
        let at = place / PORTS;
        let base = match at.checked_sub(self.places() * WITH_PORTS) {
            None => at + at / WITH_PORTS,
            Some(address) => space(AddressIndex(address as u32), Protocol::Icmp),
        };
        self.used.prefetch_write(base * WORDS + place % PORTS / 64);
    }

    #[inline]
    fn range(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> Option<(u16, u16)> {
        let (first, end) = class.words(protocol);
        let (lowest, highest) = self.offers[space(address, protocol)].range();
        let (lowest, highest) = (lowest.max((first * 64) as u16), highest.min((end * 64 - 1) as u16));
        (lowest <= highest && highest > 0).then_some((lowest, highest))
    }

    #[inline]
    fn offered_bits(&self, address: AddressIndex, protocol: Protocol, word: usize) -> u64 {
        !self.kept[space(address, protocol) * WORDS + word].load(Ordering::SeqCst)
    }

    /// A random free port for [`PortTable::take_picked`]; `None` only if this class and parity has
    /// none. May miss a port that is being released.
    pub fn pick(&self, sought: &Sought, parity: Option<Parity>, random: &mut Random) -> Option<u16> {
        let Sought { address, protocol, class, worker, workers } = *sought;
        let base = space(address, protocol);
        self.range(address, protocol, class)?;
        for _ in 0..PROBES {
            if let Some(aim) = self.aim(address, protocol, class, worker, workers, random)
                && !self.is_full(base, parity, aim)
                && let Some(found) = self.aim_closer(address, protocol, parity, aim)
            {
                return Some(found.0);
            }
        }
        // Random, because the next free port could be predicted (RFC 6056 §3.2).
        let words = self.words_not_full(base, class, protocol, parity);
        let found = self.pick_of_words(base, words, parity, |_| u64::MAX, Taker::Anyone, random);
        if found.is_none() && class == PortClass::High && parity.is_none() {
            self.note_exhausted(address, protocol);
        }
        found
    }

    /// False if another worker took the port first.
    #[inline]
    pub fn take_picked(&self, address: AddressIndex, protocol: Protocol, port: u16, taker: Taker) -> bool {
        self.take(space(address, protocol), usize::from(port / 64), u32::from(port % 64), taker)
    }

    /// Takes a port found by [`PortTable::pick`].
    #[expect(clippy::too_many_arguments, reason = "one plain value for each condition on the port")]
    pub fn allocate(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        class: PortClass,
        parity: Option<Parity>,
        worker: WorkerId,
        workers: usize,
        random: &mut Random,
    ) -> Option<u16> {
        let sought = Sought { address, protocol, class, worker, workers };
        for _ in 0..PICKS {
            let port = self.pick(&sought, parity, random)?;
            if self.take_picked(address, protocol, port, Taker::Anyone) {
                return Some(port);
            }
        }
        None
    }

    fn pick_of_words(
        &self,
        base: usize,
        mut words: [u64; SUMMARY_WORDS],
        parity: Option<Parity>,
        mask: impl Fn(usize) -> u64,
        taker: Taker,
        random: &mut Random,
    ) -> Option<u16> {
        // Other workers may fill a word meanwhile.
        while let Some(word) = random_word(&words, random) {
            words[word / 64] &= !(1 << (word % 64));
            if taker == Taker::Anyone && self.blocks.is_leased(base / Protocol::COUNT, word) {
                continue;
            }
            let used = self.used[base * WORDS + word].load(Ordering::SeqCst);
            let free = !used & mask(word) & parity.map_or(u64::MAX, Parity::mask);
            if free != 0 {
                return Some((word * 64) as u16 | select(free, random.below(free.count_ones())) as u16);
            }
            // A release may have cleared the hint after others filled the word: without correction,
            // the address looks free for ever.
            self.note_full(base, word, used);
        }
        None
    }

    fn words_not_full(
        &self,
        base: usize,
        class: PortClass,
        protocol: Protocol,
        parity: Option<Parity>,
    ) -> [u64; SUMMARY_WORDS] {
        core::array::from_fn(|index| self.words_not_full_in(base, class, protocol, parity, index))
    }

    #[inline]
    fn words_not_full_in(
        &self,
        base: usize,
        class: PortClass,
        protocol: Protocol,
        parity: Option<Parity>,
        index: usize,
    ) -> u64 {
        let (first, end) = class.words(protocol);
        let leased = self.blocks.leased(base / Protocol::COUNT, index);
        self.words_open(base, parity, index) & !leased & bits_below(end, index) & !bits_below(first, index)
    }

    /// Those not known to be full of the 64 words from `64 × index` on.
    #[inline]
    fn words_open(&self, base: usize, parity: Option<Parity>, index: usize) -> u64 {
        let full = |parity| self.full[summary_of(base, parity, index * 64)].load(Ordering::SeqCst);
        match parity {
            Some(parity) => !full(parity),
            None => !(full(Parity::Even) & full(Parity::Odd)),
        }
    }

    #[inline]
    fn free_near(&self, base: usize, parity: Option<Parity>, mask: u64, aim: PortAim) -> Option<PortAim> {
        let (word, bit) = (usize::from(aim.0 / 64), u32::from(aim.0 % 64));
        let mask = mask & parity.map_or(u64::MAX, Parity::mask);
        let free = !self.used[base * WORDS + word].load(Ordering::Relaxed) & mask;
        let found = (free.rotate_right(bit).trailing_zeros() + bit) % 64;
        (free != 0).then_some(PortAim((word * 64) as u16 | found as u16))
    }

    #[inline]
    fn take_near(&self, base: usize, parity: Option<Parity>, mask: u64, aim: PortAim, taker: Taker) -> Option<u16> {
        // Again after a lost race.
        for _ in 0..2 {
            let found = self.free_near(base, parity, mask, aim)?.0;
            if self.take(base, usize::from(found / 64), u32::from(found % 64), taker) {
                return Some(found);
            }
        }
        None
    }

    #[inline]
    fn set(&self, word: &AtomicU64, bits: u64) -> u64 {
        if !self.exclusive {
            return word.fetch_or(bits, Ordering::SeqCst);
        }
        let before = word.load(Ordering::Relaxed);
        word.store(before | bits, Ordering::Relaxed);
        before
    }

    #[inline]
    fn clear(&self, word: &AtomicU64, bits: u64) -> u64 {
        if !self.exclusive {
            return word.fetch_and(!bits, Ordering::SeqCst);
        }
        let before = word.load(Ordering::Relaxed);
        word.store(before & !bits, Ordering::Relaxed);
        before
    }

    #[inline]
    fn take(&self, base: usize, word: usize, bit: u32, taker: Taker) -> bool {
        let cell = &self.used[base * WORDS + word];
        // Read before writing: near exhaustion most probes hit used bits.
        if cell.load(Ordering::Relaxed) >> bit & 1 != 0 {
            return false;
        }
        let before = self.set(cell, 1 << bit);
        if before >> bit & 1 != 0 {
            return false;
        }
        // After setting the bit, see [`crate::external::blocks`].
        if taker == Taker::Anyone && self.blocks.is_leased(base / Protocol::COUNT, word) {
            self.clear(cell, 1 << bit);
            self.note_free(base, word, Parity::of(bit as u16));
            return false;
        }
        self.note_full(base, word, before | 1 << bit);
        true
    }

    #[inline]
    fn note_full(&self, base: usize, word: usize, used: u64) {
        for parity in Parity::BOTH {
            let mask = parity.mask();
            if used & mask != mask {
                continue;
            }
            let summary = &self.full[summary_of(base, parity, word)];
            let bit = 1 << (word % 64);
            if summary.load(Ordering::SeqCst) & bit != 0 {
                continue;
            }
            self.set(summary, bit);
            // A port may have come back between the two writes: "full" must not stay where one is
            // free.
            if self.used[base * WORDS + word].load(Ordering::SeqCst) & mask != mask {
                self.note_free(base, word, parity);
            }
        }
    }

    fn note_free(&self, base: usize, word: usize, parity: Parity) {
        let summary = &self.full[summary_of(base, parity, word)];
        let bit = 1 << (word % 64);
        if summary.load(Ordering::SeqCst) & bit != 0 {
            self.clear(summary, bit);
        }
        // After the summary, which is read after this hint is set.
        let address = base / Protocol::COUNT;
        let hint = &self.address_full[base % Protocol::COUNT][address / 64];
        let bit = 1 << (address % 64);
        if hint.load(Ordering::SeqCst) & bit != 0 {
            self.clear(hint, bit);
        }
        self.note_block_free_around(base, word);
    }

    fn note_block_free_around(&self, base: usize, word: usize) {
        let address = base / Protocol::COUNT;
        if self.blocks.is_full(address) && !self.blocks.is_leased(address, word) {
            let place = base * WORDS + word;
            let offered = !self.kept[place].load(Ordering::SeqCst);
            if self.used[place].load(Ordering::SeqCst) & offered == 0 {
                self.blocks.set_not_full(address);
            }
        }
    }

    /// True if [`PortTable::claim`] would take this port.
    pub fn is_free(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let (base, word) = (space(address, protocol), usize::from(port / 64));
        let used = self.used[base * WORDS + word].load(Ordering::SeqCst);
        used >> (port % 64) & 1 == 0 && !self.blocks.is_leased(base / Protocol::COUNT, word)
    }

    /// True if the block's holder could take this port.
    pub fn is_free_in_lease(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let used = self.used[space(address, protocol) * WORDS + usize::from(port / 64)].load(Ordering::SeqCst);
        used >> (port % 64) & 1 == 0
    }

    /// Takes a port that is offered, free and in no leased block.
    pub fn claim(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        self.take(space(address, protocol), usize::from(port / 64), u32::from(port % 64), Taker::Anyone)
    }

    /// Records the owner of a taken port.
    #[inline(always)]
    pub fn publish(
        &self,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        worker: WorkerId,
        mapping: MappingIndex,
    ) {
        let entry = u32::from(worker.0) << MAPPING_BITS | mapping.0;
        self.entry(address, protocol, port).store(entry, Ordering::Release);
    }

    /// Owner of an external endpoint. One array read.
    #[inline]
    pub fn lookup(&self, address: AddressIndex, protocol: Protocol, port: u16) -> Option<(WorkerId, MappingIndex)> {
        let (worker, mapping) = self.lookup_at(self.place(address, protocol, port))?;
        // Only `sharing` uses the other bits.
        Some((worker, mapping.min(MappingIndex::SHARED)))
    }

    #[inline(always)]
    fn entry(&self, address: AddressIndex, protocol: Protocol, port: u16) -> &AtomicU32 {
        let (address, port) = (address.index(), usize::from(port));
        match protocol {
            Protocol::Udp | Protocol::Tcp => &self.entries[(address * WITH_PORTS + protocol.index()) * PORTS + port],
            Protocol::Icmp => &self.identifiers[address * PORTS + port],
        }
    }

    /// Index of an external endpoint, for [`PortTable::lookup_at`]: those with ports by address,
    /// then those with identifiers.
    #[inline(always)]
    pub fn place(&self, address: AddressIndex, protocol: Protocol, port: u16) -> usize {
        let at = match protocol {
            Protocol::Udp | Protocol::Tcp => address.index() * WITH_PORTS + protocol.index(),
            Protocol::Icmp => self.places() * WITH_PORTS + address.index(),
        };
        at * PORTS + usize::from(port)
    }

    /// The inverse of [`PortTable::place`].
    #[inline]
    pub fn endpoint_at(&self, place: usize) -> (AddressIndex, Protocol, u16) {
        let at = place / PORTS;
        let (address, protocol) = match at.checked_sub(self.places() * WITH_PORTS) {
            None if at % WITH_PORTS == Protocol::Udp.index() => (at / WITH_PORTS, Protocol::Udp),
            None => (at / WITH_PORTS, Protocol::Tcp),
            Some(address) => (address, Protocol::Icmp),
        };
        (AddressIndex(address as u32), protocol, (place % PORTS) as u16)
    }

    /// The owner; [`MappingIndex::is_shared`] if flows share the port.
    #[inline(always)]
    pub fn lookup_at(&self, place: usize) -> Option<(WorkerId, MappingIndex)> {
        let entry = match self.entries.get(place) {
            Some(entry) => entry.load(Ordering::Acquire),
            None => self.identifier_entry_at(place),
        };
        if entry == 0 {
            return None;
        }
        let mapping = MappingIndex(entry & ((1 << MAPPING_BITS) - 1));
        Some((WorkerId((entry >> MAPPING_BITS) as u8), mapping))
    }

    /// Without a page as long as nothing was written there.
    #[cold]
    fn identifier_entry_at(&self, place: usize) -> u32 {
        let (address, protocol, identifier) = self.endpoint_at(place);
        if address.index() >= self.places() {
            return 0;
        }
        let word = space(address, protocol) * WORDS + usize::from(identifier / 64);
        let is_free = !self.used[word].load(Ordering::SeqCst) | self.kept[word].load(Ordering::SeqCst);
        match is_free >> (identifier % 64) & 1 {
            0 => self.entry(address, protocol, identifier).load(Ordering::Acquire),
            _ => 0,
        }
    }

    /// Prefetches for [`PortTable::lookup_at`].
    #[inline(always)]
    pub fn prefetch(&self, place: usize) {
        self.entries.prefetch(place);
    }

    /// Gives back a taken port, unless it was withheld meanwhile.
    pub fn release(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        // Owner first: the next taker must find the entry empty.
        self.vacate(address, protocol, port);
        self.release_vacant(address, protocol, port);
    }

    /// Removes the owner; the port stays taken.
    #[inline]
    pub fn vacate(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        self.entry(address, protocol, port).store(0, Ordering::Release);
    }

    /// Gives back a taken port that has no owner.
    #[inline]
    pub fn release_vacant(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        let base = space(address, protocol);
        if self.offers[base].is_watched() && self.keep(base, port) {
            return;
        }
        self.free(base, port);
        // Another thread may have found the port in use and withheld it.
        if self.offers[base].is_watched() {
            self.take_back(base, port);
        }
    }

    #[inline]
    fn free(&self, base: usize, port: u16) {
        let (word, bit) = (usize::from(port / 64), port % 64);
        let before = self.clear(&self.used[base * WORDS + word], 1 << bit);
        debug_assert!(before >> bit & 1 == 1, "only a taken port is released");
        self.note_free(base, word, Parity::of(port));
    }

    fn note_exhausted(&self, address: AddressIndex, protocol: Protocol) {
        let hint = &self.address_full[protocol.index()][address.index() / 64];
        let bit = 1 << (address.index() % 64);
        self.set(hint, bit);
        // Corrected as in `note_full`.
        if !self.is_exhausted(address, protocol, PortClass::High) {
            self.clear(hint, bit);
        }
    }

    /// True if found full, and no port has come back since.
    #[inline]
    pub fn seems_full(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let hint = &self.address_full[protocol.index()][address.index() / 64];
        class == PortClass::High && hint.load(Ordering::Relaxed) >> (address.index() % 64) & 1 != 0
    }

    /// True if `full` shows no free port of this class. Two to 32 loads.
    pub fn is_exhausted(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let base = space(address, protocol);
        // Words in the middle serve every class but the low one.
        let from = if class == PortClass::Low { 0 } else { SUMMARY_WORDS / 2 };
        (from..SUMMARY_WORDS)
            .chain(0..from)
            .all(|index| self.words_not_full_in(base, class, protocol, None, index) == 0)
    }

    /// True if a port outside leased blocks is free.
    pub fn has_single_port(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let base = space(address, protocol);
        (0..SUMMARY_WORDS).any(|index| {
            let leased = self.blocks.leased(address.index(), index);
            self.words_not_full_in(base, class, protocol, None, index) & !leased != 0
        })
    }

    /// Ports in use, offered or not. Not for the packet path.
    pub fn used(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        let words = space(address, protocol) * WORDS..(space(address, protocol) + 1) * WORDS;
        let pairs = self.used[words.clone()].iter().zip(&self.kept[words]);
        // `kept` first: a port offered meanwhile must not count as in use.
        let in_use = pairs.map(|(used, kept)| {
            let kept = kept.load(Ordering::Relaxed);
            (used.load(Ordering::Relaxed) & !kept).count_ones()
        });
        in_use.sum()
    }

    /// Ports in use without an owner. Not for the packet path.
    pub fn held_down(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        let first = space(address, protocol) * WORDS;
        let held_down = |word: usize| {
            let used =
                self.used[first + word].load(Ordering::Relaxed) & !self.kept[first + word].load(Ordering::Relaxed);
            let bits = (0..64).filter(|bit| used >> bit & 1 != 0);
            bits.filter(|bit| self.lookup(address, protocol, (word * 64) as u16 | bit).is_none()).count() as u32
        };
        (0..WORDS).map(held_down).sum()
    }

    /// Ports the address can give out.
    pub fn available(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        self.offers[space(address, protocol)].count()
    }

    /// One more paired subscriber.
    pub fn pair(&self, address: AddressIndex) {
        self.paired[address.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// One paired subscriber less.
    pub fn unpair(&self, address: AddressIndex) {
        self.paired[address.index()].fetch_sub(1, Ordering::Relaxed);
    }

    /// Subscribers paired with the address.
    pub fn paired_subscribers(&self, address: AddressIndex) -> u32 {
        self.paired[address.index()].load(Ordering::Relaxed)
    }

    /// The less used of two random addresses, which keeps the load nearly even; if both are full,
    /// the next with a free port. Compares samples of 512 ports, then subscribers.
    pub fn choose_address(
        &self,
        among: &[AddressIndex],
        protocol: Protocol,
        class: PortClass,
        random: &mut Random,
    ) -> Option<AddressIndex> {
        let count = among.len() as u32;
        if count == 0 {
            return None;
        }
        let one = among[random.below(count) as usize];
        let other = among[random.below(count) as usize];
        let (less, more) = if self.is_less_used(one, other, protocol, random) { (one, other) } else { (other, one) };
        let has_room = |address: &AddressIndex| !self.is_exhausted(*address, protocol, class);
        if let Some(address) = [less, more].into_iter().find(has_room) {
            return Some(address);
        }
        let (before, after) = among.split_at(random.below(count) as usize);
        let mut others = after.iter().chain(before).copied();
        others.find(|address| !self.seems_full(*address, protocol, class) && has_room(address))
    }

    fn is_less_used(&self, one: AddressIndex, other: AddressIndex, protocol: Protocol, random: &mut Random) -> bool {
        /// Thousandths: four standard deviations of a sample of 512 ports, half of them in use.
        const CLEARLY: i32 = 125;
        if one == other {
            return true;
        }
        let (of_one, of_other) = (self.sampled_use(one, protocol, random), self.sampled_use(other, protocol, random));
        if (of_one - of_other).abs() > CLEARLY {
            return of_one < of_other;
        }
        self.paired_subscribers(one) <= self.paired_subscribers(other)
    }

    /// Ports in use, in thousandths, among 512 random neighbours. Reads two lines.
    fn sampled_use(&self, address: AddressIndex, protocol: Protocol, random: &mut Random) -> i32 {
        const LINE_WORDS: usize = 8;
        let base = space(address, protocol);
        let (first, last) = self.offers[base].range();
        let (first, last) = (usize::from(first / 64) / LINE_WORDS, usize::from(last / 64) / LINE_WORDS);
        let line = first + random.below((last - first + 1) as u32) as usize;
        let (mut used, mut offered) = (0, 0);
        for word in line * LINE_WORDS..(line + 1) * LINE_WORDS {
            let bits = self.offered_bits(address, protocol, word);
            offered += bits.count_ones() as i32;
            used += (self.used[base * WORDS + word].load(Ordering::Relaxed) & bits).count_ones() as i32;
        }
        (used * 1_000).checked_div(offered).unwrap_or(0)
    }
}

/// Ports an address never gives out. Port 0 is one: sockets and tables use it for "none".
pub fn never_offered(spec: &AddressSpec, protocol: Protocol) -> Mask {
    let mut words = Box::new([u64::MAX; WORDS]);
    if spec.is_whole {
        return Box::new([0; WORDS]);
    }
    if spec.port_max == 0 {
        return words;
    }
    let (first, last, reserved) = match protocol {
        Protocol::Icmp => (1, u16::MAX, [].as_slice()),
        Protocol::Udp | Protocol::Tcp => (spec.port_min.max(1), spec.port_max, spec.reserved.as_slice()),
    };
    for word in first / 64..=last / 64 {
        let from_first = if word == first / 64 { u64::MAX << (first % 64) } else { u64::MAX };
        let to_last = if word == last / 64 { u64::MAX >> (63 - last % 64) } else { u64::MAX };
        words[usize::from(word)] = !(from_first & to_last);
    }
    for port in reserved {
        words[usize::from(port / 64)] |= 1 << (port % 64);
    }
    for port in spec.forwarded[protocol.index()].iter().flat_map(|(first, last)| *first..=*last) {
        words[usize::from(port / 64)] |= 1 << (port % 64);
    }
    words
}

/// A random port that is not withheld. No neighbour replaces a miss: it would become likelier than
/// others (RFC 6056 §3.2, §5).
#[inline]
fn choose(
    range: (u16, u16),
    withheld: Option<&[AtomicU64]>,
    worker: WorkerId,
    workers: usize,
    random: &mut Random,
) -> Option<PortAim> {
    let Some(withheld) = withheld else { return choose_any(range, worker, workers, random) };
    // With one port in ten offered, 64 tries fail once in a thousand.
    (0..64).find_map(|_| {
        let aim = choose_any(range, worker, workers, random)?;
        let word = withheld[usize::from(aim.0 / 64)].load(Ordering::Relaxed);
        (word >> (aim.0 % 64) & 1 == 0).then_some(aim)
    })
}

#[inline]
fn choose_any((lowest, highest): (u16, u16), worker: WorkerId, workers: usize, random: &mut Random) -> Option<PortAim> {
    let number = random.next_u64();
    let (first, end) = (usize::from(lowest / 64), usize::from(highest / 64) + 1);
    let word = probe_word(first, end, worker, workers, (number >> 32) as u32)?;
    let port = (word * 64) as u16 | (number % 64) as u16;
    (lowest..=highest).contains(&port).then_some(PortAim(port))
}

/// A random word. If there are enough, each worker gets every `workers`-th cache line. `None` for a
/// miss at the edge.
fn probe_word(first: usize, end: usize, worker: WorkerId, workers: usize, number: u32) -> Option<usize> {
    let scaled = |bound: usize| ((u64::from(number) * bound as u64) >> 32) as usize;
    // Before the divisions, which cost the most.
    if workers <= 1 {
        return Some(first + scaled(end - first));
    }
    let (first_line, end_line) = (first / LINE_WORDS, end.div_ceil(LINE_WORDS));
    let skip = (worker.index() % workers + workers - first_line % workers) % workers;
    if first_line + skip >= end_line {
        return Some(first + scaled(end - first));
    }
    let lines = (end_line - first_line - skip).div_ceil(workers);
    let choice = scaled(lines * LINE_WORDS);
    let line = first_line + skip + choice / LINE_WORDS * workers;
    let word = line * LINE_WORDS + choice % LINE_WORDS;
    (first..end).contains(&word).then_some(word)
}
