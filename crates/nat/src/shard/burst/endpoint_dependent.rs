//! Whole UDP and TCP packets of established endpoint-dependent sessions, for which
//! [`established`](crate::shard::burst::established) found no mapping. Unusual packets stay
//! untouched for `packet/endpoint_dependent.rs`.

use crate::headers::packet::Egress;
use crate::headers::packet::Packet;
use crate::headers::parse::HEADERS;
use crate::headers::parse::be16;
use crate::headers::parse::be32;
use crate::headers::rewrite::End;
use crate::headers::rewrite::rewrite_both_ends;
use crate::headers::rewrite::rewrite_headers;
use crate::policy::steady_timers::SteadyClock;
use crate::shard::burst::established::Kind;
use crate::shard::burst::established::Scratch;
use crate::shard::burst::established::segment;
use crate::shard::burst::first_packet::bits;
use crate::shard::packet::PacketPath;
use crate::state::flow::InsideKey;
use crate::state::flow::OutsideKey;
use crate::state::mapping::InternalKey;
use crate::state::tcp::TcpState;
use crate::types::ExternalEndpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;
use crate::types::Side;

fn protocol(kind: Kind) -> Protocol {
    if kind.is_tcp() { Protocol::Tcp } else { Protocol::Udp }
}

fn inside_key(header: &[u8; HEADERS], kind: Kind, realm: RealmId) -> InsideKey {
    let protocol = protocol(kind);
    let key = InternalKey { realm, protocol, address: HostNumber(be32::<12>(header)), port: be16::<20>(header) };
    InsideKey::new(&key, RemoteInside { address: be32::<16>(header), port: be16::<22>(header) })
}

fn outside_key(header: &[u8; HEADERS], kind: Kind) -> OutsideKey {
    OutsideKey {
        protocol: protocol(kind),
        external: ExternalEndpoint { address: be32::<16>(header), port: be16::<22>(header) },
        remote_outside: RemoteOutside { address: be32::<12>(header), port: be16::<20>(header) },
    }
}

impl PacketPath {
    /// For packets from inside without a mapping, and to shared ports.
    #[inline(never)]
    pub(in crate::shard) fn find_flows(&self, scratch: &mut Scratch, burst: &[Packet<'_>]) {
        let mut usual = 0_u64;
        for i in bits(scratch.unsettled | scratch.shared) {
            let kind = scratch.kind[i];
            let Some(header) = burst[i].chunk::<HEADERS>(0) else { continue };
            if !kind.is_steady() {
                continue;
            }
            usual |= 1 << i;
            scratch.flow_hash[i] = if scratch.shared >> i & 1 != 0 {
                self.ledger.state.flows.outside_hash(&outside_key(header, kind))
            } else {
                self.ledger.state.flows.inside_hash(&inside_key(
                    header,
                    kind,
                    self.ledger.shared.realm_of(burst[i].meta.ingress),
                ))
            };
        }
        for i in bits(usual) {
            self.ledger.state.flows.prefetch_table(scratch.shared >> i & 1 != 0, scratch.flow_hash[i]);
        }
        for i in bits(usual) {
            let flow = self.ledger.state.flows.candidate(scratch.shared >> i & 1 != 0, scratch.flow_hash[i]);
            if flow != 0 {
                scratch.flow[i] = flow;
                scratch.flows |= 1 << i;
            }
        }
        for i in bits(scratch.flows) {
            self.ledger.state.flows.prefetch_write(scratch.flow[i]);
        }
        scratch.unsettled &= !scratch.flows;
        scratch.further &= !scratch.flows;
    }

    /// As [`PacketPath::steady_out`].
    #[inline]
    pub(in crate::shard) fn steady_flow_out(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        index: u32,
        realm: RealmId,
    ) -> Option<Egress> {
        let is_tcp = kind.is_tcp();
        if self.ledger.policy.lifetimes.own(protocol(kind), be16::<22>(header)).is_some() {
            return None;
        }
        let key = inside_key(header, kind, realm);
        let flow = self.ledger.state.flows.get(index);
        let (remote_inside, remote_outside) = (flow.remote_inside(), flow.remote_outside());
        if !flow.is_steady_inside(&key) || flow.expires() <= clock.due[usize::from(is_tcp)] {
            return None;
        }
        let cache = &mut self.ledger.route_cache;
        let egress =
            self.ledger.shared.steady_out(cache, remote_outside.address, be32::<12>(header), be16::<2>(header))?;
        if !self.passes_by_flow(index, true) {
            return None;
        }
        let flow = self.ledger.state.flows.get_mut(index);
        flow.refresh(TcpState::Established, clock.end[usize::from(is_tcp)]);
        flow.tracker.observe_ack(Side::Inside, &segment(header), is_tcp);
        let external = flow.external();
        let identification = self.plain_identification(header, external.address, remote_outside.address);
        if remote_inside.not_redirected() == remote_outside {
            rewrite_headers(header, is_tcp, End::Source, external.address, external.port, identification);
        } else {
            rewrite_both_ends(header, is_tcp, external.raw(), remote_outside.raw(), identification);
        }
        Some(egress)
    }

    #[inline]
    pub(in crate::shard) fn steady_flow_in(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        index: u32,
    ) -> Option<Egress> {
        let is_tcp = kind.is_tcp();
        let key = outside_key(header, kind);
        let flow = self.ledger.state.flows.get(index);
        if !flow.is_steady_outside(&key) || flow.expires() <= clock.due[usize::from(is_tcp)] {
            return None;
        }
        let (realm, (host, port), remote_inside) = (flow.realm(), flow.internal(), flow.remote_inside());
        if self.ledger.policy.lifetimes.own(protocol(kind), remote_inside.port).is_some() {
            return None;
        }
        let cache = &mut self.ledger.route_cache;
        let egress = self.ledger.shared.steady_in(cache, realm, host.0, be16::<2>(header))?;
        if !self.passes_by_flow(index, false) {
            return None;
        }
        let flow = self.ledger.state.flows.get_mut(index);
        if self.ledger.policy.timers.inbound_refresh[usize::from(is_tcp)] {
            flow.refresh(TcpState::Established, clock.end[usize::from(is_tcp)]);
        }
        flow.tracker.observe_ack(Side::Outside, &segment(header), is_tcp);
        if remote_inside.not_redirected() == key.remote_outside {
            rewrite_headers(header, is_tcp, End::Destination, host.0, port, None);
        } else {
            rewrite_both_ends(header, is_tcp, remote_inside.raw(), (host.0, port), None);
        }
        Some(egress)
    }
}
