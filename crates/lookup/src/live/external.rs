//! The holders of an external address, or of one of its ports.

use core::net::Ipv4Addr;

use control::Cursor;
use control::Fault;
use control::FindAnswer;
use control::Host;
use control::List;
use control::Mapping;
use control::Page;
use control::Place;
use control::SubscriberPorts;
use nat::Protocol;
use nat::deterministic::Owner;
use nat::types::AddressIndex;
use nat::types::Endpoint;
use nat::types::HostNumber;
use nat::types::InsideHost;
use nat::types::MappingIndex;
use nat::types::RealmId;

use super::Search;
use super::named;
use crate::convert;

/// In a cursor: the transport, above its part in the list of sessions.
const TRANSPORT_SHIFT: u32 = 32;

/// In a cursor, instead of that part: the list begins, after other answers.
const FROM_BEGINNING: usize = (1 << TRANSPORT_SHIFT) - 1;

impl Search<'_> {
    pub(super) fn external(&self, index: AddressIndex) -> Result<Page<FindAnswer>, Fault> {
        let pool = convert::pool_name(&self.shared, self.shared.pool_of(index));
        let mut page = match self.asked.port {
            Some(port) => self.holders(index, port)?,
            None => self.users(index)?,
        };
        let answers = &mut page.objects;
        // A page after the last one is empty, whatever earlier pages had.
        if let Some(port) = self.asked.port.filter(|_| self.is_first_page() || !answers.is_empty()) {
            if answers.is_empty() {
                answers.extend(self.static_mappings_of_external());
            } else {
                self.note_who_waits(answers);
            }
            if answers.is_empty() {
                answers.extend(self.holder_of_range(index, port)?);
            }
            if answers.is_empty() {
                answers.extend(self.torn_block(index, port));
            }
        }
        if answers.is_empty() && self.is_first_page() {
            let detail = format!("no subscriber holds {} of pool \"{pool}\" now", self.asked.queried());
            let nobody = self.asked.nobody(Place::External, detail);
            answers.push(FindAnswer { pool: Some(pool), ..nobody });
        }
        Ok(page)
    }

    /// Adds the static mapping that waits for a mapping's port.
    fn note_who_waits(&self, answers: &mut [FindAnswer]) {
        for answer in answers {
            let Some(mapping) = &answer.mapping else { continue };
            let external = Endpoint::new(*mapping.external.ip(), mapping.external.port());
            let holder = match mapping.host {
                Some(Host { address, inner: None, .. }) => InsideHost::Ipv6(address),
                Some(Host { address, inner: Some(inner), .. }) => InsideHost::BehindB4 { b4: address, inner },
                None => InsideHost::Ipv4(*mapping.internal.ip()),
            };
            let protocol = convert::engine_protocol(mapping.protocol);
            let Some(found) = self.shared.static_of_external(external, protocol) else { continue };
            if (found.host, found.internal_port, found.realm.0) != (holder, mapping.internal.port(), mapping.realm) {
                let what = if found.one_to_one { "the address is that of" } else { "the port is forwarded to" };
                // Two VRFs may have the same address.
                let vrf = match found.realm.0 == mapping.realm {
                    true => String::new(),
                    false => format!("{}/", self.vrf(found.realm)),
                };
                let internal = found.host.with_port(found.internal_port);
                answer.detail += &format!("; {what} {vrf}{internal}, which waits until this mapping ends");
            }
        }
    }

    /// For each transport in question.
    fn holders(&self, index: AddressIndex, port: u16) -> Result<Page<FindAnswer>, Fault> {
        let list = self.list(control::Filter::default());
        let limit = list.limit_effective() as usize;
        let start = if self.is_first_page() { None } else { Some(list.start()?) };
        let first = start.map_or(0, |start| start.part >> TRANSPORT_SHIFT);
        let mut answers = Vec::new();
        for (number, protocol) in self.asked.protocols().enumerate().skip(first) {
            let external = Endpoint::new(self.asked.address, port);
            let balanced = self.shared.balanced(external, protocol);
            let is_begun = start.is_some() && number == first;
            if !is_begun {
                answers.extend(balanced.iter().map(|found| self.by_targets(Place::External, found)));
            }
            let owner = self.shared.owner(index, protocol, port);
            let is_shared = owner.is_some_and(|(_, entry)| entry == MappingIndex::SHARED);
            if !is_shared
                && !is_begun
                && let Some((worker, _)) = owner
                && let Some(mapping) = self.live.holder(worker, external, protocol)?
            {
                answers.push(self.by_holder(index, external, mapping));
            }
            if is_shared || balanced.is_some() {
                // Flows of any worker.
                let at = start.filter(|_| is_begun).unwrap_or_default().part & FROM_BEGINNING;
                let from = start.filter(|_| is_begun && at != FROM_BEGINNING).map(|start| Cursor { part: at, ..start });
                let room = limit.saturating_sub(answers.len());
                let next = if room == 0 {
                    Some(Cursor { part: FROM_BEGINNING, place: 0 })
                } else {
                    let flows = self.flows(external, protocol, (room as u32, from))?;
                    answers.extend(flows.objects);
                    flows.cursor.map(|text| List { cursor: Some(text), ..List::default() }.start()).transpose()?
                };
                if let Some(next) = next {
                    let cursor = Cursor { part: number << TRANSPORT_SHIFT | next.part, ..next };
                    return Ok(Page { objects: answers, cursor: Some(cursor.to_string()) });
                }
            }
        }
        Ok(Page::whole(answers))
    }

    fn by_holder(&self, index: AddressIndex, external: Endpoint, mapping: Mapping) -> FindAnswer {
        let (internal, subscriber, protocol) = (mapping.internal, mapping.internal.ip(), mapping.protocol);
        let detail = match &mapping.host {
            Some(host) => format!("{} has {protocol} {external}", host.endpoint(internal.port())),
            None => format!("{internal} of subscriber {subscriber} has {protocol} {external}"),
        };
        let subscriber_ports = self.range_of(index, external.port).map(|(_, range)| range).into_iter().collect();
        FindAnswer { subscriber_ports, ..self.by_mapping(Place::External, mapping, detail) }
    }

    /// The flows that share an external endpoint: at most `limit`, from a place in the list of
    /// sessions on.
    fn flows(
        &self,
        external: Endpoint,
        protocol: Protocol,
        (limit, from): (u32, Option<Cursor>),
    ) -> Result<Page<FindAnswer>, Fault> {
        let filter = control::Filter {
            external: Some(control::Prefix::host(external.address)),
            external_port: Some(external.port),
            protocol: Some(convert::protocol(protocol)),
            ..control::Filter::default()
        };
        let list = List { filter, limit: Some(limit), cursor: from.map(|from| from.to_string()) };
        Ok(self.live.sessions(&list)?.map(|session| self.by_flow(Place::External, session)))
    }

    /// Holder and range of the block or slice that contains the port.
    fn range_of(&self, index: AddressIndex, port: u16) -> Option<((RealmId, Ipv4Addr), SubscriberPorts)> {
        let shared = &self.shared;
        if let Some(lease) = shared.lease_of(index, port) {
            let holder = (lease.holder.realm, Ipv4Addr::from(lease.holder.address));
            return Some((holder, convert::block(shared, &lease)));
        }
        let Some(Owner::Subscriber(inside)) = shared.slice_owner(index, port) else { return None };
        let pool = shared.pool_of(index);
        // A deterministic pool serves one VRF.
        let realms = shared.settings().pools.get(pool.index()).and_then(|pool| pool.realms.first());
        let realm = realms.copied().unwrap_or_default();
        // The formula also counts subscribers that another pool serves by a longer prefix.
        if shared.pool_for(realm, inside) != Some(pool) {
            return None;
        }
        let slice = *shared.subscriber_ports(pool, realm, inside, None).first()?;
        Some(((realm, inside), convert::subscriber_ports(&slice)))
    }

    /// For an unused port, by its block or slice.
    fn holder_of_range(&self, index: AddressIndex, port: u16) -> Result<Option<FindAnswer>, Fault> {
        let Some(((realm, inside), range)) = self.range_of(index, port) else { return Ok(None) };
        let host = self.prefix_of(inside)?;
        let who = named(inside, host.as_ref());
        let SubscriberPorts { kind, external_address, first_port, last_port, .. } = &range;
        let detail = format!(
            "subscriber {who} has the {kind} {first_port}-{last_port} of {external_address}; no mapping uses port {port} now"
        );
        Ok(Some(FindAnswer {
            holder: (!HostNumber::from(inside).is_ipv6()).then_some(inside),
            host,
            realm: Some(realm.0),
            vrf: Some(self.vrf(realm)),
            external_address: Some(*external_address),
            pool: Some(convert::pool_name(&self.shared, self.shared.pool_of(index))),
            subscriber_ports: vec![range],
            ..self.asked.nobody(Place::External, detail)
        }))
    }

    /// A free port in a block that cannot be leased.
    fn torn_block(&self, index: AddressIndex, port: u16) -> Option<FindAnswer> {
        let block = self.shared.torn_block(index, port)?;
        let (first, last, address) = (block.first, block.last, self.shared.address(index));
        let why = match (block.shared, block.others) {
            (count, 0) => format!("is reserved for flows that share ports ({count} now)"),
            (0, count) => format!("cannot be leased while {count} of its ports are in use one by one or held down"),
            (count, others) => {
                format!(
                    "is reserved for flows that share ports ({count} now), besides {others} ports in use one by one or held down"
                )
            }
        };
        let detail =
            format!("no subscriber has the block {first}-{last} of {address}, which {why}; port {port} is not in use");
        Some(FindAnswer {
            external_address: Some(address),
            pool: Some(convert::pool_name(&self.shared, self.shared.pool_of(index))),
            ..self.asked.nobody(Place::External, detail)
        })
    }

    /// The configured owner of an unused endpoint; without a port, of the whole address.
    pub(super) fn static_mappings_of_external(&self) -> Vec<FindAnswer> {
        let external = Endpoint::new(self.asked.address, self.asked.port.unwrap_or(0));
        let known = self.asked.protocols().filter_map(|protocol| self.shared.static_of_external(external, protocol));
        let known = known.filter(|found| self.asked.port.is_some() || found.one_to_one);
        let most = if self.asked.port.is_some() { usize::MAX } else { 1 };
        known.take(most).map(|found| self.by_static(Place::External, &found)).collect()
    }
}
