//! How a worker adopts other settings. The control thread prepares everything that the worker needs
//! and takes back what it had, so that the worker neither allocates nor frees memory.

use std::sync::Arc;

use nat::Instant;
use nat::Shared;
use nat::Successor;
use nat::addresses::LocalAddresses;
use nat::settings::IcmpPolicy;
use nat::settings::Route6;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;
use packet_io::Io;

use crate::ipv6::node::routes_of;
use crate::neighbour::Answerer;
use crate::next_hop::NextHop;
use crate::worker::Worker;

/// All that a worker needs to run with other settings; afterwards, its previous state.
#[derive(Debug)]
pub struct Adoption {
    successor: Successor,
    answerer: Answerer,
    next_hops: Vec<NextHop>,
    routes6: Vec<Route6>,
    icmp: IcmpPolicy,
    /// New external addresses on connected subnets, to probe and announce.
    fresh: Vec<(InterfaceId, u32)>,
    /// All addresses, for a worker that has not announced its first ones yet.
    all: Vec<(InterfaceId, u32)>,
}

impl Adoption {
    /// Prepares the change of one worker from `before` to its successor `shared`.
    pub fn new(before: &Shared, shared: &Arc<Shared>) -> Adoption {
        let all = announced(shared);
        let known = announced(before);
        Adoption {
            fresh: all.iter().copied().filter(|address| !known.contains(address)).collect(),
            all,
            answerer: Answerer::of(shared),
            next_hops: NextHop::all_of(shared),
            routes6: routes_of(shared.settings()),
            icmp: shared.settings().icmp,
            successor: Successor::new(before, shared),
        }
    }

    /// As [`Adoption::new`], to go back to settings that were in use: no address is new then.
    pub fn undoing(before: &Shared, shared: &Arc<Shared>) -> Adoption {
        Adoption { fresh: Vec::new(), ..Adoption::new(before, shared) }
    }

    /// The new settings.
    pub fn shared(&self) -> &Arc<Shared> {
        self.successor.shared()
    }
}

/// The addresses of a configuration that a worker must know before other workers may allocate them;
/// afterwards, its previous knowledge.
#[derive(Debug)]
pub struct Expectation {
    local: Arc<LocalAddresses>,
    answerer: Answerer,
}

impl Expectation {
    /// For a worker's change from `before` to `shared`; None if there are no new addresses.
    pub fn new(before: &Shared, shared: &Shared) -> Option<Expectation> {
        Some(Expectation { local: shared.expected(before)?, answerer: Answerer::of_both(before, shared) })
    }
}

/// The addresses that Natrix announces: its own, and the external ones on connected outside
/// subnets.
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
    /// Takes these addresses between two polls and returns the previous ones in their place.
    pub fn expect(&mut self, expectation: &mut Expectation) {
        self.shard.expect(&mut expectation.local);
        core::mem::swap(&mut self.outlet.answerer, &mut expectation.answerer);
    }

    /// Takes other settings between two polls and returns the previous ones in their place. Packets
    /// that wait for their neighbour keep waiting.
    pub fn adopt(&mut self, now: Instant, adoption: &mut Adoption) {
        self.shard.adopt(&mut adoption.successor);
        core::mem::swap(&mut self.outlet.answerer, &mut adoption.answerer);
        core::mem::swap(&mut self.outlet.next_hops, &mut adoption.next_hops);
        self.outlet.place_next_hops();
        // Those of live routes may be older than what this worker has reported.
        self.live_seen = (0, 0);
        self.outlet.node.adopt(&mut adoption.routes6, &adoption.icmp);
        self.outlet.announcer.announce(now, &mut adoption.fresh, &mut adoption.all);
    }
}
