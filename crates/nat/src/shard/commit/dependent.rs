//! The only creator of endpoint-dependent sessions.

use core::sync::atomic::Ordering;

use super::ATTEMPTS;
use super::Ledger;
use super::Lost;
use crate::event::EventKind;
use crate::external::load_balancing::Aim;
use crate::external::load_balancing::Group as TargetGroup;
use crate::external::ports::Taker;
use crate::state::delta::Change;
use crate::state::flow::BY_FORWARD;
use crate::state::flow::NewFlow;
use crate::state::flow::OutsideKey;
use crate::state::mapping::InternalKey;
use crate::state::shared_ports::Group;
use crate::state::shared_ports::SharedPort;
use crate::steps::dependent::NewDependent;
use crate::steps::dependent::NewLead;
use crate::steps::dependent::PortSource;
use crate::steps::opening::Entered;
use crate::steps::opening::Owner;
use crate::time::Instant;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;

impl Ledger {
    pub(in crate::shard) fn open_lead(
        &mut self,
        now: Instant,
        aim: &Aim,
        outside: &OutsideKey,
        is_hairpin: bool,
    ) -> Result<u32, Verdict> {
        // The five-tuple may be an expired session's, then a hold-down's; each takes an attempt to
        // end.
        for _ in 0..ATTEMPTS {
            let (view, random) = self.deciding();
            let new = view.decide_lead(now, aim, outside, random)?;
            match new.over {
                Some(over) => self.end_over(now, over),
                None => return self.commit_lead(now, &new, is_hairpin),
            }
        }
        Err(Verdict::FlowTableFull)
    }

    pub(in crate::shard) fn end_over(&mut self, now: Instant, index: u32) {
        if self.state.flows.get(index).is_held_down() {
            self.end_hold_down(index);
        } else {
            self.end_flow(now, index);
        }
    }

    pub(in crate::shard) fn commit_dependent(&mut self, now: Instant, new: &NewDependent) -> Result<u32, Lost> {
        let (port, opens) = self.take_shared_port(now, new)?;
        let subscriber = self.enter_or_settle(now, &new.key, &new.owner, new.entered).ok_or(Lost)?;
        let protocol = new.key.protocol;
        let first = self.policy.lifetimes.first(protocol, new.remote_inside.port, Side::Inside);
        let flow = NewFlow {
            internal: new.key,
            remote_inside: new.remote_inside,
            remote_outside: new.outside.remote_outside,
            external: new.outside.external,
            state: first.state,
            expires: now + first.lifetime,
            port,
            subscriber,
            is_hairpin: false,
        };
        let index = self.enter_flow(now, &flow)?;
        self.state.shared_ports.take(port, subscriber, opens);
        if opens {
            self.state.subscribers.count_shared_port(subscriber, protocol);
        }
        self.charge_flow(now, subscriber, protocol);
        self.state.subscribers.note_place(subscriber, new.address, self.shared.pool_of(new.address));
        if let Some(pool) = new.turn {
            self.shared.turns[pool.index()].fetch_add(1, Ordering::Relaxed);
        }
        self.note_flow(EventKind::FlowCreated, now, index);
        self.emit_flow(now, index, Change::Lives);
        let (external, remote) = (new.outside.external.into(), new.outside.remote_outside.into());
        if protocol == Protocol::Tcp && self.syns.forget(external, remote) {
            self.counters.unsolicited_syns_matched += 1;
        }
        Ok(index)
    }

    pub(in crate::shard) fn commit_lead(
        &mut self,
        now: Instant,
        new: &NewLead,
        is_hairpin: bool,
    ) -> Result<u32, Verdict> {
        let (protocol, external) = (new.key.protocol, new.outside.external);
        let group = self.shared.balance.find(external.address, protocol, external.port);
        let generation =
            group.and_then(TargetGroup::current).map(|generation| generation.id()).ok_or(Verdict::NoMapping)?;
        let subscriber = self.enter_or_settle(now, &new.key, &new.owner, new.entered);
        let subscriber = subscriber.ok_or(Verdict::SubscriberTableFull)?;
        let first = self.policy.lifetimes.first_of_target(protocol);
        let flow = NewFlow {
            internal: new.key,
            remote_inside: new.outside.remote_outside.not_redirected(),
            remote_outside: new.outside.remote_outside,
            external,
            state: first.state,
            expires: now + first.lifetime,
            port: BY_FORWARD | generation,
            subscriber,
            is_hairpin,
        };
        let index = self.enter_flow(now, &flow).map_err(|Lost| Verdict::FlowTableFull)?;
        let group = self.shared.balance.find(external.address, protocol, external.port);
        if let Some(generation) = group.and_then(TargetGroup::current) {
            generation.enter(new.position);
        }
        self.shared.count_lead(self.worker, group);
        self.charge_flow(now, subscriber, protocol);
        self.note_flow(EventKind::FlowCreated, now, index);
        self.emit_flow(now, index, Change::Lives);
        Ok(index)
    }

    fn enter_flow(&mut self, now: Instant, flow: &NewFlow) -> Result<u32, Lost> {
        // If the table is full, the oldest hold-down ends.
        if let Some(index) = self.state.flows.in_the_way() {
            self.end_hold_down(index);
        }
        let index = self.state.flows.insert(flow, now).map_err(|_| Lost)?;
        self.state.subscribers.hosts.retain(self.state.flows.get(index).internal().0);
        self.state.subscribers.count_flow(flow.subscriber);
        self.update_class(flow.subscriber);
        self.counters.flows_created += 1;
        self.counters.sessions_created += 1;
        Ok(index)
    }

    fn enter_or_settle(
        &mut self,
        now: Instant,
        key: &InternalKey,
        owner: &Owner,
        entered: Option<Entered>,
    ) -> Option<u32> {
        if let Some(slot) = owner.slot {
            self.settle(now, slot, owner, entered);
            return Some(slot);
        }
        let entered = entered?;
        let slot = self.enter(key, &entered)?;
        let compiled = self.shared.pools[entered.entry.pool.index()];
        if compiled.has_guarantees() {
            self.guarantee(slot, &compiled, entered.address);
        }
        Some(slot)
    }

    /// Claims the five-tuple among all workers. Returns the port's record, and whether this is its
    /// first session. An error takes nothing, except perhaps a port without sessions.
    fn take_shared_port(&mut self, now: Instant, new: &NewDependent) -> Result<(u32, bool), Lost> {
        let (protocol, port) = (new.key.protocol, new.outside.external.port);
        let group = Group::new(new.address, protocol, new.class);
        let slot = match new.source {
            PortSource::Own(slot) => slot,
            PortSource::Borrowed => self.state.shared_ports.add(group, port, now).map_err(|_| Lost)?,
            PortSource::New => self.take_port_to_share(now, group, port)?,
        };
        if !self.shared.claim(&new.outside, self.worker) {
            return Err(Lost);
        }
        if self.state.shared_ports.get(slot).is_some_and(|record| record.flows() > 0) {
            return Ok((slot, false));
        }
        match self.shared.ports.join(new.address, protocol, port) {
            Some(opens) if !opens || new.may_open => return Ok((slot, opens)),
            // Other workers' sessions on it have ended.
            Some(_) => self.shared.ports.leave(new.address, protocol, port, self.worker),
            // Its home worker has freed it.
            None => self.state.shared_ports.remove(slot),
        }
        self.shared.release(&new.outside, self.worker);
        Err(Lost)
    }

    fn take_port_to_share(&mut self, now: Instant, group: Group, port: u16) -> Result<u32, Lost> {
        let (address, protocol) = (group.address(), group.protocol());
        let compiled = *self.shared.compiled_pool(address);
        if compiled.has_guarantees() {
            self.take_unguaranteed(&compiled, address, protocol).map_err(|_| Lost)?;
        }
        let is_taken = self.shared.ports.take_picked(address, protocol, port, Taker::Anyone);
        if compiled.has_guarantees() {
            self.settle_unguaranteed(address, protocol, is_taken.then_some(port));
        }
        if !is_taken {
            return Err(Lost);
        }
        // This worker may still have an old record.
        let known = self.state.shared_ports.find_port(group, port);
        let Ok(slot) = known.map_or_else(|| self.state.shared_ports.add(group, port, now), Ok) else {
            self.give_back_port(address, protocol, port);
            return Err(Lost);
        };
        self.shared.ports.publish(address, protocol, port, self.worker, MappingIndex::SHARED);
        let group = self.state.shared_ports.get(slot).map_or(group, SharedPort::group);
        if let Some(between_workers) = &self.shared.between_workers {
            between_workers.map.add(group, port);
        }
        Ok(slot)
    }
}
