//! The holdings of an internal address, or of one of its ports.

use control::Fault;
use control::FindAnswer;
use control::List;
use control::Page;
use control::Place;
use control::Refused;
use nat::types::Endpoint;
use nat::types::HostNumber;
use nat::types::PoolId;
use nat::types::RealmId;

use super::Search;
use super::refusals_of;
use crate::convert;

impl Search<'_> {
    pub(super) fn internal(&self) -> Result<Page<FindAnswer>, Fault> {
        let address = self.asked.address;
        // The number of an IPv6 host is no address.
        if HostNumber::from(address).is_ipv6() {
            return Ok(Page::whole(vec![self.nowhere(" (224.0.0.0/3: multicast or reserved)")]));
        }
        let served = self.realms.iter().filter_map(|realm| Some((*realm, self.shared.pool_for(*realm, address)?)));
        let served: Vec<(RealmId, PoolId)> = served.collect();
        if served.is_empty() {
            return Ok(Page::whole(vec![self.nowhere("")]));
        }
        let mut refusals = Vec::new();
        let mut page = self.holdings(&mut refusals)?;
        let answers = &mut page.objects;
        if answers.is_empty() && self.is_first_page() {
            answers.extend(self.static_mappings_of_internal());
        }
        // The first page also has ports by formula in the other VRFs.
        if self.is_first_page() {
            let was_refused = |realm: RealmId| refusals.iter().any(|(refused, _)| *refused == realm.0);
            let has_answer = !answers.is_empty();
            let mut unused = Vec::new();
            for (realm, pool) in served {
                let answer = self.unused(realm, pool);
                let is_holder = answer.holder.is_some() || was_refused(realm);
                // A pool may serve any address; without an inside route it cannot be a
                // subscriber's.
                let is_led = is_holder || self.shared.leads_inside(realm, address);
                let is_new = is_holder && !answers.iter().any(|known| known.realm == answer.realm);
                if is_led && (is_new || !has_answer) {
                    unused.push(answer);
                }
            }
            answers.extend(unused);
        }
        note_refusals(&refusals, answers);
        if self.asked.port.is_none() && self.is_first_page() {
            let is_asked =
                |answer: &FindAnswer| answer.realm.is_some_and(|realm| self.realms.contains(&RealmId(realm)));
            answers.extend(self.configured().forwards_to().into_iter().filter(is_asked));
        }
        if answers.is_empty() && self.is_first_page() {
            answers.push(self.nowhere(" (no inside route leads to it)"));
        }
        Ok(page)
    }

    fn nowhere(&self, because: &str) -> FindAnswer {
        let (address, of_vrf) = (self.asked.address, self.asked.of_vrf());
        let nobodys = format!("{address} is neither an external address of a pool nor a subscriber{of_vrf}");
        let behind = self.behind_b4s();
        self.asked.nobody(Place::Nowhere, format!("{nobodys}{because}, nor an address of Natrix{behind}"))
    }

    /// A note about an address that many homes may have inside (DS-Lite).
    fn behind_b4s(&self) -> &'static str {
        let mut ends = self.shared.settings().transition.softwires.iter();
        let may_have = |prefix: &nat::types::Prefix| prefix.contains(self.asked.address);
        match ends.any(|end| self.realms.contains(&end.realm) && end.inner.iter().any(may_have)) {
            true => "; hosts behind B4s may have this address: ask for the address of a B4",
            false => "",
        }
    }

    /// Mappings and flows of the port, or the subscribers with the address and their `refusals`, by
    /// realm.
    fn holdings(&self, refusals: &mut Vec<(u16, Refused)>) -> Result<Page<FindAnswer>, Fault> {
        let owner = self.shared.worker_of_subscriber(self.asked.address.into());
        let filter = control::Filter {
            internal: Some(control::Prefix::host(self.asked.address)),
            internal_port: self.asked.port,
            protocol: self.find.protocol,
            vrf: self.find.vrf.clone(),
            worker: Some(owner.0),
            ..control::Filter::default()
        };
        let list = self.list(filter);
        if self.asked.port.is_some() {
            return self.mappings_and_flows(&list);
        }
        let Page { objects, cursor } = self.live.subscribers(&list)?;
        let mut answers = Vec::new();
        for subscriber in objects {
            if subscriber.refused.total() > 0 {
                refusals.push((subscriber.realm, subscriber.refused));
            }
            if subscriber.refused_only {
                continue;
            }
            let address = self.asked.address;
            let mappings = control::counted(subscriber.mappings.total(), "mapping");
            let detail = match subscriber.external_address {
                Some(external) => format!("{address} is paired with {external} and has {mappings}"),
                None => format!("{address} has {mappings}"),
            };
            answers.push(FindAnswer {
                holder: Some(address),
                realm: Some(subscriber.realm),
                vrf: Some(subscriber.vrf),
                external_address: subscriber.external_address,
                subscriber_ports: subscriber.subscriber_ports,
                pool: Some(subscriber.pool),
                ..self.asked.nobody(Place::Internal, detail)
            });
        }
        Ok(Page { objects: answers, cursor })
    }

    /// The few mappings of an internal endpoint on the first page, then its flows, which may be
    /// many.
    fn mappings_and_flows(&self, list: &List) -> Result<Page<FindAnswer>, Fault> {
        let mut answers = Vec::new();
        if self.is_first_page() {
            let mut cursor = None;
            loop {
                let page = self.live.mappings(&List { cursor, limit: None, ..list.clone() })?;
                answers.extend(page.objects.into_iter().map(|mapping| {
                    let (protocol, internal, external) = (mapping.protocol, mapping.internal, mapping.external);
                    let detail = format!("{protocol} {internal} has external endpoint {external}");
                    self.by_mapping(Place::Internal, mapping, detail)
                }));
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
        }
        let Page { objects, cursor } = self.live.sessions(list)?;
        let flows = objects.into_iter().filter(|session| session.shared);
        answers.extend(flows.map(|session| self.by_flow(Place::Internal, session)));
        Ok(Page { objects: answers, cursor })
    }

    /// Not in use.
    fn static_mappings_of_internal(&self) -> Vec<FindAnswer> {
        let internal = Endpoint::new(self.asked.address, self.asked.port.unwrap_or(0));
        let mut answers = Vec::new();
        for realm in self.realms.iter().copied() {
            for protocol in self.asked.protocols() {
                if self.asked.port.is_some() {
                    for found in self.shared.balanced_to(realm, internal, protocol) {
                        let answer = self.by_targets(Place::Internal, &found);
                        answers.push(FindAnswer { holder: Some(internal.address), ..answer });
                    }
                }
                let found = self.shared.static_of_internal(realm, internal, protocol);
                let Some(found) = found.filter(|found| self.asked.port.is_some() || found.one_to_one) else { continue };
                answers.push(self.by_static(Place::Internal, &found));
                if self.asked.port.is_none() {
                    break;
                }
            }
        }
        answers
    }

    /// The pool that an unused address may use, or its ports by formula.
    fn unused(&self, realm: RealmId, pool: PoolId) -> FindAnswer {
        let address = self.asked.address;
        let (name, vrf) = (convert::pool_name(&self.shared, pool), self.vrf(realm));
        // Two VRFs may have the same address.
        let who = if realm == RealmId::default() { address.to_string() } else { format!("{vrf}/{address}") };
        let behind = self.behind_b4s();
        let detail = format!("{who} may use pool \"{name}\" and has no mapping now{behind}");
        let mut idle = FindAnswer {
            pool: Some(name),
            realm: Some(realm.0),
            vrf: Some(vrf),
            ..self.asked.nobody(Place::Internal, detail)
        };
        if self.shared.is_boundary_address(pool, address) {
            idle.place = Place::Nowhere;
            idle.detail = format!("{who} is the network or broadcast address of its prefix and not a subscriber");
            return idle;
        }
        // In a deterministic pool it still has ports.
        let own = self.shared.subscriber_ports(pool, realm, address, None);
        if let Some(slice) = own.first().filter(|own| own.leased_s.is_none()) {
            idle.detail =
                format!("{who} has ports {}-{} of {}, and no mapping now", slice.first, slice.last, slice.address);
            idle.holder = Some(address);
            idle.external_address = Some(slice.address);
            idle.subscriber_ports = own.iter().map(convert::subscriber_ports).collect();
        }
        idle
    }
}

fn note_refusals(refusals: &[(u16, Refused)], answers: &mut [FindAnswer]) {
    for answer in answers {
        let Some((_, refused)) = refusals.iter().find(|(realm, _)| answer.realm == Some(*realm)) else { continue };
        answer.detail += &refusals_of(refused);
    }
}
