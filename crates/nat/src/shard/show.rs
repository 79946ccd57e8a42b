//! Copies of the state for people and programs, a bounded page at a time.
//!
//! A cursor is a record number; the walk visits records in order, so that each mapping that exists during
//! the whole walk is shown exactly once, however much comes and goes meanwhile.

use core::net::Ipv4Addr;

use super::Shard;
use super::port_choice::UNPAIRED;
use super::state::state_now;
use crate::flow::endpoint;
use crate::mapping::Mapping;
use crate::mapping::SessionRef;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::timers::Timers;
use crate::turned_away::TurnedAway;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::Side;
use crate::view::FLOW_CURSORS;
use crate::view::Filter;
use crate::view::Guarantee;
use crate::view::MappingView;
use crate::view::SessionView;
use crate::view::SubscriberView;

/// Session cursors from here on walk the table of further sessions.
const EXTRA_CURSOR: u32 = FLOW_CURSORS.end;
/// And between mappings and those, flows from here on.
const FLOW_CURSOR: u32 = FLOW_CURSORS.start;
const _: () = assert!(MappingIndex::COUNT_MAX < FLOW_CURSOR as usize, "cursors of mappings come before those of flows");
/// Cursors of subscribers from here on walk those that were refused and have nothing.
const TURNED_AWAY_CURSOR: u32 = 1 << 31;
/// Further sessions of a mapping that are looked at to tell how long it has been idle.
const EXTRA_LOOKED_AT: u32 = 16;

impl Shard {
    /// Appends up to `limit` live mappings that match `filter` to `out`, visiting at most `scan_max` records
    /// from `cursor` on (0 to begin). Returns the cursor to go on with; None at the end.
    pub fn mappings_page(
        &self,
        now: Instant,
        cursor: u32,
        limit: usize,
        scan_max: usize,
        filter: &Filter,
        out: &mut Vec<MappingView>,
    ) -> Option<u32> {
        let mut found = 0;
        let mut index = cursor.max(1);
        for _ in 0..scan_max {
            if index >= self.mappings.walk_end() {
                return None;
            }
            let mapping = self.mappings.get(index);
            if mapping.is_in_use() && self.is_alive(index, now) {
                let view = self.mapping_view(index, now);
                if matches_mapping(filter, mapping, view.pool) {
                    if found == limit {
                        return Some(index);
                    }
                    out.push(view);
                    found += 1;
                }
            }
            index += 1;
        }
        (index < self.mappings.walk_end()).then_some(index)
    }

    /// As [`Shard::mappings_page`], for sessions.
    pub fn sessions_page(
        &self,
        now: Instant,
        cursor: u32,
        limit: usize,
        scan_max: usize,
        filter: &Filter,
        out: &mut Vec<SessionView>,
    ) -> Option<u32> {
        let mut found = 0;
        let mut cursor = cursor.max(1);
        for _ in 0..scan_max {
            if cursor < FLOW_CURSOR && cursor >= self.mappings.walk_end() {
                cursor = FLOW_CURSOR | 1;
            }
            if (FLOW_CURSOR..EXTRA_CURSOR).contains(&cursor) {
                let slot = cursor & !FLOW_CURSOR;
                if slot < self.flows.walk_end() {
                    if let Some(view) = self.flow_view(slot, now)
                        && matches_flow(filter, &view, self.pool_of(view.external.address))
                    {
                        if found == limit {
                            return Some(cursor);
                        }
                        out.push(view);
                        found += 1;
                    }
                    cursor += 1;
                    continue;
                }
                cursor = EXTRA_CURSOR | 1;
            }
            let is_extra = cursor & EXTRA_CURSOR != 0;
            let slot = cursor & !EXTRA_CURSOR;
            if is_extra && slot >= self.sessions.walk_end() {
                return None;
            }
            let view = if is_extra { self.extra_session_view(slot, now) } else { self.inline_session_view(slot, now) };
            if let Some((view, index)) = view
                && matches_session(filter, &view)
                && matches_mapping(filter, self.mappings.get(index), self.pool_of_mapping(index))
            {
                if found == limit {
                    return Some(cursor);
                }
                out.push(view);
                found += 1;
            }
            cursor += 1;
        }
        Some(cursor)
    }

    /// As [`Shard::mappings_page`], for subscribers; of `filter` only `internal`, `external`, `pool` and `realm` apply. After those that have
    /// something come those that were refused and have nothing.
    pub fn subscribers_page(
        &self,
        now: Instant,
        cursor: u32,
        limit: usize,
        scan_max: usize,
        filter: &Filter,
        out: &mut Vec<SubscriberView>,
    ) -> Option<u32> {
        let mut found = 0;
        let mut cursor = cursor.max(1);
        for _ in 0..scan_max {
            if cursor < TURNED_AWAY_CURSOR && cursor >= self.subscribers.walk_end() {
                cursor = TURNED_AWAY_CURSOR;
            }
            if cursor >= TURNED_AWAY_CURSOR + TurnedAway::PLACES {
                return None;
            }
            let view = if cursor < TURNED_AWAY_CURSOR {
                self.subscriber_view(cursor, now)
            } else {
                self.turned_away_view(cursor - TURNED_AWAY_CURSOR, now)
            };
            if let Some(view) = view.filter(|view| matches_subscriber(filter, view)) {
                if found == limit {
                    return Some(cursor);
                }
                out.push(view);
                found += 1;
            }
            cursor += 1;
        }
        Some(cursor)
    }

    fn subscriber_view(&self, slot: u32, now: Instant) -> Option<SubscriberView> {
        let subscriber = self.subscribers.get(slot);
        if !subscriber.is_in_use() {
            return None;
        }
        let paired = AddressIndex(subscriber.paired);
        // What was refused to it before it was a subscriber, among others.
        let mut refused = self.turned_away.refused(now, subscriber.realm(), subscriber.address);
        for (sum, more) in refused.iter_mut().zip(self.subscribers.account(slot).refused) {
            *sum = sum.saturating_add(more);
        }
        let own_pool = self.pool_of_subscriber(slot).or_else(|| self.pool_in_use(slot)).unwrap_or(PoolId::NONE);
        // That of the address he is told to have, which a rule may have chosen, or a penalty that is over or a later one will change.
        let paired = Some(paired).filter(|paired| *paired != UNPAIRED && self.shared.slot(*paired).is_some());
        let pool = paired.map_or(own_pool, |paired| self.shared.pool_of(paired));
        let has_any = subscriber.mappings_total() > 0 || subscriber.flows > 0;
        // Places are the same under all settings; what is at one of them may have become another pool's.
        let elsewhere = subscriber.elsewhere().filter(|address| has_any && self.shared.slot(*address).is_some());
        let elsewhere = elsewhere.filter(|address| self.shared.pool_of(*address) != pool);
        Some(SubscriberView {
            address: Ipv4Addr::from_bits(subscriber.address),
            realm: subscriber.realm(),
            pool,
            own_pool,
            elsewhere: elsewhere.map(|address| self.shared.address(address)),
            pool_elsewhere: elsewhere.map(|address| self.shared.pool_of(address)),
            external_address: paired.map(|paired| self.shared.address(paired)),
            worker: self.worker,
            mappings: subscriber.mappings,
            shared_ports: self.subscribers.shared_ports(slot),
            class: self.class_now(slot),
            sessions: subscriber.sessions(),
            memory_bytes: subscriber.memory(),
            refused,
            guarantee: self.guarantee_of(slot),
            is_offender: subscriber.is_offender(),
            is_turned_away: false,
        })
    }

    /// None also when the subscriber has got something since, or no pool serves it any more.
    fn turned_away_view(&self, place: u32, now: Instant) -> Option<SubscriberView> {
        let entry = self.turned_away.at(place, now)?;
        if self.subscribers.find(entry.realm, entry.address).is_some() {
            return None;
        }
        let address = Ipv4Addr::from_bits(entry.address);
        let pool = self.shared.pool_for(entry.realm, address)?;
        Some(SubscriberView {
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
            class: self.shared.classes.of(entry.realm, entry.address),
            sessions: 0,
            memory_bytes: 0,
            refused: entry.refused,
            guarantee: Guarantee::default(),
            is_offender: false,
            is_turned_away: true,
        })
    }

    /// The live mapping with this external endpoint, if it is this shard's.
    pub fn mapping_by_external(&self, now: Instant, external: Endpoint, protocol: Protocol) -> Option<MappingView> {
        let address = self.shared.address_index(external.address)?;
        let (worker, index) = self.shared.owner(address, protocol, external.port)?;
        (worker == self.worker && self.is_mapped(index, now)).then(|| self.mapping_view(index.0, now))
    }

    fn pool_of_mapping(&self, index: u32) -> PoolId {
        self.pool_of(Ipv4Addr::from_bits(self.mappings.get(index).external_address))
    }

    fn pool_of(&self, external: Ipv4Addr) -> PoolId {
        self.shared.address_index(external).map(|address| self.shared.pool_of(address)).unwrap_or_default()
    }

    fn flow_view(&self, index: u32, now: Instant) -> Option<SessionView> {
        let flow = self.flows.get(index);
        if !flow.is_alive(now) {
            return None;
        }
        let protocol = flow.protocol();
        let (state, expires) = (flow.state(), flow.expires());
        let ends = self.flow_granted_until(index).map_or(expires, |granted| granted.min(expires));
        Some(SessionView {
            protocol,
            realm: flow.realm(),
            internal: endpoint(flow.internal()),
            external: endpoint(flow.external()),
            remote: endpoint(flow.near()),
            target: flow.is_twice().then(|| endpoint(flow.far())),
            shared: true,
            worker: self.worker,
            opened_from: flow.opened_from(),
            state: (protocol == Protocol::Tcp)
                .then(|| state_now(state, expires, now, &self.shared.settings().timeouts)),
            hairpin: flow.is_hairpin(),
            age: age(flow.created_s(), now),
            idle: self.session_idle(0, SessionRef::Flow(index), state, expires, now),
            expires_in: ends.saturating_since(now),
        })
    }

    pub(super) fn mapping_view(&self, index: u32, now: Instant) -> MappingView {
        let mapping = self.mappings.get(index);
        let key = mapping.key();
        MappingView {
            protocol: key.protocol,
            realm: key.realm,
            internal: mapping.internal(),
            external: mapping.external(),
            pool: self.pool_of_mapping(index),
            worker: self.worker,
            age: age(mapping.created_s(), now),
            idle: self.mapping_idle(index, now),
            expires_in: self.end_of(index, mapping.expires()).saturating_since(now),
            sessions: u32::from(mapping.extra_count()) + u32::from(mapping.has_live_session(now)),
        }
    }

    /// Since the last packet of any session. Sessions end after different times, so that the end of the mapping
    /// does not tell: the youngest further sessions are looked at, no more than a page can afford.
    fn mapping_idle(&self, index: u32, now: Instant) -> Duration {
        let mapping = self.mappings.get(index);
        let protocol = mapping.protocol();
        let of = |session, state, expires| self.session_idle(index, session, state, expires, now);
        let inline = || of(SessionRef::Inline, mapping.state(), mapping.session_expires());
        let mut shortest = mapping.has_live_session(now).then(inline);
        if protocol != Protocol::Tcp {
            // It may go on without a session.
            let lifetime = |timers: &Timers| timers.lifetime(protocol, TcpState::Established, None);
            let own = self.idle_of(now, mapping.expires(), lifetime);
            shortest = Some(shortest.map_or(own, |known| known.min(own)));
        }
        let mut slot = mapping.extra_head;
        for _ in 0..u32::from(mapping.extra_count()).min(EXTRA_LOOKED_AT) {
            let session = self.sessions.get(slot);
            if session.is_alive(now) {
                let found = of(SessionRef::Extra(slot), session.state(), session.expires());
                shortest = Some(shortest.map_or(found, |known| known.min(found)));
            }
            slot = session.next;
        }
        shortest.unwrap_or(age(mapping.created_s(), now))
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
        let mapping = self.mappings.get(index);
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
        let session = self.sessions.get(slot);
        if !session.is_alive(now) || !self.mappings.get(session.mapping).is_in_use() {
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
        let mapping = self.mappings.get(index);
        let key = mapping.key();
        let timeouts = &self.shared.settings().timeouts;
        SessionView {
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

    /// When something of a mapping ends: by its timer, or sooner where the time is over that is granted to the mapping.
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

fn matches_subscriber(filter: &Filter, view: &SubscriberView) -> bool {
    let is_paired_in = |prefix: Prefix| view.external_address.is_some_and(|address| prefix.contains(address));
    filter.internal.is_none_or(|prefix| prefix.contains(view.address))
        && filter.external.is_none_or(is_paired_in)
        && filter.pool.is_none_or(|pool| pool == view.pool)
        && filter.realm.is_none_or(|realm| realm == view.realm)
}

/// Both [`matches_mapping`] and [`matches_session`], of a flow.
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
