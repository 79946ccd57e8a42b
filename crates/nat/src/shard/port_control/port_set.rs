//! PORT_SET (RFC 7753).

use core::ops::RangeInclusive;

use pcp::Map;
use pcp::PortSet;

use super::Asked;
use super::Done;
use super::Fault;
use super::map::endpoint_of;
use super::map::external_of;
use super::seconds;
use crate::shard::Ledger;
use crate::state::grant::Grant;
use crate::state::grant::Request;
use crate::state::grant::Requester;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::steps::expired::Expired;
use crate::steps::opening::Ask;
use crate::steps::opening::Hints;
use crate::time::Instant;

/// Bounds the time of a request.
const SET_MAX: u16 = 64;
/// Places tried for a set.
const PLACES: usize = 4;

impl Ledger {
    pub(super) fn ports_of_set(&self, grant: &Grant) -> RangeInclusive<u16> {
        let Requester { set_first, set_size, .. } = grant.requester;
        if set_size < 2 {
            return grant.internal().port..=grant.internal().port;
        }
        set_first..=set_first.saturating_add(set_size - 1)
    }

    /// `None` if only one port is meant.
    pub(super) fn map_set(
        &mut self,
        asked: &Asked<'_>,
        map: &Map,
        key: &InternalKey,
    ) -> Result<Option<Done>, Option<Fault>> {
        let is_map = |grant: &Grant| grant.is_map_of_client() && grant.is_alive(asked.now);
        let own = self.state.grants.find(key, is_map).map(|index| *self.state.grants.get(index));
        let wanted = asked.options.port_set.map_or(1, |set| set.size).min(SET_MAX).min(u16::MAX - key.port);
        if let Some(own) = own.filter(|own| own.requester.set_size > 1) {
            if *self.ports_of_set(&own).start() == key.port {
                return self.renew_set(asked, map, key, &own).map(Some).map_err(Some);
            }
            self.refresh_overlapped(asked, map, key, 1)?;
            return Err(None);
        }
        if wanted < 2 {
            return Ok(None);
        }
        let parts = (key.port..=key.port + (wanted - 1)).map(|port| InternalKey { port, ..*key });
        if parts.into_iter().any(|part| self.state.grants.find(&part, is_map).is_some()) {
            self.refresh_overlapped(asked, map, key, wanted)?;
            return Err(None);
        }
        self.open_set(asked, map, key, wanted).map(Some).map_err(Some)
    }

    /// Replaces a set that is not whole any more.
    fn renew_set(&mut self, asked: &Asked<'_>, map: &Map, key: &InternalKey, own: &Grant) -> Result<Done, Fault> {
        let (first, size) = (own.requester.set_first, own.requester.set_size);
        let request = self.request_of(asked, map, key)?;
        self.check_parts(asked, &request, self.ports_of_set(own))?;
        if !self.is_whole(asked.now, own) {
            for port in self.ports_of_set(own) {
                if let Some(index) = self.part_of_set(asked.now, own, port) {
                    self.end_grant(asked.now, index);
                }
            }
            return self.open_set(asked, map, key, size);
        }
        for port in self.ports_of_set(own) {
            self.renew_part(asked, &request, port, (first, size));
        }
        let external = external_of(own);
        // A reply has no more options than its request.
        let set = asked.options.port_set.map(|wanted| PortSet { size, first, parity: wanted.parity });
        Ok(Done { lifetime: seconds(request.expires.saturating_since(asked.now)), external, set })
    }

    fn part_of_set(&self, now: Instant, set: &Grant, port: u16) -> Option<u32> {
        let is_part = |grant: &Grant| {
            grant.is_map_of_client() && grant.is_alive(now) && grant.requester.set_first == set.requester.set_first
        };
        self.state.grants.find(&InternalKey { port, ..set.key() }, is_part)
    }

    fn is_whole(&self, now: Instant, own: &Grant) -> bool {
        let external = |port: u16| own.external_port.wrapping_sub(own.key().port).wrapping_add(port);
        self.ports_of_set(own).all(|port| {
            let part = self.part_of_set(now, own, port).map(|index| self.state.grants.get(index));
            part.is_some_and(|part| {
                let is_beside = (part.external_address, part.external_port) == (own.external_address, external(port));
                is_beside && !part.has_lost_mapping()
            })
        })
    }

    /// The client may ask for another set: no message moves one, and port by port it would not stay
    /// one.
    pub(in crate::shard) fn announce_end_of_set(&mut self, now: Instant, set: &Grant) {
        for port in self.ports_of_set(set) {
            if let Some(index) = self.part_of_set(now, set, port) {
                self.release_hold(now, index);
                self.announce_end(now, index);
            }
        }
    }

    /// Checked before the first renewal, so an error changes nothing.
    fn check_parts(&self, asked: &Asked<'_>, request: &Request, mut ports: RangeInclusive<u16>) -> Result<(), Fault> {
        ports.try_for_each(|port| {
            let is_map = |grant: &Grant| grant.is_map_of_client() && grant.is_alive(asked.now);
            let found = self.state.grants.find(&InternalKey { port, ..request.key }, is_map);
            let Some(index) = found else { return Ok(()) };
            self.renewed(asked, request, self.state.grants.get(index)).map(|_| ())
        })
    }

    fn renew_part(&mut self, asked: &Asked<'_>, request: &Request, port: u16, set: (u16, u16)) -> Option<u32> {
        let key = InternalKey { port, ..request.key };
        let is_map = |grant: &Grant| grant.is_map_of_client() && grant.is_alive(asked.now);
        let index = self.state.grants.find(&key, is_map)?;
        let remotes = self.renewed(asked, request, self.state.grants.get(index)).ok()?;
        let requester = request.requester.in_set(set.0, set.1);
        self.renew_grant(asked.now, index, &Request { key, remotes, requester, ..*request });
        Some(index)
    }

    /// Renews each overlapping mapping by itself, with an update to its client (RFC 7753 §4.4.1).
    fn refresh_overlapped(&mut self, asked: &Asked<'_>, map: &Map, key: &InternalKey, size: u16) -> Result<(), Fault> {
        let request = self.request_of(asked, map, key)?;
        let last = key.port.saturating_add(size - 1);
        for port in key.port..=last {
            if let Some(set) = self.set_overlapped(&request, port) {
                self.check_parts(asked, &request, self.ports_of_set(&set))?;
            }
        }
        for port in key.port..=last {
            let Some(grant) = self.set_overlapped(&request, port) else { continue };
            let set = (grant.requester.set_first, grant.requester.set_size);
            if port != last && port != *self.ports_of_set(&grant).end() {
                continue;
            }
            for part in self.ports_of_set(&grant) {
                if let Some(index) = self.renew_part(asked, &request, part, set) {
                    self.state.grants.get_mut(index).announce(1, asked.now);
                    self.updates_pending = true;
                }
            }
        }
        Ok(())
    }

    fn set_overlapped(&self, request: &Request, port: u16) -> Option<Grant> {
        let key = InternalKey { port, ..request.key };
        let found = self.state.grants.find(&key, Grant::is_map_of_client);
        found.map(|index| *self.state.grants.get(index))
    }

    fn open_set(&mut self, asked: &Asked<'_>, map: &Map, key: &InternalKey, wanted: u16) -> Result<Done, Fault> {
        let mut request = self.request_of(asked, map, key)?;
        if let Some(wish) = self.place_for_set(asked, &request, wanted) {
            request.suggested = Suggested::Rather(wish);
        }
        let first = self.open_counted(asked.now, &request)?;
        let external = *self.state.grants.get(first);
        let base = endpoint_of((external.external_port, external.external_address));
        let mut size = 1;
        while size < wanted && base.port.checked_add(size).is_some() {
            let wish = Wish { address: Some(base.address.to_bits()), port: base.port + size };
            let next = InternalKey { port: key.port + size, ..*key };
            let part = Request { key: next, suggested: Suggested::Only(wish), ..request };
            if self.open_counted(asked.now, &part).is_err() {
                break;
            }
            size += 1;
        }
        let set = if size > 1 {
            for port in key.port..=key.port + (size - 1) {
                self.renew_part(asked, &request, port, (key.port, size));
            }
            let parity = asked.options.port_set.is_some_and(|set| set.parity);
            Some(PortSet { size, first: key.port, parity })
        } else {
            None
        };
        let lifetime = seconds(request.expires.saturating_since(asked.now));
        Ok(Done { lifetime, external: external_of(self.state.grants.get(first)), set })
    }

    /// The start of the longest run of ports it could have, at the suggested place and some random
    /// ones.
    fn place_for_set(&mut self, asked: &Asked<'_>, request: &Request, wanted: u16) -> Option<Wish> {
        if self.state.find_live_mapping(&request.key, asked.now).is_some() {
            // A mapping exists, so its port is fixed.
            return None;
        }
        let parity = asked.options.port_set.is_some_and(|set| set.parity).then_some(request.key.port % 2);
        let hash = self.state.hash_of(&request.key);
        let ask =
            Ask { now: asked.now, key: &request.key, wanted: None, hints: Hints::of(hash), expired: Expired::NONE };
        let mut best: Option<(u16, Wish)> = None;
        for place in 0..PLACES {
            let suggested = if place == 0 { request.suggested } else { Suggested::Any };
            let (view, random) = self.deciding();
            let Some((first, length, address)) = view.run_of_ports(&ask, suggested, wanted, random) else { continue };
            // With one port less the parity is right.
            let skip = u16::from(parity.is_some_and(|parity| first % 2 != parity) && length > 1);
            let found = (length - skip, Wish { address: Some(address), port: first + skip });
            if best.is_none_or(|(length, _)| found.0 > length) {
                best = Some(found);
            }
            if found.0 >= wanted {
                break;
            }
        }
        best.map(|(_, wish)| wish)
    }
}
