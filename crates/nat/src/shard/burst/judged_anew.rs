//! Established sessions without the present generation of filters: the filters were last asked
//! before a change, or permit one way only. `outbound` and `inbound` decide alike, more slowly.

use crate::headers::packet::Egress;
use crate::headers::parse::HEADERS;
use crate::headers::parse::be16;
use crate::headers::parse::be32;
use crate::policy::rules::RuleKey;
use crate::policy::steady_timers::SteadyClock;
use crate::shard::burst::established::Kind;
use crate::shard::burst::established::Outgoing;
use crate::shard::burst::established::refreshed_in;
use crate::shard::burst::established::refreshed_out;
use crate::shard::packet::PacketPath;
use crate::state::mapping::InternalKey;
use crate::state::mapping::steady_remote;
use crate::types::Protocol;
use crate::types::RemoteInside;

impl PacketPath {
    /// After [`PacketPath::refresh_out`] found a difference. The external endpoint, or `None` if
    /// there are other differences or the filters refuse.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn refresh_out_anew(
        &mut self,
        clock: &SteadyClock,
        header: &[u8; HEADERS],
        kind: Kind,
        record: u32,
        Outgoing { internal, destination, length }: Outgoing,
    ) -> Option<(u32, u16)> {
        let is_tcp = kind.is_tcp();
        let mapping = self.ledger.state.mappings.get(record);
        let remote = steady_remote(destination, be16::<22>(header), mapping.session_generation());
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        if mapping.differs_outbound(internal, remote) != 0 || is_due || !self.pass_anew(record, true) {
            return None;
        }
        Some(refreshed_out(self.ledger.state.mappings.get_mut(record), clock, header, is_tcp, length))
    }

    /// As [`PacketPath::refresh_out_anew`], with the internal endpoint.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn refresh_in_anew(
        &mut self,
        clock: &SteadyClock,
        header: &[u8; HEADERS],
        kind: Kind,
        record: u32,
    ) -> Option<(Egress, (u32, u16))> {
        let is_tcp = kind.is_tcp();
        let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
        let mapping = self.ledger.state.mappings.get(record);
        let remote = steady_remote(be32::<12>(header), be16::<20>(header), mapping.session_generation());
        let differs = mapping.differs_inbound(protocol as u8, be32::<16>(header), be16::<22>(header), remote);
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        let (realm, address, port) = (mapping.realm(), mapping.internal_address(), mapping.internal_port());
        if differs != 0 || is_due {
            return None;
        }
        let egress = self.ledger.shared.steady_in(&mut self.ledger.route_cache, realm, address.0, be16::<2>(header))?;
        if !self.pass_anew(record, false) {
            return None;
        }
        let inbound_refresh = self.ledger.policy.timers.inbound_refresh;
        refreshed_in(self.ledger.state.mappings.get_mut(record), clock, header, is_tcp, inbound_refresh);
        Some((egress, (address.0, port)))
    }

    /// False if the filters refuse. Nothing has changed then.
    #[inline]
    pub(in crate::shard) fn passes_by_flow(&mut self, index: u32, is_out: bool) -> bool {
        let generation = self.ledger.state.flows.get(index).filter_generation();
        generation == self.ledger.policy.generations.current() || self.pass_by_flow_anew(index, is_out)
    }

    #[cold]
    #[inline(never)]
    fn pass_by_flow_anew(&mut self, index: u32, is_out: bool) -> bool {
        let flow = self.ledger.state.flows.get(index);
        if self.ledger.local.lookup(flow.remote_outside().address).is_some() {
            // It has become one of Natrix since the session was opened.
            return false;
        }
        let (address, port) = flow.internal();
        let key = InternalKey { realm: flow.realm(), protocol: flow.protocol(), address, port };
        let judged = self.view().judge(is_out, RuleKey::of_flow(&key, flow.remote_inside()), false, &mut ());
        if judged.passes() {
            self.count_judged(&judged);
            self.note_flow_permitted(index, judged.permits);
        }
        judged.passes()
    }

    /// Asks the filters about the first session of a mapping. If they refuse, nothing has changed.
    fn pass_anew(&mut self, record: u32, is_out: bool) -> bool {
        let view = self.view();
        if !view.has_kept_way(record) {
            return false;
        }
        let mapping = self.ledger.state.mappings.get(record);
        let remote = RemoteInside { address: mapping.remote_address(), port: mapping.remote_port() };
        let judged = view.judge(is_out, RuleKey::of_flow(&mapping.key(), remote), false, &mut ());
        if judged.passes() {
            self.count_judged(&judged);
            if let Some(generation) = self.ledger.policy.generations.to_give(judged.permits) {
                self.ledger.state.mappings.get_mut(record).set_session_generation(generation);
            }
        }
        judged.passes()
    }
}
