//! Copies of the state, one limited page at a time.
//!
//! A cursor is a record number, so a mapping that exists during the whole walk is shown exactly
//! once.

use crate::steps::view::View;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use crate::policy::refused::RefusedSubscribers;
use crate::rows::ExpectationView;
use crate::rows::FLOW_CURSORS;
use crate::rows::Filter;
use crate::rows::GatewayNow;
use crate::rows::GrantView;
use crate::rows::Guarantee;
use crate::rows::HostView;
use crate::rows::MappingView;
use crate::rows::Query;
use crate::rows::SessionView;
use crate::rows::SubscriberView;
use crate::shard::commit::port_of_ended::UNPAIRED;
use crate::state::grant::Origin;
use crate::state::host::Way;
use crate::state::mapping::Mapping;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::state::tcp::state_now;
use crate::state::timers::Timers;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::HOSTS_FIRST;
use crate::types::HostNumber;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::Side;

const EXTRA_CURSOR: u32 = FLOW_CURSORS.end;
const FLOW_CURSOR: u32 = FLOW_CURSORS.start;
const _: () = assert!(MappingIndex::COUNT_MAX < FLOW_CURSOR as usize, "cursors of mappings come before those of flows");
/// From here on, refused senders without state.
const REFUSED_CURSOR: u32 = 1 << 31;
const EXTRA_LOOKED_AT: u32 = 16;

impl View<'_> {
    /// The host or prefix of a number; `None` for an IPv4 address.
    pub fn host(&self, number: HostNumber) -> Option<HostView> {
        let host = self.state.subscribers.hosts.get(number)?;
        let is_softwire = !host.is_subscriber() && matches!(host.way(), Way::Softwire(_));
        Some(HostView {
            address: Ipv6Addr::from_bits(host.address()),
            prefix_length: if host.is_subscriber() { self.snapshot.transition.prefix_length } else { 128 },
            inner: is_softwire.then(|| Ipv4Addr::from_bits(host.inner())),
            is_softwire,
        })
    }

    /// Adds the live mappings that match to the page of `query`.
    pub fn mappings_page(&self, now: Instant, query: &mut Query<MappingView>) {
        let end = self.state.mappings.walk_end();
        query.fill(|index, filter| {
            if *index >= end {
                return None;
            }
            let mapping = self.state.mappings.get(*index);
            let is_live = mapping.is_in_use() && self.state.is_alive(*index, now);
            let view = is_live.then(|| self.mapping_view(*index, now));
            Some(view.filter(|view| matches_mapping(filter, mapping, view.pool)))
        });
        query.next = query.next.filter(|index| *index < end);
    }

    /// As [`View::mappings_page`], for grants.
    pub fn grants_page(&self, now: Instant, query: &mut Query<GrantView>) {
        let end = self.state.grants.walk_end();
        query.fill(|index, filter| {
            if *index >= end {
                return None;
            }
            let view = self.grant_view(*index, now).filter(|view| !view.origin.is_alg());
            Some(view.filter(|view| matches_grant(filter, view)))
        });
        query.next = query.next.filter(|index| *index < end);
    }

    /// As [`View::mappings_page`], for expectations of gateways.
    pub fn expectations_page(&self, now: Instant, query: &mut Query<ExpectationView>) {
        let end = self.state.grants.walk_end();
        query.fill(|index, filter| {
            if *index >= end {
                return None;
            }
            let view = self.grant_view(*index, now).filter(|view| view.origin.is_alg());
            Some(view.filter(|view| matches_grant(filter, view)).map(ExpectationView))
        });
        query.next = query.next.filter(|index| *index < end);
    }

    /// By gateway: control sessions that it reads, and its expectations.
    pub fn gateways_now(&self) -> [GatewayNow; alg::ALGS.len()] {
        core::array::from_fn(|place| {
            let id = alg::AlgId(place as u8);
            let sessions = self.state.control_sessions.as_ref().map_or(0, |store| store.count_of(id));
            let expectations = self.state.grants.count_of_origin(Origin::Alg(id));
            GatewayNow { sessions, expectations }
        })
    }

    fn grant_view(&self, index: u32, now: Instant) -> Option<GrantView> {
        let grant = self.state.grants.get(index);
        if !grant.is_in_use() || (now >= grant.expires() && !grant.is_used()) {
            return None;
        }
        let key = grant.key();
        let client = Endpoint::new(grant.requester.address.into(), grant.requester.port);
        let address = self.snapshot.address_index(grant.external().address);
        // A registration does not end when its port is used.
        let is_used_registration =
            grant.is_registration() && grant.mapping != 0 && self.has_real_session(now, grant.mapping);
        Some(GrantView {
            host: self.host(key.address),
            protocol: key.protocol,
            realm: key.realm,
            internal: grant.internal(),
            external: grant.external(),
            pool: address.map_or(PoolId::NONE, |address| self.snapshot.pool_of(address)),
            worker: self.worker,
            origin: grant.origin(),
            kind: grant.kind(),
            remotes: grant.remotes,
            client,
            age: age(grant.created_s(), now),
            expires_in: grant.expires().saturating_since(now),
            is_held_down: grant.is_held_down(),
            is_used: grant.is_used() || is_used_registration,
        })
    }

    /// As [`View::mappings_page`], for sessions.
    pub fn sessions_page(&self, now: Instant, query: &mut Query<SessionView>) {
        query.fill(|cursor, filter| {
            if *cursor < FLOW_CURSOR && *cursor >= self.state.mappings.walk_end() {
                *cursor = FLOW_CURSOR | 1;
            }
            if (FLOW_CURSOR..EXTRA_CURSOR).contains(cursor) {
                let slot = *cursor & !FLOW_CURSOR;
                if slot < self.state.flows.walk_end() {
                    let view = self.flow_view(slot, now);
                    return Some(view.filter(|view| matches_flow(filter, view, self.pool_of(view.external.address))));
                }
                *cursor = EXTRA_CURSOR | 1;
            }
            let is_extra = *cursor & EXTRA_CURSOR != 0;
            let slot = *cursor & !EXTRA_CURSOR;
            if is_extra && slot >= self.state.sessions.walk_end() {
                return None;
            }
            let found = if is_extra { self.extra_session_view(slot, now) } else { self.inline_session_view(slot, now) };
            let found = found.filter(|(view, index)| {
                matches_session(filter, view)
                    && matches_mapping(filter, self.state.mappings.get(*index), self.pool_id_of_mapping(*index))
            });
            Some(found.map(|(view, _)| view))
        });
    }

    /// As [`View::mappings_page`], for subscribers; only `internal`, `external`, `pool` and `realm`
    /// apply. Refused senders without state come last.
    pub fn subscribers_page(&self, now: Instant, query: &mut Query<SubscriberView>) {
        query.fill(|cursor, filter| {
            if *cursor < REFUSED_CURSOR && *cursor >= self.state.subscribers.walk_end() {
                *cursor = REFUSED_CURSOR;
            }
            if *cursor >= REFUSED_CURSOR + RefusedSubscribers::PLACES {
                return None;
            }
            let view = if *cursor < REFUSED_CURSOR {
                self.subscriber_view(*cursor, now)
            } else {
                self.refused_view(*cursor - REFUSED_CURSOR, now)
            };
            Some(view.filter(|view| matches_subscriber(filter, view)))
        });
    }

    fn subscriber_view(&self, slot: u32, now: Instant) -> Option<SubscriberView> {
        let subscriber = self.state.subscribers.get(slot);
        if !subscriber.is_in_use() {
            return None;
        }
        let paired = AddressIndex(subscriber.paired);
        // Includes refusals while it had no record.
        let who = self.lasting_address(subscriber.address);
        let mut refused = self.policy.refused_subscribers.refused(now, subscriber.realm(), who);
        for (sum, more) in refused.iter_mut().zip(self.state.subscribers.account(slot).refused) {
            *sum = sum.saturating_add(more);
        }
        let own_pool = self.pool_of_subscriber(slot).or_else(|| self.pool_in_use(slot)).unwrap_or(PoolId::NONE);
        // A rule, or a penalty that has ended, may have chosen this address.
        let paired = Some(paired).filter(|paired| *paired != UNPAIRED && self.snapshot.slot(*paired).is_some());
        let pool = paired.map_or(own_pool, |paired| self.snapshot.pool_of(paired));
        let has_any = subscriber.mappings_total() > 0 || subscriber.flows > 0;
        // A place stays the same under all settings, but its pool may change.
        let elsewhere = self.state.subscribers.elsewhere(slot).filter(|_| has_any);
        let elsewhere = elsewhere.filter(|address| self.snapshot.slot(*address).is_some());
        let elsewhere = elsewhere.filter(|address| self.snapshot.pool_of(*address) != pool);
        Some(SubscriberView {
            host: self.host(subscriber.address),
            address: subscriber.address.into(),
            realm: subscriber.realm(),
            pool,
            own_pool,
            elsewhere: elsewhere.map(|address| self.snapshot.address(address)),
            pool_elsewhere: elsewhere.map(|address| self.snapshot.pool_of(address)),
            external_address: paired.map(|paired| self.snapshot.address(paired)),
            worker: self.worker,
            mappings: subscriber.mappings,
            shared_ports: self.state.subscribers.shared_ports(slot),
            class: self.class_now(slot),
            sessions: subscriber.sessions(),
            memory_bytes: subscriber.memory(),
            mappings_created: self.state.subscribers.mappings_created(slot),
            addresses_paired: self.state.subscribers.addresses_paired(slot),
            refused,
            guarantee: self.guarantee_of(slot),
            is_offender: subscriber.is_offender(),
            is_refused_only: false,
        })
    }

    fn refused_view(&self, place: u32, now: Instant) -> Option<SubscriberView> {
        let entry = self.policy.refused_subscribers.at(place, now)?;
        let transition = &self.snapshot.transition;
        let (address, prefix) = match u32::try_from(entry.address) {
            Ok(address) => (Some(HostNumber(address)), None),
            Err(_) => {
                let number = self.state.subscribers.hosts.find_subscriber(entry.address, entry.realm);
                (number, Some(entry.address))
            }
        };
        if address.is_some_and(|address| self.state.subscribers.find(entry.realm, address).is_some()) {
            return None;
        }
        // All hosts of a realm have one pool, whatever their numbers.
        let served = address.unwrap_or(HostNumber(HOSTS_FIRST));
        let ruled = prefix.map_or(served.0, |prefix| transition.stand_ins.of(prefix));
        let class = self.snapshot.classes.of(entry.realm, ruled);
        let pool = self.snapshot.pool_for(entry.realm, served.into())?;
        let address = address.map_or(Ipv4Addr::UNSPECIFIED, Ipv4Addr::from);
        Some(SubscriberView {
            host: prefix.map(|prefix| HostView {
                address: Ipv6Addr::from_bits(prefix),
                prefix_length: transition.prefix_length,
                inner: None,
                is_softwire: false,
            }),
            address,
            realm: entry.realm,
            pool,
            own_pool: pool,
            external_address: None,
            elsewhere: None,
            pool_elsewhere: None,
            worker: self.worker,
            mappings: [0; Protocol::COUNT],
            shared_ports: [0; Protocol::COUNT],
            class,
            sessions: 0,
            memory_bytes: 0,
            mappings_created: 0,
            addresses_paired: 0,
            refused: entry.refused,
            guarantee: Guarantee::default(),
            is_offender: false,
            is_refused_only: true,
        })
    }

    /// The live mapping with this external endpoint, if this worker has it.
    pub fn mapping_by_external(&self, now: Instant, external: Endpoint, protocol: Protocol) -> Option<MappingView> {
        let address = self.snapshot.address_index(external.address)?;
        let (worker, index) = self.snapshot.owner(address, protocol, external.port)?;
        (worker == self.worker && self.state.is_mapped(index, now)).then(|| self.mapping_view(index.0, now))
    }

    fn pool_id_of_mapping(&self, index: u32) -> PoolId {
        self.pool_of(Ipv4Addr::from_bits(self.state.mappings.get(index).external_address))
    }

    fn pool_of(&self, external: Ipv4Addr) -> PoolId {
        self.snapshot.address_index(external).map(|address| self.snapshot.pool_of(address)).unwrap_or_default()
    }

    fn flow_view(&self, index: u32, now: Instant) -> Option<SessionView> {
        let flow = self.state.flows.get(index);
        if !flow.is_alive(now) {
            return None;
        }
        let protocol = flow.protocol();
        let (state, expires) = (flow.state(), flow.expires());
        let ends = self.flow_granted_until(index).map_or(expires, |granted| granted.min(expires));
        Some(SessionView {
            host: self.host(flow.internal().0),
            protocol,
            realm: flow.realm(),
            internal: flow.internal().into(),
            external: flow.external().into(),
            remote: flow.remote_inside().into(),
            target: flow.is_twice().then(|| flow.remote_outside().into()),
            shared: true,
            worker: self.worker,
            opened_from: flow.opened_from(),
            state: (protocol == Protocol::Tcp)
                .then(|| state_now(state, expires, now, &self.snapshot.settings().timeouts)),
            hairpin: flow.is_hairpin(),
            age: age(flow.created_s(), now),
            idle: self.session_idle(0, SessionRef::Flow(index), state, expires, now),
            expires_in: ends.saturating_since(now),
        })
    }

    pub(in crate::shard) fn mapping_view(&self, index: u32, now: Instant) -> MappingView {
        let mapping = self.state.mappings.get(index);
        let key = mapping.key();
        let (origin, holds) = self.grants_of(index, now);
        // The end of a mapping that is kept on request does not show its last use.
        let most = if holds > 0 { age(mapping.created_s(), now) } else { Duration::from_micros(u64::MAX) };
        MappingView {
            host: self.host(key.address),
            protocol: key.protocol,
            realm: key.realm,
            internal: mapping.internal(),
            external: mapping.external(),
            pool: self.pool_id_of_mapping(index),
            worker: self.worker,
            age: age(mapping.created_s(), now),
            idle: self.mapping_idle(index, now).min(most),
            expires_in: self.end_of(index, self.mapping_ends(index)).saturating_since(now),
            sessions: u32::from(mapping.extra_count()) + u32::from(mapping.has_live_session(now)) - holds,
            origin,
        }
    }

    /// What asked for the mapping, and how many further sessions are holds.
    fn grants_of(&self, index: u32, now: Instant) -> (Option<Origin>, u32) {
        let (mapping, grants) = (self.state.mappings.get(index), &self.state.grants);
        if grants.is_empty() {
            return (None, 0);
        }
        let key = mapping.key();
        let of_owner = self.state.grants_beside(key.realm, key.address).map(|grant| grants.get(grant));
        let of_mapping = of_owner.filter(|grant| grant.mapping == index && (grant.hold != 0 || grant.is_used()));
        of_mapping.fold((None, 0), |(origin, holds), grant| {
            let names = grant.is_alive(now) || grant.is_used();
            (origin.or_else(|| names.then(|| grant.origin())), holds + u32::from(grant.hold != 0))
        })
    }

    /// Timers differ between sessions, so the mapping's end does not show it. Examines as many
    /// further sessions as a page can afford.
    fn mapping_idle(&self, index: u32, now: Instant) -> Duration {
        let mapping = self.state.mappings.get(index);
        let protocol = mapping.protocol();
        let of = |session, state, expires| self.session_idle(index, session, state, expires, now);
        let inline = || of(SessionRef::Inline, mapping.state(), mapping.session_expires());
        let mut shortest = mapping.has_live_session(now).then(inline);
        if protocol != Protocol::Tcp {
            let lifetime = |timers: &Timers| timers.lifetime(protocol, TcpState::Established, None);
            let own = self.idle_of(now, mapping.expires(), lifetime);
            shortest = Some(shortest.map_or(own, |known| known.min(own)));
        }
        let mut slot = mapping.extra_head;
        for _ in 0..u32::from(mapping.extra_count()).min(EXTRA_LOOKED_AT) {
            let session = self.state.sessions.get(slot);
            if session.is_alive(now) && !session.is_hold() {
                let found = of(SessionRef::Extra(slot), session.state(), session.expires());
                shortest = Some(shortest.map_or(found, |known| known.min(found)));
            }
            slot = session.next;
        }
        shortest.unwrap_or(age(mapping.created_s(), now))
    }

    /// Earlier than the record's end if a session ended early, as the hold of a deleted grant. With
    /// many sessions, the record's end.
    fn mapping_ends(&self, index: u32) -> Instant {
        let mapping = self.state.mappings.get(index);
        if !mapping.expiry_is_bound() || u32::from(mapping.extra_count()) > EXTRA_LOOKED_AT {
            return mapping.expires();
        }
        let mut last = if mapping.has_session() { mapping.session_expires() } else { Instant::ORIGIN };
        let mut slot = mapping.extra_head;
        while slot != 0 {
            let session = self.state.sessions.get(slot);
            last = last.max(session.expires());
            slot = session.next;
        }
        last.min(mapping.expires())
    }

    fn session_idle(
        &self,
        index: u32,
        session: SessionRef,
        state: TcpState,
        expires: Instant,
        now: Instant,
    ) -> Duration {
        self.idle_of(now, expires, |timers| self.lifetime_by(timers, index, session, state))
    }

    fn inline_session_view(&self, index: u32, now: Instant) -> Option<(SessionView, u32)> {
        let mapping = self.state.mappings.get(index);
        if !mapping.is_in_use() || !mapping.has_live_session(now) {
            return None;
        }
        let remote = Endpoint::new(Ipv4Addr::from_bits(mapping.remote_address()), mapping.remote_port());
        let expires = mapping.session_expires();
        let common = (mapping.session_opened_from(), mapping.session_is_hairpin(), mapping.created_s());
        let session = (SessionRef::Inline, mapping.state());
        Some((self.session_view(index, remote, session, expires, common, now), index))
    }

    fn extra_session_view(&self, slot: u32, now: Instant) -> Option<(SessionView, u32)> {
        let session = self.state.sessions.get(slot);
        if session.is_hold() || !session.is_alive(now) || !self.state.mappings.get(session.mapping).is_in_use() {
            return None;
        }
        let remote = Endpoint::new(Ipv4Addr::from_bits(session.remote_address), session.remote_port);
        let common = (session.opened_from(), session.is_hairpin(), session.created_s());
        let state = (SessionRef::Extra(slot), session.state());
        let view = self.session_view(session.mapping, remote, state, session.expires(), common, now);
        Some((view, session.mapping))
    }

    fn session_view(
        &self,
        index: u32,
        remote: Endpoint,
        (session, state): (SessionRef, TcpState),
        expires: Instant,
        (opened_from, hairpin, created_s): (Side, bool, u32),
        now: Instant,
    ) -> SessionView {
        let mapping = self.state.mappings.get(index);
        let key = mapping.key();
        let timeouts = &self.snapshot.settings().timeouts;
        SessionView {
            host: self.host(key.address),
            protocol: key.protocol,
            realm: key.realm,
            internal: mapping.internal(),
            external: mapping.external(),
            remote,
            target: None,
            shared: false,
            worker: self.worker,
            opened_from,
            state: (key.protocol == Protocol::Tcp).then(|| state_now(state, expires, now, timeouts)),
            hairpin,
            age: age(created_s, now),
            idle: self.session_idle(index, session, state, expires, now),
            expires_in: self.end_of(index, expires).saturating_since(now),
        }
    }

    fn end_of(&self, index: u32, expires: Instant) -> Instant {
        self.granted_until(index).map_or(expires, |granted| granted.min(expires))
    }
}

fn age(created_s: u32, now: Instant) -> Duration {
    Duration::from_secs((now.as_micros() / 1_000_000).saturating_sub(u64::from(created_s)))
}

fn matches_mapping(filter: &Filter, mapping: &Mapping, pool: PoolId) -> bool {
    let (internal, external) = (mapping.internal(), mapping.external());
    filter.protocol.is_none_or(|protocol| protocol == mapping.protocol())
        && filter.internal.is_none_or(|prefix| prefix.contains(internal.address))
        && filter.internal_port.is_none_or(|port| port == internal.port)
        && filter.external.is_none_or(|prefix| prefix.contains(external.address))
        && filter.external_port.is_none_or(|port| port == external.port)
        && filter.pool.is_none_or(|wanted| wanted == pool)
        && filter.realm.is_none_or(|wanted| wanted == mapping.realm())
}

fn matches_grant(filter: &Filter, view: &GrantView) -> bool {
    filter.protocol.is_none_or(|protocol| protocol == view.protocol)
        && filter.internal.is_none_or(|prefix| prefix.contains(view.internal.address))
        && filter.internal_port.is_none_or(|port| port == view.internal.port)
        && filter.external.is_none_or(|prefix| prefix.contains(view.external.address))
        && filter.external_port.is_none_or(|port| port == view.external.port)
        && filter.pool.is_none_or(|wanted| wanted == view.pool)
        && filter.realm.is_none_or(|wanted| wanted == view.realm)
}

fn matches_subscriber(filter: &Filter, view: &SubscriberView) -> bool {
    let is_paired_in = |prefix: Prefix| view.external_address.is_some_and(|address| prefix.contains(address));
    filter.internal.is_none_or(|prefix| prefix.contains(view.address) && !view.address.is_unspecified())
        && filter.external.is_none_or(is_paired_in)
        && filter.pool.is_none_or(|pool| pool == view.pool)
        && filter.realm.is_none_or(|realm| realm == view.realm)
}

fn matches_flow(filter: &Filter, view: &SessionView, pool: PoolId) -> bool {
    filter.protocol.is_none_or(|protocol| protocol == view.protocol)
        && filter.internal.is_none_or(|prefix| prefix.contains(view.internal.address))
        && filter.internal_port.is_none_or(|port| port == view.internal.port)
        && filter.external.is_none_or(|prefix| prefix.contains(view.external.address))
        && filter.external_port.is_none_or(|port| port == view.external.port)
        && filter.pool.is_none_or(|wanted| wanted == pool)
        && matches_session(filter, view)
}

fn matches_session(filter: &Filter, view: &SessionView) -> bool {
    filter.remote.is_none_or(|prefix| prefix.contains(view.remote.address))
        && filter.remote_port.is_none_or(|port| port == view.remote.port)
        && filter.state.is_none_or(|state| view.state == Some(state))
}
