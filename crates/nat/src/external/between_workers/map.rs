//! Ports shared by flows of any worker: one bit a port, one count a group.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::external::ports::PortClass;
use crate::state::shared_ports::Group;
use crate::types::AddressIndex;
use crate::types::Protocol;

const WORDS: usize = 1_024;

pub(crate) struct SharedMap {
    bits: Arena<AtomicU64>,
    counts: Arena<AtomicU32>,
}

fn first_word(address: AddressIndex, protocol: Protocol) -> usize {
    (address.index() * Protocol::COUNT + protocol.index()) * WORDS
}

impl SharedMap {
    /// 24 KiB an address.
    pub(crate) fn new(addresses: usize) -> Result<SharedMap, ArenaError> {
        let words = addresses.max(1) * Protocol::COUNT * WORDS;
        Ok(SharedMap { bits: Arena::zeroed(words)?, counts: Arena::zeroed(Group::count_of(addresses.max(1)))? })
    }

    pub(crate) fn needs(addresses: usize) -> [Need; 2] {
        let words = addresses.max(1).saturating_mul(Protocol::COUNT * WORDS);
        [Arena::<AtomicU64>::need(words), Arena::<AtomicU32>::need(Group::count_of(addresses.max(1)))]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bits.bytes() + self.counts.bytes()
    }

    fn word(&self, group: Group, port: u16) -> &AtomicU64 {
        &self.bits[first_word(group.address(), group.protocol()) + usize::from(port / 64)]
    }

    pub(crate) fn add(&self, group: Group, port: u16) {
        let before = self.word(group, port).fetch_or(1 << (port % 64), Ordering::SeqCst);
        debug_assert!(before >> (port % 64) & 1 == 0, "a port is shared once");
        self.counts[group.index()].fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, group: Group, port: u16) {
        let before = self.word(group, port).fetch_and(!(1 << (port % 64)), Ordering::SeqCst);
        debug_assert!(before >> (port % 64) & 1 == 1, "only a shared port ceases to be one");
        self.counts[group.index()].fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn count(&self, group: Group) -> u32 {
        self.counts[group.index()].load(Ordering::Relaxed)
    }

    /// Reads one line for every 512 ports.
    pub(crate) fn from(&self, group: Group, class: Option<PortClass>, first: u16) -> impl Iterator<Item = u16> + '_ {
        let words = class.map_or((0, WORDS), |class| class.words(group.protocol()));
        let base = first_word(group.address(), group.protocol());
        let first = usize::from(first).clamp(words.0 * 64, words.1 * 64 - 1);
        let (start, low) = (first / 64, u64::MAX << (first % 64));
        // The first word comes twice, last for the ports below `first`.
        let order = (start..words.1).chain(words.0..=start).enumerate();
        let last = words.1 - words.0;
        order.flat_map(move |(n, word)| {
            let mask = match n {
                0 => low,
                n if n == last => !low,
                _ => u64::MAX,
            };
            let mut bits = self.bits[base + word].load(Ordering::SeqCst) & mask;
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    (word * 64) as u16 | bit as u16
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn every_shared_port_comes_once_from_wherever_the_walk_begins() {
        let map = SharedMap::new(2).unwrap();
        let group = Group::new(AddressIndex(1), Protocol::Udp, PortClass::High);
        let other = Group::new(AddressIndex(0), Protocol::Udp, PortClass::High);
        let ports = [1_024_u16, 1_087, 1_088, 30_000, 30_001, 65_535];
        for port in ports {
            map.add(group, port);
        }
        map.add(other, 2_000);
        let low = Group::new(AddressIndex(1), Protocol::Udp, PortClass::Low);
        map.add(low, 80);
        let mut random = Random::new([1, 2, 3, 4]);
        for first in ports.into_iter().chain((0..200).map(|_| random.below(65_536) as u16)).chain([0, 1_023, 65_535]) {
            let found: Vec<u16> = map.from(group, Some(PortClass::High), first).collect();
            let mut sorted = found.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, ports, "from {first}");
            if let Some(next) = ports.into_iter().find(|port| *port >= first) {
                assert_eq!(found[0], next, "from {first}");
            }
        }
        assert_eq!(map.from(low, Some(PortClass::Low), 500).collect::<Vec<_>>(), [80]);
        assert_eq!(map.from(group, None, 0).collect::<Vec<_>>(), [&[80], &ports[..]].concat());
        assert_eq!((map.count(group), map.count(other), map.count(low)), (6, 1, 1));
        map.remove(group, 30_000);
        assert_eq!(map.count(group), 5);
        assert!(!map.from(group, Some(PortClass::High), 0).any(|port| port == 30_000));
    }
}
