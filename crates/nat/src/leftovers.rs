//! Ports of forwards to several targets that are gone: given out again when no session is left of them and they have rested.
//!
//! What an address offers then is found when the configuration is compiled, so that a worker only has to put it in. The first one does, as
//! one thread at a time puts ports in and takes them out (`ports/withheld.rs`), and not before all workers go by the configuration that
//! does not have the forward: until then sessions may begin.

use crate::ports::Mask;
use crate::ports::never_offered;
use crate::shared::Shared;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// Ranges of ports looked at in one call.
const LOOKS_PER_CALL: usize = 8;

/// One range of ports that no configuration speaks of any more.
#[derive(Debug)]
struct Leftover {
    /// Whose they were, by number in [`Balance`](crate::balance).
    group: u32,
    protocol: Protocol,
    /// None: the address is not there any more.
    address: Option<AddressIndex>,
    /// The word of the port table where they begin.
    first_word: usize,
    /// From there on, a bit for each of them that the address offers afterwards.
    offered: Box<[u64]>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Leftovers(Box<[Leftover]>);

impl Leftovers {
    /// Of a configuration that follows others.
    pub(crate) fn of(shared: &Shared) -> Leftovers {
        let mut left = shared.balance.leftovers().peekable();
        if left.peek().is_none() {
            return Leftovers::default();
        }
        let specs = shared.specs_afterwards();
        // Those of one address are in a row.
        let mut last: Option<((AddressIndex, Protocol), Mask)> = None;
        let leftover = |(group, address, protocol, (first, last_port)): (u32, u32, Protocol, (u16, u16))| {
            let address = shared.address_index(address.into());
            let words = usize::from(first / 64)..=usize::from(last_port / 64);
            let mut offered = vec![0; words.clone().count()];
            if let Some((place, spec)) = address.and_then(|place| Some((place, specs.get(place.index())?))) {
                let known = last.take().filter(|(of, _)| *of == (place, protocol));
                let (_, mask) =
                    last.insert(known.unwrap_or_else(|| ((place, protocol), never_offered(spec, protocol))));
                for (word, bits) in words.clone().zip(&mut offered) {
                    let from_first = if word == *words.start() { u64::MAX << (first % 64) } else { u64::MAX };
                    let to_last = if word == *words.end() { u64::MAX >> (63 - last_port % 64) } else { u64::MAX };
                    *bits = !mask[word] & from_first & to_last;
                }
            }
            Leftover { group, protocol, address, first_word: *words.start(), offered: offered.into_boxed_slice() }
        };
        Leftovers(left.map(leftover).collect())
    }
}

impl Shared {
    /// Gives out again what is left of forwards that are gone and nobody has any more, of a few of them beginning at `hand`. For the
    /// first worker, between two bursts; allocates nothing.
    #[inline]
    pub(crate) fn free_leftovers(&self, now: Instant, hand: &mut usize) {
        if !self.leftovers.0.is_empty() && self.is_settled() {
            self.free_some_leftovers(now, hand);
        }
    }

    #[cold]
    fn free_some_leftovers(&self, now: Instant, hand: &mut usize) {
        let all = &self.leftovers.0;
        for _ in 0..LOOKS_PER_CALL.min(all.len()) {
            *hand = (*hand + 1) % all.len();
            let leftover = &all[*hand];
            let rest = leftover.address.map(|address| self.facts(address).reuse_delay).unwrap_or_default();
            if !self.balance.group(leftover.group).is_some_and(|group| group.free(now, rest)) {
                continue;
            }
            if let Some(address) = leftover.address {
                self.ports.offer_more(address, leftover.protocol, leftover.first_word, &leftover.offered);
                if self.sets_ports_aside(address) {
                    self.ports.recount(address, leftover.protocol);
                }
            }
            // Each is some microseconds.
            return;
        }
    }
}
