//! What subscribers have already of the ports that other settings are to guarantee them: a census counts it, a plan takes it off what
//! is missing.

use std::sync::Arc;

use crate::ports::Mask;
use crate::ports::never_offered;
use crate::shared::Shared;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// Numbers of ports by [`Protocol::index`].
type PerProtocol = [u32; Protocol::COUNT];

/// See the [module](self). Made where memory may be taken; counting takes none.
#[derive(Clone, Debug, Default)]
pub struct Entitled {
    /// By place of the external address: the ports that will not be offered. None where nothing is to be set aside.
    masks: Vec<Option<Arc<[Mask; Protocol::COUNT]>>>,
    /// By place: ports whose owners are to be guaranteed them.
    by_address: Vec<PerProtocol>,
    /// By record of a subscriber of one worker: its ports at its address that are not part of its pledge. A port has 16 bits.
    by_subscriber: Vec<[u16; Protocol::COUNT]>,
    records: usize,
}

impl Entitled {
    /// For a census of what these settings would do. Takes next to no memory where they guarantee nothing.
    pub fn under(candidate: &Shared) -> Entitled {
        if !candidate.addresses().any(|(address, _)| is_set_aside(candidate, address)) {
            return Entitled::default();
        }
        let specs = candidate.specs();
        let mut masks: Vec<Option<Arc<[Mask; Protocol::COUNT]>>> = Vec::with_capacity(specs.len());
        // Addresses of one pool mostly offer the same.
        let mut last: Option<(usize, Arc<[Mask; Protocol::COUNT]>)> = None;
        for (place, spec) in specs.iter().enumerate() {
            if !is_set_aside(candidate, AddressIndex(place as u32)) {
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
        Entitled { masks, by_address, by_subscriber: Vec::new(), records }
    }

    /// Before the subscribers of the next worker are counted.
    pub fn begin_worker(&mut self) {
        if !self.masks.is_empty() {
            // Anew rather than filled: of memory that is all zero only what is written to is ever there.
            self.by_subscriber = vec![Default::default(); self.records];
        }
    }

    /// The ports that an address will not offer, if it is to set some aside.
    pub(crate) fn mask(&self, address: AddressIndex, protocol: Protocol) -> Option<&Mask> {
        let masks = self.masks.get(address.index())?.as_ref()?;
        masks.get(protocol.index())
    }

    /// The subscriber of this record has one more port at its address that is not part of its pledge.
    pub(crate) fn count(&mut self, slot: u32, protocol: Protocol) {
        if let Some(ports) = self.by_subscriber.get_mut(slot as usize) {
            ports[protocol.index()] = ports[protocol.index()].saturating_add(1);
        }
    }

    /// Whether anything was counted of this subscriber.
    pub(crate) fn has_counted(&self, slot: u32) -> bool {
        self.by_subscriber.get(slot as usize).is_some_and(|ports| *ports != [0; Protocol::COUNT])
    }

    /// Of what was counted of this subscriber at most so much is to be guaranteed to it, beside its pledge.
    pub(crate) fn settle(&mut self, slot: u32, address: AddressIndex, covered: PerProtocol) {
        let (counted, of_address) =
            (self.by_subscriber.get_mut(slot as usize), self.by_address.get_mut(address.index()));
        if let (Some(counted), Some(of_address)) = (counted.map(core::mem::take), of_address) {
            for p in 0..Protocol::COUNT {
                of_address[p] += covered[p].min(u32::from(counted[p]));
            }
        }
    }

    /// Ports of an address whose owners are to be guaranteed them.
    pub(crate) fn at(&self, address: AddressIndex, protocol: Protocol) -> u32 {
        self.by_address.get(address.index()).map_or(0, |ports| ports[protocol.index()])
    }
}

fn is_set_aside(candidate: &Shared, address: AddressIndex) -> bool {
    candidate.sets_ports_aside(address) && candidate.closed(address).is_none()
}
