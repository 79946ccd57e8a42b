//! How a worker goes over to other settings: what it needs is prepared by who changes them, and what it had before comes back,
//! so that it neither allocates nor frees anything.

use std::sync::Arc;

use nat::Instant;
use nat::Shared;
use nat::Successor;
use nat::addresses::LocalAddresses;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;
use packet_io::Io;

use crate::neighbour::Answerer;
use crate::worker::Worker;

/// Everything one worker needs to go on under other settings; after that, what it had before.
#[derive(Debug)]
pub struct Adoption {
    successor: Successor,
    answerer: Answerer,
    /// External addresses on connected subnets that were not there before: they are asked for and announced.
    fresh: Vec<(InterfaceId, u32)>,
    /// All addresses, for a worker that has not announced those of its start yet.
    all: Vec<(InterfaceId, u32)>,
}

impl Adoption {
    /// For one worker that is to go over from `before` to `shared`, its successor.
    pub fn new(before: &Shared, shared: &Arc<Shared>) -> Adoption {
        let all = announced(shared);
        let known = announced(before);
        Adoption {
            fresh: all.iter().copied().filter(|address| !known.contains(address)).collect(),
            all,
            answerer: Answerer::of(shared),
            successor: Successor::new(before, shared),
        }
    }

    /// The settings it is about.
    pub fn shared(&self) -> &Arc<Shared> {
        self.successor.shared()
    }
}

/// What one worker needs to know of the addresses of a configuration before others may give them out; after that, what it knew before.
#[derive(Debug)]
pub struct Expectation {
    local: Arc<LocalAddresses>,
    answerer: Answerer,
}

impl Expectation {
    /// For each worker that is to go over from `before` to `shared`; None when there are no new addresses.
    pub fn new(before: &Shared, shared: &Shared) -> Option<Expectation> {
        Some(Expectation { local: shared.expected(before)?, answerer: Answerer::of_both(before, shared) })
    }
}

/// The addresses Natrix announces: its own, and the external ones on connected subnets outside.
fn announced(shared: &Shared) -> Vec<(InterfaceId, u32)> {
    let mut addresses = Vec::new();
    for (index, interface) in shared.settings().interfaces.iter().enumerate() {
        let id = InterfaceId(index as u16);
        let own = interface.addresses.iter();
        addresses.extend(own.clone().map(|own| (id, own.address.to_bits())));
        if interface.side != Side::Outside {
            continue;
        }
        let connected: Vec<Prefix> =
            own.clone().filter_map(|own| Prefix::new(own.address, own.prefix_length)).collect();
        let external = shared.addresses().map(|(_, slot)| slot.address);
        addresses.extend(
            external
                .filter(|address| connected.iter().any(|prefix| prefix.contains(*address)))
                .filter(|address| !interface.addresses.iter().any(|own| own.address == *address))
                .map(|address| (id, address.to_bits())),
        );
    }
    addresses
}

impl<I: Io> Worker<I> {
    /// Knows these addresses from now on, between two polls; what it knew before comes back in the same place.
    pub fn expect(&mut self, expectation: &mut Expectation) {
        self.shard.expect(&mut expectation.local);
        core::mem::swap(&mut self.outlet.answerer, &mut expectation.answerer);
    }

    /// Goes on under other settings, between two polls; what it had before comes back in the same place. Packets that wait
    /// for their neighbour go on waiting.
    pub fn adopt(&mut self, now: Instant, adoption: &mut Adoption) {
        self.shard.adopt(&mut adoption.successor);
        core::mem::swap(&mut self.outlet.answerer, &mut adoption.answerer);
        self.outlet.announcer.announce(now, &mut adoption.fresh, &mut adoption.all);
    }
}
