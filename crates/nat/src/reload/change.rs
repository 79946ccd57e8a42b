//! The engine's steps of a reload:
//!
//! ```text
//!   Shared::successor   the new snapshot: does all that can fail, and changes nothing yet
//!   Shared::reshapes    addresses that will offer other ports, or keep others for guarantees
//!   Shard::expect       each worker, if there are new addresses: it must know them before another
//!                       worker gives out their ports
//!   Shared::withhold    each reshape: ports that are no longer offered; new addresses offer theirs
//!   Shard::adopt        each worker, between two bursts
//!   Shared::settle      all have adopted: ports of removed forwards may be freed from now on
//!                       (`removed_forwards.rs`)
//!   Shared::offer       each reshape again: offers additional ports
//! ```
//!
//! Ports in use of an address whose guarantees change are counted before workers adopt and again
//! afterwards (`ports/guarantees.rs`).
//!
//! Both snapshots share one port table, so no port has two owners. A port is offered only when no
//! worker with the old snapshot may use it for something else.

use std::sync::Arc;

use crate::external::address_slots::Slot;
use crate::external::ports::AddressSpec;
use crate::external::ports::Mask;
use crate::external::ports::never_offered;
use crate::reload::already_held::AlreadyHeld;
use crate::snapshot::shared::Shared;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;

/// An address that will offer other ports, or keep others for guarantees.
#[derive(Clone, Debug)]
pub struct Reshape {
    address: AddressIndex,
    /// Ports that are not offered, by [`Protocol::index`].
    masks: Arc<[Mask; Protocol::COUNT]>,
    /// No worker knows it yet.
    is_new: bool,
    offers_others: bool,
}

impl Reshape {
    /// True if it will offer different ports.
    pub fn offers_others(&self) -> bool {
        self.offers_others
    }
}

/// Ports to be kept for guarantees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteePlan {
    /// The pool.
    pub pool: PoolId,
    /// Ports to be kept over all its addresses, by [`Protocol::index`].
    pub for_guarantees: [u64; Protocol::COUNT],
    /// How many of them are used by subscribers without a guarantee.
    pub missing: [u64; Protocol::COUNT],
}

impl Shared {
    /// The addresses that offer other ports than under `before`, which frees no more ports from now
    /// on.
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
            // A removed address has offered nothing since its removal.
            let offers_others = was.get(place) != Some(&spec) || is_new && spec != AddressSpec::NOTHING;
            let for_guarantees =
                |shared: &Shared, slot: Option<&Slot>| slot.map(|_| shared.compiled_pool(address).for_guarantees);
            let guarantees_others = self.guarantees_ports(address)
                && for_guarantees(self, new) != for_guarantees(before, old.filter(|_| !is_new));
            if !is_new && !offers_others && !guarantees_others {
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

    /// Call it before workers adopt this snapshot; with one worker, on its thread.
    pub fn withhold(&self, reshape: &Reshape) {
        for (protocol, mask) in Protocol::ALL.into_iter().zip(reshape.masks.iter()) {
            self.ports.withhold(reshape.address, protocol, mask);
            if reshape.is_new {
                self.ports.offer(reshape.address, protocol, mask);
            }
            if self.guarantees_ports(reshape.address) {
                self.ports.recount(reshape.address, protocol);
            }
        }
    }

    /// Call it after all workers have adopted; with one worker, on its thread.
    pub fn offer(&self, reshape: &Reshape) {
        for (protocol, mask) in Protocol::ALL.into_iter().zip(reshape.masks.iter()) {
            self.ports.offer(reshape.address, protocol, mask);
            if self.guarantees_ports(reshape.address) {
                self.ports.recount(reshape.address, protocol);
            }
        }
    }

    pub(crate) fn guarantees_ports(&self, address: AddressIndex) -> bool {
        self.slot(address).is_some() && self.compiled_pool(address).has_guarantees()
    }

    /// What the change means for pools with guarantees. Not for the packet path. `already_held` is
    /// from a census.
    pub fn guarantee_plan(&self, already_held: &AlreadyHeld) -> Vec<GuaranteePlan> {
        let mut found: Vec<GuaranteePlan> = Vec::new();
        for (place, spec) in (0..).map(AddressIndex).zip(self.specs()) {
            if !self.guarantees_ports(place) || self.closed(place).is_some() {
                continue;
            }
            let compiled = self.compiled_pool(place);
            let (mut for_guarantees, mut missing) = ([0; Protocol::COUNT], [0; Protocol::COUNT]);
            for protocol in Protocol::ALL {
                let p = protocol.index();
                let mask = never_offered(&spec, protocol);
                let offered: u32 = mask.iter().map(|word| word.count_zeros()).sum();
                let taken = self.ports.taken_of_the_rest(place, protocol, &mask);
                let taken = taken.saturating_sub(already_held.at(place, protocol));
                let there = compiled.for_guarantees[p].min(offered.saturating_sub(taken));
                for_guarantees[p] = u64::from(compiled.for_guarantees[p]);
                missing[p] = u64::from(compiled.for_guarantees[p] - there);
            }
            match found.iter_mut().find(|plan| plan.pool == compiled.id) {
                Some(plan) => {
                    for p in 0..Protocol::COUNT {
                        plan.for_guarantees[p] += for_guarantees[p];
                        plan.missing[p] += missing[p];
                    }
                }
                None => found.push(GuaranteePlan { pool: compiled.id, for_guarantees, missing }),
            }
        }
        found
    }
}
