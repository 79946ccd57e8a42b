//! The steps of a change of the configuration, as far as they are the engine's.
//!
//! ```text
//!   Shared::successor        the new snapshot: nothing is changed yet, and all that can fail has been done
//!   Shared::reshapes         which addresses offer other ports under it
//!   Shared::withhold         each of these: ports that are no longer offered go out; addresses that are new begin to offer
//!   Shard::adopt             each worker, between two bursts
//!   Shared::offer            each of these again, when all workers have adopted: ports that are offered more
//! ```
//!
//! Old and new snapshot share one port table, so that no port can have two owners whichever worker is how far. A port that
//! the old snapshot keeps for something else is not offered before nobody goes by the old one any more.

use std::sync::Arc;

use crate::ports::Mask;
use crate::ports::never_offered;
use crate::shared::Shared;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// An address that offers other ports than before.
#[derive(Clone, Debug)]
pub struct Reshape {
    address: AddressIndex,
    /// The ports not offered, by [`Protocol::index`].
    masks: Arc<[Mask; Protocol::COUNT]>,
    /// No worker has ever heard of this address at this place.
    is_new: bool,
}

impl Shared {
    /// The addresses that offer other ports than under `before`, of which this is the successor.
    pub fn reshapes(&self, before: &Shared) -> Vec<Reshape> {
        let mut reshapes = Vec::new();
        // Addresses of one pool mostly offer the same.
        let mut last: Option<(_, Arc<[Mask; Protocol::COUNT]>)> = None;
        let was = before.specs();
        for (place, spec) in self.specs().into_iter().enumerate() {
            let address = AddressIndex(place as u32);
            let (old, new) = (before.slot(address), self.slot(address));
            let is_new = new.map(|slot| slot.address) != old.map(|slot| slot.address);
            if !is_new && was.get(place) == Some(&spec) {
                continue;
            }
            let masks = match &last {
                Some((known, masks)) if *known == spec => Arc::clone(masks),
                _ => Arc::new(Protocol::ALL.map(|protocol| never_offered(&spec, protocol))),
            };
            reshapes.push(Reshape { address, masks: Arc::clone(&masks), is_new });
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
        }
    }

    /// Puts in what the address offers more, after all workers have adopted this. As [`Shared::withhold`].
    pub fn offer(&self, reshape: &Reshape) {
        for (protocol, mask) in Protocol::ALL.into_iter().zip(reshape.masks.iter()) {
            self.ports.offer(reshape.address, protocol, mask);
        }
    }
}
