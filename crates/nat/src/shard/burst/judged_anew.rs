//! Usual packets of other established sessions: filters were last asked about them before a change,
//! or permit one way only, or they are further sessions of their mappings. `outbound` and `inbound`
//! decide alike, more slowly.

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
use crate::shard::burst::established::segment;
use crate::shard::burst::established::segment_of;
use crate::shard::packet::PacketPath;
use crate::state::mapping::InternalKey;
use crate::state::mapping::SessionRef;
use crate::state::mapping::steady_remote;
use crate::state::tcp::Segment;
use crate::state::tcp::TcpState;
use crate::steps::view::hashed_by;
use crate::types::Protocol;
use crate::types::RemoteInside;
use crate::types::Side;

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
        let port = be16::<22>(header);
        let remote = steady_remote(destination, port, mapping.session_generation());
        if mapping.differs_outbound(internal, remote) != 0 {
            let remote = RemoteInside { address: destination, port };
            let is_elsewhere = || self.ledger.state.has_live_flow(mapping.key(), remote, clock.now());
            if mapping.extra_count() == 0 || !mapping.matches(internal) || is_elsewhere() {
                return None;
            }
            let external = (mapping.external_address, mapping.external_port());
            let packet = (remote, segment_of(header, length));
            return self.refresh_further(clock, record, packet, Side::Inside).then_some(external);
        }
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        if is_due || !self.pass_anew(record, true) {
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
        let remote = RemoteInside { address: be32::<12>(header), port: be16::<20>(header) };
        let external = (be32::<16>(header), be16::<22>(header));
        let word = steady_remote(remote.address, remote.port, mapping.session_generation());
        let is_first = mapping.differs_inbound(protocol as u8, external.0, external.1, word) == 0;
        let is_due = mapping.session_expires() <= clock.due[usize::from(is_tcp)];
        let may_be_further = mapping.extra_count() > 0 && mapping.is_at_outside(protocol as u8, external.0, external.1);
        let may_pass = if is_first { !is_due } else { may_be_further };
        if !may_pass {
            return None;
        }
        let (realm, address, port) = (mapping.realm(), mapping.internal_address(), mapping.internal_port());
        let egress = self.ledger.shared.steady_in(&mut self.ledger.route_cache, realm, address.0, be16::<2>(header))?;
        if !is_first {
            let packet = (remote, segment(header));
            return self.refresh_further(clock, record, packet, Side::Outside).then_some((egress, (address.0, port)));
        }
        if !self.pass_anew(record, false) {
            return None;
        }
        let inbound_refresh = self.ledger.policy.timers.inbound_refresh;
        refreshed_in(self.ledger.state.mappings.get_mut(record), clock, header, is_tcp, inbound_refresh);
        Some((egress, (address.0, port)))
    }

    /// False if the packet belongs to no established further session that filters permit both ways,
    /// or if a gateway may read it. Nothing has changed then.
    fn refresh_further(
        &mut self,
        clock: &SteadyClock,
        record: u32,
        (remote, segment): (RemoteInside, Segment),
        from: Side,
    ) -> bool {
        if self.changed.is_some() {
            return false;
        }
        let protocol = self.ledger.state.mappings.get(record).protocol();
        let is_tcp = protocol == Protocol::Tcp;
        let Some(pool) = self.view().pool_of_mapping(record) else { return false };
        let (sessions, by) = (&self.ledger.state.sessions, hashed_by(pool, protocol));
        let Some(slot) = sessions.find(record, remote.address, remote.port, by, clock.now()) else { return false };
        let session = sessions.get(slot);
        let is_usual = session.state() == TcpState::Established
            && session.filter_generation() == self.ledger.policy.generations.current()
            && session.expires() > clock.due[usize::from(is_tcp)]
            && !session.is_hairpin()
            && self.ledger.policy.lifetimes.own(protocol, remote.port).is_none();
        if !is_usual {
            return false;
        }
        if from == Side::Inside || self.ledger.policy.timers.inbound_refresh[usize::from(is_tcp)] {
            let end = clock.end[usize::from(is_tcp)];
            self.ledger.refresh(record, SessionRef::Extra(slot), TcpState::Established, end);
        }
        self.ledger.state.sessions.get_mut(slot).tracker.observe_ack(from, &segment, is_tcp);
        true
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
        if !view.has_kept_way(record, SessionRef::Inline) {
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
