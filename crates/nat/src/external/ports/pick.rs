//! A random free port.

use core::sync::atomic::Ordering;

use super::PortTable;
use super::SUMMARY_WORDS;
use super::WORDS;
use super::class::Parity;
use super::class::PortClass;
use super::space;
use super::take::Taker;
use crate::random::Random;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

/// Each covers 64 ports, so four nearly always succeed if one port in a hundred is free.
pub(super) const PROBES: usize = 4;
/// Picks for one port; each but the last lost a race.
pub(super) const PICKS: usize = 64;

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

impl PortTable {
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

    pub(super) fn pick_of_words(
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
}

pub(super) fn random_word(words: &[u64; SUMMARY_WORDS], random: &mut Random) -> Option<usize> {
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
