//! Events about mappings, sessions, blocks and refusals.

use crate::steps::view::View;
use core::net::Ipv4Addr;

use super::Ledger;
use super::commit::port_of_ended::UNPAIRED;
use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::event::Refusal;
use crate::event::UNKNOWN_HOST;
use crate::external::blocks::Block;
use crate::settings::Removed;
use crate::state::mapping::InternalKey;
use crate::steps::opening::NewMapping;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::verdict::Verdict;

const SESSIONS_LOOKED_AT_MAX: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Unmade<'k> {
    pub(super) key: &'k InternalKey,
    pub(super) verdict: Verdict,
    /// The pool of a rule or an existing mapping; None for the subscriber's own.
    pub(super) wanted: Option<PoolId>,
}

impl View<'_> {
    fn why_mapping_ends(&self, now: Instant, index: u32) -> Cause {
        let mapping = self.state.mappings.get(index);
        if self.is_overdue(index, now) && self.state.is_alive(index, now) {
            let ends = self.orphaned(index).and_then(|found| found.ends);
            if ends.is_some_and(|ends| ends <= now) {
                let is_at_once = self.snapshot.settings().reload.removed == Removed::End;
                return if is_at_once { Cause::Configuration } else { Cause::Drained };
            }
            return self.why_address_ends(mapping.external_address);
        }
        let is_closed = mapping.protocol() == Protocol::Tcp
            && !mapping.has_idled()
            && (!mapping.has_session() || mapping.state().is_over())
            && (mapping.has_session() || mapping.extra_count() > 0)
            && self.are_further_sessions_over(index);
        if is_closed { Cause::Closed } else { Cause::Idle }
    }

    /// True if all further sessions have ended; false also if there are too many to examine.
    fn are_further_sessions_over(&self, index: u32) -> bool {
        let mut slot = self.state.mappings.get(index).extra_head;
        for _ in 0..SESSIONS_LOOKED_AT_MAX {
            if slot == 0 {
                return true;
            }
            let session = self.state.sessions.get(slot);
            if !session.state().is_over() {
                return false;
            }
            slot = session.next;
        }
        false
    }

    fn why_address_ends(&self, address: u32) -> Cause {
        let closed = self.local.pool_address(address).and_then(|address| self.snapshot.closed(address));
        match closed {
            Some(closed) if closed.removed && closed.ends == Some(closed.since) => Cause::Configuration,
            _ => Cause::Drained,
        }
    }

    fn why_flow_ends(&self, now: Instant, index: u32) -> Cause {
        let flow = self.state.flows.get(index);
        let external = flow.external().address;
        if flow.is_alive(now) && self.is_flow_overdue(index, now) {
            let orphaned = self.orphaned_flow(index).and_then(|found| found.ends);
            if orphaned.is_some_and(|ends| ends <= now) && self.snapshot.settings().reload.removed == Removed::End {
                return Cause::Configuration;
            }
            return self.why_address_ends(external);
        }
        if flow.protocol() == Protocol::Tcp && flow.state().is_over() { Cause::Closed } else { Cause::Idle }
    }

    fn why_block_ends(&self, subscriber: u32, block: Block) -> Cause {
        let paired = AddressIndex(self.state.subscribers.get(subscriber).paired);
        if paired != UNPAIRED && paired != block.address() {
            Cause::Moved
        } else if self.snapshot.compiled_pool(block.address()).blocks.is_none() {
            Cause::Configuration
        } else {
            Cause::Idle
        }
    }

    fn is_identified(&self, index: u32) -> bool {
        let mapping = self.state.mappings.get(index);
        let (external, internal) = (mapping.external(), mapping.internal());
        let Some(address) = self.snapshot.address_index(external.address) else { return true };
        let realm = mapping.realm();
        let lease = self.snapshot.lease_of(address, external.port);
        lease.is_some_and(|lease| lease.holder == self.holder(realm, internal.address.into()))
            || self.snapshot.is_by_formula(address, external.port, realm, internal.address)
    }

    pub(super) fn event_of_flow(&self, kind: EventKind, now: Instant, index: u32) -> Event {
        let flow = self.state.flows.get(index);
        let (internal, external) = (flow.internal().into(), flow.external().into());
        let remote = Endpoint::from(flow.remote_outside());
        let opened = if flow.opened_from() == Side::Outside { Cause::Inbound } else { Cause::Outbound };
        let has_ended = kind == EventKind::FlowEnded;
        let held_s = ((now.as_micros() / 1_000_000) as u32).saturating_sub(flow.created_s());
        let event = Event::of_mapping(kind, now, flow.realm(), flow.protocol(), internal, external);
        Event {
            remote: remote.address,
            remote_port: remote.port,
            amount: if has_ended { held_s } else { 0 },
            ..event.because(if has_ended { self.why_flow_ends(now, index) } else { opened })
        }
    }

    #[inline]
    pub(super) fn event_of(&self, kind: EventKind, now: Instant, index: u32) -> Event {
        let mapping = self.state.mappings.get(index);
        let key = mapping.key();
        Event::of_mapping(kind, now, key.realm, key.protocol, mapping.internal(), mapping.external())
    }

    fn event_of_block(&self, kind: EventKind, now: Instant, subscriber: u32, block: Block) -> Event {
        let record = self.state.subscribers.get(subscriber);
        self.event_of_lease(kind, now, (record.realm(), record.address), block)
    }

    pub(super) fn event_of_lease(
        &self,
        kind: EventKind,
        now: Instant,
        holder: (RealmId, HostNumber),
        block: Block,
    ) -> Event {
        let (realm, subscriber) = holder;
        Event {
            subscriber: subscriber.into(),
            external: self.snapshot.address(block.address()),
            first_port: block.first_port(),
            last_port: block.last_port(),
            realm,
            pool: self.snapshot.name_of_pool(self.snapshot.pool_of(block.address())),
            ..Event::new(kind, now)
        }
    }
}

impl Ledger {
    /// Records an allocation or an end, after its host's name.
    #[inline(always)]
    pub(in crate::shard) fn record(&mut self, event: Event) {
        if HostNumber::from(event.subscriber).is_ipv6() {
            self.record_of_host(event);
        } else {
            self.events.record(event);
        }
    }

    #[cold]
    fn record_of_host(&mut self, event: Event) {
        if self.is_named(event.at, event.realm, event.subscriber, false) {
            self.events.record(event);
        } else {
            self.events.lose_event(event.kind);
        }
    }

    /// The address for events that are no allocation: [`UNKNOWN_HOST`] if the log does not know the
    /// host's name.
    #[inline]
    pub(in crate::shard) fn named(&mut self, now: Instant, realm: RealmId, subscriber: Ipv4Addr) -> Ipv4Addr {
        let is_known = !HostNumber::from(subscriber).is_ipv6() || self.is_named(now, realm, subscriber, true);
        if is_known { subscriber } else { UNKNOWN_HOST }
    }

    /// Records a host's name unless the log knows it. False if it still does not.
    #[cold]
    fn is_named(&mut self, now: Instant, realm: RealmId, number: Ipv4Addr, is_minor: bool) -> bool {
        if !self.events.is_on() {
            return true;
        }
        let hosts = &mut self.state.subscribers.hosts;
        if self.events.take_names_lost() {
            hosts.forget_names();
        }
        let Some(name) = hosts.unlogged_name(number.into()) else { return true };
        let is_named = self.events.record_name(name.event(now, realm, number), is_minor);
        if is_named {
            hosts.set_logged(number.into());
        }
        is_named
    }

    /// Refuses a mapping without room for its record: nothing is created without one
    /// ([`crate::event::BackPressure::Refuse`]).
    #[inline(always)]
    pub(super) fn admit_record(&mut self) -> Result<(), Verdict> {
        if self.events.may_allocate() { Ok(()) } else { Err(Verdict::LogFull) }
    }

    /// True if a mapping may end. Otherwise it is unusable, but keeps its port until its end can be
    /// recorded.
    #[inline]
    pub(super) fn may_end_mapping(&mut self) -> bool {
        self.events.may_end()
    }

    #[inline]
    pub(super) fn may_end(&mut self, index: u32) -> bool {
        !self.state.mappings.get(index).is_recorded() || self.events.may_end()
    }

    /// No event if a block or formula (RFC 7422 §3) identifies the subscriber. Uses what the caller
    /// has in registers: the mapping was only just written.
    #[inline(always)]
    pub(super) fn note_mapping_created(&mut self, now: Instant, index: u32, new: &NewMapping, external: Endpoint) {
        if !self.events.is_on() {
            return;
        }
        let is_static = self.view().is_static(index);
        if !is_static && !new.gives_single_ports && !self.shared.settings().events.block_mappings {
            return;
        }
        self.state.mappings.get_mut(index).set_recorded(is_static);
        let (kind, cause) = match is_static {
            true => (EventKind::StaticCreated, Cause::Configuration),
            false => (EventKind::MappingCreated, new.cause),
        };
        let InternalKey { realm, protocol, address, port } = new.key;
        let internal = Endpoint::new(address.into(), port);
        self.record(Event::of_mapping(kind, now, realm, protocol, internal, external).because(cause));
    }

    /// Withdraws the record of a mapping only its subscriber saw, if the exporter has not read it.
    /// Then its end needs no record either.
    pub(super) fn withdraw_mapping_created(&mut self, index: u32) {
        let mapping = self.state.mappings.get(index);
        if !self.events.is_on() || !mapping.is_recorded() {
            return;
        }
        let (protocol, external) = (mapping.protocol(), mapping.external());
        let is_meant = |event: &Event| {
            matches!(event.kind, EventKind::MappingCreated | EventKind::StaticCreated)
                && (event.protocol, event.external, event.first_port)
                    == (Some(protocol), external.address, external.port)
        };
        if self.events.withdraw(is_meant) {
            self.state.mappings.get_mut(index).clear_recorded();
        }
    }

    #[inline]
    pub(super) fn note_mapping_ended(&mut self, now: Instant, index: u32, cause: Option<Cause>) {
        // Always log the end of a mapping whose creation was logged, even if the settings changed.
        if self.events.is_on() && self.state.mappings.get(index).is_recorded() {
            let now_s = (now.as_micros() / 1_000_000) as u32;
            let held_s = now_s.saturating_sub(self.state.mappings.get(index).created_s());
            let kind = if self.state.mappings.get(index).is_recorded_static() {
                EventKind::StaticEnded
            } else {
                EventKind::MappingEnded
            };
            let event = self
                .view()
                .event_of(kind, now, index)
                .because(cause.unwrap_or_else(|| self.view().why_mapping_ends(now, index)));
            self.record(Event { amount: held_s, ..event });
        }
    }

    /// Records a mapping made elsewhere, or before a restart with other formulas, which give its
    /// port to another subscriber.
    pub(super) fn note_installed(&mut self, now: Instant, index: u32) {
        if self.events.is_on() && !self.note_if_unreported(now, index) {
            self.upkeep.unrecorded = Some(self.state.mappings.walk_end());
        }
    }

    /// Records mappings that a formula or block identified under earlier settings, and then that
    /// this is done: until then, the log cannot name the holder of a port. Stops when the ring is
    /// full.
    #[inline]
    pub(super) fn note_unreported(&mut self, now: Instant, visits: u32) {
        if let Some(below) = self.upkeep.unrecorded {
            self.note_next_unreported(now, below, visits);
        }
    }

    #[cold]
    fn note_next_unreported(&mut self, now: Instant, below: u32, visits: u32) {
        let stop = below.saturating_sub(visits);
        for index in (stop + 1..=below).rev() {
            if !self.note_if_unreported(now, index) {
                self.upkeep.unrecorded = Some(index);
                return;
            }
        }
        self.upkeep.unrecorded = Some(stop);
        if stop == 0 && self.events.has_room() {
            self.upkeep.unrecorded = None;
            let event = Event::new(EventKind::ConfigurationRecorded, now).because(Cause::Configuration);
            let workers = u16::try_from(self.shared.workers()).unwrap_or(u16::MAX);
            self.events.record(Event {
                amount: self.shared.generation(),
                first_port: workers,
                last_port: workers,
                ..event
            });
        }
    }

    /// False if the ring is full.
    #[cold]
    fn note_if_unreported(&mut self, now: Instant, index: u32) -> bool {
        if index >= self.state.mappings.walk_end() {
            return true;
        }
        let mapping = self.state.mappings.get(index);
        if mapping.is_in_use()
            && !mapping.is_recorded()
            && self.state.is_alive(index, now)
            && !self.view().is_identified(index)
        {
            if !self.events.may_allocate() {
                return false;
            }
            self.state.mappings.get_mut(index).set_recorded(false);
            let event = self.view().event_of(EventKind::MappingCreated, now, index).because(Cause::Configuration);
            let held_s =
                ((now.as_micros() / 1_000_000) as u32).saturating_sub(self.state.mappings.get(index).created_s());
            self.record(Event { amount: held_s, ..event });
        }
        true
    }

    /// The record has the remote endpoint, because subscribers share the external one (RFC 6888 §4
    /// REQ-12).
    pub(super) fn note_flow(&mut self, kind: EventKind, now: Instant, index: u32) {
        if self.events.is_on() {
            let event = self.view().event_of_flow(kind, now, index);
            self.record(event);
        }
    }

    /// There is no room for a fragment or a host. None if the subscriber is unknown.
    #[cold]
    pub(super) fn note_no_room(
        &mut self,
        now: Instant,
        (realm, subscriber): (RealmId, Option<Ipv4Addr>),
        verdict: Verdict,
    ) {
        if !self.events.is_on() {
            return;
        }
        let subscriber = subscriber.map_or(Ipv4Addr::UNSPECIFIED, |subscriber| self.named(now, realm, subscriber));
        let refusal = Refusal {
            kind: EventKind::Refused,
            cause: Cause::Verdict(verdict),
            realm,
            subscriber,
            external: Ipv4Addr::UNSPECIFIED,
            pool: PoolName::NONE,
            protocol: None,
        };
        self.events.refuse(refusal, now);
    }

    #[cold]
    pub(super) fn note_refusal(&mut self, now: Instant, unmade: Unmade<'_>) {
        if !self.events.is_on() {
            return;
        }
        let Unmade { key, verdict, .. } = unmade;
        let subscriber = Ipv4Addr::from(key.address);
        let known = self.state.subscribers.find(key.realm, key.address);
        if let Some(slot) = known {
            // New settings may have put a threshold below present usage.
            self.watch_subscriber(now, slot, key.protocol);
        }
        let Some(pool) = self.pool_of_unmade(unmade) else { return };
        let external =
            self.view().address_in(key, pool).map_or(Ipv4Addr::UNSPECIFIED, |address| self.shared.address(address));
        let subscriber = self.named(now, key.realm, subscriber);
        let refusal = Refusal {
            kind: EventKind::Refused,
            cause: Cause::Verdict(verdict),
            realm: key.realm,
            subscriber,
            external,
            pool: self.shared.name_of_pool(pool),
            protocol: Some(key.protocol),
        };
        self.events.refuse(refusal, now);
        // A subscriber waiting for its static port does not count as pool exhaustion.
        if verdict == Verdict::PortsExhausted && self.view().static_mapping_of(key).is_none() {
            let exhausted = Refusal {
                kind: EventKind::PoolExhausted,
                cause: Cause::None,
                realm: Default::default(),
                subscriber: Ipv4Addr::UNSPECIFIED,
                ..refusal
            };
            self.events.refuse(exhausted, now);
        }
    }

    #[cold]
    pub(super) fn note_block_leased(&mut self, now: Instant, subscriber: u32, block: Block) {
        if self.events.is_on() {
            let event =
                self.view().event_of_block(EventKind::BlockLeased, now, subscriber, block).because(Cause::Outbound);
            self.record(event);
        }
    }

    #[cold]
    pub(super) fn note_block_returned(&mut self, now: Instant, subscriber: u32, block: Block) {
        if self.events.is_on() {
            let since_s = self.shared.lease_of(block.address(), block.first_port()).map_or(0, |lease| lease.since_s);
            let held_s = ((now.as_micros() / 1_000_000) as u32).saturating_sub(since_s);
            let event = self.view().event_of_block(EventKind::BlockReturned, now, subscriber, block);
            let event = event.because(self.view().why_block_ends(subscriber, block));
            self.record(Event { amount: held_s, ..event });
        }
    }
}
