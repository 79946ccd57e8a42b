//! Ports that new settings would guarantee to subscribers that hold them already: a census counts
//! them, a plan subtracts them.

use std::sync::Arc;

use crate::external::ports::Mask;
use crate::external::ports::never_offered;
use crate::snapshot::shared::Shared;
use crate::types::AddressIndex;
use crate::types::Protocol;

type PerProtocol = [u32; Protocol::COUNT];

/// See the [module](self). Counting allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct AlreadyHeld {
    /// By place: ports that will not be offered; `None` without guarantees.
    masks: Vec<Option<Arc<[Mask; Protocol::COUNT]>>>,
    /// By place: ports to be guaranteed to their present owners.
    by_address: Vec<PerProtocol>,
    /// By subscriber record of one worker: ports without a guarantee, 16 bits of them.
    by_subscriber: Vec<[u16; Protocol::COUNT]>,
    records: usize,
}

impl AlreadyHeld {
    /// For a census of the effect of these settings.
    pub fn under(candidate: &Shared) -> AlreadyHeld {
        if !candidate.addresses().any(|(address, _)| guarantees_ports_of(candidate, address)) {
            return AlreadyHeld::default();
        }
        let specs = candidate.specs();
        let mut masks: Vec<Option<Arc<[Mask; Protocol::COUNT]>>> = Vec::with_capacity(specs.len());
        // Addresses of one pool mostly offer the same.
        let mut last: Option<(usize, Arc<[Mask; Protocol::COUNT]>)> = None;
        for (place, spec) in specs.iter().enumerate() {
            if !guarantees_ports_of(candidate, AddressIndex(place as u32)) {
                masks.push(None);
                continue;
            }
            let known = last.as_ref().filter(|(before, _)| specs.get(*before) == Some(spec));
            let mask = known.map_or_else(
                || Arc::new(Protocol::ALL.map(|protocol| never_offered(spec, protocol))),
                |(_, mask)| Arc::clone(mask),
            );
            last = Some((place, Arc::clone(&mask)));
            masks.push(Some(mask));
        }
        let by_address = vec![PerProtocol::default(); specs.len()];
        let records = candidate.settings().limits.subscribers_max as usize + 1;
        AlreadyHeld { masks, by_address, by_subscriber: Vec::new(), records }
    }

    /// Call it before the next worker's subscribers are counted.
    pub fn begin_worker(&mut self) {
        if !self.masks.is_empty() {
            // Not a fill: zeroed pages take memory only once written.
            self.by_subscriber = vec![Default::default(); self.records];
        }
    }

    pub(crate) fn mask(&self, address: AddressIndex, protocol: Protocol) -> Option<&Mask> {
        let masks = self.masks.get(address.index())?.as_ref()?;
        masks.get(protocol.index())
    }

    pub(crate) fn count(&mut self, slot: u32, protocol: Protocol) {
        if let Some(ports) = self.by_subscriber.get_mut(slot as usize) {
            ports[protocol.index()] = ports[protocol.index()].saturating_add(1);
        }
    }

    pub(crate) fn has_counted(&self, slot: u32) -> bool {
        self.by_subscriber.get(slot as usize).is_some_and(|ports| *ports != [0; Protocol::COUNT])
    }

    /// At most `covered` of the counted ports will be guaranteed to the subscriber.
    pub(crate) fn settle(&mut self, slot: u32, address: AddressIndex, covered: PerProtocol) {
        let (counted, of_address) =
            (self.by_subscriber.get_mut(slot as usize), self.by_address.get_mut(address.index()));
        if let (Some(counted), Some(of_address)) = (counted.map(core::mem::take), of_address) {
            for p in 0..Protocol::COUNT {
                of_address[p] += covered[p].min(u32::from(counted[p]));
            }
        }
    }

    pub(crate) fn at(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        self.by_address.get(address.index()).map_or(0, |ports| ports[protocol.index()])
    }
}

fn guarantees_ports_of(candidate: &Shared, address: AddressIndex) -> bool {
    candidate.guarantees_ports(address) && candidate.closed(address).is_none()
}
