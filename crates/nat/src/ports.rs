//! External ports: which are free, and which worker and mapping owns each of the others.
//!
//! ```text
//!   (external address, protocol)
//!     used      1 024 words of 64 bits, one bit a port; ports that are not given out are set, too
//!     withheld  as many: which ports are not to be given out; kept: which of those nobody has any more (`withheld.rs`)
//!     full      2 × 16 words, one bit a word of `used`: a hint that no even (odd) port of the word is free
//!     entries  65 536 × [worker: 6 bits | mapping: 26 bits], 0 = none: the inbound table, indexed by port; of a port that
//!              flows share: [its home: 6 bits | 18 bits set | lent 1 bit | workers with flows there: 7 bits] (`sharing.rs`)
//! ```
//!
//! All shards share the table, so that a pool can be used to its last port whatever the number of
//! workers: cutting it up between them is what refuses a subscriber while ports are free. A bit belongs to
//! whoever sets it first. To keep cache lines at home all the same, each worker looks first in lines of its
//! own, and in any line only when those seem full.
//!
//! A port is chosen as RFC 6056 §3.3.1 (algorithm 1) has it: a random one, or if that is taken one next to it, by
//! probing while some are free and by a search through `full` when few are: O(1) up to a completely full address.
//! Ports leased in blocks ([`blocks`](crate::blocks)) are not for who takes them one by one; [`within`] takes them.
//!
//! "Next to it" is in the same word of `used`. All that takes a port can be asked for before it is needed: the word
//! ([`PortTable::aim`]), and when that has arrived the entry of the port it is going to be ([`PortTable::aim_closer`]).

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use std::sync::OnceLock;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::blocks::BlockTable;
use crate::random::Random;
use crate::types::AddressIndex;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

mod guard;
mod sharing;
#[cfg(test)]
mod tests;
mod withheld;
mod within;

pub(crate) use guard::Guard;
pub(crate) use guard::PerProtocol;
pub(crate) use guard::Share;
pub(crate) use guard::Stock;
pub(crate) use sharing::Unshared;
pub use withheld::Mask;
pub use within::PortRange;
pub(crate) use within::UNLEASABLE_PIECES;

/// Words of `used` for one address and protocol.
const WORDS: usize = 1_024;
/// Words of `full` for one address, protocol and parity.
const SUMMARY_WORDS: usize = WORDS / 64;
/// Ports of one address and protocol.
const PORTS: usize = 65_536;
/// Words of `used` in one cache line.
const LINE_WORDS: usize = 8;
/// Random words looked at for one that is not known to be full.
const AIMS: usize = 4;
/// Random probes before the search. Each looks at the 64 ports of a word, so they find one nearly always while one in
/// a hundred is free.
const PROBES: usize = 4;
/// Bits of an entry that name the mapping.
const MAPPING_BITS: u32 = 26;

const _: () = assert!(MappingIndex::SHARED.0 + 256 == 1 << MAPPING_BITS, "a mapping index fits an entry");
const _: () = assert!(MappingIndex::COUNT_MAX < MappingIndex::SHARED.index(), "no mapping stands for shared ports");
const _: () = assert!(WorkerId::COUNT_MAX == 1 << (32 - MAPPING_BITS), "a worker fits an entry");

/// Which ports a mapping may have (RFC 4787 §4.2.1 REQ-3a). Query identifiers are all of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortClass {
    /// 0 to 1023.
    Low,
    /// 1024 to 65535.
    High,
}

impl PortClass {
    /// First and one past the last word of `used` with ports of this class.
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
    /// Even ports: RTP.
    Even,
    /// Odd ports: RTCP.
    Odd,
}

impl Parity {
    /// The parity of a port.
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

/// Which ports one external address offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSpec {
    /// Lowest port, at least 1. Does not apply to query identifiers.
    pub port_min: u16,
    /// Highest port; 0: the address offers nothing, query identifiers neither.
    pub port_max: u16,
    /// Ports in between that are never given out. Does not apply to query identifiers.
    pub reserved: Vec<u16>,
    /// By [`Protocol::index`], first and last of ports that are never given out either.
    pub forwarded: [Vec<(u16, u16)>; Protocol::COUNT],
    /// All ports are one subscriber's, who is given each by [`PortTable::claim`]; nothing above applies.
    pub is_whole: bool,
}

impl Default for AddressSpec {
    /// All ports from 1024 on.
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

/// The external ports of all addresses of an instance.
pub struct PortTable {
    used: Arena<AtomicU64>,
    withheld: Arena<AtomicU64>,
    kept: Arena<AtomicU64>,
    full: Arena<AtomicU64>,
    entries: Arena<AtomicU32>,
    /// One bit an address and protocol: a hint that it has no free port of the high class. Words by protocol.
    address_full: [Box<[AtomicU64]>; Protocol::COUNT],
    /// By address and protocol: what it offers now.
    offers: Box<[withheld::Offer]>,
    paired: Box<[AtomicU32]>,
    /// Which ports are leased in blocks.
    pub(crate) blocks: BlockTable,
    /// Which ports are guaranteed to somebody; empty until a pool guarantees any.
    guard: OnceLock<Guard>,
    /// Only one worker gives out ports: nobody writes between its reads and writes.
    exclusive: bool,
}

/// For whom a port is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// Anyone: never a port that is leased in a block.
    Anyone,
    /// The holder of the block the port is in.
    Holder,
}

/// The random port near which a free one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAim(u16);

impl PortAim {
    /// The port aimed at, which may be taken.
    pub const fn port(self) -> u16 {
        self.0
    }
}

fn space(address: AddressIndex, protocol: Protocol) -> usize {
    address.index() * Protocol::COUNT + protocol.index()
}

/// The word of `full` that speaks of this word of `used`.
fn summary_of(base: usize, parity: Parity, word: usize) -> usize {
    (base * Parity::BOTH.len() + parity as usize) * SUMMARY_WORDS + word / 64
}

/// Of the 64 words that word `index` of `full` speaks of, one bit for each before word `end`.
fn bits_below(end: usize, index: usize) -> u64 {
    match end.saturating_sub(index * 64) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

/// One of the words of `used` that have their bit set here, each as likely. None when there is none.
fn random_word(words: &[u64; SUMMARY_WORDS], random: &mut Random) -> Option<usize> {
    let count = words.iter().map(|bits| bits.count_ones()).sum();
    if count == 0 {
        return None;
    }
    let (index, bit) = select_in(words, random.below(count));
    Some(index * 64 + bit as usize)
}

/// Word and bit of the n-th (from 0) set bit over all words, which have more than n.
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

/// The n-th (from 0) set bit of `bits`, which has more than n. Constant time but for the loop over at most
/// 64 bits, taken only when few are set or by chance.
fn select(mut bits: u64, n: u32) -> u32 {
    for _ in 0..n {
        bits &= bits - 1;
    }
    bits.trailing_zeros()
}

impl PortTable {
    /// A table for these addresses, all ports free. Takes about 0.85 MiB an address.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(specs: &[AddressSpec]) -> Result<PortTable, ArenaError> {
        PortTable::with_room(specs, specs.len())
    }

    /// A table for these addresses, all ports free, with places for `addresses_max` in all: the others offer nothing until
    /// [`PortTable::withhold`] and [`PortTable::offer`] are called for them.
    ///
    /// # Errors
    /// When memory is short.
    pub fn with_room(specs: &[AddressSpec], addresses_max: usize) -> Result<PortTable, ArenaError> {
        let places = specs.len().max(addresses_max);
        let spaces = (places * Protocol::COUNT).max(1);
        let hints = || (0..places.div_ceil(64)).map(|_| AtomicU64::new(0)).collect::<Box<[AtomicU64]>>();
        // While there is one owner of the table no locked instructions are needed.
        let table = PortTable {
            used: Arena::zeroed(spaces * WORDS)?,
            withheld: Arena::zeroed(spaces * WORDS)?,
            kept: Arena::zeroed(spaces * WORDS)?,
            full: Arena::zeroed(spaces * Parity::BOTH.len() * SUMMARY_WORDS)?,
            entries: Arena::zeroed(spaces * PORTS)?,
            address_full: [hints(), hints(), hints()],
            offers: (0..spaces).map(|_| withheld::Offer::default()).collect(),
            paired: (0..places).map(|_| AtomicU32::new(0)).collect(),
            blocks: BlockTable::new(places)?,
            guard: OnceLock::new(),
            exclusive: true,
        };
        // Addresses of one pool have equal specs: compute their words once.
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

    /// Addresses there is room for.
    pub fn places(&self) -> usize {
        self.paired.len()
    }

    /// The memory [`PortTable::new`] is going to take for so many addresses.
    pub fn needs(addresses: usize) -> [Need; 6] {
        let spaces = addresses.saturating_mul(Protocol::COUNT).max(1);
        [
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(Parity::BOTH.len() * SUMMARY_WORDS)),
            Arena::<AtomicU32>::need(spaces.saturating_mul(PORTS)),
            BlockTable::need(addresses),
        ]
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        let bits = self.used.bytes() + self.withheld.bytes() + self.kept.bytes() + self.full.bytes();
        let guard = self.guard.get().map_or(0, Guard::bytes);
        bits + self.entries.bytes() + self.blocks.bytes() + guard
    }

    /// The same table for a single worker, which then needs no locked instructions.
    #[must_use]
    pub fn for_one_worker(self) -> PortTable {
        PortTable { exclusive: true, ..self }
    }

    /// Chooses where to look for a free port. None by chance.
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

    /// Whether no port of this parity is known to be free in the word aimed at.
    #[inline]
    fn is_full(&self, base: usize, parity: Option<Parity>, aim: PortAim) -> bool {
        let word = usize::from(aim.0 / 64);
        let full = |parity| self.full[summary_of(base, parity, word)].load(Ordering::Relaxed) >> (word % 64) & 1 != 0;
        match parity {
            Some(parity) => full(parity),
            None => full(Parity::Even) && full(Parity::Odd),
        }
    }

    /// The port that [`PortTable::allocate_near`] is going to take, unless others are faster. None when the word aimed at has
    /// none of this parity left.
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

    /// Chooses where to look for a free port once more, where at least one of this parity is left as far as is known. None
    /// when there is none.
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
        // Hardly any word has a port left: choose among those that have.
        again.or_else(|| {
            let words = self.words_not_full(base, class, protocol, parity);
            let word = random_word(&words, random)?;
            Some(PortAim((word * 64) as u16 | random.below(64) as u16))
        })
    }

    /// Takes the free port next to one aimed at with [`PortTable::aim`] for the same address, protocol and class.
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

    /// Asks for the line with the bit of the port at this [`PortTable::place`], which taking and giving it back needs.
    #[inline]
    pub fn prefetch_bit(&self, place: usize) {
        const { assert!(PORTS / WORDS == 64, "a word has a bit for each port") };
        self.used.prefetch_write(place / 64);
    }

    /// Lowest and highest port of this class that is offered.
    #[inline]
    fn range(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> Option<(u16, u16)> {
        let (first, end) = class.words(protocol);
        let (lowest, highest) = self.offers[space(address, protocol)].range();
        let (lowest, highest) = (lowest.max((first * 64) as u16), highest.min((end * 64 - 1) as u16));
        (lowest <= highest && highest > 0).then_some((lowest, highest))
    }

    /// Of the 64 ports of this word of `used`, those that somebody has or may have: all but those that are out.
    #[inline]
    fn offered_bits(&self, address: AddressIndex, protocol: Protocol, word: usize) -> u64 {
        !self.kept[space(address, protocol) * WORDS + word].load(Ordering::SeqCst)
    }

    /// Takes a free port at random. None only when no port of this class and parity is free, but for one that
    /// another worker gives back at this very moment.
    ///
    /// `worker` of `workers` prefers cache lines of its own, and takes ports from all others when those seem full.
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
        let base = space(address, protocol);
        // Without a port of this class nothing is free, and nothing has run full.
        self.range(address, protocol, class)?;
        for _ in 0..PROBES {
            if let Some(aim) = self.aim(address, protocol, class, worker, workers, random)
                && !self.is_full(base, parity, aim)
                && let Some(port) = self.take_near(base, parity, u64::MAX, aim, Taker::Anyone)
            {
                return Some(port);
            }
        }
        let found = self.search(base, class, protocol, parity, random);
        if found.is_none() && class == PortClass::High && parity.is_none() {
            self.note_exhausted(address, protocol);
        }
        found
    }

    /// Takes a random free port of a random word among those not full: never the next free one, which could
    /// be told in advance (RFC 6056 §3.2).
    fn search(
        &self,
        base: usize,
        class: PortClass,
        protocol: Protocol,
        parity: Option<Parity>,
        random: &mut Random,
    ) -> Option<u16> {
        let mut candidates = self.words_not_full(base, class, protocol, parity);
        // The first word will do, unless other workers fill it at this very moment.
        while let Some(word) = random_word(&candidates, random) {
            if let Some(port) = self.take_any(base, word, parity, u64::MAX, Taker::Anyone, random) {
                return Some(port);
            }
            candidates[word / 64] &= !(1 << (word % 64));
        }
        None
    }

    /// By word of `used`, one bit: it is of the class, and `full` does not say that it has no port of this parity.
    fn words_not_full(
        &self,
        base: usize,
        class: PortClass,
        protocol: Protocol,
        parity: Option<Parity>,
    ) -> [u64; SUMMARY_WORDS] {
        core::array::from_fn(|index| self.words_not_full_in(base, class, protocol, parity, index))
    }

    /// Word `index` of [`PortTable::words_not_full`].
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

    /// Of words `64 × index` and the 63 after it, those of which `full` does not say that they have no port of this parity.
    #[inline]
    fn words_open(&self, base: usize, parity: Option<Parity>, index: usize) -> u64 {
        let full = |parity| self.full[summary_of(base, parity, index * 64)].load(Ordering::SeqCst);
        match parity {
            Some(parity) => !full(parity),
            None => !(full(Parity::Even) & full(Parity::Odd)),
        }
    }

    /// The first free port of this parity in the word of `aim`, from there on and going round, among those in `mask`.
    #[inline]
    fn free_near(&self, base: usize, parity: Option<Parity>, mask: u64, aim: PortAim) -> Option<PortAim> {
        let (word, bit) = (usize::from(aim.0 / 64), u32::from(aim.0 % 64));
        let mask = mask & parity.map_or(u64::MAX, Parity::mask);
        let free = !self.used[base * WORDS + word].load(Ordering::Relaxed) & mask;
        let found = (free.rotate_right(bit).trailing_zeros() + bit) % 64;
        (free != 0).then_some(PortAim((word * 64) as u16 | found as u16))
    }

    /// Takes the first free port of this parity from `aim` on in its word, going round, among those in `mask`.
    #[inline]
    fn take_near(&self, base: usize, parity: Option<Parity>, mask: u64, aim: PortAim, taker: Taker) -> Option<u16> {
        // A second round means that another worker took the very port chosen here.
        for _ in 0..2 {
            let found = self.free_near(base, parity, mask, aim)?.0;
            if self.take(base, usize::from(found / 64), u32::from(found % 64), taker) {
                return Some(found);
            }
        }
        None
    }

    /// Takes a random free port of one word, among those in `mask`.
    fn take_any(
        &self,
        base: usize,
        word: usize,
        parity: Option<Parity>,
        mask: u64,
        taker: Taker,
        random: &mut Random,
    ) -> Option<u16> {
        let mask = mask & parity.map_or(u64::MAX, Parity::mask);
        // Each round but the last means that another worker took the very port chosen here, or leased the word.
        for _ in 0..64 {
            if taker == Taker::Anyone && self.blocks.is_leased(base / Protocol::COUNT, word) {
                return None;
            }
            let used = self.used[base * WORDS + word].load(Ordering::SeqCst);
            let free = !used & mask;
            if free == 0 {
                // It may be full, and `full` did not say so: a releaser cleared the hint after others had filled
                // the word again. Set right here, or the address would look free for ever.
                self.note_full(base, word, used);
                return None;
            }
            let bit = select(free, random.below(free.count_ones()));
            if self.take(base, word, bit, taker) {
                return Some((word * 64) as u16 | bit as u16);
            }
        }
        None
    }

    /// Sets bits; the word before. A locked instruction, which waits for all writes before it, only if several workers write.
    #[inline]
    fn set(&self, word: &AtomicU64, bits: u64) -> u64 {
        if !self.exclusive {
            return word.fetch_or(bits, Ordering::SeqCst);
        }
        let before = word.load(Ordering::Relaxed);
        word.store(before | bits, Ordering::Relaxed);
        before
    }

    /// Clears bits; the word before. As [`PortTable::set`].
    #[inline]
    fn clear(&self, word: &AtomicU64, bits: u64) -> u64 {
        if !self.exclusive {
            return word.fetch_and(!bits, Ordering::SeqCst);
        }
        let before = word.load(Ordering::Relaxed);
        word.store(before & !bits, Ordering::Relaxed);
        before
    }

    /// Sets a bit; whether it was free, and not in another's block.
    #[inline]
    fn take(&self, base: usize, word: usize, bit: u32, taker: Taker) -> bool {
        let cell = &self.used[base * WORDS + word];
        // A look before the write: probes mostly hit used bits when few are free, and need not own the line.
        if cell.load(Ordering::Relaxed) >> bit & 1 != 0 {
            return false;
        }
        let before = self.set(cell, 1 << bit);
        if before >> bit & 1 != 0 {
            return false;
        }
        // After the bit: who leases the grain sets it there first, and then looks here.
        if taker == Taker::Anyone && self.blocks.is_leased(base / Protocol::COUNT, word) {
            self.clear(cell, 1 << bit);
            self.note_free(base, word, Parity::of(bit as u16));
            return false;
        }
        self.note_full(base, word, before | 1 << bit);
        true
    }

    /// Says so in `full` when the word, seen as `used`, has no free port of a parity.
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
            // A port may have come back between the two writes, and its releaser found the summary still
            // clear: look again, so that "full" never stays where something is free.
            if self.used[base * WORDS + word].load(Ordering::SeqCst) & mask != mask {
                self.note_free(base, word, parity);
            }
        }
    }

    /// Clears the hints that the word, or its address, has no free port of this parity.
    fn note_free(&self, base: usize, word: usize, parity: Parity) {
        let summary = &self.full[summary_of(base, parity, word)];
        let bit = 1 << (word % 64);
        if summary.load(Ordering::SeqCst) & bit != 0 {
            self.clear(summary, bit);
        }
        // After the summary: who sets this hint looks at the summary afterwards.
        let address = base / Protocol::COUNT;
        let hint = &self.address_full[base % Protocol::COUNT][address / 64];
        let bit = 1 << (address % 64);
        if hint.load(Ordering::SeqCst) & bit != 0 {
            self.clear(hint, bit);
        }
        self.note_block_free_around(base, word);
    }

    /// Clears the hint that the address has no free block, if one could be free now: while other ports of this word are in use, none is,
    /// and of one that is leased whoever gives it back says so.
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

    /// Whether a port is offered and nobody has it, nor a block with it: [`PortTable::claim`] would take it.
    pub fn is_free(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let (base, word) = (space(address, protocol), usize::from(port / 64));
        let used = self.used[base * WORDS + word].load(Ordering::SeqCst);
        used >> (port % 64) & 1 == 0 && !self.blocks.is_leased(base / Protocol::COUNT, word)
    }

    /// Takes one particular port; whether it was free and offered, and is in no block.
    pub fn claim(&self, address: AddressIndex, protocol: Protocol, port: u16) -> bool {
        self.take(space(address, protocol), usize::from(port / 64), u32::from(port % 64), Taker::Anyone)
    }

    /// Makes the owner of a taken port known to all workers.
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
        self.entries[space(address, protocol) * PORTS + usize::from(port)].store(entry, Ordering::Release);
    }

    /// The owner of an external endpoint. One array read.
    #[inline]
    pub fn lookup(&self, address: AddressIndex, protocol: Protocol, port: u16) -> Option<(WorkerId, MappingIndex)> {
        let (worker, mapping) = self.lookup_at(self.place(address, protocol, port))?;
        // What a shared one says besides is for `sharing`.
        Some((worker, mapping.min(MappingIndex::SHARED)))
    }

    /// The place of an external endpoint in the table, for a burst: first [`PortTable::prefetch`], then
    /// [`PortTable::lookup_at`].
    #[inline(always)]
    pub fn place(&self, address: AddressIndex, protocol: Protocol, port: u16) -> usize {
        space(address, protocol) * PORTS + usize::from(port)
    }

    /// The external endpoint at a [`PortTable::place`].
    #[inline]
    pub fn endpoint_at(&self, place: usize) -> (AddressIndex, Protocol, u16) {
        let space = place / PORTS;
        let protocol = match space % Protocol::COUNT {
            0 => Protocol::Udp,
            1 => Protocol::Tcp,
            _ => Protocol::Icmp,
        };
        (AddressIndex((space / Protocol::COUNT) as u32), protocol, (place % PORTS) as u16)
    }

    /// The owner of the external endpoint at this place; None also when there is no such place. Where flows share it, the mapping is one
    /// for which [`MappingIndex::is_shared`] holds.
    #[inline(always)]
    pub fn lookup_at(&self, place: usize) -> Option<(WorkerId, MappingIndex)> {
        let entry = self.entries.get(place)?.load(Ordering::Acquire);
        if entry == 0 {
            return None;
        }
        let mapping = MappingIndex(entry & ((1 << MAPPING_BITS) - 1));
        Some((WorkerId((entry >> MAPPING_BITS) as u8), mapping))
    }

    /// Brings the line of a later [`PortTable::lookup_at`] into the cache.
    #[inline(always)]
    pub fn prefetch(&self, place: usize) {
        self.entries.prefetch(place);
    }

    /// Gives a taken port back. One that is withheld by now stays out.
    pub fn release(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        // First the owner, then the bit: whoever takes the port next finds the entry empty.
        self.vacate(address, protocol, port);
        self.release_vacant(address, protocol, port);
    }

    /// A taken port has no owner any more, and is taken still.
    #[inline]
    pub fn vacate(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        self.entries[space(address, protocol) * PORTS + usize::from(port)].store(0, Ordering::Release);
    }

    /// Gives a taken port back that has no owner: none was published, or [`PortTable::vacate`] came before.
    #[inline]
    pub fn release_vacant(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        let base = space(address, protocol);
        if self.offers[base].is_watched() && self.keep(base, port) {
            return;
        }
        self.free(base, port);
        // It may have been withheld between the two, by somebody who saw it in use.
        if self.offers[base].is_watched() {
            self.take_back(base, port);
        }
    }

    /// Clears the bit of a taken port.
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
        // As in `take`: a port may have come back meanwhile.
        if !self.is_exhausted(address, protocol, PortClass::High) {
            self.clear(hint, bit);
        }
    }

    /// Whether the address was found full of ports of this class, and nothing came back since.
    #[inline]
    pub fn seems_full(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let hint = &self.address_full[protocol.index()][address.index() / 64];
        class == PortClass::High && hint.load(Ordering::Relaxed) >> (address.index() % 64) & 1 != 0
    }

    /// Whether the summary knows of no word with a free port of this class. Two loads while there are many, else up to 32 in
    /// four cache lines.
    pub fn is_exhausted(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let base = space(address, protocol);
        // Words in the middle have ports of every class but the low one.
        let from = if class == PortClass::Low { 0 } else { SUMMARY_WORDS / 2 };
        (from..SUMMARY_WORDS)
            .chain(0..from)
            .all(|index| self.words_not_full_in(base, class, protocol, None, index) == 0)
    }

    /// Whether a port of this class is free, and in nobody's block. As cheap as [`PortTable::is_exhausted`].
    pub fn has_single_port(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> bool {
        let base = space(address, protocol);
        (0..SUMMARY_WORDS).any(|index| {
            let leased = self.blocks.leased(address.index(), index);
            self.words_not_full_in(base, class, protocol, None, index) & !leased != 0
        })
    }

    /// Ports in use now, whether offered still or not. Reads 16 KiB: for people, not for packets.
    pub fn used(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        let words = space(address, protocol) * WORDS..(space(address, protocol) + 1) * WORDS;
        let pairs = self.used[words.clone()].iter().zip(&self.kept[words]);
        // In this order: what is being given back to the table counts as in use, or as not in use, but never below none.
        let in_use = pairs.map(|(used, kept)| {
            let kept = kept.load(Ordering::Relaxed);
            (used.load(Ordering::Relaxed) & !kept).count_ones()
        });
        in_use.sum()
    }

    /// Of [`PortTable::used`] those that only rest: their mapping is over, and nobody has them. Reads the owner of each port in use: for
    /// people.
    pub fn resting(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        let first = space(address, protocol) * WORDS;
        let resting = |word: usize| {
            let used =
                self.used[first + word].load(Ordering::Relaxed) & !self.kept[first + word].load(Ordering::Relaxed);
            let bits = (0..64).filter(|bit| used >> bit & 1 != 0);
            bits.filter(|bit| self.lookup(address, protocol, (word * 64) as u16 | bit).is_none()).count() as u32
        };
        (0..WORDS).map(resting).sum()
    }

    /// Ports the address can give out in all.
    pub fn available(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        self.offers[space(address, protocol)].count()
    }

    /// One more subscriber is paired with the address.
    pub fn pair(&self, address: AddressIndex) {
        self.paired[address.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// One subscriber less.
    pub fn unpair(&self, address: AddressIndex) {
        self.paired[address.index()].fetch_sub(1, Ordering::Relaxed);
    }

    /// Subscribers paired with the address now.
    pub fn paired_subscribers(&self, address: AddressIndex) -> u32 {
        self.paired[address.index()].load(Ordering::Relaxed)
    }

    /// An address with a free port, among these: the less used of two at random, which keeps the load nearly even; if both
    /// are full, the next one that is not, from a random one on. Less used is the one with clearly fewer ports in use, as far as 512
    /// of them tell, and where that is even the one with fewer subscribers.
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

    /// Whether of two addresses the first is to be preferred.
    fn is_less_used(&self, one: AddressIndex, other: AddressIndex, protocol: Protocol, random: &mut Random) -> bool {
        /// A difference that a sample of 512 ports does not have by chance: four standard deviations, at half of all in use.
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

    /// Ports in use of 512 neighbours at random that an address offers, in thousandths. Reads two lines.
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

/// The bits of ports that an address never gives out.
///
/// Port 0 never: it means "none" to sockets and to tables. As a query identifier it is as good as any other, but is
/// left out alike.
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

/// A random port from the lowest to the highest that is not withheld. None when it missed: ports at the edges must not
/// stand for those beyond, nor those behind a withheld one for it (RFC 6056 §3.2, §5).
#[inline]
fn choose(
    range: (u16, u16),
    withheld: Option<&[AtomicU64]>,
    worker: WorkerId,
    workers: usize,
    random: &mut Random,
) -> Option<PortAim> {
    let Some(withheld) = withheld else { return choose_any(range, worker, workers, random) };
    // Enough that even where one port in ten is left, one choice in a thousand fails.
    (0..64).find_map(|_| {
        let aim = choose_any(range, worker, workers, random)?;
        let word = withheld[usize::from(aim.0 / 64)].load(Ordering::Relaxed);
        (word >> (aim.0 % 64) & 1 == 0).then_some(aim)
    })
}

/// A random port from the lowest to the highest. None when it missed.
#[inline]
fn choose_any((lowest, highest): (u16, u16), worker: WorkerId, workers: usize, random: &mut Random) -> Option<PortAim> {
    let number = random.next_u64();
    let (first, end) = (usize::from(lowest / 64), usize::from(highest / 64) + 1);
    let word = probe_word(first, end, worker, workers, (number >> 32) as u32)?;
    let port = (word * 64) as u16 | (number % 64) as u16;
    (lowest..=highest).contains(&port).then_some(PortAim(port))
}

/// A random word in `first..end`, each equally likely; of several workers each gets words in cache lines of its
/// own (every `workers`-th), if there are as many lines. None when it missed: a line at the edge lies partly outside.
fn probe_word(first: usize, end: usize, worker: WorkerId, workers: usize, number: u32) -> Option<usize> {
    let scaled = |bound: usize| ((u64::from(number) * bound as u64) >> 32) as usize;
    // Before anything is divided: that takes longer than all the rest.
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
