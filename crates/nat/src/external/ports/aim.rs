//! Where a search for a port starts: a random place, without any change.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use super::PortTable;
use super::WORDS;
use super::class::Parity;
use super::class::PortClass;
use super::pick::random_word;
use super::space;
use crate::random::Random;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

const LINE_WORDS: usize = 8;
const AIMS: usize = 4;

/// Where a search starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAim(pub(super) u16);

impl PortAim {
    /// The port, which may be taken.
    pub const fn port(self) -> u16 {
        self.0
    }
}

impl PortTable {
    /// A random place to look for a free port; may miss.
    #[inline(always)]
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
        if is_leased { None } else { self.near(address, protocol, parity, aim) }
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

    #[inline(always)]
    pub(super) fn free_near(&self, base: usize, parity: Option<Parity>, mask: u64, aim: PortAim) -> Option<PortAim> {
        let (word, bit) = (usize::from(aim.0 / 64), u32::from(aim.0 % 64));
        let mask = mask & parity.map_or(u64::MAX, Parity::mask);
        let free = !self.used[base * WORDS + word].load(Ordering::Relaxed) & mask;
        let found = (free.rotate_right(bit).trailing_zeros() + bit) % 64;
        (free != 0).then_some(PortAim((word * 64) as u16 | found as u16))
    }

    #[inline(always)]
    pub(super) fn range(&self, address: AddressIndex, protocol: Protocol, class: PortClass) -> Option<(u16, u16)> {
        let (first, end) = class.words(protocol);
        let (lowest, highest) = self.offers[space(address, protocol)].range();
        let (lowest, highest) = (lowest.max((first * 64) as u16), highest.min((end * 64 - 1) as u16));
        (lowest <= highest && highest > 0).then_some((lowest, highest))
    }
}

/// A random port that is not withheld. No neighbour replaces a miss: it would become likelier than
/// others (RFC 6056 §3.2, §5).
#[inline(always)]
fn choose(
    range: (u16, u16),
    withheld: Option<&[AtomicU64]>,
    worker: WorkerId,
    workers: usize,
    random: &mut Random,
) -> Option<PortAim> {
    match withheld {
        None => choose_any(range, worker, workers, random),
        Some(withheld) => choose_offered(range, withheld, worker, workers, random),
    }
}

#[inline(never)]
fn choose_offered(
    range: (u16, u16),
    withheld: &[AtomicU64],
    worker: WorkerId,
    workers: usize,
    random: &mut Random,
) -> Option<PortAim> {
    // With one port in ten offered, 64 tries fail once in a thousand.
    (0..64).find_map(|_| {
        let aim = choose_any(range, worker, workers, random)?;
        let word = withheld[usize::from(aim.0 / 64)].load(Ordering::Relaxed);
        (word >> (aim.0 % 64) & 1 == 0).then_some(aim)
    })
}

#[inline(always)]
fn choose_any((lowest, highest): (u16, u16), worker: WorkerId, workers: usize, random: &mut Random) -> Option<PortAim> {
    let number = random.next_u64();
    let (first, end) = (usize::from(lowest / 64), usize::from(highest / 64) + 1);
    let word = probe_word(first, end, worker, workers, (number >> 32) as u32)?;
    let port = (word * 64) as u16 | (number % 64) as u16;
    (lowest..=highest).contains(&port).then_some(PortAim(port))
}

/// A random word. If there are enough, each worker gets every `workers`-th cache line. `None` for a
/// miss at the edge.
#[inline(always)]
fn probe_word(first: usize, end: usize, worker: WorkerId, workers: usize, number: u32) -> Option<usize> {
    // Before the divisions, which cost the most.
    if workers <= 1 {
        return Some(first + scaled(number, end - first));
    }
    probe_line_of(first, end, worker, workers, number)
}

#[inline(always)]
fn scaled(number: u32, bound: usize) -> usize {
    ((u64::from(number) * bound as u64) >> 32) as usize
}

#[inline(never)]
fn probe_line_of(first: usize, end: usize, worker: WorkerId, workers: usize, number: u32) -> Option<usize> {
    let (first_line, end_line) = (first / LINE_WORDS, end.div_ceil(LINE_WORDS));
    let skip = (worker.index() % workers + workers - first_line % workers) % workers;
    if first_line + skip >= end_line {
        return Some(first + scaled(number, end - first));
    }
    let lines = (end_line - first_line - skip).div_ceil(workers);
    let choice = scaled(number, lines * LINE_WORDS);
    let line = first_line + skip + choice / LINE_WORDS * workers;
    let word = line * LINE_WORDS + choice % LINE_WORDS;
    (first..end).contains(&word).then_some(word)
}
