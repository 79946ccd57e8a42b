//! Decides what an external endpoint leads to. The first half of a hairpin asks only whether the
//! endpoint has a mapping or another worker, and whether its realm may be reached, so that a packet
//! without a way creates nothing (`hairpin_way` in `steps/outbound.rs`). The second half asks here,
//! on the worker of the endpoint.
//!
//! ```text
//!   port table:  another worker's        ─► Elsewhere
//!                shared                  ─► Session, Shared
//!                a mapping, alive        ─► Mapping
//!                a mapping, expired      ─► as below
//!   several targets                      ─► Session, Elsewhere (the next worker), Target, Nothing
//!   static mapping                       ─► Static
//!   an address of Natrix itself as well  ─► Own
//! ```

use crate::external::load_balancing::Aim;
use crate::external::load_balancing::Group;
use crate::external::load_balancing::Stop;
use crate::external::load_balancing::TargetGeneration;
use crate::external::static_mapping::Inside;
use crate::headers::icmp_quote::Quote;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::snapshot::addresses::Local;
use crate::state::flow::OutsideKey;
use crate::steps::view::View;
use crate::steps::view::hashed_by;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::ExternalEndpoint;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::RemoteOutside;
use crate::types::WorkerId;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Door {
    Mapping(u32),
    Session(u32),
    /// A shared port without a session to this remote endpoint.
    Shared,
    /// An inactive static mapping. `expired`: this worker's mapping that last had the endpoint.
    Static {
        inside: Inside,
        expired: Option<u32>,
    },
    Target(Aim),
    /// The endpoint's owner, or the next worker that may have its session. `turn`: as in
    /// [`crate::headers::packet::PacketMeta::turn`].
    Elsewhere {
        worker: WorkerId,
        turn: u8,
    },
    /// Natrix itself: an unused port of an address that a pool shares.
    Own,
    Nothing,
    NotExternal(Option<Local>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Towards {
    pub(crate) key: OutsideKey,
    /// The packet is a query. It leads only to Natrix itself, or to a subscriber with a whole
    /// address.
    is_query: bool,
    /// Workers visited, of those that may have its session.
    turn: u8,
    /// Another worker has ended the mapping that the port table may still name.
    is_vacated: bool,
}

impl Towards {
    #[inline]
    pub(crate) fn of(parsed: &Parsed, protocol: Protocol, turn: u8) -> Towards {
        let key = OutsideKey {
            protocol,
            external: ExternalEndpoint { address: parsed.destination, port: parsed.destination_port },
            remote_outside: RemoteOutside { address: parsed.source, port: remote_port(protocol, parsed.source_port) },
        };
        Towards { key, is_query: parsed.class == Class::IcmpRequest, turn, is_vacated: false }
    }

    pub(crate) fn of_quote(quote: &Quote, turn: u8) -> Towards {
        let key = OutsideKey {
            protocol: quote.protocol,
            external: quote.source.into(),
            remote_outside: RemoteOutside {
                port: remote_port(quote.protocol, quote.destination.port),
                ..quote.destination.into()
            },
        };
        Towards { key, is_query: false, turn, is_vacated: false }
    }

    pub(crate) const fn between(key: OutsideKey) -> Towards {
        Towards { key, is_query: false, turn: 0, is_vacated: false }
    }

    pub(crate) const fn vacated(self) -> Towards {
        Towards { is_vacated: true, ..self }
    }
}

/// 0 for ICMP, whose identifier belongs to the mapping.
#[inline]
pub(crate) fn remote_port(protocol: Protocol, port: u16) -> u16 {
    if protocol == Protocol::Icmp { 0 } else { port }
}

enum Entry {
    Door(Door),
    Expired(u32),
    Free,
}

impl View<'_> {
    #[inline]
    pub(crate) fn door(&self, to: &Towards, now: Instant) -> Door {
        let key = &to.key;
        let (address, is_own) = match self.local.lookup(key.external.address) {
            Some(Local::Pool(address)) => (address, false),
            Some(Local::OwnAndPool(_, address)) => (address, true),
            other => return Door::NotExternal(other),
        };
        let group = self.snapshot.balance.find(key.external.address, key.protocol, key.external.port);
        let entry = match to.turn {
            0 if !to.is_vacated => self.port_entry(to, address, group.is_some(), now),
            // The port table only knows the owner before the targets.
            _ => Entry::Free,
        };
        let expired = match entry {
            Entry::Door(door) => return door,
            Entry::Expired(index) => Some(index),
            Entry::Free => None,
        };
        if group.is_some() || to.turn != 0 {
            return self.door_of_targets(to, group, now);
        }
        match self.snapshot.static_mappings.by_external(key.external.address, key.protocol, key.external.port) {
            Some(inside) => Door::Static { inside, expired },
            None if is_own && expired.is_none() => Door::Own,
            None => Door::Nothing,
        }
    }

    #[inline]
    fn port_entry(&self, to: &Towards, address: AddressIndex, has_targets: bool, now: Instant) -> Entry {
        if to.is_query && !self.snapshot.compiled_pool(address).one_to_one {
            return Entry::Free;
        }
        match self.snapshot.owner_towards(address, &to.key) {
            None => Entry::Free,
            Some((worker, _)) if worker != self.worker => Entry::Door(Door::Elsewhere { worker, turn: 0 }),
            // The port has been shared since before there were targets.
            Some((_, MappingIndex::SHARED)) if has_targets => Entry::Free,
            Some((_, MappingIndex::SHARED)) => {
                let found = self.state.live_flow_outside(&to.key, now);
                Entry::Door(found.map_or(Door::Shared, Door::Session))
            }
            Some((_, mapping)) if !self.state.is_alive(mapping.0, now) => Entry::Expired(mapping.0),
            // An older mapping keeps its sessions; the targets have everything else.
            Some((_, mapping)) if has_targets && !self.has_session(mapping.0, address, &to.key, now) => Entry::Free,
            Some((_, mapping)) => Entry::Door(Door::Mapping(mapping.0)),
        }
    }

    fn has_session(&self, mapping: u32, address: AddressIndex, key: &OutsideKey, now: Instant) -> bool {
        let by = hashed_by(self.snapshot.compiled_pool(address), key.protocol);
        self.state.find_session(mapping, key.remote_outside.address, key.remote_outside.port, by, now).is_some()
    }

    #[cold]
    fn door_of_targets(&self, to: &Towards, group: Option<&Group>, now: Instant) -> Door {
        if let Some(found) = self.state.live_flow_outside(&to.key, now) {
            return Door::Session(found);
        }
        // Sent by a worker with other settings.
        let Some(group) = group else { return Door::Nothing };
        let worker_of = |address| self.snapshot.worker_of_subscriber(address);
        match group.next_stop(to.key.external.port, to.key.remote_outside, to.turn, &self.worker, worker_of) {
            Stop::Next(worker, turn) => Door::Elsewhere { worker, turn },
            Stop::Here(_) if !self.may_lead(group) => Door::Nothing,
            Stop::Here(aim) => Door::Target(aim),
            Stop::Nowhere => Door::Nothing,
        }
    }

    /// Not yet if workers with the previous settings would not find the session.
    fn may_lead(&self, group: &Group) -> bool {
        !group.is_new || self.snapshot.is_settled()
    }

    /// The targets of new sessions, whatever the sender's port.
    pub(crate) fn new_targets(&self, external: ExternalEndpoint, protocol: Protocol) -> Option<&TargetGeneration> {
        let group = self.snapshot.balance.find(external.address, protocol, external.port);
        group.filter(|group| self.may_lead(group)).and_then(Group::current)
    }

    pub(crate) fn worker_behind(&self, door: &Door) -> WorkerId {
        match door {
            Door::Elsewhere { worker, .. } => *worker,
            Door::Static { inside, .. } => self.snapshot.worker_of_inside(&inside.host),
            _ => self.worker,
        }
    }
}
