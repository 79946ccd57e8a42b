//! Ports of removed forwards to several targets are offered again (ADR 7).
//!
//! The first worker does so, because only one thread may change what is offered. It waits until all
//! workers have adopted: until then sessions may begin.

use crate::external::ports::Mask;
use crate::external::ports::never_offered;
use crate::snapshot::shared::Shared;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::upkeep::walk::Walk;

const VISITS_PER_CALL: u32 = 8;

#[derive(Debug)]
struct RemovedPorts {
    group: u32,
    protocol: Protocol,
    /// `None` if removed.
    address: Option<AddressIndex>,
    first_word: usize,
    /// Ports that will be offered.
    offered: Box<[u64]>,
}

#[derive(Debug, Default)]
pub(crate) struct RemovedForwards(Box<[RemovedPorts]>);

impl RemovedForwards {
    pub(crate) fn of(shared: &Shared) -> RemovedForwards {
        let mut left = shared.balance.removed_forwards().peekable();
        if left.peek().is_none() {
            return RemovedForwards::default();
        }
        let specs = shared.specs_afterwards();
        // Ranges of one address are consecutive.
        let mut last: Option<((AddressIndex, Protocol), Mask)> = None;
        let removed = |(group, address, protocol, (first, last_port)): (u32, u32, Protocol, (u16, u16))| {
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
            RemovedPorts { group, protocol, address, first_word: *words.start(), offered: offered.into_boxed_slice() }
        };
        RemovedForwards(left.map(removed).collect())
    }
}

impl Shared {
    /// Frees a few ranges between two bursts. Allocates nothing.
    #[inline]
    pub(crate) fn free_removed_forwards(&self, now: Instant, walk: &mut Walk) {
        if !self.removed_forwards.0.is_empty() && self.is_settled() {
            self.free_some_removed_forwards(now, walk);
        }
    }

    #[cold]
    fn free_some_removed_forwards(&self, now: Instant, walk: &mut Walk) {
        let all = &self.removed_forwards.0;
        for number in walk.next(VISITS_PER_CALL, all.len() as u32 + 1) {
            let removed = &all[number as usize - 1];
            let rest = removed.address.map(|address| self.compiled_pool(address).reuse_delay).unwrap_or_default();
            if !self.balance.group(removed.group).is_some_and(|group| group.free(now, rest)) {
                continue;
            }
            if let Some(address) = removed.address {
                self.ports.offer_more(address, removed.protocol, removed.first_word, &removed.offered);
                if self.guarantees_ports(address) {
                    self.ports.recount(address, removed.protocol);
                }
            }
            // Each takes some microseconds.
            return;
        }
    }
}
