use crate::shard::Ledger;
use crate::state::delta::Change;
use crate::state::delta::Delta;
use crate::state::delta::DeltaSession;
use crate::state::flow::InsideKey;
use crate::state::flow::OutsideKey;
use crate::state::mapping::InternalKey;
use crate::state::shared_ports::Group;
use crate::steps::dependent::NewDependent;
use crate::steps::dependent::NewLead;
use crate::steps::dependent::PortSource;
use crate::steps::port_choice::port_class;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::ExternalEndpoint;
use crate::types::RemoteInside;
use crate::verdict::Verdict;

impl View<'_> {
    pub(super) fn delta_of_live_flow(&self, now: Instant, index: u32, out: &mut Vec<Delta>) {
        let flow = self.state.flows.get(index);
        if flow.is_in_use() && flow.is_alive(now) {
            out.push(self.delta_of_flow(now, index, Change::Lives));
        }
    }

    fn delta_of_flow(&self, now: Instant, index: u32, change: Change) -> Delta {
        let flow = self.state.flows.get(index);
        let age_s = (now.as_micros() / 1_000_000).saturating_sub(u64::from(flow.created_s()));
        let left = flow.expires().saturating_since(now);
        Delta {
            change,
            realm: flow.realm(),
            protocol: flow.protocol(),
            internal: flow.internal().into(),
            host: self.host_of_delta(flow.internal().into()),
            external: flow.external().into(),
            age: Duration::from_secs(age_s),
            left,
            session: Some(DeltaSession {
                remote: flow.remote_outside().into(),
                opened_from: flow.opened_from(),
                is_hairpin: flow.is_hairpin(),
                state: flow.state(),
                left,
                tracker: flow.tracker,
            }),
            remote_inside: Some(flow.remote_inside().into()),
        }
    }

    fn target_position(&self, outside: &OutsideKey, key: &InternalKey) -> Option<usize> {
        let ExternalEndpoint { address, port } = outside.external;
        let current = self.snapshot.balance.find(address, outside.protocol, port)?.current()?;
        let mut aims = current.aims(port);
        let aim = aims.find(|aim| (aim.realm, aim.address, aim.port) == (key.realm, key.address, key.port))?;
        Some(aim.position)
    }

    fn installed_address(&self, outside: &OutsideKey) -> Result<AddressIndex, Verdict> {
        self.snapshot.address_index(outside.external.address.into()).ok_or(Verdict::DestinationNotPool)
    }
}

impl Ledger {
    #[inline]
    pub(in crate::shard) fn emit_flow(&mut self, now: Instant, index: u32, change: Change) {
        if self.deltas.ring.is_some() {
            self.emit(self.view().delta_of_flow(now, index, change));
        }
    }

    pub(super) fn install_dependent(
        &mut self,
        now: Instant,
        key: &InternalKey,
        delta: &Delta,
        session: &DeltaSession,
        remote_inside: Endpoint,
    ) -> Result<(), Verdict> {
        let remote_inside = RemoteInside::from(remote_inside);
        let outside = OutsideKey {
            protocol: key.protocol,
            external: delta.external.into(),
            remote_outside: session.remote.into(),
        };
        let inside = InsideKey::new(key, remote_inside);
        let found = self.state.flows.find_outside(&outside);
        let is_same = |index: &u32| self.state.flows.get(*index).is_at_inside(&inside);
        let same = found.filter(is_same);
        if delta.change == Change::Ended {
            if let Some(index) = same {
                self.end_flow_held(now, index, Duration::ZERO);
            }
            return Ok(());
        }
        let index = match same {
            Some(index) => index,
            None => {
                // Sessions with one of the five-tuples have ended on the other instance.
                for index in [found, self.state.flows.find_inside(&inside)].into_iter().flatten() {
                    self.end_installed_flow(now, index);
                }
                if self.state.flows.is_full() {
                    return Err(Verdict::FlowTableFull);
                }
                match self.view().target_position(&outside, key) {
                    Some(position) => self.install_lead(now, key, &outside, position, session.is_hairpin)?,
                    None => self.install_shared(now, key, &outside, remote_inside)?,
                }
            }
        };
        let flow = self.state.flows.get_mut(index);
        flow.set_created(now, delta.age);
        flow.refresh(session.state, now + session.left);
        flow.tracker = session.tracker;
        Ok(())
    }

    fn end_installed_flow(&mut self, now: Instant, index: u32) {
        let flow = self.state.flows.get(index);
        if flow.is_held_down() {
            self.end_hold_down(index);
        } else if flow.is_in_use() {
            self.end_flow_held(now, index, Duration::ZERO);
        }
    }

    fn install_lead(
        &mut self,
        now: Instant,
        key: &InternalKey,
        outside: &OutsideKey,
        position: usize,
        is_hairpin: bool,
    ) -> Result<u32, Verdict> {
        let address = self.view().installed_address(outside)?;
        let (owner, entered) = self.view().owner_of_installed(key, address);
        let new = NewLead { key: *key, outside: *outside, position, owner, entered, over: None };
        self.commit_lead(now, &new, is_hairpin)
    }

    fn install_shared(
        &mut self,
        now: Instant,
        key: &InternalKey,
        outside: &OutsideKey,
        remote_inside: RemoteInside,
    ) -> Result<u32, Verdict> {
        let address = self.view().installed_address(outside)?;
        let (owner, entered) = self.view().owner_of_installed(key, address);
        if owner.slot.is_none() && self.state.subscribers.is_full() {
            return Err(Verdict::SubscriberTableFull);
        }
        let (port, class) = (outside.external.port, port_class(key.port, self.shared.compiled_pool(address)));
        let known = self.state.shared_ports.find_port(Group::new(address, key.protocol, class), port);
        let source = match known {
            Some(slot) if self.shared.ports.is_shared(address, key.protocol, port) => PortSource::Own(slot),
            _ if self.shared.ports.is_shared(address, key.protocol, port) => PortSource::Borrowed,
            _ => PortSource::New,
        };
        let new = NewDependent {
            key: *key,
            remote_inside,
            outside: *outside,
            owner,
            entered,
            address,
            class,
            source,
            may_open: true,
            turn: None,
            over: None,
        };
        self.commit_dependent(now, &new).map_err(|_| Verdict::PortsExhausted)
    }
}
