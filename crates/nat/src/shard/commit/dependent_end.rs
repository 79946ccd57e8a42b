use crate::event::EventKind;
use crate::shard::Ledger;
use crate::state::delta::Change;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Protocol;

impl Ledger {
    pub(in crate::shard) fn uncount_flow(&mut self, now: Instant, subscriber: u32, protocol: Protocol) {
        self.state.subscribers.uncount_flow(subscriber);
        self.watch_left(now, subscriber, protocol);
        if let Some(paired) = self.state.subscribers.remove_if_idle(subscriber) {
            self.part_with(now, subscriber, paired);
        }
    }

    pub(in crate::shard) fn end_hold_down(&mut self, index: u32) {
        let key = self.state.flows.get(index).outside_key();
        self.state.flows.end_hold_down(index);
        self.shared.release(&key, self.worker);
    }

    /// The shared port stays for a while.
    pub(in crate::shard) fn end_flow(&mut self, now: Instant, index: u32) {
        let held = self.view().hold_down_of(self.state.flows.get(index));
        self.end_flow_held(now, index, held);
    }

    pub(in crate::shard) fn end_flow_held(&mut self, now: Instant, index: u32, held: Duration) {
        self.note_flow(EventKind::FlowEnded, now, index);
        self.emit_flow(now, index, Change::Ended);
        let flow = self.state.flows.get(index);
        let (port, generation, subscriber, protocol) = (flow.port, flow.generation(), flow.subscriber, flow.protocol());
        let (key, internal) = (flow.outside_key(), flow.internal().0);
        match generation {
            Some(generation) => {
                self.state.flows.remove(index);
                self.shared.balance.leave(generation);
            }
            None => {
                if held == Duration::ZERO {
                    self.state.flows.remove(index);
                    self.shared.release(&key, self.worker);
                } else {
                    self.state.flows.hold_down(index, now + held);
                }
                let given_back = self.state.shared_ports.give_back(port, subscriber, now);
                if let Some(record) = self.state.shared_ports.get(port).filter(|_| given_back.is_idle) {
                    self.shared.ports.leave(record.group().address(), protocol, record.port(), self.worker);
                }
                if given_back.counts_no_more {
                    self.state.subscribers.uncount_shared_port(subscriber, protocol);
                }
            }
        }
        self.uncount_flow(now, subscriber, protocol);
        self.state.subscribers.hosts.release(now, internal);
        self.counters.flows_removed += 1;
        self.counters.sessions_removed += 1;
    }
}
