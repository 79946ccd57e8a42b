//! How much of each address is in use, and the choice of the less used one.

use core::sync::atomic::Ordering;

use super::PortTable;
use super::WORDS;
use super::class::Parity;
use super::class::PortClass;
use super::full::summary_of;
use super::space;
use crate::random::Random;
use crate::types::AddressIndex;
use crate::types::Protocol;

const LINE_WORDS: usize = 8;

/// An address, and the line of its port bits that shows how much it is used.
#[derive(Clone, Copy, Debug)]
struct Sample {
    address: AddressIndex,
    line: u16,
}

/// Two addresses, of which the less used one is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw([Sample; 2]);

impl Draw {
    pub(crate) fn addresses(&self) -> [AddressIndex; 2] {
        self.0.map(|sample| sample.address)
    }
}

impl PortTable {
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

    /// Counts one more paired subscriber.
    pub fn pair(&self, address: AddressIndex) {
        self.paired[address.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one paired subscriber less.
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
        let draw = self.draw(among, protocol, random)?;
        self.choose_drawn(&draw, among, protocol, class, random)
    }

    /// Two addresses at random, for [`PortTable::choose_drawn`]. `None` if there are none.
    #[inline]
    pub(crate) fn draw(&self, among: &[AddressIndex], protocol: Protocol, random: &mut Random) -> Option<Draw> {
        let count = among.len() as u32;
        if count == 0 {
            return None;
        }
        let mut sample = || {
            let address = among[random.below(count) as usize];
            let (first, last) = self.offers[space(address, protocol)].range();
            let (first, last) = (usize::from(first / 64) / LINE_WORDS, usize::from(last / 64) / LINE_WORDS);
            Sample { address, line: (first + random.below((last - first + 1) as u32) as usize) as u16 }
        };
        Some(Draw([sample(), sample()]))
    }

    /// Requests what [`PortTable::choose_drawn`] reads.
    pub(crate) fn prefetch_draw(&self, draw: &Draw, protocol: Protocol) {
        for Sample { address, line } in draw.0 {
            let base = space(address, protocol);
            let word = base * WORDS + usize::from(line) * LINE_WORDS;
            self.used.prefetch(word);
            self.kept.prefetch(word);
            for parity in Parity::BOTH {
                self.full.prefetch(summary_of(base, parity, WORDS / 2));
            }
        }
    }

    /// [`PortTable::choose_address`] after [`PortTable::draw`].
    pub(crate) fn choose_drawn(
        &self,
        draw: &Draw,
        among: &[AddressIndex],
        protocol: Protocol,
        class: PortClass,
        random: &mut Random,
    ) -> Option<AddressIndex> {
        let Draw([one, other]) = *draw;
        let is_less_used = one.address == other.address || self.is_less_used(one, other, protocol);
        let (less, more) = if is_less_used { (one, other) } else { (other, one) };
        let has_room = |address: &AddressIndex| !self.is_exhausted(*address, protocol, class);
        if let Some(address) = [less.address, more.address].into_iter().find(has_room) {
            return Some(address);
        }
        let (before, after) = among.split_at(random.below(among.len() as u32) as usize);
        let mut others = after.iter().chain(before).copied();
        others.find(|address| !self.seems_full(*address, protocol, class) && has_room(address))
    }

    fn is_less_used(&self, one: Sample, other: Sample, protocol: Protocol) -> bool {
        /// Thousandths: four standard deviations of a sample of 512 ports, half of them in use.
        const CLEARLY: i32 = 125;
        let (of_one, of_other) = (self.sampled_use(one, protocol), self.sampled_use(other, protocol));
        if (of_one - of_other).abs() > CLEARLY {
            return of_one < of_other;
        }
        self.paired_subscribers(one.address) <= self.paired_subscribers(other.address)
    }

    /// Ports in use, in thousandths, among the 512 of the sample. Reads two lines.
    fn sampled_use(&self, Sample { address, line }: Sample, protocol: Protocol) -> i32 {
        let base = space(address, protocol);
        let line = usize::from(line);
        let (mut used, mut offered) = (0, 0);
        for word in line * LINE_WORDS..(line + 1) * LINE_WORDS {
            let bits = self.offered_bits(address, protocol, word);
            offered += bits.count_ones() as i32;
            used += (self.used[base * WORDS + word].load(Ordering::Relaxed) & bits).count_ones() as i32;
        }
        (used * 1_000).checked_div(offered).unwrap_or(0)
    }
}
