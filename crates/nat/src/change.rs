//! The steps of a change of the configuration, as far as they are the engine's.
//!
//! ```text
//!   Shared::successor        the new snapshot: nothing is changed yet, and all that can fail has been done
//!   Shared::reshapes         which addresses offer other ports under it, or set others aside for guarantees
//!   Shard::expect            each worker, if there are new addresses: whatever another one gives out there, it knows where it belongs
//!   Shared::withhold         each of these: ports that are no longer offered go out; addresses that are new begin to offer
//!   Shard::adopt             each worker, between two bursts
//!   Shared::settle           all workers have adopted: ports of forwards that are gone can come free from now on (`leftovers.rs`)
//!   Shared::offer            each of these again: ports that are offered more
//! ```
//!
//! Where ports are set aside only now, or others, what is taken is counted before workers adopt and, for what they took until then,
//! afterwards once more (`ports/guard.rs`).
//!
//! Old and new snapshot share one port table, so that no port can have two owners whichever worker is how far. A port that
//! the old snapshot keeps for something else is not offered before nobody goes by the old one any more.

use std::sync::Arc;

use crate::entitled::Entitled;
use crate::ports::AddressSpec;
use crate::ports::Mask;
use crate::ports::never_offered;
use crate::shared::Shared;
use crate::slots::Slot;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;

/// An address that offers other ports than before, or sets others aside.
#[derive(Clone, Debug)]
pub struct Reshape {
    address: AddressIndex,
    /// The ports not offered, by [`Protocol::index`].
    masks: Arc<[Mask; Protocol::COUNT]>,
    /// No worker has ever heard of this address at this place.
    is_new: bool,
    /// It offers other ports than before.
    offers_others: bool,
}

impl Reshape {
    /// Whether the address offers other ports than before.
    pub fn offers_others(&self) -> bool {
        self.offers_others
    }
}

/// What is set aside on the addresses of a pool for what its subscribers are guaranteed, and is not there at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteePlan {
    /// The pool.
    pub pool: PoolId,
    /// Ports to be set aside over all its addresses, by [`Protocol::index`].
    pub set_aside: [u64; Protocol::COUNT],
    /// Those of them that others have than who is to be guaranteed them.
    pub missing: [u64; Protocol::COUNT],
}

impl Shared {
    /// The addresses that offer other ports than under `before`, of which this is the successor that is to be adopted: `before` frees no
    /// ports any more.
    pub fn reshapes(&self, before: &Shared) -> Vec<Reshape> {
        before.balance.hold();
        let mut reshapes = Vec::new();
        // Addresses of one pool mostly offer the same.
        let mut last: Option<(_, Arc<[Mask; Protocol::COUNT]>)> = None;
        let was = before.specs();
        for (place, spec) in self.specs().into_iter().enumerate() {
            let address = AddressIndex(place as u32);
            let (old, new) = (before.slot(address), self.slot(address));
            let is_new = new.map(|slot| slot.address) != old.map(|slot| slot.address);
            // The place of an address that is gone offers nothing, as that address did since it was removed.
            let offers_others = was.get(place) != Some(&spec) || is_new && spec != AddressSpec::NOTHING;
            let sets_aside = |shared: &Shared, slot: Option<&Slot>| slot.map(|_| shared.facts(address).set_aside);
            let guards_others =
                self.sets_ports_aside(address) && sets_aside(self, new) != sets_aside(before, old.filter(|_| !is_new));
            if !is_new && !offers_others && !guards_others {
                continue;
            }
            let masks = match &last {
                Some((known, masks)) if *known == spec => Arc::clone(masks),
                _ => Arc::new(Protocol::ALL.map(|protocol| never_offered(&spec, protocol))),
            };
            reshapes.push(Reshape { address, masks: Arc::clone(&masks), is_new, offers_others });
            last = Some((spec, masks));
        }
        reshapes
    }

    /// Takes out what the address no longer offers, before workers adopt this. With one worker, on its thread. Reads and
    /// writes some tens of KiB.
    pub fn withhold(&self, reshape: &Reshape) {
        for (protocol, mask) in Protocol::ALL.into_iter().zip(reshape.masks.iter()) {
            self.ports.withhold(reshape.address, protocol, mask);
            if reshape.is_new {
                self.ports.offer(reshape.address, protocol, mask);
            }
            if self.sets_ports_aside(reshape.address) {
                self.ports.recount(reshape.address, protocol);
            }
        }
    }

    /// Puts in what the address offers more, after all workers have adopted this. As [`Shared::withhold`].
    pub fn offer(&self, reshape: &Reshape) {
        for (protocol, mask) in Protocol::ALL.into_iter().zip(reshape.masks.iter()) {
            self.ports.offer(reshape.address, protocol, mask);
            if self.sets_ports_aside(reshape.address) {
                self.ports.recount(reshape.address, protocol);
            }
        }
    }

    pub(crate) fn sets_ports_aside(&self, address: AddressIndex) -> bool {
        self.slot(address).is_some() && self.facts(address).is_guarded()
    }

    /// By pool that guarantees ports, how many of those are others' at this moment, were this in force. `entitled`: what a census under
    /// this found that subscribers have themselves. Reads the port table: for people.
    pub fn guarantee_plan(&self, entitled: &Entitled) -> Vec<GuaranteePlan> {
        let mut found: Vec<GuaranteePlan> = Vec::new();
        for (place, spec) in (0..).map(AddressIndex).zip(self.specs()) {
            if !self.sets_ports_aside(place) || self.closed(place).is_some() {
                continue;
            }
            let facts = self.facts(place);
            let (mut set_aside, mut missing) = ([0; Protocol::COUNT], [0; Protocol::COUNT]);
            for protocol in Protocol::ALL {
                let p = protocol.index();
                let mask = never_offered(&spec, protocol);
                let offered: u32 = mask.iter().map(|word| word.count_zeros()).sum();
                let taken = self.ports.taken_of_the_rest(place, protocol, &mask);
                let taken = taken.saturating_sub(entitled.at(place, protocol));
                let there = facts.set_aside[p].min(offered.saturating_sub(taken));
                set_aside[p] = u64::from(facts.set_aside[p]);
                missing[p] = u64::from(facts.set_aside[p] - there);
            }
            match found.iter_mut().find(|plan| plan.pool == facts.id) {
                Some(plan) => {
                    for p in 0..Protocol::COUNT {
                        plan.set_aside[p] += set_aside[p];
                        plan.missing[p] += missing[p];
                    }
                }
                None => found.push(GuaranteePlan { pool: facts.id, set_aside, missing }),
            }
        }
        found
    }
}
