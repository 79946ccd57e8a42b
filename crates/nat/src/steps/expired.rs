//! Expired mappings in the way of a new one. They count as absent, but keep their ports until they
//! end. The packet path ends them before it makes the mapping; `natrix why` only asks what follows.

use crate::external::static_mapping::Kind;
use crate::headers::packet::Stage;
use crate::state::mapping::InternalKey;
use crate::state::mapping::Mapping;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::WorkerId;

/// Mappings of this worker, and perhaps one of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expired {
    /// The internal endpoint's own.
    pub(crate) own: Option<u32>,
    /// Of another internal endpoint, on the port of the static mapping.
    pub(crate) at_port: Option<u32>,
    /// In an explanation: another worker ends its mapping on that port.
    pub(crate) is_vacated: bool,
}

impl Expired {
    pub(crate) const NONE: Expired = Expired { own: None, at_port: None, is_vacated: false };

    pub(crate) fn is_any(&self) -> bool {
        self.own.is_some() || self.at_port.is_some()
    }

    pub(crate) fn mappings(&self) -> impl Iterator<Item = u32> + use<> {
        self.own.into_iter().chain(self.at_port)
    }
}

/// What a worker knows of a static mapping's port that another worker's mapping had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Vacancy {
    #[default]
    Unasked,
    /// The other worker has ended its mapping if that had expired: the port table knows.
    Asked,
    /// In an explanation: the other worker would end its mapping.
    Vacant,
}

impl Vacancy {
    #[inline]
    pub(crate) fn at(stage: Stage) -> Vacancy {
        if stage == Stage::Vacated { Vacancy::Asked } else { Vacancy::Unasked }
    }
}

impl<'a> View<'a> {
    /// `own`: the internal endpoint's expired mapping.
    pub(crate) fn expired_before(&self, now: Instant, key: &InternalKey, own: Option<u32>) -> Expired {
        let at_port = self.static_mapping_of(key).and_then(|(external, _)| {
            let address = self.snapshot.address_index(external.address)?;
            self.expired_at(now, address, key.protocol, external.port).filter(|index| own != Some(*index))
        });
        Expired { own, at_port, is_vacated: false }
    }

    /// The expired mapping on this worker that still holds the port.
    pub(crate) fn expired_at(&self, now: Instant, address: AddressIndex, protocol: Protocol, port: u16) -> Option<u32> {
        let (worker, mapping) = self.snapshot.owner(address, protocol, port)?;
        let is_here = worker == self.worker && !mapping.is_shared();
        (is_here && !self.state.is_alive(mapping.0, now)).then_some(mapping.0)
    }

    /// Another worker whose mapping has the port of this endpoint's static mapping. Only that
    /// worker knows whether it has expired.
    pub(crate) fn port_is_elsewhere(&self, key: &InternalKey) -> Option<(WorkerId, Endpoint)> {
        let (external, _) = self.static_mapping_of(key)?;
        let address = self.snapshot.address_index(external.address)?;
        let (worker, mapping) = self.snapshot.owner(address, key.protocol, external.port)?;
        (worker != self.worker && !mapping.is_shared()).then_some((worker, external))
    }

    /// Whether the ends of expired mappings make this port available to its static mapping.
    pub(super) fn is_freed(
        &self,
        expired: &Expired,
        (address, protocol, port): (AddressIndex, Protocol, u16),
        kind: Kind,
    ) -> bool {
        let ends = match self.snapshot.owner(address, protocol, port) {
            Some((worker, MappingIndex(index))) if worker == self.worker => {
                expired.mappings().any(|mapping| mapping == index)
            }
            Some((_, mapping)) => expired.is_vacated && !mapping.is_shared(),
            None => false,
        };
        let ports = &self.snapshot.ports;
        ends && match kind {
            Kind::Forward => ports.is_withheld(address, protocol, port),
            Kind::OneToOne => !ports.is_in_block(address, port),
        }
    }

    /// How many of them need a record of their end.
    pub(super) fn recorded_ends(&self, expired: &Expired) -> usize {
        let mappings = &self.state.mappings;
        expired.mappings().filter(|index| mappings.get(*index).is_recorded()).count()
    }

    /// Whether an expired mapping may end: nothing ends without a record.
    pub(crate) fn may_end(&self, index: u32) -> bool {
        !self.state.mappings.get(index).is_recorded() || self.events.has_room_to_end(1)
    }

    pub(super) fn expired_of(&self, slot: u32, expired: &Expired) -> impl Iterator<Item = &'a Mapping> + use<'a> {
        let mappings = &self.state.mappings;
        expired.mappings().map(|index| mappings.get(index)).filter(move |mapping| mapping.subscriber == slot)
    }
}
