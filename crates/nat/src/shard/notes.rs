//! What is told of mappings that begin and end, and of those that could not be made.

use core::net::Ipv4Addr;

use super::Shard;
use super::port_choice::UNPAIRED;
use crate::blocks::Block;
use crate::blocks::Holder;
use crate::event::Cause;
use crate::event::Event;
use crate::event::EventKind;
use crate::event::Refusal;
use crate::flow::endpoint;
use crate::mapping::InternalKey;
use crate::settings::Removed;
use crate::shared::PoolFacts;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::verdict::Verdict;

/// Further sessions of a mapping that are asked why it ends.
const SESSIONS_LOOKED_AT_MAX: usize = 8;

/// What could not be made.
#[derive(Clone, Copy)]
pub(super) struct Unmade<'k> {
    /// The internal endpoint whose packet wanted it.
    pub(super) key: &'k InternalKey,
    /// How that packet ended.
    pub(super) verdict: Verdict,
    /// The pool a rule chose for it, or that of a mapping there is; None: the subscriber's own.
    pub(super) wanted: Option<PoolId>,
}

impl Shard {
    /// Whether something may be made that needs a record: none is made without ([`crate::event::BackPressure::Refuse`]).
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
    #[inline(always)]
    pub(super) fn admit_record(&mut self) -> Result<(), Verdict> {
        if self.events.may_allocate() { Ok(()) } else { Err(Verdict::LogFull) }
    }

    /// As [`Shard::admit_record`] for a mapping of a pool with these facts: where blocks are recorded a mapping needs no record.
    ///
    /// # Errors
    /// The verdict of the packet that wanted it.
    #[inline]
    pub(super) fn admit_mapping_record(&mut self, facts: &PoolFacts) -> Result<(), Verdict> {
        if self.shared.settings().events.block_mappings || facts.gives_single_ports() {
            return self.admit_record();
        }
        Ok(())
    }

    /// Whether a flow or block may end now, or a mapping whose beginning was recorded. Where not, it is out of date, so that
    /// nobody is answered by it, and keeps its port until its end can be recorded.
    #[inline]
    pub(super) fn may_end_mapping(&mut self) -> bool {
        self.events.may_end()
    }

    /// Whether this mapping may end now.
    #[inline]
    pub(super) fn may_end(&mut self, index: u32) -> bool {
        !self.mappings.get(index).is_recorded() || self.events.may_end()
    }

    /// A mapping was made, in a pool that gives single ports or not: where its block tells whose the port is, or a formula (RFC
    /// 7422 §3), it is no event, unless that is asked for.
    #[inline(always)]
    pub(super) fn note_mapping_created(&mut self, now: Instant, index: u32, gives_single_ports: bool) {
        if self.events.is_on() {
            self.record_mapping_created(now, index, gives_single_ports);
        }
    }

    fn record_mapping_created(&mut self, now: Instant, index: u32, gives_single_ports: bool) {
        let is_static = self.is_static(index);
        if is_static || gives_single_ports || self.shared.settings().events.block_mappings {
            self.mappings.get_mut(index).set_recorded(is_static);
            let (kind, cause) = match is_static {
                true => (EventKind::StaticMade, Cause::Configuration),
                false => (EventKind::MappingCreated, Cause::Outbound),
            };
            let event = self.event_of(kind, now, index).because(cause);
            self.events.record(event);
        }
    }

    /// A mapping is about to end, for a cause that only the caller knows or for one that its record tells; the record still says all of it.
    #[inline]
    pub(super) fn note_mapping_ended(&mut self, now: Instant, index: u32, cause: Option<Cause>) {
        // Whatever the settings are by now: what was told to begin is told to end.
        if self.events.is_on() && self.mappings.get(index).is_recorded() {
            let now_s = (now.as_micros() / 1_000_000) as u32;
            let held_s = now_s.saturating_sub(self.mappings.get(index).created_s());
            let kind = if self.mappings.get(index).is_recorded_static() {
                EventKind::StaticEnded
            } else {
                EventKind::MappingEnded
            };
            let event =
                self.event_of(kind, now, index).because(cause.unwrap_or_else(|| self.why_mapping_ends(now, index)));
            self.events.record(Event { amount: held_s, ..event });
        }
    }

    /// Why a mapping ends that is about to.
    fn why_mapping_ends(&self, now: Instant, index: u32) -> Cause {
        let mapping = self.mappings.get(index);
        if self.is_overdue(index, now) && self.is_alive(index, now) {
            let ends = self.displaced(index).and_then(|found| found.ends);
            if ends.is_some_and(|ends| ends <= now) {
                let is_at_once = self.shared.settings().reload.removed == Removed::End;
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

    /// Whether all further sessions of a mapping were closed or reset. Of one with many nothing is said.
    fn are_further_sessions_over(&self, index: u32) -> bool {
        let mut slot = self.mappings.get(index).extra_head;
        for _ in 0..SESSIONS_LOOKED_AT_MAX {
            if slot == 0 {
                return true;
            }
            let session = self.sessions.get(slot);
            if !session.state().is_over() {
                return false;
            }
            slot = session.next;
        }
        false
    }

    /// Why what is on an external address ends with it.
    fn why_address_ends(&self, address: u32) -> Cause {
        let closed = self.local.pool_address(address).and_then(|address| self.shared.closed(address));
        match closed {
            Some(closed) if closed.removed && closed.ends == Some(closed.since) => Cause::Configuration,
            _ => Cause::Drained,
        }
    }

    /// Why a flow ends that is about to.
    fn why_flow_ends(&self, now: Instant, index: u32) -> Cause {
        let flow = self.flows.get(index);
        let external = flow.external().0;
        if flow.is_alive(now) && self.is_flow_overdue(index, now) {
            let displaced = self.shared.displaced_flow(flow).and_then(|found| found.ends);
            if displaced.is_some_and(|ends| ends <= now) && self.shared.settings().reload.removed == Removed::End {
                return Cause::Configuration;
            }
            return self.why_address_ends(external);
        }
        if flow.protocol() == Protocol::Tcp && flow.state().is_over() { Cause::Closed } else { Cause::Idle }
    }

    /// Why a block goes back that nothing is in use of.
    fn why_block_ends(&self, subscriber: u32, block: Block) -> Cause {
        let paired = AddressIndex(self.subscribers.get(subscriber).paired);
        if paired != UNPAIRED && paired != block.address() {
            Cause::Moved
        } else if self.shared.facts(block.address()).blocks.is_none() {
            Cause::Configuration
        } else {
            Cause::Idle
        }
    }

    /// After a change of the settings: has records told of mappings that needed none before, as a formula or a block told whose
    /// their ports are, and does no more. Looks at so many a call; ends early while there is no room for a record.
    #[inline]
    pub(super) fn note_untold(&mut self, now: Instant, visits: u32) {
        for _ in 0..visits.min(self.unrecorded) {
            if !self.note_if_untold(now, self.unrecorded) {
                return;
            }
            self.unrecorded -= 1;
        }
    }

    /// The same for one mapping. False when there is no room for its record.
    #[cold]
    fn note_if_untold(&mut self, now: Instant, index: u32) -> bool {
        if index >= self.mappings.walk_end() {
            return true;
        }
        let mapping = self.mappings.get(index);
        if mapping.is_in_use() && !mapping.is_recorded() && self.is_alive(index, now) && !self.is_told(index) {
            if !self.events.may_allocate() {
                return false;
            }
            self.mappings.get_mut(index).set_recorded(false);
            let event = self.event_of(EventKind::MappingCreated, now, index).because(Cause::Configuration);
            let held_s = ((now.as_micros() / 1_000_000) as u32).saturating_sub(self.mappings.get(index).created_s());
            self.events.record(Event { amount: held_s, ..event });
        }
        true
    }

    /// Whether a block that the subscriber holds, or the formula of a pool, tells whose the port of a mapping is.
    fn is_told(&self, index: u32) -> bool {
        let mapping = self.mappings.get(index);
        let (external, internal) = (mapping.external(), mapping.internal());
        let Some(address) = self.shared.address_index(external.address) else { return true };
        let realm = mapping.realm();
        let is_his = |holder: Holder| (holder.realm, holder.address) == (realm, internal.address.to_bits());
        let lease = self.shared.lease_of(address, external.port);
        lease.is_some_and(|lease| is_his(lease.holder))
            || self.shared.is_by_formula(address, external.port, realm, internal.address)
    }

    /// Whether the configuration says whose the external endpoint of a mapping is.
    #[inline]
    fn is_static(&self, index: u32) -> bool {
        let statics = &self.shared.statics;
        if statics.is_empty() {
            return false;
        }
        let mapping = self.mappings.get(index);
        statics.by_external(mapping.external_address, mapping.protocol(), mapping.external_port()).is_some()
    }

    /// A flow was made, or is about to end. Without its remote endpoint nobody could tell whose it was: other subscribers use
    /// the same external endpoint at the same time (RFC 6888 §4 REQ-12 allows it where it is needed).
    pub(super) fn note_flow(&mut self, kind: EventKind, now: Instant, index: u32) {
        if self.events.is_on() {
            let event = self.event_of_flow(kind, now, index);
            self.events.record(event);
        }
    }

    /// A flow that begins, or ends now.
    pub(super) fn event_of_flow(&self, kind: EventKind, now: Instant, index: u32) -> Event {
        let flow = self.flows.get(index);
        let (internal, external) = (endpoint(flow.internal()), endpoint(flow.external()));
        let remote = endpoint(flow.far());
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
        let mapping = self.mappings.get(index);
        let key = mapping.key();
        Event::of_mapping(kind, now, key.realm, key.protocol, mapping.internal(), mapping.external())
    }

    /// Something could not be made for a packet.
    #[cold]
    pub(super) fn note_refusal(&mut self, now: Instant, unmade: Unmade<'_>) {
        if !self.events.is_on() {
            return;
        }
        let Unmade { key, verdict, wanted } = unmade;
        let subscriber = Ipv4Addr::from_bits(key.address);
        let known = self.subscribers.find(key.realm, key.address);
        if let Some(slot) = known {
            // A threshold that a change of settings put below what he uses is told now, as nothing more begins to tell it.
            self.watch_subscriber(now, slot, key.protocol);
        }
        let own = || self.shared.pool_for(key.realm, subscriber);
        let Some(pool) = known.and_then(|slot| self.penalty_pool(slot)).or(wanted).or_else(own) else { return };
        let external = self.address_in(key, pool).map_or(Ipv4Addr::UNSPECIFIED, |address| self.shared.address(address));
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
        // Who waits for a port that is his by the configuration says nothing of the others.
        if verdict == Verdict::PortsExhausted && self.shared.statics.by_internal(key).is_none() {
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

    /// A subscriber leased a block.
    #[cold]
    pub(super) fn note_block_leased(&mut self, now: Instant, subscriber: u32, block: Block) {
        if self.events.is_on() {
            let event = self.event_of_block(EventKind::BlockLeased, now, subscriber, block).because(Cause::Outbound);
            self.events.record(event);
        }
    }

    /// A subscriber's block is about to go back.
    #[cold]
    pub(super) fn note_block_returned(&mut self, now: Instant, subscriber: u32, block: Block) {
        if self.events.is_on() {
            let since_s = self.shared.lease_of(block.address(), block.first_port()).map_or(0, |lease| lease.since_s);
            let held_s = ((now.as_micros() / 1_000_000) as u32).saturating_sub(since_s);
            let event = self.event_of_block(EventKind::BlockReturned, now, subscriber, block);
            let event = event.because(self.why_block_ends(subscriber, block));
            self.events.record(Event { amount: held_s, ..event });
        }
    }

    fn event_of_block(&self, kind: EventKind, now: Instant, subscriber: u32, block: Block) -> Event {
        let record = self.subscribers.get(subscriber);
        self.event_of_lease(kind, now, (record.realm(), record.address), block)
    }

    /// About a block of who has this address in this realm.
    pub(super) fn event_of_lease(&self, kind: EventKind, now: Instant, holder: (RealmId, u32), block: Block) -> Event {
        let (realm, subscriber) = holder;
        Event {
            subscriber: Ipv4Addr::from_bits(subscriber),
            external: self.shared.address(block.address()),
            first_port: block.first_port(),
            last_port: block.last_port(),
            realm,
            pool: self.shared.name_of_pool(self.shared.pool_of(block.address())),
            ..Event::new(kind, now)
        }
    }
}
